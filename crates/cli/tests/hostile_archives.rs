//! Archives and images that were made to do harm: none takes more memory than is promised, and what
//! is wrong is said of the entry.

use crate::support::peak::{Bench, Ran};
use crate::support::tar::{TarStream, record};
use flate2::Compression;
use flate2::write::GzEncoder;
use lanefs_tests::{e2fsck_clean, mke2fs};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fs;
use std::io::{self, Write};
use std::path::Path;

type Members = fn(&mut TarStream<Box<dyn Write>>) -> io::Result<()>;

/// Members of each kind that a test writes: held in memory together, they would pass its bound.
const TIMES: usize = 24;
const MIB: usize = 1 << 20;

/// A long name of which all but nothing is behind its end.
fn long_names(tar: &mut TarStream<Box<dyn Write>>) -> io::Result<()> {
    let name = vec![0; 15 * MIB];
    for at in 0..TIMES {
        tar.member(b'K', "link", "", &name)?;
        tar.member(b'2', &format!("l{at}"), "target", b"")?;
    }
    Ok(())
}

/// Targets of links that are as long as an extended header.
fn long_targets(tar: &mut TarStream<Box<dyn Write>>) -> io::Result<()> {
    let records = record("linkpath", &vec![b'x'; 15 * MIB]);
    for at in 0..TIMES {
        tar.extended(&records)?;
        tar.member(b'2', &format!("t{at}"), "", b"")?;
    }
    Ok(())
}

/// Slashes, of which nothing is left.
fn slashes(tar: &mut TarStream<Box<dyn Write>>) -> io::Result<()> {
    let records = record("path", &[vec![b'/'; 500 << 10], b"s".to_vec()].concat());
    for _ in 0..40 * TIMES {
        tar.extended(&records)?;
        tar.empty("")?;
    }
    Ok(())
}

/// Maps of a million ranges that are all empty.
fn empty_ranges(tar: &mut TarStream<Box<dyn Write>>) -> io::Result<()> {
    let map = [format!("{}\n", MIB).as_bytes(), &b"0\n0\n".repeat(MIB)].concat();
    let records = [("GNU.sparse.major", "1"), ("GNU.sparse.minor", "0"), ("GNU.sparse.realsize", "9")];
    let records: Vec<u8> = records.iter().flat_map(|(key, value)| record(key, value.as_bytes())).collect();
    for at in 0..TIMES {
        tar.extended(&records)?;
        tar.member(b'0', &format!("e{at}"), "", &map)?;
    }
    Ok(())
}

/// Maps of a million ranges of a byte each.
fn full_ranges(tar: &mut TarStream<Box<dyn Write>>) -> io::Result<()> {
    let ranges: String = (0..MIB).map(|at| format!("{}\n1\n", at * 2)).collect();
    let mut map = format!("{MIB}\n{ranges}").into_bytes();
    map.resize(map.len().next_multiple_of(512) + MIB, b'x');
    let size = (2 * MIB).to_string();
    let records = [("GNU.sparse.major", "1"), ("GNU.sparse.minor", "0"), ("GNU.sparse.realsize", &size)];
    let records: Vec<u8> = records.iter().flat_map(|(key, value)| record(key, value.as_bytes())).collect();
    tar.extended(&records)?;
    tar.member(b'0', "full", "", &map)
}

/// Millions of records in one header, and millions of numbers in one record.
fn many_records(tar: &mut TarStream<Box<dyn Write>>) -> io::Result<()> {
    let records = b"5 a=\n".repeat(3 * MIB);
    let numbers = record("GNU.sparse.map", &b"0,".repeat(7 * MIB));
    for at in 0..4 {
        tar.extended(&records)?;
        tar.empty(&format!("m{at}"))?;
        tar.extended(&numbers)?;
        tar.empty(&format!("n{at}"))?;
    }
    Ok(())
}

/// Attributes of megabytes each, which no volume takes.
fn large_attributes(tar: &mut TarStream<Box<dyn Write>>) -> io::Result<()> {
    let records = record("SCHILY.xattr.user.large", &vec![b'v'; 15 * MIB]);
    for at in 0..TIMES {
        tar.extended(&records)?;
        tar.empty(&format!("a{at}"))?;
    }
    Ok(())
}

const HEAVY: [(&str, Members); 7] = [
    ("long names", long_names),
    ("long targets", long_targets),
    ("slashes", slashes),
    ("empty ranges", empty_ranges),
    ("full ranges", full_ranges),
    ("many records", many_records),
    ("large attributes", large_attributes),
];

/// Whatever an archive says of its members, an import keeps little of it.
#[test]
fn a_stream_takes_little_memory() {
    let bench = Bench::new();
    for (name, members) in HEAVY {
        mke2fs(bench.at("v.img"), 64 << 20, &["-t", "ext4", "-b", "4096"]);
        let ran = bench.fed(&["import", "-", "v.img:/"], move |out| {
            let mut tar = TarStream(out);
            members(&mut tar)?;
            tar.end().map(drop)
        });
        ran.is_bounded(name);
        assert!(
            ran.code < 2 && ran.said.lines().all(|line| line.starts_with("lanefs: ")),
            "{name}: {}",
            ran.said
        );
        e2fsck_clean(bench.at("v.img"));
    }
}

/// A blob of an image: `sha256:...`.
fn digest(bytes: &[u8]) -> String {
    let hex: String = Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect();
    format!("sha256:{hex}")
}

fn blob(layout: &Path, media_type: &str, bytes: &[u8]) -> Value {
    let digest = digest(bytes);
    let path = layout.join("blobs").join(digest.replace(':', "/"));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
    json!({"mediaType": media_type, "digest": digest, "size": bytes.len()})
}

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// Writes an image of these layers, packed and as the digest of what they unpack to. Returns the
/// descriptor of its manifest.
fn image(layout: &Path, layers: &[(Vec<u8>, String)]) -> Value {
    let diff_ids: Vec<&String> = layers.iter().map(|(_, diff_id)| diff_id).collect();
    let config = json!({"architecture": "amd64", "os": "linux", "rootfs": {"diff_ids": diff_ids}});
    let config = blob(layout, CONFIG, config.to_string().as_bytes());
    let layers: Vec<Value> = layers.iter().map(|(packed, _)| blob(layout, LAYER, packed)).collect();
    let manifest = json!({"config": config, "layers": layers});
    fs::write(layout.join("oci-layout"), r#"{"imageLayoutVersion": "1.0.0"}"#).unwrap();
    blob(layout, MANIFEST, manifest.to_string().as_bytes())
}

fn index(layout: &Path, manifests: &[Value]) {
    fs::write(layout.join("index.json"), json!({"manifests": manifests}).to_string()).unwrap();
}

/// A writer that passes bytes on and hashes them.
struct Hashed<W>(W, Sha256);

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.0.write(bytes)?;
        self.1.update(&bytes[..n]);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// A layer, packed, and the digest of what it unpacks to.
fn layer(members: impl FnOnce(&mut TarStream<Hashed<GzEncoder<Vec<u8>>>>)) -> (Vec<u8>, String) {
    let mut tar = TarStream(Hashed(GzEncoder::new(Vec::new(), Compression::fast()), Sha256::new()));
    members(&mut tar);
    let Hashed(packed, hash) = tar.end().unwrap();
    let hex: String = hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
    (packed.finish().unwrap(), format!("sha256:{hex}"))
}

/// Layers are read side by side, and what waits for its turn is bounded for all of them.
#[test]
fn the_layers_of_an_image_take_little_memory() {
    let bench = Bench::new();
    let heavy = layer(|tar| {
        let large = record("SCHILY.xattr.user.large", &vec![b'v'; 15 * MIB]);
        for at in 0..TIMES {
            tar.extended(&large).unwrap();
            tar.empty(&format!("a{at}")).unwrap();
        }
    });
    let wide = layer(|tar| {
        let small = record("SCHILY.xattr.user.small", &[b'v'; 3000]);
        for at in 0..2000 {
            tar.extended(&small).unwrap();
            tar.empty(&format!("w{at}")).unwrap();
        }
    });
    for (name, layers) in [("heavy", vec![heavy; 4]), ("wide", vec![wide; 80])] {
        let layout = bench.at(name);
        fs::create_dir(&layout).unwrap();
        let of = image(&layout, &layers);
        index(&layout, &[of]);
        mke2fs(bench.at("v.img"), 64 << 20, &["-t", "ext4", "-b", "4096"]);
        for args in [&["import", name, "v.img:/"][..], &["build", "-F", name, "b.img"]] {
            let ran = bench.run(args);
            ran.is_bounded(name);
            assert!(ran.code < 2, "{args:?}: {}", ran.said);
        }
        e2fsck_clean(bench.at("b.img"));
    }
}

/// Documents and names of an image are kept only as far as they are needed.
#[test]
fn the_documents_of_an_image_take_little_memory() {
    let bench = Bench::new();
    let layout = bench.at("img");
    fs::create_dir(&layout).unwrap();
    let good = image(&layout, &[layer(|tar| tar.empty("f").unwrap())]);
    let refused = |ran: Ran, says: &str| {
        ran.is_bounded(says);
        assert!(
            ran.code == 1 && ran.said.contains(says) && ran.said.lines().count() == 1,
            "{says}: {}",
            ran.said
        );
    };
    // Ten thousand manifests are as many as there may be; they are for other platforms.
    let other = |at: usize| {
        let platform = json!({"os": "linux", "architecture": format!("a{at}")});
        json!({"mediaType": MANIFEST, "digest": format!("sha256:{at:064x}"), "size": 1, "platform": platform})
    };
    let mut fitting = good.clone();
    fitting["platform"] = json!({"os": "linux", "architecture": "amd64"});
    let many: Vec<Value> = (0..9_999).map(other).chain([fitting]).collect();
    index(&layout, &many);
    let build = |bench: &Bench| bench.run(&["build", "-F", "--platform", "linux/amd64", "img", "b.img"]);
    let ran = build(&bench);
    ran.is_bounded("many");
    assert_eq!((ran.code, ran.said.as_str()), (0, ""));
    index(&layout, &[many, vec![good.clone()]].concat());
    refused(build(&bench), "index.json: a list of more than 10000 items");
    // Nested indexes, each of four megabytes of what is not needed: annotations, and descriptors.
    let padding: String = (0..350_000).map(|at| format!(r#""{at:x}":"","#)).collect();
    let mut of = good.clone();
    for _ in 0..7 {
        let (media_type, digest, size) = (&of["mediaType"], &of["digest"], &of["size"]);
        let text = format!(
            r#"{{"manifests":[{{"annotations":{{{padding}"z":""}},"mediaType":{media_type},"digest":{digest},"size":{size}}}]}}"#
        );
        of = blob(&layout, INDEX, text.as_bytes());
    }
    index(&layout, std::slice::from_ref(&of));
    let ran = build(&bench);
    ran.is_bounded("annotations");
    assert_eq!((ran.code, ran.said.as_str()), (0, ""));
    let mut of = good.clone();
    for _ in 0..3 {
        let list = json!({"manifests": vec![of; 9_000]}).to_string();
        of = blob(&layout, INDEX, list.as_bytes());
    }
    index(&layout, std::slice::from_ref(&of));
    refused(build(&bench), "indexes of more than 8 levels, or of too many images");
    // A configuration with a field of a million lists.
    let config = format!(
        r#"{{"os":"linux","architecture":"amd64","x":[{}[]],"rootfs":{{"diff_ids":[]}}}}"#,
        "[],".repeat(MIB)
    );
    let config = blob(&layout, CONFIG, config.as_bytes());
    let manifest = json!({"config": config, "layers": []});
    let of = blob(&layout, MANIFEST, manifest.to_string().as_bytes());
    index(&layout, std::slice::from_ref(&of));
    let ran = build(&bench);
    ran.is_bounded("configuration");
    assert_eq!((ran.code, ran.said.as_str()), (0, ""));
    // More names in an archive than any image has, each as long as it may be.
    let file = fs::File::create(bench.at("names.tar")).unwrap();
    let mut tar = TarStream(io::BufWriter::new(file));
    for at in 0..100_001 {
        tar.extended(&record("path", format!("blobs/{at:0>294}").as_bytes())).unwrap();
        tar.empty("").unwrap();
    }
    tar.end().unwrap().flush().unwrap();
    refused(bench.run(&["build", "-F", "names.tar", "b.img"]), "more than 100000 names beside the layers");
}

/// A hundred thousand directories inside each other, and what takes them away.
#[test]
fn a_deep_tree_takes_little_memory() {
    let bench = Bench::new();
    let path = "d/".repeat(100_000);
    let mut tar = TarStream(Vec::new());
    tar.extended(&record("path", format!("{path}f").as_bytes())).unwrap();
    tar.member(b'0', "", "", b"deep").unwrap();
    fs::write(bench.at("deep.tar"), tar.end().unwrap()).unwrap();
    let mut tar = TarStream(Vec::new());
    tar.empty(".wh.d").unwrap();
    fs::write(bench.at("gone.tar"), tar.end().unwrap()).unwrap();
    for sources in [&["deep.tar"][..], &["deep.tar", "gone.tar"]] {
        let args = [&["build", "-F", "-q", "-b", "1024"], sources, &["b.img"]].concat();
        let ran = bench.run(&args);
        ran.is_bounded("a deep tree");
        assert_eq!((ran.code, ran.said.as_str()), (0, ""));
        e2fsck_clean(bench.at("b.img"));
    }
}

/// Many names in two layers, of which the third leaves none.
#[test]
fn many_names_take_little_memory() {
    let bench = Bench::new();
    for (name, prefix) in [("1.tar", "a"), ("2.tar", "b")] {
        let mut tar = TarStream(io::BufWriter::new(fs::File::create(bench.at(name)).unwrap()));
        for dir in 0..200 {
            tar.dir(&format!("{prefix}{dir}")).unwrap();
            (0..200).for_each(|at| tar.empty(&format!("{prefix}{dir}/{at}")).unwrap());
        }
        (0..20_000).for_each(|at| tar.empty(&format!("wide/{prefix}{at}")).unwrap());
        tar.end().unwrap().flush().unwrap();
    }
    let mut tar = TarStream(Vec::new());
    tar.empty("wide/.wh..wh..opq").unwrap();
    tar.empty(".wh..wh..opq").unwrap();
    tar.empty("kept").unwrap();
    fs::write(bench.at("3.tar"), tar.end().unwrap()).unwrap();
    let ran = bench.run(&["build", "-q", "1.tar", "2.tar", "3.tar", "b.img"]);
    ran.is_bounded("many names");
    assert_eq!((ran.code, ran.said.as_str()), (0, ""));
    e2fsck_clean(bench.at("b.img"));
    assert_eq!(bench.run(&["ls", "b.img:/"]).out, "kept\nlost+found\n");
}

fn sparse(tar: &mut TarStream<&mut Vec<u8>>, name: &str, size: &str, map: &str, data: &[u8]) {
    let of = [("GNU.sparse.size", size), ("GNU.sparse.map", map), ("GNU.sparse.name", name)];
    let records: Vec<u8> = of.iter().flat_map(|(key, value)| record(key, value.as_bytes())).collect();
    tar.extended(&records).unwrap();
    tar.member(b'0', name, "", data).unwrap();
}

/// Holes that no volume can have: an error that names the entry, and the rest of the archive
/// arrives.
#[test]
fn holes_of_all_there_is_are_told_of() {
    let bench = Bench::new();
    // A hole of 16 EiB, with and without data at its end; one that a volume can have.
    let mut archive = Vec::new();
    let mut tar = TarStream(&mut archive);
    sparse(&mut tar, "hole", "18446744073709551615", "", b"");
    sparse(&mut tar, "end", "18446744073709551615", "18446744073709551614,1", b"x");
    sparse(&mut tar, "large", "17592186044416", "4096,1", b"x");
    tar.empty("last").unwrap();
    tar.end().unwrap();
    fs::write(bench.at("a.tar"), &archive).unwrap();
    mke2fs(bench.at("v.img"), 64 << 20, &["-t", "ext4", "-b", "4096"]);
    for args in [&["import", "a.tar", "v.img:/"][..], &["build", "-q", "-F", "a.tar", "b.img"]] {
        let ran = bench.run(args);
        ran.is_bounded("holes");
        let volume = args.last().unwrap().trim_end_matches(":/");
        let lines: Vec<&str> = ran.said.lines().collect();
        assert!(ran.code == 1 && lines.len() == 3, "{args:?}: {}", ran.said);
        for (line, name) in lines.iter().zip(["hole", "end", "large"]) {
            assert!(line.contains(&format!("{volume}:/{name}'")), "{line}");
        }
        e2fsck_clean(bench.at(volume));
        assert!(bench.run(&["ls", &format!("{volume}:/")]).out.contains("last\n"));
    }
}

/// Sizes that lie, and maps that lead out, end the archive, and the error tells where.
#[test]
fn sizes_that_lie_are_told_of() {
    let bench = Bench::new();
    let whole = |change: &dyn Fn(&mut TarStream<&mut Vec<u8>>)| {
        let mut archive = Vec::new();
        let mut tar = TarStream(&mut archive);
        tar.empty("first").unwrap();
        change(&mut tar);
        tar.end().unwrap();
        fs::write(bench.at("a.tar"), &archive).unwrap();
        let ran = bench.run(&["build", "-q", "-F", "a.tar", "b.img"]);
        ran.is_bounded("a lie");
        assert!(ran.code == 1 && ran.said.lines().count() == 1, "{}", ran.said);
        ran.said
    };
    for (says, change) in [
        ("a sparse map whose ranges do not ascend", &|tar: &mut TarStream<&mut Vec<u8>>| {
            sparse(tar, "f", "9", "5,1,4,1", b"xx")
        }),
        ("a sparse map that passes the end of its file", &|tar| sparse(tar, "f", "9", "8,2", b"xx")),
        ("a sparse map that does not cover the member's data", &|tar| sparse(tar, "f", "9", "0,1", b"xx")),
        ("a sparse map that is malformed", &|tar| sparse(tar, "f", "9", "18446744073709551615,2", b"xx")),
        ("a sparse map of more than a million ranges", &|tar| {
            sparse(tar, "f", "9", &"0,0,".repeat(MIB + 1), b"")
        }),
        ("the archive ends inside a member", &|tar| tar.header(b'0', "f", "", 1 << 30).unwrap()),
        ("extended headers of more than 16 MiB", &|tar| tar.header(b'x', "f", "", 1 << 30).unwrap()),
        ("a sparse map of more than a million ranges", &|tar| {
            let lie = |key: &str, value: &str| record(key, value.as_bytes());
            let major = [lie("GNU.sparse.major", "1"), lie("GNU.sparse.minor", "0")].concat();
            tar.extended(&[major, lie("GNU.sparse.realsize", "9")].concat()).unwrap();
            tar.member(b'0', "f", "", &[&b"10000000\n"[..], &[0; 503]].concat()).unwrap();
        }),
        ("a sparse map of more than a million ranges", &|tar| {
            // A map that goes on and on, in the header of old GNU archives.
            tar.header_with(b'S', "f", "", 0, |header| {
                header[257..265].copy_from_slice(b"ustar  \0");
                header[482] = 1;
            })
            .unwrap();
            let mut more = b"00000000000\0".repeat(42);
            more.resize(512, 0);
            more[504] = 1;
            (0..=MIB / 21).for_each(|_| tar.data(&more).unwrap());
        }),
    ] as [(&str, &dyn Fn(&mut TarStream<&mut Vec<u8>>)); 9]
    {
        let said = whole(change);
        assert!(said.contains("'a.tar': byte ") && said.contains(says), "{says}: {said}");
    }
}

/// A device whose number no inode can hold becomes no other device.
#[test]
fn numbers_of_devices_are_kept_or_told_of() {
    let bench = Bench::new();
    let mut tar = TarStream(Vec::new());
    for (name, major, minor) in [("last", 0o7777, 0o3777777), ("sda", 4104, 0), ("null", 1, 1_048_579)] {
        let numbers = |header: &mut [u8; 512]| {
            header[329..337].copy_from_slice(format!("{major:07o}\0").as_bytes());
            header[337..345].copy_from_slice(format!("{minor:07o}\0").as_bytes());
        };
        tar.header_with(b'4', name, "", 0, numbers).unwrap();
    }
    fs::write(bench.at("a.tar"), tar.end().unwrap()).unwrap();
    mke2fs(bench.at("v.img"), 64 << 20, &["-t", "ext4", "-b", "4096"]);
    let ran = bench.run(&["import", "a.tar", "v.img:/"]);
    let said: Vec<&str> = ran.said.lines().collect();
    assert!(ran.code == 1 && said.len() == 2, "{}", ran.said);
    assert!(said[0].contains("'v.img:/sda'") && said[1].contains("'v.img:/null'"), "{}", ran.said);
    assert!(said[0].contains("a device number of more than 12 bits and 20 bits"), "{}", ran.said);
    let volume = lanefs::Volume::open(bench.at("v.img")).unwrap();
    let device = volume.metadata("/last").unwrap().device().unwrap();
    assert_eq!((device.major, device.minor), (4095, 1_048_575));
    assert!(!volume.exists("/sda").unwrap() && !volume.exists("/null").unwrap());
}

/// An image comes through a pipe as well, and so does what only looks like one at first.
#[test]
fn an_image_comes_through_a_pipe() {
    let bench = Bench::new();
    let layout = bench.at("img");
    fs::create_dir(&layout).unwrap();
    let base = layer(|tar| {
        tar.member(b'0', "kept", "", b"kept").unwrap();
        tar.member(b'0', "gone", "", b"gone").unwrap();
    });
    let of = image(&layout, &[base, layer(|tar| tar.empty(".wh.gone").unwrap())]);
    index(&layout, &[of]);
    bench.sh("tar -C img -cf img.tar .; tar -C img -cf named.tar oci-layout blobs index.json");
    let lanefs = env!("CARGO_BIN_EXE_lanefs");
    for archive in ["img.tar", "named.tar"] {
        for (script, volume) in [
            (format!("cat {archive} | {lanefs} build -q -F - b.img"), "b.img"),
            (format!("{lanefs} build -q -F --platform linux/amd64 - b.img < {archive}"), "b.img"),
            (format!("{lanefs} build -q -F <(cat {archive}) b.img"), "b.img"),
            (
                format!("{lanefs} mkfs -q -F --size 32M v.img; cat {archive} | {lanefs} import - v.img:/"),
                "v.img",
            ),
        ] {
            bench.sh(&script);
            assert_eq!(bench.run(&["ls", &format!("{volume}:/")]).out, "kept\nlost+found\n", "{script}");
        }
    }
    // Blobs alone are no image. An archive like others goes by as it comes.
    bench.sh(&format!(
        "tar -C img -cf some.tar oci-layout blobs; cat some.tar | {lanefs} build -q -F - b.img
         cat some.tar | {lanefs} import - v.img:/some; {lanefs} ls v.img:/some | grep -q oci-layout"
    ));
    bench.sh("touch f; tar -cf f.tar f; gzip -k named.tar");
    for (archive, args, says) in [
        ("f.tar", "", "how much it takes cannot be found out beforehand; --size 4G says it"),
        ("f.tar", "--platform linux/amd64", "this is no image"),
        ("some.tar", "--platform linux/amd64", "this is no image"),
        ("named.tar.gz", "", "an image in a compressed archive (gzip); gzip -dc FILE > image.tar unpacks it"),
        ("named.tar", "--platform linux/s390x", "no image is for linux/s390x; there is linux/amd64"),
    ] {
        let said =
            bench.sh(&format!("cat {archive} | {lanefs} build {args} -q -F - b.img 2>&1 && exit 1 || true"));
        assert!(said.contains(says) && said.lines().count() == 1, "{archive} {args}: {said}");
    }
}
