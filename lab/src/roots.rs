//! `cargo xtask roots`: runs the tests with the C libraries, linkers and compilers of other Debian
//! releases.
//!
//! The toolchain and the sources of the crates are those of this machine. The tests are linked in
//! the root, so that they run with its C library.
//!
//! ```text
//!   target/roots/SUITE/          a Debian release, made by debootstrap
//!     build/                     what cargo builds
//!     WORKSPACE, CARGO_HOME,     mounts of the same directories of this machine, in a namespace
//!     SYSROOT, proc, dev, sys    that ends with the tests
//!   target/roots/SUITE.log       what the tests printed
//! ```

use std::env;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::mem;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use clap::Args;
use fgraph_chores::process::succeed;
use fgraph_chores::{cargo, toolchain};
use fgraph_needs::{DEBOOTSTRAP, Missing, SKIPPED};

/// Releases with a C library other than that of Debian 12, oldest last.
const SUITES: [&str; 3] = ["trixie", "sid", "bullseye"];

/// Packages for the tests. Few functions of the C library can be traced without its symbols.
const PACKAGES: &str = "g++ gcc gdb libc6-dbg libc6-dev python3-minimal";

/// Tests that rest on the C library for much.
const TESTS: [(&str, &str); 4] = [
    ("fgraph", "it"),
    ("fgraph-attach", "load"),
    ("fgraph-cli", "it"),
    ("fgraph-reliability", "scenarios"),
];

/// The only target that fgraph has.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Mounts the directories `$2` to `$4` in the root `$1`, and runs the rest there.
const ENTER: &str = r#"
set -e
root=$1
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"
for directory in "$2" "$3" "$4"; do
    mkdir -p "$root$directory"
    mount --bind "$directory" "$root$directory"
done
shift 4
exec chroot "$root" "$@"
"#;

/// Options of the command line.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Take this release only; may be given again
    #[arg(long = "suite", value_name = "SUITE",
        value_parser = clap::builder::PossibleValuesParser::new(SUITES))]
    suites: Vec<String>,
    /// Build and run only this test target; may be given again
    #[arg(long = "test", value_name = "TARGET",
        value_parser = clap::builder::PossibleValuesParser::new(targets()))]
    targets: Vec<String>,
    /// Leave the roots there, with what was built in them, for the next time
    #[arg(long)]
    keep: bool,
}

/// Runs the tests in each root. Fails where a test fails.
pub(crate) fn run(options: &Options) -> io::Result<bool> {
    let mirror = match find_mirror() {
        Ok(mirror) => mirror,
        Err(missing) => {
            println!("{SKIPPED}all roots: {missing}");
            return Ok(true);
        }
    };
    let workspace = cargo::workspace().canonicalize()?;
    let directory = workspace.join("target/roots");
    fs::create_dir_all(&directory)?;
    let mut fetch = Command::new(cargo::program());
    fetch.args(["fetch", "--quiet", "--locked", "--target", TARGET]);
    succeed(fetch.current_dir(&workspace))?;
    let is_asked = |suite: &&str| {
        options.suites.is_empty() || options.suites.iter().any(|asked| asked == suite)
    };
    let mut rows = String::from("suite      C library       seconds  passed  failed\n");
    let mut is_good = true;
    for suite in SUITES.into_iter().filter(is_asked) {
        let root = Root {
            path: directory.canonicalize()?.join(suite),
            shared: [
                workspace.clone(),
                toolchain::cargo_home()?,
                toolchain::sysroot()?,
            ],
            is_kept: options.keep,
        };
        if let Err(error) = root.make(suite, &mirror) {
            println!("{SKIPPED}{suite}: {error}");
            continue;
        }
        let start = Instant::now();
        let log = root.path.with_extension("log");
        let outcome = root.test(options, &log)?;
        is_good &= outcome.is_good;
        rows += &format!(
            "{suite:<11}{:<16}{:>7.0}  {:>6}  {:>6}\n",
            root.c_library()?,
            start.elapsed().as_secs_f64(),
            outcome.passed,
            outcome.failed.len(),
        );
        for name in &outcome.failed {
            rows += &format!("  failed: {name}\n");
        }
        if !outcome.is_good {
            rows += &format!("  see {}\n", log.display());
        }
    }
    print!("{rows}");
    Ok(is_good)
}

/// Names of the test targets.
fn targets() -> impl Iterator<Item = &'static str> {
    TESTS.iter().flat_map(|(_, targets)| targets.split(' '))
}

/// The mirror of Debian that this machine installs packages from, if roots can be made here.
fn find_mirror() -> Result<String, Missing> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    if !status.lines().any(|line| line.starts_with("Uid:\t0\t0\t")) {
        return Err(Missing::new(
            "only root may make roots (sudo cargo xtask roots)",
        ));
    }
    DEBOOTSTRAP.find()?;
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let codename = release
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let mut apt = Command::new("apt-get");
    apt.args([
        "indextargets",
        "--format",
        "$(REPO_URI)",
        "Created-By: Packages",
    ]);
    let listed = succeed(apt.arg(format!("Release: {}", codename.unwrap_or_default())));
    let first = listed
        .ok()
        .and_then(|listed| listed.lines().next().map(str::to_owned));
    first.ok_or_else(|| {
        Missing::new("apt knows no mirror of this release (add one to sources.list)")
    })
}

/// A command in namespaces of its own, for mounts and for processes: these end with it, and it ends
/// with this process.
fn isolated() -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "unshare"]);
    command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    command.stdin(Stdio::null());
    command
}

/// The results of the tests in a root.
#[derive(Debug, Default)]
struct Outcome {
    is_good: bool,
    passed: usize,
    /// The names of the tests that failed, each with its target.
    failed: Vec<String>,
    running: Running,
}

/// The results so far of a test target. Processes that a failed test started may have printed
/// results as well, before the target's own.
#[derive(Debug, Default)]
struct Running {
    target: String,
    passed: usize,
    has_failed: bool,
    is_in_list: bool,
    listed: Vec<String>,
}

impl Outcome {
    /// Adds a line of what cargo and the tests print:
    ///
    /// ```text
    ///      Running tests/TARGET.rs (PATH)
    /// failures:
    ///     NAME
    ///
    /// test result: FAILED. 12 passed; 1 failed; ...
    /// ```
    fn add(&mut self, line: &str) {
        let line = line.trim_end();
        let running = &mut self.running;
        if let Some(path) = line.strip_prefix("     Running ") {
            self.finish();
            let path = path.split_whitespace().next().map(Path::new);
            let stem = path.and_then(Path::file_stem).unwrap_or_default();
            self.running.target = stem.to_string_lossy().into_owned();
        } else if line == "failures:" {
            running.is_in_list = true;
            running.listed.clear();
        } else if let Some(result) = line.strip_prefix("test result: ") {
            running.is_in_list = false;
            running.has_failed = result.starts_with("FAILED");
            let count = result.split_whitespace().nth(1);
            running.passed = count.and_then(|it| it.parse().ok()).unwrap_or_default();
        } else if let Some(name) = line.strip_prefix("    ") {
            if running.is_in_list {
                running.listed.push(name.to_owned());
            }
        } else if !line.is_empty() {
            running.is_in_list = false;
        }
    }

    /// Adds the results of the target that ran last.
    fn finish(&mut self) {
        let running = mem::take(&mut self.running);
        self.passed += running.passed;
        if running.has_failed {
            let target = &running.target;
            let names = running.listed.iter();
            self.failed
                .extend(names.map(|name| format!("{target}::{name}")));
        }
    }
}

/// A directory with a Debian release.
#[derive(Debug)]
struct Root {
    path: PathBuf,
    /// Directories of this machine that are mounted in it: the workspace is the first.
    shared: [PathBuf; 3],
    is_kept: bool,
}

impl Root {
    /// Installs the release and what the tests need, unless it was kept.
    fn make(&self, suite: &str, mirror: &str) -> io::Result<()> {
        let done = self.path.join("made");
        if done.exists() {
            return Ok(());
        }
        remove(&self.path)?;
        let mut debootstrap = isolated();
        debootstrap.args(["debootstrap", "--variant=minbase", suite]);
        succeed(debootstrap.arg(&self.path).arg(mirror))?;
        let mut install = self.command(&["apt-get", "install", "-y", "--no-install-recommends"]);
        succeed(
            install
                .args(PACKAGES.split(' '))
                .env("DEBIAN_FRONTEND", "noninteractive"),
        )?;
        fs::write(done, "")
    }

    /// A command that runs in the root.
    fn command(&self, words: &[&str]) -> Command {
        let [_, cargo_home, sysroot] = &self.shared;
        let mut command = isolated();
        command.args(["sh", "-c", ENTER, "sh"]).arg(&self.path);
        command.args(&self.shared).args(words);
        // Cargo has told this process about the build of this machine.
        for (name, _) in env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("CARGO") || text.starts_with("RUST") || text.starts_with("LD_") {
                command.env_remove(name);
            }
        }
        let programs = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        command
            .env("PATH", format!("{}/bin:{programs}", sysroot.display()))
            .env("CARGO_HOME", cargo_home)
            .env("CARGO_TARGET_DIR", "/build");
        command
    }

    /// Builds the tests and runs them, prints what they print and writes it to `log`.
    fn test(&self, options: &Options, log: &Path) -> io::Result<Outcome> {
        let mut command = self.command(&["cargo", "test", "--locked", "--offline"]);
        command.args(["--no-fail-fast", "--manifest-path"]);
        command.arg(self.shared[0].join("Cargo.toml"));
        let is_asked = |target: &&str| {
            options.targets.is_empty() || options.targets.iter().any(|asked| asked == target)
        };
        for (package, targets) in TESTS {
            let mut targets = targets.split(' ').filter(is_asked).peekable();
            if targets.peek().is_some() {
                command.args(["--package", package]);
            }
            command.args(targets.flat_map(|target| ["--test", target]));
        }
        let (output, input) = io::pipe()?;
        command.stdout(input.try_clone()?).stderr(input);
        let mut child = command.spawn()?;
        // It holds the other end of the pipe.
        drop(command);
        let mut log = File::create(log)?;
        let mut outcome = Outcome::default();
        for line in BufReader::new(output).split(b'\n') {
            let line = [line?.as_slice(), b"\n"].concat();
            log.write_all(&line)?;
            io::stdout().write_all(&line)?;
            outcome.add(&String::from_utf8_lossy(&line));
        }
        outcome.finish();
        outcome.is_good = child.wait()?.success();
        Ok(outcome)
    }

    /// The version of the root's C library.
    fn c_library(&self) -> io::Result<String> {
        let version = succeed(&mut self.command(&["getconf", "GNU_LIBC_VERSION"]))?;
        Ok(version.trim_end().to_owned())
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        if !self.is_kept
            && let Err(error) = remove(&self.path)
        {
            eprintln!("{} is left: {error}", self.path.display());
        }
    }
}

/// Removes a root, in which nothing is mounted here.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_tests_are_named() {
        let mut outcome = Outcome::default();
        let text = "
     Running tests/stacks.rs (build/debug/deps/stacks-12)

running 3 tests
test a ... ok
test b ... FAILED
test c ... ok

failures:

---- b stdout ----
running 1 test
test b ... FAILED

failures:
    nested

test result: FAILED. 5 passed; 1 failed; 0 ignored

failures:
    b

test result: FAILED. 2 passed; 1 failed; 0 ignored

error: test failed, to rerun pass `-p fgraph --test stacks`
     Running tests/scenarios.rs (build/debug/deps/scenarios-12)
test threads::d         ... skipped: it has no tool
ok
test threads::e         ... ok

test result: ok. 2 passed; 0 failed; 0 ignored
error: 1 target failed:
    `-p fgraph --test stacks`
";
        text.lines().for_each(|line| outcome.add(line));
        outcome.finish();
        assert_eq!(outcome.passed, 4);
        assert_eq!(outcome.failed, ["stacks::b"]);
    }
}
