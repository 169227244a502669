//! Settings and requests that the `fgraph` command passes to the agent, the library that it
//! preloads into programs.
//!
//! The command makes rings in shared memory, and starts the program with the agent and these
//! [`Settings`] in its environment. The agent removes both from the environment before the
//! program's `main`, and restores them for programs that this one executes.
//!
//! In a process that already runs, the command sends [`Request`]s to the agent, which writes a
//! [`Reply`] to each. A recorder reads [`Line`]s from its socket, and sends an [`Answer`] to each.

mod calls;
mod file_request;
mod heap;
mod line;
mod message;
mod own_rings;
mod plans;
mod process;
mod request;
mod rings_file;
mod sandbox;
mod settings;
mod values;
mod which;

pub use calls::{CALLS, OWN_CALLS};
pub use file_request::FileRequest;
pub use heap::HeapFunctions;
pub use line::{Answer, Line, LineError};
pub use own_rings::OwnRings;
pub use plans::PlanDirectory;
pub use process::is_there;
pub use request::{Reply, Request, STREAM_END, STREAM_HEAD};
pub use rings_file::RingsFile;
pub use sandbox::filters;
pub use settings::{
    ASAN_OPTION, ASAN_VARIABLE, Languages, ProcessSettings, RingsPlace, SYSTEM, Settings, Tool,
    Trigger, VARIABLE,
};
pub use values::CallValues;
pub use which::{NEVER, WhichCalls};
