#!/usr/bin/env bash
# Runs tests, continues after a failure, and ends with a summary of about ten lines: scripts/test.sh
# ARGUMENT..., with the arguments of `cargo test`. Keeps all output in target/test.log. Temporary
# files go into a folder of this run; a file that is left there at the end counts as a failure.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target"
log=$target/test.log
TMPDIR=$(mktemp -d "${TMPDIR:-/tmp}/lanefs-test.XXXXXX")
export TMPDIR
# Tests run programs as another user, who must be able to reach their files.
chmod 755 "$TMPDIR"
# Removes nothing beyond a mount: that would be the content of a volume.
trap 'rm -rf --one-file-system "$TMPDIR"' EXIT

began=$SECONDS status=0
cargo test --no-fail-fast "$@" 2>&1 | tee "$log" || status=$?
left=$(cd "$TMPDIR" && find . -mindepth 1 -maxdepth 1 -printf '%P\n')
scripts/test-summary.sh "$status" "$((SECONDS - began))" "$left" < "$log"
