#!/bin/bash
# Makes the cluster's certificates and the kubeconfig of each of its programs, for one run.
set -euo pipefail
. "$(dirname "$0")/env.sh"
mkdir -p "$PKI"
cd "$PKI"

key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1.key"; }

key ca
openssl req -x509 -new -key ca.key -subj /CN=cluster-ca -days 30 -out ca.crt

# certificate NAME SUBJECT [NAMES]
certificate() {
	key "$1"
	{
		echo "basicConstraints = CA:FALSE"
		echo "extendedKeyUsage = clientAuth, serverAuth"
		if [ -n "${3:-}" ]; then echo "subjectAltName = $3"; fi
	} >"$1.ext"
	openssl req -new -key "$1.key" -subj "$2" |
		openssl x509 -req -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -extfile "$1.ext" -out "$1.crt" 2>/dev/null
}

# kubeconfig NAME FILE
kubeconfig() {
	cat >"$2" <<-EOF
		apiVersion: v1
		kind: Config
		current-context: lab
		contexts: [{name: lab, context: {cluster: lab, user: $1}}]
		clusters: [{name: lab, cluster: {server: "https://$NODE_IP:443", certificate-authority: $PKI/ca.crt}}]
		users: [{name: $1, user: {client-certificate: $PKI/$1.crt, client-key: $PKI/$1.key}}]
	EOF
}

certificate apiserver /CN=kube-apiserver "DNS:kubernetes.default.svc, IP:127.0.0.1, IP:$NODE_IP, IP:$API_IP"
certificate kubelet-client /O=system:masters/CN=kube-apiserver-kubelet-client
certificate node "/O=system:nodes/CN=system:node:$NODE" "DNS:$NODE, IP:$NODE_IP"
certificate admin /O=system:masters/CN=admin
certificate controller-manager /CN=system:kube-controller-manager
certificate scheduler /CN=system:kube-scheduler
kubeconfig admin "$RUN/admin.kubeconfig"
for name in node controller-manager scheduler; do kubeconfig $name "$PKI/$name.kubeconfig"; done
openssl genrsa -out service-account.key 2048 2>/dev/null
openssl rsa -in service-account.key -pubout -out service-account.pub 2>/dev/null
