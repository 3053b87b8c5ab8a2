//! `lanefs run` by the user `nobody`: the program's view of the volume, its exit status, leftovers.

use crate::support::{Image, succeed, tool};
use lanefs_tests::{Watchdog, private_mounts};

/// A small root file system with a shell, tar and dpkg-query, in an image that user 65534 owns.
fn volume() -> Image {
    private_mounts();
    let image = Image::new();
    let script = r#"
        export PATH="$PATH:$1"; mkdir t; cd t
        mkdir -p bin etc home/me proc dev sys tmp mnt var/lib/dpkg/info job; chmod 1777 tmp; ln -s /etc/os link
        for program in bash cat stat ls id touch mkdir rm tar dpkg-query sleep true; do
            program=$(type -P $program); cp "$program" bin/
            ldd "$program" | grep -o '/[^ ]*' | while read library; do mkdir -p ".${library%/*}"; cp -L "$library" ".$library"; done
        done
        ln -s bash bin/sh; echo small > etc/os; echo secret > etc/shadow; chmod 600 etc/shadow; chown 1000:1000 home/me
        printf 'Package: lane\nStatus: install ok installed\nVersion: 1.2-3\nArchitecture: all\nMaintainer: m\nDescription: d\n' > var/lib/dpkg/status
        ln -s / out; cd ..
        lanefs cp -a t/. v.img:/; cp "$1/lanefs" lanefs; rm -r t; chmod 755 . lanefs; mkdir hostdir; echo host > hostdir/file
        chown -R 65534 .
    "#;
    let bin = std::path::Path::new(env!("CARGO_BIN_EXE_lanefs")).parent().unwrap();
    succeed(tool("bash").args(["-euc", script, "-"]).arg(bin).current_dir(image.beside("")));
    image
}

/// Runs `script` as user 65534, in a mount namespace where any user may use `/dev/fuse`. In it
/// `is A B` compares, and `exits CODE COMMAND` runs what must exit so.
fn as_user(image: &Image, script: &str) {
    let _watchdog = Watchdog::new("lanefs run");
    let head = r#"
        mount --make-rprivate /
        mkdir fuse; mount -t tmpfs tmpfs fuse; mknod -m 666 fuse/fuse c 10 229; mount --bind fuse/fuse /dev/fuse
        # A signal that the caller of the tests ignores would stay ignored.
        exec env --default-signal setpriv --reuid 65534 --regid 65534 --clear-groups bash -euxc "$1"
    "#;
    let tools = r#"
        is() { [ "$1" = "$2" ] || { echo "$1 is not $2" >&2; exit 1; }; }
        exits() { local code=$1 rc=0; shift; "$@" || rc=$?; is $rc $code; }
        run() { ./lanefs run "$@"; }
        gone() { while [ -e /proc/$1 ] && ! grep -q 'State:.Z' /proc/$1/status; do sleep 0.05; done; }
    "#;
    let mut alone = tool("unshare");
    alone.args(["--mount", "bash", "-euc", head, "-", &format!("{tools}\n{script}")]);
    succeed(alone.current_dir(image.beside("")));
    image.ok(["recover", "v.img"]);
    image.fsck();
}

#[test]
fn the_program_ends_as_it_ends() {
    let image = volume();
    as_user(
        &image,
        r#"
        is "$(run v.img -- cat etc/os)" small
        is "$(echo through | run v.img -- cat)" through
        exits 0 run v.img -- true
        exits 7 run v.img -- sh -c 'exit 7'
        exits 143 run v.img -- sh -c 'kill -TERM $$'
        exits 137 run v.img -- sh -c 'kill -KILL $$'
        exits 127 run v.img -- /no-such-program
        exits 126 run v.img -- /etc/passwd
        exits 125 run none.img -- true
        exits 125 run v.img
        exits 125 run --rw --overlay v.img -- true
        exits 125 run --at /none v.img -- true
        exits 125 run --workdir /none v.img -- true
        # /proc is that of its PID namespace, without --chroot too.
        is "$(run v.img -- bash -c 'read -d "" name < /proc/$$/cmdline; echo $name')" bash
        # What the program leaves running goes with it.
        run v.img -- sh -c 'sleep 1000 & echo $!' > pid
        "#,
    );
}

#[test]
fn the_volume_is_written_only_if_it_is_said() {
    let image = volume();
    let before = std::fs::read(&image.path).unwrap();
    as_user(
        &image,
        r#"
        cp v.img before.img
        cat /proc/self/mounts > mounts
        exits 1 run v.img -- touch made
        exits 1 run -o ro v.img -- touch made
        # Options that contradict it are refused.
        refused() { local text=$1; shift; exits 125 run "$@" v.img -- touch made 2> said; is "$(grep ^lanefs said)" "lanefs: $text"; }
        refused '-o rw does not make the volume writable: --rw does, and --overlay drops the changes' -o rw
        refused '-o rw does not make the volume writable: --rw does, and --overlay drops the changes' -o overlay,rw
        refused '-o ro contradicts --rw: leave one of them out' --rw -o noatime,ro
        refused '-o ro contradicts --overlay: leave one of them out' --overlay -o ro
        refused '-o overlay does not make an overlay: --overlay does' --rw -o overlay
        run --overlay -o rw v.img -- touch made
        cmp v.img before.img
        run --overlay v.img -- bash -euc 'touch made; echo changed > etc/os; cat etc/os; rm etc/shadow; sync' > said
        is "$(cat said)" changed
        cmp v.img before.img
        # Two at a time, for both only read it.
        export here=$PWD
        run v.img -- bash -euc 'cd "$here"; ./lanefs run --overlay v.img -- cat etc/os' > said
        is "$(cat said)" small
        cmp v.img before.img
        run --rw v.img -- bash -euc '
            is() { [ "$1" = "$2" ] || exit 9; }
            is "$(id -u)" 0; is "$(stat -c %u:%g home/me)" 0:0; is "$(cat etc/shadow)" secret
            touch made home/me/made; chown 0:0 made; chmod 4755 made; mkdir home/me/dir; rm etc/os
        '
        # No program of this namespace has seen a mount.
        is "$(cat mounts)" "$(cat /proc/self/mounts)"
        "#,
    );
    assert!(std::fs::read(&image.path).unwrap() != before);
    let stat = |path: &str| image.ok(["stat", "-c", "%u:%g:%a", &image.at(path)]);
    assert_eq!(stat("/made"), "0:0:4755\n");
    assert!(
        stat("/home/me/made").starts_with("1000:1000:") && stat("/home/me/dir").starts_with("1000:1000:")
    );
    image.fails(
        ["ls", "v.img:/etc/os"],
        2,
        "lanefs: cannot access 'v.img:/etc/os': No such file or directory",
    );
}

#[test]
fn the_volume_is_the_root_directory() {
    let image = volume();
    as_user(
        &image,
        r#"
        is "$(run --chroot v.img -- /bin/sh -c 'echo $(pwd; cat /etc/os /link /out/etc/os)')" '/ small small small'
        is "$(run --chroot v.img -- /bin/dpkg-query -W -f '${Package} ${Version}')" 'lane 1.2-3'
        # A /proc of its own PID namespace, and devices of the machine.
        run --chroot v.img -- /bin/sh -c 'read -d "" name < /proc/1/cmdline; echo x > /dev/null; echo $name' > said
        is "$(cat said)" lanefs
        run --chroot --rw --workdir /home/me v.img -- /bin/bash -euc '
            mkdir a; echo content > a/file; tar cf a.tar a; rm -r a; tar xf a.tar; cat a/file'
        run --bind "$PWD/hostdir:/job" --chroot --workdir /job v.img -- cat file > said; is "$(cat said)" host
        run --bind "$PWD/hostdir:/job" v.img -- cat job/file > said; is "$(cat said)" host
        # A link of the volume does not lead out of it.
        run --bind "$PWD/hostdir:/out/job" --chroot v.img -- cat /job/file > said; is "$(cat said)" host
        # Nor does the volume cover what is shown.
        mkdir -p at/job; ln -s "$PWD/hostdir" at/link
        exits 125 run --at at --bind "$PWD/at/job:/job" v.img -- true
        run --at at --bind "$PWD/at/link:/job" --chroot v.img -- cat /job/file > said; is "$(cat said)" host
        exits 125 run --bind "$PWD/hostdir:/none" v.img -- true
        exits 125 run --bind nothing v.img -- true
        "#,
    );
    assert_eq!(image.ok(["cat", "v.img:/home/me/a/file"]), "content\n");
}

#[test]
fn signals_reach_the_program() {
    let image = volume();
    as_user(
        &image,
        r#"
        # Each job has a group of its own, as those of a terminal have.
        set -m
        mask=$(trap '' HUP INT; ./lanefs run v.img -- sed -n 's/^SigIgn:.//p' /proc/self/status)
        is $((0x$mask & 3)) 3
        program='trap "echo got; exit 9" TERM INT; echo ready; while :; do sleep 0.05; done'
        for to in command group; do
            : > said
            ./lanefs run v.img -- bash -c "$program" > said & command=$!
            until grep -q ready said; do sleep 0.05; done
            case $to in
                command) kill -TERM $command;;
                group) kill -INT -- -$command;;
            esac
            rc=0; wait $command || rc=$?; is $rc 9; is "$(grep -c got said)" 1
        done
        # Whenever it comes: before the mount is there, while init starts, while the program runs.
        for n in $(seq 0 2 60); do
            ./lanefs run v.img -- sleep 20 & command=$!
            sleep $(printf 0.%03d $n)
            kill -TERM $command
            rc=0; wait $command || rc=$?; is $rc 143
        done
        "#,
    );
}

#[test]
fn nothing_is_left_whatever_is_killed() {
    let image = volume();
    as_user(
        &image,
        r#"
        for who in command init server broker program; do
            : > said
            ./lanefs run --rw v.img -- bash -c "echo $who > of-$who; echo ready; exec sleep 1000" > said & command=$!
            until grep -q ready said; do sleep 0.05; done
            server=$(pgrep -P $command -f 'mount --daemon'); init=$(pgrep -P $command -f 'run --init')
            broker=$(pgrep -P $server); program=$(pgrep -P $init)
            grep -q 'NoNewPrivs:.1' /proc/$server/status; grep -q 'Seccomp:.2' /proc/$server/status
            kill -KILL ${!who}
            case $who in
                server) expected=125;;
                # The server goes on without it, and so does the program.
                broker) kill -TERM $command; expected=143;;
                *) expected=137;;
            esac
            rc=0; wait $command || rc=$?; is $rc $expected
            for process in $command $init $server $broker $program; do gone $process; done
            ./lanefs recover v.img > /dev/null
            [ $who = server ] || is "$(./lanefs cat v.img:/of-$who)" $who
        done
        "#,
    );
}

#[test]
fn it_says_which_setting_forbids_it() {
    let image = volume();
    // In a user namespace of its own, whose bounds are no one else's.
    let script = r#"
        mkfifo go
        inside='echo 0 > /proc/sys/user/max_user_namespaces; exec setpriv --reuid 65534 --regid 65534 --clear-groups ./lanefs run v.img -- true'
        unshare --user bash -c 'read _ < go; exec bash -euc "$1"' - "$inside" 2> said & child=$!
        until [ "$(readlink /proc/$child/ns/user)" != "$(readlink /proc/self/ns/user)" ]; do sleep 0.05; done
        echo '0 0 4294967295' > /proc/$child/uid_map; echo '0 0 4294967295' > /proc/$child/gid_map; echo > go
        rc=0; wait $child || rc=$?; cat said; exit $((rc - 125))
    "#;
    let _watchdog = Watchdog::new("lanefs run");
    let out = succeed(tool("bash").args(["-euc", script]).current_dir(image.beside("")));
    assert_eq!(
        String::from_utf8_lossy(&out.stdout),
        "lanefs: cannot make a user namespace: No space left on device; sysctl -w user.max_user_namespaces=10000 allows it, by root\n"
    );
}

#[test]
fn root_needs_no_user_namespace() {
    let image = volume();
    let _watchdog = Watchdog::new("lanefs run");
    let said = image.ok(["run", "--rw", "v.img", "--", "stat", "-c", "%u:%g", "home/me"]);
    assert_eq!(said, "1000:1000\n");
    image.ok(["run", "--rw", "v.img", "--", "touch", "made"]);
    assert_eq!(image.ok(["stat", "-c", "%u:%g", "v.img:/made"]), "0:0\n");
    image.fsck();
}
