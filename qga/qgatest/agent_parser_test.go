package qgatest

import (
	"bytes"
	"encoding/json"
	"testing"
)

// Whatever was sent before, 0xFF makes the next request understood; and each
// line of an answer is JSON.
func FuzzAgentParser(f *testing.F) {
	f.Add([]byte(`{"execute":`))
	f.Add([]byte(`{"execute":"guest-ping","id":"é\u0000"}` + "\n"))
	f.Add([]byte("[[[[\"\\"))
	f.Add([]byte(`{"execute":"guest-exec-status","arguments":{"pid":1e3},"id":[1,{"a":null}]}`))
	f.Fuzz(func(t *testing.T, before []byte) {
		a := &Agent{}
		var p parser
		var out []byte
		feed := func(in []byte) {
			for _, b := range in {
				p.feed(b,
					func(value []byte) {
						_, line := a.answer(value)
						out = append(out, line...)
					},
					func(desc string) { out = append(out, errorLine(nil, genericError("%s", desc))...) })
			}
		}
		feed(before)
		for line := range bytes.Lines(out) {
			if !json.Valid(bytes.TrimPrefix(line, []byte{0xFF})) {
				t.Errorf("%q is answered by %q", before, line)
			}
		}
		out = nil
		feed([]byte("\xff" + `{"execute":"guest-sync-delimited","arguments":{"id":7}}`))
		if !bytes.HasSuffix(out, []byte("\xff{\"return\": 7}\n")) {
			t.Errorf("after %q the synchronisation is answered by %q", before, out)
		}
	})
}
