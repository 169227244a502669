//! Which function an address is in, for callbacks: a table that is made anew when modules come, go
//! or are read, and never changed nor freed.

use core::fmt;
use core::ops::Range;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

use fgraph_core::site::Source;

use super::facts::ModuleFacts;
use super::module::ModuleSites;

/// The code of the modules whose functions have been read, in order.
type Table = [(Range<usize>, &'static ModuleFacts)];

/// The table of now, behind a pointer since its own has a length; null before the first one.
static TABLE: AtomicPtr<&'static Table> = AtomicPtr::new(ptr::null_mut());

fn table() -> &'static Table {
    // SAFETY: null, or a table that was published complete, and is never freed.
    unsafe { TABLE.load(Ordering::Acquire).as_ref() }.map_or(&[], |table| *table)
}

/// All tables that were ever published. Never freed, as a callback may be reading one; kept here so
/// that leak checkers find them.
static PUBLISHED: Mutex<Vec<AtomicPtr<&'static Table>>> = Mutex::new(Vec::new());

/// Publishes the table of the modules that there are now, if it is another one.
pub(super) fn publish<'a>(modules: impl Iterator<Item = &'a ModuleSites>) {
    let symbols = modules.filter_map(ModuleSites::symbols);
    let mut now: Vec<_> = symbols
        .flat_map(|(known, text)| text.map(move |text| (text, known)))
        .collect();
    now.sort_unstable_by_key(|(text, _)| text.start);
    type Row = (Range<usize>, &'static ModuleFacts);
    let is_same = |(a, b): (&Row, &Row)| a.0 == b.0 && ptr::eq(a.1, b.1);
    let before = table();
    if now.len() == before.len() && now.iter().zip(before).all(is_same) {
        return;
    }
    let now: &'static Table = now.leak();
    let table = Box::into_raw(Box::new(now));
    let mut published = PUBLISHED.lock().unwrap_or_else(PoisonError::into_inner);
    published.push(AtomicPtr::new(table));
    // Release: who loads the pointer sees the table.
    TABLE.store(table, Ordering::Release);
}

/// A function of a module, with a site or without.
#[derive(Clone, Copy)]
pub(crate) struct FunctionRow {
    known: &'static ModuleFacts,
    index: usize,
    pub(crate) start: usize,
    pub(crate) size: usize,
}

/// The function that contains an address.
pub(crate) fn find(address: usize) -> Option<FunctionRow> {
    let table = table();
    let behind = table.partition_point(|(text, _)| text.start <= address);
    let (text, known) = table.get(behind.checked_sub(1)?)?;
    let (index, start, size) = known
        .function_at(address)
        .filter(|_| text.contains(&address))?;
    Some(FunctionRow {
        known,
        index,
        start,
        size,
    })
}

impl FunctionRow {
    pub(crate) fn path(&self) -> &'static str {
        self.known.path()
    }

    pub(crate) fn source(&self) -> Option<Source> {
        self.known.source(self.start)
    }

    pub(crate) fn write_name(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.known.write_name(self.index, f)
    }
}
