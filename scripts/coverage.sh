#!/usr/bin/env bash
# Measures the lines of the crates format, journal and engine that hostile volumes reach, and writes
# the table into docs/testing.md. The volumes are the folder of damaged images, and LANEFS_DAMAGED
# (400) volumes of each shape that are damaged here (tests/tests/corpus.rs and hostile.rs).
# Needs llvm-profdata and llvm-cov of LLVM 19 or later.
set -euo pipefail
cd "$(dirname "$0")/.."
version=
for candidate in 22 21 20 19; do
    if command -v "llvm-cov-$candidate" >/dev/null; then
        version=$candidate
        break
    fi
done
if [ -z "$version" ]; then
    echo "there is no llvm-cov of LLVM 19 or later. Run:  apt-get install llvm-19" >&2
    exit 1
fi
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")/coverage
profiles=$target/profiles
rm -rf "$profiles"
mkdir -p "$profiles"
export LANEFS_SEED=${LANEFS_SEED:-1} LANEFS_DAMAGED=${LANEFS_DAMAGED:-400}
RUSTFLAGS="-C instrument-coverage" cargo test -p lanefs-tests --test corpus --test hostile --target-dir "$target" --no-run 2>&1 |
    tee "$target/build.log" >&2
mapfile -t binaries < <(sed -n 's/^ *Executable .*(\(.*\))$/\1/p' "$target/build.log")
objects=()
for binary in "${binaries[@]}"; do
    binary=$(realpath "$binary")
    (cd tests && LLVM_PROFILE_FILE="$profiles/%p.profraw" "$binary" > "$profiles/$(basename "$binary").log")
    objects+=(-object "$binary")
done
"llvm-profdata-$version" merge -sparse "$profiles"/*.profraw -o "$target/all.profdata"
"llvm-cov-$version" report -instr-profile="$target/all.profdata" "${objects[@]:1}" > "$target/report.txt"

table=$target/table.md
{
    echo "| crate | lines | reached | |"
    echo "|---|---|---|---|"
    awk '
        match($1, /crates\/(format|journal|engine)\/src/) {
            split(substr($1, RSTART, RLENGTH), part, "/")
            lines[part[2]] += $8
            missed[part[2]] += $9
        }
        END {
            split("format journal engine", names, " ")
            for (i = 1; i <= 3; i++) {
                name = names[i]
                reached = lines[name] - missed[name]
                printf "| %s | %d | %d | %.1f %% |\n", name, lines[name], reached, 100 * reached / lines[name]
            }
        }' "$target/report.txt"
} > "$table"
cat "$table"
page=docs/testing.md
awk -v table="$table" -v what="Crates of commit $(git log -1 --format=%h -- crates), $LANEFS_DAMAGED damaged volumes of each shape, seed $LANEFS_SEED." '
    /<!-- coverage -->/ { print; print what; print ""; while ((getline line < table) > 0) print line; skip = 1 }
    /<!-- end of coverage -->/ { skip = 0 }
    !skip { print }' "$page" > "$target/page.md"
cp "$target/page.md" "$page"
