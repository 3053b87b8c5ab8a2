//! `lanefs touch`: times of files.

use super::cp::umask;
use crate::date;
use crate::failure::{Failure, OrCannot, Res};
use crate::location::Location;
use crate::side::follow_if;
use crate::time::Time;
use crate::volumes::{Spot, Volumes, source_date_epoch};
use lanefs::AtSymlink;
use rustix::io::Errno;
use std::ffi::OsString;

/// Set the times of files, and create missing files
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// Files, as VOLUME:/path
    #[arg(required = true, value_name = "VOLUME:/PATH")]
    paths: Vec<OsString>,
    /// The time of the last read only
    #[arg(short)]
    access: bool,
    /// The time of the last change only
    #[arg(short)]
    modification: bool,
    /// Make no file
    #[arg(short = 'c', long)]
    no_create: bool,
    /// Change a symbolic link itself, not its target; implies --no-create
    #[arg(short = 'h', long)]
    no_dereference: bool,
    /// This time instead of now: 2026-11-21 19:44:42, @SECONDS, yesterday, '3 days ago'
    #[arg(short, long, value_name = "DATE", group = "time")]
    date: Option<String>,
    /// This time instead of now: [[CC]YY]MMDDhhmm[.ss]
    #[arg(short = 't', value_name = "STAMP", group = "time")]
    stamp: Option<String>,
    /// The times of this file, VOLUME:/path or a path of the host, instead of now
    #[arg(short, long, value_name = "FILE", group = "time")]
    reference: Option<OsString>,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

impl Args {
    pub(crate) fn run(self) -> Res {
        let mut volumes = Volumes::default();
        for path in &self.paths {
            volumes.open_for_writing(&Location::parse(path))?;
        }
        let times = self.times(&mut volumes)?;
        volumes.for_each(&self.paths, |volumes, path| self.one(&volumes.inside(path, true)?, times))
    }

    /// Returns the times of the last read and of the last change that files get.
    fn times(&self, volumes: &mut Volumes) -> Res<(Time, Time)> {
        let now = source_date_epoch()?.map_or_else(Time::now, Time::from);
        let time = match (&self.date, &self.stamp, &self.reference) {
            (Some(text), ..) => date::parse(text, now).map_err(Failure::new)?,
            (_, Some(text), _) => date::parse_stamp(text, now).map_err(Failure::new)?,
            (.., Some(reference)) => {
                let spot = volumes.spot(Location::parse(reference), false)?;
                let meta = spot.side.metadata(&spot.path, follow_if(!self.no_dereference));
                let meta = meta.or_cannot("get the times of", spot.shown())?;
                return Ok((meta.atime, meta.mtime));
            }
            _ => now,
        };
        Ok((time, time))
    }

    fn one(&self, spot: &Spot, (atime, mtime): (Time, Time)) -> Res {
        let side = &*spot.side;
        let at_end = follow_if(!self.no_dereference);
        let meta = match side.metadata(&spot.path, at_end) {
            Err(e) if e.is(Errno::NOENT) && self.no_create => return Ok(()),
            Err(e) if e.is(Errno::NOENT) && at_end == AtSymlink::Follow => {
                side.create(&spot.path, 0o666 & !umask(), true).or_cannot("touch", spot.shown())?;
                side.metadata(&spot.path, AtSymlink::Follow)
            }
            meta => meta,
        };
        let meta = meta.or_cannot("touch", spot.shown())?;
        let both = self.access == self.modification;
        let atime = if both || self.access { atime } else { meta.atime };
        let mtime = if both || self.modification { mtime } else { meta.mtime };
        side.node(&spot.path, Some(meta.id()))
            .and_then(|node| node.set_times(atime, mtime))
            .or_cannot("set the times of", spot.shown())
    }
}
