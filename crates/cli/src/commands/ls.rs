//! `lanefs ls`: directories, as ls lists them.

mod columns;
mod long;

use crate::entry::Entry;
use crate::failure::{Failure, Noted, OrCannot, Res};
use crate::location::Location;
use crate::output::{Out, file_style};
use crate::quote::quoted_content;
use crate::side::Meta;
use crate::volumes::{Spot, Volumes};
use lanefs::AtSymlink;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// List directories
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// Files and directories, as VOLUME:/path
    #[arg(required = true, value_name = "VOLUME[:/PATH]")]
    paths: Vec<OsString>,
    /// Type, mode, links, owner, size and time of each file
    #[arg(short)]
    long: bool,
    /// Names that begin with a dot too
    #[arg(short)]
    all: bool,
    /// As -a, without . and ..
    #[arg(short = 'A')]
    almost_all: bool,
    /// List directories themselves, not their contents
    #[arg(short)]
    directory: bool,
    /// Whatever is below, too
    #[arg(short = 'R')]
    recursive: bool,
    /// With -l: sizes in K, M, G
    #[arg(short = 'h')]
    human: bool,
    /// Inode numbers
    #[arg(short)]
    inode: bool,
    /// With -l: numbers of users and groups instead of this host's names
    #[arg(short)]
    numeric: bool,
    /// Blocks of each file, in KiB
    #[arg(short = 's')]
    blocks: bool,
    /// One name a line
    #[arg(short = '1')]
    one: bool,
    /// Newest first
    #[arg(short)]
    time: bool,
    /// Largest first
    #[arg(short = 'S')]
    by_size: bool,
    /// As the directory has them, unsorted
    #[arg(short = 'U')]
    unsorted: bool,
    /// The other way round
    #[arg(short)]
    reverse: bool,
    /// A letter behind each name that tells its type: one of */=@|
    #[arg(short = 'F')]
    classify: bool,
    /// With -l: times to the nanosecond
    #[arg(long)]
    full_time: bool,
    /// One JSON array of all files
    #[arg(long)]
    json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

/// A file to show.
struct ListedFile {
    /// Where it is.
    spot: Spot,
    /// What to call it.
    name: Vec<u8>,
    meta: Meta,
}

impl Args {
    pub(crate) fn run(mut self, out: &mut Out) -> Res {
        self.long |= self.full_time;
        let mut volumes = Volumes::default();
        let mut noted = Noted::default();
        let (mut files, mut dirs) = (Vec::new(), Vec::new());
        volumes.visit(&self.paths, &mut noted, |volumes, arg| {
            let spot = volumes.spot(Location::parse_inside(arg), false).map_err(|e| e.code(2))?;
            let item = self.named(spot).map_err(|e| e.code(2))?;
            let listed = if item.meta.is_dir() && !self.directory { &mut dirs } else { &mut files };
            listed.push(item);
            Ok(())
        })?;
        self.sort(&mut files);
        self.sort(&mut dirs);
        let mut json = Vec::new();
        let mut first = files.is_empty();
        self.show(&files, false, out, &mut noted, &mut json)?;
        for dir in dirs {
            let listed = self.directory(dir, &mut first, out, &mut noted, &mut json);
            noted.note(listed)?;
        }
        if self.json {
            out.json(&json)?;
        }
        volumes.close()?;
        noted.finish()
    }

    /// Returns the file that an argument names. Follows a link to a directory, but for -l and -d,
    /// as ls does.
    fn named(&self, spot: Spot) -> Res<ListedFile> {
        let mut meta =
            spot.side.metadata(&spot.path, AtSymlink::NoFollow).or_cannot("access", spot.shown())?;
        if meta.is_symlink()
            && !self.long
            && !self.directory
            && let Ok(target) = spot.side.metadata(&spot.path, AtSymlink::Follow)
        {
            meta = target;
        }
        Ok(ListedFile { name: spot.shown(), spot, meta })
    }

    /// Lists a directory, and with -R those below it: by hand, for a tree of any depth.
    fn directory(
        &self,
        dir: ListedFile,
        first: &mut bool,
        out: &mut Out,
        noted: &mut Noted,
        json: &mut Vec<Entry>,
    ) -> Res {
        let mut seen = std::collections::HashSet::new();
        let mut left = vec![(dir, true)];
        while let Some((dir, named)) = left.pop() {
            if !seen.insert(dir.meta.ino) {
                let text = format!(
                    "directory {} (inode {}) was met before by another name: the volume is damaged; run e2fsck on it",
                    quoted_content(dir.spot.shown()),
                    dir.meta.ino
                );
                noted.note(Err(Failure::new(text)))?;
                continue;
            }
            let mut items = match self.items(&dir, noted) {
                Ok(items) => items,
                Err(failure) => {
                    noted.note(Err(failure.code(if named { 2 } else { 1 })))?;
                    continue;
                }
            };
            if (self.recursive || self.paths.len() > 1) && !self.json {
                if !std::mem::take(first) {
                    writeln!(out)?;
                }
                out.write_all(&[out.name(&dir.spot.shown()).as_slice(), b":\n"].concat())?;
            }
            self.show(&items, true, out, noted, json)?;
            if self.recursive {
                items.retain(|item| item.meta.is_dir() && item.name != b"." && item.name != b"..");
                left.extend(items.into_iter().rev().map(|item| (item, false)));
            }
        }
        Ok(())
    }

    /// Returns the entries of a directory that are to be shown, sorted.
    fn items(&self, dir: &ListedFile, noted: &mut Noted) -> Res<Vec<ListedFile>> {
        let side = &dir.spot.side;
        let mut names = side.read_dir(&dir.spot.path).or_cannot("open directory", dir.spot.shown())?;
        if self.all {
            names.splice(0..0, [OsString::from("."), OsString::from("..")]);
        } else if !self.almost_all {
            names.retain(|name| !name.as_bytes().starts_with(b"."));
        }
        let mut items = Vec::with_capacity(names.len());
        for name in names {
            let spot = match name.as_bytes() {
                b"." => dir.spot.clone(),
                b".." => {
                    Spot { path: dir.spot.path.parent().unwrap_or(&dir.spot.path).into(), ..dir.spot.clone() }
                }
                _ => dir.spot.join(&name),
            };
            match side.metadata(&spot.path, AtSymlink::NoFollow).or_cannot("access", spot.shown()) {
                Ok(meta) => items.push(ListedFile { spot, name: name.as_bytes().to_vec(), meta }),
                Err(failure) => noted.note(Err(failure))?,
            }
        }
        self.sort(&mut items);
        Ok(items)
    }

    fn sort(&self, items: &mut [ListedFile]) {
        if self.time {
            items.sort_by(|a, b| b.meta.mtime.cmp(&a.meta.mtime).then_with(|| a.name.cmp(&b.name)));
        } else if self.by_size {
            items.sort_by(|a, b| b.meta.size.cmp(&a.meta.size).then_with(|| a.name.cmp(&b.name)));
        } else if !self.unsorted {
            items.sort_by(|a, b| a.name.cmp(&b.name));
        }
        if self.reverse {
            items.reverse();
        }
    }

    fn show(
        &self,
        items: &[ListedFile],
        total: bool,
        out: &mut Out,
        noted: &mut Noted,
        json: &mut Vec<Entry>,
    ) -> Res {
        if self.json {
            json.extend(items.iter().map(|i| Entry::new(&*i.spot.side, &i.spot.path, &i.meta)));
            return Ok(());
        }
        if total && (self.long || self.blocks) {
            let kib = items.iter().map(|i| i.meta.blocks).fold(0, u64::saturating_add).div_ceil(2);
            writeln!(out, "total {}", self.kib(kib))?;
        }
        if self.long {
            return long::show(self, items, out, noted);
        }
        let cells: Vec<columns::Cell> = items.iter().map(|item| self.cell(item, out)).collect();
        if out.terminal && !self.one {
            columns::show(&cells, out)
        } else {
            cells.iter().try_for_each(|c| out.write_all(&[c.text.as_slice(), b"\n"].concat()))
        }
    }

    /// Formats `[inode ][blocks ]name[type]`.
    fn cell(&self, item: &ListedFile, out: &Out) -> columns::Cell {
        let mut front = String::new();
        if self.inode {
            front += &format!("{} ", item.meta.ino);
        }
        if self.blocks {
            front += &format!("{} ", self.kib(item.meta.blocks.div_ceil(2)));
        }
        let name = out.name(&item.name);
        let back = if self.classify { letter(item.meta.mode) } else { "" };
        let width = front.len() + columns::width(&name) + back.len();
        let text =
            [front.as_bytes(), &out.styled(name, file_style(item.meta.mode)), back.as_bytes()].concat();
        columns::Cell { text, width }
    }

    fn kib(&self, kib: u64) -> String {
        if self.human { crate::size::human(kib.saturating_mul(1024)) } else { kib.to_string() }
    }
}

/// Returns the letter that -F puts behind a name.
fn letter(mode: u32) -> &'static str {
    match mode & 0o170000 {
        0o040000 => "/",
        0o120000 => "@",
        0o010000 => "|",
        0o140000 => "=",
        0o100000 if mode & 0o111 != 0 => "*",
        _ => "",
    }
}

/// Returns whether a file has an ACL, which -l shows as a plus.
fn has_acl(spot: &Spot) -> bool {
    let acl = |name: &OsString| {
        name.as_os_str() == OsStr::new("system.posix_acl_access") || name == "system.posix_acl_default"
    };
    spot.side.list_xattrs(&spot.path).is_ok_and(|names| names.iter().any(acl))
}
