package sidecar

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/guestprobe/guestprobe/qga"
	"github.com/guestprobe/guestprobe/sidecar/probe"
	"github.com/guestprobe/guestprobe/sidecar/verdict"
)

// collector turns the state into metrics at each scrape, from memory. The set of series follows from the
// manifest in force, so a reload may change it: no text of the guest's and no error is ever a label.
type collector struct {
	s     *Sidecar
	descs map[string]*prometheus.Desc
	order []*prometheus.Desc
}

var _ prometheus.Collector = (*collector)(nil)

// The names of the metrics, without their prefix.
const (
	metricReady           = "ready"
	metricLive            = "live"
	metricStarted         = "started"
	metricState           = "state"
	metricStateSince      = "state_since_timestamp_seconds"
	metricTransitions     = "transitions_total"
	metricCheckSuccess    = "check_success"
	metricCheckRuns       = "check_runs_total"
	metricCheckFailures   = "check_failures_total"
	metricCheckErrors     = "check_errors_total"
	metricCheckDuration   = "check_duration_seconds"
	metricCheckLastRun    = "check_last_run_timestamp_seconds"
	metricVMStatus        = "vm_status"
	metricMonitorUp       = "monitor_connected"
	metricAgentUp         = "agent_connected"
	metricAgentRoundTrip  = "agent_round_trip_seconds"
	metricAgentResyncs    = "agent_resyncs_total"
	metricGuestPanics     = "guest_panics_total"
	metricGuestResets     = "guest_resets_total"
	metricStorageIOErrors = "storage_io_errors_total"
	metricFrozen          = "filesystem_frozen"
	metricHold            = "maintenance_hold"
	metricBuildInfo       = "build_info"
)

func newCollector(s *Sidecar) *collector {
	c := &collector{s: s, descs: make(map[string]*prometheus.Desc)}
	add := func(name, help string, labels ...string) {
		desc := prometheus.NewDesc("guestprobe_"+name, help, labels, nil)
		c.descs[name] = desc
		c.order = append(c.order, desc)
	}
	add(metricReady, "1 if the VM can take work: what /readyz answers.")
	add(metricLive, "1 if the VM is not beyond repair: what /livez answers.")
	add(metricStarted, "1 if the guest has finished booting: what /startupz answers.")
	add(metricState, "1 for the reason of the current verdict, 0 for all others.", "reason")
	add(metricStateSince, "When the reason became what it is, in seconds since the epoch.")
	add(metricTransitions, "Changes of the verdict, by the reason changed to.", "to")
	add(metricCheckSuccess, "1 if the check's published state, after its thresholds, is success.", "check", "kind")
	add(metricCheckRuns, "Finished rounds of the check; its attempts on errors are one round.", "check", "kind")
	add(metricCheckFailures, "Rounds of the check that counted as a failure.", "check", "kind")
	add(metricCheckErrors, "Rounds of the check that could not tell and were discarded.", "check", "kind")
	add(metricCheckDuration, "Duration of the check's last round; a scrape runs no check.", "check", "kind")
	add(metricCheckLastRun, "When the check's last round began, in seconds since the epoch; 0: none in this boot of the guest.", "check", "kind")
	add(metricVMStatus, "1 for the run state that QEMU or libvirt reports, 0 for all others.", "status")
	add(metricMonitorUp, "1 if the monitor is connected and its state is trusted.")
	add(metricAgentUp, "1 if the connection to the guest agent's channel stands; it does not mean that the agent answers.")
	add(metricAgentRoundTrip, "Duration of the last answered exchange with the guest agent.")
	add(metricAgentResyncs, "Resynchronisations of the agent's stream after a timeout or garbage.")
	add(metricGuestPanics, "Panics that the guest has reported.")
	add(metricGuestResets, "Resets of the guest, by itself or from outside.")
	add(metricStorageIOErrors, "Block I/O errors that QEMU has reported.")
	add(metricFrozen, "1 if the guest's file systems were last seen frozen; they are asked about only when a check fails.")
	add(metricHold, "1 while an operator holds the probing with a hold file, whatever the reason of the verdict is.")
	add(metricBuildInfo, "1, with the version of guestprobe as a label.", "version")
	return c
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range c.order {
		ch <- desc
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(name string, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(c.descs[name], prometheus.GaugeValue, value, labels...)
	}
	counter := func(name string, value uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(c.descs[name], prometheus.CounterValue, float64(value), labels...)
	}
	now := c.s.state.get()
	gauge(metricReady, truth(now.Ready))
	gauge(metricLive, truth(now.Live))
	gauge(metricStarted, truth(now.Started))
	gauge(metricStateSince, seconds(now.since.UnixMilli()))
	for _, reason := range verdict.Reasons() {
		gauge(metricState, truth(reason == now.Reason), string(reason))
		counter(metricTransitions, now.total[reason], string(reason))
	}
	for _, check := range now.checks {
		s, name, kind := check.worker.Snapshot(), check.Name, check.Kind.String()
		gauge(metricCheckSuccess, truth(s.State == probe.StateSuccess), name, kind)
		counter(metricCheckRuns, s.Runs, name, kind)
		counter(metricCheckFailures, s.Failures, name, kind)
		counter(metricCheckErrors, s.Errors, name, kind)
		gauge(metricCheckDuration, s.Duration.Seconds(), name, kind)
		last := 0.0
		if !s.LastRun.IsZero() {
			last = seconds(s.LastRun.UnixMilli())
		}
		gauge(metricCheckLastRun, last, name, kind)
	}
	gauge(metricHold, truth(now.hold != nil))
	gauge(metricBuildInfo, 1, orElse(c.s.cfg.Version, "unknown"))
	if c.s.monitor != nil {
		c.collectVM(now.vm, gauge, counter)
	}
	if c.s.agent != nil {
		stats := c.s.agent.Stats()
		gauge(metricAgentUp, truth(stats.Connected))
		gauge(metricAgentRoundTrip, stats.RoundTrip.Seconds())
		counter(metricAgentResyncs, stats.Resyncs)
		gauge(metricFrozen, truth(now.freeze != verdict.Thawed))
	}
}

func (c *collector) collectVM(vm qga.VMState, gauge func(string, float64, ...string), counter func(string, uint64, ...string)) {
	gauge(metricMonitorUp, truth(vm.Link == qga.LinkUp))
	for _, status := range runStates() {
		gauge(metricVMStatus, truth(status == statusLabel(vm.Status)), status)
	}
	counter(metricGuestPanics, vm.Panics)
	counter(metricGuestResets, vm.Resets)
	counter(metricStorageIOErrors, vm.IOErrors)
}

// runStates are the values of the status label: QEMU's run states (qapi/run-state.json, QEMU 10.0), "other" for
// newer ones, and "unknown" where no monitor tells.
func runStates() []string {
	return []string{
		"colo", "debug", "finish-migrate", "guest-panicked", "inmigrate", "internal-error", "io-error", "paused",
		"postmigrate", "prelaunch", "restore-vm", "running", "save-vm", "shutdown", "suspended", "watchdog",
		"other", "unknown",
	}
}

func statusLabel(status string) string {
	if status == "" {
		return "unknown"
	}
	for _, known := range runStates() {
		if known == status {
			return status
		}
	}
	return "other"
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func seconds(milliseconds int64) float64 { return float64(milliseconds) / 1000 }
