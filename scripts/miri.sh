#!/usr/bin/env bash
# Runs the tests of lanefs-rangelock under Miri, which finds undefined behaviour and data races in
# the code that they run. Takes some minutes; the tests reduce their sizes for it. Needs a nightly
# toolchain with its component miri.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! cargo +nightly miri --version >&2; then
    echo "no Miri: rustup toolchain install nightly --component miri --component rust-src" >&2
    exit 1
fi
# Tree borrows: a leaf is shared memory with borrowed parts. No isolation: a waiter reads the clock.
export MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-tree-borrows ${MIRIFLAGS:-}"
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/miri
scripts/filtered.sh cargo +nightly miri test -p lanefs-rangelock --lib "$@"
