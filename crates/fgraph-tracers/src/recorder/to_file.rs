//! Recorder that writes a recording.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use fgraph::{Error, IntoFilter, Untraced};
use fgraph_trace::names::process_id;
use fgraph_trace::place;
use fgraph_trace::recording::{Drain, Info};
use fgraph_trace::ring::Rings;

use super::budget::{Budget, Progress, Share};
use super::{FinishError, Options, RecordError, Recorder, Switches};
use crate::Tracer as _;
#[cfg(feature = "states")]
use crate::scheduling::Scheduling;

/// Recorder with a thread that writes the events to a file. Dropping it ends both.
///
/// The rings are in a second file, whose name is that of the recording with `.rings` at its end,
/// unless the options name another. It is removed when the recording ends. If the program is killed
/// it stays, and [`recover`](fgraph_trace::recording::recover) adds its content to the recording:
/// everything up to the last event.
///
/// If the file cannot be written, for example because the disk is full, the rings fill up. Later
/// events are lost and counted, and [`finish`](Self::finish) returns the reason. The program runs
/// on.
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
    /// Both are `None` once the recording has ended.
    recorder: Option<Arc<Recorder>>,
    writer: Option<JoinHandle<io::Result<u64>>>,
    rings: PathBuf,
    /// Process that has the thread. A child of it does not.
    process: u32,
}

/// The time between two looks at the rings.
const NAP: Duration = Duration::from_millis(5);

impl FileRecorder {
    /// Starts recording the calls of the functions that `filter` selects to a file. An existing
    /// file is replaced.
    ///
    /// # Errors
    ///
    /// [`File`](RecordError::File) if the file cannot be written, and the errors of
    /// [`Recorder::start_with`].
    pub fn start(
        path: &Path,
        filter: impl IntoFilter,
        options: &Options,
    ) -> Result<Self, RecordError> {
        Self::start_with(path, filter, options, None)
    }

    /// As [`start`](Self::start), with a share of the program's own processor time that recording
    /// may cost. The thread that writes switches functions off where it costs more, those with the
    /// shortest calls first, and on again when they are called less. Readers hear of it, see
    /// [`Names::off_times`](fgraph_trace::names::Names::off_times).
    ///
    /// The first functions are switched off some tens of milliseconds after the start. A new
    /// [filter](crate::Tracer::set_filter) ends the budget; functions that are switched at that
    /// moment may stay off, and readers hear of that too. A child of `fork` goes on with the
    /// functions that its parent recorded then.
    ///
    /// # Errors
    ///
    /// Fails like [`start`](Self::start).
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph_tracers::recorder::budget::Share;
    /// use fgraph_tracers::recorder::{FileRecorder, Options};
    ///
    /// let path = std::env::temp_dir().join(format!("budget-{}.fgraph", std::process::id()));
    /// let share = Share::percent(5.0).expect("it is in the range");
    /// let options = Options::default();
    /// let recorder = FileRecorder::start_with_budget(&path, "getppid", &options, share)?;
    /// std::os::unix::process::parent_id();
    /// recorder.finish()?;
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn start_with_budget(
        path: &Path,
        filter: impl IntoFilter,
        options: &Options,
        share: Share,
    ) -> Result<Self, RecordError> {
        Self::start_with(path, filter, options, Some(share))
    }

    fn start_with(
        path: &Path,
        filter: impl IntoFilter,
        options: &Options,
        share: Option<Share>,
    ) -> Result<Self, RecordError> {
        // The new thread is not the program's own work, so leave it out of traces.
        let _untraced = Untraced::new();
        let mut options = options.clone();
        let rings = options.file.take().unwrap_or_else(|| {
            let mut name = OsString::from(path);
            name.push(".rings");
            name.into()
        });
        options.file = Some(rings.clone());
        let file = place::create(path, 0o666).map_err(RecordError::File)?;
        let recorder = Arc::new(Recorder::start_with(filter, &options)?);
        let source = recorder.rings().clone();
        // At once: without the head of the file, nothing can be recovered after a kill.
        let drain = Drain::new(source.clone(), file, &Info::of_this_process());
        let drain = drain.map_err(RecordError::File)?;
        let keeper = share.map(|share| Keeper::new(share, &recorder));
        // Before the thread exists: it is one of the threads with states.
        let states = States::of(options.states, &source);
        let write = move || {
            let _untraced = Untraced::new();
            write(&source, drain, keeper, states)
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

    /// Returns the recorder, for its results or for changing its filter. It is never `None`.
    #[must_use]
    pub fn recorder(&self) -> Option<&Recorder> {
        self.recorder.as_deref()
    }

    /// Ends recording, and waits until everything is written. Returns the size of the file in
    /// bytes.
    ///
    /// # Errors
    ///
    /// [`Unregister`](FinishError::Unregister) inside a callback, and [`File`](FinishError::File)
    /// if the file could not be written to its end.
    pub fn finish(mut self) -> Result<u64, FinishError> {
        self.end()
    }

    fn end(&mut self) -> Result<u64, FinishError> {
        let _untraced = Untraced::new();
        let (Some(recorder), Some(writer)) = (self.recorder.take(), self.writer.take()) else {
            return Ok(0);
        };
        let rings = recorder.rings().clone();
        let unregistered = self.finish_recorder(recorder);
        // The thread ends even if the recorder still exists.
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

    /// Ends the recorder, once the thread does not switch functions of it.
    fn finish_recorder(&self, mut recorder: Arc<Recorder>) -> Result<(), Error> {
        loop {
            recorder = match Arc::try_unwrap(recorder) {
                Ok(recorder) => return recorder.finish().map(drop),
                // The thread is not in this process, and never gives its reference back.
                Err(recorder) if self.process != process::id() => {
                    recorder.set_enabled(false);
                    return Ok(());
                }
                Err(recorder) => recorder,
            };
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for FileRecorder {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// Keeps a recorder within its budget.
#[derive(Debug)]
struct Keeper {
    budget: Budget,
    /// Held only while functions are switched.
    recorder: Weak<Recorder>,
    process: u32,
}

impl Keeper {
    fn new(share: Share, recorder: &Arc<Recorder>) -> Self {
        Self {
            budget: Budget::new(share, recorder.rings().clone()),
            recorder: Arc::downgrade(recorder),
            process: process::id(),
        }
    }

    /// Looks at what was written, and switches functions.
    fn keep(&mut self, drain: &Drain<File>) {
        let orders = self.budget.look(|| Progress {
            names: drain.names(),
            // Children keep what they have.
            calls: drain
                .calls()
                .filter(|(process, ..)| process_id(*process) == self.process),
            shortest: drain.shortest_call(),
        });
        for (process, switches) in orders {
            // Without it recording has ended.
            let recorder = self.recorder.upgrade();
            let Some(recorder) = recorder.filter(|recorder| recorder.filters() == 0) else {
                return;
            };
            // SAFETY: the budget switches functions on that this recorder has recorded.
            let switched = unsafe { recorder.switch(&switches) };
            self.budget.settle(process, switched.is_ok());
            if recorder.filters() != 0 {
                // The new filter may leave out what was switched on.
                let off = Switches {
                    off: switches.on,
                    on: Vec::new(),
                };
                // SAFETY: nothing is switched on. Without success it goes on as the user has it.
                let _ = unsafe { recorder.switch(&off) };
            }
        }
    }
}

/// The states of threads, if they are wanted.
struct States {
    #[cfg(feature = "states")]
    scheduling: Option<Scheduling>,
}

impl States {
    fn of(is_wanted: bool, rings: &Rings) -> Self {
        let _ = (is_wanted, rings);
        Self {
            #[cfg(feature = "states")]
            scheduling: is_wanted.then(|| Scheduling::of_this_process(rings.clock())),
        }
    }

    /// Writes the news of them.
    fn write(&mut self, drain: &mut Drain<File>, is_last: bool) -> io::Result<()> {
        let _ = (&mut *drain, is_last);
        #[cfg(feature = "states")]
        if let Some(scheduling) = &mut self.scheduling
            && let Some((changes, lost)) = scheduling.read(is_last)
        {
            drain.schedule(changes, lost)?;
        }
        Ok(())
    }
}

/// Writes the events from the rings until these are finished.
fn write(
    rings: &Rings,
    mut drain: Drain<File>,
    mut keeper: Option<Keeper>,
    mut states: States,
) -> io::Result<u64> {
    while !rings.is_finished() {
        if drain.drain()? == 0 {
            thread::park_timeout(NAP);
        }
        states.write(&mut drain, false)?;
        if let Some(keeper) = &mut keeper {
            keeper.keep(&drain);
        }
    }
    states.write(&mut drain, true)?;
    Ok(drain.finish()?.metadata()?.len())
}
