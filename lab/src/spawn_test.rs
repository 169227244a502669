//! `cargo xtask spawn-test`: programs start processes while the text of the C library changes.
//!
//! A child of `posix_spawn` or `vfork` runs the code of its parent, often with all signals blocked,
//! and a trap kills it. Two kinds of programs start children and look how each one ends:
//!
//! - This program watches all functions of the C library and none of them, in turns without a
//!   pause, while two of its threads call `posix_spawn`.
//! - Shells, interpreters and small programs. Each starts processes in its own way. The
//!   command attaches to each with all libraries and detaches, in turns until the program ends.
//!
//! # Safety
//!
//! The unsafe code registers a user whose callbacks do nothing.

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use fgraph::{Entry, FgraphOps};
use fgraph_chores::cargo;
use fgraph_chores::process::{Running, attach, compile};
use fgraph_needs::{CC, DASH, JAVA, MAKE, Missing, NODE, Need, PYTHON};
use tempfile::TempDir;

/// The options of the command line.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Children that each program starts
    #[arg(long, default_value_t = 2000, value_name = "N")]
    children: u32,
    /// The longest time that each program starts children
    #[arg(long, default_value_t = 120, value_name = "S")]
    seconds: u32,
    /// Run only these programs
    #[arg(long, value_delimiter = ',', value_name = "NAME,...")]
    programs: Vec<String>,
    /// The command `fgraph`; without it, it is built
    #[arg(long, value_name = "PATH")]
    fgraph: Option<PathBuf>,
    /// Be the program that switches its own C library on and off
    #[arg(long, hide = true)]
    inside: bool,
}

/// The program that watches itself.
const INSIDE: &str = "inside";
/// Beyond the time that a program starts children, it may take so long.
const MARGIN: Duration = Duration::from_secs(60);

/// A program that starts processes.
#[derive(Debug)]
struct Program {
    name: &'static str,
    need: Need,
    /// Arguments before the number of children and the seconds.
    arguments: &'static [&'static str],
    /// Name and text of its source, the last argument.
    source: (&'static str, &'static str),
}

const fn program(
    name: &'static str,
    need: Need,
    arguments: &'static [&'static str],
    source: (&'static str, &'static str),
) -> Program {
    Program {
        name,
        need,
        arguments,
        source,
    }
}

const C: (&str, &str) = ("program.c", include_str!("spawn_test/program.c"));
const SHELL: (&str, &str) = ("program.sh", include_str!("spawn_test/program.sh"));
const SNAKE: (&str, &str) = ("program.py", include_str!("spawn_test/program.py"));
const CLASS: (&str, &str) = ("Program.java", include_str!("spawn_test/Program.java"));
const SCRIPT: (&str, &str) = ("program.js", include_str!("spawn_test/program.js"));
const RULES: (&str, &str) = ("Makefile", include_str!("spawn_test/Makefile"));

const PROGRAMS: &[Program] = &[
    program("posix_spawn", CC, &["posix_spawn"], C),
    program("vfork", CC, &["vfork"], C),
    program("system", CC, &["system"], C),
    program("popen", CC, &["popen"], C),
    program("dash", DASH, &[], SHELL),
    program("python", PYTHON, &[], SNAKE),
    program("java", JAVA, &[], CLASS),
    program(
        "java-vfork",
        JAVA,
        &["-Djdk.lang.Process.launchMechanism=VFORK"],
        CLASS,
    ),
    program("node", NODE, &[], SCRIPT),
    program("make", MAKE, &["-s", "-k", "-j2", "-f"], RULES),
];

/// Result of a program and its children.
#[derive(Debug, Default)]
struct Outcome {
    children: u64,
    /// Children that a signal killed, or whose status was wrong.
    bad: u64,
    /// Times that the C library was switched on and off.
    switches: u64,
    /// Attaches that were refused while the program was there, and why the last one was.
    refused: u64,
    refusal: Option<String>,
    /// A fault of the program itself.
    failure: Option<String>,
}

impl Outcome {
    fn is_good(&self) -> bool {
        self.bad == 0 && self.failure.is_none() && self.children > 0 && self.switches > 0
    }
}

/// Starts processes while text changes, and says how it went.
pub(crate) fn run(options: &Options) -> io::Result<bool> {
    if options.inside {
        return inside(options);
    }
    let is_chosen = |name: &str| {
        let mut chosen = options.programs.iter();
        options.programs.is_empty() || chosen.any(|chosen| chosen == name)
    };
    let fgraph = cargo::fgraph(options.fgraph.as_deref())?;
    let folder = tempfile::tempdir()?;
    let mut failed = 0;
    let mut report = |name: &str, outcome: Outcome| {
        let Outcome { children, bad, .. } = outcome;
        let (switches, refused) = (outcome.switches, outcome.refused);
        println!("{name:12} children {children} bad {bad} switches {switches} refused {refused}");
        if let Some(refusal) = &outcome.refusal {
            println!("refused: {name}: {refusal}");
        }
        if let Some(failure) = &outcome.failure {
            println!("failure: {name}: {failure}");
        }
        failed += u32::from(!outcome.is_good());
    };
    if is_chosen(INSIDE) {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["spawn-test", "--inside", "--children"]);
        command.arg(options.children.to_string());
        command.args(["--seconds", &options.seconds.to_string()]);
        report(INSIDE, observe(command, &folder, options, |_| Ok(()))?);
    }
    let mut skipped = Vec::new();
    for program in PROGRAMS.iter().filter(|program| is_chosen(program.name)) {
        let command = match program.command(&folder, options)? {
            Ok(command) => command,
            Err(missing) => {
                skipped.push(format!("skipped: {}: {missing}", program.name));
                continue;
            }
        };
        let recording = folder.path().join("fgraph.data");
        let attach = |target: u32| {
            let _ = fs::remove_file(&recording);
            attach(&fgraph, target, &["--libs", "--time", "10ms"], &recording)
        };
        report(program.name, observe(command, &folder, options, attach)?);
    }
    skipped.iter().for_each(|line| println!("{line}"));
    println!("failures {failed}");
    Ok(failed == 0)
}

impl Program {
    /// Returns the command that runs it, or which program it needs.
    fn command(&self, folder: &TempDir, options: &Options) -> io::Result<Result<Command, Missing>> {
        let tool = match self.need.find() {
            Ok(tool) => tool,
            Err(missing) => return Ok(Err(missing)),
        };
        let source = folder.path().join(self.source.0);
        fs::write(&source, self.source.1)?;
        let mut command = match self.source == C {
            true => Command::new(compile(&tool, folder.path(), C, &["-pthread"])?),
            false => Command::new(tool),
        };
        command.args(self.arguments);
        let [children, seconds] = [options.children, options.seconds].map(|it| it.to_string());
        match self.source {
            C => command.args([children, seconds]),
            RULES => command.arg(source).arg(format!("CHILDREN={children}")),
            _ => command.arg(source).args([children, seconds]),
        };
        Ok(Ok(command))
    }
}

/// Runs a program until it ends, and calls `switch` with its number all the time. `switch` says
/// why the program's text was not changed.
fn observe(
    mut command: Command,
    folder: &TempDir,
    options: &Options,
    mut switch: impl FnMut(u32) -> io::Result<()>,
) -> io::Result<Outcome> {
    let errors = folder.path().join("errors");
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    // A group of its own, so that nothing of it stays.
    command.stderr(File::create(&errors)?).process_group(0);
    let mut running = Running(command.spawn()?);
    let mut output = BufReader::new(running.0.stdout.take().expect("piped"));
    let mut first = String::new();
    output.read_line(&mut first)?;
    let reader = thread::spawn(move || {
        let mut rest = String::new();
        output.read_to_string(&mut rest).map(|_| rest)
    });
    let mut outcome = Outcome::default();
    let until = Instant::now() + Duration::from_secs(options.seconds.into()) + MARGIN;
    let status = loop {
        if let Some(status) = running.0.try_wait()? {
            break Some(status);
        }
        if Instant::now() >= until {
            break None;
        }
        match switch(running.0.id()) {
            Ok(()) => outcome.switches += 1,
            // It may have ended meanwhile.
            Err(_) if running.0.try_wait()?.is_some() => {}
            Err(error) => {
                outcome.refused += 1;
                outcome.refusal = Some(error.to_string());
            }
        }
        thread::sleep(Duration::from_millis(5));
    };
    drop(running);
    let rest = reader.join().expect("reading does not panic")?;
    let said = fs::read_to_string(&errors)?;
    let mut lines = rest.lines().filter_map(|line| line.strip_prefix("ended "));
    let numbers = lines.next().unwrap_or_default().split(' ');
    let numbers: Vec<u64> = numbers.filter_map(|number| number.parse().ok()).collect();
    match (status, &numbers[..]) {
        (Some(status), [children, bad, rest @ ..]) if status.success() => {
            (outcome.children, outcome.bad) = (*children, *bad);
            outcome.switches = rest.first().copied().unwrap_or(outcome.switches);
            if *bad > 0 {
                outcome.failure = said.lines().next().map(str::to_owned);
            } else if outcome.switches == 0 {
                outcome.failure = Some("was not attached to".to_owned());
            }
        }
        (Some(status), _) => {
            let last = said.lines().next_back().unwrap_or_default();
            outcome.failure = Some(format!("ended with {status}: {last}"));
        }
        (None, _) => outcome.failure = Some("does not end".to_owned()),
    }
    Ok(outcome)
}

/// Asks for each return, and does nothing.
#[derive(Debug)]
struct Nothing;

impl FgraphOps for Nothing {
    type Data = ();

    fn entry(&self, _: &mut Entry<'_, ()>) -> Option<()> {
        Some(())
    }
}

/// Switches the C library of this process on and off while two threads start processes.
fn inside(options: &Options) -> io::Result<bool> {
    const C_LIBRARY: &str = ":mod:libc.so*";
    const NOTHING: &str = "nothing_has_this_name";
    println!("begun");
    let left = AtomicI64::new(options.children.into());
    let [children, bad] = [const { AtomicU64::new(0) }; 2];
    let end = Instant::now() + Duration::from_secs(options.seconds.into());
    let starts = || {
        // Relaxed: plain counts.
        while left.fetch_sub(1, Ordering::Relaxed) > 0 && Instant::now() < end {
            // The standard library uses `posix_spawn` here.
            let status = Command::new("/bin/true").status();
            if !status.as_ref().is_ok_and(|status| status.success()) {
                eprintln!("a child has ended with {status:?}");
                bad.fetch_add(1, Ordering::Relaxed);
            }
            children.fetch_add(1, Ordering::Relaxed);
        }
    };
    // SAFETY: the callbacks do nothing, in any thread and process.
    let user = unsafe {
        fgraph::register_with(Nothing, NOTHING, &fgraph::Options::new().allow_no_match())
    };
    let user = user.map_err(|failed| io::Error::other(failed.error))?;
    let mut switches = 0;
    thread::scope(|scope| {
        let starting = [(); 2].map(|()| scope.spawn(starts));
        while starting.iter().any(|thread| !thread.is_finished()) {
            for filter in [C_LIBRARY, NOTHING] {
                // SAFETY: as for `register`.
                unsafe { user.set_filter(filter) }.map_err(io::Error::other)?;
            }
            switches += 1;
        }
        io::Result::Ok(())
    })?;
    let [children, bad] = [children, bad].map(AtomicU64::into_inner);
    println!("ended {children} {bad} {switches}");
    Ok(true)
}
