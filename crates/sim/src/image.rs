//! The content of a volume as a value: cheap to copy, cheap to change.

use foldhash::fast::FixedState;
use std::sync::Arc;

/// Bytes of a page.
pub(crate) const PAGE: usize = 4096;

pub(crate) type Page = [u8; PAGE];

/// Pages by number. Nobody chooses the numbers to make them collide.
pub(crate) type Pages = std::collections::HashMap<u64, Arc<Page>, FixedState>;

/// A base that never changes, and the pages that do. A clone shares both until it is written.
#[derive(Clone)]
pub struct Image {
    size: u64,
    /// May be shorter than `size`: zeros follow.
    base: Arc<[u8]>,
    pages: Pages,
}

impl Image {
    /// Returns `size` zero bytes. Only written bytes take memory.
    pub fn zeroed(size: u64) -> Self {
        Self { size, base: Arc::from([]), pages: Pages::default() }
    }

    /// Returns an image that holds `bytes`.
    pub fn from_bytes(bytes: impl Into<Arc<[u8]>>) -> Self {
        let base = bytes.into();
        Self { size: base.len() as u64, base, pages: Pages::default() }
    }

    /// Returns the size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Fills `buf` from `offset`; beyond the end come zeros.
    pub fn read(&self, offset: u64, buf: &mut [u8]) {
        for (number, within, range) in page_by_page(offset, buf.len()) {
            let part = &mut buf[range];
            match self.pages.get(&number) {
                Some(page) => part.copy_from_slice(&page[within..within + part.len()]),
                None => read_base(&self.base, number * PAGE as u64 + within as u64, part),
            }
        }
    }

    /// Puts `data` at `offset`; what passes the end is lost.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        for (number, within, range) in page_by_page(offset, data.len()) {
            let part = &data[range];
            self.page_mut(number)[within..within + part.len()].copy_from_slice(part);
        }
    }

    /// Makes `len` bytes at `offset` zero.
    pub fn zero(&mut self, offset: u64, len: u64) {
        self.fill(offset, len, 0);
    }

    pub(crate) fn fill(&mut self, offset: u64, len: u64, byte: u8) {
        for (number, within, range) in page_by_page(offset, len as usize) {
            if byte == 0 && !self.pages.contains_key(&number) && self.base_is_zero(number) {
                continue;
            }
            self.page_mut(number)[within..within + range.len()].fill(byte);
        }
    }

    /// Returns all bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.size as usize];
        self.read(0, &mut bytes);
        bytes
    }

    /// Pages that differ, or may differ, from the base.
    pub(crate) fn pages(&self) -> &Pages {
        &self.pages
    }

    /// Returns the base alone: the image before anything was written.
    pub(crate) fn without_pages(&self) -> Self {
        Self { size: self.size, base: Arc::clone(&self.base), pages: Pages::default() }
    }

    /// Fills `page` with what the base holds at page `number`.
    pub(crate) fn read_below(&self, number: u64, page: &mut Page) {
        read_base(&self.base, number * PAGE as u64, page);
    }

    pub(crate) fn same_base(&self, other: &Self) -> bool {
        self.size == other.size && Arc::ptr_eq(&self.base, &other.base)
    }

    fn base_is_zero(&self, number: u64) -> bool {
        base_part(&self.base, number * PAGE as u64, PAGE).iter().all(|&b| b == 0)
    }

    fn page_mut(&mut self, number: u64) -> &mut Page {
        let page = self.pages.entry(number).or_insert_with(|| {
            let mut page = [0; PAGE];
            read_base(&self.base, number * PAGE as u64, &mut page);
            Arc::new(page)
        });
        Arc::make_mut(page)
    }
}

/// Returns what a base has of a range; the rest is zeros.
fn base_part(base: &[u8], offset: u64, len: usize) -> &[u8] {
    let start = base.len().min(offset as usize);
    let end = base.len().min(start + len);
    &base[start..end]
}

fn read_base(base: &[u8], offset: u64, buf: &mut [u8]) {
    let part = base_part(base, offset, buf.len());
    buf[..part.len()].copy_from_slice(part);
    buf[part.len()..].fill(0);
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Image({} bytes, {} pages changed)", self.size, self.pages.len())
    }
}

/// Splits a range at pages: page number, first byte inside it, and the part of the buffer.
fn page_by_page(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let within = (at % PAGE as u64) as usize;
        let n = (len - done).min(PAGE - within);
        let part = (at / PAGE as u64, within, done..done + n);
        done += n;
        (n > 0).then_some(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clone_keeps_what_it_was() {
        let mut image = Image::from_bytes(vec![1; 10_000]);
        image.write(4_000, &[2; 200]);
        let before = image.clone();
        image.write(4_100, &[3; 5_000]);
        image.zero(0, 10);
        let mut model = vec![1; 10_000];
        model[4_000..4_200].fill(2);
        assert_eq!(before.to_bytes(), model);
        model[4_100..9_100].fill(3);
        model[..10].fill(0);
        assert_eq!(image.to_bytes(), model);
    }

    #[test]
    fn zeros_take_no_memory() {
        let mut image = Image::zeroed(1 << 44);
        image.zero(0, 1 << 30);
        assert_eq!(image.pages().len(), 0);
        image.write((1 << 44) - 4, b"tail");
        let mut buf = [9; 8];
        image.read((1 << 44) - 8, &mut buf);
        assert_eq!(&buf, b"\0\0\0\0tail");
        assert_eq!(image.pages().len(), 1);
    }
}
