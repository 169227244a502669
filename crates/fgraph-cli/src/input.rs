//! The recording that a subcommand reads.

use std::path::{Path, PathBuf};

use fgraph_trace::Recording;

use crate::error::Error;

/// Where recordings are unless the command line says otherwise.
pub(crate) const DEFAULT: &str = "fgraph.data";

/// The argument that names the recording.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Input {
    /// The recording
    #[arg(value_name = "FILE", default_value = DEFAULT)]
    pub(crate) path: PathBuf,
}

impl Input {
    /// Opens the recording.
    pub(crate) fn open(&self) -> Result<Recording, Error> {
        open(&self.path)
    }
}

/// Opens a recording.
pub(crate) fn open(path: &Path) -> Result<Recording, Error> {
    Recording::open(path).map_err(|error| Error::Input {
        path: path.to_owned(),
        error,
    })
}
