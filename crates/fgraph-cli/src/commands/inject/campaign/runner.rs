//! Starts the runs of a campaign, each in a folder and a process of its own.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tempfile::TempDir;

use super::compare::Ran;
use super::files::{self, replaced};
use super::job::{Answer, ERR, Exit, JOB, Job, OUT, OUTCOME, Outcome};
use crate::error::Error;
use crate::launch::{NAP, inherited};

/// The time that a run may take in addition to the program's.
const SLACK: Duration = Duration::from_secs(60);
/// The most bytes of output that are compared.
const COMPARED: u64 = 64 << 20;

/// Starts runs.
#[derive(Debug)]
pub(super) struct Runner {
    folder: TempDir,
    /// The directory that each run has a copy of.
    directory: Option<PathBuf>,
    stdin: Option<PathBuf>,
    command: Vec<OsString>,
    program: PathBuf,
}

impl Runner {
    pub(super) fn new(
        command: &[OsString],
        directory: Option<&Path>,
        stdin: Option<&Path>,
    ) -> Result<Self, Error> {
        let whole = |path: &Path| {
            fs::canonicalize(path).map_err(|error| Error::Input {
                path: path.into(),
                error,
            })
        };
        let directory = directory.map(whole).transpose()?;
        let stdin = stdin.map(whole).transpose()?;
        if let Some(path) = directory.as_ref().filter(|path| !path.is_dir()) {
            return Err(Error::Usage(format!(
                "--dir: {} is no directory",
                path.display()
            )));
        }
        let mut command = command.to_vec();
        let program = command.first().map_or_else(PathBuf::new, PathBuf::from);
        // The program starts in another directory.
        if let Some(first) = command.first_mut()
            && first.as_bytes().contains(&b'/')
            && let Ok(path) = std::path::absolute(&program)
        {
            *first = path.into_os_string();
        }
        let folder = tempfile::Builder::new().prefix("fgraph-inject").tempdir();
        let folder = folder.map_err(|error| Error::temporary(&error))?;
        if let Some(directory) = &directory {
            let inside = whole(folder.path())?;
            if inside.starts_with(directory) {
                return Err(Error::Usage(format!(
                    "--dir: {} has the directory for temporary files inside",
                    directory.display()
                )));
            }
        }
        Ok(Self {
            folder,
            directory,
            stdin,
            command,
            program,
        })
    }

    /// Does a job, as run `number`, until `is_enough`.
    pub(super) fn run(
        &self,
        number: usize,
        job: &Job,
        is_enough: impl Fn() -> bool,
    ) -> Result<Ran, Error> {
        // All paths are equally long, since programs may store them.
        let folder = self.folder.path().join(format!("{number:08}"));
        let failed = |error| Error::Write {
            path: folder.clone(),
            error,
        };
        fs::create_dir(&folder).map_err(failed)?;
        let copy = folder.join("dir");
        if let Some(directory) = &self.directory {
            files::copy(directory, &copy)?;
        }
        let text = serde_json::to_vec(job).unwrap_or_default();
        fs::write(folder.join(JOB), text).map_err(failed)?;
        let child = self.start(&folder, &copy).map_err(failed)?;
        wait(child, job.limit + SLACK, &is_enough).map_err(failed)?;
        let answer = fs::read(folder.join(OUTCOME)).ok();
        let answer = answer.and_then(|answer| serde_json::from_slice(&answer).ok());
        let cannot = |why: String| Error::Program {
            path: self.program.clone(),
            why,
            is_missing: false,
        };
        let outcome = match answer {
            Some(Answer::Done(outcome)) => outcome,
            Some(Answer::Failed(why)) => return Err(cannot(why)),
            // It was interrupted before it could say so.
            None if is_enough() => Outcome::without_end(Exit::Interrupted),
            None => {
                return Err(cannot(
                    "the process of a run has ended without a result".into(),
                ));
            }
        };
        let read = |name: &str| -> io::Result<Vec<u8>> {
            let mut bytes = Vec::new();
            let file = File::open(folder.join(name))?.take(COMPARED);
            { file }.read_to_end(&mut bytes)?;
            Ok(replaced(&bytes, copy.as_os_str().as_bytes()).into_owned())
        };
        let files = match &self.directory {
            Some(_) => Some(files::contents(&copy).map_err(failed)?),
            None => None,
        };
        let ran = Ran {
            outcome,
            out: read(OUT).map_err(failed)?,
            err: read(ERR).map_err(failed)?,
            files,
        };
        // A folder that cannot be removed now is removed at the end, as far as possible.
        _ = fs::remove_dir_all(&folder);
        Ok(ran)
    }

    fn start(&self, folder: &Path, copy: &Path) -> io::Result<Child> {
        let mut command = Command::new("/proc/self/exe");
        command
            .args(["inject", "--no-config", "--one"])
            .arg(folder)
            .args(["-", "skip", "--"])
            .args(&self.command)
            .stdout(File::create(folder.join(OUT))?)
            .stderr(File::create(folder.join(ERR))?);
        command.stdin(match &self.stdin {
            Some(path) => Stdio::from(File::open(path)?),
            None => Stdio::null(),
        });
        if self.directory.is_some() {
            command.current_dir(copy).env("PWD", copy);
        }
        inherited::pass_on(&mut command);
        command.spawn()
    }
}

/// Waits for the process of a run. It is asked to end if `is_enough`, and killed if it does not end
/// in time.
fn wait(mut child: Child, limit: Duration, is_enough: impl Fn() -> bool) -> io::Result<()> {
    let pid = Pid::from_child(&child);
    let (mut until, mut is_asked) = (Instant::now() + limit, false);
    while child.try_wait()?.is_none() {
        if Instant::now() >= until {
            _ = kill_process_group(pid, Signal::KILL);
            child.wait()?;
            break;
        }
        if !is_asked && is_enough() {
            (until, is_asked) = (Instant::now() + SLACK / 4, true);
        }
        if is_asked {
            // The first signal is passed on to the program, which may ignore it.
            _ = kill_process(pid, Signal::TERM);
        }
        thread::sleep(NAP);
    }
    Ok(())
}
