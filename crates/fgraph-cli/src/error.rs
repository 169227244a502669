//! Errors, as one line for people and an exit code for programs.

use std::env;
use std::error::Error as _;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use fgraph_trace::source::SourceError;

use crate::text::escaped;

/// The text about exit codes in `--help`.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0  done; also if whoever read the output has seen enough
  1  something else went wrong, or a recording is cut off or damaged: what is
     left of it was shown
  2  the command line is wrong, or the file of defaults
  3  a recording or another file cannot be read, or has not what was asked for
  4  the output cannot be written

Where a program is started, the code is the program's own, and a signal that has
ended it ends this command; else
  126  the program, or the process, cannot be recorded, or nothing of it can;
       or one of several processes cannot, and the others were recorded
  127  there is no such program";

/// The reason that a subcommand ended early.
#[derive(Debug)]
pub(crate) enum Error {
    /// The command line makes no sense.
    Usage(String),
    /// The file of defaults is wrong.
    Config {
        /// Its path.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// The reason.
        why: String,
    },
    /// A file cannot be read, or has the wrong content.
    Input {
        /// Its path.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// The requested item is not in the recording.
    Nothing(String),
    /// A recording is incomplete, and was shown as far as it goes.
    Part {
        /// Its path.
        path: PathBuf,
        /// The part that is missing, in words.
        missing: String,
    },
    /// A file cannot be written.
    Write {
        /// Its path.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// Standard output cannot be written.
    Output(io::Error),
    /// A running process cannot be recorded.
    Process {
        /// The process.
        process: u32,
        /// The reason.
        why: String,
    },
    /// The recording could not be written, as was reported when it happened.
    Unwritten,
    /// Programs have run that could not be recorded at all, as was reported before.
    Refused,
    /// The names that were given select no function, so nothing was traced.
    Unmatched,
    /// A program cannot be started, or not with the agent inside.
    Program {
        /// Its path.
        path: PathBuf,
        /// The reason.
        why: String,
        /// True if there is no such program.
        is_missing: bool,
    },
}

impl Error {
    /// This build leaves `what` out, and `feature` of the package adds it.
    pub(crate) fn not_built_in(what: &str, feature: &str) -> Self {
        Self::Usage(format!(
            "this fgraph was built without {what}: build fgraph-cli with --features {feature}"
        ))
    }

    /// Makes the error for events of a recording that cannot be read.
    pub(crate) fn source(path: impl Into<PathBuf>, error: SourceError) -> Self {
        let path = path.into();
        match error {
            SourceError::Io(error) => Self::Input { path, error },
            other => Self::Input {
                path,
                error: io::Error::other(other),
            },
        }
    }

    /// Returns the error of the directory for temporary files.
    pub(crate) fn temporary(error: &io::Error) -> Self {
        let why = plain(error);
        Self::Write {
            path: env::temp_dir(),
            error: io::Error::other(format!(
                "no temporary file can be made there: {why}; TMPDIR names another directory"
            )),
        }
    }

    /// Returns one line without control characters; `None` if there is nothing to report.
    pub(crate) fn message(&self) -> Option<String> {
        let text = match self {
            Self::Usage(what) | Self::Nothing(what) => what.clone(),
            Self::Config { path, line, why } => format!("{}:{line}: {why}", path.display()),
            Self::Input { path, error } | Self::Write { path, error }
                if error.kind() == io::ErrorKind::IsADirectory =>
            {
                format!("{} is a directory", path.display())
            }
            Self::Write { path, error } if error.kind() == io::ErrorKind::NotFound => {
                let parent = path.parent().unwrap_or(path).display();
                format!(
                    "{} cannot be made: there is no directory {parent}",
                    path.display()
                )
            }
            Self::Input { path, error } | Self::Write { path, error } => {
                format!("{}: {}", path.display(), plain(error))
            }
            Self::Part { path, missing } => format!("{} {missing}", path.display()),
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => return None,
            Self::Refused | Self::Unwritten => return None,
            Self::Unmatched => {
                "no call was traced: the names that were given select no function".to_owned()
            }
            Self::Output(error) => format!("the output cannot be written: {}", plain(error)),
            Self::Process { process, why } => {
                format!("process {process} cannot be recorded: {why}")
            }
            Self::Program { path, why, .. } => {
                format!("{} cannot be recorded: {why}", path.display())
            }
        };
        Some(escaped(&text).into_owned())
    }

    /// Reports it.
    pub(crate) fn say(&self) {
        if let Some(text) = self.message() {
            say!("fgraph: {text}");
        }
    }

    /// Returns the exit code of the process, see [`EXIT_CODES`].
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Part { .. } => 1,
            Self::Usage(_) | Self::Config { .. } => 2,
            Self::Input { .. } | Self::Nothing(_) => 3,
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => 0,
            Self::Write { .. } | Self::Output(_) | Self::Unwritten => 4,
            Self::Program { is_missing, .. } if *is_missing => 127,
            Self::Program { .. } | Self::Process { .. } | Self::Refused | Self::Unmatched => 126,
        })
    }
}

/// Returns the system's text for an error, without its number.
fn plain(error: &io::Error) -> String {
    let text = match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    };
    without_number(&text).to_owned()
}

/// Returns the system's text for an error, from a text that ends with its number.
pub(crate) fn without_number(text: &str) -> &str {
    text.find(" (os error ").map_or(text, |end| &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_whatever_the_path_is() {
        let error = Error::Input {
            path: "a\n\x1b[31m".into(),
            error: io::Error::from_raw_os_error(2),
        };
        let expected = r"a\n\x1b[31m: No such file or directory";
        assert_eq!(error.message().as_deref(), Some(expected));
    }

    #[test]
    fn a_directory_is_named_as_one() {
        let error = Error::Write {
            path: "/tmp".into(),
            error: io::ErrorKind::IsADirectory.into(),
        };
        assert_eq!(error.message().as_deref(), Some("/tmp is a directory"));
    }

    #[test]
    fn a_reader_that_has_seen_enough_is_no_error() {
        let error = Error::Output(io::ErrorKind::BrokenPipe.into());
        assert_eq!(error.message(), None);
        assert_eq!(error.exit_code(), ExitCode::SUCCESS);
    }
}
