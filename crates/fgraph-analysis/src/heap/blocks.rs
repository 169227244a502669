//! Computes blocks of memory from calls of allocators.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::Rc;

use fgraph_symbols::allocators::{self, Act, Role};
use fgraph_trace::names::Names;

use super::python::Node;
use super::timeline::{Snapshot, Timeline};
use crate::numbers::ThreadKey;

/// A table that several lookups are made in for each call.
type Quick<K, V> = HashMap<K, V, BuildHasherDefault<QuickHasher>>;

/// A hash of addresses: half the time of the standard one.
#[derive(Debug, Default)]
struct QuickHasher(u64);

impl QuickHasher {
    fn add(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
}

impl Hasher for QuickHasher {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.add(u64::from_le_bytes(word));
        }
    }

    fn write_u32(&mut self, word: u32) {
        self.add(word.into());
    }

    fn write_u64(&mut self, word: u64) {
        self.add(word);
    }

    fn write_usize(&mut self, word: usize) {
        self.add(word as u64);
    }

    fn finish(&self) -> u64 {
        // Addresses of blocks differ in their middle bits.
        self.0.rotate_left(26)
    }
}

/// The size of a page: mappings have whole ones.
const PAGE: u64 = 4096;
/// The number of parts of the time in which growth is compared.
pub const PARTS: u64 = 4;

/// The blocks that a call path has made. Calls are in the order of time, so the sums are exact at
/// each of them.
#[derive(Clone, Debug, Default)]
pub struct Sums {
    /// Bytes that are not freed.
    pub live: u64,
    /// Blocks that are not freed.
    pub blocks: u64,
    /// Live bytes when the process had the most.
    pub peak: u64,
    /// Bytes in all.
    pub allocated: u64,
    /// Allocations.
    pub calls: u64,
    /// The time of the oldest live block, in ticks; 0 if there is none.
    pub oldest: u64,
    /// Live bytes at the begin of each part of the time, if growth is compared.
    pub marks: Vec<u64>,
    /// The number of the process's peak up to which `peak` is right.
    peaks: u64,
}

/// The numbers of call paths with one function, by stack.
type Stacks = Quick<Rc<[u64]>, u32>;
/// A call path with its sums, and true if its blocks are mappings.
pub(super) type Found = (Path, Sums, bool);
/// The blocks of each process: with true its mappings, with false the others.
pub type Wholes = BTreeMap<(u32, bool), Whole>;

/// A call path: the function of the allocator, and the calls around it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Path {
    pub(super) process: u32,
    pub(super) function: u32,
    pub(super) stack: Rc<[u64]>,
    /// The calls of Python's functions around it.
    pub(super) python: Node,
}

/// The blocks of a process.
#[derive(Clone, Debug, Default)]
pub struct Whole {
    /// Bytes that are not freed.
    pub live: u64,
    /// Blocks that are not freed.
    pub blocks: u64,
    /// The most live bytes at once.
    pub peak: u64,
    /// The time of the peak, in ticks.
    pub peak_at: u64,
    /// Bytes in all.
    pub allocated: u64,
    /// Allocations.
    pub calls: u64,
    /// Frees.
    pub freed: u64,
    /// Calls that got no memory.
    pub failed: u64,
    /// Frees of blocks that were there before, or whose calls are unknown.
    pub unknown: u64,
    /// Live blocks whose frees are unknown, as another block is at their addresses.
    pub replaced: u64,
    /// The sums at some times.
    pub timeline: Timeline,
    /// The number of times that the peak has risen.
    peaks: u64,
}

/// The path of a block that was freed.
const GONE: u32 = u32::MAX;

/// A block or mapping. One that was freed stays in the table of blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Block {
    size: u64,
    path: u32,
    since: u64,
}

/// A call in progress.
#[derive(Clone, Debug)]
struct Pending {
    function: u32,
    role: Role,
    /// True if it belongs to a call around it.
    is_inner: bool,
    size: u64,
    /// The new blocks' path.
    path: u32,
    /// The blocks that it frees, by address, until its result is known.
    taken: Vec<(u64, Block)>,
}

/// The entry of a function.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call<'a> {
    pub(super) function: u32,
    pub(super) arguments: &'a [u64],
    pub(super) stack: &'a [u64],
    pub(super) stack_number: Option<u64>,
    pub(super) python: Node,
    /// True if no event follows for its end.
    pub(super) is_whole: bool,
    /// True if it has more data, in an unknown form.
    pub(super) has_unknown: bool,
}

/// The blocks of all processes.
#[derive(Debug, Default)]
pub struct Blocks {
    roles: Quick<(u32, u32), Option<Role>>,
    threads: Quick<ThreadKey, Vec<Pending>>,
    blocks: Quick<(u32, u64), Block>,
    maps: BTreeMap<(u32, u64), Block>,
    /// The numbers of paths by process, function and calls of Python, and stack.
    numbers: Quick<(u32, u32, Node), Stacks>,
    /// The same by process, function, calls of Python and number of the stack.
    by_number: Quick<(u32, u32, Node, u64), u32>,
    paths: Vec<Found>,
    wholes: Wholes,
    /// The times of the marks that are not reached.
    marks: Vec<u64>,
    /// True if growth is compared.
    compares: bool,
    /// True if a function of an allocator was called.
    pub is_found: bool,
    /// True if a call of an allocator had arguments: those of each are recorded for this view.
    pub has_arguments: bool,
    /// Calls with data in a form that is unknown.
    unknown: u64,
    /// Calls whose results were not seen, and so neither their blocks.
    pub without_end: u64,
    /// The time of the last event, in ticks.
    pub last: u64,
}

impl Call<'_> {
    /// True if only its begin was seen, as where functions have entry callbacks only.
    fn has_no_result(&self) -> bool {
        self.is_whole && self.arguments.is_empty()
    }
}

/// The words of a call that one event describes: size and address of its block.
const WHOLE: usize = 2;
/// More calls in progress than a thread has: allocators do not call each other so deep.
const DEEP: usize = 16;

impl Blocks {
    /// Compares growth from a time on, for this number of ticks.
    pub(super) fn compare(&mut self, from: u64, ticks: u64) {
        // Calls may have been recorded before.
        let mark = |part| match part {
            0 => 0,
            part => from.saturating_add(ticks / PARTS * part),
        };
        self.marks = (0..PARTS).rev().map(mark).collect();
        self.compares = true;
    }

    /// Takes the marks up to a time.
    fn pass(&mut self, now: u64) {
        self.last = self.last.max(now);
        while let Some(mark) = self.marks.last()
            && *mark <= now
        {
            self.marks.pop();
            let taken = PARTS as usize - self.marks.len();
            for (_, sums, _) in &mut self.paths {
                sums.marks.resize(taken, sums.live);
            }
        }
    }

    /// Finds a function's role by its name or its call, and the path of its stack's number.
    pub(super) fn learn(&mut self, process: u32, call: &Call<'_>, names: &Names) {
        let function = call.function;
        let name = names.function(process, function);
        let role = name.and_then(|known| allocators::role(&known.name));
        // An allocator that the user has named: its events tell what it does.
        let role = role.or(match call.arguments {
            [_] if call.is_whole => Some(Role::freeing(0)),
            [_, _] if call.is_whole => Some(Role::allocating(0)),
            _ => None,
        });
        if role.is_none() && call.has_no_result() {
            // An allocator that the user has named: another call tells what it does.
            self.without_end += 1;
            return;
        }
        self.roles.insert((process, function), role);
        if let (Some(role), Some(number)) = (role, call.stack_number) {
            let stack = names.stack(process, number).unwrap_or_default();
            let path = self.path(process, function, call.python, &stack, role.maps());
            let key = (process, function, call.python, number);
            self.by_number.insert(key, path);
        }
    }

    /// Handles the entry of a function; `false` if its role or the path of its stack's number must
    /// be [learned](Self::learn) first.
    pub(super) fn enter(
        &mut self,
        (process, thread): ThreadKey,
        call: &Call<'_>,
        now: u64,
    ) -> bool {
        let function = call.function;
        let role = match self.roles.get(&(process, function)) {
            None => return false,
            Some(None) => {
                // Only calls that make blocks have the calls around them.
                self.unknown += u64::from(call.stack_number.is_some() || !call.stack.is_empty());
                return true;
            }
            Some(Some(role)) => *role,
        };
        if role.returns() && call.has_no_result() {
            self.without_end += 1;
            self.is_found = true;
            return true;
        }
        let is_known = match (call.is_whole, role.act, call.arguments.len()) {
            (false, ..) | (true, Act::Free, _) => true,
            (true, _, len) => role.is_one_event() && len == WHOLE,
        };
        if !is_known {
            self.unknown += 1;
            (self.is_found, self.has_arguments) = (true, true);
            return true;
        }
        let known = match call.stack_number {
            None => None,
            Some(number) => {
                let key = (process, function, call.python, number);
                match self.by_number.get(&key) {
                    None => return false,
                    known => known.copied(),
                }
            }
        };
        self.pass(now);
        self.unknown += u64::from(call.has_unknown);
        self.is_found = true;
        self.has_arguments |= !call.arguments.is_empty();
        if !self.is_outermost((process, thread), &role) {
            if role.returns() && !call.is_whole {
                let calls = self.threads.entry((process, thread)).or_default();
                calls.push(Pending {
                    function,
                    role,
                    is_inner: true,
                    size: 0,
                    path: 0,
                    taken: Vec::new(),
                });
            }
            return true;
        }
        if role.act == Act::Free {
            let address = call.arguments.first().copied().unwrap_or(0);
            if let Some(block) = self.take_block(process, address) {
                self.drop_one(process, false, &block);
            }
            return true;
        }
        let mut path = known.unwrap_or(0);
        if known.is_none() && role.allocates() {
            path = self.path(process, function, call.python, call.stack, role.maps());
        }
        if role.is_one_event() && call.is_whole {
            let [size, address] = match call.arguments {
                [size, address, ..] => [*size, *address],
                _ => [0, 0],
            };
            if address == 0 {
                self.whole(process, role.maps()).failed += 1;
                return true;
            }
            let since = now;
            let block = Block { size, path, since };
            self.add(process, role.maps(), address, block, now);
            return true;
        }
        let is_own = role.is_own(call.arguments);
        let taken = match is_own {
            true => self.take(process, &role, call.arguments),
            false => Vec::new(),
        };
        if !call.is_whole {
            let calls = self.threads.entry((process, thread)).or_default();
            calls.push(Pending {
                function,
                role,
                is_inner: !is_own,
                size: role.size(call.arguments),
                path,
                taken,
            });
        }
        true
    }

    /// True if no call of the thread contains a call of a function.
    fn is_outermost(&self, thread: ThreadKey, role: &Role) -> bool {
        if self.threads.is_empty() {
            return true;
        }
        let around = self.threads.get(&thread);
        around.is_none_or(|around| !around.iter().any(|outer| outer.role.contains(role)))
    }

    /// Handles the return of a function; without a result if it ended in another way.
    pub(super) fn leave(
        &mut self,
        (process, thread): ThreadKey,
        function: u32,
        result: Option<&[u64]>,
        now: u64,
    ) {
        self.pass(now);
        let Some(calls) = self.threads.get_mut(&(process, thread)) else {
            return;
        };
        let Some(nth) = calls.iter().rposition(|call| call.function == function) else {
            return;
        };
        let pending = calls.drain(nth..).next();
        let Some(pending) = pending.filter(|pending| !pending.is_inner) else {
            return;
        };
        let (role, maps) = (pending.role, pending.role.maps());
        let made = result.and_then(|result| role.made(result));
        let succeeds = match role.act {
            Act::Unmap => result.is_some_and(|result| result.first() == Some(&0)),
            Act::Reallocate => made.is_some() || pending.size == 0 && result.is_some(),
            Act::Resize => false,
            _ => made.is_some(),
        };
        let is_missing = role.allocates() && made.is_none() && role.act != Act::Resize;
        if is_missing && !(role.act == Act::Reallocate && succeeds) {
            self.whole(process, maps).failed += 1;
        }
        if !succeeds {
            self.put_back(process, &pending, result);
            return;
        }
        self.drop_all(process, maps, &pending.taken);
        if let Some(address) = made {
            let block = Block {
                size: pending.size,
                path: pending.path,
                since: now,
            };
            self.add(process, maps, address, block, now);
        }
    }

    /// Handles missing events of a thread: its calls in progress are unknown.
    pub(super) fn lose(&mut self, (process, thread): ThreadKey) {
        for pending in self.threads.remove(&(process, thread)).unwrap_or_default() {
            self.drop_all(process, pending.role.maps(), &pending.taken);
        }
    }

    /// Returns the number of a path.
    fn path(
        &mut self,
        process: u32,
        function: u32,
        python: Node,
        stack: &[u64],
        maps: bool,
    ) -> u32 {
        let numbers = self.numbers.entry((process, function, python)).or_default();
        if let Some(number) = numbers.get(stack) {
            return *number;
        }
        let next = self.paths.len() as u32;
        let stack: Rc<[u64]> = stack.into();
        numbers.insert(Rc::clone(&stack), next);
        let taken = (PARTS as usize).saturating_sub(self.marks.len());
        let sums = Sums {
            marks: vec![0; if self.compares { taken } else { 0 }],
            ..Sums::default()
        };
        let path = Path {
            process,
            function,
            stack,
            python,
        };
        self.paths.push((path, sums, maps));
        next
    }

    fn whole(&mut self, process: u32, maps: bool) -> &mut Whole {
        self.wholes.entry((process, maps)).or_default()
    }

    /// Removes the blocks that a call frees from the table. They stay live until it returns.
    fn take(&mut self, process: u32, role: &Role, arguments: &[u64]) -> Vec<(u64, Block)> {
        let address = role.block(arguments);
        if address == 0 {
            return Vec::new();
        }
        let found = match role.act {
            Act::Unmap | Act::Remap => {
                let len = arguments.get(1).copied().unwrap_or(0);
                self.cut(process, address, len)
            }
            _ => {
                let block = self.take_block(process, address);
                return block.map(|block| (address, block)).into_iter().collect();
            }
        };
        if found.is_empty() {
            self.whole(process, true).unknown += 1;
        }
        found
    }

    /// Removes a block from the table.
    fn take_block(&mut self, process: u32, address: u64) -> Option<Block> {
        if address == 0 {
            return None;
        }
        let gone = Block {
            path: GONE,
            ..Block::default()
        };
        match self.blocks.insert((process, address), gone) {
            // The C library frees the blocks that a thread has kept for itself once more when the
            // thread ends.
            Some(block) if block.path == GONE => None,
            Some(block) => Some(block),
            None => {
                self.whole(process, false).unknown += 1;
                None
            }
        }
    }

    /// Removes a range of mappings from the table, and returns the removed parts.
    fn cut(&mut self, process: u32, start: u64, len: u64) -> Vec<(u64, Block)> {
        let end = start.saturating_add(pages(len));
        let before = self.maps.range(..(process, start)).next_back();
        let first = before.filter(|((of, _), _)| *of == process);
        let first = first.map_or(start, |((_, address), _)| *address);
        let all = self.maps.range((process, first)..(process, end));
        let overlaps = |(key, block): (&(u32, u64), &Block)| {
            (key.1.saturating_add(block.size) > start).then_some((key.1, *block))
        };
        let found: Vec<_> = all.filter_map(overlaps).collect();
        let mut parts = Vec::new();
        for (address, block) in found {
            let (from, to) = (address, address.saturating_add(block.size));
            self.maps.remove(&(process, from));
            let mut keep = |from: u64, to: u64| {
                let size = to - from;
                self.maps.insert((process, from), Block { size, ..block });
            };
            if from < start {
                keep(from, start);
            }
            if end < to {
                keep(end, to);
            }
            let (from, to) = (from.max(start), to.min(end));
            let size = to - from;
            parts.push((from, Block { size, ..block }));
            // A mapping in two parts counts once for each.
            let more = u64::from(address < start) + u64::from(end < address + block.size);
            self.split(process, block.path, more);
        }
        parts
    }

    /// Counts further parts of a mapping.
    fn split(&mut self, process: u32, path: u32, more: u64) {
        self.whole(process, true).blocks += more;
        if let Some((_, sums, _)) = self.paths.get_mut(path as usize) {
            sums.blocks += more;
        }
    }

    /// Puts back the blocks of a call that has failed, or has changed the size of its block.
    fn put_back(&mut self, process: u32, pending: &Pending, result: Option<&[u64]>) {
        for (address, block) in pending.taken.iter().copied() {
            match pending.role.maps() {
                true => self.maps.insert((process, address), block),
                false => self.blocks.insert((process, address), block),
            };
            let new = result.and_then(|result| result.first());
            if let (Act::Resize, Some(new)) = (pending.role.act, new) {
                self.drop_one(process, false, &block);
                self.blocks.remove(&(process, address));
                let block = Block {
                    size: pending.size.min(*new),
                    ..block
                };
                self.add(process, false, address, block, self.last);
            }
        }
    }

    /// Subtracts freed blocks.
    fn drop_all(&mut self, process: u32, maps: bool, all: &[(u64, Block)]) {
        for (_, block) in all {
            self.drop_one(process, maps, block);
        }
    }

    fn drop_one(&mut self, process: u32, maps: bool, block: &Block) {
        let now = self.last;
        let whole = self.whole(process, maps);
        whole.live = whole.live.saturating_sub(block.size);
        whole.blocks = whole.blocks.saturating_sub(1);
        whole.freed += 1;
        whole.timeline.add(whole.snapshot(now));
        let peaks = whole.peaks;
        if let Some((_, sums, _)) = self.paths.get_mut(block.path as usize) {
            sums.note(peaks);
            sums.live = sums.live.saturating_sub(block.size);
            sums.blocks = sums.blocks.saturating_sub(1);
        }
    }

    /// Adds a block that a call has made.
    fn add(&mut self, process: u32, maps: bool, address: u64, mut block: Block, now: u64) {
        let old = match maps {
            true => {
                block.size = pages(block.size);
                let replaced = self.cut(process, address, block.size);
                self.drop_all(process, true, &replaced);
                self.maps.insert((process, address), block)
            }
            false => self.blocks.insert((process, address), block),
        };
        if let Some(old) = old.filter(|old| old.path != GONE) {
            self.drop_one(process, maps, &old);
            self.whole(process, maps).replaced += 1;
        }
        let whole = self.whole(process, maps);
        let before = whole.peaks;
        whole.live = whole.live.saturating_add(block.size);
        whole.blocks += 1;
        whole.allocated = whole.allocated.saturating_add(block.size);
        whole.calls += 1;
        if whole.live > whole.peak {
            whole.peak = whole.live;
            whole.peak_at = now;
            whole.peaks += 1;
            whole.timeline.peak = whole.snapshot(now);
        }
        whole.timeline.add(whole.snapshot(now));
        if let Some((_, sums, _)) = self.paths.get_mut(block.path as usize) {
            sums.note(before);
            sums.live = sums.live.saturating_add(block.size);
            sums.blocks += 1;
            sums.allocated = sums.allocated.saturating_add(block.size);
            sums.calls += 1;
        }
    }

    /// Returns the number of calls that a later version has recorded in a way that is unknown here.
    /// The sums may lack their blocks.
    #[must_use]
    pub fn unknown(&self) -> u64 {
        let open = self.threads.values().map(Vec::len);
        // Their ends are in another form.
        let unended: usize = open.filter(|open| *open > DEEP).sum();
        self.unknown + unended as u64
    }

    /// Returns the sums of all paths, with true for paths of mappings, and those of processes.
    pub(super) fn finish(mut self) -> (Vec<Found>, Wholes) {
        self.pass(self.last);
        for block in self.blocks.values().chain(self.maps.values()) {
            if let Some((_, sums, _)) = self.paths.get_mut(block.path as usize) {
                sums.oldest = match sums.oldest {
                    0 => block.since,
                    oldest => oldest.min(block.since),
                };
            }
        }
        for (path, sums, maps) in &mut self.paths {
            let whole = self.wholes.get(&(path.process, *maps));
            sums.note(whole.map_or(0, |whole| whole.peaks));
        }
        (self.paths, self.wholes)
    }
}

impl Whole {
    fn snapshot(&self, time: u64) -> Snapshot {
        Snapshot {
            time,
            live: self.live,
            allocated: self.allocated,
        }
    }
}

impl Sums {
    /// Adds the sums of a path that counts as the same.
    pub(super) fn merge(&mut self, other: &Self) {
        self.live = self.live.saturating_add(other.live);
        self.blocks += other.blocks;
        self.peak = self.peak.saturating_add(other.peak);
        self.allocated = self.allocated.saturating_add(other.allocated);
        self.calls += other.calls;
        self.oldest = match (self.oldest, other.oldest) {
            (0, oldest) | (oldest, 0) => oldest,
            (one, other) => one.min(other),
        };
        let len = self.marks.len().max(other.marks.len());
        self.marks.resize(len, 0);
        for (sum, mark) in self.marks.iter_mut().zip(&other.marks) {
            *sum = sum.saturating_add(*mark);
        }
    }

    /// Takes the live bytes as those at the process's peak, if that has risen since.
    fn note(&mut self, peaks: u64) {
        if self.peaks != peaks {
            (self.peak, self.peaks) = (self.live, peaks);
        }
    }
}

/// Rounds a length up to whole pages.
fn pages(len: u64) -> u64 {
    len.checked_next_multiple_of(PAGE).unwrap_or(len)
}
