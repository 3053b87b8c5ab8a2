//! Judged by GNU tar, both ways.

use super::*;
use crate::member::{Kind, Member};
use crate::path::clean;
use lanefs_format::Timestamp;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

type Tree = BTreeMap<String, (Member, Vec<u8>)>;

fn run(command: &str, dir: &Path) -> Vec<u8> {
    let out = Command::new("sh").args(["-euc", command]).current_dir(dir).output().expect("sh runs");
    assert!(out.status.success(), "{command}: {}", String::from_utf8_lossy(&out.stderr));
    out.stdout
}

fn read_all(archive: &[u8]) -> Result<Tree, TarError> {
    let mut reader = TarReader::new(archive);
    let mut tree = Tree::new();
    while let Some(mut member) = reader.next()? {
        let mut content = Vec::new();
        if let Kind::File { size, data } = &member.kind {
            if *size > 64 << 20 {
                return Err(TarError::Broken { at: 0, rule: "too large for a test" });
            }
            content.resize(*size as usize, 0);
            for (offset, len) in data {
                let piece = reader.read_exact(*len as usize)?;
                content[*offset as usize..][..*len as usize].copy_from_slice(&piece);
            }
        }
        member.path = clean(&member.path).unwrap_or_default();
        tree.insert(String::from_utf8_lossy(&member.path).into_owned(), (member, content));
    }
    Ok(tree)
}

/// A tree with one of everything that an ordinary user can make.
fn sample() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let long = format!("{}/{}", "d".repeat(90), "n".repeat(200));
    let script = format!(
        "mkdir -p t/{d} && echo long > t/{long} && echo hello > t/file && ln t/file t/hard \
         && ln -s /nowhere/{d} t/soft && ln -s {n} t/softer && mkfifo t/fifo && : > t/empty && chmod 4711 t/file \
         && truncate -s 10M t/hole && cp t/hole t/holes && touch -d '2001-02-03 04:05:06.123456789Z' t/empty \
         && touch -d '1960-01-01 00:00:00.5Z' t/hole",
        d = "d".repeat(90),
        n = "n".repeat(200),
    );
    run(&script, dir.path());
    let holes = fs::OpenOptions::new().write(true).open(dir.path().join("t/holes")).unwrap();
    for i in 0..30u64 {
        holes.write_all_at(&[b'a' + i as u8; 5000], i * 262_144).unwrap();
    }
    dir
}

fn check_sample(tree: &Tree, dir: &Path) {
    let get = |name: &str| tree.get(name).unwrap_or_else(|| panic!("{name} in {:?}", tree.keys()));
    assert_eq!(get("t/file").1, b"hello\n");
    assert_eq!(get("t/file").0.mode, 0o4711);
    let names = ["t/file", "t/hard"];
    let link = names.iter().find_map(|n| match &get(n).0.kind {
        Kind::HardLink(target) => Some((*n, clean(target).unwrap())),
        _ => None,
    });
    let (name, target) = link.expect("one of both is a link");
    assert_ne!(name.as_bytes(), target);
    assert_eq!(get("t/soft").0.kind, Kind::Symlink(format!("/nowhere/{}", "d".repeat(90)).into_bytes()));
    assert_eq!(get("t/softer").0.kind, Kind::Symlink("n".repeat(200).into_bytes()));
    assert_eq!(get("t/fifo").0.kind, Kind::Fifo);
    assert_eq!(get(&format!("t/{}/{}", "d".repeat(90), "n".repeat(200))).1, b"long\n");
    for name in ["t/hole", "t/holes", "t/empty"] {
        assert!(get(name).1 == fs::read(dir.join(name)).unwrap(), "content of {name}");
    }
}

#[test]
fn reads_what_gnu_tar_writes() {
    let dir = sample();
    run("setfattr -n user.a%b=c -v 'x=y' t/file && setfacl -m u:0:rw,g:7:r t/empty", dir.path());
    for options in [
        "--format=gnu",
        "--format=gnu --sparse",
        "--format=pax",
        "--format=pax --sparse --sparse-version=0.0",
        "--format=pax --sparse --sparse-version=0.1",
        "--format=pax --sparse --sparse-version=1.0 --xattrs --acls --numeric-owner",
        "--format=pax --sparse --xattrs --acls",
    ] {
        let archive = run(&format!("tar -c --sort=name {options} t"), dir.path());
        let tree = read_all(&archive).unwrap_or_else(|e| panic!("{options}: {e}"));
        check_sample(&tree, dir.path());
        let Kind::File { size, data } = &tree["t/holes"].0.kind else { panic!("{options}") };
        assert_eq!(*size, 10 << 20);
        assert_eq!(data.len() > 10, options.contains("sparse"), "{options}: {data:?}");
        let time = tree["t/empty"].0.mtime;
        let nsec = if options.contains("pax") { 123_456_789 } else { 0 };
        assert_eq!(time, Timestamp { sec: 981_173_106, nsec }, "{options}");
        if options.contains("pax") {
            assert_eq!(tree["t/hole"].0.mtime, Timestamp { sec: -315_619_200, nsec: 500_000_000 });
        }
        if options.contains("xattrs") {
            assert_eq!(tree["t/file"].0.xattrs, [(b"user.a%b=c".to_vec(), b"x=y".to_vec())], "{options}");
            let (name, value) = &tree["t/empty"].0.xattrs[0];
            assert_eq!(name, b"system.posix_acl_access");
            assert_eq!(value.len(), 4 + 8 * 6, "{options}");
        }
    }
    let ustar = run("cd t && tar -c --format=ustar --no-recursion . file hard empty fifo", dir.path());
    assert_eq!(read_all(&ustar).unwrap()["file"].1, b"hello\n");
    let v7 = run("cd t && tar -c --format=v7 file hard", dir.path());
    assert_eq!(read_all(&v7).unwrap()["file"].1, b"hello\n");
}

fn rewrite(archive: &[u8]) -> Vec<u8> {
    let (mut reader, mut writer) = (TarReader::new(archive), TarWriter::new(Vec::new()));
    while let Some(mut member) = reader.next().unwrap() {
        member.path = clean(&member.path).unwrap();
        assert!(writer.member(&member).unwrap());
        while reader.take(777, |piece| writer.data(piece).unwrap()).unwrap() != 0 {}
    }
    writer.finish().unwrap()
}

#[test]
fn gnu_tar_reads_what_we_write() {
    let dir = sample();
    run("setfattr -n user.a%b=c -v 'x=y' t/file && setfacl -m u:0:rw,g:7:r t/empty", dir.path());
    let theirs = run("tar -c --sort=name --format=pax --sparse --xattrs --acls t", dir.path());
    let ours = rewrite(&theirs);
    assert_eq!(ours.len() % 10_240, 0);
    assert!(rewrite(&ours) == ours, "the same members give the same bytes");
    for (ours, theirs) in read_all(&ours).unwrap().values().zip(read_all(&theirs).unwrap().values()) {
        assert_eq!(ours.0, theirs.0);
        assert!(ours.1 == theirs.1, "content of {:?}", String::from_utf8_lossy(&ours.0.path));
    }
    fs::write(dir.path().join("ours.tar"), &ours).unwrap();
    run(
        "mkdir x && tar -C x -xpf ours.tar --xattrs --acls && diff -r --no-dereference -x fifo t x/t",
        dir.path(),
    );
    let x = dir.path().join("x/t");
    let meta = |name: &str| fs::symlink_metadata(x.join(name)).unwrap();
    assert_eq!(meta("file").ino(), meta("hard").ino());
    assert_eq!(meta("file").permissions().mode() & 0o7777, 0o4711);
    assert_eq!((meta("empty").mtime(), meta("empty").mtime_nsec()), (981_173_106, 123_456_789));
    assert!(meta("holes").blocks() < 1000, "{} sectors: holes are filled", meta("holes").blocks());
    let attrs = run("getfattr -d x/t/file && getfacl -nc x/t/empty", dir.path());
    let attrs = String::from_utf8(attrs).unwrap();
    assert!(attrs.contains(r#"user.a%b\075c="x=y""#) && attrs.contains("group:7:r--"), "{attrs}");
}

#[test]
fn numbers_beyond_a_field() {
    let member = Member {
        path: b"dev/x".to_vec(),
        kind: Kind::CharDevice(300, 70_000),
        mode: 0o600,
        uid: 4_294_967_294,
        gid: 2_097_152,
        mtime: Timestamp { sec: 99_999_999_999, nsec: 1 },
        xattrs: vec![(b"trusted.x".to_vec(), b"\0\n\xFF".to_vec())],
    };
    let mut writer = TarWriter::new(Vec::new());
    writer.member(&member).unwrap();
    let bytes = writer.finish().unwrap();
    assert_eq!(read_all(&bytes).unwrap()["dev/x"].0, member);
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.tar"), bytes).unwrap();
    let listed = String::from_utf8(run("TZ=UTC tar --numeric-owner -tvf a.tar", dir.path())).unwrap();
    assert!(listed.contains("4294967294/2097152") && listed.contains("300,70000"), "{listed}");
}

#[test]
fn hostile_archives_end_in_errors() {
    let dir = sample();
    let good = run("tar -c --sort=name --format=pax --sparse --xattrs t/empty t/file t/holes", dir.path());
    let rule = |bytes: &[u8]| match read_all(bytes) {
        Err(TarError::Broken { rule, .. }) => rule,
        other => panic!("{:?}", other.map(|t| t.len())),
    };
    assert!(rule(&good[..good.len() / 2]).contains("ends inside"));
    assert!(rule(&[7; 1024]).contains("not a tar archive"));
    // Every byte of headers and maps flipped in turn: never a panic, and never more data than there
    // is.
    for at in 0..good.len().min(16 * RECORD) {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        let _ = read_all(&bad);
        let start = at / RECORD * RECORD;
        // With the checksum made good, the flip reaches the parsers behind it.
        let mut header = header::Header(*bad[start..].first_chunk().unwrap());
        let sum: u64 = header
            .0
            .iter()
            .enumerate()
            .map(|(i, b)| if (148..156).contains(&i) { 32 } else { u64::from(*b) })
            .sum();
        header.0[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        bad[start..start + RECORD].copy_from_slice(&header.0);
        let mut reader = TarReader::new(bad.as_slice());
        while let Ok(Some(_)) = reader.next() {}
    }
}

/// Returns a header of a member.
fn header(size: u64, typeflag: u8) -> Vec<u8> {
    let head = header::NewHeader {
        prefix: b"",
        name: b"f",
        mode: 0o644,
        uid: 0,
        gid: 0,
        size,
        mtime: 0,
        typeflag,
        link: b"",
        device: (0, 0),
    };
    head.encode().to_vec()
}

/// Returns an extended header of `records`.
fn extended(typeflag: u8, records: &[u8]) -> Vec<u8> {
    let mut bytes = header(records.len() as u64, typeflag);
    bytes.extend(records);
    bytes.resize(bytes.len().next_multiple_of(RECORD), 0);
    bytes
}

fn records(of: impl IntoIterator<Item = (String, Vec<u8>)>) -> Vec<u8> {
    let mut out = Vec::new();
    of.into_iter().for_each(|(key, value)| pax::push(&mut out, key.as_bytes(), &value));
    out
}

/// A size that a member without data has means nothing, as to the readers of other programs, one of
/// which is Python's tarfile.
#[test]
fn a_member_that_is_its_header_alone_has_no_data() {
    let named = |name: &str, size: u64, kind: u8| {
        let records = records([("path".into(), name.into())]);
        [extended(b'x', &records), header(size, kind)].concat()
    };
    let archive = |old: &[u8]| {
        let kinds = *b"123456";
        let mut archive: Vec<u8> =
            kinds.iter().flat_map(|kind| named(&char::from(*kind).to_string(), 512, *kind)).collect();
        archive.extend([old, &named("end", 5, b'0'), b"hello"].concat());
        archive.resize(archive.len().next_multiple_of(RECORD) + 2 * RECORD, 0);
        archive
    };
    // A folder of an old archive. To Python it is a file if a record names it, and its size counts.
    let tree = read_all(&archive(&named("old/", 512, 0))).expect("an archive");
    let names: Vec<&str> = tree.keys().map(String::as_str).collect();
    assert_eq!((names.join(" ").as_str(), tree["end"].1.as_slice()), ("1 2 3 4 5 6 end old", &b"hello"[..]));
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.tar"), archive(b"")).unwrap();
    let theirs = "python3 -c 'import tarfile; print(*sorted(tarfile.open(\"a.tar\").getnames()))'";
    assert_eq!(run(theirs, dir.path()), b"1 2 3 4 5 6 end\n");
}

/// POSIX: an empty value takes back what an earlier header said. The member's own header counts.
#[test]
fn an_empty_value_takes_an_earlier_one_back() {
    let keys = ["path", "linkpath", "size", "uid", "gid", "mtime", "SCHILY.devmajor", "SCHILY.devminor"];
    let all = |value: &'static str| extended(b'g', &records(keys.map(|key| (key.into(), value.into()))));
    let empty = extended(b'x', &records(keys.map(|key| (key.into(), Vec::new()))));
    let plain = [header(0, b'0'), vec![0; 2 * RECORD]].concat();
    let first = |archive: &[u8]| TarReader::new(archive).next().expect("an archive").expect("a member");
    let changed = first(&[all("7"), header(0, b'2')].concat());
    assert_eq!((changed.path.as_slice(), changed.uid, changed.mtime.sec), (&b"7"[..], 7, 7));
    assert_eq!(first(&[all("7"), empty, plain.clone()].concat()), first(&plain));
}

/// Returns the rule that an archive breaks, as its reader reports it.
fn rule_of(archive: &[u8]) -> &'static str {
    let mut reader = TarReader::new(archive);
    loop {
        match reader.next() {
            Ok(Some(_)) => {}
            Ok(None) => return "",
            Err(TarError::Broken { rule, .. }) => return rule,
            Err(TarError::Io(e)) => panic!("{e}"),
        }
    }
}

#[test]
fn a_number_that_an_archive_gives_is_bounded() {
    for size in [u64::MAX, u64::MAX - 511, 1 << 63] {
        let records = records([("size".into(), size.to_string().into_bytes())]);
        let archive = [extended(b'x', &records), header(0, b'0'), vec![0; 2 * RECORD]].concat();
        assert_eq!(rule_of(&archive), "a size of more than 63 bits");
    }
    // The last size that is none too many: the data is missing.
    let most = records([("size".into(), (u64::MAX >> 1).to_string().into_bytes())]);
    let archive = [extended(b'x', &most), header(0, b'0')].concat();
    assert!(rule_of(&archive).contains("ends inside"));
    let names = |n: usize| records((0..n).map(|i| (format!("SCHILY.xattr.user.{i:x}"), b"v".to_vec())));
    // As many attributes as Linux lists, and one more.
    let with = |n: usize| [extended(b'x', &names(n)), header(0, b'0'), vec![0; 2 * RECORD]].concat();
    assert_eq!(rule_of(&with(6000)), "");
    assert_eq!(rule_of(&with(8000)), "attributes whose names take more than 64 KiB");
    // Several headers before one member count together, and so do global ones.
    let large = records([("comment".into(), vec![b'x'; 9 << 20])]);
    let twice = [extended(b'x', &large), extended(b'x', &large), header(0, b'0')].concat();
    assert_eq!(rule_of(&twice), "extended headers of more than 16 MiB for one member");
    let one = [extended(b'x', &large), header(0, b'0')].concat();
    assert_eq!(rule_of(&[one.clone(), one].concat()), "");
    let global =
        |i: usize| extended(b'g', &records([(format!("SCHILY.xattr.user.{i}"), vec![b'v'; 40_000])]));
    assert_eq!(rule_of(&[global(1), global(1), header(0, b'0')].concat()), "");
    assert_eq!(
        rule_of(&[global(1), global(2), header(0, b'0')].concat()),
        "global headers that leave more than 64 KiB for each member"
    );
}

/// The time that attributes take is linear in their number: 5,000 and their replacements.
#[test]
fn a_later_attribute_takes_the_place_of_an_earlier_one() {
    let all = (0..80).flat_map(|turn| {
        (0..5000).map(move |i| (format!("SCHILY.xattr.user.{i:x}"), vec![b'a' + (turn % 26) as u8]))
    });
    let all = records(all);
    assert!(all.len() > 8 << 20);
    let archive = [extended(b'x', &all[..]), header(0, b'0'), vec![0; 2 * RECORD]].concat();
    let member = TarReader::new(archive.as_slice()).next();
    let Ok(Some(member)) = member else { panic!("{member:?}") };
    assert_eq!(member.xattrs.len(), 5000);
    assert!(member.xattrs.iter().all(|(_, value)| value == &[b'a' + (79 % 26) as u8]));
    assert!(member.xattrs.is_sorted());
}

/// The end of the file is in the map too.
#[test]
fn a_file_of_the_most_ranges_is_read_back() {
    let data: Vec<_> = (0..DATA_RANGES_MAX as u64).map(|n| (2 * n, 1)).collect();
    let member = Member {
        path: b"f".to_vec(),
        kind: Kind::File { size: 4 << 20, data },
        mode: 0o644,
        uid: 0,
        gid: 0,
        mtime: Timestamp::default(),
        xattrs: Vec::new(),
    };
    let mut writer = TarWriter::new(Vec::new());
    writer.member(&member).unwrap();
    writer.data(&vec![b'x'; DATA_RANGES_MAX]).unwrap();
    let archive = writer.finish().unwrap();
    let read = TarReader::new(archive.as_slice()).next().unwrap();
    assert!(read == Some(member));
}
