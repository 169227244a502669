//! The names of functions in symbol tables, and facts that follow from them.

use core::fmt::{self, Display, Formatter};

use object::read::ReadRef;

use crate::elf::Binding;

/// The rank of a name among those of a function: from its origin, the binding of its symbol, and
/// its kind (IFUNC or not).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rank(pub(super) u8);

impl Rank {
    /// The rank of a name that was added.
    pub(super) const ADDED: Self = Self(8);
    pub(super) const BINDING: u8 = 6;
    pub(super) const IFUNC: u8 = 1;

    pub(super) fn new(binding: Binding, is_ifunc: bool) -> Self {
        let binding = match binding {
            Binding::Local => 2,
            Binding::Weak => 4,
            Binding::Global => 6,
        };
        Self(binding | if is_ifunc { Self::IFUNC } else { 0 })
    }

    pub(super) fn is_added(self) -> bool {
        self.0 & Self::ADDED.0 != 0
    }

    pub(super) fn is_ifunc(self) -> bool {
        self.0 & Self::IFUNC != 0
    }

    /// Returns the rank of the binding: higher for wider visibility.
    pub(super) fn binding(self) -> u8 {
        self.0 & Self::BINDING
    }

    /// Returns the rank of a name that two symbols have.
    pub(super) fn or(self, other: Self) -> Self {
        let flags = (self.0 | other.0) & !Self::BINDING;
        Self(self.binding().max(other.binding()) | flags)
    }
}

/// A name of a function, as it is in the symbol table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name<'a> {
    /// The name, mangled, without the version and without the `.llvm.` suffix of the optimiser.
    pub symbol: &'a str,
    /// The version of the symbol.
    pub version: Option<Version<'a>>,
}

/// The version of a symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version<'a> {
    /// True if programs are linked against another version today.
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
    /// Parses a name that is written `symbol`, `symbol@version` or `symbol@@version` in a table.
    pub(super) fn new(text: &'a str) -> Option<Self> {
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

    /// Returns true if programs are no longer linked against it.
    pub(super) fn is_hidden(self) -> bool {
        self.version.is_some_and(|version| version.is_hidden)
    }

    /// Returns the number of leading underscores, excluding those of mangling: implementers' names
    /// have more than programmers'.
    pub(super) fn underscores(self) -> usize {
        if is_mangled(self.symbol) {
            return 0;
        }
        self.symbol.bytes().take_while(|&byte| byte == b'_').count()
    }
}

/// Returns true if a symbol is mangled, judging by its first letters.
pub(super) fn is_mangled(symbol: &str) -> bool {
    let mut bytes = symbol.bytes();
    match [bytes.next(), bytes.next(), bytes.next()] {
        [Some(b'_'), Some(b'Z'), Some(_)] => true,
        [Some(b'_'), Some(b'R'), Some(tag)] => b"CMXYNI".contains(&tag),
        _ => false,
    }
}

/// Returns a symbol without the suffix with which LLVM makes local symbols unique when it merges
/// modules.
pub(crate) fn without_llvm(symbol: &str) -> &str {
    let is_digit = |byte: &u8| byte.is_ascii_hexdigit();
    let digits = symbol.bytes().rev().take_while(is_digit).count();
    let rest = &symbol[..symbol.len() - digits];
    match rest.strip_suffix(".llvm.") {
        Some(name) if !name.is_empty() => name,
        _ => symbol,
    }
}

/// Returns the bytes before the first `end`; `None` if there is none.
///
/// Most bytes that are read of a file are names. This searches many bytes at a time, which the
/// standard library does not.
pub(super) fn before(bytes: &[u8], end: u8) -> Option<&[u8]> {
    let all = 0..bytes.len() as u64;
    bytes.read_bytes_at_until(all, end).ok()
}

/// Returns true if a symbol stands for a part of a function that is jumped to: `f.cold`,
/// `f.cold.1`, `f.warm` of BOLT, and `f.__part.1` of LLVM's sections of basic blocks.
pub(super) fn is_fragment(symbol: &str) -> bool {
    let Some(name) = before(symbol.as_bytes(), b'.') else {
        return false;
    };
    let (name, suffixes) = symbol.split_at(name.len());
    // Two dots stand for `::` in Rust's legacy mangling: the text next to them is no suffix.
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
