//! Code that must not be misled by a return address of fgraph's on the machine stack.
//!
//! Such are
//!
//! - code that a runtime has compiled, whose frames it walks: it is in no module, and the runtime
//!   is known by a symbol that it shares;
//! - code that was compiled beforehand for such a runtime (V8's builtins, OCaml, Go, Mono), known
//!   by the names of its functions (`notrace.rs`), by a section of its file, or by a symbol that it
//!   shares;
//! - libraries whose coroutines copy pieces of the machine stack away, known by their names.
//!
//! Calls of the first two and by them get entry callbacks only, but for those of Go's and of Mono's
//! functions, which are left alone. In a process with the third all calls that begin from then on
//! get entry callbacks only.
//!
//! LuaJIT finds its frames by what libgcc says of stack pointers, and is made to ask us for them
//! (`unwinding/stack_pointer.rs`). While it is loaded it cannot be: then it counts as the third.

use fgraph_symbols::notrace::{self, Notrace};

use crate::process::loader_event;
use crate::process::modules::LoadedModule;

/// What a module does with the machine stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StackUse {
    /// What all code does.
    Ordinary,
    /// It looks for the return addresses of code that it has compiled.
    Walks,
    /// It copies pieces of it away.
    Slices,
}

/// Runtimes that walk the frames of what they compile share a symbol whose name begins so: the Java
/// VM, V8, .NET, Mono, SpiderMonkey, JavaScriptCore, SBCL.
const WALKING: [&[u8]; 7] = [
    b"JNI_CreateJavaVM",
    b"_ZN2v87Isolate",
    b"coreclr_initialize",
    b"mono_jit_init",
    b"_Z13JS_NewContext",
    b"JSGlobalContextCreate",
    b"call_into_lisp",
];

/// Libraries whose files' names begin so copy stacks away: greenlet's, and Ruby's `callcc`.
const SLICING: [&str; 2] = ["_greenlet.", "continuation.so"];

/// A symbol of interpreters that do so themselves: Stackless Python.
const SWITCH: &[u8] = b"slp_switch";

/// A symbol that LuaJIT shares.
const LUAJIT: &[u8] = b"luaJIT_setmode";

/// A symbol that only images share which Mono has compiled ahead of time.
const MONO_IMAGE: &[u8] = b"\0mono_aot_file_info\0";

/// The rule for all functions of a module, as far as its file does not tell of it. It must be
/// loaded; `is_go` says whether Go has linked the program.
pub(super) fn notrace(module: &LoadedModule, is_go: bool) -> Option<Notrace> {
    if is_go && module.is_vdso() {
        Some(notrace::CALLED_BY_GO)
    } else {
        module.shares(MONO_IMAGE).then_some(notrace::MONO)
    }
}

/// What a module does with the machine stack. It must be loaded.
pub(super) fn stack_use(module: &LoadedModule) -> StackUse {
    let file = module.path().file_name().unwrap_or_default();
    let file = file.to_string_lossy();
    let is_late = || loader_event::is_loading() && module.shares(LUAJIT);
    if SLICING.iter().any(|name| file.starts_with(name)) || module.shares(SWITCH) || is_late() {
        StackUse::Slices
    } else if WALKING.iter().any(|name| module.shares(name)) {
        StackUse::Walks
    } else {
        StackUse::Ordinary
    }
}
