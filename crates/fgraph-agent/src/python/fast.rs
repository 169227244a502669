//! Numbers of functions that were seen, without a call of the interpreter.
//!
//! A table has the numbers of code objects and of C functions by their addresses, which are read in
//! the objects of an event, where CPython's releases have them. Both are checked in objects of the
//! interpreter in this process; if one is elsewhere, the table is not used.
//!
//! An entry lives as long as its object: code objects say when they end, and methods have an entry
//! only if their type never ends.
//!
//! # Safety
//!
//! The unsafe code reads objects of the interpreter that are alive, in the thread that holds its
//! lock.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering};

use super::api::{Api, Object, module_type, symbol};

/// Number of entries: a power of two.
const ENTRIES: usize = 1 << ENTRY_BITS;
const ENTRY_BITS: u32 = 11;

/// Entry of the table. Only the thread that has the interpreter's lock uses it.
struct Entry {
    /// Address of the code object, or of the C function's definition; 0 if the entry is free.
    object: AtomicUsize,
    /// The address of the type whose method it is, [`CODE`] or [`NO_OWNER`].
    owner: AtomicUsize,
    number: AtomicU32,
}

static TABLE: [Entry; ENTRIES] = [const {
    Entry {
        object: AtomicUsize::new(0),
        owner: AtomicUsize::new(0),
        number: AtomicU32::new(0),
    }
}; ENTRIES];

/// Owner of a code object, and of a C function that is no method.
const CODE: usize = 0;
const NO_OWNER: usize = 1;

/// Returns the index of an object's entry.
#[inline]
fn place(object: usize, owner: usize) -> usize {
    let key = (object ^ owner.rotate_left(20)) >> 4;
    key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (usize::BITS - ENTRY_BITS)
}

#[inline]
fn find(object: usize, owner: usize) -> Option<u32> {
    let entry = TABLE.get(place(object, owner))?;
    let is_it = entry.object.load(Ordering::Relaxed) == object
        && entry.owner.load(Ordering::Relaxed) == owner;
    is_it.then(|| entry.number.load(Ordering::Relaxed))
}

fn keep(object: usize, owner: usize, number: u32) {
    if let Some(entry) = TABLE.get(place(object, owner)) {
        entry.object.store(object, Ordering::Relaxed);
        entry.owner.store(owner, Ordering::Relaxed);
        entry.number.store(number, Ordering::Relaxed);
    }
}

/// Frees the entry of a code object with this number.
pub(super) fn forget_code(code: CodePlace, number: u32) {
    if let Some(entry) = TABLE.get(code.0 as usize)
        && entry.number.load(Ordering::Relaxed) == number
    {
        entry.object.store(0, Ordering::Relaxed);
    }
}

/// Frees all entries: the interpreter has ended.
pub(super) fn forget_all() {
    for entry in &TABLE {
        entry.object.store(0, Ordering::Relaxed);
    }
    FRAMES.store(UNKNOWN, Ordering::Relaxed);
}

/// Place of a code object in the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct CodePlace(pub(super) u32);

impl CodePlace {
    pub(super) fn of(code: *mut Object) -> Self {
        Self(place(code.addr(), CODE) as u32)
    }
}

/// The way from a frame object to its code object.
static FRAMES: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
/// No way is known.
const NONE: u8 = 1;
/// The object has it.
const IN_OBJECT: u8 = 2;
/// The interpreter's own frame has it, to which the object points: after four words, or first.
const IN_FRAME_LATE: u8 = 3;
const IN_FRAME: u8 = 4;

/// Words of a frame object before the pointer to its code object, or to the interpreter's frame.
const OBJECT_CODE: usize = 4;
const OBJECT_FRAME: usize = 3;
const FRAME_CODE: usize = 4;

/// Returns the code object of a frame object, if it is known where that is.
///
/// # Safety
///
/// The thread holds the interpreter's lock, and `frame` is the frame object of an event.
#[inline]
unsafe fn code(frame: *mut Object) -> Option<*mut Object> {
    // SAFETY: frame objects of these releases have these words, and the frame runs, so the object
    // points to the interpreter's one.
    unsafe {
        let own = || *word(frame, OBJECT_FRAME);
        match FRAMES.load(Ordering::Relaxed) {
            IN_FRAME => Some(*word(own(), 0)),
            IN_FRAME_LATE => Some(*word(own(), FRAME_CODE)),
            IN_OBJECT => Some(*word(frame, OBJECT_CODE)),
            _ => None,
        }
    }
}

/// Returns the place of a word of an object.
#[inline]
fn word(object: *mut Object, at: usize) -> *const *mut Object {
    object.cast::<*mut Object>().wrapping_add(at)
}

/// Returns the number of a frame's code object, if the table has it.
///
/// # Safety
///
/// Same as for [`code`].
#[inline]
pub(super) unsafe fn of_frame(frame: *mut Object) -> Option<u32> {
    // SAFETY: the caller keeps the same contract.
    let code = unsafe { code(frame)? };
    find(code.addr(), CODE)
}

/// Puts the number of a frame's code object into the table.
///
/// # Safety
///
/// Same as for [`code`]. `code` is the code object.
pub(super) unsafe fn keep_code(api: &Api, frame: *mut Object, code: *mut Object, number: u32) {
    if FRAMES.load(Ordering::Relaxed) == UNKNOWN {
        // SAFETY: any thread may call it, and the text lives as long as the interpreter.
        let version = unsafe { CStr::from_ptr((api.Py_GetVersion)()) };
        let frames = match OBJECTS.load(Ordering::Relaxed) {
            KNOWN => frames(version.to_str().unwrap_or_default()),
            _ => NONE,
        };
        FRAMES.store(frames, Ordering::Relaxed);
    }
    // SAFETY: the caller keeps the same contract.
    match unsafe { self::code(frame) } {
        Some(found) if found == code => keep(code.addr(), CODE, number),
        _ => FRAMES.store(NONE, Ordering::Relaxed),
    }
}

/// Returns the way from frame objects to code objects in a release of CPython. Others than releases
/// may differ: `version` is as in `3.11.2 (main, ...)`, with `+` after the number in builds from
/// later sources.
fn frames(version: &str) -> u8 {
    let number = version.split(' ').next().unwrap_or_default();
    let number = number.strip_suffix('+').unwrap_or(number);
    let mut parts = number.split('.').map(str::parse::<u8>);
    match [parts.next(), parts.next(), parts.next(), parts.next()] {
        [Some(Ok(3)), Some(Ok(minor)), Some(Ok(_)), None] => match minor {
            9 | 10 => IN_OBJECT,
            11 => IN_FRAME_LATE,
            12 | 13 => IN_FRAME,
            _ => NONE,
        },
        _ => NONE,
    }
}

/// Tells whether objects of C functions have the words that are read here.
static OBJECTS: AtomicU8 = AtomicU8::new(UNKNOWN);
const KNOWN: u8 = 2;

/// Words of an object before its type, and of that of a C function before its definition and before
/// the object whose method it is.
const TYPE: usize = 1;
const DEFINITION: usize = 2;
const SELF: usize = 3;

/// Addresses of the types of C functions and of types.
static FUNCTION_TYPE: AtomicUsize = AtomicUsize::new(0);
static TYPE_TYPE: AtomicUsize = AtomicUsize::new(0);

/// Finds out whether objects of C functions have the words that are read, in one that was made
/// with this definition and that is a method of `of`.
///
/// # Safety
///
/// The thread holds the interpreter's lock, and `function` is an object of a C function.
pub(super) unsafe fn look_at(function: *mut Object, definition: *const c_void, of: *mut Object) {
    let types = [symbol(c"PyCFunction_Type"), symbol(c"PyType_Type")];
    let expected = [types[0].addr(), definition.addr(), of.addr()];
    // SAFETY: the object has four words.
    let found = [TYPE, DEFINITION, SELF].map(|at| unsafe { *word(function, at) }.addr());
    let is_known = found == expected && !types.iter().any(|it| it.is_null());
    FUNCTION_TYPE.store(types[0].addr(), Ordering::Relaxed);
    TYPE_TYPE.store(types[1].addr(), Ordering::Relaxed);
    let state = if is_known { KNOWN } else { NONE };
    OBJECTS.store(state, Ordering::Relaxed);
}

/// Returns what identifies a C function: the address of its definition, and that of the type whose
/// method it is, or [`NO_OWNER`]. `None` for another object.
///
/// # Safety
///
/// The thread holds the interpreter's lock, and `function` is an object that is alive.
#[inline]
unsafe fn identity(function: *mut Object) -> Option<(usize, usize)> {
    // SAFETY: the object is alive, and so is that whose method it is.
    unsafe {
        let kind = *word(function, TYPE);
        let is_function = kind.addr() == FUNCTION_TYPE.load(Ordering::Relaxed);
        if OBJECTS.load(Ordering::Relaxed) != KNOWN || !is_function {
            return None;
        }
        let definition = *word(function, DEFINITION);
        let of = *word(function, SELF);
        if of.is_null() {
            return Some((definition.addr(), NO_OWNER));
        }
        let kind = *word(of, TYPE);
        let is_type = kind.addr() == TYPE_TYPE.load(Ordering::Relaxed);
        let owner = if is_type { of } else { kind };
        Some((definition.addr(), owner.addr()))
    }
}

/// Returns the number of a C function, if the table has it.
///
/// # Safety
///
/// Same as for [`identity`].
#[inline]
pub(super) unsafe fn of_c_function(function: *mut Object) -> Option<u32> {
    // SAFETY: the caller keeps the same contract.
    let (definition, owner) = unsafe { identity(function)? };
    find(definition, owner)
}

/// Puts the number of a C function into the table. `owner` is the type whose method it is, which
/// never ends, or null.
///
/// # Safety
///
/// Same as for [`identity`].
pub(super) unsafe fn keep_c_function(function: *mut Object, owner: *mut Object, number: u32) {
    // SAFETY: the caller keeps the same contract.
    let Some((definition, of)) = (unsafe { identity(function) }) else {
        return;
    };
    // A class of the program may end: methods of its objects are not kept.
    let is_kept = match owner.is_null() {
        true => of == NO_OWNER || of == module_type().addr(),
        false => of == owner.addr(),
    };
    if is_kept {
        keep(definition, of, number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_releases_have_known_frames() {
        let cases = [
            ("3.9.18 (main, Jan  1 2024) [GCC 12]", IN_OBJECT),
            ("3.11.2+ (heads/3.11:1) [GCC]", IN_FRAME_LATE),
            ("3.13.0 (main)", IN_FRAME),
            ("3.13.0rc1 (main)", NONE),
            ("3.10.5+cinder (main)", NONE),
            ("3.14.0 (main)", NONE),
            ("3.8.1 (main)", NONE),
            ("", NONE),
        ];
        for (version, frames) in cases {
            assert_eq!(super::frames(version), frames, "{version}");
        }
    }
}
