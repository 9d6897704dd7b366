package main

import (
	"bytes"
	"os"
	"os/exec"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// waitForText runs a command again and again until its output has the text: wait-for TEXT COMMAND ARG...
func waitForText(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: wait-for TEXT COMMAND ARG...")
	}
	const patience = 20 * time.Second
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		cmd := exec.Command(args[1], args[2:]...)
		cmd.Env = append(os.Environ(), "PATH="+ts.Getenv("PATH"))
		cmd.Dir = ts.Getenv("WORK")
		out, _ := cmd.CombinedOutput() // it is its output that is waited for
		if bytes.Contains(out, []byte(args[0])) {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("%q not seen in time; the last output:\n%s", args[0], out)
		}
		<-tick.C
	}
}
