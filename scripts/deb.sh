#!/usr/bin/env bash
# A Debian package of what was built: scripts/deb.sh PROFILE. Prints its name. What is in it is what scripts/install.sh installs:
# one list for both, and no tool but dpkg-deb.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
arch=$(dpkg --print-architecture)
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
root=$stage/lanefs
mkdir "$root"
chmod 755 "$root"

umask 022
libdir=/usr/lib/$(cc -print-multiarch)
PREFIX=/usr LIBDIR=$libdir DESTDIR=$root scripts/install.sh "$1"
mv "$root/usr/share/zsh/site-functions" "$root/usr/share/zsh/vendor-completions"
# An engine for one fio of one machine is none of a package.
rm -f "$root$libdir/liblanefs_fio.so"
strip --strip-unneeded "$root/usr/bin/lanefs" "$root$libdir"/liblanefs.so.*.*
strip --strip-debug "$root$libdir/liblanefs.a"
# Links stay relative to what they point at, once it is compressed.
for page in "$root"/usr/share/man/man?/*; do
    if [ -L "$page" ]; then
        ln -s "$(readlink "$page").gz" "$page.gz"
        rm "$page"
    else
        gzip -9n "$page"
    fi
done
doc=$root/usr/share/doc/lanefs
install -D -m 644 README.md "$doc/README.md"
install -m 644 docs/c-library.md docs/fio.md "$doc/"
gzip -9nc CHANGELOG.md > "$doc/changelog.gz"
cp -r examples "$doc/examples"
{
    echo "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/"
    printf '\nFiles: *\nCopyright: the authors of lanefs\nLicense: MIT or Apache-2.0\n\n'
    cat LICENSE-MIT
    printf '\nApache-2.0: see /usr/share/common-licenses/Apache-2.0\n'
} > "$doc/copyright"

# The newest version of the C library that anything in it asks for.
libc=$(for file in "$root/usr/bin/lanefs" "$root$libdir"/liblanefs.so.*.*; do objdump -T "$file"; done |
    grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n 1)
mkdir "$root/DEBIAN"
cat > "$root/DEBIAN/control" <<CONTROL
Package: lanefs
Version: $version
Architecture: $arch
Maintainer: the authors of lanefs <lanefs@localhost>
Installed-Size: $(du -sk --exclude=DEBIAN "$root" | cut -f1)
Depends: libc6 (>= ${libc#GLIBC_}), libgcc-s1
Recommends: fuse3
Suggests: fio, pkg-config
Section: admin
Priority: optional
Description: ext4 in user space: command, mount and C library
 Makes, fills, reads, edits, recovers and mounts real ext4 volumes without
 the kernel's ext4, crash-safe through a real jbd2 journal.
CONTROL
echo "activate-noawait ldconfig" > "$root/DEBIAN/triggers"
(cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum > DEBIAN/md5sums)
mkdir -p "$target/debian"
package=$target/debian/lanefs_${version}_$arch.deb
dpkg-deb --root-owner-group -Zgzip --build "$root" "$package" >&2
echo "$package"
