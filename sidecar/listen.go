package sidecar

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// listen opens every listener or none: a port that is taken must not leave half a sidecar behind.
func listen(ctx context.Context, cfg *Config) (_ []net.Listener, err error) {
	all := slices.Clone(cfg.Listeners)
	defer func() {
		if err != nil {
			closeAll(all)
		}
	}()
	var lc net.ListenConfig
	if cfg.Listen != "" {
		l, err := lc.Listen(ctx, "tcp", cfg.Listen)
		if err != nil {
			return nil, fmt.Errorf("--listen: %w", err)
		}
		all = append(all, l)
	}
	if cfg.ListenUnix != "" {
		if err := removeStaleSocket(cfg.ListenUnix); err != nil {
			return nil, fmt.Errorf("--listen-unix: %w", err)
		}
		l, err := lc.Listen(ctx, "unix", cfg.ListenUnix)
		if err != nil {
			return nil, fmt.Errorf("--listen-unix: %w", err)
		}
		all = append(all, l)
		// The group too may ask: the collector of a Kubernetes node is in that of KubeVirt's qemu user.
		if err := os.Chmod(cfg.ListenUnix, 0o660); err != nil {
			return nil, fmt.Errorf("--listen-unix: %w", err)
		}
	}
	return all, nil
}

func closeAll(listeners []net.Listener) {
	for _, l := range listeners {
		l.Close()
	}
}

// removeStaleSocket clears what a killed sidecar left at path. It never
// removes a socket that somebody answers on, nor anything that is no socket.
func removeStaleSocket(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode()&fs.ModeSocket == 0 {
		return fmt.Errorf("%s is there and is no socket", path)
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		conn.Close()
		return fmt.Errorf("%s: another process answers there", path)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return os.Remove(path)
}

// serve answers on all listeners until ctx is done, then lets the requests in
// flight finish for a moment. Every answer comes from memory, so a moment is enough.
func serve(ctx context.Context, log *slog.Logger, handler http.Handler, listeners []net.Listener) error {
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      10 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ConnState:         newConnLimit(connsAllowed()).track,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, l := range listeners {
		group.Go(func() error {
			if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("serving on %s: %w", l.Addr(), err)
			}
			return nil
		})
	}
	group.Go(func() error {
		<-ctx.Done()
		// ctx is done, so the grace has to be counted apart from it.
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if err := server.Shutdown(grace); err != nil {
			return server.Close()
		}
		return nil
	})
	return group.Wait()
}
