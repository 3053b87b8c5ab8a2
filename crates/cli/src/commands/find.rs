//! `lanefs find`: the names below a directory that fulfil all conditions, in find(1)'s words.

use crate::entry::Entry;
use crate::failure::{OrCannot, Res};
use crate::glob::Glob;
use crate::location::Location;
use crate::mode::ModeChange;
use crate::output::Out;
use crate::owner;
use crate::quote::quoted;
use crate::side::{Meta, Side, shown};
use crate::time::Time;
use crate::volumes::{Spot, Volumes};
use crate::walk::{Step, Walk, When};
use clap::builder::OsStringValueParser;
use clap::builder::TypedValueParser;
use lanefs::AtSymlink;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// Find files by name, type, size, time, mode and owner
///
/// The conditions may be written with one hyphen, as for find(1): -name '*.conf'. A file must
/// fulfil all of them.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where to look, as VOLUME:/path
    #[arg(required = true, value_name = "VOLUME[:/PATH]")]
    paths: Vec<OsString>,
    /// Its name matches: * ? [a-z]
    #[arg(long, value_name = "GLOB", value_parser = glob(), allow_hyphen_values = true)]
    name: Option<Glob>,
    /// Its path inside the volume matches; * takes slashes too
    #[arg(long, value_name = "GLOB", value_parser = glob(), allow_hyphen_values = true)]
    path: Option<Glob>,
    /// It is of a type: f, d, l (link), p (fifo), s (socket), b, c (devices); several with commas
    #[arg(long = "type", value_name = "TYPE,...", value_parser = kinds)]
    kinds: Option<Kinds>,
    /// It has N units, more (+N) or less (-N): c bytes, k, M, G; else of 512 bytes; rounded up
    #[arg(long, value_name = "[+-]N[ckMG]", value_parser = Size::parse, allow_hyphen_values = true)]
    size: Option<Size>,
    /// It was changed after that file or link, VOLUME:/path or a path of the host
    #[arg(long, value_name = "FILE")]
    newer: Option<OsString>,
    /// It has this mode, at least these bits (-MODE), or one of these bits (/MODE)
    #[arg(long, value_name = "[-/]MODE", value_parser = PermTest::parse, allow_hyphen_values = true)]
    perm: Option<PermTest>,
    /// It belongs to that user, by number or a name of this host
    #[arg(long, value_name = "USER", value_parser = owner::user)]
    user: Option<u32>,
    /// It belongs to that group
    #[arg(long, value_name = "GROUP", value_parser = owner::group)]
    group: Option<u32>,
    /// It is a file or a directory with nothing in it
    #[arg(long)]
    empty: bool,
    /// Go at most so many levels down
    #[arg(long, value_name = "LEVELS")]
    maxdepth: Option<usize>,
    /// Show nothing above so many levels
    #[arg(long, value_name = "LEVELS")]
    mindepth: Option<usize>,
    /// A zero byte behind each name instead of a newline
    #[arg(long)]
    print0: bool,
    /// One JSON array of all files
    #[arg(long, conflicts_with = "print0")]
    json: bool,
}

/// Types as `i_mode` has them.
#[derive(Debug, Clone)]
struct Kinds(Vec<u32>);

#[derive(Debug, Clone, Copy)]
struct Size {
    than: std::cmp::Ordering,
    count: u64,
    unit: u64,
}

#[derive(Debug, Clone, Copy)]
enum PermTest {
    Exactly(u32),
    All(u32),
    Any(u32),
}

fn glob() -> impl TypedValueParser<Value = Glob> {
    OsStringValueParser::new().map(|text| Glob::new(text.as_bytes()))
}

fn kinds(text: &str) -> Result<Kinds, String> {
    let kind = |letter: &str| match letter {
        "f" => Ok(0o100_000),
        "d" => Ok(0o040_000),
        "l" => Ok(0o120_000),
        "p" => Ok(0o010_000),
        "s" => Ok(0o140_000),
        "b" => Ok(0o060_000),
        "c" => Ok(0o020_000),
        _ => Err(format!("{} is not a type: f, d, l, p, s, b or c", quoted(letter))),
    };
    text.split(',').map(kind).collect::<Result<_, _>>().map(Kinds)
}

impl Size {
    fn parse(text: &str) -> Result<Self, String> {
        use std::cmp::Ordering;
        let (than, rest) = match text.as_bytes().first() {
            Some(b'+') => (Ordering::Greater, &text[1..]),
            Some(b'-') => (Ordering::Less, &text[1..]),
            _ => (Ordering::Equal, text),
        };
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (count, unit) = rest.split_at(digits);
        let unit = match unit {
            "c" => 1,
            "w" => 2,
            "" | "b" => 512,
            "k" => 1 << 10,
            "M" => 1 << 20,
            "G" => 1 << 30,
            _ => return Err(format!("{} is not a unit: c, w, b, k, M, G", quoted(unit))),
        };
        let count = count.parse().map_err(|_| format!("{} is not a size: try +10M", quoted(text)))?;
        Ok(Self { than, count, unit })
    }

    fn takes(self, meta: &Meta) -> bool {
        meta.size.div_ceil(self.unit).cmp(&self.count) == self.than
    }
}

impl PermTest {
    fn parse(text: &str) -> Result<Self, String> {
        let (kind, mode): (fn(u32) -> Self, _) = match text.as_bytes().first() {
            Some(b'-') => (Self::All, &text[1..]),
            Some(b'/') => (Self::Any, &text[1..]),
            _ => (Self::Exactly, text),
        };
        Ok(kind(mode.parse::<ModeChange>()?.apply(0, 0)))
    }

    fn takes(self, meta: &Meta) -> bool {
        let mode = meta.mode & 0o7777;
        match self {
            Self::Exactly(wanted) => mode == wanted,
            Self::All(wanted) => mode & wanted == wanted,
            Self::Any(wanted) => wanted == 0 || mode & wanted != 0,
        }
    }
}

impl Args {
    pub(crate) fn run(self, out: &mut Out) -> Res {
        let mut volumes = Volumes::default();
        let newer = match &self.newer {
            None => None,
            Some(file) => {
                let spot = volumes.spot(Location::parse(file), false)?;
                let meta =
                    spot.side.metadata(&spot.path, AtSymlink::NoFollow).or_cannot("access", spot.shown())?;
                Some(meta.mtime)
            }
        };
        let mut entries = Vec::new();
        let done = volumes.for_each(&self.paths, |volumes, path| {
            let spot = volumes.spot(Location::parse_inside(path), false)?;
            self.tree(&spot, newer, &mut entries, out)
        });
        if self.json {
            out.json(&entries)?;
        }
        done
    }

    fn tree(&self, spot: &Spot, newer: Option<Time>, entries: &mut Vec<Entry>, out: &mut Out) -> Res {
        let side = &*spot.side;
        Walk::new(side, &spot.path, AtSymlink::NoFollow)?.each_step(|walk, step| {
            if step.when == When::Leave {
                return Ok(());
            }
            if self.maxdepth.is_some_and(|max| step.depth >= max) {
                walk.stay_out();
            }
            if self.mindepth.is_some_and(|min| step.depth < min) || !self.takes(side, &step, newer)? {
                return Ok(());
            }
            if self.json {
                entries.push(Entry::new(side, &step.path, &step.meta));
                return Ok(());
            }
            let mut line = shown(side, &step.path);
            if !self.print0 {
                line = out.name(&line);
            }
            line.push(if self.print0 { 0 } else { b'\n' });
            out.write_all(&line)
        })
    }

    /// Returns whether a file fulfils all conditions.
    fn takes(&self, side: &dyn Side, step: &Step, newer: Option<Time>) -> Res<bool> {
        let (meta, path) = (&step.meta, step.path.as_os_str().as_bytes());
        let name = step.path.file_name().map_or(path, OsStr::as_bytes);
        Ok(self.name.as_ref().is_none_or(|glob| glob.matches(name))
            && self.path.as_ref().is_none_or(|glob| glob.matches(path))
            && self.kinds.as_ref().is_none_or(|Kinds(kinds)| kinds.contains(&meta.kind()))
            && self.size.is_none_or(|size| size.takes(meta))
            && newer.is_none_or(|time| meta.mtime > time)
            && self.perm.is_none_or(|perm| perm.takes(meta))
            && self.user.is_none_or(|uid| uid == meta.uid)
            && self.group.is_none_or(|gid| gid == meta.gid)
            && (!self.empty || is_empty(side, step)?))
    }
}

fn is_empty(side: &dyn Side, step: &Step) -> Res<bool> {
    if step.meta.is_dir() {
        let names = side.read_dir(&step.path).or_cannot("open directory", shown(side, &step.path))?;
        return Ok(names.is_empty());
    }
    Ok(step.meta.is_file() && step.meta.size == 0)
}

/// Returns a command line of `lanefs find` with a second hyphen before each condition that has one.
pub(crate) fn with_two_hyphens(words: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut words: Vec<OsString> = words.into_iter().collect();
    if words.get(1).is_none_or(|command| command != "find") {
        return words;
    }
    let command = <Args as clap::Args>::augment_args(clap::Command::new("find"));
    let mut is_value = false;
    for word in &mut words[2..] {
        let name = word.to_str().and_then(|word| word.strip_prefix('-'));
        let known = |name: &str| command.get_arguments().find(|arg| arg.get_long() == Some(name));
        let option = match name.filter(|_| !is_value) {
            Some("-") => break,
            name => name.and_then(|name| known(name.strip_prefix('-').unwrap_or(name))),
        };
        is_value = option.is_some_and(|option| option.get_action().takes_values());
        if let Some(long) = option.and_then(clap::Arg::get_long) {
            *word = format!("--{long}").into();
        }
    }
    words
}
