//! Runs cargo with this program as the compiler's wrapper.
//!
//! Cargo does not know that the wrapper changes what the compiler makes, nor what the selection
//! is. So what is built here never shares a directory with anything else:
//!
//! ```text
//!   target/fgraph/v1-all/             all functions
//!   target/fgraph/v1-8f0c7be2d34a5961/  another selection, by its hash
//!                 ^ what this version of the program makes of a crate
//! ```
//!
//! All settings go by cargo's command line: the environment would reach the user's program too, and
//! any build that it starts.

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

/// To be counted up when crates that are already built must be built again.
const LAYOUT: &str = "v1";

/// Builds, and what cargo does with what is built. Does not return once cargo runs.
///
/// # Errors
///
/// If cargo does not get to run.
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
    // It is seldom there.
    let _ = fs::remove_file(&told);
    if !build.quiet {
        eprintln!("cargo-fgraph: building in {text}");
    }

    let wrapper = env::current_exe().map_err(|error| Error::File("cargo-fgraph".into(), error))?;
    let wrapper = wrapper
        .to_str()
        .ok_or_else(|| Error::NotUtf8(wrapper.display().to_string()))?;
    // Where nothing can be read cargo says so.
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
        // The compiler does not know when the list has changed.
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
    // So exit codes and signals are cargo's own.
    Err(Error::Start(cargo.into(), command.exec()))
}

/// The first of these variables that is set, if that is to a text.
fn first_var<const N: usize>(names: [&str; N]) -> Option<OsString> {
    let set = names.iter().find_map(env::var_os)?;
    (!set.is_empty()).then_some(set)
}

/// Where artifacts go that are made for this filter.
fn subdirectory(base: &Path, filter: &Filter) -> PathBuf {
    let selection = if *filter == Filter::new() {
        "all".into()
    } else {
        hash::hex(filter.to_string().as_bytes())
    };
    base.join("fgraph").join(format!("{LAYOUT}-{selection}"))
}

/// What cargo says of a workspace.
struct Workspace {
    root: PathBuf,
    target_dir: PathBuf,
    /// The names of the crates of its packages, as functions have them.
    crates: BTreeSet<String>,
}

impl Workspace {
    /// Asks cargo.
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

/// What `fgraph` is told to watch.
fn words(under: &Under, crates: &BTreeSet<String>) -> Vec<String> {
    if under.deps {
        return Vec::new();
    }
    let of_crate =
        |name: &String| ["", "<", r"<*\ as\ "].map(|before| format!("-F{before}{name}::*"));
    crates.iter().flat_map(of_crate).collect()
}

/// Settings of cargo with which programs have all symbols, and lines unless the workspace's
/// manifest says something of debug information. They are the same for all subcommands, as each
/// would build all anew otherwise.
fn profile_settings(manifest: &str) -> Vec<String> {
    let mut settings = Vec::new();
    for profile in ["release", "bench"] {
        settings.push(format!("profile.{profile}.strip=false"));
        // The profile of benches inherits the other one.
        if !says_debug(manifest, "release") && !says_debug(manifest, profile) {
            settings.push(format!("profile.{profile}.debug=\"line-tables-only\""));
        }
    }
    settings
}

/// Returns true if a manifest says which debug information a profile has, as manifests are written.
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

/// The setting of cargo with which programs run under `fgraph`: `this` program starts them.
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

/// `text` as a value in TOML.
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
        assert_eq!(
            own[3..],
            ["-Fmy_app::*", "-F<my_app::*", r"-F<*\ as\ my_app::*"]
        );
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
