#!/usr/bin/env bash
# Builds the command as one static file that runs on any Linux of this processor: with musl in place
# of the system's C library, and without the lab. CI leaves it out: it shares no object with the
# other builds, and takes 273 s of processor time even in the dev profile.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(uname -m)-unknown-linux-musl
if ! rustup target list --installed 2>/dev/null | grep -qx "$target"; then
    command -v rustup >/dev/null || { echo "make static needs rustup, which has the library for $target" >&2; exit 1; }
    rustup target add "$target"
fi
# zstd and xz are compiled from C.
command -v musl-gcc >/dev/null || { echo "Missing: musl-gcc. Debian: apt-get install musl-tools" >&2; exit 1; }
profile=${1:-release}
cargo build --profile "$profile" --target "$target" -p lanefs-cli --no-default-features
[ "$profile" != dev ] || profile=debug
file=${CARGO_TARGET_DIR:-target}/$target/$profile/lanefs
if readelf -d "$file" | grep -q NEEDED; then
    echo "$file is not static" >&2
    exit 1
fi
"$file" --version
echo "$file"
