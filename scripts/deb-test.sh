#!/usr/bin/env bash
# Installs a package, uses it as a user would, removes it, and looks whether anything is left: scripts/deb-test.sh [PACKAGE]; without one,
# it is made of what make test has built. As root.
# The machine is as it was before, also if it fails.
set -euo pipefail
cd "$(dirname "$0")/.."
package=$(realpath "${1:-$(scripts/deb.sh debug)}")
if dpkg -s lanefs >/dev/null 2>&1; then
    echo "a package lanefs is installed here: this would remove it" >&2
    exit 1
fi
dir=$(mktemp -d)
files() { dpkg-deb --fsys-tarfile "$package" | tar -t | sed -n 's|^\.\(/.*[^/]\)$|\1|p'; }
present() { files | while read -r file; do [ -d "$file" ] || { [ ! -e "$file" ] && [ ! -L "$file" ]; } || echo "$file"; done; }
before=$(present)
[ -z "$before" ] || { echo "already there: $before" >&2; exit 1; }
cleanup() {
    ! mountpoint -q "$dir/mnt" || umount "$dir/mnt" || true
    dpkg -P lanefs >/dev/null 2>&1 || true
    rm -rf "$dir"
}
trap cleanup EXIT
cd "$dir"

dpkg -i "$package" >dpkg.log 2>&1 || { cat dpkg.log >&2; exit 1; }
lanefs --version
lanefs mkfs -q --size 64M disk.img
echo "from the package" > note
lanefs cp note disk.img:/note
for page in man1/lanefs.1 man1/lanefs-mkfs.1 man8/mount.lanefs.8 man8/mount.fuse.lanefs.8; do
    gzip -dc "/usr/share/man/$page.gz" | grep -q '^\.SH SYNOPSIS'
done
bash -n /usr/share/bash-completion/completions/lanefs
# shellcheck disable=SC2046 # pkg-config's words are several
cc -o notes /usr/share/doc/lanefs/examples/c/notes.c $(pkg-config --cflags --libs lanefs)
./notes disk.img "by the library" | grep -qx "by the library"
mkdir mnt
mount -t lanefs disk.img "$dir/mnt"
grep -qx "from the package" mnt/note
grep -qx "by the library" mnt/notes
umount mnt
e2fsck -fn disk.img

cd /
dpkg -r lanefs >"$dir/dpkg.log" 2>&1 || { cat "$dir/dpkg.log" >&2; exit 1; }
dpkg -P lanefs >"$dir/dpkg.log" 2>&1 || true
left=$(present)
[ -z "$left" ] || { echo "left behind: $left" >&2; exit 1; }
! dpkg -s lanefs >/dev/null 2>&1 || { echo "dpkg still knows it" >&2; exit 1; }
! ldconfig -p | grep -q liblanefs || { echo "the linker still knows it" >&2; exit 1; }
echo "installed, used, removed: nothing is left"
