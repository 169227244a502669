//! Lets a writer find out that the process that reads its rings has ended.
//!
//! The id of that process is no help: it means nothing in another PID namespace, and a later
//! process may have it. Writers have no descriptor on which they could check for a lock. So a word
//! of the header is a robust futex: the reader writes the id of a thread there, and the kernel
//! marks the word when that thread ends, for whatever reason. Writers load the word.

use super::Rings;
use super::layout::at;
use crate::primitive::Ordering;

/// `FUTEX_OWNER_DIED`: the kernel replaces the thread's id with it.
const ENDED: u64 = 0x4000_0000;

impl Rings {
    /// Returns true while there is a reader, in any PID namespace: see
    /// [`while_read`](Self::while_read). `None` if no process has announced that it reads.
    #[must_use]
    pub fn has_reader(&self) -> Option<bool> {
        match self.word(at::READER).load(Ordering::Relaxed) {
            0 => None,
            word => Some(word & ENDED == 0),
        }
    }
}

#[cfg(not(all(target_os = "linux", target_endian = "little", not(miri), not(loom))))]
impl Rings {
    /// Runs `work`, and announces a reader meanwhile.
    ///
    /// # Errors
    ///
    /// Always fails on this system.
    pub fn while_read<T>(&self, _work: impl FnOnce() -> T) -> std::io::Result<T> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
}

#[cfg(all(target_os = "linux", target_endian = "little", not(miri), not(loom)))]
mod robust {
    use std::io;
    use std::ptr;

    use super::ENDED;
    use crate::primitive::{AtomicU64, Ordering};
    use crate::ring::Rings;
    use crate::ring::layout::at;

    /// `struct robust_list_head`, and the only entry of the list.
    #[repr(C)]
    struct List {
        first: *const Entry,
        /// The distance from an entry to its futex.
        offset: isize,
        pending: *const Entry,
        entry: Entry,
    }

    /// `struct robust_list`.
    #[repr(C)]
    struct Entry {
        next: *const Entry,
    }

    /// Bytes of `struct robust_list_head`.
    const HEAD: usize = size_of::<List>() - size_of::<Entry>();

    /// Makes the kernel mark a word when this thread ends, for as long as this value lives.
    struct Watched<'r> {
        word: &'r AtomicU64,
        /// The previous list of the thread.
        before: *const List,
    }

    impl Drop for Watched<'_> {
        fn drop(&mut self) {
            // SAFETY: this is the list that the C library set for this thread, which stays valid.
            unsafe { libc::syscall(libc::SYS_set_robust_list, self.before, HEAD) };
            self.word.store(ENDED, Ordering::Relaxed);
        }
    }

    impl Rings {
        /// Runs `work`, and announces a reader meanwhile to all processes that have the rings. If a
        /// signal ends this process, the kernel withdraws the announcement.
        ///
        /// The thread's list of robust mutexes is replaced for that time, so `work` must not end
        /// the thread with such a mutex locked.
        ///
        /// # Errors
        ///
        /// Fails if the kernel does not watch the thread; `work` is not run then. On systems other
        /// than Linux it always fails.
        pub fn while_read<T>(&self, work: impl FnOnce() -> T) -> io::Result<T> {
            let word = self.word(at::READER);
            let mut before: *const List = ptr::null();
            let mut len = 0_usize;
            // SAFETY: the kernel writes to these two live locals, about the running thread.
            let got = unsafe {
                libc::syscall(libc::SYS_get_robust_list, 0, &raw mut before, &raw mut len)
            };
            if got != 0 {
                return Err(io::Error::last_os_error());
            }
            let mut list = List {
                first: ptr::null(),
                offset: 0,
                pending: ptr::null(),
                entry: Entry { next: ptr::null() },
            };
            let place = &raw mut list;
            // SAFETY: all pointers lead into `list`, which does not move from now on. The list is
            // circular: its only entry leads back to its head.
            unsafe {
                (*place).first = &raw const (*place).entry;
                (*place).entry.next = place.cast();
                (*place).offset = word.as_ptr().addr().wrapping_sub((*place).first.addr()) as isize;
            }
            // SAFETY: the list and the word live until `Watched` has taken them from the kernel,
            // which writes to the word only, and only if it holds the id of this thread.
            if unsafe { libc::syscall(libc::SYS_set_robust_list, place, HEAD) } != 0 {
                return Err(io::Error::last_os_error());
            }
            let watched = Watched { word, before };
            // SAFETY: `gettid` touches no memory.
            let thread = unsafe { libc::gettid() };
            word.store(u64::from(thread.unsigned_abs()), Ordering::Relaxed);
            let done = work();
            drop(watched);
            Ok(done)
        }
    }
}

#[cfg(all(test, target_os = "linux", not(miri), not(loom)))]
mod tests {
    use std::process;

    use super::*;
    use crate::ring::RingOptions;

    #[test]
    fn a_reader_is_there_until_it_ends() {
        let rings = Rings::create(&RingOptions::default()).unwrap();
        assert_eq!(rings.has_reader(), None);
        let found = rings.while_read(|| rings.has_reader());
        assert_eq!(
            (found.unwrap(), rings.has_reader()),
            (Some(true), Some(false))
        );
    }

    #[test]
    fn a_reader_that_is_killed_is_not_there() {
        let rings = Rings::create(&RingOptions::default()).unwrap();
        // SAFETY: the child uses no lock; it makes system calls and waits to be killed.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let waited = rings.while_read(|| {
                loop {
                    // SAFETY: `pause` touches no memory.
                    unsafe { libc::pause() };
                }
            });
            process::exit(i32::from(waited.is_err()));
        }
        assert!(child > 0);
        while rings.has_reader().is_none() {
            // SAFETY: the child is ours, and a null status is not written.
            let ended = unsafe { libc::waitpid(child, std::ptr::null_mut(), libc::WNOHANG) };
            assert_eq!(ended, 0);
            std::thread::yield_now();
        }
        assert_eq!(rings.has_reader(), Some(true));
        // SAFETY: the child is ours, and is waited for once.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
        assert_eq!(rings.has_reader(), Some(false));
    }
}
