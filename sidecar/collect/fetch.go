package collect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"golang.org/x/sys/unix"
)

// maxAnswer is far above what a sidecar with a hundred checks says.
const maxAnswer = 1 << 20

// The families that are passed on.
const (
	prefix    = "guestprobe_"
	ownPrefix = prefix + "collector_"
)

// fetch asks a sidecar for its metrics. ctx bounds all of it.
func fetch(ctx context.Context, t target) (map[string]*dto.MetricFamily, error) {
	transport := &http.Transport{
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, t.socket) },
		DisableKeepAlives: true,
	}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://guestprobe/metrics", nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("asking the sidecar: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the sidecar answers %s", resp.Status)
	}
	body := &io.LimitedReader{R: resp.Body, N: maxAnswer}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(body)
	if body.N <= 0 {
		return nil, fmt.Errorf("the sidecar's answer is larger than %d bytes", maxAnswer)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the sidecar's answer: %w", err)
	}
	return families, nil
}

// dial connects to a socket, and to nothing else: the folder is the pod's, which can put a link to another socket of
// the node there at any moment. Opening the path without following links, and connecting to what was opened, leaves no
// moment. It also leaves no limit on the path's length.
func dial(ctx context.Context, path string) (net.Conn, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", path, err)
	}
	defer unix.Close(fd)
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return nil, fmt.Errorf("looking at %s: %w", path, err)
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return nil, errors.New(path + " is no socket")
	}
	return new(net.Dialer).DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d", fd))
}

// label makes a sidecar's families the collector's: only Guestprobe's own, with the VM's labels instead of any of
// those names, and without timestamps.
func label(families map[string]*dto.MetricFamily, labels []*dto.LabelPair) map[string]*dto.MetricFamily {
	ours := func(l *dto.LabelPair) bool {
		return slices.ContainsFunc(labels, func(o *dto.LabelPair) bool { return o.GetName() == l.GetName() })
	}
	kept := make(map[string]*dto.MetricFamily, len(families))
	for name, family := range families {
		if !strings.HasPrefix(name, prefix) || strings.HasPrefix(name, ownPrefix) {
			continue
		}
		for _, m := range family.Metric {
			m.TimestampMs = nil
			m.Label = append(slices.DeleteFunc(m.Label, ours), labels...)
			slices.SortFunc(m.Label, func(a, b *dto.LabelPair) int { return strings.Compare(a.GetName(), b.GetName()) })
		}
		kept[name] = family
	}
	return kept
}

// pairs makes label pairs of names and values in turn.
func pairs(namesAndValues ...string) []*dto.LabelPair {
	var all []*dto.LabelPair
	for i := 0; i+1 < len(namesAndValues); i += 2 {
		all = append(all, &dto.LabelPair{Name: &namesAndValues[i], Value: &namesAndValues[i+1]})
	}
	return all
}
