//! The writer of text: the protocol is that of `fgraph_x86_64::text_write`, with the writer's own
//! page tables, and an interrupt of the other processors as the barrier.

use alloc::vec::Vec;
use core::slice;
use core::sync::atomic::{AtomicBool, Ordering};

use fgraph_core::Site;
use fgraph_x86_64::stub::{SITE_LEN, jmp_rel32};
use fgraph_x86_64::text_write::{self, Content, TextWrite};

use crate::barrier;
use crate::memory;

/// A failure to write: there is no text at the address.
#[derive(Clone, Copy, Debug)]
pub(super) struct NoText;

struct Text;

/// True from the first write of a batch until the last barrier.
static IS_WRITTEN: AtomicBool = AtomicBool::new(false);

/// Returns true while text is being written.
pub(super) fn is_being_written() -> bool {
    IS_WRITTEN.load(Ordering::Relaxed)
}

impl text_write::Text for Text {
    type Error = NoText;

    fn read(&mut self, address: usize, into: &mut [u8]) -> Result<(), NoText> {
        // SAFETY: the sites are text of the kernel, which stays mapped.
        into.copy_from_slice(unsafe { slice::from_raw_parts(address as *const u8, into.len()) });
        Ok(())
    }

    fn write(&mut self, address: usize, bytes: &[u8]) -> Result<(), NoText> {
        // SAFETY: the protocol keeps processors safe, and one task at a time writes.
        match unsafe { memory::write_text(address, bytes) } {
            true => Ok(()),
            false => Err(NoText),
        }
    }

    fn sync(&mut self) -> Result<(), NoText> {
        barrier::run();
        Ok(())
    }
}

/// Bits of [`Site::state`].
const PATCHED: u8 = 1;

/// The bytes that a site has when it is not patched.
pub(super) fn original(site: &Site) -> [u8; SITE_LEN] {
    let bytes = site.runtime.load(Ordering::Relaxed).to_le_bytes();
    [bytes[0], bytes[1], bytes[2], bytes[3], bytes[4]]
}

/// Patches the sites that some user wants, and restores the others. Returns the number of written
/// sites. One task at a time calls it.
pub(super) fn apply(sites: &'static [Site]) -> usize {
    let mut changed = Vec::new();
    let mut writes = Vec::new();
    for site in sites {
        let is_wanted = site.interest.load(Ordering::Relaxed) != 0;
        if is_wanted == (site.state.load(Ordering::Relaxed) & PATCHED != 0) {
            continue;
        }
        let Some(jump) = jmp_rel32(site.entry, site.stub) else {
            unreachable!("stubs are in reach");
        };
        let contents = [Content::one(original(site)), Content::one(jump)];
        let [old, new] = match is_wanted {
            true => contents,
            false => [contents[1], contents[0]],
        };
        changed.push((site, is_wanted));
        writes.push(TextWrite {
            address: site.entry,
            len: SITE_LEN,
            old,
            new,
        });
    }
    let mut refused = 0;
    IS_WRITTEN.store(!writes.is_empty(), Ordering::Relaxed);
    let written = text_write::apply(&mut Text, &writes, |_, _| refused += 1);
    IS_WRITTEN.store(false, Ordering::Relaxed);
    match written {
        Ok(written) => {
            assert!(
                refused == 0,
                "{refused} sites have other bytes than expected"
            );
            for (site, is_wanted) in changed {
                site.state.store(u8::from(is_wanted), Ordering::Relaxed);
            }
            written
        }
        Err(error) => panic!("text cannot be written: {error:?}"),
    }
}
