//! Calls that do not return: panics, C++ exceptions, `pthread_exit`, cancellation.

use std::ffi::c_void;
use std::hint::black_box;
use std::panic::{self, AssertUnwindSafe};
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use fgraph::{Entry, FgraphOps, Handle, Return};
use fgraph_needs::{CLANG, needs};
use fgraph_scenario::{Count, Log, plain, scenario, totals, user};

#[unsafe(no_mangle)]
#[inline(never)]
extern "C-unwind" fn dive(n: u32) -> u32 {
    if n == 0 {
        panic::panic_any("bottom");
    }
    black_box(dive(n - 1)) + 1
}

/// Catches by itself.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C-unwind" fn catches(n: u32) -> u32 {
    match panic::catch_unwind(|| dive_untraced(n)) {
        Ok(n) => black_box(n),
        Err(_) => black_box(1000 + n),
    }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C-unwind" fn dive_untraced(n: u32) -> u32 {
    if n == 0 {
        panic::panic_any("bottom");
    }
    black_box(dive_untraced(n - 1)) + 1
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C-unwind" fn catches_at(level: u32, n: u32) -> u32 {
    if n == 0 {
        panic::panic_any("bottom");
    }
    if level == n {
        return panic::catch_unwind(|| catches_at(0, n - 1)).unwrap_or(100) + 1;
    }
    black_box(catches_at(level, n - 1)) + 1
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C-unwind" fn returns(n: u32) -> u32 {
    if n == 0 {
        0
    } else {
        black_box(returns(n - 1)) + 1
    }
}

/// An event of a callback: user, entry or return, unwinding, argument at entry, depth.
type Event = (u32, char, u64, usize);

/// Three users with different data, who note all they get.
fn three(filter: &str, log: &Log<Event>) -> impl Sized + use<> {
    fn one<const N: usize>(id: u32, filter: &str, log: &Log<Event>) -> impl Sized + use<N> {
        let (entries, returns) = (log.clone(), log.clone());
        let ops = user(
            move |call| {
                let argument = call.arg(0)? & 0xffff_ffff;
                entries.push((id, '>', argument, call.depth()));
                Some((argument, [id as u8; N]))
            },
            move |call, (argument, data)| {
                assert_eq!(data, [id as u8; N]);
                let event = if call.unwinding() {
                    assert_eq!((call.result(), call.result_high()), (None, None));
                    assert_eq!((call.float_result(), call.float32_result()), (None, None));
                    assert!(call.vector_result(0).is_none());
                    // SAFETY: nothing is written.
                    let mut writer = unsafe { call.rewrite() };
                    let refused = [
                        writer.set_result(1),
                        writer.set_result_high(1),
                        writer.set_float_result(1.0),
                        writer.set_float32_result(1.0),
                        writer.vector_result_mut(1).map(|_| ()),
                    ];
                    assert_eq!(refused, [Err(fgraph::WriteError::Unwinding); 5]);
                    assert_ne!(call.return_address(), 0);
                    'x'
                } else {
                    assert!(call.result().is_some());
                    '<'
                };
                returns.push((id, event, argument, call.depth()));
            },
        );
        let handle = fgraph_scenario::register(ops, filter).unwrap();
        assert!(handle.report().unwrap().traced >= 1);
        handle
    }
    (
        one::<0>(0, filter, log),
        one::<8>(1, filter, log),
        one::<1000>(2, filter, log),
    )
}

// Each goes on as the next one by a jump, so all return to one place.
plain!("tail_three", "jmp tail_two");
plain!("tail_two", "jmp tail_one");
plain!("tail_one", "jmp dive");

unsafe extern "C-unwind" {
    fn tail_one(n: u32) -> u32;
    fn tail_two(n: u32) -> u32;
    fn tail_three(n: u32) -> u32;
}

#[scenario]
fn a_panic_through_tail_calls_is_caught_by_the_function_that_made_the_first() {
    quiet();
    let user =
        fgraph_scenario::register(Count::default(), "tail_one tail_two tail_three dive").unwrap();
    assert_eq!(user.report().unwrap().traced, 4);
    for (calls, tail) in [
        (2, tail_one as unsafe extern "C-unwind" fn(u32) -> u32),
        (3, tail_two),
        (4, tail_three),
    ] {
        let before = user.user().both();
        for _ in 0..3 {
            // SAFETY: as declared.
            let caught = panic::catch_unwind(|| unsafe { tail(0) });
            assert!(caught.is_err());
        }
        let after = user.user().both();
        assert_eq!(
            (after.0 - before.0, after.1 - before.1),
            (3 * calls, 3 * calls)
        );
    }
}

fn quiet() {
    panic::set_hook(Box::new(|_| ()));
}

#[scenario]
fn each_user_gets_one_return_per_entry_however_far_up_a_panic_is_caught() {
    quiet();
    let log = Log::new();
    let _users = three("dive returns", &log);
    for frames in [0u32, 1, 2, 3, 20, 0, 2] {
        panic::catch_unwind(|| dive(frames)).unwrap_err();
        let mut expected = Vec::new();
        for depth in 0..=frames {
            let argument = u64::from(frames - depth);
            expected.extend((0..3).map(|id| (id, '>', argument, depth as usize)));
        }
        for depth in (0..=frames).rev() {
            let argument = u64::from(frames - depth);
            expected.extend((0..3).rev().map(|id| (id, 'x', argument, depth as usize)));
        }
        assert_eq!(log.take(), expected, "caught {frames} frames up");
        // Everything is as before.
        assert_eq!(returns(0), 0);
        let entries = (0..3).map(|id| (id, '>', 0, 0));
        let exits = (0..3).rev().map(|id| (id, '<', 0, 0));
        assert_eq!(log.take(), entries.chain(exits).collect::<Vec<_>>());
    }
    assert_eq!(totals(), [0; 5]);
}

#[scenario]
fn a_panic_caught_in_the_traced_function_itself_is_none_of_its_business() {
    quiet();
    let log = Log::new();
    let _users = three("catches", &log);
    for _ in 0..3 {
        assert_eq!(catches(4), 1004);
        let entries = (0..3).map(|id| (id, '>', 4, 0));
        let exits = (0..3).rev().map(|id| (id, '<', 4, 0));
        assert_eq!(log.take(), entries.chain(exits).collect::<Vec<_>>());
    }
    assert_eq!(totals(), [0; 5]);
}

#[scenario]
fn a_panic_caught_half_way_up_the_traced_frames_unwinds_only_those_below() {
    quiet();
    for level in 1..=10 {
        let count = fgraph_scenario::register(Count::default(), "catches_at").unwrap();
        assert_eq!(catches_at(level, 10), 100 + 10 - level + 1);
        // Calls with arguments from 10 to `level` return, calls below are unwound.
        assert_eq!(count.user().all(), (11, 11, u64::from(level)));
    }
    assert_eq!(totals(), [0; 5]);
}

struct CallsOnDrop<'a>(&'a AtomicU64);

impl Drop for CallsOnDrop<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(u64::from(returns(3)), Ordering::SeqCst);
    }
}

#[unsafe(no_mangle)]
#[inline(never)]
fn dive_guarded(n: u32, sum: &AtomicU64) -> u32 {
    let _guard = CallsOnDrop(sum);
    if n == 0 {
        panic::panic_any("bottom");
    }
    black_box(dive_guarded(n - 1, sum)) + 1
}

#[scenario]
fn traced_calls_of_destructors_that_run_while_unwinding() {
    quiet();
    let log = Log::new();
    let _users = three("dive_guarded", &log);
    let count = fgraph_scenario::register(Count::default(), "returns").unwrap();
    let sum = AtomicU64::new(0);
    panic::catch_unwind(AssertUnwindSafe(|| dive_guarded(9, &sum))).unwrap_err();
    assert_eq!(sum.load(Ordering::SeqCst), 30);
    assert_eq!(count.user().all(), (40, 40, 0));
    let events = log.take();
    assert_eq!(events.iter().filter(|event| event.1 == '>').count(), 30);
    let unwound: Vec<_> = events.iter().filter(|event| event.1 == 'x').collect();
    assert_eq!(unwound.len(), 30);
    assert!(unwound.is_sorted_by_key(|event| event.2));
    assert_eq!(totals(), [0; 5]);
}

#[scenario]
fn a_user_that_leaves_before_a_panic_gets_no_return() {
    #[unsafe(no_mangle)]
    #[inline(never)]
    fn leaves(middle: &mut dyn FnMut()) -> u32 {
        // Before the call, which must not return into what a jump is written over.
        let depth = black_box(2);
        middle();
        black_box(dive(depth))
    }
    quiet();
    let mut goes = Some(fgraph_scenario::register(Count::default(), "leaves* dive").unwrap());
    let stays = fgraph_scenario::register(Count::default(), "leaves* dive").unwrap();
    let mut gone = None;
    let mut comes: Option<Handle<Count>> = None;
    panic::catch_unwind(AssertUnwindSafe(|| {
        leaves(&mut || {
            gone = Some(goes.take().unwrap().unregister().unwrap());
            comes = Some(fgraph_scenario::register(Count::default(), "leaves* dive").unwrap());
        })
    }))
    .unwrap_err();
    assert_eq!(gone.unwrap().all(), (1, 0, 0));
    assert_eq!(stays.user().all(), (4, 4, 4));
    assert_eq!(comes.unwrap().user().all(), (3, 3, 3));
    assert_eq!(totals(), [0; 5]);
}

unsafe extern "C-unwind" {
    fn pthread_exit(value: *mut c_void) -> !;
    fn pthread_testcancel();
    fn pthread_setcancelstate(state: i32, before: *mut i32) -> i32;
    fn pthread_setcanceltype(kind: i32, before: *mut i32) -> i32;
}

const PTHREAD_CANCEL_DISABLE: i32 = 1;
const PTHREAD_CANCEL_ASYNCHRONOUS: i32 = 1;

#[unsafe(no_mangle)]
#[inline(never)]
extern "C-unwind" fn exits(n: u32) -> u32 {
    if n == 0 {
        // SAFETY: no frame on the way has anything to drop.
        unsafe { pthread_exit(ptr::without_provenance_mut(42)) }
    }
    black_box(exits(n - 1)) + 1
}

static READY: AtomicU64 = AtomicU64::new(0);

#[unsafe(no_mangle)]
#[inline(never)]
extern "C-unwind" fn is_cancelled(n: u32) -> u32 {
    if n == 0 {
        READY.store(1, Ordering::SeqCst);
        loop {
            // SAFETY: no frame on the way has anything to drop.
            unsafe { pthread_testcancel() };
        }
    }
    black_box(is_cancelled(n - 1)) + 1
}

extern "C-unwind" fn exiting_thread(_: *mut c_void) -> *mut c_void {
    ptr::without_provenance_mut(exits(5) as usize)
}

extern "C-unwind" fn cancelled_thread(_: *mut c_void) -> *mut c_void {
    ptr::without_provenance_mut(is_cancelled(5) as usize)
}

type Start = extern "C-unwind" fn(*mut c_void) -> *mut c_void;

fn start(function: Start) -> libc::pthread_t {
    let mut thread = 0;
    // SAFETY: the ABIs differ only in that the function may unwind, which is what is tested.
    unsafe {
        let function =
            std::mem::transmute::<Start, extern "C" fn(*mut c_void) -> *mut c_void>(function);
        assert_eq!(
            libc::pthread_create(&mut thread, ptr::null(), function, ptr::null_mut()),
            0
        );
    }
    thread
}

fn join(thread: libc::pthread_t) -> *mut c_void {
    let mut value = ptr::null_mut();
    // SAFETY: joined once.
    assert_eq!(unsafe { libc::pthread_join(thread, &mut value) }, 0);
    value
}

#[scenario]
fn pthread_exit_ends_the_calls_that_it_leaves() {
    let log = Log::new();
    let _users = three("exits", &log);
    for _ in 0..20 {
        assert_eq!(join(start(exiting_thread)).addr(), 42);
        let events = log.take();
        assert_eq!(events.len(), 36);
        let mut expected: Vec<Event> = Vec::new();
        for depth in (0..6).rev() {
            expected.extend((0..3).rev().map(|id| (id, 'x', 5 - depth, depth as usize)));
        }
        assert_eq!(events[18..], expected);
    }
    assert_eq!(totals(), [0; 5]);
}

#[scenario]
fn cancellation_ends_the_calls_that_it_leaves() {
    let count = fgraph_scenario::register(Count::default(), "is_cancelled").unwrap();
    let thread = start(cancelled_thread);
    while READY.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    // SAFETY: not joined yet.
    assert_eq!(unsafe { libc::pthread_cancel(thread) }, 0);
    // PTHREAD_CANCELED
    assert_eq!(join(thread).addr(), usize::MAX);
    assert_eq!(count.user().all(), (6, 6, 6));
    assert_eq!(totals(), [0; 5]);
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C-unwind" fn is_looked_at(n: u32) -> u32 {
    black_box(n) + 1
}

/// User that notes at each entry and return if cancellation is held off.
struct HeldOff(Mutex<Vec<bool>>);

impl HeldOff {
    fn note(&self) {
        let mut before = 0;
        // SAFETY: live locals; the state is put back.
        unsafe {
            pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &mut before);
            pthread_setcancelstate(before, &mut 0);
        }
        let mut all = self.0.lock().unwrap();
        all.push(before == PTHREAD_CANCEL_DISABLE);
    }
}

impl FgraphOps for HeldOff {
    type Data = ();

    fn entry(&self, _call: &mut Entry<'_, ()>) -> Option<()> {
        self.note();
        Some(())
    }

    fn ret(&self, _call: &mut Return<'_, ()>, _data: ()) {
        self.note();
    }
}

#[scenario]
fn cancellation_is_held_off_from_the_first_one_on() {
    let user = HeldOff(Mutex::new(Vec::with_capacity(8)));
    let user = fgraph_scenario::register(user, "is_looked_at").unwrap();
    assert_eq!(is_looked_at(1), 2);
    let thread = start(cancelled_thread);
    // SAFETY: not joined yet.
    assert_eq!(unsafe { libc::pthread_cancel(thread) }, 0);
    assert_eq!(join(thread).addr(), usize::MAX);
    assert_eq!(is_looked_at(2), 3);
    assert_eq!(*user.user().0.lock().unwrap(), [false, false, true, true]);
}

static IS_CANCELLING: AtomicBool = AtomicBool::new(false);

extern "C-unwind" fn asynchronous_thread(_: *mut c_void) -> *mut c_void {
    // SAFETY: what follows may end at any instruction.
    unsafe { pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &mut 0) };
    loop {
        is_looked_at(1);
    }
}

/// Is in its second callback when threads are cancelled for the first time: at the first one fgraph
/// gets to know the thread, and holds cancellation off for that.
#[derive(Default)]
struct Slow {
    asked: AtomicU64,
    over: AtomicU64,
}

impl FgraphOps for Slow {
    type Data = ();

    fn entry(&self, _call: &mut Entry<'_, ()>) -> Option<()> {
        if self.asked.fetch_add(1, Ordering::SeqCst) == 1 {
            READY.store(1, Ordering::SeqCst);
            while !IS_CANCELLING.load(Ordering::SeqCst) {
                std::hint::spin_loop();
            }
            for _ in 0..20 {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
        self.over.fetch_add(1, Ordering::SeqCst);
        None
    }

    fn ret(&self, _call: &mut Return<'_, ()>, _data: ()) {}
}

#[scenario]
fn a_callback_that_runs_at_the_first_cancellation_goes_on() {
    let user = fgraph_scenario::register(Slow::default(), "is_looked_at").unwrap();
    let thread = start(asynchronous_thread);
    while READY.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    IS_CANCELLING.store(true, Ordering::SeqCst);
    // SAFETY: not joined yet.
    assert_eq!(unsafe { libc::pthread_cancel(thread) }, 0);
    assert_eq!(join(thread).addr(), usize::MAX);
    let [asked, over] =
        [&user.user().asked, &user.user().over].map(|count| count.load(Ordering::SeqCst));
    assert_eq!(asked, over);
}

/// Changes and returns if this thread blocks the signal of cancellation, as threads of timers do.
fn cancellation_is_blocked(block: bool) -> bool {
    let (set, mut before) = (1_u64 << 31, 0_u64);
    let how = if block {
        libc::SIG_BLOCK
    } else {
        libc::SIG_UNBLOCK
    };
    // SAFETY: live sets of the size that the kernel is told.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, &set, &mut before, 8) };
    before & set != 0
}

#[scenario]
fn thread_that_blocks_the_signal_of_cancellation_blocks_it_after_calls() {
    let user = HeldOff(Mutex::new(Vec::with_capacity(16)));
    let user = fgraph_scenario::register(user, "is_looked_at").unwrap();
    let thread = start(cancelled_thread);
    // SAFETY: not joined yet.
    assert_eq!(unsafe { libc::pthread_cancel(thread) }, 0);
    assert_eq!(join(thread).addr(), usize::MAX);
    let in_new_thread = |is_blocked| {
        std::thread::spawn(move || {
            // SAFETY: nobody cancels this thread.
            unsafe { pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &mut 0) };
            cancellation_is_blocked(is_blocked);
            // The first call makes the thread's state.
            [(); 2].map(|()| {
                is_looked_at(1);
                cancellation_is_blocked(is_blocked)
            })
        })
    };
    assert_eq!(in_new_thread(true).join().unwrap(), [true; 2]);
    assert_eq!(in_new_thread(false).join().unwrap(), [false; 2]);
    assert_eq!(*user.user().0.lock().unwrap(), [true; 8]);
}

const CPLUSPLUS: &str = r#"
    extern "C" int throws(int n) {
        if (n == 0) throw 17;
        return throws(n - 1) + 1;
    }
    struct Guard { int *count; ~Guard() { ++*count; } };
    extern "C" int throws_guarded(int n, int *count) {
        Guard guard{count};
        if (n == 0) throw 18;
        return throws_guarded(n - 1, count) + 1;
    }
    extern "C" int caught(int n) {
        try { return throws(n); } catch (int e) { return e; }
    }
    extern "C" int caught_guarded(int n, int *count) {
        try { return throws_guarded(n, count); } catch (int e) { return e; }
    }
    extern "C" int caught_and_rethrown(int n) {
        try {
            try { return throws(n); } catch (int) { throw; }
        } catch (int e) { return e + 1; }
    }
    extern "C" int calls_back(int (*back)(int), int n) {
        try { return back(n); } catch (int e) { return -e; }
    }
"#;

#[scenario]
fn cplusplus_exceptions_go_through_traced_frames() {
    let library = needs!(fgraph_scenario::library(
        &CLANG,
        "thrower.cpp",
        CPLUSPLUS,
        &["-fpatchable-function-entry=5", "-fexceptions"],
    ));
    // SAFETY: their types.
    let (caught, guarded, rethrown) = unsafe {
        (
            library.get::<extern "C" fn(i32) -> i32>("caught"),
            library.get::<extern "C" fn(i32, &mut i32) -> i32>("caught_guarded"),
            library.get::<extern "C" fn(i32) -> i32>("caught_and_rethrown"),
        )
    };
    assert_eq!((caught(3), rethrown(3)), (17, 18));
    let log = Log::new();
    // With the catching functions traced as well, and without.
    for filter in [
        "throws* caught*:mod:libthrower.so",
        "throws*:mod:libthrower.so",
    ] {
        let users = three(filter, &log);
        let count = fgraph_scenario::register(Count::default(), filter).unwrap();
        let traced_catch = u64::from(filter.contains("caught"));
        let mut calls = 0;
        for n in [0, 1, 2, 20] {
            assert_eq!(caught(n), 17);
            assert_eq!(rethrown(n), 18);
            let mut destroyed = 0;
            assert_eq!(guarded(n, &mut destroyed), 18);
            assert_eq!(destroyed, n + 1);
            calls += 3 * (n as u64 + 1 + traced_catch);
            let (entries, returns, unwound) = count.user().all();
            assert_eq!((entries, returns), (calls, calls), "{filter}, {n} frames");
            assert_eq!(
                unwound,
                calls
                    - traced_catch
                        * 3
                        * [0, 1, 2, 20]
                            .iter()
                            .position(|&m| m == n)
                            .map_or(0, |p| p as u64 + 1)
            );
            let events = log.take();
            let per_user = 2 * 3 * (n as usize + 1 + traced_catch as usize);
            assert_eq!(events.len(), 3 * per_user);
            // Reverse order: each event undoes the last one that is not undone.
            let mut open = Vec::new();
            for (id, kind, argument, depth) in events {
                if kind == '>' {
                    open.push((id, argument, depth));
                } else {
                    assert_eq!(open.pop(), Some((id, argument, depth)));
                }
            }
            assert_eq!(open, []);
        }
        drop(users);
    }
    assert_eq!(totals(), [0; 5]);
}

#[scenario]
fn a_cplusplus_exception_goes_through_traced_rust_frames() {
    static THROWS: AtomicU64 = AtomicU64::new(0);
    #[unsafe(no_mangle)]
    #[inline(never)]
    extern "C-unwind" fn rust_in_between(n: i32) -> i32 {
        // SAFETY: the address of `throws`.
        let throws: extern "C-unwind" fn(i32) -> i32 =
            unsafe { std::mem::transmute(THROWS.load(Ordering::SeqCst) as usize) };
        black_box(throws(n)) + 1
    }
    let library = needs!(fgraph_scenario::library(
        &CLANG,
        "thrower2.cpp",
        CPLUSPLUS,
        &["-fpatchable-function-entry=5", "-fexceptions"],
    ));
    THROWS.store(library.address("throws") as u64, Ordering::SeqCst);
    type Back = extern "C-unwind" fn(i32) -> i32;
    // SAFETY: its type.
    let calls_back = unsafe { library.get::<extern "C" fn(Back, i32) -> i32>("calls_back") };
    let count = fgraph_scenario::register(
        Count::default(),
        "rust_in_between throws:mod:*thrower2* calls_back:mod:*thrower2*",
    )
    .unwrap();
    assert_eq!(count.report().unwrap().traced, 3);
    for n in 0..5 {
        assert_eq!(calls_back(rust_in_between, n), -17);
    }
    assert_eq!(count.user().all(), (5 * 3 + 10, 5 * 3 + 10, 5 * 2 + 10));
    assert_eq!(totals(), [0; 5]);
}
