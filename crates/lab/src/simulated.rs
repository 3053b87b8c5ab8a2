//! Simulated devices, in memory: what a source saw on its own device can be looked at on any
//! machine.

use lanefs_device::Pace;

/// A device and how fast it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Simulated {
    /// As on the command line.
    pub name: &'static str,
    /// In words.
    pub title: &'static str,
    /// Its pace.
    pub pace: Pace,
    /// How much longer than on others a run on it must be, to be of many operations.
    pub(crate) patience: u32,
}

impl Simulated {
    /// A flash drive that keeps its cache.
    pub const NVME: Self = Self { name: "nvme", title: "NVMe drive", pace: Pace::NVME, patience: 1 };
    /// Source 004's.
    pub const CLOUD: Self =
        Self { name: "cloud", title: "cloud volume of 64k IOPS", pace: Pace::CLOUD, patience: 1 };
    /// An image of a Ceph cluster.
    pub const RBD: Self = Self { name: "rbd", title: "Ceph RBD image", pace: Pace::RBD, patience: 2 };
    /// A rotating disk.
    pub const DISK: Self = Self { name: "disk", title: "hard disk", pace: Pace::DISK, patience: 8 };

    /// All there are.
    pub const ALL: [Self; 4] = [Self::NVME, Self::CLOUD, Self::RBD, Self::DISK];
}
