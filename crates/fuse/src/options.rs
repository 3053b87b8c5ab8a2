//! Options of a mount, by the names that the kernel's ext4, mount(8) and FUSE have for them.
//!
//! [`words`] has the table of all. What concerns the mount is taken here, what concerns the volume
//! by [`OpenOptions::mount_option`].

mod option;
mod words;

use crate::owners::Owners;
use crate::table::LAZYTIME;
use lanefs::{Atime, OpenOptions};
use option::Action;
pub use option::{MountOption, OptionKind};
use rustix::mount::MountFlags;
use std::ffi::OsString;
use std::net::SocketAddr;
pub use words::MOUNT_OPTIONS;
use words::{QUIET, action_of};

/// Bytes of metadata, and of content beside the kernel's own cache, that are kept in memory, unless
/// said otherwise.
const CACHE: usize = 256 << 20;

/// Threads that serve: more would not keep a device busier.
const MOST_THREADS: usize = 64;

/// The confinement of the process that serves a mount.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SandboxMode {
    /// By all that the kernel has for it.
    #[default]
    Auto,
    /// By Landlock and seccomp; there is no mount where the kernel lacks one of them.
    Require,
    /// Not at all.
    Off,
}

/// The changes of a volume that are durable when their request is answered.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Durably {
    /// All changes.
    pub(crate) all: bool,
    /// Changes of directories.
    pub(crate) dirs: bool,
}

/// Options of a mount.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// The volume is not written.
    pub read_only: bool,
    /// What is written stays in memory.
    pub overlay: bool,
    /// It changes a mount that is there.
    pub remount: bool,
    /// Threads that serve at most.
    pub threads: usize,
    /// The name of the volume in `/proc/mounts`, if not its own.
    pub fsname: Option<OsString>,
    /// Where programs of this machine may ask for metrics.
    pub metrics: Option<SocketAddr>,
    /// Whether the process that serves it is confined.
    pub sandbox: SandboxMode,
    pub(crate) flags: MountFlags,
    /// The flags that were set or cleared by a word.
    pub(crate) named: MountFlags,
    /// The type in `/proc/mounts` is `fuse.SUBTYPE`.
    subtype: String,
    allow_other: Option<bool>,
    acl: bool,
    /// Whose the files are.
    pub(crate) owners: Owners,
    /// See [`Follow`](crate::scheduling::Follow).
    pub(crate) follow: bool,
    /// The kernel opens and closes files without a request.
    pub(crate) no_open: bool,
    /// There are no extended attributes.
    pub(crate) no_xattr: bool,
    atime: Atime,
    open: OpenOptions,
    /// Words that are no flags: a mount that is there keeps what it has of them.
    from_the_beginning: Vec<String>,
    /// A word that only a remount may bring.
    of_the_table: Option<String>,
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
            overlay: false,
            remount: false,
            threads: MOST_THREADS,
            fsname: None,
            metrics: None,
            sandbox: SandboxMode::default(),
            flags: MountFlags::empty(),
            named: MountFlags::empty(),
            subtype: "lanefs".into(),
            allow_other: None,
            acl: true,
            owners: Owners::default(),
            follow: true,
            no_open: false,
            no_xattr: false,
            atime: Atime::Relative,
            open: OpenOptions::new().cache_bytes(CACHE).release_memory_when_idle(true).tick_times(true),
            from_the_beginning: Vec::new(),
            of_the_table: None,
        }
    }
}

/// The outcome of taking one word.
type Taken = Result<(), OptionError>;

impl MountOptions {
    /// Takes a list of words as mount(8) does after `-o`, with commas between.
    ///
    /// # Errors
    /// The first word that is no option, or asks for what lanefs does not do.
    pub fn parse(&mut self, words: &str) -> Result<(), OptionError> {
        words.split(',').filter(|w| !w.is_empty()).try_for_each(|word| self.take(word))?;
        if self.owners.fakeroot && self.allow_other == Some(true) {
            let why = "it would make root of every user that allow_other lets in: leave one of them out";
            return Err(OptionError::new("fakeroot", why));
        }
        if self.owners != Owners::default() {
            self.distrust();
        }
        match &self.of_the_table {
            Some(word) if !self.remount => {
                let refusal = MountOption::find(word).and_then(MountOption::refusal);
                Err(OptionError::new(word, refusal.unwrap_or_default()))
            }
            _ => Ok(()),
        }
    }

    fn take(&mut self, word: &str) -> Taken {
        match action_of(word)? {
            Action::Set(flags) => self.set(flags, true),
            Action::Clear(flags) => self.set(flags, false),
            Action::Times(atime) => self.set_atime(atime),
            Action::Keep(take) => {
                take(self, word, word.split_once('=').map_or("", |(_, value)| value))?;
                if word != "remount" {
                    self.from_the_beginning.push(word.to_owned());
                }
            }
            Action::Volume => {
                let taken = self.open.clone().mount_option(word);
                self.open = taken.map_err(|e| OptionError::of_volume(word, &e))?;
                self.from_the_beginning.push(word.to_owned());
            }
            Action::OfTheTable => self.of_the_table = Some(word.to_owned()),
            Action::Always | Action::Outside | Action::Refused => {}
        }
        self.read_only = self.flags.contains(MountFlags::RDONLY);
        Ok(())
    }

    /// Returns the words that a remount leaves without effect.
    pub fn from_the_beginning(&self) -> &[String] {
        &self.from_the_beginning
    }

    /// Returns the first of the flags that only root's mounts can have, as fusermount3 has it.
    pub(crate) fn only_for_root(&self) -> Option<&'static str> {
        let cleared = |flag| self.named.contains(flag) && !self.flags.contains(flag);
        let words = [
            ("suid", cleared(MountFlags::NOSUID)),
            ("dev", cleared(MountFlags::NODEV)),
            ("nosymfollow", self.flags.contains(MountFlags::NOSYMFOLLOW)),
        ];
        words.into_iter().find_map(|(word, is)| is.then_some(word))
    }

    /// Makes the mount `nosuid` and `nodev`, each unless a word said otherwise.
    pub fn distrust(&mut self) {
        self.flags |= QUIET - self.named;
    }

    fn set(&mut self, flags: MountFlags, on: bool) {
        self.flags.set(flags, on);
        self.named |= flags;
    }

    fn set_acl(&mut self, on: bool) {
        self.acl = on;
    }

    fn set_atime(&mut self, atime: Atime) {
        self.atime = atime;
        self.set(MountFlags::NOATIME, atime == Atime::Never);
        self.set(MountFlags::STRICTATIME, atime == Atime::Strict);
        self.set(MountFlags::RELATIME, atime == Atime::Relative);
    }

    /// Returns whether the kernel checks permissions, by modes and by what else it is told.
    pub(crate) fn kernel_checks(&self) -> bool {
        !self.owners.fakeroot
    }

    /// Returns whether the kernel is told of ACLs: it would check permissions by them.
    pub(crate) fn acl(&self) -> bool {
        self.acl && !self.no_xattr && self.kernel_checks()
    }

    /// Returns which changes are durable when they are answered.
    pub(crate) fn durably(&self) -> Durably {
        let has = |flag| self.flags.contains(flag);
        Durably { all: has(MountFlags::SYNCHRONOUS), dirs: has(MountFlags::DIRSYNC) }
    }

    /// Returns how to open the volume.
    pub fn open_options(&self) -> OpenOptions {
        // The mode means what it says where no ACL can be seen.
        let acl = self.acl && !self.no_xattr;
        let open = self.open.clone().acl(acl).write(!self.read_only);
        // An overlay writes nothing to the volume.
        open.mmp(!self.overlay).confined(self.sandbox != SandboxMode::Off)
    }

    /// Returns when a read updates atime.
    pub(crate) fn atime(&self) -> Atime {
        self.atime
    }

    /// Returns the same for directories.
    pub(crate) fn dir_atime(&self) -> Atime {
        if self.flags.contains(MountFlags::NODIRATIME) { Atime::Never } else { self.atime }
    }

    /// Returns whether all users may use the mount. A mount of root is for all users, as the
    /// kernel's are. A mount of another user, and one with `fakeroot`, is for that user alone.
    pub(crate) fn allows_others(&self, root: bool) -> bool {
        self.allow_other.unwrap_or(root && !self.owners.fakeroot)
    }

    /// Returns the part after `fuse.` in the type of the mount.
    pub(crate) fn subtype(&self) -> &str {
        &self.subtype
    }

    /// Returns the flags of the file system, not of the mount, as words.
    pub(crate) fn super_flags(&self) -> impl Iterator<Item = &'static str> {
        let all = [
            ("ro", MountFlags::RDONLY),
            ("sync", MountFlags::SYNCHRONOUS),
            ("dirsync", MountFlags::DIRSYNC),
            ("lazytime", LAZYTIME),
        ];
        let flags = self.flags;
        all.into_iter().filter_map(move |(word, flag)| flags.contains(flag).then_some(word))
    }

    /// Returns the flags as words for fusermount3.
    pub(crate) fn flag_words(&self) -> String {
        let mut words = vec![if self.read_only { "ro" } else { "rw" }];
        // The others it does not know.
        let known = [
            ("noexec", MountFlags::NOEXEC),
            ("sync", MountFlags::SYNCHRONOUS),
            ("dirsync", MountFlags::DIRSYNC),
        ];
        words.extend(known.into_iter().filter_map(|(word, flag)| self.flags.contains(flag).then_some(word)));
        if self.atime == Atime::Never {
            words.push("noatime");
        }
        words.join(",")
    }
}

/// Parses an address that only this machine reaches: every program that reaches it may read the
/// metrics, without authentication.
fn metrics_address(word: &str, value: &str) -> Result<SocketAddr, OptionError> {
    let wanted = "an address of this machine and a port, as 127.0.0.1:9100 or [::1]:9100";
    let address: SocketAddr =
        value.parse().map_err(|_| OptionError::new(word, format!("wanted is {wanted}")))?;
    if address.ip().is_loopback() {
        return Ok(address);
    }
    Err(OptionError::new(word, format!("others could reach it; wanted is {wanted}")))
}

/// Returns the mode that a word asks for.
fn sandbox(word: &str, value: &str) -> Result<SandboxMode, OptionError> {
    match value {
        "auto" => Ok(SandboxMode::Auto),
        "require" => Ok(SandboxMode::Require),
        "off" => Ok(SandboxMode::Off),
        _ => Err(OptionError::new(word, "wanted is auto, require or off")),
    }
}

/// Returns the user or group that a word names by number.
fn id(word: &str, value: &str) -> Result<u32, OptionError> {
    // The last number means none.
    let id = value.parse().ok().filter(|id| *id != u32::MAX);
    id.ok_or_else(|| OptionError::new(word, "wanted is the number of a user or group"))
}

/// Checks a subtype: the table of mounts must be able to show it unchanged.
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
            "threads",
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
    fn nobody_else_becomes_root() {
        let options = parsed("fakeroot").unwrap();
        assert!(!options.allows_others(true) && !options.kernel_checks() && !options.acl());
        for words in ["fakeroot,allow_other", "allow_other,fakeroot"] {
            assert!(parsed(words).unwrap_err().contains("fakeroot"), "{words}");
        }
        let owners = Owners { uid: Some(1000), gid: Some(0), fakeroot: false };
        assert_eq!(parsed("uid=1000,gid=0").unwrap().owners, owners);
        for word in ["uid=", "uid=me", "gid=4294967295", "gid=-1"] {
            assert!(parsed(word).unwrap_err().contains(word), "{word}");
        }
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
        assert_eq!(parsed("untrusted").unwrap().flags, quiet);
        for owners in ["uid=7", "gid=7", "fakeroot"] {
            assert_eq!(parsed(owners).unwrap().flags, quiet, "{owners}");
            assert_eq!(parsed(&format!("suid,{owners}")).unwrap().flags, MountFlags::NODEV, "{owners}");
        }
        assert_eq!(parsed("untrusted,dev").unwrap().flags, MountFlags::NOSUID);
        assert_eq!(parsed("user,trusted").unwrap().flags, MountFlags::NOEXEC);
        assert_eq!(parsed("trusted").unwrap().only_for_root(), Some("suid"));
    }

    #[test]
    fn distrust_leaves_what_was_named() {
        let distrusted = |words: &str| {
            let mut options = parsed(words).unwrap();
            options.distrust();
            options.flags
        };
        let quiet = MountFlags::NOSUID | MountFlags::NODEV;
        assert_eq!(distrusted(""), quiet);
        assert_eq!(distrusted("defaults,noexec"), quiet | MountFlags::NOEXEC);
        assert_eq!(distrusted("suid"), MountFlags::NODEV);
        assert_eq!(distrusted("dev,nosuid"), MountFlags::NOSUID);
        assert_eq!(distrusted("suid,dev"), MountFlags::empty());
        assert_eq!(distrusted("trusted"), MountFlags::empty());
    }

    #[test]
    fn later_words_win() {
        assert!(!parsed("ro,rw").unwrap().read_only);
        assert_eq!(parsed("noatime,relatime").unwrap().atime(), Atime::Relative);
    }
}
