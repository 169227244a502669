//! Runs a program that cargo has built under the command `fgraph`.

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::error::Error;

/// First argument of this program as cargo's runner. [`ONE`] or [`EACH`] follow, then the
/// subcommand of `fgraph`, its options, `--`, and the program.
pub(crate) const FLAG: &str = "--run-under-fgraph";
/// Cargo runs one program.
pub(crate) const ONE: &str = "one";
/// Cargo runs several programs, each with a recording of its own.
pub(crate) const EACH: &str = "each";

/// Environment variable with the path of the command `fgraph`.
const COMMAND: &str = "FGRAPH";

pub(crate) fn is_called(args: &[OsString]) -> bool {
    args.first().is_some_and(|first| first == FLAG)
}

/// Runs the program. Does not return once it runs.
///
/// # Errors
///
/// Fails if the command `fgraph` cannot be run.
pub(crate) fn run(args: &[OsString]) -> Result<ExitCode, Error> {
    let [_, which, tool, rest @ ..] = args else {
        return Err(Error::NoCommand);
    };
    let program = rest.iter().skip_while(|arg| *arg != "--").nth(1);
    let fgraph = command();
    let mut command = Command::new(&fgraph);
    command.arg(tool);
    if which == EACH
        && tool == "record"
        && let Some(program) = program
    {
        command.arg("--output").arg(recording(Path::new(program)));
    }
    // Replacing this process keeps the program's exit codes and signals.
    Err(Error::Start(fgraph, command.args(rest).exec()))
}

/// Returns the command: the one that the user names, the one beside this program, or that on the
/// PATH.
fn command() -> PathBuf {
    let given = env::var_os(COMMAND).filter(|it| !it.is_empty());
    let beside = || {
        let path = env::current_exe().ok()?.with_file_name("fgraph");
        path.is_file().then_some(path)
    };
    let given = given.map(PathBuf::from).or_else(beside);
    given.unwrap_or_else(|| "fgraph".into())
}

/// Returns the file for a program that runs beside others. Its name contains cargo's hash, because
/// a library and a program may have the same name.
fn recording(program: &Path) -> OsString {
    let mut file = OsString::from("fgraph.");
    file.push(program.file_stem().unwrap_or("program".as_ref()));
    file.push(".data");
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_is_named_as_the_program() {
        let name = |program| recording(Path::new(program));
        assert_eq!(
            name("/t/deps/app-0123456789abcdef"),
            "fgraph.app-0123456789abcdef.data"
        );
        assert_eq!(name("/"), "fgraph.program.data");
    }
}
