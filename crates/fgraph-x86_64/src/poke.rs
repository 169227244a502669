//! Exchanges instructions of five bytes while other threads run through them.
//!
//! # The protocol
//!
//! A CPU may fetch the bytes of an instruction at different times, so a store next to which another
//! CPU executes can be seen in parts. Only the first byte can be exchanged alone, and only for a
//! whole instruction of one byte, `int3`. So, for all sites of a batch at once:
//!
//! ```text
//!   phase        bytes of a site        a thread that comes by
//!                +--+--+--+--+--+
//!                |0f|1f|44|00|08|       runs the old instruction
//!                +--+--+--+--+--+
//!   1  trap      |cc|1f|44|00|08|       runs the old one, or traps
//!      sync      +--+--+--+--+--+       now nobody runs the old one
//!   2  tail      |cc|rr|rr|rr|rr|       traps
//!      sync      +--+--+--+--+--+       now everybody sees the new tail
//!   3  head      |e9|rr|rr|rr|rr|       traps, or runs the new one
//!      sync      +--+--+--+--+--+       now nobody traps
//! ```
//!
//! *Sync* makes every CPU that runs a thread of this process drop what it has fetched:
//! `membarrier(PRIVATE_EXPEDITED_SYNC_CORE)`. A thread that traps is continued by the handler (see
//! [`trap`](crate::trap)) as if the new instruction had run, so nobody waits.
//!
//! # Several instructions
//!
//! Where the five bytes hold several instructions, a thread may have been preempted between two of
//! them, stand there for any length of time, or come back there from a signal handler. So every byte
//! at which one of them starts becomes an `int3` too, and *never anything that does not trap* while
//! the jump is there: the jump is chosen so that its operand has such bytes in these places (see
//! [`pun`]). For `push rbp; mov rbp, rsp; ...`, where instructions start at 0, 1 and 4:
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
//! The handler continues a thread that traps inside in the relocated copy of the instruction that
//! stood there. On the way back the heads of all instructions come last, each of them a single byte
//! behind which everything is as it was.
//!
//! # Breakpoints
//!
//! Where no jump has room, the `int3` of the first phase may be all that there is to write, and stay:
//! then every call traps. Of such a site only the first byte is read, compared and written; those
//! behind it may be sites of their own, which change whether this one does or not.
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
//! # Writes
//!
//! Sites are grouped by the page their first byte is on. A phase writes each group with one write,
//! from its first site to its last; the bytes between sites are written with what was read there
//! just before:
//!
//! ```text
//!     page                                                            page
//!      |...xxxxx.......xxxxx.....xxxxx.............................xxx|xx......
//!   1  |   W---------------------W---------------------------------W  |
//!   2  |    ----------------------------------------------------------|-
//!   3  |   W---------------------W---------------------------------W  |
//! ```
//!
//! A site that straddles two pages belongs to the first. Its tail reaches into the second page, but
//! never up to another site. Where nothing is to be written in a phase, nothing is.
//!
//! # Failures
//!
//! When a step fails, the steps before it are undone in the reverse order with the same care, and
//! every site is as it was. Where that fails too, the site stays an `int3`, which threads survive,
//! or the new instruction, and the error says so: [`PokeError::Stuck`].

use alloc::{vec, vec::Vec};
use core::fmt;
use core::ops::Range;

use crate::nop::SITE_LEN;
use crate::pun;

/// The breakpoint instruction.
pub const INT3: u8 = 0xcc;

const PAGE: usize = 4096;

/// What the five bytes of a site are, or are to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Content {
    /// The bytes.
    pub bytes: [u8; SITE_LEN],
    /// Bit *k* is set if an instruction starts at byte *k*; bit 0 always is.
    pub starts: u8,
}

impl Content {
    /// A single instruction, of five bytes or more.
    #[must_use]
    pub const fn one(bytes: [u8; SITE_LEN]) -> Self {
        Self { bytes, starts: 1 }
    }

    /// Whether an instruction starts at byte `at`.
    const fn starts_at(&self, at: usize) -> bool {
        at == 0 || self.starts >> at & 1 != 0
    }

    /// Whether a thread that goes on at byte `at` because an instruction of `other` starts there traps
    /// here.
    fn traps_within(&self, other: &Self, at: usize) -> bool {
        !other.starts_at(at) || pun::traps(at, self.bytes[at])
    }
}

/// Code to exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Poke {
    /// Where it is.
    pub address: usize,
    /// How many bytes are exchanged: 1 for an `int3` that stays, 2 for a short jump, 5 for a jump. The
    /// other bytes of `old` and `new` do not count.
    pub len: usize,
    /// What has to be there now.
    pub old: Content,
    /// What to write.
    pub new: Content,
}

impl Poke {
    /// The address behind them, if it is in the address space.
    const fn end(&self) -> Option<usize> {
        self.address.checked_add(self.len)
    }

    /// Whether a thread between two instructions of either content traps in the other.
    fn is_safe(&self) -> bool {
        let (old, new) = (&self.old, &self.new);
        (1..self.len).all(|at| new.traps_within(old, at) && old.traps_within(new, at))
    }
}

/// Access to the program text, as [`apply`] needs it. The methods must not panic.
pub trait Text {
    /// Why an access failed.
    type Error;

    /// Fills `into` with the bytes from `address` on.
    ///
    /// # Errors
    ///
    /// If not all of them can be read.
    fn read(&mut self, address: usize, into: &mut [u8]) -> Result<(), Self::Error>;

    /// Writes `bytes` from `address` on.
    ///
    /// `bytes` are at most a page and four bytes, and may reach into the next page.
    ///
    /// # Errors
    ///
    /// If not all of them can be written. Some of them may have been.
    fn write(&mut self, address: usize, bytes: &[u8]) -> Result<(), Self::Error>;

    /// Returns when every thread of the process has executed a core serializing instruction since
    /// the call.
    ///
    /// # Errors
    ///
    /// If that cannot be had.
    fn sync(&mut self) -> Result<(), Self::Error>;
}

/// Why a batch was not applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PokeError<E> {
    /// The batch is not sorted by address, or two of its sites overlap. Nothing was written.
    Order {
        /// Index of the first site that starts before the end of the one before it, or that does
        /// not end within the address space.
        index: usize,
    },
    /// The new bytes do not trap where an old instruction starts, or the other way round. Nothing was
    /// written.
    Unsafe {
        /// Index of the site.
        index: usize,
    },
    /// The text could not be read; every site is as it was.
    Read {
        /// Where the read started.
        address: usize,
        /// What [`Text::read`] said.
        error: E,
    },
    /// The text could not be written; every site is as it was.
    Write {
        /// Where the write started.
        address: usize,
        /// What [`Text::write`] said.
        error: E,
    },
    /// The other CPUs could not be synchronized; every site is as it was.
    Sync {
        /// What [`Text::sync`] said.
        error: E,
    },
    /// A step failed, and so did undoing those before it.
    ///
    /// Each site of the batch is whole, but from `address` on it may be the old instruction, the
    /// new one or an `int3`: the trap handler has to go on knowing them.
    Stuck {
        /// The first site that could not be put back.
        address: usize,
        /// The failure that came first.
        error: E,
    },
}

impl<E: fmt::Display> fmt::Display for PokeError<E> {
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

impl<E: core::error::Error + 'static> core::error::Error for PokeError<E> {
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
        /// For whoever makes the batch: several instructions are taken for one.
        const INNER = 4;
    }
}

/// Exchanges the instructions of `pokes`, sorted by address, and returns how many it exchanged.
///
/// A site whose bytes are not `old` is handed to `refused` with its index and the bytes found (those
/// that do not count are as in `old`), and nothing is written there. A site whose `old` and `new` are the same is passed over unread.
///
/// `refused` is called before anything is written.
///
/// # Errors
///
/// See [`PokeError`]. After all of them but [`PokeError::Stuck`] every site is as it was.
pub fn apply<T: Text>(
    text: &mut T,
    pokes: &[Poke],
    refused: impl FnMut(usize, [u8; SITE_LEN]),
) -> Result<usize, PokeError<T::Error>> {
    apply_with(text, pokes, refused, Skip::empty())
}

/// [`apply`], but for the steps to `skip`.
///
/// # Errors
///
/// As [`apply`].
#[doc(hidden)]
pub fn apply_with<T: Text>(
    text: &mut T,
    pokes: &[Poke],
    refused: impl FnMut(usize, [u8; SITE_LEN]),
    skip: Skip,
) -> Result<usize, PokeError<T::Error>> {
    for (index, poke) in pokes.iter().enumerate() {
        let after_last = index == 0 || pokes[index - 1].end() <= Some(poke.address);
        if poke.end().is_none() || !after_last {
            return Err(PokeError::Order { index });
        }
        if !poke.is_safe() {
            return Err(PokeError::Unsafe { index });
        }
    }
    let mut batch = Batch {
        text,
        pokes,
        active: vec![0; pokes.len().div_ceil(64)],
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
            Some(address) => PokeError::Stuck {
                address,
                error: failed.error.into_inner(),
            },
            None => failed.error,
        }),
    }
}

impl<E> PokeError<E> {
    /// What [`Text`] said. Not for the errors which it has no part in.
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
    Trap,
    Tail,
    Head,
}

/// What [`Batch::write`] puts into a site.
#[derive(Clone, Copy)]
enum Part {
    /// `int3`, wherever an instruction of that version starts.
    Trap(Version),
    /// The bytes of that version at which none of its instructions starts.
    Tail(Version),
    /// Those at which one does.
    Head(Version),
}

impl Part {
    /// The byte that belongs at `at` of a site; `None` if it stays as it is.
    fn byte(self, poke: &Poke, at: usize) -> Option<u8> {
        if at >= poke.len {
            return None;
        }
        let (Self::Trap(version) | Self::Tail(version) | Self::Head(version)) = self;
        let content = match version {
            Version::Old => &poke.old,
            Version::New => &poke.new,
        };
        match (self, content.starts_at(at)) {
            (Self::Trap(_), true) => Some(INT3),
            (Self::Head(_), true) | (Self::Tail(_), false) => Some(content.bytes[at]),
            _ => None,
        }
    }
}

#[derive(Clone, Copy)]
enum Version {
    Old,
    New,
}

/// Where [`Batch::run`] stopped.
struct Failed<E> {
    phase: Phase,
    /// Index behind the last site that may have been written in this phase.
    reached: usize,
    error: PokeError<E>,
}

struct Batch<'a, T> {
    text: &'a mut T,
    pokes: &'a [Poke],
    /// One bit per site: whether it takes part.
    active: Vec<u64>,
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

    /// The sites from `start` on that are on one page.
    fn group_from(&self, start: usize) -> Range<usize> {
        let page = |poke: &Poke| poke.address / PAGE;
        let first = page(&self.pokes[start]);
        let len = self.pokes[start..]
            .iter()
            .take_while(|poke| page(poke) == first)
            .count();
        start..start + len
    }

    /// The sites before `end` that are on one page.
    fn group_before(&self, end: usize) -> Range<usize> {
        let page = |poke: &Poke| poke.address / PAGE;
        let last = page(&self.pokes[end - 1]);
        let len = self.pokes[..end]
            .iter()
            .rev()
            .take_while(|poke| page(poke) == last)
            .count();
        end - len..end
    }

    /// Sets the bits of the sites that are what they should be, and returns how many they are.
    fn verify(
        &mut self,
        mut refused: impl FnMut(usize, [u8; SITE_LEN]),
    ) -> Result<usize, PokeError<T::Error>> {
        let mut count = 0;
        let mut next = 0;
        while next < self.pokes.len() {
            let group = self.group_from(next);
            next = group.end;
            let wanted = |&index: &usize| self.pokes[index].old != self.pokes[index].new;
            let Some(first) = group.clone().find(wanted) else {
                continue;
            };
            let last = group.clone().rfind(wanted).unwrap_or(first);
            let from = self.pokes[first].address;
            let len = self.pokes[last].address + self.pokes[last].len - from;
            let copy = &mut self.copy[..len];
            self.text
                .read(from, copy)
                .map_err(|error| PokeError::Read {
                    address: from,
                    error,
                })?;
            for index in first..=last {
                let poke = self.pokes[index];
                if poke.old == poke.new {
                    continue;
                }
                let mut found = poke.old.bytes;
                found[..poke.len].copy_from_slice(&self.copy[poke.address - from..][..poke.len]);
                if found == poke.old.bytes {
                    self.activate(index);
                    count += 1;
                } else {
                    refused(index, found);
                }
            }
        }
        Ok(count)
    }

    /// The three phases.
    fn run(&mut self) -> Result<(), Failed<T::Error>> {
        if !self.skip.contains(Skip::TRAP) {
            self.phase(Phase::Trap, Part::Trap(Version::Old))?;
        }
        self.phase(Phase::Tail, Part::Tail(Version::New))?;
        self.phase(Phase::Head, Part::Head(Version::New))
    }

    fn phase(&mut self, phase: Phase, part: Part) -> Result<(), Failed<T::Error>> {
        let mut next = 0;
        while next < self.pokes.len() {
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
            error: PokeError::Sync { error },
        })
    }

    /// Undoes `phase` for the sites before `reached`, and the phases before it for all.
    ///
    /// Returns the address of the first site that could not be put back.
    fn undo(&mut self, phase: Phase, reached: usize) -> Option<usize> {
        let mut stuck = None;

        if phase == Phase::Head {
            // The new instruction may be live: stop it before its tail is touched.
            self.each_group_back(reached, &mut stuck, |batch, group| {
                let trap = batch.write(group.clone(), Part::Trap(Version::New));
                if trap.is_err() {
                    // A part of the page may be int3 now. Its tails are all new: better whole.
                    let _ = batch.write(group, Part::Head(Version::New));
                }
                trap.is_ok()
            });
            if self.sync().is_err() {
                // No tail can be touched without it, so the way back is shut: finish the way
                // forward, where the tails are known to everybody.
                self.each_group_back(self.pokes.len(), &mut stuck, |batch, group| {
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
                self.pokes.len()
            };
            self.each_group_back(tails, &mut stuck, |batch, group| {
                // What cannot be written stays behind its int3: the tail may be anything.
                batch.write(group, Part::Tail(Version::Old)).is_ok()
            });
            if self.sync().is_err() {
                // Somebody may not have seen the old tails: these sites stay an int3.
                self.each_group_back(tails, &mut stuck, |_, _| false);
            }
        }

        let heads = if phase == Phase::Trap {
            reached
        } else {
            self.pokes.len()
        };
        self.each_group_back(heads, &mut stuck, |batch, group| {
            batch.write(group, Part::Head(Version::Old)).is_ok()
        });
        // Without it some CPU may trap for a little longer, which the handler is there for.
        let _ = self.sync();
        stuck
    }

    /// Does `step` for the groups before `end`, the last one first. A group for which it says no is
    /// left alone from then on, and `stuck` is its first site.
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
                let address = self.pokes[first].address;
                *stuck = Some(stuck.map_or(address, |stuck| stuck.min(address)));
                self.deactivate(group);
            }
        }
    }

    /// Writes `part` of the active sites of a group, with one write.
    fn write(&mut self, group: Range<usize>, part: Part) -> Result<(), PokeError<T::Error>> {
        // Breakpoints, and sites whose bytes all start an instruction, have no tail.
        let range = |index: usize| {
            let poke = &self.pokes[index];
            let concerned = |&at: &usize| part.byte(poke, at).is_some();
            let first = (0..SITE_LEN).find(concerned)?;
            let last = (0..SITE_LEN).rfind(concerned)?;
            Some(poke.address + first..poke.address + last + 1)
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
            .map_err(|error| PokeError::Read { address, error })?;
        for index in group {
            if !self.is_active(index) {
                continue;
            }
            let poke = &self.pokes[index];
            for at in 0..SITE_LEN {
                if let Some(byte) = part.byte(poke, at) {
                    self.copy[poke.address + at - address] = byte;
                }
            }
        }
        self.text
            .write(address, &self.copy[..len])
            .map_err(|error| PokeError::Write { address, error })
    }

    fn sync(&mut self) -> Result<(), T::Error> {
        if self.skip.contains(Skip::SYNC) {
            return Ok(());
        }
        self.text.sync()
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::{Content, INT3, PAGE, Poke, PokeError, Skip, Text, apply, apply_with};
    use crate::nop::SITE_LEN;
    use crate::pun::traps;
    use std::collections::{BTreeMap, BTreeSet};
    use std::string::ToString;
    use std::vec::Vec;
    use std::{format, vec};

    const BASE: usize = 0x40_0000;
    const NOP: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x08];

    /// Which call of the text fails, counted over reads, writes and syncs.
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Fail {
        Never,
        /// This one only; a write still writes so many eighths of its bytes.
        Once(usize, usize),
        /// This one and all after it.
        From(usize, usize),
        /// This one, and another one so many calls later.
        Twice(usize, usize, usize),
        /// This one, and about half of those after it, chosen by a seed.
        Often(usize, usize, u64),
        /// Every sync from this call on.
        Syncs(usize),
    }

    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Kind {
        Read,
        /// A write of `int3`.
        Trap,
        /// Any other.
        Write,
        Sync,
    }

    /// What the program text looks like to a CPU that may have fetched any byte at any time since
    /// the last sync.
    #[derive(Clone)]
    struct Model {
        bytes: Vec<u8>,
        /// All values that a byte had since the last sync, where it had more than one.
        seen: BTreeMap<usize, BTreeSet<u8>>,
        sites: Vec<Poke>,
        calls: usize,
        fail: Fail,
        /// The calls that failed.
        failed: Vec<(usize, Kind)>,
        /// Address and length of each write.
        writes: Vec<(usize, usize)>,
        syncs: usize,
        violations: Vec<std::string::String>,
    }

    #[derive(Debug, Clone, Copy, PartialEq)]
    struct Refused(usize);

    impl std::fmt::Display for Refused {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "call {} refused", self.0)
        }
    }

    impl std::error::Error for Refused {}

    impl Model {
        /// `pages` pages of noise with `old` at the address of each site.
        fn new(pages: usize, sites: &[Poke]) -> Self {
            let mut random = Random(pages as u64 + 1);
            let mut bytes: Vec<u8> = (0..pages * PAGE).map(|_| random.next() as u8).collect();
            for site in sites {
                bytes[site.address - BASE..][..site.len].copy_from_slice(bytes_of(site, &site.old));
            }
            Self {
                bytes,
                seen: BTreeMap::new(),
                sites: sites.to_vec(),
                calls: 0,
                fail: Fail::Never,
                failed: Vec::new(),
                writes: Vec::new(),
                syncs: 0,
                violations: Vec::new(),
            }
        }

        /// `Err` and how many eighths of a write happen all the same.
        fn call(&mut self, kind: Kind) -> Result<(), (Refused, usize)> {
            let call = self.calls;
            self.calls += 1;
            let (fails, part) = match self.fail {
                Fail::Never => (false, 0),
                Fail::Once(at, part) => (call == at, part),
                Fail::From(at, part) => (call >= at, part),
                Fail::Twice(at, later, part) => (call == at || call == at + later, part),
                Fail::Often(at, part, seed) => {
                    let coin = Random(seed + call as u64 + 1).next() >> 20 & 1 != 0;
                    (call == at || call > at && coin, part)
                }
                Fail::Syncs(at) => (call >= at && kind == Kind::Sync, 0),
            };
            if !fails {
                return Ok(());
            }
            self.failed.push((call, kind));
            Err((Refused(call), part))
        }

        fn site(&self, site: &Poke) -> &[u8] {
            &self.bytes[site.address - BASE..][..site.len]
        }

        fn values(&self, address: usize) -> Vec<u8> {
            let now = self.bytes[address - BASE];
            match self.seen.get(&address) {
                Some(values) => values.iter().copied().collect(),
                None => vec![now],
            }
        }

        /// Every mix of bytes that a CPU may have fetched, from any place at which a thread may go on,
        /// traps or is an instruction of the old or of the new content.
        fn check(&mut self) {
            for site in self.sites.clone() {
                let len = site.len;
                let bytes: Vec<Vec<u8>> = (0..len).map(|i| self.values(site.address + i)).collect();
                let starts = site.old.starts | site.new.starts;
                for start in (0..len).filter(|&i| starts >> i & 1 != 0) {
                    let whole = |content: &Content, first| {
                        let starts = |i: &usize| content.starts >> *i & 1 != 0;
                        let end = (start + 1..len).find(starts).unwrap_or(len);
                        starts(&start)
                            && content.bytes[start] == first
                            && (start + 1..end).all(|i| bytes[i] == [content.bytes[i]])
                    };
                    let fetched = |first: &&u8| match start {
                        0 => **first != INT3,
                        _ => !traps(start, **first),
                    };
                    for &first in bytes[start].iter().filter(fetched) {
                        if !whole(&site.old, first) && !whole(&site.new, first) {
                            self.violations
                                .push(format!("{site:x?} seen as {bytes:x?} from {start}"));
                        }
                    }
                }
            }
        }
    }

    impl Text for Model {
        type Error = Refused;

        fn read(&mut self, address: usize, into: &mut [u8]) -> Result<(), Refused> {
            self.call(Kind::Read).map_err(|(error, _)| error)?;
            into.copy_from_slice(&self.bytes[address - BASE..][..into.len()]);
            Ok(())
        }

        fn write(&mut self, address: usize, bytes: &[u8]) -> Result<(), Refused> {
            let call = self.call(if bytes[0] == INT3 {
                Kind::Trap
            } else {
                Kind::Write
            });
            self.writes.push((address, bytes.len()));
            let len = match call {
                Ok(()) => bytes.len(),
                Err((_, part)) => bytes.len() * part / 8,
            };
            for (address, &byte) in (address..).zip(&bytes[..len]) {
                let old = std::mem::replace(&mut self.bytes[address - BASE], byte);
                if old != byte {
                    self.seen.entry(address).or_default().extend([old, byte]);
                }
            }
            self.check();
            call.map_err(|(error, _)| error)
        }

        fn sync(&mut self) -> Result<(), Refused> {
            self.call(Kind::Sync).map_err(|(error, _)| error)?;
            self.syncs += 1;
            self.seen.clear();
            self.check();
            Ok(())
        }
    }

    /// xorshift64
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0
        }

        fn below(&mut self, end: usize) -> usize {
            (self.next() % end as u64) as usize
        }
    }

    fn jump(target: u32) -> [u8; 5] {
        let [a, b, c, d] = target.to_le_bytes();
        [0xe9, a, b, c, d]
    }

    /// A NOP to patch at each offset.
    fn nops(offsets: &[usize]) -> Vec<Poke> {
        offsets
            .iter()
            .map(|&offset| Poke {
                address: BASE + offset,
                len: SITE_LEN,
                old: Content::one(NOP),
                new: Content::one(jump(0x1122_3344 + offset as u32)),
            })
            .collect()
    }

    /// Several instructions to patch at each offset: every pattern of starts in turn.
    fn several(offsets: &[usize]) -> Vec<Poke> {
        let poke = |(index, &offset): (usize, &usize)| {
            let starts = (index * 2 % 32) as u8 | 1;
            let mut operand = (0x1122_3344 + offset as u32).to_le_bytes();
            for at in (1..5).filter(|at| starts >> at & 1 != 0) {
                operand[at - 1] = match at {
                    4 if index % 3 == 0 => 0x3f,
                    _ => INT3,
                };
            }
            Poke {
                address: BASE + offset,
                len: SITE_LEN,
                old: Content {
                    bytes: [0x55, 0x48, 0x89, 0xe5, 0x53],
                    starts,
                },
                new: Content::one(jump(u32::from_le_bytes(operand))),
            }
        };
        offsets.iter().enumerate().map(poke).collect()
    }

    /// A function of which only the first byte can be patched.
    fn breakpoint(address: usize) -> Poke {
        let bytes = |first| [first, 1, 2, 3, 4];
        Poke {
            address,
            len: 1,
            // Differs from site to site.
            old: Content::one(bytes(address as u8 % 64)),
            new: Content::one(bytes(INT3)),
        }
    }

    /// Makes breakpoints of some of the sites, and puts more of them before others and behind them, as
    /// far as there is room: at every distance, and several in a row.
    fn with_breakpoints(pokes: Vec<Poke>) -> Vec<Poke> {
        let mut all: Vec<Poke> = vec![];
        for (index, poke) in pokes.into_iter().enumerate() {
            let end = all.last().map_or(BASE, |last| last.end().unwrap());
            for distance in (1..=4)
                .rev()
                .filter(|d| (index * 5 + 3) >> (d - 1) & 1 != 0)
            {
                if let Some(behind) = end.checked_add(distance)
                    && behind <= poke.address
                {
                    all.push(breakpoint(poke.address - distance));
                }
            }
            if index % 4 == 1 {
                all.push(breakpoint(poke.address));
            } else {
                all.push(poke);
            }
        }
        all
    }

    /// Batches with all kinds of sites at the offsets, and around them.
    fn batches(offsets: &[usize]) -> [Vec<Poke>; 4] {
        [
            nops(offsets),
            several(offsets),
            with_breakpoints(nops(offsets)),
            with_breakpoints(several(offsets)),
        ]
    }

    /// The bytes of a site that count.
    fn bytes_of<'a>(poke: &Poke, content: &'a Content) -> &'a [u8] {
        &content.bytes[..poke.len]
    }

    fn is_several(poke: &Poke) -> bool {
        (poke.old.starts | poke.new.starts) != 1
    }

    fn back(pokes: &[Poke]) -> Vec<Poke> {
        pokes
            .iter()
            .map(|&poke| Poke {
                old: poke.new,
                new: poke.old,
                ..poke
            })
            .collect()
    }

    /// Sites at the ends of pages, across them, side by side, alone on a page, and an empty page.
    const OFFSETS: [usize; 11] = [
        0,
        5,
        100,
        PAGE - 2,
        PAGE + 3,
        2 * PAGE - 5,
        2 * PAGE,
        3 * PAGE - 1,
        3 * PAGE + 4,
        6 * PAGE - 4,
        7 * PAGE - 5,
    ];
    const PAGES: usize = 7;

    fn never(index: usize, found: [u8; 5]) {
        panic!("site {index} refused: {found:x?}");
    }

    #[test]
    fn patches_every_site_and_takes_it_back() {
        for pokes in batches(&OFFSETS) {
            patches_and_takes_back(&pokes);
        }
    }

    fn patches_and_takes_back(pokes: &[Poke]) {
        let mut text = Model::new(PAGES, pokes);
        let original = text.bytes.clone();

        assert_eq!(apply(&mut text, pokes, never), Ok(pokes.len()));
        for poke in pokes {
            assert_eq!(text.site(poke), bytes_of(poke, &poke.new));
        }
        let mut outside = text.bytes.clone();
        for poke in pokes {
            outside[poke.address - BASE..][..poke.len].copy_from_slice(bytes_of(poke, &poke.old));
        }
        assert_eq!(outside, original, "bytes between the sites");

        assert_eq!(apply(&mut text, &back(pokes), never), Ok(pokes.len()));
        assert_eq!(text.bytes, original);
        assert_eq!(text.violations, [""; 0]);
    }

    #[test]
    fn writes_a_page_three_times_and_syncs_three_times() {
        let pokes = nops(&OFFSETS);
        let mut text = Model::new(PAGES, &pokes);
        apply(&mut text, &pokes, never).unwrap();
        assert_eq!(text.syncs, 3);
        let mut pages = BTreeMap::new();
        for &(address, len) in &text.writes {
            assert!(len < PAGE + 5);
            *pages.entry(address / PAGE).or_insert(0) += 1;
        }
        assert_eq!(text.writes.len(), 3 * 6, "six pages have a first byte");
        assert!(pages.values().all(|&writes| writes <= 3), "{pages:?}");
    }

    #[test]
    fn does_nothing_for_nothing() {
        let mut text = Model::new(1, &[]);
        assert_eq!(apply(&mut text, &[], never), Ok(0));
        let same = Poke {
            address: BASE,
            len: SITE_LEN,
            old: Content::one(NOP),
            new: Content::one(NOP),
        };
        assert_eq!(apply(&mut text, &[same], never), Ok(0));
        assert_eq!(text.calls, 0);
    }

    #[test]
    fn refuses_sites_that_hold_something_else_and_patches_the_others() {
        // Every pattern of: patch, refuse, nothing to do.
        for pattern in 0..3_usize.pow(6) {
            let offsets = [3, 60, PAGE - 3, PAGE + 2, PAGE + 7, 3 * PAGE];
            let mut pokes = nops(&offsets);
            let mut text = Model::new(4, &pokes);
            let mut expected = vec![];
            let mut patched = 0;
            for (index, poke) in pokes.iter_mut().enumerate() {
                match pattern / 3_usize.pow(index as u32) % 3 {
                    0 => patched += 1,
                    1 => {
                        let other = [0x48, 0x83, 0xec, 0x08, index as u8];
                        text.bytes[poke.address - BASE..][..5].copy_from_slice(&other);
                        expected.push((index, other));
                    }
                    _ => poke.new = poke.old,
                }
            }
            text.sites = pokes
                .iter()
                .copied()
                .enumerate()
                .filter(|&(index, _)| expected.iter().all(|&(refused, _)| refused != index))
                .map(|(_, poke)| poke)
                .collect();
            let mut wanted = text.bytes.clone();
            for site in &text.sites {
                wanted[site.address - BASE..][..5].copy_from_slice(&site.new.bytes);
            }

            let mut refused = vec![];
            let result = apply(&mut text, &pokes, |index, found| {
                refused.push((index, found));
            });
            assert_eq!(result, Ok(patched));
            assert_eq!(refused, expected);
            assert_eq!(text.bytes, wanted);
            assert_eq!(text.violations, [""; 0]);
            if patched == 0 {
                assert_eq!(text.writes, []);
            }
        }
    }

    #[test]
    fn refuses_a_batch_out_of_order() {
        let pokes = nops(&OFFSETS);
        for (batch, index) in [
            (vec![pokes[1], pokes[0]], 1),
            (vec![pokes[0], pokes[0]], 1),
            (nops(&[0, 10, 14]), 2),
            (vec![pokes[0], breakpoint(BASE + 4)], 1),
            (vec![breakpoint(BASE), breakpoint(BASE)], 1),
            (
                vec![Poke {
                    address: usize::MAX - 3,
                    ..pokes[0]
                }],
                0,
            ),
        ] {
            let mut text = Model::new(1, &[]);
            assert_eq!(
                apply(&mut text, &batch, never),
                Err(PokeError::Order { index })
            );
            assert_eq!(text.calls, 0);
        }
    }

    #[test]
    fn a_breakpoint_is_one_byte_whatever_is_behind_it() {
        let site = breakpoint(BASE + PAGE - 1);
        for behind in 0..=255 {
            let mut text = Model::new(2, &[site]);
            text.bytes[PAGE..PAGE + 4].fill(behind);
            let original = text.bytes.clone();
            assert_eq!(apply(&mut text, &[site], never), Ok(1));
            assert_eq!(text.site(&site), [INT3]);
            assert_eq!(text.bytes[PAGE..], original[PAGE..]);
            assert_eq!(apply(&mut text, &back(&[site]), never), Ok(1));
            assert_eq!(text.bytes, original);
            assert!(text.writes.iter().all(|&(_, len)| len == 1));
            assert_eq!(text.writes.len(), 4, "it has no tail");
        }
    }

    #[test]
    fn a_breakpoint_that_holds_something_else_is_refused() {
        let sites = [breakpoint(BASE), breakpoint(BASE + 1)];
        let mut text = Model::new(1, &sites);
        text.bytes[0] = 0x77;
        text.sites.remove(0);
        let mut refused = vec![];
        let patched = apply(&mut text, &sites, |index, found| {
            refused.push((index, found));
        });
        assert_eq!(patched, Ok(1));
        // What is behind it is not looked at.
        assert_eq!(refused, [(0, [0x77, 1, 2, 3, 4])]);
        assert_eq!(text.bytes[..2], [0x77, INT3]);
    }

    /// Neighbours are patched and taken back on their own, whatever the others are at the time.
    #[test]
    fn neighbours_come_and_go_in_any_order() {
        let jump = Poke {
            address: BASE + 4,
            ..several(&[0; 6])[5]
        };
        let [first, second, third, last] = [0, 1, 3, 9].map(|at| breakpoint(BASE + at));
        let all = [first, second, third, jump, last];
        let mut random = Random(77);
        let mut text = Model::new(1, &all);
        let original = text.bytes.clone();
        let mut on = vec![false; all.len()];
        for _ in 0..2000 {
            let chosen: Vec<usize> = (0..all.len()).filter(|_| random.below(2) == 0).collect();
            let change = |&index: &usize| match on[index] {
                true => back(&all[index..=index])[0],
                false => all[index],
            };
            let batch: Vec<Poke> = chosen.iter().map(change).collect();
            assert_eq!(apply(&mut text, &batch, never), Ok(batch.len()));
            for index in chosen {
                on[index] = !on[index];
            }
            let mut expected = original.clone();
            for (poke, _) in all.iter().zip(&on).filter(|&(_, &on)| on) {
                expected[poke.address - BASE..][..poke.len]
                    .copy_from_slice(bytes_of(poke, &poke.new));
            }
            assert_eq!(text.bytes, expected);
        }
        assert_eq!(text.violations, [""; 0]);
    }

    #[test]
    fn random_batches_never_show_a_mix() {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        for _ in 0..50 {
            let pages = 1 + random.below(6);
            let mut offsets = vec![];
            let mut next = random.below(30);
            while next + 5 <= pages * PAGE {
                offsets.push(next);
                let gap = if random.below(4) == 0 { 3000 } else { 60 };
                next += 5 + random.below(gap);
            }
            for pokes in batches(&offsets) {
                let mut text = Model::new(pages, &pokes);
                let original = text.bytes.clone();
                assert_eq!(apply(&mut text, &pokes, never), Ok(pokes.len()));
                assert_eq!(apply(&mut text, &back(&pokes), never), Ok(pokes.len()));
                assert_eq!(text.bytes, original);
                assert_eq!(text.violations, [""; 0]);
            }
        }
    }

    #[test]
    fn the_model_notices_a_step_left_out() {
        let all = batches(&OFFSETS);
        let skips = [Skip::TRAP, Skip::SYNC, Skip::TRAP | Skip::SYNC];
        for (pokes, skip) in all.iter().flat_map(|pokes| skips.map(|skip| (pokes, skip))) {
            let mut text = Model::new(PAGES, pokes);
            assert_eq!(apply_with(&mut text, pokes, never, skip), Ok(pokes.len()));
            assert_ne!(text.violations, [""; 0], "{skip:?}");
            assert_eq!(text.syncs == 0, skip.contains(Skip::SYNC));
        }
    }

    #[test]
    fn refuses_a_jump_that_does_not_trap_where_an_instruction_starts() {
        let [mut poke] = several(&[0])[..] else {
            unreachable!()
        };
        poke.old.starts = 0b00101;
        for pokes in [vec![poke], back(&[poke])] {
            let mut text = Model::new(1, &pokes);
            assert_eq!(
                apply(&mut text, &pokes, never),
                Err(PokeError::Unsafe { index: 0 })
            );
            assert_eq!(text.calls, 0);
        }
    }

    /// Patches and takes back with the failures that `fail` makes of each call, and checks what is
    /// true after any failure. Returns how often something was stuck.
    fn with_failures(
        offsets: &[usize],
        fails: impl Fn(usize) -> Vec<Fail>,
        check: impl Fn(&Model),
    ) -> usize {
        let mut stuck = 0;
        let there = batches(offsets);
        let back = there.each_ref().map(|pokes| back(pokes));
        for pokes in there.into_iter().chain(back) {
            let original = Model::new(PAGES, &pokes);
            let mut text = original.clone();
            apply(&mut text, &pokes, never).unwrap();
            for fail in (0..text.calls).flat_map(&fails) {
                let mut text = original.clone();
                text.fail = fail;
                match apply(&mut text, &pokes, never) {
                    Ok(patched) => {
                        assert_eq!(patched, pokes.len());
                        assert_eq!(text.failed, [], "{fail:?}");
                    }
                    Err(PokeError::Stuck { address, error }) => {
                        stuck += 1;
                        assert_eq!(error, Refused(text.failed[0].0), "{fail:?}");
                        // Whether that site is not as it was depends on what the failed writes
                        // wrote.
                        assert!(text.sites.iter().any(|site| site.address == address));
                        for site in &text.sites {
                            let found = text.site(site);
                            let [old, new] =
                                [&site.old, &site.new].map(|content| bytes_of(site, content));
                            let whole = found == old || found == new;
                            // Of several instructions each is whole or an int3: see `check`.
                            assert!(
                                whole || found[0] == INT3 || is_several(site),
                                "{fail:?}: {found:x?}"
                            );
                            if site.address < address {
                                assert_eq!(found, old, "{fail:?}");
                            }
                        }
                    }
                    Err(
                        PokeError::Read { error, .. }
                        | PokeError::Write { error, .. }
                        | PokeError::Sync { error },
                    ) => {
                        assert_eq!(error, Refused(text.failed[0].0), "{fail:?}");
                        assert_eq!(text.bytes, original.bytes, "{fail:?}");
                    }
                    Err(order) => panic!("{fail:?}: {order}"),
                }
                assert_eq!(text.violations, [""; 0], "{fail:?}");
                check(&text);
            }
        }
        stuck
    }

    /// How much of a write that fails is written all the same.
    const PARTS: [usize; 5] = [0, 1, 4, 7, 8];

    #[test]
    fn one_failure_anywhere_leaves_everything_as_it_was() {
        let fails = |call| PARTS.map(|part| Fail::Once(call, part)).to_vec();
        let stuck = with_failures(&OFFSETS, fails, |_| ());
        assert_eq!(stuck, 0);
    }

    #[test]
    fn failures_that_go_on_leave_int3_or_whole_instructions_and_say_where() {
        let fails = |call| PARTS.map(|part| Fail::From(call, part)).to_vec();
        let stuck = with_failures(&OFFSETS, fails, |_| ());
        assert!(stuck > 0);
    }

    #[test]
    fn failures_that_come_and_go_leave_int3_or_whole_instructions_and_say_where() {
        let fails = |call| {
            (0..50)
                .map(|seed| Fail::Often(call, PARTS[seed % PARTS.len()], seed as u64 * 1000))
                .collect()
        };
        let stuck = with_failures(&[0, 100, PAGE - 1, PAGE + 50, 3 * PAGE], fails, |_| ());
        assert!(stuck > 0);
    }

    #[test]
    fn a_second_failure_while_undoing_the_first_leaves_no_int3_that_can_be_helped() {
        let fails = |call| {
            PARTS
                .iter()
                .flat_map(|&part| (1..30).map(move |later| Fail::Twice(call, later, part)))
                .collect()
        };
        let stuck = with_failures(&[0, 100, PAGE - 1, 3 * PAGE], fails, |text| {
            // Where `int3` could not be written, the new instruction stays.
            if let [_, (_, Kind::Trap)] = text.failed[..]
                && !text.sites.iter().any(is_several)
            {
                let trapping = |site: &Poke| site.len != 1 && text.site(site)[0] == INT3;
                assert!(!text.sites.iter().any(trapping), "{:?}", text.fail);
            }
        });
        assert!(stuck > 0);
    }

    #[test]
    fn without_sync_every_site_is_left_whole_that_can_be() {
        let stuck = with_failures(
            &OFFSETS,
            |call| vec![Fail::Syncs(call)],
            |text| {
                if text.sites.iter().any(is_several) {
                    return;
                }
                // Only the sync between tail and head needs an int3 to stay: until the tails are
                // known to all, neither instruction can be let through.
                let synced = text.syncs;
                for site in &text.sites {
                    let found = text.site(site);
                    let old = bytes_of(site, &site.old);
                    match synced {
                        0 => assert_eq!(found, old),
                        1 => assert_eq!((found[0], &found[1..]), (INT3, &old[1..])),
                        _ => assert_eq!(found, bytes_of(site, &site.new)),
                    }
                }
            },
        );
        assert!(stuck > 0);
    }

    #[test]
    fn errors_say_what_failed_and_where() {
        let error = Refused(7);
        for (found, message) in [
            (
                PokeError::Order { index: 3 },
                "site 3 of the batch is out of order or overlaps",
            ),
            (
                PokeError::Unsafe { index: 3 },
                "site 3 of the batch has an instruction within that would not trap",
            ),
            (
                PokeError::Read {
                    address: 4096,
                    error,
                },
                "cannot read text at 0x1000: call 7 refused",
            ),
            (
                PokeError::Write {
                    address: 4096,
                    error,
                },
                "cannot write text at 0x1000: call 7 refused",
            ),
            (
                PokeError::Sync { error },
                "cannot synchronize the other CPUs: call 7 refused",
            ),
            (
                PokeError::Stuck {
                    address: 4096,
                    error,
                },
                "patching failed (call 7 refused) and could not be undone from 0x1000 on",
            ),
        ] {
            assert_eq!(found.to_string(), message);
            let source = std::error::Error::source(&found).map(ToString::to_string);
            let order = matches!(found, PokeError::Order { .. } | PokeError::Unsafe { .. });
            assert_eq!(source, (!order).then(|| error.to_string()));
        }
    }
}
