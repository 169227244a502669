//! Unwind information of code that is in no module, for unwinders to find.
//!
//! `__register_frame` is meant for this. But once anything is registered, libgcc up to 12 takes a
//! lock whenever it searches for a frame. A signal handler that takes a backtrace while its thread
//! has the lock waits forever, and so does the child of a fork that throws when another thread had
//! the lock. So nothing is registered with libgcc; instead it calls us:
//!
//! ```text
//!   _Unwind_RaiseException ... -> call _Unwind_Find_FDE@plt -> jmp [slot]
//!                              -> find_fde -> _Unwind_Find_FDE
//! ```
//!
//! The slot is libgcc's own, which the dynamic linker has filled. Most frames are not ours, so
//! libgcc's function is called first, except for code in the text of modules, which a module's
//! information may seem to describe. We search without a lock. LLVM's libunwind has a lock that
//! many threads may hold for reading; frames are registered with it as usual.
//!
//! # Safety
//!
//! The unsafe code changes a word of libgcc in which the dynamic linker keeps functions of this
//! type. fgraph is never unloaded after that. Unwind information is permanent.

use core::ffi::{CStr, c_void};
use core::ops::Range;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use fgraph_core::snapshot::Snapshot;

use super::slot;
use crate::arch::trampoline::{points, symbol_file};
use crate::process::linker;
use crate::process::modules::{self, LoadedModule};
use crate::threads::FGRAPH;
use fgraph_symbols::elf::ElfFile;

/// The symbol of the function that searches for frames, as libgcc calls it.
pub(super) const FUNCTION: &CStr = c"_Unwind_Find_FDE";

/// The function that libgcc called before; 0 as long as it does not call us.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// True if frames must be registered with our own unwinder, since its unwinder does not call us.
static NEEDS_REGISTRATION: AtomicBool = AtomicBool::new(true);

/// Descriptions of code in our own mappings, in order of the code.
static APART: Snapshot<Box<[Fde]>> = Snapshot::new();
/// Descriptions of code in the text of modules, in order of the code.
static IN_TEXT: Snapshot<Box<[Fde]>> = Snapshot::new();
/// True once there was any in the text of modules.
static HAS_IN_TEXT: AtomicBool = AtomicBool::new(false);

/// The address of a description of a function's frames.
#[derive(Clone, Debug)]
struct Fde {
    address: usize,
    /// The code that it describes.
    code: Range<usize>,
}

impl Fde {
    /// # Safety
    ///
    /// `address` must be that of an FDE made by
    /// [`Rows::finish`](crate::arch::unwind::Rows::finish).
    unsafe fn at(address: usize) -> Self {
        // After the length and the distance to the CIE: the start, relative to this word, and the
        // length.
        let place = address + 8;
        // SAFETY: the caller guarantees an FDE there.
        let [start, len] =
            unsafe { ptr::with_exposed_provenance::<[i32; 2]>(place).read_unaligned() };
        let start = place.wrapping_add_signed(start as isize);
        let code = start..start + len.cast_unsigned() as usize;
        Self { address, code }
    }

    /// Returns the result that libgcc expects.
    ///
    /// # Safety
    ///
    /// `bases` must be valid for writes.
    unsafe fn find_fde(&self, bases: *mut Bases) -> *const c_void {
        // SAFETY: the caller guarantees that `bases` is valid.
        unsafe {
            bases.write(Bases {
                text: 0,
                data: 0,
                function: self.code.start,
            });
        }
        ptr::with_exposed_provenance(self.address)
    }
}

/// The place of described code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In our own mapping.
    Apart,
    /// In the text of a module.
    InText,
}

impl Place {
    fn known(self) -> &'static Snapshot<Box<[Fde]>> {
        match self {
            Self::Apart => &APART,
            Self::InText => &IN_TEXT,
        }
    }
}

/// Unwind information in memory, registered or not.
#[derive(Debug)]
pub(crate) struct Frames {
    place: Place,
    /// Frame descriptions, in the order of their addresses.
    fdes: Vec<Fde>,
}

impl Frames {
    /// Makes a set of FDEs with these addresses.
    ///
    /// # Safety
    ///
    /// FDEs made by [`Rows::finish`](crate::arch::unwind::Rows::finish) must be there permanently.
    pub(crate) unsafe fn new(place: Place, fdes: impl Iterator<Item = usize>) -> Self {
        // SAFETY: the caller guarantees the FDEs.
        let mut fdes: Vec<Fde> = fdes.map(|fde| unsafe { Fde::at(fde) }).collect();
        fdes.sort_unstable_by_key(|fde| fde.address);
        Self { place, fdes }
    }

    /// Joins two sets for code in the same place, to be registered at once: each registration
    /// copies everything that is registered.
    pub(crate) fn and(mut self, others: Self) -> Self {
        debug_assert_eq!(self.place, others.place);
        self.fdes.extend(others.fdes);
        self.fdes.sort_unstable_by_key(|fde| fde.address);
        self
    }

    /// Makes the descriptions known to unwinders.
    pub(crate) fn register(&self) {
        self.place.known().update(|known| {
            let known = known.map_or(&[][..], |known| known);
            let mut all = [known, &self.fdes].concat();
            // A stable sort, and so a fast one: the known part is in order.
            all.sort_by_key(|fde| fde.code.start);
            all.into()
        });
        if self.place == Place::InText && !self.fdes.is_empty() {
            HAS_IN_TEXT.store(true, Ordering::Release);
        }
        self.fdes.iter().for_each(|fde| register_at(fde.address));
    }

    /// Reverts [`register`](Self::register).
    pub(crate) fn withdraw(&self) {
        let is_ours = |fde: &&Fde| {
            let ours = &self.fdes;
            ours.binary_search_by_key(&fde.address, |own| own.address)
                .is_ok()
        };
        self.place.known().update(|known| {
            let known = known.map_or(&[][..], |known| known);
            known.iter().filter(|fde| !is_ours(fde)).cloned().collect()
        });
        let is_needed = NEEDS_REGISTRATION.load(Ordering::Relaxed);
        for fde in self.fdes.iter().filter(|_| is_needed) {
            // SAFETY: it was registered.
            unsafe { __deregister_frame(ptr::with_exposed_provenance(fde.address)) };
        }
    }
}

/// Registers the description at an address, which is permanent, with an unwinder that does not ask.
pub(super) fn register_at(fde: usize) {
    if NEEDS_REGISTRATION.load(Ordering::Relaxed) {
        // SAFETY: a CIE, an FDE and a terminator, which are permanent.
        unsafe { __register_frame(ptr::with_exposed_provenance(fde)) };
    }
}

/// Returns the description of the frame of the code at an address, if that is ours.
fn look_up(place: Place, address: usize) -> Option<Fde> {
    place.known().read(|known| {
        let known = known?;
        let behind = known.partition_point(|fde| fde.code.start <= address);
        let fde = known.get(behind.checked_sub(1)?)?;
        (address < fde.code.end).then(|| fde.clone())
    })
}

/// Further results for libgcc: its `struct dwarf_eh_bases`.
#[repr(C)]
struct Bases {
    text: usize,
    data: usize,
    function: usize,
}

type FindFde = unsafe extern "C" fn(address: usize, bases: *mut Bases) -> *const c_void;

/// Replaces libgcc's own function.
///
/// # Safety
///
/// `bases` must be valid for writes.
#[unsafe(link_section = "fgraph_text")]
unsafe extern "C" fn find_fde(address: usize, bases: *mut Bases) -> *const c_void {
    if let Some(arena) = FGRAPH.points.arena_of(address) {
        let code = points::of(arena);
        let fde = Fde {
            address: arena + symbol_file::FDE,
            code,
        };
        // SAFETY: the caller guarantees that `bases` is valid.
        return unsafe { fde.find_fde(bases) };
    }
    // Frames that an unwinder reaches were registered before.
    let is_in_text = HAS_IN_TEXT.load(Ordering::Acquire);
    if let Some(fde) = is_in_text
        .then(|| look_up(Place::InText, address))
        .flatten()
    {
        // SAFETY: the caller guarantees that `bases` is valid.
        return unsafe { fde.find_fde(bases) };
    }
    // SAFETY: the address was set before this is called, to such a function.
    let found = unsafe {
        let next = NEXT.load(Ordering::Relaxed);
        let next = core::mem::transmute::<*const (), FindFde>(ptr::with_exposed_provenance(next));
        next(address, bases)
    };
    if !found.is_null() {
        return found;
    }
    // SAFETY: the caller guarantees that `bases` is valid.
    look_up(Place::Apart, address).map_or(found, |fde| unsafe { fde.find_fde(bases) })
}

/// Redirects libgcc, which is loaded as `module`, to us. `own` is the address of its function. If
/// that is impossible, frames are registered with it, if it is our own unwinder.
pub(super) fn redirect_libgcc(module: &LoadedModule, own: usize) -> Option<()> {
    let bytes = module.map().ok()?;
    let file = ElfFile::parse(bytes).ok()?;
    modules::check(module, &file).ok()?;
    let slot = match file.slots_of(FUNCTION.to_bytes())[..] {
        [slot] => module.load_bias().wrapping_add(slot as usize),
        _ => return None,
    };
    if !linker::pin(find_fde as *const c_void) {
        return None;
    }
    let ours = find_fde as *const () as usize;
    let choose = |before| {
        // In the child of a fork during the start, it leads to us already.
        (before != ours).then(|| {
            // It leads into libgcc even before the linker has filled it. Any other address belongs
            // to another fgraph.
            let next = if module.is_text(before) { own } else { before };
            NEXT.store(next, Ordering::Relaxed);
            ours
        })
    };
    // SAFETY: libgcc's slot for such a function; we are linked to libgcc or hold it open.
    unsafe { slot::change(slot, choose) }?;
    let calls_us = module.is_text(__register_frame as *const () as usize);
    NEEDS_REGISTRATION.store(!calls_us, Ordering::Relaxed);
    Some(())
}

unsafe extern "C" {
    /// Registers code that is in no module with the unwinder.
    fn __register_frame(begin: *const c_void);
    fn __deregister_frame(begin: *const c_void);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::unwind::{EH_FRAME_FDE, Rows};
    use fgraph_needs::skip;

    /// Makes FDEs for 16 bytes at each of these offsets in possible code.
    fn frames(places: &[usize]) -> Frames {
        let code = vec![0_u8; 128].leak().as_ptr().addr();
        let mut memory = vec![0_u8; 64 * places.len()].leak().chunks_mut(64);
        let fdes = places.iter().map(|place| {
            let memory = memory.next().unwrap();
            let start = memory.as_ptr().expose_provenance();
            let bytes = Rows::new().finish(code + place, 16, start);
            memory[..bytes.len()].copy_from_slice(&bytes);
            start + EH_FRAME_FDE
        });
        // SAFETY: leaked.
        unsafe { Frames::new(Place::InText, fdes.collect::<Vec<_>>().into_iter()) }
    }

    #[test]
    fn code_is_found_from_its_first_to_its_last_byte_while_it_is_known() {
        let frames = frames(&[64, 0, 32]);
        let starts: Vec<usize> = frames.fdes.iter().map(|fde| fde.code.start).collect();
        let found = |address| look_up(Place::InText, address).map(|fde| fde.code.start);
        for start in starts {
            assert_eq!(found(start), None);
            frames.register();
            assert_eq!(found(start), Some(start));
            assert_eq!(found(start + 15), Some(start));
            assert_eq!(found(start + 16), None);
            assert_eq!(found(start - 1), None);
            frames.withdraw();
            assert_eq!(found(start), None);
        }
    }

    #[test]
    fn libgcc_has_one_slot_for_its_own_function() {
        let (modules, _) = modules::loaded();
        let libgcc =
            |module: &&LoadedModule| module.path().to_string_lossy().contains("/libgcc_s.so");
        let Some(libgcc) = modules.iter().find(libgcc) else {
            return skip!("libgcc is linked statically, or another library unwinds");
        };
        let file = ElfFile::parse(libgcc.map().unwrap()).unwrap();
        assert_eq!(file.slots_of(FUNCTION.to_bytes()).len(), 1);
        assert_eq!(file.slots_of(b"no such function"), []);
    }
}
