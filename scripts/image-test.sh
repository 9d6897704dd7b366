#!/usr/bin/env bash
# Proves that the image builds without a network and that its binary runs as the numeric user. It uses the docker
# daemon that answers, else starts one of its own in a temporary folder and ends it again. Where neither is possible
# the proof is skipped loudly; with CI=true that is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."
image=guestprobe-test:$$
dir=$(mktemp -d)
daemon=

finish() {
  docker rmi -f "$image" >/dev/null 2>&1 || true
  if [[ -n $daemon ]]; then
    kill "$daemon" 2>/dev/null || true
    wait "$daemon" 2>/dev/null || true
    # A daemon that was cut short leaves mounts behind.
    awk -v d="$dir/" 'index($2, d) == 1 {print $2}' /proc/mounts | sort -r | while read -r mount; do umount -l "$mount" || true; done
  fi
  rm -rf "$dir"
}
trap finish EXIT

unavailable() {
  if [[ ${CI:-} == true ]]; then
    echo "image-test: NOT AVAILABLE in CI: $*" >&2
    exit 1
  fi
  echo "image-test: SKIPPED, not available here: $*" >&2
  exit 0
}

fail() {
  echo "image-test: $*" >&2
  exit 1
}

PATH=$PATH:/usr/sbin:/sbin
command -v docker >/dev/null || unavailable "no docker command"
if ! docker version >/dev/null 2>&1; then
  command -v dockerd >/dev/null || unavailable "no docker daemon answers and dockerd is not installed"
  [[ $(id -u) == 0 ]] || unavailable "no docker daemon answers and only root can start one"
  export DOCKER_HOST=unix://$dir/docker.sock
  dockerd --host "$DOCKER_HOST" --data-root "$dir/data" --exec-root "$dir/exec" --pidfile "$dir/docker.pid" \
    --iptables=false --ip6tables=false --bridge=none --storage-driver=vfs >"$dir/dockerd.log" 2>&1 &
  daemon=$!
  for _ in $(seq 300); do
    if docker version >/dev/null 2>&1; then break; fi
    kill -0 "$daemon" 2>/dev/null || unavailable "dockerd ended: $(tail -n 1 "$dir/dockerd.log")"
    sleep 0.1
  done
  docker version >/dev/null 2>&1 || unavailable "dockerd does not answer: $(tail -n 1 "$dir/dockerd.log")"
fi

chmod 755 bin/guestprobe
docker build -t "$image" . >"$dir/build.log" 2>&1 || fail "docker build failed: $(tail -n 5 "$dir/build.log")"
layers=$(docker image inspect -f '{{len .RootFS.Layers}}' "$image")
[[ $layers == 1 ]] || fail "the image has $layers layers, not the binary's one"
user=$(docker image inspect -f '{{.Config.User}}' "$image")
[[ $user =~ ^[1-9][0-9]*:[1-9][0-9]*$ ]] || fail "the image's user is \"$user\", not a number above 0"
version=$(docker run --rm --network none --read-only --cap-drop ALL "$image" version) || fail "guestprobe version failed in the container"
[[ $version == guestprobe* ]] || fail "guestprobe version printed \"$version\""
echo "image-test: $(docker image inspect -f '{{.Size}}' "$image") bytes, user $user, says: $version"
