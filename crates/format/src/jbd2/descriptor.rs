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
    tags: Vec<Tag>,
}

impl<'a> Descriptor<'a> {
    /// Starts an empty descriptor of transaction `sequence` in `block`, which is overwritten.
    pub fn new(layout: &Layout, block: &'a mut [u8], sequence: u32) -> Self {
        Self { layout: *layout, block, sequence, tags: Vec::new() }
    }

    /// Adds the block of the next copy; `copy` is what goes to the log (escaped if `escaped`).
    /// At most [`Layout::tags_per_block`].
    pub fn push(&mut self, block: u64, copy: &[u8], escaped: bool) {
        let mut flags = TagFlags::empty();
        flags.set(TagFlags::ESCAPE, escaped);
        flags.set(TagFlags::SAME_UUID, !self.tags.is_empty());
        let checksum = self.layout.copy_checksum(self.sequence, copy);
        self.tags.push(Tag { block, flags, checksum });
    }

    /// Marks the last tag, makes the checksum.
    pub fn finish(mut self) {
        self.block.fill(0);
        Header::put(self.block, BlockType::Descriptor, self.sequence);
        if let Some(last) = self.tags.last_mut() {
            last.flags |= TagFlags::LAST_TAG;
        }
        let mut at = HEADER_LEN;
        for tag in &self.tags {
            at = tag.put(&self.layout, self.block, at);
        }
        self.layout.seal_tail(self.block);
    }
}
