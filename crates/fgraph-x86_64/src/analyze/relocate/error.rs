//! The reasons that a prologue cannot be relocated.

use core::fmt;

use crate::stub::SITE_LEN;

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
