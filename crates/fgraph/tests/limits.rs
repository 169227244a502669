//! Callbacks that do what they like, users that come and go without end, and a great many calls.

use std::hint::black_box;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use fgraph::{Entry, FgraphOps, Handle, Return, UserStatus};
use fgraph_needs::{CC, needs};
use fgraph_scenario::{Count, Library, Log, library, numbers, patched, scenario, totals, user};

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn adds_one(n: u64) -> u64 {
    black_box(n) + 1
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn adds_two(n: u64) -> u64 {
    black_box(adds_one(n)) + 1
}

/// Calls itself until `n` + 1 calls are open.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn nests(n: u64) -> u64 {
    if n == 0 {
        1
    } else {
        black_box(nests(n - 1)) + 1
    }
}

static TOTAL: Mutex<u64> = Mutex::new(0);

/// Takes a lock.
#[unsafe(no_mangle)]
#[inline(never)]
fn takes_lock(n: u64) -> u64 {
    let mut total = TOTAL.lock().unwrap();
    *total += n;
    black_box(n)
}

fn count(filter: &str) -> Handle<Count> {
    fgraph_scenario::register(Count::default(), filter).unwrap()
}

#[scenario]
fn a_million_calls_going_on_have_their_exact_depths() {
    const CALLS: u64 = 1_000_000;
    fgraph::set_shadow_stack_size(128 << 20);
    let (entered, left) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (enters, leaves) = (Arc::clone(&entered), Arc::clone(&left));
    let handle = fgraph_scenario::register(
        user(
            move |call: &mut Entry<'_, u64>| {
                let depth = enters.fetch_add(1, Ordering::Relaxed);
                assert_eq!(call.depth() as u64, depth);
                assert_eq!(call.parent_data().copied(), depth.checked_sub(1));
                Some(depth)
            },
            move |call: &mut Return<'_, u64>, depth| {
                assert_eq!(call.depth() as u64, depth);
                assert_eq!(CALLS - depth, leaves.fetch_add(1, Ordering::Relaxed));
            },
        ),
        "nests",
    )
    .unwrap();
    let thread = thread::Builder::new().stack_size(1 << 30);
    let thread = thread.spawn(|| nests(CALLS)).unwrap();
    assert_eq!(thread.join().unwrap(), CALLS + 1);
    assert_eq!(handle.status(), UserStatus::Active);
    assert_eq!(entered.load(Ordering::Relaxed), CALLS + 1);
    assert_eq!(left.load(Ordering::Relaxed), CALLS + 1);
    assert_eq!(totals(), [0; 5]);
}

/// Overflows the stack of the calling thread by a function again and again; the handler of the
/// fault jumps out of the recursion. With `OWN` it ends the process if the fault is in other code
/// than the library's, as OCaml's does. The names are those of OCaml's functions.
const OVERFLOWS: &str = r#"
    #define _GNU_SOURCE
    #include <dlfcn.h>
    #include <setjmp.h>
    #include <signal.h>
    #include <ucontext.h>
    static sigjmp_buf place;
    static volatile long sink;
    static void on_fault(int number, siginfo_t *info, void *context) {
        #ifdef OWN
        Dl_info own, found;
        void *pc = (void *)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
        dladdr(on_fault, &own);
        if (!dladdr(pc, &found) || found.dli_fbase != own.dli_fbase) {
            signal(number, SIG_DFL);
            return;
        }
        #endif
        siglongjmp(place, number);
    }
    __attribute__((noinline)) long sinks(long calls) {
        volatile long frame[3] = {calls};
        long result = calls < 0 ? 0 : sinks(calls + 1) + frame[0];
        sink = result;
        return result;
    }
    #ifdef OWN
    #define FUNCTION(name, code) __asm__(".pushsection .text; .globl camlOver__" name \
        "; .type camlOver__" name ", @function; camlOver__" name ": " code \
        "; .size camlOver__" name ", . - camlOver__" name "; .popsection");
    FUNCTION("calls", "sub $8, %rsp; call camlOver__calls@plt; add $8, %rsp; ret")
    FUNCTION("spills", "sub $0x18, %rsp; mov %rdi, (%rsp); mov %rdi, 8(%rsp);"
             "call camlOver__spills@plt; add $0x18, %rsp; ret")
    FUNCTION("pushes", "push %rbx; push %r12; push %r13; push %r14; push %r15;"
             "call camlOver__pushes@plt; pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; ret")
    FUNCTION("large", "sub $0x1ff8, %rsp; mov %rdi, (%rsp); call camlOver__large@plt;"
             "add $0x1ff8, %rsp; ret")
    #endif
    int overflows(long (*function)(long), int rounds) {
        static char alternate[65536];
        stack_t stack = {.ss_sp = alternate, .ss_size = sizeof alternate};
        struct sigaction action = {.sa_sigaction = on_fault,
                                   .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
        volatile int caught = 0;
        sigaltstack(&stack, 0);
        sigaction(SIGSEGV, &action, 0);
        for (volatile int round = 0; round < rounds; round++) {
            if (sigsetjmp(place, 1) == 0)
                function(0);
            else
                caught++;
        }
        signal(SIGSEGV, SIG_DFL);
        return caught;
    }
"#;

type Overflows = extern "C" fn(*const (), i32) -> i32;

/// Runs the rounds of a function in a thread with a small stack; all overflows must be caught.
fn overflow(library: &Library, function: &str, rounds: i32) {
    // SAFETY: the type of the function.
    let overflows: Overflows = unsafe { library.get("overflows") };
    let function = library.address(function).addr();
    let run = move || overflows(std::ptr::with_exposed_provenance(function), rounds);
    let small = thread::Builder::new().stack_size(128 << 10);
    assert_eq!(small.spawn(run).unwrap().join().unwrap(), rounds);
}

#[scenario]
fn overflows_of_the_stack_leave_no_callback() {
    let library = needs!(library(&CC, "overflows.c", OVERFLOWS, &[]));
    let (begun, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (begins, ends) = (Arc::clone(&begun), Arc::clone(&ended));
    let entry = move |_: &mut Entry<'_, ()>| {
        begins.fetch_add(1, Ordering::Relaxed);
        black_box([0u8; 4096]);
        ends.fetch_add(1, Ordering::Relaxed);
        Some(())
    };
    let user = user(entry, |_: &mut Return<'_, ()>, ()| ());
    let user = fgraph_scenario::register(user, "sinks").unwrap();
    overflow(&library, "sinks", 50);
    let counts = || [&begun, &ended].map(|count| count.load(Ordering::Relaxed));
    let [entries, exits] = counts();
    assert_eq!(entries, exits, "a callback did not end");
    assert!(entries > 1_000, "{entries}");
    let [missed, overrun, _, lost, no_shadow_stack] = numbers(user.counters());
    assert!(overrun >= 50, "{overrun}");
    assert_eq!([missed, no_shadow_stack], [0; 2]);
    assert!(lost <= entries, "{lost} of {entries}");
    // SAFETY: the type of the function.
    let sinks: extern "C" fn(i64) -> i64 = unsafe { library.get("sinks") };
    assert_eq!(sinks(-1), 0);
    assert_eq!(counts(), [entries + 1; 2]);
}

#[scenario]
fn faults_at_the_end_of_a_stack_are_in_the_text_of_ocamls_code() {
    let library = needs!(library(&CC, "own.c", OVERFLOWS, &["-DOWN"]));
    for users in [1, 2, 16] {
        let mut handles: Vec<_> = (0..users).map(|_| count("camlOver__*,sinks")).collect();
        for name in ["calls", "spills", "pushes", "large"] {
            let function = format!("camlOver__{name}");
            assert!(fgraph_scenario::is_patched(library.address(&function)));
            overflow(&library, &function, 10);
        }
        overflow(&library, "sinks", 10);
        for user in handles.drain(..) {
            let [missed, overrun, _, _, no_shadow_stack] = numbers(user.counters());
            assert!(overrun >= 5 * 10, "{overrun}");
            assert_eq!([missed, no_shadow_stack], [0; 2]);
            assert!(user.unregister().unwrap().all().0 > 1_000);
        }
    }
}

#[scenario]
fn callbacks_allocate_and_print_while_allocating_is_traced() {
    // Not `write`, which is called with the lock of the output held.
    const NAMES: &str = "malloc:mod:libc.so.6 calloc:mod:libc.so.6 \
                realloc:mod:libc.so.6 free:mod:libc.so.6 adds_*";
    let says = |what: &'static str| {
        move |name: &str| {
            let mut all: Vec<String> = Vec::new();
            for n in 0..20 {
                all.push(format!("{what} {name} {n}"));
            }
            // Not with a macro, whose output the test harness would keep in memory.
            let _ = writeln!(std::io::stderr(), "{}", all.concat());
        }
    };
    let noisy = fgraph_scenario::register(
        user(
            move |call: &mut Entry<'_, ()>| {
                says("enters")(call.function().name().as_str());
                Some(())
            },
            move |call: &mut Return<'_, ()>, ()| {
                says("leaves")(call.function().name().as_str());
            },
        ),
        NAMES,
    )
    .unwrap();
    let quiet = count(NAMES);
    let threads = [0, 1, 2].map(|n| {
        thread::spawn(move || {
            for round in 0..100 {
                let text: Vec<String> = (0..10).map(|i| (i + n + round).to_string()).collect();
                assert_eq!(text.len(), 10);
                assert_eq!(adds_two(round), round + 2);
                let _ = writeln!(std::io::stderr(), "{}", text.join(" "));
            }
        })
    });
    // Until they are gone: threads free memory to their very end.
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(noisy.status(), UserStatus::Active);
    drop(noisy);
    let (entries, returns) = quiet.unregister().unwrap().both();
    // At least these three calls, and ten times memory taken and given back.
    assert!(entries >= 300 * (3 + 20), "{entries}");
    assert_eq!(entries, returns);
    assert_eq!(totals()[1..], [0; 4]);
    assert_eq!(patched(), 0);
}

#[scenario]
fn callbacks_take_the_lock_that_the_traced_function_takes() {
    let users: Vec<_> = (0..4)
        .map(|_| {
            let entry = |_: &mut Entry<'_, ()>| {
                *TOTAL.lock().unwrap() += 1;
                Some(())
            };
            let ret = |_: &mut Return<'_, ()>, ()| *TOTAL.lock().unwrap() += 1;
            fgraph_scenario::register(user(entry, ret), "takes_lock").unwrap()
        })
        .collect();
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| (0..2_000).for_each(|_| assert_eq!(takes_lock(10), 10)));
        }
    });
    assert_eq!(*TOTAL.lock().unwrap(), 6_000 * (10 + 2 * 4));
    assert!(users.iter().all(|user| user.status() == UserStatus::Active));
    assert_eq!(totals(), [0; 5]);
}

/// A callback that waits for such a lock waits for its own thread: `FgraphOps` says so.
#[scenario]
fn a_lock_held_by_the_caller_is_held_in_callbacks() {
    let log = Log::new();
    let (at_entry, at_return) = (log.clone(), log.clone());
    let _user = fgraph_scenario::register(
        user(
            move |_| {
                at_entry.push(TOTAL.try_lock().is_ok());
                Some(())
            },
            move |_, ()| at_return.push(TOTAL.try_lock().is_ok()),
        ),
        "adds_one",
    )
    .unwrap();
    let held = TOTAL.lock().unwrap();
    adds_one(1);
    assert_eq!(log.take(), [false, false]);
    drop(held);
    adds_one(1);
    assert_eq!(log.take(), [true, true]);
}

#[scenario]
fn while_a_callback_blocks_everything_else_goes_on() {
    let (inside, is_inside) = mpsc::sync_channel(0);
    let (go_on, may_go_on) = mpsc::sync_channel(0);
    let may_go_on = Mutex::new(may_go_on);
    let blocks = fgraph_scenario::register(
        user(
            move |call: &mut Entry<'_, ()>| {
                if call.arg(0) == Some(77) {
                    inside.send(()).unwrap();
                    may_go_on.lock().unwrap().recv().unwrap();
                }
                Some(())
            },
            |_, ()| (),
        ),
        "adds_one",
    )
    .unwrap();
    thread::scope(|scope| {
        let blocked = scope.spawn(|| adds_one(77));
        is_inside.recv().unwrap();
        // Other users, filters, calls, threads, and children.
        for n in 0..50 {
            let other = count("adds_*");
            assert_eq!(adds_two(n), n + 2);
            assert_eq!(scope.spawn(move || adds_two(n)).join().unwrap(), n + 2);
            assert_eq!(
                fgraph_scenario::set_filter(&other, "adds_two")
                    .unwrap()
                    .traced,
                1
            );
            assert_eq!(adds_two(n), n + 2);
            assert_eq!(
                fgraph_scenario::set_filter(&blocks, "adds_*")
                    .unwrap()
                    .traced,
                2
            );
            assert_eq!(other.unregister().unwrap().both(), (5, 5));
        }
        let status = fgraph_scenario::forked(|| {
            let own = count("adds_one");
            adds_one(1);
            i32::from(own.unregister().unwrap().both() != (1, 1))
        });
        assert!(status.success(), "{status}");
        assert!(!blocked.is_finished());
        go_on.send(()).unwrap();
        assert_eq!(blocked.join().unwrap(), 78);
    });
    assert_eq!(numbers(blocks.counters()), [0; 5]);
}

/// A user that knows its number, and when it is gone.
struct Numbered {
    number: u64,
    is_gone: Arc<AtomicBool>,
    wrong: &'static AtomicU64,
    entries: AtomicU64,
    returns: AtomicU64,
}

impl Numbered {
    fn check(&self, is_right: bool) {
        let is_wrong = !is_right || self.is_gone.load(Ordering::SeqCst);
        self.wrong.fetch_add(is_wrong.into(), Ordering::SeqCst);
    }
}

impl FgraphOps for Numbered {
    type Data = (u64, usize);

    fn entry(&self, call: &mut Entry<'_, (u64, usize)>) -> Option<(u64, usize)> {
        self.check(true);
        self.entries.fetch_add(1, Ordering::SeqCst);
        Some((self.number, call.function().address()))
    }

    fn ret(&self, call: &mut Return<'_, (u64, usize)>, (number, function): (u64, usize)) {
        self.check(number == self.number && function == call.function().address());
        self.returns.fetch_add(1, Ordering::SeqCst);
    }
}

#[scenario]
fn sixteen_users_come_and_go_from_several_threads() {
    static WRONG: AtomicU64 = AtomicU64::new(0);
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let new = || {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let is_gone = Arc::new(AtomicBool::new(false));
        let ops = Numbered {
            number,
            is_gone: Arc::clone(&is_gone),
            wrong: &WRONG,
            entries: AtomicU64::new(0),
            returns: AtomicU64::new(0),
        };
        let filter = ["adds_one", "adds_two", "adds_*"][number as usize % 3];
        (fgraph_scenario::register(ops, filter).unwrap(), is_gone)
    };
    let users: Vec<_> = (0..16).map(|_| Mutex::new(Some(new()))).collect();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut n = 0;
                while !done.load(Ordering::Relaxed) {
                    assert_eq!(adds_two(n), n + 2);
                    n += 1;
                }
            });
        }
        let (users, new) = (&users, &new);
        let changing: Vec<_> = (0..3)
            .map(|thread| {
                scope.spawn(move || {
                    for round in 0..100 {
                        // Neighbours, in an order of each thread's own.
                        let next = (round * (2 * thread + 1) + 5 * thread) % 16;
                        for index in [next, (next + 1) % 16] {
                            let mut place = users[index].lock().unwrap();
                            let (handle, is_gone) = place.take().unwrap();
                            let user = handle.unregister().unwrap();
                            is_gone.store(true, Ordering::SeqCst);
                            assert!(user.entries.into_inner() >= user.returns.into_inner());
                            *place = Some(new());
                        }
                    }
                })
            })
            .collect();
        let results: Vec<_> = changing.into_iter().map(|thread| thread.join()).collect();
        done.store(true, Ordering::Relaxed);
        assert!(results.iter().all(Result::is_ok));
    });
    assert_eq!(WRONG.load(Ordering::SeqCst), 0);
    assert_eq!(totals(), [0; 5]);
    // Nobody calls now: whoever is left has every return of its entries.
    for place in users {
        let (handle, _) = place.into_inner().unwrap().unwrap();
        assert_eq!(handle.status(), UserStatus::Active);
        // Calls that it has accepted are over.
        let user = handle.unregister().unwrap();
        assert_eq!(user.entries.into_inner(), user.returns.into_inner());
    }
    assert_eq!(patched(), 0);
}

/// Counts in the thread's word: entries in its lower half, returns in its upper half.
struct Halves(Log<u64>);

impl FgraphOps for Halves {
    type Data = u64;

    fn entry(&self, call: &mut Entry<'_, u64>) -> Option<u64> {
        let word = call.thread_word();
        // The last call of a thread tells.
        if call.arg(0) == Some(u64::MAX - 1) {
            self.0.push(word.get());
            return None;
        }
        word.set(word.get() + 1);
        Some(word.get())
    }

    fn ret(&self, call: &mut Return<'_, u64>, entry: u64) {
        let word = call.thread_word();
        assert_eq!(entry, word.get());
        word.set(word.get() + (1 << 32));
    }
}

/// KiB of the process that are in memory.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    line.unwrap()
        .split_whitespace()
        .nth(1)
        .unwrap()
        .parse()
        .unwrap()
}

/// `cargo xtask soak` runs it.
#[test]
#[ignore = "takes minutes: cargo xtask soak"]
fn a_thousand_million_calls_are_counted_exactly() {
    const THREADS: u64 = 2;
    const EACH: u64 = 500_000_000;
    let log = Log::new();
    let users =
        [(); 2].map(|()| fgraph_scenario::register(Halves(log.clone()), "adds_one").unwrap());
    let calls = |calls: u64| {
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(move || {
                    for n in 0..calls {
                        assert_eq!(adds_one(n), n + 1);
                    }
                    adds_one(u64::MAX - 1);
                });
            }
        });
        assert_eq!(log.take(), [calls << 32 | calls; 2 * THREADS as usize]);
    };
    // These calls make what is made only once.
    calls(1_000);
    let (memory, threads) = (resident(), fgraph::threads().len());
    calls(EACH);
    assert!(resident() < memory + 1024, "{memory} -> {}", resident());
    assert!(fgraph::threads().len() <= threads + 2);
    assert_eq!(totals(), [0; 5]);
    for user in &users {
        assert_eq!(numbers(user.counters()), [0; 5]);
        assert_eq!(user.status(), UserStatus::Active);
    }
}
