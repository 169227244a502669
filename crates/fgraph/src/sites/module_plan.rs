//! The plan for the functions of a module, before anything is changed.
//!
//! # Safety
//!
//! The unsafe code reads text of a module that stays loaded meanwhile.

use core::ops::Range;
use core::ptr;

use super::callee_preserved::CalleePreserved;
use super::candidates::Candidates;
use super::entries::{Entry, LookedAt, Subject};
use super::facts::ModuleFacts;
use super::function_plan::{Decision, FunctionPlan};
use super::planners::Planners;
use super::saved_plan::SavedDecision;
use super::system_calls;
use crate::process::listed_entries::ListedEntry;
use crate::report::analysis::SystemCallError;
use crate::report::error::RefusalReason;

/// The decisions about functions of a module and the system calls within them, from its file alone.
#[derive(Debug)]
pub(super) struct ModulePlan {
    pub(super) known: &'static ModuleFacts,
    candidates: Candidates,
    /// The decisions, in the parts in which they were made.
    decisions: Vec<Vec<Decision>>,
    /// The entries of the plan, if these are not all.
    pub(super) few: Option<Vec<Entry>>,
}

impl ModulePlan {
    /// Decides for `few` of the entries of a module or for `all`, except for those in `done`.
    /// `is_padded` is true if compilers have listed functions in it.
    pub(super) fn new(
        known: &'static ModuleFacts,
        mut candidates: Candidates,
        all: &[Entry],
        few: Option<Vec<Entry>>,
        done: Option<&LookedAt>,
        is_padded: bool,
        planners: Planners,
    ) -> Self {
        match &few {
            Some(few) => {
                let functions = few.iter().filter_map(|entry| match entry.subject {
                    Subject::Function(index) => Some(index),
                    _ => None,
                });
                if known.saving.is_some() {
                    // They are kept.
                    known.callers();
                    known.entered();
                }
                candidates =
                    candidates.with_callee_preserved(CalleePreserved::unknown(&known.file));
                candidates = candidates.only(functions);
            }
            None => {
                let entered = || _ = known.entered();
                planners.both(|| known.find_callee_preserved(is_padded), entered);
                known.find_names(planners);
            }
        }
        let decide = |entries: &[Entry]| {
            let entries = entries.iter();
            let entries = entries.filter(|entry| done.is_none_or(|done| !done.has(entry)));
            decide(known, &candidates, entries)
        };
        Self {
            decisions: planners.split(few.as_deref().unwrap_or(all), decide),
            known,
            candidates,
            few,
        }
    }

    /// Saves the plan for other processes, if there is a store and the plan has anything new;
    /// `listed` are the entries that compilers have listed.
    pub(super) fn save(&self, listed: &[ListedEntry]) {
        if self.known.saving.is_none() {
            return;
        }
        let mut saved = Vec::new();
        if self.few.is_none() {
            saved = vec![SavedDecision::default(); self.known.functions.len()];
            for decision in self.decisions.iter().flatten() {
                match decision.subject {
                    Subject::Function(index) => saved[index].plan = decision.to_saved(),
                    Subject::SystemCall(index) => saved[index].has_system_calls = true,
                    Subject::Listed => {}
                }
            }
        }
        self.known.save(listed, saved);
    }

    /// Returns the part of the plan that holds for the module as it is in memory. `is_taken`
    /// returns true if a range of addresses contains patched bytes already.
    ///
    /// # Safety
    ///
    /// The module must stay loaded until this returns.
    pub(super) unsafe fn in_memory(self, is_taken: impl Fn(&Range<usize>) -> bool) -> LivePlan {
        let mut live = LivePlan {
            functions: Vec::with_capacity(self.decisions.iter().map(Vec::len).sum()),
            refused: Vec::new(),
        };
        for mut decision in self.decisions.into_iter().flatten() {
            let mapping = self.candidates.check_mapping(decision.address);
            decision.compare(mapping, |address, now| {
                let text = ptr::with_exposed_provenance::<u8>(address);
                // SAFETY: readable text of a module that stays loaded.
                unsafe { text.copy_to_nonoverlapping(now.as_mut_ptr(), now.len()) };
                true
            });
            live.add(decision);
        }
        live.separate(is_taken);
        live
    }
}

/// Decides for these entries of a module, and for the system calls within them.
fn decide<'a>(
    known: &'static ModuleFacts,
    candidates: &Candidates,
    entries: impl Iterator<Item = &'a Entry>,
) -> Vec<Decision> {
    // Breakpoints are planned for all users, and withheld from users that may not have them.
    let blocks_signals = known.blocks_signals();
    let most = entries.size_hint().1.unwrap_or(0);
    let (mut decisions, mut calls) = (Vec::with_capacity(most), Vec::new());
    for &Entry {
        subject, address, ..
    } in entries
    {
        if let Subject::Function(index) = subject
            && let Some((code, saved)) = candidates.saved(index)
            && let Some(decision) = Decision::restore(index, &code, saved)
        {
            decisions.push(decision);
            continue;
        }
        let found = match subject {
            Subject::Function(index) => candidates.function(index),
            _ => candidates.other(address),
        };
        if let (Subject::Function(index), Ok(function)) = (subject, &found) {
            calls.extend(system_calls::of(index, function, blocks_signals));
        }
        let callers = || known.callers();
        decisions.push(Decision::new(
            subject,
            address,
            &found,
            callers,
            !blocks_signals,
        ));
    }
    decisions.append(&mut calls);
    decisions
}

/// The plan for functions of a module as it is in memory, and the functions that are refused.
#[derive(Debug)]
pub(super) struct LivePlan {
    /// In the order of the patched bytes, which do not overlap.
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

impl Refused {
    pub(super) fn new(function: &FunctionPlan, reason: RefusalReason) -> Self {
        Self {
            subject: function.subject,
            address: function.address,
            reason,
        }
    }
}

impl LivePlan {
    fn add(&mut self, decision: Decision) {
        match decision.plan {
            Ok(plan) => self.functions.push(plan),
            Err(reason) => self.refused.push(Refused {
                subject: decision.subject,
                address: decision.address,
                reason,
            }),
        }
    }

    /// Refuses functions that overlap with an earlier one, or with ranges that `is_taken` reports.
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
                    // mov eax, number
                    let [_, number @ ..] = one.original;
                    let number = u32::from_le_bytes(number);
                    RefusalReason::SystemCall(SystemCallError::AtEntry { number })
                }
                _ => one.plan.no_jump.take().unwrap_or(RefusalReason::Overlap),
            };
            refused.push(Refused::new(one, reason));
            false
        });
    }
}

#[cfg(test)]
mod tests {
    use core::ffi::CStr;
    use core::num::NonZeroUsize;
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};

    use super::super::linked_module::LinkedModule;
    use super::super::module::ModuleSites;
    use super::super::names::Names;
    use super::*;
    use crate::process::modules;
    use crate::process::plan_store::{self, PlanStore};

    /// Plans in memory.
    #[derive(Default)]
    struct Memory(Mutex<BTreeMap<u128, Vec<u8>>>);

    // SAFETY: `load` returns the bytes that were saved for the same key.
    unsafe impl PlanStore for Memory {
        fn load(&self, _module: &str, key: u128) -> Option<Vec<u8>> {
            self.0.lock().unwrap().get(&key).cloned()
        }

        fn save(&self, _module: &str, key: u128, plan: &[u8]) {
            self.0.lock().unwrap().insert(key, plan.to_owned());
        }
    }

    /// Libraries of others, which are tested where they are.
    const LIBRARIES: [&CStr; 5] = [
        c"libstdc++.so.6",
        c"libcrypto.so.3",
        c"libsqlite3.so.0",
        c"libz.so.1",
        c"libm.so.6",
    ];

    /// Held by a test that plans all that is loaded: others load libraries and keep plans.
    static ALONE: Mutex<()> = Mutex::new(());

    /// The decisions about a module.
    struct Planned {
        path: String,
        decisions: Vec<String>,
        /// The names of all functions, those of each once.
        names: Names,
        /// Number of decisions that another process has saved, and number of these that still hold.
        saved: [usize; 2],
    }

    /// The decisions about each module that is loaded.
    fn plans(planners: Planners) -> Vec<Planned> {
        let protections = Arc::new(modules::protections());
        let loaded = modules::loaded().0.into_iter();
        let plans = loaded.filter_map(|loaded| {
            let linked = LinkedModule::new(loaded, None, false);
            let mut module = ModuleSites::new(linked, None);
            module.read_lists();
            let plan = module.plan(&protections, None, planners)?;
            let known = plan.known;
            let is_whole = |saved: SavedDecision| saved.plan.is_some() && !saved.has_system_calls;
            let is_saved = |&index: &usize| known.saved_decision(index).is_some_and(is_whole);
            let saved = (0..known.functions.len()).filter(is_saved);
            let restored = saved.clone();
            let restored = restored.filter(|&index| {
                let saved = plan.candidates.saved(index);
                saved.is_some_and(|(code, saved)| Decision::restore(index, &code, saved).is_some())
            });
            let mut names = Names::default();
            for index in 0..known.functions.len() {
                names.push(known.names_of(index).iter().map(String::as_str));
            }
            let decisions = plan.decisions.iter().flatten();
            let decisions = decisions.map(|decision| format!("{decision:?}"));
            Some(Planned {
                path: module.path().to_owned(),
                decisions: decisions.collect(),
                names,
                saved: [saved.count(), restored.count()],
            })
        });
        plans.collect()
    }

    #[test]
    fn threads_plan_together_as_one_does() {
        let _alone = ALONE.lock().unwrap();
        let threads = NonZeroUsize::new(3).unwrap();
        let mut plans = [Planners::ONE, Planners::new(threads)].map(plans);
        for plan in plans.iter_mut().flatten() {
            plan.decisions.sort_unstable();
        }
        let [alone, together] = plans;
        assert_eq!(alone.len(), together.len());
        for (alone, together) in alone.iter().zip(&together) {
            assert_eq!(alone.decisions, together.decisions, "{}", alone.path);
        }
    }

    #[test]
    fn a_plan_that_was_saved_is_the_same_as_a_new_one() {
        let _alone = ALONE.lock().unwrap();
        for library in LIBRARIES {
            // SAFETY: libraries that many programs load.
            unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_NOW) };
        }
        let new = plans(Planners::ONE);
        assert!(new.len() > 2 && new.iter().all(|plan| plan.saved == [0, 0]));
        plan_store::set(Some(Arc::new(Memory::default())));
        let first = plans(Planners::ONE);
        let second = plans(Planners::ONE);
        plan_store::set(None);
        for ((new, first), second) in new.iter().zip(&first).zip(&second) {
            let path = &new.path;
            let [saved, restored] = second.saved;
            assert_eq!(saved, restored, "{path}");
            assert!(
                saved > new.decisions.len() / 2 || path.contains("vdso"),
                "{path}: {saved}"
            );
            for plan in [first, second] {
                assert!(new.names.parts() == plan.names.parts(), "{path}");
                assert_eq!(new.decisions.len(), plan.decisions.len(), "{path}");
                for (new, decision) in new.decisions.iter().zip(&plan.decisions) {
                    assert_eq!(new, decision, "{path}");
                }
            }
        }
    }
}
