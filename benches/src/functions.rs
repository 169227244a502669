//! The functions that are called.
//!
//! Each exists several times, with the same instructions at the same alignment:
//!
//! - *plain*;
//! - with a NOP and a row in `__patchable_function_entries`, as a compiler makes them;
//! - with a jump to the [`hijack`] trampoline in place of the NOP;
//! - plain, to be relocated, under names that identify a compiler. One of these pairs has a caller
//!   that keeps a value in a register across the call.
//!
//! They are written in assembly, because only then the first five bytes are the only difference:
//! `-Zpatchable-function-entry` holds for a whole crate, and calling a function behind its NOP
//! would leave the recursion inside it going through the NOP.

use core::arch::global_asm;
use core::hint::black_box;

use crate::hijack;

/// Number of calls that one call of [`Function::Recursive`] makes, itself included.
pub const DEPTH: u64 = 16;

/// Defines a function that begins with `$entry`.
macro_rules! function {
    ($name:ident, [$($entry:expr),*], $body:ident) => {
        global_asm!(
            concat!(".pushsection .text.", stringify!($name), ", \"ax\", @progbits"),
            ".p2align 6",
            concat!(".globl ", stringify!($name)),
            concat!(".hidden ", stringify!($name)),
            concat!(".type ", stringify!($name), ", @function"),
            concat!(stringify!($name), ":"),
            ".cfi_startproc",
            $($entry,)*
            $body!($name),
            ".cfi_endproc",
            concat!(".size ", stringify!($name), ", . - ", stringify!($name)),
            ".popsection",
        );
    };
}

/// Defines a function in one of its variants.
macro_rules! variant {
    (Patchable $name:ident $body:ident) => {
        function!(
            $name,
            [
                // The NOP of LLVM: nopl 8(%rax,%rax).
                ".byte 0x0f, 0x1f, 0x44, 0x00, 0x08",
                // A row of the list of functions with NOPs.
                concat!(
                    ".pushsection __patchable_function_entries, \"awo\", @progbits, ",
                    stringify!($name)
                ),
                ".p2align 3",
                concat!(".quad ", stringify!($name)),
                ".popsection"
            ],
            $body
        );
    };
    (Kept $name:ident $body:ident) => {
        function!($name, [], $body);
        global_asm!(
            // Beside the function, so that the linker keeps both or none. It is never called.
            concat!(
                ".pushsection .text.",
                stringify!($name),
                ", \"ax\", @progbits"
            ),
            "mov r8, rdi",
            concat!("call ", stringify!($name)),
            "add rax, r8",
            "ret",
            ".popsection",
        );
    };
    (Hijacked $name:ident $body:ident) => {
        // A jump to a stub of `hijack`.
        function!(
            $name,
            [
                ".byte 0xe9",
                concat!(".long ", stringify!($name), "_stub - . - 4")
            ],
            $body
        );
    };
    ($variant:ident $name:ident $body:ident) => {
        function!($name, [], $body);
    };
}

/// Defines functions in all their variants: each by its body, and by the loop that calls it.
macro_rules! functions {
    ($($function:ident $body:ident $calls:ident: $($variant:ident $name:ident),*;)*) => {
        $($(variant!($variant $name $body);)*)*

        unsafe extern "C" {
            $($(safe fn $name(a: u64, b: u64) -> u64;)*)*
        }

        impl Function {
            /// Returns the address of a variant.
            pub(crate) fn entry(self, variant: Variant) -> Code {
                match (self, variant) {
                    $($((Self::$function, Variant::$variant) => $name,)*)*
                }
            }

            /// Makes `calls` calls of a variant, including nested ones, and returns a value that
            /// depends on all results.
            pub fn run(self, variant: Variant, calls: u64) -> u64 {
                if variant == Variant::Hijacked {
                    hijack::prepare();
                }
                // Each has a loop of its own: the processor predicts a call with one target in 3
                // cycles less than one with several earlier targets.
                match (self, variant) {
                    $($((Self::$function, Variant::$variant) => $calls(calls, || $name),)*)*
                }
            }
        }
    };
}

/// Computes `3 * a + b + 1`.
macro_rules! leaf {
    ($own:ident) => {
        "lea rax, [rdi + 2*rdi]
         lea rax, [rax + rsi + 1]
         ret"
    };
}

/// Computes the sum of the numbers up to `a`, by recursion.
macro_rules! recursive {
    ($own:ident) => {
        concat!(
            "test rdi, rdi
             jz 7f
             push rdi
             .cfi_adjust_cfa_offset 8
             dec rdi
             call ",
            stringify!($own),
            "
             pop rdi
             .cfi_adjust_cfa_offset -8
             add rax, rdi
             ret
             7:
             xor eax, eax
             ret"
        )
    };
}

functions! {
    Leaf leaf leaf_calls:
        Plain fgraph_bench_plain_leaf,
        Patchable fgraph_bench_call_leaf,
        Rust _RNvCs1234_5bench4leaf,
        C fgraph_bench_c_leaf,
        Kept fgraph_bench_kept_leaf,
        Hijacked fgraph_bench_hijacked_leaf;
    Recursive recursive recursive_calls:
        Plain fgraph_bench_plain_recursive,
        Patchable fgraph_bench_call_recursive,
        Rust _RNvCs1234_5bench9recursive,
        C fgraph_bench_c_recursive,
        Kept fgraph_bench_kept_recursive,
        Hijacked fgraph_bench_hijacked_recursive;
}

// It is watched while the others are not.
variant!(Patchable fgraph_bench_call_bystander leaf);

unsafe extern "C" {
    safe fn fgraph_bench_call_bystander(a: u64, b: u64) -> u64;
}

/// Defines functions that compute the same, with and without a NOP, and the lists of them.
macro_rules! several {
    ($($plain:ident $patchable:ident),*) => {
        $(
            variant!(Plain $plain leaf);
            variant!(Patchable $patchable leaf);
        )*

        unsafe extern "C" {
            $(
                safe fn $plain(a: u64, b: u64) -> u64;
                safe fn $patchable(a: u64, b: u64) -> u64;
            )*
        }

        /// Eight functions without NOPs.
        pub(crate) const EIGHT_PLAIN: [Code; 8] = [$($plain),*];

        /// Eight functions with NOPs, which [`EIGHT`] selects.
        pub(crate) const EIGHT_PATCHABLE: [Code; 8] = [$($patchable),*];
    };
}

several! {
    fgraph_bench_plain_eight_0 fgraph_bench_eight_0,
    fgraph_bench_plain_eight_1 fgraph_bench_eight_1,
    fgraph_bench_plain_eight_2 fgraph_bench_eight_2,
    fgraph_bench_plain_eight_3 fgraph_bench_eight_3,
    fgraph_bench_plain_eight_4 fgraph_bench_eight_4,
    fgraph_bench_plain_eight_5 fgraph_bench_eight_5,
    fgraph_bench_plain_eight_6 fgraph_bench_eight_6,
    fgraph_bench_plain_eight_7 fgraph_bench_eight_7
}

/// The filter that selects the eight functions with NOPs.
pub(crate) const EIGHT: &str = "fgraph_bench_eight_*";

/// The filter that selects the patchable variants of all [`Function`]s.
pub const WATCHED: &str = "fgraph_bench_call_leaf fgraph_bench_call_recursive";

/// Filter that selects another function, which is never called.
pub const BYSTANDER: &str = "fgraph_bench_call_bystander";

/// Filter that selects the same function, by excluding the [`Function`]s.
pub const NOT_WATCHED: &str = "fgraph_bench_call_* !*_leaf !*_recursive";

/// Keeps the function in the program.
#[used]
static KEPT: Code = fgraph_bench_call_bystander;

/// Type of a function pointer for calls.
pub type Code = extern "C" fn(u64, u64) -> u64;

/// A function to call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// Computes a sum of its two arguments.
    Leaf,
    /// Calls itself [`DEPTH`] deep.
    Recursive,
}

/// First instructions of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// The instructions of its body.
    Plain,
    /// A NOP that fgraph patches.
    Patchable,
    /// The instructions of its body, which fgraph relocates and takes for code of rustc.
    Rust,
    /// The instructions of its body, which fgraph relocates and takes for code of a C compiler.
    C,
    /// Same as `C`, with a caller that keeps a value in a register across the call.
    Kept,
    /// A jump to the [`hijack`] trampoline.
    Hijacked,
}

impl Variant {
    /// Returns the filter that selects this variant of all [`Function`]s, if fgraph traces it.
    pub const fn filter(self) -> &'static str {
        match self {
            Self::Plain | Self::Hijacked => "!*",
            Self::Patchable => WATCHED,
            Self::Rust => "bench::leaf bench::recursive",
            Self::C => "fgraph_bench_c_leaf fgraph_bench_c_recursive",
            Self::Kept => "fgraph_bench_kept_leaf fgraph_bench_kept_recursive",
        }
    }
}

impl Function {
    /// All functions.
    pub const ALL: [Self; 2] = [Self::Leaf, Self::Recursive];

    /// Returns its name in a table.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Leaf => "leaf",
            Self::Recursive => "recursive",
        }
    }

    /// Returns the function pointer of a variant.
    pub fn code(self, variant: Variant) -> Code {
        if variant == Variant::Hijacked {
            hijack::prepare();
        }
        self.entry(variant)
    }
}

// `code` makes each use a type, and so a loop, of its own. The black box keeps the calls indirect,
// like those through a library's table or a vtable.

#[inline(never)]
fn leaf_calls(calls: u64, code: impl Fn() -> Code) -> u64 {
    let code = black_box(code());
    // Each call waits for the result of the previous one, like most calls.
    (0..calls).fold(0, |value, _| code(value, 1))
}

#[inline(never)]
fn recursive_calls(calls: u64, code: impl Fn() -> Code) -> u64 {
    let code = black_box(code());
    (0..calls / DEPTH).fold(0, |value: u64, _| {
        value.wrapping_add(code(DEPTH - 1, value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_functions_compute_what_they_say() {
        assert_eq!(Function::Leaf.code(Variant::Plain)(5, 2), 18);
        assert_eq!(Function::Recursive.code(Variant::Plain)(15, 0), 120);
    }

    #[test]
    fn the_variants_compute_the_same() {
        for function in Function::ALL {
            let expected = function.run(Variant::Plain, 1600);
            for variant in [Variant::Patchable, Variant::Rust, Variant::C, Variant::Kept] {
                assert_eq!(function.run(variant, 1600), expected);
            }
        }
    }

    #[test]
    fn the_variants_differ_in_the_first_five_bytes_only() {
        for function in Function::ALL {
            use Variant::{C, Kept, Patchable, Plain, Rust};
            let [plain, rust, c, kept, patchable] =
                [Plain, Rust, C, Kept, Patchable].map(|variant| {
                    let skipped = if variant == Patchable { 5 } else { 0 };
                    let code = function.code(variant) as *const () as *const u8;
                    // SAFETY: each of the functions has 8 bytes there, and none of them is part of
                    // an address.
                    unsafe { core::slice::from_raw_parts(code.add(skipped), 8) }
                });
            assert_eq!([rust, c, kept, patchable], [plain; 4]);
        }
    }
}
