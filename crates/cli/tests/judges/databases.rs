//! Databases whose file system dies: SQLite and PostgreSQL must come back with every commit that
//! they acknowledged.

use crate::support::{Image, bounded, judged, must, output, said};
use lanefs_tests::Mounted;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const SIZE: u64 = 1 << 30;

fn sql(database: &Path, statement: &str) -> String {
    must(bounded(60, "sqlite3").arg("-bail").arg(database).arg(statement))
}

/// Commits by one SQLite, which syncs the folder too (`extra`), until `enough` are acknowledged;
/// then the mount is killed. The last that was acknowledged.
fn commit_until_killed(mounted: Mounted, from: u64, enough: u64) -> u64 {
    let database = mounted.path().join("db");
    let mut sqlite = Command::new("sqlite3");
    sqlite.arg(&database).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut sqlite = sqlite.spawn().unwrap();
    let mut input = sqlite.stdin.take().unwrap();
    let writer = std::thread::spawn(move || {
        let _ = writeln!(input, ".timeout 10000\npragma synchronous=extra;");
        for n in from + 1.. {
            // An error at either ends it: SQLite is gone, or reads no more.
            let statement =
                format!("insert into t values({n}, randomblob(abs(random()) % 6000)); select {n};\n");
            if input.write_all(statement.as_bytes()).is_err() {
                break;
            }
        }
    });
    let mut lines = BufReader::new(sqlite.stdout.take().unwrap()).lines();
    let mut acknowledged = 0;
    for line in lines.by_ref() {
        // SQLite goes on after an error; only numbers in order are commits.
        let Ok(n) = line.unwrap().parse::<u64>() else { continue };
        acknowledged = n;
        if n >= from + enough {
            break;
        }
    }
    assert!(acknowledged >= from + enough, "SQLite ended after {acknowledged}");
    // What it prints from now on may be no acknowledgement: after an error it goes on with the next
    // statement.
    let reader = std::thread::spawn(move || lines.map_while(Result::ok).last());
    mounted.kill(|| {
        sqlite.kill().unwrap();
        sqlite.wait().unwrap();
    });
    let _ = reader.join();
    let _ = writer.join();
    acknowledged
}

fn sqlite(mode: &str, rounds: u64) {
    let image = Image::new(SIZE, &[]);
    let server = judged();
    let mounted = image.mount(&server);
    let database = mounted.path().join("db");
    assert_eq!(sql(&database, &format!("pragma journal_mode={mode}")), mode);
    sql(&database, "create table t(n integer primary key, b blob); create index i on t(b)");
    mounted.unmount();
    for round in 0..rounds {
        let mounted = image.mount(&server);
        let from: u64 = sql(&mounted.path().join("db"), "select count(*) from t").parse().unwrap();
        let acknowledged = commit_until_killed(mounted, from, 40 + 37 * (round % 5));
        let mounted = image.mount(&server);
        let database = mounted.path().join("db");
        assert_eq!(sql(&database, "pragma integrity_check"), "ok");
        let found = sql(&database, "select count(*), max(n) from t");
        let (count, last) = found.split_once('|').unwrap();
        assert_eq!(count, last, "a commit is missing between others");
        assert!(last.parse::<u64>().unwrap() >= acknowledged, "{acknowledged} acknowledged, {last} found");
        mounted.unmount();
    }
}

#[test]
fn sqlite_with_a_write_ahead_log() {
    sqlite("wal", 3);
}

#[test]
fn sqlite_with_a_rollback_journal() {
    sqlite("delete", 3);
}

#[test]
#[ignore = "long: make judge-mount"]
fn sqlite_for_long() {
    for mode in ["wal", "delete", "truncate", "persist"] {
        sqlite(mode, 10);
    }
}

/// A cluster on the mount. Its sockets are on the host.
struct Cluster {
    data: std::path::PathBuf,
    sockets: std::path::PathBuf,
    server: Option<Child>,
}

impl Cluster {
    /// A program of PostgreSQL, as its user.
    fn program(&self, seconds: u32, name: &str) -> Command {
        let binaries =
            fs::read_dir("/usr/lib/postgresql").expect("PostgreSQL of Debian").last().unwrap().unwrap();
        let mut command = bounded(seconds, "setpriv");
        command.args(["--reuid", "postgres", "--regid", "postgres", "--clear-groups"]);
        command
            .arg(binaries.path().join("bin").join(name))
            .env("PGHOST", &self.sockets)
            .env("PGUSER", "postgres");
        command.current_dir("/");
        command
    }

    fn start(&mut self) {
        let log = fs::File::options().create(true).append(true).open(self.sockets.join("log")).unwrap();
        let mut command = self.program(300, "postgres");
        command.arg("-D").arg(&self.data).arg("-k").arg(&self.sockets).args([
            "-c",
            "listen_addresses=",
            "-c",
            "max_wal_size=64MB",
        ]);
        command.args(["-c", "shared_buffers=32MB", "-c", "checkpoint_timeout=30s"]);
        self.server = Some(command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap());
        for _ in 0..600 {
            if output(&mut self.program(10, "pg_isready")).status.success() {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("PostgreSQL does not start\n{}", self.log());
    }

    fn log(&self) -> String {
        fs::read_to_string(self.sockets.join("log")).unwrap_or_default()
    }

    fn sql(&self, statement: &str) -> String {
        must(self.program(100, "psql").args([
            "-X",
            "-A",
            "-t",
            "-v",
            "ON_ERROR_STOP=1",
            "-d",
            "postgres",
            "-c",
            statement,
        ]))
    }

    /// Sends the postmaster a signal and waits for its end. SIGKILL goes to its children too:
    /// without it, they may wait for each other for ever.
    fn end(&mut self, signal: &str) {
        if let Some(mut child) = self.server.take() {
            // The child is `timeout`, in front of the postmaster.
            let mut pids = below(&child.id().to_string());
            if signal == "-KILL" {
                pids.extend(pids.clone().iter().flat_map(|pid| below(pid)));
            }
            // They may have ended by themselves.
            let _ = Command::new("kill").arg(signal).args(&pids).stderr(Stdio::null()).status();
            let _ = child.wait();
        }
    }
}

/// The processes whose parent is `pid`.
fn below(pid: &str) -> Vec<String> {
    let out = output(Command::new("pgrep").args(["-P", pid]));
    String::from_utf8_lossy(&out.stdout).lines().map(str::to_owned).collect()
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.end("-KILL");
    }
}

fn own(path: &Path) {
    must(bounded(10, "chown").arg("postgres:postgres").arg(path));
}

/// initdb, pgbench, `kill -9` of the mount in its middle, recovery; then every index against its
/// table, and every transaction that pgbench was told of.
#[test]
#[ignore = "long: make judge-mount"]
fn postgresql() {
    let image = Image::new(2 * SIZE, &[]);
    let server = judged();
    let mounted = image.mount(&server);
    let sockets = tempfile::Builder::new().prefix("lanefs-pg").tempdir().unwrap();
    own(sockets.path());
    let data = mounted.path().join("data");
    fs::create_dir(&data).unwrap();
    own(&data);
    let mut cluster = Cluster { data, sockets: sockets.path().to_owned(), server: None };
    must(cluster.program(200, "initdb").args(["-A", "trust", "--data-checksums", "-D"]).arg(&cluster.data));
    cluster.start();
    must(cluster.program(200, "pgbench").args(["-i", "-q", "-s", "5", "postgres"]));
    cluster.sql("create extension amcheck");
    cluster.end("-INT");
    mounted.unmount();

    let mut told = 0;
    for round in 0..3 {
        let mounted = image.mount(&server);
        cluster.data = mounted.path().join("data");
        cluster.start();
        let prefix = sockets.path().join(format!("round{round}"));
        let mut bench = cluster.program(60, "pgbench");
        bench
            .args(["-c", "4", "-j", "2", "-T", "30", "-n", "-l", "--log-prefix"])
            .arg(&prefix)
            .arg("postgres");
        let mut bench = bench.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_secs(5));
        // The transactions in the log by now were acknowledged before the kill.
        mounted.kill(|| {
            cluster.end("-KILL");
            bench.wait().unwrap();
        });
        let logs = fs::read_dir(sockets.path()).unwrap().map(|e| e.unwrap().path());
        let logs = logs.filter(|p| p.to_str().unwrap().starts_with(prefix.to_str().unwrap()));
        // pgbench logs a transaction when its COMMIT has been answered.
        let lines: usize = logs.map(|p| fs::read_to_string(p).unwrap().lines().count()).sum();
        assert!(lines > 10, "only {lines} transactions\n{}", cluster.log());
        told += lines as u64;

        let mounted = image.mount(&server);
        cluster.data = mounted.path().join("data");
        cluster.start();
        let found: u64 = cluster.sql("select count(*) from pgbench_history").parse().unwrap();
        println!("round {round}: {told} acknowledged, {found} found");
        assert!(found >= told, "{told} transactions acknowledged, {found} found");
        // For each client, one transaction more than acknowledged may have been committed.
        told = found;
        let sums = "select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history)
                    and (select sum(bbalance) from pgbench_branches) = (select sum(tbalance) from pgbench_tellers)";
        assert_eq!(cluster.sql(sums), "t");
        let out = output(cluster.program(100, "pg_amcheck").args([
            "--heapallindexed",
            "--parent-check",
            "--rootdescend",
            "postgres",
        ]));
        assert!(out.status.success(), "{}", said(&out));
        cluster.sql("vacuum full");
        cluster.end("-INT");
        mounted.unmount();
        // Each block once more, from the medium.
        let mounted = image.mount(&server);
        must(cluster.program(100, "pg_checksums").args(["--check", "-D"]).arg(mounted.path().join("data")));
        mounted.unmount();
    }
}
