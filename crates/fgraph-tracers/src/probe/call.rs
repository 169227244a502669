//! What closures see of a call.

use core::fmt;

use fgraph::{Entry, EntryWriter, Function, Return, ReturnWriter};

/// The methods of [`Entry`] and [`Return`] that do not depend on the user's data: a trait that
/// leaves the data out, and the type that closures see.
macro_rules! forward {
    ($type:ident, $any:ident for $of:ident, $writer:ident {
        $($(#[$doc:meta])* $name:ident($($arg:ident: $arg_type:ty),*) -> $result:ty;)*
    }) => {
        /// What it is for a user of whatever data.
        pub(super) trait $any {
            $(fn $name(&self $(, $arg: $arg_type)*) -> $result;)*

            /// # Safety
            ///
            /// As for the method that this stands for.
            unsafe fn rewrite(&mut self) -> $writer<'_>;
        }

        impl<D> $any for $of<'_, D> {
            $(
                fn $name(&self $(, $arg: $arg_type)*) -> $result {
                    $of::$name(self $(, $arg)*)
                }
            )*

            unsafe fn rewrite(&mut self) -> $writer<'_> {
                // SAFETY: handed on.
                unsafe { $of::rewrite(self) }
            }
        }

        impl $type<'_, '_> {
            $(
                $(#[$doc])*
                pub fn $name(&self $(, $arg: $arg_type)*) -> $result {
                    self.0.$name($($arg),*)
                }
            )*
        }

        impl fmt::Debug for $type<'_, '_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple(stringify!($type)).field(&self.function()).finish()
            }
        }
    };
    (common $type:ident, $any:ident for $of:ident, $writer:ident { $($rest:tt)* }) => {
        forward!($type, $any for $of, $writer {
            /// The function that is called.
            function() -> Function;
            /// The program's `errno`.
            errno() -> i32;
            /// Where the function returns to.
            return_address() -> usize;
            /// An address inside the call instruction, fit for looking up who called.
            call_site() -> usize;
            /// The kernel's id of the calling thread.
            thread_id() -> u32;
            /// Traced calls that are going on around this one on this machine stack, of any user.
            depth() -> usize;
            /// The stack pointer of the caller, just before its call instruction.
            stack_pointer() -> usize;
            /// Fills in where this call and the traced calls around it return to, the innermost
            /// first, and says how many addresses these are.
            callers(addresses: &mut [usize]) -> usize;
            /// Fills in where this call and all calls around it return to, traced or not, the
            /// innermost first, and says how many addresses these are.
            unwind(addresses: &mut [usize]) -> usize;
            $($rest)*
        });
    };
}

/// A function is entered: what [`on_entry`](super::Builder::on_entry) sees. It is an
/// [`Entry`], whose methods these are, without what belongs to a user.
pub struct EntryCall<'c, 'e>(pub(super) &'c mut (dyn AnyEntry + 'e));

forward!(common EntryCall, AnyEntry for Entry, EntryWriter {
    /// Integer or pointer argument `index` (0 to 5), of those that travel in registers.
    arg(index: usize) -> Option<u64>;
    /// Floating-point argument `index` (0 to 7) as a `f64`.
    float_arg(index: usize) -> Option<f64>;
    /// Floating-point argument `index` (0 to 7) as a `f32`.
    float32_arg(index: usize) -> Option<f32>;
    /// The bytes of vector argument `index` (0 to 7).
    vector_arg(index: usize) -> Option<&[u8]>;
    /// Word `index` of the arguments that travel on the stack.
    stack_arg(index: usize) -> Option<u64>;
});

impl EntryCall<'_, '_> {
    /// The gate to changing what the function is called with, and whether it is called at all.
    ///
    /// # Safety
    ///
    /// As for [`Entry::rewrite`].
    pub unsafe fn rewrite(&mut self) -> EntryWriter<'_> {
        // SAFETY: handed on.
        unsafe { self.0.rewrite() }
    }
}

/// A function returns, or is unwound: what [`on_return`](super::Builder::on_return) sees. It is a
/// [`Return`], whose methods these are, without what belongs to a user.
pub struct ReturnCall<'c, 'e>(pub(super) &'c mut (dyn AnyReturn + 'e));

forward!(common ReturnCall, AnyReturn for Return, ReturnWriter {
    /// Whether the function does not return but is left by a panic, a C++ exception or the like.
    unwinding() -> bool;
    /// The integer or pointer result; `None` while unwinding.
    result() -> Option<u64>;
    /// The second of two words of a result.
    result_high() -> Option<u64>;
    /// The floating-point result as a `f64`; `None` while unwinding.
    float_result() -> Option<f64>;
    /// The floating-point result as a `f32`; `None` while unwinding.
    float32_result() -> Option<f32>;
    /// The bytes of vector result `index` (0 or 1); `None` while unwinding.
    vector_result(index: usize) -> Option<&[u8]>;
});

impl ReturnCall<'_, '_> {
    /// The gate to changing what the function returns.
    ///
    /// # Safety
    ///
    /// As for [`Return::rewrite`].
    pub unsafe fn rewrite(&mut self) -> ReturnWriter<'_> {
        // SAFETY: handed on.
        unsafe { self.0.rewrite() }
    }
}
