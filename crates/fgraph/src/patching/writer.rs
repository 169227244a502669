//! Writing the pieces of a batch: with the text as a whole, or in place.
//!
//! | | in place (`fgraph_x86_64::poke`) | exchanged (`code/text_exchange.rs`) |
//! |---|---|---|
//! | calls meanwhile | trap, for some 100 µs | run the old function, or wait and run the new one |
//! | cost | grows with the pages that have a site | grows with the pages that differ from the file |
//! | works | everywhere | on text of a file, without a debugger |
//!
//! Text of which threads run parts with all signals blocked, as they do in the C library, is
//! exchanged wherever that is possible. Other text is exchanged where that takes less time.

use core::ops::Range;
use core::ptr;

use super::batch::{Batch, Changed, Piece};
use crate::arch::poke::{PokeError, Skip, Text as _};
use crate::code::text_exchange::{ExchangeError, TextExchange};
use crate::code::text_writer::Text;
use crate::os;
use fgraph_core::site::Module;

/// Pages with a site, from which on an exchange may take less time than writing in place.
const MANY_PAGES: usize = 32;

/// An exchange copies all pages that differ from the file once; in place, each page with a site is
/// written three times. So up to as many pages for each of those make the exchange pay.
const PRIVATE_FOR_EACH: usize = 2;

/// Result of writing a piece.
pub(crate) type Written = (Result<usize, PokeError<i32>>, Changed);

/// Writes the pieces of a batch, in their order.
#[derive(Debug)]
pub(crate) struct Writer {
    text: Text,
    skip: Skip,
    /// The exchange that the last piece has begun, and the next one goes on with.
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

    /// Writes a piece. Returns `None` if calls of it might trap and no thread `may_trap`, because
    /// it is not known that none blocks traps; some sites may have been changed then.
    ///
    /// `runs_blocked` says whether threads that block traps may run the module's code. To be called
    /// while no module can be unloaded.
    pub(crate) fn write(
        &mut self,
        piece: Piece<'_>,
        runs_blocked: bool,
        may_trap: bool,
    ) -> Option<Written> {
        // No handler runs that could start another thread.
        let is_only_thread = os::is_only_thread();
        self.text.is_alone = is_only_thread && os::has_own_memory();
        if !self.text.is_alone
            && let Some(written) = self.exchange(piece, runs_blocked)
        {
            return Some(written);
        }
        let spares_those = !self.text.is_alone;
        (may_trap || is_only_thread).then(|| piece.write(&mut self.text, self.skip, spares_those))
    }

    /// Exchanges the text of a piece; `None` if it is to be written in place.
    fn exchange(&mut self, piece: Piece<'_>, runs_blocked: bool) -> Option<Written> {
        let range = piece.range();
        let module = piece.first_site().module;
        let is_in_place = |known: &Module| ptr::eq(known, module);
        if !self.skip.is_empty() || self.in_place.is_some_and(is_in_place) {
            return None;
        }
        let has = |exchange: &TextExchange| exchange.range().contains(&range.start);
        if !self.exchange.as_ref().is_some_and(has) {
            self.exchange = begin(piece, runs_blocked);
        }
        let done = self.exchange.take().and_then(|mut exchange| {
            let is_within = range.end <= exchange.range().end;
            let written = is_within.then(|| piece.exchange(&mut self.text, &mut exchange))?;
            match written {
                Ok((done, changed)) => {
                    self.exchange = Some(exchange);
                    Some((self.text.sync().map_err(sync_error).map(|()| done), changed))
                }
                Err(ExchangeError::Refused) => None,
                Err(ExchangeError::Lost(error)) => {
                    let address = range.start;
                    Some((
                        Err(PokeError::Stuck { address, error }),
                        piece.all_changed(),
                    ))
                }
            }
        });
        if done.is_none() {
            self.in_place = Some(module);
        }
        done
    }
}

/// Makes the text in `range` the file's again, but for what another tool has changed. To be called
/// while no module can be unloaded, and no site in it is patched.
///
/// Text that cannot be exchanged stays as it is: the file's bytes, in memory of the process.
pub(crate) fn restore(range: Range<usize>) -> Result<(), PokeError<i32>> {
    let begun = (!os::is_debugged()).then(|| TextExchange::begin(range.start));
    let Some(mut exchange) = begun.flatten() else {
        return Ok(());
    };
    if exchange.private_pages() == Some(0) {
        return Ok(());
    }
    match exchange.advance(&mut Text::open(), usize::MAX, &[], |_| true, || ()) {
        Err(ExchangeError::Lost(error)) => Err(PokeError::Stuck {
            address: range.start,
            error,
        }),
        _ => Ok(()),
    }
}

fn sync_error(error: i32) -> PokeError<i32> {
    PokeError::Sync { error }
}

/// Begins to exchange the text that a piece begins in, if that is possible and pays.
fn begin(piece: Piece<'_>, runs_blocked: bool) -> Option<TextExchange> {
    let pages = piece.pages_of_module();
    if !runs_blocked && pages < MANY_PAGES || os::is_debugged() {
        return None;
    }
    let exchange = TextExchange::begin(piece.range().start)?;
    let pays = || exchange.private_pages() <= Some(PRIVATE_FOR_EACH * pages);
    (runs_blocked || pays()).then_some(exchange)
}
