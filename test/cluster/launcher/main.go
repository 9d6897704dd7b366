package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

const usage = `usage: launcher run NAMESPACE NAME     be compute
       launcher receive NAMESPACE NAME be compute of a pod to which a running VM migrates
       launcher guest COMMAND…       run a line of shell in the guest
       launcher guest-send COMMAND…  the same for what the guest does not survive
       virt-probe --domainName D --timeoutSeconds T --guestAgentPing
       launcher wait                 wait for SIGTERM
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	args := os.Args[1:]
	if filepath.Base(os.Args[0]) == "virt-probe" {
		args = append([]string{"virt-probe"}, args...)
	}
	code := run(ctx, args)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string) int {
	var err error
	switch {
	case len(args) == 3 && (args[0] == "run" || args[0] == "receive"):
		var code int
		if code, err = first(ctx, append([]string{"compute"}, args...)); err == nil {
			return code
		}
	case len(args) == 4 && args[0] == "compute": // what these two start
		var ended bool
		if ended, err = compute(ctx, args[2], args[3], args[1] == "receive"); err == nil && !ended {
			return 128 + int(syscall.SIGTERM)
		}
	case len(args) > 1 && args[0] == "guest":
		var out string
		var status int
		if out, status, err = ask(ctx, strings.Join(args[1:], " ")); err == nil {
			fmt.Print(out)
			return status
		}
	case len(args) > 1 && args[0] == "guest-send":
		err = send(ctx, strings.Join(args[1:], " "))
	case len(args) > 0 && args[0] == "virt-probe":
		err = virtProbe(ctx, args[1:])
	case len(args) == 1 && args[0] == "wait":
		<-ctx.Done()
	default:
		fmt.Fprint(os.Stderr, usage)
		return 2
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "launcher: %v\n", err)
		return 1
	}
	return 0
}
