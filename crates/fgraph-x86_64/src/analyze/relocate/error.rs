//! The reasons that a prologue cannot be relocated.

/// The reason that a prologue cannot be relocated. Offsets are from the patch address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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
