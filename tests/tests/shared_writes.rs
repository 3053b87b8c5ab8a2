//! Writes of memory that threads share, counted for each operation: what more processors have to
//! move between them. `lanefs_lab::shared_writes` has the most that each may have, which
//! docs/performance.md shows. Only `scripts/schedules.sh --slice` counts: the primitives of
//! `--cfg lanefs_schedule` note each write. A binary of its own, because it counts the writes of
//! its whole process. `SHARED_WRITES=1` prints the places.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panic")]

use lanefs_lab::shared_writes::OPERATIONS;
use std::fs;
use std::path::Path;

#[test]
fn the_document_shows_the_bounds() {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/performance.md");
    let text = fs::read_to_string(document).unwrap();
    let (_, section) = text.split_once("## Writes that threads share").expect("the section of the table");
    let section = section.split("\n## ").next().unwrap_or_default();
    // Below the line that ends the head of the table.
    let rows = section.lines().skip_while(|line| !line.starts_with("|---")).skip(1);
    let rows: Vec<String> = rows.filter(|line| line.starts_with('|')).map(str::to_owned).collect();
    let bounds: Vec<String> = (OPERATIONS.iter())
        .map(|operation| format!("| {} | {} |", operation.name, operation.shared_writes))
        .collect();
    assert_eq!(rows, bounds, "docs/performance.md and crates/lab/src/shared_writes.rs");
}

#[cfg(lanefs_schedule)]
#[test]
fn no_operation_shares_more_writes_than_its_bound() {
    use lanefs_sync::written;

    const THREADS: usize = 4;
    /// Operations of each thread.
    const TIMES: usize = 2000;
    let each = |writes: f64| writes / (THREADS * TIMES) as f64;
    let mut grown = Vec::new();
    for operation in OPERATIONS {
        let counted = operation.run(THREADS, TIMES, |go| {
            written::start();
            go();
            written::stop()
        });
        let places = counted.unwrap();
        let (found, most) = (each(places.iter().map(|place| place.writes).sum()), operation.shared_writes);
        println!("{}: {found:.3} of at most {most}", operation.name);
        if std::env::var_os("SHARED_WRITES").is_some() {
            for place in places.iter().filter(|place| each(place.writes) >= 0.005) {
                println!("  {:.3} {}", each(place.writes), place.at);
            }
        }
        if found > most {
            grown.push(format!("{}: {found:.3} shared writes of at most {most}", operation.name));
        }
    }
    assert!(grown.is_empty(), "{grown:#?}");
}
