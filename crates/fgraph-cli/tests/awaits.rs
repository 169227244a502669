//! `fgraph tasks --await`, on programs with the runtimes themselves.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use fgraph_needs::{OBJCOPY, needs, skip};
use serde_json::Value;

const FGRAPH: &str = env!("CARGO_BIN_EXE_fgraph");
/// The time for tasks to be suspended.
const PATIENCE: Duration = Duration::from_secs(60);

const MANIFEST: &str = r#"
[package]
name = "waiting"
version = "0.1.0"
edition = "2024"

[[bin]]
name = "of_tokio"
path = "of_tokio.rs"

[[bin]]
name = "of_async_std"
path = "of_async_std.rs"

[dependencies]
async-std = "1"
futures-util = { version = "0.3", default-features = false, features = ["std"] }
tokio = { version = "1", features = ["macros", "rt-multi-thread", "sync", "time"] }

[profile.dev.package."*"]
debug = "line-tables-only"

[workspace]
"#;

/// Builds the programs, once for all tests. Returns their folder; `None` if cargo cannot get the
/// runtimes.
fn programs() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let build = || {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("waiting");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("Cargo.toml"), MANIFEST).unwrap();
        for name in ["tokio", "async_std"] {
            let source = fs::read(format!("tests/awaits/{name}.rs")).unwrap();
            fs::write(folder.join(format!("of_{name}.rs")), source).unwrap();
        }
        let cargo = |words: &[&str]| {
            let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
            let mut cargo = Command::new(program);
            // The flags of this build would have all crates built again.
            cargo
                .env_remove("RUSTFLAGS")
                .env_remove("CARGO_ENCODED_RUSTFLAGS");
            cargo.env("CARGO_TARGET_DIR", folder.join("target"));
            cargo.current_dir(&folder).args(words).output().unwrap()
        };
        if !cargo(&["fetch"]).status.success() {
            return None;
        }
        let built = cargo(&["build"]);
        assert!(built.status.success(), "{built:?}");
        Some(folder.join("target/debug"))
    };
    BUILT.get_or_init(build).as_deref()
}

/// A program that waits.
struct Waiting {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Waiting {
    fn start(program: &Path) -> Self {
        let mut this = Self::spawn(program, &[]);
        this.says("ready");
        this
    }

    fn spawn(program: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new(program);
        let command = command.args(arguments).stdin(Stdio::piped());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    /// Reads a line.
    fn says(&mut self, expected: &str) {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert_eq!(line.trim_end(), expected);
    }

    fn id(&self) -> String {
        self.child.id().to_string()
    }

    fn fgraph(&self, words: &[&str]) -> Output {
        let mut fgraph = Command::new(FGRAPH);
        fgraph.args(["tasks", "--await", "-p", &self.id()]);
        fgraph.args(words).output().unwrap()
    }

    /// Returns the groups of tasks.
    fn groups(&self) -> Vec<Value> {
        let output = self.fgraph(&["--json"]);
        assert!(output.status.success(), "{output:?}");
        let view: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(view["unknown"], serde_json::json!([]));
        view["groups"].as_array().unwrap().clone()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// Returns the group with this name.
fn group<'v>(groups: &'v [Value], name: &str) -> &'v Value {
    let found = groups.iter().find(|group| group["name"] == name);
    found.unwrap_or_else(|| panic!("no {name}: {groups:#?}"))
}

/// Returns the names in a tree of futures, with the lines of those awaits that are the program's
/// own: the code of a macro is in a library.
fn chain(future: &Value, into: &mut Vec<String>) {
    let name = future["name"].as_str().unwrap();
    let line = || {
        let file = future["file"].as_str()?;
        if !file.contains("/waiting/") {
            return None;
        }
        let text = fs::read_to_string(file).unwrap();
        let line = future["line"].as_u64()? as usize;
        Some(text.lines().nth(line - 1)?.trim().to_owned())
    };
    into.push(match line() {
        Some(line) => format!("{name}: {line}"),
        None => name.to_owned(),
    });
    for child in future["children"].as_array().unwrap() {
        chain(child, into);
    }
}

fn awaits(group: &Value) -> Vec<String> {
    let mut found = Vec::new();
    chain(&group["future"], &mut found);
    found
}

const SLEEP: &str = "tokio::time::sleep::Sleep";
const LOAD: &str = "of_tokio::load: tokio::time::sleep(LONG).await;";
const GET: &str = "of_tokio::Cache::get: load(key).await + 1";
const HANDLER: &str = "of_tokio::handler: cache.get(key).await";

#[test]
fn tasks_of_tokio_wait_at_their_awaits() {
    let Some(programs) = programs() else {
        return skip!("no crate tokio (cargo needs crates.io)");
    };
    let waiting = Waiting::start(&programs.join("of_tokio"));
    let groups = waiting.groups();
    let handler = group(&groups, "of_tokio::handler");
    assert_eq!(handler["tasks"], 3, "{groups:#?}");
    assert_eq!(handler["condition"], "waits");
    assert_eq!(awaits(handler), [HANDLER, GET, LOAD, SLEEP]);
    let boxed = group(&groups, "of_tokio::boxed");
    let boxed_at = "of_tokio::boxed: inner.await";
    assert_eq!(awaits(boxed), [boxed_at, HANDLER, GET, LOAD, SLEEP]);
    let joins = group(&groups, "of_tokio::joins");
    let receiver = "tokio::sync::oneshot::Receiver<u64>";
    let expected = ["of_tokio::joins", HANDLER, GET, LOAD, SLEEP, receiver];
    assert_eq!(awaits(joins), expected);
    let selects = group(&groups, "of_tokio::selects");
    assert_eq!(awaits(selects), ["of_tokio::selects", LOAD, SLEEP, SLEEP]);
    let locks = awaits(group(&groups, "of_tokio::locks"));
    assert_eq!(locks[0], "of_tokio::locks: *mutex.lock().await");
    let last = locks.last().map(String::as_str);
    assert_eq!(last, Some("tokio::sync::batch_semaphore::Acquire"));
    let follows = group(&groups, "of_tokio::follows");
    let handle = &follows["future"]["children"][0];
    assert_eq!(handle["task"], "of_tokio::load", "{follows:#}");
    let together = awaits(group(&groups, "of_tokio::together"));
    let handlers = together.iter().filter(|line| *line == HANDLER);
    assert_eq!(handlers.count(), 3, "{together:#?}");
    let local = group(&groups, "of_tokio::local");
    let local_at = "of_tokio::local: load(*count).await";
    assert_eq!(awaits(local), [local_at, LOAD, SLEEP]);
    // It has a result, and no future any more.
    let ended = groups.iter().find(|it| it["name"] == "of_tokio::returns");
    assert_eq!(ended, None);
    let output = waiting.fgraph(&[]);
    let text = String::from_utf8(output.stdout).unwrap();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("3 tasks of tokio wait"), "{text}");
    let handler = lines.next().unwrap();
    assert!(handler.starts_with("  of_tokio::handler "), "{text}");
    assert!(handler.contains("of_tokio.rs:"), "{text}");
    assert!(
        lines
            .next()
            .unwrap()
            .starts_with("  └ of_tokio::Cache::get ")
    );
    assert!(text.contains("JoinHandle<u64> of of_tokio::load"), "{text}");
}

#[test]
fn tasks_of_async_std_wait_at_their_awaits() {
    let Some(programs) = programs() else {
        return skip!("no crate async-std (cargo needs crates.io)");
    };
    let waiting = Waiting::start(&programs.join("of_async_std"));
    let until = Instant::now() + PATIENCE;
    // Other threads poll them.
    let is_suspended = |groups: &[Value]| {
        let names = ["of_async_std::handler", "of_async_std::large"];
        names.iter().all(|name| {
            let group = groups.iter().find(|it| it["name"] == *name);
            group.is_some_and(|it| it["condition"] == "waits")
        })
    };
    let mut groups = waiting.groups();
    while !is_suspended(&groups) && Instant::now() < until {
        thread::sleep(Duration::from_millis(20));
        groups = waiting.groups();
    }
    let row = "of_async_std::read_row: \
               async_std::task::sleep(Duration::from_secs(10_000)).await;";
    let handler = "of_async_std::handler: read_row(key).await + 1";
    let large = "of_async_std::large: handler(key).await + rows[key as usize]";
    let found = awaits(group(&groups, "of_async_std::handler"));
    assert_eq!(found[..2], [handler, row], "{found:#?}");
    let found = awaits(group(&groups, "of_async_std::large"));
    assert_eq!(found[..3], [large, handler, row], "{found:#?}");
    assert_eq!(groups[0]["runtime"], "async-task");
}

#[test]
fn missing_debug_information_is_said() {
    let Some(programs) = programs() else {
        return skip!("no crate tokio (cargo needs crates.io)");
    };
    let objcopy = needs!(OBJCOPY.find());
    for (option, name) in [("--strip-debug", "symbols"), ("--strip-all", "stripped")] {
        let stripped = programs.join(name);
        let mut objcopy = Command::new(&objcopy);
        let objcopy = objcopy.arg(option).arg(programs.join("of_tokio"));
        assert!(objcopy.arg(&stripped).status().unwrap().success());
        let waiting = Waiting::start(&stripped);
        let output = waiting.fgraph(&[]);
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(errors.contains("no debug information of "), "{errors}");
        assert!(errors.contains("`debug = true`"), "{errors}");
        let view = waiting.fgraph(&["--json"]).stdout;
        let view: Value = serde_json::from_slice(&view).unwrap();
        assert_eq!(view["unknown"][0]["reason"], "no-debug-information");
    }
    // Its views by thread are what there is.
    let mut fgraph = Command::new(FGRAPH);
    let stripped = programs.join("stripped");
    fgraph
        .args(["tasks", "--"])
        .arg(stripped)
        .stdin(Stdio::null());
    let output = fgraph.output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let errors = String::from_utf8(output.stderr).unwrap();
    let parts = [
        "the program has tokio 1.",
        "it may be stripped",
        "by thread",
    ];
    for part in parts {
        assert!(errors.contains(part), "{errors}");
    }
}

#[test]
fn a_recording_has_the_awaits_at_its_end() {
    let Some(programs) = programs() else {
        return skip!("no crate tokio (cargo needs crates.io)");
    };
    let folder = tempfile::TempDir::new().unwrap();
    let recording = folder.path().join("fgraph.data");
    let mut waiting = Waiting::spawn(&programs.join("of_tokio"), &["later"]);
    waiting.says("started");
    let mut record = Command::new(FGRAPH);
    let record = record.args(["record", "--tasks", "-p", &waiting.id(), "-o"]);
    let record = record.arg(&recording).stderr(Stdio::piped());
    let mut record = record.spawn().unwrap();
    // It says that the process was stopped for a moment, when it records.
    let mut errors = BufReader::new(record.stderr.take().unwrap());
    errors.read_line(&mut String::new()).unwrap();
    waiting
        .child
        .stdin
        .as_ref()
        .unwrap()
        .write_all(b"\n")
        .unwrap();
    waiting.says("ready");
    // SAFETY: a signal to a process that we have started.
    assert_eq!(unsafe { libc::kill(record.id() as i32, libc::SIGINT) }, 0);
    assert!(record.wait().unwrap().success());
    let view = |recording: &Path| {
        let mut fgraph = Command::new(FGRAPH);
        let output = fgraph.args(["tasks", "--json"]).arg(recording).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let shown = view(&recording);
    let kinds = shown["kinds"].as_array().unwrap();
    let handler = group(kinds, "of_tokio::handler");
    assert_eq!(handler["alive"], 3, "{shown:#}");
    for task in handler["waiting"].as_array().unwrap() {
        assert_eq!(task["is_woken"], false, "{shown:#}");
        assert_eq!(awaits(task), [HANDLER, GET, LOAD, SLEEP]);
    }
    assert_eq!(shown["unpolled"], serde_json::json!([]), "{shown:#}");
    // These tasks are polled no more.
    let mut fgraph = Command::new(FGRAPH);
    fgraph.args(["tasks", "--json", "--time", "100ms", "-p", &waiting.id()]);
    let output = fgraph.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
    let unpolled = shown["unpolled"].as_array().unwrap();
    let handler = group(unpolled, "of_tokio::handler");
    assert_eq!(handler["tasks"], 3, "{shown:#}");
    assert_eq!(awaits(handler), [HANDLER, GET, LOAD, SLEEP]);
}

#[test]
fn a_process_without_tasks_has_none() {
    let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let mut fgraph = Command::new(FGRAPH);
    fgraph.args(["tasks", "--await", "-p", &child.id().to_string()]);
    let output = fgraph.output().unwrap();
    drop(child.stdin.take());
    child.wait().unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(
        errors.contains("no task of tokio or async-task lives"),
        "{errors}"
    );
}
