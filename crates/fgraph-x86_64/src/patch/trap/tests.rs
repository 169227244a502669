extern crate std;

use super::{
    CHAIN, SI_CODE, TRAP_RANGES, TrapRange, UCONTEXT_RIP, UCONTEXT_TRAPNO, resume_address,
    sigill_handler, sigtrap_handler,
};
use crate::stub::STUB_LEN;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, AtomicUsize, Ordering};
use fgraph_core::site::{Module, Site, SiteName, module};
use fgraph_needs::skip;
use std::marker::PhantomData;
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

static MODULE: Module = module("test", &());

/// A site at each of the addresses, the stubs one behind the other.
fn records(addresses: &[usize], stubs: usize) -> Vec<Site> {
    let site = |(index, &entry)| Site {
        entry,
        // The other fields must not be taken for the entry or the stub.
        body: usize::MAX / 2,
        interest: AtomicU16::new(0xcccc),
        lead: 0xcc,
        state: AtomicU8::new(0xcc),
        inner: [0; 4],
        name: SiteName::new(""),
        index: 0,
        module: &MODULE,
        stub: stubs + index * STUB_LEN,
        runtime: AtomicU64::new(0xcccc_cccc_cccc_cccc),
    };
    addresses.iter().enumerate().map(site).collect()
}

fn range(records: &[Site]) -> TrapRange {
    // SAFETY: no test uses the range when the records are gone.
    let records = unsafe { &*ptr::from_ref(records) };
    TrapRange::new(records, 5)
}

/// The handlers have a list of ranges while it lives.
struct Listed<'a>(PhantomData<&'a [TrapRange]>);

impl<'a> Listed<'a> {
    fn new(ranges: &'a mut [TrapRange]) -> Self {
        let mut next = ptr::null_mut();
        for range in ranges {
            range.next = next;
            next = range;
        }
        TRAP_RANGES.0.store(next, Ordering::Release);
        Self(PhantomData)
    }
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        TRAP_RANGES.0.store(ptr::null_mut(), Ordering::Release);
    }
}

/// Looks every address of `asked` up in a list of `ranges`.
fn look_up(ranges: &mut [TrapRange], asked: impl IntoIterator<Item = usize>) -> Vec<usize> {
    let _listed = Listed::new(ranges);
    let asked = asked.into_iter();
    // SAFETY: the ranges and what they lead to live until they are taken back; the caller holds the
    // lock.
    asked
        .map(|address| unsafe { resume_address(address, 1) })
        .collect()
}

#[test]
fn finds_nothing_without_ranges() {
    let _globals = globals();
    for address in [0, 1, 0x1000, usize::MAX] {
        // SAFETY: there are no ranges.
        assert_eq!(unsafe { resume_address(address, 1) }, 0);
    }
}

#[test]
fn finds_nothing_in_empty_ranges() {
    let _globals = globals();
    let asked = [0, 1, 0x1000, usize::MAX];
    assert_eq!(look_up(&mut [], asked), [0; 4]);
    let mut empty = range(&[]);
    assert_eq!(look_up(&mut [range(&[])], asked), [0; 4]);
    empty.end = usize::MAX;
    assert_eq!(look_up(&mut [empty], asked), [0; 4]);
}

#[test]
fn finds_the_only_record() {
    let _globals = globals();
    let records = records(&[0x1000], 0x9000);
    let mut ranges = [range(&records)];
    assert_eq!(
        look_up(&mut ranges, [0xfff, 0x1000, 0x1001, 0, usize::MAX]),
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
    let mut ranges = [range(&records)];
    assert_eq!(
        look_up(&mut ranges, addresses),
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
        assert_eq!(look_up(&mut ranges, 0x3f_fff0..last), naive);
        // The order of the ranges does not matter.
        ranges.reverse();
        assert_eq!(look_up(&mut ranges, 0x3f_fff0..last), naive);
    }
}

#[test]
fn looks_into_every_range_that_spans_the_address() {
    let _globals = globals();
    let (even, odd) = ([0x1000, 0x1002, 0x1004], [0x1001, 0x1003, 0x1005]);
    let (even_records, odd_records) = (records(&even, 0x8000), records(&odd, 0x9000));
    let mut ranges = [range(&even_records), range(&odd_records)];
    assert_eq!(
        look_up(&mut ranges, 0x1000..0x1006),
        [0x8000, 0x9000, 0x8010, 0x9010, 0x8020, 0x9020]
    );
}

#[test]
fn the_offsets_are_those_of_the_c_library() {
    assert_eq!(offset_of!(libc::siginfo_t, si_code), SI_CODE);
    let registers = offset_of!(libc::ucontext_t, uc_mcontext) + offset_of!(libc::mcontext_t, gregs);
    assert_eq!(registers + libc::REG_RIP as usize * 8, UCONTEXT_RIP);
    assert_eq!(registers + libc::REG_TRAPNO as usize * 8, UCONTEXT_TRAPNO);
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
    // A jump with int3 at 1 and an invalid opcode at 4; its copies, the second from 6 on.
    let mut code = vec![0xe9, 0xcc, 0x00, 0x00, 0x3f];
    code.resize(64, 0xf4);
    for result in [7_u8, 8] {
        code.extend([0xb8, result, 0, 0, 0, 0xc3]); // mov eax, result; ret
    }
    let page = executable(&code);
    let mut records = records(&[page as usize], 0);
    records[0].body = page as usize + 58;
    records[0].inner = [6, 0, 0, 12];
    let mut ranges = [range(&records)];
    let listed = Listed::new(&mut ranges);
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
        // SAFETY: the range is still there.
        assert_eq!(unsafe { resume_address(page as usize + offset, at) }, found);
    }
    drop(listed);
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
    // A page full of int3 with three sites in it, and behind it their stubs.
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
    let mut ranges = [range(&records)];
    let listed = Listed::new(&mut ranges);
    for _ in 0..100 {
        for (index, offset) in [0, 5, 40].into_iter().enumerate() {
            let site = page.wrapping_add(offset);
            let result = call(site, [1000, 10, 3, 4, 5, 6]);
            assert_eq!(result, 1000 + 20 + 6 + index as u64);
        }
    }
    drop(listed);
    // SAFETY: nobody runs the code any more.
    unsafe { libc::munmap(page.cast(), 4096) };
}

static CHAINED: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];

extern "C" fn next_handler(signal: c_int, info: *mut c_void, context: *mut c_void) {
    // SAFETY: the kernel's, handed on.
    unsafe {
        let code = (*info.cast::<libc::siginfo_t>()).si_code;
        let rip = (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_RIP as usize];
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

    CHAIN.0.store(next_handler as *mut (), Ordering::Release);
    // An int3 that is not a site, with and without a list.
    let addresses = [page as usize + 1];
    let records = records(&addresses, 0);
    let mut ranges = [range(&records)];
    for ranges in [&mut [][..], &mut ranges] {
        let _listed = Listed::new(ranges);
        assert_eq!(call(page, [0; 6]), 42);
        let [signal, code, rip, _] = CHAINED.each_ref().map(|at| at.swap(0, Ordering::Relaxed));
        assert_eq!(signal, libc::SIGTRAP as usize);
        assert_eq!(code, libc::SI_KERNEL as usize);
        assert_eq!(rip, page as usize + 1);
    }

    // A SIGTRAP that no int3 caused, although there is a site everywhere.
    ranges[0].first = 0;
    ranges[0].end = usize::MAX;
    let listed = Listed::new(&mut ranges);
    // SAFETY: a signal to this thread, which is handled.
    unsafe { libc::raise(libc::SIGTRAP) };
    let [signal, code, ..] = CHAINED.each_ref().map(|at| at.swap(0, Ordering::Relaxed));
    assert_eq!(signal, libc::SIGTRAP as usize);
    assert_eq!(code as c_int, libc::SI_TKILL);

    drop(listed);
    CHAIN.0.store(ptr::null_mut(), Ordering::Release);
    // SAFETY: nobody runs the code any more.
    unsafe { libc::munmap(page.cast(), 4096) };
}

/// Keeps the address of a debug exception, and goes on behind it if that is the instruction's: some
/// hypervisors raise the exception before `int1`, which comes again for ever.
extern "C" fn step_over(_signal: c_int, _info: *mut c_void, context: *mut c_void) {
    // SAFETY: the kernel's; the byte is at or behind the instruction.
    unsafe {
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        let rip = &mut registers[libc::REG_RIP as usize];
        CHAINED[2].store(*rip as usize, Ordering::Relaxed);
        if *ptr::with_exposed_provenance::<u8>(*rip as usize) == 0xf1 {
            *rip += 1;
        }
    }
}

/// The kernel reports it with the code of a breakpoint.
#[test]
fn a_debug_exception_at_a_site_goes_to_the_next_handler() {
    let _globals = globals();
    let page = executable(&[0xf1, 0xb8, 42, 0, 0, 0, 0xc3]); // int1; mov eax, 42; ret
    let plain = Installed::with(libc::SIGTRAP, step_over as *const () as usize);
    assert_eq!(call(page, [0; 6]), 42);
    drop(plain);
    if CHAINED[2].swap(0, Ordering::Relaxed) == page as usize {
        return skip!("this machine raises the exception of `int1` before the instruction");
    }
    let _installed = Installed::new();
    CHAIN.0.store(next_handler as *mut (), Ordering::Release);
    let addresses = [page as usize];
    let records = records(&addresses, 0x9000);
    let mut ranges = [range(&records)];
    let listed = Listed::new(&mut ranges);
    assert_eq!(call(page, [0; 6]), 42);
    let [signal, code, rip, _] = CHAINED.each_ref().map(|at| at.swap(0, Ordering::Relaxed));
    assert_eq!(signal, libc::SIGTRAP as usize);
    assert_eq!(code as c_int, libc::TRAP_BRKPT);
    assert_eq!(rip, page as usize + 1);
    drop(listed);
    CHAIN.0.store(ptr::null_mut(), Ordering::Release);
    // SAFETY: nobody runs the code any more.
    unsafe { libc::munmap(page.cast(), 4096) };
}

/// Calls the handler with a pattern in every register that a callee preserves.
#[test]
fn the_handler_preserves_what_a_callee_preserves() {
    let _globals = globals();
    let addresses = [0x1000, 0x1010, 0x1020];
    let records = records(&addresses, 0x9000);
    let mut ranges = [range(&records)];
    let listed = Listed::new(&mut ranges);
    // SAFETY: all zero is a valid siginfo and ucontext, and the handler uses two words of them; the
    // assembly names every register that a C function may change, and keeps rbx and rbp itself.
    let handle = |code| unsafe {
        let mut info: libc::siginfo_t = zeroed();
        info.si_code = code;
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
    };
    handle(libc::SI_KERNEL);
    // An emulator may say this.
    handle(libc::TRAP_BRKPT);
    drop(listed);
}
