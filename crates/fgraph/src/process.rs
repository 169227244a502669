//! The modules of this process, their files, the dynamic linker and its events.

pub(crate) mod call_gate;
pub(crate) mod debug_file;
mod described;
mod exports;
pub(crate) mod gate;
pub(crate) mod generated;
pub(crate) mod generated_modules;
pub(crate) mod ifunc;
pub(crate) mod image;
pub(crate) mod linker;
pub(crate) mod listed_entries;
mod loaded_module;
pub(crate) mod loader_event;
pub(crate) mod modules;
pub(crate) mod plan_store;
