//! Code that must not meet a return address of fgraph on the machine stack.
//!
//! This includes:
//!
//! - code that a runtime has compiled, whose frames it walks: it is in no module, and the runtime
//!   is recognized by an exported symbol;
//! - code that was compiled ahead of time for such a runtime (V8's builtins, OCaml, Go, Mono),
//!   recognized by the names of its functions (`notrace.rs`), by a section of its file, or by an
//!   exported symbol;
//! - libraries whose coroutines copy pieces of the machine stack away, recognized by their names;
//! - conservative collectors, which look on the machine stack for everything that callers have in
//!   registers, and would miss the rbp that is on the shadow stack: recognized by a symbol, or by
//!   the name of the program.
//!
//! Calls of the first two and by them get entry callbacks only, except for those of Go's and of
//! Mono's functions, which are not traced. In a process with one of the others, all calls that
//! begin from then on get entry callbacks only. A call in progress then has a caller that began
//! before the collector did, so its rbp points to none of the collector's objects.
//!
//! LuaJIT finds its frames through libgcc's stack pointers, and is redirected to fgraph for them
//! (`unwinding/stack_pointer.rs`). While it is being loaded that is impossible: then it counts as
//! the third.

use fgraph_symbols::notrace::{self, Notrace};

use crate::process::loader_event;
use crate::process::modules::LoadedModule;

/// A module's use of the machine stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StackUse {
    /// The ordinary use of all code.
    Ordinary,
    /// It looks for the return addresses of code that it has compiled.
    Walks,
    /// It copies pieces of the stack away.
    Slices,
    /// It looks on the stack for objects that only a caller's register points to.
    Scans,
}

/// First letters of an exported symbol of runtimes that walk the frames of their compiled code: the
/// Java VM, V8, .NET, SpiderMonkey, SBCL.
const WALKING: [&[u8]; 5] = [
    b"JNI_CreateJavaVM",
    b"_ZN2v87Isolate",
    b"coreclr_initialize",
    b"_Z13JS_NewContext",
    b"call_into_lisp",
];

/// First letters of an exported symbol of conservative collectors, or all letters of one that is in
/// the symbol table only: Boehm's (Guile, ECL), Ruby, D, Nim, Mono, JavaScriptCore, Blink, GAP,
/// gccgo. The latter two of Mono and JavaScriptCore walk frames, too.
const SCANNING: [&str; 10] = [
    "GC_gcollect",
    "rb_gc_mark_locations",
    "thread_scanAll",
    "nimGC_setStackBottom",
    "mono_jit_init",
    "JSGlobalContextCreate",
    "ChromeMain",
    "_ZN5blink",
    "GAP_CollectBags",
    "runtime.doscanstack",
];

/// First words of the file names of programs with conservative collectors that have no symbol in
/// Debian's packages: Emacs, GCL's images, Maxima.
const SCANNING_PROGRAMS: [&str; 3] = ["emacs", "saved", "maxima"];

/// First letters of the file names of libraries that copy stacks away: greenlet's, and Ruby's
/// `callcc`.
const SLICING: [&str; 2] = ["_greenlet.", "continuation.so"];

/// A symbol of interpreters that do so themselves: Stackless Python.
const SWITCH: &[u8] = b"slp_switch";

/// A symbol that LuaJIT exports.
const LUAJIT: &[u8] = b"luaJIT_setmode";

/// A symbol that is exported only by images that Mono has compiled ahead of time.
const MONO_IMAGE: &[u8] = b"\0mono_aot_file_info\0";

/// Returns the rule for all functions of a module that does not come from its file. The module must
/// be loaded; `is_go` is true if Go has linked the program.
pub(super) fn notrace(module: &LoadedModule, is_go: bool) -> Option<Notrace> {
    if is_go && module.is_vdso() {
        Some(notrace::CALLED_BY_GO)
    } else {
        module.shares(MONO_IMAGE).then_some(notrace::MONO)
    }
}

/// Returns a module's use of the machine stack. It must be loaded.
pub(super) fn stack_use(module: &LoadedModule) -> StackUse {
    let file = module.path().file_name().unwrap_or_default();
    let file = file.to_string_lossy();
    let is_late = || loader_event::is_loading() && module.shares(LUAJIT);
    let is_program_of = |word: &&str| file.split(['-', '_', '.']).next() == Some(word);
    if SCANNING.iter().any(|name| module.shares(name.as_bytes()))
        || module.is_program() && SCANNING_PROGRAMS.iter().any(|word| is_program_of(word))
    {
        StackUse::Scans
    } else if SLICING.iter().any(|name| file.starts_with(name))
        || module.shares(SWITCH)
        || is_late()
    {
        StackUse::Slices
    } else if WALKING.iter().any(|name| module.shares(name)) {
        StackUse::Walks
    } else {
        StackUse::Ordinary
    }
}

/// Returns true if a name in a symbol table is of a conservative collector's function.
pub(super) fn is_of_collector(symbol: &[u8]) -> bool {
    SCANNING.iter().any(|name| name.as_bytes() == symbol)
}
