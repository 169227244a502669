//! The socket for requests to a recorder.
//!
//! The recorder listens, not the program. A thread of its own accepts, and each client has one
//! until the client is slow or silent: clients delay neither the recorder nor the program.

use std::fs;
use std::io::{self, BufReader, Read, Write};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fgraph_protocol::{Answer, Line, LineError, Request};
use fgraph_trace::place::user;
use fgraph_trace::ring::Rings;

use super::attach;
use super::counts::{Counts, Drained};
use crate::directory;
use crate::error::Error;
use crate::text::escaped;

/// The most clients that are served at once.
const MOST: usize = 8;
/// The time that a client may take to send a line, and to take a reply.
const SLOWEST: Duration = Duration::from_secs(10);
/// The time that the command waits for a reply.
const PATIENCE: Duration = Duration::from_secs(90);

/// The state that clients and the recorder share.
#[derive(Debug)]
struct Shared {
    process: u32,
    /// The rings, if there is a recording.
    rings: Option<Arc<Rings>>,
    // All of these are Relaxed: no other data depends on them.
    bytes: AtomicU64,
    events: AtomicU64,
    entries: AtomicU64,
    is_stopped: AtomicBool,
    is_snapshot: AtomicBool,
    is_over: AtomicBool,
    clients: AtomicUsize,
    /// The time of the last request, and the calls until then.
    last: Mutex<(Instant, u64)>,
}

/// The socket of a recorder. Dropping it removes it.
#[derive(Debug)]
pub(super) struct Socket {
    shared: Arc<Shared>,
    path: PathBuf,
    listener: Arc<UnixListener>,
    thread: Option<JoinHandle<()>>,
}

fn relaxed(flag: &AtomicBool) -> bool {
    flag.load(Ordering::Relaxed)
}

impl Socket {
    /// Listens for requests about a process. Returns `None` if that is impossible: no directory of
    /// ours can contain a socket, or another recorder listens.
    pub(super) fn listen(process: u32, rings: Option<Arc<Rings>>) -> Option<Self> {
        let found = directory::anywhere().find_map(|directory| bind(&directory, process));
        let (listener, path) = found?;
        let shared = Arc::new(Shared {
            process,
            rings,
            bytes: AtomicU64::new(0),
            events: AtomicU64::new(0),
            entries: AtomicU64::new(0),
            is_stopped: AtomicBool::new(false),
            is_snapshot: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            clients: AtomicUsize::new(0),
            last: Mutex::new((Instant::now(), 0)),
        });
        let listener = Arc::new(listener);
        let theirs = (Arc::clone(&listener), Arc::clone(&shared));
        let work = thread::Builder::new().name("fgraph-socket".to_owned());
        let thread = work.spawn(move || accept(&theirs.0, &theirs.1)).ok();
        Some(Self {
            shared,
            path,
            listener,
            thread,
        })
    }

    /// Returns true if a client wants recording to end.
    pub(super) fn is_stopped(&self) -> bool {
        relaxed(&self.shared.is_stopped)
    }

    /// Returns true if a client wants a snapshot, since the last call.
    pub(super) fn takes_snapshot(&self) -> bool {
        self.shared.is_snapshot.swap(false, Ordering::Relaxed)
    }

    /// Passes the counts of drained events to clients.
    pub(super) fn set_drained(&self, drained: Drained) {
        self.shared.bytes.store(drained.bytes, Ordering::Relaxed);
        self.shared.events.store(drained.events, Ordering::Relaxed);
        self.shared
            .entries
            .store(drained.entries, Ordering::Relaxed);
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // First: a client that finds nobody listening may rely on the file being gone.
        let _ = fs::remove_file(&self.path);
        self.shared.is_over.store(true, Ordering::Relaxed);
        // SAFETY: a system call. It ends the wait for a client.
        unsafe { libc::shutdown(self.listener.as_raw_fd(), libc::SHUT_RD) };
        // Removed if nothing else is in it.
        let _ = self.path.parent().map(fs::remove_dir);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn path(directory: &Path, process: u32) -> PathBuf {
    directory.join(format!("{process}.socket"))
}

/// Removes the sockets of recorders that were killed.
fn remove_left_over(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_left = || {
            let refused = UnixStream::connect(&path).err();
            refused.is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
        };
        if path.extension().is_some_and(|it| it == "socket") && is_left() {
            let _ = fs::remove_file(&path);
        }
    }
}

fn bind(directory: &Path, process: u32) -> Option<(UnixListener, PathBuf)> {
    remove_left_over(directory);
    let path = path(directory, process);
    // It gets its name when it listens, so one that refuses is left over.
    let new = directory.join(format!("{process}.{}", std::process::id()));
    let listener = UnixListener::bind(&new).ok()?;
    let named = fs::hard_link(&new, &path);
    let _ = fs::remove_file(&new);
    named.ok()?;
    Some((listener, path))
}

fn accept(listener: &UnixListener, shared: &Arc<Shared>) {
    while !relaxed(&shared.is_over) {
        let Ok((client, _)) = listener.accept() else {
            if !relaxed(&shared.is_over) {
                // A client cannot be accepted: for example, no descriptors are left.
                thread::sleep(Duration::from_millis(1));
            }
            continue;
        };
        if shared.clients.fetch_add(1, Ordering::Relaxed) >= MOST {
            shared.clients.fetch_sub(1, Ordering::Relaxed);
            let _ = client.set_nonblocking(true);
            let _ = (&client).write(b"error there are too many clients\n");
            continue;
        }
        let theirs = Arc::clone(shared);
        let work = move || {
            // A client that fails is gone.
            let _ = serve(&client, &theirs);
            theirs.clients.fetch_sub(1, Ordering::Relaxed);
        };
        if thread::Builder::new().spawn(work).is_err() {
            shared.clients.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Returns the user that has connected.
fn peer(client: &UnixStream) -> io::Result<u32> {
    let mut found = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: a value of this option's type, and its length.
    let got = unsafe {
        libc::getsockopt(
            client.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &mut len,
        )
    };
    match got {
        0 => Ok(found.uid),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns true if a user may send requests.
fn is_allowed(peer: u32) -> bool {
    peer == 0 || peer == user()
}

fn serve(client: &UnixStream, shared: &Shared) -> io::Result<()> {
    if !is_allowed(peer(client)?) {
        return answer(client, Err("this is another user's".to_owned()));
    }
    let mut input = BufReader::new(Deadline::new(client));
    loop {
        input.get_mut().until = Instant::now() + SLOWEST;
        let parsed = match Line::read(&mut input) {
            Ok(Some(parsed)) => parsed,
            Ok(None) => return Ok(()),
            Err(error) => {
                let _ = answer(client, Err("no line has come for 10 s".to_owned()));
                return Err(error);
            }
        };
        let is_long = parsed == Err(LineError::Long);
        let answered = match parsed {
            Ok(line) => shared.do_as(line),
            Err(error) => Err(error.to_string()),
        };
        answer(client, answered)?;
        if is_long {
            return Ok(());
        }
    }
}

/// Sends a text, or the reason that there is none.
fn answer(client: &UnixStream, answer: Result<String, String>) -> io::Result<()> {
    let answer = Answer(answer.map_err(|error| escaped(&error).into_owned()));
    Deadline::new(client).write_all(answer.to_string().as_bytes())
}

/// A client with a deadline, however it divides its data.
struct Deadline<'a> {
    client: &'a UnixStream,
    until: Instant,
}

impl<'a> Deadline<'a> {
    fn new(client: &'a UnixStream) -> Self {
        Self {
            client,
            until: Instant::now() + SLOWEST,
        }
    }

    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        match left.is_zero() {
            true => Err(io::ErrorKind::TimedOut.into()),
            false => Ok(Some(left)),
        }
    }
}

impl Read for Deadline<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.client.set_read_timeout(self.left()?)?;
        self.client.read(buffer)
    }
}

impl Write for Deadline<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.client.set_write_timeout(self.left()?)?;
        self.client.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Shared {
    fn do_as(&self, line: Line) -> Result<String, String> {
        let request = match line {
            Line::Status => return Ok(self.status()),
            Line::Stop => {
                self.is_stopped.store(true, Ordering::Relaxed);
                return Ok(String::new());
            }
            Line::Snapshot if self.rings.is_none() => {
                return Err("there is no recording".to_owned());
            }
            Line::Snapshot => {
                self.is_snapshot.store(true, Ordering::Relaxed);
                return Ok(String::new());
            }
            Line::File(request) => Request::File(request),
        };
        match attach::ask(self.process, |_| Ok(request)) {
            Ok(answer) => answer,
            Err(error) => Err(error.message().unwrap_or_default()),
        }
    }

    fn status(&self) -> String {
        let Some(rings) = &self.rings else {
            return format!("process {}\n", self.process);
        };
        let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let drained = Drained {
            bytes: load(&self.bytes),
            events: load(&self.events),
            entries: load(&self.entries),
        };
        let Counts { calls, lost } = Counts::of(rings, drained);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let (before, until) = std::mem::replace(&mut *last, (Instant::now(), calls));
        let since = before.elapsed().as_secs_f64().max(1e-3);
        let rate = (calls.saturating_sub(until) as f64 / since) as u64;
        let len = drained.bytes;
        let process = self.process;
        format!("process {process}\ncalls {calls}\nlost {lost}\nrate {rate}\nsize {len}\n")
    }
}

/// Sends a request to the recorder of a process: `None` if none listens. Returns its text, or the
/// reason that it has none.
pub(super) fn ask(process: u32, line: &Line) -> Option<Result<String, Error>> {
    let all = directory::anywhere().map(|directory| path(&directory, process));
    let socket = all
        .into_iter()
        .find_map(|path| UnixStream::connect(path).ok())?;
    let failed = |error| Error::Nothing(format!("the recorder of process {process}: {error}"));
    let answer = exchange(&socket, line).map_err(failed);
    Some(answer.and_then(|Answer(answer)| {
        let failed = |why| Error::Nothing(format!("process {process}: {why}"));
        answer.map_err(failed)
    }))
}

fn exchange(socket: &UnixStream, line: &Line) -> io::Result<Answer> {
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    let mut line = line.to_string().into_bytes();
    line.push(b'\n');
    { socket }.write_all(&line)?;
    Answer::read(BufReader::new(socket))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_user_and_root_may_ask() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        assert_eq!(peer(&ours).unwrap(), user());
        assert!(is_allowed(0) && is_allowed(user()));
        assert!(!is_allowed(user() + 1));
    }
}
