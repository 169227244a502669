//! The enclosing calls that a user sees where another thread may use their frames.

#![cfg(not(loom))]

mod common;

use std::mem;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use common::{StdCatch, site};
use fgraph_core::dispatch;
use fgraph_core::frame::{FRAME_ALIGN, Frame};
use fgraph_core::machine::Stack;
use fgraph_core::registration::Registration;
use fgraph_core::regs::{EntryRegs, Link, ReturnRegs};
use fgraph_core::thread::Thread;
use fgraph_core::{Entry, Fgraph, FgraphOps, Return};

// SAFETY: this program is the one runtime of its process.
static FGRAPH: &Fgraph = unsafe { fgraph_core::FGRAPH.get() };

const SHADOW: usize = 4096;
const LEVELS: usize = 8;

/// The data of the parent as `parent_data` and as `parent_data_mut` show it.
type Shown = (Option<u64>, Option<u64>);

static SHOWN: Mutex<Vec<Shown>> = Mutex::new(Vec::new());

/// Held by a test that uses the slot.
static TURN: Mutex<()> = Mutex::new(());

/// Takes the call's number as its data.
struct User;

impl FgraphOps for User {
    type Data = u64;

    fn entry(&self, call: &mut Entry<'_, u64>) -> Option<u64> {
        let parent = call.parent_data().copied();
        let shown = (parent, call.parent_data_mut().map(|data| *data));
        let all: Vec<u64> = call.ancestors_data_mut().map(|data| *data).collect();
        assert_eq!(all.first(), shown.1.as_ref());
        let each = |generation| call.ancestor_data(generation).copied();
        assert!(all.iter().copied().map(Some).eq((0..all.len()).map(each)));
        SHOWN.lock().unwrap().push(shown);
        call.arg(0)
    }

    fn ret(&self, call: &mut Return<'_, u64>, _: u64) {
        let parent = call.parent_data().copied();
        let shown = (parent, call.parent_data_mut().map(|data| *data));
        let all: Vec<u64> = call.ancestors_data_mut().map(|data| *data).collect();
        assert_eq!(all.first(), shown.1.as_ref());
        let each = |generation| call.ancestor_data(generation).copied();
        assert!(all.iter().copied().map(Some).eq((0..all.len()).map(each)));
        SHOWN.lock().unwrap().push(shown);
    }
}

/// The memory of a machine stack.
struct Memory(Vec<Link>);

impl Memory {
    fn new() -> Self {
        let link = |_| Link {
            saved: 0,
            return_address: 0x2000,
        };
        Self((0..LEVELS).map(link).collect())
    }

    fn bounds(&self) -> (usize, usize) {
        let low = self.0.as_ptr().addr();
        (low, low + size_of_val(self.0.as_slice()))
    }
}

fn shadow() -> *mut u8 {
    let memory = vec![0_u8; SHADOW + FRAME_ALIGN].leak().as_mut_ptr();
    memory.wrapping_add(memory.align_offset(FRAME_ALIGN))
}

/// A thread that is on no stack.
fn thread() -> &'static Thread {
    // SAFETY: given memory below, before it is used.
    let thread: &'static Thread = Box::leak(Box::new(unsafe { Thread::new() }));
    // SAFETY: leaked for the thread.
    unsafe { thread.reset_thread_stack(shadow(), SHADOW) };
    thread.errno.set(thread.no_errno());
    thread
}

/// A spare stack for `memory`.
fn spare(memory: &Memory) -> &'static Stack {
    // SAFETY: given memory below, before it is used.
    let stack: &'static Stack = Box::leak(Box::new(unsafe { Stack::new() }));
    // SAFETY: leaked for the stack.
    unsafe { stack.shadow.reset(shadow(), SHADOW, stack) };
    let (low, end) = memory.bounds();
    stack.set_bounds(low, end);
    stack
}

/// Call `number` at `level` of a machine stack; gives its frame and what its user was shown.
fn enter(thread: &Thread, memory: &mut Memory, number: u64, level: usize) -> (*mut Frame, Shown) {
    let site = site();
    site.interest.store(1, Ordering::Relaxed);
    let link = &mut memory.0[LEVELS - 1 - level];
    let return_slot_addr = (&raw const link.return_address).addr();
    // SAFETY: integers and pointers, for which zero is a value.
    let mut regs: EntryRegs = unsafe { mem::zeroed() };
    regs.int[0] = number;
    regs.link = link;
    regs.site = site;
    regs.thread = thread;
    let (users, stamp) = FGRAPH.wanting(site, thread);
    // SAFETY: the registers are those of a call of this thread.
    let frame = unsafe { dispatch::enter(&mut regs, site, thread, return_slot_addr, users, stamp) };
    (frame, SHOWN.lock().unwrap().pop().unwrap())
}

/// The call of `frame` returns in `thread`; gives what its user was shown.
fn leave(thread: &Thread, frame: *mut Frame) -> Shown {
    // SAFETY: as in `enter`.
    let mut regs: ReturnRegs = unsafe { mem::zeroed() };
    regs.frame = frame;
    regs.thread = thread;
    // SAFETY: the frame is of the call that is back now.
    unsafe { dispatch::leave(&mut regs, frame, thread) };
    SHOWN.lock().unwrap().pop().unwrap()
}

fn register() {
    let epoch = FGRAPH.epoch.advance();
    let user = Box::leak(Box::new(Registration::new::<StdCatch>(User, 0, epoch, 1)));
    // SAFETY: made for this slot, and never freed.
    unsafe { FGRAPH.slots.publish(0, user.header()) };
}

#[test]
fn no_ancestor_is_shown_that_another_thread_may_use() {
    let _turn = TURN.lock().unwrap();
    register();

    // On its own stack a thread may change the data of enclosing calls.
    let one = thread();
    let mut memory = Memory::new();
    let (low, end) = memory.bounds();
    one.leave_stack();
    one.thread_stack.set_bounds(low, end);
    assert!(one.enter_thread_stack());
    let (outer, _) = enter(one, &mut memory, 1, 0);
    let (inner, shown) = enter(one, &mut memory, 2, 1);
    assert_eq!(shown, (Some(1), Some(1)));
    assert_eq!(leave(one, inner), (Some(1), Some(1)));
    assert_eq!(leave(one, outer), (None, None));

    // On a spare stack it may only read them.
    let mut memory = Memory::new();
    let stack = spare(&memory);
    let go_to = |thread: &Thread| {
        assert!(stack.claim.take(thread));
        thread.leave_stack();
        thread.enter_stack(stack);
    };
    go_to(one);
    let (_, shown) = enter(one, &mut memory, 3, 0);
    assert_eq!(shown, (None, None));
    let (inner, shown) = enter(one, &mut memory, 4, 1);
    assert_eq!(shown, (Some(3), None));

    // The inner call comes back in another thread, which has calls of its own and not that stack.
    let other = thread();
    let mut others = Memory::new();
    let (low, end) = others.bounds();
    other.leave_stack();
    other.thread_stack.set_bounds(low, end);
    assert!(other.enter_thread_stack());
    enter(other, &mut others, 7, 0);
    let (own, shown) = enter(other, &mut others, 8, 1);
    assert_eq!(shown, (Some(7), Some(7)));
    assert_eq!(leave(other, inner), (None, None));
    assert_eq!(leave(other, own), (Some(7), Some(7)));

    // Another spare stack is for the same memory: nothing is known to enclose a call.
    one.leave_stack();
    stack.set_shared(true);
    go_to(one);
    let (inner, shown) = enter(one, &mut memory, 5, 2);
    assert_eq!(shown, (None, None));
    assert_eq!(leave(one, inner), (None, None));
    one.leave_stack();
    stack.set_shared(false);
    go_to(one);
    let (_, shown) = enter(one, &mut memory, 6, 2);
    assert_eq!(shown, (Some(3), None));

    FGRAPH.slots.retire(0);
}

#[test]
fn a_stack_is_in_use_until_the_dispatch_of_a_return_there_ends() {
    let _turn = TURN.lock().unwrap();
    register();
    let one = thread();
    let mut memory = Memory::new();
    let (low, end) = memory.bounds();
    one.leave_stack();
    one.thread_stack.set_bounds(low, end);
    assert!(one.enter_thread_stack());
    let (frame, _) = enter(one, &mut memory, 1, 0);
    let (above, _) = enter(one, &mut memory, 2, 1);
    // The call comes back in another thread, as the caller of `swapcontext` may. The first one has
    // the stack.
    let other = thread();
    leave(other, frame);
    // It ends in the call that it has made there since.
    assert!(!dispatch::abandon(one));
    // Nobody else has the call above, which is lost, and the other's is not to be dropped.
    assert!(!one.thread_stack.shadow.is_on(above));
    assert!(one.thread_stack.shadow.is_on(frame));
    other.give_up_deferred();
    assert!(dispatch::abandon(one));
    FGRAPH.slots.retire(0);
}
