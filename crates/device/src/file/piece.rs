//! Memory for calls that gather or scatter: as `IoSlice` and `IoSliceMut`, and pieces that lie side
//! by side in memory can be joined, which spares the kernel most of its work where a page cache
//! hands over its pages one by one.
#![allow(unsafe_code)]

use libc::iovec;
use std::fs::File;
use std::marker::PhantomData;
use std::os::fd::AsRawFd;
use std::{io, mem};

/// Pieces that Linux takes in one call.
pub(super) const MOST_PIECES: usize = libc::UIO_MAXIOV as usize;

/// Memory that stays borrowed as a `B`, `&[u8]` or `&mut [u8]`. Its bytes are for the kernel alone:
/// of several that were joined no slice is ever made.
#[derive(Debug)]
#[repr(transparent)]
pub(super) struct Piece<B>(iovec, PhantomData<B>);

/// A piece to be written.
pub(super) type Source<'a> = Piece<&'a [u8]>;
/// A piece to be filled.
pub(super) type Target<'a> = Piece<&'a mut [u8]>;

impl<'a> From<&'a [u8]> for Source<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self(iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }, PhantomData)
    }
}

impl<'a> From<&'a mut [u8]> for Target<'a> {
    fn from(bytes: &'a mut [u8]) -> Self {
        Self(iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }, PhantomData)
    }
}

impl<B> Piece<B> {
    pub(super) fn len(&self) -> usize {
        self.0.iov_len
    }

    /// Adds `next` to the end of this one if it lies there; otherwise gives it back.
    pub(super) fn join(&mut self, next: Self) -> Option<Self> {
        if self.0.iov_base.addr() + self.len() == next.0.iov_base.addr() {
            self.0.iov_len += next.len();
            return None;
        }
        Some(next)
    }

    /// Cuts the piece after `len` bytes. Returns the rest, or `None` if there is none.
    pub(super) fn split_off(&mut self, len: usize) -> Option<Self> {
        let rest = self.len().checked_sub(len).filter(|rest| *rest > 0)?;
        self.0.iov_len = len;
        Some(Self(iovec { iov_base: self.0.iov_base.wrapping_byte_add(len), iov_len: rest }, PhantomData))
    }

    /// Returns the pieces as the kernel takes them.
    pub(super) fn raw(pieces: &[Self]) -> *const iovec {
        pieces.as_ptr().cast()
    }
}

/// Takes the first `n` bytes off.
fn advance<B>(pieces: &mut &mut [Piece<B>], mut n: usize) {
    let whole = pieces
        .iter()
        .take_while(|piece| {
            n >= piece.len() && {
                n -= piece.len();
                true
            }
        })
        .count();
    *pieces = &mut mem::take(pieces)[whole..];
    if let Some(first) = pieces.first_mut()
        && let Some(rest) = first.split_off(n)
    {
        *first = rest;
    }
}

/// Calls `move_some` with the remaining pieces until none is left. It returns the number of bytes
/// moved; `ended` is the error if it moved none.
fn move_all<B>(
    mut offset: u64,
    mut pieces: &mut [Piece<B>],
    ended: io::ErrorKind,
    move_some: impl Fn(*const iovec, libc::c_int, libc::off64_t) -> isize,
) -> io::Result<()> {
    while !pieces.is_empty() {
        let count = pieces.len().min(MOST_PIECES) as libc::c_int;
        let at = libc::off64_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        match usize::try_from(move_some(Piece::raw(pieces), count, at)) {
            Ok(0) => return Err(ended.into()),
            Ok(n) => {
                advance(&mut pieces, n);
                offset += n as u64;
            }
            Err(_) => match io::Error::last_os_error() {
                e if e.kind() == io::ErrorKind::Interrupted => {}
                e => return Err(e),
            },
        }
    }
    Ok(())
}

/// Writes all pieces, none of which is empty, one behind the other from `offset` on.
pub(super) fn write_all(file: &File, offset: u64, pieces: &mut [Source<'_>]) -> io::Result<()> {
    // SAFETY: the pieces are borrowed by the caller through the call.
    move_all(offset, pieces, io::ErrorKind::WriteZero, |pieces, count, at| unsafe {
        libc::pwritev64(file.as_raw_fd(), pieces, count, at)
    })
}

/// Fills all pieces, none of which is empty, from `offset` on.
pub(super) fn read_all(file: &File, offset: u64, pieces: &mut [Target<'_>]) -> io::Result<()> {
    // SAFETY: the pieces are borrowed by the caller through the call, mutably.
    move_all(offset, pieces, io::ErrorKind::UnexpectedEof, |pieces, count, at| unsafe {
        libc::preadv64(file.as_raw_fd(), pieces, count, at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn neighbours_are_joined_and_cut() {
        let bytes: Vec<u8> = (0..100).collect();
        let mut piece = Source::from(&bytes[10..20]);
        assert!(piece.join(Source::from(&bytes[20..50])).is_none());
        assert!(piece.join(Source::from(&bytes[60..70])).is_some());
        assert!(piece.join(Source::from(&bytes[40..50])).is_some());
        assert_eq!(piece.len(), 40);
        assert!(piece.split_off(40).is_none());
        let rest = piece.split_off(15);
        assert_eq!((piece.len(), rest.as_ref().map(Piece::len)), (15, Some(25)));

        let mut file = tempfile::tempfile().unwrap();
        let apart = Source::from(&bytes[90..93]);
        write_all(&file, 3, &mut [piece, rest.unwrap(), apart]).unwrap();
        let mut expected = vec![0; 3];
        expected.extend((10..50).chain(90..93));
        let mut whole = Vec::new();
        io::Read::read_to_end(&mut file, &mut whole).unwrap();
        assert_eq!(whole, expected);

        let (mut first, mut second) = ([0; 5], [0; 41]);
        read_all(&file, 0, &mut [(&mut first[..]).into(), (&mut second[..]).into()]).unwrap();
        assert_eq!([&first[..], &second[..]].concat(), expected);
        let beyond = read_all(&file, 45, &mut [(&mut first[..]).into()]).unwrap_err();
        assert_eq!(beyond.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn what_was_moved_is_taken_off() {
        let bytes = [0; 30];
        let mut all: Vec<_> = bytes.chunks(10).map(Source::from).collect();
        let mut pieces = &mut all[..];
        let left = |pieces: &[Source<'_>]| pieces.iter().map(Piece::len).collect::<Vec<_>>();
        advance(&mut pieces, 0);
        assert_eq!(left(pieces), [10, 10, 10]);
        advance(&mut pieces, 13);
        assert_eq!(left(pieces), [7, 10]);
        advance(&mut pieces, 7);
        assert_eq!(left(pieces), [10]);
        advance(&mut pieces, 10);
        assert!(pieces.is_empty());
    }

    /// A partial transfer is continued from its end.
    #[test]
    fn short_and_interrupted_calls_are_gone_on_with() {
        let bytes = [0; 30];
        let ended = io::ErrorKind::UnexpectedEof;
        let run = |answers: &[isize]| {
            let (calls, answers) = (RefCell::new(Vec::new()), RefCell::new(answers.iter()));
            let mut pieces: Vec<_> = bytes.chunks(10).map(Source::from).collect();
            let done = move_all(100, &mut pieces, ended, |pieces, count, at| {
                // SAFETY: `count` pieces are there, as the kernel would find them.
                let pieces = unsafe { std::slice::from_raw_parts(pieces, count as usize) };
                calls.borrow_mut().push((at, pieces.iter().map(|piece| piece.iov_len).sum::<usize>()));
                let answer = answers.borrow_mut().next().copied().unwrap();
                if answer >= 0 {
                    return answer;
                }
                // SAFETY: the errno of this thread.
                unsafe { *libc::__errno_location() = -answer as i32 };
                -1
            });
            (done.map_err(|e| (e.kind(), e.raw_os_error())), calls.into_inner())
        };
        assert_eq!(run(&[30]), (Ok(()), vec![(100, 30)]));
        let eintr = -(libc::EINTR as isize);
        let calls = vec![(100, 30), (100, 30), (103, 27), (120, 10), (120, 10), (129, 1)];
        assert_eq!(run(&[eintr, 3, 17, eintr, 9, 1]), (Ok(()), calls));
        assert_eq!(run(&[29, 0]), (Err((ended, None)), vec![(100, 30), (129, 1)]));
        let eio = io::Error::from_raw_os_error(libc::EIO);
        let told = Err((eio.kind(), Some(libc::EIO)));
        assert_eq!(run(&[12, -(libc::EIO as isize)]), (told, vec![(100, 30), (112, 18)]));
    }
}
