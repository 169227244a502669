//! Exchanges instructions of five bytes while other threads run through them.
//!
//! # The protocol
//!
//! A CPU may fetch the bytes of an instruction at different times, so another CPU may see a store
//! near the code it executes in parts. Only the first byte can be exchanged alone, and only for a
//! complete instruction of one byte, `int3`. So, for all sites of a batch at once:
//!
//! ```text
//!   phase        bytes of a site        a thread that comes by
//!                +--+--+--+--+--+
//!                |0f|1f|44|00|08|       runs the old instruction
//!                +--+--+--+--+--+
//!   1  trap      |cc|1f|44|00|08|       runs the old one, or traps
//!      sync      +--+--+--+--+--+       now no thread runs the old one
//!   2  tail      |cc|rr|rr|rr|rr|       traps
//!      sync      +--+--+--+--+--+       now all threads see the new tail
//!   3  head      |e9|rr|rr|rr|rr|       traps, or runs the new one
//!      sync      +--+--+--+--+--+       now no thread traps
//! ```
//!
//! *Sync* makes every CPU that runs a thread of this process drop its fetched instructions:
//! `membarrier(PRIVATE_EXPEDITED_SYNC_CORE)`. The handler continues a thread that traps (see
//! [`trap`](crate::trap)) as if the new instruction had run, so no thread waits.
//!
//! # Several instructions
//!
//! If the five bytes hold several instructions, a thread may have been preempted between two of
//! them, stay there for any length of time, or return there from a signal handler. So every byte at
//! which one of them starts becomes an `int3`, too, and *always traps* while the jump is there: the
//! jump is chosen to have such bytes in its operand at these places (see [`punned_jump`]). For
//! `push rbp; mov rbp, rsp; ...`, where instructions start at 0, 1 and 4:
//!
//! ```text
//!                 v  v        v                               v  v        v
//!                +--+--+--+--+--+                            +--+--+--+--+--+
//!   code         |55|48|89|e5|53|               jump         |e9|cc|rr|rr|cc|
//!   1  trap      |cc|cc|89|e5|cc|               1  trap      |cc|cc|rr|rr|cc|
//!   2  tail      |cc|cc|rr|rr|cc|               2  tail      |cc|cc|89|e5|cc|
//!   3  head      |e9|cc|rr|rr|cc|               3  head      |55|48|89|e5|53|
//!                +--+--+--+--+--+                            +--+--+--+--+--+
//! ```
//!
//! The handler continues a thread that traps inside in the relocated prologue, at the instruction
//! that was there. On the way back the heads of all instructions come last: each is a single byte
//! after which everything is as before.
//!
//! # Breakpoints
//!
//! Where no jump has room, the `int3` of the first phase may be the whole patch, and stay: then
//! every call traps. Only the first byte of such a site is read, compared and written; the bytes
//! after it may be sites of their own, which change independently.
//!
//! ```text
//!            breakpoints   a site of five bytes
//!                 v  v        v
//!                +--+--+--+--+--+--+--+--+--+
//!   code         |c3|31|c0|c3|b8|01|00|00|00|
//!   1  trap      |cc|cc|c0|c3|cc|01|00|00|00|
//!   2  tail      |cc|cc|c0|c3|cc|rr|rr|rr|rr|
//!   3  head      |cc|cc|c0|c3|e9|rr|rr|rr|rr|
//! ```
//!
//! # Alone
//!
//! If no other thread runs ([`Text::is_alone`]), none can fetch half an instruction, and all bytes
//! of a site are written at once. A thread between two instructions, or one that returns there,
//! traps as usual. A site on two pages may be written in parts, so a batch with one of those goes
//! through all phases.
//!
//! # Writes
//!
//! Sites are grouped by the page of their first byte. A phase writes each group with one write,
//! from its first site to its last; the bytes between sites are written as they were read just
//! before:
//!
//! ```text
//!     page                                                            page
//!      |...xxxxx.......xxxxx.....xxxxx.............................xxx|xx......
//!   1  |   W---------------------W---------------------------------W  |
//!   2  |    ----------------------------------------------------------|-
//!   3  |   W---------------------W---------------------------------W  |
//! ```
//!
//! A change by another patcher between the read and the write would be lost. So if there may be one
//! ([`Text::is_shared`]), each site is written separately.
//!
//! A site that straddles two pages belongs to the first. Its tail reaches into the second page, but
//! never up to another site. A phase that has nothing to write writes nothing.
//!
//! # Failures
//!
//! If a step fails, the steps before it are undone in the reverse order with the same care, and
//! every site is as before. If that fails, too, the site stays an `int3`, which threads survive, or
//! the new instruction, and the error says so: [`TextWriteError::Stuck`].

use alloc::{vec, vec::Vec};
use core::fmt;
use core::ops::Range;

use crate::punned_jump;
use crate::stub::SITE_LEN;

/// The breakpoint instruction.
pub const INT3: u8 = 0xcc;

const PAGE: usize = 4096;

/// The five bytes of a site, before or after a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Content {
    /// The bytes at the site.
    pub bytes: [u8; SITE_LEN],
    /// Bit *k* is set if an instruction starts at byte *k*; bit 0 always is.
    pub starts: u8,
}

impl Content {
    /// Makes the content of a single instruction, of five bytes or more.
    #[must_use]
    pub const fn one(bytes: [u8; SITE_LEN]) -> Self {
        Self { bytes, starts: 1 }
    }

    /// Returns true if an instruction starts at byte `at`.
    const fn starts_at(&self, at: usize) -> bool {
        at == 0 || self.starts >> at & 1 != 0
    }

    /// Returns true if a thread that continues at byte `at`, because an instruction of `other`
    /// starts there, traps here.
    fn traps_within(&self, other: &Self, at: usize) -> bool {
        !other.starts_at(at) || punned_jump::traps(at, self.bytes[at])
    }
}

/// Code to exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextWrite {
    /// Address of the site.
    pub address: usize,
    /// The number of bytes that are exchanged: 1 for an `int3` that stays, 2 for a short jump, 5
    /// for a jump. The other bytes of `old` and `new` do not count.
    pub len: usize,
    /// The content that must be there now.
    pub old: Content,
    /// The content to write.
    pub new: Content,
}

impl TextWrite {
    /// Returns the address after the site, if it is in the address space.
    const fn end(&self) -> Option<usize> {
        self.address.checked_add(self.len)
    }

    /// Returns true if all of its bytes are on one page.
    const fn is_on_page(&self) -> bool {
        self.address % PAGE + self.len <= PAGE
    }

    /// Returns true if a thread between two instructions of either content traps in the other.
    fn is_safe(&self) -> bool {
        let (old, new) = (&self.old, &self.new);
        (1..self.len).all(|at| new.traps_within(old, at) && old.traps_within(new, at))
    }
}

/// Access to the program text, for [`apply`]. The methods must not panic.
pub trait Text {
    /// The error of an access.
    type Error;

    /// Fills `into` with the bytes from `address` on.
    ///
    /// # Errors
    ///
    /// Fails if not all of them can be read.
    fn read(&mut self, address: usize, into: &mut [u8]) -> Result<(), Self::Error>;

    /// Writes `bytes` from `address` on.
    ///
    /// There are at most a page and four `bytes`, which may reach into the next page.
    ///
    /// # Errors
    ///
    /// Fails if not all of them can be written. Some of them may have been.
    fn write(&mut self, address: usize, bytes: &[u8]) -> Result<(), Self::Error>;

    /// Returns after every thread of the process has executed a core serializing instruction since
    /// the call.
    ///
    /// # Errors
    ///
    /// Fails if that is impossible.
    fn sync(&mut self) -> Result<(), Self::Error>;

    /// Returns true if another program, for example a debugger, may change text between a read and
    /// a write. Then no write holds bytes of more than one site.
    fn is_shared(&self) -> bool {
        false
    }

    /// Returns true if no other thread runs, and none starts before the batch is written.
    fn is_alone(&self) -> bool {
        false
    }
}

/// The reason that a batch was not applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TextWriteError<E> {
    /// The batch is not sorted by address, or two of its sites overlap. Nothing was written.
    Order {
        /// Index of the first site that starts before the end of the previous one, or that ends
        /// outside of the address space.
        index: usize,
    },
    /// The new bytes do not trap where an old instruction starts, or the other way round. Nothing
    /// was written.
    Unsafe {
        /// Index of the site.
        index: usize,
    },
    /// The text could not be read; every site is as it was.
    Read {
        /// The start address of the read.
        address: usize,
        /// The error of [`Text::read`].
        error: E,
    },
    /// The text could not be written; every site is as it was.
    Write {
        /// The start address of the write.
        address: usize,
        /// The error of [`Text::write`].
        error: E,
    },
    /// The other CPUs could not be synchronized; every site is as it was.
    Sync {
        /// The error of [`Text::sync`].
        error: E,
    },
    /// A step failed, and so did undoing the steps before it.
    ///
    /// Each site of the batch is whole, but from `address` on it may be the old instruction, the
    /// new one or an `int3`: the trap handler must keep its records of them.
    Stuck {
        /// The first site that could not be restored.
        address: usize,
        /// The first failure.
        error: E,
    },
}

impl<E: fmt::Display> fmt::Display for TextWriteError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Order { index } => {
                write!(f, "site {index} of the batch is out of order or overlaps")
            }
            Self::Unsafe { index } => {
                write!(
                    f,
                    "site {index} of the batch has an instruction within that would not trap"
                )
            }
            Self::Read { address, error } => write!(f, "cannot read text at {address:#x}: {error}"),
            Self::Write { address, error } => {
                write!(f, "cannot write text at {address:#x}: {error}")
            }
            Self::Sync { error } => write!(f, "cannot synchronize the other CPUs: {error}"),
            Self::Stuck { address, error } => write!(
                f,
                "patching failed ({error}) and could not be undone from {address:#x} on"
            ),
        }
    }
}

impl<E: core::error::Error + 'static> core::error::Error for TextWriteError<E> {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Order { .. } | Self::Unsafe { .. } => None,
            Self::Read { error, .. }
            | Self::Write { error, .. }
            | Self::Sync { error }
            | Self::Stuck { error, .. } => Some(error),
        }
    }
}

bitflags::bitflags! {
    /// Steps of the protocol to leave out: a test of the protocol has to be able to fail.
    #[doc(hidden)]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct Skip: u8 {
        /// No `int3`: the tail is written under the old first byte.
        const TRAP = 1;
        /// No synchronization of the other CPUs.
        const SYNC = 2;
        /// For the maker of the batch: several instructions count as one.
        const INNER = 4;
    }
}

/// Exchanges the instructions of `writes`, which are sorted by address. Returns how many it
/// exchanged.
///
/// Calls `refused` for a site whose bytes are not `old`, with its index and the bytes found (those
/// that do not count are as in `old`), and writes nothing there. Skips a site with equal `old` and
/// `new` without reading it.
///
/// `refused` is called before anything is written.
///
/// # Errors
///
/// Fails with a [`TextWriteError`]. After all of them except [`TextWriteError::Stuck`] every site
/// is as before.
pub fn apply<T: Text>(
    text: &mut T,
    writes: &[TextWrite],
    refused: impl FnMut(usize, [u8; SITE_LEN]),
) -> Result<usize, TextWriteError<T::Error>> {
    apply_with(text, writes, refused, Skip::empty())
}

/// Checks that `writes` are sorted by address and do not overlap, and that a thread between two
/// instructions of the old or the new bytes of each traps in the other bytes.
///
/// # Errors
///
/// Fails with [`TextWriteError::Order`] or [`TextWriteError::Unsafe`].
pub fn check<E>(writes: &[TextWrite]) -> Result<(), TextWriteError<E>> {
    for (index, write) in writes.iter().enumerate() {
        let after_last = index == 0 || writes[index - 1].end() <= Some(write.address);
        if write.end().is_none() || !after_last {
            return Err(TextWriteError::Order { index });
        }
        if !write.is_safe() {
            return Err(TextWriteError::Unsafe { index });
        }
    }
    Ok(())
}

/// Does the same as [`apply`], without the steps to `skip`.
///
/// # Errors
///
/// Fails like [`apply`].
#[doc(hidden)]
pub fn apply_with<T: Text>(
    text: &mut T,
    writes: &[TextWrite],
    refused: impl FnMut(usize, [u8; SITE_LEN]),
    skip: Skip,
) -> Result<usize, TextWriteError<T::Error>> {
    check(writes)?;
    let mut batch = Batch {
        group: if text.is_shared() { 1 } else { PAGE },
        text,
        writes,
        active: vec![0; writes.len().div_ceil(64)],
        copy: [0; PAGE + SITE_LEN],
        skip,
    };
    let patched = batch.verify(refused)?;
    if patched == 0 {
        return Ok(0);
    }
    match batch.run() {
        Ok(()) => Ok(patched),
        Err(failed) => Err(match batch.undo(failed.phase, failed.reached) {
            Some(address) => TextWriteError::Stuck {
                address,
                error: failed.error.into_inner(),
            },
            None => failed.error,
        }),
    }
}

impl<E> TextWriteError<E> {
    /// Returns the error of [`Text`]; must not be called for errors of another origin.
    fn into_inner(self) -> E {
        match self {
            Self::Order { .. } | Self::Unsafe { .. } => {
                unreachable!("checked before anything is written")
            }
            Self::Read { error, .. }
            | Self::Write { error, .. }
            | Self::Sync { error }
            | Self::Stuck { error, .. } => error,
        }
    }
}

/// A step of the protocol, by what it writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// The only phase.
    Whole,
    Trap,
    Tail,
    Head,
}

/// The bytes that [`Batch::write`] writes to a site.
#[derive(Clone, Copy)]
enum Part {
    /// All bytes of that version.
    Whole(Version),
    /// `int3`, wherever an instruction of that version starts.
    Trap(Version),
    /// The bytes of that version at which none of its instructions starts.
    Tail(Version),
    /// The bytes at which an instruction starts.
    Head(Version),
}

impl Part {
    /// Returns the byte for `at` of a site; `None` if it stays unchanged.
    fn byte(self, write: &TextWrite, at: usize) -> Option<u8> {
        if at >= write.len {
            return None;
        }
        let (Self::Whole(version)
        | Self::Trap(version)
        | Self::Tail(version)
        | Self::Head(version)) = self;
        let content = match version {
            Version::Old => &write.old,
            Version::New => &write.new,
        };
        match (self, content.starts_at(at)) {
            (Self::Trap(_), true) => Some(INT3),
            (Self::Whole(_), _) | (Self::Head(_), true) | (Self::Tail(_), false) => {
                Some(content.bytes[at])
            }
            _ => None,
        }
    }
}

#[derive(Clone, Copy)]
enum Version {
    Old,
    New,
}

/// The point at which [`Batch::run`] stopped.
struct Failed<E> {
    phase: Phase,
    /// Index after the last site that may have been written in this phase.
    reached: usize,
    error: TextWriteError<E>,
}

struct Batch<'a, T> {
    text: &'a mut T,
    writes: &'a [TextWrite],
    /// One bit per site: set if it takes part.
    active: Vec<u64>,
    /// Sites within this many bytes of text are written at once.
    group: usize,
    /// The bytes from the first to the last site of a page.
    copy: [u8; PAGE + SITE_LEN],
    skip: Skip,
}

impl<T: Text> Batch<'_, T> {
    fn is_active(&self, index: usize) -> bool {
        self.active[index / 64] >> (index % 64) & 1 != 0
    }

    fn activate(&mut self, index: usize) {
        self.active[index / 64] |= 1 << (index % 64);
    }

    fn deactivate(&mut self, group: Range<usize>) {
        for index in group {
            self.active[index / 64] &= !(1 << (index % 64));
        }
    }

    /// Returns the sites from `start` on that are written at once.
    fn group_from(&self, start: usize) -> Range<usize> {
        let page = |write: &TextWrite| write.address / self.group;
        let first = page(&self.writes[start]);
        let len = self.writes[start..]
            .iter()
            .take_while(|write| page(write) == first)
            .count();
        start..start + len
    }

    /// Returns the sites before `end` that are written at once.
    fn group_before(&self, end: usize) -> Range<usize> {
        let page = |write: &TextWrite| write.address / self.group;
        let last = page(&self.writes[end - 1]);
        let len = self.writes[..end]
            .iter()
            .rev()
            .take_while(|write| page(write) == last)
            .count();
        end - len..end
    }

    /// Sets the bits of the sites with the expected bytes, and returns their number.
    fn verify(
        &mut self,
        mut refused: impl FnMut(usize, [u8; SITE_LEN]),
    ) -> Result<usize, TextWriteError<T::Error>> {
        let mut count = 0;
        let mut next = 0;
        while next < self.writes.len() {
            let group = self.group_from(next);
            next = group.end;
            let wanted = |&index: &usize| self.writes[index].old != self.writes[index].new;
            let Some(first) = group.clone().find(wanted) else {
                continue;
            };
            let last = group.clone().rfind(wanted).unwrap_or(first);
            let from = self.writes[first].address;
            let len = self.writes[last].address + self.writes[last].len - from;
            let copy = &mut self.copy[..len];
            self.text
                .read(from, copy)
                .map_err(|error| TextWriteError::Read {
                    address: from,
                    error,
                })?;
            for index in first..=last {
                let write = self.writes[index];
                if write.old == write.new {
                    continue;
                }
                let mut found = write.old.bytes;
                found[..write.len].copy_from_slice(&self.copy[write.address - from..][..write.len]);
                if found == write.old.bytes {
                    self.activate(index);
                    count += 1;
                } else {
                    refused(index, found);
                }
            }
        }
        Ok(count)
    }

    /// Runs the three phases, or the only one.
    fn run(&mut self) -> Result<(), Failed<T::Error>> {
        if self.text.is_alone()
            && self.skip.is_empty()
            && self.writes.iter().all(TextWrite::is_on_page)
        {
            return self.phase(Phase::Whole, Part::Whole(Version::New));
        }
        if !self.skip.contains(Skip::TRAP) {
            self.phase(Phase::Trap, Part::Trap(Version::Old))?;
        }
        self.phase(Phase::Tail, Part::Tail(Version::New))?;
        self.phase(Phase::Head, Part::Head(Version::New))
    }

    fn phase(&mut self, phase: Phase, part: Part) -> Result<(), Failed<T::Error>> {
        let mut next = 0;
        while next < self.writes.len() {
            let group = self.group_from(next);
            next = group.end;
            self.write(group, part).map_err(|error| Failed {
                phase,
                reached: next,
                error,
            })?;
        }
        self.sync().map_err(|error| Failed {
            phase,
            reached: next,
            error: TextWriteError::Sync { error },
        })
    }

    /// Undoes `phase` for the sites before `reached`, and the phases before it for all sites.
    ///
    /// Returns the address of the first site that could not be restored.
    fn undo(&mut self, phase: Phase, reached: usize) -> Option<usize> {
        let mut stuck = None;

        if phase == Phase::Whole {
            self.each_group_back(reached, &mut stuck, |batch, group| {
                batch.write(group, Part::Whole(Version::Old)).is_ok()
            });
            // The only thread is here.
            let _ = self.sync();
            return stuck;
        }
        if phase == Phase::Head {
            // The new instruction may be live: stop it before its tail is changed.
            self.each_group_back(reached, &mut stuck, |batch, group| {
                let trap = batch.write(group.clone(), Part::Trap(Version::New));
                if trap.is_err() {
                    // A part of the page may be int3 now. Its tails are all new, so write the new
                    // heads.
                    let _ = batch.write(group, Part::Head(Version::New));
                }
                trap.is_ok()
            });
            if self.sync().is_err() {
                // No tail can be changed without the sync, so the way back is closed: finish the
                // way forward, with tails that all threads have seen.
                self.each_group_back(self.writes.len(), &mut stuck, |batch, group| {
                    let _ = batch.write(group, Part::Head(Version::New));
                    false
                });
                return stuck;
            }
        }

        if phase >= Phase::Tail {
            // In the head phase the tails of all sites are new.
            let tails = if phase == Phase::Tail {
                reached
            } else {
                self.writes.len()
            };
            self.each_group_back(tails, &mut stuck, |batch, group| {
                // A site that cannot be written stays behind its int3: its tail may be anything.
                batch.write(group, Part::Tail(Version::Old)).is_ok()
            });
            if self.sync().is_err() {
                // A thread may not have seen the old tails: these sites stay an int3.
                self.each_group_back(tails, &mut stuck, |_, _| false);
            }
        }

        let heads = if phase == Phase::Trap {
            reached
        } else {
            self.writes.len()
        };
        self.each_group_back(heads, &mut stuck, |batch, group| {
            batch.write(group, Part::Head(Version::Old)).is_ok()
        });
        // Without the sync some CPU may trap for a little longer, which the handler covers.
        let _ = self.sync();
        stuck
    }

    /// Calls `step` for the groups before `end`, the last one first. A group for which it returns
    /// false is left unchanged from then on, and `stuck` is its first site.
    fn each_group_back(
        &mut self,
        end: usize,
        stuck: &mut Option<usize>,
        mut step: impl FnMut(&mut Self, Range<usize>) -> bool,
    ) {
        let mut next = end;
        while next > 0 {
            let group = self.group_before(next);
            next = group.start;
            let Some(first) = group.clone().find(|&index| self.is_active(index)) else {
                continue;
            };
            if !step(self, group.clone()) {
                let address = self.writes[first].address;
                *stuck = Some(stuck.map_or(address, |stuck| stuck.min(address)));
                self.deactivate(group);
            }
        }
    }

    /// Writes `part` of the active sites of a group, with one write.
    fn write(&mut self, group: Range<usize>, part: Part) -> Result<(), TextWriteError<T::Error>> {
        // Breakpoints, and sites at whose every byte an instruction starts, have no tail.
        let range = |index: usize| {
            let write = &self.writes[index];
            let concerned = |&at: &usize| part.byte(write, at).is_some();
            let first = (0..SITE_LEN).find(concerned)?;
            let last = (0..SITE_LEN).rfind(concerned)?;
            Some(write.address + first..write.address + last + 1)
        };
        let active = || group.clone().filter(|&index| self.is_active(index));
        let ranges = || active().filter_map(range);
        let (Some(first), Some(last)) = (ranges().next(), ranges().next_back()) else {
            return Ok(());
        };
        let address = first.start;
        let len = last.end - address;
        self.text
            .read(address, &mut self.copy[..len])
            .map_err(|error| TextWriteError::Read { address, error })?;
        for index in group {
            if !self.is_active(index) {
                continue;
            }
            let write = &self.writes[index];
            for at in 0..SITE_LEN {
                if let Some(byte) = part.byte(write, at) {
                    self.copy[write.address + at - address] = byte;
                }
            }
        }
        self.text
            .write(address, &self.copy[..len])
            .map_err(|error| TextWriteError::Write { address, error })
    }

    fn sync(&mut self) -> Result<(), T::Error> {
        if self.skip.contains(Skip::SYNC) {
            return Ok(());
        }
        self.text.sync()
    }
}

#[cfg(test)]
mod tests;
