//! All functions of a program or shared library, by address, with all their names.
//!
//! A function is a place that is called, so this is not just what the symbol tables say:
//!
//! - `.symtab`, `.dynsym`, and the `.symtab` of a debug file are taken together, and several names
//!   of one address are one function.
//! - A symbol outside of executable sections, or in the linker's stubs, is dropped.
//! - A part of a function that the compiler moved away (`.cold`) is jumped to and not called, so it
//!   is no function. A part that it made a function of (`.part.0`, `.isra.0`, `.constprop.0`) is
//!   one, by that name.
//! - In a file that was stripped, functions without a symbol are found by their unwind information,
//!   see `unwind_info.rs`.
//! - An IFUNC's symbol stands for its resolver. The function that it resolves to is only known to
//!   the dynamic linker and is added later, see [`Functions::add_names`].
//!
//! A library may have a hundred thousand functions, so they are kept small, and the names stay in
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

use core::cmp::Reverse;
use core::fmt::{self, Display, Formatter};
use core::ops::Range;

use object::read::ReadRef;

use crate::elf::{
    Binding, ElfError, ElfFile, HIDDEN_VERSION, SymbolKind, SymbolSource, SymbolTable,
};
use crate::unwind_info;

/// Names are not longer than this in bytes. What is longer is not looked at, so that a file whose
/// names do not end costs no time.
const MAX_NAME: usize = 1 << 16;

/// The index of no function.
const NONE: u32 = u32::MAX;

/// The functions of one program or shared library; see the module documentation.
#[derive(Clone, Debug)]
pub struct Functions<'a> {
    /// The addresses at which functions start, in order, each once.
    starts: Vec<Start>,
    /// Those of the first function, then those of the second, and so on; the best first.
    names: Vec<NameRef>,
    /// Where something starts outside of all functions that is none itself, in order.
    others: Vec<u32>,
    /// What holds functions, in order and apart from each other.
    text: Vec<Range<u64>>,
    /// The address that offsets count from.
    base: u64,
    strings: [&'a [u8]; 3],
    versions: Vec<(u16, &'a str)>,
    added: Vec<Name<'a>>,
    stripped: bool,
}

/// Where a function is; see the module documentation for the layout.
#[derive(Clone, Copy, Debug)]
struct Start {
    offset: u32,
    size: u32,
    /// The index of its first name. The last is before the first of the next function.
    names: u32,
    /// The index of the innermost earlier function that reaches beyond this one's start.
    enclosing: u32,
}

/// Where a name is; see the module documentation for the layout.
#[derive(Clone, Copy, Debug)]
struct NameRef {
    /// The offset in the strings, or an index in `added`.
    at: u32,
    version: u16,
    strings: Strings,
    rank: Rank,
}

const _: () = assert!(size_of::<Start>() + size_of::<NameRef>() <= 24);

/// Which strings a name is in.
#[derive(Clone, Copy, Debug)]
enum Strings {
    Symtab,
    Dynsym,
    Debug,
    Added,
}

/// How much a name is the one that a function should go by: whether it was added, the binding of
/// its symbol, and whether that is an IFUNC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rank(u8);

impl Rank {
    /// The rank of a name that was added.
    const ADDED: Self = Self(8);
    const BINDING: u8 = 6;
    const IFUNC: u8 = 1;

    fn new(binding: Binding, is_ifunc: bool) -> Self {
        let binding = match binding {
            Binding::Local => 2,
            Binding::Weak => 4,
            Binding::Global => 6,
        };
        Self(binding | if is_ifunc { Self::IFUNC } else { 0 })
    }

    fn is_added(self) -> bool {
        self.0 & Self::ADDED.0 != 0
    }

    fn is_ifunc(self) -> bool {
        self.0 & Self::IFUNC != 0
    }

    /// The wider it can be seen, the more.
    fn binding(self) -> u8 {
        self.0 & Self::BINDING
    }

    /// The rank of a name that two symbols have.
    fn or(self, other: Self) -> Self {
        let flags = (self.0 | other.0) & !Self::BINDING;
        Self(self.binding().max(other.binding()) | flags)
    }
}

impl Start {
    /// The end of the function. One without a size is given its first byte.
    fn end(&self) -> u64 {
        u64::from(self.offset) + u64::from(self.size.max(1))
    }
}

/// A name of a function, as it is in the symbol table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name<'a> {
    /// The name, mangled, without the version and without the `.llvm.` suffix of the optimiser.
    pub symbol: &'a str,
    /// The version that it belongs to.
    pub version: Option<Version<'a>>,
}

/// The version of a symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version<'a> {
    /// Whether another version is the one that programs are linked against today.
    pub is_hidden: bool,
    /// Its name, such as `GLIBC_2.14`.
    pub name: &'a str,
}

impl Display for Name<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.symbol)?;
        match self.version {
            None => Ok(()),
            Some(Version { name, is_hidden }) => {
                write!(f, "{}{name}", if is_hidden { "@" } else { "@@" })
            }
        }
    }
}

impl<'a> Name<'a> {
    /// The name that is written `symbol`, `symbol@version` or `symbol@@version` in a table.
    fn new(text: &'a str) -> Option<Self> {
        let (symbol, version) = match before(text.as_bytes(), b'@') {
            Some(symbol) if !symbol.is_empty() => {
                let (symbol, version) = text.split_at(symbol.len());
                (symbol, &version[1..])
            }
            _ => (text, ""),
        };
        let default = version.strip_prefix('@');
        let name = default.unwrap_or(version);
        let symbol = without_llvm(symbol);
        (!symbol.is_empty()).then_some(Self {
            symbol,
            version: (!name.is_empty()).then_some(Version {
                is_hidden: default.is_none(),
                name,
            }),
        })
    }

    /// Whether programs are not linked against it any more.
    fn is_hidden(self) -> bool {
        self.version.is_some_and(|version| version.is_hidden)
    }

    /// How many underscores it starts with: implementers' names have more than programmers'. Those
    /// that mangling puts there do not count.
    fn underscores(self) -> usize {
        if is_mangled(self.symbol) {
            return 0;
        }
        self.symbol.bytes().take_while(|&byte| byte == b'_').count()
    }
}

/// Whether a symbol is mangled, going by its first letters.
fn is_mangled(symbol: &str) -> bool {
    let mut bytes = symbol.bytes();
    match [bytes.next(), bytes.next(), bytes.next()] {
        [Some(b'_'), Some(b'Z'), Some(_)] => true,
        [Some(b'_'), Some(b'R'), Some(tag)] => b"CMXYNI".contains(&tag),
        _ => false,
    }
}

/// A symbol without the suffix by which LLVM makes local symbols unique when it takes modules
/// together.
pub(crate) fn without_llvm(symbol: &str) -> &str {
    let is_digit = |byte: &u8| byte.is_ascii_hexdigit();
    let digits = symbol.bytes().rev().take_while(is_digit).count();
    let rest = &symbol[..symbol.len() - digits];
    match rest.strip_suffix(".llvm.") {
        Some(name) if !name.is_empty() => name,
        _ => symbol,
    }
}

/// What is before the first `end`; `None` if there is none.
///
/// Names are most of what is read of a file. This looks at them many bytes at a time, as the
/// standard library does not.
fn before(bytes: &[u8], end: u8) -> Option<&[u8]> {
    let all = 0..bytes.len() as u64;
    bytes.read_bytes_at_until(all, end).ok()
}

/// Whether a symbol stands for a part of a function that is jumped to: `f.cold`, `f.cold.1`,
/// `f.warm` of BOLT, and `f.__part.1` of LLVM's sections of basic blocks.
fn is_fragment(symbol: &str) -> bool {
    let Some(name) = before(symbol.as_bytes(), b'.') else {
        return false;
    };
    let (name, suffixes) = symbol.split_at(name.len());
    // Two dots stand for `::` in Rust's legacy mangling: what is next to them is no suffix.
    let mut before = name;
    let mut suffixes = suffixes[1..].split('.').peekable();
    while let Some(suffix) = suffixes.next() {
        let is_mark = matches!(suffix, "cold" | "warm" | "__part");
        if is_mark && !before.is_empty() && suffixes.peek() != Some(&"") {
            return true;
        }
        before = suffix;
    }
    false
}

/// What is known of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionSymbol {
    /// Where it starts, relative to the load bias.
    pub address: u64,
    /// The number of its bytes, 0 if the file does not say. Of several names, it is the largest;
    /// it ends with the section at the latest.
    pub size: u64,
    /// Where something else begins: the next function, which may be inside this one; the first
    /// other symbol behind this one; or what follows the section. The address is always less.
    pub limit: u64,
    /// Whether it is called by the linker, to resolve an IFUNC.
    pub is_resolver: bool,
}

/// A function or a name of one, while they are collected.
#[derive(Clone, Copy, Debug)]
struct RawSymbol {
    offset: u32,
    size: u32,
    name: Option<NameRef>,
}

impl<'a> Functions<'a> {
    /// Reads the symbol tables of a file and of the debug file that belongs to it.
    ///
    /// # Errors
    ///
    /// If a symbol table of `file` or its names are not inside the file. A debug file of which this
    /// is so is left out.
    pub fn read(file: &ElfFile<'a>, debug: Option<&ElfFile<'a>>) -> Result<Self, ElfError> {
        let symtab = file.symbol_table(SymbolSource::Symtab)?;
        let dynsym = file.symbol_table(SymbolSource::Dynsym)?;
        let debug = debug
            .and_then(|debug| debug.symbol_table(SymbolSource::Symtab).ok())
            .unwrap_or_default();
        let text = file.text();
        let mut this = Self {
            starts: Vec::new(),
            names: Vec::new(),
            others: Vec::new(),
            base: text.first().map_or(0, |range| range.start),
            text,
            strings: [symtab.strings(), dynsym.strings(), debug.strings()],
            versions: file.versions(),
            added: Vec::new(),
            stripped: symtab.is_empty() && debug.is_empty(),
        };
        let mut found = Vec::new();
        for (strings, table) in [
            (Strings::Symtab, symtab),
            (Strings::Dynsym, dynsym),
            (Strings::Debug, debug),
        ] {
            this.take(strings, &table, &mut found);
        }
        this.arrange(found);
        if this.stripped {
            this.take_unnamed(file);
        }
        this.others.sort_unstable();
        this.others.dedup();
        let mut others = core::mem::take(&mut this.others);
        others.retain(|&offset| this.containing(this.base + u64::from(offset)).is_none());
        others.shrink_to_fit();
        this.others = others;
        Ok(this)
    }

    /// Takes in a symbol table: functions into `found`, the rest into `others`.
    fn take(&mut self, strings: Strings, table: &SymbolTable<'a>, found: &mut Vec<RawSymbol>) {
        for symbol in table.defined() {
            let is_function = symbol.kind != SymbolKind::Other;
            let Some((offset, rest)) = self.place(symbol.address) else {
                continue;
            };
            let name = NameRef {
                at: symbol.name,
                version: symbol.version,
                strings,
                rank: Rank::new(symbol.binding, symbol.kind == SymbolKind::Resolver),
            };
            let text = self.name(name);
            if !is_function || text.is_some_and(|name| is_fragment(name.symbol)) {
                self.others.push(offset);
                continue;
            }
            found.push(RawSymbol {
                offset,
                size: symbol.size.min(rest).try_into().unwrap_or(u32::MAX),
                name: text.map(|_| name),
            });
        }
    }

    /// Takes in what only unwind information tells of: functions, and the starts of their parts
    /// into `others`.
    fn take_unnamed(&mut self, file: &ElfFile<'a>) {
        let mut symbols = self.others.clone();
        symbols.sort_unstable();
        let mut unnamed = Vec::new();
        let mut starts = Vec::new();
        for stretch in unwind_info::stretches(file) {
            let Some((offset, rest)) = self.place(stretch.start) else {
                continue;
            };
            let is_known =
                self.containing(stretch.start).is_some() || symbols.binary_search(&offset).is_ok();
            if is_known {
                continue;
            }
            if !stretch.is_entry {
                self.others.push(offset);
                continue;
            }
            starts.push(stretch.start);
            unnamed.push(RawSymbol {
                offset,
                size: stretch.len.min(rest).try_into().unwrap_or(u32::MAX),
                name: None,
            });
        }
        let called = unwind_info::referred_to(file, &self.text, &starts);
        let (functions, parts): (Vec<_>, Vec<_>) = unnamed
            .into_iter()
            .zip(called)
            .partition(|&(_, called)| called);
        (self.others).extend(parts.into_iter().map(|(part, _)| part.offset));
        if !functions.is_empty() {
            let functions = functions.into_iter().map(|(function, _)| function);
            self.arrange(self.found().chain(functions).collect());
        }
    }

    /// The offset of an address, and how many bytes there are from there in its section; `None` if
    /// no function can be there.
    fn place(&self, address: u64) -> Option<(u32, u64)> {
        let next = self.text.partition_point(|range| range.start <= address);
        let range = self.text.get(next.checked_sub(1)?)?;
        let offset = u32::try_from(address - self.base).ok()?;
        (address < range.end).then(|| (offset, range.end - address))
    }

    /// Makes functions of what was found, in place of those that are there.
    fn arrange(&mut self, mut found: Vec<RawSymbol>) {
        // The same name at the same place is in several tables, and may have its version in one of
        // them only. So one without goes behind all that have one, and is the same as the last.
        let name = |found: &RawSymbol| found.name.and_then(|name| self.name(name));
        let by_name = |found: &RawSymbol| {
            let name = name(found);
            let version = name.and_then(|name| name.version);
            (name.map(|name| name.symbol), version.is_none(), version)
        };
        found.sort_unstable_by(|a, b| {
            let by_place = a.offset.cmp(&b.offset);
            by_place.then_with(|| by_name(a).cmp(&by_name(b)))
        });
        found.dedup_by(|next, found| {
            let same = found.offset == next.offset && {
                let (next, found) = (name(next), name(found));
                found.map(|found| found.symbol) == next.map(|next| next.symbol)
                    && next.is_none_or(|next| next.version.is_none() || found == Some(next))
            };
            if same {
                found.size = found.size.max(next.size);
                if let (Some(name), Some(next)) = (&mut found.name, next.name) {
                    name.rank = name.rank.or(next.rank);
                }
            }
            same
        });
        let by_rank = |found: &RawSymbol| {
            let rank = found.name.map(|name| name.rank);
            let name = name(found);
            (
                Reverse(rank.is_some_and(Rank::is_added)),
                name.map(|name| (name.is_hidden(), name.underscores())),
                Reverse(rank.map(Rank::binding)),
                Reverse(found.size),
                name.map(|name| name.symbol.len()),
                name,
            )
        };
        found.sort_unstable_by(|a, b| {
            let by_place = a.offset.cmp(&b.offset);
            by_place.then_with(|| by_rank(a).cmp(&by_rank(b)))
        });
        // Indices must fit in 32 bits. No file of a size that exists comes near.
        found.truncate(NONE as usize);

        let mut starts: Vec<Start> = Vec::with_capacity(found.len());
        let mut names = Vec::with_capacity(found.len());
        for found in found {
            match starts.last_mut() {
                Some(last) if last.offset == found.offset => last.size = last.size.max(found.size),
                _ => starts.push(Start {
                    offset: found.offset,
                    size: found.size,
                    names: names.len() as u32,
                    enclosing: NONE,
                }),
            }
            names.extend(found.name);
        }
        link_enclosing(&mut starts);
        starts.shrink_to_fit();
        names.shrink_to_fit();
        self.starts = starts;
        self.names = names;
    }

    /// Gives names to functions, such as those of an IFUNC to the function that it resolved to.
    ///
    /// They go before the names that a function has of its own. An address relative to the load
    /// bias that was not known becomes a function of unknown size; one that is not in a section for
    /// functions is dropped. Indices may change.
    pub fn add_names(&mut self, names: impl IntoIterator<Item = (u64, Name<'a>)>) {
        let mut found: Vec<RawSymbol> = self.found().collect();
        for (address, name) in names {
            let Some((offset, _)) = self.place(address) else {
                continue;
            };
            let at = self.added.len() as u32;
            self.added.push(name);
            found.push(RawSymbol {
                offset,
                size: 0,
                name: Some(NameRef {
                    at,
                    version: 0,
                    strings: Strings::Added,
                    rank: Rank::ADDED,
                }),
            });
        }
        self.arrange(found);
    }

    /// What was found, as far as it is told by the functions that were made of it.
    fn found(&self) -> impl Iterator<Item = RawSymbol> {
        self.starts.iter().enumerate().flat_map(|(index, start)| {
            let names = self.name_refs(index);
            // One without a name must not get lost.
            let unnamed = names.is_empty().then_some(None);
            let names = names.iter().copied().map(Some);
            unnamed.into_iter().chain(names).map(|name| RawSymbol {
                offset: start.offset,
                size: start.size,
                name,
            })
        })
    }

    /// Whether only the functions are known that are visible to other modules: the file was
    /// stripped, and there is no debug file.
    #[must_use]
    pub fn is_stripped(&self) -> bool {
        self.stripped
    }

    /// The number of functions: of addresses at which one starts.
    #[must_use]
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Whether there is no function.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// The function at an index. They are in the order of their addresses.
    ///
    /// # Panics
    ///
    /// If the index is not less than [`len`](Self::len).
    #[must_use]
    pub fn get(&self, index: usize) -> FunctionSymbol {
        let start = &self.starts[index];
        let address = self.base + u64::from(start.offset);
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

    /// The names of IFUNCs, each with the index of its resolver.
    pub fn ifuncs(&self) -> impl Iterator<Item = (usize, Name<'a>)> {
        (0..self.len()).flat_map(|index| self.ifuncs_of(index).map(move |name| (index, name)))
    }

    /// The names of the IFUNCs that the function at an index is the resolver of.
    ///
    /// # Panics
    ///
    /// If the index is not less than [`len`](Self::len).
    pub fn ifuncs_of(&self, index: usize) -> impl Iterator<Item = Name<'a>> {
        let names = self.name_refs(index).iter();
        let ifuncs = names.filter(|name| name.rank.is_ifunc());
        ifuncs.filter_map(|name| self.name(*name))
    }

    /// All names of the function at an index, none if it has none that is text.
    ///
    /// The first is the one to call it by: a name that was added goes before its own names; the
    /// version that programs are linked against, or none, before a hidden one; then that with the
    /// fewest underscores in front; then a global name before a weak one before a local one; then
    /// that of the largest size; then the shortest, and the first in alphabetical order.
    ///
    /// # Panics
    ///
    /// If the index is not less than [`len`](Self::len).
    pub fn names(&self, index: usize) -> impl Iterator<Item = Name<'a>> {
        let names = self.name_refs(index).iter();
        names.filter_map(|name| self.name(*name))
    }

    fn name_refs(&self, index: usize) -> &[NameRef] {
        let first = self.starts[index].names as usize;
        let end = self.starts.get(index + 1).map(|next| next.names as usize);
        &self.names[first..end.unwrap_or(self.names.len())]
    }

    /// The name, unless it is not text inside the file.
    fn name(&self, name: NameRef) -> Option<Name<'a>> {
        let strings = match name.strings {
            Strings::Symtab => self.strings[0],
            Strings::Dynsym => self.strings[1],
            Strings::Debug => self.strings[2],
            Strings::Added => return self.added.get(name.at as usize).copied(),
        };
        let from = strings.get(name.at as usize..)?;
        let text = before(&from[..from.len().min(MAX_NAME)], 0)?;
        let mut result = Name::new(str::from_utf8(text).ok()?)?;
        let version = name.version & !HIDDEN_VERSION;
        if let Ok(known) = self
            .versions
            .binary_search_by_key(&version, |known| known.0)
        {
            result.version = Some(Version {
                is_hidden: name.version & HIDDEN_VERSION != 0,
                name: self.versions[known].1,
            });
        }
        Some(result)
    }

    /// The first function that starts at or behind the address.
    #[must_use]
    pub fn index_at_or_behind(&self, address: u64) -> Option<usize> {
        let index =
            (self.starts).partition_point(|start| self.base + u64::from(start.offset) < address);
        (index < self.starts.len()).then_some(index)
    }

    /// The index of the function that starts at an address relative to the load bias.
    #[must_use]
    pub fn index_at(&self, address: u64) -> Option<usize> {
        let offset = u32::try_from(address.checked_sub(self.base)?).ok()?;
        self.starts
            .binary_search_by_key(&offset, |start| start.offset)
            .ok()
    }

    /// The index of the function that contains an address relative to the load bias; of functions
    /// inside each other, the innermost.
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

    /// The number of bytes of memory that this takes beside the file.
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

/// Links every function to the innermost earlier one that reaches beyond its start.
///
/// Following the links from the last function that starts at or before an address then visits all
/// that contain the address, the innermost first.
fn link_enclosing(starts: &mut [Start]) {
    let mut innermost = NONE;
    for i in 0..starts.len() {
        let offset = u64::from(starts[i].offset);
        while let Some(open) = starts.get(innermost as usize) {
            if open.end() > offset {
                break;
            }
            innermost = open.enclosing;
        }
        starts[i].enclosing = innermost;
        innermost = i as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    /// A symbol of a made-up file. Its address is in one of the sections below.
    #[derive(Clone, Copy)]
    struct Row {
        name: &'static str,
        address: u64,
        size: u64,
        binding: u8,
        kind: u8,
        section: u16,
    }

    const FUNC: u8 = 2;
    const IFUNC: u8 = 10;
    const LOCAL: u8 = 0;
    const GLOBAL: u8 = 1;
    const WEAK: u8 = 2;
    const UNDEFINED: u16 = 0;
    const ABSOLUTE: u16 = 0xfff1;

    const TEXT: Range<u64> = 0x1000..0x2000;
    const PLT: Range<u64> = 0x2000..0x2100;
    const INIT: Range<u64> = 0x2100..0x2110;
    /// Said to be executable, but loaded as data.
    const DATA: Range<u64> = 0x3000..0x3100;

    fn global(name: &'static str, address: u64, size: u64) -> Row {
        Row {
            name,
            address,
            size,
            binding: GLOBAL,
            kind: FUNC,
            section: 1,
        }
    }

    fn local(name: &'static str, address: u64, size: u64) -> Row {
        Row {
            binding: LOCAL,
            ..global(name, address, size)
        }
    }

    /// A file with a `.symtab` and a `.dynsym`, without those that are empty.
    fn file(symtab: &[Row], dynsym: &[Row]) -> Vec<u8> {
        const HEADERS: usize = 64 + 56;
        let section_names = b"\0.text\0.plt\0.init\0".to_vec();
        let mut content = section_names.clone();
        // Of each its name, type, flags, address, offset, size and link.
        let mut sections: Vec<[u64; 7]> = Vec::new();
        let exec = 6; // SHF_ALLOC | SHF_EXECINSTR
        sections.push([0; 7]);
        for (name, range) in [(1, TEXT), (7, PLT), (12, INIT), (1, DATA)] {
            sections.push([name, 1, exec, range.start, 0, range.end - range.start, 0]);
        }
        let names_len = section_names.len() as u64;
        sections.push([0, 3, 0, 0, HEADERS as u64, names_len, 0]);
        for (kind, rows) in [(2, symtab), (11, dynsym)] {
            if rows.is_empty() {
                continue;
            }
            let mut strings = vec![0];
            content.resize(content.len().next_multiple_of(8), 0);
            let at = HEADERS + content.len();
            for row in rows {
                content.extend((strings.len() as u32).to_le_bytes());
                content.extend([row.binding << 4 | row.kind, 0]);
                content.extend(row.section.to_le_bytes());
                content.extend(row.address.to_le_bytes());
                content.extend(row.size.to_le_bytes());
                // So that a name can be made no text.
                strings.extend(row.name.chars().map(|c| c as u8).chain([0]));
            }
            let len = 24 * rows.len() as u64;
            let link = sections.len() as u64 + 1;
            sections.push([0, kind, 0, 0, at as u64, len, link]);
            let at = HEADERS + content.len();
            sections.push([0, 3, 0, 0, at as u64, strings.len() as u64, 0]);
            content.extend(strings);
        }
        content.resize(content.len().next_multiple_of(8), 0);

        let mut out = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0];
        out.extend([0; 8]);
        out.extend([3, 0, 62, 0, 1, 0, 0, 0]); // ET_DYN, EM_X86_64
        let tables = [0, 64, (HEADERS + content.len()) as u64];
        out.extend(tables.iter().flat_map(|word| word.to_le_bytes()));
        out.extend([0; 4]);
        for half in [64, 56, 1, 64, sections.len() as u16, 5] {
            out.extend(half.to_le_bytes());
        }
        // PT_LOAD, readable and executable.
        out.extend([1, 0, 0, 0, 5, 0, 0, 0]);
        for word in [0, TEXT.start, 0, 0, DATA.start - TEXT.start, 0x1000] {
            out.extend(word.to_le_bytes());
        }
        out.extend(content);
        for [name, kind, flags, address, offset, size, link] in sections {
            out.extend((name as u32).to_le_bytes());
            out.extend((kind as u32).to_le_bytes());
            for word in [flags, address, offset, size] {
                out.extend(word.to_le_bytes());
            }
            out.extend((link as u32).to_le_bytes());
            out.extend([0; 4]);
            out.extend(8u64.to_le_bytes());
            out.extend(24u64.to_le_bytes());
        }
        out
    }

    fn read(bytes: &[u8]) -> Functions<'_> {
        Functions::read(&ElfFile::parse(bytes).unwrap(), None).unwrap()
    }

    /// All names of the function at an address.
    fn names(functions: &Functions<'_>, address: u64) -> Vec<String> {
        let index = functions.index_at(address).unwrap();
        functions
            .names(index)
            .map(|name| name.to_string())
            .collect()
    }

    fn limit(functions: &Functions<'_>, address: u64) -> u64 {
        functions.get(functions.index_at(address).unwrap()).limit
    }

    #[test]
    fn several_names_of_one_address_are_one_function() {
        let weak = Row {
            binding: WEAK,
            ..global("weak", 0x1010, 4)
        };
        let symtab = [
            local("local", 0x1010, 4),
            weak,
            global("later", 0x1020, 4),
            global("small", 0x1010, 2),
            global("_b", 0x1010, 4),
            global("c", 0x1010, 4),
        ];
        let bytes = file(&symtab, &[global("exported", 0x1010, 9)]);
        let functions = read(&bytes);
        assert_eq!(functions.len(), 2);
        assert_eq!(functions.get(0).size, 9);
        let expected = ["exported", "c", "small", "weak", "local", "_b"];
        assert_eq!(names(&functions, 0x1010), expected);
    }

    #[test]
    fn a_name_in_several_tables_counts_once() {
        let symtab = [
            local("f", 0x1010, 4),
            local("g@@V2", 0x1020, 4),
            local("g@V1", 0x1020, 4),
        ];
        let dynsym = [global("f", 0x1010, 4), global("g", 0x1020, 4)];
        let bytes = file(&symtab, &dynsym);
        let functions = read(&bytes);
        assert_eq!(names(&functions, 0x1010), ["f"]);
        let mut found = names(&functions, 0x1020);
        found.sort_unstable();
        assert_eq!(found, ["g@@V2", "g@V1"]);
    }

    #[test]
    fn the_tables_of_both_files_are_taken_together() {
        let stripped = file(&[], &[global("f", 0x1010, 4)]);
        let debug = file(
            &[local("hidden", 0x1020, 4), local("alias", 0x1010, 4)],
            &[],
        );
        assert!(read(&stripped).is_stripped());
        assert!(!read(&debug).is_stripped());
        let [stripped, debug] = [&stripped, &debug].map(|bytes| ElfFile::parse(bytes).unwrap());
        let functions = Functions::read(&stripped, Some(&debug)).unwrap();
        assert!(!functions.is_stripped());
        assert_eq!(names(&functions, 0x1010), ["f", "alias"]);
        assert_eq!(names(&functions, 0x1020), ["hidden"]);
    }

    #[test]
    fn parts_that_are_jumped_to_are_no_functions() {
        let part = |name| [local("f", 0x1010, 4), local(name, 0x1800, 4)];
        for name in [
            "f.cold",
            "f.cold.1",
            "f.part.0.cold",
            "f.cold.llvm.1",
            "f.__part.1",
        ] {
            let bytes = file(&part(name), &[]);
            assert_eq!(read(&bytes).len(), 1, "{name}");
        }
        for name in [
            "f.part.0",
            "f.isra.0",
            "f.constprop.0",
            "f.lto_priv.0",
            "cold",
            ".cold",
            "f.colder",
            "_ZN1a4b..cold17h0123456789abcdefE",
            "_ZN1a8b..cold..c17h0123456789abcdefE",
        ] {
            let bytes = file(&part(name), &[]);
            assert_eq!(names(&read(&bytes), 0x1800), [name]);
        }
    }

    #[test]
    fn names_come_without_what_makes_them_unique() {
        for (text, symbol) in [
            ("f.llvm.123", "f"),
            ("f.llvm.12AF@@V1", "f"),
            ("f.part.0.llvm.1", "f.part.0"),
            (".llvm.1", ".llvm.1"),
            ("f.llvm.x", "f.llvm.x"),
            ("@f", "@f"),
            ("f@", "f"),
            ("f@@", "f"),
        ] {
            assert_eq!(Name::new(text).unwrap().symbol, symbol);
        }
        assert_eq!(Name::new(""), None);
    }

    #[test]
    fn what_is_no_place_for_a_function_is_dropped() {
        let at = |address, section| Row {
            section,
            ..global("f", address, 4)
        };
        let rows = [
            at(TEXT.start, 1),
            at(TEXT.end - 1, 1),
            at(INIT.start, 3),
            // These are not defined here.
            at(TEXT.start + 8, UNDEFINED),
            at(TEXT.start + 16, ABSOLUTE),
            // These are, but not where functions are.
            at(TEXT.start - 1, 1),
            at(PLT.start, 2),
            at(PLT.end - 1, 2),
            at(INIT.end, 3),
            at(DATA.start, 4),
            at(u64::MAX, 1),
        ];
        let bytes = file(&rows, &[]);
        let functions = read(&bytes);
        let addresses = (0..functions.len()).map(|index| functions.get(index).address);
        let expected = [TEXT.start, TEXT.end - 1, INIT.start];
        assert_eq!(addresses.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn no_function_goes_beyond_its_section() {
        let rows = [
            global("a", TEXT.end - 8, u64::MAX),
            global("b", INIT.start, 0x100),
            global("c", INIT.end - 1, 0),
        ];
        let bytes = file(&rows, &[]);
        let functions = read(&bytes);
        let [a, b, c] = [0, 1, 2].map(|index| functions.get(index));
        assert_eq!((a.size, a.limit), (8, TEXT.end));
        assert_eq!((b.size, b.limit), (0x10, INIT.end - 1));
        assert_eq!((c.size, c.limit), (0, INIT.end));
    }

    #[test]
    fn a_function_is_limited_by_whatever_comes_next() {
        let label = |name, address, size| Row {
            kind: 0,
            ..local(name, address, size)
        };
        let rows = [
            global("sized", 0x1010, 8),
            // Inside, and so a part of it.
            label("inner", 0x1014, 0),
            label("behind", 0x1019, 0),
            global("before_cold", 0x1020, 3),
            local("other.cold", 0x1023, 9),
            global("bare", 0x1030, 0),
            label("label", 0x1034, 0),
            global("outer", 0x1040, 0x20),
            global("nested", 0x1048, 4),
            label("hidden", 0x1050, 0),
        ];
        let bytes = file(&rows, &[]);
        let functions = read(&bytes);
        assert_eq!(functions.len(), 5);
        assert_eq!(limit(&functions, 0x1010), 0x1019);
        assert_eq!(limit(&functions, 0x1020), 0x1023);
        assert_eq!(limit(&functions, 0x1030), 0x1034);
        assert_eq!(limit(&functions, 0x1040), 0x1048);
        assert_eq!(limit(&functions, 0x1048), TEXT.end);
    }

    #[test]
    fn functions_without_a_name_stay() {
        // The last is no text in UTF-8.
        let rows = [local("", 0x1010, 4), local("f\u{ff}", 0x1020, 4)];
        let bytes = file(&rows, &[]);
        let mut functions = read(&bytes);
        assert!(names(&functions, 0x1010).is_empty());
        assert!(names(&functions, 0x1020).is_empty());
        let name = Name::new("named").unwrap();
        functions.add_names([(0x1020, name)]);
        assert!(names(&functions, 0x1010).is_empty());
        assert_eq!(names(&functions, 0x1020), ["named"]);
        assert_eq!(functions.get(1).size, 4);
    }

    #[test]
    fn a_function_goes_by_the_name_that_programmers_know() {
        // As in the C library of Debian, and mangled.
        let weak = |name, address| Row {
            binding: WEAK,
            ..global(name, address, 4)
        };
        let rows = [
            global("cfree@V1", 0x1010, 4),
            global("__libc_free@@V1", 0x1010, 4),
            weak("free@@V1", 0x1010),
            global("__close@@V1", 0x1020, 4),
            weak("close@@V1", 0x1020),
            local("_fini_array", 0x1020, 4),
            global("__aliased", 0x1030, 4),
            weak("_ZN1a1fEv", 0x1030),
            weak("_RNvC1a1f", 0x1040),
            global("_Report", 0x1040, 4),
        ];
        let bytes = file(&rows, &[]);
        let functions = read(&bytes);
        let best = [0, 1, 2, 3].map(|index| functions.names(index).next().unwrap().symbol);
        assert_eq!(best, ["free", "close", "_ZN1a1fEv", "_RNvC1a1f"]);
    }

    #[test]
    fn added_names_go_before_those_of_its_own() {
        let resolver = Row {
            kind: IFUNC,
            ..global("f@@V1", 0x1010, 4)
        };
        let bytes = file(&[resolver, local("f_avx", 0x1020, 4)], &[]);
        let mut functions = read(&bytes);
        let name = functions.names(0).next().unwrap();
        functions.add_names([
            (0x1020, name),
            (0x1030, name),
            (0x1020, name),
            (PLT.start, name),
        ]);
        assert_eq!(functions.len(), 3);
        assert_eq!(names(&functions, 0x1010), ["f@@V1"]);
        assert_eq!(names(&functions, 0x1020), ["f@@V1", "f_avx"]);
        assert_eq!(names(&functions, 0x1030), ["f@@V1"]);
        let resolvers = [0, 1, 2].map(|index| functions.get(index).is_resolver);
        assert_eq!(resolvers, [true, false, false]);
        assert_eq!(functions.ifuncs().collect::<Vec<_>>(), [(0, name)]);
    }

    #[test]
    fn lookup_agrees_with_a_linear_search() {
        // Some two hundred overlapping functions from a little generator.
        let mut state = 1u32;
        let mut next = |below: u64| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            u64::from(state >> 16) % below
        };
        let rows: Vec<_> = (0..200)
            .map(|_| local("f", TEXT.start + 2 * next(150), next(20)))
            .collect();
        let bytes = file(&rows, &[]);
        let functions = read(&bytes);
        let all: Vec<_> = (0..functions.len())
            .map(|index| functions.get(index))
            .collect();
        assert!(all.is_sorted_by(|a, b| a.address < b.address));
        for address in TEXT.start - 1..TEXT.start + 330 {
            let holds =
                |f: &FunctionSymbol| (f.address..f.address + f.size.max(1)).contains(&address);
            assert_eq!(functions.containing(address), all.iter().rposition(holds));
            let starts = all.iter().position(|f| f.address == address);
            assert_eq!(functions.index_at(address), starts);
        }
    }

    #[test]
    fn a_function_takes_24_bytes() {
        let rows: Vec<_> = (0..1000)
            .map(|index| global("f", TEXT.start + 4 * index, 4))
            .collect();
        let bytes = file(&rows, &rows);
        let functions = read(&bytes);
        assert_eq!(functions.len(), 1000);
        let ranges = functions.text.capacity() * size_of::<Range<u64>>();
        assert_eq!(functions.memory() - ranges, 24_000);
    }

    #[test]
    fn damaged_files_never_panic() {
        let rows = [
            global("f@@V", 0x1010, 4),
            local("f.cold", 0x1018, 4),
            local("g", 0x1010, u64::MAX),
        ];
        let good = file(&rows, &rows[..1]);
        testing::read_elf(&good, |_, _| ());
        (0..good.len()).for_each(|len| testing::read_elf(&good[..len], |_, _| ()));
        let mut bad = good.clone();
        for at in 0..good.len() {
            for value in [0, 1, 2, 4, 0x7f, 0x80, 0xff, good[at] ^ 1, good[at] ^ 8] {
                bad[at] = value;
                testing::read_elf(&bad, |_, _| ());
            }
            bad[at] = good[at];
        }
    }
}
