//! `fgraph export`: converts a recording for other programs.

use std::io;
use std::path::{Path, PathBuf};

use clap::builder::PossibleValuesParser;
use fgraph_export::{Export, ExportError, Format, Summary};
use fgraph_trace::Source;
use fgraph_trace::clock::Clock;
use fgraph_trace::names::Names;
use fgraph_trace::schedule::{Schedule, State};
use fgraph_trace::source::{Event, SourceError, Upcoming};

use crate::error::Error;
use crate::input::{Input, Measure, Part, Tasks, check_whole, say_unknown};
use crate::launch::interrupt::{Interrupts, end_by};
use crate::output::must_differ;
use crate::text::{self, grouped};

/// Write a recording in the format of another program
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fgraph export html                     writes fgraph.html, a page to look at in any browser
  fgraph export perfetto -o trace.pftrace
  fgraph export html --time blocked      in its flame graph, only time in which threads waited
  fgraph export folded -o - | flamegraph.pl > flames.svg")]
pub(crate) struct Args {
    /// The format
    #[arg(value_parser = PossibleValuesParser::new(FORMATS))]
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
    let host = recording.lanes().info().host.clone();
    if args.tasks != Tasks::default() {
        let mut view = args.input.view(&Part::of_tasks(args.tasks.clone()))?;
        let counted = view.state_of(args.time, &args.input.path)?;
        write(&args, format, &mut view, &host, counted)?;
        return view.check_whole(&args.input.path);
    }
    let counted = args.time.state_in(recording.schedule(), &args.input.path)?;
    write(&args, format, &mut recording, &host, counted)?;
    check_whole(&args.input.path, &recording)
}

fn write(
    args: &Args,
    format: Format,
    source: &mut impl Source,
    host: &str,
    counted: Option<State>,
) -> Result<(), Error> {
    let path = path_of(format, args.output.as_deref());
    let summary = write_to(&path, format, source, &args.input.path, |export| {
        export.set_host(host);
        if let Some(state) = counted {
            export.count_only(state);
        }
    })?;
    say_unknown(summary.unknown_threads);
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

/// Writes an export of the events of `source`, which come from `from`, after `prepare`.
pub(super) fn write_to(
    path: &Path,
    format: Format,
    source: &mut impl Source,
    from: &Path,
    prepare: impl FnOnce(&mut Export),
) -> Result<Summary, Error> {
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
    export.finish(source).map_err(failed)
}
