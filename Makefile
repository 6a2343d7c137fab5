# The two commands of the README, `make ingest` and `make test`, install what
# they need. Everything else is for developers.
SHELL := /bin/bash
MODULES := shared services/capture services/hasher services/deriver services/premis services/quarantine deploy/standalone deploy/verify deploy/nats deploy/arch deploy/e2e
VERSION := $(shell git describe --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -X colophon/shared/daemon.Version=$(VERSION)
ARCHIVE ?= ./archive
DIR ?=

.PHONY: ingest test build tools unit race e2e vet fmt alone model soak bench clean

# make ingest [DIR=folder] [ARCHIVE=folder]: take a folder of masters in as one
# batch. Without DIR it draws a small one, with a damaged page in it.
ingest: tools build
	@if [ -n "$(DIR)" ]; then exec bin/colophon --archive "$(ARCHIVE)" ingest "$(DIR)"; else exec ./.ci/demo "$(ARCHIVE)"; fi

# make test: everything that a change must pass, with the race detector.
test: tools vet alone build race e2e

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

# make soak: the long forms of the end-to-end tests: 4,000 files, 3 GiB, 300
# kills. It takes the better part of an hour.
soak: tools
	go test -tags soak -timeout 3h -v -run Soak -bench DoubleRun ./deploy/e2e/

clean:
	rm -rf bin
