# SPDX-License-Identifier: Apache-2.0
#
# Everything a person or CI runs. `make` alone lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# The product is built without cgo; only the race detector needs it.
export CGO_ENABLED := 0

VERSION     ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS     := -s -w -X main.version=$(VERSION)
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
FUZZTIME    ?= 20s
BENCHTIME   ?= 1s
BENCH       ?= .

# Gates: tests that need the machine's real speed and real memory, or that kill processes and fill disks. They are
# named TestGate..., TestKill... and TestDisk..., run without the race detector and one package at a time.
GATES := ^Test(Gate|Kill|Disk)

.PHONY: help
help: ## print this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## build bin/rialto: static, stripped, with its version
	go build -trimpath -ldflags '$(LDFLAGS)' -o bin/rialto ./cmd/rialto

.PHONY: cross
cross: ## build bin/rialto-linux-arm64 and -armv7; CI only looks whether the types fit (TestGateFits32Bits)
	GOOS=linux GOARCH=arm64 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/rialto-linux-arm64 ./cmd/rialto
	GOOS=linux GOARCH=arm GOARM=7 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/rialto-linux-armv7 ./cmd/rialto

.PHONY: run
run: build ## build, then show the whole bridge at work: fifty boxes, three rules, one account
	@exec bin/rialto demo cold-chain

.PHONY: check
check: fmt vet lint layers ## format, vet, staticcheck, layers, unit tests: quick, for every few minutes
	go test -skip '$(GATES)' ./...

.PHONY: test
test: deps fmt vet lint build race gates fuzz-short fuzz-agree ## everything that CI runs

.PHONY: deps
deps: ## install what the tests talk to (Debian packages, as root or through sudo)
	@.ci/packages

.PHONY: fmt
fmt: ## fail if a Go file is not formatted
	@unformatted=$$(gofmt -l $$(go list -f '{{.Dir}}' ./...)); \
	if [ -n "$$unformatted" ]; then echo "not formatted (run gofmt -w):"; echo "$$unformatted"; exit 1; fi

.PHONY: vet
vet: ## go vet
	go vet ./...

.PHONY: lint
lint: ## staticcheck, as configured in staticcheck.conf
	go run $(STATICCHECK) ./...

.PHONY: layers
layers: ## who may import whom, and what every file has
	go test -count=1 -run '^TestRepository' ./internal/app

.PHONY: docs
docs: ## write docs/sources and docs/targets from the catalogs of kinds
	go test -count=1 -run '^Test(Source|Target)Pages' ./internal/app -update

.PHONY: race
race: ## all tests but the gates, with the race detector
	CGO_ENABLED=1 go test -race -timeout 15m -skip '$(GATES)' ./...

.PHONY: gates
gates: ## allocation, speed, kill and disk gates, without the race detector
	@.ci/gates '$(GATES)'

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZTIME each (default 20s; 1000x counts inputs instead)
	@.ci/fuzz $(FUZZTIME)

# A number of inputs, not of seconds: the same work on a slow machine, and no deadline to run into.
.PHONY: fuzz-short
fuzz-short:
	@.ci/fuzz 2000x

# About a minute: the index against the direct evaluator, many pairs an input.
.PHONY: fuzz-agree
fuzz-agree:
	go test -run '^$$' -fuzz '^FuzzIndex$$' -fuzztime 26000x -fuzzminimizetime 100x ./rules

.PHONY: bench
bench: build ## print the performance table of docs/performance.md (BENCH=regexp, BENCHTIME=1s)
	@.ci/bench '$(BENCH)' '$(BENCHTIME)'

.PHONY: bench-rules
bench-rules: ## events matched per processor second, by shape and number of rules (BENCHTIME=1s)
	@.ci/bench-rules '$(BENCHTIME)'

.PHONY: bench-mqtt
bench-mqtt: ## the MQTT gateway beside Mosquitto, which it installs: a table, in about five minutes
	@.ci/bench-mqtt

.PHONY: cover
cover: ## coverage of the unit tests, per function, in bin/cover.html
	@mkdir -p bin
	go test -skip '$(GATES)' -coverpkg ./... -coverprofile bin/cover.out ./...
	go tool cover -html bin/cover.out -o bin/cover.html
	go tool cover -func bin/cover.out | tail -1

.PHONY: clean
clean: ## remove what was built
	rm -rf bin
