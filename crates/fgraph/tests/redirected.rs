//! Calls that are redirected to a library that goes away.

use std::error::Error as _;
use std::os::unix::process::ExitStatusExt;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use fgraph::{Entry, Error, FgraphOps, Handle, IneligibleReason, Options, Return, WriteError};
use fgraph_needs::{CC, Missing, needs};
use fgraph_scenario::{Library, Log, scenario};

/// A target that sets a flag and returns when it may go on, and one that `leaves` leaves.
const C: &str = "
#include <sched.h>
#include <setjmp.h>

unsigned long target(unsigned long inside, unsigned long go_on) {
    __atomic_store_n((int *)inside, 1, __ATOMIC_SEQ_CST);
    while (!__atomic_load_n((int *)go_on, __ATOMIC_SEQ_CST))
        sched_yield();
    return 42;
}

static jmp_buf left;

unsigned long jumps(unsigned long a, unsigned long b) {
    longjmp(left, a + b);
}

int leaves(unsigned long (*function)(unsigned long, unsigned long)) {
    int sum = setjmp(left);
    if (sum == 0)
        function(2, 3);
    return sum;
}
";

/// Longer than any scenario waits.
const PATIENCE: Duration = Duration::from_secs(60);

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn redirected_sum(a: u64, b: u64) -> u64 {
    std::hint::black_box(a.wrapping_add(b))
}

/// Redirects calls to the library.
#[derive(Debug)]
struct ToLibrary {
    target: usize,
    accept: bool,
    /// Errors of calls that were not redirected.
    refused: Log<WriteError>,
}

impl FgraphOps for ToLibrary {
    type Data = u64;

    fn entry(&self, call: &mut Entry<'_, u64>) -> Option<u64> {
        let target = ptr::with_exposed_provenance(self.target);
        // SAFETY: a function of the same type, whose result the scenario expects.
        if let Err(error) = unsafe { call.rewrite() }.redirect(target) {
            self.refused.push(error);
        }
        self.accept.then_some(7)
    }

    fn ret(&self, _call: &mut Return<'_, u64>, data: u64) {
        assert_eq!(data, 7);
    }
}

/// A thread inside the target.
struct Inside {
    thread: thread::JoinHandle<u64>,
    go_on: Arc<AtomicU32>,
}

impl Inside {
    fn start() -> Self {
        Self::start_after(|| ())
    }

    /// The thread does `first` before it makes the call.
    fn start_after(first: fn()) -> Self {
        let [inside, go_on] = [(); 2].map(|()| Arc::new(AtomicU32::new(0)));
        let flags = [inside.clone(), go_on.clone()];
        let thread = thread::spawn(move || {
            first();
            let [inside, go_on] = flags.each_ref().map(|flag| flag.as_ptr() as u64);
            redirected_sum(inside, go_on)
        });
        while inside.load(SeqCst) == 0 {
            thread::yield_now();
        }
        Self { thread, go_on }
    }

    fn end(self) {
        self.go_on.store(1, SeqCst);
        assert_eq!(self.thread.join().unwrap(), 42);
    }
}

fn open() -> Result<Library, Missing> {
    fgraph_scenario::library(&CC, "target.c", C, &["-O2"])
}

fn register(library: &Library, accept: bool, options: &Options) -> Handle<ToLibrary> {
    register_to(library.address("target"), accept, options)
}

fn register_to(target: *const (), accept: bool, options: &Options) -> Handle<ToLibrary> {
    let ops = ToLibrary {
        target: target.expose_provenance(),
        accept,
        refused: Log::new(),
    };
    // SAFETY: only the scenario calls the function, where locking a log is allowed.
    unsafe { fgraph::register_with(ops, "redirected_sum", options) }.unwrap()
}

const COUNTED: Options = Options::new().count_redirected(true);

#[scenario]
fn drain_and_unregister_waits_until_redirected_calls_have_left_the_target() {
    let library = needs!(open());
    let user = register(&library, true, &COUNTED);
    let calls = [(); 3].map(|()| Inside::start());
    let failed = user.drain_and_unregister(Duration::ZERO).unwrap_err();
    let [in_flight, unknown] = [3, 0];
    assert_eq!(
        *failed.error(),
        Error::RedirectedCalls { in_flight, unknown }
    );
    assert_eq!(failed.to_string(), "the user is still registered");
    let source = failed.source().unwrap().to_string();
    assert_eq!(source, "3 redirected calls have not returned");
    // The user works as before.
    let user = failed.into_handle();
    let fourth = Inside::start();
    let waiter = thread::spawn(move || user.drain_and_unregister(PATIENCE));
    calls.into_iter().for_each(Inside::end);
    assert!(!waiter.is_finished());
    fourth.end();
    let ops = waiter.join().unwrap().unwrap();
    library.close();
    assert_eq!(redirected_sum(2, 3), 5);
    assert_eq!(ops.refused.take(), []);
}

#[scenario]
fn a_target_that_is_closed_while_a_redirected_call_runs_it_crashes_the_process() {
    if fgraph_scenario::part().is_some() {
        let library = needs!(open());
        let user = register(&library, true, &COUNTED);
        let call = Inside::start();
        // No callback runs, but the call does.
        user.unregister().unwrap();
        library.close();
        call.end();
        return;
    }
    drop(needs!(open()));
    let status = fgraph_scenario::play("closes").output().unwrap().status;
    assert_eq!(status.signal(), Some(libc::SIGSEGV), "{status}");
}

#[scenario]
fn no_call_is_redirected_while_its_user_is_being_unregistered() {
    let library = needs!(open());
    let user = register(&library, true, &COUNTED);
    let refused = user.user().refused.clone();
    let call = Inside::start();
    let waiter = thread::spawn(move || user.drain_and_unregister(PATIENCE));
    // The target returns at once, for calls that are redirected before the user is closed.
    let may_return = AtomicU32::new(1);
    let errors = loop {
        let inside = AtomicU32::new(0);
        redirected_sum(inside.as_ptr() as u64, may_return.as_ptr() as u64);
        let errors = refused.take();
        if !errors.is_empty() {
            assert_eq!(inside.load(SeqCst), 0);
            break errors;
        }
    };
    assert_eq!(errors, [WriteError::Unregistering]);
    call.end();
    waiter.join().unwrap().unwrap();
}

#[scenario]
fn redirected_calls_that_nobody_counts_are_unknown() {
    let library = needs!(open());
    let [not_accepted, not_counted] = [(false, COUNTED), (true, Options::new())];
    for (accept, options) in [not_accepted, not_counted] {
        let user = register(&library, accept, &options);
        let call = Inside::start();
        call.end();
        let failed = user.drain_and_unregister(PATIENCE).unwrap_err();
        let [in_flight, unknown] = [0, 1];
        assert_eq!(
            *failed.error(),
            Error::RedirectedCalls { in_flight, unknown }
        );
        failed.into_handle().unregister().unwrap();
    }
    // A user that has redirected nothing has nothing to wait for.
    let user = register(&library, true, &Options::new());
    user.drain_and_unregister(Duration::ZERO).unwrap();
}

#[scenario]
fn a_redirected_call_that_is_unwound_has_left_its_target() {
    extern "C-unwind" fn panics(_: u64, _: u64) -> u64 {
        std::panic::panic_any(5_u8);
    }

    #[unsafe(no_mangle)]
    #[inline(never)]
    extern "C-unwind" fn unwound_sum(a: u64, b: u64) -> u64 {
        std::hint::black_box(a.wrapping_add(b))
    }

    let ops = ToLibrary {
        target: (panics as *const ()).expose_provenance(),
        accept: true,
        refused: Log::new(),
    };
    // SAFETY: only the scenario calls the function.
    let user = unsafe { fgraph::register_with(ops, "unwound_sum", &COUNTED) }.unwrap();
    let caught = std::panic::catch_unwind(|| unwound_sum(1, 2)).unwrap_err();
    assert_eq!(caught.downcast_ref(), Some(&5_u8));
    user.drain_and_unregister(Duration::ZERO).unwrap();
}

#[scenario]
fn a_redirected_call_that_longjmp_leaves_counts_as_going_on() {
    let library = needs!(open());
    let user = register_to(library.address("jumps"), true, &COUNTED);
    // SAFETY: its type.
    let leaves: extern "C" fn(extern "C" fn(u64, u64) -> u64) -> i32 =
        unsafe { library.get("leaves") };
    assert_eq!(leaves(redirected_sum), 5);
    // The next call drops the frame of the first.
    assert_eq!(leaves(redirected_sum), 5);
    assert_eq!(user.counters().lost, 1);
    let failed = user.drain_and_unregister(Duration::ZERO).unwrap_err();
    let [in_flight, unknown] = [2, 0];
    assert_eq!(
        *failed.error(),
        Error::RedirectedCalls { in_flight, unknown }
    );
    failed.into_handle().unregister().unwrap();
}

#[scenario]
fn sampled_calls_are_counted_like_all_others() {
    let library = needs!(open());
    let user = register(&library, true, &COUNTED.sample(2));
    let call = Inside::start_after(|| assert_eq!(redirected_sum(2, 3), 5));
    let reason = user
        .fast_path()
        .unwrap()
        .ineligible()
        .map(|why| why.reason());
    assert_eq!(reason, Some(IneligibleReason::Sampled));
    let failed = user.drain_and_unregister(Duration::ZERO).unwrap_err();
    let [in_flight, unknown] = [1, 0];
    assert_eq!(
        *failed.error(),
        Error::RedirectedCalls { in_flight, unknown }
    );
    call.end();
    failed
        .into_handle()
        .drain_and_unregister(Duration::ZERO)
        .unwrap();
}

#[scenario]
fn drain_and_unregister_fails_inside_a_callback() {
    /// Unregisters another user.
    struct Unregisters(std::sync::Mutex<Option<Handle<ToLibrary>>>, Log<Error>);

    impl FgraphOps for Unregisters {
        type Data = ();

        fn entry(&self, _call: &mut Entry<'_, ()>) -> Option<()> {
            let user = self.0.lock().unwrap().take();
            if let Some(user) = user {
                let failed = user.drain_and_unregister(Duration::ZERO).unwrap_err();
                self.1.push(failed.error().clone());
                self.0.lock().unwrap().replace(failed.into_handle());
            }
            None
        }
    }

    let library = needs!(open());
    let other = register(&library, true, &COUNTED);
    let reason = other
        .fast_path()
        .unwrap()
        .ineligible()
        .map(|why| why.reason());
    assert_eq!(reason, Some(IneligibleReason::CountsRedirected));
    let errors = Log::new();
    let ops = Unregisters(Some(other).into(), errors.clone());
    // SAFETY: the callback may lock, as only this calls the function.
    let user = unsafe { fgraph::register(ops, "getppid") }.unwrap();
    let _ = std::os::unix::process::parent_id();
    assert_eq!(errors.take(), [Error::InsideCallback]);
    drop(user);
}
