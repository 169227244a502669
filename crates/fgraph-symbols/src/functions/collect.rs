//! Collects the functions of a file from its symbol tables, and sorts them.

use core::cmp::Reverse;

use crate::elf::{ElfError, ElfFile, SymbolKind, SymbolSource, SymbolTable};
use crate::unwind_info;

use super::names::{Name, Rank, is_fragment};
use super::{Functions, NONE, NameRef, Start, Strings};

/// A function or a name of one, before it is sorted.
#[derive(Clone, Copy, Debug)]
struct RawSymbol {
    pub(super) offset: u32,
    pub(super) size: u32,
    pub(super) name: Option<NameRef>,
}

/// Functions by address, and the names of all.
type Places = (Vec<Start>, Vec<NameRef>);

impl<'a> Functions<'a> {
    /// Reads the symbol tables of a file and of the debug file that belongs to it.
    ///
    /// # Errors
    ///
    /// Fails if a symbol table of `file` or its names are not inside the file. A debug file with
    /// this fault is ignored.
    pub fn read(file: &ElfFile<'a>, debug: Option<&ElfFile<'a>>) -> Result<Self, ElfError> {
        let (mut this, tables) = Self::without_functions(file, debug)?;
        let mut found = Vec::new();
        let strings = [Strings::Symtab, Strings::Dynsym, Strings::Debug];
        for (strings, table) in strings.into_iter().zip(tables) {
            this.take(strings, &table, &mut found);
        }
        this.set_places(this.arranged(found));
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

    /// Makes the structure without functions, and returns the symbol tables: `.symtab`, `.dynsym`,
    /// and that of the debug file.
    pub(super) fn without_functions(
        file: &ElfFile<'a>,
        debug: Option<&ElfFile<'a>>,
    ) -> Result<(Self, [SymbolTable<'a>; 3]), ElfError> {
        let symtab = file.symbol_table(SymbolSource::Symtab)?;
        let dynsym = file.symbol_table(SymbolSource::Dynsym)?;
        let debug = debug
            .and_then(|debug| debug.symbol_table(SymbolSource::Symtab).ok())
            .unwrap_or_default();
        let text = file.text();
        let this = Self {
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
        Ok((this, [symtab, dynsym, debug]))
    }

    /// Reads a symbol table: functions into `found`, the rest into `others`.
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

    /// Adds items that only unwind information has: functions to `found`, and the starts of their
    /// parts to `others`.
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
            let found = self.found(|_| true).chain(functions).collect();
            self.set_places(self.arranged(found));
        }
    }

    /// Returns the offset of an address, and the number of bytes from there to the end of its
    /// section; `None` if no function can be there.
    pub(super) fn place(&self, address: u64) -> Option<(u32, u64)> {
        let next = self.text.partition_point(|range| range.start <= address);
        let range = self.text.get(next.checked_sub(1)?)?;
        let offset = u32::try_from(address - self.base).ok()?;
        (address < range.end).then(|| (offset, range.end - address))
    }

    /// Replaces the functions.
    fn set_places(&mut self, (mut starts, mut names): Places) {
        link_enclosing(&mut starts);
        starts.shrink_to_fit();
        names.shrink_to_fit();
        self.starts = starts;
        self.names = names;
    }

    /// Sorts the functions that were found.
    fn arranged(&self, mut found: Vec<RawSymbol>) -> Places {
        // The same name at the same place is in several tables, and may have its version in only
        // one of them. So a name without a version sorts after all that have one, and equals the
        // last.
        let name = |found: &RawSymbol| found.name.and_then(|name| self.name(name));
        let by_name = |found: &RawSymbol| {
            let name = name(found);
            let version = name.and_then(|name| name.version);
            (name.map(|name| name.symbol), version.is_none(), version)
        };
        found.sort_unstable_by_key(|found| found.offset);
        sort_places(&mut found, by_name);
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
        sort_places(&mut found, by_rank);
        // Indices must fit in 32 bits. No real file comes near.
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
        (starts, names)
    }

    /// Adds names to functions, for example that of an IFUNC to the function to which it resolved.
    ///
    /// They precede the names that a function has of its own. An unknown address, relative to the
    /// load bias, becomes a function of unknown size; one outside of the sections for functions is
    /// dropped. Indices may change.
    pub fn add_names(&mut self, names: impl IntoIterator<Item = (u64, Name<'a>)>) {
        let mut names = names.into_iter().peekable();
        if names.peek().is_none() {
            return;
        }
        let mut found = Vec::new();
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
        // Only the places that get a name are sorted again.
        let mut places: Vec<u32> = found.iter().map(|found| found.offset).collect();
        places.sort_unstable();
        let has_new = |start: &Start| places.binary_search(&start.offset).is_ok();
        found.extend(self.found(has_new));
        let (new, new_names) = self.arranged(found);
        let (mut starts, mut names) = Places::default();
        let mut add = |start: Start, of_start: &[NameRef]| {
            starts.push(Start {
                names: names.len() as u32,
                ..start
            });
            names.extend_from_slice(of_start);
        };
        let mut new = new.iter().peekable();
        let ends = self.starts.iter().map(Some).chain([None]);
        for (index, old) in ends.enumerate() {
            let is_before = |new: &&Start| old.is_none_or(|old| new.offset <= old.offset);
            while let Some(start) = new.next_if(is_before) {
                let end = new.peek().map(|next| next.names as usize);
                let of_start = start.names as usize..end.unwrap_or(new_names.len());
                add(*start, &new_names[of_start]);
            }
            if let Some(old) = old.filter(|old| !has_new(old)) {
                add(*old, self.name_refs(index));
            }
        }
        self.set_places((starts, names));
    }

    /// Returns the symbols that became functions, as far as they are still known.
    fn found(&self, is_wanted: impl Fn(&Start) -> bool) -> impl Iterator<Item = RawSymbol> {
        let starts = self.starts.iter().enumerate();
        let wanted = starts.filter(move |(_, start)| is_wanted(start));
        wanted.flat_map(|(index, start)| {
            let names = self.name_refs(index);
            // A function without a name must not get lost.
            let unnamed = names.is_empty().then_some(None);
            let names = names.iter().copied().map(Some);
            unnamed.into_iter().chain(names).map(|name| RawSymbol {
                offset: start.offset,
                size: start.size,
                name,
            })
        })
    }
}

/// Sorts the symbols of each place, which are adjacent, by `key`.
fn sort_places<K: Ord>(found: &mut [RawSymbol], key: impl Fn(&RawSymbol) -> K) {
    /// Up to this number, computing keys again is cheaper than keeping them.
    const FEW: usize = 4;
    for place in found.chunk_by_mut(|a, b| a.offset == b.offset) {
        if place.len() <= FEW {
            place.sort_by_key(&key);
        } else {
            place.sort_by_cached_key(&key);
        }
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
