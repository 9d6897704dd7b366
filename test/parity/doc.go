// Command parity runs the kubelet's own prober and package netprobe against the same servers and
// compares what they say, word for word, and what they send.
//
// It is a module of its own, because k8s.io/kubernetes is not meant to be a library: replaces.sh
// points the module at one release. The servers are generated from a seed, so that a run can be
// repeated; each plays one behaviour, from a plain 200 to a header that never ends. Differences
// are allowed only where deviations.go says so, and docs/parity.md lists the same ones for people.
//
// Its tests also put the pods that package sidecar/inject makes through the API server's own
// validation, which needs the same module.
//
// It does not compare thresholds, retries or initial delays: those are package probe's.
package main
