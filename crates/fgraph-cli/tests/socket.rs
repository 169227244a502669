//! The socket of a recorder: its requests, and malicious clients.

use std::fs::{self, Permissions};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::busy::Program;
use fgraph_needs::{CC, needs};
use fgraph_trace::{Recording, Source as _};
use tempfile::TempDir;

/// A directory for sockets.
struct Runtime(TempDir);

impl Runtime {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o700)).unwrap();
        Self(folder)
    }

    fn socket(&self, pid: u32) -> PathBuf {
        self.0.path().join(format!("fgraph/{pid}.socket"))
    }

    fn connect(&self, pid: u32) -> UnixStream {
        let socket = UnixStream::connect(self.socket(pid)).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        socket
    }

    fn in_here<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        command.env("XDG_RUNTIME_DIR", self.0.path())
    }

    fn fgraph(&self, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        self.in_here(command.args(words)).output().unwrap()
    }

    /// Returns the output of `fgraph ctl`.
    fn ctl(&self, pid: u32, words: &[&str]) -> String {
        let output = self.fgraph(&[&["ctl", &pid.to_string()], words].concat());
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), &*said), (Some(0), ""), "{words:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn record(&self, program: &Program) -> Child {
        let mut recorder = program.recorder(&["-F", "sys_read"]);
        let recorder = self.in_here(&mut recorder).spawn().unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        while self.status(program.child.id(), "calls").unwrap_or(0) == 0 {
            assert!(Instant::now() < until);
            thread::sleep(Duration::from_millis(20));
        }
        recorder
    }

    /// A line of `fgraph ctl PID status`.
    fn status(&self, pid: u32, name: &str) -> Option<u64> {
        let output = self.fgraph(&["ctl", &pid.to_string(), "status"]);
        let text = String::from_utf8(output.stdout).unwrap();
        let values = text.lines().filter_map(|line| line.split_once(' '));
        let mut values = values.filter(|(known, _)| *known == name);
        values.next()?.1.parse().ok()
    }
}

fn events(recording: &Path) -> u64 {
    let mut recording = Recording::open(recording).unwrap();
    let mut count = 0;
    while recording.next().unwrap().is_some() {
        count += 1;
    }
    count
}

fn line(socket: &UnixStream) -> String {
    let mut line = String::new();
    BufReader::new(socket).read_line(&mut line).unwrap();
    line
}

#[test]
fn a_recorder_answers_status_requests_and_ends_on_request() {
    let program = Program::start(&needs!(CC.find()));
    let (runtime, pid, text) = (Runtime::new(), program.child.id(), program.text());
    let recorder = runtime.record(&program);
    assert_eq!(runtime.status(pid, "process"), Some(pid.into()));
    assert!(runtime.status(pid, "size") > Some(0));
    // The recorder hands this on to the agent.
    assert_eq!(runtime.ctl(pid, &["cat", "current_tracer"]), "nop\n");
    runtime.ctl(pid, &["write", "set_ftrace_filter", "sys_write"]);
    assert_eq!(
        runtime.ctl(pid, &["cat", "set_ftrace_filter"]),
        "sys_write\n"
    );
    runtime.ctl(pid, &["snapshot"]);
    let refused = runtime.fgraph(&["ctl", &pid.to_string(), "cat", "nothing"]);
    let said = String::from_utf8(refused.stderr).unwrap();
    let expected = format!("fgraph: process {pid}: there is no file nothing\n");
    assert_eq!((refused.status.code(), said), (Some(3), expected));

    assert!(
        runtime
            .fgraph(&["detach", &pid.to_string()])
            .status
            .success()
    );
    assert!(!runtime.socket(pid).exists());
    assert_eq!(program.changed(&text), None);
    let output = recorder.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(events(&program.recording()) > 100);
    let none = runtime.fgraph(&["ctl", &pid.to_string(), "status"]);
    assert_eq!(none.status.code(), Some(3));
    assert_eq!(program.end().code(), Some(0));
}

#[test]
fn a_program_that_the_recorder_has_started_goes_on_when_recording_stops() {
    let (folder, program) = Program::compile(&needs!(CC.find()));
    let (runtime, recording) = (Runtime::new(), folder.path().join("fgraph.data"));
    let mut recorder = Command::new(env!("CARGO_BIN_EXE_fgraph"));
    let recorder = recorder
        .args(["record", "-q", "-F", "sys_read", "-o"])
        .arg(&recording)
        .arg("--")
        .arg(program);
    let program = Program::start_as(folder, runtime.in_here(recorder));
    let directory = runtime.0.path().join("fgraph");
    let pid: u32 = loop {
        let names = fs::read_dir(&directory).into_iter().flatten();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut ids = names.filter_map(|name| name.strip_suffix(".socket")?.parse().ok());
        if let Some(pid) = ids.next() {
            break pid;
        }
        thread::sleep(Duration::from_millis(20));
    };
    for _ in 0..5 {
        assert_eq!(runtime.ctl(pid, &["cat", "current_tracer"]), "nop\n");
    }
    assert!(
        runtime
            .fgraph(&["detach", &pid.to_string()])
            .status
            .success()
    );
    assert!(events(&recording) > 0);
    let is_there = Path::new(&format!("/proc/{pid}/exe")).exists();
    assert!(is_there);
    assert_eq!(program.end().code(), Some(0));
}

#[test]
fn an_attached_holder_ends_all_when_it_is_stopped_or_killed() {
    let program = Program::start(&needs!(CC.find()));
    let (runtime, pid, text) = (Runtime::new(), program.child.id(), program.text());
    for is_killed in [false, true] {
        let mut holder = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        let pid_text = pid.to_string();
        let holder = holder.args(["attach", "--stay", &pid_text]);
        let mut holder = runtime
            .in_here(holder)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        while runtime.status(pid, "process").is_none() {
            thread::sleep(Duration::from_millis(20));
        }
        let second = runtime.fgraph(&["attach", "--stay", &pid_text]);
        let said = String::from_utf8(second.stderr).unwrap();
        let expected = format!("process {} is attached to it already\n", holder.id());
        assert!(said.ends_with(&expected), "{said}");
        runtime.ctl(pid, &["write", "set_ftrace_filter", "sys_write"]);
        runtime.ctl(pid, &["write", "current_tracer", "function"]);
        assert!(program.changed(&text).is_some());
        if is_killed {
            holder.kill().unwrap();
            holder.wait().unwrap();
        } else {
            assert!(runtime.fgraph(&["detach", &pid_text]).status.success());
            assert_eq!(holder.wait().unwrap().code(), Some(0));
        }
        let until = Instant::now() + Duration::from_secs(60);
        while let Some(mapping) = program.changed(&text) {
            assert!(is_killed && Instant::now() < until, "{mapping}");
            thread::sleep(Duration::from_millis(20));
        }
    }
    assert_eq!(program.end().code(), Some(0));
}

#[test]
fn clients_that_mean_no_good_hold_nothing_up() {
    let program = Program::start(&needs!(CC.find()));
    let (runtime, pid) = (Runtime::new(), program.child.id());
    let mut recorder = runtime.record(&program);
    let mode = fs::metadata(runtime.0.path().join("fgraph")).unwrap();
    assert_eq!(mode.permissions().mode() & 0o777, 0o700);

    for (sent, expected) in [
        (&b"jump\n"[..], "error a line begins with none of "),
        (b"\xff\x00\x1b[2J\n", "error a line is not text"),
        (b"cat \n", "error the name of a file is missing"),
        (
            b"cat ../../etc/passwd\n",
            "error there is no file ../../etc/passwd",
        ),
    ] {
        let mut client = runtime.connect(pid);
        client.write_all(sent).unwrap();
        let answer = line(&client);
        assert!(answer.starts_with(expected), "{answer}");
        // It goes on with the next line.
        client.write_all(b"status\n").unwrap();
        assert_eq!(line(&client), "ok 5\n");
    }
    let mut client = runtime.connect(pid);
    // It is not read to its end.
    let _ = client.write_all(&vec![b'x'; 1 << 20]);
    let mut answer = Vec::new();
    let _ = client.read_to_end(&mut answer);
    assert!(answer.is_empty() || answer.starts_with(b"error a line is longer than 32768 bytes"));

    let mut half = runtime.connect(pid);
    half.write_all(b"stat").unwrap();
    let mut gone = runtime.connect(pid);
    gone.write_all(b"sto").unwrap();
    gone.shutdown(Shutdown::Both).unwrap();
    let mut deaf = runtime.connect(pid);
    deaf.set_write_timeout(Some(Duration::from_millis(100)))
        .unwrap();
    // Until nothing more is taken.
    while deaf.write(&b"status\n".repeat(1000)).is_ok() {}
    let many: Vec<_> = (0..1000)
        .filter_map(|_| UnixStream::connect(runtime.socket(pid)).ok())
        .collect();

    // Recording goes on all the time.
    let len = || fs::metadata(program.recording()).unwrap().len();
    let (before, until) = (len(), Instant::now() + Duration::from_secs(60));
    while len() == before {
        assert!(Instant::now() < until);
        thread::sleep(Duration::from_millis(5));
    }
    drop(many);
    // The connections that are left have no more time than the others.
    while runtime.status(pid, "calls").is_none() {
        assert!(Instant::now() < until);
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(recorder.try_wait().unwrap(), None);
    drop((half, deaf));
    runtime.ctl(pid, &["stop"]);
    let output = recorder.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(events(&program.recording()) > 100);
    assert_eq!(program.end().code(), Some(0));
}
