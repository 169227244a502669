//! A batch of sites whose text is changed together.

use core::ptr;
use core::sync::atomic::Ordering;

use crate::arch::poke::{self, Content, INT3, Poke, PokeError, Skip};
use crate::arch::stub::SITE_LEN;
use crate::arch::{punned_jump, stub};
use fgraph_core::site::Site;

use super::signals;
use crate::code::text_writer::Text;
use crate::os;
use crate::process::loader_event;
use crate::report::error::{Error, RefusalReason, RefusedFunction};
use crate::sites::{self, OFF, ON};

/// What is there instead, for each site of a batch that could not be changed.
pub(crate) type Changed = Vec<Option<[u8; SITE_LEN]>>;

/// A site that a user wants and that could not be changed, and why.
pub(crate) type FailedSite = (&'static Site, RefusedFunction);

/// The sites to be changed, each with its change.
#[derive(Debug)]
pub(crate) struct Batch {
    sites: Vec<&'static Site>,
    pokes: Vec<Poke>,
}

impl Batch {
    /// The pokes for those of `sites` that are not as `is_wanted` says.
    pub(crate) fn plan(mut sites: Vec<&'static Site>, is_wanted: impl Fn(&Site) -> bool) -> Self {
        sites.retain(|site| is_wanted(site) != is_on(site));
        sites.sort_unstable_by_key(|site| site.entry);
        sites.dedup_by_key(|site| site.entry);
        let pokes = sites.iter().map(|site| poke_of(site)).collect();
        Self { sites, pokes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sites.is_empty()
    }

    /// Sees to it that the traps of the batch have their handlers, and that no thread blocks them.
    pub(crate) fn check_signals(&self) -> Result<(), Error> {
        let invalid = |poke: &Poke| {
            let ends = [poke.old, poke.new].map(|content| content.bytes[SITE_LEN - 1]);
            (poke.old.starts | poke.new.starts) != 1
                && ends.into_iter().any(punned_jump::is_invalid)
        };
        signals::ensure(self.pokes.iter().any(invalid))?;
        if let Some(thread) = signals::blocked_somewhere() {
            return Err(Error::SignalBlocked { thread });
        }
        // This thread is safe while it patches, and from then on as any other.
        let stays = |(poke, site): (&Poke, &&Site)| poke.len == 1 && !is_on(site);
        if self.pokes.iter().zip(&self.sites).any(stays) && signals::blocked_here() {
            let thread = os::thread_id();
            return Err(Error::SignalBlocked { thread });
        }
        Ok(())
    }

    /// Leaves out the sites of modules that are gone; whether there were any.
    pub(crate) fn leave_out(&mut self, gone: &[&'static [Site]]) -> bool {
        let is_gone = |site: &Site| {
            let is_of = |sites: &&[Site]| sites.as_ptr_range().contains(&ptr::from_ref(site));
            gone.iter().any(is_of)
        };
        let before = self.sites.len();
        if !gone.is_empty() {
            self.sites.retain(|site| !is_gone(site));
            self.pokes = self.sites.iter().map(|site| poke_of(site)).collect();
        }
        self.sites.len() != before
    }

    /// Writes all changes. To be called while no module can be unloaded.
    pub(crate) fn write(&self, skip: Skip) -> (Result<usize, PokeError<i32>>, Changed) {
        let mut changed = vec![None; self.sites.len()];
        let refused = |index: usize, found| changed[index] = Some(found);
        let result = poke::apply_with(&mut Text::open(), &self.pokes, refused, skip);
        (result, changed)
    }

    /// Notes what was written. Returns how many sites of users jump to their stub that did not
    /// before, and which could not be changed.
    pub(crate) fn settle(self, changed: &Changed) -> (usize, Vec<FailedSite>) {
        let mut patched = 0;
        let mut refused = Vec::new();
        for (site, &found) in self.sites.iter().zip(changed) {
            match found {
                None if is_on(site) => site.state.store(OFF, Ordering::Relaxed),
                None => {
                    site.state.store(ON, Ordering::Relaxed);
                    patched += usize::from(!is_ours(site));
                }
                // Under a debugger's breakpoint our jump may still be; the stub finds that nobody
                // wants the call.
                Some([INT3, ..]) if is_on(site) => {}
                // Another patcher has replaced it.
                Some(_) if is_on(site) => site.state.store(OFF, Ordering::Relaxed),
                Some(found) => {
                    let refusal = RefusedFunction {
                        name: fgraph_core::Function::of(site).name().to_string(),
                        module: site.module.path.to_owned(),
                        address: site.entry,
                        reason: RefusalReason::Changed { found },
                    };
                    refused.push((*site, refusal));
                }
            }
        }
        (patched, refused)
    }
}

/// Whether a site is patched for fgraph alone: the linker's function that tells of libraries, or a
/// relay.
pub(crate) fn is_ours(site: &Site) -> bool {
    let wanted = site.interest.load(Ordering::Relaxed) != 0;
    !wanted && (loader_event::is_event(site.address()) || sites::is_relay(site))
}

/// Whether a site jumps to its stub.
pub(crate) fn is_on(site: &Site) -> bool {
    site.state.load(Ordering::Relaxed) == ON
}

/// The change that a site is due.
fn poke_of(site: &Site) -> Poke {
    let original = sites::original(site);
    let mut bytes = original.bytes;
    let len = sites::patched_len(site);
    match len {
        1 => bytes[0] = INT3,
        2 => bytes[..2].copy_from_slice(&sites::short_jump(site).expect("the relay is before it")),
        _ => {
            let jump = stub::jmp_rel32(site.entry, site.stub);
            bytes = jump.expect("the stub was placed within reach");
        }
    }
    let patched = Content::one(bytes);
    let (old, new) = if is_on(site) {
        (patched, original)
    } else {
        (original, patched)
    };
    Poke {
        address: site.entry,
        len,
        old,
        new,
    }
}
