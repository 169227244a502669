//! The file in which a campaign keeps its results, so that it can go on after an interrupt: a line
//! of JSON that says which campaign it is, and one for each run.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use fgraph_trace::place::Place;
use serde::{Deserialize, Serialize};

use super::view::Run;
use crate::error::Error;

/// The campaign that a file belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Campaign {
    /// The version of the file.
    pub(super) version: u32,
    pub(super) command: Vec<String>,
    pub(super) functions: Vec<String>,
    /// Options that change results.
    pub(super) options: Vec<String>,
}

/// A file with results.
#[derive(Debug)]
pub(super) struct State {
    file: File,
    path: PathBuf,
}

impl State {
    /// Opens or makes the file of a campaign. Returns the results that it has.
    pub(super) fn open(path: &Path, campaign: &Campaign) -> Result<(Self, Vec<Run>), Error> {
        let wrong = |error| Error::Input {
            path: path.into(),
            error,
        };
        let mut options = File::options();
        let options = options.read(true).write(true);
        let opened = Place::find(path).and_then(|place| place.open(options));
        let (mut file, _) = opened.map_err(|error| Error::Write {
            path: path.into(),
            error,
        })?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(wrong)?;
        // A line that was cut off is written again.
        let whole = bytes.iter().rposition(|&byte| byte == b'\n');
        let whole = whole.map_or(0, |end| end + 1);
        let is_empty = bytes.is_empty();
        let mut lines = bytes[..whole].split(|&byte| byte == b'\n');
        let first = lines.next().unwrap_or_default();
        let mut state = Self {
            file,
            path: path.into(),
        };
        if is_empty {
            state.line(campaign)?;
            return Ok((state, Vec::new()));
        }
        match serde_json::from_slice::<Campaign>(first) {
            Ok(known) if known == *campaign => {}
            Ok(_) => {
                let why = "it is of another campaign: name another file, or remove it";
                return Err(wrong(io::Error::other(why)));
            }
            Err(_) => return Err(wrong(io::Error::other("it is no state of a campaign"))),
        }
        let lines = lines.filter(|line| !line.is_empty());
        let runs: Result<Vec<Run>, _> = lines.map(serde_json::from_slice).collect();
        let runs = runs.map_err(|error| wrong(io::Error::other(error)))?;
        state.file.set_len(whole as u64).map_err(wrong)?;
        state
            .file
            .seek(SeekFrom::Start(whole as u64))
            .map_err(wrong)?;
        Ok((state, runs))
    }

    /// Adds a result.
    pub(super) fn add(&mut self, run: &Run) -> Result<(), Error> {
        self.line(run)
    }

    fn line(&mut self, value: &impl Serialize) -> Result<(), Error> {
        let mut line = serde_json::to_vec(value).unwrap_or_default();
        line.push(b'\n');
        self.file.write_all(&line).map_err(|error| Error::Write {
            path: self.path.clone(),
            error,
        })
    }
}
