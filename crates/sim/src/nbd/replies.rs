//! Answers as bytes, right ones and wrong ones.

use super::fault::{NbdFault, NbdKind};
use super::negotiate::CONTEXT;
use crate::seed::rng;
use rand::RngCore;

/// Pages that are zeros are sent as holes.
const PAGE: usize = 4096;

/// A request as it came.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    pub(super) kind: NbdKind,
    pub(super) cookie: u64,
    pub(super) offset: u64,
    pub(super) len: u32,
}

/// Returns a simple answer without content.
pub(super) fn simple(cookie: u64, errno: u32) -> Vec<u8> {
    [&0x6744_6698_u32.to_be_bytes()[..], &errno.to_be_bytes(), &cookie.to_be_bytes()].concat()
}

fn chunk(cookie: u64, done: bool, kind: u16, payload: &[u8]) -> Vec<u8> {
    chunk_of(cookie, done, kind, payload.len() as u32, payload)
}

fn chunk_of(cookie: u64, done: bool, kind: u16, len: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = 0x668e_33ef_u32.to_be_bytes().to_vec();
    bytes.extend_from_slice(&u16::from(done).to_be_bytes());
    bytes.extend_from_slice(&kind.to_be_bytes());
    bytes.extend_from_slice(&cookie.to_be_bytes());
    bytes.extend_from_slice(&len.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

fn data(asked: Asked, at: u64, content: &[u8], done: bool) -> Vec<u8> {
    chunk(asked.cookie, done, 1, &[&at.to_be_bytes()[..], content].concat())
}

/// Returns the right answer, with `content` to a read.
pub(super) fn right(asked: Asked, structured: bool, content: &[u8]) -> Vec<u8> {
    match (asked.kind, structured) {
        (NbdKind::Read, false) => [simple(asked.cookie, 0), content.to_vec()].concat(),
        (NbdKind::Read, true) => {
            let mut bytes = Vec::new();
            let mut at = asked.offset;
            for page in content.chunks(PAGE) {
                if page.iter().all(|byte| *byte == 0) {
                    let hole = [&at.to_be_bytes()[..], &(page.len() as u32).to_be_bytes()].concat();
                    bytes.extend(chunk(asked.cookie, false, 2, &hole));
                } else {
                    bytes.extend(data(asked, at, page, false));
                }
                at += page.len() as u64;
            }
            bytes.extend(chunk(asked.cookie, true, 0, &[]));
            bytes
        }
        (NbdKind::BlockStatus, _) => {
            let mut status = CONTEXT.to_be_bytes().to_vec();
            let mut runs: Vec<(u32, bool)> = Vec::new();
            for page in content.chunks(PAGE) {
                let (len, is_zero) = (page.len() as u32, page.iter().all(|byte| *byte == 0));
                match runs.last_mut() {
                    Some((sum, last)) if *last == is_zero => *sum += len,
                    _ => runs.push((len, is_zero)),
                }
            }
            for (len, is_zero) in runs {
                status.extend_from_slice(&len.to_be_bytes());
                status.extend_from_slice(&(if is_zero { 3u32 } else { 0 }).to_be_bytes());
            }
            chunk(asked.cookie, true, 5, &status)
        }
        (_, false) => simple(asked.cookie, 0),
        (_, true) => chunk(asked.cookie, true, 0, &[]),
    }
}

/// Returns the answer of a request that failed.
pub(super) fn failed(asked: Asked, structured: bool, errno: u32) -> Vec<u8> {
    match structured {
        false => simple(asked.cookie, errno),
        true => {
            let text = b"on purpose";
            let payload = [&errno.to_be_bytes()[..], &(text.len() as u16).to_be_bytes(), text].concat();
            chunk(asked.cookie, true, 0x8001, &payload)
        }
    }
}

/// Returns the answer with a fault in it.
pub(super) fn wrong(fault: NbdFault, asked: Asked, structured: bool, content: &[u8]) -> Vec<u8> {
    let Asked { cookie, offset, len, .. } = asked;
    let right = right(asked, structured, content);
    match fault {
        NbdFault::Errno(errno) => failed(asked, structured, errno),
        NbdFault::ErrorThenClose => chunk(cookie, false, 0x8001, &[0, 0, 0, 5, 0, 0]),
        NbdFault::BadMagic => [b"HTTP", &right[4..]].concat(),
        NbdFault::OtherCookie => {
            let mut bytes = right;
            bytes[8] ^= 0x40;
            bytes
        }
        NbdFault::Twice => [right.clone(), right].concat(),
        NbdFault::Simple => simple(cookie, 0),
        NbdFault::UnknownChunk => chunk(cookie, true, 77, &[1, 2, 3]),
        NbdFault::LongChunk => chunk_of(cookie, true, 1, u32::MAX, &offset.to_be_bytes()),
        NbdFault::Outside => data(asked, offset + u64::from(len), &[7; 16], true),
        NbdFault::ContentTwice => {
            [data(asked, offset, content, false), data(asked, offset, content, true)].concat()
        }
        NbdFault::BytePieces => {
            let pieces = (offset..).zip(content.chunks(1));
            pieces.flat_map(|(at, byte)| data(asked, at, byte, at + 1 == offset + u64::from(len))).collect()
        }
        NbdFault::EndlessErrors => chunk(cookie, false, 0x8001, &[0, 0, 0, 5, 0, 0]).repeat(5000),
        NbdFault::HalfContent => data(asked, offset, &content[..content.len() / 2], true),
        NbdFault::NoErrno => failed(asked, true, 0),
        NbdFault::OtherContext => chunk(cookie, true, 5, &[0, 0, 0, 1, 0, 0, 16, 0, 0, 0, 0, 0]),
        NbdFault::OddStatus => {
            let extents = [5000, 3, len - 5000, 0].map(u32::to_be_bytes).concat();
            chunk(cookie, true, 5, &[&CONTEXT.to_be_bytes()[..], &extents].concat())
        }
        NbdFault::EmptyStatus => chunk(cookie, true, 5, &[&CONTEXT.to_be_bytes()[..], &[0; 8]].concat()),
        NbdFault::Nonsense(seed) => {
            let mut bytes = vec![0; 4096];
            rng(&[seed]).fill_bytes(&mut bytes);
            // Half of them begin as an answer does.
            if seed % 2 == 0 {
                bytes[..8].copy_from_slice(&right[..8]);
                bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
            }
            bytes
        }
        _ => right,
    }
}
