//! The variants of the entry trampoline.

use crate::stub::StubKind;

/// The trampoline for a site's calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// For sites with a NOP made by the compiler: the registers survive that a callee may read by
    /// the ABI.
    Plain,
    /// For sites without such a NOP: every general register and vector registers 0 to 15 survive
    /// entry and return; only flags and the registers of AVX-512 do not.
    Preserve,
    /// Like `Preserve`, and vector registers 16 to 31 and the opmasks survive, too.
    PreserveAll,
    /// Like `Preserve`, but returns are not dispatched: for functions that must not be called from
    /// elsewhere, because they return twice or look at their return address.
    EntryOnly,
    /// Like `EntryOnly`, with the registers that survive `PreserveAll`.
    EntryOnlyAll,
}

impl Variant {
    /// Every variant, in the order of their numbers.
    pub const ALL: [Self; 5] = [
        Self::Plain,
        Self::Preserve,
        Self::PreserveAll,
        Self::EntryOnly,
        Self::EntryOnlyAll,
    ];

    /// The variants that [dispatch returns](Self::returns).
    pub(super) const CALLING: [Self; 3] = [Self::Plain, Self::Preserve, Self::PreserveAll];

    /// Returns the variant that preserves at least as much, but does not dispatch returns.
    #[must_use]
    pub const fn entry_only(self) -> Self {
        match self {
            Self::PreserveAll | Self::EntryOnlyAll => Self::EntryOnlyAll,
            Self::Plain | Self::Preserve | Self::EntryOnly => Self::EntryOnly,
        }
    }

    /// Returns the kind of stub that leads to it.
    #[must_use]
    pub const fn stub(self) -> StubKind {
        match self {
            Self::Plain => StubKind::Plain,
            _ => StubKind::Preserving,
        }
    }

    /// Returns the address of the word with the trampoline's address, in the header of stubs at
    /// `header`.
    #[must_use]
    pub const fn word(self, header: usize) -> usize {
        header + self as usize * size_of::<usize>()
    }

    /// Returns true if returns are dispatched: the body is called if a user wants the return.
    #[must_use]
    pub const fn returns(self) -> bool {
        !matches!(self, Self::EntryOnly | Self::EntryOnlyAll)
    }
}
