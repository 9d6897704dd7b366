package manifest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Whatever is parsed is refused, one line per error, or means the same once it is encoded and parsed again.
func FuzzParse(f *testing.F) {
	for _, folder := range []string{"valid", "invalid", "vmis"} {
		files, err := filepath.Glob(filepath.Join("testdata", folder, "*"))
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, ".golden") || strings.HasSuffix(file, ".err") {
				continue
			}
			data, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := Parse("f", data)
		if err != nil {
			for line := range strings.SplitSeq(err.Error(), "\n") {
				if !strings.HasPrefix(line, "f:") {
					t.Errorf("a line without the file's name: %q", line)
				}
				if strings.ContainsFunc(line, func(r rune) bool { return r < ' ' || r == 0x7f }) {
					t.Errorf("a line with control characters: %q", line)
				}
			}
			return
		}
		for line := range strings.SplitSeq(strings.TrimSuffix(summary(m), "\n"), "\n") {
			if strings.ContainsFunc(line, func(r rune) bool { return r < ' ' || r == 0x7f }) {
				t.Errorf("a summary with control characters: %q", line)
			}
		}
		checkRoundTrip(t, m)
		if second, err := Parse("f", data); err != nil || summary(second) != summary(m) {
			t.Errorf("parsed twice: %v", err)
		}
	})
}

func FuzzUnwrap(f *testing.F) {
	f.Add("cat\x00/tmp/x", 1)
	f.Add("--command\x00--\x00--guestAgentPing", 2)
	f.Fuzz(func(t *testing.T, joined string, times int) {
		command := strings.Split(joined, "\x00")
		if filepath.Base(command[0]) == "virt-probe" {
			return
		}
		wrapped := command
		for range min(times, 10) {
			wrapped = append([]string{"virt-probe", "--domainName", "a_b", "--timeoutSeconds", "1", "--command", wrapped[0], "--"}, wrapped[1:]...)
		}
		got, ping, err := Unwrap(wrapped)
		if err != nil || ping || strings.Join(got, "\x00") != joined {
			t.Errorf("%q: got %q, %t, %v", wrapped, got, ping, err)
		}
	})
}
