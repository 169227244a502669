//! A traced thread of another process.
//!
//! `PTRACE_O_EXITKILL` is not used: if this process ends, the kernel lets the thread continue.
//!
//! # Safety
//!
//! The unsafe code calls `ptrace` and `waitpid` with buffers of its own.

use std::io;
use std::mem;
use std::ptr;
use std::thread;
use std::time::{Duration, Instant};

use libc::{c_int, c_void, iovec, user_regs_struct};

use crate::process;
use crate::seccomp::{Filters, Instruction};

/// Register set with the state that `xsave` saves.
const NT_X86_XSTATE: usize = 0x202;
/// Upper bound on the bytes that `xsave` needs on any processor.
const MAX_EXTENDED: usize = 64 << 10;
const PTRACE_SECCOMP_GET_FILTER: libc::c_uint = 0x420c;
const PTRACE_GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;

/// Thread that this process traces. Dropping this releases the thread.
#[derive(Debug)]
pub(crate) struct Tracee {
    thread: i32,
    is_stopped: bool,
    /// Signal that arrived while the thread was stopped, and that it has not received yet.
    signal: c_int,
}

/// Reasons why a thread stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// [`Tracee::interrupt`] stopped it.
    Interrupted,
    /// A signal that stops processes stopped it.
    ByJobControl,
    /// It begins or ends a system call.
    Call,
    /// It is about to receive a signal.
    Signal,
    /// It has ended.
    Ended,
}

/// Complete register state of a thread.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) general: user_regs_struct,
    /// Extended state in the layout of `xsave`.
    pub(crate) extended: Vec<u8>,
    pub(crate) blocked: u64,
}

fn request(kind: libc::c_uint, thread: i32, address: usize, data: usize) -> io::Result<usize> {
    // SAFETY: `address` and `data` of these requests are numbers, or lead to the caller's buffers.
    let result = unsafe {
        libc::ptrace(
            kind,
            thread,
            ptr::without_provenance_mut::<c_void>(address),
            ptr::with_exposed_provenance_mut::<c_void>(data),
        )
    };
    match result {
        -1 => Err(io::Error::last_os_error()),
        result => Ok(result as usize),
    }
}

impl Tracee {
    /// Starts to trace a thread of process `pid`, which runs on. The error is ESRCH if the thread
    /// has ended, even if another process has its id by now.
    pub(crate) fn seize(pid: u32, thread: u32) -> io::Result<Self> {
        let options = libc::PTRACE_O_TRACESYSGOOD as usize;
        request(libc::PTRACE_SEIZE, thread as i32, 0, options)?;
        let tracee = Self {
            thread: thread as i32,
            is_stopped: false,
            signal: 0,
        };
        // From now on its id cannot be reused.
        match process::has_thread(pid, thread) {
            true => Ok(tracee),
            false => Err(io::Error::from_raw_os_error(libc::ESRCH)),
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.thread as u32
    }

    /// Tells the thread to stop.
    pub(crate) fn interrupt(&self) -> io::Result<()> {
        request(libc::PTRACE_INTERRUPT, self.thread, 0, 0).map(drop)
    }

    /// Waits until the thread stops; `None` if it has not at the time limit.
    pub(crate) fn wait(&mut self, until: Instant) -> io::Result<Option<Stop>> {
        loop {
            // Check for an end without reaping: the end of a child of this process is for the code
            // that waits for it.
            if let Some(Stop::Ended) = self.next(libc::WEXITED | libc::WSTOPPED | libc::WNOWAIT)? {
                if !process::is_own_child(self.id()) {
                    self.next(libc::WEXITED)?;
                }
                self.is_stopped = false;
                return Ok(Some(Stop::Ended));
            }
            if let Some(stop) = self.next(libc::WSTOPPED)? {
                self.is_stopped = true;
                return Ok(Some(stop));
            }
            if Instant::now() >= until {
                return Ok(None);
            }
            thread::sleep(Duration::from_micros(20));
        }
    }

    /// Returns the next change that `options` select; `None` if there is none.
    fn next(&mut self, options: c_int) -> io::Result<Option<Stop>> {
        let options = options | libc::WNOHANG | libc::__WALL;
        // SAFETY: `siginfo_t` is plain data, for which zeros are valid.
        let mut info: libc::siginfo_t = unsafe { mem::zeroed() };
        // SAFETY: the call writes only to the local.
        let done = unsafe { libc::waitid(libc::P_PID, self.thread as u32, &mut info, options) };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the fields are those of a child, or zeros.
        let (child, status) = unsafe { (info.si_pid(), info.si_status()) };
        if child == 0 {
            return Ok(None);
        }
        if let libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED = info.si_code {
            return Ok(Some(Stop::Ended));
        }
        let is_event = status >> 8 == libc::PTRACE_EVENT_STOP;
        Ok(Some(match status & 0xff {
            libc::SIGTRAP if is_event => Stop::Interrupted,
            _ if is_event => Stop::ByJobControl,
            signal if signal == libc::SIGTRAP | 0x80 => Stop::Call,
            signal => {
                self.signal = signal;
                Stop::Signal
            }
        }))
    }

    fn go_on(&mut self, kind: libc::c_uint) -> io::Result<()> {
        let signal = mem::take(&mut self.signal);
        request(kind, self.thread, 0, signal as usize)?;
        self.is_stopped = false;
        Ok(())
    }

    /// Lets it run, with the signal that it was stopped by.
    pub(crate) fn run(&mut self) -> io::Result<()> {
        self.go_on(libc::PTRACE_CONT)
    }

    /// Lets it run until it begins or ends a system call.
    pub(crate) fn run_to_call(&mut self) -> io::Result<()> {
        self.go_on(libc::PTRACE_SYSCALL)
    }

    /// Lets it run and passes on its signals, until `is_done` returns true; `false` if it has not
    /// at the time limit. The thread runs when this returns.
    pub(crate) fn run_until(
        &mut self,
        until: Instant,
        is_done: impl Fn() -> io::Result<bool>,
    ) -> io::Result<bool> {
        loop {
            match self.wait(Instant::now() + Duration::from_micros(50))? {
                Some(Stop::Ended) => return Err(io::Error::from_raw_os_error(libc::ESRCH)),
                Some(_) => self.run()?,
                None => {}
            }
            if is_done()? {
                return Ok(true);
            }
            if Instant::now() >= until {
                return Ok(false);
            }
        }
    }

    /// Stops it between two instructions, wherever it is. `false` if it has not stopped at the time
    /// limit.
    pub(crate) fn stop(&mut self, until: Instant) -> io::Result<bool> {
        self.interrupt()?;
        if self.is_stopped {
            self.run()?;
        }
        loop {
            match self.wait(until)? {
                Some(Stop::Interrupted) => return Ok(true),
                Some(Stop::Call | Stop::Signal) => self.run()?,
                Some(Stop::ByJobControl | Stop::Ended) | None => return Ok(false),
            }
        }
    }

    pub(crate) fn registers(&self) -> io::Result<user_regs_struct> {
        // SAFETY: registers are plain numbers, for which zeros are valid.
        let mut registers: user_regs_struct = unsafe { mem::zeroed() };
        let address = (&raw mut registers).expose_provenance();
        request(libc::PTRACE_GETREGS, self.thread, 0, address)?;
        Ok(registers)
    }

    /// True if the kernel sends the thread a signal for some system calls, by their addresses or a
    /// switch in memory (`PR_SET_SYSCALL_USER_DISPATCH`). Kernels before Linux 6.4 do not report
    /// this.
    pub(crate) fn dispatches_calls(&self) -> bool {
        /// Request `PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG`.
        const GET: libc::c_uint = 0x4211;
        // The mode, 0 if there is none, then the address of the switch, and the range of addresses.
        let mut config = [0_u64; 4];
        let address = (&raw mut config).expose_provenance();
        let told = request(GET, self.thread, size_of_val(&config), address);
        told.is_ok() && config[0] != 0
    }

    pub(crate) fn set_registers(&self, registers: &user_regs_struct) -> io::Result<()> {
        let address = ptr::from_ref(registers).expose_provenance();
        request(libc::PTRACE_SETREGS, self.thread, 0, address).map(drop)
    }

    pub(crate) fn state(&self) -> io::Result<State> {
        let mut extended = vec![0; MAX_EXTENDED];
        let mut vector = iovec {
            iov_base: extended.as_mut_ptr().cast(),
            iov_len: extended.len(),
        };
        let address = (&raw mut vector).expose_provenance();
        request(libc::PTRACE_GETREGSET, self.thread, NT_X86_XSTATE, address)?;
        extended.truncate(vector.iov_len);
        Ok(State {
            general: self.registers()?,
            extended,
            blocked: self.blocked()?,
        })
    }

    /// Returns the signals that it blocks, as a set.
    pub(crate) fn blocked(&self) -> io::Result<u64> {
        let mut blocked = 0u64;
        let address = (&raw mut blocked).expose_provenance();
        request(
            libc::PTRACE_GETSIGMASK,
            self.thread,
            size_of::<u64>(),
            address,
        )?;
        Ok(blocked)
    }

    /// Sets all registers but the general ones.
    pub(crate) fn set_state(&self, state: &State) -> io::Result<()> {
        let mut vector = iovec {
            iov_base: state.extended.as_ptr().cast_mut().cast(),
            iov_len: state.extended.len(),
        };
        let address = (&raw mut vector).expose_provenance();
        request(libc::PTRACE_SETREGSET, self.thread, NT_X86_XSTATE, address)?;
        self.block(state.blocked)?;
        self.set_registers(&state.general)
    }

    /// Makes it block exactly these signals.
    pub(crate) fn block(&self, signals: u64) -> io::Result<()> {
        let address = (&raw const signals).expose_provenance();
        request(
            libc::PTRACE_SETSIGMASK,
            self.thread,
            size_of::<u64>(),
            address,
        )
        .map(drop)
    }

    /// Returns its filters of system calls. That needs CAP_SYS_ADMIN, and no filter of this
    /// process's own.
    pub(crate) fn filters(&self) -> io::Result<Filters> {
        let mut filters = Filters::new();
        loop {
            let index = filters.len();
            let read = |data| request(PTRACE_SECCOMP_GET_FILTER, self.thread, index, data);
            let len = match read(0) {
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(filters),
                len => len?,
            };
            // Only the thread, which is stopped, could change it.
            let mut filter = vec![Instruction::default(); len];
            read(filter.as_mut_ptr().expose_provenance())?;
            filters.push(filter);
        }
    }

    /// Returns the address that the thread registered for restartable sequences, if it did.
    pub(crate) fn rseq(&self) -> Option<u64> {
        let mut configuration = [0u64; 3];
        let address = (&raw mut configuration).expose_provenance();
        let len = size_of_val(&configuration);
        request(PTRACE_GET_RSEQ_CONFIGURATION, self.thread, len, address).ok()?;
        (configuration[0] != 0).then_some(configuration[0])
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        let soon = Instant::now() + Duration::from_secs(1);
        // It can only be released while it is stopped.
        if self.is_stopped || self.interrupt().is_ok() && matches!(self.wait(soon), Ok(Some(_))) {
            let signal = self.signal as usize;
            if request(libc::PTRACE_DETACH, self.thread, 0, signal).is_ok() {
                return;
            }
        }
        // It has ended. Its process cannot be waited for until this end is reaped. A child that
        // this process has started is left to the caller.
        if !process::is_own_child(self.id()) {
            let _ = self.wait(soon);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn the_end_of_a_child_of_ours_is_left_to_who_waits_for_the_child() {
        let mut child = Command::new("sh")
            .args(["-c", "read line; exit 7"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut tracee = Tracee::seize(child.id(), child.id()).unwrap();
        tracee.interrupt().unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        assert_eq!(tracee.wait(until).unwrap(), Some(Stop::Interrupted));
        tracee.run().unwrap();
        drop(child.stdin.take());
        assert_eq!(tracee.wait(until).unwrap(), Some(Stop::Ended));
        assert_eq!(child.wait().unwrap().code(), Some(7));
    }
}
