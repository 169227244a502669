//! Applies filters: computes the interest bits of sites, and the sites to be patched.
//!
//! For a change of a filter, each module's functions are selected by its words. Only the sites
//! whose bits change are then processed.

use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::arch::text_write::TextWriteError;
use fgraph_core::site::{Site, function_of};
use fgraph_core::{Function, stop};
use fgraph_symbols::filter::{Filter, FilterError, LiveFilter, Matcher};

use super::{Control, users};
use crate::code::text_restore;
use crate::code::text_writer::Text;
use crate::os;
use crate::patching::batch::{Batch, FailedSite, is_on};
use crate::patching::signals;
use crate::patching::writer::Writer;
use crate::process::call_gate::{self, Closed};
use crate::process::image;
use crate::report::error::{
    Error, FilterReport, RefusedFunction, StopReason, Unsupported, WordReport,
};
use crate::sites::planners::Planners;
use crate::sites::{self, Change, Selection, Wanted};

/// Longest time that a batch may block threads that load or unload libraries, apart from the piece
/// that is being written.
const LONGEST_TURN: Duration = Duration::from_millis(2);

/// The number of times that a site was patched or restored.
pub(crate) static SITE_PATCHES: AtomicU64 = AtomicU64::new(0);

/// The result of the batches that were written so far.
#[derive(Debug, Default)]
struct Progress {
    /// The number of users' sites that now jump to their stub and did not before.
    patched: usize,
    failed: Vec<FailedSite>,
    /// True if a module was left out, because it was unloaded.
    left_out: bool,
}

impl Control {
    /// Changes the filter of the user in `slot` with `filter`. After an error it is unchanged.
    pub(crate) fn change_filter(
        &mut self,
        slot: usize,
        filter: Filter,
        change: Change,
    ) -> Result<FilterReport, Error> {
        let matcher = Matcher::new(&filter);
        let new = Wanted {
            matcher: &matcher,
            is_lazy: self.options[slot].lazy_sites,
        };
        let mut changed = self.refresh(Some((new, self.options[slot].planners)))?;
        let selected = match change {
            Change::Remove => Ok(()),
            Change::Set | Change::Add => self.sites.check_addresses(&filter),
        };
        let selected =
            selected.and_then(|()| self.sites.select(&matcher, self.options[slot].breakpoints));
        let requires_match = self.options[slot].require_match && change != Change::Remove;
        let selected = selected
            .map_err(Error::Filter)
            .and_then(|(selections, counts)| {
                let words = word_reports(&matcher, &counts);
                if requires_match {
                    self.check_match(&words, &selections)?;
                }
                Ok((selections, words))
            });
        let (selections, words) = match selected {
            Ok(selected) => selected,
            Err(error) => {
                self.patch_later(changed);
                return Err(error);
            }
        };
        drop(matcher);
        self.undispatched.extend(&changed);
        let own = self.sites.change(slot, selections, change);
        changed.extend(&own);
        let before = self.filters[slot].clone();
        match (&mut self.filters[slot], change) {
            (Some(user), Change::Add) => user.add(filter),
            (Some(user), Change::Remove) => user.remove(filter),
            (user, _) => *user = Some(LiveFilter::new(filter)),
        }
        let patches = SITE_PATCHES.load(Ordering::Relaxed);
        let patched = self.patch(changed).and_then(|patched| {
            // Functions that could not be patched count as refused, too.
            let report = self.report_with(slot, Vec::new());
            match requires_match && report.traced == 0 && !report.refused.is_empty() {
                true => Err(Error::AllRefused {
                    refused: report.refused,
                }),
                false => Ok(patched),
            }
        });
        match patched {
            Ok(patched) => {
                self.patched[slot] = patched;
                self.note_selected(Some((slot, own)));
                // Dropping data of a predicate may panic.
                users::ignore_panic(|| drop(before));
                Ok(self.report_with(slot, words))
            }
            Err(error) => {
                self.filters[slot] = before;
                self.select_anew(slot);
                if SITE_PATCHES.load(Ordering::Relaxed) != patches {
                    // A site that cannot be restored now is processed again the next time.
                    let _ = self.patch(Vec::new());
                }
                Err(error)
            }
        }
    }

    /// Checks that each word without a `!` matches a function, and that a selected function can be
    /// traced.
    fn check_match(&self, words: &[WordReport], selections: &[Selection]) -> Result<(), Error> {
        let is_excluding = |word: &&WordReport| word.word.starts_with('!');
        let is_unmatched = |word: &&WordReport| word.functions == 0 && !is_excluding(word);
        // A word for everything need not be written, and counts nothing beside this one.
        let is_all_excluded = |word: &&WordReport| word.word == "!*";
        let mut blamed: Vec<_> = words.iter().filter(is_all_excluded).collect();
        if blamed.is_empty() {
            blamed = words.iter().filter(is_unmatched).collect();
            // Without words nothing is asked for.
            let is_empty = !words.is_empty() && !selections.iter().any(Selection::has_sites);
            let refused = match is_empty {
                true => self.sites.refused_of(selections),
                false => Vec::new(),
            };
            match (blamed.is_empty(), is_empty, refused.is_empty()) {
                (true, false, _) => return Ok(()),
                (true, true, false) => return Err(Error::AllRefused { refused }),
                // Words are counted only where the filter selects a function, so each may be why.
                (_, true, true) => blamed.extend(words.iter().filter(is_excluding)),
                _ => {}
            }
        }
        let words = blamed.into_iter().map(|word| word.word.clone()).collect();
        Err(Error::NothingMatched { words })
    }

    /// Sets all bits of the user in `slot` according to its filter.
    fn select_anew(&mut self, slot: usize) {
        let selections = self.filters[slot].as_ref().map(|filter| {
            let selected = self
                .sites
                .select(&Matcher::of_live(filter), self.options[slot].breakpoints);
            // The predicate did not panic before.
            selected.map_or(Vec::new(), |(selections, _)| selections)
        });
        self.sites.clear(slot);
        if let Some(selections) = selections {
            self.sites.change(slot, selections, Change::Set);
        }
    }

    /// Makes sites for all functions that the users want, and for those that `new` wants, planned
    /// by `planners` threads. Applies the users' filters to new modules, and returns the sites that
    /// they select there.
    ///
    /// # Errors
    ///
    /// Fails if a predicate of `new` panics.
    pub(super) fn refresh(
        &mut self,
        new: Option<(Wanted<'_, '_>, Planners)>,
    ) -> Result<Vec<&'static Site>, FilterError> {
        if self.sites.refresh() && !self.failed.is_empty() {
            // They may be in an unloaded module.
            self.failed.clear();
            self.unfinished = true;
        }
        let matchers: Vec<_> = match self.sites.has_new() {
            true => {
                let users = self.filters.iter().zip(&self.options);
                let users = users
                    .filter_map(|(filter, options)| Some((filter.as_ref()?, options.lazy_sites)));
                users
                    .map(|(filter, is_lazy)| (Matcher::of_live(filter), is_lazy))
                    .collect()
            }
            false => Vec::new(),
        };
        let wanted = |(matcher, is_lazy)| Wanted { matcher, is_lazy };
        let users = matchers
            .iter()
            .map(|(matcher, is_lazy)| wanted((matcher, *is_lazy)));
        let users: Vec<_> = users.collect();
        let (new, planners) = new.unzip();
        let planners = planners.unwrap_or(Planners::ONE);
        self.sites.prepare(&users, new, planners)?;
        Ok(self
            .sites
            .join(&self.filters, |slot| self.options[slot].breakpoints))
    }

    /// Returns true if a site must be patched.
    fn is_wanted(&self, site: &Site) -> bool {
        if sites::is_padding_jump(site) {
            return self.is_wanted(sites::function_of_padding_jump(site));
        }
        site.interest.load(Ordering::Relaxed) != 0
            || sites::is_hook(site) && self.filters.iter().any(Option::is_some)
    }

    /// Returns the report for the filter of the user in `slot`.
    pub(crate) fn report(&mut self, slot: usize) -> Result<FilterReport, Error> {
        let words = match &self.filters[slot] {
            Some(filter) => {
                let matcher = Matcher::of_live(filter);
                let (_, counts) = self
                    .sites
                    .select(&matcher, self.options[slot].breakpoints)?;
                word_reports(&matcher, &counts)
            }
            None => Vec::new(),
        };
        Ok(self.report_with(slot, words))
    }

    fn report_with(&self, slot: usize, words: Vec<WordReport>) -> FilterReport {
        let traced = match self.unfinished {
            true => self.traced(slot).count(),
            false => self.sites.count_selected(slot) - self.failed(slot).count(),
        };
        FilterReport {
            traced,
            patched: self.patched[slot],
            refused: self.refused(slot),
            words,
        }
    }

    /// Returns the functions that the user in `slot` selects and that cannot be traced.
    pub(crate) fn refused(&self, slot: usize) -> Vec<RefusedFunction> {
        let mut refused = self.sites.refused(slot);
        refused.extend(self.failed(slot).cloned());
        refused
    }

    /// Iterates over the functions that the user in `slot` selects and whose text was not changed.
    fn failed(&self, slot: usize) -> impl Iterator<Item = &RefusedFunction> {
        let bit = 1u16 << slot;
        let failed = self.failed.iter();
        failed
            .filter(move |(site, _)| site.interest.load(Ordering::Relaxed) & bit != 0)
            .map(|(_, refused)| refused)
    }

    /// Returns the traced functions that the user in `slot` selects.
    pub(crate) fn functions(&self, slot: usize) -> Vec<Function> {
        let mut traced: Vec<&Site> = self.traced(slot).collect();
        // The sites of a module may have been made in parts.
        for module in traced.chunk_by_mut(|a, b| ptr::eq(a.module, b.module)) {
            module.sort_by_key(|site| site.entry);
        }
        traced.into_iter().map(function_of).collect()
    }

    fn traced(&self, slot: usize) -> impl Iterator<Item = &'static Site> {
        self.sites.selected(slot).filter(|site| is_on(site))
    }

    /// Patches or restores `sites` according to their interest masks, and those that could not be
    /// changed the last time. Returns the number of sites that now jump to their stub and did not
    /// before.
    pub(super) fn patch(&mut self, mut sites: Vec<&'static Site>) -> Result<usize, Error> {
        if self.unfinished {
            sites = self.sites.iter().collect();
        } else {
            // No filter names padding jumps: they are wanted if a user wants the function that uses
            // them.
            let padding_jumps: Vec<_> = sites
                .iter()
                .filter_map(|site| sites::padding_jump_of(site))
                .collect();
            sites.extend(padding_jumps);
            sites.extend(self.sites.hooks());
            sites.extend(self.failed.iter().map(|(site, _)| *site));
        }
        sites.retain(|site| self.is_wanted(site) != is_on(site));
        if sites.is_empty() {
            signals::ensure_again()?;
            self.failed.clear();
            return Ok(0);
        }
        self.unfinished = true;
        let mut done = Progress::default();
        let [gates, others, last_gates] = self.in_turns(sites);
        self.write(gates, &mut done)?;
        self.write(others, &mut done)?;
        if !last_gates.is_empty() && !os::status::is_debugged() {
            // The program must not change text between its comparison and its loss. Afterwards
            // only the pages of the gates are left.
            self.restore_each_text();
        }
        self.write(last_gates, &mut done)?;
        // A module that was left out may be loaded again at the same address.
        self.unfinished = done.left_out;
        self.failed = done.failed;
        Ok(done.patched)
    }

    /// Splits `sites` into those that are written one after the other. While other threads run, the
    /// gates stand before any other text is exchanged, and go after it.
    fn in_turns(&self, sites: Vec<&'static Site>) -> [Vec<&'static Site>; 3] {
        let mut turns = [const { Vec::new() }; 3];
        let is_alone = os::status::is_only_thread();
        for site in sites {
            let function = match sites::is_padding_jump(site) {
                true => sites::function_of_padding_jump(site),
                false => site,
            };
            let turn = match (is_alone || !sites::is_hook(function), self.is_wanted(site)) {
                (true, _) => 1,
                (false, true) => 0,
                (false, false) => 2,
            };
            turns[turn].push(site);
        }
        turns
    }

    /// Patches or restores `sites`, and adds what was done to `progress`.
    fn write(&self, sites: Vec<&'static Site>, progress: &mut Progress) -> Result<(), Error> {
        let batch = Batch::plan(sites, |site| self.is_wanted(site));
        if batch.is_empty() {
            return Ok(());
        }
        batch.take_signals()?;
        let leaves_traps = batch.leaves_traps();
        let held_back = leaves_traps.then(call_gate::hold_spawns);
        let mut is_checked = leaves_traps && batch.check_signals()?;
        // A thread that blocks traps is outside of all windows: an exchange is safe for it.
        let is_some_blocked = leaves_traps && !is_checked;
        let mut writer = Writer::new(&batch, self.leave_out);
        let mut since = os::now();
        for piece in batch.pieces() {
            held_back.iter().for_each(Closed::renew);
            piece.wait_until_none_inside();
            // Threads that wait for the linker's lock only get it if it is not taken again at once.
            if os::now() - since > LONGEST_TURN {
                os::nap();
                since = os::now();
            }
            let runs_blocked = self.sites.runs_blocked(piece.first_site());
            let mut write = |is_checked: bool| {
                let write = || writer.write(piece, runs_blocked || is_some_blocked, is_checked);
                self.sites.while_locked(|gone| {
                    (!piece.is_gone(gone)).then(|| os::signal_mask::with_traps(write))
                })
            };
            let mut written = write(is_checked);
            if let Some(None) = written {
                batch.check_all_signals()?;
                is_checked = true;
                written = write(true);
            }
            let Some((result, changed)) = written.flatten() else {
                progress.left_out = true;
                continue;
            };
            if let (Err(TextWriteError::Stuck { .. }), false) = (&result, is_checked) {
                // Breakpoints stay.
                signals::unmask();
            }
            let done = result.map_err(failure)?;
            // Relaxed: a counter without other data.
            SITE_PATCHES.fetch_add(done as u64, Ordering::Relaxed);
            let (patched, failed) = piece.settle(&changed);
            progress.patched += patched;
            progress.failed.extend(failed);
        }
        Ok(())
    }
}

impl Control {
    /// Rewrites the jumps that removed uprobes have broken. A failure may be repaired the next
    /// time.
    pub(crate) fn mend(&mut self) -> Result<(), Error> {
        let batch = self.sites.while_locked(|gone| {
            let is_gone = |site: &&Site| {
                let site = ptr::from_ref(*site);
                gone.iter()
                    .any(|sites| sites.as_ptr_range().contains(&site))
            };
            Batch::mend(self.sites.iter().filter(|site| !is_gone(site)))
        });
        if batch.is_empty() {
            return Ok(());
        }
        batch.take_signals()?;
        batch.check_all_signals()?;
        let mut text = Text::open_for(batch.len());
        for piece in batch.pieces() {
            let written = self.sites.while_locked(|gone| {
                let write = || {
                    os::signal_mask::with_traps(|| piece.write(&mut text, self.leave_out, false).0)
                };
                (!piece.is_gone(gone)).then(write)
            });
            written.transpose().map_err(failure)?;
        }
        Ok(())
    }
}

impl Control {
    /// Writes the text again that could not be changed the last time.
    pub(crate) fn restore_functions(&mut self) -> Result<(), Error> {
        if self.unfinished {
            self.patch(Vec::new())?;
            self.restore_text();
        }
        Ok(())
    }

    /// Makes the text of all modules their files' text again, once no user is left, and frees the
    /// data that was read of it.
    pub(super) fn restore_text(&mut self) {
        let has_user = self.filters.iter().any(Option::is_some);
        // With a debugger, pages may change at any time.
        if self.unfinished || has_user || os::status::is_debugged() {
            return;
        }
        self.restore_each_text();
        image::forget_mapped();
        self.sites.forget_searches();
    }

    fn restore_each_text(&self) {
        for (sites, text) in self.sites.changed_text() {
            self.sites.while_locked(|gone| {
                if !gone.iter().any(|gone| ptr::eq(*gone, sites)) {
                    text_restore::restore(text);
                }
            });
        }
    }
}

/// Returns the reason that text could not be changed. Stops fgraph if it could not be restored
/// either.
fn failure(error: TextWriteError<i32>) -> Error {
    match error {
        TextWriteError::Stuck { address, error } => {
            stop::stop(StopReason::Text.code());
            Error::Text {
                address,
                errno: error,
            }
        }
        TextWriteError::Read { address, error } | TextWriteError::Write { address, error } => {
            Error::Text {
                address,
                errno: error,
            }
        }
        TextWriteError::Sync { error } => Unsupported::Membarrier(error).into(),
        error => unreachable!("{error:?}"),
    }
}

fn word_reports(matcher: &Matcher<'_>, counts: &[usize]) -> Vec<WordReport> {
    let words = matcher.words().zip(counts);
    let report = |(word, &functions)| WordReport { word, functions };
    words.map(report).collect()
}
