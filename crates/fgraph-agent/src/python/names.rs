//! Numbers and names of Python's functions.
//!
//! A code object has its number as an extra value, which ends with it, and its place in the table
//! of [`fast`]. A C function has its number in a table, by its definition and the type that it is a
//! method of. A definition outside of all modules may be freed, and its memory be that of another
//! one later: such a function has its number by the content of its definition. Numbers count from
//! [`FIRST_INTERPRETED`], and keep their meaning while the process lives.
//!
//! # Safety
//!
//! The unsafe code calls the interpreter with its lock held, as the callers say, on objects that
//! are alive: those of the call, and those to which it has a reference.

use std::ffi::{CStr, c_int, c_long, c_ulong, c_void};
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicIsize, AtomicU8, AtomicU32, AtomicUsize, Ordering};

use fgraph_trace::event::{FIRST_INTERPRETED, MAX_FUNCTIONS};

use super::api::{Alone, Api, Object, module_type};
use super::fast::{self, CodePlace, Content, Definition, content};

/// The number of functions that can have a number. The last one stands for all others.
pub(super) const MOST: u32 = MAX_FUNCTIONS - FIRST_INTERPRETED;
pub(super) const OTHERS: u32 = MOST - 1;

/// Next number.
static NEXT: AtomicU32 = AtomicU32::new(0);
/// Index of the agent's extra value; negative if there is none.
static EXTRA: AtomicIsize = AtomicIsize::new(-1);

/// `Py_tp_base`.
const TP_BASE: c_int = 48;
/// Flags of types: not changed by programs, made at run time, and a subclass of `type`.
const IMMUTABLE: c_ulong = 1 << 8;
const HEAP: c_ulong = 1 << 9;
const IS_TYPE: c_ulong = 1 << 31;

fn next() -> u32 {
    // Relaxed: a counter without other data.
    let next = NEXT.load(Ordering::Relaxed);
    if next >= OTHERS {
        return OTHERS;
    }
    NEXT.fetch_add(1, Ordering::Relaxed).min(OTHERS)
}

/// Forgets the place for extra values, which was of an interpreter that has ended.
pub(super) fn forget() {
    EXTRA.store(-1, Ordering::Relaxed);
}

/// Returns the extra value of a code object: its number, and its place in the table.
fn to_extra(number: u32, place: CodePlace) -> *mut c_void {
    let extra = (u64::from(place.0) << 32) | (u64::from(number) + 1);
    ptr::without_provenance_mut(extra as usize)
}

/// Decodes the extra value of a code object: its number, and its place in the table.
pub(super) fn from_extra(extra: *mut c_void) -> Option<(u32, CodePlace)> {
    let number = (extra.addr() as u32).checked_sub(1)?;
    let place = CodePlace((extra.addr() as u64 >> 32) as u32);
    Some((number.min(OTHERS), place))
}

/// Requests a place for extra values, if there is none. The interpreter calls `end_code` with that
/// of a code object that it frees.
///
/// # Safety
///
/// The thread holds the interpreter's lock.
pub(super) unsafe fn prepare(api: &Api, end_code: unsafe extern "C" fn(*mut c_void)) {
    // SAFETY: the thread holds the lock, as the caller says.
    let _alone = unsafe { Alone::new(api) };
    if EXTRA.load(Ordering::Relaxed) < 0 {
        // SAFETY: the thread holds the lock, as the caller says, and the agent stays loaded.
        let index = unsafe { (api.extra.request)(end_code) };
        EXTRA.store(index, Ordering::Relaxed);
        if OBJECTS.load(Ordering::Relaxed) == UNKNOWN {
            // SAFETY: the caller keeps the same contract.
            unsafe { look_at_objects(api) };
        }
        fast::look_at_release(api);
    }
}

/// Returns the number of a code object.
///
/// # Safety
///
/// The thread holds the interpreter's lock and has [`Alone`], and `code` is a code object.
#[inline]
pub(super) unsafe fn of_code(api: &Api, code: *mut Object) -> u32 {
    let index = EXTRA.load(Ordering::Relaxed);
    let mut extra = ptr::null_mut();
    // SAFETY: the code object is alive, as the caller says.
    let found = unsafe { (api.extra.get)(code, index, &mut extra) };
    if found == 0
        && let Some((number, _)) = from_extra(extra)
    {
        return number;
    }
    // SAFETY: the caller keeps the same contract.
    unsafe { number(api, code, index) }
}

/// Gives a code object a number.
///
/// # Safety
///
/// Same as for [`of_code`].
#[cold]
unsafe fn number(api: &Api, code: *mut Object, index: isize) -> u32 {
    // SAFETY: the thread holds the lock, as the caller says.
    let _error = unsafe { SavedError::of(api) };
    let number = next();
    let extra = to_extra(number, CodePlace::of(code));
    // SAFETY: the code object is alive, as the caller says.
    match unsafe { (api.extra.set)(code, index, extra) } {
        0 => number,
        _ => OTHERS,
    }
}

/// Number of entries of the table of C functions: a power of two.
const ENTRIES: usize = 1 << ENTRY_BITS;
const ENTRY_BITS: u32 = 14;
/// Number of entries that are searched for a function.
const SEARCHED: usize = 64;

/// Entry of the table. It does not change once it has a function.
struct CFunction {
    /// Address of the definition, or its [content](Content); 0 if the entry is free.
    definition: AtomicUsize,
    owner: AtomicUsize,
    number: AtomicU32,
}

static C_FUNCTIONS: [CFunction; ENTRIES] = [const {
    CFunction {
        definition: AtomicUsize::new(0),
        owner: AtomicUsize::new(0),
        number: AtomicU32::new(0),
    }
}; ENTRIES];

/// Returns the number of a C function, the type that it is a method of, or null, and the content of
/// its definition.
///
/// # Safety
///
/// The thread holds the interpreter's lock and has [`Alone`], and `function` is an object.
#[inline]
pub(super) unsafe fn of_c_function(
    api: &Api,
    function: *mut Object,
) -> (u32, *mut Object, Content) {
    const OTHER: (u32, *mut Object, Content) = (OTHERS, ptr::null_mut(), 0);
    // SAFETY: the object is alive, and the thread holds the lock, as the caller says.
    let (address, owner) = unsafe {
        let address = definition(api, function);
        if address.is_null() {
            return OTHER;
        }
        (address, owner(api, (api.PyCFunction_GetSelf)(function)))
    };
    let of_address = match entry(address.addr(), owner.addr()) {
        Found::Number(number) => return (number, owner, 0),
        Found::Free(entry) => Some(entry),
        Found::Full => None,
    };
    let is_constant = || OBJECTS.load(Ordering::Relaxed) != IS_THERE || is_in_module(address);
    // SAFETY: the object has a definition, as was seen.
    let of_content = || unsafe { content(function, address, definition_word(api)) };
    let (free, key, content) = match of_address {
        Some(free) if is_constant() => (free, address.addr(), 0),
        _ => {
            let content = of_content();
            match entry(content, owner.addr()) {
                Found::Number(number) => return (number, owner, content),
                Found::Free(free) => (free, content, content),
                Found::Full => return OTHER,
            }
        }
    };
    // The caller has not let other threads run this since the entry was found.
    let number = next();
    free.owner.store(owner.addr(), Ordering::Relaxed);
    free.number.store(number, Ordering::Relaxed);
    free.definition.store(key, Ordering::Release);
    (number, owner, content)
}

/// Result of a search for a C function.
enum Found {
    Number(u32),
    /// It has no entry. This one is free.
    Free(&'static CFunction),
    /// It has no entry, and cannot get one.
    Full,
}

/// Searches the entry of a definition, or of its content, and of an owner.
#[inline]
fn entry(definition: usize, owner: usize) -> Found {
    let key = (definition >> 4).wrapping_mul(31) ^ owner >> 4;
    let start = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (usize::BITS - ENTRY_BITS);
    for entry in C_FUNCTIONS.iter().cycle().skip(start).take(SEARCHED) {
        let found = entry.definition.load(Ordering::Acquire);
        if found == 0 {
            return Found::Free(entry);
        }
        if found == definition && entry.owner.load(Ordering::Relaxed) == owner {
            return Found::Number(entry.number.load(Ordering::Relaxed));
        }
    }
    Found::Full
}

/// Returns true if an address is in a loaded module, and so in memory that is never freed: the
/// interpreter unloads no extension. False if that is unknown.
fn is_in_module(address: *const c_void) -> bool {
    /// Not yet searched for, and not there: before glibc 2.35.
    const UNSEEN: usize = 0;
    const MISSING: usize = 1;
    static FIND: AtomicUsize = AtomicUsize::new(UNSEEN);
    type Find = unsafe extern "C" fn(*const c_void, *mut [u64; 16]) -> c_int;
    let mut find = FIND.load(Ordering::Relaxed);
    if find == UNSEEN {
        // SAFETY: the name is a C string.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_dl_find_object".as_ptr()) };
        find = found.expose_provenance().max(MISSING);
        FIND.store(find, Ordering::Relaxed);
    }
    if find == MISSING {
        return false;
    }
    let mut found = [0; 16];
    // SAFETY: glibc's function has this type, takes no lock, and writes 96 bytes at most.
    unsafe {
        let find = std::mem::transmute::<*mut c_void, Find>(ptr::with_exposed_provenance_mut(find));
        find(address, &mut found) == 0
    }
}

/// Returns the index of the word with the pointer to the definition in the object of a C function.
/// In a build without the interpreter's lock, objects begin with two words more.
fn definition_word(api: &Api) -> usize {
    let more = if api.mutex.is_some() { 2 } else { 0 };
    fast::DEFINITION + more
}

const UNKNOWN: u8 = 0;
const IS_THERE: u8 = 1;
const IS_ELSEWHERE: u8 = 2;

/// Tells whether the pointer is at that offset, which is seen in an object of the agent's own.
static OBJECTS: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Returns the address of a C function's definition, or of the function itself if that cannot be
/// read: then several names of one function are one. Null for another object.
///
/// # Safety
///
/// The thread holds the interpreter's lock, and `function` is an object.
#[inline]
unsafe fn definition(api: &Api, function: *mut Object) -> *const c_void {
    // SAFETY: the object is that of a C function, as its address says.
    unsafe {
        let address = (api.PyCFunction_GetFunction)(function);
        if address.is_null() {
            (api.PyErr_Clear)();
            return ptr::null();
        }
        match OBJECTS.load(Ordering::Relaxed) {
            IS_THERE => (*fast::word(function, definition_word(api))).cast_const(),
            _ => address,
        }
    }
}

/// Finds out where objects of C functions have their definitions.
///
/// # Safety
///
/// The thread holds the interpreter's lock.
unsafe fn look_at_objects(api: &Api) {
    /// `METH_NOARGS`.
    const FLAGS: c_int = 4;
    static OWN: Definition = Definition {
        name: c"fgraph".as_ptr(),
        function: nothing as *const c_void,
        flags: FLAGS,
        doc: ptr::null(),
    };
    /// Never called.
    unsafe extern "C" fn nothing(_: *mut Object, _: *mut Object) -> *mut Object {
        ptr::null_mut()
    }
    let own = (&raw const OWN).cast::<c_void>();
    // SAFETY: the thread holds the lock, as the caller says. An object has more than three words.
    let is_there = unsafe {
        let none = super::api::symbol(c"_Py_NoneStruct");
        let object = (api.PyCFunction_NewEx)(own, none, ptr::null_mut());
        if object.is_null() {
            (api.PyErr_Clear)();
            return;
        }
        let found = (*fast::word(object, definition_word(api))).cast_const();
        fast::look_at(object, own, none);
        (api.Py_DecRef)(object);
        ptr::eq(found, own)
    };
    let state = if is_there { IS_THERE } else { IS_ELSEWHERE };
    OBJECTS.store(state, Ordering::Relaxed);
}

/// Returns the type whose method is called on an object; null for a function of a module. A class
/// of the program stands for the built-in type that it derives from, which lives as long as the
/// interpreter.
///
/// # Safety
///
/// The thread holds the interpreter's lock, and `object` is null or an object.
#[inline]
unsafe fn owner(api: &Api, object: *mut Object) -> *mut Object {
    if object.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: the object is alive, and so is its type. The base of a type lives as long as it does.
    unsafe {
        let mut of = (api.PyObject_Type)(object);
        (api.Py_DecRef)(of);
        if (api.PyType_GetFlags)(of) & IS_TYPE != 0 {
            of = object;
        }
        loop {
            if ptr::eq(of, module_type()) {
                return ptr::null_mut();
            }
            let flags = (api.PyType_GetFlags)(of);
            if flags & HEAP == 0 || flags & IMMUTABLE != 0 {
                return of;
            }
            let base = (api.PyType_GetSlot)(of, TP_BASE);
            if base.is_null() {
                return of;
            }
            of = base;
        }
    }
}

/// The exception that the program or the interpreter is about to handle, aside for as long as this
/// lives. Calls of the interpreter take it for their own, and lose it.
pub(super) struct SavedError<'a> {
    api: &'a Api,
    error: [*mut Object; 3],
}

impl<'a> SavedError<'a> {
    /// # Safety
    ///
    /// The thread holds the interpreter's lock until this is dropped.
    pub(super) unsafe fn of(api: &'a Api) -> Self {
        let mut error = [ptr::null_mut(); 3];
        let [kind, value, trace] = &mut error;
        // SAFETY: the thread holds the lock, as the caller says.
        unsafe { (api.PyErr_Fetch)(kind, value, trace) };
        Self { api, error }
    }
}

impl Drop for SavedError<'_> {
    fn drop(&mut self) {
        let [kind, value, trace] = self.error;
        // SAFETY: the thread holds the lock, as the caller of `of` says. References go back.
        unsafe {
            (self.api.PyErr_Clear)();
            (self.api.PyErr_Restore)(kind, value, trace);
        }
    }
}

/// Reference to an object.
struct Reference<'a>(&'a Api, *mut Object);

impl<'a> Reference<'a> {
    /// Returns an attribute of an object, if it has one.
    ///
    /// # Safety
    ///
    /// The thread holds the interpreter's lock as long as this lives, and `object` is alive.
    unsafe fn attribute(api: &'a Api, object: *mut Object, name: &CStr) -> Option<Self> {
        // SAFETY: the object is alive, as the caller says, and the name is a C string.
        let found = unsafe { (api.PyObject_GetAttrString)(object, name.as_ptr()) };
        if found.is_null() {
            // SAFETY: the thread holds the lock, as the caller says.
            unsafe { (api.PyErr_Clear)() };
            return None;
        }
        Some(Self(api, found))
    }

    fn text(&self) -> Option<&str> {
        // SAFETY: the reference keeps the object alive.
        unsafe { text(self.0, self.1) }
    }
}

impl Drop for Reference<'_> {
    fn drop(&mut self) {
        // SAFETY: the thread holds the lock, as the caller of `attribute` says.
        unsafe { (self.0.Py_DecRef)(self.1) };
    }
}

/// Returns the text of an object, if it is one.
///
/// # Safety
///
/// The thread holds the interpreter's lock, and the object is alive for `'o`.
unsafe fn text<'o>(api: &Api, object: *mut Object) -> Option<&'o str> {
    let mut len = 0;
    // SAFETY: the object is alive, as the caller says.
    let bytes = unsafe { (api.PyUnicode_AsUTF8AndSize)(object, &mut len) };
    if bytes.is_null() {
        // SAFETY: the thread holds the lock, as the caller says.
        unsafe { (api.PyErr_Clear)() };
        return None;
    }
    // SAFETY: the bytes belong to the object.
    let bytes = unsafe { slice::from_raw_parts(bytes.cast::<u8>(), usize::try_from(len).ok()?) };
    str::from_utf8(bytes).ok()
}

/// Text on the stack, cut where it is full.
struct Text {
    bytes: [u8; 1024],
    len: usize,
}

impl Text {
    fn new(parts: &[&str]) -> Self {
        let mut this = Self {
            bytes: [0; 1024],
            len: 0,
        };
        for part in parts {
            let part = cut(part, this.bytes.len() - this.len);
            if let Some(to) = this.bytes.get_mut(this.len..this.len + part.len()) {
                to.copy_from_slice(part.as_bytes());
                this.len += part.len();
            }
        }
        this
    }

    fn as_str(&self) -> &str {
        let bytes = self.bytes.get(..self.len).unwrap_or_default();
        str::from_utf8(bytes).unwrap_or_default()
    }
}

/// Returns the start of a text, of at most `most` bytes.
fn cut(text: &str, most: usize) -> &str {
    let mut len = text.len().min(most);
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    text.get(..len).unwrap_or_default()
}

/// Function as readers see it: its name, and its source file and line.
pub(super) type Shown<'a> = (&'a str, Option<(&'a str, u32)>);

/// Passes the name of a code object to `show`: its module and its name there, as
/// `app.Handler.get`.
///
/// # Safety
///
/// The thread holds the interpreter's lock; `frame` runs `code`.
pub(super) unsafe fn name_frame(
    api: &Api,
    frame: *mut Object,
    code: *mut Object,
    number: u32,
    show: impl FnOnce(Shown<'_>),
) {
    if number == OTHERS {
        return show(("other Python functions", None));
    }
    // SAFETY: the objects are alive, and the thread holds the lock, as the caller says.
    unsafe {
        let _error = SavedError::of(api);
        let name = Reference::attribute(api, code, c"co_qualname")
            .or_else(|| Reference::attribute(api, code, c"co_name"));
        let name = name.as_ref().and_then(Reference::text).unwrap_or("?");
        let globals = Reference::attribute(api, frame, c"f_globals");
        let module = globals.as_ref().and_then(|globals| {
            let module = (api.PyDict_GetItemString)(globals.1, c"__name__".as_ptr());
            if module.is_null() {
                (api.PyErr_Clear)();
                return None;
            }
            text(api, module)
        });
        let name = match module {
            Some(module) => Text::new(&[module, ".", name]),
            None => Text::new(&[name]),
        };
        let file = Reference::attribute(api, code, c"co_filename");
        let line = Reference::attribute(api, code, c"co_firstlineno");
        let line = line.map(|line| (api.PyLong_AsLong)(line.1));
        let line = line.and_then(|line| u32::try_from(line).ok());
        let file = file.as_ref().and_then(Reference::text);
        show((name.as_str(), file.zip(line)));
    }
}

/// Passes the name of a C function to `show`: the module, the type if it is a method of `owner`,
/// and its name: `collections.deque.append`.
///
/// # Safety
///
/// The thread holds the interpreter's lock, and `function` and `owner` are those of
/// [`of_c_function`].
pub(super) unsafe fn name_c_function(
    api: &Api,
    function: *mut Object,
    owner: *mut Object,
    number: u32,
    show: impl FnOnce(Shown<'_>),
) {
    if number == OTHERS {
        return show(("other Python functions", None));
    }
    // SAFETY: the objects are alive, and the thread holds the lock, as the caller says.
    unsafe {
        let _error = SavedError::of(api);
        let name = Reference::attribute(api, function, c"__name__");
        let name = name.as_ref().and_then(Reference::text).unwrap_or("?");
        let of = if owner.is_null() { function } else { owner };
        let module = Reference::attribute(api, of, c"__module__");
        let module = module.as_ref().and_then(Reference::text);
        let (module, dot) = match module {
            Some(module) => (module, "."),
            None => ("", ""),
        };
        let within = match owner.is_null() {
            true => None,
            false => Reference::attribute(api, owner, c"__qualname__"),
        };
        let name = match within.as_ref().and_then(Reference::text) {
            Some(within) => Text::new(&[module, dot, within, ".", name]),
            None => Text::new(&[module, dot, name]),
        };
        show((name.as_str(), None));
    }
}

/// Flag of code objects of coroutines.
const CO_COROUTINE: c_long = 0x80;

/// Returns true if a code object is of a coroutine.
///
/// # Safety
///
/// The thread holds the interpreter's lock, and `code` is a code object.
pub(super) unsafe fn is_coroutine(api: &Api, code: *mut Object) -> bool {
    // SAFETY: the object is alive, and the thread holds the lock, as the caller says.
    unsafe {
        let _error = SavedError::of(api);
        let flags = Reference::attribute(api, code, c"co_flags");
        flags.is_some_and(|flags| (api.PyLong_AsLong)(flags.1) & CO_COROUTINE != 0)
    }
}

/// Returns true if a coroutine that returns is suspended, and false if it ends; `None` if that is
/// unknown.
///
/// # Safety
///
/// The thread holds the interpreter's lock, and `frame` returns from `code`.
pub(super) unsafe fn is_suspended(
    api: &Api,
    frame: *mut Object,
    code: *mut Object,
) -> Option<bool> {
    let (suspends, distance) = fast::suspension()?;
    // SAFETY: the objects are alive, and the thread holds the lock, as the caller says.
    unsafe {
        let _error = SavedError::of(api);
        let last = Reference::attribute(api, frame, c"f_lasti")?;
        let last = usize::try_from((api.PyLong_AsLong)(last.1)).ok()?;
        let bytes = Reference::attribute(api, code, c"co_code")?;
        let (mut start, mut len) = (ptr::null_mut(), 0);
        if (api.PyBytes_AsStringAndSize)(bytes.1, &mut start, &mut len) != 0 {
            (api.PyErr_Clear)();
            return None;
        }
        let instructions = slice::from_raw_parts(start.cast::<u8>(), usize::try_from(len).ok()?);
        let at = last.checked_add_signed(distance);
        Some(at.is_some_and(|at| instructions.get(at) == Some(&suspends)))
    }
}
