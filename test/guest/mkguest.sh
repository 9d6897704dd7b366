#!/usr/bin/env bash
# Builds the test guest: a kernel and an initramfs that boot in seconds even without hardware virtualization, with the
# real qemu-ga in it. Everything comes from Debian's packages (unpacked, not installed) and from this folder.
#
# Usage: mkguest.sh OUTDIR      prints the folder, below OUTDIR, that holds vmlinuz and initrd.gz
#
# The folder is named after the content of what it was made from, so a second call finds it there and ends at once.
# Calls may run side by side: one builds, the others wait for it.
set -euo pipefail

fail() {
  echo "mkguest: error: $*" >&2
  exit 1
}

[[ $# == 1 && $1 != -* ]] || { echo "usage: mkguest.sh OUTDIR" >&2; exit 2; }
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=$(mkdir -p "$1" && cd "$1" && pwd) || fail "cannot make the folder $1"
for tool in go flock sha256sum cpio gzip xz; do
  command -v "$tool" >/dev/null || fail "$tool is not installed"
done

# What the guest needs from the kernel: virtio, the panic device, and AF_VSOCK that talks to itself (CID 1).
wanted=(virtio_pci virtio_console virtio_net virtio_blk pvpanic-mmio pvpanic-pci
  vsock_loopback vmw_vsock_virtio_transport)

key=$(
  { go env GOVERSION; cat "$here"/mkguest.sh "$here"/init "$here"/agent "$here"/guestd/*.go; } | sha256sum | cut -c1-16
)
if [[ -f $out/$key/initrd.gz ]]; then
  echo "$out/$key"
  exit 0
fi

exec 9>"$out/.lock"
flock 9
if [[ -f $out/$key/initrd.gz ]]; then # somebody else was quicker
  echo "$out/$key"
  exit 0
fi
find "$out" -mindepth 1 -maxdepth 1 -type d -mmin +60 -exec rm -rf {} + # former versions, and builds that were cut short
work=$(mktemp -d "$out/.build.XXXXXX")
trap 'rm -rf "$work"' EXIT
root=$work/root result=$work/result
mkdir -p "$work/debs" "$root"/{bin,sbin,etc,tmp,proc,sys,dev,run,var,lib/modules} "$result"

# packages NAME…: Debian's packages, unpacked into $work/unpacked
packages() {
  command -v apt-get >/dev/null || fail "no apt-get here to fetch Debian's packages with"
  (cd "$work/debs" && apt-get -o APT::Sandbox::User=root download -qq "$@") >"$work/apt.log" 2>&1 ||
    fail "apt-get download $*: $(tail -n 1 "$work/apt.log")"
  local deb
  for deb in "$work"/debs/*.deb; do
    dpkg -x "$deb" "$work/unpacked" || fail "cannot unpack ${deb##*/}"
  done
  rm -f "$work"/debs/*.deb
}

# one PATTERN…: the one file that exists
one() {
  local path
  for path; do
    if [[ -f $path ]]; then echo "$path"; return; fi
  done
  fail "none of these is in Debian's packages: ${*#"$work/unpacked"}"
}

kernel_package() {
  apt-cache depends linux-image-cloud-amd64 2>/dev/null | awk '/Depends: linux-image-/ {print $2; exit}'
}
kernel=$(kernel_package)
if [[ -z $kernel && $(id -u) == 0 ]]; then
  apt-get update -qq >"$work/apt.log" 2>&1 || fail "apt-get update: $(tail -n 1 "$work/apt.log")"
  kernel=$(kernel_package)
fi
[[ -n $kernel ]] || fail "apt knows no linux-image-cloud-amd64 (is this Debian on amd64? run apt-get update)"
echo "mkguest: building from $kernel" >&2
packages "$kernel" busybox-static

# The agent's libraries are taken from where this machine has them, so the agent itself must be installed too.
agent=$(PATH=$PATH:/usr/sbin command -v qemu-ga) || fail "qemu-ga is not installed (package qemu-guest-agent)"
cp -L "$agent" "$root/sbin/qemu-ga"
ldd "$agent" | grep -oE '/[^ ]+' | while read -r library; do
  mkdir -p "$root${library%/*}"
  cp -L "$library" "$root$library"
done

busybox=$(one "$work"/unpacked/{bin,usr/bin}/busybox)
cp "$busybox" "$root/bin/busybox"
for applet in $("$busybox" --list); do
  [[ $applet == busybox ]] || ln -s busybox "$root/bin/$applet"
done

(cd "$here/../.." && CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags '-s -w' -o "$root/sbin/guestd" ./test/guest/guestd) ||
  fail "cannot build guestd"
install -m 755 "$here/init" "$root/init"
install -m 755 "$here/agent" "$root/sbin/agent"

# Modules, numbered so that each comes after those it depends on. Some kernels have them compressed.
find "$work/unpacked" -name '*.ko.xz' -exec xz -d {} +
declare -A loaded=()
count=10
add_module() {
  local name=$1 file dependency
  if [[ -n ${loaded[${name//-/_}]:-} ]]; then return; fi
  loaded[${name//-/_}]=yes
  file=$(find "$work/unpacked" -name "${name//[-_]/[-_]}.ko" -print -quit)
  if [[ -z $file ]]; then return; fi # built in
  for dependency in $(grep -az '^depends=' "$file" | tr -d '\0' | sed 's/^depends=//; s/,/ /g'); do
    add_module "$dependency"
  done
  cp "$file" "$root/lib/modules/$count-$name.ko"
  count=$((count + 1))
}
for module in "${wanted[@]}"; do add_module "$module"; done
((count > 15)) || fail "$kernel has no virtio modules where they were looked for"

(cd "$root" && find . -print0 | LC_ALL=C sort -z | cpio --null -o -H newc -R 0:0 --quiet | gzip -1) >"$result/initrd.gz" ||
  fail "cannot pack the initramfs"
cp "$(one "$work"/unpacked/boot/vmlinuz-*)" "$result/vmlinuz"
rm -rf "${out:?}/$key"
mv "$result" "$out/$key"
echo "mkguest: $(du -sh "$out/$key" | cut -f1) in $out/$key" >&2
echo "$out/$key"
