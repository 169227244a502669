//! Forks whose children go on calling and throwing, and programs that are started.
//!
//! A child's calls do not count: it has a copy of the books, checks its own calls in it, and says
//! by its exit code whether something was wrong.
//!
//! # Safety
//!
//! A child has one thread, which calls functions that take no lock but the allocator's, and ends.

use std::cell::Cell;
use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::sync::Mutex;
use std::{io, ptr, thread};

use fgraph::{Entry, FgraphOps};

use super::act::Act;
use super::controllers;
use super::signals::Actor;
use super::towers::Tower;

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
    tower.check(rng.below(10), value, Act::Fork);
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

/// Starts a program by `posix_spawn` at the bottom of a tower.
pub(crate) fn spawn(actor: &Actor, rng: &mut Rng) {
    start(actor, rng, Act::Spawn, |argv, envp| {
        let mut child = -1;
        let (actions, attributes) = (ptr::null(), ptr::null());
        // SAFETY: lists that end with null; no actions and no attributes.
        unsafe {
            libc::posix_spawn(
                &mut child,
                PROGRAM.as_ptr(),
                actions,
                attributes,
                argv,
                envp,
            );
        }
        child
    });
}

/// Starts a program by `vfork`, with all signals blocked, at the bottom of a tower.
pub(crate) fn vfork(actor: &Actor, rng: &mut Rng) {
    start(actor, rng, Act::Vfork, |argv, envp| {
        let [mut all, mut before] = [MaybeUninit::uninit(); 2];
        // SAFETY: the sets are written before they are read, and the lists end with null.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            let child = victim_vfork_and_execute(PROGRAM.as_ptr(), argv, envp);
            libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut());
            child
        }
    });
}

/// Executes a program in a forked child, at the bottom of a tower.
pub(crate) fn execute(actor: &Actor, rng: &mut Rng) {
    start(actor, rng, Act::Execute, |argv, envp| {
        threads::fork();
        // SAFETY: the child executes a program, by lists that end with null, or ends.
        let child = unsafe { libc::fork() };
        threads::forked();
        if child == 0 {
            // SAFETY: as above.
            unsafe {
                libc::execve(PROGRAM.as_ptr(), argv.cast(), envp.cast());
                libc::_exit(127);
            }
        }
        child
    });
}

const PROGRAM: &CStr = c"/bin/true";

/// A list of strings that ends with null.
type Strings = *const *mut c_char;

/// Starts the program by `by` at the bottom of a tower, and waits for it.
fn start(actor: &Actor, rng: &mut Rng, act: Act, by: impl Fn(Strings, Strings) -> libc::pid_t) {
    let value = rng.next();
    let bottom = || {
        let argv = [PROGRAM.as_ptr().cast_mut(), ptr::null_mut()];
        let envp = [ptr::null_mut()];
        match by(argv.as_ptr(), envp.as_ptr()) {
            -1 => refused(act),
            child => wait_for(child, act),
        }
        value
    };
    let tower = Tower::of_all(rng, actor.sites, &bottom);
    tower.check(rng.below(10), value, act);
}

// `vfork` returns twice, which no function of Rust may see.
core::arch::global_asm!(
    ".pushsection .text.fgraph_victim_assembly, \"ax\", @progbits",
    ".p2align 4",
    ".globl victim_vfork_and_execute",
    ".hidden victim_vfork_and_execute",
    ".type victim_vfork_and_execute, @function",
    "victim_vfork_and_execute:",
    ".cfi_startproc",
    "push rbx",
    ".cfi_adjust_cfa_offset 8",
    "push r12",
    ".cfi_adjust_cfa_offset 8",
    "push r13",
    ".cfi_adjust_cfa_offset 8",
    "mov rbx, rdi",
    "mov r12, rsi",
    "mov r13, rdx",
    "call {vfork}",
    "test eax, eax",
    "jne 2f",
    "mov rdi, rbx",
    "mov rsi, r12",
    "mov rdx, r13",
    "call {execve}",
    "mov edi, 127",
    "call {exit}",
    "2:",
    "pop r13",
    ".cfi_adjust_cfa_offset -8",
    "pop r12",
    ".cfi_adjust_cfa_offset -8",
    "pop rbx",
    ".cfi_adjust_cfa_offset -8",
    "ret",
    ".cfi_endproc",
    ".size victim_vfork_and_execute, . - victim_vfork_and_execute",
    ".popsection",
    vfork = sym vfork_of_the_c_library,
    execve = sym libc::execve,
    exit = sym libc::_exit,
);

unsafe extern "C" {
    #[link_name = "vfork"]
    fn vfork_of_the_c_library() -> libc::pid_t;
    fn victim_vfork_and_execute(
        program: *const c_char,
        argv: Strings,
        envp: Strings,
    ) -> libc::pid_t;
}

/// Users that [`exchange`] registers at once.
pub(crate) const USERS: usize = 1;

/// Watches all functions of the C library for a moment, and stops: its text is exchanged twice.
pub(crate) fn exchange(_: &Actor, _: &mut Rng) {
    // Only one slot is left.
    static ONE: Mutex<()> = Mutex::new(());
    let Ok(_one) = ONE.try_lock() else {
        return;
    };
    let switch = || {
        // The actor waits for this, and the controller that has the turn may wait for the actor.
        let Some(_turn) = controllers::try_turn() else {
            return;
        };
        // SAFETY: the callback does nothing.
        match unsafe { fgraph::register(Nobody, ":mod:libc.so*") } {
            Ok(user) => drop(user),
            Err(error) => {
                eprintln!("register of an exchange: {error}");
                note(Failure::Refused, Act::Exchange as u64, 0);
            }
        }
    };
    // The actor may have left a callback by a jump, and counts as inside of it until its next call.
    let done = thread::scope(|scope| scope.spawn(switch).join());
    done.unwrap_or_else(|_| note(Failure::Refused, Act::Exchange as u64, 1));
}

/// Takes no call.
#[derive(Debug)]
struct Nobody;

impl FgraphOps for Nobody {
    type Data = ();

    fn entry(&self, _: &mut Entry<'_, ()>) -> Option<()> {
        None
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
