#!/usr/bin/env bash
# Installs the packages that this machine lacks for a build. --demo adds that of the demo's judge,
# --test also those of tests and benchmarks; to these --long adds those of the long judges, --images
# those of bench-images, --boot those of judge-images, --remote those of judge-remote. Silent when
# nothing is missing.
set -euo pipefail

if ! command -v cargo >/dev/null; then
    if [ -x "${CARGO_HOME:-$HOME/.cargo}/bin/cargo" ]; then
        echo "cargo is installed, but not in PATH. Run:  . \"${CARGO_HOME:-$HOME/.cargo}/env\"" >&2
    elif [ -n "${SUDO_USER:-}" ]; then
        echo "root has no Rust. To install what $SUDO_USER builds:  make build && sudo scripts/install.sh release" >&2
    else
        echo "There is no Rust here. Run:  curl -sSf https://sh.rustup.rs | sh -s -- -y && . ~/.cargo/env" >&2
    fi
    exit 1
fi

PATH=$PATH:/usr/sbin:/sbin
packages=()
need() { command -v "$1" >/dev/null || packages+=("$2"); }
need cc gcc
# The headers of the C library: gcc only recommends them.
echo '#include <stdio.h>' | cc -E -x c - >/dev/null 2>&1 || packages+=(libc6-dev)
[ -z "${1:-}" ] || need e2fsck e2fsprogs
# Judges and peers.
if [ -n "${1:-}" ] && [ "$1" != --demo ]; then
    need c++ g++
    need chromium chromium
    need dbench dbench
    need debugfs e2fsprogs
    need fio fio
    need flock util-linux
    need fsverity fsverity
    need fuse2fs fuse2fs
    need fusermount3 fuse3
    need git git
    need losetup mount
    need make make
    need mke2fs e2fsprogs
    need mount mount
    need patch patch
    need pkg-config pkg-config
    need mkfs.vfat dosfstools
    need mkfs.xfs xfsprogs
    need nbdcopy libnbd-bin
    need nbdkit nbdkit
    need openssl openssl
    need pgrep procps
    need readelf binutils
    need rsync rsync
    need script bsdutils
    need sfdisk fdisk
    need sgdisk gdisk
    need setfacl acl
    need setfattr attr
    need simg2img android-sdk-libsparse-utils
    need skopeo skopeo
    need sqlite3 sqlite3
    need tar tar
    need umoci umoci
    need unshare util-linux
    need veritysetup cryptsetup-bin
    [ -x /usr/bin/time ] || packages+=(time)
    # The font of charts.
    [ -d /usr/share/fonts/truetype ] || packages+=(fonts-dejavu-core)
fi
# Needed by `make bench-images` only.
if [ "${1:-}" = --images ]; then
    need go golang-go
    need mmdebstrap mmdebstrap
    need zstd zstd
fi
# Needed by `make judge-images` only.
if [ "${1:-}" = --boot ]; then
    need busybox busybox-static
    need depmod kmod
    need mmdebstrap mmdebstrap
    need qemu-system-x86_64 qemu-system-x86
fi
# Needed by `make judge-remote` only.
if [ "${1:-}" = --remote ]; then
    need nbd-server nbd-server
    need qemu-nbd qemu-utils
    need qemu-storage-daemon qemu-system-common
    need ceph-mgr ceph-mgr
    need ceph-mon ceph-mon
    need ceph-osd ceph-osd
    need rbd ceph-common
    need radosgw radosgw
    compgen -G '/usr/lib/*/nbdkit/plugins/nbdkit-S3-plugin' >/dev/null || packages+=(nbdkit-plugin-python)
    compgen -G '/usr/lib/*/librbd.so.1' >/dev/null || packages+=(librbd1)
    compgen -G '/usr/lib/*/qemu/block-rbd.so' >/dev/null || packages+=(qemu-block-extra)
fi
# Needed by `make judge-mount` only.
if [ "${1:-}" = --long ]; then
    compgen -G '/usr/lib/postgresql/*/bin/pg_amcheck' >/dev/null || packages+=(postgresql)
    [ -e /usr/include/lmdb.h ] || packages+=(liblmdb-dev)
    need mdb_stat lmdb-utils
    need stress-ng stress-ng
fi
[ ${#packages[@]} -gt 0 ] || exit 0

mapfile -t packages < <(printf '%s\n' "${packages[@]}" | sort -u)
if ! command -v apt-get >/dev/null; then
    echo "Missing: ${packages[*]} (Debian's names). Install them with this system's package manager." >&2
    exit 1
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "Missing: ${packages[*]}. Run as root:  apt-get install ${packages[*]}" >&2
        exit 1
    fi
    as_root=(sudo)
fi
echo "installing ${packages[*]}" >&2
install=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${packages[@]}")
# The package lists may be absent or stale: fetch them only if the first try fails.
"${install[@]}" >/dev/null 2>&1 || { "${as_root[@]}" apt-get update -q >&2 && "${install[@]}" >&2; }
