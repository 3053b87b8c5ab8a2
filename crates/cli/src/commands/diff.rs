//! `lanefs diff`: what two volumes differ in.

use super::transfer::failure_of_two;
use crate::failure::{Failure, Noted, OrCannot, Res};
use crate::location::Location;
use crate::mode;
use crate::output::Out;
use crate::progress::Progress;
use crate::quote::{JsonName, escaped, quoted_content};
use crate::time::Time;
use crate::volumes::{Volumes, refuse_forgotten_slash};
use lanefs::FileType;
use lanefs_archive::{Aspect, Change, DiffOptions, Difference, Event, diff};
use serde::Serialize;
use std::ffi::{OsStr, OsString};
use std::ops::ControlFlow;
use std::path::PathBuf;

/// The exit status where something differs, and where something went wrong, as of diff(1).
const DIFFERENT: u8 = 1;
const TROUBLE: u8 = 2;

/// Show what two volumes, or trees in them, differ in
///
/// A line for each name, from the compared directories: `-` only OLD has it, `+` only NEW has it,
/// `~` they differ, and in what. Of a name that one side lacks, nothing below it is shown.
///
/// Compared are names, types, modes, owners, times of the last change, extended attributes, ACLs,
/// targets, device numbers, content, and which names are hard links to each other. Holes are equal
/// to zeros. The attributes of lost+found are not compared.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A volume, or a directory or file in it
    #[arg(value_name = "OLD[:/PATH]")]
    old: OsString,
    /// The volume or tree to compare with it
    #[arg(value_name = "NEW[:/PATH]")]
    new: OsString,
    /// Leave times out
    #[arg(long)]
    no_times: bool,
    /// Say nothing: the exit status tells
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,
    /// One JSON array of all differences
    #[arg(long)]
    json: bool,
}

/// A difference as JSON has it.
#[derive(Debug, Serialize)]
struct JsonDifference {
    #[serde(flatten)]
    name: JsonName,
    change: &'static str,
    differs: Vec<&'static str>,
    old: Values,
    new: Values,
    xattrs: Vec<JsonName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_byte: Option<u64>,
}

/// The values of one side where they differ.
#[derive(Debug, Default, Serialize)]
struct Values {
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    modified: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<(u32, u32)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

impl Args {
    pub(crate) fn run(self, out: &mut Out) -> Res {
        match self.compare(out) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Failure::Silent(DIFFERENT)),
            Err(failure) => Err(failure.code(TROUBLE)),
        }
    }

    /// Returns whether both are the same.
    fn compare(&self, out: &mut Out) -> Res<bool> {
        let mut volumes = Volumes::default();
        let [(old_name, old_path), (new_name, new_path)] = [named(&self.old)?, named(&self.new)?];
        let (old, new) = (volumes.volume(&old_name, false)?, volumes.volume(&new_name, false)?);
        let options = DiffOptions::new().times(!self.no_times);
        let mut reporter = DiffReporter {
            args: self,
            names: [&old_name, &new_name],
            progress: Progress::new("comparing", None),
            noted: Noted::default(),
            written: Ok(()),
            found: Vec::new(),
            out,
        };
        let ran = old.with(|old| {
            let hear = |event| reporter.hear(event);
            Ok(new.with(|new| Ok(diff(old, &old_path, new, &new_path, &options, hear))))
        });
        let same = ran.or_cannot("compare", old_name.as_encoded_bytes())?;
        let same = same.or_cannot("compare", new_name.as_encoded_bytes())?;
        let DiffReporter { noted, written, found, .. } = reporter;
        written?;
        let same = same.map_err(|e| failure_of_two([&old_name, &new_name], &e))?;
        if self.json {
            out.json(&found)?;
        }
        drop((old, new));
        volumes.close()?;
        noted.finish().map(|()| same)
    }
}

/// Returns the volume that an argument names, and the path in it.
fn named(arg: &OsStr) -> Res<(OsString, PathBuf)> {
    refuse_forgotten_slash(arg)?;
    match Location::parse_inside(arg) {
        Location::Volume { volume, path } => Ok((volume, path)),
        _ => Err(Failure::new("'-' cannot be compared: name a volume, as VOLUME or VOLUME:/path")),
    }
}

/// A watcher of a diff: writes differences, shows a bar and reports notes.
struct DiffReporter<'a> {
    args: &'a Args,
    names: [&'a OsStr; 2],
    progress: Progress,
    noted: Noted,
    written: Res,
    found: Vec<JsonDifference>,
    out: &'a mut Out,
}

impl DiffReporter<'_> {
    fn hear(&mut self, event: Event) -> ControlFlow<()> {
        match event {
            Event::Entry => self.progress.file(),
            Event::Data(bytes) => self.progress.bytes(bytes),
            Event::Skipped(error) => {
                self.written = self.noted.note(Err(failure_of_two(self.names, &error).code(TROUBLE)));
            }
            Event::Differs(_) if self.args.quiet => {}
            Event::Differs(found) if self.args.json => self.found.push(json(&found)),
            Event::Differs(found) => self.written = line(&found, self.out),
            _ => {}
        }
        if self.written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }
}

/// Returns a path as it is shown: from the compared directories on.
fn shown(path: &[u8]) -> Vec<u8> {
    [b"/", path].concat()
}

fn kind(kind: FileType) -> &'static str {
    mode::kind(kind.mode_bits().into())
}

fn iso(time: lanefs::Timestamp) -> String {
    Time::from(time).iso()
}

fn line(found: &Difference, out: &mut Out) -> Res {
    let (sign, rest) = match &found.change {
        Change::Removed(_) => ("- ", String::new()),
        Change::Added(_) => ("+ ", String::new()),
        Change::Changed(aspects) => {
            let words: Vec<String> = aspects.iter().map(words).collect();
            ("~ ", format!(": {}", words.join(", ")))
        }
        _ => return Ok(()),
    };
    let name = out.name(&shown(&found.path));
    out.write_all(&[sign.as_bytes(), &name, rest.as_bytes(), b"\n"].concat())
}

fn words(aspect: &Aspect) -> String {
    match aspect {
        Aspect::Kind(old, new) => format!("type {} -> {}", kind(*old), kind(*new)),
        Aspect::Mode(old, new) => format!("mode {old:04o} -> {new:04o}"),
        Aspect::User(old, new) => format!("user {old} -> {new}"),
        Aspect::Group(old, new) => format!("group {old} -> {new}"),
        Aspect::Modified(old, new) => format!("modified {} -> {}", iso(*old), iso(*new)),
        Aspect::Xattr(name) => format!("attribute {}", escaped(name)),
        Aspect::Target(old, new) => format!("target {} -> {}", quoted_content(old), quoted_content(new)),
        Aspect::Device(old, new) => format!("device {}:{} -> {}:{}", old.0, old.1, new.0, new.1),
        Aspect::Size(old, new) => format!("size {old} -> {new}"),
        Aspect::Content(from) => format!("content from byte {from} on"),
        Aspect::Links => "hard links".into(),
        _ => "something".into(),
    }
}

fn json(found: &Difference) -> JsonDifference {
    let mut to = JsonDifference {
        name: JsonName::new(&shown(&found.path)),
        change: "changed",
        differs: Vec::new(),
        old: Values::default(),
        new: Values::default(),
        xattrs: Vec::new(),
        first_byte: None,
    };
    match &found.change {
        Change::Removed(there) => (to.change, to.old.kind) = ("removed", Some(kind(*there))),
        Change::Added(there) => (to.change, to.new.kind) = ("added", Some(kind(*there))),
        Change::Changed(aspects) => aspects.iter().for_each(|aspect| to.add(aspect)),
        _ => {}
    }
    to
}

impl JsonDifference {
    fn add(&mut self, aspect: &Aspect) {
        let octal = |mode: u16| Some(format!("{mode:04o}"));
        let text = |bytes: &[u8]| Some(String::from_utf8_lossy(bytes).into_owned());
        let (old, new) = (&mut self.old, &mut self.new);
        match aspect {
            Aspect::Kind(a, b) => (old.kind, new.kind) = (Some(kind(*a)), Some(kind(*b))),
            Aspect::Mode(a, b) => (old.mode, new.mode) = (octal(*a), octal(*b)),
            Aspect::User(a, b) => (old.uid, new.uid) = (Some(*a), Some(*b)),
            Aspect::Group(a, b) => (old.gid, new.gid) = (Some(*a), Some(*b)),
            Aspect::Modified(a, b) => (old.modified, new.modified) = (Some(iso(*a)), Some(iso(*b))),
            Aspect::Target(a, b) => (old.target, new.target) = (text(a), text(b)),
            Aspect::Device(a, b) => (old.device, new.device) = (Some(*a), Some(*b)),
            Aspect::Size(a, b) => (old.size, new.size) = (Some(*a), Some(*b)),
            Aspect::Content(from) => self.first_byte = Some(*from),
            Aspect::Xattr(name) => self.xattrs.push(JsonName::new(name)),
            _ => {}
        }
        let word = word(aspect);
        if self.differs.last() != Some(&word) {
            self.differs.push(word);
        }
    }
}

/// Returns how JSON names what differs.
fn word(aspect: &Aspect) -> &'static str {
    match aspect {
        Aspect::Kind(..) => "type",
        Aspect::Mode(..) => "mode",
        Aspect::User(..) => "user",
        Aspect::Group(..) => "group",
        Aspect::Modified(..) => "modified",
        Aspect::Target(..) => "target",
        Aspect::Device(..) => "device",
        Aspect::Size(..) => "size",
        Aspect::Content(_) => "content",
        Aspect::Xattr(_) => "attribute",
        Aspect::Links => "links",
        _ => "other",
    }
}
