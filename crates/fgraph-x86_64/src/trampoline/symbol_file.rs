//! The description of an arena's return points, for debuggers and unwinders.
//!
//! Return points are in no file. An object file in memory describes them, which gdb reads by its
//! interface for just-in-time compilers. Other unwinders read parts of it:
//!
//! ```text
//!   +0    ELF header
//!   +64   section headers
//!   +448  .eh_frame_hdr       for unwinders that search modules
//!   +472  names
//!   +544  symbols             fgraph_trampoline
//!   +592  .eh_frame           CIE, FDE, terminator
//!   +896  program headers     the code, and .eh_frame_hdr
//! ```
//!
//! # Safety
//!
//! The unsafe code is the list of such files, which debuggers read while the process is stopped. It
//! may be that of another compiler in the program, as the interface has it.

use core::arch::global_asm;
use core::cell::UnsafeCell;
use core::ptr;

use arrayvec::ArrayVec;

use super::points;

/// The most bytes of a file.
pub const MAX_LEN: usize = 1024;

/// Offset of the program headers by which other unwinders find the description, as that of a
/// module.
pub const PROGRAM_HEADERS: usize = 896;
/// The number of program headers.
pub const PROGRAM_HEADER_COUNT: u16 = 2;

/// Offset of the header of `.eh_frame`.
pub const EH_FRAME_HDR: usize = 448;
const NAMES: usize = 472;
const SYMBOLS: usize = 544;
/// Offset of `.eh_frame`.
pub const EH_FRAME: usize = 592;
/// Offset of the description of the return points.
pub const FDE: usize = EH_FRAME + points::FDE;

const STRINGS: &[u8] = b"\0.text\0.eh_frame\0.symtab\0.strtab\0fgraph_trampoline\0";
/// Offsets in the names.
const TEXT: u32 = 1;
const UNWIND: u32 = 7;
const SYMTAB: u32 = 17;
const STRTAB: u32 = 25;
const TRAMPOLINE: u32 = 33;

/// Makes the file of an arena, to be placed at its start.
pub fn of(arena: usize) -> ArrayVec<u8, MAX_LEN> {
    const HEADER_LEN: u16 = 64;
    const SECTIONS: u16 = 5;
    const RELOCATABLE: u16 = 1;
    const X86_64: u16 = 62;
    const PROGBITS: u32 = 1;
    const SYMBOL_TABLE: u32 = 2;
    const STRING_TABLE: u32 = 3;
    const NOBITS: u32 = 8;
    const ALLOC: u64 = 2;
    const EXECUTABLE: u64 = 4;
    const LOAD: u32 = 1;
    const UNWIND_HEADER: u32 = 0x6474_e550;
    const READ: u32 = 4;
    const EXECUTE: u32 = 1;
    const FUNCTION: u8 = 2;
    const GLOBAL: u8 = 1;

    let code = points::of(arena);
    let (start, len) = (code.start as u64, code.len() as u64);
    let unwind = points::unwind(arena);
    let mut file = Bytes(ArrayVec::new());
    file.put(&[0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    file.halves(&[RELOCATABLE, X86_64]);
    file.words(&[1]);
    // No entry and no program headers; then the section headers.
    file.longs(&[0, 0, u64::from(HEADER_LEN)]);
    file.words(&[0]);
    file.halves(&[HEADER_LEN, 0, 0, HEADER_LEN, SECTIONS, SECTIONS - 1]);
    let at = |offset: usize| offset as u64;
    let names = [at(NAMES), STRINGS.len() as u64];
    let sections: [Section; SECTIONS as usize] = [
        ([0; 2], [0; 4], [0; 2], [0; 2]),
        (
            [TEXT, NOBITS],
            [ALLOC | EXECUTABLE, start, at(EH_FRAME), len],
            [0; 2],
            [16, 0],
        ),
        (
            [UNWIND, PROGBITS],
            [ALLOC, at(arena + EH_FRAME), at(EH_FRAME), at(unwind.len())],
            [0; 2],
            [8, 0],
        ),
        // Its names are in section 4, and its first global symbol is number 1.
        (
            [SYMTAB, SYMBOL_TABLE],
            [0, 0, at(SYMBOLS), 48],
            [4, 1],
            [8, 24],
        ),
        (
            [STRTAB, STRING_TABLE],
            [0, 0, names[0], names[1]],
            [0; 2],
            [1, 0],
        ),
    ];
    for (kind, place, links, shape) in sections {
        file.words(&kind);
        file.longs(&place);
        file.words(&links);
        file.longs(&shape);
    }
    file.pad(EH_FRAME_HDR);
    // Version, and encodings: 4 bytes relative to this header, an unsigned number, and again.
    file.put(&[1, 0x3b, 0x03, 0x3b]);
    let relative = |address: usize| (address as i64 - (arena + EH_FRAME_HDR) as i64) as u32;
    file.words(&[
        relative(arena + EH_FRAME),
        1,
        relative(code.start),
        relative(arena + FDE),
    ]);
    file.pad(NAMES);
    file.put(STRINGS);
    file.pad(SYMBOLS + 24);
    file.words(&[TRAMPOLINE]);
    file.put(&[GLOBAL << 4 | FUNCTION, 0]);
    file.halves(&[1]);
    file.longs(&[0, len]);
    file.pad(EH_FRAME);
    file.put(&unwind);
    file.pad(PROGRAM_HEADERS);
    let unwind_header = at(arena + EH_FRAME_HDR);
    for (kind, place, len) in [(LOAD, start, len), (UNWIND_HEADER, unwind_header, 20)] {
        file.words(&[kind, READ | EXECUTE]);
        file.longs(&[0, place, place, len, len, 1]);
    }
    file.0
}

/// A section header: name and kind; flags, address, offset and length; link and info; alignment,
/// and the length of an entry.
type Section = ([u32; 2], [u64; 4], [u32; 2], [u64; 2]);

struct Bytes(ArrayVec<u8, MAX_LEN>);

impl Bytes {
    fn put(&mut self, bytes: &[u8]) {
        self.0.extend(bytes.iter().copied());
    }

    fn halves(&mut self, values: &[u16]) {
        values
            .iter()
            .for_each(|value| self.put(&value.to_le_bytes()));
    }

    fn words(&mut self, values: &[u32]) {
        values
            .iter()
            .for_each(|value| self.put(&value.to_le_bytes()));
    }

    fn longs(&mut self, values: &[u64]) {
        values
            .iter()
            .for_each(|value| self.put(&value.to_le_bytes()));
    }

    fn pad(&mut self, len: usize) {
        while self.0.len() < len {
            self.0.push(0);
        }
    }
}

/// A file on the list for debuggers.
#[repr(C)]
#[derive(Debug)]
pub struct Entry {
    next: *mut Self,
    previous: *mut Self,
    start: *const u8,
    len: u64,
}

/// A place for an [`Entry`], which a debugger and the program's compilers may change.
#[derive(Debug)]
pub struct Place(UnsafeCell<Entry>);

// SAFETY: only `announce` uses it.
unsafe impl Sync for Place {}

impl Place {
    /// A place that is not used.
    pub const fn new() -> Self {
        Self(UnsafeCell::new(Entry {
            next: ptr::null_mut(),
            previous: ptr::null_mut(),
            start: ptr::null(),
            len: 0,
        }))
    }
}

impl Default for Place {
    fn default() -> Self {
        Self::new()
    }
}

/// The list of gdb's interface.
#[repr(C)]
struct Descriptor {
    version: u32,
    action: u32,
    relevant: *mut Entry,
    first: *mut Entry,
}

// gdb stops at the function when it is called, and reads the list. Both are weak: a program that
// contains a compiler has its own. They have sections of their own, by which the build of the agent
// finds them.
global_asm!(
    ".pushsection fgraph_jit_code, \"ax\", @progbits",
    ".weak __jit_debug_register_code",
    ".type __jit_debug_register_code, @function",
    "__jit_debug_register_code:",
    ".cfi_startproc",
    "ret",
    ".cfi_endproc",
    ".size __jit_debug_register_code, . - __jit_debug_register_code",
    ".popsection",
    ".pushsection fgraph_jit_data, \"aw\", @progbits",
    ".p2align 3",
    ".weak __jit_debug_descriptor",
    ".type __jit_debug_descriptor, @object",
    ".size __jit_debug_descriptor, 24",
    "__jit_debug_descriptor:",
    ".long 1, 0",
    ".quad 0, 0",
    ".popsection",
);

unsafe extern "C" {
    static mut __jit_debug_descriptor: Descriptor;
    fn __jit_debug_register_code();
}

/// Announces the file of an arena to debuggers.
///
/// # Safety
///
/// The file must be at the start of the arena, permanently, and the place must be a new one. No
/// other thread may call this.
pub unsafe fn announce(arena: usize, place: &'static Place) {
    const REGISTER: u32 = 1;
    let entry = place.0.get();
    // SAFETY: the list has this layout, whoever defines it; other compilers of the program change
    // it under locks that we do not know, when the program starts to run compiled code.
    unsafe {
        let list = &raw mut __jit_debug_descriptor;
        entry.write(Entry {
            next: (*list).first,
            previous: ptr::null_mut(),
            start: ptr::with_exposed_provenance(arena),
            len: MAX_LEN as u64,
        });
        if let Some(first) = (*list).first.as_mut() {
            first.previous = entry;
        }
        (*list).first = entry;
        (*list).relevant = entry;
        (*list).action = REGISTER;
        __jit_debug_register_code();
    }
}
