//! `powered mount --foreground VOLUME DIRECTORY [-o OPTIONS]`: serves a mount as `lanefs mount`
//! does, and tries cuts of the power when the volume is closed (`LANEFS_POWER`).
//!
//! A test that mounts runs it in place of `lanefs`. It is not confined, and answers no socket. A
//! state that does not recover ends it with a failure, which the test sees.

use lanefs_fuse::{MountOptions, SandboxMode, Session};
use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    let mut options = MountOptions::default();
    let mut paths: Vec<PathBuf> = Vec::new();
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "mount" | "--foreground" => {}
            "-o" => options.parse(&args.next().unwrap_or_default())?,
            _ => paths.push(arg.into()),
        }
    }
    let [image, dir] = paths.as_slice() else { return Err("VOLUME DIRECTORY".into()) };
    options.sandbox = SandboxMode::Off;
    let volume = lanefs_tests::open(options.open_options(), image)?;
    let session = Session::mount(volume, image.as_os_str(), dir, &options)?;
    Ok(session.serve(|| ())?)
}
