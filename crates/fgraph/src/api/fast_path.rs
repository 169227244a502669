//! The answer to whether calls of a user take the fast path.

use core::fmt;

use super::symbols::{Symbol, function_at};
use crate::report::analysis::IneligibleReason;

/// The answer of [`Handle::fast_path`](crate::Handle::fast_path).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastPath {
    /// Calls that only such users want take the fast path.
    Eligible,
    /// Calls of the user take the slow path, for this reason.
    Ineligible(Ineligible),
}

impl FastPath {
    /// Returns true if the user is eligible.
    #[must_use]
    pub const fn is_eligible(&self) -> bool {
        matches!(self, Self::Eligible)
    }

    /// Returns the reason that the user is not eligible, if so.
    #[must_use]
    pub const fn ineligible(self) -> Option<Ineligible> {
        match self {
            Self::Eligible => None,
            Self::Ineligible(why) => Some(why),
        }
    }
}

/// The reason that a user is not eligible for the [fast path](crate::Handle::fast_path), and the
/// function that is to blame.
///
/// It is written as a sentence:
///
/// ```text
/// an instruction of `core::fmt::write` (+0x1f) uses more than general registers, memory and the
/// lowest 128 bits of vector registers
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Ineligible {
    reason: IneligibleReason,
    function: Option<Symbol>,
}

impl Ineligible {
    /// The functions of the module where the reason is must have been read.
    pub(super) fn new(reason: IneligibleReason) -> Self {
        // Behind a call that does not return a function may end.
        let function_near = |at: usize| function_at(at).or_else(|| function_at(at.wrapping_sub(1)));
        let function = reason.address().and_then(function_near);
        Self { reason, function }
    }

    /// The reason.
    #[must_use]
    pub fn reason(&self) -> IneligibleReason {
        self.reason
    }

    /// The function that is to blame: a callback, or one that a callback calls. `None` for a reason
    /// that is in no function, and for code that is in no module.
    #[must_use]
    pub fn function(&self) -> Option<Symbol> {
        self.function
    }
}

/// They are equal if the reason is, which says where it is.
impl PartialEq for Ineligible {
    fn eq(&self, other: &Self) -> bool {
        self.reason == other.reason
    }
}

impl Eq for Ineligible {}

impl fmt::Display for Ineligible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.function, self.reason.address()) {
            (Some(function), Some(address)) => {
                let distance = address.wrapping_sub(function.address());
                let name = function.name();
                let place = format!("an instruction of `{name}` (+{distance:#x})");
                self.reason.write_with(f, &place)
            }
            _ => self.reason.fmt(f),
        }
    }
}

impl core::error::Error for Ineligible {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_names_the_function_and_the_place_in_it() {
        #[inline(never)]
        fn to_blame() -> u32 {
            core::hint::black_box(7)
        }

        assert_eq!(to_blame(), 7);
        crate::load_symbols().unwrap();
        let start = to_blame as fn() -> u32 as usize;
        let why = Ineligible::new(IneligibleReason::Leads { address: start + 1 });
        let function = why.function().unwrap();
        assert_eq!(function.address(), start);
        let name = function.name();
        assert!(name.to_string().ends_with("to_blame"), "{name}");
        assert_eq!(
            why.to_string(),
            format!("where an instruction of `{name}` (+0x1) leads is known at run time only")
        );
        // Code that is in no module has its address for a name.
        let why = Ineligible::new(IneligibleReason::Changes { address: 1 });
        assert!(why.function().is_none());
        assert!(
            why.to_string()
                .starts_with("the instruction at 0x1 uses more"),
            "{why}"
        );
        let why = Ineligible::new(IneligibleReason::Sampled);
        assert_eq!(why.to_string(), "the user gets one call of several");
    }
}
