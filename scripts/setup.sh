#!/usr/bin/env bash
# Installs the Debian packages that the tests with real peers need. It installs only what is missing, and only as root
# with apt-get; otherwise it names what is missing, and those tests are skipped. Under CI=true a missing package fails.
set -euo pipefail

missing=()

# need PACKAGE PATH…: the package is missing unless one of the paths exists.
need() {
  local package=$1 path
  shift
  for path; do
    if [[ -e $path ]]; then return; fi
  done
  missing+=("$package")
}

# find COMMAND: its path, or one that does not exist.
find_command() { command -v "$1" 2>/dev/null || PATH=$PATH:/usr/sbin:/sbin command -v "$1" 2>/dev/null || echo "/nonexistent/$1"; }

check() {
  missing=()
  need gcc "$(find_command gcc)"                              # -race
  need libc6-dev /usr/include/stdlib.h                        # -race
  need qemu-system-x86 "$(find_command qemu-system-x86_64)"   # the real VM
  need qemu-utils "$(find_command qemu-img)"                  # disks that fail on demand
  need qemu-guest-agent "$(find_command qemu-ga)"             # the real agent, in the guest and beside it
  need libvirt-daemon "$(find_command libvirtd)"              # a private libvirt
  need libvirt-daemon-driver-qemu /usr/lib/*/libvirt/connection-driver/libvirt_driver_qemu.so
  need libvirt-clients "$(find_command virsh)"
  need systemd "$(find_command systemd-socket-activate)"      # the units and socket activation; it need not run
  need strace "$(find_command strace)"                        # whether the unit allows what the daemon does
  need cpio "$(find_command cpio)"                            # the guest's initramfs
  # Only CI installs a container engine and Prometheus' test of alerts unasked.
  if [[ ${CI:-} == true ]]; then
    need docker.io "$(find_command dockerd)"
    need prometheus "$(find_command promtool)"
  fi
}

check
if ((${#missing[@]} == 0)); then exit 0; fi

if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
  echo "setup: installing ${missing[*]}"
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  export DEBIAN_FRONTEND=noninteractive
  if ! { apt-get update && apt-get install -y --no-install-recommends -o DPkg::Lock::Timeout=300 "${missing[@]}"; } >"$log" 2>&1; then
    echo "setup: apt-get failed, its last lines:" >&2
    tail -n 15 "$log" >&2
  fi
  check
  if ((${#missing[@]} == 0)); then exit 0; fi
fi

{
  echo "setup: NOT HERE: ${missing[*]}"
  echo "setup: tests that need them will be SKIPPED. On Debian: apt-get install ${missing[*]}"
} >&2
if [[ ${CI:-} == true ]]; then exit 1; fi
