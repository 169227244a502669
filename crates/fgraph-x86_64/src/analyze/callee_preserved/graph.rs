//! Code as blocks, with the edges between them.

use alloc::{vec, vec::Vec};
use core::ops::Range;

use super::bitset::{BitSet, RankedSet};
use super::code::Code;
use super::decoded::{Decoded, Flow, Instructions, Thunk};
use super::effect::Effect;
use crate::nop::ENDBR64;

/// A block that ends with a call or jump through a register.
#[derive(Clone, Copy, Debug)]
pub(super) struct Through {
    pub(super) block: u32,
    /// The number of the register.
    pub(super) register: u8,
    /// True if it goes through a retpoline.
    pub(super) by_thunk: bool,
}

/// The prefix of atomic instructions.
const LOCK: u8 = 0xf0;

/// The end of a block. Targets are indices of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The next block follows.
    Falls,
    Jumps(u32),
    /// The code continues at the target or at the next block.
    Branches(u32),
    Calls(u32),
    /// A call of a function that the caller does not know.
    CallsUnknown,
    JumpsUnknown,
    /// A call that, as far as is known, changes only rax: it may find thread-local variables.
    CallsResolver,
    /// A jump to a place in the same function, or to another function.
    JumpsByTable,
    Returns,
    /// The code does not continue: the processor stops there.
    Stops,
    /// The continuation is unknown.
    Unclear,
}

impl End {
    /// Returns the target block.
    pub(super) fn target(self) -> Option<u32> {
        match self {
            Self::Jumps(to) | Self::Branches(to) | Self::Calls(to) => Some(to),
            _ => None,
        }
    }

    /// Returns true for a call.
    pub(super) fn calls(self) -> bool {
        matches!(
            self,
            Self::Calls(_) | Self::CallsUnknown | Self::CallsResolver
        )
    }

    /// Returns true if the next block may follow.
    pub(super) fn leads_on(self) -> bool {
        match self {
            Self::Falls
            | Self::Branches(_)
            | Self::Calls(_)
            | Self::CallsUnknown
            | Self::CallsResolver => true,
            Self::Jumps(_)
            | Self::JumpsUnknown
            | Self::JumpsByTable
            | Self::Returns
            | Self::Stops
            | Self::Unclear => false,
        }
    }
}

#[derive(Debug)]
pub(super) struct Block {
    /// The number of its address, see `Graph::place`.
    pub(super) place: u32,
    /// True if it starts with `endbr64`.
    is_pad: bool,
    /// True if it tests the number of vector arguments.
    pub(super) asks_al: bool,
    /// True if it contains only NOPs.
    is_padding: bool,
    pub(super) effect: Effect,
    pub(super) end: End,
}

/// The blocks of all code.
#[derive(Debug)]
pub(super) struct Graph<'a> {
    code: &'a [Code<'a>],
    /// The number of each stretch's first address, and of the end of the last.
    places: Vec<u32>,
    pub(super) blocks: Vec<Block>,
    /// The numbers of the blocks' addresses.
    block_places: RankedSet,
    /// The first blocks of functions.
    pub(super) functions: Vec<u32>,
    /// The first blocks of functions and of parts of functions.
    pub(super) parts: Vec<u32>,
    /// The blocks that end with a call or jump through a register, in order.
    pub(super) through: Vec<Through>,
    /// The places where registers get constants that may point to code, in order; true for a
    /// constant that is wider than necessary.
    pub(super) constants: Vec<(u32, bool)>,
    /// The blocks that jump to, branch to or call each block, in the order of targets.
    sources: Vec<u32>,
    /// The start of each block's sources in `sources`.
    source_starts: Vec<u32>,
}

/// Code that is decoded from its start.
#[derive(Clone, Copy, Debug)]
struct DecodedPiece<'a> {
    /// The index of its stretch.
    stretch: usize,
    address: usize,
    /// The number of its first address, see `Graph::place`.
    place: u32,
    bytes: &'a [u8],
}

impl<'a> Graph<'a> {
    /// Cuts code into blocks; `None` if there are more than can be numbered.
    pub(super) fn new(
        code: &'a [Code<'a>],
        functions: &[usize],
        parts: &[usize],
        return_thunks: &[usize],
    ) -> Option<Self> {
        let mut starts_of_parts = [functions, parts].concat();
        starts_of_parts.sort_unstable();
        starts_of_parts.dedup();
        let parts = &starts_of_parts[..];
        let mut places = vec![0];
        for stretch in code {
            // One more, so that the end of a stretch differs from the start of the next.
            let end = *places.last()? as usize + stretch.bytes.len() + 1;
            places.push(i32::try_from(end).ok()?.cast_unsigned());
        }
        let mut graph = Self {
            code,
            places,
            blocks: Vec::new(),
            block_places: RankedSet::default(),
            functions: Vec::new(),
            parts: Vec::new(),
            through: Vec::new(),
            constants: Vec::new(),
            sources: Vec::new(),
            source_starts: Vec::new(),
        };
        let len = *graph.places.last()?;
        let (mut starts, mut leaders) = (BitSet::new(len as usize), BitSet::new(len as usize));
        let mut entries = BitSet::new(len as usize);
        for &function in parts {
            if let Some(place) = graph.place(function) {
                leaders.set(place);
                entries.set(place);
            }
        }
        let mut instructions = Instructions::new();
        let mut constants = Vec::new();
        for piece in graph.pieces(parts) {
            instructions.add(piece.bytes, piece.address, |at, met| {
                let place = piece.place + at as u32;
                let Some(met) = met else {
                    leaders.set(place);
                    return;
                };
                starts.set(place);
                let targets = met.target.into_iter();
                for to in targets.flat_map(|to| graph.starts_for(to, piece.stretch)) {
                    leaders.set(to);
                    if met.calls {
                        entries.set(to);
                    }
                }
                if let Some(constant) = met.constant {
                    let to = constant.value as usize;
                    let leads_to_code = || {
                        graph.place_near(to, piece.stretch).is_some()
                            && parts.binary_search(&to).is_ok()
                    };
                    if constant.is_wide || leads_to_code() {
                        constants.push((place, constant.is_wide));
                    }
                }
                if met.is_pad
                    && let Some(next) = graph.place(piece.address + at + met.len)
                {
                    leaders.set(next);
                }
            });
        }
        graph.constants = constants;
        (graph.blocks, graph.block_places, graph.through) =
            graph.cut(parts, &instructions, &starts, &leaders, &entries);
        graph.end_by_thunks(return_thunks);
        let roots = functions.iter().filter_map(|&at| graph.block_at(at));
        graph.functions = roots.map(|block| block as u32).collect();
        let roots = parts.iter().filter_map(|&at| graph.block_at(at));
        graph.parts = roots.map(|block| block as u32).collect();
        graph.end_functions();
        graph.link_sources();
        Some(graph)
    }

    /// Returns the number of an address among all addresses of code.
    fn place(&self, address: usize) -> Option<u32> {
        self.place_near(address, 0)
    }

    /// Returns [`place`](Self::place) for an address that is probably in this stretch.
    pub(super) fn place_near(&self, address: usize, stretch: usize) -> Option<u32> {
        let offset_in = |at: usize| {
            let stretch = self.code.get(at)?;
            let offset = address.wrapping_sub(stretch.address);
            (offset < stretch.bytes.len()).then(|| self.places[at] + offset as u32)
        };
        offset_in(stretch).or_else(|| {
            let next = self
                .code
                .partition_point(|stretch| stretch.address <= address);
            offset_in(next.checked_sub(1)?)
        })
    }

    /// Returns the possible start of an instruction at a branch target that is probably in this
    /// stretch: the target, or the `lock` before it, over which code jumps if there is only one
    /// thread.
    fn starts_for(&self, address: usize, stretch: usize) -> impl Iterator<Item = u32> + use<> {
        let place = self.place_near(address, stretch);
        let before = place.and_then(|_| self.place_near(address.wrapping_sub(1), stretch));
        let is_lock = |place: &u32| {
            let code = self.code_from(*place, stretch);
            code.is_some_and(|code| code.bytes.first() == Some(&LOCK))
        };
        place.into_iter().chain(before.filter(is_lock))
    }

    /// Returns the pieces of the code that are decoded from their start.
    fn pieces<'b>(
        &'b self,
        functions: &'b [usize],
    ) -> impl Iterator<Item = DecodedPiece<'a>> + use<'a, 'b> {
        let stretches = self.code.iter().zip(&self.places).enumerate();
        stretches.flat_map(move |(at, (stretch, &place))| {
            let end = stretch.address + stretch.bytes.len();
            let first = functions.partition_point(|&at| at <= stretch.address);
            let behind = functions.partition_point(|&at| at < end);
            let inner = functions.get(first..behind).unwrap_or_default();
            let starts = core::iter::once(stretch.address).chain(inner.iter().copied());
            let ends = inner.iter().copied().chain([end]);
            starts.zip(ends).map(move |(start, end)| {
                let offset = start - stretch.address;
                DecodedPiece {
                    stretch: at,
                    address: start,
                    place: place + offset as u32,
                    bytes: &stretch.bytes[offset..end - stretch.address],
                }
            })
        })
    }

    /// Makes the blocks, and returns their places. Their targets are places first, and blocks in
    /// the end.
    fn cut(
        &self,
        parts: &[usize],
        instructions: &Instructions,
        starts: &BitSet,
        leaders: &BitSet,
        entries: &BitSet,
    ) -> (Vec<Block>, RankedSet, Vec<Through>) {
        let mut blocks: Vec<Block> = Vec::new();
        let mut through = Vec::new();
        let mut instructions_left = instructions.iter();
        let mut is_open = false;
        let mut next_place = 0;
        for piece in self.pieces(parts) {
            let mut at = 0;
            while at < piece.bytes.len()
                && let Some(decoded) = instructions_left.next()
            {
                let place = piece.place + at as u32;
                let len = decoded.map_or(1, |decoded| decoded.kind.len.into());
                at += len;
                if is_open && place != next_place {
                    // The end of a stretch.
                    if let Some(block) = blocks.last_mut() {
                        block.end = End::Unclear;
                    }
                    is_open = false;
                }
                if !is_open || leaders.has(place) {
                    blocks.push(Block {
                        place,
                        is_pad: decoded.is_some_and(|decoded| decoded.kind.is_pad),
                        effect: Effect::default(),
                        asks_al: false,
                        is_padding: true,
                        end: End::Falls,
                    });
                    is_open = true;
                }
                next_place = place + len as u32;
                let index = blocks.len() as u32 - 1;
                let Some(block) = blocks.last_mut() else {
                    continue;
                };
                let Some(Decoded {
                    kind,
                    at_entry,
                    target,
                }) = decoded
                else {
                    (block.end, is_open) = (End::Unclear, false);
                    continue;
                };
                block.effect.add(match entries.has(block.place) {
                    true => at_entry,
                    false => &kind.access,
                });
                block.is_padding &= kind.is_nop;
                block.asks_al |= kind.asks_al;
                block.end = self.end(kind.flow, target, starts, piece.stretch);
                match (kind.flow, self.thunk_at(target, piece.stretch)) {
                    (Flow::CallsRegister(register) | Flow::JumpsRegister(register), _) => {
                        through.push(Through {
                            block: index,
                            register,
                            by_thunk: false,
                        });
                    }
                    (Flow::Calls, Some(Thunk::Jumps(register))) => {
                        block.end = End::JumpsByTable;
                        through.push(Through {
                            block: index,
                            register,
                            by_thunk: true,
                        });
                    }
                    (Flow::Calls, Some(Thunk::Returns)) => block.end = End::Returns,
                    _ => {}
                }
                is_open = block.end == End::Falls;
            }
        }
        if let Some(last) = blocks.last_mut()
            && last.end.leads_on()
        {
            last.end = End::Unclear;
        }
        let mut places = BitSet::new(self.places.last().map_or(0, |&end| end as usize));
        blocks.iter().for_each(|block| places.set(block.place));
        let places = RankedSet::new(places);
        let ends: Vec<End> = (0..blocks.len())
            .map(|at| {
                let to = |place| places.rank(place).map_or(u32::MAX, |block| block as u32);
                let end = match blocks[at].end {
                    End::Jumps(place) => End::Jumps(to(place)),
                    End::Branches(place) => End::Branches(to(place)),
                    End::Calls(place) => End::Calls(to(place)),
                    end => end,
                };
                match end {
                    End::Jumps(u32::MAX) | End::Branches(u32::MAX) | End::Calls(u32::MAX) => {
                        End::Unclear
                    }
                    end => end,
                }
            })
            .collect();
        for (block, end) in blocks.iter_mut().zip(ends) {
            block.end = end;
        }
        (blocks, places, through)
    }

    /// Returns the end of a block, if an instruction of a stretch is its last one; otherwise
    /// `Falls`.
    fn end(&self, flow: Flow, target: Option<usize>, starts: &BitSet, stretch: usize) -> End {
        let place = target.and_then(|to| self.place_near(to, stretch));
        let start = target.and_then(|to| {
            let mut all = self.starts_for(to, stretch);
            all.find(|&start| starts.has(start))
        });
        if place.is_some() && start.is_none() {
            return End::Unclear;
        }
        match (flow, start) {
            (Flow::Calls, Some(place)) => End::Calls(place),
            (Flow::Calls, None) => End::CallsUnknown,
            (Flow::Jumps, Some(place)) => End::Jumps(place),
            (Flow::Jumps, None) => End::JumpsUnknown,
            (Flow::Branches, Some(place)) => End::Branches(place),
            // The target may be another function, which is unknown.
            (Flow::Branches, None) => End::Unclear,
            (Flow::Falls, _) => End::Falls,
            (Flow::CallsUnknown | Flow::CallsRegister(_), _) => End::CallsUnknown,
            (Flow::JumpsUnknown, _) => End::JumpsUnknown,
            (Flow::CallsResolver, _) => End::CallsResolver,
            (Flow::JumpsByTable | Flow::JumpsRegister(_), _) => End::JumpsByTable,
            (Flow::Returns, _) => End::Returns,
            (Flow::Stops, _) => End::Stops,
            (Flow::Unclear, _) => End::Unclear,
        }
    }

    /// Marks calls that do not return: those whose next instruction, after optional padding, starts
    /// a function.
    fn end_functions(&mut self) {
        let mut is_start = vec![false; self.blocks.len() + 1];
        for &at in &self.parts {
            is_start[at as usize] = true;
        }
        for block in &self.blocks {
            if let End::Calls(to) = block.end {
                is_start[to as usize] = true;
            }
        }
        for at in (0..self.blocks.len()).rev() {
            let block = &mut self.blocks[at];
            match block.end {
                // The rest of the padding counts as absent.
                End::Falls if block.is_padding && is_start[at + 1] => {
                    is_start[at] = true;
                    block.end = End::Stops;
                }
                End::Calls(to) if is_start[at + 1] => block.end = End::Jumps(to),
                End::CallsUnknown if is_start[at + 1] => block.end = End::JumpsUnknown,
                _ => {}
            }
        }
    }

    /// Computes the sources of each block.
    pub(super) fn link_sources(&mut self) {
        let targets = || {
            let blocks = (0_u32..).zip(&self.blocks);
            blocks.filter_map(|(at, block)| Some((at, block.end.target()?)))
        };
        let mut ends = vec![0; self.blocks.len() + 1];
        for (_, to) in targets() {
            ends[to as usize] += 1;
        }
        let mut all = 0;
        for end in &mut ends {
            all += *end;
            *end = all;
        }
        let mut sources = vec![0; all as usize];
        for (at, to) in targets() {
            ends[to as usize] -= 1;
            sources[ends[to as usize] as usize] = at;
        }
        (self.sources, self.source_starts) = (sources, ends);
    }

    /// Returns the blocks that jump to, branch to or call a block.
    pub(super) fn sources_of(&self, block: usize) -> &[u32] {
        let [start, end] = [0, 1].map(|next| self.source_starts[block + next] as usize);
        &self.sources[start..end]
    }

    /// Returns the code from a place on, and its address; the place is probably in this stretch.
    pub(super) fn code_from(&self, place: u32, stretch: usize) -> Option<Code<'a>> {
        let code_in = |at: usize| {
            let offset = place.checked_sub(*self.places.get(at)?)? as usize;
            let stretch = self.code.get(at)?;
            Some(Code {
                address: stretch.address + offset,
                bytes: stretch
                    .bytes
                    .get(offset..)
                    .filter(|rest| !rest.is_empty())?,
            })
        };
        code_in(stretch).or_else(|| {
            let next = self.places.partition_point(|&start| start <= place);
            code_in(next.checked_sub(1)?)
        })
    }

    pub(super) fn block_at(&self, address: usize) -> Option<usize> {
        self.block_places.rank(self.place(address)?)
    }

    /// Returns the blocks at which a function may start: at its landing pad, and after it.
    pub(super) fn starts_of(&self, function: usize) -> impl Iterator<Item = usize> + use<> {
        let first = self.block_at(function);
        let pad = first.filter(|&first| self.blocks[first].is_pad);
        let behind = pad.and_then(|_| self.block_at(function + ENDBR64.len()));
        first.into_iter().chain(behind)
    }

    /// Calls `step` with the open blocks, and with the sources of each block that it has changed,
    /// until there are none.
    pub(super) fn until_stable(&self, open: &mut BitSet, mut step: impl FnMut(usize) -> bool) {
        let mut is_stable = false;
        while !is_stable {
            is_stable = true;
            // Most dependencies of a block are after it.
            for word in (0..open.0.len()).rev() {
                while open.0[word] != 0 {
                    let bit = open.0[word].ilog2();
                    open.0[word] &= !(1 << bit);
                    let at = word * 64 + bit as usize;
                    if !step(at) {
                        continue;
                    }
                    is_stable = false;
                    if at != 0 {
                        open.set(at as u32 - 1);
                    }
                    for &source in self.sources_of(at) {
                        open.set(source);
                    }
                }
            }
        }
    }

    /// Returns the blocks from the start of a block's function to the start of the next function.
    pub(super) fn around(&self, block: usize) -> Range<usize> {
        let next = self.parts.partition_point(|&start| start as usize <= block);
        let start = next.checked_sub(1).map_or(0, |at| self.parts[at] as usize);
        let end = self
            .parts
            .get(next)
            .map_or(self.blocks.len(), |&end| end as usize);
        start..end
    }
}
