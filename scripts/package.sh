#!/usr/bin/env bash
# Checks that `cargo publish` would upload every crate but those for tests, without a warning.
set -euo pipefail
cd "$(dirname "$0")/.."
said=$(cargo package --workspace --no-verify --offline --allow-dirty --exclude lanefs-sim --exclude lanefs-tests \
    --exclude lanefs-bench 2>&1) || { echo "$said" >&2; exit 1; }
! grep -A3 '^warning' <<<"$said" >&2 || exit 1
