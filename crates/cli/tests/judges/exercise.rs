//! fsx, and a program of ours for what fsx does not do: every mode of fallocate, O_DIRECT and maps
//! on the same bytes.

use crate::support::{Image, SIZE, bounded, compile, from_crates, judged, output, said};
use lanefs_tests::{Server, fsx_config};
use std::fs;
use std::process::Stdio;

/// Sizes of the file and of operations. (With `align`, or without `min`, fsx asks for allocations
/// of no bytes, which no file system grants.)
const SHAPES: [&str; 3] = [
    "flen = 262144\n[opsize]\nmin = 1\n",
    "flen = 2000000\n[opsize]\nmin = 1\nmax = 300000\n",
    "flen = 65536\n[opsize]\nmin = 1\nmax = 4096\n",
];

fn fsx(operations: u32, rounds: u64, option: &str) {
    let image = Image::new(SIZE, &[]).with(option);
    for seed in 1..=rounds {
        let mounted = image.mount(&judged());
        for (number, shape) in SHAPES.iter().enumerate() {
            let config = image.beside(&format!("fsx{number}.toml"));
            fs::write(&config, fsx_config(shape)).unwrap();
            let mut command = bounded(300, from_crates("fsx"));
            command
                .args(["-S", &seed.to_string(), "-N", &operations.to_string(), "-P"])
                .arg(image.beside(""))
                .arg("-f")
                .arg(config);
            let out = output(command.arg(mounted.path().join(format!("file{number}"))));
            let text = said(&out);
            let tail: Vec<&str> = text.lines().rev().take(60).collect();
            assert!(
                out.status.success(),
                "{command:?}: {}\n{}",
                out.status,
                tail.into_iter().rev().collect::<Vec<_>>().join("\n")
            );
        }
        mounted.unmount();
    }
}

/// Several files at once, each by a process of its own; then their content after a new mount.
fn exercise(operations: u32, rounds: u64, args: &[&str], option: &str) {
    let image = Image::new(SIZE, args).with(option);
    let program = compile(&image, "exercise.c");
    let server = judged();
    // Some calls the kernel's half of FUSE cannot do under any server: see the head of the program.
    let kernel = u8::from(matches!(server, Server::Kernel)).to_string();
    for round in 0..rounds {
        let mounted = image.mount(&server);
        let runs: Vec<_> = (1..=3)
            .map(|n| {
                let seed = (round * 3 + n).to_string();
                let mut command = bounded(300, &program);
                command.arg(mounted.path().join(format!("file{seed}"))).args([
                    &seed,
                    &operations.to_string(),
                    &kernel,
                ]);
                let kept = fs::File::create(image.beside(&seed)).unwrap();
                (seed, command.stdout(kept).stderr(Stdio::piped()).spawn().unwrap())
            })
            .collect();
        let seeds: Vec<String> = runs
            .into_iter()
            .map(|(seed, child)| {
                let out = child.wait_with_output().unwrap();
                assert!(out.status.success(), "seed {seed}: {}\n{}", out.status, said(&out));
                seed
            })
            .collect();
        mounted.unmount();
        let mounted = image.mount(&server);
        for seed in seeds {
            let kept = fs::read(image.beside(&seed)).unwrap();
            let file = mounted.path().join(format!("file{seed}"));
            assert!(fs::read(&file).unwrap() == kept, "seed {seed}: another content after a new mount");
            fs::remove_file(file).unwrap();
        }
        mounted.unmount();
    }
}

#[test]
fn fsx_for_a_moment() {
    fsx(4000, 1, "rw");
}

#[test]
#[ignore = "long: make judge-mount"]
fn fsx_for_long() {
    fsx(10_000, 8, "rw");
    fsx(10_000, 4, "noopen");
}

#[test]
fn a_kernel_that_opens_by_itself() {
    fsx(2000, 1, "noopen");
    exercise(1000, 1, &[], "noopen");
}

#[test]
fn every_way_to_a_file() {
    exercise(2000, 1, &[], "rw");
}

#[test]
#[ignore = "long: make judge-mount"]
fn every_way_to_a_file_for_long() {
    exercise(15_000, 3, &[], "rw");
    exercise(15_000, 2, &[], "noopen");
    exercise(10_000, 2, &["-b", "1024"], "rw");
}
