//! The permanent stop.

use std::hint::black_box;

use fgraph::{Error, Handle, StopReason, UserStatus};
use fgraph_scenario::{Count, code, is_patched, scenario};

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn stops_here(n: u64) -> u64 {
    black_box(n) + 1
}

#[unsafe(no_mangle)]
#[inline(never)]
fn stops_inside(n: u64, middle: &mut dyn FnMut()) -> u64 {
    if n == 0 {
        middle();
    } else {
        black_box(stops_inside(n - 1, middle));
    }
    black_box(n) * 7
}

fn count(filter: &str) -> Handle<Count> {
    fgraph_scenario::register(Count::default(), filter).unwrap()
}

#[scenario]
fn after_the_stop_everything_is_a_nop_and_nobody_can_register() {
    let original: [u8; 5] = code(stops_here as *const ());
    let all = count("*");
    let one = count("stops_here");
    assert!(is_patched(stops_here as *const ()));
    stops_here(1);
    fgraph::stop().unwrap();
    assert_eq!(code::<5>(stops_here as *const ()), original);
    let status = fgraph::status().unwrap();
    assert_eq!(
        (status.patched, status.stopped),
        (0, Some(StopReason::Requested))
    );
    assert!(status.to_string().contains("stopped"), "{status}");
    let seen = (all.user().both(), one.user().both());
    assert_eq!(stops_here(1), 2);
    assert_eq!((all.user().both(), one.user().both()), seen);
    let stopped = Error::Stopped(StopReason::Requested);
    assert_eq!(
        fgraph_scenario::register(Count::default(), "stops_here").unwrap_err(),
        stopped
    );
    assert_eq!(
        fgraph_scenario::set_filter(&one, "stops_here").unwrap_err(),
        stopped
    );
    assert_eq!(one.status(), UserStatus::Stopped(StopReason::Requested));
    // Handles still give their values back.
    let value = one.unregister().unwrap();
    assert_eq!(value.both(), (1, 1));
    drop(all);
    // Once more does no harm.
    fgraph::stop().unwrap();
    assert_eq!(
        fgraph_scenario::register(Count::default(), "*").unwrap_err(),
        stopped
    );
    assert_eq!(stops_here(1), 2);
}

#[scenario]
fn calls_going_on_return_right_after_a_stop() {
    let users: Vec<_> = (0..16).map(|_| count("stops_inside stops_here")).collect();
    let result = stops_inside(9, &mut || {
        fgraph::stop().unwrap();
        assert_eq!(stops_here(1), 2);
    });
    assert_eq!(result, 63);
    for user in users {
        assert_eq!(user.unregister().unwrap().both(), (10, 0));
    }
}

#[scenario]
fn a_panic_after_a_stop_goes_through_the_calls_going_on() {
    std::panic::set_hook(Box::new(|_| ()));
    let user = count("stops_inside");
    std::panic::catch_unwind(|| {
        stops_inside(9, &mut || {
            fgraph::stop().unwrap();
            std::panic::panic_any(5);
        })
    })
    .unwrap_err();
    assert_eq!(user.unregister().unwrap().both(), (10, 0));
}

#[scenario]
fn a_stop_while_threads_call_all_the_time() {
    let users: Vec<_> = (0..4).map(|_| count("stops_here")).collect();
    let stopped = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for n in 0..3 {
            let stopped = &stopped;
            scope.spawn(move || {
                while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
                    assert_eq!(stops_here(n), n + 1);
                }
            });
        }
        while users[0].user().both().0 < 1_000 {
            std::thread::yield_now();
        }
        fgraph::stop().unwrap();
        stopped.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert!(!is_patched(stops_here as *const ()));
    for user in users {
        let (entries, returns) = user.unregister().unwrap().both();
        assert!(
            entries >= returns && entries - returns <= 3,
            "{entries} {returns}"
        );
    }
}

#[scenario]
fn a_stop_that_cannot_put_the_text_back_says_so() {
    let user = count("stops_here");
    let (blocked, is_blocked) = std::sync::mpsc::channel();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        // SAFETY: plain data; only this thread's mask.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&mut set);
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        }
        blocked.send(()).unwrap();
        let _ = ended.recv();
    });
    is_blocked.recv().unwrap();
    let result = fgraph::stop();
    // Nothing is traced any more in any case.
    assert_eq!(stops_here(1), 2);
    assert_eq!(user.user().both(), (0, 0));
    assert!(
        !is_patched(stops_here as *const ()) || result.is_err(),
        "it said it was done"
    );
    drop(end);
    thread.join().unwrap();
    fgraph::stop().unwrap();
    assert!(!is_patched(stops_here as *const ()));
    assert_eq!(user.unregister().unwrap().both(), (0, 0));
}
