//! lab: the command around the experiments: what it keeps, where it runs, and how it ends.

use crate::support::{succeed, tool};
use lanefs_tests::{LoopDevice, Watchdog};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

/// `lanefs lab ARGS`, as short as it goes.
fn lab(args: &[&str], dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lanefs"));
    command.args(["lab", "--quick"]).args(args).current_dir(dir).env("RUST_BACKTRACE", "0");
    command
}

fn text(of: &[u8]) -> String {
    String::from_utf8_lossy(of).into_owned()
}

fn fails(out: &Output, code: i32, part: &str) {
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(code), "{said}");
    assert!(said.contains(part) && said.trim_end().lines().count() == 1, "{said}");
}

/// Loop devices over files in `dir`.
fn attached(dir: &Path) -> Vec<PathBuf> {
    let dir = dir.canonicalize().unwrap();
    let devices = fs::read_dir("/sys/block").unwrap().flatten().map(|e| e.path());
    let over = |device: &PathBuf| {
        let file = fs::read_to_string(device.join("loop/backing_file")).unwrap_or_default();
        Path::new(file.trim_end()).starts_with(&dir)
    };
    devices.filter(over).collect()
}

#[test]
fn charts_are_kept_and_two_runs_held_together() {
    let _watchdog = Watchdog::new("the lab");
    let dir = tempfile::tempdir().unwrap();
    let args =
        ["rangelock", "--rounds", "3", "--threads", "1,2", "--peers", "none", "--volume", ".", "--report"];
    let out = succeed(&mut lab(&[&args[..], &["a", "--json"]].concat(), dir.path()));
    let kept = fs::read_to_string(dir.path().join("a/results.json")).unwrap();
    let (said, kept): (serde_json::Value, serde_json::Value) =
        (serde_json::from_slice(&out.stdout).unwrap(), serde_json::from_str(&kept).unwrap());
    assert_eq!(said, kept);
    assert!(text(&out.stderr).is_empty(), "{}", text(&out.stderr));
    let charts: Vec<&str> = (kept["experiments"].as_array().unwrap().iter())
        .flat_map(|e| e["cases"].as_array().unwrap())
        .flat_map(|c| c["charts"].as_array().unwrap())
        .map(|c| c["name"].as_str().unwrap())
        .collect();
    assert!(
        charts.contains(&"rangelock/best/rate") && charts.contains(&"rangelock/direct/rate"),
        "{charts:?}"
    );
    for chart in charts {
        let name = chart.replace('/', "-");
        assert!(dir.path().join(format!("a/{name}.svg")).is_file(), "{name}");
        let png = fs::read(dir.path().join(format!("a/{name}.png"))).unwrap();
        assert!(png.starts_with(b"\x89PNG\r\n\x1a\n") && png.len() > 5000, "{name}: {} bytes", png.len());
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside the report");
    // The same run twice, and one of half the rates.
    let same = succeed(&mut lab_compare("a/results.json", "a/results.json", dir.path()));
    assert!(text(&same.stdout).contains("0 better, 0 worse"), "{}", text(&same.stdout));
    let mut slow = kept;
    for point in
        slow.pointer_mut("/experiments/0/cases/0/charts/0/series/0/points").unwrap().as_array_mut().unwrap()
    {
        for field in ["median", "min", "max"] {
            point[field] = (point[field].as_f64().unwrap() / 2.0).into();
        }
        for sample in point["samples"].as_array_mut().unwrap() {
            *sample = (sample.as_f64().unwrap() / 2.0).into();
        }
    }
    fs::write(dir.path().join("slow.json"), slow.to_string()).unwrap();
    let worse = lab_compare("a/results.json", "slow.json", dir.path()).output().unwrap();
    let told = text(&worse.stdout);
    assert!(told.contains(" figures: 0 better, "), "{told}");
    // What a noisy machine leaves to be seen of it is seen, and nothing else.
    let lines: Vec<&str> = told.lines().filter(|line| line.starts_with("WORSE")).collect();
    assert!(lines.iter().all(|line| line.contains("rangelock/best/rate optimistic B-tree")), "{told}");
    assert_eq!(worse.status.code(), Some(if lines.is_empty() { 0 } else { 2 }), "{told}");
}

fn lab_compare(before: &str, after: &str, dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lanefs"));
    command.args(["lab", "compare", before, after]).current_dir(dir);
    command
}

/// A loop device over a file of so many MiB, for as long as the value lives.
fn loop_device(dir: &Path, mib: u64) -> LoopDevice {
    let file = dir.join("device");
    File::create(&file).unwrap().set_len(mib << 20).unwrap();
    LoopDevice::new(file)
}

#[test]
fn a_device_is_erased_only_if_that_is_said() {
    lanefs_tests::private_mounts();
    let _watchdog = Watchdog::new("the lab");
    let dir = tempfile::tempdir().unwrap();
    let device = loop_device(dir.path(), 700);
    let name = device.path().to_str().unwrap();
    let args = ["iversion", "--rounds", "1", "--peers", "kernel-ext4", "--volume", name];
    let run = |more: &[&str]| lab(&[&args[..], more].concat(), dir.path()).output().unwrap();
    fails(&run(&[]), 1, "say --erase");
    let content = |at: usize| {
        let all = File::open(name).unwrap();
        let mut bytes = [0; 2];
        std::os::unix::fs::FileExt::read_exact_at(&all, &mut bytes, at as u64).unwrap();
        bytes
    };
    assert_eq!(content(1024 + 56), [0, 0], "nothing was written");
    let out = run(&["--erase", "--json"]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let told: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let series = &told["experiments"][0]["cases"][0]["charts"][0]["series"];
    let names: Vec<&str> = series.as_array().unwrap().iter().map(|s| s["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"i_version=queried") && names.contains(&"kernel ext4"), "{names:?}");
    assert_eq!(content(1024 + 56), [0x53, 0xEF], "it is an ext4 volume now");
    // A mounted device is not erased, whatever the options say.
    let at = dir.path().join("m");
    fs::create_dir(&at).unwrap();
    succeed(tool("mount").args(["-t", "ext4", name]).arg(&at));
    let out = run(&["--erase"]);
    succeed(tool("umount").arg(&at));
    fails(&out, 1, "in use");
    // The error for a device that is too small says by how much.
    drop(device);
    let small = loop_device(dir.path(), 100);
    let out = lab(
        &["iversion", "--volume", small.path().to_str().unwrap(), "--erase", "--peers", "none"],
        dir.path(),
    )
    .output()
    .unwrap();
    fails(&out, 1, "are needed");
}

#[test]
fn a_signal_leaves_nothing_behind() {
    lanefs_tests::private_mounts();
    let _watchdog = Watchdog::new("the lab");
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let dir = tempfile::tempdir().unwrap();
        // Where it mounts what it looks at.
        let temp = dir.path().join("tmp");
        fs::create_dir(&temp).unwrap();
        let args =
            ["overwrite", "--rounds", "1000", "--threads", "2", "--peers", "kernel-ext4", "--volume", "."];
        let mut command = lab(&args, dir.path());
        command.env("TMPDIR", &temp).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mounted = || {
            let table = fs::read_to_string("/proc/thread-self/mounts").unwrap();
            table.contains(temp.canonicalize().unwrap().to_str().unwrap())
        };
        while !mounted() {
            assert!(child.try_wait().unwrap().is_none(), "it ended");
            thread::sleep(Duration::from_millis(5));
        }
        kill_process(Pid::from_child(&child), signal).unwrap();
        let out = child.wait_with_output().unwrap();
        fails(&out, code, "nothing is left behind");
        assert!(!mounted(), "{signal:?}");
        assert_eq!(attached(dir.path()), [] as [PathBuf; 0], "{signal:?}");
        assert_eq!(fs::read_dir(&temp).unwrap().count(), 0, "{signal:?}");
        assert_eq!(
            fs::read_dir(dir.path()).unwrap().count(),
            1,
            "{signal:?}: all but the folder of the test"
        );
    }
}

/// The model, which follows the experiments, is no part of a report yet when the signal comes.
#[test]
fn a_signal_while_the_model_is_made_is_told() {
    let _watchdog = Watchdog::new("the lab");
    let dir = tempfile::tempdir().unwrap();
    let args = ["overwrite", "--rounds", "1", "--threads", "2", "--peers", "none", "--volume", "."];
    let mut command = lab(&[&args[..], &["--report", "report"]].concat(), dir.path());
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    while !dir.path().join("report/results.json").exists() {
        assert!(child.try_wait().unwrap().is_none(), "it ended");
        thread::sleep(Duration::from_millis(1));
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    fails(&child.wait_with_output().unwrap(), 130, "nothing is left behind");
    assert!(dir.path().join("report/results.json").exists());
}

#[test]
fn wrong_words_are_told_in_a_line() {
    let dir = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| lab(args, dir.path()).output().unwrap();
    fails(&run(&["speed"]), 1, "there is no experiment 'speed'; there are overwrite,");
    fails(
        &run(&["--peers", "zfs"]),
        1,
        "there is no peer 'zfs'; there are kernel-ext4, kernel-xfs, raw, none",
    );
    fails(
        &run(&["--simulate", "tape"]),
        1,
        "there is no simulated device 'tape'; there are nvme, cloud, rbd, disk, none",
    );
    fails(&run(&["--volume", "nowhere"]), 1, "no folder and no block device");
}
