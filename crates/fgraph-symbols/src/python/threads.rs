//! Threads and the functions that they run.

use super::frame::{PythonFrame, READINGS, Reading};
use super::layout::{self, Layout, Stack};
use super::memory::{Memory, PythonError, Read, reads};

/// The most frames of a thread that are read.
const MOST_FRAMES: usize = 10_000;

/// A thread of an interpreter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PythonThread {
    /// Its id in the process, as the process sees it; `None` if that is unknown.
    pub id: Option<u32>,
    /// The running functions, from the innermost outwards.
    pub frames: Vec<PythonFrame>,
    /// True if other functions began and ended during each reading: inner ones are missing.
    pub changes: bool,
    /// True if it has the interpreter's lock. Always false without such a lock.
    pub has_lock: bool,
}

/// Returns the threads of all interpreters of a process. `runtime` is the address of `_PyRuntime`,
/// and `minor` the minor version of Python 3.
///
/// # Errors
///
/// Fails if the version is older than 3.9, or newer than those that are known, or if the memory
/// there is not that of an interpreter.
pub fn threads(runtime: u64, minor: u8, read: &Read<'_>) -> Result<Vec<PythonThread>, PythonError> {
    let left = reads();
    let memory = Memory::new(read, &left);
    let layout = Layout::of(runtime, minor, memory)?;
    let mut found = Vec::new();
    let mut interpreter = memory.word(runtime.wrapping_add(layout.interpreters))?;
    while interpreter != 0 {
        let holder = layout.lock.holder(runtime, interpreter, memory);
        let mut thread = memory.word(interpreter.wrapping_add(layout.threads))?;
        while thread != 0 {
            let of = memory.word(thread.wrapping_add(layout.interpreter))?;
            if of != interpreter {
                return Err(PythonError::NoInterpreter(interpreter));
            }
            let (frames, changes) = layout.frames(thread, memory);
            found.push(PythonThread {
                id: layout.id(thread, memory),
                frames,
                changes,
                has_lock: holder == Some(thread),
            });
            thread = memory.word(thread.wrapping_add(layout.next_thread))?;
        }
        interpreter = memory.word(interpreter.wrapping_add(layout.next_interpreter))?;
    }
    Ok(found)
}

impl Layout {
    /// Returns the kernel's id of a thread.
    fn id(&self, thread: u64, memory: Memory<'_>) -> Option<u32> {
        /// Offset of the id in what glibc keeps of a thread.
        const ID: u64 = 720;
        let id = match self.native_id {
            Some(at) => memory.half(thread.wrapping_add(at)),
            None => memory
                .word(thread.wrapping_add(self.thread_id))
                .and_then(|of| memory.half(of.wrapping_add(ID))),
        };
        id.ok().filter(|&id| id != 0)
    }

    /// Returns the frames of a thread, and if inner ones are missing, as they change.
    fn frames(&self, thread: u64, memory: Memory<'_>) -> (Vec<PythonFrame>, bool) {
        let mut last: Option<Vec<(Reading, Option<PythonFrame>)>> = None;
        let mut same = 0;
        for _ in 0..READINGS {
            let Ok(readings) = self.readings(thread, memory) else {
                continue;
            };
            let described = |reading: Reading| (reading, self.describe(reading, memory).ok());
            let found: Vec<_> = readings.into_iter().map(described).collect();
            let is_known = found.iter().all(|(_, frame)| frame.is_some());
            if let Some(before) = &last {
                same = outer_frames_of_both(before, &found);
                if is_known && same == found.len() && same == before.len() {
                    return (names_of(found), false);
                }
            }
            last = Some(found);
        }
        let mut found = last.unwrap_or_default();
        let inner = found.len().saturating_sub(same);
        found.drain(..inner);
        (names_of(found), true)
    }

    /// Reads the frames of a thread, from the innermost outwards.
    fn readings(&self, thread: u64, memory: Memory<'_>) -> Result<Vec<Reading>, PythonError> {
        let mut frame = match self.stack {
            Stack::InThread(at) => memory.word(thread.wrapping_add(at))?,
            Stack::Behind(at, inner) => {
                let of = memory.word(thread.wrapping_add(at))?;
                memory.word(of.wrapping_add(inner))?
            }
        };
        let mut found = Vec::new();
        while frame != 0 && found.len() < MOST_FRAMES {
            // Frames of C's stack have no function.
            let is_pythons = match self.owner {
                Some(at) => memory.array::<1>(frame.wrapping_add(at))?[0] < layout::OWNED_BY_C,
                None => true,
            };
            if is_pythons {
                let code = memory.word(frame.wrapping_add(self.code))? & !layout::TAGS;
                let current = memory.word(frame.wrapping_add(self.current))?;
                found.push((frame, code, current));
            }
            frame = memory.word(frame.wrapping_add(self.previous))?;
        }
        Ok(found)
    }
}

/// Returns the number of outer frames that two readings have.
fn outer_frames_of_both<T>(one: &[(Reading, T)], other: &[(Reading, T)]) -> usize {
    let both = one.iter().rev().zip(other.iter().rev());
    both.take_while(|((one, _), (other, _))| one == other)
        .count()
}

fn names_of(found: Vec<(Reading, Option<PythonFrame>)>) -> Vec<PythonFrame> {
    let unknown = || PythonFrame {
        name: "?".to_owned(),
        file: "?".to_owned(),
        line: None,
    };
    let frames = found.into_iter();
    frames
        .map(|(_, frame)| frame.unwrap_or_else(unknown))
        .collect()
}
