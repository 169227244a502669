//! The bounds of machine stacks.
//!
//! Read from `/proc/thread-self/maps` when a thread is first seen on one, so with bare system calls
//! and without the allocator: the call may be one of `malloc`, or in a signal handler.
//! (`/proc/self` is the main thread's, which may have ended.)
//!
//! # Safety
//!
//! The unsafe code reads a file into a buffer on the stack, and words that the kernel and the C
//! library keep for every process and thread.

use core::ops::Range;

use crate::os::{self, PAGE};

/// What is known of a machine stack.
#[derive(Debug)]
pub(crate) struct Around {
    /// The whole mapping, where that is all that is known.
    pub(crate) bounds: Range<usize>,
    /// It is the calling thread's own, from its start.
    pub(crate) is_own: bool,
}

/// The machine stack around `address`, an address that the calling thread's stack pointer has.
pub(crate) fn around(address: usize) -> Around {
    from_maps(address).unwrap_or_else(|| guess(address))
}

/// The alternate signal stack of the calling thread, if `address` is on it.
pub(crate) fn alternate(address: usize) -> Option<Range<usize>> {
    let mut stack = libc::stack_t {
        ss_sp: core::ptr::null_mut(),
        ss_flags: 0,
        ss_size: 0,
    };
    // SAFETY: writes to the local.
    unsafe { libc::sigaltstack(core::ptr::null(), &mut stack) };
    let low = stack.ss_sp.addr();
    let is_on = stack.ss_flags & libc::SS_DISABLE == 0 && address.wrapping_sub(low) < stack.ss_size;
    is_on.then(|| low..low + stack.ss_size)
}

/// The stack of the main thread grows down to its limit; another's is mapped as a whole.
fn from_maps(address: usize) -> Option<Around> {
    let mut previous_end = 0;
    let mut found = None;
    for_each_line("/proc/thread-self/maps\0", |line| {
        let Some(range) = parse_range(line) else {
            return true;
        };
        if range.contains(&address) {
            let grows = line.ends_with(b"[stack]");
            let start = if grows {
                range.end.saturating_sub(stack_limit()).max(previous_end)
            } else {
                range.start
            };
            let block = thread_pointer();
            let is_own = if grows {
                os::is_main_thread()
            } else {
                range.contains(&block) && address < block
            };
            // Of a thread other than the main one, the C library keeps the thread's block at the
            // top of the stack: what is above it in the same mapping is another's.
            let end = if is_own && !grows { block } else { range.end };
            found = Some(Around {
                bounds: start.min(range.start)..end,
                is_own,
            });
            return false;
        }
        previous_end = range.end;
        true
    });
    found
}

/// The address of the calling thread's block.
fn thread_pointer() -> usize {
    let block: usize;
    // SAFETY: the ABI puts the thread pointer's own value there.
    unsafe {
        core::arch::asm!("mov {}, fs:[0]", out(reg) block,
            options(nostack, preserves_flags, readonly));
    }
    block
}

/// Without `/proc`: the main thread's stack ends above the program's name, which the kernel puts
/// at its very top; another thread's ends with the block that the thread pointer leads to.
fn guess(address: usize) -> Around {
    // SAFETY: reads the auxiliary vector.
    let name = unsafe { libc::getauxval(libc::AT_EXECFN) } as usize;
    let limit = stack_limit();
    let main_end = name.next_multiple_of(PAGE);
    let end = if address < main_end && main_end - address <= limit {
        main_end
    } else {
        let block = thread_pointer();
        if address < block && block - address <= limit {
            block
        } else {
            // Some stack of unknown size: only this much is sure.
            return Around {
                bounds: address & !(PAGE - 1)..(address + 1).next_multiple_of(PAGE),
                is_own: false,
            };
        }
    };
    Around {
        bounds: end.saturating_sub(limit)..end,
        is_own: true,
    }
}

/// How far the main thread's stack may grow, in bytes.
fn stack_limit() -> usize {
    /// For "unlimited": more than any stack, less than the way to the next mapping.
    const LARGE: usize = 1 << 30;
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: writes to the local.
    unsafe { libc::getrlimit(libc::RLIMIT_STACK, &mut limit) };
    usize::try_from(limit.rlim_cur).map_or(LARGE, |limit| limit.min(LARGE))
}

/// The range at the start of a line of `/proc/self/maps`.
fn parse_range(line: &[u8]) -> Option<Range<usize>> {
    let mut numbers = [0usize; 2];
    let mut which = 0;
    for &byte in line {
        match (byte as char).to_digit(16) {
            Some(digit) => numbers[which] = numbers[which] << 4 | digit as usize,
            None if byte == b'-' && which == 0 => which = 1,
            None => return (which == 1).then_some(numbers[0]..numbers[1]),
        }
    }
    None
}

/// Calls `each` with the lines of a file, until it says `false`. Of a line longer than the buffer
/// only the end is given.
fn for_each_line(path: &'static str, mut each: impl FnMut(&[u8]) -> bool) {
    debug_assert!(path.ends_with('\0'));
    // Bare system calls are no cancellation points, unlike the functions of the same names.
    // SAFETY: the path ends with a zero byte.
    let file = unsafe {
        libc::syscall(
            libc::SYS_openat,
            libc::AT_FDCWD,
            path.as_ptr(),
            libc::O_RDONLY | libc::O_CLOEXEC,
        )
    };
    if file < 0 {
        return;
    }
    let mut buffer = [0u8; 2048];
    let mut filled = 0;
    'file: loop {
        // SAFETY: reads into the rest of the buffer.
        let got = unsafe {
            libc::syscall(
                libc::SYS_read,
                file,
                buffer.as_mut_ptr().add(filled),
                buffer.len() - filled,
            )
        };
        let Ok(got @ 1..) = usize::try_from(got) else {
            break;
        };
        filled += got;
        let mut start = 0;
        while let Some(len) = buffer[start..filled].iter().position(|&byte| byte == b'\n') {
            if !each(&buffer[start..start + len]) {
                break 'file;
            }
            start += len + 1;
        }
        buffer.copy_within(start..filled, 0);
        filled -= start;
        if filled == buffer.len() {
            filled = 0;
        }
    }
    // SAFETY: the file is ours.
    unsafe { libc::syscall(libc::SYS_close, file) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stack_of_this_thread_holds_its_locals_and_not_its_heap() {
        let local = 0;
        let address = (&raw const local).addr();
        let heap = Box::new(0);
        let stack = around(address);
        assert!(stack.is_own);
        assert!(stack.bounds.contains(&address), "{stack:x?} {address:x}");
        assert!(!stack.bounds.contains(&(&raw const *heap).addr()));
    }

    #[test]
    fn without_proc_the_guess_holds_the_locals() {
        let local = 0;
        let address = (&raw const local).addr();
        assert!(guess(address).bounds.contains(&address));
    }

    #[test]
    fn the_main_threads_stack_reaches_down_to_its_limit() {
        let mut stack = None;
        for_each_line("/proc/thread-self/maps\0", |line| {
            if line.ends_with(b"[stack]") {
                stack = parse_range(line);
            }
            true
        });
        let mapped = stack.expect("every process has a main stack");
        let found = from_maps(mapped.end - 8).expect("the line was just read");
        let found = found.bounds;
        assert_eq!(found.end, mapped.end);
        assert!(found.start <= mapped.start);
        assert!(found.len() >= stack_limit().min(1 << 20));
    }

    #[test]
    fn lines_without_a_range_are_passed_over() {
        assert_eq!(parse_range(b"7f00-7f10 rw-p"), Some(0x7f00..0x7f10));
        assert_eq!(parse_range(b"rw-p"), None);
        assert_eq!(parse_range(b""), None);
        assert_eq!(parse_range(b"7f00"), None);
    }
}
