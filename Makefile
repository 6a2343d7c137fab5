# The two commands of the README, `make ingest` and `make test`, install what
# they need. Everything else is for developers.
SHELL := /bin/bash
MODULES := shared services/capture services/hasher services/deriver services/premis services/quarantine deploy/gateway deploy/standalone deploy/verify deploy/nats deploy/arch deploy/e2e
VERSION := $(shell git describe --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -X colophon/shared/daemon.Version=$(VERSION)
ARCHIVE ?= ./archive
DIR ?=

.PHONY: ingest test build tools unit race e2e vet fmt alone model soak bench bench-derive fuzz-derive manifests apiserver images clean

# make ingest [DIR=folder] [ARCHIVE=folder]: take a folder of masters in as one
# batch. Without DIR it draws a small one, with a damaged page in it.
ingest: tools build
	@if [ -n "$(DIR)" ]; then exec bin/colophon --archive "$(ARCHIVE)" ingest "$(DIR)"; else exec ./.ci/demo "$(ARCHIVE)"; fi

# make test: everything that a change must pass, with the race detector.
test: tools vet alone build manifests race e2e

tools:
	@./.ci/tools

build:
	@mkdir -p bin
	@for s in capture hasher deriver premis quarantine; do CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/$$s ./services/$$s/cmd/$$s || exit 1; done
	@CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/colophon ./deploy/standalone/cmd/colophon

vet:
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); echo 'run gofmt'; exit 1; }
	go vet $(MODULES:%=./%/...)

# Each module builds alone, without the workspace.
alone:
	@for m in $(MODULES); do (cd $$m && GOWORK=off go build ./... ) || { echo "$$m does not build alone"; exit 1; }; done

race:
	go test -race -timeout 10m $(patsubst %,./%/...,$(filter-out deploy/e2e,$(MODULES)))

e2e:
	go test -timeout 12m ./deploy/e2e/...

# make soak: the long forms of the tests: 4,000 files, 3 GiB, 300 kills; 4,000
# frames over HTTP, 10,000 files in a hot folder, 200 kills of the ledger.
soak: tools
	go test -tags soak -timeout 3h -v -run Soak -bench DoubleRun ./deploy/e2e/
	COLOPHON_SOAK=1 go test -tags soak -timeout 3h ./shared/stage/ ./services/capture/ ./services/premis/internal/ledger/ ./deploy/gateway/

# make bench-derive: derivations of 35-megapixel pages against the bare encoder
# in the same run. A quarter of an hour on a quiet machine; on another the
# numbers mean nothing.
bench-derive: tools
	go test -run '^$$' -bench Derive -benchtime 1x -timeout 3h ./services/deriver/internal/derive/

# make fuzz-derive [FUZZTIME=10m]: each fuzz target of the readers and of the
# box writer for that long.
FUZZTIME ?= 10m
fuzz-derive: tools
	@for t in tiff:FuzzRead jpeg:FuzzRead png:FuzzRead ccitt:FuzzAgainstOther jp2:FuzzRead jp2:FuzzWalk jp2:FuzzRewrite jp2:FuzzProfile; do \
		go test -run '^$$' -fuzz "^$${t#*:}\$$" -fuzztime $(FUZZTIME) ./services/deriver/internal/$${t%:*}/ || exit 1; done

# make manifests: the Kubernetes objects, alert rules and dashboard, strictly
# read and compared with the programs. Modules of their own, outside go.work.
manifests: build
	cd deploy/kubernetes/manifests && GOWORK=off COLOPHON_BIN=$(CURDIR)/bin go test .
	cd deploy/telemetry && GOWORK=off go test .

# make apiserver: every overlay to a real kube-apiserver and etcd, dry run. The
# first time it builds that server: some ten minutes of two cores.
apiserver:
	./deploy/kubernetes/apiserver/run

# make images [IMAGES=folder]: builds and smoke-tests the images, without a
# container engine. It needs buildah, mmdebstrap and skopeo.
IMAGES ?= /var/tmp/colophon-images
images:
	VERSION=$(VERSION) ./deploy/images/build $(IMAGES)

clean:
	rm -rf bin
