//! The command in a terminal, which tmux plays.

use crate::support::busy::Program;
use std::ffi::CStr;
use std::fs::{File, OpenOptions};
use std::io::Read as _;
use std::os::fd::FromRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use fgraph_needs::{CC, TMUX, needs};
use fgraph_trace::schedule::State;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::support::{Growing, recording};

/// Longest time until a screen shows the expected text.
const PATIENCE: Duration = Duration::from_secs(60);

/// A terminal of a server of its own, which ends with it.
struct Terminal {
    tmux: String,
    socket: String,
}

impl Terminal {
    /// A terminal in which a command runs, and a shell waits for its end.
    fn new(tmux: &str, directory: &Path, size: (u32, u32), command: &str) -> Self {
        Self::with("unset COLUMNS", tmux, directory, size, command)
    }

    /// Starts a terminal as [`new`](Self::new) does, after a command that sets variables.
    fn with(
        variables: &str,
        tmux: &str,
        directory: &Path,
        (width, height): (u32, u32),
        command: &str,
    ) -> Self {
        let this = Self {
            tmux: tmux.to_owned(),
            socket: directory.join("tmux").display().to_string(),
        };
        let program = env!("CARGO_BIN_EXE_fgraph");
        let program = format!("sh -c 'echo $PPID' > pid; exec '{program}' {command}");
        // The terminal's line mode is written after the end.
        let modes = "stty -a | grep -o ' -*icanon'";
        let command = format!("{variables}; ({program}); echo \"code $?.\"; {modes} > modes; cat");
        let (width, height) = (width.to_string(), height.to_string());
        let directory = directory.display().to_string();
        this.tmux(&[
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-x",
            &width,
            "-y",
            &height,
            "-c",
            &directory,
            &command,
        ]);
        this
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(&self.tmux);
        command.args(["-S", &self.socket]).args(arguments);
        let output = command.output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Waits until the command has ended with a code, and says what the screen shows then.
    #[track_caller]
    fn ends(&self, directory: &Path, code: u32) -> String {
        let screen = self.shows(&format!("code {code}."));
        let begin = Instant::now();
        let modes = || std::fs::read_to_string(directory.join("modes")).unwrap_or_default();
        while !modes().contains("icanon") {
            assert!(begin.elapsed() < PATIENCE, "{}", modes());
            sleep(Duration::from_millis(50));
        }
        assert_eq!(modes(), " icanon\n");
        screen
    }

    fn keys(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    /// Waits until the screen has a text.
    #[track_caller]
    fn shows(&self, text: &str) -> String {
        self.waits_for(|screen| screen.contains(text), text)
    }

    /// Waits until the screen does not show a text.
    fn shows_no_more(&self, text: &str) {
        self.waits_for(|screen| !screen.contains(text), text);
    }

    fn waits_for(&self, is_so: impl Fn(&str) -> bool, text: &str) -> String {
        let begin = Instant::now();
        loop {
            let screen = self.tmux(&["capture-pane", "-p"]);
            if is_so(&screen) {
                return screen;
            }
            assert!(begin.elapsed() < PATIENCE, "not so of {text:?}:\n{screen}");
            sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}

#[test]
fn a_recording_can_be_browsed() {
    let tmux = needs!(TMUX.find());
    let (directory, _) = recording();
    let tmux = tmux.display().to_string();
    let terminal = Terminal::new(&tmux, directory.path(), (100, 20), "tui");
    let screen = terminal.shows("[1 report]");
    let read = screen.lines().nth(2).unwrap();
    assert!(
        read.contains("5.006 ms") && read.ends_with("read"),
        "{screen}"
    );
    assert!(screen.contains(r"evil\x1b]0;owned"), "{screen}");
    terminal.keys(&["o"]);
    terminal.shows("function↓\n     40 ns");
    terminal.keys(&["/", "p", "a", "r", "s", "e", "Enter", "Enter"]);
    // Its branch of the graph, which opens and closes.
    terminal.shows("[2 graph]");
    let screen = terminal.shows("+ parse");
    assert!(screen.contains("- main"), "{screen}");
    terminal.keys(&["Right"]);
    terminal.shows("    read");
    terminal.keys(&["Home", "Left"]);
    terminal.shows("+ main");
    terminal.keys(&["4"]);
    terminal.shows("[4 outliers]");
    let screen = terminal.shows("parse in 100/100");
    assert!(screen.contains("5.000 ms"), "{screen}");
    terminal.keys(&["Enter"]);
    terminal.shows("[3 replay]");
    let screen = terminal.shows("parse(0x7) {");
    assert!(screen.contains("# 5000.000 us |"), "{screen}");
    terminal.keys(&["1"]);
    terminal.shows("[1 report]");
    terminal.keys(&["q"]);
    terminal.shows("code 0.");
}

#[test]
fn a_terminal_of_20_columns_is_wide_enough() {
    let tmux = needs!(TMUX.find());
    let tmux = tmux.display().to_string();
    for (command, shown) in [
        ("report", "self  function"),
        ("outliers", "1. parse took"),
        ("graph parse", "parse: 20 calls"),
        ("info", "processes  1"),
        ("tui", "[1 report]"),
    ] {
        let (directory, _) = recording();
        let terminal = Terminal::new(&tmux, directory.path(), (20, 30), command);
        terminal.shows(shown);
        if command == "tui" {
            terminal.keys(&["End", "q"]);
        }
        let screen = terminal.shows("code 0.");
        // No line of a table goes on in the next one.
        let tables = ["report", "outliers"];
        if tables.contains(&command) {
            assert!(screen.contains('…'), "{screen}");
        }
    }
}

#[test]
fn variables_ask_for_fewer_columns_and_no_colours() {
    let tmux = needs!(TMUX.find());
    let tmux = tmux.display().to_string();
    for command in ["report", "outliers", "top --libs -- true"] {
        let looks = |variables: &str| {
            let (directory, _) = recording();
            let terminal = Terminal::with(variables, &tmux, directory.path(), (100, 30), command);
            terminal.ends(directory.path(), 0);
            let screen = terminal.tmux(&["capture-pane", "-p", "-e"]);
            let widest = screen.lines().map(|line| line.chars().count()).max();
            (screen.contains('\x1b'), widest.unwrap() > 20, screen)
        };
        let (is_colored, is_wide, screen) = looks("unset COLUMNS NO_COLOR");
        assert!(is_colored && is_wide, "{command}: {screen}");
        let (is_colored, is_wide, screen) = looks("export COLUMNS=20 NO_COLOR=1");
        assert!(!is_colored && !is_wide, "{command}: {screen}");
        let (is_colored, is_wide, screen) = looks("unset COLUMNS NO_COLOR; export TERM=dumb");
        assert!(!is_colored && is_wide, "{command}: {screen}");
    }
}

/// Works until a signal ends it, in threads that have names.
const WORKS: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

__attribute__((noinline)) long work(long n)
{
    __asm__ volatile("" : "+r"(n));
    return n < 2 ? n : work(n - 1) + work(n - 2);
}

__attribute__((noinline)) long rest(long n)
{
    usleep(1000);
    return n + 1;
}

static void *rests(void *unused)
{
    pthread_setname_np(pthread_self(), "rester");
    for (long n = 0;;)
        n = rest(n);
    return unused;
}

int main(void)
{
    pthread_t thread;
    pthread_create(&thread, 0, rests, 0);
    puts("printed by the program");
    fflush(stdout);
    for (;;) {
        work(10);
        usleep(1000);
    }
}
"#;

/// A directory with that program, `works`.
fn works(cc: &Path) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("works.c");
    std::fs::write(&source, WORKS).unwrap();
    let mut compiler = Command::new(cc);
    compiler.args(["-O1", "-pthread", "-o"]);
    compiler.arg(directory.path().join("works")).arg(&source);
    assert!(compiler.status().unwrap().success());
    directory
}

#[test]
fn top_is_sorted_and_filtered_by_keys() {
    let (tmux, cc) = (needs!(TMUX.find()), needs!(CC.find()));
    let directory = works(&cc);
    let tmux = tmux.display().to_string();
    let command = "top --delay 100ms -- ./works";
    let terminal = Terminal::new(&tmux, directory.path(), (100, 20), command);
    terminal.shows("work [works]");
    let screen = terminal.shows("rest [works]");
    assert!(
        screen.contains("self↓") && screen.contains("p50"),
        "{screen}"
    );
    // The program's output does not come between.
    assert!(!screen.contains("printed by"), "{screen}");
    terminal.keys(&[">"]);
    terminal.shows("calls/s↓");
    terminal.keys(&["Left", "Left", "I"]);
    terminal.shows("now %↑");
    terminal.keys(&["o"]);
    terminal.shows("function↑");
    terminal.keys(&["/", "r", "e", "s", "t", "|", "m", "a", "i", "n"]);
    terminal.shows("/rest|main█");
    terminal.keys(&["Enter"]);
    let screen = terminal.shows("only rest|main ");
    assert!(
        screen.contains("rest [works]") && !screen.contains("work [works]"),
        "{screen}"
    );
    terminal.keys(&["Escape"]);
    terminal.shows("work [works]");
    terminal.keys(&["H"]);
    terminal.shows("thread↑");
    terminal.keys(&["\\", "r", "e", "s", "t", "e", "r", "Enter", "Enter"]);
    terminal.shows("; only rester ");
    let screen = terminal.shows("rest [works]");
    assert!(!screen.contains("work [works]"), "{screen}");
    terminal.keys(&["Escape"]);
    terminal.shows("work [works]");
    terminal.keys(&["p"]);
    terminal.shows("[paused]");
    terminal.keys(&["p", "?"]);
    terminal.shows("Keys:");
    terminal.keys(&["q", "q"]);
    // The program has ended by SIGINT.
    let screen = terminal.ends(directory.path(), 130);
    assert!(screen.contains("printed by the program"), "{screen}");
    let heading = screen.lines().position(|line| line.ends_with("function"));
    let heading = heading.unwrap_or_else(|| panic!("{screen}"));
    assert!(
        screen
            .lines()
            .skip(heading)
            .any(|it| it.ends_with("work [works]")),
        "{screen}"
    );
}

#[test]
fn a_program_is_browsed_while_it_runs() {
    let (tmux, cc) = (needs!(TMUX.find()), needs!(CC.find()));
    let directory = works(&cc);
    let tmux = tmux.display().to_string();
    let terminal = Terminal::new(&tmux, directory.path(), (100, 20), "tui -- ./works");
    let screen = terminal.shows(" rest\n");
    assert!(screen.contains("more to come"), "{screen}");
    assert!(!screen.contains("printed by"), "{screen}");
    terminal.keys(&["/", "w", "o", "r", "k", "Enter", "Enter"]);
    terminal.shows("[2 graph]");
    // Calls that go on are open branches.
    let screen = terminal.shows("  + work");
    assert!(screen.contains("- main"), "{screen}");
    terminal.keys(&["3"]);
    terminal.shows("work();");
    terminal.keys(&["p"]);
    terminal.shows(", paused");
    terminal.keys(&["4"]);
    terminal.shows("rest in ");
    terminal.keys(&["q"]);
    let screen = terminal.ends(directory.path(), 130);
    assert!(screen.contains("printed by the program"), "{screen}");
}

#[test]
fn a_process_is_browsed_and_goes_on() {
    let (tmux, cc) = (needs!(TMUX.find()), needs!(CC.find()));
    let program = Program::start(&cc);
    let tmux = tmux.display().to_string();
    let directory = program.folder.path();
    let command = format!("tui -F sys_write -F sys_read -p {}", program.child.id());
    let terminal = Terminal::new(&tmux, directory, (80, 24), &command);
    terminal.shows("sys_write");
    terminal.keys(&["2"]);
    terminal.shows("+ sys_write");
    terminal.keys(&["q"]);
    terminal.ends(directory, 0);
    drop(terminal);
    assert!(program.end().success());
}

#[test]
fn threads_have_a_lane_of_states() {
    let tmux = needs!(TMUX.find());
    let directory = tempfile::tempdir().unwrap();
    let tmux = tmux.display().to_string();
    let mut growing = Growing::begin(&directory.path().join("fgraph.data"));
    growing.calls(1, "first");
    growing.switches(1, &[(5_000, State::Blocked), (15_000, State::Running)]);
    growing.end();
    let terminal = Terminal::new(&tmux, directory.path(), (100, 24), "tui");
    terminal.shows("[1 report]");
    terminal.keys(&["5"]);
    let screen = terminal.shows("[5 threads]");
    // Blocked for 10,000 ns of 19,940: half of the 45 columns.
    let line = screen.lines().find(|line| line.contains("50.2 %")).unwrap();
    let lane = line.rsplit(' ').next().unwrap();
    let count = |sign| lane.chars().filter(|&it| it == sign).count();
    assert!(
        line.contains("49.8 %") && line.contains("0.0 %"),
        "{screen}"
    );
    assert!(lane.starts_with("███") && lane.ends_with("███"), "{screen}");
    assert!(
        (21..=24).contains(&count('·')) && count('▒') == 0,
        "{screen}"
    );
    terminal.keys(&["Enter"]);
    terminal.shows("[3 replay]");
    terminal.shows("first();");
    terminal.keys(&["q"]);
    terminal.ends(directory.path(), 0);
}

#[test]
fn a_recording_that_is_written_is_followed() {
    let tmux = needs!(TMUX.find());
    let directory = tempfile::tempdir().unwrap();
    let tmux = tmux.display().to_string();
    let mut growing = Growing::begin(&directory.path().join("fgraph.data"));
    growing.calls(1, "first\x1b[2J");
    let terminal = Terminal::new(&tmux, directory.path(), (80, 24), "tui");
    let screen = terminal.shows(r" first\x1b[2J");
    terminal.shows("more to come");
    assert!(!screen.contains("second"), "{screen}");
    growing.calls(2, "second");
    terminal.shows(" second");
    growing.end();
    terminal.keys(&["3"]);
    terminal.shows("second();");
    terminal.shows_no_more("more to come");
    terminal.keys(&["q"]);
    terminal.ends(directory.path(), 0);
}

#[test]
fn a_terminal_is_as_before_however_top_ends() {
    let (tmux, cc) = (needs!(TMUX.find()), needs!(CC.find()));
    let tmux = tmux.display().to_string();
    for (signal, code) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        let directory = works(&cc);
        let command = "top --delay 100ms -- ./works";
        let terminal = Terminal::new(&tmux, directory.path(), (20, 20), command);
        terminal.shows("  wor");
        let pid = std::fs::read_to_string(directory.path().join("pid")).unwrap();
        let kill = format!("kill -{signal} {pid}");
        Command::new("sh").args(["-c", &kill]).status().unwrap();
        let screen = terminal.ends(directory.path(), code);
        assert!(screen.contains("printed by"), "{signal}: {screen}");
    }
    // The end of the program.
    let directory = tempfile::tempdir().unwrap();
    let command = "top --lines 5 -- sh -c 'echo printed; exit 3'";
    let terminal = Terminal::new(&tmux, directory.path(), (80, 20), command);
    let screen = terminal.ends(directory.path(), 3);
    assert!(screen.contains("printed\n"), "{screen}");
}

#[test]
fn screens_end_with_their_terminal() {
    let (tmux, cc) = (needs!(TMUX.find()), needs!(CC.find()));
    let tmux = tmux.display().to_string();
    let commands = [
        ("tui -- ./works", "[1 report]"),
        ("top --delay 100ms -- ./works", "work"),
        ("top --delay 100ms -- ./works < /dev/null", "work"),
    ];
    for (command, shown) in commands {
        let directory = works(&cc);
        let terminal = Terminal::new(&tmux, directory.path(), (80, 24), command);
        terminal.shows(shown);
        let pid = std::fs::read_to_string(directory.path().join("pid")).unwrap();
        drop(terminal);
        let begin = Instant::now();
        // It is a zombie if nobody waits for it.
        let is_there = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
            stat.is_ok_and(|stat| !stat.contains(") Z "))
        };
        while is_there() {
            assert!(begin.elapsed() < PATIENCE, "{command} goes on");
            sleep(Duration::from_millis(50));
        }
    }
}

/// Starts a command on a terminal of its own, and closes that as soon as the command has written
/// `after` bytes, or nothing for a second. Returns the command's end.
fn end_without_terminal(command: &mut Command, after: usize) -> ExitStatus {
    // Other tests start processes meanwhile, which must not keep it open.
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    let mut name = [0; 64];
    // SAFETY: the descriptor is a new one, and the name is written within its length.
    let mut terminal = unsafe {
        let terminal = libc::posix_openpt(flags);
        assert!(terminal >= 0 && libc::grantpt(terminal) == 0 && libc::unlockpt(terminal) == 0);
        assert_eq!(libc::ptsname_r(terminal, name.as_mut_ptr(), name.len()), 0);
        File::from_raw_fd(terminal)
    };
    // SAFETY: the name ends with a zero.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_str().unwrap();
    let mut open = OpenOptions::new();
    open.read(true).write(true).custom_flags(libc::O_NOCTTY);
    let side = open.open(name).unwrap();
    let stdio = || Stdio::from(side.try_clone().unwrap());
    command.stdin(stdio()).stdout(stdio()).stderr(stdio());
    // SAFETY: it only makes system calls, and replaces no handler.
    unsafe {
        command.pre_exec(|| {
            // The test may run under `nohup`.
            libc::signal(libc::SIGHUP, libc::SIG_DFL);
            libc::setsid();
            libc::ioctl(0, libc::TIOCSCTTY, 0);
            Ok(())
        })
    };
    let mut child = command.spawn().unwrap();
    // Else these keep the terminal open.
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    drop(side);
    let (mut read, mut bytes) = (0, [0; 4096]);
    // Some commands write nothing while they look on.
    let patience = Timespec::try_from(Duration::from_secs(1)).unwrap();
    while read < after {
        let mut polled = [PollFd::new(&terminal, PollFlags::IN)];
        if poll(&mut polled, Some(&patience)).unwrap() == 0 {
            break;
        }
        match terminal.read(&mut bytes) {
            Ok(0) | Err(_) => break,
            Ok(len) => read += len,
        }
    }
    drop(terminal);
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if begin.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("{command:?} goes on after {after} bytes");
        }
        sleep(Duration::from_millis(20));
    }
}

#[test]
fn commands_end_quietly_with_their_terminal() {
    let program = Program::start(&needs!(CC.find()));
    let before = program.text();
    let pid = program.child.id().to_string();
    let recording = program.recording();
    let output = program.record(&["-F", "work", "--time", "50ms"]);
    assert!(output.status.success());
    let live = [
        "top", "tui", "live", "syscalls", "record", "why", "tasks", "heap", "locks", "stack",
        "coverage", "watch", "probe",
    ];
    let views = [
        "report", "graph", "replay", "dump", "outliers", "info", "why", "tui", "diff",
    ];
    let ends = |words: &[&str]| {
        // These have most to put back where they end before they have begun.
        let is_early = ["top", "tui", "record"].contains(&words[0]);
        let phases = if is_early { &[0, 1][..] } else { &[1] };
        for &after in phases {
            let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
            command.args(words).current_dir(program.folder.path());
            let status = end_without_terminal(&mut command, after);
            let signal = status.signal().unwrap_or(libc::SIGHUP);
            let is_quiet = [libc::SIGHUP, libc::SIGPIPE].contains(&signal);
            assert!(
                is_quiet && status.code() != Some(101),
                "{words:?} {after} {status}"
            );
        }
    };
    for command in live {
        match command {
            "probe" => ends(&[command, "-p", &pid, "work", "count"]),
            "record" => ends(&[command, "-p", &pid, "-o", "other", "-F", "work"]),
            _ => ends(&[command, "-p", &pid]),
        }
    }
    let file = recording.to_str().unwrap();
    for command in views {
        match command {
            "diff" => ends(&[command, file, file]),
            "graph" => ends(&[command, "work", file]),
            _ => ends(&[command, file]),
        }
    }
    assert_eq!(program.changed(&before), None);
    assert!(program.end().success());
}

#[test]
fn top_leaves_a_process_as_it_was() {
    let (tmux, cc) = (needs!(TMUX.find()), needs!(CC.find()));
    let program = Program::start(&cc);
    let tmux = tmux.display().to_string();
    let directory = program.folder.path();
    let command = format!("top --delay 100ms -p {}", program.child.id());
    let terminal = Terminal::new(&tmux, directory, (80, 24), &command);
    terminal.shows("work [busy]");
    terminal.keys(&["q"]);
    let screen = terminal.ends(directory, 0);
    assert!(screen.contains("work [busy]"), "{screen}");
    drop(terminal);
    assert!(program.end().success());
}

#[test]
fn a_line_says_how_far_a_recording_is() {
    let tmux = needs!(TMUX.find());
    let directory = tempfile::tempdir().unwrap();
    let tmux = tmux.display().to_string();
    let record = "record sh -c 'read line; exit 3'";
    let terminal = Terminal::new(&tmux, directory.path(), (80, 10), record);
    let screen = terminal.shows(" lost, ");
    assert!(
        screen.contains(" calls, ") && screen.contains("/s, "),
        "{screen}"
    );
    terminal.keys(&["Enter"]);
    let screen = terminal.shows("code 3.");
    // On a line of its own.
    let is_last = |line: &str| line.starts_with("fgraph: ") && line.contains(" in fgraph.data");
    assert!(screen.lines().any(is_last), "{screen}");
}

#[test]
fn a_recording_from_standard_input_can_be_browsed() {
    let tmux = needs!(TMUX.find()).display().to_string();
    let (directory, _path) = recording();
    let command = "tui - < fgraph.data";
    let terminal = Terminal::new(&tmux, directory.path(), (100, 20), command);
    terminal.shows("parse");
    terminal.keys(&["q"]);
    terminal.ends(directory.path(), 0);
}
