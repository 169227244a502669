//! Failures, noted without locks or memory, since that may be in a signal handler.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Makes [`Failure`], and the texts for its kinds.
macro_rules! failures {
    ($($(#[$doc:meta])* $name:ident => $text:literal,)*) => {
        /// A failure. Each comes with two numbers that say where it was.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub(crate) enum Failure {
            $($(#[$doc])* $name,)*
        }

        /// Text for each kind, in the order of these.
        const TEXTS: &[&str] = &[$($text),*];
    };
}

failures! {
    /// A function's result is not that of its formula.
    Result => "wrong result (function, argument)",
    /// A callback ran for a user that was unregistered.
    Late => "callback after unregister (user, registration)",
    /// A return came without an accepted entry.
    Unpaired => "return without an entry (user, function)",
    /// The data that came with a return is not what its entry gave.
    Data => "data is not the entry's (user, function)",
    /// The return is of another function than the entry.
    Function => "return of another function (of entry, of return)",
    /// Depth, stack pointer or return address differ between entry and return.
    Place => "depth or addresses differ from the entry's (user, function)",
    /// The data of the enclosing call is not that of the enclosing call.
    Parent => "parent data is not the enclosing call's (user, function)",
    /// A word of this thread's is not what this thread and user stored.
    Word => "thread word is not this thread's (user, word)",
    /// A callback ran under the id of another thread.
    Thread => "wrong thread id (is, should be)",
    /// The result that a return callback sees is not that of the function.
    Seen => "result seen on return is wrong (user, function)",
    /// A name is not the function's.
    Name => "name is not the function's (user, function)",
    /// Accepted calls are still open though their functions have returned.
    Open => "calls still open in an idle thread (user, calls)",
    /// Accepted calls are not those that returned and those in flight together.
    Count => "accepted, returned and in flight do not add up (user, excess)",
    /// Calls overran, were lost, found no room or were on a stack without a shadow stack.
    Dropped => "overrun, lost, unreserved or without a shadow stack (user or -1, calls)",
    /// Calls in a thread have no state.
    Unattached => "calls without a thread state (calls)",
    /// A filter selected more or fewer functions than it should.
    Selected => "functions selected (are, should be)",
    /// fgraph refused an operation, or stopped.
    Refused => "operation refused (user, operation)",
    /// The program's text is not what it was.
    Text => "text differs (address, bytes)",
    /// Sites are patched though nobody is registered.
    Patched => "sites patched at the end (sites)",
    /// The calls that were lost are not those that did not return.
    Lost => "lost calls are not those without a return (user, lost << 32 | unreturned)",
    /// A forked child, a program or a thread did not end as it should.
    Ended => "did not end as it should (act, how)",
    /// The system refused something.
    System => "the system refused (act, error)",
    /// Control did not come back the way it should.
    Way => "control came another way (act, how)",
}

/// Number of failures whose details are kept.
const KEPT: usize = 32;

#[derive(Debug)]
struct Kept {
    /// The failure plus one; 0: not written yet.
    kind: AtomicUsize,
    numbers: [AtomicU64; 2],
}

static KEPT_FAILURES: [Kept; KEPT] = [const {
    Kept {
        kind: AtomicUsize::new(0),
        numbers: [const { AtomicU64::new(0) }; 2],
    }
}; KEPT];
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Notes a failure.
#[cold]
#[inline(never)]
pub(crate) fn note(failure: Failure, first: u64, second: u64) {
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    if let Some(kept) = KEPT_FAILURES.get(number) {
        kept.numbers[0].store(first, Ordering::Relaxed);
        kept.numbers[1].store(second, Ordering::Relaxed);
        // Release pairs with the Acquire in `fmt`: the numbers are complete.
        kept.kind.store(failure as usize + 1, Ordering::Release);
    }
}

/// Returns the value, or else ends the process without a panic: the code of users that are to take
/// the fast path must have none.
#[inline(always)]
pub(crate) fn must<T>(found: Option<T>) -> T {
    found.unwrap_or_else(|| {
        // SAFETY: does not return.
        unsafe { std::arch::asm!("ud2", options(noreturn, nomem, nostack)) }
    })
}

/// Returns the number of failures.
pub(crate) fn count() -> usize {
    COUNT.load(Ordering::Relaxed)
}

/// Shows the first failures, one a line.
#[derive(Debug)]
pub(crate) struct List;

impl fmt::Display for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for kept in &KEPT_FAILURES {
            let Some(kind) = kept.kind.load(Ordering::Acquire).checked_sub(1) else {
                continue;
            };
            let [first, second] = kept.numbers.each_ref().map(|n| n.load(Ordering::Relaxed));
            writeln!(f, "{}: {first:#x}, {second:#x}", TEXTS[kind])?;
        }
        Ok(())
    }
}
