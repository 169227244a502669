//! Coroutines of a crate that programs use, with traced calls on their stacks.

use std::arch::asm;
use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::mem;
use std::num::NonZeroUsize;
use std::panic::{catch_unwind, resume_unwind};
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::thread;

use corosensei::stack::{Stack, StackPointer};
use corosensei::{Coroutine, CoroutineResult, Yielder};
use fgraph::UserStatus;
use fgraph_scenario::{Count, numbers, scenario, user};

/// Address on the stack of the coroutine that suspended last.
static STACK: AtomicUsize = AtomicUsize::new(0);

/// Gives `n` numbers, from as many calls deep.
#[inline(never)]
fn yields_from_below(yielder: &Yielder<u64, u64>, n: u64) -> u64 {
    if n == 0 {
        return 1;
    }
    STACK.store((&raw const n).addr(), Ordering::Relaxed);
    let given = yielder.suspend(n);
    let below = yields_from_below(yielder, n - 1);
    black_box(given + below)
}

type Numbers = Coroutine<u64, u64, u64>;

fn numbers_from(n: u64) -> Numbers {
    Coroutine::new(move |yielder, first| first + yields_from_below(yielder, n))
}

#[scenario]
fn coroutines_are_resumed_in_any_order_on_any_thread() {
    struct Ready(Numbers, u64);
    // SAFETY: what runs on it uses nothing of its thread.
    unsafe impl Send for Ready {}

    const DEPTH: u64 = 20;
    let user = fgraph_scenario::register(Count::default(), "*yields_from_below").unwrap();
    let total = 200;
    let ready: Vec<Ready> = (0..total)
        .map(|_| Ready(numbers_from(DEPTH), DEPTH))
        .collect();
    let ready = Mutex::new(ready);
    let ended = Mutex::new(0);
    thread::scope(|scope| {
        for seed in 1..=4_usize {
            let (ready, ended) = (&ready, &ended);
            scope.spawn(move || {
                let mut random = seed;
                while *ended.lock().unwrap() < total {
                    let taken = {
                        let mut ready = ready.lock().unwrap();
                        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                        let len = ready.len();
                        (len != 0).then(|| ready.swap_remove((random >> 33) % len))
                    };
                    let Some(Ready(mut coroutine, expected)) = taken else {
                        thread::yield_now();
                        continue;
                    };
                    match coroutine.resume(1) {
                        CoroutineResult::Yield(n) => {
                            assert_eq!(n, expected);
                            ready.lock().unwrap().push(Ready(coroutine, expected - 1));
                        }
                        CoroutineResult::Return(sum) => {
                            assert_eq!((sum, expected), (DEPTH + 2, 0));
                            *ended.lock().unwrap() += 1;
                        }
                    }
                }
            });
        }
    });
    let calls = total * (DEPTH + 1);
    assert_eq!(user.user().both(), (calls, calls));
    assert_eq!(numbers(user.counters()), [0; 5]);
}

#[scenario]
fn a_coroutine_that_is_dropped_is_unwound() {
    let user = fgraph_scenario::register(Count::default(), "*yields_from_below").unwrap();
    for deep in 1..=10 {
        let mut coroutine = numbers_from(20);
        for _ in 0..deep {
            coroutine.resume(1);
        }
        drop(coroutine);
    }
    let calls = (1..=10).sum();
    assert_eq!(user.user().all(), (calls, calls, calls));
    assert_eq!(numbers(user.counters()), [0; 5]);
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn has_resumer(n: u64) -> u64 {
    black_box(n) + 1
}

thread_local! {
    static WAITING: RefCell<Option<Numbers>> = const { RefCell::new(None) };
    static RESUMED: Cell<u64> = const { Cell::new(0) };
}

#[scenario]
fn a_call_that_returns_in_a_callback_on_a_higher_stack_leaves_the_callback_marked() {
    struct First(Numbers);
    // SAFETY: it has not begun.
    unsafe impl Send for First {}

    // Mapped before the thread's own, and so above it.
    let first = First(numbers_from(1));
    let yields = fgraph_scenario::register(Count::default(), "*yields_from_below").unwrap();
    let resumes = user(
        |call| {
            let coroutine = WAITING.take();
            coroutine.map(|mut coroutine| {
                let result = coroutine.resume(1);
                RESUMED.set(u64::from(result.as_return().is_some()));
                // The mark of this callback keeps what it calls from being traced.
                has_resumer(1);
                call.arg(0)
            })?
        },
        |_, n: u64| assert_eq!(n, 7),
    );
    let around = fgraph_scenario::register(Count::default(), "has_resumer").unwrap();
    let resumes = fgraph_scenario::register(resumes, "has_resumer").unwrap();
    let thread = thread::spawn(move || {
        let mut coroutine = { first }.0;
        let local = 0;
        assert!(coroutine.resume(1).as_yield() == Some(1));
        assert!(STACK.load(Ordering::Relaxed) > (&raw const local).addr());
        WAITING.set(Some(coroutine));
        assert_eq!(has_resumer(7), 8);
        assert_eq!(RESUMED.get(), 1);
    });
    thread.join().unwrap();
    assert_eq!(resumes.status(), UserStatus::Active);
    // One call was made in the callback, and one in the coroutine that it resumed.
    assert_eq!(around.user().both(), (1, 1));
    assert_eq!(numbers(around.counters()), [1, 0, 0, 0, 0]);
    assert_eq!(yields.user().both(), (1, 0));
    assert_eq!(yields.counters().missed, 1);
}

/// The stack that ends at this address, in a mapping with others.
struct Piece(usize);

impl Piece {
    const LEN: usize = 256 << 10;
}

// SAFETY: `pieces` maps so many bytes below, for this one, and does not unmap them.
unsafe impl Stack for Piece {
    fn base(&self) -> StackPointer {
        NonZeroUsize::new(self.0).unwrap()
    }

    fn limit(&self) -> StackPointer {
        NonZeroUsize::new(self.0 - Self::LEN).unwrap()
    }
}

/// Two stacks in one mapping, the lower one first.
fn pieces() -> [Piece; 2] {
    let (rights, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    // SAFETY: a new mapping.
    let low = unsafe { libc::mmap(ptr::null_mut(), 2 * Piece::LEN, rights, flags, -1, 0) };
    assert_ne!(low, libc::MAP_FAILED);
    let low = low.expose_provenance();
    [low + Piece::LEN, low + 2 * Piece::LEN].map(Piece)
}

/// Calls `has_resumer` each time it is resumed.
static CALLER: AtomicPtr<Coroutine<(), (), Infallible, Piece>> = AtomicPtr::new(ptr::null_mut());

/// The flag that has the processor stop after each instruction.
const TRAP_FLAG: i64 = 0x100;

/// False once the processor need not stop any more.
static IS_STEPPING: AtomicBool = AtomicBool::new(false);

extern "C" fn on_step(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    if !IS_STEPPING.load(Ordering::Relaxed) {
        // SAFETY: a handler with SA_SIGINFO gets the context of what was interrupted.
        let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
        context.uc_mcontext.gregs[libc::REG_EFL as usize] &= !TRAP_FLAG;
        return;
    }
    // SAFETY: the coroutine that is never freed, which is not running.
    unsafe { (*CALLER.load(Ordering::Relaxed)).resume(()) };
}

#[inline(never)]
fn panics_in_steps() {
    IS_STEPPING.store(true, Ordering::Relaxed);
    // SAFETY: `on_step` handles the signal of each instruction.
    unsafe {
        asm!(
            "pushfq",
            "or dword ptr [rsp], {trap}",
            "popfq",
            trap = const TRAP_FLAG,
        );
    }
    resume_unwind(Box::new(7));
}

#[scenario]
fn a_handler_may_make_calls_on_another_stack_while_a_coroutine_panics() {
    // SAFETY: the handler has the signature that the flag asks for.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = on_step as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGTRAP, &action, ptr::null_mut()), 0);
    }
    let [low, high] = pieces();
    let caller = Coroutine::with_stack(high, |yielder, ()| {
        loop {
            has_resumer(1);
            yielder.suspend(());
        }
    });
    CALLER.store(Box::leak(Box::new(caller)), Ordering::Relaxed);
    // The frame that catches calls one of these; inlining decides which.
    let filter = "*panics_in_steps *::do_call";
    let panics = fgraph_scenario::register(Count::default(), filter).unwrap();
    let elsewhere = fgraph_scenario::register(Count::default(), "has_resumer").unwrap();
    let mut coroutine = Coroutine::with_stack(low, |_: &Yielder<(), ()>, ()| {
        let caught = catch_unwind(panics_in_steps);
        IS_STEPPING.store(false, Ordering::Relaxed);
        caught.unwrap_err().downcast::<i32>().map(|n| *n).unwrap()
    });
    let result = coroutine.resume(());
    assert_eq!(result.as_return(), Some(7));
    let (entries, returns, unwound) = panics.user().all();
    assert!(entries > 0 && (returns, unwound) == (entries, entries));
    let (entries, returns) = elsewhere.user().both();
    assert!(entries > 1000 && returns == entries, "{entries}");
    assert_eq!(panics.status(), UserStatus::Active);
    assert_eq!(numbers(panics.counters())[1..], [0; 4]);
}
