//! Standard output: colours, and the width of the terminal.

use std::fmt;
use std::fs;
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

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

    /// Replaces the text; an empty one removes the line. A text that is wider than the terminal is
    /// cut: the rest would stay in the line below.
    pub(crate) fn show(self, text: &str) {
        if self.is_shown {
            let columns = terminal_size::terminal_size_of(io::stderr());
            let columns = columns.map_or(80, |(width, _)| usize::from(width.0));
            let text = cut(text, columns.saturating_sub(1));
            // A failure to show it is no reason to end.
            let _ = write!(io::stderr(), "\r{text}\x1b[K");
            IS_STATUS_SHOWN.store(!text.is_empty(), Ordering::Relaxed);
        }
    }
}

/// Relaxed: only for the looks of the terminal.
static IS_STATUS_SHOWN: AtomicBool = AtomicBool::new(false);

/// Removes the status line, if one is shown: other output follows.
#[inline]
pub(crate) fn remove_status() {
    if IS_STATUS_SHOWN.load(Ordering::Relaxed) {
        StatusLine { is_shown: true }.show("");
    }
}

/// Relaxed: only for the looks of the terminal.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// Gives the terminal to standard output, or to the pager that may read it: no progress is shown
/// any more.
#[inline]
pub(crate) fn take_terminal() {
    if !IS_TAKEN.load(Ordering::Relaxed) {
        IS_TAKEN.store(true, Ordering::Relaxed);
        remove_status();
    }
}

/// Returns true if output has begun, except to a file.
fn is_taken() -> bool {
    let is_file = || fs::metadata("/proc/self/fd/1").is_ok_and(|it| it.is_file());
    IS_TAKEN.load(Ordering::Relaxed) && !is_file()
}

/// A status line with the progress of some work, from its second second on.
#[derive(Debug)]
pub(crate) struct Progress {
    line: StatusLine,
    /// The work, and its object: `reading fgraph.data`.
    work: String,
    begun: Instant,
    shown: Duration,
}

impl Progress {
    /// The time after which the line appears, and the time between two texts.
    const AFTER: Duration = Duration::from_secs(1);
    const EVERY: Duration = Duration::from_millis(200);

    /// Begins some work.
    pub(crate) fn new(work: String) -> Self {
        Self {
            line: StatusLine::new(false),
            work,
            begun: Instant::now(),
            shown: Self::AFTER - Self::EVERY,
        }
    }

    /// Shows that this part of the work is done, from 0 to 1, with an estimate of the time that the
    /// rest takes.
    pub(crate) fn show(&mut self, part: f64) {
        if !self.line.is_shown() {
            return;
        }
        if part >= 1.0 {
            return remove_status();
        }
        let time = self.begun.elapsed();
        if time >= self.shown + Self::EVERY && !is_taken() {
            self.shown = time;
            self.line.show(&self.text(part, time));
        }
    }

    fn text(&self, part: f64, time: Duration) -> String {
        // Nothing is known of the rest before some of it is done.
        let left = match time.as_secs_f64() * (1.0 - part) / part {
            left if left < 90.0 => format!(", {:.0} s left", left.ceil()),
            left if left < 5400.0 => format!(", {:.0} min left", left / 60.0),
            left if left < 1e6 => format!(", {:.1} h left", left / 3600.0),
            _ => String::new(),
        };
        let percent = (part * 100.0) as u64;
        format!("fgraph: {}: {percent} %{left}", self.work)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        remove_status();
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
        take_terminal();
        self.out.write_all(text.as_bytes()).map_err(Error::Output)
    }

    /// Writes a line.
    pub(crate) fn line(&mut self, line: impl fmt::Display) -> Result<(), Error> {
        take_terminal();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_says_what_is_done_and_how_long_the_rest_takes() {
        let progress = Progress::new("reading it".to_owned());
        let text = |part, seconds| progress.text(part, Duration::from_secs_f64(seconds));
        assert_eq!(text(0.25, 2.0), "fgraph: reading it: 25 %, 6 s left");
        assert_eq!(text(0.1, 60.0), "fgraph: reading it: 10 %, 9 min left");
        assert_eq!(text(0.5, 7200.0), "fgraph: reading it: 50 %, 2.0 h left");
        assert_eq!(text(0.0, 2.0), "fgraph: reading it: 0 %");
        assert_eq!(text(f64::NAN, 2.0), "fgraph: reading it: 0 %");
    }
}
