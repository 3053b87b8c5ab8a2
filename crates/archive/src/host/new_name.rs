//! The name of a file that is being made.
//!
//! A file whose name is free gets it at once. Where something has the name, the new file is made
//! beside it and takes its place when it is whole.
//!
//! Invariants:
//! - Only a file that was made here is removed, or renamed.
//! - What had the name stays as it was until the new file is whole. It was checked
//!   ([`guard`](super::guard)) before, and nothing else is replaced.
//! - A name whose older file has vanished meanwhile is free, and taken only while it is.
//!
//! Hazard: a process that is killed leaves a new file beside an older one, as `.lanefs-PID-NUMBER`.

use super::{Folder, Identity, Object, Result};
use crate::temporary_name::under_temporary_name;
use rustix::io::Errno;
use std::ffi::{CStr, CString};

/// The name of a file that is being made. A drop before [`keep`](Self::keep) removes the file.
#[derive(Debug)]
pub(crate) struct NewName<'a> {
    folder: &'a Folder,
    /// The name that the file has meanwhile. `None` once it is kept.
    made: Option<CString>,
    identity: Identity,
    /// The name that it gets, and the inode that has that name.
    replaces: Option<(&'a CStr, Identity)>,
}

impl<'a> NewName<'a> {
    /// Makes an empty file, which is to have the name `name`.
    ///
    /// # Errors
    /// [`Error::Protected`](super::Error::Protected): what has the name may not be overwritten.
    /// `EISDIR`: it is a directory. The errors of openat(2).
    pub(crate) fn create(folder: &'a Folder, name: &'a CStr, mode: u32) -> Result<(Object, Self)> {
        let (object, made, replaces) = match folder.create_new(name, mode) {
            Err(Errno::EXIST) => {
                let older = folder.replaceable(name)?.identity()?;
                let (object, beside) = create_temporary(folder, mode)?;
                (object, beside, Some((name, older)))
            }
            object => (object?, name.to_owned(), None),
        };
        let identity = object.identity()?;
        Ok((object, Self { folder, made: Some(made), identity, replaces }))
    }

    /// Gives the file its name for good: it is whole.
    ///
    /// # Errors
    /// [`Error::Replaced`](super::Error::Replaced): another process has replaced the new file, or
    /// the older one. `EEXIST`: it has done so after the older one had vanished. The errors of
    /// renameat2(2).
    pub(crate) fn keep(mut self) -> Result {
        if let (Some(made), Some((name, older))) = (&self.made, self.replaces) {
            self.folder.find(made)?.must_be(self.identity)?;
            match self.folder.find(name) {
                Err(e) if e.is(Errno::NOENT) => self.folder.rename_to_free(made, name)?,
                found => {
                    found?.must_be(older)?;
                    self.folder.rename(made, self.folder, name, false)?;
                }
            }
        }
        self.made = None;
        Ok(())
    }
}

impl Drop for NewName<'_> {
    fn drop(&mut self) {
        let Some(made) = &self.made else { return };
        // The caller has an error to report already: why the file is not whole.
        if self.folder.find(made).is_ok_and(|found| found.must_be(self.identity).is_ok()) {
            let _ = self.folder.remove_file(made);
        }
    }
}

/// Makes a file under a temporary name. Returns the name too.
fn create_temporary(folder: &Folder, mode: u32) -> Result<(Object, CString)> {
    let made = under_temporary_name(|name| {
        let name = CString::new(name)?;
        Ok((folder.create_new(&name, mode)?, name))
    });
    Ok(made?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Overwrite;
    use crate::host::Error;
    use std::fs;

    #[test]
    fn a_file_takes_its_place_when_it_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::open(dir.path(), Overwrite::default()).unwrap();
        let make = |content: &[u8], keep: bool| {
            let (object, name) = NewName::create(&folder, c"file", 0o600).unwrap();
            object.write_at(content, 0).unwrap();
            if keep { name.keep() } else { Ok(()) }
        };
        let read = || fs::read(dir.path().join("file")).ok();
        let names = || fs::read_dir(dir.path()).unwrap().count();
        make(b"first", false).unwrap();
        assert_eq!((read(), names()), (None, 0));
        make(b"second", true).unwrap();
        assert_eq!(read().unwrap(), b"second");
        make(b"third", false).unwrap();
        assert_eq!((read().unwrap(), names()), (b"second".to_vec(), 1));
        make(b"fourth", true).unwrap();
        assert_eq!((read().unwrap(), names()), (b"fourth".to_vec(), 1));
    }

    #[test]
    fn what_another_process_has_put_there_stays() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::open(dir.path(), Overwrite::default()).unwrap();
        let path = dir.path().join("file");
        let replace = || {
            fs::write(dir.path().join("other"), "other").unwrap();
            fs::rename(dir.path().join("other"), &path).unwrap();
        };
        let (_object, name) = NewName::create(&folder, c"file", 0o600).unwrap();
        replace();
        drop(name);
        assert_eq!(fs::read(&path).unwrap(), b"other");
        let (_object, name) = NewName::create(&folder, c"file", 0o600).unwrap();
        replace();
        assert!(matches!(name.keep(), Err(Error::Replaced)));
        assert_eq!(fs::read(&path).unwrap(), b"other");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_name_that_another_process_has_removed_is_free() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::open(dir.path(), Overwrite::default()).unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "older").unwrap();
        let (object, name) = NewName::create(&folder, c"file", 0o600).unwrap();
        object.write_at(b"new", 0).unwrap();
        fs::remove_file(&path).unwrap();
        name.keep().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        // It is not free if something else takes it.
        fs::write(dir.path().join("other"), "other").unwrap();
        assert!(folder.rename_to_free(c"other", c"file").is_err_and(|e| e.is(Errno::EXIST)));
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }

    #[test]
    fn a_directory_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::open(dir.path(), Overwrite::default()).unwrap();
        fs::create_dir(dir.path().join("name")).unwrap();
        assert!(NewName::create(&folder, c"name", 0o600).is_err_and(|e| e.is(Errno::ISDIR)));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
