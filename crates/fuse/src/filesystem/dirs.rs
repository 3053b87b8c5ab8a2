//! Listing directories, by positions that outlive changes.

use super::Filesystem;
use crate::attr::dirent_type;
use crate::buffers::Outbox;
use crate::fault::Answer;
use crate::request::Listing;
use crate::wire::{Dirent, EntryOut};
use lanefs::FileType;
use std::mem::size_of;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;

/// An entry that was read and not yet told.
struct Item {
    dirent: Dirent,
    /// 0 for the dots, of which the kernel wants no more.
    ino: u32,
    name: Vec<u8>,
}

impl Filesystem {
    pub(super) fn readdir(&self, id: u64, part: Listing, out: &mut Outbox) -> Answer {
        let node = self.node(id)?;
        let mut told = Ok(());
        node.read_dir_from(part.position, |e| {
            let dirent = dirent(e.ino, e.cookie, e.name.len(), e.file_type);
            if out.len() + padded(size_of::<Dirent>() + e.name.len()) > part.size {
                return ControlFlow::Break(());
            }
            told = put(out, &dirent, e.name.as_bytes());
            if told.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        told?;
        self.accessed(&node, self.dir_atime, part.flags);
        Ok(())
    }

    pub(super) fn readdirplus(&self, id: u64, part: Listing, out: &mut Outbox) -> Answer {
        let node = self.node(id)?;
        let (mut items, mut room) = (Vec::new(), part.size);
        // No inode can be asked for while the directory is locked; the kernel keeps it from
        // changing meanwhile.
        node.read_dir_from(part.position, |e| {
            let len = padded(size_of::<EntryOut>() + size_of::<Dirent>() + e.name.len());
            let Some(left) = room.checked_sub(len) else { return ControlFlow::Break(()) };
            room = left;
            let dots = e.name == "." || e.name == "..";
            items.push(Item {
                dirent: dirent(e.ino, e.cookie, e.name.len(), e.file_type),
                ino: if dots { 0 } else { e.ino },
                name: e.name.as_bytes().to_vec(),
            });
            ControlFlow::Continue(())
        })?;
        for item in items {
            // An inode that cannot be read is listed by its name. A program that opens it gets the
            // error.
            match if item.ino == 0 { None } else { self.volume.node_at(item.ino).ok() } {
                Some(child) => {
                    out.put(&self.entry(&child))?;
                    self.nodes.remember(child);
                }
                None => out.put(&EntryOut::default())?,
            }
            put(out, &item.dirent, &item.name)?;
        }
        self.accessed(&node, self.dir_atime, part.flags);
        Ok(())
    }

    pub(super) fn fsyncdir(&self, id: u64) -> Answer {
        Ok(self.node(id)?.sync_all()?)
    }
}

fn dirent(ino: u32, cookie: u64, len: usize, file_type: Option<FileType>) -> Dirent {
    Dirent { ino: ino.into(), off: cookie, namelen: len as u32, kind: dirent_type(file_type) }
}

fn padded(len: usize) -> usize {
    len.next_multiple_of(8)
}

fn put(out: &mut Outbox, dirent: &Dirent, name: &[u8]) -> Answer {
    out.put(dirent)?;
    out.put_bytes(name)?;
    out.put_bytes(&[0; 8][..padded(name.len()) - name.len()])
}
