# A fresh machine needs Go, git and make; `make test` installs the rest.

GO ?= go

# Pinned, and built where git does not look.
GOLANGCI_LINT := .bin/golangci-lint-v2.15.0
GOTESTSUM     := .bin/gotestsum-v1.13.0

# etcd is pinned by a module of its own, which keeps what it needs out of the library's.
ETCD_VERSION := $(shell awk '$$1 == "go.etcd.io/etcd/server/v3" && $$2 { print $$2 }' internal/testenv/etcd/go.mod)
ETCD         := .bin/etcd-$(ETCD_VERSION) .bin/etcdctl-$(ETCD_VERSION)

# Systems on which nobody runs the tests, but on which the code has to build. The
# last one is there for its 32 bits.
CROSS := darwin/arm64 windows/amd64 linux/386

# Packages with goroutines of their own, for test-repeat, and how often.
REPEAT ?= . ./memlock ./redislock ./pglock ./etcdlock ./conformance ./internal/testenv
COUNT  ?= 20

# Which benchmarks.
BENCH ?= .

# Flags of internal/soak.
SOAK ?=

.PHONY: help
help: ## Lists the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: test
test: deps lint cross $(GOTESTSUM) ## Everything: deps, lint, cross, and all tests with -race on real servers; lists what was skipped.
	@# Tests wait for leases more than they work: three packages run at a time, and those that
	@# take longest begin first, so that the others run beside them.
	LOCKER_TEST_REQUIRE=1 $(GOTESTSUM) --format standard-quiet -- -race -count=1 -p=3 -timeout=15m ./pglock ./redislock ./etcdlock ./...

.PHONY: test-repeat
test-repeat: deps ## Runs the tests of REPEAT (packages) COUNT times with -race, in search of a flake.
	LOCKER_TEST_REQUIRE=1 $(GO) test -race -count=$(COUNT) -timeout=6h $(REPEAT)

.PHONY: bench
bench: deps ## Runs the benchmarks that match BENCH.
	LOCKER_TEST_REQUIRE=1 $(GO) test -run '^$$' -bench '$(BENCH)' -benchmem ./...

.PHONY: soak
soak: deps ## What takes too long for test: many random histories and repeated trials, with figures; SOAK has flags.
	$(GO) run ./internal/soak $(SOAK)

.PHONY: docs
docs: ## Regenerates docs/contract.md and the suite's golden files. A test fails while they are stale.
	$(GO) generate ./conformance

.PHONY: lint
lint: $(GOLANGCI_LINT) ## Checks format, go vet and golangci-lint.
	@files=$$(gofmt -l .); if [ -n "$$files" ]; then echo "gofmt wants:"; gofmt -d $$files; exit 1; fi
	$(GO) vet ./...
	$(GOLANGCI_LINT) run

.PHONY: cross
cross: ## Builds and vets the code for other systems.
	@set -e; for target in $(CROSS); do \
		export GOOS=$${target%/*} GOARCH=$${target#*/} CGO_ENABLED=0; \
		echo "build and vet for $$target"; \
		$(GO) build ./...; \
		$(GO) vet ./...; \
	done

.bin/golangci-lint-%:
	GOBIN=$(CURDIR)/.bin $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$*
	mv .bin/golangci-lint $@

.bin/gotestsum-%:
	GOBIN=$(CURDIR)/.bin $(GO) install gotest.tools/gotestsum@$*
	mv .bin/gotestsum $@

.bin/etcd-%:
	cd internal/testenv/etcd && CGO_ENABLED=0 $(GO) build -o $(CURDIR)/$@ go.etcd.io/etcd/server/v3

.bin/etcdctl-%:
	cd internal/testenv/etcd && CGO_ENABLED=0 $(GO) build -o $(CURDIR)/$@ go.etcd.io/etcd/etcdctl/v3

.PHONY: deps
deps: $(ETCD) ## Installs what the tests need and this machine lacks: Redis, PostgreSQL, PgBouncer, ip, and a C compiler for -race; builds etcd.
	@bash .ci/deps
