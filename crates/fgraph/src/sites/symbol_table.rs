//! The function at an address, for callbacks: a table that is rebuilt when modules are loaded,
//! unloaded or read.

use core::fmt;
use core::ops::Range;
use core::ptr;

use fgraph_core::snapshot::Snapshot;

use fgraph_core::site::Source;
use fgraph_symbols::signature::{NoValue, Signature, Value, ValuePath};

use super::facts::ModuleFacts;

/// The code of the modules whose functions have been read, in order.
type Table = [(Range<usize>, &'static ModuleFacts)];

static TABLE: Snapshot<Box<Table>> = Snapshot::new();

/// Publishes the table of the current modules, with the ranges of their code, if it has changed.
pub(super) fn publish<T: Iterator<Item = Range<usize>>>(
    modules: impl Iterator<Item = (&'static ModuleFacts, T)>,
) {
    let code = modules.flat_map(|(known, text)| text.map(move |text| (text, known)));
    let mut now = Vec::with_capacity(TABLE.read(|before| before.map_or(0, |it| it.len())) + 1);
    now.extend(code);
    now.sort_unstable_by_key(|(text, _)| text.start);
    type Row = (Range<usize>, &'static ModuleFacts);
    let is_same = |(a, b): (&Row, &Row)| a.0 == b.0 && ptr::eq(a.1, b.1);
    let is_published = TABLE.read(|before| {
        let before = before.map_or(&[][..], |before| before);
        now.len() == before.len() && now.iter().zip(before).all(is_same)
    });
    if !is_published {
        TABLE.replace(now.into());
    }
}

/// A function of a module, with a site or without.
#[derive(Clone, Copy)]
pub(crate) struct FunctionRow {
    known: &'static ModuleFacts,
    index: usize,
    pub(crate) start: usize,
    pub(crate) size: usize,
}

/// Returns the function that contains an address.
pub(crate) fn function_containing(address: usize) -> Option<FunctionRow> {
    let known = TABLE.read(|table| {
        let table = table?;
        let behind = table.partition_point(|(text, _)| text.start <= address);
        let (text, known) = table.get(behind.checked_sub(1)?)?;
        text.contains(&address).then_some(*known)
    })?;
    let (index, start, size) = known.function_at(address)?;
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

    pub(crate) fn signature(&self) -> Option<Signature> {
        self.known.signature(self.start)
    }

    pub(crate) fn value(&self, path: &ValuePath) -> Result<Value, NoValue> {
        self.known.value(self.start, path)
    }

    pub(crate) fn write_name(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.known.write_name(self.index, f)
    }
}
