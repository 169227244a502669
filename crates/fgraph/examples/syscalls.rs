//! The system calls of a job, as `strace` shows them, from inside the program.
//!
//! The user watches the C library's wrappers of system calls: their names, arguments and results,
//! `errno` where they fail, and how long they took. Each is one line, written as the call returns;
//! the callbacks neither allocate nor lock, so that a wrapper may be called from anywhere.
//!
//! The job copies a file, reads the copy and takes it away again.
//!
//!     cargo run --release --example syscalls -- README.md

use std::error::Error;
use std::fmt::{self, Write as _};
use std::io::Read as _;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use std::{env, fs, io, process};

use fgraph::{Entry, FgraphOps, Filter, Handle, Return};

/// Format of an argument.
#[derive(Clone, Copy)]
enum Show {
    /// A number of 32 bits, such as a file descriptor.
    Int,
    /// A length or an offset.
    Size,
    /// Flags or an address.
    Hex,
    /// Permissions.
    Mode,
    /// A text that ends with a 0.
    Text,
}

use Show::{Hex, Int, Mode, Size, Text};

/// Properties of a wrapper.
struct Wrapper {
    name: &'static str,
    args: &'static [Show],
    /// True if it returns a number of 64 bits; else it is one of 32.
    is_long: bool,
}

const fn int(name: &'static str, args: &'static [Show]) -> Wrapper {
    Wrapper {
        name,
        args,
        is_long: false,
    }
}

const fn long(name: &'static str, args: &'static [Show]) -> Wrapper {
    Wrapper {
        name,
        args,
        is_long: true,
    }
}

/// Wrappers by their names in the C library.
const WRAPPERS: &[Wrapper] = &[
    int("open64", &[Text, Hex, Mode]),
    int("openat64", &[Int, Text, Hex, Mode]),
    int("close", &[Int]),
    long("read", &[Int, Hex, Size]),
    long("write", &[Int, Hex, Size]),
    long("pread64", &[Int, Hex, Size, Size]),
    long("pwrite64", &[Int, Hex, Size, Size]),
    long("lseek64", &[Int, Size, Int]),
    long("copy_file_range", &[Int, Hex, Int, Hex, Size, Hex]),
    long("sendfile64", &[Int, Int, Hex, Size]),
    int("statx", &[Int, Text, Hex, Hex, Hex]),
    int("fstat64", &[Int, Hex]),
    int("stat64", &[Text, Hex]),
    int("fchmod", &[Int, Mode]),
    int("fcntl64", &[Int, Int, Hex]),
    int("unlink", &[Text]),
    long("mmap64", &[Hex, Size, Hex, Hex, Int, Size]),
    int("munmap", &[Hex, Size]),
];

/// Shows what the wrappers are called with, and what they return.
struct Strace {
    /// Wrappers by the number of the function, once it is known.
    wrappers: OnceLock<Vec<Option<&'static Wrapper>>>,
    /// Descriptor that lines are written to.
    out: i32,
    lines: AtomicU64,
    /// Bytes that calls of `read` have given.
    read: AtomicU64,
    /// Calls that failed since there is no such file.
    not_found: AtomicU64,
}

/// Data that a call carries from entry to return.
#[derive(Clone, Copy)]
struct Call {
    entered: Instant,
    wrapper: &'static Wrapper,
    args: [u64; 6],
    text: Start,
}

impl Strace {
    fn new(out: &impl AsRawFd) -> Self {
        Self {
            wrappers: OnceLock::new(),
            out: out.as_raw_fd(),
            lines: AtomicU64::new(0),
            read: AtomicU64::new(0),
            not_found: AtomicU64::new(0),
        }
    }

    /// Looks up which function is which wrapper: calls are shown from now on.
    fn start(user: &Handle<Self>) -> Result<(), fgraph::Error> {
        let mut wrappers: Vec<Option<&Wrapper>> = Vec::new();
        wrappers.resize_with(fgraph::function_count() as usize, || None);
        for function in user.functions()? {
            let is_it = |wrapper: &&Wrapper| function.names().any(|name| name == wrapper.name);
            wrappers[function.index() as usize] = WRAPPERS.iter().find(is_it);
        }
        user.user().wrappers.get_or_init(|| wrappers);
        Ok(())
    }
}

impl FgraphOps for Strace {
    type Data = Call;

    fn entry(&self, call: &mut Entry<'_, Call>) -> Option<Call> {
        let wrapper = self.wrappers.get()?.get(call.function().index() as usize)?;
        let wrapper = (*wrapper)?;
        let args = [0, 1, 2, 3, 4, 5].map(|index| call.arg(index).unwrap_or(0));
        let text = wrapper.args.iter().position(|show| matches!(show, Text));
        Some(Call {
            entered: Instant::now(),
            wrapper,
            args,
            text: text.map_or(Start([0; LEN]), |index| Start::peek(args[index] as usize)),
        })
    }

    fn ret(&self, call: &mut Return<'_, Call>, data: Call) {
        let took = data.entered.elapsed();
        let result = call.result().unwrap_or(0);
        let result = if data.wrapper.is_long {
            result as i64
        } else {
            (result as i32).into()
        };
        let mut line = Line::new();
        // Text beyond the end of a line is dropped.
        let _ = write!(line, "[{}] {}(", call.thread_id(), data.wrapper.name);
        for (index, (show, arg)) in data.wrapper.args.iter().zip(data.args).enumerate() {
            let _ = line.write_str(if index == 0 { "" } else { ", " });
            let _ = match show {
                Int => write!(line, "{}", arg as i32),
                Size => write!(line, "{}", arg as i64),
                Hex => write!(line, "{arg:#x}"),
                Mode => write!(line, "{:#o}", arg as u32),
                Text => write!(line, "\"{}\"", data.text),
            };
        }
        let _ = write!(line, ") = {result}");
        if result == -1 {
            let _ = write!(line, " {}", Errno(call.errno()));
            let is_not_found = call.errno() == libc::ENOENT;
            self.not_found
                .fetch_add(is_not_found.into(), Ordering::Relaxed);
        } else if data.wrapper.name == "read" {
            self.read.fetch_add(result as u64, Ordering::Relaxed);
        }
        let _ = writeln!(line, " <{:.6}>", took.as_secs_f64());
        self.lines.fetch_add(1, Ordering::Relaxed);
        line.write_to(self.out);
    }
}

/// Bytes of a text that are kept.
const LEN: usize = 48;

/// The start of an argument that is a text, which may be gone when the call returns.
#[derive(Clone, Copy)]
struct Start([u8; LEN]);

impl Start {
    /// Reads it, wherever the argument points to: the kernel looks whether there is memory.
    fn peek(address: usize) -> Self {
        let mut text = [0; LEN];
        let before = LEN.min(4096 - address % 4096);
        let part = |address: usize, len| libc::iovec {
            iov_base: address as *mut libc::c_void,
            iov_len: len,
        };
        let from = [
            part(address, before),
            part(address.wrapping_add(before), LEN - before),
        ];
        let to = part(text.as_mut_ptr() as usize, LEN);
        // SAFETY: so much room; what is read is checked by the kernel.
        unsafe { libc::process_vm_readv(libc::getpid(), &to, 1, from.as_ptr(), 2, 0) };
        Self(text)
    }
}

impl fmt::Display for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.0.iter().position(|&byte| byte == 0);
        write!(f, "{}", self.0[..end.unwrap_or(LEN)].escape_ascii())?;
        f.write_str(if end.is_none() { "..." } else { "" })
    }
}

/// The name of an error, as far as files have it.
struct Errno(i32);

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.0 {
            libc::EACCES => "EACCES",
            libc::EAGAIN => "EAGAIN",
            libc::EBADF => "EBADF",
            libc::EEXIST => "EEXIST",
            libc::EINTR => "EINTR",
            libc::EINVAL => "EINVAL",
            libc::EISDIR => "EISDIR",
            libc::ENOENT => "ENOENT",
            libc::ENOTDIR => "ENOTDIR",
            libc::EPERM => "EPERM",
            libc::EXDEV => "EXDEV",
            other => return write!(f, "errno {other}"),
        };
        f.write_str(name)
    }
}

/// A line of text, in place.
struct Line {
    text: [u8; 256],
    len: usize,
}

impl Line {
    const fn new() -> Self {
        Self {
            text: [0; 256],
            len: 0,
        }
    }

    fn write_to(&self, out: i32) {
        // SAFETY: so many bytes. An error shows in the output.
        unsafe { libc::write(out, self.text.as_ptr().cast(), self.len) };
    }
}

impl fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.text.get_mut(self.len..self.len + text.len());
        room.ok_or(fmt::Error)?.copy_from_slice(text.as_bytes());
        self.len += text.len();
        Ok(())
    }
}

/// Results of the job.
struct Done {
    bytes: u64,
    missing: u64,
}

/// Copies a file, reads the copy by parts and takes it away; then it is not there any more.
fn job(path: &str) -> io::Result<Done> {
    let copy = env::temp_dir().join(format!("syscalls-{}", process::id()));
    fs::copy(path, &copy)?;
    let mut file = fs::File::open(&copy)?;
    let mut part = [0; 16 << 10];
    let mut bytes = 0;
    loop {
        match file.read(&mut part)? {
            0 => break,
            len => bytes += len as u64,
        }
    }
    fs::remove_file(&copy)?;
    let again = [fs::File::open(&copy).map(drop), fs::remove_file(&copy)];
    let is_missing = |result: &&io::Result<()>| {
        let error = result.as_ref().err();
        error.is_some_and(|error| error.kind() == io::ErrorKind::NotFound)
    };
    let missing = again.iter().filter(is_missing).count() as u64;
    Ok(Done { bytes, missing })
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = env::args().nth(1).unwrap_or_else(|| "README.md".into());
    let filter = WRAPPERS
        .iter()
        .try_fold(Filter::none(), |filter, wrapper| {
            filter.trace_in(wrapper.name, "libc.so*")
        })?;
    // SAFETY: the callbacks use the clock, memory of their own and system calls that a signal
    // handler may use.
    let strace = unsafe { fgraph::register(Strace::new(&io::stdout()), filter) }?;
    Strace::start(&strace)?;
    let done = job(&path)?;
    let strace = strace.unregister()?;

    let [lines, read, not_found] =
        [strace.lines, strace.read, strace.not_found].map(AtomicU64::into_inner);
    println!("{lines} calls; {read} bytes were read, {not_found} files were not found");
    if (read, not_found) != (done.bytes, done.missing) || done.missing != 2 {
        let Done { bytes, missing } = done;
        return Err(format!("the job has read {bytes} bytes and missed {missing} files").into());
    }
    Ok(())
}
