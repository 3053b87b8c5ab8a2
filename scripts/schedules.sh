#!/usr/bin/env bash
# Threads of a volume under the seeded scheduler: scripts/schedules.sh [OPTION...]. `--help` lists
# the options; --build only builds. All crates are built into a folder of their own, with the
# primitives of crates/sync replaced by the scheduler's, and with the lock order checked. --slice,
# which CI runs, first counts the writes that threads share.
set -euo pipefail
cd "$(dirname "$0")/.."
export RUSTFLAGS="--cfg lanefs_schedule" CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/schedule
if [ "${1:-}" = --slice ]; then
    cargo test -q -p lanefs-sync --lib
    cargo test -q -p lanefs-tests --test shared_writes
fi
cargo build -q -p lanefs-tests --bin schedules
[ "${1:-}" != --build ] || exit 0
exec "$CARGO_TARGET_DIR/debug/schedules" "$@"
