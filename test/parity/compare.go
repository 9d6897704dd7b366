package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// rounds is how often a behaviour is played at most. A few outcomes depend on which of two
// packets comes first, for the kubelet as for us; then one of ours must be one of the kubelet's.
const rounds = 20

// A difference is one that no deviation explains.
type difference struct {
	scenario      *scenario
	kubelet, ours outcome
	err           error // the server could not be started
}

// A report is what a run found.
type report struct {
	total       int
	equal       int
	families    map[string]int // scenarios per family
	results     map[string]int // the kubelet's results
	requests    int            // scenarios in which the server saw a request
	deviations  map[string]int // how many scenarios each explains
	repeated    []string       // the names of the unsteady ones
	unexplained []difference
}

// compareAll plays the scenarios, a few at a time.
func compareAll(ctx context.Context, scenarios []*scenario, workers int) *report {
	r := &report{families: map[string]int{}, results: map[string]int{}, deviations: map[string]int{}}
	var mu sync.Mutex
	var wg sync.WaitGroup
	work := make(chan *scenario)
	for range workers {
		wg.Go(func() {
			for s := range work {
				v := compare(ctx, s)
				mu.Lock()
				r.add(s, v)
				mu.Unlock()
			}
		})
	}
	for _, s := range scenarios {
		if ctx.Err() != nil {
			break
		}
		work <- s
	}
	close(work)
	wg.Wait()
	slices.SortFunc(r.unexplained, func(a, b difference) int { return strings.Compare(a.scenario.name, b.scenario.name) })
	return r
}

// A verdict is the comparison of one scenario.
type verdict struct {
	kubelet, ours outcome
	equal         bool
	tries         int
	deviations    []string
	err           error
}

func (r *report) add(s *scenario, v verdict) {
	r.total++
	r.families[s.family]++
	r.results[v.kubelet.result]++
	if v.kubelet.seen != "" {
		r.requests++
	}
	switch {
	case !v.equal:
		r.unexplained = append(r.unexplained, difference{s, v.kubelet, v.ours, v.err})
		return
	case len(v.deviations) == 0:
		r.equal++
	}
	for _, id := range v.deviations {
		r.deviations[id]++
	}
	if v.tries > 1 {
		r.repeated = append(r.repeated, fmt.Sprintf("%s: kubelet %.200q, ours %.200q", s.name, v.kubelet.text, v.ours.text))
	}
}

// compare plays one scenario until both sides agree, or it has been played often enough.
func compare(ctx context.Context, s *scenario) verdict {
	host, port, take := s.host, s.port, func() string { return "" }
	if s.start != nil {
		server, err := s.start()
		if err != nil {
			return verdict{err: err, equal: false}
		}
		defer server.close()
		take = server.take
		if host == "" {
			host = server.host
		}
		if port == 0 {
			port = server.port
		}
	}
	kubelets, ours := map[outcome][]string{}, map[outcome]bool{}
	var v verdict
	for v.tries = 1; v.tries <= rounds; v.tries++ {
		v.kubelet = s.kubelet(host, port)
		v.kubelet.seen = take()
		v.ours = s.ours(ctx, host, port)
		v.ours.seen = take()
		again := func(host string) outcome {
			o := s.kubelet(host, port)
			o.seen = take()
			return o
		}
		expected, ids := deviate(played{s, host, port, v.kubelet, v.ours, again})
		kubelets[steady(expected)] = ids
		ours[steady(v.ours)] = true
		for o := range ours {
			if ids, ok := kubelets[o]; ok {
				v.equal, v.deviations = true, ids
				return v
			}
		}
		if ctx.Err() != nil {
			break
		}
	}
	return v
}

// steady removes what differs between any two connections, such as the port on our side.
func steady(o outcome) outcome {
	o.text = regexp.MustCompile(`(tcp|udp) [^ ]+:\d+->`).ReplaceAllString(o.text, "$1 ->")
	// Protocol buffers spell this with one of two spaces, by the build, to keep it from being compared.
	o.text = strings.ReplaceAll(o.text, "proto:\u00a0", "proto: ")
	return o
}

// print writes the counts and each unexplained difference.
func (r *report) print(w io.Writer) {
	fmt.Fprintf(w, "%d server behaviours against the kubelet's prober (k8s.io/kubernetes %s)\n", r.total, kubernetesVersion())
	fmt.Fprintf(w, "  families:   %s\n", counts(r.families))
	fmt.Fprintf(w, "  kubelet:    %s; requests compared in %d\n", counts(r.results), r.requests)
	fmt.Fprintf(w, "  equal:      %d (and %d of all only when repeated)\n", r.equal, len(r.repeated))
	fmt.Fprintf(w, "  documented: %s\n", counts(r.deviations))
	fmt.Fprintf(w, "  unexplained differences: %d\n", len(r.unexplained))
	for _, d := range r.unexplained {
		fmt.Fprintf(w, "\n%s\n", d.scenario.name)
		if d.err != nil {
			fmt.Fprintf(w, "  no server: %v\n", d.err)
			continue
		}
		fmt.Fprintf(w, "  kubelet: %s %.600q\n  ours:    %s %.600q\n", d.kubelet.result, d.kubelet.text, d.ours.result, d.ours.text)
		if d.kubelet.seen != d.ours.seen {
			fmt.Fprintf(w, "  kubelet sent: %.1000q\n  we sent:      %.1000q\n", d.kubelet.seen, d.ours.seen)
		}
	}
}

// counts writes a map as "name 1, other 2".
func counts(m map[string]int) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, fmt.Sprintf("%s %d", name, m[name]))
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}
