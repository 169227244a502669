//! A crate without unsafe code can do nothing undefined with fgraph.
//!
//! `outside/` is such a crate. Each of its programs tries something; a comment `//~ E0133` says
//! which error the compiler must find in that line, `//~^ E0277` in the line before. One program
//! has none, and runs.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

/// File, line, and the error's number.
type Errors = BTreeSet<(String, usize, String)>;

/// The errors that the sources want.
fn wanted(programs: &Path) -> Errors {
    let mut wanted = Errors::new();
    for file in fs::read_dir(programs).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        for (index, line) in fs::read_to_string(&path).unwrap().lines().enumerate() {
            if let Some((_, mark)) = line.split_once("//~") {
                // With a `^`, it is of the line before.
                let (line, code) = match mark.strip_prefix("^ ") {
                    Some(code) => (index, code),
                    None => (index + 1, mark.trim_start()),
                };
                wanted.insert((format!("src/bin/{name}"), line, code.to_owned()));
            }
        }
    }
    wanted
}

/// The errors that cargo shows in the short form, `src/bin/writing.rs:13:9: error[E0133]: ...`.
fn found(output: &str) -> Errors {
    let error = |line: &str| {
        let (place, message) = line.split_once(": error")?;
        let mut place = place.splitn(3, ':');
        let (file, line) = (place.next()?, place.next()?.parse().ok()?);
        let code = message
            .strip_prefix('[')
            .and_then(|code| code.split_once(']'));
        let code = code.map_or("no code", |(code, _)| code);
        Some((file.to_owned(), line, code.to_owned()))
    };
    output.lines().filter_map(error).collect()
}

#[test]
fn code_without_unsafe_can_do_no_harm() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/outside");
    // The same versions as here, which are there already.
    let lock = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.lock");
    if lock.exists() {
        fs::copy(lock, package.join("Cargo.lock")).unwrap();
    }
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("outside");
    let cargo = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO"))
            .args(arguments)
            .args(["--offline", "--message-format=short"])
            .arg("--target-dir")
            .arg(&target)
            .env("CARGO_TERM_COLOR", "never")
            // As where the configuration of this workspace is not found.
            .env("FGRAPH_TESTING", "")
            .current_dir(&package)
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    // All of it is found without compiling anything, as an editor does.
    let errors = cargo(&["check", "--keep-going"]);
    let programs = package.join("src/bin");
    assert_eq!(found(&errors), wanted(&programs), "{errors}");
    let errors = cargo(&["build", "--bin=harmless"]);
    assert!(found(&errors).is_empty(), "{errors}");

    let output = Command::new(target.join("debug/harmless"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said == "harmless\n",
        "{output:?}"
    );
}
