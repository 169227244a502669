//! Calls on two threads at once, each on a processor of its own.

use core::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::functions::{Function, Variant};
use crate::{cases, depth};

/// Returns two processors that this process may use; `None` if there is only one.
pub fn processors() -> Option<[usize; 2]> {
    let allowed = allowed();
    let mut usable = (0..libc::CPU_SETSIZE as usize).filter(|&cpu| {
        // SAFETY: the index is below the size of the set.
        unsafe { libc::CPU_ISSET(cpu, &allowed) }
    });
    Some([usable.next()?, usable.next()?])
}

/// Calls on one of the processors alone, and on both at once.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    /// Shortest time on one processor while the other thread waits. The slower one of the two
    /// processors counts.
    pub alone: Duration,
    /// Shortest time until both threads were done that had begun together.
    pub together: Duration,
}

/// Times `calls` calls per thread, `samples` times.
pub fn time(
    function: Function,
    variant: Variant,
    calls: u64,
    samples: usize,
    processors: [usize; 2],
) -> Pair {
    let turns = [const { AtomicUsize::new(0) }; 2];
    let start = AtomicUsize::new(0);
    let [first, second] = thread::scope(|scope| {
        let (turns, start) = (&turns, &start);
        let run = move |own: usize| {
            pin(processors[own]);
            let mut alone = Duration::MAX;
            let mut together = Vec::with_capacity(samples);
            for sample in 0..samples {
                for (turn, meeting) in turns.iter().enumerate() {
                    meet(meeting, sample);
                    if turn == own {
                        let time = || cases::time(function, variant, calls);
                        alone = alone.min(depth::at(sample, time));
                    }
                }
                meet(start, sample);
                together.push(depth::at(sample, || cases::time(function, variant, calls)));
            }
            (alone, together)
        };
        [0, 1]
            .map(|own| scope.spawn(move || run(own)))
            .map(|thread| thread.join().expect("nothing in it panics"))
    });
    let both_done = first.1.iter().zip(&second.1).map(|(a, b)| *a.max(b));
    Pair {
        alone: first.0.max(second.0),
        together: both_done.min().unwrap_or(Duration::MAX),
    }
}

/// Returns when both threads have called this for the sample. They spin, so that they continue at
/// once.
fn meet(meeting: &AtomicUsize, sample: usize) {
    meeting.fetch_add(1, Ordering::AcqRel);
    while meeting.load(Ordering::Acquire) < 2 * (sample + 1) {
        core::hint::spin_loop();
    }
}

fn pin(cpu: usize) {
    let mut set = empty_set();
    // SAFETY: the index is below the size of the set, which is a live local.
    unsafe {
        libc::CPU_SET(cpu, &mut set);
        // If this fails the kernel places the thread, which is good enough.
        libc::sched_setaffinity(0, size_of_val(&set), &set);
    }
}

fn allowed() -> libc::cpu_set_t {
    let mut set = empty_set();
    // SAFETY: the set is a live local.
    unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) };
    set
}

fn empty_set() -> libc::cpu_set_t {
    // SAFETY: zeros are valid for an array of integers.
    unsafe { core::mem::zeroed() }
}
