//! The JSON documents of an image, as far as an import needs them.
//!
//! Media types: those of OCI, and those of Docker's second schema, which say the same.
//!
//! Memory: what is not needed of a document is not kept, and its lists are bounded. Otherwise four
//! megabytes of JSON could take hundreds.

use super::error::{ImageError, Text};
use serde::de::{DeserializeOwned, Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::marker::PhantomData;

/// Bytes of a document that are read. Indexes and manifests of the largest images have a tenth.
pub(super) const DOCUMENT_MAX: u64 = 4 << 20;
/// Descriptors of a list, names of an image, or digests.
pub(super) const LIST_MAX: usize = 10_000;

pub(super) const INDEXES: &[&str] =
    &["application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json"];
pub(super) const MANIFESTS: &[&str] =
    &["application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json"];
pub(super) const CONFIGS: &[&str] =
    &["application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"];
/// How the media type of a layer begins; how it is compressed, its content says.
pub(super) const LAYERS: &[&str] = &[
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.oci.image.layer.nondistributable.v1.tar",
    "application/vnd.docker.image.rootfs.diff.tar",
    "application/vnd.docker.image.rootfs.foreign.diff.tar",
];
/// What may follow in the media type of a layer.
pub(super) const LAYER_ENDS: &[&str] = &["", "+gzip", "+zstd", "+xz", "+bzip2", ".gzip", ".zstd"];

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Descriptor {
    #[serde(default)]
    pub(super) media_type: String,
    pub(super) digest: String,
    pub(super) size: u64,
    #[serde(default)]
    pub(super) platform: Option<PlatformFields>,
    #[serde(default)]
    annotations: Option<Annotations>,
}

/// The annotations of a descriptor that mean something here.
#[derive(Debug, Clone, Default, Deserialize)]
struct Annotations {
    #[serde(default, rename = "io.containerd.image.name")]
    image_name: Option<String>,
    #[serde(default, rename = "org.opencontainers.image.ref.name")]
    ref_name: Option<String>,
    #[serde(default, rename = "vnd.docker.reference.type")]
    reference_type: Option<String>,
}

impl Descriptor {
    /// Returns the names of the image.
    pub(super) fn names(&self) -> Vec<String> {
        let names = self.annotations.iter().flat_map(|of| [&of.image_name, &of.ref_name]);
        names.flatten().cloned().collect()
    }

    /// Returns whether a manifest tells of another one's origin (BuildKit), and is no image.
    pub(super) fn is_attestation(&self) -> bool {
        self.annotations.as_ref().is_some_and(|of| of.reference_type.is_some())
            || self.platform.as_ref().is_some_and(|platform| platform.architecture == "unknown")
    }
}

/// Of a descriptor, and of a configuration.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct PlatformFields {
    #[serde(default)]
    pub(super) os: String,
    #[serde(default)]
    pub(super) architecture: String,
    #[serde(default)]
    pub(super) variant: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Index {
    #[serde(deserialize_with = "list")]
    pub(super) manifests: Vec<Descriptor>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Manifest {
    pub(super) config: Descriptor,
    #[serde(deserialize_with = "list")]
    pub(super) layers: Vec<Descriptor>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Config {
    // Not flattened: that would collect all other fields of the document.
    #[serde(default)]
    os: String,
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    variant: Option<String>,
    pub(super) rootfs: RootFs,
}

impl Config {
    pub(super) fn platform(self) -> PlatformFields {
        PlatformFields { os: self.os, architecture: self.architecture, variant: self.variant }
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct RootFs {
    #[serde(deserialize_with = "list")]
    pub(super) diff_ids: Vec<String>,
}

/// An image in the `manifest.json` of `docker save`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Saved {
    pub(super) config: String,
    #[serde(default)]
    pub(super) repo_tags: Option<Vec<String>>,
    #[serde(deserialize_with = "list")]
    pub(super) layers: Vec<String>,
}

/// Parses a document, whose name in errors is `name`.
pub(super) fn parse<T: DeserializeOwned>(name: &str, bytes: &[u8]) -> Result<T, ImageError> {
    serde_json::from_slice(bytes)
        .map_err(|e| ImageError::Document { name: Text::of(name), rule: Text::of(e) })
}

/// Reads a list of at most [`LIST_MAX`] items.
fn list<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    struct List<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for List<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
            let mut all = Vec::new();
            while let Some(item) = items.next_element()? {
                if all.len() == LIST_MAX {
                    return Err(A::Error::custom(format!("a list of more than {LIST_MAX} items")));
                }
                all.push(item);
            }
            Ok(all)
        }
    }

    from.deserialize_seq(List(PhantomData))
}
