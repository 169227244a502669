//! `cargo xtask attach-test --memory`: memory that remains in redis-server, and in a worker of
//! php-fpm, after a detach. The worker has changed its user, and may not ask the kernel which of
//! its pages are private.

use std::fs;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use fgraph_chores::process::{Running, attach, redis};
use fgraph_needs::{PHP_FPM, REDIS_SERVER};

/// Number of attaches after the first one, which must add nothing.
const MORE: u32 = 40;
/// Limit of the MiB that remain beside the agent's own instructions and data.
const TO_REACH: f64 = 2.0;

/// Attaches to each server with each filter, and prints the memory that remains. Returns false if
/// more remains than may.
pub(super) fn run(fgraph: &Path) -> io::Result<bool> {
    let redis_server = REDIS_SERVER.find().map_err(io::Error::other)?;
    let mut are_met = true;
    for filter in [&[][..], &["--libs"]] {
        let folder = tempfile::tempdir()?;
        let (server, _) = redis(&mut Command::new(&redis_server), folder.path())?;
        let process = server.0.id();
        are_met &= measure(fgraph, ("redis-server", process), filter, folder.path())?;
    }
    let php_fpm = match PHP_FPM.find() {
        // SAFETY: a system call.
        Ok(_) if unsafe { libc::geteuid() } != 0 => {
            println!("php-fpm is left out: only root starts workers as another user");
            return Ok(are_met);
        }
        Ok(php_fpm) => php_fpm,
        Err(missing) => {
            println!("php-fpm is left out: {missing}");
            return Ok(are_met);
        }
    };
    let folder = tempfile::tempdir()?;
    let (_server, worker) = php_worker(&php_fpm, folder.path())?;
    let worker = ("worker of php-fpm", worker);
    Ok(measure(fgraph, worker, &["--libs"], folder.path())? && are_met)
}

/// Starts php-fpm with one worker, whose process is returned.
fn php_worker(php_fpm: &Path, directory: &Path) -> io::Result<(Running, u32)> {
    let socket = directory.join("php.sock");
    let settings = format!(
        "[global]\nerror_log = {0}/log\n[www]\nuser = nobody\ngroup = nogroup\n\
         listen = {0}/php.sock\npm = static\npm.max_children = 1\n",
        directory.display()
    );
    let file = directory.join("php-fpm.conf");
    fs::write(&file, settings)?;
    let mut command = Command::new(php_fpm);
    let command = command.args(["--nodaemonize", "--fpm-config"]).arg(file);
    let server = Running(command.stderr(Stdio::null()).spawn()?);
    let until = Instant::now() + Duration::from_secs(60);
    let process = server.0.id();
    while Instant::now() < until {
        let children = fs::read_to_string(format!("/proc/{process}/task/{process}/children"))?;
        if let Some(Ok(worker)) = children.split(' ').next().map(str::parse)
            && UnixStream::connect(&socket).is_ok()
        {
            return Ok((server, worker));
        }
        thread::sleep(Duration::from_millis(10));
    }
    Err(io::Error::other("php-fpm does not answer"))
}

/// Attaches to a process with a filter, and prints the memory that remains. Returns false if more
/// remains than may.
fn measure(
    fgraph: &Path,
    (name, process): (&str, u32),
    filter: &[&str],
    folder: &Path,
) -> io::Result<bool> {
    let mut are_met = true;
    let mut judge = |is_met| {
        are_met &= is_met;
        if is_met { "ok" } else { "NOT MET" }
    };
    // It starts threads, and returns memory.
    thread::sleep(Duration::from_secs(1));
    let options = [&["--quiet", "--time", "50ms"], filter].concat();
    let recording = folder.join("fgraph.data");
    let record = || attach(fgraph, process, &options, &recording);
    let before = Resident::of(process)?;
    record()?;
    let first = Resident::of(process)?;
    for _ in 0..MORE {
        record()?;
    }
    let last = Resident::of(process)?;
    let what = match filter {
        [] => "its functions",
        _ => "all libraries",
    };
    let title = format!("{name}, {what} traced");
    println!("{title:<41} RSS      private of files       shared MiB");
    for (when, resident) in [
        ("before", &before),
        ("after the first detach", &first),
        ("after 40 more", &last),
    ] {
        let [all, anonymous, file, shared] = resident.parts;
        println!("{when:>36} {all:>8.1} {anonymous:>12.1} {file:>8.1} {shared:>12.1}");
    }
    let stays = first.parts[0] - before.parts[0];
    // The kernel counts pages of files once for each of their mappings.
    let (own, more) = (first.agent, last.parts[1] - first.parts[1]);
    let limit = own + TO_REACH;
    let verdict = judge(stays <= limit);
    println!("  {stays:.1} MiB stay, at most the agent's own {own:.1} and 2: {verdict}");
    let verdict = judge(more <= 0.25);
    println!("  {more:.1} MiB of private memory added by {MORE} more, at most 0.25: {verdict}\n");
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
