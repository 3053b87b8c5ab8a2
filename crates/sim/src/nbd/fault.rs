//! What a server does wrong, and when.

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the protocol")]
pub enum NbdKind {
    Read,
    Write,
    Flush,
    Trim,
    WriteZeroes,
    BlockStatus,
}

impl NbdKind {
    pub(super) fn from_number(number: u16) -> Option<Self> {
        Some(match number {
            0 => Self::Read,
            1 => Self::Write,
            3 => Self::Flush,
            4 => Self::Trim,
            6 => Self::WriteZeroes,
            7 => Self::BlockStatus,
            _ => return None,
        })
    }
}

/// What becomes of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NbdFault {
    /// The connection is closed before the request is carried out.
    Close,
    /// The connection is closed after the request was carried out, without an answer.
    CloseUnanswered,
    /// The connection is closed in the middle of the answer.
    CloseMidway,
    /// The server is killed: all connections close, and with this seed it loses a part of what was
    /// not flushed, each sector for itself.
    Kill(u64),
    /// As `Kill`, and new connections are closed from then on.
    KillForGood(u64),
    /// The answer comes after so many milliseconds, and what follows waits for it.
    Late(u64),
    /// An error comes that does not end the answer, and the connection is closed.
    ErrorThenClose,
    /// No answer ever comes. The connection stays.
    Silence,
    /// The answer comes a byte at a time, with a pause between.
    Trickle,
    /// The request fails with this number.
    Errno(u32),
    /// The answer begins with other bytes.
    BadMagic,
    /// The answer is to a request that was not sent.
    OtherCookie,
    /// The answer comes twice.
    Twice,
    /// A simple answer, to whatever.
    Simple,
    /// A chunk of a type that there is not.
    UnknownChunk,
    /// A chunk that says to be very long.
    LongChunk,
    /// Content from behind what was asked for.
    Outside,
    /// The same content in two chunks.
    ContentTwice,
    /// Half of the content, and an end.
    HalfContent,
    /// Each byte of the content in a chunk of its own.
    BytePieces,
    /// Thousands of error chunks, none of which ends the answer.
    EndlessErrors,
    /// An error chunk whose number is 0.
    NoErrno,
    /// A block status of another context.
    OtherContext,
    /// A block status whose first extent, a hole, is no multiple of a block.
    OddStatus,
    /// A block status of 0 bytes.
    EmptyStatus,
    /// Bytes of this seed instead of an answer.
    Nonsense(u64),
}

/// When a fault happens.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rule {
    /// `None` for any.
    pub(super) kind: Option<NbdKind>,
    /// The request of this kind, from 1 on, counted since the rule was made.
    pub(super) nth: u64,
    /// Requests of this kind that have come.
    pub(super) seen: u64,
    /// This one and all that follow.
    pub(super) for_ever: bool,
    pub(super) fault: NbdFault,
}

impl Rule {
    /// Counts a request. Returns what becomes of it.
    pub(super) fn count(&mut self, kind: NbdKind) -> Option<NbdFault> {
        if self.kind.is_some_and(|own| own != kind) {
            return None;
        }
        self.seen += 1;
        (self.seen == self.nth || self.for_ever && self.seen > self.nth).then_some(self.fault)
    }
}
