package qgatest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"unicode/utf8"
)

// maxNesting is QEMU's limit (qemu-10.0 qobject/json-streamer.c).
const maxNesting = 1024

// A parser cuts the bytes that clients send into JSON values by counting
// braces, as QEMU's does. Its state outlives the clients: that is what makes
// half a request of one eat the whole request of the next.
type parser struct {
	buf       []byte
	depth     int
	token     int // where the string being read begins in buf
	inString  bool
	escaped   bool
	recovered bool // an error was reported; skip to where a value may begin
}

// feed takes one byte. It calls value with each complete JSON value, and fail
// with the text of each error.
func (p *parser) feed(b byte, value func([]byte), fail func(string)) {
	switch {
	case p.recovered:
		if b == '{' || b == '[' || b < 0x20 && b != '\t' && b != '\r' {
			p.recovered = false
			if b != '\n' {
				p.feed(b, value, fail)
			}
		}
	case p.inString:
		p.buf = append(p.buf, b)
		switch {
		case b < 0x20 || b >= 0xFE:
			p.stray(fail)
		case p.escaped:
			p.escaped = false
		case b == '\\':
			p.escaped = true
		case b == '"':
			p.inString = false
		}
	case b == ' ' || b == '\t' || b == '\r' || b == '\n':
		if p.depth > 0 {
			p.buf = append(p.buf, ' ')
		}
	default:
		p.token = len(p.buf)
		p.buf = append(p.buf, b)
		switch {
		case b == '{' || b == '[':
			if p.depth++; p.depth > maxNesting {
				p.reset()
				fail("JSON nesting depth limit exceeded")
			}
		case p.depth == 0 || b < 0x20 || b >= 0x7F:
			p.stray(fail)
		case b == '}' || b == ']':
			if p.depth--; p.depth == 0 {
				value(p.buf)
				p.reset()
			}
		case b == '"':
			p.inString = true
		}
	}
}

func (p *parser) reset() { *p = parser{buf: p.buf[:0]} }

// stray reports the token that ends in a byte that cannot be there.
func (p *parser) stray(fail func(string)) {
	token, _, _ := strings.Cut(string(p.buf[p.token:]), "\x00") // a C string
	p.reset()
	p.recovered = true
	fail("JSON parse error, stray '" + toUTF8(token) + "'")
}

// toUTF8 replaces each byte that is no UTF-8, where strings.ToValidUTF8 would
// replace a run of them at once.
func toUTF8(s string) string {
	var out strings.Builder
	for _, r := range s { // yields U+FFFD per bad byte
		out.WriteRune(r)
	}
	return out.String()
}

// duplicateKey reports whether an object in the JSON value has a name twice.
func duplicateKey(value []byte) bool {
	dec := json.NewDecoder(bytes.NewReader(value))
	var open []map[string]bool // per open object its names; nil for an array
	name := false              // whether a name comes next
	for {
		tok, err := dec.Token()
		if err != nil {
			return false
		}
		switch t := tok.(type) {
		case json.Delim:
			switch t {
			case '{':
				open = append(open, map[string]bool{})
			case '[':
				open = append(open, nil)
			default:
				open = open[:len(open)-1]
			}
		case string:
			if name {
				names := open[len(open)-1]
				if names[t] {
					return true
				}
				names[t] = true
				name = false
				continue
			}
		}
		name = len(open) > 0 && open[len(open)-1] != nil
	}
}

// checkJSON returns the reason why value is no JSON, in QEMU's words where a
// client may see them.
func checkJSON(value []byte) error {
	if !json.Valid(value) {
		return errors.New("JSON parse error, expecting value")
	}
	if duplicateKey(value) {
		return errors.New("JSON parse error, duplicate key")
	}
	return nil
}

// appendQEMU appends the JSON value as QEMU prints it: a blank after each
// comma and colon, and nothing but ASCII.
func appendQEMU(dst []byte, value []byte) []byte {
	var compact bytes.Buffer
	if err := json.Compact(&compact, value); err != nil {
		return dst
	}
	inString, escaped := false, false
	for {
		r, size, err := compact.ReadRune()
		if errors.Is(err, io.EOF) {
			return dst
		}
		if r > 0x7E || r == utf8.RuneError && size == 1 {
			dst = appendEscaped(dst, r)
			escaped = false
			continue
		}
		dst = append(dst, byte(r))
		switch {
		case escaped:
			escaped = false
		case inString:
			escaped = r == '\\'
			inString = r != '"'
		case r == '"':
			inString = true
		case r == ',' || r == ':':
			dst = append(dst, ' ')
		}
	}
}

// appendEscaped appends r as one or two \uXXXX.
func appendEscaped(dst []byte, r rune) []byte {
	const hex = "0123456789ABCDEF"
	unit := func(u rune) {
		dst = append(dst, '\\', 'u', hex[u>>12&15], hex[u>>8&15], hex[u>>4&15], hex[u&15])
	}
	if r > 0xFFFF {
		r -= 0x10000
		unit(0xD800 + r>>10)
		unit(0xDC00 + r&0x3FF)
		return dst
	}
	unit(r)
	return dst
}
