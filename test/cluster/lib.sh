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
delete() { k -n $NS delete pod "virt-launcher-$1" --wait=false >/dev/null; }
