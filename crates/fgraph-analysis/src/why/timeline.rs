//! The calls of all threads, in memory, by time.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;

use fgraph_trace::Source;
use fgraph_trace::event::What;
use fgraph_trace::graph::Matcher;
use fgraph_trace::names::process_id;
use fgraph_trace::schedule::{Schedule, State};
use fgraph_trace::source::SourceError;

use crate::calls::{At, Call, Calls, Context, Ending, Function, Open, Slot, Step, Views, Visitor};
use crate::tree::Tree;
use crate::waits::{self, Cause, Thing};

/// A moment from which on a thread is in a call, or in none.
#[derive(Clone, Copy, Debug)]
struct Moment {
    time: u64,
    /// The node of the innermost call in the tree of all stacks.
    node: u32,
}

/// Functions whose calls are explained.
pub struct Wanted {
    /// Returns true for the name and the module of such a function.
    pub is_it: Matcher,
    /// The argument that tells requests apart.
    pub argument: Option<usize>,
    /// True if such a call is the last one of its request.
    pub is_last: bool,
}

impl fmt::Debug for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Wanted");
        debug.field("argument", &self.argument);
        debug.field("is_last", &self.is_last);
        debug.finish_non_exhaustive()
    }
}

/// A call of the wanted function that is in no other one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Root {
    /// Index of its thread.
    pub(super) thread: usize,
    pub(super) from: u64,
    pub(super) to: u64,
    /// The node of the call.
    node: u32,
    /// The process, and the value of the argument that tells requests apart, if it was recorded.
    pub(super) request: Option<(u32, u64)>,
    /// True if it is the last call of its request.
    pub(super) is_last: bool,
}

/// A call that ends waits of other threads.
#[derive(Clone, Copy, Debug)]
struct End {
    time: u64,
    thread: usize,
    kind: Cause,
    /// The address of the thing that it releases, if that was recorded.
    object: Option<u64>,
}

/// A call whose first argument tells what it waits for.
#[derive(Clone, Copy, Debug)]
struct Asked {
    time: u64,
    node: u32,
    thing: Thing,
    /// The address, the descriptor, or the time.
    value: u64,
}

/// The thread that ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Release {
    pub(super) thread: usize,
    pub(super) time: u64,
}

/// A part of a call that has one cause at one place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) cause: Cause,
    pub(super) node: u32,
    pub(super) from: u64,
    /// The first tick after it.
    pub(super) to: u64,
    /// The ticks of it that have the cause: fewer than all where only samples are known.
    pub(super) ticks: u64,
    /// True if it is between the calls of a request.
    pub(super) is_between: bool,
}

/// The calls of wanted functions in progress in a thread.
#[derive(Clone, Copy, Debug, Default)]
struct Outermost {
    /// Their number.
    count: u32,
    /// Begin, request and end of request, as those of [`Root`].
    begin: u64,
    request: Option<(u32, u64)>,
    is_last: bool,
}

/// The roles of a function.
#[derive(Clone, Copy, Debug, Default)]
struct Kind {
    is_wanted: bool,
    argument: Option<usize>,
    is_last: bool,
    waits: Option<Cause>,
    ends: Option<Cause>,
    thing: Option<Thing>,
    /// The argument with the address of the thing that it releases.
    released: Option<usize>,
    closes: bool,
}

/// All calls, by thread and time.
#[derive(Debug)]
pub struct Timeline {
    /// The calls that were followed: their functions and threads, and the losses.
    pub calls: Calls<Views>,
    wanted: Vec<Wanted>,
    kinds: Vec<Kind>,
    /// All stacks.
    pub(super) tree: Tree,
    threads: Vec<Vec<Moment>>,
    /// The node of the innermost call of each thread.
    now: Vec<u32>,
    open: Vec<Outermost>,
    pub(super) roots: Vec<Root>,
    /// Calls of the wanted function whose ends are not known.
    pub unended: u64,
    ends: Vec<End>,
    /// Calls with arguments, for each thread.
    asked: Vec<Vec<Asked>>,
    /// The times at which descriptors were closed, by process and descriptor.
    closes: HashMap<(u32, u32), Vec<u64>>,
    /// The process of the current event, and its arguments.
    process: u32,
    arguments: Vec<u64>,
}

/// The most calls before a wait that are searched for its arguments.
const NEAR: usize = 64;

impl Timeline {
    /// Returns true if calls of this function are explained.
    #[must_use]
    pub fn is_wanted(&self, name: &str, module: &str) -> bool {
        self.wanted
            .iter()
            .any(|wanted| (wanted.is_it)(name, module))
    }

    /// Reads all calls of a source.
    ///
    /// # Errors
    ///
    /// Errors of the source.
    pub fn read(source: &mut impl Source, wanted: Vec<Wanted>) -> Result<Self, SourceError> {
        let mut this = Self {
            calls: Calls::default(),
            wanted,
            kinds: Vec::new(),
            tree: Tree::default(),
            threads: Vec::new(),
            now: Vec::new(),
            open: Vec::new(),
            roots: Vec::new(),
            unended: 0,
            ends: Vec::new(),
            asked: Vec::new(),
            closes: HashMap::new(),
            process: 0,
            arguments: Vec::new(),
        };
        let mut followed = Calls::default();
        while let Some(event) = source.next()? {
            this.process = process_id(event.process);
            this.arguments.clear();
            if let What::Entry { arguments, .. } = event.what {
                this.arguments.extend(arguments);
            }
            let step = Step::of(&event);
            let Ok(()) = followed.step(step, &Context::of(source), &mut this);
        }
        let Ok(()) = followed.finish(&Context::of(source), &mut this);
        this.ends.sort_by_key(|end| end.time);
        followed.rename(source.names());
        this.calls = followed;
        Ok(this)
    }

    fn moment(&mut self, thread: usize, time: u64, node: u32) {
        self.now[thread] = node;
        let moments = &mut self.threads[thread];
        match moments.last_mut() {
            Some(last) if last.time == time => last.node = node,
            _ => moments.push(Moment { time, node }),
        }
    }

    /// Returns the function of a node.
    pub(super) fn slot(&self, node: u32) -> Slot {
        self.tree.nodes[node as usize].slot
    }

    /// Returns the node around a node.
    pub(super) fn parent(&self, node: u32) -> u32 {
        self.tree.nodes[node as usize].parent
    }

    /// Returns the reason for which a thread with this innermost call waits, and the node of the
    /// call that waits: the outermost of those that call each other for the same reason.
    fn wait(&self, node: u32) -> Option<(Cause, u32)> {
        let waits = |node: u32| match node {
            0 => None,
            node => self.kinds[self.slot(node) as usize].waits,
        };
        let mut at = node;
        while at != 0 && waits(at).is_none() {
            at = self.parent(at);
        }
        let cause = waits(at)?;
        while waits(self.parent(at)) == Some(cause) {
            at = self.parent(at);
        }
        Some((cause, at))
    }

    /// Returns the innermost node around two nodes.
    pub(super) fn common(&self, mut a: u32, mut b: u32) -> u32 {
        // A node comes after its parent.
        while a != b {
            match a > b {
                true => a = self.parent(a),
                false => b = self.parent(b),
            }
        }
        a
    }

    /// Passes the parts of a thread's time to `found`, in order: of the time in calls, and of all
    /// other time with node 0.
    pub(super) fn pieces(
        &self,
        thread: usize,
        id: u32,
        (from, to): (u64, u64),
        schedule: Option<&Schedule>,
        mut found: impl FnMut(Piece),
    ) {
        let moments = &self.threads[thread];
        let next = moments.partition_point(|moment| moment.time <= from);
        let mut at = next.saturating_sub(1);
        let mut begin = from;
        while begin < to {
            let node = moments.get(at).filter(|it| it.time <= begin);
            let node = node.map_or(0, |moment| moment.node);
            let next = moments.get(at + 1).map_or(to, |next| next.time.min(to));
            if next > begin {
                self.states(id, node, (begin, next), schedule, &mut found);
            }
            begin = next.max(begin);
            at += 1;
        }
    }

    /// Divides time with one innermost call by the states of the thread.
    fn states(
        &self,
        id: u32,
        node: u32,
        (from, to): (u64, u64),
        schedule: Option<&Schedule>,
        found: &mut impl FnMut(Piece),
    ) {
        let wait = self.wait(node);
        let (cause, place) = wait.unwrap_or((Cause::Unknown, node));
        let whole = |cause, node, from: u64, to: u64| Piece {
            cause,
            node,
            from,
            to,
            ticks: to - from,
            is_between: false,
        };
        let Some(schedule) = schedule else {
            // A function that may wait is taken to do only that.
            let is_wait = wait.is_some() && cause != Cause::Memory;
            let cause = if is_wait { cause } else { Cause::Computes };
            found(whole(cause, node, from, to));
            return;
        };
        let mut end = from;
        for interval in schedule.intervals(id, from, to) {
            end = interval.to;
            let (from, to) = (interval.from, interval.to);
            match interval.state {
                Some(State::Running) => found(whole(Cause::Computes, node, from, to)),
                Some(State::Runnable) => found(whole(Cause::Processor, node, from, to)),
                Some(State::Blocked) => found(whole(cause, place, from, to)),
                None => self.sampled(id, node, (from, to), schedule, found),
            }
        }
        if end < to {
            // A thread without a switch has run all the time.
            found(whole(Cause::Computes, node, end, to));
        }
    }

    /// Divides time between two samples.
    fn sampled(
        &self,
        id: u32,
        node: u32,
        (from, to): (u64, u64),
        schedule: &Schedule,
        found: &mut impl FnMut(Piece),
    ) {
        let piece = |cause, node, ticks| Piece {
            cause,
            node,
            from,
            to,
            ticks,
            is_between: false,
        };
        if let Some((cause, place)) = self.wait(node)
            && cause != Cause::Memory
        {
            found(piece(cause, place, to - from));
            return;
        }
        // The thread was in no function that waits, so it ran or waited for a processor.
        let times = schedule.between(id, from, to).unwrap_or_default();
        let all = u128::from(times.running) + u128::from(times.runnable);
        let runnable = u128::from(times.runnable) * u128::from(to - from);
        let runnable = runnable.checked_div(all).unwrap_or(0) as u64;
        found(piece(Cause::Computes, node, to - from - runnable));
        if runnable > 0 {
            found(piece(Cause::Processor, node, runnable));
        }
    }

    /// Returns the node of the innermost call of a thread at a time.
    fn innermost(&self, thread: usize, time: u64) -> u32 {
        let moments = &self.threads[thread];
        let next = moments.partition_point(|moment| moment.time <= time);
        next.checked_sub(1).map_or(0, |at| moments[at].node)
    }

    /// Returns the thing that a thread waits for, with its address, its descriptor or its time.
    pub(super) fn asked(&self, thread: usize, wait: &Piece) -> Option<(Thing, u64)> {
        let mut around = vec![self.innermost(thread, wait.from)];
        while let Some(&node) = around.last()
            && node > wait.node
        {
            around.push(self.parent(node));
        }
        let all = &self.asked[thread];
        let next = all.partition_point(|asked| asked.time <= wait.from);
        let mut newest = all[..next].iter().rev().take(NEAR);
        let asked = newest.find(|asked| around.contains(&asked.node))?;
        Some((asked.thing, asked.value))
    }

    /// Returns the descriptor that a thread uses first after it has waited for several, and the
    /// time at which it does.
    pub(super) fn used_next(&self, thread: usize, after: u64) -> Option<(u64, u64)> {
        let all = &self.asked[thread];
        let next = all.partition_point(|asked| asked.time < after);
        let mut later = all[next..].iter();
        let used = later.find(|it| matches!(it.thing, Thing::Ready | Thing::Descriptor))?;
        (used.thing == Thing::Descriptor).then_some((used.value, used.time))
    }

    /// Returns true if a descriptor of a process was closed between two times.
    pub(super) fn is_closed(&self, descriptor: (u32, u32), from: u64, to: u64) -> bool {
        let times = self.closes.get(&descriptor);
        times.is_some_and(|times| times.iter().any(|&time| from < time && time < to))
    }

    /// Returns the thread that ended the wait of another one, and the time at which it did.
    pub(super) fn release(&self, waiter: usize, wait: &Piece) -> Option<Release> {
        let next = self.ends.partition_point(|end| end.time <= wait.to);
        let before = self.ends[..next].iter().rev();
        let mut during = before.take_while(|end| end.time >= wait.from);
        let object = match self.asked(waiter, wait) {
            Some((Thing::Address(_), address)) => Some(address),
            _ => None,
        };
        let is_it = |end: &&End| {
            let is_kind = end.kind == wait.cause || wait.cause == Cause::Unknown;
            let is_other = |other: u64| object.is_some_and(|object| object != other);
            end.thread != waiter && is_kind && !end.object.is_some_and(is_other)
        };
        let end = during.find(is_it)?;
        Some(Release {
            thread: end.thread,
            time: end.time,
        })
    }

    /// Passes the calls that begin within a call of the wanted function to `found`, as nodes.
    pub(super) fn begun(&self, root: &Root, mut found: impl FnMut(u32)) {
        let moments = &self.threads[root.thread];
        let first = moments.partition_point(|moment| moment.time < root.from);
        let mut before = root.node;
        for moment in &moments[first..] {
            if moment.time >= root.to {
                break;
            }
            // The later of two moments at one time is known, so a new node may be deeper.
            let mut node = moment.node;
            while node != 0 && node != before && self.depth(node) > self.depth(before) {
                found(node);
                node = self.parent(node);
            }
            before = moment.node;
        }
    }

    /// Returns an argument of the current event.
    fn argument(&self, index: Option<usize>) -> Option<u64> {
        self.arguments.get(index?).copied()
    }

    fn depth(&self, node: u32) -> u64 {
        // The number of calls around a node is kept as its number of hits.
        self.tree.nodes[node as usize].hits
    }

    /// Returns all functions from the outermost call of a thread to a node.
    fn stack(&self, node: u32) -> Vec<Slot> {
        let mut path = Vec::new();
        let mut at = node;
        while at != 0 {
            path.push(self.slot(at));
            at = self.parent(at);
        }
        path.reverse();
        path
    }

    /// Returns the functions from a call of the wanted function to a node, the outermost first,
    /// and the wanted function itself before them if `with_it`; `None` if the node is in no such
    /// call.
    pub(super) fn path(&self, node: u32, with_it: bool) -> Option<Vec<Slot>> {
        let mut path = Vec::new();
        let mut outermost = None;
        let mut at = node;
        while at != 0 {
            let slot = self.slot(at);
            if self.kinds[slot as usize].is_wanted {
                outermost = Some(path.len());
            }
            path.push(slot);
            at = self.parent(at);
        }
        path.truncate(outermost? + usize::from(with_it));
        path.reverse();
        Some(path)
    }
}

impl Visitor for Timeline {
    type Error = Infallible;

    fn function(&mut self, function: &Function) {
        let mut wanted = self.wanted.iter();
        let wanted = wanted.find(|wanted| (wanted.is_it)(&function.name, &function.module));
        let mut last = self.wanted.iter().filter(|wanted| wanted.is_last);
        self.kinds.push(Kind {
            is_wanted: wanted.is_some(),
            argument: wanted.and_then(|wanted| wanted.argument),
            is_last: last.any(|wanted| (wanted.is_it)(&function.name, &function.module)),
            waits: waits::of(&function.name),
            ends: waits::ended_by(&function.name),
            thing: waits::thing(&function.name),
            released: waits::released(&function.name),
            closes: waits::closes(&function.name),
        });
    }

    fn enter(&mut self, at: &At<'_>, call: &Open) -> Result<(), Infallible> {
        let thread = at.thread.index;
        if self.threads.len() <= thread {
            self.threads.resize_with(thread + 1, Vec::new);
            self.now.resize(thread + 1, 0);
            self.open.resize(thread + 1, Outermost::default());
            self.asked.resize_with(thread + 1, Vec::new);
        }
        let parent = self.now[thread];
        let node = self.tree.child(parent, call.data);
        self.tree.nodes[node as usize].hits = self.depth(parent) + 1;
        self.moment(thread, call.begin, node);
        let of_function = self.kinds[call.data as usize];
        if let Some(kind) = of_function.ends {
            self.ends.push(End {
                time: call.begin,
                thread,
                kind,
                object: self.argument(of_function.released),
            });
        }
        if let Some(thing) = of_function.thing
            && let Some(value) = self.argument(Some(thing.argument()))
        {
            self.asked[thread].push(Asked {
                time: call.begin,
                node,
                thing,
                value,
            });
            if of_function.closes {
                let descriptor = (self.process, value as u32);
                self.closes.entry(descriptor).or_default().push(call.begin);
            }
        }
        if of_function.is_wanted {
            let value = self.argument(of_function.argument);
            let request = value.map(|value| (self.process, value));
            let open = &mut self.open[thread];
            open.count += 1;
            if open.count == 1 {
                (open.begin, open.request) = (call.begin, request);
                open.is_last = false;
            }
            open.is_last |= of_function.is_last && open.request == request;
        }
        Ok(())
    }

    fn exit(&mut self, at: &At<'_>, call: &Call) -> Result<(), Infallible> {
        let thread = at.thread.index;
        let node = self.now[thread];
        let end = call.begin.saturating_add(call.ran);
        self.moment(thread, end, self.parent(node));
        if !self.kinds[call.slot as usize].is_wanted {
            return Ok(());
        }
        let open = &mut self.open[thread];
        open.count = open.count.saturating_sub(1);
        if open.count > 0 {
            return Ok(());
        }
        match call.ending {
            Ending::Returned | Ending::Unwound => self.roots.push(Root {
                thread,
                from: open.begin,
                to: end,
                node,
                request: open.request,
                is_last: open.is_last,
            }),
            Ending::Lost | Ending::Open | Ending::EntryOnly => self.unended += 1,
        }
        Ok(())
    }
}

/// The relative place of each node: the functions from the wanted call to it.
#[derive(Debug)]
pub(super) struct Places {
    /// Places of equal nodes of different callers are one.
    pub(super) tree: Tree,
    /// By node, and true for those between the calls of a request.
    known: HashMap<(u32, bool), u32>,
    /// True if places have the wanted function itself.
    with_it: bool,
}

impl Places {
    pub(super) fn new(with_it: bool) -> Self {
        Self {
            tree: Tree::default(),
            known: HashMap::new(),
            with_it,
        }
    }

    /// Returns the place of a piece that was placed.
    pub(super) fn known(&self, piece: &Piece) -> Option<u32> {
        self.known.get(&(piece.node, piece.is_between)).copied()
    }

    /// Returns the place of a piece; that of the wanted call itself is 0, unless places have it.
    pub(super) fn of(&mut self, timeline: &Timeline, piece: &Piece) -> u32 {
        self.of_node(timeline, piece.node, piece.is_between)
    }

    /// Returns the place of a node; of one between the calls of a request it is its whole stack.
    pub(super) fn of_node(&mut self, timeline: &Timeline, node: u32, is_between: bool) -> u32 {
        if let Some(&known) = self.known.get(&(node, is_between)) {
            return known;
        }
        let path = match is_between {
            true => timeline.stack(node),
            false => timeline.path(node, self.with_it).unwrap_or_default(),
        };
        let place = path.iter().fold(0, |at, &slot| self.tree.child(at, slot));
        self.known.insert((node, is_between), place);
        place
    }
}
