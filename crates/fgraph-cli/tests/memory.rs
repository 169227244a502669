//! Memory that recording adds to a program: to its core files, to what it locks, and to what its
//! threads leave.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use fgraph_needs::{CC, core_files, needs, skip};
use fgraph_trace::event::What;
use fgraph_trace::{Recording, Source};
use tempfile::TempDir;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// A directory with a program of `tests/record`, built.
struct Place(TempDir);

impl Place {
    fn new(compiler: &Path, source: &str) -> Self {
        let this = Self(TempDir::new().unwrap());
        let mut builder = Command::new(compiler);
        builder.args(["-g", "-O1", "-pthread", "-o"]);
        builder.arg(this.path("program"));
        let builder = builder.arg(Path::new("tests/record").join(source));
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

/// Bytes that a core has of addresses where nothing but rings is.
fn of_rings(core: &[u8]) -> u64 {
    let number = |at: usize, len: usize| {
        let bytes = core[at..at + len].iter().rev();
        bytes.fold(0, |number, byte| number << 8 | u64::from(*byte))
    };
    // The program headers of an ELF file for 64 bits.
    let [first, len, count] = [number(32, 8), number(54, 2), number(56, 2)];
    let segments = (0..count).map(|nth| (first + nth * len) as usize);
    let ours = segments.filter(|at| (0x2000..0x3000).contains(&(number(at + 16, 8) >> 32)));
    ours.map(|at| number(at + 32, 8)).sum()
}

/// The most that a process has of rings to which each of its threads has written a little: the
/// headers and some names, and a sub-buffer for each thread.
fn most(threads: u64) -> u64 {
    MIB + 64 * KIB * threads
}

#[test]
fn a_core_has_the_written_part_of_rings_only() {
    let place = Place::new(&needs!(CC.find()), "locked.c");
    needs!(core_files());
    for (arguments, threads) in [
        (["abort", "0"], 1),
        (["abort", "20"], 21),
        (["child", "3"], 5),
    ] {
        for options in [&[][..], &["--ring", "overwrite=2s"], &["--libs"]] {
            let core = place.core(Some(options), &arguments);
            let rings = of_rings(&core);
            let most = most(threads);
            assert!(
                0 < rings && rings <= most,
                "{arguments:?} {options:?}: {rings} of {most} bytes, in {}",
                core.len()
            );
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

/// A number of KiB behind a word at the start of a line.
fn kib(line: &str, word: &str) -> Option<u64> {
    let rest = line.strip_prefix(word)?.trim();
    Some(rest.strip_suffix(" kB")?.parse::<u64>().unwrap() * KIB)
}

#[test]
fn memory_that_a_program_locks_has_the_rings_that_it_uses_only() {
    let place = Place::new(&needs!(CC.find()), "locked.c");
    let locked = |options: Option<&[&str]>| {
        let output = place.run("true", options, &["lock", "20"]);
        (output.status.code() != Some(77)).then(|| String::from_utf8(output.stdout).unwrap())
    };
    let all = |said: &str| said.lines().find_map(|line| kib(line, "VmLck:")).unwrap();
    let Some(plain) = locked(None) else {
        skip!("so much memory cannot be locked: `ulimit -l unlimited` allows it");
        return;
    };
    for options in [&[][..], &["--ring", "overwrite=2s"]] {
        let recorded = locked(Some(options)).unwrap();
        let (mut is_ours, mut rings) = (false, 0);
        for line in recorded.lines() {
            if line.contains("rw") || line.contains("r-") || line.contains("--") {
                is_ours = line.contains("/memfd:fgraph-rings");
            }
            rings += kib(line, "Size:").filter(|_| is_ours).unwrap_or(0);
        }
        let most = most(21);
        assert!(
            0 < rings && rings <= most,
            "{options:?}: {rings} of {most} bytes"
        );
        let more = all(&recorded) - all(&plain);
        assert!(more < 256 * MIB, "{options:?}: {more} bytes more");
    }
}

#[test]
fn rings_are_within_the_limits_of_files_and_of_addresses() {
    let place = Place::new(&needs!(CC.find()), "locked.c");
    for limits in ["ulimit -f 40000", "ulimit -v 1000000"] {
        for options in [&[][..], &["--ring", "overwrite=2s"]] {
            let output = place.run(limits, Some(options), &["say", "20"]);
            let said = String::from_utf8_lossy(&output.stdout);
            let is_recorded = output.status.success() && said.contains("/memfd:fgraph-rings");
            assert!(is_recorded, "{limits} {options:?}: {output:?}");
            let mut recording = Recording::open(&place.path("fgraph.data")).unwrap();
            let mut entries = 0;
            while let Some(event) = recording.next().unwrap() {
                let is_entry = matches!(event.what, What::Entry { .. });
                entries += u32::from(is_entry);
            }
            // Entries of `leaf` in each thread, and more.
            assert!(entries > 21, "{limits} {options:?}: {entries}");
        }
    }
}

#[test]
fn memory_of_a_thread_that_executes_programs_goes_to_the_next_one() {
    let place = Place::new(&needs!(CC.find()), "executes.c");
    let output = place.run("true", Some(&["-F", "main"]), &["1000"]);
    let grown = String::from_utf8(output.stdout).unwrap();
    let grown = grown.trim().parse::<u64>().unwrap() * KIB;
    assert!(grown < MIB, "{grown} bytes");
}
