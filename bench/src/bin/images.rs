//! Compares the image tools with their peers: tar2ext4, umoci with mke2fs -d, resize2fs and
//! veritysetup. Peer and lanefs take turns, in one run, on one file system.
//!
//! `make bench-images`; `ARGS="oci verity"` for some cases only, `ARGS=--quick` for one round.

use clap::Parser;
use lanefs_bench::cases::{self, Case, Effort};
use lanefs_bench::process::{self, Cost};
use lanefs_bench::report::{Goal, Report};
use lanefs_bench::setup::{lanefs_command, own_folder};
use lanefs_bench::tree::make_tree;
use lanefs_bench::turns::rotated;
use lanefs_lab::Outcome;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const CASES: [Case<Bench>; 6] = [
    ("oci", oci),
    ("zstd", zstd),
    ("folder", folder),
    ("verity", verity),
    ("grow", grow),
    ("shrink", shrink),
];

struct Bench {
    dir: PathBuf,
    /// Where `scripts/image-peers.sh` left tar2ext4 and the root file system.
    judges: PathBuf,
    lanefs: PathBuf,
    runs: usize,
    quick: bool,
    report: Report,
}

/// Images, sizes and hash trees beside their peers
#[derive(Debug, Parser)]
struct Args {
    /// Only these cases
    cases: Vec<String>,
    #[command(flatten)]
    effort: Effort,
}

fn main() -> ExitCode {
    cases::end("images", start(&Args::parse()))
}

fn start(Args { cases: named, effort }: &Args) -> Outcome<()> {
    let chosen = cases::choose(&CASES, named)?;
    let lanefs = lanefs_command()?;
    // Beside the folder of the profile.
    let target = lanefs.ancestors().nth(2).ok_or("the program is in no target folder")?;
    let dir = own_folder(
        std::env::temp_dir(),
        &["mke2fs", "resize2fs", "tar", "umoci", "veritysetup", "zstd", "/usr/bin/time"],
    )?;
    let mut bench = Bench {
        dir: dir.path().to_owned(),
        judges: target.join("judges"),
        lanefs: lanefs.clone(),
        runs: effort.runs(3),
        quick: effort.quick,
        report: Report::new("images"),
    };
    cases::run(&mut bench, &chosen)?;
    println!("\n{}", bench.report.finish()?.display());
    Ok(())
}

impl Bench {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn lanefs(&self, script: &str) -> Outcome<Cost> {
        self.shell(&format!("{} {script}", self.lanefs.display()))
    }

    /// Runs a line of shell in the folder of the benchmark.
    fn shell(&self, script: &str) -> Outcome<Cost> {
        let script = format!("set -eu; cd {}; {script}", self.dir.display());
        process::run(&self.path("time"), "sh", &["-c", &script])
    }

    /// Times each of the `ways` once a round, each after `before` has run. Gives the medians.
    fn turns(&mut self, case: &str, before: &str, ways: &[(&str, String)]) -> Outcome<Vec<f64>> {
        let mut samples = vec![Vec::new(); ways.len()];
        let mut peak = Vec::new();
        for number in rotated(self.runs, ways.len()) {
            let (name, script) = &ways[number];
            self.shell(before)?;
            let cost = self.shell(script)?;
            samples[number].push(cost.seconds);
            if *name == "lanefs" {
                peak.push(cost.peak_mib);
            }
        }
        self.report.row(&format!("{case}, memory"), "lanefs", 1, &peak, "MiB peak");
        let rows = ways.iter().zip(&samples);
        Ok(rows.map(|((name, _), samples)| self.report.row(case, name, 1, samples, "s")).collect())
    }

    fn at_most(&mut self, what: &str, goal: f64, ours: f64, theirs: f64) {
        self.report.target(what, Goal::AtMost(goal), ours / theirs);
    }

    /// The Debian root file system as three layers: what lies below /usr/share, the rest, and a
    /// third that takes away and replaces.
    fn layers(&self) -> Outcome<()> {
        if self.path("layer1.tar").exists() {
            return Ok(());
        }
        let root = self.judges.join("rootfs.tar");
        if !root.exists() {
            return Err(format!("{}: run make bench-images", root.display()).into());
        }
        self.shell(&format!(
            "mkdir root top; tar -C root --numeric-owner -xpf {}
             tar -C root --numeric-owner --exclude=./usr/share -cf layer1.tar .
             tar -C root --numeric-owner -cf layer2.tar ./usr/share
             mkdir -p top/usr/share top/etc; touch top/usr/share/.wh.doc; date > top/etc/built
             tar -C top --numeric-owner -cf layer3.tar .; rm -r root top
             umoci init --layout img; umoci new --image img:new
             for n in 1 2 3; do umoci raw add-layer --image img:new layer$n.tar; done
             umoci unpack --image img:new flat; tar -C flat/rootfs --numeric-owner -cf flat.tar .; rm -r flat
             sync",
            root.display()
        ))?;
        Ok(())
    }
}

/// A Debian root file system in three gzip layers to a volume that fits.
fn oci(bench: &mut Bench) -> Outcome<()> {
    bench.layers()?;
    let lanefs = bench.lanefs.display().to_string();
    let tar2ext4 = bench.judges.join("tar2ext4").display().to_string();
    let ways = [
        ("lanefs", format!("{lanefs} build -q img:new v.img")),
        ("tar2ext4, flattened", format!("{tar2ext4} -i flat.tar -o v.img")),
        // lanefs makes its file durable before it has its name.
        ("tar2ext4, flattened, sync", format!("{tar2ext4} -i flat.tar -o v.img; sync v.img")),
        ("umoci, mke2fs -d", "umoci unpack --image img:new u; mke2fs -q -t ext4 -d u/rootfs v.img 1G".into()),
    ];
    let case = "Debian in 3 gzip layers to a volume";
    let got = bench.turns(case, "rm -rf v.img u", &ways)?;
    bench.at_most(&format!("{case}: of the time of tar2ext4"), 0.7, got[0], got[1]);
    bench.at_most(&format!("{case}: of the time of umoci and mke2fs -d"), 0.5, got[0], got[3]);
    Ok(())
}

/// The same layers by zstd, beside the decompressor alone.
fn zstd(bench: &mut Bench) -> Outcome<()> {
    bench.layers()?;
    bench.shell("for n in 1 2 3; do zstd -qf layer$n.tar -o layer$n.tar.zst; done; sync")?;
    let lanefs = bench.lanefs.display().to_string();
    let layers = "layer1.tar.zst layer2.tar.zst layer3.tar.zst";
    let ways = [
        ("lanefs", format!("{lanefs} build -q {layers} v.img")),
        ("zstd -dc", format!("zstd -dcq {layers} > /dev/null")),
        ("zstd -dc to a file, sync", format!("zstd -dcq {layers} > v.img; sync v.img")),
    ];
    let case = "Debian in 3 zstd layers to a volume";
    let got = bench.turns(case, "rm -f v.img", &ways)?;
    bench.at_most(&format!("{case}: of the time of zstd -dc"), 1.3, got[0], got[1]);
    Ok(())
}

/// 20,000 files, 1 GiB, with the progress bar on, as a terminal has it.
fn folder(bench: &mut Bench) -> Outcome<()> {
    let files = if bench.quick { 2_000 } else { 20_000 };
    let bytes = make_tree(&bench.path("tree"), files)?;
    let lanefs = bench.lanefs.display().to_string();
    let ways = [
        ("lanefs", format!("script -qec '{lanefs} build tree v.img' /dev/null")),
        ("mke2fs -d", format!("mke2fs -q -t ext4 -d tree v.img {}k", (bytes * 3 / 2) >> 10)),
    ];
    let case = format!("a folder of {files} files to a volume");
    let got = bench.turns(&case, "rm -f v.img", &ways)?;
    bench.at_most(&format!("{case}: of the time of mke2fs -d"), 0.5, got[0], got[1]);
    fs::remove_dir_all(bench.path("tree"))?;
    Ok(())
}

/// The hash tree of a volume of 4 GiB.
fn verity(bench: &mut Bench) -> Outcome<()> {
    let mib: u64 = if bench.quick { 512 } else { 4096 };
    bench.lanefs(&format!("mkfs -q --size {mib}M clean.img"))?;
    fill(&bench.path("data"), mib - 256)?;
    bench.lanefs("cp data clean.img:/data")?;
    fs::remove_file(bench.path("data"))?;
    let lanefs = bench.lanefs.display().to_string();
    let ways = [
        ("lanefs", format!("{lanefs} verity format --hash-file h clean.img")),
        ("veritysetup", "veritysetup format clean.img h".into()),
    ];
    let case = format!("hash tree of {mib} MiB");
    let got = bench.turns(&case, "rm -f h; sync", &ways)?;
    bench.at_most(&format!("{case}: of the time of veritysetup"), 0.8, got[0], got[1]);
    fs::remove_file(bench.path("clean.img"))?;
    Ok(())
}

/// A sparse volume from 1 GiB to 1 TiB.
fn grow(bench: &mut Bench) -> Outcome<()> {
    let lanefs = bench.lanefs.display().to_string();
    let ways = [
        ("lanefs", format!("{lanefs} resize v.img 1T")),
        ("resize2fs", "truncate -s 1T v.img; resize2fs v.img".to_owned()),
    ];
    let before = "rm -f v.img; truncate -s 1G v.img; mke2fs -q -t ext4 v.img; sync";
    let got = bench.turns("1 GiB to 1 TiB, sparse", before, &ways)?;
    bench.at_most("growth from 1 GiB to 1 TiB: of the time of resize2fs", 1.0, got[0], got[1]);
    Ok(())
}

/// A volume that is half full, to the least that it can have. Every second of its files is gone, so
/// that blocks have to move.
fn shrink(bench: &mut Bench) -> Outcome<()> {
    let (size, files) = if bench.quick { (2048u64, 32) } else { (16_384, 256) };
    let each = size / files;
    bench.lanefs(&format!("mkfs -q --force --size {size}M v.img"))?;
    fill(&bench.path("data"), each - each / 16)?;
    let names = |step: usize| (0..files).step_by(step).map(|n| format!(" v.img:/f{n}")).collect::<String>();
    for name in names(1).split_whitespace() {
        bench.lanefs(&format!("cp data {name}"))?;
    }
    bench.lanefs(&format!("rm{}", names(2)))?;
    bench.shell("mv v.img half.img; rm data; sync")?;
    let lanefs = bench.lanefs.display().to_string();
    let ways = [
        ("lanefs", format!("{lanefs} resize v.img min")),
        ("resize2fs -M", "e2fsck -fp v.img > /dev/null; resize2fs -M v.img; stat -c %s v.img > least".into()),
        // lanefs's own least is smaller, and resize2fs may not reach it.
        ("lanefs, to the least of resize2fs", format!("{lanefs} resize v.img $(cat least)")),
    ];
    let case = format!("{} GiB, half full, to the least", size >> 10);
    let got = bench.turns(&case, "cp --sparse=always half.img v.img; sync", &ways)?;
    bench.at_most(&format!("{case}: of the time of resize2fs -M"), 1.0, got[0], got[1]);
    bench.at_most(&format!("{case}: to the least of resize2fs -M, of its time"), 1.0, got[2], got[1]);
    Ok(())
}

/// Bytes that do not compress and are no holes.
fn fill(path: &Path, mib: u64) -> Outcome<()> {
    let mut file = File::create(path)?;
    let mut block = vec![0u8; 1 << 20];
    let mut state = 1u32;
    for _ in 0..mib {
        for word in block.chunks_exact_mut(4) {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            word.copy_from_slice(&state.to_le_bytes());
        }
        file.write_all(&block)?;
    }
    Ok(())
}
