//! Locks: orders that can deadlock are found without a deadlock, and holds and waits are counted.

use std::cell::UnsafeCell;
use std::fs;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::Duration;

use crate::sqlite::{self, Sqlite};
use fgraph_needs::needs;
use fgraph_scenario::scenario;
use fgraph_tracers::locks::{Lock, LockTracer};

/// A POSIX mutex.
struct Posix(UnsafeCell<libc::pthread_mutex_t>);

// SAFETY: that is what it is for.
unsafe impl Sync for Posix {}

impl Posix {
    const fn new() -> Self {
        Self(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER))
    }

    #[inline(never)]
    fn lock(&self) {
        // SAFETY: a mutex.
        assert_eq!(unsafe { libc::pthread_mutex_lock(self.0.get()) }, 0);
    }

    fn try_lock(&self) -> bool {
        // SAFETY: a mutex.
        unsafe { libc::pthread_mutex_trylock(self.0.get()) == 0 }
    }

    fn unlock(&self) {
        // SAFETY: a mutex that this thread has.
        assert_eq!(unsafe { libc::pthread_mutex_unlock(self.0.get()) }, 0);
    }

    fn address(&self) -> usize {
        self.0.get().addr()
    }

    fn of(&self, tracer: &LockTracer) -> Lock {
        let locks = tracer.locks();
        let found = locks
            .into_iter()
            .find(|lock| lock.address == self.address());
        found.expect("the lock was taken")
    }
}

/// Takes locks in an order and releases them in the reverse.
fn take(locks: &[&Posix]) {
    locks.iter().for_each(|lock| lock.lock());
    locks.iter().rev().for_each(|lock| lock.unlock());
}

fn on_thread(work: impl FnOnce() + Send) {
    thread::scope(|scope| scope.spawn(work).join().unwrap());
}

static A: Posix = Posix::new();
static B: Posix = Posix::new();
static C: Posix = Posix::new();

#[scenario]
fn two_orders_of_two_locks_are_an_inversion() {
    let tracer = LockTracer::start().unwrap();
    on_thread(|| take(&[&A, &B]));
    on_thread(|| take(&[&A, &B]));
    assert_eq!(tracer.inversions(), []);
    on_thread(|| take(&[&B, &A]));
    on_thread(|| take(&[&B, &A]));
    let [inversion] = &tracer.inversions()[..] else {
        panic!("{:?}", tracer.inversions());
    };
    let orders: Vec<_> = inversion.orders.iter().map(|o| (o.held, o.taken)).collect();
    let (a, b) = (A.address(), B.address());
    assert_eq!(orders, [(b, a), (a, b)]);
    let threads: Vec<_> = inversion.orders.iter().map(|o| o.by.thread).collect();
    assert_ne!(threads[0], threads[1]);
    let text = inversion.to_string();
    assert_eq!(text.matches("locks::Posix::lock+0x").count(), 4, "{text}");
}

#[scenario]
fn an_order_of_three_locks_that_goes_round_is_an_inversion() {
    let tracer = LockTracer::start().unwrap();
    take(&[&A, &B]);
    take(&[&B, &C]);
    assert_eq!(tracer.inversions(), []);
    take(&[&C, &A]);
    let [inversion] = &tracer.inversions()[..] else {
        panic!("{:?}", tracer.inversions());
    };
    let orders: Vec<_> = inversion.orders.iter().map(|o| (o.held, o.taken)).collect();
    let [a, b, c] = [&A, &B, &C].map(Posix::address);
    assert_eq!(orders, [(c, a), (a, b), (b, c)]);
}

#[scenario]
fn trying_for_a_lock_promises_no_order_and_a_destroyed_lock_has_none() {
    let tracer = LockTracer::start().unwrap();
    take(&[&A, &B]);
    B.lock();
    assert!(A.try_lock());
    A.unlock();
    B.unlock();
    assert_eq!(tracer.inversions(), []);
    // SAFETY: mutexes that no thread has.
    unsafe {
        assert_eq!(libc::pthread_mutex_destroy(B.0.get()), 0);
        assert_eq!(libc::pthread_mutex_init(B.0.get(), ptr::null()), 0);
    }
    take(&[&B, &A]);
    assert_eq!(tracer.inversions(), []);
    take(&[&A, &B]);
    assert_eq!(tracer.inversions().len(), 1);
}

#[scenario]
fn a_lock_that_is_taken_again_by_its_thread_is_one_hold() {
    let recursive = Posix::new();
    // SAFETY: the mutex is made anew, with attributes that are made before.
    unsafe {
        let mut attributes = std::mem::zeroed();
        libc::pthread_mutexattr_init(&mut attributes);
        libc::pthread_mutexattr_settype(&mut attributes, libc::PTHREAD_MUTEX_RECURSIVE);
        libc::pthread_mutex_init(recursive.0.get(), &attributes);
    }
    let tracer = LockTracer::start().unwrap();
    recursive.lock();
    take(&[&A, &recursive]);
    thread::sleep(Duration::from_millis(5));
    recursive.unlock();
    assert_eq!(tracer.inversions(), []);
    let lock = recursive.of(&tracer);
    assert_eq!((lock.taken, lock.held), (2, lock.longest_hold));
    assert!(lock.longest_hold >= Duration::from_millis(5));
    let at = fgraph::function_at(lock.longest_hold_at).unwrap();
    assert!(at.name().to_string().contains("Posix::lock"));
    assert!(A.of(&tracer).longest_hold < lock.longest_hold);
}

#[scenario]
fn waiting_for_a_condition_releases_the_lock() {
    struct Condition(UnsafeCell<libc::pthread_cond_t>);
    // SAFETY: that is what it is for.
    unsafe impl Sync for Condition {}
    static CONDITION: Condition = Condition(UnsafeCell::new(libc::PTHREAD_COND_INITIALIZER));
    static TURN: AtomicU32 = AtomicU32::new(0);
    let tracer = LockTracer::start().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            A.lock();
            while TURN.load(Ordering::SeqCst) == 0 {
                // SAFETY: a condition, and a mutex that this thread has.
                unsafe { libc::pthread_cond_wait(CONDITION.0.get(), A.0.get()) };
            }
            A.unlock();
        });
        B.lock();
        A.lock();
        TURN.store(1, Ordering::SeqCst);
        // SAFETY: a condition.
        unsafe { libc::pthread_cond_signal(CONDITION.0.get()) };
        A.unlock();
        B.unlock();
    });
    let lock = A.of(&tracer);
    assert!((2..=3).contains(&lock.taken), "{lock:?}");
    assert_eq!((lock.waits, tracer.untracked()), (2, 0));
    assert_eq!(tracer.inversions(), []);
}

#[scenario]
fn a_wait_for_a_lock_of_rust_is_seen() {
    static LOCK: Mutex<u32> = Mutex::new(0);
    let tracer = LockTracer::start().unwrap();
    let entered = Barrier::new(2);
    let id = AtomicU32::new(0);
    thread::scope(|scope| {
        let guard = LOCK.lock().unwrap();
        let waiter = scope.spawn(|| {
            id.store(fgraph::thread_id(), Ordering::SeqCst);
            entered.wait();
            *LOCK.lock().unwrap() += 1;
        });
        entered.wait();
        let stat = format!("/proc/self/task/{}/stat", id.load(Ordering::SeqCst));
        let is_asleep = || {
            let stat = fs::read_to_string(&stat).unwrap();
            stat.rsplit(") ").next().unwrap().starts_with('S')
        };
        while !is_asleep() {
            thread::yield_now();
        }
        drop(guard);
        waiter.join().unwrap();
    });
    let address = (&raw const LOCK).addr();
    let range = address..address + size_of_val(&LOCK);
    let locks = tracer.locks();
    let lock = locks.iter().find(|lock| range.contains(&lock.address));
    assert_eq!(lock.map(|lock| (lock.waits, lock.taken)), Some((1, 0)));
}

#[scenario]
fn sqlite_takes_its_locks_in_one_order() {
    let sqlite = needs!(Sqlite::load());
    let tracer = LockTracer::start().unwrap();
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| assert_eq!(sqlite.run_script(), sqlite::ROWS));
        }
    });
    let locks = tracer.locks();
    assert!(locks.iter().any(|lock| lock.taken > 1000), "{locks:?}");
    for lock in &locks {
        assert!(lock.longest_hold <= lock.held && lock.longest_wait <= lock.waited);
        // Only waits for locks of Rust are seen, and it is chance if a thread waits here.
        assert!([0, lock.waits].contains(&lock.taken), "{lock:?}");
    }
    assert_eq!((tracer.inversions(), tracer.untracked()), (vec![], 0));
}
