//! What goes wrong between an NBD client and its server: one variant for each rule that is broken.

use crate::errno::{EACCES, EBUSY, EINVAL, EIO, ENOENT, ENOMEM, ENOSPC, ENXIO, EOPNOTSUPP, EPERM, EROFS};
use std::fmt;

/// ENOTSUP of the protocol, which is Linux's number on each system.
const NOT_SUPPORTED: u32 = 95;

/// A failure of an NBD connection, or of a request on it.
///
/// A [loss](Self::is_loss) ends the connection, and the client makes a new one. Everything else is
/// final: the server breaks the protocol, or refuses.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the fields are the numbers of the message")]
pub enum NbdError {
    /// No connection to the address.
    Connect { why: String },
    /// The server has closed the connection.
    Closed,
    /// The system failed on the connection.
    Socket { why: String },
    /// The server did not answer in time.
    Timeout { what: &'static str, seconds: u64 },
    /// The server has not greeted in time: it, or the system in its place, has taken the connection
    /// and said nothing on it, or the queue of its socket was full.
    NotGreeted { seconds: u64 },
    /// The `number`th of the connections to one export is lost before it is agreed on.
    Further { number: usize, wanted: usize, why: Box<NbdError> },
    /// The server is shutting down.
    ShuttingDown,
    /// No connection could be made again in time.
    GaveUp { seconds: u64, last: Box<NbdError> },

    /// The first bytes are not those of an NBD server.
    NotNbd { magic: u64 },
    /// The server speaks a negotiation without options, which has no exports by name.
    OldStyle { flags: u16 },
    /// An answer to an option does not begin as one.
    OptionMagic { magic: u64 },
    /// The server answers an option that was not sent.
    OptionOther { sent: u32, got: u32 },
    /// An answer to an option is longer than any that makes sense.
    OptionLong { option: u32, len: u32, most: u32 },
    /// An answer to an option is shorter than its fields.
    OptionShort { option: u32, len: usize, least: usize },
    /// The server goes on answering one option.
    OptionEndless { option: u32, most: usize },
    /// The server has this answer to an option, and says why.
    OptionRefused { option: u32, kind: u32, text: String },
    /// The server wants TLS first.
    TlsRequired,
    /// The server has no TLS.
    TlsRefused,
    /// TLS failed.
    Tls { why: String },
    /// There is no such export.
    NoExport { export: String, there: Option<Vec<String>> },
    /// The server did not say how large the export is.
    NoSize,
    /// Block sizes that are none: powers of two, the smallest at most 64 KiB, in order.
    BlockSizes { min: u32, preferred: u32, max: u32 },
    /// The export's size is no multiple of its smallest block.
    SizeNoMultiple { size: u64, block: u32 },
    /// A size beyond what a file can have.
    SizeTooLarge { size: u64 },
    /// The export cannot be written to.
    ReadOnly,
    /// Nothing written would be durable.
    NoFlush,
    /// The export has another size than before the connection was lost.
    SizeChanged { was: u64, is: u64 },
    /// The export lacks now what it had before the connection was lost.
    Changed { what: &'static str },

    /// A reply does not begin as one.
    ReplyMagic { magic: u32 },
    /// A reply to a request that was never sent.
    UnknownCookie { cookie: u64 },
    /// A reply to a request that has been answered.
    AnsweredTwice { cookie: u64 },
    /// A simple reply to a read, where structured ones were agreed on.
    SimpleRead { cookie: u64 },
    /// A structured reply, where none was agreed on.
    NotAgreed { cookie: u64 },
    /// A chunk of a type that is not known, or not for this request.
    ChunkKind { kind: u16, command: &'static str },
    /// A chunk too short or too long for its type.
    ChunkLength { kind: u16, len: u32, least: u32, most: u32 },
    /// Content outside of what was asked for.
    ChunkOutside { offset: u64, len: u64, asked: u64, asked_len: u64 },
    /// The same content twice in one reply.
    ChunkTwice { offset: u64, len: u64 },
    /// Content that is scattered over the request in very many pieces.
    ChunkPieces { offset: u64, most: usize },
    /// A reply in more chunks than any that makes sense.
    ChunksEndless { command: &'static str, len: u32, most: usize },
    /// A reply that ended before all content came.
    ChunkMissing { offset: u64, asked: u64, got: u64 },
    /// An error chunk whose number is no error.
    NoError,
    /// A block status that says nothing, or of no bytes.
    EmptyStatus { offset: u64 },
    /// A block status of a context that was not agreed on.
    OtherContext { got: u32, agreed: u32 },

    /// The server reports that a request has failed.
    Failed { command: &'static str, errno: u32, text: String },
    /// What was acknowledged before the connection was lost could not be written again.
    Replay { offset: u64, len: u64, why: Box<NbdError> },
    /// This host may not write to the medium any more.
    Fenced { why: String },
    /// A flush failed before: what was written since may be lost.
    FlushFailed,
    /// Another device of this host has the export open.
    InUse { by: Option<u32> },
}

impl NbdError {
    /// Returns the failure of a command that the server does not offer.
    pub(super) fn not_offered(command: &'static str) -> Self {
        Self::Failed { command, errno: NOT_SUPPORTED, text: "it offers none".into() }
    }

    /// Returns whether the server has failed a request because it has no such command, or not for
    /// that place.
    pub(super) fn is_unsupported(&self) -> bool {
        matches!(self, Self::Failed { errno: NOT_SUPPORTED, .. })
    }

    /// Returns whether the connection is gone, and a new one may do.
    pub fn is_loss(&self) -> bool {
        matches!(
            self,
            Self::Connect { .. }
                | Self::Closed
                | Self::Socket { .. }
                | Self::Timeout { .. }
                | Self::NotGreeted { .. }
                | Self::Further { .. }
                | Self::ShuttingDown
        )
    }

    /// Returns the number that a system call of Linux would have failed with.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Connect { .. } => ENXIO,
            Self::Further { why, .. } => why.errno(),
            Self::NoExport { .. } => ENOENT,
            Self::ReadOnly => EROFS,
            Self::InUse { .. } => EBUSY,
            Self::TlsRequired | Self::TlsRefused | Self::Tls { .. } => EACCES,
            Self::SizeNoMultiple { .. } | Self::OldStyle { .. } => EINVAL,
            Self::NoFlush => EOPNOTSUPP,
            Self::Failed { errno, .. } => match errno {
                1 => EPERM,
                12 => ENOMEM,
                28 => ENOSPC,
                95 => EOPNOTSUPP,
                _ => EIO,
            },
            _ => EIO,
        }
    }
}

impl std::error::Error for NbdError {}

impl fmt::Display for NbdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotNbd { .. }
            | Self::OldStyle { .. }
            | Self::OptionMagic { .. }
            | Self::OptionOther { .. }
            | Self::OptionLong { .. }
            | Self::OptionShort { .. }
            | Self::OptionEndless { .. }
            | Self::OptionRefused { .. } => self.of_negotiation(f),
            Self::TlsRequired
            | Self::TlsRefused
            | Self::Tls { .. }
            | Self::NoExport { .. }
            | Self::NoSize
            | Self::BlockSizes { .. }
            | Self::SizeNoMultiple { .. }
            | Self::SizeTooLarge { .. }
            | Self::ReadOnly
            | Self::NoFlush
            | Self::SizeChanged { .. }
            | Self::Changed { .. }
            | Self::InUse { .. } => self.of_export(f),
            Self::ReplyMagic { .. }
            | Self::UnknownCookie { .. }
            | Self::AnsweredTwice { .. }
            | Self::SimpleRead { .. }
            | Self::NotAgreed { .. }
            | Self::ChunkKind { .. }
            | Self::ChunkLength { .. }
            | Self::ChunkOutside { .. }
            | Self::ChunkTwice { .. }
            | Self::ChunkPieces { .. }
            | Self::ChunksEndless { .. }
            | Self::ChunkMissing { .. }
            | Self::NoError
            | Self::EmptyStatus { .. }
            | Self::OtherContext { .. } => self.of_reply(f),
            _ => self.of_connection(f),
        }
    }
}

impl NbdError {
    fn of_connection(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect { why } => write!(f, "no NBD server answers: {why}"),
            Self::Closed => write!(f, "the NBD server has closed the connection"),
            Self::Socket { why } => write!(f, "the connection to the NBD server: {why}"),
            Self::Timeout { what, seconds } => {
                write!(f, "the NBD server has not answered a {what} for {seconds} s")
            }
            Self::NotGreeted { seconds } => write!(
                f,
                "the NBD server has not greeted for {seconds} s: it may serve all the clients that it \
                 admits (qemu-nbd: --shared=N)"
            ),
            Self::Further { number, wanted, why } => {
                write!(f, "connection {number} of connections={wanted}: {why}")
            }
            Self::ShuttingDown => write!(f, "the NBD server is shutting down"),
            Self::GaveUp { seconds, last } => {
                write!(f, "no connection for {seconds} s, the device has failed; at last: {last}")
            }
            Self::Failed { command, errno, text } => {
                write!(f, "the NBD server failed a {command}: {}", errno_name(*errno))?;
                if text.is_empty() { Ok(()) } else { write!(f, " ({})", shown(text)) }
            }
            Self::Replay { offset, len, why } => write!(
                f,
                "{len} bytes at byte {offset}, written before the connection was lost, could not be written \
                 again: {why}"
            ),
            Self::Fenced { why } => write!(f, "{why}; nothing is written on the new connection"),
            Self::FlushFailed => write!(f, "an earlier flush has failed"),
            _ => Ok(()),
        }
    }

    fn of_negotiation(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotNbd { magic } => {
                write!(f, "there is no NBD server: its first bytes are {magic:#018x}")
            }
            Self::OldStyle { flags } => {
                write!(f, "the server speaks an old form of NBD, without options (flags {flags:#x})")
            }
            Self::OptionMagic { magic } => {
                write!(f, "NBD: the answer to an option begins with {magic:#018x}")
            }
            Self::OptionOther { sent, got } => {
                write!(f, "NBD: an answer to option {got}, and option {sent} was sent")
            }
            Self::OptionLong { option, len, most } => {
                write!(f, "NBD: an answer of {len} bytes to option {option}; {most} are the most")
            }
            Self::OptionShort { option, len, least } => {
                write!(f, "NBD: an answer of {len} bytes to option {option}; {least} are the least")
            }
            Self::OptionEndless { option, most } => {
                write!(f, "NBD: more than {most} answers to option {option}")
            }
            Self::OptionRefused { option, kind, text } => {
                write!(f, "the NBD server refuses option {option} ({})", refusal_name(*kind))?;
                if text.is_empty() { Ok(()) } else { write!(f, ": {}", shown(text)) }
            }
            _ => Ok(()),
        }
    }

    fn of_export(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TlsRequired => write!(f, "the NBD server wants TLS: nbds:// or nbds+unix://"),
            Self::TlsRefused => write!(f, "the NBD server has no TLS: nbd:// or nbd+unix:// go without"),
            Self::Tls { why } => write!(f, "TLS: {why}"),
            Self::NoExport { export, there } => {
                write!(f, "the NBD server has no export {export:?}")?;
                match there {
                    None => write!(f, ", and does not list what it has"),
                    Some(there) if there.is_empty() => write!(f, "; it lists none"),
                    Some(there) => write!(f, "; there are {}", list(there)),
                }
            }
            Self::NoSize => write!(f, "NBD: the server did not tell the size of the export"),
            Self::BlockSizes { min, preferred, max } => {
                write!(f, "NBD: block sizes that are none: {min}, {preferred}, {max}")
            }
            Self::SizeNoMultiple { size, block } => {
                write!(f, "the export has {size} bytes, which is no multiple of its block of {block}")
            }
            Self::SizeTooLarge { size } => write!(f, "NBD: an export of {size} bytes"),
            Self::ReadOnly => write!(f, "the NBD server lets this export be read only"),
            Self::NoFlush => write!(
                f,
                "the NBD server offers no flush, so nothing written would be durable; nbd-server has it by \
                 'flush = true'"
            ),
            Self::SizeChanged { was, is } => {
                write!(f, "the export has {is} bytes now, and had {was} before the connection was lost")
            }
            Self::Changed { what } => {
                write!(f, "the export has changed while the connection was lost: {what}")
            }
            Self::InUse { by: Some(process) } => {
                write!(f, "is in use: the process {process} of this host has the export open")
            }
            Self::InUse { by: None } => write!(f, "is in use: this host has the export open already"),
            _ => Ok(()),
        }
    }

    fn of_reply(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ReplyMagic { magic } => write!(f, "NBD: a reply begins with {magic:#010x}"),
            Self::UnknownCookie { cookie } => {
                write!(f, "NBD: a reply to the request {cookie:#x}, which was not sent")
            }
            Self::AnsweredTwice { cookie } => {
                write!(f, "NBD: a second reply to the request {cookie:#x}")
            }
            Self::SimpleRead { cookie } => {
                write!(f, "NBD: a simple reply to the read {cookie:#x}, where structured ones were agreed on")
            }
            Self::NotAgreed { cookie } => {
                write!(f, "NBD: a structured reply to the request {cookie:#x}, where none was agreed on")
            }
            Self::ChunkKind { kind, command } => {
                write!(f, "NBD: a chunk of type {kind:#06x} in a reply to a {command}")
            }
            Self::ChunkLength { kind, len, least, most } => {
                write!(f, "NBD: a chunk of type {kind:#06x} with {len} bytes, not {least} to {most}")
            }
            Self::ChunkOutside { offset, len, asked, asked_len } => write!(
                f,
                "NBD: content of {len} bytes at byte {offset}, and {asked_len} at byte {asked} were asked for"
            ),
            Self::ChunkTwice { offset, len } => {
                write!(f, "NBD: {len} bytes at byte {offset} came twice in one reply")
            }
            Self::ChunkPieces { offset, most } => {
                write!(f, "NBD: the content of a read at byte {offset} in more than {most} pieces")
            }
            Self::ChunksEndless { command, len, most } => {
                write!(f, "NBD: more than {most} chunks in a reply to a {command} of {len} bytes")
            }
            Self::ChunkMissing { offset, asked, got } => {
                write!(f, "NBD: a reply has {got} of {asked} bytes at byte {offset}")
            }
            Self::NoError => write!(f, "NBD: an error chunk with the number 0"),
            Self::EmptyStatus { offset } => write!(f, "NBD: a block status without bytes, at byte {offset}"),
            Self::OtherContext { got, agreed } => {
                write!(f, "NBD: a block status of the context {got}, where {agreed} was agreed on")
            }
            _ => Ok(()),
        }
    }
}

/// Returns a server's text as a line may have it: cut if it is long, and with what does not print
/// escaped.
fn shown(text: &str) -> String {
    const MOST: usize = 256;
    let mut line = String::new();
    for c in text.chars().take(MOST) {
        match c {
            '\'' | '"' | '\\' => line.push(c),
            c => line.extend(c.escape_debug()),
        }
    }
    if text.chars().nth(MOST).is_some() {
        line.push_str("...");
    }
    line
}

/// Returns names in a line, to choose from.
fn list(names: &[String]) -> String {
    const MOST: usize = 16;
    let mut list: Vec<String> = names.iter().take(MOST).map(|name| format!("{name:?}")).collect();
    if names.len() > MOST {
        list.push(format!("{} more", names.len() - MOST));
    }
    list.join(", ")
}

/// Returns the words of an error number of the protocol.
fn errno_name(errno: u32) -> String {
    let name = match errno {
        1 => "operation not permitted",
        5 => "I/O error",
        12 => "out of memory",
        22 => "invalid argument",
        28 => "no space left",
        75 => "too large",
        95 => "not supported",
        108 => "shutting down",
        other => return format!("error {other}"),
    };
    name.into()
}

/// Returns the words of a refusal of an option.
fn refusal_name(kind: u32) -> String {
    let name = match kind & 0x7fff_ffff {
        1 => "not supported",
        2 => "forbidden by its policy",
        3 => "invalid",
        4 => "not on its platform",
        5 => "TLS first",
        6 => "no such export",
        7 => "shutting down",
        8 => "block sizes first",
        9 => "too big",
        other => return format!("reply {other}"),
    };
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_one_line_with_their_numbers() {
        let there = (0..20).map(|i| format!("e{i}")).collect();
        let e = NbdError::NoExport { export: "x\n".into(), there: Some(there) };
        let text = e.to_string();
        assert!(text.contains("\"e15\", 4 more") && !text.contains('\n') && !text.contains("e16"), "{text}");
        assert_eq!(e.errno(), ENOENT);
        let hostile = format!("it's\n\x1b[2J\u{202e}\u{9b}{}", "a".repeat(5000));
        let failed = NbdError::Failed { command: "read", errno: 5, text: hostile.clone() };
        let refused = NbdError::OptionRefused { option: 7, kind: 1 << 31 | 2, text: hostile };
        for text in [failed.to_string(), refused.to_string()] {
            assert!(text.contains(r"it's\n\u{1b}[2J\u{202e}\u{9b}aaa") && text.contains("..."), "{text}");
            assert!(text.len() < 400 && !text.contains(|c: char| c.is_control()), "{text}");
        }
        let last = Box::new(NbdError::Timeout { what: "read", seconds: 30 });
        assert_eq!(
            NbdError::GaveUp { seconds: 60, last }.to_string(),
            "no connection for 60 s, the device has failed; at last: the NBD server has not answered a read \
             for 30 s"
        );
        let text = NbdError::ChunkOutside { offset: 1, len: 2, asked: 3, asked_len: 4 }.to_string();
        assert!(text.contains("2 bytes at byte 1") && text.contains("4 at byte 3"), "{text}");
    }

    #[test]
    fn numbers_of_the_protocol() {
        let failed = |errno| NbdError::Failed { command: "write", errno, text: String::new() };
        assert_eq!([28, 1, 22, 5].map(|n| failed(n).errno()), [ENOSPC, EPERM, EIO, EIO]);
        assert_eq!(failed(28).to_string(), "the NBD server failed a write: no space left");
        let why = Box::new(NbdError::Connect { why: "refused".into() });
        assert_eq!(NbdError::Further { number: 2, wanted: 2, why }.errno(), ENXIO);
        assert!(NbdError::Closed.is_loss() && !NbdError::NoError.is_loss() && !failed(5).is_loss());
    }
}
