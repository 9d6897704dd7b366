package main

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/guestprobe/guestprobe/cmd/internal/cli"
)

// The injector's own metrics. controller-runtime adds those of its HTTP server and of the certificate's files.
const (
	metricReviews  = "guestprobe_injector_reviews_total"
	metricDuration = "guestprobe_injector_review_duration_seconds"
	metricWarnings = "guestprobe_injector_warnings_total"
	metricLookups  = "guestprobe_injector_lookup_failures_total"
	metricExpiry   = "guestprobe_injector_certificate_expiry_timestamp_seconds"
	metricInfo     = "guestprobe_injector_build_info"
)

// What can become of a review; the closed set of the label result.
const (
	resultInjected = "injected"
	resultSkipped  = "skipped"
	resultRefused  = "refused"
	resultError    = "error"   // the pod was admitted as it was, and the injector could not do its work
	resultInvalid  = "invalid" // no AdmissionReview at all
)

type metrics struct {
	reviews  *prometheus.CounterVec
	duration prometheus.Histogram
	warnings prometheus.Counter
	lookups  *prometheus.CounterVec
}

// newMetrics registers the metrics, each series at 0. expiry returns the zero time while there is no certificate.
func newMetrics(reg prometheus.Registerer, expiry func() time.Time) (*metrics, error) {
	m := &metrics{
		reviews: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: metricReviews, Help: "Admission reviews by result: injected, skipped, refused (a broken annotation, where that is asked for), error (the pod was admitted as it was) and invalid (no review).",
		}, []string{"result"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: metricDuration, Help: "Time from a review's arrival to its answer, look-ups included.",
			Buckets: []float64{.001, .005, .02, .1, .5, 1, 2, 4},
		}),
		warnings: prometheus.NewCounter(prometheus.CounterOpts{
			Name: metricWarnings, Help: "Warnings written on pods, in the annotation guestprobe.dev/warnings.",
		}),
		lookups: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: metricLookups, Help: "Objects that could not be read: the VirtualMachineInstance or the namespace's ConfigMap of defaults.",
		}, []string{"object"}),
	}
	for _, result := range []string{resultInjected, resultSkipped, resultRefused, resultError, resultInvalid} {
		m.reviews.WithLabelValues(result)
	}
	for _, object := range []string{objectVMI, objectDefaults} {
		m.lookups.WithLabelValues(object)
	}
	certificate := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: metricExpiry, Help: "When the serving certificate expires; 0 while there is none.",
	}, func() float64 {
		if t := expiry(); !t.IsZero() {
			return float64(t.Unix())
		}
		return 0
	})
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: metricInfo, Help: "Always 1; the label has the version.", ConstLabels: prometheus.Labels{"version": cli.Version()},
	})
	info.Set(1)
	for _, c := range []prometheus.Collector{m.reviews, m.duration, m.warnings, m.lookups, certificate, info} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}
