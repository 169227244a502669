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

// Long strings: JSON as cargo writes it.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{self, Path, PathBuf};
use std::process::{Command, ExitCode};

use fgraph::Filter;

use crate::cli::Build;
use crate::error::Error;
use crate::hash;
use crate::probe;
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
    let base = match &build.target_dir {
        Some(dir) => dir.clone(),
        None => target_dir(&cargo, &build.workspace_args)?,
    };
    let dir = subdirectory(&base, &build.filter);
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

/// Asks cargo for the target directory of the workspace.
fn target_dir(cargo: &OsStr, args: &[OsString]) -> Result<PathBuf, Error> {
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
    let json = String::from_utf8_lossy(&output.stdout);
    let dir = top_level_string(&json, "target_directory").ok_or(Error::NoTargetDirectory)?;
    Ok(dir.into())
}

/// The text under `key` in the outermost object of `json`.
fn top_level_string(json: &str, key: &str) -> Option<String> {
    let mut depth = 0_usize;
    let mut last = String::new();
    let mut is_value = false;
    let mut chars = json.chars();
    while let Some(char) = chars.next() {
        match char {
            '{' | '[' => depth += 1,
            '}' | ']' => depth = depth.checked_sub(1)?,
            ':' => is_value = true,
            ',' => is_value = false,
            '"' => {
                let text = json_string(&mut chars)?;
                if depth == 1 && is_value && last == key {
                    return Some(text);
                }
                if depth == 1 && !is_value {
                    last = text;
                }
            }
            _ => {}
        }
    }
    None
}

/// The rest of a text, up to its closing quotation mark.
fn json_string(chars: &mut impl Iterator<Item = char>) -> Option<String> {
    let mut text = String::new();
    loop {
        let char = match chars.next()? {
            '"' => return Some(text),
            '\\' => match chars.next()? {
                'b' => '\u{8}',
                'f' => '\u{c}',
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                'u' => {
                    let digits: String = chars.by_ref().take(4).collect();
                    char::from_u32(u32::from_str_radix(&digits, 16).ok()?)?
                }
                itself => itself,
            },
            char => char,
        };
        text.push(char);
    }
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
    fn only_the_outermost_target_directory_counts() {
        let json = r#"{"packages":[{"metadata":{"target_directory":"no"},"x":"\"target_directory\":\"no"}],
            "y":"target_directory","z":["target_directory","no"],
            "target_directory" : "/a\\b\u0009\"é","metadata":null}"#;
        let found = top_level_string(json, "target_directory");
        assert_eq!(found.as_deref(), Some("/a\\b\t\"é"));
        for json in [
            "",
            "}",
            "{",
            "{\"target_directory\":",
            "{\"target_directory\":\"",
            "{}",
        ] {
            assert_eq!(top_level_string(json, "target_directory"), None, "{json}");
        }
    }

    #[test]
    fn paths_survive_toml() {
        assert_eq!(toml_string("/a/é"), "\"/a/é\"");
        assert_eq!(toml_string("a\"b\\c\n"), r#""a\"b\\c\u000a""#);
    }
}
