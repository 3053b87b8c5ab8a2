# The two commands of the README are `make demo` and `make test`. Each installs what it lacks.
.POSIX:
.PHONY: help setup judges build install fio-engine deb deb-test demo test judge-mount lint docs loom fuzz-short ci

help:
	@echo "make install      command, C library, manual pages, completions: PREFIX (/usr/local), DESTDIR"
	@echo "make deb          a Debian package in target/debian"
	@echo "make demo         make a volume, fill it, kill it, recover it, let e2fsck judge"
	@echo "make test         every test"
	@echo "make judge-mount  the long judges of the mount: databases, fsx, fio, kill -9"
	@echo "make lint         format, clippy, licences, documentation"
	@echo "make bench-NAME   one benchmark of bench/src/bin, against its peer in the same run"
	@echo "make loom         model checks of the concurrent parts"
	@echo "make fuzz-short   each fuzz target for FUZZ_SECONDS (30)"
	@echo "make ci           what CI runs"

setup:
	@scripts/setup.sh

build: setup
	cargo build --release -p lanefs-cli -p lanefs-capi

install: build
	@scripts/install.sh release

# For the fio that is installed here. `make install` takes it along if it is there.
fio-engine: build
	@scripts/fio-engine.sh "$${CARGO_TARGET_DIR:-target}/release/liblanefs_capi.a" "$${CARGO_TARGET_DIR:-target}/release/liblanefs_fio.so"

deb: build
	@scripts/deb.sh release

deb-test:
	cargo build -p lanefs-cli -p lanefs-capi
	@scripts/deb-test.sh

demo: build
	@scripts/demo.sh

judges:
	@scripts/setup.sh --test
	@scripts/judges.sh

test: judges
	@scripts/test.sh --workspace

judge-mount: judges
	@scripts/setup.sh --long
	@scripts/test.sh -p lanefs-cli --test judges -- --include-ignored --test-threads=2

lint: setup
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	scripts/deny.sh
	RUSTDOCFLAGS=-Dwarnings cargo doc --workspace --no-deps

# Private items too: the doc comments of the inside are read as much as those of the outside.
docs: setup
	cargo doc --workspace --no-deps --document-private-items

bench-%: judges
	cargo build --profile bench -p lanefs-cli
	cargo run --profile bench -p lanefs-bench --bin $* -- $(ARGS)

loom: setup
	@scripts/loom.sh

fuzz-short: setup
	@scripts/fuzz.sh $${FUZZ_SECONDS:-30}

ci:
	@.ci/run
