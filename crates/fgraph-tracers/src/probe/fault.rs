//! Fault injection: makes chosen calls fail.
//!
//! ```
//! use fgraph_tracers::probe::fault::Fault;
//!
//! let fault = Fault::skip(-1).errno(libc::ENOENT).every(2);
//! // SAFETY: `open` returns an `int`, and its callers must expect that it fails.
//! let faults = unsafe { fault.start("open:mod:libc.so* open64:mod:libc.so*") }?;
//! let opened = (0..4).filter(|_| std::fs::File::open("/proc/self/maps").is_ok());
//! assert_eq!((opened.count(), faults.injected()), (2, 2));
//! # Ok::<(), fgraph::Error>(())
//! ```

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fgraph::{
    Entry, Error, FgraphOps, Filter, FilterReport, Function, Handle, IntoFilter, LibraryEvent,
    RefusedFunction, Return, Unsupported,
};
use fgraph_trace::ring::Rings;
use serde::{Deserialize, Serialize};

use super::call_path::{DEPTH, Met, Modules, mix};
use super::{Probe, probe};
use crate::support::kernel;
use crate::support::looking;
use crate::support::selected::Selected;
use crate::support::sink::{MOST, Place, Sink};

pub use super::call_path::CallPath;

/// Rule by which calls fail: the way of failing, and the choice of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[must_use = "it does nothing before it is started"]
pub struct Fault {
    result: i64,
    errno: Option<i32>,
    effect: Effect,
    when: When,
    /// Number of calls before the first one that may fail.
    after: u64,
    most: u64,
    /// Least and most nanoseconds that a call waits before it fails or runs.
    delay: (u64, u64),
    /// Seed of the delays.
    delay_seed: u64,
    /// The code whose calls may fail, from its start to its end; all code if there is none.
    callers: Option<(usize, usize)>,
    /// The call path whose calls may fail, and the number of its return addresses.
    path: Option<(CallPath, usize)>,
}

/// Effect on a chosen call, besides its delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Effect {
    /// The function does not run, and its callers get the result.
    Skip,
    /// The function runs, and its callers get the result.
    Replace,
    /// The function runs, and its callers get the function's own result.
    Keep,
    /// No call fails. The first calls of each call path are reported, with this number of return
    /// addresses at most.
    List(usize),
}

/// Choice of the calls that fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum When {
    /// The last of each group of this many calls.
    Every(u64),
    /// Calls whose random number is below the limit.
    Random { limit: u64, seed: u64 },
}

impl Fault {
    /// The function does not run, and its callers get `result`. All calls fail unless another
    /// method restricts them.
    pub const fn skip(result: i64) -> Self {
        Self {
            result,
            errno: None,
            effect: Effect::Skip,
            when: When::Every(1),
            after: 0,
            most: u64::MAX,
            delay: (0, 0),
            delay_seed: 0,
            callers: None,
            path: None,
        }
    }

    /// The function runs, but its callers get `result` instead of its own result.
    pub const fn result(result: i64) -> Self {
        Self {
            effect: Effect::Replace,
            ..Self::skip(result)
        }
    }

    /// The function runs, and its callers get its own result: for [delays](Self::delay).
    pub const fn unchanged() -> Self {
        Self {
            effect: Effect::Keep,
            ..Self::skip(0)
        }
    }

    /// No call fails. [`FaultMarks`] reports the first `calls` calls of each call path, as marks
    /// that [`read_path`] decodes. A path has at most `depth` return addresses, of 64.
    pub const fn list(depth: usize, calls: u64) -> Self {
        Self {
            effect: Effect::List(depth),
            most: calls,
            ..Self::skip(0)
        }
    }

    /// Only calls of this call path fail, which [`list`](Self::list) has found with the same
    /// `depth`, and only these are counted, in all processes that share the rings of
    /// [`FaultMarks`]. [`start`](Self::start) fails no call then.
    pub const fn on_path(mut self, path: CallPath, depth: usize) -> Self {
        self.path = Some((path, depth));
        self
    }

    /// True if the rule needs call paths.
    const fn has_paths(&self) -> bool {
        self.path.is_some() || matches!(self.effect, Effect::List(_))
    }

    /// Delays each chosen call before it fails or runs, by a random time between `least` and `most`
    /// that depends on the call's number and the [seed](Self::delay_seed). The thread sleeps in the
    /// callback, even if signals arrive.
    pub fn delay(mut self, least: Duration, most: Duration) -> Self {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.delay = (nanoseconds(least), nanoseconds(most.max(least)));
        self
    }

    /// Sets the seed of random delays. With the same seed the same calls wait for the same times.
    pub const fn delay_seed(mut self, seed: u64) -> Self {
        self.delay_seed = seed;
        self
    }

    /// Returns the delay of call number `nth`, in nanoseconds.
    fn delay_of(&self, nth: u64) -> u64 {
        let (least, most) = self.delay;
        let span = (most - least).saturating_add(1);
        // Random numbers other than those that choose the calls.
        least + random(!self.delay_seed, nth) % span
    }

    /// The first `calls` calls do not fail, counted in all threads together. The other calls are
    /// counted from there.
    pub const fn after(mut self, calls: u64) -> Self {
        self.after = calls;
        self
    }

    /// Sets the value that the callers find in `errno`.
    pub const fn errno(mut self, errno: i32) -> Self {
        self.errno = Some(errno);
        self
    }

    /// Makes the last of each `period` calls fail, counted in all threads together. With 0 none
    /// fails.
    pub const fn every(mut self, period: u64) -> Self {
        self.when = When::Every(period);
        self
    }

    /// Makes each call fail with this probability, from 0 to 1. With the same seed the same calls
    /// fail, by their number among the calls of all threads.
    pub fn probability(mut self, probability: f64, seed: u64) -> Self {
        // The conversion saturates: 1 and more means always; 0, less, and NaN mean never.
        let limit = (probability * 2.0_f64.powi(64)) as u64;
        self.when = When::Random { limit, seed };
        self
    }

    /// Limits the number of calls that fail. A forked child counts its own calls.
    pub const fn count(mut self, most: u64) -> Self {
        self.most = most;
        self
    }

    /// Only calls fail that code in this range of addresses makes, and only these are counted. The
    /// code that makes a call is where [`call_site`](fgraph::Entry::call_site) is.
    ///
    /// ```
    /// use std::fs::read_to_string;
    /// use fgraph_tracers::probe::fault::Fault;
    ///
    /// #[inline(never)]
    /// fn name_of_process() -> Option<String> {
    ///     // SAFETY: it takes no arguments.
    ///     let parent = unsafe { libc::getppid() };
    ///     (parent >= 0).then(|| read_to_string("/proc/self/comm").ok())?
    /// }
    ///
    /// # fn main() -> Result<(), fgraph::Error> {
    /// fgraph::load_symbols()?;
    /// let caller = fgraph::function_at(name_of_process as *const () as usize);
    /// let caller = caller.expect("it is known");
    /// let fault = Fault::skip(-1).called_from(caller.address()..caller.address() + caller.size());
    /// // SAFETY: `getppid` returns a number, and has no other effect.
    /// let faults = unsafe { fault.start("getppid:mod:libc.so*") }?;
    /// assert!(std::os::unix::process::parent_id() < u32::MAX);
    /// assert_eq!((faults.calls(), name_of_process()), (0, None));
    /// assert_eq!(faults.injected(), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub const fn called_from(mut self, code: Range<usize>) -> Self {
        self.callers = Some((code.start, code.end));
        self
    }

    /// Returns true if a call from this place may fail.
    fn may_fail(&self, call_site: impl FnOnce() -> usize) -> bool {
        self.callers
            .is_none_or(|(start, end)| (start..end).contains(&call_site()))
    }

    /// Call number `call` fails and no other, counted from 1 in all threads together: for a test
    /// that has each call of a function fail in its turn. With 0 none does.
    ///
    /// ```
    /// # use std::fs::File;
    /// use fgraph_tracers::probe::fault::Fault;
    ///
    /// let fault = Fault::skip(-1).errno(libc::ENOENT).nth(2);
    /// // SAFETY: `open` returns an `int`, and its callers must expect that it fails.
    /// let faults = unsafe { fault.start("open:mod:libc.so* open64:mod:libc.so*") }?;
    /// for _ in 0..2 {
    ///     let opened = [(); 3].map(|()| File::open("/proc/self/maps").is_ok());
    ///     assert_eq!(opened, [true, false, true]);
    ///     faults.reset();
    /// }
    /// # Ok::<(), fgraph::Error>(())
    /// ```
    pub const fn nth(self, call: u64) -> Self {
        match call.checked_sub(1) {
            Some(before) => self.every(1).after(before).count(1),
            None => self.count(0),
        }
    }

    /// True if call number `nth`, counted from 0, fails.
    fn hits(&self, nth: u64) -> bool {
        let Some(nth) = nth.checked_sub(self.after) else {
            return false;
        };
        match self.when {
            When::Every(period) => nth.wrapping_add(1).checked_rem(period) == Some(0),
            When::Random {
                limit: u64::MAX, ..
            } => true,
            When::Random { limit, seed } => random(seed, nth) < limit,
        }
    }

    /// Returns true if call number `nth`, counted from 0 by the caller, must fail, after its delay.
    fn begin(&self, nth: u64) -> bool {
        let is_chosen = self.hits(nth) && nth - self.after < self.most;
        if is_chosen {
            self.wait(nth);
        }
        is_chosen
    }

    /// Delays the thread that makes call number `nth`, if a delay is set.
    fn wait(&self, nth: u64) {
        if self.delay != (0, 0) {
            kernel::sleep(Duration::from_nanos(self.delay_of(nth)));
        }
    }

    /// Starts to have calls of the functions fail that `filter` selects.
    ///
    /// # Safety
    ///
    /// The callers of these functions may get the result, as [`fgraph::Entry::rewrite`] and
    /// [`fgraph::Return::rewrite`] say; for one that is [skipped](Self::skip) the program can do
    /// without what the function does.
    ///
    /// # Errors
    ///
    /// Fails like [`super::Builder::start`].
    pub unsafe fn start(self, filter: impl IntoFilter) -> Result<Faults, Error> {
        let counts = Arc::new(Counts::default());
        let [at_entry, at_return] = [(); 2].map(|()| Arc::clone(&counts));
        let probe = probe(filter)
            .on_entry(move |call| {
                let may_fail = !self.has_paths() && self.may_fail(|| call.call_site());
                if !may_fail || !at_entry.begin(&self) {
                    return None;
                }
                match self.effect {
                    Effect::Replace => return Some(()),
                    Effect::Keep | Effect::List(_) => {}
                    Effect::Skip => {
                        // SAFETY: who starts this vouches for it.
                        let mut writer = unsafe { call.rewrite() };
                        writer.skip(self.result).ok()?;
                        self.errno.inspect(|errno| writer.set_errno(*errno));
                    }
                }
                at_entry.injected.fetch_add(1, Ordering::Relaxed);
                None
            })
            .on_return(move |call, ()| {
                // SAFETY: who starts this vouches for it.
                let mut writer = unsafe { call.rewrite() };
                if writer.set_result(self.result as u64).is_ok() {
                    self.errno.inspect(|errno| writer.set_errno(*errno));
                    at_return.injected.fetch_add(1, Ordering::Relaxed);
                }
            });
        // SAFETY: the closures use atomics; for what they write the caller vouches.
        let probe = unsafe { probe.start() }?;
        Ok(Faults { probe, counts })
    }
}

/// Returns random number `nth` of a seed.
fn random(seed: u64, nth: u64) -> u64 {
    mix(seed, nth)
}

#[derive(Debug, Default)]
struct Counts {
    calls: AtomicU64,
    /// Number of calls that were chosen to fail.
    chosen: AtomicU64,
    injected: AtomicU64,
}

impl Counts {
    fn reset(&self) {
        for count in [&self.calls, &self.chosen, &self.injected] {
            count.store(0, Ordering::Relaxed);
        }
    }

    /// Counts a call. Returns true if it must fail, after its delay.
    fn begin(&self, fault: &Fault) -> bool {
        let nth = self.calls.fetch_add(1, Ordering::Relaxed);
        let is_chosen = fault.hits(nth) && self.chosen.fetch_add(1, Ordering::Relaxed) < fault.most;
        if is_chosen {
            fault.wait(nth);
        }
        is_chosen
    }
}

/// Calls that are made to fail; dropping it ends that.
#[must_use = "dropping it ends the faults"]
#[derive(Debug)]
pub struct Faults {
    probe: Probe,
    counts: Arc<Counts>,
}

impl Faults {
    /// Calls of the functions.
    pub fn calls(&self) -> u64 {
        self.counts.calls.load(Ordering::Relaxed)
    }

    /// Calls that were made to fail. One that another user has skipped already is not.
    pub fn injected(&self) -> u64 {
        self.counts.injected.load(Ordering::Relaxed)
    }

    /// Counts the calls from 0 again, so that the same ones fail as after the start. A call that
    /// another thread makes at this moment may count before or after.
    pub fn reset(&self) {
        self.counts.reset();
    }

    /// The probe that does it.
    pub fn probe(&self) -> &Probe {
        &self.probe
    }
}

/// Fault injection that reports each failed call in rings: a mark of two words, the function's
/// index and the return address. Dropping it ends the faults.
#[derive(Debug)]
pub struct FaultMarks {
    user: Handle<Injector>,
}

impl FaultMarks {
    /// Pauses or resumes the injection: [`Handle::set_enabled`].
    pub fn set_enabled(&self, enabled: bool) {
        self.user.set_enabled(enabled);
    }

    /// Returns the watched functions: [`Handle::functions`].
    ///
    /// # Errors
    ///
    /// Fails like [`Handle::functions`].
    pub fn functions(&self) -> Result<Vec<Function>, Error> {
        self.user.functions()
    }

    /// Returns the number of functions that the filter traces, and those that it refuses:
    /// [`Handle::report`].
    ///
    /// # Errors
    ///
    /// Fails like [`Handle::report`].
    pub fn report(&self) -> Result<FilterReport, Error> {
        self.user.report()
    }

    /// Returns the functions that the filter refuses: [`Handle::refused`].
    ///
    /// # Errors
    ///
    /// Fails like [`Handle::refused`].
    pub fn refused(&self) -> Result<Vec<RefusedFunction>, Error> {
        self.user.refused()
    }

    /// Makes calls of the functions fail that `filter` selects. With `inside`, only calls inside a
    /// call of one of these functions fail, at any depth. `executed` is the number of programs that
    /// the process has executed before: see
    /// [`Options::executed`](crate::recorder::Options::executed).
    ///
    /// # Safety
    ///
    /// The contract is that of [`Fault::start`].
    ///
    /// # Errors
    ///
    /// Fails like [`fgraph::register`]; [`Unsupported`](Error::Unsupported) without memory.
    pub unsafe fn start_in(
        rings: impl Into<Arc<Rings>>,
        executed: u32,
        filter: impl IntoFilter,
        inside: Option<Filter>,
        fault: Fault,
    ) -> Result<Self, Error> {
        let mut filter = filter.into_filter()?;
        let inside = match inside {
            None => None,
            Some(inside) => {
                let no_memory = Error::Unsupported(Unsupported::Memory(libc::ENOMEM));
                let fails = Selected::new(&filter).ok_or(no_memory.clone())?;
                let encloses = Selected::new(&inside).ok_or(no_memory)?;
                filter = filter.union(inside);
                Some(Inside { fails, encloses })
            }
        };
        let no_memory = Error::Unsupported(Unsupported::Memory(libc::ENOMEM));
        let paths = match fault.has_paths() {
            true => Some(Paths::new().ok_or(no_memory)?),
            false => None,
        };
        let injector = Injector {
            fault,
            inside,
            paths,
            counts: Counts::default(),
            sink: Sink::start(rings, executed)?,
        };
        // SAFETY: the callbacks use atomics, and memory that they have; for what they write the
        // caller vouches.
        let user = unsafe { fgraph::register_with(injector, filter, &looking::options()) }?;
        Ok(Self { user })
    }
}

#[derive(Debug)]
struct Injector {
    fault: Fault,
    inside: Option<Inside>,
    /// Set if the rule needs call paths.
    paths: Option<Paths>,
    counts: Counts,
    sink: Sink,
}

/// Data for the call paths of calls.
#[derive(Debug)]
struct Paths {
    modules: Modules,
    met: Met,
}

impl Paths {
    fn new() -> Option<Self> {
        Some(Self {
            modules: Modules::new()?,
            met: Met::new()?,
        })
    }
}

/// A reported call of a call path.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PathCall<'a> {
    /// Index of the function.
    pub function: u32,
    /// The call path.
    pub path: CallPath,
    /// Number of calls of this path before it in its process.
    pub before: u64,
    /// Where the calls return to, the innermost first. Only the first call of a path has them.
    pub callers: &'a [u64],
}

/// Decodes the words of a mark of [`Fault::list`]. `None` for other words.
#[must_use]
pub fn read_path(words: &[u64]) -> Option<PathCall<'_>> {
    let [index, function, callers, before, addresses @ ..] = words else {
        return None;
    };
    Some(PathCall {
        function: u32::try_from(*index).ok()?,
        path: CallPath {
            function: *function,
            callers: *callers,
        },
        before: *before,
        callers: addresses,
    })
}

/// Words of a mark before the return addresses.
const PATH_HEAD: usize = 4;

const _: () = assert!(PATH_HEAD + DEPTH <= MOST);

/// Choice of failing calls by the calls around them.
#[derive(Debug)]
struct Inside {
    /// Functions whose calls fail.
    fails: Selected,
    /// Functions that must be around the failing calls.
    encloses: Selected,
}

/// Reason why the return of a call is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Calls inside it may fail.
    Encloses,
    /// Its result is replaced.
    Fails,
}

impl Injector {
    /// Returns the role of a call for the calls inside it, and true if it may fail itself.
    fn role(&self, call: &Entry<'_, Role>) -> (Option<Role>, bool) {
        let Some(inside) = &self.inside else {
            return (None, true);
        };
        let function = call.function();
        if !self.sink.is_described(function) {
            inside.fails.learn(function);
            inside.encloses.learn(function);
            // SAFETY: `thread_word` is the running thread's word.
            unsafe { self.sink.know(function, call.thread_word()) };
        }
        let role = inside.encloses.has(function).then_some(Role::Encloses);
        let may_fail = inside.fails.has(function) && call.parent_data().is_some();
        (role, may_fail)
    }

    /// Counts a call. Returns true if it must fail, after its delay.
    fn begin(&self) -> bool {
        match self.fault.path {
            Some(_) => self.fault.begin(self.sink.rings().next_number()),
            None => self.counts.begin(&self.fault),
        }
    }

    /// Returns true if a call may fail by its call path, which is reported if that is requested.
    fn is_on_path(&self, paths: &Paths, call: &Entry<'_, Role>) -> bool {
        let function = paths.modules.place(call.function().address());
        let path = |depth: usize, addresses: &mut [usize]| {
            let room = addresses.len();
            let addresses = &mut addresses[..depth.min(room)];
            let count = call.unwind(addresses);
            let callers = paths.modules.callers(&addresses[..count]);
            (CallPath { function, callers }, count)
        };
        let mut addresses = [0; DEPTH];
        match (self.fault.effect, self.fault.path) {
            (Effect::List(depth), _) => {
                let (path, count) = path(depth, &mut addresses);
                // SAFETY: the call is the running thread's.
                unsafe { self.list(call, path, &addresses[..count]) };
                false
            }
            (_, Some((wanted, depth))) => {
                wanted.function == function && path(depth, &mut addresses).0 == wanted
            }
            (_, None) => true,
        }
    }

    /// Reports one of the first calls of a call path.
    ///
    /// # Safety
    ///
    /// The call is the running thread's.
    unsafe fn list(&self, call: &Entry<'_, Role>, path: CallPath, addresses: &[usize]) {
        let Some(paths) = &self.paths else {
            return;
        };
        let before = paths.met.count(path);
        if before >= self.fault.most {
            return;
        }
        let function = call.function();
        let mut words = [0; PATH_HEAD + DEPTH];
        let head = [function.index().into(), path.function, path.callers, before];
        words[..PATH_HEAD].copy_from_slice(&head);
        let addresses = if before == 0 { addresses } else { &[] };
        for (word, address) in words[PATH_HEAD..].iter_mut().zip(addresses) {
            *word = *address as u64;
        }
        let words = &words[..PATH_HEAD + addresses.len()];
        let place = Place::of(call.thread_stack(), true);
        // SAFETY: `thread_word` and `thread_id` are the running thread's, as the caller says.
        unsafe {
            self.sink.know(function, call.thread_word());
            let (word, thread) = (call.thread_word(), call.thread_id());
            self.sink.mark_words(word, thread, words, place);
        }
    }

    /// Reports a call that was made to fail.
    ///
    /// # Safety
    ///
    /// The word, the id and the stack are the running thread's, as [`Sink`] requires.
    unsafe fn tell(
        &self,
        function: Function,
        returns_to: usize,
        (word, thread, stack): (&Cell<u64>, u32, Option<Range<usize>>),
    ) {
        let place = Place::of(stack, false);
        let words = [function.index().into(), returns_to as u64];
        // SAFETY: the caller passes the running thread's word and id.
        unsafe {
            self.sink.know(function, word);
            self.sink.mark_words(word, thread, &words, place);
        }
    }
}

impl FgraphOps for Injector {
    type Data = Role;

    fn entry(&self, call: &mut Entry<'_, Role>) -> Option<Role> {
        let (role, may_fail) = self.role(call);
        let is_on_path = || {
            let paths = self.paths.as_ref();
            paths.is_none_or(|paths| self.is_on_path(paths, call))
        };
        let may_fail = may_fail && self.fault.may_fail(|| call.call_site()) && is_on_path();
        if !may_fail || !self.begin() {
            return role;
        }
        match self.fault.effect {
            Effect::Replace => return Some(Role::Fails),
            Effect::Keep | Effect::List(_) => {}
            Effect::Skip => {
                // SAFETY: who starts this vouches for it.
                let mut writer = unsafe { call.rewrite() };
                if writer.skip(self.fault.result).is_err() {
                    return role;
                }
                self.fault.errno.inspect(|errno| writer.set_errno(*errno));
            }
        }
        let thread = (call.thread_word(), call.thread_id(), call.thread_stack());
        // SAFETY: `thread_word` and `thread_id` are the running thread's.
        unsafe { self.tell(call.function(), call.return_address(), thread) };
        role
    }

    fn ret(&self, call: &mut Return<'_, Role>, role: Role) {
        if role == Role::Encloses {
            return;
        }
        // SAFETY: who starts this vouches for it.
        let mut writer = unsafe { call.rewrite() };
        if writer.set_result(self.fault.result as u64).is_ok() {
            self.fault.errno.inspect(|errno| writer.set_errno(*errno));
            let thread = (call.thread_word(), call.thread_id(), call.thread_stack());
            // SAFETY: `thread_word` and `thread_id` are the running thread's.
            unsafe { self.tell(call.function(), call.return_address(), thread) };
        }
    }

    fn library(&self, event: &LibraryEvent<'_>) {
        self.sink.library(event);
        if let Some(paths) = &self.paths {
            paths.modules.library(event);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    #[test]
    fn the_first_calls_do_not_fail_and_the_others_count_from_there() {
        let fails = |fault: Fault| {
            (0..10)
                .filter(move |&nth| fault.hits(nth))
                .collect::<Vec<_>>()
        };
        assert_eq!(fails(Fault::skip(0).after(7)), [7, 8, 9]);
        assert_eq!(fails(Fault::skip(0).after(3).every(2)), [4, 6, 8]);
        assert!(fails(Fault::skip(0).after(u64::MAX)).is_empty());
    }

    #[test]
    fn the_nth_call_fails_and_no_other_until_it_is_counted_anew() {
        let counts = Counts::default();
        let failed = |fault: Fault| {
            let failed = (1..10)
                .filter(|_| counts.begin(&fault))
                .collect::<Vec<u64>>();
            counts.reset();
            failed
        };
        assert_eq!(failed(Fault::skip(0).nth(1)), [1]);
        assert_eq!(failed(Fault::skip(0).nth(9)), [9]);
        assert!(failed(Fault::skip(0).nth(0)).is_empty());
        assert!(failed(Fault::skip(0).nth(10)).is_empty());
    }

    #[test]
    fn a_call_waits_at_least_as_long_as_is_said() {
        let since = Instant::now();
        for fault in [Fault::unchanged(), Fault::skip(0).probability(1.0, 7)] {
            let fault = fault.delay(5 * MILLISECOND, 6 * MILLISECOND);
            assert!((0..4).all(|_| Counts::default().begin(&fault)));
        }
        assert!(since.elapsed() >= 40 * MILLISECOND);
        let fault = Fault::unchanged().delay(5 * MILLISECOND, 50 * MILLISECOND);
        let delays = |seed| (0..9).map(move |nth| fault.delay_seed(seed).delay_of(nth));
        assert!(delays(7).eq(delays(7)) && delays(7).ne(delays(8)));
        assert!(delays(7).all(|ns| (5_000_000..=50_000_000).contains(&ns)));
        // A range of all numbers does not panic either.
        assert!(
            !Counts::default().begin(
                &Fault::unchanged()
                    .every(0)
                    .delay(Duration::ZERO, Duration::MAX)
            )
        );
    }

    #[test]
    fn no_more_calls_fail_than_are_asked_for() {
        let counts = Counts::default();
        let fault = Fault::skip(-1).every(2).count(3);
        let failed = (0..100).filter(|_| counts.begin(&fault)).count();
        assert_eq!(failed, 3);
    }

    #[test]
    fn every_nth_call_fails_and_a_seed_chooses_as_often_as_it_says() {
        let fails = |fault: Fault, calls| (0..calls).filter(|&nth| fault.hits(nth)).count();
        assert_eq!(fails(Fault::skip(-1), 100), 100);
        assert_eq!(fails(Fault::skip(-1).every(7), 100), 14);
        assert_eq!(fails(Fault::skip(-1).every(0), 100), 0);
        let random = |probability, seed| Fault::skip(-1).probability(probability, seed);
        assert_eq!(fails(random(0.0, 1), 1000), 0);
        assert_eq!(fails(random(f64::NAN, 1), 1000), 0);
        assert_eq!(fails(random(1.0, 1), 1000), 1000);
        assert!((2800..3200).contains(&fails(random(0.3, 5), 10_000)));
        let chosen = |seed| (0..64).filter(move |&nth| random(0.5, seed).hits(nth));
        assert!(chosen(1).eq(chosen(1)) && !chosen(1).eq(chosen(2)));
    }
}
