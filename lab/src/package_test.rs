//! `cargo xtask package-test`: packages all crates, and installs the command from these alone.
//!
//! ```text
//!   DIRECTORY/            made anew, outside of any checkout
//!     packages/           what `cargo package` makes
//!     registry/           our packages, unpacked, and all crates that they depend on
//!     home/               CARGO_HOME: the registry above stands in for crates.io
//!     empty/              where `cargo install` runs
//!     root/bin/           what it installs
//!     doctests/           the package of `fgraph`, whose examples are tests
//! ```
//!
//! Cargo is not allowed to use the network there, so whatever a package lacks is missed.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Args;
use fgraph_chores::cargo;
use fgraph_chores::process::succeed;
use tempfile::TempDir;

/// Packages with programs, each with the programs.
const PROGRAMS: [(&str, &str); 2] = [("fgraph-cli", "fgraph"), ("cargo-fgraph", "cargo-fgraph")];

/// Packages whose READMEs and docs have examples.
const DOCTESTS: [(&str, &str); 2] = [
    ("fgraph", "debugdata,dwarf"),
    ("fgraph-tracers", "dwarf,states"),
];

/// Files that each package must have.
const FILES: [&str; 3] = ["Cargo.lock", "LICENSE", "README.md"];

/// Options of the command line.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Work here, and leave all of it there, instead of in a temporary directory
    #[arg(long, value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
}

/// Fails where a package lacks something, or something cannot be built or run.
pub(crate) fn run(options: &Options) -> io::Result<bool> {
    let temporary = TempDir::with_prefix("fgraph-packages-")?;
    let directory = match &options.directory {
        Some(directory) => {
            fs::create_dir_all(directory)?;
            directory.canonicalize()?
        }
        None => temporary.path().to_owned(),
    };
    let workspace = cargo::workspace().canonicalize()?;
    if directory.starts_with(&workspace) {
        let why = "the directory is in the checkout, whose files would be found from there";
        return Err(io::Error::other(why));
    }
    let test = Test {
        directory,
        workspace,
    };
    test.package()?;
    let packages = test.fill_registry()?;
    let mut is_good = true;
    for package in &packages {
        for finding in findings(package)? {
            println!("{finding}");
            is_good = false;
        }
    }
    println!("packages: {}", packages.len());
    test.install()?;
    test.try_programs()?;
    for (name, features) in DOCTESTS {
        test.run_examples(&packages, name, features)?;
    }
    Ok(is_good)
}

/// A run of the chore.
#[derive(Debug)]
struct Test {
    directory: PathBuf,
    workspace: PathBuf,
}

impl Test {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Makes a package of each crate of `crates/`.
    fn package(&self) -> io::Result<()> {
        let mut command = Command::new(cargo::program());
        command.args([
            "package",
            "--locked",
            "--no-verify",
            "--allow-dirty",
            "--quiet",
        ]);
        for entry in fs::read_dir(self.workspace.join("crates"))? {
            command.arg("--package").arg(entry?.file_name());
        }
        command.arg("--target-dir").arg(self.path("packages"));
        succeed(command.current_dir(&self.workspace)).map(drop)
    }

    /// Puts our packages and all that they depend on where cargo finds them in place of crates.io.
    /// Returns the directories of ours.
    fn fill_registry(&self) -> io::Result<Vec<PathBuf>> {
        let registry = self.path("registry");
        if registry.exists() {
            fs::remove_dir_all(&registry)?;
        }
        let mut vendor = Command::new(cargo::program());
        vendor.args(["vendor", "--locked", "--quiet", "--versioned-dirs"]);
        succeed(vendor.arg(&registry).current_dir(&self.workspace))?;
        let mut packages = Vec::new();
        for entry in fs::read_dir(self.path("packages").join("package"))? {
            let file = entry?.path();
            if file.extension() != Some(OsStr::new("crate")) {
                continue;
            }
            succeed(
                Command::new("tar")
                    .arg("xzf")
                    .arg(&file)
                    .arg("-C")
                    .arg(&registry),
            )?;
            let package = registry.join(file.file_stem().expect("it has an extension"));
            let sum = succeed(Command::new("sha256sum").arg(&file))?;
            let sum = sum.split(' ').next().unwrap_or_default();
            let checksum = format!("{{\"files\":{{}},\"package\":\"{sum}\"}}");
            fs::write(package.join(".cargo-checksum.json"), checksum)?;
            packages.push(package);
        }
        packages.sort();
        fs::create_dir_all(self.path("home"))?;
        let config = format!(
            "[source.crates-io]\nreplace-with = \"packages\"\n\n\
             [source.packages]\ndirectory = '{}'\n",
            registry.display()
        );
        fs::write(self.path("home").join("config.toml"), config)?;
        Ok(packages)
    }

    /// A cargo that knows our registry only, in a directory of its own.
    fn cargo(&self, directory: &Path) -> Command {
        let mut command = Command::new(cargo::program());
        command
            .current_dir(directory)
            .env("CARGO_HOME", self.path("home"))
            .env("CARGO_NET_OFFLINE", "true")
            .env("CARGO_TARGET_DIR", self.path("target"))
            // Set by the workspace's configuration, also for this chore.
            .env_remove("FGRAPH_TESTING")
            .env_remove("RUSTFLAGS")
            .stderr(Stdio::inherit());
        command
    }

    /// Installs the programs from an empty directory.
    fn install(&self) -> io::Result<()> {
        let empty = self.path("empty");
        fs::create_dir_all(&empty)?;
        let mut command = self.cargo(&empty);
        command.args(["install", "--locked", "--quiet", "--force"]);
        command.args(PROGRAMS.map(|(package, _)| package));
        succeed(command.arg("--root").arg(self.path("root"))).map(drop)
    }

    /// Runs the installed programs, the command with the library that it carries inside.
    fn try_programs(&self) -> io::Result<()> {
        let bin = self.path("root").join("bin");
        for (_, program) in PROGRAMS {
            let bytes = fs::read(bin.join(program))?;
            let checkout = self.workspace.as_os_str().as_encoded_bytes();
            if bytes.windows(checkout.len()).any(|part| part == checkout) {
                return Err(io::Error::other(format!("{program} names the checkout")));
            }
            println!("{program}: {} bytes", bytes.len());
        }
        let fgraph = || {
            let mut command = Command::new(bin.join("fgraph"));
            command.current_dir(self.path("empty"));
            command
        };
        succeed(
            fgraph()
                .args(["record", "--output", "calls.data"])
                .args(["ls", "/"]),
        )?;
        let report = succeed(fgraph().args(["report", "calls.data"]))?;
        if !report.contains("[ls]") {
            let why = format!("no function of ls was recorded:\n{report}");
            return Err(io::Error::other(why));
        }
        let mut help = Command::new(bin.join("cargo-fgraph"));
        succeed(help.args(["fgraph", "--help"])).map(drop)
    }

    /// Runs the examples of a package's documentation and README as tests.
    fn run_examples(&self, packages: &[PathBuf], name: &str, features: &str) -> io::Result<()> {
        let is_it = |package: &&PathBuf| {
            let file = package.file_name().unwrap_or_default().to_string_lossy();
            file.rsplit_once('-')
                .is_some_and(|(start, _)| start == name)
        };
        let Some(package) = packages.iter().find(is_it) else {
            return Err(io::Error::other(format!("there is no package of {name}")));
        };
        let copy = self.path("doctests");
        if copy.exists() {
            fs::remove_dir_all(&copy)?;
        }
        succeed(Command::new("cp").arg("-r").arg(package).arg(&copy))?;
        let mut command = self.cargo(&copy);
        command.args(["test", "--doc", "--locked", "--features", features]);
        let printed = succeed(&mut command)?;
        let of_readme = printed.lines().filter(|line| line.contains(" - Readme"));
        if of_readme.count() == 0 {
            let why = format!("no example of the README of {name} was run:\n{printed}");
            return Err(io::Error::other(why));
        }
        // Programs that must not compile have a line of their own.
        let is_result = |line: &&str| line.starts_with("test result");
        for result in printed.lines().filter(is_result) {
            println!("{name}: {result}");
        }
        Ok(())
    }
}

/// Files that a package lacks, and relative links of its Markdown that lead out of it.
fn findings(package: &Path) -> io::Result<Vec<String>> {
    let name = package.file_name().unwrap_or_default().display();
    let mut findings = Vec::new();
    for file in FILES {
        if !package.join(file).is_file() {
            findings.push(format!("{name}: no {file}"));
        }
    }
    for entry in fs::read_dir(package)? {
        let path = entry?.path();
        if path.extension() != Some(OsStr::new("md")) {
            continue;
        }
        let text = fs::read_to_string(&path)?;
        for target in outside(&text, package) {
            let file = path.file_name().unwrap_or_default().display();
            findings.push(format!("{name}/{file}: {target} is not in the package"));
        }
    }
    Ok(findings)
}

/// Targets of relative links in `markdown` that are not in `package`.
fn outside<'a>(markdown: &'a str, package: &Path) -> Vec<&'a str> {
    let targets = markdown.split("](").skip(1);
    let targets = targets.filter_map(|rest| rest.split(')').next());
    let is_outside = |target: &&str| {
        let file = target.split('#').next().unwrap_or_default();
        let is_inside = file.is_empty()
            || target.contains("://")
            || !file.starts_with("..") && package.join(file).exists();
        !is_inside
    };
    targets.filter(is_outside).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_files_that_a_package_lacks_are_found() {
        let package = tempfile::tempdir().expect("a directory can be made");
        fs::write(package.path().join("guide.md"), "").expect("it can be written");
        let text = "[a](guide.md#end) [b](https://example.org) [c](#here) [d](../docs/limits.md) \
                    [e](limits.md)";
        assert_eq!(
            outside(text, package.path()),
            ["../docs/limits.md", "limits.md"]
        );
    }

    #[test]
    fn files_that_a_package_lacks_are_named() {
        let package = tempfile::tempdir().expect("a directory can be made");
        fs::write(package.path().join("README.md"), "[a](b.md)").expect("it can be written");
        fs::write(package.path().join("Cargo.lock"), "").expect("it can be written");
        let findings = findings(package.path()).expect("it can be read");
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert!(findings[0].ends_with("no LICENSE"), "{findings:?}");
        assert!(findings[1].contains("b.md"), "{findings:?}");
    }
}
