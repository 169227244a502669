//! Finds functions with a caller that relies on more preserved registers than the ABI promises.
//!
//! gcc lets a caller that knows the code of a function keep values in registers which that function
//! leaves unchanged (`-fipa-ra`), and authors of assembly agree on any registers. Both need a
//! *direct* call within a module: no compiler knows the code of a function in another module, or
//! behind a pointer. So a module's code shows which functions are called that way: after the call,
//! a register that is no result is read before it is written. All other functions may be traced as
//! the ABI says, which is much cheaper.
//!
//! ```text
//!     caller                g                 f
//!       mov r8, rdi           ...               ret   what r8 holds is read in the caller: so f
//!       call g       --->     call f   --->           and g must leave it alone, and g needs it
//!       add rax, r8  <---     ret                     behind its call of f, although it ends there
//! ```
//!
//! The code is cut into blocks. For each block, iteration finds:
//!
//! - the registers that may be written from there until a return (`writes`);
//! - the registers that are read before they are written, from there until a return (`needs`);
//! - the registers that callers read after the return (`wanted`). A register that is read after a
//!   call becomes wanted of the called function, and of all code reached from there, including
//!   other functions through jumps. With this set at returns, reads are computed a second time
//!   (`keeps`).
//!
//! # Limits
//!
//! The targets of a jump through a table, and the arguments of a function in another module, are
//! unknown. *There*, all registers, or all that may carry arguments, are guessed to be read. That
//! alone would cover nearly every function, since nearly every function calls another module.
//!
//! But a guess matters only for gcc's callers. gcc counts a register as written if the body of a
//! function, or of its callees, writes it, and counts *every* register as written if there is a
//! call with a target that it does not know. So a guess is dropped at a call of a function that
//! writes the register. gcc looks at every instruction that it has emitted, even on paths that
//! never return; following branches finds a subset of these, so we never drop more than gcc does. A
//! read by an instruction that we see is never dropped, because it may be assembly, whose functions
//! may return any values in any registers.
//!
//! Callers are not understood if they make a call whose effect is neither that of a C function nor
//! that of the code to which it leads. The only known case are pointers to functions of the
//! Microsoft ABI, in functions whose own callers keep values in rsi, rdi or xmm6 to 15.
//!
//! # Other ways to call
//!
//! In its large code model, gcc calls a function whose code it knows through a register
//! (`constants.rs`). It may also end functions with a jump to a return thunk (`thunks.rs`). If a
//! function loads constants as the large code model does, and calls through a register with an
//! unknown value, all functions of the module count as callee-preserved beyond the ABI.
//!
//! # Conventions
//!
//! Callers by other compilers rely on the declared convention of a function (`ms_abi`, `win64`,
//! `preserve_most`, `preserve_all`, `no_caller_saved_registers`). The function complies by leaving
//! registers unchanged or by saving them first. These calls look the same and are found in the same
//! way, with two exceptions:
//!
//! - Where the content of a register does not matter, compilers leave it there and pass it on: the
//!   other half of a pair that is `None`. So a read after a call counts only if the called function
//!   leaves the register unchanged, or stores it on the stack (vector registers: reads it) before
//!   it writes it and before it makes a call. With `-mcall-ms2sysv-xlogues` gcc has helpers that
//!   store for their caller: calls of these are followed.
//! - The only guess is that every function in another module has a first argument.
//!
//! With these rules, hardly any function is found if all code keeps to the ABI. More results than
//! in rax, rdx and vectors 0 and 1 (`regcall`) are not found: they look like reads where the
//! content does not matter.

mod bitset;
mod code;
mod constants;
mod decoded;
mod effect;
mod graph;
mod liveness;
mod registers;
mod strays;
#[cfg(test)]
mod tests;
mod thunks;

use alloc::vec::Vec;

use self::graph::Graph;
use self::liveness::PreservedBy;
use self::registers::{NOT_PASSED, guess_of};

pub use self::code::Code;

/// The code of a module as a graph of blocks.
#[derive(Debug)]
pub struct Search<'a> {
    /// The graph; `None` if there is too much code.
    graph: Option<Graph<'a>>,
    functions: &'a [usize],
    parts: &'a [usize],
}

impl<'a> Search<'a> {
    /// Builds the graph for the code of a module that may rely on more than the ABI.
    ///
    /// `code` are stretches in order, not adjacent to each other. `functions` are the start
    /// addresses of functions, in order. `parts` are the starts of code with its own unwind
    /// information: functions, and parts of functions that are elsewhere. A stretch that is left
    /// out keeps to the ABI in its calls. `return_thunks` are functions that only return, whatever
    /// their code looks like.
    #[must_use]
    pub fn new(
        code: &'a [Code<'a>],
        functions: &'a [usize],
        parts: &'a [usize],
        return_thunks: &[usize],
    ) -> Self {
        Self {
            graph: Graph::new(code, functions, parts, return_thunks),
            functions,
            parts,
        }
    }

    /// Finds functions whose callers rely on the registers that their code leaves unchanged:
    /// callers by gcc, and assembly.
    #[must_use]
    pub fn by_code(mut self) -> PreservingFunctions {
        let is_known = self.graph.as_mut().is_some_and(Graph::resolve);
        let Some(graph) = self.graph.filter(|_| is_known) else {
            return PreservingFunctions {
                functions: self.functions.to_vec(),
            };
        };
        let (needs, wanted) = graph.liveness(PreservedBy::Code);
        PreservingFunctions::of(self.functions, |function| {
            // Compilers give every function unwind information. This one is assembly, and may be
            // called through pointers with any convention.
            self.parts.binary_search(&function).is_err()
                || graph.starts_of(function).any(|at| wanted[at] != 0)
                || graph
                    .block_at(function)
                    .is_some_and(|at| needs[at] & NOT_PASSED != 0)
        })
    }

    /// Finds functions whose callers rely on a convention that preserves more than the ABI does.
    #[must_use]
    pub fn by_convention(&self) -> PreservingFunctions {
        let Some(graph) = &self.graph else {
            return PreservingFunctions::default();
        };
        let (_, wanted) = graph.liveness(PreservedBy::Convention);
        PreservingFunctions::of(self.functions, |function| {
            // A read of the bits above a written byte is rarely meaningful.
            graph
                .starts_of(function)
                .any(|at| guess_of(wanted[at]) != 0)
        })
    }
}

/// Functions whose callers rely on more preserved registers than the ABI promises.
#[derive(Clone, Debug, Default)]
pub struct PreservingFunctions {
    /// The addresses of the functions, in order.
    functions: Vec<usize>,
}

impl PreservingFunctions {
    /// Makes the set of those of `functions`, in order, for which `is_preserving` returns true.
    fn of(functions: &[usize], is_preserving: impl Fn(usize) -> bool) -> Self {
        let preserving = functions.iter().copied().filter(|&at| is_preserving(at));
        Self {
            functions: preserving.collect(),
        }
    }

    /// Makes a set of the functions at these addresses.
    #[must_use]
    pub fn new(mut functions: Vec<usize>) -> Self {
        functions.sort_unstable();
        Self { functions }
    }

    /// Returns the addresses of the functions, in order.
    #[must_use]
    pub fn functions(&self) -> &[usize] {
        &self.functions
    }

    /// Returns true if callers of the function at `address` rely on more than the ABI.
    #[must_use]
    pub fn contains(&self, address: usize) -> bool {
        self.functions.binary_search(&address).is_ok()
    }

    /// Returns the number of functions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.functions.len()
    }

    /// Returns true if there is no such function.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }
}
