//! Forks whose children go on calling and throwing, and programs that are started.
//!
//! A child's calls do not count: it has a copy of the books, checks its own calls in it, and says
//! by its exit code whether something was wrong.
//!
//! # Safety
//!
//! A child has one thread, which calls functions that take no lock but the allocator's, and ends.

use std::cell::Cell;
use std::ffi::CStr;
use std::{io, ptr};

use super::towers::Tower;
use super::{Act, Actor};
use crate::failures::{self, Failure, note};
use crate::rng::Rng;
use crate::threads;
use crate::workers;

/// A child that takes longer is killed by the alarm.
const SECONDS: u32 = 20;

/// Forks at the bottom of a tower. The child comes up again as well.
pub(crate) fn fork(actor: &Actor, rng: &mut Rng) {
    let before = failures::count();
    let child = Cell::new(-1);
    let value = rng.next();
    let seed = rng.next();
    let sites = actor.sites;
    let bottom = || {
        threads::fork();
        // SAFETY: the child only does what is said above.
        child.set(unsafe { libc::fork() });
        threads::forked();
        if child.get() == 0 {
            // SAFETY: no arguments that matter.
            unsafe { libc::alarm(SECONDS) };
            let mut rng = Rng::from_state(seed);
            for _ in 0..64 {
                workers::call(rng.below(sites), rng.next());
            }
        }
        value
    };
    let tower = Tower::of_all(rng, sites, &bottom);
    let levels = rng.below(10);
    let is_right = tower.climb(levels) == tower.result(levels, value);
    if !is_right {
        note(Failure::Way, Act::Fork as u64, levels as u64);
    }
    match child.get() {
        -1 => refused(Act::Fork),
        0 => {
            super::jumps::jump_out(actor, rng);
            super::unwinding::unwind(actor, rng);
            let failed = failures::count() - before;
            if failed != 0 {
                eprint!("in a child: {}", failures::List);
            }
            // SAFETY: ends here.
            unsafe { libc::_exit(failed.min(100) as i32) }
        }
        child => wait_for(child, Act::Fork),
    }
}

/// Starts a program at the bottom of a tower.
pub(crate) fn spawn(actor: &Actor, rng: &mut Rng) {
    const PROGRAM: &CStr = c"/bin/true";
    let value = rng.next();
    let bottom = || {
        let mut child = 0;
        let argv = [PROGRAM.as_ptr().cast_mut(), ptr::null_mut()];
        let envp = [ptr::null_mut()];
        // SAFETY: lists that end with null; no actions and no attributes.
        let error = unsafe {
            libc::posix_spawn(
                &mut child,
                PROGRAM.as_ptr(),
                ptr::null(),
                ptr::null(),
                argv.as_ptr(),
                envp.as_ptr(),
            )
        };
        match error {
            0 => wait_for(child, Act::Spawn),
            error => note(Failure::System, Act::Spawn as u64, error as u64),
        }
        value
    };
    let tower = Tower::of_all(rng, actor.sites, &bottom);
    let levels = rng.below(10);
    if tower.climb(levels) != tower.result(levels, value) {
        note(Failure::Way, Act::Spawn as u64, levels as u64);
    }
}

fn wait_for(child: libc::pid_t, act: Act) {
    let mut status = 0;
    // SAFETY: a live integer.
    while unsafe { libc::waitpid(child, &mut status, 0) } != child {
        if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return refused(act);
        }
    }
    if status != 0 {
        note(Failure::Ended, act as u64, status as u64);
    }
}

fn refused(act: Act) {
    let error = io::Error::last_os_error().raw_os_error().unwrap_or(0);
    note(Failure::System, act as u64, error as u64);
}
