//! `lanefs build`: a new volume of the size that its content needs.

use super::fsverity;
use super::mkfs::{Made, describe, small, uuid};
use super::source::SourceArgs;
use super::transfer::{asked, failure};
use super::verity::show;
use crate::failure::{self, Failure, Noted, Res};
use crate::glob::Glob;
use crate::hex_bytes::{Bytes, bytes};
use crate::output::Out;
use crate::progress::Progress;
use crate::quote::hex;
use crate::{size, volumes};
use lanefs::{Verity, VerityHash};
use lanefs_archive::{BuildOptions, Built, Cause, Error, Event, VerityOptions, VolumeSize, build};
use lanefs_format::features::FeatureEdit;
use lanefs_mkfs::Options;
use serde::Serialize;
use std::ffi::{OsStr, OsString};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use uuid::Uuid;

/// Make a volume of the contents of a folder, a tar archive or an image, as small as it can be
///
/// Sources are those of lanefs import. They are read twice: to find out what they take, and to fill
/// the volume. The file is there when it is complete; after an error or a signal there is none.
///
/// With --uuid and SOURCE_DATE_EPOCH the same sources give the same bytes.
#[derive(Debug, clap::Args)]
#[command(override_usage = "lanefs build [OPTIONS] <SRC>... <FILE>")]
pub(crate) struct Args {
    /// A folder, a tar archive, an image (IMAGE or IMAGE:TAG), `-` for one of both from standard
    /// input, or several archives: layers, the lowest first. Last the file to make
    #[arg(value_name = "SRC", required = true)]
    // One list, so that options may stand between the sources and the file.
    paths: Vec<OsString>,
    /// Size of the volume: fit, fit+10%, fit+64M or 4G
    #[arg(short, long, default_value_t, value_name = "SIZE")]
    size: VolumeSize,
    /// Name of the volume, at most 16 bytes
    #[arg(short = 'L', long)]
    label: Option<OsString>,
    /// UUID of the volume; random otherwise
    #[arg(short = 'U', long, value_parser = uuid)]
    uuid: Option<Uuid>,
    /// Features to switch on and, with ^ before them, off, as of lanefs mkfs
    #[arg(short = 'O', value_name = "FEATURE,...", value_parser = clap::value_parser!(FeatureEdit))]
    features: Option<FeatureEdit>,
    /// Bytes in a block: 4096 unless said otherwise
    #[arg(short, value_name = "BYTES", value_parser = small::<u32>)]
    block_size: Option<u32>,
    /// none, or the size of the journal: 64M. Without it the usual size, and none below 8 MiB
    #[arg(long, value_parser = JournalChoice::parse)]
    journal: Option<JournalChoice>,
    #[command(flatten)]
    from: SourceArgs,
    /// Make the hash tree of dm-verity behind the volume, and print its root hash
    #[arg(long)]
    verity: bool,
    /// Of the hash tree, in hexadecimal, `-` for none; follows from the volume's UUID otherwise
    #[arg(long, value_name = "HEX", value_parser = bytes, allow_hyphen_values = true, requires = "verity")]
    salt: Option<Bytes>,
    /// The UUID of the hash tree; follows from the volume's UUID otherwise
    #[arg(long, value_name = "UUID", requires = "verity")]
    verity_uuid: Option<Uuid>,
    /// Give each regular file a hash tree (fs-verity), or those whose path, from / on, matches
    /// GLOB. `*` takes slashes too
    #[arg(long, value_name = "GLOB", num_args = 0..=1, require_equals = true, default_missing_value = "*")]
    fs_verity: Vec<OsString>,
    /// The hash algorithm of these trees
    #[arg(long, value_name = "NAME", default_value = "sha256", value_parser = fsverity::hash, requires = "fs_verity")]
    fs_verity_hash: VerityHash,
    /// Make a disk: gpt, with the volume as partition 1, named like its label
    #[arg(long, value_name = "TABLE")]
    partition_table: Option<TableChoice>,
    /// Replace a file that is there
    #[arg(short = 'F', short_alias = 'f', long)]
    force: bool,
    /// Keep what was made after an error or a signal
    #[arg(long)]
    keep: bool,
    /// Say nothing
    #[arg(short, long)]
    quiet: bool,
    /// Say what was made as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum TableChoice {
    Gpt,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JournalChoice {
    None,
    Megabytes(u32),
}

impl JournalChoice {
    fn parse(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self::None);
        }
        let bytes = size::parse(text)?;
        match u32::try_from(bytes >> 20) {
            Ok(megabytes) if bytes.is_multiple_of(1 << 20) => Ok(Self::Megabytes(megabytes)),
            _ => Err("none, or a whole number of megabytes".into()),
        }
    }
}

#[derive(Serialize)]
struct Json {
    #[serde(flatten)]
    volume: Made,
    file_size: u64,
    volume_start: u64,
    partition_uuid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    verity: Option<JsonVerity>,
}

#[derive(Serialize)]
struct JsonVerity {
    root_hash: String,
    salt: String,
    uuid: String,
    data_blocks: u64,
    data_block_size: u32,
    hash_block_size: u32,
    hash_offset: u64,
}

impl Args {
    pub(crate) fn run(self, out: &mut Out) -> Res {
        let (file, sources) = match &self.paths[..] {
            [sources @ .., file] if !sources.is_empty() => (file.clone(), sources.to_vec()),
            _ => return Err(Failure::new("nothing says where to: write lanefs build SRC FILE")),
        };
        volumes::refuse_forgotten_slash(&file)?;
        if volumes::names_part(&file) {
            let cause = "it is a part of a file; lanefs import fills a volume that is there";
            let cause = failure::Cause::text(cause);
            return Err(Failure::cannot("build", file.as_encoded_bytes(), cause));
        }
        let source = self.from.source(&sources)?.map_err(|e| failure(&file, &e))?;
        let (quiet, json) = (self.quiet, self.json);
        let options = self.options()?;
        let asked = asked()?;
        let mut reporter = BuildReporter::new(&file, Arc::clone(&asked));
        let built = build(source, &file, &options, |event| reporter.hear(event));
        let noted = reporter.noted;
        drop(reporter.progress);
        match built {
            Err(e) if e.is_cancelled() => Err(Failure::Silent(asked.load(Ordering::Relaxed) as u8)),
            Err(e) => Err(advised(&file, &e)),
            Ok(built) => {
                say(&file, built, (quiet, json), out)?;
                noted.finish()
            }
        }
    }

    fn options(self) -> Res<BuildOptions> {
        let mut features = self.features.unwrap_or_default();
        if self.journal == Some(JournalChoice::None) {
            let none: FeatureEdit = "^has_journal".parse().unwrap_or_default();
            features.on = features.on.minus(none.off);
            features.off = features.off.union(none.off);
        }
        let volume = Options {
            label: self.label.as_ref().map(|l| l.as_bytes().to_vec()).unwrap_or_default(),
            uuid: self.uuid.map(Uuid::into_bytes),
            features,
            block_size: self.block_size,
            journal_size: match self.journal {
                Some(JournalChoice::Megabytes(megabytes)) => Some(megabytes),
                _ => None,
            },
            ..Options::default()
        };
        let options = BuildOptions::new().volume(volume).size(self.size).import(self.from.options()?);
        let options = volumes::source_date_epoch()?.into_iter().fold(options, BuildOptions::time);
        let options = options.overwrite(self.force).keep(self.keep).gpt(self.partition_table.is_some());
        let options = match self.fs_verity.is_empty() {
            true => options,
            false => {
                let globs: Vec<Glob> = self.fs_verity.iter().map(|glob| Glob::new(glob.as_bytes())).collect();
                let mut verity = Verity::default();
                verity.hash = self.fs_verity_hash;
                options.fs_verity(verity, move |path| globs.iter().any(|glob| glob.matches(path)))
            }
        };
        if !self.verity {
            return Ok(options);
        }
        let verity = self.salt.into_iter().fold(VerityOptions::new(), |v, salt| v.salt(salt.0));
        let uuid = self.verity_uuid.map(Uuid::into_bytes);
        Ok(options.verity(uuid.into_iter().fold(verity, VerityOptions::uuid)))
    }
}

/// A watcher of a build: shows a bar for each step and reports notes.
struct BuildReporter<'a> {
    progress: Progress,
    step: &'static str,
    noted: Noted,
    file: &'a OsStr,
    asked: Arc<AtomicUsize>,
}

impl<'a> BuildReporter<'a> {
    fn new(file: &'a OsStr, asked: Arc<AtomicUsize>) -> Self {
        let step = "reading";
        Self { progress: Progress::new(step, None), step, noted: Noted::default(), file, asked }
    }

    fn hear(&mut self, event: Event) -> ControlFlow<()> {
        match event {
            Event::Found => self.progress.file(),
            Event::Checked(bytes) => self.progress.bytes(bytes),
            Event::Entry => self.step("filling").file(),
            Event::Data(bytes) => self.step("filling").bytes(bytes),
            Event::Hashed(bytes) => self.step("hashing").bytes(bytes),
            // Only a closed standard output is passed on, and nothing is written there here.
            Event::Skipped(error) => drop(self.noted.note(Err(failure(self.file, &error)))),
            _ => {}
        }
        match self.asked.load(Ordering::Relaxed) {
            0 => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    }

    /// Returns the bar of a step.
    fn step(&mut self, step: &'static str) -> &mut Progress {
        if self.step != step {
            self.progress = Progress::new(step, None);
            self.step = step;
        }
        &mut self.progress
    }
}

/// What to do where a volume has no free block.
const NO_SPACE: &str = "--size fit+10% leaves more";

/// Converts an error to the command's failure, with what to do about it.
fn advised(file: &OsStr, error: &Error) -> Failure {
    let advice = match error.cause() {
        Cause::TooSmall { needed } => format!("--size fit or --size {}M will do", needed.div_ceil(1 << 20)),
        Cause::ReadOnce => "--size 4G says it".into(),
        Cause::TargetExists => "--force replaces it".into(),
        Cause::Volume(lanefs::Error::NoSpace) => NO_SPACE.into(),
        Cause::Xattr { cause, .. } if matches!(**cause, Cause::Volume(lanefs::Error::NoSpace)) => {
            NO_SPACE.into()
        }
        _ => return failure(file, error),
    };
    let cause = failure::Cause::text(format!("{}; {advice}", error.reason()));
    Failure::cannot(&error.action().to_string(), error.place().as_bytes(), cause)
}

/// Says what was made.
fn say(file: &OsString, built: Built, (quiet, json): (bool, bool), out: &mut Out) -> Res {
    let partition = built.partition.map(|uuid| Uuid::from_bytes(uuid).to_string());
    if json {
        let size = built.volume.blocks_count * u64::from(built.volume.block_size);
        let verity = built.verity.map(|(header, root)| JsonVerity {
            root_hash: hex(&root),
            salt: hex(&header.salt),
            uuid: Uuid::from_bytes(header.uuid).to_string(),
            data_blocks: header.data_blocks,
            data_block_size: header.data_block_size,
            hash_block_size: header.hash_block_size,
            hash_offset: size.next_multiple_of(header.hash_block_size.into()),
        });
        return out.json(&Json {
            volume: Made::new(file, built.volume),
            file_size: built.file_size,
            volume_start: built.volume_start,
            partition_uuid: partition,
            verity,
        });
    }
    if quiet {
        return Ok(());
    }
    describe(file, &built.volume, out)?;
    if let Some(partition) = partition {
        writeln!(out, "Partition 1, PARTUUID {partition}")?;
    }
    if let Some((header, root)) = built.verity {
        show(&header, out)?;
        writeln!(out, "{:<16} {}", "Root hash", hex(&root))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journals() {
        assert_eq!(JournalChoice::parse("none"), Ok(JournalChoice::None));
        assert_eq!(JournalChoice::parse("64M"), Ok(JournalChoice::Megabytes(64)));
        assert!(JournalChoice::parse("64k").is_err() && JournalChoice::parse("x").is_err());
    }
}
