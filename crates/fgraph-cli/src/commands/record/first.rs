//! Recording by commands that then show the recording.

use std::ffi::OsString;
use std::iter;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser as _;
use tempfile::TempDir;

use crate::error::Error;
use crate::launch::DEFAULT_BUDGET;
use crate::launch::interrupt::code_of;
use crate::target::parse_pid;

/// The process or the program that a command records first.
#[derive(Debug, clap::Args)]
pub(crate) struct First {
    /// Record this process first, or several: `-p 1,2` or `-p 1 -p 2`
    #[arg(short, long, value_name = "PID", value_delimiter = ',', value_parser = parse_pid,
        conflicts_with_all = ["command", "path"])]
    pub(crate) pid: Vec<u32>,
    /// Limit the cost of recording to this share of the processor time, as `record --budget`; the
    /// default with -p is 20%, but none with --python
    #[arg(long, value_name = "PERCENT")]
    budget: Option<String>,
    /// Run and record this program first
    #[arg(last = true, conflicts_with = "path")]
    command: Vec<OsString>,
}

impl First {
    /// Returns true if there is one.
    pub(crate) fn is_there(&self) -> bool {
        !self.pid.is_empty() || !self.command.is_empty()
    }

    /// Makes a folder for the recording.
    pub(crate) fn folder() -> Result<TempDir, Error> {
        tempfile::tempdir().map_err(|error| Error::temporary(&error))
    }

    /// Records it with these options of `fgraph record`, for this time if there is one.
    pub(crate) fn record(
        &self,
        options: Vec<OsString>,
        time: Option<Duration>,
        path: &Path,
    ) -> Result<ExitCode, Error> {
        #[derive(clap::Parser)]
        struct Recorder {
            #[command(flatten)]
            args: super::Args,
        }
        let mut words = ["fgraph", "--quiet", "--no-source", "-o"]
            .map(OsString::from)
            .to_vec();
        words.push(path.into());
        let is_python = options.iter().any(|option| option == "--python");
        let is_limited = !self.pid.is_empty() && !is_python;
        let default = is_limited.then_some(DEFAULT_BUDGET);
        if let Some(budget) = self.budget.as_deref().or(default) {
            words.extend(["--budget", budget].map(OsString::from));
        }
        words.extend(options);
        if let Some(time) = time {
            words.extend(["--time".into(), format!("{}ns", time.as_nanos()).into()]);
        }
        for pid in &self.pid {
            words.extend(["-p".into(), pid.to_string().into()]);
        }
        if self.pid.is_empty() {
            words.extend(iter::once("--".into()).chain(self.command.iter().cloned()));
        }
        let recorder = Recorder::try_parse_from(words);
        let recorder = recorder.map_err(|error| Error::Usage(error.to_string()))?;
        // The caller shows the recording, so this process goes on.
        super::record_first(&recorder.args, code_of)
    }
}
