//! Errors, refused functions and the reports of filters.

use core::cmp::Reverse;
use core::convert::Infallible;
use core::fmt;
use core::time::Duration;
use std::collections::BTreeMap;

use fgraph_core::MAX_USERS;

use super::analysis::{RelocateError, SystemCallError};
use crate::FilterError;

/// Why an operation was not done.
///
/// Its text says what failed. Three of the errors have a [source](core::error::Error::source) that
/// says why:
///
/// ```
/// use std::error::Error;
///
/// let error = fgraph::sites_of("malloc \"free").unwrap_err();
/// let source = error.source().expect("a filter's error");
/// assert_eq!(
///     format!("{error}: {source}"),
///     "the filter cannot be applied: a quote is not closed in the filter at `\"free`"
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// All 16 slots are taken.
    NoFreeSlot {
        /// The users that have them, in the order in which they are asked. A user that was dropped
        /// inside a callback has its slot until that callback returns, and is not among them.
        users: Vec<SlotUser>,
    },
    /// Another copy of this crate is in the process, in another binary: the program or a library.
    /// It came first, so this one traces nothing, and its library can be unloaded.
    AnotherCopy {
        /// The version of the other copy.
        version: String,
    },
    /// The call was made from inside a callback, or by a signal handler that interrupts a call like
    /// it, where it would wait for itself.
    InsideCallback,
    /// fgraph has stopped for good in this process.
    Stopped(StopReason),
    /// The filter is malformed.
    Filter(FilterError),
    /// Words of a filter match no function, or words with a `!` exclude all that the others match.
    /// Nothing was changed. The user's [options](crate::Options::allow_no_match) can allow it.
    NothingMatched {
        /// The words that match nothing, at least one. If nothing is selected at all, those with a
        /// `!` are among them.
        words: Vec<String>,
    },
    /// No function that a filter selects can be traced. Nothing was changed. The user's
    /// [options](crate::Options::allow_no_match) can allow it.
    AllRefused {
        /// The functions, at least one, with the reasons.
        refused: Vec<RefusedFunction>,
    },
    /// The machine or the kernel lacks something that fgraph cannot do without.
    Unsupported(Unsupported),
    /// A thread has SIGTRAP blocked. While sites are patched a thread may meet a breakpoint, and
    /// the kernel kills the process if the thread blocks the signal. Nothing was patched. A thread
    /// that sleeps in a system call may block it where the text is exchanged as a whole.
    ///
    /// The calling thread may have it blocked, unless [breakpoints](crate::Options::breakpoints)
    /// are to stay.
    SignalBlocked {
        /// The kernel's id of the thread.
        thread: u32,
    },
    /// A filter names a thread that this process does not have, or not any more.
    NoSuchThread {
        /// The kernel's id that was asked for.
        id: u32,
    },
    /// Calls that a user has [redirected](crate::EntryWriter::redirect) have not returned, so that
    /// [`drain_and_unregister`](crate::Handle::drain_and_unregister) has left the user as it was.
    RedirectedCalls {
        /// The number of calls that have not returned.
        in_flight: u64,
        /// The number of calls that may have returned or not: the user redirected them but did not
        /// accept them, or it does not [count](crate::Options::count_redirected) redirected calls.
        unknown: u64,
    },
    /// Functions that the program has generated cannot be added.
    Generated(GeneratedError),
    /// Writing to the program's text failed. The bytes that had been written were put back; where
    /// that failed too, fgraph has [stopped](StopReason::Text).
    Text {
        /// The address that was to be written.
        address: usize,
        /// The system's error number.
        errno: i32,
    },
}

/// A user that has a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SlotUser {
    /// Its [priority](crate::Options::priority).
    pub priority: i8,
    /// The name of its type, as [`type_name`](core::any::type_name) returns it.
    pub name: &'static str,
    /// The time since it was registered.
    pub registered_for: Duration,
}

impl fmt::Display for SlotUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { priority, name, .. } = self;
        let seconds = self.registered_for.as_secs_f64();
        write!(f, "{name} (priority {priority}, for {seconds:.1} s)")
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoFreeSlot { users } => {
                write!(f, "all {MAX_USERS} slots are taken")?;
                let mut before = ": by";
                users.iter().try_for_each(|user| {
                    write!(f, "{before} {user}")?;
                    before = ",";
                    Ok(())
                })
            }
            Self::AnotherCopy { version } => write!(
                f,
                "another copy of fgraph, version {version}, is in this process: use that one"
            ),
            Self::InsideCallback => f.write_str("not from inside a callback"),
            Self::Stopped(stop) => write!(f, "fgraph has stopped: {stop}"),
            Self::Filter(_) => f.write_str("the filter cannot be applied"),
            Self::NothingMatched { words } => {
                let (before, after) = match words.iter().all(|word| word.starts_with('!')) {
                    true => (
                        "no function is left by",
                        "they exclude all that is selected",
                    ),
                    false => (
                        "no function matches",
                        "look for its name in fgraph::sites()",
                    ),
                };
                let words = words.iter().map(|word| format!("`{word}`"));
                write!(f, "{before} {}: {after}", FirstTen(words))
            }
            Self::AllRefused { refused } => match &**refused {
                [one] => write!(f, "the only selected function cannot be traced: {one}"),
                _ => none_traced(f, refused),
            },
            Self::Unsupported(_) => f.write_str("the system lacks what fgraph needs"),
            Self::SignalBlocked { thread } => write!(
                f,
                "thread {thread} blocks SIGTRAP and would die at a site that is being patched"
            ),
            Self::RedirectedCalls {
                in_flight,
                unknown: 0,
            } => {
                write!(f, "{in_flight} redirected calls have not returned")
            }
            Self::RedirectedCalls { unknown, .. } => write!(
                f,
                "it is not known whether {unknown} redirected calls have returned: accept them, \
                 and register the user with Options::count_redirected"
            ),
            Self::Generated(_) => f.write_str("the generated functions cannot be added"),
            Self::NoSuchThread { id } => write!(f, "this process has no thread {id}"),
            Self::Text { address, errno } => write!(
                f,
                "cannot write to the text at {address:#x}: {}",
                Forbidden(*errno)
            ),
        }
    }
}

/// A list: writes ten items at most, and the number of the others.
struct FirstTen<I>(I);

impl<I: Iterator<Item: fmt::Display> + ExactSizeIterator + Clone> fmt::Display for FirstTen<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MOST: usize = 10;
        for (nth, item) in self.0.clone().take(MOST).enumerate() {
            write!(f, "{}{item}", if nth == 0 { "" } else { ", " })?;
        }
        match self.0.len().saturating_sub(MOST) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

impl core::error::Error for Error {
    /// Returns the error that this one carries: a [`FilterError`], [`Unsupported`] or
    /// [`GeneratedError`]. The text of this one does not repeat what the carried one says, so print
    /// both.
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Filter(error) => Some(error),
            Self::Unsupported(error) => Some(error),
            Self::Generated(error) => Some(error),
            _ => None,
        }
    }
}

impl From<FilterError> for Error {
    fn from(error: FilterError) -> Self {
        Self::Filter(error)
    }
}

impl From<GeneratedError> for Error {
    fn from(error: GeneratedError) -> Self {
        Self::Generated(error)
    }
}

impl From<Unsupported> for Error {
    fn from(error: Unsupported) -> Self {
        Self::Unsupported(error)
    }
}

impl From<Infallible> for Error {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

/// Why functions that the program has generated cannot be [added](crate::add_functions).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GeneratedError {
    /// There are none.
    Empty,
    /// A function has no bytes, no name, or a name with a NUL in it.
    Malformed {
        /// Its name.
        name: String,
        /// Its address.
        address: usize,
        /// The number of its bytes.
        size: usize,
    },
    /// Between the first byte of the first function and the last of the last there is memory that
    /// cannot be read and executed.
    NotText {
        /// Where.
        address: usize,
    },
    /// The functions are more than 256 MiB apart.
    TooFarApart {
        /// The address of the first.
        first: usize,
        /// Behind the last.
        end: usize,
    },
    /// Between the first function and the last there is code of a library, or of functions that
    /// were added before.
    OfModule {
        /// Where.
        address: usize,
        /// Whose.
        module: String,
    },
}

impl fmt::Display for GeneratedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("there are no functions to add"),
            Self::Malformed {
                name,
                address,
                size,
            } => write!(
                f,
                "{name:?} at {address:#x} with {size} bytes is no function"
            ),
            Self::NotText { address } => {
                write!(f, "the memory at {address:#x} cannot be read and executed")
            }
            Self::TooFarApart { first, end } => write!(
                f,
                "the functions from {first:#x} to {end:#x} are more than 256 MiB apart"
            ),
            Self::OfModule { address, module } => {
                write!(f, "the code at {address:#x} is of {module}")
            }
        }
    }
}

impl core::error::Error for GeneratedError {}

/// A feature that the machine or the kernel lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unsupported {
    /// `membarrier(2)` with private expedited commands (Linux 4.16); the error number it gave.
    Membarrier(i32),
    /// Memory, of a thread's state or of a tracer, could not be mapped; the error number.
    Memory(i32),
    /// The handler of SIGTRAP could not be installed; the error number.
    Sigtrap(i32),
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, errno) = match self {
            Self::Membarrier(errno) => ("membarrier with private expedited sync-core", errno),
            Self::Memory(errno) => ("memory for what is traced", errno),
            Self::Sigtrap(errno) => ("a handler of SIGTRAP", errno),
        };
        let error = std::io::Error::from_raw_os_error(*errno);
        write!(f, "this system does not give {what}: {error}")
    }
}

impl core::error::Error for Unsupported {}

/// Why fgraph has stopped for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopReason {
    /// [`stop`](crate::stop) was called.
    Requested,
    /// A call came back whose frame is not on its thread's shadow stack.
    StrayFrame,
    /// A site could not be written to, nor put back.
    Text,
}

impl StopReason {
    pub(crate) const fn code(self) -> u32 {
        match self {
            Self::Requested => 1,
            Self::StrayFrame => fgraph_core::stop::STRAY_FRAME,
            Self::Text => 3,
        }
    }

    pub(crate) const fn from_code(code: u32) -> Option<Self> {
        match code {
            0 => None,
            1 => Some(Self::Requested),
            3 => Some(Self::Text),
            _ => Some(Self::StrayFrame),
        }
    }
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Requested => "the program has stopped it",
            Self::StrayFrame => "a call came back whose frame is not on its shadow stack",
            Self::Text => "a site could not be written to, nor put back",
        })
    }
}

/// Why the functions of a file cannot be listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileError(pub(crate) String);

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl core::error::Error for FileError {}

/// Why a function that a filter selects cannot be traced.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RefusalReason {
    /// The instructions at its entry cannot be displaced.
    Displace(RelocateError),
    /// It is a system call that a function makes itself, and cannot be traced.
    SystemCall(SystemCallError),
    /// Another function jumps into its first instructions.
    Entered {
        /// The number of bytes behind the entry.
        to: usize,
    },
    /// Another function begins so near before it that the jump there reaches over its entry.
    Overlap,
    /// It would be misled by being traced; the reason.
    Notrace(&'static str),
    /// The bytes at its entry are not those of the file: something other than fgraph has patched
    /// it.
    Patched {
        /// The bytes that are there.
        found: [u8; 5],
    },
    /// An IFUNC's resolver, which runs while the program is being linked. The function that it
    /// chooses goes by the same name, and can be traced.
    Resolver,
    /// It is not in memory that is executable text.
    NotText,
    /// Its text can be written to, so it may be changed by others at any time.
    Writable,
    /// Its text cannot be read.
    Unreadable,
    /// The dynamic linker writes to its first instructions when it loads the module (a text
    /// relocation).
    TextRelocation,
    /// The bytes at its entry have changed since they were first read.
    Changed {
        /// The bytes that are there now. Where a [breakpoint](crate::TraceMethod::Breakpoint) would
        /// be, only the first byte is looked at, and the others are those of the file.
        found: [u8; 5],
    },
    /// Threads run it with all signals blocked, and a trap would kill them. Its text must be
    /// exchanged as a whole, and cannot: a debugger has attached, the file was replaced, it is
    /// sealed, or it is locked and no more memory may be locked.
    NotExchanged,
    /// No free memory within reach of a jump (2 GiB).
    OutOfReach,
    /// 2^24 functions have a [number](crate::Function::index) already.
    NoIndex,
    /// No free memory at any of the places where a stub could be, so that threads within the
    /// function's first instructions are safe.
    NoPlace,
    /// The system does not let memory be made executable; the error number.
    NotExecutable(i32),
    /// Its module cannot be read.
    Module(String),
}

impl RefusalReason {
    /// The reason without what is of one function only, such as addresses: to count functions by.
    ///
    /// ```
    /// use fgraph::RefusalReason;
    ///
    /// let [near, far] = [1, 4].map(|to| RefusalReason::Entered { to });
    /// assert_eq!(near.category(), far.category());
    /// ```
    #[must_use]
    pub fn category(&self) -> String {
        use RelocateError as E;
        let text = match self {
            Self::Displace(error) => match error {
                E::TooShort { .. } => "shorter than a jump, and no padding behind",
                E::Undecodable { .. } => "has bytes that are no instruction",
                E::Breakpoint { .. } => "has a breakpoint in its first instructions",
                E::Unmovable { .. } => "has an instruction that depends on where it is",
                E::Returns { .. } => "has a call that returns into the bytes of the jump",
                E::Target { .. } => "has a branch into the bytes of the jump",
                E::Loop { .. } => "has a branch back to its entry: every round would be a call",
                E::StackPointer { .. } => "changes rsp so that its caller's frame cannot be found",
                other => return other.to_string(),
            },
            Self::SystemCall(SystemCallError::Special { .. }) => {
                "may end or move the stack, or come back elsewhere"
            }
            Self::Entered { .. } => "another function jumps to where the jump would be",
            Self::Patched { .. } => "was patched by something else",
            Self::Changed { .. } => "has changed since it was first read",
            other => return other.to_string(),
        };
        text.to_owned()
    }
}

impl fmt::Display for RefusalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Displace(error) => error.fmt(f),
            Self::SystemCall(error) => error.fmt(f),
            Self::Entered { to } => write!(
                f,
                "another function jumps to +{to:#x}, where the jump would be"
            ),
            Self::Overlap => f.write_str("the jump at the function before reaches over its entry"),
            Self::Notrace(reason) => f.write_str(reason),
            Self::Patched { found } => {
                f.write_str("holds")?;
                show(f, found)?;
                f.write_str(", not what is in the file: patched by something else")
            }
            Self::Resolver => f.write_str("is the resolver of an IFUNC"),
            Self::NotText => f.write_str("is not in executable text"),
            Self::Writable => f.write_str("is in text that can be written to"),
            Self::TextRelocation => {
                f.write_str("the linker writes to its first instructions when it loads them")
            }
            Self::Unreadable => f.write_str("is in text that cannot be read"),
            Self::Changed { found } => {
                f.write_str("now holds")?;
                show(f, found)
            }
            Self::NotExchanged => f.write_str(
                "runs in threads that block all signals, and its text cannot be exchanged",
            ),
            Self::OutOfReach => f.write_str("no free memory within 2 GiB for its stub"),
            Self::NoIndex => f.write_str("16,777,216 functions have a number already"),
            Self::NoPlace => f.write_str("no free memory where its stub could be"),
            Self::NotExecutable(errno) => {
                write!(
                    f,
                    "no executable memory for its stub: {}",
                    Forbidden(*errno)
                )
            }
            Self::Module(error) => f.write_str(error),
        }
    }
}

/// True if the error number may be that of a policy.
pub(crate) fn is_forbidden(errno: i32) -> bool {
    [libc::EACCES, libc::EPERM].contains(&errno)
}

/// The number of an error of making or changing code, and what to permit if a policy forbids it.
struct Forbidden(i32);

impl fmt::Display for Forbidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(errno) = *self;
        std::io::Error::from_raw_os_error(errno).fmt(f)?;
        if !is_forbidden(errno) {
            return Ok(());
        }
        f.write_str(
            ": permit the program to change its code: in SELinux execmem and execmod, in systemd \
             MemoryDenyWriteExecute=no; PR_SET_MDWE and seccomp filters forbid it, too",
        )
    }
}

fn show(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, " {byte:02x}"))
}

/// A function, or a whole module, that cannot be traced.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RefusedFunction {
    /// Name of the function; empty for a module.
    pub name: String,
    /// Path of the module.
    pub module: String,
    /// Address of the function's entry; 0 for a module.
    pub address: usize,
    /// The reason.
    pub reason: RefusalReason,
}

impl fmt::Display for RefusedFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.address == 0 {
            write!(f, "{}: {}", self.module, self.reason)
        } else {
            write!(f, "{} at {:#x}: {}", self.name, self.address, self.reason)
        }
    }
}

/// The number of functions that a word of a filter has matched.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WordReport {
    /// The word; with a `!` before it if it says what is not to be traced.
    pub word: String,
    /// The number of functions that match it, whether they can be traced or not, in the modules in
    /// which the filter selects any.
    pub functions: usize,
}

/// Numbers of functions that a filter selects, and the functions that it cannot trace.
///
/// ```
/// # use fgraph::{Entry, FgraphOps};
/// # struct Nothing;
/// # impl FgraphOps for Nothing {
/// #     type Data = ();
/// #     fn entry(&self, _call: &mut Entry<'_, ()>) -> Option<()> { None }
/// # }
/// let options = fgraph::Options::new().allow_no_match();
/// // SAFETY: its callbacks do nothing.
/// let user = unsafe { fgraph::register_with(Nothing, "malloc no_such_function", &options) }?;
/// let report = user.report()?;
/// assert_eq!(report.unmatched().collect::<Vec<_>>(), ["no_such_function"]);
/// # Ok::<(), fgraph::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FilterReport {
    /// Functions that the user's filter selects and that are traced now.
    pub traced: usize,
    /// Functions whose entry was patched when the filter was last changed; others that it selects
    /// had a user already.
    pub patched: usize,
    /// Functions that the user's filter selects and that cannot be traced.
    pub refused: Vec<RefusedFunction>,
    /// The number of functions that match each word of the filter; or only for the word that was
    /// added or removed, when that is reported.
    pub words: Vec<WordReport>,
}

impl FilterReport {
    /// Returns true if the filter selects no function at all: most likely not what was meant.
    pub fn matches_nothing(&self) -> bool {
        self.traced == 0 && self.refused.is_empty()
    }

    /// The [reasons](RefusalReason::category) for the refusals, each with the number of functions
    /// that it holds for: the most frequent first.
    pub fn reasons(&self) -> Vec<(String, usize)> {
        reasons(&self.refused)
    }

    /// The words that match no function.
    pub fn unmatched(&self) -> impl Iterator<Item = &str> {
        let words = self.words.iter().filter(|word| word.functions == 0);
        words.map(|word| &*word.word)
    }
}

/// Counts the reasons of refusals, the most frequent first.
fn reasons(refused: &[RefusedFunction]) -> Vec<(String, usize)> {
    let mut counts = BTreeMap::<String, usize>::new();
    for refused in refused {
        *counts.entry(refused.reason.category()).or_default() += 1;
    }
    let mut reasons: Vec<_> = counts.into_iter().collect();
    reasons.sort_by_key(|&(_, count)| Reverse(count));
    reasons
}

/// Writes that all selected functions were refused, with the most frequent reasons.
fn none_traced(f: &mut fmt::Formatter<'_>, refused: &[RefusedFunction]) -> fmt::Result {
    let count = refused.len();
    write!(f, "none of {count} selected functions can be traced")?;
    let mut most_frequent = reasons(refused).into_iter().take(3);
    most_frequent.try_for_each(|(reason, count)| write!(f, "; {count}: {reason}"))
}

impl fmt::Display for FilterReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.matches_nothing() {
            return f.write_str("warning: the filter matches no function");
        }
        if self.traced == 0 {
            return none_traced(f, &self.refused);
        }
        write!(f, "{} functions traced", self.traced)?;
        if !self.refused.is_empty() {
            write!(f, ", {} refused", self.refused.len())?;
        }
        Ok(())
    }
}
