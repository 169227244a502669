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
pub(crate) fn run(build: Build) -> Result<ExitCode, Error> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let workspace = Workspace::ask(&cargo, &build.workspace_args)?;
    let base = build.target_dir.as_ref().unwrap_or(&workspace.target_dir);
    let dir = subdirectory(base, &build.filter);
    let dir = path::absolute(&dir).map_err(|error| Error::File(dir, error))?;
    let text = dir
        .to_str()
        .ok_or_else(|| Error::NotUtf8(dir.display().to_string()))?;
    if text.contains(char::is_whitespace) {
        return Err(Error::WhiteSpace(dir));
    }
    let rustc = first_var(["RUSTC", "CARGO_BUILD_RUSTC"]).unwrap_or_else(|| "rustc".into());
    probe::check(&rustc, &dir)?;

    let told = dir.join("told");
    // The file seldom exists.
    let _ = fs::remove_file(&told);
    if !build.quiet {
        eprintln!("cargo-fgraph: building in {text}");
    }

    let wrapper = env::current_exe().map_err(|error| Error::File("cargo-fgraph".into(), error))?;
    let wrapper = wrapper
        .to_str()
        .ok_or_else(|| Error::NotUtf8(wrapper.display().to_string()))?;
    // If the file cannot be read, cargo reports it.
    let manifest = fs::read_to_string(workspace.root.join("Cargo.toml")).unwrap_or_default();
    let mut settings = profile_settings(&manifest);
    if let Some(under) = &build.under {
        settings.push(runner_setting(
            under,
            &workspace.crates,
            &build.cargo_args,
            wrapper,
        )?);
    }
    let mut command = Command::new(&cargo);
    let mut args = build.cargo_args.iter();
    command
        .args(args.next())
        .arg("--target-dir")
        .arg(text)
        .arg("--config")
        .arg(format!("build.rustc-wrapper={}", toml_string(wrapper)))
        .arg("--config")
        .arg(format!("build.build-dir={}", toml_string(text)))
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
    // Replacing this process keeps cargo's exit codes and signals.
    Err(Error::Start(cargo.into(), command.exec()))
}

/// Returns the value of the first of these variables that is set, unless it is empty.
fn first_var<const N: usize>(names: [&str; N]) -> Option<OsString> {
    let set = names.iter().find_map(env::var_os)?;
    (!set.is_empty()).then_some(set)
}

/// Returns the directory of the artifacts for this filter.
fn subdirectory(base: &Path, filter: &Filter) -> PathBuf {
    let selection = if *filter == Filter::new() {
        "all".into()
    } else {
        hash::hex(filter.to_string().as_bytes())
    };
    base.join("fgraph").join(format!("{LAYOUT}-{selection}"))
}

/// Properties of a workspace, from cargo.
struct Workspace {
    root: PathBuf,
    target_dir: PathBuf,
    /// Names of the crates of its packages, as in the names of functions.
    crates: BTreeSet<String>,
}

impl Workspace {
    /// Runs `cargo metadata`.
    fn ask(cargo: &OsStr, args: &[OsString]) -> Result<Self, Error> {
        let output = Command::new(cargo)
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

/// Returns the filter words for `fgraph`.
fn words(under: &Under, crates: &BTreeSet<String>) -> Vec<String> {
    if under.deps || crates.is_empty() {
        return Vec::new();
    }
    // One word, because a program has not functions of each package.
    let crates: Vec<&str> = crates.iter().map(String::as_str).collect();
    vec![format!("-Fcrate:{}", crates.join("|"))]
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

/// Returns the setting of cargo that runs programs under `fgraph`: `this` program starts them.
fn runner_setting(
    under: &Under,
    crates: &BTreeSet<String>,
    cargo_args: &[OsString],
    this: &str,
) -> Result<String, Error> {
    let runs_one = |command: &OsString| command == "run" || command == "r";
    let which = match cargo_args.first().is_some_and(runs_one) {
        true => runner::ONE,
        false => runner::EACH,
    };
    let mut words = words(under, crates);
    for option in &under.options {
        let text = option.to_str().map(str::to_owned);
        words.push(text.ok_or_else(|| Error::NotUtf8(option.to_string_lossy().into()))?);
    }
    let words = words.iter().map(String::as_str);
    let runner = [this, runner::FLAG, which, &under.tool].into_iter();
    let runner: Vec<String> = runner.chain(words).chain(["--"]).map(toml_string).collect();
    Ok(format!("target.'cfg(all())'.runner=[{}]", runner.join(",")))
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
            subdirectory(Path::new("t"), &globs.iter().fold(Filter::new(), add))
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
        let own = words(&Under::default(), &found.crates);
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
