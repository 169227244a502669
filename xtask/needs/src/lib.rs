//! Tools that tests need beyond Rust and a C compiler, and tests skipped without them.
//!
//! A test looks for its tools when it runs. If one is missing, or the machine lacks the tested
//! ability, the test prints a line and returns:
//!
//! ```text
//! skipped: backtraces::gdb_shows_every_caller: no gdb (apt-get install gdb)
//! ```
//!
//! Each such line also goes to a file that belongs to the run of cargo. Cargo starts
//! `.cargo/rustdoc.sh` for the examples in the docs when all tests have run; it prints the number
//! of these lines as the last line.
//!
//! ```no_run
//! use fgraph_needs::{GDB, needs, skip};
//!
//! fn gdb_shows_every_caller() {
//!     let gdb = needs!(GDB.find());
//!     if std::fs::exists("/proc/self/maps").is_err() {
//!         return skip!("no /proc here");
//!     }
//!     // ...
//! #   drop(gdb);
//! }
//! ```
//!
//! `FGRAPH_WITHOUT=clang,gdb` hides tools from tests; `FGRAPH_WITHOUT=all` hides all but a C
//! compiler. `.ci/bare.sh` runs a command on a system without these tools.

#![forbid(unsafe_code)]

use std::env;
use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

/// Variable with the tools that are hidden from tests, separated by commas, or `all`.
const WITHOUT: &str = "FGRAPH_WITHOUT";

/// Variable with the file that lists skipped tests, in processes that a test starts.
pub const RECORD: &str = "FGRAPH_SKIPPED";

/// Returns the kernel's name of the processor, which every figure belongs to.
#[must_use]
pub fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let mut names = text.lines().filter_map(|line| {
        let (key, name) = line.split_once(':')?;
        (key.trim_end() == "model name").then(|| name.trim().to_owned())
    });
    names.next().unwrap_or_else(|| "unknown".to_owned())
}

/// Tool that a test needs, and the way to install it.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    name: &'static str,
    /// Commands; any will do.
    commands: &'static [&'static str],
    installer: &'static str,
    package: &'static str,
}

const DEBIAN: &str = "apt-get install";
const NPM: &str = "npm install -g";
const PIP: &str = "pip install";

const fn program(commands: &'static [&'static str], package: &'static str) -> Need {
    Need {
        name: commands[0],
        commands,
        installer: DEBIAN,
        package,
    }
}

/// Describes a package that is no Debian program.
const fn package(
    name: &'static str,
    commands: &'static [&'static str],
    installer: &'static str,
    package: &'static str,
) -> Need {
    Need {
        name,
        commands,
        installer,
        package,
    }
}

/// Any C compiler.
pub const CC: Need = program(&["cc", "gcc", "clang", "clang-14"], "gcc");
/// The GNU C compiler.
pub const GCC: Need = program(&["gcc"], "gcc");
/// The GNU C++ compiler.
pub const GXX: Need = program(&["g++"], "g++");
/// The LLVM C compiler.
pub const CLANG: Need = program(
    &[
        "clang", "clang-14", "clang-19", "clang-18", "clang-16", "clang-15",
    ],
    "clang",
);
/// The LLVM C++ compiler.
pub const CLANGXX: Need = program(
    &[
        "clang++",
        "clang++-14",
        "clang++-19",
        "clang++-18",
        "clang++-16",
        "clang++-15",
    ],
    "clang",
);
/// The Rust compiler, which runs tests as well.
pub const RUSTC: Need = program(&["rustc"], "rustc");
/// The manager of Rust's toolchains, which runs a nightly.
pub const RUSTUP: Need = program(&["rustup"], "rustup");
/// Generator of random C programs; its headers are in the same package or in libcsmith-dev.
pub const CSMITH: Need = program(&["csmith"], "csmith libcsmith-dev");
/// GNU's debugger.
pub const GDB: Need = program(&["gdb"], "gdb");
/// The emulator of a whole machine.
pub const QEMU: Need = program(&["qemu-system-x86_64"], "qemu-system-x86");
/// The disassembler of GNU's binutils.
pub const OBJDUMP: Need = program(&["objdump"], "binutils");
/// Editor of object files.
pub const OBJCOPY: Need = program(&["objcopy"], "binutils");
/// Client that fetches files from servers.
pub const CURL: Need = program(&["curl"], "curl");
/// Compressor of files.
pub const XZ: Need = program(&["xz"], "xz-utils");
/// The profiler of the Linux kernel.
pub const PERF: Need = program(&["perf"], "linux-perf");
/// Runner of small programs in the kernel.
pub const BPFTRACE: Need = program(&["bpftrace"], "bpftrace");
/// The shell of SQLite.
pub const SQLITE3: Need = program(&["sqlite3"], "sqlite3");
/// Tracer of system calls.
pub const STRACE: Need = program(&["strace"], "strace");
/// Installer of a Debian release in a directory.
pub const DEBOOTSTRAP: Need = program(&["debootstrap"], "debootstrap");
/// Virtual machine that checks memory.
pub const VALGRIND: Need = program(&["valgrind"], "valgrind");

/// Version control.
pub const GIT: Need = program(&["git"], "git");
/// The Java virtual machine, with the compiler of its language.
pub const JAVA: Need = program(&["java"], "default-jdk-headless");
/// A shell that starts commands by `vfork`.
pub const DASH: Need = program(&["dash"], "dash");
/// A program that builds others by the rules of a file.
pub const MAKE: Need = program(&["make"], "make");
/// The compiler of Haskell.
pub const GHC: Need = program(&["ghc"], "ghc");
/// The compiler of OCaml.
pub const OCAMLOPT: Need = program(&["ocamlopt"], "ocaml");
/// Remover of symbols.
pub const STRIP: Need = program(&["strip"], "binutils");
/// The virtual machine of .NET's languages that compiles ahead of time.
pub const MONO: Need = program(&["mono"], "mono-runtime");
/// Its compiler of C#.
pub const MCS: Need = program(&["mcs"], "mono-mcs");
/// The interpreter of Ruby.
pub const RUBY: Need = program(&["ruby"], "ruby");
/// Server of keys and values.
pub const REDIS_SERVER: Need = program(&["redis-server"], "redis-server");
/// Server of PHP, whose workers run as another user.
pub const PHP_FPM: Need = program(&["php-fpm", "php-fpm8.2", "php-fpm8.4"], "php-fpm");
/// Benchmark of the server of keys and values.
pub const REDIS_BENCHMARK: Need = program(&["redis-benchmark"], "redis-tools");
/// Client of that server.
pub const REDIS_CLI: Need = program(&["redis-cli"], "redis-tools");
/// Database server, whose programs Debian keeps out of the `PATH`.
pub const POSTGRES: Need = program(&["postgres"], "postgresql");
/// Client of that database server.
pub const PSQL: Need = program(&["psql"], "postgresql-client");
/// Web server and proxy.
pub const NGINX: Need = program(&["nginx"], "nginx-light");
/// C compiler for another C library than glibc.
pub const MUSL_GCC: Need = program(&["musl-gcc"], "musl-tools");

/// The interpreter of Python.
pub const PYTHON: Need = program(&["python3"], "python3");
/// Runtime of JavaScript.
pub const NODE: Need = program(&["node"], "nodejs");
/// A browser that runs without a screen.
pub const CHROMIUM: Need = program(&["chromium", "chromium-browser"], "chromium");
/// Terminal multiplexer that a program can type into and read from.
pub const TMUX: Need = program(&["tmux"], "tmux");
/// Tracer of functions, which shows recordings.
pub const UFTRACE: Need = program(&["uftrace"], "uftrace");
/// Reader of the Common Trace Format.
pub const BABELTRACE: Need = program(&["babeltrace2"], "babeltrace2");
/// Program that makes pages of tracefiles of lcov.
pub const GENHTML: Need = program(&["genhtml"], "lcov");
/// Reader of callgrind's profiles.
pub const CALLGRIND_ANNOTATE: Need = program(&["callgrind_annotate"], "valgrind");
/// Reader of massif's profiles of the heap.
pub const MS_PRINT: Need = program(&["ms_print"], "valgrind");
/// The Go compiler, which has pprof.
pub const GO: Need = program(&["go"], "golang-go");
/// Client of the Firefox Profiler for a terminal.
pub const PROFILER_CLI: Need = package(
    "profiler-cli",
    &["profiler-cli"],
    NPM,
    "@firefox-devtools/profiler-cli",
);
/// Viewer of profiles, with the schema of its files.
pub const SPEEDSCOPE: Need = package("speedscope", &["speedscope"], NPM, "speedscope");
/// Decoder of pprof's profiles.
pub const PPROF_FORMAT: Need = package("pprof-format", &[], NPM, "pprof-format");
/// Python's module with the messages of Perfetto.
pub const PERFETTO: Need = package("perfetto", &[], PIP, "perfetto");
/// Python's module of a database that reads Parquet.
pub const DUCKDB: Need = package("duckdb", &[], PIP, "duckdb");
/// Python's module with the messages of OpenTelemetry.
pub const OTLP: Need = package(
    "opentelemetry.proto.trace.v1.trace_pb2",
    &[],
    PIP,
    "opentelemetry-proto",
);
/// Python's module that reads Cobertura's XML.
pub const PYCOBERTURA: Need = package("pycobertura", &[], PIP, "pycobertura");
/// Python's module that checks JSON by schemas.
pub const JSONSCHEMA: Need = package("jsonschema", &[], PIP, "jsonschema");
/// Python's client of the Model Context Protocol.
pub const MCP: Need = package("mcp.client.client", &[], PIP, "'mcp>=2'");

/// Compressor of pictures.
pub const PNGQUANT: Need = program(&["pngquant"], "pngquant");
/// Profiler of the heap.
pub const HEAPTRACK: Need = program(&["heaptrack"], "heaptrack");
/// Injector of code into programs.
pub const FRIDA: Need = package("frida", &[], PIP, "frida");
/// Tracer of programs with tracepoints.
pub const LTTNG: Need = program(&["lttng"], "lttng-tools");
/// Libraries of that tracer for programs.
pub const LTTNG_UST: Need = library("liblttng-ust.so.1", "liblttng-ust1");

/// Reader of the kernel's tracefs.
pub const TRACEFS: Need = library("libtracefs.so.1", "libtracefs1");

/// Google's allocator.
pub const TCMALLOC: Need = library("libtcmalloc.so.4", "libgoogle-perftools4");
/// The same without its profilers.
pub const TCMALLOC_MINIMAL: Need = library("libtcmalloc_minimal.so.4", "libtcmalloc-minimal4");
/// FreeBSD's allocator.
pub const JEMALLOC: Need = library("libjemalloc.so.2", "libjemalloc2");
/// Microsoft's allocator.
pub const MIMALLOC: Need = library("libmimalloc.so.2", "libmimalloc2.0");

/// The library of SQLite.
pub const SQLITE: Need = library("libsqlite3.so.0", "libsqlite3-0");

/// A shared library, which the dynamic linker finds.
const fn library(name: &'static str, package: &'static str) -> Need {
    Need {
        name,
        commands: &[],
        installer: DEBIAN,
        package,
    }
}

/// The README requires these, so `all` does not hide them.
const ALWAYS: [&str; 3] = ["cc", "gcc", "rustc"];

impl Need {
    /// Returns its name, as in `FGRAPH_WITHOUT`.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the path of its first command in the `PATH`, or the bare name of a library.
    ///
    /// # Errors
    ///
    /// Fails if there is none, or it is hidden.
    pub fn find(&self) -> Result<PathBuf, Missing> {
        if self.is_hidden() {
            return Err(self.missing());
        }
        if self.commands.is_empty() {
            return Ok(self.name.into());
        }
        let path = env::var_os("PATH").unwrap_or_default();
        let is_program = |path: &PathBuf| {
            fs::metadata(path).is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
        };
        let places: Vec<PathBuf> = env::split_paths(&path).collect();
        let names = self.commands.iter();
        let mut all = names.flat_map(|&name| places.iter().map(move |place| place.join(name)));
        all.find(is_program).ok_or_else(|| self.missing())
    }

    /// Checks that this compiler links a program with `flags`, which name libraries of `package`.
    ///
    /// # Errors
    ///
    /// Fails if there is no such compiler, it does not link, or `package` is hidden.
    pub fn links(&self, flags: &[&str], package: &'static str) -> Result<(), Missing> {
        let compiler = self.find()?;
        let wanted = Need {
            name: package,
            commands: &[],
            installer: DEBIAN,
            package,
        };
        if wanted.is_hidden() {
            return Err(wanted.missing());
        }
        let mut child = Command::new(compiler)
            .args(["-x", "c", "-", "-o", "/dev/null"])
            .args(flags)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|_| self.missing())?;
        let source = b"int main(void) { return 0; }\n";
        let written = child.stdin.take().map(|mut input| input.write_all(source));
        let links = child.wait().is_ok_and(|status| status.success());
        if links && matches!(written, Some(Ok(()))) {
            Ok(())
        } else {
            Err(wanted.missing())
        }
    }

    /// Checks that Python can import this module.
    ///
    /// # Errors
    ///
    /// Fails if it cannot, or the module is hidden, or there is no Python.
    pub fn import(&self) -> Result<(), Missing> {
        let mut python = Command::new(PYTHON.find()?);
        python.args(["-c", &format!("import {}", self.name)]);
        let imports = python.stdin(Stdio::null()).stderr(Stdio::null()).status();
        match imports {
            Ok(status) if status.success() && !self.is_hidden() => Ok(()),
            _ => Err(self.missing()),
        }
    }

    /// Returns the directory of a package that npm has installed for all users.
    ///
    /// # Errors
    ///
    /// Fails if there is none, or it is hidden.
    pub fn npm_directory(&self) -> Result<PathBuf, Missing> {
        let mut npm = Command::new("npm");
        let found = npm.args(["root", "-g"]).stdin(Stdio::null()).output();
        let root = String::from_utf8(found.map_err(|_| self.missing())?.stdout);
        let root = root.map_err(|_| self.missing())?;
        let directory = Path::new(root.trim()).join(self.package);
        match directory.is_dir() && !self.is_hidden() {
            true => Ok(directory),
            false => Err(self.missing()),
        }
    }

    /// Returns the reason that it is missing, if only its user can find out.
    pub fn missing(&self) -> Missing {
        Missing::new(format_args!(
            "no {} ({} {})",
            self.name, self.installer, self.package
        ))
    }

    fn is_hidden(&self) -> bool {
        let hidden = env::var(WITHOUT).unwrap_or_default();
        hidden.split(',').any(|name| {
            name == self.name
                || name == "all" && !self.commands.iter().any(|name| ALWAYS.contains(name))
        })
    }
}

/// Reason why a test cannot run: a missing tool with a way to install it, or a missing ability of
/// the machine.
#[derive(Clone, Debug)]
pub struct Missing(String);

impl Missing {
    /// Makes a reason other than a missing [`Need`].
    pub fn new(reason: impl fmt::Display) -> Self {
        Self(reason.to_string())
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Missing {}

/// Returns an error with the reason, unless the kernel writes a core file of any size into the
/// working directory of a program that a signal has ended.
pub fn core_files() -> Result<(), Missing> {
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").map_err(Missing::new)?;
    let pattern = pattern.trim_end();
    if !pattern.starts_with("core") || pattern.contains('/') {
        return Err(Missing::new(format_args!(
            "core files go to {pattern:?} (sysctl -w kernel.core_pattern=core)"
        )));
    }
    let limits = fs::read_to_string("/proc/self/limits").map_err(Missing::new)?;
    let limit = limits
        .lines()
        .find(|it| it.starts_with("Max core file size"));
    if limit.is_some_and(|it| it.contains(" unlimited ")) {
        return Ok(());
    }
    Err(Missing::new(
        "the hard limit of core files is not unlimited (ulimit -Hc)",
    ))
}

/// Reports and counts that `test` cannot run, with the reason.
pub fn skip(test: &str, reason: impl fmt::Display) {
    let line = format!("{SKIPPED}{test}: {reason}\n");
    // Not with a macro, whose output the test harness would capture.
    let _ = io::stderr().write_all(line.as_bytes());
    if let Some(path) = record() {
        let file = OpenOptions::new().append(true).create(true).open(path);
        // One write, since other processes append too.
        let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
    }
}

/// Start of a line about a skipped test.
pub const SKIPPED: &str = "skipped: ";

/// Returns the file that lists the tests skipped in this run of cargo. It is beside the test
/// programs, and named after the process that has started them.
pub fn record() -> Option<PathBuf> {
    if let Some(path) = env::var_os(RECORD) {
        return Some(path.into());
    }
    let program = env::current_exe().ok()?;
    let directory = program.parent()?.join("skipped");
    let cargo = process::parent_id();
    static CLEANED: Mutex<bool> = Mutex::new(false);
    let mut cleaned = CLEANED.lock().ok()?;
    if !*cleaned {
        fs::create_dir_all(&directory).ok()?;
        remove_old(&directory);
        *cleaned = true;
    }
    Some(directory.join(format!("{cargo}-{}", started(cargo)?)))
}

/// Returns the time at which a process was started, in ticks of the clock: an id may be reused, at
/// another time.
fn started(process: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name, in parentheses, is the second field and may contain anything.
    let (_, fields) = stat.rsplit_once(") ")?;
    fields.split(' ').nth(19).map(str::to_owned)
}

/// Removes the lists of runs that have ended.
fn remove_old(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let goes_on = name.split_once('-').is_some_and(|(cargo, start)| {
            let now = cargo.parse().ok().and_then(started);
            now.as_deref() == Some(start)
        });
        if !goes_on {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Returns the test function that contains an item or a closure with the type name `inner`.
pub fn test_of(inner: &'static str) -> &'static str {
    let outer = inner.strip_suffix("::here").unwrap_or(inner);
    outer.split("::{{closure}}").next().unwrap_or(outer)
}

/// Expands to the path of the enclosing function.
#[macro_export]
macro_rules! test_name {
    () => {{
        fn here() {}
        $crate::test_of(::core::any::type_name_of_val(&here))
    }};
}

/// Ends the enclosing test as skipped, for the reason that the arguments of `format!` make: `return
/// skip!("no AVX")`.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)+) => {
        $crate::skip($crate::test_name!(), ::core::format_args!($($reason)+))
    };
}

/// Unwraps a `Result`, or ends the enclosing test as skipped for its error.
#[macro_export]
macro_rules! needs {
    ($found:expr) => {
        match $found {
            Ok(found) => found,
            Err(missing) => return $crate::skip($crate::test_name!(), missing),
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Need = program(&["no-such-command-anywhere"], "no-such-package");

    #[test]
    fn missing_tools_are_named_with_their_package() {
        assert_eq!(
            NOTHING.find().unwrap_err().to_string(),
            "no no-such-command-anywhere (apt-get install no-such-package)"
        );
        assert_eq!(
            CC.links(&["-lno-such-library"], "no-such-library-dev")
                .unwrap_err()
                .to_string(),
            "no no-such-library-dev (apt-get install no-such-library-dev)"
        );
    }

    #[test]
    fn a_compiler_is_found_and_links() {
        assert!(RUSTC.find().unwrap().is_absolute());
        CC.links(&["-lm"], "libc6-dev").unwrap();
    }

    #[test]
    fn a_test_knows_its_name_within_closures_too() {
        const NAME: &str = "fgraph_needs::tests::a_test_knows_its_name_within_closures_too";
        assert_eq!(test_name!(), NAME);
        let inner = || || test_name!();
        assert_eq!(inner()(), NAME);
    }
}
