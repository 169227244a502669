//! The command on programs that others have written: each does what it does without it, and every
//! subcommand shows its recording.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::views::{Done, done, shown_by_all};
use fgraph_needs::{
    GCC, GHC, GIT, GXX, JAVA, MCS, MONO, Missing, NODE, OCAMLOPT, PYTHON, RUBY, RUSTC, SQLITE3,
    STRIP, needs,
};
use fgraph_trace::event::What;
use fgraph_trace::{Recording, Source};

/// A directory of a program, and what is recorded of it.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// A file with a text.
    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path().join(name);
        fs::write(&path, text).unwrap();
        path
    }

    /// Builds a program of `tests/record`.
    fn build(&self, compiler: &Path, source: &str, flags: &[&str]) -> PathBuf {
        let program = self.path().join("program");
        let mut builder = Command::new(compiler);
        builder.args(flags).arg("-o").arg(&program);
        builder.arg(Path::new("tests/record").join(source));
        assert!(builder.status().unwrap().success());
        program
    }

    fn command(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(self.path());
        command
    }

    /// Runs a program without and with recording. It must do the same.
    fn unharmed(&self, options: &[&str], program: &Path, arguments: &[&str]) {
        let plain = done(&mut self.command(program, arguments));
        let mut recorder = self.command(env!("CARGO_BIN_EXE_fgraph").as_ref(), &["record", "-q"]);
        recorder.args(options).arg("--").arg(program);
        let recorded = done(recorder.args(arguments));
        let Done { code, out, err } = &plain;
        assert_eq!(recorded.code, *code, "{}", recorded.err);
        assert_eq!(&recorded.out, out);
        assert_eq!(&recorded.err, err);
    }

    /// Runs a program without and with recording. It must do the same, and what is recorded must be
    /// shown. Says how many processes there were; one that executes another program counts again.
    fn same(&self, options: &[&str], program: &Path, arguments: &[&str]) -> u64 {
        self.unharmed(options, program, arguments);
        let info = shown_by_all(&self.path().join("fgraph.data"));
        let count = |line: &str| line.strip_prefix("processes ")?.trim().parse().ok();
        info.lines().find_map(count).unwrap()
    }
}

/// Python itself, not a script that looks for it.
fn python_itself() -> Result<PathBuf, Missing> {
    let asked = Command::new(PYTHON.find()?)
        .args(["-c", "import sys; print(sys.executable)"])
        .output();
    let path = String::from_utf8(asked.unwrap().stdout).unwrap();
    Ok(path.trim().into())
}

#[test]
fn python() {
    let work = "import json; print(len(json.dumps(list(range(2000)))))";
    let python = needs!(python_itself());
    Place::new().same(&["--depth", "6"], &python, &["-c", work]);
}

#[test]
fn sqlite() {
    let work = "create table t(a); with recursive n(i) as (select 1 union all select i + 1 from n \
                limit 500) insert into t select i from n; select sum(a), max(a) from t;";
    let sqlite = needs!(SQLITE3.find());
    // It is in a library of the system's.
    Place::new().same(&["-F", "sqlite3_*"], &sqlite, &[":memory:", work]);
}

#[test]
fn gcc_and_its_children() {
    let place = Place::new();
    place.file("a.c", "int main(void) { return 5; }\n");
    let options = ["--depth", "4"];
    let arguments = ["-c", "a.c", "-o", "a.o"];
    let processes = place.same(&options, &needs!(GCC.find()), &arguments);
    // It executes the compiler and the assembler.
    assert!(processes >= 3, "{processes}");
}

#[test]
fn git_and_its_children() {
    let place = Place::new();
    let git = needs!(GIT.find());
    place.file("a", "a line\n");
    for words in [
        &["init", "-q"][..],
        &["add", "a"],
        &["-c", "user.name=n", "-c", "user.email=e", "commit", "-qma"],
    ] {
        assert_eq!(done(&mut place.command(&git, words)).code, Some(0));
    }
    place.same(&[], &git, &["log", "--stat", "--patch"]);
    let processes = place.same(&[], &git, &["ls-remote", "."]);
    // A shell, which executes another program of git's.
    assert!(processes >= 3, "{processes}");
}

#[test]
fn a_rust_program_with_threads() {
    let place = Place::new();
    let flags = ["-g", "-C", "opt-level=1"];
    let program = place.build(&needs!(RUSTC.find()), "threads.rs", &flags);
    place.same(&[], &program, &[]);
}

#[test]
fn a_program_that_throws() {
    let place = Place::new();
    let flags = ["-g", "-O1", "-pthread"];
    let program = place.build(&needs!(GXX.find()), "throws.cc", &flags);
    place.same(&[], &program, &[]);
}

#[test]
fn node_and_what_it_compiles() {
    let work = "let s = 0; const f = (i) => i % 7; for (let i = 0; i < 300000; i++) s += f(i); \
                console.log(s, JSON.stringify([...Array(9).keys()]))";
    let options = ["-F", "*node*", "--depth", "8"];
    Place::new().same(&options, &needs!(NODE.find()), &["-e", work]);
}

#[test]
fn java_and_what_it_compiles() {
    let place = Place::new();
    place.file(
        "A.java",
        "class A { static int f(int i) { return i % 7; } public static void main(String[] a) { \
         long s = 0; for (int i = 0; i < 300000; i++) s += f(i); System.out.println(s); } }\n",
    );
    let options = ["-F", "JVM_*", "-F", "JNI_*"];
    place.same(&options, &needs!(JAVA.find()), &["A.java"]);
}

/// Builds a program in Haskell, and records it with and without its libraries. A function of its
/// runtime, which is in C, is among those recorded.
fn haskell(flags: &[&str], strip: Option<PathBuf>) -> Result<(), Missing> {
    let (ghc, place) = (GHC.find()?, Place::new());
    let folder = place.path().to_string_lossy().into_owned();
    let flags = [&["-v0", "-O", "-outputdir", &folder], flags].concat();
    let program = place.build(&ghc, "hello.hs", &flags);
    let is_stripped = strip.is_some();
    if let Some(strip) = strip {
        let done = done(&mut place.command(&strip, &["program"]));
        assert_eq!(done.code, Some(0), "{}", done.err);
    }
    for options in [&[][..], &["--libs"]] {
        place.unharmed(options, &program, &[]);
        let report = &["report", "-n", "1000000"];
        let report = done(&mut place.command(env!("CARGO_BIN_EXE_fgraph").as_ref(), report));
        let is_traced = report.out.contains("rts_evalLazyIO");
        let is_in_program = !flags.contains(&"-dynamic") && !is_stripped;
        assert!(is_traced || !is_in_program, "{}", report.out);
        assert!(!report.out.contains("_info [program]"), "{}", report.out);
    }
    Ok(())
}

#[test]
fn haskell_and_its_runtime() {
    needs!(haskell(&[], None));
}

#[test]
fn haskell_with_threads_of_the_system() {
    needs!(haskell(&["-threaded", "-with-rtsopts=-N2"], None));
}

#[test]
fn haskell_in_shared_libraries() {
    needs!(haskell(&["-dynamic"], None));
}

#[test]
fn haskell_without_symbols() {
    let strip = needs!(STRIP.find());
    needs!(haskell(&[], Some(strip)));
}

/// Builds a program in OCaml that overflows its stack and catches that, until the file `end` is
/// there.
fn overflows() -> Result<(Place, PathBuf), Missing> {
    let (ocamlopt, place) = (OCAMLOPT.find()?, Place::new());
    place.file("overflows.ml", include_str!("record/overflows.ml"));
    let flags = ["-o", "overflows", "overflows.ml"];
    let built = done(&mut place.command(&ocamlopt, &flags));
    assert_eq!(built.code, Some(0), "{}", built.err);
    let program = place.path().join("overflows");
    Ok((place, program))
}

#[test]
fn ocaml_that_survives_overflows_of_its_stack() {
    let (place, program) = needs!(overflows());
    place.file("end", "");
    for options in [&[][..], &["--libs"]] {
        place.unharmed(options, &program, &["end"]);
    }
}

#[test]
fn ocaml_that_survives_overflows_of_its_stack_is_attached_to() {
    let (place, program) = needs!(overflows());
    let mut command = place.command(&program, &["end"]);
    let running = command.stdout(Stdio::piped()).spawn().unwrap();
    let id = running.id().to_string();
    for _ in 0..3 {
        let arguments = ["record", "-q", "--time", "200ms", "-p", &id];
        let recorded = done(&mut place.command(env!("CARGO_BIN_EXE_fgraph").as_ref(), &arguments));
        assert_eq!(recorded.code, Some(0), "{}", recorded.err);
    }
    place.file("end", "");
    let ended = running.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&ended.stdout), "true 1000\n");
    assert!(ended.status.success(), "{}", ended.status);
}

#[test]
fn mono_and_what_it_has_compiled_ahead_of_time() {
    let place = Place::new();
    let (mono, mcs) = (needs!(MONO.find()), needs!(MCS.find()));
    place.file("hello.cs", include_str!("record/hello.cs"));
    let compiled = done(&mut place.command(&mcs, &["hello.cs"]));
    assert_eq!(compiled.code, Some(0), "{}", compiled.err);
    // All calls are too many for each view and export of a debug build.
    place.same(&["--depth", "4"], &mono, &["hello.exe"]);
    place.same(&["--depth", "4", "--libs"], &mono, &["hello.exe"]);
}

/// The collector finds what only a register of a caller points to.
#[test]
fn a_program_on_boehms_collector() {
    let place = Place::new();
    let gcc = needs!(GCC.find());
    needs!(GCC.links(&["-lgc"], "libgc-dev"));
    let program = place.build(&gcc, "lists.c", &["-O2", "-Wl,--no-as-needed", "-lgc"]);
    for options in [&[][..], &["--libs"]] {
        place.unharmed(options, &program, &[]);
    }
}

/// Memory for the program's heap stays free where nothing fits below its text: at once, with little
/// room, with the usual room, and at any address.
#[test]
fn programs_whose_heap_grows_behind_their_data() {
    let gcc = needs!(GCC.find());
    let fixed = |start| format!("-no-pie -Wl,-Ttext-segment={start}");
    for flags in [
        fixed("0x18000"),
        fixed("0x140000"),
        fixed("0x400000"),
        "-pie".to_owned(),
    ] {
        let place = Place::new();
        let flags: Vec<_> = flags.split(' ').collect();
        let program = place.build(&gcc, "break.c", &[&["-O2"], &flags[..]].concat());
        place.unharmed(&[], &program, &[]);
    }
}

/// Each allocation collects. All calls of the interpreter are too many for a test.
#[test]
fn ruby_that_collects_all_the_time() {
    let work = "GC.stress = true; h = {}; 4.times { |i| h[\"x#{i}\"] = [i, \"a#{i}\".upcase] }; \
                puts h.values.flatten.join, h.size";
    let ruby = needs!(RUBY.find());
    let options = ["-F", "libruby*:*alloc*", "-F", "libruby*:*new*"];
    Place::new().unharmed(&options, &ruby, &["-e", work]);
}

#[test]
fn a_program_that_may_not_read_the_counter() {
    let place = Place::new();
    // Before glibc 2.34 `dlopen` is in a library of its own.
    let flags = ["-O1", "-pthread", "-Wl,--no-as-needed", "-ldl"];
    let program = place.build(&needs!(GCC.find()), "no_counter.c", &flags);
    for argument in ["prctl", "syscall"] {
        for options in [&[][..], &["--libs"]] {
            place.same(options, &program, &[argument]);
            let naps = nanoseconds(&place.path().join("fgraph.data"), "nap");
            // One before it asks, and one behind; each is one of 20 ms.
            assert_eq!(naps.len(), 2);
            assert!(
                naps.iter()
                    .all(|&nap| (20_000_000..10_000_000_000).contains(&nap))
            );
        }
    }
}

/// Returns the durations of the calls of a function that no two threads call at once.
fn nanoseconds(path: &Path, function: &str) -> Vec<u64> {
    let mut recording = Recording::open(path).unwrap();
    let (mut begun, mut took) = (None, Vec::new());
    while let Some(event) = recording.next().unwrap() {
        let (What::Entry { function: of, .. } | What::Return { function: of, .. }) = event.what
        else {
            continue;
        };
        let (process, time) = (event.process, event.time);
        let name = recording.names().function(process, of);
        if name.is_none_or(|name| name.name != function) {
            continue;
        }
        match begun.take() {
            None => begun = Some(time),
            Some(entered) => took.push(recording.clock().nanoseconds(time - entered)),
        }
    }
    took
}

#[test]
fn allocator_of_a_program_is_not_called_before_main() {
    let gcc = needs!(GCC.find());
    let place = Place::new();
    let program = place.build(&gcc, "early_allocator.c", &["-O1"]);
    let nothing = "allocated 0, reallocated 0, freed 0\n";
    let plain = done(&mut place.command(&program, &[]));
    assert_eq!(plain.out, nothing);
    for options in [&[][..], &["--libs"], &["-F", "main"], &["--args"]] {
        place.unharmed(options, &program, &[]);
    }
}
