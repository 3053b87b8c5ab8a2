#!/usr/bin/env bash
# Installs the judges of the mount that come from crates.io, beside the build. Silent when nothing
# is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
judges=$target/judges
mkdir -p "$judges"
judges=$(cd "$judges" && pwd)

# Debug builds without debug information build faster, and their speed does not matter.
export CARGO_PROFILE_DEV_DEBUG=none
for crate in pjdfstest@0.2.2 fsx@0.3.2; do
    done=$judges/${crate/@/-}
    [ ! -e "$done" ] || continue
    echo "installing $crate" >&2
    # Outside of this workspace, whose settings are not for it.
    (cd / && cargo install --quiet --debug --locked --root "$judges" --target-dir "$judges/build" "$crate")
    touch "$done"
done

# Fetches the C sources of zlib from a crate that has them: a project to unpack and build.
if [ ! -e "$judges/zlib.tar" ]; then
    echo "fetching libz-sys" >&2
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    mkdir "$scratch/src"
    printf '[package]\nname = "sources"\nversion = "0.0.0"\nedition = "2021"\n[dependencies]\nlibz-sys = "=1.1.23"\n' \
        >"$scratch/Cargo.toml"
    : >"$scratch/src/lib.rs"
    (cd "$scratch" && cargo vendor --quiet sources >/dev/null)
    tar -C "$scratch/sources" --sort=name -cf "$judges/zlib.tar.new" libz-sys
    mv "$judges/zlib.tar.new" "$judges/zlib.tar"
fi
