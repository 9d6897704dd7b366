package manifest

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxErrors is how many errors of a file are reported; a hostile file could have a million.
const maxErrors = 50

// An ErrorType is a class of the Kubernetes API's field errors (k8s.io/apimachinery pkg/util/validation/field).
type ErrorType string

// The types of Error. Their values are the words that an error's text begins with.
const (
	ErrorTypeInvalid      ErrorType = "Invalid value"
	ErrorTypeRequired     ErrorType = "Required value"
	ErrorTypeForbidden    ErrorType = "Forbidden"
	ErrorTypeNotSupported ErrorType = "Unsupported value"
	ErrorTypeDuplicate    ErrorType = "Duplicate value"
	ErrorTypeTooMany      ErrorType = "Too many"
	ErrorTypeTooLong      ErrorType = "Too long"
	// ErrorTypeUnknownField is a field that does not exist. The API refuses those while decoding, without a field error.
	ErrorTypeUnknownField ErrorType = "unknown field"
	// ErrorTypeSyntax is text that is no YAML, or more of it than is read. Its text is the detail alone.
	ErrorTypeSyntax ErrorType = ""
)

// An Error is one thing wrong with a manifest.
type Error struct {
	// File is the name given to Parse; Line counts from 1, 0 where there is none.
	File string
	Line int
	// Field is the path from the document's root, e.g. "spec.readinessProbe.httpGet.port"; "" for syntax errors.
	Field string
	Type  ErrorType
	// Value is the offending value as the manifest writes it, strings quoted, long ones cut; "" where the type shows none.
	Value string
	// Detail says what is wrong; it may be empty.
	Detail string
}

// Error returns "file:line: field: Type: value: detail", without what is empty.
func (e *Error) Error() string {
	parts := make([]string, 0, 4)
	if where := position(e.File, e.Line); where != "" {
		parts = append(parts, where)
	}
	if e.Field != "" {
		parts = append(parts, shortened(e.Field))
	}
	what := string(e.Type)
	if e.Value != "" {
		what += ": " + e.Value
	}
	switch {
	case e.Detail == "":
	case e.Type == ErrorTypeUnknownField:
		what += ", " + e.Detail
	case what == "":
		what = e.Detail
	default:
		what += ": " + e.Detail
	}
	return strings.Join(append(parts, what), ": ")
}

// An ErrorList is what is wrong with a manifest, in the order of its lines: at most 50 errors, then one that tells how
// many more there are. [Parse] fails with nothing else; errors.As gives a caller the list.
type ErrorList []*Error

// Error returns one line per error.
func (l ErrorList) Error() string {
	lines := make([]string, len(l))
	for i, e := range l {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap returns the errors of the list, for errors.As.
func (l ErrorList) Unwrap() []error {
	errs := make([]error, len(l))
	for i, e := range l {
		errs[i] = e
	}
	return errs
}

// A collector gathers the errors and warnings of one file. The zero value is ready.
type collector struct {
	errs     ErrorList
	more     int // errors beyond maxErrors
	warnings []string
}

func (c *collector) add(e *Error) {
	if c.full() {
		return
	}
	c.errs = append(c.errs, e)
}

// addAll adds an ErrorList that another reader returned.
func (c *collector) addAll(err error) {
	var list ErrorList
	if errors.As(err, &list) {
		for _, e := range list {
			c.add(e)
		}
	}
}

// full counts an error that would not be reported any more, so that nobody has to put its path together.
func (c *collector) full() bool {
	if len(c.errs) < maxErrors {
		return false
	}
	c.more++
	return true
}

func (c *collector) failed() bool { return len(c.errs) > 0 }

// err returns the errors in the order of their lines; nil if there are none.
func (c *collector) err() error {
	if len(c.errs) == 0 {
		return nil
	}
	slices.SortStableFunc(c.errs, func(a, b *Error) int { return cmp.Compare(a.Line, b.Line) })
	if c.more > 0 {
		return append(c.errs, &Error{File: c.errs[0].File, Detail: fmt.Sprintf("and %d more errors", c.more)})
	}
	return c.errs
}

// shortened cuts the middle out of a path that is longer than any real one. Paths are ASCII but for what join quotes.
func shortened(path string) string {
	if len(path) <= 400 {
		return path
	}
	return strings.ToValidUTF8(path[:200], "") + "..." + strings.ToValidUTF8(path[len(path)-180:], "")
}

func position(file string, line int) string {
	switch {
	case line == 0:
		return file
	case file == "":
		return fmt.Sprintf("line %d", line)
	}
	return fmt.Sprintf("%s:%d", file, line)
}

// quote makes a string of the manifest fit for one line of an error: quoted, and cut if long.
func quote(s string) string {
	const longest = 80
	if len(s) <= longest {
		return strconv.Quote(s)
	}
	n := longest
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return strconv.Quote(s[:n]) + "..."
}

// quoteAll returns the words quoted and separated by ", ", as the API lists supported values.
func quoteAll(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = strconv.Quote(w)
	}
	return strings.Join(quoted, ", ")
}

// join appends a key to a path. A key that is no plain identifier is quoted, so that no key can forge a line or a path.
func join(path, key string) string {
	plain := key != ""
	for _, r := range key {
		if r != '-' && r != '_' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') {
			plain = false
		}
	}
	switch {
	case !plain || len(key) > 80:
		return path + "[" + quote(key) + "]"
	case path == "":
		return key
	}
	return path + "." + key
}

// suggest returns the word that a misspelt one was probably meant to be, or "".
func suggest(got string, words []string) string {
	if len(got) > 64 {
		return ""
	}
	best, bestDistance := "", len(got)/3+1 // a word of three letters may be off by one, of nine by three
	for _, w := range words {
		if len(got) >= 4 && strings.HasPrefix(w, got) { // freezeHold, timeout: the unit is missing
			return w
		}
		d := distance(strings.ToLower(got), strings.ToLower(w))
		if d < bestDistance || d == bestDistance && best == "" && d < len(w) {
			best, bestDistance = w, d
		}
	}
	return best
}

// distance is the number of letters to insert, delete or replace to make a b; swapping two neighbours counts as one.
func distance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
