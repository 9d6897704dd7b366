package inject

import (
	"strings"
)

// An Operation is one step of a JSON patch (RFC 6902). The steps are written one by one, not computed as a difference
// of two pods: fields of a newer Kubernetes that this program does not know stay where they are.
type Operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// add appends an operation that adds value at the path made of the tokens. On a member that is there, add replaces.
func add(ops []Operation, value any, tokens ...string) []Operation {
	return append(ops, Operation{Op: "add", Path: pointer(tokens), Value: value})
}

// remove appends the removal of what the tokens name.
func remove(ops []Operation, tokens ...string) []Operation {
	return append(ops, Operation{Op: "remove", Path: pointer(tokens)})
}

// pointer makes a JSON pointer (RFC 6901).
func pointer(tokens []string) string {
	var b strings.Builder
	escape := strings.NewReplacer("~", "~0", "/", "~1")
	for _, t := range tokens {
		b.WriteByte('/')
		b.WriteString(escape.Replace(t))
	}
	return b.String()
}

// addStrings sets the entries of a string map that may not be there yet, in the order given.
func addStrings(ops []Operation, have map[string]string, entries [][2]string, tokens ...string) []Operation {
	if have == nil {
		all := make(map[string]string, len(entries))
		for _, e := range entries {
			all[e[0]] = e[1]
		}
		return add(ops, all, tokens...)
	}
	for _, e := range entries {
		if have[e[0]] == e[1] {
			continue
		}
		ops = add(ops, e[1], append(tokens[:len(tokens):len(tokens)], e[0])...)
	}
	return ops
}

// addItems appends items to a list that may not be there yet; have is its length.
func addItems[T any](ops []Operation, have int, items []T, tokens ...string) []Operation {
	if len(items) == 0 {
		return ops
	}
	if have == 0 {
		return add(ops, items, tokens...)
	}
	for _, item := range items {
		ops = add(ops, item, append(tokens[:len(tokens):len(tokens)], "-")...)
	}
	return ops
}
