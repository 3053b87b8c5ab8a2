//! The figures of the five sources, as they published them.
//!
//! The figures of 000 and 003 are read off a chart of characters, and so are within some percent of
//! the drawn values.

use crate::hist::Hist;
use crate::results::{Origin, Point, Series};

/// A publication with figures.
#[derive(Debug, Clone, Copy)]
pub struct Source {
    /// The name that the lab uses.
    pub name: &'static str,
    /// Author, place and year of the publication.
    pub by: &'static str,
    /// The machine that it was measured on.
    pub machine: &'static str,
}

/// "Optimize ext4 file overwrites", and its first version for DAX only.
pub const OVERWRITE: Source = Source {
    name: "000, 003",
    by: "R. Harjani, linux-ext4, 2020: [PATCHv3 0/1] Optimize ext4 file overwrites",
    machine: "ppc64 in QEMU, DAX ext4 on simulated pmem; read off a chart",
};

/// "fs: inode->i_version rework and optimization".
pub const I_VERSION: Source = Source {
    name: "001",
    by: "J. Layton, linux-fsdevel, 2016: [RFC PATCH v1 00/30] fs: inode->i_version rework",
    machine: "XFS in a virtual machine on an SSD",
};

/// "xfs: reduce ilock contention on buffered randrw workload".
pub const RANGE_LOCK: Source = Source {
    name: "002",
    by: "D. Chinner, linux-xfs, 2019: reduce ilock contention on buffered randrw workload",
    machine: "16 processors",
};

/// "Ext4: Buffered random writes performance regression with dioread_nolock enabled".
pub const FSYNC_STORM: Source = Source {
    name: "004",
    by: "H. Mohamed Abuelfotoh, linux-ext4, 2022: performance regression with dioread_nolock",
    machine: "96 vCPUs, 384 GiB, cloud volume of 64k IOPS, journal of 128 MiB; 2048 threads",
};

impl Source {
    /// Returns the source in one line.
    pub fn line(&self) -> String {
        format!("source {}: {}; {}", self.name, self.by, self.machine)
    }

    fn series(&self, name: &str, at: &[u64], values: &[f64]) -> Series {
        Series {
            name: format!("{name} ({})", self.name),
            origin: Origin::Published,
            source: Some(self.line()),
            points: at.iter().zip(values).map(|(at, value)| Point::new(*at, vec![*value])).collect(),
        }
    }
}

/// Writes a second by threads.
pub fn overwrite() -> Vec<Series> {
    const THREADS: [u64; 6] = [1, 2, 4, 8, 12, 16];
    let thousand = |values: [f64; 6]| values.map(|v| v * 1000.0);
    vec![
        OVERWRITE.series("patched", &THREADS, &thousand([33.0, 100.0, 167.0, 300.0, 433.0, 567.0])),
        OVERWRITE.series("vanilla", &THREADS, &thousand([30.0, 35.0, 52.0, 57.0, 32.0, 33.0])),
    ]
}

/// Returns KB/s by bytes of a write: the one size that the source gives.
pub fn i_version() -> Vec<Series> {
    vec![
        I_VERSION.series("only if queried", &[1], &[211.0]),
        I_VERSION.series("with every write", &[1], &[128.0]),
    ]
}

const CORES: [u64; 5] = [1, 2, 4, 8, 16];

/// Locks and unlocks a second by threads, a region for each.
pub fn range_lock_best() -> Vec<Series> {
    vec![
        RANGE_LOCK.series(
            "OLC btree",
            &CORES,
            &[949_487.0, 1_398_539.0, 2_405_275.0, 3_288_435.0, 2_809_225.0],
        ),
        RANGE_LOCK.series(
            "mutex btree",
            &CORES,
            &[5_239_442.0, 1_014_466.0, 985_940.0, 733_195.0, 653_429.0],
        ),
    ]
}

/// Returns the same figures for interleaved ranges of the threads.
pub fn range_lock_worst() -> Vec<Series> {
    let worst = [1_045_991.0, 1_530_212.0, 1_147_099.0, 1_602_114.0, 1_731_890.0];
    vec![RANGE_LOCK.series("OLC btree", &CORES, &worst)]
}

/// Returns direct reads and writes of one file a second by processes; reads and writes were equal.
pub fn range_lock_io() -> Vec<Series> {
    let both = |thousands: [f64; 5]| thousands.map(|v| v * 2000.0);
    vec![
        RANGE_LOCK.series("rwsem", &CORES, &both([78.0, 131.0, 267.0, 372.0, 315.0])),
        RANGE_LOCK.series("interval tree", &CORES, &both([75.0, 123.0, 183.0, 177.0, 135.0])),
        RANGE_LOCK.series("mutex btree", &CORES, &both([72.0, 133.0, 237.0, 265.0, 228.0])),
    ]
}

/// Writes a second.
pub fn fsync_storm() -> Vec<Series> {
    let at = |name, values: [f64; 2]| Series {
        // Two runs of each.
        points: vec![Point::new(2048, values.to_vec())],
        ..FSYNC_STORM.series(name, &[], &[])
    };
    vec![at("ext4 dioread_lock", [20_026.0, 19_588.0]), at("ext4 dioread_nolock", [315.0, 380.0])]
}

/// Returns the published histograms: the mode of ext4, the timed call, and nanoseconds.
pub fn fsync_storm_histograms() -> Vec<(&'static str, &'static str, Hist)> {
    const MS: u64 = 1_000_000;
    /// Counts of buckets that begin with 0 to 1 and double.
    fn doubling(unit: u64, counts: &[u64]) -> Hist {
        let bucket = |(power, n): (usize, &u64)| {
            let from = if power == 0 { 0 } else { 1_u64 << power };
            (from * unit, ((2_u64 << power) * unit) - 1, *n)
        };
        Hist::of_buckets(&counts.iter().enumerate().map(bucket).collect::<Vec<_>>())
    }
    let nolock_fsync = [0, 0, 0, 92, 153, 177, 18, 77, 15, 19, 51, 137, 82, 118, 104, 140];
    let nolock_write = [10265, 491, 433, 670, 1043, 438, 177, 129, 14, 80, 24];
    let lock_fsync = [1, 115, 795, 2402, 3226, 6271, 109_773, 222];
    let lock_write = [698_243, 967, 3233, 16189, 19443, 47206, 6850, 149];
    let nolock_credits = [
        0, 0, 0, 0, 0, 0, 0, 12677, 5374, 6898, 4114, 3736, 1954, 329, 111, 157, 191, 234, 169, 190, 270,
        459, 2203, 6032, 4827, 3846, 3720, 6606, 6502, 5072, 2180, 229, 7,
    ];
    let lock_credits = [
        0, 0, 0, 0, 0, 0, 0, 54708, 952_229, 2_954_850, 2_833_787, 2_843_252, 1_952_274, 385_997, 56495,
        39379, 27116, 14277, 5726, 3224, 2192, 6344, 11606, 21528, 42377, 40907, 801, 64,
    ];
    vec![
        ("dioread_nolock", "fsync", doubling(MS, &nolock_fsync)),
        ("dioread_nolock", "write", doubling(MS, &nolock_write)),
        ("dioread_nolock", "journal_start", doubling(1, &nolock_credits)),
        ("dioread_lock", "fsync", doubling(MS, &lock_fsync)),
        ("dioread_lock", "write", doubling(MS, &lock_write)),
        ("dioread_lock", "journal_start", doubling(1, &lock_credits)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histograms_are_those_of_the_source() {
        let all = fsync_storm_histograms();
        let of = |mode, what| all.iter().find(|(m, w, _)| (*m, *w) == (mode, what)).map(|(_, _, h)| h);
        // What the source counted, and its mean of adding credits within the width of buckets.
        let nolock = of("dioread_nolock", "journal_start").unwrap();
        assert!((0.99..1.01).contains(&(nolock.count as f64 / 78_179.0)), "{}", nolock.count);
        let mean = nolock.sum as f64 / nolock.count as f64;
        assert!((0.7..1.4).contains(&(mean / 154_580_459.0)), "{mean}");
        let lock = of("dioread_lock", "fsync").unwrap();
        let mode = lock.buckets.iter().max_by_key(|b| b.2).unwrap();
        assert_eq!((mode.0, mode.1), (64_000_000, 127_999_999));
    }

    #[test]
    fn two_modes_differ_by_what_the_source_says() {
        let storm = fsync_storm();
        assert!(storm[0].points[0].median / storm[1].points[0].median > 50.0);
        assert!(storm.iter().all(|s| s.origin == Origin::Published && s.source.is_some()));
        assert_eq!(range_lock_io()[0].points[3].median, 744_000.0);
    }
}
