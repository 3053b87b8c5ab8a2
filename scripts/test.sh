#!/usr/bin/env bash
# Runs tests, continues after a failure, and ends with a summary of about ten lines:
# scripts/test.sh [--beside NAME,...] ARGUMENT..., with the arguments of `cargo test`. The test
# binaries NAME run, one after the other, at the same time as the others, which mostly wait for
# programs and devices; their output comes behind that of the others. Keeps all output in
# target/test.log. Temporary files go into a folder of this run; a file that is left there at the
# end counts as a failure.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target"
log=$target/test.log
TMPDIR=$(mktemp -d "${TMPDIR:-/tmp}/lanefs-test.XXXXXX")
export TMPDIR
# Tests run programs as another user, who must be able to reach their files.
chmod 755 "$TMPDIR"

pid=
ended() {
    # What runs beside the others has a process group of its own.
    [ -z "$pid" ] || { kill -- -"$pid"; wait "$pid"; } 2>/dev/null || true
    # Removes nothing beyond a mount: that would be the content of a volume.
    rm -rf --one-file-system "$TMPDIR"
}
trap ended EXIT

# Runs the test binaries NAME,..., and beside them the others and the examples in the documentation.
run_beside() {
    local name names beside=() others=() status=0
    IFS=, read -ra names <<< "$1"
    for name in "${names[@]}"; do
        beside+=(--test "$name")
    done
    # The lines "Executable tests/NAME.rs (.../deps/NAME-HASH)" of cargo.
    for name in $(sed -nE 's|^ +Executable tests/.*/deps/(.*)-[0-9a-f]+\)$|\1|p' "$log" | sort -u); do
        [[ ,$1, == *,"$name",* ]] || others+=(--test "$name")
    done
    if [ "${#others[@]}" = 0 ]; then
        echo "cargo names no test binaries but $1" >&2
        return 1
    fi
    shift
    set -m
    cargo test --no-fail-fast "${beside[@]}" "$@" > "$log.beside" 2>&1 < /dev/null 3>&- &
    pid=$!
    set +m
    cargo test --no-fail-fast --lib --bins "${others[@]}" "$@" || status=$?
    cargo test --no-fail-fast --doc "$@" || status=$?
    wait "$pid" || status=$?
    pid=
    cat "$log.beside"
    rm "$log.beside"
    return "$status"
}

began=$SECONDS status=0
if [ "${1:-}" = --beside ]; then
    beside=$2
    shift 2
    export CARGO_TERM_COLOR=never CARGO_TERM_QUIET=false
    cargo test --no-run "$@" 2>&1 | tee "$log" || status=$?
    if [ "$status" = 0 ]; then
        # No pipe: bash would run the function in a subshell, and the trap would not know the pid.
        exec 3> >(tee "$log.run")
        shown=$!
        run_beside "$beside" "$@" >&3 2>&1 3>&- || status=$?
        exec 3>&-
        wait "$shown"
        mv "$log.run" "$log"
    fi
else
    cargo test --no-fail-fast "$@" 2>&1 | tee "$log" || status=$?
fi
left=$(cd "$TMPDIR" && find . -mindepth 1 -maxdepth 1 -printf '%P\n')
# The folder that `tests/src/images.rs` and the journal look for. Without it their tests pass.
if [ -z "${LANEFS_CORPUS:-}" ] && [ ! -d ../shared/corpus ]; then
    idle=$(grep -cE '^test .*(images_of_the_folder|the_corpus_recovers).* ok$' "$log" || true)
    [ "$idle" = 0 ] || printf '\n%d tests had no folder of damaged volumes, and judged nothing: LANEFS_CORPUS names one\n' "$idle"
fi
scripts/test-summary.sh "$status" "$((SECONDS - began))" "$left" < "$log"
