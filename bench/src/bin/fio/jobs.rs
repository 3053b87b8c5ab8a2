//! The five published jobs: their sizes, what they run on, and the ratios that they have to reach.
//!
//! `published` is what the authors ran, `short` a form of it that takes seconds. A job whose source
//! does not say a size has ours in both. docs/fio.md compares each job with its source.

use crate::job_file::{self, Change, set};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// I/O on a backing file through the page cache, or on one that is memory.
const PWRITE: &str = "raw, pwrite";

/// Direct overwrites by 16 writers ("Optimize ext4 file overwrites").
pub(crate) const OVERWRITE: Job = Job {
    name: "overwrite",
    case: "direct overwrites, N jobs",
    target: "direct overwrites",
    text: include_str!("../../../../examples/fio/overwrite-direct.fio"),
    published: Dimensions { ramp: 30, ..Dimensions::new(20 * GIB, 16 * GIB, 60) },
    short: Dimensions { ramp: 1, ..Dimensions::new(2 * GIB, GIB, 3) },
    ..Job::WRITING
};

/// The same on memory: the first version of that patch was for DAX. None of the peers has it: the
/// limit is pwrite to a file of tmpfs.
pub(crate) const DAX: Job = Job {
    name: "dax",
    case: "DAX overwrites, N jobs",
    target: "DAX overwrites",
    published: Dimensions { volume: 18 * GIB, ..OVERWRITE.published },
    raw_is: PWRITE,
    mapped: true,
    goals: [1.0, 1.0],
    ..OVERWRITE
};

/// Buffered writes of a byte ("fs: inode->i_version rework and optimization").
pub(crate) const ONE_BYTE: Job = Job {
    name: "one-byte",
    case: "buffered writes of a byte",
    target: "buffered writes of a byte",
    text: include_str!("../../../../examples/fio/one-byte.fio"),
    published: Dimensions {
        words: &[("norandommap", None)],
        // KiB of a pool of fio's memory: one has to hold a bit for each byte of the file.
        options: &["--alloc-size=131072"],
        ..Dimensions::new(4 * GIB, 512 * MIB, 60)
    },
    short: Dimensions { words: &[("time_based", Some("1"))], ..Dimensions::new(4 * GIB, 128 * MIB, 3) },
    sized_by: "filesize",
    // Through the page cache of the file system that the backing file is in.
    raw_is: PWRITE,
    goals: [3.0, 1.0],
    ..Job::WRITING
};

/// Direct readers and writers of one file ("xfs: reduce ilock contention").
pub(crate) const SHARED: Job = Job {
    name: "shared",
    case: "one file, N direct jobs",
    target: "one file, 16 direct jobs",
    text: include_str!("../../../../examples/fio/shared-file.fio"),
    published: Dimensions::new(4 * GIB, 2 * GIB, 30),
    short: Dimensions::new(4 * GIB, 512 * MIB, 3),
    contenders: &[
        Contender::Raw,
        Contender::Lanefs("defaults"),
        Contender::Lanefs("locking=inode"),
        Contender::Ext4("noatime"),
        Contender::Xfs,
    ],
    ..Job::WRITING
};

/// 2048 writers that sync each write ("Buffered random writes performance regression with
/// dioread_nolock enabled").
pub(crate) const STORM: Job = Job {
    name: "storm",
    case: "N jobs, 16 KiB and fsync",
    target: "2048 jobs, 16 KiB and fsync",
    text: include_str!("../../../../examples/fio/fsync-2048.fio"),
    published: Dimensions::new(58 * GIB, 28_800_000, 60),
    short: Dimensions::new(6 * GIB, 2 * MIB, 6),
    sized_by: "filesize",
    own_files: true,
    contenders: &[
        Contender::Raw,
        Contender::Lanefs("defaults"),
        Contender::Lanefs("io=direct"),
        Contender::Ext4("dioread_lock"),
        Contender::Ext4("dioread_nolock"),
        Contender::Xfs,
    ],
    latency: ["sync", "lat_ns"],
    goals: [2.0, 0.6],
    tail: Some(1.0),
    ..Job::WRITING
};

pub(crate) const ALL: [&Job; 5] = [&OVERWRITE, &ONE_BYTE, &SHARED, &DAX, &STORM];

/// How large a job is, and how long it runs.
#[derive(Clone, Copy)]
pub(crate) struct Dimensions {
    /// Bytes of the backing file.
    pub(crate) volume: u64,
    /// Bytes: the value of [`Job::sized_by`].
    pub(crate) content: u64,
    /// Seconds before the measurement.
    ramp: u32,
    /// Seconds of the measurement.
    runtime: u32,
    /// Further words of the job file.
    words: &'static [(&'static str, Option<&'static str>)],
    /// Options of fio's command line.
    pub(crate) options: &'static [&'static str],
}

impl Dimensions {
    const fn new(volume: u64, content: u64, runtime: u32) -> Self {
        Self { volume, content, ramp: 0, runtime, words: &[], options: &[] }
    }

    /// Returns the same with at most `seconds` of measurement, and half of them before it.
    pub(crate) fn within(self, seconds: u32) -> Self {
        Self { ramp: self.ramp.min(seconds / 2), runtime: self.runtime.min(seconds), ..self }
    }

    /// Returns the same in a smaller volume, of which the content has its share in whole MiB.
    pub(crate) fn in_volume(self, bytes: u64) -> Self {
        let volume = bytes / MIB * MIB;
        let content = self.content / 1024 * (volume / MIB) / (self.volume / MIB) * 1024;
        Self { volume, content: content / MIB * MIB, ..self }
    }

    /// Returns the changes of the job file of `job`.
    pub(crate) fn changes(self, job: &Job) -> Vec<Change> {
        let mut changes = vec![
            (job.sized_by, set(self.content)),
            ("timeout", None),
            ("runtime", set(self.runtime)),
            ("ramp_time", (self.ramp > 0).then(|| self.ramp.to_string())),
        ];
        changes.extend(self.words.iter().map(|(word, value)| (*word, value.map(str::to_owned))));
        changes
    }
}

/// A job, and what it runs on.
pub(crate) struct Job {
    /// The name that chooses it.
    pub(crate) name: &'static str,
    /// Its name in rows; N is the number of fio's jobs.
    pub(crate) case: &'static str,
    /// Its name in targets.
    pub(crate) target: &'static str,
    pub(crate) text: &'static str,
    pub(crate) published: Dimensions,
    pub(crate) short: Dimensions,
    /// The word of the job file that says how large the files are.
    sized_by: &'static str,
    /// Each of fio's jobs has a file of its own, and a region of the backing file.
    own_files: bool,
    pub(crate) contenders: &'static [Contender],
    /// The name of I/O on the backing file.
    pub(crate) raw_is: &'static str,
    /// MiB of the log.
    pub(crate) journal: u32,
    /// The latency's place in fio's JSON.
    pub(crate) latency: [&'static str; 2],
    /// The volume is memory, and lanefs maps it. The kernel's file systems are on a loop device,
    /// which has no DAX.
    pub(crate) mapped: bool,
    /// The least rate over the best of the kernel's, and over the backing file.
    pub(crate) goals: [f64; 2],
    /// The most of the best kernel's p99.
    pub(crate) tail: Option<f64>,
}

impl Job {
    /// A job that writes as it is, with a log of 128 MiB; each job adds its name, text and sizes.
    const WRITING: Self = Self {
        name: "",
        case: "",
        target: "",
        text: "",
        published: Dimensions::new(0, 0, 0),
        short: Dimensions::new(0, 0, 0),
        sized_by: "size",
        own_files: false,
        contenders: &[
            Contender::Raw,
            Contender::Lanefs("defaults"),
            Contender::Ext4("noatime"),
            Contender::Xfs,
        ],
        raw_is: "raw",
        journal: 128,
        latency: ["write", "clat_ns"],
        mapped: false,
        goals: [1.0, 0.95],
        tail: None,
    };

    /// Returns the number of fio's jobs that the job file says.
    pub(crate) fn numjobs(&self) -> usize {
        job_file::numjobs(self.text)
    }

    /// Returns the changes of the job file for the backing file, which has no files of its own.
    pub(crate) fn on_raw(&self, content: u64) -> Vec<Change> {
        let mut changes: Vec<Change> =
            vec![("nrfiles", None), ("file_service_type", None), ("overwrite", None)];
        if self.own_files {
            // A region begins at a whole write, which is whole blocks of the file system below.
            let region = content.next_multiple_of(16 << 10);
            changes.extend([
                (self.sized_by, None),
                ("size", set(content)),
                ("offset_increment", set(region)),
                ("buffered", None),
                ("direct", set(1)),
            ]);
        }
        changes
    }
}

/// A contender of a job.
#[derive(Clone, Copy)]
pub(crate) enum Contender {
    /// The backing file, without a file system of its own.
    Raw,
    /// The kernel's ext4, with these mount options.
    Ext4(&'static str),
    Xfs,
    /// lanefs through its engine, with these mount options.
    Lanefs(&'static str),
}

impl Contender {
    pub(crate) fn name(self, job: &Job) -> String {
        let no_dax = if job.mapped { ", no DAX" } else { "" };
        match self {
            Self::Raw => job.raw_is.into(),
            Self::Ext4("noatime") => format!("ext4{no_dax}"),
            Self::Ext4(options) => format!("ext4 {options}{no_dax}"),
            Self::Xfs => format!("XFS{no_dax}"),
            Self::Lanefs("defaults") => "lanefs".into(),
            Self::Lanefs(options) => format!("lanefs {options}"),
        }
    }

    pub(crate) fn is_raw(self) -> bool {
        matches!(self, Self::Raw)
    }

    /// Returns whether it is lanefs as it comes.
    pub(crate) fn is_default(self) -> bool {
        matches!(self, Self::Lanefs("defaults"))
    }

    pub(crate) fn is_kernel(self) -> bool {
        matches!(self, Self::Ext4(_) | Self::Xfs)
    }
}
