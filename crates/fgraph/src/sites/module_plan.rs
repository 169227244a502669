//! What becomes of the functions of a module, before anything is done.

use core::ops::Range;

use super::candidates::{Candidates, Source};
use super::entries::{Entry, Subject};
use super::facts::ModuleFacts;
use super::function_plan::FunctionPlan;
use super::system_calls;
use crate::arch::system_calls::SystemCallError;
use crate::report::error::RefusalReason;

/// How functions of a module are traced, or why they cannot be: decided from their code alone.
#[derive(Debug, Default)]
pub(super) struct ModulePlan {
    /// In the order of what is patched, which does not overlap.
    pub(super) functions: Vec<FunctionPlan>,
    pub(super) refused: Vec<Refused>,
}

/// A function, or a system call within one, that cannot be traced.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) subject: Subject,
    pub(super) address: usize,
    pub(super) reason: RefusalReason,
}

impl ModulePlan {
    /// The plan for these entries of a module and the system calls within them. `is_taken` says
    /// whether a range of addresses has something in it that is patched already.
    pub(super) fn new<'a>(
        known: &'static ModuleFacts,
        candidates: &Candidates,
        entries: impl Iterator<Item = &'a Entry>,
        is_taken: impl Fn(&Range<usize>) -> bool,
    ) -> Self {
        // Who may have the functions of these is asked when a filter selects them.
        let blocks_signals = known.blocks_signals();
        let mut this = Self::default();
        let mut calls = Vec::new();
        for &Entry {
            subject, address, ..
        } in entries
        {
            let found = match subject {
                Subject::Function(index) => candidates.function(index, Source::Memory),
                _ => candidates.other(address, Source::Memory),
            };
            if let (Subject::Function(index), Ok(function)) = (subject, &found) {
                calls.extend(system_calls::of(index, function, blocks_signals));
            }
            let plan = FunctionPlan::new(subject, found, || known.callers(), !blocks_signals);
            this.add(subject, address, plan);
        }
        for (subject, address, plan) in calls {
            this.add(subject, address, plan);
        }
        this.separate(is_taken);
        this
    }

    fn add(&mut self, subject: Subject, address: usize, plan: Result<FunctionPlan, RefusalReason>) {
        match plan {
            Ok(plan) => self.functions.push(plan),
            Err(reason) => self.refused.push(Refused {
                subject,
                address,
                reason,
            }),
        }
    }

    /// Refuses what overlaps with what is before it, or with what `is_taken`.
    fn separate(&mut self, is_taken: impl Fn(&Range<usize>) -> bool) {
        // Symbols may be nested.
        // A function goes before a system call that it begins with.
        let place = |one: &FunctionPlan| (one.entry(), one.subject.is_system_call());
        self.functions.sort_unstable_by_key(place);
        let mut end = 0;
        let refused = &mut self.refused;
        self.functions.retain_mut(|one| {
            let patched = one.entry()..one.entry() + one.plan.patched_len();
            let overlaps_before = patched.start < end;
            if !overlaps_before {
                end = patched.end;
            }
            if !overlaps_before && !is_taken(&patched) {
                return true;
            }
            let reason = match one.subject {
                Subject::SystemCall(_) if overlaps_before => {
                    RefusalReason::SystemCall(SystemCallError::AtEntry)
                }
                _ => one.plan.no_jump.take().unwrap_or(RefusalReason::Overlap),
            };
            refused.push(Refused {
                subject: one.subject,
                address: one.address,
                reason,
            });
            false
        });
    }
}
