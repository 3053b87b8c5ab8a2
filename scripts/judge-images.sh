#!/usr/bin/env bash
# Judges built images with foreign programs. Builds a Debian root file system of three layers,
# checks it with e2fsck, and compares it with the tree that `umoci unpack` makes as root. Then
# Debian's kernel boots it in QEMU without KVM, writes to it, and reads it through dm-verity, which
# must refuse a changed block. Needs root, loop devices and an x86-64 Debian.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/sbin:/sbin
export LC_ALL=C
[ "$(id -u)" -eq 0 ] || { echo "judge-images needs root: owners, devices and a loop mount" >&2; exit 1; }
[ "$(uname -m)" = x86_64 ] || { echo "judge-images boots Debian's kernel for x86-64, and this is $(uname -m)" >&2; exit 1; }
scripts/setup.sh --boot
target=$(realpath "${CARGO_TARGET_DIR:-target}")
lanefs=${LANEFS:-$target/release/lanefs}
judges=$target/judges/images
boot=$target/judges/boot
mkdir -p "$judges" "$boot"
dir=$(mktemp -d "${TMPDIR:-/tmp}/lanefs-images.XXXXXX")
cleanup() {
    ! mountpoint --quiet "$dir/mnt" || umount "$dir/mnt"
    rm -rf "$dir"
}
trap cleanup EXIT

fail() { echo "FAILED $*" >&2; exit 1; }
began=$SECONDS step=$SECONDS
ok() {
    echo "ok $* ($((SECONDS - step)) s)"
    step=$SECONDS
}

# Makes $judges/rootfs.tar, once: a Debian of the suite of this system.
fetch_rootfs() {
    [ ! -e "$judges/rootfs.tar" ] || return 0
    local suite
    suite=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
    mmdebstrap --quiet --variant=minbase "$suite" "$dir/rootfs.tar" || fail "mmdebstrap: no root file system of $suite"
    mv "$dir/rootfs.tar" "$judges/rootfs.tar"
}

# Unpacks Debian's kernel and its modules into $boot/tree, once. It is not installed.
fetch_kernel() {
    [ ! -e "$boot/tree" ] || return 0
    local package
    package=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: //p' | head -n 1)
    [ -n "$package" ] || fail "apt knows no linux-image-cloud-amd64"
    mkdir "$dir/kernel"
    chmod 755 "$dir"
    (cd "$dir/kernel" && apt-get -q=2 -o APT::Sandbox::User=root download "$package") || fail "apt-get download $package"
    dpkg -x "$dir"/kernel/*.deb "$dir/tree"
    depmod -b "$dir/tree" "${package#linux-image-}"
    mv "$dir/tree" "$boot/tree"
}

# Archives a folder as a layer, with attributes and with times in nanoseconds. Arguments: layer,
# folder, options of tar.
layer() { tar --format=pax --xattrs --xattrs-include='*' --sort=name -C "$2" -cf "$dir/$1.tar" "${@:3}" .; }

# Makes the image $dir/layout:app of two layers that share the root file system between them, and a
# third with whiteouts, an opaque directory, attributes, a device, a fifo, and hard links to a file
# of the first layer.
make_image() {
    local root=$dir/root top=$dir/top name
    mkdir "$root" "$top"
    tar --xattrs --xattrs-include='*' --numeric-owner -C "$root" -xpf "$judges/rootfs.tar"
    setfattr -n user.origin -v base "$root/usr/bin/env" "$root/usr/share"
    # cap_net_raw+p
    setfattr -n security.capability -v 0x0100000200200000000000000000000000000000 "$root/usr/bin/sort"
    layer base "$root" --exclude=./usr/share --exclude=./var
    tar --format=pax --xattrs --xattrs-include='*' --sort=name -C "$root" -cf "$dir/app.tar" ./usr/share ./var

    mkdir -p "$top/usr/bin" "$top/usr/share/doc" "$top/srv"
    : >"$top/usr/share/.wh.man"
    : >"$top/usr/share/doc/.wh..wh..opq"
    : >"$top/etc-is-kept"
    echo "of the top" >"$top/usr/share/doc/README"
    setfattr -n trusted.note -v top "$top/usr/share/doc/README"
    mknod "$top/srv/null" c 1 3
    mkfifo "$top/srv/fifo"
    ln -s "$(printf 'x%.0s' {1..200})" "$top/srv/long"
    dd if=/dev/urandom of="$top/srv/hole" bs=4096 count=1 seek=1000 status=none
    chown -h 70000:4000000000 "$top"/srv/*
    cp -a "$root/usr/bin/env" "$top/usr/bin/env"
    ln "$top/usr/bin/env" "$top/usr/bin/a-link-to-env"
    ln "$top/usr/bin/env" "$top/usr/bin/env-again"
    # The archive has the links after the file, which is then removed: they lead to the first
    # layer's.
    tar --format=pax --xattrs --xattrs-include='*' -C "$top" -cf "$dir/top.tar" --no-recursion \
        ./etc-is-kept ./srv ./srv/null ./srv/fifo ./srv/long ./srv/hole ./usr/share/.wh.man ./usr/share/doc \
        ./usr/share/doc/.wh..wh..opq ./usr/share/doc/README ./usr/bin/env ./usr/bin/a-link-to-env ./usr/bin/env-again
    tar --delete -f "$dir/top.tar" ./usr/bin/env

    umoci init --layout "$dir/layout"
    umoci new --image "$dir/layout:app"
    for name in base app top; do
        umoci raw add-layer --image "$dir/layout:app" "$dir/$name.tar"
    done
    umoci unpack --image "$dir/layout:app" "$dir/bundle"
    rm -rf "$root" "$top" "$dir"/*.tar
    [ ! -e "$dir/bundle/rootfs/usr/share/man" ] || fail "umoci keeps what a whiteout names"
}

# Lists the attributes of a tree that a volume has to keep, without the volume's own lost+found.
listing() (
    cd "$1"
    everything() { find . -path ./lost+found -prune -o "$@"; }
    everything -printf '%P type %y mode %m owner %U:%G mtime %T@ link %l\n' | sort
    everything ! -type d -printf '%P links %n size %s\n' | sort
    everything \( -type b -o -type c \) -print0 | sort -z | xargs -0r stat --format='%n device %t:%T'
    everything -type f -links +1 -printf '%P\t%i\n' | sort |
        awk -F '\t' '{ if (!($2 in first)) first[$2] = $1; print $1 " is a link of " first[$2] }'
    everything -print0 | sort -z | xargs -0 getfattr --no-dereference --dump --match=- --encoding=hex --
    everything -type f -print0 | sort -z | xargs -0 sha256sum
)

# Compares a volume, mounted by this machine's kernel, with the folder that umoci made.
compare() {
    mkdir -p "$dir/mnt"
    mount -o loop,ro "$1" "$dir/mnt"
    listing "$dir/mnt" >"$dir/is"
    umount "$dir/mnt"
    listing "$dir/bundle/rootfs" >"$dir/expected"
    if ! diff "$dir/expected" "$dir/is" >"$dir/differences"; then
        head -n 40 "$dir/differences" >&2
        fail "umoci's tree (<) and the volume (>) differ in $(grep -c '^[<>]' "$dir/differences") lines"
    fi
}

e2fsck_clean() { e2fsck -fn "$1" >"$dir/e2fsck" 2>&1 || { cat "$dir/e2fsck" >&2; fail "e2fsck -fn: $2"; }; }

# Computes the digest of names and contents of all files below the current folder: one text, for
# this system and the guest. shellcheck disable=SC2016 # The shells that run it expand it.
digest='sums=$(find . -xdev -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum) && printf "%s\n" "$sums" | sha256sum'

# Copies a program of this system and its libraries into a folder.
copy_program() {
    local program library
    program=$(command -v "$1")
    install -D "$program" "$2/bin/$1"
    for library in $(ldd "$program" 2>/dev/null | grep -o '/[^ ]*' || true); do
        install -D "$library" "$2$library"
    done
}

# Makes the first program of a guest, $dir/initramfs. It mounts the root, and continues in the shell
# there.
make_initramfs() {
    local tree=$dir/initramfs.d version count=100 kind module
    mkdir -p "$tree/modules" "$tree/dev" "$tree/proc" "$tree/sys" "$tree/run" "$tree/new"
    copy_program busybox "$tree"
    copy_program veritysetup "$tree"
    version=$(basename "$boot"/tree/lib/modules/*)
    modprobe -d "$boot/tree" -S "$version" --show-depends --all virtio_pci virtio_blk dm-verity >"$dir/modules"
    while read -r kind module _; do
        [ "$kind" = insmod ] || continue
        count=$((count + 1))
        cp "$module" "$tree/modules/$count-$(basename "$module")"
    done <"$dir/modules"
    cat >"$tree/check" <<END
cd /
echo "digest \$($digest)"
if [ "\$1" = rw ]; then
    dpkg --version >/booted && dpkg --audit && cp -a /usr/bin/env /copied && rm /etc-is-kept && sync || exit 1
    mount -o remount,ro / || exit 1
fi
echo "root is good"
echo o >/proc/sysrq-trigger
# The disk goes away just before the power: nothing can be read any more, not even a waiting
# program.
while :; do :; done
END
    cat >"$tree/init" <<'END'
#!/bin/busybox sh
busybox mount -t devtmpfs dev /dev
busybox mount -t proc proc /proc
busybox mount -t sysfs sys /sys
for module in /modules/*; do busybox insmod "$module" 2>/dev/null; done
for word in $(busybox cat /proc/cmdline); do
    case $word in judge.*=*) eval "${word#judge.}" ;; esac
done
device=/dev/vda
if [ -n "$hash" ]; then
    device=/dev/mapper/verified
    DM_DISABLE_UDEV=1 veritysetup open --hash-offset "$offset" /dev/vda verified /dev/vda "$hash" || exit 1
fi
busybox mount -t ext4 -o "$mode" "$device" /new || exit 1
check=$(busybox cat /check)
busybox mount --move /dev /new/dev
busybox mount --move /proc /new/proc
busybox umount /sys
PATH=/usr/sbin:/usr/bin:/sbin:/bin exec busybox switch_root /new /bin/sh -c "$check" check "$mode"
END
    chmod 755 "$tree/init"
    (cd "$tree" && find . | busybox cpio -o -H newc 2>/dev/null) | gzip >"$dir/initramfs"
}

# Boots a volume, with the guest's console in $dir/serial. Arguments: image, rw or ro, then words
# for the guest.
run_guest() {
    local readonly=off
    [ "$2" = rw ] || readonly=on
    timeout 600 qemu-system-x86_64 -accel tcg -m 512 -nodefaults -display none -monitor none -serial stdio -no-reboot \
        -kernel "$boot"/tree/boot/vmlinuz-* -initrd "$dir/initramfs" \
        -drive "file=$1,format=raw,if=virtio,readonly=$readonly" \
        -append "console=ttyS0 panic=-1 judge.mode=$2 ${*:3}" </dev/null >"$dir/serial" 2>&1 ||
        { tail -n 40 "$dir/serial" >&2; fail "QEMU ended with $?"; }
    tr -d '\r' <"$dir/serial" >"$dir/said"
}

# Checks that a guest has read every file as umoci unpacked it, and has ended without a message of
# the file system.
guest_is_good() {
    if ! grep -qx "root is good" "$dir/said" || ! grep -qx "digest $content" "$dir/said" ||
        grep -E 'EXT4-fs (error|warning)|EXT4-fs.*recover|I/O error|verity.*corrupted|Call Trace' "$dir/said" >&2; then
        tail -n 40 "$dir/said" >&2
        fail "$1: expected digest $content"
    fi
}

fetch_rootfs
fetch_kernel
make_image
ok "image: three layers, $(find "$dir/bundle/rootfs" | wc -l) names, kernel $(basename "$boot"/tree/lib/modules/*)"
content=$(cd "$dir/bundle/rootfs" && sh -c "$digest")

"$lanefs" build --quiet "$dir/layout:app" "$dir/plain.img" --size fit+64M
e2fsck_clean "$dir/plain.img" "what was built"
compare "$dir/plain.img"
ok "tree: $(stat -c %s "$dir/plain.img") bytes, e2fsck -fn is content, $(wc -l <"$dir/is") lines are those of umoci unpack"

make_initramfs
run_guest "$dir/plain.img" rw
guest_is_good "boot"
e2fsck_clean "$dir/plain.img" "what a boot left"
"$lanefs" cat "$dir/plain.img:/booted" | grep -q dpkg || fail "what the guest wrote is not there"
"$lanefs" cat "$dir/plain.img:/copied" | cmp - "$dir/bundle/rootfs/usr/bin/env"
! "$lanefs" stat "$dir/plain.img:/etc-is-kept" >/dev/null 2>&1 || fail "what the guest removed is there"
ok "boot: root read and written, e2fsck -fn is content"

"$lanefs" build "$dir/layout:app" "$dir/verity.img" --verity >"$dir/made"
hash=$(sed -n 's/^Root hash *//p' "$dir/made")
offset=$(($(sed -n 's/^Data blocks *//p' "$dir/made") * 4096))
run_guest "$dir/verity.img" ro "judge.hash=$hash judge.offset=$offset"
guest_is_good "boot with dm-verity"
ok "boot with dm-verity: all files read"

file=/usr/share/common-licenses/GPL-3
block=$(debugfs -R "bmap $file 0" "$dir/verity.img" 2>/dev/null)
printf '\377' | dd of="$dir/verity.img" bs=1 seek=$((block * 4096)) conv=notrunc status=none
run_guest "$dir/verity.img" ro "judge.hash=$hash judge.offset=$offset"
if ! grep -q "verity: .*data block $block is corrupted" "$dir/said" || ! grep -q "$file: Input/output error" "$dir/said" ||
    grep -qx "digest $content" "$dir/said"; then
    tail -n 40 "$dir/said" >&2
    fail "a changed byte of block $block was read"
fi
ok "boot with dm-verity of a changed byte: block $block is refused"
echo "all judges are content, in $((SECONDS - began)) s"
