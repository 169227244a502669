//! Runs cargo with this program as the compiler's wrapper.
//!
//! Cargo knows neither that the wrapper changes the compiler's output, nor the selection. Therefore
//! these builds never share a directory with anything else:
//!
//! ```text
//!   target/fgraph/v1-all/             all functions
//!   target/fgraph/v1-8f0c7be2d34a5961/  another selection, by its hash
//!                 ^ what this version of the program makes of a crate
//! ```
//!
//! All settings are on cargo's command line: the environment would also reach the user's program,
//! and any build that it starts.

use std::collections::BTreeSet;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{self, Path, PathBuf};
use std::process::{Command, ExitCode};

use fgraph::Filter;
use serde_json::Value;

use crate::cli::{Build, Under};
use crate::error::Error;
use crate::hash;
use crate::probe;
use crate::runner;
use crate::wrapper::{INNER_VAR, SELECT_VAR, TOLD_VAR};

/// Version of the layout. Increment it to force crates that are already built to be built again.
const LAYOUT: &str = "v1";

/// Builds, and lets cargo run or test the result. Does not return once cargo runs.
///
/// # Errors
///
/// Fails if cargo does not start.
pub(crate) fn run(build: &Build) -> Result<ExitCode, Error> {
    let driver = Driver::new(build, Path::new(""))?;
    if !build.quiet {
        eprintln!("cargo-fgraph: building in {}", driver.artifacts);
    }
    let runner = build.under.as_ref().map(|under| {
        let which = match build.runs_one() {
            true => runner::ONE,
            false => runner::EACH,
        };
        let words = record_words(under, &driver.workspace.crates)?;
        Ok([vec![which.to_owned(), under.tool.clone()], words].concat())
    });
    let mut command = driver.command(build, runner.transpose()?.as_deref())?;
    // Replacing this process keeps cargo's exit codes and signals.
    Err(Error::Start(driver.cargo.into(), command.exec()))
}

/// Cargo, as it builds with NOPs.
#[derive(Debug)]
pub(crate) struct Driver {
    cargo: OsString,
    /// The directory in which cargo runs; empty for the current one.
    directory: PathBuf,
    /// The path of this program.
    wrapper: String,
    /// The directory of the artifacts.
    pub(crate) artifacts: String,
    pub(crate) workspace: Workspace,
}

impl Driver {
    /// Finds the workspace in `directory`, which is empty for the current one, and checks the
    /// compiler.
    ///
    /// # Errors
    ///
    /// Fails if there is no workspace, or if the compiler makes no patchable function entries.
    pub(crate) fn new(build: &Build, directory: &Path) -> Result<Self, Error> {
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let workspace = Workspace::ask(&cargo, directory, &build.workspace_args)?;
        let base = build.target_dir.as_ref().unwrap_or(&workspace.target_dir);
        let dir = subdirectory(base, &build.filter);
        let dir = path::absolute(&dir).map_err(|error| Error::File(dir, error))?;
        let artifacts = text(dir.as_os_str())?;
        if artifacts.contains(char::is_whitespace) {
            return Err(Error::WhiteSpace(dir));
        }
        let rustc = first_var(["RUSTC", "CARGO_BUILD_RUSTC"]).unwrap_or_else(|| "rustc".into());
        probe::check(&rustc, &dir)?;
        let wrapper =
            env::current_exe().map_err(|error| Error::File("cargo-fgraph".into(), error))?;
        Ok(Self {
            cargo,
            directory: directory.to_owned(),
            wrapper: text(wrapper.as_os_str())?,
            artifacts,
            workspace,
        })
    }

    /// Returns cargo's command. The words of a `runner` are for this program, which then starts
    /// the built ones.
    pub(crate) fn command(
        &self,
        build: &Build,
        runner: Option<&[String]>,
    ) -> Result<Command, Error> {
        let told = Path::new(&self.artifacts).join("told");
        // The file seldom exists.
        let _ = fs::remove_file(&told);
        // If the file cannot be read, cargo reports it.
        let manifest = self.workspace.root.join("Cargo.toml");
        let manifest = fs::read_to_string(manifest).unwrap_or_default();
        let mut settings = profile_settings(&manifest);
        settings.extend(runner.map(|words| self.runner_setting(words)));
        let mut command = cargo(&self.cargo, &self.directory);
        let mut args = build.cargo_args.iter();
        command
            .args(args.next())
            .arg("--target-dir")
            .arg(&self.artifacts)
            .arg("--config")
            .arg(format!(
                "build.rustc-wrapper={}",
                toml_string(&self.wrapper)
            ))
            .arg("--config")
            .arg(format!("build.build-dir={}", toml_string(&self.artifacts)))
            // The compiler does not notice a changed list.
            .args(["--config", "build.incremental=false"])
            .args(settings.iter().flat_map(|setting| ["--config", setting]))
            .args(args)
            .env(SELECT_VAR, build.filter.to_string())
            .env(TOLD_VAR, told)
            .env_remove("CARGO_INCREMENTAL")
            .env_remove("RUSTC_WRAPPER")
            .env_remove(INNER_VAR);
        if let Some(inner) = first_var(["RUSTC_WRAPPER", "CARGO_BUILD_RUSTC_WRAPPER"]) {
            command.env(INNER_VAR, inner);
        }
        Ok(command)
    }

    /// Returns the setting of cargo that makes this program start others, with these words.
    fn runner_setting(&self, words: &[String]) -> String {
        let words = words.iter().map(String::as_str);
        let runner = [self.wrapper.as_str(), runner::FLAG].into_iter();
        let runner: Vec<String> = runner.chain(words).chain(["--"]).map(toml_string).collect();
        format!("target.'cfg(all())'.runner=[{}]", runner.join(","))
    }
}

/// Returns a command of `cargo` that runs in `directory`, which is empty for the current one.
fn cargo(cargo: &OsStr, directory: &Path) -> Command {
    let mut command = Command::new(cargo);
    if !directory.as_os_str().is_empty() {
        command.current_dir(directory);
    }
    command
}

/// Returns `text` as UTF-8.
///
/// # Errors
///
/// Fails if it is none.
pub(crate) fn text(text: &OsStr) -> Result<String, Error> {
    let utf8 = text.to_str().map(str::to_owned);
    utf8.ok_or_else(|| Error::NotUtf8(text.to_string_lossy().into()))
}

/// Returns the value of the first of these variables that is set, unless it is empty.
fn first_var<const N: usize>(names: [&str; N]) -> Option<OsString> {
    let set = names.iter().find_map(env::var_os)?;
    (!set.is_empty()).then_some(set)
}

/// Returns the directory of the artifacts for this filter.
fn subdirectory(base: &Path, filter: &Filter) -> PathBuf {
    let selection = if *filter == Filter::all() {
        "all".into()
    } else {
        hash::hex(filter.to_string().as_bytes())
    };
    base.join("fgraph").join(format!("{LAYOUT}-{selection}"))
}

/// Properties of a workspace, from cargo.
#[derive(Debug)]
pub(crate) struct Workspace {
    pub(crate) root: PathBuf,
    pub(crate) target_dir: PathBuf,
    /// Names of the crates of its packages, as in the names of functions.
    pub(crate) crates: BTreeSet<String>,
}

impl Workspace {
    /// Runs `cargo metadata` in a directory, which is empty for the current one.
    fn ask(cargo: &OsStr, directory: &Path, args: &[OsString]) -> Result<Self, Error> {
        let output = self::cargo(cargo, directory)
            .args(["metadata", "--no-deps", "--format-version=1"])
            .args(args)
            .output()
            .map_err(|error| Error::Start(cargo.into(), error))?;
        if !output.status.success() {
            eprint!("{}", String::from_utf8_lossy(&output.stderr));
            let code = output.status.code().and_then(|code| code.try_into().ok());
            return Err(Error::Workspace(code.unwrap_or(u8::MAX)));
        }
        Self::parse(&output.stdout)
    }

    fn parse(json: &[u8]) -> Result<Self, Error> {
        let json: Value = serde_json::from_slice(json).map_err(Error::Metadata)?;
        let dir = |name: &str| Some(PathBuf::from(json[name].as_str()?));
        let list = |value: &'_ Value| value.as_array().cloned().unwrap_or_default();
        let packages = list(&json["packages"]).into_iter();
        let targets = packages.flat_map(|package| list(&package["targets"]));
        let names = targets.filter_map(|target| Some(target["name"].as_str()?.replace('-', "_")));
        Ok(Self {
            root: dir("workspace_root").unwrap_or_default(),
            target_dir: dir("target_directory").ok_or(Error::NoTargetDirectory)?,
            crates: names.collect(),
        })
    }
}

/// Returns the words for a subcommand of `fgraph`: the filter for these crates, and the user's
/// options.
///
/// # Errors
///
/// Fails if an option is not UTF-8.
pub(crate) fn record_words(under: &Under, crates: &BTreeSet<String>) -> Result<Vec<String>, Error> {
    let mut words = Vec::new();
    if !under.deps && !crates.is_empty() {
        // One word, because a program has not functions of each package.
        let crates: Vec<&str> = crates.iter().map(String::as_str).collect();
        words.push(format!("-Fcrate:{}", crates.join("|")));
    }
    for option in &under.options {
        words.push(text(option)?);
    }
    Ok(words)
}

/// Returns settings of cargo for programs with all symbols, and with lines unless the workspace's
/// manifest sets debug information. They are the same for all subcommands, since a change would
/// rebuild everything.
fn profile_settings(manifest: &str) -> Vec<String> {
    let mut settings = Vec::new();
    for profile in ["release", "bench"] {
        settings.push(format!("profile.{profile}.strip=false"));
        // The profile of benches inherits from the other one.
        if !says_debug(manifest, "release") && !says_debug(manifest, profile) {
            settings.push(format!("profile.{profile}.debug=\"line-tables-only\""));
        }
    }
    settings
}

/// Returns true if a manifest sets the debug information of a profile, in the usual notation.
fn says_debug(manifest: &str, profile: &str) -> bool {
    let mut table = "";
    manifest.lines().map(str::trim).any(|line| {
        if line.starts_with('[') {
            table = line.trim_matches(['[', ']']);
            return false;
        }
        let key = line.split('=').next().unwrap_or_default().trim();
        let dotted = [table, key].join(".");
        dotted.trim_start_matches('.') == format!("profile.{profile}.debug")
    })
}

/// Returns `text` as a value in TOML.
fn toml_string(text: &str) -> String {
    let mut quoted = String::from('"');
    for char in text.chars() {
        match char {
            '"' | '\\' => quoted.extend(['\\', char]),
            char if char.is_control() => quoted += &format!("\\u{:04x}", u32::from(char)),
            char => quoted.push(char),
        }
    }
    quoted + "\""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_selection_has_a_directory_of_its_own() {
        let dir = |globs: &[&str]| {
            let add = |filter: Filter, glob: &&str| filter.trace(glob).unwrap();
            let filter = match globs {
                [] => Filter::all(),
                _ => globs.iter().fold(Filter::none(), add),
            };
            subdirectory(Path::new("t"), &filter)
        };
        assert_eq!(dir(&[]), Path::new("t/fgraph/v1-all"));
        assert_eq!(dir(&["a"]), dir(&["a"]));
        assert_ne!(dir(&["a"]), dir(&["b"]));
        assert_ne!(dir(&["a"]), dir(&["a", "b"]));
        assert_ne!(dir(&["a"]), dir(&[]));
    }

    #[test]
    fn the_workspace_says_where_it_builds_and_which_crates_are_its_own() {
        let json = r#"{"packages":[{"targets":[{"name":"my-app"},{"name":"dep"}]},{}],
            "workspace_root":"/w","target_directory" : "/a\\b\u0009\"é","metadata":null}"#;
        let found = Workspace::parse(json.as_bytes()).unwrap();
        assert_eq!(found.root, Path::new("/w"));
        assert_eq!(found.target_dir, Path::new("/a\\b\t\"é"));
        let own = record_words(&Under::default(), &found.crates).unwrap();
        assert_eq!(own, ["-Fcrate:dep|my_app"]);
        for json in ["", "{", "{\"target_directory\":\"", "{}", "7"] {
            assert!(Workspace::parse(json.as_bytes()).is_err(), "{json}");
        }
    }

    #[test]
    fn debug_information_that_the_manifest_asks_for_stays() {
        let lines = |manifest: &str| {
            let settings = profile_settings(manifest).into_iter();
            settings.filter(|it| it.contains("debug")).count()
        };
        for (manifest, expected) in [
            ("", 2),
            ("[profile.dev]\ndebug = 2", 2),
            ("[profile.release]\nopt-level = 3\n\n debug=true", 0),
            ("profile.release.debug = 1", 0),
            ("[profile]\nrelease.debug = 1", 0),
            ("[profile.bench]\ndebug = true # all", 1),
            ("[profile.release]\n[package]\ndebug = 1", 2),
        ] {
            assert_eq!(lines(manifest), expected, "{manifest}");
        }
    }

    #[test]
    fn paths_survive_toml() {
        assert_eq!(toml_string("/a/é"), "\"/a/é\"");
        assert_eq!(toml_string("a\"b\\c\n"), r#""a\"b\\c\u000a""#);
    }
}
