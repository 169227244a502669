//! Which functions have a caller that counts on more registers than the ABI promises.
//!
//! gcc lets a caller that knows the code of a function keep values in registers which that function
//! leaves alone (`-fipa-ra`), and people who write assembly agree on whatever they like. Both need
//! a *direct* call within a module: of a function in another module, or behind a pointer, no
//! compiler knows the code. So it can be seen in a module's code which functions are called like
//! that: a register that is no result is read behind the call before anything is written to it. All
//! others may be traced as the ABI says, which is much cheaper.
//!
//! ```text
//!     caller                g                 f
//!       mov r8, rdi           ...               ret   what r8 holds is read in the caller: so f
//!       call g       --->     call f   --->           and g must leave it alone, and g needs it
//!       add rax, r8  <---     ret                     behind its call of f, although it ends there
//! ```
//!
//! The code is cut into blocks, and for each block we find by iteration
//!
//! - what it may write to, and everything that is reached from there before a return (`writes`);
//! - which registers are read from there on before they are written, up to a return (`needs`);
//! - which registers are read after the return by those who called (`wanted`): at a call, what is
//!   read behind it becomes wanted of the called function, and all that is reached there, by jumps
//!   to other functions too, has it wanted. With this at returns, what is read is found a second
//!   time (`keeps`).
//!
//! # What is not seen
//!
//! What is behind a jump through a table, or what a function in another module takes as arguments,
//! is not seen. All registers, or all that may carry arguments, are taken to be read *there*, which
//! would be the end of it, since nearly every function calls some other module. But such a guess
//! only holds for gcc's callers, and gcc counts as written what it sees written in the body of a
//! function or of those it calls, and *everything* as soon as there is a call whose target it does
//! not know. So a guess is dropped at a call of a function that writes to the register. (gcc looks
//! at every instruction that it has emitted, also on paths that never return; what we find by
//! following branches is a part of that, so we never drop more than gcc does.) What is read by an
//! instruction that we see is never dropped like this, because it may be assembly, whose functions
//! return what they like where they like.
//!
//! Callers with a call whose effect is not that of a C function and not of the code that it leads
//! to are not understood: pointers to functions of the Microsoft ABI are the only ones known, in
//! functions that are called by others which keep rsi, rdi or xmm6 to 15.
//!
//! # Other ways to call
//!
//! gcc calls a function whose code it knows through a register in its large code model
//! (`constants.rs`), and ends functions by a jump to a return thunk (`thunks.rs`). Where a function
//! loads constants as the large code model does, and calls through a register whose value is not
//! found, all functions of the module are taken to be relied upon.
//!
//! # Conventions
//!
//! Callers by other compilers rely on what a convention says that a function is declared to have
//! (`ms_abi`, `win64`, `preserve_most`, `preserve_all`, `no_caller_saved_registers`), which it
//! keeps to by leaving registers alone or by saving them first. These calls look the same, and are
//! found in the same way, but for two things:
//!
//! - Where it does not matter what is in a register, compilers leave in it what there is, and pass
//!   it on: the other half of a pair that is `None`. So what is read behind a call counts only if
//!   the called function leaves it alone, or puts it on the stack (vector registers: reads it)
//!   before it writes to it and before it calls anything.
//! - Nothing is guessed, but that every function in another module has a first argument.
//!
//! Counted like this, next to no function is found where all keep to the ABI. More results than in
//! rax, rdx and vectors 0 and 1 (`regcall`) are not seen: they look like what is read where it does
//! not matter.

mod bitset;
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
use self::liveness::Reliance;
use self::registers::{NOT_PASSED, guess_of};

/// A stretch of code.
#[derive(Clone, Copy, Debug)]
pub struct Code<'a> {
    /// Address of the code.
    pub address: usize,
    /// Bytes of the code.
    pub bytes: &'a [u8],
}

/// The code of a module, cut into blocks.
#[derive(Debug)]
pub struct Search<'a> {
    /// `None` if there is too much of it.
    graph: Option<Graph<'a>>,
    functions: &'a [usize],
    parts: &'a [usize],
}

impl<'a> Search<'a> {
    /// Looks at all the code of a module that may rely on more than the ABI.
    ///
    /// `code` are stretches in order and apart from each other; `functions` are the addresses where
    /// functions start, in order, and `parts` those of what has unwind information of its own:
    /// functions, too, and parts of them that stand elsewhere. A stretch that is left out may call
    /// what it likes: it keeps to the ABI. `return_thunks` are the functions that do nothing but
    /// return, whatever their code looks like.
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

    /// The functions whose callers rely on what the code of a function leaves alone: gcc's, and
    /// people.
    #[must_use]
    pub fn by_code(mut self) -> ReliedOn {
        let is_known = self.graph.as_mut().is_some_and(Graph::resolve);
        let Some(graph) = self.graph.filter(|_| is_known) else {
            return ReliedOn {
                functions: self.functions.to_vec(),
            };
        };
        let (needs, wanted) = graph.liveness(Reliance::Code);
        let is_relied_on = |&&function: &&usize| {
            // Compilers give every function unwind information. This one is assembly, and may be
            // called through pointers as it likes.
            self.parts.binary_search(&function).is_err()
                || graph.starts_of(function).any(|at| wanted[at] != 0)
                || graph
                    .block_at(function)
                    .is_some_and(|at| needs[at] & NOT_PASSED != 0)
        };
        ReliedOn {
            functions: self
                .functions
                .iter()
                .filter(is_relied_on)
                .copied()
                .collect(),
        }
    }

    /// The functions whose callers rely on a convention that keeps more than the ABI does.
    #[must_use]
    pub fn by_convention(&self) -> ReliedOn {
        let Some(graph) = &self.graph else {
            return ReliedOn::default();
        };
        let (_, wanted) = graph.liveness(Reliance::Convention);
        let is_relied_on = |&&function: &&usize| {
            // What is above a byte that has been written is seldom meant.
            graph
                .starts_of(function)
                .any(|at| guess_of(wanted[at]) != 0)
        };
        ReliedOn {
            functions: self
                .functions
                .iter()
                .filter(is_relied_on)
                .copied()
                .collect(),
        }
    }
}

/// Functions of which more is expected than the ABI says.
#[derive(Clone, Debug, Default)]
pub struct ReliedOn {
    /// The addresses of the functions that are relied upon, in order.
    functions: Vec<usize>,
}

impl ReliedOn {
    /// The functions at these addresses.
    #[must_use]
    pub fn new(mut functions: Vec<usize>) -> Self {
        functions.sort_unstable();
        Self { functions }
    }

    /// The addresses of the functions, in order.
    #[must_use]
    pub fn functions(&self) -> &[usize] {
        &self.functions
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

    /// Whether no function is relied upon.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }
}
