//! `lanefs verity enable` and `measure`: hash trees of files (fs-verity).

use crate::failure::{OrCannot, Res};
use crate::hex_bytes::{Bytes, bytes};
use crate::location::Location;
use crate::output::Out;
use crate::quote::hex;
use crate::size;
use crate::volumes::Volumes;
use lanefs::{Verity, VerityHash, Volume};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

#[derive(Debug, clap::Args)]
pub(super) struct Enable {
    /// Files, as VOLUME:/path
    #[arg(required = true, value_name = "VOLUME:/PATH")]
    paths: Vec<OsString>,
    /// The hash algorithm
    #[arg(long, value_name = "NAME", default_value = "sha256", value_parser = hash)]
    hash: VerityHash,
    /// Bytes of a block that has a digest: 4096, or the volume's block if that is smaller
    #[arg(long, value_name = "BYTES", value_parser = block_size)]
    block_size: Option<u32>,
    /// At most 32 bytes in hexadecimal; none unless given
    #[arg(long, value_name = "HEX", value_parser = bytes, allow_hyphen_values = true)]
    salt: Option<Bytes>,
}

#[derive(Debug, clap::Args)]
pub(super) struct Measure {
    /// Files, as VOLUME:/path
    #[arg(required = true, value_name = "VOLUME:/PATH")]
    paths: Vec<OsString>,
}

pub(super) fn hash(text: &str) -> Result<VerityHash, String> {
    match text {
        "sha256" => Ok(VerityHash::Sha256),
        "sha512" => Ok(VerityHash::Sha512),
        _ => Err("sha256 and sha512 are known".into()),
    }
}

fn block_size(text: &str) -> Result<u32, String> {
    size::parse(text)?.try_into().map_err(|_| "too large".into())
}

impl Enable {
    pub(super) fn run(self) -> Res {
        let mut verity = Verity::default();
        (verity.hash, verity.block_size) = (self.hash, self.block_size);
        verity.salt = self.salt.map(|salt| salt.0).unwrap_or_default();
        Volumes::default().for_each(&self.paths, |volumes, name| {
            on_file(volumes, name, ("enable fs-verity on", true), |v, path| {
                v.open_file(path)?.enable_verity(&verity)
            })
        })
    }
}

impl Measure {
    pub(super) fn run(self, out: &mut Out) -> Res {
        Volumes::default().for_each(&self.paths, |volumes, name| {
            let measured =
                on_file(volumes, name, ("measure", false), |v, path| v.open_file(path)?.measure_verity());
            let (hash, digest) = measured?;
            let algorithm = match hash {
                VerityHash::Sha256 => "sha256",
                VerityHash::Sha512 => "sha512",
            };
            write!(out, "{algorithm}:{} ", hex(&digest))?;
            out.write_all(name.as_bytes())?;
            writeln!(out)
        })
    }
}

/// Runs `work` on a volume and a path in it. `how` says in words what it does, and whether it
/// writes.
fn on_file<T>(
    volumes: &mut Volumes,
    name: &OsStr,
    how: (&str, bool),
    work: impl FnOnce(&Volume, &Path) -> lanefs::Result<T>,
) -> Res<T> {
    let (volume, path) = Location::parse(name).in_volume(name, "/path")?;
    let side = volumes.volume(&volume, how.1)?;
    side.with(|v| work(v, &path)).or_cannot(how.0, name.as_bytes())
}
