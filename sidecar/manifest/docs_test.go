package manifest

import (
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

const docsFile = "../../docs/probes.md"

// Each example of the documentation is read; the one that is marked invalid is refused in the words printed below it.
func TestDocsExamples(t *testing.T) {
	text := string(read(t, docsFile))
	fences := regexp.MustCompile("(?ms)^```([a-z ]+)\n(.*?)^```$").FindAllStringSubmatch(text, -1)
	valid, invalid := 0, 0
	for i, fence := range fences {
		switch fence[1] {
		case "yaml":
			valid++
			m, err := Parse(fmt.Sprintf("example %d", valid), []byte(fence[2]))
			if err != nil {
				t.Errorf("%v\n%s", err, fence[2])
				continue
			}
			if len(m.Checks) == 0 {
				t.Errorf("no checks in\n%s", fence[2])
			}
			checkRoundTrip(t, m)
		case "yaml invalid":
			invalid++
			_, err := Parse("vm.yaml", []byte(fence[2]))
			if i+1 == len(fences) || err == nil || err.Error()+"\n" != fences[i+1][2] {
				t.Errorf("got\n%v", err)
			}
		}
	}
	if valid < 5 || invalid != 1 {
		t.Errorf("found %d valid and %d invalid examples", valid, invalid)
	}
}

// Each field that a GuestProbes document can have is in the documentation, in a table's first column.
func TestDocsFields(t *testing.T) {
	text := string(read(t, docsFile))
	var walk func(typ reflect.Type)
	walk = func(typ reflect.Type) {
		for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct {
			return
		}
		for field := range typ.Fields() {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if !regexp.MustCompile("(?m)^\\|[^|\n]*[`.]" + name + "`").MatchString(text) {
				t.Errorf("%s is not in %s", name, docsFile)
			}
			walk(field.Type)
		}
	}
	walk(reflect.TypeFor[encodedCheck]())
	walk(reflect.TypeFor[encodedPolicy]())
}

// The design's and the documentation's defaults are the code's.
func TestDocsDefaults(t *testing.T) {
	text := string(read(t, docsFile))
	m := mustParseSpec(t, "readinessProbe: {httpGet: {port: 80}}")
	c, p := m.Checks[0], m.Policy
	for field, value := range map[string]string{
		"initialDelaySeconds": fmt.Sprint(c.InitialDelay.Seconds()),
		"periodSeconds":       fmt.Sprint(c.Period.Seconds()),
		"timeoutSeconds":      fmt.Sprint(c.Timeout.Seconds()),
		"failureThreshold":    fmt.Sprint(c.FailureThreshold),
		"successThreshold":    fmt.Sprint(c.SuccessThreshold),
		"path":                "`" + c.Handler.HTTPGet.Path + "`",
		"scheme":              "`" + c.Handler.HTTPGet.Scheme + "`",
		"protocol":            "`" + c.Handler.HTTPGet.Protocol + "`",
		"freezeHoldSeconds":   fmt.Sprint(p.FreezeHold.Seconds()),
		"agentPing":           "`" + string(p.AgentPing) + "`",
		"guestPanicked":       "`" + string(p.GuestPanicked) + "`",
		"runCounters":         "`" + string(p.RunCounters) + "`",
		"httpBodyErrors":      "`" + string(p.HTTPBodyErrors) + "`",
	} {
		if row := "| `" + field + "` | " + value + " |"; !strings.Contains(text, row) {
			t.Errorf("%s has no row %q", docsFile, row)
		}
	}
}
