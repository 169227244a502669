//! Exports that do not come to their end.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

#[path = "support/interrupts.rs"]
mod interrupts;
mod support;

use support::recording_of;

fn export(format: &str, directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
    command.args(["export", format, "-o", "out"]);
    command.current_dir(directory).stderr(Stdio::null());
    command
}

/// The files beside the recording.
fn names(directory: &Path) -> Vec<String> {
    let names = fs::read_dir(directory).unwrap();
    let names = names.map(|it| it.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name != "fgraph.data").collect()
}

/// Interrupts an export once it has begun to write; it may have ended before.
fn interrupt(format: &str, directory: &Path) -> ExitStatus {
    let mut exporter = export(format, directory).spawn().unwrap();
    while names(directory).is_empty() && exporter.try_wait().unwrap().is_none() {
        thread::sleep(Duration::from_micros(100));
    }
    // SAFETY: a signal to a child that has not been waited for.
    unsafe { libc::kill(exporter.id() as i32, libc::SIGINT) };
    exporter.wait().unwrap()
}

#[test]
fn an_interrupted_export_leaves_nothing() {
    let (_directory, path) = recording_of(50_000);
    let directory = path.parent().unwrap();
    assert_eq!(path.file_name(), Some(OsStr::new("fgraph.data")));
    for format in ["uftrace", "ctf"] {
        let status = interrupt(format, directory);
        if status.success() {
            assert_eq!(names(directory), ["out"]);
            fs::remove_dir_all(directory.join("out")).unwrap();
        } else {
            assert_eq!(status.signal(), Some(libc::SIGINT), "{format}: {status}");
            assert_eq!(names(directory), [""; 0], "{format}");
        }
        assert!(export(format, directory).status().unwrap().success());
        assert_eq!(names(directory), ["out"]);
        // Another one does not touch it.
        assert_eq!(export(format, directory).status().unwrap().code(), Some(4));
        fs::remove_dir_all(directory.join("out")).unwrap();
    }
}
