//! Runs a program that cargo has built under the command `fgraph`.

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{self, Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::error::Error;

/// First argument of this program as cargo's runner. It is followed by:
///
/// - [`ONE`] or [`EACH`], the subcommand of `fgraph`, its options, `--`, and the program;
/// - [`INTO`], the directory of the recordings, that of the artifacts, that in which the program
///   runs, which is empty for cargo's choice, options of `fgraph record`, `--`, and the program;
/// - [`SKIP`], `--`, and the program.
pub(crate) const FLAG: &str = "--run-under-fgraph";
/// Cargo runs one program.
pub(crate) const ONE: &str = "one";
/// Cargo runs several programs, each with a recording of its own.
pub(crate) const EACH: &str = "each";

/// Each program is recorded into a file of a directory, by the name of its package and its own.
pub(crate) const INTO: &str = "into";
/// No program runs: cargo only builds them.
pub(crate) const SKIP: &str = "skip";

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
    let (tool, rest, which) = match args {
        [_, which, ..] if which == SKIP => return Ok(ExitCode::SUCCESS),
        [_, which, rest @ ..] if which == INTO => return run_into(rest),
        [_, which, tool, rest @ ..] => (tool, rest, which),
        _ => return Err(Error::NoCommand),
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

/// Runs a program for [`INTO`]. Does not return once it runs.
fn run_into(args: &[OsString]) -> Result<ExitCode, Error> {
    let end = args.iter().position(|arg| arg == "--");
    let (Some((words, [_, program, rest @ ..])), [recordings, artifacts, directory, ..]) =
        (end.map(|end| args.split_at(end)), args)
    else {
        return Err(Error::NoCommand);
    };
    // Cargo's path may be relative to its own directory.
    let program =
        path::absolute(program).map_err(|error| Error::File(program.clone().into(), error))?;
    // An example in the documentation, which rustdoc builds elsewhere.
    let is_built_here = program.starts_with(artifacts);
    let starts = if is_built_here {
        command()
    } else {
        program.clone()
    };
    let mut command = Command::new(starts);
    if is_built_here {
        let package = env::var("CARGO_PKG_NAME").unwrap_or_default();
        let recordings = Path::new(recordings);
        let output = free_file(recordings, &name_in_both(&package, &program));
        command.arg("record").arg("--output").arg(output);
        command.args(&words[3..]).arg("--").arg(program);
    }
    if !directory.is_empty() {
        command.current_dir(directory);
    }
    let program = command.get_program().into();
    Err(Error::Start(program, command.args(rest).exec()))
}

/// Returns the name that a program has in each version of a workspace: without cargo's hash, and
/// with its package's name unless that is the same.
fn name_in_both(package: &str, program: &Path) -> String {
    let stem = program.file_stem().unwrap_or_default().to_string_lossy();
    let name = match stem.rsplit_once('-') {
        Some((name, hash)) if hash.len() == 16 && hash.bytes().all(|it| it.is_ascii_hexdigit()) => {
            name
        }
        _ => &stem,
    };
    match name.replace('-', "_") == package.replace('-', "_") || package.is_empty() {
        true => name.to_owned(),
        false => format!("{package}.{name}"),
    }
}

/// Returns the path of a recording that is not there. Cargo runs programs of the same name, such as
/// the tests of a library and of its binary, in the same order each time.
fn free_file(directory: &Path, name: &str) -> PathBuf {
    let path = |number: u32| match number {
        1 => directory.join(format!("{name}{RECORDING}")),
        number => directory.join(format!("{name}.{number}{RECORDING}")),
    };
    let mut paths = (1..).map(path);
    let free = paths.find(|path| !path.exists());
    free.expect("a directory has fewer files than there are numbers")
}

/// End of the name of a recording.
pub(crate) const RECORDING: &str = ".data";

/// Returns the command: the one that the user names, the one beside this program, or that on the
/// PATH.
pub(crate) fn command() -> PathBuf {
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
    file.push(RECORDING);
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

    #[test]
    fn a_program_has_the_same_name_in_both_versions() {
        let name = |package, program| name_in_both(package, Path::new(program));
        assert_eq!(name("my-app", "/t/debug/my-app"), "my-app");
        assert_eq!(name("my-app", "/t/deps/my_app-0123456789abcdef"), "my_app");
        assert_eq!(name("my-app", "/t/deps/it-0123456789abcdef"), "my-app.it");
        assert_eq!(name("app", "/t/debug/app-tool"), "app.app-tool");
    }
}
