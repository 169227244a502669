//! Calls that are not traced, each counted exactly, and none of them harmed.

use std::ffi::c_void;
use std::hint::black_box;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

use crate::common::switch::switch_stacks;
use fgraph::{Dropped, Entry, FgraphOps, Handle, Return};
use fgraph_needs::{CC, needs};
use fgraph_scenario::{Count, numbers, plain, scenario, totals, user};

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn outer(n: u64) -> u64 {
    black_box(inner(n)) + 1
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn inner(n: u64) -> u64 {
    black_box(n) * 2
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn deep(n: u64) -> u64 {
    if n == 0 {
        0
    } else {
        black_box(deep(n - 1)) + 1
    }
}

fn count(filter: &str) -> Handle<Count> {
    fgraph_scenario::register(Count::default(), filter).unwrap()
}

fn of<T: FgraphOps>(handle: &Handle<T>) -> [u64; 5] {
    numbers(handle.counters())
}

const fn missed(n: u64) -> [u64; 5] {
    [n, 0, 0, 0, 0]
}

const fn overrun(n: u64) -> [u64; 5] {
    [0, n, 0, 0, 0]
}

const fn unreserved(n: u64) -> [u64; 5] {
    [0, 0, n, 0, 0]
}

const fn lost(n: u64) -> [u64; 5] {
    [0, 0, 0, n, 0]
}

const NOTHING: [u64; 5] = [0; 5];

#[scenario]
fn calls_of_callbacks_are_counted_as_missed() {
    let caller = fgraph_scenario::register(
        user(
            |_| {
                for _ in 0..3 {
                    assert_eq!(inner(5), 10);
                }
                Some(())
            },
            |_, ()| assert_eq!(outer(5), 11),
        ),
        "outer",
    )
    .unwrap();
    let outside = count("outer");
    let inside = count("inner");
    let both = count("inner outer");
    assert_eq!(outer(21), 43);
    // At entry three calls of `inner`, at return one of `outer` and through it one of
    // `inner`.
    assert_eq!(of(&caller), missed(1));
    assert_eq!(of(&outside), missed(1));
    assert_eq!(of(&inside), missed(4));
    assert_eq!(of(&both), missed(5));
    assert_eq!(totals(), missed(5));
    assert_eq!(
        (
            outside.user().both(),
            inside.user().both(),
            both.user().both()
        ),
        ((1, 1), (1, 1), (2, 2))
    );
    // A user's numbers begin with the user.
    let late = count("inner outer");
    assert_eq!(of(&late), missed(0));
    drop(caller);
    assert_eq!(outer(21), 43);
    assert_eq!((of(&late), of(&both)), (missed(0), missed(5)));
}

/// The kernel's trace_selftest_function_recursion.
#[scenario]
fn a_callback_that_calls_its_own_function_does_not_recurse() {
    let calls = AtomicU64::new(0);
    let handle = fgraph_scenario::register(
        user(
            move |_| {
                assert!(calls.fetch_add(1, Ordering::SeqCst) < 2);
                Some(inner(black_box(7)))
            },
            |_, data| assert_eq!(data, inner(black_box(7))),
        ),
        "inner",
    )
    .unwrap();
    assert_eq!(inner(1) + inner(2), 6);
    assert_eq!(handle.status(), fgraph::UserStatus::Active);
    assert_eq!((of(&handle), totals()), (missed(4), missed(4)));
}

#[scenario]
fn missed_calls_of_many_threads_add_up() {
    let handle =
        fgraph_scenario::register(user(|_| Some(inner(1)), |_, _| ()), "inner outer").unwrap();
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..500).for_each(|n| assert_eq!(outer(n), 2 * n + 1)));
        }
    });
    // The threads are gone, what they have counted is not.
    assert_eq!((of(&handle), totals()), (missed(8_000), missed(8_000)));
    let each: u64 = fgraph::threads()
        .iter()
        .map(|thread| thread.counters.missed)
        .sum();
    assert!(each <= 8_000);
}

#[scenario]
fn a_full_shadow_stack_is_an_overrun() {
    // Room for ten frames without data above the oldest, which is no call's.
    fgraph::set_shadow_stack_size(64 + 10 * 64);
    let one = fgraph_scenario::register(user(|_| Some(()), |_, ()| ()), "deep").unwrap();
    let calls = AtomicU64::new(0);
    let other = fgraph_scenario::register(
        user(
            move |_| {
                calls.fetch_add(1, Ordering::SeqCst);
                Some(())
            },
            |_, ()| (),
        ),
        "deep",
    )
    .unwrap();
    let none = count("outer");
    thread::spawn(|| assert_eq!(deep(49), 49)).join().unwrap();
    assert_eq!(
        (of(&one), of(&other), of(&none)),
        (overrun(40), overrun(40), overrun(0))
    );
    assert_eq!(totals(), overrun(40));
    // Up to the brim, and over it again.
    thread::spawn(|| {
        assert_eq!(deep(9), 9);
        assert_eq!(totals(), overrun(40));
        assert_eq!(deep(10), 10);
        assert_eq!(deep(10), 10);
    })
    .join()
    .unwrap();
    assert_eq!(totals(), overrun(42));
}

#[scenario]
fn calls_that_overrun_give_no_callbacks_and_right_results() {
    // A frame with 8 bytes of data takes 64 + 16 + 16.
    fgraph::set_shadow_stack_size(64 + 5 * 96);
    let user = count("deep");
    for _ in 0..3 {
        thread::spawn(|| (0..10).for_each(|n| assert_eq!(deep(n), n)))
            .join()
            .unwrap();
    }
    // Five of n + 1 calls find room.
    let (mut traced, mut not) = (0, 0);
    for n in 0..10 {
        traced += (n + 1).min(5);
        not += (n + 1u64).saturating_sub(5);
    }
    let numbers = of(&user);
    assert_eq!(user.user().both(), (3 * traced, 3 * traced));
    assert_eq!(numbers[1] + numbers[2], 3 * not, "{numbers:?}");
    assert_eq!(numbers, totals());
}

#[scenario]
fn the_smallest_shadow_stack_works() {
    fgraph::set_shadow_stack_size(0);
    let user = fgraph_scenario::register(user(|_| Some(()), |_, ()| ()), "deep").unwrap();
    thread::spawn(|| assert_eq!(deep(5), 5)).join().unwrap();
    // 128 bytes: one frame.
    assert_eq!(of(&user), overrun(5));
}

#[scenario]
fn data_that_finds_no_room_costs_only_its_user_the_call() {
    fgraph::set_shadow_stack_size(2048);
    let first =
        fgraph_scenario::register(user(|_| Some(1u64), |_, one| assert_eq!(one, 1)), "deep")
            .unwrap();
    let asked = AtomicU64::new(0);
    let large = fgraph_scenario::register(
        user(
            move |_| {
                assert_eq!(asked.fetch_add(1, Ordering::SeqCst), 0);
                Some([2u8; 1024])
            },
            |_, data| assert_eq!(data, [2; 1024]),
        ),
        "deep",
    )
    .unwrap();
    let last = count("deep");
    // The first call takes 64 + 32 + 1040 + 32 bytes, the others 64 + 32 + 32.
    thread::spawn(|| assert_eq!(deep(4), 4)).join().unwrap();
    assert_eq!(of(&first), [0; 5]);
    assert_eq!(of(&large), unreserved(4));
    assert_eq!(of(&last), [0; 5]);
    assert_eq!(last.user().both(), (5, 5));
    assert_eq!(totals(), unreserved(4));
    for status in [first.status(), large.status()] {
        assert_eq!(status, fgraph::UserStatus::Active);
    }
}

#[scenario]
fn the_default_shadow_stack_holds_4000_calls() {
    let _user = fgraph_scenario::register(user(|_| Some(()), |_, ()| ()), "deep").unwrap();
    let builder = thread::Builder::new().stack_size(16 << 20);
    builder
        .spawn(|| assert_eq!(deep(3_999), 3_999))
        .unwrap()
        .join()
        .unwrap();
    assert_eq!(totals(), [0; 5]);
    let builder = thread::Builder::new().stack_size(64 << 20);
    builder
        .spawn(|| assert_eq!(deep(100_000), 100_000))
        .unwrap()
        .join()
        .unwrap();
    assert!(totals()[1] > 90_000);
}

const JUMPER: &str = r#"
    #include <setjmp.h>
    #include <signal.h>
    static _Thread_local jmp_buf env;
    static _Thread_local sigjmp_buf sigenv;
    int guarded(long (*f)(long), long n) { if (setjmp(env) == 0) { f(n); return 0; } return 1; }
    void bail(void) { longjmp(env, 1); }
    int sigguarded(long (*f)(long), long n) {
        if (sigsetjmp(sigenv, 1) == 0) { f(n); return 0; }
        return 1;
    }
    void on_signal(int signal) { (void)signal; siglongjmp(sigenv, 1); }
"#;

/// Address of `bail` in the library, where `jumps` ends.
static BAIL: AtomicUsize = AtomicUsize::new(0);

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn jumps(n: u64) -> u64 {
    if n == u64::MAX {
        return 0;
    }
    if n == 0 {
        // SAFETY: the address of `bail`; no frame on its way has anything to drop.
        unsafe {
            let bail: extern "C" fn() = std::mem::transmute(BAIL.load(Ordering::Relaxed));
            bail();
        }
    }
    black_box(jumps(n - 1)) + 1
}

type Function = extern "C" fn(u64) -> u64;

/// Address of the library's `guarded`.
static GUARDED: AtomicUsize = AtomicUsize::new(0);

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn around(n: u64) -> u64 {
    // SAFETY: the address of `guarded`.
    let guarded: extern "C" fn(Function, u64) -> i32 =
        unsafe { std::mem::transmute(GUARDED.load(Ordering::Relaxed)) };
    black_box(guarded(jumps, n)) as u64 + n
}

#[scenario]
fn calls_left_by_longjmp_are_lost() {
    let library = needs!(fgraph_scenario::library(&CC, "jumper.c", JUMPER, &[]));
    BAIL.store(library.address("bail") as usize, Ordering::Relaxed);
    // SAFETY: its type.
    let guarded = unsafe { library.get::<extern "C" fn(Function, u64) -> i32>("guarded") };
    let one = count("jumps inner");
    let other = count("jumps");
    for round in 1..=1_000 {
        assert_eq!(guarded(jumps, 2), 1);
        // Noticed with the next call.
        assert_eq!(inner(2), 4);
        assert_eq!(of(&one), lost(3 * round));
    }
    assert_eq!(of(&other), lost(3_000));
    assert_eq!(totals(), lost(3_000));
    assert_eq!(one.user().both(), (4_000, 1_000));
    assert_eq!(other.user().both(), (3_000, 0));
}

/// A log of callbacks: `e` for an entry, `r` for a return, `d` for a dropped call; and the argument
/// of the call.
#[derive(Default)]
struct Told(Mutex<Vec<(char, u64)>>);

impl Told {
    fn add(&self, what: char, argument: u64) {
        self.0.lock().unwrap().push((what, argument));
        // SAFETY: the running thread's own.
        unsafe { *libc::__errno_location() = libc::EBADF };
    }

    fn take(&self) -> String {
        let told = std::mem::take(&mut *self.0.lock().unwrap());
        let told = told
            .iter()
            .map(|(what, argument)| format!("{what}{argument}"));
        told.collect::<Vec<_>>().join(" ")
    }
}

impl FgraphOps for Told {
    type Data = u64;

    fn entry(&self, call: &mut Entry<'_, u64>) -> Option<u64> {
        let argument = call.arg(0)?;
        self.add('e', argument);
        // Every other call of `jumps` is none of this user's.
        (argument != 1).then_some(argument)
    }

    fn ret(&self, _call: &mut Return<'_, u64>, argument: u64) {
        self.add('r', argument);
    }

    fn dropped(&self, call: &Dropped<'_, u64>, argument: u64) {
        assert_eq!(call.function().name().as_str(), "jumps");
        assert_eq!(call.thread_id(), fgraph::thread_id());
        self.add('d', argument);
    }
}

#[scenario]
fn users_are_told_of_dropped_calls_before_the_event_that_shows_them() {
    let library = needs!(fgraph_scenario::library(&CC, "jumper3.c", JUMPER, &[]));
    BAIL.store(library.address("bail") as usize, Ordering::Relaxed);
    GUARDED.store(library.address("guarded") as usize, Ordering::Relaxed);
    // SAFETY: its type.
    let guarded = unsafe { library.get::<extern "C" fn(Function, u64) -> i32>("guarded") };
    let user = fgraph_scenario::register(Told::default(), "jumps inner around").unwrap();
    // A user without data, whose records do not lie between the others'.
    let other = count("jumps inner around");
    for _ in 0..3 {
        assert_eq!(guarded(jumps, 3), 1);
        assert_eq!(user.user().take(), "e3 e2 e1 e0");
        // SAFETY: the running thread's own.
        unsafe { *libc::__errno_location() = libc::EDOM };
        assert_eq!(inner(7), 14);
        assert_eq!(
            std::io::Error::last_os_error().raw_os_error(),
            Some(libc::EDOM)
        );
        assert_eq!(user.user().take(), "d0 d2 d3 e7 r7");
        // The next event is a return.
        assert_eq!(around(2), 3);
        assert_eq!(user.user().take(), "e2 e2 e1 e0 d0 d2 r2");
    }
    assert_eq!(of(&user), lost(3 * 5));
    assert_eq!(of(&other), lost(3 * 7));
}

#[scenario]
fn calls_left_by_longjmp_are_lost_also_when_the_next_event_is_a_return() {
    let library = needs!(fgraph_scenario::library(&CC, "jumper2.c", JUMPER, &[]));
    BAIL.store(library.address("bail") as usize, Ordering::Relaxed);
    GUARDED.store(library.address("guarded") as usize, Ordering::Relaxed);
    let user = count("jumps around");
    for round in 1..=100 {
        assert_eq!(around(4), 5);
        assert_eq!(of(&user), lost(5 * round));
        assert_eq!(user.user().both(), (6 * round, round));
    }
    assert_eq!(totals(), lost(500));
}

/// Number of times that `raising_in_inner` has raised.
static ENTRIES: AtomicUsize = AtomicUsize::new(0);

/// A user that raises a signal when `inner` is called with `argument`.
fn raising_in_inner(argument: u64) -> Handle<impl FgraphOps> {
    let raising = user(
        move |call| {
            if call.arg(0) == Some(argument) {
                ENTRIES.fetch_add(1, Ordering::Relaxed);
                // SAFETY: its handler leaves this callback, which has nothing to drop.
                unsafe { libc::raise(libc::SIGUSR2) };
            }
            Some(())
        },
        |_, ()| (),
    );
    fgraph_scenario::register(raising, "inner").unwrap()
}

#[scenario]
fn a_signal_handler_may_leave_a_callback_by_siglongjmp() {
    let library = needs!(fgraph_scenario::library(&CC, "jumper3.c", JUMPER, &[]));
    // SAFETY: its type.
    let guarded = unsafe { library.get::<extern "C" fn(Function, u64) -> i32>("sigguarded") };
    let handler = library.address("on_signal") as usize;
    // SAFETY: a handler of that signature.
    unsafe { libc::signal(libc::SIGUSR2, handler) };
    let other = count("inner outer");
    let raises = raising_in_inner(99);
    for round in 1..=100 {
        assert_eq!(guarded(outer, 99), 1);
        assert_eq!(outer(4), 9);
        assert_eq!(other.user().both(), (4 * round, 2 * round));
    }
    assert_eq!(raises.status(), fgraph::UserStatus::Active);
    // Nothing hangs in the grace period, either.
    drop(raises);
    drop(other);
}

/// The callback leaves a call that is deeper than the function where it continues; that function
/// goes on and returns.
#[scenario]
fn calls_around_a_callback_that_was_left_by_siglongjmp_are_traced_to_their_end() {
    static GUARDED: AtomicUsize = AtomicUsize::new(0);
    #[unsafe(no_mangle)]
    #[inline(never)]
    extern "C" fn recovers(n: u64) -> u64 {
        // SAFETY: the address of `sigguarded`.
        let guarded: extern "C" fn(Function, u64) -> i32 =
            unsafe { std::mem::transmute(GUARDED.load(Ordering::Relaxed)) };
        black_box(guarded(inner, 99)) as u64 + n
    }
    let library = needs!(fgraph_scenario::library(&CC, "jumper4.c", JUMPER, &[]));
    GUARDED.store(library.address("sigguarded") as usize, Ordering::Relaxed);
    let handler = library.address("on_signal") as usize;
    // SAFETY: a handler of that signature.
    unsafe { libc::signal(libc::SIGUSR2, handler) };
    let raises = raising_in_inner(99);
    let around = count("recovers");
    for round in 1..=100 {
        assert_eq!(recovers(1), 2);
        assert_eq!(around.user().both(), (round, round));
    }
    assert_eq!(of(&around), missed(0));
    drop(raises);
}

/// The user of `inner` has accepted the call whose callbacks are left, and asks again afterwards.
#[scenario]
fn a_call_whose_callback_was_left_by_siglongjmp_encloses_no_other() {
    static GUARDED: AtomicUsize = AtomicUsize::new(0);
    static PARENTS: AtomicU64 = AtomicU64::new(0);
    #[unsafe(no_mangle)]
    #[inline(never)]
    extern "C" fn survives(n: u64) -> u64 {
        // SAFETY: the address of `sigguarded`.
        let guarded: extern "C" fn(Function, u64) -> i32 =
            unsafe { std::mem::transmute(GUARDED.load(Ordering::Relaxed)) };
        black_box(guarded(inner, 99)) as u64 + n
    }
    let library = needs!(fgraph_scenario::library(&CC, "jumper6.c", JUMPER, &[]));
    GUARDED.store(library.address("sigguarded") as usize, Ordering::Relaxed);
    let handler = library.address("on_signal") as usize;
    // SAFETY: a handler of that signature.
    unsafe { libc::signal(libc::SIGUSR2, handler) };
    let asks = user(
        |call| {
            let parents = u64::from(call.parent_data().is_some());
            PARENTS.fetch_add(parents, Ordering::Relaxed);
            call.arg(0)
        },
        |_, _: u64| (),
    );
    let _asks = fgraph_scenario::register(asks, "inner").unwrap();
    let raises = raising_in_inner(99);
    let around = count("survives");
    for round in 1..=100 {
        // The return is the first that shows that the callback was left.
        assert_eq!(survives(1), 2);
        assert_eq!(around.user().both(), (round, round));
        assert_eq!(inner(5), 10);
    }
    assert_eq!(PARENTS.load(Ordering::Relaxed), 0);
    drop(raises);
}

/// Calls a function one instruction at a time, and leaves it after so many: from the handler of the
/// step, or with `INTERRUPT` from that of a signal that is sent then.
const STEPPER: &str = r#"
    #define _GNU_SOURCE
    #include <setjmp.h>
    #include <signal.h>
    #include <stddef.h>
    #include <sys/syscall.h>
    #include <unistd.h>
    static sigjmp_buf env;
    static volatile long left;
    static void leave(int signal) { (void)signal; siglongjmp(env, 1); }
    static void on_step(int signal) {
        if (left-- != 0) return;
    #ifdef INTERRUPT
        (void)signal;
        syscall(SYS_tgkill, getpid(), (int)syscall(SYS_gettid), SIGUSR2);
    #else
        leave(signal);
    #endif
    }
    void prepare(void) {
        struct sigaction step = {.sa_handler = on_step}, interrupt = {.sa_handler = leave};
        sigaddset(&step.sa_mask, SIGUSR2);
        sigaction(SIGTRAP, &step, NULL);
        sigaction(SIGUSR2, &interrupt, NULL);
    }
    int leaves(long (*f)(long), long n, long steps) {
        left = steps;
        if (sigsetjmp(env, 1)) return 1;
        __asm__ volatile("lea -128(%%rsp), %%rsp\n\tpushfq\n\torq $0x100, (%%rsp)\n\tpopfq\n\t"
                         "lea 128(%%rsp), %%rsp" ::: "memory", "cc");
        f(n);
        __asm__ volatile("lea -128(%%rsp), %%rsp\n\tpushfq\n\tandq $~0x100, (%%rsp)\n\tpopfq\n\t"
                         "lea 128(%%rsp), %%rsp" ::: "memory", "cc");
        return 0;
    }
"#;

#[scenario]
fn a_call_has_its_own_data_wherever_one_within_it_was_left_by_siglongjmp() {
    /// Argument of the call that is left.
    const LEFT: u64 = 1 << 40;
    static LEAVES: AtomicUsize = AtomicUsize::new(0);
    static RETURNED: AtomicU64 = AtomicU64::new(0);
    #[unsafe(no_mangle)]
    #[inline(never)]
    extern "C" fn stays(steps: u64) -> u64 {
        // SAFETY: the address of `leaves`.
        let leaves: extern "C" fn(Function, u64, u64) -> i32 =
            unsafe { std::mem::transmute(LEAVES.load(Ordering::Relaxed)) };
        black_box(leaves(inner, LEFT, steps)) as u64
    }
    let library = needs!(fgraph_scenario::library(&CC, "stepper.c", STEPPER, &[]));
    LEAVES.store(library.address("leaves") as usize, Ordering::Relaxed);
    // SAFETY: its type. Before fgraph takes the signal: it hands on what is not its own.
    unsafe { library.get::<extern "C" fn()>("prepare")() };
    let keeps = user(
        |call| call.arg(0),
        |_, n: u64| {
            if n != LEFT {
                RETURNED.store(n, Ordering::Relaxed);
            }
        },
    );
    let _keeps = fgraph_scenario::register(keeps, "stays inner").unwrap();
    let mut steps = 0;
    while stays(steps) == 1 {
        assert_eq!(RETURNED.load(Ordering::Relaxed), steps);
        steps += 1;
    }
    assert!(steps > 100, "{steps}");
}

#[scenario]
fn the_word_of_a_user_is_its_own_wherever_a_call_was_left_by_siglongjmp() {
    static OF_ANOTHER: AtomicU64 = AtomicU64::new(0);
    let library = needs!(fgraph_scenario::library(&CC, "words.c", STEPPER, &[]));
    // SAFETY: their types. Before fgraph takes the signal: it hands on what is not its own.
    let leaves = unsafe {
        library.get::<extern "C" fn()>("prepare")();
        library.get::<extern "C" fn(Function, u64, u64) -> i32>("leaves")
    };
    let (mut steps, mut is_left) = (0, true);
    while is_left {
        let own = steps + 1;
        let keeps = user(
            move |call| {
                let found = call.thread_word().replace(own);
                if found != 0 && found != own {
                    OF_ANOTHER.store(found, Ordering::Relaxed);
                }
                None::<u64>
            },
            |_, _| {},
        );
        // In the slot of the one before.
        let _keeps = fgraph_scenario::register(keeps, "inner").unwrap();
        is_left = leaves(inner, 1, steps) == 1;
        assert_eq!(inner(5), 10);
        assert_eq!(OF_ANOTHER.load(Ordering::Relaxed), 0, "after {steps} steps");
        steps += 1;
    }
    assert!(steps > 100, "{steps}");
}

#[scenario]
fn a_thread_is_traced_wherever_its_first_call_was_left_by_siglongjmp() {
    /// Returns the number of pages that the process has mapped.
    fn pages() -> u64 {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').next().unwrap().parse().unwrap()
    }
    let library = needs!(fgraph_scenario::library(
        &CC,
        "interrupter.c",
        STEPPER,
        &["-DINTERRUPT"]
    ));
    // SAFETY: their types. Before fgraph takes the signal: it hands on what is not its own.
    let leaves = unsafe {
        library.get::<extern "C" fn()>("prepare")();
        library.get::<extern "C" fn(Function, u64, u64) -> i32>("leaves")
    };
    let counts = count("inner");
    let before = pages();
    let (mut steps, mut rounds, mut is_left) = (0, 0, true);
    while is_left {
        is_left = thread::scope(|scope| {
            let first = || {
                let is_left = leaves(inner, 1, steps) == 1;
                let (entries, returns) = counts.user().both();
                assert_eq!(inner(5), 10);
                let traced = (entries + 1, returns + 1);
                assert_eq!(counts.user().both(), traced, "after {steps} steps");
                is_left
            };
            scope.spawn(first).join().unwrap()
        });
        steps += 11;
        rounds += 1;
    }
    assert!(rounds > 100, "{rounds}");
    // The states of threads that are gone are used again.
    let mapped = pages() - before;
    assert!(mapped < 20 * rounds, "{mapped} pages in {rounds} rounds");
}

/// A thread that ends within a call leaves nothing behind that runs: other threads find it gone.
#[scenario]
fn calls_of_threads_that_are_gone_are_lost_wherever_counting_was_left_by_siglongjmp() {
    static COUNTS: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn counts(_: u64) -> u64 {
        // SAFETY: null, or the address of a handle that lives.
        let user = unsafe { (COUNTS.load(Ordering::Relaxed) as *const Handle<Count>).as_ref() };
        black_box(user.map(of));
        0
    }
    #[unsafe(no_mangle)]
    #[inline(never)]
    extern "C" fn ends_here(_: *mut c_void) -> *mut c_void {
        // SAFETY: ends the thread.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
        ptr::null_mut()
    }
    let library = needs!(fgraph_scenario::library(
        &CC,
        "interrupter2.c",
        STEPPER,
        &["-DINTERRUPT"]
    ));
    // SAFETY: their types. Before fgraph takes the signal: it hands on what is not its own.
    let leaves = unsafe {
        library.get::<extern "C" fn()>("prepare")();
        library.get::<extern "C" fn(Function, u64, u64) -> i32>("leaves")
    };
    let user = count("ends_here");
    COUNTS.store((&raw const user).addr(), Ordering::Relaxed);
    let (mut steps, mut rounds) = (0, 0);
    while leaves(counts, 0, steps) == 1 {
        rounds += 1;
        // SAFETY: the function's type.
        unsafe {
            let (mut thread, null) = (0, ptr::null_mut());
            let attributes = ptr::null();
            let made = libc::pthread_create(&mut thread, attributes, ends_here, null);
            assert_eq!(made, 0);
            libc::pthread_join(thread, ptr::null_mut());
        }
        // The kernel may know the thread for a moment longer.
        let is_lost = || {
            thread::yield_now();
            of(&user) == lost(rounds)
        };
        assert!((0..100_000).any(|_| is_lost()), "after {steps} steps");
        steps += 17;
    }
    assert!(rounds > 10, "{rounds}");
}

/// The next call after the jump is made at the depth of the one whose callback was left.
#[scenario]
fn a_loop_around_a_callback_that_is_left_by_siglongjmp_is_traced() {
    let library = needs!(fgraph_scenario::library(&CC, "jumper5.c", JUMPER, &[]));
    // SAFETY: its type.
    let guarded = unsafe { library.get::<extern "C" fn(Function, u64) -> i32>("sigguarded") };
    let handler = library.address("on_signal") as usize;
    // SAFETY: a handler of that signature.
    unsafe { libc::signal(libc::SIGUSR2, handler) };
    let raises = raising_in_inner(1);
    for _ in 0..100 {
        assert_eq!(guarded(inner, 1), 1);
    }
    assert_eq!(ENTRIES.load(Ordering::Relaxed), 100);
    assert_eq!(raises.counters().missed, 0);
}

plain!(
    // rdi: function, rsi: its argument, rdx: top of another stack
    "on_other_stack",
    "push rbp",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_rel_offset rbp, 0",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "mov rsp, rdx",
    "mov rax, rdi",
    "mov rdi, rsi",
    "call rax",
    "mov rsp, rbp",
    ".cfi_def_cfa_register rsp",
    "pop rbp",
    ".cfi_adjust_cfa_offset -8",
    "ret",
);

unsafe extern "C" {
    fn on_other_stack(function: Function, argument: u64, top: *mut u8) -> u64;
}

/// Memory that is nothing's neighbour.
fn map(len: usize) -> *mut u8 {
    // SAFETY: a fresh mapping with a page at either end that is taken away.
    unsafe {
        let all = libc::mmap(
            ptr::null_mut(),
            len + 8192,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        assert_ne!(all, libc::MAP_FAILED);
        let all = all.cast::<u8>();
        libc::mprotect(all.cast(), 4096, libc::PROT_NONE);
        libc::mprotect(all.add(4096 + len).cast(), 4096, libc::PROT_NONE);
        all.add(4096)
    }
}

static OTHER_STACK: AtomicUsize = AtomicUsize::new(0);
const STACK_LEN: usize = 256 << 10;

/// Continues on another stack.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn switches(n: u64) -> u64 {
    let top = ptr::with_exposed_provenance_mut(OTHER_STACK.load(Ordering::Relaxed));
    // SAFETY: the top of a stack that nobody uses.
    black_box(unsafe { on_other_stack(outer, n, top) }) + 100
}

#[scenario]
fn calls_on_a_stack_of_the_programs_own_are_traced() {
    // SAFETY: the end of the mapping.
    let top = unsafe { map(STACK_LEN).add(STACK_LEN) };
    OTHER_STACK.store(top.expose_provenance(), Ordering::Relaxed);
    let one = count("switches outer inner");
    let other = count("inner");
    for round in 1..=100 {
        assert_eq!(switches(5), 111);
        assert_eq!(one.user().both(), (3 * round, 3 * round));
        assert_eq!(other.user().both(), (round, round));
    }
    assert_eq!(totals(), NOTHING);
}

#[scenario]
fn calls_on_a_signal_stack_are_traced() {
    extern "C" fn handler(_: i32) {
        assert_eq!(outer(3), 7);
    }
    #[unsafe(no_mangle)]
    #[inline(never)]
    extern "C" fn raises(n: u64) -> u64 {
        // SAFETY: its handler is above.
        unsafe { libc::raise(libc::SIGUSR2) };
        black_box(n)
    }
    // SAFETY: plain data; the stack is never freed.
    unsafe {
        let stack = libc::stack_t {
            ss_sp: map(STACK_LEN).cast(),
            ss_flags: 0,
            ss_size: STACK_LEN,
        };
        assert_eq!(libc::sigaltstack(&stack, ptr::null_mut()), 0);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_ONSTACK;
        assert_eq!(libc::sigaction(libc::SIGUSR2, &action, ptr::null_mut()), 0);
    }
    let user = count("raises outer inner");
    for round in 1..=100 {
        assert_eq!(raises(8), 8);
        assert_eq!(user.user().both(), (3 * round, 3 * round));
    }
    assert_eq!(totals(), NOTHING);
}

/// An alternate stack may be a local variable: then it is above the calls that its handler
/// interrupts.
#[scenario]
fn calls_on_a_signal_stack_within_the_threads_own_are_traced() {
    extern "C" fn handler(_: i32) {
        assert_eq!(outer(3), 7);
    }
    #[unsafe(no_mangle)]
    #[inline(never)]
    extern "C" fn interrupted(n: u64) -> u64 {
        // SAFETY: its handler is above.
        unsafe { libc::raise(libc::SIGUSR2) };
        black_box(inner(n))
    }
    let mut local = [0u8; 256 << 10];
    let user = count("interrupted outer inner");
    // SAFETY: the stack outlives its use.
    unsafe {
        let stack = libc::stack_t {
            ss_sp: local.as_mut_ptr().cast(),
            ss_flags: 0,
            ss_size: local.len(),
        };
        assert_eq!(libc::sigaltstack(&stack, ptr::null_mut()), 0);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_ONSTACK;
        assert_eq!(libc::sigaction(libc::SIGUSR2, &action, ptr::null_mut()), 0);
    }
    for round in 1..=100 {
        assert_eq!(interrupted(8), 16);
        assert_eq!(user.user().both(), (4 * round, 4 * round));
    }
    assert_eq!(totals(), NOTHING);
    let none = libc::stack_t {
        ss_sp: ptr::null_mut(),
        ss_flags: libc::SS_DISABLE,
        ss_size: 0,
    };
    // SAFETY: no handler is running.
    unsafe { libc::sigaltstack(&none, ptr::null_mut()) };
}

/// A program may take the stacks of its threads and of its coroutines from one pool. The memory
/// above a thread's stack is in the same mapping then, but it is not that stack.
#[scenario]
fn a_stack_above_that_of_the_thread_in_the_same_mapping_does_no_harm() {
    neighbours(STACK_LEN, 0);
}

/// The stack is below that of the thread, in the same mapping.
#[scenario]
fn a_stack_below_that_of_the_thread_in_the_same_mapping_does_no_harm() {
    neighbours(0, STACK_LEN);
}

/// A thread on a stack at `thread` in a mapping, in which it switches to another at `other`.
fn neighbours(other: usize, thread: usize) {
    extern "C" fn body(_: *mut c_void) -> *mut c_void {
        for _ in 0..100 {
            assert_eq!(switches(5), 111);
        }
        ptr::without_provenance_mut(7)
    }
    let user = count("switches outer inner");
    // SAFETY: a mapping with room for both stacks; the thread is joined.
    unsafe {
        let memory = map(2 * STACK_LEN);
        OTHER_STACK.store(
            memory.add(other + STACK_LEN).expose_provenance(),
            Ordering::Relaxed,
        );
        let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
        libc::pthread_attr_init(&mut attributes);
        let stack = memory.add(thread).cast();
        assert_eq!(
            libc::pthread_attr_setstack(&mut attributes, stack, STACK_LEN),
            0
        );
        let mut thread = 0;
        assert_eq!(
            libc::pthread_create(&mut thread, &attributes, body, ptr::null_mut()),
            0
        );
        let mut result = ptr::null_mut();
        assert_eq!(libc::pthread_join(thread, &mut result), 0);
        assert_eq!(result.addr(), 7);
    }
    assert_eq!(user.user().both(), (300, 300));
    assert_eq!(of(&user), NOTHING);
}

static COROUTINE: AtomicUsize = AtomicUsize::new(0);
static RESUMER: AtomicUsize = AtomicUsize::new(0);

/// Gives way, in the middle of a traced call.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn gives_way(n: u64) -> u64 {
    // SAFETY: whoever resumed us waits there.
    unsafe { switch_stacks(COROUTINE.as_ptr(), RESUMER.load(Ordering::Relaxed)) };
    black_box(n) * 3
}

extern "C" fn coroutine() -> ! {
    for n in 0.. {
        assert_eq!(gives_way(n), 3 * n);
    }
    unreachable!()
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn resumes(n: u64) -> u64 {
    // SAFETY: the coroutine has given way, or not begun.
    unsafe { switch_stacks(RESUMER.as_ptr(), COROUTINE.load(Ordering::Relaxed)) };
    black_box(n) + 5
}

/// Calls of two stacks begin and end in no order.
#[scenario]
fn coroutines_that_give_way_inside_traced_calls_are_unharmed() {
    // SAFETY: the end of the mapping: six registers, the start, and a return address.
    unsafe {
        let top = map(STACK_LEN).add(STACK_LEN).cast::<usize>();
        top.sub(2).write(coroutine as *const () as usize);
        COROUTINE.store(top.sub(8).expose_provenance(), Ordering::Relaxed);
    }
    let user = count("gives_way resumes inner outer");
    let rounds = 1_000;
    for n in 0..rounds {
        assert_eq!(resumes(n), n + 5);
        assert_eq!(outer(n), 2 * n + 1);
    }
    // Each round makes three calls on the thread's own stack and one on the other stack; the last
    // one goes on.
    assert_eq!(user.user().both(), (4 * rounds, 4 * rounds - 1));
    assert_eq!(of(&user), NOTHING);
}
