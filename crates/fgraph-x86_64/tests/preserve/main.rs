//! The trampolines for sites where the caller may keep a value in any register: what is in a
//! register when the site is called is there when the body begins, and what the body leaves is
//! there when the caller goes on, whatever the callbacks do in between.

#![cfg(target_arch = "x86_64")]

mod machine;
mod stepping;

use std::arch::asm;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

use fgraph_core::Fgraph;
use fgraph_core::frame::Frame;
use fgraph_core::points::{KINDS, SPANS};
use fgraph_core::registration::{Catch, Header, Registration};
use fgraph_core::site::SiteName;
use fgraph_core::site::module;
use fgraph_core::thread::StackProvider;
use fgraph_core::thread::Thread;
use fgraph_core::{Entry, FgraphOps, Module, Outcome, Return, Site};
use fgraph_needs::skip;
use fgraph_x86_64::cpu;
use fgraph_x86_64::fast_path;
use fgraph_x86_64::stub::{self, StubKind};
use fgraph_x86_64::trampoline::{self, Trampolines, Variant, points, symbol_file};
use machine::{
    BODY_GETS, BODY_LEAVES, CALLEE_SAVED, CALLER_GETS, CALLER_HAS, GENERAL, MACHINES, Machine, R9,
    RAX, RDI, RDX, RSP, Registers, TAIL_TARGET, TARGET, WRITE_TO, WRITTEN, do_nothing, tail_call,
};

static LOCK: Mutex<()> = Mutex::new(());

/// Index in `MACHINES` of the one that callbacks clobber.
static MACHINE: AtomicUsize = AtomicUsize::new(0);
static ACCEPT: AtomicBool = AtomicBool::new(true);
static WIDEN: AtomicBool = AtomicBool::new(false);
static CHANGE: AtomicBool = AtomicBool::new(false);
/// Index in `OUTCOMES` of the result that calls return without their body; `OUTCOMES.len()` if the
/// bodies run.
static SKIP: AtomicUsize = AtomicUsize::new(OUTCOMES.len());
static ENTRIES: AtomicUsize = AtomicUsize::new(0);
static RETURNS: AtomicUsize = AtomicUsize::new(0);
static UNWOUND: AtomicUsize = AtomicUsize::new(0);
/// Calls of the handler's that were traced.
static NESTED: AtomicUsize = AtomicUsize::new(0);
/// Instructions that were unwound from.
static STEPS: AtomicUsize = AtomicUsize::new(0);

/// Value that callbacks write, if they write, to the last integer argument, the second integer
/// result, the last vector argument and the first vector result.
const CHANGED: u64 = 0xc4a7;
const CHANGED_FLOAT: f64 = 1.5;

/// One outcome in each register that it may be in.
const OUTCOMES: [Outcome; 5] = [
    Outcome::Nothing,
    Outcome::Int(CHANGED),
    Outcome::Ints(!CHANGED, CHANGED),
    Outcome::Float(CHANGED_FLOAT),
    Outcome::Float32(CHANGED_FLOAT as f32),
];

/// A user that changes every register it may.
struct Clobbering;

impl FgraphOps for Clobbering {
    type Data = u64;

    fn entry(&self, call: &mut Entry<'_, u64>) -> Option<u64> {
        stepping::at_once(|| entered(call))
    }

    fn ret(&self, call: &mut Return<'_, u64>, number: u64) {
        stepping::at_once(|| returned(call, number));
    }
}

fn entered(call: &mut Entry<'_, u64>) -> Option<u64> {
    let machine = &MACHINES[MACHINE.load(Ordering::Relaxed)];
    if call.function().address() == do_nothing as *const () as usize {
        NESTED.fetch_add(1, Ordering::Relaxed);
        machine.clobber();
        return Some(0);
    }
    ENTRIES.fetch_add(1, Ordering::Relaxed);
    if WIDEN.load(Ordering::Relaxed) {
        // SAFETY: nothing is written.
        let mut writer = unsafe { call.rewrite() };
        std::hint::black_box(writer.vector_arg_mut(0)).unwrap();
    }
    let number = call.arg(0);
    if CHANGE.load(Ordering::Relaxed) {
        // SAFETY: the machine's code takes anything in any register.
        let mut writer = unsafe { call.rewrite() };
        writer.set_arg(5, CHANGED).unwrap();
        writer.set_float_arg(7, CHANGED_FLOAT).unwrap();
    }
    if let Some(&outcome) = OUTCOMES.get(SKIP.load(Ordering::Relaxed)) {
        // SAFETY: the body only notes what it gets.
        unsafe { call.rewrite() }.skip(outcome).unwrap();
    }
    machine.clobber();
    number.filter(|_| ACCEPT.load(Ordering::Relaxed))
}

fn returned(call: &mut Return<'_, u64>, number: u64) {
    let machine = &MACHINES[MACHINE.load(Ordering::Relaxed)];
    if call.function().address() == do_nothing as *const () as usize {
        machine.clobber();
        return;
    }
    RETURNS.fetch_add(1, Ordering::Relaxed);
    UNWOUND.fetch_add(usize::from(call.unwinding()), Ordering::Relaxed);
    assert_eq!(number, CALLER_HAS.get().general[RDI], "the first argument");
    if WIDEN.load(Ordering::Relaxed) {
        // SAFETY: nothing is written.
        let mut writer = unsafe { call.rewrite() };
        let _ = std::hint::black_box(writer.vector_result_mut(0));
    }
    if CHANGE.load(Ordering::Relaxed) {
        // SAFETY: as at entry.
        let mut writer = unsafe { call.rewrite() };
        writer.set_result_high(CHANGED).unwrap();
        writer.set_float_result(CHANGED_FLOAT).unwrap();
    }
    machine.clobber();
}

/// A user that is eligible, also as this test is compiled: it changes every general register that
/// it may, and the first `VECTORS` vector registers, and counts.
struct FastPath<const VECTORS: usize>;

impl<const VECTORS: usize> FgraphOps for FastPath<VECTORS> {
    type Data = ();

    fn entry(&self, call: &mut Entry<'_, ()>) -> Option<()> {
        clobber_vectors::<VECTORS>();
        if call.function().address() == do_nothing as *const () as usize {
            clobber_general(&NESTED);
            return Some(());
        }
        clobber_general(&ENTRIES).then_some(())
    }

    fn ret(&self, call: &mut Return<'_, ()>, (): ()) {
        clobber_vectors::<VECTORS>();
        if call.function().address() != do_nothing as *const () as usize {
            if call.unwinding() {
                clobber_general(&UNWOUND);
            }
            clobber_general(&RETURNS);
        }
    }
}

/// Numbers of entries and returns of the users beside the counting one.
static BESIDE: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// A user like [`FastPath`], beside it.
struct Beside<const VECTORS: usize>;

impl<const VECTORS: usize> FgraphOps for Beside<VECTORS> {
    type Data = ();

    fn entry(&self, _: &mut Entry<'_, ()>) -> Option<()> {
        clobber_vectors::<VECTORS>();
        clobber_general(&BESIDE[0]).then_some(())
    }

    fn ret(&self, _: &mut Return<'_, ()>, (): ()) {
        clobber_vectors::<VECTORS>();
        clobber_general(&BESIDE[1]);
    }
}

/// A user with data, beside a [`FastPath`]. It is eligible itself if this test is optimised.
struct Keeping<const WORDS: usize>;

impl<const WORDS: usize> FgraphOps for Keeping<WORDS> {
    type Data = [u64; WORDS];

    fn entry(&self, _: &mut Entry<'_, Self::Data>) -> Option<Self::Data> {
        clobber_general(&BESIDE[0]).then_some([WORDS as u64; WORDS])
    }

    fn ret(&self, _: &mut Return<'_, Self::Data>, data: Self::Data) {
        if data == [WORDS as u64; WORDS] {
            clobber_general(&BESIDE[1]);
        }
    }
}

/// Changes the lowest 128 bits of the first so many vector registers.
fn clobber_vectors<const VECTORS: usize>() {
    macro_rules! clobber {
        ($($name:tt)*) => {
            // SAFETY: what is changed is said.
            unsafe {
                asm!(
                    $(concat!("pcmpeqd ", $name, ", ", $name),)*
                    $(out($name) _,)*
                    options(nomem, nostack),
                );
            }
        };
    }
    match VECTORS {
        0 => {}
        1 => clobber!("xmm0"),
        2 => clobber!("xmm0" "xmm1"),
        4 => clobber!("xmm0" "xmm1" "xmm2" "xmm3"),
        8 => clobber!("xmm0" "xmm1" "xmm2" "xmm3" "xmm4" "xmm5" "xmm6" "xmm7"),
        16 => clobber!(
            "xmm0" "xmm1" "xmm2" "xmm3" "xmm4" "xmm5" "xmm6" "xmm7"
            "xmm8" "xmm9" "xmm10" "xmm11" "xmm12" "xmm13" "xmm14" "xmm15"
        ),
        _ => unreachable!("no shim saves so many"),
    }
}

/// Counts one more, and says whether calls are accepted. In assembly, because functions of atomics
/// that are not optimised use vector registers.
fn clobber_general(count: &AtomicUsize) -> bool {
    let accept: u64;
    // SAFETY: a word, which nothing but atomic instructions changes; a byte; all that may be
    // changed is.
    unsafe {
        asm!(
            "lock inc qword ptr [rdi]",
            "movzx esi, byte ptr [rsi]",
            "mov rax, 0x1111111111111111",
            "mov rcx, rax",
            "mov rdx, rax",
            "mov rdi, rax",
            "mov r8, rax",
            "mov r9, rax",
            "mov r10, rax",
            "mov r11, rax",
            "add rax, rax",
            inout("rdi") count.as_ptr() => _,
            inout("rsi") ACCEPT.as_ptr() => accept,
            out("rax") _,
            out("rcx") _,
            out("rdx") _,
            out("r8") _,
            out("r9") _,
            out("r10") _,
            out("r11") _,
            options(nostack),
        );
    }
    accept != 0
}

struct StdCatch;

impl Catch for StdCatch {
    fn catch<R>(call: impl FnOnce() -> R) -> Result<R, *mut ()> {
        catch_unwind(AssertUnwindSafe(call)).map_err(|_| ptr::dangling_mut())
    }
}

/// For callbacks that do not panic.
struct NoCatch;

impl Catch for NoCatch {
    fn catch<R>(call: impl FnOnce() -> R) -> Result<R, *mut ()> {
        Ok(call())
    }
}

static MODULE: Module = module("/preserve", &());

const SHADOW: usize = 4096;
static REFUSE: AtomicBool = AtomicBool::new(false);
static ATTACHED: AtomicUsize = AtomicUsize::new(0);
static OWN_STACK: AtomicBool = AtomicBool::new(true);

/// Returns memory for frames, with return points for the trampolines of a machine.
fn shadow_memory(machine: usize) -> *mut u8 {
    const SPAN: usize = 64 << 10;
    static ARENA: OnceLock<usize> = OnceLock::new();
    /// One more than the machine.
    static WRITTEN_FOR: AtomicUsize = AtomicUsize::new(0);
    let arena = *ARENA.get_or_init(|| {
        let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, set apart for this.
        unsafe {
            let all = libc::mmap(ptr::null_mut(), 2 * SPANS * SPAN, protection, flags, -1, 0);
            assert_ne!(all, libc::MAP_FAILED);
            let arena = all.expose_provenance().next_multiple_of(SPANS * SPAN);
            assert_eq!(points::set_span(SPAN), SPAN);
            assert!(FGRAPH.points.add(arena));
            let file = symbol_file::of(arena).to_vec().leak();
            __register_frame(file[symbol_file::FDE..].as_ptr());
            arena
        }
    });
    if WRITTEN_FOR.swap(machine + 1, Ordering::Relaxed) != machine + 1 {
        let trampolines = Trampolines::caller_checking_of(MACHINES[machine].width as u32, 8);
        for kind in 0..KINDS {
            let place = ptr::with_exposed_provenance_mut(arena + (kind + 1) * SPAN);
            // SAFETY: no call is going on that returns there.
            points::write(kind, &trampolines, unsafe {
                std::slice::from_raw_parts_mut(place, SHADOW)
            });
        }
    }
    ptr::with_exposed_provenance_mut(arena)
}

/// The state that every test uses, as new.
fn fresh_thread(stack: usize) -> &'static Thread {
    // SAFETY: used by one test at a time, after it was given memory.
    static THREAD: Thread = unsafe { Thread::new() };
    let machine = MACHINE.load(Ordering::Relaxed);
    // SAFETY: nobody else's; used by one test at a time.
    unsafe { THREAD.reset_thread_stack(shadow_memory(machine), SHADOW) };
    const REACH: usize = 256 << 10;
    THREAD.leave_stack();
    THREAD.thread_stack.set_bounds(stack - REACH, stack + REACH);
    assert!(THREAD.enter_thread_stack());
    THREAD.errno.set(THREAD.no_errno());
    // SAFETY: no arguments.
    THREAD
        .owner
        .rename(unsafe { libc::gettid() }.cast_unsigned());
    THREAD
        .vector_bytes
        .set(MACHINES[MACHINE.load(Ordering::Relaxed)].width as u32);
    THREAD.entered_sp.store(0, Ordering::Relaxed);
    THREAD.hazard_slot.clear();
    &THREAD
}

extern "C" fn attach() -> *const Thread {
    let stack = 0;
    ATTACHED.fetch_add(1, Ordering::Relaxed);
    let state: *const Thread = if REFUSE.load(Ordering::Relaxed) {
        ptr::null()
    } else {
        fresh_thread((&raw const stack).addr())
    };
    MACHINES[MACHINE.load(Ordering::Relaxed)].clobber();
    state
}

extern "C" fn abort(frame: *const Frame, stack_pointer: usize) -> ! {
    eprintln!("stray return: frame {frame:p}, rsp {stack_pointer:#x}");
    std::process::abort();
}

/// There is no other stack than the thread's own, but it may be said that part of it is.
static STACKS: StackProvider = StackProvider {
    caller: |_, _| None,
    find: |_, _, _| clobbering(false),
    is_alternate: |_| clobbering(!OWN_STACK.load(Ordering::Relaxed)),
    are_on_one: |thread, low, high| {
        clobbering(thread.thread_stack.contains(low) && thread.thread_stack.contains(high))
    },
    is_gone: |_, _| clobbering(true),
};

fn clobbering(answer: bool) -> bool {
    MACHINES[MACHINE.load(Ordering::Relaxed)].clobber();
    answer
}

// SAFETY: this program is the one runtime of its process.
static FGRAPH: &Fgraph = unsafe { fgraph_core::FGRAPH.get() };

fn set_up() -> MutexGuard<'static, ()> {
    static ONCE: OnceLock<()> = OnceLock::new();
    let guard = LOCK.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    ONCE.get_or_init(|| {
        // SAFETY: one thread at a time makes calls, `attach` gives it the one state, and its stack
        // is the only one.
        unsafe {
            trampoline::install(attach, abort);
            FGRAPH.set_stacks(&STACKS);
        }
    });
    watch(Users::Clobbering);
    guard
}

/// The code of this program.
struct OwnMemory;

impl fast_path::Memory for OwnMemory {
    fn read(&mut self, address: usize, bytes: &mut [u8]) -> bool {
        // SAFETY: what is read is code of this program or in the same page, or a word that it has.
        unsafe {
            ptr::copy_nonoverlapping(address as *const u8, bytes.as_mut_ptr(), bytes.len());
        }
        true
    }

    fn is_constant(&mut self, _address: usize) -> bool {
        // Nothing here calls through a pointer.
        true
    }

    fn errno_offset(&self) -> i64 {
        // SAFETY: no arguments.
        let place = unsafe { libc::__errno_location() }.addr();
        place.wrapping_sub(cpu::thread_pointer()) as i64
    }
}

/// Users that watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Users {
    /// A user that does not qualify for the fast path.
    Clobbering,
    /// A fast-path one that changes so many vector registers.
    FastPath(usize),
    /// Three fast-path ones.
    Several,
    /// Three users, two of them with data.
    Keeping,
}

const USERS: [Users; 9] = [
    Users::Clobbering,
    Users::FastPath(0),
    Users::FastPath(1),
    Users::FastPath(2),
    Users::FastPath(4),
    Users::FastPath(8),
    Users::FastPath(16),
    Users::Several,
    Users::Keeping,
];

/// Number of users beside the counting one, which is in the first slot.
static BESIDE_IT: AtomicUsize = AtomicUsize::new(0);

/// Registers a user in a slot, as eligible if its code is. Returns how many vector registers it
/// changes then.
fn register<T: FgraphOps, C: Catch>(ops: T, slot: usize) -> Option<usize> {
    let callbacks = Registration::<T>::fast_path::<C>(1).unwrap();
    let [entry, ret] = callbacks.map(|function| fast_path::vectors(function, &mut OwnMemory));
    let vectors = entry.ok().zip(ret.ok());
    FGRAPH.eligible.set(slot, vectors.is_some());
    let epoch = FGRAPH.epoch.advance();
    let mut user = Registration::new::<C>(ops, slot, epoch, 1);
    if let Some((entry, ret)) = vectors {
        user = user.through(trampoline::shims([entry, ret]));
    }
    let header: &Header = Box::leak(Box::new(user)).header();
    // SAFETY: the user was made for that slot, and is never freed.
    unsafe { FGRAPH.slots.publish(slot, header) };
    vectors.map(|(entry, ret)| entry.max(ret))
}

/// Replaces the users.
fn watch(users: Users) {
    let several = matches!(users, Users::Several | Users::Keeping);
    for slot in 0..3 {
        FGRAPH.slots.retire(slot);
        FGRAPH.epoch.set_enabled(slot, slot == 0 || several);
    }
    BESIDE_IT.store(if several { 2 } else { 0 }, Ordering::Relaxed);
    match users {
        Users::Clobbering => assert_eq!(register::<_, StdCatch>(Clobbering, 0), None),
        Users::FastPath(vectors) => {
            let changed = match vectors {
                0 => register::<_, NoCatch>(FastPath::<0>, 0),
                1 => register::<_, NoCatch>(FastPath::<1>, 0),
                2 => register::<_, NoCatch>(FastPath::<2>, 0),
                4 => register::<_, NoCatch>(FastPath::<4>, 0),
                8 => register::<_, NoCatch>(FastPath::<8>, 0),
                _ => register::<_, NoCatch>(FastPath::<16>, 0),
            };
            assert_eq!(changed, Some(vectors));
        }
        Users::Several => {
            assert_eq!(register::<_, NoCatch>(FastPath::<0>, 0), Some(0));
            assert_eq!(register::<_, NoCatch>(Beside::<2>, 1), Some(2));
            assert_eq!(register::<_, NoCatch>(Beside::<16>, 2), Some(16));
        }
        Users::Keeping => {
            let changed = [
                register::<_, NoCatch>(FastPath::<0>, 0),
                register::<_, NoCatch>(Keeping::<3>, 1),
                register::<_, NoCatch>(Keeping::<2>, 2),
            ];
            let are_eligible = changed.iter().all(Option::is_some);
            assert!(are_eligible || cfg!(debug_assertions), "{changed:?}");
        }
    }
}

/// A site without a call to it, whose stub leads to `trampoline`; returns the stub's address.
fn make_site(body: usize, kind: StubKind, trampoline: usize) -> usize {
    make_site_for(0b111, body, kind, trampoline)
}

/// Makes a site as [`make_site`] does, for users in the slots of `interest`.
fn make_site_for(interest: u16, body: usize, kind: StubKind, trampoline: usize) -> usize {
    const LEN: usize = 4096;
    const STUB: usize = 256;
    let site: &'static Site = Box::leak(Box::new(Site {
        entry: body,
        body,
        interest: AtomicU16::new(interest),
        lead: 0,
        state: AtomicU8::new(0),
        inner: [0; 4],
        name: SiteName::new("body"),
        index: 0,
        module: &MODULE,
        stub: 0,
        runtime: AtomicU64::new(0),
    }));
    // SAFETY: a new private mapping, written within its bounds before it is made executable, and
    // never unmapped.
    unsafe {
        let page = libc::mmap(
            ptr::null_mut(),
            LEN,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
        .cast::<u8>();
        assert_ne!(page.cast(), libc::MAP_FAILED);
        page.cast::<u64>().write(trampoline as u64);
        let at = page.addr() + STUB;
        let record = ptr::from_ref(site).addr() as u64;
        let code = kind.encode(at, record, page.addr()).expect("it is near");
        ptr::copy_nonoverlapping(code.as_ptr(), page.add(STUB), code.len());
        let info = page.add(stub::HEADER_EH_FRAME);
        info.cast::<[u8; stub::EH_FRAME_LEN]>()
            .write(stub::eh_frame(at, code.len(), info.addr()));
        let protection = libc::PROT_READ | libc::PROT_EXEC;
        assert_eq!(libc::mprotect(page.cast(), LEN, protection), 0);
        __register_frame(info.add(stub::EH_FRAME_FDE));
        at
    }
}

unsafe extern "C" {
    fn __register_frame(begin: *const u8);
}

/// Registers that must survive, with the number of bytes of each.
#[derive(Clone, Copy, Debug)]
struct Survive {
    vectors: usize,
    beyond: usize,
    opmasks: usize,
}

const NOTHING: Survive = Survive {
    vectors: 0,
    beyond: 0,
    opmasks: 0,
};

/// A trampoline under test.
#[derive(Clone, Copy)]
struct Subject {
    name: &'static str,
    machine: usize,
    stub: usize,
    survive: Survive,
    returns: bool,
    /// True if only the registers that a callee must preserve are checked.
    plain: bool,
}

impl Subject {
    fn machine(&self) -> &'static Machine {
        &MACHINES[self.machine]
    }
}

/// Returns all subjects that this machine can run.
fn subjects() -> &'static [Subject] {
    static SUBJECTS: OnceLock<Vec<Subject>> = OnceLock::new();
    SUBJECTS.get_or_init(|| {
        let mut subjects = Vec::new();
        let twins = [Trampolines::of, Trampolines::caller_checking_of];
        let machines = MACHINES.iter().enumerate();
        for ((index, machine), of) in machines.flat_map(|machine| twins.map(|of| (machine, of))) {
            let vectors = machine.width;
            // The driver moves opmasks of 8 bytes.
            if vectors > cpu::vector_bytes() as usize || (vectors == 64 && cpu::opmask_bytes() < 8)
            {
                skip!("functions with vectors of {vectors} bytes: this processor has none");
                continue;
            }
            let mut add = |name, kind, trampoline, survive, returns| {
                subjects.push(Subject {
                    name,
                    machine: index,
                    stub: make_site(machine.body as usize, kind, trampoline),
                    survive,
                    returns,
                    plain: kind == StubKind::Plain,
                });
            };
            let some = of(vectors as u32, 8);
            let kept = Survive { vectors, ..NOTHING };
            add(
                "plain",
                StubKind::Plain,
                some.entry(Variant::Plain),
                NOTHING,
                true,
            );
            add(
                "preserve",
                StubKind::Preserving,
                some.entry(Variant::Preserve),
                kept,
                true,
            );
            add(
                "entry_only",
                StubKind::Preserving,
                some.entry(Variant::EntryOnly),
                kept,
                false,
            );
            if vectors < 64 {
                continue;
            }
            for opmasks in [8, 2] {
                let some = of(64, opmasks);
                let opmasks = opmasks as usize;
                let all = Survive {
                    vectors,
                    beyond: 64,
                    opmasks,
                };
                add(
                    "preserve_all",
                    StubKind::Preserving,
                    some.entry(Variant::PreserveAll),
                    all,
                    true,
                );
                add(
                    "entry_only_all",
                    StubKind::Preserving,
                    some.entry(Variant::EntryOnlyAll),
                    all,
                    false,
                );
            }
        }
        subjects
    })
}

/// Returns the traced function, without effect, that the handler of single steps calls.
fn nested_site() -> extern "C" fn() {
    static STUB: OnceLock<usize> = OnceLock::new();
    let stub = *STUB.get_or_init(|| {
        let trampolines = Trampolines::of(cpu::vector_bytes(), cpu::opmask_bytes());
        let body = do_nothing as *const () as usize;
        // Not for those beside, which count all their calls.
        make_site_for(
            0b1,
            body,
            StubKind::Preserving,
            trampolines.entry(Variant::PreserveAll),
        )
    });
    // SAFETY: a stub is called like the function that it leads to.
    unsafe { std::mem::transmute::<usize, extern "C" fn()>(stub) }
}

/// Says which registers of those that must survive are not what they should be; of the general
/// ones, those in `general` are looked at.
fn differences(
    got: &Registers,
    wanted: &Registers,
    survive: Survive,
    general: &[usize],
) -> Vec<String> {
    let mut found = Vec::new();
    for n in 0..32 {
        let bytes = if n < 16 {
            survive.vectors
        } else {
            survive.beyond
        };
        let [got, wanted] = [got, wanted].map(|registers| &registers.vectors[n][..bytes]);
        if got != wanted {
            found.push(format!("vector {n}: {got:x?} for {wanted:x?}"));
        }
    }
    for n in 0..8 {
        let [got, wanted] = [got, wanted].map(|registers| registers.opmasks[n].to_le_bytes());
        if got[..survive.opmasks] != wanted[..survive.opmasks] {
            found.push(format!("k{n}: {got:x?} for {wanted:x?}"));
        }
    }
    for &n in general {
        let [got, wanted] = [got, wanted].map(|registers| registers.general[n]);
        if got != wanted {
            found.push(format!("{}: {got:#x} for {wanted:#x}", GENERAL[n]));
        }
    }
    found
}

/// The condition in which a call finds the thread.
#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// As usual.
    Usual,
    /// Without a state.
    FirstHit,
    /// While its state was being made, a handler has left that for a shallower frame.
    LeftFirstHit,
    /// Without a state, and none can be made.
    Refused,
    /// The thread is in fgraph's own code.
    Inside,
    /// Marked by a callback that was left.
    Stale,
    /// Marked so that it seems stale, but on a stack that is not its own.
    StaleElsewhere,
    /// The thread is in fgraph's own code when the body returns.
    InsideAtReturn,
    /// The thread is still marked by an abandoned callback when the body returns.
    StaleAtReturn,
}

/// One call.
#[derive(Clone, Debug)]
struct Case {
    accept: bool,
    misaligned: bool,
    state: State,
    /// Callbacks ask for vectors as wide as the machine's.
    widen: bool,
}

const USUAL: Case = Case {
    accept: true,
    misaligned: false,
    state: State::Usual,
    widen: false,
};

const CALLER_SAVED: [usize; 9] = [0, 1, 2, 6, 7, 8, 9, 10, 11];

/// Begins to make the thread's state, deeper than any call of this test, and does not end that.
#[inline(never)]
fn leave_first_hit() {
    let deep = [0u8; 64 << 10];
    std::hint::black_box(&deep);
    // SAFETY: the next hit makes the state.
    unsafe { trampoline::set_attaching() };
    std::hint::black_box(&deep);
}

/// Makes the call and looks at all registers, in the body and afterwards.
fn check(subject: &Subject, case: &Case, at_call: Registers, at_return: Registers) {
    static UNREAD: AtomicUsize = AtomicUsize::new(0);
    let here = ptr::from_ref(&at_call).addr();
    MACHINE.store(subject.machine, Ordering::Relaxed);
    ACCEPT.store(case.accept, Ordering::Relaxed);
    WIDEN.store(case.widen, Ordering::Relaxed);
    REFUSE.store(case.state == State::Refused, Ordering::Relaxed);
    OWN_STACK.store(case.state != State::StaleElsewhere, Ordering::Relaxed);
    let thread = fresh_thread(here);
    // Deeper than any call of this test.
    let stale = thread.thread_stack.low.get() + 64;
    let inside = match case.state {
        State::Inside => Thread::INTERNAL,
        State::Stale | State::StaleElsewhere => stale,
        _ => 0,
    };
    thread.entered_sp.store(inside, Ordering::Relaxed);
    let written = match case.state {
        State::InsideAtReturn => Some(Thread::INTERNAL),
        State::StaleAtReturn => Some(stale),
        _ => None,
    };
    WRITTEN.set(written.unwrap_or(0));
    let write_to = if written.is_some() {
        &thread.entered_sp
    } else {
        &UNREAD
    };
    WRITE_TO.set(write_to.as_ptr().addr());
    let first = matches!(
        case.state,
        State::FirstHit | State::LeftFirstHit | State::Refused
    );
    // SAFETY: the state is this thread's for as long as the test holds the lock.
    unsafe { trampoline::set_current(if first { ptr::null() } else { thread }) };
    if case.state == State::LeftFirstHit {
        leave_first_hit();
    }
    for counter in [&ENTRIES, &RETURNS, &ATTACHED, &BESIDE[0], &BESIDE[1]] {
        counter.store(0, Ordering::Relaxed);
    }
    CALLER_HAS.set(at_call);
    BODY_LEAVES.set(at_return);
    let mut none = BODY_GETS.get();
    none.general[RSP] = 0;
    BODY_GETS.set(none);
    TARGET.set(subject.stub);
    // SAFETY: only the counters are used.
    let attaching = unsafe { trampoline::attaching() };
    let uncounted = |thread: &Thread| {
        let (own, first) = (thread.total.read(), attaching.total.read());
        own.missed + own.internal + first.missed + first.internal
    };
    let missed = uncounted(thread);

    let machine = subject.machine();
    if stepping::ON.load(Ordering::Relaxed) {
        let run = stepping::Run {
            driver: machine.driver(case.misaligned),
            through: [machine.body_code(), subject.stub..subject.stub + 24],
            // Without a state the handler's call would make one first.
            nested: (!first).then_some(nested_site()),
        };
        match stepping::run(run, || machine.drive(case.misaligned)) {
            Ok(steps) => STEPS.fetch_add(steps, Ordering::Relaxed),
            Err(wrong) => panic!("{} {} {case:?}: {wrong}", subject.name, machine.width),
        };
    } else {
        machine.drive(case.misaligned);
    }

    // SAFETY: no state is anybody's.
    unsafe { trampoline::set_current(ptr::null()) };
    let what = format!("{} {} {case:?}", subject.name, subject.machine().width);
    let (has, gets) = (CALLER_HAS.get(), CALLER_GETS.get());
    let body_gets = BODY_GETS.get();
    let [mut body_wants, mut caller_wants] = [has.clone(), BODY_LEAVES.get()];
    if CHANGE.load(Ordering::Relaxed) {
        body_wants.general[R9] = CHANGED;
        body_wants.vectors[7][..8].copy_from_slice(&CHANGED_FLOAT.to_le_bytes());
        if subject.returns {
            caller_wants.general[RDX] = CHANGED;
            caller_wants.vectors[0][..8].copy_from_slice(&CHANGED_FLOAT.to_le_bytes());
        }
    }

    let asked = !matches!(
        case.state,
        State::Refused | State::Inside | State::StaleElsewhere
    );
    let skipped = OUTCOMES.get(SKIP.load(Ordering::Relaxed));
    if let Some(outcome) = skipped {
        caller_wants = has.clone();
        match *outcome {
            Outcome::Int(value) => caller_wants.general[RAX] = value,
            Outcome::Ints(low, high) => {
                (caller_wants.general[RAX], caller_wants.general[RDX]) = (low, high);
            }
            Outcome::Float(value) => {
                caller_wants.vectors[0][..16].fill(0);
                caller_wants.vectors[0][..8].copy_from_slice(&value.to_le_bytes());
            }
            Outcome::Float32(value) => {
                caller_wants.vectors[0][..16].fill(0);
                caller_wants.vectors[0][..4].copy_from_slice(&value.to_le_bytes());
            }
            _ => {}
        }
    }
    let framed = asked && case.accept && subject.returns;
    let told = framed && case.state != State::InsideAtReturn;
    let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
    assert_eq!(count(&ATTACHED), usize::from(first), "{what}");
    assert_eq!(count(&ENTRIES), usize::from(asked), "{what}");
    assert_eq!(count(&RETURNS), usize::from(told), "{what}");
    let beside = count(&BESIDE_IT);
    assert_eq!(count(&BESIDE[0]), beside * count(&ENTRIES), "{what}");
    assert_eq!(count(&BESIDE[1]), beside * count(&RETURNS), "{what}");
    let depth = usize::from(framed && !told);
    assert_eq!(thread.shadow.depth() as usize, depth, "{what}");
    let missed = uncounted(thread) - missed;
    let misses = matches!(case.state, State::Inside | State::StaleElsewhere);
    if !stepping::ON.load(Ordering::Relaxed) {
        assert_eq!(missed, u64::from(misses), "{what}");
    }
    if written.is_none() && !misses {
        assert_eq!(thread.entered_sp.load(Ordering::Relaxed), 0, "{what}");
    }

    let caller_saved: &[usize] = if subject.plain { &[] } else { &CALLER_SAVED };
    if skipped.is_some() {
        assert_eq!(body_gets.general[RSP], 0, "{what}: the body has run");
    } else {
        let found = differences(&body_gets, &body_wants, subject.survive, caller_saved);
        assert!(found.is_empty(), "{what}: in the body {found:#?}");
        for n in CALLEE_SAVED {
            assert_eq!(
                body_gets.general[n], has.general[n],
                "{what}: {}",
                GENERAL[n]
            );
        }
        assert_eq!(body_gets.general[RSP], has.general[RSP] - 8, "{what}");
    }

    let found = differences(&gets, &caller_wants, subject.survive, caller_saved);
    assert!(found.is_empty(), "{what}: afterwards {found:#?}");
    let found = differences(&gets, &has, NOTHING, &CALLEE_SAVED);
    assert!(found.is_empty(), "{what}: afterwards {found:#?}");
    let result: &[usize] = match skipped {
        Some(Outcome::Int(_)) => &[RAX],
        Some(Outcome::Ints(..)) => &[RAX, RDX],
        Some(Outcome::Float(_) | Outcome::Float32(_)) => {
            assert_eq!(gets.vectors[0][..8], caller_wants.vectors[0][..8], "{what}");
            &[]
        }
        _ => &[],
    };
    let found = differences(&gets, &caller_wants, NOTHING, result);
    assert!(found.is_empty(), "{what}: the result {found:#?}");
    assert_eq!(gets.general[RSP], has.general[RSP], "{what}");
}

const STATES: [State; 9] = [
    State::Usual,
    State::FirstHit,
    State::LeftFirstHit,
    State::Refused,
    State::Inside,
    State::Stale,
    State::StaleElsewhere,
    State::InsideAtReturn,
    State::StaleAtReturn,
];

#[test]
fn every_register_survives_every_kind_of_call() {
    let _guard = set_up();
    for users in USERS {
        watch(users);
        check_all();
    }
}

fn check_all() {
    let mut seed = 0;
    let mut pattern = |bytes| {
        seed += 1;
        Registers::pattern(seed).narrowed(bytes)
    };
    for subject in subjects() {
        for state in STATES {
            for bits in 0..32 {
                let is = |bit| bits & (1 << bit) != 0;
                let case = Case {
                    accept: is(0),
                    misaligned: is(1),
                    state,
                    widen: is(2),
                };
                let [at_call, at_return] =
                    [is(3), is(4)].map(|wide| pattern(if wide { 64 } else { 16 }));
                check(subject, &case, at_call, at_return);
            }
        }
    }
}

#[test]
fn one_wide_register_among_narrow_ones_survives() {
    let _guard = set_up();
    for subject in subjects() {
        for misaligned in [false, true] {
            for n in 0..16 {
                for byte in [16, 31, 32, 63] {
                    let case = Case {
                        misaligned,
                        ..USUAL
                    };
                    let narrow = || Registers::pattern(n as u64).narrowed(16);
                    let mut wide = narrow();
                    wide.vectors[n][byte] = 0x80;
                    check(subject, &case, wide.clone(), narrow());
                    check(subject, &case, narrow(), wide);
                }
            }
        }
    }
}

/// Calls that are skipped: whoever wants the return, aligned or not, with every outcome, in every
/// register.
fn check_skips(subject: &Subject, states: &[State]) {
    for skip in 0..OUTCOMES.len() {
        SKIP.store(skip, Ordering::Relaxed);
        for &state in states {
            for bits in 0..4 {
                let case = Case {
                    accept: bits & 1 != 0,
                    misaligned: bits & 2 != 0,
                    state,
                    widen: bits == 3,
                };
                let [at_call, at_return] = [1, 2].map(Registers::pattern);
                check(subject, &case, at_call, at_return);
            }
        }
    }
    SKIP.store(OUTCOMES.len(), Ordering::Relaxed);
}

#[test]
fn a_skipped_call_changes_its_result_and_nothing_else() {
    let _guard = set_up();
    for subject in subjects() {
        check_skips(subject, &[State::Usual, State::FirstHit, State::Stale]);
    }
}

#[test]
fn the_unwinder_gets_through_from_every_instruction_of_a_skipped_call() {
    let _guard = set_up();
    stepping::ON.store(true, Ordering::Relaxed);
    STEPS.store(0, Ordering::Relaxed);
    for subject in subjects() {
        check_skips(subject, &[State::Usual]);
    }
    stepping::ON.store(false, Ordering::Relaxed);
    assert!(STEPS.load(Ordering::Relaxed) > 1000);
}

#[test]
fn callbacks_change_arguments_and_results_and_nothing_else() {
    let _guard = set_up();
    for subject in subjects() {
        let [at_call, at_return] = [1, 2].map(Registers::pattern);
        CHANGE.store(true, Ordering::Relaxed);
        check(subject, &USUAL, at_call, at_return);
        CHANGE.store(false, Ordering::Relaxed);
    }
}

#[test]
fn the_unwinder_gets_through_from_every_instruction() {
    let _guard = set_up();
    step_through_all();
}

#[test]
fn the_unwinder_gets_through_from_every_instruction_of_the_short_way() {
    let _guard = set_up();
    for users in [Users::FastPath(0), Users::FastPath(1), Users::Several] {
        watch(users);
        step_through_all();
    }
}

fn step_through_all() {
    stepping::ON.store(true, Ordering::Relaxed);
    STEPS.store(0, Ordering::Relaxed);
    NESTED.store(0, Ordering::Relaxed);
    let widest = subjects().last().map(|subject| subject.machine);
    for subject in subjects() {
        // The side paths are the same in all, and single steps take their time.
        let all = Some(subject.machine) == widest;
        for &state in &STATES[..if all { STATES.len() } else { 1 }] {
            for (accept, misaligned) in [(true, false), (true, true), (false, true)] {
                let case = Case {
                    accept,
                    misaligned,
                    state,
                    widen: misaligned,
                };
                check(
                    subject,
                    &case,
                    Registers::pattern(1),
                    Registers::pattern(2).narrowed(16),
                );
            }
        }
    }
    stepping::ON.store(false, Ordering::Relaxed);
    let [steps, nested] = [&STEPS, &NESTED].map(|count| count.load(Ordering::Relaxed));
    println!("{steps} instructions, {nested} traced calls from the handler");
    assert!(steps > 1000 && nested > 100);
}

/// The trampolines that are installed, and what survives them.
fn installed() -> [(StubKind, usize, Survive); 3] {
    let trampolines = Trampolines::of(cpu::vector_bytes(), cpu::opmask_bytes());
    let vectors = cpu::vector_bytes() as usize;
    let first_16 = Survive { vectors, ..NOTHING };
    let all = if vectors == 64 {
        Survive {
            vectors,
            beyond: 64,
            opmasks: cpu::opmask_bytes() as usize,
        }
    } else {
        first_16
    };
    [
        (StubKind::Plain, trampolines.entry(Variant::Plain), NOTHING),
        (
            StubKind::Preserving,
            trampolines.entry(Variant::Preserve),
            first_16,
        ),
        (
            StubKind::Preserving,
            trampolines.entry(Variant::PreserveAll),
            all,
        ),
    ]
}

#[test]
fn a_traced_function_may_jump_to_another_with_any_trampoline() {
    let _guard = set_up();
    for users in USERS {
        watch(users);
        check_tail_calls();
    }
}

fn check_tail_calls() {
    let subject = subjects().last().unwrap();
    let machine = subject.machine();
    MACHINE.store(subject.machine, Ordering::Relaxed);
    ACCEPT.store(true, Ordering::Relaxed);
    WIDEN.store(false, Ordering::Relaxed);
    static NOWHERE: AtomicUsize = AtomicUsize::new(0);
    WRITE_TO.set(NOWHERE.as_ptr().addr());
    for outer in installed() {
        for inner in installed() {
            let here = 0_usize;
            let thread = fresh_thread((&raw const here).addr());
            let lost = thread.total.read().lost;
            // SAFETY: as in `check`.
            unsafe { trampoline::set_current(thread) };
            TARGET.set(make_site(tail_call as *const () as usize, outer.0, outer.1));
            TAIL_TARGET.set(make_site(machine.body as usize, inner.0, inner.1));
            CALLER_HAS.set(Registers::pattern(1));
            BODY_LEAVES.set(Registers::pattern(2));
            for counter in [&ENTRIES, &RETURNS] {
                counter.store(0, Ordering::Relaxed);
            }
            machine.drive(false);
            // SAFETY: as in `check`.
            unsafe { trampoline::set_current(ptr::null()) };
            let counts = [&ENTRIES, &RETURNS].map(|count| count.load(Ordering::Relaxed));
            assert_eq!((counts, thread.total.read().lost), ([2, 2], lost));
            assert_eq!(thread.shadow.depth(), 0);
            let survive = Survive {
                vectors: outer.2.vectors.min(inner.2.vectors),
                beyond: outer.2.beyond.min(inner.2.beyond),
                opmasks: outer.2.opmasks.min(inner.2.opmasks),
            };
            let general: &[usize] = if survive.vectors == 0 {
                &[]
            } else {
                &CALLER_SAVED
            };
            let found = differences(&BODY_GETS.get(), &CALLER_HAS.get(), survive, general);
            assert!(found.is_empty(), "in the body {found:#?}");
            let found = differences(&CALLER_GETS.get(), &BODY_LEAVES.get(), survive, general);
            assert!(found.is_empty(), "afterwards {found:#?}");
        }
    }
}

#[test]
fn users_see_the_returns_of_calls_that_a_panic_unwinds() {
    let _guard = set_up();
    for users in USERS {
        watch(users);
        check_panics();
    }
}

fn check_panics() {
    type Unwinding = extern "C-unwind" fn(usize, usize, usize, usize, usize, usize, usize, u64);
    extern "C-unwind" fn panics(
        _: usize,
        _: usize,
        _: usize,
        _: usize,
        _: usize,
        _: usize,
        _: usize,
        on_the_stack: u64,
    ) {
        assert_eq!(on_the_stack, 8);
        std::panic::resume_unwind(Box::new(9));
    }
    CALLER_HAS.set(Registers::pattern(1));
    let first = CALLER_HAS.get().general[RDI] as usize;
    MACHINE.store(0, Ordering::Relaxed);
    ACCEPT.store(true, Ordering::Relaxed);
    WIDEN.store(false, Ordering::Relaxed);
    for (kind, address, _) in installed() {
        let here = 0_usize;
        let thread = fresh_thread((&raw const here).addr());
        let stub = make_site(panics as *const () as usize, kind, address);
        // SAFETY: a stub is called like the function that it leads to.
        let call = unsafe { std::mem::transmute::<usize, Unwinding>(stub) };
        RETURNS.store(0, Ordering::Relaxed);
        UNWOUND.store(0, Ordering::Relaxed);
        // SAFETY: as in `check`.
        unsafe { trampoline::set_current(thread) };
        let result = catch_unwind(|| call(first, 2, 3, 4, 5, 6, 7, 8));
        // SAFETY: as in `check`.
        unsafe { trampoline::set_current(ptr::null()) };
        let payload = result.expect_err("it panicked");
        assert_eq!(payload.downcast_ref(), Some(&9));
        let counts = [&RETURNS, &UNWOUND].map(|count| count.load(Ordering::Relaxed));
        assert_eq!(counts, [1, 1]);
    }
}
