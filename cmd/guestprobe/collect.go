package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/guestprobe/guestprobe/cmd/internal/cli"
	"github.com/guestprobe/guestprobe/sidecar/collect"
)

// collectCommand serves the metrics of all sidecars of a node on one port.
func collectCommand(ctx context.Context, e cli.Env) error {
	fs := cli.NewFlags("guestprobe collect", "[--listen ADDR] [--pods-dir DIR] [FLAGS]")
	var cfg collect.Config
	fs.StringVar(&cfg.Listen, "listen", ":9959", "TCP `ADDR` of /metrics and /healthz")
	fs.StringVar(&cfg.PodsDir, "pods-dir", "/var/lib/kubelet/pods", "the kubelet's `DIR` of pods, in which the sidecars' sockets are")
	fs.StringVar(&cfg.PodLogsDir, "pod-logs-dir", "/var/log/pods", "the `DIR` of pods' logs, whose names tell each pod's namespace; empty: believe the pods")
	fs.StringVar(&cfg.Node, "node", "", "the `NAME` of the node, a label of each series; default: the host's name")
	fs.DurationVar(&cfg.Interval, "interval", 10*time.Second, "the `DURATION` between two rounds")
	fs.DurationVar(&cfg.Timeout, "timeout", 2*time.Second, "how long (`DURATION`) one sidecar may take")
	var logFlags cli.LogFlags
	logFlags.Register(fs, "text", "info")
	if done, err := parse(fs, e); done || err != nil {
		return err
	}
	defer cli.DetachLog(&e)()
	var err error
	if cfg.Logger, err = logFlags.Logger(e.Stderr); err != nil {
		return err
	}
	if cfg.Node == "" {
		if cfg.Node, err = os.Hostname(); err != nil {
			return fmt.Errorf("--node: %w", err)
		}
	}
	cfg.Version = cli.Version()
	c, err := collect.New(cfg)
	if err != nil {
		return cli.Usage(err)
	}
	return c.Run(ctx)
}
