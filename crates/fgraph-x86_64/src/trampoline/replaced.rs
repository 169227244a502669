//! The code that replaces a body: see [`fgraph_core::replacement`].
//!
//! A trampoline jumps here instead of to a body, with every register as the body would find it. S
//! is the address of the return slot, which holds our return point or the caller's return address:
//!
//! ```text
//!   S        return address  <- rsp
//!   S-8      (the caller's rbx was here)
//!   S-16     where the trampoline had this address from, or nothing
//!   S-24     the frame's return point, or nothing
//!   S-32     second value
//!   S-40     first value
//! ```
//!
//! These words are in the red zone, so a signal handler that comes meanwhile does not change them.
//! Only the result is changed: callers may rely on all other registers.

use core::arch::global_asm;
use core::mem::offset_of;

use fgraph_core::regs::Link;
use fgraph_core::replacement::{KINDS, Replacement};

/// Makes the code for one kind, which ends with `$end`.
macro_rules! replaced {
    ($name:literal, $($end:literal),*) => {
        global_asm!(
            ".pushsection fgraph_text, \"ax\", @progbits",
            concat!(".globl ", $name),
            concat!(".hidden ", $name),
            concat!(".type ", $name, ", @function"),
            concat!($name, ":"),
            ".cfi_startproc",
            $($end,)*
            ".cfi_endproc",
            concat!(".size ", $name, ", . - ", $name),
            // A comment, so that every kind uses all operands.
            "# values at {first} and {second}",
            ".popsection",
            first = const FIRST,
            second = const FIRST + 8,
        );
    };
}

/// The distance from the return slot to the start of the replacement.
const BELOW: isize = -((offset_of!(Link, return_address) + size_of::<Replacement>()) as isize);
const FIRST: isize = BELOW + offset_of!(Replacement, values) as isize;

replaced!("fgraph_skip", "ret");
replaced!(
    "fgraph_skip_int",
    "mov rax, qword ptr [rsp + {first}]",
    "ret"
);
replaced!(
    "fgraph_skip_ints",
    "mov rax, qword ptr [rsp + {first}]",
    "mov rdx, [rsp + {second}]",
    "ret"
);
replaced!(
    "fgraph_skip_float",
    "movq xmm0, qword ptr [rsp + {first}]",
    "ret"
);
replaced!("fgraph_redirect", "jmp qword ptr [rsp + {first}]");

unsafe extern "C" {
    fn fgraph_skip();
    fn fgraph_skip_int();
    fn fgraph_skip_ints();
    fn fgraph_skip_float();
    fn fgraph_redirect();
}

/// Returns the addresses of the code for each kind, in order.
pub(super) fn bodies() -> [usize; KINDS] {
    [
        fgraph_skip,
        fgraph_skip_int,
        fgraph_skip_ints,
        fgraph_skip_float,
        fgraph_redirect,
    ]
    .map(|code: unsafe extern "C" fn()| code as *const () as usize)
}

// The words are in the red zone.
const _: () = assert!(BELOW >= -128);
