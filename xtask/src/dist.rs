//! `cargo xtask dist`: a tarball and a Debian package of the command.
//!
//! ```text
//!   target/dist/
//!     build/                     what cargo builds
//!       dist/fgraph              the command
//!       dist/stage/              what is packed beside it: manual pages, completions, docs
//!     fgraph-VERSION-x86_64-linux.tar.gz
//!     fgraph_VERSION_amd64.deb   made by cargo-deb
//!     SHA256SUMS
//!     again/                     the same once more, to compare; removed at the end
//!     root/                      a root with the Debian package and the libraries that it needs
//! ```
//!
//! Nothing in the files depends on the time, the user, or the path of the checkout. The time of all
//! files is `SOURCE_DATE_EPOCH`, or else that of the newest commit.

mod licences;
mod root;

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Args;
use fgraph_chores::process::succeed;
use fgraph_chores::{cargo, toolchain};

/// Features of the command that cargo does not build by default.
const FEATURES: &str = "svg,fleet";

/// The profile in the workspace's manifest.
const PROFILE: &str = "dist";

/// Most bytes of the command.
const LARGEST: u64 = 12_000_000;

/// A recording of a program of Rust's, from which the example is made.
const EXAMPLE: &str = "docs/example/rustfmt.data";

/// The script for gdb.
const SCRIPT: &str = "fgraph-gdb.py";

/// Shells, each with the file of its completions in `share`.
const SHELLS: [(&str, &str); 3] = [
    ("bash", "bash-completion/completions/fgraph"),
    ("fish", "fish/vendor_completions.d/fgraph.fish"),
    ("zsh", "zsh/vendor-completions/_fgraph"),
];

/// Options of the command line.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Work here instead of in target/dist
    #[arg(long, value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
    /// Build all of it twice, in different directories, and fail where the bytes differ
    #[arg(long)]
    twice: bool,
}

/// Makes the files and tries them. Fails where the command is too large.
pub(crate) fn run(options: &Options) -> io::Result<bool> {
    let workspace = cargo::workspace().canonicalize()?;
    let directory = options.directory.clone();
    let directory = directory.unwrap_or_else(|| workspace.join("target/dist"));
    fs::create_dir_all(&directory)?;
    let directory = directory.canonicalize()?;
    let dist = Dist {
        target: directory.join("build"),
        time: time(&workspace)?,
        directory: directory.clone(),
        workspace,
    };
    let files = dist.make()?;
    let sums = sums(&directory, &files)?;
    fs::write(directory.join("SHA256SUMS"), &sums)?;
    print!("{sums}");
    if options.twice {
        let again = directory.join("again");
        fs::create_dir_all(&again)?;
        let twin = Dist {
            target: again.join("elsewhere"),
            directory: again.clone(),
            ..dist.clone()
        };
        let twins = twin.make()?;
        let different = differences(&files, &twins)?;
        if !different.is_empty() {
            let why = format!("a second build differs: {}", different.join(", "));
            return Err(io::Error::other(why));
        }
        fs::remove_dir_all(again)?;
        println!("a second build has the same bytes");
    }
    root::try_in(&directory.join("root"), &files)?;
    for path in files.iter().chain([&dist.program()]) {
        let len = fs::metadata(path)?.len();
        println!("{}: {len} bytes", path.display());
    }
    let len = fs::metadata(dist.program())?.len();
    if len > LARGEST {
        println!("the command has more than {LARGEST} bytes");
        return Ok(false);
    }
    Ok(true)
}

/// The files that differ, by name.
fn differences(files: &[PathBuf], twins: &[PathBuf]) -> io::Result<Vec<String>> {
    let mut different = Vec::new();
    for (file, twin) in files.iter().zip(twins) {
        if fs::read(file)? != fs::read(twin)? {
            let name = file.file_name().unwrap_or_default();
            different.push(name.to_string_lossy().into_owned());
        }
    }
    Ok(different)
}

/// The checksums of `files`, as `sha256sum --check` reads them in `directory`.
fn sums(directory: &Path, files: &[PathBuf]) -> io::Result<String> {
    let mut command = Command::new("sha256sum");
    command.args(files.iter().filter_map(|path| path.file_name()));
    succeed(command.current_dir(directory))
}

/// The time that all files get: that of the newest commit, unless a variable names another one.
fn time(workspace: &Path) -> io::Result<String> {
    if let Ok(time) = env::var("SOURCE_DATE_EPOCH") {
        return Ok(time);
    }
    let mut git = Command::new("git");
    git.args(["log", "-1", "--format=%ct"]);
    Ok(succeed(git.current_dir(workspace))?.trim().to_owned())
}

/// A build of all files.
#[derive(Clone, Debug)]
struct Dist {
    workspace: PathBuf,
    /// Where the files go.
    directory: PathBuf,
    /// Where cargo builds.
    target: PathBuf,
    /// The time of all files, in seconds since 1970.
    time: String,
}

impl Dist {
    /// The command.
    fn program(&self) -> PathBuf {
        self.target.join(PROFILE).join("fgraph")
    }

    /// The files that are packed beside it.
    fn stage(&self) -> PathBuf {
        self.target.join(PROFILE).join("stage")
    }

    /// Builds the command, and makes the tarball and the Debian package.
    fn make(&self) -> io::Result<Vec<PathBuf>> {
        self.build()?;
        self.fill_stage()?;
        let name = format!("fgraph-{}-x86_64-linux", env!("CARGO_PKG_VERSION"));
        Ok(vec![self.pack(&name)?, self.package()?])
    }

    /// A cargo that builds in our directory.
    fn cargo(&self) -> Command {
        let mut command = Command::new(cargo::program());
        command
            .current_dir(&self.workspace)
            .env("CARGO_TARGET_DIR", &self.target)
            .env("SOURCE_DATE_EPOCH", &self.time)
            // Leaves out the module that only this workspace's tests may use.
            .env("FGRAPH_TESTING", "")
            .env_remove("CARGO_INCREMENTAL")
            .stdin(Stdio::null())
            .stderr(Stdio::inherit());
        command
    }

    /// Builds the command, without paths of this machine in it.
    fn build(&self) -> io::Result<()> {
        let remap = |from: &Path, to: &str| format!("--remap-path-prefix={}={to}", from.display());
        let flags = [
            remap(&toolchain::cargo_home()?.canonicalize()?, "cargo"),
            remap(&self.workspace, "fgraph"),
            // The last one that fits counts.
            remap(&self.target, "target"),
        ];
        let flags = flags.join(" ");
        let mut command = self.cargo();
        command
            .args(["build", "--locked", "--quiet", "--package", "fgraph-cli"])
            .args(["--bin", "fgraph", "--features", FEATURES, "--profile"])
            .arg(PROFILE)
            .env("FGRAPH_AGENT_RUSTFLAGS", &flags)
            // The agent's profile is always `release`, and other builds link it faster.
            .env("CARGO_PROFILE_RELEASE_LTO", "fat")
            .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1")
            .env("RUSTFLAGS", &flags);
        succeed(&mut command).map(drop)
    }

    /// Makes manual pages, completions, the script for gdb, and docs.
    fn fill_stage(&self) -> io::Result<()> {
        let stage = self.stage();
        if stage.exists() {
            fs::remove_dir_all(&stage)?;
        }
        let share = stage.join("share");
        let pages = share.join("man/man1");
        let fgraph = || Command::new(self.program());
        fs::create_dir_all(&pages)?;
        succeed(fgraph().arg("man").arg(&pages))?;
        let mut gzip = Command::new("gzip");
        for page in fs::read_dir(&pages)? {
            gzip.arg(page?.path());
        }
        succeed(gzip.args(["--best", "--no-name"]))?;
        for (shell, file) in SHELLS {
            let path = share.join(file);
            fs::create_dir_all(path.parent().unwrap_or(&share))?;
            fs::write(path, succeed(fgraph().args(["completions", shell]))?)?;
        }
        let script = share.join("fgraph");
        fs::create_dir_all(&script)?;
        fs::copy(
            self.workspace.join("crates/fgraph-cli/share").join(SCRIPT),
            script.join(SCRIPT),
        )?;
        let docs = share.join("doc/fgraph");
        fs::create_dir_all(&docs)?;
        for file in ["CHANGELOG.md", "LICENSE"] {
            fs::copy(self.workspace.join(file), docs.join(file))?;
        }
        fs::write(
            docs.join("THIRD-PARTY.txt"),
            licences::collect(&self.tree()?)?,
        )?;
        let mut export = fgraph();
        export.args(["export", "html", "--output"]);
        export.arg(docs.join("example.html"));
        succeed(export.arg(self.workspace.join(EXAMPLE))).map(drop)
    }

    /// The crates in the command and in the library that it carries, a line each.
    fn tree(&self) -> io::Result<String> {
        let mut lines = String::new();
        for (package, features) in [("fgraph-cli", FEATURES), ("fgraph-agent", "")] {
            let mut tree = self.cargo();
            tree.args(["tree", "--locked", "--package", package, "--features"])
                .arg(features)
                .args(["--edges", "normal", "--prefix", "none"])
                .args(["--format", licences::LINE]);
            lines += &succeed(&mut tree)?;
        }
        Ok(lines)
    }

    /// Makes a tarball with one directory, `name`.
    fn pack(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.directory.join(name).with_extension("tar.gz");
        let path = path.with_file_name(format!("{name}.tar.gz"));
        let bin = self.stage().join("bin");
        fs::create_dir_all(&bin)?;
        fs::copy(self.program(), bin.join("fgraph"))?;
        let mut tar = Command::new("tar");
        tar.args(["--create", "--sort=name", "--format=ustar"])
            .args([
                "--owner=0",
                "--group=0",
                "--numeric-owner",
                "--mode=go=rX,u=rwX",
            ])
            .arg(format!("--mtime=@{}", self.time))
            .arg(format!("--transform=s,^\\.,{name},"))
            .args(["--use-compress-program", "gzip --best --no-name", "--file"])
            .arg(&path)
            .arg("--directory")
            .arg(self.stage())
            .arg(".");
        succeed(&mut tar)?;
        fs::remove_dir_all(bin)?;
        Ok(path)
    }

    /// Makes a Debian package.
    fn package(&self) -> io::Result<PathBuf> {
        let version = env!("CARGO_PKG_VERSION");
        let path = self.directory.join(format!("fgraph_{version}_amd64.deb"));
        let mut command = self.cargo();
        command
            .args(["deb", "--package", "fgraph-cli", "--no-build", "--no-strip"])
            .args(["--locked", "--quiet", "--deb-version", version, "--profile"])
            .arg(PROFILE)
            .arg("--output")
            .arg(&path);
        succeed(&mut command)?;
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_with_other_bytes_are_named() {
        let directory = tempfile::tempdir().expect("a directory can be made");
        let write = |folder: &str, name: &str, text: &str| {
            let path = directory.path().join(folder).join(name);
            fs::create_dir_all(path.parent().expect("it is in a folder")).expect("it can be made");
            fs::write(&path, text).expect("it can be written");
            path
        };
        let files = [write("a", "one", "1"), write("a", "two", "2")];
        let twins = [write("b", "one", "1"), write("b", "two", "3")];
        let different = differences(&files, &twins).expect("they can be read");
        assert_eq!(different, ["two"]);
        assert!(sums(&directory.path().join("a"), &files).is_ok());
    }
}
