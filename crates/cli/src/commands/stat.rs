//! `lanefs stat`: all that an inode says of a file, as stat(1) shows it.

use crate::entry::Entry;
use crate::failure::{Failure, OrCannot, Res};
use crate::location::Location;
use crate::mode;
use crate::output::Out;
use crate::owner::Names;
use crate::quote::{escaped, quoted, quoted_content};
use crate::side::{Meta, follow_if};
use crate::time::Time;
use crate::volumes::{Spot, Volumes};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;

/// Show all fields of the inode of a file
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Files, as VOLUME:/path
    #[arg(required = true, value_name = "VOLUME[:/PATH]")]
    files: Vec<OsString>,
    /// Follow symbolic links
    #[arg(short = 'L', long)]
    dereference: bool,
    /// Print FORMAT for each file: %n %N %i %h %f %F %a %A %u %U %g %G %s %b %B %o %t %T %w %W %x
    /// %X %y %Y %z %Z, and %v for i_version
    #[arg(short = 'c', long, value_name = "FORMAT")]
    format: Option<String>,
    /// One JSON array of all files
    #[arg(long, conflicts_with = "format")]
    json: bool,
}

impl Args {
    pub(crate) fn run(self, out: &mut Out) -> Res {
        let mut names = Names::default();
        let mut entries = Vec::new();
        let done = Volumes::default().for_each(&self.files, |volumes, file| {
            let spot = volumes.spot(Location::parse_inside(file), false)?;
            let meta = spot
                .side
                .metadata(&spot.path, follow_if(self.dereference))
                .or_cannot("stat", spot.shown())?;
            if self.json {
                entries.push(Entry::new(&*spot.side, &spot.path, &meta));
            } else if let Some(format) = &self.format {
                let mut line = formatted(format, &spot, &meta, &mut names, out.terminal)?;
                line.push(b'\n');
                out.write_all(&line)?;
            } else {
                write!(out, "{}", whole(&spot, &meta, &mut names))?;
            }
            Ok(())
        });
        if self.json {
            out.json(&entries)?;
        }
        done
    }
}

/// Returns the name, and for a link its target.
fn name(spot: &Spot, meta: &Meta) -> String {
    let name = quoted_content(spot.shown());
    match meta.is_symlink().then(|| spot.side.read_link(&spot.path)) {
        Some(Ok(target)) => format!("{name} -> {}", quoted_content(target.as_bytes())),
        _ => name,
    }
}

fn kind(meta: &Meta) -> &'static str {
    if meta.is_file() && meta.size == 0 { "regular empty file" } else { mode::kind(meta.mode) }
}

fn whole(spot: &Spot, meta: &Meta, names: &mut Names) -> String {
    let mut text = format!("  File: {}\n", name(spot, meta));
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "  Size: {:<15} Blocks: {:<10} IO Block: {:<6} {}",
        meta.size,
        meta.blocks,
        meta.block_size,
        kind(meta)
    );
    let _ = write!(text, " Inode: {:<15} Links: {}", meta.ino, meta.nlink);
    if meta.is_device() {
        let _ = write!(text, "{:10} Device type: {},{}", "", meta.rdev.0, meta.rdev.1);
    }
    let user = names.user(meta.uid).unwrap_or("UNKNOWN").to_owned();
    let group = names.group(meta.gid).unwrap_or("UNKNOWN");
    let _ = writeln!(
        text,
        "\nAccess: ({:04o}/{})  Uid: ({:5}/{user:>8})   Gid: ({:5}/{group:>8})",
        meta.mode & 0o7777,
        mode::shown(meta.mode),
        meta.uid,
        meta.gid,
    );
    let birth = meta.btime.map_or_else(|| "-".into(), Time::full);
    let _ = writeln!(
        text,
        "Access: {}\nModify: {}\nChange: {}\n Birth: {birth}",
        meta.atime.full(),
        meta.mtime.full(),
        meta.ctime.full()
    );
    if let Some(version) = meta.version {
        let _ = writeln!(text, "Version: {version}");
    }
    text
}

/// Formats `format`: replaces each `%x`. Returns bytes, since a name may be any; on a terminal its
/// bytes that do not print are escaped.
fn formatted(format: &str, spot: &Spot, meta: &Meta, names: &mut Names, terminal: bool) -> Res<Vec<u8>> {
    let mut text = Vec::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            text.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            continue;
        }
        let field = match chars.next() {
            Some('%') => "%".into(),
            Some('n') if terminal => escaped(&spot.shown()),
            Some('n') => {
                text.extend(spot.shown());
                continue;
            }
            Some('N') => name(spot, meta),
            Some('i') => meta.ino.to_string(),
            Some('h') => meta.nlink.to_string(),
            Some('f') => format!("{:x}", meta.mode),
            Some('F') => kind(meta).into(),
            Some('a') => format!("{:o}", meta.mode & 0o7777),
            Some('A') => mode::shown(meta.mode),
            Some('u') => meta.uid.to_string(),
            Some('U') => names.user(meta.uid).unwrap_or("UNKNOWN").into(),
            Some('g') => meta.gid.to_string(),
            Some('G') => names.group(meta.gid).unwrap_or("UNKNOWN").into(),
            Some('s') => meta.size.to_string(),
            Some('b') => meta.blocks.to_string(),
            Some('B') => "512".into(),
            Some('o') => meta.block_size.to_string(),
            Some('t') => format!("{:x}", meta.rdev.0),
            Some('T') => format!("{:x}", meta.rdev.1),
            Some('w') => meta.btime.map_or_else(|| "-".into(), Time::full),
            Some('W') => meta.btime.map_or(0, |t| t.sec).to_string(),
            Some('v') => meta.version.map_or_else(|| "-".into(), |version| version.to_string()),
            Some('x') => meta.atime.full(),
            Some('X') => meta.atime.sec.to_string(),
            Some('y') => meta.mtime.full(),
            Some('Y') => meta.mtime.sec.to_string(),
            Some('z') => meta.ctime.full(),
            Some('Z') => meta.ctime.sec.to_string(),
            other => {
                let field = other.map(String::from).unwrap_or_default();
                return Err(Failure::new(format!(
                    "stat: no field {}; see lanefs stat --help",
                    quoted(format!("%{field}"))
                )));
            }
        };
        text.extend_from_slice(field.as_bytes());
    }
    Ok(text)
}
