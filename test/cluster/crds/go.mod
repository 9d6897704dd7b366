// No code: the sources of the definitions that crds.sh takes from these modules, with their sums.
module github.com/guestprobe/guestprobe/test/cluster/crds

go 1.26.0

require (
	github.com/cert-manager/cert-manager v1.21.2
	github.com/openshift/api v0.0.0-20251015095338-264e80a2b6e7
	github.com/prometheus-operator/prometheus-operator v0.85.0
	kubevirt.io/kubevirt v1.9.0
)
