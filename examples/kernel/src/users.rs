//! Users of fgraph: the tools of this kernel.

pub(crate) mod checker;
pub(crate) mod depth;
pub(crate) mod graph;
pub(crate) mod latency;
pub(crate) mod profiler;
