//! What can go wrong, as one line for people and a number for programs.

use std::error::Error as _;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use fgraph_trace::source::SourceError;

use crate::text::escaped;

/// What `--help` says of exit codes.
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
  126  the program, or the process, cannot be recorded, or nothing of it can
  127  there is no such program";

/// Why a subcommand ended early.
#[derive(Debug)]
pub(crate) enum Error {
    /// What the command line asks for makes no sense.
    Usage(String),
    /// The file of defaults is wrong.
    Config {
        /// Its path.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// Why.
        why: String,
    },
    /// A file cannot be read, or is not what it should be.
    Input {
        /// Its path.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// What was asked for is not in the recording.
    Nothing(String),
    /// A recording is not whole, and was shown as far as it goes.
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
        /// Why.
        error: io::Error,
    },
    /// Standard output cannot be written.
    Output(io::Error),
    /// A process that runs cannot be recorded.
    Process {
        /// The process.
        process: u32,
        /// Why.
        why: String,
    },
    /// Programs have run of which nothing could be recorded, as was said before.
    Refused,
    /// A program cannot be started, or not with the agent inside.
    Program {
        /// Its path.
        path: PathBuf,
        /// Why.
        why: String,
        /// Whether there is no such program.
        is_missing: bool,
    },
}

impl Error {
    /// This build leaves `what` out, and `feature` of the package adds it.
    pub(crate) fn not_built_in(what: &str, feature: &str) -> Self {
        Self::Usage(format!(
            "this fgraph was built without {what}: cargo install fgraph-cli --features {feature}"
        ))
    }

    /// The events of a recording cannot be read.
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

    /// One line without control characters; `None` where there is nothing to say.
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
            Self::Refused => return None,
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

    /// What the process ends with, see [`EXIT_CODES`].
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Part { .. } => 1,
            Self::Usage(_) | Self::Config { .. } => 2,
            Self::Input { .. } | Self::Nothing(_) => 3,
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => 0,
            Self::Write { .. } | Self::Output(_) => 4,
            Self::Program { is_missing, .. } if *is_missing => 127,
            Self::Program { .. } | Self::Process { .. } | Self::Refused => 126,
        })
    }
}

/// The system's words for an error, without its number.
fn plain(error: &io::Error) -> String {
    let text = match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    };
    without_number(&text).to_owned()
}

/// The system's words for an error in a text that ends with its number.
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
