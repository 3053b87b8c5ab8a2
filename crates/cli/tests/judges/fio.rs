//! fio: written and verified through each of its engines, and the jobs from which the project
//! comes, scaled down.

use crate::support::{Image, bounded, judged, must};
use lanefs_tests::Server;
use std::fs;

const SIZE: u64 = 1 << 30;

/// Sizes that are verified after each phase by fio, with checksums in every block.
const VERIFY: &str = "
[global]
directory=${DIR}
verify=crc32c
verify_fatal=1
verify_state_save=0
thread
group_reporting
randseed=7

[buffered]
rw=write
bs=4k
size=24m
numjobs=2

[uneven]
rw=randwrite
bsrange=512-70k
bs_unaligned
size=16m

[mapped]
ioengine=mmap
rw=randwrite
bs=4k
size=8m

[direct]
ioengine=libaio
iodepth=8
direct=1
rw=randwrite
bs=4k
size=16m
numjobs=2

[synced]
rw=randwrite
bs=16k
size=4m
fsync=8
fallocate=keep

[trimmed]
rw=randwrite
bs=8k
size=8m
fallocate=posix
fdatasync=32
";

/// Afterwards: only verified, on a new mount. The generators give the same blocks.
fn verify(rounds: u64) {
    let image = Image::new(SIZE, &[]);
    let server = judged();
    for round in 0..rounds {
        let job = image.beside("verify.fio");
        fs::write(&job, VERIFY.replace("randseed=7", &format!("randseed={}", round + 7))).unwrap();
        let mounted = image.mount(&server);
        must(bounded(200, "fio").env("DIR", mounted.path()).arg(&job).current_dir(image.beside("")));
        mounted.unmount();
        let mounted = image.mount(&server);
        let mut command = bounded(200, "fio");
        command.args(["--verify_only", "--section=buffered", "--section=direct"]);
        must(command.env("DIR", mounted.path()).arg(&job).current_dir(image.beside("")));
        mounted.unmount();
    }
}

#[test]
fn what_is_written_verifies() {
    verify(1);
}

#[test]
#[ignore = "long: make judge-mount"]
fn what_is_written_verifies_for_long() {
    verify(6);
}

/// The jobs of the five sources: sizes and times scaled down, the rest as it is there.
#[test]
#[ignore = "long: make judge-mount"]
fn jobs_of_the_sources() {
    let overwrite: String = (0..32).map(|n| format!("file1.0.{n}:")).collect();
    let overwrite = format!(
        "[global]\nrw=randwrite\nnorandommap=1\ninvalidate=0\nbs=4k\nnumjobs=16\ntime_based=1\nramp_time=1\nruntime=5\n\
         group_reporting=1\nioengine=psync\ndirect=1\nsize=256M\nfilename={}\nfile_service_type=random\nnrfiles=32\n\
         directory=${{DIR}}\n[overwrite]\n",
        overwrite.trim_end_matches(':')
    );
    let tiny = "[global]\ndirect=0\nsize=2m\nfilesize=64m\nbsrange=1-1\ntimeout=6\nnumjobs=1\ndirectory=${DIR}\n\
                [f1]\nfilename=randwrite\nrw=randwrite\n";
    let mixed = "[global]\ndirectory=${DIR}\nfilename=mixed\nsize=64m\nbs=4k\nioengine=psync\nnumjobs=4\nthread\ntime_based\n\
                 runtime=5\ngroup_reporting\n[buffered]\nrw=randrw\n[direct]\ndirect=1\nrw=randrw\n";
    // 2048 threads there. 256 are what a small machine starts in a moment.
    let storm = "[storm]\ndirectory=${DIR}\nrw=randwrite\nioengine=sync\nfdatasync=1\nbuffered=1\nbs=16k\nnumjobs=256\n\
                 thread\nfilesize=1m\nfsync=1\ngroup_reporting\ntime_based\nruntime=8\n";
    let image = Image::new(SIZE, &[]);
    for (name, job) in [("overwrite", &*overwrite), ("tiny", tiny), ("mixed", mixed), ("storm", storm)] {
        let path = image.beside(&format!("{name}.fio"));
        fs::write(&path, job).unwrap();
        let mounted = image.mount(&judged());
        println!(
            "{name}\n{}",
            must(bounded(150, "fio").env("DIR", mounted.path()).arg(&path).current_dir(image.beside("")))
        );
        mounted.unmount();
    }
    image.mount(&Server::Kernel).unmount();
}
