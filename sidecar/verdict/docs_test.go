package verdict

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// The page that people read is held to what Decide does.
func TestDocumentedTable(t *testing.T) {
	page, err := os.ReadFile("../../docs/verdicts.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\| (503|the probes decide) \\| (\\w+) \\| (held|fails at once|the probes decide) \\|$").FindAllStringSubmatch(string(page), -1)
	if len(rows) != 16 {
		t.Fatalf("%d rows of the table of states were understood, want QEMU's 16 run states", len(rows))
	}
	for _, row := range rows {
		status, ready, reason, live := row[1], row[2], Reason(row[3]), row[4]
		v := Decide(Input{Link: LinkUp, Status: status})
		if v.Reason != reason || v.Ready != (ready != "503") || v.Live != (live != "fails at once") || v.Held != (live != "the probes decide") {
			t.Errorf("%s: Decide says ready %v, %s, live %v, held %v; the page says %s, %s, %s", status, v.Ready, v.Reason, v.Live, v.Held, ready, reason, live)
		}
	}
	for _, r := range Reasons() {
		if row := "| " + string(r) + " | " + r.Help() + " |"; !strings.Contains(string(page), row) {
			t.Errorf("docs/verdicts.md lacks the row\n%s", row)
		}
	}
}
