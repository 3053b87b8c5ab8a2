#!/usr/bin/env bash
# Proves that the tests can fail: scripts/mutants.sh [NAME...]. Each patch of tests/mutants breaks
# the code in one place. The script applies the patches, one at a time, to a copy of the checkout
# under target/mutants, and runs the command that has to notice. A patch begins with three lines:
#
#   # breaks: the defect
#   # killed-by: COMMAND
#   # finds: EXTENDED REGULAR EXPRESSION
#
# COMMAND is cargo run, cargo test or scripts/schedules.sh, built before the time counts. Its output
# must match the expression: a kill for another reason does not count.
#
# A mutant survives if its command passes, prints something else, or runs for longer than
# MUTANT_SECONDS (900). The exit status is 1 if any survives. target/mutants/table.md holds the
# table of the last run.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")/mutants
copy=$target/source
mkdir -p "$copy"
# Whole campaigns, of which `make test` takes a part.
export CARGO_TARGET_DIR=$target/build LANEFS_LONG=4

# Makes the copy equal to the checkout. An unchanged file keeps its time, so that cargo rebuilds
# only the files that a patch has changed.
refresh() {
    git ls-files -co --exclude-standard | while read -r file; do
        if [ -f "$file" ] && ! cmp -s "$file" "$copy/$file"; then
            mkdir -p "$(dirname "$copy/$file")"
            cp "$file" "$copy/$file"
        fi
    done
    # Files that the checkout no longer has would be built too.
    comm -13 <(git ls-files -co --exclude-standard | sort) <(cd "$copy" && find . -type f -printf '%P\n' | sort) |
        while read -r file; do rm "$copy/$file"; done
    rm -rf "$copy/target"
}

# Prints what line KEY of the patch says: field KEY PATCH.
field() {
    sed -n "1,3s/^# $1: //p" "$2"
}

# Prints the command that builds what COMMAND runs.
building() {
    case $1 in
        "cargo run "*) sed 's/^cargo run/cargo build/; s/ -- .*//' <<< "$1" ;;
        "cargo test "*) sed 's/ -- .*//; s/$/ --no-run/' <<< "$1" ;;
        "scripts/schedules.sh "*) echo "scripts/schedules.sh --build" ;;
    esac
}

tried=0 survivors=0
table=$target/table.md
printf '| mutant | what is broken | what kills it | seconds |\n|---|---|---|---:|\n' > "$table"
for patch in tests/mutants/*.patch; do
    name=$(basename "$patch" .patch)
    if [ $# -gt 0 ] && [[ " $* " != *" $name "* ]]; then
        continue
    fi
    breaks=$(field breaks "$patch") command=$(field killed-by "$patch") finds=$(field finds "$patch")
    build=$(building "$command")
    log=$target/$name.log
    refresh
    if [ -z "$breaks" ] || [ -z "$build" ] || [ -z "$finds" ]; then
        echo "$name: breaks, killed-by or finds is missing" >&2
        exit 2
    fi
    # A mutant that does not build is not killed.
    if ! patch -s -F0 -p1 -d "$copy" < "$patch" > "$log" 2>&1 || ! (cd "$copy" && $build) > "$log" 2>&1; then
        echo "$name: does not apply or does not build: $log" >&2
        exit 2
    fi
    began=$SECONDS status=0
    (cd "$copy" && timeout "${MUTANT_SECONDS:-900}" bash -c "$command") > "$log" 2>&1 || status=$?
    tried=$((tried + 1))
    if [ $status != 0 ] && [ $status != 124 ] && grep -qE -- "$finds" "$log"; then
        verdict="killed  "
    else
        survivors=$((survivors + 1)) verdict=SURVIVED
    fi
    seconds=$((SECONDS - began))
    echo "$verdict $name, $seconds s: $command"
    shown=${command#cargo }
    echo "| \`$name\` | $breaks | \`${shown//|/\\|}\` | $seconds |" >> "$table"
done
refresh
echo "$tried mutants, $survivors survived"
[ "$tried" -gt 0 ] && [ "$survivors" = 0 ]
