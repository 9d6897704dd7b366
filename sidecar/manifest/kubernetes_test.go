package manifest

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/guestprobe/guestprobe/sidecar/probe"
)

// kubernetesCases is the part of kubelet-cases.json that is about manifests.
type kubernetesCases struct {
	Validation []struct {
		ProbeType string          `json:"probe_type"`
		Probe     json.RawMessage `json:"probe"`
		Errors    []struct {
			Field, Type, Message string
		} `json:"errors"`
	} `json:"validation"`
	Defaults []struct {
		Given map[string]any `json:"given"`
		Want  map[string]any `json:"want"`
	} `json:"defaults"`
	PortResolution []struct {
		Port  json.RawMessage `json:"port"`
		Ports map[string]int  `json:"container_ports"`
		OK    bool            `json:"ok"`
		Want  int             `json:"want"`
		Error string          `json:"error"`
	} `json:"port_resolution"`
	Expansion []struct {
		Env           map[string]string `json:"env"`
		Command, Want []string
	} `json:"exec_command_expansion"`
}

// forKubernetesCases runs a test over the cases of testdata and, where it lies beside the repository, of the newest file.
func forKubernetesCases(t *testing.T, test func(t *testing.T, cases kubernetesCases)) {
	for _, file := range []string{"testdata/kubernetes.json", "../../../shared/cases/kubelet-cases.json"} {
		t.Run(file, func(t *testing.T) {
			data, err := os.ReadFile(file)
			if errors.Is(err, os.ErrNotExist) && !strings.HasPrefix(file, "testdata") {
				t.Skip("not here")
			}
			if err != nil {
				t.Fatal(err)
			}
			var cases kubernetesCases
			if err := json.Unmarshal(data, &cases); err != nil {
				t.Fatal(err)
			}
			test(t, cases)
		})
	}
}

func TestKubernetesValidation(t *testing.T) {
	types := map[string]ErrorType{
		"Invalid": ErrorTypeInvalid, "Required": ErrorTypeRequired, "Forbidden": ErrorTypeForbidden, "NotSupported": ErrorTypeNotSupported,
	}
	forKubernetesCases(t, func(t *testing.T, cases kubernetesCases) {
		if len(cases.Validation) == 0 {
			t.Fatal("no cases")
		}
		for _, c := range cases.Validation {
			stanza := c.ProbeType + "Probe"
			text := `{"` + stanza + `": ` + string(c.Probe) + `}`
			_, err := ParseSpec("case", []byte(text)) // leaves the existence of a port's name open, as the API does
			var got ErrorList
			if err != nil && !errors.As(err, &got) {
				t.Fatalf("%s: %v is no ErrorList", text, err)
			}
			if len(got) != len(c.Errors) {
				t.Errorf("%s: got %v, want %v", text, err, c.Errors)
				continue
			}
			for i, want := range c.Errors {
				field := strings.TrimSuffix(stanza+"."+want.Field, ".")
				// The cases leave out the example that the API adds to a header's message.
				detail, _, _ := strings.Cut(got[i].Detail, " (e.g. ")
				if got[i].Field != field || got[i].Type != types[want.Type] || detail != want.Message {
					t.Errorf("%s: got %v, want %+v", text, got[i], want)
				}
			}
		}
	})
}

func TestKubernetesDefaults(t *testing.T) {
	forKubernetesCases(t, func(t *testing.T, cases kubernetesCases) {
		if len(cases.Defaults) == 0 {
			t.Fatal("no cases")
		}
		for _, c := range cases.Defaults {
			if c.Given["httpGet"] == nil {
				c.Given["guestAgentPing"] = map[string]any{}
			}
			given, err := json.Marshal(map[string]any{ReadinessProbe: c.Given})
			if err != nil {
				t.Fatal(err)
			}
			m, err := ParseSpec("case", given)
			if err != nil {
				t.Fatal(err)
			}
			// What Encode writes has the API's own field names.
			encoded, err := m.Encode()
			if err != nil {
				t.Fatal(err)
			}
			var d struct {
				Spec map[string]map[string]any `json:"spec"`
			}
			if err := json.Unmarshal(encoded, &d); err != nil {
				t.Fatal(err)
			}
			for key, want := range c.Want {
				if diff := cmp.Diff(want, d.Spec[ReadinessProbe][key]); diff != "" {
					t.Errorf("%s: %s (-want +got):\n%s", given, key, diff)
				}
			}
		}
	})
}

func TestKubernetesPortResolution(t *testing.T) {
	forKubernetesCases(t, func(t *testing.T, cases kubernetesCases) {
		if len(cases.PortResolution) == 0 {
			t.Fatal("no cases")
		}
		for _, c := range cases.PortResolution {
			p := rawPort{set: true}
			if json.Unmarshal(c.Port, &p.number) != nil {
				p.isName = true
				if err := json.Unmarshal(c.Port, &p.name); err != nil {
					t.Fatal(err)
				}
			}
			got, err := resolvePort(p, c.Ports)
			if (err == nil) != c.OK || got != c.Want {
				t.Errorf("%s among %v: got %d, %v; want %d, ok %t", c.Port, c.Ports, got, err, c.Want, c.OK)
			}
			if err != nil && c.Error != "" && err.Error() != c.Error {
				t.Errorf("%s among %v: got %q, want %q", c.Port, c.Ports, err, c.Error)
			}
		}
	})
}

func TestKubernetesCommandExpansion(t *testing.T) {
	forKubernetesCases(t, func(t *testing.T, cases kubernetesCases) {
		if len(cases.Expansion) == 0 {
			t.Fatal("no cases")
		}
		for _, c := range cases.Expansion {
			var got []string
			for _, arg := range c.Command {
				got = append(got, expand(arg, func(name string) (string, bool) {
					value, ok := c.Env[name]
					return value, ok
				}))
			}
			if !cmp.Equal(got, c.Want) {
				t.Errorf("got %q, want %q", got, c.Want)
			}
		}
	})
}

func TestExpand(t *testing.T) {
	env := map[string]string{"A": "1", "EMPTY": "", "NEST": "$(A)"}
	lookup := func(name string) (string, bool) {
		value, ok := env[name]
		return value, ok
	}
	for arg, want := range map[string]string{
		"":             "",
		"$(A)$(A)":     "11",
		"x$(EMPTY)y":   "xy",
		"$(NEST)":      "$(A)",
		"$(B)":         "$(B)",
		"$$(A)":        "$(A)",
		"$$$(A)":       "$1",
		"$$":           "$",
		"a$":           "a$",
		"$A ${A} $1":   "$A ${A} $1",
		"$(A":          "$(A",
		"$(date +%s)":  "$(date +%s)",
		"$()":          "$()",
		"cost: 5$ (A)": "cost: 5$ (A)",
	} {
		if got := expand(arg, lookup); got != want {
			t.Errorf("%q became %q, want %q", arg, got, want)
		}
		if got := expand(escape(arg), lookup); got != arg {
			t.Errorf("%q escaped is %q, which became %q", arg, escape(arg), got)
		}
	}
	m, err := ParseSpec("x", []byte("readinessProbe: {exec: {command: [sh, -c, '$(A) $$(B) $$ $C']}}"))
	if err != nil {
		t.Fatal(err)
	}
	if got := m.Checks[0].Handler.Exec.Command[2]; got != "$(A) $(B) $ $C" {
		t.Errorf("in a manifest: %q", got)
	}
	checkRoundTrip(t, m)
}

func TestUnwrap(t *testing.T) {
	wrap := func(command ...string) []string {
		wrapped := []string{"virt-probe", "--domainName", "ns_vm", "--timeoutSeconds", "5", "--command", command[0], "--"}
		return append(wrapped, command[1:]...)
	}
	for _, command := range [][]string{
		{"cat"},
		{"cat", "/tmp/healthy file"},
		{"sh", "-c", "exit 0", "--", "--command", "x", "--guestAgentPing", "--timeoutSeconds", "9"},
		{"--command", "--domainName"},
		{"--", "--"},
		{"", ""},
		{"a=b", "--command=x"},
	} {
		for _, wrapped := range [][]string{command, wrap(command...), wrap(wrap(command...)...), wrap(wrap(wrap(command...)...)...)} {
			got, ping, err := Unwrap(wrapped)
			if err != nil || ping || !cmp.Equal(got, command) {
				t.Errorf("%q: got %q, %t, %v", wrapped, got, ping, err)
			}
		}
	}
	ping := []string{"/usr/bin/virt-probe", "--domainName", "ns_vm", "--timeoutSeconds", "5", "--guestAgentPing"}
	for _, wrapped := range [][]string{ping, wrap(ping...), {"virt-probe", "--domainName=ns_vm", "--timeoutSeconds=1", "--guestAgentPing=true"}} {
		if got, isPing, err := Unwrap(wrapped); err != nil || !isPing || got != nil {
			t.Errorf("%q: got %q, %t, %v", wrapped, got, isPing, err)
		}
	}
	for _, broken := range [][]string{{"virt-probe"}, {"virt-probe", "cat"}, {"virt-probe", "--command"}, {"virt-probe", "--", "cat"}, wrap("virt-probe")} {
		if got, isPing, err := Unwrap(broken); err == nil {
			t.Errorf("%q: accepted as %q, %t", broken, got, isPing)
		}
	}
}

func TestKinds(t *testing.T) {
	m, err := Parse("k", []byte("readinessProbe: &p {guestAgentPing: {}}\nlivenessProbe: *p\nstartupProbe: *p\n"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range m.Checks {
		got = append(got, c.Kind.String()+" "+c.Name+" "+c.Path)
	}
	want := []string{"startup startupProbe startupProbe", "readiness readinessProbe readinessProbe", "liveness livenessProbe livenessProbe"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if m.Checks[0].Kind != probe.Startup {
		t.Error("the first is no startup probe")
	}
}
