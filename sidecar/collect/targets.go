package collect

import "github.com/prometheus/client_golang/prometheus"

// targets are the collector's own metrics about the sidecars.
type targets struct{ c *Collector }

var _ prometheus.Collector = (*targets)(nil)

func (t *targets) up() *prometheus.Desc {
	return prometheus.NewDesc(ownPrefix+"target_up", "1 if the VM's sidecar answered in the last round.", []string{"namespace", "name", "node"}, nil)
}

func (t *targets) round() *prometheus.Desc {
	return prometheus.NewDesc(ownPrefix+"last_round_timestamp_seconds", "When the last round ended, in seconds since the epoch; 0: none has.", nil, nil)
}

// Describe implements prometheus.Collector.
func (t *targets) Describe(ch chan<- *prometheus.Desc) {
	ch <- t.up()
	ch <- t.round()
}

// Collect implements prometheus.Collector.
func (t *targets) Collect(ch chan<- prometheus.Metric) {
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	for _, v := range t.c.vms {
		up := 0.0
		if v.families != nil {
			up = 1
		}
		ch <- prometheus.MustNewConstMetric(t.up(), prometheus.GaugeValue, up, v.target.namespace, v.target.name, t.c.cfg.Node)
	}
	last := 0.0
	if !t.c.last.IsZero() {
		last = float64(t.c.last.UnixMilli()) / 1000
	}
	ch <- prometheus.MustNewConstMetric(t.round(), prometheus.GaugeValue, last)
}
