#!/usr/bin/env bash
# Installs a build: scripts/install.sh PROFILE, where PROFILE is a folder of the target folder
# (release, debug). Takes PREFIX (/usr/local), LIBDIR (PREFIX/lib) and DESTDIR. `mount -t lanefs`
# looks for its helper in /usr/sbin: PREFIX=/usr. Needs no Rust, so root may install what a user
# built.
#
# PREFIX/share/lanefs/installed lists each installed file (`f PATH`) and each new folder (`d PATH`),
# without DESTDIR: scripts/uninstall.sh removes these. Files of an earlier version that this one
# lacks are removed, and its folders if they are empty then.
set -euo pipefail
cd "$(dirname "$0")/.."
umask 022
export PREFIX=${PREFIX:-/usr/local}
to=${DESTDIR:-}
list=$PREFIX/share/lanefs/installed
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
stage=$scratch/stage
DESTDIR=$stage scripts/stage.sh "$1"
install -d -m 755 "$stage${list%/*}"
: > "$stage$list"

before=$scratch/before
cat "$to$list" > "$before" 2>/dev/null || : > "$before"
[ -z "$to" ] || mkdir -p "$to"
(cd "$stage" && find . -mindepth 1 -type d -printf '%P\n' | sort) | while IFS= read -r dir; do
    if [ ! -d "$to/$dir" ]; then
        mkdir -m 755 "$to/$dir"
        echo "d /$dir"
    else
        grep -xF "d /$dir" "$before" || true
    fi
done > "$scratch/now"
(cd "$stage" && find . -mindepth 1 ! -type d -printf '%P\n' | sort) | while IFS= read -r file; do
    cp -dp --remove-destination "$stage/$file" "$to/$file"
    echo "f /$file"
done >> "$scratch/now"
{ grep -vxFf "$scratch/now" "$before" || true; } > "$scratch/gone"
sed -n 's/^f //p' "$scratch/gone" | while IFS= read -r file; do
    rm -f "$to$file"
done
# The deepest folders first. One in which another program has put something stays in the list.
sed -n 's/^d //p' "$scratch/gone" | sort -r | while IFS= read -r dir; do
    [ ! -d "$to$dir" ] || rmdir --ignore-fail-on-non-empty "$to$dir"
    [ ! -d "$to$dir" ] || echo "d $dir"
done >> "$scratch/now"
install -m 644 "$scratch/now" "$to$list"
# The dynamic linker finds the library by its cache.
if [ -z "$to" ] && [ "$(id -u)" -eq 0 ]; then
    PATH=$PATH:/usr/sbin:/sbin
    ! command -v ldconfig >/dev/null || ldconfig
fi
