//! Functions that are traced differently from others, or not at all, whatever a filter selects.
//!
//! If a user wants the return of a traced call, the trampoline makes the call, with another return
//! address. A function that returns twice, or looks at its return address to identify its caller,
//! would be misled: it gets entry callbacks only. Some code only looks like a function: it is
//! entered without a return address on top of the stack, or with its arguments in other places than
//! those of functions. That code is not changed at all. Neither is code that a signal handler
//! identifies by its address.
//!
//! The C library runs some functions at the start and at the end of every thread, and in processes
//! that it starts, with all signals blocked: a thread that traps there is killed. These are traced
//! only if a single instruction is replaced by another one, and the text is exchanged as a whole.

/// The part of tracing that is left out, and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notrace {
    /// Neither entry nor return may be traced.
    Entirely(&'static str),
    /// The return may not be traced.
    Return(&'static str),
    /// No thread may trap there: a single instruction may be displaced, if the text is exchanged as
    /// a whole.
    Trap {
        /// True if the return may be traced.
        returns: bool,
    },
}

impl Notrace {
    /// Returns the reason.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Entirely(reason) | Self::Return(reason) => reason,
            Self::Trap { .. } => BLOCKED,
        }
    }

    /// Returns true if the rule also holds for a function that leaves by a jump to one with it.
    #[must_use]
    pub fn holds_for_jumps(self) -> bool {
        self == CALLER || self == TWICE
    }
}

use Notrace::{Entirely, Return};

const TWICE: Notrace = Return("returns twice");
const RESUMED: Notrace = Return("its return address is saved and used again later");
const CALLER: Notrace = Return("looks at its return address to see who called it");
const REPORTS: Notrace = Return("looks at its return address to report its caller");
const UNWINDS: Notrace = Return("unwinds the stack from its return address on");
const CHILD: Notrace = Return("a child process or thread starts on its stack frame");
/// The rule for the dynamic linker's functions for thread-local data.
pub const PARTIAL: Notrace = Return("may be called with registers live that functions clobber");
const FORKS: Notrace =
    Return("runs fgraph's own handlers, which mark the thread until the fork is done");
/// The rule for code whose runtime walks its frames.
pub const WALKED: Notrace = Return("its runtime looks for its return address on the stack");
/// The rule for code of Go's compiler, whose runtime walks its frames, too.
pub const GO: Notrace =
    Entirely("runs on stacks without room for callbacks, which its runtime walks and moves");
/// The rule for functions that Go's code calls without the C library.
pub const CALLED_BY_GO: Notrace =
    Entirely("is called by threads of Go's, which the C library does not know");
/// The rule for code of GHC's compiler.
pub const GHC: Notrace =
    Entirely("is compiled by GHC: it is jumped to, with no return address on top of the stack");
/// The rule for code that Mono has compiled ahead of time.
pub const MONO: Notrace =
    Entirely("is compiled by Mono, which finds and changes the call before its return address");
/// The rule for a program's entry point.
pub const NO_CALL: Notrace = Entirely("is not called: no return address is on top of the stack");
const NO_ABI: Notrace = Entirely("does not keep to the calling convention");
/// The reason that a function of [`Notrace::Trap`] is not traced.
const BLOCKED: &str = "runs in threads that block all signals, which a trap would kill";
const COMPARED: Notrace =
    Entirely("must stay where it is: the handler that cancels threads compares addresses with it");
const SIGNAL: Notrace = Entirely("the kernel returns to it from signal handlers");

/// Rules by name in the symbol table; a `*` at the end matches any text.
#[rustfmt::skip]
const TABLE: &[(&str, Notrace)] = &[
    ("setjmp", TWICE), ("_setjmp", TWICE), ("__setjmp", TWICE), ("sigsetjmp", TWICE),
    ("__sigsetjmp", TWICE), ("__sigsetjmp_cancel", TWICE), ("savectx", TWICE), ("vfork", TWICE),
    ("__vfork", TWICE), ("__libc_vfork", TWICE), ("__sigjmp_save", TWICE),
    ("getcontext", RESUMED), ("__getcontext", RESUMED), ("swapcontext", RESUMED),
    ("__swapcontext", RESUMED), ("setcontext", RESUMED), ("__setcontext", RESUMED),
    ("dlopen*", CALLER), ("__dlopen*", CALLER), ("___dlopen*", CALLER), ("dlmopen*", CALLER),
    ("__dlmopen*", CALLER), ("___dlmopen*", CALLER), ("dlsym*", CALLER), ("__dlsym*", CALLER),
    ("___dlsym*", CALLER), ("dlvsym*", CALLER), ("__dlvsym*", CALLER), ("___dlvsym*", CALLER),
    ("__libc_dlopen*", CALLER), ("__libc_dlsym*", CALLER), ("__libc_dlvsym*", CALLER),
    ("dl_iterate_phdr", CALLER), ("__dl_iterate_phdr", CALLER),
    ("__asan_*", REPORTS), ("__tsan_*", REPORTS), ("__ubsan_*", REPORTS),
    ("__msan_*", REPORTS), ("__sanitizer_*", REPORTS),
    ("_Unwind_*", UNWINDS), ("__cxa_throw", UNWINDS), ("__cxa_rethrow", UNWINDS),
    ("__unw_getcontext", UNWINDS), ("unw_getcontext", UNWINDS), ("_Ux86_64_getcontext", UNWINDS),
    ("uw_init_context_1", UNWINDS), ("uw_install_context_1", UNWINDS),
    ("clone", CHILD), ("__clone", CHILD), ("clone3", CHILD), ("__clone3", CHILD),
    ("__run_prefork_handlers", FORKS), ("__run_postfork_handlers", FORKS),
    ("__run_fork_handlers", FORKS),
    ("__tls_get_addr*", PARTIAL), ("___tls_get_addr*", PARTIAL),
    ("_start", NO_CALL), ("_dl_start", NO_CALL), ("_dl_start_user", NO_CALL),
    ("__start_context", NO_CALL), ("_dl_runtime_resolve*", NO_CALL),
    ("_dl_runtime_profile*", NO_CALL), ("__libc_start_main*", Return("never returns")),
    ("__libc_start_call_main", Return("never returns")),
    ("_dl_tlsdesc_*", NO_ABI), ("mcount", NO_ABI), ("_mcount", NO_ABI), ("__fentry__", NO_ABI),
    ("__x86_indirect_*", NO_ABI), ("__x86_return_thunk", NO_ABI), ("__llvm_retpoline_*", NO_ABI),
    ("__x86_get_pc_thunk*", NO_ABI), ("__morestack*", NO_ABI), ("__sse_savms64*", NO_ABI),
    ("__avx_savms64*", NO_ABI), ("__sse_resms64*", NO_ABI), ("__avx_resms64*", NO_ABI),
    ("__rust_probestack", NO_ABI), ("__probestack", NO_ABI),
    ("rust_psm_replace_stack", NO_ABI), ("__vdso_sgx_enter_enclave", NO_ABI),
    ("__syscall_cancel_arch*", COMPARED), ("__syscall_cp_asm", COMPARED),
    ("__tunable_get_val", Entirely(BLOCKED)),
    ("__xray_*", NO_ABI), ("__restore_rt", SIGNAL), ("__restore", SIGNAL),
];

/// Returns true if the C library runs its function of that name with all signals blocked, where
/// threads start or end, and rarely or never elsewhere. Other modules may have functions of the
/// same names.
#[must_use]
#[rustfmt::skip]
pub fn runs_blocked(symbol: &str) -> bool {
    matches!(
        symbol,
        "create_thread" | "clone" | "__clone" | "clone3" | "__clone3" | "__clone_internal"
        | "__clone_internal_fallback" | "__clone3_internal" | "start_thread" | "__ctype_init"
        | "_setjmp" | "__sigsetjmp" | "__sigjmp_save" | "getpagesize" | "__getpagesize"
        | "__nptl_free_tcb" | "__nptl_deallocate_stack" | "__nptl_free_stacks"
        | "__nptl_stack_list_add" | "__nptl_stack_list_del" | "__lll_lock_wait_private"
        | "__lll_lock_wake_private" | "__spawni_child" | "name_stack_maps" | "__set_vma_name"
        | "__is_decorate_maps_enabled" | "__getrandom_vdso_release" | "__getrandom_fork_subprocess"
        | "__abort_lock_rdlock" | "__abort_lock_wrlock" | "__abort_lock_unlock"
    )
}

/// Returns the rule for a function that [`runs_blocked`] or [`makes_stack_name`].
#[must_use]
pub fn rule_of_blocked(symbol: &str) -> Notrace {
    let never_returns = matches!(symbol, "start_thread" | "__spawni_child");
    Notrace::Trap {
        returns: !never_returns && look_up(symbol).is_none(),
    }
}

/// The version of symbols that came with the first glibc that names the stacks of threads, which
/// each thread does with all signals blocked.
pub const NAMES_STACKS: &str = "GLIBC_2.39";

/// Returns true for a function with which a glibc of [`NAMES_STACKS`] or later makes such a name.
#[must_use]
#[rustfmt::skip]
pub fn makes_stack_name(symbol: &str) -> bool {
    // An IFUNC selects the variant that suits the processor. The variant has the IFUNC's name, too.
    const VARIANTS: [&str; 4] = ["__memcpy_", "__memmove_", "__memset_", "__strchrnul_"];
    matches!(
        symbol,
        "snprintf" | "__vsnprintf_internal" | "__printf_buffer" | "__printf_buffer_write"
        | "__printf_buffer_done" | "_itoa_word" | "memcpy" | "memmove" | "memset" | "strchrnul"
    ) || VARIANTS.iter().any(|start| symbol.starts_with(start))
}

/// The first letters of names that compilers of C++ and Rust have made.
const MANGLED: [&str; 2] = ["_Z", "_R"];

/// Returns the row for a function by its name in the symbol table.
pub fn look_up(symbol: &str) -> Option<Notrace> {
    let matches = |pattern: &str| match pattern.strip_suffix('*') {
        Some(start) => symbol.starts_with(start),
        None => symbol == pattern,
    };
    if is_walked(symbol) {
        return Some(WALKED);
    }
    // Few names begin like those in the table, and no mangled one does.
    let may_be_there = symbol.starts_with(['_', 'd', 'g', 's', 'v', 'c', 'u', 'm', 'r']);
    if !may_be_there || MANGLED.iter().any(|start| symbol.starts_with(start)) {
        return None;
    }
    let row = TABLE.iter().find(|(pattern, _)| matches(pattern));
    row.map(|&(_, notrace)| notrace)
}

/// Returns true if the rule for a name in a symbol table may be [`WALKED`].
#[must_use]
pub fn may_be_walked(name: &[u8]) -> bool {
    STARTS_OF_WALKED
        .iter()
        .any(|start| name.starts_with(start.as_bytes()))
}

/// The first letters of V8's builtins, and of functions that OCaml's compiler has made.
const STARTS_OF_WALKED: [&str; 2] = ["Builtins_", "caml"];

/// Returns true if the name is one of V8's builtins, or of a function that OCaml's compiler has
/// made.
fn is_walked(symbol: &str) -> bool {
    symbol.starts_with(STARTS_OF_WALKED[0]) || is_ocaml(symbol)
}

/// Returns true if the name is of a function that OCaml's compiler has made. It has the name of its
/// module after the first word, beginning with a capital, unless it is one that each program gets.
#[must_use]
pub fn is_ocaml(symbol: &str) -> bool {
    const EACH: [&str; 5] = ["_program", "_apply", "_curry", "_tuplify", "_send"];
    symbol
        .strip_prefix(STARTS_OF_WALKED[1])
        .is_some_and(|rest| {
            rest.starts_with(|char: char| char.is_ascii_uppercase())
                || EACH.iter().any(|name| rest.starts_with(name))
        })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn names_and_starts_of_names_are_found() {
        assert_eq!(look_up("setjmp"), Some(TWICE));
        assert_eq!(look_up("_dl_runtime_resolve_xsavec"), Some(NO_CALL));
        assert_eq!(look_up("__tls_get_addr_slow"), Some(PARTIAL));
    }

    #[test]
    fn names_of_the_c_librarys_own_are_found_as_a_whole() {
        assert!(runs_blocked("start_thread") && runs_blocked("getpagesize"));
        assert!(!runs_blocked("my_start_thread") && !runs_blocked("setjmp"));
        assert!(makes_stack_name("snprintf") && makes_stack_name("__memmove_evex_unaligned"));
        assert!(!makes_stack_name("vsnprintf") && !makes_stack_name("memchr"));
        assert_eq!(look_up("create_thread"), None);
        assert_eq!(look_up("_setjmp"), Some(TWICE));
        let returns = |symbol| rule_of_blocked(symbol) == Notrace::Trap { returns: true };
        assert!(returns("create_thread") && !returns("_setjmp") && !returns("start_thread"));
    }

    /// Returns the names of the global symbols in a static library, by its index.
    fn archive_symbols(bytes: &[u8]) -> Vec<String> {
        const HEAD: usize = 8 + 60;
        let index = &bytes[HEAD..];
        let count = u32::from_be_bytes(index[..4].try_into().unwrap()) as usize;
        let names = index[4 + 4 * count..].split(|&byte| byte == 0);
        let names = names.take(count).map(String::from_utf8_lossy);
        names.map(|name| name.into_owned()).collect()
    }

    /// `-mcall-ms2sysv-xlogues` has functions call these to save registers and to restore them.
    #[test]
    fn libgccs_helpers_of_prologues_are_not_traced() {
        let mut found = 0;
        for version in fs::read_dir("/usr/lib/gcc/x86_64-linux-gnu")
            .into_iter()
            .flatten()
        {
            let Ok(bytes) = fs::read(version.unwrap().path().join("libgcc.a")) else {
                continue;
            };
            let mut symbols = archive_symbols(&bytes);
            symbols.retain(|name| name.contains("ms64"));
            for name in &symbols {
                assert_eq!(look_up(name), Some(NO_ABI), "{name}");
            }
            found += symbols.len();
        }
        if found == 0 {
            fgraph_needs::skip!("no libgcc.a (apt-get install gcc)");
        }
        for save in [
            "__sse_savms64_12",
            "__avx_savms64f_17",
            "__sse_resms64fx_13",
        ] {
            assert_eq!(look_up(save), Some(NO_ABI), "{save}");
        }
    }

    #[test]
    fn each_row_can_be_found() {
        for (pattern, notrace) in TABLE {
            let name = pattern.trim_end_matches('*');
            assert_eq!(look_up(name), Some(*notrace), "{name}");
        }
    }

    #[test]
    fn names_that_only_contain_one_are_not() {
        for name in [
            "my_setjmp",
            "setjmp2",
            "a_start",
            "malloc",
            "",
            "clone_tree",
            "_ZN5clone1aE",
        ] {
            assert_eq!(look_up(name), None, "{name}");
        }
    }

    #[test]
    fn code_of_runtimes_that_walk_is_known_by_its_name() {
        for name in [
            "Builtins_CEntry",
            "camlStdlib__List__map_287",
            "camlMain.f_1",
            "caml_program",
            "caml_apply3",
        ] {
            assert_eq!(look_up(name), Some(WALKED), "{name}");
            assert!(may_be_walked(name.as_bytes()), "{name}");
        }
        for name in ["caml_alloc", "caml", "camlp4", "MyBuiltins_f"] {
            assert_eq!(look_up(name), None, "{name}");
        }
    }
}
