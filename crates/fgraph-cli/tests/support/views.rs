//! The output of every subcommand for a recording.

use std::fs::{self, File};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use fgraph_trace::event::What;
use fgraph_trace::{Recording, Source};

/// Longest time that a command may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

const FORMATS: [&str; 11] = [
    "html",
    "perfetto",
    "chrome",
    "firefox",
    "speedscope",
    "folded",
    "pprof",
    "callgrind",
    "uftrace",
    "ctf",
    "csv",
];

/// The exit code of a command, or 128 and its signal, and its output.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// Runs a command in a group of its own, which is killed if it takes too long.
pub(crate) fn done(command: &mut Command) -> Done {
    let folder = tempfile::tempdir().unwrap();
    let paths = ["out", "err"].map(|name| folder.path().join(name));
    let [out, err] = [0, 1].map(|index| File::create(&paths[index]).unwrap());
    let pipes = command.stdin(Stdio::null()).stdout(out).stderr(err);
    let mut child = pipes.process_group(0).spawn().unwrap();
    let until = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() >= until {
            // SAFETY: a signal to processes that we have started.
            unsafe { libc::killpg(child.id() as i32, libc::SIGKILL) };
            panic!("{command:?} does not end");
        }
        thread::sleep(Duration::from_millis(5));
    };
    let code = status.code().or_else(|| Some(128 + status.signal()?));
    let [out, err] = paths.map(|path| fs::read(path).unwrap());
    let [out, err] = [out, err].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    Done { code, out, err }
}

/// The name of the function that was called most, as a filter takes it.
fn most_called(path: &Path) -> String {
    let mut recording = Recording::open(path).unwrap();
    let mut calls = std::collections::HashMap::new();
    while let Some(event) = recording.next().unwrap() {
        if let What::Entry { function, .. } = event.what {
            *calls.entry((event.process, function)).or_insert(0) += 1;
        }
    }
    let (most, _) = calls.into_iter().max_by_key(|it| it.1).unwrap();
    let name = recording.names().function(most.0, most.1).unwrap();
    // All that may stand for something else does.
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_+.:".contains(c);
    let glob = |c| if is_plain(c) { c } else { '?' };
    name.name.chars().map(glob).collect()
}

/// Checks that every subcommand shows a recording and every export writes it: none fails or is
/// empty. Returns the output of `fgraph info`.
pub(crate) fn shown_by_all(path: &Path) -> String {
    let folder = path.parent().unwrap();
    let name = path.file_name().unwrap().to_str().unwrap();
    let fgraph = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        let Done { code, out, err } = done(command.args(words).current_dir(folder));
        assert_eq!(code, Some(0), "{words:?}: {err}");
        out
    };
    let function = most_called(path);
    for words in [
        &["report"][..],
        &["report", "--by", "module"],
        &["report", "--by", "source"],
        &["replay"],
        &["outliers", "--least", "1"],
        &["dump"],
    ] {
        let out = fgraph(&[words, &[name]].concat());
        assert!(out.lines().count() > 1, "{words:?}: {out}");
    }
    let graph = fgraph(&["graph", &function, name]);
    assert!(graph.lines().count() > 1, "{function}: {graph}");
    for format in FORMATS {
        let target = folder.join(format!("{name}.{format}"));
        fgraph(&["export", format, "-o", target.to_str().unwrap(), name]);
        let written = fs::metadata(&target).unwrap();
        let is_empty = match written.is_dir() {
            true => fs::read_dir(&target).unwrap().next().is_none(),
            false => written.len() == 0,
        };
        assert!(!is_empty, "{format}");
        match written.is_dir() {
            true => fs::remove_dir_all(&target).unwrap(),
            false => fs::remove_file(&target).unwrap(),
        }
    }
    fgraph(&["info", name])
}
