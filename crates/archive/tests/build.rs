//! Volumes that are made of a source and fit it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panic")]

mod support;

use lanefs::device::MemDevice;
use lanefs::{Timestamp, Volume, mkfs};
use lanefs_archive::{BuildOptions, Built, Cause, Error, Event, ImageChoice, Source, VolumeSize, build};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::fs;
use std::io::Write;
use std::ops::ControlFlow::{Break, Continue};
use std::path::{Path, PathBuf};
use support::{Tar, listing, skipped};
use tempfile::TempDir;

struct Bench(TempDir);

impl Bench {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Names in the folder.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.0.path()).unwrap();
        let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Writes layers; their paths.
    fn layers(&self, layers: &[Tar]) -> Vec<PathBuf> {
        let path = |(i, layer): (usize, &Tar)| {
            let path = self.at(&format!("{i}.tar"));
            fs::write(&path, layer.clone().end()).unwrap();
            path
        };
        layers.iter().enumerate().map(path).collect()
    }

    fn build(&self, source: Source, options: &BuildOptions) -> Result<Built, Error> {
        build(source, self.at("v.img"), options, |event| match event {
            Event::Skipped(_) | Event::Entry | Event::Found => Continue(()),
            _ => Continue(()),
        })
    }
}

fn open(path: &Path) -> Volume {
    Volume::open_read_only(path).unwrap()
}

/// A file of so many bytes.
fn big(len: usize) -> String {
    "b".repeat(len)
}

#[test]
fn files_that_upper_layers_remove_take_no_room() {
    let bench = Bench::new();
    let lower = Tar::new()
        .dir("gone")
        .file("gone/big", &big(3 << 20))
        .file("replaced", &big(2 << 20))
        .file("kept-by-its-link", &big(1 << 20))
        .file("twice", "one")
        .file("twice", &big(1 << 20));
    let upper = Tar::new()
        .empty(".wh.gone")
        .file("replaced", "new")
        .link("link", "kept-by-its-link")
        .empty(".wh.kept-by-its-link")
        .file("twice", "three");
    let source = Source::layers(bench.layers(&[lower, upper])).unwrap();
    let built = bench.build(source, &BuildOptions::new()).unwrap();
    let volume = open(&bench.at("v.img"));
    let link = format!("link={}", big(1 << 20));
    assert_eq!(listing(&volume), [&*link, "replaced=new", "twice=three"]);
    // One MiB of content, and not eight.
    assert!(built.file_size < 1400 << 10, "{}", built.file_size);
}

/// The second pass reads what the first one has unpacked, whatever became of the archive since.
#[test]
fn an_archive_is_unpacked_once() {
    let bench = Bench::new();
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(&Tar::new().file("f", &big(3 << 20)).file("g", "g").end()).unwrap();
    let (packed, path) = (packed.finish().unwrap(), bench.at("layer.tar.gz"));
    for as_layers in [false, true] {
        fs::write(&path, &packed).unwrap();
        let source = if as_layers { Source::layers([&path]) } else { Source::open(&path) };
        let options = BuildOptions::new().overwrite(true);
        build(source.unwrap(), bench.at("v.img"), &options, |event| {
            if matches!(event, Event::Sized(_)) {
                fs::write(&path, "no archive any more").unwrap();
            }
            Continue(())
        })
        .unwrap();
        assert_eq!(listing(&open(&bench.at("v.img"))), [format!("f={}", big(3 << 20)), "g=g".into()]);
        assert_eq!(bench.names(), ["layer.tar.gz", "v.img"]);
    }
}

/// What an archive unpacks to is not unpacked again, whatever its first bytes look like: these are
/// the name of its first member.
#[test]
fn an_unpacked_archive_is_no_compressed_one() {
    let bench = Bench::new();
    let path = bench.at("layer.tar.gz");
    for name in ["BZh91AY", "\u{4}\"M\u{18}"] {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(&Tar::new().file(name, "n").end()).unwrap();
        fs::write(&path, packed.finish().unwrap()).unwrap();
        for as_layers in [false, true] {
            let source = if as_layers { Source::layers([&path]) } else { Source::open(&path) };
            bench.build(source.unwrap(), &BuildOptions::new().overwrite(true)).unwrap();
            assert_eq!(listing(&open(&bench.at("v.img"))), [format!("{name}=n")]);
        }
    }
}

/// Nor is a plain one, by whatever way it comes.
#[test]
fn a_plain_archive_is_no_compressed_one() {
    let bench = Bench::new();
    let path = bench.at("plain.tar");
    for name in ["BZh91AY", "\u{4}\"M\u{18}", "P*M\u{18}"] {
        let tar = Tar::new().file(name, "n").end();
        fs::write(&path, &tar).unwrap();
        let stream = Source::archive("-", std::io::Cursor::new(tar.clone())).unwrap();
        let reader = Source::reader("-", std::io::Cursor::new(tar), &ImageChoice::new(), None).unwrap();
        let sources = [Source::open(&path).unwrap(), Source::layers([&path]).unwrap(), stream, reader];
        for source in sources {
            let options = BuildOptions::new().overwrite(true).size(VolumeSize::Bytes(16 << 20));
            bench.build(source, &options).unwrap();
            assert_eq!(listing(&open(&bench.at("v.img"))), [format!("{name}=n")]);
        }
    }
}

/// An image may have ten thousand layers, and a process a thousand open files.
#[test]
fn layers_need_few_open_files() {
    let bench = Bench::new();
    let path = |n: usize| {
        let path = bench.at(&format!("{n}.tar.gz"));
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(&Tar::new().file(&n.to_string(), "n").end()).unwrap();
        fs::write(&path, packed.finish().unwrap()).unwrap();
        path
    };
    let source = Source::layers((0..300).map(path)).unwrap();
    let mut open_files = 0;
    build(source, bench.at("v.img"), &BuildOptions::new(), |event| {
        if matches!(event, Event::Sized(_)) {
            open_files = fs::read_dir("/proc/self/fd").unwrap().count();
        }
        Continue(())
    })
    .unwrap();
    assert_eq!(listing(&open(&bench.at("v.img"))).len(), 300);
    assert!(open_files < 250, "{open_files} files are open");
}

/// A layer of what a random walk makes.
fn random_layer(rng: &mut StdRng, at: usize) -> Tar {
    let path = |rng: &mut StdRng| {
        let depth = rng.random_range(1..=3);
        (0..depth).map(|_| ["a", "b", "c"][rng.random_range(0..3)]).collect::<Vec<_>>().join("/")
    };
    (0..rng.random_range(4..24)).fold(Tar::new(), |tar, n| {
        let one = path(rng);
        match rng.random_range(0..9) {
            0 | 1 => tar.dir(&one),
            2 => tar.symlink(&one, &big(rng.random_range(1..90))),
            3 => tar.link(&one, &path(rng)),
            4 => {
                let (dir, name) = one.rsplit_once('/').unwrap_or(("", &one));
                tar.empty(&format!("{dir}/.wh.{name}"))
            }
            5 => tar.empty(&format!("{one}/.wh..wh..opq")),
            6 => tar.member(b'0', &one, "", b"x", &[("SCHILY.xattr.user.x", &big(700))]),
            _ => tar.file(&one, &format!("{at}.{n}:{}", big(rng.random_range(0..20_000)))),
        }
    })
}

/// What a build leaves out must be what an import removes: the trees are the same.
#[test]
fn a_build_is_an_import_into_a_large_volume() {
    let bench = Bench::new();
    for seed in 0..40 {
        let mut rng = StdRng::seed_from_u64(seed);
        let count = rng.random_range(1..5);
        let layers: Vec<Tar> = (0..count).map(|at| random_layer(&mut rng, at)).collect();
        let paths = bench.layers(&layers);
        let source = || match count {
            1 => Source::open(&paths[0]).unwrap(),
            _ => Source::layers(&paths).unwrap(),
        };
        let large = support::volume();
        let want = skipped(source(), &large, &Default::default()).unwrap();
        let mut said = Vec::new();
        let options = BuildOptions::new().overwrite(true);
        build(source(), bench.at("v.img"), &options, |event| {
            if let Event::Skipped(error) = event {
                said.push(error.to_string());
            }
            Continue(())
        })
        .unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert_eq!(said, want.iter().map(ToString::to_string).collect::<Vec<_>>(), "seed {seed}");
        assert_eq!(listing(&open(&bench.at("v.img"))), listing(&large), "seed {seed}");
    }
}

#[test]
fn a_target_is_whole_or_not_there() {
    let bench = Bench::new();
    let tar = Tar::new().dir("d").file("d/f", &big(600 << 10)).file("g", "g").end();
    fs::write(bench.at("t.tar"), tar).unwrap();
    let source = || Source::open(bench.at("t.tar")).unwrap();
    let mut steps = 0;
    build(source(), bench.at("v.img"), &BuildOptions::new(), |_| {
        steps += 1;
        Continue(())
    })
    .unwrap();
    assert!(steps > 6, "{steps}");
    let whole = fs::read(bench.at("v.img")).unwrap();
    let exists = bench.build(source(), &BuildOptions::new()).unwrap_err();
    assert!(matches!(exists.cause(), Cause::TargetExists), "{exists}");
    // Cancelled at each step: what was there stays, and nothing else does. Waiting is told at times
    // of its own.
    for (overwrite, before) in [(true, &["t.tar", "v.img"][..]), (false, &["t.tar"])] {
        for last in 1.. {
            let mut step = 0;
            let options = BuildOptions::new().overwrite(overwrite);
            let built = build(source(), bench.at("v.img"), &options, |event| {
                step += usize::from(!matches!(event, Event::Waiting));
                if step == last { Break(()) } else { Continue(()) }
            });
            match built {
                Err(e) => assert!(e.is_cancelled(), "{e}"),
                Ok(_) => break,
            }
            assert_eq!(bench.names(), before, "step {last}");
            if overwrite {
                assert!(fs::read(bench.at("v.img")).unwrap() == whole);
            }
        }
        fs::remove_file(bench.at("v.img")).unwrap();
    }
    // Kept: a volume with what was whole by then.
    let options = BuildOptions::new().keep(true);
    let cancelled = build(source(), bench.at("v.img"), &options, |event| match event {
        Event::Data(_) => Break(()),
        _ => Continue(()),
    });
    assert!(cancelled.unwrap_err().is_cancelled());
    assert_eq!(bench.names(), ["t.tar", "v.img"]);
    assert_eq!(listing(&open(&bench.at("v.img"))), ["d/"]);
    // A folder is no file.
    let e =
        build(source(), bench.0.path(), &BuildOptions::new().overwrite(true), |_| Continue(())).unwrap_err();
    assert!(matches!(e.cause(), Cause::NotAFile), "{e}");
}

#[test]
fn a_size_that_is_asked_for() {
    let bench = Bench::new();
    let tar = Tar::new().file("f", &big(5 << 20)).end();
    fs::write(bench.at("t.tar"), &tar).unwrap();
    let source = || Source::open(bench.at("t.tar")).unwrap();
    let sized = |size| BuildOptions::new().overwrite(true).size(size);
    let small = bench.build(source(), &sized(VolumeSize::Bytes(4 << 20))).unwrap_err();
    let Cause::TooSmall { needed } = *small.cause() else { panic!("{small}") };
    assert_eq!(bench.names(), ["t.tar"]);
    let least = bench.build(source(), &sized(VolumeSize::Bytes(needed))).unwrap();
    let fit = bench.build(source(), &sized(VolumeSize::Fit)).unwrap();
    assert_eq!((least.file_size, fit.file_size), (needed, needed));
    let more = bench.build(source(), &sized(VolumeSize::FitPercent(50))).unwrap();
    assert!((needed * 149 / 100..=needed * 3 / 2).contains(&more.file_size), "{}", more.file_size);
    let more = bench.build(source(), &sized(VolumeSize::FitBytes(32 << 20))).unwrap();
    assert_eq!(more.file_size, (needed + (32 << 20)) / 4096 * 4096);
    // A stream is read once.
    let stream = || Source::archive("t.tar", std::io::Cursor::new(tar.clone())).unwrap();
    let once = bench.build(stream(), &sized(VolumeSize::Fit)).unwrap_err();
    assert!(matches!(once.cause(), Cause::ReadOnce), "{once}");
    bench.build(stream(), &sized(VolumeSize::Bytes(16 << 20))).unwrap();
    let full = bench.build(stream(), &sized(VolumeSize::Bytes(4 << 20))).unwrap_err();
    assert!(matches!(full.cause(), Cause::Volume(lanefs::Error::NoSpace)), "{full}");
}

/// Three files of five blocks leave one of 16 free: the last files get single blocks, and maps.
#[test]
fn many_small_files_fit() {
    let bench = Bench::new();
    for (count, len, block_size) in [(1500, 20_000, 4096), (1500, 5000, 1024), (400, 24_000, 4096)] {
        let tar = (0..count).fold(Tar::new(), |tar, i| tar.file(&format!("r{i}"), &big(len)));
        let path = bench.layers(&[tar]).remove(0);
        let block_size = Some(block_size);
        let volume = mkfs::Options { block_size, ..without_journal() };
        let options = BuildOptions::new().overwrite(true).volume(volume);
        let mut sizes = 0;
        build(Source::open(path).unwrap(), bench.at("v.img"), &options, |event| {
            sizes += usize::from(matches!(event, Event::Sized(_)));
            Continue(())
        })
        .unwrap();
        assert_eq!(sizes, 1, "{count} of {len}: the first size will do");
        assert_eq!(open(&bench.at("v.img")).read_dir("/").unwrap().len(), count + 1);
    }
}

fn without_journal() -> mkfs::Options {
    mkfs::Options { features: "^has_journal".parse().unwrap(), ..Default::default() }
}

#[test]
#[cfg(target_os = "linux")]
fn a_size_that_turns_out_too_small_grows() {
    let bench = Bench::new();
    fs::create_dir(bench.at("t")).unwrap();
    // More than the margin, and less than twice of it; more than any margin.
    for (more, fills) in [(16 * 4096, true), (16 << 20, false)] {
        fs::write(bench.at("t/f"), big(1 << 20)).unwrap();
        let options = BuildOptions::new().overwrite(true).keep(true).volume(without_journal());
        let mut sizes = Vec::new();
        let built = build(Source::folder(bench.at("t")).unwrap(), bench.at("v.img"), &options, |event| {
            if let Event::Sized(size) = event {
                fs::write(bench.at("t/f"), big((1 << 20) + more)).unwrap();
                sizes.push(size);
            }
            Continue(())
        });
        assert!(sizes.is_sorted_by(|a, b| a < b), "{sizes:?}");
        assert_eq!(sizes.len(), if fills { 2 } else { 4 });
        match built {
            Ok(_) => assert!(fills && open(&bench.at("v.img")).read("/f").unwrap().len() == (1 << 20) + more),
            Err(e) => assert!(!fills && matches!(e.cause(), Cause::Volume(lanefs::Error::NoSpace)), "{e}"),
        }
        assert_eq!(bench.names(), ["t", "v.img"]);
    }
}

/// Makes files in the folder `t`.
#[cfg(target_os = "linux")]
fn empty_files(bench: &Bench, count: u8) -> Vec<(u8, PathBuf)> {
    fs::create_dir(bench.at("t")).unwrap();
    let files: Vec<_> = (0..count).map(|n| (n, bench.at(&format!("t/{n}")))).collect();
    files.iter().for_each(|(_, path)| fs::write(path, "").unwrap());
    files
}

/// Gives each file an attribute that needs a block of its own.
#[cfg(target_os = "linux")]
fn give_attributes(files: &[(u8, PathBuf)]) {
    use rustix::fs::{XattrFlags, setxattr};
    for (n, path) in files {
        setxattr(path, c"user.big", &[*n; 3000], XattrFlags::empty()).unwrap();
    }
}

/// Each attribute needs a block of its own, which the first pass did not see. The smallest volume
/// has some fifty to spare, and the largest that is tried eighty more than it needs.
#[test]
#[cfg(target_os = "linux")]
fn a_volume_without_room_for_an_attribute_grows() {
    let bench = Bench::new();
    let files = empty_files(&bench, 75);
    let options = BuildOptions::new().volume(without_journal());
    let (mut sizes, mut skipped) = (0, Vec::new());
    build(Source::folder(bench.at("t")).unwrap(), bench.at("v.img"), &options, |event| {
        match event {
            Event::Sized(_) => {
                sizes += 1;
                give_attributes(&files);
            }
            Event::Skipped(error) => skipped.push(error),
            _ => {}
        }
        Continue(())
    })
    .unwrap();
    assert!(sizes > 1 && skipped.is_empty(), "{sizes}: {skipped:?}");
    let volume = open(&bench.at("v.img"));
    for (n, _) in &files {
        assert_eq!(volume.xattr(format!("/{n}"), "user.big").unwrap(), [*n; 3000]);
    }
}

/// A volume of a size that was asked for does not grow: it has all names without what has no room.
#[test]
#[cfg(target_os = "linux")]
fn a_fixed_volume_without_room_for_an_attribute_has_the_names() {
    let bench = Bench::new();
    let files = empty_files(&bench, 200);
    let source = || Source::folder(bench.at("t")).unwrap();
    let options = BuildOptions::new().volume(without_journal()).overwrite(true);
    let size = bench.build(source(), &options).unwrap().file_size;
    let mut skipped = 0;
    build(source(), bench.at("v.img"), &options.size(VolumeSize::Bytes(size)), |event| {
        match event {
            Event::Sized(_) => give_attributes(&files),
            Event::Skipped(e) => {
                let Cause::Xattr { cause, .. } = e.cause() else { panic!("{e}") };
                assert!(matches!(**cause, Cause::Volume(lanefs::Error::NoSpace)), "{e}");
                skipped += 1;
            }
            _ => {}
        }
        Continue(())
    })
    .unwrap();
    let volume = open(&bench.at("v.img"));
    let has = files.iter().filter(|(n, _)| volume.xattr(format!("/{n}"), "user.big").is_ok());
    assert!(skipped > 0 && has.count() + skipped == 200, "{skipped}");
}

#[test]
fn more_than_fits_is_more() {
    let bench = Bench::new();
    fs::write(bench.at("t.tar"), Tar::new().file("f", &big(7_900_000)).end()).unwrap();
    let built = |size| {
        let options = BuildOptions::new().overwrite(true).size(size);
        let built = bench.build(Source::open(bench.at("t.tar")).unwrap(), &options).unwrap();
        (built.file_size, open(&bench.at("v.img")).statfs().blocks_free)
    };
    let (fit, free) = built(VolumeSize::Fit);
    for mib in [1, 4, 8, 64] {
        let (size, more) = built(VolumeSize::FitBytes(mib << 20));
        assert_eq!(size, fit + (mib << 20));
        assert!(more >= free + mib * 128, "{mib} MiB: {more} blocks free, {free} before");
    }
    for percent in [1, 7] {
        let (size, more) = built(VolumeSize::FitPercent(percent));
        assert_eq!(size, (fit + fit * u64::from(percent) / 100) / 4096 * 4096);
        assert!(more > free);
    }
    assert_eq!(built(VolumeSize::Bytes(10_000_001)).0, 10_000_001 / 4096 * 4096);
}

#[test]
#[cfg(target_os = "linux")]
fn a_target_is_no_part_of_the_source() {
    let bench = Bench::new();
    fs::create_dir_all(bench.at("t/deep")).unwrap();
    let paths = bench.layers(&[Tar::new().file("f", "f"), Tar::new().file("g", "g")]);
    let options = BuildOptions::new().overwrite(true);
    let refused = |source: Source, target: PathBuf| {
        let events = |event| panic!("{event:?}");
        build(source, target, &options, events).unwrap_err()
    };
    for target in ["t/v.img", "t/deep/v.img"] {
        let e = refused(Source::folder(bench.at("t")).unwrap(), bench.at(target));
        assert!(matches!(e.cause(), Cause::TargetInSource), "{e}");
    }
    fs::hard_link(&paths[1], bench.at("hard")).unwrap();
    std::os::unix::fs::symlink(&paths[1], bench.at("soft")).unwrap();
    for target in [&paths[1], &bench.at("hard"), &bench.at("soft")] {
        let e = refused(Source::layers(&paths).unwrap(), target.clone());
        assert!(matches!(e.cause(), Cause::TargetIsSource), "{e}");
        let e = refused(Source::open(&paths[1]).unwrap(), target.clone());
        assert!(matches!(e.cause(), Cause::TargetIsSource), "{e}");
    }
    assert_eq!(fs::read(&paths[1]).unwrap(), Tar::new().file("g", "g").end());
}

/// A volume that another opener has is not replaced; the new file has the mode of the old one.
#[test]
fn what_is_replaced_is_not_in_use() {
    use std::os::unix::fs::PermissionsExt;
    let bench = Bench::new();
    fs::write(bench.at("t.tar"), Tar::new().file("f", "content").end()).unwrap();
    let options = BuildOptions::new().overwrite(true);
    let target = bench.at("v.img");
    let make = || {
        let source = Source::open(bench.at("t.tar")).unwrap();
        build(source, &target, &options, |_| Continue(()))
    };
    make().unwrap();
    for mode in [0o600, 0o440] {
        fs::set_permissions(&target, fs::Permissions::from_mode(mode)).unwrap();
        make().unwrap();
        assert_eq!(fs::metadata(&target).unwrap().permissions().mode() & 0o7777, mode);
    }
    let volume = Volume::open(&target).unwrap();
    volume.write("/new", b"of the opener").unwrap();
    let e = make().unwrap_err();
    assert!(e.to_string().contains("in use"), "{e}");
    volume.close().unwrap();
    assert_eq!(Volume::open_read_only(&target).unwrap().read("/new").unwrap(), b"of the opener");
}

#[test]
fn a_disk_with_a_tree_of_dm_verity() {
    let bench = Bench::new();
    fs::write(bench.at("t.tar"), Tar::new().file("f", "content").end()).unwrap();
    let volume = mkfs::Options { label: b"root".to_vec(), uuid: Some([7; 16]), ..Default::default() };
    let options = BuildOptions::new().volume(volume).gpt(true).verity(Default::default());
    let options = options.time(Timestamp { sec: 1_000_000_000, nsec: 0 });
    let source = || Source::open(bench.at("t.tar")).unwrap();
    let built = bench.build(source(), &options).unwrap();
    let bytes = fs::read(bench.at("v.img")).unwrap();
    assert_eq!((built.file_size as usize, built.file_size % (1 << 20)), (bytes.len(), 0));
    bench.build(source(), &options.clone().overwrite(true)).unwrap();
    assert!(fs::read(bench.at("v.img")).unwrap() == bytes, "the same bytes twice");
    let (header, root) = built.verity.unwrap();
    let whole = MemDevice::from_bytes(bytes);
    let table = lanefs::device::PartitionTable::read(&whole).unwrap().unwrap();
    let partition = table.find("root").unwrap();
    assert_eq!(partition.label.as_deref(), Some("root"));
    let mut part = vec![0; partition.size as usize];
    lanefs::device::BlockDevice::read_at(&whole, &mut part, partition.start).unwrap();
    let part = MemDevice::from_bytes(part);
    let offset = header.data_size();
    assert_eq!(lanefs_verity::verify(&part, &part, offset, Some(&root), &|_| true).unwrap(), root);
    let volume =
        lanefs::OpenOptions::new().open_url(format!("{}@root", bench.at("v.img").display())).unwrap();
    assert_eq!(volume.read("/f").unwrap(), b"content");
}
