//! System calls that a stopped thread makes.

use std::io;
use std::mem;
use std::time::Instant;

use libc::user_regs_struct;

use crate::ptrace::{Stop, Tracee};

/// Stopped thread between two of its instructions, where it makes system calls.
#[derive(Debug)]
pub(crate) struct Caller<'a> {
    pub(crate) tracee: &'a mut Tracee,
    /// Address of a `syscall` instruction with a `ret` behind it.
    pub(crate) instruction: u64,
    /// Contents of the registers that a system call does not use.
    pub(crate) general: user_regs_struct,
    /// True if the thread is at the start of a system call, which the first of these calls
    /// replaces. That takes one wait for a processor, not three.
    pub(crate) begins: bool,
    pub(crate) until: Instant,
}

impl Caller<'_> {
    /// Makes a system call. The thread then stops right behind it.
    pub(crate) fn call(&mut self, number: i64, arguments: [u64; 6]) -> io::Result<u64> {
        let mut general = self.general;
        general.rip = self.instruction;
        general.rax = number as u64;
        // No call that would be restarted.
        general.orig_rax = u64::MAX;
        [
            general.rdi,
            general.rsi,
            general.rdx,
            general.r10,
            general.r8,
            general.r9,
        ] = arguments;
        let mut seen = 0;
        if mem::take(&mut self.begins) {
            general.rip = self.instruction + 2;
            general.rax = -i64::from(libc::ENOSYS) as u64;
            general.orig_rax = number as u64;
            seen = 1;
        }
        self.tracee.set_registers(&general)?;
        while seen < 2 {
            self.tracee.run_to_call()?;
            match self.tracee.wait(self.until)? {
                Some(Stop::Call) => {
                    let at = self.tracee.registers()?;
                    // The end of the call that the thread was stopped in.
                    if at.rip == self.instruction + 2 && at.orig_rax == number as u64 {
                        seen += 1;
                    }
                }
                Some(Stop::Interrupted | Stop::Signal) => {}
                Some(Stop::ByJobControl | Stop::Ended) | None => {
                    return Err(io::Error::from_raw_os_error(libc::ESRCH));
                }
            }
        }
        let result = self.tracee.registers()?.rax;
        match -(result as i64) {
            error @ 1..=4095 => Err(io::Error::from_raw_os_error(error as i32)),
            _ => Ok(result),
        }
    }
}
