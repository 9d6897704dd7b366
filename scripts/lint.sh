#!/usr/bin/env bash
# gofmt, vet, staticcheck and the rules of test/imports. Every check runs; any finding fails.
set -euo pipefail
cd "$(dirname "$0")/.."
status=0

unformatted=$(gofmt -l $(git ls-files --cached --others --exclude-standard -- '*.go' 2>/dev/null || find . -name '*.go' -not -path './.cache/*'))
if [[ -n $unformatted ]]; then
  printf 'lint: not gofmt-ed: %s\n' $unformatted >&2
  status=1
fi
go vet ./... || status=1
go tool -modfile=tools/go.mod staticcheck ./... || status=1
go test ./test/imports || status=1
exit $status
