package guest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Unavailable ends a test that lacks a real peer: skipped on a machine of one's own, failed with CI=true or
// GUESTPROBE_REQUIRE_REAL=1, where everything must run.
func Unavailable(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") == "true" || os.Getenv("GUESTPROBE_REQUIRE_REAL") == "1" {
		t.Fatalf("NOT AVAILABLE, and required here: "+format, args...)
	}
	t.Skipf("SKIPPED, not available here: "+format, args...)
}

// Root returns the root of the repository that the test runs in.
func Root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for !exists(filepath.Join(dir, "test", "guest", "mkguest.sh")) {
		parent := filepath.Dir(dir)
		if parent == dir {
			t.Fatal("not inside the repository: no test/guest/mkguest.sh above the working directory")
		}
		dir = parent
	}
	return dir
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// Image returns the folder with the guest's vmlinuz and initrd.gz; it is built at the first use.
func Image(t testing.TB) string {
	t.Helper()
	root := Root(t)
	cmd := exec.Command(filepath.Join(root, "test", "guest", "mkguest.sh"), filepath.Join(root, ".cache", "guest"))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			err = errors.New(strings.TrimSpace(stderr.String()))
		}
		Unavailable(t, "the guest's image: %v", err)
	}
	return strings.TrimSpace(string(out))
}

// addFiles writes to path the initramfs base with more files in it: the kernel unpacks archives that follow one
// another. files maps paths inside the guest to files here; all become executable.
func addFiles(path, base string, files map[string]string) error {
	archive, err := os.ReadFile(base)
	if err != nil {
		return err
	}
	buf := bytes.NewBuffer(archive)
	pad(buf)
	for name, source := range files {
		body, err := os.ReadFile(source)
		if err != nil {
			return err
		}
		name = strings.TrimPrefix(name, "/")
		for i, c := range name {
			if c == '/' {
				entry(buf, name[:i], 0o040755, nil)
			}
		}
		entry(buf, name, 0o100755, body)
	}
	entry(buf, "TRAILER!!!", 0, nil)
	return os.WriteFile(path, buf.Bytes(), 0o600)
}

// entry appends one member in cpio's "newc" format (Documentation/driver-api/early-userspace/buffer-format.rst in the
// kernel): a header of hexadecimal numbers, the name and the content, each padded to four bytes.
func entry(buf *bytes.Buffer, name string, mode int, body []byte) {
	fields := [13]int{1: mode, 4: 1, 6: len(body), 11: len(name) + 1}
	buf.WriteString("070701")
	for _, v := range fields {
		fmt.Fprintf(buf, "%08X", v)
	}
	buf.WriteString(name)
	buf.WriteByte(0)
	pad(buf)
	buf.Write(body)
	pad(buf)
}

func pad(buf *bytes.Buffer) {
	for buf.Len()%4 != 0 {
		buf.WriteByte(0)
	}
}
