//! `fgraph mount`: the tracefs files of a running process in a directory, for `cat` and `echo`.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, UNIX_EPOCH};

use fuser::{
    BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use rustix::process::{getegid, geteuid};

use crate::error::Error;
use crate::launch::control::Controlled;
use crate::launch::interrupt::Interrupts;
use crate::target::parse_pid;

/// Mount the tracefs files of a running process on a directory
///
/// The files have the same meaning as those of `fgraph ctl`. They stay until Ctrl-C, `umount`, or
/// the end of the process; tracers continue until `fgraph detach`. Needs /dev/fuse, and for users
/// other than root the program fusermount3.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fgraph mount -p 1234 /mnt &
  echo function_graph > /mnt/current_tracer
  cat /mnt/trace
  fgraph mount -p $(pidof server) ~/server")]
pub(crate) struct Args {
    /// The process id
    #[arg(short, long, value_name = "PID", value_parser = parse_pid)]
    pid: u32,
    /// An existing, empty directory
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// The time between two checks if the mount is over.
const NAP: Duration = Duration::from_millis(100);
/// The time for which the list of files, and the kernel's copy of them, stays valid.
const KEPT: Duration = Duration::from_secs(1);

/// Mounts the files, and waits until the mount is over.
pub(crate) fn run(args: Args) -> Result<(), Error> {
    let process = Controlled(args.pid);
    let interrupts = Interrupts::catch();
    process.attach()?;
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName("fgraph".to_owned()),
        MountOption::NoSuid,
        MountOption::NoDev,
        MountOption::NoExec,
    ];
    let failed = |error| Error::Write {
        path: args.directory.clone(),
        error,
    };
    let tree = Tree::new(process);
    let session = fuser::spawn_mount(tree, &args.directory, &config).map_err(failed)?;
    while interrupts.count() == 0 && process.is_there() && !session.guard.is_finished() {
        thread::sleep(NAP);
    }
    match session.guard.is_finished() {
        // By `umount`.
        true => Ok(()),
        false => session.umount_and_join().map_err(failed),
    }
}

/// The owner of the files.
trait Files: Send + Sync + 'static {
    fn list(&self) -> Result<String, Error>;
    fn read(&self, file: &str) -> Result<String, Error>;
    fn write(&self, file: &str, text: &str, append: bool) -> Result<(), Error>;
}

impl Files for Controlled {
    fn list(&self) -> Result<String, Error> {
        (*self).list()
    }

    fn read(&self, file: &str) -> Result<String, Error> {
        (*self).read(file)
    }

    fn write(&self, file: &str, text: &str, append: bool) -> Result<(), Error> {
        (*self).write(file, text, append)
    }
}

/// The tree of files.
#[derive(Debug)]
struct Tree<F> {
    files: F,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The paths of files and directories by their numbers; the first one is the root.
    paths: Vec<String>,
    /// The files, and the time when they were listed.
    list: Option<(Instant, BTreeSet<String>)>,
    /// The content of open files, by their numbers.
    open: Vec<Option<Open>>,
}

#[derive(Debug)]
struct Open {
    path: String,
    is_appending: bool,
    /// The content, since it was first read.
    text: Option<String>,
}

/// A file or a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Node {
    number: u64,
    is_directory: bool,
}

impl<F: Files> Tree<F> {
    fn new(files: F) -> Self {
        let state = State {
            paths: vec![String::new()],
            list: None,
            open: Vec::new(),
        };
        Self {
            files,
            state: Mutex::new(state),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the files at this moment, or those of a second ago.
    fn listed(&self) -> Result<BTreeSet<String>, Errno> {
        if let Some((since, list)) = &self.state().list
            && since.elapsed() < KEPT
        {
            return Ok(list.clone());
        }
        let text = self.files.list().map_err(|error| errno(&error))?;
        let list: BTreeSet<String> = text.lines().map(str::to_owned).collect();
        self.state().list = Some((Instant::now(), list.clone()));
        Ok(list)
    }

    fn path(&self, number: u64) -> Result<String, Errno> {
        let state = self.state();
        let path = number.checked_sub(1).map(|at| at as usize);
        let path = path.and_then(|at| state.paths.get(at));
        path.cloned().ok_or(Errno::ENOENT)
    }

    /// Returns the file or directory at a path.
    fn node(&self, path: &str) -> Result<Node, Errno> {
        let list = self.listed()?;
        let is_directory = path.is_empty() || list.iter().any(|file| below(path, file).is_some());
        if !is_directory && !list.contains(path) {
            return Err(Errno::ENOENT);
        }
        let mut state = self.state();
        let known = state.paths.iter().position(|known| known == path);
        let at = known.unwrap_or_else(|| {
            state.paths.push(path.to_owned());
            state.paths.len() - 1
        });
        Ok(Node {
            number: at as u64 + 1,
            is_directory,
        })
    }

    fn of_number(&self, number: u64) -> Result<Node, Errno> {
        self.node(&self.path(number)?)
    }

    /// Returns the entry of a directory with this name.
    fn child(&self, directory: u64, name: &OsStr) -> Result<Node, Errno> {
        let name = name.to_str().ok_or(Errno::ENOENT)?;
        self.node(&join(&self.path(directory)?, name))
    }

    /// Returns the entries of a directory, by name.
    fn children(&self, directory: u64) -> Result<Vec<(String, Node)>, Errno> {
        let path = self.path(directory)?;
        let list = self.listed()?;
        let below = list.iter().filter_map(|file| below(&path, file));
        let names: BTreeSet<&str> = below
            .map(|rest| rest.split('/').next().unwrap_or(rest))
            .collect();
        let child = |name: &str| Ok((name.to_owned(), self.node(&join(&path, name))?));
        names.into_iter().map(child).collect()
    }

    /// Opens a file, and returns its number.
    fn open_file(&self, number: u64, is_appending: bool) -> Result<u64, Errno> {
        let open = Open {
            path: self.path(number)?,
            is_appending,
            text: None,
        };
        let mut state = self.state();
        let free = state.open.iter().position(Option::is_none);
        let at = free.unwrap_or(state.open.len());
        match free {
            Some(at) => state.open[at] = Some(open),
            None => state.open.push(Some(open)),
        }
        Ok(at as u64)
    }

    fn close(&self, handle: u64) {
        if let Some(open) = self.state().open.get_mut(handle as usize) {
            *open = None;
        }
    }

    /// Returns the path of an open file, and true if writing appends to it.
    fn opened(&self, handle: u64) -> Result<(String, bool), Errno> {
        let state = self.state();
        let open = state.open.get(handle as usize).and_then(Option::as_ref);
        let open = open.ok_or(Errno::EBADF)?;
        Ok((open.path.clone(), open.is_appending))
    }

    /// Returns a part of the content that an open file had when it was first read.
    fn read_file(&self, handle: u64, offset: u64, size: u32) -> Result<Vec<u8>, Errno> {
        let part = |text: &str| {
            let from = text.len().min(offset as usize);
            let bytes = &text.as_bytes()[from..];
            bytes[..bytes.len().min(size as usize)].to_vec()
        };
        let (path, _) = self.opened(handle)?;
        let known = |state: &State| {
            let open = state.open.get(handle as usize)?.as_ref()?;
            open.text.as_deref().map(part)
        };
        if let Some(bytes) = known(&self.state()) {
            return Ok(bytes);
        }
        let text = self.files.read(&path).map_err(|error| errno(&error))?;
        let bytes = part(&text);
        if let Some(Some(open)) = self.state().open.get_mut(handle as usize) {
            open.text = Some(text);
        }
        Ok(bytes)
    }

    /// Writes like the kernel's files do: everything at once.
    fn write_file(&self, handle: u64, offset: u64, data: &[u8]) -> Result<u32, Errno> {
        let (path, is_appending) = self.opened(handle)?;
        let text = str::from_utf8(data).map_err(|_| Errno::EINVAL)?;
        let append = is_appending || offset > 0;
        let written = self.files.write(&path, text, append);
        written.map_err(|error| errno(&error))?;
        Ok(data.len() as u32)
    }

    /// `> trace` empties the file; other files change when data is written.
    fn empty(&self, number: u64) -> Result<(), Errno> {
        match &*self.path(number)? {
            "trace" => self
                .files
                .write("trace", "", false)
                .map_err(|error| errno(&error)),
            _ => Ok(()),
        }
    }
}

fn join(directory: &str, name: &str) -> String {
    match directory {
        "" => name.to_owned(),
        directory => format!("{directory}/{name}"),
    }
}

/// Returns the path of a file relative to a directory that contains it.
fn below<'f>(directory: &str, file: &'f str) -> Option<&'f str> {
    match directory {
        "" => Some(file),
        directory => file.strip_prefix(directory)?.strip_prefix('/'),
    }
}

fn errno(error: &Error) -> Errno {
    match error {
        // The agent's own words.
        Error::Nothing(_) => Errno::EINVAL,
        Error::Usage(_) => Errno::EFBIG,
        _ => Errno::EIO,
    }
}

fn attributes(node: Node) -> FileAttr {
    let (kind, perm, nlink) = match node.is_directory {
        true => (FileType::Directory, 0o700, 2),
        false => (FileType::RegularFile, 0o600, 1),
    };
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    FileAttr {
        ino: INodeNo(node.number),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind,
        perm,
        nlink,
        uid,
        gid,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

impl<F: Files> Filesystem for Tree<F> {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.child(parent.0, name) {
            Ok(node) => reply.entry(&KEPT, &attributes(node), Generation(0)),
            Err(error) => reply.error(error),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.of_number(ino.0) {
            Ok(node) => reply.attr(&KEPT, &attributes(node)),
            Err(error) => reply.error(error),
        }
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<std::time::SystemTime>,
        handle: Option<FileHandle>,
        _crtime: Option<std::time::SystemTime>,
        _chgtime: Option<std::time::SystemTime>,
        _bkuptime: Option<std::time::SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        match size {
            Some(0) => match self.empty(ino.0) {
                Ok(()) => self.getattr(request, ino, handle, reply),
                Err(error) => reply.error(error),
            },
            _ => reply.error(Errno::EPERM),
        }
    }

    fn open(&self, _: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        // The length of a file is unknown before it is read.
        let how = FopenFlags::FOPEN_DIRECT_IO;
        match self.open_file(ino.0, flags.0 & libc::O_APPEND != 0) {
            Ok(handle) => reply.opened(FileHandle(handle), how),
            Err(error) => reply.error(error),
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.read_file(handle.0, offset, size) {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(error),
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.write_file(handle.0, offset, data) {
            Ok(len) => reply.written(len),
            Err(error) => reply.error(error),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.close(handle.0);
        reply.ok();
    }

    fn readdir(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let children = match self.children(ino.0) {
            Ok(children) => children,
            Err(error) => return reply.error(error),
        };
        for (at, (name, node)) in (1..).zip(children).skip(offset as usize) {
            let kind = attributes(node).kind;
            if reply.add(INodeNo(node.number), at, kind, name) {
                break;
            }
        }
        reply.ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that is read as what was written to it.
    #[derive(Debug, Default)]
    struct Fake(Mutex<String>);

    impl Files for Fake {
        fn list(&self) -> Result<String, Error> {
            Ok("options/tail\noptions/cpu\ntrace\nper_thread/7/stats\n".to_owned())
        }

        fn read(&self, file: &str) -> Result<String, Error> {
            match file {
                "trace" => Ok(self.0.lock().unwrap().clone()),
                "options/tail" => Err(Error::Nothing(String::new())),
                file => Ok(format!("{file}\n")),
            }
        }

        fn write(&self, _: &str, text: &str, append: bool) -> Result<(), Error> {
            let mut known = self.0.lock().unwrap();
            if text.len() > 100 {
                return Err(Error::Usage(String::new()));
            }
            if !append {
                known.clear();
            }
            known.push_str(text);
            Ok(())
        }
    }

    fn number(tree: &Tree<Fake>, path: &str) -> u64 {
        let mut found = 1;
        for name in path.split('/') {
            found = tree.child(found, OsStr::new(name)).unwrap().number;
        }
        found
    }

    fn code<T: std::fmt::Debug>(result: Result<T, Errno>) -> i32 {
        i32::from(result.unwrap_err())
    }

    #[test]
    fn files_are_in_directories() {
        let tree = Tree::new(Fake::default());
        let names = |number| {
            let children = tree.children(number).unwrap();
            let text = |(name, node): (String, Node)| (name, node.is_directory);
            children.into_iter().map(text).collect::<Vec<_>>()
        };
        let [options, threads] = ["options", "per_thread"].map(|it| (it.to_owned(), true));
        assert_eq!(names(1), [options, threads, ("trace".to_owned(), false)]);
        let tail = [("cpu".to_owned(), false), ("tail".to_owned(), false)];
        assert_eq!(names(number(&tree, "options")), tail);
        assert_eq!(names(number(&tree, "per_thread")), [("7".to_owned(), true)]);
        assert_eq!(number(&tree, "options/tail"), number(&tree, "options/tail"));
        assert_eq!(code(tree.child(1, OsStr::new("no"))), libc::ENOENT);
        assert_eq!(code(tree.child(1, OsStr::new("opt"))), libc::ENOENT);
        assert_eq!(code(tree.of_number(99)), libc::ENOENT);
        assert_eq!(code(tree.of_number(0)), libc::ENOENT);
        assert_eq!(
            attributes(tree.of_number(1).unwrap()).kind,
            FileType::Directory
        );
    }

    #[test]
    fn written_text_is_read_in_parts() {
        let tree = Tree::new(Fake::default());
        let trace = number(&tree, "trace");
        let plain = tree.open_file(trace, false).unwrap();
        assert_eq!(tree.write_file(plain, 0, b"one ").unwrap(), 4);
        // The rest of what did not fit.
        assert_eq!(tree.write_file(plain, 4, b"two").unwrap(), 3);
        let appending = tree.open_file(trace, true).unwrap();
        tree.write_file(appending, 0, b" three").unwrap();
        assert_eq!(tree.read_file(plain, 0, 7).unwrap(), b"one two");
        // A file that is open stays as it was.
        tree.write_file(appending, 0, b" four").unwrap();
        assert_eq!(tree.read_file(plain, 7, 100).unwrap(), b" three");
        assert_eq!(tree.read_file(plain, u64::MAX, 100).unwrap(), b"");
        tree.close(plain);
        assert_eq!(code(tree.read_file(plain, 0, 1)), libc::EBADF);
        assert_eq!(tree.open_file(trace, false).unwrap(), plain);
        tree.empty(trace).unwrap();
        assert_eq!(tree.read_file(plain, 0, 100).unwrap(), b"");
        tree.empty(number(&tree, "options/cpu")).unwrap();
    }

    #[test]
    fn errors_have_a_number() {
        let tree = Tree::new(Fake::default());
        let tail = tree
            .open_file(number(&tree, "options/tail"), false)
            .unwrap();
        assert_eq!(code(tree.read_file(tail, 0, 1)), libc::EINVAL);
        assert_eq!(code(tree.write_file(tail, 0, b"\xff")), libc::EINVAL);
        assert_eq!(code(tree.write_file(tail, 0, &[b'x'; 101])), libc::EFBIG);
        assert_eq!(code(tree.write_file(99, 0, b"x")), libc::EBADF);
    }
}
