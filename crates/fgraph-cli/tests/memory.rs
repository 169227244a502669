//! What the rings add to the memory of a program that is recorded: to its core files, and to what
//! it locks.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use fgraph_needs::{CC, needs, skip};
use fgraph_trace::{Recording, Source};
use tempfile::TempDir;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// A directory with `tests/record/locked.c`, built.
struct Place(TempDir);

impl Place {
    fn new(compiler: &Path) -> Self {
        let this = Self(TempDir::new().unwrap());
        let mut builder = Command::new(compiler);
        builder.args(["-g", "-O1", "-pthread", "-o"]);
        builder.arg(this.path("program"));
        let builder = builder.arg("tests/record/locked.c");
        assert!(builder.status().unwrap().success());
        this
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs the program, recorded with these options if there are any, in a shell that does
    /// `before`.
    fn run(&self, before: &str, options: Option<&[&str]>, arguments: &[&str]) -> Output {
        let mut shell = Command::new("sh");
        let shell = shell.args(["-c", &format!("{before}; exec \"$@\""), "sh"]);
        if let Some(options) = options {
            let recorder = [env!("CARGO_BIN_EXE_fgraph"), "record", "--quiet", "-o"];
            let shell = shell.args(recorder).arg(self.path("fgraph.data"));
            shell.args(options).arg("--");
        }
        let shell = shell.arg(self.path("program")).args(arguments);
        shell.current_dir(self.0.path()).output().unwrap()
    }

    /// The core file that a run leaves.
    fn core(&self, options: Option<&[&str]>, arguments: &[&str]) -> Vec<u8> {
        let output = self.run("ulimit -c unlimited", options, arguments);
        let files = fs::read_dir(self.0.path()).unwrap();
        let mut paths = files.map(|file| file.unwrap().path());
        let is_core = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with("core"))
        };
        let path = paths.find(is_core);
        let path = path.unwrap_or_else(|| panic!("there is no core: {output:?}"));
        let core = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        core
    }
}

/// Whether cores are files in the directory of their program.
fn are_cores_here() -> bool {
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    let is_here = pattern.starts_with("core") && !pattern.contains('/');
    if !is_here {
        let pattern = pattern.trim_end();
        skip!("cores go to {pattern:?}: `sysctl kernel.core_pattern=core` has them kept");
    }
    is_here
}

#[test]
fn a_core_has_what_was_written_to_rings_and_not_the_rest() {
    let place = Place::new(&needs!(CC.find()));
    if !are_cores_here() {
        return;
    }
    for arguments in [["abort", "0"], ["abort", "20"], ["child", "3"]] {
        let plain = place.core(None, &arguments).len() as u64;
        for options in [&[][..], &["--ring", "overwrite=2s"], &["--libs"]] {
            let core = place.core(Some(options), &arguments);
            let more = (core.len() as u64).saturating_sub(plain);
            println!("{arguments:?} {options:?}: {plain} and {more} bytes");
            let threads = arguments[1].parse::<u64>().unwrap() + 1;
            let most = 8 * MIB + 300 * KIB * threads;
            assert!(more < most, "{arguments:?} {options:?}: {more} of {most}");
            if options.is_empty() {
                let mut recording = Recording::open(&place.path("fgraph.data")).unwrap();
                let event = recording.next().unwrap().unwrap();
                let owner = u64::from(event.process) << 32 | u64::from(event.thread);
                // In the header of its ring, and of its first sub-buffer.
                let found = core.windows(8).filter(|it| *it == owner.to_ne_bytes());
                assert!(found.count() >= 2, "{arguments:?}: the ring is not there");
            }
        }
    }
}

/// The numbers that the program says: locked bytes, and bytes that are there.
fn said(output: &Output) -> [u64; 2] {
    let text = String::from_utf8_lossy(&output.stdout);
    let mut lines = text.lines().map(|line| {
        let number = line.split_ascii_whitespace().nth(1).unwrap();
        number.parse::<u64>().unwrap() * KIB
    });
    [(); 2].map(|()| lines.next().unwrap_or_else(|| panic!("{output:?}")))
}

#[test]
fn memory_that_a_program_locks_has_the_rings_that_it_uses_only() {
    let place = Place::new(&needs!(CC.find()));
    let arguments = ["lock", "20"];
    let plain = place.run("true", None, &arguments);
    if plain.status.code() == Some(77) {
        skip!("so much memory cannot be locked: `ulimit -l unlimited` allows it");
        return;
    }
    let plain = said(&plain);
    for options in [&[][..], &["--ring", "overwrite=2s"]] {
        let recorded = said(&place.run("true", Some(options), &arguments));
        println!("{options:?}: {plain:?} and {recorded:?} bytes");
        for (recorded, plain) in recorded.into_iter().zip(plain) {
            let more = recorded - plain;
            assert!(more < 64 * MIB, "{options:?}: {more} bytes more");
        }
    }
}
