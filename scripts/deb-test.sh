#!/usr/bin/env bash
# Installs the packages, uses them as a user would, removes them, and checks that nothing is left:
# scripts/deb-test.sh [PACKAGE...]. Without arguments it makes them from the build of make test.
# Needs root. Leaves the machine as it was, also after a failure.
set -euo pipefail
cd "$(dirname "$0")/.."
names=(lanefs liblanefs0 liblanefs-dev)
if [ $# -gt 0 ]; then
    packages=("$@")
else
    mapfile -t packages < <(scripts/deb.sh debug)
fi
mapfile -t packages < <(realpath "${packages[@]}")
[ ${#packages[@]} = ${#names[@]} ] || { echo "not ${#names[@]} packages: ${packages[*]}" >&2; exit 1; }
if dpkg -s "${names[@]}" 2>/dev/null | grep -q '^Status: install'; then
    echo "a package of lanefs is installed here: this would remove it" >&2
    exit 1
fi
dir=$(mktemp -d)
files() {
    for package in "${packages[@]}"; do
        dpkg-deb --fsys-tarfile "$package" | tar -t | sed -n 's|^\.\(/.*[^/]\)$|\1|p'
    done
}
present() { files | while read -r file; do [ -d "$file" ] || { [ ! -e "$file" ] && [ ! -L "$file" ]; } || echo "$file"; done; }
before=$(present)
[ -z "$before" ] || { echo "already there: $before" >&2; exit 1; }
cleanup() {
    ! mountpoint -q "$dir/mnt" || umount "$dir/mnt" || true
    dpkg -P "${names[@]}" >/dev/null 2>&1 || true
    rm -rf "$dir"
}
trap cleanup EXIT
cd "$dir"

dpkg -i "${packages[@]}" >dpkg.log 2>&1 || { cat dpkg.log >&2; exit 1; }
lanefs --version
lanefs mkfs -q --size 64M disk.img
echo "from the package" > note
lanefs cp note disk.img:/note
for page in man1/lanefs.1 man1/lanefs-mkfs.1 man5/lanefs-mount-options.5 man8/mount.lanefs.8 man8/mount.fuse.lanefs.8; do
    gzip -dc "/usr/share/man/$page.gz" | grep -q '^\.SH SYNOPSIS'
done
bash -n /usr/share/bash-completion/completions/lanefs
# shellcheck disable=SC2046 # pkg-config prints several words
cc -o notes /usr/share/doc/liblanefs-dev/examples/c/notes.c $(pkg-config --cflags --libs lanefs)
./notes disk.img "by the library" | grep -qx "by the library"
# shellcheck disable=SC2046
cc -static -o whole /usr/share/doc/liblanefs-dev/examples/c/notes.c $(pkg-config --static --cflags --libs lanefs)
./whole disk.img "by itself" | grep -qx "by itself"
mkdir mnt
mount -t lanefs disk.img "$dir/mnt"
grep -qx "from the package" mnt/note
grep -qx "by the library" mnt/notes
umount mnt
e2fsck -fn disk.img

cd /
# A program built with the static library needs no package, nor does the command with its mount.
dpkg -r liblanefs-dev liblanefs0 >"$dir/dpkg.log" 2>&1 || { cat "$dir/dpkg.log" >&2; exit 1; }
lanefs ls "$dir/disk.img:/" | grep -qx notes
dpkg -r lanefs >"$dir/dpkg.log" 2>&1 || { cat "$dir/dpkg.log" >&2; exit 1; }
dpkg -P "${names[@]}" >"$dir/dpkg.log" 2>&1 || true
left=$(present)
[ -z "$left" ] || { echo "left behind: $left" >&2; exit 1; }
! dpkg -s "${names[@]}" 2>/dev/null | grep -q '^Package' || { echo "dpkg still knows one" >&2; exit 1; }
! ldconfig -p | grep -q liblanefs || { echo "the linker still knows it" >&2; exit 1; }
echo "installed, used, removed: nothing is left"
