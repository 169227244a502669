//! `fgraph inject`: makes calls fail on purpose.

mod campaign;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use fgraph_protocol::{Settings, Tool};
use fgraph_trace::Source;
use fgraph_trace::graph::error_number;
use fgraph_tracers::probe::fault::Fault;

use crate::error::Error;
use crate::input::parse_time;
use crate::launch::events::Events;
use crate::launch::interrupt::Interrupts;
use crate::launch::{Launched, Target};
use crate::output::Out;
use crate::places;
use crate::target::{Patterns, parse_patterns, parse_pid};
use crate::text::grouped;

const EXAMPLES: &str = "\
Examples:
  fgraph inject 'libc:open*' errno=ENOENT every=100 -- ./server
  fgraph inject 'libc:malloc' result=0 errno=ENOMEM probability=0.01 seed=7 -- sh -c 'sort big'
  fgraph inject 'libc:read' errno=EIO count=1 -p 1234
  fgraph inject 'libc:fsync' delay=5ms..50ms -- ./database
  fgraph inject libc:malloc result=0 errno=ENOMEM from=parse_config -- ./server
  fgraph inject --campaign 'libc:open*' malloc libc:write -- ./program input
  fgraph inject --campaign --dir data --fail-on crashed,hung,ignored libc:fsync -- ./program

Ways to fail:
  errno=NAME       it does not run; its callers get -1, or the result, and the error in errno
  result=N         its callers get N; it runs, unless there is an errno or `skip`
  skip             it does not run; its callers get the result, or 0
  delay=TIME       it waits first; `delay=1ms..5ms` for a random time, the same ones with the same
                   `seed=N`. Alone, nothing else changes
Calls that fail, of all that a process makes of these functions (without any of this: all):
  from=FUNCTION    those inside a call of this function, directly or not; the others do not count
  nth=N            the Nth alone, counted from 1
  after=N          none of the first N; the words below count from there
  every=N          the last of each N
  probability=P    each with this probability, 0 to 1; the same `seed=N` chooses the same ones
  count=N          and no more than N
A campaign lists the calls of the functions in two plain runs, each call path once, and then runs
the program once for each, with this call failing. The program's answer is:
  reported         another exit code, or a message on standard error that plain runs do not have
  crashed, hung    a signal ended it, or it did not end in time
  files, output    it reported nothing, and left other files in --dir, or wrote other output
  ignored          it did the same as without the failure
  not-reached      it did not make the call this time

Callers must be able to bear the result: a program that cannot may crash.";

/// Run a program and make calls of some functions fail
///
/// Reports the number of changed calls at the end. With --campaign each call fails in a run of its
/// own, and a table shows how the program takes it.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The functions: a glob over names, optionally after a module as in 'libc:open*', or any other
    /// word of a filter
    #[arg(value_name = "FUNCTION")]
    function: String,
    /// The way in which calls fail, and the calls that do
    #[arg(value_name = "HOW", num_args = 1.., required_unless_present = "campaign")]
    how: Vec<String>,
    #[command(flatten)]
    campaign: campaign::Options,
    /// Follow neither forked processes nor executed programs
    #[arg(long)]
    no_follow: bool,
    /// Attach to a running process, and its future forked children; `-p 1,2` and `-p 1 -p 2` attach
    /// to several
    #[arg(
        short,
        long,
        value_name = "PID",
        value_delimiter = ',',
        value_parser = parse_pid,
        conflicts_with = "command"
    )]
    pid: Vec<u32>,
    /// End after this time, as 500ms, 10s or 2m; the program continues. This command ends with it,
    /// unless it was attached
    #[arg(long, value_name = "TIME", value_parser = parse_time, conflicts_with = "campaign")]
    time: Option<Duration>,
    /// The program and its arguments
    #[arg(required_unless_present = "pid", last = true)]
    command: Vec<OsString>,
}

/// Runs the program, and exits like it.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Error> {
    if let Some(folder) = &args.campaign.one {
        return campaign::do_job(folder, &args.command);
    }
    let is_campaign = args.campaign.campaign;
    let first = [&args.function].into_iter().filter(|_| is_campaign);
    let words = first.chain(&args.how);
    let (from, how): (Vec<_>, Vec<_>) = words.partition(|word| word.starts_with("from="));
    let from: Result<Vec<Patterns>, _> = from
        .iter()
        .map(|word| parse_patterns(word.trim_start_matches("from=")))
        .collect();
    let from = from.map_err(|error| Error::Usage(format!("from=: {error}")))?;
    if is_campaign {
        let words: Vec<&str> = how.into_iter().map(String::as_str).collect();
        let (options, command) = (&args.campaign, &args.command);
        return campaign::run(options, &words, &from, args.no_follow, command);
    }
    let function = parse_patterns(&args.function).map_err(|why| {
        let function = &args.function;
        Error::Usage(format!("{function:?}: {why}"))
    })?;
    let mut settings = Settings {
        tool: Tool::Inject(fault(&how)?),
        ..Settings::default()
    };
    settings.which.trace = function.words().collect();
    settings.which.within = from.iter().flat_map(Patterns::words).collect();
    let target = Target::new(args.no_follow, &args.pid, &args.command);
    let patterns = [&function].into_iter().chain(&from);
    let patterns = patterns.flat_map(|patterns| &patterns.0);
    let program = target.find(settings)?.checking(patterns);
    let program = program.for_time(args.time);
    program.run_whole(count)
}

/// Parses the words about failing calls.
fn fault(how: &[&String]) -> Result<Fault, Error> {
    let (mut result, mut errno, mut is_skipped) = (None, None, false);
    let (mut every, mut probability, mut seed, mut most) = (None, None, None, None);
    let (mut after, mut nth, mut delay) = (None, None, None);
    for word in how {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        let wrong = |what: &str| Error::Usage(format!("{word:?}: {what}"));
        let number = || value.parse::<u64>();
        match name {
            "result" => {
                let found = value.parse::<i64>();
                result = Some(found.map_err(|_| wrong("a result is a number of 64 bits"))?);
            }
            "errno" => {
                let known = || error_number(value).and_then(|number| number.try_into().ok());
                let found = value.parse::<i32>().ok().or_else(known);
                errno = Some(found.ok_or_else(|| wrong("no error has this name; one is ENOENT"))?);
            }
            "skip" if value.is_empty() => is_skipped = true,
            "every" => {
                let found = number().ok().filter(|&number| number > 0);
                every = Some(found.ok_or_else(|| wrong("a number from 1 on is needed"))?);
            }
            "probability" => {
                let found = value.parse::<f64>().ok();
                let found = found.filter(|found| (0.0..=1.0).contains(found));
                probability = Some(found.ok_or_else(|| wrong("it is between 0 and 1"))?);
            }
            "seed" => seed = Some(number().map_err(|_| wrong("a number is needed"))?),
            "count" => most = Some(number().map_err(|_| wrong("a number is needed"))?),
            "after" => after = Some(number().map_err(|_| wrong("a number is needed"))?),
            "nth" => {
                let found = number().ok().and_then(|number| number.checked_sub(1));
                nth = Some(found.ok_or_else(|| wrong("a number from 1 on is needed"))?);
            }
            "delay" => {
                let (least, longest) = value.split_once("..").unwrap_or((value, value));
                let times = [least, longest].map(parse_time);
                let [Ok(least), Ok(longest)] = times else {
                    return Err(wrong("a time is needed, as 1ms, or two, as 1ms..5ms"));
                };
                if least > longest {
                    return Err(wrong("the first time is the shorter one"));
                }
                delay = Some((least, longest));
            }
            _ => {
                let known = "errno=, result=, skip, delay=, from=, nth=, after=, every=, \
                             probability=, seed=, count=";
                return Err(wrong(&format!("it is none of {known}")));
            }
        }
    }
    let mut fault = match (result, errno) {
        (None, None) if !is_skipped && delay.is_some() => Fault::unchanged(),
        (None, None) if !is_skipped => {
            let what = "it is not said how calls fail: errno=, result=, skip or delay=";
            return Err(Error::Usage(what.to_owned()));
        }
        (Some(result), None) if !is_skipped => Fault::result(result),
        (result, Some(errno)) => Fault::skip(result.unwrap_or(-1)).errno(errno),
        (result, None) => Fault::skip(result.unwrap_or(0)),
    };
    let is_random = probability.is_some() || delay.is_some_and(|(least, most)| least != most);
    if seed.is_some() && !is_random {
        let what = "seed= goes with probability=, or with two times of delay=";
        return Err(Error::Usage(what.to_owned()));
    }
    let seed = seed.unwrap_or(0);
    match (every, probability) {
        (Some(_), Some(_)) => {
            let what = "every= and probability= do not go together";
            return Err(Error::Usage(what.to_owned()));
        }
        (Some(every), None) => fault = fault.every(every),
        (None, Some(probability)) => fault = fault.probability(probability, seed),
        (None, None) => {}
    }
    if let Some(nth) = nth {
        if after.is_some() || most.is_some() || every.is_some() || probability.is_some() {
            let what = "nth= goes with none of after=, every=, probability=, count=";
            return Err(Error::Usage(what.to_owned()));
        }
        (after, most) = (Some(nth), Some(1));
    }
    if let Some(after) = after {
        fault = fault.after(after);
    }
    if let Some(most) = most {
        fault = fault.count(most);
    }
    if let Some((least, most)) = delay {
        fault = fault.delay(least, most).delay_seed(seed);
    }
    Ok(fault)
}

/// Counts the changed calls, and reports them at the end.
fn count(launched: &mut Launched, interrupts: &Interrupts) -> Result<(), Error> {
    let rings = launched.rings().clone();
    let mut events = Events::new(launched, interrupts)?;
    let mut out = Out::new();
    let mut functions: BTreeMap<String, u64> = BTreeMap::new();
    let mut all = 0_u64;
    while let Some(found) = events.find(&mut out)? {
        let &[function, _] = found.words.as_slice() else {
            // A lost event was a call, too.
            all = all.saturating_add(found.lost);
            continue;
        };
        all += 1;
        let name = places::function(events.names(), found.process, function as u32);
        *functions.entry(name).or_default() += 1;
    }
    all = all.saturating_add(rings.events_without_ring());
    let mut functions: Vec<_> = functions.into_iter().collect();
    functions.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let functions = functions.iter().take(8);
    let functions: Vec<String> = functions
        .map(|(name, count)| format!("{} of {name}", grouped(*count)))
        .collect();
    let (calls, of) = (
        if all == 1 { "call" } else { "calls" },
        functions.join(", "),
    );
    let of = if of.is_empty() { of } else { format!(": {of}") };
    say!("fgraph: {} {calls} changed{of}", grouped(all));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn words_say_how_calls_fail() {
        let fault = |text: &str| {
            let words: Vec<String> = text.split(' ').map(str::to_owned).collect();
            fault(&words.iter().collect::<Vec<_>>())
        };
        for (text, expected) in [
            (
                "errno=ENOENT every=100",
                Fault::skip(-1).errno(2).every(100),
            ),
            ("result=0 errno=12", Fault::skip(0).errno(12)),
            ("result=-5 count=3", Fault::result(-5).count(3)),
            ("skip", Fault::skip(0)),
            ("skip nth=4", Fault::skip(0).after(3).count(1)),
            (
                "errno=5 after=10 every=2",
                Fault::skip(-1).errno(5).after(10).every(2),
            ),
            ("delay=5ms", Fault::unchanged().delay(5 * MS, 5 * MS)),
            (
                "result=1 delay=1ms..5ms",
                Fault::result(1).delay(MS, 5 * MS),
            ),
            (
                "delay=1ms..5ms seed=7 count=2",
                Fault::unchanged().delay(MS, 5 * MS).delay_seed(7).count(2),
            ),
            (
                "skip probability=0.5 seed=7",
                Fault::skip(0).probability(0.5, 7),
            ),
        ] {
            assert_eq!(fault(text).unwrap(), expected, "{text}");
        }
        for bad in [
            "every=2",
            "errno=ENOSUCH",
            "skip=1",
            "errno=1 every=0",
            "skip probability=1.5",
            "skip probability=0.5 every=2",
            "result=x",
            "skip nth=0",
            "skip nth=2 count=3",
            "delay=5",
            "delay=5ms..1ms",
            "after=3",
            "skip seed=7",
            "delay=5ms seed=7",
            "often",
        ] {
            assert!(matches!(fault(bad), Err(Error::Usage(_))), "{bad}");
        }
    }
}
