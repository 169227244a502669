//! Building blocks of the tracers, each safe to use in a callback at any place.

pub(crate) mod arena;
pub(crate) mod by_function;
pub(crate) mod caller;
pub(crate) mod classes;
pub(crate) mod handler;
pub(crate) mod kernel;
pub(crate) mod looking;
pub(crate) mod mapped;
pub(crate) mod processor;
pub(crate) mod queue;
pub(crate) mod reports;
pub(crate) mod selected;
pub(crate) mod sink;
pub(crate) mod text_line;
pub(crate) mod version;
