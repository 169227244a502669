//! `fgraph record -p` on programs that run, which go on as if nothing had been.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use fgraph_needs::{CC, needs};
use fgraph_trace::event::What;
use fgraph_trace::{Recording, Source};
use tempfile::TempDir;

/// Threads call functions, fork and throw away memory until standard input ends; the exit code is 0
/// if every result was right.
const PROGRAM: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int end, failed;

__attribute__((noinline)) long work(long n)
{
    __asm__ volatile("" : "+r"(n));
    return n < 2 ? n : work(n - 1) + work(n - 2);
}

static void *works(void *unused)
{
    while (!end) {
        if (work(12) != 144)
            failed = 1;
        free(malloc(100));
    }
    return unused;
}

static void *forks(void *unused)
{
    while (!end) {
        pid_t child = fork();
        if (child == 0)
            _exit(work(7));
        int status;
        if (waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 13)
            failed = 2;
    }
    return unused;
}

int main(void)
{
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], 0, i ? works : forks, 0);
    puts("ready");
    fflush(stdout);
    while (getchar() != EOF)
        ;
    end = 1;
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], 0);
    return failed;
}
"#;

/// The program at work. It is killed if the test ends before it.
struct Program {
    child: Child,
    folder: TempDir,
}

impl Program {
    fn start(cc: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (source, program) = (folder.path().join("busy.c"), folder.path().join("busy"));
        fs::write(&source, PROGRAM).unwrap();
        let mut compiler = Command::new(cc);
        compiler.args(["-O1", "-pthread", "-o"]).arg(&program);
        assert!(compiler.arg(&source).status().unwrap().success());
        let mut command = Command::new(program);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let output = child.stdout.take().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self { child, folder }
    }

    fn recording(&self) -> PathBuf {
        self.folder.path().join("fgraph.data")
    }

    fn recorder(&self, options: &[&str]) -> Command {
        self.recorder_to(&self.recording(), options)
    }

    fn recorder_to(&self, recording: &Path, options: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        command
            .args(["record", "-o"])
            .arg(recording)
            .args(["-p", &self.child.id().to_string()])
            .args(options)
            .stderr(Stdio::piped());
        command
    }

    fn record(&self, options: &[&str]) -> Output {
        self.recorder(options).output().unwrap()
    }

    /// The instructions of the program and of its libraries, but for the agent's.
    fn text(&self) -> Vec<(String, Vec<u8>)> {
        let proc = PathBuf::from(format!("/proc/{}", self.child.id()));
        let mut memory = File::open(proc.join("mem")).unwrap();
        let maps = fs::read_to_string(proc.join("maps")).unwrap();
        let lines = maps.lines().filter(|line| line.contains("r-xp"));
        let files = lines.filter(|line| line.contains(" /") && !line.contains("fgraph-agent"));
        let read = |line: &str| {
            let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
            let [start, end] = [start, end].map(|hex| u64::from_str_radix(hex, 16).unwrap());
            let mut bytes = vec![0; (end - start) as usize];
            memory.seek(SeekFrom::Start(start)).unwrap();
            memory.read_exact(&mut bytes).unwrap();
            (line.to_owned(), bytes)
        };
        files.map(read).collect()
    }

    fn threads(&self) -> usize {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id()));
        tasks.unwrap().count()
    }

    fn end(mut self) -> ExitStatus {
        drop(self.child.stdin.take());
        let until = Instant::now() + Duration::from_secs(20);
        while Instant::now() < until {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            thread::sleep(Duration::from_millis(5));
        }
        panic!("the program does not end");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How often `work` was entered and how often it ended.
fn calls(recording: &Path) -> (usize, usize) {
    let mut recording = Recording::open(recording).unwrap();
    let mut found = (0, 0);
    while let Some(event) = recording.next().unwrap() {
        let (function, count) = match event.what {
            What::Entry { function, .. } => (function, &mut found.0),
            What::Return { function, .. } => (function, &mut found.1),
            _ => continue,
        };
        let process = event.process;
        let name = recording.names().function(process, function);
        *count += usize::from(name.is_some_and(|it| it.name == "work"));
    }
    found
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_program_that_runs_is_recorded_and_then_as_it_was() {
    let program = Program::start(&needs!(CC.find()));
    let (text, threads) = (program.text(), program.threads());
    for _ in 0..3 {
        let output = program.record(&["--time", "300ms", "-F", "work"]);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        let (entries, ends) = calls(&program.recording());
        // Some threads were in calls when it ended.
        assert!(entries > 100 && ends > 100, "{entries} {ends}");
        let now = program.text();
        for (mapping, bytes) in &text {
            let same = now.iter().find(|(known, _)| known == mapping);
            assert!(same.is_some_and(|(_, now)| now == bytes), "{mapping}");
        }
        assert_eq!(program.threads(), threads);
    }
    assert_eq!(program.end().code(), Some(0));
}

#[test]
fn a_process_has_one_recorder_and_may_have_another_when_that_is_gone() {
    let program = Program::start(&needs!(CC.find()));
    let mut first = program.recorder(&["-F", "work"]).spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    // Until its first block is there.
    while fs::metadata(program.recording()).map_or(0, |file| file.len()) < 10_000 {
        assert!(Instant::now() < until);
        thread::sleep(Duration::from_millis(5));
    }
    let other = program.folder.path().join("other.data");
    let second = || {
        let options = ["--time", "100ms", "-F", "work"];
        program.recorder_to(&other, &options).output().unwrap()
    };
    let refused = second();
    assert_eq!(refused.status.code(), Some(126));
    let expected = format!("process {} records it already", first.id());
    assert!(said(&refused).contains(&expected), "{}", said(&refused));
    first.kill().unwrap();
    first.wait().unwrap();
    assert!(calls(&program.recording()).0 > 100);
    let output = second();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(calls(&other).0 > 100);
    assert_eq!(program.end().code(), Some(0));
}

#[test]
fn recording_ends_with_the_process_and_is_whole() {
    let mut program = Program::start(&needs!(CC.find()));
    let recorder = program.recorder(&["-F", "work"]).spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while fs::metadata(program.recording()).map_or(0, |file| file.len()) < 10_000 {
        assert!(Instant::now() < until);
        thread::sleep(Duration::from_millis(5));
    }
    program.child.kill().unwrap();
    program.child.wait().unwrap();
    let output = recorder.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(calls(&program.recording()).0 > 100);
}

#[test]
fn processes_that_cannot_be_recorded_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let record = |pid: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        let output = command
            .args(["record", "-p", pid])
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert_eq!(output.stdout, b"");
        // Nothing was recorded.
        assert!(!folder.path().join("fgraph.data").exists());
        (output.status.code(), said(&output))
    };
    let (code, text) = record("4000000");
    assert_eq!(code, Some(126));
    assert_eq!(
        text,
        "fgraph: process 4000000 cannot be recorded: there is no process 4000000\n"
    );
    let (code, _) = record("x");
    assert_eq!(code, Some(2));
}
