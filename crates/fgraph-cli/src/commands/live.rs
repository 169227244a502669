//! `fgraph live`: shows a program's calls while it runs.

use std::process::ExitCode;

use fgraph_trace::graph::{FunctionGraph, Options, Parts, ResultFormat};

use crate::error::Error;
use crate::launch::events::Events;
use crate::launch::interrupt::Interrupts;
use crate::launch::{Budget, Launched, What};
use crate::output::Out;

/// Run a program and show its calls as they happen, like the kernel's function graph
///
/// The program's own output appears between the lines. If it makes calls faster than lines can be
/// shown, calls are lost, and a line says how many.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fgraph live -F 'parse*' -- ./server
  fgraph live -p 1234 --time 2s --proc")]
pub(crate) struct Args {
    #[command(flatten)]
    what: What,
    #[command(flatten)]
    budget: Budget,
    /// Show the thread of each line
    #[arg(long)]
    proc: bool,
    /// Leave out the column of processors
    #[arg(long)]
    no_cpu: bool,
}

/// Runs the program, and exits like it.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Error> {
    let show = |launched: &mut _, interrupts: &_| show(args, launched, interrupts);
    let program = args.what.find(Vec::new())?.budget(&args.budget)?;
    program.run(show)
}

fn show(args: &Args, launched: &mut Launched, interrupts: &Interrupts) -> Result<(), Error> {
    let options = Options {
        parts: (Parts::default() | Parts::ARGUMENTS)
            .with(Parts::THREAD, args.proc)
            .with(Parts::CPU, !args.no_cpu),
        result: Some(ResultFormat::Kernel),
        ..Options::default()
    };
    let mut events = Events::new(launched, interrupts)?.for_viewer();
    let mut graph = FunctionGraph::new(options);
    let (mut out, mut text) = (Out::new(), String::new());
    let failed = |error| Error::source("the rings", error);
    loop {
        if !events.is_ready().map_err(failed)? {
            out.flush()?;
        }
        let is_more = graph.write_event(&mut events, &mut text);
        let is_more = is_more.map_err(failed)?;
        out.text(&text)?;
        text.clear();
        if !is_more {
            return out.finish();
        }
    }
}
