#!/usr/bin/env bash
# Makes Debian packages of a build, and prints their names: scripts/deb.sh PROFILE. The packages are
# the command with its mount (lanefs), the shared library (liblanefs0), and the files to build C
# programs with (liblanefs-dev). Their files are those of scripts/stage.sh. Needs only dpkg-deb.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
arch=$(dpkg --print-architecture)
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT

umask 022
libdir=/usr/lib/$(cc -print-multiarch)
command=$stage/lanefs
mkdir "$command"
PREFIX=/usr LIBDIR=$libdir DESTDIR=$command scripts/stage.sh "$1"
soname=$(cd "$command$libdir" && basename -- liblanefs.so.[0-9])
library=$stage/liblanefs${soname##*.}
dev=$stage/liblanefs-dev

mv "$command/usr/share/zsh/site-functions" "$command/usr/share/zsh/vendor-completions"
# An engine fits one version of fio only, so it is in no package.
rm -f "$command$libdir/liblanefs_fio.so"
# The files that C programs run with, and those that they are built with.
mkdir -p "$library$libdir" "$dev$libdir"
mv "$command$libdir"/liblanefs.so.* "$library$libdir/"
mv "$command$libdir"/* "$dev$libdir/"
mv "$command/usr/include" "$dev/usr/include"
rm -d "$command$libdir" "$command/usr/lib"
strip --strip-unneeded "$command/usr/bin/lanefs" "$library$libdir"/liblanefs.so.*.*
strip --strip-debug "$dev$libdir/liblanefs.a"
# Links stay relative to their compressed targets.
for page in "$command"/usr/share/man/man?/*; do
    if [ -L "$page" ]; then
        ln -s "$(readlink "$page").gz" "$page.gz"
        rm "$page"
    else
        gzip -9n "$page"
    fi
done
scripts/docs.sh "$command/usr/share/doc/lanefs"
install -D -m 644 docs/c-library.md "$dev/usr/share/doc/liblanefs-dev/docs/c-library.md"
install -D -m 644 -t "$dev/usr/share/doc/liblanefs-dev/examples/c" examples/c/*

# Prints the newest version of the C library that a file of a folder asks for.
libc() { objdump -T "$@" | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n 1 | sed 's/GLIBC_//'; }

# Makes the package of a folder: pack FOLDER SECTION TEXT, with more lines of its control file on
# standard input.
pack() {
    local root=$1 name=${1##*/}
    local doc=$root/usr/share/doc/$name package=$target/debian/${1##*/}_${version}_$arch.deb
    install -d "$doc" "$root/DEBIAN"
    gzip -9nc CHANGELOG.md > "$doc/changelog.gz"
    {
        echo "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/"
        printf '\nFiles: *\nCopyright: the authors of lanefs\nLicense: MIT or Apache-2.0\n\n'
        cat LICENSE-MIT
        printf '\nApache-2.0: see /usr/share/common-licenses/Apache-2.0\n'
    } > "$doc/copyright"
    {
        printf '%s\n' "Package: $name" "Version: $version" "Architecture: $arch" "Section: $2" "Priority: optional" \
            "Maintainer: the authors of lanefs <lanefs@localhost>" \
            "Installed-Size: $(du -sk --exclude=DEBIAN "$root" | cut -f1)"
        cat
        printf '%s\n' "Description: ext4 in user space: $3" \
            " Makes, fills, reads, edits, recovers and mounts real ext4 volumes without" \
            " the kernel's ext4, crash-safe through a real jbd2 journal."
    } > "$root/DEBIAN/control"
    (cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum > DEBIAN/md5sums)
    mkdir -p "$target/debian"
    dpkg-deb --root-owner-group -Zgzip --build "$root" "$package" >&2
    echo "$package"
}

mkdir "$library/DEBIAN"
echo "activate-noawait ldconfig" > "$library/DEBIAN/triggers"
pack "$command" admin "command and mount" <<CONTROL
Depends: libc6 (>= $(libc "$command/usr/bin/lanefs")), libgcc-s1
Recommends: fuse3
Suggests: liblanefs-dev, librbd1
CONTROL
pack "$library" libs "shared library" <<CONTROL
Depends: libc6 (>= $(libc "$library$libdir"/liblanefs.so.*.*)), libgcc-s1
CONTROL
pack "$dev" libdevel "headers and static library" <<CONTROL
Depends: ${library##*/} (= $version), libc6-dev
Suggests: pkg-config, lanefs
CONTROL
