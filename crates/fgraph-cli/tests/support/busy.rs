//! A program that is never idle, for being attached to.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Threads call functions, fork and throw away memory until standard input ends; the exit code is 0
/// if every result was right.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
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

__attribute__((noinline)) long sys_read(long n)
{
    __asm__ volatile("" : "+r"(n));
    return n + 1;
}

__attribute__((noinline)) long sys_write(long n)
{
    return sys_read(n) + 2;
}

static void *works(void *unused)
{
    while (!end) {
        if (sys_write(3) != 6)
            failed = 3;
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
#ifdef USER
    if (setresuid(USER, USER, USER) != 0)
        return 9;
#endif
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

/// Instructions in a mapping, which may be split later.
pub(crate) struct Text {
    mapping: String,
    start: u64,
    bytes: Vec<u8>,
}

/// The program at work. It is killed if the test ends before it.
pub(crate) struct Program {
    pub(crate) child: Child,
    pub(crate) folder: TempDir,
}

impl Program {
    /// A directory with the program, and the program.
    pub(crate) fn compile(cc: &Path) -> (TempDir, PathBuf) {
        Self::compile_with(cc, &[])
    }

    pub(crate) fn compile_with(cc: &Path, flags: &[&str]) -> (TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let (source, program) = (folder.path().join("busy.c"), folder.path().join("busy"));
        fs::write(&source, PROGRAM).unwrap();
        let mut compiler = Command::new(cc);
        compiler.args(["-O1", "-pthread", "-o"]).arg(&program);
        compiler.args(flags);
        assert!(compiler.arg(&source).status().unwrap().success());
        (folder, program)
    }

    pub(crate) fn start(cc: &Path) -> Self {
        let (folder, program) = Self::compile(cc);
        Self::start_as(folder, &mut Command::new(program))
    }

    /// Runs the program by a command.
    pub(crate) fn start_as(folder: TempDir, command: &mut Command) -> Self {
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

    pub(crate) fn recording(&self) -> PathBuf {
        self.folder.path().join("fgraph.data")
    }

    pub(crate) fn recorder(&self, options: &[&str]) -> Command {
        self.recorder_to(&self.recording(), options)
    }

    pub(crate) fn recorder_to(&self, recording: &Path, options: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        command
            .args(["record", "-o"])
            .arg(recording)
            .args(["-p", &self.child.id().to_string()])
            .args(options)
            .stderr(Stdio::piped());
        command
    }

    pub(crate) fn record(&self, options: &[&str]) -> Output {
        self.recorder(options).output().unwrap()
    }

    /// The instructions of the program and of its libraries, but for the agent's, and where they
    /// are.
    pub(crate) fn text(&self) -> Vec<Text> {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.child.id())).unwrap();
        let lines = maps.lines().filter(|line| line.contains("r-xp"));
        let files = lines.filter(|line| line.contains(" /") && !line.contains("fgraph-agent"));
        let read = |line: &str| {
            let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
            let [start, end] = [start, end].map(|hex| u64::from_str_radix(hex, 16).unwrap());
            Text {
                mapping: line.to_owned(),
                start,
                bytes: self.bytes(start, (end - start) as usize),
            }
        };
        files.map(read).collect()
    }

    fn bytes(&self, start: u64, len: usize) -> Vec<u8> {
        let memory = File::open(format!("/proc/{}/mem", self.child.id())).unwrap();
        let mut bytes = vec![0; len];
        memory.read_exact_at(&mut bytes, start).unwrap();
        bytes
    }

    /// A mapping whose instructions are others than they were.
    pub(crate) fn changed(&self, before: &[Text]) -> Option<String> {
        let differs = |text: &&Text| self.bytes(text.start, text.bytes.len()) != text.bytes;
        before.iter().find(differs).map(|text| text.mapping.clone())
    }

    pub(crate) fn threads(&self) -> usize {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id()));
        tasks.unwrap().count()
    }

    /// Waits until it has this number of threads: one that was joined is still listed for a moment.
    /// Returns false if it never has.
    pub(crate) fn comes_to(&self, threads: usize) -> bool {
        let until = Instant::now() + Duration::from_secs(20);
        while self.threads() != threads && Instant::now() < until {
            thread::sleep(Duration::from_millis(5));
        }
        self.threads() == threads
    }

    pub(crate) fn end(mut self) -> ExitStatus {
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
