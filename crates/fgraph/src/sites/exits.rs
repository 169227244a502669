//! Functions that leave by a jump to one that must not be called from another place than its
//! caller, such as `dlsym`: called by a trampoline, they would pass its return address on.
//!
//! ```text
//!   f: jmp dlsym@plt  ->  jmp [slot]  ->  dlsym             by the name of the import
//!   f: je g           ->  g: jmp h    ->  h: mov rax, [rsp]  by the code, through any jumps
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fgraph_symbols::elf::{ElfFile, Pointer};
use fgraph_symbols::functions::Functions;
use fgraph_symbols::notrace::{self, Notrace};

use super::candidate::is_rust;
use super::toolchain::NotraceRules;
use crate::arch::relocate::{self, Code, Exit};

/// The most words of a table that are read.
const MAX_TABLE: u64 = 64;

/// The most functions to which a function leads that are analyzed.
const MAX_FUNCTIONS: usize = 256;

/// A function, and the functions to which it leaves by a jump.
#[derive(Clone, Debug, Default)]
struct Leaving {
    /// True if it looks at its return address, or leaves to a function of another module that does.
    is_misled: bool,
    /// By index.
    to: Vec<u32>,
}

/// The functions of a file that were analyzed, each once.
#[derive(Debug, Default)]
pub(super) struct Exits {
    known: Mutex<BTreeMap<u32, Leaving>>,
    /// `None` until they are needed.
    pointers: Mutex<Option<Pointers>>,
}

/// Words of a file, in order, and the code whose address each of them gets.
type Pointers = Arc<[(u64, Target)]>;

impl Exits {
    /// Frees what was analyzed. It is analyzed again when it is needed.
    pub(super) fn forget(&self) {
        lock(&self.known).clear();
        *lock(&self.pointers) = None;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The code whose address the linker writes to a word.
#[derive(Clone, Copy, Debug)]
enum Target {
    /// This address of the file.
    Here(u64),
    /// A function of another module; true if it must not be called from another place than its
    /// caller.
    Elsewhere(bool),
}

/// A file with its exits.
#[derive(Clone, Copy)]
pub(super) struct FileExits<'a> {
    pub(super) exits: &'a Exits,
    pub(super) file: &'a ElfFile<'a>,
    pub(super) functions: &'a Functions<'a>,
    pub(super) notrace: &'a NotraceRules,
}

impl FileExits<'_> {
    /// Returns true if the function at an index leaves by a jump to one that must not be called
    /// from another place than its caller.
    pub(super) fn lead_to_misled(&self, index: usize) -> bool {
        let first = self.leaving(index as u32, true);
        if first.is_misled {
            return true;
        }
        let (mut seen, mut next) = (first.to, 0);
        while let Some(&index) = seen.get(next).filter(|_| next < MAX_FUNCTIONS) {
            next += 1;
            let leaving = self.leaving(index, false);
            if leaving.is_misled {
                return true;
            }
            let new = leaving.to.into_iter();
            let new: Vec<u32> = new.filter(|index| !seen.contains(index)).collect();
            seen.extend(new);
        }
        false
    }

    /// Returns the exits of a function. Its own code is not read if it is the first.
    fn leaving(&self, index: u32, is_first: bool) -> Leaving {
        let known = &self.exits.known;
        if !is_first && let Some(known) = lock(known).get(&index) {
            return known.clone();
        }
        let leaving = self.analyze(index as usize, is_first).unwrap_or_default();
        if !is_first {
            lock(known).insert(index, leaving.clone());
        }
        leaving
    }

    fn analyze(&self, index: usize, is_first: bool) -> Option<Leaving> {
        let function = self.functions.get(index);
        let len = usize::try_from(function.limit.checked_sub(function.address)?).ok()?;
        let code = Code {
            bytes: self.file.bytes_at(function.address, len)?,
            address: function.address as usize,
            size: function.size as usize,
        };
        let mut leaving = Leaving::default();
        if !is_first {
            let names = || self.functions.names(index).map(|name| name.symbol);
            let rule = (self.notrace).of(
                self.file,
                self.functions,
                index,
                self.functions.names(index),
            );
            // Part of another function, or code that no call enters.
            let is_part = names().any(|name| name.contains(".cold"));
            if is_part || matches!(rule, Some(Notrace::Entirely(_))) {
                return Some(leaving);
            }
            let is_rust = names().any(is_rust);
            leaving.is_misled = rule.is_some_and(Notrace::holds_for_jumps)
                || !is_rust && relocate::is_misled_by_a_call(&code);
        }
        relocate::exits(&code, |exit, at| {
            let before = leaving.to.len();
            let is_misled = !leaving.is_misled && self.follow(exit, &mut leaving);
            // Operands of one byte lead to a function by chance.
            let is_short = !matches!(code.bytes[at], 0xe9 | 0x0f | 0xff);
            let is_new = leaving.to.len() > before;
            let counts = || relocate::is_instruction(&code, at);
            if is_misled {
                leaving.is_misled = counts();
            } else if is_new && is_short && !counts() {
                leaving.to.truncate(before);
            }
        });
        leaving.to.retain(|&to| to as usize != index);
        Some(leaving)
    }

    /// Returns true if an exit leads to a function of another module that must not be called from
    /// another place than its caller. Adds functions of this module to which it leads.
    fn follow(&self, exit: Exit, leaving: &mut Leaving) -> bool {
        match exit {
            Exit::Code(address) => {
                if let Some(index) = self.functions.index_at(address as u64) {
                    leaving.to.push(index as u32);
                    return false;
                }
                const STUB: usize = 11;
                let code = self.file.bytes_at(address as u64, STUB);
                let slot = code.and_then(|code| relocate::slot_of(code, address));
                slot.is_some_and(|slot| self.follow(Exit::Slot(slot), leaving))
            }
            Exit::Slot(slot) => self.follow_pointer(slot as u64, leaving) == Some(true),
            Exit::Table(table) => {
                let words = (0..MAX_TABLE).map(|word| table as u64 + 8 * word);
                let words = words.map_while(|word| self.follow_pointer(word, leaving));
                // Each word adds its function.
                words.filter(|&is_misled| is_misled).count() > 0
            }
        }
    }

    /// Returns the same for the code whose address is stored in a word; `None` if there is none.
    fn follow_pointer(&self, word: u64, leaving: &mut Leaving) -> Option<bool> {
        let pointers =
            Arc::clone(lock(&self.exits.pointers).get_or_insert_with(|| self.pointers()));
        let at = pointers.binary_search_by_key(&word, |&(at, _)| at).ok()?;
        match pointers[at].1 {
            Target::Here(address) => {
                leaving.to.push(self.functions.index_at(address)? as u32);
                Some(false)
            }
            Target::Elsewhere(is_misled) => Some(is_misled),
        }
    }

    fn pointers(&self) -> Pointers {
        let target = |pointer| match pointer {
            Pointer::Address(address) => Target::Here(address),
            Pointer::Import(name) => {
                let rule = str::from_utf8(name).ok().and_then(notrace::look_up);
                Target::Elsewhere(rule.is_some_and(Notrace::holds_for_jumps))
            }
        };
        let pointers = self.file.pointers().into_iter();
        pointers
            .map(|(at, pointer)| (at, target(pointer)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_analyzed_is_freed_and_found_again() {
        let program = std::fs::read("/proc/self/exe").unwrap();
        let file = ElfFile::parse(&program).unwrap();
        let functions = Functions::read(&file, None).unwrap();
        let (exits, notrace) = (Exits::default(), NotraceRules::new(&file, &functions, None));
        let of_file = FileExits {
            exits: &exits,
            file: &file,
            functions: &functions,
            notrace: &notrace,
        };
        let find = || {
            let all = 0..functions.len().min(2000);
            all.filter(|&index| of_file.lead_to_misled(index))
                .collect::<Vec<_>>()
        };
        let found = find();
        assert!(!lock(&exits.known).is_empty());
        assert!(lock(&exits.pointers).is_some());
        exits.forget();
        assert!(lock(&exits.known).is_empty());
        assert!(lock(&exits.pointers).is_none());
        assert_eq!(find(), found);
    }
}
