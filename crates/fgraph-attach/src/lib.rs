//! Loads a library into a running process.
//!
//! One thread of the process is stopped where it is in the middle of nothing (see `place.rs`). It
//! makes a thread, and continues where it was, with every register restored (`held.rs`). The new
//! thread loads the library, calls a function of it, and ends (`helper.rs`). All other threads run
//! all the time. The library reaches the process as memory, so neither namespaces nor file
//! permissions matter. If this process ends meanwhile, at any time, both threads continue by
//! themselves.
//!
//! # Safety
//!
//! All functions here are safe for the calling process. The effects of the library on the other
//! process are the library's responsibility, as with a debugger.

mod callers;
mod calls;
mod error;
mod held;
mod helper;
mod maps;
mod memory;
mod modules;
mod place;
mod process;
mod ptrace;
mod sandbox;
mod seccomp;
mod sharing;
mod signals;
mod stub;
#[cfg(any(test, fgraph_testing))]
pub mod testing;
mod traps;

use std::cell::{Cell, RefCell};
use std::ffi::CStr;
use std::fs;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use helper::Helper;
use memchr::memmem;
use memory::Memory;
use modules::{Exports, Module};
use place::Places;
use sandbox::Sandboxes;
use stub::Parameters;

pub use error::{Error, Obstacle, Unfit, Unsuitable};
pub use helper::Files;
pub use traps::unblock_traps;

/// Time limit for finding a thread that can load a library.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time limit for loading.
const LOADING: Duration = Duration::from_secs(10);
/// Time limit for the C library of a program that has just been executed.
const STARTING: Duration = Duration::from_secs(2);
/// Interval between two checks of such a program.
const NAP: Duration = Duration::from_millis(5);
/// `mov rax, SYS_rt_sigreturn; syscall`: return address of signal handlers.
const RESTORER: &[u8] = &[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
/// `syscall; ret`
const CALL: &[u8] = &[0x0f, 0x05, 0xc3];

/// Symbols of modules that are searched for, besides the library's function.
const WANTED: &[&[u8]] = &[
    b"__errno_location",
    b"__libc_dlopen_mode",
    b"__libc_dlsym",
    b"__tsan_init",
    b"_r_debug",
    b"dlerror",
    b"dlopen",
    b"dlsym",
    b"gnu_get_libc_version",
    b"malloc",
    b"pthread_attr_init",
    b"pthread_attr_setdetachstate",
    b"pthread_attr_setstacksize",
    b"pthread_create",
];

/// Bit of the mode that `__libc_dlopen_mode` expects besides those of `dlopen`: `__RTLD_DLOPEN`.
const LIBC_DLOPEN: u64 = 0x8000_0000;

/// System calls of the constructor of libpthread before glibc 2.34.
const LIBPTHREAD_CALLS: [i64; 5] = [
    libc::SYS_set_tid_address,
    libc::SYS_set_robust_list,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_prlimit64,
];

/// Library, and the function of it that is called.
///
/// It is exhaustive, since callers write it as a literal: a new field breaks them.
#[derive(Clone, Copy, Debug)]
pub struct Library<'a> {
    /// Name without the version, such as `fgraph-agent`.
    pub name: &'a str,
    /// Version. A process can have only one version, even if it has loaded it from a file
    /// `name-version.so`.
    pub version: &'a str,
    /// Content of the library's file.
    pub bytes: &'a [u8],
    /// Exported function `int (*)(const void *argument, size_t len)`. It runs in a thread that is
    /// made for it, on a stack of two megabytes, with all signals blocked except those of faults
    /// and traps and the C library's own.
    pub entry: &'a CStr,
    /// Numbers of the system calls that it makes in threads of its own, directly and through other
    /// libraries. Nothing is loaded if a filter of the process makes one of them harmful. A call
    /// that fails does no harm.
    pub calls: &'a [i64],
    /// Numbers of the system calls that it makes in all threads of the process.
    pub calls_elsewhere: &'a [i64],
}

/// Result of loading a library.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Loaded {
    /// Result of the library's function.
    pub result: i32,
    /// Id of the thread that was stopped.
    pub thread: u32,
    /// True if the library was loaded before.
    pub was_loaded: bool,
    /// Time for which the stopped thread was kept from its own work.
    pub paused: Duration,
    /// Number of the system call that the thread was in, if that ended with `EINTR` because the
    /// kernel does not restart it.
    pub interrupted: Option<i64>,
}

/// Checks if this process may trace process `pid`, which does it no harm.
///
/// # Errors
///
/// Fails if this process has no right to trace `pid`, or if the status of `pid` shows that it
/// cannot load a library. The [`Error`] is the reason.
pub fn check(pid: u32) -> Result<(), Error> {
    process::check(pid)?;
    let opened = Memory::open(pid);
    opened
        .map(drop)
        .map_err(|source| process::explain(pid, source))
}

/// Loads a library into process `pid`, and calls its function with a copy of `argument`, of at most
/// 128 KiB. The copy is freed when the function returns. A library that is already loaded is not
/// loaded again.
///
/// A thread is stopped for less than a millisecond if processors are free, and loading takes some
/// milliseconds more in a thread of its own. If no thread could be stopped in five seconds, this
/// gives up.
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
///     calls: &[],
///     calls_elsewhere: &[],
/// };
/// let loaded = load(1234, &library, b"verbose")?;
/// println!("thread {} was stopped for {:?}", loaded.thread, loaded.paused);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn load(pid: u32, library: &Library<'_>, argument: &[u8]) -> Result<Loaded, Error> {
    load_with(pid, library, |_| Ok(argument.to_vec()))
}

/// Same as [`load`], with an argument that is made later: `prepare` shares memory files with the
/// process, and returns the argument of the function. No thread is stopped meanwhile.
///
/// # Errors
///
/// See [`Error`]; errors of `prepare` are [`Error::Io`].
pub fn load_with(
    pid: u32,
    library: &Library<'_>,
    prepare: impl FnOnce(&mut Files<'_, '_>) -> io::Result<Vec<u8>>,
) -> Result<Loaded, Error> {
    process::check(pid)?;
    let loaded = load_into(pid, library, prepare);
    // Any step fails if the process ends meanwhile.
    loaded.map_err(|error| match process::has_ended(pid) {
        true => Error::Gone { pid },
        false => error,
    })
}

fn load_into(
    pid: u32,
    library: &Library<'_>,
    prepare: impl FnOnce(&mut Files<'_, '_>) -> io::Result<Vec<u8>>,
) -> Result<Loaded, Error> {
    let until = Instant::now() + STARTING;
    loop {
        // Open it each time: an executed program has another memory.
        let memory = Memory::open(pid).map_err(|source| process::explain(pid, source))?;
        let target = Target::read(pid, &memory, library);
        let target = target.and_then(|target| target.check().map(|()| target));
        match target {
            Ok(target) => return load_with_target(&target, library, prepare),
            Err(error) if is_of_start(&error) && Instant::now() < until => thread::sleep(NAP),
            Err(error) => return Err(error),
        }
    }
}

/// True for errors that occur while a program is executed and its linker works.
fn is_of_start(error: &Error) -> bool {
    match error {
        Error::Unsuitable { why, .. } => *why == Unsuitable::Starting,
        Error::Io { source, .. } => source.kind() == io::ErrorKind::UnexpectedEof,
        _ => false,
    }
}

fn load_with_target(
    target: &Target<'_>,
    library: &Library<'_>,
    prepare: impl FnOnce(&mut Files<'_, '_>) -> io::Result<Vec<u8>>,
) -> Result<Loaded, Error> {
    let pid = target.pid;
    let mut parameters = target.parameters(library)?;
    let mut calls = library.calls.to_vec();
    if parameters.pthread_create == 0 {
        calls.extend(LIBPTHREAD_CALLS);
    }
    let sandboxes = Sandboxes::new(pid, &calls, library.calls_elsewhere);
    sandboxes.check()?;
    let held = target.places(&sandboxes).hold()?;
    let (area, pause) = held.make_thread(target, &mut parameters)?;
    let mut helper = Helper::find(target, area, parameters)?;
    let result = helper.load(library, prepare);
    let ended = match &result {
        // The thread is still working.
        Err(Error::Unfinished { .. }) => Ok(()),
        _ => helper.end(),
    };
    let result = result?;
    ended?;
    Ok(Loaded {
        result,
        thread: pause.thread,
        was_loaded: target.present.is_some(),
        paused: pause.paused,
        interrupted: pause.interrupted,
    })
}

/// Properties of the process, before a thread of it is stopped.
#[derive(Debug)]
struct Target<'a> {
    pid: u32,
    memory: &'a Memory,
    modules: Vec<Module>,
    linker: Option<usize>,
    /// Linker of the program, as the program names it.
    interpreter: Option<String>,
    exports: Vec<Exports>,
    /// Indices of the modules that the linker has loaded for the program.
    linked: Vec<usize>,
    /// Index of the library, if it is loaded.
    present: Option<usize>,
    /// Return addresses of signal handlers.
    restorers: Vec<u64>,
    /// Address of `syscall; ret` in the C library.
    call: u64,
}

impl<'a> Target<'a> {
    fn read(pid: u32, memory: &'a Memory, library: &Library<'_>) -> Result<Self, Error> {
        let unread = |source| process::explain(pid, source);
        let maps = maps::of(pid).map_err(unread)?;
        let modules = modules::of(&maps, memory);
        let auxiliary = fs::read(format!("/proc/{pid}/auxv")).map_err(unread)?;
        let has = |at: u64| modules.iter().position(|module| module.range.contains(&at));
        let program = auxiliary_value(&auxiliary, libc::AT_PHDR).and_then(has);
        let Some(program) = program else {
            let why = match process::is_x86_64(pid) {
                true => Unsuitable::Starting,
                false => Unsuitable::Architecture,
            };
            return Err(Error::Unsuitable { pid, why });
        };
        let wanted = [WANTED, &[library.entry.to_bytes()]].concat();
        let mut left = modules::MAX_TABLES;
        let exports = modules.iter();
        let exports = exports.map(|module| module.exports(memory, &wanted, &mut left));
        let exports: Vec<Exports> = exports.collect();
        // The kernel may have been told to execute the linker, which then has loaded the program.
        let is_linker = |&at: &usize| exports[at].find(b"_r_debug").is_some();
        let linker = auxiliary_value(&auxiliary, libc::AT_BASE).and_then(has);
        let linker = linker.or_else(|| Some(program).filter(is_linker));
        let list = linker.and_then(|at| exports[at].find(b"_r_debug"));
        let linked = list.map_or_else(Vec::new, |list| modules::linked(&modules, list, memory));
        let version = |at: usize| {
            let version = file_name(&modules[at].path).strip_prefix(library.name)?;
            version.strip_prefix('-').map(str::to_owned)
        };
        let ours = linked.iter().copied().find(|&at| version(at).is_some());
        if let Some(ours) = ours
            && version(ours).as_deref() != Some(library.version)
        {
            let found = modules[ours].path.clone();
            return Err(Error::OtherVersion { found });
        }
        let is_program = linker == Some(program);
        let mut target = Self {
            pid,
            memory,
            interpreter: match is_program {
                true => Some(modules[program].path.clone()),
                false => modules[program].interpreter.clone(),
            },
            modules,
            linker,
            exports,
            linked,
            present: ours,
            restorers: Vec::new(),
            call: 0,
        };
        if let Some(libc) = target.libc() {
            for text in &target.modules[libc].text {
                let len = (text.end - text.start).min(16 << 20) as usize;
                let bytes = memory.bytes(text.start, len).map_err(unread)?;
                let address = |at| text.start + at as u64;
                let restorers = memmem::find_iter(&bytes, RESTORER).map(address);
                target.restorers.extend(restorers);
                if target.call == 0 {
                    target.call = memmem::find(&bytes, CALL).map_or(0, address);
                }
            }
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
            let is_glibc = file_name(&linker).starts_with("ld-linux");
            return refuse(match is_glibc {
                true => Unsuitable::Starting,
                false => Unsuitable::NotGlibc { linker },
            });
        }
        if fs::symlink_metadata(format!("/proc/{pid}/root/proc/self")).is_err() {
            return refuse(Unsuitable::NoProc);
        }
        let mut linked = self.linked.iter();
        if linked.any(|&at| self.exports[at].find(b"__tsan_init").is_some()) {
            return refuse(Unsuitable::ThreadSanitizer);
        }
        // The library's thread would be the second one.
        let has_threads = process::threads(pid).map_or(true, |threads| threads.len() > 1);
        if !has_threads && self.has_allocator_for_one_thread() {
            return refuse(Unsuitable::Allocator);
        }
        Ok(())
    }

    /// True if the program's allocator is its own, and nothing shows that it expects several
    /// threads.
    fn has_allocator_for_one_thread(&self) -> bool {
        let mut linked = self.linked.iter().map(|&at| &self.exports[at]);
        let first = linked.find(|exports| exports.find(b"malloc").is_some());
        first.is_some_and(|exports| !exports.is_glibcs() && !exports.is_threaded)
    }

    /// Returns the address of a function of glibc, even if another library exports its name first.
    fn find(&self, name: &[u8]) -> Option<u64> {
        let glibc = |at: &&usize| modules::GLIBC.contains(&&*self.exports[**at].library);
        let mut found = self.linked.iter().filter(glibc);
        found.find_map(|&at| {
            let found = self.exports[at].find(name)?;
            self.modules[at].is_text(found).then_some(found)
        })
    }

    /// Returns the index of the C library.
    fn libc(&self) -> Option<usize> {
        let at = self.find(b"gnu_get_libc_version")?;
        let mut linked = self.linked.iter().copied();
        linked.find(|&module| self.modules[module].is_text(at))
    }

    fn places(&'a self, sandboxes: &'a Sandboxes<'a>) -> Places<'a> {
        let has_allocator = |exports: &Exports| exports.find(b"malloc").is_some();
        let modules = self.modules.iter().zip(&self.exports);
        let allocators = modules.filter(|(_, exports)| has_allocator(exports));
        let mut others = self.exports.iter();
        let is_allocator_glibcs = !others.any(|it| has_allocator(it) && !it.is_glibcs());
        Places {
            pid: self.pid,
            memory: self.memory,
            linker: &self.modules[self.linker.expect("checked before")],
            modules: &self.modules,
            allocators: allocators.map(|(module, _)| module).collect(),
            is_allocator_glibcs,
            restorers: &self.restorers,
            sandboxes,
            until: Instant::now() + PATIENCE,
            unfit: Cell::default(),
            locks_of_linker: RefCell::default(),
        }
    }

    /// Returns the addresses in the process that the library needs.
    fn parameters(&self, library: &Library<'_>) -> Result<Parameters, Error> {
        let missing = |name: &'static str| Error::Call {
            name,
            source: io::Error::from_raw_os_error(libc::ENOSYS),
        };
        let function = |name: &'static str| {
            let found = self.find(name.as_bytes());
            found.ok_or_else(|| missing(name))
        };
        if self.call == 0 {
            return Err(missing("a system call"));
        }
        let now = libc::RTLD_NOW as u64;
        // Before glibc 2.34 `dlopen` is in libdl, which not every program loads. The C library then
        // has equivalent functions of its own, which keep no message.
        let [dlopen, mode, dlsym, dlerror] = match self.find(b"dlopen") {
            Some(dlopen) => [dlopen, now, function("dlsym")?, function("dlerror")?],
            None => [
                function("__libc_dlopen_mode")?,
                now | LIBC_DLOPEN,
                function("__libc_dlsym")?,
                0,
            ],
        };
        // Both are in libpthread then.
        let [pthread_create, pthread_attr_setstacksize] = match self.find(b"pthread_create") {
            Some(create) => [create, function("pthread_attr_setstacksize")?],
            None => [0, 0],
        };
        let present = |at: usize| {
            let found = self.exports[at].find(library.entry.to_bytes());
            found.ok_or_else(|| missing("the library's function"))
        };
        Ok(Parameters {
            errno: function("__errno_location")?,
            pthread_attr_init: function("pthread_attr_init")?,
            pthread_attr_setdetachstate: function("pthread_attr_setdetachstate")?,
            pthread_attr_setstacksize,
            pthread_create,
            dlopen,
            mode,
            dlsym,
            dlerror,
            call: self.call,
            function: self.present.map_or(Ok(0), present)?,
            ..Parameters::new()
        })
    }
}

/// Returns the name of a library, be it memory or a file: `name-version` for `/memfd:name-version
/// (deleted)` and for `/usr/lib/name-version.so`.
fn file_name(path: &str) -> &str {
    let path = path.trim_end_matches(" (deleted)");
    let name = path.rsplit('/').next().unwrap_or(path);
    let name = name.strip_prefix("memfd:").unwrap_or(name);
    name.strip_suffix(".so").unwrap_or(name)
}

/// Returns an entry of the auxiliary vector.
fn auxiliary_value(vector: &[u8], kind: u64) -> Option<u64> {
    let mut entries = vector.chunks_exact(16).map(|entry| {
        let (kind, value) = entry.split_at(8);
        [kind, value].map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
    });
    entries.find_map(|[found, value]| (found == kind && value != 0).then_some(value))
}

#[cfg(test)]
mod tests {
    use std::process;

    use super::*;

    #[test]
    fn a_thread_is_made_where_only_the_process_may_write_its_memory() {
        let cat = process::Command::new("cat")
            .stdin(process::Stdio::piped())
            .spawn();
        let mut cat = cat.unwrap();
        let pid = cat.id();
        let library = Library {
            name: "none",
            version: "1",
            bytes: &[],
            entry: c"none",
            calls: &[],
            calls_elsewhere: &[],
        };
        // Until it works, it may be a copy of this process.
        let is_cat = || fs::read_to_string(format!("/proc/{pid}/comm")).unwrap() == "cat\n";
        while !is_cat() {}
        let sandboxes = Sandboxes::new(pid, &[], &[]);
        let make = || {
            let memory = Memory::open_as_process(pid).unwrap();
            let target = Target::read(pid, &memory, &library)?;
            target.check()?;
            let mut parameters = target.parameters(&library)?;
            let held = target.places(&sandboxes).hold()?;
            let (area, _) = held.make_thread(&target, &mut parameters)?;
            Helper::find(&target, area, parameters)?.end()
        };
        let until = Instant::now() + LOADING;
        // At first it has no C library.
        while let Err(error) = make() {
            let is_early = matches!(error, Error::Unsuitable { .. } | Error::Busy { .. });
            assert!(is_early && Instant::now() < until, "{error:?}");
        }
        drop(cat.stdin.take());
        assert_eq!(cat.wait().unwrap().code(), Some(0));
    }

    #[test]
    fn a_library_is_known_by_its_name_wherever_it_is() {
        assert_eq!(file_name("/memfd:agent-1 (deleted)"), "agent-1");
        assert_eq!(file_name("/run/user/0/fgraph/agent-1.so"), "agent-1");
        assert_eq!(file_name("/usr/lib/libc.so.6"), "libc.so.6");
    }
}
