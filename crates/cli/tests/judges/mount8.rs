//! Mounts as mount(8) and xfstests make them: `mount -t fuse.lanefs SRC DIR -o OPTS`, unmounts by
//! either program, busy mounts, and errors.

use crate::support::{Image, SIZE, bounded, judged, output, said};
use lanefs_tests::{Server, e2fsck_clean, private_mounts};
use std::fs;
use std::path::Path;
use std::process::Output;

/// Runs a script in a mount namespace of its own whose /usr/sbin has the mount helpers, as a
/// package would install them.
fn script(image: &Image, program: &Path, text: &str) -> Output {
    private_mounts();
    let dir = image.beside("");
    let prelude = r#"
        cd "$1"; mkdir -p real sbin mnt scratch
        mount --make-rprivate /
        mount --bind /usr/sbin real
        for f in "$PWD"/real/*; do ln -sf "$f" sbin/; done
        for name in mount.lanefs mount.fuse.lanefs umount.lanefs umount.fuse.lanefs; do ln -sf "$2" sbin/$name; done
        mount --bind sbin /usr/sbin
        lanefs() { "$LANEFS" "$@"; }; export LANEFS=$2
        fail() { echo "FAILED: $*" >&2; exit 1; }
        trap 'umount -l mnt scratch 2>/dev/null || true' EXIT
        # Exit status and one line of standard error, or it is a failure.
        wrong() {
            local want=$1 status=0; shift
            "$@" 2>err || status=$?
            [ "$status" = "$want" ] || fail "status $status, not $want: $*: $(cat err)"
            [ "$(wc -l <err)" = 1 ] || fail "not one line: $*: $(cat err)"
            echo "$*: $(cat err)"
        }
        cat /proc/sys/kernel/osrelease >/dev/null
    "#;
    let mut command = bounded(150, "unshare");
    command
        .args(["--mount", "bash", "-euo", "pipefail", "-c", &format!("{prelude}\n{text}"), "script"])
        .arg(&dir)
        .arg(program);
    output(&mut command)
}

fn run(text: &str) {
    let Server::Lanefs(program) = judged() else { return };
    let image = Image::new(SIZE, &[]);
    let out = script(&image, &program, text);
    assert!(out.status.success(), "{}\n{}", out.status, said(&out));
    println!("{}", said(&out));
    e2fsck_clean(&image.path);
}

/// What xfstests does with a test and a scratch device.
#[test]
fn as_xfstests_mounts() {
    run(r#"
        dev=$PWD/volume.img; opts=allow_other,default_permissions
        cp volume.img other.img
        for round in 1 2 3; do
            mount -t fuse.lanefs $dev $PWD/mnt -o $opts
            [ "$(findmnt -rncv -S $dev -o SOURCE,TARGET)" = "$dev $PWD/mnt" ] || fail "findmnt by source: $(findmnt -rncv -o SOURCE,TARGET,FSTYPE $PWD/mnt)"
            [ "$(findmnt -rncv -o FSTYPE $PWD/mnt)" = fuse.lanefs ] || fail type
            df -T $PWD/mnt | tail -1 | grep -q "^$dev  *fuse.lanefs " || fail "df: $(df -T mnt)"
            echo $round >>mnt/rounds
            # By device, then by folder.
            if [ $round = 1 ]; then umount $dev; else umount $PWD/mnt; fi
            ! mountpoint -q mnt || fail "still mounted"
            # The unmount is over when the volume can be used again.
            e2fsck -fn $dev >e2fsck.out || { cat e2fsck.out; fail "e2fsck right after the unmount"; }
        done
        # Two volumes at once, and options in other places.
        mount -t fuse.lanefs -o $opts,noatime $dev mnt
        mount -t lanefs -o rw,relatime,commit=7 other.img scratch
        [ "$(cat mnt/rounds | wc -l)" = 3 ] || fail content
        grep -q "$PWD/mnt .*noatime" /proc/self/mounts || fail "noatime: $(grep mnt /proc/self/mounts)"
        # The same volume twice.
        if mount -t fuse.lanefs $dev scratch/ -o $opts 2>err; then fail "mounted twice"; fi
        grep -qi "use\|busy\|mounted" err || fail "twice: $(cat err)"
        umount scratch
        # Busy.
        exec 5<mnt/rounds
        status=0; umount mnt 2>err || status=$?
        [ $status = 32 ] && grep -q busy err || fail "busy: $status $(cat err)"
        exec 5<&-
        ( cd mnt; status=0; umount $dev 2>$1/err || status=$?; [ $status = 32 ] ) || fail "busy by a working folder"
        # Read-only and back.
        mount -o remount,ro mnt
        if touch mnt/no 2>err; then fail "written although read-only"; fi
        grep -q "Read-only" err || fail "remount,ro: $(cat err)"
        mount -o remount,rw mnt; touch mnt/yes
        umount mnt
        mount -t fuse.lanefs -o ro,$opts $dev mnt
        [ -e mnt/yes ] || fail "lost by remounts"
        if touch mnt/no 2>/dev/null; then fail "written although read-only"; fi
        before=$(sha256sum <$dev); cat mnt/rounds >/dev/null; umount mnt
        [ "$before" = "$(sha256sum <$dev)" ] || fail "a read-only mount writes"
        # From fstab.
        echo "$dev $PWD/mnt fuse.lanefs $opts,noauto 0 0" >fstab
        mount -T fstab $PWD/mnt; touch mnt/fstab; umount mnt
        rm other.img
    "#);
}

/// umount(8) calls the helper of the type `fuse` for an absolute path, unless the mount names
/// another.
#[test]
fn umount_calls_the_helper_that_the_mount_names() {
    run(r#"
        rm sbin/umount.fuse.lanefs
        printf '#!/bin/sh\necho called >>"%s"\nexec "%s" umount "$1"\n' "$PWD/called" "$LANEFS" >sbin/umount.fuse.lanefs
        chmod 755 sbin/umount.fuse.lanefs
        mount -t lanefs -o uhelper=lanefs volume.img mnt
        umount $PWD/mnt
        [ "$(cat called)" = called ] || fail "the helper was not called"
    "#);
}

/// The command itself: in the background by default, and `lanefs umount`.
#[test]
fn in_the_background() {
    run(r#"
        "$LANEFS" mount volume.img mnt; mountpoint -q mnt || fail "not mounted when it returns"
        echo x >mnt/f; [ $(cat mnt/f) = x ]
        "$LANEFS" umount mnt; ! mountpoint -q mnt || fail "still mounted"
        e2fsck -fn volume.img >e2fsck.out || { cat e2fsck.out; fail "e2fsck right after lanefs umount"; }
        [ "$(debugfs -R 'cat /f' volume.img 2>/dev/null)" = x ]
        "$LANEFS" mount -o ro volume.img mnt; [ $(cat mnt/f) = x ]; ! touch mnt/no 2>/dev/null || fail ro
        "$LANEFS" umount mnt
        # On a loop device.
        loop=$(losetup --find --show volume.img)
        "$LANEFS" mount $loop mnt; echo y >mnt/f; "$LANEFS" umount mnt; losetup -d $loop
        [ "$(debugfs -R 'cat /f' volume.img 2>/dev/null)" = y ]
    "#);
}

/// An error is one line, with the exit status of mount(8).
#[test]
fn what_is_wrong_is_told_in_a_line() {
    run(r#"
        head -c 8M /dev/zero >zero.img; head -c 100 /dev/urandom >short.img; : >empty.img
        head -c 8M /dev/urandom >noise.img
        for v in zero short empty noise; do wrong 32 lanefs mount $v.img mnt; done
        wrong 32 lanefs mount missing.img mnt
        wrong 32 lanefs mount mnt scratch
        wrong 32 lanefs mount volume.img missing
        : >file; wrong 32 lanefs mount volume.img file
        wrong 1 lanefs mount -o no_such_option volume.img mnt
        wrong 1 lanefs mount -o commit=soon volume.img mnt
        wrong 1 lanefs mount -o data=everything volume.img mnt
        wrong 1 lanefs mount -o errors=ignore volume.img mnt; wrong 1 lanefs mount -o errors=panic volume.img mnt
        mke2fs -q -F -t ext4 -O encrypt feature.img 16M
        debugfs -w -R 'feature FEATURE_I20' feature.img 2>/dev/null; wrong 32 lanefs mount feature.img mnt
        cut() { head -c 4M volume.img >cut.img; }; cut; wrong 32 lanefs mount cut.img mnt
        lanefs mount volume.img mnt
        wrong 32 lanefs mount volume.img scratch
        # In use by the kernel.
        mke2fs -q -F -t ext4 used.img 16M; loop=$(losetup --find --show used.img); mount $loop scratch
        wrong 32 lanefs mount $loop mnt; umount scratch; losetup -d $loop
        exec 5>mnt/open; wrong 32 lanefs umount mnt; exec 5>&-
        lanefs umount mnt
        wrong 32 lanefs umount mnt; wrong 32 lanefs umount missing
        mount --bind /dev/null /dev/fuse; wrong 32 lanefs mount volume.img mnt; umount /dev/fuse
        [ "$(e2fsck -fn volume.img >/dev/null; echo $?)" = 0 ]
    "#);
}

/// Options with the kernel's names that must be taken.
#[test]
fn options_with_the_names_of_the_kernel() {
    run(r#"
        for o in noatime relatime strictatime lazytime nodiratime discard nodiscard data=ordered commit=5 barrier nobarrier \
            dioread_lock dioread_nolock errors=remount-ro errors=continue sync dirsync nosuid nodev noexec \
            ro rw delalloc nodelalloc i_version user_xattr acl noauto_da_alloc defaults \
            allow_other,default_permissions stripe=16 inode_readahead_blks=32 max_batch_time=15000 min_batch_time=0; do
            lanefs mount -o $o volume.img mnt 2>err || fail "$o: $(cat err)"
            ls mnt >/dev/null; lanefs umount mnt
        done
    "#);
}

/// The mount is one for its owner's programs; `fs` is read by all, as that of the kernel is.
#[test]
fn a_folder_of_root_is_not_for_others() {
    run(r#"
        chmod 755 . ; lanefs mount -o allow_other,default_permissions volume.img mnt
        chmod 755 mnt; echo all >mnt/all; (umask 077; echo mine >mnt/mine)
        as() { setpriv --reuid games --regid games --clear-groups "$@"; }
        [ "$(as cat mnt/all)" = all ]
        ! as cat mnt/mine 2>/dev/null || fail "read by another user"
        ! as touch mnt/new 2>/dev/null || fail "made by another user"
        setfacl -m u:games:r mnt/mine; [ "$(as cat mnt/mine)" = mine ] || fail "ACL is not honoured"
        setfacl -m u:games:--- mnt/all; ! as cat mnt/all 2>/dev/null || fail "ACL is not honoured"
        # A group by its ACL, a mask.
        setfacl -m u:games:rw,m::r mnt/mine; ! as sh -c 'echo x >>mnt/mine' 2>/dev/null || fail "mask is not honoured"
        # Set-id bits go when another writes.
        cp /bin/true mnt/true; chmod 6777 mnt/true; as sh -c 'echo >>mnt/true'
        [ "$(stat -c %a mnt/true)" = 777 ] || fail "set-id bits stay: $(stat -c %a mnt/true)"
        # New files take the group of a folder with set-gid, and its default ACL.
        mkdir -m 2777 mnt/shared; chgrp daemon mnt/shared; setfacl -d -m u:nobody:rwx mnt/shared
        as touch mnt/shared/f; [ "$(stat -c %U:%G mnt/shared/f)" = games:daemon ] || fail owner
        getfacl -cp mnt/shared/f | grep -q user:nobody || fail "default ACL is not inherited"
        lanefs umount mnt
    "#);
}

/// The kernel's own mount beside: the same lines hold there (a judge of the judges).
#[test]
fn namespaces_work_here() {
    let image = Image::new(SIZE, &[]);
    let out = script(
        &image,
        Path::new("/bin/false"),
        "mount -o loop volume.img mnt; echo x >mnt/f; umount mnt; wrong 1 bash -c 'echo one >&2; exit 1'",
    );
    assert!(out.status.success(), "{}\n{}", out.status, said(&out));
    let bad = script(&image, Path::new("/bin/false"), "wrong 2 bash -c 'echo one >&2; exit 1'");
    assert!(!bad.status.success());
    fs::remove_file(&image.path).unwrap();
}

/// Without root: by fusermount3, in a folder of the user's own, for that user only.
#[test]
fn a_user_mounts_what_is_his() {
    run(r#"
        # For all users, as udev has it.
        mkdir dev; mount -t tmpfs tmpfs dev; mknod -m 666 dev/fuse c 10 229; mount --bind dev/fuse /dev/fuse
        mkdir home; cp volume.img home/; chown -R games:games home; chmod 755 .
        cp "$LANEFS" program; chmod 755 program
        as() { setpriv --reuid games --regid games --clear-groups env HOME=/ "$@"; }
        as mkdir home/mnt
        as ./program mount home/volume.img home/mnt
        [ "$(findmnt -rncv -o FSTYPE $PWD/home/mnt)" = fuse.lanefs ] || fail "type: $(findmnt -rncv -o FSTYPE $PWD/home/mnt)"
        # The volume's folder is root's, as the kernel's would be.
        as ls home/mnt >/dev/null
        status=0; as ./program umount home/mnt || status=$?; [ $status = 0 ] || fail "umount by the user: $status"
        as ./program mount -o ro home/volume.img home/mnt; as fusermount3 -u home/mnt
        e2fsck -fn home/volume.img >e2fsck.out || { cat e2fsck.out; fail e2fsck; }
        # Another's folder is not his.
        status=0; as ./program mount home/volume.img mnt 2>err || status=$?; [ $status != 0 ] || fail "mounted over a folder of root"
    "#);
}
