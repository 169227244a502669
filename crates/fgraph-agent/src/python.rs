//! Records the functions of a Python interpreter among the native ones.
//!
//! CPython calls a profile function at each call and each end of a call, of Python's functions and
//! of those in C that Python calls. The agent's one writes these events to the thread's ring. It is
//! set in each thread of the main interpreter, with the interpreter's lock held:
//!
//! 1. in a program that is started, when the interpreter is initialized;
//! 2. in a process that runs, by a pending call, which the main thread runs, or by the first thread
//!    that gets the lock back after it has waited, or by a thread of the agent's that asks for the
//!    lock: it is set in all threads;
//! 3. in a new thread, when it gets the lock for the first time;
//! 4. in a program that loads the interpreter later, when the interpreter is initialized.
//!
//! A profile function of the program's own is not replaced. When the program removes its own, the
//! agent's is set again. When recording ends, the agent's profile function does nothing more, and
//! removes itself at the thread's next event.
//!
//! # Safety
//!
//! The unsafe code calls the interpreter, which requires its lock: callbacks of the interpreter
//! have it, and so does a thread after the functions of [`Place`]. In a build without the lock the
//! same functions tell the interpreter that the thread runs, and [`Alone`] is in place of the lock.

mod api;
mod calls;
mod fast;
mod names;

use std::cell::Cell;
use std::env;
use std::ffi::{CStr, c_int, c_void};
use std::fs::{self, File};
use std::mem;
use std::os::fd::AsRawFd as _;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, Ordering, compiler_fence};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use fgraph::{Entry, FgraphOps, Filter, Handle, Options, Return, Untraced};
use fgraph_protocol::Settings;
use fgraph_symbols::filter::FunctionFacts;
use fgraph_trace::event::{FIRST_INTERPRETED, Kind};
use fgraph_trace::names::{DescriptionKind, PYTHON, process_number};
use fgraph_tracers::recorder::{InterpretedFunction, Recorder};

use crate::reason::reason;
use api::{Alone, Api, Object, Profile, State};
use calls::{AllCalls, Calls};
use fast::{Function, Table};
use names::{SavedError, Shown};

/// Recording of Python's functions. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Python {
    session: *const Session,
}

// SAFETY: the session may be used by any thread.
unsafe impl Send for Python {}
// SAFETY: the session may be used by any thread.
unsafe impl Sync for Python {}

/// Recording that profile functions write to; null if there is none.
static SESSION: AtomicPtr<Session> = AtomicPtr::new(ptr::null_mut());
/// Number of threads that may use the session, in the profile function and elsewhere.
static PROFILE_USES: AtomicU32 = AtomicU32::new(0);
static USES: AtomicU32 = AtomicU32::new(0);
/// True once profile functions may be set: the interpreter is initialized.
static IS_READY: AtomicBool = AtomicBool::new(false);

/// Events of profile functions, in CPython's numbers.
mod event {
    use std::ffi::c_int;

    pub(super) const CALL: c_int = 0;
    pub(super) const RETURN: c_int = 3;
    pub(super) const C_CALL: c_int = 4;
    pub(super) const C_EXCEPTION: c_int = 5;
    pub(super) const C_RETURN: c_int = 6;
}

/// State of a function in a session: not seen yet, recorded, or left out by the filter.
const UNSEEN: u8 = 0;
const RECORDED: u8 = 1;
const LEFT_OUT: u8 = 2;
/// State of a coroutine's function that is recorded, if tasks are told apart.
const COROUTINE: u8 = 3;

/// The function of an event that is not recorded.
const NO_FUNCTION: Function = Function::new(0, LEFT_OUT);

/// Reason why calls are not recorded.
const OWN_PROFILER: &str = "the program has a profiler of its own, which stays; where it is set, \
    Python's functions are missing";

/// Bits of a thread's word: its profile function was set, and it is the agent's. The other bits are
/// the address of its [`Calls`].
const IS_SET: u64 = 1;
const IS_AGENTS: u64 = 2;
const BITS: u64 = IS_SET | IS_AGENTS;

/// Profile functions of programs' own, which [`pass_on`] calls.
static OWN: [AtomicPtr<c_void>; 4] = [const { AtomicPtr::new(ptr::null_mut()) }; 4];
/// A function that calls each of these.
const PASS_ON: [OwnProfile; OWN.len()] = [pass_on::<0>, pass_on::<1>, pass_on::<2>, pass_on::<3>];
/// A profile function that the interpreter may leave with `pthread_exit`.
type OwnProfile =
    unsafe extern "C-unwind" fn(*mut Object, *mut Object, c_int, *mut Object) -> c_int;

/// Recording of one recorder.
#[derive(Debug)]
struct Session {
    recorder: Arc<Recorder>,
    /// The process, and its program as readers see it.
    process: u32,
    program: String,
    /// Selects functions by their names, in a module that is called [`PYTHON`].
    filter: Filter,
    /// State of each function, by its number.
    functions: Box<[AtomicU8]>,
    /// Functions that were seen.
    table: Table,
    /// The calls in progress of each thread.
    calls: AllCalls,
    /// True if calls of coroutines tell their tasks.
    follows_coroutines: bool,
    /// True once readers know that the program has a profile function of its own.
    is_told: AtomicBool,
    /// True once the profile functions of all threads were set.
    is_everywhere: AtomicBool,
    hooks: Handle<Hooks>,
}

impl Python {
    /// Starts recording if there is an interpreter in this process, or when there is one later. If
    /// the process runs already, calls are recorded from some moment on.
    ///
    /// # Errors
    ///
    /// Says why the interpreter's functions cannot be recorded.
    pub(crate) fn start(
        settings: &Settings,
        recorder: &Arc<Recorder>,
    ) -> Result<Option<Self>, String> {
        let api = match api::is_there() {
            true => Some(api::get()?),
            false => None,
        };
        let filter = settings.which.python_filter();
        let hooks = match Hooks::start(api.is_some()) {
            Ok(hooks) => hooks,
            Err(why) if api.is_some() => return Err(why),
            // Perhaps no interpreter ever comes.
            Err(_) => return Ok(None),
        };
        let session = Box::new(Session {
            recorder: Arc::clone(recorder),
            process: process_number(std::process::id(), settings.process.executed),
            program: python_in_program(),
            filter: filter.map_err(|error| error.to_string())?,
            functions: unseen(),
            table: Table::new().ok_or("there is no memory")?,
            calls: AllCalls::default(),
            follows_coroutines: settings.languages.coroutines,
            is_told: AtomicBool::new(false),
            is_everywhere: AtomicBool::new(false),
            hooks,
        });
        let session = Box::into_raw(session);
        SESSION.store(session, Ordering::SeqCst);
        let this = Self { session };
        let Some(api) = api else {
            return Ok(Some(this));
        };
        // SAFETY: any thread may call it.
        if unsafe { (api.Py_IsInitialized)() } != 0 {
            IS_READY.store(true, Ordering::Release);
            // SAFETY: any thread may call it, and the agent stays loaded.
            let added = unsafe { (api.Py_AddPendingCall)(set_when_pending, ptr::null_mut()) };
            // The queue may be full. The main thread may wait, and others run on.
            if (added != 0 || !this.is_everywhere(SOON)) && start_asking() {
                this.is_everywhere(LATE);
            }
        }
        Ok(Some(this))
    }

    /// Waits until the profile functions are set, with at most this number of checks.
    fn is_everywhere(&self, looks: u32) -> bool {
        // SAFETY: the session lives until this is dropped.
        let session = unsafe { &*self.session };
        (0..looks).any(|_| {
            thread::sleep(NAP);
            session.is_everywhere.load(Ordering::Relaxed)
        })
    }

    /// Stops recording.
    pub(crate) fn pause() {
        SESSION.store(ptr::null_mut(), Ordering::SeqCst);
    }
}

/// Number of checks for the end of all uses of a session, and the interval between checks.
const LOOKS: u32 = 5000;
const NAP: Duration = Duration::from_millis(1);
/// Number of checks before a thread asks for the interpreter's lock, and before the attaching
/// command no longer waits for that thread.
const SOON: u32 = 100;
const LATE: u32 = 1000;

impl Drop for Python {
    fn drop(&mut self) {
        Self::pause();
        if wait_for_uses() {
            // SAFETY: nothing uses the session any more.
            drop(unsafe { Box::from_raw(self.session.cast_mut()) });
        }
        // In a forked child the count may be of a thread that it does not have: the session stays.
    }
}

/// Use of the session outside of the profile function, while this exists.
struct Use;

impl Use {
    /// Passes the session to `work`, if there is one.
    fn session<T>(work: impl FnOnce(&Session) -> T) -> Option<T> {
        USES.fetch_add(1, Ordering::SeqCst);
        let _use = Self;
        // SAFETY: a session is freed when it is not here and no thread uses it.
        let session = unsafe { SESSION.load(Ordering::SeqCst).as_ref() };
        session.map(work)
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        // Release: what this thread did with the session comes before its end.
        USES.fetch_sub(1, Ordering::Release);
    }
}

/// Use of the session in the profile function, while this exists. It costs no atomic operation: the
/// threads that run the function have the lock of one interpreter.
struct ProfileUse;

impl ProfileUse {
    #[inline]
    fn session<T>(work: impl FnOnce(&Session) -> T) -> Option<T> {
        let uses = PROFILE_USES.load(Ordering::Relaxed);
        PROFILE_USES.store(uses.wrapping_add(1), Ordering::Relaxed);
        // Pairs with the barrier in `wait_for_uses`: this thread finds that there is no session, or
        // that one waits for this use.
        compiler_fence(Ordering::SeqCst);
        let _use = Self;
        // SAFETY: a session is freed when it is not here and no thread uses it.
        let session = unsafe { SESSION.load(Ordering::Acquire).as_ref() };
        session.map(work)
    }
}

impl Drop for ProfileUse {
    #[inline]
    fn drop(&mut self) {
        let uses = PROFILE_USES.load(Ordering::Relaxed);
        // Release: what this thread did with the session comes before its end.
        PROFILE_USES.store(uses.wrapping_sub(1), Ordering::Release);
    }
}

/// Passes the session to `work` in a profile function of an interpreter with a lock or without.
#[inline]
fn in_profile<T>(has_lock: bool, work: impl FnOnce(&Session) -> T) -> Option<T> {
    match has_lock {
        true => ProfileUse::session(work),
        false => Use::session(work),
    }
}

/// Waits until no thread uses a session that is no longer in [`SESSION`]; `false` if threads do for
/// long.
fn wait_for_uses() -> bool {
    const PRIVATE_EXPEDITED: c_int = 1 << 3;
    // SAFETY: the call only makes each running thread of the process execute a barrier.
    let made = unsafe { libc::syscall(libc::SYS_membarrier, PRIVATE_EXPEDITED, 0, 0) } == 0;
    if !made {
        // Stores of other processors take far less.
        thread::sleep(10 * NAP);
    }
    // A thread may wait for the reader of its ring, for seconds.
    (0..LOOKS).any(|look| {
        if look > 0 {
            thread::sleep(NAP);
        }
        let uses = [&USES, &PROFILE_USES].map(|uses| uses.load(Ordering::SeqCst));
        uses == [0, 0]
    })
}

/// Returns the agent's profile function.
fn profile_of(api: &Api) -> Option<Profile> {
    Some(match api.mutex {
        None => profile::<true>,
        Some(_) => profile::<false>,
    })
}

/// The agent's profile function, in an interpreter with a lock and in one without.
unsafe extern "C" fn profile<const HAS_LOCK: bool>(
    _: *mut Object,
    frame: *mut Object,
    what: c_int,
    argument: *mut Object,
) -> c_int {
    // SAFETY: the interpreter calls it with its lock held, and with these objects.
    let event = |session: &Session| unsafe { session.event(frame, what, argument) };
    let is_used = in_profile(HAS_LOCK, event);
    if is_used.is_none()
        && let Some(api) = api::known()
    {
        let _untraced = Untraced::new();
        // SAFETY: the lock is held, and the thread's profile function is this one.
        unsafe {
            // The program's audit hooks may run.
            let _error = SavedError::of(api);
            (api.PyEval_SetProfile)(None, ptr::null_mut());
        }
    }
    0
}

/// Passes events on to the program's own profile function, except for ends of C functions whose
/// begins the agent's got. Without the agent's there would be none: the interpreter reports ends of
/// C functions that it began with a profile function. Among these is `sys.setprofile`.
unsafe extern "C-unwind" fn pass_on<const AT: usize>(
    object: *mut Object,
    frame: *mut Object,
    what: c_int,
    argument: *mut Object,
) -> c_int {
    let has_lock = api::known().is_some_and(|api| api.mutex.is_none());
    if in_profile(has_lock, |session| session.is_for_own(what)) == Some(false) {
        return 0;
    }
    let own = OWN.get(AT).map(|own| own.load(Ordering::Acquire));
    // SAFETY: the address is null, or that of a profile function.
    let own = unsafe { mem::transmute::<*mut c_void, Option<OwnProfile>>(own.unwrap_or_default()) };
    // SAFETY: the interpreter calls this in place of the program's function, with its arguments.
    own.map_or(0, |own| unsafe { own(object, frame, what, argument) })
}

/// Returns the function that passes events on to one of the program's own; `None` if there are too
/// many of these.
fn passing_on(own: *mut c_void) -> Option<OwnProfile> {
    let at = OWN.iter().position(|place| {
        let (free, order) = (ptr::null_mut(), Ordering::AcqRel);
        match place.compare_exchange(free, own, order, Ordering::Acquire) {
            Ok(_) => true,
            Err(found) => ptr::eq(found, own),
        }
    });
    PASS_ON.get(at?).copied()
}

/// Sets the profile functions, in the main thread.
unsafe extern "C" fn set_when_pending(_: *mut c_void) -> c_int {
    let _untraced = Untraced::new();
    // SAFETY: the interpreter calls it with its lock held.
    Use::session(|session| unsafe { session.set() });
    0
}

/// Starts a thread that takes the interpreter's lock, sets the profile functions, and ends. Returns
/// false if there can be no thread.
fn start_asking() -> bool {
    let mut id: libc::pthread_t = 0;
    // SAFETY: a type for a function that `pthread_exit` may leave.
    let begin = unsafe {
        mem::transmute::<
            extern "C-unwind" fn(*mut c_void) -> *mut c_void,
            extern "C" fn(*mut c_void) -> *mut c_void,
        >(ask)
    };
    // SAFETY: the thread's function stays loaded and uses no argument.
    unsafe {
        libc::pthread_create(&mut id, ptr::null(), begin, ptr::null_mut()) == 0
            && libc::pthread_detach(id) == 0
    }
}

/// Takes the interpreter's lock, which may last, and sets the profile functions. If the interpreter
/// ends meanwhile, it ends the thread with `pthread_exit`, so no value here needs to be dropped.
extern "C-unwind" fn ask(_: *mut c_void) -> *mut c_void {
    // The calls with which this thread ends are the agent's own too.
    mem::forget(Untraced::new());
    if let Some(api) = api::known() {
        // SAFETY: the interpreter is initialized, and any thread may take its lock.
        unsafe {
            let state = (api.PyGILState_Ensure)();
            set_when_pending(ptr::null_mut());
            (api.PyGILState_Release)(state);
        }
    }
    ptr::null_mut()
}

impl Session {
    /// Records an event.
    ///
    /// # Safety
    ///
    /// The thread holds the interpreter's lock; frame and argument are those of the event.
    #[inline(always)]
    unsafe fn event(&self, frame: *mut Object, what: c_int, argument: *mut Object) {
        let untraced = Untraced::new();
        // SAFETY: the caller keeps the same contract.
        unsafe {
            match what {
                event::CALL => {
                    let function = self.of_frame(&untraced, frame);
                    self.begin(&untraced, frame, function);
                }
                event::RETURN => {
                    let function = self.of_frame(&untraced, frame);
                    let kind = match argument.is_null() {
                        true => Kind::Unwound,
                        false => Kind::Return,
                    };
                    self.end(&untraced, frame, function, kind);
                }
                event::C_CALL => {
                    let function = self.of_c_function(&untraced, argument);
                    self.begin(&untraced, frame, function);
                }
                event::C_RETURN => {
                    let function = self.of_c_function(&untraced, argument);
                    self.end(&untraced, frame, function, Kind::Return);
                }
                event::C_EXCEPTION => {
                    let function = self.of_c_function(&untraced, argument);
                    self.end(&untraced, frame, function, Kind::Unwound);
                }
                _ => {}
            }
        }
    }

    /// Records the begin of a call.
    ///
    /// # Safety
    ///
    /// The thread holds the interpreter's lock, and the frame is that of the event.
    #[inline(always)]
    unsafe fn begin(&self, untraced: &Untraced, frame: *mut Object, function: Function) {
        if function.state() == LEFT_OUT {
            return;
        }
        if let Some(calls) = self.calls(untraced) {
            calls.begin(frame, function.number());
            // SAFETY: the caller keeps the same contract.
            unsafe { self.write(untraced, calls, frame, Kind::Entry, function) };
        }
    }

    /// Records the end of a call, unless its begin was not reported, or was before.
    ///
    /// # Safety
    ///
    /// Same as for [`begin`](Self::begin).
    #[inline(always)]
    unsafe fn end(&self, untraced: &Untraced, frame: *mut Object, function: Function, kind: Kind) {
        if function.state() == LEFT_OUT {
            return;
        }
        let Some(calls) = self.calls(untraced) else {
            return;
        };
        let is_innermost = calls.end_innermost(frame, function.number());
        // SAFETY: the caller keeps the same contract.
        unsafe {
            if is_innermost || self.end_outer(untraced, calls, frame, function) {
                self.write(untraced, calls, frame, kind, function);
            }
        }
    }

    /// Records the ends of the calls in one that ends, which were not reported; `false` if that one
    /// is none of those in progress.
    ///
    /// # Safety
    ///
    /// Same as for [`begin`](Self::begin).
    #[cold]
    #[inline(never)]
    unsafe fn end_outer(
        &self,
        untraced: &Untraced,
        calls: &Calls,
        frame: *mut Object,
        function: Function,
    ) -> bool {
        let Some(rest) = calls.end_outer(frame, function.number()) else {
            return false;
        };
        for number in rest {
            let function = Function::new(number, RECORDED);
            // SAFETY: the caller keeps the same contract.
            unsafe { self.write(untraced, calls, frame, Kind::Unwound, function) };
        }
        true
    }

    /// Writes the begin or the end of a call.
    ///
    /// # Safety
    ///
    /// Same as for [`begin`](Self::begin).
    #[inline(always)]
    unsafe fn write(
        &self,
        untraced: &Untraced,
        calls: &Calls,
        frame: *mut Object,
        kind: Kind,
        function: Function,
    ) {
        let Some(writer) = calls.writer() else {
            return;
        };
        let index = FIRST_INTERPRETED | function.number();
        // SAFETY: the session has the recorder, which made the writer in this thread. The
        // interpreter calls this neither in a callback of the recorder's nor in a signal handler.
        // The frame is that of the event.
        unsafe {
            if function.state() != RECORDED
                && let Some(value) = self.value(frame, kind)
            {
                writer.write_with(untraced, kind, index, value);
            } else {
                writer.write(untraced, kind, index);
            }
        }
    }

    /// Returns the function of a frame.
    ///
    /// # Safety
    ///
    /// The thread holds the interpreter's lock, and `frame` is that of an event.
    #[inline(always)]
    unsafe fn of_frame(&self, untraced: &Untraced, frame: *mut Object) -> Function {
        // SAFETY: the caller keeps the same contract.
        unsafe {
            match self.table.of_frame(frame) {
                Some(function) => function,
                None => self.python_function(untraced, frame),
            }
        }
    }

    /// Returns a C function.
    ///
    /// # Safety
    ///
    /// The thread holds the interpreter's lock, and `object` is that of an event.
    #[inline(always)]
    unsafe fn of_c_function(&self, untraced: &Untraced, object: *mut Object) -> Function {
        // SAFETY: the caller keeps the same contract.
        unsafe {
            match self.table.of_c_function(object) {
                Some(function) => function,
                None => self.c_function(untraced, object),
            }
        }
    }

    /// Returns what tells the task of a coroutine's call: its frame at the entry, which stays the
    /// same, and at the end whether it is suspended.
    ///
    /// # Safety
    ///
    /// The thread holds the interpreter's lock, and the frame is that of the event.
    #[cold]
    unsafe fn value(&self, frame: *mut Object, kind: Kind) -> Option<u64> {
        let api = api::known()?;
        match kind {
            Kind::Entry => Some(frame.addr() as u64),
            // SAFETY: as the caller says; a frame has a code object.
            Kind::Return => unsafe {
                let code = (api.PyFrame_GetCode)(frame);
                let is_suspended = names::is_suspended(api, frame, code);
                (api.Py_DecRef)(code);
                is_suspended.map(u64::from)
            },
            _ => None,
        }
    }

    /// Returns the function of a frame, which is known then.
    ///
    /// # Safety
    ///
    /// The thread holds the interpreter's lock, and `frame` is a frame.
    #[cold]
    #[inline(never)]
    unsafe fn python_function(&self, untraced: &Untraced, frame: *mut Object) -> Function {
        let Some(api) = api::known() else {
            return NO_FUNCTION;
        };
        // SAFETY: the frame is alive, as the caller says, and has a code object.
        unsafe {
            let _error = SavedError::of(api);
            let _alone = Alone::new(api);
            let code = (api.PyFrame_GetCode)(frame);
            let number = names::of_code(api, code);
            if self.state(number) == UNSEEN {
                let is_coroutine = self.follows_coroutines && names::is_coroutine(api, code);
                let recorded = if is_coroutine { COROUTINE } else { RECORDED };
                let show = |shown: Shown<'_>| self.know(untraced, number, recorded, shown);
                names::name_frame(api, frame, code, number, show);
            }
            let function = Function::new(number, self.state(number));
            // A code object without a number of its own does not say when it ends.
            if number != names::OTHERS {
                self.table.keep_code(frame, code, function);
            }
            (api.Py_DecRef)(code);
            function
        }
    }

    /// Returns a C function, which is known then.
    ///
    /// # Safety
    ///
    /// The thread holds the interpreter's lock, and `object` is an object.
    #[cold]
    #[inline(never)]
    unsafe fn c_function(&self, untraced: &Untraced, object: *mut Object) -> Function {
        let Some(api) = api::known() else {
            return NO_FUNCTION;
        };
        // SAFETY: the object is alive, as the caller says.
        unsafe {
            let _error = SavedError::of(api);
            let _alone = Alone::new(api);
            let (number, owner, content) = names::of_c_function(api, object);
            if self.state(number) == UNSEEN {
                let show = |shown: Shown<'_>| self.know(untraced, number, RECORDED, shown);
                names::name_c_function(api, object, owner, number, show);
            }
            let function = Function::new(number, self.state(number));
            self.table.keep_c_function(object, owner, content, function);
            function
        }
    }

    /// Returns the state of a function.
    fn state(&self, number: u32) -> u8 {
        let state = self.functions.get(number as usize);
        // Acquire: the function's description comes before its events.
        state.map_or(LEFT_OUT, |state| state.load(Ordering::Acquire))
    }

    /// Describes a function, unless the filter leaves it out. If it is recorded, its state is
    /// `recorded` from now on.
    fn know(&self, untraced: &Untraced, number: u32, recorded: u8, (name, source): Shown<'_>) {
        let Some(place) = self.functions.get(number as usize) else {
            return;
        };
        let facts = [name];
        let state = match self.filter.matches(&FunctionFacts::new(&facts, PYTHON)) {
            true => recorded,
            false => LEFT_OUT,
        };
        if state != LEFT_OUT {
            self.recorder.describe(
                untraced,
                &InterpretedFunction {
                    index: FIRST_INTERPRETED + number,
                    name,
                    module: PYTHON,
                    source,
                },
            );
        }
        place.store(state, Ordering::Release);
    }

    /// Returns the calls in progress of the running thread; `None` without memory for them.
    #[inline]
    fn calls(&self, untraced: &Untraced) -> Option<&Calls> {
        let word = self.hooks.thread_word(untraced)?;
        let address = word.get() & !BITS;
        if address == 0 {
            return self.begin_calls(untraced, word);
        }
        // SAFETY: the word has the address of calls of this session, which it keeps.
        Some(unsafe { &*ptr::with_exposed_provenance(address as usize) })
    }

    /// Makes the list of the running thread's calls.
    #[cold]
    fn begin_calls(&self, untraced: &Untraced, word: &Cell<u64>) -> Option<&Calls> {
        let calls = self.calls.take(self.recorder.call_writer(untraced))?;
        let address = ptr::from_ref(calls).expose_provenance() as u64;
        word.set(address | word.get() & BITS);
        Some(calls)
    }

    /// Returns false if the program's own profile function does not get an event.
    fn is_for_own(&self, what: c_int) -> bool {
        let untraced = Untraced::new();
        let Some(calls) = self.calls(&untraced) else {
            return true;
        };
        match what {
            event::C_CALL => calls.begin_own(),
            event::C_RETURN | event::C_EXCEPTION => return calls.end_own(),
            _ => {}
        }
        true
    }

    /// Returns the function that the running thread gets in place of one of the program's own,
    /// which replaces the agent's.
    ///
    /// # Safety
    ///
    /// The thread holds the interpreter's lock, and `own` is a profile function.
    unsafe fn replaced_by(&self, own: *mut c_void) -> Option<OwnProfile> {
        // SAFETY: the thread holds the lock, as the caller says.
        unsafe { self.main_interpreter() }?;
        let untraced = Untraced::new();
        self.calls(&untraced)?.count_own(true);
        passing_on(own)
    }

    /// Sets the profile function of the running thread, and the first time those of all threads.
    /// Returns the bits of the thread's word; `None` if the thread is of another interpreter, or if
    /// the interpreter ends.
    ///
    /// # Safety
    ///
    /// The thread holds the interpreter's lock.
    unsafe fn set(&self) -> Option<u64> {
        let api = api::known()?;
        // SAFETY: the thread holds the lock, as the caller says, so the list of threads does not
        // change.
        unsafe {
            let main = self.main_interpreter()?;
            // A thread may get the lock back on the way of an exception.
            let _error = SavedError::of(api);
            names::prepare(api, end_code);
            let is_first = !self.is_everywhere.swap(true, Ordering::Relaxed);
            if is_first && let Some(version) = newer(CStr::from_ptr((api.Py_GetVersion)())) {
                self.tell_newer(version);
            }
            if self.has_profiler() || is_first && self.has_threading_profiler() {
                self.tell(OWN_PROFILER);
                return Some(IS_SET);
            }
            if !is_first {
                (api.PyEval_SetProfile)(profile_of(api), ptr::null_mut());
            } else if let Some(set_all) = api.set_profile_all {
                set_all(profile_of(api), ptr::null_mut());
            } else {
                let mut thread = (api.PyInterpreterState_ThreadHead)(main);
                while !thread.is_null() {
                    (api.set_profile_of)(thread, profile_of(api), ptr::null_mut());
                    thread = (api.PyThreadState_Next)(thread);
                }
            }
        }
        Some(IS_SET | IS_AGENTS)
    }

    /// Returns the main interpreter, if the running thread is one of its threads.
    ///
    /// # Safety
    ///
    /// The thread holds the interpreter's lock.
    unsafe fn main_interpreter(&self) -> Option<*mut State> {
        let api = api::known()?;
        // SAFETY: the thread holds the lock, as the caller says.
        unsafe {
            let main = (api.PyInterpreterState_Main)();
            let own = (api.PyThreadState_GetInterpreter)((api.PyThreadState_Get)());
            let is_over = (api.is_finalizing)() != 0;
            (ptr::eq(main, own) && !is_over).then_some(main)
        }
    }

    /// Returns true if the running thread has a profile function that is not the agent's.
    ///
    /// # Safety
    ///
    /// The thread holds the interpreter's lock.
    unsafe fn has_profiler(&self) -> bool {
        let Some(api) = api::known() else {
            return false;
        };
        // SAFETY: the thread holds the lock, as the caller says.
        unsafe {
            let get = (api.PySys_GetObject)(c"getprofile".as_ptr());
            if get.is_null() {
                return true;
            }
            let found = (api.PyObject_CallObject)(get, ptr::null_mut());
            self.is_some(found)
        }
    }

    /// Returns true if the program has given a profile function to new threads.
    ///
    /// # Safety
    ///
    /// The thread holds the interpreter's lock.
    unsafe fn has_threading_profiler(&self) -> bool {
        let Some(api) = api::known() else {
            return false;
        };
        // SAFETY: the thread holds the lock, as the caller says; the references are borrowed.
        unsafe {
            let modules = (api.PySys_GetObject)(c"modules".as_ptr());
            if modules.is_null() {
                return false;
            }
            let threading = (api.PyDict_GetItemString)(modules, c"threading".as_ptr());
            if threading.is_null() {
                return false;
            }
            let hook = (api.PyObject_GetAttrString)(threading, c"_profile_hook".as_ptr());
            self.is_some(hook)
        }
    }

    /// Returns true if an object is there and is not `None`, and gives the reference back.
    ///
    /// # Safety
    ///
    /// The thread holds the interpreter's lock. The object is null after an error, or a reference
    /// of the caller's.
    unsafe fn is_some(&self, object: *mut Object) -> bool {
        let Some(api) = api::known() else {
            return false;
        };
        // SAFETY: as the caller says.
        unsafe {
            if object.is_null() {
                (api.PyErr_Clear)();
                return false;
            }
            (api.Py_DecRef)(object);
        }
        !ptr::eq(object, api::symbol(c"_Py_NoneStruct"))
    }

    /// Reports to readers why functions of Python are not recorded, once.
    fn tell(&self, why: &str) {
        if !self.is_told.swap(true, Ordering::Relaxed) {
            self.report(DescriptionKind::Refused, &self.program, why);
        }
    }

    /// Reports to readers that the interpreter is newer than those that are known.
    fn tell_newer(&self, version: &str) {
        let program = self.program.strip_prefix("Python").unwrap_or_default();
        let program = format!("Python {version}{program}");
        let why = format!(
            "it is newer than 3.{NEWEST}, the newest that this fgraph knows: its calls \
             take longer to record, and coroutines that wait seem to end"
        );
        self.report(DescriptionKind::InPart, &program, &why);
    }

    fn report(&self, kind: DescriptionKind, program: &str, why: &str) {
        let fields = [self.process.into(), 0, 0, 0];
        let rings = self.recorder.rings();
        rings.describe(kind, fields, [why, program]);
    }
}

/// The newest minor version of Python 3 that is known.
const NEWEST: u32 = 15;

/// Returns the numbers of a version as `3.14.1 (main, ...)` if it is newer than those that are
/// known: `3.14`.
fn newer(version: &CStr) -> Option<&str> {
    let version = version.to_str().ok()?;
    let (major, rest) = version.split_once('.')?;
    let len = rest.find(|c: char| !c.is_ascii_digit());
    let minor = rest.get(..len.unwrap_or(rest.len()))?;
    let numbers: (u32, u32) = (major.parse().ok()?, minor.parse().ok()?);
    let shown = version.get(..major.len() + 1 + minor.len())?;
    (numbers > (3, NEWEST)).then_some(shown)
}

/// Returns the text that stands for the interpreter where it is reported that it is not recorded.
pub(crate) fn python_in_program() -> String {
    let program = env::current_exe().unwrap_or_default();
    format!("Python in {}", program.display())
}

/// Returns the states of all functions: [`UNSEEN`].
fn unseen() -> Box<[AtomicU8]> {
    let zeros = vec![UNSEEN; names::MOST as usize].into_boxed_slice();
    // SAFETY: the types have the same layout.
    unsafe { Box::from_raw(Box::into_raw(zeros) as *mut [AtomicU8]) }
}

/// Returns the path of the module that has the interpreter, if there is one.
pub(crate) fn interpreter() -> Option<String> {
    let (base, path) = module(api::symbol(c"Py_AddPendingCall"))?;
    // SAFETY: reads the auxiliary vector.
    let entry = unsafe { libc::getauxval(libc::AT_ENTRY) };
    let program = module(ptr::without_provenance_mut(entry as usize));
    // The linker has the program under the name with which it was started.
    let path = match program.is_some_and(|(of, _)| of == base) {
        true => env::current_exe(),
        // The C library's `realpath` would allocate with the program's allocator.
        false => File::open(path)
            .and_then(|file| fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))),
    };
    Some(path.ok()?.to_string_lossy().into_owned())
}

/// Returns the first address of the module with an address, and its path.
fn module(address: *mut c_void) -> Option<(usize, String)> {
    // SAFETY: zeros are a valid `Dl_info`, which the call fills in.
    let mut info: libc::Dl_info = unsafe { mem::zeroed() };
    // SAFETY: the linker returns a C string that lives as long as the module is loaded.
    let path = unsafe {
        if address.is_null() || libc::dladdr(address, &mut info) == 0 || info.dli_fname.is_null() {
            return None;
        }
        CStr::from_ptr(info.dli_fname)
    };
    Some((info.dli_fbase.addr(), path.to_string_lossy().into_owned()))
}

/// Functions of the interpreter at which the agent does something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// The interpreter is being initialized, and is ready at the return.
    Initialize,
    /// The program's script begins.
    Main,
    /// The thread has the lock at the return.
    Lock,
    /// The profile function of a thread is changed.
    SetProfile,
    /// A thread's state ends.
    Clear,
}

/// Functions of the interpreter and their places.
const PLACES: [(&CStr, Place); 7] = [
    (c"Py_InitializeFromConfig", Place::Initialize),
    (c"Py_RunMain", Place::Main),
    (c"PyEval_AcquireThread", Place::Lock),
    (c"PyEval_RestoreThread", Place::Lock),
    (c"PyGILState_Ensure", Place::Lock),
    (c"_PyEval_SetProfile", Place::SetProfile),
    (c"PyThreadState_Clear", Place::Clear),
];

/// Watches functions of the interpreter.
#[derive(Debug)]
struct Hooks {
    /// Address of each function, in the order of [`PLACES`]; `None` if an interpreter that came
    /// later cannot be recorded.
    addresses: OnceLock<Option<[usize; PLACES.len()]>>,
}

/// Files of interpreters that programs load later.
const LIBRARIES: &str = "libpython*";

/// Work to do when a function of the interpreter returns.
#[derive(Clone, Copy, Debug)]
enum Then {
    /// Sets the profile functions of a new interpreter.
    Begin,
    /// Sets the thread's profile function, unless that was done.
    Look,
}

impl Hooks {
    /// Watches the functions of the interpreter that is there, or of one that is loaded later.
    fn start(is_there: bool) -> Result<Handle<Self>, String> {
        let this = Self {
            addresses: OnceLock::new(),
        };
        let filter = match is_there {
            true => {
                let addresses = Self::find();
                let _ = this.addresses.set(Some(addresses));
                let found = addresses.into_iter().filter(|&address| address != 0);
                found.fold(Filter::none(), Filter::address)
            }
            false => PLACES
                .iter()
                .try_fold(Filter::none(), |filter, (name, _)| {
                    filter.trace_in(name.to_str().unwrap_or_default(), LIBRARIES)
                })
                .map_err(|error| error.to_string())?,
        };
        let options = Options::new().lazy_sites(true).allow_no_match();
        // SAFETY: the callbacks call the interpreter where the thread has its lock.
        let user = unsafe { fgraph::register_with(this, filter, &options) };
        user.map_err(|failed| reason(&failed.error))
    }

    fn find() -> [usize; PLACES.len()] {
        PLACES.map(|(name, _)| api::symbol(name).addr())
    }

    /// Returns the place of the function with this address. The first call of a function of an
    /// interpreter that came later finds the others.
    fn place(&self, address: usize) -> Option<Place> {
        let addresses = self.addresses.get_or_init(|| {
            let (_, path) = module(ptr::without_provenance_mut(address))?;
            match api::find_in(&path) {
                Ok(_) => Some(Self::find()),
                Err(why) => {
                    Use::session(|session| session.tell(&why));
                    None
                }
            }
        });
        let at = addresses.as_ref()?.iter().position(|&it| it == address)?;
        PLACES.get(at).map(|(_, place)| *place)
    }

    /// Returns true if a state is that of the running thread in the main interpreter.
    fn is_threads_own(state: *mut State) -> bool {
        let Some(api) = api::known() else {
            return false;
        };
        // SAFETY: the thread is about to clear the state, so it is alive.
        unsafe {
            let main = (api.PyInterpreterState_Main)();
            let is_running = ptr::eq((api.running)(), state);
            is_running && ptr::eq((api.PyThreadState_GetInterpreter)(state), main)
        }
    }
}

impl FgraphOps for Hooks {
    type Data = Then;

    fn entry(&self, call: &mut Entry<'_, Then>) -> Option<Then> {
        let address = call.function().address();
        let word = call.thread_word();
        match self.place(address)? {
            Place::Initialize => {
                // SAFETY: any thread may call it.
                let is_new = unsafe { (api::known()?.Py_IsInitialized)() } == 0;
                is_new.then_some(Then::Begin)
            }
            Place::Main => {
                IS_READY.store(true, Ordering::Release);
                look(word);
                None
            }
            Place::Lock => (word.get() & IS_SET == 0).then_some(Then::Look),
            Place::SetProfile => {
                let own = call.arg(1)?;
                if own == 0 {
                    // The program removes its own one, or the agent's.
                    word.set(word.get() & !BITS);
                    Use::session(|_| {
                        // SAFETY: the word is the running thread's, and there is a session.
                        if let Some(calls) = unsafe { calls_of(word) } {
                            calls.count_own(false);
                        }
                    });
                    return Some(Then::Look);
                }
                let replaces = word.get() & IS_AGENTS != 0;
                word.set(word.get() & !BITS | IS_SET);
                let state = ptr::without_provenance_mut(call.arg(0)? as usize);
                // SAFETY: any thread may call it.
                let is_running = unsafe { ptr::eq((api::known()?.running)(), state) };
                let own = ptr::with_exposed_provenance_mut(own as usize);
                let instead = Use::session(|session| {
                    session.tell(OWN_PROFILER);
                    // SAFETY: the caller holds the lock, and the argument is a profile function.
                    (replaces && is_running).then(|| unsafe { session.replaced_by(own) })?
                });
                if let Some(instead) = instead.flatten() {
                    // SAFETY: the function does the same for the events of its own.
                    let mut writer = unsafe { call.rewrite() };
                    let _ = writer.set_arg(1, instead as usize as u64);
                }
                None
            }
            Place::Clear => {
                let state = ptr::without_provenance_mut(call.arg(0)? as usize);
                // In a forked child a thread clears the states of others.
                if Self::is_threads_own(state) {
                    leave(word);
                }
                None
            }
        }
    }

    fn ret(&self, call: &mut Return<'_, Then>, then: Then) {
        // SAFETY: any thread may call it.
        if api::known().is_none_or(|api| unsafe { (api.Py_IsInitialized)() } == 0) {
            return;
        }
        if matches!(then, Then::Begin) {
            IS_READY.store(true, Ordering::Release);
            names::forget();
            // The calls and the profile function were those of an interpreter that has ended.
            leave(call.thread_word());
            Use::session(|session| {
                session.table.forget_all();
                session.is_everywhere.store(false, Ordering::Relaxed);
            });
        }
        look(call.thread_word());
    }
}

/// The interpreter frees a code object with this extra value.
unsafe extern "C" fn end_code(extra: *mut c_void) {
    if let Some((number, place)) = names::from_extra(extra) {
        Use::session(|session| session.table.forget_code(place, number));
    }
}

/// Forgets what the running thread's word says of an interpreter that it leaves. The thread has the
/// interpreter's lock.
fn leave(word: &Cell<u64>) {
    Use::session(|session| {
        // SAFETY: the word is the running thread's, and there is a session.
        if let Some(calls) = unsafe { calls_of(word) } {
            session.calls.give_back(calls);
        }
    });
    word.set(0);
}

/// Returns the list of the running thread's calls, if there is one.
///
/// # Safety
///
/// The word is the running thread's, and the session in use lives as long as the result is used.
unsafe fn calls_of(word: &Cell<u64>) -> Option<&Calls> {
    let address = (word.get() & !BITS) as usize;
    // SAFETY: the list is of the session, as the caller says, unless the address is null.
    unsafe { ptr::with_exposed_provenance::<Calls>(address).as_ref() }
}

/// Sets the thread's profile function, unless that was done. The thread has the interpreter's lock.
fn look(word: &Cell<u64>) {
    if word.get() & IS_SET != 0 || !IS_READY.load(Ordering::Acquire) {
        return;
    }
    Use::session(|session| {
        // SAFETY: the thread has the lock.
        unsafe {
            if let Some(bits) = session.set() {
                word.set(word.get() | bits);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_after_the_known_ones_are_newer() {
        let cases = [
            (c"3.9.18 (main)", None),
            (c"3.13.9+ (main)", None),
            (c"3.15.2 (main)", None),
            (c"3.16.0a1 (main)", Some("3.16")),
            (c"4.0 (main)", Some("4.0")),
            (c"2.7.18", None),
            (c"3.x", None),
            (c"", None),
        ];
        for (version, expected) in cases {
            assert_eq!(newer(version), expected, "{version:?}");
        }
    }
}
