//! Signals that a thread blocks while it does our work.

use libc::c_int;

/// Signal by which the C library cancels a thread, and which its timers wait for.
const SIGCANCEL: c_int = 32;
/// Signal by which the C library makes a thread change its user or group.
const SIGSETXID: c_int = 33;

/// Signals that the thread itself may raise. Blocking them would end the process.
const FAULTS: [c_int; 5] = [
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGSEGV,
];

const fn set<const N: usize>(signals: [c_int; N]) -> u64 {
    let (mut set, mut at) = (0, 0);
    while at < N {
        set |= 1 << (signals[at] - 1);
        at += 1;
    }
    set
}

/// Signals that are blocked while the thread makes system calls and waits for us: no handler runs.
pub(crate) const BLOCKED: u64 = !set(FAULTS);

/// Owner of a thread that does our work.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Whose {
    Programs,
    Ours,
}

/// Returns the signals of [`BLOCKED`] that the thread unblocks while it calls functions of the C
/// library.
///
/// A thread that sends `SIGSETXID` waits for the handlers of all threads, and holds a lock that
/// making a thread takes. `SIGCANCEL` may unwind a thread of the program, which must not happen in
/// our code, and nobody waits for its handler. A thread of ours unblocks it, as all threads of the
/// C library do, because the threads that libraries make there inherit the set.
pub(crate) const fn unblocked_in_functions(whose: Whose) -> u64 {
    match whose {
        Whose::Programs => set([SIGSETXID]),
        Whose::Ours => set([SIGSETXID, SIGCANCEL]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_handlers_that_nobody_waits_for_are_blocked() {
        let is_in = |set: u64, signal: c_int| set >> (signal - 1) & 1 != 0;
        assert!(FAULTS.iter().all(|&fault| !is_in(BLOCKED, fault)));
        assert_eq!(BLOCKED.count_zeros() as usize, FAULTS.len());
        for (whose, internal) in [(Whose::Programs, [false, true]), (Whose::Ours, [true; 2])] {
            let unblocked = unblocked_in_functions(whose);
            assert_eq!([32, 33].map(|signal| is_in(unblocked, signal)), internal);
            assert_eq!(unblocked & !BLOCKED, 0);
            assert!(![1, 15, 31, 34, 64].iter().any(|&it| is_in(unblocked, it)));
        }
    }
}
