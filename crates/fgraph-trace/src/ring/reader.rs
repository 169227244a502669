//! Tells a writer that the process which reads its rings has ended.
//!
//! Its number does not tell that: it means nothing in another PID namespace, and another process
//! may have it later. Writers have no descriptor on which they could look for a lock. So a word of
//! the header is a robust futex: the reader writes the number of a thread there, and the kernel
//! marks the word when that thread ends, whatever ends it. Writers load the word.

use super::Rings;
use super::layout::at;
use crate::primitive::Ordering;

/// `FUTEX_OWNER_DIED`: the kernel puts it in the place of the thread's number.
const ENDED: u64 = 0x4000_0000;

impl Rings {
    /// True while a reader is there, in whatever PID namespace: see
    /// [`while_read`](Self::while_read). `None` if none has said that it reads.
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
    /// Runs `work`, and says meanwhile that there is a reader.
    ///
    /// # Errors
    ///
    /// On this system always.
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

    /// `struct robust_list_head`, and the one entry of the list.
    #[repr(C)]
    struct List {
        first: *const Entry,
        /// From an entry to its futex.
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

    /// While this lives, the kernel marks a word when this thread ends.
    struct Watched<'r> {
        word: &'r AtomicU64,
        /// The list that the thread had.
        before: *const List,
    }

    impl Drop for Watched<'_> {
        fn drop(&mut self) {
            // SAFETY: the list that the C library gave for this thread, which stays.
            unsafe { libc::syscall(libc::SYS_set_robust_list, self.before, HEAD) };
            self.word.store(ENDED, Ordering::Relaxed);
        }
    }

    impl Rings {
        /// Runs `work`, and says meanwhile, to all processes that have the rings, that there is a
        /// reader. If a signal ends this process, the kernel takes that back.
        ///
        /// The thread's list of robust mutexes is replaced for that time, so `work` must not end
        /// the thread with such a mutex locked.
        ///
        /// # Errors
        ///
        /// If the kernel does not watch the thread; then `work` is not run. On other systems than
        /// Linux always.
        pub fn while_read<T>(&self, work: impl FnOnce() -> T) -> io::Result<T> {
            let word = self.word(at::READER);
            let mut before: *const List = ptr::null();
            let mut len = 0_usize;
            // SAFETY: it writes to these two, of the running thread.
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
            // SAFETY: all of it is in `list`, which is not moved from here on. The list is a ring:
            // its one entry leads back to its head.
            unsafe {
                (*place).first = &raw const (*place).entry;
                (*place).entry.next = place.cast();
                (*place).offset = word.as_ptr().addr().wrapping_sub((*place).first.addr()) as isize;
            }
            // SAFETY: the list and the word stay until `Watched` has taken them from the kernel,
            // which writes to the word only, and only if it holds the number of this thread.
            if unsafe { libc::syscall(libc::SYS_set_robust_list, place, HEAD) } != 0 {
                return Err(io::Error::last_os_error());
            }
            let watched = Watched { word, before };
            // SAFETY: it only asks.
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
        // SAFETY: the child uses no lock: it makes system calls, and waits to be killed.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let waited = rings.while_read(|| {
                loop {
                    // SAFETY: it only waits.
                    unsafe { libc::pause() };
                }
            });
            process::exit(i32::from(waited.is_err()));
        }
        assert!(child > 0);
        while rings.has_reader().is_none() {
            // SAFETY: the child is ours, and nothing is written.
            let ended = unsafe { libc::waitpid(child, std::ptr::null_mut(), libc::WNOHANG) };
            assert_eq!(ended, 0);
            std::thread::yield_now();
        }
        assert_eq!(rings.has_reader(), Some(true));
        // SAFETY: the child is ours.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
        assert_eq!(rings.has_reader(), Some(false));
    }
}
