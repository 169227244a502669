//! Builds of the workspace's own packages.

use std::env;
use std::ffi::OsString;
use std::io;
use std::path::{self, Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Deserializer, Value};

/// Returns the root of the workspace.
pub fn workspace() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    // The package is `xtask/chores`.
    let root = package.ancestors().nth(2);
    root.unwrap_or(package).to_owned()
}

/// Returns the directory of what cargo builds, and of what else is kept between runs.
pub fn target() -> PathBuf {
    let own = env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    own.unwrap_or_else(|| workspace().join("target"))
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

/// Returns `path` as an absolute one, or else builds the command `fgraph`, optimised, and returns
/// its path.
///
/// # Errors
///
/// Fails if it cannot be built.
pub fn fgraph(path: Option<&Path>) -> io::Result<PathBuf> {
    path.map_or_else(|| build_bin("fgraph-cli", "fgraph"), path::absolute)
}

/// Builds `package` like [`build`], by another `builder`, which takes cargo's arguments.
///
/// # Errors
///
/// Fails if it cannot be built.
pub fn build_with(builder: &mut Command, package: &str) -> io::Result<PathBuf> {
    build_in(&workspace(), builder, package)
}

/// Builds `package` of the workspace in `directory`, otherwise like [`build_with`].
///
/// # Errors
///
/// Fails if it cannot be built.
pub fn build_in(directory: &Path, builder: &mut Command, package: &str) -> io::Result<PathBuf> {
    let output = builder
        .args(["--release", "--quiet", "--package", package])
        .arg("--message-format=json-render-diagnostics")
        .current_dir(directory)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err(io::Error::other(format!("{package} does not build")));
    }
    made(&output.stdout)
        .ok_or_else(|| io::Error::other(format!("cargo does not say where {package} is")))
}

/// Returns the path in the last of cargo's messages about an artifact.
fn made(messages: &[u8]) -> Option<PathBuf> {
    let messages = Deserializer::from_slice(messages).into_iter::<Value>();
    let messages = messages.map_while(Result::ok);
    let artifact = messages
        .filter(|message| message["reason"] == "compiler-artifact")
        .last()?;
    let path = artifact["executable"].as_str();
    path.or(artifact["filenames"][0].as_str())
        .map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_artifact_is_what_was_made() {
        let library =
            r#"{"reason":"compiler-artifact","filenames":["/t/liba.so"],"executable":null}"#;
        let program = r#"{"reason":"compiler-artifact","filenames":[],"executable":"/t/a"}"#;
        let end = r#"{"reason":"build-finished","success":true}"#;
        let made = |lines: &[&str]| made(lines.join("\n").as_bytes());
        assert_eq!(made(&[library, end]), Some("/t/liba.so".into()));
        assert_eq!(made(&[library, program, end]), Some("/t/a".into()));
        assert_eq!(made(&[end]), None);
    }
}
