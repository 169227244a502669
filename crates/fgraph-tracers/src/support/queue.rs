//! Queue of lines that callbacks write and readers consume. A writer never waits.
//!
//! It is a ring of bytes. A writer reserves the room for a line with one exchange, copies the line
//! and marks it as ready. Without room it drops and counts the line. Readers take turns and read
//! from the front:
//!
//! ```text
//!        front (readers)                      back (writers)
//!           v                                   v
//!   --------+--------+------+--------+----------+-----------------
//!     zeros | header | line | header | (comes)  |  zeros
//!   --------+--------+------+--------+----------+-----------------
//! ```
//!
//! A header is a word with the length of the line, the thread, and the ready bit. If `siglongjmp`
//! left a writer, its line never becomes ready. A later line of the same thread proves that;
//! readers then skip the unfinished line and count it as dropped.
//!
//! # Safety
//!
//! The unsafe code copies lines into and out of the ring. Reserved room belongs to its writer until
//! the header is ready, and to the reader from then on.

use core::ptr;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::kernel;

/// Bytes of a header.
const HEADER: usize = size_of::<u64>();
/// Bit of a header that is set when the line is ready.
const READY: u64 = 1 << 63;
/// Number of bits of a header with the length.
const LEN_BITS: u32 = 24;
/// Time for which a reader waits for an unfinished line before it checks whether the line still
/// comes.
const PATIENCE: Duration = Duration::from_millis(10);

/// Lines in a ring.
#[derive(Debug)]
pub(crate) struct Queue {
    ring: *mut u8,
    /// Bytes of the ring, a power of two.
    size: usize,
    /// Total bytes that writers have reserved.
    back: AtomicUsize,
    /// Total bytes that readers have freed.
    front: AtomicUsize,
    dropped: AtomicU64,
    /// Number of readers that wait.
    waiting: AtomicU32,
    /// Incremented when a line comes while readers wait.
    wakes: AtomicU32,
    reading: Mutex<()>,
}

// SAFETY: threads access the ring only as the headers allow.
unsafe impl Send for Queue {}
// SAFETY: threads access the ring only as the headers allow.
unsafe impl Sync for Queue {}

impl Queue {
    /// Creates a queue of `size` bytes, rounded up to a power of two of at least a page; `None`
    /// without memory.
    pub(crate) fn new(size: usize) -> Option<Self> {
        let size = size.max(4096).checked_next_power_of_two()?;
        Some(Self {
            ring: kernel::map(size)?,
            size,
            back: AtomicUsize::new(0),
            front: AtomicUsize::new(0),
            dropped: AtomicU64::new(0),
            waiting: AtomicU32::new(0),
            wakes: AtomicU32::new(0),
            reading: Mutex::new(()),
        })
    }

    /// Returns the number of bytes in use.
    pub(crate) fn len(&self) -> usize {
        let front = self.front.load(Ordering::Relaxed);
        self.back.load(Ordering::Relaxed).saturating_sub(front)
    }

    /// Returns the number of lines that found no room, or were never finished.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    fn header(&self, at: usize) -> &AtomicU64 {
        // SAFETY: the address is within the ring, and aligned because positions are multiples of a
        // header's size.
        unsafe { &*self.ring.add(at & (self.size - 1)).cast::<AtomicU64>() }
    }

    /// Returns the number of bytes that a line of `len` bytes takes.
    fn room(len: usize) -> usize {
        HEADER + len.next_multiple_of(HEADER)
    }

    /// Copies between the ring at `at` and other memory, by calls of `copy(place in the ring,
    /// offset in the other memory, length)`.
    fn parts(&self, at: usize, len: usize, mut copy: impl FnMut(*mut u8, usize, usize)) {
        let start = at & (self.size - 1);
        let first = len.min(self.size - start);
        // SAFETY: the offset is within the ring.
        copy(unsafe { self.ring.add(start) }, 0, first);
        copy(self.ring, first, len - first);
    }

    /// Adds a line of `thread`, or drops it.
    pub(crate) fn push(&self, thread: u32, line: &[u8]) {
        let need = Self::room(line.len());
        let mut back = self.back.load(Ordering::Relaxed);
        loop {
            // Acquire: pairs with the Release in `pop`, so the room is all zeros.
            let front = self.front.load(Ordering::Acquire);
            if line.len() >> LEN_BITS != 0 || back.wrapping_sub(front) + need > self.size {
                self.dropped.fetch_add(1, Ordering::Relaxed);
                return;
            }
            let taken = self.back.compare_exchange_weak(
                back,
                back + need,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            match taken {
                Ok(_) => break,
                Err(now) => back = now,
            }
        }
        let header = u64::from(thread) << LEN_BITS | line.len() as u64;
        self.header(back).store(header, Ordering::Relaxed);
        self.parts(back + HEADER, line.len(), |ring, from, len| {
            // SAFETY: the room is reserved for this writer.
            unsafe { ptr::copy_nonoverlapping(line.as_ptr().add(from), ring, len) };
        });
        // Release: pairs with the Acquire in `first`, so the line is visible.
        self.header(back).store(header | READY, Ordering::Release);
        // Either this sees the waiting reader, or the reader sees the line.
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) != 0 {
            self.wakes.fetch_add(1, Ordering::Relaxed);
            kernel::wake_all(&self.wakes);
        }
    }

    /// Returns the length of the first line, if it is ready; skips a line that never becomes ready.
    fn first(&self, look_closer: bool) -> Option<usize> {
        loop {
            let front = self.front.load(Ordering::Relaxed);
            if front == self.back.load(Ordering::Acquire) {
                return None;
            }
            let header = self.header(front).load(Ordering::Acquire);
            let len = (header & ((1 << LEN_BITS) - 1)) as usize;
            if header & READY != 0 {
                return Some(len);
            }
            if !look_closer || header == 0 || !self.is_left(front, header) {
                return None;
            }
            self.dropped.fetch_add(1, Ordering::Relaxed);
            self.give_back(front, len);
        }
    }

    /// True if the thread that has written an unfinished header at `at` has begun another line.
    fn is_left(&self, at: usize, header: u64) -> bool {
        let back = self.back.load(Ordering::Acquire);
        let mut next = at;
        let mut header = header;
        let thread = |header: u64| (header & !READY) >> LEN_BITS;
        let writer = thread(header);
        loop {
            next += Self::room((header & ((1 << LEN_BITS) - 1)) as usize);
            if next >= back {
                return false;
            }
            header = self.header(next).load(Ordering::Acquire);
            if header == 0 {
                return false;
            }
            if thread(header) == writer {
                return true;
            }
        }
    }

    /// Frees the room of the first line.
    fn give_back(&self, front: usize, len: usize) {
        let room = Self::room(len);
        self.parts(front, room, |ring, _, len| {
            // SAFETY: the room belongs to this reader.
            unsafe { ptr::write_bytes(ring, 0, len) };
        });
        // Release: pairs with the Acquire in `push`.
        self.front.store(front + room, Ordering::Release);
    }

    /// Appends the first line to `line` and removes it; waits at most `wait` for one. Returns true
    /// if there was one.
    pub(crate) fn pop(&self, line: &mut Vec<u8>, wait: Duration) -> bool {
        let deadline = Instant::now().checked_add(wait);
        let mut look_closer = false;
        loop {
            if self.try_pop(line, look_closer) {
                return true;
            }
            let left = deadline.map_or(PATIENCE, |deadline| {
                deadline.saturating_duration_since(Instant::now())
            });
            if left.is_zero() {
                return false;
            }
            self.waiting.fetch_add(1, Ordering::Relaxed);
            // Pairs with the fence in `push`.
            fence(Ordering::SeqCst);
            let seen = self.wakes.load(Ordering::Relaxed);
            if self.try_pop(line, look_closer) {
                self.waiting.fetch_sub(1, Ordering::Relaxed);
                return true;
            }
            kernel::wait(&self.wakes, seen, left.min(PATIENCE));
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            look_closer = true;
        }
    }

    fn try_pop(&self, line: &mut Vec<u8>, look_closer: bool) -> bool {
        let _turn = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(len) = self.first(look_closer) else {
            return false;
        };
        let front = self.front.load(Ordering::Relaxed);
        self.parts(front + HEADER, len, |ring, _, len| {
            // SAFETY: the line is ready, and only the reader whose turn it is reads it.
            line.extend_from_slice(unsafe { core::slice::from_raw_parts(ring, len) });
        });
        self.give_back(front, len);
        true
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: the ring was mapped with this size, and only the queue refers to it.
        unsafe { kernel::unmap(self.ring, self.size) };
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn pop(queue: &Queue) -> Option<Vec<u8>> {
        let mut line = Vec::new();
        queue.pop(&mut line, Duration::ZERO).then_some(line)
    }

    #[test]
    fn lines_come_out_as_they_went_in_and_those_without_room_are_counted() {
        let queue = Queue::new(4096).unwrap();
        assert_eq!((pop(&queue), queue.len()), (None, 0));
        let line = |n: usize| vec![n as u8; n % 700];
        let (mut put, mut taken, mut dropped) = (0, 0, 0);
        for round in 0..200 {
            for _ in 0..round % 17 {
                let before = queue.dropped();
                queue.push(1, &line(put));
                match queue.dropped() - before {
                    0 => put += 1,
                    _ => dropped += 1,
                }
            }
            for _ in 0..round % 13 {
                let Some(found) = pop(&queue) else { break };
                assert_eq!(found, line(taken));
                taken += 1;
            }
        }
        while let Some(found) = pop(&queue) {
            assert_eq!(found, line(taken));
            taken += 1;
        }
        assert_eq!((taken, queue.len(), queue.dropped()), (put, 0, dropped));
        assert!(dropped > 0 && taken > 100);
        queue.push(1, &[0; 5000]);
        assert_eq!((queue.dropped(), pop(&queue)), (dropped + 1, None));
    }

    #[test]
    fn several_writers_and_readers_lose_nothing_but_what_is_counted() {
        const LINES: u64 = 20_000;
        const WRITERS: u32 = 3;
        let queue = Queue::new(4096).unwrap();
        let read: Vec<Vec<u64>> = thread::scope(|scope| {
            let reader = || {
                let mut lines = Vec::new();
                let mut line = Vec::new();
                loop {
                    line.clear();
                    assert!(queue.pop(&mut line, Duration::from_secs(60)));
                    let number = u64::from_le_bytes(line[..8].try_into().unwrap());
                    if number == u64::MAX {
                        return lines;
                    }
                    assert!(line[8..].iter().all(|&byte| byte == number as u8));
                    lines.push(number);
                }
            };
            let readers = [(); 2].map(|()| scope.spawn(reader));
            let writers: Vec<_> = (0..WRITERS)
                .map(|writer| {
                    let queue = &queue;
                    scope.spawn(move || {
                        for n in 0..LINES {
                            let number = u64::from(writer) << 32 | n;
                            let mut line = number.to_le_bytes().to_vec();
                            line.resize(8 + n as usize % 50, number as u8);
                            queue.push(writer + 1, &line);
                        }
                    })
                })
                .collect();
            writers
                .into_iter()
                .for_each(|writer| writer.join().unwrap());
            let mut left = 2;
            while left > 0 {
                let before = queue.dropped();
                queue.push(9, &u64::MAX.to_le_bytes());
                left -= u64::from(queue.dropped() == before);
                thread::yield_now();
            }
            readers.map(|reader| reader.join().unwrap()).into()
        });
        let lines: usize = read.iter().map(Vec::len).sum();
        // Each reader has seen each writer's lines in order.
        for (lines, writer) in read
            .iter()
            .flat_map(|lines| (0..WRITERS).map(move |w| (lines, w)))
        {
            let of = lines
                .iter()
                .filter(|number| **number >> 32 == u64::from(writer));
            assert!(of.collect::<Vec<_>>().is_sorted());
        }
        let ends = queue.dropped() + lines as u64;
        assert!(ends >= LINES * u64::from(WRITERS));
    }

    #[test]
    fn a_line_that_never_comes_does_not_stop_readers() {
        let queue = Queue::new(4096).unwrap();
        queue.push(1, b"first");
        // Imitates a writer that stops between reserving its room and finishing.
        let back = queue.back.fetch_add(Queue::room(4), Ordering::Relaxed);
        queue
            .header(back)
            .store(7 << LEN_BITS | 4, Ordering::Relaxed);
        queue.push(2, b"second");
        assert_eq!(pop(&queue).as_deref(), Some(&b"first"[..]));
        let mut line = Vec::new();
        assert!(!queue.pop(&mut line, PATIENCE * 2));
        queue.push(7, b"third");
        assert!(queue.pop(&mut line, Duration::from_secs(60)));
        assert_eq!((&*line, queue.dropped()), (&b"second"[..], 1));
        assert_eq!(pop(&queue).as_deref(), Some(&b"third"[..]));
    }
}
