//! Mounts of a user on a volume of other owners: the options fakeroot, uid and gid.

use crate::support::{Image, succeed, tool};
use lanefs_tests::{Watchdog, private_mounts};

/// A root file system in an image that user 65534 owns.
fn volume() -> Image {
    private_mounts();
    let image = Image::new();
    let script = r#"
        export PATH="$PATH:$1"
        mkdir -p t/etc t/home/me t/tmp t/locked; cd t
        echo secret > etc/shadow; chown 0:42 etc/shadow; chmod 640 etc/shadow; echo old > etc/old
        chown 1000:1001 home/me; chmod 700 home/me; chmod 1777 tmp; echo x > tmp/of-root
        echo inside > locked/file; chmod 0 locked; cp /bin/true etc/true; chmod 0 etc/true; cd ..
        lanefs cp -a t/. v.img:/; cp "$1/lanefs" lanefs; chown -R 65534 . ; chmod 755 . lanefs; mkdir m; chown 65534 m v.img
    "#;
    let bin = std::path::Path::new(env!("CARGO_BIN_EXE_lanefs")).parent().unwrap();
    succeed(tool("bash").args(["-euc", script, "-"]).arg(bin).current_dir(image.beside("")));
    image
}

/// Runs `script`, in which `user` runs a command as that user, `is A B` compares, and `fails` runs
/// what must fail: a `!` does not end a script.
fn as_user(image: &Image, script: &str) {
    let _watchdog = Watchdog::new("a mount of a user");
    let head = r#"
        mount --make-rprivate /
        mkdir -p dev; mount -t tmpfs tmpfs dev; mknod -m 666 dev/fuse c 10 229; mount --bind dev/fuse /dev/fuse
        user() { setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; }
        is() { [ "$1" = "$2" ] || { echo "$1 is not $2" >&2; exit 1; }; }
        fails() { if "$@"; then echo "$* does not fail" >&2; exit 1; fi; }
        export -f is fails
    "#;
    let mut alone = tool("unshare");
    let script = format!("{head}\n{script}\numount dev /dev/fuse");
    succeed(alone.args(["--mount", "bash", "-euxc", &script]).current_dir(image.beside("")));
    image.fsck();
}

#[test]
fn with_fakeroot_a_user_is_root_on_his_volume() {
    let image = volume();
    as_user(
        &image,
        r#"
        user ./lanefs mount v.img m
        fails user cat m/etc/shadow
        user ./lanefs umount m
        fails user ./lanefs mount -o fakeroot,allow_other v.img m
        fails ./lanefs mount -o fakeroot,allow_other v.img m
        ./lanefs mount v.img m; setfattr -n trusted.a -v b m/etc/shadow; ./lanefs umount m
        user ./lanefs mount -o fakeroot v.img m
        findmnt -no VFS-OPTIONS m | grep -q nosuid,nodev
        user bash -euxc '
            is "$(cat m/etc/shadow)" secret; is "$(cat m/locked/file)" inside
            echo new > m/etc/shadow; is "$(stat -c %u:%g:%a m/etc/shadow)" 0:42:640
            touch m/etc/made; is "$(stat -c %u:%g m/etc/made)" 65534:65534
            chown 33:44 m/etc/made; chmod 4755 m/etc/made; is "$(stat -c %u:%g:%a m/etc/made)" 33:44:4755
            mkdir m/etc/dir; mv m/etc/made m/etc/dir/; ln m/etc/shadow m/etc/link; rm m/etc/old
            touch -d @5 m/etc/shadow; is "$(stat -c %Y m/etc/shadow)" 5; setfattr -n user.a -v b m/etc/shadow
            fails m/etc/true; fails test -x m/etc/shadow; fails test -x m/etc/true; test -x m/locked; test -w m/etc/shadow
            fails bash -c "getfattr -m - m/etc/shadow | grep trusted"
            touch m/own; chmod 644 m/own; is "$(stat -c %a m/own)" 644
            setfacl -m u:5:rwx m/own; is "$(stat -c %a m/own)" 674
            rm m/tmp/of-root
            fails mknod m/etc/null c 1 3; fails chattr +A m/etc/shadow; fails setfattr -n trusted.a -v b m/etc/shadow
        '
        # Nobody else comes in, and so nobody else becomes root.
        fails cat m/etc/shadow
        fails setpriv --reuid 2 --clear-groups cat m/etc/shadow
        user ./lanefs umount m
        ./lanefs mount -o fakeroot v.img m
        fails setpriv --reuid 2 --clear-groups ls m
        ./lanefs umount m
        "#,
    );
    assert_eq!(image.ok(["stat", "-c", "%u:%g:%a", "v.img:/etc/dir/made"]), "33:44:4755\n");
    assert_eq!(image.ok(["cat", "v.img:/etc/link"]), "new\n");
}

#[test]
fn with_uid_all_files_have_one_owner() {
    let image = volume();
    as_user(
        &image,
        r#"
        user ./lanefs mount -o uid=65534,gid=65534 v.img m
        user bash -euxc '
            is "$(cat m/etc/shadow)" secret; is "$(stat -c %u:%g:%a m/etc/shadow)" 65534:65534:640
            is "$(find m ! -user 65534 -o ! -group 65534)" ""
            touch m/etc/made m/home/me/made; mkdir m/home/me/dir; ln -s x m/home/me/link
            # Modes count as the owner has them.
            fails ls m/locked; chmod 700 m/locked; is "$(cat m/locked/file)" inside
            chmod 440 m/etc/shadow; fails bash -c "echo x >> m/etc/shadow"
            chown 65534:65534 m/etc/made; fails chown 0 m/etc/made; fails chgrp 0 m/etc/made
            rm m/tmp/of-root
        '
        user ./lanefs umount m
        user ./lanefs mount -o uid=7 v.img m
        is "$(user stat -c %u:%g m/home/me)" 7:1001
        fails user touch m/home/me/other
        user ./lanefs umount m
        "#,
    );
    let owner = |path: &str| image.ok(["stat", "-c", "%u:%g", &image.at(path)]);
    assert_eq!(owner("/etc/made"), "0:0\n");
    assert_eq!(owner("/etc/shadow"), "0:42\n");
    for name in ["made", "dir", "link"] {
        assert_eq!(owner(&format!("/home/me/{name}")), "1000:1001\n", "{name}");
    }
}

/// A file of root that another user fills gets no set-id bit that a later mount would honour.
#[test]
fn with_uid_nobody_gives_rights_of_the_owner_on_disk() {
    let image = volume();
    as_user(
        &image,
        r#"
        chown 0 v.img
        ./lanefs mount v.img m
        cp m/etc/old m/etc/root-id; chmod 6755 m/etc/root-id
        ./lanefs umount m
        ./lanefs mount -o uid=65534,gid=65534 v.img m
        findmnt -no VFS-OPTIONS m | grep -q nosuid,nodev
        user bash -euxc '
            cp m/etc/old m/etc/copy; chmod 6755 m/etc/copy; is "$(stat -c %a m/etc/copy)" 755
            perl -e "use Fcntl; umask 0; sysopen(F, q(m/etc/new), O_CREAT|O_WRONLY, 06755) or die"
            : <> m/etc/root-id
            mkdir m/etc/dir; chmod 2755 m/etc/dir
        '
        cp m/etc/old m/etc/by-root; chmod 4755 m/etc/by-root
        ./lanefs umount m
        "#,
    );
    for (name, mode) in [("copy", 755), ("new", 755), ("root-id", 755), ("dir", 2755), ("by-root", 4755)] {
        let stat = image.ok(["stat", "-c", "%u:%g:%a", &image.at(&format!("/etc/{name}"))]);
        assert_eq!(stat, format!("0:0:{mode}\n"), "{name}");
    }
}

/// The kernel asks nothing when a mapping is written: neither a program of root that was opened
/// before, nor one that was never opened as far as lanefs knows, keeps its rights.
#[test]
fn with_uid_bytes_of_a_mapping_get_no_rights_of_the_owner_on_disk() {
    for options in ["uid=65534", "uid=65534,noopen"] {
        let image = volume();
        std::fs::write(image.beside("mapped.c"), MAPPED).unwrap();
        let script = r#"
        cc -Wall -Werror -o mapped mapped.c
        chown 0 v.img
        ./lanefs mount v.img m
        for f in set-id capable late by-root; do cp m/etc/old m/etc/$f; chmod 755 m/etc/$f; done
        chmod 6755 m/etc/set-id
        for f in capable by-root; do
            setfattr -n security.capability -v 0x0100000280000000000000000000000000000000 m/etc/$f
        done
        ./lanefs umount m
        ./lanefs mount -o OPTIONS v.img m
        user ./mapped m/etc/set-id m/etc/capable m/etc/late &
        until [ -e ready ]; do sleep 0.1; done
        chmod 4755 m/etc/late
        touch go; wait $!
        ./mapped m/etc/by-root
        ./lanefs umount m
        ./lanefs mount v.img m
        for f in set-id capable late by-root; do
            is "$(cat m/etc/$f)" NEW; is "$(stat -c %u:%g:%a m/etc/$f)" 0:0:755
        done
        fails getfattr -n security.capability m/etc/capable
        fails getfattr -n security.capability m/etc/by-root
        ./lanefs umount m
        "#;
        as_user(&image, &script.replace("OPTIONS", options));
    }
}

/// Opens the files, says `ready`, waits for `go`, and changes the files through mappings.
const MAPPED: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
int main(int count, char **files) {
    char *maps[8];
    for (int i = 1; i < count; i++) {
        int fd = open(files[i], O_RDWR);
        maps[i] = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (fd < 0 || maps[i] == MAP_FAILED || close(fd)) { perror(files[i]); return 1; }
    }
    fclose(fopen("ready", "w"));
    while (access("go", F_OK)) usleep(1000);
    for (int i = 1; i < count; i++) {
        memcpy(maps[i], "NEW", 3);
        if (msync(maps[i], 4096, MS_SYNC)) { perror(files[i]); return 1; }
    }
    return 0;
}
"#;
