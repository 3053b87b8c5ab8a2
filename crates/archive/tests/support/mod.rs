//! Layers made by hand, so that they may be anything, and what an import makes of them.

use lanefs::{FileType, Volume};
use lanefs_archive::{Error, Event, ImportOptions, Source, import};
use std::ffi::OsString;
use std::ops::ControlFlow::Continue;

/// A tar archive, member by member.
#[derive(Default, Clone)]
pub(crate) struct Tar(Vec<u8>);

impl Tar {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Adds a member. A path of more than 100 bytes, and what `pax` has, gets a header of its own.
    pub(crate) fn member(
        mut self,
        kind: u8,
        path: &str,
        link: &str,
        data: &[u8],
        pax: &[(&str, &str)],
    ) -> Self {
        let long = [("path", path)];
        let long = if path.len() > 100 { &long[..] } else { &[] };
        let mut records = Vec::new();
        for (key, value) in pax.iter().chain(long) {
            let rest = key.len() + value.len() + 3;
            let mut len = rest + 1;
            while rest + len.to_string().len() != len {
                len = rest + len.to_string().len();
            }
            records.extend(format!("{len} {key}={value}\n").into_bytes());
        }
        if !records.is_empty() {
            self.record(b'x', "pax", "", &records);
        }
        self.record(kind, &path[..path.len().min(100)], link, data);
        self
    }

    fn record(&mut self, kind: u8, path: &str, link: &str, data: &[u8]) {
        let mut header = [0u8; 512];
        let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, path.as_bytes());
        put(100, if kind == b'5' { b"0000755" } else { b"0000644" });
        put(108, b"0000000");
        put(116, b"0000000");
        put(124, format!("{:011o}", data.len()).as_bytes());
        put(136, b"00000001750");
        put(148, b"        ");
        put(156, &[kind]);
        put(157, link.as_bytes());
        put(257, b"ustar\x0000");
        let sum: u32 = header.iter().map(|b| u32::from(*b)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.0.extend(header);
        self.0.extend(data);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
    }

    pub(crate) fn file(self, path: &str, data: &str) -> Self {
        self.member(b'0', path, "", data.as_bytes(), &[])
    }

    /// An empty file, as whiteouts are.
    pub(crate) fn empty(self, path: &str) -> Self {
        self.file(path, "")
    }

    pub(crate) fn dir(self, path: &str) -> Self {
        self.member(b'5', path, "", b"", &[])
    }

    pub(crate) fn symlink(self, path: &str, target: &str) -> Self {
        self.member(b'2', path, target, b"", &[])
    }

    pub(crate) fn link(self, path: &str, target: &str) -> Self {
        self.member(b'1', path, target, b"", &[])
    }

    pub(crate) fn end(mut self) -> Vec<u8> {
        self.0.extend([0; 1024]);
        self.0
    }
}

/// A volume with nothing in it but `lost+found`.
pub(crate) fn volume() -> Volume {
    Volume::in_memory(64 << 20).unwrap()
}

/// Imports; what was skipped.
pub(crate) fn skipped(source: Source, volume: &Volume, options: &ImportOptions) -> Result<Vec<Error>, Error> {
    let mut skipped = Vec::new();
    import(source, volume, "/", options, |event| {
        if let Event::Skipped(error) = event {
            skipped.push(error);
        }
        Continue(())
    })?;
    Ok(skipped)
}

/// Every name of the volume, sorted: `d/` of a directory, `f=content` of a file, `l->target`.
pub(crate) fn listing(volume: &Volume) -> Vec<String> {
    let (mut all, mut left) = (Vec::new(), vec![OsString::from("/")]);
    while let Some(dir) = left.pop() {
        for entry in volume.read_dir(&dir).unwrap() {
            let mut path = dir.clone();
            path.push(&entry.name);
            let shown = path.to_str().unwrap()[1..].to_owned();
            match entry.file_type {
                Some(FileType::Directory) if shown == "lost+found" => {}
                Some(FileType::Directory) => {
                    all.push(format!("{shown}/"));
                    path.push("/");
                    left.push(path);
                }
                Some(FileType::Symlink) => {
                    all.push(format!("{shown}->{}", volume.read_link(&path).unwrap().display()));
                }
                _ => {
                    let content = volume.read(&path).unwrap_or_default();
                    all.push(format!("{shown}={}", String::from_utf8_lossy(&content)));
                }
            }
        }
    }
    all.sort();
    all
}
