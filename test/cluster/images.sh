#!/bin/bash
# Makes the stand-in's images, each FROM scratch with one static binary, in the format of `docker save`. Guestprobe's own are
# made, pushed and pulled as docs/install.md has it.
set -euo pipefail
. "$(dirname "$0")/env.sh"
mkdir -p "$IMAGES/bin"
cd "$ROOT"
CGO_ENABLED=0 nice go build -trimpath -buildvcs=false -ldflags '-s -w' -o "$IMAGES/bin/" ./test/cluster/launcher
(cd test/direct/hook && CGO_ENABLED=0 nice go build -trimpath -buildvcs=false -ldflags '-s -w' -o "$IMAGES/bin/" .)

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

# The launcher finds libvirt and QEMU in the node's /usr, which its pods mount read-only.
r=$root
mkdir -p "$r"/{usr,etc,tmp,run,var/run,guest,kubevirt,plugins}
chmod 1777 "$r/tmp" "$r/run" "$r/var/run"
for d in bin sbin lib lib64; do ln -s "usr/$d" "$r/$d"; done
printf '%s\n' 'root:x:0:0::/:/bin/false' 'qemu:x:107:107::/tmp:/bin/false' >"$r/etc/passwd"
printf '%s\n' 'root:x:0:' 'qemu:x:107:' >"$r/etc/group"
install -m 755 "$IMAGES/bin/launcher" "$IMAGES/bin/hook" "$r/"
ln -s ../launcher "$r/kubevirt/virt-probe"
image $REGISTRY/launcher:v1 "$IMAGES/launcher.tar" 107:107 '["/launcher"]' "$r"

# What holds a pod's namespaces.
image $REGISTRY/pause:v1 "$IMAGES/pause.tar" 65535:65535 '["/launcher", "wait"]' "$r"
