//! The functions of a module as they are found, for a decision on each.
//!
//! # Safety
//!
//! The unsafe code reads text of a module that stays loaded meanwhile.

use fgraph_symbols::elf::EntryList;
use fgraph_symbols::functions::Functions;

use super::branch_targets::Entered;
use super::classify::{Callers, Candidate};
use super::facts::ModuleFacts;
use super::module::ModuleSites;
use super::toolchain::{is_own, notrace_of};
use crate::arch::nop;
use crate::arch::trampoline;
use crate::os::maps::Protections;
use crate::process::loader_event;
use crate::process::modules::ListedEntry;
use crate::report::error::RefusalReason;

impl ModuleSites {
    /// Calls `each` with every function that may be traced, or that may not because of where it is.
    pub(super) fn each_candidate<'a>(
        &self,
        known: &'static ModuleFacts,
        protections: &Protections,
        mut each: impl FnMut(Option<usize>, Result<Candidate<'a>, (usize, RefusalReason)>, Callers),
    ) {
        let callers = known.callers;
        let entered = known
            .entered
            .get_or_init(|| Entered::find(&known.file, &known.functions));
        // It decides only by which trampoline functions go, so who lists them does not need it.
        let reliance = known.reliance.get();
        let own_text = trampoline::own_text();
        let functions = &known.functions;
        // What a list of mcount calls has without a symbol may be in the middle of a function.
        let padded = |entry: &&ListedEntry| entry.list != EntryList::Mcount;
        let mut listed: Vec<usize> = self
            .listed
            .iter()
            .filter(padded)
            .map(|e| e.address)
            .collect();
        listed.dedup();
        // The start of the function that a listed entry belongs to: its padding may begin before
        // it.
        let listed_start = |&address: &usize| {
            let in_file = address.wrapping_sub(known.bias) as u64;
            let around = functions.containing(in_file);
            let start = around.map(|index| functions.get(index).address);
            let start = start.filter(|start| in_file - start <= nop::ENDBR64.len() as u64);
            start.or_else(|| {
                let index = functions.index_at_or_behind(in_file)?;
                let start = functions.get(index).address;
                let len = usize::try_from(start - in_file).ok()?;
                let padding = known.file.bytes_at(in_file, len)?;
                nop::last_of(padding).map(|_| start)
            })
        };
        let mut listed_starts: Vec<u64> = listed.iter().filter_map(listed_start).collect();
        listed_starts.sort_unstable();
        let text = |address: usize, limit: usize| {
            let end = self.loaded.text().find(|text| text.contains(&address));
            let end = end.ok_or(RefusalReason::NotText)?.end.min(limit);
            match protections.of(address) {
                Some(now) if !now.executable => return Err(RefusalReason::NotText),
                Some(now) if now.writable => return Err(RefusalReason::Writable),
                Some(now) if now.readable => {}
                _ => return Err(RefusalReason::Unreadable),
            }
            // SAFETY: text of a module that stays loaded meanwhile, and readable.
            Ok(unsafe { core::slice::from_raw_parts(address as *const u8, end - address) })
        };
        for index in 0..functions.len() {
            let function = functions.get(index);
            let symbol = known.symbol(index);
            let address = known.bias.wrapping_add(function.address as usize);
            let limit = known.bias.wrapping_add(function.limit as usize);
            if own_text.contains(&address) || is_own(symbol) {
                continue;
            }
            let candidate = if function.is_resolver {
                Err(RefusalReason::Resolver)
            } else {
                text(address, limit)
            };
            let candidate = candidate.map(|code| Candidate {
                address,
                size: function.size as usize,
                text: code,
                file: known.file.bytes_at(function.address, code.len()),
                listed: listed_starts.binary_search(&function.address).is_ok(),
                relocated: known.relocated_behind(function.address),
                padding: gap(functions, index)
                    .filter(|&gap| {
                        let relocated = known.relocated_behind(gap);
                        relocated.is_none_or(|at| gap + at as u64 >= function.address)
                    })
                    .and_then(|gap| text(known.bias.wrapping_add(gap as usize), address).ok())
                    .unwrap_or_default(),
                entered: entered.of(index),
                code_is_relied_on: reliance
                    .is_none_or(|reliance| reliance.by_code(function.address)),
                convention_is_relied_on: reliance
                    .is_some_and(|reliance| reliance.by_convention(function.address)),
                symbol,
                notrace: notrace_of(functions, index, known.unnamed),
            });
            let candidate = candidate.map_err(|reason| (address, reason));
            each(Some(index), candidate, callers);
        }
        let unnamed = |&event: &usize| {
            let in_file = event.wrapping_sub(known.bias) as u64;
            self.has_event() && functions.index_at(in_file).is_none()
        };
        let event = loader_event::event().filter(unnamed);
        for &address in listed.iter().chain(&event) {
            let in_file = address.wrapping_sub(known.bias) as u64;
            if listed_start(&address).is_some() || own_text.contains(&address) {
                continue;
            }
            let candidate = text(address, address + 16).map(|text| Candidate {
                address,
                size: 0,
                text,
                file: known.file.bytes_at(in_file, text.len()),
                relocated: known.relocated_behind(in_file),
                listed: event != Some(address),
                padding: &[],
                entered: 0,
                code_is_relied_on: true,
                convention_is_relied_on: false,
                symbol: "",
                notrace: None,
            });
            each(None, candidate.map_err(|reason| (address, reason)), callers);
        }
    }
}

/// The end of what is before a function, if that is known.
pub(super) fn gap(functions: &Functions<'_>, index: usize) -> Option<u64> {
    let previous = functions.get(index.checked_sub(1)?);
    let end = previous.address + previous.size;
    let address = functions.get(index).address;
    (previous.size != 0 && end < address && previous.limit == address).then_some(end)
}
