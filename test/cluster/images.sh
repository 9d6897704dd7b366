#!/bin/bash
# Makes the images that the cluster runs, each FROM scratch with one static binary, in the format of `docker save`: with tar
# and sha256sum alone, no daemon and no registry.
set -euo pipefail
. "$(dirname "$0")/env.sh"
mkdir -p "$IMAGES/bin"
cd "$ROOT"
for c in ./cmd/guestprobe ./cmd/guestprobe-injector ./test/cluster/launcher; do
	CGO_ENABLED=0 nice go build -trimpath -buildvcs=false -ldflags '-s -w' -o "$IMAGES/bin/" "$c"
done

# image NAME FILE USER ENTRYPOINT ROOT: ENTRYPOINT is a list in JSON, ROOT becomes the only layer.
image() {
	local work layer config
	work=$(mktemp -d)
	tar -C "$5" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf "$work/layer.tar" .
	layer=$(sha256sum "$work/layer.tar" | cut -d' ' -f1)
	cat >"$work/config.json" <<-EOF
		{"architecture": "amd64", "os": "linux", "created": "1970-01-01T00:00:00Z",
		 "config": {"User": "$3", "Entrypoint": $4, "Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin:/kubevirt"], "WorkingDir": "/"},
		 "rootfs": {"type": "layers", "diff_ids": ["sha256:$layer"]}}
	EOF
	config=$(sha256sum "$work/config.json" | cut -d' ' -f1)
	mv "$work/config.json" "$work/$config.json"
	echo "[{\"Config\": \"$config.json\", \"RepoTags\": [\"$1\"], \"Layers\": [\"layer.tar\"]}]" >"$work/manifest.json"
	tar -C "$work" -cf "$2" manifest.json "$config.json" layer.tar
	rm -rf "$work"
}

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir "$root"/{guestprobe,injector,launcher}
install -m 755 "$IMAGES/bin/guestprobe" "$root/guestprobe/"
image registry.example/guestprobe:v1 "$IMAGES/guestprobe.tar" 107:107 '["/guestprobe"]' "$root/guestprobe"
install -m 755 "$IMAGES/bin/guestprobe-injector" "$root/injector/"
image registry.example/guestprobe-injector:v1 "$IMAGES/guestprobe-injector.tar" 65532:65532 '["/guestprobe-injector"]' "$root/injector"

# The launcher finds libvirt and QEMU in the node's /usr, which its pods mount read-only.
r=$root/launcher
mkdir -p "$r"/{usr,etc,tmp,run,var/run,guest,kubevirt}
chmod 1777 "$r/tmp" "$r/run" "$r/var/run"
for d in bin sbin lib lib64; do ln -s "usr/$d" "$r/$d"; done
echo 'qemu:x:107:107::/tmp:/bin/false' >"$r/etc/passwd"
echo 'qemu:x:107:' >"$r/etc/group"
install -m 755 "$IMAGES/bin/launcher" "$r/"
ln -s ../launcher "$r/kubevirt/virt-probe"
image registry.example/launcher:v1 "$IMAGES/launcher.tar" 107:107 '["/launcher"]' "$r"

# What holds a pod's namespaces.
image registry.example/pause:v1 "$IMAGES/pause.tar" 65535:65535 '["/launcher", "wait"]' "$r"
