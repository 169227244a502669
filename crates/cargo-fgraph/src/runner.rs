//! Runs a program that cargo has built under the command `fgraph`.

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::error::Error;

/// The first argument of this program where cargo starts it as its runner. Then follow [`ONE`] or
/// [`EACH`], the subcommand of `fgraph`, its options, `--`, and the program.
pub(crate) const FLAG: &str = "--run-under-fgraph";
/// Cargo runs one program.
pub(crate) const ONE: &str = "one";
/// Cargo runs several, and each gets a recording of its own.
pub(crate) const EACH: &str = "each";

/// Names the command `fgraph`.
const COMMAND: &str = "FGRAPH";

pub(crate) fn is_called(args: &[OsString]) -> bool {
    args.first().is_some_and(|first| first == FLAG)
}

/// Runs the program. Does not return once it runs.
///
/// # Errors
///
/// If the command `fgraph` cannot be run.
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
    // So exit codes and signals are the program's.
    Err(Error::Start(fgraph, command.args(rest).exec()))
}

/// The command: what the user says, the one beside this program, or that on the PATH.
fn command() -> PathBuf {
    let given = env::var_os(COMMAND).filter(|it| !it.is_empty());
    let beside = || {
        let path = env::current_exe().ok()?.with_file_name("fgraph");
        path.is_file().then_some(path)
    };
    let given = given.map(PathBuf::from).or_else(beside);
    given.unwrap_or_else(|| "fgraph".into())
}

/// The file for a program that runs beside others. Its name has a hash by cargo: a library and a
/// program may be called the same.
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
