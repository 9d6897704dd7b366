#!/bin/bash
# Prints the definitions of the kinds that our manifests use and Kubernetes does not have: KubeVirt's, the Prometheus
# operator's, cert-manager's and OpenShift's, each with its makers' own schema, from the Go modules that crds/ pins.
set -euo pipefail
cd "$(dirname "$0")/crds"

# folder MODULE: where its files are
folder() {
	GOWORK=off go mod download -json "$1@$(awk -v m="$1" '$1 == m {print $2}' go.mod)" | awk -F'"' '$2 == "Dir" {print $4}'
}

# kubevirt KIND VERSION SCOPE GROUP SHORTNAME: what pkg/virt-operator/resource/generate/components/crds.go makes of the schema
# beside it. As code it cannot be used, for it wants modules that are not published.
kubevirt() {
	local name=${1,,}
	cat <<-YAML
		---
		apiVersion: apiextensions.k8s.io/v1
		kind: CustomResourceDefinition
		metadata: {name: ${name}s.$4}
		spec:
		  group: $4
		  scope: $3
		  names: {kind: $1, plural: ${name}s, singular: $name, shortNames: [$5]}
		  versions:
		  - name: $2
		    served: true
		    storage: true
		    subresources: {status: {}}
		    schema:
	YAML
	awk -v start="	\"$name\": \`" '
		index($0, start) == 1 {on = 1; sub(/^[^`]*`/, "")}
		on && /^`,/ {exit}
		on {print "      " $0}' "$schemas"
}

schemas=$(folder kubevirt.io/kubevirt)/pkg/virt-operator/resource/generate/components/validations_generated.go
kubevirt VirtualMachine v1 Namespaced kubevirt.io vm
kubevirt VirtualMachineInstance v1 Namespaced kubevirt.io vmi
kubevirt VirtualMachineInstanceMigration v1 Namespaced kubevirt.io vmim
kubevirt Plugin v1alpha1 Cluster plugin.kubevirt.io ""

prometheus=$(folder github.com/prometheus-operator/prometheus-operator)/example/prometheus-operator-crd
certmanager=$(folder github.com/cert-manager/cert-manager)/deploy/crds
openshift=$(folder github.com/openshift/api)/security/v1/zz_generated.crd-manifests
for file in "$prometheus"/monitoring.coreos.com_{podmonitors,prometheusrules}.yaml \
	"$certmanager"/cert-manager.io_{certificates,issuers}.yaml "$openshift"/*_securitycontextconstraints.crd.yaml; do
	echo ---
	cat "$file"
done
