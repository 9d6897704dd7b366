package manifest

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// examples takes the YAML out of a manual as it is printed, "..." and "# ..." around it included. Call-outs are what
// has to go: numbers behind a value, or alone on a line with blank lines around them.
func examples(text string) []string {
	var (
		all    []string
		block  []string
		inside bool
		probes bool // a probe has been seen: the next "..." is the end
	)
	number := regexp.MustCompile(`^\s*\d+$`)
	flush := func() {
		if probes {
			all = append(all, withoutCallouts(block))
		}
		block, inside, probes = nil, false, false
	}
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		trimmed := strings.TrimSpace(line)
		cut := trimmed == "..." || trimmed == "# ..."
		switch {
		case !inside && (cut || strings.HasPrefix(trimmed, "apiVersion:")):
			inside, block = true, []string{line}
		case !inside:
		case cut && probes:
			block = append(block, line)
			flush()
		case trimmed == "" && probes && !followedByCallout(lines[i+1:], number):
			flush()
		case trimmed == "" || number.MatchString(line):
		default:
			block = append(block, line)
			probes = probes || strings.HasPrefix(trimmed, ReadinessProbe+":") || strings.HasPrefix(trimmed, LivenessProbe+":")
		}
	}
	flush()
	return all
}

// followedByCallout tells whether blank lines only set off a call-out number, or the line after one.
func followedByCallout(rest []string, number *regexp.Regexp) bool {
	for _, line := range rest {
		if strings.TrimSpace(line) == "" {
			continue
		}
		return number.MatchString(line) || strings.HasPrefix(line, "     ") || strings.TrimSpace(line) == "# ..."
	}
	return false
}

// withoutCallouts cuts the numbers off: behind a value, or behind a key whose value is on the lines below.
func withoutCallouts(lines []string) string {
	behind := regexp.MustCompile(`^(\s*[\w-]+: \S+) \d$`)
	alone := regexp.MustCompile(`^(\s*)([\w-]+:) \d$`)
	for i, line := range lines {
		if m := behind.FindStringSubmatch(line); m != nil {
			lines[i] = m[1]
		} else if m := alone.FindStringSubmatch(line); m != nil && i+1 < len(lines) && strings.HasPrefix(lines[i+1], m[1]+" ") {
			lines[i] = m[1] + m[2]
		}
	}
	return strings.Join(lines, "\n") + "\n"
}

func TestManuals(t *testing.T) {
	for file, count := range map[string]int{"openshift-fr": 5, "openshift-ja": 3} {
		texts := examples(string(read(t, filepath.Join("testdata", "manuals", file+".txt"))))
		if len(texts) != count {
			t.Errorf("%s: found %d examples, want %d:\n%s", file, len(texts), count, strings.Join(texts, "\n=====\n"))
		}
		for i, text := range texts {
			name := fmt.Sprintf("%s-%d", file, i+1)
			t.Run(name, func(t *testing.T) {
				m, err := Parse(name, []byte(text))
				if err != nil {
					t.Fatalf("%v\n%s", err, text)
				}
				golden(t, filepath.Join("testdata", "manuals", name+".golden"), summary(m))
				checkRoundTrip(t, m)
			})
		}
	}
}
