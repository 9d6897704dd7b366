package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"
)

// jsonDocument reads JSON as the nodes that the same text as YAML would give. JSON is nearly a subset of YAML; what
// is not (tabs between tokens, \ud83d\ude00 pairs, keys of more than 1024 bytes) is why it has a reader of its own.
func jsonDocument(data []byte) (*yaml.Node, error) {
	r := &jsonReader{dec: json.NewDecoder(bytes.NewReader(data)), data: data, line: 1}
	r.dec.UseNumber()
	root, err := r.value(0)
	if err != nil {
		return nil, err
	}
	if _, err := r.dec.Token(); err != io.EOF {
		return nil, fmt.Errorf("line %d: more than one JSON value", r.line)
	}
	return root, nil
}

type jsonReader struct {
	dec    *json.Decoder
	data   []byte
	offset int // up to where line has counted
	line   int
}

func (r *jsonReader) token() (json.Token, error) {
	t, err := r.dec.Token()
	if err != nil {
		return nil, err
	}
	end := int(r.dec.InputOffset())
	r.line += bytes.Count(r.data[r.offset:end], []byte("\n"))
	r.offset = end
	return t, nil
}

func (r *jsonReader) value(depth int) (*yaml.Node, error) {
	t, err := r.token()
	if err != nil {
		return nil, err
	}
	n := &yaml.Node{Kind: yaml.ScalarNode, Line: r.line}
	switch t := t.(type) {
	case nil:
		n.Tag, n.Value = "!!null", "null"
	case bool:
		n.Tag, n.Value = "!!bool", fmt.Sprint(t)
	case string:
		n.Tag, n.Value, n.Style = "!!str", t, yaml.DoubleQuotedStyle
	case json.Number:
		n.Tag, n.Value = "!!int", t.String()
		if strings.ContainsAny(n.Value, ".eE") {
			n.Tag = "!!float"
		}
	case json.Delim:
		if depth >= maxDepth {
			return nil, fmt.Errorf("line %d: nested deeper than %d levels", r.line, maxDepth)
		}
		n.Kind, n.Tag, n.Style = yaml.SequenceNode, "!!seq", yaml.FlowStyle
		if t == '{' {
			n.Kind, n.Tag = yaml.MappingNode, "!!map"
		}
		for r.dec.More() {
			child, err := r.value(depth + 1)
			if err != nil {
				return nil, err
			}
			n.Content = append(n.Content, child)
			if n.Kind == yaml.MappingNode {
				value, err := r.value(depth + 1)
				if err != nil {
					return nil, err
				}
				n.Content = append(n.Content, value)
			}
		}
		_, err = r.token() // the closing bracket
	}
	return n, err
}
