//! The messages between a server and its broker, as bytes.
//!
//! Hazard: the broker runs with the rights that the server gave up. Each message here is a right of
//! a server that an attacker has taken over.

/// A request of the server to the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum BrokerRequest {
    /// Mount. Only once.
    Mount,
    /// Unmount.
    Unmount,
    /// Have the kernel write out what it has cached, and unmount.
    UnmountSynced,
    /// Remove the socket of the mount.
    RemoveSocket,
    /// Leave the mount when the server ends.
    Keep,
    /// Pass a socket at which connections to the volume's server are asked for. Only once.
    Dialer,
}

impl BrokerRequest {
    const ALL: [Self; 6] =
        [Self::Mount, Self::Unmount, Self::UnmountSynced, Self::RemoveSocket, Self::Keep, Self::Dialer];

    pub(crate) fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|request| *request as u8 == byte)
    }
}

/// A call of a serving thread to the broker. Answered by one i32, but for [`Self::Release`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum BrokerCall {
    /// Tells whether the sender of a request has a capability: 1 or 0.
    Has,
    /// Tells whether it is in a group: 1 or 0.
    InGroup,
    /// Ends the connection: 0 or an errno.
    Abort,
    /// Sets the rule of this number: 0.
    SetCache,
    /// Schedules this thread of the server as all others. No answer.
    Release,
}

impl BrokerCall {
    const ALL: [Self; 5] = [Self::Has, Self::InGroup, Self::Abort, Self::SetCache, Self::Release];
    /// Bytes of a call: itself, user, group and thread of a sender, and a number.
    pub(crate) const LEN: usize = 17;

    pub(crate) fn encode(self, [uid, gid, thread, number]: [u32; 4]) -> [u8; Self::LEN] {
        let mut bytes = [self as u8; Self::LEN];
        for (to, field) in bytes[1..].chunks_exact_mut(4).zip([uid, gid, thread, number]) {
            to.copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }

    pub(crate) fn decode(bytes: [u8; Self::LEN]) -> Option<(Self, [u32; 4])> {
        let call = Self::ALL.into_iter().find(|call| *call as u8 == bytes[0])?;
        let mut fields = [0; 4];
        for (field, from) in fields.iter_mut().zip(bytes[1..].chunks_exact(4)) {
            *field = u32::from_le_bytes(from.try_into().ok()?);
        }
        Some((call, fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_known_again() {
        assert!(
            BrokerRequest::ALL
                .iter()
                .all(|request| BrokerRequest::from_byte(*request as u8) == Some(*request))
        );
        assert_eq!(BrokerRequest::from_byte(6), None);
        let fields = [1, 2, u32::MAX, 4];
        for call in BrokerCall::ALL {
            assert_eq!(BrokerCall::decode(call.encode(fields)), Some((call, fields)));
        }
        assert_eq!(BrokerCall::decode([5; BrokerCall::LEN]), None);
    }
}
