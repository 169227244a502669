//! The symbols that loaded modules export, read from their memory.
//!
//! The linker's own lookup (`dlsym`) allocates with the program's allocator where it fails. This
//! one calls no function of the program.
//!
//! # Safety
//!
//! The unsafe code reads the dynamic section of a loaded module and the tables to which it leads,
//! inside a callback of `dl_iterate_phdr`, whose lock keeps the module loaded.

use core::ffi::{CStr, c_char};
use core::ptr;

use libc::Elf64_Sym;

use super::described::{Info, for_each_info};

/// An exported symbol.
#[derive(Clone, Copy, Debug)]
pub(super) struct Export {
    address: usize,
    is_ifunc: bool,
}

impl Export {
    /// Returns the address that other modules get; calls the resolver of an IFUNC.
    ///
    /// # Safety
    ///
    /// The module must be relocated, and stay loaded.
    pub(super) unsafe fn resolved(self) -> usize {
        match self.is_ifunc {
            // SAFETY: the symbol's type says that a resolver is there, and the module is relocated.
            true => unsafe {
                let resolver = ptr::with_exposed_provenance::<()>(self.address);
                core::mem::transmute::<*const (), extern "C" fn() -> usize>(resolver)()
            },
            false => self.address,
        }
    }
}

/// Returns true if any module exports a symbol with this name.
pub(super) fn is_exported(name: &CStr) -> bool {
    let mut is_found = false;
    for_each_info(|info| {
        is_found = Tables::of(info).is_some_and(|tables| tables.find(name, None).is_some());
        !is_found
    });
    is_found
}

/// The tables of a module's dynamic section.
#[derive(Debug, Default)]
pub(super) struct Tables {
    bias: usize,
    symbols: usize,
    strings: usize,
    gnu_hash: usize,
    hash: usize,
    versions: usize,
    definitions: usize,
}

/// Reads a value of a table.
///
/// # Safety
///
/// The table must have it.
unsafe fn read<T: Copy>(table: usize, index: usize) -> T {
    // SAFETY: the caller's contract.
    unsafe {
        ptr::with_exposed_provenance::<T>(table)
            .add(index)
            .read_unaligned()
    }
}

impl Tables {
    /// Reads the dynamic section; `None` if the module exports nothing.
    pub(super) fn of(info: &Info<'_>) -> Option<Self> {
        const SYMTAB: u64 = 6;
        const STRTAB: u64 = 5;
        const HASH: u64 = 4;
        const GNU_HASH: u64 = 0x6fff_fef5;
        const VERSYM: u64 = 0x6fff_fff0;
        const VERDEF: u64 = 0x6fff_fffc;
        let mut this = Self {
            bias: info.bias,
            ..Self::default()
        };
        for at in info.dynamic().step_by(2 * size_of::<u64>()) {
            // SAFETY: the section is mapped, and consists of pairs of words.
            let [tag, value]: [u64; 2] = unsafe { read(at, 0) };
            let table = match tag {
                0 => break,
                SYMTAB => &mut this.symbols,
                STRTAB => &mut this.strings,
                HASH => &mut this.hash,
                GNU_HASH => &mut this.gnu_hash,
                VERSYM => &mut this.versions,
                VERDEF => &mut this.definitions,
                _ => continue,
            };
            // The linker has added the bias where it may write the section.
            *table = match (value as usize) < info.bias {
                true => info.bias + value as usize,
                false => value as usize,
            };
        }
        let is_whole = this.symbols != 0 && this.strings != 0;
        (is_whole && (this.gnu_hash | this.hash) != 0).then_some(this)
    }

    /// Returns the symbol with a name, of this version or else of the one against which programs
    /// are linked.
    pub(super) fn find(&self, name: &CStr, version: Option<&CStr>) -> Option<Export> {
        let mut found = None;
        self.candidates(name, |index| {
            found = self.export(index, name, version);
            found.is_none()
        });
        found
    }

    /// Calls `visit` for the index of each symbol whose hash is that of the name, while it returns
    /// true.
    fn candidates(&self, name: &CStr, mut visit: impl FnMut(usize) -> bool) {
        let bytes = name.to_bytes().iter().map(|&byte| u32::from(byte));
        if self.gnu_hash == 0 {
            let hash = bytes.fold(0u32, |hash, byte| {
                let sum = hash.wrapping_shl(4).wrapping_add(byte);
                let high = sum & 0xf000_0000;
                (sum ^ (high >> 24)) & !high
            });
            // SAFETY: the layout of a System V hash table: two counts, buckets, chains.
            unsafe {
                let [buckets, _]: [u32; 2] = read(self.hash, 0);
                let words = self.hash + 8;
                let mut index: u32 = read(words, (hash % buckets.max(1)) as usize);
                while index != 0 && visit(index as usize) {
                    index = read(words, (buckets + index) as usize);
                }
            }
            return;
        }
        let hash = bytes.fold(5381u32, |hash, byte| {
            hash.wrapping_mul(33).wrapping_add(byte)
        });
        // SAFETY: the layout of a GNU hash table: four numbers, words of a filter, buckets, chains
        // that end with an odd number.
        unsafe {
            let [buckets, first, filter, _]: [u32; 4] = read(self.gnu_hash, 0);
            let start = self.gnu_hash + 16 + 8 * filter as usize;
            let chains = start + 4 * buckets as usize;
            let mut index: u32 = read(start, (hash % buckets.max(1)) as usize);
            while index >= first && buckets != 0 {
                let known: u32 = read(chains, (index - first) as usize);
                if (known | 1 == hash | 1 && !visit(index as usize)) || known & 1 != 0 {
                    return;
                }
                index += 1;
            }
        }
    }

    fn export(&self, index: usize, name: &CStr, version: Option<&CStr>) -> Option<Export> {
        const TLS: u8 = 6;
        const IFUNC: u8 = 10;
        // SAFETY: the hash table has indices of symbols only, and their names end with a zero.
        let symbol: Elf64_Sym = unsafe { read(self.symbols, index) };
        let is_defined = symbol.st_shndx != 0 && symbol.st_info & 15 != TLS;
        if !is_defined || self.string(symbol.st_name as usize) != name {
            return None;
        }
        let is_version = match (self.versions, version) {
            (0, version) => version.is_none(),
            (versions, version) => {
                // SAFETY: there is a version for each symbol.
                let own: u16 = unsafe { read(versions, index) };
                match version {
                    None => own & 0x8000 == 0,
                    Some(version) => self.version(own & 0x7fff) == Some(version),
                }
            }
        };
        is_version.then(|| Export {
            address: self.bias.wrapping_add(symbol.st_value as usize),
            is_ifunc: symbol.st_info & 15 == IFUNC,
        })
    }

    /// Returns the name of a version that the module defines.
    fn version(&self, index: u16) -> Option<&CStr> {
        let mut at = self.definitions;
        while at != 0 {
            // SAFETY: the definitions are a list of `Elf64_Verdef`: four halves of a word, then the
            // hash, the offset of the first name, and that of the next definition.
            let ([_, _, own, _], [_, first, next]): ([u16; 4], [u32; 3]) =
                unsafe { (read(at, 0), read(at + 8, 0)) };
            if own == index {
                // SAFETY: an `Elf64_Verdaux` begins with the offset of the name.
                let name: u32 = unsafe { read(at + first as usize, 0) };
                return Some(self.string(name as usize));
            }
            match next {
                0 => return None,
                next => at += next as usize,
            }
        }
        None
    }

    fn string(&self, at: usize) -> &CStr {
        // SAFETY: names are C strings in the table of the loaded module.
        unsafe { CStr::from_ptr(ptr::with_exposed_provenance::<c_char>(self.strings + at)) }
    }
}
