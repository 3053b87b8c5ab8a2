//! The program fsx, from crates.io, which `scripts/judges.sh` installs.

/// What fsx can do, by weight.
const WEIGHTS: &str = "
[weights]
close_open = 1
invalidate = 1
mapread = 10
mapwrite = 10
read = 10
write = 10
truncate = 5
fsync = 1
fdatasync = 1
posix_fallocate = 5
punch_hole = 5
sendfile = 3
posix_fadvise = 1
copy_file_range = 3
";

/// Returns a configuration of fsx with the lines of `shape`, which says how large the file and its
/// operations are.
pub fn fsx_config(shape: &str) -> String {
    format!("{shape}{WEIGHTS}")
}
