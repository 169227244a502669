//! A row for each call, at its end.

use std::io;

use fgraph_trace::names::process_id;

use super::text::Out;
use crate::calls::{At, Call, Sink, Trace};
use crate::symbols::Symbol;

pub(crate) struct Csv {
    rows: csv::Writer<Out>,
    is_begun: bool,
}

const COLUMNS: [&str; 10] = [
    "process", "thread", "function", "module", "start", "duration", "self", "depth", "caller",
    "ended",
];

impl Csv {
    pub(crate) fn new(out: Out) -> Self {
        Self {
            rows: csv::WriterBuilder::new()
                .buffer_capacity(1 << 16)
                .from_writer(out),
            is_begun: false,
        }
    }

    fn begin_rows(&mut self) -> csv::Result<()> {
        if !self.is_begun {
            self.is_begun = true;
            self.rows.write_record(COLUMNS)?;
        }
        Ok(())
    }

    fn write_row(&mut self, at: &At<'_>, call: &Call) -> csv::Result<()> {
        self.begin_rows()?;
        let mut buffer = itoa::Buffer::new();
        let rows = &mut self.rows;
        rows.write_field(buffer.format(process_id(at.thread.process)))?;
        rows.write_field(buffer.format(at.thread.id))?;
        rows.write_field(at.symbols.name(call.symbol))?;
        rows.write_field(at.symbols.module_of(call.symbol))?;
        rows.write_field(buffer.format(call.begin))?;
        rows.write_field(buffer.format(call.duration))?;
        rows.write_field(buffer.format(call.own))?;
        rows.write_field(buffer.format(call.depth))?;
        rows.write_field(call.caller.map_or("", |caller| at.symbols.name(caller)))?;
        rows.write_field(call.ending.name())?;
        rows.write_record(None::<&[u8]>)
    }
}

/// The system's error alone, where it is one.
fn plain(error: csv::Error) -> io::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error,
        other => io::Error::other(format!("{other:?}")),
    }
}

impl Sink for Csv {
    fn begin(&mut self, _: &At<'_>, _: Symbol, _: &[u64]) -> io::Result<()> {
        Ok(())
    }

    fn end(&mut self, at: &At<'_>, call: &Call, _: &[u64]) -> io::Result<()> {
        self.write_row(at, call).map_err(plain)
    }

    fn finish(mut self: Box<Self>, _: &Trace<'_>) -> io::Result<()> {
        self.begin_rows().map_err(plain)?;
        self.rows.flush()
    }
}
