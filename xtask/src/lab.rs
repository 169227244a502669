//! Hands over to the measuring programs of `lab/`, a workspace of its own.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use fgraph_chores::cargo;
use fgraph_chores::lab::COMMANDS;

/// Returns true if these arguments of `cargo xtask` are for the lab.
pub(crate) fn is_meant(args: &[OsString]) -> bool {
    let name = args.iter().find(|arg| *arg != "help");
    name.is_some_and(|name| COMMANDS.iter().any(|(known, _)| name == known))
}

/// Builds the lab and becomes it. Returns only if it cannot be started.
pub(crate) fn become_it(args: &[OsString]) -> io::Error {
    let mut command = Command::new(cargo::program());
    command.args(["run", "--release", "--quiet", "--manifest-path"]);
    command.arg(cargo::workspace().join("lab/Cargo.toml"));
    // Crates of others are built once for both workspaces.
    command.arg("--target-dir").arg(cargo::target());
    command.arg("--").args(args).exec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_the_lab_are_known_by_their_names() {
        let is_meant = |words: &[&str]| {
            let args: Vec<OsString> = words.iter().map(OsString::from).collect();
            is_meant(&args)
        };
        assert!(is_meant(&["versus", "--json"]));
        assert!(is_meant(&["help", "versus"]));
        assert!(!is_meant(&["tidy", "versus"]));
        assert!(!is_meant(&["--help"]));
        assert!(!is_meant(&[]));
    }
}
