//! Memory: frames, and page tables in which no page is writable and executable.
//!
//! ```text
//!   ffff8000_00000000   all memory (the direct map): code and constants are read-only there
//!   ffffa000_00000000   shadow stacks, and the return points of their frames
//!   ffffb000_00000000   stacks of tasks, each above a page that is not mapped
//!   ffffffff_80000000   the image
//!   ffffffff_90000000   stubs
//!
//!   00000000_00001000   two pages of text, writable: in the writer's own tables only
//! ```

use core::arch::asm;
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::cpu::{self, Lock};

/// Bytes of a page.
pub(crate) const PAGE: usize = 4096;

/// The address at which all memory is mapped.
const DIRECT: usize = 0xffff_8000_0000_0000;
/// The difference between the image's addresses and its place in memory.
const IMAGE: usize = 0xffff_ffff_8000_0000;
/// The address at which the text writer maps the pages that it writes to.
const WINDOW: usize = 0x1000;

const PRESENT: u64 = 1;
const WRITABLE: u64 = 2;
const UNCACHED: u64 = 1 << 4;
const LARGE: u64 = 1 << 7;
const NOT_EXECUTABLE: u64 = 1 << 63;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// The use of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Read and executed.
    Code,
    /// Read.
    Constants,
    /// Read and written.
    Data,
    /// Registers of a device.
    Device,
}

impl Use {
    const fn bits(self) -> u64 {
        PRESENT
            | match self {
                Self::Code => 0,
                Self::Constants => NOT_EXECUTABLE,
                Self::Data => NOT_EXECUTABLE | WRITABLE,
                Self::Device => NOT_EXECUTABLE | WRITABLE | UNCACHED,
            }
    }
}

unsafe extern "C" {
    static text_start: u8;
    static text_end: u8;
    static rodata_end: u8;
    static image_end: u8;
}

/// The frames that were never used.
static FRAMES: Lock<[usize; 2]> = Lock::new([0; 2]);

/// The physical addresses of the kernel's tables and of the writer's.
static KERNEL_TABLES: AtomicUsize = AtomicUsize::new(0);
static WRITER_TABLES: AtomicUsize = AtomicUsize::new(0);
/// The address in the direct map of the two entries of the writer's window.
static WINDOW_ENTRIES: AtomicUsize = AtomicUsize::new(0);

/// Returns the address of physical memory in the direct map.
pub(crate) fn direct(physical: usize) -> usize {
    DIRECT + physical
}

/// Returns a frame of zeros by its physical address.
///
/// # Panics
///
/// Panics if there is none left.
pub(crate) fn frame() -> usize {
    let mut frames = FRAMES.lock();
    let frame = frames[0];
    assert!(frame + PAGE <= frames[1], "out of memory");
    frames[0] += PAGE;
    drop(frames);
    // SAFETY: nobody else has the frame, and it is in the direct map.
    unsafe { ptr::write_bytes(direct(frame) as *mut u8, 0, PAGE) };
    frame
}

/// Returns the entry for an address in the last level of some tables, and makes the levels above.
///
/// # Safety
///
/// `tables` must be tables, and nobody else may change the entry.
unsafe fn entry(tables: usize, address: usize) -> *mut u64 {
    let mut table = direct(tables) as *mut u64;
    for level in (1..4).rev() {
        let index = address >> (12 + 9 * level) & 511;
        // SAFETY: the tables are whole, and in the direct map.
        unsafe {
            let place = table.add(index);
            if *place & PRESENT == 0 {
                *place = frame() as u64 | PRESENT | WRITABLE;
            }
            assert!(*place & LARGE == 0, "no page is large");
            table = direct((*place & ADDRESS) as usize) as *mut u64;
        }
    }
    // SAFETY: a table has 512 entries.
    unsafe { table.add(address >> 12 & 511) }
}

/// Maps a page.
///
/// # Safety
///
/// Nothing that uses the page's address before may go wrong by it.
pub(crate) unsafe fn map(address: usize, physical: usize, to: Use) {
    let tables = KERNEL_TABLES.load(Ordering::Relaxed);
    // SAFETY: pages are mapped by one task at a time.
    unsafe {
        *entry(tables, address) = physical as u64 | to.bits();
        asm!("invlpg [{}]", in(reg) address, options(nostack, preserves_flags));
    }
}

/// Maps `len` bytes of new memory at an address.
///
/// # Safety
///
/// The contract of [`map`] holds.
pub(crate) unsafe fn map_new(address: usize, len: usize) {
    for page in (0..len).step_by(PAGE) {
        // SAFETY: the caller keeps the contract; the frame is new.
        unsafe { map(address + page, frame(), Use::Data) };
    }
}

/// Maps frames whose bytes are final, for another use than writing. From here on nothing may write
/// to them: they are made read-only in the direct map, too.
///
/// # Safety
///
/// The contract of [`map`] holds.
pub(crate) unsafe fn map_sealed(address: usize, physical: usize, to: Use) {
    // SAFETY: the caller keeps the contract.
    unsafe {
        map(direct(physical), physical, Use::Constants);
        map(address, physical, to);
    }
}

/// Makes the kernel's own tables, and those of the text writer, and changes to the former. There is
/// memory up to `end`; that between the image and `last` is free.
///
/// # Safety
///
/// The memory must be free, and the first processor alone.
pub(crate) unsafe fn prepare(end: usize, last: usize) {
    let image = [
        &raw const text_start,
        &raw const text_end,
        &raw const rodata_end,
    ]
    .map(|symbol| symbol.addr());
    let after_image = (&raw const image_end).addr();
    *FRAMES.lock() = [after_image - IMAGE, last];
    let tables = frame();
    KERNEL_TABLES.store(tables, Ordering::Relaxed);
    // SAFETY: nothing uses these tables yet; afterwards every address that is in use is mapped.
    unsafe {
        for page in (0..end).step_by(PAGE) {
            let is_constant = (image[0]..image[2]).contains(&(IMAGE + page));
            let to = if is_constant {
                Use::Constants
            } else {
                Use::Data
            };
            *entry(tables, direct(page)) = page as u64 | to.bits();
        }
        for address in (image[0]..after_image).step_by(PAGE) {
            let to = match address {
                _ if address < image[1] => Use::Code,
                _ if address < image[2] => Use::Constants,
                _ => Use::Data,
            };
            *entry(tables, address) = (address - IMAGE) as u64 | to.bits();
        }
        // So that the writer's tables, which have a copy of this level, see all later changes.
        let top = direct(tables) as *mut u64;
        for index in 256..512 {
            if *top.add(index) & PRESENT == 0 {
                *top.add(index) = frame() as u64 | PRESENT | WRITABLE;
            }
        }
        let writer = frame();
        let copy = direct(writer) as *mut u64;
        ptr::copy_nonoverlapping(direct(tables) as *const u64, copy, PAGE / 8);
        WINDOW_ENTRIES.store(entry(writer, WINDOW).addr(), Ordering::Relaxed);
        WRITER_TABLES.store(writer, Ordering::Relaxed);
    }
    use_kernel_tables();
}

/// Changes to the kernel's tables.
pub(crate) fn use_kernel_tables() {
    let tables = KERNEL_TABLES.load(Ordering::Relaxed);
    // SAFETY: the tables map everything that the kernel uses.
    unsafe { asm!("mov cr3, {}", in(reg) tables, options(nostack, preserves_flags)) };
}

/// Returns the physical address of a mapped page; `None` if it is not mapped.
fn physical(address: usize) -> Option<usize> {
    // SAFETY: all tables of the upper half exist; an entry is one word.
    let found = unsafe { entry(KERNEL_TABLES.load(Ordering::Relaxed), address).read_volatile() };
    (found & PRESENT != 0).then_some((found & ADDRESS) as usize + address % PAGE)
}

/// Writes `bytes` to text, which may reach into the next page. In the kernel's tables the text
/// stays read-only: the writer has tables of its own, and uses them with interrupts disabled.
///
/// Returns `false` if there is no text.
///
/// # Safety
///
/// Every processor must be safe with the bytes, and only one may write at a time.
pub(crate) unsafe fn write_text(address: usize, bytes: &[u8]) -> bool {
    let first = address / PAGE * PAGE;
    let pages = [first, first + PAGE].map(physical);
    let is_in_two = address % PAGE + bytes.len() > PAGE;
    let Some(page) = pages[0] else {
        return false;
    };
    if is_in_two && pages[1].is_none() {
        return false;
    }
    let bits = Use::Data.bits();
    let entries = WINDOW_ENTRIES.load(Ordering::Relaxed) as *mut u64;
    cpu::without_interrupts(|| {
        // SAFETY: these tables have the window, and for NMIs everything that the kernel's have. The
        // change of tables drops the window's old translations.
        unsafe {
            entries.write_volatile(page as u64 | bits);
            entries
                .add(1)
                .write_volatile(pages[1].map_or(0, |page| page as u64 | bits));
            let writer = WRITER_TABLES.load(Ordering::Relaxed);
            asm!("mov cr3, {}", in(reg) writer, options(nostack, preserves_flags));
            let to = (WINDOW + address % PAGE) as *mut u8;
            for (nth, byte) in bytes.iter().enumerate() {
                to.add(nth).write_volatile(*byte);
            }
            use_kernel_tables();
        }
    });
    true
}

/// Checks all of the kernel's tables: returns the number of pages, and of those whose memory is
/// executable at one address and writable at any.
pub(crate) fn check() -> (usize, usize) {
    // A bit for each frame of the first 256 MiB.
    let mut executable = [0_u64; 1024];
    let mut pages = 0;
    let number = |page: u64| (page & ADDRESS) as usize / PAGE;
    each_page(&mut |found| {
        pages += 1;
        let frame = number(found);
        if found & NOT_EXECUTABLE == 0 && frame < 1024 * 64 {
            executable[frame / 64] |= 1 << (frame % 64);
        }
    });
    let mut both = 0;
    each_page(&mut |found| {
        let frame = number(found);
        let is_executable = frame < 1024 * 64 && executable[frame / 64] & 1 << (frame % 64) != 0;
        both += usize::from(found & WRITABLE != 0 && is_executable);
    });
    (pages, both)
}

fn each_page(visit: &mut dyn FnMut(u64)) {
    fn walk(table: usize, level: u32, visit: &mut dyn FnMut(u64)) {
        for index in 0..512 {
            // SAFETY: the tables are whole, and in the direct map.
            let entry = unsafe { (direct(table) as *const u64).add(index).read_volatile() };
            if entry & PRESENT == 0 {
                continue;
            }
            match level {
                0 => visit(entry),
                _ => walk((entry & ADDRESS) as usize, level - 1, visit),
            }
        }
    }
    walk(KERNEL_TABLES.load(Ordering::Relaxed), 3, visit);
}
