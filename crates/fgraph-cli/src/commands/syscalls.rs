//! `fgraph syscalls`: the system calls of a program, a line for each.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use fgraph_trace::Source;
use fgraph_trace::event::{What, mark_text};
use fgraph_tracers::agent::{Settings, Tool};
use fgraph_tracers::syscalls::is_known;

use crate::error::Error;
use crate::launch::events::Events;
use crate::launch::interrupt::Interrupts;
use crate::launch::{Launched, Target};
use crate::text::{escaped, grouped};

const EXAMPLES: &str = "\
Examples:
  fgraph syscalls -- ls
  fgraph syscalls -F 'open*' -F execve -o calls -- make
  fgraph syscalls -p 1234 -N futex

A line has the times of begin and end in seconds since the machine was started, the call's number
and name, its six arguments, its result, which is a negative errno for an error, and the path that
it is given or up to 128 bytes that it has read or written. Calls are seen that go through one of
the C library's functions for them; docs/limits.md names the others.";

/// Run a program and show its system calls, a line for each when it ends
///
/// What the program prints comes between the lines, unless these go to a file. Where it calls
/// faster than lines can be shown, lines are lost, and the place says how many.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Show these calls: a glob over the names of system calls and of the C library's functions for
    /// them
    #[arg(short = 'F', long = "call", value_name = "GLOB")]
    calls: Vec<String>,
    /// Do not show these calls
    #[arg(short = 'N', long = "notrace", value_name = "GLOB")]
    notrace: Vec<String>,
    /// A line when a call begins as well: ENTER, and EXIT
    #[arg(long)]
    loud: bool,
    /// Write the lines to this file
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    target: Target,
}

/// Runs the program, and ends as it does.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Error> {
    let settings = Settings {
        tool: Tool::Syscalls { is_loud: args.loud },
        trace: args.calls.clone(),
        notrace: args.notrace.clone(),
        ..Settings::default()
    };
    let asked = settings.asked();
    let asked = asked.map_err(|error| Error::Usage(error.to_string()))?;
    // An error in a word was reported before.
    let is_unknown = |word: &&String| word.parse().is_ok_and(|it| !is_known(&it));
    if let Some(word) = args.calls.iter().chain(&args.notrace).find(is_unknown) {
        let what = format!("no system call that can be seen matches '{word}'");
        return Err(Error::Usage(what));
    }
    if asked.is_some_and(|asked| !is_known(&asked)) {
        return Err(Error::Usage(
            "no system call is left to be shown".to_owned(),
        ));
    }
    let out: Box<dyn Write> = match &args.output {
        Some(path) => Box::new(File::create(path).map_err(|error| args.failed(error))?),
        None => Box::new(io::stdout()),
    };
    let mut out = BufWriter::with_capacity(1 << 16, out);
    args.target.run(settings, |launched, interrupts| {
        show(args, launched, interrupts, &mut out)
    })
}

impl Args {
    /// The lines cannot be written.
    fn failed(&self, error: io::Error) -> Error {
        match &self.output {
            Some(path) => Error::Write {
                path: path.clone(),
                error,
            },
            None => Error::Output(error),
        }
    }
}

fn show(
    args: &Args,
    launched: &mut Launched,
    interrupts: &Interrupts,
    out: &mut impl Write,
) -> Result<(), Error> {
    let rings = launched.rings().clone();
    let mut events = Events::new(launched, interrupts)?;
    let failed = |error| Error::source("the rings", error);
    let mut lost = 0_u64;
    loop {
        if !events.is_ready().map_err(failed)? {
            out.flush().map_err(|error| args.failed(error))?;
        }
        let Some(event) = events.next().map_err(failed)? else {
            break;
        };
        let written = match event.what {
            What::Mark(words) => {
                let line = mark_text(words);
                writeln!(out, "{}", escaped(line.trim_end_matches('\n')))
            }
            What::Lost { events, .. } => {
                lost = lost.saturating_add(events);
                writeln!(
                    out,
                    "{} lines lost of thread {}",
                    grouped(events),
                    event.thread
                )
            }
            _ => Ok(()),
        };
        written.map_err(|error| args.failed(error))?;
    }
    out.flush().map_err(|error| args.failed(error))?;
    lost = lost.saturating_add(rings.events_without_ring());
    if lost != 0 {
        say!("fgraph: {} lines lost", grouped(lost));
    }
    Ok(())
}
