//! Command line of `cargo fgraph`.
//!
//! Only the arguments that this program needs are removed; all others are cargo's and are passed on
//! unchanged.

mod diff;
mod option;

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use fgraph::Filter;

use crate::error::Error;
pub(crate) use diff::Comparison;
use option::value_of;

/// Output of `--help`.
pub(crate) const HELP: &str = "\
Build with patchable function entries, so that fgraph can watch the functions

Usage: cargo fgraph [--select GLOB]... build|run|test|bench [ARGS OF CARGO]
       cargo fgraph record|live|top [run|test|bench] [ARGS OF CARGO]
       cargo fgraph diff [OPTIONS] BASE [run|test|bench] [ARGS OF CARGO]

`record`, `live` and `top` run what is built under the command `fgraph`, which must be installed,
and watch the functions of the workspace's own packages, with the symbols and lines of all. Each
program that `test` and `bench` run has a recording of its own, `fgraph.NAME.data`, in which threads
are named as the tests that they run. `diff` compares the files as they are now with the commit
BASE; `cargo fgraph diff --help` has its options.

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
const TOOLS: [&str; 4] = ["record", "live", "top", DIFF];

/// The tool that compares with a commit.
const DIFF: &str = "diff";

/// Options of cargo for the place and the configuration of the workspace. Their values are needed
/// to query the target directory.
const WORKSPACE_OPTIONS: [&str; 2] = ["--manifest-path", "--config"];

/// Request of the user.
#[derive(Debug, PartialEq)]
pub(crate) enum Request {
    /// Print this help.
    Help(&'static str),
    /// Print the version.
    Version,
    /// To build.
    Run(Build),
    /// To build twice, record both and compare.
    Compare(Build, Comparison),
}

/// Selection and options of a build.
#[derive(Clone, Debug, PartialEq)]
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

impl Default for Build {
    fn default() -> Self {
        Self {
            filter: Filter::all(),
            target_dir: None,
            under: None,
            quiet: false,
            workspace_args: Vec::new(),
            cargo_args: Vec::new(),
        }
    }
}

impl Build {
    /// Returns true if cargo runs one program, in its own directory.
    pub(crate) fn runs_one(&self) -> bool {
        let runs_one = |command: &OsString| command == "run" || command == "r";
        self.cargo_args.first().is_some_and(runs_one)
    }
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
    let mut selected = Vec::new();
    let (mut command, mut tool) = (None, None);
    let (mut deps, mut options) = (false, Vec::new());
    let mut comparison = Comparison::default();
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        if arg == "--" {
            build.cargo_args.push(arg);
            build.cargo_args.extend(args.by_ref());
        } else if arg == "--help" || arg == "-h" {
            let compares = tool.as_deref() == Some(DIFF);
            return Ok(Request::Help(if compares { diff::HELP } else { HELP }));
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
        } else if tool.as_deref() == Some(DIFF) && comparison.takes(&arg, &mut args)? {
        } else if let Some(glob) = value_of("--select", &arg, &mut args)? {
            selected.push(glob);
        } else if let Some(dir) = value_of("--target-dir", &arg, &mut args)? {
            build.target_dir = Some(dir.into());
        } else if let Some((option, value)) = workspace_option(&arg, &mut args)? {
            for list in [&mut build.workspace_args, &mut build.cargo_args] {
                list.extend([option.into(), value.clone()]);
            }
        } else {
            if arg == "--quiet" || arg == "-q" {
                build.quiet = true;
            } else if tool.as_deref() == Some(DIFF) && comparison.base.is_empty() {
                if is_option(&arg) {
                    return Err(Error::NoBase);
                }
                comparison.base = arg;
                continue;
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
    build.filter = filter(&selected)?;
    let compares = tool.as_deref() == Some(DIFF);
    if compares && comparison.base.is_empty() {
        return Err(Error::NoBase);
    }
    match tool {
        Some(tool) => {
            let tool = if compares { "record".to_owned() } else { tool };
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
    Ok(match compares {
        true => Request::Compare(build, comparison),
        false => Request::Run(build),
    })
}

fn is_option(arg: &OsStr) -> bool {
    arg.as_encoded_bytes().starts_with(b"-")
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

/// Returns the filter for these globs, those after a `!` not to be selected.
fn filter(globs: &[OsString]) -> Result<Filter, Error> {
    let not_utf8 = |glob: &OsString| Error::NotUtf8(glob.to_string_lossy().into());
    let globs: Vec<_> = globs
        .iter()
        .map(|glob| glob.to_str().ok_or_else(|| not_utf8(glob)))
        .collect::<Result<_, _>>()?;
    let (not, traced): (Vec<&str>, Vec<_>) = globs.iter().partition(|it| it.starts_with('!'));
    let start = if traced.is_empty() {
        Filter::all()
    } else {
        Filter::none()
    };
    let filter = traced.into_iter().try_fold(start, Filter::trace);
    let filter = filter.and_then(|filter| {
        let mut not = not.into_iter().map(|glob| &glob[1..]);
        not.try_fold(filter, Filter::notrace)
    });
    filter.map_err(Error::Select)
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
        assert_eq!(build.filter, Filter::all());
        assert!(!build.quiet);
    }

    #[test]
    fn globs_add_up_wherever_they_stand() {
        let build = build("--select a::* run --select=!*::new app");
        let expected = Filter::none()
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
    fn a_comparison_takes_its_own_options_and_leaves_the_others_to_cargo() {
        let compared = |line: &str| match parsed(line) {
            Ok(Request::Compare(build, comparison)) => (build, comparison),
            other => panic!("{line}: {other:?}"),
        };
        let line = "diff --runs=7 main bench --bench a -F x -n5 --all --json --html p.html \
                    --fail-on c -- -F";
        let (build, comparison) = compared(line);
        assert_eq!(build.cargo_args, ["bench", "--bench", "a", "--", "-F"]);
        assert_eq!(build.under.map(|it| it.tool), Some("record".to_owned()));
        assert_eq!(comparison.base, "main");
        assert_eq!(comparison.runs, 7);
        assert_eq!(comparison.html, Some("p.html".into()));
        assert!(comparison.is_json && !comparison.is_markdown);
        let options = ["-F", "x", "-n", "5", "--all", "--json", "--fail-on", "c"];
        assert_eq!(comparison.options, options);

        let (build, comparison) = compared("diff HEAD~1 --markdown --release -- word");
        assert_eq!(build.cargo_args, ["run", "--release", "--", "word"]);
        assert_eq!(comparison.runs, 5);
        assert!(comparison.is_markdown);
        // The value of an option could be taken for the commit.
        for line in ["diff", "diff --bench a main", "diff -- main"] {
            assert!(matches!(parsed(line), Err(Error::NoBase)), "{line}");
        }
        for line in ["diff main --runs 0", "diff main --runs x"] {
            assert!(matches!(parsed(line), Err(Error::Runs(_))), "{line}");
        }
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
        let help = |line| match parsed(line) {
            Ok(Request::Help(text)) => text,
            other => panic!("{line}: {other:?}"),
        };
        assert_eq!(help("--help"), HELP);
        assert_eq!(help("build -h"), HELP);
        assert_eq!(help("diff main -h"), diff::HELP);
        assert!(matches!(parsed("-V"), Ok(Request::Version)));
    }
}
