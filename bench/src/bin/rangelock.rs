//! quick look
use lanefs_bench::rangelock::work::*;
use lanefs_bench::rangelock::*;
use std::time::Duration;
fn go<V: Variant>(w: &str, n: usize) -> f64 {
    let t = Duration::from_millis(300);
    match w {
        "best" => hundred::<V>(Regions::Apart, n, t),
        "worst" => hundred::<V>(Regions::Interleaved, n, t),
        "one" => one::<V>(70, n, t),
        _ => one::<V>(100, n, t),
    }
}
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let n = a[3].parse().unwrap();
    let r = match a[1].as_str() {
        "ours" => go::<Ours>(&a[2], n),
        "mutex" => go::<MutexBTree>(&a[2], n),
        "rw" => go::<RwLock>(&a[2], n),
        "tree" => go::<IntervalTree>(&a[2], n),
        _ => go::<LinkedList>(&a[2], n),
    };
    println!("{:.0}", r);
}
