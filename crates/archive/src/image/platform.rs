//! Platforms, and which image is for one.

use super::documents::PlatformFields;
use std::fmt;
use std::str::FromStr;

/// A platform that an image is for: `linux/amd64`, `linux/arm/v7`.
///
/// ```
/// use lanefs_archive::Platform;
/// let platform: Platform = "linux/arm64".parse()?;
/// assert_eq!(platform.to_string(), "linux/arm64");
/// # Ok::<(), lanefs_archive::PlatformError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Platform {
    os: String,
    architecture: String,
    variant: Option<String>,
}

/// A text that names no platform.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no platform: write OS/ARCHITECTURE or OS/ARCHITECTURE/VARIANT, as linux/arm64")]
pub struct PlatformError(String);

impl Platform {
    /// Returns the platform of Linux on this machine.
    #[must_use]
    pub fn of_this_machine() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "x86" => "386",
            "aarch64" => "arm64",
            "loongarch64" => "loong64",
            "powerpc64" if cfg!(target_endian = "little") => "ppc64le",
            "powerpc64" => "ppc64",
            other => other,
        };
        Self { os: "linux".into(), architecture: architecture.into(), variant: None }
    }

    /// Returns system, architecture and variant.
    pub(crate) fn parts(&self) -> (&str, &str, Option<&str>) {
        (&self.os, &self.architecture, self.variant.as_deref())
    }

    /// Returns whether an image that is for `other` fits. Without a variant any fits; arm64 is
    /// arm64/v8.
    pub(super) fn fits(&self, other: &PlatformFields) -> bool {
        let variant = |variant: &Option<String>| match (variant.as_deref(), &self.architecture[..]) {
            (None | Some("") | Some("v8"), "arm64") => None,
            (None | Some(""), _) => None,
            (Some(variant), _) => Some(variant.to_owned()),
        };
        self.os == other.os
            && self.architecture == other.architecture
            && (self.variant.is_none() || variant(&self.variant) == variant(&other.variant))
    }
}

impl FromStr for Platform {
    type Err = PlatformError;

    fn from_str(text: &str) -> Result<Self, PlatformError> {
        let parts: Vec<&str> = text.split('/').collect();
        let (os, architecture, variant) = match parts[..] {
            [os, architecture] => (os, architecture, None),
            [os, architecture, variant] => (os, architecture, Some(variant)),
            _ => return Err(PlatformError(text.into())),
        };
        if parts.iter().any(|part| part.is_empty()) {
            return Err(PlatformError(text.into()));
        }
        Ok(Self { os: os.into(), architecture: architecture.into(), variant: variant.map(Into::into) })
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        self.variant.iter().try_for_each(|variant| write!(f, "/{variant}"))
    }
}

/// Returns the text of a platform of an image.
pub(super) fn shown(of: &PlatformFields) -> String {
    platform(of).to_string()
}

/// Returns whether two images are for the same platform, and variant of it.
pub(super) fn same(one: &PlatformFields, other: &PlatformFields) -> bool {
    platform(one).fits(other) && platform(other).fits(one)
}

fn platform(of: &PlatformFields) -> Platform {
    let PlatformFields { os, architecture, variant } = of.clone();
    Platform { os, architecture, variant: variant.filter(|v| !v.is_empty()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn platforms_fit() {
        let fields = |text: &str| {
            let Platform { os, architecture, variant } = text.parse().expect("a platform");
            PlatformFields { os, architecture, variant }
        };
        for (wanted, there, fits) in [
            ("linux/arm64", "linux/arm64/v8", true),
            ("linux/arm64/v8", "linux/arm64", true),
            ("linux/arm64/v9", "linux/arm64", false),
            ("linux/arm", "linux/arm/v7", true),
            ("linux/arm/v6", "linux/arm/v7", false),
            ("linux/amd64", "windows/amd64", false),
            ("linux/amd64", "linux/arm64", false),
        ] {
            let wanted: Platform = wanted.parse().expect("a platform");
            assert_eq!(wanted.fits(&fields(there)), fits, "{wanted} {there}");
        }
        for bad in ["", "linux", "linux/", "/amd64", "a/b/c/d"] {
            assert!(bad.parse::<Platform>().is_err(), "{bad}");
        }
    }
}
