package qga

import (
	"encoding/json"
	"errors"
	"testing"
)

func TestParseReply(t *testing.T) {
	type want struct{ ret, err, id string }
	tests := []struct {
		in   string
		want want
		ok   bool
	}{
		{`{"return": {}, "id": 7}`, want{ret: "{}", id: "7"}, true},
		{`{"id": "x\"}", "error": {"class": "C", "desc": "}"}}`, want{err: `{"class": "C", "desc": "}"}`, id: `"x\"}"`}, true},
		{`{"return":9223372036854775807}`, want{ret: "9223372036854775807"}, true},
		{`{"return": null}`, want{ret: "null"}, true},
		{` {"return" : [1, {"return": 2}] , "x":"y"} `, want{ret: `[1, {"return": 2}]`}, true},
		{`{}`, want{}, true},
		{`{"Return": {}}`, want{}, true},
		{`{"execute":"guest-ping","id":1}`, want{id: "1"}, true},
		{`{"return": {}, "return": {}}`, want{}, false},
		{`{"id": 1, "id": 2}`, want{}, false},
		{`[{"return": {}}]`, want{}, false},
		{`{"return": {}} {}`, want{}, false},
		{`{"return": `, want{}, false},
		{`"return"`, want{}, false},
		{``, want{}, false},
	}
	for _, tt := range tests {
		r, ok := parseReply([]byte(tt.in))
		got := want{string(r.ret), string(r.err), string(r.id)}
		if ok != tt.ok || got != tt.want {
			t.Errorf("parseReply(%s) = %+v, %v, want %+v, %v", tt.in, got, ok, tt.want, tt.ok)
		}
	}
}

func TestDecodeError(t *testing.T) {
	for in, want := range map[string]*Error{
		`{"class": "GenericError", "desc": ""}`: {Class: "GenericError"},
		`{"desc": "x"}`:                         {Desc: "x"},
		`{}`:                                    nil,
		`7`:                                     nil,
		`null`:                                  nil,
	} {
		err := decodeError([]byte(in))
		var got *Error
		if errors.As(err, &got) != (want != nil) || want != nil && *got != *want {
			t.Errorf("decodeError(%s) = %v, want %v", in, err, want)
		}
		if want == nil && !errors.Is(err, ErrProtocol) {
			t.Errorf("decodeError(%s) = %v, want ErrProtocol", in, err)
		}
	}
}

// parseReply takes apart what encoding/json would, member by member.
func FuzzParseReply(f *testing.F) {
	for _, s := range []string{
		`{"return": {}, "id": 1}`, `{"error": {"class": "a", "desc": "b"}}`, `{"QMP": {}}`, `[[[`, `{"return":1e5}`,
		`{"id":"\u0022","return":[{"a":"}"}]}`, `{"return": 1 , "id":2}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		r, ok := parseReply(in)
		if !ok {
			return
		}
		var want map[string]json.RawMessage
		if err := json.Unmarshal(in, &want); err != nil {
			t.Fatalf("parseReply(%q) accepts what encoding/json refuses: %v", in, err)
		}
		for name, got := range map[string][]byte{"return": r.ret, "error": r.err, "id": r.id} {
			if got == nil {
				// A name may be written with escapes; then it is not ours.
				continue
			}
			if !json.Valid(got) {
				t.Errorf("parseReply(%q): %s = %q is no JSON", in, name, got)
			}
		}
		if r.ret != nil || r.err != nil {
			if _, err := r.result(); err == nil && r.err != nil {
				t.Errorf("parseReply(%q): an error became a success", in)
			}
		}
	})
}
