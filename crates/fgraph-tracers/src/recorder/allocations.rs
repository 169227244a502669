//! Callbacks for the functions of allocators: see [`heap`].

use core::ops::Deref;
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering};

use fgraph::{Entry, FgraphOps, Function, LibraryEvent, Return};
use fgraph_trace::event::{self, Extension, Kind};

use super::fetch::{MAX_STACK, Words};
use super::record::{ENTRY_ONLY, Record, end_of};
use crate::heap::{self, Act, Role};
use crate::support::by_function::ByFunction;
use crate::support::kernel;
use crate::support::sink::Place;

/// Writes outermost calls of allocators, with the calls around those that make blocks.
#[derive(Debug)]
pub(super) struct Allocations {
    record: Record,
    /// The number of each function's role from 1, [`NONE`], or 0 before its first call.
    roles: ByFunction<AtomicU32>,
}

/// Marks a function that is none of an allocator's.
const NONE: u32 = u32::MAX;

/// Data that a call carries from entry to return.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    role: Role,
    /// Address of the word that the function writes to.
    stored: u64,
}

impl Allocations {
    pub(super) fn new(record: Record) -> Self {
        Self {
            record,
            roles: ByFunction::new(),
        }
    }

    pub(super) fn into_record(self) -> Record {
        self.record
    }

    fn role(&self, function: Function) -> Option<Role> {
        let cell = self.roles.of(function)?;
        let number = match cell.load(Ordering::Relaxed) {
            0 => {
                let found = function.names().find_map(heap::number);
                let number = found.map_or(NONE, |number| number + 1);
                cell.store(number, Ordering::Relaxed);
                number
            }
            known => known,
        };
        heap::numbered(number.wrapping_sub(1))
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
        let role = self.role(call.function())?;
        if call
            .parent_data()
            .is_some_and(|outer| outer.role.contains(&role))
        {
            return None;
        }
        let function = call.function();
        if !self.is_described(function) {
            self.describe(function, call.thread_word());
        }
        let mut event = Words::new(event::call(Kind::Entry, function.index()));
        event.extend_with(Extension::Arguments, |words| {
            for index in 0..role.arguments {
                words.push(call.arg(index.into()).unwrap_or(0));
            }
        });
        if role.allocates() {
            event.extend_with(Extension::Stack, |words| {
                let mut addresses = [0; MAX_STACK];
                let count = call.unwind(&mut addresses);
                for address in addresses.iter().take(count) {
                    words.push(*address as u64);
                }
            });
        }
        if !role.returns() {
            event.push(ENTRY_ONLY);
        }
        let now = self.now();
        let (word, thread, cpu) = (call.thread_word(), call.thread_id(), self.cpu());
        let place = || Place::of(call.thread_stack(), true);
        let is_written = self.write_words(word, thread, event.as_slice(), now, cpu, place);
        is_written.then(|| Call {
            role,
            stored: match role.act {
                Act::Store => call.arg(role.pointer.into()).unwrap_or(0),
                _ => 0,
            },
        })
    }

    #[inline]
    fn ret(&self, call: &mut Return<'_, Call>, data: Call) {
        if !data.role.returns() {
            return;
        }
        let mut event = Words::new(event::call(end_of(call), call.function().index()));
        if let Some(result) = call.result() {
            event.extend_with(Extension::Result, |words| {
                words.push(result);
                if data.stored != 0 && result as u32 == 0 {
                    words.push(stored(call, data.stored as usize));
                }
            });
        }
        let now = self.now();
        let (word, thread, cpu) = (call.thread_word(), call.thread_id(), self.cpu());
        let place = || Place::of(call.thread_stack(), false);
        self.write_words(word, thread, event.as_slice(), now, cpu, place);
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
