//! The modes of writing. Each can be switched, to compare the older ways with the new.
//!
//! The words are those of mount options, the kernel's own where it has the option.

/// The unit that a read or write of a file's content locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Locking {
    /// The inode: one writer or many readers of a file.
    Inode,
    /// The bytes, by an ordered map under a mutex.
    RangeMutex,
    /// The bytes, by [`lanefs_rangelock::RangeLock`].
    #[default]
    Range,
}

/// How a direct write overwrites blocks that are mapped, written and inside of i_size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Overwrite {
    /// Starts a handle each time, and takes the range exclusively.
    Journal,
    /// Writes the blocks, and nothing else.
    #[default]
    NoJournal,
}

/// When i_version changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IVersion {
    /// With every write, which starts a handle and journals the inode.
    Always,
    /// With the first write after a program has read the version.
    #[default]
    Queried,
}

/// The order in which blocks are mapped and written when a hole is filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WritebackMode {
    /// Data first; then one handle maps the blocks as written.
    #[default]
    MapAfter,
    /// One handle maps the blocks as written; its transaction commits only after the data is
    /// written.
    DioreadLock,
    /// One handle maps the blocks as unwritten; a second one converts them once the data is
    /// written.
    DioreadNolock,
}

/// How the content of files is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Modes {
    pub(crate) locking: Locking,
    pub(crate) overwrite: Overwrite,
    pub(crate) i_version: IVersion,
    pub(crate) writeback: WritebackMode,
    /// Whether blocks are chosen when pages are written out, and not when they become dirty.
    pub(crate) delalloc: bool,
    /// Whether freed blocks are discarded on the device.
    pub(crate) discard: bool,
    /// Whether content goes past the page cache where the device is memory.
    pub(crate) dax: bool,
    /// Whether POSIX ACLs count.
    pub(crate) acl: bool,
}

impl Default for Modes {
    fn default() -> Self {
        Self {
            locking: Locking::default(),
            overwrite: Overwrite::default(),
            i_version: IVersion::default(),
            writeback: WritebackMode::default(),
            delalloc: true,
            discard: false,
            dax: true,
            acl: true,
        }
    }
}

impl Modes {
    /// Takes one word of a list of mount options. Returns `false` if it is no mode.
    pub(crate) fn set(&mut self, word: &str) -> bool {
        match word {
            "locking=inode" => self.locking = Locking::Inode,
            "locking=range-mutex" => self.locking = Locking::RangeMutex,
            "locking=range" => self.locking = Locking::Range,
            "overwrite=journal" => self.overwrite = Overwrite::Journal,
            "overwrite=nojournal" => self.overwrite = Overwrite::NoJournal,
            "i_version=always" => self.i_version = IVersion::Always,
            "i_version=queried" => self.i_version = IVersion::Queried,
            "mapafter" => self.writeback = WritebackMode::MapAfter,
            "dioread_lock" => self.writeback = WritebackMode::DioreadLock,
            "dioread_nolock" => self.writeback = WritebackMode::DioreadNolock,
            "delalloc" => self.delalloc = true,
            "nodelalloc" => self.delalloc = false,
            "discard" => self.discard = true,
            "nodiscard" => self.discard = false,
            "dax" | "dax=always" => self.dax = true,
            "dax=never" => self.dax = false,
            "acl" => self.acl = true,
            "noacl" => self.acl = false,
            _ => return false,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_taken_and_others_refused() {
        let mut modes = Modes::default();
        for word in [
            "locking=inode",
            "overwrite=journal",
            "i_version=always",
            "dioread_lock",
            "nodelalloc",
            "dax=never",
            "noacl",
        ] {
            assert!(modes.set(word), "{word}");
        }
        let all = Modes {
            locking: Locking::Inode,
            overwrite: Overwrite::Journal,
            i_version: IVersion::Always,
            writeback: WritebackMode::DioreadLock,
            delalloc: false,
            discard: false,
            dax: false,
            acl: false,
        };
        assert_eq!(modes, all);
        for word in [
            "locking=range",
            "overwrite=nojournal",
            "i_version=queried",
            "mapafter",
            "delalloc",
            "dax",
            "acl",
        ] {
            assert!(modes.set(word), "{word}");
        }
        assert_eq!(modes, Modes::default());
        assert!(!modes.set("locking=none"));
    }
}
