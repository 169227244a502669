//! Writes the pieces of a batch: by exchanging the text as a whole, or in place.
//!
//! | | in place (`fgraph_x86_64::text_write`) | exchanged (`code/text_exchange.rs`) |
//! |---|---|---|
//! | calls meanwhile | trap, for some 100 µs | run the old function, or wait and run the new one |
//! | cost | grows with the pages that have a site | grows with the pages that differ from the file |
//! | works | everywhere | on text of a file, without a debugger |
//!
//! If threads run parts of a text with all signals blocked, as they do in the C library, it is
//! exchanged wherever that is possible. Other text is exchanged if that is faster.

use core::ops::Range;
use core::ptr;

use super::batch::{Batch, Changed, Piece};
use crate::arch::text_write::{Skip, Text as _, TextWriteError};
use crate::code::changed_text;
use crate::code::text_exchange::{ExchangeError, TextExchange};
use crate::code::text_writer::Text;
use crate::os;
use crate::os::maps::FileMapping;
use crate::process::call_gate;
use fgraph_core::site::Module;

/// The number of pages with a site from which on an exchange may be faster than writing in place.
const MANY_PAGES: usize = 32;

/// An exchange copies all pages that differ from the file once; in place, each page with a site is
/// written three times. So an exchange pays for up to this many private pages for each page with a
/// site.
const PRIVATE_FOR_EACH: usize = 2;

/// The result of writing a piece.
pub(crate) type Written = (Result<usize, TextWriteError<i32>>, Changed);

/// Writes the pieces of a batch, in their order.
#[derive(Debug)]
pub(crate) struct Writer {
    text: Text,
    skip: Skip,
    /// The exchange that the last piece has begun, and the next one continues.
    exchange: Option<TextExchange>,
    /// The module that is written in place.
    in_place: Option<&'static Module>,
}

impl Writer {
    /// Prepares to write `batch`, without the steps to `skip`.
    pub(crate) fn new(batch: &Batch, skip: Skip) -> Self {
        Self {
            text: Text::open_for(batch.len()),
            skip,
            exchange: None,
            in_place: None,
        }
    }

    /// Writes a piece. Returns `None` if calls of it might trap and `may_trap` is false, because
    /// some thread may block traps; some sites may have been changed then.
    ///
    /// `runs_blocked` is true if threads that block traps may run the module's code. Call it while
    /// no module can be unloaded.
    pub(crate) fn write(
        &mut self,
        piece: Piece<'_>,
        runs_blocked: bool,
        may_trap: bool,
    ) -> Option<Written> {
        // No handler runs that could start another thread.
        let is_only_thread = os::status::is_only_thread();
        self.text.is_alone = is_only_thread && os::status::has_own_memory();
        if !self.text.is_alone
            && let Some(written) = self.exchange(piece, runs_blocked)
        {
            return Some(written);
        }
        let spares_those = !self.text.is_alone;
        (may_trap || is_only_thread).then(|| {
            changed_text::leave_out(piece.range().start);
            // The program changes no text that is not writable until the gate opens.
            let held = (!self.text.is_alone).then(call_gate::hold_mappings);
            let is_kept = || matches!(held, Some(Some(_))) && !is_writable(piece.range());
            self.text.is_changing = !self.text.is_alone && !is_kept();
            piece.write(&mut self.text, self.skip, spares_those)
        })
    }

    /// Exchanges the text of a piece; `None` if it must be written in place. A part of it may have
    /// been exchanged then.
    fn exchange(&mut self, piece: Piece<'_>, runs_blocked: bool) -> Option<Written> {
        let module = piece.first_site().module;
        let is_in_place = |known: &Module| ptr::eq(known, module);
        if !self.skip.is_empty() || self.in_place.is_some_and(is_in_place) {
            return None;
        }
        let written = self.exchange_each(piece, runs_blocked);
        if written.is_none() {
            self.exchange = None;
            self.in_place = Some(module);
        }
        written
    }

    /// Exchanges the text of a piece. It is in several mappings if the program has given advice for
    /// a part of its text.
    fn exchange_each(&mut self, piece: Piece<'_>, runs_blocked: bool) -> Option<Written> {
        let (mut all, mut all_changed) = (0, Changed::new());
        let mut rest = Some(piece);
        while let Some(piece) = rest {
            let start = piece.range().start;
            let has = |exchange: &TextExchange| exchange.range().contains(&start);
            if !self.exchange.as_ref().is_some_and(has) {
                self.exchange = begin(piece, runs_blocked);
            }
            let exchange = self.exchange.as_mut()?;
            let (within, others) = piece.split_at(exchange.range().end)?;
            let (done, changed) = match within.exchange(&mut self.text, exchange) {
                Ok(written) => written,
                Err(ExchangeError::Refused) => return None,
                Err(ExchangeError::Lost(error)) => {
                    self.exchange = None;
                    let error = TextWriteError::Stuck {
                        address: start,
                        error,
                    };
                    all_changed.extend(piece.all_changed());
                    return Some((Err(error), all_changed));
                }
            };
            all += done;
            all_changed.extend(changed);
            rest = others;
        }
        let done = self.text.sync().map_err(sync_error).map(|()| all);
        Some((done, all_changed))
    }
}

/// Returns true if the program may write to a part of the text in `range` now.
fn is_writable(range: Range<usize>) -> bool {
    let mut start = range.start;
    while start < range.end {
        match FileMapping::at(start) {
            Some(mapping) if !mapping.protection.writable => start = mapping.range.end,
            _ => return true,
        }
    }
    false
}

fn sync_error(error: i32) -> TextWriteError<i32> {
    TextWriteError::Sync { error }
}

/// Begins to exchange the text that contains the start of a piece, if that is possible and pays.
fn begin(piece: Piece<'_>, runs_blocked: bool) -> Option<TextExchange> {
    let pages = piece.pages_of_module();
    if !runs_blocked && pages < MANY_PAGES || os::status::is_debugged() {
        return None;
    }
    let exchange = TextExchange::begin(piece.range().start)?;
    let pays = || exchange.private_pages() <= Some(PRIVATE_FOR_EACH * pages);
    (runs_blocked || pays()).then_some(exchange)
}
