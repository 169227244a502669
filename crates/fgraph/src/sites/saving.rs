//! The plan of a module's file that is kept for other processes, or was kept by another one.

use core::hash::Hasher as _;
use core::{iter, mem};
use std::sync::{Mutex, MutexGuard, PoisonError};

use fgraph_symbols::elf::ElfFile;
use fgraph_symbols::functions::{Functions, Name};
use fgraph_symbols::notrace::Notrace;

use super::hash::{XxHash3_64, XxHash3_128};
use super::restartable::Sequence;
use super::saved_plan::{self, SavedFacts, SavedPlan};
use crate::arch::cpu;
use crate::os::status;
use crate::process::listed_entries::ListedEntry;
use crate::process::plan_store::{self, PlanStore};

/// The plan of a module's file that is kept.
#[derive(Debug)]
pub(super) struct Saving {
    /// A hash of everything that planning reads of files and of the processor's features.
    key: u128,
    /// A hash of the names that the linker gave to functions; 0 if it gave none.
    names: u64,
    state: Mutex<State>,
}

/// The parts of memory that planning reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context<'a> {
    /// The address of the module.
    pub(super) bias: usize,
    /// The entries that compilers have listed.
    pub(super) listed: &'a [ListedEntry],
    pub(super) sequences: &'a [Sequence],
}

#[derive(Debug)]
struct State {
    /// The functions of the file alone, in saved form; empty once they are kept.
    functions: Vec<u8>,
    /// Another process's facts, until they are used.
    found: Option<SavedFacts>,
    kept: Kept,
}

/// The amount of data that is kept and holds here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kept {
    Nothing,
    /// All except decisions and names.
    Facts,
    All,
}

impl Kept {
    /// Returns the amount of these facts.
    fn with(facts: &SavedFacts) -> Self {
        match facts.decisions.is_empty() {
            true => Self::Facts,
            false => Self::All,
        }
    }
}

impl Saving {
    /// Searches for the plan of the file at `path` with its debug file, whose functions have the
    /// rule `notrace`. Also returns the functions, if they were found. Returns `None` if nothing is
    /// to be kept.
    pub(super) fn start(
        path: &str,
        file: &ElfFile<'static>,
        debug: Option<&ElfFile<'static>>,
        notrace: Option<Notrace>,
    ) -> Option<(Self, Option<Functions<'static>>)> {
        let store = plan_store::get()?;
        let key = key(file, debug, notrace);
        let found = load(&*store, path, key).and_then(|found| {
            let functions = Functions::restore(file, debug, &found.functions);
            Some((functions.ok()??, found.facts))
        });
        let (functions, found) = found.unzip();
        let state = State {
            functions: Vec::new(),
            found,
            kept: Kept::Nothing,
        };
        let saving = Self {
            key,
            names: 0,
            state: Mutex::new(state),
        };
        Some((saving, functions))
    }

    /// Adds the functions that were read from the file.
    pub(super) fn add_functions(&mut self, functions: &Functions<'_>) {
        let state = self.state.get_mut();
        functions.save(&mut state.unwrap_or_else(PoisonError::into_inner).functions);
    }

    /// Adds the names that the linker gives to functions.
    pub(super) fn add_names(&mut self, names: &[(u64, Name<'_>)]) {
        if names.is_empty() {
            // The same as when the linker cannot be queried yet.
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

    /// Returns another process's facts about the file, which has `functions` functions, if they
    /// hold here. Only the first call gets them.
    pub(super) fn take(&self, functions: usize, context: &Context<'_>) -> Option<SavedFacts> {
        let mut state = self.lock();
        let found = state.found.take()?;
        let kept = Kept::with(&found);
        let of_all = [found.decisions.len(), found.names.len()];
        if found.context != self.hash(context)
            || kept == Kept::All && of_all != [functions, functions]
        {
            return None;
        }
        state.kept = kept;
        Some(found)
    }

    /// Saves `facts` about the file at `path`, unless at least as much is kept.
    pub(super) fn save(&self, path: &str, facts: SavedFacts, context: &Context<'_>) {
        let mut state = self.lock();
        let kept = Kept::with(&facts);
        let Some(store) = plan_store::get().filter(|_| state.kept < kept) else {
            return;
        };
        state.kept = kept;
        let mut functions = mem::take(&mut state.functions);
        if functions.is_empty() {
            let before = load(&*store, path, self.key);
            functions = before.map_or(functions, |before| before.functions);
        }
        if functions.is_empty() {
            return;
        }
        let facts = SavedFacts {
            context: self.hash(context),
            ..facts
        };
        let plan = saved_plan::encode(self.key, &functions, &facts);
        store.save(path, self.key, &plan);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a hash of the memory that planning reads.
    fn hash(&self, context: &Context<'_>) -> u64 {
        let &Context {
            bias,
            listed,
            sequences,
        } = context;
        let mut hash = XxHash3_64::new();
        hash.write_u64(self.names);
        for entry in listed {
            hash.write_usize(entry.address.wrapping_sub(bias));
            hash.write_u8(entry.list as u8);
        }
        hash.write_u8(u8::MAX);
        for place in sequences.iter().flat_map(Sequence::places) {
            hash.write_usize(place.wrapping_sub(bias));
        }
        hash.finish()
    }
}

/// Returns the kept plan of a module for a key, if there is one.
fn load(store: &dyn PlanStore, module: &str, key: u128) -> Option<SavedPlan> {
    let plan = store.load(module, key)?;
    saved_plan::decode(key, &plan)
}

fn key(file: &ElfFile<'_>, debug: Option<&ElfFile<'_>>, notrace: Option<Notrace>) -> u128 {
    let mut hash = XxHash3_128::new();
    let version = concat!(env!("CARGO_PKG_VERSION"), " 3");
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
        // Separates the bytes of two files.
        hash.write(&[0]);
    }
    hash.finish_128()
}

#[cfg(test)]
mod tests {
    use fgraph_symbols::elf::EntryList;

    use super::super::branch_targets::Entered;
    use super::super::candidate::Callers;
    use super::super::names::Names;
    use super::super::saved_plan::SavedDecision;
    use super::*;

    #[test]
    fn results_of_another_context_are_not_used() {
        let name = Name {
            symbol: "f",
            version: None,
        };
        let mut of_one = Names::default();
        of_one.push(["f"].into_iter());
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
                        callee_preserved: None,
                        decisions: vec![SavedDecision::default()],
                        names: of_one.clone(),
                    }),
                    kept: Kept::Nothing,
                }),
            };
            saving.add_names(names);
            saving
        };
        let entry = |address| ListedEntry {
            address,
            list: EntryList::Patchable,
        };
        let at = |bias, listed| Context {
            bias,
            listed,
            sequences: &[],
        };
        let (names, listed) = ([(0x1000, name)], [entry(0x51000)]);
        let here = at(0x5_0000, &listed);
        let hash = saving(&names, 0).hash(&here);
        let saving = |names| saving(names, hash);
        assert!(saving(&names).take(1, &here).is_some());
        let elsewhere = [entry(0x61000)];
        assert!(saving(&names).take(1, &at(0x6_0000, &elsewhere)).is_some());
        assert!(saving(&names).take(2, &here).is_none());
        assert!(saving(&[]).take(1, &here).is_none());
        assert!(saving(&names).take(1, &at(0x6_0000, &listed)).is_none());
        assert!(saving(&names).take(1, &at(0x5_0000, &[])).is_none());
    }
}
