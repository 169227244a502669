//! Types through which closures see a call.

use core::fmt;

use fgraph::{Entry, EntryWriter, Function, Return, ReturnWriter};

/// Defines the methods of [`Entry`] and [`Return`] that do not depend on the user's data: a trait
/// without the data, and the type that closures see.
macro_rules! forward {
    ($type:ident, $any:ident for $of:ident, $writer:ident {
        $($(#[$doc:meta])* $name:ident($($arg:ident: $arg_type:ty),*) -> $result:ty;)*
    }) => {
        /// The call, for a user with any data.
        pub(super) trait $any {
            $(fn $name(&self $(, $arg: $arg_type)*) -> $result;)*

            /// # Safety
            ///
            /// Same as for the method of this name that it calls.
            unsafe fn rewrite(&mut self) -> $writer<'_>;
        }

        impl<D> $any for $of<'_, D> {
            $(
                fn $name(&self $(, $arg: $arg_type)*) -> $result {
                    $of::$name(self $(, $arg)*)
                }
            )*

            unsafe fn rewrite(&mut self) -> $writer<'_> {
                // SAFETY: the caller keeps the same contract.
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
            /// Returns the called function.
            function() -> Function;
            /// Returns the program's `errno`.
            errno() -> i32;
            /// Returns the return address of the call.
            return_address() -> usize;
            /// Returns an address inside the call instruction, fit for looking up the caller.
            call_site() -> usize;
            /// Returns the kernel id of the calling thread.
            thread_id() -> u32;
            /// Returns the number of traced calls around this one on this machine stack, of any
            /// user.
            depth() -> usize;
            /// Returns the caller's stack pointer just before its call instruction.
            stack_pointer() -> usize;
            /// Fills in the return addresses of this call and of the traced calls around it,
            /// innermost first. Returns the number of addresses.
            callers(addresses: &mut [usize]) -> usize;
            /// Fills in the return addresses of this call and of all calls around it, traced or
            /// not, innermost first. Returns the number of addresses.
            unwind(addresses: &mut [usize]) -> usize;
            $($rest)*
        });
    };
}

/// Entry of a function, as [`on_entry`](super::Builder::on_entry) sees it. It has the methods of an
/// [`Entry`], without those that belong to a user.
pub struct EntryCall<'c, 'e>(pub(super) &'c mut (dyn AnyEntry + 'e));

forward!(common EntryCall, AnyEntry for Entry, EntryWriter {
    /// Returns integer or pointer argument `index` (0 to 5), if it is passed in a register.
    arg(index: usize) -> Option<u64>;
    /// Returns floating-point argument `index` (0 to 7) as a `f64`.
    float_arg(index: usize) -> Option<f64>;
    /// Returns floating-point argument `index` (0 to 7) as a `f32`.
    float32_arg(index: usize) -> Option<f32>;
    /// Returns the bytes of vector argument `index` (0 to 7).
    vector_arg(index: usize) -> Option<&[u8]>;
    /// Returns word `index` of the arguments that are passed on the stack.
    stack_arg(index: usize) -> Option<u64>;
});

impl EntryCall<'_, '_> {
    /// Allows the closure to change the arguments of the call, and whether the function runs at
    /// all.
    ///
    /// # Safety
    ///
    /// Same as for [`Entry::rewrite`].
    pub unsafe fn rewrite(&mut self) -> EntryWriter<'_> {
        // SAFETY: the caller keeps the same contract.
        unsafe { self.0.rewrite() }
    }
}

/// Return of a function by return or unwinding, as [`on_return`](super::Builder::on_return) sees
/// it. It has the methods of a [`Return`], without those that belong to a user.
pub struct ReturnCall<'c, 'e>(pub(super) &'c mut (dyn AnyReturn + 'e));

forward!(common ReturnCall, AnyReturn for Return, ReturnWriter {
    /// True if a panic, a C++ exception or the like leaves the function.
    unwinding() -> bool;
    /// Returns the integer or pointer result; `None` while unwinding.
    result() -> Option<u64>;
    /// Returns the second word of a result of two words.
    result_high() -> Option<u64>;
    /// Returns the floating-point result as a `f64`; `None` while unwinding.
    float_result() -> Option<f64>;
    /// Returns the floating-point result as a `f32`; `None` while unwinding.
    float32_result() -> Option<f32>;
    /// Returns the bytes of vector result `index` (0 or 1); `None` while unwinding.
    vector_result(index: usize) -> Option<&[u8]>;
});

impl ReturnCall<'_, '_> {
    /// Allows the closure to change the result of the function.
    ///
    /// # Safety
    ///
    /// Same as for [`Return::rewrite`].
    pub unsafe fn rewrite(&mut self) -> ReturnWriter<'_> {
        // SAFETY: the caller keeps the same contract.
        unsafe { self.0.rewrite() }
    }
}
