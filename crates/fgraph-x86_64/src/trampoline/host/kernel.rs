//! The services of a kernel, which has no signals, no unwinder and no cancellation.
//!
//! A kernel switches `fs` with its tasks, so the state that a task finds is its own. It makes the
//! state with interrupts disabled. An NMI that comes meanwhile finds that the state is being made:
//! its calls are counted, and not traced.

use core::ffi::{c_int, c_void};
use core::hint;

/// Sets the flags as for equal threads: the state in rdx is the running task's.
macro_rules! is_own {
    () => {
        "mov r11, [rsp + {site}]
         cmp eax, eax # in place of {gettid} and {id}"
    };
}

/// Disables interrupts, and stores the flags before at `$place`. Nothing below the stack pointer is
/// in use.
macro_rules! block_signals {
    ($place:literal) => {
        concat!(
            "pushfq # in place of {rt_sigprocmask} with {blocked_signals}\n",
            // The operand's address is that after the pop.
            "pop qword ptr [rsp + {",
            $place,
            "}]\n",
            "cli\n",
        )
    };
}

/// Undoes `block_signals`.
macro_rules! unblock_signals {
    ($place:literal) => {
        concat!(
            // The operand's address is that before the push.
            "push qword ptr [rsp + {",
            $place,
            "}]\n",
            "popfq\n",
        )
    };
}

pub(in crate::trampoline) unsafe extern "C" fn get_gr(_: *mut c_void, _: i32) -> usize {
    0
}

pub(in crate::trampoline) unsafe extern "C" fn get_ip(_: *mut c_void) -> usize {
    0
}

pub(in crate::trampoline) unsafe extern "C" fn set_gr(_: *mut c_void, _: i32, _: usize) {}

pub(in crate::trampoline) unsafe extern "C" fn set_ip(_: *mut c_void, _: usize) {}

/// Never called: nothing leads to `fgraph_catch`.
pub(in crate::trampoline) unsafe extern "C" fn resume(_: *mut c_void) -> ! {
    loop {
        hint::spin_loop();
    }
}

pub(in crate::trampoline) unsafe extern "C-unwind" fn set_cancel_state(
    _: c_int,
    _: *mut c_int,
) -> c_int {
    0
}

pub(in crate::trampoline) unsafe extern "C-unwind" fn set_cancel_type(
    _: c_int,
    _: *mut c_int,
) -> c_int {
    0
}

pub(in crate::trampoline) fn prepare_unwinder() {}

pub(in crate::trampoline) fn change_signal_mask(_how: c_int, _set: &u64, _before: &mut u64) {}
