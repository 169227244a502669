//! What a thread does that meets the `int3` of a site being patched.
//!
//! The kernel sends it SIGTRAP. [`sigtrap_handler`] looks the address up, and continues the thread
//! in the stub of that site: as if the new instruction, `jmp stub`, had run. The stub is right also
//! when the site is on its way back to a NOP: the trampoline finds that nobody wants the call, and
//! goes on with the body.
//!
//! ```text
//!   TRAP_TABLE --> TrapTable --> TrapRange, one per arena
//!                  +--------+    +--------+--------+---------+--------+--------+
//!                  | len    |    | first  | last   | records | count  | stubs  |
//!                  | ranges |    +--------+--------+----+----+--------+---+----+
//!                  +--------+    | first  | last   |    |             |   |
//!                                +--------+--------+    |             |   |
//!                                                       v                 v
//!                                       +--------------------+      +---------+
//!                               0       | address | ...      |      | stub 0  |
//!                               1       | address | ...      |      | stub 1  |
//!                               count-1 | address | ...      |      | ...     |
//!                                       +--------------------+      +---------+
//!                            RECORD_STRIDE bytes each, sorted by    STUB_LEN bytes
//!                            the address of the int3, which is      each, in the
//!                            a u64 at RECORD_ENTRY                  same order
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
//! successor in [`CHAIN`] included.

use core::arch::naked_asm;
use core::ffi::c_int;
use core::mem::offset_of;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64};

use crate::stub::STUB_LEN;

/// Bytes from one record to the next.
pub const RECORD_STRIDE: usize = 64;

/// Where in a record the address of the patched byte is, a `u64`.
pub const RECORD_ENTRY: usize = 0;

/// `si_code` of the SIGTRAP that an `int3` causes. Single steps, watchpoints and `kill` have
/// others.
const SI_KERNEL: i32 = 0x80;

/// Where `siginfo_t` has `si_code`.
const SI_CODE: usize = 8;

/// Where `ucontext_t` has the program counter: flags, link and stack come first (40 bytes), then
/// the registers, of which rip is the 17th.
const UCONTEXT_RIP: usize = 40 + 16 * 8;

/// The sites of one arena.
#[repr(C)]
#[derive(Debug)]
pub struct TrapRange {
    /// Address of the first site's patched byte.
    pub first: usize,
    /// Address of the last site's patched byte.
    pub last: usize,
    /// The first record; the records are sorted by the address at [`RECORD_ENTRY`].
    pub records: *const u8,
    /// How many records there are.
    pub count: usize,
    /// Address of the stub that belongs to the first record.
    pub stubs: usize,
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

/// Who gets the SIGTRAPs that are not ours: an `extern "C" fn(c_int, *mut siginfo_t, *mut c_void)`.
///
/// Null: they are ignored. Where the action before ours was the default one, the function to put
/// here has to restore it and send the signal again.
pub static CHAIN: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

/// How many threads have met an `int3` of ours.
pub static TRAPS: AtomicU64 = AtomicU64::new(0);

/// The stub to continue in after an `int3` at `trap_ip`; 0 when that is not the address of a site.
///
/// # Safety
///
/// [`TRAP_TABLE`] is null, or it and everything it leads to is as documented there.
#[unsafe(naked)]
pub unsafe extern "C" fn resume_address(trap_ip: usize) -> usize {
    naked_asm!(
        ".cfi_startproc",
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
        "cmp rdi, qword ptr [rdx + {last}]",
        "ja 7f",
        // Records, by halves: it is one of r8 .. r9 or none.
        "mov rsi, qword ptr [rdx + {records}]",
        "xor r8d, r8d",
        "mov r9, qword ptr [rdx + {count}]",
        "3:",
        "cmp r8, r9",
        "jae 7f",
        "lea rax, [r8 + r9]", // the sum of two indices does not overflow
        "shr rax, 1",
        "imul r10, rax, {stride}",
        "cmp rdi, qword ptr [rsi + r10 + {entry}]",
        "je 5f",
        "jb 4f",
        "lea r8, [rax + 1]", // it is behind the middle
        "jmp 3b",
        "4:",
        "mov r9, rax", // it is before the middle
        "jmp 3b",
        "5:",
        "imul rax, rax, {stub_len}", // record i has stub i
        "add rax, qword ptr [rdx + {stubs}]",
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
        last = const offset_of!(TrapRange, last),
        records = const offset_of!(TrapRange, records),
        count = const offset_of!(TrapRange, count),
        stubs = const offset_of!(TrapRange, stubs),
        range_size = const size_of::<TrapRange>(),
        stride = const RECORD_STRIDE,
        entry = const RECORD_ENTRY,
        stub_len = const STUB_LEN,
    )
}

/// The handler of SIGTRAP.
///
/// `info` is a `siginfo_t`, `ucontext` a `ucontext_t` (glibc and musl lay them out alike).
///
/// # Safety
///
/// To be called by the kernel only, for SIGTRAP and with `SA_SIGINFO`. [`TRAP_TABLE`] and [`CHAIN`]
/// are as documented there.
#[unsafe(naked)]
pub unsafe extern "C" fn sigtrap_handler(
    signal: c_int,
    info: *mut core::ffi::c_void,
    ucontext: *mut core::ffi::c_void,
) {
    naked_asm!(
        ".cfi_startproc",
        "cmp dword ptr [rsi + {si_code}], {si_kernel}",
        "jne 2f",
        // The arguments are needed again. Three words also make the stack aligned for the call.
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "push rsi",
        ".cfi_adjust_cfa_offset 8",
        "push rdx",
        ".cfi_adjust_cfa_offset 8",
        "mov rdi, qword ptr [rdx + {rip}]",
        "dec rdi", // int3 is a trap: the thread stands behind it
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
        si_kernel = const SI_KERNEL,
        rip = const UCONTEXT_RIP,
        resume = sym resume_address,
        traps = sym TRAPS,
        chain = sym CHAIN,
    )
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::{
        CHAIN, RECORD_ENTRY, RECORD_STRIDE, SI_CODE, SI_KERNEL, TRAP_TABLE, TrapRange, TrapTable,
        UCONTEXT_RIP, resume_address, sigtrap_handler,
    };
    use crate::stub::STUB_LEN;
    use core::ffi::{c_int, c_void};
    use core::sync::atomic::{AtomicUsize, Ordering};
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

    #[repr(C, align(64))]
    struct Record([u8; RECORD_STRIDE]);

    fn records(addresses: &[usize]) -> Vec<Record> {
        addresses
            .iter()
            .map(|address| {
                // What is not the address must not be taken for it.
                let mut record = Record([0xcc; RECORD_STRIDE]);
                record.0[RECORD_ENTRY..][..8].copy_from_slice(&address.to_ne_bytes());
                record
            })
            .collect()
    }

    fn range(addresses: &[usize], records: &[Record], stubs: usize) -> TrapRange {
        TrapRange {
            first: addresses.first().copied().unwrap_or(0),
            last: addresses.last().copied().unwrap_or(0),
            records: records.as_ptr().cast(),
            count: records.len(),
            stubs,
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
            .map(|address| unsafe { resume_address(address) })
            .collect();
        TRAP_TABLE.store(ptr::null_mut(), Ordering::Release);
        found
    }

    #[test]
    fn finds_nothing_without_a_table() {
        let _globals = globals();
        for address in [0, 1, 0x1000, usize::MAX] {
            // SAFETY: the table is null.
            assert_eq!(unsafe { resume_address(address) }, 0);
        }
    }

    #[test]
    fn finds_nothing_in_empty_tables_and_ranges() {
        let _globals = globals();
        let asked = [0, 1, 0x1000, usize::MAX];
        assert_eq!(look_up(&[], asked), [0; 4]);
        let mut empty = range(&[], &[], 0x9000);
        assert_eq!(look_up(&[range(&[], &[], 0x9000)], asked), [0; 4]);
        empty.last = usize::MAX;
        assert_eq!(look_up(&[empty], asked), [0; 4]);
    }

    #[test]
    fn finds_the_only_record() {
        let _globals = globals();
        let addresses = [0x1000];
        let records = records(&addresses);
        let ranges = [range(&addresses, &records, 0x9000)];
        assert_eq!(
            look_up(&ranges, [0xfff, 0x1000, 0x1001, 0, usize::MAX]),
            [0, 0x9000, 0, 0, 0]
        );
    }

    #[test]
    fn compares_addresses_without_sign() {
        let _globals = globals();
        let addresses = [1, 0x7fff_ffff_ffff_ffff, 0x8000_0000_0000_0000, usize::MAX];
        let records = records(&addresses);
        let ranges = [range(&addresses, &records, 0x9000)];
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
            let module_records: Vec<Vec<Record>> = modules.iter().map(|m| records(m)).collect();
            let mut ranges: Vec<TrapRange> = iter::zip(&modules, &module_records)
                .enumerate()
                .map(|(index, (addresses, records))| {
                    range(addresses, records, 0x7000_0000 + index * 0x10_0000)
                })
                .collect();
            let last = next + 50;
            let naive: Vec<usize> = (0x3f_fff0..last)
                .map(|address| {
                    iter::zip(&modules, &ranges)
                        .find_map(|(addresses, range)| {
                            let index = addresses.iter().position(|&at| at == address)?;
                            Some(range.stubs + index * STUB_LEN)
                        })
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
        let (even_records, odd_records) = (records(&even), records(&odd));
        let ranges = [
            range(&even, &even_records, 0x8000),
            range(&odd, &odd_records, 0x9000),
        ];
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
        assert_eq!(libc::SI_KERNEL, SI_KERNEL);
    }

    /// Installs the handler while it lives.
    struct Installed(libc::sigaction);

    impl Installed {
        fn new() -> Self {
            // SAFETY: all zero is a valid action to be filled in; the handler is one for
            // SA_SIGINFO.
            unsafe {
                let mut action: libc::sigaction = zeroed();
                action.sa_sigaction = sigtrap_handler as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
                let mut before = zeroed();
                assert_eq!(libc::sigaction(libc::SIGTRAP, &action, &mut before), 0);
                Self(before)
            }
        }
    }

    impl Drop for Installed {
        fn drop(&mut self) {
            // SAFETY: the action that was there before.
            unsafe { libc::sigaction(libc::SIGTRAP, &self.0, ptr::null_mut()) };
        }
    }

    /// An executable page with `code` at its start.
    fn executable(code: &[u8]) -> *mut u8 {
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
        let records = records(&addresses);
        let ranges = [range(&addresses, &records, page as usize + 64)];
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
        let records = records(&addresses);
        let ranges = [range(&addresses, &records, 0)];
        let mut table = TrapTable {
            len: 1,
            ranges: ranges.as_ptr(),
        };
        for table in [ptr::null_mut(), &raw mut table] {
            TRAP_TABLE.store(table, Ordering::Release);
            assert_eq!(call(page, [0; 6]), 42);
            let [signal, code, rip, _] = CHAINED.each_ref().map(|at| at.swap(0, Ordering::Relaxed));
            assert_eq!(signal, libc::SIGTRAP as usize);
            assert_eq!(code, SI_KERNEL as usize);
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
        let records = records(&addresses);
        let ranges = [range(&addresses, &records, 0x9000)];
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
            info.si_code = SI_KERNEL;
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
