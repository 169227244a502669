//! Exports that do not come to their end.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use crate::support::recording_of;

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

#[test]
fn an_export_ends_at_its_limit_and_is_whole() {
    let (_directory, path) = recording_of(50_000);
    let directory = path.parent().unwrap();
    let out = directory.join("out");
    let len = || fs::metadata(&out).unwrap().len();
    for format in ["chrome", "csv", "speedscope"] {
        assert!(export(format, directory).status().unwrap().success());
        let whole = len();
        let mut exporter = export(format, directory);
        exporter.args(["--limit", "300K"]).stderr(Stdio::piped());
        let output = exporter.output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{format}: {text}");
        let said = "fgraph: the export ends at --limit 300.0 KiB, with the first ";
        assert!(text.contains(said), "{format}: {text}");
        // Up to 128 KiB wait to be written.
        let len = len();
        let about = (300 << 10)..(450 << 10);
        assert!(
            about.contains(&len) && whole > 2 * len,
            "{format}: {len} of {whole}"
        );
        let text = fs::read_to_string(&out).unwrap();
        if format == "csv" {
            let commas = text.lines().map(|line| line.matches(',').count());
            assert!(commas.collect::<Vec<_>>().iter().all(|&count| count >= 11));
        } else {
            let json: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert!(json.is_object() || json.is_array());
        }
        let mut exporter = export(format, directory);
        exporter.args(["--limit", "900M"]).stderr(Stdio::piped());
        let output = exporter.output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!text.contains("--limit"), "{format}: {text}");
        assert_eq!(fs::metadata(&out).unwrap().len(), whole);
    }
    let mut exporter = export("pprof", directory);
    exporter.args(["--limit", "300K"]).stderr(Stdio::piped());
    let output = exporter.output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("--limit has no place in it"), "{text}");
}

#[test]
fn exports_have_the_command_line_of_the_program() {
    let (_directory, path) = recording_of(20);
    let directory = path.parent().unwrap();
    assert!(export("callgrind", directory).status().unwrap().success());
    let text = fs::read_to_string(directory.join("out")).unwrap();
    // Control characters are blanks.
    let command = "program  [1margument";
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.contains(&&*format!("cmd: {command}")), "{text}");
    fs::remove_file(directory.join("out")).unwrap();
    assert!(export("uftrace", directory).status().unwrap().success());
    let info = fs::read(directory.join("out/info")).unwrap();
    let info = String::from_utf8_lossy(&info);
    let line = format!("\ncmdline:{command}\n");
    assert!(info.contains(&line), "{info}");
}
