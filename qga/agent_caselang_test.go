package qga

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

type agentCase struct {
	Name     string `json:"name"`
	Since    string `json:"since"`
	OS       string `json:"os"`
	Requires string `json:"requires"`
	Setup    struct {
		Args     []string          `json:"args"`
		Env      map[string]string `json:"env"`
		Files    map[string]string `json:"files"`
		NoSocket bool              `json:"no_socket"`
	} `json:"setup"`
	Steps []caseStep `json:"steps"`
}

type caseStep struct {
	Send      map[string]any    `json:"send"`
	Prefix    string            `json:"prefix_hex"`
	Discard   string            `json:"discard_until_hex"`
	Expect    []caseExpect      `json:"expect"`
	Capture   map[string]string `json:"capture"`
	CheckFile string            `json:"check_file"`
	Content   []byte            `json:"content_b64"`
	Poll      *struct {
		Until caseExpect `json:"until"`
		MaxS  int        `json:"max_s"`
	} `json:"poll"`

	Run     []string                  `json:"run"`
	Keyfile map[string]map[string]any `json:"expect_keyfile"`
	Stderr  string                    `json:"expect_stderr"`
}

type caseExpect struct {
	Path     string   `json:"path"`
	Equals   any      `json:"equals"`
	Is       string   `json:"is"`
	GT       *float64 `json:"gt"`
	Contains string   `json:"contains"`
	NonEmpty bool     `json:"nonempty"`
	Has      []string `json:"has"`
	Absent   bool     `json:"absent"`
	B64Text  *string  `json:"b64_equals_text"`
	B64B64   *string  `json:"b64_equals_b64"`
	If       string   `json:"if_present"`
	Unless   string   `json:"unless_present"`
}

// check returns what is wrong with the reply.
func (e *caseExpect) check(reply any, vars map[string]any) error {
	if e.If != "" {
		if _, ok := pointer(reply, e.If); !ok {
			return nil
		}
	}
	if e.Unless != "" {
		if _, ok := pointer(reply, e.Unless); ok {
			return nil
		}
	}
	got, ok := pointer(reply, e.Path)
	wrong := func(what string, want any) error {
		return fmt.Errorf("%s is %v, want %s %v", e.Path, got, what, want)
	}
	if e.Absent {
		if ok {
			return wrong("it", "absent")
		}
		return nil
	}
	if !ok {
		return fmt.Errorf("%s is absent", e.Path)
	}
	if want := substitute(e.Equals, vars); want != nil && !reflect.DeepEqual(got, want) {
		return wrong("it", want)
	}
	text, _ := got.(string)
	number, isNumber := got.(json.Number)
	list, isList := got.([]any)
	object, _ := got.(map[string]any)
	_, isBool := got.(bool)
	_, notInt := number.Int64()
	is := map[string]bool{"array": isList, "int": isNumber && notInt == nil, "string": text != "", "bool": isBool}
	if e.Is != "" && !is[e.Is] {
		return wrong("of type", e.Is)
	}
	if f, err := number.Float64(); e.GT != nil && (err != nil || f <= *e.GT) {
		return wrong("more than", *e.GT)
	}
	if e.Contains != "" && !strings.Contains(text, e.Contains) {
		return wrong("something with", e.Contains)
	}
	if e.NonEmpty && text == "" && len(list) == 0 {
		return wrong("something that is not", "empty")
	}
	for _, name := range e.Has {
		if _, ok := object[name]; !ok {
			return wrong("an object with", name)
		}
	}
	raw, err := base64.StdEncoding.DecodeString(text)
	if e.B64Text != nil && (err != nil || string(raw) != *e.B64Text) {
		return wrong("base64 of", *e.B64Text)
	}
	if e.B64B64 != nil && text != *e.B64B64 {
		return wrong("it", *e.B64B64)
	}
	return nil
}

// pointer resolves a JSON pointer.
func pointer(v any, path string) (any, bool) {
	for _, name := range strings.Split(path, "/")[1:] {
		switch t := v.(type) {
		case map[string]any:
			var ok bool
			if v, ok = t[name]; !ok {
				return nil, false
			}
		case []any:
			var i int
			if _, err := fmt.Sscan(name, &i); err != nil || i >= len(t) {
				return nil, false
			}
			v = t[i]
		default:
			return nil, false
		}
	}
	return v, true
}

// substitute replaces "${name}" by its value, with that one's type, and
// numbers by json.Number.
func substitute(v any, vars map[string]any) any {
	switch t := v.(type) {
	case string:
		if name, ok := strings.CutPrefix(t, "${"); ok {
			return vars[strings.TrimSuffix(name, "}")]
		}
	case float64:
		return json.Number(fmt.Sprint(t))
	case map[string]any:
		out := map[string]any{}
		for name, value := range t {
			out[name] = substitute(value, vars)
		}
		return out
	case []any:
		out := []any{}
		for _, value := range t {
			out = append(out, substitute(value, vars))
		}
		return out
	}
	return v
}

// A caseAgent is the agent that cases are run against.
type caseAgent struct {
	dial func(t *testing.T) net.Conn
	dir  string
	vars map[string]any
}

func (c *caseAgent) run(t *testing.T, steps []caseStep) {
	conn := c.dial(t)
	in := newLineReader(conn)
	for _, step := range steps {
		switch {
		case step.CheckFile != "":
			got, err := os.ReadFile(filepath.Join(c.dir, step.CheckFile))
			if err != nil || !bytes.Equal(got, step.Content) {
				t.Fatalf("%s holds %q, %v, want %q", step.CheckFile, got, err, step.Content)
			}
		default:
			c.exchange(t, conn, in, &step)
		}
	}
}

func (c *caseAgent) exchange(t *testing.T, conn net.Conn, in *lineReader, step *caseStep) {
	prefix, err := hex.DecodeString(step.Prefix)
	if err != nil {
		t.Fatal(err)
	}
	request, err := json.Marshal(substitute(step.Send, c.vars))
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(long)
	if step.Poll != nil {
		deadline = time.Now().Add(time.Duration(step.Poll.MaxS) * time.Second)
	}
	conn.SetDeadline(deadline)
	for {
		if _, err := conn.Write(append(append(prefix, request...), '\n')); err != nil {
			t.Fatal(err)
		}
		line, err := in.next(step.Discard != "")
		if err != nil {
			t.Fatalf("%s: %v", request, err)
		}
		reply, err := decodeNumbers(line)
		if err != nil {
			t.Fatalf("%s: reply %q: %v", request, line, err)
		}
		if step.Poll != nil && step.Poll.Until.check(reply, c.vars) != nil {
			continue
		}
		for _, expect := range step.Expect {
			if err := expect.check(reply, c.vars); err != nil {
				t.Errorf("%s: reply %s: %v", request, line, err)
			}
		}
		for name, path := range step.Capture {
			c.vars[name], _ = pointer(reply, path)
		}
		return
	}
}

func decodeNumbers(line []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.UseNumber()
	var v any
	err := dec.Decode(&v)
	return v, err
}

// A lineReader is as simple as can be: the client under test has its own.
type lineReader struct{ r io.Reader }

func newLineReader(r io.Reader) *lineReader { return &lineReader{r} }

// next reads a line, if delimited one that comes after 0xFF.
func (l *lineReader) next(delimited bool) ([]byte, error) {
	var line []byte
	var b [1]byte
	for {
		if _, err := io.ReadFull(l.r, b[:]); err != nil {
			return line, err
		}
		switch {
		case b[0] == sentinel && delimited:
			line, delimited = nil, false
		case b[0] == '\n' && !delimited:
			return line, nil
		default:
			line = append(line, b[0])
		}
	}
}

// checkKeyfile runs a step that prints the agent's configuration.
func checkKeyfile(t *testing.T, step *caseStep, env []string) {
	cmd := exec.Command(step.Run[0], step.Run[1:]...)
	cmd.Env = append(os.Environ(), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil || stderr.String() != step.Stderr {
		t.Fatalf("%v: %v, stderr %q", step.Run, err, stderr.String())
	}
	got := map[string]map[string]string{}
	section := ""
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "["); ok {
			section = strings.TrimSuffix(name, "]")
			got[section] = map[string]string{}
		} else if key, value, ok := strings.Cut(line, "="); ok {
			got[section][key] = value
		}
	}
	for section, keys := range step.Keyfile {
		for key, want := range keys {
			value := got[section][key]
			switch want := want.(type) {
			case string:
				if value != want {
					t.Errorf("%s.%s = %q, want %q", section, key, value, want)
				}
			case map[string]any:
				list := strings.FieldsFunc(value, func(r rune) bool { return r == ',' || r == ';' })
				for _, item := range want["contains_all"].([]any) {
					if !slices.Contains(list, item.(string)) {
						t.Errorf("%s.%s = %q lacks %v", section, key, value, item)
					}
				}
				if n := want["count"].(float64); len(list) != int(n) {
					t.Errorf("%s.%s = %q, want %v items", section, key, value, n)
				}
			}
		}
	}
}
