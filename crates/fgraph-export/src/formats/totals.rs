//! Base of the formats that show stacks only, at the end.

use std::io::{self, Write};

use fgraph_analysis::calls::{At, Call, Open, Visitor};

use super::text::Out;
use crate::output::{Output, Trace};
use crate::stacks::Stacks;

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

impl Visitor for Totals {
    type Error = io::Error;

    fn thread(&mut self, at: &At<'_>) -> io::Result<()> {
        self.stacks.thread(at.thread);
        Ok(())
    }

    fn enter(&mut self, at: &At<'_>, call: &Open) -> io::Result<()> {
        let symbol = call.data;
        self.stacks.begin(at.thread, symbol);
        Ok(())
    }

    fn exit(&mut self, at: &At<'_>, call: &Call) -> io::Result<()> {
        self.stacks.end(at.thread, call);
        Ok(())
    }
}

impl Output for Totals {
    fn finish(mut self: Box<Self>, trace: &Trace<'_>) -> io::Result<()> {
        (self.write)(&self.stacks, trace, &mut self.out)?;
        self.out.flush()
    }
}
