use super::*;
use proptest::prelude::*;

fn chunk(kind: u16, flags: u16, len: u32) -> Header {
    Header::Chunk { cookie: 1, flags, kind, len }
}

fn read(offset: u64, len: u32) -> Expected {
    expected(Command::Read, offset, len)
}

fn expected(command: Command, offset: u64, len: u32) -> Expected {
    Expected::new(Request { command, flags: 0, offset, len }, true, Some(7))
}

/// Gives a chunk of content to a read.
fn data(expected: &mut Expected, offset: u64, len: u32) -> Result<Content, NbdError> {
    let header = chunk(OFFSET_DATA, 0, len.saturating_add(8));
    let body = expected.body(&header)?;
    expected.content(&header, body, &offset.to_be_bytes())
}

#[test]
fn headers() {
    let simple = [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 9];
    assert_eq!(Header::parse(&simple), Ok(Header::Simple { cookie: 9, errno: 5 }));
    let mut structured = vec![0x66, 0x8e, 0x33, 0xef, 0, 1, 0x80, 1];
    structured.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 6]);
    assert_eq!(Header::len([0x66, 0x8e, 0x33, 0xef]), Ok(20));
    let want = Header::Chunk { cookie: 9, flags: DONE, kind: ERROR, len: 6 };
    assert_eq!(Header::parse(&structured), Ok(want));
    assert_eq!(Header::len(*b"HTTP"), Err(NbdError::ReplyMagic { magic: 0x4854_5450 }));
}

/// Sorting them would take longer than their bytes.
#[test]
fn content_in_very_many_pieces_is_refused() {
    let mut read = read(0, 1 << 18);
    let backwards = (0..1 << 17).rev().map(|i| data(&mut read, 2 * i, 1));
    let (pieces, e) = backwards.enumerate().find_map(|(i, got)| Some((i, got.err()?))).unwrap();
    assert_eq!((pieces, e), (MOST_PIECES, NbdError::ChunkPieces { offset: 0, most: MOST_PIECES }));
}

/// Neither errors that do not end a reply, nor content byte by byte, go on without end.
#[test]
fn chunks_are_bounded_in_number() {
    let error = chunk(ERROR, 0, 6);
    let prefix = [0, 0, 0, 5, 0, 0];
    for (command, len, most) in [
        (Command::Read, 4096, MOST_PIECES + 8),
        (Command::Write, 4096, MOST_PIECES),
        (Command::Flush, 0, MOST_PIECES),
    ] {
        let mut expected = expected(command, 0, len);
        let body = expected.body(&error).unwrap();
        let mut next = || expected.content(&error, body, &prefix);
        assert_eq!(next(), Ok(Content::Failed { errno: 5, text: 0 }));
        assert!((1..most).all(|_| next() == Ok(Content::FailedAgain)));
        assert_eq!(next(), Err(NbdError::ChunksEndless { command: command.name(), len, most }));
    }
    let mut read = read(0, 4096);
    let bytes = (0..4096).map(|i| data(&mut read, i, 1));
    assert_eq!(bytes.take_while(Result::is_ok).count(), MOST_PIECES + 8);
}

#[test]
fn content_comes_in_any_order_and_once() {
    let mut read = read(1000, 100);
    assert_eq!(data(&mut read, 1050, 50), Ok(Content::Data { at: 50, len: 50 }));
    assert_eq!(read.end(), Err(NbdError::ChunkMissing { offset: 1000, asked: 100, got: 50 }));
    for (offset, len) in [(1099, 1), (1040, 11), (1050, 50), (1000, 100)] {
        assert_eq!(data(&mut read, offset, len), Err(NbdError::ChunkTwice { offset, len: len.into() }));
    }
    for (offset, len) in [(999, 2), (1100, 1), (1090, 11), (0, 1), (u64::MAX, 8)] {
        let e = data(&mut read, offset, len).unwrap_err();
        assert!(matches!(e, NbdError::ChunkOutside { asked: 1000, asked_len: 100, .. }), "{e}");
    }
    let hole = chunk(OFFSET_HOLE, DONE, 12);
    let body = read.body(&hole).unwrap();
    let prefix = [&1000u64.to_be_bytes()[..], &50u32.to_be_bytes()].concat();
    assert_eq!(read.content(&hole, body, &prefix), Ok(Content::Hole { at: 0, len: 50 }));
    assert_eq!(read.come, [(0, 100)]);
    assert_eq!(read.end(), Ok(()));
}

#[test]
fn chunks_have_their_lengths_and_their_requests() {
    let bad = |expected: &Expected, kind, flags, len| expected.body(&chunk(kind, flags, len)).unwrap_err();
    let (read, status) = (read(0, 100), expected(Command::BlockStatus, 0, 100));
    for (kind, len) in [(OFFSET_DATA, 8), (OFFSET_DATA, 109), (OFFSET_HOLE, 13), (NONE, 1), (ERROR, 5)] {
        assert!(matches!(bad(&read, kind, DONE, len), NbdError::ChunkLength { .. }), "{kind} {len}");
    }
    for len in [4, 11, 13, u32::MAX] {
        assert!(matches!(bad(&status, BLOCK_STATUS, DONE, len), NbdError::ChunkLength { .. }));
    }
    assert!(matches!(bad(&status, OFFSET_DATA, DONE, 12), NbdError::ChunkKind { .. }));
    assert!(matches!(bad(&read, BLOCK_STATUS, DONE, 12), NbdError::ChunkKind { .. }));
    assert!(matches!(bad(&read, 99, DONE, 12), NbdError::ChunkKind { kind: 99, .. }));
    assert!(matches!(bad(&read, NONE, 0, 0), NbdError::ChunkKind { .. }));
    let simple = Header::Simple { cookie: 3, errno: 0 };
    assert_eq!(read.body(&simple), Err(NbdError::SimpleRead { cookie: 3 }));
    let unstructured = Expected::new(read.request, false, None);
    assert_eq!(unstructured.body(&chunk(NONE, DONE, 0)), Err(NbdError::NotAgreed { cookie: 1 }));
    assert_eq!(unstructured.body(&simple).map(|body| body.len), Ok(100));
}

#[test]
fn block_status() {
    let mut status = expected(Command::BlockStatus, 0, 100);
    assert_eq!(status.end(), Err(NbdError::EmptyStatus { offset: 0 }));
    let header = chunk(BLOCK_STATUS, DONE, 20);
    let body = status.body(&header).unwrap();
    let wrong = status.content(&header, body, &9u32.to_be_bytes());
    assert_eq!(wrong, Err(NbdError::OtherContext { got: 9, agreed: 7 }));
    assert_eq!(status.content(&header, body, &7u32.to_be_bytes()), Ok(Content::Extents { len: 16 }));
    let twice = status.content(&header, body, &7u32.to_be_bytes());
    assert_eq!(twice, Err(NbdError::ChunkTwice { offset: 0, len: 100 }));
    assert_eq!(status.end(), Ok(()));
    let list = extents(0, &[0, 0, 0, 5, 0, 0, 0, 3, 0, 0, 0, 9, 0, 0, 0, 1]).unwrap();
    assert_eq!(list, [Extent { len: 5, is_zero: true }, Extent { len: 9, is_zero: false }]);
    assert_eq!(extents(4, &[0; 8]), Err(NbdError::EmptyStatus { offset: 4 }));
}

#[test]
fn errors_say_what_failed() {
    let mut write = expected(Command::Write, 0, 100);
    let header = chunk(ERROR, DONE, 9);
    let body = write.body(&header).unwrap();
    let prefix = |errno: u32, text: u16| [&errno.to_be_bytes()[..], &text.to_be_bytes()].concat();
    assert_eq!(write.content(&header, body, &prefix(28, 3)), Ok(Content::Failed { errno: 28, text: 3 }));
    assert_eq!(write.content(&header, body, &prefix(0, 3)), Err(NbdError::NoError));
    assert_eq!(write.content(&header, body, &prefix(108, 0)), Err(NbdError::ShuttingDown));
    assert!(matches!(write.content(&header, body, &prefix(28, 4)), Err(NbdError::ChunkLength { .. })));
    assert_eq!(write.end(), Ok(()));
}

proptest! {
    /// Bytes of any server, to any request: an error or content inside of the request.
    #[test]
    fn nothing_panics(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        magic in 0..3u8,
        command in 0..4u8,
        offset in any::<u64>(),
        len in 1..5000u32,
        structured in any::<bool>(),
    ) {
        let command = [Command::Read, Command::Write, Command::BlockStatus, Command::Flush][usize::from(command)];
        let mut expected = Expected::new(Request { command, flags: 0, offset, len }, structured, Some(0));
        let mut bytes = bytes;
        if let Some(start) = bytes.first_chunk_mut() {
            match magic {
                0 => *start = SIMPLE.to_be_bytes(),
                1 => *start = STRUCTURED.to_be_bytes(),
                _ => {}
            }
        }
        let mut rest = &bytes[..];
        while let Some(start) = rest.first_chunk() {
            let Ok(head) = Header::len(*start) else { break };
            let Some((head, after)) = rest.split_at_checked(head) else { break };
            let Ok(header) = Header::parse(head) else { break };
            let Ok(body) = expected.body(&header) else { break };
            prop_assert!(body.prefix <= body.len || body.len == 0 || body.prefix == 0);
            let Some(prefix) = after.get(..body.prefix) else { break };
            match expected.content(&header, body, prefix) {
                Ok(Content::Data { at, len: n } | Content::Hole { at, len: n }) => {
                    prop_assert!(at + n <= len as usize);
                }
                Ok(Content::Failed { text, .. }) => prop_assert!(text + body.prefix <= body.len.max(text)),
                Ok(_) => {}
                Err(_) => break,
            }
            let _ = expected.end();
            let Some(later) = after.get(body.len..) else { break };
            rest = later;
        }
    }
}
