//! Users whose callbacks leave everything alone but general registers and the lower parts of vector
//! registers: their calls take the fast path, on which as much must hold.

use std::arch::asm;
use std::cell::Cell;
use std::convert::Infallible;
use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Instant;

use corosensei::Coroutine;
use fgraph::{Entry, FastPath, FgraphOps, Handle, IneligibleReason, Options, Return, Ticks};
use fgraph_needs::{CC, CLANG, GCC, Missing, Need, needs, skip};
use fgraph_scenario::{library, numbers, register, scenario};

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

/// Counts as [`Bare`] does, and is not eligible.
#[derive(Default)]
struct Other(Bare);

impl FgraphOps for Other {
    type Data = ();

    fn entry(&self, _: &mut Entry<'_, ()>) -> Option<()> {
        add_one(&self.0.entries);
        // SAFETY: leaves the registers as they were.
        unsafe { asm!("fldpi", "fstp st(0)", options(nomem, nostack)) };
        Some(())
    }

    fn ret(&self, _: &mut Return<'_, ()>, (): ()) {
        add_one(&self.0.returns);
    }
}

#[scenario]
fn a_fast_path_user_gets_its_calls_alone_and_among_others() {
    let bare = register(Bare::default(), "halves").unwrap();
    assert!(bare.fast_path().unwrap().is_eligible());
    assert_eq!(halves(3.0, 2), 3.5);
    assert_eq!(bare.user().counts(), (1, 1));
    // A second user of the same kind, and one of another.
    let second = register(Bare::default(), "halves").unwrap();
    assert_eq!(halves(5.0, 0), 2.5);
    let third = register(Other::default(), "halves").unwrap();
    assert!(!third.fast_path().unwrap().is_eligible());
    assert_eq!(halves(7.0, 1), 4.5);
    assert_eq!(
        (bare.user().counts(), second.user().counts()),
        ((3, 3), (2, 2))
    );
    assert_eq!(third.user().0.counts(), (1, 1));
    drop(bare);
    assert_eq!(halves(1.0, 0), 0.5);
    assert_eq!(
        (second.user().counts(), third.user().0.counts()),
        ((3, 3), (2, 2))
    );
    drop(third);
    assert_eq!(halves(1.0, 0), 0.5);
    assert_eq!(second.user().counts(), (4, 4));
    second.set_enabled(false);
    halves(1.0, 0);
    assert_eq!(second.user().counts(), (4, 4));
}

/// Tells how long it is there at each entry and return. It has no data: the checks of debug builds
/// on the way of data may panic.
struct Timed {
    begin: Ticks,
    told: AtomicU64,
}

impl FgraphOps for Timed {
    type Data = ();

    fn entry(&self, _: &mut Entry<'_, ()>) -> Option<()> {
        self.told.store(self.begin.elapsed_ns(), Ordering::Relaxed);
        Some(())
    }

    fn ret(&self, _: &mut Return<'_, ()>, (): ()) {
        self.told.store(self.begin.elapsed_ns(), Ordering::Relaxed);
    }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn spins(nanoseconds: u64) {
    let begin = Instant::now();
    while (begin.elapsed().as_nanos() as u64) < nanoseconds {
        black_box(());
    }
}

#[scenario]
fn ticks_keep_a_user_on_the_fast_path_and_tell_the_time() {
    let (before, begin) = (Instant::now(), Ticks::now());
    let after = Instant::now();
    let told = AtomicU64::new(0);
    let user = register(Timed { begin, told }, "spins").unwrap();
    assert_eq!(user.fast_path().unwrap(), FastPath::Eligible);
    // From where the rate is not known well to where it stays.
    for nanoseconds in [0, 1000, 200_000, 20_000_000, 1000] {
        let least = after.elapsed().as_nanos() as u64 + nanoseconds;
        spins(nanoseconds);
        let most = before.elapsed().as_nanos() as u64;
        let told = user.user().told.load(Ordering::Relaxed);
        // A rate that was measured in a tenth of a millisecond is a little off.
        assert!(told >= least - least / 50, "{told} of {least}");
        assert!(told <= most + most / 50, "{told} of {most}");
    }
    let (earlier, later) = (Ticks::now(), Ticks::now());
    assert!(earlier <= later);
    assert_eq!(earlier.ns_since(later), 0);
}

/// User that, at each entry and return, does what no callback on the fast path may do.
#[derive(Default)]
struct Aside {
    told: AtomicU64,
    panics: AtomicU64,
}

impl Aside {
    fn act(&self) {
        let work = || {
            changes_vectors();
            // SAFETY: the thread's own.
            unsafe { *libc::__errno_location() = libc::EDOM };
            let told = self.told.fetch_add(1, Ordering::Relaxed);
            assert!(told < 4, "the fifth panics");
            black_box(format!("{:.3}", (told as f64).sin())).len()
        };
        // SAFETY: it has nothing to do with the call.
        if unsafe { fgraph::with_registers_saved(work) }.is_none() {
            self.panics.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl FgraphOps for Aside {
    type Data = ();

    fn entry(&self, _: &mut Entry<'_, ()>) -> Option<()> {
        self.act();
        Some(())
    }

    fn ret(&self, _: &mut Return<'_, ()>, (): ()) {
        self.act();
    }
}

#[scenario]
fn work_with_registers_saved_keeps_a_user_on_the_fast_path_and_changes_nothing() {
    let user = register(Aside::default(), "halves").unwrap();
    // Code that is not optimised may do anything on the way there.
    if !cfg!(debug_assertions) {
        assert_eq!(user.fast_path().unwrap(), FastPath::Eligible);
    }
    std::panic::set_hook(Box::new(|_| ()));
    for (calls, panics) in [(1, 0), (2, 0), (3, 2)] {
        // SAFETY: the thread's own.
        unsafe { *libc::__errno_location() = 7 };
        assert_eq!(halves(3.0, calls), 1.5 + calls as f64);
        // SAFETY: as above.
        assert_eq!(unsafe { *libc::__errno_location() }, 7);
        assert_eq!(user.user().told.load(Ordering::Relaxed), 2 * calls);
        assert_eq!(user.user().panics.load(Ordering::Relaxed), panics);
    }
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

/// Defines the further actions of a callback, and a list of all.
macro_rules! does {
    ($($what:ident),*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        enum Does {
            $($what),*
        }

        use Does::*;

        const ALL: &[Does] = &[$($what),*];

        /// Traces a function by a user of each kind.
        fn trace_doing_each() {
            $(trace_doing::<{ $what as usize }>();)*
        }
    };
}

does!(
    Sse,
    SseInAFunction,
    Avx,
    Opmask,
    X87,
    Mmx,
    Mxcsr,
    Errno,
    ErrnoInALibrary,
    OwnThreadLocal,
    CallOfALibrary,
    CallThroughAPointer
);

impl Does {
    /// Returns true if this processor can do it.
    fn is_possible(self) -> bool {
        match self {
            Avx => is_x86_feature_detected!("avx"),
            Opmask => is_x86_feature_detected!("avx512f"),
            _ => true,
        }
    }
}

extern "C" fn changes_vectors() {
    // SAFETY: says what it changes.
    unsafe {
        asm!(
            "pcmpeqd xmm0, xmm0",
            "pcmpeqd xmm15, xmm15",
            out("xmm0") _,
            out("xmm15") _,
            options(nomem, nostack)
        );
    }
}

thread_local! {
    static OWN: Cell<u64> = const { Cell::new(0) };
}

/// Target that the analysis cannot know.
static POINTER: AtomicPtr<()> = AtomicPtr::new(changes_vectors as *mut ());

/// User that does the action with this index in [`ALL`] at entry and at return.
struct Doing<const INDEX: usize>;

impl<const INDEX: usize> Doing<INDEX> {
    #[inline(always)]
    fn act(&self) {
        // SAFETY: each says what it changes, and changes no more of what the ABI keeps.
        unsafe {
            match ALL[INDEX] {
                Sse => asm!("pcmpeqd xmm0, xmm0", out("xmm0") _, options(nomem, nostack)),
                SseInAFunction => changes_vectors(),
                Avx => asm!(
                    "vcmpps ymm0, ymm0, ymm0, 15",
                    out("ymm0") _,
                    options(nomem, nostack)
                ),
                Opmask => asm!("kxnorw k1, k1, k1", out("k1") _, options(nomem, nostack)),
                X87 => asm!("fldpi", "fstp st(0)", options(nomem, nostack)),
                Mmx => asm!("movq mm0, rax", "emms", options(nomem, nostack)),
                Mxcsr => {
                    let mut control = 0_u32;
                    asm!("stmxcsr [{0}]", "ldmxcsr [{0}]", in(reg) &raw mut control);
                }
                Errno => *libc::__errno_location() = 7,
                ErrnoInALibrary => {
                    libc::strtol(c"99999999999999999999".as_ptr(), ptr::null_mut(), 10);
                }
                OwnThreadLocal => OWN.set(OWN.get() + 1),
                CallOfALibrary => {
                    libc::getppid();
                }
                CallThroughAPointer => {
                    let pointer = black_box(POINTER.load(Ordering::Relaxed));
                    mem::transmute::<*mut (), extern "C" fn()>(pointer)();
                }
            }
        }
    }
}

impl<const INDEX: usize> FgraphOps for Doing<INDEX> {
    type Data = ();

    fn entry(&self, _: &mut Entry<'_, ()>) -> Option<()> {
        self.act();
        Some(())
    }

    fn ret(&self, _: &mut Return<'_, ()>, (): ()) {
        self.act();
    }
}

/// Traces a function by a user that does something beside, alone and with another one, which is
/// eligible.
fn trace_doing<const INDEX: usize>() {
    let does = ALL[INDEX];
    if !does.is_possible() {
        skip!("callbacks with {does:?}: this processor cannot");
        return;
    }
    let user = register(Doing::<INDEX>, "halves").unwrap();
    // A call through a pointer may be known to lead where it does, but not to lead there always.
    let is_eligible = matches!(does, Sse | SseInAFunction | OwnThreadLocal);
    // Without optimisation even that is several functions of the library.
    if does != OwnThreadLocal || !cfg!(debug_assertions) {
        assert_eq!(
            user.fast_path().unwrap().is_eligible(),
            is_eligible,
            "{does:?}"
        );
    }
    let bare = register(Bare::default(), "halves").unwrap();
    for is_alone in [false, true] {
        bare.set_enabled(!is_alone);
        // SAFETY: this thread's own.
        unsafe { *libc::__errno_location() = 3 };
        assert_eq!(halves(3.0, 2), 3.5, "{does:?}");
        // SAFETY: this thread's own.
        assert_eq!(unsafe { *libc::__errno_location() }, 3, "{does:?}");
    }
    assert_eq!(bare.user().counts(), (1, 1));
}

#[scenario]
fn callbacks_change_no_register_of_the_program() {
    trace_doing_each();
}

/// A page with the address of a C function, read-only while callbacks use it: so is a word that a
/// linker has filled in.
#[repr(C, align(4096))]
struct LinkedPage([AtomicUsize; 512]);

static LINKED: LinkedPage = LinkedPage([const { AtomicUsize::new(0) }; 512]);

impl LinkedPage {
    fn protect(&self, protection: c_int) {
        let page = ptr::from_ref(self).cast_mut().cast();
        // SAFETY: a page of its own, which nothing writes to while it is read-only.
        let result = unsafe { libc::mprotect(page, size_of::<Self>(), protection) };
        assert_eq!(result, 0);
    }

    fn link(&self, function: *const ()) {
        self.protect(libc::PROT_READ | libc::PROT_WRITE);
        self.0[0].store(function as usize, Ordering::Relaxed);
        self.protect(libc::PROT_READ);
    }
}

/// Calls the linked C function at entry and at return.
struct CallsC;

impl CallsC {
    #[inline(always)]
    fn call(&self) {
        // SAFETY: the C function takes and returns nothing, and keeps to the ABI.
        unsafe { asm!("call qword ptr [rip + {}]", sym LINKED, clobber_abi("C")) };
    }
}

impl FgraphOps for CallsC {
    type Data = ();

    fn entry(&self, _: &mut Entry<'_, ()>) -> Option<()> {
        self.call();
        Some(())
    }

    fn ret(&self, _: &mut Return<'_, ()>, (): ()) {
        self.call();
    }
}

/// `clobbers` changes xmm0 and `errno` through a pointer; `counts` changes memory alone.
const CALLBACKS_IN_C: &str = r#"
    #include <errno.h>
    unsigned long count;
    void counts(void) { count++; }
    static void clobber(void) {
        errno = 7;
        __asm__ volatile("pcmpeqd %%xmm0, %%xmm0" ::: "xmm0");
    }
    static void (*volatile pointer)(void) = clobber;
    void clobbers(void) { pointer(); pointer(); }
    #ifdef EXTERN
    __asm__(".pushsection .text; .hidden __x86_indirect_thunk_rax; .globl __x86_indirect_thunk_rax;"
            "__x86_indirect_thunk_rax: call 1f; 2: pause; lfence; jmp 2b;"
            "1: mov %rax, (%rsp); ret; .popsection");
    #endif
"#;

/// Traces a function by a user whose callbacks call C functions that were compiled with these
/// options. `returns` says whether they end by plain returns.
fn trace_calling_c(
    name: &str,
    compiler: &Need,
    options: &[&str],
    returns: bool,
) -> Result<(), Missing> {
    let file = format!("{name}.c");
    let options = [&["-O2", "-fcf-protection=none"], options].concat();
    let library = library(compiler, &file, CALLBACKS_IN_C, &options)?;
    for (function, is_eligible) in [("counts", returns), ("clobbers", false)] {
        LINKED.link(library.address(function));
        let user = register(CallsC, "halves").unwrap();
        let case = format!("{function} with {options:?}");
        // Results that callbacks have changed say more than how they came to be called.
        // SAFETY: this thread's own.
        unsafe { *libc::__errno_location() = 3 };
        assert_eq!(halves(3.0, 2), 3.5, "{case}");
        // SAFETY: this thread's own.
        assert_eq!(unsafe { *libc::__errno_location() }, 3, "{case}");
        assert_eq!(
            user.fast_path().unwrap().is_eligible(),
            is_eligible,
            "{case}: {:?}",
            user.fast_path()
        );
    }
    Ok(())
}

#[scenario]
fn callbacks_that_return_by_thunks_change_nothing_of_the_program() {
    for (name, options, returns) in [
        ("plain", &[][..], true),
        ("thunk", &["-mindirect-branch=thunk"], true),
        ("inline", &["-mindirect-branch=thunk-inline"], true),
        (
            "extern",
            &["-mindirect-branch=thunk-extern", "-DEXTERN"],
            true,
        ),
        ("return", &["-mfunction-return=thunk"], false),
        ("return_inline", &["-mfunction-return=thunk-inline"], false),
        (
            "both",
            &["-mindirect-branch=thunk", "-mfunction-return=thunk"],
            false,
        ),
    ] {
        needs!(trace_calling_c(name, &GCC, options, returns));
    }
    needs!(trace_calling_c("retpoline", &CLANG, &["-mretpoline"], true));
}

/// Calls itself until `n` is 0, and calls `at_the_bottom` then.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn descends(n: u64, at_the_bottom: extern "C" fn()) -> u64 {
    if n == 0 {
        at_the_bottom();
        return 0;
    }
    black_box(descends(n - 1, at_the_bottom)) + n
}

/// Accepts calls whose argument leaves `WANTS` when divided by 2, or all if that is 2. Its data are
/// so many words with the argument.
struct Remembers<const WANTS: u64, const WORDS: usize> {
    /// The sums of the arguments of the accepted calls, and of the data at their returns.
    sums: [AtomicU64; 2],
}

impl<const WANTS: u64, const WORDS: usize> Remembers<WANTS, WORDS> {
    fn new() -> Self {
        Self {
            sums: [const { AtomicU64::new(0) }; 2],
        }
    }

    fn sums(&self) -> [u64; 2] {
        [0, 1].map(|which| self.sums[which].load(Ordering::Relaxed))
    }
}

impl<const WANTS: u64, const WORDS: usize> FgraphOps for Remembers<WANTS, WORDS> {
    type Data = [u64; WORDS];

    fn entry(&self, call: &mut Entry<'_, Self::Data>) -> Option<Self::Data> {
        let n = call.arg(0)?;
        if WANTS != 2 && n & 1 != WANTS {
            return None;
        }
        self.sums[0].fetch_add(n, Ordering::Relaxed);
        Some([n; WORDS])
    }

    fn ret(&self, _: &mut Return<'_, Self::Data>, data: Self::Data) {
        let mut sum = 0;
        for word in data {
            sum += word;
        }
        self.sums[1].fetch_add(sum, Ordering::Relaxed);
    }
}

extern "C" fn nothing() {}

/// Unregisters a user when [`leave`] runs.
static LEAVING: Mutex<Option<Box<dyn FnOnce() + Send>>> = Mutex::new(None);

extern "C" fn leave() {
    let leaving = LEAVING.lock().unwrap().take();
    leaving.unwrap()();
}

#[scenario]
fn several_fast_path_users_get_the_data_of_each() {
    let odd = register(Remembers::<1, 1>::new(), "descends").unwrap();
    let bare = register(Remembers::<2, 0>::new(), "descends").unwrap();
    let even = register(Remembers::<0, 3>::new(), "descends").unwrap();
    let all = register(Remembers::<2, 2>::new(), "descends").unwrap();
    if !cfg!(debug_assertions) {
        let are = [
            odd.fast_path().unwrap().is_eligible(),
            bare.fast_path().unwrap().is_eligible(),
            even.fast_path().unwrap().is_eligible(),
            all.fast_path().unwrap().is_eligible(),
        ];
        assert_eq!(are, [true; 4]);
    }
    assert_eq!(descends(9, nothing), 45);
    assert_eq!(odd.user().sums(), [25, 25]);
    assert_eq!(bare.user().sums(), [45, 0]);
    assert_eq!(even.user().sums(), [20, 60]);
    assert_eq!(all.user().sums(), [45, 90]);
    // One of them goes while calls are on their way.
    let gone = Arc::new(Mutex::new([0; 2]));
    let told = gone.clone();
    *LEAVING.lock().unwrap() = Some(Box::new(move || {
        *told.lock().unwrap() = even.unregister().unwrap().sums();
    }));
    assert_eq!(descends(9, leave), 45);
    assert_eq!(*gone.lock().unwrap(), [40, 60]);
    assert_eq!(odd.user().sums(), [50, 50]);
    assert_eq!(bare.user().sums(), [90, 0]);
    assert_eq!(all.user().sums(), [90, 180]);
    assert_eq!(descends(3, nothing), 6);
    assert_eq!(odd.user().sums(), [54, 54]);
    assert_eq!(all.user().sums(), [96, 192]);
}

/// The users that were asked for calls, and those that were told of returns: a digit for each, the
/// last one in the lowest bits.
static ASKED: AtomicU64 = AtomicU64::new(0);
static TOLD: AtomicU64 = AtomicU64::new(0);
/// The number of data at returns that were not what their entry gave.
static WRONG: AtomicU64 = AtomicU64::new(0);

/// Notes its digit, and accepts calls whose argument is a multiple of `STEP`.
struct Digit<const DIGIT: u8, const STEP: u64, const WORDS: usize>;

impl<const DIGIT: u8, const STEP: u64, const WORDS: usize> Digit<DIGIT, STEP, WORDS> {
    /// Appends the digit, in the same few instructions however this is compiled.
    #[inline(always)]
    fn note(&self, digits: &AtomicU64) {
        // SAFETY: a word that only this thread uses.
        unsafe {
            asm!(
                "shl qword ptr [{digits}], 4",
                "or qword ptr [{digits}], {digit}",
                digits = in(reg) digits.as_ptr(),
                digit = const DIGIT,
                options(nostack),
            );
        }
    }
}

impl<const DIGIT: u8, const STEP: u64, const WORDS: usize> FgraphOps for Digit<DIGIT, STEP, WORDS> {
    type Data = [u64; WORDS];

    fn entry(&self, call: &mut Entry<'_, Self::Data>) -> Option<Self::Data> {
        self.note(&ASKED);
        if STEP == 1 {
            return Some([u64::from(DIGIT); WORDS]);
        }
        let n = call.arg(0)?;
        (n & (STEP - 1) == 0).then_some([u64::from(DIGIT); WORDS])
    }

    fn ret(&self, _: &mut Return<'_, Self::Data>, data: Self::Data) {
        self.note(&TOLD);
        for word in data {
            WRONG.fetch_add(u64::from(word != u64::from(DIGIT)), Ordering::Relaxed);
        }
    }
}

/// Returns the digits of the users that were asked and of those that were told, in hexadecimal.
fn digits() -> [String; 2] {
    [&ASKED, &TOLD].map(|digits| format!("{:x}", digits.swap(0, Ordering::Relaxed)))
}

/// Registers a user with a priority.
fn with_priority<T: FgraphOps>(ops: T, priority: i8) -> Handle<T> {
    let options = Options::new().priority(priority);
    // SAFETY: the function does not look at its return address.
    unsafe { fgraph::register_with(ops, "descends", &options) }.unwrap()
}

#[scenario]
fn fast_path_users_out_of_order_enclose_each_other() {
    // No slot is left for the last two.
    let fourth = with_priority(Digit::<4, 1, 0>, -100);
    let third = with_priority(Digit::<3, 1, 0>, -101);
    let second = with_priority(Digit::<2, 1, 0>, -102);
    let first = with_priority(Digit::<1, 1, 0>, -103);
    assert!(fourth.fast_path().unwrap().is_eligible());
    assert!(first.fast_path().unwrap().is_eligible());
    // The first call takes the slow path, which lists the users.
    for _ in 0..3 {
        assert_eq!(descends(3, nothing), 6);
        assert_eq!(digits(), ["1234123412341234", "4321432143214321"]);
    }
    third.set_enabled(false);
    for _ in 0..2 {
        assert_eq!(descends(3, nothing), 6);
        assert_eq!(digits(), ["124124124124", "421421421421"]);
    }
    drop(second);
    third.set_enabled(true);
    for _ in 0..2 {
        assert_eq!(descends(3, nothing), 6);
        assert_eq!(digits(), ["134134134134", "431431431431"]);
    }
    // Alone.
    drop((third, fourth));
    assert_eq!(descends(3, nothing), 6);
    assert_eq!(digits(), ["1111", "1111"]);
}

#[scenario]
fn fast_path_users_out_of_order_get_the_data_of_each() {
    let fourth = with_priority(Digit::<4, 1, 2>, -100);
    let third = with_priority(Digit::<3, 4, 3>, -101);
    let second = with_priority(Digit::<2, 2, 1>, -102);
    let first = with_priority(Digit::<1, 1, 0>, -103);
    if !cfg!(debug_assertions) {
        let are = [
            first.fast_path().unwrap().is_eligible(),
            second.fast_path().unwrap().is_eligible(),
            third.fast_path().unwrap().is_eligible(),
            fourth.fast_path().unwrap().is_eligible(),
        ];
        assert_eq!(are, [true; 4]);
    }
    // Arguments 3 to 0: the third user accepts 0, the second 0 and 2.
    for _ in 0..3 {
        assert_eq!(descends(3, nothing), 6);
        assert_eq!(digits(), ["1234123412341234", "43214142141"]);
    }
    // One of them goes while calls are on their way. Its records stay in the frames.
    *LEAVING.lock().unwrap() = Some(Box::new(move || drop(fourth)));
    assert_eq!(descends(3, leave), 6);
    assert_eq!(digits(), ["1234123412341234", "3211211"]);
    // None accepts the calls with 1 and 3.
    drop(first);
    for _ in 0..2 {
        assert_eq!(descends(3, nothing), 6);
        assert_eq!(digits(), ["23232323", "322"]);
    }
    assert_eq!(WRONG.load(Ordering::Relaxed), 0);
}

#[scenario]
fn users_that_do_more_or_are_sampled_are_not_eligible() {
    let float = register(Float, "halves").unwrap();
    assert!(!float.fast_path().unwrap().is_eligible());
    let why = float.fast_path().unwrap().ineligible().unwrap();
    // In code that is not optimised the reason may be that there is too much of it.
    assert_eq!(
        why.function().is_some(),
        why.reason().address().is_some(),
        "{why}"
    );
    assert!(cfg!(debug_assertions) || why.function().is_some(), "{why}");
    let status = fgraph::status().unwrap();
    assert_eq!((status.users, status.fast_path), (1, 0));
    assert_eq!(halves(3.0, 2), 3.5);
    drop(float);
    // SAFETY: the function does not look at its return address.
    let sampled =
        unsafe { fgraph::register_with(Bare::default(), "halves", &Options::new().sample(2)) };
    let sampled = sampled.unwrap();
    let why = sampled.fast_path().unwrap().ineligible().unwrap();
    assert_eq!(
        (why.reason(), why.function().is_none()),
        (IneligibleReason::Sampled, true)
    );
    halves(3.0, 2);
    halves(3.0, 2);
    assert_eq!(sampled.user().counts(), (1, 1));
    // The slots are taken again, by a user that is.
    drop(sampled);
    for _ in 0..40 {
        let bare = register(Bare::default(), "halves").unwrap();
        assert!(bare.fast_path().unwrap().is_eligible());
        assert_eq!(halves(3.0, 2), 3.5);
        assert_eq!(bare.user().counts(), (1, 1));
        let status = fgraph::status().unwrap();
        assert_eq!((status.users, status.fast_path), (1, 1));
    }
}

#[scenario]
fn a_fast_path_user_that_is_gone_gets_no_call() {
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
}

/// The thread was in a callback of the user's last, and nothing has told since that it is over but
/// that it is not inside.
#[scenario]
fn a_thread_that_is_not_traced_any_more_keeps_no_fast_path_user() {
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
}

/// Number of instructions of a call that have begun.
static STEPS: AtomicU64 = AtomicU64::new(0);
/// Instruction at which the handler goes to another stack.
static AWAY_AT: AtomicU64 = AtomicU64::new(0);
/// Calls `halves` each time it is resumed.
static COROUTINE: AtomicPtr<Coroutine<(), (), Infallible>> = AtomicPtr::new(ptr::null_mut());

/// The flag that has the processor stop after each instruction.
const TRAP_FLAG: i64 = 0x100;

extern "C" fn on_step(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    if STEPS.fetch_add(1, Ordering::Relaxed) == AWAY_AT.load(Ordering::Relaxed) {
        away(0);
        // The rest of the call runs at once.
        // SAFETY: a handler with SA_SIGINFO gets the context of what was interrupted.
        let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
        context.uc_mcontext.gregs[libc::REG_EFL as usize] &= !TRAP_FLAG;
    }
}

/// Calls `halves` on another stack than the thread's own.
extern "C" fn away(_: c_int) {
    // SAFETY: null, or the one that `everywhere` has made, which is not running.
    match unsafe { COROUTINE.load(Ordering::Relaxed).as_mut() } {
        Some(coroutine) => drop(coroutine.resume(())),
        // Here, on the alternate stack.
        None => assert_eq!(halves(3.0, 2), 3.5),
    }
}

extern "C" fn raise() {
    // SAFETY: its handler is `away`.
    unsafe { libc::raise(libc::SIGUSR1) };
}

/// Calls `descends` one instruction at a time, until the handler has been elsewhere.
fn step() -> u64 {
    let result;
    // SAFETY: a call as the ABI has it; `on_step` handles the signal of each instruction.
    unsafe {
        asm!(
            "pushfq",
            "or dword ptr [rsp], {trap}",
            "popfq",
            "call {function}",
            "pushfq",
            "and dword ptr [rsp], ~{trap}",
            "popfq",
            trap = const TRAP_FLAG,
            function = sym descends,
            inout("rdi") 0_u64 => _,
            inout("rsi") nothing as *const () => _,
            out("rax") result,
            clobber_abi("C"),
        );
    }
    result
}

/// Installs the handlers of `step` and `raise`, on the alternate stack or not.
fn handle(flags: c_int) {
    let handlers = [
        (
            libc::SIGTRAP,
            on_step as *const (),
            flags | libc::SA_SIGINFO,
        ),
        (libc::SIGUSR1, away as *const (), flags),
    ];
    for (signal, handler, flags) in handlers {
        // SAFETY: the handler has the signature that its flags ask for.
        unsafe {
            let mut action: libc::sigaction = mem::zeroed();
            action.sa_sigaction = handler as usize;
            action.sa_flags = flags;
            assert_eq!(libc::sigaction(signal, &action, ptr::null_mut()), 0);
        }
    }
}

/// Goes to another stack at each instruction of a call of `descends`, which `users` watch, by
/// `counts`, and looks whether the frames of the two stacks are apart afterwards.
fn away_everywhere<T: FgraphOps>(users: &[Handle<T>], counts: impl Fn(&T) -> (u64, u64)) {
    let elsewhere = register(Bare::default(), "halves").unwrap();
    for flags in [0, libc::SA_ONSTACK] {
        if flags == 0 {
            let coroutine = Coroutine::new(|yielder, ()| {
                loop {
                    assert_eq!(halves(3.0, 2), 3.5);
                    yielder.suspend(());
                }
            });
            // Never ends, so it is never freed.
            COROUTINE.store(Box::leak(Box::new(coroutine)), Ordering::Relaxed);
        } else {
            COROUTINE.store(ptr::null_mut(), Ordering::Relaxed);
        }
        handle(flags);
        // The first calls set up what later ones use, before the steps are counted.
        descends(0, raise);
        let before: Vec<_> = users.iter().map(|user| counts(user.user())).collect();
        let elsewhere_before = elsewhere.user().counts().0;
        let mut at = 0;
        loop {
            AWAY_AT.store(at, Ordering::Relaxed);
            STEPS.store(0, Ordering::Relaxed);
            assert_eq!(step(), 0);
            assert_eq!(descends(2, raise), 3);
            at += 1;
            for (user, (entries, returns)) in users.iter().zip(&before) {
                let calls = 4 * at;
                assert_eq!(
                    counts(user.user()),
                    (entries + calls, returns + calls),
                    "{at}"
                );
                assert_eq!(numbers(user.counters()), [0; 5], "{at}");
            }
            let (entries, returns) = elsewhere.user().counts();
            assert_eq!(entries, returns, "{at}");
            if STEPS.load(Ordering::Relaxed) < at {
                break;
            }
        }
        // Besides those of `raise`: before the thread is marked, in the body, and after that.
        let traced = elsewhere.user().counts().0 - elsewhere_before - at;
        assert!(traced > 50, "{traced} of {at}");
    }
}

/// Runs [`away_everywhere`] with one fast-path user, with two, and with one that does not qualify.
fn away_with_each_user() {
    // SAFETY: the memory is never freed.
    unsafe {
        let memory = vec![0_u8; 256 << 10].leak();
        let stack = libc::stack_t {
            ss_sp: memory.as_mut_ptr().cast(),
            ss_flags: 0,
            ss_size: memory.len(),
        };
        assert_eq!(libc::sigaltstack(&stack, ptr::null_mut()), 0);
    }
    let bare = || register(Bare::default(), "descends").unwrap();
    away_everywhere(&[bare()], Bare::counts);
    away_everywhere(&[bare(), bare()], Bare::counts);
    let other = register(Other::default(), "descends").unwrap();
    away_everywhere(&[other], |other| other.0.counts());
}

#[scenario]
fn a_handler_may_go_to_another_stack_at_every_instruction_of_a_call() {
    away_with_each_user();
}

#[scenario]
fn a_handler_may_go_to_another_stack_where_threads_may_be_cancelled() {
    // A program that names `pthread_cancel` gets other trampolines. If it calls that function,
    // these disable cancellation.
    let source = "#include <pthread.h>
                      #include <unistd.h>
                      static void *waits(void *nothing) { for (;;) pause(); }
                      void cancels(void) {
                          pthread_t thread;
                          pthread_create(&thread, 0, waits, 0);
                          pthread_cancel(thread);
                          pthread_join(thread, 0);
                      }";
    let library = needs!(library(&CC, "cancels.c", source, &[]));
    away_with_each_user();
    // SAFETY: the function's type.
    unsafe { library.get::<extern "C" fn()>("cancels")() };
    away_everywhere(
        &[register(Bare::default(), "descends").unwrap()],
        Bare::counts,
    );
}
