//! Why a user is not scalar, with the function that is to blame.

use core::fmt;

use super::symbols::{Symbol, function_at};
use crate::arch::NotScalarReason;

/// Why a user is not [scalar](crate::Handle::is_scalar), and in which function.
///
/// It is written as a sentence:
///
/// ```text
/// an instruction of `core::fmt::write` (+0x1f) uses more than general registers, memory and the
/// lowest 128 bits of vector registers
/// ```
#[derive(Clone, Copy, Debug)]
pub struct NotScalar {
    reason: NotScalarReason,
    function: Option<Symbol>,
}

impl NotScalar {
    /// The functions of the module where the reason is must have been read.
    pub(super) fn new(reason: NotScalarReason) -> Self {
        // Behind a call that does not return a function may end.
        let function_near = |at: usize| function_at(at).or_else(|| function_at(at.wrapping_sub(1)));
        let function = reason.address().and_then(function_near);
        Self { reason, function }
    }

    /// The reason.
    #[must_use]
    pub fn reason(&self) -> NotScalarReason {
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
impl PartialEq for NotScalar {
    fn eq(&self, other: &Self) -> bool {
        self.reason == other.reason
    }
}

impl Eq for NotScalar {}

impl fmt::Display for NotScalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.function, self.reason.address()) {
            (Some(function), Some(address)) => {
                let distance = address.wrapping_sub(function.address());
                let place =
                    format_args!("an instruction of `{}` (+{distance:#x})", function.name());
                self.reason.write_with(f, &place)
            }
            _ => self.reason.fmt(f),
        }
    }
}

impl core::error::Error for NotScalar {}

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
        let why = NotScalar::new(NotScalarReason::Leads { address: start + 1 });
        let function = why.function().unwrap();
        assert_eq!(function.address(), start);
        let name = function.name();
        assert!(name.to_string().ends_with("to_blame"), "{name}");
        assert_eq!(
            why.to_string(),
            format!("where an instruction of `{name}` (+0x1) leads is known at run time only")
        );
        // Code that is in no module has its address for a name.
        let why = NotScalar::new(NotScalarReason::Changes { address: 1 });
        assert!(why.function().is_none());
        assert!(
            why.to_string()
                .starts_with("the instruction at 0x1 uses more"),
            "{why}"
        );
        let why = NotScalar::new(NotScalarReason::Sampled);
        assert_eq!(why.to_string(), "the user gets one call of several");
    }
}
