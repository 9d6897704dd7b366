#!/bin/bash
# What must hold in a cluster, shown one by one with the time it took. Needs up.sh before it. VM a lists its port, so that
# the kubelet asks the sidecar by httpGet; VM b does not, so that all its pod's ports are the guest's; c has no probes of its
# own; d and e meet an injector that does not answer, or is not there. The numbers are those of the list in README.md.
set -euo pipefail
. "$(dirname "$0")/env.sh"
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/page.sh"
GUEST=${1:?the folder with the kernel and the initramfs}
trap 'echo "checks: line $LINENO failed: $BASH_COMMAND" >&2' ERR
# shellcheck disable=SC2086 # each may be missing
trap 'kill ${crasher:-} ${controller:-} ${sampler:-} 2>/dev/null || true' EXIT

# Who is in our cgroup ends with the cluster, whatever it waits for: also what this script has started, if it is interrupted.
enter() { echo $$ >"$1/$CGROUP/daemons/cgroup.procs"; }
each_controller enter

say "docs/install.md, command by command: the images and the installation"
"$HERE/crds.sh" | k create -f - >/dev/null
k create namespace $NS >/dev/null
open_desk
follow Needs
create my-vm 1500 # a VM that runs already
follow Install 3
trusted() { # N: each of the N webhooks knows the injector's authority
	[ "$(k get mutatingwebhookconfiguration guestprobe-injector -o json | jq '[.webhooks[].clientConfig.caBundle | select(length > 0)] | length')" = "$1" ]
}
check "injector: its own authority is in the webhook's configuration" 60 trusted 1
check "VM my-vm, made before the namespace is labelled: its guest may start" 60 schedulable my-vm
hand_over my-vm 1500
gate my-vm True NotPaused
check "... it gets Ready, by the kubelet's own probe" 120 ready my-vm
follow Install 1
check "... it is left alone" 1 field my-vm '{.spec.initContainers[*].name}' guest-console-log
follow Install
migrating=$(k -n $NS get vmim -o 'jsonpath={.items[*].spec.vmiName}')
create_target "$migrating" 1500
check "... the pod to which it migrates has the sidecar" 5 \
	field "$migrating-target" '{.spec.initContainers[*].name}' 'guest-console-log guestprobe'
check "... its libvirt can be handed the VM" 60 schedulable "$migrating-target"
hand_over "$migrating-target" 1500
gate "$migrating-target" True NotPaused
check "... libvirt migrates the VM" 60 migrate "$migrating" "$migrating-target"
check "... Ready, by the sidecar's word" 20 ready "$migrating-target"
delete "$migrating-target"
# KubeVirt's own schema, and with --validate=strict nothing that it does not know
refused_typo() {
	local answer
	answer=$(sed "s/^metadata:/&\n  namespace: $NS/; s/failureThreshold: 6/failureTreshold: 6/" "$1" |
		k apply --dry-run=server --validate=strict -f - 2>&1) && return 1
	echo "$answer"
	grep 'unknown field "spec.template.spec.livenessProbe.failureTreshold"' <<<"$answer"
}
accepted() { sed "s/^metadata:/&\n  namespace: $NS/" "$1" | k apply --dry-run=server --validate=strict -f -; }
for example in "$ROOT"/manifests/examples/*.yaml; do
	if grep -q '^kind: VirtualMachine$' "$example"; then
		check "example ${example##*/}: KubeVirt's schema takes it" 1 accepted "$example"
	fi
done
check "... and a typo in one of them it refuses" 1 refused_typo "$ROOT/manifests/examples/cloud-init-agent.yaml"

say "docs/install.md: the first Ready VM, a VirtualMachine whose KubeVirt is this script"
virt_controller >"$RUN/virt-controller.log" 2>&1 &
controller=$!
follow "The first Ready VM" 4
check "... it has a line per component" 1 answered '^\[+\]readinessProbe ok'
follow "The first Ready VM" 1
check "... it has a record of the transition" 1 answered '"msg":"verdict","reason":"Ready"'
follow "The first Ready VM" 1
check "... it tells who asks what" 1 answered '^readiness: httpGet :9958/readyz; liveness: compute asks the sidecar; binding: masquerade'
follow "The first Ready VM" 2
check "... it is a manifest, with the annotation's startup probe" 1 answered '^  startupProbe:'
follow "The first Ready VM"
added() { jq -S '.spec.initContainers[] | select(.name == "guestprobe") | {image, args, env, resources}'; } # of a pod
same_offline() {
	local live
	live=$(k -n $NS get pod virt-launcher-cloud-init-agent -o json | added)
	echo "$live"
	[ -n "$live" ] && [ "$(guestprobe-injector patch -f pod.yaml --vmi vmi.yaml --image registry.example/guestprobe:v1 -o json | added)" = "$live" ]
}
check "guestprobe-injector patch adds what the webhook added" 1 same_offline
follow "When something fails" 1
told() { k -n $NS exec "virt-launcher-$1" -c guestprobe -- /guestprobe check readyz --verbose --timeout 5s --socket $SOCKET | grep "$2"; }
check "... held: Maintenance; the last state stays, Ready" 20 told cloud-init-agent 'Maintenance: probing is held until'
follow "When something fails"
released() { ! told "$1" Maintenance && told "$1" 'readyz check passed'; }
check "... released" 20 released cloud-init-agent

say "docs/install.md: monitoring, direct access"
follow Monitoring
follow "Direct access"
check "direct access: the authority is in both webhooks" 60 trusted 2
k -n $NS apply -f "$ROOT/manifests/examples/direct-access.yaml" >/dev/null
check "VM direct-access: Ready" 120 ready direct-access
direct() { # MONITOR AGENT: which of the two goes through libvirt
	local status
	status=$(lab curl -sf --max-time 5 "http://$(pod direct-access '{.status.podIP}'):9958/status" | jq -c '[.vm.fallback // false, .agent.fallback // false]')
	echo "$status"
	[ "$status" = "[$1,$2]" ]
}
check "... its sidecar has a monitor and an agent channel of its own" 1 direct false false
daemon_of() { pgrep -x libvirtd | while read -r p; do if grep -qs "$(pod "$1" '{.metadata.uid}')" "/proc/$p/cgroup"; then echo "$p"; fi; done; }
libvirtd=$(daemon_of direct-access)
kill -STOP "$libvirtd"
holds "... Ready for 15 s in which its libvirt hangs" 15 ready direct-access
kill -CONT "$libvirtd"
in_guest direct-access "agent kill org.guestprobe.agent.0"
check "... the second agent ends: libvirt's is asked instead" 30 direct false true
holds "... and the VM stays Ready" 12 ready direct-access
in_guest direct-access "agent start org.guestprobe.agent.0"
check "... it is back: direct again" 60 direct false false
k -n $NS delete vm direct-access --wait=false >/dev/null
for overlay in cert-manager full openshift; do
	mkdir -p "$DESK/$overlay"
	echo "resources: [../manifests/overlays/$overlay]" >"$DESK/$overlay/kustomization.yaml"
	check "overlays/$overlay: the API server takes it, with the schemas of its makers" 10 \
		kubectl apply --dry-run=server --validate=strict -k $overlay
done
kill "$controller"
k -n $NS delete vm cloud-init-agent --wait=false >/dev/null

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

say "VM m: live migration, from a pod with the sidecar to another (meanwhile VM a's sidecar still crashes)"
create m 1500
check "14 the guest is started" 60 schedulable m
hand_over m 1500
gate m True NotPaused
check "14 Ready when the guest answers" 120 ready m
create_target m 1500
check "14 the target pod is injected as well, and asked by httpGet" 5 \
	field m-target '{.spec.initContainers[-1:].readinessProbe.httpGet.port}' 9958
check "14 no deadlock: the target's libvirt can be handed the VM" 60 schedulable m-target
hand_over m-target 1500
gate m-target True NotPaused
check "14 the target is not Ready: NoDomain" 20 not_ready m-target NoDomain
boot=$(in_guest m 'cat /proc/sys/kernel/random/boot_id')
sample m m-target >"$RUN/migration.log" &
sampler=$!
sleep 1
check "14 libvirt migrates the VM" 60 migrate m m-target
check "14 the target pod is Ready" 10 ready m-target
same_boot() { [ "$(in_guest m-target 'cat /proc/sys/kernel/random/boot_id')" = "$boot" ]; }
check "14 it is the same guest: it has not booted again" 10 same_boot
check "14 the source pod has completed" 30 phase m Succeeded
sleep 1 # for more samples of the target alone
kill "$sampler"
wait "$sampler" 2>/dev/null || true
sampled '200 200' 0 "14 at 10 Hz, of both sidecars: never are both ready"
sampled '... ... (503|... 503)' 0 "14 ... and liveness fails on neither"
sampled '200 503' 1 "14 ... the source was ready before"
sampled '(000|503) 200' 1 "14 ... and the target after"
result "" "   between the last moment that the source was ready and the first that the target was" "$(gap)"
delete m-target

say "VM c: no probes of its own, the namespace's defaults (manifests/examples/namespace-defaults.yaml)"
follow Probes
manifest_has() { pod "$1" '{.metadata.annotations.guestprobe\.dev/manifest}' | grep "$2"; }
only_injected() { [ "$(k -n $NS get pod -l guestprobe.dev/injected=true -o name)" = "pod/$1" ]; }
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
waits() { # for direct access the folder of QEMU's sockets has to be there, which the sidecar's mount makes
	local answer
	answer=$(jq '.metadata |= (.name = "waits" | .annotations["guestprobe.dev/access"] = "direct")' "$DESK/pod.yaml" |
		k -n $NS create --dry-run=server -f - 2>&1) && return 1
	echo "$answer"
	grep -q 'failed calling webhook "direct.guestprobe.dev"' <<<"$answer"
}
check "12 ... but a VM that asked for direct access waits for an injector" 10 waits
delete e

say "Uninstall (docs/install.md), and the end"
follow Uninstall
check "   the last one lists VM a" 1 answered '^my-vms .*virt-launcher-a '
holds "   uninstalled: VM a goes on, Ready, with its sidecar" 10 ready a
powered_off=$(now)
k -n $NS exec virt-launcher-a -c compute -- /launcher guest-send "poweroff -f"
check "11 the guest powers off: the pod completes, Succeeded (its grace would be 60 s)" 30 phase a Succeeded
result "" "   from the power button to the completed pod" "$(since "$powered_off")"

check "each command of docs/install.md has been run, but for:" 5 all_followed
printf '          %s\n' "${elsewhere[@]}"

say "$passed checks passed, $failed failed"
((failed == 0))
