//! Mount options as text, in the words of mount(8), for the command, the mount, the C library and
//! the fio engine.
//!
//! The words are the kernel's own (ext4(5)) where it has the option. A word that asks for less than
//! lanefs always does is accepted and changes nothing. A word that asks for something else, and an
//! unknown word, are refused. Options of the mount and not of the volume (`nosuid`, `relatime`,
//! `allow_other`, ...) never come here: the mount takes them out.

use super::{COMMIT_INTERVAL, OpenOptions};
use crate::error::{Error, Result};
use lanefs_device::{Cached, IoUring};
use std::time::Duration;

/// Words that ask for no more than lanefs always does.
#[doc(hidden)]
pub const WORDS_OF_DEFAULTS: &[&str] = &[
    "defaults",
    "data=ordered",
    "data=writeback",
    "barrier",
    "barrier=0",
    "barrier=1",
    "nobarrier",
    // A volume that fails becomes read-only.
    "errors=remount-ro",
    "errors=continue",
    "user_xattr",
    "block_validity",
    "noblock_validity",
    "bsddf",
    "nogrpid",
    "sysvgroups",
    "noquota",
    "noauto_da_alloc",
    "nojournal_checksum",
    // mkfs zeroes the inode tables.
    "init_itable",
    "noinit_itable",
];

/// Words that ask for no more than the engine always does. A mount has more of them.
const OF_THE_ENGINE: &[&str] = &[
    // Reads leave the time of the last read as it is.
    "noatime",
    "nodiratime",
    // Times are kept in core until the inode is written for another reason, or the commit interval
    // is over.
    "lazytime",
    // i_version is always counted.
    "i_version",
];

/// Hints about speed that the kernel takes with a number, and that lanefs ignores.
#[doc(hidden)]
pub const WORDS_OF_HINTS: &[&str] = &[
    "inode_readahead_blks=N",
    "stripe=N",
    "max_batch_time=N",
    "min_batch_time=N",
    "journal_ioprio=N",
    "init_itable=N",
    "max_dir_size_kb=N",
    "mb_optimize_scan=N",
];

/// Words of the kernel that ask for something that lanefs does not do, and why.
const REFUSED: &[(&str, &str)] = &[
    ("data=journal", "the content of files does not go through the journal"),
    ("errors=panic", "a volume that fails becomes read-only, and nothing else"),
    ("nouser_xattr", "extended attributes are always there"),
    ("relatime", "reads leave the time of the last read as it is: noatime"),
    ("strictatime", "reads leave the time of the last read as it is: noatime"),
    ("atime", "reads leave the time of the last read as it is: noatime"),
    ("minixdf", "statfs leaves out what files cannot have: bsddf"),
    ("grpid", "a new file gets the group of the process that makes it: nogrpid"),
    ("bsdgroups", "a new file gets the group of the process that makes it: nogrpid"),
    (
        "auto_da_alloc",
        "content is written out by fsync, by age and by pressure, not by rename: noauto_da_alloc",
    ),
    ("journal_checksum", "checksums of a journal are chosen when the volume is made"),
    ("journal_async_commit", "a commit block follows a flush"),
    ("usrquota", "quota is not written"),
    ("grpquota", "quota is not written"),
    ("prjquota", "quota is not written"),
    ("quota", "quota is not written"),
];

/// Returns the words that change nothing or are refused in [`OpenOptions::mount_option`], and that
/// the other lists do not have, for tables of options.
#[doc(hidden)]
pub fn mount_words() -> impl Iterator<Item = &'static str> {
    OF_THE_ENGINE.iter().copied().chain(REFUSED.iter().map(|(word, _)| *word))
}

impl OpenOptions {
    /// Sets options from a list of words as mount(8) takes it after `-o`, separated by commas. Of
    /// words that contradict each other, the last one counts.
    ///
    /// | words | |
    /// |---|---|
    /// | `rw`, `ro` | [`write`](Self::write) |
    /// | `noload`, `norecovery` | [`noload`](Self::noload) |
    /// | `commit=SECONDS` | [`commit_interval`](Self::commit_interval); 0 is the five seconds of the kernel |
    /// | `cache=SIZE`, `metadata_cache=SIZE` | [`cache_bytes`](Self::cache_bytes), [`metadata_cache_bytes`](Self::metadata_cache_bytes): `64M`, `1G` |
    /// | `io=mixed`, `io=buffered`, `io=direct` | [`cached`](Self::cached): small reads (the default), all, nothing |
    /// | `io_uring=auto`, `off`, `on` | [`io_uring`](Self::io_uring) |
    /// | `locking=inode`, `range-mutex`, `range` | [`locking`](Self::locking) |
    /// | `overwrite=journal`, `nojournal` | [`overwrite`](Self::overwrite) |
    /// | `i_version=always`, `queried` | [`i_version`](Self::i_version) |
    /// | `mapafter`, `dioread_lock`, `dioread_nolock` | [`writeback`](Self::writeback) |
    /// | `delalloc`, `nodelalloc` | [`delalloc`](Self::delalloc) |
    /// | `discard`, `nodiscard` | [`discard`](Self::discard) |
    /// | `dax`, `dax=always`, `dax=never` | [`dax`](Self::dax) |
    /// | `acl`, `noacl` | [`acl`](Self::acl) |
    ///
    /// # Errors
    /// [`Error::MountOption`], with the word that is no option or whose value is not allowed.
    ///
    /// ```
    /// let options = lanefs::OpenOptions::new().mount_options("locking=inode,dioread_lock,commit=30")?;
    /// assert!(options.mount_options("fast").is_err());
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn mount_options(self, words: &str) -> Result<Self> {
        words.split(',').filter(|word| !word.is_empty()).try_fold(self, Self::mount_option)
    }

    /// Sets an option from one word of such a list.
    ///
    /// # Errors
    /// [`Error::MountOption`], if the word is no option or its value is not allowed.
    pub fn mount_option(mut self, word: &str) -> Result<Self> {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, None),
        };
        match (name, value) {
            ("rw", None) => self.write = true,
            ("ro", None) => self.write = false,
            ("noload" | "norecovery", None) => self.noload = true,
            ("load", None) => self.noload = false,
            ("io", Some("direct")) => self.cached = Cached::Nothing,
            ("io", Some("buffered")) => self.cached = Cached::All,
            ("io", Some("mixed")) => self.cached = Cached::SmallReads,
            ("io_uring", Some("auto")) => self.io_uring = IoUring::Auto,
            ("io_uring", Some("off")) => self.io_uring = IoUring::Off,
            ("io_uring", Some("on")) => self.io_uring = IoUring::On,
            ("commit", Some(seconds)) => {
                let seconds = number(word, seconds)?;
                let interval = if seconds == 0 { COMMIT_INTERVAL } else { Duration::from_secs(seconds) };
                self.commit_interval = interval;
            }
            ("cache", Some(bytes)) => self.cache_bytes = Some(size(word, bytes)?),
            ("metadata_cache", Some(bytes)) => self.metadata_cache_bytes = Some(size(word, bytes)?),
            _ if self.modes.set(word)
                || WORDS_OF_DEFAULTS.contains(&word)
                || OF_THE_ENGINE.contains(&word) => {}
            (_, Some(value)) if WORDS_OF_HINTS.iter().any(|hint| hint.strip_suffix("=N") == Some(name)) => {
                number(word, value)?;
            }
            _ => return Err(refused(word, name)),
        }
        Ok(self)
    }
}

fn refused(word: &str, name: &str) -> Error {
    // `usrjquota=FILE` is as much a quota as `usrquota`.
    let known = REFUSED.iter().find(|(refused, _)| *refused == word || *refused == name);
    wrong(word, known.map_or("no such option, or no such value", |(_, why)| why))
}

fn wrong(word: &str, why: &str) -> Error {
    Error::MountOption { word: word.to_owned(), why: why.to_owned() }
}

/// Seconds and the like: 32 bits, as in the kernel.
fn number(word: &str, value: &str) -> Result<u64> {
    value.parse::<u32>().map(u64::from).map_err(|_| wrong(word, "the value is no number of 32 bits"))
}

fn size(word: &str, value: &str) -> Result<usize> {
    let bytes = lanefs_mkfs::parse_size(value).ok().and_then(|bytes| usize::try_from(bytes).ok());
    bytes.ok_or_else(|| wrong(word, "the value is no size, such as 64M or 1G"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{IVersion, Locking, Overwrite, WritebackMode};
    use lanefs_device::MemDevice;
    use std::sync::Arc;

    fn taken(words: &str) -> OpenOptions {
        OpenOptions::new().mount_options(words).unwrap_or_else(|e| panic!("{words}: {e}"))
    }

    #[test]
    fn words_set_what_they_say() {
        let options = taken(
            "rw,,noload,commit=7,cache=3M,metadata_cache=1k,io=direct,io_uring=off,locking=inode,overwrite=journal,\
             i_version=always,dioread_lock,nodelalloc,discard,dax=never,",
        );
        assert!(options.write && options.noload && options.cached == Cached::Nothing);
        assert_eq!(options.commit_interval, Duration::from_secs(7));
        assert_eq!((options.cache_bytes, options.metadata_cache_bytes), (Some(3 << 20), Some(1 << 10)));
        assert_eq!(options.io_uring, IoUring::Off);
        let modes = options.modes;
        assert_eq!((modes.locking, modes.overwrite), (Locking::Inode, Overwrite::Journal));
        assert_eq!((modes.i_version, modes.writeback), (IVersion::Always, WritebackMode::DioreadLock));
        assert!(!modes.delalloc && modes.discard && !modes.dax);

        let back = options.mount_options("ro,load,commit=0,io=mixed,io_uring=on").unwrap();
        assert!(!back.write && !back.noload && back.cached == Cached::SmallReads);
        assert_eq!((back.commit_interval, back.io_uring), (COMMIT_INTERVAL, IoUring::On));
    }

    #[test]
    fn a_line_of_fstab_is_taken() {
        let plain = format!("{:?}", OpenOptions::new().write(true));
        let words = "defaults,rw,noatime,errors=remount-ro,data=ordered,barrier=1,stripe=16,user_xattr,acl";
        assert_eq!(format!("{:?}", taken(words)), plain);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (words, named, why) in [
            ("rw,fast", "fast", "no such option"),
            ("commit", "commit", "no such option"),
            ("commit=soon,rw", "commit=soon", "no number"),
            ("commit=-1", "commit=-1", "no number"),
            ("stripe=x", "stripe=x", "no number"),
            ("cache=", "cache=", "no size"),
            ("cache=12Q", "cache=12Q", "no size"),
            ("locking=none", "locking=none", "no such value"),
            ("ro=1", "ro=1", "no such option"),
            ("data=journal", "data=journal", "journal"),
            ("usrquota", "usrquota", "quota"),
            ("noatime=1", "noatime=1", "no such option"),
        ] {
            let error = OpenOptions::new().mount_options(words).unwrap_err();
            let text = error.to_string();
            assert!(text.contains(&format!("option {named}:")) && text.contains(why), "{words}: {text}");
            assert_eq!(error.errno(), lanefs_device::errno::EINVAL);
        }
    }

    #[test]
    fn noload_does_not_look_into_the_journal() {
        let device = Arc::new(MemDevice::new(16 << 20));
        lanefs_mkfs::format(&*device, &lanefs_mkfs::Options::default()).unwrap();
        let volume = taken("rw").open_device(device.clone()).unwrap();
        volume.create_dir("/in-the-log").unwrap();
        volume.sync().unwrap();
        let left = Arc::new(MemDevice::from_bytes(device.to_bytes()));

        let open = |words| taken(words).open_device(left.clone() as _);
        assert!(open("ro").unwrap().exists("/in-the-log").unwrap());
        assert!(!open("ro,noload").unwrap().exists("/in-the-log").unwrap());
        assert!(matches!(open("rw,norecovery"), Err(Error::Invalid(_))));
    }
}
