//! What a thread does that meets a site being patched, or goes on within one.
//!
//! A thread that comes to the `int3` of a half-written site gets SIGTRAP. [`sigtrap_handler`] looks the
//! address up, and continues the thread in the stub of that site: as if the new instruction, `jmp
//! stub`, had run. The stub is right also when the site is on its way back: the trampoline finds that
//! nobody wants the call, and goes on with the body.
//!
//! A thread that was preempted between two of the instructions that the jump lies over traps when it
//! goes on (see [`pun`](crate::pun)), by SIGTRAP or, at an opcode that does not exist, SIGILL. It is
//! continued in the relocated copy of the instruction that stood there.
//!
//! ```text
//!   TRAP_TABLE --> TrapTable --> TrapRange, one per module
//!                  +--------+    +--------+--------+---------+--------+
//!                  | len    |    | first  | last   | records | count  |
//!                  | ranges |    +--------+--------+----+----+--------+
//!                  +--------+    | first  | last   |    |             |
//!                                +--------+--------+    |             |
//!                                                       v
//!                        Site   +-------+------+-----+-------+------+
//!                               | entry | stub | body | inner | ...  |
//!                               +-------+------+------+-------+------+
//!                               | ...                                |
//!                               +------------------------------------+
//!                               sorted by the address that is patched
//! ```
//!
//! # Why assembly
//!
//! The handler runs while sites are being patched, and with `-Zpatchable-function-entry` every Rust
//! function has one, in a debug build even `AtomicPtr::load`. A handler that called a site that is
//! an `int3` would trap within itself for ever. Naked functions have no sites, and these call
//! nothing else. They do not touch vector registers either, nor the thread's own storage.
//!
//! # For whoever installs the handler
//!
//! `SA_SIGINFO | SA_ONSTACK | SA_NODEFER`, with a mask that may hold any signal but SIGTRAP. When
//! SIGTRAP is *blocked* in a thread that meets an `int3`, the kernel does not wait but kills the
//! process: so SIGTRAP must not be blocked while a handler runs that may call a site, this one's
//! successor in [`CHAIN`] included. The same goes for SIGILL.

use core::arch::naked_asm;
use core::ffi::c_int;
use core::mem::offset_of;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64};

use fgraph_core::site::Site;

use crate::nop::SITE_LEN;

/// Where `siginfo_t` has `si_code`.
const SI_CODE: usize = 8;

/// Where `ucontext_t` has the program counter: flags, link and stack come first (40 bytes), then
/// the registers, of which rip is the 17th.
const UCONTEXT_RIP: usize = 40 + 16 * 8;

/// The sites of one module.
#[repr(C)]
#[derive(Debug)]
pub struct TrapRange {
    /// Address of the first site's patched bytes.
    pub first: usize,
    /// Address behind the last site's patched bytes.
    pub end: usize,
    /// The sites, sorted by `entry`.
    pub records: *const Site,
    /// How many there are.
    pub count: usize,
}

/// All sites, as [`resume_address`] finds them. Ranges may be in any order and may overlap.
#[repr(C)]
#[derive(Debug)]
pub struct TrapTable {
    /// How many ranges there are.
    pub len: usize,
    /// The first range.
    pub ranges: *const TrapRange,
}

/// The table in use; null before there is one.
///
/// A thread may be reading a table until long after it has been replaced: tables, ranges and
/// records live for ever, or until no thread can be in the handler.
pub static TRAP_TABLE: AtomicPtr<TrapTable> = AtomicPtr::new(ptr::null_mut());

/// Who gets the SIGILLs that are not ours; as [`CHAIN`].
pub static CHAIN_OF_SIGILL: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

/// Who gets the SIGTRAPs that are not ours: an `extern "C" fn(c_int, *mut siginfo_t, *mut c_void)`.
///
/// Null: they are ignored. Where the action before ours was the default one, the function to put
/// here has to restore it and send the signal again.
pub static CHAIN: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

/// How many threads have met a trap of ours.
pub static TRAPS: AtomicU64 = AtomicU64::new(0);

/// Where to continue after a trap at `trap_ip`: in the stub of the site that is there, if `or_at` is
/// not 0, or in the relocated copy of an instruction within it; 0 when there is nothing of ours.
///
/// # Safety
///
/// [`TRAP_TABLE`] is null, or it and everything it leads to is as documented there.
#[unsafe(naked)]
pub unsafe extern "C" fn resume_address(trap_ip: usize, or_at: usize) -> usize {
    naked_asm!(
        ".cfi_startproc",
        "mov r11, rsi",
        // Through the GOT, since a shared library may not know where its own symbol ends up.
        "mov rdx, qword ptr [rip + {table}@GOTPCREL]",
        // One load, so that length and ranges are of the same table. It needs no fence: what is
        // reached through the pointer was written before it.
        "mov rdx, qword ptr [rdx]",
        "test rdx, rdx",
        "jz 9f",
        "mov rcx, qword ptr [rdx + {table_len}]", // rcx: ranges left
        "mov rdx, qword ptr [rdx + {table_ranges}]", // rdx: the range
        // Ranges, one after the other: there are as many as patched modules.
        "2:",
        "sub rcx, 1",
        "jb 9f",
        "cmp rdi, qword ptr [rdx + {first}]",
        "jb 7f",
        "cmp rdi, qword ptr [rdx + {end}]",
        "jae 7f",
        // Records, by halves: r8 .. r9 are yet to be compared, all before r8 start at or before it.
        "mov rsi, qword ptr [rdx + {records}]",
        "xor r8d, r8d",
        "mov r9, qword ptr [rdx + {count}]",
        "3:",
        "cmp r8, r9",
        "jae 5f",
        "lea rax, [r8 + r9]", // the sum of two indices does not overflow
        "shr rax, 1",
        "imul r10, rax, {stride}",
        "cmp rdi, qword ptr [rsi + r10 + {entry}]",
        "jb 4f",
        "lea r8, [rax + 1]",
        "jmp 3b",
        "4:",
        "mov r9, rax",
        "jmp 3b",
        // The last site that starts at or before the address.
        "5:",
        "sub r8, 1",
        "jb 7f",
        "imul r10, r8, {stride}",
        "add rsi, r10",
        "mov rax, rdi",
        "sub rax, qword ptr [rsi + {entry}]",
        "jz 6f",
        "cmp rax, {site_len}",
        "jae 7f",
        // Within: to the copy of the instruction that started there, if one did.
        "movzx eax, byte ptr [rsi + rax + {inner} - 1]",
        "test eax, eax",
        "jz 7f",
        "add rax, qword ptr [rsi + {body}]",
        "ret",
        "6:",
        "test r11, r11",
        "jz 7f",
        "mov rax, qword ptr [rsi + {stub}]",
        "ret",
        "7:", // not in this range
        "add rdx, {range_size}",
        "jmp 2b",
        "9:", // in none
        "xor eax, eax",
        "ret",
        ".cfi_endproc",
        table = sym TRAP_TABLE,
        table_len = const offset_of!(TrapTable, len),
        table_ranges = const offset_of!(TrapTable, ranges),
        first = const offset_of!(TrapRange, first),
        end = const offset_of!(TrapRange, end),
        records = const offset_of!(TrapRange, records),
        count = const offset_of!(TrapRange, count),
        range_size = const size_of::<TrapRange>(),
        stride = const size_of::<Site>(),
        entry = const offset_of!(Site, entry),
        stub = const offset_of!(Site, stub),
        body = const offset_of!(Site, body),
        inner = const offset_of!(Site, inner),
        site_len = const SITE_LEN,
    )
}

/// A handler of a signal that a trap causes.
macro_rules! handler {
    ($(#[$doc:meta])* $name:ident, chain: $chain:ident, $foreign:literal, at: $at:literal, behind: $behind:literal) => {
        $(#[$doc])*
        ///
        /// `info` is a `siginfo_t`, `ucontext` a `ucontext_t` (glibc and musl lay them out alike).
        ///
        /// # Safety
        ///
        /// To be called by the kernel only, for that signal and with `SA_SIGINFO`. [`TRAP_TABLE`] and
        /// the chain are as documented there.
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name(
            signal: c_int,
            info: *mut core::ffi::c_void,
            ucontext: *mut core::ffi::c_void,
        ) {
            naked_asm!(
                ".cfi_startproc",
                concat!("cmp dword ptr [rsi + {si_code}], ", $foreign),
                // The arguments are needed again. Three words also make the stack aligned for the call.
                "push rdi",
                ".cfi_adjust_cfa_offset 8",
                "push rsi",
                ".cfi_adjust_cfa_offset 8",
                "push rdx",
                ".cfi_adjust_cfa_offset 8",
                "mov rdi, qword ptr [rdx + {rip}]",
                concat!("sub rdi, ", $behind),
                concat!("mov esi, ", $at),
                // Through the GOT and not through a PLT, which may want to resolve the symbol first.
                "call qword ptr [rip + {resume}@GOTPCREL]",
                "pop rdx",
                ".cfi_adjust_cfa_offset -8",
                "pop rsi",
                ".cfi_adjust_cfa_offset -8",
                "pop rdi",
                ".cfi_adjust_cfa_offset -8",
                "test rax, rax",
                "jz 2f",
                "mov qword ptr [rdx + {rip}], rax", // where the kernel lets the thread go on
                "mov rax, qword ptr [rip + {traps}@GOTPCREL]",
                "lock inc qword ptr [rax]",
                "ret",
                // Not ours. Everything is as at entry: the next one may take our place.
                "2:",
                "mov rax, qword ptr [rip + {chain}@GOTPCREL]",
                "mov rax, qword ptr [rax]",
                "test rax, rax",
                "jz 3f",
                "jmp rax",
                "3:",
                "ret",
                ".cfi_endproc",
                si_code = const SI_CODE,
                rip = const UCONTEXT_RIP,
                resume = sym resume_address,
                traps = sym TRAPS,
                chain = sym $chain,
            )
        }
    };
}

handler!(
    /// The handler of SIGTRAP.
    sigtrap_handler,
    chain: CHAIN,
    // SI_KERNEL: what an `int3` causes. Single steps, watchpoints and `kill` have others.
    "0x80
     jne 2f",
    at: "1",
    // int3 is a trap: the thread stands behind it.
    behind: "1"
);

handler!(
    /// The handler of SIGILL. No site begins with an opcode that does not exist, so a thread that comes
    /// to its start is on its own.
    sigill_handler,
    chain: CHAIN_OF_SIGILL,
    // What `kill` sends is not positive.
    "0
     jle 2f",
    at: "0",
    behind: "0"
);

#[cfg(test)]
pub(crate) mod tests {
    extern crate std;

    use super::{
        CHAIN, SI_CODE, TRAP_TABLE, TrapRange, TrapTable, UCONTEXT_RIP, resume_address,
        sigill_handler, sigtrap_handler,
    };
    use crate::stub::STUB_LEN;
    use core::ffi::{c_int, c_void};
    use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, AtomicUsize, Ordering};
    use fgraph_core::site::{Module, Site};
    use std::mem::{offset_of, zeroed};
    use std::ptr;
    use std::sync::{Mutex, MutexGuard, PoisonError};
    use std::vec::Vec;
    use std::{iter, vec};

    /// The table, the chain and the signal's action belong to the process.
    static GLOBALS: Mutex<()> = Mutex::new(());

    fn globals() -> MutexGuard<'static, ()> {
        GLOBALS.lock().unwrap_or_else(PoisonError::into_inner)
    }

    static MODULE: Module = Module {
        path: "test",
        symbol: |site| site.name,
    };

    /// A site at each of the addresses, the stubs one behind the other.
    fn records(addresses: &[usize], stubs: usize) -> Vec<Site> {
        let site = |(index, &entry)| Site {
            entry,
            // What is not asked for must not be taken for it.
            body: usize::MAX / 2,
            interest: AtomicU16::new(0xcccc),
            lead: 0xcc,
            state: AtomicU8::new(0xcc),
            inner: [0; 4],
            name: "",
            module: &MODULE,
            stub: stubs + index * STUB_LEN,
            runtime: AtomicU64::new(0xcccc_cccc_cccc_cccc),
        };
        addresses.iter().enumerate().map(site).collect()
    }

    fn range(records: &[Site]) -> TrapRange {
        TrapRange {
            first: records.first().map_or(0, |site| site.entry),
            end: records
                .last()
                .map_or(0, |site| site.entry.saturating_add(5)),
            records: records.as_ptr(),
            count: records.len(),
        }
    }

    /// Looks every address of `asked` up in a table of `ranges`.
    fn look_up(ranges: &[TrapRange], asked: impl IntoIterator<Item = usize>) -> Vec<usize> {
        let mut table = TrapTable {
            len: ranges.len(),
            ranges: ranges.as_ptr(),
        };
        TRAP_TABLE.store(&mut table, Ordering::Release);
        let found = asked
            .into_iter()
            // SAFETY: the table and what it leads to live until it is taken back below; the caller
            // holds the lock.
            .map(|address| unsafe { resume_address(address, 1) })
            .collect();
        TRAP_TABLE.store(ptr::null_mut(), Ordering::Release);
        found
    }

    #[test]
    fn finds_nothing_without_a_table() {
        let _globals = globals();
        for address in [0, 1, 0x1000, usize::MAX] {
            // SAFETY: the table is null.
            assert_eq!(unsafe { resume_address(address, 1) }, 0);
        }
    }

    #[test]
    fn finds_nothing_in_empty_tables_and_ranges() {
        let _globals = globals();
        let asked = [0, 1, 0x1000, usize::MAX];
        assert_eq!(look_up(&[], asked), [0; 4]);
        let mut empty = range(&[]);
        assert_eq!(look_up(&[range(&[])], asked), [0; 4]);
        empty.end = usize::MAX;
        assert_eq!(look_up(&[empty], asked), [0; 4]);
    }

    #[test]
    fn finds_the_only_record() {
        let _globals = globals();
        let records = records(&[0x1000], 0x9000);
        let ranges = [range(&records)];
        assert_eq!(
            look_up(&ranges, [0xfff, 0x1000, 0x1001, 0, usize::MAX]),
            [0, 0x9000, 0, 0, 0]
        );
    }

    #[test]
    fn compares_addresses_without_sign() {
        let _globals = globals();
        let addresses = [
            1,
            0x7fff_ffff_ffff_ffff,
            0x8000_0000_0000_0000,
            usize::MAX - 5,
        ];
        let records = records(&addresses, 0x9000);
        let ranges = [range(&records)];
        assert_eq!(
            look_up(&ranges, addresses),
            [0x9000, 0x9010, 0x9020, 0x9030]
        );
    }

    #[test]
    fn finds_what_a_naive_search_finds() {
        let _globals = globals();
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut below = |end: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % end as u64) as usize
        };
        for round in 0..200 {
            let mut next = 0x40_0000;
            let modules: Vec<Vec<usize>> = (0..below(6))
                .map(|_| {
                    next += below(100);
                    let len = below(if round % 10 == 0 { 1000 } else { 20 });
                    iter::repeat_with(|| {
                        let gap = if below(4) == 0 { 40 } else { 2 };
                        next += 1 + below(gap);
                        next
                    })
                    .take(len)
                    .collect()
                })
                .collect();
            let module_records: Vec<Vec<Site>> = modules
                .iter()
                .enumerate()
                .map(|(index, m)| records(m, 0x7000_0000 + index * 0x10_0000))
                .collect();
            let mut ranges: Vec<TrapRange> = module_records.iter().map(|r| range(r)).collect();
            let last = next + 50;
            let naive: Vec<usize> = (0x3f_fff0..last)
                .map(|address| {
                    let sites = module_records.iter().flatten();
                    sites
                        .filter(|site| site.entry == address)
                        .map(|site| site.stub)
                        .next()
                        .unwrap_or(0)
                })
                .collect();
            assert_eq!(look_up(&ranges, 0x3f_fff0..last), naive);
            // The order of the ranges does not matter.
            ranges.reverse();
            assert_eq!(look_up(&ranges, 0x3f_fff0..last), naive);
        }
    }

    #[test]
    fn looks_into_every_range_that_spans_the_address() {
        let _globals = globals();
        let (even, odd) = ([0x1000, 0x1002, 0x1004], [0x1001, 0x1003, 0x1005]);
        let (even_records, odd_records) = (records(&even, 0x8000), records(&odd, 0x9000));
        let ranges = [range(&even_records), range(&odd_records)];
        assert_eq!(
            look_up(&ranges, 0x1000..0x1006),
            [0x8000, 0x9000, 0x8010, 0x9010, 0x8020, 0x9020]
        );
    }

    #[test]
    fn the_offsets_are_those_of_the_c_library() {
        assert_eq!(offset_of!(libc::siginfo_t, si_code), SI_CODE);
        assert_eq!(
            offset_of!(libc::ucontext_t, uc_mcontext)
                + offset_of!(libc::mcontext_t, gregs)
                + libc::REG_RIP as usize * 8,
            UCONTEXT_RIP
        );
        assert_eq!(libc::SI_KERNEL, 0x80);
    }

    /// Installs the handler while it lives.
    struct Installed(c_int, libc::sigaction);

    impl Installed {
        fn new() -> Self {
            Self::with(libc::SIGTRAP, sigtrap_handler as *const () as usize)
        }

        fn with(signal: c_int, handler: usize) -> Self {
            // SAFETY: all zero is a valid action to be filled in; the handler is one for
            // SA_SIGINFO.
            unsafe {
                let mut action: libc::sigaction = zeroed();
                action.sa_sigaction = handler;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
                let mut before = zeroed();
                assert_eq!(libc::sigaction(signal, &action, &mut before), 0);
                Self(signal, before)
            }
        }
    }

    impl Drop for Installed {
        fn drop(&mut self) {
            // SAFETY: the action that was there before.
            unsafe { libc::sigaction(self.0, &self.1, ptr::null_mut()) };
        }
    }

    /// An executable page with `code` at its start.
    pub(crate) fn executable(code: &[u8]) -> *mut u8 {
        // SAFETY: a new private mapping, written within its bounds and then made executable.
        unsafe {
            let page = libc::mmap(
                ptr::null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(page, libc::MAP_FAILED);
            ptr::copy_nonoverlapping(code.as_ptr(), page.cast(), code.len());
            let protection = libc::PROT_READ | libc::PROT_EXEC;
            assert_eq!(libc::mprotect(page, 4096, protection), 0);
            page.cast()
        }
    }

    static SIGNALLED: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

    /// The signal that a thread gets at `code`, and where it was then.
    pub(crate) fn signal_of(code: *const u8) -> (c_int, usize) {
        extern "C" fn note(signal: c_int, _info: *mut c_void, context: *mut c_void) {
            // SAFETY: the kernel's. At entry of the function, the return address is on top.
            unsafe {
                let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
                SIGNALLED[0].store(signal as usize, Ordering::Relaxed);
                SIGNALLED[1].store(
                    registers[libc::REG_RIP as usize] as usize,
                    Ordering::Relaxed,
                );
                let top = registers[libc::REG_RSP as usize] as *const i64;
                registers[libc::REG_RIP as usize] = *top;
                registers[libc::REG_RSP as usize] += 8;
            }
        }
        let _globals = globals();
        let _installed = [libc::SIGTRAP, libc::SIGILL]
            .map(|signal| Installed::with(signal, note as *const () as usize));
        call(code, [0; 6]);
        let [signal, rip] = SIGNALLED.each_ref().map(|at| at.load(Ordering::Relaxed));
        (signal as c_int, rip)
    }

    #[test]
    fn a_thread_that_goes_on_within_a_site_goes_on_in_the_copy() {
        let _globals = globals();
        let _installed = Installed::new();
        let _ill = Installed::with(libc::SIGILL, sigill_handler as *const () as usize);
        // A jump with int3 at 1 and an invalid opcode at 4; its copies, of which the second starts at 6.
        let mut code = vec![0xe9, 0xcc, 0x00, 0x00, 0x3f];
        code.resize(64, 0xf4);
        for result in [7_u8, 8] {
            code.extend([0xb8, result, 0, 0, 0, 0xc3]); // mov eax, result; ret
        }
        let page = executable(&code);
        let mut records = records(&[page as usize], 0);
        records[0].body = page as usize + 58;
        records[0].inner = [6, 0, 0, 12];
        let ranges = [range(&records)];
        let mut table = TrapTable {
            len: 1,
            ranges: ranges.as_ptr(),
        };
        TRAP_TABLE.store(&mut table, Ordering::Release);
        assert_eq!(call(page.wrapping_add(1), [0; 6]), 7);
        assert_eq!(call(page.wrapping_add(4), [0; 6]), 8);
        for (offset, at, found) in [
            (0, 0, 0),
            (1, 0, page as usize + 64),
            (2, 1, 0),
            (3, 1, 0),
            (4, 1, page as usize + 70),
            (5, 1, 0),
        ] {
            // SAFETY: the table is still there.
            assert_eq!(unsafe { resume_address(page as usize + offset, at) }, found);
        }
        TRAP_TABLE.store(ptr::null_mut(), Ordering::Release);
        // SAFETY: nobody runs the code any more.
        unsafe { libc::munmap(page.cast(), 4096) };
    }

    /// Calls `code` as a function of six integers.
    fn call(code: *const u8, [a, b, c, d, e, f]: [u64; 6]) -> u64 {
        type Code = extern "C" fn(u64, u64, u64, u64, u64, u64) -> u64;
        // SAFETY: the code of these tests has this signature.
        let code = unsafe { std::mem::transmute::<*const u8, Code>(code) };
        code(a, b, c, d, e, f)
    }

    #[test]
    fn a_thread_that_meets_the_int3_goes_on_in_the_stub() {
        let _globals = globals();
        let _installed = Installed::new();
        // A page full of int3, three of which are sites, and then their stubs.
        let mut code = vec![0xcc; 64];
        for index in 0..3_u8 {
            let mut stub = [0xc3; STUB_LEN];
            // lea rax, [rdi + rsi * 2 + index]; add rax, r9; ret
            stub[..8].copy_from_slice(&[0x48, 0x8d, 0x44, 0x77, index, 0x4c, 0x01, 0xc8]);
            code.extend(stub);
        }
        let page = executable(&code);
        let addresses = [0, 5, 40].map(|offset| page as usize + offset);
        let records = records(&addresses, page as usize + 64);
        let ranges = [range(&records)];
        let mut table = TrapTable {
            len: 1,
            ranges: ranges.as_ptr(),
        };
        TRAP_TABLE.store(&mut table, Ordering::Release);
        for _ in 0..100 {
            for (index, offset) in [0, 5, 40].into_iter().enumerate() {
                let site = page.wrapping_add(offset);
                let result = call(site, [1000, 10, 3, 4, 5, 6]);
                assert_eq!(result, 1000 + 20 + 6 + index as u64);
            }
        }
        TRAP_TABLE.store(ptr::null_mut(), Ordering::Release);
        // SAFETY: nobody runs the code any more.
        unsafe { libc::munmap(page.cast(), 4096) };
    }

    static CHAINED: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];

    extern "C" fn next_handler(signal: c_int, info: *mut c_void, context: *mut c_void) {
        // SAFETY: the kernel's, handed on.
        unsafe {
            let code = (*info.cast::<libc::siginfo_t>()).si_code;
            let rip =
                (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_RIP as usize];
            let stack_pointer: usize;
            core::arch::asm!("mov {}, rsp", out(reg) stack_pointer, options(nomem, nostack));
            let values = [signal as usize, code as usize, rip as usize, stack_pointer];
            for (to, value) in iter::zip(&CHAINED, values) {
                to.store(value, Ordering::Relaxed);
            }
        }
    }

    #[test]
    fn other_traps_go_to_the_next_handler() {
        let _globals = globals();
        let _installed = Installed::new();
        let page = executable(&[0xcc, 0xb8, 42, 0, 0, 0, 0xc3]); // int3; mov eax, 42; ret

        // Without a next handler the thread just goes on.
        assert_eq!(call(page, [0; 6]), 42);

        CHAIN.store(next_handler as *mut (), Ordering::Release);
        // An int3 that is not a site, with and without a table.
        let addresses = [page as usize + 1];
        let records = records(&addresses, 0);
        let ranges = [range(&records)];
        let mut table = TrapTable {
            len: 1,
            ranges: ranges.as_ptr(),
        };
        for table in [ptr::null_mut(), &raw mut table] {
            TRAP_TABLE.store(table, Ordering::Release);
            assert_eq!(call(page, [0; 6]), 42);
            let [signal, code, rip, _] = CHAINED.each_ref().map(|at| at.swap(0, Ordering::Relaxed));
            assert_eq!(signal, libc::SIGTRAP as usize);
            assert_eq!(code, libc::SI_KERNEL as usize);
            assert_eq!(rip, page as usize + 1);
        }

        // A SIGTRAP that no int3 caused, although there is a site everywhere.
        let mut everywhere = TrapTable {
            len: usize::MAX,
            ranges: ptr::dangling(),
        };
        TRAP_TABLE.store(&mut everywhere, Ordering::Release);
        // SAFETY: a signal to this thread, which is handled.
        unsafe { libc::raise(libc::SIGTRAP) };
        let [signal, code, ..] = CHAINED.each_ref().map(|at| at.swap(0, Ordering::Relaxed));
        assert_eq!(signal, libc::SIGTRAP as usize);
        assert_eq!(code as c_int, libc::SI_TKILL);

        TRAP_TABLE.store(ptr::null_mut(), Ordering::Release);
        CHAIN.store(ptr::null_mut(), Ordering::Release);
        // SAFETY: nobody runs the code any more.
        unsafe { libc::munmap(page.cast(), 4096) };
    }

    /// Calls the handler with a pattern in every register that a callee preserves.
    #[test]
    fn the_handler_preserves_what_a_callee_preserves() {
        let _globals = globals();
        let addresses = [0x1000, 0x1010, 0x1020];
        let records = records(&addresses, 0x9000);
        let ranges = [range(&records)];
        let mut table = TrapTable {
            len: 1,
            ranges: ranges.as_ptr(),
        };
        TRAP_TABLE.store(&mut table, Ordering::Release);
        // SAFETY: all zero is a valid siginfo and ucontext, of which the handler uses two words;
        // the assembly names every register that a C function may change, and keeps rbx and rbp
        // itself.
        unsafe {
            let mut info: libc::siginfo_t = zeroed();
            info.si_code = libc::SI_KERNEL;
            let mut context: libc::ucontext_t = zeroed();
            context.uc_mcontext.gregs[libc::REG_RIP as usize] = 0x1011;
            let (rbx, rbp, r12, r13, r14, r15, moved): (u64, u64, u64, u64, u64, u64, u64);
            core::arch::asm!(
                "push rbx",
                "push rbp",
                "mov ebx, 101",
                "mov ebp, 102",
                "mov rax, rsp",
                "and rsp, -16",
                "push rax",
                "push rax",
                "mov r15, rsp",
                "call r14",
                "sub r15, rsp",
                "mov rcx, rbx",
                "mov rdx, rbp",
                "pop rax",
                "mov rsp, rax",
                "pop rbp",
                "pop rbx",
                in("edi") libc::SIGTRAP,
                in("rsi") &raw mut info,
                in("rdx") &raw mut context,
                inout("r12") 112_u64 => r12,
                inout("r13") 113_u64 => r13,
                inout("r14") sigtrap_handler as *const () => r14,
                out("r15") moved,
                lateout("rcx") rbx,
                lateout("rdx") rbp,
                clobber_abi("C"),
            );
            r15 = moved;
            assert_eq!([rbx, rbp, r12, r13], [101, 102, 112, 113]);
            assert_eq!(r14, sigtrap_handler as *const () as u64);
            assert_eq!(r15, 0, "the stack pointer moved");
            let rip = context.uc_mcontext.gregs[libc::REG_RIP as usize];
            assert_eq!(rip, 0x9010);
        }
        TRAP_TABLE.store(ptr::null_mut(), Ordering::Release);
    }
}
