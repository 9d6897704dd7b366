package manifest

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestMain(m *testing.M) {
	flag.Bool("update", false, "write the golden files anew")
	os.Exit(m.Run())
}

// golden compares got with a file, or writes it with -update.
func golden(t *testing.T, file, got string) {
	t.Helper()
	if flag.Lookup("update").Value.String() == "true" {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}

// inputs returns the manifests of a folder of testdata.
func inputs(t *testing.T, folder string) []string {
	t.Helper()
	var files []string
	for _, ext := range []string{"*.yaml", "*.json"} {
		found, err := filepath.Glob(filepath.Join("testdata", folder, ext))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	if len(files) == 0 {
		t.Fatalf("no files in testdata/%s", folder)
	}
	return files
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// summary is what `guestprobe validate` prints.
func summary(m *Manifest) string {
	var b strings.Builder
	b.WriteString(m.String())
	for _, w := range m.Warnings {
		b.WriteString("warning: " + w + "\n")
	}
	return b.String()
}

func TestValid(t *testing.T) {
	for _, folder := range []string{"valid", "vmis"} {
		for _, file := range inputs(t, folder) {
			t.Run(filepath.Base(file), func(t *testing.T) {
				m, err := Parse(filepath.Base(file), read(t, file))
				if err != nil {
					t.Fatal(err)
				}
				golden(t, strings.TrimSuffix(file, filepath.Ext(file))+".golden", summary(m))
				checkRoundTrip(t, m)
			})
		}
	}
}

func TestInvalid(t *testing.T) {
	for _, file := range inputs(t, "invalid") {
		t.Run(filepath.Base(file), func(t *testing.T) {
			m, err := Parse(filepath.Base(file), read(t, file))
			if err == nil {
				t.Fatalf("accepted as\n%s", m)
			}
			for line := range strings.SplitSeq(err.Error(), "\n") {
				if !strings.HasPrefix(line, filepath.Base(file)) {
					t.Errorf("a line does not begin with the file's name: %q", line)
				}
			}
			golden(t, strings.TrimSuffix(file, filepath.Ext(file))+".err", err.Error()+"\n")
		})
	}
}

// Files of other engineers' cases, where they lie beside the repository, have to be read as well.
func TestSharedInstances(t *testing.T) {
	files, _ := filepath.Glob("../../../shared/cases/vmis/*.yaml")
	if len(files) == 0 {
		t.Skip("no shared cases here")
	}
	for _, file := range files {
		if _, err := Parse(filepath.Base(file), read(t, file)); err != nil {
			t.Error(err)
		}
	}
}

// checkRoundTrip encodes a manifest and reads it back: nothing that counts may change.
func checkRoundTrip(t *testing.T, m *Manifest) {
	t.Helper()
	data, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	again, err := Parse("encoded", data)
	if err != nil {
		t.Fatalf("%v\n%s", err, data)
	}
	opts := cmp.Options{
		cmpopts.IgnoreFields(Check{}, "Path"), cmpopts.IgnoreFields(HTTPGet{}, "PortName"), cmpopts.IgnoreFields(TCPSocket{}, "PortName"),
		cmpopts.EquateEmpty(), cmp.Transformer("regexp", regexpText),
	}
	if diff := cmp.Diff(m.Checks, again.Checks, opts); diff != "" {
		t.Errorf("checks changed (-before +after):\n%s\n%s", diff, data)
	}
	if diff := cmp.Diff(m.Policy, again.Policy); diff != "" {
		t.Errorf("policy changed (-before +after):\n%s", diff)
	}
	second, err := again.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if string(second) != string(data) {
		t.Errorf("encoded twice:\n%s\n%s", data, second)
	}
}
