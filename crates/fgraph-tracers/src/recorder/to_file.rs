//! A recorder that writes a recording.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use fgraph::{Error, IntoFilter, Untraced};
use fgraph_trace::recording::{Drain, Info};
use fgraph_trace::ring::Rings;

use super::{FinishError, Options, RecordError, Recorder};

/// A recorder with a thread that writes what is recorded to a file; dropping it ends both.
///
/// The rings are in a file beside it, whose name is that of the recording with `.rings` at its end,
/// unless the options name another. It goes when the recording ends. If the program is killed it
/// stays, and [`recover`](fgraph_trace::recording::recover) adds to the recording what is in it:
/// everything up to the last event.
///
/// If the file cannot be written, because the disk is full say, the rings fill up, what is recorded
/// then is lost and counted, and [`finish`](Self::finish) tells why. The program goes on.
///
/// ```
/// use fgraph_trace::{Recording, Source};
/// use fgraph_tracers::recorder::{FileRecorder, Options};
///
/// let path = std::env::temp_dir().join(format!("example-{}.fgraph", std::process::id()));
/// let recorder = FileRecorder::start(&path, "getppid:mod:libc.so*", &Options::default())?;
/// std::os::unix::process::parent_id();
/// recorder.finish()?;
/// let mut recording = Recording::open(&path)?;
/// assert!(recording.next()?.is_some());
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct FileRecorder {
    /// Both are `None` when it has ended.
    recorder: Option<Recorder>,
    writer: Option<JoinHandle<io::Result<u64>>>,
    rings: PathBuf,
    /// A child of the process does not have the thread.
    process: u32,
}

/// How often the thread looks for full sub-buffers.
const NAP: Duration = Duration::from_millis(5);

impl FileRecorder {
    /// Starts recording the calls of the functions that `filter` selects to a file; one that is
    /// there is replaced.
    ///
    /// # Errors
    ///
    /// [`File`](RecordError::File) if the file cannot be written, and those of
    /// [`Recorder::start_with`].
    pub fn start(
        path: &Path,
        filter: impl IntoFilter,
        options: &Options,
    ) -> Result<Self, RecordError> {
        // The new thread and its work are ours, not the program's.
        let _untraced = Untraced::new();
        let mut options = options.clone();
        let rings = options.file.take().unwrap_or_else(|| {
            let mut name = OsString::from(path);
            name.push(".rings");
            name.into()
        });
        options.file = Some(rings.clone());
        let file = File::create(path).map_err(RecordError::File)?;
        let recorder = Recorder::start_with(filter, &options)?;
        let source = recorder.rings().clone();
        let write = move || {
            let _untraced = Untraced::new();
            write(source, file)
        };
        let writer = thread::Builder::new()
            .name("fgraph-recorder".into())
            .spawn(write)
            .map_err(RecordError::File)?;
        Ok(Self {
            recorder: Some(recorder),
            writer: Some(writer),
            rings,
            process: process::id(),
        })
    }

    /// The recorder, to look at what it records or to change its filter. `None` never.
    #[must_use]
    pub fn recorder(&self) -> Option<&Recorder> {
        self.recorder.as_ref()
    }

    /// Ends recording, and waits until all is written. Says how many bytes the file has.
    ///
    /// # Errors
    ///
    /// [`Unregister`](FinishError::Unregister) inside a callback, and
    /// [`File`](FinishError::File) if the file could not be written to its end.
    pub fn finish(mut self) -> Result<u64, FinishError> {
        self.end()
    }

    fn end(&mut self) -> Result<u64, FinishError> {
        let _untraced = Untraced::new();
        let (Some(recorder), Some(writer)) = (self.recorder.take(), self.writer.take()) else {
            return Ok(0);
        };
        let rings = recorder.rings().clone();
        let unregistered: Result<_, Error> = recorder.finish();
        // Also if the recorder is still there, the thread ends.
        rings.finish();
        if self.process != process::id() {
            return Ok(0);
        }
        writer.thread().unpark();
        let lost = |_| io::Error::other("the thread that writes the recording has panicked");
        let written = writer.join().map_err(lost).and_then(|written| written);
        unregistered.map_err(FinishError::Unregister)?;
        let len = written.map_err(FinishError::File)?;
        fs::remove_file(&self.rings).map_err(FinishError::File)?;
        Ok(len)
    }
}

impl Drop for FileRecorder {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// Writes what is in the rings until they are finished.
fn write(rings: Arc<Rings>, file: File) -> io::Result<u64> {
    let mut drain = Drain::new(rings.clone(), file, &Info::of_this_process())?;
    while !rings.is_finished() {
        if drain.drain()? == 0 {
            thread::park_timeout(NAP);
        }
    }
    Ok(drain.finish()?.metadata()?.len())
}
