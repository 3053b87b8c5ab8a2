#!/usr/bin/env bash
# Runs each fuzz target for a while: scripts/fuzz.sh [SECONDS [TARGET...]]. Uses the stable
# toolchain, and passes libFuzzer's instrumentation flags itself. A crash leaves its input in
# fuzz/artifacts and fails the run. An input may take 20 seconds and 1 GiB. With FUZZ_LEDGER=1 each
# target appends a line with its processor time to fuzz/hours.tsv.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-30}
shift || true
if [ ! -f fuzz/Cargo.toml ]; then
    echo "there is no fuzz/Cargo.toml" >&2
    exit 1
fi
host=$(rustc -vV | sed -n 's/^host: //p')
target_dir=$(realpath -m "${CARGO_TARGET_DIR:-target}")/fuzz
export RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares -Clink-dead-code -Ccodegen-units=1 --cfg fuzzing"
cargo build --release --manifest-path fuzz/Cargo.toml --target "$host" --target-dir "$target_dir"
unset RUSTFLAGS

# Targets leave files behind: libFuzzer ends them by exit(3).
TMPDIR=$(mktemp -d "${TMPDIR:-/tmp}/lanefs-fuzz.XXXXXX")
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT

if [ $# -gt 0 ]; then
    targets=("$@")
else
    mapfile -t targets < <(find fuzz/fuzz_targets -maxdepth 1 -name '*.rs' -exec basename {} .rs \; | sort)
fi

# Sets `spent` to the seconds of processor time of this shell's ended children. A subshell would
# count its own.
count_spent() {
    times > "$target_dir/times"
    spent=$(awk 'NR == 2 { split($1 "m" $2, t, "[ms]+"); print int(60 * (t[1] + t[3]) + t[2] + t[4]) }' "$target_dir/times")
}

for name in "${targets[@]}"; do
    count_spent
    before=$spent
    echo "fuzz: $name for $seconds s" >&2
    mkdir -p "fuzz/corpus/$name" "fuzz/artifacts/$name"
    seeds=()
    [ ! -d "fuzz/seeds/$name" ] || seeds=("fuzz/seeds/$name")
    log=$target_dir/$name.log
    status=0
    "$target_dir/$host/release/$name" -max_total_time="$seconds" -seed="${FUZZ_SEED:-1}" -timeout=20 -rss_limit_mb=1024 \
        -print_final_stats=1 -artifact_prefix="fuzz/artifacts/$name/" "fuzz/corpus/$name" "${seeds[@]}" 2>&1 | tee "$log" >&2 || status=$?
    if [ "${FUZZ_LEDGER:-0}" = 1 ]; then
        inputs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
        count_spent
        found=$([ "$status" -eq 0 ] && echo nothing || echo "exit status $status")
        printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$(date +%F)" "$(git rev-parse --short HEAD)" "$name" "$((spent - before))" "${inputs:-0}" \
            "$found" >> fuzz/hours.tsv
    fi
    [ "$status" -eq 0 ] || exit "$status"
done
