//! The functions of allocators, and the effect of each on blocks of memory.
//!
//! Known are malloc and its family, `operator new` and `delete`, the functions of `mmap`, Rust's
//! global allocator, and jemalloc, mimalloc and tcmalloc by their own names.
//!
//! An allocator calls functions of others inside its own: `operator new` calls `malloc`, which
//! calls `mmap`. The outermost call makes the block. See [`Role::contains`].

/// Effect of a function on blocks of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Returns a new block.
    Allocate,
    /// Writes the address of a new block to the pointed-to word, and returns 0.
    Store,
    /// Frees a block.
    Free,
    /// Frees a block and returns a new one. Null leaves the block as it was, unless the size is 0.
    Reallocate,
    /// Changes the size of a block, and returns the new size.
    Resize,
    /// Returns a new mapping, or -1. Mappings of files are left out.
    Map,
    /// Frees a range of mappings, and returns 0.
    Unmap,
    /// Moves a mapping, and returns its address, or -1.
    Remap,
}

/// Place of the requested size among the arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// There is none.
    None,
    /// It is an argument.
    Argument(u8),
    /// It is the product of two arguments.
    Product(u8, u8),
}

/// Function of an allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Role {
    /// Effect of a call.
    pub act: Act,
    /// Index of the argument with the block that it frees or changes, or with the word that it
    /// writes to.
    pub pointer: u8,
    /// Place of the size of the new block.
    pub size: Size,
    /// Number of arguments that are needed.
    pub arguments: u8,
    /// True if it may call a function of the program's, which may free blocks: the handler of
    /// `operator new`.
    pub has_handler: bool,
}

/// `MAP_ANONYMOUS` of Linux.
const ANONYMOUS: u64 = 0x20;

impl Role {
    const fn of(act: Act, pointer: u8, size: Size, arguments: u8) -> Self {
        Self {
            act,
            pointer,
            size,
            arguments,
            has_handler: false,
        }
    }

    /// Returns the role of a function that returns a new block. `size` is the index of the argument
    /// with its size.
    #[must_use]
    pub const fn allocating(size: u8) -> Self {
        Self::of(Act::Allocate, 0, Size::Argument(size), size + 1)
    }

    /// Returns the role of a function that frees a block. `pointer` is the index of the argument
    /// with its address.
    #[must_use]
    pub const fn freeing(pointer: u8) -> Self {
        Self::of(Act::Free, pointer, Size::None, pointer + 1)
    }

    /// True if a call of `inner` inside a call of this function has no effect of its own.
    #[inline]
    #[must_use]
    pub const fn contains(&self, inner: &Self) -> bool {
        !(self.has_handler && matches!(inner.act, Act::Free))
    }

    /// True if the end of a call matters.
    #[inline]
    #[must_use]
    pub const fn returns(&self) -> bool {
        !matches!(self.act, Act::Free)
    }

    /// True if a call does nothing but make a block, so that one event at its end has all of it.
    #[inline]
    #[must_use]
    pub const fn is_one_event(&self) -> bool {
        matches!(self.act, Act::Allocate | Act::Store | Act::Map)
    }

    /// True if a call may make a block.
    #[inline]
    #[must_use]
    pub const fn allocates(&self) -> bool {
        !matches!(self.act, Act::Free | Act::Unmap)
    }

    /// True if blocks are mappings.
    #[inline]
    #[must_use]
    pub const fn maps(&self) -> bool {
        matches!(self.act, Act::Map | Act::Unmap | Act::Remap)
    }

    /// True if a call with these arguments is for memory of the process's own.
    #[inline]
    #[must_use]
    pub fn is_own(&self, arguments: &[u64]) -> bool {
        !matches!(self.act, Act::Map) || arguments.get(3).is_some_and(|it| it & ANONYMOUS != 0)
    }

    /// Returns the block that a call with these arguments frees or changes.
    #[inline]
    #[must_use]
    pub fn block(&self, arguments: &[u64]) -> u64 {
        match self.act {
            Act::Allocate | Act::Store | Act::Map => 0,
            _ => arguments
                .get(usize::from(self.pointer))
                .copied()
                .unwrap_or(0),
        }
    }

    /// Returns the requested size.
    #[inline]
    #[must_use]
    pub fn size(&self, arguments: &[u64]) -> u64 {
        let argument = |index: u8| arguments.get(usize::from(index)).copied().unwrap_or(0);
        match self.size {
            Size::None => 0,
            Size::Argument(index) => argument(index),
            Size::Product(first, second) => argument(first).saturating_mul(argument(second)),
        }
    }

    /// Returns the block that a call has made; `None` if it made none. `result` has the result, and
    /// for [`Act::Store`] the stored address.
    #[inline]
    #[must_use]
    pub fn made(&self, result: &[u64]) -> Option<u64> {
        let [first, rest @ ..] = result else {
            return None;
        };
        let block = match self.act {
            Act::Store if *first as u32 == 0 => *rest.first()?,
            Act::Allocate | Act::Reallocate => *first,
            Act::Map | Act::Remap => (*first as i64 != -1).then_some(*first)?,
            _ => 0,
        };
        (block != 0).then_some(block)
    }
}

/// Prefixes of the names of malloc's family: the C library's own, jemalloc's, mimalloc's,
/// tcmalloc's.
const PREFIXES: [&str; 6] = ["", "__libc_", "je_", "_rjem_", "mi_", "tc_"];

/// Functions that may have one of the prefixes.
#[rustfmt::skip]
const FAMILY: &[(&str, Role)] = &[
    ("malloc", Role::of(Act::Allocate, 0, Size::Argument(0), 1)),
    ("calloc", Role::of(Act::Allocate, 0, Size::Product(0, 1), 2)),
    ("realloc", Role::of(Act::Reallocate, 0, Size::Argument(1), 2)),
    ("reallocarray", Role::of(Act::Reallocate, 0, Size::Product(1, 2), 3)),
    ("posix_memalign", Role::of(Act::Store, 0, Size::Argument(2), 3)),
    ("aligned_alloc", Role::of(Act::Allocate, 0, Size::Argument(1), 2)),
    ("memalign", Role::of(Act::Allocate, 0, Size::Argument(1), 2)),
    ("valloc", Role::of(Act::Allocate, 0, Size::Argument(0), 1)),
    ("pvalloc", Role::of(Act::Allocate, 0, Size::Argument(0), 1)),
    ("free", FREE),
    ("cfree", FREE),
    ("free_sized", FREE),
    ("free_aligned_sized", FREE),
    // jemalloc
    ("mallocx", Role::of(Act::Allocate, 0, Size::Argument(0), 1)),
    ("rallocx", Role::of(Act::Reallocate, 0, Size::Argument(1), 2)),
    ("xallocx", Role::of(Act::Resize, 0, Size::Argument(1), 2)),
    ("dallocx", FREE),
    ("sdallocx", FREE),
];

/// Functions that have these names.
#[rustfmt::skip]
const OTHERS: &[(&str, Role)] = &[
    ("mmap", Role::of(Act::Map, 0, Size::Argument(1), 4)),
    ("mmap64", Role::of(Act::Map, 0, Size::Argument(1), 4)),
    ("munmap", Role::of(Act::Unmap, 0, Size::Argument(1), 2)),
    ("mremap", Role::of(Act::Remap, 0, Size::Argument(2), 3)),
    ("mi_zalloc", Role::of(Act::Allocate, 0, Size::Argument(0), 1)),
    ("mi_malloc_small", Role::of(Act::Allocate, 0, Size::Argument(0), 1)),
    ("mi_zalloc_small", Role::of(Act::Allocate, 0, Size::Argument(0), 1)),
    ("mi_malloc_aligned", Role::of(Act::Allocate, 0, Size::Argument(0), 1)),
    ("mi_zalloc_aligned", Role::of(Act::Allocate, 0, Size::Argument(0), 1)),
    ("mi_realloc_aligned", Role::of(Act::Reallocate, 0, Size::Argument(1), 2)),
    ("mi_heap_malloc", Role::of(Act::Allocate, 0, Size::Argument(1), 2)),
    ("mi_heap_zalloc", Role::of(Act::Allocate, 0, Size::Argument(1), 2)),
    ("mi_heap_calloc", Role::of(Act::Allocate, 0, Size::Product(1, 2), 3)),
    ("mi_heap_realloc", Role::of(Act::Reallocate, 1, Size::Argument(2), 3)),
    ("mi_new", Role::of(Act::Allocate, 0, Size::Argument(0), 1)),
    ("mi_new_aligned", Role::of(Act::Allocate, 0, Size::Argument(0), 1)),
    ("mi_free_size", FREE),
    ("mi_free_aligned", FREE),
    ("mi_free_size_aligned", FREE),
    ("tc_new", NEW),
    ("tc_newarray", NEW),
    ("tc_delete", FREE),
    ("tc_deletearray", FREE),
];

/// Functions of Rust's global allocator. From Rust 1.87 on they are in the crate `__rustc`.
#[rustfmt::skip]
const RUST: &[(&str, Role)] = &[
    ("alloc", Role::of(Act::Allocate, 0, Size::Argument(0), 1)),
    ("alloc_zeroed", Role::of(Act::Allocate, 0, Size::Argument(0), 1)),
    ("realloc", Role::of(Act::Reallocate, 0, Size::Argument(3), 4)),
    ("dealloc", FREE),
];
const RUST_PREFIXES: [&str; 3] = ["__rust_", "__rdl_", "__rg_"];

/// Operators of C++, by the word after `operator`.
const OPERATORS: &[(&str, Role)] = &[("new", NEW), ("delete", FREE)];

const FREE: Role = Role::of(Act::Free, 0, Size::None, 1);
const NEW: Role = Role {
    has_handler: true,
    ..Role::of(Act::Allocate, 0, Size::Argument(0), 1)
};

/// Returns the role of a function by one of its names, demangled or not.
///
/// ```
/// use fgraph_symbols::allocators::{Act, role};
///
/// assert_eq!(role("operator new[](unsigned long)").map(|role| role.act), Some(Act::Allocate));
/// assert_eq!(role("free@@GLIBC_2.2.5").map(|role| role.act), Some(Act::Free));
/// assert_eq!(role("my_malloc"), None);
/// ```
#[must_use]
pub fn role(name: &str) -> Option<Role> {
    number(name).and_then(numbered)
}

/// Tables of all roles. The number of a role is 256 times that of its table, and its place there.
const TABLES: [&[(&str, Role)]; 4] = [FAMILY, OTHERS, RUST, OPERATORS];

/// Returns the number of the role of a function by one of its names.
#[must_use]
pub fn number(name: &str) -> Option<u32> {
    let of = |table: usize, name: &str| {
        let found = TABLES[table].iter().position(|(known, _)| *known == name)?;
        Some((table << 8 | found) as u32)
    };
    if let Some(rest) = name.strip_prefix("operator ") {
        let word = rest.split(['[', '(']).next()?;
        // The form that takes an address makes nothing.
        let is_placement = word == "new" && rest.contains("void*)");
        return of(3, word).filter(|_| !is_placement);
    }
    let name = name.split('@').next().unwrap_or(name);
    let in_crate = name
        .starts_with("__rustc")
        .then(|| name.rsplit("::").next());
    let plain = in_crate.flatten().unwrap_or(name);
    let strip = |name, prefixes: &'static [&str]| {
        let prefixes = prefixes.iter();
        prefixes.filter_map(move |prefix| str::strip_prefix(name, prefix))
    };
    let rust = strip(plain, &RUST_PREFIXES).find_map(|name| of(2, name));
    let family = || strip(name, &PREFIXES).find_map(|name| of(0, name));
    rust.or_else(|| of(1, name)).or_else(family)
}

/// Returns the role with a number.
#[inline]
#[must_use]
pub fn numbered(number: u32) -> Option<Role> {
    let table = TABLES.get(number as usize >> 8)?;
    table.get(number as usize & 255).map(|(_, role)| *role)
}

/// Returns words of a filter that select all these functions.
pub fn words() -> impl Iterator<Item = String> {
    let family = PREFIXES.iter().flat_map(|prefix| {
        FAMILY
            .iter()
            .map(move |(name, _)| format!("{prefix}{name}"))
    });
    let others = OTHERS.iter().map(|(name, _)| (*name).to_owned());
    let rust = RUST_PREFIXES.iter().flat_map(|prefix| {
        let names = RUST.iter().map(move |(name, _)| format!("{prefix}{name}"));
        names.flat_map(|name| [format!("__rustc*::{name}"), name])
    });
    let operators = ["new", "delete"].map(|name| format!("\"operator {name}\"*"));
    family.chain(others).chain(rust).chain(operators)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_all_allocators_have_roles() {
        for (name, act) in [
            ("malloc", Act::Allocate),
            ("__libc_calloc", Act::Allocate),
            ("_rjem_sdallocx", Act::Free),
            ("mi_posix_memalign", Act::Store),
            ("tc_realloc", Act::Reallocate),
            ("__rust_alloc", Act::Allocate),
            ("__rustc::__rdl_realloc", Act::Reallocate),
            ("__rustc[5f2c1a]::__rust_dealloc", Act::Free),
            ("operator delete(void*, unsigned long)", Act::Free),
            (
                "operator new(unsigned long, std::nothrow_t const&)",
                Act::Allocate,
            ),
            ("mmap64", Act::Map),
        ] {
            assert_eq!(role(name).map(|role| role.act), Some(act), "{name}");
        }
        for name in [
            "operator new(unsigned long, void*)",
            "zmalloc",
            "Pool::free",
            "app::__rust_alloc",
        ] {
            assert_eq!(role(name), None, "{name}");
        }
    }

    #[test]
    fn results_tell_the_new_block() {
        let of = |name: &str, result: &[u64]| role(name).unwrap().made(result);
        assert_eq!(of("malloc", &[0]), None);
        assert_eq!(of("malloc", &[16]), Some(16));
        assert_eq!(of("posix_memalign", &[0, 32]), Some(32));
        assert_eq!(of("posix_memalign", &[12, 32]), None);
        assert_eq!(of("mmap", &[u64::MAX]), None);
        assert_eq!(of("free", &[16]), None);
        assert_eq!(of("malloc", &[]), None);
    }

    #[test]
    fn sizes_are_the_requested_ones() {
        let of = |name: &str, arguments: &[u64]| role(name).unwrap().size(arguments);
        assert_eq!(of("calloc", &[3, 5]), 15);
        assert_eq!(of("reallocarray", &[64, 3, 5]), 15);
        assert_eq!(of("calloc", &[u64::MAX, 5]), u64::MAX);
        assert_eq!(of("__rust_realloc", &[64, 8, 1, 24]), 24);
        assert!(role("mmap").unwrap().is_own(&[0, 4096, 3, 0x22]));
        assert!(!role("mmap").unwrap().is_own(&[0, 4096, 1, 2]));
    }
}
