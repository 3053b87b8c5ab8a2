//! The server's side of the negotiation.

use super::server::NbdSettings;
use std::io::{self, Read, Write};

const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;

/// The number of the context `base:allocation`.
pub(super) const CONTEXT: u32 = 42;

/// What a client has agreed on.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Agreed {
    pub(super) structured: bool,
}

/// Negotiates until the client opens the export. Returns `None` if it leaves.
pub(super) fn negotiate(
    stream: &mut (impl Read + Write),
    settings: &NbdSettings,
    size: u64,
) -> io::Result<Option<Agreed>> {
    if let Some(bytes) = &settings.greeting {
        stream.write_all(bytes)?;
    } else {
        stream.write_all(b"NBDMAGICIHAVEOPT")?;
        stream.write_all(&3u16.to_be_bytes())?;
    }
    let _flags: [u8; 4] = array(stream)?;
    let mut agreed = Agreed::default();
    loop {
        if u64::from_be_bytes(array(stream)?) != OPTION_MAGIC {
            return Ok(None);
        }
        let option = u32::from_be_bytes(array(stream)?);
        let len = u32::from_be_bytes(array(stream)?);
        let mut data = vec![0; len.min(1 << 16) as usize];
        stream.read_exact(&mut data)?;
        let name = |data: &[u8]| -> Vec<u8> {
            let len = data.first_chunk().map_or(0, |len| u32::from_be_bytes(*len)) as usize;
            data.get(4..4 + len).unwrap_or_default().to_vec()
        };
        match option {
            // EXPORT_NAME
            1 if data == settings.export.as_bytes() => {
                stream.write_all(&size.to_be_bytes())?;
                stream.write_all(&settings.flags.to_be_bytes())?;
                return Ok(Some(agreed));
            }
            1 => return Ok(None),
            // ABORT
            2 => {
                reply(stream, option, 1, &[])?;
                return Ok(None);
            }
            // LIST
            3 => {
                let name = settings.export.as_bytes();
                let entry = [&(name.len() as u32).to_be_bytes()[..], name].concat();
                reply(stream, option, 2, &entry)?;
                reply(stream, option, 1, &[])?;
            }
            // INFO, GO
            6 | 7 if settings.with_go => {
                if name(&data) != settings.export.as_bytes() {
                    reply(stream, option, 0x8000_0006, b"no such export")?;
                    continue;
                }
                let export = [&[0, 0][..], &size.to_be_bytes(), &settings.flags.to_be_bytes()].concat();
                reply(stream, option, 3, &export)?;
                if let Some((min, preferred, max)) = settings.blocks {
                    let mut info = vec![0, 3];
                    [min, preferred, max].iter().for_each(|n| info.extend_from_slice(&n.to_be_bytes()));
                    reply(stream, option, 3, &info)?;
                }
                reply(stream, option, 1, &[])?;
                if option == 7 {
                    return Ok(Some(agreed));
                }
            }
            // STRUCTURED_REPLY
            8 if settings.structured => {
                agreed.structured = true;
                reply(stream, option, 1, &[])?;
            }
            // SET_META_CONTEXT
            10 if settings.structured => {
                let context = [&CONTEXT.to_be_bytes()[..], b"base:allocation"].concat();
                reply(stream, option, 4, &context)?;
                reply(stream, option, 1, &[])?;
            }
            _ => reply(stream, option, 0x8000_0001, b"not here")?,
        }
    }
}

fn reply(stream: &mut impl Write, option: u32, kind: u32, data: &[u8]) -> io::Result<()> {
    let mut bytes = REPLY_MAGIC.to_be_bytes().to_vec();
    for number in [option, kind, data.len() as u32] {
        bytes.extend_from_slice(&number.to_be_bytes());
    }
    bytes.extend_from_slice(data);
    stream.write_all(&bytes)
}

pub(super) fn array<const N: usize>(stream: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}
