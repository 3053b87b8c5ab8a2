//! Requests, as bytes.

/// What a server is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Command {
    Read = 0,
    Write = 1,
    Disconnect = 2,
    Flush = 3,
    Trim = 4,
    WriteZeroes = 6,
    BlockStatus = 7,
}

impl Command {
    /// Returns the word of messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Disconnect => "disconnect",
            Self::Flush => "flush",
            Self::Trim => "trim",
            Self::WriteZeroes => "write of zeros",
            Self::BlockStatus => "block status",
        }
    }
}

/// A write is to be durable when it is answered.
pub(crate) const FUA: u16 = 1;

/// A request without its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) command: Command,
    pub(crate) flags: u16,
    pub(crate) offset: u64,
    pub(crate) len: u32,
}

impl Request {
    const MAGIC: u32 = 0x2560_9513;
    /// Bytes of a request.
    pub(crate) const LEN: usize = 28;

    pub(crate) fn encode(&self, cookie: u64) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&Self::MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&(self.command as u16).to_be_bytes());
        bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_be_bytes());
        bytes[24..].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }
}

/// Cuts a range into pieces of at most `cut` bytes.
pub(crate) fn pieces(offset: u64, len: u64, cut: u64) -> impl Iterator<Item = (u64, u32)> {
    let cut = cut.clamp(1, u32::MAX.into());
    (0..len.div_ceil(cut)).map(move |i| (offset + i * cut, (len - i * cut).min(cut) as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_28_bytes() {
        let request = Request { command: Command::WriteZeroes, flags: FUA, offset: 0x0102, len: 0x0304 };
        let want =
            [0x25, 0x60, 0x95, 0x13, 0, 1, 0, 6, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 3, 4];
        assert_eq!(request.encode(9), want);
    }
}
