//! Threads that call functions and end, in one of several ways.
//!
//! # Safety
//!
//! Functions that a thread is in when it ends in the middle have nothing to clean up. Its timer is
//! gone then, and nothing else uses its memory.

use std::cell::Cell;
use std::ffi::c_void;
use std::{mem, ptr};

use super::act::Act;
use super::signals::{self, Actor};
use super::towers::Tower;

use crate::failures::{Failure, note};
use crate::rng::Rng;
use crate::threads;
use crate::workers;

type Start = extern "C-unwind" fn(*mut c_void) -> *mut c_void;

unsafe extern "C-unwind" {
    // The C library's, which unwinds.
    fn pthread_exit(value: *mut c_void) -> !;
}

/// End of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Its start function returns.
    Return,
    /// By `pthread_exit`, which unwinds its traced functions.
    Exit,
    /// By the system call, within its traced functions.
    SystemCall,
}

/// Task of a thread.
#[derive(Debug)]
struct Task {
    number: usize,
    sites: usize,
    seed: u64,
    end: End,
    /// True if its first calls are left by a signal handler.
    leaves_first: bool,
    /// True if its thread-local destructor calls functions.
    calls_late: bool,
}

/// Bytes of a thread's stack.
const STACK: usize = 256 << 10;

/// Starts some threads at a time, and waits for them.
pub(crate) fn start_some(actor: &Actor, rng: &mut Rng) {
    let tasks: Vec<Task> = (0..1 + rng.below(3))
        .map(|_| Task {
            number: actor.number,
            sites: actor.sites,
            seed: rng.next(),
            end: [End::Return, End::Exit, End::SystemCall][rng.below(3)],
            leaves_first: rng.once_in(3),
            calls_late: rng.once_in(2),
        })
        .collect();
    let threads: Vec<_> = tasks.iter().map(start).collect();
    for thread in threads.into_iter().flatten() {
        // SAFETY: joined once.
        if unsafe { libc::pthread_join(thread, ptr::null_mut()) } != 0 {
            note(Failure::Ended, Act::Threads as u64, 0);
        }
    }
}

fn start(task: &Task) -> Option<libc::pthread_t> {
    let argument = ptr::from_ref(task).cast_mut().cast();
    // SAFETY: the attributes are complete; the task outlives the thread, which is waited for. A
    // start function may unwind when the thread is ended by `pthread_exit`.
    let (error, thread) = unsafe {
        let mut attributes = mem::zeroed();
        libc::pthread_attr_init(&mut attributes);
        libc::pthread_attr_setstacksize(&mut attributes, STACK);
        let mut thread = 0;
        let start = mem::transmute::<Start, extern "C" fn(*mut c_void) -> *mut c_void>(live);
        let error = libc::pthread_create(&mut thread, &attributes, start, argument);
        libc::pthread_attr_destroy(&mut attributes);
        (error, thread)
    };
    if error != 0 {
        note(Failure::System, Act::Threads as u64, error as u64);
        return None;
    }
    Some(thread)
}

/// Calls functions when its thread is over.
struct Late(Cell<Option<(usize, u64)>>);

impl Drop for Late {
    fn drop(&mut self) {
        if let Some((sites, seed)) = self.0.take() {
            let mut rng = Rng::from_state(seed);
            for _ in 0..8 {
                workers::call(rng.below(sites), rng.next());
            }
        }
    }
}

thread_local! {
    static LATE: Late = const { Late(Cell::new(None)) };
}

extern "C-unwind" fn live(task: *mut c_void) -> *mut c_void {
    // SAFETY: what `start` has handed over.
    let task = unsafe { &*task.cast::<Task>() };
    let thread = threads::enter(task.number);
    let mut rng = Rng::from_state(task.seed);
    if task.leaves_first {
        signals::leave_first(thread.kernel, task.sites, &mut rng);
    }
    if task.calls_late {
        LATE.with(|late| late.0.set(Some((task.sites, rng.next()))));
    }
    for _ in 0..rng.below(100) {
        workers::call(rng.below(task.sites), rng.next());
    }
    let value = rng.next();
    let end = || match task.end {
        End::Return => value,
        // SAFETY: only functions of plain towers are in between.
        End::Exit => unsafe { pthread_exit(ptr::null_mut()) },
        End::SystemCall => {
            // SAFETY: ends this thread only; its stack is freed when it is joined.
            unsafe { libc::syscall(libc::SYS_exit, 0) };
            0
        }
    };
    let tower = Tower::of_plain(&mut rng, &end);
    tower.check(rng.below(12), value, Act::Threads);
    ptr::null_mut()
}
