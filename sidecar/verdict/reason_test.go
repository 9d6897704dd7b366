package verdict

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
	"testing"
)

func TestReasons(t *testing.T) {
	const design = `Ready, Starting, StartupTimeout, ProbeFailed, AgentNotConnected,
		AgentTimeout, AgentError, AgentUnsupported, Paused, Suspended, MigratingIn, MigratingOut, StorageIOError, GuestPanicked,
		GuestCrashDumping, InternalError, ShutDown, FilesystemFrozen, MonitorBusy, MonitorUnreachable, NoDomain, Maintenance,
		Terminating, ListenerShadowed`
	listed := map[string]bool{}
	var names []string
	for _, r := range Reasons() {
		names = append(names, string(r))
		listed[string(r)] = true
		if !strings.HasSuffix(r.Help(), ".") || !r.IsValid() {
			t.Errorf("%s: help %q", r, r.Help())
		}
	}
	if want := strings.Fields(strings.ReplaceAll(design, ",", "")); strings.Join(names, " ") != strings.Join(want, " ") {
		t.Errorf("reasons %v, want %v", names, want)
	}
	if Reason("").IsValid() || Reason("Other").Help() != "" {
		t.Error("the list is not closed")
	}

	f, err := parser.ParseFile(token.NewFileSet(), "reason.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		for _, s := range g.Specs {
			v := s.(*ast.ValueSpec)
			found++
			name := v.Names[0].Name
			if !listed[name] || v.Values[0].(*ast.BasicLit).Value != `"`+name+`"` {
				t.Errorf("%s is not in Reasons or is spelt otherwise", name)
			}
			if !strings.HasPrefix(v.Doc.Text(), name+": ") {
				t.Errorf("%s is not documented", name)
			}
		}
	}
	if found != len(names) {
		t.Errorf("%d constants, %d reasons", found, len(names))
	}
}
