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
    /// to spare and so many times the usual margin.
    ///
    /// # Errors
    /// [`Cause::TooSmall`]; options that cannot be had together.
    pub(super) fn options(self, survey: &Survey, margins: u64, options: &Options) -> Result<Options, Cause> {
        let blocks = survey.blocks + margin(survey).saturating_mul(margins);
        let with_inodes = |inodes: u64| -> Result<Options, Cause> {
            let all = inodes + inodes / 16 + 16 + RESERVED_INODES;
            let inode_count = u32::try_from(all).map_err(|_| Cause::TooManyInodes(inodes))?;
            Ok(Options { inode_count: Some(inode_count), ..options.clone() })
        };
        let fitting = || Ok::<_, Cause>(fit(blocks, &with_inodes(survey.inodes)?)?);
        let more = |extra: u64, inodes: u64| {
            let fitting = fitting()?;
            let size = Some(fitting.size.unwrap_or(0).saturating_add(extra));
            let many = Options { size, ..with_inodes(survey.inodes.saturating_add(inodes))? };
            // The larger size has its usual journal if half of the extra bytes are left.
            let half = extra / 2 / u64::from(fitting.block_size.unwrap_or(4096));
            let as_fit = Options { size, inode_count: many.inode_count, ..fitting.clone() };
            let larger = [(many, blocks.saturating_add(half)), (as_fit, blocks)];
            Ok(larger.into_iter().find(|(o, blocks)| holds(o, *blocks, survey)).map_or(fitting, |(o, _)| o))
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
                if let Some(options) = [usual, many].into_iter().find(|o| holds(o, blocks, survey)) {
                    return Ok(options);
                }
                // With the journal that a volume for this content has.
                let fitting = Options { size: Some(size), ..fitting()? };
                match holds(&fitting, blocks, survey) {
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

/// Returns whether a volume of these options has so many free blocks, and enough inodes.
fn holds(options: &Options, blocks: u64, survey: &Survey) -> bool {
    let room = room(options.size.unwrap_or(0), options);
    room.is_ok_and(|r| r.free_blocks >= blocks && u64::from(r.free_inodes) >= survey.inodes)
}

/// Returns the blocks beyond those that a tree takes.
///
/// A file's map has room claimed for the worst case while it is written. And the allocator puts
/// small files side by side in runs of 16 blocks: three files of five blocks leave one. The last
/// files get those single blocks, and one of more than four takes a map block: at the worst every
/// 96th block.
fn margin(survey: &Survey) -> u64 {
    10 + survey.blocks / 128 + survey.mapped.min(survey.blocks / 96)
}
