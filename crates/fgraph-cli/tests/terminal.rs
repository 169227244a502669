//! The command in a terminal, which tmux plays.

use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use fgraph_needs::{TMUX, needs};

mod support;

use support::recording;

/// How long a screen may take to show what is expected.
const PATIENCE: Duration = Duration::from_secs(60);

/// A terminal of a server of its own, which ends with it.
struct Terminal {
    tmux: String,
    socket: String,
}

impl Terminal {
    /// A terminal in which a command runs, and a shell waits for its end.
    fn new(tmux: &str, directory: &Path, (width, height): (u32, u32), command: &str) -> Self {
        let this = Self {
            tmux: tmux.to_owned(),
            socket: directory.join("tmux").display().to_string(),
        };
        let program = env!("CARGO_BIN_EXE_fgraph");
        let command = format!("unset COLUMNS; '{program}' {command}; echo \"code $?.\"; cat");
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

    fn keys(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    /// Waits until the screen has a text.
    #[track_caller]
    fn shows(&self, text: &str) -> String {
        let begin = Instant::now();
        loop {
            let screen = self.tmux(&["capture-pane", "-p"]);
            if screen.contains(text) {
                return screen;
            }
            assert!(begin.elapsed() < PATIENCE, "no {text:?} in:\n{screen}");
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
    terminal.shows("function\n       40 ns");
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
