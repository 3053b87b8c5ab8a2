//! Images made by hand: layouts and archives of `docker save`, good ones and bad ones.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panic")]

mod support;

use lanefs_archive::{BuildOptions, Cause, Error, ImageChoice, ImageError, ImportOptions, Source, build};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::io::{Cursor, Read, Write};
use std::ops::ControlFlow::Continue;
use std::path::PathBuf;
use support::{Tar, listing, skipped, volume};
use tempfile::TempDir;

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

fn digest(bytes: &[u8]) -> String {
    let hex: String = Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect();
    format!("sha256:{hex}")
}

/// An OCI layout: its files by their paths.
#[derive(Clone, Default)]
struct Layout {
    files: BTreeMap<String, Vec<u8>>,
    manifests: Vec<Value>,
}

impl Layout {
    /// Adds a blob; its descriptor.
    fn blob(&mut self, media_type: &str, bytes: &[u8]) -> Value {
        let digest = digest(bytes);
        self.files.insert(format!("blobs/{}", digest.replace(':', "/")), bytes.to_vec());
        json!({"mediaType": media_type, "digest": digest, "size": bytes.len()})
    }

    /// Adds an image; the descriptor of its manifest. Layers: as they are packed, and unpacked.
    fn image(&mut self, architecture: &str, layers: &[(Vec<u8>, Vec<u8>)]) -> Value {
        let diff_ids: Vec<_> = layers.iter().map(|(_, plain)| digest(plain)).collect();
        let config = json!({"architecture": architecture, "os": "linux", "config": {},
            "rootfs": {"type": "layers", "diff_ids": diff_ids}});
        let config = self.blob(CONFIG, config.to_string().as_bytes());
        let layers: Vec<_> = layers.iter().map(|(packed, _)| self.blob(LAYER, packed)).collect();
        let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers});
        self.blob(MANIFEST, manifest.to_string().as_bytes())
    }

    fn named(&mut self, mut of: Value, name: &str) {
        of["annotations"] = json!({"org.opencontainers.image.ref.name": name});
        self.manifests.push(of);
    }

    /// Writes it as a folder.
    fn folder(&self) -> (TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        for (name, bytes) in self.all() {
            let file = path.join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, bytes).unwrap();
        }
        (dir, path)
    }

    /// Writes it as an archive.
    fn archive(&self) -> (TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image.tar");
        let start = Tar::new().dir("blobs").dir("blobs/sha256");
        let add = |tar: Tar, (name, bytes): (String, Vec<u8>)| tar.member(b'0', &name, "", &bytes, &[]);
        fs::write(&path, self.all().into_iter().fold(start, add).end()).unwrap();
        (dir, path)
    }

    fn all(&self) -> BTreeMap<String, Vec<u8>> {
        let mut files = self.files.clone();
        files.insert("oci-layout".into(), br#"{"imageLayoutVersion": "1.0.0"}"#.to_vec());
        let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": self.manifests});
        files.entry("index.json".into()).or_insert_with(|| index.to_string().into_bytes());
        files
    }
}

fn plain(tar: Tar) -> (Vec<u8>, Vec<u8>) {
    let bytes = tar.end();
    (bytes.clone(), bytes)
}

fn gzip(tar: Tar) -> (Vec<u8>, Vec<u8>) {
    let bytes = tar.end();
    let mut to = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    to.write_all(&bytes).unwrap();
    (to.finish().unwrap(), bytes)
}

fn xz(tar: Tar) -> (Vec<u8>, Vec<u8>) {
    let bytes = tar.end();
    let mut to = liblzma::write::XzEncoder::new(Vec::new(), 1);
    to.write_all(&bytes).unwrap();
    (to.finish().unwrap(), bytes)
}

fn zstd(tar: Tar) -> (Vec<u8>, Vec<u8>) {
    let bytes = tar.end();
    (zstd::encode_all(&bytes[..], 1).unwrap(), bytes)
}

/// As pzstd does: the size of the frame is in a skippable frame before it.
fn pzstd(tar: Tar) -> (Vec<u8>, Vec<u8>) {
    let (frame, bytes) = zstd(tar);
    let size = (frame.len() as u32).to_le_bytes();
    ([&b"\x50\x2A\x4D\x18\x04\0\0\0"[..], &size[..], &frame[..]].concat(), bytes)
}

fn bzip2(tar: Tar) -> (Vec<u8>, Vec<u8>) {
    let bytes = tar.end();
    let mut to = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
    to.write_all(&bytes).unwrap();
    (to.finish().unwrap(), bytes)
}

/// Three layers, and what they are together.
fn three() -> Vec<(Vec<u8>, Vec<u8>)> {
    vec![
        gzip(Tar::new().dir("etc").file("etc/passwd", "root").file("gone", "x")),
        zstd(Tar::new().empty(".wh.gone").file("etc/hosts", "local")),
        plain(Tar::new().link("etc/passwd-", "etc/passwd")),
    ]
}

const TREE: [&str; 4] = ["etc/", "etc/hosts=local", "etc/passwd-=root", "etc/passwd=root"];

fn one() -> Layout {
    let mut layout = Layout::default();
    let image = layout.image("amd64", &three());
    layout.named(image, "latest");
    layout
}

/// What an image makes of an empty volume.
fn tree(path: &PathBuf, choice: &ImageChoice) -> Result<Vec<String>, Error> {
    let volume = volume();
    let skipped = skipped(Source::image(path, choice)?, &volume, &ImportOptions::new())?;
    assert!(skipped.is_empty(), "{skipped:?}");
    Ok(listing(&volume))
}

/// The error of an image, which leaves the volume as it was.
fn refused(layout: &Layout, choice: &ImageChoice) -> String {
    let mut texts = Vec::new();
    for (_dir, path) in [layout.folder(), layout.archive()] {
        let volume = volume();
        let source = Source::image(&path, choice);
        let error = match source {
            Ok(source) => skipped(source, &volume, &ImportOptions::new()).unwrap_err(),
            Err(error) => error,
        };
        assert!(listing(&volume).is_empty(), "nothing is left half done: {error}");
        let text = error.to_string();
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(matches!(error.cause(), Cause::Image(_) | Cause::Archive { .. } | Cause::Io(_)), "{error:?}");
        texts.push(error.reason());
    }
    assert_eq!(texts[0], texts[1]);
    texts.remove(0)
}

#[test]
fn a_layout_is_told_by_its_content() {
    for (_dir, path) in [one().folder(), one().archive()] {
        assert_eq!(tree(&path, &ImageChoice::new()).unwrap(), TREE);
        assert_eq!(tree(&path, &ImageChoice::new().tag("latest")).unwrap(), TREE);
        let volume = volume();
        assert!(skipped(Source::open(&path).unwrap(), &volume, &ImportOptions::new()).unwrap().is_empty());
        assert_eq!(listing(&volume), TREE);
    }
    // Every compression, whatever the media type says.
    let mut layout = Layout::default();
    let base = || Tar::new().file("f", "f");
    let all = [gzip(base()), xz(base()), zstd(base()), pzstd(base()), bzip2(base()), plain(base())];
    let image = layout.image("amd64", &all);
    layout.named(image, "all");
    let (_dir, path) = layout.folder();
    assert_eq!(tree(&path, &ImageChoice::new()).unwrap(), ["f=f"]);
}

/// An archive of something else stays what it is.
#[test]
fn a_plain_archive_stays_plain() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.tar");
    for tar in [
        Tar::new().dir("blobs").file("manifest.json", "[]").file("etc", "x"),
        Tar::new().file("manifest.json", "[]"),
        Tar::new().file("oci-layout", "{}").empty(".wh.x"),
        Tar::new().dir("blobs").file("blobs/x", "x"),
    ] {
        for bytes in [tar.clone().end(), gzip(tar.clone()).0] {
            fs::write(&path, bytes).unwrap();
            let volume = volume();
            let source = Source::open(&path).unwrap();
            assert!(!source.is_image());
            assert!(skipped(source, &volume, &ImportOptions::new()).unwrap().is_empty());
            assert!(!listing(&volume).is_empty());
            let error = Source::image(&path, &ImageChoice::new()).unwrap_err();
            assert!(matches!(error.cause(), Cause::Image(ImageError::NotAnImage)), "{error}");
        }
    }
    let (_dir, image) = one().archive();
    let packed = zstd::encode_all(&fs::read(image).unwrap()[..], 1).unwrap();
    fs::write(&path, packed).unwrap();
    let error = Source::open(&path).unwrap_err();
    assert!(matches!(error.cause(), Cause::Image(ImageError::Compressed("zstd"))), "{error}");
}

#[test]
fn tags_and_platforms_choose() {
    let mut layout = Layout::default();
    let image = |layout: &mut Layout, arch: &str| {
        let mut of = layout.image(arch, &[plain(Tar::new().file("arch", arch))]);
        of["platform"] = json!({"os": "linux", "architecture": arch});
        of
    };
    let both = [image(&mut layout, "amd64"), image(&mut layout, "arm64")];
    // An attestation is no image.
    let mut other = layout.image("unknown", &[]);
    other["platform"] = json!({"os": "unknown", "architecture": "unknown"});
    let inner = json!({"schemaVersion": 2, "manifests": [other, both[0], both[1]]});
    let inner = layout.blob(INDEX, inner.to_string().as_bytes());
    let outer = json!({"schemaVersion": 2, "manifests": [inner]});
    let outer = layout.blob(INDEX, outer.to_string().as_bytes());
    layout.named(outer, "many");
    let single = layout.image("s390x", &[plain(Tar::new().file("arch", "s390x"))]);
    layout.named(single, "docker.io/library/single:3.20");
    let choice = |tag: &str, platform: &str| {
        let choice = ImageChoice::new().tag(tag);
        if platform.is_empty() { choice } else { choice.platform(platform.parse().unwrap()) }
    };
    let (_dir, path) = layout.archive();
    for (tag, platform, arch) in [
        ("many", "linux/arm64", "arm64"),
        ("many", "linux/amd64", "amd64"),
        ("single:3.20", "", "s390x"),
        ("3.20", "linux/s390x", "s390x"),
    ] {
        assert_eq!(tree(&path, &choice(tag, platform)).unwrap(), [format!("arch={arch}")]);
    }
    let there = "docker.io/library/single:3.20, many";
    assert_eq!(refused(&layout, &choice("none", "")), format!("no image is named 'none'; there is {there}"));
    assert_eq!(
        refused(&layout, &choice("ingle:3.20", "")),
        format!("no image is named 'ingle:3.20'; there is {there}")
    );
    assert_eq!(
        refused(&layout, &ImageChoice::new()),
        format!("it holds several images, choose by IMAGE:TAG: {there}")
    );
    assert_eq!(
        refused(&layout, &choice("many", "linux/riscv64")),
        "no image is for linux/riscv64; there is linux/amd64, linux/arm64"
    );
    assert_eq!(
        refused(&layout, &choice("single:3.20", "linux/arm/v7")),
        "no image is for linux/arm/v7; there is linux/s390x"
    );
}

/// Replaces a blob by other bytes under its digest.
fn replaced(layout: &Layout, blob: &[u8], by: &[u8]) -> Layout {
    let mut layout = layout.clone();
    layout.files.insert(format!("blobs/{}", digest(blob).replace(':', "/")), by.to_vec());
    layout
}

#[test]
fn a_wrong_blob_is_named_and_nothing_is_written() {
    let (layout, layers) = (one(), three());
    let choice = ImageChoice::new();
    for (blob, _) in &layers {
        let name = digest(blob);
        let mut flipped = blob.clone();
        let last = flipped.len() - 1;
        flipped[last] ^= 1;
        let want = format!("{name} has digest {}", digest(&flipped));
        assert_eq!(refused(&replaced(&layout, blob, &flipped), &choice), want);
        let cut = &blob[..last];
        let want = format!("{name} has {} bytes, not {}", last, blob.len());
        assert_eq!(refused(&replaced(&layout, blob, cut), &choice), want);
        let longer = [blob, &[0; 5000][..]].concat();
        let want = format!("{name} has {} bytes, not {}", blob.len() + 1, blob.len());
        assert_eq!(refused(&replaced(&layout, blob, &longer), &choice), want);
        let mut without = layout.clone();
        without.files.remove(&format!("blobs/{}", name.replace(':', "/")));
        assert_eq!(refused(&without, &choice), format!("blobs/{} is missing", name.replace(':', "/")));
    }
    // Documents: the manifest and the configuration, each as long as before.
    for (path, bytes) in &layout.files {
        if bytes.starts_with(b"{") {
            let mut other = layout.clone();
            other.files.get_mut(path).unwrap()[1] ^= 1;
            let name = path.strip_prefix("blobs/").unwrap().replace('/', ":");
            assert!(refused(&other, &choice).starts_with(&format!("{name} has digest ")));
        }
    }
}

#[test]
fn a_layer_unpacks_to_what_the_image_says() {
    let mut layout = Layout::default();
    let (good, bad) = (gzip(Tar::new().file("a", "a")), gzip(Tar::new().file("b", "b")));
    let image = layout.image("amd64", &[good.clone(), (bad.0.clone(), good.1.clone())]);
    layout.named(image, "x");
    let want = format!("{} unpacks to {}, not {}", digest(&bad.0), digest(&bad.1), digest(&good.1));
    assert_eq!(refused(&layout, &ImageChoice::new()), want);
    // An archive that is broken, with right digests: the layers below it are not written either.
    let mut broken = Tar::new().file("a", &"a".repeat(5000)).end();
    broken.truncate(3000);
    let mut layout = Layout::default();
    let image = layout.image("amd64", &[good.clone(), (broken.clone(), broken)]);
    layout.named(image, "x");
    assert!(refused(&layout, &ImageChoice::new()).ends_with("the archive ends inside a member"));
    // One layer more than digests.
    let mut layout = Layout::default();
    let image = layout.image("amd64", &[good.clone(), good]);
    let path = format!("blobs/{}", image["digest"].as_str().unwrap().replace(':', "/"));
    let mut manifest: Value = serde_json::from_slice(&layout.files[&path]).unwrap();
    manifest["layers"].as_array_mut().unwrap().pop();
    let image = layout.blob(MANIFEST, manifest.to_string().as_bytes());
    layout.named(image, "x");
    assert_eq!(refused(&layout, &ImageChoice::new()), "1 layers, and digests of 2");
}

#[test]
fn what_is_no_layer_is_refused() {
    let with_layer = |change: &dyn Fn(&mut Value)| {
        let mut layout = Layout::default();
        let (packed, plain) = gzip(Tar::new().file("a", "a"));
        let config =
            json!({"architecture": "amd64", "os": "linux", "rootfs": {"diff_ids": [digest(&plain)]}});
        let config = layout.blob(CONFIG, config.to_string().as_bytes());
        let mut layer = layout.blob(LAYER, &packed);
        change(&mut layer);
        let manifest = json!({"config": config, "layers": [layer]});
        let of = layout.blob(MANIFEST, manifest.to_string().as_bytes());
        layout.named(of, "x");
        refused(&layout, &ImageChoice::new())
    };
    let name = digest(&gzip(Tar::new().file("a", "a")).0);
    let encrypted = with_layer(&|layer| layer["mediaType"] = json!(format!("{LAYER}+gzip+encrypted")));
    assert_eq!(encrypted, format!("layer {name} is encrypted"));
    let helm = with_layer(&|layer| layer["mediaType"] = json!("application/vnd.cncf.helm\u{1b}[31m"));
    assert_eq!(
        helm,
        format!("{name} has the media type 'application/vnd.cncf.helm\\u{{1b}}[31m', which is not known")
    );
    let md5 = with_layer(&|layer| layer["digest"] = json!("md5:00"));
    assert_eq!(md5, "'md5:00' is no sha256 or sha512 digest");
    let out = with_layer(&|layer| layer["digest"] = json!("sha256:../../../../etc/passwd"));
    assert_eq!(out, "'sha256:../../../../etc/passwd' is no sha256 or sha512 digest");
    let size = with_layer(&|layer| layer["size"] = json!(-1));
    assert!(size.contains("invalid value"), "{size}");
    let size = with_layer(&|layer| layer["size"] = json!(u64::MAX));
    assert!(size.ends_with(&format!(" bytes, not {}", u64::MAX)), "{size}");
}

#[test]
fn documents_are_bounded() {
    let choice = ImageChoice::new();
    let mut layout = one();
    for (bytes, want) in [
        (vec![b' '; (4 << 20) + 1], "index.json: a document of more than 4194304 bytes"),
        (vec![b'['; 1 << 20], "index.json: "),
        (b"\xff".to_vec(), "index.json: "),
        (b"".to_vec(), "index.json: "),
    ] {
        layout.files.insert("index.json".into(), bytes);
        assert!(refused(&layout, &choice).starts_with(want), "{want}");
    }
    // An index in an index in an index ...
    let mut layout = one();
    let mut of = layout.manifests.remove(0);
    for _ in 0..12 {
        of = layout.blob(INDEX, json!({"manifests": [of]}).to_string().as_bytes());
    }
    layout.named(of, "deep");
    assert!(refused(&layout, &choice).starts_with("indexes of more than 8 levels"));
    // ... and one that names itself ever so often.
    let mut layout = one();
    let mut of = layout.manifests.remove(0);
    for _ in 0..7 {
        of = layout.blob(INDEX, json!({"manifests": vec![of; 50]}).to_string().as_bytes());
    }
    layout.named(of, "wide");
    assert!(refused(&layout, &choice).starts_with("indexes of more than 8 levels"));
}

#[test]
fn a_bomb_ends_before_anything_is_written() {
    let mut layout = Layout::default();
    let bomb = zstd(Tar::new().file("zeros", &"\0".repeat(50 << 20)));
    let image = layout.image("amd64", &[gzip(Tar::new().file("a", "a")), bomb]);
    layout.named(image, "x");
    let (_dir, path) = layout.folder();
    let volume = volume();
    let source = Source::open(&path).unwrap();
    let error = skipped(source, &volume, &ImportOptions::new().max_size(1 << 20)).unwrap_err();
    assert!(matches!(error.cause(), Cause::TooLarge(1_048_576)), "{error}");
    assert!(listing(&volume).is_empty());
}

/// As docker save has it: layers as they are, or as links to those of other images.
#[test]
fn docker_save_is_read() {
    let layers = three();
    let diff_ids: Vec<_> = layers.iter().map(|(_, plain)| digest(plain)).collect();
    let config =
        json!({"architecture": "amd64", "os": "linux", "rootfs": {"diff_ids": diff_ids}}).to_string();
    let id = |bytes: &[u8]| digest(bytes)[7..].to_owned();
    let names: Vec<_> = layers.iter().map(|(_, plain)| format!("{}/layer.tar", id(plain))).collect();
    let save = |config: &str, tags: Value, names: &[String]| {
        let config_name = format!("{}.json", id(config.as_bytes()));
        let manifest = json!([
            {"Config": config_name, "RepoTags": tags, "Layers": names},
            {"Config": config_name, "RepoTags": ["other:1"], "Layers": names},
        ]);
        let mut tar = Tar::new().member(b'0', &config_name, "", config.as_bytes(), &[]);
        for (i, ((_, plain), name)) in layers.iter().zip(names).enumerate() {
            let real = format!("{}/layer.tar", "a".repeat(63) + &i.to_string());
            tar = tar.member(b'0', &real, "", plain, &[]);
            // Nothing leads to the layer that is not there.
            tar = if name.starts_with("..") { tar } else { tar.symlink(name, &format!("../{real}")) };
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("saved");
        fs::write(&path, tar.file("manifest.json", &manifest.to_string()).end()).unwrap();
        (dir, path)
    };
    let (_dir, path) = save(&config, json!(["app:latest", "app:2"]), &names);
    for tag in ["app:latest", "latest", "app:2", "1"] {
        assert_eq!(tree(&path, &ImageChoice::new().tag(tag)).unwrap(), TREE, "{tag}");
    }
    let error = tree(&path, &ImageChoice::new()).unwrap_err();
    assert!(error.to_string().ends_with("choose by IMAGE:TAG: app:2, app:latest, other:1"), "{error}");
    // A layer that is not there.
    let gone: Vec<_> = names.iter().take(2).cloned().chain(["../gone/layer.tar".into()]).collect();
    let (_dir, path) = save(&config, Value::Null, &gone);
    let error = tree(&path, &ImageChoice::new().tag("other:1")).unwrap_err();
    assert!(error.to_string().ends_with(": ../gone/layer.tar is missing"), "{error}");
    // A layer with another content.
    let wrong = config.replacen(&diff_ids[0][7..11], "0000", 1);
    let (_dir, path) = save(&wrong, Value::Null, &names);
    let error = tree(&path, &ImageChoice::new().tag("other:1")).unwrap_err();
    assert!(matches!(error.cause(), Cause::Image(ImageError::DiffId { .. })), "{error}");
}

/// A build passes over the data of layers that are not compressed, but not where a digest is known:
/// that is of all bytes, those behind the archive's end too.
#[test]
fn a_build_checks_digests_of_plain_layers() {
    let layer = plain(Tar::new().file("f", "f"));
    let mut layout = Layout::default();
    let image = layout.image("amd64", std::slice::from_ref(&layer));
    layout.named(image, "x");
    let build_of = |layout: &Layout| {
        let (dir, path) = layout.archive();
        let (source, image) = (Source::open(path).unwrap(), dir.path().join("v.img"));
        build(source, image, &BuildOptions::new(), |_| Continue(())).map(drop)
    };
    build_of(&layout).unwrap();
    for at in [513, layer.0.len() - 1] {
        let mut flipped = layer.0.clone();
        flipped[at] ^= 1;
        let error = build_of(&replaced(&layout, &layer.0, &flipped)).unwrap_err();
        assert!(matches!(error.cause(), Cause::Image(ImageError::Digest { .. })), "{at}: {error}");
    }
}

/// The file would be a part of what is read.
#[test]
fn a_target_in_a_layout_is_refused() {
    let (_dir, path) = one().folder();
    let build_at = |target: PathBuf| {
        let source = Source::image(&path, &ImageChoice::new().tag("latest")).unwrap();
        build(source, target, &BuildOptions::new(), |_| Continue(())).map(drop)
    };
    for name in ["v.img", "blobs/v.img", "blobs/sha256/v.img"] {
        let error = build_at(path.join(name)).unwrap_err();
        assert!(matches!(error.cause(), Cause::TargetInSource), "{name}: {error}");
        assert!(!path.join(name).exists());
    }
    build_at(path.with_file_name("v.img")).unwrap();
}

/// What is read of a pipe to find an image in it is bounded as what it unpacks to.
#[test]
fn a_stream_is_copied_up_to_the_greatest_size() {
    let (_dir, path) = one().archive();
    let image = fs::read(path).unwrap();
    let reader = |zeros: u64, most: u64| {
        let stream = Cursor::new(image.clone()).chain(std::io::repeat(0).take(zeros));
        Source::reader("-", stream, &ImageChoice::new(), Some(most))
    };
    assert!(reader(0, 1 << 20).unwrap().is_image());
    let error = reader(16 << 20, 1 << 20).unwrap_err();
    assert!(matches!(error.cause(), Cause::TooLarge(1_048_576)), "{error}");
    assert_eq!(error.to_string(), "cannot read '-': it unpacks to more than 1048576 bytes");
}

/// Neither a name nor a target that no image has is kept.
#[test]
fn an_archive_with_long_names_is_no_image() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.tar");
    let long = "a/".repeat(2049);
    let start = || Tar::new().file("oci-layout", "{}").file("index.json", "{}");
    let link = |kind| start().member(kind, "blobs/x", "", b"", &[("linkpath", &long)]);
    for tar in [start().file(&format!("blobs/{long}x"), ""), link(b'1'), link(b'2')] {
        for bytes in [tar.clone().end(), gzip(tar).0] {
            fs::write(&path, bytes).unwrap();
            assert!(!Source::open(&path).unwrap().is_image());
        }
    }
}

/// What an archive of docker save with these documents is refused for.
fn saved_refused(manifest: &Value, configs: &[(&str, Value)]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("saved");
    let add = |tar: Tar, (name, config): &(&str, Value)| tar.file(name, &config.to_string());
    let tar = configs.iter().fold(Tar::new(), add).file("manifest.json", &manifest.to_string());
    fs::write(&path, tar.end()).unwrap();
    Source::image(&path, &ImageChoice::new()).unwrap_err().reason()
}

#[test]
fn a_manifest_of_docker_save_is_bounded() {
    let entry = json!({"Config": "blobs/c", "Layers": []});
    let config = |os: &str| json!({"architecture": "amd64", "os": os, "rootfs": {"diff_ids": ["x"]}});
    let many = |n: usize| saved_refused(&json!(vec![&entry; n]), &[("blobs/c", config("linux"))]);
    assert_eq!(many(1000), "0 layers, and digests of 1");
    assert_eq!(many(1001), "manifest.json: more than 1000 images");
    let long = saved_refused(&json!([entry]), &[("blobs/c", config(&"x".repeat(1000)))]);
    assert_eq!(long, "blobs/c: a platform of more than 256 bytes");
}

/// Several platforms of one image need no name, several images do.
#[test]
fn images_without_names_are_not_guessed() {
    let several = "it holds several images, choose by IMAGE:TAG: none has a name";
    let config = json!({"architecture": "amd64", "os": "linux", "rootfs": {"diff_ids": []}});
    let entry = |name: &str| json!({"Config": name, "RepoTags": null, "Layers": []});
    let two = json!([entry("blobs/a"), entry("blobs/b")]);
    assert_eq!(saved_refused(&two, &[("blobs/a", config.clone()), ("blobs/b", config)]), several);
    let mut layout = Layout::default();
    for (arch, variant, content) in
        [("amd64", "", "a"), ("amd64", "v3", "v3"), ("arm64", "", "b"), ("arm64", "v8", "c")]
    {
        let mut of = layout.image(arch, &[plain(Tar::new().file("f", content))]);
        of["platform"] = json!({"os": "linux", "architecture": arch, "variant": variant});
        layout.manifests.push(of);
    }
    let choice = |platform: &str| ImageChoice::new().platform(platform.parse().unwrap());
    assert_eq!(refused(&layout, &choice("linux/arm64")), several);
    let (_dir, path) = layout.folder();
    assert_eq!(tree(&path, &choice("linux/amd64")).unwrap(), ["f=a"]);
    assert_eq!(tree(&path, &choice("linux/amd64/v3")).unwrap(), ["f=v3"]);
}
