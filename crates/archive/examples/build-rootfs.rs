//! Makes a root disk of a folder, an archive or an image: as small as it can be, with a tree of
//! dm-verity, and the same bytes each time. Shows progress, and may be cancelled.
//!
//! ```text
//! cargo run --release -p lanefs-archive --example build-rootfs -- SOURCE DISK
//! ```

use lanefs::{Timestamp, mkfs};
use lanefs_archive::{
    BuildOptions, Event, ImportOptions, Ownership, Source, VerityOptions, VolumeSize, build,
};
use std::ops::ControlFlow;

/// A root disk of more than this is taken for a mistake.
const TOO_LARGE: u64 = 16 << 30;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    let [source, disk] = &args[..] else { return Err("usage: build-rootfs SOURCE DISK".into()) };

    // UUID and time are those of the release, so that everybody can build it again.
    let volume =
        mkfs::Options { label: b"root".to_vec(), uuid: Some(*b"lanefs-example-1"), ..Default::default() };
    let options = BuildOptions::new()
        .import(ImportOptions::new().ownership(Ownership::new().user(0).group(0)))
        .volume(volume)
        .size(VolumeSize::Fit)
        .time(Timestamp { sec: 1_700_000_000, nsec: 0 })
        .verity(VerityOptions::new())
        .overwrite(true);

    let (mut names, mut bytes, mut left_out) = (0, 0, Vec::new());
    let built = build(Source::open(source)?, disk, &options, |event| {
        match event {
            Event::Sized(size) if size > TOO_LARGE => return ControlFlow::Break(()),
            Event::Entry => names += 1,
            Event::Data(more) => bytes += more,
            Event::Skipped(error) => left_out.push(error.to_string()),
            _ => {}
        }
        ControlFlow::Continue(())
    })?;
    if !left_out.is_empty() {
        return Err(left_out.join("\n").into());
    }

    println!("{names} names, {bytes} bytes of data, in a file of {} bytes", built.file_size);
    if let Some((_, root_hash)) = built.verity {
        let hex: String = root_hash.iter().map(|byte| format!("{byte:02x}")).collect();
        println!("root hash {hex}");
    }
    Ok(())
}
