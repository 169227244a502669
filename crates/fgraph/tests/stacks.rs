//! Calls on machine stacks that are not the threads' own: every entry that was accepted comes to
//! its return, in whatever order and on whatever thread the stacks go on.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::hint::black_box;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use crate::common::switch::switch_stacks;
use fgraph_scenario::{numbers, scenario, user};

/// A coroutine, and what it works on.
struct Coroutine {
    id: u64,
    /// Stack pointer of the coroutine while it waits.
    stack_pointer: usize,
    /// Stack pointer of the thread or coroutine that has resumed it.
    resumer: usize,
    random: u64,
    /// Calls until it ends.
    left: u64,
    sum: u64,
    done: bool,
}

thread_local! {
    static RUNNING: RefCell<*mut Coroutine> = const { RefCell::new(ptr::null_mut()) };
}

/// Not inlined, as the thread may be another after a switch.
#[inline(never)]
fn running() -> *mut Coroutine {
    RUNNING.with(|running| *running.borrow())
}

const STACK: usize = 64 << 10;

impl Coroutine {
    /// Makes a coroutine on the stack that ends at `top`.
    fn new(id: u64, top: *mut u8, left: u64) -> Box<Self> {
        // SAFETY: room for six registers, the start, and a return address, in a stack that nobody
        // uses.
        let stack_pointer = unsafe {
            let top = top.cast::<usize>();
            top.sub(2).write(start as *const () as usize);
            top.sub(8).expose_provenance()
        };
        Box::new(Self {
            id,
            stack_pointer,
            resumer: 0,
            random: id.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            left,
            sum: 0,
            done: false,
        })
    }

    fn resume(&mut self) {
        RUNNING.with(|running| *running.borrow_mut() = self);
        // SAFETY: it waits in `wait`, or has not begun.
        unsafe { switch_stacks(&mut self.resumer, self.stack_pointer) };
    }

    fn next(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random >> 11
    }
}

/// Leaves the running coroutine until it is resumed.
fn wait() {
    let coroutine = running();
    // SAFETY: who resumed it waits.
    unsafe { switch_stacks(&mut (*coroutine).stack_pointer, (*coroutine).resumer) };
}

extern "C" fn start() -> ! {
    loop {
        let coroutine = running();
        // SAFETY: the running one.
        unsafe {
            while (*coroutine).left != 0 {
                (*coroutine).sum += stack_descends((*coroutine).id, 0);
            }
            (*coroutine).done = true;
        }
        wait();
    }
}

/// Calls itself a few times, and waits in between.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn stack_descends(id: u64, depth: u64) -> u64 {
    let coroutine = running();
    // SAFETY: the running one.
    let (choice, left) = unsafe {
        assert_eq!((*coroutine).id, id);
        (*coroutine).left = (*coroutine).left.saturating_sub(1);
        ((*coroutine).next(), (*coroutine).left)
    };
    let mut room = [0u64; 16];
    black_box(&mut room[..(choice % 16) as usize]).fill(choice);
    if choice & 64 != 0 {
        wait();
    }
    let mut below = 1;
    if depth < 6 && left != 0 {
        for _ in 0..choice % 3 {
            below += stack_descends(id, depth + 1);
        }
    }
    if choice & 128 != 0 {
        wait();
    }
    black_box(below)
}

/// Data of a call: the coroutine of its entry, and the depth there.
#[derive(Clone, Copy, Default)]
struct Call {
    id: u64,
    depth: u64,
    check: u64,
}

static ENTRIES: AtomicU64 = AtomicU64::new(0);
static RETURNS: AtomicU64 = AtomicU64::new(0);
static WRONG: AtomicU64 = AtomicU64::new(0);
static WRONG_PARENTS: AtomicU64 = AtomicU64::new(0);

fn check(id: u64, depth: u64) -> u64 {
    (id << 32 | depth).wrapping_mul(0x2545_f491_4f6c_dd1d)
}

/// A user that looks whether returns and parents are those of its own coroutine.
fn pairing() -> fgraph::Handle<impl fgraph::FgraphOps> {
    let entry = |call: &mut fgraph::Entry<'_, Call>| {
        let (id, depth) = (call.arg(0)?, call.arg(1)?);
        ENTRIES.fetch_add(1, Ordering::Relaxed);
        let is_right = match call.parent_data() {
            None => depth == 0,
            Some(parent) => depth != 0 && (parent.id, parent.depth + 1) == (id, depth),
        };
        if !is_right || call.depth() as u64 != depth {
            WRONG_PARENTS.fetch_add(1, Ordering::Relaxed);
        }
        Some(Call {
            id,
            depth,
            check: check(id, depth),
        })
    };
    let ret = |call: &mut fgraph::Return<'_, Call>, data: Call| {
        RETURNS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: set by whoever resumed the coroutine that this runs on.
        let id = unsafe { (*running()).id };
        if data.check != check(data.id, data.depth) || data.id != id || call.unwinding() {
            WRONG.fetch_add(1, Ordering::Relaxed);
        }
    };
    fgraph_scenario::register(user(entry, ret), "stack_descends").unwrap()
}

/// The ends of `n` stacks, each mapped with a page before it that cannot be touched; or all in one
/// piece.
fn stacks(n: usize, apart: bool) -> Vec<*mut u8> {
    // SAFETY: a new mapping, and pages of it.
    unsafe {
        let memory = libc::mmap(
            ptr::null_mut(),
            n * STACK,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        assert_ne!(memory, libc::MAP_FAILED);
        let low = |index: usize| memory.cast::<u8>().add(index * STACK);
        if apart {
            for index in 0..n {
                assert_eq!(libc::mprotect(low(index).cast(), 4096, libc::PROT_NONE), 0);
            }
        }
        (0..n).map(|index| low(index).add(STACK)).collect()
    }
}

/// Runs coroutines on some threads, each time whichever comes first, until all are done.
fn run(stacks: Vec<*mut u8>, threads: usize, calls: u64) {
    struct Ready(Box<Coroutine>);
    // SAFETY: it waits.
    unsafe impl Send for Ready {}
    let total = stacks.len();
    let ready: VecDeque<Ready> = (0..)
        .zip(stacks)
        .map(|(id, top)| Ready(Coroutine::new(id, top, calls)))
        .collect();
    let ready = Mutex::new((ready, 0));
    thread::scope(|scope| {
        for seed in 0..threads as u64 {
            let ready = &ready;
            scope.spawn(move || {
                let mut random = seed + 1;
                loop {
                    let mut queue = ready.lock().unwrap();
                    if queue.1 == total {
                        return;
                    }
                    random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                    let len = queue.0.len();
                    if len == 0 {
                        drop(queue);
                        thread::yield_now();
                        continue;
                    }
                    let mut one = queue.0.remove((random >> 33) as usize % len).unwrap();
                    drop(queue);
                    one.0.resume();
                    let mut queue = ready.lock().unwrap();
                    if one.0.done {
                        queue.1 += 1;
                    } else {
                        queue.0.push_back(one);
                    }
                }
            });
        }
    });
}

#[scenario]
fn coroutines_on_stacks_of_their_own_have_their_own_parents() {
    let user = pairing();
    run(stacks(20, true), 1, 2_000);
    let entries = ENTRIES.load(Ordering::Relaxed);
    assert!(entries >= 20 * 2_000, "{entries}");
    assert_eq!(RETURNS.load(Ordering::Relaxed), entries);
    assert_eq!(WRONG.load(Ordering::Relaxed), 0);
    assert_eq!(WRONG_PARENTS.load(Ordering::Relaxed), 0);
    assert_eq!(numbers(user.counters()), [0; 5]);
}

#[scenario]
fn coroutines_in_one_mapping_return_to_their_own_users_data() {
    let user = pairing();
    run(stacks(10, false), 1, 4_000);
    all_returned(&user);
}

#[scenario]
fn coroutines_go_from_thread_to_thread() {
    let user = pairing();
    run(stacks(40, true), 4, 2_000);
    all_returned(&user);
}

#[scenario]
fn coroutines_in_one_mapping_go_from_thread_to_thread() {
    let user = pairing();
    run(stacks(12, false), 4, 4_000);
    all_returned(&user);
}

/// Checks that each traced call returned, and that each other call was counted.
fn all_returned(user: &fgraph::Handle<impl fgraph::FgraphOps>) {
    let entries = ENTRIES.load(Ordering::Relaxed);
    assert!(entries > 1000);
    let [missed, overrun, unreserved, lost, no_shadow_stack] = numbers(user.counters());
    println!("{entries} entries, {lost} lost, {no_shadow_stack} without a shadow stack");
    assert_eq!(RETURNS.load(Ordering::Relaxed), entries);
    assert_eq!(WRONG.load(Ordering::Relaxed), 0);
    assert_eq!([missed, overrun, unreserved, lost], [0; 4]);
    assert!(
        no_shadow_stack < entries / 10,
        "{no_shadow_stack} of {entries} not traced"
    );
}

/// Nobody returns from them: the memory of a coroutine that waits is used for another. Traced calls
/// are not mixed up then. But calls may go untraced, as long as nothing shows that those that were
/// given up are over.
#[scenario]
fn stacks_that_are_given_up_in_the_middle_do_no_harm() {
    let user = pairing();
    let tops = stacks(8, true);
    let mut mapped = Vec::new();
    for round in 0..5_000 {
        let top = tops[round % tops.len()];
        let mut one = Coroutine::new(round as u64, top, 1_000);
        for _ in 0..3 {
            one.resume();
        }
        if round == 2_500 || round == 4_999 {
            mapped.push(virtual_size());
        }
    }
    let entries = ENTRIES.load(Ordering::Relaxed);
    let returns = RETURNS.load(Ordering::Relaxed);
    let [missed, overrun, unreserved, lost, no_shadow_stack] = numbers(user.counters());
    assert_eq!(WRONG.load(Ordering::Relaxed), 0);
    assert_eq!([missed, overrun, unreserved], [0; 3]);
    assert!(returns + lost <= entries && entries + no_shadow_stack >= 15_000);
    let grown = mapped[1] - mapped[0];
    assert!(grown < 256 << 20, "{grown} bytes");
}

/// There are no more spare stacks than coroutines at a time, and some.
#[scenario]
fn many_stacks_one_after_the_other_take_no_more_memory() {
    let user = pairing();
    let mut mapped = Vec::new();
    for round in 0..3_000u64 {
        let top = stacks(1, true)[0];
        let mut one = Coroutine::new(round, top, 20);
        while !one.done {
            one.resume();
        }
        // SAFETY: nobody uses the stack any more.
        unsafe { libc::munmap(top.sub(STACK).cast(), STACK) };
        // Something else takes its place, so that the next stack is elsewhere.
        // SAFETY: a new mapping.
        unsafe {
            let len = STACK;
            let prot = libc::PROT_READ;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(ptr::null_mut(), len, prot, flags, -1, 0);
        }
        if round == 1_000 || round == 2_999 {
            mapped.push(virtual_size());
        }
    }
    all_returned(&user);
    // 2,000 read-only mappings of the test itself, and not a spare stack for each.
    let grown = mapped[1] - mapped[0];
    let others = 2_000 * STACK as u64;
    assert!(grown < others + (32 << 20), "{grown} bytes");
}

/// Bytes of address space in use.
fn virtual_size() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
    pages * 4096
}
