//! Requests about control files, which agents and recorders understand.

use serde::{Deserialize, Serialize};

/// Request about the files of [`Control`](fgraph_tracers::control::Control).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileRequest {
    /// Lists the names of the files, in lines.
    List,
    /// Reads the text of a file.
    Read {
        /// Name of the file.
        file: String,
    },
    /// Writes to a file.
    Write {
        /// Name of the file.
        file: String,
        /// Text that is written.
        text: String,
        /// True if the text is appended to the file.
        append: bool,
    },
}
