//! Command line of `cargo fgraph`.
//!
//! Only the arguments that this program needs are removed; all others are cargo's and are passed on
//! unchanged.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use fgraph::Filter;

use crate::error::Error;

/// Output of `--help`.
pub(crate) const HELP: &str = "\
Build with patchable function entries, so that fgraph can watch the functions

Usage: cargo fgraph [--select GLOB]... build|run|test|bench [ARGS OF CARGO]
       cargo fgraph record|live|top [run|test|bench] [ARGS OF CARGO]

`record`, `live` and `top` run what is built under the command `fgraph`, which must be installed,
and watch the functions of the workspace's own packages, with the symbols and lines of all. Each
program that `test` and `bench` run has a recording of its own, `fgraph.NAME.data`, in which threads
are named as the tests that they run.

Options:
      --select GLOB      Prepare only functions whose demangled name matches. May be given
                         several times; `!GLOB` leaves functions out. `*` is any run of
                         characters, `?` is one character. Default: all functions
      --target-dir DIR   Build in a subdirectory of DIR. Default: cargo's target directory
      --deps             With `record`, `live` and `top`: watch all functions of the program
      --with OPTION      With these: an option of `fgraph`, such as --with=--retval. May be given
                         several times
  -h, --help             Print this
  -V, --version          Print the version

Everything else is passed on to cargo: `cargo fgraph test --release -p app -- --nocapture`.
Artifacts are in target/fgraph/, in a directory of their own for each selection. `FGRAPH` names the
command `fgraph`; without it that is the one beside this program, or the one on the PATH.
";

/// Subcommands of cargo that build programs, and their short forms.
const COMMANDS: [&str; 7] = ["build", "b", "run", "r", "test", "t", "bench"];

/// Subcommands of `fgraph` that run programs.
const TOOLS: [&str; 3] = ["record", "live", "top"];

/// Options of cargo for the place and the configuration of the workspace. Their values are needed
/// to query the target directory.
const WORKSPACE_OPTIONS: [&str; 2] = ["--manifest-path", "--config"];

/// Request of the user.
#[derive(Debug, PartialEq)]
pub(crate) enum Request {
    /// Print the help.
    Help,
    /// Print the version.
    Version,
    /// To build.
    Run(Build),
}

/// Selection and options of a build.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Build {
    /// Selects the functions that get a NOP.
    pub(crate) filter: Filter,
    /// The target directory, if given on the command line.
    pub(crate) target_dir: Option<PathBuf>,
    /// Subcommand of `fgraph` that runs the built programs.
    pub(crate) under: Option<Under>,
    /// Print nothing but errors.
    pub(crate) quiet: bool,
    /// Arguments of cargo that `cargo metadata` needs too.
    pub(crate) workspace_args: Vec<OsString>,
    /// Cargo's subcommand and its arguments.
    pub(crate) cargo_args: Vec<OsString>,
}

/// Subcommand of `fgraph` that runs programs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Under {
    /// Name of the subcommand.
    pub(crate) tool: String,
    /// Watch the functions of dependencies too.
    pub(crate) deps: bool,
    /// Options of the subcommand.
    pub(crate) options: Vec<OsString>,
}

/// Parses the arguments behind `cargo fgraph`.
pub(crate) fn parse(args: Vec<OsString>) -> Result<Request, Error> {
    let mut build = Build::default();
    let (mut command, mut tool) = (None, None);
    let (mut deps, mut options) = (false, Vec::new());
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        if arg == "--" {
            build.cargo_args.push(arg);
            build.cargo_args.extend(args.by_ref());
        } else if arg == "--help" || arg == "-h" {
            return Ok(Request::Help);
        } else if arg == "--version" || arg == "-V" {
            return Ok(Request::Version);
        } else if arg == "--deps" {
            deps = true;
        } else if let Some(option) = value_of("--with", &arg, &mut args)? {
            options.push(option);
        } else if tool.is_none()
            && command.is_none()
            && let Some(known) = TOOLS.into_iter().find(|tool| arg == **tool)
        {
            tool = Some(known.to_owned());
        } else if let Some(glob) = value_of("--select", &arg, &mut args)? {
            build.filter = add(build.filter, &glob)?;
        } else if let Some(dir) = value_of("--target-dir", &arg, &mut args)? {
            build.target_dir = Some(dir.into());
        } else if let Some((option, value)) = workspace_option(&arg, &mut args)? {
            for list in [&mut build.workspace_args, &mut build.cargo_args] {
                list.extend([option.into(), value.clone()]);
            }
        } else {
            if arg == "--quiet" || arg == "-q" {
                build.quiet = true;
            } else if command.is_none()
                && !is_option(&arg)
                // Without a subcommand an option's value may come first.
                && (tool.is_none() || COMMANDS.iter().any(|known| arg == *known))
            {
                command = Some(arg.clone());
                // Before earlier options, because cargo wants it in front.
                build.cargo_args.insert(0, arg);
                continue;
            }
            build.cargo_args.push(arg);
        }
    }
    match tool {
        Some(tool) => {
            build.under = Some(Under {
                tool,
                deps,
                options,
            });
        }
        None if deps => return Err(Error::NoTool("--deps")),
        None if !options.is_empty() => return Err(Error::NoTool("--with")),
        None => {}
    }
    if command.is_none() && build.under.is_some() {
        build.cargo_args.insert(0, "run".into());
        command = Some("run".into());
    }
    let command = command.ok_or(Error::NoCommand)?;
    let only_builds = |name: &str| name == "build" || name == "b";
    if build.under.is_some() && command.to_str().is_some_and(only_builds) {
        return Err(Error::NothingRuns);
    }
    if !COMMANDS.iter().any(|known| command == *known) {
        return Err(Error::UnknownCommand(command.to_string_lossy().into()));
    }
    Ok(Request::Run(build))
}

fn is_option(arg: &OsStr) -> bool {
    arg.as_encoded_bytes().starts_with(b"-")
}

/// Returns the value of `option`, if `arg` is that option: behind a `=`, or the next argument.
fn value_of(
    option: &'static str,
    arg: &OsStr,
    rest: &mut impl Iterator<Item = OsString>,
) -> Result<Option<OsString>, Error> {
    if arg == option {
        return rest.next().map(Some).ok_or(Error::NoValue(option));
    }
    // An option with a value that is not UTF-8 is passed to cargo, which refuses it.
    let value = arg
        .to_str()
        .and_then(|arg| arg.strip_prefix(option)?.strip_prefix('='));
    Ok(value.map(OsString::from))
}

fn workspace_option(
    arg: &OsStr,
    rest: &mut impl Iterator<Item = OsString>,
) -> Result<Option<(&'static str, OsString)>, Error> {
    for option in WORKSPACE_OPTIONS {
        if let Some(value) = value_of(option, arg, rest)? {
            return Ok(Some((option, value)));
        }
    }
    Ok(None)
}

fn add(filter: Filter, glob: &OsStr) -> Result<Filter, Error> {
    let glob = glob
        .to_str()
        .ok_or_else(|| Error::NotUtf8(glob.to_string_lossy().into()))?;
    match glob.strip_prefix('!') {
        Some(glob) => filter.notrace(glob),
        None => filter.trace(glob),
    }
    .map_err(Error::Select)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Request, Error> {
        parse(line.split_whitespace().map(OsString::from).collect())
    }

    fn build(line: &str) -> Build {
        match parsed(line) {
            Ok(Request::Run(build)) => build,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn cargo_gets_its_own_arguments() {
        let build = build("--locked test -p app --release -- --select x -q --help");
        let expected = "test --locked -p app --release -- --select x -q --help";
        assert_eq!(build.cargo_args.join(OsStr::new(" ")), expected);
        assert_eq!(build.filter, Filter::new());
        assert!(!build.quiet);
    }

    #[test]
    fn globs_add_up_wherever_they_stand() {
        let build = build("--select a::* run --select=!*::new app");
        let expected = Filter::new()
            .trace("a::*")
            .and_then(|f| f.notrace("*::new"));
        assert_eq!(Ok(build.filter), expected);
        assert_eq!(build.cargo_args, ["run", "app"]);
    }

    #[test]
    fn the_target_directory_is_kept_from_cargo() {
        for line in ["build --target-dir x", "build --target-dir=x"] {
            let build = build(line);
            assert_eq!(build.target_dir, Some("x".into()));
            assert_eq!(build.cargo_args, ["build"]);
        }
    }

    #[test]
    fn where_the_workspace_is_goes_to_both() {
        let build = build("build --manifest-path=x --config y");
        assert_eq!(
            build.workspace_args,
            ["--manifest-path", "x", "--config", "y"]
        );
        assert_eq!(build.cargo_args[1..], build.workspace_args);
    }

    #[test]
    fn programs_run_under_a_tool() {
        let plain = build("record -- a --deps");
        assert_eq!(plain.cargo_args, ["run", "--", "a", "--deps"]);
        let expected = Under {
            tool: "record".to_owned(),
            ..Under::default()
        };
        assert_eq!(plain.under, Some(expected.clone()));
        let all = build("record --deps test --release --with=--retval --with -N --with x name");
        assert_eq!(all.cargo_args, ["test", "--release", "name"]);
        let options = ["--retval", "-N", "x"].map(OsString::from).to_vec();
        let expected = Under {
            deps: true,
            options,
            ..expected
        };
        assert_eq!(all.under.as_ref(), Some(&expected));
        let before = build("--with=--retval --deps --with -N record --with x test --release name");
        assert_eq!(before, all);
        assert_eq!(build("run record").cargo_args, ["run", "record"]);
        assert_eq!(build("live -p app").cargo_args, ["run", "-p", "app"]);
        assert!(matches!(parsed("top build"), Err(Error::NothingRuns)));
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(matches!(parsed(""), Err(Error::NoCommand)));
        assert!(matches!(parsed("--select x"), Err(Error::NoCommand)));
        assert!(matches!(parsed("check"), Err(Error::UnknownCommand(name)) if name == "check"));
        for line in ["--with=-q build", "run --with -q", "--deps test"] {
            assert!(matches!(parsed(line), Err(Error::NoTool(_))), "{line}");
        }
        assert!(matches!(
            parsed("build --select"),
            Err(Error::NoValue("--select"))
        ));
        assert!(matches!(
            parsed(r"build --select a\"),
            Err(Error::Select(_))
        ));
    }

    #[test]
    fn help_and_version_are_found() {
        assert!(matches!(parsed("--help"), Ok(Request::Help)));
        assert!(matches!(parsed("build -h"), Ok(Request::Help)));
        assert!(matches!(parsed("-V"), Ok(Request::Version)));
    }
}
