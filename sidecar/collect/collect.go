package collect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"golang.org/x/sync/errgroup"
)

// maxConcurrent is how many sidecars are asked at once; those that hang hold up to that many others by one timeout.
const maxConcurrent = 64

// A Collector gathers in rounds and serves from memory, so that no sidecar can delay a scrape.
type Collector struct {
	cfg      Config
	log      *slog.Logger
	finder   *finder
	registry *prometheus.Registry

	mu   sync.Mutex
	vms  map[string]*vm // by namespace/name
	last time.Time      // end of the last round
}

// A vm is what the last round found of one.
type vm struct {
	target   target
	families map[string]*dto.MetricFamily // nil: the sidecar did not answer
}

// New returns a collector of which nothing runs yet.
func New(cfg Config) (*Collector, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.Interval = cmp.Or(cfg.Interval, 10*time.Second)
	cfg.Timeout = cmp.Or(cfg.Timeout, 2*time.Second)
	c := &Collector{cfg: cfg, log: cfg.Logger, finder: newFinder(cfg.PodsDir, cfg.PodLogsDir), registry: prometheus.NewRegistry(), vms: map[string]*vm{}}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: ownPrefix + "build_info", Help: "1, with the version of guestprobe as a label.",
		ConstLabels: prometheus.Labels{"version": cmp.Or(cfg.Version, "unknown")},
	})
	info.Set(1)
	if err := errors.Join(c.registry.Register(info), c.registry.Register(&targets{c})); err != nil {
		return nil, fmt.Errorf("registering metrics: %w", err)
	}
	return c, nil
}

// Run gathers and serves until ctx is done, and then returns nil. An error of the folders ends it: without them it has
// nothing to say.
func (c *Collector) Run(ctx context.Context) error {
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", c.cfg.Listen)
	if err != nil {
		return fmt.Errorf("listening: %w", err)
	}
	return c.serve(ctx, listener)
}

func (c *Collector) serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{
		Handler: c.Handler(), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(c.log.Handler(), slog.LevelDebug),
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serving on %s: %w", listener.Addr(), err)
		}
		return nil
	})
	group.Go(func() error { return c.rounds(ctx) })
	group.Go(func() error {
		<-ctx.Done()
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if err := server.Shutdown(grace); err != nil {
			return server.Close()
		}
		return nil
	})
	return group.Wait()
}

// rounds gathers every interval, the first time at once.
func (c *Collector) rounds(ctx context.Context) error {
	tick := time.NewTicker(c.cfg.Interval)
	defer tick.Stop()
	for {
		if err := c.round(ctx); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// round finds the sidecars and asks all of them. What did not answer in this round is not served: a number that may be
// old looks like one that is not.
func (c *Collector) round(ctx context.Context) error {
	found, err := c.finder.find()
	if err != nil {
		return err
	}
	fresh := make(map[string]*vm, len(found))
	var group errgroup.Group
	group.SetLimit(maxConcurrent)
	for key, t := range found {
		v := &vm{target: t}
		fresh[key] = v
		group.Go(func() error {
			c.ask(ctx, v)
			return nil
		})
	}
	_ = group.Wait() // each vm keeps its own result
	if ctx.Err() != nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.logChanges(fresh)
	c.vms, c.last = fresh, time.Now()
	return nil
}

func (c *Collector) ask(ctx context.Context, v *vm) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	families, err := fetch(ctx, v.target)
	if err != nil {
		c.log.Debug("no metrics", "namespace", v.target.namespace, "vm", v.target.name, "err", err)
		return
	}
	v.families = label(families, pairs("namespace", v.target.namespace, "name", v.target.name, "node", c.cfg.Node))
}

// logChanges writes a record for each VM whose sidecar came, went, fell silent or spoke again. The caller holds mu.
func (c *Collector) logChanges(fresh map[string]*vm) {
	state := func(v *vm) string {
		switch {
		case v == nil:
			return "gone"
		case v.families == nil:
			return "silent"
		}
		return "up"
	}
	for key := range c.vms {
		if fresh[key] == nil {
			c.log.Info("sidecar", "vm", key, "state", "gone")
		}
	}
	for key, v := range fresh {
		if now := state(v); now != state(c.vms[key]) {
			c.log.Info("sidecar", "vm", key, "state", now)
		}
	}
}

// Handler serves /metrics and /healthz.
func (c *Collector) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(
		prometheus.Gatherers{c.registry, prometheus.GathererFunc(c.gather)},
		// One sidecar of another version must not cost all the others.
		promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError, ErrorLog: slog.NewLogLogger(c.log.Handler(), slog.LevelWarn)}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		c.mu.Lock()
		age := time.Since(c.last)
		c.mu.Unlock()
		if age > 3*c.cfg.Interval+time.Minute {
			http.Error(w, fmt.Sprintf("the last round ended %v ago", age), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	return mux
}

// gather puts the VMs' families together. Two versions of the sidecar may give one name two types; the first one by VM's
// name counts.
func (c *Collector) gather() ([]*dto.MetricFamily, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	merged := map[string]*dto.MetricFamily{}
	for _, key := range slices.Sorted(maps.Keys(c.vms)) {
		for name, family := range c.vms[key].families {
			into, ok := merged[name]
			if !ok {
				into = &dto.MetricFamily{Name: family.Name, Help: family.Help, Type: family.Type}
				merged[name] = into
			}
			if into.GetType() == family.GetType() {
				into.Metric = append(into.Metric, family.Metric...)
			}
		}
	}
	all := make([]*dto.MetricFamily, 0, len(merged))
	for _, name := range slices.Sorted(maps.Keys(merged)) {
		all = append(all, merged[name])
	}
	return all, nil
}
