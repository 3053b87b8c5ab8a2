//! `ls -l`: one line a file, its columns as wide as they must be.

use super::{Args, ListedFile, columns, has_acl, letter};
use crate::failure::{Noted, OrCannot, Res};
use crate::mode;
use crate::output::{Out, file_style};
use crate::owner::Names;
use crate::quote::escaped;
use crate::size;
use crate::time::Time;
use std::os::unix::ffi::OsStrExt;

/// The columns before the name. `RIGHT` has those that are aligned to the right.
const COLUMNS: usize = 8;
const RIGHT: [bool; COLUMNS] = [true, true, false, true, false, false, true, false];

pub(super) fn show(args: &Args, items: &[ListedFile], out: &mut Out, noted: &mut Noted) -> Res {
    let now = Time::now();
    let mut names = Names::default();
    let rows: Vec<[String; COLUMNS]> = items.iter().map(|item| row(args, item, now, &mut names)).collect();
    let mut widths = [0; COLUMNS];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(columns::width(cell.as_bytes()));
        }
    }
    for (row, item) in rows.iter().zip(items) {
        let mut line = Vec::new();
        for ((cell, width), right) in row.iter().zip(widths).zip(RIGHT) {
            if width > 0 {
                let pad = " ".repeat(width - columns::width(cell.as_bytes()));
                let text = if right { pad + cell } else { format!("{cell}{pad}") };
                line.extend(text.bytes());
                line.push(b' ');
            }
        }
        line.extend(out.styled(out.name(&item.name), file_style(item.meta.mode)));
        if item.meta.is_symlink() {
            match item.spot.side.read_link(&item.spot.path).or_cannot("read symbolic link", item.spot.shown())
            {
                Ok(target) => line.extend([b" -> ", out.name(target.as_bytes()).as_slice()].concat()),
                Err(failure) => noted.note(Err(failure))?,
            }
        } else if args.classify {
            line.extend(letter(item.meta.mode).bytes());
        }
        line.push(b'\n');
        out.write_all(&line)?;
    }
    Ok(())
}

/// Formats the columns: inode, blocks, mode, links, user, group, size, time.
fn row(args: &Args, item: &ListedFile, now: Time, names: &mut Names) -> [String; COLUMNS] {
    let meta = &item.meta;
    let name_or = |name: Option<&str>, id: u32| match name {
        Some(name) if !args.numeric => escaped(name.as_bytes()),
        _ => id.to_string(),
    };
    [
        if args.inode { meta.ino.to_string() } else { String::new() },
        if args.blocks { args.kib(meta.blocks.div_ceil(2)) } else { String::new() },
        mode::shown(meta.mode) + if has_acl(&item.spot) { "+" } else { "" },
        meta.nlink.to_string(),
        name_or(names.user(meta.uid), meta.uid),
        name_or(names.group(meta.gid), meta.gid),
        match () {
            () if meta.is_device() => format!("{}, {}", meta.rdev.0, meta.rdev.1),
            () if args.human => size::human(meta.size),
            () => meta.size.to_string(),
        },
        if args.full_time { meta.mtime.full() } else { meta.mtime.short(now) },
    ]
}
