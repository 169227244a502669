//! States of threads: made at a thread's first traced call, taken over after its end.
//!
//! No destructor runs at thread exit. Destructors of thread-local data need the allocator, and code
//! that runs after them would need a state again. Instead, a thread that needs a state checks a few
//! others, further on in the list each time, and frees those whose owners the kernel no longer has.
//! Then it takes a free state, or else maps a new one. So the time does not depend on the number of
//! threads. When threads have taken a quarter as many states as there are, all have been checked:
//! there are rarely more than twice as many states as threads have lived at once.
//!
//! Threads of other processes may be in the same memory (`vfork`, `clone` with `CLONE_VM`). So a
//! state belongs to a thread of a process, and only the process that owns the memory takes states
//! over. A child with a copy of the memory is noticed even if no fork handler has run: the kernel
//! wipes a word there. Such a child has only the calling thread.
//!
//! # Safety
//!
//! The unsafe code maps memory for a state, which is never unmapped, and passes it to its thread.

use core::marker::PhantomData;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering, fence};

use crate::arch::trampoline;
use fgraph_core::Fgraph;
use fgraph_core::dispatch;
use fgraph_core::frame::FRAME_ALIGN;
use fgraph_core::thread::Thread;

use super::shadow_memory;
use crate::os::{self, PAGE, memory};
use crate::report::error::{Error, Unsupported};

/// The state that threads, users and dispatch share in this process.
// SAFETY: this crate is the one runtime of the process.
pub(crate) static FGRAPH: &Fgraph = unsafe { fgraph_core::FGRAPH.get() };

/// Bytes of a shadow stack by default: room for 4,094 calls without data.
const DEFAULT_SHADOW_STACK: usize = 256 << 10;
/// Bytes for one call, beside the first frame of every shadow stack.
const MIN_SHADOW_STACK: usize = 128;
/// The largest size: shadow stacks and their return points take four times as much address space.
const MAX_SHADOW_STACK: usize = 256 << 20;

static SHADOW_STACK: AtomicUsize = AtomicUsize::new(DEFAULT_SHADOW_STACK);

/// Bytes of a vector register that the trampoline saves.
static VECTOR_BYTES: AtomicU32 = AtomicU32::new(16);

/// The number of states that a thread checks when it needs one.
const LOOKS: usize = 4;
/// The state that was checked last; null before the first.
static LOOKED_AT: AtomicPtr<Thread> = AtomicPtr::new(ptr::null_mut());
/// True while a thread is freeing states whose owners are gone.
static REAPING: AtomicBool = AtomicBool::new(false);

/// A thread's state, and the process of that thread.
#[repr(C)]
struct OwnedThread {
    thread: Thread,
    process: AtomicU32,
}

/// A word that is wiped in a child with a copy of the memory; otherwise the process that owns the
/// memory. Null until the first state is made, and if there is no such memory.
static PROCESS: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());
/// The value of that word while a thread of a child runs [`after_fork`]. No process has this id.
const BEING_SORTED: u32 = u32::MAX;

/// Returns the process of the thread to which a state belongs.
fn process_of(thread: &'static Thread) -> &'static AtomicU32 {
    let owned = ptr::with_exposed_provenance::<OwnedThread>(ptr::from_ref(thread).addr());
    // SAFETY: every state in the list is the start of one, made by `add_state`, and never unmapped.
    unsafe { &(*owned).process }
}

/// Returns the process that owns the memory. In a child with a copy of the memory that is not known
/// as a child yet, this ends the states of the threads that the child does not have.
pub(crate) fn own_process() -> u32 {
    let mut word = PROCESS.load(Ordering::Acquire);
    if word.is_null() {
        let Some(page) = memory::map(PAGE) else {
            return os::process_id();
        };
        let new = page.cast::<AtomicU32>();
        // SAFETY: a new mapping, and zero. If it is not wiped, only handlers notice forks.
        unsafe {
            libc::madvise(page.cast(), PAGE, libc::MADV_WIPEONFORK);
            (*new).store(os::process_id(), Ordering::Relaxed);
        }
        // A thread that is not the first leaves a page unused.
        let known = PROCESS.compare_exchange(word, new, Ordering::AcqRel, Ordering::Acquire);
        word = known.err().unwrap_or(new);
    }
    // SAFETY: never unmapped.
    let word = unsafe { &*word };
    loop {
        // Acquire pairs with the Release in `after_fork`: the states are processed.
        match word.load(Ordering::Acquire) {
            0 => os::signal_mask::without_signals(|| {
                let (relaxed, sorting) = (Ordering::Relaxed, BEING_SORTED);
                if word.compare_exchange(0, sorting, relaxed, relaxed).is_ok() {
                    after_fork();
                }
            }),
            BEING_SORTED => os::nap(),
            process => return process,
        }
    }
}

/// Returns process and id of the thread for which a state is made.
fn owner() -> (u32, u32) {
    let (own, process, id) = (own_process(), os::process_id(), os::thread_id());
    if process == own {
        return (process, id);
    }
    // A state belongs to the thread's block, which may be that of a thread that continues.
    let block = os::thread_of_block().filter(|&block| os::thread_exists_in(own, block));
    block.map_or((process, id), |block| (own, block))
}

/// Sets the size of the shadow stack of threads that make their first traced call from now on, in
/// bytes.
///
/// Each call whose return a user wants takes 64 bytes, and, for each user with data, the size of
/// that data plus 16, rounded up to 32. When a shadow stack is full, calls are not traced and
/// counted as [`overrun`](crate::Counters::overrun). Memory is allocated when it is touched. The
/// default is 256 KiB; the value is limited to between 128 bytes and 256 MiB. A value of more than
/// 16 MiB has its effect before the first traced call only.
pub fn set_shadow_stack_size(bytes: usize) {
    let bytes = bytes.clamp(MIN_SHADOW_STACK, MAX_SHADOW_STACK);
    SHADOW_STACK.store(bytes & !(FRAME_ALIGN - 1), Ordering::Relaxed);
}

/// Returns the size of a new shadow stack in bytes.
pub(crate) fn shadow_stack_size() -> usize {
    let room = shadow_memory::max_len() - 2 * size_of::<OwnedThread>();
    SHADOW_STACK.load(Ordering::Relaxed).min(room / PAGE * PAGE)
}

/// Sets the width of the vector registers that the trampoline saves, in bytes.
pub(crate) fn set_vector_bytes(bytes: u32) {
    VECTOR_BYTES.store(bytes, Ordering::SeqCst);
    // No call was traced before, so only this thread can have a state.
    // SAFETY: the state is the running thread's own, because no other thread has one.
    for thread in unsafe { FGRAPH.threads.iter() } {
        thread.vector_bytes.set(bytes);
    }
}

/// Makes the state of the calling thread; null if there is no memory. The entry trampoline calls
/// it, so it does not use the allocator.
pub(crate) extern "C" fn attach() -> *const Thread {
    let errno = os::errno();
    let state = match state(owner()) {
        Some(thread) => {
            // SAFETY: valid for as long as this thread lives.
            thread.errno.set(unsafe { libc::__errno_location() });
            thread.stack_end.set(trampoline::stack_end());
            // After it is in the list, so that `set_vector_bytes` cannot miss it.
            thread.vector_bytes.set(VECTOR_BYTES.load(Ordering::SeqCst));
            ptr::from_ref(thread)
        }
        None => {
            // Relaxed: a counter without other data.
            FGRAPH.unattached.fetch_add(1, Ordering::Relaxed);
            ptr::null()
        }
    };
    // SAFETY: `errno` is the calling thread's own.
    unsafe { *libc::__errno_location() = errno };
    state
}

/// Returns true if the thread of a state still runs, or another thread is cleaning up after it.
pub(crate) fn is_alive(thread: &'static Thread) -> bool {
    // A thread that frees states marks those that it ends, as their threads did.
    REAPING.load(Ordering::SeqCst) || has_owner(thread)
}

/// Returns true if the thread of a state still runs.
fn has_owner(thread: &'static Thread) -> bool {
    os::thread_exists_in(process_of(thread).load(Ordering::Relaxed), thread.id())
}

/// Returns a state for a thread of a process: the one that is reserved for it, or any.
fn state((process, id): (u32, u32)) -> Option<&'static Thread> {
    let reserved = || {
        if !FGRAPH.watched.may_be_reserved(id) {
            return None;
        }
        // SAFETY: states are only taken, until one is ours.
        let mut states = unsafe { FGRAPH.threads.iter() };
        states.find(|thread| thread.owner.take_reserved(id, &FGRAPH.watched))
    };
    reserved().or_else(|| {
        let claimed = claim_state((process, id))?;
        // Pairs with the fence in `watched::set`: either this thread sees a state that is reserved
        // now, or that function sees the claimed state.
        fence(Ordering::SeqCst);
        let reserved = reserved();
        if reserved.is_some() {
            give_back(claimed, id);
        }
        reserved.or(Some(claimed))
    })
}

/// Claims a state for a thread of a process.
pub(super) fn claim_state(owner: (u32, u32)) -> Option<&'static Thread> {
    free_some(owner.1);
    let free = FGRAPH.threads.free.pop();
    let claimed = free.and_then(|thread| claim(thread, owner));
    claimed.or_else(|| claim(add_state()?, owner))
}

/// Takes over a state that has no owner, and that no other thread is about to take.
fn claim(thread: &'static Thread, (process, id): (u32, u32)) -> Option<&'static Thread> {
    if !thread.claim(id, &FGRAPH.watched) {
        return None;
    }
    process_of(thread).store(process, Ordering::Relaxed);
    let (base, len) = thread.thread_stack.shadow.memory();
    // SAFETY: the state's own memory, and the state is ours.
    unsafe { thread.reset_thread_stack(base, len) };
    Some(thread)
}

/// Gives back a state whose thread, `id`, does not need it or is gone.
fn give_back(thread: &'static Thread, id: u32) {
    if thread.release(id) {
        FGRAPH.threads.free.push(thread);
    }
}

/// Frees those of the next few states whose owners are gone.
fn free_some(id: u32) {
    // Concurrent threads check the same states, which is harmless.
    // SAFETY: null, or a state, which is never unmapped.
    let first = unsafe { LOOKED_AT.load(Ordering::Relaxed).as_ref() };
    let mut last = first;
    for _ in 0..LOOKS {
        // SAFETY: only the ids of states are used whose threads may be alive.
        let next = unsafe { FGRAPH.threads.behind(last) };
        let Some(thread) = next else {
            return;
        };
        if thread.id() != 0 && may_be_gone(thread, id) {
            reap(id, || core::iter::once(thread));
        }
        last = next;
        if last.map(ptr::from_ref) == first.map(ptr::from_ref) {
            break;
        }
    }
    let last = last.map_or(ptr::null(), ptr::from_ref);
    LOOKED_AT.store(last.cast_mut(), Ordering::Relaxed);
}

/// Counts the calls in progress of ended threads as lost.
pub(crate) fn count_lost() {
    // No thread has this id.
    // SAFETY: as is said at `end_state`.
    reap(0, || unsafe { FGRAPH.threads.iter() });
}

/// Frees those of `states` that belong to this process and whose owners are gone. A state with the
/// id of the calling thread, `id`, other than its own, has such an owner. Only the process that
/// owns the memory does this.
fn reap<I: Iterator<Item = &'static Thread>>(id: u32, states: impl FnOnce() -> I) {
    let own = own_process();
    if own != os::process_id() {
        return;
    }
    // A run that a signal handler left in the middle would be the last.
    os::signal_mask::without_signals(|| {
        if !REAPING.swap(true, Ordering::Acquire) {
            states().for_each(|thread| end_state(thread, own, id));
            REAPING.store(false, Ordering::Release);
        }
    });
}

/// Does the same as [`reap`], for one state. Apart from ids, only states of threads that are gone
/// are used, by one thread at a time.
fn end_state(thread: &'static Thread, own: u32, id: u32) {
    let owner = thread.id();
    let is_own = process_of(thread).load(Ordering::Relaxed) == own;
    let is_current = ptr::eq(thread, trampoline::current());
    if owner == 0 || !is_own || is_current || !may_be_gone(thread, id) {
        return;
    }
    if thread.owner.is_reserved() {
        if thread.owner.cancel_reserved(owner, &FGRAPH.watched) {
            FGRAPH.threads.free.push(thread);
        }
    } else if dispatch::abandon(thread) {
        // Otherwise another thread continues its calls, or has not finished with one.
        let (base, len) = thread.thread_stack.shadow.memory();
        memory::forget(base, len);
        give_back(thread, owner);
    }
}

/// Returns true if the thread of a state may be gone, if the state is not that of the calling
/// thread, `id`.
fn may_be_gone(thread: &'static Thread, id: u32) -> bool {
    // A state with our own id belongs to a thread that had the id before.
    thread.id() == id && !thread.owner.is_reserved() || !has_owner(thread)
}

/// Maps a new state, without an owner, followed by its shadow stack.
fn add_state() -> Option<&'static Thread> {
    let shadow = shadow_stack_size();
    // Directly after the state and not on a page boundary, where frames would have the addresses of
    // the state's first words modulo 4 KiB, which processors at first confuse with them.
    let offset = size_of::<OwnedThread>().next_multiple_of(align_of::<Thread>());
    let memory = shadow_memory::map(offset + shadow)?;
    // SAFETY: a fresh mapping, large enough, page-aligned, and zero, which is not relied on.
    unsafe {
        let owned = memory.cast::<OwnedThread>();
        owned.expose_provenance();
        owned.write(OwnedThread {
            thread: Thread::new(),
            process: AtomicU32::new(0),
        });
        let thread = &(*owned).thread;
        thread.reset_thread_stack(memory.add(offset), shadow);
        FGRAPH.threads.push(thread);
        Some(thread)
    }
}

/// In a child with a copy of the memory: removes the owners of states whose threads the child does
/// not have.
pub(crate) fn after_fork() {
    // The thread that was freeing states is not in the child.
    REAPING.store(false, Ordering::Relaxed);
    // The thread that has forked is the main one of the child.
    match os::is_main_thread() {
        true => keep_own_state(),
        false => keep_all_states(),
    }
    // SAFETY: null, or never unmapped.
    if let Some(word) = unsafe { PROCESS.load(Ordering::Relaxed).as_ref() } {
        // Release pairs with the Acquire in `own_process`.
        word.store(os::process_id(), Ordering::Release);
    }
}

/// Gives all states to the child's main thread. One of them belongs to that thread, which continues
/// its calls; the thread that runs this, another thread of the child, does not know which.
fn keep_all_states() {
    let process = os::process_id();
    // SAFETY: besides the owners, nothing is used of states of threads that may live.
    for thread in unsafe { FGRAPH.threads.iter() } {
        let id = thread.id();
        if id == 0 {
            continue;
        }
        if thread.owner.cancel_reserved(id, &FGRAPH.watched) {
            FGRAPH.threads.free.push(thread);
        } else {
            thread.owner.rename(process);
        }
        process_of(thread).store(process, Ordering::Relaxed);
    }
}

/// Keeps the state of the calling thread, which has forked and is the child's main one, and frees
/// all others.
fn keep_own_state() {
    let own = trampoline::current();
    // SAFETY: no other thread of the child has a state yet, here and below.
    let all = || unsafe { FGRAPH.threads.iter() };
    let others = || all().filter(|thread| !ptr::eq(*thread, own));
    // First, so that none of their stacks is claimed, and nothing is written there any more.
    others().for_each(Thread::leave_stack);
    all().for_each(Thread::give_up_deferred);
    for thread in others() {
        dispatch::abandon(thread);
        let id = thread.id();
        if !thread.owner.cancel_reserved(id, &FGRAPH.watched) {
            thread.release(id);
        }
    }
    // Including those that a thread was about to take which the child does not have.
    FGRAPH.threads.free.clear();
    others().for_each(|thread| FGRAPH.threads.free.push(thread));
    if let Some(own) = all().find(|thread| ptr::eq(*thread, own)) {
        own.owner.rename(os::thread_id());
        process_of(own).store(os::process_id(), Ordering::Relaxed);
    }
}

/// Marks the calling thread as in fgraph's own code: its calls are not traced.
#[derive(Debug)]
pub(crate) struct Inside {
    thread: &'static Thread,
    /// It ends in the thread that it began in.
    _not_send: PhantomData<*const ()>,
}

impl Inside {
    /// Enters, unless the thread is in a callback.
    pub(crate) fn enter() -> Result<Self, Error> {
        let thread = current().ok_or(Unsupported::Memory(libc::ENOMEM))?;
        let before = thread.entered_sp.load(Ordering::Relaxed);
        if before != 0 && before != Thread::UNTRACED {
            return Err(Error::InsideCallback);
        }
        thread.come_inside(Thread::INTERNAL);
        Ok(Self {
            thread,
            _not_send: PhantomData,
        })
    }
}

impl Inside {
    /// Runs `work` as a callback: its calls are counted as missed. `errno` is restored.
    pub(crate) fn as_callback(&self, work: impl FnOnce(&'static Thread)) {
        let errno = os::errno();
        let here = 0u8;
        // Calls from here on are deeper than this.
        let entered_sp = (&raw const here).addr();
        let before = self.thread.entered_sp.swap(entered_sp, Ordering::Relaxed);
        work(self.thread);
        self.thread.entered_sp.store(before, Ordering::Relaxed);
        // SAFETY: `errno` is the calling thread's own.
        unsafe { *libc::__errno_location() = errno };
    }
}

/// Returns the state of the calling thread, and makes it if it has none; `None` if there is no
/// memory.
#[inline]
pub(crate) fn current() -> Option<&'static Thread> {
    // SAFETY: states are never unmapped.
    let found = unsafe { trampoline::current().as_ref() };
    found.or_else(make_current)
}

/// Makes the state of the calling thread, if there is memory, and returns it.
#[cold]
fn make_current() -> Option<&'static Thread> {
    // Like the entry trampoline: calls meanwhile must not make a second state, and no signal
    // handler may leave in the middle.
    os::signal_mask::without_signals(|| {
        // A handler may have made it meanwhile.
        if trampoline::current().is_null() {
            // SAFETY: a state that is always inside, then this thread's own.
            unsafe {
                trampoline::set_attaching();
                trampoline::set_current(attach());
            }
        }
    });
    // SAFETY: states are never unmapped.
    unsafe { trampoline::current().as_ref() }
}

/// Returns true if the calling thread is in fgraph's own code, outside of any callback.
pub(crate) fn in_own_code() -> bool {
    // SAFETY: states are never unmapped.
    let thread = unsafe { trampoline::current().as_ref() };
    thread.is_some_and(|thread| thread.entered_sp.load(Ordering::Relaxed) == Thread::INTERNAL)
}

/// Runs `work` as fgraph's own code, in a thread that may be in a callback.
pub(crate) fn as_own_code<R>(work: impl FnOnce() -> R) -> R {
    // SAFETY: states are never unmapped.
    let Some(thread) = (unsafe { trampoline::current().as_ref() }) else {
        return work();
    };
    let before = thread.entered_sp.load(Ordering::Relaxed);
    match before {
        0 => thread.come_inside(Thread::INTERNAL),
        _ => thread.entered_sp.store(Thread::INTERNAL, Ordering::Relaxed),
    }
    let result = work();
    thread.entered_sp.store(before, Ordering::Relaxed);
    result
}

impl Drop for Inside {
    fn drop(&mut self) {
        // Guards may have been made or dropped in the function that was run as a callback.
        let outside = self.thread.outside();
        self.thread.entered_sp.store(outside, Ordering::Relaxed);
    }
}
