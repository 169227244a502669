//! `fgraph attach`, `fgraph detach` and `fgraph ctl`: tracers in a running process, controlled by
//! text.

use fgraph_protocol::Line;

use crate::error::Error;
use crate::launch::control::Controlled;
use crate::launch::interrupt::Interrupts;
use crate::output::Out;
use crate::target::parse_pid;
use crate::text::escaped;

const ATTACH: &str = "\
Examples:
  fgraph attach 1234
  fgraph ctl 1234 write set_ftrace_filter 'malloc free'
  fgraph ctl 1234 write current_tracer function_graph
  fgraph ctl 1234 cat trace
  fgraph detach 1234
  fgraph attach --stay $(pidof server)";

/// Load the agent into a running process, for `fgraph ctl`
///
/// Nothing is traced yet. Fails for a process that is being recorded, or that has the agent of
/// another version.
#[derive(Debug, clap::Args)]
#[command(after_help = ATTACH)]
pub(crate) struct Attach {
    /// Stay attached, and end all tracers on Ctrl-C, with `fgraph detach`, or when this command is
    /// killed
    #[arg(long)]
    stay: bool,
    /// The process id
    #[arg(value_name = "PID", value_parser = parse_pid)]
    pid: u32,
}

/// Loads the agent.
pub(crate) fn attach(args: &Attach) -> Result<(), Error> {
    let process = Controlled(args.pid);
    match args.stay {
        true => process.hold(&Interrupts::catch()),
        false => process.attach(),
    }
}

const DETACH: &str = "\
Examples:
  fgraph detach 1234
  fgraph detach $(pidof server)";

/// End all tracers in a process, and restore its functions
///
/// If the process is being recorded, its recorder ends. The agent stays in the process, idle.
#[derive(Debug, clap::Args)]
#[command(after_help = DETACH)]
pub(crate) struct Detach {
    /// The process id
    #[arg(value_name = "PID", value_parser = parse_pid)]
    pid: u32,
    /// Wait until standard input is closed, then end the tracers that this process started
    #[arg(long, hide = true, value_name = "PID", value_parser = parse_pid)]
    guard: Option<u32>,
}

/// Ends the tracers.
pub(crate) fn detach(args: &Detach) -> Result<(), Error> {
    let process = Controlled(args.pid);
    match args.guard {
        Some(holder) => process.guard(holder),
        None => process.detach(),
    }
}

const CTL: &str = "\
Examples:
  fgraph ctl 1234 ls
  fgraph ctl 1234 write current_tracer function
  fgraph ctl 1234 write --append set_ftrace_filter 'parse*'
  fgraph ctl 1234 cat trace_pipe
  fgraph ctl 1234 status";

/// Read and write the tracefs files of a running process, and control its recorder
///
/// The files have the same meaning as the kernel's, for the functions of the process:
/// `current_tracer`, `set_ftrace_filter`, `trace` and more.
#[derive(Debug, clap::Args)]
#[command(after_help = CTL)]
pub(crate) struct Ctl {
    /// The process id
    #[arg(value_name = "PID", value_parser = parse_pid)]
    pid: u32,
    #[command(subcommand)]
    what: What,
}

/// The operation.
#[derive(Debug, clap::Subcommand)]
enum What {
    /// Show the progress of recording: calls, lost events, calls per second since the last status,
    /// and bytes
    Status,
    /// End recording; a program that the recorder has started continues
    Stop,
    /// Write a snapshot of the rings to the recording
    Snapshot,
    /// List the files
    Ls,
    /// Show a file; `trace_pipe` until Ctrl-C, or until the tracer ends
    Cat {
        /// The file
        file: String,
    },
    /// Write a text to a file, replacing its content
    Write {
        /// Append to the content
        #[arg(short, long)]
        append: bool,
        /// The file
        file: String,
        /// The text
        #[arg(allow_hyphen_values = true)]
        text: String,
    },
}

/// Reads or writes.
pub(crate) fn ctl(args: &Ctl) -> Result<(), Error> {
    let process = Controlled(args.pid);
    let mut out = Out::new();
    match &args.what {
        What::Status => show(&mut out, &process.recorder(&Line::Status)?)?,
        What::Stop => drop(process.recorder(&Line::Stop)?),
        What::Snapshot => drop(process.recorder(&Line::Snapshot)?),
        What::Ls => show(&mut out, &process.list()?)?,
        What::Cat { file } if file == "trace_pipe" => {
            let interrupts = Interrupts::catch();
            process.stream(&interrupts, |text| {
                show(&mut out, text)?;
                out.flush()
            })?;
        }
        What::Cat { file } => show(&mut out, &process.read(file)?)?,
        What::Write { append, file, text } => process.write(file, text, *append)?,
    }
    out.finish()
}

/// Lines, without what a terminal obeys.
fn show(out: &mut Out, text: &str) -> Result<(), Error> {
    for line in text.split_inclusive('\n') {
        let is_whole = line.ends_with('\n');
        let line = line.strip_suffix('\n').unwrap_or(line);
        let columns: Vec<_> = line.split('\t').map(escaped).collect();
        out.text(&columns.join("\t"))?;
        if is_whole {
            out.text("\n")?;
        }
    }
    Ok(())
}
