//! Memory that is mapped as it is used.
//!
//! A process has no descriptor of the file once it has the memory. It maps more with an `mremap` of
//! zero bytes of an existing mapping, which maps the same file again, from the same place on and as
//! far as requested:
//!
//! ```text
//!   file        headers | table           | ring 0           | ring 1           | ...
//!   always      headers   page            :                  :                  :
//!   1. mremap             [ .......................................... ] anywhere
//!   2. mmap                                                  [ ....... ] far from code
//!   3. mremap                                                  moves the end of 1. there
//!   4. munmap             [ ................................]
//!   5. mprotect                                              to be read and written
//! ```
//!
//! The page is inaccessible, so `mlockall` fills no page of the mapping that step 1 makes. A part
//! grows in place, with a plain `mremap`.

use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::layout::{Geometry, PAGE, Part};
use super::super::wait::is_waiting_forbidden;
use crate::primitive::AtomicU64;

/// A shared mapping.
#[derive(Debug)]
pub(in super::super) struct Mapped {
    start: NonNull<AtomicU64>,
    geometry: Geometry,
    /// True if the whole memory is mapped, in one piece.
    is_whole: bool,
    /// Address and mapped steps of each part, see [`Place`].
    places: Box<[AtomicUsize]>,
}

// SAFETY: the mapping holds atomics only, and any thread may unmap it.
unsafe impl Send for Mapped {}
// SAFETY: the mapping holds atomics only; all other fields are atomics or constant.
unsafe impl Sync for Mapped {}

const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// The address of a part's mapping, and its number of mapped steps.
///
/// Encoded in one word: the address of a page, with the number of steps less one in its lowest 12
/// bits; 0 if nothing is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    address: usize,
    steps: usize,
}

impl Place {
    fn of(word: usize) -> Self {
        let address = word & !(Part::STEPS - 1);
        let steps = match address {
            0 => 0,
            _ => word % Part::STEPS + 1,
        };
        Self { address, steps }
    }

    fn word(self) -> usize {
        self.address | (self.steps - 1)
    }
}

impl Mapped {
    /// Makes memory without a file.
    pub(super) fn anonymous(geometry: Geometry) -> io::Result<Self> {
        // Without reservation: memory that is never written to is never allocated.
        Self::map(geometry, libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, -1)
    }

    /// Maps a whole file.
    pub(super) fn file(file: &File, geometry: Geometry) -> io::Result<Self> {
        let len = file.metadata()?.len();
        if len / 8 < geometry.words as u64 {
            let what = format!("{len} bytes in place of those that the rings take");
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Self::map(geometry, 0, file.as_raw_fd())
    }

    fn map(geometry: Geometry, flags: i32, fd: i32) -> io::Result<Self> {
        let bytes = geometry.words * 8;
        // SAFETY: a new mapping at an address of the system's choice, if the hint is in use.
        let start = unsafe {
            libc::mmap(
                ptr::without_provenance_mut(place()),
                bytes,
                libc::PROT_NONE,
                libc::MAP_SHARED | flags,
                fd,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mut this = Self {
            start: NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?,
            geometry,
            is_whole: true,
            places: (0..geometry.parts()).map(|_| 0.into()).collect(),
        };
        let kept = (geometry.headers() + PAGE) * 8;
        this.is_whole = !this.can_map_parts();
        let accessible = match this.is_whole {
            true => bytes,
            false => geometry.headers() * 8,
        };
        // SAFETY: the range was mapped above as a whole, and no reference to the unmapped part
        // exists.
        unsafe {
            if !this.is_whole {
                libc::munmap(start.byte_add(kept), bytes - kept);
            }
            if libc::mprotect(start, accessible, READ_WRITE) != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        if this.is_whole {
            for (index, place) in this.places.iter().enumerate() {
                let part = geometry.part(index);
                let whole = Place {
                    address: start.expose_provenance() + part.start * 8,
                    steps: part.steps(part.len),
                };
                place.store(whole.word(), Ordering::Relaxed);
            }
        }
        Ok(this)
    }

    /// Returns true if parts can be mapped when they are used. Tries it with the last one.
    fn can_map_parts(&self) -> bool {
        let last = self.geometry.part(self.geometry.parts() - 1);
        let mapped = self.map_part(&last, last.mapped(1) * 8);
        if let Some(address) = mapped {
            // SAFETY: the range was just mapped, and no reference to it exists.
            unsafe { system::unmap(address, last.mapped(1) * 8) };
        }
        mapped.is_some()
    }

    pub(super) fn headers(&self) -> &[AtomicU64] {
        // SAFETY: this many words are mapped for as long as `self` lives, from a page boundary.
        // Zeros, and any value that other processes write, are valid atomics.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.geometry.headers()) }
    }

    /// Returns the words of a part, at least up to `end`; `None` if they cannot be mapped.
    pub(super) fn part(&self, index: usize, part: &Part, end: usize) -> Option<&[AtomicU64]> {
        let steps = part.steps(end);
        let word = self.places.get(index)?;
        // Acquire: the mapping exists before the word is stored.
        let mut place = Place::of(word.load(Ordering::Acquire));
        if place.steps < steps {
            // A thread that has begun to write a ring makes no system call for it later.
            let is_last_chance = index > 0 && is_waiting_forbidden();
            let end = if is_last_chance { part.len } else { end };
            place = self.grow(word, part, part.steps(end))?;
        }
        let words = part.words(place.steps);
        let start = ptr::with_exposed_provenance(place.address);
        // SAFETY: this many steps are mapped there for as long as `self` lives. Any value is a
        // valid atomic.
        Some(unsafe { slice::from_raw_parts(start, words) })
    }

    /// Maps the rest of each ring that is mapped in part.
    pub(super) fn map_rest(&self) {
        for (index, word) in self.places.iter().enumerate().skip(1) {
            let part = self.geometry.part(index);
            let steps = part.steps(part.len);
            let known = Place::of(word.load(Ordering::Relaxed)).steps;
            if (1..steps).contains(&known) {
                self.grow(word, &part, steps);
            }
        }
    }

    /// Maps at least `steps` of a part.
    #[cold]
    fn grow(&self, word: &AtomicUsize, part: &Part, steps: usize) -> Option<Place> {
        loop {
            let known = word.load(Ordering::Acquire);
            let place = Place::of(known);
            if place.steps >= steps {
                return Some(place);
            }
            let new = match self.extend(place, part, steps) {
                Some(new) => new,
                // Another thread may have mapped more meanwhile.
                None if word.load(Ordering::Relaxed) != known => continue,
                None => return None,
            };
            // Release: pairs with the acquire in `part`.
            let (release, relaxed) = (Ordering::Release, Ordering::Relaxed);
            match word.compare_exchange(known, new.word(), release, relaxed) {
                Ok(_) => return Some(new),
                // SAFETY: the range was just mapped, and its address was not published.
                Err(_) if new.address != place.address => unsafe {
                    system::unmap(new.address, part.mapped(new.steps) * 8);
                },
                Err(_) => {}
            }
        }
    }

    /// Maps `steps` of a part, which has fewer at `place`.
    fn extend(&self, place: Place, part: &Part, steps: usize) -> Option<Place> {
        let bytes = |steps| part.mapped(steps) * 8;
        let Place { address, .. } = place;
        if address == 0 {
            let address = self.map_part(part, bytes(steps))?;
            return Some(Place { address, steps });
        }
        if bytes(place.steps) == bytes(steps)
            // SAFETY: the range is our own mapping, and it stays where it is.
            || unsafe { system::extend(address, bytes(place.steps), bytes(steps)) }
        {
            return Some(Place { address, steps });
        }
        // Another mapping follows: map the whole part elsewhere. The old mapping stays, because
        // references to it may exist.
        let steps = part.steps(part.len);
        let address = self.map_part(part, bytes(steps))?;
        Some(Place { address, steps })
    }

    /// Maps the first bytes of a part, and returns their address; `None` if they cannot be mapped.
    fn map_part(&self, part: &Part, bytes: usize) -> Option<usize> {
        // The inaccessible page after the headers.
        let page = self.geometry.headers();
        let source = self.start.as_ptr().expose_provenance() + page * 8;
        // Parts are as far from each other as in the file, so that each has room to grow.
        let wish = source + (PAGE + part.start - page) * 8;
        // SAFETY: `source` is a page of our own mapping, of the same file as the part and before
        // it.
        unsafe { system::map_behind(source, (part.start - page) * 8, bytes, wish) }
    }
}

/// Returns a preferred address for the rings: far from all code, because patching needs room within
/// the reach of a jump from code. It is random, like the addresses of other mappings.
fn place() -> usize {
    const LOWEST: u64 = 0x2000_0000_0000;
    const BITS: u32 = 44;
    const ALIGN: u64 = 1 << 21;
    let random = RandomState::new().build_hasher().finish() >> (64 - BITS);
    // Addresses of 32 bits do not reach it: the system chooses.
    usize::try_from(LOWEST + random / ALIGN * ALIGN).unwrap_or(0)
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let start = self.start.as_ptr().expose_provenance();
        let kept = match self.is_whole {
            true => self.geometry.words,
            false => self.geometry.headers() + PAGE,
        };
        // SAFETY: `self` has mapped this range, and references to it borrow from `self`.
        unsafe { libc::munmap(ptr::with_exposed_provenance_mut(start), kept * 8) };
        if self.is_whole {
            return;
        }
        for (index, word) in self.places.iter().enumerate() {
            let place = Place::of(word.load(Ordering::Relaxed));
            let bytes = self.geometry.part(index).mapped(place.steps) * 8;
            if place.steps > 0 {
                // SAFETY: `self` has mapped this range, and references to it borrow from `self`.
                unsafe { libc::munmap(ptr::with_exposed_provenance_mut(place.address), bytes) };
            }
        }
    }
}

/// Maps memory in callbacks.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod system {
    use super::{PAGE, READ_WRITE};
    use crate::system_call::system_call;

    /// Calls `mremap`. A mapping that `mlockall` has locked may not grow beyond the limit of locked
    /// memory: it is unlocked first.
    ///
    /// # Safety
    ///
    /// The contract of [`system_call`] holds for this `mremap`.
    unsafe fn remap(from: usize, old: usize, new: usize, flags: i32, to: usize) -> Option<usize> {
        // SAFETY: the caller's contract is that of `system_call`.
        let remapped =
            || unsafe { system_call(libc::SYS_mremap, [from, old, new, flags as usize, to]) };
        let mut address = remapped();
        if address == -(libc::EAGAIN as isize) {
            // SAFETY: `munlock` changes no memory.
            unsafe { system_call(libc::SYS_munlock, [from, old.max(PAGE * 8), 0, 0, 0]) };
            address = remapped();
        }
        usize::try_from(address).ok()
    }

    /// Maps `bytes` of a file that begin `distance` after the place that is mapped at `source`, at
    /// the address `wish` if possible.
    ///
    /// # Safety
    ///
    /// `source` is a page of a shared mapping.
    pub(super) unsafe fn map_behind(
        source: usize,
        distance: usize,
        bytes: usize,
        wish: usize,
    ) -> Option<usize> {
        // SAFETY: the calls make new mappings, and unmap parts of these only.
        unsafe {
            let all = remap(source, 0, distance + bytes, libc::MREMAP_MAYMOVE, 0)?;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            let [access, flags] = [libc::PROT_NONE, flags].map(|it| it as usize);
            let room = system_call(libc::SYS_mmap, [wish, bytes, access, flags, usize::MAX]);
            let room = usize::try_from(room).ok();
            let moves = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            let moved = room.and_then(|room| remap(all + distance, bytes, bytes, moves, room));
            // If there is no room at `wish`, it stays where it is.
            let place = moved.unwrap_or(all + distance);
            if distance > 0 {
                unmap(all, distance);
            }
            if let Some(room) = room.filter(|_| moved.is_none()) {
                unmap(room, bytes);
            }
            if system_call(
                libc::SYS_mprotect,
                [place, bytes, READ_WRITE as usize, 0, 0],
            ) != 0
            {
                unmap(place, bytes);
                return None;
            }
            Some(place)
        }
    }

    /// Makes a mapping longer without moving it; returns `false` if that is impossible.
    ///
    /// # Safety
    ///
    /// It is a shared mapping of the caller's, of a file that has at least `new` bytes from there.
    pub(super) unsafe fn extend(address: usize, old: usize, new: usize) -> bool {
        // SAFETY: the caller's contract; without flags `mremap` moves nothing.
        unsafe { remap(address, old, new, 0, 0) }.is_some()
    }

    /// Unmaps a range that this module has mapped.
    ///
    /// # Safety
    ///
    /// The range is the caller's, and no reference to it exists.
    pub(super) unsafe fn unmap(address: usize, bytes: usize) {
        // SAFETY: the caller owns the range, and no reference to it exists.
        unsafe { system_call(libc::SYS_munmap, [address, bytes, 0, 0, 0]) };
    }
}

/// For systems on which parts are not mapped one by one.
#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
mod system {
    pub(super) unsafe fn map_behind(_: usize, _: usize, _: usize, _: usize) -> Option<usize> {
        None
    }

    pub(super) unsafe fn extend(_: usize, _: usize, _: usize) -> bool {
        false
    }

    pub(super) unsafe fn unmap(_: usize, _: usize) {}
}
