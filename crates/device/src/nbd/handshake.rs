//! The negotiation with a server: fixed newstyle, options, one export.
//!
//! Structured replies and block status are asked for first, then the export, by NBD_OPT_GO, or by
//! NBD_OPT_EXPORT_NAME of servers that have no other. Lengths and the number of answers are
//! bounded, and so is the time.

use super::error::NbdError;
use super::wire::{ExportFlags, Timed, take_u32};
use std::io::{Read, Write};
use std::time::Duration;

const NBD_MAGIC: u64 = u64::from_be_bytes(*b"NBDMAGIC");
const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
const OLD_MAGIC: u64 = 0x0000_4202_8186_1253;
const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;

const FIXED_NEWSTYLE: u16 = 1;
const NO_ZEROES: u16 = 2;

const EXPORT_NAME: u32 = 1;
const ABORT: u32 = 2;
const LIST: u32 = 3;
#[cfg(feature = "tls")]
const STARTTLS: u32 = 5;
const INFO: u32 = 6;
const GO: u32 = 7;
const STRUCTURED_REPLY: u32 = 8;
const SET_META_CONTEXT: u32 = 10;

const ACK: u32 = 1;
const SERVER: u32 = 2;
const INFORMATION: u32 = 3;
const META_CONTEXT: u32 = 4;
const REFUSED: u32 = 1 << 31;
const UNSUPPORTED: u32 = REFUSED | 1;
const TLS_REQUIRED: u32 = REFUSED | 5;
const UNKNOWN: u32 = REFUSED | 6;
const SHUTDOWN: u32 = REFUSED | 7;

const INFO_EXPORT: u16 = 0;
const INFO_DESCRIPTION: u16 = 2;
const INFO_BLOCK_SIZE: u16 = 3;

/// The context that says what is a hole.
const ALLOCATION: &str = "base:allocation";

/// The longest answer to an option, in bytes. Names and descriptions have 4096.
const LONGEST: u32 = 64 << 10;

/// The most answers to an option; a list may have one for each export.
const MOST: usize = 4096;

/// The longest name or description of an export, in bytes.
const LONGEST_TEXT: usize = 4096;

/// The most bytes of a list of exports.
const MOST_LISTED: u32 = 1 << 20;

/// The block sizes of a server that tells none, as the protocol has them.
const USUAL_MIN: u32 = 1;
const USUAL_MAX: u32 = 32 << 20;

/// What was agreed on with a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Agreed {
    pub(crate) size: u64,
    pub(crate) flags: ExportFlags,
    /// The unit of offsets and lengths.
    pub(crate) min_block: u32,
    /// The most bytes of a request with content.
    pub(crate) max_block: u32,
    pub(crate) structured: bool,
    /// The number of the context `base:allocation`.
    pub(crate) allocation: Option<u32>,
}

/// An export that a server lists.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NbdExport {
    /// The name by which a client opens it.
    pub name: String,
    /// Size in bytes, if the server tells it.
    pub size: Option<u64>,
    /// Whether clients can only read it, if the server tells that.
    pub read_only: Option<bool>,
    /// The server's description of it.
    pub description: String,
}

/// A negotiation that goes on.
pub(crate) struct Handshake<'a, S> {
    wire: Timed<'a, S>,
    no_zeroes: bool,
}

/// What a server said of an export.
#[derive(Default)]
struct ExportReply {
    export: Option<(u64, ExportFlags)>,
    blocks: Option<(u32, u32)>,
    description: String,
}

/// An answer to an option.
struct Answer {
    kind: u32,
    data: Vec<u8>,
}

impl Answer {
    fn text(&self) -> String {
        text(&self.data)
    }
}

impl<'a, S: Read + Write> Handshake<'a, S> {
    /// Reads the greeting, and answers it.
    ///
    /// # Errors
    /// A loss, [`NbdError::NotGreeted`] among them; no server, or an old one.
    pub(crate) fn begin(stream: &'a mut S, timeout: Duration) -> Result<Self, NbdError> {
        let mut wire = Timed::new(stream, timeout);
        let greeting = wire.array().map_err(|e| match e {
            NbdError::Timeout { seconds, .. } => NbdError::NotGreeted { seconds },
            e => e,
        });
        let magic = u64::from_be_bytes(greeting?);
        if magic != NBD_MAGIC {
            return Err(NbdError::NotNbd { magic });
        }
        match u64::from_be_bytes(wire.array()?) {
            OPTION_MAGIC => {}
            OLD_MAGIC => return Err(NbdError::OldStyle { flags: 0 }),
            magic => return Err(NbdError::NotNbd { magic }),
        }
        let flags = u16::from_be_bytes(wire.array()?);
        if flags & FIXED_NEWSTYLE == 0 {
            return Err(NbdError::OldStyle { flags });
        }
        let ours = flags & (FIXED_NEWSTYLE | NO_ZEROES);
        wire.write(&u32::from(ours).to_be_bytes())?;
        Ok(Self { wire, no_zeroes: flags & NO_ZEROES != 0 })
    }

    /// Has the server begin TLS behind its answer. Returns what [`after_tls`](Self::after_tls)
    /// wants.
    ///
    /// # Errors
    /// A loss; a server without TLS.
    #[cfg(feature = "tls")]
    pub(crate) fn start_tls(mut self) -> Result<bool, NbdError> {
        self.send(STARTTLS, &[])?;
        let answer = self.answer(STARTTLS)?;
        if answer.kind == ACK { Ok(self.no_zeroes) } else { Err(NbdError::TlsRefused) }
    }

    /// Goes on with a negotiation over the stream that TLS has begun on.
    #[cfg(feature = "tls")]
    pub(crate) fn after_tls(stream: &'a mut S, timeout: Duration, no_zeroes: bool) -> Self {
        Self { wire: Timed::new(stream, timeout), no_zeroes }
    }

    /// Agrees on all that this client can use, and opens an export. What follows are requests.
    ///
    /// # Errors
    /// A loss; no such export; what the server says breaks a rule.
    pub(crate) fn open(mut self, export: &str) -> Result<Agreed, NbdError> {
        let structured = self.simple(STRUCTURED_REPLY, &[])?;
        let allocation = if structured { self.allocation(export)? } else { None };
        let reply = match self.go(GO, export)? {
            Some(reply) => reply,
            None => self.export_name(export)?,
        };
        let (size, flags) = reply.export.ok_or(NbdError::NoSize)?;
        let (min_block, max_block) = reply.blocks.unwrap_or((USUAL_MIN, USUAL_MAX));
        if size > i64::MAX.unsigned_abs() {
            return Err(NbdError::SizeTooLarge { size });
        }
        if !size.is_multiple_of(min_block.into()) {
            return Err(NbdError::SizeNoMultiple { size, block: min_block });
        }
        Ok(Agreed { size, flags, min_block, max_block, structured, allocation })
    }

    /// Returns the exports that the server lists, `None` if it lists none to this client.
    ///
    /// # Errors
    /// A loss; what the server says breaks a rule.
    pub(crate) fn list(&mut self) -> Result<Option<Vec<NbdExport>>, NbdError> {
        self.send(LIST, &[])?;
        let (mut exports, mut listed) = (Vec::new(), 0);
        for _ in 0..MOST {
            let answer = self.answer(LIST)?;
            listed += answer.data.len() as u32;
            if listed > MOST_LISTED {
                return Err(NbdError::OptionLong { option: LIST, len: listed, most: MOST_LISTED });
            }
            match answer.kind {
                ACK => return Ok(Some(exports)),
                SERVER => {
                    let short = NbdError::OptionShort { option: LIST, len: answer.data.len(), least: 4 };
                    let mut rest = &answer.data[..];
                    let len = take_u32(&mut rest).ok_or_else(|| short.clone())? as usize;
                    let (name, description) = rest.split_at_checked(len).ok_or(short)?;
                    exports.push(NbdExport {
                        name: text(name),
                        size: None,
                        read_only: None,
                        description: text(description),
                    });
                }
                _ => return Ok(None),
            }
        }
        Err(NbdError::OptionEndless { option: LIST, most: MOST })
    }

    /// As [`list`](Self::list), with what the server tells of each export.
    ///
    /// # Errors
    /// A loss; what the server says breaks a rule.
    pub(crate) fn list_with_sizes(&mut self) -> Result<Option<Vec<NbdExport>>, NbdError> {
        let Some(mut exports) = self.list()? else { return Ok(None) };
        for export in &mut exports {
            let reply = match self.go(INFO, &export.name) {
                Ok(Some(reply)) => reply,
                Ok(None) => break,
                Err(e) if e.is_loss() => return Err(e),
                Err(_) => continue,
            };
            if let Some((size, flags)) = reply.export {
                export.size = Some(size);
                export.read_only = Some(flags.has(ExportFlags::READ_ONLY));
            }
            if !reply.description.is_empty() {
                export.description = reply.description;
            }
        }
        // The server may have closed the connection.
        let _ = self.send(ABORT, &[]);
        Ok(Some(exports))
    }

    /// Sends an option that a server may not know. Returns whether it does.
    fn simple(&mut self, option: u32, data: &[u8]) -> Result<bool, NbdError> {
        self.send(option, data)?;
        let answer = self.answer(option)?;
        Ok(answer.kind == ACK)
    }

    /// Agrees on the context of holes. Returns its number, `None` for a server without.
    fn allocation(&mut self, export: &str) -> Result<Option<u32>, NbdError> {
        let mut data = Vec::new();
        push_text(&mut data, export);
        data.extend_from_slice(&1u32.to_be_bytes());
        push_text(&mut data, ALLOCATION);
        self.send(SET_META_CONTEXT, &data)?;
        let mut number = None;
        for _ in 0..MOST {
            let answer = self.answer(SET_META_CONTEXT)?;
            match answer.kind {
                META_CONTEXT => {
                    let mut rest = &answer.data[..];
                    let short =
                        NbdError::OptionShort { option: SET_META_CONTEXT, len: answer.data.len(), least: 4 };
                    let id = take_u32(&mut rest).ok_or(short)?;
                    if rest == ALLOCATION.as_bytes() {
                        number = Some(id);
                    }
                }
                ACK => return Ok(number),
                _ => return Ok(None),
            }
        }
        Err(NbdError::OptionEndless { option: SET_META_CONTEXT, most: MOST })
    }

    /// Asks for an export, to open it (GO) or not (INFO). Returns `None` for a server without these
    /// options.
    fn go(&mut self, option: u32, export: &str) -> Result<Option<ExportReply>, NbdError> {
        let mut data = Vec::new();
        push_text(&mut data, export);
        let wanted: &[u16] =
            if option == GO { &[INFO_BLOCK_SIZE] } else { &[INFO_BLOCK_SIZE, INFO_DESCRIPTION] };
        data.extend_from_slice(&(wanted.len() as u16).to_be_bytes());
        wanted.iter().for_each(|kind| data.extend_from_slice(&kind.to_be_bytes()));
        self.send(option, &data)?;
        let mut reply = ExportReply::default();
        for _ in 0..MOST {
            let answer = self.answer(option)?;
            match answer.kind {
                INFORMATION => reply.learn(option, &answer.data)?,
                ACK => return Ok(Some(reply)),
                UNSUPPORTED => return Ok(None),
                UNKNOWN if option == GO => return Err(self.no_export(export)),
                kind => return Err(NbdError::OptionRefused { option, kind, text: answer.text() }),
            }
        }
        Err(NbdError::OptionEndless { option, most: MOST })
    }

    /// Returns the error that lists what there is.
    fn no_export(&mut self, export: &str) -> NbdError {
        let there = self.list().ok().flatten();
        let there = there.map(|list| list.into_iter().map(|export| export.name).collect());
        let _ = self.send(ABORT, &[]);
        NbdError::NoExport { export: export.into(), there }
    }

    /// Opens an export on a server without GO. Such a server closes the connection if there is
    /// none.
    fn export_name(&mut self, export: &str) -> Result<ExportReply, NbdError> {
        self.send(EXPORT_NAME, export.as_bytes())?;
        let size = match self.wire.array() {
            Ok(size) => u64::from_be_bytes(size),
            Err(NbdError::Closed) => {
                return Err(NbdError::NoExport { export: export.into(), there: None });
            }
            Err(e) => return Err(e),
        };
        let flags = u16::from_be_bytes(self.wire.array()?);
        if !self.no_zeroes {
            self.wire.array::<124>()?;
        }
        Ok(ExportReply { export: Some((size, ExportFlags(flags))), ..ExportReply::default() })
    }

    fn send(&mut self, option: u32, data: &[u8]) -> Result<(), NbdError> {
        let mut bytes = Vec::with_capacity(16 + data.len());
        bytes.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
        bytes.extend_from_slice(&option.to_be_bytes());
        bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
        bytes.extend_from_slice(data);
        self.wire.write(&bytes)
    }

    /// Reads one answer to `option`.
    fn answer(&mut self, option: u32) -> Result<Answer, NbdError> {
        let magic = u64::from_be_bytes(self.wire.array()?);
        if magic != REPLY_MAGIC {
            return Err(NbdError::OptionMagic { magic });
        }
        let got = u32::from_be_bytes(self.wire.array()?);
        if got != option {
            return Err(NbdError::OptionOther { sent: option, got });
        }
        let kind = u32::from_be_bytes(self.wire.array()?);
        let len = u32::from_be_bytes(self.wire.array()?);
        if len > LONGEST {
            return Err(NbdError::OptionLong { option, len, most: LONGEST });
        }
        let mut data = vec![0; len as usize];
        self.wire.read(&mut data)?;
        match kind {
            TLS_REQUIRED => Err(NbdError::TlsRequired),
            SHUTDOWN => Err(NbdError::ShuttingDown),
            _ => Ok(Answer { kind, data }),
        }
    }
}

impl ExportReply {
    /// Takes one piece of information.
    fn learn(&mut self, option: u32, data: &[u8]) -> Result<(), NbdError> {
        let short = |least| NbdError::OptionShort { option, len: data.len(), least };
        let (kind, rest) = data.split_first_chunk().ok_or_else(|| short(2))?;
        match u16::from_be_bytes(*kind) {
            INFO_EXPORT => {
                let (size, rest) = rest.split_first_chunk().ok_or_else(|| short(12))?;
                let (flags, _) = rest.split_first_chunk().ok_or_else(|| short(12))?;
                let flags = ExportFlags(u16::from_be_bytes(*flags));
                self.export = Some((u64::from_be_bytes(*size), flags));
            }
            INFO_BLOCK_SIZE => {
                let mut rest = rest;
                let mut next = || take_u32(&mut rest).ok_or_else(|| short(14));
                let (min, preferred, max) = (next()?, next()?, next()?);
                let in_order = min <= preferred && preferred <= max;
                let is_power = min.is_power_of_two() && min <= 64 << 10 && preferred.is_power_of_two();
                if !in_order || !is_power || preferred < 512 || max < 512 {
                    return Err(NbdError::BlockSizes { min, preferred, max });
                }
                self.blocks = Some((min, max / min * min));
            }
            INFO_DESCRIPTION => self.description = text(rest),
            // What was not asked for, and is of no use.
            _ => {}
        }
        Ok(())
    }
}

/// Returns a text of a server, as far as it may be long.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(LONGEST_TEXT)]).into_owned()
}

fn push_text(data: &mut Vec<u8>, text: &str) {
    data.extend_from_slice(&(text.len() as u32).to_be_bytes());
    data.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that says what it says, whatever it is sent.
    struct Says(std::io::Cursor<Vec<u8>>);

    impl Read for Says {
        fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
            self.0.read(buf)
        }
    }

    impl Write for Says {
        fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
            Ok(buf.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn answer(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
        let words = [option, kind, data.len() as u32].map(u32::to_be_bytes).concat();
        [&REPLY_MAGIC.to_be_bytes()[..], &words, data].concat()
    }

    fn list(answers: &[u8]) -> Result<Option<Vec<NbdExport>>, NbdError> {
        let greeting = b"NBDMAGICIHAVEOPT\0\x03";
        let mut says = Says(std::io::Cursor::new([&greeting[..], answers].concat()));
        Handshake::begin(&mut says, Duration::from_secs(5))?.list()
    }

    #[test]
    fn a_list_is_bounded() {
        let entry = |name: &[u8]| answer(LIST, SERVER, &[&(name.len() as u32).to_be_bytes(), name].concat());
        let few = [entry(b"a"), entry(b"b\xff"), answer(LIST, ACK, &[])].concat();
        let names: Vec<String> = list(&few).unwrap().unwrap().into_iter().map(|e| e.name).collect();
        assert_eq!(names, ["a", "b\u{fffd}"]);
        let long = entry(&vec![0xff; 60 << 10]);
        let kept = list(&[&long[..], &answer(LIST, ACK, &[])].concat()).unwrap().unwrap();
        assert_eq!(kept[0].name.len(), 3 * LONGEST_TEXT);
        let e = list(&long.repeat(30)).unwrap_err();
        assert!(matches!(e, NbdError::OptionLong { option: LIST, most: MOST_LISTED, .. }), "{e}");
        let e = list(&entry(b"").repeat(MOST + 1)).unwrap_err();
        assert_eq!(e, NbdError::OptionEndless { option: LIST, most: MOST });
        assert!(list(&answer(LIST, SERVER, &[0, 0, 0, 9, 1])).is_err());
    }
}
