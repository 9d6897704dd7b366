#!/bin/bash
# Builds Kubernetes' own programs from the Go module k8s.io/kubernetes, once: about ten minutes of two cores with an
# empty build cache, nothing when they are there.
set -euo pipefail
. "$(dirname "$0")/env.sh"

p=k8s.io/component-base/version
minor=${K8S_VERSION#v1.}
minor=${minor%%.*}
# The version must be stamped in: the API server derives from it which features and API versions it serves.
flags="-s -w -X $p.gitVersion=$K8S_VERSION -X $p.gitMajor=1 -X $p.gitMinor=$minor -X $p.gitTreeState=clean"
flags+=" -X k8s.io/client-go/pkg/version.gitVersion=$K8S_VERSION"

mkdir -p "$BIN"
for c in kube-apiserver kubelet kubectl kube-controller-manager kube-scheduler; do
	out=$BIN/$c-$K8S_VERSION
	[ -x "$out" ] && continue
	s=$SECONDS
	echo "building $c $K8S_VERSION (once; minutes)"
	(cd "$HERE/tools" && CGO_ENABLED=0 nice -n 10 go build -p 2 -trimpath -ldflags "$flags" -o "$out.part" "k8s.io/kubernetes/cmd/$c")
	mv "$out.part" "$out"
	echo "built $c in $((SECONDS - s)) s"
done
for c in kube-apiserver kubelet kubectl kube-controller-manager kube-scheduler; do
	ln -sf "$c-$K8S_VERSION" "$BIN/$c"
done
