//! `lanefs top`: shows the activity of a mount.

use crate::failure::{Failure, Res};
use crate::location::whole_volume;
use crate::output::Out;
use crate::quote::quoted;
use crate::top::sample::Sample;
use crate::top::screen::Screen;
use crate::top::view::View;
use crate::volumes::source;
use crate::watch::{Refusal, place};
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Show what a mount is doing: rates, latencies, waiting threads, the journal, memory
///
/// On a terminal the picture is drawn again and again, until q is pressed. Into a pipe each is a
/// block of lines.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The volume, or the directory that it is mounted at. Without it, the only mount that there is
    #[arg(value_name = "VOLUME|DIRECTORY")]
    mount: Option<OsString>,
    /// Seconds from one look to the next
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    interval: Duration,
    /// Look once: at what happens within one interval
    #[arg(long)]
    once: bool,
    /// Everything that was counted since the mount, as a line of JSON for each look; with --once at
    /// once
    #[arg(long)]
    json: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    let range = 0.05..=3600.0;
    if range.contains(&seconds) { Ok(Duration::from_secs_f64(seconds)) } else { Err("0.05 to 3600".into()) }
}

impl Args {
    pub(crate) fn run(self, out: &mut Out) -> Res {
        let (socket, first, text) = self.find()?;
        if self.json {
            return self.lines(&socket, text, out);
        }
        if self.once || !io::stdout().is_terminal() {
            return self.blocks(&socket, first, out);
        }
        self.live(&socket, first)
    }

    /// Finds the mount that the argument means.
    fn find(&self) -> Res<(PathBuf, Sample, String)> {
        let wanted = self.mount.as_ref().map(Wanted::new);
        let (mut found, mut silent) = (Vec::new(), 0);
        for socket in place::sockets() {
            match Sample::take(&socket) {
                Ok((sample, text)) => found.push((socket, sample, text)),
                Err(Refusal::Silent) => silent += 1,
                // It ended just now, or is about to.
                Err(_) => {}
            }
        }
        if let Some(wanted) = &wanted {
            // The last one lies over the others at the same directory.
            let of = |sample: &Sample| wanted.paths.iter().any(|path| sample.is_of(path));
            found.sort_by(|a, b| b.1.seconds.total_cmp(&a.1.seconds));
            return found
                .into_iter()
                .rfind(|(_, sample, _)| of(sample))
                .ok_or_else(|| wanted.missing(silent));
        }
        match (found.len(), found.pop()) {
            (1, Some(only)) => Ok(only),
            (0, _) => Err(Failure::new("no volume is mounted by this user: lanefs mount VOLUME DIRECTORY")),
            (_, last) => {
                let dirs = found.iter().chain(&last).map(|(_, sample, _)| quoted(sample.dir.as_bytes()));
                let dirs: Vec<String> = dirs.collect();
                Err(Failure::new(format!("there are several mounts; name one: {}", dirs.join(", "))))
            }
        }
    }

    fn lines(&self, socket: &Path, first: String, out: &mut Out) -> Res {
        let mut text = first;
        loop {
            out.write_all(text.as_bytes())?;
            out.flush()?;
            if self.once {
                return Ok(());
            }
            thread::sleep(self.interval);
            let Some((_, next)) = look(socket)? else { return Ok(()) };
            text = next;
        }
    }

    fn blocks(&self, socket: &Path, first: Sample, out: &mut Out) -> Res {
        let mut before = first;
        loop {
            thread::sleep(self.interval);
            let Some((now, _)) = look(socket)? else { return Ok(()) };
            for line in View::new(&before, &now).lines() {
                writeln!(out, "{}", line.trim_end())?;
            }
            if self.once {
                return Ok(());
            }
            writeln!(out)?;
            out.flush()?;
            before = now;
        }
    }

    fn live(&self, socket: &Path, first: Sample) -> Res {
        let failed = |e: io::Error| Failure::cannot("use", "the terminal", e);
        let mut screen = Screen::new().map_err(failed)?;
        let (mut before, mut now) = (first.clone(), first);
        let mut next = Instant::now() + self.interval.min(Duration::from_millis(200));
        loop {
            screen.show(&View::new(&before, &now).lines()).map_err(failed)?;
            if !screen.wait(next).map_err(failed)? {
                return Ok(());
            }
            if Instant::now() < next {
                continue;
            }
            next = Instant::now() + self.interval;
            match look(socket)? {
                Some((sample, _)) => before = std::mem::replace(&mut now, sample),
                None => return Ok(()),
            }
        }
    }
}

/// Takes a sample of the mount; `None` when it is gone.
fn look(socket: &Path) -> Res<Option<(Sample, String)>> {
    match Sample::take(socket) {
        Ok(sample) => Ok(Some(sample)),
        Err(Refusal::Gone) => Ok(None),
        Err(e) => {
            let socket = quoted(socket.as_os_str().as_bytes());
            Err(Failure::new(format!("cannot ask the server of the mount at {socket}: {e}")))
        }
    }
}

/// A mount by the name of its volume or its directory.
struct Wanted<'a> {
    name: &'a OsString,
    /// As the mount may call itself.
    paths: Vec<PathBuf>,
}

impl<'a> Wanted<'a> {
    fn new(name: &'a OsString) -> Self {
        // The directory first by its words: the server of a mount that hangs is not asked where it
        // is.
        let mut paths: Vec<PathBuf> = std::path::absolute(name).into_iter().collect();
        let volume = whole_volume(name);
        paths.push(source(&volume).into());
        paths.push(volume.into());
        Self { name, paths }
    }

    fn missing(&self, silent: usize) -> Failure {
        let name = quoted(self.name.as_bytes());
        if self.paths.iter().any(|path| lanefs_fuse::is_mounted(path)) {
            let text = if silent > 0 {
                format!("the server of {name} does not answer")
            } else {
                format!(
                    "no server of this user serves {name}; if the mount is dead, lanefs umount removes it"
                )
            };
            return Failure::new(text);
        }
        Failure::new(format!("{name} is no mount of this user: lanefs mount VOLUME DIRECTORY"))
    }
}
