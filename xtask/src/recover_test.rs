//! `cargo xtask recover-test`: the calls that `fgraph recover` finds in core files, against the
//! frames that gdb finds there.
//!
//! A program with four threads runs under `fgraph record --flight` until a signal ends it at a
//! random moment. In gdb's backtrace a recorded call is a frame whose caller is fgraph's
//! trampoline. The calls that `recover` names must be the innermost of these. A thread that is in
//! fgraph's own code, between the record of a call and the call itself, may have one call more.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use clap::Args;
use fgraph_chores::cargo;
use fgraph_chores::figures::{grouped, median};
use fgraph_chores::process::{Done, Running, bounded, compile, succeed};
use fgraph_needs::{CC, GDB, core_files};
use fgraph_symbols::core_file::CoreFile;
use tempfile::TempDir;

/// Options of the command line.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Number of runs, each ended by a signal
    #[arg(long, default_value_t = 100, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..))]
    kills: u32,
    /// Seed of the moments
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// The command, in place of the one of this workspace
    #[arg(long, value_name = "PATH")]
    fgraph: Option<PathBuf>,
}

/// Longest time of a program, in seconds.
const LIMIT: u32 = 120;

/// Threads of the program.
const THREADS: usize = 4;

/// fgraph's frame between a recorded call and its caller.
const TRAMPOLINE: &str = "fgraph_trampoline";

/// Part of the path of fgraph's library in the program.
const AGENT: &str = "/fgraph-agent-";

/// The size of the core files, in bytes on the disk.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    core: u64,
    /// Mapped memory of rings.
    rings: u64,
}

/// Calls of a thread, from the innermost outwards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Frames {
    calls: Vec<String>,
    /// True if the thread is in fgraph's own code.
    is_inside: bool,
    /// True if gdb does not know the code that the thread is in: instructions that fgraph has
    /// displaced, without a symbol.
    is_unknown: bool,
}

/// Calls of a thread as `recover` names them, from the innermost outwards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Known {
    calls: Vec<String>,
    /// True if the events of outer calls have made room for newer ones.
    is_cut: bool,
}

/// Numbers of threads.
#[derive(Clone, Copy, Debug, Default)]
struct Findings {
    threads: u32,
    equal: u32,
    /// In fgraph's own code, with one call more.
    entering: u32,
    unknown: u32,
    different: u32,
}

pub(crate) fn run(options: &Options) -> io::Result<bool> {
    if let Err(missing) = core_files() {
        println!("skipped: recover-test: {missing}");
        return Ok(true);
    }
    let (cc, gdb) = (CC.find(), GDB.find());
    let (cc, gdb) = (
        cc.map_err(io::Error::other)?,
        gdb.map_err(io::Error::other)?,
    );
    let fgraph = cargo::fgraph(options.fgraph.as_deref())?.canonicalize()?;
    let directory = TempDir::with_prefix("fgraph-recover-")?;
    let source = cargo::workspace().join("crates/fgraph-cli/tests/record/crashes.c");
    let source = fs::read_to_string(source)?;
    let flags = ["-g", "-pthread"];
    let program = compile(&cc, directory.path(), ("crashes.c", &source), &flags)?;
    let tester = Tester {
        fgraph: &fgraph,
        gdb: &gdb,
        program: &program,
        directory: directory.path(),
    };
    let mut findings = Findings::default();
    let (mut plain, mut recorded) = (Vec::new(), Vec::new());
    for kill in 0..options.kills {
        // From one to two hundred milliseconds after the start.
        let after = Duration::from_millis(1 + chosen(options.seed, kill) % 200);
        if kill % 10 == 0 {
            plain.push(tester.crash(&[], after)?.core);
        }
        let record = [fgraph.as_os_str(), "--no-config".as_ref()];
        let flight = ["record", "--flight", "-q", "--"].map(AsRef::as_ref);
        recorded.push(tester.crash(&[&record[..], &flight].concat(), after)?);
        tester.compare(&mut findings, kill)?;
    }
    let Findings {
        threads,
        equal,
        entering,
        unknown,
        different,
    } = findings;
    println!(
        "{} core files, {threads} threads that gdb shows",
        options.kills
    );
    println!("  {equal:>5} with the calls that gdb shows");
    println!("  {entering:>5} in fgraph's code, with the call that begins or ends there");
    println!("  {unknown:>5} in code that gdb does not know");
    println!("  {different:>5} with other calls");
    let plain = median(plain).unwrap_or(0);
    let traced = median(recorded.iter().map(|it| it.core)).unwrap_or(0);
    let rings = median(recorded.iter().map(|it| it.rings)).unwrap_or(0);
    let without = |it: &Sizes| it.core.saturating_sub(it.rings + plain);
    let rest = median(recorded.iter().map(without)).unwrap_or(0);
    println!("core files on the disk, medians:");
    println!("  {:>12} bytes of the program alone", grouped(plain));
    println!("  {:>12} bytes recorded", grouped(traced));
    println!("  {:>12} bytes of rings in use", grouped(rings));
    println!("  {:>12} bytes more: fgraph's other memory", grouped(rest));
    // gdb cannot unwind from displaced instructions: a few in a hundred threads.
    Ok(different == 0 && threads > 0 && 10 * unknown <= threads)
}

/// A number that depends on the others alone.
fn chosen(seed: u64, number: u32) -> u64 {
    let mut hasher = DefaultHasher::new();
    (seed, number).hash(&mut hasher);
    hasher.finish()
}

struct Tester<'a> {
    fgraph: &'a Path,
    gdb: &'a Path,
    program: &'a Path,
    directory: &'a Path,
}

impl Tester<'_> {
    /// Where the core file is.
    fn core(&self) -> PathBuf {
        self.directory.join("cores/core")
    }

    /// Runs the program, after these words, until a signal ends it. Returns the size of its core
    /// file.
    fn crash(&self, before: &[&std::ffi::OsStr], after: Duration) -> io::Result<Sizes> {
        let place = self.directory.join("cores");
        let _ = fs::remove_dir_all(&place);
        fs::create_dir(&place)?;
        let mut command = bounded(LIMIT, "sh");
        command.args(["-c", "ulimit -c unlimited; echo $$; exec \"$@\"", "sh"]);
        command.args(before).arg(self.program).arg("run");
        command.current_dir(&place).stdout(Stdio::piped());
        // `timeout` tells of the core file.
        command.stderr(Stdio::null());
        let mut running = Running(command.spawn()?);
        let output = running.0.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let mut lines = BufReader::new(output).lines();
        let mut line = || {
            lines
                .next()
                .unwrap_or(Err(io::ErrorKind::UnexpectedEof.into()))
        };
        let process = line()?;
        if line()? != "ready" {
            return Err(io::Error::other("the program does not start"));
        }
        thread::sleep(after);
        let mut kill = std::process::Command::new("kill");
        succeed(kill.args(["-SEGV", &process]))?;
        running.0.wait()?;
        let mut files = fs::read_dir(&place)?;
        let Some(file) = files.next() else {
            return Err(io::Error::other("no core file beside the program"));
        };
        let file = file?.path();
        let core = fs::metadata(&file)?.blocks() * 512;
        let rings = rings_in(&file)?;
        fs::rename(file, self.core())?;
        Ok(Sizes { core, rings })
    }

    /// Compares the calls of each thread.
    fn compare(&self, findings: &mut Findings, kill: u32) -> io::Result<()> {
        let mut gdb = bounded(LIMIT, self.gdb);
        gdb.args(["-nx", "-batch", "-ex", "set print frame-arguments none"]);
        gdb.args(["-ex", "set backtrace past-main on"]);
        gdb.args(["-ex", "thread apply all backtrace"]);
        let shown = succeed(gdb.arg(self.program).arg(self.core()))?;
        let frames = frames_of(&shown);
        let mut recover = bounded(LIMIT, self.fgraph);
        recover.args(["--no-config", "recover", "--no-source", "-o"]);
        recover.arg(self.directory.join("fgraph.data"));
        let recover = Done::of(recover.arg(self.core()))?.check()?;
        let calls = calls_of(&recover.stderr);
        if frames.len() != THREADS {
            eprintln!("kill {kill}: gdb shows {} threads", frames.len());
        }
        for (thread, frames) in &frames {
            findings.threads += 1;
            let known = calls.get(thread).cloned().unwrap_or_default();
            match frames.judge(&known) {
                Verdict::Equal => findings.equal += 1,
                Verdict::Entering => findings.entering += 1,
                Verdict::Unknown => findings.unknown += 1,
                Verdict::Different => {
                    findings.different += 1;
                    eprintln!("kill {kill}: thread {thread}: {known:?}, but {frames:?}");
                }
            }
        }
        Ok(())
    }
}

/// The bytes of rings in a core file.
fn rings_in(core: &Path) -> io::Result<u64> {
    let core = CoreFile::read(File::open(core)?).map_err(io::Error::other)?;
    let files = core.files().iter();
    let rings = files.filter(|file| file.path.starts_with(b"/dev/zero"));
    Ok(rings
        .map(|file| file.addresses.end - file.addresses.start)
        .sum())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Equal,
    Entering,
    Unknown,
    Different,
}

impl Frames {
    /// Compares the frames with the calls that `recover` names.
    fn judge(&self, known: &Known) -> Verdict {
        let is_start = |calls: &[String]| !calls.is_empty() && self.calls.starts_with(calls);
        match &known.calls[..] {
            _ if self.is_unknown => Verdict::Unknown,
            known if is_start(known) || known == self.calls => Verdict::Equal,
            [_, outer @ ..] if self.is_inside && (is_start(outer) || outer == self.calls) => {
                Verdict::Entering
            }
            [_] if self.is_inside && known.is_cut => Verdict::Entering,
            _ => Verdict::Different,
        }
    }
}

/// Reads the backtraces of gdb, by thread.
fn frames_of(text: &str) -> BTreeMap<u32, Frames> {
    let mut threads = BTreeMap::new();
    let mut thread = None;
    let mut lines: Vec<&str> = Vec::new();
    for line in text.lines().chain(["Thread "]) {
        if line.starts_with("Thread ") {
            if let Some(thread) = thread {
                threads.insert(thread, frames(&lines));
            }
            lines.clear();
            let id = line.split("(LWP ").nth(1);
            let id = id.and_then(|rest| rest.split(')').next());
            thread = id.and_then(|id| id.parse().ok());
        } else if line.starts_with('#') {
            lines.push(line);
        }
    }
    threads
}

/// Reads the frames of one thread.
fn frames(lines: &[&str]) -> Frames {
    let name = |line: &str| {
        let rest = line
            .split_once(' ')
            .map_or("", |(_, rest)| rest)
            .trim_start();
        let rest = rest.split_once(" in ").filter(|_| rest.starts_with("0x"));
        let whole = line
            .split_once(' ')
            .map_or("", |(_, rest)| rest)
            .trim_start();
        let rest = rest.map_or(whole, |(_, rest)| rest);
        rest.split(" (").next().unwrap_or_default().to_owned()
    };
    let names: Vec<String> = lines.iter().map(|line| name(line)).collect();
    let is_fgraph = |at: usize| names[at] == TRAMPOLINE || lines[at].contains(AGENT);
    let recorded =
        |at: &usize| names.get(at + 1).is_some_and(|next| next == TRAMPOLINE) && !is_fgraph(*at);
    Frames {
        calls: (0..names.len())
            .filter(recorded)
            .map(|at| names[at].clone())
            .collect(),
        is_inside: !names.is_empty() && is_fgraph(0),
        is_unknown: names.first().is_some_and(|name| name == "??") && !is_fgraph(0),
    }
}

/// Reads the calls that `recover` names, by thread.
fn calls_of(text: &str) -> BTreeMap<u32, Known> {
    let line = |line: &str| {
        let rest = line.strip_prefix("fgraph: thread ")?;
        let (thread, calls) = rest.split_once(" was in ")?;
        let is_cut = calls.starts_with("...");
        let calls = calls
            .split(" > ")
            .filter(|call| !["...", "no recorded call"].contains(call));
        let mut calls: Vec<String> = calls.map(str::to_owned).collect();
        calls.reverse();
        Some((thread.parse().ok()?, Known { calls, is_cut }))
    };
    text.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHOWN: &str = "\
Thread 2 (Thread 0x7fcc44dfe6c0 (LWP 12)):
#0  0x00007fcc464fca58 in ?? () from /root/.cache/fgraph/fgraph-agent-b54a2acdc3810f72.so
#1  0x00007fcc46818ea9 in fgraph_trampoline () from /root/.cache/fgraph/fgraph-agent-b5.so
#2  0x000055eb55a46184 in middle (n=1) at demo.c:7
#3  0x00007fcc46818e07 in fgraph_trampoline () from /root/.cache/fgraph/fgraph-agent-b5.so
#4  0x000055eb55a461c7 in tree (n=1) at demo.c:8
#5  0x000055eb55a46201 in work (unused=<optimized out>) at demo.c:10

Thread 1 (Thread 0x7fcc46a2fc00 (LWP 11)):
#0  leaf (n=5) at demo.c:7
#1  0x00007fcc46818e07 in fgraph_trampoline () from /root/.cache/fgraph/fgraph-agent-b5.so
#2  0x000055eb55a461c7 in tree (n=5) at demo.c:8
#3  0x00007fcc46818e07 in fgraph_trampoline () from /root/.cache/fgraph/fgraph-agent-b5.so
#4  0x000055eb55a46253 in main () at demo.c:15
";

    fn list(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn recorded_frames_have_the_trampoline_as_their_caller() {
        let threads = frames_of(SHOWN);
        let of = |id: u32| &threads[&id];
        assert_eq!(of(11).calls, list(&["leaf", "tree"]));
        assert_eq!(of(12).calls, list(&["middle"]));
        assert!(of(12).is_inside && !of(11).is_inside && !of(12).is_unknown);
    }

    #[test]
    fn the_calls_must_be_the_innermost_ones() {
        let said = "fgraph: 3 calls\nfgraph: thread 12 was in ... > tree > leaf\n";
        let known = |names: &[&str], is_cut| Known {
            calls: list(names),
            is_cut,
        };
        assert_eq!(calls_of(said)[&12], known(&["leaf", "tree"], true));
        let threads = frames_of(SHOWN);
        let judge = |id: u32, names: &[&str]| threads[&id].judge(&known(names, false));
        assert_eq!(judge(11, &["leaf", "tree"]), Verdict::Equal);
        assert_eq!(judge(11, &["leaf"]), Verdict::Equal);
        assert_eq!(judge(11, &["tree"]), Verdict::Different);
        assert_eq!(judge(11, &[]), Verdict::Different);
        assert_eq!(judge(11, &["x", "leaf"]), Verdict::Different);
        assert_eq!(judge(12, &["leaf", "middle"]), Verdict::Entering);
        assert_eq!(judge(12, &["middle"]), Verdict::Equal);
        assert_eq!(judge(12, &["leaf"]), Verdict::Different);
        assert_eq!(
            threads[&12].judge(&known(&["leaf"], true)),
            Verdict::Entering
        );
        assert_eq!(judge(12, &["x", "leaf", "middle"]), Verdict::Different);
    }
}
