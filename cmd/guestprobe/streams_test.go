package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// within waits for cmd and returns its exit code.
func within(t *testing.T, cmd *exec.Cmd, limit time.Duration) int {
	t.Helper()
	done := make(chan struct{})
	go func() { // ends with the process
		defer close(done)
		_ = cmd.Wait()
	}()
	select {
	case <-done:
	case <-time.After(limit):
		_ = cmd.Process.Kill()
		<-done
		t.Fatalf("%v has not ended within %v", cmd.Args, limit)
	}
	return cmd.ProcessState.ExitCode()
}

// Ctrl-C on a terminal ends the demo with 0 and gives the cursor back; no line wraps and the picture does not scroll.
func TestDemoOnATerminal(t *testing.T) {
	const columns, rows = 60, 16
	master, slave := openTerminal(t, columns, rows)
	cmd := exec.Command("guestprobe", "demo", "--listen", "127.0.0.1:0")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	cmd.Env = append(os.Environ(), "TMPDIR="+t.TempDir())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	slave.Close()
	var seen bytes.Buffer
	read := make(chan struct{})
	booted := make(chan struct{})
	go func() { // ends when the last holder of the terminal has gone
		defer close(read)
		told := false
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf)
			seen.Write(buf[:n])
			if !told && bytes.Contains(seen.Bytes(), []byte("switched on and boots")) {
				told = true
				close(booted)
			}
			if err != nil {
				return
			}
		}
	}()
	select {
	case <-booted:
	case <-time.After(20 * time.Second):
		t.Fatal("the demo shows nothing")
	}
	if _, err := master.Write([]byte{3}); err != nil {
		t.Fatal(err)
	}
	if code := within(t, cmd, 20*time.Second); code != 0 {
		t.Errorf("Ctrl-C ends it with %d", code)
	}
	<-read
	out := seen.String()
	if strings.LastIndex(out, ansiShow) < strings.LastIndex(out, ansiHide) {
		t.Error("the cursor stays hidden")
	}
	for _, picture := range strings.Split(out, ansiHome)[1:] {
		picture, _, _ = strings.Cut(picture, ansiBelow)
		lines := strings.Split(picture, "\r\n")
		if len(lines) > rows {
			t.Errorf("a picture of %d lines on %d rows:\n%q", len(lines), rows, picture)
		}
		for _, line := range lines {
			line = strings.NewReplacer("\x1b[1;32m", "", "\x1b[1;31m", "", "\x1b[0m", "", ansiEOL, "", ansiClear, "").Replace(line)
			if n := len([]rune(line)); n > columns {
				t.Errorf("a line of %d runes on %d columns: %q", n, columns, line)
			}
		}
	}
}

func openTerminal(t *testing.T, columns, rows uint16) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminals here: %v", err)
	}
	t.Cleanup(func() { master.Close() })
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: rows}); err != nil {
		t.Fatal(err)
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return master, slave
}

// A reader that goes away (| head -1) ends the demo, and nothing is left behind.
func TestDemoWithoutAReader(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command("guestprobe", "demo", "--listen", "127.0.0.1:0")
	cmd.Env = append(os.Environ(), "TMPDIR="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	out.Close()
	if code := within(t, cmd, 30*time.Second); code != 0 {
		t.Errorf("it ended with %d", code)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// A sidecar goes on when whoever read its log has gone.
func TestRunWithoutALogReader(t *testing.T) {
	dir, err := os.MkdirTemp("", "gp")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	file, socket := filepath.Join(dir, "m.yaml"), filepath.Join(dir, "s")
	const probes = "apiVersion: guestprobe.dev/v1alpha1\nkind: GuestProbes\nspec: {readinessProbe: {guestAgentPing: {}, periodSeconds: 1}}\n"
	if err := os.WriteFile(file, []byte(probes), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("guestprobe", "run", "--manifest", file, "--agent", "unix:"+dir+"/a", "--listen", "", "--listen-unix", socket, "--log-level", "debug")
	log, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(log).ReadString('\n'); err != nil && err != io.EOF {
		t.Fatal(err)
	}
	log.Close()
	// Three rounds at debug level are records enough.
	deadline := time.Now().Add(20 * time.Second)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		_, body, err := ask(t.Context(), socket, "readyz", true)
		if strings.Contains(body, "AgentNotConnected") {
			break
		}
		if time.Now().After(deadline) {
			_ = cmd.Process.Kill()
			t.Fatalf("%q, %v", body, err)
		}
		<-tick.C
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := within(t, cmd, 20*time.Second); code != 0 {
		t.Errorf("SIGTERM ends it with %d", code)
	}
}
