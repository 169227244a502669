//! The filter of a user, to which functions are added and from which they are removed.

use std::collections::HashSet;

use super::pattern::Pattern;
use super::{Filter, Part};

/// A filter, after filters were added to it and removed from it.
///
/// It stays as short as possible, whatever the number of changes: of repeated filters, only the
/// last counts.
#[derive(Clone, Debug)]
pub struct LiveFilter {
    /// The last step that a function matches decides; a function that matches none is not selected.
    pub(super) steps: Vec<Step>,
}

/// Adds functions to those that the steps before it select, or removes some.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) adds: bool,
    pub(super) part: Part,
}

impl LiveFilter {
    /// Makes the live form of `filter`, before any change.
    #[must_use]
    pub fn new(filter: Filter) -> Self {
        let mut this = Self { steps: Vec::new() };
        this.change(filter, true);
        this
    }

    /// Also selects the functions that `filter` selects.
    pub fn add(&mut self, filter: Filter) {
        self.change(filter, true);
    }

    /// Stops selecting the functions that `filter` selects.
    pub fn remove(&mut self, filter: Filter) {
        self.change(filter, false);
    }

    fn change(&mut self, filter: Filter, adds: bool) {
        for part in filter.parts {
            if !part.is_nothing() {
                self.push(Step { adds, part });
            }
        }
        // There is no function to remove yet.
        let first = self.steps.iter().position(|step| step.adds);
        self.steps.drain(..first.unwrap_or(self.steps.len()));
    }

    /// Adds a step that takes precedence over all others.
    fn push(&mut self, step: Step) {
        let Step { adds, part } = step;
        if part.is_everything() {
            self.steps
                .retain(|step| adds && step.part.has_system_calls());
        }
        if !part.is_list() {
            self.steps.retain(|other| !other.part.is_same(&part));
            self.steps.push(Step { adds, part });
            return;
        }
        let new: HashSet<&Pattern> = part.trace.iter().collect();
        self.steps.retain_mut(|step| {
            let trace = &mut step.part.trace;
            if step.part.notrace.is_empty() && !trace.is_empty() {
                trace.retain(|pattern| !new.contains(pattern));
                return !trace.is_empty();
            }
            true
        });
        match self.steps.last_mut() {
            Some(last) if last.adds == adds && last.part.is_list() => {
                last.part.trace.extend(part.trace);
            }
            _ => self.steps.push(Step { adds, part }),
        }
    }
}
