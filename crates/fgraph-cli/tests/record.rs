//! `fgraph record` on real programs, which must behave as without it.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::busy::Program;
use crate::support::compiled::FGRAPH;
use crate::support::copy_program;
use fgraph_needs::{CC, CLANG, GCC, GXX, PYTHON, RUSTC, SQLITE3, needs, skip};
use fgraph_trace::event::What;
use fgraph_trace::names::DescriptionKind;
use fgraph_trace::{Recording, Source};
use tempfile::TempDir;

/// Contents of a recording.
#[derive(Debug, Default)]
struct Found {
    /// Entries and ends of functions.
    calls: BTreeMap<String, (usize, usize)>,
    /// Names of processes.
    processes: Vec<String>,
    /// The last name of each thread.
    threads: BTreeMap<u64, String>,
    lost: u64,
}

impl Found {
    fn of(path: &Path) -> Self {
        let mut recording = Recording::open(path).unwrap();
        let mut found = Self::default();
        while let Some(event) = recording.next().unwrap() {
            let (function, is_entry) = match event.what {
                What::Entry { function, .. } => (function, true),
                What::Return { function, .. } | What::Unwound { function, .. } => (function, false),
                What::Lost { events, .. } => {
                    found.lost += events;
                    continue;
                }
                _ => continue,
            };
            let process = event.process;
            let name = recording.names().function(process, function);
            let name = name.map_or_else(|| "?".to_owned(), |it| it.name.clone());
            let count = found.calls.entry(name).or_default();
            match is_entry {
                true => count.0 += 1,
                false => count.1 += 1,
            }
        }
        for description in recording.names().descriptions() {
            let name = description.texts[0].clone();
            match description.kind {
                DescriptionKind::Process => found.processes.push(name),
                DescriptionKind::Thread => _ = found.threads.insert(description.fields[1], name),
                _ => {}
            }
        }
        found
    }

    /// Returns the number of entries of a function.
    fn entries(&self, name: &str) -> usize {
        let of = |(known, count): (&String, &(usize, usize))| {
            let is_it = known == name || known.starts_with(&format!("{name}("));
            is_it.then_some(count.0)
        };
        self.calls.iter().filter_map(of).sum()
    }
}

/// A directory with programs.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Builds a program of `tests/record`.
    fn build(&self, compiler: &Path, source: &str, flags: &[&str]) -> PathBuf {
        let program = self.path("program");
        let source = Path::new("tests/record").join(source);
        let mut builder = Command::new(compiler);
        builder.args(["-g", "-O1", "-o"]).arg(&program).arg(source);
        assert!(builder.args(flags).status().unwrap().success());
        program
    }

    fn recording(&self) -> PathBuf {
        self.path("fgraph.data")
    }

    /// The command that records.
    fn recorder(&self, options: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        let command_options = command.args(["record", "--quiet", "-o"]);
        command_options
            .arg(self.recording())
            .args(options)
            .arg("--");
        command
    }

    /// Runs a command without and with recording: it must do the same. Says what was found.
    fn same(&self, options: &[&str], command: &[&OsStr]) -> Found {
        let plain = Command::new(command[0]).args(&command[1..]).output();
        let plain = plain.unwrap();
        let recorded = self.recorder(options).args(command).output().unwrap();
        let text = |output: &Output| {
            let [out, err] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
            format!("{out}\n{err}")
        };
        assert_eq!(text(&recorded), text(&plain));
        let code = |output: &Output| {
            let signal = output.status.signal();
            output.status.code().or_else(|| Some(128 + signal?))
        };
        assert_eq!(code(&recorded), code(&plain));
        Found::of(&self.recording())
    }

    /// Returns the exit code and the message for a program that the command refuses.
    fn refused(&self, program: &Path) -> (i32, String) {
        let output = self.recorder(&[]).arg(program).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(!self.recording().exists(), "{said}");
        (output.status.code().unwrap(), said)
    }
}

fn words<'a>(words: &'a [&'a str]) -> Vec<&'a OsStr> {
    words.iter().map(OsStr::new).collect()
}

#[test]
fn a_program_finds_nothing_but_the_auxiliary_vector_behind_its_environment() {
    let place = Place::new();
    let program = place.build(&needs!(CC.find()), "auxiliary.c", &[]);
    let output = place.recorder(&[]).arg(program).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "good\n");
}

#[test]
fn a_program_finds_the_environment_as_it_was() {
    let place = Place::new();
    let run = |mut command: Command| {
        command
            .env_clear()
            .env("Z", "1")
            .env("A", "2")
            .env("PATH", "/usr/bin:/bin");
        let output = command.output().unwrap();
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{output:?}"
        );
        output.stdout
    };
    let recorded = || {
        let mut recorder = place.recorder(&[]);
        recorder.arg("env");
        recorder
    };
    assert_eq!(run(recorded()), run(Command::new("env")));
    // With options of AddressSanitizer, which the command adds to.
    for options in ["", "verify_asan_link_order=0", "a=1:b=2"] {
        let run_with = |mut command: Command| {
            let output = command.env("ASAN_OPTIONS", options).output().unwrap();
            assert!(output.status.success() && output.stderr.is_empty());
            output.stdout
        };
        let shell = |mut command: Command| {
            command.args(["sh", "-c", "env; exec env"]);
            run_with(command)
        };
        let only_ours = |text: Vec<u8>| -> Vec<String> {
            let text = String::from_utf8(text).unwrap();
            let lines = text.lines().filter(|line| line.starts_with("ASAN"));
            lines.map(str::to_owned).collect()
        };
        let found = only_ours(shell(place.recorder(&[])));
        assert_eq!(found, vec![format!("ASAN_OPTIONS={options}"); 2]);
    }
    // One that a shell executes, with a list of libraries of its own.
    let mut other = place.recorder(&[]);
    other.args(["sh", "-c", "LD_PRELOAD=libc.so.6 exec env"]);
    let text = String::from_utf8(run(other)).unwrap();
    assert!(
        text.lines().any(|line| line == "LD_PRELOAD=libc.so.6"),
        "{text}"
    );
    assert!(!text.contains("FGRAPH"), "{text}");
    let names = Found::of(&place.recording()).processes;
    assert_eq!(names, ["sh", "env"]);
    // It is one process to those who look.
    let mut dump = Command::new(env!("CARGO_BIN_EXE_fgraph"));
    let dumped = dump.arg("dump").arg(place.recording()).output().unwrap();
    let dumped = String::from_utf8(dumped.stdout).unwrap();
    let of = |line: &str| line.split_whitespace().nth(1).map(str::to_owned);
    let all: HashSet<_> = dumped.lines().filter_map(of).collect();
    assert_eq!(all.len(), 1, "{all:?}");
}

#[test]
fn executed_programs_are_followed_however_they_are_executed() {
    let place = Place::new();
    let program = place.build(&needs!(CC.find()), "spawner.c", &[]);
    let found = place.same(&[], &[program.as_os_str()]);
    assert_eq!(found.entries("leaf"), 15);
    let found = place.same(&["--no-follow"], &[program.as_os_str()]);
    assert_eq!((found.entries("leaf"), found.entries("main")), (0, 1));
    assert_eq!(found.processes.len(), 1);
}

#[test]
fn children_are_followed_where_the_parent_has_no_function_of_the_filter() {
    let place = Place::new();
    let program = place.build(&needs!(CC.find()), "starts.c", &["-pthread"]);
    for stack in ["main", "thread", "coroutine", "handler"] {
        for way in ["spawn", "vfork", "fork", "_Fork", "clone"] {
            let command = [program.as_os_str(), way.as_ref(), stack.as_ref()];
            let found = place.same(&["-F", "leaf"], &command);
            assert_eq!(found.entries("leaf"), 1, "{way} in {stack}");
        }
    }
    // The shell starts programs by `vfork`.
    let command = format!("'{}' child; true", program.display());
    let found = place.same(&["-F", "leaf"], &words(&["sh", "-c", &command]));
    assert_eq!(found.entries("leaf"), 1);
}

#[test]
fn programs_that_shut_themselves_in_are_recorded_to_the_end() {
    let place = Place::new();
    let program = place.build(&needs!(CC.find()), "hostile.c", &[]);
    let root = place.0.path().as_os_str();
    for what in ["", "close", "chroot", "user", "seccomp", "daemon", "kill"] {
        let found = place.same(&[], &[program.as_os_str(), what.as_ref(), root]);
        // Not everyone may do everything.
        if found.entries("leaf") == 0 && ["chroot", "user"].contains(&what) {
            skip!("no right to do this: {what}");
            continue;
        }
        assert_eq!(found.entries("leaf"), 10, "{what}");
        assert_eq!(found.lost, 0, "{what}");
    }
}

#[test]
fn programs_with_address_sanitizer_are_recorded() {
    let place = Place::new();
    for (need, is_clang) in [(GCC, false), (CLANG, true)] {
        let compiler = needs!(need.find());
        let mut flags = vec!["-fsanitize=address".to_owned()];
        if is_clang {
            let mut asked = Command::new(&compiler);
            let asked = asked.arg("-print-runtime-dir").output().unwrap();
            let folder = String::from_utf8(asked.stdout).unwrap();
            flags.extend([
                "-shared-libasan".to_owned(),
                format!("-Wl,-rpath,{}", folder.trim()),
            ]);
        }
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let mut linker = Command::new(&compiler);
        linker
            .args(["-x", "c", "-o"])
            .arg(place.path("linked"))
            .args(&flags)
            .arg("-");
        let mut linker = linker
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        linker
            .stdin
            .take()
            .unwrap()
            .write_all(b"int main(void) { return 0; }")
            .unwrap();
        if !linker.wait().unwrap().success() {
            skip!("{} has no library of AddressSanitizer", compiler.display());
            continue;
        }
        let program = place.build(&compiler, "hostile.c", &flags);
        let found = place.same(&[], &[program.as_os_str()]);
        assert_eq!(found.entries("leaf"), 10, "{flags:?}");
        // As a child, with options of its own or without.
        for options in ["", "ASAN_OPTIONS=detect_leaks=0 ", "unset ASAN_OPTIONS; "] {
            let script = format!("{options}{}; echo $?", program.display());
            let found = place.same(&[], &words(&["sh", "-c", &script]));
            assert_eq!(found.entries("leaf"), 10, "{options}");
        }
    }
}

#[test]
fn a_program_goes_on_when_its_recorder_is_killed() {
    let place = Place::new();
    let program = place.build(&needs!(CC.find()), "hostile.c", &[]);
    let mut recorder = place.recorder(&[]);
    let recorder = recorder.arg(&program).arg("wait");
    let pipes = recorder.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = pipes.spawn().unwrap();
    // Until a block of events is there.
    let begin = Instant::now();
    while fs::metadata(place.recording()).map_or(0, |file| file.len()) < 4096 {
        assert!(
            begin.elapsed() < Duration::from_secs(100),
            "nothing is written"
        );
        thread::sleep(Duration::from_millis(10));
    }
    child.kill().unwrap();
    child.stdin.take().unwrap().write_all(b"x").unwrap();
    let mut said = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    child.wait().unwrap();
    assert_eq!(said, "ten calls\n200010\n");
    assert!(Found::of(&place.recording()).entries("leaf") > 1000);
}

#[test]
fn only_selected_calls_are_recorded() {
    let place = Place::new();
    let program = place.build(&needs!(CC.find()), "hostile.c", &[]);
    let command = [program.as_os_str()];
    let found = place.same(&["-F", "leaf"], &command);
    assert_eq!(found.calls, BTreeMap::from([("leaf".to_owned(), (10, 10))]));
    let found = place.same(&["-N", "leaf"], &command);
    assert_eq!((found.entries("leaf"), found.entries("main")), (0, 1));
    let found = place.same(&["--graph-function", "leaf"], &command);
    assert_eq!((found.entries("leaf"), found.entries("main")), (10, 0));
    let found = place.same(&["--threshold", "1ns"], &command);
    assert_eq!((found.entries("leaf"), found.entries("main")), (10, 1));
    let found = place.same(&["-t", "60min"], &command);
    assert!(found.calls.is_empty());
    let found = place.same(&["--depth", "1"], &command);
    assert_eq!((found.entries("leaf"), found.entries("main")), (0, 1));
    assert_eq!(found.entries("write"), 0);
    let found = place.same(&["--libs", "--args", "--retval"], &command);
    assert_eq!((found.entries("leaf"), found.entries("write")), (10, 1));
    let found = place.same(&["--ring", "overwrite"], &command);
    assert_eq!(found.entries("leaf"), 10);
    let mut recorder = place.recorder(&["-F", "a:mod:"]);
    assert_eq!(recorder.arg(&program).status().unwrap().code(), Some(2));
}

#[test]
fn a_function_that_is_called_too_often_is_switched_off_and_named() {
    let place = Place::new();
    let program = place.build(&needs!(CC.find()), "hostile.c", &[]);
    let command = [program.as_os_str(), "seccomp".as_ref()];
    let found = place.same(&["--max-rate", "1"], &command);
    assert_eq!(found.calls["leaf"], (1, 1));
    assert_eq!(found.entries("main"), 1);
    for options in [&["-t", "1ns"][..], &["--args"], &["--ring", "overwrite"]] {
        let options = [options, &["--max-rate", "1"]].concat();
        let found = place.same(&options, &command);
        assert_eq!((found.entries("leaf"), found.entries("main")), (1, 1));
    }
    let found = place.same(&["--max-rate", "10"], &command);
    assert_eq!(found.entries("leaf"), 10);

    let record = |options: &[&str]| {
        let mut recorder = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        recorder.args(["record", "--max-rate", "1", "-o"]);
        let recorder = recorder.arg(place.recording()).args(options).arg("--");
        let output = recorder.arg(&program).output().unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    let line = "fgraph: leaf [program] was not recorded any longer: more than 1 calls in a second";
    for options in [&[][..], &["--ring", "overwrite"]] {
        let said = record(options);
        let lines = said.lines().filter(|said| said.contains("not recorded"));
        assert_eq!(lines.collect::<Vec<_>>(), [line], "{said}");
        let mut info = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        let info = info.arg("info").arg(place.recording()).output().unwrap();
        let info = String::from_utf8(info.stdout).unwrap();
        let off: Vec<&str> = info
            .lines()
            .filter(|line| line.starts_with("off "))
            .collect();
        let [off] = off[..] else { panic!("{info}") };
        assert!(
            off.starts_with("off        leaf [program]: from "),
            "{info}"
        );
    }
}

#[test]
fn calls_of_a_forked_child_are_counted_apart_from_its_parents() {
    let place = Place::new();
    let program = place.build(&needs!(CC.find()), "hostile.c", &[]);
    let command = [program.as_os_str(), "fork".as_ref()];
    let found = place.same(&["--max-rate", "10"], &command);
    assert_eq!(found.entries("leaf"), 20);
}

#[test]
fn functions_of_a_daemon_have_the_names_that_its_ancestor_has_described() {
    let place = Place::new();
    let program = place.build(&needs!(CC.find()), "daemon.c", &[]);
    let found = place.same(&["-F", "leaf"], &[program.as_os_str()]);
    let calls = BTreeMap::from([("leaf".to_owned(), (3, 3))]);
    assert_eq!((found.calls, found.processes.len()), (calls, 2));
}

#[test]
fn the_number_of_calls_is_that_of_the_recording_though_a_child_goes_on() {
    let place = Place::new();
    let program = place.build(&needs!(CC.find()), "outlives.c", &[]);
    let mut recorder = Command::new(env!("CARGO_BIN_EXE_fgraph"));
    let recorder = recorder.args(["record", "-o"]).arg(place.recording());
    let output = recorder.arg("--").arg(&program).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    let number = said
        .strip_prefix("fgraph: ")
        .and_then(|it| it.split_once(" calls"));
    let number = number.unwrap_or_else(|| panic!("{said}")).0;
    let number: usize = number.replace(',', "").parse().unwrap();
    let found = Found::of(&place.recording());
    assert!(found.entries("work") > 1000);
    let entries: usize = found.calls.values().map(|count| count.0).sum();
    assert_eq!(number, entries, "{said}");
}

/// A program that runs until it is told to end, with its recorder.
struct Running {
    recorder: Child,
    lines: BufReader<ChildStdout>,
    place: Place,
}

impl Running {
    /// Starts `waits.c`, with so many arguments.
    fn start(cc: &Path, options: &[&str], arguments: &[&str]) -> Self {
        let place = Place::new();
        let program = place.build(cc, "waits.c", &[]);
        let mut recorder = place.recorder(options);
        recorder.arg(&program).args(arguments).process_group(0);
        // Under nohup it would ignore the signal.
        // SAFETY: `signal` is async-signal-safe.
        unsafe {
            recorder.pre_exec(|| {
                libc::signal(libc::SIGHUP, libc::SIG_DFL);
                Ok(())
            });
        }
        let pipes = recorder.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut recorder = pipes.spawn().unwrap();
        let lines = BufReader::new(recorder.stdout.take().unwrap());
        let mut this = Self {
            recorder,
            lines,
            place,
        };
        assert_eq!(this.line(), "ready\n");
        this
    }

    /// Waits until the recording is as it should be.
    fn wait(&self, is_so: impl Fn(&[u8]) -> bool) {
        let begin = Instant::now();
        while !is_so(&fs::read(self.place.recording()).unwrap_or_default()) {
            assert!(begin.elapsed() < Duration::from_secs(60), "it is not so");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Sends SIGINT to all processes of the terminal, as Ctrl-C does.
    fn interrupt(&self) {
        // SAFETY: a signal to the processes that we have started.
        let sent = unsafe { libc::killpg(self.recorder.id() as i32, libc::SIGINT) };
        assert_eq!(sent, 0);
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.lines.read_line(&mut line).unwrap() > 0);
        line
    }

    /// Ends the program.
    fn end(&mut self) {
        let input = self.recorder.stdin.as_mut().unwrap();
        input.write_all(b"x").unwrap();
        while self.line() != "the end\n" {}
    }

    /// Waits for the recorder, and returns its status and the recording's contents.
    fn ended(mut self) -> (ExitStatus, Found) {
        let status = self.recorder.wait().unwrap();
        (status, Found::of(&self.place.recording()))
    }
}

fn has_begun(recording: &[u8]) -> bool {
    recording.len() > 10_000
}

/// Returns true if the recording has the last block, which marks it as whole.
fn is_whole(recording: &[u8]) -> bool {
    let end = recording.last_chunk::<28>();
    end.is_some_and(|end| end.starts_with(b"FGBK\x06"))
}

#[test]
fn an_interrupt_ends_the_program_and_keeps_the_recording() {
    let running = Running::start(&needs!(CC.find()), &[], &["dies"]);
    running.wait(has_begun);
    running.interrupt();
    let (status, found) = running.ended();
    assert_eq!(status.signal(), Some(libc::SIGINT));
    assert!(found.entries("leaf") > 1000);
}

#[test]
fn signals_to_the_recorder_alone_are_passed_on_to_the_program() {
    let cc = needs!(CC.find());
    for signal in [libc::SIGTERM, libc::SIGHUP] {
        let mut running = Running::start(&cc, &[], &["dies"]);
        running.wait(has_begun);
        // Its end would have the program end by itself.
        let _input = running.recorder.stdin.take();
        // SAFETY: a signal to a process that we have started.
        let sent = unsafe { libc::kill(running.recorder.id() as i32, signal) };
        assert_eq!(sent, 0);
        let (status, found) = running.ended();
        assert_eq!(status.signal(), Some(signal), "{status:?}");
        assert!(found.entries("leaf") > 1000);
    }
}

#[test]
fn a_recorder_ends_by_the_signal_that_has_ended_the_program() {
    let place = Place::new();
    let program = place.build(&needs!(CC.find()), "hostile.c", &[]);
    for (what, signal) in [("kill", libc::SIGKILL), ("abort", libc::SIGABRT)] {
        for options in [&[][..], &["--ring", "overwrite"]] {
            let mut recorder = place.recorder(options);
            let status = recorder.arg(&program).arg(what).output().unwrap().status;
            assert_eq!(status.signal(), Some(signal), "{what} {options:?}");
            // The core file, if any, is the program's.
            assert!(what == "kill" || !status.core_dumped());
            assert_eq!(Found::of(&place.recording()).entries("leaf"), 10);
        }
    }
}

#[test]
fn programs_executed_after_the_recording_are_unchanged() {
    let place = Place::new();
    let mut recorder = place.recorder(&["--time", "50ms"]);
    let script = "read it; cat /proc/self/maps /proc/self/environ";
    recorder.args(["sh", "-c", script]);
    let pipes = recorder.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut recorder = pipes.spawn().unwrap();
    let begin = Instant::now();
    while !is_whole(&fs::read(place.recording()).unwrap_or_default()) {
        assert!(begin.elapsed() < Duration::from_secs(60));
        thread::sleep(Duration::from_millis(10));
    }
    recorder.stdin.take().unwrap().write_all(b"it\n").unwrap();
    let output = recorder.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(
        shown.contains("[stack]") && shown.contains("PATH="),
        "{shown}"
    );
    assert!(!shown.contains("fgraph-agent"), "{shown}");
    assert!(!shown.contains("FGRAPH_AGENT"), "{shown}");
}

#[test]
fn reasons_are_reported_where_nothing_can_be_traced() {
    let place = Place::new();
    let program = place.build(&needs!(CC.find()), "short.c", &[]);
    let record = |options: &[&str]| {
        let mut recorder = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        recorder
            .arg("record")
            .args(options)
            .arg("-o")
            .arg(place.recording());
        recorder.arg("--").arg(&program).output().unwrap()
    };
    let why = "is not recorded: the one function that is selected cannot be traced: \
               shorter than a jump, and no padding behind\n";
    for options in [&["-F", "tiny"][..], &["-F", "tiny", "--ring", "overwrite"]] {
        let output = record(options);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.stdout, b"tiny\n");
        assert_eq!(output.status.code(), Some(126), "{said}");
        assert!(
            said.split_inclusive('\n').any(|line| line.ends_with(why)),
            "{said}"
        );
        assert!(
            !said.contains("none of the selected functions was called"),
            "{said}"
        );
    }
    let output = record(&["-F", "tiny"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.lines().next().unwrap().contains("is not recorded"),
        "{said}"
    );
    let mut info = Command::new(env!("CARGO_BIN_EXE_fgraph"));
    let info = info.arg("info").arg(place.recording()).output().unwrap();
    let info = String::from_utf8(info.stdout).unwrap();
    assert!(
        info.lines().any(|line| line.starts_with("refused ")),
        "{info}"
    );
    // Nothing is wrong where nothing was called.
    let output = record(&["-F", "unused"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(
        said.contains("none of the selected functions was called"),
        "{said}"
    );
}

#[test]
fn missing_memory_for_stubs_is_reported_where_libraries_can_be_traced() {
    let place = Place::new();
    let program = place.build(&needs!(CC.find()), "full.c", &[]);
    let record = |options: &[&str]| {
        let mut recorder = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        let recorder = recorder.args(["record", "-o"]).arg(place.recording());
        let output = recorder.args(options).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{said}");
        said
    };
    let mut running = Command::new(&program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(running.stdout.take().unwrap());
    output.read_line(&mut String::new()).unwrap();
    let pid = running.id().to_string();
    let running_is = ["--time", "50ms", "-p", &pid];
    let few = ["-F", "work", "-F", "getppid"];
    let (why, one) = (
        ": no free memory within 2 GiB for its stub",
        "recorded in part: its one function that is selected cannot be traced",
    );
    let all = "is recorded in part: none of its ";
    for said in [
        record(&["--libs", "--", program.to_str().unwrap()]),
        record(&[&["--libs"][..], &running_is].concat()),
    ] {
        assert!(said.contains(all) && said.contains(why), "{said}");
    }
    let said = record(&[&few[..], &running_is].concat());
    let calls = "none of the functions that can be traced was called\n";
    let expected = format!("{one}{why}\n");
    assert!(said.contains(&expected) && said.contains(calls), "{said}");
    drop(running.stdin.take());
    assert!(running.wait().unwrap().success());
}

#[test]
fn a_second_interrupt_ends_the_recording_of_a_program_that_goes_on() {
    let mut running = Running::start(&needs!(CC.find()), &[], &[]);
    running.wait(has_begun);
    running.interrupt();
    assert_eq!(running.line(), "interrupted\n");
    // Two that come at once are one to the recorder.
    let interrupt = |recording: &[u8]| {
        is_whole(recording) || {
            running.interrupt();
            false
        }
    };
    running.wait(interrupt);
    running.end();
    let (status, found) = running.ended();
    assert_eq!(status.code(), Some(130));
    assert!(found.entries("leaf") > 1000);
}

#[test]
fn a_recording_ends_at_its_size_or_time_and_the_program_goes_on() {
    let cc = needs!(CC.find());
    for limit in [["--max-size", "20K"], ["--time", "50ms"]] {
        let mut running = Running::start(&cc, &limit, &[]);
        running.wait(is_whole);
        running.end();
        let (status, found) = running.ended();
        // The program's own.
        assert_eq!(status.code(), Some(7), "{limit:?}");
        // It may not have begun yet when the time is over.
        assert!(found.entries("leaf") > 0 || limit[0] == "--time");
    }
}

#[test]
fn waits_for_room_in_a_ring_are_reported_and_lose_nothing() {
    let place = Place::new();
    let text = "void f(void) { __asm__ volatile(\"nop; nop; nop; nop; nop; nop\"); }\n\
                int main(void) { for (int n = 0; n < 100000; n++) f(); return 0; }\n";
    let source = place.path("calls.c");
    fs::write(&source, text).unwrap();
    let program = place.path("calls");
    let mut build = Command::new(needs!(CC.find()));
    let build = build.args(["-O0", "-o"]).args([&program, &source]);
    assert!(build.status().unwrap().success());
    let record = |options: &[&str]| {
        let mut recorder = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        let recorder = recorder.arg("record").args(options).arg("-o");
        let output = recorder.arg(place.recording()).arg(&program).output();
        let said = String::from_utf8(output.unwrap().stderr).unwrap();
        (Found::of(&place.recording()), said)
    };
    let (found, said) = record(&["--ring", "overwrite=10s", "--buffer", "256K"]);
    assert!(found.entries("f") < 100_000 && found.lost == 0, "{said}");
    assert!(
        said.contains("there was room for ") && said.contains("--buffer"),
        "{said}"
    );
    let (found, said) = record(&["--ring", "overwrite", "--buffer", "256K"]);
    assert!(found.entries("f") < 100_000 && found.lost == 0, "{said}");
    assert!(said.contains(", of the last "), "{said}");
    let (found, said) = record(&["--ring", "overwrite=10s"]);
    assert_eq!((found.entries("f"), found.lost), (100_000, 0), "{said}");
    assert!(!said.contains("room for"), "{said}");
}

/// A ring of two sub-buffers, with room for 16,384 events.
const SMALL: [&str; 2] = ["--buffer", "128K"];
/// Calls of `leaf` in `blocked.c`.
const CALLS: usize = 200_000;

#[test]
fn a_program_that_is_faster_than_its_recorder_waits_and_loses_nothing() {
    let place = Place::new();
    let program = place.build(&needs!(CC.find()), "blocked.c", &[]);
    let found = place.same(&SMALL, &[program.as_os_str()]);
    assert_eq!((found.entries("leaf"), found.lost), (CALLS, 0));
    // This recording may drop events.
    let options = [&SMALL[..], &["--ring", "drop"]].concat();
    place.same(&options, &[program.as_os_str()]);
}

#[test]
fn a_program_goes_on_while_its_recorder_is_stopped_and_waits_for_it_afterwards() {
    let place = Place::new();
    let program = place.build(&needs!(CC.find()), "blocked.c", &[]);
    let mut recorder = place.recorder(&SMALL);
    let recorder = recorder.arg(&program).arg("stop").arg(place.recording());
    let output = recorder.output().unwrap();
    assert_eq!(output.stdout, b"done\n", "{output:?}");
    let found = Found::of(&place.recording());
    assert!(found.entries("leaf") < CALLS && found.lost > 0);
    assert_eq!(found.entries("later"), CALLS);
}

#[test]
fn nothing_waits_where_sleeping_may_do_harm() {
    let place = Place::new();
    let program = place.build(&needs!(CC.find()), "blocked.c", &[]);
    for what in ["handler", "child", "sandbox"] {
        let mut recorder = place.recorder(&SMALL);
        let output = recorder.arg(&program).arg(what).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(
            (&*said, output.status.code()),
            ("done\n", Some(0)),
            "{what}"
        );
        assert!(Found::of(&place.recording()).lost > 0, "{what}");
    }
}

#[test]
fn a_program_goes_on_whose_recorder_was_killed_and_is_not_waited_for() {
    let place = Place::new();
    let program = place.build(&needs!(CC.find()), "blocked.c", &[]);
    let mut recorder = place.recorder(&SMALL);
    let output = recorder.arg(&program).arg("kill").output().unwrap();
    assert_eq!(output.status.signal(), Some(libc::SIGKILL));
    assert_eq!(output.stdout, b"done\n");
}

#[test]
fn a_program_may_read_the_output_of_its_recorder() {
    let place = Place::new();
    let program = place.build(&needs!(CC.find()), "blocked.c", &[]);
    let (mut from, to) = std::io::pipe().unwrap();
    // SAFETY: it makes a pipe of ours smaller, so that it is soon full.
    unsafe { libc::fcntl(to.as_raw_fd(), libc::F_SETPIPE_SZ, 4096) };
    let mut child = {
        let mut recorder = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        let recorder = recorder.args(["record", "--quiet", "-o", "/dev/fd/1"]);
        let recorder = recorder.args(SMALL).arg("--").arg(&program).arg("pipe");
        let ends = recorder.stdin(from.try_clone().unwrap()).stdout(to);
        ends.stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut said = String::new();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    errors.read_line(&mut said).unwrap();
    assert_eq!(said, "done\n");
    // The program reads no more.
    let mut rest = Vec::new();
    from.read_to_end(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(is_whole(&rest));
}

#[test]
fn a_program_goes_on_that_serves_the_file_system_of_its_recording() {
    let place = Place::new();
    let program = place.build(&needs!(CC.find()), "serves.c", &[]);
    let mounted = place.path("mounted");
    fs::create_dir(&mounted).unwrap();
    let mut served = Command::new(&program);
    served.arg(&mounted).arg(place.path("written"));
    served.arg(env!("CARGO_BIN_EXE_fgraph"));
    served.args(["record", "--quiet", "-o"]);
    served.arg(mounted.join("fgraph.data")).args(SMALL);
    let output = served
        .arg("--")
        .arg(&program)
        .arg("serve")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(77) {
        skip!(
            "a file system cannot be served: it takes root and /dev/fuse (modprobe fuse): {said}"
        );
        return;
    }
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert_eq!(output.stdout, b"waited\n");
    assert!(is_whole(&fs::read(place.path("written")).unwrap()));
    let found = Found::of(&place.path("written"));
    assert!(found.entries("leaf") > 0 && found.lost > 0, "{found:?}");
}

#[test]
fn the_newest_events_are_kept_until_a_trigger_fires() {
    let place = Place::new();
    let program = place.build(&needs!(CC.find()), "hostile.c", &[]);
    let run = |trigger: &str, what: &str| {
        let _ = fs::remove_file(place.recording());
        let mut recorder = place.recorder(&["--ring", "overwrite=60s", "--trigger", trigger]);
        recorder.arg(&program).arg(what).output().unwrap();
        let is_there = place.recording().exists();
        is_there.then(|| Found::of(&place.recording()).entries("leaf"))
    };
    // At the first call, or a little later.
    assert!(run("call:leaf", "").is_some_and(|calls| calls > 0));
    assert_eq!(run("slow:main>1ns", ""), Some(10));
    assert_eq!(run("slow:main>60min", ""), None);
    assert_eq!(run("crash", "kill"), Some(10));
    assert_eq!(run("crash", ""), None);
    assert_eq!(run("exit!=0", "kill"), Some(10));
    assert_eq!(run("exit!=0", ""), None);
    for bad in [
        &["--trigger", "x"][..],
        &["--trigger", "call:a:mod:"],
        &["--trigger", "crash", "--ring", "drop"],
        &["--ring", "overwrite", "--max-size", "1M"],
    ] {
        let mut recorder = place.recorder(bad);
        let status = recorder.arg(&program).stderr(Stdio::null()).status();
        assert_eq!(status.unwrap().code(), Some(2), "{bad:?}");
    }
}

#[test]
fn each_signal_is_answered_by_a_snapshot() {
    let cc = needs!(CC.find());
    let mut running = Running::start(&cc, &["--trigger", "signal", "--no-source"], &[]);
    let ask = |path: &Path| {
        let begin = Instant::now();
        while !is_whole(&fs::read(path).unwrap_or_default()) {
            assert!(
                begin.elapsed() < Duration::from_secs(60),
                "no {}",
                path.display()
            );
            thread::sleep(Duration::from_millis(10));
        }
        assert!(Found::of(path).entries("leaf") > 0);
    };
    let second = running.place.path("fgraph.data.2");
    for path in [&running.place.recording(), &second] {
        let process = running.recorder.id() as i32;
        // SAFETY: a signal to a process that we have started.
        assert_eq!(unsafe { libc::kill(process, libc::SIGUSR2) }, 0);
        ask(path);
    }
    running.end();
    assert_eq!(running.ended().0.code(), Some(7));
    assert!(!second.with_extension("3").exists());
}

#[test]
fn a_full_disk_ends_the_recording_and_not_the_program() {
    let place = Place::new();
    let program = place.build(&needs!(CC.find()), "hostile.c", &[]);
    for options in [&[][..], &["--ring", "overwrite"]] {
        let mut recorder = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        let recorder = recorder.args(["record", "-o", "/dev/full"]).args(options);
        let output = recorder.arg(&program).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.stdout, b"ten calls\n");
        assert_eq!(output.status.code(), Some(4), "{said}");
        let error = "fgraph: /dev/full: No space left on device";
        assert!(said.starts_with(error), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(Path::new("/dev/full").exists());
    }
}

/// Mounts a file system of 1 MiB, and executes the command behind the directory.
const ON_A_SMALL_DISK: &str = r#"mount -t tmpfs -o size=1m none "$0" && exec "$@""#;

#[test]
fn a_full_disk_is_told_while_the_program_runs_and_the_recording_stays_readable() {
    let cc = needs!(CC.find());
    let (folder, program) = Program::compile(&cc);
    let disk = folder.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let on_small_disk = || {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c"]);
        command.arg(ON_A_SMALL_DISK).arg(&disk);
        command
    };
    let probed = on_small_disk().arg("true").output();
    if !probed.is_ok_and(|it| it.status.success()) {
        return skip!("no right to mount in a namespace (unprivileged user namespaces)");
    }
    let mut recorder = on_small_disk();
    recorder.arg(env!("CARGO_BIN_EXE_fgraph"));
    recorder.args(["record", "-F", "work", "-o"]);
    recorder.arg(disk.join("fgraph.data")).arg(program);
    let mut recorder = Program::start_as(folder, recorder.stderr(Stdio::piped()));
    let mut said = BufReader::new(recorder.child.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    let full = "fgraph.data: No space left on device; recording has ended, and the program goes on";
    assert!(line.trim_end().ends_with(full), "{line}");
    assert_eq!(recorder.child.try_wait().unwrap(), None);
    // The recorder has this path in a namespace of its own.
    let path = format!("/proc/{}/root{}", recorder.child.id(), disk.display());
    let mut recording = Recording::open(&Path::new(&path).join("fgraph.data")).unwrap();
    let mut calls = 0;
    while let Some(event) = recording.next().unwrap() {
        if let What::Entry { function, .. } = event.what {
            let process = event.process;
            assert_eq!(recording.names().function_name(process, function), "work");
            calls += 1;
        }
    }
    assert!(calls > 1000, "{calls}");
    assert_eq!(recorder.end().code(), Some(4));
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
}

#[test]
fn the_environment_is_in_the_recording_only_on_request() {
    let place = Place::new();
    let info = |options: &[&str]| {
        let mut recorder = place.recorder(options);
        let status = recorder.arg("true").env("SECRET", "a\nb").status();
        assert!(status.unwrap().success());
        let mut info = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        let output = info.arg("info").arg(place.recording()).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(!info(&[]).contains("SECRET"));
    let shown = info(&["--env"]);
    assert!(shown.contains(r"SECRET=a\nb"), "{shown}");
    assert!(!shown.contains("FGRAPH_AGENT"), "{shown}");
}

#[test]
fn values_are_shown_by_their_types_and_obeyed_by_nothing() {
    let place = Place::new();
    let program = place.build(&needs!(CC.find()), "typed.c", &[]);
    let command = [program.as_os_str()];
    let shown = |arguments: &[&str]| {
        let mut fgraph = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        let output = fgraph.args(arguments).current_dir(place.0.path()).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    place.same(
        &["-F", "paint", "-F", "echo", "--args", "--retval"],
        &command,
    );
    let text = r#""\u{1b}[31m=1+1</script>\n""#;
    let expected = [
        r#"paint(name="red", times=-3); /* ret=GREEN */"#.to_owned(),
        format!("echo(text={text}); /* ret={text} */"),
    ];
    let replayed = shown(&["replay", "--no-cpu"]);
    let dumped = shown(&["dump"]);
    for (replay, dump) in expected.iter().zip([
        [
            r#"paint name="red", times=-3"#.to_owned(),
            "paint GREEN".to_owned(),
        ],
        [format!("echo text={text}"), format!("echo {text}")],
    ]) {
        assert!(replayed.contains(replay), "{replayed}");
        assert!(dump.iter().all(|line| dumped.contains(line)), "{dumped}");
    }
    assert!(!replayed.contains('\x1b') && !dumped.contains('\x1b'));
    shown(&["export", "csv"]);
    let rows = fs::read_to_string(place.path("fgraph.csv")).unwrap();
    assert!(rows.contains(r#""name=""red"", times=-3",GREEN"#), "{rows}");
    shown(&["export", "chrome", "-o", "calls.json"]);
    let json = fs::read_to_string(place.path("calls.json")).unwrap();
    assert!(
        json.contains(r#""args":{"name":"\"red\"","times":"-3"}"#),
        "{json}"
    );
    shown(&["export", "perfetto"]);

    place.same(&["-F", "paint", "--args=registers"], &command);
    let replayed = shown(&["replay", "--no-cpu"]);
    let word = |line: &str| line.split("paint(0x").count() == 2 && !line.contains("ret=");
    assert!(replayed.lines().any(word), "{replayed}");
    let mut recorder = place.recorder(&["--args", "--retval=registers"]);
    assert_eq!(recorder.arg(&program).status().unwrap().code(), Some(2));
}

#[test]
fn exports_name_the_program_though_only_a_library_was_recorded() {
    let place = Place::new();
    let program = place.build(&needs!(CC.find()), "short.c", &[]);
    let found = place.same(&["-F", "libc:puts"], &[program.as_os_str()]);
    assert_eq!(found.entries("puts"), 1);
    let mut export = Command::new(env!("CARGO_BIN_EXE_fgraph"));
    let export = export.args(["export", "uftrace", "-o", "uftrace"]);
    assert!(
        export
            .current_dir(place.0.path())
            .output()
            .unwrap()
            .status
            .success()
    );
    let tasks = fs::read_to_string(place.path("uftrace/task.txt")).unwrap();
    let expected = format!("exename=\"{}\"", program.canonicalize().unwrap().display());
    assert!(tasks.contains(&expected), "{tasks}");
}

#[test]
fn a_recording_knows_sources_and_builds_without_its_program() {
    let place = Place::new();
    let compiler = needs!(CC.find());
    let flags = ["-Wl,--build-id=0x0102030405"];
    let program = place.build(&compiler, "typed.c", &flags);
    place.same(&["-F", "paint"], &[program.as_os_str()]);
    let shown = |arguments: &[&str]| {
        let mut fgraph = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        let output = fgraph.args(arguments).current_dir(place.0.path()).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{output:?}");
        [output.stdout, output.stderr].map(|it| String::from_utf8(it).unwrap())
    };
    let [replayed, said] = shown(&["replay"]);
    assert!(replayed.contains("paint();") && said.is_empty(), "{said}");
    let name = program.display();
    let say = |what: &str| format!("fgraph: fgraph.data: not as recorded: {name} is {what}\n");
    place.build(&compiler, "typed.c", &["-Wl,--build-id=0x0102030406"]);
    assert_eq!(
        shown(&["replay"]),
        [replayed.clone(), say("of another build")]
    );
    fs::remove_file(&program).unwrap();
    assert_eq!(shown(&["replay"]), [replayed, say("missing")]);
    let [sources, _] = shown(&["report", "--by", "source"]);
    assert!(sources.contains("record/typed.c"), "{sources}");
    let [dumped, _] = shown(&["dump"]);
    assert!(dumped.contains("record/typed.c:10]"), "{dumped}");
    let [info, _] = shown(&["info"]);
    assert!(
        info.contains("sources    1\n") && info.contains("is missing"),
        "{info}"
    );
    for (format, wanted) in [
        ("callgrind", "typed.c\nfn=(1) paint\n10 "),
        ("firefox", "typed.c\""),
    ] {
        shown(&["export", format, "-o", "exported"]);
        let exported = fs::read_to_string(place.path("exported")).unwrap();
        assert!(exported.contains(wanted), "{exported}");
    }
    for format in ["pprof", "perfetto"] {
        shown(&["export", format, "-o", "exported"]);
    }
}

#[test]
fn the_command_works_alone() {
    let place = Place::new();
    let command = place.path("alone");
    copy_program(FGRAPH, &command);
    let temporary = place.path("tmp");
    fs::create_dir(&temporary).unwrap();
    let mut recorder = Command::new(&command);
    let recorder = recorder.env_clear().env("PATH", "/usr/bin:/bin");
    let recorder = recorder
        .env("TMPDIR", &temporary)
        .current_dir(place.0.path());
    let status = recorder.args(["record", "sh", "-c", "exit 7"]).status();
    assert_eq!(status.unwrap().code(), Some(7));
    assert!(!Found::of(&place.recording()).calls.is_empty());
    let mut viewer = Command::new(&command);
    let viewer = viewer.env_clear().env("HOME", "/nowhere");
    let shown = viewer.arg("report").current_dir(place.0.path()).output();
    let shown = shown.unwrap();
    assert!(shown.status.success() && !shown.stdout.is_empty());
    let left = fs::read_dir(&temporary).unwrap().count();
    assert_eq!(left, 0, "files are left over");
}

#[test]
fn leftovers_of_a_killed_recorder_are_removed_by_the_next_one() {
    let place = Place::new();
    let temporary = place.path("tmp");
    fs::create_dir(&temporary).unwrap();
    let record = |program: &[&str]| {
        let mut recorder = place.recorder(&[]);
        recorder.args(program).env("TMPDIR", &temporary);
        recorder.env_remove("XDG_RUNTIME_DIR");
        recorder
            .env("HOME", "/nowhere")
            .env_remove("XDG_CACHE_HOME");
        recorder.stdin(Stdio::piped()).stdout(Stdio::piped());
        recorder.spawn().unwrap()
    };
    let left = || fs::read_dir(&temporary).unwrap().count();
    let cat = ["sh", "-c", "echo; exec cat"];
    let (mut killed, mut lives) = (record(&cat), record(&cat));
    for recorder in [&mut killed, &mut lives] {
        let mut line = String::new();
        let mut out = BufReader::new(recorder.stdout.as_mut().unwrap());
        out.read_line(&mut line).unwrap();
    }
    let both = left();
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert_eq!(left(), both);
    assert!(record(&["true"]).wait().unwrap().success());
    // The files of the recorder that is at work are still there.
    assert!(left() < both || both == 0, "{both}");
    drop(lives.stdin.take());
    assert!(lives.wait().unwrap().success());
    assert_eq!(left(), 0);
}

#[test]
fn python_does_the_same() {
    let place = Place::new();
    let python = needs!(PYTHON.find());
    // Not a script that looks for it.
    let asked = Command::new(python)
        .args(["-c", "import sys; print(sys.executable)"])
        .output();
    let python = String::from_utf8(asked.unwrap().stdout).unwrap();
    let work = "import json, subprocess; print(len(json.dumps(list(range(1000))))); \
                subprocess.run(['true'])";
    let found = place.same(&["-N", "_Py*"], &words(&[python.trim(), "-c", work]));
    assert!(found.calls.len() > 100, "{}", found.calls.len());
    assert!(found.processes.iter().any(|name| name == "true"));
}

#[test]
fn gcc_does_the_same_and_its_children_are_recorded() {
    let place = Place::new();
    let gcc = needs!(GCC.find());
    let source = place.path("a.c");
    fs::write(&source, "int main() { return 5; }").unwrap();
    let program = place.path("a.out");
    let [gcc, source, out] = [&gcc, &source, &program].map(|path| path.as_os_str());
    let options = ["--ring", "overwrite"];
    let found = place.same(&options, &[gcc, source, "-o".as_ref(), out]);
    assert_eq!(Command::new(&program).status().unwrap().code(), Some(5));
    for name in ["gcc", "cc1", "as", "ld"] {
        // gcc may run `x86_64-linux-gnu-as`; the kernel keeps 15 bytes of the name.
        let is_prefixed = |known: &String| name == "as" && known == "x86_64-linux-gn";
        let is_it = |known: &String| known.contains(name) || is_prefixed(known);
        assert!(
            found.processes.iter().any(is_it),
            "{name}: {:?}",
            found.processes
        );
    }
}

#[test]
fn sqlite_does_the_same() {
    let place = Place::new();
    let sqlite = needs!(SQLITE3.find());
    let work = "create table t(a); insert into t values(1),(2); select sum(a) from t;";
    let command = [sqlite.as_os_str(), ":memory:".as_ref(), work.as_ref()];
    let found = place.same(&["-F", "sqlite3_*"], &command);
    assert!(!found.calls.is_empty());
}

#[test]
fn exceptions_and_threads_are_recorded() {
    let place = Place::new();
    let program = place.build(&needs!(GXX.find()), "throws.cc", &["-pthread"]);
    let found = place.same(&[], &[program.as_os_str()]);
    for name in ["leaf", "middle"] {
        assert_eq!(found.entries(name), 1200, "{name}");
    }
    assert!(found.calls.values().all(|(entries, ends)| entries >= ends));
}

#[test]
fn a_rust_program_with_threads_is_recorded() {
    let place = Place::new();
    let program = place.path("program");
    let mut rustc = Command::new(needs!(RUSTC.find()));
    rustc.args(["-C", "opt-level=1", "-o"]).arg(&program);
    assert!(
        rustc
            .arg("tests/record/threads.rs")
            .status()
            .unwrap()
            .success()
    );
    let found = place.same(&[], &[program.as_os_str()]);
    assert_eq!(
        found.entries("threads::leaf") + found.entries("program::leaf"),
        4000
    );
    let adders = (0..4).map(|n| format!("adder {n}"));
    let mut names: Vec<&String> = found.threads.values().collect();
    names.sort();
    assert!(
        names
            .iter()
            .copied()
            .take(4)
            .eq(&adders.collect::<Vec<_>>()),
        "{names:?}"
    );
}

#[test]
fn programs_that_cannot_be_recorded_are_refused_in_one_line() {
    let place = Place::new();
    assert_eq!(place.refused(Path::new("no-such-program")).0, 127);
    assert_eq!(place.refused(Path::new("./no/such/program")).0, 127);
    let refused = |path: &Path, expected: &str| {
        let (code, said) = place.refused(path);
        assert!(code == 126 && said.contains(expected), "{code} {said}");
    };
    refused(Path::new("/etc/passwd"), "not executable");
    refused(Path::new("/"), "is a directory");
    let executable = |name: &str, bytes: &[u8]| {
        let path = place.path(name);
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    };
    refused(
        &executable("text", b"hello"),
        "neither a program nor a script",
    );
    let mut bytes = fs::read("/bin/true").unwrap();
    bytes[4] = 1;
    refused(&executable("small", &bytes), "32-bit");
    (bytes[4], bytes[18]) = (2, 183);
    refused(&executable("arm", &bytes), "machine 183");
    let cc = needs!(CC.find());
    let linker = "-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1";
    refused(
        &place.build(&cc, "hostile.c", &[linker]),
        "/lib/ld-musl-x86_64.so.1",
    );
    for flag in ["-static", "-static-pie"] {
        let program = place.build(&cc, "hostile.c", &[flag]);
        refused(&program, "linked statically");
        let script = format!("#!{}\n", program.display());
        refused(
            &executable("script", script.as_bytes()),
            "it is a script for",
        );
    }
    let set_id = executable("set-id", &fs::read("/bin/true").unwrap());
    if std::os::unix::fs::chown(&set_id, Some(65534), None).is_err() {
        return skip!("no right to give files away");
    }
    fs::set_permissions(&set_id, fs::Permissions::from_mode(0o4755)).unwrap();
    refused(&set_id, "rights of its file's owner");
}

#[test]
fn live_and_top_show_calls_as_they_happen() {
    let place = Place::new();
    let program = place.build(&needs!(CC.find()), "hostile.c", &[]);
    let run = |command: &str, options: &[&str]| {
        let mut fgraph = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        let output = fgraph
            .arg(command)
            .args(options)
            .arg(&program)
            .arg("kill")
            .output();
        let output = output.unwrap();
        assert_eq!(output.status.signal(), Some(9), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let text = run("live", &["-F", "leaf", "-F", "main"]);
    assert_eq!(text.matches("leaf();").count(), 10, "{text}");
    assert_eq!(text.matches("main() {").count(), 1, "{text}");
    assert!(text.contains("ten calls\n"), "{text}");
    let text = run("top", &["-F", "leaf"]);
    let is_row = |line: &&str| line.contains(" leaf [program]") && line.contains("  10  ");
    assert_eq!(text.lines().filter(is_row).count(), 1, "{text}");
}
