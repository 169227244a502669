//! The functions of a module as they are found, to be classified one by one.

use std::sync::Arc;

use fgraph_symbols::elf::EntryList;

use super::branch_targets::Entered;
use super::callee_preserved::CalleePreserved;
use super::candidate::Candidate;
use super::facts::ModuleFacts;
use super::file_code::Found;
use super::linked_module::LinkedModule;
use super::saved_plan::SavedWindow;
use super::toolchain::{OWN, is_own};
use crate::arch::nop;
use crate::arch::trampoline;
use crate::os::maps::Protections;
use crate::process::listed_entries::ListedEntry;
use crate::process::loader_event;
use crate::process::modules::LoadedModule;
use crate::report::error::RefusalReason;

/// The functions of a module, and the data that analyzing one takes.
#[derive(Debug)]
pub(super) struct Candidates {
    known: &'static ModuleFacts,
    loaded: LoadedModule,
    protections: Arc<Protections>,
    /// The functions that have listed entries, in order.
    listed: Vec<u64>,
    /// The entries that belong to no function.
    others: Vec<usize>,
    /// The functions that need more registers preserved, if the facts do not have them yet.
    callee_preserved: Option<CalleePreserved>,
    /// The bytes at which the requested functions are entered, if the facts do not have them yet.
    entered: Option<Entered>,
}

impl Candidates {
    pub(super) fn new(
        known: &'static ModuleFacts,
        module: &LinkedModule,
        protections: &Arc<Protections>,
    ) -> Self {
        let functions = &known.functions;
        // An mcount call without a symbol may be in the middle of a function.
        let padded = |entry: &&ListedEntry| entry.list != EntryList::Mcount;
        let padded = module.listed.iter().filter(padded);
        let mut entries: Vec<usize> = padded.map(|entry| entry.address).collect();
        entries.dedup();
        // The start of the function to which a listed entry belongs: its padding may begin before
        // it.
        let start = |address: usize| {
            let in_file = address.wrapping_sub(known.bias) as u64;
            let around = functions.containing(in_file);
            let start = around.map(|index| functions.address(index));
            let start = start.filter(|start| in_file - start <= nop::ENDBR64.len() as u64);
            start.or_else(|| {
                let index = functions.index_at_or_behind(in_file)?;
                let start = functions.address(index);
                let len = usize::try_from(start - in_file).ok()?;
                let padding = known.file.bytes_at(in_file, len)?;
                nop::last_of(padding).map(|_| start)
            })
        };
        let mut listed: Vec<u64> = entries.iter().filter_map(|&at| start(at)).collect();
        listed.sort_unstable();
        let unnamed = |&event: &usize| {
            let in_file = event.wrapping_sub(known.bias) as u64;
            functions.index_at(in_file).is_none()
        };
        let event = module.event().filter(unnamed);
        let mut others: Vec<usize> = entries.into_iter().chain(event).collect();
        others.retain(|&at| start(at).is_none() && !trampoline::own_text().contains(&at));
        Self {
            known,
            loaded: module.loaded.clone(),
            protections: protections.clone(),
            listed,
            others,
            callee_preserved: None,
            entered: None,
        }
    }

    /// Sets the functions that need more registers preserved, if the facts do not have them yet.
    pub(super) fn with_callee_preserved(mut self, callee_preserved: CalleePreserved) -> Self {
        self.callee_preserved = Some(callee_preserved);
        self
    }

    /// Restricts it to these functions.
    pub(super) fn only(mut self, functions: impl Iterator<Item = usize>) -> Self {
        if !self.known.has_entered() {
            let Self { known, .. } = self;
            self.entered = Some(Entered::find_into(&known.file, &known.functions, functions));
        }
        self
    }

    /// Iterates over the indices of functions that are not fgraph's own.
    pub(super) fn functions(&self) -> impl Iterator<Item = usize> + use<> {
        let known = self.known;
        let may_be_own = known.functions.may_have_in_name(OWN);
        (0..known.functions.len()).filter(move |&index| {
            let is_own_text = trampoline::own_text().contains(&known.address(index));
            !(is_own_text || may_be_own && is_own(known.symbol(index)))
        })
    }

    /// Returns the entries that only a list or the linker names.
    pub(super) fn others(&self) -> &[usize] {
        &self.others
    }

    /// Returns the code of a function, and another process's decision, if that is sufficient.
    pub(super) fn saved(&self, index: usize) -> Option<(Candidate<'static>, SavedWindow)> {
        let saved = self.known.saved_decision(index)?;
        let window = saved.plan.filter(|_| !saved.has_system_calls)?;
        Some((self.code(index).ok()?, window))
    }

    /// Returns a function by its index.
    pub(super) fn function(&self, index: usize) -> Found<'static> {
        let known = self.known;
        let code = self.code(index)?;
        let address = known.functions.address(index);
        let mut names = known.functions.names(index);
        let name = names.next();
        // It decides only between trampolines, so lists do not need it.
        let callee_preserved = known
            .callee_preserved
            .get()
            .or(self.callee_preserved.as_ref());
        Ok(Candidate {
            listed: self.listed.binary_search(&address).is_ok(),
            entered: self
                .entered
                .as_ref()
                .unwrap_or_else(|| known.entered())
                .of(index),
            preserves_by_code: callee_preserved
                .is_none_or(|callee_preserved| callee_preserved.by_code(address)),
            preserves_by_convention: callee_preserved
                .is_some_and(|callee_preserved| callee_preserved.by_convention(address)),
            leads_to_misled: known.exits().lead_to_misled(index),
            symbol: name.map_or("", |name| name.symbol),
            notrace: known.notrace(index, name.into_iter().chain(names)),
            ..code
        })
    }

    /// Returns a function by its index, as far as its code tells.
    fn code(&self, index: usize) -> Found<'static> {
        self.known
            .code()
            .function(index, |address| self.segment_end(address))
    }

    /// Returns one of the entries that only a list or the linker names.
    pub(super) fn other(&self, address: usize) -> Found<'static> {
        Ok(Candidate {
            listed: loader_event::event() != Some(address),
            ..self
                .known
                .code()
                .at(address, address + 16, |address| self.segment_end(address))?
        })
    }

    /// Returns the end of the code segment that contains an address.
    fn segment_end(&self, address: usize) -> Option<usize> {
        let mut text = self.loaded.text();
        text.find_map(|text| text.contains(&address).then_some(text.end))
    }

    /// Checks that code in memory may be patched, by its mapping.
    ///
    /// # Errors
    ///
    /// Fails with the reason that it may not.
    pub(super) fn check_mapping(&self, address: usize) -> Result<(), RefusalReason> {
        match self.protections.of(address) {
            Some(now) if !now.executable => Err(RefusalReason::NotText),
            Some(now) if now.writable => Err(RefusalReason::Writable),
            Some(now) if now.readable => Ok(()),
            _ => Err(RefusalReason::Unreadable),
        }
    }
}
