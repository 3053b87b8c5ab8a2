//! Where the files of an image are: in a folder, or in a tar archive.
//!
//! A tar archive is read in place: its headers once, to know where each member lies. Names of its
//! members are only looked up, so that none leads anywhere.

use super::blob::Blob;
use super::digest::{Digest, Hasher};
use super::documents::DOCUMENT_MAX;
use super::error::{ImageError, Text};
use crate::Cause;
use crate::compress::{READ_AHEAD, unpacked};
use crate::content::{self, ARCHIVE_HEAD, Content};
use crate::limit::Limit;
use crate::member::Kind;
use crate::path::{clean, split};
use crate::places::joined;
use crate::tarball::{TarError, TarReader};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Members that are kept of an archive.
const MEMBERS_MAX: usize = 100_000;
/// Bytes of a member's name, or of the target of a link, that an image may have: twice those of a
/// blob with a sha512 digest.
const NAME_MAX: usize = 300;
/// Bytes of a compressed archive, unpacked, that are read to tell whether it is an image. What has
/// nothing but names of an image up to there is one.
const TOLD: u64 = 1 << 30;

/// The files of an image.
#[derive(Debug)]
pub(super) enum Store {
    Folder(PathBuf),
    Tar { file: Arc<File>, members: HashMap<Vec<u8>, StoredMember> },
}

/// What a member of the archive is.
#[derive(Debug)]
pub(super) enum StoredMember {
    /// Where its data begins, and how long it is.
    Data(u64, u64),
    /// Another member.
    Link(Vec<u8>),
}

impl Store {
    /// Opens what is at `path`, if it is an image. Reads no further than the first name that no
    /// image has.
    pub(super) fn find(path: &Path) -> Result<Option<Self>, Cause> {
        let meta = path.metadata()?;
        if meta.is_dir() {
            let has = |name| path.join(name).metadata().is_ok_and(|m| m.is_file());
            return Ok((has("oci-layout") && has("index.json")).then(|| Self::Folder(path.into())));
        }
        if meta.is_file() { Self::in_file(File::open(path)?) } else { Ok(None) }
    }

    /// Finds as [`find`](Self::find) does, in an archive that is open, from its start on.
    pub(super) fn in_file(mut file: File) -> Result<Option<Self>, Cause> {
        let len = file.metadata()?.len();
        let mut head = [0; ARCHIVE_HEAD];
        file.rewind()?;
        let read = file.read(&mut head)?;
        file.rewind()?;
        if let Some(Content::Compressed(by)) = content::of_head(&head[..read]) {
            let Ok((stream, _)) = unpacked(BufReader::with_capacity(READ_AHEAD, file)) else {
                return Ok(None);
            };
            let limit = Limit::new(Some(TOLD));
            let is_image = match members(TarReader::new(limit.of(stream)), u64::MAX, pass_over) {
                Err(Cause::TooLarge(_)) => true,
                members => members?.as_ref().is_some_and(is_image),
            };
            return if is_image { Err(ImageError::Compressed(by).into()) } else { Ok(None) };
        }
        let stream = BufReader::new(file.try_clone()?);
        let seek = |stream: &mut BufReader<File>, by: u64| {
            stream.seek_relative(i64::try_from(by).map_err(io::Error::other)?)
        };
        let members = members(TarReader::new(stream), len, seek)?;
        Ok(members.filter(is_image).map(|members| Self::Tar { file: Arc::new(file), members }))
    }

    /// Returns whether it is an OCI layout.
    pub(super) fn is_layout(&self) -> bool {
        match self {
            Self::Folder(_) => true,
            Self::Tar { members, .. } => {
                ["oci-layout", "index.json"].iter().all(|name| members.contains_key(name.as_bytes()))
            }
        }
    }

    /// Returns a file of the image, and its length. `name` is a fixed one, that of a digest, or for
    /// an archive alone any other.
    pub(super) fn blob(&self, name: &str) -> Result<(Blob, u64), Cause> {
        let missing = || ImageError::Missing(Text::of(name));
        match self {
            Self::Folder(folder) => {
                let path = folder.join(name);
                match path.metadata() {
                    Ok(meta) if meta.is_file() => Ok((Blob::File(path), meta.len())),
                    Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e.into()),
                    _ => Err(missing().into()),
                }
            }
            Self::Tar { file, members } => {
                let name = clean(name.as_bytes()).ok_or_else(missing)?;
                let mut place = members.get(&name);
                if let Some(StoredMember::Link(target)) = place {
                    place = members.get(target);
                }
                match place {
                    Some(StoredMember::Data(at, len)) => Ok((Blob::Range(file.clone(), *at, *len), *len)),
                    _ => Err(missing().into()),
                }
            }
        }
    }

    /// Reads a document whole.
    pub(super) fn read(&self, name: &str) -> Result<Vec<u8>, Cause> {
        let (blob, len) = self.blob(name)?;
        let too_long = || {
            let rule = Text::of(format!("a document of more than {DOCUMENT_MAX} bytes"));
            ImageError::Document { name: Text::of(name), rule }
        };
        if len > DOCUMENT_MAX {
            return Err(too_long().into());
        }
        let mut bytes = Vec::new();
        blob.open()?.take(DOCUMENT_MAX + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > DOCUMENT_MAX {
            return Err(too_long().into());
        }
        Ok(bytes)
    }

    /// Reads a document whole and checks its digest and size.
    pub(super) fn read_checked(&self, digest: &Digest, size: u64) -> Result<Vec<u8>, Cause> {
        let bytes = self.read(&digest.path())?;
        let blob = Text::of(digest);
        if bytes.len() as u64 != size {
            return Err(ImageError::Size { blob, expected: size, found: bytes.len() as u64 }.into());
        }
        let mut hasher = Hasher::of(digest);
        hasher.update(&bytes);
        let found = hasher.finish();
        if found != *digest {
            return Err(ImageError::Digest { blob, found: Text::of(found) }.into());
        }
        Ok(bytes)
    }
}

/// Reads so many bytes of a stream.
fn pass_over(stream: &mut impl Read, by: u64) -> io::Result<()> {
    io::copy(&mut stream.take(by), &mut io::sink()).map(drop)
}

/// Returns whether an archive that begins like this may be an image: its first name is one that an
/// image has. Reads in small pieces, since a stream may have no more yet.
pub(super) fn may_begin(stream: impl Read + Send) -> bool {
    let Ok((stream, _)) = unpacked(BufReader::with_capacity(512, stream)) else { return false };
    let mut tar = TarReader::new(stream);
    while let Ok(Some(member)) = tar.next() {
        match clean(&member.path) {
            Some(path) if path.is_empty() => {}
            path => return path.is_some_and(|path| may_be_of_image(&path)),
        }
    }
    false
}

fn is_image(members: &HashMap<Vec<u8>, StoredMember>) -> bool {
    let has = |name: &[u8]| members.contains_key(name);
    let content = || members.keys().any(|name| name.starts_with(b"blobs/") || is_id(name));
    has(b"oci-layout") && has(b"index.json") || has(b"manifest.json") && content()
}

/// Returns the members of an archive; `None` if it has one that no image has. `seek` passes over
/// data; `len` bytes are there.
fn members<R: BufRead>(
    mut tar: TarReader<R>,
    len: u64,
    seek: impl Fn(&mut R, u64) -> io::Result<()>,
) -> Result<Option<HashMap<Vec<u8>, StoredMember>>, Cause> {
    let mut members = HashMap::new();
    loop {
        let member = match tar.next() {
            Ok(Some(member)) => member,
            Ok(None) => return Ok(Some(members)),
            // What is no archive at all is for the import to say.
            Err(TarError::Broken { .. }) if members.is_empty() => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        let target = match &member.kind {
            Kind::HardLink(target) | Kind::Symlink(target) => target.len(),
            _ => 0,
        };
        if member.path.len().max(target) > NAME_MAX {
            return Ok(None);
        }
        let Some(path) = clean(&member.path).filter(|path| may_be_of_image(path)) else {
            return Ok(None);
        };
        let place = match member.kind {
            Kind::File { size, data } if data == [(0, size)] || size == 0 => {
                StoredMember::Data(tar.at(), size)
            }
            Kind::HardLink(target) => StoredMember::Link(clean(&target).unwrap_or_default()),
            Kind::Symlink(target) => StoredMember::Link(beside(&path, &target)),
            Kind::Dir => continue,
            _ => return Ok(None),
        };
        if let StoredMember::Data(at, size) = place
            && at.checked_add(size).is_none_or(|end| end > len)
        {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        members.insert(path, place);
        if members.len() > MEMBERS_MAX {
            return Err(ImageError::TooManyNames(MEMBERS_MAX).into());
        }
        tar.pass_over(&seek)?;
    }
}

/// Returns whether the archive of an image may have a member of this name: those of a layout, and
/// `ID.json`, `ID.tar`, `ID/layer.tar` of docker save.
fn may_be_of_image(path: &[u8]) -> bool {
    let first = path.split(|b| *b == b'/').next().unwrap_or_default();
    let fixed: [&[u8]; 7] =
        [b"", b"blobs", b"oci-layout", b"index.json", b"manifest.json", b"repositories", b"version"];
    fixed.contains(&first) || is_id(path)
}

/// Returns whether a path begins with the 64 digits of an id.
fn is_id(path: &[u8]) -> bool {
    let id = path.split(|b| matches!(b, b'/' | b'.')).next().unwrap_or_default();
    id.len() == 64 && id.iter().all(u8::is_ascii_hexdigit)
}

/// Returns the path that a symbolic link at `path` leads to, by its text alone; it is only looked
/// up among members.
fn beside(path: &[u8], target: &[u8]) -> Vec<u8> {
    let mut dir = split(path).0;
    let mut rest = target;
    while let Some(up) = rest.strip_prefix(b"../") {
        (dir, rest) = (split(dir).0, up);
    }
    joined(dir, rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_images() {
        let id = "0f".repeat(32);
        for name in ["", "blobs/sha256/x", "index.json", &format!("{id}/layer.tar"), &format!("{id}.json")] {
            assert!(may_be_of_image(name.as_bytes()), "{name}");
        }
        for name in ["etc/passwd", "index.html", &id[1..], "blobs2"] {
            assert!(!may_be_of_image(name.as_bytes()), "{name}");
        }
        assert_eq!(beside(b"a/layer.tar", b"../b/layer.tar"), b"b/layer.tar");
        assert_eq!(beside(b"a/layer.tar", b"../../../b"), b"b");
        assert_eq!(beside(b"a.tar", b"b.tar"), b"b.tar");
    }
}
