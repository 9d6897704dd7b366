// Package sidecar is the daemon that watches one virtual machine: it wires the
// probes of a manifest to the guest agent, the QEMU monitor and the guest's
// ports, and serves the verdict.
//
// It holds no protocol and no rule of its own: qga speaks to the VM, netprobe
// to its ports, sidecar/probe counts results, sidecar/verdict decides, and
// sidecar/manifest reads the configuration.
//
// The contract of its endpoints: /readyz, /livez and /startupz answer 200 or
// 503 from memory and never wait for the guest; a 503 always carries a reason
// of verdict's closed list. /healthz is about this process alone. /status is
// the whole truth as JSON and may gain fields; /metrics keeps its series, but
// for a reload, which may bring or take checks.
package sidecar
