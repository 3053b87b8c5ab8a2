#!/usr/bin/env bash
# Model checks: runs the concurrent protocols with loom's primitives in place of std's. Each line
# names a crate and the tests that are models; other tests would use loom's types outside of a
# model.
set -euo pipefail
cd "$(dirname "$0")/.."
export RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/loom
export LOOM_MAX_PREEMPTIONS=${LOOM_MAX_PREEMPTIONS:-2}
# Models that would take minutes each with two preemptions.
export LOOM_LONG_PREEMPTIONS=${LOOM_LONG_PREEMPTIONS:-1}
models() {
    echo "loom: lanefs-$1" >&2
    scripts/filtered.sh cargo test --release -p "lanefs-$1" --lib -- "${@:2}"
}
models sync tests
models device lending
models journal gate:: baton:: flush::
models rangelock loom
