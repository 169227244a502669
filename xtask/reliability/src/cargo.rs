//! Builds of the workspace's own packages.

// Long strings: JSON in cargo's format.

use std::env;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Returns the root of the workspace.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the cargo that runs this program.
pub fn program() -> OsString {
    env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// Builds `package`, optimised, and returns the path of its program, or else of its library.
///
/// # Errors
///
/// Fails if it cannot be built.
pub fn build(package: &str) -> io::Result<PathBuf> {
    build_with(Command::new(program()).arg("build"), package)
}

/// Builds the program `bin` of `package`, optimised, and returns its path.
///
/// # Errors
///
/// Fails if it cannot be built.
pub fn build_bin(package: &str, bin: &str) -> io::Result<PathBuf> {
    build_with(
        Command::new(program()).args(["build", "--bin", bin]),
        package,
    )
}

/// Builds `package` like [`build`], by another `builder`, which takes cargo's arguments.
///
/// # Errors
///
/// Fails if it cannot be built.
pub fn build_with(builder: &mut Command, package: &str) -> io::Result<PathBuf> {
    let output = builder
        .args(["--release", "--quiet", "--package", package])
        .arg("--message-format=json-render-diagnostics")
        .current_dir(workspace())
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err(io::Error::other(format!("{package} does not build")));
    }
    made(&String::from_utf8_lossy(&output.stdout))
        .ok_or_else(|| io::Error::other(format!("cargo does not say where {package} is")))
}

/// Returns the path in the last of cargo's messages about an artifact, each a line of JSON.
fn made(messages: &str) -> Option<PathBuf> {
    let artifact = |line: &&str| line.contains(r#""reason":"compiler-artifact""#);
    let line = messages.lines().rfind(artifact)?;
    let after = |key: &str| line.split_once(key).map(|(_, rest)| rest);
    let path = after(r#""executable":""#).or_else(|| after(r#""filenames":[""#))?;
    path.split('"').next().map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_artifact_is_what_was_made() {
        let library =
            r#"{"reason":"compiler-artifact","filenames":["/t/liba.so"],"executable":null}"#;
        let program = r#"{"reason":"compiler-artifact","filenames":["/t/a"],"executable":"/t/a","fresh":true}"#;
        let end = r#"{"reason":"build-finished","success":true}"#;
        let made = |lines: &[&str]| made(&lines.join("\n"));
        assert_eq!(made(&[library, end]), Some("/t/liba.so".into()));
        assert_eq!(made(&[library, program, end]), Some("/t/a".into()));
        assert_eq!(made(&[end]), None);
    }
}
