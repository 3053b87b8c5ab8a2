//! Opens `overlay:base=URL,top=FILE`.

use super::top::Top;
use super::{CowDevice, refused};
use crate::errno::{EEXIST, EFBIG, ENOENT};
use crate::identity::BaseIdentity;
use crate::url::open_url;
use crate::{BlockDevice, FileDevice, FileOptions, Result};
use std::ffi::OsStr;
use std::path::Path;
use std::sync::{Arc, RwLock};

impl CowDevice {
    /// Opens the overlay of a base, by its name, and a top, by its path. The base is opened for
    /// reading. The top is made if it is missing and the overlay is opened for writing; it is
    /// locked as any volume's file.
    ///
    /// # Errors
    /// The errors of [`open_url`] for the base, of [`FileOptions::open`] for the top, and of
    /// [`CowDevice::new`].
    pub fn open(base: &OsStr, top: &Path, options: &FileOptions) -> Result<Self> {
        let below = open_url(base, &options.clone().read_only(true))?;
        let identity = BaseIdentity::read(&*below)?;
        let base_name = crate::absolute::absolute_name(base).unwrap_or_else(|_| base.to_owned());
        let base_name = base_name.to_string_lossy();
        let file = open_top(top, &below, options)?;
        let top = file.map(|file| Top::open(Arc::new(file), identity, &base_name)).transpose()?;
        let shown = top.as_ref().and_then(|top| top.device.name()).unwrap_or_default();
        let name = Some(format!("overlay:base={base_name},top={shown}"));
        Ok(Self { size: below.size(), base: below, top, name, copying: RwLock::default() })
    }
}

/// Opens the file of a top, or makes it. `None` for a reader if there is none.
fn open_top(path: &Path, base: &Arc<dyn BlockDevice>, options: &FileOptions) -> Result<Option<FileDevice>> {
    let is_empty = || path.metadata().is_ok_and(|meta| meta.is_file() && meta.len() == 0);
    let too_large = || refused(&**base, EFBIG, "is too large for an overlay");
    let size = CowDevice::top_size(base.size()).ok_or_else(too_large)?;
    loop {
        // An empty file is a new one, as mktemp(1) makes it.
        if !is_empty() {
            match options.open(path) {
                Err(e) if e.errno() == ENOENT => {}
                opened => return opened.map(Some),
            }
        }
        if options.read_only {
            return Ok(None);
        }
        match options.clone().keeps_content(true).create(path, size) {
            // Another process has made it meanwhile.
            Err(e) if e.errno() == EEXIST => {}
            made => return made.map(Some),
        }
    }
}
