//! Errors outside of cargo and rustc themselves.

use std::fmt::{self, Display, Formatter};
use std::io;
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};

use fgraph::FilterError;
use fgraph_x86_64::nop::NopError;

/// Section in which the compiler must list the patchable entries.
pub(crate) const SECTION: &str = "__patchable_function_entries";

/// Exit code of cargo for any error.
const FAILURE: u8 = 101;

/// Exit code of a comparison for any error.
const NOT_COMPARED: u8 = 1;

/// Reason why nothing was built.
#[derive(Debug)]
pub(crate) enum Error {
    /// The command line has no subcommand.
    NoCommand,
    /// The command line has a subcommand that builds no program to be traced.
    UnknownCommand(String),
    /// The command line has an option of `record`, `live` and `top`, but none of these.
    NoTool(&'static str),
    /// The command line watches a program, but runs none.
    NothingRuns,
    /// The last option lacks its value.
    NoValue(&'static str),
    /// A glob of `--select` was refused.
    Select(FilterError),
    /// An argument is not UTF-8.
    NotUtf8(String),
    /// A program could not be started.
    Start(PathBuf, io::Error),
    /// Cargo does not find the workspace. It has printed the reason, and this is its exit code.
    Workspace(u8),
    /// Cargo's description of the workspace does not name a target directory.
    NoTargetDirectory,
    /// Cargo's description of the workspace cannot be parsed.
    Metadata(serde_json::Error),
    /// The path of the target directory has white space, at which rustc splits the options for
    /// LLVM.
    WhiteSpace(PathBuf),
    /// A file or directory could not be written or read.
    File(PathBuf, io::Error),
    /// The compiler does not make patchable function entries.
    Compiler {
        /// Output of `rustc --version`.
        version: String,
        /// The optimization level of the trial.
        opt_level: u8,
        /// Part of the output that is missing.
        missing: Missing,
    },
    /// A comparison has no commit, or it stands behind cargo's options.
    NoBase,
    /// This is no number of recordings.
    Runs(String),
    /// `fgraph diff` refuses its options, with this message.
    Options(String),
    /// Git has failed, with this message.
    Git(String),
    /// The workspace is in no repository, as git says.
    NoRepository(String),
    /// The repository has no commit of this name.
    NoCommit(String),
    /// The repository of a submodule lacks a commit.
    Submodule {
        /// The submodule.
        path: PathBuf,
        /// Its commit.
        commit: String,
    },
    /// The old version lacks the directory of the workspace.
    NoDirectory {
        /// The old version.
        base: String,
        /// The path below the root of the repository.
        directory: PathBuf,
    },
    /// A version does not build. Cargo has printed the reason.
    Build(String),
    /// A program of a version has failed, or could not be recorded.
    Record {
        /// The version.
        version: String,
        /// The end of cargo.
        status: ExitStatus,
        /// All that was printed.
        said: String,
    },
    /// No program was recorded in both versions.
    NothingRecorded,
}

/// Part that is missing in the output.
#[derive(Debug)]
pub(crate) enum Missing {
    /// All of it: the compiler failed, for this reason.
    Object(String),
    /// An object that can be read.
    Readable(object::Error),
    /// The section that lists the entries, with something in it.
    Section,
    /// The function itself.
    Function,
    /// The NOP at its entry.
    Nop(NopError),
}

impl Display for Missing {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Object(why) => write!(f, "rustc refuses: {why}"),
            Self::Readable(error) => write!(f, "its object cannot be read: {error}"),
            Self::Section => write!(f, "the object has no section {SECTION}"),
            Self::Function => write!(f, "the object has no function"),
            Self::Nop(error) => write!(f, "the function has no NOP at its entry: it {error}"),
        }
    }
}

impl Error {
    pub(crate) fn exit_code(&self) -> ExitCode {
        match *self {
            Self::Workspace(code) => ExitCode::from(code),
            Self::Options(_)
            | Self::Git(_)
            | Self::NoRepository(_)
            | Self::NoCommit(_)
            | Self::Submodule { .. }
            | Self::NoDirectory { .. }
            | Self::Build(_)
            | Self::Record { .. }
            | Self::NothingRecorded => ExitCode::from(NOT_COMPARED),
            _ => ExitCode::from(FAILURE),
        }
    }
}

impl Display for Error {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCommand => write!(f, "no subcommand; see `cargo fgraph --help`"),
            Self::UnknownCommand(name) => {
                write!(f, "no such subcommand: `{name}`; see `cargo fgraph --help`")
            }
            Self::NoTool(option) => {
                write!(f, "`{option}` is for `record`, `live`, `top` and `diff`")
            }
            Self::NothingRuns => write!(f, "`build` runs nothing that could be watched"),
            Self::NoValue(option) => write!(f, "a value must follow `{option}`"),
            Self::Select(error) => write!(f, "--select: {error}"),
            Self::NotUtf8(text) => write!(f, "not UTF-8: `{text}`"),
            Self::Start(program, error) => write!(f, "cannot run {}: {error}", program.display()),
            Self::Workspace(_) => write!(f, "cargo does not find a workspace to build"),
            Self::NoTargetDirectory => {
                write!(f, "`cargo metadata` does not name a target directory")
            }
            Self::Metadata(error) => write!(f, "`cargo metadata` prints no JSON: {error}"),
            Self::WhiteSpace(path) => write!(
                f,
                "rustc cannot pass a path with white space on to LLVM: {}\n\
                 choose another target directory with --target-dir",
                path.display()
            ),
            Self::File(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Compiler {
                version,
                opt_level,
                missing,
            } => write!(
                f,
                "this compiler does not make patchable function entries: {version}\n\
                 a trial with `-C llvm-args=--forceattrs-csv-path=…` at opt-level {opt_level}: \
                 {missing}"
            ),
            Self::NoBase => write!(
                f,
                "no commit to compare with: `cargo fgraph diff BASE`, with BASE before cargo's \
                 options"
            ),
            Self::Runs(text) => write!(f, "--runs: not a number above 0: `{text}`"),
            Self::Options(said) => write!(f, "fgraph diff says:\n{said}"),
            Self::Git(said) => write!(f, "git says: {said}"),
            Self::NoRepository(said) => write!(
                f,
                "the package is in no working tree of git, which would have its old version: \
                 {said}"
            ),
            Self::NoCommit(base) => write!(
                f,
                "`{base}` is no commit here; if it is one elsewhere, fetch it, and in CI all \
                 of the history"
            ),
            Self::Submodule { path, commit } => write!(
                f,
                "the old version needs commit {commit} of submodule {path}, which is not here: git \
                 -C {path} fetch",
                path = path.display()
            ),
            Self::NoDirectory { base, directory } => {
                write!(f, "{base} has no directory {}", directory.display())
            }
            Self::Build(version) => {
                write!(f, "{version} cannot be built, see cargo's message above")
            }
            Self::Record {
                version,
                status,
                said,
            } => write!(
                f,
                "a program of {version} has failed ({status}), or cannot be recorded:\n{said}"
            ),
            Self::NothingRecorded => write!(f, "no program was recorded in both versions"),
        }
    }
}
