//! The requests a second of a server while it is recorded.

use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use fgraph_chores::end::wait;
use fgraph_chores::figures::median;
use fgraph_chores::process::{is_there, redis};

pub(super) const NAME: &str = "redis";

/// Way to run the server.
#[derive(Clone, Copy, Debug)]
enum Way {
    Plain,
    /// By `fgraph record`, with these options.
    Recorded(&'static [&'static str]),
    /// By `strace`, which counts system calls.
    Counted,
}

/// Each way, with its name.
const WAYS: [(&str, Way); 5] = [
    ("plain", Way::Plain),
    ("record", Way::Recorded(&[])),
    ("record --ring drop", Way::Recorded(&["--ring", "drop"])),
    (
        "record -F processCommand",
        Way::Recorded(&["-F", "processCommand"]),
    ),
    ("strace -f -c", Way::Counted),
];

/// Longest time of the server to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// Prints the medians of the requests a second.
pub(super) fn print(runs: u32, fgraph: &Path, directory: &Path) -> io::Result<()> {
    if !is_there("redis-server") || !is_there("redis-benchmark") {
        println!("{NAME:<15} skipped: no redis-server (apt-get install redis-server redis-tools)");
        return Ok(());
    }
    let mut all: [Vec<f64>; WAYS.len()] = Default::default();
    let can_count = is_there("strace");
    for _ in 0..runs {
        for ((_, way), found) in WAYS.iter().zip(&mut all) {
            if can_count || !matches!(way, Way::Counted) {
                found.push(requests(*way, fgraph, directory)?);
            }
        }
    }
    let medians = all.map(median);
    for ((name, _), rate) in WAYS.iter().zip(medians) {
        match (rate, medians[0]) {
            (Some(rate), Some(plain)) => {
                let over = rate / plain;
                println!("{NAME:<15} {name:<26} {rate:>9.0} requests/s, {over:.2} of plain");
            }
            _ => println!("{NAME:<15} {name:<26} skipped: no strace (apt-get install strace)"),
        }
    }
    Ok(())
}

/// Requests a second.
fn requests(way: Way, fgraph: &Path, directory: &Path) -> io::Result<f64> {
    let mut command = match way {
        Way::Plain => Command::new("redis-server"),
        Way::Counted => {
            let mut command = Command::new("strace");
            command.args(["-f", "-c", "-o"]);
            command.arg(directory.join("calls.txt")).arg("redis-server");
            command
        }
        Way::Recorded(options) => {
            let mut command = Command::new(fgraph);
            command.args(["record", "-q", "-o"]);
            command.arg(directory.join("fgraph.data")).args(options);
            command.args(["--", "redis-server"]);
            command
        }
    };
    let (mut server, socket) = redis(&mut command, directory)?;
    let mut benchmark = Command::new("redis-benchmark");
    benchmark.arg("-s").arg(&socket);
    benchmark.args(["-t", "get", "-n", "200000", "--csv"]);
    let output = benchmark.output();
    // The recorder ends with the server.
    let mut cli = Command::new("redis-cli");
    let _ = cli
        .arg("-s")
        .arg(&socket)
        .args(["shutdown", "nosave"])
        .output();
    wait(&mut server.0, PATIENCE)?;
    let text = String::from_utf8_lossy(&output?.stdout).into_owned();
    let line = text.lines().find(|line| line.starts_with("\"GET\""));
    let rate = line.and_then(|line| line.split(',').nth(1));
    let rate = rate.and_then(|rate| rate.trim_matches('"').parse().ok());
    rate.ok_or_else(|| io::Error::other(format!("no rate in {text}")))
}
