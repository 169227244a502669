//! `cargo xtask attach-test`: the command attaches to a hostile program and detaches, many times.
//!
//! The threads of the program constantly take the locks of allocator, linker and unwinder, fork,
//! and start programs by `posix_spawn`, `system` and `vfork`. They also use the C library's own
//! signals and threads: `pthread_cancel`, timers that make threads, asynchronous files and lookups
//! of names. None calls `setresuid`: glibc 2.36 waits for ever for a thread that ends after it was
//! told to change its user, and before the signal comes. Each cycle records it for a moment,
//! every second one with all libraries; each tenth recorder is killed meanwhile. After each cycle
//! these hold:
//!
//! - no thread is stopped or traced;
//! - the text has its original bytes, in the same mappings and with the same number of private
//!   pages;
//! - the number of descriptors is unchanged.
//!
//! After the last cycle the number of the agent's mappings is the same as after the first ones.
//!
//! The time for which threads are stopped depends on contention for the processors and for the
//! locks that making a thread takes, which the busy threads cause. It is also measured with threads
//! that mostly wait. The program measures its own time to make a thread beside the busy ones, too.

mod memory;

use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufRead as _, BufReader};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use fgraph_chores::cargo;
use fgraph_chores::end::{End, wait};
use fgraph_chores::figures::median;
use fgraph_chores::process::{Running, compile};
use fgraph_needs::{CC, GXX};
use tempfile::TempDir;

/// Options of the command line.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Number of times to attach and detach
    #[arg(long, default_value_t = 100, value_name = "N")]
    cycles: u32,
    /// The command `fgraph`; without it, it is built
    #[arg(long, value_name = "PATH")]
    fgraph: Option<PathBuf>,
    /// Measure instead what stays in the memory of redis-server, and of a worker of php-fpm
    #[arg(long)]
    memory: bool,
}

const PROGRAM: (&str, &str) = ("program.cpp", include_str!("attach_test/program.cpp"));
const LIBRARY: (&str, &str) = ("library.c", include_str!("attach_test/library.c"));
/// Number of the program's threads when its first event is awaited.
const THREADS: u32 = 100;
/// Number of measurements with threads that wait.
const MEASURED: u32 = 5;
/// Number of cycles after which nothing more is added to the program for good.
const SETTLED: u32 = 5;
/// Time limit for anything.
const PATIENCE: Duration = Duration::from_secs(60);

/// Attaches and detaches, and prints the results.
pub(crate) fn run(options: &Options) -> io::Result<bool> {
    let fgraph = cargo::fgraph(options.fgraph.as_deref())?;
    if options.memory {
        return memory::run(&fgraph);
    }
    let built = Built::new()?;
    let mut failures = Vec::new();
    let (mut killed, mut pauses) = (0, Vec::new());
    let mut victim = Victim::start(&built, &["0", "1"])?;
    let before = State::of(&victim)?;
    let mut mappings = 0;
    for cycle in 0..options.cycles {
        let is_killed = cycle % 10 == 9;
        killed += u32::from(is_killed);
        let filter: &[&str] = match cycle % 4 {
            // Every second one of the killed recorders has each filter.
            0 | 3 => &["-F", "work"],
            _ => &["--libs"],
        };
        let done = victim.cycle(&fgraph, &built, filter, is_killed, &mut pauses);
        let done = done.and_then(|()| victim.settle(&before));
        if let Err(error) = done {
            failures.push(format!("cycle {cycle}: {error}"));
        }
        if victim.0.0.try_wait()?.is_some() {
            break;
        }
        if cycle + 1 == SETTLED.min(options.cycles) {
            mappings = victim.agents_mappings()?;
        }
    }
    let mut after = victim.mapped_text().unwrap_or_default();
    let path = |(line, _): &(String, u64)| line.split(' ').next_back().map(str::to_owned);
    let paths: Vec<_> = before.mapped.iter().map(path).collect();
    after.retain(|text| paths.contains(&path(text)));
    let left = victim.agents_mappings().unwrap_or(0);
    if left != mappings {
        failures.push(format!("{left} mappings of the agent, {mappings} before"));
    }
    failures.extend(victim.end()?.err());
    let mut waiting = Victim::start(&built, &[&THREADS.to_string(), "0"])?;
    let (mut first, mut waiting_pauses) = (Vec::new(), Vec::new());
    for _ in 0..MEASURED {
        let filter = ["-F", "work"];
        let done = waiting.cycle(&fgraph, &built, &filter, false, &mut waiting_pauses);
        failures.extend(done.err());
    }
    for _ in 0..MEASURED {
        first.push(waiting.first_event(&fgraph)?);
    }
    failures.extend(waiting.end()?.err());

    let own = own_threads(&built)?;

    for failure in &failures {
        println!("failure: {failure}");
    }
    println!("cycles {}", options.cycles);
    println!("recorders killed {killed}");
    println!("failures {}", failures.len());
    for (when, text) in [("before", &before.mapped), ("after", &after)] {
        let private: u64 = text.iter().map(|(_, private)| private).sum();
        let mappings = text.len();
        println!("text {when}: {mappings} mappings, {private} KiB private");
    }
    let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
    for (what, times) in [
        ("where all are busy a thread was stopped for", pauses),
        ("where all are busy the program makes a thread in", own),
        ("where all wait a thread was stopped for", waiting_pauses),
    ] {
        let both = median(times.iter().copied()).zip(times.iter().copied().max());
        if let Some((median, longest)) = both {
            let [median, longest] = [median, longest].map(milliseconds);
            println!("{what} {median:.2} ms, at most {longest:.2} ms");
        }
    }
    let median = milliseconds(median(first).unwrap_or_default());
    println!("first event with {THREADS} threads after {median:.0} ms");
    Ok(failures.is_empty())
}

/// Measures the program's time to make a thread beside its busy ones, several times.
fn own_threads(built: &Built) -> io::Result<Vec<Duration>> {
    const TIMES: usize = 60;
    let (victim, output) = Victim::start_with(built, &["0", "1", &TIMES.to_string()])?;
    let times = output.lines().take(TIMES).map(|line| {
        let time = line?.parse().map_err(io::Error::other)?;
        Ok(Duration::from_micros(time))
    });
    let times = times.collect::<io::Result<_>>()?;
    victim.end()?.map_err(io::Error::other)?;
    Ok(times)
}

/// The program and the library that it loads.
#[derive(Debug)]
struct Built {
    folder: TempDir,
}

impl Built {
    fn new() -> io::Result<Self> {
        let built = Self {
            folder: tempfile::tempdir()?,
        };
        for (need, source, options) in [
            (GXX, PROGRAM, &["-pthread", "-ldl", "-lrt", "-lanl"][..]),
            (CC, LIBRARY, &["-shared", "-fPIC"]),
        ] {
            let compiler = need.find().map_err(io::Error::other)?;
            compile(&compiler, built.folder.path(), source, options)?;
        }
        Ok(built)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// The running program.
#[derive(Debug)]
struct Victim(Running);

/// Instructions, and their address.
type Text = (u64, Vec<u8>);

/// Lines of `maps` about text, each with the KiB there that are the program's own.
type MappedText = Vec<(String, u64)>;

/// Figures that must be the same after each cycle.
#[derive(Debug)]
struct State {
    text: Vec<Text>,
    mapped: MappedText,
    descriptors: usize,
}

impl State {
    fn of(victim: &Victim) -> io::Result<Self> {
        Ok(Self {
            text: victim.text()?,
            mapped: victim.mapped_text()?,
            descriptors: victim.count("fd")?,
        })
    }
}

/// True for a line of `maps` about the program's own instructions, or those of a library that it
/// keeps.
fn is_text(line: &str) -> bool {
    let is_ours = line.contains("fgraph-agent") || line.contains("library.out");
    line.contains("r-xp") && line.contains(" /") && !is_ours
}

fn failed<T>(what: impl Into<String>) -> Result<T, String> {
    Err(what.into())
}

impl Victim {
    fn start(built: &Built, arguments: &[&str]) -> io::Result<Self> {
        Ok(Self::start_with(built, arguments)?.0)
    }

    /// Starts it, and returns also what it prints after its first line.
    fn start_with(built: &Built, arguments: &[&str]) -> io::Result<(Self, BufReader<ChildStdout>)> {
        let mut child = Command::new(built.path("program.out"))
            .arg(built.path("library.out"))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        let victim = Self(Running(child));
        output.read_line(&mut String::new())?;
        Ok((victim, output))
    }

    fn proc(&self, name: &str) -> PathBuf {
        Path::new("/proc")
            .join(self.0.0.id().to_string())
            .join(name)
    }

    fn count(&self, name: &str) -> io::Result<usize> {
        Ok(fs::read_dir(self.proc(name))?.count())
    }

    /// Returns the program's own instructions, and those of the libraries that it keeps.
    fn text(&self) -> io::Result<Vec<Text>> {
        let memory = File::open(self.proc("mem"))?;
        let maps = fs::read_to_string(self.proc("maps"))?;
        let range = |line: &str| {
            let (start, end) = line.split(' ').next()?.split_once('-')?;
            let number = |hex| u64::from_str_radix(hex, 16).ok();
            Some((number(start)?, number(end)?))
        };
        let ranges = maps.lines().filter(|line| is_text(line)).filter_map(range);
        let read = |(start, end)| {
            let mut bytes = vec![0; (end - start) as usize];
            memory.read_exact_at(&mut bytes, start)?;
            Ok((start, bytes))
        };
        ranges.map(read).collect()
    }

    /// Returns the mappings of these instructions.
    fn mapped_text(&self) -> io::Result<MappedText> {
        let smaps = fs::read_to_string(self.proc("smaps"))?;
        let (mut mapped, mut text) = (Vec::new(), None);
        for line in smaps.lines() {
            if is_text(line) {
                text = Some(line.to_owned());
            } else if let Some(private) = line.strip_prefix("Anonymous:")
                && let Some(text) = text.take()
            {
                let private = private.trim().strip_suffix(" kB");
                mapped.push((text, private.unwrap_or_default().parse().unwrap_or(0)));
            }
        }
        Ok(mapped)
    }

    fn agents_mappings(&self) -> io::Result<usize> {
        let maps = fs::read_to_string(self.proc("maps"))?;
        Ok(maps.matches("fgraph-agent").count())
    }

    /// Records it for a moment.
    fn cycle(
        &mut self,
        fgraph: &Path,
        built: &Built,
        filter: &[&str],
        is_killed: bool,
        pauses: &mut Vec<Duration>,
    ) -> Result<(), String> {
        let recording = built.path("fgraph.data");
        let _ = fs::remove_file(&recording);
        let mut command = Command::new(fgraph);
        command
            .args(["record", "--no-source"])
            .args(filter)
            .arg("-p")
            .arg(self.0.0.id().to_string())
            .arg("-o")
            .arg(&recording)
            .args(["--time", if is_killed { "60s" } else { "10ms" }])
            .stderr(Stdio::piped());
        let mut recorder = command.spawn().map_err(|error| error.to_string())?;
        if is_killed {
            // At any moment: each of these hashes has keys of its own.
            let moment = RandomState::new().hash_one(0) % 300;
            thread::sleep(Duration::from_millis(moment));
            recorder.kill().map_err(|error| error.to_string())?;
        }
        let output = recorder.wait_with_output();
        let output = output.map_err(|error| error.to_string())?;
        let said = String::from_utf8_lossy(&output.stderr);
        if !is_killed && !output.status.success() {
            return failed(said);
        }
        let held = said.lines().filter_map(|line| {
            let (_, time) = line.split_once(" was stopped for ")?;
            let time = time.strip_suffix(" us")?.parse().ok()?;
            Some(Duration::from_micros(time))
        });
        pauses.extend(held);
        let is_begun = fs::metadata(&recording).is_ok_and(|file| file.len() > 0);
        if !is_begun {
            return Ok(());
        }
        let info = Command::new(fgraph).arg("info").arg(&recording).output();
        let info = info.map_err(|error| error.to_string())?;
        let shown = String::from_utf8_lossy(&info.stdout);
        let has_calls = shown.lines().any(|line| line.starts_with("calls "));
        // A recording without an end is shown, and marked as such.
        let is_right = match info.status.code() {
            Some(0) => true,
            Some(1) => is_killed && has_calls,
            _ => false,
        };
        match is_right {
            true => Ok(()),
            false => {
                let said = String::from_utf8_lossy(&info.stderr);
                Err(format!("the recording cannot be read: {said}"))
            }
        }
    }

    /// Waits until everything is restored; if a recorder was killed, its guard restores it.
    fn settle(&mut self, before: &State) -> Result<(), String> {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Ok(Some(status)) = self.0.0.try_wait() {
                return failed(format!("the program has ended: {status}"));
            }
            let different = self.difference(before);
            match different.map_err(|error| error.to_string())? {
                None => return Ok(()),
                Some(what) if Instant::now() >= until => return failed(what),
                Some(_) => thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    fn difference(&self, before: &State) -> io::Result<Option<String>> {
        for task in fs::read_dir(self.proc("task"))? {
            // Threads start and end.
            let status = task?.path().join("status");
            let status = fs::read_to_string(status).unwrap_or_default();
            let has = |line: &str| status.lines().any(|known| known.starts_with(line));
            if has("State:\tT") || has("State:\tt") || !(has("TracerPid:\t0") || status.is_empty())
            {
                return Ok(Some("a thread is stopped or traced".to_owned()));
            }
        }
        let memory = File::open(self.proc("mem"))?;
        for (start, bytes) in &before.text {
            let mut now = vec![0; bytes.len()];
            memory.read_exact_at(&mut now, *start)?;
            if now != *bytes {
                return Ok(Some(format!("the text at {start:#x} is another")));
            }
        }
        // The agent's own libraries have been added.
        let mapped = self.mapped_text()?;
        for text in &before.mapped {
            if !mapped.contains(text) {
                let (line, private) = text;
                let what = format!("no text is mapped like {line}, with {private} KiB private");
                return Ok(Some(what));
            }
        }
        // The thread that loads libraries has one more at times.
        let (now, descriptors) = (self.count("fd")?, before.descriptors);
        let more = now.saturating_sub(descriptors + 1);
        Ok((more > 0).then(|| format!("{now} descriptors, {descriptors} before")))
    }

    /// Returns the time from the start of the command to the first call that it shows.
    fn first_event(&self, fgraph: &Path) -> io::Result<Duration> {
        let begin = Instant::now();
        let mut live = Command::new(fgraph)
            .args(["live", "-F", "work", "-p"])
            .arg(self.0.0.id().to_string())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = BufReader::new(live.stdout.take().expect("piped"));
        let mut lines = output.lines().map_while(Result::ok);
        let found = lines.find(|line| line.contains("work"));
        let time = begin.elapsed();
        live.kill()?;
        live.wait()?;
        match found {
            Some(_) => Ok(time),
            None => Err(io::Error::other("no event has come")),
        }
    }

    /// Ends the program, and returns its failures.
    fn end(mut self) -> io::Result<Result<(), String>> {
        drop(self.0.0.stdin.take());
        Ok(match wait(&mut self.0.0, PATIENCE)? {
            End::Exited(0) => Ok(()),
            end => failed(format!("the program {end}")),
        })
    }
}
