//! Records the system calls of the program as a line of text each, in the style of Akaros'
//! `kptrace`.
//!
//! ```
//! use std::time::Duration;
//! use fgraph_tracers::syscalls::Syscalls;
//!
//! let syscalls = Syscalls::start()?;
//! std::fs::write("/dev/null", "hello")?;
//! let mut lines = std::iter::from_fn(|| syscalls.read_line(Duration::ZERO));
//! assert!(lines.any(|line| line.contains("(       write)") && line.ends_with("data: hello\n")));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The lines
//!
//! ```text
//! [  4242.000000001]-[  4242.000000002] Syscall   1 (       write):(0x1, 0x7f.., 0x5, 0x0, 0x0,
//!  0x0) ret: 0x5 proc: 77 core: 1 thread: 78 data: hello
//! ```
//!
//! The time stamps are seconds of `CLOCK_MONOTONIC`, at the entry and the return. The result is the
//! kernel's: an error is the negative `errno`. `data` is the path that the call is given, or up to
//! 128 bytes that it has read or written, limited by its result. It is escaped, so a newline always
//! ends the line.
//!
//! # What is seen
//!
//! Calls through one of the C library's functions for them, including `syscall`, with the arguments
//! that the kernel gets: `open` shows as `openat`, as with `strace`. If such functions call each
//! other, the innermost is shown.
//!
//! Calls that other functions make by their own `syscall` instruction, in the C library and
//! everywhere else, if the call's number is put into eax right before: fgraph patches that
//! instruction. [`Syscalls::not_seen`] lists the instructions that cannot be patched, with the
//! reason. Either the compiler has put the number there earlier, or the call may move the thread to
//! another stack (`clone`, `munmap`). Go's programs are not patched at all. Calls of the child that
//! `posix_spawn` makes are not seen either, until it executes a program. [`NOT_SEEN`] lists by name
//! the calls that glibc makes somewhere without being seen.

mod encoding;
mod memory;
mod names;
mod wrappers;

use std::cell::Cell;
use std::collections::HashSet;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use fgraph::{
    AnywhereHandle, AnywhereOps, Entry, Error, FgraphOps, Filter, Function, FunctionFacts,
    LibraryEvent, RefusalReason, RefusedFunction, Return, Symbol, SystemCallError, Untraced,
};
use fgraph_trace::ring::Rings;

use crate::support::by_function::ByFunction;
use crate::support::kernel;
use crate::support::looking;
use crate::support::queue::Queue;
use crate::support::sink::{MOST, Place, Sink};
use crate::support::text_line::Line;
use crate::tracer::{OneUser, Tracer};
use encoding::Head;
pub use encoding::{Piece, SystemCall};
use memory::{Memory, Shape, When};
pub use names::known_name;
use wrappers::{Arg, Wrapper};

/// Bytes of the queue of lines by default.
pub const QUEUE_SIZE: usize = 2 << 20;

/// System calls that glibc makes somewhere without being seen: see [what is
/// seen](self#what-is-seen). If a glibc has no names for its own functions, and no debug file is
/// installed, fgraph does not patch these instructions: [`Syscalls::not_seen`] lists them.
pub const NOT_SEEN: &[&str] = &[
    "arch_prctl",
    "brk",
    "clone",
    "clone3",
    "execve",
    "exit",
    "futex",
    "getpriority",
    "getrandom",
    "rseq",
    "rt_sigaction",
    "rt_sigprocmask",
    "rt_sigreturn",
    "sched_setscheduler",
    "set_robust_list",
    "tgkill",
    "vfork",
    "writev",
];

/// Most bytes of a call's data that a line shows.
const DATA: usize = 128;
/// Most bytes of a line: each byte of data takes at most four.
const LINE: usize = 320 + 4 * DATA;
/// Time for which a thread that passes lines on waits before it checks whether it must end.
const PATIENCE: Duration = Duration::from_millis(50);

/// Tracer of system calls. Dropping it ends it.
///
/// Each call becomes a line, which is written when the call returns, or when it begins if it may
/// not return (`execve`, `_exit`). Lines go to a queue that never makes the program wait: without
/// room a line is dropped and counted. A call costs about a microsecond more.
///
/// To print a line is a system call, `write`, which becomes a line, too: a loop that prints lines
/// until there is none never ends. Read and print the lines in a thread with a guard of
/// [`fgraph::untraced`], or leave `write` out of the filter.
///
/// [`Tracer::set_filter`] with names of the C library's functions
/// selects calls, and [`set_threads`](crate::Tracer::set_threads) threads.
#[derive(Debug)]
pub struct Syscalls {
    user: AnywhereHandle<Arc<Record<Queued>>>,
}

impl OneUser for Syscalls {
    fn user(&self) -> &dyn Tracer {
        &self.user
    }
}

impl Syscalls {
    /// Starts to watch all system calls that can be seen, in all threads, with a queue of
    /// [`QUEUE_SIZE`] bytes.
    ///
    /// # Errors
    ///
    /// Same as for [`fgraph::register`]; [`Unsupported`](Error::Unsupported) without memory.
    pub fn start() -> Result<Self, Error> {
        Self::start_with(QUEUE_SIZE)
    }

    /// Same as [`start`](Self::start), with a queue of `queue_size` bytes, rounded up to a power of
    /// two of at least 4096.
    ///
    /// # Errors
    ///
    /// Same as for [`start`](Self::start).
    pub fn start_with(queue_size: usize) -> Result<Self, Error> {
        let queue = Queue::new(queue_size);
        let queue = queue.ok_or(Error::Unsupported(fgraph::Unsupported::Memory(
            libc::ENOMEM,
        )))?;
        let lines = Queued {
            queue,
            loud: AtomicI32::new(-1),
            is_over: AtomicBool::new(false),
        };
        let user = start(lines, None)?;
        Ok(Self { user })
    }

    /// Lists the system calls that are not seen, each with the reason, and functions for system
    /// calls that cannot be traced. It searches the loaded modules that the filter selects. The
    /// name is that of the function that makes the call, with the offset of the instruction.
    ///
    /// Functions without a name are searched too. Two kinds are not listed: a `syscall` instruction
    /// outside of all functions, and a jump of a function to the code behind the patched
    /// instruction.
    ///
    /// ```
    /// use fgraph_tracers::syscalls::Syscalls;
    ///
    /// let syscalls = Syscalls::start()?;
    /// for call in syscalls.not_seen()? {
    ///     println!("{}: {call}", call.module); // abort+0x89 at 0x7f..: its number is not ..
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Same as for [`Tracer::report`].
    pub fn not_seen(&self) -> Result<Vec<RefusedFunction>, Error> {
        let mut refused = self.user.report()?.refused;
        // System calls that a wrapper makes are seen with the wrapper.
        let wrappers = self.user.functions()?.into_iter();
        let wrappers: HashSet<usize> = wrappers
            .filter(|function| function.system_call().is_none())
            .map(Function::address)
            .collect();
        refused.retain(|call| {
            let within = fgraph::function_at(call.address);
            !within.is_some_and(|within| wrappers.contains(&within.address()))
        });
        Ok(refused)
    }

    /// Takes the first line of the queue, with its newline; waits at most `wait` for one.
    ///
    /// Each line goes to one of the readers.
    pub fn read_line(&self, wait: Duration) -> Option<String> {
        let mut line = Vec::new();
        let is_some = self.user.user().lines.queue.pop(&mut line, wait);
        is_some.then(|| String::from_utf8_lossy(&line).into_owned())
    }

    /// Returns a file from which lines can be read, until this tracer ends. An untraced thread
    /// passes them on. There may be several such files: each line goes to one of the readers.
    ///
    /// # Errors
    ///
    /// Fails if a pair of sockets or a thread cannot be made.
    pub fn reader(&self) -> io::Result<OwnedFd> {
        let (ours, theirs) = UnixStream::pair()?;
        let record = Arc::clone(self.user.user());
        let hand_on = move || {
            let _untraced = Untraced::new();
            hand_on(&record.lines, &ours);
        };
        let builder = thread::Builder::new().name("syscall lines".to_owned());
        fgraph::untraced(|| builder.spawn(hand_on))?;
        Ok(theirs.into())
    }

    /// Returns the number of bytes of the queue in use.
    pub fn queued(&self) -> usize {
        self.user.user().lines.queue.len()
    }

    /// Returns the number of calls whose lines found no room in the queue.
    pub fn dropped(&self) -> u64 {
        self.user.user().lines.queue.dropped()
    }

    /// Also writes lines to `file` as calls begin (`ENTER`, with one time stamp and no result) and
    /// end (`EXIT`); `None` stops that. The traced thread waits for the file to accept them.
    ///
    /// The file must stay open: its descriptor is used until another one is set.
    pub fn set_loud(&self, file: Option<BorrowedFd<'static>>) {
        let file = file.map_or(-1, |file| file.as_raw_fd());
        self.user.user().lines.loud.store(file, Ordering::Relaxed);
    }
}

impl Drop for Syscalls {
    fn drop(&mut self) {
        self.user
            .user()
            .lines
            .is_over
            .store(true, Ordering::Relaxed);
    }
}

/// Passes lines on to a socket until the tracer has ended or the other end is closed.
fn hand_on(lines: &Queued, socket: &UnixStream) {
    let mut line = Vec::new();
    loop {
        // Read before the queue, so that lines queued until then are passed on.
        let is_over = lines.is_over.load(Ordering::Relaxed);
        line.clear();
        if !lines.queue.pop(&mut line, PATIENCE) {
            if is_over {
                return;
            }
            continue;
        }
        let mut rest = &*line;
        while !rest.is_empty() {
            // SAFETY: the call reads this number of valid bytes. With `MSG_NOSIGNAL`, a closed
            // socket is an error, not a signal.
            let sent = unsafe {
                let (start, flags) = (rest.as_ptr().cast(), libc::MSG_NOSIGNAL);
                libc::send(socket.as_raw_fd(), start, rest.len(), flags)
            };
            match usize::try_from(sent) {
                Ok(sent) => rest = rest.get(sent..).unwrap_or_default(),
                Err(_) if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }
}

/// Tracer of system calls that writes marks to rings, among the events of the calls' threads.
/// [`SystemCall::parse`] decodes them. Dropping the tracer ends it.
///
/// Another process may read the rings. A call without room is lost, and the loss is reported at its
/// place.
#[derive(Debug)]
pub struct SyscallMarks {
    user: AnywhereHandle<Arc<Record<Marks>>>,
}

impl OneUser for SyscallMarks {
    fn user(&self) -> &dyn Tracer {
        &self.user
    }
}

impl SyscallMarks {
    /// Starts to watch the calls that `asked` selects by the name of the system call or of the C
    /// library's function for it; `None` selects all. `executed` is the number of programs that the
    /// process has executed before: see [`Options::executed`](crate::recorder::Options::executed).
    ///
    /// If it is loud, there is also a mark when a call begins. With paths, a call has the paths of
    /// its descriptors, each for one more system call.
    ///
    /// # Errors
    ///
    /// Same as for [`fgraph::register`]; [`Unsupported`](Error::Unsupported) without memory.
    pub fn start_in(
        rings: impl Into<Arc<Rings>>,
        executed: u32,
        asked: Option<&Filter>,
        is_loud: bool,
        has_paths: bool,
    ) -> Result<Self, Error> {
        let marks = Marks {
            sink: Sink::start(rings, executed)?,
            is_loud,
            has_paths,
        };
        let user = start(marks, asked)?;
        Ok(Self { user })
    }
}

/// True if a filter selects a call that can be seen, by the name of the system call or of the C
/// library's function for it.
///
/// ```
/// use fgraph_tracers::syscalls::is_known;
///
/// assert!(is_known(&"openat".parse()?));
/// assert!(!is_known(&"malloc".parse()?));
/// # Ok::<(), fgraph::FilterError>(())
/// ```
#[must_use]
pub fn is_known(asked: &Filter) -> bool {
    let mut numbers = 0..wrappers::NUMBERS as u64;
    wrappers::all().any(|it| is_asked_for(asked, it))
        || numbers.any(|number| is_named(asked, names::name(number), number))
}

fn is_asked_for(asked: &Filter, (name, wrapper): &(&str, Wrapper)) -> bool {
    is_named(asked, name, wrapper.number.map_or(u64::MAX, u64::from))
}

/// True if a filter selects a function, or the system call that it makes.
fn is_named(asked: &Filter, name: &str, number: u64) -> bool {
    let names = [name, names::name(number)];
    asked.matches(&FunctionFacts::new(&names, "/lib/libc.so.6"))
}

/// Starts to watch the selected calls.
fn start<L: Lines>(
    lines: L,
    asked: Option<&Filter>,
) -> Result<AnywhereHandle<Arc<Record<L>>>, Error> {
    let numbers = 0..wrappers::NUMBERS as u64;
    let is_asked = |number| asked.is_none_or(|it| is_named(it, names::name(number), number));
    let numbers: Vec<bool> = numbers.map(is_asked).collect();
    let within = match numbers.contains(&true) {
        true => Filter::none().system_calls(),
        false => Filter::none(),
    };
    let is_asked = |it: &&(&str, Wrapper)| asked.is_none_or(|asked| is_asked_for(asked, it));
    let filter = wrappers::all()
        .filter(is_asked)
        .try_fold(within, |filter, (name, _)| filter.trace_in(name, LIBC))?;
    let record = Arc::new(Record {
        places: ByFunction::new(),
        numbers,
        wrappers: OnceLock::new(),
        beginning: OnceLock::new(),
        lines,
    });
    let user = fgraph::register_anywhere_with(record, Filter::none(), &looking::options())?;
    user.set_enabled(false);
    let report = user.set_filter(filter)?;
    let beginning = user.user().beginning(&report.refused);
    let filter = beginning
        .iter()
        .try_fold(Filter::none(), |filter, (function, _)| {
            filter.trace_in(&function.name().to_string(), LIBC)
        })?;
    if !beginning.is_empty() {
        user.add_filter(filter)?;
    }
    let beginning = beginning.into_iter();
    let beginning = beginning.map(|(function, number)| (function.address(), number));
    user.user().beginning.get_or_init(|| beginning.collect());
    // Names are looked up here, and not in the callbacks of threads that block all signals.
    let functions = user.functions()?;
    let wrappers = functions.iter().filter(|one| one.system_call().is_none());
    let wrappers = wrappers.map(|one| one.address()..one.address() + one.size());
    user.user().wrappers.get_or_init(|| wrappers.collect());
    for function in functions {
        user.user().wrapper(function);
    }
    user.set_enabled(true);
    Ok(user)
}

/// Thread in a callback: the word that fgraph keeps for it, its id, and its place.
#[derive(Clone, Copy, Debug)]
struct Thread<'c> {
    word: &'c Cell<u64>,
    id: u32,
    place: Place,
}

/// Destination of lines.
trait Lines: std::fmt::Debug + Send + Sync + 'static {
    /// Notes that a call begins, in the running thread.
    fn begin(&self, call: &Call, thread: Thread<'_>);

    /// Notes that a call ends, or may not return.
    fn end(&self, call: &Call, moment: Moment, thread: Thread<'_>);

    /// Notes that a library is loaded or unloaded.
    fn library(&self, event: &LibraryEvent<'_>) {
        let _ = event;
    }

    /// Returns the memory of a call that must be copied.
    fn shapes(&self, wrapper: &Wrapper, number: u64) -> &'static [Shape];

    /// Returns true if calls have the paths of their descriptors.
    fn has_paths(&self) -> bool {
        false
    }
}

/// Lines for readers of this process.
#[derive(Debug)]
struct Queued {
    queue: Queue,
    /// File that lines are written to at once; -1 for none.
    loud: AtomicI32,
    is_over: AtomicBool,
}

impl Lines for Queued {
    fn begin(&self, call: &Call, thread: Thread<'_>) {
        self.write(call, Moment::Enter, thread.id);
    }

    fn end(&self, call: &Call, moment: Moment, thread: Thread<'_>) {
        let line = call.line("", moment, thread.id);
        self.queue.push(thread.id, line.as_bytes());
        self.write(call, moment, thread.id);
    }

    fn shapes(&self, wrapper: &Wrapper, _: u64) -> &'static [Shape] {
        wrapper.data
    }
}

impl Queued {
    /// Writes a line to the file at once, if there is one.
    fn write(&self, call: &Call, moment: Moment, thread: u32) {
        let loud = self.loud.load(Ordering::Relaxed);
        if loud >= 0 {
            let line = call.line(moment.word(), moment, thread);
            kernel::write(loud, line.as_bytes());
        }
    }
}

/// Lines for readers of rings.
#[derive(Debug)]
struct Marks {
    sink: Sink,
    is_loud: bool,
    has_paths: bool,
}

impl Lines for Marks {
    fn begin(&self, call: &Call, thread: Thread<'_>) {
        if self.is_loud {
            self.write(call, Moment::Enter, thread);
        }
    }

    fn end(&self, call: &Call, moment: Moment, thread: Thread<'_>) {
        self.write(call, moment, thread);
    }

    fn library(&self, event: &LibraryEvent<'_>) {
        self.sink.library(event);
    }

    fn shapes(&self, _: &Wrapper, number: u64) -> &'static [Shape] {
        memory::shapes(number)
    }

    fn has_paths(&self) -> bool {
        self.has_paths
    }
}

const _: () = assert!(encoding::WORDS <= MOST);

impl Marks {
    fn write(&self, call: &Call, moment: Moment, thread: Thread<'_>) {
        let head = Head {
            entered: call.entered,
            end: match moment {
                Moment::Enter => None,
                Moment::Exit { left, result } => Some((left, result)),
            },
            number: call.number,
            args: call.args,
            process: call.process,
            thread: thread.id,
            core: kernel::core(),
        };
        let (words, len) = encoding::words(&head, &call.memory);
        let words = words.get(..len).unwrap_or_default();
        // SAFETY: the thread is the running one, with its word.
        unsafe {
            self.sink
                .mark_words(thread.word, thread.id, words, thread.place)
        };
    }
}

/// Callbacks of the tracer.
#[derive(Debug)]
struct Record<L> {
    /// Place of a function among the wrappers, from 1 on; [`BARE`] plus the number for a system
    /// call without a wrapper; 0 if it is not known yet, and [`NO_WRAPPER`].
    places: ByFunction<AtomicU32>,
    /// True for the system calls without a wrapper that are selected, by number.
    numbers: Vec<bool>,
    /// Addresses of the wrappers that existed at the start; set before any callback runs.
    wrappers: OnceLock<Vec<Range<usize>>>,
    /// Addresses of other functions that begin with a system call, with its number; likewise.
    beginning: OnceLock<Vec<(usize, u32)>>,
    lines: L,
}

/// The C library's files.
const LIBC: &str = "libc.so*";

/// System calls whose functions in the C library have other results than the kernel.
const OWN_RESULTS: [u32; 2] = [libc::SYS_brk as u32, libc::SYS_getpriority as u32];

/// Marks a function that is no wrapper, or a system call that a wrapper makes.
const NO_WRAPPER: u32 = u32::MAX;
/// Marks a system call that no wrapper makes.
const BARE: u32 = 1 << 16;

/// Data that a call carries from entry to return: the record, which the return finishes.
#[derive(Clone, Copy, Debug)]
struct Call {
    entered: u64,
    returns_to: usize,
    /// Kernel id of the process.
    process: u32,
    wrapper: &'static Wrapper,
    module: &'static str,
    number: u64,
    args: [u64; 6],
    /// True if another wrapper that this one has called makes the system call.
    is_outer: bool,
    /// True for the system call itself, in a function that is no wrapper.
    is_bare: bool,
    /// Memory to copy when the call returns.
    shapes: &'static [Shape],
    memory: Memory,
}

// SAFETY: the callbacks only use atomics, memory that they map, and system calls that change
// nothing of the program's.
unsafe impl<L: Lines> AnywhereOps for Record<L> {}

impl<L: Lines> FgraphOps for Record<L> {
    type Data = Call;

    fn entry(&self, call: &mut Entry<'_, Call>) -> Option<Call> {
        let function = call.function();
        let wrapper = self.wrapper(function)?;
        let is_bare = function.system_call().is_some();
        let returns_to = call.return_address();
        if let Some(outer) = call.parent_data().filter(|outer| !outer.is_bare) {
            // A call or jump from within the C library: the inner wrapper makes the outer one's
            // system call. Otherwise this call is a signal handler's.
            let caller = if is_bare {
                function.address()
            } else {
                call.call_site()
            };
            let module = fgraph::function_at(caller).map(|caller| caller.module());
            let libc = outer.module;
            let is_inner = outer.returns_to == returns_to || module == Some(libc);
            if is_inner && let Some(outer) = call.parent_data_mut() {
                outer.is_outer = true;
            }
        }
        let arg = |index: u8| match index {
            0..6 if is_bare => call.system_call_arg(index.into()),
            0..6 => call.arg(index.into()),
            _ => call.stack_arg(usize::from(index) - 6),
        };
        let of = |arg_of: Arg| match arg_of {
            Arg::Of(index) => arg(index).unwrap_or(0),
            Arg::Is(value) => value as i64 as u64,
        };
        // Do not use `map`, which may become a function that is traced: see `line.rs`.
        let (mut args, mut nth) = ([0; 6], 0);
        while nth < args.len() {
            args[nth] = of(wrapper.args[nth]);
            nth += 1;
        }
        let number = wrapper.number.map_or(arg(0).unwrap_or(0), u64::from);
        let mut record = Call {
            entered: kernel::now(),
            returns_to,
            process: kernel::process(),
            wrapper,
            number,
            args,
            is_outer: false,
            is_bare,
            module: function.module().path(),
            shapes: self.lines.shapes(wrapper, number),
            memory: Memory::new(),
        };
        record.copy(When::Before, 0);
        if self.lines.has_paths() {
            let (memory, args) = (&mut record.memory, &record.args);
            memory.paths(number, args, When::Before, 0);
        }
        let thread = Thread {
            word: call.thread_word(),
            id: call.thread_id(),
            place: Place::of(call.thread_stack(), false),
        };
        self.lines.begin(&record, thread);
        if wrapper.may_end {
            let moment = Moment::Exit {
                left: record.entered,
                result: 0,
            };
            self.lines.end(&record, moment, thread);
            return None;
        }
        Some(record)
    }

    fn ret(&self, call: &mut Return<'_, Call>, mut record: Call) {
        let left = kernel::now();
        if record.is_outer {
            return;
        }
        // A cancelled call has no result.
        let result = match call.result() {
            Some(result) if record.may_be_int() && result == u64::from(u32::MAX) => -1,
            Some(result) if record.wrapper.is_long => result as i64,
            Some(result) => (result as i32).into(),
            None => -i64::from(libc::EINTR),
        };
        let result = match result {
            -1 if !record.is_bare => -i64::from(call.errno()),
            result => result,
        };
        record.copy(When::After, result);
        if self.lines.has_paths() {
            let (memory, args) = (&mut record.memory, &record.args);
            memory.paths(record.number, args, When::After, result);
        }
        let thread = Thread {
            word: call.thread_word(),
            id: call.thread_id(),
            place: Place::of(call.thread_stack(), false),
        };
        self.lines
            .end(&record, Moment::Exit { left, result }, thread);
    }

    fn library(&self, event: &LibraryEvent<'_>) {
        self.lines.library(event);
    }
}

/// Moment at which a line is written.
#[derive(Clone, Copy, Debug)]
enum Moment {
    Enter,
    Exit { left: u64, result: i64 },
}

impl Moment {
    /// Returns the first word of a line that is written at once.
    fn word(self) -> &'static str {
        match self {
            Self::Enter => "ENTER ",
            Self::Exit { .. } => "EXIT ",
        }
    }
}

impl<L> Record<L> {
    /// Returns the wrapper that a function is.
    fn wrapper(&self, function: Function) -> Option<&'static Wrapper> {
        let place = self.places.of(function)?;
        let known = match place.load(Ordering::Relaxed) {
            0 => {
                let found = match function.system_call() {
                    Some(number) => self.bare(function, number),
                    None => {
                        let found = function.names().find_map(wrappers::find);
                        let wrapper = found.map(|found| found as u32 + 1);
                        let beginning = || self.begins(function).map(|number| BARE + number);
                        wrapper.or_else(beginning).unwrap_or(NO_WRAPPER)
                    }
                };
                place.store(found, Ordering::Relaxed);
                found
            }
            known => known,
        };
        match known {
            NO_WRAPPER => None,
            BARE.. => wrappers::bare(known - BARE),
            _ => wrappers::get((known as usize).wrapping_sub(1)),
        }
    }

    /// Lists the functions of the C library that begin with a system call, so that only the whole
    /// function can be traced, and that pass on the arguments and the result.
    fn beginning(&self, refused: &[RefusedFunction]) -> Vec<(Symbol, u32)> {
        let number = |call: &RefusedFunction| match call.reason {
            RefusalReason::SystemCall(SystemCallError::AtEntry { number }) => Some(number),
            _ => None,
        };
        let is_asked = |number: u32| self.numbers.get(number as usize).is_some_and(|it| *it);
        let function = |call: &RefusedFunction| {
            let number = number(call).filter(|&it| is_asked(it) && !OWN_RESULTS.contains(&it))?;
            let function = fgraph::function_at(call.address)?;
            let is_libcs = function.module().rsplit('/').next()?.starts_with("libc.so");
            let is_known = wrappers::find(&function.name().to_string()).is_some();
            (is_libcs && !is_known).then_some((function, number))
        };
        refused.iter().filter_map(function).collect()
    }

    /// Returns the number of the system call that a function begins with.
    fn begins(&self, function: Function) -> Option<u32> {
        let mut beginning = self.beginning.get().into_iter().flatten();
        let found = beginning.find(|(address, _)| *address == function.address());
        found.map(|(_, number)| *number)
    }

    /// Returns the value to keep for a system call in a function; those of wrappers are seen as
    /// such.
    fn bare(&self, call: Function, number: u32) -> u32 {
        let mut wrappers = self.wrappers.get().into_iter().flatten();
        let is_asked = self.numbers.get(number as usize).is_some_and(|it| *it);
        match is_asked && !wrappers.any(|wrapper| wrapper.contains(&call.address())) {
            true => BARE + number,
            false => NO_WRAPPER,
        }
    }
}

impl Call {
    /// Returns true if the result may be an `int`: functions that begin with a system call are not
    /// known one by one.
    fn may_be_int(&self) -> bool {
        let bare = wrappers::bare(self.number as u32);
        !self.is_bare && bare.is_some_and(|bare| ptr::eq(bare, self.wrapper))
    }

    /// Copies the memory of the program that the arguments point to.
    fn copy(&mut self, when: When, result: i64) {
        for shape in self.shapes {
            if shape.when == when {
                self.memory.copy(*shape, &self.args, result, self.process);
            }
        }
    }

    /// Returns a line that begins with a word.
    fn line(&self, word: &str, moment: Moment, thread: u32) -> Line<LINE> {
        let mut line = Line::new();
        line.push_str(word);
        self.format(&mut line, moment, thread);
        line
    }

    fn format(&self, line: &mut Line<LINE>, moment: Moment, thread: u32) {
        let stamp = |line: &mut Line<LINE>, time: u64| {
            line.push(b'[');
            line.push_decimal(time / 1_000_000_000, 6, b' ');
            line.push(b'.');
            line.push_decimal(time % 1_000_000_000, 9, b'0');
            line.push(b']');
        };
        stamp(line, self.entered);
        if let Moment::Exit { left, .. } = moment {
            line.push(b'-');
            stamp(line, left);
        }
        line.push_str(" Syscall ");
        line.push_decimal(self.number, 3, b' ');
        line.push_str(" (");
        line.push_right(names::name(self.number), 12);
        line.push_str("):(");
        for (index, arg) in self.args.iter().enumerate() {
            line.push_str(if index == 0 { "" } else { ", " });
            line.push_hex(*arg);
        }
        line.push(b')');
        if let Moment::Exit { result, .. } = moment {
            line.push_str(" ret: ");
            line.push_hex(result as u64);
        }
        for (name, number) in [
            (" proc: ", self.process),
            (" core: ", kernel::core()),
            (" thread: ", thread),
        ] {
            line.push_str(name);
            line.push_decimal(number.into(), 1, b'0');
        }
        line.push_str(" data: ");
        let data = self.memory.first();
        line.push_escaped(data.get(..DATA).unwrap_or(data));
        line.push(b'\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_columns_of_kptrace() {
        let mut record = Call {
            entered: 4_242_000_000_001,
            returns_to: 0,
            process: 77,
            wrapper: wrappers::get(1).unwrap(),
            number: 1,
            args: [1, 0x7f, 5, u64::MAX, 0, 0],
            is_outer: false,
            is_bare: false,
            module: "",
            shapes: &[],
            memory: Memory::of(0, b"\n\n"),
        };
        let check = |record: &Call, moment, start: &str, end: &str| {
            let line = record.line("", moment, 78);
            let line = String::from_utf8(line.as_bytes().to_vec()).unwrap();
            assert!(line.starts_with(start) && line.ends_with(end), "{line}");
            assert!(line.contains(" proc: 77 core: "), "{line}");
        };
        let args = "(0x1, 0x7f, 0x5, 0xffffffffffffffff, 0x0, 0x0)";
        let moment = Moment::Exit {
            left: 4_243_000_000_002,
            result: -2,
        };
        let start = "[  4242.000000001]-[  4243.000000002] Syscall   1 (       write):";
        let start = format!("{start}{args} ret: 0xfffffffffffffffe proc: ");
        check(&record, moment, &start, " thread: 78 data: \\n\\n\n");
        let start = format!("[  4242.000000001] Syscall   1 (       write):{args} proc: ");
        check(&record, Moment::Enter, &start, "\n");
        // The longest line keeps its end.
        record.args = [u64::MAX; 6];
        record.memory = Memory::of(0, &[0xff; 2 * DATA]);
        check(&record, moment, "[", "\\xff\n");
        assert!(record.line("ENTER ", moment, u32::MAX).as_bytes().len() < LINE);
    }
}
