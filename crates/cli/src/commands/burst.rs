//! `lanefs burst`: files that are durable when they are announced, for tests of power loss.
//!
//! For `make demo`, and to test durability by hand: kill the process or the machine at any time,
//! recover, and let `--check` read the files that were announced.

use crate::failure::{Failure, OrCannot, Res};
use crate::output::Out;
use crate::quote::quoted;
use crate::volumes::{Spot, Volumes};
use lanefs::AtSymlink;
use std::ffi::OsString;
use std::io::BufRead;

/// Write small files, each durable before its number is printed
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A directory, as VOLUME:/path
    #[arg(value_name = "VOLUME:/DIR")]
    dir: OsString,
    /// Files to write
    #[arg(short, default_value_t = 100_000)]
    n: u64,
    /// Read numbers from standard input instead, and check that each file is there and whole
    #[arg(long)]
    check: bool,
}

impl Args {
    pub(crate) fn run(self, out: &mut Out) -> Res {
        let mut volumes = Volumes::default();
        let dir = volumes.inside(&self.dir, !self.check)?;
        if self.check {
            check(&dir, out)?
        } else {
            self.write(&dir, out)?
        }
        drop(dir);
        volumes.close()
    }

    fn write(&self, dir: &Spot, out: &mut Out) -> Res {
        for n in 0..self.n {
            let file = dir.join(name(n));
            let sink = dir.side.create(&file.path, 0o644, true).or_cannot("create", file.shown())?;
            sink.write_at(&content(n), 0).or_cannot("write", file.shown())?;
            // Now and then one goes, so that the log has more than creations in it.
            if n % 7 == 6 {
                let old = dir.join(name(n - 5));
                dir.side.remove_file(&old.path).or_cannot("remove", old.shown())?;
            }
            dir.side.sync().or_cannot("write", file.shown())?;
            writeln!(out, "{n}")?;
            out.flush()?;
        }
        Ok(())
    }
}

fn name(n: u64) -> String {
    format!("file-{n:06}")
}

/// Makes up to 40 KB that no other file has.
fn content(n: u64) -> Vec<u8> {
    format!("{n:015}\n").repeat(1 + (n * 613 % 2500) as usize).into_bytes()
}

fn check(dir: &Spot, out: &mut Out) -> Res {
    let announced: Vec<u64> =
        std::io::stdin().lock().lines().filter_map(|line| line.ok()?.trim().parse().ok()).collect();
    // The removal that came with a later number may or may not have been announced.
    let last = announced.last().copied().unwrap_or(0);
    let removed = |n: u64| n % 7 == 1;
    let (mut whole, mut gone) = (0, 0);
    for &n in &announced {
        let file = dir.join(name(n));
        if removed(n) && n + 5 <= last + 1 {
            let there = dir.side.metadata(&file.path, AtSymlink::NoFollow).is_ok();
            if there && n + 5 <= last {
                return Err(Failure::new(format!("{} was removed and is there again", quoted(file.shown()))));
            }
            gone += u64::from(!there);
            continue;
        }
        let source = dir.side.open(&file.path).or_cannot("open", file.shown())?;
        let want = content(n);
        let mut found = vec![0; want.len() + 1];
        let len = source.read_at(&mut found, 0).or_cannot("read", file.shown())?;
        if found.get(..len) != Some(want.as_slice()) {
            return Err(Failure::new(format!("{} is not what was written and synced", quoted(file.shown()))));
        }
        whole += 1;
    }
    writeln!(
        out,
        "{whole} files announced as durable are there and whole, {gone} removed ones are gone, none is missing"
    )
}
