//! The services of a process: system calls of Linux, the C library and libgcc.

use core::ffi::{c_int, c_long, c_void};

use crate::trampoline::calls::RT_SIGPROCMASK;

/// Compares the running thread with the one whose state rdx is, which takes a system call.
/// Changes rax and rcx.
macro_rules! is_own {
    () => {
        "mov eax, {gettid}
         syscall
         mov r11, [rsp + {site}]
         cmp eax, [rdx + {id}]"
    };
}

/// Blocks all signals but those of faults and traps, and stores the mask before at `$place`.
/// Changes rax, rcx, rdx, rdi, rsi, r10 and r11.
macro_rules! block_signals {
    ($place:literal) => {
        concat!(
            "mov eax, {rt_sigprocmask}\n",
            "xor edi, edi\n", // SIG_BLOCK
            "lea rsi, [rip + {blocked_signals}]\n",
            "lea rdx, [rsp + {",
            $place,
            "}]\n",
            "mov r10d, 8\n",
            "syscall\n",
        )
    };
}

/// Undoes `block_signals`. Changes the same registers.
macro_rules! unblock_signals {
    ($place:literal) => {
        concat!(
            "mov eax, {rt_sigprocmask}\n",
            "mov edi, 2\n", // SIG_SETMASK
            "lea rsi, [rsp + {",
            $place,
            "}]\n",
            "xor edx, edx\n",
            "mov r10d, 8\n",
            "syscall\n",
        )
    };
}

/// A function that is called for each frame of a backtrace.
type Step = extern "C" fn(context: *mut c_void, argument: *mut c_void) -> i32;

unsafe extern "C" {
    #[link_name = "_Unwind_GetGR"]
    pub(in crate::trampoline) fn get_gr(context: *mut c_void, register: i32) -> usize;
    #[link_name = "_Unwind_GetIP"]
    pub(in crate::trampoline) fn get_ip(context: *mut c_void) -> usize;
    #[link_name = "_Unwind_SetGR"]
    pub(in crate::trampoline) fn set_gr(context: *mut c_void, register: i32, value: usize);
    #[link_name = "_Unwind_SetIP"]
    pub(in crate::trampoline) fn set_ip(context: *mut c_void, address: usize);
    #[link_name = "_Unwind_Resume"]
    pub(in crate::trampoline) fn resume(exception: *mut c_void) -> !;
    fn _Unwind_Backtrace(step: Step, argument: *mut c_void) -> i32;
}

unsafe extern "C-unwind" {
    /// `pthread_setcancelstate`
    #[link_name = "pthread_setcancelstate"]
    pub(in crate::trampoline) fn set_cancel_state(state: c_int, before: *mut c_int) -> c_int;
    /// `pthread_setcanceltype`
    #[link_name = "pthread_setcanceltype"]
    pub(in crate::trampoline) fn set_cancel_type(kind: c_int, before: *mut c_int) -> c_int;
    fn syscall(number: c_long, ...) -> c_long;
}

/// Makes libgcc initialize the sizes of registers, without which `_Unwind_GetGR` aborts.
///
/// libgcc does so when it first unwinds. But a program that contains its own copy of libgcc
/// (`-static-libgcc`) unwinds with that copy, and our personality routine calls the shared one.
pub(in crate::trampoline) fn prepare_unwinder() {
    extern "C" fn stop(_context: *mut c_void, _argument: *mut c_void) -> i32 {
        const NORMAL_STOP: i32 = 4;
        NORMAL_STOP
    }
    // SAFETY: the function ignores its arguments.
    unsafe { _Unwind_Backtrace(stop, core::ptr::null_mut()) };
}

/// Changes the thread's signal mask with a bare system call, because the C library's function
/// ignores some signals. `set` and `before` are kernel signal sets.
pub(in crate::trampoline) fn change_signal_mask(how: c_int, set: &u64, before: &mut u64) {
    // SAFETY: live values of the size that the kernel is told.
    unsafe {
        syscall(
            RT_SIGPROCMASK.into(),
            how,
            &raw const *set,
            &raw mut *before,
            size_of::<u64>(),
        )
    };
}
