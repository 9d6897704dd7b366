package manifest

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// A source says where a text came from, for its errors and warnings.
type source struct {
	file string
	path string // what every path begins with
	base int    // the line before the text's first line
	flat bool   // the text has no lines of its own in the file; all of it is on line base
}

// line turns a line of the text into one of the file; 0 stays 0 where no line is known.
func (s source) line(n int) int {
	if s.flat || n == 0 {
		return s.base
	}
	return s.base + n
}

// A reader reads nodes and gathers what is wrong with them.
type reader struct {
	collector
	src   source
	steps int // nodes looked at, up to maxSteps

	ports      map[string]int // named ports of the VM's interfaces
	portsLater bool           // names that are not in ports go to unresolved and are no error yet
	unresolved []*Error
}

// A field is a value that may be absent, with the line it is on.
type field[T any] struct {
	set   bool
	value T
	line  int
}

// An object is a mapping that is read field by field. What nobody asked for is unknown in the end.
type object struct {
	r      *reader
	path   string
	line   int
	keys   []string
	nodes  map[string]*yaml.Node // aliases resolved; null values are there, as null
	lines  map[string]int
	wanted []string
	silent []string // fields that are known but not offered: they stand elsewhere, or have been refused already
}

func (r *reader) fail(line int, path string, t ErrorType, value, detail string) {
	r.add(&Error{File: r.src.file, Line: line, Field: path, Type: t, Value: value, Detail: detail})
}

func (r *reader) warn(line int, path, format string, args ...any) {
	e := Error{File: r.src.file, Line: line, Field: path, Detail: fmt.Sprintf(format, args...)}
	if text := e.Error(); !slices.Contains(r.warnings, text) {
		r.warnings = append(r.warnings, text)
	}
}

// step counts one node looked at. An alias costs its writer two bytes and the reader the whole of what it stands for;
// this is what bounds that.
func (r *reader) step(line int) bool {
	r.steps++
	if r.steps == maxSteps+1 {
		r.fail(line, "", ErrorTypeSyntax, "", fmt.Sprintf("more than %d values to read, aliases counted each time", maxSteps))
	}
	return r.steps <= maxSteps
}

// resolve follows an alias. The YAML reader knows no alias of an alias.
func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

func isNull(n *yaml.Node) bool { return n == nil || n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

// object reads a mapping with its merge keys (<<) applied; nil, with an error reported, if n is none.
func (r *reader) object(n *yaml.Node, line int, path, hint string) *object {
	n = resolve(n)
	if n.Kind != yaml.MappingNode {
		r.fail(line, path, ErrorTypeInvalid, show(n), "must be a mapping"+hint)
		return nil
	}
	o := &object{r: r, path: path, line: line, nodes: map[string]*yaml.Node{}, lines: map[string]int{}}
	o.take(n, 0)
	return o
}

// take adds the fields of a mapping that are not there yet, then those of what it merges: nearer wins.
func (o *object) take(n *yaml.Node, depth int) {
	if depth > maxDepth {
		return
	}
	var merged []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		if !o.r.step(o.r.src.line(n.Line)) {
			return
		}
		key, value := n.Content[i], resolve(n.Content[i+1])
		name, ok := keyName(key)
		if !ok {
			continue // checkTree has reported it
		}
		if key.Tag == "!!merge" {
			if value.Kind == yaml.SequenceNode {
				for _, m := range value.Content {
					merged = append(merged, resolve(m))
				}
			} else {
				merged = append(merged, value)
			}
			continue
		}
		if _, ok := o.nodes[name]; !ok {
			o.keys = append(o.keys, name)
			o.nodes[name], o.lines[name] = value, o.r.src.line(key.Line)
		}
	}
	for _, m := range merged {
		if m.Kind != yaml.MappingNode {
			o.r.fail(o.r.src.line(n.Line), o.path, ErrorTypeInvalid, show(m), "<< must name a mapping")
			continue
		}
		o.take(m, depth+1)
	}
}

// get returns the value of a field, or nil where it is absent or null, and remembers that the field exists.
func (o *object) get(key string) *yaml.Node {
	if !slices.Contains(o.wanted, key) {
		o.wanted = append(o.wanted, key)
	}
	if n := o.nodes[key]; !isNull(n) {
		return n
	}
	return nil
}

// tolerate tells whether a field is there, and keeps finish from reporting it.
func (o *object) tolerate(key string) bool {
	o.silent = append(o.silent, key)
	return !isNull(o.nodes[key])
}

// child returns the mapping in a field; nil where it is absent, null, or (reported) no mapping.
func (o *object) child(key string) *object {
	n := o.get(key)
	if n == nil {
		return nil
	}
	return o.r.object(n, o.lines[key], join(o.path, key), "")
}

// peek returns the mapping at the end of a path of keys where reading is lenient: nil if anything there is not as expected.
func (o *object) peek(keys ...string) *object {
	for _, key := range keys {
		n := o.nodes[key]
		if n == nil || n.Kind != yaml.MappingNode {
			return nil
		}
		o = o.r.object(n, o.lines[key], join(o.path, key), "")
	}
	return o
}

// peekString returns a string where reading is lenient, and "" if there is none.
func (o *object) peekString(key string) string {
	if o == nil {
		return ""
	}
	if n := o.nodes[key]; n != nil && n.Kind == yaml.ScalarNode && n.Tag == "!!str" {
		return n.Value
	}
	return ""
}

// finish reports every field that nobody asked for. hints says what to write about some of them.
func (o *object) finish(hints map[string]string) {
	for _, key := range o.keys {
		if slices.Contains(o.wanted, key) || slices.Contains(o.silent, key) {
			continue
		}
		detail := hints[key]
		if detail == "" {
			if word := suggest(key, o.wanted); word != "" {
				detail = "did you mean " + strconv.Quote(word) + "?"
			} else if len(o.wanted) > 0 {
				detail = "known here: " + strings.Join(o.wanted, ", ")
			}
		}
		o.r.fail(o.lines[key], join(o.path, key), ErrorTypeUnknownField, "", detail)
	}
}

// items returns the elements of a list, aliases resolved; nil where it is absent, null, or (reported) no list.
func (o *object) items(key string) []*yaml.Node {
	n := o.get(key)
	if n == nil {
		return nil
	}
	if n.Kind != yaml.SequenceNode {
		o.r.fail(o.lines[key], join(o.path, key), ErrorTypeInvalid, show(n), "must be a list")
		return nil
	}
	items := make([]*yaml.Node, 0, len(n.Content))
	for _, item := range n.Content {
		if !o.r.step(o.lines[key]) {
			return nil
		}
		items = append(items, resolve(item))
	}
	return items
}

// strings returns the strings of a list; false, with errors reported, if it is no list or not all of it is strings.
func (o *object) strings(key string) ([]field[string], bool) {
	n := o.get(key)
	if n != nil && n.Kind != yaml.SequenceNode {
		o.items(key) // reports it
		return nil, false
	}
	var all []field[string]
	ok := true
	for i, item := range o.items(key) {
		line := o.r.src.line(item.Line)
		s, is := o.r.string(item, line, fmt.Sprintf("%s[%d]", join(o.path, key), i))
		all = append(all, field[string]{set: is, value: s, line: line})
		ok = ok && is
	}
	return all, ok
}

// word reads one of a closed list of words. Whatever scalar stands there is left to the list's check.
func (o *object) word(key string) field[string] {
	if n := o.get(key); n != nil && n.Kind == yaml.ScalarNode {
		return field[string]{set: true, value: n.Value, line: o.lines[key]}
	}
	return o.string(key)
}

func (o *object) string(key string) field[string] {
	n := o.get(key)
	if n == nil {
		return field[string]{}
	}
	s, ok := o.r.string(n, o.lines[key], join(o.path, key))
	return field[string]{set: ok, value: s, line: o.lines[key]}
}

func (r *reader) string(n *yaml.Node, line int, path string) (string, bool) {
	if n.Kind == yaml.ScalarNode {
		switch n.Tag {
		case "!!str", "!!timestamp": // a date is text to the Kubernetes API
			return n.Value, true
		case "!!int", "!!float", "!!bool":
			r.fail(line, path, ErrorTypeInvalid, show(n), "must be a string: put it in quotes")
			return "", false
		}
	}
	r.fail(line, path, ErrorTypeInvalid, show(n), "must be a string")
	return "", false
}

func (o *object) bool(key string) field[bool] {
	n := o.get(key)
	if n == nil {
		return field[bool]{}
	}
	var v bool
	if n.Kind != yaml.ScalarNode || n.Tag != "!!bool" || n.Decode(&v) != nil {
		o.r.fail(o.lines[key], join(o.path, key), ErrorTypeInvalid, show(n), "must be true or false")
		return field[bool]{}
	}
	return field[bool]{set: true, value: v, line: o.lines[key]}
}

func (o *object) int32(key string) field[int64] { return o.integer(key, math.MaxInt32) }

// integer reads a whole number whose absolute value is at most limit.
func (o *object) integer(key string, limit int64) field[int64] {
	n := o.get(key)
	if n == nil {
		return field[int64]{}
	}
	v, whole := wholeNumber(n)
	switch {
	case !whole:
		o.r.fail(o.lines[key], join(o.path, key), ErrorTypeInvalid, show(n), "must be an integer")
	case v > limit:
		o.r.fail(o.lines[key], join(o.path, key), ErrorTypeInvalid, show(n), fmt.Sprintf("must be less than or equal to %d", limit))
	default:
		return field[int64]{set: true, value: max(v, -limit), line: o.lines[key]}
	}
	return field[int64]{}
}

// wholeNumber returns an integer, the nearest int64 for one that is larger; false if n is anything else.
func wholeNumber(n *yaml.Node) (int64, bool) {
	if n.Kind != yaml.ScalarNode || n.Tag != "!!int" && n.Tag != "!!float" {
		return 0, false
	}
	var v int64
	if n.Tag == "!!int" && n.Decode(&v) == nil {
		return v, true
	}
	// A number beyond 64 bits reads as a float, or does not decode.
	digits := strings.TrimLeft(n.Value, "+-")
	if digits == "" || strings.Trim(digits, "0123456789_") != "" {
		return 0, false
	}
	if strings.HasPrefix(n.Value, "-") {
		return math.MinInt64, true
	}
	return math.MaxInt64, true
}

// show writes a value for an error: strings quoted, numbers as they stand, mappings and lists by their brackets.
func show(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "{...}"
	case yaml.SequenceNode:
		return "[...]"
	}
	switch n.Tag {
	case "!!int", "!!float", "!!bool", "!!null":
		if q := quote(n.Value); len(q) == len(n.Value)+2 && n.Value != "" {
			return n.Value
		}
	}
	return quote(n.Value)
}
