//! Loads a library into a process that runs.
//!
//! One thread of the process is held where it is in the middle of nothing (see `place.rs`). It
//! loads the library, calls a function of it, and goes on where it was, with every register as it
//! was. The other threads run all the time. The library comes to the process as memory, so that
//! neither namespaces nor rights of files matter. If this process ends in between, at any time, the
//! thread goes on by itself.
//!
//! # Safety
//!
//! All functions here are safe for the calling process. What the library does to the other one is
//! its own affair, as with a debugger.

mod calls;
mod error;
mod maps;
mod memory;
mod modules;
mod place;
mod process;
mod ptrace;
mod stub;
mod traps;

use std::ffi::{CStr, CString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::ops::Range;
use std::time::{Duration, Instant};

use calls::Caller;
use memory::Memory;
use modules::{Export, Module};
use place::{Held, Places};
use ptrace::Stop;
use stub::{Area, Parameters};

pub use error::{Error, Obstacle, Unsuitable};
pub use traps::unblock_traps;

/// How long to wait for a thread that can load a library.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long loading may take.
const LOADING: Duration = Duration::from_secs(10);
/// Bytes of the stack on which the library is loaded.
const STACK: u64 = 1 << 20;
/// Bytes above it, for parameters.
const UPPER: u64 = 128 << 10;
const PAGE: u64 = 4096;
/// Bytes below the stack pointer that a function may use.
const RED_ZONE: u64 = 128;
/// `mov rax, SYS_rt_sigreturn; syscall`: where handlers of signals return to.
const RESTORER: &[u8] = &[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
/// `syscall; ret`
const CALL: &[u8] = &[0x0f, 0x05, 0xc3];

/// A library, and the function of it that is called.
#[derive(Clone, Copy, Debug)]
pub struct Library<'a> {
    /// What it is called, without its version, as `fgraph-agent`.
    pub name: &'a str,
    /// Its version. Of two versions only one can be in a process, also where the process has loaded
    /// it from a file `name-version.so`.
    pub version: &'a str,
    /// Its file.
    pub bytes: &'a [u8],
    /// A function `int (*)(const void *argument, size_t len)` that it exports. It is called on a
    /// stack of a megabyte, with all signals blocked but those of faults and traps.
    pub entry: &'a CStr,
}

/// What came of loading a library.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Loaded {
    /// What the library's function returned.
    pub result: i32,
    /// The thread that called it.
    pub thread: u32,
    /// Whether the library was there before.
    pub was_loaded: bool,
    /// How long that thread was kept from its own work.
    pub paused: Duration,
    /// The number of the system call that the thread was in, if that ended with `EINTR` because the
    /// kernel does not make it anew.
    pub interrupted: Option<i64>,
}

/// Looks whether this process may look into process `pid`, which is no harm to it.
///
/// # Errors
///
/// See [`Error`]: why it may not, or why the process takes no library as far as its status says.
pub fn check(pid: u32) -> Result<(), Error> {
    process::check(pid)?;
    let opened = Memory::open(pid);
    opened
        .map(drop)
        .map_err(|source| process::explain(pid, source))
}

/// Loads a library into process `pid`, and calls its function with a copy of `argument`, of at
/// most 64 KiB, which is gone when that returns. A library that is there already is not loaded
/// again.
///
/// This takes a few milliseconds where a thread waits or makes system calls, and at most five
/// seconds until it gives up.
///
/// # Errors
///
/// See [`Error`].
///
/// # Examples
///
/// ```no_run
/// use fgraph_attach::{Library, load};
///
/// let bytes = std::fs::read("libagent.so")?;
/// let library = Library {
///     name: "agent",
///     version: env!("CARGO_PKG_VERSION"),
///     bytes: &bytes,
///     entry: c"agent_start",
/// };
/// let loaded = load(1234, &library, b"verbose")?;
/// println!("thread {} was held for {:?}", loaded.thread, loaded.paused);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn load(pid: u32, library: &Library<'_>, argument: &[u8]) -> Result<Loaded, Error> {
    load_with(pid, library, |_| Ok(argument.to_vec()))
}

/// As [`load`], with an argument that is only known when the process is held: `prepare` makes files
/// of memory that both processes have open, and says what the function is told. The thread waits
/// for it.
///
/// # Errors
///
/// See [`Error`]; those of `prepare` are [`Error::Io`].
pub fn load_with(
    pid: u32,
    library: &Library<'_>,
    prepare: impl FnOnce(&mut Files<'_, '_>) -> io::Result<Vec<u8>>,
) -> Result<Loaded, Error> {
    process::check(pid)?;
    let memory = Memory::open(pid).map_err(|source| process::explain(pid, source))?;
    let target = Target::read(pid, &memory, library)?;
    target.check()?;
    let mut held = target.places().hold(Instant::now() + PATIENCE)?;
    let mut session = Session {
        target: &target,
        held: &mut held,
        mapped: Vec::new(),
        file: None,
        shared: Vec::new(),
        back: None,
    };
    let loaded = session.load(library, prepare);
    let ended = match &loaded {
        // The thread is still at it.
        Err(Error::Unfinished { .. }) => Ok(()),
        _ => session.end(),
    };
    let loaded = loaded?;
    ended.map_err(|source| process::explain(pid, source))?;
    Ok(Loaded {
        thread: held.tracee.id(),
        paused: held.since.elapsed(),
        interrupted: held.interrupted,
        ..loaded
    })
}

/// What is known of the process before a thread of it is held.
#[derive(Debug)]
struct Target<'a> {
    pid: u32,
    memory: &'a Memory,
    modules: Vec<Module>,
    linker: Option<usize>,
    /// The program's linker, as the program names it.
    interpreter: Option<String>,
    exports: Vec<Vec<Export>>,
    /// Where the library is, if it is there.
    present: Option<usize>,
    /// The C library's instructions, if it has one.
    libc: Vec<u8>,
    libc_start: u64,
}

impl<'a> Target<'a> {
    fn read(pid: u32, memory: &'a Memory, library: &Library<'_>) -> Result<Self, Error> {
        let unread = |source| process::explain(pid, source);
        let maps = maps::of(pid).map_err(unread)?;
        let modules = modules::of(&maps, memory);
        let auxiliary = fs::read(format!("/proc/{pid}/auxv")).map_err(unread)?;
        let has = |at: u64| modules.iter().position(|module| module.range.contains(&at));
        let linker = auxiliary_value(&auxiliary, libc::AT_BASE).and_then(has);
        let program = auxiliary_value(&auxiliary, libc::AT_PHDR).and_then(has);
        let Some(program) = program else {
            let why = Unsuitable::Architecture;
            return Err(Error::Unsuitable { pid, why });
        };
        let version = |module: &Module| {
            let version = file_name(&module.path).strip_prefix(library.name)?;
            version.strip_prefix('-').map(str::to_owned)
        };
        let ours = modules.iter().position(|module| version(module).is_some());
        if let Some(ours) = ours
            && version(&modules[ours]).as_deref() != Some(library.version)
        {
            let found = modules[ours].path.clone();
            return Err(Error::OtherVersion { found });
        }
        let exports = modules
            .iter()
            .map(|module| module.exports(memory))
            .collect();
        let mut target = Self {
            pid,
            memory,
            interpreter: modules[program].interpreter.clone(),
            modules,
            linker,
            exports,
            present: ours,
            libc: Vec::new(),
            libc_start: 0,
        };
        if let Some(text) = target.libc_text() {
            let len = (text.end - text.start).min(16 << 20) as usize;
            target.libc = memory.bytes(text.start, len).map_err(unread)?;
            target.libc_start = text.start;
        }
        Ok(target)
    }

    /// Refuses programs that cannot load libraries.
    fn check(&self) -> Result<(), Error> {
        let pid = self.pid;
        let refuse = |why| Err(Error::Unsuitable { pid, why });
        let Some(interpreter) = &self.interpreter else {
            return refuse(Unsuitable::Static);
        };
        if self.linker.is_none() {
            return refuse(Unsuitable::Static);
        }
        if self.find(b"gnu_get_libc_version").is_none() {
            let linker = interpreter.clone();
            return refuse(Unsuitable::NotGlibc { linker });
        }
        if fs::symlink_metadata(format!("/proc/{pid}/root/proc/self")).is_err() {
            return refuse(Unsuitable::NoProc);
        }
        Ok(())
    }

    /// A function that a module exports.
    fn find(&self, name: &[u8]) -> Option<u64> {
        let mut found = self.exports.iter();
        found.find_map(|exports| modules::find(exports, name))
    }

    fn places(&self) -> Places<'_> {
        let has_allocator = |exports: &Vec<Export>| modules::find(exports, b"malloc").is_some();
        let modules = self.modules.iter().zip(&self.exports);
        let allocators = modules.filter(|(_, exports)| has_allocator(exports));
        Places {
            pid: self.pid,
            memory: self.memory,
            linker: &self.modules[self.linker.expect("checked before")],
            allocators: allocators.map(|(module, _)| module).collect(),
            restorers: self.all_of(RESTORER).collect(),
        }
    }

    /// Where these bytes are in the C library's text.
    fn all_of(&self, bytes: &[u8]) -> impl Iterator<Item = u64> {
        let found = memchr::memmem::find_iter(&self.libc, bytes);
        found.map(|at| self.libc_start + at as u64)
    }

    fn libc_text(&self) -> Option<Range<u64>> {
        let at = self.find(b"gnu_get_libc_version")?;
        let mut texts = self.modules.iter().flat_map(|module| &module.text);
        texts.find(|text| text.contains(&at)).cloned()
    }
}

/// What a library is called, be it memory or a file: `name-version` of `/memfd:name-version
/// (deleted)` and of `/usr/lib/name-version.so`.
fn file_name(path: &str) -> &str {
    let path = path.trim_end_matches(" (deleted)");
    let name = path.rsplit('/').next().unwrap_or(path);
    let name = name.strip_prefix("memfd:").unwrap_or(name);
    name.strip_suffix(".so").unwrap_or(name)
}

/// An entry of the auxiliary vector.
fn auxiliary_value(vector: &[u8], kind: u64) -> Option<u64> {
    let mut entries = vector.chunks_exact(16).map(|entry| {
        let (kind, value) = entry.split_at(8);
        [kind, value].map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
    });
    entries.find_map(|[found, value]| (found == kind && value != 0).then_some(value))
}

/// A held thread that loads the library.
#[derive(Debug)]
struct Session<'a> {
    target: &'a Target<'a>,
    held: &'a mut Held,
    /// What was mapped for it: start and length.
    mapped: Vec<(u64, u64)>,
    /// The descriptor of the library's file.
    file: Option<u64>,
    /// Descriptors of files that are to be the library's.
    shared: Vec<u64>,
    /// Where on the thread's stack an address stands that leads back to where it was; `None` if it
    /// cannot be told how much stack it has.
    back: Option<u64>,
}

/// Makes files that the process and this one share.
#[derive(Debug)]
pub struct Files<'a, 'b> {
    session: &'a mut Session<'b>,
    /// Where a name can be put.
    base: u64,
}

impl Files<'_, '_> {
    /// Makes an empty file of memory in the process, of at most 100 bytes of name. Returns it as
    /// this process has it open, for reading and writing, and its descriptor in that one. There it
    /// is the library's to close, once its function is called; it can be sealed, and is closed when
    /// the process executes another program.
    ///
    /// # Errors
    ///
    /// What the kernel says in either process.
    pub fn create(&mut self, name: &CStr) -> io::Result<(File, u32)> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        let descriptor = self
            .session
            .make_file(name, self.base, flags)
            .map_err(|e| match e {
                Error::Call { source, .. } | Error::Io { source, .. } => source,
                other => io::Error::other(other),
            })?;
        self.session.shared.push(descriptor);
        let path = format!("/proc/{}/fd/{descriptor}", self.session.target.pid);
        let file = File::options().read(true).write(true).open(path)?;
        Ok((file, descriptor as u32))
    }
}

impl Session<'_> {
    fn load(
        &mut self,
        library: &Library<'_>,
        prepare: impl FnOnce(&mut Files<'_, '_>) -> io::Result<Vec<u8>>,
    ) -> Result<Loaded, Error> {
        let memory = self.target.memory;
        let missing = |name: &'static str| Error::Call {
            name,
            source: io::Error::from_raw_os_error(libc::ENOSYS),
        };
        let function = |name: &'static str| {
            self.target
                .find(name.as_bytes())
                .ok_or_else(|| missing(name))
        };
        let mut parameters = Parameters {
            errno: function("__errno_location")?,
            dlopen: function("dlopen")?,
            dlsym: function("dlsym")?,
            dlerror: function("dlerror")?,
            ..stub::parameters()
        };
        let present = self.target.present;
        if let Some(present) = present {
            let found = modules::find(&self.target.exports[present], library.entry.to_bytes());
            parameters.function = found.ok_or_else(|| missing("the library's function"))?;
        }
        self.lead_back()?;
        self.held.tracee.block_signals().map_err(|e| self.gone(e))?;

        let write = libc::PROT_READ | libc::PROT_WRITE;
        let area = self.map(STACK + UPPER, write)?;
        self.call("mprotect", libc::SYS_mprotect, [area, PAGE, 0, 0, 0, 0])?;
        let code = self.map(PAGE, libc::PROT_READ | libc::PROT_EXEC)?;
        let base = area + STACK;
        if present.is_none() {
            self.file = Some(self.add_file(library, base)?);
        }
        let mut files = Files {
            session: self,
            base,
        };
        let argument = &prepare(&mut files).map_err(|source| Error::Io {
            what: "what the library is told could not be prepared",
            source,
        })?;
        let mut upper = Area::new();
        if let Some(file) = self.file {
            let path = format!("/proc/self/fd/{file}\0");
            parameters.path = base + upper.add(path.as_bytes(), 1);
            parameters.name = base + upper.add(library.entry.to_bytes_with_nul(), 1);
        }
        parameters.argument = base + upper.add(argument, 16);
        parameters.argument_len = argument.len() as u64;
        parameters.frame = upper.add_frame(&self.held.state, base, 0);
        let upper = upper.finish(&parameters);
        let written = match upper.len() as u64 <= UPPER {
            true => memory.write(base, &upper),
            false => Err(io::ErrorKind::ArgumentListTooLong.into()),
        };
        let written = written.and_then(|()| memory.write(code, stub::code()));
        written.map_err(|source| Error::Io {
            what: "the process's memory could not be written to",
            source,
        })?;
        self.run(code, base)?;
        self.shared.clear();

        let word = |offset: usize| memory.word(base + offset as u64);
        let done = std::mem::offset_of!(Parameters, done);
        let until = Instant::now() + LOADING;
        let thread = self.held.tracee.id();
        loop {
            let soon = Instant::now() + Duration::from_micros(50);
            match self.held.tracee.wait(soon).map_err(|e| self.gone(e))? {
                Some(Stop::Ended) => {
                    return Err(Error::Gone {
                        pid: self.target.pid,
                    });
                }
                // With the signal that it stopped by.
                Some(_) => self.held.tracee.run().map_err(|e| self.gone(e))?,
                None => {}
            }
            match word(done).map_err(|e| self.gone(e))? {
                stub::LOADED => break,
                stub::FAILED => {
                    let message = word(std::mem::offset_of!(Parameters, message));
                    let message = message.and_then(|at| memory.text(at, 1024));
                    let message = message.unwrap_or_default();
                    return Err(Error::Refused { message });
                }
                _ if Instant::now() >= until => return Err(Error::Unfinished { thread }),
                _ => {}
            }
        }
        let result = word(std::mem::offset_of!(Parameters, result)).map_err(|e| self.gone(e))?;
        Ok(Loaded {
            result: result as i32,
            thread,
            was_loaded: present.is_some(),
            paused: Duration::ZERO,
            interrupted: None,
        })
    }

    fn gone(&self, source: io::Error) -> Error {
        process::explain(self.target.pid, source)
    }

    /// Has the thread go on where it was, with all that it had, if this process ends from now on:
    /// what it then does leads to a frame on its stack, below all that it uses.
    fn lead_back(&mut self) -> Result<(), Error> {
        let state = &self.held.state;
        let Some(restorer) = self.target.all_of(RESTORER).next() else {
            return Ok(());
        };
        let (base, bytes, back) =
            stub::frame_below(state.general.rsp.saturating_sub(RED_ZONE), state, restorer);
        let maps = maps::of(self.target.pid).map_err(|e| self.gone(e))?;
        let is_own = |map: &maps::Mapping| {
            let has = |at: &u64| map.range.contains(at);
            let is_stack = map.path == "[stack]" || has(&state.general.fs_base);
            is_stack && has(&base) && has(&state.general.rsp)
        };
        if !maps.iter().any(is_own) || self.target.memory.write(base, &bytes).is_err() {
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

    /// Lets the thread run the instructions at `code` with the parameters at `base`.
    fn run(&mut self, code: u64, base: u64) -> Result<(), Error> {
        let mut general = self.held.state.general;
        general.rip = code;
        general.rsp = base;
        general.rbx = base;
        general.orig_rax = u64::MAX;
        // Interrupts are on; no direction, no trap.
        general.eflags = 0x202;
        let tracee = &mut self.held.tracee;
        let run = tracee.set_registers(&general).and_then(|()| tracee.run());
        run.map_err(|e| self.gone(e))
    }

    fn call(&mut self, name: &'static str, number: i64, arguments: [u64; 6]) -> Result<u64, Error> {
        let instruction = self.target.all_of(CALL).next().ok_or_else(|| Error::Call {
            name,
            source: io::Error::from_raw_os_error(libc::ENOSYS),
        })?;
        let mut general = self.held.state.general;
        if let Some(back) = self.back {
            general.rsp = back;
        }
        let mut caller = Caller {
            general,
            tracee: &mut self.held.tracee,
            instruction,
            until: Instant::now() + Duration::from_secs(1),
        };
        caller
            .call(number, arguments)
            .map_err(|source| Error::Call { name, source })
    }

    fn map(&mut self, len: u64, protection: i32) -> Result<u64, Error> {
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
        let arguments = [0, len, protection as u64, flags, u64::MAX, 0];
        let start = self.call("mmap", libc::SYS_mmap, arguments)?;
        self.mapped.push((start, len));
        Ok(start)
    }

    /// Makes a file in the process's memory that holds the library. Returns its descriptor.
    fn add_file(&mut self, library: &Library<'_>, base: u64) -> Result<u64, Error> {
        let name = format!("{}-{}", library.name, library.version);
        let name = CString::new(name).map_err(|error| Error::Io {
            what: "the library's name has a zero",
            source: error.into(),
        })?;
        let unwritten = |source| Error::Io {
            what: "the library could not be written to the process's memory",
            source,
        };
        let flags = libc::MFD_CLOEXEC | libc::MFD_EXEC;
        let file = match self.make_file(&name, base, flags) {
            // Kernels before Linux 6.3 have all such files executable, and no flag for it.
            Err(Error::Call { source, .. }) if source.raw_os_error() == Some(libc::EINVAL) => {
                self.make_file(&name, base, libc::MFD_CLOEXEC)?
            }
            file => file?,
        };
        let path = format!("/proc/{}/fd/{file}", self.target.pid);
        let opened = OpenOptions::new().write(true).open(path);
        let written = opened.and_then(|mut opened| opened.write_all(library.bytes));
        self.file = Some(file);
        written.map_err(unwritten)?;
        Ok(file)
    }

    /// Makes a file of memory. Returns its descriptor.
    fn make_file(&mut self, name: &CStr, base: u64, flags: u32) -> Result<u64, Error> {
        let written = self.target.memory.write(base, name.to_bytes_with_nul());
        written.map_err(|e| self.gone(e))?;
        let arguments = [base, u64::from(flags), 0, 0, 0, 0];
        self.call("memfd_create", libc::SYS_memfd_create, arguments)
    }

    /// Gives back what was mapped and opened, and lets the thread go on where it was.
    fn end(&mut self) -> io::Result<()> {
        let soon = || Instant::now() + Duration::from_secs(1);
        let gone = || io::Error::from_raw_os_error(libc::ESRCH);
        if !self.held.tracee.stop(soon())? {
            return Err(gone());
        }
        // What fails here stays, and does no harm.
        for (start, len) in std::mem::take(&mut self.mapped) {
            let _ = self.call("munmap", libc::SYS_munmap, [start, len, 0, 0, 0, 0]);
        }
        for file in self
            .file
            .take()
            .into_iter()
            .chain(std::mem::take(&mut self.shared))
        {
            let _ = self.call("close", libc::SYS_close, [file, 0, 0, 0, 0, 0]);
        }
        // Only where a thread was told to stop does the kernel make a system call anew.
        if !self.held.tracee.stop(soon())? {
            return Err(gone());
        }
        self.held.tracee.set_state(&self.held.state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_known_by_its_name_wherever_it_is() {
        assert_eq!(file_name("/memfd:agent-1 (deleted)"), "agent-1");
        assert_eq!(file_name("/run/user/0/fgraph/agent-1.so"), "agent-1");
        assert_eq!(file_name("/usr/lib/libc.so.6"), "libc.so.6");
    }
}
