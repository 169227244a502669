//! The places at which a module is entered.

use core::fmt::Write as _;

use fgraph_symbols::filter::Bits;

use super::candidates::Candidates;
use super::facts::ModuleFacts;
use super::function_names::write_name;

/// The item that a site belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// This function of the module.
    Function(usize),
    /// An entry that only a list or the linker names.
    Listed,
    /// A system call within this function.
    SystemCall(usize),
}

impl Subject {
    pub(super) fn is_system_call(self) -> bool {
        matches!(self, Self::SystemCall(_))
    }

    /// Returns all of its names, if it is at `address`.
    pub(super) fn names(self, known: &ModuleFacts, address: usize) -> Vec<String> {
        match self {
            Self::Function(index) => known.names_of(index),
            Self::Listed => {
                let mut name = String::new();
                let address = address.wrapping_sub(known.bias) as u64;
                write_name(&known.functions, None, known.path, address, &mut name);
                vec![name]
            }
            Self::SystemCall(index) => {
                let mut names = known.names_of(index);
                names.truncate(1);
                let distance = address - known.address(index);
                names.iter_mut().for_each(|name| {
                    // Writing to a string does not fail.
                    let _ = write!(name, "+{distance:#x}");
                });
                names
            }
        }
    }
}

/// A place at which a function is entered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) address: usize,
    /// The function of the module, or an entry that only a list or the linker names.
    pub(super) subject: Subject,
    /// A bound of the end of its code.
    limit: usize,
}

impl Entry {
    /// Returns the entries of a module, by address.
    pub(super) fn all(known: &'static ModuleFacts, candidates: &Candidates) -> Vec<Self> {
        let functions = candidates.functions().map(|index| Self {
            address: known.address(index),
            subject: Subject::Function(index),
            limit: known
                .bias
                .wrapping_add(known.functions.get(index).limit as usize),
        });
        let others = candidates.others().iter().map(|&address| Self {
            address,
            subject: Subject::Listed,
            limit: address,
        });
        let mut all: Vec<Self> = functions.chain(others).collect();
        all.sort_by_key(|entry| entry.address);
        all
    }

    /// Returns how many of the first entries are so near to each other that the patch at one may
    /// depend on the others.
    pub(super) fn depend_on_each_other(entries: &[Self]) -> usize {
        /// The farthest that a patch begins or ends from an entry: it is a landing pad and a jump,
        /// or a jump in the padding before it.
        const NEAR: usize = 32;
        let mut end = 0;
        let near = entries.iter().take_while(|entry| {
            let is_near = end == 0 || entry.address < end;
            end = end.max(entry.limit).max(entry.address.saturating_add(NEAR));
            is_near
        });
        near.count()
    }
}

/// The functions of a module that were analyzed, and have sites if they can be patched, while
/// others were not analyzed.
#[derive(Debug)]
pub(super) struct LookedAt {
    /// By index.
    pub(super) functions: Bits,
    /// Entries that belong to no function.
    pub(super) others: Vec<usize>,
}

impl LookedAt {
    /// Joins the functions that were analyzed before with those analyzed now.
    pub(super) fn new(before: Option<Self>, known: &ModuleFacts, now: &[Entry]) -> Self {
        let mut this = before.unwrap_or_else(|| Self {
            functions: Bits::new(known.functions.len()),
            others: Vec::new(),
        });
        for entry in now {
            match entry.subject {
                Subject::Function(index) => this.functions.insert(index),
                _ => this.others.push(entry.address),
            }
        }
        this
    }

    pub(super) fn has(&self, entry: &Entry) -> bool {
        match entry.subject {
            Subject::Function(index) => self.functions.contains(index),
            _ => self.others.contains(&entry.address),
        }
    }
}
