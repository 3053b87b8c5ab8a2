//! Files that the kernel wrote are read here, and the other way round. Needs root and loop devices.

use super::*;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::fs::MetadataExt;
use std::thread;

/// Gives this thread a mount namespace of its own: a process that is started meanwhile, and makes
/// itself one, would have a copy of a mount, and keep the device in use behind the unmount.
fn private_mounts() {
    #[allow(deprecated, reason = "unshare is unsafe with FILES only, which is not asked for")]
    rustix::thread::unshare(rustix::thread::UnshareFlags::NEWNS).unwrap();
    assert_eq!(run("mount", &["--make-rprivate", "/"]).0, 0);
}

/// A loop mount, unmounted when it goes.
struct Mounted(PathBuf);

impl Mounted {
    fn new(image: &Image) -> Self {
        let at = image.dir.path().join("mnt");
        std::fs::create_dir_all(&at).unwrap();
        private_mounts();
        let (code, text) = run("mount", &["-o", "loop", &image.path(), at.to_str().unwrap()]);
        assert_eq!(code, 0, "{text}");
        Self(at)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A child of another thread that has not come to its exec still has what files this one had
        // open.
        let unmounts = || run("umount", &[self.0.to_str().unwrap()]).0 == 0;
        let done = (0..1200).any(|_| {
            unmounts() || {
                thread::sleep(Duration::from_millis(50));
                false
            }
        });
        assert!(done || thread::panicking(), "{} stays mounted", self.0.display());
    }
}

#[test]
fn the_kernel_reads_and_writes_the_same_files() {
    for (seed, kind) in KINDS.into_iter().enumerate() {
        let extents = kind[1] == "ext4" && !kind.contains(&"^extents,^64bit");
        let image = Image::new("48M", kind);
        let mut rng = StdRng::seed_from_u64(seed as u64);
        let (mut model, ino) = {
            let mount = Mounted::new(&image);
            let path = mount.0.join("a");
            let file =
                File::options().create(true).read(true).write(true).truncate(false).open(&path).unwrap();
            let mut model = vec![0; 6_000_000];
            file.set_len(model.len() as u64).unwrap();
            if extents {
                let (code, text) =
                    run("fallocate", &["-o", "3000000", "-l", "1500000", path.to_str().unwrap()]);
                assert_eq!(code, 0, "{text}");
            }
            // In an order that leaves the file in pieces.
            for i in 0..600 {
                let at = i * 397 % 600 * 10_000;
                let data = bytes(&mut rng, 3000);
                file.write_all_at(&data, at).unwrap();
                model[at as usize..][..3000].copy_from_slice(&data);
                if i % 10 == 0 {
                    file.sync_data().unwrap();
                }
            }
            if extents {
                let (code, text) =
                    run("fallocate", &["-p", "-o", "1000500", "-l", "700000", path.to_str().unwrap()]);
                assert_eq!(code, 0, "{text}");
                model[1_000_500..1_700_500].fill(0);
            }
            (model, file.metadata().unwrap().ino() as u32)
        };
        let fs = image.open();
        let node = fs.inode(ino).unwrap();
        assert!(all(&node) == model, "{kind:?}: read here");
        churn(&node, &mut model, &mut rng, 60, 6_500_000);
        drop(node);
        image.close(fs);
        {
            let mount = Mounted::new(&image);
            let path = mount.0.join("a");
            assert!(std::fs::read(&path).unwrap() == model, "{kind:?}: read by the kernel");
            // The kernel goes on with the same map, and grows the file over the tail.
            let file = File::options().write(true).open(&path).unwrap();
            let end = model.len() as u64 + 10_001;
            file.write_all_at(b"end", end).unwrap();
            model.resize(end as usize, 0);
            model.extend(b"end");
            file.set_len(model.len() as u64 + 50_000).unwrap();
            model.resize(model.len() + 50_000, 0);
        }
        let fs = image.open();
        let node = fs.inode(ino).unwrap();
        assert!(all(&node) == model, "{kind:?}: read here again");
        node.content().truncate(0).unwrap();
        drop(node);
        image.close(fs);
    }
}

#[test]
fn the_largest_size_is_the_kernels() {
    const KINDS: [&[&str]; 4] = [
        &["-t", "ext4", "-b", "4096", "-O", "^huge_file"],
        &["-t", "ext4", "-b", "4096", "-O", "^huge_file,^extents,^64bit"],
        &["-t", "ext4", "-b", "1024"],
        &["-t", "ext3", "-b", "1024"],
    ];
    for kind in KINDS {
        let image = Image::new("48M", kind);
        let largest = {
            let mount = Mounted::new(&image);
            let file = File::create(mount.0.join("f")).unwrap();
            let (mut fits, mut too_big) = (0_u64, 1 << 46);
            while too_big - fits > 1 {
                let size = fits.midpoint(too_big);
                match file.set_len(size) {
                    Ok(()) => fits = size,
                    Err(_) => too_big = size,
                }
            }
            file.set_len(0).unwrap();
            fits
        };
        let fs = image.open();
        let node = fs.root().unwrap().lookup(b"f").unwrap();
        for caching in [Caching::Cached, Caching::Direct] {
            let refused = node.content().write(&[1], largest, caching, &mut 0);
            assert!(matches!(refused, Err(Error::FileTooBig)), "{kind:?}: {refused:?}");
        }
        let allocated = node.content().fallocate(FallocMode::Allocate, largest, 1);
        assert!(matches!(allocated, Err(Error::FileTooBig)), "{kind:?}: {allocated:?}");
        assert!(matches!(node.content().truncate(largest + 1), Err(Error::FileTooBig)), "{kind:?}");
        node.content().truncate(largest).unwrap();
        node.content().truncate(0).unwrap();
        drop(node);
        image.close(fs);
    }
}
