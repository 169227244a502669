//! System calls made in callbacks.
//!
//! They bypass the C library: its functions may be traced themselves, and no trap may come while
//! all signals are blocked. `errno` stays unchanged.
//!
//! # Safety
//!
//! The unsafe code is the system call instruction.

use core::arch::asm;

/// Makes a system call, and returns the kernel's result: -4095 to -1 for an error.
///
/// # Safety
///
/// The call with these arguments must do no harm to the program's memory.
pub(crate) unsafe fn system_call(number: libc::c_long, args: [usize; 5]) -> isize {
    let result;
    // SAFETY: the instruction changes these three registers, and memory as the caller's contract
    // allows.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3],
            in("r8") args[4],
            in("r9") 0,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}
