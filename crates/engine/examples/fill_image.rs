//! Makes an image and copies a folder of the host into it:
//! `cargo run -p lanefs --example fill_image -- FOLDER IMAGE`.
//!
//! The image is the same, byte for byte, each time: its UUID and its times are given, and files are
//! copied in order of name. (`lanefs import` copies owners, links, devices and attributes too.)

use lanefs::device::FileDevice;
use lanefs::mkfs::{self, Options};
use lanefs::{OpenOptions, Timestamp, Volume};
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::{env, fs};

const SIZE: u64 = 64 << 20;
const WHEN: u64 = 1_700_000_000;

fn copy(volume: &Volume, folder: &Path, to: &Path) -> Result<(), Box<dyn Error>> {
    let mut entries = fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = to.join(entry.file_name());
        let file_type = entry.file_type()?;
        if file_type.is_dir() {
            volume.create_dir(&path)?;
            copy(volume, &entry.path(), &path)?;
        } else if file_type.is_symlink() {
            volume.symlink(fs::read_link(entry.path())?, &path)?;
        } else if file_type.is_file() {
            volume.write(&path, &fs::read(entry.path())?)?;
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let [folder, image] = &env::args_os().skip(1).collect::<Vec<_>>()[..] else {
        return Err("usage: fill_image FOLDER IMAGE".into());
    };
    // Fails with EEXIST if there is a file already.
    let device = Arc::new(FileDevice::create_new(image, SIZE)?);
    let options = Options { uuid: Some(*b"lanefs's example"), time: Some(WHEN), ..Options::default() };
    mkfs::format(&*device, &options)?;
    let clock = Timestamp::from_sec(WHEN.cast_signed());
    let volume = OpenOptions::new().write(true).clock(Some(clock)).open_device(device)?;
    copy(&volume, Path::new(folder), Path::new("/"))?;
    // Writes out what is only in memory, and tells of each failure until then.
    volume.close()?;
    Ok(())
}
