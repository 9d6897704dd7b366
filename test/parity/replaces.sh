#!/bin/sh
# Points this module at one release of Kubernetes: ./replaces.sh v1.37.2
#
# k8s.io/kubernetes requires its staging modules at v0.0.0 and replaces them by folders of its own
# repository, which the module zip does not contain. Each must be replaced by the release of the
# same minor and patch: v0.37.2 for v1.37.2.
set -eu
version=${1:?usage: replaces.sh v1.MINOR.PATCH}
staging=v0.${version#v1.}
cd "$(dirname "$0")"

go mod edit -require="k8s.io/kubernetes@$version"
upstream=$(go mod download -json "k8s.io/kubernetes@$version" | sed -n 's/^\t"GoMod": "\(.*\)",$/\1/p')
sed -n 's/^\t\(k8s\.io\/[a-z-]*\) => \.\/staging\/.*/\1/p' "$upstream" |
while read -r module; do
	go mod edit -replace="$module=$module@$staging"
done
go mod tidy
