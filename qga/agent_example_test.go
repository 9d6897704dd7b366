package qga_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/guestprobe/guestprobe/qga"
	"github.com/guestprobe/guestprobe/qga/qgatest"
)

// A client runs for as long as its VM is of interest; each question has a
// deadline of its own.
func ExampleAgent() {
	dir, err := os.MkdirTemp("", "qga")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	vm, err := qgatest.StartAgent(qgatest.AgentConfig{Path: filepath.Join(dir, "agent.sock")})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer vm.Close()

	addr, err := qga.ParseAddr(vm.Addr())
	if err != nil {
		fmt.Println(err)
		return
	}
	agent, err := qga.NewAgent(addr, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	stopped := make(chan error)
	go func() { stopped <- agent.Run(ctx) }()

	ask := func() {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		var said *qga.Error
		switch err := agent.Ping(ctx); {
		case err == nil:
			fmt.Println("alive")
		case errors.As(err, &said):
			fmt.Println("alive, but:", said)
		case errors.Is(err, qga.ErrNotConnected):
			fmt.Println("nobody there")
		case errors.Is(err, context.DeadlineExceeded):
			fmt.Println("silent")
		default:
			fmt.Println("trouble:", err)
		}
	}
	ask()
	vm.Stop() // as kill -STOP does
	ask()
	vm.Continue()
	ask()

	stop()
	fmt.Println(<-stopped)
	// Output:
	// alive
	// silent
	// alive
	// <nil>
}
