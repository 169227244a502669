//! Writes a row for each call, at its end.

use std::borrow::Cow;
use std::io;

use fgraph_analysis::calls::{At, Call, Open, Values, Visitor};
use fgraph_analysis::numbers::grown;
use fgraph_trace::names::process_id;
use fgraph_trace::text::{escaped, push_escaped};

use super::text::Out;
use crate::output::{Output, Trace, ending_name};

pub(crate) struct Csv {
    rows: csv::Writer<Out>,
    is_begun: bool,
    /// Arguments of the running calls of each thread.
    arguments: Vec<Vec<String>>,
}

const COLUMNS: [&str; 12] = [
    "process",
    "thread",
    "function",
    "module",
    "start",
    "duration",
    "self",
    "depth",
    "caller",
    "ended",
    "arguments",
    "result",
];

impl Csv {
    pub(crate) fn new(out: Out) -> Self {
        Self {
            rows: csv::WriterBuilder::new()
                .buffer_capacity(1 << 16)
                .from_writer(out),
            is_begun: false,
            arguments: Vec::new(),
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
        let open = self.arguments.get_mut(at.thread.index);
        let arguments = open.and_then(Vec::pop).unwrap_or_default();
        let mut buffer = itoa::Buffer::new();
        let rows = &mut self.rows;
        rows.write_field(buffer.format(process_id(at.thread.process)))?;
        rows.write_field(buffer.format(at.thread.id))?;
        rows.write_field(&*cell(at.functions.name(call.slot)))?;
        rows.write_field(&*cell(at.functions.module_of(call.slot)))?;
        rows.write_field(buffer.format(call.begin))?;
        let duration = call.length();
        rows.write_field(duration.map_or("", |duration| buffer.format(duration)))?;
        rows.write_field(buffer.format(call.own))?;
        rows.write_field(buffer.format(at.around.len()))?;
        let caller = at
            .around
            .last()
            .map_or("", |call| at.functions.name(call.data));
        rows.write_field(&*cell(caller))?;
        rows.write_field(ending_name(call.ending))?;
        rows.write_field(&*cell(&arguments))?;
        rows.write_field(&*cell(&written(at.values, false)))?;
        rows.write_record(None::<&[u8]>)
    }
}

/// Formats recorded values in one cell.
fn written(values: &Values<'_>, has_names: bool) -> String {
    let words = values.words.iter().map(|word| format!("{word:#x}"));
    let typed = values.typed.iter().map(|(name, value)| match has_names {
        true => format!("{name}={value}"),
        false => value.clone(),
    });
    let mut text = String::new();
    for each in typed.chain(words) {
        text.push_str(if text.is_empty() { "" } else { ", " });
        text.push_str(&each);
    }
    text
}

/// Returns a text that terminals do not obey and spreadsheets do not take for a formula: a text
/// that looks like one gets an apostrophe before it.
fn cell(text: &str) -> Cow<'_, str> {
    // Lines and tabs are part of a cell's text.
    let text = if text.contains(['\n', '\t']) {
        let mut shown = String::with_capacity(text.len());
        for character in text.chars() {
            match character {
                '\n' | '\t' => shown.push(character),
                _ => push_escaped(&mut shown, character),
            }
        }
        Cow::Owned(shown)
    } else {
        escaped(text)
    };
    let looks_so = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
    match looks_so && text.parse::<f64>().is_err() {
        true => Cow::Owned(format!("'{text}")),
        false => text,
    }
}

/// Returns the system's error alone, if it is one.
fn plain(error: csv::Error) -> io::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error,
        other => io::Error::other(format!("{other:?}")),
    }
}

impl Visitor for Csv {
    type Error = io::Error;

    fn enter(&mut self, at: &At<'_>, _: &Open) -> io::Result<()> {
        grown(&mut self.arguments, at.thread.index).push(written(at.values, true));
        Ok(())
    }

    fn exit(&mut self, at: &At<'_>, call: &Call) -> io::Result<()> {
        self.write_row(at, call).map_err(plain)
    }
}

impl Output for Csv {
    fn finish(mut self: Box<Self>, _: &Trace<'_>) -> io::Result<()> {
        self.begin_rows().map_err(plain)?;
        self.rows.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_is_a_formula() {
        for (text, shown) in [
            ("main", "main"),
            ("-5", "-5"),
            ("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"),
            ("+1+1", "'+1+1"),
            ("@SUM(A1)", "'@SUM(A1)"),
        ] {
            assert_eq!(cell(text), shown);
        }
    }
}
