# shellcheck shell=bash
# What checks.sh is written in; sourced after env.sh.
NS=my-vms # where the VMs are that the functions speak of
PROBES=yes # whether the VMs that are created have probes of their own
SOCKET=/var/run/guestprobe/guestprobe.sock
passed=0
failed=0

# result WORD NAME SECONDS
result() { printf '%-4s  %-102s %6s s\n' "$1" "$2" "$3"; }
now() { date +%s.%N; }
since() { echo "$(now) - $1" | bc | xargs printf '%.1f'; }

# check NAME SECONDS CMD…: CMD must succeed within so many seconds; it is tried again until then.
check() {
	local name=$1 limit=$2 start
	shift 2
	start=$(now)
	until "$@" >"$RUN/check.log" 2>&1; do
		if (($(echo "$(since "$start") > $limit" | bc))); then
			result FAIL "$name" "$(since "$start")"
			sed 's/^/      /' "$RUN/check.log" | tail -n 8
			failed=$((failed + 1))
			return 0
		fi
		sleep 0.2
	done
	result ok "$name" "$(since "$start")"
	passed=$((passed + 1))
}

# holds NAME SECONDS CMD…: CMD must succeed all the time.
holds() {
	local name=$1 limit=$2 start
	shift 2
	start=$(now)
	while (($(echo "$(since "$start") < $limit" | bc))); do
		if ! "$@" >"$RUN/check.log" 2>&1; then
			result FAIL "$name" "$(since "$start")"
			sed 's/^/      /' "$RUN/check.log" | tail -n 8
			failed=$((failed + 1))
			return 0
		fi
		sleep 0.5
	done
	result ok "$name" "$(since "$start")"
	passed=$((passed + 1))
}

say() { printf '\n%s\n' "$*"; }

# A VM and its pod go by the VM's name here.
pod() { k -n $NS get pod "virt-launcher-$1" -o "jsonpath=$2"; }
field() { # VM JSONPATH VALUE
	local value
	value=$(pod "$1" "$2") || return 1
	echo "$2 is $value"
	[ "$value" = "$3" ]
}
condition() { field "$1" "{.status.conditions[?(@.type==\"$2\")].status}" "$3"; }
phase() { field "$1" '{.status.phase}' "$2"; }
sidecar() { echo "{.status.initContainerStatuses[?(@.name==\"guestprobe\")].$1}"; }
compute() { echo "{.status.containerStatuses[?(@.name==\"compute\")].$1}"; }

# in_guest VM COMMAND: a line of shell in the guest
in_guest() { k -n $NS exec "virt-launcher-$1" -c compute -- /launcher guest "$2"; }
virsh() { # VM COMMAND [ARG…]: by libvirt's own client, on the VM's domain
	local vm=$1 command=$2
	shift 2
	k -n $NS exec "virt-launcher-$vm" -c compute -- \
		virsh -q -c qemu:///session?socket=/var/run/libvirt/virtqemud-sock "$command" "${NS}_$vm" "$@"
}
domain_is() { [ "$(virsh "$1" domstate)" = "$2" ]; }

# says VM TEXT: the sidecar's own answer on readiness, which is a refusal, has TEXT in it
says() {
	local answer
	answer=$(k -n $NS exec "virt-launcher-$1" -c guestprobe -- /guestprobe check readyz --verbose --timeout 5s --socket $SOCKET 2>&1) && return 1
	echo "$answer"
	grep -q "$2" <<<"$answer"
}
events() { k -n $NS get events --field-selector "involvedObject.name=virt-launcher-$1" -o 'jsonpath={range .items[*]}{.reason}: {.message}{"\n"}{end}'; }
event() { events "$1" | tr '\n' ' ' | grep -E "$2"; } # an event's message has several lines

# liveness_failures VM: how often the kubelet has seen compute's liveness probe fail. The kubelet counts; its events it
# drops when a pod has had 25 of them.
liveness_failures() {
	k get --raw "/api/v1/nodes/$NODE/proxy/metrics/probes" | awk -v pod="pod=\"virt-launcher-$1\"" '
		/^prober_probe_total/ && index($0, pod) && /container="compute"/ && /probe_type="Liveness"/ {asked = 1}
		/^prober_probe_total/ && index($0, pod) && /container="compute"/ && /probe_type="Liveness"/ && /result="failed"/ {n = $NF}
		END {print asked ? n + 0 : "never asked"}'
}
liveness_failed() { [[ $(liveness_failures "$1") =~ ^[1-9] ]]; }
liveness_never_failed() { local n; n=$(liveness_failures "$1"); echo "failures: $n"; [ "$n" = 0 ]; }

# not_ready VM REASON: the kubelet has it from the sidecar, and the sidecar says why. KubeVirt's gate stays open
# meanwhile, so that this is not its doing.
not_ready() { condition "$1" Ready False && condition "$1" kubevirt.io/virtual-machine-unpaused True && says "$1" "$2"; }
ready() { condition "$1" Ready True; }

# main_pid VM CONTAINERSTATUS-JSONPATH: the container's first process, as this machine numbers it
main_pid() {
	local id
	id=$(pod "$1" "$2") || return 1
	ctr task ls | awk -v id="${id#containerd://}" '$1 == id {print $2}'
}
sidecar_pid() { main_pid "$1" "$(sidecar containerID)"; }

# fill FILE NAME UID PORTS: an object of objects/
fill() {
	local without=
	if [ $PROBES = no ]; then without='/# <probes/,/# probes>/d'; fi
	sed -e "$without" -e "s/@NAMESPACE@/$NS/g; s/@NAME@/$2/g; s/@UID@/$3/g; s/@PORTS@/$4/g; s|@GUEST@|$GUEST|g" "$HERE/objects/$1"
}

# create VM [PORT]: what the owner and virt-controller do
create() {
	local list=
	if [ -n "${2:-}" ]; then list="{port: $2}"; fi
	fill vmi.yaml "$1" - "$list" | k create -f - >/dev/null || return 1
	fill launcher-pod.yaml "$1" "$(k -n $NS get vmi "$1" -o 'jsonpath={.metadata.uid}')" "$list" | k create -f - >/dev/null
}

# schedulable VM: KubeVirt's condition for starting the guest (pkg/controller/controller.go:490-519, IsPodReady): compute
# runs, and each other regular container is ready. Native sidecars are not asked.
schedulable() {
	local states
	states=$(pod "$1" '{range .status.containerStatuses[*]}{.name}={.ready}{.state.running.startedAt}{"\n"}{end}')
	echo "$states"
	grep -q '^compute=.*Z$' <<<"$states" && ! grep -v '^compute=' <<<"$states" | grep -v '=true'
}

# hand_over VM [PORT]: what virt-handler and virt-controller do once that is so
hand_over() {
	"$HERE/network.sh" "$(main_pid "$1" "$(compute containerID)")" "${@:2}"
}
gate() { # VM STATUS REASON: the readiness gate, which virt-controller sets
	k -n $NS patch pod "virt-launcher-$1" --subresource=status --type=strategic -p \
		"{\"status\": {\"conditions\": [{\"type\": \"kubevirt.io/virtual-machine-unpaused\", \"status\": \"$2\", \"reason\": \"$3\"}]}}" >/dev/null
}

# virt_controller makes of each VirtualMachine what KubeVirt makes of it, once, and then keeps its conditions; it ends with
# its caller. $DESK/pod.yaml is the last pod as it was before the webhook.
virt_controller() {
	local vm
	set +e # a pod that is gone meanwhile has no condition
	trap - ERR
	while sleep 0.5; do
		for vm in $(k -n $NS get vm -o 'jsonpath={.items[*].metadata.name}'); do
			k -n $NS get vmi "$vm" >/dev/null 2>&1 || new_instance "$vm"
			condition_to vm "$vm"
			condition_to vmi "$vm"
		done
	done
}
condition_to() { # KIND NAME: the pod's Ready
	local status
	status=$(pod "$2" '{.status.conditions[?(@.type=="Ready")].status}')
	k -n $NS patch "$1" "$2" --subresource=status --type=merge \
		-p "{\"status\": {\"conditions\": [{\"type\": \"Ready\", \"status\": \"${status:-False}\"}]}}"
}
new_instance() { # VM
	local vmi ports
	k -n $NS get vm "$1" -o json | jq '{apiVersion, kind: "VirtualMachineInstance",
		metadata: {name: .metadata.name, namespace: .metadata.namespace,
			labels: .spec.template.metadata.labels, annotations: .spec.template.metadata.annotations,
			ownerReferences: [{apiVersion, kind, name: .metadata.name, uid: .metadata.uid, controller: true, blockOwnerDeletion: true}]},
		spec: .spec.template.spec}' | k create -f - || return 1
	vmi=$(k -n $NS get vmi "$1" -o json)
	ports=$(jq -r '[.spec.domain.devices.interfaces[0].ports[]?.port] | join(" ")' <<<"$vmi")
	# pkg/virt-controller/services/template.go: ten seconds are added to each probe, and one to the timeout of an exec
	PROBES=no fill launcher-pod.yaml "$1" "$(jq -r .metadata.uid <<<"$vmi")" "" | k create --dry-run=client -o json -f - |
		jq --argjson vmi "$vmi" --arg domain "${NS}_$1" '
			def rendered: if . == null then empty else .initialDelaySeconds += 10 | if .guestAgentPing then
				(.timeoutSeconds // 1) as $t | .timeoutSeconds = $t + 1 | del(.guestAgentPing) |
				.exec.command = ["virt-probe", "--domainName", $domain, "--timeoutSeconds", "\($t)", "--guestAgentPing"] else . end end;
			.metadata.labels += $vmi.metadata.labels | .metadata.annotations += $vmi.metadata.annotations |
			.spec.containers[0] += ({livenessProbe: ($vmi.spec.livenessProbe | rendered)} // {}) |
			.spec.containers[0] += ({readinessProbe: ($vmi.spec.readinessProbe | rendered)} // {})' >"$DESK/pod.yaml"
	if k get plugin guestprobe -o json >"$RUN/plugin.yaml"; then
		echo "$vmi" >"$RUN/vmi.yaml"
		k -n $NS create configmap "plugins-$1" --from-file="$RUN/plugin.yaml" --from-file="$RUN/vmi.yaml" || return 1
	fi
	k create -f "$DESK/pod.yaml" || return 1
	until schedulable "$1"; do sleep 0.2; done
	# shellcheck disable=SC2086 # a list
	hand_over "$1" $ports
	gate "$1" True NotPaused
}
# create_target VM [PORT]: the pod to which virt-controller has the VM migrate; here it is called VM-target
create_target() {
	local list=
	if [ -n "${2:-}" ]; then list="{port: $2}"; fi
	fill launcher-pod.yaml "$1" "$(k -n $NS get vmi "$1" -o 'jsonpath={.metadata.uid}')" "$list" |
		sed "s/^  name: virt-launcher-$1\$/&-target/; s#\[/launcher, run,#[/launcher, receive,#" | k create -f - >/dev/null
}
# libvirt_of VM: its libvirt's address on the node; a socket's path may not be as long as the kubelet's are
libvirt_of() {
	lab ln -sfn "/var/lib/kubelet/pods/$(pod "$1" '{.metadata.uid}')/volumes/kubernetes.io~empty-dir/libvirt-runtime" "/run/libvirt-$1"
	echo "qemu+unix:///session?socket=/run/libvirt-$1/virtqemud-sock"
}
# migrate VM TARGET: what the two virt-handlers have their libvirts do, by a client of both and without a proxy between
migrate() {
	lab virsh -q -c "$(libvirt_of "$1")" migrate --live "${NS}_$1" "$(libvirt_of "$2")" "tcp://$(pod "$2" '{.status.podIP}'):49152"
}

# sample VM TARGET: ten times a second the seconds and the statuses of /readyz of both sidecars and /livez of both; 000 is
# no answer.
sample() {
	local a b
	a=http://$(pod "$1" '{.status.podIP}'):9958 b=http://$(pod "$2" '{.status.podIP}'):9958
	# exec: whoever ends this by its id ends the loop
	exec nsenter --target "$(cat "$RUN/holder.pid")" --net --mount -- bash -c 'while sleep 0.05; do
		echo "$(date +%s.%N)" $(curl -s -o /dev/null -o /dev/null -o /dev/null -o /dev/null --max-time 0.5 -w "%{http_code} " \
			"$1/readyz" "$2/readyz" "$1/livez" "$2/livez")
	done' - "$a" "$b"
}
# sampled PATTERN N NAME: at least N samples begin with these statuses; with 0 none does
sampled() {
	local count
	count=$(grep -cE "^[0-9.]+ $1" "$RUN/migration.log" || true)
	if (($2 == 0 ? count == 0 : count >= $2)); then
		result ok "$3 ($count of $(wc -l <"$RUN/migration.log") samples)" 0.0
		passed=$((passed + 1))
	else
		result FAIL "$3 ($count of $(wc -l <"$RUN/migration.log") samples)" 0.0
		sed 's/^/      /' "$RUN/migration.log"
		failed=$((failed + 1))
	fi
}
gap() { awk '$2 == 200 {last = $1} $3 == 200 && !first {first = $1} END {printf "%.1f", first - last}' "$RUN/migration.log"; }
delete() { k -n $NS delete pod "virt-launcher-$1" --wait=false >/dev/null; }
