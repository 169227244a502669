//! What is kept of a module's file for other processes, and what others have kept.

use core::hash::Hasher as _;
use core::iter;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fgraph_symbols::elf::ElfFile;
use fgraph_symbols::functions::{Functions, Name};
use fgraph_symbols::notrace::Notrace;
use twox_hash::{XxHash3_64, XxHash3_128};

use super::entries::Subject;
use super::facts::ModuleFacts;
use super::function_plan::Decision;
use super::saved_plan::{self, SavedDecision, SavedFacts, SavedWindow};
use crate::arch::cpu;
use crate::os::status;
use crate::process::modules::ListedEntry;
use crate::process::plan_store;
use crate::report::functions::TraceMethod;

/// What is kept of a module's file.
#[derive(Debug)]
pub(super) struct Saving {
    /// A hash of all that planning reads of files, and of what it asks the processor.
    key: u128,
    /// A hash of the names that the linker gave to functions; 0 if it gave none.
    names: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The functions of the file alone, as they are saved; empty once all is kept.
    functions: Vec<u8>,
    /// What another process has found, until it is used.
    found: Option<SavedFacts>,
    /// True if facts are kept that hold here.
    has_facts: bool,
}

impl Saving {
    /// Looks for what is kept of the file at `path` with its debug file, of whose functions
    /// `notrace` is the rule. Also returns the functions, if they were found. `None` if nothing is
    /// to be kept.
    pub(super) fn start(
        path: &str,
        file: &ElfFile<'static>,
        debug: Option<&ElfFile<'static>>,
        notrace: Option<Notrace>,
    ) -> Option<(Self, Option<Functions<'static>>)> {
        let store = plan_store::get()?;
        let key = key(file, debug, notrace);
        let found = store.load(path, key);
        let found = found.and_then(|plan| saved_plan::decode(key, &plan));
        let mut state = State {
            functions: Vec::new(),
            found: None,
            has_facts: false,
        };
        let mut functions = None;
        if let Some(found) = found
            && let Ok(Some(restored)) = Functions::restore(file, debug, &found.functions)
        {
            functions = Some(restored);
            state.functions = found.functions;
            state.found = Some(found.facts);
        }
        let saving = Self {
            key,
            names: 0,
            state: Mutex::new(state),
        };
        Some((saving, functions))
    }

    /// Takes note of the functions that were read of the file.
    pub(super) fn add_functions(&mut self, functions: &Functions<'_>) {
        let state = self.state.get_mut();
        functions.save(&mut state.unwrap_or_else(PoisonError::into_inner).functions);
    }

    /// Takes note of the names that the linker gives to functions.
    pub(super) fn add_names(&mut self, names: &[(u64, Name<'_>)]) {
        if names.is_empty() {
            // As where it cannot be asked yet.
            return;
        }
        let mut hash = XxHash3_64::new();
        for (address, name) in names {
            hash.write_u64(*address);
            hash.write(name.symbol.as_bytes());
            hash.write_u8(0);
        }
        self.names = hash.finish();
    }

    /// What another process has found out about the file, if that holds here: `listed` are the
    /// entries that compilers have listed. For the first who asks.
    pub(super) fn take(&self, known: &ModuleFacts, listed: &[ListedEntry]) -> Option<SavedFacts> {
        let mut state = self.lock();
        let found = state.found.take()?;
        let has_decisions = !found.decisions.is_empty();
        if found.context != self.context(known, listed)
            || has_decisions && found.decisions.len() != known.functions.len()
        {
            return None;
        }
        state.has_facts = true;
        if has_decisions {
            state.functions = Vec::new();
        }
        Some(found)
    }

    /// Saves what is known of the file, and the `decisions` about all its functions if they are
    /// made, unless that is kept.
    pub(super) fn save(
        &self,
        known: &ModuleFacts,
        listed: &[ListedEntry],
        decisions: Option<&[Decision]>,
    ) {
        let mut state = self.lock();
        let is_kept = state.functions.is_empty() || state.has_facts && decisions.is_none();
        let facts = known.saved_facts().filter(|_| !is_kept);
        let (Some(store), Some(facts)) = (plan_store::get(), facts) else {
            return;
        };
        let facts = SavedFacts {
            context: self.context(known, listed),
            decisions: decisions.map_or(Vec::new(), |decisions| {
                saved_decisions(known.functions.len(), decisions)
            }),
            ..facts
        };
        let plan = saved_plan::encode(self.key, &state.functions, &facts);
        store.save(known.path, self.key, &plan);
        state.has_facts = true;
        if decisions.is_some() {
            state.functions = Vec::new();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A hash of what planning reads of memory.
    fn context(&self, known: &ModuleFacts, listed: &[ListedEntry]) -> u64 {
        let mut hash = XxHash3_64::new();
        hash.write_u64(self.names);
        for entry in listed {
            hash.write_usize(entry.address.wrapping_sub(known.bias));
            hash.write_u8(entry.list as u8);
        }
        hash.write_u8(u8::MAX);
        for sequence in known.sequences() {
            let places = sequence.places();
            let places = places.into_iter();
            places.for_each(|place| hash.write_usize(place.wrapping_sub(known.bias)));
        }
        hash.finish()
    }
}

fn key(file: &ElfFile<'_>, debug: Option<&ElfFile<'_>>, notrace: Option<Notrace>) -> u128 {
    let mut hash = XxHash3_128::new();
    let version = concat!(env!("CARGO_PKG_VERSION"), " 1");
    let vectors = (cpu::vector_bytes(), cpu::opmask_bytes());
    let rest = format!(
        "{version} {vectors:?} {} {notrace:?}",
        status::has_shadow_stacks()
    );
    hash.write(rest.as_bytes());
    for file in iter::once(file).chain(debug) {
        for bytes in file.bytes_but_debug() {
            hash.write(bytes);
        }
        // The bytes of two files are apart.
        hash.write(&[0]);
    }
    hash.finish_128()
}

/// The decisions about functions, by their index.
fn saved_decisions(functions: usize, decisions: &[Decision]) -> Vec<SavedDecision> {
    let mut saved = vec![SavedDecision::default(); functions];
    for decision in decisions {
        match decision.subject {
            Subject::Function(index) => saved[index].plan = saved_window(decision),
            Subject::SystemCall(index) => saved[index].has_system_calls = true,
            Subject::Listed => {}
        }
    }
    saved
}

fn saved_window(decision: &Decision) -> Option<SavedWindow> {
    let plan = &decision.plan.as_ref().ok()?.plan;
    if plan.how == TraceMethod::Breakpoint || plan.no_jump.is_some() {
        return None;
    }
    Some(SavedWindow {
        lead: plan.lead.try_into().ok()?,
        len: match &plan.window {
            Some(window) => window.len().try_into().ok()?,
            None => 0,
        },
        relay: plan.relay.unwrap_or(0).try_into().ok()?,
        variant: plan.variant as u8,
        is_exchanged: plan.is_exchanged,
    })
}

#[cfg(test)]
mod tests {
    use core::ffi::CStr;
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use fgraph_symbols::elf::EntryList;

    use super::super::branch_targets::Entered;
    use super::super::candidate::Callers;
    use super::super::linked_module::LinkedModule;
    use super::super::module::ModuleSites;
    use super::*;
    use crate::process::modules;
    use crate::process::plan_store::PlanStore;

    /// Plans in memory.
    #[derive(Default)]
    struct Memory(Mutex<BTreeMap<u128, Vec<u8>>>);

    // SAFETY: what was saved is found.
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

    /// What is decided about a module.
    struct Planned {
        path: String,
        decisions: Vec<String>,
        /// How many decisions another process has saved, and how many of these hold.
        saved: [usize; 2],
    }

    /// The decisions about each module that is loaded.
    fn plans() -> Vec<Planned> {
        let protections = Arc::new(modules::protections());
        let loaded = modules::loaded().0.into_iter();
        let plans = loaded.filter_map(|loaded| {
            let linked = LinkedModule::new(loaded, None, false);
            let mut module = ModuleSites::new(linked, None);
            module.read_lists();
            let plan = module.plan(&protections, None)?;
            let known = plan.known;
            let is_whole = |saved: SavedDecision| saved.plan.is_some() && !saved.has_system_calls;
            let is_saved = |&index: &usize| known.saved_decision(index).is_some_and(is_whole);
            let saved = (0..known.functions.len()).filter(is_saved);
            let restored = saved.clone();
            let restored = restored.filter(|&index| plan.candidates.saved(index).is_some());
            let decisions = plan.decisions.iter();
            let decisions = decisions.map(|decision| format!("{decision:?}"));
            Some(Planned {
                path: module.path().to_owned(),
                decisions: decisions.collect(),
                saved: [saved.count(), restored.count()],
            })
        });
        plans.collect()
    }

    #[test]
    fn a_plan_that_was_saved_is_the_same_as_a_new_one() {
        for library in LIBRARIES {
            // SAFETY: libraries that many programs load.
            unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_NOW) };
        }
        let new = plans();
        assert!(new.len() > 2 && new.iter().all(|plan| plan.saved == [0, 0]));
        plan_store::set(Some(Arc::new(Memory::default())));
        let first = plans();
        let second = plans();
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
                assert_eq!(new.decisions.len(), plan.decisions.len(), "{path}");
                for (new, decision) in new.decisions.iter().zip(&plan.decisions) {
                    assert_eq!(new, decision, "{path}");
                }
            }
        }
    }

    #[test]
    fn what_was_found_in_another_context_is_not_used() {
        let (listed, names) = (
            [],
            [(
                0x1000,
                Name {
                    symbol: "f",
                    version: None,
                },
            )],
        );
        let module = modules::loaded().0.into_iter().next().unwrap();
        let mut linked = LinkedModule::new(module, None, false);
        let known = linked.read().unwrap();
        let saving = |names: &[(u64, Name<'_>)], context| {
            let mut saving = Saving {
                key: 0,
                names: 0,
                state: Mutex::new(State {
                    functions: vec![1],
                    found: Some(SavedFacts {
                        context,
                        callers: Callers::Abi,
                        entered: Entered::default(),
                        reliance: None,
                        decisions: Vec::new(),
                    }),
                    has_facts: false,
                }),
            };
            saving.add_names(names);
            saving
        };
        let context = saving(&names, 0).context(known, &listed);
        assert!(saving(&names, context).take(known, &listed).is_some());
        assert!(saving(&[], context).take(known, &listed).is_none());
        let entry = ListedEntry {
            address: known.bias + 0x1000,
            list: EntryList::Patchable,
        };
        assert!(saving(&names, context).take(known, &[entry]).is_none());
    }
}
