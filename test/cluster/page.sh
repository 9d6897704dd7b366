# shellcheck shell=bash
# Runs the commands of docs/install.md, as they stand there, in the order of each section; sourced after lib.sh. They run in
# a folder that has what the page's reader has, the checkout's manifests, and they reach the cluster's kubectl and docker.
PAGE=$ROOT/docs/install.md
declare -A followed_in=()
followed=0

at_desk() { nsenter --target "$(cat "$RUN/holder.pid")" --net --mount --wdns="$DESK" -- "$@"; }
kubectl() { at_desk timeout 180 "$BIN/kubectl" "$@"; } # none may take longer
docker() { at_desk docker "$@"; }
make() { at_desk make --no-print-directory -C "$ROOT" "$@"; }
guestprobe-injector() { (cd "$DESK" && "$ROOT/bin/guestprobe-injector" "$@"); }

open_desk() {
	mkdir -p "$DESK"
	cp -r "$ROOT/manifests" "$DESK/"
}

# commands [SECTION]: the commands in the fences without a language of the page or of one section, each ended by a NUL
commands() {
	awk -v section="${1:-}" '
		/^## / {here = section == "" || $0 == "## " section}
		/^```/ {shell = !fence && $0 == "```"; fence = !fence; next}
		!(shell && here) {next}
		{command = command (command == "" ? "" : "\n") $0}
		/<<.EOF.$/ {document = 1}
		$0 == "EOF" {document = 0}
		!document && !/\\$/ {printf "%s%c", command, 0; command = ""}' "$PAGE"
}

# follow SECTION [N]: the section's next N commands, or the rest of them. Each has to succeed at once, for the next build on
# it: a failure ends the whole run.
follow() {
	local section=$1 list from count command start word output
	mapfile -d '' list < <(commands "$section")
	from=${followed_in[$section]:-0}
	count=${2:-$((${#list[@]} - from))}
	followed_in[$section]=$((from + count))
	for command in "${list[@]:from:count}"; do
		start=$(now)
		word=ok
		# Not in a subshell: a later command uses the variables of an earlier one.
		pushd "$DESK" >/dev/null
		eval "$command" >"$RUN/command.log" 2>&1 || word=FAIL
		popd >/dev/null
		followed=$((followed + 1))
		result $word "\$ $(head -n 1 <<<"$command" | cut -c 1-100)" "$(since "$start")"
		output=$(tr -d '\r' <"$RUN/command.log" | cut -c 1-140)
		if [ -n "$output" ]; then { [ $word = ok ] && head -n 4 || tail -n 12; } <<<"$output" | sed 's/^/      /'; fi
		[ $word = ok ]
		passed=$((passed + 1))
	done
}
answered() { grep -e "$1" "$RUN/command.log"; } # by the last command

# Of the page's commands in running text these have no place here.
elsewhere=(
	'make test-cluster: it is this'
	'systemctl enable --now guestprobe-agent: the guest here has no systemd; test/direct runs the unit'\''s command in it'
)
all_followed() {
	local all inline command
	all=$(commands | tr -cd '\0' | wc -c)
	echo "$followed of $all commands have run"
	((followed == all)) || return 1
	guestprobe-injector serve --help | grep -e -memory-limit || return 1
	inline=$(grep -oE '`(kubectl|virtctl|make|docker|systemctl|guestprobe|guestprobe-injector) [^`]+`' "$PAGE" | tr -d '`')
	# what of the one is not in the other
	diff <(printf '%s\n' 'guestprobe-injector serve --help' "${elsewhere[@]%%: *}" | sort) <(sort -u <<<"$inline")
}
