//! Files of one kind or another, behind one face, and the [`Contender`]s that set them up on one
//! backing file in turn.

mod backing;
mod kernel;
mod lanefs;
mod loop_mount;
mod raw;
mod tool;

pub use backing::{Backing, format};
pub use kernel::{ext4, xfs};
pub use lanefs::{lanefs, lanefs_default, lanefs_over_loop, mapped, simulated};
pub use loop_mount::{LoopDevice, LoopMount, LoopOptions};
pub use raw::{open_direct, open_raw, raw, raw_over_loop};
pub use tool::{missing_tools, run_tool, tool_version};

use crate::{Outcome, stop};
use ::lanefs::Volume;
use lanefs_device::AlignedBuf;
use std::fmt;
use std::io;

/// A place that has files, by number.
pub trait Store: Sync {
    /// Opens file `number`, and makes it if there is none; `size` is what it will hold at most.
    ///
    /// # Errors
    /// The errors of opening.
    fn file(&self, number: usize, size: u64, direct: bool) -> Outcome<Box<dyn Handle>>;

    /// Returns the volume, if this store is a volume of lanefs.
    fn volume(&self) -> Option<&Volume> {
        None
    }

    /// Unmounts or closes.
    ///
    /// # Errors
    /// Data that cannot be made durable.
    fn finish(self: Box<Self>) -> Outcome<()>;
}

/// An open file. Errors are those of the system calls of the same names.
#[allow(missing_docs, clippy::missing_errors_doc, reason = "the names are those of the system")]
pub trait Handle: Send + Sync {
    fn write(&self, at: u64, data: &[u8]) -> io::Result<()>;
    fn read(&self, at: u64, buf: &mut [u8]) -> io::Result<()>;
    fn set_len(&self, len: u64) -> io::Result<()>;
    fn sync(&self) -> io::Result<()>;
    fn sync_data(&self) -> io::Result<()>;
    /// Returns its i_version, as a read by an observer; `None` where it cannot be read.
    fn look(&self) -> Option<u64> {
        None
    }
}

/// Opens `count` files and writes each full of something, `size` bytes. If they are not direct,
/// reads them into the page cache, as far as that has room.
///
/// # Errors
/// The errors of opening and writing.
pub fn filled(store: &dyn Store, count: usize, size: u64, direct: bool) -> Outcome<Vec<Box<dyn Handle>>> {
    let mut page = AlignedBuf::zeroed(1 << 20);
    page.fill(0x5a);
    (0..count)
        .map(|number| {
            let file = store.file(number, size, direct)?;
            let pieces = || (0..size).step_by(1 << 20).map(|at| (at, (size - at).min(1 << 20) as usize));
            for (at, n) in pieces() {
                stop::check()?;
                file.write(at, &page[..n])?;
            }
            file.sync()?;
            // A page cache may have given back what lies behind the writer of a stream.
            for (at, n) in pieces().filter(|_| !direct) {
                stop::check()?;
                file.read(at, &mut page[..n])?;
            }
            Ok(file)
        })
        .collect()
}

type StoreSetUp = Box<dyn Fn(&Backing) -> Outcome<Box<dyn Store>>>;

/// A contender of a comparison: a name, and how to set it up on a backing file.
pub struct Contender {
    /// In tables.
    pub name: &'static str,
    set_up: StoreSetUp,
}

impl Contender {
    /// Returns the contender `name`, which `set_up` sets up on a backing file.
    pub fn new(name: &'static str, set_up: impl Fn(&Backing) -> Outcome<Box<dyn Store>> + 'static) -> Self {
        Self { name, set_up: Box::new(set_up) }
    }

    /// Sets up the store in place of the last content of the file.
    ///
    /// # Errors
    /// The errors of making and opening a volume.
    pub fn set_up(&self, backing: &Backing) -> Outcome<Box<dyn Store>> {
        (self.set_up)(backing)
    }
}

impl fmt::Debug for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Contender({})", self.name)
    }
}

/// Returns the name of file `number`, in the root.
pub fn name(number: usize) -> String {
    format!("f{number}")
}
