#!/bin/bash
# Gives a pod what KubeVirt's virt-handler gives it for the masquerade binding (KubeVirt d923fdb815,
# pkg/network/setup/netpod/masquerade/masquerade.go:113-268): a bridge with a tap device for QEMU, and nftables rules that
# hand the guest the pod's ports: those that are listed or, with none, all of them.
#
# usage: network.sh PID [PORT…]    PID is any process of the pod
set -euo pipefail
. "$(dirname "$0")/env.sh"
pid=$1
shift
inside() { nsenter --target "$pid" --net -- "$@"; }
match=
if (($#)); then match="tcp dport { $(IFS=,; echo "$*") }"; fi

inside sh -ec '
	ip link add k6t-eth0 type bridge
	ip address add 10.0.2.1/24 dev k6t-eth0
	ip link set k6t-eth0 up
	echo 1 >/proc/sys/net/ipv4/ip_forward
	echo 1 >/proc/sys/net/ipv4/conf/k6t-eth0/route_localnet'
inside nft -f - <<EOF
table ip nat {
	chain prerouting {
		type nat hook prerouting priority dstnat;
		iifname "eth0" $match counter dnat to 10.0.2.2
	}
	chain output {
		type nat hook output priority -100;
		ip daddr 127.0.0.1 $match counter dnat to 10.0.2.2
	}
	chain postrouting {
		type nat hook postrouting priority srcnat;
		ip saddr 10.0.2.2 oifname "eth0" counter masquerade
		ip saddr 127.0.0.1 oifname "k6t-eth0" counter snat to 10.0.2.1
	}
}
EOF
# The tap device comes last: the launcher waits for it.
inside sh -ec '
	ip tuntap add dev tap0 mode tap user 107 group 107
	ip link set tap0 master k6t-eth0 up'
