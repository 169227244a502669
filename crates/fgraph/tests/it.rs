//! The behaviour of fgraph, one module for each subject, in one binary: linking takes longer than
//! compiling these tests. Each scenario runs in a process of its own.

mod common {
    pub(crate) mod clobber;
    pub(crate) mod probes;
    pub(crate) mod switch;
}

mod acting;
mod all_callers;
mod backtraces;
mod bad_input;
mod breakpoints;
mod coroutines;
mod counters;
mod displaced_entries;
mod errors;
mod everything;
mod exchanged_text;
mod fallbacks;
mod fast_path;
mod filters;
mod futures;
mod generated;
mod identity;
mod in_flight;
mod ipa_ra;
mod kept_advice;
mod lazy_sites;
mod libraries;
mod lifecycle;
mod limits;
mod outside;
mod panics;
mod per_thread;
mod plans;
mod preempted;
mod processes;
mod redirected;
mod registration;
mod relocated;
mod restored_text;
mod selected;
mod sites;
mod sqlite;
mod stacks;
mod stop;
mod system_calls;
mod threads;
mod untraced;
mod unwinding;
mod uprobes;
mod users;
mod values;
mod watching;
