# Every target that a newcomer needs; "make" lists them.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X main.version=$(VERSION)
TOOLS   := $(CURDIR)/.tools
# iPXE, unpacked by make deps; "ingot init" finds it beside the program.
LOADERS  = $(addprefix $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/ingot-lab/pkg/ipxe/usr/lib/ipxe/,undionly.kpxe snponly.efi ipxe.efi)

deps: ## install from Debian's packages and the Go proxy what is missing
	deploy/deps.sh

build: web bin/worker-agent ## build both programs and the agent's OS into bin/
	go build -ldflags '$(LDFLAGS)' -o bin/ ./cmd/ingot
	deploy/agentos/build.sh bin/agentos bin/worker-agent
	install -D -m 644 -t bin/ipxe $(LOADERS)

bin/worker-agent: FORCE
	CGO_ENABLED=0 go build -ldflags '$(LDFLAGS)' -o bin/ ./cmd/worker-agent

image: build ## one container image of it, bin/ingot.oci.tar, for a NAS or a platform node (deploy/compose.yaml, deploy/genesis/ingot.yaml)
	go run ./deploy/image -bin bin -version $(VERSION) -out bin/ingot.oci.tar

previous: ## build the baseline commit (e2e/baseline) into bin/previous, for the upgrade test
	deploy/previous.sh bin/previous

web: web/dist/index.html ## build the page (needs node)
web/dist/index.html: $(wildcard web/src/*.ts web/src/*.tsx web/src/style/* web/public/*) web/index.html web/package-lock.json web/vite.config.ts
	cd web && npm ci --no-audit --no-fund --loglevel=error && npm run build

test: deps build ## all tests that need no machine: race detector on
	go vet ./...
	go test -race -p 2 ./...
	cd web && npm test --silent

fuzz: ## a million hostile inputs each for what parses packets of strangers (FUZZ=10000x: fewer)
	go test ./bootsvc -run '^$$' -fuzz '^FuzzTFTPOptions$$' -fuzztime $(or $(FUZZ),1000000x)
	go test ./bootsvc -run '^$$' -fuzz '^FuzzTFTPTransfer$$' -fuzztime $(or $(FUZZ),1000000x)

lint: ## formatting, linters, workflow determinism
	$(TOOLS)/golangci-lint run ./...
	$(TOOLS)/golangci-lint fmt --diff
	$(TOOLS)/workflowcheck ./workflows/...
	go mod tidy -diff
	! grep -n '"resolved"' web/package-lock.json

e2e: deps build previous ## the virtual lab: namespaces, QEMU, a real Temporal (FULL=1: the long form)
	go test -count=1 -p 1 -run '^TestLab' ./bootsvc ./bmc ./lab -args -lab
	go test -v -count=1 -p 1 -parallel 64 -timeout 80m -skip '^(TestBench|TestBenchPage|TestChaosMatrix$(if $(FULL),,|TestHostileInputs|TestEveryPath|TestClockJump|TestSeedFirmware|TestGenesisKilled|TestGenesisFails|TestKilledAsAPersonDecides))$$' ./e2e -args -lab $(if $(FULL),-full) $(E2E)

demo: deps build ## two machines from power-on to a running system (KEEP=1 leaves the page open)
	go run ./e2e/demo $(if $(KEEP),-keep)

genesis: deps build ## the evening of docs/genesis.md on QEMU machines, ten minutes (CHAOS=1: on simulated machines, ten minutes: the server is killed in every step, and something fails in every step)
	go test -v -count=1 -p 1 -parallel 1 -timeout 80m -run '^TestGenesis($(if $(CHAOS),Killed|Fails|Chaos,Migrates))$$' ./e2e -args -lab $(if $(CHAOS),,-qemu)

chaos: deps build ## break every part in every phase; writes docs/reliability.md (half an hour; FULL=1: QEMU machines as well)
	go test -v -count=1 -p 1 -parallel 3 -timeout 70m -run '^TestChaosMatrix$$' ./e2e -args -lab -report ../docs/reliability.md $(if $(FULL),-full)

bench: deps build ## the figures of the README
	go test -count=1 -p 1 -timeout 30m -run '^TestBench$$' -v ./e2e -args -lab -bench

bench-page: deps build ## the page with 5,000 machines in a headless browser, and what a viewer costs the server
	go test -count=1 -timeout 30m -run '^TestBenchPage$$' -v ./e2e -args -bench

check: test lint e2e ## everything that CI runs

clean: ## remove what was built, not what was downloaded
	rm -rf bin web/dist/assets web/dist/index.html

help:
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

# Prerequisites are steps in their order (deps before build), under make -j as well; go and npm use the cores themselves.
.NOTPARALLEL:
.PHONY: deps build image previous web test fuzz lint e2e demo genesis chaos bench bench-page check clean help FORCE
FORCE:
