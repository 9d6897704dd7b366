package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/guestprobe/guestprobe/cmd/internal/cli"
	"github.com/guestprobe/guestprobe/sidecar"
)

// gcPercent lets garbage grow to a quarter of what is in use. There is one sidecar beside every VM, less than 1 MiB is
// in use and little is allocated: at a scrape a second this saves 1.2 MiB of resident memory, and costs no CPU to speak of.
const gcPercent = 25

func runCommand(ctx context.Context, e cli.Env) error {
	fs := cli.NewFlags("guestprobe run", "--manifest FILE [--monitor ADDR] [--agent ADDR] [FLAGS]")
	var vm vmFlags
	vm.register(fs, "info")
	listen := fs.String("listen", ":9958", "TCP `ADDR` of the endpoints; empty: none. Sockets that systemd passes win over it")
	listenUnix := fs.String("listen-unix", "", "unix socket `PATH` of the same endpoints")
	exitWithVM := fs.Bool("exit-with-vm", false, "end with 0 once the VM is gone for good; default: stay, say NoDomain and serve the next one")
	holdFile := fs.String("hold-file", "", "while `PATH` exists, probing is held for maintenance; it may hold an RFC 3339 time at which the hold expires")
	shutdownDelay := fs.Duration("shutdown-delay", 0, "after SIGTERM, go on answering 503 Terminating for at most this `DURATION` while the VM still runs")
	copyTo := fs.String("copy-to", "", "first copy this program to `PATH`, for another container to run")
	if done, err := parse(fs, e); done || err != nil {
		return err
	}
	if *shutdownDelay < 0 || *shutdownDelay > time.Hour {
		return cli.Usagef("--shutdown-delay: %v is not between 0 and 1h", *shutdownDelay)
	}
	// From here on a SIGHUP must not kill; one that comes early is obeyed once the sidecar runs.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	defer cli.DetachLog(&e)()
	if _, ok := e.LookupEnv("GOGC"); !ok {
		debug.SetGCPercent(gcPercent)
	}
	cfg, err := vm.config(ctx, e)
	if err != nil {
		return err
	}
	cfg.Listen, cfg.ListenUnix = *listen, *listenUnix
	cfg.ExitWithVM = *exitWithVM
	cfg.HoldFile = *holdFile
	cfg.ShutdownDelay = *shutdownDelay
	cfg.Version = cli.Version()
	if *copyTo != "" {
		// Without the copy a liveness probe cannot ask, which fails nothing; without the sidecar nobody could.
		if err := copySelf(*copyTo); err != nil {
			cfg.Logger.Error("--copy-to", "error", err)
		}
	}
	if err := cfg.UseSystemd(); err != nil {
		return cli.Usage(err)
	}
	s, err := sidecar.New(cfg)
	if err != nil {
		return cli.Usage(err)
	}
	r := &reloader{manifest: vm.manifest, log: cfg.Logger, sidecar: s}
	group, runCtx := errgroup.WithContext(ctx)
	runCtx, stop := context.WithCancel(runCtx)
	group.Go(func() error {
		defer stop()
		return s.Run(runCtx)
	})
	group.Go(func() error { return r.run(runCtx, hangups) })
	return group.Wait()
}

// A reloader reads the manifest again at each SIGHUP.
type reloader struct {
	manifest string // its path, or - for standard input
	log      *slog.Logger
	sidecar  *sidecar.Sidecar
}

func (r *reloader) run(ctx context.Context, hangups <-chan os.Signal) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-hangups:
			r.reload(ctx)
		}
	}
}

// reload puts the manifest in force, or says what is wrong with it, a record for each mistake, and leaves all as it was.
func (r *reloader) reload(ctx context.Context) {
	if r.manifest == "-" {
		r.log.Error("reload refused: the manifest came from standard input, which cannot be read again")
		return
	}
	m, err := readManifest(ctx, cli.Env{}, r.manifest)
	if err == nil {
		for _, warning := range m.Warnings {
			r.log.Warn("manifest", "warning", warning)
		}
		err = r.sidecar.Reload(m)
	}
	if err == nil {
		return
	}
	for line := range strings.SplitSeq(err.Error(), "\n") {
		r.log.Error("reload refused, the former manifest stays in force", "error", line)
	}
}
