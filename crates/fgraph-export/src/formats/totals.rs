//! Base of the formats that show stacks only, at the end.

use std::io::{self, Write};

use super::text::Out;
use crate::calls::{At, Call, Sink, Trace, Values};
use crate::stacks::Stacks;
use crate::symbols::Symbol;

/// Writes all stacks.
pub(crate) type WriteStacks = fn(&Stacks, &Trace<'_>, &mut Out) -> io::Result<()>;

/// Counts the calls and the time of each stack.
pub(crate) struct Totals {
    stacks: Stacks,
    out: Out,
    write: WriteStacks,
}

impl Totals {
    pub(crate) fn new(out: Out, write: WriteStacks) -> Self {
        Self {
            stacks: Stacks::default(),
            out,
            write,
        }
    }
}

impl Sink for Totals {
    fn thread(&mut self, at: &At<'_>) -> io::Result<()> {
        self.stacks.thread(at.thread);
        Ok(())
    }

    fn begin(&mut self, at: &At<'_>, symbol: Symbol, _: &Values<'_>) -> io::Result<()> {
        self.stacks.begin(at.thread, symbol);
        Ok(())
    }

    fn end(&mut self, at: &At<'_>, call: &Call, _: &Values<'_>) -> io::Result<()> {
        self.stacks.end(at.thread, call);
        Ok(())
    }

    fn finish(mut self: Box<Self>, trace: &Trace<'_>) -> io::Result<()> {
        (self.write)(&self.stacks, trace, &mut self.out)?;
        self.out.flush()
    }
}
