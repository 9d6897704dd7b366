package imports

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A listed package, as `go list -json` prints it.
type listed struct {
	ImportPath, Name, Dir              string
	GoFiles, TestGoFiles, XTestGoFiles []string
	Imports                            []string
	Module                             *struct{ Path string }
}

func (p listed) relative() string {
	return strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, p.Module.Path), "/")
}

func list(t *testing.T) []listed {
	t.Helper()
	cmd := exec.Command("go", "list", "-e", "-json", "./...")
	cmd.Dir = filepath.Join("..", "..")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var packages []listed
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("decoding go list's output: %v", err)
		}
		packages = append(packages, p)
	}
	if len(packages) < 2 {
		t.Fatalf("go list found %d packages", len(packages))
	}
	return packages
}

func TestImports(t *testing.T) {
	for _, p := range list(t) {
		name := p.relative()
		r, ok := ruleFor(name)
		if !ok {
			t.Errorf("%s has no place in rules_test.go", name)
			continue
		}
		for _, path := range p.Imports {
			if !r.allows(p.Module.Path, path) {
				t.Errorf("%s must not import %s", name, path)
			}
		}
	}
}

func TestRules(t *testing.T) {
	const module = "example.org/m"
	for _, tt := range []struct {
		pkg, path string
		want      bool
	}{
		{"netprobe", "net/http", true},
		{"netprobe", "example.org/m/qga", false},
		{"netprobe", "golang.org/x/net/http2", false},
		{"sidecar/verdict", "example.org/m/sidecar/probe", true},
		{"sidecar/verdict", "example.org/m/sidecar", false},
		{"sidecar", "example.org/m/qga/qgatest", false},
		{"sidecar", "github.com/digitalocean/go-qemu/qmp", false},
		{"qga", "github.com/digitalocean/go-qemu/qmp", true},
		{"qga", "github.com/digitalocean/go-qemu-not", false},
		{"qga", "github.com/prometheus/client_golang/prometheus", false},
		{"cmd/guestprobe", "example.org/m/qga/qgatest", true},
		{"cmd/guestprobe", "k8s.io/api/core/v1", false},
	} {
		r, ok := ruleFor(tt.pkg)
		if got := ok && r.allows(module, tt.path); got != tt.want {
			t.Errorf("%s importing %s: allowed = %v, want %v", tt.pkg, tt.path, got, tt.want)
		}
	}
	if _, ok := ruleFor("utils"); ok {
		t.Error("a package without a rule was given one")
	}
}

// TestDocs asks of every package a doc.go that opens with the package's one job, and no second package comment.
func TestDocs(t *testing.T) {
	for _, p := range list(t) {
		name := p.relative()
		if !slices.Contains(p.GoFiles, "doc.go") {
			t.Errorf("%s has no doc.go", name)
			continue
		}
		want := "Package " + p.Name + " "
		if p.Name == "main" {
			want = "Command " + filepath.Base(p.Dir) + " "
		}
		for _, file := range p.GoFiles {
			doc := parse(t, filepath.Join(p.Dir, file), parser.PackageClauseOnly|parser.ParseComments).Doc.Text()
			switch {
			case file == "doc.go" && !strings.HasPrefix(doc, want):
				t.Errorf("%s/doc.go begins with %.40q, want %q", name, doc, want)
			case file != "doc.go" && doc != "":
				t.Errorf("%s/%s has a package comment: doc.go is its place", name, file)
			}
		}
	}
}

// TestNoState asks for no init function and no package variable but Err… sentinels, embedded files and the
// `var _ Interface = …` assertions: two of anything can then live in one process, and tests run in parallel.
func TestNoState(t *testing.T) {
	for _, p := range list(t) {
		for _, file := range p.GoFiles {
			for _, decl := range parse(t, filepath.Join(p.Dir, file), parser.ParseComments).Decls {
				for _, finding := range state(decl) {
					t.Errorf("%s/%s: %s", p.relative(), file, finding)
				}
			}
		}
	}
}

func state(decl ast.Decl) []string {
	switch d := decl.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil && d.Name.Name == "init" {
			return []string{"func init"}
		}
	case *ast.GenDecl:
		if d.Tok != token.VAR {
			return nil
		}
		var findings []string
		for _, spec := range d.Specs {
			v := spec.(*ast.ValueSpec)
			if embeds(d.Doc) || embeds(v.Doc) {
				continue
			}
			for _, n := range v.Names {
				if n.Name != "_" && !strings.HasPrefix(n.Name, "Err") && !strings.HasPrefix(n.Name, "err") {
					findings = append(findings, "package variable "+n.Name)
				}
			}
		}
		return findings
	}
	return nil
}

// embeds tells whether a declaration's comment is a go:embed directive. (CommentGroup.Text drops directives.)
func embeds(doc *ast.CommentGroup) bool {
	return doc != nil && slices.ContainsFunc(doc.List, func(c *ast.Comment) bool {
		return strings.HasPrefix(c.Text, "//go:embed ")
	})
}

// TestNoSleep asks tests to wait for events: only a synctest bubble, where time is simulated, may sleep.
func TestNoSleep(t *testing.T) {
	for _, p := range list(t) {
		for _, file := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
			parsed := parse(t, filepath.Join(p.Dir, file), 0)
			if slices.ContainsFunc(parsed.Imports, func(s *ast.ImportSpec) bool { return s.Path.Value == `"testing/synctest"` }) {
				continue
			}
			ast.Inspect(parsed, func(n ast.Node) bool {
				if sel, ok := n.(*ast.SelectorExpr); ok && sel.Sel.Name == "Sleep" {
					if x, ok := sel.X.(*ast.Ident); ok && x.Name == "time" {
						t.Errorf("%s/%s calls time.Sleep", p.relative(), file)
					}
				}
				return true
			})
		}
	}
}

func parse(t *testing.T, path string, mode parser.Mode) *ast.File {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, mode|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	return file
}
