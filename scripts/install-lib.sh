#!/usr/bin/env bash
# Installs a built library where C finds it: scripts/install-lib.sh FOLDER, where FOLDER has
# liblanefs_capi.so and .a. Takes PREFIX, LIBDIR and DESTDIR; changes nothing outside of DESTDIR.
set -euo pipefail
from=$(realpath "$1")
cd "$(dirname "$0")/.."
prefix=${PREFIX:-/usr/local}
libdir=${LIBDIR:-$prefix/lib}
dest=${DESTDIR:-}
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
soname=$(sed -n 's/^const SONAME: &str = "\(.*\)";/\1/p' crates/capi/build.rs)

install -D -m 644 crates/capi/include/lanefs.h "$dest$prefix/include/lanefs.h"
install -D -m 644 "$from/liblanefs_capi.a" "$dest$libdir/liblanefs.a"
install -D -m 755 "$from/liblanefs_capi.so" "$dest$libdir/liblanefs.so.$version"
ln -sf "liblanefs.so.$version" "$dest$libdir/$soname"
ln -sf "$soname" "$dest$libdir/liblanefs.so"
install -d "$dest$libdir/pkgconfig"
sed -e "s|@PREFIX@|$prefix|; s|@LIBDIR@|$libdir|; s|@VERSION@|$version|" crates/capi/lanefs.pc.in \
    > "$dest$libdir/pkgconfig/lanefs.pc"
