//! An option of `-o`: its forms, its text in the manual page, and what the server does with it.

use super::{MountOptions, Taken};
use lanefs::{Atime, OpenOptions};
use rustix::mount::MountFlags;

/// Options that share one text.
#[derive(Debug)]
pub struct MountOption {
    /// As they are written: with a value in capitals (`threads=N`), or `*` for any end (`x-*`).
    pub forms: &'static [&'static str],
    /// What they do, in Markdown. If the engine refuses them, why.
    pub text: &'static str,
    pub(super) action: Action,
}

/// The effect of an option in the server.
#[derive(Debug, Clone, Copy)]
pub(super) enum Action {
    /// It sets flags of mount(2).
    Set(MountFlags),
    /// It clears them.
    Clear(MountFlags),
    /// It says when a read moves the time of the last read.
    Times(Atime),
    /// It is kept for the mount, from the word and its value.
    Keep(fn(&mut MountOptions, &str, &str) -> Taken),
    /// The engine takes it or refuses it.
    Volume,
    /// It asks for what lanefs does in any case.
    Always,
    /// mount(8), fstab or systemd mean something by it.
    Outside,
    /// The table of mounts says it, and mount(8) hands it on to a remount.
    OfTheTable,
    /// It is refused.
    Refused,
}

/// The part of the manual page that an option is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptionKind {
    /// It changes something of the mount.
    Mount,
    /// It changes something of how the volume is used.
    Volume,
    /// It is taken, and changes nothing.
    Idle,
    /// It is refused.
    Refused,
}

impl MountOption {
    /// Returns the part of the manual page that it is in.
    pub fn kind(&self) -> OptionKind {
        match self.action {
            Action::Set(_) | Action::Clear(_) | Action::Times(_) | Action::Keep(_) => OptionKind::Mount,
            Action::Volume if self.refusal().is_some() => OptionKind::Refused,
            Action::Volume => OptionKind::Volume,
            Action::Always | Action::Outside => OptionKind::Idle,
            Action::OfTheTable | Action::Refused => OptionKind::Refused,
        }
    }

    /// Returns why it is refused, if it is.
    pub fn refusal(&self) -> Option<String> {
        match self.action {
            Action::Refused | Action::OfTheTable => Some(self.text.to_owned()),
            Action::Volume => match OpenOptions::new().mount_option(&example(self.forms.first()?)) {
                Err(lanefs::Error::MountOption { why, .. }) => Some(why),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns a word of each form.
    pub fn examples(&self) -> impl Iterator<Item = String> {
        self.forms.iter().map(|form| example(form))
    }
}

fn is_value(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_uppercase() || b == b':')
}

pub(super) fn is_of(form: &str, word: &str) -> bool {
    match (form.strip_suffix('*'), form.split_once('=')) {
        (Some(start), _) => word.starts_with(start),
        (None, Some((name, value))) if is_value(value) => {
            word.split_once('=').is_some_and(|(other, _)| other == name)
        }
        _ => word == form,
    }
}

/// Returns a word of a form.
fn example(form: &str) -> String {
    let Some((name, value)) = form.split_once('=').filter(|(_, value)| is_value(value)) else {
        return form.replace('*', "word");
    };
    let value = match value {
        "ADDRESS:PORT" => "127.0.0.1:9100",
        "SIZE" => "64M",
        "N" | "SECONDS" => "7",
        _ => "word",
    };
    format!("{name}={value}")
}

pub(super) const fn set(
    forms: &'static [&'static str],
    flags: MountFlags,
    text: &'static str,
) -> MountOption {
    MountOption { forms, text, action: Action::Set(flags) }
}

pub(super) const fn clear(
    forms: &'static [&'static str],
    flags: MountFlags,
    text: &'static str,
) -> MountOption {
    MountOption { forms, text, action: Action::Clear(flags) }
}

pub(super) const fn times(forms: &'static [&'static str], when: Atime, text: &'static str) -> MountOption {
    MountOption { forms, text, action: Action::Times(when) }
}

pub(super) const fn keep(
    forms: &'static [&'static str],
    how: fn(&mut MountOptions, &str, &str) -> Taken,
    text: &'static str,
) -> MountOption {
    MountOption { forms, text, action: Action::Keep(how) }
}

pub(super) const fn other(forms: &'static [&'static str], action: Action, text: &'static str) -> MountOption {
    MountOption { forms, text, action }
}
