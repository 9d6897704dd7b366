#!/bin/bash
# What must hold in a cluster, shown one by one with the time it took. Needs up.sh before it. VM a lists its port, so that
# the kubelet asks the sidecar by httpGet; VM b does not, so that all its pod's ports are the guest's; c has no probes of its
# own; d and e meet an injector that does not answer, or is not there. The numbers are those of the list in README.md.
set -euo pipefail
. "$(dirname "$0")/env.sh"
. "$(dirname "$0")/lib.sh"
GUEST=${1:?the folder with the kernel and the initramfs}
trap 'echo "checks: line $LINENO failed: $BASH_COMMAND" >&2' ERR
# shellcheck disable=SC2086 # both may be missing
trap 'kill ${crasher:-} ${forward:-} 2>/dev/null || true' EXIT

say "Install (docs/install.md)"
k apply -f "$HERE/objects/virtualmachineinstances.yaml" >/dev/null
sed -e 's#guestprobe:dev#registry.example/guestprobe:v1#' \
	-e 's#guestprobe-injector:dev#registry.example/guestprobe-injector:v1#' "$ROOT/manifests/guestprobe.yaml" >"$RUN/guestprobe.yaml"
k apply -f "$RUN/guestprobe.yaml" >/dev/null
mkdir -p "$RUN/collector"
cat >"$RUN/collector/kustomization.yaml" <<EOF
components: ["$(realpath --relative-to="$RUN/collector" "$ROOT/manifests/components/collector")"]
images: [{name: guestprobe, newName: registry.example/guestprobe, newTag: v1}]
EOF
k apply -k "$RUN/collector" >/dev/null
k create namespace $NS >/dev/null
k label namespace $NS guestprobe.dev/inject=enabled >/dev/null
check "injector: two replicas are available" 120 \
	k -n guestprobe-system rollout status deployment guestprobe-injector --timeout=1s
trusted() { [ -n "$(k get mutatingwebhookconfiguration guestprobe-injector -o 'jsonpath={.webhooks[0].clientConfig.caBundle}')" ]; }
check "injector: its own authority is in the webhook's configuration" 60 trusted
check "collector: a pod is available on each node that runs VMs" 60 \
	k -n guestprobe-collector rollout status daemonset guestprobe-collector --timeout=1s

say "VM a: masquerade, ports: [1500]"
create a 1500
check "1  injected: the sidecar is the last init container, with restartPolicy Always" 5 \
	field a '{.spec.initContainers[*].name}/{.spec.initContainers[-1:].restartPolicy}' 'guest-console-log guestprobe/Always'
check "1  compute is containers[0], and the only one" 1 field a '{.spec.containers[*].name}' compute
check "1  the kubelet asks the sidecar by httpGet, and compute no longer has a readinessProbe" 1 \
	field a '{.spec.initContainers[-1:].readinessProbe.httpGet.port}/{.spec.containers[0].readinessProbe}' 9958/
check "1  compute's livenessProbe asks the sidecar, and fails only on its word" 1 \
	field a '{.spec.containers[0].livenessProbe.exec.command}' \
	"[\"/var/run/guestprobe/guestprobe\",\"check\",\"livez\",\"--socket\",\"$SOCKET\",\"--fail-open\"]"
check "2  no deadlock: KubeVirt would start the guest, as compute runs and no regular container is unready" 60 schedulable a
check "2  ... while the sidecar runs and is not ready: NoDomain or Starting" 10 says a 'NoDomain\|Starting\|MonitorUnreachable'
hand_over a 1500
check "2  the guest starts" 60 domain_is a running
gate a True NotPaused
check "3  not Ready while the guest boots, with the reason" 5 not_ready a 'AgentNotConnected\|ProbeFailed'
check "3  Ready when the guest answers (a boot takes 8 s of a quiet core)" 90 ready a
check "3  the binary for compute's liveness probe is there and says ok" 10 \
	k -n $NS exec virt-launcher-a -c compute -- /var/run/guestprobe/guestprobe check livez --socket $SOCKET --fail-open
in_guest a "agent stop"
check "4  the agent hangs (SIGSTOP): not Ready, AgentTimeout" 30 not_ready a AgentTimeout
check "4  ... and the kubelet's event says so" 10 event a 'Unhealthy: Readiness probe failed: HTTP probe failed with statuscode: 503'
in_guest a "agent cont"
check "4  the agent goes on: Ready" 30 ready a
in_guest a "agent kill"
check "4  the agent ends: not Ready, AgentNotConnected" 30 not_ready a AgentNotConnected
in_guest a "agent start"
check "4  the agent starts: Ready" 30 ready a
virsh a suspend
check "5  the VM is paused: not Ready, Paused (KubeVirt's gate is kept open meanwhile)" 20 not_ready a Paused
virsh a resume
check "5  the VM goes on: Ready" 20 ready a
in_guest a "echo 500 >/run/guestd.code"
check "6  the web server answers 500: not Ready, ProbeFailed" 20 not_ready a 'ProbeFailed.*500'
in_guest a "echo 200 >/run/guestd.code"
check "6  the web server answers 200: Ready" 20 ready a

# metrics: what Prometheus would get from the node's collector
metrics() {
	local ip
	ip=$(k -n guestprobe-collector get pod -l app.kubernetes.io/name=guestprobe-collector -o 'jsonpath={.items[0].status.podIP}')
	lab curl -sf --max-time 5 "http://$ip:9959/metrics"
}
scrape() { metrics | grep -E "$1"; }
series() { echo "^$1\\{.*name=\"$2\",namespace=\"$NS\",node=\"$NODE\".*\\} $3$"; }
check "13 the collector's scrape shows VM a, ready" 30 scrape "$(series guestprobe_ready a 1)"

before=$(pod a "$(compute containerID)")
restarts=$(pod a "$(sidecar restartCount)")
kill -KILL "$(sidecar_pid a)"
killed=$(now)
back() { # VM RESTARTS: the sidecar runs again, is ready, and so is the pod
	field "$1" "$(sidecar restartCount)/$(sidecar ready)/{.status.conditions[?(@.type==\"Ready\")].status}" "$2/true/True"
}
check "8  kill -9 of the sidecar: the kubelet restarts it" 30 field a "$(sidecar restartCount)" $((restarts + 1))
# A period of the readiness probe is 2 s; the other second is this machine's.
check "8  ... and within a period the sidecar and the pod are Ready again" 3 back a $((restarts + 1))
result "" "   from the kill to Ready" "$(since "$killed")"
check "8  compute was not touched: the same container, 0 restarts" 1 \
	field a "$(compute containerID)/{.status.containerStatuses[0].restartCount}" "$before/0"

# crash ends VM a's sidecar as soon as it is there, four times: with the kubelet's back-off, 10 + 20 + 40 + 80 seconds. Of
# each it notes how long the sidecar was away, and what the pod was meanwhile.
crash() {
	local pid start state
	pid=$(sidecar_pid a)
	for _ in 1 2 3 4; do
		kill -KILL "$pid"
		start=$(now)
		sleep 5
		state=$(pod a '{.status.phase}/{.status.conditions[?(@.type=="Ready")].status}')
		until pid=$(sidecar_pid a) && [ -n "$pid" ] && kill -0 "$pid" 2>/dev/null; do sleep 0.3; done
		echo "$state, away for $(since "$start") s"
	done
}
crash_start=$(now)
restarts=$(pod a "$(sidecar restartCount)")
crash >"$RUN/crash.log" &
crasher=$!

say "VM b: masquerade, no ports: all are the guest's (meanwhile VM a's sidecar crashes, again and again)"
create b
check "7  injected; the kubelet asks by exec over the unix socket" 5 \
	field b '{.spec.initContainers[-1:].readinessProbe.exec.command[2]}' readyz
check "7  no deadlock" 60 schedulable b
check "7  the kubelet's event has the reason" 20 event b 'Unhealthy: Readiness probe failed:.*\[-\](vm|readinessProbe) failed: (NoDomain|Starting)'
hand_over b
check "7  the guest starts" 60 domain_is b running
gate b True NotPaused
check "7  Ready when the guest answers" 120 ready b
podip() { pod b '{.status.podIP}'; }
reaches() { lab curl -sf --max-time 2 "http://$(podip):1500/healthz" | grep -q 'code 200'; }
check "7  from outside the pod's port 1500 is the guest's" 10 reaches
refused() { ! lab curl -s --max-time 2 "http://$(podip):9958/readyz"; }
check "7  ... and so is 9958: an httpGet of the kubelet would ask the guest" 5 refused
in_guest b "echo 500 >/run/guestd.code"
check "7  true to the guest: 500 makes it not Ready, ProbeFailed" 30 not_ready b 'ProbeFailed.*500'
in_guest b "echo 200 >/run/guestd.code"
check "7  true to the guest: 200 makes it Ready" 30 ready b
check "13 the collector's scrape shows VM b too, whose address is the guest's" 30 scrape "$(series guestprobe_ready b 1)"

panicked=$(now)
k -n $NS exec virt-launcher-b -c compute -- /launcher guest-send "echo c >/proc/sysrq-trigger"
check "10 the guest panics: not Ready, GuestPanicked" 20 not_ready b GuestPanicked
check "10 compute's liveness probe fails on the sidecar's word" 15 liveness_failed b
check "10 ... three times, then the kubelet ends compute, and the pod fails" 60 phase b Failed
result "" "   from the panic to the failed pod (3 periods of 10 s, and the end of the guest)" "$(since "$panicked")"
dropped() {
	local all
	all=$(metrics) && [ -n "$all" ] && ! grep "name=\"$1\"" <<<"$all"
}
check "13 the collector drops the VM that is gone" 60 dropped b

say "VM c: no probes of its own, the namespace's defaults (manifests/examples/namespace-defaults.yaml)"
k apply -f "$ROOT/manifests/examples/namespace-defaults.yaml" >/dev/null
manifest_has() { pod "$1" '{.metadata.annotations.guestprobe\.dev/manifest}' | grep "$2"; }
only_injected() { [ "$(k -n $NS get pod -l guestprobe.dev/injected=true -o name)" = "pod/$1" ]; }
told() {
	k -n $NS exec virt-launcher-c -c guestprobe -- /guestprobe check readyz --socket $SOCKET --verbose | grep -e "$1"
}
logged() { k -n $NS logs virt-launcher-c -c guestprobe | grep -e "$1"; }
forwarded() { lab curl -sf --max-time 5 http://127.0.0.1:9959/metrics | grep -e "$1"; }
NS=vms
PROBES=no
create c
check "   injected, with the defaults' startup probe" 5 \
	manifest_has c startupProbe
check "   no deadlock: the startup probe is the sidecar's, and holds no container up" 60 schedulable c
hand_over c
check "   the guest starts" 60 domain_is c running
gate c True NotPaused
check "   Ready when the agent answers" 120 ready c
check "   kubectl get pod -l guestprobe.dev/injected=true finds it, and no other" 1 only_injected virt-launcher-c
check "   its annotation tells who asks what" 1 field c '{.metadata.annotations.guestprobe\.dev/status}' \
	'readiness: exec; liveness: none; binding: masquerade; guest: 10.0.2.2; access: libvirt'
check "   check readyz --verbose has a line per component" 5 told '\[+\]readinessProbe ok'
check "   the log has a record of the transition" 5 logged '"reason":"Ready"'
sidecar_c() { k -n $NS exec virt-launcher-c -c guestprobe -- /guestprobe "$@" >/dev/null; }
check "   hold --for 1h, without a shell in the image" 5 sidecar_c hold --hold-file /var/run/guestprobe/hold --for 1h
check "   ... Maintenance; the last state stays" 20 told 'Maintenance: probing is held until'
check "   hold --release" 5 sidecar_c hold --hold-file /var/run/guestprobe/hold --release
check "   ... Ready" 30 ready c
lab "$BIN/kubectl" -n guestprobe-collector port-forward daemonset/guestprobe-collector 9959 >"$RUN/port-forward.log" 2>&1 &
forward=$!
check "   the collector answers by kubectl port-forward" 20 forwarded 'guestprobe_ready.*name="c",namespace="vms"'
kill "$forward"
delete c
NS=my-vms
PROBES=yes

say "VM a: what its sidecar's crashes did"
wait "$crasher"
sed 's/^/      /' "$RUN/crash.log"
four() { [ "$(grep -c '^Running/False' "$RUN/crash.log")" = 4 ]; }
check "9  four crashes in a row, with the kubelet's back-off: the pod runs on, not Ready" 1 four
check "9  ... and within a period after the last the sidecar and the pod are Ready again" 3 back a $((restarts + 4))
result "" "   so for this long it was there for moments only" "$(since "$crash_start")"
check "9  compute was not touched: the same container, 0 restarts" 1 \
	field a "$(compute containerID)/{.status.containerStatuses[0].restartCount}" "$before/0"
check "9  compute's liveness probe, every 10 s, has never failed" 1 liveness_never_failed a

say "The injector does not answer, or is not there"
injectors() { ctr task ls | awk '{print $2}' | while read -r pid; do
	if [ "$(readlink "/proc/$pid/exe" 2>/dev/null)" = /guestprobe-injector ]; then echo "$pid"; fi
done; }
# shellcheck disable=SC2046 # a list
kill -STOP $(injectors)
check "12 both injectors hang: KubeVirt's pod is made all the same, after the webhook's 5 s" 8 create d 1500
# shellcheck disable=SC2046
kill -CONT $(injectors)
check "12 ... as KubeVirt made it: no sidecar, compute's own probes" 2 \
	field d '{.spec.initContainers[*].name}/{.spec.containers[0].readinessProbe.httpGet.port}/{.spec.containers[0].livenessProbe.exec.command[0]}' \
	guest-console-log/1500/virt-probe
check "12 ... and its VM starts" 60 schedulable d
hand_over d 1500
gate d True NotPaused
check "12 ... and gets Ready, by the kubelet's own probe" 120 ready d
delete d
k -n guestprobe-system scale deployment guestprobe-injector --replicas=0 >/dev/null
none() { [ -z "$(k -n guestprobe-system get pods -o name)" ]; }
check "12 no injector is left" 60 none
check "12 without one the pod is made at once" 3 create e 1500
check "12 ... and starts, without the sidecar" 60 schedulable e
delete e

say "Uninstall (docs/install.md), and the end"
k delete -f "$RUN/guestprobe.yaml" --timeout=60s >/dev/null
holds "   uninstalled: VM a goes on, Ready, with its sidecar" 10 ready a
powered_off=$(now)
k -n $NS exec virt-launcher-a -c compute -- /launcher guest-send "poweroff -f"
check "11 the guest powers off: the pod completes, Succeeded (its grace would be 60 s)" 30 phase a Succeeded
result "" "   from the power button to the completed pod" "$(since "$powered_off")"

say "$passed checks passed, $failed failed"
((failed == 0))
