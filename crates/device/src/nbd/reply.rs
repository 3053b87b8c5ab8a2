//! Replies, from bytes: simple ones, and chunks of structured ones.
//!
//! Nothing of a server is trusted: what a chunk says of itself is compared with the request that it
//! answers, before memory is written or taken. The chunks of a reply are bounded in number.

use super::error::NbdError;
use super::request::{Command, Request};
use super::wire::{take_u32, take_u64};

const SIMPLE: u32 = 0x6744_6698;
const STRUCTURED: u32 = 0x668e_33ef;

const DONE: u16 = 1;

const NONE: u16 = 0;
const OFFSET_DATA: u16 = 1;
const OFFSET_HOLE: u16 = 2;
const BLOCK_STATUS: u16 = 5;
const ERROR: u16 = 0x8001;
const ERROR_OFFSET: u16 = 0x8002;
const IS_ERROR: u16 = 0x8000;

/// The longest text of an error, in bytes.
const LONGEST_TEXT: u32 = 4096;

/// The most extents of a block status that are taken.
pub(crate) const MOST_EXTENTS: u32 = 128 << 10;

/// The most pieces of a read that have come and lie apart. A server may send them in any order, and
/// none sends less than a sector.
const MOST_PIECES: usize = 1024;

/// Bytes of a sector.
const SECTOR: usize = 512;

/// The server is shutting down.
const ESHUTDOWN: u32 = 108;

/// The beginning of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Header {
    Simple { cookie: u64, errno: u32 },
    Chunk { cookie: u64, flags: u16, kind: u16, len: u32 },
}

impl Header {
    /// Bytes of a simple reply, which are the fewest of any.
    pub(crate) const LEAST: usize = 16;
    /// Bytes of the header of a chunk.
    pub(crate) const OF_CHUNK: usize = 20;

    /// Returns the length of the header that begins so.
    ///
    /// # Errors
    /// Bytes that begin none.
    pub(crate) fn len(magic: [u8; 4]) -> Result<usize, NbdError> {
        match u32::from_be_bytes(magic) {
            SIMPLE => Ok(Self::LEAST),
            STRUCTURED => Ok(Self::OF_CHUNK),
            magic => Err(NbdError::ReplyMagic { magic }),
        }
    }

    /// Reads a header, of [`len`](Self::len) bytes.
    ///
    /// # Errors
    /// Bytes that are none.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, NbdError> {
        let mut rest = bytes;
        let mut read = || {
            let magic = take_u32(&mut rest)?;
            let word = take_u32(&mut rest)?;
            let cookie = take_u64(&mut rest)?;
            match magic {
                SIMPLE => Some(Self::Simple { cookie, errno: word }),
                STRUCTURED => {
                    let (flags, kind) = ((word >> 16) as u16, word as u16);
                    Some(Self::Chunk { cookie, flags, kind, len: take_u32(&mut rest)? })
                }
                _ => None,
            }
        };
        let magic = bytes.first_chunk().map_or(0, |magic| u32::from_be_bytes(*magic));
        read().ok_or(NbdError::ReplyMagic { magic })
    }

    pub(crate) fn cookie(&self) -> u64 {
        match *self {
            Self::Simple { cookie, .. } | Self::Chunk { cookie, .. } => cookie,
        }
    }
}

/// What follows a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Body {
    /// Bytes that say what the rest is.
    pub(crate) prefix: usize,
    /// All bytes, those of the prefix among them.
    pub(crate) len: usize,
    /// The last of its reply.
    pub(crate) done: bool,
}

/// What a reply, or a chunk of one, brings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Content {
    Nothing,
    /// Bytes follow for this place of the request.
    Data {
        at: usize,
        len: usize,
    },
    /// Zeros in this place of the request.
    Hole {
        at: usize,
        len: usize,
    },
    /// A list of extents follows, of so many bytes.
    Extents {
        len: usize,
    },
    /// The request failed, and a text of so many bytes follows.
    Failed {
        errno: u32,
        text: usize,
    },
    /// The request failed once more: the first reason is that of the request.
    FailedAgain,
}

/// A request that was sent, and what has come of its reply.
#[derive(Debug)]
pub(crate) struct Expected {
    pub(crate) request: Request,
    /// Whether structured replies were agreed on.
    pub(crate) structured: bool,
    /// The context of block status.
    pub(crate) allocation: Option<u32>,
    /// What has come of a read, in order and apart from each other: first byte, length.
    come: Vec<(usize, usize)>,
    /// A block status has come.
    has_status: bool,
    /// An error has come.
    has_failed: bool,
    /// The chunks that have come.
    chunks: usize,
}

impl Expected {
    pub(crate) fn new(request: Request, structured: bool, allocation: Option<u32>) -> Self {
        let (come, has_status, has_failed) = (Vec::new(), false, false);
        Self { request, structured, allocation, come, has_status, has_failed, chunks: 0 }
    }

    /// Returns what follows this header.
    ///
    /// # Errors
    /// A reply that is none for this request.
    pub(crate) fn body(&self, header: &Header) -> Result<Body, NbdError> {
        let command = self.request.command;
        match *header {
            Header::Simple { cookie, errno } => {
                let is_read = command == Command::Read;
                if self.structured && is_read {
                    return Err(NbdError::SimpleRead { cookie });
                }
                let len = if is_read && errno == 0 { self.request.len as usize } else { 0 };
                Ok(Body { prefix: 0, len, done: true })
            }
            Header::Chunk { cookie, .. } if !self.structured => Err(NbdError::NotAgreed { cookie }),
            Header::Chunk { flags, kind, len, .. } => {
                let (prefix, least, most) = match (kind, command) {
                    (NONE, _) => (0, 0, 0),
                    (OFFSET_DATA, Command::Read) => (8, 9, self.request.len.saturating_add(8)),
                    (OFFSET_HOLE, Command::Read) => (12, 12, 12),
                    (BLOCK_STATUS, Command::BlockStatus) => (4, 12, 4 + 8 * MOST_EXTENTS),
                    (ERROR, _) => (6, 6, 6 + LONGEST_TEXT),
                    // The offset behind the text is of no use.
                    (ERROR_OFFSET, _) => (6, 14, 14 + LONGEST_TEXT),
                    (kind, _) if kind & IS_ERROR != 0 => (6, 6, 6 + 2 * LONGEST_TEXT),
                    _ => return Err(NbdError::ChunkKind { kind, command: command.name() }),
                };
                let is_whole = kind != BLOCK_STATUS || (len % 8 == 4);
                if len < least || len > most || !is_whole {
                    return Err(NbdError::ChunkLength { kind, len, least, most });
                }
                let done = flags & DONE != 0;
                if kind == NONE && !done {
                    return Err(NbdError::ChunkKind { kind, command: command.name() });
                }
                Ok(Body { prefix, len: len as usize, done })
            }
        }
    }

    /// Reads the prefix of a body, and notes what comes.
    ///
    /// # Errors
    /// Content that was not asked for, or came already.
    pub(crate) fn content(
        &mut self,
        header: &Header,
        body: Body,
        prefix: &[u8],
    ) -> Result<Content, NbdError> {
        let kind = match *header {
            Header::Simple { errno: ESHUTDOWN, .. } => return Err(NbdError::ShuttingDown),
            Header::Simple { errno: 0, .. } if body.len > 0 => {
                self.come = vec![(0, body.len)];
                return Ok(Content::Data { at: 0, len: body.len });
            }
            Header::Simple { errno: 0, .. } => return Ok(Content::Nothing),
            Header::Simple { errno, .. } => {
                self.has_failed = true;
                return Ok(Content::Failed { errno, text: 0 });
            }
            Header::Chunk { kind, .. } => kind,
        };
        self.count_chunk()?;
        let short =
            NbdError::ChunkLength { kind, len: prefix.len() as u32, least: body.prefix as u32, most: 0 };
        let mut rest = prefix;
        let content = match kind {
            NONE => Some(Content::Nothing),
            OFFSET_DATA => match take_u64(&mut rest) {
                Some(offset) => {
                    let len = body.len.saturating_sub(8);
                    Some(Content::Data { at: self.place(offset, len)?, len })
                }
                None => None,
            },
            OFFSET_HOLE => match (take_u64(&mut rest), take_u32(&mut rest)) {
                (Some(offset), Some(len)) => {
                    let len = len as usize;
                    Some(Content::Hole { at: self.place(offset, len)?, len })
                }
                _ => None,
            },
            BLOCK_STATUS => match take_u32(&mut rest) {
                Some(got) => {
                    let agreed = self.allocation.unwrap_or(u32::MAX);
                    if got != agreed {
                        return Err(NbdError::OtherContext { got, agreed });
                    }
                    if std::mem::replace(&mut self.has_status, true) {
                        let (offset, len) = (self.request.offset, self.request.len.into());
                        return Err(NbdError::ChunkTwice { offset, len });
                    }
                    Some(Content::Extents { len: body.len.saturating_sub(4) })
                }
                None => None,
            },
            _ => self.failure(kind, body, &mut rest)?,
        };
        content.ok_or(short)
    }

    /// Counts a chunk. Content comes once, and then is bounded by the request; errors may come any
    /// number of times. Both take memory and time by the chunk.
    fn count_chunk(&mut self) -> Result<(), NbdError> {
        let Request { command, len, .. } = self.request;
        let sectors = if command == Command::Read { len as usize / SECTOR } else { 0 };
        let most = MOST_PIECES + sectors;
        self.chunks += 1;
        match self.chunks > most {
            true => Err(NbdError::ChunksEndless { command: command.name(), len, most }),
            false => Ok(()),
        }
    }

    fn failure(&mut self, kind: u16, body: Body, rest: &mut &[u8]) -> Result<Option<Content>, NbdError> {
        let (Some(errno), Some(len)) = (take_u32(rest), rest.first_chunk()) else { return Ok(None) };
        let text = usize::from(u16::from_be_bytes(*len));
        let room = body.len.saturating_sub(body.prefix);
        if text > room {
            let (len, least) = (body.len as u32, (text + body.prefix) as u32);
            return Err(NbdError::ChunkLength { kind, len, least, most: LONGEST_TEXT });
        }
        let is_first = !std::mem::replace(&mut self.has_failed, true);
        match errno {
            0 => Err(NbdError::NoError),
            ESHUTDOWN => Err(NbdError::ShuttingDown),
            errno if is_first => Ok(Some(Content::Failed { errno, text })),
            _ => Ok(Some(Content::FailedAgain)),
        }
    }

    /// Returns the place of content in the request, and notes that it has come.
    fn place(&mut self, offset: u64, len: usize) -> Result<usize, NbdError> {
        let (asked, asked_len) = (self.request.offset, u64::from(self.request.len));
        let outside = NbdError::ChunkOutside { offset, len: len as u64, asked, asked_len };
        let Some(at) = offset.checked_sub(asked).filter(|at| *at < asked_len) else { return Err(outside) };
        if len == 0 || len as u64 > asked_len - at {
            return Err(outside);
        }
        let at = at as usize;
        let next = self.come.partition_point(|(first, _)| *first < at);
        let before = next.checked_sub(1).and_then(|before| self.come.get(before));
        let meets_before = before.is_some_and(|(first, len)| first + len > at);
        let meets_next = self.come.get(next).is_some_and(|(first, _)| *first < at + len);
        if meets_before || meets_next {
            return Err(NbdError::ChunkTwice { offset, len: len as u64 });
        }
        self.come.insert(next, (at, len));
        self.join(next);
        if self.come.len() > MOST_PIECES {
            return Err(NbdError::ChunkPieces { offset: asked, most: MOST_PIECES });
        }
        Ok(at)
    }

    /// Joins a piece with its neighbours, so that a reply in order has one.
    fn join(&mut self, mut at: usize) {
        if at > 0 && self.come[at - 1].0 + self.come[at - 1].1 == self.come[at].0 {
            self.come[at - 1].1 += self.come[at].1;
            self.come.remove(at);
            at -= 1;
        }
        if at + 1 < self.come.len() && self.come[at].0 + self.come[at].1 == self.come[at + 1].0 {
            self.come[at].1 += self.come[at + 1].1;
            self.come.remove(at + 1);
        }
    }

    /// Checks that the reply that ends here was whole.
    ///
    /// # Errors
    /// A read without all of its content, a block status without extents.
    pub(crate) fn end(&self) -> Result<(), NbdError> {
        let Request { command, offset, len, .. } = self.request;
        if self.has_failed {
            return Ok(());
        }
        let got: usize = self.come.iter().map(|(_, len)| len).sum();
        match command {
            Command::Read if got as u64 != u64::from(len) => {
                Err(NbdError::ChunkMissing { offset, asked: len.into(), got: got as u64 })
            }
            Command::BlockStatus if !self.has_status => Err(NbdError::EmptyStatus { offset }),
            _ => Ok(()),
        }
    }
}

/// A run of bytes that a server says something of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) len: u64,
    /// It reads as zeros.
    pub(crate) is_zero: bool,
}

/// Reads the extents of a block status at `offset`.
///
/// # Errors
/// One without bytes.
pub(crate) fn extents(offset: u64, bytes: &[u8]) -> Result<Vec<Extent>, NbdError> {
    const ZERO: u32 = 2;
    let mut rest = bytes;
    let mut list = Vec::with_capacity(bytes.len() / 8);
    while let (Some(len), Some(flags)) = (take_u32(&mut rest), take_u32(&mut rest)) {
        if len == 0 {
            return Err(NbdError::EmptyStatus { offset });
        }
        list.push(Extent { len: len.into(), is_zero: flags & ZERO != 0 });
    }
    Ok(list)
}

#[cfg(test)]
mod tests;
