//! Measures fgraph's memory.

use std::thread;

use fgraph::Error;
use fgraph_core::site::Site;
use fgraph_x86_64::{stub, trampoline};

use crate::functions::{Function, Variant, WATCHED};
use crate::users::Empty;

/// Bytes of a site.
pub const SITE: usize = size_of::<Site>();
/// Bytes of a site's stub.
pub const STUB: usize = stub::STUB_LEN;

const PAGE: usize = 4096;

/// Memory of a thread's shadow stack.
#[derive(Clone, Copy, Debug)]
pub struct ShadowStack {
    /// Bytes of address space.
    pub size: usize,
    /// Bytes of the pages in memory.
    pub touched: usize,
}

impl ShadowStack {
    /// Measures that of a new thread that has made one traced call. Call this before there are
    /// other threads, whose memory a new one might take over.
    pub fn of_a_new_thread() -> Result<Self, Error> {
        let _user = crate::register(Empty::<0>, WATCHED)?;
        let thread = thread::spawn(|| {
            Function::Leaf.code(Variant::Patchable)(1, 1);
            // SAFETY: states are never unmapped, and this thread has one since the call.
            let (base, size) = unsafe { (*trampoline::current()).thread_stack.shadow.memory() };
            Self {
                size,
                touched: resident(base, size),
            }
        });
        Ok(thread.join().expect("nothing in it panics"))
    }
}

/// Returns the bytes in memory of the pages that the `size` bytes at `base` lie on. The first page
/// also holds the thread's state.
fn resident(base: *mut u8, size: usize) -> usize {
    let into_page = base.addr() % PAGE;
    let (first, len) = (base.wrapping_sub(into_page), into_page + size);
    let mut pages = vec![0u8; len.div_ceil(PAGE)];
    // SAFETY: `pages` has a byte for each page; `mincore` does not read the memory itself.
    let result = unsafe { libc::mincore(first.cast(), len, pages.as_mut_ptr()) };
    assert_eq!(result, 0, "the pages are mapped");
    pages.iter().filter(|&page| page & 1 != 0).count() * PAGE
}
