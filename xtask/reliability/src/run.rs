//! Runs a scenario in all ways.

use std::collections::{BTreeSet, HashSet};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use fgraph_chores::cargo::{self, workspace};
use fgraph_chores::end::End;
use fgraph_needs::Missing;

use crate::build::{Build, Ways};
use crate::compiler::Compiler;
use crate::expect::Counts;
use crate::process::{self, Done};
use crate::scenario::{Elsewhere, Group, Hostile, Scenario, Shown, Trace};

/// Numbers of users that trace a program, one run after the other.
const USERS: [u64; 2] = [1, 16];

/// Exit code of a program that lacks something.
const SKIPPED: i32 = 77;

/// Tools for running scenarios.
#[derive(Debug)]
pub struct Tools {
    /// Library that traces.
    tracer: PathBuf,
    /// Directory in which programs are built and run.
    directory: PathBuf,
    /// Programs whose ways of tracing were already checked.
    known: Mutex<HashSet<PathBuf>>,
}

impl Tools {
    /// Builds the tracer.
    ///
    /// # Errors
    ///
    /// Fails if it cannot be built.
    pub fn build() -> io::Result<Self> {
        let tracer = cargo::build("fgraph-reliability-tracer")?;
        Ok(Self {
            directory: tracer.with_file_name("reliability"),
            tracer,
            known: Mutex::default(),
        })
    }
}

/// Results of a scenario.
#[derive(Debug, Default)]
pub struct Figures {
    /// Number of traced runs.
    pub runs: u64,
    /// Failures, and commands that repeat them, one for each build.
    pub failures: Vec<String>,
    /// Result for a promise that cannot always be kept yet.
    pub not_yet: Option<String>,
    /// Tools that are missing here. Compilers count only if none of them built the program.
    pub skipped: BTreeSet<String>,
}

/// Checks if the promise of a scenario is kept.
pub fn run(tools: &Tools, group: &Group, scenario: &Scenario, ways: Ways) -> Figures {
    let mut figures = Figures::default();
    match &scenario.shown {
        Shown::By(program) => {
            for build in Build::all(program, ways) {
                if let Err(missing) = build.find_needs(program) {
                    figures.skipped.insert(missing.to_string());
                    continue;
                }
                let place = Place {
                    tools,
                    program,
                    build,
                    name: format!("{}-{}-{build}", group.name, scenario.test()),
                };
                if let Err(failure) = place.run(&mut figures) {
                    // Mostly the failure is the same in all builds.
                    let failure = match figures.failures.len() {
                        0 => failure,
                        _ => failure.lines().take(2).collect::<Vec<_>>().join("\n"),
                    };
                    let failure = format!("{}, {build}: {failure}", scenario.name);
                    figures.failures.push(failure);
                }
                if program.is_long && ways == Ways::Some && figures.runs > 0 {
                    break;
                }
            }
            if figures.runs > 0 {
                for missing in missing_compilers() {
                    figures.skipped.remove(&missing.to_string());
                }
            }
            if let Some(reason) = program.not_yet
                && figures.runs > 0
            {
                let failure = figures.failures.drain(..).next();
                let outcome = failure.unwrap_or_else(|| "it did not fail".to_owned());
                figures.not_yet = Some(format!("may fail, because {reason}: {outcome}"));
            }
        }
        Shown::Elsewhere(tests) => {
            for test in *tests {
                figures.runs += 1;
                if let Err(failure) = exists(test) {
                    figures.failures.push(failure);
                }
            }
        }
    }
    figures
}

/// Returns the compilers that this machine lacks.
pub fn missing_compilers() -> impl Iterator<Item = Missing> {
    let all = Compiler::ALL.into_iter();
    all.filter_map(|compiler| compiler.need().find().err())
}

/// Fails if there is no such test.
fn exists(test: &Elsewhere) -> Result<(), String> {
    let text = fs::read_to_string(workspace().join(test.file))
        .map_err(|error| format!("{}: {error}", test.file))?;
    let function = format!("fn {}(", test.test);
    if text.contains(&function) {
        Ok(())
    } else {
        Err(format!("{} has no test {}", test.file, test.test))
    }
}

/// Program that is built in one way.
#[derive(Debug)]
struct Place<'a> {
    tools: &'a Tools,
    program: &'a Hostile,
    build: Build,
    /// Name of the directories that it runs in.
    name: String,
}

impl Place<'_> {
    /// Runs it untraced and traced, up to the first failing run.
    fn run(&self, figures: &mut Figures) -> Result<(), String> {
        let directory = self.tools.directory.join("programs");
        let path = self.build.build(self.program, &directory);
        let path = path.map_err(|error| error.to_string())?;
        let untraced = self.untraced(&path).map_err(|error| error.to_string())?;
        if untraced.end == End::Exited(SKIPPED) {
            figures
                .skipped
                .insert(untraced.stderr.trim_end().to_owned());
            return Ok(());
        }
        if untraced.end != End::from_number(self.program.end) {
            return Err(format!(
                "untraced it {}\n  in {}\n{}{}",
                untraced.end,
                path.display(),
                untraced.stdout,
                untraced.stderr
            ));
        }
        for users in USERS {
            figures.runs += 1;
            self.traced(&path, &untraced, users, false)?;
        }
        // One level is enough: the libraries are the same.
        if self.program.trace == Trace::AlsoEverything && self.build.level == 2 {
            figures.runs += 1;
            self.traced(&path, &untraced, 1, true)?;
        }
        Ok(())
    }

    /// Returns the command that runs the program, with settings that do not depend on the caller.
    fn command(&self, path: &Path) -> Command {
        let mut command = Command::new(path);
        command
            .args(self.program.args)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .envs(self.program.environment.iter().copied());
        command
    }

    fn untraced(&self, path: &Path) -> io::Result<Done> {
        let directory = self.tools.directory.join("runs");
        process::run(
            &mut self.command(path),
            &directory.join(format!("{}-untraced", self.name)),
        )
    }

    /// Runs the program traced. Returns deviations from the untraced run, and from the
    /// expectations.
    fn traced(
        &self,
        path: &Path,
        untraced: &Done,
        users: u64,
        everything: bool,
    ) -> Result<(), String> {
        let what = if everything { "everything" } else { "users" };
        let directory = self.tools.directory.join("runs");
        let directory = directory.join(format!("{}-{users}-{what}", self.name));
        let record = directory.with_extension("record");
        let mut settings = self.settings(path, &record, users, everything);
        let known = self.tools.known.lock();
        // The check takes longer than all the rest of a run.
        let asks = !everything
            && known
                .unwrap_or_else(PoisonError::into_inner)
                .insert(path.into());
        settings.extend(asks.then(|| ("FGRAPH_SITES", "1".into())));
        let mut command = self.command(path);
        command.envs(settings.iter().map(|(name, value)| (name, value)));
        let done = fs::create_dir_all(self.tools.directory.join("runs"))
            .and_then(|()| fs::write(&record, [0; Counts::BYTES]))
            .and_then(|()| process::run(&mut command, &directory))
            .map_err(|error| error.to_string())?;
        let counts = Counts::read(&record).map_err(|error| error.to_string())?;
        let fault = self.differs(untraced, &done).or_else(|| {
            if everything {
                counts.fault_of_everything()
            } else {
                let sites = asks.then_some(self.build.sites);
                counts.fault(self.program, sites, users)
            }
        });
        let Some(fault) = fault else {
            // Only directories of failures are worth keeping.
            let _ = fs::remove_dir_all(&directory);
            let _ = fs::remove_file(&record);
            return Ok(());
        };
        Err(format!(
            "with {users} users of {}:\n  {fault}\n  to repeat it:\n  {}",
            if everything {
                "everything"
            } else {
                "the program"
            },
            self.line(path, &record, &settings)
        ))
    }

    /// Returns the tracer's environment variables.
    fn settings(
        &self,
        path: &Path,
        record: &Path,
        users: u64,
        everything: bool,
    ) -> Vec<(&'static str, OsString)> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let filter = match self.program.functions {
            _ if everything => "*".to_owned(),
            [] => format!(":mod:{name} {}", self.program.filter),
            functions => {
                let words = functions.iter().map(|glob| format!("{glob}:mod:{name}"));
                words.collect::<Vec<_>>().join(" ")
            }
        };
        let mut settings = vec![
            ("LD_PRELOAD", self.tools.tracer.clone().into()),
            ("FGRAPH_RECORD", record.into()),
            ("FGRAPH_PROGRAM", path.into()),
            ("FGRAPH_FILTER", filter.into()),
            ("FGRAPH_USERS", users.to_string().into()),
        ];
        settings.extend(
            self.program
                .declining
                .then(|| ("FGRAPH_DECLINE", "1".into())),
        );
        let toggled = self.program.toggled;
        settings.extend(toggled.map(|glob| ("FGRAPH_TOGGLE", glob.into())));
        settings.extend((!self.program.in_order).then(|| ("FGRAPH_UNORDERED", "1".into())));
        settings
    }

    /// Returns a command line for a shell.
    fn line(&self, path: &Path, record: &Path, settings: &[(&str, OsString)]) -> String {
        let mut line = format!("truncate -s {} {}; env -i", Counts::BYTES, record.display());
        for (name, value) in self.program.environment {
            line += &format!(" {name}='{value}'");
        }
        for (name, value) in settings {
            line += &format!(" {name}='{}'", value.display());
        }
        line + &format!(" {} {}", path.display(), self.program.args.join(" "))
    }

    /// Returns a difference to the untraced run.
    fn differs(&self, untraced: &Done, traced: &Done) -> Option<String> {
        if traced.end != untraced.end {
            return Some(format!(
                "it {}, untraced it {}\n--- stdout\n{}--- stderr\n{}",
                traced.end, untraced.end, traced.stdout, traced.stderr
            ));
        }
        if traced.stdout != untraced.stdout {
            return Some(format!(
                "it prints\n{}\n  untraced\n{}\n--- stderr\n{}",
                traced.stdout, untraced.stdout, traced.stderr
            ));
        }
        (self.program.compare_stderr && traced.stderr != untraced.stderr).then(|| {
            format!(
                "it complains\n{}\n  untraced\n{}",
                traced.stderr, untraced.stderr
            )
        })
    }
}
