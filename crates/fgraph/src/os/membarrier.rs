//! `membarrier(2)`: fences that one thread makes all other threads execute.
//!
//! # Safety
//!
//! The unsafe code is one system call that takes no pointers.

use crate::report::error::Unsupported;

/// Makes every running thread of the process execute a full memory fence.
///
/// Pairs with the light barrier in `fgraph_core::slot::Slots::acquire`.
pub(crate) fn fence() -> Result<(), Unsupported> {
    run(
        libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED,
        libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED,
    )
}

/// Makes every running thread execute a full memory fence like [`fence`], and a serializing
/// instruction, so that it drops instructions fetched before.
pub(crate) fn sync_core() -> Result<(), Unsupported> {
    run(
        libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE,
        libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE,
    )
}

/// Runs `command`; the kernel requires the process to have registered its use first.
fn run(command: libc::c_int, register: libc::c_int) -> Result<(), Unsupported> {
    call(command)
        .or_else(|_| call(register).and_then(|()| call(command)))
        .map_err(Unsupported::Membarrier)
}

fn call(command: libc::c_int) -> Result<(), i32> {
    // SAFETY: passes no pointers.
    match unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) } {
        0 => Ok(()),
        _ => Err(crate::os::errno()),
    }
}
