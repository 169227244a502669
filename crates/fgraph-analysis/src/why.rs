//! The reasons for which some calls of a function take longer than others.
//!
//! Each tick of a call has one [cause](Cause): the thread computes, waits for a processor, or waits
//! for something in a function. [`Timeline`] reads all calls; [`explain`](Timeline::explain)
//! compares the slowest ones, or one of them, with the usual ones. The events are those of
//! functions that [`waits::words`](crate::waits::words) selects, and of those around them.

mod lines;
mod requests;
mod things;
mod timeline;

use std::collections::HashMap;

use fgraph_trace::Source;
use fgraph_trace::clock::Clock;
use fgraph_trace::schedule::Schedule;
use serde::Serialize;

use self::lines::{Differences, Line, Parts, explain, means};
use self::requests::Subject;
use self::things::Things;
use self::timeline::{Piece, Places};
pub use self::timeline::{Timeline, Wanted};
use crate::addresses::Addresses;
use crate::thread::Thread;
use crate::tree::{Node, Tree};
use crate::waits::Cause;

/// The calls that count as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Each call is one by itself.
    Call,
    /// All calls of a request are one.
    Request {
        /// True if requests whose last call was not recorded are left out.
        has_last: bool,
    },
}

/// The calls or requests of a timeline, the fastest first.
#[derive(Debug)]
pub struct Subjects {
    all: Vec<Subject>,
    by: By,
}

impl Subjects {
    /// Returns their number.
    #[must_use]
    pub fn count(&self) -> usize {
        self.all.len()
    }
}

/// The reason for which there is nothing to explain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nothing {
    /// No call of the wanted functions has ended.
    NoCall,
    /// No call has the argument that tells requests apart.
    NoArguments,
    /// No request has ended.
    NoRequest,
}

/// The calls or requests to explain.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Which {
    /// The slowest, this part of all in percent.
    Slowest(f64),
    /// The Nth slowest, from 1, with the steps of its time.
    Nth(usize),
}

/// The explanation of calls or requests.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Explanation {
    /// The number of explained calls.
    #[serde(skip)]
    pub explained: usize,
    /// True if there are too few calls for usual ones.
    #[serde(skip)]
    pub is_alone: bool,
    /// The thread of the fastest explained call.
    #[serde(skip)]
    pub thread: Thread,
    /// The time at which that call began, in ticks.
    #[serde(skip)]
    pub begin: u64,
    /// Half of the calls take at most this time.
    pub half_ns: u64,
    /// All explained calls take at least this time.
    pub from_ns: u64,
    /// The mean time of the explained calls, minus that of the usual ones.
    pub more_ns: u64,
    /// The reasons, the largest first.
    pub lines: Vec<WhyLine>,
    /// The part of `more_ns` that no line has; below 0 if the lines have more.
    pub rest_ns: i64,
    /// The steps of the call, with --call.
    pub steps: Vec<Step>,
}

/// A reason for which calls take longer.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WhyLine {
    /// The reason.
    pub cause: Cause,
    /// The time for this reason, in the mean of the explained calls, minus that of the usual ones.
    pub ns: u64,
    /// The functions, innermost first, up to the requested one.
    pub path: Vec<String>,
    /// The number of explained calls with at least half of this time more.
    pub calls: usize,
    /// The thing that is waited for: the variable or the address of a lock, the file, the pipe or
    /// the connection of a descriptor, or the time for which a sleep was asked; null if it is
    /// unknown.
    pub of: Option<String>,
    /// The thread that ended the waits, and what it did meanwhile.
    pub until: Option<Until>,
    /// The function that is called more often.
    pub more_calls: Option<MoreCalls>,
}

/// The work of a thread while another one waited for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Until {
    /// The thread.
    pub thread: Thread,
    /// The reason for which most of its time passed meanwhile.
    pub cause: Cause,
    /// The functions, innermost first; empty where it was in no recorded call.
    pub path: Vec<String>,
    /// The thing that it waited for, like that of a line.
    pub of: Option<String>,
    /// The thread that ended its own wait, and what that one did meanwhile.
    pub until: Option<Box<Self>>,
}

/// Numbers of calls of a function in one call of the requested function, in the mean.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MoreCalls {
    /// The function.
    pub function: String,
    /// The number in explained calls.
    pub explained: f64,
    /// The number in usual calls.
    pub usual: f64,
}

/// A step of a call.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Step {
    /// Nanoseconds since the call began.
    pub at_ns: u64,
    /// Its time.
    pub ns: u64,
    /// The reason for which it takes time.
    pub cause: Cause,
    /// The functions, innermost first, up to the requested one.
    pub path: Vec<String>,
    /// The thing that is waited for, like that of a line.
    pub of: Option<String>,
    /// The thread that ended the wait, and what it did meanwhile.
    pub until: Option<Until>,
}

/// The most threads that wait for each other and are named, one after the other.
const CHAIN: usize = 8;
/// The fewest calls that are compared with each other. The slowest of fewer is explained alone.
const LEAST_CALLS: usize = 4;
/// Steps below this part of the call are not shown by themselves.
const SHORT: u64 = 200;

impl Timeline {
    /// Takes the calls of the wanted functions.
    ///
    /// # Errors
    ///
    /// Fails if there are none.
    pub fn subjects(&mut self, by: By) -> Result<Subjects, Nothing> {
        let roots = std::mem::take(&mut self.roots);
        if roots.is_empty() {
            return Err(Nothing::NoCall);
        }
        let mut all = match by {
            By::Call => requests::calls(roots),
            By::Request { has_last } => {
                requests::requests(roots, has_last).ok_or(Nothing::NoArguments)?
            }
        };
        all.sort_by_key(|subject| (subject.ticks(), subject.from));
        match all.is_empty() {
            true => Err(Nothing::NoRequest),
            false => Ok(Subjects { all, by }),
        }
    }

    /// Explains some of its subjects by at most `most` lines. `name` is the place of a call's own
    /// time. Returns `None` if there is no such subject.
    pub fn explain(
        &self,
        subjects: &Subjects,
        which: Which,
        name: &str,
        most: usize,
        source: &impl Source,
        addresses: &mut dyn Addresses,
    ) -> Option<Explanation> {
        let context = Context {
            timeline: self,
            schedule: source.schedule(),
            clock: source.clock(),
        };
        let Subjects { all, by } = subjects;
        let (slow, usual) = choose(which, all)?;
        let mut places = Places::new(*by != By::Call);
        let mut explain = |subject| Explained::of(&context, &mut places, subject);
        let slow: Vec<_> = slow.iter().map(&mut explain).collect();
        let usual: Vec<_> = usual.iter().map(&mut explain).collect();
        let ns = |ticks: u64| context.clock.nanoseconds(ticks);
        let mean = |calls: &[Explained<'_>]| {
            let sum: u64 = calls.iter().map(|it| it.subject.ticks()).sum();
            sum.checked_div(calls.len() as u64).unwrap_or(0)
        };
        let more = mean(&slow).saturating_sub(mean(&usual));
        let mut things = Things::of(source.names(), addresses);
        let mut lines = reasons(name, &context, (&places, &mut things), &slow, &usual);
        lines.truncate(most);
        let in_lines: u64 = lines.iter().map(|line| line.ns).sum();
        let first = slow[0].subject;
        Some(Explanation {
            explained: slow.len(),
            is_alone: usual.is_empty(),
            thread: (&self.calls.threads[first.calls[0].thread]).into(),
            begin: first.from,
            half_ns: ns(all[(all.len() - 1) / 2].ticks()),
            from_ns: ns(first.ticks()),
            more_ns: ns(more),
            rest_ns: ns(more) as i64 - in_lines as i64,
            lines,
            steps: match which {
                Which::Nth(_) => steps(&context, (&mut places, &mut things), name, first),
                Which::Slowest(_) => Vec::new(),
            },
        })
    }
}

/// Returns the calls to explain, and the usual ones; all are sorted by time.
fn choose(which: Which, subjects: &[Subject]) -> Option<(&[Subject], &[Subject])> {
    let all = subjects.len();
    let slow = match which {
        Which::Nth(nth) => {
            let at = all.checked_sub(nth).filter(|_| nth > 0)?;
            at..at + 1
        }
        Which::Slowest(_) if all < LEAST_CALLS => all.checked_sub(1)?..all,
        Which::Slowest(percent) => {
            let count = (all as f64 * percent / 100.0).ceil() as usize;
            all - count.clamp(1, all)..all
        }
    };
    let usual = match all < LEAST_CALLS {
        true => 0..0,
        // The middle half, without the slowest.
        false => all / 4..(all * 3 / 4).min(slow.start.max(all / 4 + 1)),
    };
    Some((&subjects[slow], &subjects[usual]))
}

/// The calls and states of a recording, for all parts of the view.
struct Context<'c> {
    timeline: &'c Timeline,
    schedule: Option<&'c Schedule>,
    clock: &'c Clock,
}

impl Context<'_> {
    fn pieces(&self, thread: usize, span: (u64, u64), found: impl FnMut(Piece)) {
        let id = self.timeline.calls.threads[thread].id;
        self.timeline.pieces(thread, id, span, self.schedule, found);
    }

    /// Passes the parts of the time of a subject to `found`, in order, with their threads. Between
    /// the calls of a request they are those of the thread that goes on with it.
    fn pieces_of(&self, subject: &Subject, mut found: impl FnMut(usize, Piece)) {
        let mut at = subject.from;
        for call in &subject.calls {
            let thread = call.thread;
            self.pieces(thread, (at, call.from), |mut piece| {
                let runs = [Cause::Computes, Cause::Processor].contains(&piece.cause);
                if runs || self.timeline.path(piece.node, true).is_some() {
                    piece.cause = Cause::Turn;
                }
                piece.is_between = true;
                found(thread, piece);
            });
            self.pieces(thread, (at.max(call.from), call.to), |piece| {
                found(thread, piece)
            });
            at = at.max(call.to);
        }
    }

    /// Returns the names of the functions from a node of a tree outwards.
    fn names(&self, tree: &Tree, mut node: u32) -> Vec<String> {
        let mut names = Vec::new();
        while node != 0 {
            let Node { slot, parent, .. } = tree.nodes[node as usize];
            names.push(self.timeline.calls.functions[slot as usize].name.clone());
            node = parent;
        }
        names
    }

    /// Returns the names of the functions at a place, innermost first, up to the requested one.
    fn path(&self, places: &Places, place: u32, requested: &str) -> Vec<String> {
        match place {
            0 => vec![requested.to_owned()],
            place => self.names(&places.tree, place),
        }
    }

    /// Returns the thread that ended waits, and what it did most of the time meanwhile; if it
    /// waited itself, with the one that ended that, and so on for `most` threads. A wait has the
    /// index of its thread.
    fn until(
        &self,
        things: &mut Things<'_>,
        waits: &[(usize, Piece)],
        most: usize,
    ) -> Option<Until> {
        let most = most.checked_sub(1)?;
        let mut done: HashMap<(usize, Cause, u32), (u64, Vec<_>)> = HashMap::new();
        for (waiter, wait) in waits {
            let Some(release) = self.timeline.release(*waiter, wait) else {
                continue;
            };
            let thread = release.thread;
            self.pieces(thread, (wait.from, release.time), |piece| {
                let (ticks, pieces) = done.entry((thread, piece.cause, piece.node)).or_default();
                *ticks += piece.ticks;
                pieces.push((thread, piece));
            });
        }
        let longest = done.into_iter().max_by_key(|&(at, (ticks, _))| (ticks, at));
        let ((thread, cause, node), (_, pieces)) = longest?;
        let until = match cause.is_ended_by_threads() {
            true => self.until(things, &pieces, most),
            false => None,
        };
        Some(Until {
            thread: (&self.timeline.calls.threads[thread]).into(),
            cause,
            path: self.names(&self.timeline.tree, node),
            of: self.thing(things, &pieces),
            until: until.map(Box::new),
        })
    }

    /// Names the thing that some waits are for.
    fn thing(&self, things: &mut Things<'_>, waits: &[(usize, Piece)]) -> Option<String> {
        things.most(self.timeline, waits)
    }
}

/// A call, with the parts of its time and the calls in it.
struct Explained<'s> {
    subject: &'s Subject,
    parts: Parts,
    /// The number of calls at each place.
    begun: HashMap<u32, u64>,
}

impl<'s> Explained<'s> {
    fn of(context: &Context<'_>, places: &mut Places, subject: &'s Subject) -> Self {
        let (mut parts, mut begun) = (Parts::new(), HashMap::new());
        context.pieces_of(subject, |_, piece| {
            let place = places.of(context.timeline, &piece);
            *parts.entry((piece.cause, place)).or_default() += piece.ticks;
        });
        for call in &subject.calls {
            context.timeline.begun(call, |node| {
                let place = places.of_node(context.timeline, node, false);
                *begun.entry(place).or_default() += 1;
            });
        }
        Self {
            subject,
            parts,
            begun,
        }
    }
}

/// Returns the reasons for which the slow calls take longer than the usual ones, the largest first.
fn reasons(
    requested: &str,
    context: &Context<'_>,
    (places, things): (&Places, &mut Things<'_>),
    slow: &[Explained<'_>],
    usual: &[Explained<'_>],
) -> Vec<WhyLine> {
    let usual_parts = means(usual.iter().map(|it| &it.parts));
    let mut differences: Differences = means(slow.iter().map(|it| &it.parts));
    for (at, ticks) in &usual_parts {
        *differences.entry(*at).or_default() -= ticks;
    }
    let begun = [slow, usual].map(mean_begun);
    let tree = &places.tree;
    let line = |line: Line| {
        let own = usual_parts.iter();
        let own = own.filter(|((cause, place), _)| line.has(tree, *cause, *place));
        let usual_ticks: f64 = own.map(|(_, ticks)| ticks).sum();
        let with_it: Vec<&Explained<'_>> = slow
            .iter()
            .filter(|call| {
                let ticks = line.ticks_of(tree, &call.parts) as f64;
                ticks - usual_ticks >= line.ticks / 2.0
            })
            .collect();
        let waits = waits(context, places, &line, &with_it);
        WhyLine {
            cause: line.cause,
            ns: context.clock.nanoseconds(line.ticks as u64),
            path: context.path(places, line.place, requested),
            calls: with_it.len(),
            of: context.thing(things, &waits),
            until: match line.cause.is_ended_by_threads() {
                true => context.until(things, &waits, CHAIN),
                false => None,
            },
            more_calls: match usual {
                [] => None,
                _ => more_calls(context, places, &line, &differences, &begun),
            },
        }
    };
    explain(tree, &differences).into_iter().map(line).collect()
}

/// Returns the waits of a line, each with the index of its thread.
fn waits(
    context: &Context<'_>,
    places: &Places,
    line: &Line,
    calls: &[&Explained<'_>],
) -> Vec<(usize, Piece)> {
    /// Calls that are looked at.
    const MOST: usize = 100;
    let mut waits = Vec::new();
    if !line.cause.is_for_something() {
        return waits;
    }
    for call in calls.iter().take(MOST) {
        context.pieces_of(call.subject, |thread, piece| {
            let place = places.known(&piece);
            if place.is_some_and(|place| line.has(&places.tree, piece.cause, place)) {
                waits.push((thread, piece));
            }
        });
    }
    waits
}

/// The numbers of calls at each place, in the mean of some calls.
type Begun = HashMap<u32, f64>;

fn mean_begun(calls: &[Explained<'_>]) -> Begun {
    let mut means = Begun::new();
    for call in calls {
        for (&place, &count) in &call.begun {
            *means.entry(place).or_default() += count as f64 / calls.len() as f64;
        }
    }
    means
}

/// Returns the function below a line that slow calls call more often than usual ones.
fn more_calls(
    context: &Context<'_>,
    places: &Places,
    line: &Line,
    differences: &Differences,
    [explained, usual]: &[Begun; 2],
) -> Option<MoreCalls> {
    /// The part of the line's time that the function must have.
    const MUCH: f64 = 0.3;
    if line.cause != Cause::Computes {
        return None;
    }
    let more = explained.iter().filter_map(|(&place, &explained)| {
        let usual = usual.get(&place).copied().unwrap_or(0.0);
        let is_more = explained >= 2.0 && explained >= usual * 1.5;
        let is_below = lines::is_within(&places.tree, place, line.place);
        if !is_more || !is_below {
            return None;
        }
        let own = differences.iter();
        let own = own.filter(|&(&(cause, at), _)| {
            cause == line.cause && lines::is_within(&places.tree, at, place)
        });
        let ticks: f64 = own.map(|(_, ticks)| ticks).sum();
        (ticks >= line.ticks * MUCH).then_some((place, explained, usual))
    });
    let most = more.max_by(|a, b| (a.1 - a.2).total_cmp(&(b.1 - b.2)).then(b.0.cmp(&a.0)));
    let (place, explained, usual) = most?;
    let slot = places.tree.nodes[place as usize].slot;
    Some(MoreCalls {
        function: context.timeline.calls.functions[slot as usize].name.clone(),
        explained,
        usual,
    })
}

/// Returns the steps of a call: its time in order, with what other threads did while it waited.
fn steps(
    context: &Context<'_>,
    (places, things): (&mut Places, &mut Things<'_>),
    name: &str,
    subject: &Subject,
) -> Vec<Step> {
    let mut pieces: Vec<(usize, Piece)> = Vec::new();
    let least = subject.ticks() / SHORT;
    context.pieces_of(subject, |thread, piece| {
        let is_short = |piece: &Piece| piece.ticks < least && piece.cause == Cause::Computes;
        let Some((_, last)) = pieces
            .last_mut()
            .filter(|(of, last)| (*of, last.is_between) == (thread, piece.is_between))
        else {
            pieces.push((thread, piece));
            return;
        };
        let is_same = (last.cause, last.node) == (piece.cause, piece.node);
        // Short computations one after the other are one: that of a call that has most of the
        // time, or else of the call around them.
        let is_one = last.cause == Cause::Computes && is_short(&piece)
            || is_short(last) && piece.cause == Cause::Computes;
        if is_same || is_one {
            last.node = match (last.ticks, piece.ticks) {
                (before, now) if before / 4 >= now => last.node,
                (before, now) if now / 4 >= before => piece.node,
                _ => context.timeline.common(last.node, piece.node),
            };
            (last.to, last.ticks) = (piece.to, last.ticks + piece.ticks);
        } else {
            pieces.push((thread, piece));
        }
    });
    pieces.retain(|(_, piece)| piece.ticks >= least);
    pieces.dedup_by(|(thread, next), (of, last)| {
        let is_same = (*of, last.cause, last.node, last.is_between)
            == (*thread, next.cause, next.node, next.is_between);
        if is_same {
            (last.to, last.ticks) = (next.to, last.ticks + next.ticks);
        }
        is_same
    });
    let step = |(thread, piece): (usize, Piece)| {
        let wait = [(thread, piece)];
        let until = match piece.cause.is_ended_by_threads() {
            true => context.until(things, &wait, CHAIN),
            false => None,
        };
        let of = match piece.cause.is_for_something() {
            true => context.thing(things, &wait),
            false => None,
        };
        let place = places.of(context.timeline, &piece);
        Step {
            at_ns: context.clock.nanoseconds(piece.from - subject.from),
            ns: context.clock.nanoseconds(piece.ticks),
            cause: piece.cause,
            path: context.path(places, place, name),
            of,
            until,
        }
    };
    pieces.into_iter().map(step).collect()
}
