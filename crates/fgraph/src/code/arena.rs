//! The code that fgraph makes for a module: stubs, and relocated prologues.
//!
//! ```text
//!   arena + 0     +---------------------------------------+ --
//!                 | addresses of the entry trampolines    |   read as data by every traced call
//!         + 56    | and of the code for a stack's end     |
//!         + 64    | .eh_frame of the stubs                |
//!         + 4096  +---------------------------------------+ --
//!                 | stubs                                 |
//!                 +---------------------------------------+   executed
//!                 | relocated prologues                   |
//!                 +---------------------------------------+ --
//! ```
//!
//! An arena is one mapping within reach of all sites of its module. It is executable and read-only
//! from the start, so it works on systems that never let writable memory become executable. Its
//! bytes are collected elsewhere and written like text. They never change afterwards, except for
//! the addresses of the trampolines, whose page is not executable. An arena is never unmapped,
//! because a thread may be about to run its code at any time. Stubs that need particular addresses
//! are elsewhere: see [`places`](crate::code::stub_blocks).
//!
//! # Safety
//!
//! The unsafe code maps new memory where nothing is mapped. Unwind information that it writes and
//! registers stays permanently.

use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};

use libc::{PROT_EXEC, PROT_READ, PROT_WRITE};

use crate::arch::stub::SITE_LEN;
use crate::arch::stub::{self, EH_FRAME_LEN, HEADER_EH_FRAME, HEADER_LEN, HEADER_NEAR_END};
use crate::arch::text_write::Text as _;
use crate::arch::trampoline::{self, Trampolines, Variant};
use crate::arch::unwind::{self, Row, Rows};
use crate::code::text_writer::Text;
use crate::os::PAGE;
use crate::os::memory::map_at;
use crate::report::error::{RefusalReason, is_forbidden};
use crate::threads::shadow_memory;
use crate::unwinding::registry::{Frames, Place};

/// The distance between addresses that are tried.
const STEP: usize = 1 << 20;

/// The number of bytes that are written into a header.
pub(crate) const HEADER_BYTES: usize = HEADER_EH_FRAME + EH_FRAME_LEN;

/// Returns the header at `header` for `len` bytes of stubs at `stubs`.
pub(crate) fn header(
    header: usize,
    stubs: usize,
    len: usize,
    trampolines: &Trampolines,
) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    for variant in Variant::ALL {
        let entry = trampolines.entry(variant).to_ne_bytes();
        bytes[variant.word(0)..][..size_of::<usize>()].copy_from_slice(&entry);
    }
    let near_end = trampoline::near_end().to_ne_bytes();
    bytes[HEADER_NEAR_END..][..size_of::<usize>()].copy_from_slice(&near_end);
    let unwind = stub::eh_frame(stubs, len, header + HEADER_EH_FRAME);
    bytes[HEADER_EH_FRAME..].copy_from_slice(&unwind);
    bytes
}

/// Makes the stubs of the header at `header` lead to other trampolines; calls in between still go
/// to the previous ones. Nothing changes if the system forbids it.
pub(crate) fn reroute(header: usize, trampolines: &Trampolines) {
    let page = ptr::with_exposed_provenance_mut::<c_void>(header);
    // SAFETY: the page of a header contains nothing else, and is read as data. Each word is written
    // with one store, with an address to which any of its stubs may lead.
    unsafe {
        if libc::mprotect(page, HEADER_LEN, PROT_READ | PROT_WRITE) != 0 {
            return;
        }
        for variant in Variant::ALL {
            let word = ptr::with_exposed_provenance_mut(variant.word(header));
            // Release: the data that the trampolines read is written before.
            AtomicUsize::from_ptr(word).store(trampolines.entry(variant), Ordering::Release);
        }
        libc::mprotect(page, HEADER_LEN, PROT_READ);
    }
}

/// Returns the unwind information of the header at `header`, which is complete and permanent.
pub(crate) fn unwind_of_stubs(header: usize) -> Frames {
    let fde = header + HEADER_EH_FRAME + stub::EH_FRAME_FDE;
    // SAFETY: the header is complete and permanent.
    unsafe { Frames::new(Place::Apart, [fde].into_iter()) }
}

/// An arena under construction.
#[derive(Debug)]
pub(crate) struct Arena {
    base: usize,
    /// The number of bytes of all stubs.
    stubs: usize,
    /// Its bytes, before they are written to it.
    content: Vec<u8>,
}

impl Arena {
    /// Reserves an arena for the stubs and relocated prologues of sites; the first site is at
    /// `first`, the last at `last`.
    ///
    /// # Errors
    ///
    /// Fails if nothing within reach is free, or the system allows no executable memory.
    pub(crate) fn reserve(
        first: usize,
        last: usize,
        stubs: usize,
        prologues: usize,
    ) -> Result<Self, RefusalReason> {
        if let Some(errno) = shadow_memory::refused() {
            return Err(RefusalReason::NotExecutable(errno));
        }
        let len = (HEADER_LEN + stubs + prologues).next_multiple_of(PAGE);
        let base = map_near(first, last, len, PROT_READ | PROT_EXEC);
        let base = base.map_err(|errno| match errno {
            libc::ENOMEM => RefusalReason::OutOfReach,
            errno => RefusalReason::NotExecutable(errno),
        })?;
        Ok(Self {
            base,
            stubs,
            content: vec![0; len],
        })
    }

    /// Returns the address of its header.
    pub(crate) fn header(&self) -> usize {
        self.base
    }

    /// Returns the address of the first stub.
    pub(crate) fn stubs(&self) -> usize {
        self.base + HEADER_LEN
    }

    /// Returns true if `address` is in the arena.
    pub(crate) fn contains(&self, address: usize) -> bool {
        (self.base..self.base + self.content.len()).contains(&address)
    }

    /// Returns the address of the first relocated prologue.
    pub(crate) fn prologues(&self) -> usize {
        self.stubs() + self.stubs
    }

    /// Returns the bytes from `address` on, to be filled.
    pub(crate) fn bytes(&mut self, address: usize) -> &mut [u8] {
        &mut self.content[address - self.base..]
    }

    /// Writes the arena's bytes. `unwind` has the unwind rules of the relocated prologues.
    ///
    /// # Errors
    ///
    /// Fails with the system's error number. The arena is unmapped then.
    pub(crate) fn finish(
        mut self,
        text: &mut Text,
        trampolines: &Trampolines,
        unwind: &PrologueUnwind,
    ) -> Result<(), i32> {
        let header = header(self.base, self.stubs(), self.stubs, trampolines);
        self.content[..HEADER_BYTES].copy_from_slice(&header);
        let written = text.write(self.base, &self.content);
        match written.and_then(|()| unwind.write()) {
            Ok(unwind) => {
                let stubs = unwind_of_stubs(self.base);
                match unwind.0 {
                    Some(prologues) => stubs.and(prologues).register(),
                    None => stubs.register(),
                }
                Ok(())
            }
            Err(errno) => {
                let base = ptr::with_exposed_provenance_mut::<c_void>(self.base);
                // SAFETY: our own mapping, unknown to other code.
                unsafe { libc::munmap(base, self.content.len()) };
                Err(errno)
            }
        }
    }
}

/// The unwind rules of relocated prologues.
#[derive(Debug)]
pub(crate) struct PrologueUnwind {
    place: Place,
    /// Stretches of relocated prologues. Unwinders read the rows of a stretch from its start, so
    /// there are several.
    stretches: Vec<Stretch>,
}

#[derive(Debug)]
struct Stretch {
    start: usize,
    end: usize,
    prologues: usize,
    rows: Rows,
}

impl PrologueUnwind {
    /// The number of relocated prologues in one stretch.
    const STRETCH: usize = 256;

    /// Starts without rules, for code in this place.
    pub(crate) fn new(place: Place) -> Self {
        Self {
            place,
            stretches: Vec::new(),
        }
    }

    /// Adds the `len` bytes of a relocated prologue at `address`, after all others.
    pub(crate) fn add(&mut self, address: usize, len: usize, rows: &[Row]) {
        let full = |stretch: &mut Stretch| stretch.prologues == Self::STRETCH;
        if self.stretches.last_mut().is_none_or(full) {
            self.stretches.push(Stretch {
                start: address,
                end: address,
                prologues: 0,
                rows: Rows::new(),
            });
        }
        if let Some(stretch) = self.stretches.last_mut() {
            stretch.rows.piece(address - stretch.start, len, rows);
            stretch.prologues += 1;
            stretch.end = address + len;
        }
    }

    /// Adds the jump at `address`, after all others: a stretch by itself, because it is in a
    /// module's text.
    pub(crate) fn add_jump(&mut self, address: usize) {
        self.stretches.push(Stretch {
            start: address,
            end: address + SITE_LEN,
            prologues: Self::STRETCH,
            rows: Rows::new(),
        });
    }

    /// Writes the rules to memory that unwinders can use.
    ///
    /// # Errors
    ///
    /// Fails with the system's error number.
    pub(crate) fn write(&self) -> Result<Unwind, i32> {
        let (Some(first), Some(last)) = (self.stretches.first(), self.stretches.last()) else {
            return Ok(Unwind::default());
        };
        // Their address does not influence their length.
        let encode = |stretch: &Stretch, at| {
            stretch
                .rows
                .finish(stretch.start, stretch.end - stretch.start, at)
        };
        let len = |stretch| encode(stretch, stretch.start).len().next_multiple_of(8);
        let all: usize = self.stretches.iter().map(len).sum();
        let all = all.next_multiple_of(PAGE);
        let rights = PROT_READ | PROT_WRITE;
        let base = map_near(first.start, last.end, all, rights)?;
        let mut at = base;
        for stretch in &self.stretches {
            let bytes = encode(stretch, at);
            let to = ptr::with_exposed_provenance_mut::<u8>(at);
            // SAFETY: the memory was just mapped, and is long enough for all of them.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
            at += bytes.len().next_multiple_of(8);
        }
        // SAFETY: the memory was just mapped. A failure is harmless: nothing writes there.
        unsafe {
            libc::mprotect(ptr::with_exposed_provenance_mut(base), all, PROT_READ);
        }
        let mut at = base;
        let fde = |stretch| {
            at += len(stretch);
            at - len(stretch) + unwind::EH_FRAME_FDE
        };
        // SAFETY: the information was just written, permanently.
        let frames = unsafe { Frames::new(self.place, self.stretches.iter().map(fde)) };
        Ok(Unwind(Some(frames)))
    }
}

/// Unwind information in permanent memory.
#[derive(Debug, Default)]
pub(crate) struct Unwind(Option<Frames>);

impl Unwind {
    /// Makes the unwind information known to unwinders.
    pub(crate) fn register(&self) {
        self.0.iter().for_each(Frames::register);
    }

    /// Reverts [`register`](Self::register).
    pub(crate) fn withdraw(&self) {
        self.0.iter().for_each(Frames::withdraw);
    }
}

/// Maps `len` bytes with these rights, within reach of everything between `first` and `last`.
///
/// # Errors
///
/// Fails with the system's error number: `ENOMEM` if nothing within reach is free.
fn map_near(first: usize, last: usize, len: usize, rights: i32) -> Result<usize, i32> {
    let (low, high) = stub::arena_window(first, last, len).ok_or(libc::ENOMEM)?;
    // The system reserves the lowest addresses.
    let low = low.max(STEP);
    // First below the text: the heap grows above the program's. Some programs allocate there only,
    // so what is above is as far from it as it may be.
    let below = (1..).map(|n| first.checked_sub(len + n * STEP));
    let below = below.map_while(|place| place.filter(|&place| place >= low));
    let above = (0..).map(|n| high.checked_sub(n * STEP));
    let above = above.map_while(|place| place.filter(|&place| place > last));
    let places = below.chain(above).map(|place| place & !(PAGE - 1));
    for place in places.filter(|place| (low..=high).contains(place)) {
        match map_at(place, len, rights) {
            // The error is the same at all addresses.
            Err(errno) if is_forbidden(errno) => return Err(errno),
            Err(_) => {}
            mapped => return mapped,
        }
    }
    Err(libc::ENOMEM)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::memory;

    #[test]
    fn an_arena_whose_unwind_information_finds_no_place_is_unmapped() {
        static NEAR: u8 = 0;
        let near = (&raw const NEAR).addr();
        let arena = Arena::reserve(near, near, 64, 64).unwrap();
        let header = arena.header();
        assert!(memory::peek(header).is_ok());
        let mut unwind = PrologueUnwind::new(Place::Apart);
        // Nothing is within reach of both.
        unwind.add_jump(PAGE);
        unwind.add_jump(near);
        let finished = arena.finish(&mut Text::open(), &Trampolines::NONE, &unwind);
        assert_eq!(finished, Err(libc::ENOMEM));
        assert!(memory::peek(header).is_err());
    }
}
