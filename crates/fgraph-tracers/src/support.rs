//! What the tracers are made of, each part right in a callback at any place.

pub(crate) mod arena;
pub(crate) mod classes;
pub(crate) mod histogram;
pub(crate) mod kernel;
