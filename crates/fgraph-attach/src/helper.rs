//! The thread that was made to load the library.
//!
//! It is stopped but while it does what it is told to. If this process ends, it gives back what was
//! opened and mapped, and ends.

use std::ffi::{CStr, CString};
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::mem::offset_of;
use std::thread;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::process;
use crate::ptrace::{Stop, Tracee};
use crate::stub::{self, Area, FILES, PARAMETERS, Parameters, Step, UPPER};
use crate::{LOADING, Library, Target};

/// Where the name of a file to make is, behind the parameters.
const NAME: u64 = UPPER - 256;

/// The thread in its area.
#[derive(Debug)]
pub(crate) struct Helper<'a> {
    target: &'a Target<'a>,
    tracee: Tracee,
    area: u64,
    parameters: Parameters,
}

/// Makes files that the process and this one share.
#[derive(Debug)]
pub struct Files<'a, 'b> {
    helper: &'a mut Helper<'b>,
}

impl Files<'_, '_> {
    /// Makes an empty file of memory in the process, of at most 100 bytes of name; seven at most.
    /// Returns it as this process has it open, for reading and writing, and its descriptor in that
    /// one. There it is the library's to close, once its function is called; it can be sealed, and
    /// is closed when the process executes another program.
    ///
    /// # Errors
    ///
    /// What the kernel says in either process.
    pub fn create(&mut self, name: &CStr) -> io::Result<(File, u32)> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        let made = self.helper.make_file(name, flags, 1);
        let descriptor = made.map_err(|e| match e {
            Error::Call { source, .. } | Error::Io { source, .. } => source,
            other => io::Error::other(other),
        })?;
        let path = format!("/proc/{}/fd/{descriptor}", self.helper.target.pid);
        let file = File::options().read(true).write(true).open(path)?;
        Ok((file, descriptor as u32))
    }
}

impl<'a> Helper<'a> {
    /// The thread that was made with `parameters`, in the area at `area`.
    pub(crate) fn find(
        target: &'a Target<'a>,
        area: u64,
        parameters: Parameters,
    ) -> Result<Self, Error> {
        let pid = target.pid;
        let explained = |source| process::explain(pid, source);
        let at = area + Parameters::at(offset_of!(Parameters, thread));
        let until = Instant::now() + LOADING;
        let number = loop {
            match target.memory.word(at).map_err(explained)? {
                0 if Instant::now() >= until => return Err(Error::Gone { pid }),
                0 => thread::sleep(Duration::from_micros(50)),
                number => break number as u32,
            }
        };
        let thread = process::thread_called(pid, number).ok_or(Error::Gone { pid })?;
        let mut helper = Self {
            target,
            tracee: Tracee::seize(thread).map_err(explained)?,
            area,
            parameters,
        };
        helper.stop()?;
        helper.parameters.thread = u64::from(number);
        // Until here the area stays, whatever becomes of the thread.
        helper.parameters.is_alone = 1;
        helper.write(Area::new())?;
        Ok(helper)
    }

    /// Loads the library, and calls its function. Returns what that returns.
    pub(crate) fn load(
        &mut self,
        library: &Library<'_>,
        prepare: impl FnOnce(&mut Files<'_, 'a>) -> io::Result<Vec<u8>>,
    ) -> Result<i32, Error> {
        let file = match self.target.present {
            Some(_) => None,
            None => Some(self.add_file(library)?),
        };
        let prepared = prepare(&mut Files { helper: self });
        let argument = prepared.map_err(|source| Error::Io {
            what: "what the library is told could not be prepared",
            source,
        })?;
        let mut upper = Area::new();
        let base = self.area + PARAMETERS;
        if let Some(file) = file {
            let path = format!("/proc/self/fd/{file}\0");
            self.parameters.path = base + upper.add(path.as_bytes(), 1);
            self.parameters.name = base + upper.add(library.entry.to_bytes_with_nul(), 1);
        }
        self.parameters.argument = base + upper.add(&argument, 16);
        self.parameters.argument_len = argument.len() as u64;
        self.write(upper)?;
        let done = self.run(Step::Load)?;
        self.parameters.files[1..].fill(-1);
        if done == stub::LOADED {
            return Ok(self.word(offset_of!(Parameters, result))? as i32);
        }
        let message = self.word(offset_of!(Parameters, message))?;
        let message = self.target.memory.text(message, 1024).unwrap_or_default();
        Err(Error::Refused { message })
    }

    /// Has it give back all, and end.
    pub(crate) fn end(mut self) -> Result<(), Error> {
        let run = self.go_to(Step::Leave);
        run.map_err(|source| process::explain(self.target.pid, source))?;
        let until = Instant::now() + LOADING;
        // It has ended if that cannot be told.
        while let Ok(Some(stop)) = self.tracee.wait(until)
            && stop != Stop::Ended
            && self.tracee.run().is_ok()
        {}
        Ok(())
    }

    /// Makes a file that holds the library. Returns its descriptor.
    fn add_file(&mut self, library: &Library<'_>) -> Result<i32, Error> {
        let name = format!("{}-{}", library.name, library.version);
        let name = CString::new(name).map_err(|error| Error::Io {
            what: "the library's name has a zero",
            source: error.into(),
        })?;
        let flags = libc::MFD_CLOEXEC | libc::MFD_EXEC;
        let file = match self.make_file(&name, flags, 0) {
            // Kernels before Linux 6.3 have all such files executable, and no flag for it.
            Err(Error::Call { source, .. }) if source.raw_os_error() == Some(libc::EINVAL) => {
                self.make_file(&name, libc::MFD_CLOEXEC, 0)?
            }
            file => file?,
        };
        let path = format!("/proc/{}/fd/{file}", self.target.pid);
        let opened = OpenOptions::new().write(true).open(path);
        let written = opened.and_then(|mut opened| opened.write_all(library.bytes));
        written.map_err(|source| Error::Io {
            what: "the library could not be written to the process's memory",
            source,
        })?;
        Ok(file)
    }

    /// Makes a file of memory, of which the descriptor is put at the first free place from `from`
    /// on. Returns the descriptor.
    fn make_file(&mut self, name: &CStr, flags: u32, from: usize) -> Result<i32, Error> {
        let failed = |error| Error::Call {
            name: "memfd_create",
            source: io::Error::from_raw_os_error(error),
        };
        let free = (from..FILES).find(|&at| self.parameters.files[at] < 0);
        let at = free.ok_or_else(|| failed(libc::EMFILE))?;
        let name = name.to_bytes_with_nul();
        if name.len() as u64 > UPPER - NAME {
            return Err(failed(libc::EINVAL));
        }
        let base = self.area + PARAMETERS;
        self.parameters.name = base + NAME;
        self.parameters.flags = u64::from(flags);
        self.parameters.slot = base + (offset_of!(Parameters, files) + 4 * at) as u64;
        let written = self.target.memory.write(base + NAME, name);
        written.map_err(|e| self.unwritten(e))?;
        self.write(Area::new())?;
        self.run(Step::Make)?;
        let result = self.word(offset_of!(Parameters, result))? as i32;
        if result < 0 {
            return Err(failed(-result));
        }
        self.parameters.files[at] = result;
        Ok(result)
    }

    fn unwritten(&self, source: io::Error) -> Error {
        Error::Io {
            what: "the process's memory could not be written to",
            source,
        }
    }

    /// Writes the parameters, and what is behind them.
    fn write(&self, upper: Area) -> Result<(), Error> {
        let bytes = upper.finish(&self.parameters);
        let base = self.area + PARAMETERS;
        let written = bytes.and_then(|bytes| self.target.memory.write(base, &bytes));
        written.map_err(|e| self.unwritten(e))
    }

    fn word(&self, field: usize) -> Result<u64, Error> {
        let word = self.target.memory.word(self.area + Parameters::at(field));
        word.map_err(|source| process::explain(self.target.pid, source))
    }

    fn go_to(&mut self, step: Step) -> io::Result<()> {
        let mut general = self.tracee.registers()?;
        general.rip = self.area + step.at();
        general.orig_rax = u64::MAX;
        self.tracee.set_registers(&general)?;
        self.tracee.run()
    }

    /// Has the stopped thread do something, and stops it again. Returns what it says that it has
    /// done.
    fn run(&mut self, step: Step) -> Result<u64, Error> {
        let explained = |source| process::explain(self.target.pid, source);
        let memory = self.target.memory;
        let done = self.area + Parameters::at(offset_of!(Parameters, done));
        self.go_to(step).map_err(explained)?;
        let until = Instant::now() + LOADING;
        let is_done = self
            .tracee
            .run_until(until, || Ok(memory.word(done)? != 0))
            .map_err(explained)?;
        if !is_done {
            return Err(Error::Unfinished {
                thread: self.tracee.id(),
            });
        }
        self.stop()?;
        self.word(offset_of!(Parameters, done))
    }

    /// Stops it where it waits to be told something; an error if it waits no more.
    fn stop(&mut self) -> Result<(), Error> {
        let explained = |source| process::explain(self.target.pid, source);
        let stopped = self.tracee.stop(Instant::now() + LOADING);
        let waiting = self.area..self.area + Step::Leave.at();
        if stopped.map_err(explained)? {
            let at = self.tracee.registers().map_err(explained)?.rip;
            if waiting.contains(&at) {
                return Ok(());
            }
        }
        Err(Error::Io {
            what: "the thread that was to load the library waited no longer",
            source: io::ErrorKind::TimedOut.into(),
        })
    }
}
