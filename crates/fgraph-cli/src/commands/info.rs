//! `fgraph info`: the origin of a recording, and its size.

use std::time::Instant;

use fgraph_analysis::losses::Losses;
use fgraph_analysis::numbers::ThreadNumbers;
use fgraph_trace::Source;
use fgraph_trace::clock::ClockKind;
use fgraph_trace::event::What;
use fgraph_trace::recording::Recording;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::input::{Input, check_whole, has_all, open_known, readable};
use crate::json::{self, Lost};
use crate::losses;
use crate::off::{self, Off, OffTimeView};
use crate::output::{Out, Style};
use crate::sources;
use crate::summary::{Summary, of_losses};
use crate::text::{counted, escaped, grouped, size, time};

/// Show the origin of a recording, and the number of its calls, threads and functions
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fgraph info
  fgraph info --json old.data")]
pub(crate) struct Args {
    #[command(flatten)]
    input: Input,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The view of `info` in JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct InfoView {
    lost: Lost,
    file: String,
    bytes: u64,
    command: Vec<String>,
    /// Environment variables, as `NAME=value`.
    environment: Vec<String>,
    /// The process that was started.
    process: u32,
    host: String,
    system: String,
    ticks_per_second: u64,
    /// The time of the first event, in nanoseconds since 1970 UTC; null if there is none.
    began_ns: Option<u64>,
    /// The time from the first event to the last one.
    lasted_ns: u64,
    processes: u64,
    threads: u64,
    functions: u64,
    modules: u64,
    /// Functions whose source is known.
    sources: u64,
    calls: u64,
    ends: u64,
    /// Calls whose ends were not to be recorded.
    entry_only: u64,
    marks: u64,
    /// Functions that were switched off for some time, because recording them cost too much.
    switched_off: Vec<String>,
    /// The times when they were off, for each process.
    off_times: Vec<OffTimeView>,
    /// Programs that were not recorded.
    refused: Vec<Refused>,
    /// Programs that were recorded in part.
    in_part: Vec<Refused>,
    /// Damaged bytes of the file; the number of damaged places.
    damaged_bytes: u64,
    damages: u64,
}

/// A program that was not recorded, or only in part.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Refused {
    program: String,
    reason: String,
}

/// The counts of a recording, which a summary keeps.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Counts {
    entries: u64,
    /// Calls whose ends were not to be recorded.
    entry_only: u64,
    ends: u64,
    marks: u64,
    #[serde(with = "of_losses")]
    losses: Losses,
    /// Ticks of the first event and of the last one.
    span: Option<(u64, u64)>,
    /// The number of threads with events, and the processes of these.
    threads: u64,
    processes: Vec<u32>,
}

/// A thread with events.
#[derive(Clone, Copy, Debug)]
struct Thread {
    process: u32,
    /// The time of its last event.
    last: u64,
}

impl Counts {
    fn of(source: &mut impl Source, args: &Args) -> Result<Self, Error> {
        let mut counts = Self::default();
        let (mut numbers, mut threads) = (ThreadNumbers::default(), Vec::<Thread>::new());
        let failed = |error| Error::source(&args.input.path, error);
        while let Some(event) = source.next().map_err(failed)? {
            let (first, last) = counts.span.unwrap_or((event.time, event.time));
            counts.span = Some((first.min(event.time), last.max(event.time)));
            let thread = (event.process, event.thread);
            let number = numbers.of(thread);
            let now = Thread {
                process: event.process,
                last: event.time,
            };
            counts.losses.resume(thread, event.time);
            let before = match threads.get_mut(number) {
                Some(known) => Some(std::mem::replace(known, now).last),
                None => {
                    threads.push(now);
                    None
                }
            };
            match event.what {
                What::Entry { is_entry_only, .. } => {
                    counts.entry_only += u64::from(is_entry_only);
                    counts.entries += 1;
                }
                What::Return { .. } | What::Unwound { .. } | What::Dropped { .. } => {
                    counts.ends += 1;
                }
                What::Mark(_) => counts.marks += 1,
                What::Lost { events, .. } => {
                    let from = before.unwrap_or(first);
                    counts.losses.add(thread, events, from, event.time);
                }
            }
        }
        counts.threads = threads.len() as u64;
        counts.processes = threads.iter().map(|it| it.process).collect();
        counts.processes.sort_unstable();
        counts.processes.dedup();
        Ok(counts)
    }
}

/// A recording with its counts.
struct Info<'a> {
    args: &'a Args,
    recording: &'a Recording,
    counts: Counts,
    /// The size of the file.
    bytes: u64,
    off: Vec<Off>,
}

/// Prints it.
pub(crate) fn run(args: Args) -> Result<(), Error> {
    let (mut recording, opened) = open_known(&args.input.path)?;
    let bytes = std::fs::metadata(readable(&args.input.path)?).map_or(0, |file| file.len());
    let summary = opened.and_then(|opened| Summary::of(&opened, recording.names(), &"info"));
    let counts = match summary.as_ref().and_then(Summary::find) {
        Some(counts) => counts,
        None => {
            let begun = Instant::now();
            let counts = Counts::of(&mut recording, &args)?;
            if let Some(summary) = summary.filter(|_| has_all(&recording)) {
                summary.keep(begun, &counts);
            }
            counts
        }
    };
    let info = Info {
        args: &args,
        recording: &recording,
        counts,
        bytes,
        off: off::functions(recording.names()),
    };
    match args.json {
        true => json::write(&info.view())?,
        false => info.write()?,
    }
    check_whole(&args.input.path, &recording)
}

impl Info<'_> {
    /// The time of the first event, in ticks.
    fn first(&self) -> u64 {
        self.counts.span.map_or(0, |(first, _)| first)
    }

    /// The number of functions whose source is known.
    fn sources(&self) -> u64 {
        let names = self.recording.names();
        let known = names
            .functions()
            .filter(|&(process, index, _)| names.source(process, index).is_some());
        known.count() as u64
    }

    /// The number of damaged bytes.
    fn damaged(&self) -> u64 {
        let damages = self.recording.lanes().damages().iter();
        damages.map(|it| it.range.end - it.range.start).sum()
    }

    fn view(&self) -> InfoView {
        let Self { counts, off, .. } = self;
        let (info, clock, names) = (
            self.recording.lanes().info(),
            self.recording.clock(),
            self.recording.names(),
        );
        let first = self.first();
        let refused = |(program, why): &(String, String)| Refused {
            program: program.clone(),
            reason: why.clone(),
        };
        InfoView {
            lost: losses::to_json(&counts.losses, names, clock, first),
            file: self.args.input.path.display().to_string(),
            bytes: self.bytes,
            command: info.command.clone(),
            environment: info.environment.clone(),
            process: info.process,
            host: info.host.clone(),
            system: info.system.clone(),
            ticks_per_second: clock.ticks_per_second(),
            began_ns: counts.span.map(|(first, _)| clock.realtime(first)),
            lasted_ns: counts
                .span
                .map_or(0, |(first, last)| clock.nanoseconds(last - first)),
            processes: counts.processes.len() as u64,
            threads: counts.threads,
            functions: names.functions().count() as u64,
            modules: names.modules().len() as u64,
            sources: self.sources(),
            calls: counts.entries,
            ends: counts.ends,
            entry_only: counts.entry_only,
            marks: counts.marks,
            switched_off: off.iter().map(Off::named).collect(),
            off_times: off.iter().flat_map(|it| it.to_json(clock, first)).collect(),
            refused: names.refused().iter().map(refused).collect(),
            in_part: names.in_part().iter().map(refused).collect(),
            damaged_bytes: self.damaged(),
            damages: self.recording.lanes().damages().len() as u64,
        }
    }

    fn write(&self) -> Result<(), Error> {
        let mut out = Out::new();
        self.write_origin(&mut out)?;
        self.write_counts(&mut out)?;
        self.write_notes(&mut out)?;
        out.finish()
    }

    /// Writes where and when the recording was made.
    fn write_origin(&self, out: &mut Out) -> Result<(), Error> {
        let (info, clock) = (self.recording.lanes().info(), self.recording.clock());
        let path = self.args.input.path.display();
        row(out, "file", &format!("{path}, {}", size(self.bytes)))?;
        row(out, "command", &info.command.join(" "))?;
        for variable in &info.environment {
            row(out, "variable", variable)?;
        }
        row(out, "process", &info.process.to_string())?;
        row(out, "host", &format!("{}, {}", info.host, info.system))?;
        let kind = match clock.kind() {
            ClockKind::Tsc => "time stamp counter",
            ClockKind::Monotonic => "the system's monotonic clock",
        };
        let rate = clock.ticks_per_second() as f64 / 1e9;
        row(out, "clock", &format!("{kind}, {rate:.3} GHz"))?;
        if let Some((first, last)) = self.counts.span {
            row(out, "began", &date(clock.realtime(first)))?;
            row(out, "lasted", &time(clock.nanoseconds(last - first)))?;
        }
        Ok(())
    }

    fn write_counts(&self, out: &mut Out) -> Result<(), Error> {
        let Self { counts, bytes, .. } = self;
        let names = self.recording.names();
        row(out, "processes", &grouped(counts.processes.len() as u64))?;
        row(out, "threads", &grouped(counts.threads))?;
        row(out, "functions", &grouped(names.functions().count() as u64))?;
        row(out, "modules", &grouped(names.modules().len() as u64))?;
        row(out, "sources", &grouped(self.sources()))?;
        let each = match counts.entries {
            0 => String::new(),
            calls => format!(", {:.2} bytes each", *bytes as f64 / calls as f64),
        };
        row(out, "calls", &format!("{}{each}", grouped(counts.entries)))?;
        row(out, "ends", &grouped(counts.ends))?;
        if counts.entry_only > 0 {
            let calls = grouped(counts.entry_only);
            row(out, "entry only", &format!("{calls} calls, without an end"))?;
        }
        row(out, "marks", &grouped(counts.marks))?;
        let lost = grouped(counts.losses.events());
        row(out, "lost", &format!("{lost} events"))
    }

    /// Writes what is missing, and why.
    fn write_notes(&self, out: &mut Out) -> Result<(), Error> {
        let (names, clock, first) = (self.recording.names(), self.recording.clock(), self.first());
        for line in self.counts.losses.lines(names, clock, first) {
            row(out, "", &line)?;
        }
        for function in &self.off {
            row(out, "off", &function.line(clock, first))?;
        }
        for (label, programs) in [("refused", names.refused()), ("in part", names.in_part())] {
            for (program, why) in programs {
                row(out, label, &format!("{program}: {why}"))?;
            }
        }
        if let Some(changes) = sources::changes(names) {
            row(out, "files", &changes)?;
        }
        let places = self.recording.lanes().damages().len() as u64;
        if places > 0 {
            let damaged = size(self.damaged());
            row(
                out,
                "damaged",
                &format!("{damaged} in {}", counted(places, "place")),
            )?;
        }
        Ok(())
    }
}

/// Writes a line.
fn row(out: &mut Out, name: &str, value: &str) -> Result<(), Error> {
    let name = Style::Dim.paint(format_args!("{name:<10}"));
    out.line(format_args!("{name} {}", escaped(value)))
}

/// Returns nanoseconds since 1970 as a date and a time, UTC.
fn date(nanoseconds: u64) -> String {
    let seconds = nanoseconds / 1_000_000_000;
    let (day, second) = (seconds / 86_400, seconds % 86_400);
    // Years that begin in March have their odd day at the end; 400 of them have 146,097 days.
    let day = day + 719_468;
    let (era, day) = (day / 146_097, day % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_docs_have_the_schema() {
        json::check_schema::<InfoView>("info");
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
            (1_795_364_061, "2026-11-22 16:14:21 UTC"),
        ] {
            assert_eq!(date(seconds * 1_000_000_000), expected);
        }
    }
}
