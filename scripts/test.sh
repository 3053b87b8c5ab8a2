#!/usr/bin/env bash
# Runs tests, continues after a failure, and ends with a summary of about ten lines:
# scripts/test.sh [--beside NAME] ARGUMENT..., with the arguments of `cargo test`. The test binary
# NAME runs at the same time as the others, which mostly wait for programs and devices; its output
# comes behind theirs. Keeps all output in target/test.log. Temporary files go into a folder of this
# run; a file that is left there at the end counts as a failure.
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

# Runs the unit tests and test binaries but `beside`, then the examples in the documentation.
run_others() {
    local name others=() status=0
    for name in $(sed -nE 's|^ +Executable tests/.*/deps/(.*)-[0-9a-f]+\)$|\1|p' "$log.build" | sort -u); do
        [ "$name" = "$beside" ] || others+=(--test "$name")
    done
    cargo test --no-fail-fast --lib --bins "${others[@]}" "$@" || status=$?
    cargo test --no-fail-fast --doc "$@" || status=$?
    return "$status"
}

began=$SECONDS status=0 beside=
if [ "${1:-}" = --beside ]; then
    beside=$2
    shift 2
    cargo test --no-run "$@" 2>&1 | tee "$log.build"
    cargo test --test "$beside" "$@" > "$log.beside" 2>&1 &
    pid=$!
    run_others "$@" 2>&1 | tee "$log" || status=$?
    wait "$pid" || status=$?
    tee -a "$log" < "$log.beside"
    rm "$log.build" "$log.beside"
else
    cargo test --no-fail-fast "$@" 2>&1 | tee "$log" || status=$?
fi
left=$(cd "$TMPDIR" && find . -mindepth 1 -maxdepth 1 -printf '%P\n')
scripts/test-summary.sh "$status" "$((SECONDS - began))" "$left" < "$log"
