//! `fgraph export`: converts a recording for other programs.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::builder::{PossibleValue, PossibleValuesParser};
use fgraph_export::{Export, ExportError, Format, Summary};
use fgraph_trace::Source;
use fgraph_trace::clock::Clock;
use fgraph_trace::names::Names;
use fgraph_trace::recording::Info;
use fgraph_trace::schedule::{Schedule, State};
use fgraph_trace::source::{Event, SourceError, Upcoming};

use crate::error::Error;
use crate::input::{Input, Measure, Part, Tasks, check_whole, parse_size, readable, say_unknown};
use crate::launch::interrupt::{Interrupts, end_by};
use crate::output::{must_differ, take_terminal};
use crate::text::{self, grouped, size};

/// Write a recording in the format of another program
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fgraph export html                     writes fgraph.html, a page to look at in any browser
  fgraph export perfetto -o trace.pftrace
  fgraph export html --time blocked      in its flame graph, only time in which threads waited
  fgraph export chrome --limit 500M      the calls from the beginning that this has room for
  fgraph export folded -o - | flamegraph.pl > flames.svg")]
pub(crate) struct Args {
    /// The format
    #[arg(value_parser = formats(FORMATS))]
    format: String,
    #[command(flatten)]
    input: Input,
    /// Add up this time of calls: html (except its timeline), speedscope, folded, svg, pprof,
    /// callgrind
    #[arg(long, value_name = "TIME", default_value = "wall")]
    time: Measure,
    /// The output file; `-` for standard output
    #[arg(short, long, value_name = "PATH")]
    output: Option<PathBuf>,
    /// End at about this size, as 500K, 100M or 2G: chrome, csv, speedscope
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    limit: Option<u64>,
    #[command(flatten)]
    tasks: Tasks,
}

/// All formats, including those that may not be built in.
const FORMATS: [&str; 14] = [
    "html",
    "perfetto",
    "chrome",
    "firefox",
    "speedscope",
    "folded",
    "svg",
    "pprof",
    "callgrind",
    "uftrace",
    "ctf",
    "csv",
    "parquet",
    "otlp",
];

/// Returns a parser of formats. Help and completions have only those that are built in.
pub(super) fn formats<const N: usize>(names: [&'static str; N]) -> PossibleValuesParser {
    let value = |name: &'static str| {
        // `fgraph heap` writes massif itself.
        let is_absent = name != "massif" && name.parse::<Format>().is_err();
        PossibleValue::new(name).hide(is_absent)
    };
    PossibleValuesParser::new(names.map(value))
}

/// Returns the default file name of an export.
fn default_name(format: Format) -> &'static str {
    match format.name() {
        "perfetto" => "fgraph.pftrace",
        // To speedscope a name that ends with `.chrome.json` means another format.
        "chrome" => "fgraph.trace.json",
        "firefox" => "fgraph.firefox.json",
        "speedscope" => "fgraph.speedscope.json",
        "folded" => "fgraph.folded",
        "svg" => "fgraph.svg",
        "pprof" => "fgraph.pb.gz",
        "callgrind" => "callgrind.out.fgraph",
        "uftrace" => "uftrace.data",
        "ctf" => "fgraph.ctf",
        "csv" => "fgraph.csv",
        "parquet" => "fgraph.parquet",
        "otlp" => "fgraph.otlp",
        _ => "fgraph.html",
    }
}

/// Returns the format with a name, or says where to get it.
pub(super) fn format(name: &str) -> Result<Format, Error> {
    name.parse().map_err(|error| {
        let feature = match name {
            "svg" => "svg",
            "parquet" | "otlp" => "fleet",
            _ => return Error::Usage(format!("{error}")),
        };
        Error::not_built_in(name, feature)
    })
}

/// Events up to an interrupt.
struct Interruptible<'s, S>(&'s mut S, &'s Interrupts);

impl<S: Source> Source for Interruptible<'_, S> {
    fn next(&mut self) -> Result<Option<Event<'_>>, SourceError> {
        match self.1.count() {
            0 => self.0.next(),
            _ => Err(SourceError::Io(io::ErrorKind::Interrupted.into())),
        }
    }

    fn upcoming(&self) -> Option<Upcoming<'_>> {
        self.0.upcoming()
    }

    fn is_over(&self) -> bool {
        self.0.is_over()
    }

    fn clock(&self) -> &Clock {
        self.0.clock()
    }

    fn schedule(&self) -> Option<&Schedule> {
        self.0.schedule()
    }

    fn names(&self) -> &Names {
        self.0.names()
    }
}

/// Writes the export.
pub(crate) fn run(args: Args) -> Result<(), Error> {
    let format = format(&args.format)?;
    let path = path_of(format, args.output.as_deref());
    must_differ(&path, [&args.input.path])?;
    let mut recording = args.input.open()?;
    if args.time != Measure::Wall && !format.adds_up() {
        let why = format!("{format} does not add up times of calls, so --time has no place in it");
        return Err(Error::Usage(why));
    }
    if args.limit.is_some() && !format.has_all_calls() {
        let why = format!("{format} does not grow with each call, so --limit has no place in it");
        return Err(Error::Usage(why));
    }
    if args.limit.is_none() && format.has_all_calls() {
        say_size(format, &args.input)?;
    }
    let info = recording.lanes().info().clone();
    if args.tasks != Tasks::default() {
        let mut view = args.input.view(&Part::of_tasks(args.tasks.clone()))?;
        let counted = view.state_of(args.time, &args.input.path)?;
        write(&args, format, &mut view, &info, counted)?;
        return view.check_whole(&args.input.path);
    }
    let counted = args.time.state_in(recording.schedule(), &args.input.path)?;
    write(&args, format, &mut recording, &info, counted)?;
    check_whole(&args.input.path, &recording)
}

/// Writes the page of a recording.
pub(super) fn write_page(recording: &Path, page: &Path) -> Result<(), Error> {
    run(Args {
        format: "html".to_owned(),
        input: Input {
            path: recording.to_owned(),
        },
        time: Measure::Wall,
        output: Some(page.to_owned()),
        limit: None,
        tasks: Tasks::default(),
    })
}

/// Events of this size are told before they are written, in bytes.
const LARGE: u64 = 100 << 20;
/// The smallest recording that is checked for it: an event takes more than a byte there, and less
/// than a kilobyte in a format with all calls.
const LEAST_RECORDING: u64 = LARGE >> 10;
/// The bytes of the beginning that is measured.
const MEASURED: u64 = 4 << 20;

/// Counts bytes.
#[derive(Clone, Default)]
struct Counter(Arc<AtomicU64>);

impl Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Says how large the export of a recording is going to be, if it is large.
fn say_size(format: Format, input: &Input) -> Result<(), Error> {
    let len = std::fs::metadata(readable(&input.path)?).map_or(0, |file| file.len());
    if len < LEAST_RECORDING {
        return Ok(());
    }
    let mut recording = input.open()?;
    // A recording that cannot be read, or a full disk, is an error of the export.
    if let Some(bytes) = estimate(format, &mut recording).filter(|bytes| *bytes > LARGE) {
        let bytes = size(bytes);
        say!("fgraph: about {bytes} are going to be written; --limit SIZE ends the export earlier");
    }
    Ok(())
}

/// Estimates the bytes of an export by its beginning; `None` if it fails.
fn estimate(format: Format, source: &mut impl Source) -> Option<u64> {
    let counter = Counter::default();
    let mut export = Export::to_writer(format, counter.clone()).ok()?;
    export.limit(MEASURED);
    export.advance(source).ok()?;
    let measured = export.finish(source).ok()?.events;
    let mut all = measured;
    while let Ok(Some(_)) = source.next() {
        all += 1;
    }
    let bytes = u128::from(counter.0.load(Ordering::Relaxed));
    let all = bytes * u128::from(all) / u128::from(measured.max(1));
    u64::try_from(all).ok()
}

fn write(
    args: &Args,
    format: Format,
    source: &mut impl Source,
    info: &Info,
    counted: Option<State>,
) -> Result<(), Error> {
    let path = path_of(format, args.output.as_deref());
    let (summary, is_full) = write_to(&path, format, source, &args.input.path, |export| {
        export.set_host(&info.host);
        export.set_command(&info.command);
        if let Some(limit) = args.limit {
            export.limit(limit);
        }
        if let Some(state) = counted {
            export.count_only(state);
        }
    })?;
    say_unknown(summary.unknown_threads);
    if let (true, Some(limit)) = (is_full, args.limit) {
        let (limit, calls) = (size(limit), text::calls(summary.calls));
        say!("fgraph: the export ends at --limit {limit}, with the first {calls}");
    }
    if path.as_os_str() != "-" {
        let shown = path.display().to_string();
        let shown = text::escaped(&shown);
        say!("{shown}: {}", text::calls(summary.calls));
        if summary.lost > 0 {
            let (events, calls) = (grouped(summary.lost), text::calls(summary.missing_returns));
            say!("fgraph: {events} events were lost; the ends of {calls} are missing");
        }
    }
    Ok(())
}

/// Returns the path of an export.
pub(super) fn path_of(format: Format, asked: Option<&Path>) -> PathBuf {
    let path = asked.map(Path::to_owned);
    path.unwrap_or_else(|| default_name(format).into())
}

/// Writes an export of the events of `source`, which come from `from`, after `prepare`. Also
/// returns true if its limit has ended it.
pub(super) fn write_to(
    path: &Path,
    format: Format,
    source: &mut impl Source,
    from: &Path,
    prepare: impl FnOnce(&mut Export),
) -> Result<(Summary, bool), Error> {
    let is_standard = path.as_os_str() == "-";
    let failed = |error: ExportError| match error {
        ExportError::Source(error) => Error::source(from, error),
        ExportError::Create { path, error } => Error::Write {
            error: match error.kind() {
                io::ErrorKind::NotADirectory if path.is_file() => {
                    io::Error::other(format!("it is a file, and {format} is a directory"))
                }
                io::ErrorKind::DirectoryNotEmpty => io::Error::other(format!(
                    "there are files in it, and {format} takes all of it"
                )),
                _ => error,
            },
            path,
        },
        ExportError::Write(error) if is_standard => Error::Output(error),
        ExportError::Write(error) => Error::Write {
            path: path.to_owned(),
            error,
        },
        ExportError::IsDirectory(_) => {
            Error::Usage(format!("{format} is a directory and needs a path: -o PATH"))
        }
        other => Error::Write {
            path: path.to_owned(),
            error: io::Error::other(other),
        },
    };
    // The kernel removes a file without a name; a directory must be removed here.
    let interrupts = format.is_directory().then(Interrupts::catch);
    let export = if is_standard {
        take_terminal();
        Export::to_writer(format, io::stdout())
    } else {
        Export::create(format, path)
    };
    let mut export = export.map_err(failed)?;
    prepare(&mut export);
    let advanced = match &interrupts {
        Some(interrupts) => export.advance(&mut Interruptible(source, interrupts)),
        None => export.advance(source),
    };
    if let Err(error) = advanced {
        drop(export);
        if let Some(interrupts) = interrupts.filter(|it| it.count() > 0) {
            end_by(interrupts.newest());
        }
        return Err(failed(error));
    }
    let is_full = export.is_full();
    let summary = export.finish(source).map_err(failed)?;
    Ok((summary, is_full))
}

#[cfg(test)]
mod tests {
    use fgraph_trace::Live;
    use fgraph_trace::event::{Kind, call};
    use fgraph_trace::ring::{RingOptions, Rings};

    use super::*;

    #[test]
    fn size_of_an_export_is_estimated_by_its_beginning() {
        let options = RingOptions {
            sub_buffers: 256,
            ..RingOptions::default()
        };
        for calls in [10, 100_000] {
            let rings = Arc::new(Rings::create(&options).unwrap());
            let writer = rings.writer(9, 1).unwrap();
            // Times near the start of the clock have few digits at first.
            let first = rings.clock().first().ticks;
            for time in 0..calls {
                assert!(writer.call(call(Kind::Entry, 7), first + 2 * time));
                assert!(writer.call(call(Kind::Return, 7), first + 1 + 2 * time));
            }
            rings.finish();
            for format in [Format::Chrome, Format::Csv, Format::Speedscope] {
                let counter = Counter::default();
                let mut export = Export::to_writer(format, counter.clone()).unwrap();
                let mut source = Live::watch(Arc::clone(&rings));
                export.advance(&mut source).unwrap();
                export.finish(&source).unwrap();
                let bytes = counter.0.load(Ordering::Relaxed);
                let estimated = estimate(format, &mut Live::watch(Arc::clone(&rings))).unwrap();
                let difference = estimated.abs_diff(bytes);
                assert!(difference < bytes / 10 + 1, "{format}: {estimated} {bytes}");
            }
        }
    }
}
