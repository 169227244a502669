//! The protocols of `slot`, `grace`, `claim`, `owner`, `free`, `version` and `snapshot`, checked by
//! loom in all interleavings up to a bound on the preemptions. Run by `.ci/loom.sh`.
//!
//! The types are the real ones. Around them are the steps of `dispatch::enter`, of
//! `dispatch::leave` and of the runtime's register and unregister. A test that should panic is the
//! twin of a model with one step left out: it shows that the model notices.
//!
//! A registration is never really freed here. Its owner writes to the cell that the readers read
//! (`Registration::epoch`) when it would free it, so that loom reports a use after free as a race
//! and a broken twin does not corrupt the test's own memory.

#![cfg(loom)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};

use fgraph_core::claim::{self, Claim};
use fgraph_core::eligible::Eligible;
use fgraph_core::free::{FreeList, Linked};
use fgraph_core::grace::{self, Epoch, HasHazardSlot, HazardSlot};
use fgraph_core::order::{Order, Ranks};
use fgraph_core::owner::{Owner, Watched};
use fgraph_core::primitive::{AtomicPtr, AtomicU64, Ordering, fence, light_barrier};
use fgraph_core::slot::Slots;
use fgraph_core::snapshot::Readers;
use fgraph_core::version::{Version, Writer};
use loom::cell::UnsafeCell;
use loom::thread;

/// Epoch newer than any frame: of the stub, or of a registration that was freed.
const NEVER: u64 = u64::MAX;

static STUB: User = User(None);

/// Target of a slot: a registration, or the stub. (A cell of loom cannot be in a static.)
#[derive(Debug)]
struct User(Option<Registration>);

// SAFETY: loom watches the cells.
unsafe impl Sync for User {}
// SAFETY: loom watches the cells.
unsafe impl Send for User {}

#[derive(Debug)]
struct Registration {
    /// Stands for all of the registration's memory: published with it, read by every use of it,
    /// written again when it would be freed.
    epoch: UnsafeCell<u64>,
    /// Output of the callbacks, one cell per thread.
    seen: [UnsafeCell<u32>; 2],
    // These three are the observer's, not the protocol's. They are not loom's, so they add no
    // interleavings and no ordering: loom runs one thread at a time.
    calls: AtomicU32,
    unregistering: AtomicBool,
    unregistered: AtomicBool,
}

impl User {
    fn new() -> Self {
        Self(Some(Registration {
            epoch: UnsafeCell::new(NEVER),
            seen: [UnsafeCell::new(0), UnsafeCell::new(0)],
            calls: AtomicU32::new(0),
            unregistering: AtomicBool::new(false),
            unregistered: AtomicBool::new(false),
        }))
    }

    fn registration(&self) -> &Registration {
        self.0.as_ref().expect("the stub has no registration")
    }

    fn epoch(&self) -> u64 {
        match &self.0 {
            // SAFETY: loom panics if anybody writes it meanwhile.
            Some(registration) => registration.epoch.with(|epoch| unsafe { *epoch }),
            None => NEVER,
        }
    }

    /// Runs a callback; `false` from the stub, which declines entries and ignores returns.
    fn call(&self, thread: usize) -> bool {
        let Some(registration) = &self.0 else {
            return false;
        };
        registration.epoch.with(|_| {
            let returned = registration.unregistered.load(Ordering::Relaxed);
            assert!(!returned, "a callback ran after unregister had returned");
            // SAFETY: loom panics if anybody else uses it meanwhile.
            registration.seen[thread].with_mut(|seen| unsafe { *seen += 1 });
            registration.calls.fetch_add(1, Ordering::Relaxed);
        });
        true
    }

    /// Returns the number of callbacks that the owner finds in its value.
    fn seen(&self) -> u32 {
        let seen = self.registration().seen.iter();
        // SAFETY: loom panics if anybody writes it meanwhile.
        seen.map(|seen| seen.with(|seen| unsafe { *seen })).sum()
    }
}

/// Way in which the owner waits for the threads that are in its callback.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Wait {
    Acquiring,
    Relaxed,
    Not,
}

/// Fault of a thread in the use of its hazard slot.
#[derive(Clone, Copy, Debug, PartialEq)]
enum HazardFault {
    None,
    SetAfterLoad,
    ClearedBeforeCall,
    MovedOnBeforeCall,
}

/// Steps that are executed; a twin leaves one out.
#[derive(Clone, Copy, Debug)]
struct Steps {
    heavy_barrier: bool,
    wait: Wait,
    hazard: HazardFault,
    epoch_at_entry: bool,
    epoch_at_return: bool,
    new_epoch_after_grace: bool,
}

const ALL: Steps = Steps {
    heavy_barrier: true,
    wait: Wait::Acquiring,
    hazard: HazardFault::None,
    epoch_at_entry: true,
    epoch_at_return: true,
    new_epoch_after_grace: true,
};

/// State that threads and owners share.
#[derive(Debug)]
struct World {
    steps: Steps,
    slots: Slots<User>,
    epoch: Epoch,
    hazard_slots: [HazardSlot; 2],
    a: User,
    b: User,
}

/// Running call: the users that have accepted its entry, by slot.
#[derive(Debug)]
struct Frame {
    epoch: u64,
    accepted: [*const User; 2],
}

impl World {
    fn new(steps: Steps) -> Arc<Self> {
        Arc::new(Self {
            steps,
            slots: Slots::new(&STUB),
            epoch: Epoch::new(),
            hazard_slots: [HazardSlot::new(), HazardSlot::new()],
            a: User::new(),
            b: User::new(),
        })
    }

    fn publish(&self, user: &User, index: usize, epoch: u64) {
        let place = &user.registration().epoch;
        // SAFETY: loom panics if anybody else uses it meanwhile.
        place.with_mut(|place| unsafe { *place = epoch });
        // SAFETY: users live as long as the model, which shows when they would be freed too early.
        unsafe { self.slots.publish(index, user) };
    }

    fn register(&self, user: &User, index: usize) {
        self.publish(user, index, self.epoch.advance());
    }

    /// Unregisters a user, and lets its owner read the returned value.
    fn unregister(&self, user: &User, index: usize) {
        let registration = user.registration();
        registration.unregistering.store(true, Ordering::Relaxed);
        self.slots.retire(index);
        let heavy = || {
            if self.steps.heavy_barrier {
                heavy_barrier();
            }
        };
        match self.steps.wait {
            Wait::Acquiring => grace::wait(index, self.hazard_slots.iter(), heavy, |_| pause()),
            Wait::Relaxed => {
                heavy();
                for hazard_slot in &self.hazard_slots {
                    while hazard_slot.is_set() && pause() {}
                }
            }
            Wait::Not => grace::wait(index, self.hazard_slots.iter(), heavy, |_| false),
        }
        registration.unregistered.store(true, Ordering::Relaxed);
        let calls = registration.calls.load(Ordering::Relaxed);
        assert_eq!(user.seen(), calls, "the owner misses what a callback wrote");
        // SAFETY: loom panics if anybody else uses it meanwhile.
        registration
            .epoch
            .with_mut(|epoch| unsafe { *epoch = NEVER });
    }

    /// Gives the index to another user at once: the order in which indices are reused does not
    /// help.
    fn hand_over(&self, from: &User, to: &User, index: usize) {
        if self.steps.new_epoch_after_grace {
            self.unregister(from, index);
            self.register(to, index);
        } else {
            let epoch = self.epoch.advance();
            self.unregister(from, index);
            self.publish(to, index, epoch);
        }
    }

    /// Dispatches a call or its return to the user in slot `index`; returns the user that accepted
    /// it.
    fn offer(&self, thread: usize, index: usize, newest: u64) -> *const User {
        let hazard_slot = &self.hazard_slots[thread];
        let user = if self.steps.hazard == HazardFault::SetAfterLoad {
            let user = self.slots.acquire(&HazardSlot::new(), index);
            hazard_slot.set(index);
            user
        } else {
            self.slots.acquire(hazard_slot, index)
        };
        // SAFETY: users live as long as the world; loom watches their cells.
        let user = unsafe { &*user };
        if user.epoch() > newest {
            return std::ptr::null();
        }
        match self.steps.hazard {
            HazardFault::ClearedBeforeCall => hazard_slot.clear(),
            HazardFault::MovedOnBeforeCall => hazard_slot.set(index + 1),
            HazardFault::None | HazardFault::SetAfterLoad => {}
        }
        if user.call(thread) {
            user
        } else {
            std::ptr::null()
        }
    }

    fn enter(&self, thread: usize, slots: &[usize]) -> Frame {
        let epoch = self.epoch.now();
        let newest = if self.steps.epoch_at_entry {
            epoch
        } else {
            NEVER
        };
        let mut accepted = [std::ptr::null(); 2];
        for &index in slots {
            accepted[index] = self.offer(thread, index, newest);
        }
        self.hazard_slots[thread].clear();
        Frame { epoch, accepted }
    }

    fn leave(&self, thread: usize, frame: &Frame) {
        let newest = if self.steps.epoch_at_return {
            frame.epoch
        } else {
            NEVER
        };
        for (index, &accepted) in frame.accepted.iter().enumerate().rev() {
            // SAFETY: users live as long as the world.
            let Some(user) = (unsafe { accepted.as_ref() }) else {
                continue;
            };
            let delivered = self.offer(thread, index, newest);
            if delivered.is_null() {
                let unregistering = user.registration().unregistering.load(Ordering::Relaxed);
                assert!(
                    unregistering,
                    "a registered user accepted a call and missed its return"
                );
            } else {
                assert!(
                    std::ptr::eq(delivered, user),
                    "a user got the return of a call that another one had accepted"
                );
            }
        }
        self.hazard_slots[thread].clear();
    }

    /// Starts a thread that makes one traced call.
    fn caller(self: &Arc<Self>, thread: usize, slots: &'static [usize]) -> thread::JoinHandle<()> {
        let world = Arc::clone(self);
        thread::spawn(move || {
            let frame = world.enter(thread, slots);
            world.leave(thread, &frame);
        })
    }
}

/// Acts like `membarrier` on each running thread. Loom's light barrier is already a full fence, so
/// only one on the writer's side is missing.
fn heavy_barrier() {
    fence(Ordering::SeqCst);
}

fn pause() -> bool {
    thread::yield_now();
    true
}

fn join(threads: impl IntoIterator<Item = thread::JoinHandle<()>>) {
    for thread in threads {
        thread.join().unwrap();
    }
}

// Unregister against entry and return, and the value that the owner gets.

fn unregister_during_calls(steps: Steps, callers: usize) {
    loom::model(move || {
        let world = World::new(steps);
        world.register(&world.a, 0);
        let threads: Vec<_> = (0..callers)
            .map(|thread| world.caller(thread, &[0]))
            .collect();
        world.unregister(&world.a, 0);
        join(threads);
    });
}

#[test]
fn no_callback_runs_after_unregister_and_the_value_comes_back_whole() {
    unregister_during_calls(ALL, 1);
}

#[test]
fn no_callback_of_two_threads_runs_after_unregister() {
    unregister_during_calls(ALL, 2);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn without_heavy_barrier_a_callback_runs_after_unregister() {
    let steps = Steps {
        heavy_barrier: false,
        ..ALL
    };
    unregister_during_calls(steps, 1);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn without_waiting_for_hazard_slots_a_callback_runs_after_unregister() {
    let steps = Steps {
        wait: Wait::Not,
        ..ALL
    };
    unregister_during_calls(steps, 1);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn with_the_hazard_slot_set_after_the_load_a_callback_runs_after_unregister() {
    let steps = Steps {
        hazard: HazardFault::SetAfterLoad,
        ..ALL
    };
    unregister_during_calls(steps, 1);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn with_the_hazard_slot_cleared_early_a_callback_runs_after_unregister() {
    let steps = Steps {
        hazard: HazardFault::ClearedBeforeCall,
        ..ALL
    };
    unregister_during_calls(steps, 1);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn without_acquire_on_the_hazard_slot_the_value_comes_back_torn() {
    let steps = Steps {
        wait: Wait::Relaxed,
        ..ALL
    };
    unregister_during_calls(steps, 1);
}

// The fast path: a thread that calls one user over and over leaves its hazard slot, which counts
// only while the thread is inside; and what is said of a slot's user holds for the one that is
// called.

/// Fault of a thread on the fast path.
#[derive(Clone, Copy, Debug, PartialEq)]
enum FastFault {
    None,
    /// It leaves before the callback ends.
    LeavesEarly,
    /// The word about the new user is written when the slot already has the user's number.
    SaidLate,
    /// The new user is said to be out of order when the slot already has the user's number.
    OrderedLate,
    /// The thread reads the word before it reads the number.
    AsksEarly,
}

/// True while a thread is inside, and its hazard slot.
#[derive(Debug)]
struct Inside {
    entered: AtomicU64,
    hazard_slot: HazardSlot,
}

impl HasHazardSlot for Inside {
    fn is_in(&self, index: usize) -> bool {
        self.entered.load(Ordering::Acquire) != 0 && self.hazard_slot.is(index)
    }
}

/// A slot changes hands from a fast-path user to one that is not, and that is out of order, while a
/// thread makes two calls.
fn fast_path(fault: FastFault) {
    loom::model(move || {
        let world = World::new(ALL);
        let eligible = Arc::new(Eligible::new());
        eligible.set(0, true);
        let order = Arc::new(Order::new());
        let ranks = Ranks::new(std::array::from_fn(|slot| slot as u8));
        world.register(&world.a, 0);
        let inside = Arc::new(Inside {
            entered: AtomicU64::new(0),
            hazard_slot: HazardSlot::new(),
        });
        let caller = {
            let (world, eligible, inside) = (world.clone(), eligible.clone(), inside.clone());
            let order = order.clone();
            thread::spawn(move || {
                for _ in 0..2 {
                    let early = eligible.is_set(0);
                    let newest = world.epoch.now();
                    let is_eligible = match fault {
                        FastFault::AsksEarly => early,
                        _ => {
                            fence(Ordering::Acquire);
                            eligible.is_set(0)
                        }
                    };
                    fence(Ordering::Acquire);
                    let is_ordered = order.counts_for(1);
                    inside.entered.store(1, Ordering::Relaxed);
                    if inside.hazard_slot.get() != 0 {
                        inside.hazard_slot.set(0);
                    }
                    // With the light barrier; the hazard slot is the thread's own.
                    let user = world.slots.acquire(&HazardSlot::new(), 0);
                    // SAFETY: users live as long as the world; loom watches their cells.
                    let user = unsafe { &*user };
                    if user.epoch() <= newest {
                        let is_a = std::ptr::eq(user, &world.a);
                        assert!(is_a || !is_eligible, "a user is taken for a fast-path one");
                        assert!(is_a || is_ordered, "a user is taken for one in order");
                        if fault == FastFault::LeavesEarly {
                            inside.entered.store(0, Ordering::Release);
                        }
                        user.call(0);
                    }
                    // Release: the callback is over.
                    inside.entered.store(0, Ordering::Release);
                }
            })
        };
        world.slots.retire(0);
        grace::wait(0, std::iter::once(&*inside), heavy_barrier, |_| pause());
        let a = world.a.registration();
        a.unregistered.store(true, Ordering::Relaxed);
        assert_eq!(world.a.seen(), a.calls.load(Ordering::Relaxed));
        if fault != FastFault::SaidLate {
            eligible.set(0, false);
        }
        if fault != FastFault::OrderedLate {
            order.set(0, true, ranks);
        }
        let epoch = world.epoch.advance();
        world.publish(&world.b, 0, epoch);
        eligible.set(0, false);
        order.set(0, true, ranks);
        join([caller]);
    });
}

#[test]
fn an_abandoned_hazard_slot_keeps_no_user_and_fast_path_users_are_recognized() {
    fast_path(FastFault::None);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn outside_before_the_callback_is_done_it_runs_after_unregister() {
    fast_path(FastFault::LeavesEarly);
}

#[test]
#[should_panic(expected = "a user is taken for one in order")]
fn said_too_late_a_user_is_taken_for_one_in_order() {
    fast_path(FastFault::OrderedLate);
}

#[test]
#[should_panic(expected = "a user is taken for a fast-path one")]
fn said_too_late_a_user_is_taken_for_a_fast_path_one() {
    fast_path(FastFault::SaidLate);
}

#[test]
#[should_panic(expected = "a user is taken for a fast-path one")]
fn asked_too_early_a_user_is_taken_for_a_fast_path_one() {
    fast_path(FastFault::AsksEarly);
}

// One hazard slot serves all slots: moving on to the next user also ends the callback of the
// previous one.

fn unregister_while_the_hazard_slot_moves_on(steps: Steps) {
    loom::model(move || {
        let world = World::new(steps);
        world.register(&world.a, 0);
        world.register(&world.b, 1);
        let thread = world.caller(0, &[0, 1]);
        world.unregister(&world.a, 0);
        join([thread]);
        assert_eq!(
            world.b.seen(),
            2,
            "the user that stayed gets the entry and the return"
        );
    });
}

#[test]
fn moving_the_hazard_slot_to_the_next_slot_ends_the_previous_callback() {
    unregister_while_the_hazard_slot_moves_on(ALL);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn with_the_hazard_slot_moved_on_early_a_callback_runs_after_unregister() {
    let steps = Steps {
        hazard: HazardFault::MovedOnBeforeCall,
        ..ALL
    };
    unregister_while_the_hazard_slot_moves_on(steps);
}

// Epochs.

fn register_during_a_call(steps: Steps) {
    loom::model(move || {
        let world = World::new(steps);
        let thread = world.caller(0, &[0]);
        world.register(&world.a, 0);
        join([thread]);
        assert_ne!(world.a.seen(), 1, "an entry without its return");
    });
}

#[test]
fn a_user_registered_during_a_call_gets_both_entry_and_return_or_neither() {
    register_during_a_call(ALL);
}

#[test]
#[should_panic(expected = "a registered user accepted a call and missed its return")]
fn without_the_epoch_at_entry_a_new_user_misses_a_return() {
    let steps = Steps {
        epoch_at_entry: false,
        ..ALL
    };
    register_during_a_call(steps);
}

fn reuse_a_slot_during_calls(steps: Steps, callers: usize) {
    loom::model(move || {
        let world = World::new(steps);
        world.register(&world.a, 0);
        let threads: Vec<_> = (0..callers)
            .map(|thread| world.caller(thread, &[0]))
            .collect();
        world.hand_over(&world.a, &world.b, 0);
        join(threads);
    });
}

#[test]
fn the_new_owner_of_a_slot_gets_only_returns_of_its_own_entries() {
    reuse_a_slot_during_calls(ALL, 1);
}

#[test]
fn the_new_owner_of_a_slot_gets_only_returns_of_its_own_entries_from_two_threads() {
    reuse_a_slot_during_calls(ALL, 2);
}

#[test]
#[should_panic(expected = "a user got the return of a call that another one had accepted")]
fn without_the_epoch_at_return_the_new_owner_gets_a_foreign_return() {
    let steps = Steps {
        epoch_at_return: false,
        ..ALL
    };
    reuse_a_slot_during_calls(steps, 1);
}

/// A frame of the old owner could be as new as the new owner: the number must be taken after the
/// grace period, not only before the slot is published.
#[test]
#[should_panic(expected = "a user got the return of a call that another one had accepted")]
fn with_the_epoch_taken_before_the_grace_period_the_new_owner_gets_a_foreign_return() {
    let steps = Steps {
        new_epoch_after_grace: false,
        ..ALL
    };
    reuse_a_slot_during_calls(steps, 1);
}

// A user whose callback panicked is retired by the thread that it panicked in.

#[derive(Clone, Copy, Debug, PartialEq)]
enum Retire {
    /// As in `dispatch::refused`.
    MarkedAndCompared,
    Blindly,
}

fn panic_while_the_slot_changes_hands(retire: Retire) {
    loom::model(move || {
        let world = World::new(ALL);
        world.register(&world.a, 0);
        let thread = thread::spawn({
            let world = Arc::clone(&world);
            move || {
                let hazard_slot = &world.hazard_slots[0];
                let user = world.slots.acquire(hazard_slot, 0);
                if std::ptr::eq(user, &world.a) {
                    match retire {
                        Retire::MarkedAndCompared => world.slots.retire_if(0, user),
                        Retire::Blindly => {
                            hazard_slot.clear();
                            world.slots.retire(0);
                        }
                    }
                }
                hazard_slot.clear();
            }
        });
        world.hand_over(&world.a, &world.b, 0);
        join([thread]);
        let owner = world.slots.acquire(&world.hazard_slots[0], 0);
        assert!(
            std::ptr::eq(owner, &world.b),
            "the new owner of the slot was retired"
        );
    });
}

#[test]
fn a_panic_retires_only_the_user_that_panicked() {
    panic_while_the_slot_changes_hands(Retire::MarkedAndCompared);
}

#[test]
#[should_panic(expected = "the new owner of the slot was retired")]
fn with_a_blind_retire_after_the_hazard_slot_is_cleared_a_panic_retires_the_new_owner() {
    panic_while_the_slot_changes_hands(Retire::Blindly);
}

// The list of threads. `thread::Threads` cannot be built for loom, because the state of a thread
// holds types that loom does not know; this is its list with the same orderings.

#[derive(Debug)]
struct Node {
    hazard_slot: HazardSlot,
    next: AtomicPtr<Node>,
    /// Stands for the rest of the state when it is published.
    made: UnsafeCell<bool>,
}

impl Node {
    fn new() -> Self {
        Self {
            hazard_slot: HazardSlot::new(),
            next: AtomicPtr::new(std::ptr::null_mut()),
            made: UnsafeCell::new(false),
        }
    }
}

#[derive(Debug)]
struct Attaching {
    world: Arc<World>,
    head: AtomicPtr<Node>,
    nodes: [Node; 2],
}

// SAFETY: loom watches the cells.
unsafe impl Sync for Attaching {}
// SAFETY: loom watches the cells.
unsafe impl Send for Attaching {}

impl Attaching {
    /// As in `Threads::push`.
    fn push(&self, node: &Node) {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            node.next.store(head, Ordering::Relaxed);
            match self.head.compare_exchange_weak(
                head,
                std::ptr::from_ref(node).cast_mut(),
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// As in `Threads::iter`, which reads the head when it is called, not at the first element.
    fn iter(&self) -> impl Iterator<Item = &Node> {
        let head = self.head.load(Ordering::Acquire);
        // SAFETY: the nodes live as long as the list.
        std::iter::successors(unsafe { head.as_ref() }, |node| {
            // SAFETY: the nodes live as long as the list.
            unsafe { node.next.load(Ordering::Relaxed).as_ref() }
        })
    }

    /// Attaches a thread, then dispatches one entry to slot 0.
    fn attach_and_call(&self, thread: usize) {
        let node = &self.nodes[thread];
        // SAFETY: loom panics if anybody else uses it meanwhile.
        node.made.with_mut(|made| unsafe { *made = true });
        self.push(node);
        let user = self.world.slots.acquire(&node.hazard_slot, 0);
        // SAFETY: users live as long as the world.
        unsafe { (*user).call(thread) };
        node.hazard_slot.clear();
    }
}

fn attach_during_unregister(head_after_heavy_barrier: bool) {
    loom::model(move || {
        let list = Arc::new(Attaching {
            world: World::new(ALL),
            head: AtomicPtr::new(std::ptr::null_mut()),
            nodes: [Node::new(), Node::new()],
        });
        let user = &list.world.a;
        list.world.register(user, 0);
        let threads = [0, 1].map(|thread| {
            let list = Arc::clone(&list);
            thread::spawn(move || list.attach_and_call(thread))
        });

        list.world.slots.retire(0);
        if head_after_heavy_barrier {
            // As in `Fgraph::wait_for_grace`.
            heavy_barrier();
            for node in list.iter() {
                // SAFETY: loom panics if anybody writes it meanwhile.
                assert!(node.made.with(|made| unsafe { *made }));
                grace::wait(0, std::iter::once(&node.hazard_slot), || (), |_| pause());
            }
        } else {
            let hazard_slots = list.iter().map(|node| &node.hazard_slot);
            grace::wait(0, hazard_slots, heavy_barrier, |_| pause());
        }
        let registration = user.registration();
        // SAFETY: loom panics if anybody else uses it meanwhile.
        registration
            .epoch
            .with_mut(|epoch| unsafe { *epoch = NEVER });

        join(threads);
        let listed: Vec<_> = list.iter().map(std::ptr::from_ref).collect();
        assert_eq!(listed.len(), 2, "a thread was lost from the list");
        assert_ne!(listed[0], listed[1]);
    });
}

#[test]
fn a_thread_that_attaches_during_unregister_is_waited_for_or_finds_the_stub() {
    attach_during_unregister(true);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn with_the_list_read_before_the_heavy_barrier_an_attaching_thread_is_missed() {
    attach_during_unregister(false);
}

// Foundation of the other models: loom does let a store pass a later load of another place, unless
// both sides have their barrier.

fn mark_against_retire(writer_fence: bool) {
    loom::model(move || {
        let world = World::new(ALL);
        world.register(&world.a, 0);
        let thread = thread::spawn({
            let world = Arc::clone(&world);
            move || {
                world.hazard_slots[0].set(0);
                light_barrier();
                // The hazard slot is not cleared: either the hazard slot is seen, or the stub is.
                std::ptr::eq(world.slots.acquire(&HazardSlot::new(), 0), &STUB)
            }
        });
        world.slots.retire(0);
        if writer_fence {
            heavy_barrier();
        }
        let hazard_seen = world.hazard_slots[0].is(0);
        assert!(
            thread.join().unwrap() | hazard_seen,
            "neither side saw the other"
        );
    });
}

#[test]
fn with_both_barriers_the_hazard_slot_or_the_stub_is_seen() {
    mark_against_retire(true);
}

#[test]
#[should_panic(expected = "neither side saw the other")]
fn without_the_heavy_barrier_neither_the_hazard_slot_nor_the_stub_is_seen() {
    mark_against_retire(false);
}

// A thread that ends in a callback never clears its hazard slot: the wait ends when the kernel no
// longer knows the thread.

fn end_in_a_callback(known_gone_early: bool) {
    loom::model(move || {
        let world = World::new(ALL);
        world.register(&world.a, 0);
        // The kernel's report on a thread, which comes after all work of the thread.
        let gone = Arc::new(loom::sync::atomic::AtomicBool::new(false));
        let thread = thread::spawn({
            let (world, gone) = (Arc::clone(&world), Arc::clone(&gone));
            move || {
                let hazard_slot = &world.hazard_slots[0];
                hazard_slot.set(0);
                light_barrier();
                if known_gone_early {
                    gone.store(true, Ordering::Release);
                }
                // SAFETY: users are never freed here.
                let user = unsafe { &*world.slots.acquire(&HazardSlot::new(), 0) };
                if !std::ptr::eq(user, &STUB) {
                    user.epoch();
                }
                gone.store(true, Ordering::Release);
            }
        });
        world.slots.retire(0);
        grace::wait(0, world.hazard_slots.iter(), heavy_barrier, |_| {
            thread::yield_now();
            !gone.load(Ordering::Acquire)
        });
        let registration = world.a.registration();
        // SAFETY: loom panics if anybody else uses it meanwhile.
        registration
            .epoch
            .with_mut(|epoch| unsafe { *epoch = NEVER });
        thread.join().unwrap();
    });
}

#[test]
fn a_thread_that_ends_in_a_callback_is_waited_for_until_it_is_gone() {
    end_in_a_callback(false);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn with_a_thread_taken_for_gone_early_its_callback_runs_after_unregister() {
    end_in_a_callback(true);
}

// Shadow stacks that move from thread to thread.

/// Two threads each find a spare stack, and put a frame on it.
fn hand_a_stack_over(take: fn(&Claim, *const u8) -> bool) {
    loom::model(move || {
        let claim = Arc::new(Claim::new());
        let frames = Arc::new(UnsafeCell::new(0_u32));
        let names = Arc::new([1_u8, 2]);
        let use_it = move |claim: &Claim, frames: &UnsafeCell<u32>, name: *const u8| {
            if take(claim, name) {
                // SAFETY: loom watches.
                frames.with_mut(|frames| unsafe { *frames += 1 });
                claim.give_back(name);
            }
        };
        let other = thread::spawn({
            let (claim, frames, names) = (claim.clone(), frames.clone(), names.clone());
            move || use_it(&claim, &frames, &names[1])
        });
        use_it(&claim, &frames, &names[0]);
        other.join().unwrap();
    });
}

#[test]
fn one_thread_at_a_time_changes_a_stack() {
    hand_a_stack_over(|claim, name| claim.take(name));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn without_asking_two_threads_change_a_stack() {
    hand_a_stack_over(|claim, name| {
        claim.take(name);
        true
    });
}

/// Steps of a filter by thread that are executed; a twin leaves one out.
#[derive(Clone, Copy, Debug)]
struct FilterSteps {
    /// The writer changes the setting for new threads before it iterates over the states.
    new_threads_first: bool,
    /// The thread checks once more for a state that is reserved for it.
    looks_again: bool,
    /// The writer counts the state that it reserves before it changes anything.
    counts_first: bool,
}

const ALL_FILTER_STEPS: FilterSteps = FilterSteps {
    new_threads_first: true,
    looks_again: true,
    counts_first: true,
};

/// A user starts to watch only thread `wanted`, while thread 7 takes its state. Returns true if the
/// user watches thread 7 in the end.
fn filter_threads_while_one_begins(wanted: u32, steps: FilterSteps) {
    const SLOT: usize = 3;
    loom::model(move || {
        let shared = Arc::new((Watched::new(), [Owner::new(), Owner::new()]));
        let begins = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (watched, states) = &*shared;
                let is_ours = |state: &&Owner| state.take_reserved(7, watched);
                let look = || states.iter().find(is_ours);
                let reserved = || watched.may_be_reserved(7).then(look).flatten();
                let claimed = || {
                    let claimed = states.iter().find(|state| state.claim(7, watched));
                    let claimed = claimed.expect("there are two");
                    fence(Ordering::SeqCst);
                    let reserved = steps.looks_again.then(reserved).flatten();
                    if reserved.is_some() {
                        claimed.release(7);
                    }
                    reserved.unwrap_or(claimed)
                };
                let state = reserved().unwrap_or_else(claimed);
                states
                    .iter()
                    .position(|one| std::ptr::eq(one, state))
                    .unwrap()
            })
        };
        let (watched, states) = &*shared;
        if wanted == 7 && states.iter().all(|state| state.id() != 7) {
            let free = states.iter().find(|state| state.claim(1, watched));
            let free = free.expect("there are two");
            if steps.counts_first {
                watched.count_reserved(7);
            }
            free.reserve_for(7);
        }
        let set_states = || {
            for state in states {
                state.set_user(SLOT, |id| id == wanted);
            }
        };
        if steps.new_threads_first {
            watched.set(SLOT, false);
            fence(Ordering::SeqCst);
            set_states();
        } else {
            set_states();
            watched.set(SLOT, false);
        }
        if !steps.counts_first {
            watched.count_reserved(7);
        }
        let state = begins.join().unwrap();
        let is_watched = states[state].users() & 1 << SLOT != 0;
        assert_eq!(is_watched, wanted == 7, "the user watches the wrong thread");
    });
}

#[test]
fn a_thread_that_begins_while_it_is_left_out_is_not_watched() {
    filter_threads_while_one_begins(8, ALL_FILTER_STEPS);
}

#[test]
fn a_thread_that_begins_while_it_is_named_is_watched() {
    filter_threads_while_one_begins(7, ALL_FILTER_STEPS);
}

#[test]
#[should_panic(expected = "the user watches the wrong thread")]
fn with_new_threads_told_last_one_that_is_left_out_is_watched() {
    let steps = FilterSteps {
        new_threads_first: false,
        ..ALL_FILTER_STEPS
    };
    filter_threads_while_one_begins(8, steps);
}

#[test]
#[should_panic(expected = "the user watches the wrong thread")]
fn without_a_second_look_a_thread_that_is_named_is_not_watched() {
    let steps = FilterSteps {
        looks_again: false,
        ..ALL_FILTER_STEPS
    };
    filter_threads_while_one_begins(7, steps);
}

#[test]
#[should_panic(expected = "the user watches the wrong thread")]
fn with_its_state_counted_last_a_thread_that_is_named_is_not_watched() {
    let steps = FilterSteps {
        counts_first: false,
        ..ALL_FILTER_STEPS
    };
    filter_threads_while_one_begins(7, steps);
}

/// State in a list of free ones, with data of its thread alone.
#[derive(Debug)]
#[repr(align(4096))]
struct FreeState {
    next: AtomicPtr<Self>,
    own: UnsafeCell<u32>,
}

// SAFETY: loom watches the cell.
unsafe impl Sync for FreeState {}

// SAFETY: the state has a word of its own for the link.
unsafe impl Linked for FreeState {
    fn next_free(&self) -> &AtomicPtr<Self> {
        &self.next
    }
}

/// Threads take states and return them. With `STEP` 0 the list does not count.
fn take_states<const STEP: u64>() {
    loom::model(|| {
        let list = Arc::new(FreeList::<FreeState, STEP>::new());
        for _ in 0..2 {
            // It must live as long as the program, like real states.
            list.push(Box::leak(Box::new(FreeState {
                next: AtomicPtr::new(std::ptr::null_mut()),
                own: UnsafeCell::new(0),
            })));
        }
        let take = |list: &FreeList<FreeState, STEP>| {
            let state = list.pop()?;
            // SAFETY: loom panics if another thread uses it meanwhile.
            state.own.with_mut(|own| unsafe { *own += 1 });
            Some(state)
        };
        let other = {
            let list = Arc::clone(&list);
            thread::spawn(move || {
                let taken = [take(&list), take(&list)];
                if let [Some(first), _] = taken {
                    list.push(first);
                }
                // SAFETY: loom panics if another thread uses it meanwhile.
                taken[1].map(|second| second.own.with_mut(|own| unsafe { *own += 1 }));
            })
        };
        take(&list);
        take(&list);
        other.join().unwrap();
    });
}

#[test]
fn a_free_state_is_given_to_one_thread() {
    take_states::<1>();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn without_the_count_a_free_state_is_given_to_two_threads() {
    take_states::<0>();
}

/// A call returns in a thread that does not have its stack, while the thread that has it takes the
/// frame for dead, drops it, and reuses the memory.
fn return_while_dropped(claims: bool) {
    const WORD: u64 = 5 << 16 | 1;
    loom::model(move || {
        let word = Arc::new(AtomicU64::new(WORD));
        // The rest of the frame.
        let frame = Arc::new(UnsafeCell::new(0_u32));
        let teller = thread::spawn({
            let (word, frame) = (word.clone(), frame.clone());
            move || {
                let told = claim::begin_return(&word);
                if told.is_some() {
                    // SAFETY: loom panics if another thread writes it meanwhile.
                    frame.with(|frame| unsafe { *frame });
                    claim::end_return(&word);
                }
                told
            }
        });
        let ended = if claims {
            claim::end(&word)
        } else {
            Some(word.swap(0, Ordering::AcqRel))
        };
        if ended.is_some() {
            // SAFETY: loom panics if another thread uses it meanwhile.
            frame.with_mut(|frame| unsafe { *frame = 1 });
        }
        let told = teller.join().unwrap();
        let lost = ended.is_some_and(|word| word != 0);
        assert!(told.is_none_or(|told| told == WORD));
        assert!(told.is_some() != lost, "told {told:?}, lost {lost}");
    });
}

#[test]
fn a_return_is_either_dispatched_or_lost_and_its_frame_stays_meanwhile() {
    return_while_dropped(true);
}

#[test]
#[should_panic]
fn with_a_frame_dropped_unheeded_its_memory_is_used_while_it_is_told() {
    return_while_dropped(false);
}

// The table of spare stacks: read without a lock while an entry changes.

/// A reader reads the two bounds of an entry while a writer moves both.
fn read_while_an_entry_changes(looks_again: bool, is_announced: bool) {
    loom::model(move || {
        let version = Arc::new(Version::new());
        let bounds = Arc::new([AtomicU64::new(1), AtomicU64::new(1)]);
        let writer = thread::spawn({
            let (version, bounds) = (version.clone(), bounds.clone());
            move || {
                let work = || {
                    for bound in bounds.iter() {
                        bound.store(2, Ordering::Relaxed);
                    }
                };
                if is_announced {
                    version.rewrite(work);
                } else {
                    work();
                }
            }
        });
        let read = || [0, 1].map(|index: usize| bounds[index].load(Ordering::Relaxed));
        let [low, end] = if looks_again {
            let wait = || {
                thread::yield_now();
                Writer::AtWork
            };
            version.read(read, wait).unwrap()
        } else {
            read()
        };
        assert_eq!(low, end, "the bounds are of two entries");
        writer.join().unwrap();
    });
}

#[test]
fn an_entry_is_read_whole_while_it_changes() {
    read_while_an_entry_changes(true, true);
}

#[test]
#[should_panic(expected = "the bounds are of two entries")]
fn without_a_second_look_at_the_version_an_entry_is_read_in_halves() {
    read_while_an_entry_changes(false, true);
}

#[test]
#[should_panic(expected = "the bounds are of two entries")]
fn with_a_change_that_is_not_announced_an_entry_is_read_in_halves() {
    read_while_an_entry_changes(true, false);
}

/// A reader checks if the writer is gone, which ends after its change.
fn read_while_the_writer_ends(asks: bool) {
    loom::model(move || {
        let version = Arc::new(Version::new());
        let (word, lives) = (Arc::new(AtomicU64::new(1)), Arc::new(AtomicU64::new(1)));
        let writer = thread::spawn({
            let (version, word, lives) = (version.clone(), word.clone(), lives.clone());
            move || {
                version.rewrite(|| word.store(2, Ordering::Relaxed));
                lives.store(0, Ordering::Release);
            }
        });
        let wait = || {
            thread::yield_now();
            match asks && lives.load(Ordering::Acquire) == 1 {
                true => Writer::AtWork,
                false => Writer::Gone,
            }
        };
        let read = version.read(|| word.load(Ordering::Relaxed), wait);
        assert!(read.is_some(), "given up for nothing");
        writer.join().unwrap();
    });
}

#[test]
fn a_writer_that_has_ended_after_its_change_is_waited_for() {
    read_while_the_writer_ends(true);
}

#[test]
#[should_panic(expected = "given up for nothing")]
fn without_asking_for_the_writer_a_reader_gives_up() {
    read_while_the_writer_ends(false);
}

// A value that is replaced and freed while it is read.

/// A reader reads the value while a writer replaces it, and frees it if it sees no reader.
fn read_while_replaced(is_counted: bool) {
    loom::model(move || {
        let readers = Arc::new(Readers::new());
        let current = Arc::new(AtomicU64::new(0));
        let values = Arc::new([UnsafeCell::new(1), UnsafeCell::new(1)]);
        let writer = thread::spawn({
            let (readers, current, values) = (readers.clone(), current.clone(), values.clone());
            move || {
                current.swap(1, Ordering::SeqCst);
                if readers.are_gone() {
                    // SAFETY: loom panics if anybody reads it meanwhile.
                    values[0].with_mut(|value| unsafe { *value = 0 });
                }
            }
        });
        let reader = is_counted.then(|| readers.enter());
        let at = current.load(Ordering::SeqCst);
        // SAFETY: loom panics if anybody writes it meanwhile.
        let value = values[at as usize].with(|value| unsafe { *value });
        assert_eq!(value, 1, "the value was freed");
        drop(reader);
        writer.join().unwrap();
    });
}

#[test]
fn a_value_is_not_freed_while_it_is_read() {
    read_while_replaced(true);
}

#[test]
#[should_panic]
fn without_being_counted_a_reader_reads_what_is_freed() {
    read_while_replaced(false);
}

// A fork while another thread patches: the child has a copy of the memory, and not the other
// thread.

/// Two sites are patched together, and a child restores them if they are.
fn fork_during_patching(locked: bool) {
    loom::model(move || {
        let lock = Arc::new(loom::sync::Mutex::new(()));
        let sites = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let patcher = thread::spawn({
            let (lock, sites) = (lock.clone(), sites.clone());
            move || {
                let _locked = lock.lock().unwrap();
                for site in sites.iter() {
                    site.store(1, Ordering::SeqCst);
                }
            }
        });
        // Memory that the child gets.
        let before = locked.then(|| lock.lock().unwrap());
        let [first, second] = [0, 1].map(|index| sites[index].load(Ordering::SeqCst));
        drop(before);
        assert_eq!(first, second, "the child has half of a batch");
        patcher.join().unwrap();
    });
}

#[test]
fn a_child_has_whole_batches() {
    fork_during_patching(true);
}

#[test]
#[should_panic(expected = "the child has half of a batch")]
fn without_the_lock_a_child_has_half_of_a_batch() {
    fork_during_patching(false);
}
