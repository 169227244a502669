//! Programs that know nothing of fgraph do the same under all tracers at once, and these agree.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Output};
use std::{env, fs};

use fgraph_chores::cargo;
use fgraph_needs::{CC, GXX, Missing, RUSTC, SQLITE3, skip};

/// A folder that is removed in the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = env::temp_dir().join(format!("fgraph-tracers-{name}-{}", process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        path
    }

    /// Compiles a source; gives the program.
    fn compile(&self, compiler: &Path, source: &str, text: &str, flags: &[&str]) -> PathBuf {
        let (source, program) = (self.write(source, text), self.0.join("program"));
        let mut command = Command::new(compiler);
        command.args(flags).arg(source).arg("-o").arg(&program);
        assert!(command.status().unwrap().success());
        program
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Figures by name.
type Figures = BTreeMap<String, u64>;

/// Runs a command as it is and under all tracers: it must do the same. Gives what these have seen.
fn trace<A: AsRef<OsStr>>(folder: &Folder, program: &Path, args: &[A], filter: &str) -> Figures {
    let run = |traced: bool| -> Output {
        let mut command = Command::new(program);
        command.args(args).current_dir(&folder.0);
        if traced {
            command.env("LD_PRELOAD", cargo::build("fgraph-preload-test").unwrap());
            command
                .env("FGRAPH_FILTER", filter)
                .env("FGRAPH_TRACERS", "1");
            command.env("FGRAPH_OUT", folder.0.join("out"));
        }
        command.output().unwrap()
    };
    let (plain, traced) = (run(false), run(true));
    assert_eq!(traced.status, plain.status, "{traced:?}");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!(text(&traced.stdout), text(&plain.stdout));
    assert_eq!(text(&traced.stderr), text(&plain.stderr));
    let report = fs::read_to_string(folder.0.join("out")).unwrap();
    let members = report.trim_start_matches('{').split(',');
    let figure = |member: &str| {
        let (name, value) = member.split_once(':')?;
        Some((name.trim_matches('"').to_owned(), value.parse().ok()?))
    };
    members.filter_map(figure).collect()
}

/// Checks that hold however many threads go on when the program ends.
fn check(seen: &Figures) {
    assert!(seen["entries"] > 100, "{seen:?}");
    assert_eq!(seen["recorder_told"], seen["recorder_written"], "{seen:?}");
    assert_eq!(seen["profiler_edges"], seen["profiler_hits"], "{seen:?}");
    for none in [
        "recorder_without_ring",
        "probe_missed",
        "watchdog_late",
        "patched",
        "stopped",
    ] {
        assert_eq!(seen[none], 0, "{none}: {seen:?}");
    }
    for some in ["stack_threads", "outliers", "syscalls_lines"] {
        assert_ne!(seen[some], 0, "{some}: {seen:?}");
    }
}

/// Checks that hold if all threads have ended.
fn check_exactly(seen: &Figures) {
    check(seen);
    let [entries, returns] = [seen["entries"], seen["returns"]];
    assert_eq!(seen["recorder_written"], entries + returns, "{seen:?}");
    assert_eq!(seen["profiler_hits"], returns, "{seen:?}");
    assert_eq!(seen["probe_hits"], entries, "{seen:?}");
}

/// Skips the test where something is missing.
fn unless_missing(test: &str, run: impl FnOnce() -> Result<(), Missing>) {
    if let Err(missing) = run() {
        skip(test, missing);
    }
}

const CRATE: &str = "
use std::collections::BTreeMap;
pub trait Shape { fn area(&self) -> f64; }
pub struct Square(pub f64);
impl Shape for Square { fn area(&self) -> f64 { self.0 * self.0 } }
pub fn count(words: &str) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    words.split(' ').for_each(|word| *counts.entry(word).or_default() += 1);
    counts
}
fn main() { println!(\"{:?} {}\", count(\"a b a\"), Square(2.0).area()); }
";

#[test]
fn rustc_compiles_a_crate() {
    unless_missing("rustc_compiles_a_crate", || {
        let rustc = RUSTC.find()?;
        let sysroot = Command::new(rustc)
            .args(["--print", "sysroot"])
            .output()
            .unwrap();
        // Not a program that starts it.
        let sysroot = String::from_utf8(sysroot.stdout).unwrap();
        let rustc = Path::new(sysroot.trim()).join("bin/rustc");
        let folder = Folder::new("rustc");
        folder.write("small.rs", CRATE);
        let filter = "mem*:mod:libc.so* str*:mod:libc.so* pthread_*:mod:libc.so*";
        let args = ["--edition=2021", "-Copt-level=1", "small.rs"];
        let seen = trace(&folder, &rustc, &args, filter);
        check(&seen);
        assert!(seen["stack_threads"] > 1 && seen["locks"] > 0, "{seen:?}");
        let output = Command::new(folder.0.join("small")).output().unwrap();
        assert_eq!(output.stdout, b"{\"a\": 2, \"b\": 1} 4\n");
        Ok(())
    });
}

#[test]
fn sqlite_runs_a_script() {
    unless_missing("sqlite_runs_a_script", || {
        let sqlite = SQLITE3.find()?;
        let folder = Folder::new("sqlite");
        let script = "create table t (n integer primary key, s text);
            with recursive c(i) as (select 1 union all select i + 1 from c where i < 500)
            insert into t select i, hex(i * i) from c;
            create index s on t (s);
            select substr(s, 1, 1), count(*), sum(n) from t group by 1 order by 2 desc, 1;";
        let filter = ":mod:libsqlite3.so* malloc:mod:libc.so* free:mod:libc.so*";
        let seen = trace(&folder, &sqlite, &[":memory:", script], filter);
        check_exactly(&seen);
        assert_eq!(
            (seen["stack_threads"], seen["threads_wrong"]),
            (1, 0),
            "{seen:?}"
        );
        Ok(())
    });
}

/// Hashes the files that it is given, on four threads.
const HASH: &str = r#"
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#define NOINLINE __attribute__((noinline))
static char **files; static int count, next; static uint64_t sum;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
NOINLINE uint64_t mix(uint64_t h, const unsigned char *b, size_t n) {
    for (size_t i = 0; i < n; i++) h = (h ^ b[i]) * 0x100000001b3;
    return h;
}
NOINLINE uint64_t hash(const char *path) {
    unsigned char block[64]; uint64_t h = 0xcbf29ce484222325; size_t n;
    FILE *file = fopen(path, "r");
    while (file && (n = fread(block, 1, sizeof block, file)) > 0) h = mix(h, block, n);
    if (file) fclose(file);
    return h;
}
NOINLINE int take(void) {
    pthread_mutex_lock(&lock);
    int taken = next < count ? next++ : -1;
    pthread_mutex_unlock(&lock);
    return taken;
}
NOINLINE void *work(void *unused) {
    for (int n; (n = take()) >= 0;) {
        uint64_t h = hash(files[n]);
        pthread_mutex_lock(&lock); sum ^= h; pthread_mutex_unlock(&lock);
    }
    return unused;
}
int main(int argc, char **argv) {
    pthread_t threads[4]; files = argv + 1; count = argc - 1;
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], 0, work, 0);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
    printf("%016lx\n", (unsigned long)sum);
}
"#;

#[test]
fn threads_hash_a_folder() {
    unless_missing("threads_hash_a_folder", || {
        let compiler = CC.find()?;
        let folder = Folder::new("hash");
        let program = folder.compile(&compiler, "hash.c", HASH, &["-O1", "-pthread"]);
        let files =
            (0..40_u8).map(|n| folder.write(&format!("f{n}"), vec![n; 97 * usize::from(n)]));
        let files: Vec<_> = files.collect();
        let filter =
            "mix:mod:program hash:mod:program take:mod:program work:mod:program main:mod:program";
        let seen = trace(&folder, &program, &files, filter);
        check_exactly(&seen);
        // Only main was called on the main thread. Two blocks of 64 bytes for each 97, rounded up.
        let blocks: u64 = (0..40_u64).map(|n| (97 * n).div_ceil(64)).sum();
        assert_eq!(seen["entries"], blocks + 40 + 44 + 4 + 1, "{seen:?}");
        assert!(seen["threads_wrong"] > 0 && seen["locks"] > 0, "{seen:?}");
        assert!((2..=5).contains(&seen["stack_threads"]), "{seen:?}");
        Ok(())
    });
}

/// Throws through frames, catches and throws again.
const THROWS: &str = r#"
#include <cstdio>
#include <stdexcept>
#include <string>
#define NOINLINE __attribute__((noinline))
static int closed;
struct Guard { ~Guard() { closed++; } };
NOINLINE int descend(int depth, int n) {
    Guard guard;
    if (depth == 0) throw std::runtime_error(std::to_string(n));
    return descend(depth - 1, n) + 1;
}
NOINLINE int attempt(int n) {
    try { return descend(n % 7, n); }
    catch (const std::exception &error) {
        if (n % 5 == 0) throw;
        return error.what()[0];
    }
}
int main() {
    int sum = 0;
    for (int n = 0; n < 200; n++)
        try { sum += attempt(n); } catch (const std::runtime_error &error) { sum += 1000; }
    std::printf("%d %d\n", sum, closed);
}
"#;

#[test]
fn a_program_throws() {
    unless_missing("a_program_throws", || {
        let compiler = GXX.find()?;
        let folder = Folder::new("throws");
        let program = folder.compile(&compiler, "throws.cpp", THROWS, &["-O1"]);
        let seen = trace::<&str>(&folder, &program, &[], "descend* attempt* main:mod:program");
        check_exactly(&seen);
        // Unwound frames return as well.
        assert_eq!(seen["returns"], seen["entries"], "{seen:?}");
        let descents: u64 = (0..200).map(|n| n % 7 + 1).sum();
        assert_eq!(seen["entries"], descents + 200 + 1, "{seen:?}");
        Ok(())
    });
}
