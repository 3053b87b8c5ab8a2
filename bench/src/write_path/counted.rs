//! The instructions and cache misses of a write, as `perf stat` counts them.

use super::{Bench, Outcome};
use lanefs_lab::load::small_writes;
use lanefs_lab::store::Handle;
use std::process::{Command, Stdio};

/// Adds rows with what a write of one byte costs a variant: the events of this process over a time,
/// and the writes that one thread does meanwhile. Prints why where the machine does not count them,
/// as in many virtual machines.
///
/// # Errors
/// The errors of writing.
pub(super) fn counted(bench: &mut Bench, variant: &str, file: &dyn Handle, size: u64) -> Outcome<()> {
    let window = bench.time.as_secs_f64();
    let perf = Command::new("perf")
        .args(["stat", "-x,", "-e", "instructions:u,cache-misses:u", "-p", &std::process::id().to_string()])
        .args(["sleep", &window.to_string()])
        .env("LC_ALL", "C")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let perf = match perf {
        Ok(perf) => perf,
        Err(e) => {
            println!("no instructions of a write: perf: {e}");
            return Ok(());
        }
    };
    // Longer than the window of perf, which begins when perf has started.
    let rate = small_writes(file, size, 1, bench.time * 4);
    let said = perf.wait_with_output()?;
    let writes = rate? * window;
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    for (event, name) in [("instructions", "instructions"), ("cache-misses", "cache misses")] {
        let line = said.lines().find(|line| line.contains(event));
        let count = line.and_then(|line| line.split(',').next()?.parse::<f64>().ok());
        match count {
            Some(count) => {
                let case = format!("buffered writes, 1 byte: {name} of each");
                bench.report.row(&case, variant, 1, &[count / writes], "");
            }
            None => println!("no {name} of a write: perf stat: {}", line.unwrap_or(said.trim())),
        }
    }
    Ok(())
}
