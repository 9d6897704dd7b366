#!/bin/bash
# Starts a cluster of one node: etcd, containerd and runc from Debian, Kubernetes' own programs, all of them in a network
# and a mount namespace and in cgroups of their own. Nothing outside of $LAB and these is touched.
set -euo pipefail
. "$(dirname "$0")/env.sh"

fail() {
	echo "up: $*" >&2
	exit 1
}

# join DIR: makes our cgroup below the controller at DIR, and enters it.
join() {
	local group=$1/$CGROUP file
	mkdir -p "$group/daemons"
	for group in "$group" "$group/daemons"; do
		for file in cpuset.cpus cpuset.mems; do # v1's are empty at first, and then nobody may enter
			if [ -e "$group/$file" ] && [ ! -e "$group/cgroup.controllers" ]; then cat "$1/$file" >"$group/$file"; fi
		done
	done
	echo $$ >"$group/cgroup.procs"
}

# start NAME CMD…: in the lab, with a log and a pid file
start() {
	local name=$1
	shift
	setsid nsenter --target "$(cat "$RUN/holder.pid")" --net --mount -- "$@" >"$RUN/$name.log" 2>&1 </dev/null &
	echo $! >"$RUN/$name.pid"
}

# ready NAME SECONDS CMD…: waits until CMD succeeds; NAME is the program that must not die meanwhile
ready() {
	local name=$1 end=$((SECONDS + $2))
	shift 2
	until "$@" >/dev/null 2>&1; do
		kill -0 "$(cat "$RUN/$name.pid")" 2>/dev/null || fail "$name has ended: $(tail -n 5 "$RUN/$name.log")"
		((SECONDS < end)) || fail "$name is not ready in time ($*): $(tail -n 5 "$RUN/$name.log")"
		sleep 0.2
	done
}

case $LAB in /run/* | /var/run/* | /var/lib/* | /var/log/*) fail "$LAB lies in a folder that the lab has one of its own of" ;; esac
mkdir -p "$RUN"/{containerd,cni,lib,log,certs.d/$REGISTRY}
each_controller join

printf '%s\n' '127.0.0.1 localhost' "$REGISTRY_IP $REGISTRY" >"$RUN/hosts"
# The holder keeps both namespaces. In them /run, /var/lib, /var/log and /etc/hosts are the lab's own, so that the kubelet, containerd
# and CNI write to the places where they do it elsewhere, and the collector's manifest needs no change.
# shellcheck disable=SC2016 # it is for the other shell
setsid unshare --net --mount --propagation private -- bash -c '
	mount -t tmpfs tmpfs /run && mount --bind "$1/lib" /var/lib && mount --bind "$1/log" /var/log &&
	mount --bind "$1/hosts" /etc/hosts && mount --make-rshared / && touch "$1/mounted" && exec sleep infinity' holder "$RUN" >"$RUN/holder.log" 2>&1 </dev/null &
echo $! >"$RUN/holder.pid"
ready holder 10 test -e "$RUN/mounted"

# A bridge without ports carries the node's addresses and the default route; kernels without the dummy driver have it.
lab sh -ec "
	ip link set lo up
	ip link add node0 type bridge
	ip address add $NODE_IP/24 dev node0
	ip address add $API_IP/32 dev node0
	ip address add $REGISTRY_IP/32 dev node0
	ip link set node0 up
	ip route add default via ${NODE_IP%.*}.254 dev node0
	echo 1 >/proc/sys/net/ipv4/ip_forward
	# The API server listens on port 443 of all addresses, and docker takes whoever answers there for the registry.
	nft 'table ip lab { chain input { type filter hook input priority 0; ip daddr $REGISTRY_IP tcp dport 443 reject with tcp reset; }; }'"
lab mknod -m 666 /run/tun c 10 200 # the machine's own may be root's alone
"$HERE/pki.sh"

cat >"$RUN/containerd.toml" <<EOF
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "$CRI"
[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "$REGISTRY/pause:v1"
  disable_tcp_service = true
  restrict_oom_score_adj = true # without CAP_SYS_RESOURCE runc cannot lower it
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "$RUN/certs.d"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$RUN/cni"
EOF
cat >"$RUN/cni/10-lab.conflist" <<EOF
{"cniVersion": "1.0.0", "name": "lab", "plugins": [
 {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
  "ipam": {"type": "host-local", "ranges": [[{"subnet": "$POD_CIDR"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
EOF
printf '[host."http://%s"]\n  capabilities = ["pull", "resolve"]\n' "$REGISTRY" >"$RUN/certs.d/$REGISTRY/hosts.toml"
start containerd containerd --config "$RUN/containerd.toml"

# The registry, and the docker daemon that pushes to it: docker builds without a container, so it needs no network.
cat >"$RUN/registry.yaml" <<EOF
version: 0.1
storage: {filesystem: {rootdirectory: $RUN/registry}}
http: {addr: "$REGISTRY_IP:80"}
EOF
start registry docker-registry serve "$RUN/registry.yaml"
start dockerd dockerd --host unix:///run/docker.sock --data-root "$RUN/docker" --exec-root /run/docker --pidfile /run/docker.pid \
	--iptables=false --ip6tables=false --bridge=none --storage-driver=vfs --insecure-registry "$REGISTRY"
start etcd etcd --name lab --data-dir "$RUN/etcd" --listen-client-urls http://127.0.0.1:2379 \
	--advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380 \
	--initial-advertise-peer-urls http://127.0.0.1:2380 --initial-cluster lab=http://127.0.0.1:2380
ready etcd 30 lab curl -sf http://127.0.0.1:2379/health

# Routing to endpoints instead of Service addresses: there is no kube-proxy.
start kube-apiserver "$BIN/kube-apiserver" --etcd-servers=http://127.0.0.1:2379 --secure-port=443 \
	--advertise-address=$NODE_IP --client-ca-file="$PKI/ca.crt" \
	--tls-cert-file="$PKI/apiserver.crt" --tls-private-key-file="$PKI/apiserver.key" \
	--service-account-issuer=https://kubernetes.default.svc --service-account-key-file="$PKI/service-account.pub" \
	--service-account-signing-key-file="$PKI/service-account.key" --service-cluster-ip-range=$SERVICE_CIDR \
	--authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction --allow-privileged=true \
	--enable-aggregator-routing=true --kubelet-preferred-address-types=InternalIP \
	--kubelet-client-certificate="$PKI/kubelet-client.crt" --kubelet-client-key="$PKI/kubelet-client.key" \
	--kubelet-certificate-authority="$PKI/ca.crt"

ready containerd 30 ctr version
for image in launcher pause; do ctr images import "$IMAGES/$image.tar" >/dev/null; done

# These two are in no registry, so the kubelet must not tidy up. Name look-ups would hang: there is nobody to ask.
echo "nameserver 127.0.0.1" >"$RUN/resolv.conf"
cat >"$RUN/kubelet.yaml" <<EOF
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
failSwapOn: false
cgroupDriver: cgroupfs
cgroupRoot: /$CGROUP
containerRuntimeEndpoint: unix://$CRI
address: $NODE_IP
healthzBindAddress: 127.0.0.1
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $PKI/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: $PKI/node.crt
tlsPrivateKeyFile: $PKI/node.key
resolvConf: $RUN/resolv.conf
clusterDNS: [${API_IP%.*}.10] # nobody; without it the kubelet says so in an event at each start
clusterDomain: cluster.local
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
evictionHard: {memory.available: 100Mi, nodefs.available: "1%", imagefs.available: "1%", nodefs.inodesFree: "1%"}
EOF
ready kube-apiserver 90 k get --raw /readyz
start kube-controller-manager "$BIN/kube-controller-manager" --kubeconfig="$PKI/controller-manager.kubeconfig" \
	--service-account-private-key-file="$PKI/service-account.key" --root-ca-file="$PKI/ca.crt" \
	--use-service-account-credentials=true --leader-elect=false --bind-address=127.0.0.1
start kube-scheduler "$BIN/kube-scheduler" --kubeconfig="$PKI/scheduler.kubeconfig" --leader-elect=false --bind-address=127.0.0.1
start kubelet "$BIN/kubelet" --config="$RUN/kubelet.yaml" --kubeconfig="$PKI/node.kubeconfig" --hostname-override=$NODE \
	--node-ip=$NODE_IP --node-labels=kubevirt.io/schedulable=true
ready kubelet 90 k wait --for=condition=Ready node/$NODE --timeout=2s
ready kube-controller-manager 60 k get serviceaccount default
ready registry 30 lab curl -sf http://$REGISTRY/v2/
ready dockerd 60 lab docker version
