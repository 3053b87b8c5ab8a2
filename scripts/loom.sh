#!/usr/bin/env bash
# Model checks: every crate whose sources or tests mention cfg(loom), with std's primitives replaced by loom's.
# Only tests with "loom" in their name run: ordinary ones would use loom's types outside of a model.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}/loom
for crate in rangelock journal; do
    grep -rqE 'fn loom_|mod loom' "crates/$crate" --include='*.rs' || continue
    echo "loom: lanefs-$crate" >&2
    RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=$target LOOM_MAX_PREEMPTIONS=${LOOM_MAX_PREEMPTIONS:-2} \
        cargo test --release -p "lanefs-$crate" loom
done
