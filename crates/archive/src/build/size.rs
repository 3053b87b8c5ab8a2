//! The size of a volume: asked for, or found by what it will hold.

use crate::Cause;
use crate::import::Survey;
use lanefs::mkfs::{MkfsError, Options, fit, parse_size, room};
use std::fmt;
use std::str::FromStr;

/// Inodes that a new volume uses for itself.
const RESERVED_INODES: u64 = 11;

/// How large the volume of a build is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum VolumeSize {
    /// As small as it can be for what it holds.
    #[default]
    Fit,
    /// As small as it can be, and so many percent more.
    FitPercent(u32),
    /// As small as it can be, and so many bytes more.
    FitBytes(u64),
    /// So many bytes.
    Bytes(u64),
}

/// A text that is no size of a volume.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a size: fit, fit+10%, fit+64M or 4G")]
pub struct VolumeSizeError;

/// Reads `fit`, `fit+10%`, `fit+64M`, `4G`.
///
/// ```
/// use lanefs_archive::VolumeSize;
/// assert_eq!("fit+10%".parse(), Ok(VolumeSize::FitPercent(10)));
/// assert_eq!("fit+64M".parse(), Ok(VolumeSize::FitBytes(64 << 20)));
/// assert_eq!("4G".parse(), Ok(VolumeSize::Bytes(4 << 30)));
/// assert!("fit-1".parse::<VolumeSize>().is_err());
/// ```
impl FromStr for VolumeSize {
    type Err = VolumeSizeError;

    fn from_str(text: &str) -> Result<Self, VolumeSizeError> {
        let bytes = |text: &str| parse_size(text).map_err(|_| VolumeSizeError);
        match text.strip_prefix("fit") {
            None => bytes(text).map(Self::Bytes),
            Some("") => Ok(Self::Fit),
            Some(more) => match (more.strip_prefix('+'), more.strip_suffix('%')) {
                (Some(more), None) => bytes(more).map(Self::FitBytes),
                (Some(_), Some(more)) => more[1..].parse().map(Self::FitPercent).map_err(|_| VolumeSizeError),
                _ => Err(VolumeSizeError),
            },
        }
    }
}

impl fmt::Display for VolumeSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fit => f.write_str("fit"),
            Self::FitPercent(more) => write!(f, "fit+{more}%"),
            Self::FitBytes(more) => write!(f, "fit+{more}"),
            Self::Bytes(bytes) => write!(f, "{bytes}"),
        }
    }
}

impl VolumeSize {
    /// Returns the options of a volume of this size that holds what was surveyed, with some inodes
    /// to spare.
    ///
    /// # Errors
    /// [`Cause::TooSmall`]; options that cannot be had together.
    pub(super) fn options(self, survey: &Survey, options: &Options) -> Result<Options, Cause> {
        let blocks = survey.blocks + margin(survey.blocks);
        let with_inodes = |inodes: u64| -> Result<Options, Cause> {
            let all = inodes + inodes / 16 + 16 + RESERVED_INODES;
            let inode_count = u32::try_from(all).map_err(|_| Cause::TooManyInodes(inodes))?;
            Ok(Options { inode_count: Some(inode_count), ..options.clone() })
        };
        let fitting = || Ok::<_, Cause>(fit(blocks, &with_inodes(survey.inodes)?)?);
        let more = |extra: u64, inodes: u64| {
            let size = fitting()?.size.unwrap_or(0).saturating_add(extra);
            Ok(Options { size: Some(size), ..with_inodes(survey.inodes.saturating_add(inodes))? })
        };
        match self {
            Self::Fit => fitting(),
            Self::FitBytes(bytes) => more(bytes, bytes / (1 << 16)),
            Self::FitPercent(percent) => {
                let part = |of: u64| (u128::from(of) * u128::from(percent) / 100) as u64;
                more(part(fitting()?.size.unwrap_or(0)), part(survey.inodes))
            }
            Self::Bytes(size) => {
                let usual = Options { size: Some(size), ..options.clone() };
                let many = Options { size: Some(size), ..with_inodes(survey.inodes)? };
                let holds = |options: &Options| {
                    let room = room(size, options);
                    room.is_ok_and(|r| r.free_blocks >= blocks && u64::from(r.free_inodes) >= survey.inodes)
                };
                if let Some(options) = [usual, many].into_iter().find(holds) {
                    return Ok(options);
                }
                // With the journal that a volume for this content has.
                let fitting = Options { size: Some(size), ..fitting()? };
                match holds(&fitting) {
                    true => Ok(fitting),
                    false => match fit(blocks, &fitting)?.size {
                        Some(needed) if needed > size => Err(Cause::TooSmall { needed }),
                        // It is not the size that is wrong.
                        _ => Err(room(size, options).err().unwrap_or(MkfsError::NoSpace("files")).into()),
                    },
                }
            }
        }
    }
}

/// Blocks beyond those that a tree takes. Its last files find the free blocks in pieces, which
/// makes their maps larger; and a file's map has room claimed for the worst case while it is
/// written.
fn margin(blocks: u64) -> u64 {
    10 + blocks / 128
}
