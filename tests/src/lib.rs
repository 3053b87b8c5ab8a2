//! Shared parts of the workspace tests: judges that this project did not write.
//!
//! What a test needs and does not find (root, a loop device, a program of e2fsprogs) is a failure
//! that says so. Nothing is skipped.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panic")]

pub mod campaign;
mod ceph;
mod closed;
mod damage;
mod ending;
mod exercise;
mod fsx;
mod fsx_program;
mod history;
mod images;
mod listing;
mod modes;
mod mount;
mod mounted;
mod ops;
mod ownership;
mod poke;
mod power;
mod promises;
mod random_ops;
mod second_opinion;
mod served;
mod slices;
mod specimen;
mod tools;
mod tree;
mod victims;
mod virtual_clock;
mod volume_tree;
mod watchdog;

pub use ceph::Cluster;
pub use closed::ClosedVolumes;
pub use damage::{Region, RegionKind, Victim};
pub use ending::Ending;
pub use exercise::{Verdict, Walk, change_all, explained, read_all, walk};
pub use fsx::{FALLOCATES, FileOp, Model, Player, Way, draw};
pub use fsx_program::fsx_config;
pub use history::{Change, Clock, History, Look, WORD};
pub use images::{corpus_images, unpacked};
pub use listing::{settled, volume_listing};
pub use modes::{Mode, modes};
pub use mount::{LoopDevice, LoopMount};
pub use mounted::{Mounted, Server, is_mounted, released, unmount_soon};
pub use ops::{Host, Lane, Op, OpenHow, Outcome, RenameHow, Seen, Target, XattrHow};
pub use ownership::{Meddled, meddle};
pub use poke::{Poker, PokingDevice};
pub use power::{open, writing};
pub use promises::{Known, Settles, Tracked};
pub use random_ops::{RandomOps, each_case};
pub use second_opinion::{DIFFERENCES, Difference, Opinions};
pub use served::Served;
pub use slices::{day, long, slice};
pub use specimen::{edits, specimen};
pub use tools::{
    copy_file, debugfs, debugfs_write, dumpe2fs, e2fsck, e2fsck_clean, e2fsck_replay, kept, memory_dir,
    memory_of, mke2fs, mke2fs_command, private_mounts, require_root, require_tools, run, tool,
};
pub(crate) use tools::{e2fsck_closed, fixed_options};
pub use tree::{Kind, TreeEntry, assert_same_tree, tree_diff, tree_listing};
pub use victims::{
    OLD, damage_and_change_offline, damage_and_use, large_victim, patterned, rare_victims, small_victim,
    with_mmp,
};
pub use virtual_clock::VirtualClock;
pub use volume_tree::{volume_digest, volume_lines};
pub use watchdog::{Watchdog, patiently};
