//! A function as it is found.

use fgraph_symbols::notrace::Notrace;

use crate::arch::relocate::Code;
use crate::arch::stub::SITE_LEN;

/// The longest landing pad and window: `endbr64`, four bytes of other instructions, and the longest
/// one.
pub(super) const ENTRY_BYTES: usize = 4 + 4 + 15;

/// A function as it is found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate<'a> {
    /// The start address in memory.
    pub(crate) address: usize,
    /// The size by the symbol table; 0 if it has none.
    pub(crate) size: usize,
    /// The text from there up to the next function, from the file.
    pub(crate) text: &'a [u8],
    /// The distance from the start of the first byte, in its text or after it, to which the linker
    /// writes.
    pub(crate) relocated: Option<usize>,
    /// True if the compiler has listed it as patchable.
    pub(crate) listed: bool,
    /// The text between the end of the previous function and the start of this one, if that is
    /// known.
    pub(crate) padding: &'a [u8],
    /// Bit *k* is set if another function branches to byte *k* after the entry.
    pub(crate) entered: u8,
    /// True if a caller that knows its code may rely on it.
    pub(crate) preserves_by_code: bool,
    /// True if a caller relies on a convention that preserves more than the ABI does.
    pub(crate) preserves_by_convention: bool,
    /// True if it leaves by a jump to a function that must not be called from another place than
    /// its caller.
    pub(crate) leads_to_misled: bool,
    /// True if the processor keeps shadow stacks.
    pub(crate) has_shadow_stacks: bool,
    /// Its name in the symbol table; empty if it has none.
    pub(crate) symbol: &'a str,
    /// The rule that forbids tracing it or its returns, if there is one.
    pub(crate) notrace: Option<Notrace>,
}

/// The registers that code of a module may rely on beyond the ABI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Callers {
    /// None: no caller knows which registers a function leaves unchanged.
    Abi,
    /// A caller may keep values in any register up to vector register 15 that the called function
    /// does not use (gcc's `-fipa-ra`).
    LowRegisters,
    /// As `LowRegisters`, in opmasks and higher vector registers, too.
    AllRegisters,
}

impl<'a> Candidate<'a> {
    /// Returns its code without the first `lead` bytes.
    pub(super) fn code_behind(&self, lead: usize) -> Code<'a> {
        Code {
            bytes: &self.text[lead..],
            address: self.address + lead,
            size: self.size.saturating_sub(lead),
        }
    }

    /// Returns the start of the text that is the same in memory as in the file, unless another tool
    /// has changed it: the linker does not write to it.
    pub(crate) fn constant(&self) -> &'a [u8] {
        let len = self.text.len().min(ENTRY_BYTES);
        &self.text[..len.min(self.relocated.unwrap_or(usize::MAX))]
    }
}

/// Returns true if rustc has compiled it: its callers know no more than the ABI.
pub(crate) fn is_rust(symbol: &str) -> bool {
    let symbol = symbol.split('.').next().unwrap_or(symbol);
    let legacy = || {
        let hash = symbol
            .strip_prefix("_ZN")?
            .strip_suffix('E')?
            .rsplit_once("17h")?
            .1;
        Some(hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    symbol.starts_with("_R") || legacy().unwrap_or(false)
}

/// Returns true if it has arguments and results in more registers than the ABI says. clang marks
/// such functions in their names.
pub(super) fn is_regcall(symbol: &str) -> bool {
    symbol.contains("__regcall3__")
}

/// Returns the first bytes of an entry, padded with zeros.
pub(crate) fn first_bytes(entry: &[u8]) -> [u8; SITE_LEN] {
    let mut found = [0; SITE_LEN];
    for (to, from) in found.iter_mut().zip(entry) {
        *to = *from;
    }
    found
}
