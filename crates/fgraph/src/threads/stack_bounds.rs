//! The bounds of machine stacks.
//!
//! They are read from `/proc/self/maps` when a thread is first seen on a stack, so with bare system
//! calls and without the allocator: the call may be one of `malloc`, or in a signal handler.
//! `/proc/self` belongs to the main thread: only if that has ended, `/proc/thread-self` is used,
//! which the kernel creates anew for each thread. Since Linux 6.11 the kernel can be queried for
//! one mapping; otherwise the file is read up to there, which takes long in a process with many
//! mappings.
//!
//! If the C library marks guards within mappings, several stacks may be in one: then the kernel is
//! queried for the guard, too.
//!
//! # Safety
//!
//! The unsafe code reads a file into a buffer on the stack, queries the kernel for a mapping, and
//! reads words that the kernel and the C library keep for every process and thread.

use core::ffi::CStr;
use core::ops::Range;

use crate::arch::cpu::thread_pointer;
use crate::os::maps::{self, File, MapsFile, Queried};
use crate::os::{self, PAGE};

/// The known bounds of a machine stack.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Around {
    /// The bounds; the whole mapping if nothing more is known.
    pub(crate) bounds: Range<usize>,
    /// True if it is the calling thread's own, from its start.
    pub(crate) is_own: bool,
}

/// Returns the machine stack around `address`, a value of the calling thread's stack pointer.
pub(crate) fn around(address: usize) -> Around {
    from_maps(address).unwrap_or_else(|| guess(address))
}

/// Returns the alternate signal stack of the calling thread, if `address` is on it.
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

/// The files that list the mappings: that of the main thread, which is empty when it has ended, and
/// that of the calling thread.
const MAPS: [&CStr; 2] = [maps::OF_MAIN_THREAD, maps::OF_THREAD];
/// The files that describe each page, in the same order.
const PAGEMAPS: [&CStr; 2] = [c"/proc/self/pagemap", c"/proc/thread-self/pagemap"];

/// The name of the main thread's stack.
const STACK: &[u8] = b"[stack]";

/// The facts about a mapping that matter for a stack.
#[derive(Debug)]
struct StackMapping {
    range: Range<usize>,
    /// For `[stack]`: the end of the previous mapping, if that is within the stack's limit.
    previous_end: usize,
    /// True if it is named `[stack]`.
    grows: bool,
}

fn from_maps(address: usize) -> Option<Around> {
    let mapping = MAPS.into_iter().find_map(|path| {
        let maps = MapsFile::open(path).ok()?;
        query(&maps, address).or_else(|| read(&maps, address))
    });
    Some(mapping?.around(address))
}

impl StackMapping {
    /// Returns the machine stack around `address`, which is in this mapping. The main thread's
    /// stack grows down to its limit; other stacks are mapped as a whole.
    fn around(&self, address: usize) -> Around {
        let Range { start, end } = self.range;
        if self.grows {
            let lowest = end.saturating_sub(stack_limit()).max(self.previous_end);
            return Around {
                bounds: lowest.min(start)..end,
                is_own: os::is_main_thread(),
            };
        }
        let block = thread_pointer();
        // For a thread other than the main one, the C library keeps the thread's block at the top
        // of the stack: memory above it in the same mapping belongs to others. So does memory below
        // the guard, if that is in the same mapping. The main thread's block is in a mapping of the
        // linker's, which the kernel may have joined with that of a coroutine's stack.
        let has_block = self.range.contains(&block) && address < block;
        let is_own = has_block && !os::is_main_thread();
        let end = if is_own { block } else { end };
        let start = match is_own && marks_guards() {
            true => above_guards(start, address),
            false => start,
        };
        Around {
            bounds: start..end,
            is_own,
        }
    }
}

/// Returns true if the C library marks the guards of stacks within the mapping of the stack,
/// instead of mapping them separately: glibc does since 2.42.
fn marks_guards() -> bool {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: a static string.
        let version = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) };
        let minor = version.to_bytes().strip_prefix(b"2.");
        let digits = minor.unwrap_or_default().iter();
        let digits = digits.map_while(|&digit| (digit as char).to_digit(10));
        digits.fold(0, |number, digit| 10 * number + digit) >= 42
    }
    #[cfg(not(target_env = "gnu"))]
    false
}

/// Returns the lowest address, from `start` on, with no guard between it and `address`. The kernel
/// shows guards since Linux 6.15.
fn above_guards(start: usize, address: usize) -> usize {
    let above = |path| above_guards_by(path, start, address);
    PAGEMAPS.into_iter().find_map(above).unwrap_or(start)
}

/// Does the same with one file; `None` if it fails. A separate function, so that its buffer is on
/// no other stack.
#[inline(never)]
fn above_guards_by(pagemap: &CStr, start: usize, address: usize) -> Option<usize> {
    /// The bit in the kernel's data about a page that marks a guard.
    const GUARD: u64 = 1 << 58;
    /// The number of pages that are queried at once.
    const PAGES: usize = 128;
    let pagemap = File::open(pagemap).ok()?;
    let (first, mut end) = (start / PAGE, address / PAGE);
    while end > first {
        let mut pages = [0u64; PAGES];
        let count = PAGES.min(end - first);
        let from = end - count;
        pagemap.read_words(from * size_of::<u64>(), &mut pages[..count])?;
        if let Some(guard) = pages[..count].iter().rposition(|page| page & GUARD != 0) {
            return Some((from + guard + 1) * PAGE);
        }
        end = from;
    }
    Some(start)
}

/// Returns the bounds without `/proc`: the main thread's stack ends above the program's name, which
/// the kernel puts at its very top; another thread's ends with the block to which the thread
/// pointer leads.
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
            // A stack of unknown size: only this much is certain.
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

/// Returns the largest size of the main thread's stack, in bytes.
fn stack_limit() -> usize {
    /// For "unlimited": more than any stack, less than the distance to the next mapping.
    const LARGE: usize = 1 << 30;
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: writes to the local.
    unsafe { libc::getrlimit(libc::RLIMIT_STACK, &mut limit) };
    usize::try_from(limit.rlim_cur).map_or(LARGE, |limit| limit.min(LARGE))
}

/// Queries the kernel for the mapping at `address`; `None` also if the query is not possible.
fn query(maps: &MapsFile, address: usize) -> Option<StackMapping> {
    /// A longer name is an error, and not `[stack]`.
    const NAME: usize = STACK.len() + 1;
    let mut name = [0; NAME];
    let mapping = maps.query(address, Queried::At, &mut name);
    let grows = mapping.as_ref().is_ok_and(|it| *it.path == *STACK);
    let mapping = mapping.or_else(|_| maps.query(address, Queried::At, &mut []));
    let range = maps::range_of(&mapping.ok()?);
    let mut previous_end = 0;
    if grows {
        // The previous mapping can only be found from below.
        let mut at = range.end.saturating_sub(stack_limit());
        while let Ok(other) = maps.query(at, Queried::AtOrNext, &mut [])
            && maps::range_of(&other).start < range.start
        {
            previous_end = maps::range_of(&other).end;
            at = previous_end;
        }
    }
    Some(StackMapping {
        range,
        previous_end,
        grows,
    })
}

/// Reads the file up to the mapping at `address`.
fn read(maps: &MapsFile, address: usize) -> Option<StackMapping> {
    let mut previous_end = 0;
    maps.find_map(|mapping| {
        let range = maps::range_of(&mapping);
        if !range.contains(&address) {
            previous_end = range.end;
            return None;
        }
        let grows = *mapping.path == *STACK;
        Some(StackMapping {
            range,
            previous_end: if grows { previous_end } else { 0 },
            grows,
        })
    })
}

#[cfg(test)]
mod tests {
    use fgraph_needs::skip;

    use super::*;
    use crate::os::memory;

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

    fn main_stack() -> Range<usize> {
        let maps = MapsFile::open(MAPS[0]).unwrap();
        let stack = maps.find_map(|it| (*it.path == *STACK).then(|| maps::range_of(&it)));
        stack.expect("every process has a main stack")
    }

    #[test]
    fn the_main_threads_stack_reaches_down_to_its_limit() {
        let mapped = main_stack();
        let found = from_maps(mapped.end - 8).expect("the line was just read");
        let found = found.bounds;
        assert_eq!(found.end, mapped.end);
        assert!(found.start <= mapped.start);
        assert!(found.len() >= stack_limit().min(1 << 20));
    }

    #[test]
    fn mappings_are_known_when_the_main_thread_has_ended() {
        // SAFETY: the child's threads only ask and end.
        let child = unsafe { libc::fork() };
        if child == 0 {
            std::thread::spawn(|| {
                let local = 0;
                let address = (&raw const local).addr();
                let has_ended =
                    || !MapsFile::open(MAPS[0]).is_ok_and(|maps| read(&maps, address).is_some());
                let waits = (0..1_000_000).find(|_| has_ended());
                let code = match (waits, from_maps(address)) {
                    (Some(_), Some(stack)) if stack.bounds.contains(&address) => 0,
                    _ => 1,
                };
                // SAFETY: ends the child.
                unsafe { libc::_exit(code) };
            });
            // SAFETY: ends the main thread.
            unsafe { libc::syscall(libc::SYS_exit, 0) };
        }
        let mut status = 0;
        // SAFETY: waits for our child; a live local.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFEXITED(status), "{status:#x}");
        assert_eq!(libc::WEXITSTATUS(status), 0);
    }

    #[test]
    fn the_kernel_answers_what_the_file_says() {
        static CONSTANT: u64 = 0;
        let local = 0;
        let maps = MapsFile::open(MAPS[0]).unwrap();
        let here = (&raw const local).addr();
        if query(&maps, here).is_none() {
            return skip!("the kernel cannot be asked for a mapping: Linux 6.11 or later can");
        }
        let main_stack = main_stack().end - 8;
        // None of them changes while other tests map memory.
        for address in [here, (&raw const CONSTANT).addr(), main_stack] {
            let asked = query(&maps, address).unwrap();
            let read = read(&MapsFile::open(MAPS[0]).unwrap(), address).unwrap();
            assert_eq!(asked.range.end, read.range.end);
            assert_eq!(asked.around(address), read.around(address));
        }
        assert!(query(&maps, 8).is_none());
    }

    #[test]
    fn mappings_beside_the_main_threads_block_are_not_its_stack() {
        let is_own = || {
            let block = thread_pointer();
            let mapping = StackMapping {
                range: block - PAGE..block + PAGE,
                previous_end: 0,
                grows: false,
            };
            mapping.around(block - 8).is_own
        };
        assert!(std::thread::spawn(is_own).join().unwrap());
        // The one thread of a child is its main thread.
        // SAFETY: the child makes system calls only; the parent reads into a live local.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::_exit(is_own().into());
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            assert!(libc::WIFEXITED(status), "{status}");
            assert_eq!(libc::WEXITSTATUS(status), 0);
        }
    }

    #[test]
    fn a_stack_begins_above_the_guard_that_is_in_its_mapping() {
        const MADV_GUARD_INSTALL: i32 = 102;
        const PAGES: usize = 1000;
        let start = memory::map(PAGES * PAGE).unwrap();
        let guard = start.wrapping_add(300 * PAGE);
        // SAFETY: a page of a fresh mapping.
        if unsafe { libc::madvise(guard.cast(), PAGE, MADV_GUARD_INSTALL) } != 0 {
            return skip!("no guards within mappings: Linux 6.13 or later has them");
        }
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let mut numbers = release.split(|other: char| !other.is_ascii_digit());
        let version = [(); 2].map(|()| numbers.next().and_then(|number| number.parse().ok()));
        if version < [Some(6), Some(15)] {
            return skip!("the kernel does not tell of guards: Linux 6.15 or later does");
        }
        let (start, guard) = (start.addr(), guard.addr());
        let found = above_guards(start, start + 900 * PAGE + 8);
        assert_eq!(found, guard + PAGE);
        assert_eq!(above_guards(guard + PAGE, start + 900 * PAGE), guard + PAGE);
        assert_eq!(above_guards(start, guard - 8), start);
    }
}
