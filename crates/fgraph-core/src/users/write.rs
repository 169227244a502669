//! Changes of a call, available through `Entry::rewrite` and `Return::rewrite`.

use core::fmt;

use super::chain;
use crate::frame::Frame;
use crate::registration::{Header, UserId};
use crate::regs::{
    EntryRegs, INT_ARGS, RESULTS, RETURN_UNWINDING, ReturnRegs, VECTOR_ARGS, Vector,
};
use crate::replacement::{self, Kind};
use crate::thread::Thread;

/// The reason that a call was not changed. No value was written then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WriteError {
    /// No register carries an argument of this index.
    NoSuchArgument {
        /// The requested index, from 0.
        index: usize,
        /// The number of arguments of this kind passed in registers.
        count: usize,
    },
    /// No register carries a result of this index.
    NoSuchResult {
        /// The requested index, from 0.
        index: usize,
        /// The number of results of this kind returned in registers.
        count: usize,
    },
    /// The word is not on the machine stack.
    PastTheStack {
        /// The index of the requested word, from 0.
        index: usize,
        /// The end of the machine stack.
        end: usize,
    },
    /// The function does not return: it is [unwound](crate::Return::unwinding).
    Unwinding,
    /// This user or another one has skipped or redirected the call already.
    AlreadyReplaced {
        /// The user that did so.
        by: UserId,
    },
    /// fgraph itself depends on this function: it cannot be skipped or redirected.
    MustRun {
        /// The function's address.
        address: usize,
    },
    /// There is no function at address 0 to redirect the call to.
    NoTarget,
    /// The user is being unregistered, which waits for the calls that it has redirected.
    Unregistering,
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchArgument { index, count } => {
                write!(
                    f,
                    "no register carries argument {index}: {count} do, from 0"
                )
            }
            Self::NoSuchResult { index, count } => {
                write!(f, "no register carries result {index}: {count} do, from 0")
            }
            Self::PastTheStack { index, end } => write!(
                f,
                "word {index} of the stack arguments is past the end of the stack at {end:#x}"
            ),
            Self::Unwinding => f.write_str("the function is unwound and has no result"),
            Self::AlreadyReplaced { by } => write!(f, "{by} has replaced the call already"),
            Self::MustRun { address } => {
                write!(f, "fgraph depends on the function at {address:#x}")
            }
            Self::NoTarget => f.write_str("there is no function at address 0"),
            Self::Unregistering => {
                f.write_str("the user is being unregistered and redirects no more calls")
            }
        }
    }
}

impl core::error::Error for WriteError {}

/// Changes the arguments of a call: see [`Entry::rewrite`](crate::Entry::rewrite).
///
/// Users that are called later see the written values.
#[derive(Debug)]
pub struct EntryWriter<'a> {
    regs: &'a mut EntryRegs,
    thread: &'a Thread,
    /// The word that is passed from user to user, which includes `errno`.
    users: &'a mut u64,
    /// Set once the user has redirected the call.
    redirected: &'a mut bool,
    user: &'a Header,
}

impl<'a> EntryWriter<'a> {
    pub(crate) fn new(
        regs: &'a mut EntryRegs,
        thread: &'a Thread,
        users: &'a mut u64,
        redirected: &'a mut bool,
        user: &'a Header,
    ) -> Self {
        Self {
            regs,
            thread,
            users,
            redirected,
            user,
        }
    }

    /// Changes integer or pointer argument `index`, of those passed in registers (0 to 5).
    pub fn set_arg(&mut self, index: usize, value: u64) -> Result<(), WriteError> {
        let count = INT_ARGS;
        let arg = self.regs.int.get_mut(index);
        *arg.ok_or(WriteError::NoSuchArgument { index, count })? = value;
        Ok(())
    }

    /// Changes floating-point argument `index` (0 to 7) to an `f64`.
    pub fn set_float_arg(&mut self, index: usize, value: f64) -> Result<(), WriteError> {
        self.vector(index).map(|arg| arg.set_f64(value))
    }

    /// Changes floating-point argument `index` (0 to 7) to an `f32`.
    pub fn set_float32_arg(&mut self, index: usize, value: f32) -> Result<(), WriteError> {
        self.vector(index).map(|arg| arg.set_f32(value))
    }

    /// Returns the bytes of vector argument `index` (0 to 7) for changes: 16, 32 or 64, the width
    /// of the machine's vector registers.
    pub fn vector_arg_mut(&mut self, index: usize) -> Result<&mut [u8], WriteError> {
        let width = self.thread.vector_bytes.get();
        // SAFETY: `&mut self` excludes other references.
        let width = unsafe { EntryRegs::widen(self.regs, width) };
        self.vector(index).map(|arg| &mut arg.0[..width])
    }

    fn vector(&mut self, index: usize) -> Result<&mut Vector, WriteError> {
        let count = VECTOR_ARGS;
        let arg = self.regs.vector.get_mut(index);
        arg.ok_or(WriteError::NoSuchArgument { index, count })
    }

    /// Changes word `index` (from 0) of the stack arguments.
    pub fn set_stack_arg(&mut self, index: usize, value: u64) -> Result<(), WriteError> {
        // SAFETY: the frame was opened for this call.
        let slot = unsafe { (*self.thread.shadow.top().cast::<Frame>()).return_slot_addr };
        let word = EntryRegs::stack_word(self.thread, slot, index);
        let word = word.map_err(|end| WriteError::PastTheStack { index, end })?;
        // SAFETY: the word is on the machine stack, in an argument of the function, as the caller
        // of `rewrite` has promised.
        unsafe { *word = value };
        Ok(())
    }

    /// Changes the program's `errno`: the function finds this value, or the caller if the call is
    /// [skipped](Self::skip).
    pub fn set_errno(&mut self, errno: i32) {
        *self.users = chain::with_errno(*self.users, errno);
    }

    /// Makes the call return `result` at once, without running the function.
    ///
    /// The other users get the call as usual, and [`Entry::replaced_by`](crate::Entry::replaced_by)
    /// tells them about the replacement. Users that accept the call get its return, where
    /// [`Return::replaced_by`](crate::Return::replaced_by) does the same. The first user that
    /// replaces the call wins.
    ///
    /// Only the registers of the result are changed. Two kinds of results are returned elsewhere:
    ///
    /// - results in memory that the caller provides, because they are larger than two words:
    ///   argument 0 is the address of that memory. Write the result there, and return that address;
    /// - `long double`, in an x87 register: a function that returns one cannot be skipped.
    ///
    /// # What was promised
    ///
    /// Needs no `unsafe` of its own: the caller of [`rewrite`](crate::Entry::rewrite) has promised
    /// that the program works without the function's effects, and that its callers may get this
    /// result, of the right kind.
    ///
    /// # Errors
    ///
    /// Fails with [`AlreadyReplaced`](WriteError::AlreadyReplaced) or
    /// [`MustRun`](WriteError::MustRun).
    ///
    /// # Example
    ///
    /// ```
    /// # use fgraph_core::{Entry, FgraphOps};
    /// /// Has every `open` fail.
    /// struct NoFiles;
    ///
    /// impl FgraphOps for NoFiles {
    ///     type Data = ();
    ///
    ///     fn entry(&self, call: &mut Entry<'_, ()>) -> Option<()> {
    ///         const ENOENT: i32 = 2;
    ///         // SAFETY: callers of `open` expect that it fails.
    ///         let mut writer = unsafe { call.rewrite() };
    ///         if writer.skip(-1).is_ok() {
    ///             writer.set_errno(ENOENT);
    ///         }
    ///         None
    ///     }
    /// }
    /// ```
    pub fn skip(&mut self, result: impl Into<Outcome>) -> Result<(), WriteError> {
        let (kind, values) = match result.into() {
            Outcome::Nothing => (Kind::Nothing, [0; 2]),
            Outcome::Int(value) => (Kind::Int, [value, 0]),
            Outcome::Ints(low, high) => (Kind::Ints, [low, high]),
            Outcome::Float(value) => (Kind::Float, [value.to_bits(), 0]),
            Outcome::Float32(value) => (Kind::Float, [value.to_bits().into(), 0]),
        };
        self.replace(kind, values)
    }

    /// Redirects the call to the function at `target`, with the same arguments.
    ///
    /// The other users are asked and told as for [`skip`](Self::skip). The function itself runs
    /// where [`Function::original`](crate::Function::original) says; called by its name it is
    /// traced, and comes here again.
    ///
    /// # How long the target must live
    ///
    /// Until the last call that was redirected to it has returned. Unregistering the user does not
    /// wait for these calls: their number of callbacks is zero, but they still run the target. So
    /// either the target stays for the rest of the process, as a function of the program does, or:
    ///
    /// 1. The user is registered with `Options::count_redirected(true)`.
    /// 2. Its callback returns `Some` for each call that it redirects.
    /// 3. `Handle::drain_and_unregister` ends the user. When it succeeds, all of these calls have
    ///    returned, and the library of the target can be closed.
    ///
    /// # What was promised
    ///
    /// The caller of [`rewrite`](crate::Entry::rewrite) has promised that the function
    /// at `target` takes these arguments, gives such a result, and does what the callers expect.
    /// Where compilers let a caller know the code of a function that it calls, as gcc's
    /// `-fipa-ra` does for calls within a file, the caller may keep values in any register that the
    /// function leaves alone: what takes its place must leave it alone too. Calls from another file
    /// or through a pointer rely on the ABI only.
    ///
    /// # Errors
    ///
    /// [`NoTarget`](WriteError::NoTarget), [`AlreadyReplaced`](WriteError::AlreadyReplaced),
    /// [`MustRun`](WriteError::MustRun) and [`Unregistering`](WriteError::Unregistering).
    pub fn redirect(&mut self, target: *const ()) -> Result<(), WriteError> {
        if target.is_null() {
            return Err(WriteError::NoTarget);
        }
        let target = target.expose_provenance() as u64;
        let redirects = self.user.redirects();
        // Before the call can go there: `Redirects` says why.
        if !redirects.begin() {
            return Err(WriteError::Unregistering);
        }
        let replaced = self.replace(Kind::Redirect, [target, 0]);
        match replaced {
            Ok(()) => *self.redirected = true,
            Err(_) => redirects.cancel(),
        }
        replaced
    }

    fn replace(&mut self, kind: Kind, values: [u64; 2]) -> Result<(), WriteError> {
        replacement::replace(self.regs, self.thread, self.user.id(), kind, values)
    }
}

/// The result of a function that does not run: see [`EntryWriter::skip`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Outcome {
    /// No result: the function is a `void` function.
    Nothing,
    /// An integer or a pointer, extended to 64 bits: `-1` of any width is `-1i64 as u64`.
    Int(u64),
    /// The lower and the upper half of an integer of 128 bits, or two words.
    Ints(u64, u64),
    /// A floating-point number of 64 bits.
    Float(f64),
    /// A floating-point number of 32 bits.
    Float32(f32),
}

/// Implements the conversion to an outcome for each type of number.
macro_rules! outcomes {
    ($($number:ty: $value:ident => $outcome:expr;)*) => {
        $(impl From<$number> for Outcome {
            fn from($value: $number) -> Self {
                $outcome
            }
        })*
    };
}

outcomes! {
    (): _nothing => Self::Nothing;
    u64: value => Self::Int(value);
    i64: value => Self::Int(value.cast_unsigned());
    u32: value => Self::Int(value.into());
    i32: value => Self::Int(i64::from(value).cast_unsigned());
    u16: value => Self::Int(value.into());
    i16: value => Self::Int(i64::from(value).cast_unsigned());
    u8: value => Self::Int(value.into());
    i8: value => Self::Int(i64::from(value).cast_unsigned());
    char: value => Self::Int(u32::from(value).into());
    usize: value => Self::Int(value as u64);
    isize: value => Self::Int(value as u64);
    bool: value => Self::Int(value.into());
    f64: value => Self::Float(value);
    f32: value => Self::Float32(value);
}

impl<T> From<*const T> for Outcome {
    fn from(value: *const T) -> Self {
        Self::Int(value.expose_provenance() as u64)
    }
}

impl<T> From<*mut T> for Outcome {
    fn from(value: *mut T) -> Self {
        Self::Int(value.expose_provenance() as u64)
    }
}

/// Changes the results of a call: see [`Return::rewrite`](crate::Return::rewrite).
///
/// Users that are called later see the written values.
#[derive(Debug)]
pub struct ReturnWriter<'a> {
    regs: &'a mut ReturnRegs,
    thread: &'a Thread,
    /// The flags of [`ReturnRegs`] for this return.
    how: u32,
    /// The word that is passed from user to user, which includes `errno`.
    users: &'a mut u64,
}

impl<'a> ReturnWriter<'a> {
    pub(crate) fn new(
        regs: &'a mut ReturnRegs,
        thread: &'a Thread,
        how: u32,
        users: &'a mut u64,
    ) -> Self {
        Self {
            regs,
            thread,
            how,
            users,
        }
    }

    /// Changes the program's `errno`: the caller finds this value.
    pub fn set_errno(&mut self, errno: i32) {
        *self.users = chain::with_errno(*self.users, errno);
    }

    fn results(&mut self) -> Result<&mut ReturnRegs, WriteError> {
        if self.how & RETURN_UNWINDING == 0 {
            Ok(self.regs)
        } else {
            Err(WriteError::Unwinding)
        }
    }

    /// Changes the integer or pointer result.
    pub fn set_result(&mut self, value: u64) -> Result<(), WriteError> {
        self.results().map(|regs| regs.int[0] = value)
    }

    /// Changes the upper half of an integer result of 128 bits, or the second of two words.
    pub fn set_result_high(&mut self, value: u64) -> Result<(), WriteError> {
        self.results().map(|regs| regs.int[1] = value)
    }

    /// Changes the floating-point result (or the first of two) to an `f64`.
    pub fn set_float_result(&mut self, value: f64) -> Result<(), WriteError> {
        self.results().map(|regs| regs.vector[0].set_f64(value))
    }

    /// Changes the floating-point result (or the first of two) to an `f32`.
    pub fn set_float32_result(&mut self, value: f32) -> Result<(), WriteError> {
        self.results().map(|regs| regs.vector[0].set_f32(value))
    }

    /// Returns the bytes of vector result `index` (0 or 1) for changes: 16, 32 or 64, the width of
    /// the machine's vector registers.
    pub fn vector_result_mut(&mut self, index: usize) -> Result<&mut [u8], WriteError> {
        let width = self.thread.vector_bytes.get();
        let regs = self.results()?;
        // SAFETY: `&mut self` excludes other references.
        let width = unsafe { ReturnRegs::widen(regs, width) };
        let count = RESULTS;
        let result = regs.vector.get_mut(index);
        let result = result.ok_or(WriteError::NoSuchResult { index, count })?;
        Ok(&mut result.0[..width])
    }
}
