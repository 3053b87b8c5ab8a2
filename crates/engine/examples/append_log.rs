//! Appends records to a log, each durable before the next begins:
//! `cargo run -p lanefs --example append_log -- IMAGE RECORD...`.
//!
//! After a crash at any moment each record whose `append` returned is there, and behind it at most
//! a part of the next. The first run makes the image.

use lanefs::mkfs::Options;
use lanefs::{Error, File, FileCursor, Volume};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::{env, io};

/// A log of lines.
pub(crate) struct Log {
    file: File,
}

impl Log {
    pub(crate) fn open(volume: &Volume, path: &str) -> lanefs::Result<Self> {
        let file = volume.open_options().read(true).append(true).create(true).open(path)?;
        // The name of a new file becomes durable with the file.
        file.sync_all()?;
        Ok(Self { file })
    }

    /// Appends a line. It is durable on return. Threads that append at the same time share the
    /// commits of the journal.
    pub(crate) fn append(&self, record: &str) -> io::Result<()> {
        // One write: between two of them another thread could append.
        FileCursor::new(&self.file).write_all(format!("{record}\n").as_bytes())?;
        Ok(self.file.sync_data()?)
    }

    pub(crate) fn records(&self) -> io::Result<Vec<String>> {
        BufReader::new(FileCursor::new(&self.file)).lines().collect()
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = env::args().skip(1);
    let image = args.next().ok_or("usage: append_log IMAGE RECORD...")?;
    let volume = match Path::new(&image).exists() {
        true => Volume::open(&image)?,
        false => Volume::create(&image, 16 << 20, &Options::default())?,
    };
    let log = Log::open(&volume, "/log")?;
    for record in args {
        log.append(&record)?;
    }
    for record in log.records()? {
        println!("{record}");
    }
    drop(log);
    volume.close().map_err(|e: Error| e.into())
}
