//! Threads, signals and forks.

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::hint::black_box;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::TryRecvError;
use std::sync::{Barrier, Mutex};
use std::thread;

use fgraph::{Error, Handle, SiteInfo, UserStatus, testing};
use fgraph_needs::{CC, needs, skip};
use fgraph_scenario::{
    Count, forked, is_patched, numbers, patched, scenario, totals, traceable, user,
};

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn works(n: u64) -> u64 {
    black_box(n) + 1
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn works_too(n: u64) -> u64 {
    black_box(works(n)) + 1
}

const WORKS: *const () = works as *const ();

fn count(filter: &str) -> Handle<Count> {
    fgraph_scenario::register(Count::default(), filter).unwrap()
}

/// Sets the handler of a signal.
fn handle(signal: i32, handler: usize, flags: i32) -> libc::sigaction {
    // SAFETY: plain data; the handlers given here are such functions.
    unsafe {
        let (mut action, mut before): (libc::sigaction, libc::sigaction) = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        assert_eq!(libc::sigaction(signal, &action, &mut before), 0);
        before
    }
}

fn int3() {
    // SAFETY: whoever calls this has a handler, or wants to die.
    unsafe { std::arch::asm!("int3") };
}

/// Blocks or unblocks SIGTRAP in this thread.
fn mask_sigtrap(how: i32) {
    // SAFETY: plain data.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGTRAP);
        assert_eq!(libc::pthread_sigmask(how, &set, ptr::null_mut()), 0);
    }
}

#[scenario]
fn threads_that_exist_and_new_ones_are_traced_at_once() {
    let (ready, go) = (Barrier::new(4), Barrier::new(4));
    thread::scope(|scope| {
        for n in 0..3 {
            let (ready, go) = (&ready, &go);
            scope.spawn(move || {
                assert_eq!(works(n), n + 1);
                ready.wait();
                go.wait();
                for _ in 0..100 {
                    assert_eq!(works(n), n + 1);
                }
                ready.wait();
            });
        }
        ready.wait();
        let user = count("works");
        go.wait();
        ready.wait();
        assert_eq!(user.user().both(), (300, 300));
        scope.spawn(|| assert_eq!(works_too(1), 3)).join().unwrap();
        assert_eq!(user.user().both(), (301, 301));
    });
}

#[scenario]
fn thousands_of_short_lived_threads_are_traced() {
    let missing =
        fgraph_scenario::register(user(|_| Some(works(1)), |_, _| ()), "works_too").unwrap();
    let all = count("works works_too");
    let mappings = || {
        std::fs::read_to_string("/proc/self/maps")
            .unwrap()
            .lines()
            .count()
    };
    let mut after_100 = 0;
    for n in 0..2_000u64 {
        assert_eq!(thread::spawn(move || works_too(n)).join().unwrap(), n + 2);
        if n == 100 {
            after_100 = mappings();
        }
    }
    assert_eq!(all.user().both(), (4_000, 4_000));
    // The counts of dead threads stay in the totals.
    assert_eq!(numbers(all.counters())[0], 2_000);
    assert_eq!(numbers(missing.counters())[0], 0);
    assert_eq!(totals(), [2_000, 0, 0, 0, 0]);
    // Their states are used again.
    assert!(
        mappings() < after_100 + 50,
        "{} -> {}",
        after_100,
        mappings()
    );
    assert!(fgraph::threads().len() < 100);
}

#[scenario]
fn there_are_at_most_twice_as_many_states_as_threads_lived_at_once() {
    const LIVE: usize = 40;
    let _all = count("works");
    let called = Barrier::new(LIVE + 1);
    let done = Barrier::new(LIVE + 1);
    thread::scope(|scope| {
        for _ in 0..LIVE {
            scope.spawn(|| {
                works(1);
                called.wait();
                done.wait();
            });
        }
        called.wait();
        for _ in 0..1_000 {
            scope.spawn(|| works(1)).join().unwrap();
        }
        // SAFETY: they are only counted.
        let states = unsafe { fgraph_core::FGRAPH.get().threads.iter() }.count();
        done.wait();
        assert!(states <= 2 * (LIVE + 2), "{states}");
    });
}

#[scenario]
fn a_threads_counters_are_its_own() {
    let _user =
        fgraph_scenario::register(user(|_| Some(works(1)), |_, _| ()), "works_too works").unwrap();
    // Long after others have used the state.
    for _ in 0..100 {
        thread::spawn(|| {
            works_too(1);
            // SAFETY: no arguments.
            let id = unsafe { libc::gettid() as u32 };
            let own = fgraph::threads()
                .into_iter()
                .find(|thread| thread.id == id)
                .unwrap();
            // One for each of the two calls.
            assert_eq!(own.counters.missed, 2);
        })
        .join()
        .unwrap();
    }
    assert_eq!(totals()[0], 200);
}

#[scenario]
fn users_come_and_go_while_threads_come_and_go() {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut n = 0;
            while !done.load(Ordering::Relaxed) {
                n += 1;
                assert_eq!(thread::spawn(move || works_too(n)).join().unwrap(), n + 2);
            }
        });
        let result = scope
            .spawn(|| {
                for cycle in 0..500 {
                    match fgraph_scenario::register(Count::default(), "works*") {
                        Ok(user) => drop(user),
                        Err(error) => return Err((cycle, error)),
                    }
                }
                Ok(())
            })
            .join();
        done.store(true, Ordering::Relaxed);
        assert_eq!(result.unwrap(), Ok(()));
    });
    assert_eq!(patched(), 0);
}

#[scenario]
fn threads_come_and_go_while_the_c_library_is_patched() {
    let user = count("works");
    let task = || assert_eq!(works(1), 2);
    fgraph_scenario::while_threads_come_and_go(task, || {
        for _ in 0..150 {
            fgraph_scenario::set_filter(&user, ":mod:libc.so*").unwrap();
            fgraph_scenario::set_filter(&user, "works").unwrap();
        }
    });
}

/// Instructions that `work`, in a child, and the threads that it starts run with all signals
/// blocked; `None` if the child cannot be traced.
fn run_blocked(work: fn()) -> Option<BTreeSet<usize>> {
    /// One for all signals: the kernel clears the bit of SIGTRAP at each step.
    const PROBE: u64 = 1 << (libc::SIGILL - 1);
    let null = ptr::null_mut::<c_void>();
    // SAFETY: the child, which has this thread only, does `work` and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: no memory is concerned.
        unsafe {
            libc::alarm(100);
            if libc::ptrace(libc::PTRACE_TRACEME, 0, null, null) == 0 {
                libc::raise(libc::SIGSTOP);
                work();
            }
            libc::_exit(0);
        }
    }
    let mut found = BTreeSet::new();
    let mut is_traced = false;
    loop {
        let mut status = 0;
        // SAFETY: writes to the local.
        let thread = unsafe { libc::waitpid(-1, &mut status, libc::__WALL) };
        if !libc::WIFSTOPPED(status) {
            if thread == child {
                return is_traced.then_some(found);
            }
            continue;
        }
        // SAFETY: the kernel fills the locals, which are as large as it is told.
        unsafe {
            if !is_traced {
                let options = libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_EXITKILL;
                let options = ptr::without_provenance_mut::<c_void>(options as usize);
                libc::ptrace(libc::PTRACE_SETOPTIONS, thread, null, options);
                is_traced = true;
            }
            let mut registers: libc::user_regs_struct = std::mem::zeroed();
            libc::ptrace(libc::PTRACE_GETREGS, thread, null, &raw mut registers);
            let mut blocked = 0_u64;
            libc::ptrace(libc::PTRACE_GETSIGMASK, thread, 8_usize, &raw mut blocked);
            if blocked & PROBE != 0 {
                found.insert(registers.rip as usize);
            }
            let signal = match libc::WSTOPSIG(status) {
                libc::SIGTRAP | libc::SIGSTOP => 0,
                signal => signal as usize,
            };
            libc::ptrace(libc::PTRACE_SINGLESTEP, thread, null, signal);
        }
    }
}

#[scenario]
fn functions_that_threads_run_with_all_signals_blocked_are_not_patched_by_traps() {
    extern "C" fn ends(by_exit: *mut c_void) -> *mut c_void {
        if !by_exit.is_null() {
            // SAFETY: ends this thread, which has no frames of Rust but this one.
            unsafe { libc::pthread_exit(ptr::null_mut()) };
        }
        ptr::null_mut()
    }
    extern "C" fn waits(_: *mut c_void) -> *mut c_void {
        loop {
            // SAFETY: no memory is concerned.
            unsafe { libc::pause() };
        }
    }
    fn threads() {
        let start = |routine, argument: usize, attributes: Option<&libc::pthread_attr_t>| {
            let mut thread = 0;
            let attributes = attributes.map_or(ptr::null(), ptr::from_ref);
            let argument = ptr::without_provenance_mut(argument);
            // SAFETY: the routines above take any argument; the attributes are initialised.
            let error = unsafe { libc::pthread_create(&mut thread, attributes, routine, argument) };
            assert_eq!(error, 0);
            thread
        };
        // SAFETY: threads that were made here and are joined once.
        unsafe {
            for by_exit in [0, 1] {
                libc::pthread_join(start(ends, by_exit, None), ptr::null_mut());
            }
            let cancelled = start(waits, 0, None);
            libc::pthread_cancel(cancelled);
            libc::pthread_join(cancelled, ptr::null_mut());
            let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
            libc::pthread_attr_init(&mut attributes);
            libc::pthread_attr_setdetachstate(&mut attributes, libc::PTHREAD_CREATE_DETACHED);
            start(ends, 0, Some(&attributes));
            libc::usleep(1000);
        }
    }
    let Some(run) = run_blocked(threads) else {
        return skip!("processes cannot be traced here");
    };
    let _user = count(":mod:libc.so*");
    // None traps where a single instruction is displaced.
    let may_trap = |site: &SiteInfo| testing::displaced(site.address) > Some(1);
    let sites = fgraph::sites().unwrap();
    let blocked = sites.iter().filter(|site| run.contains(&site.address));
    let (traced, left): (Vec<_>, Vec<_>) = blocked.partition(|site| site.how.is_ok());
    assert!(traced.iter().any(|site| site.name == "getpagesize"));
    assert!(left.iter().any(|site| site.name == "start_thread"));
    let trapping = traced.iter().filter(|site| may_trap(site));
    let names: Vec<String> = trapping.map(ToString::to_string).collect();
    assert!(names.is_empty(), "{names:#?}");
}

#[scenario]
fn the_first_hit_of_a_thread_may_be_in_a_signal_handler() {
    extern "C" fn handler(_: i32) {
        assert_eq!(works_too(5), 7);
    }
    handle(libc::SIGUSR2, handler as *const () as usize, 0);
    let user = count("works works_too");
    for _ in 0..50 {
        thread::spawn(|| {
            // SAFETY: its handler is above.
            unsafe { libc::raise(libc::SIGUSR2) };
            assert_eq!(works_too(1), 3);
        })
        .join()
        .unwrap();
    }
    assert_eq!(user.user().both(), (200, 200));
    assert_eq!(totals(), [0; 5]);
}

/// The bounds of the stack must not be taken from the signal stack then.
#[scenario]
fn the_first_hit_of_a_thread_may_be_on_a_signal_stack() {
    extern "C" fn handler(_: i32) {
        assert_eq!(works(5), 6);
    }
    handle(
        libc::SIGUSR2,
        handler as *const () as usize,
        libc::SA_ONSTACK,
    );
    let user = count("works works_too");
    let threads = 5;
    for _ in 0..threads {
        thread::spawn(|| {
            let mut memory = vec![0u8; 256 << 10];
            let mut before = libc::stack_t {
                ss_sp: ptr::null_mut(),
                ss_flags: libc::SS_DISABLE,
                ss_size: 0,
            };
            // SAFETY: the memory is in use until the old stack is put back; the handler of the
            // signal is above.
            unsafe {
                let stack = libc::stack_t {
                    ss_sp: memory.as_mut_ptr().cast(),
                    ss_flags: 0,
                    ss_size: memory.len(),
                };
                assert_eq!(libc::sigaltstack(&stack, &mut before), 0);
                libc::raise(libc::SIGUSR2);
                assert_eq!(libc::sigaltstack(&before, ptr::null_mut()), 0);
            }
            for n in 0..10 {
                assert_eq!(works_too(n), n + 2);
            }
        })
        .join()
        .unwrap();
    }
    // The call in the handler may be traced or without a shadow stack, those on the thread's
    // stack are traced.
    let (entries, returns) = user.user().both();
    assert_eq!(entries, returns);
    assert_eq!(entries + numbers(user.counters())[4], 21 * threads);
    assert!(
        entries >= 20 * threads,
        "{entries} of {} calls",
        21 * threads
    );
}

/// Nothing runs any more at the end of such a thread; its calls are counted all the same.
#[scenario]
fn calls_that_a_thread_ends_in_are_lost() {
    #[unsafe(no_mangle)]
    #[inline(never)]
    extern "C" fn thread_ends_here(_: *mut c_void) -> *mut c_void {
        assert_eq!(works(5), 6);
        // SAFETY: ends the thread, whose stack the C library never takes back.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
        ptr::null_mut()
    }
    let user = count("works thread_ends_here");
    for _ in 0..3 {
        // SAFETY: nobody waits for the thread.
        unsafe {
            let mut thread = 0;
            let null = ptr::null_mut();
            assert_eq!(
                libc::pthread_create(&mut thread, ptr::null(), thread_ends_here, null),
                0
            );
            libc::pthread_detach(thread);
        }
    }
    while numbers(user.counters()) != [0, 0, 0, 3, 0] {
        thread::yield_now();
    }
    assert_eq!(user.user().both(), (6, 3));
    assert_eq!(totals(), [0, 0, 0, 3, 0]);
}

#[scenario]
fn signals_at_any_time_do_no_harm() {
    static IN_HANDLER: AtomicU64 = AtomicU64::new(0);
    extern "C" fn handler(_: i32) {
        IN_HANDLER.fetch_add(1, Ordering::SeqCst);
        assert_eq!(works_too(5), 7);
    }
    handle(
        libc::SIGUSR2,
        handler as *const () as usize,
        libc::SA_RESTART,
    );
    let users: Vec<_> = (0..4).map(|_| count("works works_too")).collect();
    let done = AtomicBool::new(false);
    let calls = thread::scope(|scope| {
        let (sender, receiver) = std::sync::mpsc::channel();
        let done = &done;
        let worker = scope.spawn(move || {
            // The first hit has a test of its own.
            works_too(0);
            // SAFETY: no arguments.
            sender.send(unsafe { libc::pthread_self() }).unwrap();
            let mut calls = 1;
            while !done.load(Ordering::Relaxed) {
                assert_eq!(works_too(calls), calls + 2);
                calls += 1;
            }
            calls
        });
        let target = receiver.recv().unwrap();
        for sent in 0..3_000 {
            // SAFETY: the thread runs until told to end.
            assert_eq!(unsafe { libc::pthread_kill(target, libc::SIGUSR2) }, 0);
            while IN_HANDLER.load(Ordering::SeqCst) <= sent {
                thread::yield_now();
            }
        }
        done.store(true, Ordering::Relaxed);
        worker.join().unwrap()
    });
    // Two calls each of the worker and of the handler; those that came inside fgraph were
    // missed.
    let all = 2 * (calls + IN_HANDLER.load(Ordering::SeqCst));
    for user in &users {
        let (entries, returns) = user.user().both();
        assert_eq!(entries, returns);
        let [missed, rest @ ..] = numbers(user.counters());
        assert_eq!((entries + missed, rest), (all, [0; 4]));
    }
    assert_eq!(totals()[1..], [0; 4]);
}

#[scenario]
fn calls_missed_during_the_first_hit_of_a_thread_are_counted_for_each_user() {
    static IN_HANDLER: AtomicU64 = AtomicU64::new(0);
    extern "C" fn handler(_: i32) {
        IN_HANDLER.fetch_add(1, Ordering::SeqCst);
        assert_eq!(works_too(5), 7);
    }
    handle(
        libc::SIGUSR2,
        handler as *const () as usize,
        libc::SA_RESTART,
    );
    let users: Vec<_> = (0..4).map(|_| count("works works_too")).collect();
    let threads = 100;
    for _ in 0..threads {
        let (sender, receiver) = std::sync::mpsc::channel();
        let (ready, done) = (&Barrier::new(2), &AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(move || {
                // SAFETY: no arguments.
                sender.send(unsafe { libc::pthread_self() }).unwrap();
                ready.wait();
                assert_eq!(works_too(1), 3);
                while !done.load(Ordering::SeqCst) {
                    std::hint::spin_loop();
                }
            });
            let target = receiver.recv().unwrap();
            ready.wait();
            for _ in 0..20 {
                // SAFETY: the thread runs until told to end.
                assert_eq!(unsafe { libc::pthread_kill(target, libc::SIGUSR2) }, 0);
            }
            done.store(true, Ordering::SeqCst);
        });
    }
    let all = 2 * (threads + IN_HANDLER.load(Ordering::SeqCst));
    assert_eq!(users[0].user().both().0 + totals()[0], all);
    for user in &users {
        assert_eq!(user.user().both().0 + numbers(user.counters())[0], all);
    }
}

static OWN_TRAPS: [AtomicU32; 2] = [AtomicU32::new(0), AtomicU32::new(0)];

extern "C" fn first_handler(signal: i32) {
    assert_eq!(signal, libc::SIGTRAP);
    OWN_TRAPS[0].fetch_add(1, Ordering::SeqCst);
}

extern "C" fn second_handler(
    signal: i32,
    info: *mut libc::siginfo_t,
    context: *mut libc::ucontext_t,
) {
    // SAFETY: of the kernel.
    let (code, ip) = unsafe {
        (
            (*info).si_code,
            (*context).uc_mcontext.gregs[libc::REG_RIP as usize],
        )
    };
    // SI_KERNEL: an int3.
    assert_eq!((signal, code), (libc::SIGTRAP, 0x80));
    assert_ne!(ip, 0);
    OWN_TRAPS[1].fetch_add(1, Ordering::SeqCst);
}

#[scenario]
fn the_program_keeps_getting_its_own_traps() {
    let traps = || [0, 1].map(|handler: usize| OWN_TRAPS[handler].load(Ordering::SeqCst));
    // The action from before.
    handle(libc::SIGTRAP, first_handler as *const () as usize, 0);
    int3();
    assert_eq!(traps(), [1, 0]);
    let user = count("works");
    int3();
    assert_eq!(traps(), [2, 0]);
    // SAFETY: it has a handler.
    unsafe { libc::raise(libc::SIGTRAP) };
    assert_eq!(traps(), [3, 0]);
    // And of after.
    handle(
        libc::SIGTRAP,
        second_handler as *const () as usize,
        libc::SA_SIGINFO,
    );
    int3();
    assert_eq!(traps(), [3, 1]);
    let other = count("works_too");
    int3();
    assert_eq!(traps(), [3, 2]);
    assert_eq!(works_too(1), 3);
    assert_eq!((user.user().both(), other.user().both()), ((1, 1), (1, 1)));
    drop((user, other));
    int3();
    assert_eq!(traps(), [3, 3]);
}

static PREVIOUS_HANDLER: AtomicU64 = AtomicU64::new(0);

/// Handler of a crash reporter, which passes every trap on.
extern "C" fn hands_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    OWN_TRAPS[1].fetch_add(1, Ordering::SeqCst);
    type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::ucontext_t);
    match PREVIOUS_HANDLER.load(Ordering::SeqCst) as usize {
        libc::SIG_DFL => {
            handle(libc::SIGTRAP, libc::SIG_DFL, 0);
        }
        previous => {
            // SAFETY: the handler that was set before, which wants all three.
            let previous: Handler = unsafe { std::mem::transmute(previous) };
            previous(signal, info, context);
        }
    }
}

/// The handler passes traps on to ours, which must not pass them back for ever.
#[scenario]
fn a_handler_that_hands_traps_on_to_ours_does_not_get_them_back() {
    use std::os::unix::process::ExitStatusExt;
    let status = forked(|| {
        // SAFETY: no core files.
        unsafe {
            libc::setrlimit(
                libc::RLIMIT_CORE,
                &libc::rlimit {
                    rlim_cur: 0,
                    rlim_max: 0,
                },
            )
        };
        let first = count("works");
        let before = handle(
            libc::SIGTRAP,
            hands_on as *const () as usize,
            libc::SA_SIGINFO,
        );
        PREVIOUS_HANDLER.store(before.sa_sigaction as u64, Ordering::SeqCst);
        let second = count("works_too");
        assert_eq!(works_too(1), 3);
        assert_eq!(
            (first.user().both(), second.user().both()),
            ((1, 1), (1, 1))
        );
        // As without us: it comes to the program's handler, and then to the default action.
        int3();
        17
    });
    assert_eq!(status.signal(), Some(libc::SIGTRAP), "{status}");
}

#[scenario]
fn own_traps_and_patching_at_the_same_time() {
    handle(libc::SIGTRAP, first_handler as *const () as usize, 0);
    let done = AtomicBool::new(false);
    let traps = thread::scope(|scope| {
        let trapping = scope.spawn(|| {
            let mut traps = 0;
            while !done.load(Ordering::Relaxed) {
                int3();
                assert_eq!(works(traps), traps + 1);
                traps += 1;
            }
            traps
        });
        for _ in 0..200 {
            drop(count("works"));
        }
        done.store(true, Ordering::Relaxed);
        trapping.join().unwrap()
    });
    assert_eq!(u64::from(OWN_TRAPS[0].load(Ordering::SeqCst)), traps);
}

#[scenario]
fn an_unhandled_trap_kills_the_program() {
    use std::os::unix::process::ExitStatusExt;
    let dies = || {
        // SAFETY: no core files.
        unsafe {
            libc::setrlimit(
                libc::RLIMIT_CORE,
                &libc::rlimit {
                    rlim_cur: 0,
                    rlim_max: 0,
                },
            )
        };
        int3();
        0
    };
    assert_eq!(forked(dies).signal(), Some(libc::SIGTRAP));
    let user = count("works");
    assert_eq!(forked(dies).signal(), Some(libc::SIGTRAP));
    assert_eq!(
        forked(|| {
            // SAFETY: it has no handler of its own.
            unsafe { libc::raise(libc::SIGTRAP) };
            0
        })
        .signal(),
        Some(libc::SIGTRAP)
    );
    drop(user);
    assert_eq!(forked(dies).signal(), Some(libc::SIGTRAP));
}

/// The kernel does not let a process ignore its own int3.
#[scenario]
fn a_program_that_ignores_sigtrap_ignores_only_what_it_would_without_us() {
    use std::os::unix::process::ExitStatusExt;
    handle(libc::SIGTRAP, libc::SIG_IGN, 0);
    let sent = || {
        // SAFETY: ignored.
        unsafe { libc::raise(libc::SIGTRAP) };
        17
    };
    let own = || {
        int3();
        17
    };
    let both = || (forked(sent).code(), forked(own).signal());
    let without = both();
    assert_eq!(without, (Some(17), Some(libc::SIGTRAP)));
    let _user = count("works");
    assert_eq!(both(), without);
}

/// A debugger sees the same registers as a core file has.
#[scenario]
fn a_trap_that_nobody_handles_kills_with_the_registers_of_its_place() {
    let _user = count("works");
    // SAFETY: the child traps and dies; the parent reads into live locals.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::alarm(60);
            libc::setrlimit(libc::RLIMIT_CORE, &std::mem::zeroed());
            if libc::ptrace(libc::PTRACE_TRACEME) != 0 {
                libc::_exit(99);
            }
            int3();
            libc::_exit(0);
        }
        let (mut stops, mut status) = (Vec::new(), 0);
        while libc::waitpid(child, &mut status, 0) == child && libc::WIFSTOPPED(status) {
            let mut registers: libc::user_regs_struct = std::mem::zeroed();
            let mut info: libc::siginfo_t = std::mem::zeroed();
            libc::ptrace(libc::PTRACE_GETREGS, child, 0, &raw mut registers);
            libc::ptrace(libc::PTRACE_GETSIGINFO, child, 0, &raw mut info);
            stops.push((info.si_signo, info.si_code, registers.rip, registers.rsp));
            libc::ptrace(libc::PTRACE_CONT, child, 0, libc::WSTOPSIG(status));
        }
        if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 99 {
            return skip!("processes may not be traced here");
        }
        assert_eq!(libc::WTERMSIG(status), libc::SIGTRAP);
        let [first, .., last] = stops[..] else {
            panic!("{stops:x?}");
        };
        assert_eq!(first, last);
    }
}

/// `profil` of the C library and all programs that gcc has built with `-pg` have such a handler.
#[scenario]
fn handlers_that_block_every_signal_may_run_while_functions_are_patched() {
    extern "C" fn masked(_signal: i32) {
        assert_eq!(works(1), 2);
    }
    const TIMER: libc::timeval = libc::timeval {
        tv_sec: 0,
        tv_usec: 100,
    };
    // SAFETY: plain data.
    let action = |set: Option<libc::sigaction>| unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        let set = set.as_ref().map_or(ptr::null(), ptr::from_ref);
        assert_eq!(libc::sigaction(libc::SIGALRM, set, &mut now), 0);
        now
    };
    // SAFETY: plain data; the handler is such a function.
    unsafe {
        let mut new: libc::sigaction = std::mem::zeroed();
        new.sa_sigaction = masked as *const () as usize;
        new.sa_flags = libc::SA_RESTART;
        libc::sigfillset(&mut new.sa_mask);
        action(Some(new));
        let timer = libc::itimerval {
            it_interval: TIMER,
            it_value: TIMER,
        };
        assert_eq!(
            libc::setitimer(libc::ITIMER_REAL, &timer, ptr::null_mut()),
            0
        );
    }
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                assert_eq!(works(7), 8);
            }
        });
        for _ in 0..500 {
            drop(count("works"));
        }
        done.store(true, Ordering::Relaxed);
    });
    // SAFETY: plain data.
    unsafe {
        let mask = action(None).sa_mask;
        assert_eq!(libc::sigismember(&mask, libc::SIGTRAP), 0);
        assert_eq!(libc::sigismember(&mask, libc::SIGINT), 1);
    }
}

traceable!("has_nop", "lea rax, [rdi + 1]", "ret");

unsafe extern "C" {
    safe fn has_nop(n: u64) -> u64;
}

#[scenario]
fn the_only_thread_asks_for_no_handlers_where_it_changes_a_nop() {
    extern "C" fn masked(_signal: i32) {}
    // The test harness has a thread.
    let status = forked(|| {
        // The linker's function, which has no NOP, is patched with the first user.
        let _first = count("works");
        let trace = || {
            let user = count("has_nop");
            assert_eq!(has_nop(1), 2);
            assert_eq!(user.unregister().unwrap().both(), (1, 1));
        };
        // SAFETY: plain data; the handler is such a function.
        let is_blocked = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = masked as *const () as usize;
            libc::sigfillset(&mut action.sa_mask);
            libc::sigaction(libc::SIGUSR1, &action, ptr::null_mut());
            || {
                let mut now: libc::sigaction = std::mem::zeroed();
                libc::sigaction(libc::SIGUSR1, ptr::null(), &mut now);
                libc::sigismember(&now.sa_mask, libc::SIGTRAP) == 1
            }
        };
        trace();
        assert!(is_blocked());
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let other = thread::spawn(move || ended.recv());
        trace();
        assert!(!is_blocked());
        drop(end);
        assert!(other.join().unwrap().is_err());
        0
    });
    assert!(status.success());
}

/// Ruby frees the memory of its alternate stack and does not say so. The patching thread calls
/// `syscall` in the middle of a batch.
#[scenario]
fn the_patching_thread_needs_no_writable_alternate_stack() {
    const LEN: usize = 64 << 10;
    // SAFETY: no handler that runs on the stack is left when it is gone.
    let before = unsafe {
        let memory = libc::mmap(
            ptr::null_mut(),
            LEN,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        let stack = libc::stack_t {
            ss_sp: memory,
            ss_flags: 0,
            ss_size: LEN,
        };
        let mut before = std::mem::zeroed();
        assert_eq!(libc::sigaltstack(&stack, &mut before), 0);
        before
    };
    for _ in 0..10 {
        let user = count("syscall");
        assert_eq!(user.report().unwrap().traced, 1);
    }
    // SAFETY: what was there before.
    unsafe { libc::sigaltstack(&before, ptr::null_mut()) };
}

/// Runs `work` while a thread blocks SIGTRAP and runs.
fn while_blocked<R>(work: impl FnOnce(u32) -> R) -> R {
    let (sender, receiver) = std::sync::mpsc::channel();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let thread = thread::spawn(move || {
        mask_sigtrap(libc::SIG_BLOCK);
        // SAFETY: no arguments.
        sender.send(unsafe { libc::gettid() as u32 }).unwrap();
        while ended.try_recv() == Err(TryRecvError::Empty) {
            thread::yield_now();
        }
        mask_sigtrap(libc::SIG_UNBLOCK);
    });
    let id = receiver.recv().unwrap();
    let result = work(id);
    drop(end);
    thread.join().unwrap();
    result
}

#[scenario]
fn a_thread_that_blocks_sigtrap_is_an_error_and_nothing_is_patched() {
    let kept = count("works_too");
    while_blocked(|thread| {
        // More often than there are slots; each time it is waited for.
        for _ in 0..=fgraph::MAX_USERS {
            let error = fgraph_scenario::register(Count::default(), "works").unwrap_err();
            assert_eq!(error, Error::SignalBlocked { thread });
            assert!(error.to_string().contains(&thread.to_string()), "{error}");
        }
        assert!(!is_patched(WORKS));
        assert_eq!(works_too(1), 3);
        assert_eq!(kept.user().both(), (1, 1));
    });
    let user = count("works");
    assert_eq!(works_too(1), 3);
    assert_eq!((kept.user().both(), user.user().both()), ((2, 2), (1, 1)));
}

/// Rings of `io_uring` for which the kernel makes a thread in the process. 0, or the negative
/// number of the error.
const RINGS: &str = r"
    #define _GNU_SOURCE
    #include <errno.h>
    #include <linux/io_uring.h>
    #include <sys/mman.h>
    #include <sys/syscall.h>
    #include <unistd.h>

    /* The thread looks for submissions. */
    int polled_ring(void) {
        struct io_uring_params params = {.flags = IORING_SETUP_SQPOLL};
        return syscall(SYS_io_uring_setup, 4, &params) < 0 ? -errno : 0;
    }

    /* The thread reads from a pipe that stays empty. */
    int working_ring(void) {
        static char byte;
        struct io_uring_params params = {0};
        int ends[2], rights = PROT_READ | PROT_WRITE;
        int ring = syscall(SYS_io_uring_setup, 4, &params);
        if (ring < 0 || pipe(ends))
            return -errno;
        char *queue = mmap(NULL, 4096, rights, MAP_SHARED, ring, IORING_OFF_SQ_RING);
        struct io_uring_sqe *read = mmap(NULL, 4096, rights, MAP_SHARED, ring, IORING_OFF_SQES);
        if (queue == MAP_FAILED || (void *)read == MAP_FAILED)
            return -errno;
        *read = (struct io_uring_sqe){.opcode = IORING_OP_READ, .flags = IOSQE_ASYNC,
            .fd = ends[0], .addr = (unsigned long)&byte, .len = 1};
        *(volatile unsigned *)(queue + params.sq_off.tail) = 1;
        return syscall(SYS_io_uring_enter, ring, 1, 0, 0, NULL, 0) == 1 ? 0 : -errno;
    }
";

/// The signals that a thread of this process blocks, if its name begins so.
fn blocked_by(name: &str) -> Option<u64> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let status = |task: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(task.unwrap().path().join("status")).ok()
    };
    let mut all = tasks.filter_map(status);
    let text = all.find(|text| text.starts_with(&format!("Name:\t{name}")))?;
    let mask = text.lines().find_map(|line| line.strip_prefix("SigBlk:"));
    u64::from_str_radix(mask.unwrap().trim(), 16).ok()
}

#[scenario]
fn functions_are_patched_beside_kernel_threads_of_io_uring() {
    let library = needs!(fgraph_scenario::library(&CC, "rings.c", RINGS, &[]));
    for (ring, thread) in [("polled_ring", "iou-sqp"), ("working_ring", "iou-wrk")] {
        // SAFETY: its type.
        let make: extern "C" fn() -> i32 = unsafe { library.get(ring) };
        let made = make();
        if [-libc::ENOSYS, -libc::EPERM].contains(&made) {
            return skip!("this kernel gives no io_uring (sysctl kernel.io_uring_disabled=0)");
        }
        assert_eq!(made, 0);
        let mask = (0..10_000).find_map(|_| {
            thread::sleep(std::time::Duration::from_millis(1));
            blocked_by(thread)
        });
        assert_ne!(mask.unwrap() & 1 << (libc::SIGTRAP - 1), 0);
        let user = count("works");
        assert!(is_patched(WORKS));
        assert_eq!(works(1), 2);
        assert_eq!(user.unregister().unwrap().both(), (1, 1));
        assert!(!is_patched(WORKS));
    }
}

/// The C library of glibc 2.42 and later ends the main thread so.
#[scenario]
fn a_main_thread_that_has_ended_with_all_signals_blocked_blocks_no_batch() {
    let child = forked(|| {
        thread::spawn(|| {
            let is_there = || {
                let status = std::fs::read_to_string("/proc/self/status").unwrap();
                !status.contains("State:\tZ")
            };
            while is_there() {
                thread::yield_now();
            }
            let user = fgraph_scenario::register(Count::default(), "works");
            let is_traced = user.is_ok_and(|user| works(1) == 2 && user.user().both() == (1, 1));
            // SAFETY: ends the child.
            unsafe { libc::_exit(if is_traced { 0 } else { 1 }) };
        });
        mask_sigtrap(libc::SIG_BLOCK);
        // SAFETY: ends the main thread, and the other one needs nothing of it.
        unsafe { libc::syscall(libc::SYS_exit, 0) as i32 }
    });
    assert_eq!(child.code(), Some(0), "{child}");
}

#[scenario]
fn a_filter_that_cannot_be_changed_stays_as_it_is() {
    let user = count("works_too");
    while_blocked(|thread| {
        let error = fgraph_scenario::set_filter(&user, "works").unwrap_err();
        assert_eq!(error, Error::SignalBlocked { thread });
        assert_eq!(works_too(1), 3);
        assert_eq!(user.user().both(), (1, 1));
    });
    // Nor does it get what the refused filter selects when somebody else wants that.
    let other = count("works");
    assert_eq!(works_too(1), 3);
    assert_eq!((user.user().both(), other.user().both()), ((2, 2), (1, 1)));
}

#[scenario]
fn a_jump_that_stays_is_taken_away_when_no_thread_blocks_sigtrap() {
    let user = count("works");
    while_blocked(|thread| {
        assert_eq!(user.unregister().unwrap().both(), (0, 0));
        assert!(is_patched(WORKS));
        assert_eq!(
            fgraph::restore_functions(),
            Err(Error::SignalBlocked { thread })
        );
        assert!(is_patched(WORKS));
    });
    assert_eq!(fgraph::restore_functions(), Ok(()));
    assert!(!is_patched(WORKS));
    assert_eq!(fgraph::restore_functions(), Ok(()));
}

#[scenario]
fn a_user_can_leave_while_a_thread_blocks_sigtrap() {
    let user = count("works");
    while_blocked(|_| {
        assert_eq!(works(1), 2);
        assert_eq!(user.unregister().unwrap().both(), (1, 1));
        assert_eq!(works(1), 2);
    });
    // Text that could not be restored then is restored with the next change.
    drop(count("works_too"));
    assert!(!is_patched(WORKS));
    assert_eq!(patched(), 0);
}

#[scenario]
fn the_patching_thread_itself_may_block_sigtrap() {
    mask_sigtrap(libc::SIG_BLOCK);
    let user = count("works");
    assert_eq!(works(1), 2);
    assert_eq!(user.unregister().unwrap().both(), (1, 1));
    // It still does.
    // SAFETY: plain data.
    unsafe {
        let mut now: libc::sigset_t = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), &mut now);
        assert_eq!(libc::sigismember(&now, libc::SIGTRAP), 1);
    }
}

#[unsafe(no_mangle)]
#[inline(never)]
fn forks(work: fn() -> i32) -> (i32, i32) {
    // SAFETY: the child only does `work`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        return (0, work());
    }
    (child, 0)
}

#[unsafe(no_mangle)]
#[inline(never)]
fn around_the_fork(work: fn() -> i32) -> (i32, i32) {
    let (child, result) = forks(work);
    (black_box(child), result + 1)
}

#[scenario]
fn a_child_goes_on_in_the_middle_of_traced_calls() {
    static USERS: Mutex<Vec<Handle<Count>>> = Mutex::new(Vec::new());
    // Threads that the child does not have, some of them inside.
    let (ready, done) = (Barrier::new(3), AtomicBool::new(false));
    thread::scope(|scope| {
        for _ in 0..2 {
            let (ready, done) = (&ready, &done);
            scope.spawn(move || {
                works(1);
                ready.wait();
                while !done.load(Ordering::Relaxed) {
                    works_too(1);
                }
            });
        }
        let user = count("forks around_the_fork works");
        USERS.lock().unwrap().push(count("forks"));
        ready.wait();
        let (child, result) = around_the_fork(|| {
            // The traced calls of the child, and a new user in it.
            assert_eq!(works_too(40), 42);
            let own = fgraph_scenario::register(Count::default(), "works_too").unwrap();
            assert_eq!(works_too(40), 42);
            thread::spawn(|| assert_eq!(works_too(1), 3))
                .join()
                .unwrap();
            assert_eq!(own.unregister().unwrap().both(), (2, 2));
            assert!(is_patched(WORKS));
            10
        });
        if child == 0 {
            // Its returns are delivered in the child.
            let mut users = USERS.lock().unwrap();
            assert_eq!(users[0].user().both(), (1, 1));
            assert_eq!(users.pop().unwrap().unregister().unwrap().both(), (1, 1));
            assert_eq!(user.unregister().unwrap().all().2, 0);
            assert_eq!(patched(), 0);
            assert_eq!(works_too(40), 42);
            // SAFETY: ends the child here.
            unsafe { libc::_exit(result) }
        }
        let mut status = 0;
        // SAFETY: a child of ours.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        done.store(true, Ordering::Relaxed);
        assert_eq!(
            (libc::WIFEXITED(status), libc::WEXITSTATUS(status)),
            (true, 11)
        );
        // The parent's text is not the child's.
        assert!(is_patched(WORKS));
        assert_eq!(USERS.lock().unwrap()[0].user().both(), (1, 1));
        assert_eq!(user.status(), UserStatus::Active);
    });
}

#[scenario]
fn a_fork_while_another_thread_registers_leaves_the_child_able_to() {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                drop(count("works*"));
            }
        });
        let mut bad = None;
        for n in 0..20 {
            let status = forked(|| {
                // SAFETY: a hang is to end the child.
                unsafe { libc::alarm(60) };
                let user = fgraph_scenario::register(Count::default(), "works").unwrap();
                works(1);
                i32::from(user.unregister().unwrap().both() != (1, 1))
            });
            if !status.success() {
                bad = Some((n, status));
                break;
            }
        }
        done.store(true, Ordering::Relaxed);
        assert_eq!(bad, None, "hung (14 is SIGALRM), or failed");
    });
}

#[scenario]
fn other_threads_may_be_cancelled_or_exit_at_any_time() {
    // A destructor of thread-local data calls a traced function, long after the thread's main
    // function has returned.
    struct AtExit;
    impl Drop for AtExit {
        fn drop(&mut self) {
            assert_eq!(works(9), 10);
        }
    }
    thread_local!(static AT_EXIT: AtExit = const { AtExit });
    let user = count("works");
    for _ in 0..100 {
        thread::spawn(|| AT_EXIT.with(|_| assert_eq!(works(1), 2)))
            .join()
            .unwrap();
    }
    assert_eq!(user.user().both(), (200, 200));
}
