//! Functions that were seen in a session, found without a call of the interpreter.
//!
//! A table has the functions of code objects and C functions by their addresses, which are read in
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

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering};

use super::api::{Api, Object, module_type, symbol};
use super::calls::NUMBERS;

/// Function, as an event of the profile function needs it: its number, and its [state](Self::state)
/// in the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Function(u32);

impl Function {
    const STATE_SHIFT: u32 = 24;

    pub(super) const fn new(number: u32, state: u8) -> Self {
        Self(number | (state as u32) << Self::STATE_SHIFT)
    }

    #[inline]
    pub(super) fn number(self) -> u32 {
        self.0 & NUMBERS
    }

    #[inline]
    pub(super) fn state(self) -> u8 {
        (self.0 >> Self::STATE_SHIFT) as u8
    }
}

/// Number of entries: a power of two.
const ENTRIES: usize = 1 << ENTRY_BITS;
const ENTRY_BITS: u32 = 11;

/// Entry of the table. Only the thread that has the interpreter's lock uses it.
#[derive(Debug, Default)]
#[repr(align(32))]
struct Entry {
    /// Address of the code object, or of the C function's definition; 0 if the entry is free.
    object: AtomicUsize,
    /// The address of the type whose method it is, [`CODE`] or [`NO_OWNER`].
    owner: AtomicUsize,
    /// The [content](Content) of the C function's definition.
    content: AtomicUsize,
    function: AtomicU32,
}

impl Entry {
    fn function(&self) -> Function {
        Function(self.function.load(Ordering::Relaxed))
    }
}

/// The functions of a session by their addresses.
#[derive(Debug)]
pub(super) struct Table(Box<[Entry; ENTRIES]>);

/// Owner of a code object, and of a C function that is no method.
const CODE: usize = 0;
const NO_OWNER: usize = 1;

/// Returns the index of an object's entry.
#[inline]
fn place(object: usize, owner: usize) -> usize {
    let key = (object ^ owner.rotate_left(20)) >> 4;
    key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (usize::BITS - ENTRY_BITS)
}

impl Table {
    /// Makes an empty table; `None` without memory.
    pub(super) fn new() -> Option<Self> {
        let entries: Vec<Entry> = (0..ENTRIES).map(|_| Entry::default()).collect();
        entries.into_boxed_slice().try_into().ok().map(Self)
    }

    #[inline]
    fn find(&self, object: usize, owner: usize) -> Option<&Entry> {
        let entry = self.0.get(place(object, owner))?;
        let is_it = entry.object.load(Ordering::Relaxed) == object
            && entry.owner.load(Ordering::Relaxed) == owner;
        is_it.then_some(entry)
    }

    fn keep(&self, object: usize, owner: usize, content: Content, function: Function) {
        if let Some(entry) = self.0.get(place(object, owner)) {
            entry.content.store(content, Ordering::Relaxed);
            entry.object.store(object, Ordering::Relaxed);
            entry.owner.store(owner, Ordering::Relaxed);
            entry.function.store(function.0, Ordering::Relaxed);
        }
    }

    /// Frees the entry of a code object with this number.
    pub(super) fn forget_code(&self, code: CodePlace, number: u32) {
        if let Some(entry) = self.0.get(code.0 as usize)
            && Function(entry.function.load(Ordering::Relaxed)).number() == number
        {
            entry.object.store(0, Ordering::Relaxed);
        }
    }

    /// Frees all entries: the interpreter has ended.
    pub(super) fn forget_all(&self) {
        for entry in self.0.iter() {
            entry.object.store(0, Ordering::Relaxed);
        }
    }

    /// Returns the function of a frame, if the table has it.
    ///
    /// # Safety
    ///
    /// Same as for [`code`].
    #[inline]
    pub(super) unsafe fn of_frame(&self, frame: *mut Object) -> Option<Function> {
        // SAFETY: the caller keeps the same contract.
        let code = unsafe { code(frame)? };
        self.find(code.addr(), CODE).map(Entry::function)
    }

    /// Puts the function of a frame into the table.
    ///
    /// # Safety
    ///
    /// Same as for [`code`]. `code` is the frame's code object.
    pub(super) unsafe fn keep_code(
        &self,
        frame: *mut Object,
        code: *mut Object,
        function: Function,
    ) {
        // SAFETY: the caller keeps the same contract.
        match unsafe { self::code(frame) } {
            Some(found) if found == code => self.keep(code.addr(), CODE, 0, function),
            Some(_) => FRAMES.store(NONE, Ordering::Relaxed),
            None => {}
        }
    }

    /// Returns a C function, if the table has it.
    ///
    /// # Safety
    ///
    /// Same as for [`identity`].
    #[inline]
    pub(super) unsafe fn of_c_function(&self, function: *mut Object) -> Option<Function> {
        // SAFETY: the caller keeps the same contract.
        let (definition, owner) = unsafe { identity(function)? };
        let entry = self.find(definition.addr(), owner)?;
        let kept = entry.content.load(Ordering::Relaxed);
        // SAFETY: the caller keeps the same contract.
        let is_it = kept == 0 || unsafe { content(function, definition, DEFINITION) } == kept;
        is_it.then(|| entry.function())
    }

    /// Puts a C function into the table. `owner` is the type whose method it is, which never ends,
    /// or null. `content` is that of its definition.
    ///
    /// # Safety
    ///
    /// Same as for [`identity`].
    pub(super) unsafe fn keep_c_function(
        &self,
        object: *mut Object,
        owner: *mut Object,
        content: Content,
        function: Function,
    ) {
        // SAFETY: the caller keeps the same contract.
        let Some((definition, of)) = (unsafe { identity(object) }) else {
            return;
        };
        // A class of the program may end: methods of its objects are not kept.
        let is_kept = match owner.is_null() {
            true => of == NO_OWNER || of == module_type().addr(),
            false => of == owner.addr(),
        };
        if is_kept {
            self.keep(definition.addr(), of, content, function);
        }
    }
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

/// Bits of a reference that are not of the address.
const TAGS: usize = 3;

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
            // The low bits tell how the reference is counted, from 3.14 on.
            IN_FRAME => Some((*word(own(), 0)).map_addr(|address| address & !TAGS)),
            IN_FRAME_LATE => Some(*word(own(), FRAME_CODE)),
            IN_OBJECT => Some(*word(frame, OBJECT_CODE)),
            _ => None,
        }
    }
}

/// Returns the place of a word of an object.
#[inline]
pub(super) fn word(object: *mut Object, at: usize) -> *const *mut Object {
    object.cast::<*mut Object>().wrapping_add(at)
}

/// Minor version of the interpreter if it is a release, or else 0.
static MINOR: AtomicU8 = AtomicU8::new(0);

/// Finds out which release the interpreter is, and so the way from its frame objects to code
/// objects. Objects of C functions were [looked at](look_at) before.
pub(super) fn look_at_release(api: &Api) {
    // SAFETY: any thread may call it, and the text lives as long as the interpreter.
    let version = unsafe { CStr::from_ptr((api.Py_GetVersion)()) };
    let minor = minor_of_release(version.to_str().unwrap_or_default()).unwrap_or(0);
    let frames = match OBJECTS.load(Ordering::Relaxed) {
        KNOWN => frames(minor),
        _ => NONE,
    };
    MINOR.store(minor, Ordering::Relaxed);
    FRAMES.store(frames, Ordering::Relaxed);
}

/// Returns the minor version of a release of CPython 3. Others than releases may differ: `version`
/// is as in `3.11.2 (main, ...)`, with `+` after the number in builds from later sources.
fn minor_of_release(version: &str) -> Option<u8> {
    let number = version.split(' ').next().unwrap_or_default();
    let number = number.strip_suffix('+').unwrap_or(number);
    let mut parts = number.split('.').map(str::parse::<u8>);
    match [parts.next(), parts.next(), parts.next(), parts.next()] {
        [Some(Ok(3)), Some(Ok(minor)), Some(Ok(_)), None] => Some(minor),
        _ => None,
    }
}

/// Returns the way from frame objects to code objects in the releases of a minor version.
fn frames(minor: u8) -> u8 {
    match minor {
        9 | 10 => IN_OBJECT,
        11 => IN_FRAME_LATE,
        12..=15 => IN_FRAME,
        _ => NONE,
    }
}

/// Returns the number of the instruction that suspends a coroutine, and its distance in bytes from
/// the current one; `None` if they are unknown.
pub(super) fn suspension() -> Option<(u8, isize)> {
    match MINOR.load(Ordering::Relaxed) {
        // It is executed again when the coroutine goes on.
        9 | 10 => Some((72, 2)),
        11 => Some((86, 0)),
        12 => Some((150, 0)),
        // The next one is the current one already.
        13 => Some((118, -2)),
        14 => Some((120, 0)),
        15 => Some((119, 0)),
        _ => None,
    }
}

/// Tells whether objects of C functions have the words that are read here.
static OBJECTS: AtomicU8 = AtomicU8::new(UNKNOWN);
const KNOWN: u8 = 2;

/// Words of an object before its type, and of that of a C function before its definition and before
/// the object whose method it is.
const TYPE: usize = 1;
pub(super) const DEFINITION: usize = 2;
const SELF: usize = 3;

/// Addresses of the types of C functions and of types; 0 unless objects have these words.
static FUNCTION_TYPE: AtomicUsize = AtomicUsize::new(0);
static TYPE_TYPE: AtomicUsize = AtomicUsize::new(0);

/// `PyMethodDef`, which belongs to the stable interface.
#[repr(C)]
pub(super) struct Definition {
    pub(super) name: *const c_char,
    pub(super) function: *const c_void,
    pub(super) flags: c_int,
    pub(super) doc: *const c_char,
}

// SAFETY: the pointers are to constants.
unsafe impl Sync for Definition {}

/// Hash of a definition that may change: an odd number, so that it is no address. It is 0 for a
/// definition that never changes.
pub(super) type Content = usize;

/// Returns the content of a definition: its name, its function, and the module of its object.
///
/// # Safety
///
/// The thread holds the interpreter's lock, and `function` is the object of a C function with this
/// definition, at this word.
pub(super) unsafe fn content(
    function: *mut Object,
    definition: *const c_void,
    definition_word: usize,
) -> Content {
    const LONGEST: usize = 256;
    let mix = |hash: usize, value: usize| {
        let hash = (hash ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^ hash >> 32
    };
    // SAFETY: the objects are alive, as the caller says, and the name is a C string.
    unsafe {
        let definition = &*definition.cast::<Definition>();
        // Behind the object whose method it is.
        let module = *word(function, definition_word + 2);
        let mut hash = mix(definition.function.addr(), module.addr());
        for at in 0..LONGEST {
            match *definition.name.wrapping_add(at) {
                0 => break,
                byte => hash = mix(hash, byte as usize),
            }
        }
        hash | 1
    }
}

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
    let [function, of_types] = if is_known {
        types
    } else {
        [ptr::null_mut(); 2]
    };
    FUNCTION_TYPE.store(function.addr(), Ordering::Relaxed);
    TYPE_TYPE.store(of_types.addr(), Ordering::Relaxed);
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
unsafe fn identity(function: *mut Object) -> Option<(*const c_void, usize)> {
    // SAFETY: the object is alive, and so is that whose method it is.
    unsafe {
        let kind = *word(function, TYPE);
        if kind.addr() != FUNCTION_TYPE.load(Ordering::Relaxed) {
            return None;
        }
        let definition = (*word(function, DEFINITION)).cast_const();
        let of = *word(function, SELF);
        if of.is_null() {
            return Some((definition, NO_OWNER));
        }
        let kind = *word(of, TYPE);
        let is_type = kind.addr() == TYPE_TYPE.load(Ordering::Relaxed);
        let owner = if is_type { of } else { kind };
        Some((definition, owner.addr()))
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
            ("3.15.2 (main)", IN_FRAME),
            ("3.16.0 (main)", NONE),
            ("3.8.1 (main)", NONE),
            ("", NONE),
        ];
        for (version, frames) in cases {
            let minor = minor_of_release(version).unwrap_or(0);
            assert_eq!(super::frames(minor), frames, "{version}");
        }
    }
}
