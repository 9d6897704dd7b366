#!/usr/bin/env bash
# Renders guestprobe.yaml, the manifest to install. A test holds it to its source.
set -euo pipefail
cd "$(dirname "$0")"
{
  echo "# Rendered from overlays/default by render.sh; do not edit."
  go tool -modfile=../tools/go.mod kustomize build overlays/default
} >guestprobe.yaml.new
mv guestprobe.yaml.new guestprobe.yaml
