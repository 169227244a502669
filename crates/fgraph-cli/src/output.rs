//! Standard output: colours, and the width of the terminal.

use std::fmt;
use std::fs;
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use clap::ValueEnum;

use crate::error::Error;
use crate::text::cut;

/// When to colour output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal, unless the variable NO_COLOR is set, or TERM is `dumb`.
    Auto,
    Always,
    Never,
}

/// Relaxed: set once, before anything is written.
static IS_COLORED: AtomicBool = AtomicBool::new(false);

/// Decides for the whole process.
pub(crate) fn set_color(color: Color) {
    let is_colored = match color {
        Color::Always => true,
        Color::Never => false,
        Color::Auto => {
            let is_refused = std::env::var_os("NO_COLOR").is_some_and(|it| !it.is_empty());
            !is_refused && is_screen()
        }
    };
    IS_COLORED.store(is_colored, Ordering::Relaxed);
}

/// Returns true if standard output is a terminal that understands escape sequences.
pub(crate) fn is_screen() -> bool {
    io::stdout().is_terminal() && !is_dumb()
}

/// Returns true if the terminal shows escape sequences as text.
fn is_dumb() -> bool {
    std::env::var_os("TERM").is_some_and(|it| it == "dumb")
}

/// A line on a terminal that is written again and again, on standard error.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StatusLine {
    is_shown: bool,
}

impl StatusLine {
    /// Makes one that is shown if standard error is a terminal.
    pub(crate) fn new(is_quiet: bool) -> Self {
        Self {
            is_shown: !is_quiet && !is_dumb() && io::stderr().is_terminal(),
        }
    }

    pub(crate) fn is_shown(self) -> bool {
        self.is_shown
    }

    /// Replaces the text. One that is wider than the terminal is cut: the rest would stay in the
    /// line below.
    pub(crate) fn show(self, text: &str) {
        if self.is_shown {
            let columns = terminal_size::terminal_size_of(io::stderr());
            let columns = columns.map_or(80, |(width, _)| usize::from(width.0));
            let text = cut(text, columns.saturating_sub(1));
            // A failure to show it is no reason to end.
            let _ = write!(io::stderr(), "\r{text}\x1b[K");
        }
    }
}

/// Fails if an output would replace a file that is read.
pub(crate) fn must_differ<'p>(
    output: &Path,
    inputs: impl IntoIterator<Item = &'p PathBuf>,
) -> Result<(), Error> {
    let id = |path: &Path| {
        let found = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
        Some((found.dev(), found.ino()))
    };
    let own = id(output);
    match own.is_some() && inputs.into_iter().any(|input| id(input) == own) {
        true => Err(Error::Usage(format!(
            "{} is the file that is read: name another one for the output",
            output.display()
        ))),
        false => Ok(()),
    }
}

/// The style of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    Bold,
    Dim,
}

impl Style {
    fn code(self) -> &'static str {
        match self {
            Self::Bold => "1",
            Self::Dim => "2",
        }
    }

    /// Returns the text, in this style if output is coloured.
    pub(crate) fn paint(self, text: impl fmt::Display) -> String {
        if IS_COLORED.load(Ordering::Relaxed) {
            format!("\x1b[{}m{text}\x1b[0m", self.code())
        } else {
            text.to_string()
        }
    }
}

/// Standard output, written in large pieces.
#[derive(Debug)]
pub(crate) struct Out {
    out: BufWriter<Stdout>,
    /// The columns of the terminal; `None` if output goes elsewhere and lines are never cut.
    pub(crate) width: Option<usize>,
}

impl Out {
    pub(crate) fn new() -> Self {
        let width = io::stdout().is_terminal().then(|| {
            let asked = std::env::var("COLUMNS").ok();
            let asked = asked.and_then(|columns| columns.parse().ok());
            let found = || terminal_size::terminal_size().map(|(width, _)| width.0.into());
            asked.or_else(found).unwrap_or(80)
        });
        Self {
            out: BufWriter::with_capacity(1 << 16, io::stdout()),
            width,
        }
    }

    /// Writes text as it is.
    pub(crate) fn text(&mut self, text: &str) -> Result<(), Error> {
        self.out.write_all(text.as_bytes()).map_err(Error::Output)
    }

    /// Writes a line.
    pub(crate) fn line(&mut self, line: impl fmt::Display) -> Result<(), Error> {
        writeln!(self.out, "{line}").map_err(Error::Output)
    }

    /// Writes buffered output.
    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        self.out.flush().map_err(Error::Output)
    }

    /// Writes the rest of the output. Without it the end may be missing.
    pub(crate) fn finish(mut self) -> Result<(), Error> {
        self.flush()
    }
}
