# shellcheck shell=bash disable=SC2034 # used where this is sourced
# Settings of all scripts here; sourced, not run. Everything that is built or written lies in $LAB, outside the checkout.
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd "$HERE/../.." && pwd)
LAB=${GUESTPROBE_CLUSTER:-$HOME/.cache/guestprobe-cluster}
BIN=$LAB/bin       # Kubernetes' programs; kept
IMAGES=$LAB/images # images as tar files; made anew by each run
RUN=$LAB/run       # state, logs and pids of one run; removed by down.sh
PKI=$RUN/pki
DESK=$RUN/page # where the commands of docs/install.md are run
CGROUP=guestprobe-cluster # below each controller's root; whoever is in it is ours
K8S_VERSION=$(awk '$1 == "k8s.io/kubernetes" {print $2}' "$HERE/tools/go.mod")

NODE=lab-node
NODE_IP=10.251.0.1 # all addresses are of the lab's own network namespace
REGISTRY=registry.example # that of docs/install.md
REGISTRY_IP=10.251.0.2
POD_CIDR=10.252.0.0/24
SERVICE_CIDR=10.253.0.0/24
API_IP=10.253.0.1 # the Service kubernetes: an address of the node, so that nothing has to translate it
CRI=/run/containerd/containerd.sock # in the lab's own /run

PATH=$PATH:/usr/sbin:/sbin
export KUBECONFIG=$RUN/admin.kubeconfig

# lab CMD…: in the lab's network and mount namespaces. Not `ip netns exec`: that mounts /sys anew and hides cgroup v1.
lab() { nsenter --target "$(cat "$RUN/holder.pid")" --net --mount -- "$@"; }
k() { lab "$BIN/kubectl" "$@"; }
ctr() { lab ctr --address "$CRI" --namespace k8s.io "$@"; }

# each_controller CMD…: with the folder of each cgroup hierarchy of this machine as the last argument (v1 or v2).
each_controller() {
	local dir
	if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
		"$@" /sys/fs/cgroup
		return
	fi
	for dir in /sys/fs/cgroup/*/; do
		[ -e "$dir/cgroup.procs" ] && "$@" "${dir%/}"
	done
}
