//! `lanefs resize`: another size for a volume, which grows while it is mounted too ([`mounted`]).

mod mounted;

use crate::failure::{Cause, Failure, OrCannot, Res};
use crate::location::{VolumeName, whole_volume};
use crate::output::Out;
use crate::quote::{JsonName, quoted};
use crate::size;
use crate::volumes::{file_of, names_file, names_part, open_resize};
use lanefs::Resize;
use lanefs_format::Superblock;
use serde::Serialize;
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;

/// Give a volume another size; one that is mounted grows only
///
/// A crash at any moment leaves the volume sound, with its old size, its new one, or one between
/// them where the change takes several transactions, once lanefs or e2fsck has recovered it: do not
/// let the kernel mount it before. Without a journal e2fsck has to mend it. The file of a volume
/// becomes longer or shorter; a volume on a device or in a partition can be as large as that. Of a
/// volume that is mounted, its server is asked: by root, or by the user who has mounted it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The volume, or the directory that it is mounted at
    volume: OsString,
    /// The new size: 8G; +2G on top of the present one; min, the smallest that lanefs can give it;
    /// fit+5%, that and a part more; without it, all of the file or device
    #[arg(value_name = "SIZE", value_parser = NewSize::parse)]
    size: Option<NewSize>,
    /// Say nothing
    #[arg(short, long)]
    quiet: bool,
    /// Say what was done as JSON
    #[arg(long)]
    json: bool,
}

/// A size that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NewSize {
    Bytes(u64),
    More(u64),
    /// The minimum and so many percent of it.
    Fit(u32),
}

impl NewSize {
    fn parse(text: &str) -> Result<Self, String> {
        if let Some(more) = text.strip_prefix('+') {
            return size::parse(more).map(Self::More);
        }
        match text.strip_prefix("fit") {
            None if text == "min" => Ok(Self::Fit(0)),
            None => size::parse(text).map(Self::Bytes),
            Some("") => Ok(Self::Fit(0)),
            Some(rest) => rest
                .strip_prefix('+')
                .and_then(|rest| rest.strip_suffix('%')?.parse().ok())
                .map(Self::Fit)
                .ok_or_else(|| format!("'{text}': write fit+5%")),
        }
    }
}

#[derive(Serialize)]
struct Resized {
    #[serde(flatten)]
    volume: JsonName,
    block_size: u32,
    /// Blocks that the volume had.
    blocks_before: u64,
    blocks: u64,
    groups: u32,
    inodes: u32,
}

impl Args {
    pub(crate) fn run(self, out: &mut Out) -> Res {
        if let Some((mount, name)) = mounted::find(&self.volume)? {
            return self.grow_mounted(&mount, &name, out);
        }
        let name = whole_volume(&self.volume);
        let volume = open_resize(&name)?;
        let before = volume.blocks();
        let wanted = self.wanted(&volume, &name)?;
        let size = volume.fit(wanted).or_cannot("resize", name.as_bytes())?;
        let volume = match size < volume.size() || size == volume.size() && self.names_a_size() {
            true => self.shrink(&name, volume, size)?,
            false => {
                drop(volume);
                grow(&name, size)?
            }
        };
        self.say(&name, before, volume.superblock(), out)
    }

    /// Shrinks the volume to `size` bytes, and the file that it is alone in.
    fn shrink(&self, name: &VolumeName, mut volume: Resize, size: u64) -> Res<Resize> {
        volume.shrink(size).or_cannot("resize", name.as_bytes())?;
        let mut reached = volume.size();
        let further = match self.size {
            Some(NewSize::Fit(0)) => shrink_further(&mut volume, &mut reached),
            _ => Ok(()),
        };
        // While the volume is locked: no other process has made it larger again.
        shorten(name, reached).or_cannot("make shorter", name.as_bytes())?;
        further.or_cannot("resize", name.as_bytes())?;
        Ok(volume)
    }

    /// Returns whether the user gave a size that depends neither on the length of the file nor on
    /// the present size. If the process was killed before it made the file shorter, another resize
    /// to that size finishes.
    fn names_a_size(&self) -> bool {
        matches!(self.size, Some(NewSize::Bytes(_) | NewSize::Fit(_)))
    }

    /// Returns the bytes that were asked for.
    fn wanted(&self, volume: &Resize, name: &VolumeName) -> Res<u64> {
        match self.size {
            Some(NewSize::Bytes(bytes)) => Ok(bytes),
            Some(NewSize::More(more)) => volume.size().checked_add(more).ok_or_else(|| {
                Failure::cannot("resize", name.as_bytes(), Cause::text("larger than 2^64 bytes"))
            }),
            Some(NewSize::Fit(percent)) => {
                let least = volume.minimum().or_cannot("resize", name.as_bytes())?;
                Ok(least.saturating_add((u128::from(least) * u128::from(percent)).div_ceil(100) as u64))
            }
            None => Ok(volume.device_size()),
        }
    }

    fn say(&self, name: &VolumeName, before: u64, volume: &Superblock, out: &mut Out) -> Res {
        let block_size = volume.block_size();
        if self.json {
            return out.json(&Resized {
                volume: JsonName::new(name.as_bytes()),
                block_size,
                blocks_before: before,
                blocks: volume.blocks_count(),
                groups: volume.layout().group_count(),
                inodes: volume.inodes_count(),
            });
        }
        if self.quiet {
            return Ok(());
        }
        let bytes = |blocks: u64| size::human(blocks.saturating_mul(block_size.into()));
        let shown = quoted(name.as_bytes());
        if volume.blocks_count() == before {
            return writeln!(out, "{shown}: {}, as before", bytes(before));
        }
        writeln!(
            out,
            "{shown}: {} instead of {}, {} blocks of {block_size} bytes, {} inodes",
            bytes(volume.blocks_count()),
            bytes(before),
            volume.blocks_count(),
            volume.inodes_count(),
        )?;
        Ok(())
    }
}

/// Shrinks a volume as long as that leaves it a smaller minimum: inode tables of groups that went
/// away may have lain before the end. `reached` becomes the bytes that the volume has after each
/// shrink that was finished.
fn shrink_further(volume: &mut Resize, reached: &mut u64) -> lanefs::Result<()> {
    loop {
        let least = volume.minimum()?;
        if least >= *reached {
            return Ok(());
        }
        volume.shrink(least)?;
        *reached = volume.size();
    }
}

/// Grows the volume to `size` bytes, which the volume can have.
fn grow(name: &VolumeName, size: u64) -> Res<Resize> {
    let end = lengthen(name, size).or_cannot("make longer", name.as_bytes())?;
    let grown = open_resize(name).and_then(|mut volume| {
        volume.grow(size, end).or_cannot("resize", name.as_bytes())?;
        Ok(volume)
    });
    // A file that was made longer in vain, or than the steps that were done need.
    if let (Err(_), Some(end)) = (&grown, end)
        && let Ok(volume) = open_resize(name)
    {
        let _ = set_len(name, volume.size().max(end));
    }
    grown
}

/// Returns whether the volume is all of a regular file.
fn is_whole_file(name: &VolumeName) -> std::io::Result<bool> {
    Ok(names_file(name) && !names_part(name) && file_of(name).metadata()?.is_file())
}

/// Makes the file of a volume `size` bytes long, if it is a shorter file. Returns the length that
/// it had.
fn lengthen(name: &VolumeName, size: u64) -> std::io::Result<Option<u64>> {
    if !is_whole_file(name)? {
        return Ok(None);
    }
    let len = file_of(name).metadata()?.len();
    if len >= size {
        return Ok(None);
    }
    if let Err(e) = set_len(name, size) {
        let _ = set_len(name, len);
        return Err(e);
    }
    Ok(Some(len))
}

/// Makes the file of a volume `size` bytes long, if it is a longer file.
fn shorten(name: &VolumeName, size: u64) -> std::io::Result<()> {
    if is_whole_file(name)? && file_of(name).metadata()?.len() > size {
        set_len(name, size)?;
    }
    Ok(())
}

fn set_len(name: &VolumeName, size: u64) -> std::io::Result<()> {
    let file = File::options().write(true).open(file_of(name))?;
    file.set_len(size)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lanefs::{OpenOptions, mkfs};
    use lanefs_device::{MemDevice, Op};
    use lanefs_sim::FailingDevice;
    use std::sync::Arc;

    #[test]
    fn reads_sizes() {
        assert_eq!(NewSize::parse("8G"), Ok(NewSize::Bytes(8 << 30)));
        assert_eq!(NewSize::parse("+2G"), Ok(NewSize::More(2 << 30)));
        assert_eq!(NewSize::parse("min"), Ok(NewSize::Fit(0)));
        assert_eq!(NewSize::parse("fit+5%"), Ok(NewSize::Fit(5)));
        for bad in ["", "+", "-1G", "8X", "++1G", "fit5%", "fit+5", "fit+%", "minimum"] {
            assert!(NewSize::parse(bad).is_err(), "{bad}");
        }
    }

    /// `min` shrinks more than once. What failed is behind the first time.
    #[test]
    fn a_file_is_as_long_as_what_was_reached() {
        let (whole, first) = (64_u64 << 20, 48_u64 << 20);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("volume");
        File::create(&path).unwrap().set_len(whole).unwrap();
        let name = whole_volume(path.as_os_str());
        let args = |size| Args { volume: path.clone().into(), size: Some(size), quiet: true, json: false };
        let open = || {
            let device = Arc::new(FailingDevice::new(MemDevice::new(whole as usize)));
            mkfs::format(&*device, &mkfs::Options::default()).unwrap();
            (Resize::open(device.clone(), OpenOptions::new()).unwrap(), device)
        };
        let (volume, device) = open();
        let before = device.count(Op::Write);
        assert!(args(NewSize::Bytes(first)).shrink(&name, volume, first).is_ok());
        let writes = device.count(Op::Write) - before;
        assert!(writes > 0);

        File::options().write(true).open(&path).unwrap().set_len(whole).unwrap();
        let (volume, device) = open();
        device.fail_from(Op::Write, writes + 1, 28);
        assert!(args(NewSize::Fit(0)).shrink(&name, volume, first).is_err());
        assert!(device.failures() > 0);
        assert_eq!(path.metadata().unwrap().len(), first);
    }
}
