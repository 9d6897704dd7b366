package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/guestprobe/guestprobe/cmd/internal/cli"
)

// maxAnswer bounds what check reads: the socket may belong to anybody.
const maxAnswer = 64 << 10

// checkCommand is what an exec probe calls: it asks a running sidecar over its unix socket and prints the reason.
func checkCommand(ctx context.Context, e cli.Env) error {
	fs := cli.NewFlags("guestprobe check", "[readyz|livez|startupz|healthz] --socket PATH [--fail-open]")
	socket := fs.String("socket", "", "unix socket `PATH` of the sidecar (its --listen-unix)")
	failOpen := fs.Bool("fail-open", false, "succeed when the sidecar cannot be asked: only its own word fails the check")
	verbose := fs.Bool("verbose", false, "print a line per component also when all is well")
	timeout := fs.Duration("timeout", 900*time.Millisecond, "give up after this `DURATION`; below the kubelet's default of 1s, so that the reason is printed")
	// The endpoint may stand before or after the flags.
	endpoint := ""
	if len(e.Args) > 0 && !strings.HasPrefix(e.Args[0], "-") {
		endpoint, e.Args = e.Args[0], e.Args[1:]
	}
	if done, err := cli.ParseArgs(fs, e); done || err != nil {
		return err
	}
	if fs.NArg() > 0 {
		if endpoint != "" || fs.NArg() > 1 {
			return cli.Usagef("unexpected argument %q", fs.Arg(fs.NArg()-1))
		}
		endpoint = fs.Arg(0)
	}
	if endpoint == "" {
		endpoint = "readyz"
	}
	if !slices.Contains([]string{"readyz", "livez", "startupz", "healthz"}, endpoint) {
		return cli.Usagef("%q is none of readyz, livez, startupz, healthz", endpoint)
	}
	if *socket == "" {
		return cli.Usagef("--socket is missing: name the unix socket of the sidecar")
	}
	if *timeout <= 0 {
		return cli.Usagef("--timeout: %v is not positive", *timeout)
	}
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	status, body, err := ask(ctx, *socket, endpoint, *verbose)
	switch {
	case err != nil && *failOpen:
		fmt.Fprintf(e.Stdout, "ok: the sidecar cannot be asked, and --fail-open is set: %v\n", err)
		return nil
	case err != nil:
		return &cli.Error{Code: cli.ExitFailure, Err: fmt.Errorf("%s: %w", endpoint, err)}
	}
	fmt.Fprintf(e.Stdout, "%s\n", strings.TrimRight(body, "\n"))
	switch {
	case status == http.StatusOK:
		return nil
	case status == http.StatusServiceUnavailable || !*failOpen:
		return &cli.Error{Code: cli.ExitFailure}
	}
	return nil // some other answer is not a verdict, and --fail-open asks for one
}

// ask gets one endpoint over the socket. Its error says which of the two failed, the socket or the sidecar behind it.
func ask(ctx context.Context, socket, endpoint string, verbose bool) (status int, body string, err error) {
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
		DisableKeepAlives: true,
	}
	defer transport.CloseIdleConnections()
	url := "http://guestprobe/" + endpoint
	if verbose {
		url += "?verbose"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	resp, err := transport.RoundTrip(req)
	if errors.Is(err, context.DeadlineExceeded) {
		return 0, "", fmt.Errorf("no answer from the sidecar on %s in time", socket)
	}
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return 0, "", fmt.Errorf("reading the sidecar's answer on %s: %w", socket, err)
	}
	return resp.StatusCode, string(data), nil
}
