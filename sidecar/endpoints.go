package sidecar

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/guestprobe/guestprobe/sidecar/verdict"
)

// newHandler serves the endpoints. Each answers from memory.
func newHandler(s *Sidecar) http.Handler {
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(newCollector(s))

	mux := http.NewServeMux()
	answer := func(path string, pick func(*current) verdict.Answer) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			writeAnswer(w, r, strings.TrimPrefix(path, "/"), pick(s.state.get()))
		})
	}
	answer("/readyz", func(c *current) verdict.Answer { return c.Readyz })
	answer("/livez", func(c *current) verdict.Answer { return c.Livez })
	answer("/startupz", func(c *current) verdict.Answer { return c.Startupz })
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		setHeaders(w, "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, "ok\n")
	})
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		setHeaders(w, "application/json")
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		_ = enc.Encode(s.Status()) // the client has gone; there is nobody to tell
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /{$}", servePage())
	return mux
}

// writeAnswer writes what kube-apiserver would: "ok", or with ?verbose, and whenever it fails, one line per
// component (k8s v1.37.2 staging/src/k8s.io/apiserver/pkg/server/healthz).
func writeAnswer(w http.ResponseWriter, r *http.Request, name string, a verdict.Answer) {
	setHeaders(w, "text/plain; charset=utf-8")
	_, verbose := r.URL.Query()["verbose"]
	if !a.OK {
		verbose = true
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_, _ = io.WriteString(w, a.Body(name, verbose)) // if the client has gone, there is nobody to tell
}

func setHeaders(w http.ResponseWriter, contentType string) {
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
}
