//! Coroutines on stacks of their own: resumed in any order, by any thread, and dropped in the
//! middle.
//!
//! # Safety
//!
//! A coroutine is owned by the thread that resumes it, and waits otherwise. The calls on its stack
//! have nothing to clean up when it is dropped.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::ptr;
use std::sync::Mutex;

use super::act::Act;
use super::jumps;
use super::memory::StackMemory;
use super::memory::switch::switch_stacks;
use super::signals::Actor;
use super::towers::Tower;

use crate::failures::{Failure, note};
use crate::rng::Rng;
use crate::workers;

/// A coroutine, and what it works on.
struct Coroutine {
    memory: StackMemory,
    /// Its stack pointer while it waits.
    stack_pointer: usize,
    /// The stack pointer of the code that has resumed it.
    resumer: usize,
    rng: Rng,
    sites: usize,
    /// Rounds until it ends.
    left: usize,
    done: bool,
}

thread_local! {
    static RUNNING: Cell<*mut Coroutine> = const { Cell::new(ptr::null_mut()) };
}

/// Not inlined, as the thread may be another after a switch.
#[inline(never)]
fn running() -> *mut Coroutine {
    RUNNING.get()
}

/// A coroutine that waits.
struct Waiting(Box<Coroutine>);

// SAFETY: it does not know on which thread it goes on.
unsafe impl Send for Waiting {}

/// Coroutines that anybody may resume.
static WAITING: Mutex<Vec<Waiting>> = Mutex::new(Vec::new());

/// Most levels of a tower on the stack of a coroutine.
const MOST_LEVELS: usize = 12;

impl Waiting {
    fn new(memory: StackMemory, rng: &mut Rng, sites: usize) -> Self {
        let top = ptr::with_exposed_provenance_mut::<usize>(memory.usable().end);
        // SAFETY: room for six registers, the start, and a return address, in a stack that nobody
        // uses.
        let stack_pointer = unsafe {
            top.sub(2).write(start as *const () as usize);
            top.sub(8).expose_provenance()
        };
        Self(Box::new(Coroutine {
            memory,
            stack_pointer,
            resumer: 0,
            rng: Rng::from_state(rng.next()),
            sites,
            left: 1 + rng.below(20),
            done: false,
        }))
    }

    fn resume(&mut self) {
        let coroutine = &raw mut *self.0;
        RUNNING.set(coroutine);
        // SAFETY: it waits in `wait`, or has not begun.
        unsafe {
            switch_stacks(&raw mut (*coroutine).resumer, (*coroutine).stack_pointer);
        }
    }
}

/// Leaves the running coroutine until it is resumed.
fn wait() {
    let coroutine = running();
    // SAFETY: who resumed it waits.
    unsafe { switch_stacks(&raw mut (*coroutine).stack_pointer, (*coroutine).resumer) };
}

extern "C" fn start() -> ! {
    let coroutine = running();
    // SAFETY: it is ours while it runs, and not dropped before it is done.
    let (rounds, sites) = unsafe { ((*coroutine).left, (*coroutine).sites) };
    for _ in 0..rounds {
        // SAFETY: as above.
        let rng = unsafe { &mut (*coroutine).rng };
        work(&mut Rng::from_state(rng.next()), sites);
    }
    // SAFETY: as above.
    unsafe { (*coroutine).done = true };
    loop {
        wait();
    }
}

/// Calls functions, with a wait at the bottom, and some that throw or jump after it.
fn work(rng: &mut Rng, sites: usize) {
    let (kind, value) = (rng.below(8), rng.next());
    let levels = rng.below(MOST_LEVELS);
    let is_right = match kind {
        0 => {
            let throw = || -> u64 {
                wait();
                panic::resume_unwind(Box::new(value))
            };
            let tower = Tower::of_all(rng, sites, &throw);
            let caught = panic::catch_unwind(AssertUnwindSafe(|| tower.climb(levels)));
            caught.is_err_and(|caught| caught.downcast_ref() == Some(&value))
        }
        1 => {
            let landing = Cell::new(ptr::null());
            let leave = || -> u64 {
                wait();
                // SAFETY: only functions of plain towers are in between.
                unsafe { jumps::jump(landing.get()) }
            };
            let tower = Tower::of_plain(rng, &leave);
            jumps::land(&|place| {
                landing.set(place);
                tower.climb(levels);
            })
        }
        _ => {
            let bottom = || {
                wait();
                value
            };
            let tower = Tower::of_all(rng, sites, &bottom);
            workers::call(rng.below(sites), rng.next());
            tower.climb(levels) == tower.result(levels, value)
        }
    };
    if !is_right {
        note(Failure::Way, Act::Coroutine as u64, kind as u64);
    }
}

/// Resumes some coroutines, on several levels; makes one, or drops one in the middle.
pub(crate) fn resume_some(actor: &Actor, rng: &mut Rng) {
    let value = rng.next();
    let seed = rng.next();
    let sites = actor.sites;
    let bottom = || {
        let mut rng = Rng::from_state(seed);
        for _ in 0..1 + rng.below(8) {
            resume_one(&mut rng, sites);
        }
        value
    };
    let tower = Tower::of_all(rng, sites, &bottom);
    tower.check(rng.below(8), value, Act::Coroutine);
}

fn resume_one(rng: &mut Rng, sites: usize) {
    let taken = WAITING.lock().ok().and_then(|mut waiting| {
        let len = waiting.len();
        // The more there are, the more often one that is there.
        let index = rng.below(len + 4);
        (index < len).then(|| waiting.swap_remove(index))
    });
    let fresh = || StackMemory::take(rng.once_in(2)).map(|memory| Waiting::new(memory, rng, sites));
    let Some(mut one) = taken.or_else(fresh) else {
        return;
    };
    for _ in 0..1 + rng.below(4) {
        one.resume();
        if one.0.done {
            return;
        }
    }
    if rng.once_in(16) {
        // The calls on its stack stay as they are, or their memory is gone.
        if rng.once_in(2) {
            one.0.memory.forget();
        }
        return;
    }
    if let Ok(mut waiting) = WAITING.lock() {
        waiting.push(one);
    }
}

/// Lets all that wait come to their ends.
pub(crate) fn finish() {
    let waiting = WAITING
        .lock()
        .map(|mut waiting| std::mem::take(&mut *waiting));
    for mut one in waiting.into_iter().flatten() {
        while !one.0.done {
            one.resume();
        }
    }
}
