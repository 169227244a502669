//! Holds back calls of the C library that must not run while text is changed.
//!
//! A child of `posix_spawn` or `vfork` that is between two displaced instructions when these change
//! traps there, and dies if it blocks the signal (`patching/blocked.rs`). A program that makes its
//! text writable (`mprotect`) while new text is moved there would lose the right to write it.
//!
//! So the bodies of these functions are behind gates (`fgraph_x86_64::call_gate`): their sites are
//! patched from when they are first made until the last user goes, and their stubs lead to the
//! gates.
//!
//! Neither side waits for long. A call that has waited for a tenth of a second opens the gate and
//! continues, and so does the thread that has closed it. While text moves the gate is locked
//! ([`Closed::lock`]), which takes no longer than the system call, and no call opens it.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use super::linker;
use crate::arch::call_gate::{FUNCTIONS, Gate, MAPPINGS, SPAWNS, stand_at, thread_pointer};
use crate::arch::trampoline;
use crate::os;

/// The addresses of the functions; 0 if unknown.
static ADDRESSES: [AtomicUsize; FUNCTIONS.len()] = [const { AtomicUsize::new(0) }; FUNCTIONS.len()];

/// For each function, true if its gate has replaced its body.
static STAND: [AtomicBool; FUNCTIONS.len()] = [const { AtomicBool::new(false) }; FUNCTIONS.len()];

/// Finds the functions.
pub(crate) fn find() {
    for (address, name) in ADDRESSES.iter().zip(FUNCTIONS) {
        address.store(linker::symbol(name).addr(), Ordering::Relaxed);
    }
}

/// Replaces the body of the function at `address`, whose relocated prologue is at `prologue`.
/// Returns the address at which its stub continues instead; `None` if the function needs no gate.
pub(crate) fn take_place_of(address: usize, prologue: usize) -> Option<usize> {
    let mut known = ADDRESSES.iter();
    let index = known.position(|known| known.load(Ordering::Relaxed) == address)?;
    STAND[index].store(true, Ordering::Relaxed);
    // SAFETY: the relocated prologue of that function, which is never freed. A program's own
    // replacement of the C library's function has the same arguments.
    Some(unsafe { stand_at(index, prologue) })
}

/// Returns the addresses of the functions whose body was replaced.
pub(crate) fn functions() -> impl Iterator<Item = usize> {
    let known = ADDRESSES.iter().zip(&STAND);
    let taken = known.filter(|(_, stands)| stands.load(Ordering::Relaxed));
    taken.map(|(address, _)| address.load(Ordering::Relaxed))
}

/// Returns true for an address in a gate: a thread that sleeps there waits for it to open.
pub(crate) fn has(address: usize) -> bool {
    trampoline::own_text().contains(&address)
}

/// The number of calls of [`SPAWNS`] that were inside when the wait timed out. They may have been
/// left with `longjmp`.
static GIVEN_UP: AtomicU32 = AtomicU32::new(0);

/// Holds calls of other threads back until it is dropped.
#[derive(Debug)]
pub(crate) struct Closed(&'static Gate);

/// Holds back processes that start in the memory of this one, and waits for those that start.
pub(crate) fn hold_spawns() -> Closed {
    let closed = Closed(&SPAWNS);
    closed.renew();
    closed
}

/// Holds back changes of mappings and of their rights, and waits for those in progress. Returns
/// `None` if one of them takes long, as it does where it fills memory.
pub(crate) fn hold_mappings() -> Option<Closed> {
    const PATIENCE: Duration = Duration::from_millis(10);
    let closed = Closed(&MAPPINGS);
    closed.close();
    let left = closed.await_calls(PATIENCE, 0);
    (left == 0).then_some(closed)
}

impl Closed {
    fn close(&self) {
        let gate = self.0;
        gate.owner.store(thread_pointer(), Ordering::Relaxed);
        // SeqCst pairs with the count of a call, which precedes its check of the gate.
        gate.closed.store(Gate::CLOSED, Ordering::SeqCst);
    }

    /// Locks the gate until it is dropped. Returns false if a call has waited too long, and opened
    /// it. Meanwhile this thread must not wait for another one, nor allocate.
    pub(crate) fn lock(&self) -> bool {
        let closed = &self.0.closed;
        let locked = closed.compare_exchange(
            Gate::CLOSED,
            Gate::LOCKED,
            Ordering::SeqCst,
            Ordering::SeqCst,
        );
        locked.is_ok()
    }

    /// Waits until no more than `few` calls that have passed are inside. Returns their number.
    fn await_calls(&self, patience: Duration, few: u32) -> u32 {
        let start = os::now();
        loop {
            let inside = self.0.inside.load(Ordering::SeqCst);
            if inside <= few || os::now() - start >= patience {
                return inside;
            }
            os::nap();
        }
    }

    /// Closes the gate of [`SPAWNS`] again, if a call has waited too long, and waits for calls that
    /// have passed.
    pub(crate) fn renew(&self) {
        const PATIENCE: Duration = Duration::from_millis(100);
        self.close();
        let left = self.await_calls(PATIENCE, GIVEN_UP.load(Ordering::Relaxed));
        GIVEN_UP.store(left, Ordering::Relaxed);
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        self.0.closed.store(0, Ordering::SeqCst);
        os::wake_all(&self.0.closed);
    }
}

/// Opens the gates in a child, which has only the thread that has forked.
pub(crate) fn after_fork() {
    GIVEN_UP.store(0, Ordering::SeqCst);
    for gate in [&SPAWNS, &MAPPINGS] {
        gate.closed.store(0, Ordering::SeqCst);
        gate.inside.store(0, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use core::ffi::CStr;
    use std::sync::mpsc;
    use std::thread;

    use super::*;
    use crate::os::status::Activity;

    /// Stands in for `posix_spawn`. Returns its arguments in one number, if the gate is in the
    /// right state.
    extern "C" fn spawns(a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> usize {
        let is_open = SPAWNS.closed.load(Ordering::Relaxed) == 0;
        let is_counted = SPAWNS.inside.load(Ordering::Relaxed) == 1;
        let all = [a, b, c, d, e, f];
        all.into_iter()
            .filter(|_| is_open && is_counted)
            .fold(0, |number, digit| 10 * number + digit)
    }

    #[test]
    fn a_call_waits_at_the_closed_gate_and_keeps_its_arguments() {
        type Spawns = extern "C" fn(usize, usize, usize, usize, usize, usize) -> usize;
        // SAFETY: the function has the arguments of `posix_spawn`, and no site leads to the gate.
        let gate = unsafe { stand_at(0, spawns as *const () as usize) };
        // SAFETY: the gate leads to a function of that type.
        let gate = unsafe { core::mem::transmute::<usize, Spawns>(gate) };
        assert_eq!(gate(1, 2, 3, 4, 5, 6), 123_456);
        let closed = hold_spawns();
        let (say, said) = mpsc::channel();
        let caller = thread::spawn(move || {
            say.send(os::thread_id()).unwrap();
            gate(1, 2, 3, 4, 5, 6)
        });
        let thread = said.recv().unwrap();
        let waits = || matches!(Activity::of(thread), Some(Activity::Asleep { at, .. }) if has(at));
        // It does not wait without end.
        while !waits() && !caller.is_finished() {
            os::nap();
        }
        drop(closed);
        assert_eq!(caller.join().unwrap(), 123_456);
        assert_eq!(SPAWNS.inside.load(Ordering::Relaxed), 0);
        // Nor does it wait for a call that does not return.
        SPAWNS.inside.store(1, Ordering::Relaxed);
        drop(hold_spawns());
        SPAWNS.inside.store(0, Ordering::Relaxed);
    }

    #[test]
    fn a_closed_gate_lets_its_owner_pass_and_a_locked_one_no_other_call() {
        type Protects = extern "C" fn(usize, usize, usize, usize) -> usize;
        extern "C" fn protects(a: usize, b: usize, c: usize, key: usize) -> usize {
            let inside = MAPPINGS.inside.load(Ordering::Relaxed);
            inside as usize + 10 * (a + b + c) + 1000 * (key & 7)
        }
        let gate = |name: &CStr| {
            let index = FUNCTIONS.iter().position(|of_gate| *of_gate == name);
            // SAFETY: the function has the registers of both, and no site leads to the gate.
            let gate = unsafe { stand_at(index.unwrap(), protects as *const () as usize) };
            // SAFETY: the gate leads to a function of that type.
            unsafe { core::mem::transmute::<usize, Protects>(gate) }
        };
        let [protect, with_key] = [c"mprotect", c"pkey_mprotect"].map(gate);
        let closed = hold_mappings().unwrap();
        assert_eq!(protect(1, 2, 3, 4), 4061);
        assert_eq!(with_key(1, 2, 3, 4), 4061);
        // A call without a key goes on to `mprotect` and is not counted twice.
        assert_eq!(with_key(1, 2, 3, u32::MAX as usize), 7060);
        let other = thread::spawn(move || protect(1, 2, 3, 4));
        drop(closed);
        assert_eq!(other.join().unwrap(), 4061);
        // A call that has waited too long opens it, unless it is locked.
        let closed = hold_mappings().unwrap();
        let other = thread::spawn(move || protect(1, 2, 3, 4));
        assert_eq!(other.join().unwrap(), 4061);
        assert!(!closed.lock());
        drop(closed);
        let closed = hold_mappings().unwrap();
        assert!(closed.lock());
        let other = thread::spawn(move || protect(1, 2, 3, 4));
        thread::sleep(3 * Duration::from_millis(100));
        assert!(!other.is_finished());
        drop(closed);
        assert_eq!(other.join().unwrap(), 4061);
        // It is not closed while a call is inside.
        assert_eq!(MAPPINGS.inside.swap(1, Ordering::Relaxed), 0);
        assert!(hold_mappings().is_none());
        assert_eq!(MAPPINGS.inside.swap(0, Ordering::Relaxed), 1);
        assert_eq!(MAPPINGS.closed.load(Ordering::Relaxed), 0);
    }
}
