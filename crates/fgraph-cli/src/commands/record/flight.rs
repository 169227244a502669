//! The flight recorder: rings keep the newest events of each thread, and are written to a file when
//! a trigger fires.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fgraph_trace::clock::Anchor;
use fgraph_trace::place::Place;
use fgraph_trace::recording::{Drain, Info};
use fgraph_trace::ring::Rings;
use fgraph_trace::schedule::Change;
use fgraph_tracers::scheduling::Scheduling;

use super::{
    Args, Old, Progress, advice_of_python, begin, finish, identify, info_of, open,
    tell_switched_off,
};
use crate::generated::Generated;
use crate::input::nanoseconds;
use crate::launch::counts::Drained;
use crate::launch::interrupt::Interrupts;
use crate::launch::{Launched, NAP};
use crate::off::{self, Off};
use crate::target::{Pattern, Patterns, parse_patterns};
use crate::text::{size, time};

/// The most snapshots that are taken.
const MOST: u64 = 10;

/// The reason to take a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trigger {
    /// A call of some functions, or one that takes long.
    Call {
        functions: Patterns,
        /// The shortest duration of the call, in nanoseconds.
        least: u64,
    },
    /// SIGUSR2 to this process.
    Signal,
    /// The program is ended by a signal.
    Crash,
    /// The program ends with a code other than 0, or is ended by a signal.
    Failure,
}

/// Parses the value of `--trigger`.
pub(super) fn parse_trigger(text: &str) -> Result<Trigger, String> {
    let known = "a trigger is call:FUNCTION, slow:FUNCTION>10ms, signal, crash or exit!=0";
    let (functions, least) = match text {
        "signal" => return Ok(Trigger::Signal),
        "crash" => return Ok(Trigger::Crash),
        "exit!=0" => return Ok(Trigger::Failure),
        text => match (text.strip_prefix("call:"), text.strip_prefix("slow:")) {
            (Some(functions), _) => (functions, 0),
            (_, Some(slow)) => {
                let (functions, time) = slow.rsplit_once('>').ok_or(known)?;
                // No call takes no time at all.
                (functions, nanoseconds(time)?.max(1))
            }
            _ => return Err(known.to_owned()),
        },
    };
    if functions.is_empty() {
        return Err(known.to_owned());
    }
    let functions = parse_patterns(functions)?;
    Ok(Trigger::Call { functions, least })
}

/// Returns the triggers for the agent.
pub(super) fn of_calls(triggers: &[Trigger]) -> Vec<fgraph_protocol::Trigger> {
    let of_calls = triggers.iter().filter_map(|trigger| match trigger {
        Trigger::Call { functions, least } => Some(fgraph_protocol::Trigger {
            functions: functions.words().collect::<Vec<_>>().join(" "),
            least: *least,
        }),
        _ => None,
    });
    of_calls.collect()
}

/// The patterns of the functions whose calls fire triggers.
pub(super) fn patterns(triggers: &[Trigger]) -> impl Iterator<Item = &Pattern> {
    triggers.iter().flat_map(|trigger| match trigger {
        Trigger::Call { functions, .. } => &functions.0[..],
        _ => &[],
    })
}

/// Takes snapshots.
#[derive(Debug)]
struct Snapshots<'a> {
    args: &'a Args,
    info: Info,
    /// The time that they cover.
    span: Option<Duration>,
    taken: u64,
    missed: u64,
    /// Bytes of the newest one.
    len: u64,
    /// Switched-off functions, at the newest one.
    off: Vec<Off>,
    of_python: Option<String>,
    scheduling: Option<Scheduling>,
    /// The newest states of threads.
    states: Vec<(u32, Change)>,
    lost_states: u64,
    /// The recording that the first one replaces.
    old: Option<Old>,
    generated: Option<Generated>,
}

/// The most states of threads that are kept.
const MOST_STATES: usize = 1 << 20;

impl Snapshots<'_> {
    /// Adds the news of threads' states, and forgets the oldest ones.
    fn look(&mut self, is_last: bool) {
        let scheduling = self.scheduling.as_mut();
        if let Some((changes, lost)) = scheduling.and_then(|it| it.read(is_last)) {
            self.states.extend(changes);
            self.lost_states += lost;
        }
        let excess = self.states.len().saturating_sub(MOST_STATES);
        if excess > 0 {
            self.states.drain(..excess + MOST_STATES / 2);
        }
    }

    /// Returns the path of the next one.
    fn path(&self) -> PathBuf {
        match self.taken {
            0 => self.args.output().to_owned(),
            before => {
                let mut path = self.args.output().to_owned().into_os_string();
                path.push(format!(".{}", before + 1));
                path.into()
            }
        }
    }

    /// Writes the content of the rings.
    fn take(&mut self, rings: &Arc<Rings>, interrupts: &Interrupts) -> io::Result<()> {
        if self.taken >= MOST {
            self.missed += 1;
            return Ok(());
        }
        let path = self.path();
        let clock = rings.clock();
        let span = self.span.map_or(u64::MAX, |span| {
            clock.ticks(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
        });
        let since = Anchor::now(clock.kind()).ticks.saturating_sub(span);
        let (file, _) = open(&path)?;
        let file = begin(file, self.old.take())?;
        let mut drain = Drain::snapshot(Arc::clone(rings), file, &self.info, since)?;
        identify(&mut drain, &mut 0)?;
        self.look(true);
        self.states.sort_by_key(|&(thread, _)| thread);
        drain.schedule(&self.states, self.lost_states)?;
        self.states.sort_by_key(|(_, change)| change.time());
        self.off = off::functions(drain.names());
        self.of_python = advice_of_python(self.args, drain.names());
        let now = Anchor::now(clock.kind()).ticks;
        let kept = drain.kept_since();
        let kept = kept.map(|kept| clock.nanoseconds(now.saturating_sub(kept)));
        let len = finish(self.args, drain, self.generated.as_ref(), interrupts)?;
        (self.taken, self.len) = (self.taken + 1, len);
        if !self.args.quiet {
            let path = path.display();
            let kept = match (kept, self.span) {
                (Some(kept), Some(_)) => {
                    format!("; there was room for {} only, see --buffer", time(kept))
                }
                (Some(kept), None) => format!(", of the last {}", time(kept)),
                (None, _) => String::new(),
            };
            say!("fgraph: a snapshot of {} in {path}{kept}", size(len));
        }
        Ok(())
    }
}

/// Takes snapshots while the program runs, and one at the end if there is no trigger. Removes an
/// empty file that was made for it if there is none.
pub(super) fn record(
    args: &Args,
    span: Option<Duration>,
    (new, old): (Option<Place>, Option<Old>),
    launched: &mut Launched,
    interrupts: &Interrupts,
) -> io::Result<()> {
    let rings = &Arc::clone(launched.rings());
    let mut snapshots = Snapshots {
        args,
        info: info_of(args, launched),
        span,
        taken: 0,
        missed: 0,
        len: 0,
        off: Vec::new(),
        of_python: None,
        scheduling: launched.scheduling(),
        states: Vec::new(),
        lost_states: 0,
        old,
        generated: args.what.has_stacks().then(|| launched.generated()),
    };
    let mut progress = Progress::new(args.quiet);
    let mut seen = 0;
    loop {
        // Checked before triggers: nothing fires after the end.
        let is_over = launched.is_over(interrupts);
        let fired = rings.triggers().saturating_add(interrupts.snapshots());
        // The events stay in the rings.
        let drained = Drained {
            bytes: snapshots.len,
            ..Drained::default()
        };
        let is_wanted = launched.tell(drained);
        if is_wanted || fired > seen {
            // Triggers that have fired meanwhile share one snapshot.
            seen = fired;
            progress.end();
            snapshots.take(rings, interrupts)?;
        }
        if is_over {
            break;
        }
        launched.wait_for(NAP);
        snapshots.look(false);
        launched.look();
        progress.show(rings, drained);
    }
    let (has_ended, status) = (launched.has_ended(), launched.status());
    let mut triggers = args.triggers.iter();
    let is_at_end = args.triggers.is_empty()
        || has_ended
            && triggers.any(|trigger| match trigger {
                Trigger::Crash => status.is_none_or(|status| status.signal().is_some()),
                Trigger::Failure => status.is_none_or(|status| !status.success()),
                Trigger::Call { .. } | Trigger::Signal => false,
            });
    launched.stop();
    progress.end();
    if is_at_end {
        snapshots.take(rings, interrupts)?;
    }
    if snapshots.taken == 0 {
        if let Some(new) = new {
            // It was made to find out if it can be.
            new.remove()?;
        }
        if !args.quiet {
            say!("fgraph: no trigger has fired, so nothing is kept");
        }
    }
    if !args.quiet {
        if let Some(advice) = &snapshots.of_python {
            say!("fgraph: {advice}");
        }
        tell_switched_off(args, rings, &snapshots.off);
    }
    if snapshots.missed != 0 && !args.quiet {
        let missed = snapshots.missed;
        say!("fgraph: {missed} more snapshots were due; no more than {MOST} are taken");
    }
    Ok(())
}

/// Says how a recording is had from the program, whose threads have rings of this many bytes.
pub(super) fn tell_of_core_files(args: &Args, ring: u64) {
    if args.quiet {
        return;
    }
    let ring = size(ring);
    say!("fgraph: each thread keeps up to {ring} of events; `fgraph recover CORE` reads them");
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `getrlimit` writes to a live local.
    let got = unsafe { libc::getrlimit(libc::RLIMIT_CORE, &raw mut limit) };
    let is_piped = std::fs::read("/proc/sys/kernel/core_pattern")
        .is_ok_and(|pattern| pattern.starts_with(b"|"));
    if got == 0 && limit.rlim_cur == 0 && !is_piped {
        say!("fgraph: a crash leaves no core file here: `ulimit -c unlimited` allows them");
    }
    // Shared memory is one of the kinds of memory that are written.
    const SHARED: u32 = 1 << 1;
    let filter = std::fs::read_to_string("/proc/self/coredump_filter").unwrap_or_default();
    let filter = u32::from_str_radix(filter.trim(), 16).unwrap_or(SHARED);
    if filter & SHARED == 0 {
        say!(
            "fgraph: core files leave the events out here: set bit 1 of /proc/self/coredump_filter"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn triggers_are_read() {
        let call = |functions: &str, least| {
            let functions = parse_patterns(functions).unwrap();
            Ok(Trigger::Call { functions, least })
        };
        for (text, expected) in [
            ("call:main", call("main", 0)),
            ("slow:<T as U>::f>10ms", call("<T as U>::f", 10_000_000)),
            ("slow:f>0ns", call("f", 1)),
            ("signal", Ok(Trigger::Signal)),
            ("crash", Ok(Trigger::Crash)),
            ("exit!=0", Ok(Trigger::Failure)),
        ] {
            assert_eq!(parse_trigger(text), expected, "{text}");
        }
        for bad in [
            "", "call:", "call: ", "slow:f", "slow:>1s", "slow:f>x", "exit=0", "Crash",
        ] {
            assert!(parse_trigger(bad).is_err(), "{bad}");
        }
    }
}
