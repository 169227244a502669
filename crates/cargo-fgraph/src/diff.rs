//! `cargo fgraph diff`: compares the files as they are now with a commit.
//!
//! ```text
//!   target/fgraph/v1-all/             artifacts of the new build, as of the other subcommands
//!   target/fgraph/diff/
//!     lock                            locked by one comparison at a time
//!     base/                           worktree of the commit, removed in the end
//!     built                           the commit, and the time that its files have
//!     fgraph/v1-all/                  artifacts of the old build
//!     recordings/old.1/app.data       the first recording of the old build, by program
//! ```
//!
//! Cargo builds again what is newer than its artifacts. The files of the same commit get the same
//! time in each comparison, and those of another commit a later one.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{self, Path, PathBuf};
use std::process::{Command, ExitCode, Output, Stdio};
use std::time::{Duration, SystemTime};

use crate::cli::{Build, Comparison, Under};
use crate::driver::{self, Driver};
use crate::error::Error;
use crate::git::{self, Repository};
use crate::janitor::Janitor;
use crate::runner::{self, INTO, RECORDING, SKIP};

/// Option of cargo for the place of the workspace.
const MANIFEST: &str = "--manifest-path";

/// One of the two versions.
#[derive(Debug)]
struct Version {
    /// Name for directories.
    name: &'static str,
    /// Name for people.
    title: String,
    build: Build,
    driver: Driver,
}

/// Builds and records both versions, and shows the differences. The exit code is that of `fgraph
/// diff`.
///
/// # Errors
///
/// Fails if there is no such commit, or if a version cannot be built or recorded.
pub(crate) fn run(build: &Build, comparison: &Comparison) -> Result<ExitCode, Error> {
    check_options(comparison)?;
    let manifest = manifest_directory(&build.workspace_args);
    let repository = Repository::of(&manifest)?;
    let commit = repository.commit(&comparison.base)?;
    let driver = Driver::new(build, Path::new(""))?;
    let base = build.target_dir.as_ref();
    let base = base.unwrap_or(&driver.workspace.target_dir);
    let place = base.join("fgraph/diff");
    let place = path::absolute(&place).map_err(|error| Error::File(place, error))?;
    fs::create_dir_all(&place).map_err(|error| Error::File(place.clone(), error))?;
    for submodule in repository.dirty_submodules()? {
        eprintln!(
            "cargo-fgraph: submodule {submodule} has changes that are not committed: only the new \
             build has them"
        );
    }

    let mut janitor = Janitor::start(&place.join("lock"))?;
    let tree = place.join("base");
    // One that a crash of the whole machine has left.
    git::remove(&repository.root, &tree);
    repository.check_out(&commit, &tree, &mut |root, tree| {
        janitor.will_remove(root, tree)
    })?;
    let title = format!("{} ({:.12})", comparison.base.display(), commit);
    let directory = tree.join(&repository.prefix);
    if !directory.is_dir() {
        return Err(Error::NoDirectory {
            base: title,
            directory: repository.prefix,
        });
    }
    copy_lock_file(&driver.workspace.root, &repository.root, &tree);
    set_times(&tree, time_of(&place.join("built"), &commit)?)?;
    let old_build = old_build(build, &directory, &place);
    let versions = [
        Version {
            name: "old",
            title,
            driver: Driver::new(&old_build, &directory)?,
            build: old_build,
        },
        Version {
            name: "new",
            title: "the working tree".to_owned(),
            driver,
            build: build.clone(),
        },
    ];
    for version in &versions {
        version.build()?;
    }
    let recordings = place.join("recordings");
    record(&versions, comparison.runs, &recordings)?;
    drop(janitor);
    show(&recordings, comparison)
}

/// Checks the options by `fgraph` before they are needed, which may be minutes later.
fn check_options(comparison: &Comparison) -> Result<(), Error> {
    // It reads options first, and then files, which are missing. Up to three count for options.
    let nothing = vec![PathBuf::from("/dev/null/none"); comparison.runs.min(3) as usize];
    let mut command = fgraph_diff(comparison, None, [&nothing, &nothing]);
    let checked = command.output();
    let checked = checked.map_err(|error| Error::Start(runner::command(), error))?;
    match checked.status.code() {
        Some(USAGE) => Err(Error::Options(text(&checked.stderr))),
        _ => Ok(()),
    }
}

/// Exit code of `fgraph` for a wrong command line.
const USAGE: i32 = 2;

/// Returns the command that compares recordings, and writes a page if there is a path for it.
fn fgraph_diff(
    comparison: &Comparison,
    page: Option<&Path>,
    [old, new]: [&[PathBuf]; 2],
) -> Command {
    let mut command = Command::new(runner::command());
    command.arg("diff").args(&comparison.options);
    if let Some(page) = page {
        command.arg("--html").arg(page);
    }
    command.args(old).arg("--").args(new).stdin(Stdio::null());
    command
}

/// Returns the directory of the manifest that is named on the command line; empty for the current
/// one.
fn manifest_directory(workspace_args: &[OsString]) -> PathBuf {
    let mut pairs = workspace_args.chunks_exact(2);
    let manifest = pairs.find(|pair| pair[0] == MANIFEST);
    let directory = manifest.and_then(|pair| Path::new(&pair[1]).parent());
    directory.map_or_else(PathBuf::new, Path::to_owned)
}

/// Returns the build of the old version, whose files are in `directory`.
fn old_build(build: &Build, directory: &Path, place: &Path) -> Build {
    let mut old = build.clone();
    old.target_dir = Some(place.to_owned());
    for list in [&mut old.workspace_args, &mut old.cargo_args] {
        // Arguments of the program may look the same.
        let end = list.iter().position(|arg| arg == "--");
        let end = end.unwrap_or(list.len());
        for at in 1..end {
            if list[at - 1] == MANIFEST {
                list[at] = directory.join("Cargo.toml").into();
            }
        }
    }
    old
}

/// Gives the old version the dependencies of the new one, if the commit does not say which it has.
fn copy_lock_file(workspace: &Path, root: &Path, tree: &Path) {
    const NAME: &str = "Cargo.lock";
    let Ok(place) = workspace.strip_prefix(root) else {
        return;
    };
    let [from, to] = [workspace, &tree.join(place)].map(|directory| directory.join(NAME));
    if !to.exists() {
        // Otherwise cargo makes one.
        let _ = fs::copy(from, to);
    }
}

/// Returns the time for the files of a commit. The file at `path` has that of the last commit.
fn time_of(path: &Path, commit: &str) -> Result<SystemTime, Error> {
    let last = fs::read_to_string(path).unwrap_or_default();
    let last = last.split_once(' ').filter(|(last, _)| *last == commit);
    let last = last.and_then(|(_, time)| Some(Duration::from_nanos(time.parse().ok()?)));
    if let Some(time) = last {
        return Ok(SystemTime::UNIX_EPOCH + time);
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = now.unwrap_or_default();
    let written = fs::write(path, format!("{commit} {}", now.as_nanos()));
    written.map_err(|error| Error::File(path.to_owned(), error))?;
    Ok(SystemTime::UNIX_EPOCH + now)
}

/// Sets the times of all files in a directory, and its own.
fn set_times(directory: &Path, time: SystemTime) -> Result<(), Error> {
    let failed = |path: &Path, error| Error::File(path.to_owned(), error);
    let entries = fs::read_dir(directory).map_err(|error| failed(directory, error))?;
    for entry in entries {
        let entry = entry.map_err(|error| failed(directory, error))?;
        let (path, kind) = (entry.path(), entry.file_type());
        match kind.map_err(|error| failed(&path, error))? {
            kind if kind.is_dir() => set_times(&path, time)?,
            kind if kind.is_file() => {
                let set = File::open(&path).and_then(|file| file.set_modified(time));
                set.map_err(|error| failed(&path, error))?;
            }
            _ => {}
        }
    }
    let set = File::open(directory).and_then(|file| file.set_modified(time));
    set.map_err(|error| failed(directory, error))
}

impl Version {
    /// Builds its programs. Cargo's messages go to the user.
    fn build(&self) -> Result<(), Error> {
        if !self.build.quiet {
            eprintln!(
                "cargo-fgraph: building {} in {}",
                self.title, self.driver.artifacts
            );
        }
        let mut command = self.command(&[SKIP.to_owned()])?;
        let status = command.stdout(Stdio::null()).status();
        match status.map_err(|error| Error::Start(command.get_program().into(), error))? {
            status if status.success() => Ok(()),
            _ => Err(Error::Build(self.title.clone())),
        }
    }

    /// Records its programs into a new directory.
    fn record(&self, words: &[String], directory: &Path) -> Result<(), Error> {
        fs::create_dir_all(directory).map_err(|error| Error::File(directory.to_owned(), error))?;
        // Both versions of a program get the same files. Tests have files of their own.
        let directory_of_run = match self.build.runs_one() {
            true => std::env::current_dir(),
            false => Ok(PathBuf::new()),
        };
        let directory_of_run =
            directory_of_run.map_err(|error| Error::File(PathBuf::from("."), error))?;
        let into = [
            INTO.to_owned(),
            driver::text(directory.as_os_str())?,
            self.driver.artifacts.clone(),
            driver::text(directory_of_run.as_os_str())?,
        ];
        let mut command = self.command(&[&into, words].concat())?;
        let output = command.output();
        match output.map_err(|error| Error::Start(command.get_program().into(), error))? {
            output if output.status.success() => Ok(()),
            output => Err(Error::Record {
                version: self.title.clone(),
                status: output.status,
                said: said(&output),
            }),
        }
    }

    fn command(&self, runner: &[String]) -> Result<Command, Error> {
        let mut command = self.driver.command(&self.build, Some(runner))?;
        command.stdin(Stdio::null());
        for variable in git::VARIABLES {
            command.env_remove(variable);
        }
        Ok(command)
    }
}

/// Returns all that a command has printed.
fn said(output: &Output) -> String {
    [text(&output.stdout), text(&output.stderr)].concat()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Records both versions in turns, so that a machine that gets slower or faster does so for both.
fn record(versions: &[Version; 2], runs: u32, recordings: &Path) -> Result<(), Error> {
    // The last comparison has left its own.
    let _ = fs::remove_dir_all(recordings);
    let crates = versions.iter().flat_map(|it| &it.driver.workspace.crates);
    let crates: BTreeSet<String> = crates.cloned().collect();
    let nothing = Under::default();
    let under = versions[0].build.under.as_ref().unwrap_or(&nothing);
    let words = driver::record_words(under, &crates)?;
    for run in 1..=runs {
        if !versions[0].build.quiet {
            eprintln!("cargo-fgraph: recording both, {run} of {runs}");
        }
        let turn: [usize; 2] = if run % 2 == 1 { [0, 1] } else { [1, 0] };
        for version in turn.map(|at| &versions[at]) {
            version.record(&words, &recordings.join(format!("{}.{run}", version.name)))?;
        }
    }
    Ok(())
}

/// Shows the differences of each program.
fn show(recordings: &Path, comparison: &Comparison) -> Result<ExitCode, Error> {
    let directories = |version: &str| -> Vec<PathBuf> {
        let directory = |run| recordings.join(format!("{version}.{run}"));
        (1..=comparison.runs).map(directory).collect()
    };
    let both = ["old", "new"].map(directories);
    let [old, new] = both.each_ref().map(|directories| programs(directories));
    let [old, new] = [old?, new?];
    for (names, version) in [(old.difference(&new), "old"), (new.difference(&old), "new")] {
        for name in names {
            eprintln!("cargo-fgraph: only the {version} build has {name}");
        }
    }
    let names: Vec<&String> = old.intersection(&new).collect();
    if names.is_empty() {
        return Err(Error::NothingRecorded);
    }
    let mut code = 0;
    for &name in &names {
        let files = both.each_ref().map(|directories| {
            let file = |directory: &PathBuf| directory.join(format!("{name}{RECORDING}"));
            directories.iter().map(file).collect::<Vec<_>>()
        });
        let page = comparison.html.as_ref().map(|page| match names.len() {
            1 => page.clone(),
            _ => page_of(page, name),
        });
        let mut command = fgraph_diff(comparison, page.as_deref(), [&files[0], &files[1]]);
        let output = command.stderr(Stdio::inherit()).output();
        let output = output.map_err(|error| Error::Start(runner::command(), error))?;
        code = code.max(output.status.code().unwrap_or(1));
        let shown = text(&output.stdout);
        let mut out = io::stdout();
        let written = match shown.strip_prefix('{') {
            Some(rest) if comparison.is_json => {
                let name = serde_json::Value::from(name.as_str());
                write!(out, "{{\"program\":{name},{rest}")
            }
            _ if names.len() == 1 => write!(out, "{shown}"),
            _ if comparison.is_markdown => writeln!(out, "### {name}\n\n{shown}"),
            _ => writeln!(out, "{name}:\n{shown}"),
        };
        written.map_err(|error| Error::File("standard output".into(), error))?;
    }
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

/// Returns the names of the programs that are in all these directories.
fn programs(directories: &[PathBuf]) -> Result<BTreeSet<String>, Error> {
    let names = |directory: &PathBuf| -> io::Result<BTreeSet<String>> {
        let entries = fs::read_dir(directory)?;
        let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        let names: BTreeSet<String> = names.collect::<io::Result<_>>()?;
        let programs = names.iter().filter_map(|name| name.strip_suffix(RECORDING));
        Ok(programs.map(str::to_owned).collect())
    };
    let mut all: Option<BTreeSet<String>> = None;
    for directory in directories {
        let names = names(directory).map_err(|error| Error::File(directory.clone(), error))?;
        all = Some(match all {
            Some(all) => &all & &names,
            None => names,
        });
    }
    Ok(all.unwrap_or_default())
}

/// Returns the path of the page for one of several programs: `page.html` becomes `page.app.html`.
fn page_of(page: &Path, program: &str) -> PathBuf {
    let extension = page.extension().unwrap_or_default().to_owned();
    let mut name = page.file_stem().unwrap_or_default().to_owned();
    name.push(format!(".{program}"));
    if !extension.is_empty() {
        name.push(".");
        name.push(extension);
    }
    page.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_old_build_has_a_manifest_and_a_target_directory_of_its_own() {
        let words =
            |text: &str| -> Vec<OsString> { text.split_whitespace().map(OsString::from).collect() };
        let build = Build {
            workspace_args: words("--manifest-path app/Cargo.toml --config x"),
            cargo_args: words("run --manifest-path app/Cargo.toml -- --manifest-path x"),
            ..Build::default()
        };
        assert_eq!(manifest_directory(&build.workspace_args), Path::new("app"));
        let old = old_build(&build, Path::new("/t/base/app"), Path::new("/t"));
        assert_eq!(old.target_dir, Some("/t".into()));
        let manifest = "--manifest-path /t/base/app/Cargo.toml";
        assert_eq!(old.workspace_args, words(&format!("{manifest} --config x")));
        let expected = format!("run {manifest} -- --manifest-path x");
        assert_eq!(old.cargo_args, words(&expected));
    }

    #[test]
    fn each_program_has_a_page() {
        assert_eq!(
            page_of(Path::new("a/p.html"), "x.y"),
            Path::new("a/p.x.y.html")
        );
        assert_eq!(page_of(Path::new("p"), "x"), Path::new("p.x"));
    }

    #[test]
    fn files_of_the_same_commit_have_the_same_time() {
        let path = std::env::temp_dir().join(format!("cargo-fgraph-built-{}", std::process::id()));
        fs::write(&path, "aaaa 1000").unwrap();
        let same = time_of(&path, "aaaa").unwrap();
        assert_eq!(same, SystemTime::UNIX_EPOCH + Duration::from_nanos(1000));
        let other = time_of(&path, "bbbb").unwrap();
        assert!(other > same);
        assert_eq!(time_of(&path, "bbbb").unwrap(), other);
        fs::remove_file(&path).unwrap();
    }
}
