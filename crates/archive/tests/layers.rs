//! Layers on top of each other: whiteouts, links, and what takes whose place.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panic")]

mod support;

use lanefs::Volume;
use lanefs_archive::{Cause, ImportOptions, Source};
use std::fs;
use support::{Tar, listing, skipped, volume};

/// Imports layers onto what is in a volume; what was skipped, as text.
fn onto(volume: &Volume, layers: &[Tar], options: &ImportOptions) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let paths: Vec<_> = (0..layers.len()).map(|i| dir.path().join(format!("{i}.tar"))).collect();
    for (path, layer) in paths.iter().zip(layers) {
        fs::write(path, layer.clone().end()).unwrap();
    }
    let said = skipped(Source::layers(&paths).unwrap(), volume, options).unwrap();
    let base = format!("{}/", dir.path().display());
    said.iter().map(|e| e.to_string().replace(&base, "")).collect()
}

/// What layers make of an empty volume. Nothing may be skipped.
fn tree(layers: &[Tar]) -> Vec<String> {
    let volume = volume();
    assert_eq!(onto(&volume, layers, &ImportOptions::new()), [""; 0]);
    listing(&volume)
}

fn base() -> Tar {
    Tar::new()
        .dir("a/")
        .file("a/1", "one")
        .file("a/2", "two")
        .dir("a/sub/")
        .file("a/sub/deep", "deep")
        .file("b", "b")
}

#[test]
fn a_whiteout_takes_a_name_away() {
    assert_eq!(
        tree(&[base(), Tar::new().empty("a/.wh.1")]),
        ["a/", "a/2=two", "a/sub/", "a/sub/deep=deep", "b=b"]
    );
    assert_eq!(tree(&[base(), Tar::new().empty("./.wh.a")]), ["b=b"], "with everything below it");
    // Of what is not there: nothing happens, and no directory is made.
    let none = Tar::new().empty(".wh.none").empty("none/.wh.x").empty("none/.wh..wh..opq");
    assert_eq!(tree(&[base(), none]), tree(&[base()]));
    // Of what was in a directory that is none any more.
    let file = Tar::new().file("a", "file").empty("a/.wh.1").empty("a/.wh..wh..opq").empty("b/.wh.x");
    assert_eq!(tree(&[base(), file]), ["a=file", "b=b"]);
    // The third layer brings it again.
    let again = Tar::new().dir("a").file("a/new", "new");
    assert_eq!(tree(&[base(), Tar::new().empty(".wh.a"), again]), ["a/", "a/new=new", "b=b"]);
}

#[test]
fn an_opaque_directory_hides_what_is_below() {
    let opaque = Tar::new().dir("a").empty("a/.wh..wh..opq").file("a/3", "three");
    assert_eq!(tree(&[base(), opaque]), ["a/", "a/3=three", "b=b"]);
    assert_eq!(tree(&[base(), Tar::new().empty(".wh..wh..opq").file("c", "c")]), ["c=c"], "the root");
}

/// In whatever order a layer has its names: its whiteouts are for lower layers alone.
#[test]
fn a_whiteout_spares_what_its_own_layer_brought() {
    let late = Tar::new()
        .file("a/1", "new")
        .file("a/sub/new", "new")
        .empty("a/.wh.1")
        .empty("a/.wh..wh..opq")
        .file("b", "B")
        .empty(".wh.b");
    assert_eq!(tree(&[base(), late.clone()]), ["a/", "a/1=new", "a/sub/", "a/sub/new=new", "b=B"]);
    // What that layer brought is below the next one.
    let third = Tar::new().file("a/sub/x", "x").empty(".wh.a");
    assert_eq!(tree(&[base(), late, third]), ["a/", "a/sub/", "a/sub/x=x", "b=B"]);
    // In the lowest layer too, where nothing is below.
    let lowest = base().empty(".wh.a").empty(".wh..wh..opq");
    assert_eq!(tree(&[lowest]), tree(&[base()]));
    // The same number may come to another inode.
    let reused = Tar::new().file("a/x", "x").dir("a/x").dir("c/d/e").empty(".wh.c").empty(".wh.a");
    assert_eq!(tree(&[base(), reused]), ["a/", "a/x/", "b=b", "c/", "c/d/", "c/d/e/"]);
}

#[test]
fn hard_links_lead_across_layers() {
    let links = Tar::new().link("c", "b").link("a/sub/c", "b").empty(".wh.b").empty("a/.wh..wh..opq");
    assert_eq!(tree(&[base(), links]), ["a/", "a/sub/", "a/sub/c=b", "c=b"]);
    // A replaced name leaves the others as they are.
    let first = Tar::new().file("x", "old").link("y", "x");
    assert_eq!(tree(&[first, Tar::new().file("x", "new")]), ["x=new", "y=old"]);
    let volume = volume();
    onto(&volume, &[base(), Tar::new().link("a", "b").link("b", "b")], &ImportOptions::new());
    assert_eq!(listing(&volume), ["a=b", "b=b"]);
    assert_eq!(volume.metadata("/a").unwrap().nlink(), 2);
}

/// What a link would replace goes only when there can be a link.
#[test]
fn a_link_that_cannot_be_made_takes_nothing_away() {
    for (name, target) in [("a", "a/sub/deep"), ("a", "none"), ("a", "dir"), ("b", "dir")] {
        let volume = volume();
        let link = Tar::new().link(name, target);
        let said = onto(&volume, &[base().dir("dir"), link], &ImportOptions::new());
        assert_eq!(said.len(), 1, "{name} {target}: {said:?}");
        assert_eq!(listing(&volume), tree(&[base().dir("dir")]), "{name} {target}: {said:?}");
    }
}

/// GNU tar writes `=` and `%` of a name as codes, other programs write all as it is.
#[test]
fn names_of_attributes_are_as_they_were_written() {
    let volume = volume();
    let names = [("user.a%41", "user.a%41"), ("user.%25%3D", "user.%="), ("user.100%", "user.100%")];
    let pax: Vec<_> = names.map(|(name, _)| (format!("SCHILY.xattr.{name}"), "v")).into();
    let pax: Vec<_> = pax.iter().map(|(key, value)| (&**key, *value)).collect();
    let file = Tar::new().member(b'0', "f", "", b"", &pax);
    assert_eq!(onto(&volume, &[file], &ImportOptions::new()), [""; 0]);
    let node = volume.open_dir("/").unwrap().lookup("f").unwrap();
    let mut found: Vec<_> = node.xattrs().unwrap().into_iter().map(|(name, _)| name).collect();
    found.sort();
    let mut wanted = names.map(|(_, name)| std::ffi::OsString::from(name));
    wanted.sort();
    assert_eq!(found, wanted);
}

#[test]
fn files_and_directories_take_each_others_place() {
    assert_eq!(
        tree(&[base(), Tar::new().file("a", "file").dir("b").file("b/x", "x")]),
        ["a=file", "b/", "b/x=x"]
    );
    assert_eq!(tree(&[base(), Tar::new().symlink("a", "b").symlink("b", "/out")]), ["a->b", "b->/out"]);
    // In one layer the last one counts.
    let twice = Tar::new().file("a", "1").file("a", "2").dir("b").file("b/c", "3").file("b", "4");
    assert_eq!(tree(&[twice]), ["a=2", "b=4"]);
}

#[test]
fn a_directory_has_the_attributes_of_the_last_layer_that_names_it() {
    let with = |mtime: &str, xattrs: &[(&str, &str)]| {
        let pax: Vec<_> = [("mtime", mtime)].into_iter().chain(xattrs.iter().copied()).collect();
        Tar::new().member(b'5', "a", "", b"", &pax)
    };
    let volume = volume();
    let first = with("5.25", &[("SCHILY.xattr.user.old", "x"), ("SCHILY.xattr.user.both", "1")]);
    let second = with("7.000000001", &[("SCHILY.xattr.user.both", "2")]);
    // A name in it, and one that goes, change its time, and it is set again.
    let third = Tar::new().file("a/new", "").file("a/sub/x", "");
    let layers = [first.file("a/gone", ""), second, third, Tar::new().empty("a/.wh.gone")];
    assert_eq!(onto(&volume, &layers, &ImportOptions::new()), [""; 0]);
    let a = volume.metadata("/a").unwrap();
    assert_eq!((a.mtime().sec, a.mtime().nsec), (7, 1));
    let xattrs = volume.open_dir("/a").unwrap().node().xattrs().unwrap();
    assert_eq!(xattrs, [("user.both".into(), b"2".to_vec())]);
}

/// In whatever order the names of an archive are, and whatever upper layers take away.
#[test]
fn directories_keep_the_times_that_they_were_given() {
    let dir = |tar: Tar, path: &str, mtime: &str| tar.member(b'5', path, "", b"", &[("mtime", mtime)]);
    let first = dir(dir(dir(Tar::new(), "./", "4.5"), "a", "5.25"), "a/sub", "6.75").file("a/sub/old", "");
    let first = dir(first.file("a/old", "").dir("b").file("b/x", "").file("a/sub/older", ""), "b", "7.5");
    let first = dir(first.file("c/d/late", ""), "c", "8.5").symlink("a/sub/link", "x");
    let second = Tar::new().file("a/sub/new", "").empty("a/.wh..wh..opq").link("c/d/hard", "b/x");
    // A name again, another one in its place, and its number may be used again.
    let third = dir(Tar::new().empty(".wh.b").file("new", ""), "gone", "9").file("gone", "");
    let volume = volume();
    assert_eq!(
        onto(&volume, &[first, second, third.dir("e").file("e/x", "")], &ImportOptions::new()),
        [""; 0]
    );
    let time = |path: &str| {
        (volume.metadata(path).unwrap().mtime().sec, volume.metadata(path).unwrap().mtime().nsec)
    };
    for (path, want) in [
        ("/", (4, 500_000_000)),
        ("/a", (5, 250_000_000)),
        ("/a/sub", (6, 750_000_000)),
        ("/c", (8, 500_000_000)),
        ("/e", (1000, 0)),
    ] {
        assert_eq!(time(path), want, "{path}");
    }
    assert!(time("/c/d").0 > 1_000_000_000, "of the import itself: nothing gives it one");
    assert_eq!(
        listing(&volume),
        ["a/", "a/sub/", "a/sub/new=", "c/", "c/d/", "c/d/hard=", "c/d/late=", "e/", "e/x=", "gone=", "new="]
    );
}

/// What is in the volume before is the lowest layer.
#[test]
fn layers_lie_on_what_is_there() {
    let volume = volume();
    volume.create_dir_all("/d/e").unwrap();
    volume.write("/d/old", b"old").unwrap();
    assert_eq!(onto(&volume, &[Tar::new().empty("d/.wh.old"), base()], &ImportOptions::new()), [""; 0]);
    assert_eq!(listing(&volume)[..3], ["a/", "a/1=one", "a/2=two"]);
    assert!(!volume.exists("/d/old").unwrap() && volume.exists("/d/e").unwrap());
    onto(&volume, &[Tar::new().empty(".wh..wh..opq").empty(".wh.lost+found")], &ImportOptions::new());
    assert!(listing(&volume).is_empty() && volume.exists("/lost+found").unwrap());
}

/// Nor does a name of a layer take the volume's `lost+found` away.
#[test]
fn lost_and_found_is_not_replaced() {
    let file = || Tar::new().file("f", "f");
    for upper in
        [file().file("lost+found", "x"), file().symlink("lost+found", "f"), file().link("lost+found", "f")]
    {
        let volume = volume();
        volume.write("/lost+found/kept", b"kept").unwrap();
        assert_eq!(onto(&volume, &[base(), upper], &ImportOptions::new()).len(), 1);
        assert_eq!(volume.read("/lost+found/kept").unwrap(), b"kept");
    }
}

#[test]
fn whiteouts_may_stay_files() {
    let volume = volume();
    let layers = [base(), Tar::new().empty("a/.wh.1").empty(".wh..wh..opq")];
    assert_eq!(onto(&volume, &layers, &ImportOptions::new().whiteouts(false)), [""; 0]);
    let kept = listing(&volume);
    assert!(kept.contains(&"a/.wh.1=".into()) && kept.contains(&".wh..wh..opq=".into()), "{kept:?}");
    assert!(kept.contains(&"a/1=one".into()));
}

/// Nothing is reached through a link, nothing above the target, and each error names entry and
/// layer.
#[test]
fn hostile_layers_stay_inside() {
    let volume = volume();
    volume.create_dir_all("/target").unwrap();
    let hostile = Tar::new()
        .symlink("way", "/outside")
        .file("way/through", "evil")
        .empty("way/.wh.file")
        .empty("way/.wh..wh..opq")
        .file("../up", "evil")
        .file("/absolute", "in")
        .empty("a/../../.wh.outside")
        .empty(".wh...")
        .empty("a/.wh..")
        .empty("a/.wh.")
        .file(".wh.a/x", "evil")
        .file(".wh..wh.plnk/1.2", "")
        .link("hard", "../outside/file")
        .file(&"n".repeat(256), "long")
        .file(&format!("a/{}", "n".repeat(255)), "long enough")
        .empty(&format!(".wh.{}", "n".repeat(300)));
    let dir = tempfile::tempdir().unwrap();
    let paths = [dir.path().join("base.tar"), dir.path().join("evil.tar")];
    fs::write(&paths[0], base().end()).unwrap();
    fs::write(&paths[1], hostile.end()).unwrap();
    volume.create_dir_all("/outside").unwrap();
    volume.write("/outside/file", b"keep").unwrap();
    let mut said = Vec::new();
    let source = Source::layers(&paths).unwrap();
    lanefs_archive::import(source, &volume, "/target", &ImportOptions::new(), |event| {
        if let lanefs_archive::Event::Skipped(error) = event {
            said.push(error);
        }
        std::ops::ControlFlow::Continue(())
    })
    .unwrap();
    let shown: Vec<String> = said.iter().map(|e| e.place().to_string()).collect();
    let long = format!("/target/{}", "n".repeat(256));
    let want = [
        "/target/way/through",
        "../up",
        "a/../../.wh.outside",
        ".wh...",
        "a/.wh..",
        "a/.wh.",
        ".wh.a/x",
        "/target/hard",
        &long,
    ];
    assert_eq!(shown[..want.len()], want);
    for error in &said {
        assert!(error.to_string().ends_with(&format!("(layer 2 of 2, {})", paths[1].display())), "{error}");
    }
    assert_eq!(volume.read("/outside/file").unwrap(), b"keep");
    assert_eq!(volume.read_dir("/outside").unwrap().len(), 1);
    assert_eq!(volume.read("/target/absolute").unwrap(), b"in");
    assert_eq!(volume.read_dir("/").unwrap().len(), 3, "lost+found, outside, target");
}

#[test]
fn what_archives_unpack_to_is_bounded() {
    let many = |n: usize| Tar::new().file("zeros", &"\0".repeat(n));
    let options = ImportOptions::new().max_size(100_000);
    assert_eq!(onto(&volume(), &[many(40_000), many(40_000)], &options), [""; 0]);
    let dir = tempfile::tempdir().unwrap();
    let paths = [dir.path().join("0"), dir.path().join("1")];
    fs::write(&paths[0], many(40_000).end()).unwrap();
    let bomb = zstd::encode_all(&many(50 << 20).end()[..], 1).unwrap();
    assert!(bomb.len() < 10_000);
    fs::write(&paths[1], bomb).unwrap();
    let error = skipped(Source::layers(&paths).unwrap(), &volume(), &options).unwrap_err();
    assert!(matches!(error.cause(), Cause::TooLarge(100_000)), "{error}");
    let error = skipped(Source::open(&paths[1]).unwrap(), &volume(), &options).unwrap_err();
    assert!(matches!(error.cause(), Cause::TooLarge(100_000)), "{error}");
    let Err(error) = Source::layers([&paths[0], &dir.path().join("none")]) else { panic!("there is none") };
    assert!(error.to_string().starts_with("cannot open "), "{error}");
}
