#!/usr/bin/env bash
# Copies a build below DESTDIR: scripts/stage.sh PROFILE, where PROFILE is a folder of the target
# folder (release, debug). Takes PREFIX (/usr/local) and LIBDIR (PREFIX/lib). It is the one list of
# installed files, for `make install` and for packages.
set -euo pipefail
cd "$(dirname "$0")/.."
from=$(realpath -m "${CARGO_TARGET_DIR:-target}")/$1
export PREFIX=${PREFIX:-/usr/local}
export LIBDIR=${LIBDIR:-$PREFIX/lib} DESTDIR=${DESTDIR:-}
to=$DESTDIR$PREFIX

install -D -m 755 "$from/lanefs" "$to/bin/lanefs"
install -d "$to/sbin"
for helper in mount.lanefs mount.fuse.lanefs umount.lanefs umount.fuse.lanefs; do
    ln -sf ../bin/lanefs "$to/sbin/$helper"
done
lib=$from
# The place where cargo test leaves it.
[ -e "$lib/liblanefs_capi.so" ] || lib=$from/deps
scripts/install-lib.sh "$lib"
if [ -e "$from/liblanefs_fio.so" ]; then
    install -D -m 755 "$from/liblanefs_fio.so" "$DESTDIR$LIBDIR/liblanefs_fio.so"
fi

pages=$(mktemp -d)
trap 'rm -rf "$pages"' EXIT
"$from/lanefs" pages "$pages"
for page in "$pages"/man?/*; do
    section=${page##*.}
    install -D -m 644 "$page" "$to/share/man/man$section/${page##*/}"
done
for helper in mount umount; do
    ln -sf "$helper.lanefs.8" "$to/share/man/man8/$helper.fuse.lanefs.8"
done
install -D -m 644 "$pages/completions/lanefs.bash" "$to/share/bash-completion/completions/lanefs"
install -D -m 644 "$pages/completions/_lanefs" "$to/share/zsh/site-functions/_lanefs"
install -D -m 644 "$pages/completions/lanefs.fish" "$to/share/fish/vendor_completions.d/lanefs.fish"
