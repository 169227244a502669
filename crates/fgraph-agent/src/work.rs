//! The work of the agent in a program, and the reasons why functions are missing in it.

use std::fmt::Debug;

use fgraph::{Error, FilterReport, Function, RefusalReason, RefusedFunction};
use fgraph_tracers::Tracer;
use fgraph_tracers::probe::fault::FaultMarks;
use fgraph_tracers::recorder::Recorder;

/// The agent's work, which ends when this is dropped.
pub(crate) trait Work: Debug + Send + Sync {
    /// Stops all work until this is dropped.
    fn pause(&self);

    /// Returns the watched functions: [`Handle::functions`](fgraph::Handle::functions).
    ///
    /// # Errors
    ///
    /// [`InsideCallback`](Error::InsideCallback).
    fn functions(&self) -> Result<Vec<Function>, Error>;

    /// Returns the number of functions that the filter traces, and those that it refuses:
    /// [`Handle::report`](fgraph::Handle::report).
    ///
    /// # Errors
    ///
    /// Same as for [`Handle::report`](fgraph::Handle::report).
    fn report(&self) -> Result<FilterReport, Error>;

    /// Returns the functions that the filter refuses: [`Handle::refused`](fgraph::Handle::refused).
    ///
    /// # Errors
    ///
    /// Same as for [`Handle::refused`](fgraph::Handle::refused).
    fn refused(&self) -> Result<Vec<RefusedFunction>, Error>;

    /// Returns the recorder of calls, if this work is one.
    fn recorder(&self) -> Option<&Recorder> {
        None
    }

    /// Returns why no function is watched although the filter selects some; or why functions of
    /// the program at this path are missing among those that are watched. `None` if nothing of
    /// note is missing.
    ///
    /// # Errors
    ///
    /// Same as for [`report`](Self::report).
    fn refusal(&self, program: &str) -> Result<Option<Shortfall>, Error> {
        let functions = self.functions()?;
        // The report makes the filter search all functions again, so ask for it only here.
        if functions.is_empty() {
            return Ok(refusal(&self.report()?).map(Shortfall::All));
        }
        let has_program = functions
            .iter()
            .any(|function| function.module().path() == program);
        Ok(missing(self.refused()?, program, has_program).map(Shortfall::Some))
    }
}

/// A reason why functions that a filter selects are not watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Shortfall {
    /// None is watched.
    All(String),
    /// Some are not watched: all of the program, or those without memory for their stubs.
    Some(String),
}

/// A tracer, as work of the agent.
#[derive(Debug)]
pub(crate) struct Tracing<T>(pub(crate) T);

impl<T: Tracer> Work for Tracing<T> {
    fn pause(&self) {
        self.0.set_enabled(false);
    }

    fn functions(&self) -> Result<Vec<Function>, Error> {
        self.0.functions()
    }

    fn report(&self) -> Result<FilterReport, Error> {
        self.0.report()
    }

    fn refused(&self) -> Result<Vec<RefusedFunction>, Error> {
        self.0.refused()
    }
}

impl Work for FaultMarks {
    fn pause(&self) {
        self.set_enabled(false);
    }

    fn functions(&self) -> Result<Vec<Function>, Error> {
        Self::functions(self)
    }

    fn report(&self) -> Result<FilterReport, Error> {
        Self::report(self)
    }

    fn refused(&self) -> Result<Vec<RefusedFunction>, Error> {
        Self::refused(self)
    }
}

/// Number of reasons that are reported.
const REASONS: usize = 5;

/// Returns the reasons why all functions are refused, the most frequent first.
fn refusal(report: &FilterReport) -> Option<String> {
    let functions = match report.refused.len() {
        0 => return None,
        1 => "the one function that is selected cannot be traced".to_owned(),
        all => format!("none of the {all} functions that are selected can be traced"),
    };
    Some(format!("{functions}: {}", reasons(report)))
}

/// Returns the reasons why functions are missing beside others that are watched: all of the
/// program, unless it `has_program` functions that are watched, and those without memory for their
/// stubs, to which the user can make an end.
fn missing(mut refused: Vec<RefusedFunction>, program: &str, has_program: bool) -> Option<String> {
    let is_program = |one: &RefusedFunction| !has_program && one.module == program;
    let has_no_memory = |one: &RefusedFunction| {
        use RefusalReason as R;
        matches!(one.reason, R::OutOfReach | R::NotExecutable(_))
    };
    refused.retain(|one| is_program(one) || has_no_memory(one));
    let functions = match (refused.len(), refused.iter().all(is_program)) {
        (0, _) => return None,
        (1, true) => "its one function that is selected cannot be traced".to_owned(),
        (all, true) => format!("none of its {all} functions that are selected can be traced"),
        (1, false) => "one of the functions that are selected cannot be traced".to_owned(),
        (all, false) => format!("{all} of the functions that are selected cannot be traced"),
    };
    let mut report = FilterReport::default();
    report.refused = refused;
    Some(format!("{functions}: {}", reasons(&report)))
}

/// Lists the reasons for refusals, the most frequent first.
fn reasons(report: &FilterReport) -> String {
    let counts = report.reasons();
    let mut reasons = counts
        .iter()
        .take(REASONS)
        .map(|(reason, count)| match counts.len() {
            1 => reason.clone(),
            _ => format!("{count}: {reason}"),
        })
        .collect::<Vec<_>>();
    if let Some(more @ 1..) = counts.len().checked_sub(REASONS) {
        reasons.push(format!("and {more} more reasons"));
    }
    reasons.join("; ")
}
