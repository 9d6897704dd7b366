#!/usr/bin/env bash
# Runs every fuzz target of the module for FUZZTIME each (go test fuzzes one target at a time).
set -euo pipefail
cd "$(dirname "$0")/.."
count=0
for package in $(go list ./...); do
  for target in $(go test -list '^Fuzz' "$package" | grep '^Fuzz' || true); do
    echo "fuzz: $package $target"
    go test -run '^$' -fuzz "^$target\$" -fuzztime "${FUZZTIME:-10s}" "$package"
    count=$((count + 1))
  done
done
echo "fuzz: $count targets, no finding"
