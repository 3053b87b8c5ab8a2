//! The file of an import that data is for. It loses its name again if its data does not arrive
//! whole.

use super::gather::Gather;
use super::pass::Sink;
use crate::Cause;
use crate::excerpt::Excerpt;
use crate::member::{Kind, Member};
use crate::path::split;
use crate::pipe::PIECE;
use lanefs::device::os_name::OsStrExt;
use lanefs::{Dir, File, Placement};
use std::ffi::OsStr;

/// The file that data is for.
pub(super) struct Current {
    pub(super) file: File,
    pub(super) member: Member,
    pub(super) gather: Gather,
    /// End of the written data.
    pub(super) end: u64,
    /// It has no data, whatever the source has.
    pub(super) empty: bool,
    /// The directory of its name, until its data is whole. `None` in the first pass of a build,
    /// which has no data.
    pub(super) partial: Option<Dir>,
}

impl Drop for Current {
    fn drop(&mut self) {
        let Some(dir) = self.partial.take() else { return };
        let name = OsStr::from_bytes(split(&self.member.path).1);
        // An error is on its way already, that of the data.
        if dir.lookup(name).is_ok_and(|node| node.ino() == self.file.metadata().ino()) {
            let _ = dir.remove_file(name);
        }
    }
}

impl Current {
    /// Writes data of the file: past the volume into a sink, if there is one and it can be. With a
    /// sink, the blocks that the file gets do not depend on where `content` is, in a file or in
    /// memory.
    pub(super) fn write(
        &mut self,
        offset: u64,
        content: &Excerpt,
        sink: Option<&dyn Sink>,
    ) -> Result<(), Cause> {
        let end = offset + content.len();
        match sink.filter(|_| self.is_whole_blocks(offset, end)) {
            Some(sink) => {
                let mut put = |places: &[Placement]| {
                    places.iter().try_for_each(|Placement { offset: to, bytes, tail, .. }| {
                        let part = content.part(bytes.start - offset..bytes.end - offset);
                        Ok(sink.put(part, *tail, *to)?)
                    })
                };
                Ok(self.file.write_placed(offset..end, &mut put)?)
            }
            None if sink.is_none() && content.bytes().is_some() && Gather::is_for(self.size()) => {
                self.gather.push(&self.file, offset, content.clone())
            }
            None => {
                content.for_each_piece(PIECE, |from, bytes| Ok(self.file.write_at(bytes, offset + from)?))
            }
        }
    }

    /// Writes what was gathered of the file.
    pub(super) fn write_gathered(&mut self) -> Result<(), Cause> {
        self.gather.write(&self.file)
    }

    /// Returns the size that the file will have.
    fn size(&self) -> u64 {
        match &self.member.kind {
            Kind::File { size, .. } => *size,
            _ => 0,
        }
    }

    /// Returns whether a range of the file is of whole blocks, or ends with the file.
    fn is_whole_blocks(&self, offset: u64, end: u64) -> bool {
        let size = self.size();
        let block_size = u64::from(self.file.metadata().block_size());
        offset.is_multiple_of(block_size) && (end.is_multiple_of(block_size) || end == size)
    }
}
