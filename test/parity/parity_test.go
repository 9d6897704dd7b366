package main

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	log.SetOutput(io.Discard) // see main
	goleak.VerifyTestMain(m,
		// klog flushes for as long as the process lives.
		goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"),
	)
}

// TestParity is the comparison itself.
func TestParity(t *testing.T) {
	r := compareAll(t.Context(), generate(defaultSeed, defaultCount), defaultWorkers)
	var out bytes.Buffer
	r.print(&out)
	t.Log("\n" + out.String())
	if r.total < 2000 {
		t.Errorf("%d behaviours, want at least 2000", r.total)
	}
	if len(r.unexplained) > 0 {
		t.Errorf("%d differences that docs/parity.md does not list", len(r.unexplained))
	}
	for _, result := range []string{"success", "warning", "failure", "error"} {
		if r.results[result] < 50 {
			t.Errorf("only %d behaviours in which the kubelet says %s", r.results[result], result)
		}
	}
	for _, d := range deviations() {
		if r.deviations[d.id] == 0 {
			t.Errorf("no behaviour shows the deviation %s: is there one?", d.id)
		}
	}
	// Coin tosses must stay the exception, or the comparison says nothing.
	if len(r.repeated) > r.total/10 {
		t.Errorf("%d of %d behaviours had to be repeated:\n%s", len(r.repeated), r.total, strings.Join(r.repeated, "\n"))
	}
}

// TestDocumented compares the list of deviations in the code with the one for people.
func TestDocumented(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "parity.md"))
	if err != nil {
		t.Fatal(err)
	}
	var documented, coded []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\|").FindAllStringSubmatch(string(text), -1) {
		documented = append(documented, row[1])
	}
	for _, d := range deviations() {
		coded = append(coded, d.id)
	}
	slices.Sort(documented)
	slices.Sort(coded)
	if !slices.Equal(documented, coded) {
		t.Errorf("docs/parity.md lists %q\nthe code applies %q", documented, coded)
	}
}

// TestFindsDifference makes sure that a difference would be seen at all: the server answers the
// kubelet, which comes first, with 200 and us with something else.
func TestFindsDifference(t *testing.T) {
	for name, second := range map[string]int{"result": 500, "result to warning": 304, "none": 200} {
		t.Run(name, func(t *testing.T) {
			var turn atomic.Int64
			s := &scenario{name: name, handler: "http", scheme: "HTTP", path: "/", timeout: patience}
			protocols := new(http.Protocols)
			protocols.SetHTTP1(true)
			s.start = func() (*server, error) {
				return startHTTP("127.0.0.1", nil, protocols, func(w http.ResponseWriter, _ *http.Request) {
					if turn.Add(1)%2 == 0 {
						w.WriteHeader(second)
					}
				})
			}
			r := compareAll(t.Context(), []*scenario{s}, 1)
			if found := len(r.unexplained) == 1; found != (second != 200) {
				var out bytes.Buffer
				r.print(&out)
				t.Errorf("difference found: %v\n%s", found, out.String())
			}
		})
	}
}

// TestDeterministic checks that a seed makes the same scenarios again.
func TestDeterministic(t *testing.T) {
	describe := func(all []*scenario) string {
		var b strings.Builder
		for _, s := range all {
			fmt.Fprintf(&b, "%s %s %d %s %s %q %v\n", s.name, s.host, s.port, s.scheme, s.path, s.headers, s.timeout)
		}
		return b.String()
	}
	first := describe(generate(1, 300))
	if describe(generate(1, 300)) != first {
		t.Error("the same seed made other scenarios")
	}
	if describe(generate(2, 300)) == first {
		t.Error("another seed made the same scenarios")
	}
}

// TestCommand runs what main runs.
func TestCommand(t *testing.T) {
	var out, errs bytes.Buffer
	if code := run([]string{"-n", "40", "-seed", "7", "-workers", "4"}, &out, &errs); code != 0 {
		t.Errorf("exit code %d\n%s%s", code, out.String(), errs.String())
	}
	if !strings.Contains(out.String(), "40 server behaviours") || !strings.Contains(out.String(), "unexplained differences: 0") {
		t.Errorf("output:\n%s", out.String())
	}
	if code := run([]string{"-n", "0"}, &out, &errs); code != 2 {
		t.Errorf("exit code %d for no behaviours, want 2", code)
	}
}
