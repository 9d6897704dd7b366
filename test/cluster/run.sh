#!/bin/bash
# make test-cluster: a real Kubernetes on this machine, the injector and the collector installed in it from their manifests,
# and VMs in launcher pods like KubeVirt's. It needs root, Debian's packages and, for the first run, some ten minutes;
# what it has built stays in ~/.cache/guestprobe-cluster. `run.sh --down` cleans up after a run that was killed.
set -euo pipefail
. "$(dirname "$0")/env.sh"
begin=$SECONDS

fail() {
	echo "test-cluster: $*" >&2
	exit 1
}

[ "$(id -u)" = 0 ] || fail "only root can make namespaces, cgroups and containers"
mkdir -p "$LAB"
exec 9>"$LAB/.lock"
flock -n 9 || fail "another run holds $LAB"
if [ "${1:-}" = --down ]; then exec "$HERE/down.sh"; fi

# need PACKAGE PATH: what is missing is installed
missing=()
need() { if [ ! -e "$2" ]; then missing+=("$1"); fi; }
need etcd-server /usr/bin/etcd
need containerd /usr/bin/containerd
need runc /usr/sbin/runc
need containernetworking-plugins /usr/lib/cni/bridge
need nftables /usr/sbin/nft
need iproute2 /usr/sbin/ip
need openssl /usr/bin/openssl
need curl /usr/bin/curl
need bc /usr/bin/bc
need libvirt-daemon /usr/sbin/libvirtd
need libvirt-daemon-driver-qemu /usr/lib/x86_64-linux-gnu/libvirt/connection-driver/libvirt_driver_qemu.so
need libvirt-clients /usr/bin/virsh
need qemu-system-x86 /usr/bin/qemu-system-x86_64
need qemu-guest-agent /usr/sbin/qemu-ga
need cpio /usr/bin/cpio
need docker.io "$(command -v dockerd || echo /nowhere)"
need docker.io "$(command -v docker || echo /nowhere)"
need procps /usr/bin/pgrep
need docker-registry /usr/bin/docker-registry
need jq /usr/bin/jq
if ((${#missing[@]})); then
	command -v apt-get >/dev/null || fail "these are missing: ${missing[*]}"
	echo "installing ${missing[*]}"
	export DEBIAN_FRONTEND=noninteractive
	{ apt-get update && apt-get install -y --no-install-recommends --no-remove "${missing[@]}"; } >"$LAB/apt.log" 2>&1 ||
		fail "apt-get: $(tail -n 3 "$LAB/apt.log")"
fi

"$HERE/build.sh"
echo "making the guest and the images"
guest=$("$ROOT/test/guest/mkguest.sh" "$ROOT/.cache/guest")
"$HERE/images.sh"
"$HERE/down.sh" # what a former run left, if that was killed

finish() {
	code=$?
	trap - EXIT INT TERM
	if ((code)); then "$HERE/down.sh" --keep-logs; else "$HERE/down.sh"; fi
	echo "cleaned up; $((SECONDS - begin)) s in all"
	exit "$code"
}
# step CMD…: in the background, so that a signal is obeyed at once; without the lock, which must not outlive this script
step() {
	"$@" 9>&- &
	child=$!
	wait $child
}
child=
trap finish EXIT
trap 'kill $child 2>/dev/null; exit 130' INT
trap 'kill $child 2>/dev/null; exit 143' TERM
start=$SECONDS
echo "starting Kubernetes $K8S_VERSION"
step "$HERE/up.sh"
echo "the node is Ready after $((SECONDS - start)) s"
step "$HERE/checks.sh" "$guest"
