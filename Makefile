# The two commands of the README are `make demo` and `make test`. Each installs what it lacks.
.POSIX:
.PHONY: bench-all bench-fio bench-images help setup judges build static ports install uninstall fio-engine deb deb-test demo test torture torture-night schedules mutants judge-mount judge-images judge-remote lint docs loom fuzz-short fuzz-night coverage ci

help:
	@echo "make install      command, C library, manual pages, completions: PREFIX (/usr/local), DESTDIR"
	@echo "make static       the command without the lab as one static file, by musl: target/ARCH-unknown-linux-musl/release/lanefs"
	@echo "make ports        the libraries, compiled for macOS, Windows and 32 bits"
	@echo "make uninstall    removes what make install put there: the same PREFIX and DESTDIR"
	@echo "make deb          Debian packages in target/debian: lanefs, liblanefs0, liblanefs-dev"
	@echo "make demo         make a volume, fill it, kill it, recover it, let e2fsck judge"
	@echo "make test         every test"
	@echo "make torture      every failed I/O and every crash of every workload of one and two operations: hours; goes on where it stopped"
	@echo "make torture-night  samples of longer ones, without end"
	@echo "make schedules    threads on one volume under a seeded scheduler, with crashes: without end; goes on where it stopped"
	@echo "make mutants      breaks the code on purpose, and sees that the tests notice"
	@echo "make judge-mount  the long judges of the mount: databases, stress-ng, fsx, fio, kill -9"
	@echo "make judge-images  built images: compared with umoci's trees, and booted in QEMU, with dm-verity too; as root"
	@echo "make judge-remote  volumes on nbd-server, qemu's servers (raw, qcow2, VMDK, VHDX, VDI, VHD, LUKS), a Ceph cluster and its S3: REMOTE_SECONDS (20) of load for each mount"
	@echo "make lint         format, clippy, licences, documentation"
	@echo "make bench-NAME   one benchmark of bench/src/bin, against its peer in the same run"
	@echo "make bench-fio    the published fio jobs through the engine, beside ext4, XFS and raw; ARGS=--long: as their authors ran them, an hour"
	@echo "make bench-images  images, sizes and hash trees beside tar2ext4, umoci, resize2fs, veritysetup"
	@echo "make bench-remote  a volume on nbdkit beside fio's engine nbd, nbdcopy and, on a distant one, fuse2fs"
	@echo "make bench-all    all of them, and docs/performance.md from their figures"
	@echo "make loom         model checks of the concurrent parts"
	@echo "make fuzz-short   each fuzz target for FUZZ_SECONDS (30)"
	@echo "make fuzz-night   each for FUZZ_SECONDS (3600), counted in fuzz/hours.tsv"
	@echo "make coverage     lines of format, journal and engine that hostile volumes reach, into docs/testing.md"
	@echo "make ci           what CI runs"

setup:
	@scripts/setup.sh

build: setup
	cargo build --release -p lanefs-cli -p lanefs-capi

static: setup
	@scripts/static.sh

ports: setup
	@scripts/ports.sh

install: build
	@scripts/install.sh release

uninstall:
	@scripts/uninstall.sh

# For the installed fio. `make install` installs the engine if it is there.
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

# The benchmarks have no tests; clippy checks that they compile.
test: judges
	@scripts/test.sh --beside volumes,judges,mounts --workspace --exclude lanefs-bench

torture: judges
	cargo run --release -p lanefs-tests --bin torture -- --faults $(ARGS)
	cargo run --release -p lanefs-tests --bin torture -- $(ARGS)
	cargo run --release -p lanefs-tests --bin torture -- --ones --settings aged

torture-night: judges
	cargo run --release -p lanefs-tests --bin torture -- --night $(ARGS)

schedules: judges
	@scripts/schedules.sh $(ARGS)

mutants: judges
	@scripts/mutants.sh $(ARGS)

judge-mount: judges
	@scripts/setup.sh --long
	@scripts/test.sh -p lanefs-cli --test judges -- --include-ignored --test-threads=2

judge-remote: judges
	@scripts/setup.sh --remote
	@scripts/test.sh -p lanefs-cli --test command --test mounts -- --include-ignored remote

judge-images: judges build
	@scripts/judge-images.sh

lint: setup
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	scripts/deny.sh
	RUSTDOCFLAGS=-Dwarnings cargo doc --workspace --no-deps

# Private items too: their doc comments are read as much as the public ones.
docs: setup
	cargo doc --workspace --no-deps --document-private-items

bench-%: judges
	cargo build --profile bench -p lanefs-cli
	cargo run --profile bench -p lanefs-bench --bin $* -- $(ARGS)

bench-images: judges
	@scripts/image-peers.sh
	cargo build --profile bench -p lanefs-cli
	cargo run --profile bench -p lanefs-bench --bin images -- $(ARGS)

bench-fio: judges
	cargo build --profile bench -p lanefs-capi
	@scripts/fio-engine.sh "$${CARGO_TARGET_DIR:-target}/release/liblanefs_capi.a" "$${CARGO_TARGET_DIR:-target}/release/liblanefs_fio.so"
	LANEFS_FIO_ENGINE="$${CARGO_TARGET_DIR:-target}/release/liblanefs_fio.so" cargo run --profile bench -p lanefs-bench --bin fio -- $(ARGS)

# Takes about half an hour. Nothing else may run on the machine meanwhile.
bench-all: judges
	@scripts/image-peers.sh
	cargo build --profile bench -p lanefs-cli
	for bench in foundation images write-path fsync scale mount remote check journal rangelock; do \
	  cargo run --profile bench -p lanefs-bench --bin $$bench -- $(ARGS) || exit 1; done
	$(MAKE) bench-fio
	cargo run --profile bench -p lanefs-bench --bin tables

loom: setup
	@scripts/loom.sh

fuzz-short: setup
	@scripts/fuzz.sh $${FUZZ_SECONDS:-30}

fuzz-night: setup
	@FUZZ_LEDGER=1 scripts/fuzz.sh $${FUZZ_SECONDS:-3600}

coverage: judges
	@scripts/coverage.sh

ci:
	@.ci/run
