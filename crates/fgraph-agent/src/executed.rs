//! Makes programs that the process executes load the agent again.
//!
//! A user watches the C library's functions that execute programs, and passes them a longer list of
//! variables: the library in `LD_PRELOAD`, its settings, and an option of AddressSanitizer. The
//! list is in memory of the calling thread, which it shares with a child of `vfork`.
//!
//! Nothing is added for programs that could not load the library: those without a dynamic linker or
//! with another one, those for another architecture, and those that do not find its file. Nothing
//! is added either once recording has ended.
//!
//! # Safety
//!
//! The unsafe code makes system calls, and writes to memory that it has mapped. The kernel reads
//! the program's pointers, so wrong ones do no harm.

use std::ffi::{CStr, CString, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use fgraph::{Entry, Error, FgraphOps, Filter, Handle, Options, untraced};
use fgraph_protocol::{RingsFile, Settings};
use fgraph_symbols::program::{HEAD, Start};
use fgraph_trace::ring::Rings;

/// Function that executes programs.
#[derive(Clone, Copy, Debug)]
struct Executor {
    name: &'static str,
    /// Argument that names the program.
    program: Program,
    /// Index of the argument with the list of variables.
    variables: usize,
}

/// Ways in which an argument names a program.
#[derive(Clone, Copy, Debug)]
enum Program {
    Path(usize),
    /// A name that is searched for in the directories of `PATH` if it has no slash.
    Name(usize),
    File(usize),
    /// A path relative to a directory.
    At(usize, usize),
}

const EXECUTORS: [Executor; 5] = [
    executor("execve", Program::Path(0), 2),
    executor("fexecve", Program::File(0), 2),
    executor("execveat", Program::At(0, 1), 3),
    executor("posix_spawn", Program::Path(1), 5),
    executor("posix_spawnp", Program::Name(1), 5),
];

const fn executor(name: &'static str, program: Program, variables: usize) -> Executor {
    Executor {
        name,
        program,
        variables,
    }
}

/// Functions whose child has the state of the calling thread, but not its id. On a stack without
/// any traced call of the thread, the child would be taken for a process that runs beside the
/// thread. The call of such a function is traced, so that its stack is known.
const FORKS: [&str; 2] = ["vfork", "_Fork"];

/// Most variables that are read.
const MOST: usize = 1 << 16;
/// Longest list of preloaded libraries, and longest options of AddressSanitizer, that are changed.
const LONGEST: usize = 4096;
const PRELOAD: &[u8] = b"LD_PRELOAD=";
/// Start of the variable with the options of AddressSanitizer.
const ASAN: &[u8] = b"ASAN_OPTIONS=";
const _: () = {
    let (name, start) = (fgraph_protocol::ASAN_VARIABLE.as_bytes(), ASAN);
    assert!(name.len() + 1 == start.len() && start.len() <= START);
};
/// Number of bytes of each variable that are read to find its name.
const START: usize = 16;
/// Depth to which scripts that run each other are followed, the kernel's limit.
const SCRIPTS: usize = 5;

/// Watches the functions that execute programs. Dropping it ends that.
#[derive(Debug)]
pub(crate) struct Executed {
    _user: Handle<Watch>,
}

impl Executed {
    /// Starts to pass programs the library with these settings, as long as the rings have a reader.
    pub(crate) fn start(
        settings: &Settings,
        library: CString,
        rings: Arc<Rings>,
    ) -> Result<Self, Error> {
        let mut next = settings.clone();
        next.process.executed = (next.process.executed + 1) % 1024;
        let variable = format!("{}={}", fgraph_protocol::VARIABLE, next.to_value());
        let file = settings.rings.file().cloned();
        let path = file.clone().unwrap_or_default().path;
        let mut filter = Filter::none();
        for name in EXECUTORS.iter().map(|it| it.name).chain(FORKS) {
            filter = filter.trace_in(name, "libc.so*").map_err(Error::Filter)?;
        }
        let watch = Watch {
            library,
            variable: CString::new(variable).unwrap_or_default(),
            path: CString::new(path.as_os_str().as_bytes()).unwrap_or_default(),
            file,
            rings,
            blocks: Blocks::default(),
        };
        let options = Options::new().lazy_sites(true).allow_no_match();
        // SAFETY: the callback makes system calls and writes to its own memory.
        let user = unsafe { fgraph::register_with(watch, filter, &options) }
            .map_err(|failed| failed.error)?;
        Ok(Self { _user: user })
    }
}

#[derive(Debug)]
struct Watch {
    library: CString,
    variable: CString,
    /// Path of the rings.
    path: CString,
    /// `None` if each program makes its own rings.
    file: Option<RingsFile>,
    rings: Arc<Rings>,
    blocks: Blocks,
}

impl FgraphOps for Watch {
    type Data = ();

    fn entry(&self, call: &mut Entry<'_, ()>) -> Option<()> {
        untraced(|| self.add_variables(call))
    }
}

impl Watch {
    /// Gives the call a longer list of variables; `None` if it has the agent's or must not.
    fn add_variables(&self, call: &mut Entry<'_, ()>) -> Option<()> {
        if self.rings.has_reader() == Some(false) {
            return None;
        }
        let function = call.function();
        let name = function.name();
        let name = name.as_str();
        // The name of a version may follow.
        let name = name.split('@').next().unwrap_or(name);
        let executor = EXECUTORS.iter().find(|known| known.name == name)?;
        let argument = |index| call.arg(index);
        let variables = argument(executor.variables)? as usize;
        self.can_load(open(executor.program, argument)?)
            .then_some(())?;
        let list = self.longer(call.thread_id(), variables)?;
        // SAFETY: the function takes a list of variables, and the new value is one.
        let mut writer = unsafe { call.rewrite() };
        writer.set_arg(executor.variables, list as u64).ok()
    }

    /// True if a program can load the library, and finds the rings. Closes its file.
    fn can_load(&self, file: Descriptor) -> bool {
        let mut file = Some(file);
        for _ in 0..SCRIPTS {
            let Some(opened) = file.take() else {
                return false;
            };
            let mut buffer = [0; HEAD];
            match Start::of(&mut buffer, |offset, into| opened.read(offset, into)) {
                Ok(Start::Dynamic) => {
                    // SAFETY: the path is a C string.
                    let has_library =
                        unsafe { libc::access(self.library.as_ptr(), libc::R_OK) } == 0;
                    return has_library && self.finds_rings();
                }
                Ok(Start::Script(path)) => {
                    let mut place = Path::default();
                    file = place.set(path).and_then(Descriptor::open);
                }
                _ => return false,
            }
        }
        false
    }

    /// True if the path of the rings still leads to them, or a program needs none.
    fn finds_rings(&self) -> bool {
        let Some(file) = &self.file else {
            return true;
        };
        let place = Descriptor::open_with(libc::AT_FDCWD, &self.path, libc::O_PATH);
        let status = place.and_then(|place| place.status());
        status.is_some_and(|status| file.is_it(&status))
    }

    /// Returns the address of a longer list of variables; `None` if the program's already has the
    /// agent's, or there is no memory.
    fn longer(&self, thread: u32, variables: usize) -> Option<usize> {
        let mut count = 0;
        // Index of the variable with the preloaded libraries, and the address of its value.
        let mut preload = None;
        // Index and value of the options of AddressSanitizer.
        let mut asan = None;
        loop {
            // The kernel accepts a null pointer as an empty list.
            let pointer = match variables {
                0 => 0,
                list => peek_word(list.checked_add(count * 8)?)?,
            };
            if pointer == 0 {
                break;
            }
            (count < MOST).then_some(())?;
            let mut start = [0; START];
            let len = peek(pointer, &mut start);
            let start = &start[..len];
            if start.starts_with(b"FGRAPH_AGENT=") {
                return None;
            }
            if start.starts_with(PRELOAD) {
                preload = Some((count, pointer + PRELOAD.len()));
            }
            if start.starts_with(ASAN) {
                asan = Some((count, pointer + ASAN.len()));
            }
            count += 1;
        }
        let library = self.library.to_bytes();
        let option = fgraph_protocol::ASAN_OPTION.as_bytes();
        let text = PRELOAD.len() + library.len() + 1 + LONGEST;
        let options = ASAN.len() + LONGEST + 1 + option.len() + 1;
        let pointers = (count + 4) * 8;
        let bytes = self.blocks.get(thread, pointers + options + text)?;
        let start = bytes.as_ptr().expose_provenance();
        let (list, texts) = bytes.split_at_mut(pointers);
        let (options, text) = texts.split_at_mut(options);
        let (words, _) = list.as_chunks_mut::<8>();
        if count != 0 && peek(variables, words[..count].as_flattened_mut()) != count * 8 {
            return None;
        }
        let mut at = 0;
        for part in [PRELOAD, library] {
            text[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        let mut end = count;
        let mut add = |place: Option<usize>, pointer: usize| {
            let index = place.unwrap_or_else(|| {
                end += 1;
                end - 1
            });
            words[index] = pointer.to_ne_bytes();
        };
        // The memory may hold the text of an earlier call.
        text[at] = 0;
        if let Some((_, value)) = preload {
            let rest = &mut text[at + 1..];
            let len = peek(value, &mut rest[..LONGEST]);
            // The text ends within the part that was read.
            CStr::from_bytes_until_nul(&rest[..len]).ok()?;
            text[at] = b':';
        }
        add(
            preload.map(|(index, _)| index),
            text.as_ptr().expose_provenance(),
        );
        if write_options(options, asan.map(|(_, value)| value), option).is_some() {
            let place = asan.map(|(index, _)| index);
            add(place, options.as_ptr().expose_provenance());
        }
        add(None, self.variable.as_ptr().expose_provenance());
        add(None, 0);
        Some(start)
    }
}

/// Writes the variable with the options of AddressSanitizer: those of the program at `value`, and
/// `option`. Returns `None` if the program's are too long.
fn write_options(into: &mut [u8], value: Option<usize>, option: &[u8]) -> Option<()> {
    let (name, rest) = into.split_at_mut(ASAN.len());
    name.copy_from_slice(ASAN);
    let mut at = 0;
    if let Some(value) = value {
        let len = peek(value, &mut rest[..LONGEST]);
        at = CStr::from_bytes_until_nul(&rest[..len]).ok()?.count_bytes();
        rest[at] = b':';
        at += 1;
    }
    rest[at..at + option.len()].copy_from_slice(option);
    rest[at + option.len()] = 0;
    Some(())
}

/// Opens the file of a program.
fn open(program: Program, argument: impl Fn(usize) -> Option<u64>) -> Option<Descriptor> {
    let mut place = Path::default();
    match program {
        Program::Path(index) => Descriptor::open(place.peek(argument(index)?)?),
        Program::File(index) => Descriptor::open_at(argument(index)? as i32, c""),
        Program::At(directory, index) => {
            let directory = argument(directory)? as i32;
            Descriptor::open_at(directory, place.peek(argument(index)?)?)
        }
        Program::Name(index) => {
            let name = place.peek(argument(index)?)?;
            if name.to_bytes().contains(&b'/') {
                return Descriptor::open(name);
            }
            // SAFETY: the name is a C string, and the called function reads the environment as
            // well.
            let list = unsafe { libc::getenv(c"PATH".as_ptr()) };
            let list = match list.is_null() {
                true => c"/bin:/usr/bin",
                // SAFETY: `getenv` has returned a C string.
                false => unsafe { CStr::from_ptr(list) },
            };
            let mut directories = list.to_bytes().split(|&byte| byte == b':');
            directories.find_map(|directory| {
                let mut place = Path::default();
                let path = place.join(directory, name.to_bytes())?;
                // SAFETY: the path is a C string.
                let is_program = unsafe { libc::access(path.as_ptr(), libc::X_OK) == 0 };
                is_program.then(|| Descriptor::open(path))?
            })
        }
    }
}

/// Room for a path.
struct Path([u8; libc::PATH_MAX as usize]);

impl Default for Path {
    fn default() -> Self {
        Self([0; libc::PATH_MAX as usize])
    }
}

impl Path {
    /// Copies a string of the program.
    fn peek(&mut self, address: u64) -> Option<&CStr> {
        let len = peek(address as usize, &mut self.0);
        CStr::from_bytes_until_nul(&self.0[..len]).ok()
    }

    fn set(&mut self, path: &[u8]) -> Option<&CStr> {
        self.0.get_mut(..path.len())?.copy_from_slice(path);
        *self.0.get_mut(path.len())? = 0;
        CStr::from_bytes_until_nul(&self.0).ok()
    }

    fn join(&mut self, directory: &[u8], name: &[u8]) -> Option<&CStr> {
        let directory = match directory {
            [] => b".",
            _ => directory,
        };
        let len = directory.len();
        self.0.get_mut(..len)?.copy_from_slice(directory);
        *self.0.get_mut(len)? = b'/';
        let rest = self.0.get_mut(len + 1..)?;
        rest.get_mut(..name.len())?.copy_from_slice(name);
        *rest.get_mut(name.len())? = 0;
        CStr::from_bytes_until_nul(&self.0).ok()
    }
}

/// File that is open while this lives.
struct Descriptor(i32);

impl Descriptor {
    fn open(path: &CStr) -> Option<Self> {
        Self::open_at(libc::AT_FDCWD, path)
    }

    /// Opens a file. Without a path, it is that of the descriptor.
    fn open_at(directory: i32, path: &CStr) -> Option<Self> {
        if path.is_empty() {
            // SAFETY: the call only makes a new descriptor.
            let file = unsafe { libc::fcntl(directory, libc::F_DUPFD_CLOEXEC, 0) };
            return (file >= 0).then_some(Self(file));
        }
        let flags = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY;
        Self::open_with(directory, path, flags)
    }

    fn open_with(directory: i32, path: &CStr, flags: i32) -> Option<Self> {
        // SAFETY: the call only makes a new descriptor, and the path is a C string.
        let file = unsafe { libc::openat(directory, path.as_ptr(), flags | libc::O_CLOEXEC) };
        (file >= 0).then_some(Self(file))
    }

    fn status(&self) -> Option<libc::stat> {
        let mut found = MaybeUninit::uninit();
        // SAFETY: on success `fstat` has filled in the status.
        unsafe { (libc::fstat(self.0, found.as_mut_ptr()) == 0).then(|| found.assume_init()) }
    }

    /// Reads bytes from an offset on. Returns their number.
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let offset = libc::off_t::try_from(offset).unwrap_or(libc::off_t::MAX);
        // SAFETY: the buffer has this number of bytes.
        let read = unsafe { libc::pread(self.0, into.as_mut_ptr().cast(), into.len(), offset) };
        usize::try_from(read).map_err(|_| io::Error::last_os_error())
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: this owns the descriptor.
        unsafe { libc::close(self.0) };
    }
}

/// Blocks of memory for lists of variables. A thread has one from its first call on. When the
/// thread has ended, another thread gets it.
#[derive(Debug, Default)]
struct Blocks(AtomicPtr<Block>);

/// Start of a block.
#[derive(Debug)]
struct Block {
    next: *const Self,
    /// Number of bytes behind this header.
    len: usize,
    /// Process and thread. A child of `fork` has the blocks of its parent's threads, too, and
    /// leaves them alone while the parent lives.
    owner: AtomicU64,
}

impl Blocks {
    /// Returns at least `len` bytes, which are the calling thread's until it calls this again.
    #[expect(clippy::mut_from_ref, reason = "a block has one owner at a time")]
    fn get(&self, thread: u32, len: usize) -> Option<&mut [u8]> {
        // SAFETY: `getpid` changes nothing.
        let process = unsafe { libc::getpid() } as u32;
        let ours = u64::from(process) << 32 | u64::from(thread);
        let is_large = |block: &&Block| block.len >= len;
        let is_ours = |block: &&Block| block.owner.load(Ordering::Relaxed) == ours;
        let claim = |block: &&Block| {
            let owner = block.owner.load(Ordering::Relaxed);
            let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
            let claimed = || block.owner.compare_exchange(owner, ours, acquire, relaxed);
            is_gone((owner >> 32) as u32, owner as u32) && claimed().is_ok()
        };
        let mut large = self.iter().filter(is_large);
        let found = large.clone().find(is_ours).or_else(|| large.find(claim));
        let block = match found {
            Some(block) => block,
            None => self.add(ours, len)?,
        };
        let start = ptr::from_ref(block).addr() + size_of::<Block>();
        // SAFETY: this number of bytes is behind the block's start while the process lives. No
        // other thread uses them while their owner lives, and a thread is in one call at a time.
        unsafe {
            let start = ptr::with_exposed_provenance_mut(start);
            Some(core::slice::from_raw_parts_mut(start, block.len))
        }
    }

    fn iter(&self) -> impl Iterator<Item = &Block> + Clone {
        // Acquire: the block was written before. SAFETY: null, or a block, which is never freed.
        let first = unsafe { self.0.load(Ordering::Acquire).as_ref() };
        // SAFETY: null, or a block, which is never freed.
        core::iter::successors(first, |block| unsafe { block.next.as_ref() })
    }

    /// Adds a block with at least `len` bytes; `None` if there is no memory.
    fn add(&self, owner: u64, len: usize) -> Option<&Block> {
        let mapped = (size_of::<Block>() + len).next_multiple_of(2 * PAGE);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: the kernel chooses a free address for the new mapping.
        let memory = unsafe { libc::mmap(ptr::null_mut(), mapped, protection, flags, -1, 0) };
        if memory == libc::MAP_FAILED {
            return None;
        }
        let block: *mut Block = memory.cast();
        block.expose_provenance();
        let mut next = self.0.load(Ordering::Relaxed);
        loop {
            let len = mapped - size_of::<Block>();
            let owner = owner.into();
            // SAFETY: the block was just mapped, is aligned to a page, and no other thread knows
            // it.
            unsafe { block.write(Block { next, len, owner }) };
            // Release: pairs with the load in `iter`.
            let (release, relaxed) = (Ordering::Release, Ordering::Relaxed);
            match self.0.compare_exchange(next, block, release, relaxed) {
                // SAFETY: a block is never freed.
                Ok(_) => return Some(unsafe { &*block }),
                Err(found) => next = found,
            }
        }
    }
}

/// True if a process has no such thread any more.
fn is_gone(process: u32, thread: u32) -> bool {
    // SAFETY: signal 0 is never delivered.
    let result = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, 0) };
    // SAFETY: `errno` is the thread's own.
    result != 0 && unsafe { *libc::__errno_location() } == libc::ESRCH
}

/// Bytes of a page, which is readable as a whole or not at all.
const PAGE: usize = 4096;

/// Copies memory of the program, as far as it is readable. Returns the number of bytes.
pub(crate) fn peek(address: usize, into: &mut [u8]) -> usize {
    // SAFETY: `getpid` changes nothing.
    let process = unsafe { libc::getpid() };
    let mut filled = 0;
    while filled < into.len() {
        let Some(from) = address.checked_add(filled) else {
            break;
        };
        let len = (PAGE - from % PAGE).min(into.len() - filled);
        let local = libc::iovec {
            iov_base: into[filled..].as_mut_ptr().cast::<c_void>(),
            iov_len: len,
        };
        let remote = libc::iovec {
            iov_base: ptr::without_provenance_mut(from),
            iov_len: len,
        };
        // SAFETY: the local buffer has this number of bytes; the kernel checks the remote ones.
        let read = unsafe { libc::process_vm_readv(process, &local, 1, &remote, 1, 0) };
        if read != len as isize {
            break;
        }
        filled += len;
    }
    filled
}

/// Reads a word of the program's memory.
fn peek_word(address: usize) -> Option<usize> {
    let mut word = [0; 8];
    (peek(address, &mut word) == 8).then(|| usize::from_ne_bytes(word))
}
