//! Bytes of names as the system's strings. On systems other than Unix, whose strings are Unicode, a
//! name that is not UTF-8 reads as U+FFFD.

#[cfg(unix)]
pub use std::os::unix::ffi::{OsStrExt, OsStringExt};

#[cfg(not(unix))]
pub use unicode::{OsStrExt, OsStringExt};

#[cfg(not(unix))]
mod unicode {
    use std::ffi::{OsStr, OsString};

    pub trait OsStrExt {
        fn as_bytes(&self) -> &[u8];
        fn from_bytes(bytes: &[u8]) -> &Self;
    }

    impl OsStrExt for OsStr {
        fn as_bytes(&self) -> &[u8] {
            self.as_encoded_bytes()
        }

        fn from_bytes(bytes: &[u8]) -> &Self {
            Self::new(str::from_utf8(bytes).unwrap_or("\u{FFFD}"))
        }
    }

    pub trait OsStringExt {
        fn from_vec(bytes: Vec<u8>) -> Self;
    }

    impl OsStringExt for OsString {
        fn from_vec(bytes: Vec<u8>) -> Self {
            OsStr::from_bytes(&bytes).to_owned()
        }
    }
}
