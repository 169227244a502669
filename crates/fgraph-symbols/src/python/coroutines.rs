//! Coroutines that wait, and the objects for which they wait.

use std::collections::{HashMap, HashSet};

use super::frame::{PythonFrame, READINGS};
use super::layout::{Coroutines, Layout, TAGS, Top};
use super::memory::{Memory, PythonError, Read, reads};

/// The most awaits inside one another that are read.
const MOST_AWAITS: usize = 256;
/// The most references to a coroutine: in memory with another use, the word is larger.
const MOST_REFERENCES: u64 = 1 << 24;
/// Bytes of a task in which its coroutine is searched for.
const TASK: u64 = 0x100;

/// Addresses of the types `PyCode_Type`, `PyCoro_Type`, `PyGen_Type` and `PyAsyncGen_Type`.
#[derive(Clone, Copy, Debug)]
pub struct CoroutineTypes {
    /// Code of functions.
    pub code: u64,
    /// Coroutines of `async def`.
    pub coroutine: u64,
    /// Generators.
    pub generator: u64,
    /// Generators of `async def`.
    pub async_generator: u64,
}

/// A coroutine that no other one awaits: of a task, as a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coroutine {
    /// The address of its object.
    pub address: u64,
    /// The address of its frame's object; 0 if the frame has none.
    pub frame: u64,
    /// True if a thread runs it, or if it changed each time that it was read.
    pub runs: bool,
    /// True if it has not begun.
    pub is_new: bool,
    /// Its function, and those of the coroutines and generators that it awaits, from the outermost
    /// inwards.
    pub frames: Vec<PythonFrame>,
    /// The object for which the innermost one waits; `None` if that is unknown.
    pub awaits: Option<Awaited>,
}

/// The object for which a coroutine waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Awaited {
    /// The name of its type: `_asyncio.Future`.
    pub name: String,
    /// The address of the coroutine, if it is a task with one.
    pub coroutine: Option<u64>,
}

/// State of a coroutine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    New,
    Suspended,
    Runs,
}

/// Coroutines and the last object of a way through awaits.
type Chain = (Vec<(u64, PythonFrame)>, Option<Awaited>);

/// Returns the coroutines of a process that no other one awaits. `objects` are the addresses that
/// may be those of coroutines: [`coroutine_type_offset`] before a word with their type.
///
/// # Errors
///
/// Fails as [`threads`](super::threads()) does.
pub fn coroutines(
    runtime: u64,
    minor: u8,
    types: CoroutineTypes,
    objects: &[u64],
    read: &Read<'_>,
) -> Result<Vec<Coroutine>, PythonError> {
    let left = reads();
    let memory = Memory::new(read, &left);
    let layout = Layout::of(runtime, minor, memory)?;
    let reader = Reader {
        layout: &layout,
        memory,
        types,
    };
    let is_alive = |at: &&u64| reader.is_alive(**at).is_some();
    let alive: Vec<u64> = objects.iter().filter(is_alive).copied().collect();
    let known: HashSet<u64> = alive.iter().copied().collect();
    let found = alive.iter().map(|&at| (at, reader.coroutine(at, &known)));
    let found: HashMap<u64, (Coroutine, Vec<u64>)> =
        found.filter_map(|(at, found)| Some((at, found?))).collect();
    let inner = found.values().flat_map(|(_, inner)| inner);
    let inner: HashSet<u64> = inner.copied().collect();
    let mut roots: Vec<Coroutine> = found
        .into_iter()
        .filter(|(at, _)| !inner.contains(at))
        .map(|(_, (coroutine, _))| coroutine)
        .collect();
    roots.sort_by_key(|it| it.address);
    Ok(roots)
}

/// Returns the offset of the type in each object.
///
/// # Errors
///
/// Fails as [`threads`](super::threads()) does.
pub fn coroutine_type_offset(runtime: u64, minor: u8, read: &Read<'_>) -> Result<u64, PythonError> {
    let left = reads();
    let memory = Memory::new(read, &left);
    Ok(Layout::of(runtime, minor, memory)?.kind)
}

/// Reads objects.
struct Reader<'r> {
    layout: &'r Layout,
    memory: Memory<'r>,
    types: CoroutineTypes,
}

impl Reader<'_> {
    fn word(&self, at: u64) -> Option<u64> {
        self.memory.word(at).ok()
    }

    /// Returns the state of a coroutine at an address; `None` if there is none that lives.
    fn is_alive(&self, object: u64) -> Option<State> {
        let at = |offset: u64| object.wrapping_add(offset);
        let references = if self.layout.head == 16 {
            self.memory.half(object).ok()?.into()
        } else {
            // The thread that made it counts its own ones apart.
            let own: u64 = self.memory.half(at(12)).ok()?.into();
            own.wrapping_add(self.word(at(16))? >> 2)
        };
        (1..MOST_REFERENCES).contains(&references).then_some(())?;
        let (frame, state) = self.frame(object)?;
        let code = self.word(frame.wrapping_add(self.layout.code))? & !TAGS;
        let kind = self.word(code.wrapping_add(self.layout.kind))?;
        (kind == self.types.code).then_some(state)
    }

    /// Returns the frame of a coroutine, and its state; `None` if it has ended.
    fn frame(&self, object: u64) -> Option<(u64, State)> {
        let Coroutines {
            frame,
            is_frame_inside,
            state,
            new,
            suspended: [first, last],
            ..
        } = self.layout.coroutines;
        let at = object.wrapping_add(frame);
        let frame = if is_frame_inside { at } else { self.word(at)? };
        (frame != 0).then_some(())?;
        let Some(state) = state else {
            let current = self.memory.half(frame.wrapping_add(self.layout.current));
            let is_new = current.ok()? == u32::MAX;
            return Some(match (is_new, self.top(frame)) {
                (true, _) => (frame, State::New),
                (false, Some(_)) => (frame, State::Suspended),
                (false, None) => (frame, State::Runs),
            });
        };
        let of = if is_frame_inside { object } else { frame };
        let [state] = self.memory.array(of.wrapping_add(state)).ok()?;
        let state = state.cast_signed();
        match state {
            _ if state == new => Some((frame, State::New)),
            _ if (first..=last).contains(&state) => Some((frame, State::Suspended)),
            // The state of one that runs follows those of suspended ones.
            _ if state == last + 1 => Some((frame, State::Runs)),
            _ => None,
        }
    }

    /// Returns the object on top of the stack of a suspended frame.
    fn top(&self, frame: u64) -> Option<u64> {
        let at = |offset: u64| frame.wrapping_add(offset);
        let place = match self.layout.coroutines.top {
            Top::Pointer(offset) => self.word(at(offset))?.checked_sub(8)?,
            Top::Depth { stack, depth } => {
                let depth: u64 = self.memory.half(at(depth)).ok()?.into();
                let stack = self.word(at(stack))?;
                stack.wrapping_add(depth.checked_sub(1)?.wrapping_mul(8))
            }
            Top::Index { index, values } => {
                let index: u64 = self.memory.half(at(index)).ok()?.into();
                at(values).wrapping_add(index.checked_sub(1)?.wrapping_mul(8))
            }
        };
        match self.word(place)? & !TAGS {
            // From 3.15 on, the object has a second word above it, which is empty here.
            0 => Some(self.word(place.checked_sub(8)?)? & !TAGS),
            top => Some(top),
        }
    }

    /// Returns a coroutine, and the addresses of those that it awaits.
    fn coroutine(&self, object: u64, known: &HashSet<u64>) -> Option<(Coroutine, Vec<u64>)> {
        let mut last = None;
        for _ in 0..READINGS {
            let state = self.is_alive(object)?;
            let chain = self.chain(object, known);
            if state != State::Runs && last.as_ref() == Some(&chain) && chain.is_some() {
                break;
            }
            last = Some(chain);
        }
        let state = self.is_alive(object)?;
        let (chain, awaits) = last.flatten()?;
        let inner = chain.iter().skip(1).map(|(at, _)| *at).collect();
        let mut frames: Vec<PythonFrame> = chain.into_iter().map(|(_, frame)| frame).collect();
        let (runs, is_new) = (state == State::Runs, state == State::New);
        if runs {
            frames.truncate(1);
        }
        let (frame, _) = self.frame(object)?;
        let frame = match self.layout.coroutines.is_frame_inside {
            true => self.word(frame.wrapping_add(self.layout.coroutines.frame_object))?,
            false => frame,
        };
        let coroutine = Coroutine {
            address: object,
            frame,
            runs,
            is_new,
            frames,
            awaits: awaits.filter(|_| state == State::Suspended),
        };
        Some((coroutine, inner))
    }

    /// Follows the awaits from a coroutine inwards.
    fn chain(&self, object: u64, known: &HashSet<u64>) -> Option<Chain> {
        let types = self.types;
        let of_code = [types.coroutine, types.generator, types.async_generator];
        let (mut object, mut found) = (object, Vec::new());
        while found.len() < MOST_AWAITS {
            let inside = || self.word(object.wrapping_add(self.layout.head));
            let kind = self.word(object.wrapping_add(self.layout.kind))?;
            if of_code.contains(&kind) {
                let (frame, state) = self.frame(object)?;
                let code = self.word(frame.wrapping_add(self.layout.code))? & !TAGS;
                let current = self.word(frame.wrapping_add(self.layout.current))?;
                let reading = (frame, code, current);
                found.push((object, self.layout.describe(reading, self.memory).ok()?));
                if state != State::Suspended {
                    return Some((found, None));
                }
                object = self.top(frame)?;
                continue;
            }
            let name = self.type_name(kind)?;
            match name.as_str() {
                "coroutine_wrapper" | "async_generator_asend" | "async_generator_athrow" => {
                    object = inside()?;
                }
                "_asyncio.FutureIter" | "FutureIter" => {
                    let future = inside()?;
                    let kind = self.word(future.wrapping_add(self.layout.kind))?;
                    let fields = (self.layout.head..TASK).step_by(8);
                    let mut fields = fields.filter_map(|at| self.word(future.wrapping_add(at)));
                    let awaited = Awaited {
                        name: self.type_name(kind)?,
                        coroutine: fields.find(|field| known.contains(field)),
                    };
                    return Some((found, Some(awaited)));
                }
                _ => {
                    let coroutine = None;
                    return Some((found, Some(Awaited { name, coroutine })));
                }
            }
        }
        Some((found, None))
    }

    /// Returns the name of a type.
    fn type_name(&self, kind: u64) -> Option<String> {
        const LONGEST: usize = 128;
        // After the number of items.
        let name = self.word(kind.wrapping_add(self.layout.head + 8))?;
        let mut text = Vec::new();
        while text.len() < LONGEST {
            let word = self.word(name.wrapping_add(text.len() as u64))?;
            let bytes = word.to_le_bytes();
            let end = bytes.iter().position(|&byte| byte == 0);
            text.extend(&bytes[..end.unwrap_or(bytes.len())]);
            if end.is_some() {
                break;
            }
        }
        String::from_utf8(text).ok()
    }
}
