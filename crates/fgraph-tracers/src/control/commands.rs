//! Commands of `set_ftrace_filter`: actions other than tracing when a function is called.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle, Thread};

use fgraph::{Entry, FgraphOps, Filter, Handle, Untraced};
use fgraph_trace::Snapshot;
use fgraph_trace::ring::Rings;

use super::ControlError;
use super::view::{STACK, leave_out};
use super::words::quoted;
use crate::recorder::Recorder;
use crate::support::caller::ReturnsTo;
use crate::support::looking;
use crate::support::text_line::Line;

/// A recorder, and the time up to which events were consumed from its rings.
pub(super) type Trace<'a> = (&'a Arc<Recorder>, &'a Arc<AtomicU64>);

/// Action of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    TraceOn,
    TraceOff,
    Snapshot,
    StackTrace,
}

const ACTIONS: [(&str, Action); 4] = [
    ("traceon", Action::TraceOn),
    ("traceoff", Action::TraceOff),
    ("snapshot", Action::Snapshot),
    ("stacktrace", Action::StackTrace),
];

/// Command of one function.
#[derive(Clone, Debug)]
struct Command {
    name: String,
    address: usize,
    action: Action,
    /// Number of times that the command still runs; `None` for no limit.
    left: Option<Arc<AtomicU64>>,
}

/// In the kernel's notation: `schedule:traceoff:count=5`.
impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let action = ACTIONS.iter().find(|(_, action)| *action == self.action);
        let action = action.map_or("", |(name, _)| name);
        write!(f, "{}:{action}:", self.name)?;
        match &self.left {
            Some(left) => write!(f, "count={}", left.load(Ordering::Relaxed)),
            None => f.write_str("unlimited"),
        }
    }
}

/// Command in a word: `function:command` or `function:command:count`.
struct Wish<'a> {
    is_added: bool,
    functions: &'a str,
    action: Action,
    count: Option<u64>,
}

/// Parses a word with a command; `None` if it has none.
fn wish<'a>(file: &str, word: &'a str) -> Result<Option<Wish<'a>>, ControlError> {
    let (is_added, rest) = match word.strip_prefix('!') {
        Some(rest) => (false, rest),
        None => (true, word),
    };
    let command = |text: &'a str| {
        let (functions, name) = text.rsplit_once(':')?;
        let (_, action) = ACTIONS.iter().find(|(known, _)| *known == name)?;
        // `a::snapshot` names a function.
        (!functions.is_empty() && !functions.ends_with(':')).then_some((functions, *action))
    };
    let (found, count) = match (command(rest), rest.rsplit_once(':')) {
        (Some(found), _) => (Some(found), None),
        (None, Some((before, count))) => (command(before), Some(count)),
        (None, None) => (None, None),
    };
    let Some((functions, action)) = found else {
        return Ok(None);
    };
    let wrong = |count| ControlError::value(file, count);
    let count = count.map(|count| count.parse().map_err(|_| wrong(count)));
    Ok(Some(Wish {
        is_added,
        functions,
        action,
        count: count.transpose()?,
    }))
}

impl Wish<'_> {
    fn apply(&self, file: &str, word: &str, all: &mut Vec<Command>) -> Result<(), ControlError> {
        let wrong = |part| ControlError::value(file, part);
        let sites = fgraph::sites_of(self.functions).map_err(|_| wrong(self.functions))?;
        let sites: Vec<_> = sites.iter().filter(|site| site.how.is_ok()).collect();
        if sites.is_empty() {
            return Err(wrong(self.functions));
        }
        let is_it = |command: &Command| {
            command.action == self.action
                && command.left.is_some() == self.count.is_some()
                && sites.iter().any(|site| site.address == command.address)
        };
        let before = all.len();
        all.retain(|command| !is_it(command));
        if self.is_added {
            all.extend(sites.iter().map(|site| Command {
                name: site.name.clone(),
                address: site.address,
                action: self.action,
                left: self.count.map(|count| Arc::new(AtomicU64::new(count))),
            }));
        } else if all.len() == before {
            return Err(wrong(word));
        }
        Ok(())
    }
}

/// The commands, and the trace that they work on.
#[derive(Debug, Default)]
pub(super) struct Commands {
    all: Vec<Command>,
    user: Option<Handle<Callbacks>>,
    pub(super) switch: Arc<Switch>,
    pub(super) snapshots: Snapshots,
}

/// True while tracing is on.
#[derive(Debug)]
pub(super) struct Switch(AtomicBool);

impl Default for Switch {
    fn default() -> Self {
        Self(AtomicBool::new(true))
    }
}

impl Switch {
    pub(super) fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn set(&self, on: bool) {
        self.0.store(on, Ordering::Relaxed);
    }
}

impl Commands {
    /// True if a word has a command.
    pub(super) fn is_command(file: &str, word: &str) -> Result<bool, ControlError> {
        Ok(wish(file, word)?.is_some())
    }

    /// Adds or removes commands. After an error nothing has changed.
    pub(super) fn change(
        &mut self,
        file: &str,
        words: &[&str],
        trace: Option<Trace<'_>>,
    ) -> Result<(), ControlError> {
        if words.is_empty() {
            return Ok(());
        }
        let mut all = self.all.clone();
        for word in words {
            if let Some(wish) = wish(file, word)? {
                wish.apply(file, word, &mut all)?;
            }
        }
        let before = std::mem::replace(&mut self.all, all);
        if let Err(error) = self.start(trace) {
            self.all = before;
            return Err(error);
        }
        Ok(())
    }

    /// Makes the commands work on the trace of a recorder, or on none.
    pub(super) fn start(&mut self, trace: Option<Trace<'_>>) -> Result<(), ControlError> {
        let rings = trace.map(|(recorder, taken)| (recorder.rings().clone(), taken.clone()));
        self.snapshots.set_rings(rings);
        if self.all.is_empty() {
            self.user = None;
            return Ok(());
        }
        if self
            .all
            .iter()
            .any(|command| command.action == Action::Snapshot)
        {
            self.snapshots.start()?;
        }
        let mut actions: HashMap<usize, Vec<Command>> = HashMap::new();
        for command in &self.all {
            actions
                .entry(command.address)
                .or_default()
                .push(command.clone());
        }
        let callbacks = Callbacks {
            actions,
            switch: self.switch.clone(),
            recorder: trace.map(|(recorder, _)| recorder.clone()),
            snapshots: self.snapshots.shared.clone(),
        };
        let names: BTreeSet<_> = self
            .all
            .iter()
            .map(|command| quoted(&command.name))
            .collect();
        let names: Vec<_> = names.into_iter().collect();
        let filter: Filter = names.join(" ").parse()?;
        // SAFETY: the callbacks neither allocate nor lock: they use atomics, wake a thread, and
        // write to memory of the recorder.
        let user = unsafe { fgraph::register_with(callbacks, filter, &looking::options()) };
        self.user = Some(user.map_err(|failed| failed.error)?);
        Ok(())
    }

    /// Releases the recorder. The caller calls `start` next.
    pub(super) fn stop(&mut self) {
        self.user = None;
        self.snapshots.set_rings(None);
    }

    /// Returns the commands in the notation of `set_ftrace_filter`.
    pub(super) fn lines(&self) -> impl Iterator<Item = String> {
        self.all.iter().map(Command::to_string)
    }
}

#[derive(Debug)]
struct Callbacks {
    /// Keyed by the address of the function.
    actions: HashMap<usize, Vec<Command>>,
    switch: Arc<Switch>,
    recorder: Option<Arc<Recorder>>,
    snapshots: Arc<Shared>,
}

impl FgraphOps for Callbacks {
    type Data = ();

    fn entry(&self, call: &mut Entry<'_, ()>) -> Option<()> {
        for command in self
            .actions
            .get(&call.function().address())
            .into_iter()
            .flatten()
        {
            let is_due = match command.action {
                Action::TraceOn => !self.switch.is_on(),
                Action::TraceOff => self.switch.is_on(),
                Action::Snapshot | Action::StackTrace => self.recorder.is_some(),
            };
            if is_due && command.take() {
                self.act(command.action, call);
            }
        }
        None
    }
}

impl Command {
    /// Counts one run; true if the command may run once more.
    fn take(&self) -> bool {
        let relaxed = Ordering::Relaxed;
        let less = |left: u64| left.checked_sub(1);
        let left = self.left.as_ref();
        left.is_none_or(|left| left.fetch_update(relaxed, relaxed, less).is_ok())
    }
}

impl Callbacks {
    fn act(&self, action: Action, call: &Entry<'_, ()>) {
        match (action, &self.recorder) {
            (Action::TraceOn | Action::TraceOff, recorder) => {
                let on = action == Action::TraceOn;
                self.switch.set(on);
                if let Some(recorder) = recorder {
                    crate::Tracer::set_enabled(&**recorder, on);
                }
            }
            (Action::Snapshot, Some(recorder)) => {
                self.snapshots.ask(recorder.rings().clock().kind().now());
            }
            (Action::StackTrace, Some(recorder)) if self.switch.is_on() => {
                let mut text = Line::<1024>::new();
                // A text that is too long is cut.
                let _ = write_stack(&mut text, call);
                recorder.mark(text.as_str());
            }
            _ => {}
        }
    }
}

/// Writes the traced calls around a call, as far as they are known, innermost first.
fn write_stack(text: &mut impl fmt::Write, call: &Entry<'_, ()>) -> fmt::Result {
    write!(text, "{STACK}\n => {}", call.function().name().as_str())?;
    let mut addresses = [0; 16];
    let count = call.callers(&mut addresses);
    for address in &addresses[..count.min(addresses.len())] {
        write!(text, "\n => {}", ReturnsTo(*address))?;
    }
    Ok(())
}

/// Snapshots of the trace at some moment.
#[derive(Debug, Default)]
pub(super) struct Snapshots {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Time up to which a snapshot is requested; 0 if none is.
    wanted: AtomicU64,
    is_over: AtomicBool,
    /// Thread that takes the snapshots.
    thread: OnceLock<Thread>,
    /// Locked only by threads that are not traced meanwhile.
    taken: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The rings, with the time up to which events were consumed from them.
    rings: Option<(Arc<Rings>, Arc<AtomicU64>)>,
    snapshot: Option<Snapshot>,
}

impl State {
    fn take(&mut self, until: u64) {
        if let Some((rings, taken)) = &self.rings {
            let mut snapshot = Snapshot::take(rings).until(until);
            // Reading memory does not fail.
            let _ = leave_out(&mut snapshot, taken);
            self.snapshot = Some(snapshot);
        }
    }
}

impl Shared {
    /// Requests a snapshot. Neither allocates nor locks.
    fn ask(&self, now: u64) {
        // Release: publishes the earlier writes to the rings. Pairs with `serve`.
        self.wanted.store(now.max(1), Ordering::Release);
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Takes the requested snapshot, if there is one.
    fn serve(&self) -> MutexGuard<'_, State> {
        let mut state = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        // Acquire: pairs with `ask`.
        let until = self.wanted.swap(0, Ordering::Acquire);
        if until != 0 {
            state.take(until);
        }
        state
    }
}

impl Snapshots {
    /// Starts the thread that takes snapshots that functions request, so that they are taken soon.
    fn start(&mut self) -> Result<(), ControlError> {
        if self.thread.is_some() {
            return Ok(());
        }
        let shared = self.shared.clone();
        let work = move || {
            let _untraced = Untraced::new();
            while !shared.is_over.load(Ordering::Relaxed) {
                drop(shared.serve());
                thread::park();
            }
        };
        let thread = thread::Builder::new().name("fgraph-snapshot".into());
        let thread = thread.spawn(work).map_err(ControlError::Thread)?;
        let _ = self.shared.thread.set(thread.thread().clone());
        self.thread = Some(thread);
        Ok(())
    }

    fn set_rings(&self, rings: Option<(Arc<Rings>, Arc<AtomicU64>)>) {
        // An outstanding request is for the previous rings.
        self.shared.serve().rings = rings;
    }

    /// Takes a snapshot now, if there are rings.
    pub(super) fn take(&self) {
        self.shared.serve().take(u64::MAX);
    }

    pub(super) fn clear(&self) {
        self.shared.serve().snapshot = None;
    }

    /// Returns the newest snapshot.
    pub(super) fn get(&self) -> Option<Snapshot> {
        self.shared.serve().snapshot.clone()
    }
}

impl Drop for Snapshots {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else {
            return;
        };
        let _untraced = Untraced::new();
        self.shared.is_over.store(true, Ordering::Relaxed);
        thread.thread().unpark();
        let _ = thread.join();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_may_have_a_command() {
        let of = |word| {
            wish("file", word)
                .unwrap()
                .map(|wish| (wish.is_added, wish.functions, wish.action, wish.count))
        };
        assert_eq!(of("f:traceoff"), Some((true, "f", Action::TraceOff, None)));
        assert_eq!(
            of("!f*:traceon:3"),
            Some((false, "f*", Action::TraceOn, Some(3)))
        );
        assert_eq!(
            of("f:mod:libc*:snapshot:1"),
            Some((true, "f:mod:libc*", Action::Snapshot, Some(1)))
        );
        assert_eq!(
            of("a::b:stacktrace"),
            Some((true, "a::b", Action::StackTrace, None))
        );
        for none in [
            "f",
            "a::snapshot",
            "f:mod:libc",
            ":traceoff",
            "f:jump",
            "snapshot",
        ] {
            assert_eq!(of(none), None, "{none}");
        }
        let error = wish("file", "f:traceoff:many").err().unwrap();
        assert_eq!(error.to_string(), "file has no use for 'many'");
    }
}
