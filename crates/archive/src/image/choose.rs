//! From the index of an image to the layers of the one that was asked for.

use super::blob::{Expected, Layer};
use super::digest::{Digest, Hasher};
use super::documents::{
    CONFIGS, Config, Descriptor, INDEXES, Index, LAYER_ENDS, LAYERS, LIST_MAX, MANIFESTS, Manifest,
    PlatformFields, Saved, parse,
};
use super::error::{ImageError, Text};
use super::platform::{Platform, same, shown};
use super::store::Store;
use crate::Cause;
use std::collections::BTreeSet;

/// Levels of indexes, which have [`LIST_MAX`] descriptors together.
const LEVELS: usize = 8;
/// Bytes of the documents that are read to find the image.
const DOCUMENTS_MAX: u64 = 128 << 20;
/// Images in a `manifest.json`.
const SAVED: usize = 1000;
/// Bytes of a platform, which is kept of each image until one is chosen.
const PLATFORM_MAX: usize = 256;

/// Which of the images that a layout or an archive has. Without a tag the only one, without a
/// platform that of this machine, or the only one.
#[derive(Debug, Clone, Default)]
pub struct ImageChoice {
    tag: Option<String>,
    platform: Option<Platform>,
}

impl ImageChoice {
    /// Chooses the only image, for this machine.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Chooses the image of that name: `3.20`, `alpine:3.20`, `docker.io/library/alpine:3.20`.
    #[must_use]
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tag = Some(tag.into());
        self
    }

    /// Chooses the image for a platform.
    #[must_use]
    pub fn platform(mut self, platform: Platform) -> Self {
        self.platform = Some(platform);
        self
    }

    /// Returns whether it asks for an image, and not for a plain archive.
    pub(crate) fn is_of_image(&self) -> bool {
        self.tag.is_some() || self.platform.is_some()
    }

    fn is_named(&self, name: &str) -> bool {
        self.tag.as_ref().is_none_or(|tag| {
            let before = name.strip_suffix(tag.as_str());
            before.is_some_and(|before| before.is_empty() || before.ends_with([':', '/']))
        })
    }

    /// Returns those of `all` that have the tag; all of them have to be one image. Each comes with
    /// its names.
    fn by_tag<T>(&self, all: Vec<(Vec<String>, T)>) -> Result<Vec<T>, ImageError> {
        let there = || Text::list(all.iter().flat_map(|(names, _)| names.clone()).collect::<BTreeSet<_>>());
        let named = |names: &[String]| names.iter().any(|name| self.is_named(name));
        if let Some(tag) = &self.tag
            && !all.iter().any(|(names, _)| named(names))
        {
            return Err(ImageError::NoSuchTag { tag: Text::of(tag), there: there() });
        }
        let chosen = |names: &Vec<String>| self.tag.is_none() || named(names);
        let firsts: BTreeSet<_> =
            all.iter().map(|(n, _)| n).filter(|n| chosen(n)).map(|n| n.first()).collect();
        if firsts.len() > 1 {
            return Err(ImageError::SeveralImages { there: there() });
        }
        Ok(all.into_iter().filter(|(names, _)| chosen(names)).map(|(_, one)| one).collect())
    }

    fn wanted(&self) -> Platform {
        self.platform.clone().unwrap_or_else(Platform::of_this_machine)
    }

    /// Returns the one of `all` that is for the platform.
    fn by_platform<T>(&self, mut all: Vec<(PlatformFields, T)>) -> Result<T, ImageError> {
        let wanted = self.wanted();
        let there = Text::list(all.iter().map(|(platform, _)| shown(platform)).collect::<BTreeSet<_>>());
        let fits = all.iter().position(|(platform, _)| wanted.fits(platform));
        let only = (self.platform.is_none() && all.len() == 1).then_some(0);
        match fits.or(only) {
            Some(at) => Ok(all.swap_remove(at).1),
            None => Err(ImageError::NoSuchPlatform { platform: Text::of(wanted), there }),
        }
    }
}

/// Returns the layers of the image that was chosen, the lowest first. Its documents are checked,
/// its layers are not.
pub(super) fn layers(store: &Store, choice: &ImageChoice) -> Result<Vec<Layer>, Cause> {
    if store.is_layout() { of_layout(store, choice) } else { of_saved(store, choice) }
}

fn of_layout(store: &Store, choice: &ImageChoice) -> Result<Vec<Layer>, Cause> {
    let index: Index = parse("index.json", &store.read("index.json")?)?;
    let mut named: Vec<(Vec<String>, Descriptor)> =
        index.manifests.into_iter().map(|of| (of.names(), of)).collect();
    // One image may have several names.
    if choice.tag.is_none() && named.windows(2).all(|two| two[0].1.digest == two[1].1.digest) {
        named.truncate(1);
    }
    let mut candidates = Vec::new();
    let roots = choice.by_tag(named)?;
    let nameless = roots.iter().all(|of| of.names().is_empty());
    let mut left: Vec<_> = roots.into_iter().enumerate().map(|(root, of)| (of, 0, root)).rev().collect();
    let (mut seen, mut bytes, mut unknown) = (0, 0u64, None);
    while let Some((of, level, root)) = left.pop() {
        seen += 1;
        if level > LEVELS || seen + left.len() > LIST_MAX || bytes > DOCUMENTS_MAX {
            return Err(ImageError::TooDeep(LEVELS).into());
        }
        if INDEXES.contains(&of.media_type.as_str()) {
            let digest = Digest::parse(&of.digest)?;
            let index: Index = parse(&of.digest, &store.read_checked(&digest, of.size)?)?;
            bytes += of.size;
            left.extend(index.manifests.into_iter().map(|of| (of, level + 1, root)).rev());
        } else if !MANIFESTS.contains(&of.media_type.as_str()) {
            unknown = Some(of);
        } else if !of.is_attestation() {
            let platform = match &of.platform {
                Some(platform) => bounded(&of.digest, platform.clone())?,
                None => {
                    let (manifest, config) = image(store, &of)?;
                    bytes += of.size + manifest.config.size;
                    bounded(&of.digest, config.platform())?
                }
            };
            candidates.push((platform, (root, of)));
        }
    }
    if let (true, Some(of)) = (candidates.is_empty(), unknown) {
        return Err(media_type(&of).into());
    }
    if nameless {
        one_image(&choice.wanted(), &candidates)?;
    }
    let (_, chosen) = choice.by_platform(candidates)?;
    let (manifest, config) = image(store, &chosen)?;
    let diff_ids = diff_ids(&config, manifest.layers.len())?;
    let layer = |(of, diff_id): (Descriptor, Digest)| {
        let digest = Digest::parse(&of.digest)?;
        is_layer(&of)?;
        let (blob, _) = store.blob(&digest.path())?;
        let name = of.digest.clone().into_bytes();
        let expected = Expected { blob: Some((digest, of.size)), diff_id: Some(diff_id) };
        Ok(Layer { name, blob, expected })
    };
    manifest.layers.into_iter().zip(diff_ids).map(layer).collect()
}

/// Refuses roots without names that are not the platforms of one image: two of them have different
/// images for the one that fits. Within one index the first counts.
fn one_image(wanted: &Platform, all: &[(PlatformFields, (usize, Descriptor))]) -> Result<(), ImageError> {
    let Some((platform, (root, of))) = all.iter().find(|(platform, _)| wanted.fits(platform)) else {
        return Ok(());
    };
    let other = all.iter().any(|(p, (r, o))| r != root && o.digest != of.digest && same(p, platform));
    if other { Err(nameless_images()) } else { Ok(()) }
}

fn nameless_images() -> ImageError {
    ImageError::SeveralImages { there: Text::of("none has a name") }
}

/// Returns the manifest and the configuration of an image, both checked.
fn image(store: &Store, of: &Descriptor) -> Result<(Manifest, Config), Cause> {
    let manifest: Manifest = parse(&of.digest, &store.read_checked(&Digest::parse(&of.digest)?, of.size)?)?;
    let config = &manifest.config;
    if !CONFIGS.contains(&config.media_type.as_str()) {
        return Err(media_type(config).into());
    }
    let bytes = store.read_checked(&Digest::parse(&config.digest)?, config.size)?;
    let config = parse(&config.digest, &bytes)?;
    Ok((manifest, config))
}

fn of_saved(store: &Store, choice: &ImageChoice) -> Result<Vec<Layer>, Cause> {
    let all: Vec<Saved> = parse("manifest.json", &store.read("manifest.json")?)?;
    if all.len() > SAVED {
        let rule = Text::of(format!("more than {SAVED} images"));
        return Err(ImageError::Document { name: Text::of("manifest.json"), rule }.into());
    }
    let named = all.into_iter().map(|one| (one.repo_tags.clone().unwrap_or_default(), one)).collect();
    let mut candidates = Vec::new();
    let chosen = choice.by_tag(named)?;
    let nameless = chosen.iter().all(|one| one.repo_tags.as_ref().is_none_or(Vec::is_empty));
    if nameless && chosen.windows(2).any(|two| two[0].config != two[1].config) {
        return Err(nameless_images().into());
    }
    for one in chosen {
        candidates.push((bounded(&one.config, saved_config(store, &one.config)?.platform())?, one));
    }
    let one = choice.by_platform(candidates)?;
    let config = saved_config(store, &one.config)?;
    let diff_ids = diff_ids(&config, one.layers.len())?;
    let layer = |(name, diff_id): (String, Digest)| {
        let (blob, _) = store.blob(&name)?;
        Ok(Layer { name: name.into_bytes(), blob, expected: Expected { blob: None, diff_id: Some(diff_id) } })
    };
    one.layers.into_iter().zip(diff_ids).map(layer).collect()
}

/// Returns a configuration. Its name is its digest, in older archives with an end.
fn saved_config(store: &Store, path: &str) -> Result<Config, Cause> {
    let bytes = store.read(path)?;
    let name = path.rsplit('/').next().unwrap_or_default();
    if let Ok(digest) = Digest::parse(&format!("sha256:{}", name.trim_end_matches(".json"))) {
        let mut hasher = Hasher::of(&digest);
        hasher.update(&bytes);
        let found = hasher.finish();
        if found != digest {
            return Err(ImageError::Digest { blob: Text::of(path), found: Text::of(found) }.into());
        }
    }
    Ok(parse(path, &bytes)?)
}

/// Returns the platform that `name` has.
fn bounded(name: &str, platform: PlatformFields) -> Result<PlatformFields, ImageError> {
    if shown(&platform).len() > PLATFORM_MAX {
        let rule = Text::of(format!("a platform of more than {PLATFORM_MAX} bytes"));
        return Err(ImageError::Document { name: Text::of(name), rule });
    }
    Ok(platform)
}

fn diff_ids(config: &Config, layers: usize) -> Result<Vec<Digest>, ImageError> {
    let ids = &config.rootfs.diff_ids;
    if ids.len() != layers {
        return Err(ImageError::Layers { layers, diff_ids: ids.len() });
    }
    ids.iter().map(|id| Digest::parse(id)).collect()
}

fn is_layer(of: &Descriptor) -> Result<(), ImageError> {
    if of.media_type.ends_with("+encrypted") {
        return Err(ImageError::Encrypted(Text::of(&of.digest)));
    }
    let known = LAYERS
        .iter()
        .any(|start| of.media_type.strip_prefix(start).is_some_and(|end| LAYER_ENDS.contains(&end)));
    if known { Ok(()) } else { Err(media_type(of)) }
}

fn media_type(of: &Descriptor) -> ImageError {
    ImageError::MediaType { what: Text::of(&of.digest), media_type: Text::of(&of.media_type) }
}
