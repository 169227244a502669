//! Threads whose own context goes on in another thread for a while, as runtimes of fibres have it.
//!
//! ```text
//!   a thread         own stack:    calls, down to the bottom --+              +-- its last calls
//!                    small stack:                              +-- waits -----+
//!   another thread   the first one's own stack:                  returns, calls
//! ```
//!
//! The own stack is one of those that are nobody's home: that a call there does not go on is not
//! known.
//!
//! # Safety
//!
//! One thread at a time runs the context: its own waits on another stack until the other one has
//! left it. The journey outlives both threads, which are waited for.

use std::cell::Cell;
use std::ffi::c_void;
use std::{mem, ptr, thread};

use super::act::Act;
use super::memory::StackMemory;
use super::memory::switch::switch_stacks;
use super::signals::Actor;
use super::towers::Tower;

use crate::failures::{Failure, note};
use crate::rng::Rng;
use crate::threads;
use crate::workers;

/// A thread's own context on its way.
struct Journey {
    /// The number of both threads.
    number: usize,
    sites: usize,
    seed: u64,
    /// The stack on which the thread waits.
    small: StackMemory,
    /// The stack pointer of the context while no thread runs it.
    context: usize,
    /// The stack pointer of the other thread while it runs the context; 0 if there is none.
    host: usize,
}

thread_local! {
    static JOURNEY: Cell<*mut Journey> = const { Cell::new(ptr::null_mut()) };
}

/// Starts a thread that travels, and waits for it.
pub(crate) fn travel(actor: &Actor, rng: &mut Rng) {
    let take = |rng: &mut Rng| StackMemory::take(rng.once_in(2));
    let (Some(own), Some(small)) = (take(rng), take(rng)) else {
        return;
    };
    let mut journey = Journey {
        number: actor.number,
        sites: actor.sites,
        seed: rng.next(),
        small,
        context: 0,
        host: 0,
    };
    let stack = own.usable();
    // SAFETY: the attributes are complete; the stack is nobody's, and outlives the thread, as the
    // journey does.
    let error = unsafe {
        let mut attributes = mem::zeroed();
        libc::pthread_attr_init(&mut attributes);
        let low = ptr::with_exposed_provenance_mut(stack.start);
        libc::pthread_attr_setstack(&mut attributes, low, stack.len());
        let mut thread = 0;
        let argument = (&raw mut journey).cast();
        let error = match libc::pthread_create(&mut thread, &attributes, live, argument) {
            0 => libc::pthread_join(thread, ptr::null_mut()),
            error => error,
        };
        libc::pthread_attr_destroy(&mut attributes);
        error
    };
    if error != 0 {
        note(Failure::System, Act::Context as u64, error as u64);
    }
}

/// Goes on in another thread at the bottom of a tower, and comes back when it is climbed.
extern "C" fn live(journey: *mut c_void) -> *mut c_void {
    let journey: *mut Journey = journey.cast();
    // SAFETY: what `travel` has handed over.
    let (number, sites, seed) = unsafe { ((*journey).number, (*journey).sites, (*journey).seed) };
    threads::enter(number);
    let mut rng = Rng::from_state(seed);
    let value = rng.next();
    let bottom = || {
        // SAFETY: the journey has not begun.
        unsafe { leave(journey) };
        value
    };
    let tower = Tower::of_all(&mut rng, sites, &bottom);
    let levels = rng.below(8);
    let is_right = tower.climb(levels) == tower.result(levels, value);
    let mut call_some = || {
        for _ in 0..rng.below(16) {
            workers::call(rng.below(sites), rng.next());
        }
    };
    call_some();
    // SAFETY: it has begun.
    unsafe { come_back(journey) };
    call_some();
    if !is_right {
        note(Failure::Way, Act::Context as u64, levels as u64);
    }
    ptr::null_mut()
}

/// Goes on in another thread.
///
/// # Safety
///
/// The journey must not have begun.
unsafe fn leave(journey: *mut Journey) {
    JOURNEY.set(journey);
    // SAFETY: room for six registers, the start, and a return address, in a stack that nobody uses.
    unsafe {
        let top = ptr::with_exposed_provenance_mut::<usize>((*journey).small.usable().end);
        top.sub(2).write(wait as *const () as usize);
        let waits = top.sub(8).expose_provenance();
        switch_stacks(&raw mut (*journey).context, waits);
    }
}

/// Goes on in the context's own thread.
///
/// # Safety
///
/// The journey must have begun.
unsafe fn come_back(journey: *mut Journey) {
    // SAFETY: the other thread, if there is one, waits in `host`.
    unsafe {
        if (*journey).host != 0 {
            switch_stacks(&raw mut (*journey).context, (*journey).host);
        }
    }
}

/// Work of the context's own thread while another thread runs the context.
extern "C" fn wait() -> ! {
    struct Sent(*mut Journey);
    // SAFETY: see above.
    unsafe impl Send for Sent {}
    let journey = JOURNEY.get();
    let sent = Sent(journey);
    let host = thread::Builder::new().spawn(move || host({ sent }.0));
    let is_done = host.is_ok_and(|host| host.join().is_ok());
    if !is_done {
        note(Failure::System, Act::Context as u64, 0);
    }
    let mut left = 0;
    // SAFETY: the other thread has left the context, or has never run it.
    unsafe { switch_stacks(&raw mut left, (*journey).context) };
    unreachable!("no thread has kept this context")
}

/// Runs the context until it has come back.
fn host(journey: *mut Journey) {
    // SAFETY: its own thread has left the context, and waits.
    unsafe {
        threads::enter((*journey).number);
        switch_stacks(&raw mut (*journey).host, (*journey).context);
    }
}
