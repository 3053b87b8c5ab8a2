//! The answers to clients: a mount tells its owner everything, and programs of this machine its
//! metrics.

use super::client::{Later, PathAnswer, Reply};
use super::prometheus;
use lanefs_fuse::{Monitor, MountStats};
use serde::Serialize;
use std::net::SocketAddr;
use std::time::Instant;

/// The mount that is looked at.
#[derive(Debug)]
pub(crate) struct Subject {
    pub(crate) monitor: Monitor,
    pub(crate) volume: String,
    pub(crate) dir: String,
    pub(crate) read_only: bool,
    pub(crate) metrics: Option<SocketAddr>,
    pub(crate) began: Instant,
}

#[derive(Serialize)]
struct Head<'a> {
    version: &'a str,
    volume: &'a str,
    dir: &'a str,
    read_only: bool,
    pid: u32,
    metrics: Option<SocketAddr>,
    seconds: f64,
    requests: u64,
    threads: u64,
    threads_busy: u64,
    open_files: u64,
    nodes: u64,
}

impl Subject {
    /// Returns the answer to the owner: `/stats`, `/metrics`, `/hold`, which holds the device
    /// still, and `/end`, which waits for the end of the mount.
    pub(super) fn for_owner(&self, path: &str) -> PathAnswer {
        match path {
            "/stats" => self.with(|stats| self.json(&stats)).into(),
            "/hold" => PathAnswer::HandOver(Later::Hold),
            "/end" => PathAnswer::HandOver(Later::End),
            _ => self.for_all(path).into(),
        }
    }

    /// Returns the answer to any program of this machine: `/metrics` only.
    pub(super) fn for_all(&self, path: &str) -> Reply {
        match path {
            "/metrics" => self.with(|stats| Reply {
                status: "200 OK",
                kind: "text/plain; version=0.0.4; charset=utf-8",
                body: prometheus::text(&self.volume, &self.dir, &stats),
            }),
            _ => Reply::line("404 Not Found", "there is /metrics"),
        }
    }

    fn with(&self, tell: impl FnOnce(MountStats) -> Reply) -> Reply {
        match self.monitor.read() {
            Some(stats) => tell(stats),
            None => Reply::line("503 Service Unavailable", "the volume is being closed"),
        }
    }

    fn json(&self, stats: &MountStats) -> Reply {
        let head = Head {
            version: env!("CARGO_PKG_VERSION"),
            volume: &self.volume,
            dir: &self.dir,
            read_only: self.read_only,
            pid: std::process::id(),
            metrics: self.metrics,
            seconds: self.began.elapsed().as_secs_f64(),
            requests: stats.requests,
            threads: stats.threads,
            threads_busy: stats.threads_busy,
            open_files: stats.open_files,
            nodes: stats.nodes,
        };
        // Text and numbers: that cannot fail. The volume's own JSON goes in as it is.
        let head = serde_json::to_string(&head).unwrap_or_default();
        let body = format!("{},\"stats\":{}}}\n", head.trim_end_matches('}'), stats.volume.to_json());
        Reply { status: "200 OK", kind: "application/json", body }
    }
}
