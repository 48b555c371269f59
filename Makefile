# Every target that a newcomer needs; "make" lists them.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X main.version=$(VERSION)
TOOLS   := $(CURDIR)/.tools
# iPXE, unpacked by make deps; "ingot init" finds it next to the program.
CACHE    = $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/ingot-lab
SIGNED   = $(CACHE)/pkg/secureboot/usr/lib
LOADERS  = $(addprefix $(CACHE)/pkg/ipxe/usr/lib/ipxe/,undionly.kpxe snponly.efi ipxe.efi ipxe.iso)

STAGE    = @deploy/stage.sh

deps: ## install what building, testing, linting and the lab need (deploy/deps.sh: in parts)
	deploy/deps.sh

deps-%: FORCE
	$(STAGE) packages "1 to 3 min; 1 s when repeated" deploy/deps.sh $*

build: bin/ingot bin/agentos bin/ipxe ## both programs and the agent's operating system, into bin/

bin/ingot: web bin/worker-agent FORCE
	$(STAGE) ingot "3 to 5 min; 20 s when repeated" go build -ldflags '$(LDFLAGS)' -o bin/ ./cmd/ingot

bin/ingot-client: FORCE
	$(STAGE) client "30 s; 5 s when repeated" env CGO_ENABLED=0 go build -ldflags '$(LDFLAGS)' -o bin/ ./cmd/ingot-client

bin/worker-agent: FORCE
	$(STAGE) worker-agent "30 s; 5 s when repeated" env CGO_ENABLED=0 go build -ldflags '$(LDFLAGS)' -o bin/ ./cmd/worker-agent

bin/demo: FORCE
	$(STAGE) demo "1 to 2 min; 5 s when repeated" go build -o bin/ ./e2e/demo

bin/mkimage: FORCE
	$(STAGE) mkimage "30 s to 1 min; 5 s when repeated" go build -o bin/ ./lab/mkimage

bin/agentos: bin/worker-agent FORCE
	$(STAGE) agentos "10 s" deploy/agentos/build.sh bin/agentos bin/worker-agent

bin/ipxe: FORCE
	@install -D -m 644 -t bin/ipxe $(LOADERS)
	@install -m 644 $(SIGNED)/shim/shimx64.efi.signed bin/ipxe/shimx64.efi
	@install -m 644 $(SIGNED)/grub/x86_64-efi-signed/grubnetx64.efi.signed bin/ipxe/grubx64.efi

image: build ## the container image bin/ingot.oci.tar (deploy/compose.yaml, deploy/genesis/ingot.yaml)
	go run ./deploy/image -bin bin -version $(VERSION) -out bin/ingot.oci.tar

release: deps-release web bin/ipxe ## everything that is given out for this commit, into dist/ (SIGN_KEY=FILE: signed), 15 min
	deploy/release/release.sh bin/release dist

release-repeat: deps-release ## two releases of this commit, in two directories, are equal: 30 min
	deploy/release/repeat.sh

manifests: deps-release ## Helm chart and kustomize overlays: rendered, compared with each other and checked
	go test -v -count=1 ./deploy/kubernetes -args -tools

previous: ## the baseline commit (e2e/baseline), into bin/previous, for the upgrade test
	deploy/previous.sh bin/previous

web: web/dist/index.html ## the page (needs node)
web/dist/index.html: web/node_modules/.package-lock.json $(wildcard web/src/*.ts web/src/*.tsx web/src/style/* web/public/*) \
  web/index.html web/vite.config.ts
	$(STAGE) page "15 s" npm --prefix web run build
web/node_modules/.package-lock.json: web/package-lock.json
	$(STAGE) npm "10 to 30 s" npm --prefix web ci --no-audit --no-fund --loglevel=error

# The stages of "make demo" run side by side. Only the Go programs are built one after the other: two builds at the same time
# would compile the packages that they share twice.
ifdef DEMO
disk-image: deps-demo bin/mkimage
	$(STAGE) disk-image "1 to 2 min; 1 s when repeated" bin/mkimage
bin/agentos bin/ipxe: | deps-demo
bin/worker-agent: | bin/mkimage
bin/demo: | bin/worker-agent
bin/ingot: | bin/demo
demo-stages: disk-image build bin/demo
endif

demo: ## two machines from power-on to a running system (KEEP=1: they and the page stay until Ctrl-C)
	+@$(MAKE) --no-print-directory -j8 DEMO=1 demo-stages
	@bin/demo $(if $(KEEP),-keep)

# Only these two contain the Temporal server, which would have to be compiled again for the race detector: 6 minutes.
TEMPORAL_SERVER = /internal/temporal/temporalserver

# The race detector is for packages whose code or tests start goroutines or serve requests.
CONCURRENT = go list -f '{{.Dir}}' ./... | while read -r d; do \
    if grep -qsE '(^|[[:space:]])go (func|[[:alnum:]_.]+)\(|\.Go\(|"net/http|httptest|t\.Parallel' "$$d"/*.go; then echo "$$d"; fi; done \
  | grep -v -e /cmd/ingot$$ -e $(TEMPORAL_SERVER)$$

# Long matrices without the race detector. Shorter tests of the same packages run the same code under it.
MATRICES = TestRedfishFalseSuccess|TestRedfishFalseSuccessOfOddities|FuzzRedfishAnswers|TestS18FaultyImagesAtTheDisk|TestImageThatDoesNotFitTheDiskIsRefused|TestPushOfTenThousandMachines

# "make lint" vets the code, once for all; go test would do it again for the race detector.
test: deps-test build ## all tests that need no virtual machine
	@$(CONCURRENT) | grep /workflows$$ > /dev/null || { echo "make test: the list of packages for the race detector is incomplete" >&2; exit 1; }
	@$(MAKE) --no-print-directory -j 2 test-race test-others
test-race:
	GORACE=atexit_sleep_ms=50 go test -race -vet=off -p 3 -skip '^($(MATRICES))$$' $$($(CONCURRENT))
test-others: # they wait most of the time
	cd web && npm test --silent
	go test -vet=off -p 1 -run '^($(MATRICES))$$' ./api ./bmc ./worker-agent/actions
	go test -vet=off -p 1 $$(go list -f '{{.Dir}}' ./... | grep -vxF "$$($(CONCURRENT))")

vulncheck: deps-vuln build ## known vulnerabilities of the Go modules in the programs, if vuln.go.dev can be reached
	deploy/vulncheck.sh bin/ingot bin/worker-agent

fuzz: ## hostile inputs for every parser, 30 s each (FUZZ=10m or FUZZ=1000000x: more)
	@for dir in $$(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n 1 dirname | sort -u); do \
	  for target in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9]*\)(.*/\1/p' $$dir/*_test.go); do \
	    echo "$$dir $$target"; \
	    go test -vet=off $$dir -run '^$$' -fuzz "^$$target$$" -fuzztime $(or $(FUZZ),30s) || exit 1; \
	  done; \
	done

lint: deps-lint ## formatting, linters, workflow determinism, unwanted words, sizes
	go test -count=1 -run '^Test(Imports|ImportGraph|Size|Words)$$' .
	$(TOOLS)/golangci-lint run ./...
	$(TOOLS)/golangci-lint fmt --diff
	$(TOOLS)/workflowcheck ./workflows/...
	go mod tidy -diff
	! grep -n '"resolved"' web/package-lock.json e2e/firefox/package-lock.json

# Tests in the virtual lab. LONG_TESTS run with FULL=1 only; benchmarks and the chaos matrix have targets of their own.
LAB_TEST   = go test -v -count=1 -p 1
LONG_TESTS = TestS62Traces|TestPageWithManyMachines|TestServerAndClient|TestImageFormats|TestFlippedBit|TestContainersFail|TestSectors|TestLabRedfishFalseSuccess|TestKilledInMidWrite|TestMirror|TestSyslinux|TestSlurp|TestOffBesideISC|TestDebianQcow2|TestImportedDocuments|TestEKSAnywhere|TestNativeActions|TestHostileInputs|TestEveryPath|TestClockJump|TestSeedFirmware|TestGenesisKilled|TestGenesisFails|TestKilledAsAnOperatorDecides|TestBonds|TestUnmodifiedClients|TestRedfishJudges|TestSecureBootRefusesAChangedKernel|TestSignedIPXE|TestDecommission|TestNetworkFirst|TestGenesisChaos|TestStorage|TestTwoSystems|TestDiscovery|TestPackage|TestNewcomer|TestTemporalUI|TestS30S34BootsBesideAbsentNeighbours|TestPageInFirefox
OTHERS     = TestBench|TestBenchPage|TestChaosMatrix

e2e: deps-test $(if $(FULL),deps-e2e) build previous ## the virtual lab: namespaces, QEMU, a real Temporal (FULL=1: the long form)
	go test -count=1 -p 3 -run '^TestLab' $(if $(FULL),,-skip '^($(LONG_TESTS))$$') ./bootsvc ./bootsvc/dhcp ./bootsvc/tftp ./bmc ./internal/images/imagefile ./lab -args -lab
	$(if $(FULL),$(LAB_TEST) -timeout 60m -skip '^TestLab' ./lab -args -lab -debian)
	$(LAB_TEST) -parallel 64 -timeout $(if $(FULL),180m,80m) -skip '^($(OTHERS)$(if $(FULL),,|$(LONG_TESTS)))$$' ./e2e \
	  -args -lab $(if $(FULL),-full) $(E2E)

genesis: deps-test build ## docs/genesis.md on QEMU machines, 10 min (CHAOS=1: kill and fail each step, simulated machines)
	$(LAB_TEST) -parallel 1 -timeout 80m -run '^TestGenesis($(if $(CHAOS),Killed|Fails|Chaos,Migrates))$$' ./e2e \
	  -args -lab $(if $(CHAOS),,-qemu)

# In a variable, because a comma ends an argument of $(or).
ALL_SIZES = 100,1000,5000
sizing: deps-test build ## install 100, 1,000 and 5,000 simulated machines at once; writes docs/sizing.md (SIZES=100,1000)
	$(LAB_TEST) -parallel 1 -timeout 120m -run '^TestSizing$$' ./e2e \
	  -args -lab -sizing $(or $(SIZES),$(ALL_SIZES)) $(if $(SIZES),,-sizing-report ../docs/sizing.md)

chaos: deps-test build ## break every part in every phase, 25 min; writes docs/reliability.md (FULL=1: QEMU machines as well)
	$(LAB_TEST) -parallel 3 -timeout 80m -run '^TestChaosMatrix$$' ./e2e \
	  -args -lab -report ../docs/reliability.md $(if $(FULL),-full)

first-machine: deps-test build ## run the commands of docs/first-machine.md in the lab, and write their outputs into it
	$(LAB_TEST) -timeout 15m -run '^TestFirstMachine$$' ./e2e -args -lab -write

pictures: deps-test web ## take the screenshots of docs/page.md
	INGOT_PICTURES=$(CURDIR)/docs $(LAB_TEST) -run '^TestPageWithManyMachines$$' ./e2e -args -lab

bench: deps-test build bin/ingot-client ## measure the server, and write its figures into docs/performance.md
	$(LAB_TEST) -timeout 40m -run '^TestBench$$' ./e2e -args -lab -bench

bench-image: deps-test ## image2disk compared with curl | decompressor | dd, 8 min
	TMPDIR=/dev/shm go test -v -vet=off -timeout 30m -run '^TestBenchImage$$' ./worker-agent/actions -args -bench

bench-wire: deps-test ## compare DHCP with Kea, images with nginx, TFTP with tftpd-hpa and atftpd; HTTP: 15 min
	TMPDIR=/dev/shm go test -v -vet=off -timeout 40m -run '^TestBench' ./bootsvc -args -lab -bench

bench-page: deps-test build ## the page with 5,000 machines in a headless browser, and what a viewer costs the server (BEFORE=PROGRAM: compared)
	$(LAB_TEST) -timeout 30m -run '^TestBenchPage$$' ./e2e -args -bench $(if $(BEFORE),-before $(abspath $(BEFORE)))

check: test lint e2e ## everything that CI runs

size: ## lines of code, comments and blanks per package; what is too long
	@go test -v -count=1 -run '^TestPrintSize$$' . -args -size

graph: ## draw the import graph into docs/architecture.md
	@go test -count=1 -run '^TestImportGraph$$' . -args -graph

docs: ## write docs/commands.md, generated parts of docs/templates.md and docs/monitoring.md, descriptions in JSON Schemas
	@go test -count=1 -run '^TestSchemasAreDescribed$$' ./docs -args -write # the next one embeds what this one writes
	@go test -count=1 -run '^Test(Templates|Metrics)AreDocumented$$' ./docs -args -write
	@go test -count=1 -run '^TestReferenceIsDocumented$$' ./template -args -write
	@go test -count=1 -run '^TestCommandsAreListed$$' ./internal/cli/host -args -write

mutate: deps-test build ## break each property of docs/security.md once, and see its test fail: 30 min (PROPERTY=S22: one)
	@go test -v -count=1 -timeout 5h -run '^TestMutate$$' . -args -mutate $(or $(PROPERTY),all)

clean: ## remove what was built, not what was downloaded
	rm -rf bin dist web/dist/assets web/dist/index.html

help:
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

# Prerequisites are made in the order in which they are listed (packages before programs), under make -j as well.
ifndef DEMO
.NOTPARALLEL:
endif
.PHONY: deps build image release release-repeat manifests previous web test test-race test-others vulncheck fuzz lint e2e demo genesis sizing chaos first-machine pictures bench bench-image bench-wire bench-page check size graph docs mutate clean help FORCE
FORCE:
