//! `lanefs xattr`: extended attributes.

use crate::failure::{Cause, Failure, OrCannot, Res};
use crate::output::Out;
use crate::quote::{JsonName, escaped, hex, quoted};
use crate::volumes::{Spot, Volumes};
use rustix::io::Errno;
use serde::Serialize;
use std::ffi::OsString;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Show and change extended attributes
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: XattrAction,
    /// Print help
    #[arg(long, global = true, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

#[derive(Debug, clap::Subcommand)]
enum XattrAction {
    /// Write the value of an attribute to standard output, as it is
    #[command(disable_help_flag = true)]
    Get {
        /// The attribute, such as user.comment
        name: OsString,
        #[command(flatten)]
        file: File,
        /// In hexadecimal, as `set` reads it back
        #[arg(long)]
        hex: bool,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Set an attribute
    #[command(disable_help_flag = true)]
    Set {
        /// The attribute, such as user.comment
        name: OsString,
        /// The value: text, 0x and hexadecimal digits, or `-` for standard input
        #[arg(allow_hyphen_values = true)]
        value: OsString,
        #[command(flatten)]
        file: File,
    },
    /// Remove an attribute
    #[command(disable_help_flag = true)]
    Rm {
        /// The attribute, such as user.comment
        name: OsString,
        #[command(flatten)]
        file: File,
    },
    /// List attributes with their values
    #[command(disable_help_flag = true)]
    Ls {
        /// Files, as VOLUME:/path
        #[arg(required = true, value_name = "VOLUME:/PATH")]
        files: Vec<OsString>,
        /// Use a symbolic link itself, not its target
        #[arg(short = 'h', long)]
        no_dereference: bool,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, clap::Args)]
struct File {
    /// The file, as VOLUME:/path
    #[arg(value_name = "VOLUME:/PATH")]
    path: OsString,
    /// Use a symbolic link itself, not its target
    #[arg(short = 'h', long)]
    no_dereference: bool,
}

/// An attribute as JSON has it.
#[derive(Serialize)]
struct Attribute {
    #[serde(flatten)]
    name: JsonName,
    /// The value, if it is text.
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    /// The value in hexadecimal, if it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    value_hex: Option<String>,
}

impl Attribute {
    fn new(name: &OsString, value: Vec<u8>) -> Self {
        let name = JsonName::new(name.as_bytes());
        match String::from_utf8(value) {
            Ok(text) => Self { name, value: Some(text), value_hex: None },
            Err(e) => Self { name, value: None, value_hex: Some(hex(e.as_bytes())) },
        }
    }
}

#[derive(Serialize)]
struct Attributes {
    path: String,
    attributes: Vec<Attribute>,
}

impl Args {
    pub(crate) fn run(self, out: &mut Out) -> Res {
        let mut volumes = Volumes::default();
        match self.action {
            XattrAction::Get { name, file, hex: as_hex, json } => {
                let (spot, path) = file.find(&mut volumes, false)?;
                let value = spot.side.get_xattr(&path, &name);
                let value = value.map_err(|e| no_attribute(&name, "read", &spot, e))?;
                match () {
                    () if json => out.json(&Attribute::new(&name, value))?,
                    () if as_hex => writeln!(out, "0x{}", hex(&value))?,
                    () if out.terminal => writeln!(out, "{}", escaped(&value))?,
                    () => out.write_all(&value)?,
                }
            }
            XattrAction::Set { name, value, file } => {
                let value = read_value(&value)?;
                let (spot, path) = file.find(&mut volumes, true)?;
                let set = spot.side.node(&path, None).and_then(|node| node.set_xattr(&name, &value));
                set.map_err(|e| no_attribute(&name, "set", &spot, e))?;
            }
            XattrAction::Rm { name, file } => {
                let (spot, path) = file.find(&mut volumes, true)?;
                let removed = spot.side.remove_xattr(&path, &name);
                removed.map_err(|e| no_attribute(&name, "remove", &spot, e))?;
            }
            XattrAction::Ls { files, no_dereference, json } => {
                let mut all = Vec::new();
                let done = volumes.for_each(&files, |volumes, path| {
                    let found = list(&File { path: path.clone(), no_dereference }, volumes)?;
                    if json {
                        all.push(as_json(found));
                        return Ok(());
                    }
                    show(found, out)
                });
                if json {
                    out.json(&all)?;
                }
                return done;
            }
        }
        volumes.close()
    }
}

type FoundAttr = (Spot, Vec<(OsString, Vec<u8>)>);

fn list(file: &File, volumes: &mut Volumes) -> Res<FoundAttr> {
    let (spot, path) = file.find(volumes, false)?;
    let mut found = Vec::new();
    for name in spot.side.list_xattrs(&path).or_cannot("list attributes of", spot.shown())? {
        let value = spot.side.get_xattr(&path, &name).or_cannot("read attributes of", spot.shown())?;
        found.push((name, value));
    }
    found.sort();
    Ok((spot, found))
}

fn as_json((spot, found): FoundAttr) -> Attributes {
    let attributes = found.into_iter().map(|(name, value)| Attribute::new(&name, value)).collect();
    Attributes { path: spot.path.to_string_lossy().into_owned(), attributes }
}

/// Shows attributes as getfattr -d does.
fn show((spot, found): FoundAttr, out: &mut Out) -> Res {
    if found.is_empty() {
        return Ok(());
    }
    writeln!(out, "# file: {}", escaped(&spot.shown()))?;
    for (name, value) in found {
        let text = std::str::from_utf8(&value).ok().filter(|t| !t.chars().any(char::is_control));
        match text {
            Some(text) => writeln!(out, "{}={text:?}", escaped(name.as_bytes()))?,
            None => writeln!(out, "{}=0x{}", escaped(name.as_bytes()), hex(&value))?,
        }
    }
    writeln!(out)
}

impl File {
    /// Returns the spot that was named, and the path that it leads to.
    fn find(&self, volumes: &mut Volumes, write: bool) -> Res<(Spot, PathBuf)> {
        let spot = volumes.inside(&self.path, write)?;
        let path = if self.no_dereference { Ok(spot.path.clone()) } else { spot.side.resolve(&spot.path) };
        let path = path.or_cannot("access", spot.shown())?;
        Ok((spot, path))
    }
}

fn no_attribute(name: &OsString, verb: &str, spot: &Spot, cause: Cause) -> Failure {
    let cause = if cause.is(Errno::NODATA) { Cause::text("No such attribute") } else { cause };
    Failure::cannot(&format!("{verb} attribute {} of", quoted(name.as_bytes())), spot.shown(), cause)
}

/// Reads a value: text, `0x...`, or standard input.
fn read_value(value: &OsString) -> Res<Vec<u8>> {
    let bytes = value.as_bytes();
    if bytes == b"-" {
        // One byte more than any volume can hold says that it is too long.
        let mut read = Vec::new();
        std::io::stdin().lock().take((64 << 10) + 1).read_to_end(&mut read).or_cannot("read", "-")?;
        return Ok(read);
    }
    let Some(digits) = bytes.strip_prefix(b"0x") else { return Ok(bytes.to_vec()) };
    let digit = |b: u8| char::from(b).to_digit(16).and_then(|d| u8::try_from(d).ok());
    let parsed: Option<Vec<u8>> = digits
        .chunks(2)
        .map(|pair| match *pair {
            [high, low] => Some(digit(high)? << 4 | digit(low)?),
            _ => None,
        })
        .collect();
    parsed.ok_or_else(|| {
        Failure::new(format!("{} is not hexadecimal: an even number of digits after 0x", quoted(bytes)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_values() {
        assert_eq!(read_value(&"text".into()).expect("text"), b"text");
        assert_eq!(read_value(&"0x00fF".into()).expect("hexadecimal"), [0, 255]);
        assert_eq!(read_value(&"0x".into()).expect("empty"), b"");
        assert!(read_value(&"0x0".into()).is_err());
        assert!(read_value(&"0xzz".into()).is_err());
    }
}
