//! A descriptor block: the tags of the copies that follow it in the log.

use super::{BlockType, HEADER_LEN, Header, Jbd2Error, Layout, Tag, TagFlags};

/// Iterates over the tags of a descriptor block; ends after the last tag, or with an error where
/// the block ends before it. At most as many tags as fit into the block.
#[derive(Debug, Clone)]
pub struct Tags<'a> {
    layout: Layout,
    body: &'a [u8],
    at: usize,
    done: bool,
}

/// Returns the tags of the descriptor `block`. The caller has checked its header and
/// [tail](Layout::verify_tail).
pub fn parse_tags<'a>(layout: &Layout, block: &'a [u8]) -> Tags<'a> {
    let end = block.len().saturating_sub(layout.tail_len());
    Tags { layout: *layout, body: block.get(..end).unwrap_or_default(), at: HEADER_LEN, done: false }
}

impl Iterator for Tags<'_> {
    type Item = Result<Tag, Jbd2Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let Some(tag) = Tag::parse(&self.layout, self.body, self.at) else {
            self.done = true;
            // A block filled to its end needs no mark on its last tag to be understood.
            let started = self.at > HEADER_LEN;
            return (!started).then_some(Err(Jbd2Error::DescriptorUnterminated { len: self.body.len() }));
        };
        self.at += self.layout.tag_len();
        if !tag.flags.contains(TagFlags::SAME_UUID) {
            self.at += 16;
        }
        self.done = tag.flags.contains(TagFlags::LAST_TAG);
        Some(Ok(tag))
    }
}

/// Builds a descriptor block.
#[derive(Debug)]
pub struct Descriptor<'a> {
    layout: Layout,
    block: &'a mut [u8],
    sequence: u32,
    /// Where the next tag goes.
    end: usize,
    /// The last tag, and where it lies.
    last: Option<(Tag, usize)>,
}

impl<'a> Descriptor<'a> {
    /// Starts an empty descriptor of transaction `sequence` in `block`, which is overwritten.
    pub fn new(layout: &Layout, block: &'a mut [u8], sequence: u32) -> Self {
        block.fill(0);
        Header::put(block, BlockType::Descriptor, sequence);
        Self { layout: *layout, block, sequence, end: HEADER_LEN, last: None }
    }

    /// Adds the block of the next copy; `copy` is what goes to the log (escaped if `escaped`).
    /// At most [`Layout::tags_per_block`].
    pub fn push(&mut self, block: u64, copy: &[u8], escaped: bool) {
        let mut flags = TagFlags::empty();
        flags.set(TagFlags::ESCAPE, escaped);
        flags.set(TagFlags::SAME_UUID, self.last.is_some());
        let checksum = self.layout.copy_checksum(self.sequence, copy);
        let (tag, at) = (Tag { block, flags, checksum }, self.end);
        self.end = tag.put(&self.layout, self.block, at);
        self.last = Some((tag, at));
    }

    /// Marks the last tag, makes the checksum.
    pub fn finish(self) {
        if let Some((mut tag, at)) = self.last {
            tag.flags |= TagFlags::LAST_TAG;
            tag.put(&self.layout, self.block, at);
        }
        self.layout.seal_tail(self.block);
    }
}
