//! The programs that are run.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use fgraph_reliability::process::End;

use super::figures::Figures;
use crate::process::Counted;
use crate::toolchain;

/// The program that is compiled. It goes through generics, traits, closures, collections, formats
/// and a panic that is caught.
const SOURCE: &str = include_str!("subject.rs");
const MANIFEST: &str = "[package]\nname = \"subject\"\nedition = \"2024\"\n[workspace]\n";

/// A program to run with and without tracing.
#[derive(Debug)]
pub(crate) struct Job {
    name: &'static str,
    program: PathBuf,
    args: Vec<String>,
    directory: PathBuf,
    /// The functions to be traced.
    filter: &'static str,
    /// Hooking should take no longer.
    limit: Duration,
    /// Files that it makes. The last is a program that must run.
    makes: &'static [&'static str],
}

impl Job {
    /// All jobs, with the crate to compile put into `directory`.
    pub(crate) fn all(directory: &Path) -> io::Result<Vec<Self>> {
        fs::create_dir_all(directory.join("src"))?;
        fs::write(directory.join("Cargo.toml"), MANIFEST)?;
        fs::write(directory.join("src/main.rs"), SOURCE)?;
        let toolchain = toolchain::sysroot()?.join("bin");
        let cargo = |name, args: &[&str], makes| Self {
            name,
            program: toolchain.join("cargo"),
            args: args.iter().map(|&arg| arg.to_owned()).collect(),
            directory: directory.to_owned(),
            filter: ":mod:cargo",
            limit: Duration::from_millis(500),
            makes,
        };
        let metadata = ["metadata", "--offline", "--format-version=1"];
        let build = ["build", "--offline", "--quiet", "--target-dir", "target"];
        let rustc = [
            "--edition=2024",
            "-Copt-level=2",
            "--emit=obj,link",
            "--out-dir=.",
            "src/main.rs",
        ];
        Ok(vec![
            Self {
                program: toolchain.join("rustc"),
                filter: ":mod:librustc_driver*",
                limit: Duration::from_secs(2),
                ..cargo("rustc", &rustc, &["main.o", "main"])
            },
            cargo("cargo --version", &["--version"], &[]),
            cargo("cargo metadata", &metadata, &[]),
            cargo("cargo build", &build, &["target/debug/subject"]),
        ])
    }

    /// Runs it without and with the tracing `library`.
    pub(crate) fn run(&self, library: &Path, users: u32, everything: bool) -> io::Result<Figures> {
        let out = self.directory.join("figures.json");
        let filter = if everything { "*" } else { self.filter };
        let untraced = self.done(&mut self.command())?;
        let traced = self.done(
            self.command()
                .env("LD_PRELOAD", library)
                .env("FGRAPH_FILTER", filter)
                .env("FGRAPH_USERS", users.to_string())
                .env("FGRAPH_OUT", &out),
        )?;
        Ok(Figures {
            name: self.name,
            limit: self.limit,
            untraced: untraced.took,
            traced: traced.took,
            wrong: traced.difference(&untraced),
            counted: Counted::take(&out)?,
        })
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(&self.args)
            .current_dir(&self.directory)
            .env_remove("RUSTC_WRAPPER")
            .env_remove("RUSTFLAGS")
            .env_remove("CARGO_ENCODED_RUSTFLAGS")
            .env_remove("CARGO_TARGET_DIR")
            .stdin(Stdio::null());
        command
    }

    /// Does it, from nothing.
    fn done(&self, command: &mut Command) -> io::Result<Done> {
        for file in self.makes {
            let _ = fs::remove_file(self.directory.join(file));
        }
        let _ = fs::remove_dir_all(self.directory.join("target"));
        let start = Instant::now();
        let output = command.output()?;
        let took = start.elapsed();
        let files = self.makes.iter().map(|file| self.directory.join(file));
        let made = files.clone().map(|file| fs::read(file).unwrap_or_default());
        let ran = match files.clone().next_back() {
            Some(program) if program.exists() => Some(Command::new(program).output()?),
            _ => None,
        };
        Ok(Done {
            took,
            output,
            made: made.collect(),
            ran,
        })
    }
}

/// Result of a program.
#[derive(Debug)]
struct Done {
    took: Duration,
    output: Output,
    made: Vec<Vec<u8>>,
    /// Result of the program that it made.
    ran: Option<Output>,
}

impl Done {
    /// Returns a difference to the result `untraced`.
    fn difference(&self, untraced: &Self) -> Option<String> {
        if !untraced.output.status.success() {
            let text = String::from_utf8_lossy(&untraced.output.stderr).into_owned();
            return Some(format!("fails untraced, too: {text}"));
        }
        if !self.output.status.success() {
            let text = String::from_utf8_lossy(&self.output.stderr).into_owned();
            return Some(format!("{}: {text}", End::of(self.output.status)));
        }
        if self.output != untraced.output {
            return Some("prints something else".to_owned());
        }
        if self.made != untraced.made {
            return Some("makes something else".to_owned());
        }
        if self.ran != untraced.ran {
            return Some("what it makes does something else".to_owned());
        }
        None
    }
}
