//! The names of volumes as other processes find them.

use crate::medium::Medium;
use crate::os_name::OsStrExt;
use crate::parameters::absolute_url;
use crate::scheme::{is_nbd, is_rbd, is_stacked};
use crate::stacked::{parse, parse_one};
use crate::url::VolumeUrl;
use std::ffi::{OsStr, OsString};
use std::io;

/// Returns the name of a volume as a process in another directory finds it, and finds it again: its
/// paths are absolute, and it breaks no lock.
///
/// # Errors
/// The system's, if a path cannot be resolved.
pub fn absolute_name(name: &OsStr) -> io::Result<OsString> {
    let bytes = name.as_bytes();
    if is_nbd(bytes) || is_rbd(bytes) {
        return name.to_str().map_or_else(|| Ok(name.into()), |url| absolute_url(url).map(OsString::from));
    }
    let join = |parts: &[&OsStr]| parts.iter().copied().collect::<OsString>();
    if is_stacked(bytes) {
        if parse(name).is_err() {
            return Ok(name.into());
        }
        return match parse_one(name) {
            Ok(Medium::Overlay { base, top }) => {
                let base = absolute_name(base)?;
                let top = top.canonicalize().or_else(|_| std::path::absolute(top))?;
                let all = join(&["overlay:base=".as_ref(), &base, ",top=".as_ref(), top.as_os_str()]);
                checked(all, Medium::Overlay { base: &base, top: &top })
            }
            Ok(Medium::Cached { below, dir, size }) => {
                let (below, dir) = (absolute_name(below)?, std::path::absolute(dir)?);
                let bound = format!(",size={size}");
                let all =
                    join(&["cached:".as_ref(), &below, ",dir=".as_ref(), dir.as_os_str(), bound.as_ref()]);
                checked(all, Medium::Cached { below: &below, dir: &dir, size })
            }
            _ => Ok(name.into()),
        };
    }
    let Some(path) = VolumeUrl::parse(name).ok().and_then(|url| url.path()) else { return Ok(name.into()) };
    let Ok(real) = path.canonicalize() else { return Ok(name.into()) };
    // The part, if it names one, as it is written.
    let behind = bytes.strip_prefix(b"pmem:").unwrap_or(bytes);
    let part = behind.strip_prefix(path.as_os_str().as_bytes()).unwrap_or_default();
    Ok(join(&[real.as_os_str(), OsStr::from_bytes(part)]))
}

/// Returns a name, if it is read as the device that is meant: a folder may have `,top=` in its
/// name.
fn checked(name: OsString, meant: Medium<'_>) -> io::Result<OsString> {
    if parse_one(&name) == Ok(meant) {
        return Ok(name);
    }
    let why = "the path of a folder or file has ',top=', ',dir=' or ',size=' in it";
    Err(io::Error::new(io::ErrorKind::InvalidInput, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absolute_names() {
        let here = std::env::current_dir().unwrap();
        let here = here.display();
        for (name, want) in [
            ("overlay:base=nbd://h/e,top=t", format!("overlay:base=nbd://h/e,top={here}/t")),
            ("cached:mem:1M,dir=d,size=1M", format!("cached:mem:1M,dir={here}/d,size=1048576")),
            ("overlay:base=Cargo.toml@2,top=/t", format!("overlay:base={here}/Cargo.toml@2,top=/t")),
            ("mem:1M", "mem:1M".into()),
        ] {
            assert_eq!(absolute_name(name.as_ref()).unwrap(), OsString::from(want));
        }
        // A file whose name would be read as another one.
        let meant = Medium::Overlay { base: "a".as_ref(), top: "/b,top=/c".as_ref() };
        assert!(checked("overlay:base=a,top=/b,top=/c".into(), meant).is_err());
    }
}
