//! Finds calls on the wrong thread, of functions that belong to the main thread or to other
//! threads.
//!
//! ```
//! use fgraph_tracers::threads::{Rule, ThreadChecker};
//!
//! // `getppid` stands for what only the main thread may do.
//! let checker = ThreadChecker::start([(Rule::MainOnly, "getppid:mod:libc.so*")])?;
//! std::thread::scope(|scope| {
//!     for _ in 0..2 {
//!         scope.spawn(std::os::unix::process::parent_id);
//!     }
//! });
//! let reports = checker.violations();
//! // Both calls are from the same place.
//! assert_eq!(reports.len(), 1);
//! println!("{}", reports[0]);
//! # Ok::<(), fgraph::Error>(())
//! ```

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fgraph::{
    AnywhereHandle, AnywhereOps, Entry, Error, FgraphOps, Filter, FilterError, Function,
    IntoFilter, LibraryEvent,
};
use fgraph_trace::ring::Rings;
use serde::{Deserialize, Serialize};

use crate::support::arena::Zeroed;
use crate::support::by_function::ByFunction;
use crate::support::caller::{self, Caller, NAMED};
use crate::support::classes::{Classes, FILTERS, without_predicate};
use crate::support::kernel;
use crate::support::looking;
use crate::support::reports::{Met, Reports};
use crate::support::sink::{MOST, Place, Sink};
use crate::tracer::{OneUser, Tracer};

/// Most call sites that are distinguished, and most functions with a kept right call.
const SITES: usize = 8192;
/// Most reports that are kept.
const REPORTS: usize = 1024;
/// Most callers that are kept of a call.
const CALLERS: usize = 6;
/// Words of a call: its thread with the name, its return address, and those around it.
const CALL: usize = NAMED + CALLERS;
/// Words of a report: the function's address, the rule, the wrong call, the right one.
const REPORT: usize = 2 + 2 * CALL;

const _: () = assert!(REPORT <= MOST);

/// Threads on which functions may be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rule {
    /// Only the main thread, as for functions of user interfaces.
    MainOnly,
    /// Any thread but the main one, as for functions that block. Not checked in a forked child.
    WorkerOnly,
}

/// Checker of threads. Dropping it ends it.
///
/// A call on the wrong thread is reported once for each calling place. A right call costs two loads
/// more than with an empty user. The calls around it are known if some tracer watches them with
/// returns: see [`fgraph::Entry::callers`].
#[derive(Debug)]
pub struct ThreadChecker {
    user: AnywhereHandle<Check>,
}

impl OneUser for ThreadChecker {
    fn user(&self) -> &dyn Tracer {
        &self.user
    }
}

impl ThreadChecker {
    /// Starts checking. If several filters select a function, the first rule applies.
    ///
    /// [`Tracer::set_filter`] selects some of these functions.
    ///
    /// # Errors
    ///
    /// Same as for [`fgraph::register`], and
    /// [`PredicateAsText`](fgraph::FilterError::PredicateAsText) for a filter with a predicate,
    /// because callbacks would have to call it. Rules beyond the 64th are not checked.
    pub fn start<F: IntoFilter>(rules: impl IntoIterator<Item = (Rule, F)>) -> Result<Self, Error> {
        Self::start_with(rules, None)
    }

    /// Same as [`start`](Self::start), and also reports each violation in rings, as a mark that
    /// [`read_mark`] decodes. `executed` is the number of programs that the process has executed
    /// before: see [`Options::executed`](crate::recorder::Options::executed).
    ///
    /// # Errors
    ///
    /// Same as for [`start`](Self::start); [`Unsupported`](Error::Unsupported) without memory.
    pub fn start_in<F: IntoFilter>(
        rings: impl Into<Arc<Rings>>,
        executed: u32,
        rules: impl IntoIterator<Item = (Rule, F)>,
    ) -> Result<Self, Error> {
        Self::start_with(rules, Some(Sink::start(rings, executed)?))
    }

    fn start_with<F: IntoFilter>(
        rules: impl IntoIterator<Item = (Rule, F)>,
        sink: Option<Sink>,
    ) -> Result<Self, Error> {
        let rules = rules
            .into_iter()
            .take(FILTERS)
            .map(|(rule, filter)| Ok((rule, without_predicate(filter)?)));
        let rules: Vec<_> = rules.collect::<Result<_, Error>>()?;
        let filters = rules.iter().map(|(_, filter)| filter.clone());
        let filter = filters.reduce(Filter::union).unwrap_or_else(Filter::none);
        let check = Check {
            main: kernel::process(),
            rules,
            classes: Classes::new(),
            right: ByFunction::new(),
            sites: Met::new(SITES),
            reports: Reports::new(REPORTS),
            sink,
        };
        let user = fgraph::register_anywhere_with(check, filter, &looking::options())?;
        Ok(Self { user })
    }

    /// Returns the calls on wrong threads, oldest first.
    pub fn violations(&self) -> Vec<Violation> {
        let reports = self.user.user().reports.iter();
        reports
            .filter_map(|words| Violation::read(&words))
            .collect()
    }

    /// Returns the number of violations that found no room among the 1024 that are kept.
    pub fn dropped(&self) -> usize {
        self.user.user().reports.dropped()
    }
}

/// Decodes the violation in the words of a mark, with the index of its function, whose name is left
/// empty. `None` for other words.
#[must_use]
pub fn read_mark(words: &[u64]) -> Option<(u32, Violation)> {
    let mut found = [0; REPORT];
    for (place, word) in found.iter_mut().zip(words) {
        *place = *word as usize;
    }
    // No function is at address 0.
    let index = std::mem::take(&mut found[0]);
    let violation = (words.len() == REPORT).then(|| Violation::read(&found))?;
    Some((index as u32, violation?))
}

/// Parses a line of text with a rule: `main: WORDS` or `worker: WORDS`, with words of a [`Filter`].
/// `None` for an empty line or a comment, which begins with `#`.
///
/// ```
/// use fgraph_tracers::threads::{Rule, parse_rule};
///
/// let (rule, words) = parse_rule("worker: read write:mod:libc.so*  ")?.expect("a rule");
/// assert_eq!((rule, words), (Rule::WorkerOnly, "read write:mod:libc.so*"));
/// assert_eq!(parse_rule("# nothing")?, None);
/// assert!(parse_rule("mian: f").is_err());
/// # Ok::<(), fgraph_tracers::threads::RuleError>(())
/// ```
///
/// # Errors
///
/// Says which part of the line is wrong.
pub fn parse_rule(line: &str) -> Result<Option<(Rule, &str)>, RuleError> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    let Some((thread, words)) = line.split_once(':') else {
        return Err(RuleError::NoColon);
    };
    let rule = match thread.trim() {
        "main" => Rule::MainOnly,
        "worker" => Rule::WorkerOnly,
        other => return Err(RuleError::Thread(other.to_owned())),
    };
    let words = words.trim();
    match words.parse::<Filter>() {
        Ok(_) => Ok(Some((rule, words))),
        Err(error) => Err(RuleError::Functions(error)),
    }
}

/// Error in the line of a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RuleError {
    /// There is no colon.
    #[error("no colon between the thread and its functions")]
    NoColon,
    /// The part before the colon is neither `main` nor `worker`.
    #[error("the thread {0:?} is neither main nor worker")]
    Thread(String),
    /// The part behind the colon is no filter.
    #[error("the functions behind the colon")]
    Functions(#[source] FilterError),
}

/// Call on the wrong thread.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Violation {
    /// Name of the function.
    pub function: String,
    /// Rule that was broken.
    pub rule: Rule,
    /// The wrong call.
    pub wrong: Caller,
    /// First right call of the function, if there was one before.
    pub right: Option<Caller>,
}

impl Violation {
    fn read(words: &[usize; REPORT]) -> Option<Self> {
        let [function, rule, calls @ ..] = words;
        let (wrong, right) = calls.split_at(CALL);
        let function = fgraph::function_at(*function);
        Some(Self {
            function: function.map_or(String::new(), |function| function.name().to_string()),
            rule: match rule {
                0 => Rule::MainOnly,
                _ => Rule::WorkerOnly,
            },
            wrong: Caller::read(wrong)?,
            right: Caller::read(right),
        })
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = match self.rule {
            Rule::MainOnly => "the main thread's",
            Rule::WorkerOnly => "not the main thread's",
        };
        write!(f, "{} is {whose}, called by {}", self.function, self.wrong)?;
        if let Some(right) = &self.right {
            write!(f, ", rightly by {right}")?;
        }
        Ok(())
    }
}

/// Callbacks of the checker.
#[derive(Debug)]
struct Check {
    /// Main thread when the checker was started.
    main: u32,
    rules: Vec<(Rule, Filter)>,
    classes: Classes,
    right: ByFunction<RightCall>,
    sites: Met,
    reports: Reports<REPORT>,
    /// Sink that violations are reported to.
    sink: Option<Sink>,
}

/// First right call of a function.
#[derive(Debug)]
struct RightCall {
    /// One of [`FREE`], [`WRITING`] and [`WRITTEN`].
    state: AtomicUsize,
    call: [AtomicUsize; CALL],
}

// SAFETY: the fields are numbers, for which zeros are valid.
unsafe impl Zeroed for RightCall {}

/// No right call yet.
const FREE: usize = 0;
/// A thread is writing a right call.
const WRITING: usize = 1;
/// The right call is complete.
const WRITTEN: usize = 2;

// SAFETY: the callbacks only use atomics, memory that they map, and system calls that change
// nothing of the program's.
unsafe impl AnywhereOps for Check {}

impl FgraphOps for Check {
    type Data = ();

    fn entry(&self, call: &mut Entry<'_, ()>) -> Option<()> {
        let (function, thread) = (call.function(), call.thread_id());
        let rule = self.rule(function)?;
        let is_wrong = match rule {
            // A forked child has another main thread.
            Rule::MainOnly => thread != self.main && thread != kernel::process(),
            Rule::WorkerOnly => thread == self.main,
        };
        let right = self.right.of(function);
        let is_known = right.is_some_and(|right| right.state.load(Ordering::Relaxed) != FREE);
        if !is_wrong && is_known {
            return None;
        }
        if !is_wrong {
            right?.write(caller::words(call));
        } else if let Some((_, true)) = self.sites.meet(call.return_address()) {
            let mut words = [0; REPORT];
            words[0] = function.address();
            words[1] = usize::from(rule == Rule::WorkerOnly);
            words[2..2 + CALL].copy_from_slice(&caller::words::<CALL, _>(call));
            if let Some(right) = right.and_then(RightCall::read) {
                words[2 + CALL..].copy_from_slice(&right);
            }
            self.reports.push(words);
            if let Some(sink) = &self.sink {
                let mut told = words.map(|word| word as u64);
                told[0] = function.index().into();
                // SAFETY: the word and the id are the running thread's.
                unsafe {
                    sink.know(function, call.thread_word());
                    let place = Place::of(call.thread_stack(), false);
                    sink.mark_words(call.thread_word(), call.thread_id(), &told, place);
                }
            }
        }
        None
    }

    fn library(&self, event: &LibraryEvent<'_>) {
        if let Some(sink) = &self.sink {
            sink.library(event);
        }
    }
}

impl Check {
    /// Returns the rule of a function.
    fn rule(&self, function: Function) -> Option<Rule> {
        let all = u64::MAX >> (FILTERS - self.rules.len().clamp(1, FILTERS));
        let rules = self.classes.of(function, all, |nth, facts| {
            let rule = self.rules.get(nth);
            rule.is_some_and(|(_, filter)| filter.matches(facts))
        });
        let first = self.rules.get(rules.trailing_zeros() as usize);
        first.map(|(rule, _)| *rule)
    }
}

impl RightCall {
    fn write(&self, call: [usize; CALL]) {
        let relaxed = Ordering::Relaxed;
        if self
            .state
            .compare_exchange(FREE, WRITING, relaxed, relaxed)
            .is_err()
        {
            return;
        }
        for (place, word) in self.call.iter().zip(call) {
            place.store(word, relaxed);
        }
        // Release: pairs with the Acquire in `read`.
        self.state.store(WRITTEN, Ordering::Release);
    }

    fn read(&self) -> Option<[usize; CALL]> {
        let is_there = self.state.load(Ordering::Acquire) == WRITTEN;
        let call = || {
            self.call
                .each_ref()
                .map(|word| word.load(Ordering::Relaxed))
        };
        is_there.then(call)
    }
}
