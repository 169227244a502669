//! `fgraph record -p` on programs that run, which go on as if nothing had been.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::busy::Program;
use crate::support::compiled::FGRAPH;
use crate::support::copy_program;
use fgraph_needs::{CC, GDB, MUSL_GCC, needs, skip};
use fgraph_protocol::{CALLS, OWN_CALLS};
use fgraph_trace::event::What;
use fgraph_trace::{Recording, Source};

/// Returns the numbers of entries and ends of `work`.
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
        assert_eq!(program.changed(&text), None);
        assert!(program.comes_to(threads));
    }
    assert_eq!(program.end().code(), Some(0));
}

/// Calls `work` about each millisecond, until its input ends.
const CALM: &str = r#"
#include <poll.h>
#include <stdio.h>
__attribute__((noinline)) int work(int n) { return (n * 1103515245 + 12345) & 0x7fffffff; }
int main(void) {
    struct pollfd input = {0, POLLIN, 0};
    int n = 0;
    puts("ready");
    fflush(stdout);
    while (!poll(&input, 1, 1))
        n = work(n);
    return n < 0;
}
"#;

/// Starts a program with few calls and no children.
fn calm(cc: &Path) -> Program {
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("calm.c"), folder.path().join("calm"));
    fs::write(&source, CALM).unwrap();
    let mut compiler = Command::new(cc);
    compiler.args(["-O1", "-o"]).arg(&program).arg(&source);
    assert!(compiler.status().unwrap().success());
    Program::start_as(folder, &mut Command::new(program))
}

/// Returns the processes with calls in a recording.
fn recorded(recording: &Path) -> BTreeSet<u32> {
    let mut recording = Recording::open(recording).unwrap();
    let mut found = BTreeSet::new();
    while let Some(event) = recording.next().unwrap() {
        let function = match event.what {
            What::Entry { function, .. } => function,
            _ => continue,
        };
        let process = event.process;
        if found.insert(process) {
            assert_eq!(recording.names().function_name(process, function), "work");
        }
    }
    found
}

#[test]
fn several_processes_are_in_one_recording_without_those_that_cannot_be() {
    let cc = needs!(CC.find());
    let [first, second, third] = [(); 3].map(|()| calm(&cc));
    let texts = [&first, &second, &third].map(Program::text);
    let [b, c] = [&second, &third].map(|it| it.child.id());
    let all: BTreeSet<u32> = [first.child.id(), b, c].into();
    let both = format!("{b},{c}");
    // Each is recorded once, even if it is named twice.
    let options = [
        "-p",
        &both,
        "-p",
        &b.to_string(),
        "--time",
        "300ms",
        "-F",
        "work",
    ];
    let output = first.record(&options);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert_eq!(recorded(&first.recording()), all, "{}", said(&output));
    let missing = format!("{},{both}", u32::MAX / 4);
    let output = first.record(&["-p", &missing, "--time", "300ms", "-F", "work"]);
    let text = said(&output);
    assert!(
        text.contains("process 1073741823 cannot be recorded: there is no such process"),
        "{text}"
    );
    assert_eq!(output.status.code(), Some(126), "{text}");
    assert_eq!(recorded(&first.recording()), all, "{text}");
    for (program, text) in [first, second, third].into_iter().zip(texts) {
        assert_eq!(program.changed(&text), None);
        assert_eq!(program.end().code(), Some(0));
    }
}

#[test]
fn processes_that_all_cannot_be_recorded_are_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fgraph.data");
    let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
    command.args(["record", "-p", "1073741823,1073741822", "-o"]);
    let output = command.arg(&path).output().unwrap();
    let text = said(&output);
    assert_eq!(output.status.code(), Some(126), "{text}");
    for process in ["1073741823", "1073741822"] {
        let expected = format!("process {process} cannot be recorded: there is no such process");
        assert_eq!(text.matches(&expected).count(), 1, "{text}");
    }
    assert!(!path.exists());
}

#[test]
fn commands_that_record_first_attach_to_several_processes() {
    let cc = needs!(CC.find());
    let [first, second] = [(); 2].map(|()| calm(&cc));
    let both = [&first, &second].map(|it| it.child.id().to_string());
    let both = both.join(",");
    for words in [
        &["top", "--time", "200ms"][..],
        &["probe", "work", "count", "--time", "200ms"],
        &["heap", "--time", "200ms"],
        &["why", "-F", "work", "--time", "200ms"],
        &["tasks", "--time", "200ms", "-F", "work"],
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        let output = command.args(words).args(["-p", &both]).output().unwrap();
        let text = said(&output);
        assert!(!text.contains("cannot be recorded"), "{words:?}: {text}");
        assert!([Some(0), Some(3)].contains(&output.status.code()), "{text}");
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
    let output = command.args(["tasks", "--await", "-p", &both]).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(said(&output), "fgraph: --await takes one process\n");
    assert_eq!([first, second].map(|it| it.end().code()), [Some(0); 2]);
}

#[test]
fn recording_goes_on_until_the_last_process_has_ended() {
    let cc = needs!(CC.find());
    let [first, second] = [(); 2].map(|()| Program::start(&cc));
    let both = [&first, &second].map(|it| it.child.id()).into();
    let other = second.child.id().to_string();
    let path = first.folder.path().join("both.data");
    let recorder = first.recorder_to(&path, &["-p", &other, "-F", "work"]);
    let mut recorder = { recorder }.spawn().unwrap();
    let grows_beyond = |len: u64| {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            match fs::metadata(&path).map_or(0, |file| file.len()) {
                now if now > len => return now,
                _ => assert!(Instant::now() < until),
            }
            thread::sleep(Duration::from_millis(5));
        }
    };
    let len = grows_beyond(10_000);
    let mut first = first;
    drop(first.child.stdin.take());
    assert_eq!(first.child.wait().unwrap().code(), Some(0));
    let len = grows_beyond(len + 100_000);
    grows_beyond(len + 100_000);
    assert_eq!(recorder.try_wait().unwrap(), None);
    assert_eq!(second.end().code(), Some(0));
    let output = recorder.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(recorded(&path).is_superset(&both));
}

#[test]
fn a_debugger_attaches_where_a_recorder_was() {
    let program = Program::start(&needs!(CC.find()));
    let gdb = needs!(GDB.find());
    for _ in 0..2 {
        let output = program.record(&["--time", "100ms", "-F", "work"]);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        let mut debugger = Command::new("timeout");
        debugger.args(["-s", "KILL", "30"]).arg(&gdb);
        debugger.args(["-nx", "-batch", "-p", &program.child.id().to_string()]);
        debugger.args(["-ex", "thread apply all bt", "-ex", "detach"]);
        let output = debugger.stdin(Stdio::null()).output().unwrap();
        let shown = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{shown}{}", said(&output));
        assert!(shown.contains(" in works "), "{shown}");
    }
    assert_eq!(program.end().code(), Some(0));
}

#[test]
fn debugger_names_the_trampolines() {
    let (folder, program) = Program::compile(&needs!(CC.find()));
    let gdb = needs!(GDB.find());
    let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
    let recording = folder.path().join("fgraph.data");
    // No event is lost then: a call whose entry is lost has no frame.
    command.args(["record", "-F", "work", "-o"]);
    let recorder = Program::start_as(folder, command.arg(recording).arg(program));
    let mut debugger = Command::new("timeout");
    debugger.args(["-s", "KILL", "30"]).arg(&gdb);
    let program = child_of(recorder.child.id()).to_string();
    // A thread that stops there is in a traced call.
    debugger.args(["-nx", "-batch", "-p", &program, "-ex", "break work"]);
    debugger.args([
        "-ex", "continue", "-ex", "bt", "-ex", "delete", "-ex", "detach",
    ]);
    let output = debugger.stdin(Stdio::null()).output().unwrap();
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(
        shown.contains(" in fgraph_trampoline "),
        "{shown}{}",
        said(&output)
    );
    assert!(shown.contains(" in works "), "{shown}");
    assert!(!shown.contains(" in ?? "), "{shown}");
    assert_eq!(recorder.end().code(), Some(0));
}

#[test]
fn a_shell_that_waits_for_the_command_is_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let script = "\
        \"$0\" top -p $$ --time 200ms | tail -1
        said=$(\"$0\" record -p $$ -o \"$1\" --time 200ms 2>&1) || echo \"$said\"";
    let mut shell = Command::new("timeout");
    shell.args(["-s", "KILL", "60", "bash", "-c", script]);
    shell.arg(env!("CARGO_BIN_EXE_fgraph"));
    let output = shell.arg(folder.path().join("fgraph.data")).output();
    let output = output.unwrap();
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(!shown.contains("fgraph:"), "{shown}{}", said(&output));
    assert_eq!(output.status.code(), Some(0), "{shown}{}", said(&output));
    Recording::open(&folder.path().join("fgraph.data")).unwrap();
}

#[test]
fn a_process_has_one_recorder_and_may_have_another_when_that_is_gone() {
    let program = Program::start(&needs!(CC.find()));
    let text = program.text();
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
    // Its guard sees to that.
    while let Some(mapping) = program.changed(&text) {
        assert!(Instant::now() < until, "{mapping}");
        thread::sleep(Duration::from_millis(5));
    }
    let output = second();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(calls(&other).0 > 100);
    assert_eq!(program.end().code(), Some(0));
}

/// The child of a process, which has one.
fn child_of(process: u32) -> u32 {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let children = format!("/proc/{process}/task/{process}/children");
        let children = fs::read_to_string(children).unwrap();
        if let Some(child) = children.split_whitespace().next() {
            return child.parse().unwrap();
        }
        assert!(Instant::now() < until);
        thread::sleep(Duration::from_millis(5));
    }
}

/// A thread that traces all threads of a process until it is dropped.
struct Tracer {
    end: Option<mpsc::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Tracer {
    fn of(process: u32) -> Self {
        let (end, is_over) = mpsc::channel();
        let (begun, has_begun) = mpsc::channel();
        let trace = move || {
            for task in fs::read_dir(format!("/proc/{process}/task")).unwrap() {
                let task: i32 = task.unwrap().file_name().to_str().unwrap().parse().unwrap();
                // SAFETY: it stops nothing. The thread goes on when this one ends.
                let seized = unsafe { libc::ptrace(libc::PTRACE_SEIZE, task, 0, 0) };
                assert_eq!(seized, 0, "{}", io::Error::last_os_error());
            }
            begun.send(()).unwrap();
            // It ends when there is no sender any more.
            let _ = is_over.recv();
        };
        let thread = thread::spawn(trace);
        has_begun.recv().unwrap();
        Self {
            end: Some(end),
            thread: Some(thread),
        }
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        drop(self.end.take());
        let _ = self.thread.take().map(thread::JoinHandle::join);
    }
}

#[test]
fn a_guard_tries_again_where_no_thread_can_be_held() {
    let program = Program::start(&needs!(CC.find()));
    let text = program.text();
    let mut recorder = program.recorder(&["-F", "work"]).spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while fs::metadata(program.recording()).map_or(0, |file| file.len()) < 10_000 {
        assert!(Instant::now() < until);
        thread::sleep(Duration::from_millis(5));
    }
    let guard = child_of(recorder.id());
    let arguments = fs::read_to_string(format!("/proc/{guard}/cmdline")).unwrap();
    assert!(arguments.contains("--guard"), "{arguments}");
    // As a recorder that is killed does, whose threads the kernel has not ended yet.
    let tracer = Tracer::of(program.child.id());
    recorder.kill().unwrap();
    recorder.wait().unwrap();
    // It sleeps once its first attempt has failed.
    let sleeps = [libc::SYS_nanosleep, libc::SYS_clock_nanosleep];
    let sleeps = sleeps.map(|call| format!("{call} "));
    loop {
        let call = fs::read_to_string(format!("/proc/{guard}/syscall"));
        let call = call.expect("the guard is there");
        if sleeps.iter().any(|sleep| call.starts_with(sleep)) {
            break;
        }
        assert!(Instant::now() < until, "{call}");
        thread::sleep(Duration::from_millis(1));
    }
    assert!(program.changed(&text).is_some());
    drop(tracer);
    while let Some(mapping) = program.changed(&text) {
        assert!(Instant::now() < until, "{mapping}");
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(program.end().code(), Some(0));
}

#[test]
fn a_process_in_another_pid_namespace_has_one_recorder_as_well() {
    let unshare = |command: &Path| {
        let mut unshare = Command::new("unshare");
        unshare
            .args(["--pid", "--fork", "--kill-child"])
            .arg(command);
        unshare
    };
    let tried = unshare(Path::new("true")).output();
    if !tried.is_ok_and(|output| output.status.success()) {
        return skip!("no right to make a PID namespace, or no unshare");
    }
    let (folder, busy) = Program::compile(&needs!(CC.find()));
    let program = Program::start_as(folder, &mut unshare(&busy));
    let process = child_of(program.child.id()).to_string();
    let fgraph = |words: &[&str], file: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        command
            .args(words)
            .args(["-p", &process])
            .stderr(Stdio::piped());
        command.arg("-o").arg(program.folder.path().join(file));
        command
    };
    let record = ["record", "-F", "work"];
    for is_killed in [false, true] {
        let mut first = fgraph(&record, "first").spawn().unwrap();
        let recording = program.folder.path().join("first");
        let until = Instant::now() + Duration::from_secs(120);
        while fs::metadata(&recording).map_or(0, |file| file.len()) < 10_000 {
            assert!(Instant::now() < until);
            thread::sleep(Duration::from_millis(5));
        }
        let short = [&record[..], &["--time", "100ms"]].concat();
        let refused = fgraph(&short, "second").output().unwrap();
        let expected = format!("process {} records it already", first.id());
        assert_eq!(refused.status.code(), Some(126), "{}", said(&refused));
        assert!(said(&refused).contains(&expected), "{}", said(&refused));
        let signal = if is_killed {
            libc::SIGKILL
        } else {
            libc::SIGINT
        };
        // SAFETY: a signal to a process that we have started.
        assert_eq!(unsafe { libc::kill(first.id() as i32, signal) }, 0);
        first.wait().unwrap();
        assert!(calls(&recording).0 > 100);
        // The next one takes its place as soon as it is gone.
        let output = fgraph(&short, "second").output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        assert!(calls(&program.folder.path().join("second")).0 > 100);
        fs::remove_file(&recording).unwrap();
    }

    let hold = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        command
            .args(["attach", "--stay", &process])
            .stderr(Stdio::piped());
        command
    };
    let mut holder = hold().spawn().unwrap();
    let status = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        command.args(["ctl", &process, "status"]).output().unwrap()
    };
    let until = Instant::now() + Duration::from_secs(120);
    while !status().status.success() {
        assert!(Instant::now() < until);
        thread::sleep(Duration::from_millis(20));
    }
    let refused = hold().output().unwrap();
    let expected = format!("process {} is attached to it already", holder.id());
    assert!(said(&refused).contains(&expected), "{}", said(&refused));
    // SAFETY: a signal to a process that we have started.
    assert_eq!(unsafe { libc::kill(holder.id() as i32, libc::SIGINT) }, 0);
    assert_eq!(holder.wait().unwrap().code(), Some(0));
    assert_eq!(program.end().code(), Some(0));
}

/// Lets a command ignore and block all signals, as far as these can be. It does not ignore those of
/// traps, which fgraph handles in a program.
fn ignores_signals(command: &mut Command) {
    let ignore = || {
        for signal in (1..32).filter(|signal| ![libc::SIGTRAP, libc::SIGILL].contains(signal)) {
            // SAFETY: it replaces no handler of ours: the process executes the command next.
            unsafe { libc::signal(signal, libc::SIG_IGN) };
        }
        // SAFETY: zeros are a set, which is filled.
        unsafe {
            let mut all = std::mem::zeroed();
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
        }
        Ok(())
    };
    // SAFETY: it only makes system calls.
    unsafe { command.pre_exec(ignore) };
}

#[test]
fn recorder_that_is_started_to_ignore_signals_ends_by_them() {
    let program = Program::start(&needs!(CC.find()));
    let before = program.text();
    for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM] {
        let mut recorder = program.recorder(&["-F", "work"]);
        ignores_signals(&mut recorder);
        let recorder = recorder.spawn().unwrap();
        let until = Instant::now() + Duration::from_secs(120);
        while fs::metadata(program.recording()).map_or(0, |file| file.len()) < 10_000 {
            assert!(Instant::now() < until);
            thread::sleep(Duration::from_millis(5));
        }
        // SAFETY: a signal to a process that we have started.
        assert_eq!(unsafe { libc::kill(recorder.id() as i32, signal) }, 0);
        let output = recorder.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        assert!(calls(&program.recording()).0 > 100);
        fs::remove_file(program.recording()).unwrap();
        assert_eq!(program.changed(&before), None);
    }
    assert_eq!(program.end().code(), Some(0));
}

#[test]
fn recorded_program_ignores_and_blocks_the_signals_that_it_would_untraced() {
    let folder = tempfile::tempdir().unwrap();
    let words = ["-E", "^Sig(Ign|Blk)", "/proc/self/status"];
    let run = |command: &mut Command, ignores: bool| {
        if ignores {
            ignores_signals(command);
        }
        let output = command.args(words).output().unwrap();
        let lines = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(lines.lines().count(), 2, "{}", said(&output));
        (lines, output.status.code())
    };
    for ignores in [false, true] {
        let plain = run(&mut Command::new("grep"), ignores);
        let mut recorder = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        recorder
            .args(["record", "-o"])
            .arg(folder.path().join("fgraph.data"));
        assert_eq!(run(recorder.args(["--", "grep"]), ignores), plain);
    }
}

#[test]
fn the_newest_events_of_a_program_that_runs_are_kept_until_a_trigger_fires() {
    let program = Program::start(&needs!(CC.find()));
    let mut options = ["--time", "300ms", "--trigger", "call:work"];
    let output = program.record(&options);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(calls(&program.recording()).0 > 0, "{}", said(&output));
    fs::remove_file(program.recording()).unwrap();
    options[3] = "exit!=0";
    let output = program.record(&options);
    assert!(
        said(&output).contains("no trigger has fired"),
        "{}",
        said(&output)
    );
    assert!(!program.recording().exists());
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

/// Ends once the agent has a thread.
const SHY: &str = r#"
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void *looks(void *unused)
{
    struct dirent *task;
    char path[300], name[16];
    for (;;) {
        DIR *tasks = opendir("/proc/self/task");
        while ((task = readdir(tasks))) {
            sprintf(path, "/proc/self/task/%s/comm", task->d_name);
            FILE *file = fopen(path, "r");
            if (file && fgets(name, sizeof name, file) && !strcmp(name, "fgraph-agent\n"))
                _exit(0);
            if (file)
                fclose(file);
        }
        closedir(tasks);
        usleep(100);
    }
}

int main(void)
{
    pthread_t thread;
    pthread_create(&thread, 0, looks, 0);
    puts("ready");
    fflush(stdout);
    return getchar();
}
"#;

#[test]
fn a_process_that_ends_when_it_is_attached_to_is_not_waited_for() {
    let cc = needs!(CC.find());
    let folder = tempfile::tempdir().unwrap();
    let [source, shy] = ["shy.c", "shy"].map(|name| folder.path().join(name));
    fs::write(&source, SHY).unwrap();
    let compiled = Command::new(cc)
        .args([&source])
        .args(["-pthread", "-o"])
        .arg(&shy)
        .status();
    assert!(compiled.unwrap().success());
    // Nobody waits for it before the recorder has ended: it is a zombie meanwhile.
    let program = Program::start_as(folder, &mut Command::new(shy));
    let output = program.record(&["--libs", "--time", "1s"]);
    let text = said(&output);
    assert!(!text.contains("does not answer"), "{text}");
}

#[test]
fn an_interrupt_ends_the_view_of_a_program_that_never_pauses() {
    let program = Program::start(&needs!(CC.find()));
    let text = program.text();
    let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
    command.args(["live", "-p", &program.child.id().to_string()]);
    let mut live = command.stdout(Stdio::piped()).spawn().unwrap();
    // It is read as fast as can be: there is always more.
    let mut out = live.stdout.take().unwrap();
    let mut bytes = vec![0; 1 << 16];
    assert!(out.read(&mut bytes).unwrap() > 0);
    let kill = format!("kill -INT {}", live.id());
    let kill = Command::new("sh").args(["-c", &kill]).status();
    assert!(kill.unwrap().success());
    let until = Instant::now() + Duration::from_secs(60);
    while out.read(&mut bytes).unwrap() > 0 {
        assert!(Instant::now() < until);
    }
    assert_eq!(live.wait().unwrap().code(), Some(0));
    assert_eq!(program.changed(&text), None);
    assert_eq!(program.end().code(), Some(0));
}

#[test]
fn views_end_after_their_time_and_the_program_goes_on() {
    let program = Program::start(&needs!(CC.find()));
    let text = program.text();
    let pid = program.child.id().to_string();
    for view in ["live", "top"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        let output = command.args([view, "--time", "300ms", "-p", &pid]).output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        assert!(!output.stdout.is_empty(), "{view}");
        assert_eq!(program.changed(&text), None);
    }
    assert_eq!(program.end().code(), Some(0));
}

#[test]
fn views_say_what_recording_cost() {
    let program = Program::start(&needs!(CC.find()));
    let fgraph = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        let command = command.arg("--no-config").args(arguments);
        command.current_dir(program.folder.path()).output().unwrap()
    };
    let pid = program.child.id().to_string();
    let recorded = fgraph(&[
        "record",
        "-F",
        "work sys_read",
        "--max-size",
        "64K",
        "--buffer",
        "64K",
        "-p",
        &pid,
    ]);
    assert!(recorded.status.success(), "{recorded:?}");
    for (view, advice) in [
        (&["report"][..], "record with -N 'work' or --budget"),
        (&["report", "-F", "work"], "record with --budget"),
        (
            &["report", "--time", "cpu"],
            "record with -N 'work' or --budget",
        ),
        (&["graph", "work"], "record with --budget"),
        (&["outliers"], "record with -N 'work' or --budget"),
    ] {
        let shown = fgraph(&[view, &["--json"]].concat());
        let said = String::from_utf8(shown.stderr).unwrap();
        let line = said
            .lines()
            .find(|line| line.contains("recording took about"));
        assert!(
            line.is_some_and(|it| it.contains(advice)),
            "{view:?}: {said}"
        );
        let json: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
        let percent = json["overhead_percent"].as_u64();
        assert!(percent.is_some_and(|it| it >= 10), "{view:?}: {percent:?}");
    }
    assert_eq!(program.end().code(), Some(0));
}

#[test]
fn a_recorder_says_that_calls_which_had_begun_before_are_not_recorded() {
    let program = Program::start(&needs!(CC.find()));
    let pid = program.child.id().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
    let command = command.args(["record", "--time", "10ms", "-F", "main", "-p", &pid]);
    let output = command.current_dir(program.folder.path()).output().unwrap();
    let text = said(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(
        text.contains("none of the selected functions was called\n"),
        "{text}"
    );
    let why = "calls that had begun before are not recorded; `fgraph top -p";
    assert!(text.contains(&format!("{why} {pid}`")), "{text}");
    assert_eq!(program.end().code(), Some(0));
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
        "fgraph: process 4000000 cannot be recorded: there is no such process\n"
    );
    let (code, _) = record("x");
    assert_eq!(code, Some(2));
}

#[test]
fn recording_ends_and_says_so_when_the_process_executes_another_program() {
    let folder = tempfile::tempdir().unwrap();
    let mut shell = Command::new("sh");
    let shell = shell.args(["-c", "echo ready; read line; exec cat >&2"]);
    let mut program = Program::start_as(folder, shell);
    let recorder = program.recorder(&[]).spawn().unwrap();
    let has_agent = |program: &Program| {
        let maps = fs::read_to_string(format!("/proc/{}/maps", program.child.id()));
        maps.unwrap().contains("fgraph-agent")
    };
    let until = Instant::now() + Duration::from_secs(60);
    // It has begun when it has written the first block.
    while fs::metadata(program.recording()).map_or(0, |file| file.len()) == 0 {
        assert!(Instant::now() < until);
        thread::sleep(Duration::from_millis(5));
    }
    assert!(has_agent(&program));
    let input = program.child.stdin.as_mut().unwrap();
    input.write_all(b"go on\n").unwrap();
    let output = recorder.wait_with_output().unwrap();
    let text = said(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    let expected = format!(
        "process {} has executed another program",
        program.child.id()
    );
    assert!(text.contains(&expected), "{text}");
    assert!(!has_agent(&program));
    assert_eq!(program.end().code(), Some(0));
}

#[test]
fn forbidden_attaching_is_reported_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let command = folder.path().join("fgraph");
    copy_program(FGRAPH, &command);
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let mut recorder = Command::new(&command);
    recorder
        .args(["record", "-p", "1"])
        .current_dir(folder.path())
        // The home would be root's.
        .env_clear();
    // SAFETY: it only asks.
    if unsafe { libc::geteuid() } == 0 {
        chown(folder.path(), Some(65534), None).unwrap();
        recorder.uid(65534);
    }
    let output = recorder.output().unwrap();
    let text = said(&output);
    assert_eq!(
        (output.status.code(), text.lines().count()),
        (Some(126), 1),
        "{text}"
    );
    let expected = "process 1 cannot be recorded: it cannot be looked into: it belongs to user 0";
    assert!(text.contains(expected), "{text}");
    assert!(!folder.path().join("fgraph.data").exists());
}

#[test]
fn an_old_recording_stays_when_nothing_is_recorded() {
    let (folder, busy) = Program::compile_with(&needs!(CC.find()), &["-static"]);
    let program = Program::start_as(folder, &mut Command::new(busy));
    fs::write(program.recording(), "an old recording").unwrap();
    let link = program.folder.path().join("link");
    symlink("/dev/null", &link).unwrap();
    for path in [&program.recording(), &link] {
        let output = program.recorder_to(path, &[]).output().unwrap();
        assert_eq!(output.status.code(), Some(126));
        assert!(
            said(&output).contains("statically linked"),
            "{}",
            said(&output)
        );
    }
    assert_eq!(fs::read(program.recording()).unwrap(), b"an old recording");
    assert!(link.is_symlink());
    assert_eq!(program.end().code(), Some(0));
}

/// A thread of a program computes until standard input ends. It is killed if a thread makes another
/// system call than those whose numbers it is given.
const CONFINED: &str = r#"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

static volatile int end;

__attribute__((noinline)) long work(long n)
{
    __asm__ volatile("" : "+r"(n));
    return n < 2 ? n : work(n - 1) + work(n - 2);
}

static void *works(void *unused)
{
    while (!end)
        if (work(12) != 144)
            _exit(2);
    return unused;
}

int main(int argc, char **argv)
{
    struct sock_filter filter[512] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    };
    int len = 1;
    for (int i = 1; i < argc; i++) {
        filter[len++] =
            (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, atoi(argv[i]), 0, 1);
        filter[len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    }
    filter[len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    struct sock_fprog program = {len, filter};
    pthread_t thread;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
        || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0
        || pthread_create(&thread, 0, works, 0) != 0 || write(1, "ready", 5) != 5)
        return 3;
    char byte;
    while (read(0, &byte, 1) > 0) {
    }
    end = 1;
    return pthread_join(thread, 0);
}
"#;

#[test]
fn a_program_that_may_make_no_other_calls_than_the_agent_is_recorded() {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    // SAFETY: it only asks.
    if !status.contains("Seccomp:\t0") || unsafe { libc::geteuid() } != 0 {
        return fgraph_needs::skip!("only root sees the filters of others");
    }
    let directory = tempfile::tempdir().unwrap();
    let [source, program, recording] =
        ["confined.c", "confined", "data"].map(|name| directory.path().join(name));
    fs::write(&source, CONFINED).unwrap();
    let mut compiler = Command::new(needs!(CC.find()));
    let compiler = compiler.args(["-O1", "-pthread", "-o"]).arg(&program);
    assert!(compiler.arg(source).status().unwrap().success());
    // Attaching takes the first four, and the program's end the last.
    let others = [
        libc::SYS_clone,
        libc::SYS_clone3,
        libc::SYS_socketpair,
        libc::SYS_recvmsg,
        libc::SYS_exit_group,
    ];
    let calls = [CALLS, OWN_CALLS, &others].concat();
    let mut child = Command::new(program)
        .args(calls.iter().map(i64::to_string))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdout
        .take()
        .unwrap()
        .read_exact(&mut [0; 5])
        .unwrap();
    for _ in 0..2 {
        let mut recorder = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        recorder.args(["record", "--time", "300ms", "-F", "work", "-o"]);
        let recorder = recorder
            .arg(&recording)
            .arg("-p")
            .arg(child.id().to_string());
        let output = recorder.output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        assert!(self::calls(&recording).0 > 100);
    }
    drop(child.stdin.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn an_agent_of_another_version_is_named() {
    let cc = needs!(CC.find());
    let (folder, busy) = Program::compile(&cc);
    // Its name is the program's to choose.
    let other = folder.path().join("fgraph-agent-\x1b[31m0.so");
    let mut compiler = Command::new(&cc);
    compiler.args(["-shared", "-x", "c", "/dev/null", "-o"]);
    assert!(compiler.arg(&other).status().unwrap().success());
    let program = Program::start_as(folder, Command::new(busy).env("LD_PRELOAD", &other));
    let pid = program.child.id().to_string();
    let commands: [&[&str]; 4] = [
        &["detach", &pid],
        &["attach", &pid],
        &["record", "-o", "/dev/null", "-p", &pid],
        &["ctl", &pid, "ls"],
    ];
    for command in commands {
        let fgraph = Command::new(env!("CARGO_BIN_EXE_fgraph"))
            .args(command)
            .output();
        let output = fgraph.unwrap();
        assert_eq!(output.status.code(), Some(126), "{command:?}");
        let text = said(&output);
        assert!(text.contains("another version is loaded: "), "{text}");
        assert!(text.ends_with("fgraph-agent-\\x1b[31m0.so\n"), "{text:?}");
    }
    assert_eq!(program.end().code(), Some(0));
}

/// Returns the KiB of anonymous memory of a process, and those in text of files.
fn anonymous(process: u32) -> (u64, u64) {
    let smaps = fs::read_to_string(format!("/proc/{process}/smaps")).unwrap();
    let (mut all, mut text, mut is_text) = (0, 0, false);
    for line in smaps.lines() {
        if let Some(kib) = line.strip_prefix("Anonymous:") {
            let kib: u64 = kib.trim().trim_end_matches(" kB").parse().unwrap();
            all += kib;
            text += if is_text { kib } else { 0 };
        } else if line
            .split(' ')
            .next()
            .is_some_and(|word| word.contains('-'))
        {
            is_text = line.contains(" r-xp ") && line.contains(" /");
        }
    }
    (all, text)
}

#[test]
fn a_process_that_has_changed_its_user_keeps_no_more_memory_after_many_recordings() {
    // SAFETY: a system call.
    if unsafe { libc::geteuid() } != 0 {
        return skip!("only root starts programs as another user");
    }
    let (folder, program) = Program::compile_with(&needs!(CC.find()), &["-DUSER=65534"]);
    // It compares its text with that of its file.
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = Program::start_as(folder, &mut Command::new(program));
    let before = anonymous(program.child.id()).1;
    let record = || {
        let output = program.record(&["--time", "50ms", "--libs"]);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        anonymous(program.child.id())
    };
    // Text stays where another thread is in the middle of a change of mappings, until the next end.
    let settled = || (0..10).map(|_| record()).find(|kib| kib.1 == before);
    let (first, _) = settled().expect("text stays private");
    (2..9).for_each(|_| _ = record());
    let (last, _) = settled().expect("text stays private");
    // Arenas of the program's allocator may come meanwhile.
    assert!(last < first + 2048, "{first} KiB, then {last}");
    assert_eq!(program.end().code(), Some(0));
}

#[test]
fn process_whose_memory_is_limited_is_refused_with_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    for (option, limit) in [("-v", "RLIMIT_AS"), ("-d", "RLIMIT_DATA")] {
        let limited = format!("ulimit {option} 20000; echo ready; exec cat");
        let mut cat = Command::new("sh")
            .args(["-c", &limited])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = cat.stdout.take().unwrap();
        output.read_exact(&mut [0; 6]).unwrap();
        // It echoes once it is `cat`, whose C library is loaded then.
        cat.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        output.read_exact(&mut [0]).unwrap();
        let refused = Command::new(env!("CARGO_BIN_EXE_fgraph"))
            .args(["record", "--time", "100ms", "-p", &cat.id().to_string()])
            .current_dir(folder.path())
            .output()
            .unwrap();
        let text = said(&refused);
        assert_eq!(refused.status.code(), Some(126), "{text}");
        let expected = format!("its memory is limited to 19.5 MiB ({limit}), and ");
        assert!(text.contains(&expected), "{text}");
        drop(cat.stdin.take());
        assert_eq!(cat.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn programs_of_another_c_library_are_refused_and_go_on() {
    let (folder, busy) = Program::compile(&needs!(MUSL_GCC.find()));
    let refused = Command::new(env!("CARGO_BIN_EXE_fgraph"))
        .args(["record", "--"])
        .arg(&busy)
        .current_dir(folder.path())
        .output()
        .unwrap();
    let text = said(&refused);
    assert_eq!(refused.status.code(), Some(126), "{text}");
    assert!(
        text.contains("ld-musl-x86_64.so.1 is not glibc's"),
        "{text}"
    );
    // A shell of glibc's executes it: it runs untraced.
    let mut shell = Command::new(env!("CARGO_BIN_EXE_fgraph"));
    shell.args(["record", "-q", "--", "sh", "-c", "exec ./busy"]);
    let shell = shell
        .stdin(Stdio::null())
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert_eq!((shell.status.code(), said(&shell).as_str()), (Some(0), ""));
    let program = Program::start_as(folder, &mut Command::new(busy));
    let output = program.record(&[]);
    assert_eq!(output.status.code(), Some(126));
    assert!(
        said(&output).contains("does not use glibc"),
        "{}",
        said(&output)
    );
    assert_eq!(program.end().code(), Some(0));
}
