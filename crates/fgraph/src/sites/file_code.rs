//! The code of functions, as their file has it.

use fgraph_symbols::elf::ElfFile;
use fgraph_symbols::functions::Functions;

use super::candidate::Candidate;
use crate::report::error::RefusalReason;

/// A function, or the reason that its place forbids tracing it.
pub(super) type Found<'a> = Result<Candidate<'a>, RefusalReason>;

/// The code of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileCode<'a> {
    pub(super) file: &'a ElfFile<'a>,
    pub(super) functions: &'a Functions<'a>,
    /// The places in the code to which the linker writes, as addresses of the file, in order.
    pub(super) text_relocations: &'a [u64],
    /// The difference to the addresses of the file; 0 for a file that is not loaded.
    pub(super) bias: usize,
    /// True if the process that the code is for has shadow stacks.
    pub(super) has_shadow_stacks: bool,
}

impl<'a> FileCode<'a> {
    /// Returns a function by its index, as far as its code tells. `end` returns the end of the code
    /// segment that contains an address.
    pub(super) fn function(&self, index: usize, end: impl Fn(usize) -> Option<usize>) -> Found<'a> {
        let function = self.functions.get(index);
        if function.is_resolver {
            return Err(RefusalReason::Resolver);
        }
        let in_memory = |address: u64| self.bias.wrapping_add(address as usize);
        let address = in_memory(function.address);
        let gap = gap(self.functions, index).map(in_memory);
        let padding = gap
            .filter(|&gap| {
                let relocated = self.relocated_behind(gap);
                relocated.is_none_or(|distance| gap + distance >= address)
            })
            .and_then(|gap| self.text(gap, address, &end).ok());
        Ok(Candidate {
            size: function.size as usize,
            padding: padding.unwrap_or_default(),
            ..self.at(address, in_memory(function.limit), &end)?
        })
    }

    /// Returns the code from an address up to a limit, as far as it is in the segment that ends at
    /// `end`.
    pub(super) fn at(
        &self,
        address: usize,
        limit: usize,
        end: impl Fn(usize) -> Option<usize>,
    ) -> Found<'a> {
        Ok(Candidate {
            address,
            size: 0,
            text: self.text(address, limit, end)?,
            relocated: self.relocated_behind(address),
            listed: false,
            padding: &[],
            entered: 0,
            preserves_by_code: true,
            preserves_by_convention: false,
            leads_to_misled: false,
            has_shadow_stacks: self.has_shadow_stacks,
            symbol: "",
            notrace: None,
        })
    }

    fn text(
        &self,
        address: usize,
        limit: usize,
        end: impl Fn(usize) -> Option<usize>,
    ) -> Result<&'a [u8], RefusalReason> {
        let end = end(address).ok_or(RefusalReason::NotText)?.min(limit);
        let in_file = address.wrapping_sub(self.bias) as u64;
        let text = self.file.bytes_at(in_file, end.saturating_sub(address));
        text.ok_or(RefusalReason::NotText)
    }

    /// Returns the distance from an address to the first byte to which the linker writes.
    fn relocated_behind(&self, address: usize) -> Option<usize> {
        const LEN: u64 = 8;
        let in_file = address.wrapping_sub(self.bias) as u64;
        let places = self.text_relocations;
        let next = places.partition_point(|place| place + LEN <= in_file);
        let distance = places.get(next)?.saturating_sub(in_file);
        usize::try_from(distance).ok()
    }
}

/// Returns the end of the item before a function, if that is known.
fn gap(functions: &Functions<'_>, index: usize) -> Option<u64> {
    let previous = functions.get(index.checked_sub(1)?);
    let end = previous.address + previous.size;
    let address = functions.address(index);
    (previous.size != 0 && end < address && previous.limit == address).then_some(end)
}
