#!/bin/bash
# Ends the cluster and removes what it wrote, also after a crash. Whoever is in our cgroups is ours; nobody else is touched.
# Built programs and images stay. The namespaces, and with them all mounts, go with their last process.
set -uo pipefail
. "$(dirname "$0")/env.sh"

members() { find "$1/$CGROUP" -name cgroup.procs -exec cat {} + 2>/dev/null; }
rescue() { # this script may have been started from inside, by up.sh
	if grep -qx $$ < <(members "$1"); then echo $$ >"$1/cgroup.procs"; fi
}
remove() { find "$1/$CGROUP" -depth -type d -exec rmdir {} + 2>/dev/null; }

each_controller rescue
for _ in $(seq 100); do
	pids=$(each_controller members | sort -u)
	[ -n "$pids" ] || break
	# shellcheck disable=SC2086 # a list
	kill -KILL $pids 2>/dev/null
	sleep 0.1
done
each_controller remove
if [ -n "${pids:-}" ]; then
	echo "down: these do not end: $pids" >&2
	exit 1
fi
if [ "${1:-}" = --keep-logs ] && ls "$RUN"/*.log >/dev/null 2>&1; then
	rm -rf "$LAB/logs"
	mkdir -p "$LAB/logs"
	cp -r "$RUN"/*.log "$RUN/log/pods" "$LAB/logs/" 2>/dev/null
	echo "the logs are in $LAB/logs"
fi
rm -rf --one-file-system "$RUN"
