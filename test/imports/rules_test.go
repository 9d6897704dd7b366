package imports

import "strings"

// A rule says what the code of one package (tests aside) may import beside the standard library.
type rule struct {
	own     []string // packages of this module, relative to its root; "x/..." means x and all below
	modules []string // path prefixes of foreign modules
}

const (
	goQEMU    = "github.com/digitalocean/go-qemu"
	goLibvirt = "github.com/digitalocean/go-libvirt"
	vsock     = "github.com/mdlayher/vsock"
	systemd   = "github.com/coreos/go-systemd/v22"
	metrics   = "github.com/prometheus/client_golang"
	yaml      = "go.yaml.in/yaml/v3"
	xsync     = "golang.org/x/sync"
	xsys      = "golang.org/x/sys"
	k8s       = "k8s.io"
	k8sSIGs   = "sigs.k8s.io"
	logr      = "github.com/go-logr/logr"
	jsonPatch = "gopkg.in/evanphx/json-patch.v4"
	certs     = "github.com/open-policy-agent/cert-controller"
)

// ruleFor returns the rule of a package, named relative to the module's root. Imports point downward only:
// cmd -> sidecar -> {qga, netprobe, manifest, verdict -> probe}. A package without a rule is a mistake: a new one
// is given its place here first.
func ruleFor(pkg string) (rule, bool) {
	switch pkg {
	case "netprobe", "sidecar/probe":
		return rule{}, true
	case "sidecar/verdict":
		return rule{own: []string{"sidecar/probe"}}, true
	case "sidecar/manifest":
		return rule{own: []string{"sidecar/probe"}, modules: []string{yaml}}, true
	case "qga":
		return rule{modules: []string{goQEMU, goLibvirt, vsock, xsync, xsys}}, true
	case "qga/qgatest":
		return rule{own: []string{"qga"}, modules: []string{xsync}}, true
	case "sidecar":
		return rule{
			own:     []string{"qga", "netprobe", "sidecar/manifest", "sidecar/verdict", "sidecar/probe"},
			modules: []string{metrics, systemd, xsync, xsys},
		}, true
	case "sidecar/collect":
		// It parses and gathers other processes' metrics, for which Prometheus has these.
		return rule{modules: []string{metrics, "github.com/prometheus/client_model", "github.com/prometheus/common", xsync, xsys}}, true
	case "sidecar/inject":
		return rule{own: []string{"sidecar/manifest", "sidecar/probe"}, modules: []string{k8s, k8sSIGs}}, true
	case "cmd/internal/cli":
		return rule{}, true
	case "cmd/guestprobe":
		return rule{
			own:     []string{"cmd/internal/cli", "qga/...", "netprobe", "sidecar", "sidecar/collect", "sidecar/manifest", "sidecar/verdict", "sidecar/probe"},
			modules: []string{xsync, xsys},
		}, true
	case "cmd/guestprobe-injector":
		return rule{own: []string{"cmd/internal/cli", "sidecar/inject", "sidecar/manifest"}, modules: []string{k8s, k8sSIGs, certs, metrics, logr, jsonPatch, xsync}}, true
	}
	if strings.HasPrefix(pkg, "test/") {
		return rule{own: []string{"test/..."}, modules: []string{xsys}}, true
	}
	return rule{}, false
}

// allows tells whether the rule lets its package import path, where module is this module's own path.
func (r rule) allows(module, path string) bool {
	if own, ok := strings.CutPrefix(path, module+"/"); ok {
		for _, p := range r.own {
			below, tree := strings.CutSuffix(p, "/...")
			if own == below || tree && strings.HasPrefix(own, below+"/") {
				return true
			}
		}
		return false
	}
	first, _, _ := strings.Cut(path, "/")
	if !strings.Contains(first, ".") { // standard library
		return true
	}
	for _, m := range r.modules {
		if path == m || strings.HasPrefix(path, m+"/") {
			return true
		}
	}
	return false
}
