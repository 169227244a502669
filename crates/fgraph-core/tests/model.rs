//! Random programs against a model. Users are registered and unregistered while functions call,
//! return, jump out of several calls at once, call in tail position and are unwound. The shadow
//! stack is so small that it overflows. The callbacks of the users, and the counters, must equal
//! the model's.
//!
//! The model keeps lists of calls where the shadow stack keeps bytes. The two share only the sizes
//! of header and trailer, which determine when the stack is full.

#![cfg(not(loom))]

mod common;

use std::cell::RefCell;
use std::mem;
use std::ptr;
use std::sync::atomic::Ordering;

use common::{StdCatch, site};
use fgraph_core::counters::Counters;
use fgraph_core::dispatch;
use fgraph_core::frame::{FRAME_ALIGN, Frame, HEADER, TRAILER};
use fgraph_core::order::Ranks;
use fgraph_core::registration::{Header, Registration};
use fgraph_core::regs::{EntryRegs, Link, ReturnRegs};
use fgraph_core::thread::Thread;
use fgraph_core::{Entry, Fgraph, FgraphOps, MAX_USERS, Return, Site};
use proptest::prelude::*;

// SAFETY: this program is the one runtime of its process.
static FGRAPH: &Fgraph = unsafe { fgraph_core::FGRAPH.get() };

/// An address that is said to be an arena, with its span.
const ARENA: [usize; 2] = [0x4000, 0x1000];
/// Return address of the machine layer's calls.
const RETURN_POINT: usize = ARENA[0] + ARENA[1] + 0xf04;
/// Bytes of the shadow stack: the sentinel and a few calls.
const SHADOW: usize = 1536;
/// Number of calls that the machine stack has room for.
const LEVELS: usize = 40;

#[derive(Clone, Debug)]
enum Step {
    /// The current function calls another, in tail position or not.
    Call { tail: bool },
    /// The current function calls an entry-only one.
    EntryOnly,
    /// The current function calls another, and a signal handler leaves a callback for it by a jump.
    LeaveCallback,
    /// The current function returns.
    Return,
    /// The current function leaves `calls` calls by a jump.
    Jump { calls: usize },
    /// The `calls` innermost calls are unwound.
    Unwind { calls: usize },
    /// A user with data of `SIZES[size]` bytes takes a free slot. It is out of order if it has a
    /// priority; otherwise it is asked by its slot.
    Register {
        slot: usize,
        size: usize,
        priority: Option<usize>,
    },
    /// The user in a slot is unregistered.
    Unregister { slot: usize },
}

const SIZES: [usize; 4] = [0, 8, 24, 200];

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => any::<bool>().prop_map(|tail| Step::Call { tail }),
        1 => Just(Step::EntryOnly),
        1 => Just(Step::LeaveCallback),
        6 => Just(Step::Return),
        1 => (1..8usize).prop_map(|calls| Step::Jump { calls }),
        1 => (1..5usize).prop_map(|calls| Step::Unwind { calls }),
        2 => (0..4usize, 0..SIZES.len(), prop::option::weighted(0.3, 0..MAX_USERS))
            .prop_map(|(slot, size, priority)| Step::Register { slot: slot * 5, size, priority }),
        1 => (0..4usize).prop_map(|slot| Step::Unregister { slot: slot * 5 }),
    ];
    prop::collection::vec(step, 1..120)
}

/// Callback of a user.
#[derive(Clone, Debug, PartialEq)]
enum Told {
    Entry {
        user: u64,
        call: u64,
        depth: usize,
        ancestors: Vec<u64>,
    },
    Return {
        user: u64,
        call: u64,
        depth: usize,
        ancestors: Vec<u64>,
        unwinding: bool,
    },
}

/// Number of enclosing calls that a user reads.
const GENERATIONS: usize = 3;

/// True if user `user` reads the calls around `call`.
fn asks(user: u64, call: u64) -> bool {
    (user + call) % 4 < 3
}

thread_local! {
    static TOLD: RefCell<Vec<Told>> = const { RefCell::new(Vec::new()) };
}

/// True if user `user` wants the return of call `call`.
fn accepts(user: u64, call: u64) -> bool {
    !(user * 7 + call * 13).is_multiple_of(5)
}

/// User whose data is `N` bytes: the number of the call, repeated.
struct User<const N: usize>(u64);

fn data_of<const N: usize>(call: u64) -> [u8; N] {
    std::array::from_fn(|at| call.to_le_bytes()[at % 8])
}

fn call_of<const N: usize>(data: &[u8; N]) -> u64 {
    if N == 0 {
        return 0;
    }
    let call = u64::from_le_bytes(std::array::from_fn(|at| data[at]));
    assert_eq!(*data, data_of::<N>(call), "data is not what was stored");
    call
}

impl<const N: usize> FgraphOps for User<N> {
    type Data = [u8; N];

    fn entry(&self, call: &mut Entry<'_, [u8; N]>) -> Option<[u8; N]> {
        let number = call.arg(0)?;
        let asked = (0..GENERATIONS).take_while(|_| asks(self.0, number));
        let told = Told::Entry {
            user: self.0,
            call: number,
            depth: call.depth(),
            ancestors: asked
                .map_while(|generation| call.ancestor_data(generation).map(call_of))
                .collect(),
        };
        if asks(self.0, number) {
            let parent = call.parent_data().copied();
            assert_eq!(parent, call.parent_data_mut().map(|data| *data));
        }
        TOLD.with_borrow_mut(|log| log.push(told));
        accepts(self.0, number).then(|| data_of(number))
    }

    fn ret(&self, call: &mut Return<'_, [u8; N]>, data: [u8; N]) {
        let asked = (0..GENERATIONS).take_while(|_| asks(self.0, call_of(&data)));
        let told = Told::Return {
            user: self.0,
            call: call_of(&data),
            depth: call.depth(),
            ancestors: asked
                .map_while(|generation| call.ancestor_data(generation).map(call_of))
                .collect(),
            unwinding: call.unwinding(),
        };
        TOLD.with_borrow_mut(|log| log.push(told));
    }
}

/// A registered user, in the model.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Owner {
    user: u64,
    size: usize,
    /// The priority of a user that is out of order.
    priority: Option<usize>,
}

/// Returns the slots in the order in which their users are asked.
fn ranked(owners: &[Option<Owner>; MAX_USERS]) -> [u8; MAX_USERS] {
    let priority = |slot: &u8| {
        let owner = owners[usize::from(*slot)];
        owner
            .and_then(|owner| owner.priority)
            .unwrap_or(usize::from(*slot))
    };
    let mut slots: [u8; MAX_USERS] = std::array::from_fn(|slot| slot as u8);
    slots.sort_by_key(priority);
    slots
}

/// Running call, in the model.
#[derive(Clone, Debug)]
struct Call {
    number: u64,
    /// Depth of its return address on the machine stack; the same as the caller's if it is a tail
    /// call.
    level: usize,
    /// Result of `enter`.
    frame: *mut Frame,
}

/// Returns the number of `calls` that remain when the `gone` innermost ones are left without a
/// return. Two calls with one return address are always left together.
fn left_by(calls: &[Call], gone: usize) -> usize {
    let mut left = calls.len().saturating_sub(gone);
    while left > 0
        && calls
            .get(left)
            .is_some_and(|call| call.level == calls[left - 1].level)
    {
        left -= 1;
    }
    left
}

/// A frame on the shadow stack, in the model.
#[derive(Clone, Debug)]
struct Kept {
    call: u64,
    level: usize,
    /// Slot and owner of the users that want the return, in the order in which they were asked.
    accepted: Vec<(usize, Owner)>,
    /// Start of the frame.
    start: usize,
    /// Number of live calls beneath it.
    depth: usize,
}

#[derive(Default)]
struct Model {
    owners: [Option<Owner>; MAX_USERS],
    calls: Vec<Call>,
    kept: Vec<Kept>,
    top: usize,
    depth: usize,
    told: Vec<Told>,
    counters: Counters,
}

impl Model {
    /// Returns the data of the enclosing frames that `owner` sees at `call`.
    fn ancestors(&self, kept: &[Kept], slot: usize, owner: Owner, call: u64) -> Vec<u64> {
        if !asks(owner.user, call) {
            return Vec::new();
        }
        let of_owner = |kept: &&Kept| kept.accepted.contains(&(slot, owner));
        let calls = kept.iter().rev().filter(of_owner).take(GENERATIONS);
        calls
            .map(|kept| if owner.size == 0 { 0 } else { kept.call })
            .collect()
    }

    fn pop(&mut self) -> Option<Kept> {
        let kept = self.kept.pop()?;
        self.top = kept.start;
        self.depth = kept.depth;
        Some(kept)
    }

    fn lose(&mut self) {
        if self.pop().is_some_and(|kept| !kept.accepted.is_empty()) {
            self.counters.lost += 1;
        }
    }

    fn enter(&mut self, number: u64, level: usize, tail: bool) {
        // A deeper level is a lower address.
        while self
            .kept
            .last()
            .is_some_and(|kept| kept.level > level || (kept.level == level && !tail))
        {
            self.lose();
        }
        let interested = self.owners.iter().any(Option::is_some);
        let mut end = self.top + HEADER;
        if end > SHADOW {
            self.counters.overrun += u64::from(interested);
            return;
        }
        let mut accepted = Vec::new();
        let mut owners = self.owners.iter().flatten();
        let is_ordered = owners.any(|owner| owner.priority.is_some());
        // The list of the users, behind the records.
        let list = if is_ordered { FRAME_ALIGN } else { 0 };
        for slot in ranked(&self.owners).map(usize::from) {
            let Some(owner) = self.owners[slot] else {
                continue;
            };
            let record = match owner.size {
                0 => 0,
                size => (size + TRAILER).next_multiple_of(FRAME_ALIGN),
            };
            if end + record + list > SHADOW {
                self.counters.unreserved += 1;
                continue;
            }
            self.told.push(Told::Entry {
                user: owner.user,
                call: number,
                depth: self.depth,
                ancestors: self.ancestors(&self.kept, slot, owner, number),
            });
            if accepts(owner.user, number) {
                accepted.push((slot, owner));
                end += record;
            }
        }
        if !accepted.is_empty() {
            end += list;
            self.kept.push(Kept {
                call: number,
                level,
                accepted,
                start: self.top,
                depth: self.depth,
            });
            self.top = end;
            self.depth += 1;
        }
    }

    fn returns(&mut self, number: u64, unwinding: bool) {
        let of_call = |kept: &Kept| kept.call == number;
        let index = self.kept.iter().position(of_call);
        let index = index.expect("the frame is there");
        // While a frame is unwound, frames beneath it stay.
        let stays = |kept: &Kept| unwinding && kept.accepted.is_empty();
        while self.kept.len() > index + 1 && !self.kept.last().is_some_and(stays) {
            self.lose();
        }
        let (below, kept) = (&self.kept[..index], &self.kept[index]);
        for &(slot, owner) in kept.accepted.iter().rev() {
            if self.owners[slot] == Some(owner) {
                let call = if owner.size == 0 { 0 } else { number };
                self.told.push(Told::Return {
                    user: owner.user,
                    call,
                    depth: kept.depth,
                    ancestors: self.ancestors(below, slot, owner, call),
                    unwinding,
                });
            }
        }
        if unwinding {
            // Its memory stays unchanged until it is found dead.
            self.depth = kept.depth;
            self.kept[index].accepted.clear();
            for kept in &mut self.kept[index..] {
                kept.depth = self.depth;
            }
        } else {
            self.pop();
        }
    }
}

/// Slot of a registration, the registration, and the function that frees it.
type Registered = (usize, *mut (), unsafe fn(*mut ()));

/// A machine with one thread, one function, and a stack of return addresses.
struct Machine {
    /// Leaked, and accessed by its addresses.
    stack: *mut [Link],
    thread: &'static Thread,
    site: &'static Site,
    users: Vec<Registered>,
}

impl Machine {
    fn new() -> Self {
        let [arena, span] = ARENA;
        if FGRAPH.points.span() == 0 {
            // SAFETY: calls of the model return to these addresses, where nothing is.
            unsafe {
                FGRAPH.points.set_span(span);
                assert!(FGRAPH.points.add(arena));
            }
        }
        let stack: Vec<Link> = (0..LEVELS)
            .map(|_| Link {
                saved: 0,
                return_address: 0,
            })
            .collect();
        let stack: *mut [Link] = stack.leak();
        // SAFETY: only this thread uses the state, after it was given memory.
        let thread: &'static Thread = Box::leak(Box::new(unsafe { Thread::new() }));
        let memory = vec![0u128; SHADOW / 16 + 1].leak().as_mut_ptr();
        let memory = memory
            .cast::<u8>()
            .wrapping_add(memory.cast::<u8>().align_offset(FRAME_ALIGN));
        // SAFETY: the memory was leaked for the thread.
        unsafe { thread.reset_thread_stack(memory.cast(), SHADOW) };
        thread.leave_stack();
        let low = stack.expose_provenance();
        let end = low + LEVELS * size_of::<Link>();
        thread.thread_stack.set_bounds(low, end);
        assert!(thread.enter_thread_stack());
        thread.errno.set(thread.no_errno());
        let site = site();
        Self {
            stack,
            thread,
            site,
            users: Vec::new(),
        }
    }

    fn register<const N: usize>(&mut self, slot: usize, user: u64, order: (bool, Ranks)) {
        unsafe fn free<const N: usize>(registration: *mut ()) {
            // SAFETY: the registration was boxed below, for the same N.
            drop(unsafe { Box::from_raw(registration.cast::<Registration<User<N>>>()) });
        }
        FGRAPH.order.set(slot, order.0, order.1);
        let epoch = FGRAPH.epoch.advance();
        let registration = Registration::new::<StdCatch>(User::<N>(user), slot, epoch, 1);
        let registration = Box::into_raw(Box::new(registration));
        // SAFETY: the registration was made for this slot; the only thread frees it after it was
        // retired.
        unsafe { FGRAPH.slots.publish(slot, registration.cast::<Header>()) };
        self.site.interest.fetch_or(1 << slot, Ordering::Relaxed);
        self.users.push((slot, registration.cast(), free::<N>));
    }

    fn unregister(&mut self, slot: usize) {
        self.site
            .interest
            .fetch_and(!(1 << slot), Ordering::Relaxed);
        FGRAPH.slots.retire(slot);
        let at = self
            .users
            .iter()
            .position(|user| user.0 == slot)
            .expect("it is registered");
        let (_, registration, free) = self.users.swap_remove(at);
        // SAFETY: the registration is out of its slot, and this is the only thread.
        unsafe { free(registration) };
    }

    fn enter(&mut self, number: u64, level: usize, tail: bool) -> *mut Frame {
        let return_address = if tail {
            RETURN_POINT
        } else {
            0x2000 + number as usize
        };
        // SAFETY: the stack has this number of links, which nothing refers to.
        let (link, return_slot_addr) = unsafe {
            let link = self.stack.cast::<Link>().add(LEVELS - 1 - level);
            (*link).return_address = return_address;
            (link, (&raw const (*link).return_address).addr())
        };
        // SAFETY: the fields are integers and pointers, for which zeros are valid.
        let mut regs: EntryRegs = unsafe { mem::zeroed() };
        regs.int[0] = number;
        regs.link = link;
        regs.site = self.site;
        regs.thread = self.thread;
        // SAFETY: the registers are those of a call of this thread; a frame is on its stack.
        unsafe {
            let (site, thread) = (self.site, self.thread);
            let (users, stamp) = FGRAPH.wanting(site, thread);
            let frame = dispatch::enter(&mut regs, site, thread, return_slot_addr, users, stamp);
            // Distinguishes it from a dead call before the machine layer continues.
            assert!(frame.is_null() || (*frame).return_address == (*regs.link).return_address);
            frame
        }
    }

    fn leave(&self, frame: *mut Frame) {
        // SAFETY: the fields are integers and pointers, for which zeros are valid.
        let mut regs: ReturnRegs = unsafe { mem::zeroed() };
        regs.frame = frame;
        regs.thread = self.thread;
        // SAFETY: the frame is that of the call that returns now.
        unsafe { dispatch::leave(&mut regs, frame, self.thread) };
    }
}

impl Machine {
    /// Leaves the entry that led to `frame` without its end. The next call must detect that.
    fn leave_callback(&self, frame: *mut Frame) {
        let thread = self.thread;
        thread.shadow.retract(frame);
        let low = thread.low.get();
        thread.entered_sp.store(low, Ordering::Relaxed);
        assert!(FGRAPH.is_stale(thread, low, low + 8));
        thread.entered_sp.store(0, Ordering::Relaxed);
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        for (slot, registration, free) in self.users.drain(..) {
            FGRAPH.slots.retire(slot);
            // SAFETY: the registration is out of its slot, and this is the only thread.
            unsafe { free(registration) };
        }
    }
}

fn run(steps: &[Step]) {
    let mut machine = Machine::new();
    let mut model = Model {
        // Behind the sentinel.
        top: HEADER,
        ..Model::default()
    };
    let mut number = 0;
    TOLD.take();
    for step in steps {
        match *step {
            Step::Call { tail } => {
                // Only a call whose caller was called by the machine layer returns to it.
                let tail = tail
                    && model
                        .calls
                        .last()
                        .is_some_and(|caller| !caller.frame.is_null());
                let level = match model.calls.last() {
                    None => 0,
                    Some(caller) if tail => caller.level,
                    Some(caller) => caller.level + 1,
                };
                if level == LEVELS {
                    continue;
                }
                number += 1;
                model.enter(number, level, tail);
                let frame = machine.enter(number, level, tail);
                let kept = model.kept.last().is_some_and(|kept| kept.call == number);
                assert_eq!(!frame.is_null(), kept, "whether somebody wants the return");
                model.calls.push(Call {
                    number,
                    level,
                    frame,
                });
            }
            Step::EntryOnly | Step::LeaveCallback => {
                let level = model.calls.last().map_or(0, |caller| caller.level + 1);
                if level == LEVELS {
                    continue;
                }
                number += 1;
                model.enter(number, level, false);
                let frame = machine.enter(number, level, false);
                if frame.is_null() {
                    continue;
                }
                model.pop();
                if matches!(step, Step::EntryOnly) {
                    machine.thread.retract(frame);
                } else {
                    machine.leave_callback(frame);
                }
            }
            Step::Return => {
                let Some(call) = model.calls.pop() else {
                    continue;
                };
                if !call.frame.is_null() {
                    model.returns(call.number, false);
                    machine.leave(call.frame);
                }
                // A caller that jumped to this one has not returned yet, so nothing is between.
            }
            Step::Jump { calls } => {
                model.calls.truncate(left_by(&model.calls, calls));
            }
            Step::Unwind { calls } => {
                for call in model
                    .calls
                    .split_off(left_by(&model.calls, calls))
                    .iter()
                    .rev()
                {
                    if !call.frame.is_null() {
                        model.returns(call.number, true);
                        // SAFETY: the frame is that of the innermost call of this thread.
                        unsafe { dispatch::unwind(machine.thread, call.frame) };
                    }
                }
            }
            Step::Register {
                slot,
                size,
                priority,
            } => {
                if model.owners[slot].is_none() {
                    number += 1;
                    model.owners[slot] = Some(Owner {
                        user: number,
                        size: SIZES[size],
                        priority,
                    });
                    let order = (priority.is_some(), Ranks::new(ranked(&model.owners)));
                    match size {
                        0 => machine.register::<{ SIZES[0] }>(slot, number, order),
                        1 => machine.register::<{ SIZES[1] }>(slot, number, order),
                        2 => machine.register::<{ SIZES[2] }>(slot, number, order),
                        _ => machine.register::<{ SIZES[3] }>(slot, number, order),
                    }
                }
            }
            Step::Unregister { slot } => {
                if model.owners[slot].take().is_some() {
                    machine.unregister(slot);
                }
            }
        }
        assert_eq!(TOLD.take(), mem::take(&mut model.told), "after {step:?}");
        assert_eq!(
            machine.thread.shadow.depth() as usize,
            model.depth,
            "after {step:?}"
        );
    }
    assert_eq!(machine.thread.total.read(), model.counters);
    assert!(ptr::eq(
        machine.thread.errno.get(),
        machine.thread.no_errno()
    ));
}

proptest! {
    #![proptest_config(ProptestConfig {
        // Each case takes a thousand times as long under Miri.
        cases: if cfg!(miri) { 4 } else { 2_000 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn users_are_told_what_the_model_says(steps in steps()) {
        run(&steps);
    }
}
