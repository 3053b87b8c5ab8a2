//! cp and mv from a volume to a mount that keeps less.

use crate::support::mount::Mount;
use crate::support::{succeed, tool};
use std::fs;
use std::os::unix::fs::MetadataExt;

/// Beside a list, the group's bits of a mode are the mask of the list. The mode alone would give
/// the group what the list does not.
#[test]
fn an_acl_that_is_lost_is_told_and_its_mask_is_no_right_of_the_group() {
    let m = Mount::new("noacl");
    let v = &m.image;
    let script = "echo text > f; chmod 640 f; setfacl -m u:1000:rwx f; echo plain > plain; chmod 664 plain
        mkdir d; chmod 755 d; setfacl -d -m u:1000:rwx d";
    succeed(tool("bash").args(["-euc", script]).current_dir(v.beside("")));
    v.ok(["mkfs", "-q", "--size", "16M", "w.img"]);
    v.ok(["cp", "-a", "f", "d", "plain", "w.img:/"]);
    assert_eq!(v.ok(["stat", "-c", "%a", "w.img:/f"]), "670\n");
    let lost = |list: &str, name: &str| {
        format!("lanefs: cannot set attribute 'system.posix_acl_{list}' of '{name}': Operation not supported")
    };
    v.fails(["cp", "-a", "w.img:/f", "m/copied"], 1, &lost("access", "m/copied"));
    v.fails(["cp", "-p", "w.img:/f", "m/kept"], 1, &lost("access", "m/kept"));
    v.fails(["mv", "w.img:/f", "m/moved"], 1, &lost("access", "m/moved"));
    v.fails(["cp", "-a", "w.img:/d", "m/d"], 1, &lost("default", "m/d"));
    v.ok(["cp", "-a", "w.img:/plain", "m/plain"]);
    let modes = [("copied", 0o640), ("kept", 0o640), ("moved", 0o640), ("d", 0o755), ("plain", 0o664)];
    for (name, mode) in modes {
        assert_eq!(fs::metadata(m.path(name)).unwrap().mode() & 0o7777, mode, "{name}");
    }
    assert_eq!(fs::read(m.path("copied")).unwrap(), b"text\n");
    assert_eq!(v.ok(["ls", "w.img:/"]), "d\nf\nlost+found\nplain\n");
    m.umount();
}
