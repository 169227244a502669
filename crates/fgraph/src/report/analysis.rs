//! The reasons that the analysis of code gives.
//!
//! They have the same variants as the processor's crate returns, and some of this crate. That crate
//! is outside semantic versioning, so its own types are not shown to callers of the library.

use core::fmt;

use crate::arch::fast_path::{self, MOST};
use crate::arch::relocate;
use crate::arch::stub::SITE_LEN;
use crate::arch::system_calls;

/// The reason that a prologue cannot be relocated. Offsets are from the patch address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RelocateError {
    /// The function ends before the jump would, and the bytes after it are not padding.
    TooShort {
        /// The number of bytes that may be overwritten.
        have: usize,
    },
    /// Bytes that are no instruction.
    Undecodable {
        /// The offset of these bytes.
        at: usize,
    },
    /// An `int3`: a breakpoint of a debugger, or of another tool.
    Breakpoint {
        /// The offset of the `int3`.
        at: usize,
    },
    /// An instruction whose effect depends on its address.
    Unmovable {
        /// The offset of the instruction.
        at: usize,
    },
    /// A call that returns into the bytes of the jump.
    Returns {
        /// The offset of the call.
        at: usize,
        /// The offset to which the call returns.
        to: usize,
    },
    /// A branch from elsewhere in the function into the bytes of the jump.
    Target {
        /// The offset of the branch.
        from: usize,
        /// The offset to which the branch leads.
        to: usize,
    },
    /// A branch back to the patch address: every round of a loop would count as a call.
    Loop {
        /// The offset of the branch.
        from: usize,
    },
    /// An instruction after which no register gives the position of the caller's frame.
    StackPointer {
        /// The offset of the instruction.
        at: usize,
    },
    /// A call that would push its return address when relocated, while the processor keeps a shadow
    /// stack.
    ShadowStack {
        /// The offset of the call.
        at: usize,
    },
    /// An operand that does not reach its target from the address of the relocated prologue.
    Reach {
        /// The offset of the instruction.
        at: usize,
        /// The address that the instruction cannot reach.
        target: usize,
    },
    /// The memory for the relocated prologue is too small.
    Room {
        /// The number of bytes needed.
        need: usize,
        /// The number of bytes available.
        have: usize,
    },
}

impl RelocateError {
    pub(crate) const fn new(error: relocate::RelocateError) -> Self {
        use relocate::RelocateError as E;
        match error {
            E::TooShort { have } => Self::TooShort { have },
            E::Undecodable { at } => Self::Undecodable { at },
            E::Breakpoint { at } => Self::Breakpoint { at },
            E::Unmovable { at } => Self::Unmovable { at },
            E::Returns { at, to } => Self::Returns { at, to },
            E::Target { from, to } => Self::Target { from, to },
            E::Loop { from } => Self::Loop { from },
            E::StackPointer { at } => Self::StackPointer { at },
            E::Reach { at, target } => Self::Reach { at, target },
            E::Room { need, have } => Self::Room { need, have },
        }
    }
}

impl fmt::Display for RelocateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::TooShort { have } => write!(
                f,
                "ends after {have} bytes with no padding behind, a jump needs {SITE_LEN}"
            ),
            Self::Undecodable { at } => write!(f, "no instruction at +{at:#x}"),
            Self::Breakpoint { at } => {
                write!(f, "an int3 at +{at:#x}: a breakpoint of a debugger")
            }
            Self::Unmovable { at } => {
                write!(f, "the instruction at +{at:#x} depends on where it is")
            }
            Self::Returns { at, to } => write!(
                f,
                "the call at +{at:#x} returns to +{to:#x}, where the jump would be"
            ),
            Self::Target { from, to } => write!(
                f,
                "the branch at +{from:#x} leads to +{to:#x}, where the jump would be"
            ),
            Self::Loop { from } => write!(
                f,
                "the branch at +{from:#x} leads back to the entry: every round would be a call"
            ),
            Self::StackPointer { at } => write!(
                f,
                "behind the instruction at +{at:#x} the caller's frame cannot be found"
            ),
            Self::ShadowStack { at } => write!(
                f,
                "the relocated call at +{at:#x} would push its return address, which the \
                 processor's shadow stack does not allow"
            ),
            Self::Reach { at, target } => write!(
                f,
                "the relocated instruction at +{at:#x} does not reach {target:#x}"
            ),
            Self::Room { need, have } => write!(f, "{need} bytes do not fit in {have}"),
        }
    }
}

impl core::error::Error for RelocateError {}

/// The reason that a system call within a function cannot be traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SystemCallError {
    /// The instruction before it does not load a number into eax.
    NoNumber,
    /// No direct branch of the function leads there: it may be data.
    NotReached,
    /// It may return on another stack, in another process, with other thread-local data or without
    /// its stack.
    Special {
        /// The number of the system call.
        number: u32,
    },
    /// It spans two pages, in a library whose functions run while all signals are blocked: its text
    /// is exchanged page by page.
    TwoPages,
    /// Its function must not be traced, for this reason.
    Notrace(&'static str),
    /// It is at the start of its function, which is traced as a function.
    AtEntry {
        /// The number of the system call.
        number: u32,
    },
    /// The processor has no instruction that saves the flags (`lahf`).
    Flags,
}

impl SystemCallError {
    pub(crate) const fn new(error: system_calls::SystemCallError) -> Self {
        use system_calls::SystemCallError as E;
        match error {
            E::NoNumber => Self::NoNumber,
            E::NotReached => Self::NotReached,
            E::Special { number } => Self::Special { number },
        }
    }
}

impl fmt::Display for SystemCallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NoNumber => f.write_str("its number is not put into eax right before"),
            Self::NotReached => f.write_str("no direct branch of the function leads there"),
            Self::Special { number } => write!(
                f,
                "system call {number} may end or move the stack, or come back elsewhere"
            ),
            Self::TwoPages => f.write_str("is on two pages, which are exchanged one by one"),
            Self::Notrace(reason) => write!(f, "its function is not traced: {reason}"),
            Self::AtEntry { .. } => f.write_str("its function begins with it"),
            Self::Flags => f.write_str("the processor cannot save the flags with lahf"),
        }
    }
}

impl core::error::Error for SystemCallError {}

/// The reason that a user does not qualify for the fast path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IneligibleReason {
    /// Code that the callbacks may reach cannot be read, or is no code.
    Unreadable {
        /// The address of that code.
        address: usize,
    },
    /// An instruction changes or reads state that must be saved for it.
    Changes {
        /// The address of the instruction.
        address: usize,
    },
    /// The target of a call or a jump is unknown.
    Leads {
        /// The address of the instruction.
        address: usize,
    },
    /// An instruction moves the stack pointer to an unknown place, or may change a return address.
    Stack {
        /// The address of the instruction.
        address: usize,
    },
    /// An instruction has the distance of `errno` in it.
    Errno {
        /// The address of the instruction.
        address: usize,
    },
    /// The callbacks reach more than 4096 instructions.
    Long,
    /// The user gets one call of several, which must be counted.
    Sampled,
    /// The calls that the user redirects have to be counted.
    CountsRedirected,
}

impl IneligibleReason {
    pub(crate) const fn new(reason: fast_path::IneligibleReason) -> Self {
        use fast_path::IneligibleReason as E;
        match reason {
            E::Unreadable { address } => Self::Unreadable { address },
            E::Changes { address } => Self::Changes { address },
            E::Leads { address } => Self::Leads { address },
            E::Stack { address } => Self::Stack { address },
            E::Errno { address } => Self::Errno { address },
            E::Long => Self::Long,
        }
    }

    /// The address of the instruction that is the reason, if one is.
    #[must_use]
    pub const fn address(&self) -> Option<usize> {
        match *self {
            Self::Unreadable { address }
            | Self::Changes { address }
            | Self::Leads { address }
            | Self::Stack { address }
            | Self::Errno { address } => Some(address),
            Self::Long | Self::Sampled | Self::CountsRedirected => None,
        }
    }

    /// Writes the reason as a sentence that calls the instruction `what`.
    pub(crate) fn write_with(
        &self,
        f: &mut fmt::Formatter<'_>,
        what: &dyn fmt::Display,
    ) -> fmt::Result {
        match self {
            Self::Unreadable { .. } => write!(f, "{what} cannot be read"),
            Self::Changes { .. } => write!(
                f,
                "{what} uses more than general registers, memory and the lowest 128 bits of vector \
                 registers"
            ),
            Self::Leads { .. } => write!(f, "where {what} leads is known at run time only"),
            Self::Stack { .. } => write!(
                f,
                "{what} moves the stack pointer to an unknown place, or may change a return address"
            ),
            Self::Errno { .. } => write!(f, "{what} may be after errno"),
            Self::Long => write!(f, "the callbacks reach more than {MOST} instructions"),
            Self::Sampled => f.write_str("the user gets one call of several"),
            Self::CountsRedirected => f.write_str("the calls that the user redirects are counted"),
        }
    }
}

impl fmt::Display for IneligibleReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.address().unwrap_or_default();
        self.write_with(f, &format_args!("the instruction at {address:#x}"))
    }
}

impl core::error::Error for IneligibleReason {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_of_the_processors_crate_keep_their_places() {
        use relocate::RelocateError as E;
        assert_eq!(
            RelocateError::new(E::TooShort { have: 2 }).to_string(),
            "ends after 2 bytes with no padding behind, a jump needs 5"
        );
        assert_eq!(
            RelocateError::new(E::Returns { at: 1, to: 3 }).to_string(),
            "the call at +0x1 returns to +0x3, where the jump would be"
        );
        let special = system_calls::SystemCallError::Special { number: 60 };
        assert_eq!(
            SystemCallError::new(special).to_string(),
            "system call 60 may end or move the stack, or come back elsewhere"
        );
        let reason = IneligibleReason::new(fast_path::IneligibleReason::Stack { address: 0x10 });
        assert_eq!(reason.address(), Some(0x10));
    }
}
