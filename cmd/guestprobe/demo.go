package main

import (
	"context"
	_ "embed" // for the demo's manifest
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/guestprobe/guestprobe/cmd/internal/cli"
	"github.com/guestprobe/guestprobe/qga"
	"github.com/guestprobe/guestprobe/qga/qgatest"
	"github.com/guestprobe/guestprobe/sidecar"
	"github.com/guestprobe/guestprobe/sidecar/manifest"
	"github.com/guestprobe/guestprobe/sidecar/verdict"
)

//go:embed demo.yaml
var demoManifest string

const defaultDemoListen = "127.0.0.1:9958"

// demoCommand runs the real sidecar against a simulated VM: QMP, guest agent and web server, spoken over real sockets.
func demoCommand(ctx context.Context, e cli.Env) (err error) {
	fs := cli.NewFlags("guestprobe demo", "[--listen ADDR] [--loop]")
	listen := fs.String("listen", defaultDemoListen, "TCP `ADDR` of the endpoints; if the default is taken, another port")
	loop := fs.Bool("loop", false, "play the story again and again until interrupted")
	if done, err := cli.Parse(fs, e); done || err != nil {
		return err
	}
	// A reader or a terminal that goes away ends the demo as Ctrl-C does: nothing is left behind.
	ctx, ignore := signal.NotifyContext(ctx, syscall.SIGPIPE, syscall.SIGHUP)
	defer ignore()
	dir, err := os.MkdirTemp("", "guestprobe-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	vm, err := qgatest.Start(qgatest.Config{Dir: dir, Name: "demo", BootTime: demoBoot})
	if err != nil {
		return fmt.Errorf("starting the simulated VM: %w", err)
	}
	defer vm.Close()

	listener, err := demoListener(ctx, *listen)
	if err != nil {
		return err
	}
	s, err := newDemoSidecar(vm, listener)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	view := newDemoView(e.Stdout, "http://"+listener.Addr().String(), s.Status)
	defer view.close()

	group, groupCtx := errgroup.WithContext(ctx)
	groupCtx, stop := context.WithCancel(groupCtx)
	defer stop()
	group.Go(func() error { return s.Run(groupCtx) })
	group.Go(func() error { return view.run(groupCtx) })
	group.Go(func() error {
		defer stop()
		for {
			tell(groupCtx, demoStory(vm), view, s.Status)
			if !*loop || groupCtx.Err() != nil {
				return nil
			}
		}
	})
	return group.Wait()
}

func demoListener(ctx context.Context, addr string) (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", addr)
	if err != nil && addr == defaultDemoListen {
		return lc.Listen(ctx, "tcp", "127.0.0.1:0")
	}
	if err != nil {
		return nil, fmt.Errorf("--listen: %w", err)
	}
	return l, nil
}

func newDemoSidecar(vm *qgatest.VM, listener net.Listener) (*sidecar.Sidecar, error) {
	host, port, err := net.SplitHostPort(vm.HTTPAddr())
	if err != nil {
		return nil, err
	}
	m, err := manifest.Parse("demo.yaml", []byte(strings.ReplaceAll(demoManifest, "1500", port)))
	if err != nil {
		return nil, err
	}
	monitor, err := qga.ParseAddr(vm.MonitorAddr())
	if err != nil {
		return nil, err
	}
	agent, err := qga.ParseAddr(vm.AgentAddr())
	if err != nil {
		return nil, err
	}
	return sidecar.New(sidecar.Config{
		Manifest: m, Monitor: &monitor, Agent: &agent, GuestHost: host,
		Listeners: []net.Listener{listener}, Version: cli.Version(), Logger: slog.New(slog.DiscardHandler),
	})
}

// A scene is one thing that happens to the VM, and what has to follow from it.
type scene struct {
	title string
	play  func()
	until func(sidecar.Status) bool
}

const (
	demoBoot   = 3 * time.Second
	sceneLimit = 20 * time.Second        // for a scene that does not take effect
	sceneRest  = 1500 * time.Millisecond // to let people read
)

func demoStory(vm *qgatest.VM) []scene {
	because := func(reason verdict.Reason) func(sidecar.Status) bool {
		return func(s sidecar.Status) bool { return s.Reason == reason }
	}
	return []scene{
		{"the VM is switched on and boots", vm.Boot, because(verdict.Ready)},
		{"its web server begins to answer 500", func() { vm.SetHTTPStatus(500) }, because(verdict.ProbeFailed)},
		{"the web server is repaired", func() { vm.SetHTTPStatus(200) }, because(verdict.Ready)},
		{"somebody pauses the VM", vm.Pause, because(verdict.Paused)},
		{"the VM is resumed", vm.Resume, because(verdict.Ready)},
		{"the guest agent hangs; its check only warns", vm.AgentStop, warns},
		{"the guest agent recovers", vm.AgentContinue, func(s sidecar.Status) bool { return !warns(s) }},
		{"the guest agent is killed", vm.AgentKill, warns},
		{"the guest agent is started again", vm.AgentStart, func(s sidecar.Status) bool { return !warns(s) }},
		{"the disk is full", func() { vm.IOError("drive0", true) }, because(verdict.StorageIOError)},
		{"space is made, the VM goes on", vm.Resume, because(verdict.Ready)},
		{"the guest's kernel panics", func() { vm.Panic() }, because(verdict.GuestPanicked)},
		{"the VM is reset and boots again", func() { vm.Reset(); vm.Resume() }, because(verdict.Ready)},
	}
}

func warns(s sidecar.Status) bool {
	for _, c := range s.Checks {
		if c.Severity == "warn" && c.State == "failure" {
			return true
		}
	}
	return false
}

// tell plays the scenes one after the other, each until the sidecar has seen it.
func tell(ctx context.Context, story []scene, view *demoView, status func() sidecar.Status) {
	for _, s := range story {
		view.scene(s.title)
		s.play()
		limit, cancel := context.WithTimeout(ctx, sceneLimit)
		waitFor(limit, func() bool { return s.until(status()) })
		cancel()
		rest, cancel := context.WithTimeout(ctx, sceneRest)
		<-rest.Done()
		cancel()
		if ctx.Err() != nil {
			return
		}
	}
	view.scene("that was all; next: guestprobe run --manifest vm.yaml --monitor unix:… --agent unix:…")
}

func waitFor(ctx context.Context, condition func() bool) {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for !condition() {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func code(ok bool) string {
	if ok {
		return strconv.Itoa(200)
	}
	return strconv.Itoa(503)
}
