//! The functions that can be traced. `cargo fgraph` gives each a NOP and an entry in a section; the
//! names are those of the symbol table.
//!
//! ```text
//!   ffffffff_90000000   addresses of the trampolines (constants)
//!                 + 1   stubs (code), one for each function
//! ```

use alloc::vec::Vec;
use core::slice;
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU16, AtomicU64, Ordering};

use fgraph_core::site::{SiteName, module};
use fgraph_core::{Module, Site};
use fgraph_x86_64::nop;
use fgraph_x86_64::stub::{SITE_LEN, STUB_LEN};
use fgraph_x86_64::trampoline::{Trampolines, Variant};
use fgraph_x86_64::trap::{TRAP_RANGES, TrapRange};

use crate::memory::{self, PAGE, Use};
use crate::symbols;

/// The address of the stubs, in reach of the image.
const STUBS: usize = 0xffff_ffff_9000_0000;

/// Functions that are not traced: this runtime, the handlers of interrupts, and the code with which
/// a task is switched, prints its end, or is not a task yet.
const UNTRACED: [&str; 12] = [
    "kernel::trace::",
    "kernel::interrupts::",
    "kernel::users::",
    "kernel::scenes::",
    "kernel::boot::",
    "kernel::serial::",
    "kernel::start_",
    "kernel::machine::",
    "kernel::cpu::",
    "kernel::barrier::",
    "kernel::memory::",
    "kernel::tasks::start",
];

static MODULE: Module = module("kernel", &());

/// The sites, by address; null until they are made.
static SITES: AtomicPtr<Vec<Site>> = AtomicPtr::new(core::ptr::null_mut());

/// Returns the sites of all functions, by address.
pub(crate) fn sites() -> &'static [Site] {
    // SAFETY: null, or a list that is never freed. Acquire pairs with the Release of `prepare`.
    unsafe { SITES.load(Ordering::Acquire).as_ref() }.map_or(&[], Vec::as_slice)
}

/// Returns the addresses of NOPs that the linker has listed.
fn listed() -> &'static [usize] {
    unsafe extern "C" {
        static patchable_start: usize;
        static patchable_end: usize;
    }
    let (start, end) = (&raw const patchable_start, &raw const patchable_end);
    // SAFETY: the linker script puts the section between the two.
    unsafe { slice::from_raw_parts(start, (end.addr() - start.addr()) / size_of::<usize>()) }
}

/// Returns the bytes of a site.
pub(super) fn bytes_at(address: usize) -> [u8; SITE_LEN] {
    // SAFETY: text of the kernel.
    unsafe { (address as *const [u8; SITE_LEN]).read_volatile() }
}

/// Makes sites and stubs; returns the number of functions that can be traced.
pub(super) fn prepare(trampolines: &Trampolines) -> usize {
    let mut entries: Vec<_> = listed().to_vec();
    entries.sort_unstable();
    entries.dedup();
    let is_traced = |&entry: &usize| {
        let name = symbols::find(entry).map_or("", |symbol| symbol.name);
        let is_own = name.starts_with("kernel::") || name.starts_with("<kernel::");
        let is_left_out = UNTRACED.iter().any(|start| {
            name.starts_with(start)
                || name
                    .strip_prefix('<')
                    .is_some_and(|it| it.starts_with(start))
        });
        is_own && !is_left_out && nop::find(&bytes_at(entry)).is_ok()
    };
    entries.retain(is_traced);
    let header = memory::frame();
    // SAFETY: a new frame, in the direct map; nothing else uses the addresses of the stubs.
    unsafe {
        for variant in Variant::ALL {
            let word = variant.word(memory::direct(header)) as *mut usize;
            word.write(trampolines.entry(variant));
        }
        memory::map_sealed(STUBS, header, Use::Constants);
    }
    let sites: Vec<Site> = (0_u32..)
        .zip(&entries)
        .map(|(index, &entry)| site(index, entry))
        .collect();
    let count = sites.len();
    let sites = alloc::boxed::Box::into_raw(alloc::boxed::Box::new(sites));
    // Release: whoever reads the pointer reads the sites.
    SITES.store(sites, Ordering::Release);
    write_stubs(self::sites());
    // SAFETY: the sites are sorted, and each is one instruction, in whose place its stub goes on.
    unsafe { TRAP_RANGES.push(TrapRange::new(self::sites(), SITE_LEN)) };
    count
}

fn stub_of(index: u32) -> usize {
    STUBS + PAGE + index as usize * STUB_LEN
}

fn site(index: u32, entry: usize) -> Site {
    let symbol = symbols::find(entry);
    let mut original = [0; 8];
    original[..SITE_LEN].copy_from_slice(&bytes_at(entry));
    Site {
        entry,
        body: entry + SITE_LEN,
        interest: AtomicU16::new(0),
        lead: symbol.map_or(0, |symbol| (entry - symbol.address) as u8),
        state: AtomicU8::new(0),
        inner: [0; 4],
        name: SiteName::new(symbol.map_or("", |symbol| symbol.name)),
        index,
        module: &MODULE,
        stub: stub_of(index),
        runtime: AtomicU64::new(u64::from_le_bytes(original)),
    }
}

/// Writes the stubs, page by page, and makes each page executable when it is complete.
fn write_stubs(sites: &[Site]) {
    for (nth, sites) in sites.chunks(PAGE / STUB_LEN).enumerate() {
        let page = memory::frame();
        for (place, site) in sites.iter().enumerate() {
            let record = (&raw const *site).addr() as u64;
            let kind = Variant::Plain.stub();
            let stub = kind.encode(site.stub, record, Variant::Plain.word(STUBS));
            let Some(stub) = stub else {
                unreachable!("the header is beside the stubs");
            };
            let to = (memory::direct(page) + place * STUB_LEN) as *mut u8;
            // SAFETY: a new frame, in the direct map.
            unsafe { to.copy_from_nonoverlapping(stub.as_ptr(), stub.len()) };
        }
        // SAFETY: nothing else uses the addresses of the stubs.
        unsafe { memory::map_sealed(STUBS + PAGE + nth * PAGE, page, Use::Code) };
    }
}
