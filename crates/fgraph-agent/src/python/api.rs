//! The functions of CPython that the agent calls, found by their exported names.
//!
//! # Safety
//!
//! The unsafe code converts addresses of exported functions to function pointers. The types are
//! those of CPython's headers, and did not change between the versions that are accepted.

#![allow(non_snake_case, reason = "the functions have CPython's names")]

use std::ffi::{CStr, CString, c_char, c_int, c_long, c_ulong, c_void};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicUsize, Ordering};

/// Python object.
pub(super) type Object = c_void;
/// State of a thread, or of an interpreter.
pub(super) type State = c_void;
/// Profile function.
pub(super) type Profile =
    unsafe extern "C" fn(*mut Object, *mut Object, c_int, *mut Object) -> c_int;

/// Defines the functions of [`Api`], which are fields of their names.
macro_rules! api {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// Functions of the interpreter in this process.
        #[derive(Debug)]
        pub(super) struct Api {
            $(pub(super) $name: unsafe extern "C-unwind" fn($($argument),*) $(-> $result)?,)*
            /// `PyEval_SetProfileAllThreads`, from 3.12 on.
            pub(super) set_profile_all:
                Option<unsafe extern "C" fn(Option<Profile>, *mut Object)>,
            /// `_PyEval_SetProfile`, which sets the profile function of a thread.
            pub(super) set_profile_of:
                unsafe extern "C" fn(*mut State, Option<Profile>, *mut Object) -> c_int,
            /// `_Py_IsFinalizing`, without its prefix from 3.13 on.
            pub(super) is_finalizing: unsafe extern "C" fn() -> c_int,
            /// `_PyThreadState_UncheckedGet`, which has another name from 3.13 on.
            pub(super) running: unsafe extern "C" fn() -> *mut State,
            /// The functions of code objects' extra values, whose prefix is another from 3.12 on.
            pub(super) extra: Extra,
            /// The functions of mutexes, in a build without the interpreter's lock.
            pub(super) mutex: Option<Mutex>,
        }

        impl Api {
            /// Finds the functions, or returns the name of the one that is missing.
            fn find() -> Result<Self, &'static CStr> {
                $(
                    let $name = {
                        const NAME: &CStr = match CStr::from_bytes_with_nul(
                            concat!(stringify!($name), "\0").as_bytes(),
                        ) {
                            Ok(name) => name,
                            Err(_) => c"",
                        };
                        needed(&[NAME])?
                    };
                )*
                let set_profile_all = symbol(c"PyEval_SetProfileAllThreads");
                // SAFETY: the functions have these types, as the module says.
                unsafe {
                    Ok(Self {
                        $($name: std::mem::transmute::<
                            *mut c_void,
                            unsafe extern "C-unwind" fn($($argument),*) $(-> $result)?,
                        >($name),)*
                        set_profile_all: std::mem::transmute::<
                            *mut c_void,
                            Option<unsafe extern "C" fn(Option<Profile>, *mut Object)>,
                        >(set_profile_all),
                        set_profile_of: std::mem::transmute::<
                            *mut c_void,
                            unsafe extern "C" fn(
                                *mut State,
                                Option<Profile>,
                                *mut Object,
                            ) -> c_int,
                        >(needed(&[c"_PyEval_SetProfile"])?),
                        is_finalizing: std::mem::transmute::<
                            *mut c_void,
                            unsafe extern "C" fn() -> c_int,
                        >(needed(&[c"_Py_IsFinalizing", c"Py_IsFinalizing"])?),
                        running: std::mem::transmute::<
                            *mut c_void,
                            unsafe extern "C" fn() -> *mut State,
                        >(needed(&[
                            c"PyThreadState_GetUnchecked",
                            c"_PyThreadState_UncheckedGet",
                        ])?),
                        extra: Extra::find()?,
                        mutex: Mutex::find()?,
                    })
                }
            }
        }
    };
}

api! {
    PyBytes_AsStringAndSize: fn(*mut Object, *mut *mut c_char, *mut isize) -> c_int;
    PyCFunction_GetFunction: fn(*mut Object) -> *mut c_void;
    PyCFunction_GetSelf: fn(*mut Object) -> *mut Object;
    PyCFunction_NewEx: fn(*const c_void, *mut Object, *mut Object) -> *mut Object;
    PyDict_GetItemString: fn(*mut Object, *const c_char) -> *mut Object;
    PyErr_Clear: fn();
    PyErr_Fetch: fn(*mut *mut Object, *mut *mut Object, *mut *mut Object);
    PyErr_Restore: fn(*mut Object, *mut Object, *mut Object);
    PyEval_SetProfile: fn(Option<Profile>, *mut Object);
    PyFrame_GetCode: fn(*mut Object) -> *mut Object;
    PyGILState_Ensure: fn() -> c_int;
    PyGILState_Release: fn(c_int);
    PyInterpreterState_Main: fn() -> *mut State;
    PyInterpreterState_ThreadHead: fn(*mut State) -> *mut State;
    PyLong_AsLong: fn(*mut Object) -> c_long;
    PyObject_CallObject: fn(*mut Object, *mut Object) -> *mut Object;
    PyObject_GetAttrString: fn(*mut Object, *const c_char) -> *mut Object;
    PyObject_Type: fn(*mut Object) -> *mut Object;
    PySys_GetObject: fn(*const c_char) -> *mut Object;
    PyThreadState_Get: fn() -> *mut State;
    PyThreadState_GetInterpreter: fn(*mut State) -> *mut State;
    PyThreadState_Next: fn(*mut State) -> *mut State;
    PyType_GetFlags: fn(*mut Object) -> c_ulong;
    PyType_GetSlot: fn(*mut Object, c_int) -> *mut c_void;
    PyUnicode_AsUTF8AndSize: fn(*mut Object, *mut isize) -> *const c_char;
    Py_AddPendingCall: fn(unsafe extern "C" fn(*mut c_void) -> c_int, *mut c_void) -> c_int;
    Py_DecRef: fn(*mut Object);
    Py_GetVersion: fn() -> *const c_char;
    Py_IsInitialized: fn() -> c_int;
}

/// Functions for the values that others than the interpreter keep with code objects.
#[derive(Debug)]
pub(super) struct Extra {
    pub(super) request: unsafe extern "C" fn(unsafe extern "C" fn(*mut c_void)) -> isize,
    pub(super) get: unsafe extern "C" fn(*mut Object, isize, *mut *mut c_void) -> c_int,
    pub(super) set: unsafe extern "C" fn(*mut Object, isize, *mut c_void) -> c_int,
}

impl Extra {
    fn find() -> Result<Self, &'static CStr> {
        let request = [
            c"_PyEval_RequestCodeExtraIndex",
            c"PyUnstable_Eval_RequestCodeExtraIndex",
        ];
        let get = [c"_PyCode_GetExtra", c"PyUnstable_Code_GetExtra"];
        let set = [c"_PyCode_SetExtra", c"PyUnstable_Code_SetExtra"];
        let [request, get, set] = [needed(&request)?, needed(&get)?, needed(&set)?];
        // SAFETY: the functions have these types, as the module says.
        unsafe {
            Ok(Self {
                request: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(unsafe extern "C" fn(*mut c_void)) -> isize,
                >(request),
                get: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(*mut Object, isize, *mut *mut c_void) -> c_int,
                >(get),
                set: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(*mut Object, isize, *mut c_void) -> c_int,
                >(set),
            })
        }
    }
}

/// Functions of the interpreter's mutexes. A thread that waits for one does not keep others from
/// stopping all threads.
#[derive(Debug)]
pub(super) struct Mutex {
    pub(super) lock: unsafe extern "C-unwind" fn(*mut u8),
    pub(super) unlock: unsafe extern "C-unwind" fn(*mut u8),
}

impl Mutex {
    fn find() -> Result<Option<Self>, &'static CStr> {
        // Builds without the lock of the interpreter count references in two ways.
        if symbol(c"_Py_MergeZeroLocalRefcount").is_null() {
            return Ok(None);
        }
        let [lock, unlock] = [needed(&[c"PyMutex_Lock"])?, needed(&[c"PyMutex_Unlock"])?];
        // SAFETY: the functions have these types, as the module says.
        unsafe {
            Ok(Some(Self {
                lock: std::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn(*mut u8)>(
                    lock,
                ),
                unlock: std::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn(*mut u8)>(
                    unlock,
                ),
            }))
        }
    }
}

/// The right to change what all threads share, while this lives: the interpreter's lock, which the
/// thread holds, or else a mutex.
pub(super) struct Alone<'a>(Option<&'a Mutex>);

/// `PyMutex`: a byte, zero if it is free.
static MUTEX: AtomicU8 = AtomicU8::new(0);

impl<'a> Alone<'a> {
    /// # Safety
    ///
    /// The interpreter knows that the thread runs: it holds the lock, if there is one. The thread
    /// drops this before it waits for something, or runs code of the program.
    pub(super) unsafe fn new(api: &'a Api) -> Self {
        if let Some(mutex) = &api.mutex {
            // SAFETY: the mutex lives for ever, and the caller keeps the contract.
            unsafe { (mutex.lock)(MUTEX.as_ptr()) };
        }
        Self(api.mutex.as_ref())
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        if let Some(mutex) = self.0 {
            // SAFETY: this thread has locked it.
            unsafe { (mutex.unlock)(MUTEX.as_ptr()) };
        }
    }
}

/// Handle of the library with the interpreter, if it is one that others cannot see; otherwise
/// `RTLD_DEFAULT`.
static LIBRARY: AtomicPtr<c_void> = AtomicPtr::new(libc::RTLD_DEFAULT);

/// Returns the address of an exported function; null if there is none.
pub(super) fn symbol(name: &CStr) -> *mut c_void {
    // SAFETY: the name is a C string, and the handle is never closed.
    unsafe { libc::dlsym(LIBRARY.load(Ordering::Relaxed), name.as_ptr()) }
}

/// Returns the type of modules.
pub(super) fn module_type() -> *mut Object {
    static TYPE: AtomicUsize = AtomicUsize::new(0);
    let known = TYPE.load(Ordering::Relaxed);
    if known != 0 {
        return ptr::with_exposed_provenance_mut(known);
    }
    let found = symbol(c"PyModule_Type");
    TYPE.store(found.expose_provenance(), Ordering::Relaxed);
    found
}

/// Returns the address of the first of these functions that exists, or the name of the first one.
fn needed<'n>(names: &[&'n CStr]) -> Result<*mut c_void, &'n CStr> {
    let mut found = names.iter().map(|name| symbol(name));
    let found = found.find(|address| !address.is_null());
    found.ok_or_else(|| names.first().copied().unwrap_or_default())
}

/// True if there is an interpreter in this process.
pub(super) fn is_there() -> bool {
    !symbol(c"Py_AddPendingCall").is_null() && !symbol(c"Py_IsInitialized").is_null()
}

static API: OnceLock<Api> = OnceLock::new();

/// Returns the functions of the interpreter, if they were found.
#[inline]
pub(super) fn known() -> Option<&'static Api> {
    API.get()
}

/// Finds the functions of the interpreter in the loaded library with this path, which came after
/// the agent. The library stays loaded.
pub(super) fn find_in(path: &str) -> Result<&'static Api, String> {
    if !is_there()
        && let Ok(path) = CString::new(path)
    {
        // SAFETY: the path is a C string, and no new library is loaded.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        LIBRARY.store(library, Ordering::Relaxed);
    }
    get()
}

/// Returns the functions of the interpreter, or the reason why its functions cannot be recorded.
pub(super) fn get() -> Result<&'static Api, String> {
    if let Some(api) = known() {
        return Ok(api);
    }
    let old = || "it is older than Python 3.9".to_owned();
    // Only Python 2 has it.
    if !symbol(c"PyString_Type").is_null() {
        return Err(old());
    }
    let api = Api::find().map_err(|name| match name.to_str() {
        Ok("PyFrame_GetCode" | "PyThreadState_GetInterpreter") => old(),
        name => format!("it does not export {}", name.unwrap_or_default()),
    })?;
    Ok(API.get_or_init(|| api))
}
