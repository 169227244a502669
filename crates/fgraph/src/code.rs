//! Memory that fgraph makes executable: stubs and relocated prologues; and writing to text.

pub(crate) mod arena;
pub(crate) mod changed_text;
pub(crate) mod stub_blocks;
pub(crate) mod text_exchange;
pub(crate) mod text_restore;
pub(crate) mod text_writer;
