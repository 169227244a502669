//! `cargo xtask attach-test --memory`: memory that remains in redis-server after a detach.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use fgraph_needs::REDIS_SERVER;

use crate::process::{attach, redis};

/// Number of attaches after the first one, which must add nothing.
const MORE: u32 = 40;
/// Limit of the MiB that remain beside the agent's own instructions and data.
const TO_REACH: f64 = 2.0;

/// Attaches to a server with each filter, and prints the memory that remains. Returns false if more
/// remains than may.
pub(super) fn run(fgraph: &Path) -> io::Result<bool> {
    let server = REDIS_SERVER.find().map_err(io::Error::other)?;
    let mut are_met = true;
    let mut judge = |is_met| {
        are_met &= is_met;
        if is_met { "ok" } else { "NOT MET" }
    };
    for (what, filter) in [("its functions", &[][..]), ("all libraries", &["--libs"])] {
        let folder = tempfile::tempdir()?;
        let (server, _) = redis(&mut Command::new(&server), folder.path())?;
        // It starts threads, and returns memory.
        thread::sleep(Duration::from_secs(1));
        let process = server.0.id();
        let options = [&["--quiet", "--time", "50ms"], filter].concat();
        let recording = folder.path().join("fgraph.data");
        let record = || attach(fgraph, process, &options, &recording);
        let before = Resident::of(process)?;
        record()?;
        let first = Resident::of(process)?;
        for _ in 0..MORE {
            record()?;
        }
        let last = Resident::of(process)?;
        println!("redis-server, {what} traced          RSS      private of files       shared MiB");
        for (when, resident) in [
            ("before", &before),
            ("after the first detach", &first),
            ("after 40 more", &last),
        ] {
            let [all, anonymous, file, shared] = resident.parts;
            println!("{when:>36} {all:>8.1} {anonymous:>12.1} {file:>8.1} {shared:>12.1}");
        }
        let stays = first.parts[0] - before.parts[0];
        let (own, more) = (first.agent, last.parts[0] - first.parts[0]);
        let limit = own + TO_REACH;
        let verdict = judge(stays <= limit);
        println!("  {stays:.1} MiB stay, at most the agent's own {own:.1} and 2: {verdict}");
        let verdict = judge(more <= 0.25);
        println!("  {more:.1} MiB added by {MORE} more attaches, at most 0.25: {verdict}\n");
    }
    Ok(are_met)
}

/// MiB of a process that are in memory.
#[derive(Debug)]
struct Resident {
    /// All, and of these the anonymous, file, and shared parts.
    parts: [f64; 4],
    /// Instructions and data of the agent's library.
    agent: f64,
}

/// Returns the KiB in a line that begins with a name, in MiB.
fn of_line(text: &str, name: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_ascii_whitespace().next());
    number.map_or(0.0, |number| number.parse().unwrap_or(0.0)) / 1024.0
}

impl Resident {
    fn of(process: u32) -> io::Result<Self> {
        let path = |name: &str| format!("/proc/{process}/{name}");
        let status = fs::read_to_string(path("status"))?;
        let smaps = fs::read_to_string(path("smaps"))?;
        let mut agent = 0.0;
        let mut is_agents = false;
        for line in smaps.lines() {
            match line.split_once(' ') {
                Some((name, _)) if name.contains('-') => is_agents = line.contains("fgraph-agent"),
                _ if is_agents => agent += of_line(line, "Rss:"),
                _ => {}
            }
        }
        let names = ["VmRSS:", "RssAnon:", "RssFile:", "RssShmem:"];
        Ok(Self {
            parts: names.map(|name| of_line(&status, name)),
            agent,
        })
    }
}
