//! `fgraph tui`: browses a recording, or a running program.
//!
//! Each view is a list of lines, and only the visible ones are made. [`App::key`] handles keys, and
//! [`App::lines`] makes the visible lines; neither knows the terminal.

mod app;
mod draw;
mod feed;
mod keys;
mod model;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use fgraph_trace::Source as _;

use self::app::{App, Taken};
use self::draw::KEYS;
use self::feed::Feed;
use self::model::Model;
use crate::error::Error;
use crate::input::{Input, Part, parse_time};
use crate::launch::Target;
use crate::launch::arguments::Which;
use crate::launch::events::Events;
use crate::launch::interrupt::Interrupts;
use crate::screen::{Pressed, Screen};
use crate::target::parse_pid;

const EXAMPLES: &str = "\
Examples:
  fgraph tui server.data
  fgraph tui -p 1234 -F 'parse*'
  fgraph tui -- ./server";

/// Browse a recording, or a program while it runs: report, call graph, replay and outliers
///
/// Follows a recording that is being written. For a followed source, calls are counted by function
/// and by stack, and the newest 65,536 events and the slowest call of each function are kept. A
/// started program gets an empty input, and its output is shown at the end.
#[derive(Debug, clap::Args)]
#[command(
    after_help = format!("{KEYS}\n\n{EXAMPLES}"),
    override_usage = "fgraph tui [OPTIONS] [FILE]\n       \
        fgraph tui [OPTIONS] -p PID\n       fgraph tui [OPTIONS] -- COMMAND..."
)]
pub(crate) struct Args {
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    part: Part,
    #[command(flatten)]
    which: Which,
    /// Follow neither forked processes nor executed programs
    #[arg(long)]
    no_follow: bool,
    /// Follow a running process, and its future forked children; `-p 1,2` and `-p 1 -p 2` follow
    /// several
    #[arg(
        short,
        long,
        value_name = "PID",
        value_delimiter = ',',
        value_parser = parse_pid,
        conflicts_with = "command"
    )]
    pid: Vec<u32>,
    /// Follow it for this time, as 500ms, 10s or 2m; the program continues
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    time: Option<Duration>,
    /// Start a program, and follow it
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// The time between checks of a growing file, and for signals.
const LOOK: Duration = Duration::from_millis(100);
/// The time between updates of numbers. It is longer if computing them takes long.
const SHOWN: Duration = Duration::from_millis(500);

/// Shows it until it is closed.
pub(crate) fn run(args: Args) -> Result<ExitCode, Error> {
    if !Screen::is_there() {
        return Err(Error::Usage(
            "tui needs a terminal, and one that is not `dumb`".to_owned(),
        ));
    }
    if args.pid.is_empty() && args.command.is_empty() {
        if args.which != Which::default() || args.no_follow || args.time.is_some() {
            let why = "what is to be recorded is said with -p or -- COMMAND only";
            return Err(Error::Usage(why.to_owned()));
        }
        let view = args.input.follow(&args.part)?;
        let kept = view.is_growing().then(|| view.process());
        let mut app = App::new(Model::new(*view.clock(), view.first(), kept), args.part);
        app.input = Some(args.input);
        let interrupts = Interrupts::catch();
        show(&mut app, Feed::File(Box::new(view)), &interrupts)?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.part != Part::default() {
        let why = "--thread, --from and --to are parts of recordings";
        return Err(Error::Usage(why.to_owned()));
    }
    let target = Target::new(args.no_follow, &args.pid, &args.command);
    let program = target.find(args.which.settings()?)?.off_terminal()?;
    let program = program.checking(args.which.patterns()).for_time(args.time);
    program.run(|launched, interrupts| {
        let process = launched.process();
        let events = Events::new(launched, interrupts)?.for_viewer();
        let model = Model::new(*events.clock(), 0, Some(process));
        let mut app = App::new(model, args.part);
        let shown = show(&mut app, Feed::Process(Box::new(events)), interrupts);
        shown.and(launched.print_output())
    })
}

fn show(app: &mut App, mut feed: Feed<'_>, interrupts: &Interrupts) -> Result<(), Error> {
    let path = app.input.as_ref().map(|input| input.path.clone());
    let path = path.unwrap_or_else(|| "the rings".into());
    let mut screen = Screen::open()?;
    // When numbers changed, and how long that took.
    let mut changed: Option<(Instant, Duration)> = None;
    loop {
        let mut wait = LOOK;
        let mut is_new = changed.is_none();
        if !app.is_over {
            let taken = app.take(&mut feed);
            wait = match taken.map_err(|error| Error::source(&path, error))? {
                Taken::More => Duration::ZERO,
                Taken::All if matches!(feed, Feed::File(_)) => LOOK,
                Taken::All => Duration::ZERO,
                Taken::Last => {
                    app.end();
                    is_new = true;
                    Duration::ZERO
                }
            };
        }
        let is_due = |(when, took): (Instant, Duration)| when.elapsed() >= SHOWN.max(took * 10);
        if app.model.has_more && !app.is_paused && changed.is_none_or(is_due) || is_new {
            let begin = Instant::now();
            app.refresh()?;
            changed = Some((Instant::now(), begin.elapsed()));
            is_new = true;
        }
        if is_new {
            screen.draw(|width, height| app.lines(width, height))?;
        }
        let mut is_pressed = false;
        while let Some(pressed) = screen.pressed(wait)? {
            (is_pressed, wait) = (true, Duration::ZERO);
            let leaves = match pressed {
                Pressed::Interrupt => true,
                Pressed::Key(key) => app.key(key)?,
                Pressed::Resized => false,
            };
            if leaves {
                interrupts.add();
                break;
            }
        }
        if interrupts.count() > 0 {
            let Feed::Process(events) = &feed else {
                return Ok(());
            };
            if app.is_over {
                return Ok(());
            }
            if !app.is_ending {
                (app.is_ending, is_pressed) = (true, true);
                events.launched().signal(interrupts.newest());
            }
        }
        if is_pressed {
            screen.draw(|width, height| app.lines(width, height))?;
        }
    }
}
