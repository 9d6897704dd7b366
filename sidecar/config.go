package sidecar

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/guestprobe/guestprobe/qga"
	"github.com/guestprobe/guestprobe/sidecar/manifest"
)

// Config says which VM to watch and where to answer.
type Config struct {
	// Manifest holds the probes. It is required.
	Manifest *manifest.Manifest
	// Monitor is the QEMU monitor; nil leaves the VM's state unknown, and the probes alone decide.
	Monitor *qga.Addr
	// Agent is the guest agent; guestAgentPing and exec probes need it.
	Agent *qga.Addr
	// MonitorFallback and AgentFallback are used while the others are out of reach; nil: nothing is.
	MonitorFallback, AgentFallback *qga.Addr
	// GuestHost is where httpGet, tcpSocket and grpc probes without a host of their own go. A guest with an address in
	// each family has both, separated by a comma: the first is for checks that name no family.
	GuestHost string

	// Listen is the TCP address of the endpoints; empty: none.
	Listen string
	// ListenUnix is the path of a unix socket that serves the same endpoints; empty: none.
	ListenUnix string

	// Listeners are served too. They are open already, and Run closes them.
	Listeners []net.Listener

	// Notify sends one message to the service manager that started this process (sd_notify(3)); nil: there is none.
	// Calls never overlap. UseSystemd sets it.
	Notify func(message string) error
	// Watchdog is how long the service manager waits for a sign of life before it takes the process for stuck;
	// 0: it does not ask for one.
	Watchdog time.Duration

	// ExitWithVM ends Run with nil once the VM is gone for good.
	ExitWithVM bool
	// HoldFile holds all probing while it exists; empty: never.
	HoldFile string
	// ShutdownDelay is how long Run goes on answering 503 Terminating after
	// its context has ended while the VM still runs; zero ends at once.
	ShutdownDelay time.Duration

	// Version is shown by /status and the build_info metric.
	Version string
	// Logger receives one record per transition; nil discards.
	Logger *slog.Logger
}

// Validate reports, each on a line of its own, the addresses that are none, and the probes that this configuration
// gives no way to run.
func (c *Config) Validate() error {
	if c.Manifest == nil {
		return errors.New("no manifest: there is nothing to probe")
	}
	errs := c.addresses()
	for _, check := range c.Manifest.Checks {
		h := check.Handler
		switch {
		case (h.GuestAgentPing != nil || h.Exec != nil) && c.Agent == nil:
			errs = append(errs, fmt.Errorf("%s: this probe asks the guest agent: --agent is missing", check.Path))
		case h.HTTPGet != nil && h.HTTPGet.Host == "" && c.GuestHost == "",
			h.TCPSocket != nil && h.TCPSocket.Host == "" && c.GuestHost == "",
			h.GRPC != nil && c.GuestHost == "":
			errs = append(errs, fmt.Errorf("%s: this probe goes to the guest and names no host: --guest-host is missing", check.Path))
		}
	}
	return errors.Join(errs...)
}

// maxSocketPath is what Linux takes (unix(7)).
const maxSocketPath = 107

// addresses checks what can be told without asking the network.
func (c *Config) addresses() (errs []error) {
	if c.Listen != "" {
		_, port, err := net.SplitHostPort(c.Listen)
		if err == nil {
			_, err = net.LookupPort("tcp", port)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("--listen: %q is no address such as :9958 or 127.0.0.1:9958: %w", c.Listen, err))
		}
	}
	if n := len(c.ListenUnix); n > maxSocketPath {
		errs = append(errs, fmt.Errorf("--listen-unix: %s: a path of %d bytes, the system takes %d", c.ListenUnix, n, maxSocketPath))
	}
	if c.GuestHost != "" {
		for _, host := range guestHosts(c.GuestHost) {
			switch {
			case host == "":
				errs = append(errs, fmt.Errorf("--guest-host %q: an address is missing beside the comma", c.GuestHost))
			case !isHost(host):
				errs = append(errs, fmt.Errorf("--guest-host: %q is neither a host's name nor an IP address; the probes bring scheme and port", host))
			}
		}
	}
	return errs
}

// isHost reports whether s is an IP address, with or without a zone, or could be a name: nothing is looked up, and
// resolvers take more than RFC 1123 allows, such as underscores.
func isHost(s string) bool {
	if _, err := netip.ParseAddr(s); err == nil {
		return true
	}
	const maxName = 253
	name := strings.TrimSuffix(s, ".")
	if name == "" || len(name) > maxName {
		return false
	}
	return strings.IndexFunc(name, func(r rune) bool {
		return r != '-' && r != '.' && r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	}) < 0
}
