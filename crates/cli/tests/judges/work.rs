//! Real work on the mount, compared with the same work on the kernel's ext4.

use crate::support::{Image, SIZE, both, judged, shell};
use lanefs_tests::{Server, TreeEntry, assert_same_tree, kept, tree_listing};
use std::path::Path;

/// For work that stamps the time of day: nothing of it, nor of where a program left holes.
fn timeless(root: &Path) -> Vec<TreeEntry> {
    let mut tree = tree_listing(root);
    for entry in &mut tree {
        entry.mtime = (0, 0);
        entry.data.clear();
    }
    tree
}

fn same(work: impl Fn(&Path)) {
    let [kernel, ours] = both(SIZE, |root| {
        work(root);
        timeless(root)
    });
    assert!(kernel.len() > 20, "the work left only {} files", kernel.len());
    assert_same_tree(&kernel, &ours);
}

#[test]
fn a_c_project_is_unpacked_and_built() {
    let tar = kept("zlib.tar");
    same(|root| {
        let script = r#"
            tar xf "$0"; cd libz-sys/src/zlib
            printf '%s\n' 'OBJECTS := $(patsubst %.c,%.o,$(wildcard *.c))' 'libz.so: libz.a' \
                '	cc -shared -o $@ -Wl,--whole-archive libz.a -Wl,--no-whole-archive' 'libz.a: $(OBJECTS)' '	ar rcD $@ $^' 'CFLAGS = -O1 -fPIC -DHAVE_UNISTD_H' \
                'install: libz.so' '	install -D -m 755 libz.so root/lib/libz.so.1' '	ln -s libz.so.1 root/lib/libz.so' >Makefile
            make -s -j2 install
            printf '%s\n' '#include "zlib.h"' '#include <stdio.h>' 'int main(void) { puts(zlibVersion()); }' >version.c
            cc -o version version.c -Lroot/lib -lz -Wl,-rpath,"$PWD/root/lib" -Wl,--build-id=none
            ./version >version.txt
            rm version
        "#;
        // What the linker writes into `version` is the path of the mount, which differs: it only
        // has to run.
        crate::support::must(
            crate::support::bounded(200, "bash")
                .args(["-euo", "pipefail", "-c", script])
                .arg(&tar)
                .current_dir(root),
        );
    });
}

#[test]
fn git_clones_and_collects() {
    same(|root| {
        let script = r#"
            export HOME=$PWD GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_DATE='2001-02-03 04:05:06 +0000' GIT_COMMITTER_DATE='2001-02-03 04:05:06 +0000'
            export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
            git config --global safe.directory '*'; git config --global pack.threads 1; git config --global gc.auto 0
            git init -q -b main one; cd one
            for round in 1 2 3 4 5 6; do
                mkdir -p d$round
                for n in $(seq 30); do seq $n $((n * round * 40)) >d$round/f$n; done
                ln -sf d$round/f1 latest
                git add -A; git commit -q -m "round $round"
            done
            git checkout -q -b side HEAD~3; echo side >side; git add side; git commit -q -m side
            git checkout -q main; git merge -q -m merge side
            cd ..
            git clone -q --no-hardlinks one two; git clone -q --bare one three.git; git clone -q one four
            git -C one gc -q --prune=now; git -C two repack -q -a -d
            for r in one two three.git four; do git -C $r fsck --full --strict; done
            git -C four mv d1 moved; git -C four commit -q -m moved; git -C four push -q origin HEAD:refs/heads/pushed
            git -C one worktree add -q ../five pushed; git -C five status --porcelain
            diff -r one/d6 five/d6
            # Indexes hold inode numbers and times; the rest of .git must be the same byte for byte.
            find . -name index -path '*.git*' -delete; find . -name gitdir -delete; rm -rf one/.git/worktrees five/.git
            find . -name logs -prune -o -name config -print -o -name FETCH_HEAD -print | xargs sed -i /url/d
            find . -name logs -prune -exec rm -r {} +
            find . -name packed-refs -o -name '*.rev' -o -name '*.bitmap' | xargs rm -f
        "#;
        shell(root, script);
    });
}

/// A tree with all that rsync can keep; `$0` is a folder to leave it in.
const TREE: &str = r#"
    mkdir -p tree/deep/er tree/empty; cd tree
    for n in $(seq 300); do seq $n $((n * 11)) >deep/f$n; done
    ln deep/f1 hard; ln deep/f1 deep/er/hard; ln -s deep/f2 soft; ln -s /nowhere/$(printf 'x%.0s' $(seq 200)) long
    mkfifo fifo; mknod null c 1 3; mknod disk b 7 200
    truncate -s 30M sparse; printf island | dd of=sparse bs=1 seek=12345678 conv=notrunc status=none
    chmod 4755 deep/f3; chmod 2770 deep/er; chmod 1777 empty; chmod 0 deep/f4; chown 1234:5678 deep/f5; chown -h 7:8 soft
    setfattr -n user.note -v kept deep/f6; setfattr -n user.long -v $(printf 'y%.0s' $(seq 3000)) deep/f6; setfattr -n user.dir -v d deep
    setfattr -n trusted.secret -v t deep/f7; setfattr -n security.capability -v 0sAQAAAgAgAAAAAAAAAAAAAAAAAAA= deep/f8
    setfacl -m u:games:rwx,g:daemon:r deep/f9; setfacl -d -m u:games:rx,m::rwx deep/er; echo inherits >deep/er/child
    touch -d '1999-12-31 23:59:59.987654321 UTC' deep/f10 empty; touch -h -d '2001-02-03 04:05:06.5 UTC' soft
    touch -d '2039-01-02 03:04:05.6 UTC' deep/f11; touch -d '1930-01-02 03:04:05.25 UTC' deep/f12
    printf odd >"name with 'quotes' and
a line"; printf long >$(printf 'n%.0s' $(seq 255))
"#;

/// From the host to the mount and back: nothing changes on the way.
#[test]
fn rsync_there_and_back() {
    let server = judged();
    // The host is a kernel ext4, so that it can hold everything.
    let (host, image) = (Image::new(SIZE, &[]), Image::new(SIZE, &[]));
    let (kernel, mounted) = (host.mount(&Server::Kernel), image.mount(&server));
    shell(kernel.path(), TREE);
    let script = format!(
        "rsync -aHAXS --modify-window=-1 --numeric-ids tree/ {0}/tree/; rsync -aHAXS --modify-window=-1 --numeric-ids {0}/tree/ back/
        [ -z \"$(rsync -aHAXSi --modify-window=-1 --numeric-ids --checksum tree/ {0}/tree/)\" ]",
        mounted.path().display()
    );
    shell(kernel.path(), &script);
    let there = tree_listing(mounted.path().join("tree"));
    assert!(there.len() > 310);
    assert_same_tree(&tree_listing(kernel.path().join("tree")), &there);
    assert_same_tree(&there, &tree_listing(kernel.path().join("back")));
    mounted.unmount();
    let mounted = image.mount(&Server::Kernel);
    assert_same_tree(&there, &tree_listing(mounted.path().join("tree")));
    mounted.unmount();
    kernel.unmount();
}

/// The same, made on the mount itself and archived there by tar.
#[test]
fn a_tree_of_everything_is_made_and_archived() {
    let [kernel, ours] = both(SIZE, |root| {
        shell(
            root,
            &format!(
                "({TREE}); tar --xattrs --xattrs-include='*' --acls -S -cf tree.tar tree; mkdir copy
                tar --xattrs --xattrs-include='*' --acls -S -C copy -xpf tree.tar; rm tree.tar
                cp -a tree another; mv tree/deep moved; rm -r tree/empty; cmp moved/f300 another/deep/f300"
            ),
        );
        timeless(root)
    });
    assert_same_tree(&kernel, &ours);
}
