//! Random reads, writes, truncations and more against a model of each file: several threads, each
//! with files of its own, and with a lot of each file that all of them share.
//!
//! Every mode of handling data, on volumes of every kind of map. Between rounds the volume is
//! closed, judged by e2fsck, and opened again. `LANEFS_SEED` replays the operations, not the order
//! between the threads; a failure leaves its operations in a file, and `LANEFS_FSX_REPLAY=FILE`
//! does them again in one thread. `LANEFS_FSX_SECONDS` starts new cases for so long, each of new
//! seeds (one case of each mode otherwise).

use lanefs::Volume;
use lanefs_sim::{Seed, seed_from_env};
use lanefs_tests::{FileOp, Mode, Model, Player, Watchdog, draw, e2fsck_clean, mke2fs, modes};
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};
use std::fmt::Write;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

const THREADS: usize = 4;
const ROUNDS: usize = 2;

/// Operations of a thread in a round.
const OPS: usize = 500;

/// Files that all threads share, with the bytes of each thread's lot. No border of lots is one of
/// blocks; in the small ones all threads are in one page, and the first to write fills the hole
/// under all.
const SHARED: &[(&str, u64)] = &[("/shared", 50_001), ("/near", 701), ("/nearer", 77), ("/also-near", 600)];

struct Shape {
    name: &'static str,
    block: u64,
    args: &'static [&'static str],
}

const SHAPES: &[Shape] = &[
    Shape { name: "4k", block: 4096, args: &["-t", "ext4", "-b", "4096"] },
    Shape {
        name: "1k",
        block: 1024,
        args: &["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "orphan_file,metadata_csum_seed"],
    },
    Shape { name: "ext3", block: 1024, args: &["-t", "ext3", "-b", "1024", "-J", "size=1"] },
    Shape { name: "no-journal", block: 2048, args: &["-t", "ext4", "-b", "2048", "-O", "^has_journal"] },
];

/// The operations of a round, as far as they were done, in the order in which they began.
struct Log {
    shape: &'static str,
    mode: String,
    lines: Mutex<Vec<(String, FileOp)>>,
}

impl Log {
    fn add(&self, path: &str, op: FileOp) {
        self.lines.lock().unwrap().push((path.to_owned(), op));
    }

    /// Keeps the log in a file, and says what led to a failure.
    fn explain(&self, said: &str, model: &Model, op: FileOp) -> String {
        let lines = self.lines.lock().unwrap();
        let mut text = format!("{} {}\n", self.shape, self.mode);
        lines.iter().for_each(|(path, op)| writeln!(text, "{path} {op}").unwrap());
        let (file, name) =
            tempfile::Builder::new().prefix("fsx-").suffix(".ops").tempfile().unwrap().keep().unwrap();
        drop(file);
        std::fs::write(&name, text).unwrap();
        let place = op.range();
        let touches = |o: &FileOp| o.range().start < place.end && place.start < o.range().end;
        let mut last: Vec<String> = lines
            .iter()
            .rev()
            .filter(|(path, o)| {
                path == model.path() && touches(o) && !matches!(o, FileOp::Read { .. } | FileOp::Seek { .. })
            })
            .take(12)
            .map(|(_, o)| o.to_string())
            .collect();
        last.reverse();
        let last = last.join("\n  ");
        format!("{said}\nchanges there before:\n  {last}\nLANEFS_FSX_REPLAY={}", name.display())
    }
}

fn lots(thread: usize) -> Vec<Model> {
    let mut models = vec![Model::whole(format!("/own{thread}")), Model::whole(format!("/other{thread}"))];
    for (path, lot) in SHARED {
        let start = thread as u64 * lot;
        models.push(Model::lot(*path, start..start + lot));
    }
    models
}

fn open(image: &Path, mode: &Mode) -> Volume {
    mode.options().open(image).unwrap()
}

fn make(image: &Path, shape: &Shape, mode: &Mode) {
    mke2fs(image, 48 << 20, shape.args);
    let volume = open(image, mode);
    for (path, lot) in SHARED {
        volume.create_file(path).unwrap().set_len(THREADS as u64 * lot).unwrap();
    }
    volume.close().unwrap();
}

fn run(shape: &'static Shape, mode: &Mode, seed: u64) {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("volume");
    make(&image, shape, mode);
    let log = Log { shape: shape.name, mode: mode.to_string(), lines: Mutex::default() };
    let mut seeds = StdRng::seed_from_u64(seed);
    let mut models: Vec<Vec<Model>> = (0..THREADS).map(lots).collect();
    for round in 0..ROUNDS {
        let volume = open(&image, mode);
        models = std::thread::scope(|scope| {
            let workers: Vec<_> = models
                .drain(..)
                .map(|models| {
                    let (volume, log, rng) = (&volume, &log, StdRng::seed_from_u64(seeds.next_u64()));
                    scope.spawn(move || thread(volume, shape.block, models, rng, log))
                })
                .collect();
            let results: Vec<_> = workers.into_iter().map(|w| w.join().unwrap()).collect();
            results.into_iter().collect::<Result<_, String>>()
        })
        .unwrap_or_else(|said| panic!("{} {mode}, round {round}, seed {seed:#x}: {said}", shape.name));
        volume.close().unwrap();
        e2fsck_clean(&image);
    }
    let volume = open(&image, mode);
    for model in models.into_iter().flatten() {
        Player::new(&volume, model)
            .unwrap_or_else(|said| panic!("{} {mode}, seed {seed:#x}: {said}", shape.name));
    }
}

fn thread(
    volume: &Volume,
    block: u64,
    models: Vec<Model>,
    mut rng: StdRng,
    log: &Log,
) -> Result<Vec<Model>, String> {
    let mut players: Vec<Player<'_>> =
        models.into_iter().map(|m| Player::new(volume, m)).collect::<Result<_, _>>()?;
    for _ in 0..OPS {
        // Half of the work on the files of its own.
        let among = if rng.random() { 2 } else { players.len() };
        let i = rng.random_range(0..among);
        let player = &mut players[i];
        let op = draw(&mut rng, player.model(), block);
        log.add(player.model().path(), op);
        player.play(op).map_err(|said| log.explain(&said, player.model(), op))?;
    }
    for player in &players {
        player.verify().map_err(|said| log.explain(&said, player.model(), FileOp::Reopen))?;
    }
    Ok(players.into_iter().map(Player::into_model).collect())
}

fn every_mode(shape: usize) {
    let seed: Seed = seed_from_env("LANEFS_SEED");
    let shape = &SHAPES[shape];
    let seconds = std::env::var("LANEFS_FSX_SECONDS").map_or(0, |s| s.parse().expect("seconds"));
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut seeds = seed.rng(0);
    let mut cases = 0;
    while cases == 0 || Instant::now() < end {
        for mode in modes() {
            let began = Instant::now();
            let _watchdog = Watchdog::new(format!("{} {mode}", shape.name));
            // The first is the seed itself, so that a case can be named.
            run(shape, &mode, if cases == 0 { seed.value() } else { seeds.next_u64() });
            println!("{} {mode}: {:.1} s", shape.name, began.elapsed().as_secs_f64());
            cases += 1;
        }
    }
}

#[test]
fn extents_and_4k_blocks() {
    every_mode(0);
}

#[test]
fn extents_and_1k_blocks() {
    every_mode(1);
}

#[test]
fn indirect_blocks() {
    every_mode(2);
}

#[test]
fn without_a_journal() {
    every_mode(3);
}

/// Does what a failure left behind once more.
#[test]
#[ignore = "a tool: LANEFS_FSX_REPLAY names the file"]
fn replay() {
    let name = std::env::var_os("LANEFS_FSX_REPLAY").expect("LANEFS_FSX_REPLAY");
    let text = std::fs::read_to_string(&name).unwrap();
    let mut lines = text.lines();
    let (shape, mode) = lines.next().and_then(|l| l.split_once(' ')).expect("a shape and a mode");
    let shape = SHAPES.iter().find(|s| s.name == shape).expect("a shape");
    let mode = modes().into_iter().find(|m| m.name() == mode).expect("a mode");
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("volume");
    make(&image, shape, &mode);
    let volume = open(&image, &mode);
    let mut players: Vec<Player<'_>> =
        (0..THREADS).flat_map(lots).map(|m| Player::new(&volume, m).unwrap()).collect();
    for (i, line) in lines.enumerate() {
        let (path, op) = line.split_once(' ').expect("a path and an operation");
        let op: FileOp = op.parse().unwrap();
        // A lot is found by the place.
        let player = players
            .iter_mut()
            .find(|p| {
                p.model().path() == path
                    && (p.model().is_whole() || p.model().bounds(0).contains(&op.range().start))
            })
            .expect("a file of the test");
        player.play(op).unwrap_or_else(|said| panic!("operation {i}: {op}: {said}"));
    }
    players.iter().for_each(|p| p.verify().unwrap());
    drop(players);
    volume.close().unwrap();
    e2fsck_clean(&image);
}
