//! Options of a mount, by the names that the kernel's ext4, mount(8) and FUSE have for them.
//!
//! What concerns the mount is taken here, what concerns the volume by [`OpenOptions::mount_option`]. What only mount(8) and fstab
//! mean something by is passed over.

use crate::filesystem::Durably;
use crate::mountpoint::{MountError, MountPoint};
use lanefs::device::Cached;
use lanefs::{Atime, OpenOptions};
use rustix::mount::MountFlags;
use std::ffi::OsString;
use std::net::SocketAddr;

/// Bytes of metadata, and of content beside the kernel's own cache, that are kept in memory, unless said otherwise.
const CACHE: usize = 256 << 20;

/// Threads that serve: more would not keep a device busier.
const MOST_THREADS: usize = 64;

/// How to mount.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// The volume is not written.
    pub read_only: bool,
    /// It changes a mount that is there.
    pub remount: bool,
    /// Threads that serve at most.
    pub threads: usize,
    /// The name of the volume in `/proc/mounts`, if not its own.
    pub fsname: Option<OsString>,
    /// Where programs of this machine may ask for metrics.
    pub metrics: Option<SocketAddr>,
    pub(crate) flags: MountFlags,
    /// The flags that were set or cleared by a word.
    named: MountFlags,
    /// The type in `/proc/mounts` is `fuse.SUBTYPE`.
    subtype: String,
    allow_other: Option<bool>,
    pub(crate) allow_root: bool,
    pub(crate) acl: bool,
    /// See [`Follow`](crate::follow::Follow).
    pub(crate) follow: bool,
    atime: Atime,
    open: OpenOptions,
}

/// An option that is none, or whose value is not.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("mount option '{word}': {why}")]
pub struct OptionError {
    word: String,
    why: String,
}

impl OptionError {
    fn of_volume(word: &str, e: &lanefs::Error) -> Self {
        match e {
            lanefs::Error::MountOption { why, .. } => Self::new(word, why.clone()),
            e => Self::new(word, e.to_string()),
        }
    }

    fn new(word: &str, why: impl Into<String>) -> Self {
        Self { word: word.into(), why: why.into() }
    }
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            remount: false,
            threads: MOST_THREADS,
            fsname: None,
            metrics: None,
            flags: MountFlags::empty(),
            named: MountFlags::empty(),
            subtype: "lanefs".into(),
            allow_other: None,
            allow_root: false,
            acl: true,
            follow: true,
            atime: Atime::Relative,
            open: OpenOptions::new()
                .cached(Cached::SmallReads)
                .cache_bytes(CACHE)
                .release_memory_when_idle(true)
                .tick_times(true),
        }
    }
}

/// MS_LAZYTIME of mount(2).
pub(crate) const LAZYTIME: MountFlags = MountFlags::from_bits_retain(1 << 25);

/// Flags of mount(2) by their names: what sets it, what clears it.
const FLAGS: [(&str, &str, MountFlags); 9] = [
    ("nosuid", "suid", MountFlags::NOSUID),
    ("nodev", "dev", MountFlags::NODEV),
    ("noexec", "exec", MountFlags::NOEXEC),
    ("sync", "async", MountFlags::SYNCHRONOUS),
    ("dirsync", "", MountFlags::DIRSYNC),
    ("nodiratime", "diratime", MountFlags::NODIRATIME),
    ("lazytime", "nolazytime", LAZYTIME),
    ("silent", "loud", MountFlags::SILENT),
    ("ro", "rw", MountFlags::RDONLY),
];

/// Words that mean something to mount(8), fstab and systemd only, or ask for what is so anyway.
const PASSED_OVER: [&str; 12] = [
    "i_version",
    "iversion",
    "defaults",
    "auto",
    "noauto",
    "nouser",
    "_netdev",
    "nofail",
    "loop",
    "nonempty",
    "auto_unmount",
    "default_permissions",
];

impl MountOptions {
    /// Takes a list of words as mount(8) does after `-o`, with commas between.
    ///
    /// # Errors
    /// The first word that is no option, or asks for what lanefs does not do.
    pub fn parse(&mut self, words: &str) -> Result<(), OptionError> {
        words.split(',').filter(|w| !w.is_empty()).try_for_each(|word| self.take(word))
    }

    fn take(&mut self, word: &str) -> Result<(), OptionError> {
        for (set, clear, flag) in FLAGS {
            if word == set || word == clear {
                self.set(flag, word == set);
                self.read_only = self.flags.contains(MountFlags::RDONLY);
                return Ok(());
            }
        }
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        match name {
            "relatime" | "atime" | "nostrictatime" | "norelatime" => self.set_atime(Atime::Relative),
            "strictatime" => self.set_atime(Atime::Strict),
            "noatime" => self.set_atime(Atime::Never),
            "remount" => self.remount = true,
            "allow_other" => self.allow_other = Some(true),
            "allow_root" => (self.allow_other, self.allow_root) = (Some(true), true),
            "fsname" => self.fsname = Some(value.into()),
            "metrics" => self.metrics = Some(own_address(word, value)?),
            "acl" => self.acl = true,
            "noacl" => self.acl = false,
            "follow_cpu" => self.follow = true,
            "nofollow_cpu" => self.follow = false,
            "threads" => self.threads = threads(word, value)?,
            "subtype" => self.subtype = subtype(word, value)?,
            // What a user may mount can harm nobody, unless a later word says otherwise: see mount(8).
            "user" | "users" => {
                self.set(MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC, true);
            }
            "owner" | "group" => self.set(MountFlags::NOSUID | MountFlags::NODEV, true),
            // What the table of mounts says of one that is there, and mount(8) hands on.
            "user_id" | "group_id" | "rootmode" | "max_read" | "blksize" => {}
            _ if is_passed_over(word) => {}
            _ => {
                let taken = self.open.clone().mount_option(word);
                self.open = taken.map_err(|e| OptionError::of_volume(word, &e))?;
            }
        }
        Ok(())
    }

    fn set(&mut self, flags: MountFlags, on: bool) {
        self.flags.set(flags, on);
        self.named |= flags;
    }

    fn set_atime(&mut self, atime: Atime) {
        self.atime = atime;
        self.set(MountFlags::NOATIME, atime == Atime::Never);
        self.set(MountFlags::STRICTATIME, atime == Atime::Strict);
        self.set(MountFlags::RELATIME, atime == Atime::Relative);
    }

    /// Returns what is durable when it is answered.
    pub(crate) fn durably(&self) -> Durably {
        let has = |flag| self.flags.contains(flag);
        Durably { all: has(MountFlags::SYNCHRONOUS), dirs: has(MountFlags::DIRSYNC) }
    }

    /// How to open the volume.
    pub fn open_options(&self) -> OpenOptions {
        self.open.clone().write(!self.read_only)
    }

    /// When a read moves times of the last read of files.
    pub(crate) fn atime(&self) -> Atime {
        self.atime
    }

    /// The same for directories.
    pub(crate) fn dir_atime(&self) -> Atime {
        if self.flags.contains(MountFlags::NODIRATIME) { Atime::Never } else { self.atime }
    }

    /// Whether all users may come in. Root's mounts are for all, as the kernel's are, and a user's are his own.
    pub(crate) fn allows_others(&self, root: bool) -> bool {
        self.allow_other.unwrap_or(root)
    }

    /// What follows `fuse.` in the type of the mount.
    pub(crate) fn subtype(&self) -> &str {
        &self.subtype
    }

    /// The flags that are those of a file system and not of a mount, as words.
    pub(crate) fn super_flags(&self) -> impl Iterator<Item = &'static str> {
        let flags = self.flags;
        let of_super = ["ro", "sync", "dirsync", "lazytime"];
        let words = FLAGS.into_iter().filter(move |(_, _, flag)| flags.contains(*flag));
        words.map(|(set, ..)| set).filter(move |word| of_super.contains(word))
    }

    /// The flags as words for fusermount3.
    pub(crate) fn flag_words(&self) -> String {
        let mut words = vec![if self.read_only { "ro" } else { "rw" }];
        for (set, _, flag) in FLAGS {
            // The others it does not know.
            if matches!(set, "noexec" | "sync" | "dirsync") && self.flags.contains(flag) {
                words.push(set);
            }
        }
        if self.atime == Atime::Never {
            words.push("noatime");
        }
        words.join(",")
    }

    /// Changes the flags of a mount to those that a word named. The others, and the volume itself, stay as they are.
    ///
    /// # Errors
    /// [`MountError::FromTheBeginning`] for what the server would have to know,
    /// [`MountError::OpenedReadOnly`], and the system's.
    pub fn remount(&self, mount: &MountPoint) -> Result<(), MountError> {
        mount.remount(self.flags, self.named)
    }
}

fn is_passed_over(word: &str) -> bool {
    let fstab = ["x-", "X-", "comment=", "uhelper=", "helper="].iter().any(|start| word.starts_with(start));
    fstab || PASSED_OVER.contains(&word)
}

/// An address that only this machine reaches: whoever reaches it may read, and is not asked who he is.
fn own_address(word: &str, value: &str) -> Result<SocketAddr, OptionError> {
    let wanted = "an address of this machine and a port, as 127.0.0.1:9100 or [::1]:9100";
    let address: SocketAddr =
        value.parse().map_err(|_| OptionError::new(word, format!("wanted is {wanted}")))?;
    if address.ip().is_loopback() {
        return Ok(address);
    }
    Err(OptionError::new(word, format!("others could reach it; wanted is {wanted}")))
}

/// A type that the table of mounts can show as it is.
fn subtype(word: &str, value: &str) -> Result<String, OptionError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '+');
    if value.is_empty() || !value.chars().all(plain) {
        return Err(OptionError::new(word, "wanted are letters, digits, and - _ . +"));
    }
    Ok(value.into())
}

/// Threads of [`MOST_THREADS`] at most: one is enough, for none waits for a request.
fn threads(word: &str, value: &str) -> Result<usize, OptionError> {
    let why = || OptionError::new(word, format!("wanted is a number from 1 to {MOST_THREADS}"));
    value.parse().ok().filter(|n| (1..=MOST_THREADS).contains(n)).ok_or_else(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &str) -> Result<MountOptions, String> {
        let mut options = MountOptions::default();
        options.parse(words).map(|()| options).map_err(|e| e.to_string())
    }

    #[test]
    fn what_fstab_says_is_taken() {
        let options =
            parsed("defaults,nofail,x-systemd.automount,_netdev,noatime,nodev,data=ordered").unwrap();
        assert_eq!(options.atime(), Atime::Never);
        assert!(options.flags.contains(MountFlags::NODEV | MountFlags::NOATIME) && !options.read_only);
        let options = parsed("ro,norecovery,nosuid,suid,commit=30,errors=remount-ro,threads=4").unwrap();
        assert!(options.read_only && !options.flags.contains(MountFlags::NOSUID));
        assert_eq!(options.threads, 4);
        assert!(parsed("dioread_lock,nodelalloc,discard,lazytime,relatime,cache=64M,i_version").is_ok());
    }

    #[test]
    fn what_is_not_done_is_refused_by_name() {
        for word in [
            "threads=0",
            "threads=65",
            "threads=",
            "data=journal",
            "errors=panic",
            "fast",
            "commit=soon",
            "cache=much",
            "usrquota",
        ] {
            assert!(parsed(word).unwrap_err().contains(word), "{word}");
        }
    }

    #[test]
    fn metrics_are_for_this_machine_only() {
        for address in ["127.0.0.1:9100", "127.9.9.9:0", "[::1]:9100"] {
            assert_eq!(parsed(&format!("metrics={address}")).unwrap().metrics, address.parse().ok());
        }
        for address in ["0.0.0.0:9100", "[::]:9100", "192.168.1.2:9100", "[::ffff:10.0.0.1]:1", "8.8.8.8:80"]
        {
            let why = parsed(&format!("metrics={address}")).unwrap_err();
            assert!(why.contains(address) && why.contains("others could reach it"), "{why}");
        }
        for address in ["", "9100", "localhost:9100", "127.0.0.1", "127.0.0.1:99999"] {
            assert!(parsed(&format!("metrics={address}")).unwrap_err().contains("wanted is"), "{address}");
        }
        assert!(parsed("noatime").unwrap().metrics.is_none(), "nobody listens unless he is told to");
    }

    #[test]
    fn what_users_may_mount_can_harm_nobody() {
        let (quiet, all) = (MountFlags::NOSUID | MountFlags::NODEV, MountFlags::NOEXEC);
        assert_eq!(parsed("user").unwrap().flags, quiet | all);
        assert_eq!(parsed("users").unwrap().flags, quiet | all);
        assert_eq!(parsed("owner").unwrap().flags, quiet);
        assert_eq!(parsed("group").unwrap().flags, quiet);
        assert_eq!(parsed("user,exec").unwrap().flags, quiet);
        assert_eq!(parsed("nouser").unwrap().flags, MountFlags::empty());
    }

    #[test]
    fn later_words_win() {
        assert!(!parsed("ro,rw").unwrap().read_only);
        assert_eq!(parsed("noatime,relatime").unwrap().atime(), Atime::Relative);
    }
}
