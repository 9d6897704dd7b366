package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Limits of the input. Real manifests stay far below each.
const (
	maxSize  = 1 << 20 // bytes of a file
	maxDepth = 100     // levels of nesting
	maxSteps = 100_000 // nodes looked at, each alias of a node counted again
)

// documents reads every document of data that is not empty. It fails with a syntax error or a limit.
// elided tells that data became YAML only without its lines of nothing but "...", which stand for cuts in printed examples.
func documents(data []byte) (docs []*yaml.Node, elided bool, err error) {
	if len(data) > maxSize {
		return nil, false, fmt.Errorf("larger than %d bytes", maxSize)
	}
	if first := bytes.TrimLeft(data, " \t\r\n"); len(first) > 0 && first[0] == '{' && json.Valid(data) {
		doc, err := jsonDocument(data)
		if err != nil {
			return nil, false, err
		}
		return []*yaml.Node{doc}, false, nil
	}
	if docs, err = yamlDocuments(data); err == nil {
		return docs, false, nil
	}
	without, found := withoutElisions(data)
	if !found {
		return nil, false, err
	}
	docs, err = yamlDocuments(without)
	return docs, true, err
}

func yamlDocuments(data []byte) ([]*yaml.Node, error) {
	var docs []*yaml.Node
	for dec := yaml.NewDecoder(bytes.NewReader(data)); ; {
		var doc yaml.Node
		switch err := dec.Decode(&doc); {
		case errors.Is(err, io.EOF):
			return docs, nil
		case err != nil:
			return nil, err
		}
		if doc.Kind != yaml.DocumentNode || len(doc.Content) != 1 {
			continue
		}
		if root := doc.Content[0]; root.Kind != yaml.ScalarNode || root.Tag != "!!null" {
			docs = append(docs, root)
		}
	}
}

// checkTree finds duplicate keys and too deep nesting everywhere, also where reading is lenient: of two equal keys one
// would silently lose. Aliases are not followed, so the work is that of the text.
func (r *reader) checkTree(n *yaml.Node, at *trail, depth int) {
	if depth > maxDepth {
		r.add(&Error{File: r.src.file, Line: r.src.line(n.Line), Detail: fmt.Sprintf("nested deeper than %d levels", maxDepth)})
		return
	}
	switch n.Kind {
	case yaml.MappingNode:
		seen := make(map[string]int, len(n.Content)/2)
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, value := n.Content[i], n.Content[i+1]
			name, ok := keyName(key)
			if !ok {
				r.add(&Error{File: r.src.file, Line: r.src.line(key.Line), Field: at.path(r.src.path), Type: ErrorTypeInvalid,
					Value: show(key), Detail: "a key must be a string"})
				continue
			}
			here := &trail{parent: at, key: name}
			if line, ok := seen[name]; ok && !r.full() {
				r.add(&Error{File: r.src.file, Line: r.src.line(key.Line), Field: here.path(r.src.path), Type: ErrorTypeDuplicate,
					Value: quote(name), Detail: fmt.Sprintf("the key is on line %d already", r.src.line(line))})
			}
			seen[name] = key.Line
			r.checkTree(value, here, depth+1)
		}
	case yaml.SequenceNode:
		for i, item := range n.Content {
			r.checkTree(item, &trail{parent: at, index: i}, depth+1)
		}
	}
}

// A trail is a path that is only put together once an error needs it: paths of hostile input can be long and many.
type trail struct {
	parent *trail
	key    string // "": index counts
	index  int
}

func (t *trail) path(root string) string {
	switch {
	case t == nil:
		return root
	case t.key == "":
		return fmt.Sprintf("%s[%d]", t.parent.path(root), t.index)
	}
	return join(t.parent.path(root), t.key)
}

// keyName returns the text of a mapping's key. Numbers and the like are text there, as they are once YAML is made JSON.
func keyName(key *yaml.Node) (string, bool) {
	if key.Kind == yaml.AliasNode {
		key = key.Alias
	}
	return key.Value, key != nil && key.Kind == yaml.ScalarNode
}

// withoutElisions blanks the lines that hold nothing but "...", as documentation prints them for what it leaves out.
// It is only asked for text that is no YAML as it stands, so it changes no valid file.
func withoutElisions(data []byte) (without []byte, found bool) {
	lines := bytes.SplitAfter(data, []byte("\n"))
	for i, line := range lines {
		if bytes.Equal(bytes.TrimSpace(line), []byte("...")) {
			lines[i], found = []byte("\n"), true
		}
	}
	return bytes.Join(lines, nil), found
}

// syntaxError gives an error of the YAML or JSON reader the form of all others: the line goes to the front.
func syntaxError(src source, err error) *Error {
	text, isYAML := strings.CutPrefix(err.Error(), "yaml: ")
	e := &Error{File: src.file, Line: src.line(0), Detail: text}
	if m := regexp.MustCompile(`^line (\d+): `).FindStringSubmatch(text); m != nil {
		line, _ := strconv.Atoi(m[1])
		text = text[len(m[0]):]
		if isYAML && strings.HasPrefix(text, "did not find expected ") {
			line++ // the library's parser, unlike its scanner, counts from 0
		}
		e.Line, e.Detail = src.line(line), text
	}
	if isYAML {
		e.Detail = "not valid YAML: " + text
	}
	return e
}
