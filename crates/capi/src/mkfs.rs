//! Making volumes.

use crate::answer::{Failure, Result, call};
use crate::args;
use lanefs::device::{BlockedSignals, FileOptions, open_url};
use lanefs::mkfs::{self, FsType, MkfsError, Options};
use libc::{c_char, c_int};
use uuid::Uuid;

/// Makes a volume in the file or block device `name`. What was there is lost. No program may have
/// it open.
///
/// `size` is the volume's in bytes: a file is made, or replaced by an empty one, of that size. With
/// 0 the file or device must exist, and keeps its size.
///
/// `options` is a list of words with commas between, or NULL for what `mke2fs -t ext4` makes:
/// `type=ext2` (ext3, ext4), `block_size=4096`, `inode_size=256`, `inode_ratio=16384`,
/// `inodes=100000`, `label=NAME`, `uuid=UUID`, `hash_seed=UUID`, `journal_size=64` (MiB),
/// `reserved_percent=5`, `root_owner=UID:GID`, `features=64bit:^has_journal` (with colons between),
/// `time=SECONDS` (the time that everything gets), `mmp_update_interval=SECONDS` (with the feature
/// `mmp`), `nodiscard`.
///
/// Errors: EINVAL (an unknown option; what cannot be had together or on a device of this
/// size: the message says what), ENOENT, EACCES, EBUSY, ENOSPC, EIO, EFAULT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_mkfs(name: *const c_char, size: u64, options: *const c_char) -> c_int {
    call(|| {
        // SAFETY: strings or null, as the header says.
        let (name, words) = unsafe { (args::os(name)?, args::options(options)?) };
        let options = parse(words)?;
        // The threads of a device are started here.
        let _signals = BlockedSignals::new();
        let made = match size {
            0 => open_url(name, &FileOptions::new())
                .map_err(MkfsError::from)
                .and_then(|device| mkfs::format(&*device, &options)),
            size => mkfs::create(name, size, &options),
        };
        made.map_err(refused)?;
        Ok(0)
    })
}

fn refused(e: MkfsError) -> Failure {
    match e {
        MkfsError::Device(e) => lanefs::Error::from(e).into(),
        MkfsError::NoSpace(_) | MkfsError::TooSmall { .. } => Failure::new(libc::ENOSPC, e.to_string()),
        e => Failure::invalid(e.to_string()),
    }
}

fn parse(words: &str) -> Result<Options> {
    let mut options = Options::default();
    for word in words.split(',').filter(|word| !word.is_empty()) {
        let wrong = || Failure::invalid(format!("option {word}: no such option, or no such value"));
        match word.split_once('=') {
            None if word == "nodiscard" => options.keep = true,
            Some(("type", "ext2")) => options.fs_type = FsType::Ext2,
            Some(("type", "ext3")) => options.fs_type = FsType::Ext3,
            Some(("type", "ext4")) => options.fs_type = FsType::Ext4,
            Some(("block_size", n)) => options.block_size = Some(n.parse().map_err(|_| wrong())?),
            Some(("inode_size", n)) => options.inode_size = Some(n.parse().map_err(|_| wrong())?),
            Some(("inode_ratio", n)) => options.inode_ratio = Some(n.parse().map_err(|_| wrong())?),
            Some(("inodes", n)) => options.inode_count = Some(n.parse().map_err(|_| wrong())?),
            Some(("label", label)) => options.label = label.into(),
            Some(("uuid", uuid)) => options.uuid = Some(parse_uuid(uuid).ok_or_else(wrong)?),
            Some(("hash_seed", uuid)) => options.hash_seed = Some(parse_uuid(uuid).ok_or_else(wrong)?),
            Some(("journal_size", n)) => options.journal_size = Some(n.parse().map_err(|_| wrong())?),
            Some(("reserved_percent", n)) => options.reserved_percent = Some(n.parse().map_err(|_| wrong())?),
            Some(("root_owner", ids)) => options.root_owner = parse_owner(ids).ok_or_else(wrong)?,
            Some(("mmp_update_interval", n)) => {
                options.mmp_update_interval = Some(n.parse().map_err(|_| wrong())?);
            }
            Some(("time", n)) => options.time = Some(n.parse().map_err(|_| wrong())?),
            Some(("features", list)) => {
                options.features = list
                    .replace(':', ",")
                    .parse()
                    .map_err(|e| Failure::invalid(format!("option {word}: {e}")))?;
            }
            _ => return Err(wrong()),
        }
    }
    Ok(options)
}

fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    Uuid::parse_str(text).ok().map(Uuid::into_bytes)
}

fn parse_owner(text: &str) -> Option<(u32, u32)> {
    let (uid, gid) = text.split_once(':')?;
    Some((uid.parse().ok()?, gid.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_words() {
        let options = parse(
            "type=ext3,block_size=1024,inode_size=128,inode_ratio=8192,inodes=77,label=a b,\
             uuid=00010203-0405-0607-0809-0a0b0c0d0e0f,journal_size=4,reserved_percent=1.5,root_owner=7:8,time=9,mmp_update_interval=3,nodiscard,",
        );
        let wanted = Options {
            fs_type: FsType::Ext3,
            block_size: Some(1024),
            inode_size: Some(128),
            inode_ratio: Some(8192),
            inode_count: Some(77),
            label: b"a b".to_vec(),
            uuid: Some(std::array::from_fn(|i| i as u8)),
            journal_size: Some(4),
            reserved_percent: Some(1.5),
            root_owner: (7, 8),
            time: Some(9),
            mmp_update_interval: Some(3),
            keep: true,
            ..Options::default()
        };
        assert_eq!(options.unwrap(), wanted);
        assert_ne!(parse("features=^has_journal:64bit").unwrap(), Options::default());
        for bad in
            ["fast", "nodiscard=1", "type=xfs", "block_size=x", "uuid=1", "root_owner=1", "features=fast"]
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
