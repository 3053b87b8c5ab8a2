//! The digest of a block: of the salt and the block, by SHA-256 or SHA-512.

use sha2::digest::Digest;
use sha2::{Sha256, Sha512};

/// A hash algorithm.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// SHA-256.
    #[default]
    Sha256,
    /// SHA-512.
    Sha512,
}

impl Algorithm {
    /// Returns its name in the superblock.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha512 => "sha512",
        }
    }

    /// Returns the length of a digest in bytes: a power of two, so that a block of the tree has no
    /// gaps.
    pub fn digest_size(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha512 => 64,
        }
    }

    /// Returns how many bytes the hash function takes at a time.
    pub(crate) fn input_size(self) -> usize {
        match self {
            Self::Sha256 => 64,
            Self::Sha512 => 128,
        }
    }

    /// Returns the digest of `bytes`, without a salt.
    pub fn digest(self, bytes: &[u8]) -> Vec<u8> {
        let mut digest = vec![0; self.digest_size()];
        Salted::new(self, &[]).digest_each(bytes, bytes.len(), &mut digest);
        digest
    }

    /// Returns the algorithm of a name.
    pub fn by_name(name: &str) -> Option<Self> {
        [Self::Sha256, Self::Sha512].into_iter().find(|algorithm| algorithm.name() == name)
    }
}

/// A hasher that has read the salt.
#[derive(Debug, Clone)]
pub(crate) enum Salted {
    Sha256(Sha256),
    Sha512(Sha512),
}

impl Salted {
    pub(crate) fn new(algorithm: Algorithm, salt: &[u8]) -> Self {
        match algorithm {
            Algorithm::Sha256 => Self::Sha256(Sha256::new_with_prefix(salt)),
            Algorithm::Sha512 => Self::Sha512(Sha512::new_with_prefix(salt)),
        }
    }

    /// Puts the digests of the blocks of `size` bytes in `data` one behind the other into `out`.
    pub(crate) fn digest_each(&self, data: &[u8], size: usize, out: &mut [u8]) {
        fn each<D: Digest + Clone>(salted: &D, data: &[u8], size: usize, out: &mut [u8]) {
            let digests = out.chunks_exact_mut(<D as Digest>::output_size());
            for (block, digest) in data.chunks_exact(size).zip(digests) {
                digest.copy_from_slice(&salted.clone().chain_update(block).finalize());
            }
        }
        match self {
            Self::Sha256(salted) => each(salted, data, size, out),
            Self::Sha512(salted) => each(salted, data, size, out),
        }
    }
}
