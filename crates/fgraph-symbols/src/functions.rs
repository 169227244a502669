//! All functions of a program or shared library, by address, with all their names.
//!
//! A function is an address that is called, so this is not just the content of the symbol tables:
//!
//! - `.symtab`, `.dynsym`, and the `.symtab` of a debug file are merged, and several names of one
//!   address are one function.
//! - A symbol outside of executable sections, or in the linker's stubs, is dropped.
//! - A part of a function that the compiler moved away (`.cold`) is jumped to and not called, so it
//!   is no function. A part that the compiler made a function (`.part.0`, `.isra.0`,
//!   `.constprop.0`) is one, with that name.
//! - In a stripped file, functions without a symbol are found through their unwind information, see
//!   `unwind_info.rs`.
//! - An IFUNC's symbol stands for its resolver. Only the dynamic linker knows the resolved
//!   function, which is added later, see [`Functions::add_names`].
//!
//! A library may have a hundred thousand functions, so they are compact, and their names stay in
//! the file:
//!
//! ```text
//!   starts, by address       names                         file
//!   +0   offset             +0  where in the strings  -->  .strtab, .dynstr
//!   +4   size               +4  version
//!   +8   first name    -->  +6  which strings
//!   +12  enclosing          +7  rank
//! ```
//!
//! A function with one name takes 24 bytes, and 8 more for each other name.

mod collect;
mod names;
mod saved;

use core::ops::Range;

use crate::elf::HIDDEN_VERSION;
pub(crate) use names::without_llvm;
pub use names::{Name, Version};
use names::{Rank, before};

/// The longest name in bytes. Longer ones are ignored, so that a file whose names do not end costs
/// no time.
const MAX_NAME: usize = 1 << 16;

/// The index of no function.
const NONE: u32 = u32::MAX;

/// The functions of one program or shared library; see the module documentation.
#[derive(Clone, Debug)]
pub struct Functions<'a> {
    /// The addresses at which functions start, in order, each once.
    starts: Vec<Start>,
    /// The names of the first function, then those of the second, and so on; the best first.
    names: Vec<NameRef>,
    /// Start addresses, outside of all functions, of items that are not functions, in order.
    others: Vec<u32>,
    /// The ranges that hold functions, in order and without overlaps.
    text: Vec<Range<u64>>,
    /// The address from which offsets count.
    base: u64,
    strings: [&'a [u8]; 3],
    versions: Vec<(u16, &'a str)>,
    added: Vec<Name<'a>>,
    stripped: bool,
}

/// The place of a function; see the module documentation for the layout.
#[derive(Clone, Copy, Debug)]
struct Start {
    offset: u32,
    size: u32,
    /// The index of its first name. The last one precedes the first of the next function.
    names: u32,
    /// The index of the innermost earlier function that reaches beyond this one's start.
    enclosing: u32,
}

/// The place of a name; see the module documentation for the layout.
#[derive(Clone, Copy, Debug)]
struct NameRef {
    /// The offset in the strings, or an index in `added`.
    at: u32,
    version: u16,
    strings: Strings,
    rank: Rank,
}

const _: () = assert!(size_of::<Start>() + size_of::<NameRef>() <= 24);

/// The strings that contain a name.
#[derive(Clone, Copy, Debug)]
enum Strings {
    Symtab,
    Dynsym,
    Debug,
    Added,
}

impl Start {
    /// Returns the end of the function. One without a size counts as one byte.
    fn end(&self) -> u64 {
        u64::from(self.offset) + u64::from(self.size.max(1))
    }
}

/// A function's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionSymbol {
    /// The start address, relative to the load bias.
    pub address: u64,
    /// The size in bytes, 0 if the file does not have it. If several names have sizes, it is the
    /// largest, limited by the end of the section.
    pub size: u64,
    /// The start of the next item: the next function, which may be inside this one; the first other
    /// symbol after this one; or the end of the section. Always greater than `address`.
    pub limit: u64,
    /// True if the linker calls it to resolve an IFUNC.
    pub is_resolver: bool,
}

impl<'a> Functions<'a> {
    /// Returns true if only functions are known that are visible to other modules: the file was
    /// stripped, and there is no debug file.
    #[must_use]
    pub fn is_stripped(&self) -> bool {
        self.stripped
    }

    /// Returns the number of functions, that is, of start addresses.
    #[must_use]
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Returns true if there is no function.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// Returns the function at an index. Functions are in the order of their addresses.
    ///
    /// # Panics
    ///
    /// Panics if the index is not less than [`len`](Self::len).
    #[must_use]
    pub fn get(&self, index: usize) -> FunctionSymbol {
        let start = &self.starts[index];
        let address = self.address(index);
        let section = self.place(address).map_or(1, |(_, rest)| rest);
        let end = start.end();
        let other = self.others.partition_point(|&other| u64::from(other) < end);
        let limits = [
            self.starts.get(index + 1).map(|next| next.offset),
            self.others.get(other).copied(),
        ];
        let limit = limits.into_iter().flatten().min();
        FunctionSymbol {
            address,
            size: start.size.into(),
            limit: limit
                .map_or(u64::MAX, |limit| self.base + u64::from(limit))
                .min(address + section),
            is_resolver: self.ifuncs_of(index).next().is_some(),
        }
    }

    /// Returns the start of the function at an index, relative to the load bias.
    ///
    /// # Panics
    ///
    /// Panics if the index is not less than [`len`](Self::len).
    #[must_use]
    pub fn address(&self, index: usize) -> u64 {
        self.base + u64::from(self.starts[index].offset)
    }

    /// Iterates over the names of IFUNCs, each with the index of its resolver.
    pub fn ifuncs(&self) -> impl Iterator<Item = (usize, Name<'a>)> {
        (0..self.len()).flat_map(|index| self.ifuncs_of(index).map(move |name| (index, name)))
    }

    /// Iterates over the names of the IFUNCs whose resolver is the function at an index.
    ///
    /// # Panics
    ///
    /// Panics if the index is not less than [`len`](Self::len).
    pub fn ifuncs_of(&self, index: usize) -> impl Iterator<Item = Name<'a>> {
        let names = self.name_refs(index).iter();
        let ifuncs = names.filter(|name| name.rank.is_ifunc());
        ifuncs.filter_map(|name| self.name(*name))
    }

    /// Iterates over all names of the function at an index; none if no name is text.
    ///
    /// The first is the best one. Names are ordered by these criteria:
    ///
    /// 1. an added name before the function's own names;
    /// 2. the version against which programs are linked, or none, before a hidden one;
    /// 3. fewer leading underscores first;
    /// 4. a global name before a weak one before a local one;
    /// 5. a larger size first;
    /// 6. a shorter name first, then alphabetical order.
    ///
    /// # Panics
    ///
    /// If the index is not less than [`len`](Self::len).
    pub fn names(&self, index: usize) -> impl Iterator<Item = Name<'a>> {
        let names = self.name_refs(index).iter();
        names.filter_map(|name| self.name(*name))
    }

    /// Iterates over the names of the function at an index as they are in the file, each with its
    /// version if that is elsewhere. Some may not be text.
    ///
    /// # Panics
    ///
    /// Panics if the index is not less than [`len`](Self::len).
    pub fn raw_names(&self, index: usize) -> impl Iterator<Item = (&'a [u8], Option<&'a str>)> {
        let names = self.name_refs(index).iter();
        names.filter_map(|&name| match name.strings {
            Strings::Added => {
                let added = self.added.get(name.at as usize)?;
                Some((
                    added.symbol.as_bytes(),
                    added.version.map(|version| version.name),
                ))
            }
            _ => Some((
                self.text(name)?,
                self.version(name).map(|version| version.name),
            )),
        })
    }

    /// Returns true if a name may contain a text: symbols that are not functions count, too.
    #[must_use]
    pub fn may_have_in_name(&self, text: &str) -> bool {
        let find = memchr::memmem::Finder::new(text);
        let is_in = |bytes: &[u8]| find.find(bytes).is_some();
        self.strings.iter().any(|strings| is_in(strings))
            || self.added.iter().any(|name| is_in(name.symbol.as_bytes()))
    }

    fn name_refs(&self, index: usize) -> &[NameRef] {
        let first = self.starts[index].names as usize;
        let end = self.starts.get(index + 1).map(|next| next.names as usize);
        &self.names[first..end.unwrap_or(self.names.len())]
    }

    /// Returns the name, unless it is not text inside the file.
    fn name(&self, name: NameRef) -> Option<Name<'a>> {
        if let Strings::Added = name.strings {
            return self.added.get(name.at as usize).copied();
        }
        let mut result = Name::new(str::from_utf8(self.text(name)?).ok()?)?;
        result.version = self.version(name).or(result.version);
        Some(result)
    }

    /// Returns the name as it is in the file, unless it was added or is not inside the file.
    fn text(&self, name: NameRef) -> Option<&'a [u8]> {
        let strings = match name.strings {
            Strings::Symtab => self.strings[0],
            Strings::Dynsym => self.strings[1],
            Strings::Debug => self.strings[2],
            Strings::Added => return None,
        };
        let from = strings.get(name.at as usize..)?;
        before(&from[..from.len().min(MAX_NAME)], 0)
    }

    /// Returns the version that the file has for the name.
    fn version(&self, name: NameRef) -> Option<Version<'a>> {
        let version = name.version & !HIDDEN_VERSION;
        let known = self
            .versions
            .binary_search_by_key(&version, |known| known.0);
        known.ok().map(|known| Version {
            is_hidden: name.version & HIDDEN_VERSION != 0,
            name: self.versions[known].1,
        })
    }

    /// Returns the first function that starts at or after the address.
    #[must_use]
    pub fn index_at_or_behind(&self, address: u64) -> Option<usize> {
        let index =
            (self.starts).partition_point(|start| self.base + u64::from(start.offset) < address);
        (index < self.starts.len()).then_some(index)
    }

    /// Returns the index of the function that starts at an address relative to the load bias.
    #[must_use]
    pub fn index_at(&self, address: u64) -> Option<usize> {
        let offset = u32::try_from(address.checked_sub(self.base)?).ok()?;
        self.starts
            .binary_search_by_key(&offset, |start| start.offset)
            .ok()
    }

    /// Returns the index of the function that contains an address relative to the load bias; of
    /// nested functions, the innermost.
    #[must_use]
    pub fn containing(&self, address: u64) -> Option<usize> {
        let offset = address.checked_sub(self.base)?;
        let next = self
            .starts
            .partition_point(|start| u64::from(start.offset) <= offset);
        let mut index = next.checked_sub(1)?;
        loop {
            let start = self.starts.get(index)?;
            if offset < start.end() {
                return Some(index);
            }
            index = start.enclosing as usize;
        }
    }

    /// Returns the number of bytes of memory that this takes, excluding the file.
    #[cfg(test)]
    pub fn memory(&self) -> usize {
        fn of<T>(vec: &Vec<T>) -> usize {
            vec.capacity() * size_of::<T>()
        }
        of(&self.starts)
            + of(&self.names)
            + of(&self.others)
            + of(&self.text)
            + of(&self.versions)
            + of(&self.added)
    }
}

#[cfg(test)]
mod tests;
