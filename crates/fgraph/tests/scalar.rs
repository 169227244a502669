//! Users whose callbacks leave everything alone but general registers: their calls take a shorter
//! way, on which as much must hold.

mod common;

use std::arch::asm;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;

use common::{Count, register, scenario};
use fgraph::{Entry, FgraphOps, Options, Return};

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn halves(x: f64, n: u64) -> f64 {
    black_box(x) / 2.0 + black_box(n) as f64
}

/// Counts entries and returns, in the same few instructions however this is compiled.
#[derive(Default)]
struct Bare {
    entries: AtomicU64,
    returns: AtomicU64,
}

fn add_one(count: &AtomicU64) {
    // SAFETY: a word that only atomic instructions change.
    unsafe { asm!("lock inc qword ptr [{}]", in(reg) count.as_ptr(), options(nostack)) };
}

impl FgraphOps for Bare {
    type Data = ();

    fn entry(&self, _: &mut Entry<'_, ()>) -> Option<()> {
        add_one(&self.entries);
        Some(())
    }

    fn ret(&self, _: &mut Return<'_, ()>, (): ()) {
        add_one(&self.returns);
    }
}

impl Bare {
    fn counts(&self) -> (u64, u64) {
        let [entries, returns] = [&self.entries, &self.returns];
        (
            entries.load(Ordering::SeqCst),
            returns.load(Ordering::SeqCst),
        )
    }
}

#[test]
fn a_scalar_user_gets_its_calls_alone_and_among_others() {
    scenario(
        "a_scalar_user_gets_its_calls_alone_and_among_others",
        || {
            let bare = register(Bare::default(), "halves").unwrap();
            assert!(bare.is_scalar());
            assert_eq!(halves(3.0, 2), 3.5);
            assert_eq!(bare.counts(), (1, 1));
            // A second user of the same kind, and one of another.
            let second = register(Bare::default(), "halves").unwrap();
            assert_eq!(halves(5.0, 0), 2.5);
            let third = register(Count::default(), "halves").unwrap();
            assert!(!third.is_scalar());
            assert_eq!(halves(7.0, 1), 4.5);
            assert_eq!((bare.counts(), second.counts()), ((3, 3), (2, 2)));
            assert_eq!(third.both(), (1, 1));
            drop(bare);
            assert_eq!(halves(1.0, 0), 0.5);
            assert_eq!((second.counts(), third.both()), ((3, 3), (2, 2)));
            drop(third);
            assert_eq!(halves(1.0, 0), 0.5);
            assert_eq!(second.counts(), (4, 4));
            second.set_enabled(false);
            halves(1.0, 0);
            assert_eq!(second.counts(), (4, 4));
        },
    );
}

/// Looks at an argument in a vector register, and keeps its bits.
struct Float;

impl FgraphOps for Float {
    type Data = u64;

    fn entry(&self, call: &mut Entry<'_, u64>) -> Option<u64> {
        call.float_arg(0).map(f64::to_bits)
    }

    fn ret(&self, _: &mut Return<'_, u64>, bits: u64) {
        assert_eq!(bits, 3.0_f64.to_bits());
    }
}

/// Changes a vector register.
struct Vector;

impl FgraphOps for Vector {
    type Data = ();

    fn entry(&self, _: &mut Entry<'_, ()>) -> Option<()> {
        // SAFETY: says what it changes.
        unsafe { asm!("pcmpeqd xmm0, xmm0", out("xmm0") _, options(nomem, nostack)) };
        None
    }
}

#[test]
fn users_that_do_more_or_are_sampled_are_not_scalar() {
    scenario("users_that_do_more_or_are_sampled_are_not_scalar", || {
        let float = register(Float, "halves").unwrap();
        assert!(!float.is_scalar());
        assert_eq!(halves(3.0, 2), 3.5);
        drop(float);
        let vector = register(Vector, "halves").unwrap();
        assert!(!vector.is_scalar());
        assert_eq!(halves(3.0, 2), 3.5);
        drop(vector);
        // SAFETY: the function does not look at its return address.
        let sampled =
            unsafe { fgraph::register_with(Bare::default(), "halves", &Options::new().sample(2)) };
        let sampled = sampled.unwrap();
        assert!(!sampled.is_scalar());
        halves(3.0, 2);
        halves(3.0, 2);
        assert_eq!(sampled.counts(), (1, 1));
        // The slots are taken again, by a user that is.
        drop(sampled);
        for _ in 0..40 {
            let bare = register(Bare::default(), "halves").unwrap();
            assert!(bare.is_scalar());
            assert_eq!(halves(3.0, 2), 3.5);
            assert_eq!(bare.counts(), (1, 1));
        }
    });
}

#[test]
fn nothing_is_told_to_a_scalar_user_that_is_gone() {
    scenario("nothing_is_told_to_a_scalar_user_that_is_gone", || {
        let (is_over, calls) = (&AtomicBool::new(false), &AtomicU64::new(0));
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        assert_eq!(halves(3.0, 2), 3.5);
                        calls.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            for _ in 0..300 {
                let user = register(Bare::default(), "halves").unwrap();
                let made = calls.load(Ordering::Relaxed);
                while calls.load(Ordering::Relaxed) < made + 100 {
                    thread::yield_now();
                }
                let bare = user.unregister().unwrap();
                let counts = bare.counts();
                let made = calls.load(Ordering::Relaxed);
                while calls.load(Ordering::Relaxed) < made + 100 {
                    thread::yield_now();
                }
                assert_eq!(bare.counts(), counts);
                assert!(counts.0 >= counts.1);
            }
            is_over.store(true, Ordering::Relaxed);
        });
    });
}

/// The thread was in a callback of the user's last, and nothing has told since that it is over but
/// that it is not inside.
#[test]
fn a_thread_that_is_not_traced_any_more_keeps_no_scalar_user() {
    scenario(
        "a_thread_that_is_not_traced_any_more_keeps_no_scalar_user",
        || {
            let user = register(Bare::default(), "halves").unwrap();
            let (tell, told) = mpsc::channel();
            let (end, ends) = mpsc::channel::<()>();
            let untraced = thread::spawn(move || {
                halves(3.0, 2);
                let guard = fgraph::Untraced::new();
                tell.send(()).unwrap();
                let _ = ends.recv();
                drop(guard);
                halves(3.0, 2);
            });
            told.recv().unwrap();
            halves(3.0, 2);
            assert_eq!(user.unregister().unwrap().counts(), (2, 2));
            drop(end);
            untraced.join().unwrap();
        },
    );
}
