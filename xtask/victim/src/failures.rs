//! What went wrong, written down without locks or memory, since it may be in a signal handler.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// What can go wrong. Each comes with two numbers that say where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Failure {
    /// A function's result is not that of its formula.
    Result,
    /// A callback ran for a user that was unregistered.
    Late,
    /// A return came without an accepted entry.
    Unpaired,
    /// The data that came with a return is not what its entry gave.
    Data,
    /// The return is of another function than the entry.
    Function,
    /// Depth, stack pointer or return address differ between entry and return.
    Place,
    /// The data of the enclosing call is not that of the enclosing call.
    Parent,
    /// A word of this thread's is not what this thread and user stored.
    Word,
    /// A callback ran under the id of another thread.
    Thread,
    /// The result that a return callback sees is not that of the function.
    Seen,
    /// A name is not the function's.
    Name,
    /// Accepted calls are still open though their functions have returned.
    Open,
    /// Accepted calls are not those that returned and those in flight together.
    Count,
    /// Calls overran, were lost, found no room or were on a stack without a shadow stack.
    Dropped,
    /// Calls in a thread have no state.
    Unattached,
    /// A filter selected more or fewer functions than it should.
    Selected,
    /// fgraph refused an operation, or stopped.
    Refused,
    /// The program's text is not what it was.
    Text,
    /// Sites are patched though nobody is registered.
    Patched,
    /// The calls that were lost are not those that did not return.
    Lost,
    /// A forked child, a program or a thread did not end as it should.
    Ended,
    /// The system refused something.
    System,
    /// Control did not come back the way it should.
    Way,
}

const KINDS: [(Failure, &str); 23] = [
    (Failure::Result, "wrong result (function, argument)"),
    (
        Failure::Late,
        "callback after unregister (user, registration)",
    ),
    (
        Failure::Unpaired,
        "return without an entry (user, function)",
    ),
    (Failure::Data, "data is not the entry's (user, function)"),
    (
        Failure::Function,
        "return of another function (of entry, of return)",
    ),
    (
        Failure::Place,
        "depth or addresses differ from the entry's (user, function)",
    ),
    (
        Failure::Parent,
        "parent data is not the enclosing call's (user, function)",
    ),
    (
        Failure::Word,
        "thread word is not this thread's (user, word)",
    ),
    (Failure::Thread, "wrong thread id (is, should be)"),
    (
        Failure::Seen,
        "result seen on return is wrong (user, function)",
    ),
    (Failure::Name, "name is not the function's (user, function)"),
    (
        Failure::Open,
        "calls still open in an idle thread (user, calls)",
    ),
    (
        Failure::Count,
        "accepted, returned and in flight do not add up (user, excess)",
    ),
    (
        Failure::Dropped,
        "overrun, lost, unreserved or without a shadow stack (user or -1, calls)",
    ),
    (Failure::Unattached, "calls without a thread state (calls)"),
    (Failure::Selected, "functions selected (are, should be)"),
    (Failure::Refused, "operation refused (user, operation)"),
    (Failure::Text, "text differs (address, bytes)"),
    (Failure::Patched, "sites patched at the end (sites)"),
    (
        Failure::Lost,
        "lost calls are not those without a return (user, lost << 32 | unreturned)",
    ),
    (Failure::Ended, "did not end as it should (act, how)"),
    (Failure::System, "the system refused (act, error)"),
    (Failure::Way, "control came another way (act, how)"),
];

/// Details are kept of the first so many.
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

/// What is there; else the process ends here, without a panic: the code of users that are to take
/// the fast path must have none.
#[inline(always)]
pub(crate) fn must<T>(found: Option<T>) -> T {
    found.unwrap_or_else(|| {
        // SAFETY: does not return.
        unsafe { std::arch::asm!("ud2", options(noreturn, nomem, nostack)) }
    })
}

/// How many there were.
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
            writeln!(f, "{}: {first:#x}, {second:#x}", KINDS[kind].1)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_at_its_place() {
        for (position, (kind, _)) in KINDS.iter().enumerate() {
            assert_eq!(*kind as usize, position);
        }
    }
}
