//! Programs of others, and the command that records them.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use fgraph_chores::cargo;
use fgraph_chores::process::{Done, bounded, is_there};

/// Name of the file with the row of a program's newest result, in its directory.
pub(super) const ROW: &str = "row";

/// Returns the directory of all files that this command makes, beside that of its own program.
pub(super) fn directory() -> io::Result<PathBuf> {
    let program = env::current_exe()?;
    let target = program.ancestors().nth(2).expect("it is in target/release");
    let directory = target.join("ecosystem");
    fs::create_dir_all(&directory)?;
    directory.canonicalize()
}

/// The command `fgraph`, and the working directory.
#[derive(Debug)]
pub(super) struct Recorder {
    pub(super) fgraph: PathBuf,
    pub(super) directory: PathBuf,
}

impl Recorder {
    /// Takes the command at `path`, or else builds it.
    pub(super) fn new(path: Option<&Path>) -> io::Result<Self> {
        Ok(Self {
            fgraph: cargo::fgraph(path)?,
            directory: directory()?,
        })
    }
}

/// Program that the machine may have.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) name: &'static str,
    /// Debian packages that have it, or another source.
    pub(super) from: &'static str,
    /// Commands that the script needs.
    pub(super) needs: &'static [&'static str],
    /// File that the script finds in its directory: name and content.
    pub(super) file: Option<(&'static str, &'static str)>,
    /// Script that is run; `$TRACE` stands before the traced command.
    pub(super) script: &'static str,
}

/// Missing command of the machine, and the packages that have it.
pub(super) type Missing = (&'static str, &'static str);

impl Program {
    /// Returns true if its name begins like one of `names`, or these are none.
    pub(super) fn is_wanted(&self, names: &[String]) -> bool {
        names.is_empty() || names.iter().any(|wanted| self.name.starts_with(wanted))
    }

    /// Returns the first of its needs that the machine lacks.
    pub(super) fn missing(&self) -> Option<Missing> {
        let missing = self.needs.iter().find(|need| !has(need));
        missing.map(|&need| (need, self.from))
    }

    /// Returns the version of the package that has it, or of the module of Python; empty if there
    /// is neither.
    pub(super) fn version(&self) -> String {
        let module = self.needs.iter().find_map(|need| need.split_once(" -m "));
        let mut command = match module {
            Some((python, module)) => {
                let mut command = Command::new(python);
                command.args(["-c", &format!("import {module} as m; print(m.__version__)")]);
                command
            }
            None => {
                let mut command = Command::new("dpkg-query");
                let first = self.from.split(' ').next().unwrap_or_default();
                command.args(["-W", "-f", "${Version}", first]);
                command
            }
        };
        let version = command.output().map(|output| output.stdout);
        let version = String::from_utf8_lossy(&version.unwrap_or_default()).into_owned();
        version.trim().to_owned()
    }

    /// Returns the path of its directory in `all`.
    pub(super) fn path(&self, all: &Path) -> PathBuf {
        all.join(self.name.replace(' ', "-"))
    }

    /// Makes its directory in `all`, with its file.
    pub(super) fn directory(&self, all: &Path) -> io::Result<PathBuf> {
        let directory = self.path(all);
        fs::create_dir_all(&directory)?;
        if let Some((name, text)) = self.file {
            fs::write(directory.join(name), text)?;
        }
        Ok(directory)
    }

    /// Returns the row of its newest result in `all`.
    pub(super) fn newest(&self, all: &Path) -> String {
        let row = fs::read_to_string(self.path(all).join(ROW));
        row.unwrap_or_else(|_| format!("| {} | | not run yet |\n", self.name))
    }
}

/// Runs a script of the shell in `directory`, with `trace` before what is to be traced.
pub(super) fn shell(directory: &Path, script: &str, trace: &str, seconds: u32) -> io::Result<Done> {
    let mut command = bounded(seconds, "/bin/sh");
    command
        .args(["-f", "-c", script])
        .current_dir(directory)
        .env("TRACE", trace);
    Done::of(&mut command)
}

/// Returns true if there is a command, or else a module of Python that it names.
fn has(need: &str) -> bool {
    if let Some((python, module)) = need.split_once(" -m ") {
        let mut command = Command::new(python);
        command.args(["-c", &format!("import {module}")]);
        return command.output().is_ok_and(|output| output.status.success());
    }
    is_there(need)
}
