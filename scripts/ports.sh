#!/usr/bin/env bash
# Compiles the libraries for systems on which no test runs: macOS, Windows, and 32 bits. Needs
# rustup, which has the standard library of each. Leaves out zstd, xz, bzip2 and TLS, whose C code
# needs a cross compiler. Takes about a minute.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v rustup >/dev/null || { echo "make ports needs rustup, which has the standard library of each system" >&2; exit 1; }
export RUSTFLAGS="${RUSTFLAGS:-} -Dwarnings"
for target in aarch64-apple-darwin i686-unknown-linux-gnu x86_64-pc-windows-gnu; do
    rustup target list --installed | grep -qx "$target" || rustup target add "$target"
    echo "$target"
    cargo check -p lanefs -p lanefs-archive -p lanefs-check --no-default-features --target "$target"
done
