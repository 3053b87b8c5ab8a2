//! No serving thread waits for another request: runs the operations that would hang, with one
//! serving thread and with many.

use crate::support::{Image, LIMIT, bounded, compile, must, options};
use lanefs_tests::{Mounted, Server};

fn waits(threads: u32, args: &[&str]) {
    let server = Server::Lanefs(env!("CARGO_BIN_EXE_lanefs").into());
    let image = Image::new(64 << 20, &["-b", "4096"]);
    let program = compile(&image, "waits.c");
    let options = format!("{},threads={threads}", options(&server));
    let mounted = Mounted::new(&server, &image.path, &options, LIMIT);
    let at = mounted.path().join(if args[0] == "fault" || args[0] == "mix" { "file" } else { "" });
    must(bounded(LIMIT.as_secs() as u32, program).arg(args[0]).arg(at).args(&args[1..]));
    mounted.unmount();
}

#[test]
fn a_fault_of_a_direct_map_at_the_end_of_a_file() {
    for threads in [1, 2, 64] {
        waits(threads, &["fault"]);
    }
}

#[test]
fn many_ask_for_what_the_kernel_has_cached() {
    for threads in [1, 2, 64] {
        waits(threads, &["seek", "70"]);
        waits(threads, &["read", "70"]);
    }
}

#[test]
fn direct_writes_are_seen_by_buffered_reads() {
    for threads in [1, 64] {
        waits(threads, &["mix", "4000"]);
    }
}
