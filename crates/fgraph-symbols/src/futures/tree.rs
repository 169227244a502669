//! The search for futures in memory.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use gimli::Reader;

use super::facts::{Future, FutureState, Memory, Place, PollFunction, TaskRuntime};
use super::index::Index;
use super::shapes::{Kind, Member, Shape, Shapes, Variant};
use crate::signature::dwarf::types::mask;

/// The deepest nesting of futures, and of the types between two.
const MAX_DEPTH: usize = 64;
/// The most values that are looked at in a task.
const MAX_VALUES: u32 = 4096;
/// The most elements of a list of futures.
const MAX_ELEMENTS: u64 = 16;

/// The member with the futures of `select!` and `join!`, in the closure that polls them.
const BRANCHES: [&str; 2] = ["futures", "_ref__futures"];

/// The future that waits for the end of a task of tokio, and the one of async-task.
const HANDLES: [(&str, &str); 2] = [
    ("JoinHandle", "tokio::runtime::task::join::"),
    ("Task", "async_task::task::"),
];

pub(super) struct Walk<'w, R: Reader<Offset = usize>, M> {
    shapes: &'w Shapes<R>,
    index: &'w Index,
    /// The distance from an address of the file to that in memory.
    bias: u64,
    memory: &'w M,
    left: Cell<u32>,
    /// Types, and if they have futures in them.
    known: RefCell<HashMap<usize, bool>>,
}

/// A value in memory: its type and its address.
type Value = (usize, u64);

impl<'w, R: Reader<Offset = usize>, M: Memory> Walk<'w, R, M> {
    pub(super) fn new(shapes: &'w Shapes<R>, index: &'w Index, bias: u64, memory: &'w M) -> Self {
        Self {
            shapes,
            index,
            bias,
            memory,
            left: Cell::new(MAX_VALUES),
            known: RefCell::default(),
        }
    }

    /// Returns the future of a task.
    pub(super) fn task(&self, poll: &PollFunction, task: u64) -> Option<Future> {
        let value = match poll.future {
            Place::At { ty, offset } => {
                let stage = (ty, task.checked_add(offset)?);
                let shape = self.shapes.shape(ty)?;
                let running = self.variant(&shape, stage.1)?;
                // The other variants have a result, or nothing.
                let shape = self.shapes.shape(running.member.ty)?;
                let future = match poll.runtime {
                    TaskRuntime::Tokio if shape.is_named("Running") => shape.member("__0")?,
                    _ => return None,
                };
                let offset = running.member.offset.checked_add(future.offset)?;
                (future.ty, stage.1.checked_add(offset)?)
            }
            Place::Told { ty, table, member } => {
                let header = poll.header?;
                let functions = self.word(task.checked_add(header.table)?)?;
                let info = self.word(functions.checked_add(table)?)?;
                let offset = self.word(info.checked_add(member)?)?;
                (ty, task.checked_add(offset)?)
            }
            Place::Nowhere => return None,
        };
        Some(self.future(value, 0))
    }

    fn word(&self, address: u64) -> Option<u64> {
        self.number(address, 8)
    }

    fn number(&self, address: u64, size: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        let part = bytes.get_mut(..usize::try_from(size).ok()?)?;
        self.memory.read(address, part)?;
        Some(u64::from_le_bytes(bytes))
    }

    /// Returns the variant of a value.
    fn variant<'s>(&self, shape: &'s Shape, at: u64) -> Option<&'s Variant> {
        let part = shape.part.as_ref()?;
        let Some((offset, size)) = part.tag else {
            return part.variants.first();
        };
        let tag = self.number(at.checked_add(offset)?, size)?;
        let is_it = |value: u64| value & mask(size) == tag;
        let mut variants = part.variants.iter();
        let found = variants.find(|variant| variant.value.is_some_and(is_it));
        found.or_else(|| part.variants.iter().find(|variant| variant.value.is_none()))
    }

    /// Returns a future, with those for which it waits.
    fn future(&self, value: Value, depth: usize) -> Future {
        let (ty, at) = match self.peeled(value) {
            Ok(value) => value,
            Err(name) => return leaf(name),
        };
        let mut future = leaf(self.index.name(self.shapes, ty));
        let Some(shape) = self.shapes.shape(ty) else {
            return future;
        };
        if depth >= MAX_DEPTH {
            future.is_cut = true;
            return future;
        }
        if !shape.is_async() {
            self.inside((ty, at), depth + 1, &mut future);
            let is_handle = |&(name, path): &(&str, &str)| {
                shape.is_named(name) && future.name.starts_with(path)
            };
            if HANDLES.iter().any(is_handle) {
                future.task = self.word(at);
            }
            return future;
        }
        let Some(variant) = self.variant(&shape, at) else {
            return future;
        };
        let inner = self.shapes.shape(variant.member.ty);
        future.state = match inner.as_ref().map(|inner| inner.name.as_str()) {
            Some("Unresumed") => FutureState::New,
            Some("Returned" | "Panicked") => FutureState::Ended,
            Some(name) if name.starts_with("Suspend") => FutureState::Waits,
            _ => return future,
        };
        if let (FutureState::Waits, Some(inner)) = (future.state, inner) {
            future.place.clone_from(&variant.place);
            let awaited = inner.members.iter().filter(|it| it.name == "__awaitee");
            for awaitee in awaited {
                let Some(value) = at
                    .checked_add(variant.member.offset)
                    .and_then(|at| member_at(awaitee, at))
                else {
                    continue;
                };
                let awaited = self.future(value, depth + 1);
                // The closures of `join!` and `select!` say nothing.
                match is_closure(&awaited.name) && !awaited.children.is_empty() {
                    true => {
                        future.is_cut |= awaited.is_cut;
                        future.children.extend(awaited.children);
                    }
                    false => future.children.push(awaited),
                }
            }
        }
        future
    }

    /// Follows pointers to a future, and removes types around one. Returns the name of a trait
    /// object whose type is unknown.
    fn peeled(&self, mut value: Value) -> Result<Value, String> {
        for _ in 0..MAX_DEPTH {
            let Some(shape) = self.shapes.shape(value.0) else {
                break;
            };
            let next = match shape.kind {
                Kind::Pointer if shape.is_followed() => shape.target.zip(self.word(value.1)),
                Kind::Structure if is_object(&shape) => Some(self.object(&shape, value.1)?),
                _ => shape
                    .wrapped()
                    .and_then(|member| member_at(member, value.1)),
            };
            match next {
                Some(next) => value = next,
                None => break,
            }
        }
        Ok(value)
    }

    /// Returns the value of a trait object, or the name of its type.
    fn object(&self, shape: &Shape, at: u64) -> Result<Value, String> {
        let read = |name| self.word(at.checked_add(shape.member(name)?.offset)?);
        let (Some(data), Some(table)) = (read("pointer"), read("vtable")) else {
            return Err(shape.name.clone());
        };
        if let Some(&ty) = self.index.tables.get(&table.wrapping_sub(self.bias)) {
            return Ok((ty, data));
        }
        // Behind the function that drops it, its size and its alignment is the one that polls it.
        const POLL: u64 = 24;
        let poll = table.checked_add(POLL).and_then(|at| self.word(at));
        let name = poll.and_then(|poll| self.memory.function(poll));
        Err(name.map_or_else(
            || shape.name.clone(),
            |name| without_closure(&name).to_owned(),
        ))
    }

    /// Adds the futures in a value to its children.
    fn inside(&self, value: Value, depth: usize, into: &mut Future) {
        let Some(left) = self.left.get().checked_sub(1) else {
            into.is_cut = true;
            return;
        };
        self.left.set(left);
        let (ty, at) = value;
        let Some(shape) = self.shapes.shape(ty) else {
            return;
        };
        if depth >= MAX_DEPTH || !self.has_futures(ty, 0) {
            into.is_cut |= depth >= MAX_DEPTH;
            return;
        }
        let mut add = |value: Value| {
            let child = self.future(value, depth + 1);
            if child.state != FutureState::Ended {
                into.children.push(child);
            }
        };
        if shape.is_async() || is_object(&shape) {
            return add(value);
        }
        match shape.kind {
            Kind::Pointer => {
                if let Some(inner) = shape.target.zip(self.word(at)) {
                    self.inside(inner, depth + 1, into);
                }
            }
            Kind::Array => self.elements(shape.target, at, shape.count, depth, into),
            Kind::Structure if shape.is_named("FuturesUnordered") => {
                self.unordered(&shape, at, depth, into);
            }
            Kind::Structure if is_slice(&shape) => {
                let read = |name| self.word(at.checked_add(shape.member(name)?.offset)?);
                let element = shape.member("data_ptr");
                let element = element.and_then(|it| self.shapes.shape(it.ty)?.target);
                if let (Some(data), Some(count)) = (read("data_ptr"), read("length")) {
                    self.elements(element, data, count, depth, into);
                }
            }
            Kind::Structure => {
                if let Some(variant) = self.variant(&shape, at)
                    && let Some(inner) = member_at(&variant.member, at)
                {
                    match shape.is_named("MaybeDone") {
                        true => self.maybe_done(inner, &mut add),
                        false => self.inside(inner, depth + 1, into),
                    }
                }
                for member in &shape.members {
                    let Some(inner) = member_at(member, at) else {
                        continue;
                    };
                    match self.branches(&shape, member) {
                        Some(branches) => self.selected(branches, inner.1, depth, into),
                        None => self.inside(inner, depth + 1, into),
                    }
                }
            }
            Kind::Other => {}
        }
    }

    /// Passes on the future of a branch of `join!` that has not ended.
    fn maybe_done(&self, (ty, at): Value, add: &mut impl FnMut(Value)) {
        let Some(shape) = self.shapes.shape(ty).filter(|it| it.name == "Future") else {
            return;
        };
        let future = shape.members.first();
        if let Some(value) = future.and_then(|member| member_at(member, at)) {
            add(value);
        }
    }

    /// Returns the type of the tuple with the branches of `select!` if a closure refers to it.
    fn branches(&self, closure: &Shape, member: &Member) -> Option<usize> {
        let is_it = closure.name.starts_with("{closure_env#");
        (is_it && BRANCHES.contains(&member.name.as_str())).then_some(())?;
        let tuple = self.shapes.shape(member.ty)?.target?;
        self.shapes
            .shape(tuple)?
            .name
            .starts_with('(')
            .then_some(tuple)
    }

    /// Adds the branches of `select!` or `join!`.
    fn selected(&self, tuple: usize, pointer: u64, depth: usize, into: &mut Future) {
        let (Some(shape), Some(at)) = (self.shapes.shape(tuple), self.word(pointer)) else {
            return;
        };
        for member in &shape.members {
            let Some(value) = member_at(member, at) else {
                continue;
            };
            let is_done = self.shapes.shape(member.ty);
            if is_done.is_some_and(|it| it.is_named("MaybeDone")) {
                self.inside(value, depth + 1, into);
                continue;
            }
            let child = self.future(value, depth + 1);
            if child.state != FutureState::Ended {
                into.children.push(child);
            }
        }
    }

    /// Adds the futures in the elements of an array.
    fn elements(
        &self,
        element: Option<usize>,
        at: u64,
        count: u64,
        depth: usize,
        into: &mut Future,
    ) {
        let Some((element, size)) = element.and_then(|it| Some((it, self.shapes.shape(it)?.size)))
        else {
            return;
        };
        into.is_cut |= count > MAX_ELEMENTS;
        for nth in 0..count.min(MAX_ELEMENTS) {
            let at = size.checked_mul(nth).and_then(|it| it.checked_add(at));
            if let Some(at) = at {
                self.inside((element, at), depth + 1, into);
            }
        }
    }

    /// Adds the futures in a `FuturesUnordered`, which is a list of tasks of its own.
    fn unordered(&self, shape: &Shape, at: u64, depth: usize, into: &mut Future) {
        let first = || {
            let head = shape.member("head_all")?;
            let (_, mut ty) = self
                .shapes
                .find(head.ty, &["p", "value"])
                .or_else(|| self.shapes.find(head.ty, &["v", "value"]))?;
            ty = self.shapes.shape(ty)?.target?;
            let future = self.shapes.find(ty, &["future"])?;
            let (next, _) = self.shapes.find(ty, &["next_all"])?;
            Some((future, next, self.word(at.checked_add(head.offset)?)?))
        };
        let Some(((offset, ty), next, mut task)) = first() else {
            into.is_cut = true;
            return;
        };
        for _ in 0..MAX_ELEMENTS {
            if task == 0 {
                return;
            }
            let Some(future) = task.checked_add(offset) else {
                return;
            };
            self.inside((ty, future), depth + 1, into);
            let next = task.checked_add(next).and_then(|next| self.word(next));
            task = next.unwrap_or(0);
        }
        into.is_cut |= task != 0;
    }

    /// Returns true if values of a type may have futures in them.
    fn has_futures(&self, ty: usize, depth: usize) -> bool {
        if let Some(&known) = self.known.borrow().get(&ty) {
            return known;
        }
        // A type in itself adds nothing.
        self.known.borrow_mut().insert(ty, false);
        let found = self.shapes.shape(ty).is_some_and(|shape| {
            let leads = |ty: usize| depth < MAX_DEPTH && self.has_futures(ty, depth + 1);
            if shape.is_async()
                || is_object(&shape)
                || ["FuturesUnordered", "MaybeDone"]
                    .iter()
                    .any(|name| shape.is_named(name))
            {
                return true;
            }
            match shape.kind {
                Kind::Pointer => shape.is_followed() && shape.target.is_some_and(leads),
                Kind::Array => shape.target.is_some_and(leads),
                Kind::Structure if is_slice(&shape) => {
                    let data = shape.member("data_ptr");
                    let element = data.and_then(|it| self.shapes.shape(it.ty)?.target);
                    shape.is_boxed() && element.is_some_and(leads)
                }
                Kind::Structure => {
                    let variants = shape.part.iter().flat_map(|part| &part.variants);
                    let members = variants
                        .map(|variant| &variant.member)
                        .chain(&shape.members);
                    let members: Vec<&Member> = members.collect();
                    members
                        .into_iter()
                        .any(|it| self.branches(&shape, it).is_some() || leads(it.ty))
                }
                Kind::Other => false,
            }
        });
        self.known.borrow_mut().insert(ty, found);
        found
    }
}

fn leaf(name: String) -> Future {
    Future {
        name,
        state: FutureState::Unknown,
        place: None,
        task: None,
        children: Vec::new(),
        is_cut: false,
    }
}

fn is_closure(name: &str) -> bool {
    let crates = [
        "core::future::",
        "futures_util::future::",
        "tokio::future::",
    ];
    let rest = crates.iter().find_map(|start| name.strip_prefix(start));
    rest.is_some_and(|rest| rest.starts_with("poll_fn::PollFn<"))
}

fn member_at(member: &Member, at: u64) -> Option<Value> {
    Some((member.ty, at.checked_add(member.offset)?))
}

/// Returns true for pointers to trait objects of futures.
fn is_object(shape: &Shape) -> bool {
    let is_future = shape.name.contains("dyn core::future::future::Future<");
    let is_fat = shape.member("pointer").is_some() && shape.member("vtable").is_some();
    is_future && is_fat && shape.is_followed()
}

fn is_slice(shape: &Shape) -> bool {
    shape.member("data_ptr").is_some() && shape.member("length").is_some()
}

/// Returns the name of an async function from that of the function that polls it.
fn without_closure(name: &str) -> &str {
    let end = name.strip_suffix("::{{closure}}");
    let end = end.or_else(|| name.strip_suffix("::{closure#0}"));
    end.unwrap_or(name)
}
