//! The table of all options of `-o`: the action of each, and its text in the manual page.
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
    set(&["ro"], MountFlags::RDONLY, "Opens the volume for reading only."),
    clear(&["rw"], MountFlags::RDONLY, "Opens the volume for writing, which is the default."),
    set(
        &["nosuid"],
        MountFlags::NOSUID,
        "Set-user-ID bits, set-group-ID bits and file capabilities have no effect.",
    ),
    clear(
        &["suid"],
        MountFlags::NOSUID,
        "Set-ID bits and capabilities have effect: the default if root mounts a volume of root's. Only for root.",
    ),
    set(&["nodev"], MountFlags::NODEV, "Device files cannot be opened."),
    clear(
        &["dev"],
        MountFlags::NODEV,
        "Device files can be opened: the default if root mounts a volume of root's. Only for root.",
    ),
    set(&["noexec"], MountFlags::NOEXEC, "Programs cannot be run."),
    clear(&["exec"], MountFlags::NOEXEC, "Programs can be run, which is the default."),
    set(&["nosymfollow"], MountFlags::NOSYMFOLLOW, "Symbolic links are not followed. Only for root."),
    clear(&["symfollow"], MountFlags::NOSYMFOLLOW, "Symbolic links are followed, which is the default."),
    set(
        &["sync"],
        MountFlags::SYNCHRONOUS,
        "Every change is durable before its call returns. `remount` cannot add this option.",
    ),
    clear(
        &["async"],
        MountFlags::SYNCHRONOUS,
        "A change is durable after some seconds, or by fsync(2): the default.",
    ),
    set(
        &["dirsync"],
        MountFlags::DIRSYNC,
        "Every change of a directory is durable before its call returns. `remount` cannot add this option.",
    ),
    times(
        &["relatime", "atime", "norelatime", "nostrictatime"],
        Atime::Relative,
        "A read updates the time of the last access if that is older than the last change, or than a day: the \
         default. Of several reads that the kernel answers from its cache, the first counts.",
    ),
    times(
        &["strictatime"],
        Atime::Strict,
        "Every read that reaches lanefs updates the time of the last access.",
    ),
    times(&["noatime"], Atime::Never, "No read updates the time of the last access."),
    set(
        &["nodiratime"],
        MountFlags::NODIRATIME,
        "No read of a directory updates its time of the last access.",
    ),
    clear(
        &["diratime"],
        MountFlags::NODIRATIME,
        "Directories are treated as files are, which is the default.",
    ),
    set(
        &["lazytime"],
        LAZYTIME,
        "The kernel may keep changed times longer before it sends them to lanefs. A user's mount does without.",
    ),
    clear(
        &["nolazytime"],
        LAZYTIME,
        "The kernel sends changed times with the content, which is the default.",
    ),
    set(
        &["user", "users"],
        QUIET.union(MountFlags::NOEXEC),
        "Imply `nosuid`, `nodev` and `noexec`, as mount(8) has it; a later `suid`, `dev` or `exec` wins.",
    ),
    set(&["owner", "group"], QUIET, "Imply `nosuid` and `nodev`."),
    set(
        &["untrusted"],
        QUIET,
        "Implies `nosuid` and `nodev`, for a volume from an untrusted origin. The default if the file or device \
         of the volume belongs to another user than the one who mounts it.",
    ),
    clear(&["trusted"], QUIET, "Implies `suid` and `dev`, also for a volume of another user. Only for root."),
    keep(
        &["allow_other"],
        |options, _, _| {
            options.allow_other = Some(true);
            Ok(())
        },
        "All users may use the mount: the default if root mounts. For other users, `/etc/fuse.conf` must have \
         `user_allow_other`.",
    ),
    keep(
        &["overlay"],
        |options, _, _| {
            options.overlay = true;
            Ok(())
        },
        "Written data stays in memory, takes as much memory as its size, and is dropped with the mount. \
         The volume is only read, and other processes may read it meanwhile. \
         Multiple mount protection does not cover it.",
    ),
    keep(
        &["fakeroot"],
        |options, _, _| {
            options.owners.fakeroot = true;
            Ok(())
        },
        "The user who mounts may do on the volume what root may, regardless of its owners, modes and ACLs. \
         Implies `nosuid` and `nodev`. Excludes `allow_other`.",
    ),
    keep(
        &["uid=N"],
        |options, word, value| {
            options.owners.uid = Some(id(word, value)?);
            Ok(())
        },
        "All files appear to belong to user N, and permissions are checked accordingly. On the volume, a new \
         file gets the owner of its directory. Implies `nosuid` and `nodev`.",
    ),
    keep(
        &["gid=N"],
        |options, word, value| {
            options.owners.gid = Some(id(word, value)?);
            Ok(())
        },
        "All files appear to belong to group N, as with `uid=N`.",
    ),
    keep(
        &["acl"],
        |options, _, _| {
            options.set_acl(true);
            Ok(())
        },
        "Access control lists take effect, which is the default.",
    ),
    keep(
        &["noacl"],
        |options, _, _| {
            options.set_acl(false);
            Ok(())
        },
        "Permissions depend on the mode alone. Stored ACLs stay, and new files inherit none.",
    ),
    keep(
        &["fsname=NAME"],
        |options, _, value| {
            options.fsname = Some(value.into());
            Ok(())
        },
        "Shows NAME as the source in `/proc/mounts`, in place of the volume.",
    ),
    keep(
        &["subtype=NAME"],
        |options, word, value| {
            options.subtype = subtype(word, value)?;
            Ok(())
        },
        "Shows `fuse.NAME` as the type in `/proc/mounts`, in place of `fuse.lanefs`.",
    ),
    keep(
        &["threads=N"],
        |options, word, value| {
            options.threads = threads(word, value)?;
            Ok(())
        },
        "The most threads that serve requests, 1 to 64. The default is 64. Any number serves all requests, because \
         no thread waits for another request.",
    ),
    keep(
        &["metrics=ADDRESS:PORT"],
        |options, word, value| {
            options.metrics = Some(metrics_address(word, value)?);
            Ok(())
        },
        "Serves metrics for Prometheus at an address of this machine: `127.0.0.1:9100`, `[::1]:9100`. Port 0 \
         chooses a free port, which `lanefs top` shows.",
    ),
    keep(
        &["sandbox=auto", "sandbox=require", "sandbox=off"],
        |options, word, value| {
            options.sandbox = sandbox(word, value)?;
            Ok(())
        },
        "Whether the process that serves the mount is confined. `auto` (the default) uses what the kernel has; \
         `require` refuses to mount without Landlock and seccomp; `off` is for debugging.",
    ),
    keep(
        &["follow_cpu"],
        |options, _, _| {
            options.follow = true;
            Ok(())
        },
        "While one program alone sends requests, the serving thread runs on its processor: the default.",
    ),
    keep(
        &["nofollow_cpu"],
        |options, _, _| {
            options.follow = false;
            Ok(())
        },
        "The serving thread runs where the kernel's scheduler puts it.",
    ),
    keep(
        &["noopen"],
        |options, _, _| {
            options.no_open = true;
            Ok(())
        },
        "The kernel opens and closes files without a request to lanefs, which is faster for many small files. \
         Errors of open(2) (flags of `chattr`, lack of space) then come from fsync(2) and close(2).",
    ),
    keep(
        &["noxattr"],
        |options, _, _| {
            options.no_xattr = true;
            Ok(())
        },
        "Extended attributes can be neither read nor set. Implies `noacl`; file capabilities have no effect.",
    ),
    keep(
        &["remount"],
        |options, _, _| {
            options.remount = true;
            Ok(())
        },
        "Changes the named flags of a mounted volume. All other options, `sync` and those of access times need a \
         new mount: they are refused, or ignored with a message if mount(8) adds them from fstab. A volume that \
         was opened `ro` cannot become `rw`.",
    ),
    other(
        &["commit=SECONDS"],
        Action::Volume,
        "The age at which content is written back, and the longest age of a transaction: what has reached lanefs \
         is durable within twice that time. The kernel keeps cached writes for up to 30 s before \
         (vm.dirty_expire_centisecs). The default is 5; 0 means the default.",
    ),
    other(
        &["cache=SIZE"],
        Action::Volume,
        "The most memory for cached metadata, and for content besides the kernel's cache. The default is 256M. \
         Content is dropped as soon as it is on the device. Changed blocks of metadata may number 2048 in any \
         case.",
    ),
    other(
        &["metadata_cache=SIZE"],
        Action::Volume,
        "The share of metadata in `cache`, committed blocks that wait for their checkpoint included, whatever the \
         size of the journal. The default is half of it, from 4M to 128M.",
    ),
    other(
        &["io=mixed"],
        Action::Volume,
        "The default: writes, and reads of 128 KiB and more, bypass the host's page cache for the volume \
         (O_DIRECT). Smaller reads use it, with readahead. On a block device, on a file system other than ext4 \
         and XFS, and without direct I/O it is `io=buffered`.",
    ),
    other(
        &["io=buffered", "io=direct"],
        Action::Volume,
        "All I/O uses the host's page cache, or none does. Large writes are half as fast with `buffered`; reading \
         many small files takes 1.5 times as long with `direct`. A volume on a server or in memory does without.",
    ),
    other(
        &["io_uring=auto", "io_uring=on", "io_uring=off"],
        Action::Volume,
        "Whether I/O of the volume uses io_uring: if the kernel has it (`auto`, the default), always (`on`, which \
         fails without it), or never. A volume on a server or in memory does without.",
    ),
    other(
        &["locking=range", "locking=range-mutex", "locking=inode"],
        Action::Volume,
        "The lock of a write: its bytes of the file (`range`, the default), the same by a simpler lock with one \
         mutex, or the whole file (`inode`).",
    ),
    other(
        &["overwrite=nojournal", "overwrite=journal"],
        Action::Volume,
        "Whether an overwrite of mapped blocks starts a journal handle. The default is `nojournal`.",
    ),
    other(
        &["i_version=queried", "i_version=always"],
        Action::Volume,
        "Whether i_version changes only if it was queried since its last change (the default), or with every change.",
    ),
    other(
        &["mapafter", "dioread_lock", "dioread_nolock"],
        Action::Volume,
        "The order of content and map when a file grows: content first (`mapafter`, the default); map first, \
         and the commit waits for the content (`dioread_lock`); map first, unwritten (`dioread_nolock`).",
    ),
    other(
        &["delalloc", "nodelalloc"],
        Action::Volume,
        "Whether blocks are allocated at writeback (`delalloc`, the default) or at the write.",
    ),
    other(
        &["nodiscard", "discard"],
        Action::Volume,
        "Whether freed blocks are discarded on the device. The default is `nodiscard`.",
    ),
    other(
        &["dax", "dax=always", "dax=never"],
        Action::Volume,
        "Whether content of a volume in memory is used in place. The default is `always`.",
    ),
    other(
        &["load", "noload", "norecovery"],
        Action::Volume,
        "Whether the journal is replayed. The default is `load`; the others need `ro`.",
    ),
    other(
        lanefs::WORDS_OF_DEFAULTS,
        Action::Always,
        "Ask for what lanefs does in any case, or for less: it writes content before the metadata that refers to \
         it, flushes before a commit, and makes the volume read-only after an error.",
    ),
    other(
        lanefs::WORDS_OF_HINTS,
        Action::Volume,
        "Tune the kernel's ext4. The number is checked, and lanefs does without it in any case.",
    ),
    other(
        &["i_version", "iversion", "nomand", "silent", "loud"],
        Action::Always,
        "True in any case: versions are counted, there are no mandatory locks, and lanefs writes nothing to the \
         kernel's log.",
    ),
    other(
        &["default_permissions", "nonempty"],
        Action::Always,
        "True in any case: the kernel checks permissions, and the directory need not be empty.",
    ),
    other(&["loop"], Action::Always, "True in any case: lanefs mounts a file without a loop device."),
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
        "Are for mount(8), fstab and systemd. lanefs ignores them.",
    ),
    other(
        &["auto_unmount"],
        Action::Refused,
        "after its server was killed, a mount stays until `lanefs umount DIRECTORY` removes it",
    ),
    other(
        &["allow_root"],
        Action::Refused,
        "the kernel would show its cached content to every user; `allow_other` admits all users",
    ),
    other(
        &["user_id=N", "group_id=N", "rootmode=N", "max_read=N", "blksize=N"],
        Action::OfTheTable,
        "the kernel and lanefs agree on the value; only `remount` accepts the option, from the table of mounts",
    ),
    other(
        &["offset=N", "sizelimit=N", "loop=DEVICE"],
        Action::Refused,
        "name the part with the volume: `disk.raw@2`, `disk.raw?offset=1M&size=4G`",
    ),
    other(
        &["umask=N", "fmask=N", "dmask=N", "idmap=KIND"],
        Action::Refused,
        "modes come from the volume: change them by chmod; `uid` and `gid` give all files one owner",
    ),
    other(&["noiversion"], Action::Refused, "versions are always counted: leave it out"),
    other(&["mand"], Action::Refused, "there are no mandatory locks: leave it out"),
    other(
        &["context=LABEL", "fscontext=LABEL", "defcontext=LABEL", "rootcontext=LABEL"],
        Action::Refused,
        "labels come from the volume, in security.selinux: leave it out",
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
        "an option of libfuse, which lanefs decides itself: leave it out",
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
/// The word is not an option, or is refused.
pub(super) fn action_of(word: &str) -> Result<Action, OptionError> {
    match MountOption::find(word) {
        Some(MountOption { action: Action::Refused, text, .. }) => Err(OptionError::new(word, *text)),
        Some(option) => Ok(option.action),
        // The engine reports why.
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
