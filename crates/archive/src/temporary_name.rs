//! Names of what is being made: nothing else has them.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// Has `make` make something under a name that nothing else has, `.lanefs-PID-NUMBER`. `make` is
/// called again with the next name as long as its error is that the name exists.
pub(crate) fn under_temporary_name<T>(make: impl Fn(String) -> io::Result<T>) -> io::Result<T> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    loop {
        let name = format!(".lanefs-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        match make(name) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made,
        }
    }
}
