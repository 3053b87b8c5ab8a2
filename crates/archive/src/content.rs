//! What a file or a device holds, by its signature.
//!
//! A program that refuses to overwrite a file, or to open it as a volume, can say what it is.

#[cfg(target_os = "linux")]
pub use files::{of, of_path, of_range};

use crate::tarball::is_header;

/// Bytes at the start that hold every signature that [`of_head`] looks for.
pub const HEAD: usize = 68 << 10;
/// Bytes at the start that tell a compressed archive from another one, whose first member may have
/// any name.
pub(crate) const ARCHIVE_HEAD: usize = 512;

/// The kind of a recognised content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Content {
    /// ext2, ext3 or ext4.
    Ext,
    /// A GPT partition table.
    Gpt,
    /// An MBR partition table.
    Mbr,
    /// A LUKS volume, encrypted.
    Luks,
    /// An LVM physical volume.
    LvmMember,
    /// A member of a Linux RAID.
    RaidMember,
    /// Swap space.
    Swap,
    /// The hash tree of dm-verity.
    Verity,
    /// Another file system, as a message names it.
    FileSystem(&'static str),
    /// An image of a virtual disk, by the name that qemu-img has for its format.
    DiskImage(&'static str),
    /// Compressed data, by the program that unpacks it.
    Compressed(&'static str),
    /// An archive, by the program that unpacks it.
    Archive(&'static str),
    /// Text.
    Text,
    /// Something else that is not all zeros.
    Data,
}

/// Signatures: offset, bytes, what they stand for. The first that is found counts.
const SIGNATURES: &[(usize, &[u8], Content)] = &[
    (1080, b"\x53\xEF", Content::Ext),
    (0, b"LUKS\xBA\xBE", Content::Luks),
    (0, b"verity\0\0", Content::Verity),
    (512, b"EFI PART", Content::Gpt),
    (4096, b"EFI PART", Content::Gpt),
    (536, b"LVM2 001", Content::LvmMember),
    (4096, b"\xFC\x4E\x2B\xA9", Content::RaidMember),
    (4086, b"SWAPSPACE2", Content::Swap),
    (0, b"XFSB", Content::FileSystem("an XFS file system")),
    (0x10040, b"_BHRfS_M", Content::FileSystem("a Btrfs file system")),
    (0, b"hsqs", Content::FileSystem("a SquashFS file system")),
    (1024, b"\xE2\xE1\xF5\xE0", Content::FileSystem("an EROFS file system")),
    (1024, b"\x10\x20\xF5\xF2", Content::FileSystem("an F2FS file system")),
    (32769, b"CD001", Content::FileSystem("an ISO 9660 file system")),
    (3, b"NTFS    ", Content::FileSystem("an NTFS file system")),
    (3, b"EXFAT   ", Content::FileSystem("an exFAT file system")),
    (54, b"FAT1", Content::FileSystem("a FAT file system")),
    (82, b"FAT32   ", Content::FileSystem("a FAT file system")),
    (0, b"QFI\xFB", Content::DiskImage("qcow2")),
    (0, b"KDMV", Content::DiskImage("vmdk")),
    (0, b"COWD", Content::DiskImage("vmdk")),
    (0, b"# Disk DescriptorFile", Content::DiskImage("vmdk")),
    (0, b"conectix", Content::DiskImage("vpc")),
    (0, b"vhdxfile", Content::DiskImage("vhdx")),
    (64, b"\x7F\x10\xDA\xBE", Content::DiskImage("vdi")),
    (0, b"\x1F\x8B", Content::Compressed("gzip")),
    (0, b"\x28\xB5\x2F\xFD", Content::Compressed("zstd")),
    (0, b"\xFD7zXZ\0", Content::Compressed("xz")),
    (0, b"BZh", Content::Compressed("bzip2")),
    (0, b"\x04\x22\x4D\x18", Content::Compressed("lz4")),
    (257, b"ustar", Content::Archive("tar")),
    (0, b"PK\x03\x04", Content::Archive("unzip")),
    (0, b"07070", Content::Archive("cpio")),
];

impl Content {
    /// Returns it with its article: "a GPT partition table".
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Ext => "an ext4 volume".into(),
            Self::Gpt => "a GPT partition table".into(),
            Self::Mbr => "an MBR partition table".into(),
            Self::Luks => "a LUKS volume (encrypted)".into(),
            Self::LvmMember => "an LVM physical volume".into(),
            Self::RaidMember => "a member of a Linux RAID".into(),
            Self::Swap => "swap space".into(),
            Self::Verity => "a dm-verity hash tree".into(),
            Self::FileSystem(name) => name.into(),
            Self::DiskImage(format) => format!("a disk image in {format} format"),
            Self::Compressed(by) => format!("compressed data ({by})"),
            Self::Archive("unzip") => "a zip archive".into(),
            Self::Archive(by) => format!("a {by} archive"),
            Self::Text => "text".into(),
            Self::Data => "data".into(),
        }
    }
}

/// Recognises the start of a file: its first [`HEAD`] bytes, or all of a shorter one. Returns
/// `None` for zeros.
///
/// # Examples
/// ```
/// use lanefs_archive::content::{Content, of_head};
/// let image = of_head(b"QFI\xFB").expect("a signature");
/// assert_eq!(image.name(), "a disk image in qcow2 format");
/// assert_eq!(of_head(b"a line\n"), Some(Content::Text));
/// assert_eq!(of_head(&[0; 4096]), None);
/// ```
#[must_use]
pub fn of_head(head: &[u8]) -> Option<Content> {
    let has = |at: usize, bytes: &[u8]| head.get(at..at + bytes.len()) == Some(bytes);
    let found = SIGNATURES.iter().find(|(at, bytes, _)| has(*at, bytes)).map(|(_, _, content)| *content);
    match found.or(is_skippable_frame(head).then_some(Content::Compressed("zstd"))) {
        // The name of its first member looks like a signature.
        Some(Content::Compressed(_)) | None if is_header(head) => return Some(Content::Archive("tar")),
        None => {}
        found => return found,
    }
    // Four entries of 16 bytes from 446 on; the fifth byte of each is the partition's type.
    if has(510, b"\x55\xAA") && (446..510).step_by(16).any(|at| head[at + 4] != 0) {
        return Some(Content::Mbr);
    }
    if head.iter().all(|b| *b == 0) {
        return None;
    }
    let text = |b: u8| matches!(b, b'\t' | b'\n' | b'\r' | 0x0C | 0x1B | 0x20..=0x7E | 0x80..);
    Some(if head.iter().all(|b| text(*b)) { Content::Text } else { Content::Data })
}

/// Returns whether a skippable frame of zstd begins, as in each stream of pzstd: four bits of its
/// magic number are free.
fn is_skippable_frame(head: &[u8]) -> bool {
    matches!(head, [0x50..=0x5F, 0x2A, 0x4D, 0x18, ..])
}

/// The part that reads files, and looks for their holes.
#[cfg(target_os = "linux")]
mod files {
    use super::{Content, HEAD, of_head};
    use std::fs::File;
    use std::io;
    use std::ops::Range;
    use std::os::unix::fs::FileExt;
    use std::path::Path;

    /// Recognises the content of `file`. Returns `None` if it is empty, or all zeros as far as this
    /// looks.
    ///
    /// # Errors
    /// `file` cannot be read.
    pub fn of(file: &File) -> io::Result<Option<Content>> {
        let head = head(file, 0, HEAD)?;
        if let Some(known) = of_head(&head) {
            return Ok(Some(known));
        }
        // The start may have been wiped, or be a hole: the second copy of a GPT is at the end.
        let size = rustix::fs::seek(file, rustix::fs::SeekFrom::End(0))?;
        let mut last = [0; 8];
        if size > 512 && file.read_exact_at(&mut last, size - 512).is_ok() && &last == b"EFI PART" {
            return Ok(Some(Content::Gpt));
        }
        Ok(first_data(file, size)?.then_some(Content::Data))
    }

    /// Recognises the content of a part of `file`, by its start alone.
    ///
    /// # Errors
    /// `file` cannot be read.
    pub fn of_range(file: &File, range: Range<u64>) -> io::Result<Option<Content>> {
        let len = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(HEAD);
        Ok(of_head(&head(file, range.start, len.min(HEAD))?))
    }

    /// Reads `len` bytes, or what there is of them.
    fn head(file: &File, start: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut head = vec![0; len];
        let mut filled = 0;
        while filled < len {
            match file.read_at(&mut head[filled..], start + filled as u64) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        head.truncate(filled);
        Ok(head)
    }

    /// Recognises the content of the file at `path`. Returns `None` too if it cannot be read, and
    /// for what is neither a regular file nor a block device.
    #[must_use]
    pub fn of_path(path: &Path) -> Option<Content> {
        let meta = std::fs::metadata(path).ok()?;
        let is_block = std::os::unix::fs::FileTypeExt::is_block_device(&meta.file_type());
        if !(meta.is_file() || is_block) {
            return None;
        }
        of(&File::open(path).ok()?).ok()?
    }

    /// Returns whether the first data range after the head begins with something else than zeros.
    fn first_data(file: &File, size: u64) -> io::Result<bool> {
        let Ok(start) = rustix::fs::seek(file, rustix::fs::SeekFrom::Data(HEAD as u64)) else {
            return Ok(false);
        };
        let mut bytes = vec![0; (size.saturating_sub(start)).min(1 << 20) as usize];
        let n = file.read_at(&mut bytes, start)?;
        Ok(bytes[..n].iter().any(|b| *b != 0))
    }
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Returns the content that `script` makes in the empty file `f`.
    fn made_by(script: &str) -> Option<Content> {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = std::env::var("PATH").unwrap_or_default();
        let run = Command::new("sh")
            .args(["-euc", script])
            .env("PATH", format!("{path}:/usr/sbin:/sbin"))
            .current_dir(dir.path())
            .output()
            .expect("sh");
        assert!(run.status.success(), "{script}: {}", String::from_utf8_lossy(&run.stderr));
        of_path(&dir.path().join("f"))
    }

    #[test]
    fn what_others_made_is_recognised() {
        let disk = |script: &str| made_by(&format!("truncate -s 320M f; {script}"));
        assert_eq!(disk("mke2fs -qF f"), Some(Content::Ext));
        assert_eq!(disk("mkfs.xfs -q f"), Some(Content::FileSystem("an XFS file system")));
        // The second copy of a GPT, where the first has been wiped.
        let last = (320 << 20) - 512;
        let put = format!("printf 'EFI PART' | dd of=f bs=1 seek={last} conv=notrunc status=none");
        assert_eq!(disk(&put), Some(Content::Gpt));
        assert_eq!(disk("mkswap -q f"), Some(Content::Swap));
        assert_eq!(disk(":"), None);
        assert_eq!(disk("printf x | dd of=f bs=1 seek=200M conv=notrunc status=none"), Some(Content::Data));
        assert_eq!(made_by("head -c 5000 /dev/zero | gzip > f"), Some(Content::Compressed("gzip")));
        assert_eq!(made_by("echo hello > h; tar -cf f h"), Some(Content::Archive("tar")));
        assert_eq!(made_by("echo hello > f"), Some(Content::Text));
        assert_eq!(made_by(": > f"), None);
        assert_eq!(made_by("head -c 99999 /dev/zero > f"), None);
    }

    #[test]
    fn the_rest_by_their_signatures() {
        for (at, bytes, content) in SIGNATURES {
            assert!(at + bytes.len() <= HEAD);
            let mut head = vec![0; HEAD];
            head[*at..at + bytes.len()].copy_from_slice(bytes);
            assert_eq!(of_head(&head), Some(*content));
            assert!(!content.name().is_empty());
        }
        for magic in 0x184D_2A50..=0x184D_2A5F_u32 {
            assert_eq!(of_head(&magic.to_le_bytes()), Some(Content::Compressed("zstd")), "{magic:x}");
        }
        for magic in [0x184D_2A4F_u32, 0x184D_2A60] {
            assert_eq!(of_head(&magic.to_le_bytes()), Some(Content::Data), "{magic:x}");
        }
        let mut mbr = [0; 512];
        mbr[510..].copy_from_slice(b"\x55\xAA");
        assert_eq!(of_head(&mbr), Some(Content::Data));
        mbr[450] = 0x83;
        assert_eq!(of_head(&mbr), Some(Content::Mbr));
        assert_eq!(of_head(b"\x53"), Some(Content::Text));
        assert_eq!(of_head(b"\x01\x02"), Some(Content::Data));
    }
}
