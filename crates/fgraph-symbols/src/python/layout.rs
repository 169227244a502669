//! Places of the fields in CPython's objects.

use super::lines::LineTable;
use super::memory::{Memory, PythonError};

/// The first value for frames that belong to C's stack.
pub(super) const OWNED_BY_C: u8 = 3;
/// Bits of a reference in a frame that are not of the address, from 3.14 on.
pub(super) const TAGS: u64 = 3;

/// Way from a thread to its innermost frame.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stack {
    /// The thread has its address.
    InThread(u64),
    /// The thread has the address of an object that has it.
    Behind(u64, u64),
}

/// Places of the interpreter's lock: if it is locked, and the thread that has it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Lock {
    /// One lock for all interpreters.
    InRuntime { locked: u64, holder: u64 },
    /// Each interpreter has the address of its lock.
    Behind { lock: u64, locked: u64, holder: u64 },
    /// There is none.
    None,
}

impl Lock {
    /// Returns the thread that has the lock of an interpreter.
    pub(super) fn holder(self, runtime: u64, interpreter: u64, memory: Memory<'_>) -> Option<u64> {
        let (of, locked, holder) = match self {
            Self::InRuntime { locked, holder } => (runtime, locked, holder),
            Self::Behind {
                lock,
                locked,
                holder,
            } => {
                let of = memory.word(interpreter.wrapping_add(lock)).ok()?;
                (of, locked, holder)
            }
            Self::None => return None,
        };
        let is_locked = memory.half(of.wrapping_add(locked)).ok()? == 1;
        let holder = memory.word(of.wrapping_add(holder)).ok()?;
        is_locked.then_some(holder)
    }
}

/// Offsets of fields, in bytes.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    /// In the runtime: the first interpreter.
    pub(super) interpreters: u64,
    /// In an interpreter: the next one, and its first thread.
    pub(super) next_interpreter: u64,
    pub(super) threads: u64,
    pub(super) lock: Lock,
    /// In a thread.
    pub(super) next_thread: u64,
    pub(super) interpreter: u64,
    pub(super) thread_id: u64,
    pub(super) native_id: Option<u64>,
    pub(super) stack: Stack,
    /// In a frame: the outer one, the code object, the current instruction.
    pub(super) previous: u64,
    pub(super) code: u64,
    pub(super) current: u64,
    pub(super) owner: Option<u64>,
    /// In a code object.
    pub(super) file: u64,
    pub(super) name: u64,
    pub(super) first_line: u64,
    pub(super) lines: u64,
    pub(super) table: LineTable,
    /// The first instruction; `None` if frames have the index of the current one instead of its
    /// address. One index is `unit` bytes.
    pub(super) instructions: Option<u64>,
    pub(super) unit: i64,
    /// The array of copies of the instructions, and of a frame the index in there.
    pub(super) copies: Option<(u64, u64)>,
    /// In a text: its length, its state, and its characters.
    pub(super) text_len: u64,
    pub(super) text_state: u64,
    pub(super) text_shift: u32,
    pub(super) ascii: u64,
    /// Bytes of other texts before their characters, in addition.
    pub(super) more_than_ascii: u64,
    /// In an array of bytes: its length, and its content.
    pub(super) bytes_len: u64,
    pub(super) bytes: u64,
    /// In an object: its size without own fields, and its type.
    pub(super) head: u64,
    pub(super) kind: u64,
    pub(super) coroutines: Coroutines,
}

/// Fields of coroutines and generators.
#[derive(Clone, Copy, Debug)]
pub(super) struct Coroutines {
    /// The frame, or its address.
    pub(super) frame: u64,
    pub(super) is_frame_inside: bool,
    /// In a frame inside: the address of its object, if there is one.
    pub(super) frame_object: u64,
    /// The state: in the coroutine if the frame is inside, otherwise in the frame. 3.9 has none.
    pub(super) state: Option<u64>,
    /// The state of one that has not begun, and the first and last state of suspended ones.
    pub(super) new: i8,
    pub(super) suspended: [i8; 2],
    pub(super) top: Top,
}

/// Way from a frame to the value on top of its stack: what a coroutine awaits.
#[derive(Clone, Copy, Debug)]
pub(super) enum Top {
    /// The address behind it; null while the frame runs.
    Pointer(u64),
    /// The address of the stack, and the number of values.
    Depth { stack: u64, depth: u64 },
    /// The number of values, and the first one.
    Index { index: u64, values: u64 },
}

impl Layout {
    /// Returns the layout of a minor version of Python 3.
    pub(super) fn of(runtime: u64, minor: u8, memory: Memory<'_>) -> Result<Self, PythonError> {
        match minor {
            9 | 10 => Ok(Self::with_frame_objects(minor)),
            11 | 12 => Ok(Self::with_frames(minor)),
            13..=15 => Self::told(runtime, minor, memory),
            _ => Err(PythonError::Unknown(minor)),
        }
    }

    /// 3.9 and 3.10: each frame is an object.
    fn with_frame_objects(minor: u8) -> Self {
        Self {
            interpreters: 32,
            next_interpreter: 0,
            threads: 8,
            lock: Lock::InRuntime {
                locked: 368,
                holder: 360,
            },
            next_thread: 8,
            interpreter: 16,
            thread_id: 176,
            native_id: None,
            stack: Stack::InThread(24),
            previous: 24,
            code: 32,
            current: if minor == 9 { 104 } else { 96 },
            owner: None,
            file: 104,
            name: 112,
            first_line: 40,
            lines: 120,
            table: if minor == 9 {
                LineTable::Steps
            } else {
                LineTable::Ranges
            },
            instructions: None,
            // 3.10 counts instructions, and 3.9 bytes.
            unit: if minor == 9 { 1 } else { 2 },
            copies: None,
            text_len: 16,
            text_state: 32,
            text_shift: 2,
            ascii: 48,
            more_than_ascii: 24,
            bytes_len: 16,
            bytes: 32,
            head: 16,
            kind: 8,
            coroutines: Coroutines {
                frame: 16,
                is_frame_inside: false,
                frame_object: 0,
                state: (minor == 10).then_some(108),
                new: -2,
                suspended: [-1, -1],
                top: if minor == 9 {
                    Top::Pointer(72)
                } else {
                    Top::Depth {
                        stack: 64,
                        depth: 80,
                    }
                },
            },
        }
    }

    /// 3.11 and 3.12: frames are in memory of the interpreter's own.
    fn with_frames(minor: u8) -> Self {
        let common = Self {
            interpreters: 40,
            native_id: Some(160),
            thread_id: 152,
            threads: 16,
            lock: Lock::InRuntime {
                locked: 376,
                holder: 368,
            },
            stack: Stack::Behind(56, 8),
            previous: 48,
            code: 32,
            current: 56,
            owner: Some(69),
            file: 112,
            name: 128,
            first_line: 72,
            lines: 136,
            table: LineTable::Locations,
            instructions: Some(184),
            coroutines: Coroutines {
                frame: 80,
                is_frame_inside: true,
                frame_object: 40,
                state: Some(75),
                new: -2,
                suspended: [-1, -1],
                top: Top::Index {
                    index: 64,
                    values: 72,
                },
            },
            ..Self::with_frame_objects(10)
        };
        if minor == 11 {
            return common;
        }
        Self {
            native_id: Some(144),
            thread_id: 136,
            threads: 72,
            lock: Lock::Behind {
                lock: 384,
                locked: 16,
                holder: 8,
            },
            stack: Stack::Behind(56, 0),
            previous: 8,
            code: 0,
            owner: Some(70),
            first_line: 68,
            instructions: Some(192),
            ascii: 40,
            more_than_ascii: 16,
            coroutines: Coroutines {
                frame: 72,
                frame_object: 48,
                state: Some(67),
                ..common.coroutines
            },
            ..common
        }
    }

    /// From 3.13 on: the runtime begins with a table of offsets, in groups.
    fn told(runtime: u64, minor: u8, memory: Memory<'_>) -> Result<Self, PythonError> {
        const COOKIE: [u8; 8] = *b"xdebugpy";
        if memory.array(runtime)? != COOKIE {
            return Err(PythonError::NoInterpreter(runtime));
        }
        // Words of each group: runtime, interpreter, thread, exception, frame, code, object, type,
        // heap type, tuple, list, set, dict, float, long, bytes.
        let sizes: [u64; 16] = match minor {
            13 => [3, 13, 9, 0, 6, 10, 2, 4, 0, 3, 3, 0, 3, 2, 3, 3],
            14 => [3, 16, 9, 0, 8, 11, 2, 4, 0, 3, 3, 4, 3, 2, 3, 3],
            _ => [3, 16, 16, 1, 8, 11, 2, 6, 2, 3, 3, 4, 3, 2, 3, 3],
        };
        let starts = sizes.iter().scan(3, |start, size| {
            let this = *start;
            *start += size;
            Some(this)
        });
        let starts: Vec<u64> = starts.chain([3 + sizes.iter().sum::<u64>()]).collect();
        let word = |group: usize, at: u64| {
            let index = starts.get(group).map_or(0, |start| start + at);
            memory.word(runtime.wrapping_add(8 * index))
        };
        let (of_runtime, of_interpreter, of_thread, of_frame) = (0, 1, 2, 4);
        let (of_code, of_object, of_bytes, of_text) = (5, 6, 15, 16);
        let is_free_threaded = memory.word(runtime.wrapping_add(16))? != 0;
        // 3.14 has one field more before those of the lock.
        let lock = if minor == 13 { 8 } else { 9 };
        // 3.15 has three fields more before the ids of a thread.
        let ids = if minor < 15 { 5 } else { 8 };
        let has_copies = is_free_threaded && minor >= 14;
        let ascii = word(of_text, 3)?;
        let head = word(of_object, 0)?;
        let (new, suspended) = if minor < 15 {
            (-3, [-2, -1])
        } else {
            (0, [1, 3])
        };
        Ok(Self {
            interpreters: word(of_runtime, 2)?,
            next_interpreter: word(of_interpreter, 2)?,
            threads: word(of_interpreter, 3)?,
            lock: if is_free_threaded {
                Lock::None
            } else {
                Lock::Behind {
                    lock: word(of_interpreter, lock)?,
                    locked: 16,
                    holder: 8,
                }
            },
            next_thread: word(of_thread, 2)?,
            interpreter: word(of_thread, 3)?,
            stack: Stack::InThread(word(of_thread, 4)?),
            thread_id: word(of_thread, ids)?,
            native_id: Some(word(of_thread, ids + 1)?),
            previous: word(of_frame, 1)?,
            code: word(of_frame, 2)?,
            current: word(of_frame, 3)?,
            owner: Some(word(of_frame, 5)?),
            file: word(of_code, 1)?,
            name: word(of_code, 3)?,
            lines: word(of_code, 4)?,
            first_line: word(of_code, 5)?,
            table: LineTable::Locations,
            instructions: Some(word(of_code, 9)?),
            unit: 2,
            copies: if has_copies {
                Some((word(of_code, 10)?, word(of_frame, 7)?))
            } else {
                None
            },
            text_state: word(of_text, 1)?,
            text_len: word(of_text, 2)?,
            // Without a lock the first part of the state is a byte of its own.
            text_shift: if has_copies { 8 } else { 2 },
            ascii,
            more_than_ascii: 16,
            bytes_len: word(of_bytes, 1)?,
            bytes: word(of_bytes, 2)?,
            head,
            kind: word(of_object, 1)?,
            coroutines: Coroutines {
                frame: head.wrapping_add(56),
                is_frame_inside: true,
                frame_object: 48,
                state: Some(head.wrapping_add(51)),
                new,
                suspended,
                top: if minor == 13 {
                    Top::Index {
                        index: 64,
                        values: 72,
                    }
                } else {
                    Top::Pointer(64)
                },
            },
        })
    }
}
