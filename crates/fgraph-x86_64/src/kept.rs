//! Which functions have a caller that counts on more registers than the ABI promises.
//!
//! gcc lets a caller that knows the code of a function keep values in registers which that function leaves
//! alone (`-fipa-ra`), and people who write assembly agree on whatever they like. Both need a *direct* call
//! within a module: of a function in another module, or behind a pointer, no compiler knows the code. So
//! it can be seen in a module's code which functions are called like that: a register that is no result is
//! read behind the call before anything is written to it. All others may be traced as the ABI
//! says, which is much cheaper.
//!
//! ```text
//!     caller                   g                    f
//!       mov r8, rdi              ...                  ret     what r8 holds is read in the caller: so f
//!       call g     ------->      call f   ------->            and g must leave it alone, and g needs it
//!       add rax, r8    <---      ret                          behind its call of f, although it ends there
//! ```
//!
//! The code is cut into blocks, and for each block we find by iteration
//!
//! - what it may write to, and everything that is reached from there before a return (`writes`);
//! - which registers are read from there on before they are written, up to a return (`needs`);
//! - which registers are read after the return by those who called (`wanted`): at a call, what is read
//!   behind it becomes wanted of the called function, and all that is reached there, by jumps to other functions
//!   too, has it wanted. With this at returns, what is read is found a second time (`keeps`).
//!
//! # What is not seen
//!
//! What is behind a jump through a table, or what a function in another module takes as arguments, is not
//! seen. All registers, or all that may carry arguments, are taken to be read *there*, which would be the end
//! of it, since nearly every function calls some other module. But such a guess only holds for gcc's
//! callers, and gcc counts as written what it sees written in the body of a function or of those it
//! calls, and *everything* as soon as there is a call whose target it does not know. So a guess
//! is dropped at a call of a function that writes to the register. (gcc looks at every instruction that it has
//! emitted, also on paths that never return; what we find by following branches is a part of that, so
//! we never drop more than gcc does.) What is read by an instruction that we see is never dropped like this,
//! because it may be assembly, whose functions return what they like where they like.
//!
//! Callers with a call whose effect is not that of a C function and not of the code that it leads to are not
//! understood: pointers to functions of the Microsoft ABI are the only ones known, in functions that are called
//! by others which keep rsi, rdi or xmm6 to 15.

mod effect;
mod graph;
mod liveness;
mod marks;
mod registers;
mod strays;
#[cfg(test)]
mod tests;

use alloc::{vec, vec::Vec};

use self::graph::Graph;
use self::marks::Marks;
use self::registers::NOT_PASSED;
use crate::nop::ENDBR64;

/// A stretch of code.
#[derive(Clone, Copy, Debug)]
pub struct Code<'a> {
    /// Where it is.
    pub address: usize,
    /// Its bytes.
    pub bytes: &'a [u8],
}

/// Functions of which more is expected than the ABI says.
#[derive(Debug, Default)]
pub struct Kept {
    /// Their addresses, in order.
    functions: Vec<usize>,
}

impl Kept {
    /// Looks at all the code of a module that may be gcc's or written by hand.
    ///
    /// `code` are stretches in order and apart from each other; `functions` are the addresses where
    /// functions start, in order, and `parts` those of what has unwind information of its own: functions,
    /// too, and parts of them that stand elsewhere. A stretch that is left out may call what it likes: it keeps to the ABI.
    #[must_use]
    pub fn find(code: &[Code<'_>], functions: &[usize], parts: &[usize]) -> Self {
        let Some(graph) = Graph::new(code, functions, parts) else {
            return Self {
                functions: functions.to_vec(),
            };
        };
        let written = graph.written();
        let mut needs = vec![0; graph.blocks.len()];
        let mut open = Marks::full(graph.blocks.len());
        graph.needs(&mut open, &mut needs, &written, None);
        let wanted = graph.wanted(&written, &needs);
        let is_kept = |&&function: &&usize| {
            // Compilers give every function unwind information. This one is assembly, and may be called through
            // pointers as it likes.
            if parts.binary_search(&function).is_err() {
                return true;
            }
            let Some(first) = graph.block_at(function) else {
                return false;
            };
            let behind_pad = graph
                .is_pad(first)
                .then(|| graph.block_at(function + ENDBR64.len()));
            let wanted = |block: usize| wanted[block];
            needs[first] & NOT_PASSED != 0
                || wanted(first) != 0
                || behind_pad.flatten().is_some_and(|next| wanted(next) != 0)
        };
        Self {
            functions: functions.iter().filter(is_kept).copied().collect(),
        }
    }

    /// Whether more than the ABI is expected of the function at `address`.
    #[must_use]
    pub fn contains(&self, address: usize) -> bool {
        self.functions.binary_search(&address).is_ok()
    }

    /// How many functions there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.functions.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }
}
