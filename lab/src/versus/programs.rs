//! The program whose calls are watched, compiled in the ways that are needed for that.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use fgraph_chores::cargo;
use fgraph_needs::{CC, Missing, Need};
use tempfile::TempDir;

use super::row::{failed, output};

/// The sources, by the names that they get.
const SOURCES: [(&str, &str); 5] = [
    ("calls.c", include_str!("programs/calls.c")),
    ("leaf.c", include_str!("programs/leaf.c")),
    ("xray.c", include_str!("programs/xray.c")),
    ("uprobe.c", include_str!("programs/uprobe.c")),
    ("gum.py", include_str!("programs/gum.py")),
];

/// Programs in a directory, which goes when this is dropped.
#[derive(Debug)]
pub(super) struct Programs(TempDir);

/// Way to build a program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Build {
    pub(super) name: &'static str,
    pub(super) compiler: Need,
    /// Options for the function that is called.
    pub(super) function: &'static [&'static str],
    /// For all of the program, and what else is in it.
    pub(super) program: &'static [&'static str],
}

/// As compilers make it.
pub(super) const PLAIN: Build = Build {
    name: "plain",
    compiler: CC,
    function: &[],
    program: &[],
};

impl Programs {
    pub(super) fn new() -> io::Result<Self> {
        let directory = tempfile::Builder::new()
            .prefix("fgraph-versus-")
            .tempdir()?;
        for (name, text) in SOURCES {
            fs::write(directory.path().join(name), text)?;
        }
        Ok(Self(directory))
    }

    /// The path of a file in the directory.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Makes a program. The loop in it is compiled alike in all of them.
    pub(super) fn build(&self, build: Build) -> Result<PathBuf, Missing> {
        let object = format!("{}.o", build.name);
        let compile = |compiler: &Path, flags: &[&str]| {
            let mut command = Command::new(compiler);
            command.arg("-O2").args(flags).current_dir(self.0.path());
            output(&mut command)
        };
        let compiler = build.compiler.find()?;
        compile(&CC.find()?, &["-c", "calls.c", "-o", "calls.o"])?;
        let own = ["-c", "leaf.c", "-o", &object];
        compile(&compiler, &[build.function, &own].concat())?;
        // The name of the function is exported, for those who look for it at run time.
        let all = ["calls.o", &object, "-rdynamic", "-o", build.name];
        compile(&compiler, &[build.program, &all].concat())?;
        Ok(self.path(build.name))
    }

    /// A directory of this name with nothing in it.
    pub(super) fn empty(directory: &Path) -> Result<(), Missing> {
        match fs::remove_dir_all(directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        fs::create_dir(directory).map_err(failed)
    }
}

/// Returns the command that builds packages of the lab.
pub(super) fn builder() -> Command {
    let mut cargo = Command::new(cargo::program());
    cargo.args(["build", "--manifest-path"]);
    cargo.arg(cargo::workspace().join("lab/Cargo.toml"));
    cargo.arg("--target-dir").arg(cargo::target());
    cargo
}
