//! Partition tables: where the parts of a disk begin and end, and how they are named.
//!
//! GPT with its backup, and MBR with logical partitions. Nothing of a table is trusted: numbers are
//! checked before they are used, and what is read is bounded. A partition may still reach beyond
//! the end of a disk that was cut short; it is listed, and opening it fails.

mod gpt;
mod mbr;
mod types;
mod write;

pub use write::{GPT_BACKUP, LINUX_FILE_SYSTEM, NewPartition, write_gpt};

use crate::{BlockDevice, Result};
use std::fmt;
use std::ops::Range;

/// A partition table: GPT, or MBR with its logical partitions.
///
/// # Examples
/// [`write_gpt`] has one.
#[derive(Debug, Clone)]
pub struct PartitionTable {
    /// The kind of the table: `gpt` or `dos`, as sfdisk calls them.
    pub scheme: &'static str,
    /// The disk's identifier: a UUID, or eight digits of a dos table.
    pub disk: String,
    /// The partitions, by number.
    pub partitions: Vec<Partition>,
}

/// A partition.
#[derive(Debug, Clone)]
pub struct Partition {
    /// Number, from 1.
    pub number: u32,
    /// First byte on the disk.
    pub start: u64,
    /// Size in bytes.
    pub size: u64,
    /// Type.
    pub kind: PartitionType,
    /// Name in a GPT, empty in a dos table.
    pub name: String,
    /// PARTUUID, as Linux writes it.
    pub uuid: String,
    /// The label of the ext2, ext3 or ext4 volume in it.
    pub label: Option<String>,
    /// The UUID of that volume.
    pub volume_uuid: Option<String>,
}

/// The type of a partition. It displays as a name, or as the code of a type without one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PartitionType {
    /// The GUID of a GPT.
    Gpt(String),
    /// The byte of an MBR.
    Mbr(u8),
}

impl Partition {
    /// Returns the bytes of the partition on the disk, for a [`Window`](crate::Window).
    pub fn range(&self) -> Range<u64> {
        self.start..self.start + self.size
    }

    /// Reads the names of the volume in it, if that is one of ext2, ext3 or ext4.
    fn look_inside(&mut self, device: &dyn BlockDevice) -> Result<()> {
        // Label and UUID lie one behind the other: s_uuid, s_volume_name.
        let mut bytes = [0; 136];
        if self.size < 2048 || self.start.checked_add(2048).is_none_or(|end| end > device.size()) {
            return Ok(());
        }
        device.read_at(&mut bytes, self.start + 1024)?;
        if bytes[56..58] != [0x53, 0xEF] {
            return Ok(());
        }
        self.volume_uuid = bytes[104..120].try_into().ok().map(uuid);
        let label = bytes[120..].split(|byte| *byte == 0).next().unwrap_or_default();
        self.label = (!label.is_empty()).then(|| String::from_utf8_lossy(label).into_owned());
        Ok(())
    }
}

impl PartitionTable {
    /// Reads the partition table of a disk, and the names of the ext2, ext3 and ext4 volumes in its
    /// partitions. Returns `None` for a disk without a table.
    ///
    /// A partition may reach beyond the end of a disk that was cut short: see
    /// [`Window::new`](crate::Window::new).
    ///
    /// # Errors
    /// The device's; a GPT both of whose copies are damaged (EINVAL).
    pub fn read(device: &dyn BlockDevice) -> Result<Option<Self>> {
        let mbr = mbr::Mbr::read(device)?;
        let mut table = match (gpt::read(device)?, mbr) {
            // As in Linux, a dos table that protects none wins over a GPT that was left behind.
            (_, Some(mbr)) if !mbr.is_protective() => {
                Self { scheme: "dos", disk: mbr.disk(), partitions: mbr.partitions(device)? }
            }
            (Ok(Some(gpt)), _) => Self { scheme: "gpt", disk: gpt.disk, partitions: gpt.partitions },
            (Ok(None), None) => return Ok(None),
            (Ok(None), Some(_)) => return Err(damaged("both of its headers are gone")),
            (Err(why), _) => return Err(damaged(why)),
        };
        table.partitions.iter_mut().try_for_each(|partition| partition.look_inside(device))?;
        Ok(Some(table))
    }

    /// Finds a partition by its number, its GPT name, the label of the volume in it, its PARTUUID
    /// or that volume's UUID.
    ///
    /// The first of these that fits wins. A word of digits is always a number.
    ///
    /// # Errors
    /// A message for users, which lists the partitions: no partition fits, or several do.
    pub fn find(&self, wanted: &str) -> std::result::Result<&Partition, String> {
        let is_number = !wanted.is_empty() && wanted.bytes().all(|b| b.is_ascii_digit());
        let by: &[fn(&Partition, &str) -> bool] = match is_number {
            true => &[|p, wanted| wanted.parse() == Ok(p.number)],
            false => &[
                |p, wanted| p.name == wanted,
                |p, wanted| p.label.as_deref() == Some(wanted),
                |p, wanted| p.uuid.eq_ignore_ascii_case(wanted),
                |p, wanted| p.volume_uuid.as_ref().is_some_and(|uuid| uuid.eq_ignore_ascii_case(wanted)),
            ],
        };
        for is in by {
            let found: Vec<_> = self.partitions.iter().filter(|p| is(p, wanted)).collect();
            match found[..] {
                [] => {}
                [found] => return Ok(found),
                _ => return Err(format!("has several partitions {wanted:?}; there are {}", self.list())),
            }
        }
        Err(format!("has no partition {wanted:?}; there are {}", self.list()))
    }

    /// Returns its partitions in a line, to choose from.
    fn list(&self) -> String {
        const MOST: usize = 16;
        let mut list: Vec<String> = self.partitions.iter().take(MOST).map(ToString::to_string).collect();
        match self.partitions.len() {
            0 => return "none".into(),
            n if n > MOST => list.push(format!("{} more", n - MOST)),
            _ => {}
        }
        list.join(", ")
    }
}

/// As an error lists it: number, and the name that tells most.
impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Some(&self.name).filter(|name| !name.is_empty()).or(self.label.as_ref());
        match name {
            Some(name) => write!(f, "{} ({name:?})", self.number),
            None => write!(f, "{} ({})", self.number, self.kind),
        }
    }
}

impl fmt::Display for PartitionTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.list())
    }
}

fn damaged(why: &str) -> crate::DeviceError {
    let why = format!("has a GPT partition table; it is damaged: {why}");
    crate::DeviceError::new(crate::Op::Open, 0, 0, std::io::Error::new(std::io::ErrorKind::InvalidData, why))
}

/// Returns 16 bytes as the text of a UUID.
fn uuid(bytes: [u8; 16]) -> String {
    use std::fmt::Write;
    let mut text = String::with_capacity(36);
    for (at, byte) in bytes.iter().enumerate() {
        if [4, 6, 8, 10].contains(&at) {
            text.push('-');
        }
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Returns the number at `at`, 0 beyond the end.
fn at_u32(bytes: &[u8], at: usize) -> u32 {
    let field = bytes.get(at..at + 4).and_then(|field| field.try_into().ok());
    field.map_or(0, u32::from_le_bytes)
}

/// Returns the number at `at`, 0 beyond the end.
fn at_u64(bytes: &[u8], at: usize) -> u64 {
    let field = bytes.get(at..at + 8).and_then(|field| field.try_into().ok());
    field.map_or(0, u64::from_le_bytes)
}
