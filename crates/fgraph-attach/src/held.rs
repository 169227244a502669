//! Work of a stopped thread for the library: it makes a thread, and continues where it was.
//!
//! The thread is stopped at these points:
//!
//! 1. when it begins a system call;
//! 2. when the system call ends that it has made in place of that one;
//! 3. when it has made the thread.
//!
//! A thread that is found elsewhere is stopped once more, where it begins the call for us. After
//! each stop it waits for a processor again, so nothing else is done here.

use std::io;
use std::mem::{self, offset_of};
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::calls::Caller;
use crate::error::{Error, Unsuitable};
use crate::place::Held;
use crate::process;
use crate::signals;
use crate::stub::{self, AREA, Area, PAGE, PARAMETERS, Parameters};
use crate::{LOADING, Target};

/// Bytes below the stack pointer that a function may use.
const RED_ZONE: u64 = 128;
/// Time limit for work that the kernel does at once.
const SOON: Duration = Duration::from_secs(1);

/// Interruption of a thread's own work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pause {
    pub(crate) thread: u32,
    pub(crate) paused: Duration,
    /// Number of the system call that it was in and that ends with `EINTR`.
    pub(crate) interrupted: Option<i64>,
}

impl Held {
    /// Makes the thread start a new thread that waits in an area of memory, and releases it.
    /// Returns the address of the area.
    pub(crate) fn make_thread(
        mut self,
        target: &Target<'_>,
        parameters: &mut Parameters,
    ) -> Result<(u64, Pause), Error> {
        let mut maker = Maker {
            target,
            held: &mut self,
            back: None,
            area: None,
            has_run: false,
        };
        let made = maker.make(parameters);
        let ended = match &made {
            // The thread is still working.
            Err(Error::Unfinished { .. }) => Ok(()),
            made => maker.end(made.is_err()),
        };
        let thread = self.tracee.id();
        drop(self.tracee);
        let pause = Pause {
            thread,
            paused: self.since.elapsed(),
            interrupted: self.interrupted,
        };
        let area = made?;
        ended.map_err(|source| process::explain(target.pid, source))?;
        Ok((area, pause))
    }
}

#[derive(Debug)]
struct Maker<'a> {
    target: &'a Target<'a>,
    held: &'a mut Held,
    /// Address on the thread's stack that leads back to its place; `None` if the size of its stack
    /// is unknown.
    back: Option<u64>,
    area: Option<u64>,
    /// True if the thread runs, or has run, the instructions in the area.
    has_run: bool,
}

impl Maker<'_> {
    fn gone(&self, source: io::Error) -> Error {
        process::explain(self.target.pid, source)
    }

    fn make(&mut self, parameters: &mut Parameters) -> Result<u64, Error> {
        let memory = self.target.memory;
        self.lead_back()?;
        let blocked = self.held.tracee.block(signals::BLOCKED);
        blocked.map_err(|e| self.gone(e))?;
        let protection = libc::PROT_READ | libc::PROT_EXEC;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let arguments = [0, AREA, protection as u64, flags as u64, u64::MAX, 0];
        let area = self.call("mmap", libc::SYS_mmap, arguments);
        let area = area.map_err(|error| self.forbidden(error))?;
        self.area = Some(area);
        let base = area + PARAMETERS;
        let mut upper = Area::new();
        parameters.frame = upper.add_frame(&self.held.state, base, 0);
        let unwritten = |source| Error::Io {
            what: "the process's memory could not be written to",
            source,
        };
        let upper = upper.finish(parameters).map_err(unwritten)?;
        let write = || {
            memory.write(base, &upper)?;
            memory.write(area, stub::code())
        };
        if write().is_err() {
            // The kernel may forbid writes to memory that the process may not write: then use two
            // steps.
            self.protect(area, AREA, libc::PROT_READ | libc::PROT_WRITE)?;
            write().map_err(unwritten)?;
            self.protect(area, PAGE, protection)?;
        }
        self.run(area, base)?;
        self.wait(area)?;
        let result = memory.word(area + Parameters::at(offset_of!(Parameters, result)));
        let pid = self.target.pid;
        match result.map_err(|e| self.gone(e))? {
            0 => Ok(area),
            error if error as i64 == stub::NO_THREADS => {
                let why = Unsuitable::NoThreads;
                Err(Error::Unsuitable { pid, why })
            }
            error => Err(Error::Call {
                name: "pthread_create",
                source: io::Error::from_raw_os_error(error as i32),
            }),
        }
    }

    fn protect(&mut self, at: u64, len: u64, protection: i32) -> Result<(), Error> {
        let arguments = [at, len, protection as u64, 0, 0, 0];
        let protected = self.call("mprotect", libc::SYS_mprotect, arguments);
        protected.map(drop).map_err(|error| self.forbidden(error))
    }

    /// Returns why memory for instructions is refused, if it is.
    fn forbidden(&self, error: Error) -> Error {
        match error {
            Error::Call { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                let (pid, why) = (self.target.pid, Unsuitable::NoExecutableMemory);
                Error::Unsuitable { pid, why }
            }
            error => error,
        }
    }

    /// Makes sure that the thread continues where it was, with all registers, if this process ends
    /// from now on. Its next step then leads to a frame on its stack, below all memory that it
    /// uses.
    fn lead_back(&mut self) -> Result<(), Error> {
        let state = &self.held.state;
        let Some(&restorer) = self.target.restorers.first() else {
            return Ok(());
        };
        let (base, bytes, back) =
            stub::frame_below(state.general.rsp.saturating_sub(RED_ZONE), state, restorer);
        let has = |range: &Range<u64>| range.contains(&base) && range.contains(&state.general.rsp);
        if !self.held.stack.as_ref().is_some_and(has)
            || self.target.memory.write(base, &bytes).is_err()
        {
            return Ok(());
        }
        self.back = Some(back);
        let mut general = state.general;
        general.rip = restorer;
        general.rsp = back + 8;
        general.orig_rax = u64::MAX;
        let set = self.held.tracee.set_registers(&general);
        set.map_err(|e| self.gone(e))
    }

    /// Makes the thread run the instructions in the area.
    fn run(&mut self, area: u64, base: u64) -> Result<(), Error> {
        let mut general = self.held.state.general;
        general.rip = area;
        general.rsp = base;
        general.rbx = base;
        general.orig_rax = u64::MAX;
        // Interrupts are on; direction and trap flags are clear.
        general.eflags = 0x202;
        self.has_run = true;
        let tracee = &mut self.held.tracee;
        let run = tracee.set_registers(&general).and_then(|()| tracee.run());
        run.map_err(|e| self.gone(e))
    }

    /// Waits until the thread reports that it is done.
    fn wait(&mut self, area: u64) -> Result<(), Error> {
        let done = area + Parameters::at(offset_of!(Parameters, done));
        let thread = self.held.tracee.id();
        self.held
            .tracee
            .run_until(Instant::now() + LOADING, || {
                Ok(self.target.memory.word(done)? != 0)
            })
            .map_err(|e| self.gone(e))?
            .then_some(())
            .ok_or(Error::Unfinished { thread })
    }

    fn call(&mut self, name: &'static str, number: i64, arguments: [u64; 6]) -> Result<u64, Error> {
        let mut general = self.held.state.general;
        if let Some(back) = self.back {
            general.rsp = back;
        }
        let mut caller = Caller {
            general,
            begins: mem::take(&mut self.held.begins),
            tracee: &mut self.held.tracee,
            instruction: self.target.call,
            until: Instant::now() + SOON,
        };
        caller
            .call(number, arguments)
            .map_err(|source| Error::Call { name, source })
    }

    /// Releases the thread, which continues where it was.
    fn end(&mut self, has_failed: bool) -> io::Result<()> {
        self.stop()?;
        if self.has_run && !self.is_in_area()? {
            // It took so long that the thread continued by itself.
            return Ok(());
        }
        if has_failed && let Some(area) = self.area {
            // If this fails too, the area stays, and does no harm.
            let _ = self.call("munmap", libc::SYS_munmap, [area, AREA, 0, 0, 0, 0]);
            // The kernel restarts a system call only if the thread was told to stop.
            self.stop()?;
        }
        self.held.tracee.set_state(&self.held.state)
    }

    fn is_in_area(&self) -> io::Result<bool> {
        let at = self.held.tracee.registers()?.rsp;
        Ok(self
            .area
            .is_some_and(|area| (area..=area + AREA).contains(&at)))
    }

    fn stop(&mut self) -> io::Result<()> {
        match self.held.tracee.stop(Instant::now() + SOON)? {
            true => Ok(()),
            false => Err(io::Error::from_raw_os_error(libc::ESRCH)),
        }
    }
}
