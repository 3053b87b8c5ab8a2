//! Every option of `-o`: one table with the action of each and its text in the manual page.
//!
//! An option is honoured, or asks for what lanefs does in any case, or is for mount(8) alone, or is
//! refused with a line that says what to do. Tests walk the table.

use super::option::{Action, MountOption, clear, is_of, keep, other, set, times};
use super::{OptionError, id, metrics_address, sandbox, subtype, threads};
use crate::table::LAZYTIME;
use lanefs::Atime;
use rustix::mount::MountFlags;

/// The flags of a mount that gives no rights, unless a later word says otherwise: see mount(8).
pub(super) const QUIET: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);

/// Every option, in the order of the manual page.
pub const MOUNT_OPTIONS: &[MountOption] = &[
    set(&["ro"], MountFlags::RDONLY, "The volume is not written."),
    clear(&["rw"], MountFlags::RDONLY, "The volume is written, which is the default."),
    set(&["nosuid"], MountFlags::NOSUID, "Set-user-id, set-group-id and file capabilities give nothing."),
    clear(
        &["suid"],
        MountFlags::NOSUID,
        "They count, the default of root's mounts of root's volumes. Only for root.",
    ),
    set(&["nodev"], MountFlags::NODEV, "Device files cannot be opened."),
    clear(
        &["dev"],
        MountFlags::NODEV,
        "They can, the default of root's mounts of root's volumes. Only for root.",
    ),
    set(&["noexec"], MountFlags::NOEXEC, "Programs cannot be run."),
    clear(&["exec"], MountFlags::NOEXEC, "They can, which is the default."),
    set(&["nosymfollow"], MountFlags::NOSYMFOLLOW, "Symbolic links are not followed. Only for root."),
    clear(&["symfollow"], MountFlags::NOSYMFOLLOW, "They are, which is the default."),
    set(
        &["sync"],
        MountFlags::SYNCHRONOUS,
        "What changes is durable before the call returns. `remount` cannot add it.",
    ),
    clear(&["async"], MountFlags::SYNCHRONOUS, "It is durable after a while, or by fsync(2): the default."),
    set(
        &["dirsync"],
        MountFlags::DIRSYNC,
        "What changes in directories is durable before the call returns. `remount` cannot add it.",
    ),
    times(
        &["relatime", "atime", "norelatime", "nostrictatime"],
        Atime::Relative,
        "A read moves the time of the last read if that is older than the last change, or than a day: the \
         default. Reads that the kernel answers from its cache move it as far as the first of them was seen.",
    ),
    times(&["strictatime"], Atime::Strict, "Each read that lanefs sees moves the time of the last read."),
    times(&["noatime"], Atime::Never, "No read moves the time of the last read."),
    set(&["nodiratime"], MountFlags::NODIRATIME, "No read of a directory moves its time of the last read."),
    clear(&["diratime"], MountFlags::NODIRATIME, "Directories are as files in that, which is the default."),
    set(&["lazytime"], LAZYTIME, "The kernel may keep times longer before it hands them down."),
    clear(&["nolazytime"], LAZYTIME, "It hands them down with the content, which is the default."),
    set(
        &["user", "users"],
        QUIET.union(MountFlags::NOEXEC),
        "Imply `nosuid`, `nodev` and `noexec`, as mount(8) has it; a later `suid`, `dev` or `exec` wins.",
    ),
    set(&["owner", "group"], QUIET, "Imply `nosuid` and `nodev`."),
    set(
        &["untrusted"],
        QUIET,
        "Implies `nosuid` and `nodev`: the volume is of somebody whom the machine does not trust. Default where \
         another user than the one who mounts owns the file or device of the volume.",
    ),
    clear(&["trusted"], QUIET, "Implies `suid` and `dev`, whoever owns the volume. Only for root."),
    keep(
        &["allow_other"],
        |options, _, _| {
            options.allow_other = Some(true);
            Ok(())
        },
        "All users may come in, the default of root's mounts. A user needs `user_allow_other` in \
         `/etc/fuse.conf` for it.",
    ),
    keep(
        &["overlay"],
        |options, _, _| {
            options.overlay = true;
            Ok(())
        },
        "What is written stays in memory, of which it takes as much as is written, and is dropped with the mount. \
         The volume is only read, and others may read it meanwhile.",
    ),
    keep(
        &["fakeroot"],
        |options, _, _| {
            options.owners.fakeroot = true;
            Ok(())
        },
        "The user who mounts may do on the volume what root may, whatever its owners, modes and ACLs say. \
         Implies `nosuid` and `nodev`. Not together with `allow_other`.",
    ),
    keep(
        &["uid=N"],
        |options, word, value| {
            options.owners.uid = Some(id(word, value)?);
            Ok(())
        },
        "All files seem to belong to that user, and permissions are checked by that. A new file gets the owner of \
         its directory on the volume. Implies `nosuid` and `nodev`.",
    ),
    keep(
        &["gid=N"],
        |options, word, value| {
            options.owners.gid = Some(id(word, value)?);
            Ok(())
        },
        "The same for the group.",
    ),
    keep(
        &["acl"],
        |options, _, _| {
            options.set_acl(true);
            Ok(())
        },
        "Access control lists count, which is the default.",
    ),
    keep(
        &["noacl"],
        |options, _, _| {
            options.set_acl(false);
            Ok(())
        },
        "Permissions by the mode only: ACLs that are stored stay, and no new file inherits any.",
    ),
    keep(
        &["fsname=NAME"],
        |options, _, value| {
            options.fsname = Some(value.into());
            Ok(())
        },
        "Another source in `/proc/mounts` than the volume.",
    ),
    keep(
        &["subtype=NAME"],
        |options, word, value| {
            options.subtype = subtype(word, value)?;
            Ok(())
        },
        "Another type in `/proc/mounts`: `fuse.NAME` in place of `fuse.lanefs`.",
    ),
    keep(
        &["threads=N"],
        |options, word, value| {
            options.threads = threads(word, value)?;
            Ok(())
        },
        "Threads that serve at most, 1 to 64: 64. With any number, all is served: none of them waits for \
         another request.",
    ),
    keep(
        &["metrics=ADDRESS:PORT"],
        |options, word, value| {
            options.metrics = Some(metrics_address(word, value)?);
            Ok(())
        },
        "Metrics for Prometheus at that port, of this machine only: `127.0.0.1:9100`, `[::1]:9100`. Port 0 \
         takes a free one, which `lanefs top` tells.",
    ),
    keep(
        &["sandbox=auto", "sandbox=require", "sandbox=off"],
        |options, word, value| {
            options.sandbox = sandbox(word, value)?;
            Ok(())
        },
        "Whether the process that serves the mount is confined: by what the kernel has for it (the default), \
         or no mount unless it has Landlock and seccomp, or not at all, to debug it.",
    ),
    keep(
        &["follow_cpu"],
        |options, _, _| {
            options.follow = true;
            Ok(())
        },
        "A thread that serves goes to the processor of a program that asks alone, which is the default.",
    ),
    keep(
        &["nofollow_cpu"],
        |options, _, _| {
            options.follow = false;
            Ok(())
        },
        "It stays where the kernel's scheduler puts it.",
    ),
    keep(
        &["noopen"],
        |options, _, _| {
            options.no_open = true;
            Ok(())
        },
        "The kernel opens and closes files without asking lanefs, which makes many small files faster. What \
         an open would have refused (by flags of `chattr`, or for want of space), fsync(2) and close(2) refuse.",
    ),
    keep(
        &["noxattr"],
        |options, _, _| {
            options.no_xattr = true;
            Ok(())
        },
        "No extended attribute can be seen or set: no ACL counts (`noacl`), no file has capabilities.",
    ),
    keep(
        &["remount"],
        |options, _, _| {
            options.remount = true;
            Ok(())
        },
        "Changes those flags of a mount of lanefs that are named; the others stay. What only a new server \
         can change (`sync`, times of the last read, all that is no flag) is refused; from mount(8), which \
         adds the line of fstab, it is told and left. A volume that was opened `ro` cannot be made `rw`.",
    ),
    other(
        &["commit=SECONDS"],
        Action::Volume,
        "How long a change may wait until it is durable: 5. 0 is 5 as well.",
    ),
    other(
        &["cache=SIZE"],
        Action::Volume,
        "The bound of what lanefs keeps in memory, metadata and the content beside the kernel's cache together: \
         256M. It keeps no content once all of it is on the device.",
    ),
    other(
        &["metadata_cache=SIZE"],
        Action::Volume,
        "What metadata may take of it, with all that is committed and not yet in its place, however large the \
         journal is: a half, but 4M to 128M.",
    ),
    other(
        &["io=mixed"],
        Action::Volume,
        "The default: writes, and reads of 128 KiB and more, go past the page cache of what the volume lies on \
         (O_DIRECT); smaller reads go through it, and it reads ahead for them. On a block device, and where \
         the file system below is not ext4 or XFS or has no direct I/O, as `io=buffered`.",
    ),
    other(
        &["io=buffered", "io=direct"],
        Action::Volume,
        "All through that page cache, or nothing: measured, large writes take twice as long through it, and \
         reading many small files half as long again past it.",
    ),
    other(
        &["io_uring=auto", "io_uring=on", "io_uring=off"],
        Action::Volume,
        "I/O of the volume by io_uring: where there is one (the default), or fail, or not at all.",
    ),
    other(
        &["locking=range", "locking=range-mutex", "locking=inode"],
        Action::Volume,
        "What of a file a write locks: its bytes (the default), the same under one mutex, or all of it.",
    ),
    other(
        &["overwrite=nojournal", "overwrite=journal"],
        Action::Volume,
        "Whether a write to blocks that are mapped starts a handle of the journal: not, which is the default.",
    ),
    other(
        &["i_version=queried", "i_version=always"],
        Action::Volume,
        "Whether i_version moves when it was looked at since, which is the default, or with each change.",
    ),
    other(
        &["mapafter", "dioread_lock", "dioread_nolock"],
        Action::Volume,
        "The order of content and map when a file grows: content first (the default); map first, under the \
         lock; map first, as unwritten.",
    ),
    other(
        &["delalloc", "nodelalloc"],
        Action::Volume,
        "Blocks are chosen when content is written out: the default, or not.",
    ),
    other(
        &["nodiscard", "discard"],
        Action::Volume,
        "Freed blocks are given back to the device: not, which is the default, or each.",
    ),
    other(
        &["dax", "dax=always", "dax=never"],
        Action::Volume,
        "Whether content of a volume in memory is used in place: the default.",
    ),
    other(
        &["load", "noload", "norecovery"],
        Action::Volume,
        "The journal is replayed, which is the default; or not, with `ro` only.",
    ),
    other(
        lanefs::WORDS_OF_DEFAULTS,
        Action::Always,
        "Ask for what lanefs does in any case, or for less: content before the metadata that names it, flushes \
         before a commit, read-only after a failure of the volume.",
    ),
    other(
        lanefs::WORDS_OF_HINTS,
        Action::Volume,
        "Hints about speed to the kernel's ext4. The number is checked, and lanefs needs none in any case.",
    ),
    other(
        &["i_version", "iversion", "nomand", "silent", "loud"],
        Action::Always,
        "Are so in any case: versions are counted, there are no mandatory locks, the kernel's log is not written to.",
    ),
    other(
        &["default_permissions", "nonempty"],
        Action::Always,
        "Are so in any case: the kernel checks permissions, and a directory that is not empty can be mounted on.",
    ),
    other(&["loop"], Action::Always, "A file is mounted as it is in any case, without a loop device."),
    other(
        &[
            "auto",
            "noauto",
            "nouser",
            "_netdev",
            "nofail",
            "x-*",
            "X-*",
            "comment=TEXT",
            "uhelper=TYPE",
            "helper=TYPE",
        ],
        Action::Outside,
        "Are for mount(8), fstab and systemd.",
    ),
    other(
        &["auto_unmount"],
        Action::Refused,
        "a mount whose server was killed stays, and `lanefs umount DIRECTORY` takes it away",
    ),
    other(
        &["allow_root"],
        Action::Refused,
        "the kernel would let every user see what it has cached; `allow_other` lets them in",
    ),
    other(
        &["user_id=N", "group_id=N", "rootmode=N", "max_read=N", "blksize=N"],
        Action::OfTheTable,
        "the kernel and lanefs agree on it; it is taken with `remount` only, as the table of mounts has it",
    ),
    other(
        &["offset=N", "sizelimit=N", "loop=DEVICE"],
        Action::Refused,
        "name the part as the volume: `disk.raw@2`, `disk.raw?offset=1M&size=4G`",
    ),
    other(
        &["umask=N", "fmask=N", "dmask=N", "idmap=KIND"],
        Action::Refused,
        "modes are those of the volume: change them by chmod; `uid` and `gid` give all files one owner",
    ),
    other(&["noiversion"], Action::Refused, "versions are always counted: leave it out"),
    other(&["mand"], Action::Refused, "there are no mandatory locks: leave it out"),
    other(
        &["context=LABEL", "fscontext=LABEL", "defcontext=LABEL", "rootcontext=LABEL"],
        Action::Refused,
        "labels are those of the volume, in security.selinux: leave it out",
    ),
    other(
        &[
            "direct_io",
            "kernel_cache",
            "auto_cache",
            "noauto_cache",
            "big_writes",
            "async_read",
            "sync_read",
            "large_read",
            "hard_remove",
            "use_ino",
            "readdir_ino",
            "intr",
            "attr_timeout=SECONDS",
            "entry_timeout=SECONDS",
            "negative_timeout=SECONDS",
            "max_write=N",
            "max_readahead=N",
            "max_background=N",
            "clone_fd",
        ],
        Action::Refused,
        "it is an option of libfuse, and lanefs chooses that itself: leave it out",
    ),
    other(&["data=journal"], Action::Volume, ""),
    other(&["errors=panic"], Action::Volume, ""),
    other(&["nouser_xattr"], Action::Volume, ""),
    other(&["minixdf"], Action::Volume, ""),
    other(&["grpid", "bsdgroups"], Action::Volume, ""),
    other(&["auto_da_alloc"], Action::Volume, ""),
    other(&["journal_checksum"], Action::Volume, ""),
    other(&["journal_async_commit"], Action::Volume, ""),
    other(&["usrquota", "grpquota", "prjquota", "quota"], Action::Volume, ""),
];

impl MountOption {
    /// Returns the option that `word` is, if it is one.
    pub fn find(word: &str) -> Option<&'static Self> {
        MOUNT_OPTIONS.iter().find(|option| option.forms.iter().any(|form| is_of(form, word)))
    }
}

/// Returns what the mount option `word` asks for.
///
/// # Errors
/// Of a word that is of no option, or is refused.
pub(super) fn action_of(word: &str) -> Result<Action, OptionError> {
    match MountOption::find(word) {
        Some(MountOption { action: Action::Refused, text, .. }) => Err(OptionError::new(word, *text)),
        Some(option) => Ok(option.action),
        // It says why it takes it for none.
        None => Ok(Action::Volume),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{MountOptions, OptionKind};
    use super::*;
    use std::collections::HashSet;

    fn parsed(words: &str) -> Result<String, String> {
        let mut options = MountOptions::default();
        options.parse(words).map(|()| format!("{options:?}")).map_err(|e| e.to_string())
    }

    /// An accepted option changes something, or the table says that it does not.
    #[test]
    fn no_option_is_taken_and_ignored() {
        let plain = parsed("").unwrap();
        let mut seen = HashSet::new();
        for option in MOUNT_OPTIONS {
            let says_idle =
                ["default", "in any case", "for mount(8)"].iter().any(|w| option.text.contains(w));
            let mut changed = false;
            for word in option.examples() {
                assert!(seen.insert(word.clone()), "{word} is there twice");
                assert_eq!(MountOption::find(&word).unwrap().text, option.text, "{word}");
                match (parsed(&word), option.refusal()) {
                    (Ok(options), None) => changed |= options != plain,
                    (Err(why), Some(refusal)) => {
                        assert!(why.contains(&word) && why.contains(&refusal) && refusal.len() > 10, "{why}");
                    }
                    (taken, refusal) => panic!("{word}: {taken:?}, {refusal:?}"),
                }
            }
            let refused = option.refusal().is_some();
            assert!(changed || refused || says_idle, "{:?} changes nothing", option.forms);
            assert_eq!(option.kind() == OptionKind::Refused, refused, "{:?}", option.forms);
        }
    }

    #[test]
    fn every_word_of_the_engine_is_in_the_table() {
        for word in lanefs::mount_words() {
            let found = MountOption::find(word).or_else(|| MountOption::find(&format!("{word}=7")));
            assert!(found.is_some(), "{word}");
        }
    }

    /// The kernel knows `allow_other` alone, and answers from its cache without asking the server.
    #[test]
    fn nobody_is_kept_out_by_a_promise() {
        assert!(parsed("allow_root").unwrap_err().contains("every user"));
    }

    #[test]
    fn what_the_table_of_mounts_says_is_taken_by_a_remount_only() {
        assert!(parsed("remount,ro,user_id=0,group_id=0").is_ok() && parsed("user_id=0,remount").is_ok());
        assert!(parsed("ro,user_id=0").unwrap_err().contains("user_id=0"));
    }
}
