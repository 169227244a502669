//! Code that must not meet a return address of fgraph on the machine stack.
//!
//! This includes:
//!
//! - code that a runtime has compiled, whose frames it walks: it is in no module, and the runtime
//!   is recognized by an exported symbol;
//! - code that was compiled ahead of time for such a runtime (V8's builtins, OCaml, Go, Mono),
//!   recognized by the names of its functions (`notrace.rs`), by a section of its file, or by an
//!   exported symbol;
//! - libraries whose coroutines copy pieces of the machine stack away, recognized by their names.
//!
//! Calls of the first two and by them get entry callbacks only, except for those of Go's and of
//! Mono's functions, which are not traced. In a process with the third, all calls that begin from
//! then on get entry callbacks only.
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
}

/// First letters of an exported symbol of runtimes that walk the frames of their compiled code: the
/// Java VM, V8, .NET, Mono, SpiderMonkey, JavaScriptCore, SBCL.
const WALKING: [&[u8]; 7] = [
    b"JNI_CreateJavaVM",
    b"_ZN2v87Isolate",
    b"coreclr_initialize",
    b"mono_jit_init",
    b"_Z13JS_NewContext",
    b"JSGlobalContextCreate",
    b"call_into_lisp",
];

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
    if SLICING.iter().any(|name| file.starts_with(name)) || module.shares(SWITCH) || is_late() {
        StackUse::Slices
    } else if WALKING.iter().any(|name| module.shares(name)) {
        StackUse::Walks
    } else {
        StackUse::Ordinary
    }
}
