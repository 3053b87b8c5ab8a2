#!/usr/bin/env bash
# The tests of the crate with the most unsafe code, interpreted by Miri: undefined behaviour and data races in what they run.
# The tests make themselves small for it; some minutes. Needs a nightly toolchain with its component miri.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! cargo +nightly miri --version >&2; then
    echo "no Miri: rustup toolchain install nightly --component miri --component rust-src" >&2
    exit 1
fi
# Tree borrows: a leaf is shared memory of which parts are lent out. No isolation: a waiter asks for the time.
export MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-tree-borrows ${MIRIFLAGS:-}"
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/miri
cargo +nightly miri test -p lanefs-rangelock --lib "$@"
