//! Exports traced calls in the formats of other programs.
//!
//! An [`Export`] reads the events of any [`Source`], be it a running program or a recording, and
//! writes them as they come. Memory depends on the number of threads, functions and distinct
//! stacks, and on the depth of calls, never on the number of events. Data that a format wants side
//! by side, but that comes one after the other, waits in temporary files.
//!
//! | [`Format`] | content | readers |
//! |---|---|---|
//! | `html` | a page with flame graph, timeline, table and slowest calls | browsers |
//! | `perfetto` | protobuf | ui.perfetto.dev, its trace processor |
//! | `chrome` | JSON | chrome://tracing, ui.perfetto.dev, speedscope |
//! | `firefox` | JSON | profiler.firefox.com |
//! | `speedscope` | JSON | speedscope.app |
//! | `folded` | text, a line for each stack | flame-graph scripts, inferno, speedscope |
//! | `svg` | a picture of a flame graph | browsers |
//! | `pprof` | protobuf, gzip | `go tool pprof`, stores of profiles |
//! | `callgrind` | text | KCachegrind, `callgrind_annotate` |
//! | `uftrace` | a directory | `uftrace replay`, `report`, `graph`, `tui` |
//! | `ctf` | a directory, CTF 1.8 | babeltrace2, Trace Compass |
//! | `csv` | text, a row for each call | spreadsheets, data frames, databases |
//! | `parquet` | Parquet, a row for each call, with the feature `fleet` | DuckDB, Spark, pandas |
//! | `otlp` | OpenTelemetry's protobuf, with the feature `fleet` | collectors |
//!
//! In every format each call begins and ends once. A call that is still running at the last event
//! ends with that event. A call whose end is lost ends with the last event of its thread at which
//! it certainly ran; formats with a place for that mark its end as `missing`. A return without an
//! entry is left out. The [`Summary`] counts all of these.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod directory;
mod formats;
mod names;
mod output;
mod place;
mod spool;
mod stacks;
mod states;

use std::fmt;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fgraph_analysis::calls::{Calls, Context, Exports, Stopped};
use fgraph_trace::Source;
use fgraph_trace::schedule::State;
use fgraph_trace::source::SourceError;

use directory::Directory;
pub use output::Summary;
use output::{Output, Trace};
use place::Place;

/// Format of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// One self-contained page: flame and icicle graph, timeline, table with histograms, slowest
    /// calls, search. The timeline has the 1,000,000 longest calls, the flame graph the 50,000
    /// stacks with the most time.
    Html,
    /// Perfetto's protobuf: tracks of calls with arguments, results and marks.
    Perfetto,
    /// The JSON of Chrome's tracing, which many programs read.
    Chrome,
    /// A processed profile of the Firefox Profiler. A sample lasts as long as a stack does not
    /// change, so calls that took no time do not show.
    Firefox,
    /// Speedscope's JSON: the calls of each thread, without marks and losses.
    Speedscope,
    /// A line for each stack with the nanoseconds that were spent in it, its process first. Stacks
    /// that took no time have no line; a `;` in a name becomes a `:`. Time in stacks of more than
    /// 1,024 functions counts for the outermost 1,024.
    Folded,
    /// [`Folded`](Self::Folded) as a picture.
    #[cfg(feature = "svg")]
    Svg,
    /// A profile in protobuf, compressed: calls and nanoseconds of each stack, with the process.
    /// Stacks of more than 1,024 functions count as in [`Folded`](Self::Folded).
    Pprof,
    /// The text of valgrind's callgrind: nanoseconds in functions, calls between them. The time of
    /// a call within the same call counts once.
    Callgrind,
    /// uftrace's directory, as of version 0.13. Calls that are nested deeper than 1,023 are left
    /// out, because the format has ten bits for the depth. Addresses are made up.
    Uftrace,
    /// A directory in the Common Trace Format 1.8: begin and end of calls, marks, losses.
    Ctf,
    /// A row for each call, at its end. The columns are process, thread, function, module, start by
    /// the monotonic clock, duration, own time (all in nanoseconds), depth from 0, caller, ending
    /// (`returned`, `unwound`, `missing` or `open`), and the recorded arguments and result. A call
    /// whose end is missing has no duration. A text that spreadsheets would take for a formula has
    /// an apostrophe before it.
    Csv,
    /// A row for each call, at its end. The columns are host, process, program, thread, function,
    /// module, start (in nanoseconds since 1970), duration, own time (both in nanoseconds), depth
    /// from 0, caller, and ending. Texts are as they were recorded.
    #[cfg(feature = "fleet")]
    Parquet,
    /// A span for each call, at its end, as OpenTelemetry's `TracesData`, which collectors also
    /// accept by HTTP. A call without a call around it begins a trace; marks and losses are spans
    /// that take no time.
    #[cfg(feature = "fleet")]
    Otlp,
}

impl Format {
    /// All formats.
    pub const ALL: &'static [Self] = &[
        Self::Html,
        Self::Perfetto,
        Self::Chrome,
        Self::Firefox,
        Self::Speedscope,
        Self::Folded,
        #[cfg(feature = "svg")]
        Self::Svg,
        Self::Pprof,
        Self::Callgrind,
        Self::Uftrace,
        Self::Ctf,
        Self::Csv,
        #[cfg(feature = "fleet")]
        Self::Parquet,
        #[cfg(feature = "fleet")]
        Self::Otlp,
    ];

    /// Returns the name of the format, in lower case.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Html => "html",
            Self::Perfetto => "perfetto",
            Self::Chrome => "chrome",
            Self::Firefox => "firefox",
            Self::Speedscope => "speedscope",
            Self::Folded => "folded",
            #[cfg(feature = "svg")]
            Self::Svg => "svg",
            Self::Pprof => "pprof",
            Self::Callgrind => "callgrind",
            Self::Uftrace => "uftrace",
            Self::Ctf => "ctf",
            Self::Csv => "csv",
            #[cfg(feature = "fleet")]
            Self::Parquet => "parquet",
            #[cfg(feature = "fleet")]
            Self::Otlp => "otlp",
        }
    }

    fn names() -> String {
        let names: Vec<&str> = Self::ALL.iter().map(|format| format.name()).collect();
        names.join(" ")
    }

    /// True if the format adds up the time of stacks, or can show them by it.
    #[must_use]
    pub fn adds_up(self) -> bool {
        match self {
            Self::Html | Self::Speedscope | Self::Folded | Self::Pprof | Self::Callgrind => true,
            #[cfg(feature = "svg")]
            Self::Svg => true,
            _ => false,
        }
    }

    /// True if the format is a text with all calls, whose size grows with their number.
    #[must_use]
    pub fn has_all_calls(self) -> bool {
        matches!(self, Self::Chrome | Self::Speedscope | Self::Csv)
    }

    /// True if the format is a directory of files.
    #[must_use]
    pub fn is_directory(self) -> bool {
        matches!(self, Self::Uftrace | Self::Ctf)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(name: &str) -> Result<Self, UnknownFormat> {
        let mut all = Self::ALL.iter();
        let found = all.find(|format| format.name() == name);
        found.copied().ok_or_else(|| UnknownFormat(name.to_owned()))
    }
}

/// No format has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown format {0:?}; there are: {all}", all = Format::names())]
pub struct UnknownFormat(String);

/// Reason why an export failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The source cannot give more events.
    #[error("the events cannot be read")]
    Source(#[source] SourceError),
    /// The file or directory could not be made.
    #[error("{} cannot be made", path.display())]
    Create {
        /// Path of the file or directory.
        path: PathBuf,
        /// Error of the system.
        #[source]
        error: io::Error,
    },
    /// The export, or a temporary file, could not be written.
    #[error("the export cannot be written")]
    Write(#[source] io::Error),
    /// The format is a directory, which cannot be written as a stream of bytes.
    #[error("{0} is a directory and needs a path")]
    IsDirectory(Format),
}

/// Counts the bytes that it passes on.
struct Counted<W> {
    out: W,
    written: Arc<AtomicU64>,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = self.out.write(bytes)?;
        self.written.fetch_add(len as u64, Ordering::Relaxed);
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Returns the error for which an export stops.
fn stopped(reason: Stopped<io::Error>) -> ExportError {
    match reason {
        Stopped::Source(error) => ExportError::Source(error),
        Stopped::Visitor(error) => ExportError::Write(error),
    }
}

/// Writes the events of one source.
///
/// ```
/// use std::sync::Arc;
///
/// use fgraph_export::{Export, Format};
/// use fgraph_trace::Live;
/// use fgraph_trace::event::{Kind, call};
/// use fgraph_trace::ring::{RingOptions, Rings};
///
/// let rings = Arc::new(Rings::create(&RingOptions::default())?);
/// let writer = rings.writer(std::process::id(), 1).expect("there are rings enough");
/// let now = rings.clock().first().ticks;
/// writer.call(call(Kind::Entry, 7), now);
/// writer.call(call(Kind::Return, 7), now + 100);
/// rings.finish();
///
/// let mut source = Live::watch(rings.clone());
/// let mut export = Export::to_writer(Format::Csv, std::io::stdout())?;
/// export.advance(&mut source)?;
/// let summary = export.finish(&source)?;
/// assert_eq!((summary.calls, summary.open_calls), (1, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Export {
    format: Format,
    calls: Calls<Exports>,
    output: Box<dyn Output>,
    /// Bytes that were written.
    written: Arc<AtomicU64>,
    /// The most bytes.
    limit: Option<u64>,
    command: Vec<String>,
    /// See [`Trace::weight`].
    weight: Option<(&'static str, &'static str)>,
    /// The file, which gets its name at the end.
    place: Option<Place>,
    /// The directory, for a format that is one.
    directory: Option<Directory>,
}

impl fmt::Debug for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Export")
            .field("format", &self.format)
            .finish_non_exhaustive()
    }
}

impl Export {
    /// Creates an export to a file, which replaces an existing one, or to a directory, which must
    /// be empty if it exists.
    ///
    /// The file appears, or is replaced, once the export is [finished](Self::finish), if the file
    /// system supports files without a name. So do the files in a directory. Dropping an unfinished
    /// directory export leaves nothing.
    ///
    /// Temporary files are made beside it.
    ///
    /// # Errors
    ///
    /// Fails if the file or the directory cannot be made.
    pub fn create(format: Format, path: impl AsRef<Path>) -> Result<Self, ExportError> {
        let path = path.as_ref();
        let failed = |error| ExportError::Create {
            path: path.to_owned(),
            error,
        };
        if format.is_directory() {
            let directory = Directory::make(path).map_err(failed)?;
            let output: Box<dyn Output> = match format {
                Format::Uftrace => Box::new(formats::Uftrace::new(directory.files())),
                _ => Box::new(formats::Ctf::new(directory.files())),
            };
            let mut this = Self::of(format, output);
            this.directory = Some(directory);
            return Ok(this);
        }
        let (file, place) = place::open(path).map_err(failed)?;
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let mut this = Self::to(format, Box::new(file), Some(directory))?;
        this.place = place;
        Ok(this)
    }

    /// Creates an export to any writer of bytes. Temporary files are in the system's place for
    /// them.
    ///
    /// # Errors
    ///
    /// [`IsDirectory`](ExportError::IsDirectory) if the format is one.
    pub fn to_writer(
        format: Format,
        out: impl Write + Send + 'static,
    ) -> Result<Self, ExportError> {
        Self::to(format, Box::new(out), None)
    }

    fn to(
        format: Format,
        out: Box<dyn Write + Send>,
        directory: Option<&Path>,
    ) -> Result<Self, ExportError> {
        const BUFFER: usize = 1 << 17;
        let written = Arc::default();
        let out: Box<dyn Write + Send> = Box::new(Counted {
            out,
            written: Arc::clone(&written),
        });
        let out: formats::Out = BufWriter::with_capacity(BUFFER, out);
        let output: io::Result<Box<dyn Output>> = match format {
            Format::Html => Ok(Box::new(formats::Html::new(out))),
            Format::Perfetto => Ok(Box::new(formats::Perfetto::new(out))),
            Format::Chrome => Ok(Box::new(formats::Chrome::new(out))),
            Format::Firefox => formats::Firefox::new(out, directory).map(|it| Box::new(it) as _),
            Format::Speedscope => {
                formats::Speedscope::new(out, directory).map(|it| Box::new(it) as _)
            }
            Format::Folded => Ok(Box::new(formats::Totals::new(out, formats::folded))),
            #[cfg(feature = "svg")]
            Format::Svg => Ok(Box::new(formats::Totals::new(out, formats::svg))),
            Format::Pprof => Ok(Box::new(formats::Totals::new(out, formats::pprof))),
            Format::Callgrind => Ok(Box::new(formats::Totals::new(out, formats::callgrind))),
            Format::Csv => Ok(Box::new(formats::Csv::new(out))),
            #[cfg(feature = "fleet")]
            Format::Parquet => formats::Parquet::new(out).map(|it| Box::new(it) as _),
            #[cfg(feature = "fleet")]
            Format::Otlp => Ok(Box::new(formats::Otlp::new(out))),
            Format::Uftrace | Format::Ctf => return Err(ExportError::IsDirectory(format)),
        };
        let output = output.map_err(ExportError::Write)?;
        Ok(Self {
            written,
            ..Self::of(format, output)
        })
    }

    fn of(format: Format, output: Box<dyn Output>) -> Self {
        Self {
            format,
            calls: Calls::default(),
            output,
            written: Arc::default(),
            limit: None,
            command: Vec::new(),
            weight: None,
            place: None,
            directory: None,
        }
    }

    /// Sets the name of the machine that the events are from, which the formats `parquet` and
    /// `otlp` contain. Call this before the first event, else some of them may lack it.
    pub fn set_host(&mut self, host: &str) {
        self.output.set_host(host);
    }

    /// Sets the command line of the recorded program, which the formats `callgrind` and `uftrace`
    /// contain.
    pub fn set_command(&mut self, command: &[String]) {
        self.command = command.to_vec();
    }

    /// Takes no more events once the file has about this number of bytes: see
    /// [`is_full`](Self::is_full). It grows with the events in a format that
    /// [has them all](Format::has_all_calls).
    pub fn limit(&mut self, bytes: u64) {
        self.limit = Some(bytes);
    }

    /// Returns true if the export has the bytes that it is [limited](Self::limit) to.
    #[must_use]
    pub fn is_full(&self) -> bool {
        let bytes = || self.written.load(Ordering::Relaxed) + self.output.waiting();
        self.limit.is_some_and(|limit| bytes() >= limit)
    }

    /// Counts only the time in which threads had one state, such as blocked, where a format
    /// [adds up](Format::adds_up) times. Call this before the first event. Other formats show all
    /// time, and so does the timeline of `html`.
    ///
    /// The states are those of [`Source::schedule`]; see [`Summary::unknown_threads`].
    pub fn count_only(&mut self, state: State) {
        if self.format.adds_up() {
            self.calls.count_only(Some(state));
        }
    }

    /// Makes `html`, `folded`, `svg` and `pprof` show something else than times: a nanosecond of
    /// the source's clock is one `unit` of `kind`, such as `bytes` of `live`. Call this before the
    /// first event.
    pub fn weigh(&mut self, kind: &'static str, unit: &'static str) {
        self.weight = Some((kind, unit));
    }

    /// Writes all events that the source gives now, and returns their number. There may be more if
    /// the export [is full](Self::is_full).
    ///
    /// For a running program, call this repeatedly, always with the same source.
    ///
    /// # Errors
    ///
    /// Errors of the source and of writing. After one, the export is incomplete.
    pub fn advance(&mut self, source: &mut impl Source) -> Result<u64, ExportError> {
        let mut events = 0;
        while !self.is_full()
            && self
                .calls
                .next(source, &mut *self.output)
                .map_err(stopped)?
        {
            events += 1;
        }
        Ok(events)
    }

    /// Ends the running calls, and writes the end of the format. Without this, most formats are
    /// incomplete.
    ///
    /// # Errors
    ///
    /// Errors of writing.
    pub fn finish(mut self, source: &impl Source) -> Result<Summary, ExportError> {
        let (context, calls) = (Context::of(source), &mut self.calls);
        let ended = calls.finish(&context, &mut *self.output);
        ended.map_err(ExportError::Write)?;
        let clock = calls.clock(&context);
        let (first, last) = calls.span.unwrap_or((0, 0));
        let time = |ticks| calls.span.map_or(0, |_| clock.monotonic(ticks));
        let threads: Vec<_> = calls.thread_ids().collect();
        let lives = calls
            .threads
            .iter()
            .map(|thread| (thread.first, thread.last));
        let written = self.output.finish(&Trace {
            threads: &threads,
            functions: &calls.functions,
            command: &self.command,
            names: context.names,
            clock: &clock,
            start: time(first),
            end: time(last),
            schedule: context.schedule,
            measured: calls.state(),
            weight: self.weight,
            lives: &lives.collect::<Vec<_>>(),
        });
        written.map_err(ExportError::Write)?;
        let summary = Summary::of(&calls.counts, calls.unknown_threads());
        let published = self.place.map_or(Ok(()), Place::publish);
        published.map_err(ExportError::Write)?;
        let published = self.directory.map_or(Ok(()), Directory::publish);
        published.map_err(ExportError::Write)?;
        Ok(summary)
    }
}

/// Writes all events that a source gives now.
///
/// # Errors
///
/// Same as for [`Export`].
pub fn export(
    source: &mut impl Source,
    format: Format,
    path: impl AsRef<Path>,
) -> Result<Summary, ExportError> {
    let mut export = Export::create(format, path)?;
    export.advance(source)?;
    export.finish(source)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_format_goes_by_its_name() {
        for &format in Format::ALL {
            assert_eq!(format.name().parse(), Ok(format));
        }
        let message = "perfeto".parse::<Format>().unwrap_err().to_string();
        let expected = "unknown format \"perfeto\"; there are: html perfetto chrome firefox \
                        speedscope folded svg pprof callgrind uftrace ctf csv parquet otlp";
        assert_eq!(message, expected);
    }

    #[test]
    fn a_directory_with_something_in_it_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        assert!(Export::create(Format::Ctf, directory.path()).is_ok());
        fs::write(directory.path().join("mine"), "text").unwrap();
        let error = Export::create(Format::Ctf, directory.path()).unwrap_err();
        assert!(matches!(&error, ExportError::Create { .. }), "{error:?}");
        let why = std::error::Error::source(&error).unwrap().to_string();
        assert!(why.contains("not empty"), "{why}");
        let error = Export::to_writer(Format::Uftrace, io::sink()).unwrap_err();
        assert_eq!(error.to_string(), "uftrace is a directory and needs a path");
    }
}
