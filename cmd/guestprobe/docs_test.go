package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/sidecar/manifest"
)

// Every manifest that the README or a page of docs shows is one that the program takes.
func TestDocumentedManifests(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	fence := regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$")
	found := 0
	for _, page := range append(pages, "../../README.md") {
		data, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range fence.FindAllStringSubmatch(string(data), -1) {
			if !strings.Contains(block[1], "kind: GuestProbes") && !strings.Contains(block[1], "kind: VirtualMachine") {
				continue // not a manifest of ours
			}
			if !strings.Contains(block[1], "Probe") && !strings.Contains(block[1], "checks:") {
				continue // a VirtualMachine that is not about probes
			}
			found++
			if _, err := manifest.Parse(filepath.Base(page), []byte(block[1])); err != nil {
				t.Errorf("an example of %s is refused: %v\n%s", page, err, block[1])
			}
		}
	}
	if found == 0 {
		t.Error("no example was found")
	}
}

// The README shows the two commands, and names only commands that there are.
func TestREADME(t *testing.T) {
	data, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range program().Commands {
		if !strings.Contains(string(data), "`guestprobe "+c.Name+"`") {
			t.Errorf("the README does not name the command %s", c.Name)
		}
	}
}
