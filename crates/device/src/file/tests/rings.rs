//! Batches by io_uring: the same content as without, on kernels that have it and on others.

use super::*;

#[test]
fn by_io_uring_and_not() {
    for when in [IoUring::Auto, IoUring::On, IoUring::Off] {
        for direct in [false, true] {
            let (_dir, path) = scratch();
            let options = FileOptions::new().direct(direct).io_uring(when);
            let dev = options.create(&path, 3 << 20).unwrap();
            exercise(&dev, &path);

            // Gaps between the runs, more of them than a ring has room for. The blocks are new to
            // the file first, which no ring waits for.
            let data = AlignedBuf::zeroed(4096);
            let pieces: [&[u8]; 1] = [&data];
            let ops: Vec<_> = (0..300).map(|i| WriteOp { offset: i * 8192, data: &pieces }).collect();
            let calls = || {
                let (before, given_back) = (write_calls(), GIVEN_BACK.get());
                dev.write_batch(&ops).unwrap();
                (write_calls() - before, GIVEN_BACK.get() - given_back)
            };
            assert!(calls().0 <= 300);
            match (when, direct) {
                (IoUring::Off, _) | (IoUring::Auto, false) => {
                    assert_eq!(calls(), (300, 0), "{when:?} {direct}")
                }
                (_, true) => {
                    let (calls, given_back) = calls();
                    // One that was given back may have been finished the second time.
                    assert!(calls <= given_back, "{when:?}: {calls} calls, {given_back} given back");
                }
                // Not every file system does buffered writes without a wait.
                (IoUring::On, false) => assert!(calls().0 <= 300),
            }
        }
    }
}

#[test]
fn a_kernel_without_io_uring() {
    let (_dir, path) = scratch();
    let mut dev = FileOptions::new().direct(true).create(&path, 3 << 20).unwrap();
    dev.rings = ring::Rings::refused();
    exercise(&dev, &path);
    let page = AlignedBuf::zeroed(4096);
    let pieces: [&[u8]; 1] = [&page];
    let before = write_calls();
    dev.write_batch(&[WriteOp { offset: 0, data: &pieces }, WriteOp { offset: 8192, data: &pieces }])
        .unwrap();
    assert_eq!(write_calls() - before, 2);
}

/// Rings are few; threads that find none do without, and all is written and read right.
#[test]
fn more_threads_than_rings() {
    for direct in [false, true] {
        let (_dir, path) = scratch();
        let dev = FileOptions::new().direct(direct).io_uring(IoUring::On).create(&path, 64 << 20).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..16_u64 {
                let dev = &dev;
                scope.spawn(move || {
                    for round in 0..20_u8 {
                        let mut data = AlignedBuf::zeroed(32 * 4096);
                        data.copy_from_slice(&pattern(32 * 4096, round ^ thread as u8));
                        let pieces: Vec<[&[u8]; 1]> = data.chunks(4096).map(|c| [c]).collect();
                        let at = |i: usize| (thread + 16 * (31 - i as u64)) * 8192;
                        let ops: Vec<_> =
                            (0..).zip(&pieces).map(|(i, data)| WriteOp { offset: at(i), data }).collect();
                        dev.write_batch(&ops).unwrap();
                        let mut seen = AlignedBuf::zeroed(32 * 4096);
                        let mut ops: Vec<_> = seen
                            .chunks_mut(4096)
                            .enumerate()
                            .map(|(i, buf)| ReadOp { offset: at(i), buf })
                            .collect();
                        dev.read_batch(&mut ops).unwrap();
                        assert!(*seen == *data, "thread {thread} in round {round}");
                    }
                });
            }
        });
    }
}

/// Kernel threads that work for rings of this process.
fn ring_workers() -> usize {
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm"));
    let names = std::fs::read_dir("/proc/self/task").unwrap().flatten().filter_map(|task| name(task).ok());
    names.filter(|name| name.starts_with("iou-wrk")).count()
}

/// Threads that write what must wait for blocks cause no kernel threads, which would stay as long
/// as those live.
#[test]
fn rings_have_no_workers() {
    const THREADS: u64 = 32;
    const RUNS: u64 = 16;
    let (_dir, path) = scratch();
    let dev = FileOptions::new().direct(true).create(&path, THREADS * RUNS * 8192).unwrap();
    let done = std::sync::Barrier::new(THREADS as usize + 1);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (dev, done) = (&dev, &done);
            scope.spawn(move || {
                let data = AlignedBuf::zeroed(4096);
                let pieces: [&[u8]; 1] = [&data];
                // Holes, which cannot be written without a wait.
                let offset = |run| (run * THREADS + thread) * 8192;
                let ops: Vec<_> =
                    (0..RUNS).map(|run| WriteOp { offset: offset(run), data: &pieces }).collect();
                dev.write_batch(&ops).unwrap();
                done.wait();
                done.wait();
            });
        }
        done.wait();
        let workers = ring_workers();
        done.wait();
        assert_eq!(workers, 0);
    });
}

/// An error of one run is the batch's, and names it; a file that ends early is no success.
#[test]
fn a_ring_tells_errors() {
    for direct in [false, true] {
        let (_dir, path) = scratch();
        let mut dev = FileOptions::new().direct(direct).io_uring(IoUring::On).create(&path, 1 << 20).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(64 << 10).unwrap();
        let mut data = AlignedBuf::zeroed(8192);
        let (one, two) = data.split_at_mut(4096);
        let mut ops = [ReadOp { offset: 0, buf: one }, ReadOp { offset: 62 << 10, buf: two }];
        let e = dev.read_batch(&mut ops).unwrap_err();
        assert_eq!((e.op, e.offset, e.source.kind()), (Op::Read, 62 << 10, io::ErrorKind::UnexpectedEof));

        // Written through a descriptor that is open for reading only: EBADF of the ring's own.
        (dev.file, dev.rings) = (File::open(&path).unwrap(), ring::Rings::default());
        let page = AlignedBuf::zeroed(4096);
        let pieces: [&[u8]; 1] = [&page];
        let ops = [WriteOp { offset: 0, data: &pieces }, WriteOp { offset: 8192, data: &pieces }];
        let e = dev.write_batch(&ops).unwrap_err();
        assert_eq!((e.op, e.errno(), e.len), (Op::Write, libc::EBADF, 4096));
    }
}
