//! Interchange: e2fsprogs and the kernel replay logs that lanefs wrote, and lanefs reads the corpus
//! of damaged logs.
#![allow(clippy::unwrap_used, clippy::panic, reason = "this is test code")]

mod common;

use common::{Image, block_size, different_blocks, log_config, open, run, run_codes, runs_of};
use lanefs_journal::{Journal, JournalError, LogConfig, Options, recovery};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// A volume with a file of 64 blocks, which stands for metadata, and its blocks.
fn volume(mkfs: &[&str]) -> (Image, u32, Vec<u64>) {
    let image = Image::mke2fs("64M", mkfs);
    let zeros = image.dir.path().join("zeros");
    std::fs::write(&zeros, vec![1; 64 * 4096]).unwrap();
    run("debugfs", &["-w", "-R", &format!("write {} /file", zeros.to_str().unwrap()), image.str()]);
    let blocks: Vec<u64> = runs_of(&image.path, "/file")
        .iter()
        .flat_map(|r| r.physical..r.physical + u64::from(r.len))
        .collect();
    let size = block_size(&image.path);
    assert_eq!(blocks.len() as u32, 64 * 4096 / size);
    (image, size, blocks)
}

fn options(size: u32, log: LogConfig) -> Options {
    Options { log: Some(log), commit_interval: Duration::ZERO, ..Options::new(size) }
}

/// Leaves a log with copies of the file's blocks and revokes, not checkpointed. Returns the file's
/// content after recovery.
fn leave_dirty(path: &Path, size: u32, blocks: &[u64], log: LogConfig) -> Vec<u8> {
    let journal = Journal::open(Arc::new(open(path)), options(size, log)).unwrap();
    let mut content = vec![1u8; blocks.len() * size as usize];
    let mut home = content.clone();
    for round in 0..20usize {
        let mut handle = journal.start(30).unwrap();
        for i in (round..blocks.len()).step_by(5) {
            let buffer = journal.read(blocks[i]).unwrap();
            let mut bytes = handle.write(&buffer).unwrap();
            bytes.fill(round as u8 + 100);
            if i % 3 == 0 {
                // Must be escaped.
                bytes[..4].copy_from_slice(&0xC03B_3998u32.to_be_bytes());
            }
            content[i * size as usize..(i + 1) * size as usize].copy_from_slice(&bytes);
            drop(bytes);
            if handle.credits() == 0 {
                handle.restart(30).unwrap();
            }
        }
        handle.stop();
        journal.sync().unwrap();
        if round == 7 || round == 15 {
            // In the smallest log, what follows goes around its end.
            journal.checkpoint().unwrap();
            home.clone_from(&content);
        }
    }
    assert_eq!(journal.stats().checkpoints, 2);
    // The last two are revoked: their home content stays.
    let handle = journal.start(2).unwrap();
    for i in [blocks.len() - 2, blocks.len() - 1] {
        handle.free(blocks[i], 1, true).unwrap();
        let range = i * size as usize..(i + 1) * size as usize;
        content[range.clone()].copy_from_slice(&home[range]);
    }
    handle.stop();
    journal.sync().unwrap();
    // A last transaction that is never committed.
    let buffer = journal.read(blocks[0]).unwrap();
    journal.start(1).unwrap().write(&buffer).unwrap().fill(0xEE);
    content
}

fn needs_recovery(path: &Path) {
    run("debugfs", &["-w", "-R", "feature needs_recovery", path.to_str().unwrap()]);
}

fn read_file(path: &Path, to: &Path) -> Vec<u8> {
    run("debugfs", &["-R", &format!("dump /file {}", to.to_str().unwrap()), path.to_str().unwrap()]);
    std::fs::read(to).unwrap()
}

/// e2fsck, the kernel and lanefs replay the same log of lanefs to the same volume.
fn judged(mkfs: &[&str], log: impl Fn(LogConfig) -> LogConfig) {
    let (image, size, blocks) = volume(mkfs);
    let config = log(log_config(&image.path));
    let content = leave_dirty(&image.path, size, &blocks, config.clone());
    needs_recovery(&image.path);
    assert!(read_file(&image.path, &image.dir.path().join("before")) != content);

    let dump = run("debugfs", &["-R", "logdump -a", image.str()]);
    for expected in ["commit block", "descriptor block", "revoke"] {
        assert!(dump.to_lowercase().contains(expected), "no {expected}:\n{dump}");
    }
    assert!(!dump.to_lowercase().contains("corrupt"), "{dump}");

    let (by_e2fsck, by_kernel) = (image.copy("e2fsck.img"), image.copy("kernel.img"));
    run_codes(&[0, 1], "e2fsck", &["-y", "-E", "journal_only", by_e2fsck.to_str().unwrap()]);
    assert!(read_file(&by_e2fsck, &image.dir.path().join("e2fsck")) == content);

    Image { dir: tempfile::tempdir().unwrap(), path: by_kernel.clone() }.with_mount("defaults", "true");
    assert!(read_file(&by_kernel, &image.dir.path().join("kernel")) == content);
    run("e2fsck", &["-fn", by_kernel.to_str().unwrap()]);

    recovery::recover(&open(&image.path), size, &config).unwrap();
    assert!(read_file(&image.path, &image.dir.path().join("lanefs")) == content);
    assert_eq!(different_blocks(&image.path, &by_e2fsck, size as usize, &config), []);
    run_codes(&[0, 1], "e2fsck", &["-p", image.str()]);
    run("e2fsck", &["-fn", image.str()]);
}

fn v3(log: LogConfig) -> LogConfig {
    LogConfig { metadata_csum: true, is_64bit: true, ..log }
}

#[test]
fn version_3_checksums() {
    judged(&["-t", "ext4"], v3);
}

#[test]
fn small_blocks_in_the_smallest_journal() {
    judged(&["-t", "ext4", "-b", "1024", "-J", "size=1"], v3);
}

#[test]
fn no_checksums_and_narrow_numbers() {
    judged(&["-t", "ext3"], |log| log);
}

#[test]
fn one_checksum_for_a_transaction() {
    // The kernel has set the feature; it stays.
    let (image, size, blocks) = volume(&["-t", "ext4", "-O", "^metadata_csum"]);
    image.with_mount("journal_checksum", "touch $1/x");
    let features = run("dumpe2fs", &["-h", image.str()]);
    assert!(features.contains("journal_checksum_v1") || features.contains("journal_checksum"), "{features}");
    let config = LogConfig { is_64bit: true, ..log_config(&image.path) };
    let content = leave_dirty(&image.path, size, &blocks, config);
    needs_recovery(&image.path);
    let by_kernel = image.copy("kernel.img");
    Image { dir: tempfile::tempdir().unwrap(), path: by_kernel.clone() }
        .with_mount("journal_checksum", "true");
    assert!(read_file(&by_kernel, &image.dir.path().join("kernel")) == content);
    run_codes(&[0, 1], "e2fsck", &["-fy", image.str()]);
    assert!(read_file(&image.path, &image.dir.path().join("e2fsck")) == content);
}

#[test]
fn the_kernel_goes_on_with_a_closed_log() {
    let (image, size, blocks) = volume(&["-t", "ext4"]);
    let journal =
        Journal::open(Arc::new(open(&image.path)), options(size, v3(log_config(&image.path)))).unwrap();
    for round in 0..5u8 {
        let buffer = journal.read(blocks[0]).unwrap();
        journal.start(1).unwrap().write(&buffer).unwrap()[0] = round;
        journal.sync().unwrap();
    }
    journal.close().unwrap();
    drop(journal);
    image.with_mount(
        "defaults",
        r#"for i in $(seq 50); do echo $i > "$1/f$i"; done; sync -f "$1"; cp "$2" "$3/dirty.img""#,
    );
    run("e2fsck", &["-fn", image.str()]);
    let dirty = image.dir.path().join("dirty.img");
    let report = recovery::recover(&open(&dirty), size, &log_config(&dirty)).unwrap();
    assert!(report.transactions > 0);
    run_codes(&[0, 1], "e2fsck", &["-p", "-E", "journal_only", dirty.to_str().unwrap()]);
    run("e2fsck", &["-fn", dirty.to_str().unwrap()]);
}

#[test]
fn fast_commits_are_refused_and_their_absence_is_not() {
    let image = Image::mke2fs("64M", &["-t", "ext4", "-O", "fast_commit"]);
    image.with_mount(
        "defaults",
        r#"cd "$1"; echo a > a; sync -f a; cp "$2" "$3/full.img"
        for i in $(seq 5); do echo $i >> a; sync a; done; cp "$2" "$3/fast.img""#,
    );
    let (full, fast) = (image.dir.path().join("full.img"), image.dir.path().join("fast.img"));
    let size = block_size(&full);
    recovery::recover(&open(&full), size, &log_config(&full)).unwrap();
    let before = std::fs::read(&fast).unwrap();
    let error = recovery::recover(&open(&fast), size, &log_config(&fast)).unwrap_err();
    assert!(matches!(error, JournalError::FastCommit { .. }), "{error}");
    assert!(error.to_string().contains("fast_commit"));
    assert!(std::fs::read(&fast).unwrap() == before);
}

/// The folder with the corpus of damaged volumes, if this machine has it.
fn corpus() -> Option<PathBuf> {
    let from_env = std::env::var_os("LANEFS_CORPUS").map(PathBuf::from);
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/corpus");
    from_env.or_else(|| beside.is_dir().then_some(beside))
}

#[test]
fn the_corpus_recovers_as_e2fsck_does_or_says_why_not() {
    let Some(corpus) = corpus() else {
        assert!(std::env::var_os("LANEFS_CORPUS").is_none());
        println!("there is no corpus here: nothing of it was judged");
        return;
    };
    let mut seen = 0;
    for entry in std::fs::read_dir(corpus).unwrap() {
        let packed = entry.unwrap().path();
        let name = packed.file_name().unwrap().to_str().unwrap().to_owned();
        let journal = ["j_", "f_jnl", "f_journal", "f_badjour", "f_bad_local_jnl"];
        if !journal.iter().any(|prefix| name.starts_with(prefix)) {
            continue;
        }
        let dir = tempfile::tempdir().unwrap();
        let (ours, theirs) = (dir.path().join("ours.img"), dir.path().join("theirs.img"));
        let tool = if name.ends_with("bz2") { "bzip2" } else { "gzip" };
        let script = format!("{tool} -dc \"$0\" > \"$1\"; cp \"$1\" \"$2\"");
        run(
            "bash",
            &["-c", &script, packed.to_str().unwrap(), ours.to_str().unwrap(), theirs.to_str().unwrap()],
        );
        let size = block_size(&ours);
        let log = log_config(&ours);
        let before = std::fs::read(&ours).unwrap();
        match recovery::recover(&open(&ours), size, &log) {
            Ok(report) => {
                println!("{name}: {report:?}");
                if report.needed {
                    run_codes(
                        &[0, 1, 2, 4, 8, 12],
                        "e2fsck",
                        &["-y", "-E", "journal_only", theirs.to_str().unwrap()],
                    );
                    assert_eq!(different_blocks(&ours, &theirs, size as usize, &log), [], "{name}");
                }
            }
            Err(error) => {
                println!("{name}: {error}");
                assert!(std::fs::read(&ours).unwrap() == before, "{name} was refused but written");
            }
        }
        seen += 1;
    }
    assert!(seen > 5, "only {seen} volumes with journals");
}
