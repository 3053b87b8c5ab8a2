//! The user of a unix socket, asked of the kernel by sock_diag(7): its process need not answer.

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

/// The one type of messages, of requests and answers (SOCK_DIAG_BY_FAMILY).
const BY_FAMILY: u16 = 20;
/// NLM_F_REQUEST.
const REQUEST: u16 = 1;
const AF_UNIX: u8 = 1;
/// What a request wants to know (UDIAG_SHOW_UID), and the attribute that says it (UNIX_DIAG_UID;
/// Linux 5.3).
const SHOW_USER: u32 = 0x40;
const USER: u16 = 7;
/// Bytes of `struct nlmsghdr`, of `struct unix_diag_req`, and of `struct unix_diag_msg`.
const HEADER: usize = 16;
const BODY: usize = 24;
const ANSWER: usize = 16;

/// Returns the user that made the socket with this inode number, in the network namespace of this
/// process; `None` if the kernel does not tell.
pub(super) fn owner_of(inode: u32) -> Option<u32> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
    let socket = socket_with(family, kind, flags, Some(netlink::SOCK_DIAG)).ok()?;
    // It has answered when the call returns.
    send(&socket, &request(inode), SendFlags::empty()).ok()?;
    let mut answer = [0_u8; 512];
    let (_, len) = recv(&socket, &mut answer[..], RecvFlags::empty()).ok()?;
    user_in(answer.get(..len)?)
}

/// Returns the request for the user of one socket.
fn request(inode: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + BODY);
    bytes.extend(((HEADER + BODY) as u32).to_ne_bytes());
    bytes.extend(BY_FAMILY.to_ne_bytes());
    bytes.extend(REQUEST.to_ne_bytes());
    // Its number, and the sender: one request needs neither.
    bytes.extend([0; 8]);
    bytes.extend([AF_UNIX, 0, 0, 0]);
    // In any state, and whatever its cookie is.
    for number in [u32::MAX, inode, SHOW_USER, u32::MAX, u32::MAX] {
        bytes.extend(number.to_ne_bytes());
    }
    bytes
}

/// Returns the user that an answer tells. An error is another type of message.
fn user_in(answer: &[u8]) -> Option<u32> {
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    if kind != BY_FAMILY {
        return None;
    }
    let mut attributes = answer.get(HEADER + ANSWER..)?;
    loop {
        let ([len_low, len_high, kind_low, kind_high], value) = attributes.split_first_chunk::<4>()?;
        if u16::from_ne_bytes([*kind_low, *kind_high]) == USER {
            return Some(u32::from_ne_bytes(*value.first_chunk::<4>()?));
        }
        let len = usize::from(u16::from_ne_bytes([*len_low, *len_high]));
        attributes = attributes.get(len.max(4).next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_socket_has_the_user_that_made_it() {
        let dir = tempfile::tempdir().unwrap();
        let socket = UnixListener::bind(dir.path().join("socket")).unwrap();
        let inode = rustix::fs::fstat(&socket).unwrap().st_ino;
        let own = rustix::process::geteuid().as_raw();
        assert_eq!(owner_of(inode.try_into().unwrap()), Some(own));
        drop(socket);
        assert_eq!(owner_of(0), None);
    }

    #[test]
    fn an_answer_is_read_to_its_end_only() {
        let mut answer = [0; HEADER + ANSWER + 16];
        answer[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
        let attributes = &mut answer[HEADER + ANSWER..];
        // Of one byte and its filling, and then the user.
        attributes[..4].copy_from_slice(&[5_u16, 6].map(u16::to_ne_bytes).concat());
        attributes[8..12].copy_from_slice(&[8, USER].map(u16::to_ne_bytes).concat());
        attributes[12..].copy_from_slice(&1000_u32.to_ne_bytes());
        assert_eq!(user_in(&answer), Some(1000));
        assert!((0..answer.len()).all(|len| user_in(&answer[..len]).is_none()));
        answer[4] = 2;
        assert_eq!(user_in(&answer), None);
        assert_eq!(user_in(&[BY_FAMILY as u8; 64]), None);
    }
}
