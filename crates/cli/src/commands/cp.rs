//! `lanefs cp`: files and trees between volumes, the host and the standard streams.

use crate::copy::{Copier, Options, pour};
use crate::failure::{Cause, Failure, Noted, OrCannot, Res};
use crate::location::Location;
use crate::output::Out;
use crate::progress::Progress;
use crate::quote::quoted;
use crate::side::follow_if;
use crate::stats::StatsArg;
use crate::volumes::{Spot, Volumes, refuse_forgotten_slash};
use lanefs::AtSymlink;
use lanefs_archive::Overwrite;
use lanefs_archive::content::{self, Content};
use std::cell::RefCell;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Copy files and directories; each side is in a volume or on the host
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Files and directories to copy: VOLUME:/path, a path of the host, or `-`
    #[arg(required = true, value_name = "SRC")]
    sources: Vec<OsString>,
    /// The new name or directory: VOLUME:/path, a path of the host, or `-`
    #[arg(value_name = "DST")]
    destination: OsString,
    /// Copy directories and their contents
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// Keep mode, ACLs, owner and times
    #[arg(short)]
    preserve: bool,
    /// As -rp, and keep attributes and hard links
    #[arg(short, long)]
    archive: bool,
    /// Follow symbolic links that are named as SRC
    #[arg(short = 'H')]
    follow: bool,
    /// Do not overwrite existing files
    #[arg(short, long)]
    no_clobber: bool,
    /// DST is the new name, not a directory to copy into
    #[arg(short = 'T', long)]
    no_target_directory: bool,
    /// Overwrite volumes and locked files of the host too
    #[arg(long)]
    force: bool,
    /// Print each copied name
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    stats: StatsArg,
}

impl Args {
    pub(crate) fn run(self, out: &mut Out) -> Res {
        let overwrite = if self.force { Overwrite::All } else { Overwrite::default() };
        let mut volumes = Volumes::default().overwrite(overwrite);
        let destination = Location::parse(&self.destination);
        refuse_host_to_host("cp", &self.sources, &self.destination)?;
        volumes.open_for_writing(&destination)?;
        if destination == Location::Stdio {
            return self.to_stdout(volumes, out);
        }
        let target = volumes.spot(destination, true)?;
        let target = Target::find_for_trees(target, &self.destination, self.no_target_directory);
        target.check(self.sources.len())?;
        let recursive = self.recursive || self.archive;
        let options = Options {
            recursive,
            follow: self.follow || !recursive,
            preserve: self.preserve || self.archive,
            archive: self.archive,
            no_clobber: self.no_clobber,
            replace: false,
            several: self.sources.len() > 1,
            verbose: self.verbose,
            umask: if self.preserve || self.archive { 0 } else { umask() },
        };
        let mut copier = Copier::new(options, Progress::new("copying", None), out);
        let mut noted = Noted::default();
        for source in &self.sources {
            let copied = match Location::parse(source) {
                Location::Stdio => from_stdin(&target, &mut copier),
                location => volumes.spot(location, false).and_then(|src| {
                    target.check_source(&src, follow_if(options.follow))?;
                    copier.copy(&src, &target.for_source(&src, source))
                }),
            };
            noted.note(copied)?;
        }
        drop(copier);
        drop(target);
        volumes.print(&self.stats)?;
        volumes.close()?;
        noted.finish()
    }

    fn to_stdout(&self, mut volumes: Volumes, out: &mut Out) -> Res {
        let [source] = self.sources.as_slice() else {
            return Err(Failure::new(
                "only one file can be copied to standard output; lanefs cat writes several",
            ));
        };
        let mut progress = Progress::new("copying", None);
        match Location::parse(source) {
            Location::Stdio => Err(Failure::new("standard input to standard output: use cat")),
            location => {
                let src = volumes.spot(location, false)?;
                let source = src.side.open(&src.path).or_cannot("open", src.shown())?;
                pour(&*source, out, &src.shown(), &mut progress)?;
                drop(source);
                drop(src);
                volumes.print(&self.stats)?;
                volumes.close()
            }
        }
    }
}

fn from_stdin(target: &Target, copier: &mut Copier<'_>) -> Res {
    if target.is_dir {
        let text =
            format!("standard input has no name: write {}/NAME", crate::quote::escaped(&target.spot.shown()));
        return Err(Failure::new(text));
    }
    if target.wants_dir {
        return Err(target.not_a_directory());
    }
    copier.stream(io::stdin().lock(), "-", &target.spot)
}

/// Refuses to copy or move from the host to the host: most likely the user forgot a `:/`, and the
/// command would overwrite a volume.
pub(super) fn refuse_host_to_host(command: &str, sources: &[OsString], destination: &OsStr) -> Res {
    let is_volume = |arg: &OsStr| matches!(Location::parse(arg), Location::Volume { .. });
    if is_volume(destination) {
        return Ok(());
    }
    let Some(source) = sources.iter().find(|source| !is_volume(source)) else { return Ok(()) };
    refuse_forgotten_slash(destination)?;
    refuse_forgotten_slash(source)?;
    let show = |arg: &OsStr| quoted(arg.as_encoded_bytes());
    let volume = [destination, source]
        .into_iter()
        .find(|arg| content::of_path(Path::new(arg)) == Some(Content::Ext))
        .map_or(String::new(), |volume| format!(", as in {}:/", show(volume).trim_matches('\'')));
    Err(Failure::new(format!(
        "neither {} nor {} is in a volume: write VOLUME:/path{volume}, or use {command}(1)",
        show(source),
        show(destination)
    )))
}

/// Returns the mode bits that new files do not get.
pub(super) fn umask() -> u32 {
    let mask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(mask);
    mask.bits()
}

/// The target of cp, mv and ln: a new name, or a directory to put files into.
pub(super) struct Target {
    pub(super) spot: Spot,
    pub(super) is_dir: bool,
    /// As the user wrote it.
    written: OsString,
    /// It is no directory, and is written with a slash at its end, which only a directory has.
    wants_dir: bool,
    /// What this command has put there.
    made: RefCell<HashSet<PathBuf>>,
}

impl Target {
    /// Looks at the destination. `no_directory`: it is the new name whatever is there.
    pub(super) fn find(spot: Spot, written: &OsStr, no_directory: bool) -> Res<Self> {
        let target = Self::find_for_trees(spot, written, no_directory);
        if target.wants_dir { Err(target.not_a_directory()) } else { Ok(target) }
    }

    /// Looks at the destination as [`find`](Self::find) does, but leaves it to
    /// [`check_source`](Self::check_source) to refuse a slash at its end: a tree may get its name.
    pub(super) fn find_for_trees(spot: Spot, written: &OsStr, no_directory: bool) -> Self {
        let is_dir =
            !no_directory && spot.side.metadata(&spot.path, AtSymlink::Follow).is_ok_and(|m| m.is_dir());
        let wants_dir = !is_dir && !no_directory && written.as_bytes().ends_with(b"/");
        Self { spot, is_dir, written: written.into(), wants_dir, made: RefCell::default() }
    }

    /// Refuses a source that is no directory, if the target is the name of one. `at_end` says
    /// whether the source may be a link to one.
    pub(super) fn check_source(&self, src: &Spot, at_end: AtSymlink) -> Res {
        if self.wants_dir && src.side.metadata(&src.path, at_end).is_ok_and(|meta| !meta.is_dir()) {
            return Err(self.not_a_directory());
        }
        Ok(())
    }

    fn not_a_directory(&self) -> Failure {
        Failure::cannot("create", self.spot.shown(), Cause::text("Not a directory"))
    }

    /// Checks that the target of several sources is a directory.
    pub(super) fn check(&self, sources: usize) -> Res {
        if sources > 1 && !self.is_dir {
            return Err(Failure::new(format!(
                "target {} is not a directory",
                quoted(self.written.as_bytes())
            )));
        }
        Ok(())
    }

    /// Has `make` put `src` at `dst`. Refuses to overwrite what an earlier source has become;
    /// directories are joined.
    pub(super) fn make(&self, src: &Spot, dst: &Spot, make: impl FnOnce() -> Res) -> Res {
        let there = || dst.side.metadata(&dst.path, AtSymlink::NoFollow);
        if self.made.borrow().contains(&dst.path) && there().is_ok_and(|there| !there.is_dir()) {
            let (src, dst) = (quoted(src.shown()), quoted(dst.shown()));
            return Err(Failure::new(format!("will not overwrite just-created {dst} with {src}")));
        }
        make()?;
        self.made.borrow_mut().insert(dst.path.clone());
        Ok(())
    }

    /// Returns the name of the copy of `src`, which the user wrote as `written`.
    pub(super) fn for_source(&self, src: &Spot, written: &OsStr) -> Spot {
        let contents = [&b"/."[..], b"/.."].iter().any(|end| written.as_bytes().ends_with(end))
            || written == "."
            || written == "..";
        match src.path.file_name() {
            Some(name) if self.is_dir && !contents => self.spot.join(name),
            // The root, `.` and `..` have no name: their contents go into the target.
            _ => self.spot.clone(),
        }
    }
}
