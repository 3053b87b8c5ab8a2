//! Digests of blobs: `sha256:...` and `sha512:...`.

use super::error::{ImageError, Text};
use sha2::{Sha256, Sha512};
use std::fmt::{self, Write};

/// The digest of a blob, in the form that file names of an image have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Digest {
    algorithm: Algorithm,
    /// Lower case.
    hex: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Algorithm {
    Sha256,
    Sha512,
}

impl Algorithm {
    fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha512 => "sha512",
        }
    }

    fn digits(self) -> usize {
        match self {
            Self::Sha256 => 64,
            Self::Sha512 => 128,
        }
    }
}

impl Digest {
    /// Parses `ALGORITHM:HEX`. Nothing else than the digits of a known algorithm passes, so that no
    /// digest leads out of the folder of blobs.
    pub(crate) fn parse(text: &str) -> Result<Self, ImageError> {
        let found = [Algorithm::Sha256, Algorithm::Sha512].into_iter().find_map(|algorithm| {
            let hex = text.strip_prefix(algorithm.name())?.strip_prefix(':')?;
            let digits = hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
            (digits && hex.len() == algorithm.digits()).then(|| Self { algorithm, hex: hex.into() })
        });
        found.ok_or_else(|| ImageError::BadDigest(Text::of(text)))
    }

    /// Returns where a layout has the blob.
    pub(crate) fn path(&self) -> String {
        format!("blobs/{}/{}", self.algorithm.name(), self.hex)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.algorithm.name(), self.hex)
    }
}

impl Digest {
    /// Returns the digest that these bytes of SHA-256 are.
    pub(crate) fn of_sha256(bytes: &[u8]) -> Self {
        Self { algorithm: Algorithm::Sha256, hex: hex(bytes) }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// Computes a digest.
#[derive(Debug)]
pub(crate) enum Hasher {
    Sha256(Sha256),
    Sha512(Sha512),
}

impl Hasher {
    /// Returns a hasher for what is to have this digest.
    pub(crate) fn of(digest: &Digest) -> Self {
        use sha2::Digest as _;
        match digest.algorithm {
            Algorithm::Sha256 => Self::Sha256(Sha256::new()),
            Algorithm::Sha512 => Self::Sha512(Sha512::new()),
        }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        use sha2::Digest as _;
        match self {
            Self::Sha256(sha) => sha.update(bytes),
            Self::Sha512(sha) => sha.update(bytes),
        }
    }

    pub(crate) fn finish(self) -> Digest {
        use sha2::Digest as _;
        match self {
            Self::Sha256(sha) => Digest::of_sha256(&sha.finalize()),
            Self::Sha512(sha) => Digest { algorithm: Algorithm::Sha512, hex: hex(&sha.finalize()) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_sha256sum() {
        let text = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let digest = Digest::parse(text).expect("a digest");
        let mut hasher = Hasher::of(&digest);
        hasher.update(b"a");
        hasher.update(b"bc");
        assert_eq!(hasher.finish(), digest);
        assert_eq!(digest.to_string(), text);
        let long = format!("sha512:{}", "0a".repeat(64));
        assert_eq!(Digest::parse(&long).expect("a digest").path(), format!("blobs/sha512/{}", &long[7..]));
        assert_ne!(Hasher::of(&Digest::parse(&long).expect("a digest")).finish().to_string(), long);
    }

    #[test]
    fn nothing_else_is_a_digest() {
        let dots = format!("sha256:../{}", "0".repeat(61));
        let upper = format!("sha256:{}", "A".repeat(64));
        let short = format!("sha256:{}", "0".repeat(63));
        for bad in ["", "sha256:", "md5:00", &dots, &upper, &short, &"0".repeat(64)] {
            assert!(matches!(Digest::parse(bad), Err(ImageError::BadDigest(_))), "{bad}");
        }
    }
}
