//! The new thread that loads the library.
//!
//! It is stopped except while it executes a step. If this process ends, the thread closes and
//! unmaps all that it has opened and mapped, and exits.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::os::fd::AsRawFd as _;
use std::thread;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::process;
use crate::ptrace::{Stop, Tracee};
use crate::sharing::{self, Socket};
use crate::signals::{Whose, unblocked_in_functions};
use crate::stub::{self, Area, FILES, PARAMETERS, Parameters, Received, Step};
use crate::{LOADING, Library, Target};

/// The new thread in its area.
#[derive(Debug)]
pub(crate) struct Helper<'a> {
    target: &'a Target<'a>,
    tracee: Tracee,
    area: u64,
    parameters: Parameters,
    /// This process's end of the socket for files, once it exists.
    socket: Option<Socket>,
}

/// Shares files of this process with the other one.
#[derive(Debug)]
pub struct Files<'a, 'b> {
    helper: &'a mut Helper<'b>,
}

impl Files<'_, '_> {
    /// Makes an empty memory file, with a name of at most 249 bytes, which can be sealed, and
    /// [shares](Self::share) it.
    ///
    /// # Errors
    ///
    /// The kernel's error, in either process.
    pub fn create(&mut self, name: &CStr) -> io::Result<(File, u32)> {
        let file = sharing::memory_file(name, false)?;
        let descriptor = self.share(&file)?;
        Ok((file, descriptor))
    }

    /// Shares a memory file with the process, for reading and writing: seven at most. Returns the
    /// descriptor in that process. The library must close it once its function was called. It is
    /// closed when the process executes another program. Position and locks of the file are its
    /// own.
    ///
    /// # Errors
    ///
    /// The kernel's error, in either process.
    pub fn share(&mut self, file: &File) -> io::Result<u32> {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let opened = File::options().read(true).write(true).open(path)?;
        let passed = self.helper.pass(&opened, 1);
        let descriptor = passed.map_err(|e| match e {
            Error::Call { source, .. } | Error::Io { source, .. } => source,
            other => io::Error::other(other),
        })?;
        Ok(descriptor as u32)
    }
}

impl<'a> Helper<'a> {
    /// Finds the thread that was made with `parameters`, in the area at `area`.
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
            tracee: Tracee::seize(pid, thread).map_err(explained)?,
            area,
            parameters,
            socket: None,
        };
        helper.stop()?;
        helper.parameters.thread = u64::from(number);
        helper.parameters.unblocked = unblocked_in_functions(Whose::Ours);
        // Until here the area stays, whether or not the thread lives.
        helper.parameters.is_alone = 1;
        helper.write(Area::new())?;
        Ok(helper)
    }

    /// Loads the library, and calls its function. Returns the function's result.
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
            let (path, shown) = names(library, file);
            self.parameters.path = base + upper.add(&path, 1);
            self.parameters.shown = base + upper.add(&shown, 1);
            self.parameters.path_len = path.len() as u64;
            self.parameters.name = base + upper.add(library.entry.to_bytes_with_nul(), 1);
        }
        self.parameters.argument = base + upper.add(&argument, 16);
        self.parameters.argument_len = argument.len() as u64;
        self.write(upper)?;
        let done = self.run(Step::Load)?;
        self.parameters.files[1..].fill(Received::NONE);
        if done == stub::LOADED {
            return Ok(self.word(offset_of!(Parameters, result))? as i32);
        }
        let message = self.word(offset_of!(Parameters, message))?;
        let message = match message {
            // The process has no `dlerror` to call.
            0 => "the dynamic linker gave no reason".to_owned(),
            _ => self.target.memory.text(message, 1024).unwrap_or_default(),
        };
        Err(Error::Refused { message })
    }

    /// Makes the thread release everything, and end.
    pub(crate) fn end(mut self) -> Result<(), Error> {
        let run = self.go_to(Step::Leave);
        run.map_err(|source| process::explain(self.target.pid, source))?;
        let until = Instant::now() + LOADING;
        // If that cannot be determined, the thread has ended.
        while let Ok(Some(stop)) = self.tracee.wait(until)
            && stop != Stop::Ended
            && self.tracee.run().is_ok()
        {}
        Ok(())
    }

    /// Shares a file with the library. Returns its descriptor in the process.
    fn add_file(&mut self, library: &Library<'_>) -> Result<i32, Error> {
        let name = CString::new(file_name(library)).map_err(|error| Error::Io {
            what: "the library's name has a zero",
            source: error.into(),
        })?;
        let made = sharing::library_file(&name, library.bytes);
        let file = made.map_err(|source| Error::Io {
            what: "no file could be made for the library",
            source,
        })?;
        self.pass(&file, 0)
    }

    /// Shares a file, whose descriptor is put at the first free place from `from` on. Returns the
    /// descriptor.
    fn pass(&mut self, file: &File, from: usize) -> Result<i32, Error> {
        let failed = |source| Error::Call {
            name: "recvmsg",
            source,
        };
        let free = (from..FILES).find(|&at| self.parameters.files[at] == Received::NONE);
        let at = free.ok_or_else(|| failed(io::Error::from_raw_os_error(libc::EMFILE)))?;
        let socket = match self.socket.take() {
            Some(socket) => socket,
            None => self.open_socket()?,
        };
        let sent = socket.send(file);
        self.socket = Some(socket);
        sent.map_err(|source| Error::Io {
            what: "a file could not be sent to the process",
            source,
        })?;
        let place = |field: usize| self.area + Parameters::at(field);
        let slot = offset_of!(Parameters, files) + at * size_of::<Received>();
        self.parameters.part = [place(offset_of!(Parameters, byte)), 1];
        self.parameters.header = [
            0,
            0,
            place(offset_of!(Parameters, part)),
            1,
            place(slot),
            size_of::<Received>() as u64,
            0,
        ];
        let header = place(offset_of!(Parameters, header));
        let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        let end = self.parameters.sockets[1] as u64;
        self.call("recvmsg", libc::SYS_recvmsg, [end, header, flags as u64, 0])?;
        let descriptor = self.word(slot + offset_of!(Received, descriptor))? as i32;
        if descriptor < 0 {
            let why = "it has as many descriptors as it may have, or a security module forbids it";
            return Err(failed(io::Error::other(why)));
        }
        self.parameters.files[at].descriptor = descriptor;
        Ok(descriptor)
    }

    /// Makes the process create a pair of sockets, and takes one end.
    fn open_socket(&mut self) -> Result<Socket, Error> {
        let field = offset_of!(Parameters, sockets);
        let (domain, kind) = (libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC);
        let ends = self.area + Parameters::at(field);
        self.call(
            "socketpair",
            libc::SYS_socketpair,
            [domain as u64, kind as u64, 0, ends],
        )?;
        let ends = self.word(field)?;
        self.parameters.sockets = [ends as i32, (ends >> 32) as i32];
        let taken = Socket::take(self.target.pid, self.parameters.sockets[0]);
        taken.map_err(|source| Error::Io {
            what: match source.kind() {
                io::ErrorKind::InvalidData => {
                    "the process has put something else where its socket was"
                }
                _ => "the process's socket could not be taken (pidfd_getfd, Linux 5.6 or later)",
            },
            source,
        })
    }

    /// Makes the process execute a system call.
    fn call(&mut self, name: &'static str, number: i64, arguments: [u64; 4]) -> Result<(), Error> {
        self.parameters.number = number as u64;
        self.parameters.arguments = arguments;
        self.write(Area::new())?;
        self.run(Step::Call)?;
        match self.word(offset_of!(Parameters, result))? as i64 {
            error @ -4095..0 => Err(Error::Call {
                name,
                source: io::Error::from_raw_os_error(-error as i32),
            }),
            _ => Ok(()),
        }
    }

    fn unwritten(&self, source: io::Error) -> Error {
        Error::Io {
            what: "the process's memory could not be written to",
            source,
        }
    }

    /// Writes the parameters, and the data behind them.
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

    /// Makes the stopped thread execute a step, and stops it again. Returns the step that it
    /// reports as done.
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

    /// Stops the thread where it waits for a step; an error if it no longer waits.
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

/// Returns the name of the file with the library.
fn file_name(library: &Library<'_>) -> String {
    format!("{}-{}", library.name, library.version)
}

/// Returns the path by which the linker finds the descriptor `file`, and the name of the same
/// length that it must keep instead.
///
/// Debuggers and programs open the names of libraries. The path would lead them to one of their own
/// files, or to a pipe. The name is the one in the process's maps, and that of no file. The path is
/// longer than necessary: no program opens its own files by such a path.
fn names(library: &Library<'_>, file: i32) -> (Vec<u8>, Vec<u8>) {
    let mut shown = format!("/memfd:{} (deleted)\0", file_name(library)).into_bytes();
    let (start, end) = ("/proc/self/fd/", format!("{file}\0"));
    let room = shown.len().saturating_sub(start.len() + end.len());
    let path = format!("{start}{}{end}", "./".repeat(room.div_ceil(2).max(1)));
    shown.resize(path.len(), 0);
    (path.into_bytes(), shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_that_is_kept_is_as_long_as_the_path() {
        for (name, file) in [
            ("", 3),
            ("a", 12),
            ("fgraph-agent", 7),
            ("even-longer", 1234),
        ] {
            let library = Library {
                name,
                version: "12",
                bytes: &[],
                entry: c"",
                calls: &[],
                calls_elsewhere: &[],
            };
            let (path, shown) = names(&library, file);
            assert_eq!(path.len(), shown.len());
            let [path, shown] = [&path, &shown].map(|it| CStr::from_bytes_until_nul(it).unwrap());
            assert!(path.to_bytes().ends_with(format!("./{file}").as_bytes()));
            assert_eq!(
                shown.to_str().unwrap(),
                format!("/memfd:{name}-12 (deleted)")
            );
        }
    }
}
