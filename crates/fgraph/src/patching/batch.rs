//! A batch of sites whose text is changed together.
//!
//! # Uprobes
//!
//! A uprobe that comes to a patched function (`perf probe`, `bpftrace`) replaces the first byte of
//! the jump by an `int3`. When it goes, the kernel puts there what the *file* has: the function's
//! own first byte, in front of the rest of our jump. No instruction of ours makes sense then.
//!
//! ```text
//!   jump            e9 rr rr rr rr
//!   uprobe comes    cc rr rr rr rr    runs the file's first instruction elsewhere, goes on behind
//!   uprobe goes     48 rr rr rr rr    rubbish, unless the first instruction is this byte alone
//! ```
//!
//! Both are recognised where a site is to be put back: the former gets all of its own bytes but for
//! the first, which the kernel will put back. For a site that is to stay there is [`Batch::mend`].
//! A NOP of five bytes may become a call, by a kernel that knows how, and then a NOP again.

use core::sync::atomic::Ordering;
use core::{iter, ptr};
use std::borrow::Cow;

use crate::arch::poke::{self, Content, INT3, Poke, PokeError, Skip};
use crate::arch::stub::SITE_LEN;
use crate::arch::{punned_jump, stub, system_calls};
use fgraph_core::site::Site;

use super::signals;
use crate::code::text_pages::TextPages;
use crate::code::text_writer::Text;
use crate::os::{self, PAGE};
use crate::process::loader_event;
use crate::report::error::{Error, RefusalReason, RefusedFunction};
use crate::sites::{self, OFF, ON};

/// How many sites are written at once. While they are, no library can be loaded or unloaded, and
/// calls of them may trap: a few milliseconds.
const PIECE: usize = 1024;

/// What is there instead, for each site of a piece that could not be changed.
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

    /// The pokes for those of `sites` that jump to their stub no more, because a uprobe was
    /// removed. To be called while no module can be unloaded.
    pub(crate) fn mend(sites: impl Iterator<Item = &'static Site>) -> Self {
        let mut text = Text::open();
        let broken = sites.filter(|site| is_on(site)).filter_map(|site| {
            let mut poke = poke_of(site);
            let mut found = poke.old.bytes;
            poke::Text::read(&mut text, site.entry, &mut found[..poke.len]).ok()?;
            let original = poke.new;
            let is_whole = found[..poke.len] == original.bytes[..poke.len];
            let is_broken = found == after_uprobe(&poke, original.bytes[0]);
            poke.new = poke.old;
            poke.old = match is_whole {
                true => original,
                false => Content::one(found),
            };
            (is_whole || is_broken).then_some((site, poke))
        });
        let mut broken: Vec<_> = broken.collect();
        broken.sort_unstable_by_key(|(site, _)| site.entry);
        let (sites, pokes) = broken.into_iter().unzip();
        Self { sites, pokes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sites.is_empty()
    }

    /// The text, to write the batch to.
    pub(crate) fn open_text(&self) -> Text {
        Text::open_for(self.sites.len())
    }

    /// Sees to it that the traps of the batch have their handlers.
    pub(crate) fn take_signals(&self) -> Result<(), Error> {
        let invalid = |poke: &Poke| {
            let ends = [poke.old, poke.new].map(|content| content.bytes[SITE_LEN - 1]);
            !is_of_one_instruction(poke) && ends.into_iter().any(punned_jump::is_invalid)
        };
        Ok(signals::ensure(self.pokes.iter().any(invalid))?)
    }

    /// Whether a thread may trap at its sites when it is written. Where each exchanges a single
    /// instruction for another one, none can stand within.
    pub(crate) fn leaves_traps(&self) -> bool {
        let leaves_none = |poke: &Poke| poke.len != 1 && is_of_one_instruction(poke);
        !self.pokes.iter().all(leaves_none)
    }

    /// Sees to it that no thread blocks the traps of the batch.
    pub(crate) fn check_signals(&self) -> Result<(), Error> {
        if let Some(thread) = signals::unmask_everywhere() {
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

    /// Its sites in parts that are written one after the other. A relay and its function are in
    /// one: alone, the short jump would lead to a NOP.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = Piece<'_>> {
        let mut rest = Piece {
            sites: &self.sites,
            pokes: &self.pokes,
        };
        iter::from_fn(move || {
            let module = rest.sites.first()?.module;
            let is_in = |site: &&&Site| ptr::eq(site.module, module);
            let mut len = rest.sites.iter().take(PIECE).take_while(is_in).count();
            if sites::is_relay(rest.sites[len - 1])
                && rest.sites.get(len).is_some_and(|s| is_in(&s))
            {
                len += 1;
            }
            let (sites, pokes) = (rest.sites.split_at(len), rest.pokes.split_at(len));
            (rest.sites, rest.pokes) = (sites.1, pokes.1);
            Some(Piece {
                sites: sites.0,
                pokes: pokes.0,
            })
        })
    }
}

/// Sites of one module that are written at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece<'a> {
    sites: &'a [&'static Site],
    pokes: &'a [Poke],
}

impl Piece<'_> {
    /// Whether its module is one of those that are gone, by their sites.
    pub(crate) fn is_gone(self, gone: &[&'static [Site]]) -> bool {
        let site = ptr::from_ref(self.sites[0]);
        gone.iter()
            .any(|sites| sites.as_ptr_range().contains(&site))
    }

    /// Writes all changes. To be called while no module can be unloaded.
    pub(crate) fn write(
        self,
        text: &mut Text,
        skip: Skip,
    ) -> (Result<usize, PokeError<i32>>, Changed) {
        let mut changed = vec![None; self.sites.len()];
        let mut later = Vec::new();
        // Threads that block all signals may run these: not a trap where it can be without.
        let is_quiet = |index: &usize| is_quiet(text, &self.pokes[*index]);
        let mut quiet: Vec<usize> = (0..self.pokes.len()).filter(is_quiet).collect();
        if !quiet.is_empty() && os::is_debugged() {
            quiet.clear();
        }
        let mut pokes = Cow::Borrowed(self.pokes);
        for &index in &quiet {
            let poke = &mut pokes.to_mut()[index];
            // So it is passed over.
            poke.old = poke.new;
        }
        let refused = |index: usize, found| match past_uprobe(&self.pokes[index], found) {
            // Under a debugger's breakpoint it is our jump that comes back.
            Some(poke) if is_on(self.sites[index]) && !(found[0] == INT3 && os::is_debugged()) => {
                later.push((index, poke));
            }
            _ => changed[index] = Some(found),
        };
        let mut result = poke::apply_with(text, &pokes, refused, skip);
        if let Ok(done) = &mut result {
            let left = self.exchange(text, &quiet);
            *done += quiet.len() - left.len();
            later.extend(left.into_iter().map(|index| (index, self.pokes[index])));
            later.sort_unstable_by_key(|(index, _)| *index);
        }
        if let (Ok(done), false) = (&mut result, later.is_empty()) {
            let (indices, pokes): (Vec<usize>, Vec<Poke>) = later.into_iter().unzip();
            let refused = |index: usize, found| changed[indices[index]] = Some(found);
            match poke::apply_with(text, &pokes, refused, skip) {
                Ok(more) => *done += more,
                Err(error) => result = Err(error),
            }
        }
        (result, changed)
    }

    /// Changes the sites of `quiet` with their pages. Returns those for which that cannot be had.
    fn exchange(self, text: &mut Text, quiet: &[usize]) -> Vec<usize> {
        let mut left = Vec::new();
        if quiet.is_empty() {
            return left;
        }
        let mut pages = TextPages::now();
        let page = |index: usize| self.pokes[index].address / PAGE * PAGE;
        for group in quiet.chunk_by(|&a, &b| page(a) == page(b)) {
            let address = page(group[0]);
            let change = |bytes: &mut [u8; PAGE]| {
                group.iter().all(|&index| {
                    let poke = &self.pokes[index];
                    let found = &mut bytes[poke.address - address..][..SITE_LEN];
                    let is_old = found == poke.old.bytes;
                    found.copy_from_slice(&poke.new.bytes);
                    is_old
                })
            };
            if !pages.exchange(text, address, change) {
                left.extend(group);
            }
        }
        left
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
                // Under a debugger's breakpoint our jump may still be; the stub finds that no user
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

/// Whether a poke exchanges a single instruction for another one.
fn is_of_one_instruction(poke: &Poke) -> bool {
    (poke.old.starts | poke.new.starts) == 1
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

/// Whether a poke is of a system call, which a function of the C library begins with or makes
/// later: some run with all signals blocked, where threads and processes are made and where they
/// end.
///
/// One instruction becomes another one, within a page.
fn is_quiet(text: &mut Text, poke: &Poke) -> bool {
    let one = is_of_one_instruction(poke) && poke.len == SITE_LEN;
    let mut code = [0; SITE_LEN + 2];
    if !one || poke.address % PAGE > PAGE - code.len() {
        return false;
    }
    let is_call = |[first, second]: [u8; 2]| {
        [poke.old, poke.new].iter().any(|content| {
            let [a, b, c, d, e] = content.bytes;
            system_calls::is_system_call(&[a, b, c, d, e, first, second])
        })
    };
    // Most are none whatever is behind them, so that is not read.
    is_call([0x0f, 0x05])
        && poke::Text::read(text, poke.address, &mut code).is_ok()
        && code[..SITE_LEN] == poke.old.bytes
        && is_call([code[SITE_LEN], code[SITE_LEN + 1]])
}

/// What a uprobe leaves of what `poke` is to replace: the rest of it, behind `first`.
fn after_uprobe(poke: &Poke, first: u8) -> [u8; SITE_LEN] {
    let mut bytes = poke.old.bytes;
    bytes[0] = first;
    bytes
}

/// The change instead of `poke`, which puts a site back, if there is a uprobe or was one.
fn past_uprobe(poke: &Poke, found: [u8; SITE_LEN]) -> Option<Poke> {
    let mut poke = *poke;
    let is_there = found == after_uprobe(&poke, INT3);
    if !is_there && found != after_uprobe(&poke, poke.new.bytes[0]) {
        return None;
    }
    poke.old = Content::one(found);
    if is_there {
        poke.new.bytes[0] = INT3;
    }
    Some(poke)
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

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU64};

    use fgraph_core::site::{Module, SiteName};

    use super::*;

    /// `count` sites of a module, of which that at `relay` is the NOP before the next one.
    fn sites(first: usize, count: usize, relay: usize) -> &'static [Site] {
        let module: &'static Module = Box::leak(Box::new(Module {
            path: "lib.so",
            symbols: &(),
        }));
        let site = |index| Site {
            entry: first + 16 * index,
            body: first + 16 * index + SITE_LEN,
            interest: AtomicU16::new(1),
            lead: 0,
            state: AtomicU8::new(OFF),
            inner: [0; 4],
            name: SiteName::new(""),
            index: index as u32,
            module,
            stub: first,
            runtime: AtomicU64::new(
                sites::Original {
                    bytes: [0x90; SITE_LEN],
                    patched_len: SITE_LEN as u8,
                    is_relay: index == relay,
                    is_system_call: false,
                }
                .to_word(),
            ),
        };
        (0..count).map(site).collect::<Vec<_>>().leak()
    }

    #[test]
    fn a_piece_is_of_one_module_and_does_not_part_a_relay_from_its_function() {
        let [large, small] = [
            sites(1 << 20, PIECE + 10, PIECE - 1),
            sites(1 << 30, 3, usize::MAX),
        ];
        let all: Vec<&Site> = large.iter().chain(small).collect();
        let batch = Batch::plan(all.clone(), |_| true);
        let pieces: Vec<_> = batch.pieces().collect();
        let lens: Vec<_> = pieces.iter().map(|piece| piece.sites.len()).collect();
        assert_eq!(lens, [PIECE + 1, 9, 3]);
        let pairs = |piece: &Piece<'_>| piece.sites.iter().zip(piece.pokes).count();
        assert_eq!(pieces.iter().map(pairs).sum::<usize>(), all.len());
        let written = pieces
            .iter()
            .flat_map(|piece| piece.sites.iter().zip(piece.pokes));
        for ((site, poke), expected) in written.zip(all) {
            assert!(ptr::eq(*site, expected) && poke.address == site.entry);
        }
        let is_gone = |piece: &Piece<'_>| piece.is_gone(&[large]);
        assert_eq!(
            pieces.iter().map(is_gone).collect::<Vec<_>>(),
            [true, true, false]
        );
    }
}
