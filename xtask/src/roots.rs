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
//! ```

mod mirror;

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use clap::Args;
use fgraph_needs::{DEBOOTSTRAP, Missing, SKIPPED};

use crate::{cargo, toolchain};

/// Releases with a C library other than that of Debian 12, oldest last.
const SUITES: [&str; 3] = ["trixie", "sid", "bullseye"];

/// What the tests need. Without the symbols of the C library few of its functions can be traced.
const PACKAGES: [&str; 6] = [
    "g++",
    "gcc",
    "gdb",
    "libc6-dbg",
    "libc6-dev",
    "python3-minimal",
];

/// Tests of which much rests on the C library.
const TESTS: [(&str, &[&str]); 3] = [
    (
        "fgraph",
        &[
            "backtraces",
            "coroutines",
            "everything",
            "in_flight",
            "libraries",
            "processes",
            "registration",
            "sites",
            "stacks",
            "system_calls",
            "threads",
            "unwinding",
        ],
    ),
    ("fgraph-cli", &["attach", "record"]),
    ("fgraph-reliability", &["scenarios"]),
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

/// What the command line asks for.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Take this release only; may be given again
    #[arg(long = "suite", value_name = "SUITE",
        value_parser = clap::builder::PossibleValuesParser::new(SUITES))]
    suites: Vec<String>,
    /// Run only tests with this in their names
    #[arg(long, value_name = "NAME")]
    filter: Option<String>,
    /// Leave the roots there, with what was built in them, for the next time
    #[arg(long)]
    keep: bool,
    /// Make the roots here instead of in target/roots
    #[arg(long, value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
}

/// Runs the tests in each root. Fails where a test fails.
pub(crate) fn run(options: &Options) -> io::Result<ExitCode> {
    let mirror = match find_mirror() {
        Ok(mirror) => mirror,
        Err(missing) => {
            println!("{SKIPPED}all roots: {missing}");
            return Ok(ExitCode::SUCCESS);
        }
    };
    let workspace = cargo::workspace().canonicalize()?;
    let directory = options.directory.clone();
    let directory = directory.unwrap_or_else(|| workspace.join("target/roots"));
    fs::create_dir_all(&directory)?;
    let mut fetch = Command::new(cargo::program());
    fetch.args(["fetch", "--quiet", "--locked", "--target", TARGET]);
    succeed(fetch.current_dir(&workspace))?;
    let is_asked = |suite: &&str| {
        options.suites.is_empty() || options.suites.iter().any(|asked| asked == suite)
    };
    let mut rows = String::from("suite      C library       seconds  tests\n");
    let mut is_good = true;
    for suite in SUITES.into_iter().filter(is_asked) {
        let root = Root {
            path: directory.canonicalize()?.join(suite),
            shared: [
                workspace.clone(),
                home("CARGO_HOME", ".cargo")?,
                toolchain::sysroot()?,
            ],
            is_kept: options.keep,
        };
        if let Err(error) = root.make(suite, &mirror) {
            println!("{SKIPPED}{suite}: {error}");
            continue;
        }
        let start = Instant::now();
        let passes = root.test(options.filter.as_deref())?;
        is_good &= passes;
        rows += &format!(
            "{suite:<11}{:<16}{:>7.0}  {}\n",
            root.c_library()?,
            start.elapsed().as_secs_f64(),
            if passes { "pass" } else { "FAIL" }
        );
    }
    print!("{rows}");
    Ok(if is_good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
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
    mirror::find().ok_or_else(|| {
        Missing::new("/etc/apt names no mirror of this release (add one to sources.list)")
    })
}

/// The directory that a variable names, or the one of that name in the home directory.
fn home(variable: &str, name: &str) -> io::Result<PathBuf> {
    let named = env::var_os(variable).map(PathBuf::from);
    let path = named.or_else(|| Some(env::home_dir()?.join(name)));
    path.ok_or_else(|| io::Error::other(format!("neither {variable} nor HOME is set")))
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

/// Runs a command, and fails with the last line that it prints if that fails.
fn succeed(command: &mut Command) -> io::Result<String> {
    let output = command.output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    if output.status.success() {
        return Ok(out);
    }
    let last = |text: &str| {
        text.lines()
            .rfind(|line| !line.is_empty())
            .map(str::to_owned)
    };
    let reason = last(&err).or_else(|| last(&out)).unwrap_or_default();
    let program = command.get_program().display();
    Err(io::Error::other(format!(
        "{program}: {}: {reason}",
        output.status
    )))
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
                .args(PACKAGES)
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

    /// Builds the tests and runs them; whether all pass.
    fn test(&self, filter: Option<&str>) -> io::Result<bool> {
        let mut command = self.command(&["cargo", "test", "--locked", "--offline"]);
        command.args(["--no-fail-fast", "--manifest-path"]);
        command.arg(self.shared[0].join("Cargo.toml"));
        for (package, tests) in TESTS {
            command.args(["--package", package]);
            command.args(tests.iter().flat_map(|test| ["--test", test]));
        }
        Ok(command.arg("--").args(filter).status()?.success())
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
