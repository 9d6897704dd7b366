package qga

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// A reply is one line of the agent, taken apart but not decoded. The slices
// alias the line; nil means that the member is not there.
type reply struct {
	ret, err, id []byte
	greeting     bool // a QEMU monitor's first line
}

// isAnswer tells a reply from anything else that is a JSON object. An echo of
// our own request, which a FreeBSD virtio console makes until the agent turns
// that off, carries our own id and is no answer.
func (r *reply) isAnswer() bool { return r.ret != nil || r.err != nil }

// parseReply takes one line apart. It reports false for anything but one JSON
// object with each known member at most once.
//
// encoding/json checks the line; it is not used to take it apart because it
// would allocate for each reply, match names in any case, and let the last of
// two members win.
func parseReply(line []byte) (reply, bool) {
	var r reply
	line = bytes.Trim(line, " \t\r")
	if len(line) == 0 || line[0] != '{' || !json.Valid(line) {
		return r, false
	}
	// From here on the text is known to be well-formed.
	rest := skipSpace(line[1:])
	for rest[0] != '}' {
		var name, value []byte
		name, rest = cutValue(rest)
		rest = skipSpace(rest)[1:] // the colon
		value, rest = cutValue(skipSpace(rest))
		var to *[]byte
		switch string(name) {
		case `"return"`:
			to = &r.ret
		case `"error"`:
			to = &r.err
		case `"id"`:
			to = &r.id
		case `"QMP"`:
			r.greeting = true
		}
		if to != nil {
			if *to != nil {
				return reply{}, false
			}
			*to = value
		}
		rest = skipSpace(rest)
		if rest[0] == ',' {
			rest = skipSpace(rest[1:])
		}
	}
	return r, true
}

func skipSpace(p []byte) []byte {
	for len(p) > 0 && (p[0] == ' ' || p[0] == '\t' || p[0] == '\r' || p[0] == '\n') {
		p = p[1:]
	}
	return p
}

// cutValue cuts the JSON value that p begins with off it. p is well-formed and
// goes on after the value.
func cutValue(p []byte) (value, rest []byte) {
	depth := 0
	for i := 0; i < len(p); i++ {
		switch p[i] {
		case '"':
			for i++; p[i] != '"'; i++ {
				if p[i] == '\\' {
					i++
				}
			}
			if depth == 0 {
				return p[:i+1], p[i+1:]
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 { // the end of what surrounds a number or a word
				return p[:i], p[i:]
			}
			if depth--; depth == 0 {
				return p[:i+1], p[i+1:]
			}
		case ',', ' ', '\t', '\r', '\n':
			if depth == 0 {
				return p[:i], p[i:]
			}
		}
	}
	return p, nil
}

// result returns what the caller of a command gets: a copy of the returned
// value, or an error.
func (r *reply) result() ([]byte, error) {
	switch {
	case r.ret != nil && r.err != nil:
		return nil, fmt.Errorf("%w: a reply that both returns and fails", ErrProtocol)
	case r.err != nil:
		return nil, decodeError(r.err)
	}
	return bytes.Clone(r.ret), nil
}

// decodeError decodes the value of an "error" member.
func decodeError(raw []byte) error {
	var e struct {
		Class *string `json:"class"`
		Desc  *string `json:"desc"`
	}
	if err := json.Unmarshal(raw, &e); err != nil || (e.Class == nil && e.Desc == nil) {
		return fmt.Errorf("%w: an error without class and text: %s", ErrProtocol, clean(raw))
	}
	said := &Error{}
	if e.Class != nil {
		said.Class = *e.Class
	}
	if e.Desc != nil {
		said.Desc = *e.Desc
	}
	return said
}
