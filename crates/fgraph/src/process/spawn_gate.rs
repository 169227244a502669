//! Holds back processes that start in this process's memory, while text is changed.
//!
//! A child of `posix_spawn` or `vfork` that is between two displaced instructions when these change
//! traps there, and dies if it blocks the signal (`patching/blocked.rs`). So the bodies of these
//! functions are behind a gate (`fgraph_x86_64::spawn_gate`): their sites are patched from when
//! they are first made until the last user goes, and their stubs lead to the gate.
//!
//! Neither side waits for long. A call that has waited for a tenth of a second continues, and so
//! does the thread that has closed the gate.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use super::linker;
use crate::arch::spawn_gate::{CLOSED, FUNCTIONS, INSIDE, stand_at};
use crate::arch::trampoline;
use crate::os;

/// The addresses of the functions; 0 if unknown.
static ADDRESSES: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];

/// For each function, true if the gate has replaced its body.
static STAND: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];

/// The number of calls that were inside when the wait timed out. They may have been left with
/// `longjmp`.
static GIVEN_UP: AtomicU32 = AtomicU32::new(0);

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

/// Holds processes back until it is dropped.
#[derive(Debug)]
pub(crate) struct Closed(());

/// Closes the gate, and waits for calls that have passed it.
pub(crate) fn close() -> Closed {
    let closed = Closed(());
    closed.renew();
    closed
}

/// Returns true for an address in the gate: a thread that sleeps there waits for it to open.
pub(crate) fn has(address: usize) -> bool {
    trampoline::own_text().contains(&address)
}

impl Closed {
    /// Closes the gate again, if a call has waited too long, and waits for calls that have passed.
    pub(crate) fn renew(&self) {
        const PATIENCE: Duration = Duration::from_millis(100);
        // SeqCst pairs with the count of a call, which precedes its check of the gate.
        CLOSED.store(1, Ordering::SeqCst);
        let start = os::now();
        loop {
            let inside = INSIDE.load(Ordering::SeqCst);
            let is_over = os::now() - start >= PATIENCE;
            if is_over || inside <= GIVEN_UP.load(Ordering::Relaxed) {
                GIVEN_UP.store(inside, Ordering::Relaxed);
                return;
            }
            os::nap();
        }
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        CLOSED.store(0, Ordering::SeqCst);
        os::wake_all(&CLOSED);
    }
}

/// Opens the gate in a child, which has only the thread that has forked.
pub(crate) fn after_fork() {
    for number in [&CLOSED, &INSIDE, &GIVEN_UP] {
        number.store(0, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;
    use crate::os::status::Activity;

    /// Stands in for `posix_spawn`. Returns its arguments in one number, if the gate is in the
    /// right state.
    extern "C" fn spawns(a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> usize {
        let is_open = CLOSED.load(Ordering::Relaxed) == 0;
        let is_counted = INSIDE.load(Ordering::Relaxed) == 1;
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
        let closed = close();
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
        assert_eq!(INSIDE.load(Ordering::Relaxed), 0);
        // Nor does it wait for a call that does not return.
        INSIDE.store(1, Ordering::Relaxed);
        drop(close());
        INSIDE.store(0, Ordering::Relaxed);
    }
}
