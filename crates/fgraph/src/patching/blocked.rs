//! Threads and processes that a trap would kill, because they block its signal.
//!
//! A process that `vfork` or `posix_spawn` starts has the memory of its parent until it executes a
//! program, and runs the parent's code, often with all signals blocked. It is not a thread of this
//! process, but the thread that has started it waits in the kernel as long as it runs.

use std::time::Duration;

use super::signals;
use crate::os::status::{Activity, ThreadStatus, is_kernel_worker};
use crate::os::{self, PAGE, memory};
use crate::process::call_gate;

/// Keeps handlers of the program from blocking traps, like [`signals::unmask`], and waits until no
/// thread that blocks them may be at an address for which `is_inside` returns true. Returns true if
/// no thread blocks them.
///
/// Threads that are starting or ending block all signals for a moment; these are waited for.
/// Threads that the kernel makes block them permanently, and never trap: they do not count, and
/// neither do threads that wait at the gate. Without `/proc` nothing is known, and no thread
/// counts.
///
/// # Errors
///
/// Fails with a thread that keeps blocking them and may be there.
pub(super) fn unmask_everywhere(is_inside: impl Fn(usize) -> bool) -> Result<bool, u32> {
    /// Far longer than that moment.
    const PATIENCE: Duration = Duration::from_secs(1);
    /// The same for a thread that has to wait for a processor.
    const LONGEST: Duration = Duration::from_secs(10);
    let own = ThreadStatus::own();
    signals::unmask_all(&own);
    if own.threads() == Some(1) {
        return Ok(true);
    }
    let mut waiting: Vec<u32> = os::status::other_threads().collect();
    // Threads that start to block traps meanwhile will stop, too.
    let mut look = || {
        waiting.retain(|&thread| !is_held_back(thread) && blocks_traps(thread));
        let mut inside = waiting.iter().copied();
        inside.find(|&thread| may_be_inside(thread, &is_inside))
    };
    let end = os::now() + LONGEST;
    let mut found = wait(PATIENCE, &mut look);
    while let Some(thread) = found
        && os::now() < end
    {
        let before = os::processor_time(thread);
        found = wait(PATIENCE / 4, &mut look);
        let ran = os::processor_time(thread).saturating_sub(before);
        if found == Some(thread) && !is_held_up(Activity::of(thread), ran) {
            break;
        }
    }
    found.map_or(Ok(waiting.is_empty()), Err)
}

/// Returns true if a thread that blocks traps, and has run for that long since it was first seen,
/// may be about to stop, once it or the process that it starts gets a processor.
fn is_held_up(activity: Option<Activity>, ran: Duration) -> bool {
    /// Far longer than a thread that is starting or ending runs before it stops.
    const MOMENT: Duration = Duration::from_millis(20);
    match activity {
        Some(Activity::StartsProcess) => true,
        Some(Activity::Runs) | None => ran < MOMENT,
        Some(Activity::Asleep { .. }) => false,
    }
}

/// Waits until no thread that blocks traps, and no process in the same memory, may be inside of a
/// window; gives up after `patience`. `is_inside` returns true for an address there.
pub(super) fn wait_until_none_inside(patience: Duration, is_inside: impl Fn(usize) -> bool) {
    // All threads are checked each time: one that was outside may be inside now.
    wait(patience, || {
        os::status::other_threads().find(|&thread| may_be_inside(thread, &is_inside))
    });
}

/// Returns true if a thread, or the process that it starts, may be inside of a window and block
/// traps.
fn may_be_inside(thread: u32, is_inside: impl Fn(usize) -> bool) -> bool {
    match Activity::of(thread) {
        Some(Activity::StartsProcess) => true,
        Some(Activity::Asleep { at, stack }) => {
            blocks_traps(thread) && (is_inside(at) || is_on_stack(stack, is_inside))
        }
        Some(Activity::Runs) | None => blocks_traps(thread),
    }
}

/// Returns true if a word of the frames from `stack` on is an address for which `is_inside` returns
/// true. A thread may return there, from a call within a window or from a signal handler that has
/// interrupted it.
fn is_on_stack(stack: usize, is_inside: impl Fn(usize) -> bool) -> bool {
    /// The number of bytes of frames that are searched.
    const DEPTH: usize = 1 << 20;
    let mut at = stack;
    while at < stack.saturating_add(DEPTH) {
        let mut words = [0; PAGE];
        let words = &mut words[..PAGE - at % PAGE];
        if memory::read(at, words).is_err() {
            // Beyond the end of the stack.
            return false;
        }
        let (words, _) = words.as_chunks();
        if words
            .iter()
            .any(|&word| is_inside(usize::from_ne_bytes(word)))
        {
            return true;
        }
        at += PAGE - at % PAGE;
    }
    false
}

/// Calls `look` until it finds no thread, or `patience` is over. Returns the last result.
fn wait(patience: Duration, mut look: impl FnMut() -> Option<u32>) -> Option<u32> {
    /// The longest time between two looks.
    const PAUSE: Duration = Duration::from_millis(5);
    let start = os::now();
    let mut pause = Duration::from_micros(50);
    loop {
        let found = look();
        if found.is_none() || os::now() - start >= patience {
            return found;
        }
        os::pause(pause);
        pause = PAUSE.min(pause * 2);
    }
}

/// Returns true if a thread waits at the gate for processes that share the memory.
fn is_held_back(thread: u32) -> bool {
    matches!(Activity::of(thread), Some(Activity::Asleep { at, .. }) if call_gate::has(at))
}

fn blocks_traps(thread: u32) -> bool {
    let mask = ThreadStatus::of(thread).and_then(|status| status.blocked());
    mask.is_some_and(signals::are_in) && !is_kernel_worker(thread)
}

#[cfg(test)]
mod tests {
    use core::ffi::c_void;
    use core::hint::black_box;
    use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// Runs until told to end.
    extern "C" fn runs(is_over: *mut c_void) -> i32 {
        // SAFETY: the flag of the test, which waits for this process.
        let is_over = unsafe { &*is_over.cast::<AtomicBool>() };
        while !is_over.load(Ordering::Relaxed) {
            os::nap();
        }
        0
    }

    #[test]
    fn a_thread_without_a_processor_is_waited_for_longer_than_one_that_runs_or_sleeps() {
        let [none, second] = [Duration::ZERO, Duration::from_secs(1)];
        let asleep = Activity::Asleep { at: 0, stack: 0 };
        assert!(is_held_up(Some(Activity::Runs), none));
        assert!(is_held_up(Some(Activity::StartsProcess), none));
        assert!(!is_held_up(Some(Activity::Runs), second));
        assert!(!is_held_up(Some(asleep), none));
    }

    #[test]
    fn the_processor_time_of_a_thread_is_known() {
        let own = os::thread_id();
        let before = os::processor_time(own);
        while os::processor_time(own) < before + Duration::from_millis(1) {
            black_box(own);
        }
        assert_eq!(os::processor_time(1 << 28), Duration::MAX);
    }

    #[test]
    fn a_child_that_its_parent_waits_for_in_the_kernel_is_waited_for() {
        let (parent, is_over) = (AtomicU32::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                parent.store(os::thread_id(), Ordering::Relaxed);
                let mut stack = vec![0_u128; 1 << 12];
                let top = stack.as_mut_ptr_range().end.cast();
                let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
                let flag = (&raw const is_over).cast_mut().cast();
                let mut status = 0;
                // SAFETY: the child has a stack of its own, and ends before this goes on.
                unsafe {
                    let child = libc::clone(runs, top, flags, flag);
                    assert_eq!(libc::waitpid(child, &mut status, 0), child);
                }
            });
            while Activity::of(parent.load(Ordering::Relaxed)) != Some(Activity::StartsProcess) {
                os::nap();
            }
            // A child that runs for long is waited for no longer than that.
            wait_until_none_inside(Duration::ZERO, |_| false);
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(50));
                is_over.store(true, Ordering::Relaxed);
            });
            wait_until_none_inside(LONG, |_| false);
            assert!(is_over.load(Ordering::Relaxed));
        });
    }

    #[test]
    fn a_thread_that_sleeps_elsewhere_is_not_waited_for() {
        const ON_STACK: usize = 0x1234_5678_9abc_def0;
        let (say, said) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        thread::scope(|scope| {
            scope.spawn(move || {
                let all = !0_u64;
                let null = core::ptr::null_mut::<c_void>();
                // SAFETY: the kernel reads the set, which the thread keeps to its end.
                unsafe {
                    libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &all, null, 8);
                }
                // As a return address would be.
                let on_stack = black_box(ON_STACK);
                say.send(os::thread_id()).unwrap();
                ended.recv().unwrap();
                black_box(&on_stack);
            });
            let sleeper = said.recv().unwrap();
            // It returns as soon as the thread sleeps.
            wait_until_none_inside(LONG, |_| false);
            assert!(blocks_traps(sleeper));
            assert!(!may_be_inside(sleeper, |_| false));
            assert!(may_be_inside(sleeper, |_| true));
            assert!(may_be_inside(sleeper, |address| address == ON_STACK));
            assert_eq!(unmask_everywhere(|_| false), Ok(false));
            end.send(()).unwrap();
        });
    }
}
