//! Callbacks for the functions of allocators: see [`heap`](crate::heap).
//!
//! Most calls take the fast path (see [`fgraph::Handle::fast_path`]), with the registers saved only
//! for finding the calls around those that make blocks.

use core::array;
use core::cell::Cell;
use core::mem::MaybeUninit;
use core::ops::Deref;
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering};

use fgraph::{
    Dropped, Entry, FgraphOps, Filter, Function, LibraryEvent, Return, with_registers_saved,
};
use fgraph_symbols::allocators;
use fgraph_trace::event::{self, Extension, Kind};

use super::fetch::{MAX_STACK, Words};
use super::record::{ENTRY_ONLY, Record, end_of};
use super::stacks::Stacks;
use crate::heap::{Act, Role};
use crate::support::by_function::ByFunction;
use crate::support::kernel;
use crate::support::selected::selects;
use crate::support::sink::Place;

/// Writes outermost calls of allocators, with the calls around those that make blocks.
#[derive(Debug)]
pub(super) struct Allocations {
    record: Record,
    /// The number of each function's role from 1, [`NONE`], or 0 before its first call.
    roles: ByFunction<AtomicU32>,
    /// Roles of functions that the user names: from the number [`NAMED`] on.
    named: Box<[(Filter, Role)]>,
    stacks: Stacks,
}

/// Marks a function that is none of an allocator's.
const NONE: u32 = u32::MAX;

/// The number of the first role that the user gives.
const NAMED: u32 = 1 << 16;

/// Data that a call carries from entry to return.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    role: Role,
    /// The requested size.
    size: u64,
    /// Address of the word that the function writes to.
    stored: u64,
}

impl Allocations {
    /// Creates the callbacks; `None` without memory.
    pub(super) fn new(record: Record, named: &[(Filter, Role)]) -> Option<Self> {
        Some(Self {
            record,
            named: named.into(),
            roles: ByFunction::new(),
            stacks: Stacks::new()?,
        })
    }

    pub(super) fn into_record(self) -> Record {
        self.record
    }

    /// Returns the role of a function with a known one.
    #[inline(always)]
    fn role(&self, number: u32) -> Option<Role> {
        let number = number.wrapping_sub(1);
        match number.checked_sub(NAMED) {
            None => allocators::numbered(number),
            Some(nth) => self.named.get(nth as usize).map(|(_, role)| *role),
        }
    }

    /// Finds the number of a function's role at its first call, and describes the function.
    #[cold]
    #[inline(never)]
    fn learn(&self, call: &Entry<'_, Call>) -> Option<u32> {
        let function = call.function();
        let cell = self.roles.of(function)?;
        let is_it = |(filter, _): &(Filter, Role)| selects(filter, function);
        let named = self.named.iter().position(is_it);
        let named = named.map(|nth| NAMED + nth as u32);
        let found = named.or_else(|| function.names().find_map(allocators::number));
        let number = found.map_or(NONE, |number| number + 1);
        if found.is_some() && !self.is_described(function) {
            self.describe(function, call.thread_word());
        }
        // Release: a thread that finds the number writes events after the description.
        cell.store(number, Ordering::Release);
        Some(number)
    }

    /// Returns the number of a function's role; 0 if it is not known yet.
    #[inline(always)]
    fn known(&self, function: Function) -> u32 {
        // Acquire: pairs with the store in `learn`.
        let known = self.roles.get(function);
        known.map_or(0, |cell| cell.load(Ordering::Acquire))
    }

    /// Writes a call that has made a block, if its stack is known; `false` if that takes
    /// [`write_made`](Self::write_made).
    #[inline(always)]
    fn write_known(&self, call: &Return<'_, Call>, data: Call) -> bool {
        let Some(block) = call.result().filter(|_| data.role.act != Act::Store) else {
            return false;
        };
        let Some(block) = data.role.made(&[block]) else {
            return false;
        };
        let mut places = [MaybeUninit::uninit(); MAX_STACK];
        let stack = call.unwind_known(&mut places);
        let Some(number) = stack.and_then(|stack| self.stacks.find(stack).ok()) else {
            return false;
        };
        let event = [
            event::call(Kind::Entry, call.function().index()),
            event::extension(Extension::Arguments, 2),
            data.size,
            block,
            event::extension(Extension::StackNumber, 1),
            number,
            ENTRY_ONLY,
        ];
        let (word, thread) = (call.thread_word(), call.thread_id());
        let place = || Place::of(call.thread_stack(), false);
        self.write_short(word, thread, event, event.len(), place);
        true
    }

    /// Writes the entry of a call that changes a block, and ends with another event.
    #[inline(never)]
    fn write_entry(&self, call: &Entry<'_, Call>, role: Role) -> bool {
        let mut event = Words::new(event::call(Kind::Entry, call.function().index()));
        event.extend_with(Extension::Arguments, |words| {
            for index in 0..role.arguments {
                words.push(call.arg(index.into()).unwrap_or(0));
            }
        });
        if role.allocates() {
            let mut addresses = [0; MAX_STACK];
            let count = call.unwind(&mut addresses);
            let stack = addresses.get(..count).unwrap_or_default();
            self.add_stack(&mut event, stack, call.thread_word());
        }
        let (word, thread, cpu) = (call.thread_word(), call.thread_id(), self.cpu());
        let place = || Place::of(call.thread_stack(), true);
        self.write_words(word, thread, event.as_slice(), self.now(), cpu, place)
    }

    /// Writes a call that has made a block, or has failed.
    #[inline(never)]
    fn write_made(&self, call: &Return<'_, Call>, data: Call) {
        let result = call.result();
        let second = match result {
            Some(result) if data.role.act == Act::Store && result as u32 == 0 => {
                stored(call, data.stored as usize)
            }
            _ => 0,
        };
        let made = result.and_then(|result| data.role.made(&[result, second]));
        let mut event = Words::new(event::call(Kind::Entry, call.function().index()));
        event.extend_with(Extension::Arguments, |words| {
            words.push(data.size);
            words.push(made.unwrap_or(0));
        });
        if made.is_some() {
            let mut addresses = [0; MAX_STACK];
            let count = call.unwind(&mut addresses);
            let stack = addresses.get(..count).unwrap_or_default();
            self.add_stack(&mut event, stack, call.thread_word());
        }
        event.push(ENTRY_ONLY);
        let (word, thread, cpu) = (call.thread_word(), call.thread_id(), self.cpu());
        let place = || Place::of(call.thread_stack(), false);
        self.write_words(word, thread, event.as_slice(), self.now(), cpu, place);
    }

    /// Adds the number of a stack to an event, or its addresses if it has none.
    #[inline]
    fn add_stack(&self, event: &mut Words, stack: &[usize], word: &Cell<u64>) {
        match self
            .stacks
            .number(stack, self.process_of(word), self.rings())
        {
            Some(number) => event.extend(Extension::StackNumber, number),
            None => event.extend_with(Extension::Stack, |words| {
                stack.iter().for_each(|address| words.push(*address as u64));
            }),
        }
    }
}

impl Deref for Allocations {
    type Target = Record;

    fn deref(&self) -> &Record {
        &self.record
    }
}

impl FgraphOps for Allocations {
    type Data = Call;

    #[inline]
    fn entry(&self, call: &mut Entry<'_, Call>) -> Option<Call> {
        let function = call.function();
        let number = match self.known(function) {
            // SAFETY: the code reads no floating-point registers.
            0 => unsafe { with_registers_saved(|| self.learn(call)) }.flatten()?,
            number => number,
        };
        let role = self.role(number)?;
        if call
            .parent_data()
            .is_some_and(|outer| outer.role.contains(&role))
        {
            return None;
        }
        if !role.returns() {
            let block = call.arg(role.pointer.into()).unwrap_or(0);
            // Freeing nothing has no effect.
            if block == 0 {
                return None;
            }
            let event = event::call(Kind::Entry, function.index());
            let head = event::extension(Extension::Arguments, 1);
            let (word, thread) = (call.thread_word(), call.thread_id());
            let place = || Place::of(call.thread_stack(), true);
            let event = [event, head, block, ENTRY_ONLY];
            self.write_short(word, thread, event, event.len(), place);
            // For the calls inside.
            return Some(Call {
                role,
                size: 0,
                stored: 0,
            });
        }
        let arguments: [u64; 6] = array::from_fn(|index| call.arg(index).unwrap_or(0));
        if call.is_entry_only() {
            // Its result is unknown: readers count it.
            if role.is_own(&arguments) {
                let event = [event::call(Kind::Entry, function.index()), ENTRY_ONLY];
                let (word, thread) = (call.thread_word(), call.thread_id());
                let place = || Place::of(call.thread_stack(), true);
                self.write_short(word, thread, event, event.len(), place);
            }
            return None;
        }
        if role.is_one_event() {
            return role.is_own(&arguments).then(|| Call {
                role,
                size: role.size(&arguments),
                stored: arguments[usize::from(role.pointer) % arguments.len()],
            });
        }
        // SAFETY: the code reads no floating-point registers.
        let is_written = unsafe { with_registers_saved(|| self.write_entry(call, role)) };
        is_written.unwrap_or(false).then_some(Call {
            role,
            size: 0,
            stored: 0,
        })
    }

    #[inline]
    fn ret(&self, call: &mut Return<'_, Call>, data: Call) {
        if data.role.is_one_event() {
            if !self.write_known(call, data) {
                // SAFETY: the code reads no floating-point registers.
                unsafe { with_registers_saved(|| self.write_made(call, data)) };
            }
        } else if data.role.returns() {
            let event = event::call(end_of(call), call.function().index());
            let head = event::extension(Extension::Result, 1);
            let (result, len) = match call.result() {
                Some(result) => (result, 3),
                None => (0, 1),
            };
            let (word, thread) = (call.thread_word(), call.thread_id());
            let place = || Place::of(call.thread_stack(), false);
            self.write_short(word, thread, [event, head, result], len, place);
        }
    }

    fn dropped(&self, call: &Dropped<'_, Call>, data: Call) {
        // Only the others have an entry that waits for an end.
        if !data.role.is_one_event() && data.role.returns() {
            self.write_dropped(call);
        }
    }

    fn library(&self, event: &LibraryEvent<'_>) {
        self.record.library(event);
    }
}

/// Returns the word at an address; 0 if there is none. Most callers keep it on their stacks, where
/// it is read without a system call.
fn stored<D>(call: &Return<'_, D>, address: usize) -> u64 {
    let mut bytes = [0; size_of::<u64>()];
    let end = address.saturating_add(bytes.len());
    let is_above = bytes.as_ptr().addr() < address;
    if is_above && call.thread_stack().is_some_and(|stack| end <= stack.end) {
        let word = ptr::with_exposed_provenance::<u64>(address);
        // SAFETY: the word is between a local variable and the end of the stack that has both, and
        // all of that is mapped.
        return unsafe { word.read_unaligned() };
    }
    match kernel::peek(call.thread_id(), address, &mut bytes) {
        8 => u64::from_ne_bytes(bytes),
        _ => 0,
    }
}
