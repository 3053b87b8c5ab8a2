//! Errors of an image.

use std::fmt;

/// A defect of an image.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// Neither a layout (`oci-layout` and `index.json`) nor an archive of `docker save`.
    #[error("this is no image: neither an OCI layout nor an archive of docker save")]
    NotAnImage,
    /// The tar archive that holds the image is compressed, and an image is not read front to back.
    #[error("an image in a compressed archive ({0})")]
    Compressed(&'static str),
    /// More names in the archive of the image than any has.
    #[error("more than {0} names beside the layers")]
    TooManyNames(usize),
    /// A document that is not what it should be.
    #[error("{name}: {rule}")]
    Document {
        /// The file, or the digest of the blob.
        name: Text,
        /// What is wrong.
        rule: Text,
    },
    /// A digest of no known form.
    #[error("'{0}' is no sha256 or sha512 digest")]
    BadDigest(Text),
    /// A file or a blob that the image names and does not have. Layers that are to be fetched
    /// elsewhere are among them.
    #[error("{0} is missing")]
    Missing(Text),
    /// A blob has other bytes than its digest says.
    #[error("{blob} has digest {found}")]
    Digest {
        /// The blob.
        blob: Text,
        /// The digest of its bytes.
        found: Text,
    },
    /// A blob is longer or shorter than its descriptor says.
    #[error("{blob} has {found} bytes, not {expected}")]
    Size {
        /// The blob.
        blob: Text,
        /// Bytes that it should have.
        expected: u64,
        /// Bytes that it has, at least.
        found: u64,
    },
    /// A layer unpacks to other bytes than the image's configuration says.
    #[error("{layer} unpacks to {found}, not {expected}")]
    DiffId {
        /// The layer.
        layer: Text,
        /// The digest that it should have unpacked.
        expected: Text,
        /// The digest that it has.
        found: Text,
    },
    /// The configuration and the manifest disagree about the layers.
    #[error("{layers} layers, and digests of {diff_ids}")]
    Layers {
        /// Layers of the manifest.
        layers: usize,
        /// Digests in the configuration.
        diff_ids: usize,
    },
    /// An encrypted layer.
    #[error("layer {0} is encrypted")]
    Encrypted(Text),
    /// Something that is no image, or no layer.
    #[error("{what} has the media type '{media_type}', which is not known")]
    MediaType {
        /// The digest.
        what: Text,
        /// Its type.
        media_type: Text,
    },
    /// Indexes within indexes.
    #[error("indexes of more than {0} levels, or of too many images")]
    TooDeep(usize),
    /// No image has the tag.
    #[error("no image is named '{tag}'; there is {there}")]
    NoSuchTag {
        /// The tag that was asked for.
        tag: Text,
        /// Those that exist.
        there: Text,
    },
    /// Several images, and none was chosen.
    #[error("it holds several images, choose by IMAGE:TAG: {there}")]
    SeveralImages {
        /// Their tags.
        there: Text,
    },
    /// No image is for the platform.
    #[error("no image is for {platform}; there is {there}")]
    NoSuchPlatform {
        /// The platform that was asked for.
        platform: Text,
        /// Those that exist.
        there: Text,
    },
}

/// Text that may come from an image: short, and without control characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text(Box<str>);

impl Text {
    const MOST: usize = 200;

    /// Returns the text with control characters escaped, cut if it is long.
    pub(crate) fn of(text: impl fmt::Display) -> Self {
        let text = text.to_string();
        let mut out = String::new();
        for c in text.chars() {
            if out.len() >= Self::MOST {
                out.push_str("...");
                break;
            }
            if c.is_control() { out.extend(c.escape_default()) } else { out.push(c) }
        }
        Self(out.into())
    }

    /// Returns a list, at most twenty of it.
    pub(crate) fn list(items: impl IntoIterator<Item = String>) -> Self {
        let mut out = Vec::new();
        let mut items = items.into_iter();
        out.extend(items.by_ref().take(20).map(|item| Self::of(item).0));
        let more = items.count();
        if more > 0 {
            out.push(format!("{more} more").into());
        }
        Self(if out.is_empty() { "none".into() } else { out.join(", ").into() })
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
