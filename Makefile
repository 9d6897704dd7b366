# Only Go is needed for run and build; setup installs what the real tests need.
SHELL := /bin/bash -o pipefail
GO ?= go
BIN := bin/guestprobe
GUEST := .cache/guest
IMAGE ?= guestprobe:dev
FUZZTIME ?= 10s
BENCHTIME ?= 1s
UNIT = $$($(GO) list ./... | grep -v /test/)
# A checkout stamps its version into the binary; a source archive has none to stamp.
VCS = $$(git rev-parse -q --verify HEAD >/dev/null 2>&1 && echo true || echo false)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help run build test setup lint unit real bench fuzz image image-injector image-test manifests guest parity test-cluster clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: ## watch a simulated VM boot, fail and recover (Ctrl-C ends it)
	@$(MAKE) -s build && exec $(BIN) demo

build: ## the static, stripped binary in bin/
	CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=$(VCS) -ldflags '-s -w' -o $(BIN) ./cmd/guestprobe

test: setup lint unit real image-test ## everything: lint, all packages with -race, a real guest, the image

setup: ## install what the real tests need, where that is possible
	@scripts/setup.sh

lint: ## gofmt, vet, staticcheck and the import rules
	@scripts/lint.sh

unit: ## all packages but the real guest's, with -race
	$(GO) test -race $(UNIT)

real: ## the tests that boot a real guest, one after the other
	$(GO) test -race -count=1 -v -p 1 -timeout 20m ./test/...

bench: setup ## benchmarks of all packages
	$(GO) test -run '^$$' -bench . -benchmem -benchtime $(BENCHTIME) ./...

fuzz: ## every fuzz target for FUZZTIME (10s)
	@FUZZTIME=$(FUZZTIME) scripts/fuzz.sh

image: build ## a container image FROM scratch
	chmod 755 $(BIN)
	docker build -t $(IMAGE) .

image-injector: ## the injector's image, FROM scratch
	CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=$(VCS) -ldflags '-s -w' -o bin/guestprobe-injector ./cmd/guestprobe-injector
	chmod 755 bin/guestprobe-injector
	docker build -t guestprobe-injector:dev -f cmd/guestprobe-injector/Dockerfile bin

manifests: ## render manifests/guestprobe.yaml
	manifests/render.sh

image-test: build ## prove that the image builds and runs
	@scripts/image-test.sh

guest: ## the test guest: Debian's kernel and guest agent in an initramfs
	test/guest/mkguest.sh $(GUEST)

parity: ## compare the probes with the kubelet's own code, injected pods with the API server's
	cd test/parity && $(GO) run . && $(GO) test -race ./...

test-cluster: ## a real Kubernetes with VMs in it, the injector and the collector (root; 7 min, the first time 20)
	test/cluster/run.sh

clean: ## remove what was built
	rm -rf bin .cache
