//! The JSON documents of an image that is made. Their fields have a fixed order, so that the same
//! image has the same bytes.

use crate::Platform;
use lanefs::Timestamp;
use serde::Serialize;

pub(super) const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(super) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(super) const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
/// What a layout has in `oci-layout`.
pub(super) const LAYOUT: &str = r#"{"imageLayoutVersion":"1.0.0"}"#;

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Descriptor<'a> {
    pub(super) media_type: &'a str,
    pub(super) digest: String,
    pub(super) size: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) platform: Option<PlatformFields<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) annotations: Option<Annotations<'a>>,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct Annotations<'a> {
    #[serde(rename = "org.opencontainers.image.ref.name")]
    pub(super) ref_name: &'a str,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct PlatformFields<'a> {
    architecture: &'a str,
    os: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    variant: Option<&'a str>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Index<'a> {
    pub(super) schema_version: u32,
    pub(super) media_type: &'a str,
    pub(super) manifests: [Descriptor<'a>; 1],
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Manifest<'a> {
    pub(super) schema_version: u32,
    pub(super) media_type: &'a str,
    pub(super) config: Descriptor<'a>,
    pub(super) layers: Vec<Descriptor<'a>>,
}

#[derive(Debug, Serialize)]
pub(super) struct Config<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) created: Option<&'a str>,
    #[serde(flatten)]
    pub(super) platform: PlatformFields<'a>,
    pub(super) config: Settings,
    pub(super) rootfs: RootFs,
    pub(super) history: Vec<History<'a>>,
}

/// The configuration of a container: empty.
#[derive(Debug, Serialize)]
pub(super) struct Settings {}

#[derive(Debug, Serialize)]
pub(super) struct RootFs {
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    pub(super) diff_ids: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct History<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) created: Option<&'a str>,
    pub(super) created_by: &'static str,
}

impl<'a> PlatformFields<'a> {
    pub(super) fn of(platform: &'a Platform) -> Self {
        let (os, architecture, variant) = platform.parts();
        Self { architecture, os, variant }
    }
}

/// Returns a time as RFC 3339 has it, to the second; `None` for one before 1970 or behind 9999.
pub(super) fn rfc3339(time: Timestamp) -> Option<String> {
    let time = jiff::Timestamp::from_second(time.sec).ok()?;
    (time.as_second() >= 0).then(|| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_date() {
        for (sec, text) in [
            (0, Some("1970-01-01T00:00:00Z")),
            (951_782_399, Some("2000-02-28T23:59:59Z")),
            (951_782_400, Some("2000-02-29T00:00:00Z")),
            (1_709_251_199, Some("2024-02-29T23:59:59Z")),
            (4_107_542_400, Some("2100-03-01T00:00:00Z")),
            (253_402_000_000, Some("9999-12-28T12:26:40Z")),
            (253_402_300_800, None),
            (-1, None),
        ] {
            assert_eq!(rfc3339(Timestamp { sec, nsec: 9 }).as_deref(), text, "{sec}");
        }
    }
}
