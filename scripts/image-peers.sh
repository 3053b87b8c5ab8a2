#!/usr/bin/env bash
# Makes the peer and the input of bench-images, beside the build: tar2ext4, and a Debian root file
# system as a tar archive. Both come from the servers that this system is set up for. Silent when
# both are there.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p "${CARGO_TARGET_DIR:-target}/judges"
judges=$(cd "${CARGO_TARGET_DIR:-target}/judges" && pwd)
scripts/setup.sh --images

if [ ! -e "$judges/tar2ext4" ]; then
    echo "building tar2ext4" >&2
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    module=github.com/Microsoft/hcsshim/cmd/tar2ext4
    (cd "$scratch" && go mod init peers && go get "$module@v0.11.7" && go build -o tar2ext4 "$module") >&2
    mv "$scratch/tar2ext4" "$judges/tar2ext4"
fi
if [ ! -e "$judges/rootfs.tar" ]; then
    echo "fetching a Debian root file system" >&2
    mmdebstrap --quiet --variant=important bookworm "$judges/rootfs.new.tar"
    mv "$judges/rootfs.new.tar" "$judges/rootfs.tar"
fi
