//! `lanefs export`: a directory of a volume into a folder, a tar archive, an image or a layer of
//! one.

use super::transfer::{Ownership, TransferReporter, asked, failure_of_two};
use crate::failure::{Failure, Res};
use crate::location::{Location, VolumeName};
use crate::output::Out;
use crate::quote::quoted;
use crate::side::VolumeSide;
use crate::volumes::{self, Volumes};
use lanefs_archive::{
    Cause, Compression, Error, ExportOptions, ImageOptions, ImageTarget, Overwrite, Platform, Target,
    android_sparse, export, export_image, export_layer, program_for,
};
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Copy a directory of a volume into a folder, a tar archive or an image
///
/// Modes, times, attributes, ACLs, links, devices and holes arrive as they are, as far as this user
/// may make them. With SOURCE_DATE_EPOCH no time is later than that.
///
/// An archive, an image (--oci) and a layer (--oci-layer) are complete when they get their name:
/// after an error or a signal there is none, or the older archive. No image or layer that is there
/// is replaced without --force. The same volume gives the same bytes; an image says when it was
/// made only with SOURCE_DATE_EPOCH.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The directory to copy
    #[arg(value_name = "VOLUME:/DIR")]
    source: OsString,
    /// A folder, which is made if it does not exist; an archive, by its name (.tar, .tar.gz, .tgz);
    /// or `-` for one to standard output
    #[arg(value_name = "DST")]
    destination: OsString,
    /// Make an OCI image: a layout in a folder, or in an archive if DST ends in .tar or is `-`
    #[arg(long)]
    oci: bool,
    /// Make a layer of an image: an archive
    #[arg(long, conflicts_with = "oci")]
    oci_layer: bool,
    /// Only what differs from this volume goes into the layer, with whiteouts for names that are
    /// gone. An image gets two layers: this volume, and the difference
    #[arg(long, value_name = "OLD[:/DIR]")]
    since: Option<OsString>,
    /// How layers are compressed: gzip, or as the name of a layer says
    #[arg(long, value_name = "HOW")]
    compress: Option<Compress>,
    /// Name of the image in its layout
    #[arg(long, requires = "oci", value_parser = tag)]
    tag: Option<String>,
    /// The platform that the image is for: OS/ARCHITECTURE[/VARIANT], this machine's otherwise
    #[arg(long, requires = "oci")]
    platform: Option<Platform>,
    /// Make holes of blocks of zeros too
    #[arg(long)]
    sparse: bool,
    /// Write the volume itself as an Android sparse image, without its free blocks
    #[arg(long, conflicts_with_all = ["oci", "oci_layer", "since", "compress", "sparse", "owner", "uid_map", "gid_map"])]
    android_sparse: bool,
    /// Overwrite volumes, locked files and other files than archives too, but never the source
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    ownership: Ownership,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Compress {
    Gzip,
    Zstd,
    None,
}

impl From<Compress> for Compression {
    fn from(how: Compress) -> Self {
        match how {
            Compress::Gzip => Self::Gzip,
            Compress::Zstd => Self::Zstd,
            Compress::None => Self::None,
        }
    }
}

impl Args {
    pub(crate) fn run(mut self, _: &mut Out) -> Res {
        let (name, path) = Location::parse_inside(&self.source).in_volume(&self.source, "/DIR")?;
        volumes::refuse_forgotten_slash(&self.destination)?;
        if matches!(Location::parse(&self.destination), Location::Volume { .. }) {
            let text = format!(
                "{} is inside of a volume: lanefs cp -a copies between volumes",
                quoted(self.destination.as_encoded_bytes())
            );
            return Err(Failure::new(text));
        }
        let is_image = self.oci || self.oci_layer;
        if !is_image && (self.since.is_some() || self.compress.is_some()) {
            return Err(Failure::new("--since and --compress are for images: add --oci or --oci-layer"));
        }
        if self.android_sparse {
            return self.android(&name, &path);
        }
        let epoch = volumes::source_date_epoch()?;
        let overwrite = if self.force { Overwrite::All } else { Overwrite::NoVolumes };
        let ownership = std::mem::take(&mut self.ownership);
        let options =
            ExportOptions::new().ownership(ownership.into()).overwrite(overwrite).sparse(self.sparse);
        let options = epoch.into_iter().fold(options, ExportOptions::newest);
        let mut volumes = Volumes::default();
        if is_image {
            return self.image(options, &mut volumes, (name, path));
        }
        let volume = volumes.volume(&name, false)?;
        let target = target(&self.destination);
        // What a folder or a stream has got stays there: a signal ends the command at once.
        let asked = if self.makes_file() { asked()? } else { Arc::default() };
        let mut reporter = TransferReporter::new("exporting", &name, None).until(&asked);
        let ran =
            volume.with(|volume| Ok(export(volume, &path, target, &options, |event| reporter.hear(event))));
        let ran = ran.map_err(|e| Failure::cannot("export", name.as_encoded_bytes(), e))?;
        self.ended([&name; 2], ran, &asked).and(reporter.finish().finish())
    }

    /// Returns whether the destination is an archive that gets its name when it is complete.
    fn makes_file(&self) -> bool {
        let path = Path::new(&self.destination);
        self.destination != "-"
            && program_for(self.destination.as_encoded_bytes()).is_some()
            && (path.is_file() || !path.exists())
    }

    /// Makes an image or a layer.
    fn image(
        &self,
        options: ExportOptions,
        volumes: &mut Volumes,
        (name, path): (VolumeName, PathBuf),
    ) -> Res {
        let new = volumes.volume(&name, false)?;
        let since = match &self.since {
            None => None,
            Some(arg) => {
                let (name, path) = Location::parse_inside(arg).in_volume(arg, "/DIR")?;
                Some((volumes.volume(&name, false)?, path, name))
            }
        };
        let compression = match (self.compress, self.oci_layer.then(|| self.destination.as_encoded_bytes())) {
            (Some(how), _) => how.into(),
            (None, Some(name)) => compression_of(name)?,
            (None, None) => Compression::Gzip,
        };
        let base = ImageOptions::new().export(options).compression(compression).overwrite(self.force);
        let base = self.tag.iter().fold(base, ImageOptions::tag);
        let base = self.platform.iter().cloned().fold(base, ImageOptions::platform);
        let asked = asked()?;
        let older = since.as_ref().map(|(.., name)| name);
        let target = image_target(&self.destination, self.oci)?;
        let mut reporter = TransferReporter::new("exporting", &name, None).older(older).until(&asked);
        let mut hear = |event| reporter.hear(event);
        let ran = with_both(&new, since.as_ref().map(|(old, ..)| old), |new, old| {
            let since = since.as_ref().and_then(|(_, path, _)| Some((old?, path)));
            let options = match since {
                Some((old, path)) => base.since(old, path),
                None => base,
            };
            match self.oci {
                true => export_image(new, &path, target, &options, &mut hear),
                false => export_layer(new, &path, target, &options, &mut hear),
            }
        });
        let ran = ran.map_err(|e| Failure::cannot("export", name.as_encoded_bytes(), e))?;
        self.ended([older.unwrap_or(&name), &name], ran, &asked).and(reporter.finish().finish())
    }

    /// Writes the volume as an Android sparse image.
    fn android(&self, name: &VolumeName, path: &Path) -> Res {
        if path != Path::new("/") || self.destination == "-" {
            return Err(Failure::new("--android-sparse writes a whole volume into a file: VOLUME FILE"));
        }
        let mut device = None;
        let options = lanefs::OpenOptions::new().cache_bytes(64 << 20);
        let volume = volumes::open_device(name, false, options, |opened| Ok(device.insert(opened).clone()))?;
        let Some(device) = device else { return Ok(()) };
        let asked = asked()?;
        let mut reporter = TransferReporter::new("exporting", name, None).until(&asked);
        let target = &self.destination;
        let ran = android_sparse(&volume, &device, target, self.force, |event| reporter.hear(event));
        self.ended([name; 2], ran, &asked).and(reporter.finish().finish())
    }

    /// Words the end of an export of the second volume, which is compared with the first. A signal
    /// may have `asked` for it.
    fn ended(&self, names: [&VolumeName; 2], ran: Result<(), Error>, asked: &AtomicUsize) -> Res {
        ran.map_err(|e| match e.cause() {
            _ if e.is_cancelled() => Failure::Silent(asked.load(Ordering::Relaxed) as u8),
            // As for any other output: a reader that went away ends the command without a word.
            Cause::Io(io) if self.destination == "-" && io.kind() == ErrorKind::BrokenPipe => {
                Failure::ReaderGone
            }
            _ => failure_of_two(names.map(OsString::as_os_str), &e),
        })
    }
}

/// Runs `f` on one or two volumes.
fn with_both<T>(
    new: &Rc<VolumeSide>,
    old: Option<&Rc<VolumeSide>>,
    f: impl FnOnce(&lanefs::Volume, Option<&lanefs::Volume>) -> T,
) -> crate::side::Outcome<T> {
    match old {
        None => new.with(|new| Ok(f(new, None))),
        Some(old) => new.with(|new| Ok(old.with(|old| Ok(f(new, Some(old)))))).flatten(),
    }
}

/// Checks the name of an image, by what the specification allows in a layout.
fn tag(text: &str) -> Result<String, String> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-._:@/+".contains(&b);
    let edge = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    match edge(bytes.first()) && edge(bytes.last()) && bytes.iter().copied().all(allowed) {
        true => Ok(text.into()),
        false => Err("letters and digits, and between them - . _ : @ / +".into()),
    }
}

/// Returns how an archive of this name is compressed; without a known end not at all.
fn compression_of(name: &[u8]) -> Res<Compression> {
    match program_for(name) {
        None | Some("") => Ok(Compression::None),
        Some("gzip") => Ok(Compression::Gzip),
        Some("zstd") => Ok(Compression::Zstd),
        Some(other) => {
            let text =
                format!("layers are compressed with gzip or zstd, not with {other}; --compress says how");
            Err(Failure::new(text))
        }
    }
}

/// Returns where an image or a layer goes.
fn image_target(arg: &OsStr, is_image: bool) -> Res<ImageTarget<'_>> {
    let path = Path::new(arg);
    if arg == "-" {
        return Ok(ImageTarget::stream("-", std::io::stdout()));
    }
    let by = program_for(arg.as_encoded_bytes());
    if let Some(by) = by.filter(|by| is_image && !by.is_empty() && !path.is_dir()) {
        let name = quoted(arg.as_encoded_bytes());
        let text = format!("{name} is the name of an archive by {by}: an image is a folder or a .tar");
        return Err(Failure::new(text));
    }
    Ok(if is_image && by != Some("") { ImageTarget::folder(path) } else { ImageTarget::file(path) })
}

/// Returns what an argument means: `-` is standard output, a name that ends as that of an archive
/// does, and is no folder, an archive.
fn target(arg: &OsStr) -> Target<'_> {
    let path = Path::new(arg);
    if arg == "-" {
        Target::archive("-", std::io::stdout(), Compression::None)
    } else if program_for(arg.as_encoded_bytes()).is_some() && !path.is_dir() {
        Target::file(path)
    } else {
        Target::folder(path)
    }
}
