//! The users that watch.

use core::hint::black_box;

use fgraph::{Entry, FgraphOps, Return};

/// Wants every return and does nothing.
#[derive(Clone, Copy, Debug)]
pub struct Empty;

impl FgraphOps for Empty {
    type Data = ();

    fn entry(&self, _call: &mut Entry<'_, ()>) -> Option<()> {
        Some(())
    }

    fn ret(&self, _call: &mut Return<'_, ()>, _data: ()) {}
}

/// Wants no return.
#[derive(Clone, Copy, Debug)]
pub struct Declining;

impl FgraphOps for Declining {
    type Data = ();

    fn entry(&self, _call: &mut Entry<'_, ()>) -> Option<()> {
        None
    }
}

/// Carries 16 bytes from each entry to its return.
#[derive(Clone, Copy, Debug)]
pub struct SixteenBytes;

impl FgraphOps for SixteenBytes {
    type Data = [u64; 2];

    fn entry(&self, call: &mut Entry<'_, Self::Data>) -> Option<Self::Data> {
        Some([call.arg(0)?, 1])
    }

    fn ret(&self, _call: &mut Return<'_, Self::Data>, data: Self::Data) {
        black_box(data);
    }
}
