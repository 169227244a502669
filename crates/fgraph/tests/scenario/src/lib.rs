//! Tests that run in a process of their own, and the users and libraries that they share.
//!
//! A *scenario* is a test that runs alone: it starts the test binary anew for this one test, and
//! ends it when the time is up. So a crash or a hang is a failure with a message, and no test sees
//! the patches of another.
//!
//! ```no_run
//! use fgraph_scenario::{Count, scenario};
//!
//! extern "C" fn works() {}
//!
//! #[scenario]
//! fn a_call_is_counted() {
//!     let user = fgraph_scenario::register(Count::default(), "works").unwrap();
//!     works();
//!     assert_eq!(user.both(), (1, 1));
//! }
//! ```

use std::ffi::{CString, c_void};
use std::fs;
use std::io::{Read, Write as _};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use fgraph::{
    Counters, Entry, Error, FgraphOps, FilterReport, Handle, IntoFilter, Options, Return,
};
pub use fgraph_scenario_macro::scenario;

pub use fgraph::{OnCall as User, on_call as user};
use fgraph_needs::{Missing, Need, RECORD, SKIPPED};

/// Defines a function in assembly that has a site, with a NOP as LLVM makes it.
#[macro_export]
macro_rules! traceable {
    ($name:literal, $($line:expr),* $(,)?) => {
        $crate::plain!(
            $name,
            ".byte 0x0f, 0x1f, 0x44, 0x00, 0x08",
            $($line,)*;
            concat!(".pushsection __patchable_function_entries,\"awo\",@progbits,.text.", $name),
            ".p2align 3",
            concat!(".quad ", $name),
            ".popsection",
        );
    };
}

/// Defines a function in assembly that has no site. Lines after a `;` come after the function.
#[macro_export]
macro_rules! plain {
    ($name:literal, $($line:expr),* $(,)? $(; $($after:expr),* $(,)?)?) => {
        std::arch::global_asm!(
            concat!(".pushsection .text.", $name, ",\"ax\",@progbits"),
            concat!(".globl ", $name),
            concat!(".type ", $name, ",@function"),
            ".p2align 4",
            concat!($name, ":"),
            ".cfi_startproc",
            $($line,)*
            ".cfi_endproc",
            concat!(".size ", $name, ", . - ", $name),
            ".popsection",
            $($($after,)*)?
        );
    };
}

/// Names the scenario that a child process is to run.
const CHILD: &str = "FGRAPH_SCENARIO";
/// Set in a process that a scenario has started from itself.
const PART: &str = "FGRAPH_PART";
/// Names the directory for the files of a scenario.
const FILES: &str = "FGRAPH_FILES";
/// Much more than any scenario takes, also on a busy machine.
const TIME_LIMIT: Duration = Duration::from_secs(120);

/// Runs `body`, the scenario at `path`, in a process of its own: what the attribute [`scenario`]
/// makes of a test.
///
/// # Panics
///
/// Panics if the process fails, is killed, or does not end in time.
pub fn run(path: &str, body: impl FnOnce()) {
    // The harness names a test without its crate.
    let (_, name) = path.split_once("::").expect("a path");
    if std::env::var_os(CHILD).is_some_and(|child| child == name) {
        body();
        return;
    }
    let program = std::env::current_exe().expect("the test's own path");
    let target = program.ancestors().nth(2).expect("a directory of cargo's");
    // Not with colons, which divide the paths of variables.
    let files = name.replace("::", "-");
    let files = target.join(format!("tmp/{files}-{}", std::process::id()));
    let output = bounded(this_program(name).env(FILES, &files));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    if !output.status.success() {
        let ended = match output.status.signal() {
            Some(libc::SIGKILL) => "hung and was killed".to_owned(),
            Some(signal) => format!("was killed by signal {signal}"),
            None => format!("failed with {}", output.status),
        };
        panic!("the scenario {name} {ended}\n--- stdout\n{out}\n--- stderr\n{err}");
    }
    assert!(out.contains("1 passed"), "no test {name}:\n{out}");
    let _ = fs::remove_dir_all(files);
    for line in err.lines().filter(|line| line.starts_with(SKIPPED)) {
        // Not with a macro, whose output the test harness would capture.
        let _ = writeln!(std::io::stderr(), "{line}");
    }
}

/// Returns the name of the scenario that this process runs.
///
/// # Panics
///
/// Panics outside of scenarios.
#[must_use]
pub fn name() -> String {
    std::env::var(CHILD).expect("a scenario")
}

/// Returns the part of the scenario that this process plays, if the scenario has started it.
#[must_use]
pub fn part() -> Option<String> {
    std::env::var(PART).ok()
}

/// Makes a command that plays `part` of this scenario in another process.
#[must_use]
pub fn play(part: &str) -> Command {
    let mut command = this_program(&name());
    command.env(PART, part);
    command
}

/// Makes a command that runs scenario `name` directly, on the main thread of its process.
fn this_program(name: &str) -> Command {
    let program = std::env::current_exe().expect("the test's own path");
    let mut command = Command::new(program);
    command
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(CHILD, name);
    // Skipped tests belong to the run of cargo that has started this test.
    command.envs(fgraph_needs::record().map(|path| (RECORD, path)));
    command
}

/// Does `work` while other threads start threads that run `task`, one after the other.
pub fn while_threads_come_and_go(task: fn(), work: impl FnOnce()) {
    struct End<'a>(&'a AtomicBool);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    thread::spawn(task).join().unwrap();
                }
            });
        }
        // Also when `work` panics: the scope waits for its threads.
        let _end = End(&is_over);
        work();
    });
}

/// Limits the memory that the process can lock to `bytes`.
pub fn limit_locks(bytes: usize) {
    const CAP_IPC_LOCK: u32 = 14;
    const VERSION_3: u32 = 0x2008_0522;
    let limit = libc::rlimit {
        rlim_cur: bytes as u64,
        rlim_max: bytes as u64,
    };
    // Effective, permitted and inherited, of the first and of the second 32 capabilities.
    let (header, mut sets) = ([VERSION_3, 0], [[0_u32; 3]; 2]);
    // SAFETY: live locals of the sizes that the kernel wants.
    unsafe {
        assert_eq!(libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit), 0);
        assert_eq!(libc::syscall(libc::SYS_capget, &header, &mut sets), 0);
        sets[0][0] &= !(1 << CAP_IPC_LOCK);
        sets[0][1] &= !(1 << CAP_IPC_LOCK);
        assert_eq!(libc::syscall(libc::SYS_capset, &header, &sets), 0);
    }
}

/// Runs a command to its end, or kills it and its group when the time is up.
pub fn bounded(command: &mut Command) -> Output {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
    let (mut stdout, mut stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let gather = |pipe: &mut dyn Read| {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        bytes
    };
    thread::scope(|scope| {
        let stdout = scope.spawn(move || gather(&mut stdout));
        let stderr = scope.spawn(move || gather(&mut stderr));
        let deadline = Instant::now() + TIME_LIMIT;
        let status = loop {
            if let Some(status) = child.try_wait().expect("a child of ours") {
                break status;
            }
            if Instant::now() > deadline {
                // SAFETY: the child was made the leader of its own group, and is not reaped yet.
                unsafe { libc::kill(-(child.id() as i32), libc::SIGKILL) };
                break child.wait().expect("a child of ours");
            }
            thread::sleep(Duration::from_millis(2));
        };
        Output {
            status,
            stdout: stdout.join().unwrap(),
            stderr: stderr.join().unwrap(),
        }
    })
}

/// Runs `body` in a forked child and returns the child's wait status. A `body` that returns exits
/// with its value.
pub fn forked(body: impl FnOnce() -> i32) -> std::process::ExitStatus {
    // SAFETY: the child runs `body` and then ends without running anything of the parent's.
    unsafe {
        match libc::fork() {
            -1 => panic!("fork: {}", std::io::Error::last_os_error()),
            0 => {
                // A child that hangs ends by itself.
                libc::alarm(60);
                let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
                libc::_exit(result.unwrap_or(101))
            }
            child => {
                let mut status = 0;
                while libc::waitpid(child, &mut status, 0) != child {}
                std::process::ExitStatus::from_raw(status)
            }
        }
    }
}

/// Registers a user of a scenario.
///
/// # Errors
///
/// Returns the error of [`fgraph::register`].
pub fn register<T: FgraphOps>(ops: T, filter: impl IntoFilter) -> Result<Handle<T>, Error> {
    // SAFETY: the callbacks of a scenario that watches functions of the C library, or functions
    // that signal handlers call, use atomics and memory that is there already. All others watch
    // functions that only the scenario itself calls, in ordinary code.
    unsafe { fgraph::register_with(ops, filter, &Options::new().allow_no_match()) }
        .map_err(|failed| failed.error)
}

/// Registers a user of a scenario with options.
///
/// # Errors
///
/// Returns the error of [`fgraph::register_with`].
pub fn register_with<T: FgraphOps>(
    ops: T,
    filter: impl IntoFilter,
    options: &Options,
) -> Result<Handle<T>, Error> {
    // SAFETY: as in `register`.
    unsafe { fgraph::register_with(ops, filter, options) }.map_err(|failed| failed.error)
}

/// Waits until the kernel does not know thread `id` any more, which has been joined.
pub fn until_gone(id: u32) {
    while Path::new(&format!("/proc/self/task/{id}")).exists() {
        thread::yield_now();
    }
}

/// Changes the filter of a user that [`register`] has registered.
pub fn set_filter<T: FgraphOps>(
    user: &Handle<T>,
    filter: impl IntoFilter,
) -> Result<FilterReport, Error> {
    // SAFETY: as in `register`.
    unsafe { user.set_filter(filter) }
}

/// User that counts its calls.
#[derive(Debug, Default)]
pub struct Count {
    /// Number of entries.
    pub entries: AtomicU64,
    /// Number of returns, returns by unwinding included.
    pub returns: AtomicU64,
    /// Number of returns by unwinding.
    pub unwound: AtomicU64,
}

impl Count {
    /// Returns the numbers of entries, of all returns, and of returns by unwinding.
    pub fn all(&self) -> (u64, u64, u64) {
        use std::sync::atomic::Ordering::SeqCst;
        (
            self.entries.load(SeqCst),
            self.returns.load(SeqCst),
            self.unwound.load(SeqCst),
        )
    }

    /// Returns the numbers of entries and returns.
    pub fn both(&self) -> (u64, u64) {
        let (entries, returns, _) = self.all();
        (entries, returns)
    }
}

impl FgraphOps for Count {
    type Data = u64;

    fn entry(&self, _call: &mut Entry<'_, u64>) -> Option<u64> {
        Some(self.entries.fetch_add(1, Ordering::SeqCst))
    }

    fn ret(&self, call: &mut Return<'_, u64>, _data: u64) {
        use Ordering::SeqCst;
        self.returns.fetch_add(1, SeqCst);
        self.unwound.fetch_add(call.unwinding().into(), SeqCst);
    }
}

/// User that checks that each return belongs to the newest entry without one, and that the calls
/// around it are the same.
#[derive(Debug, Default)]
pub struct Paired {
    entries: AtomicU64,
    returns: AtomicU64,
    /// Number of calls whose return is missing when a call around them returns or is entered. If a
    /// thread changes stacks, calls on its other stacks count too.
    passed: AtomicU64,
    /// Number of returns of another function than the one entered, or at another depth.
    wrong: AtomicU64,
}

/// Numbers of a [`Paired`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Calls {
    /// Number of entries.
    pub entries: u64,
    /// Number of returns.
    pub returns: u64,
    /// Number of calls whose return is missing.
    pub passed: u64,
    /// Number of returns that are not those of the newest entry.
    pub wrong: u64,
}

impl Calls {
    /// Returns true if each entry has its own return, and there is no other return.
    pub fn is_exact(&self) -> bool {
        self.entries == self.returns && self.passed == 0 && self.wrong == 0
    }
}

impl Paired {
    /// Returns the numbers so far.
    pub fn calls(&self) -> Calls {
        use std::sync::atomic::Ordering::SeqCst;
        Calls {
            entries: self.entries.load(SeqCst),
            returns: self.returns.load(SeqCst),
            passed: self.passed.load(SeqCst),
            wrong: self.wrong.load(SeqCst),
        }
    }
}

impl FgraphOps for Paired {
    /// The function, and the number of open calls on this stack.
    type Data = (usize, u64);

    fn entry(&self, call: &mut Entry<'_, (usize, u64)>) -> Option<(usize, u64)> {
        use std::sync::atomic::Ordering::Relaxed;
        self.entries.fetch_add(1, Relaxed);
        let around = call.parent_data().map_or(0, |&(_, level)| level);
        let open = call.thread_word().replace(around + 1);
        self.passed.fetch_add(open.saturating_sub(around), Relaxed);
        Some((call.function().address(), around + 1))
    }

    fn ret(&self, call: &mut Return<'_, (usize, u64)>, (function, level): (usize, u64)) {
        use std::sync::atomic::Ordering::Relaxed;
        self.returns.fetch_add(1, Relaxed);
        let open = call.thread_word().replace(level - 1);
        let around = call.parent_data().map_or(0, |&(_, level)| level);
        let wrong = level != around + 1 || function != call.function().address();
        self.wrong.fetch_add(u64::from(wrong), Relaxed);
        self.passed.fetch_add(open.saturating_sub(level), Relaxed);
    }
}

/// Events of several callbacks, in order.
#[derive(Debug)]
pub struct Log<T>(Arc<Mutex<Vec<T>>>);

impl<T> Clone for Log<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Default for Log<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> Log<T> {
    /// Makes an empty log.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a log that allocates no memory for the first `events`.
    #[must_use]
    pub fn with_capacity(events: usize) -> Self {
        Self(Arc::new(Mutex::new(Vec::with_capacity(events))))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an event.
    pub fn push(&self, event: T) {
        self.lock().push(event);
    }

    /// Removes and returns all events.
    pub fn take(&self) -> Vec<T> {
        // Memory is allocated without the lock, because that may be what is traced.
        let capacity = self.lock().capacity();
        let empty = Vec::with_capacity(capacity);
        std::mem::replace(&mut *self.lock(), empty)
    }
}

/// Returns counters as (missed, overrun, unreserved, lost, no_shadow_stack).
pub fn numbers(counters: Counters) -> [u64; 5] {
    [
        counters.missed + counters.internal,
        counters.overrun,
        counters.unreserved,
        counters.lost,
        counters.no_shadow_stack,
    ]
}

/// Returns the counters of all users together.
pub fn totals() -> [u64; 5] {
    numbers(fgraph::status().expect("not in a callback").counters)
}

/// Returns the number of patched sites.
pub fn patched() -> usize {
    fgraph::status().expect("not in a callback").patched
}

/// Returns the first `N` bytes of a function.
pub fn code<const N: usize>(function: *const ()) -> [u8; N] {
    let mut bytes = [0; N];
    for (offset, byte) in bytes.iter_mut().enumerate() {
        // SAFETY: text of this program, where padding follows functions that short.
        *byte = unsafe { function.cast::<u8>().add(offset).read_volatile() };
    }
    bytes
}

/// Returns true if a function of this program begins with a jump, as a traced one does.
pub fn is_patched(function: *const ()) -> bool {
    match code::<9>(function) {
        // Behind an endbr64.
        [0xf3, 0x0f, 0x1e, 0xfa, first, ..] => first == 0xe9,
        [first, ..] => first == 0xe9,
    }
}

/// Returns the executable memory of files whose path contains `part`: each line of the process's
/// map, with the bytes. Adjacent mappings of a file are one.
pub fn text(part: &str) -> Vec<(String, Vec<u8>)> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let lines = maps
        .lines()
        .filter(|line| line.contains(" r-xp ") && line.contains(part));
    let mut joined: Vec<(usize, usize, String)> = Vec::new();
    for line in lines {
        let (range, rest) = line.split_once(' ').unwrap();
        let (from, to) = range.split_once('-').unwrap();
        let [from, to] = [from, to].map(|hex| usize::from_str_radix(hex, 16).unwrap());
        let file = |rest: &str| rest.split_whitespace().skip(2).collect::<String>();
        match joined.last_mut() {
            Some((_, end, known)) if *end == from && file(known) == file(rest) => *end = to,
            _ => joined.push((from, to, rest.to_owned())),
        }
    }
    let read = |(from, to, rest): (usize, usize, String)| {
        // SAFETY: mapped for reading just now.
        let bytes = unsafe { std::slice::from_raw_parts(from as *const u8, to - from) };
        (format!("{from:x}-{to:x} {rest}"), bytes.to_vec())
    };
    joined.into_iter().map(read).collect()
}

/// Writes to text as a debugger does.
pub fn overwrite(address: usize, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    let memory = fs::OpenOptions::new()
        .write(true)
        .open("/proc/self/mem")
        .unwrap();
    memory.write_all_at(bytes, address as u64).unwrap();
}

/// Makes an empty directory, which is removed after the scenario.
#[must_use]
pub fn directory() -> PathBuf {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let all = PathBuf::from(std::env::var_os(FILES).expect("a scenario"));
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    let path = all.join(format!("{}-{number}", std::process::id()));
    fs::create_dir_all(&path).unwrap();
    path
}

/// Compiles `source`, in the language of the extension of `file`, into a shared library and loads
/// it.
///
/// # Errors
///
/// Fails if there is no such compiler.
pub fn library(
    compiler: &Need,
    file: &str,
    source: &str,
    options: &[&str],
) -> Result<Library, Missing> {
    let path = build_library(compiler, file, source, options)?;
    Ok(Library::open(&path))
}

/// Compiles `source` as [`library`] does, and returns the path of the result.
///
/// # Errors
///
/// Fails if there is no such compiler.
pub fn build_library(
    compiler: &Need,
    file: &str,
    source: &str,
    options: &[&str],
) -> Result<PathBuf, Missing> {
    let compiler = compiler.find()?;
    let input = directory().join(file);
    fs::write(&input, source).unwrap();
    let result = input
        .with_file_name(format!("lib{file}"))
        .with_extension("so");
    let mut command = Command::new(compiler);
    command
        .args(["-shared", "-fPIC", "-O1", "-g", "-o"])
        .arg(&result)
        .args(options)
        .arg(&input);
    if file.ends_with("cpp") {
        command.arg("-lstdc++");
    }
    let output = bounded(&mut command);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    Ok(result)
}

/// Shared library in this process. It stays loaded when this is dropped.
#[derive(Debug)]
pub struct Library {
    handle: *mut c_void,
    file: PathBuf,
}

impl Library {
    /// Loads the library at `path`.
    #[must_use]
    pub fn open(path: &Path) -> Self {
        Self::load(path.to_str().unwrap()).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Loads a library of the system.
    ///
    /// # Errors
    ///
    /// Fails if the loader does not find it.
    pub fn system(library: &Need) -> Result<Self, Missing> {
        Self::load(library.find()?.to_str().unwrap()).map_err(|_| library.missing())
    }

    fn load(name: &str) -> Result<Self, String> {
        let file = PathBuf::from(name);
        let name = CString::new(name).unwrap();
        // SAFETY: a string; the library's initialisers are the compiler's.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            // SAFETY: after an error there is a message.
            let error = unsafe { std::ffi::CStr::from_ptr(libc::dlerror()) };
            return Err(error.to_string_lossy().into_owned());
        }
        Ok(Self { handle, file })
    }

    /// Returns the address of a symbol.
    #[must_use]
    pub fn address(&self, symbol: &str) -> *const () {
        let name = CString::new(symbol).unwrap();
        // SAFETY: a string, and a library that is loaded.
        let address = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        assert!(!address.is_null(), "no symbol {symbol}");
        address.cast_const().cast()
    }

    /// Returns a function.
    ///
    /// # Safety
    ///
    /// `F` must be the type of a pointer to the function.
    pub unsafe fn get<F: Copy>(&self, symbol: &str) -> F {
        assert_eq!(size_of::<F>(), size_of::<usize>());
        let address = self.address(symbol);
        // SAFETY: the caller vouches for the type.
        unsafe { std::mem::transmute_copy(&address) }
    }

    /// Unloads the library, and returns the path of its file.
    pub fn close(self) -> PathBuf {
        // SAFETY: no caller of its functions is left.
        assert_eq!(unsafe { libc::dlclose(self.handle) }, 0);
        self.file
    }

    /// Removes the file of the library, which stays loaded.
    pub fn remove_file(&self) {
        fs::remove_file(&self.file).unwrap();
    }
}

/// Runs `body` on the main thread, beneath `main`, and waits for it.
///
/// The main thread of a test waits for the thread of the test; a signal makes it run `body`.
pub fn on_main_thread(body: fn()) {
    use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
    static BODY: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());
    static DONE: AtomicU32 = AtomicU32::new(0);
    extern "C" fn handler(_signal: i32) {
        // SAFETY: set from a `fn()` before the signal is sent.
        let body: fn() = unsafe { std::mem::transmute(BODY.load(Ordering::SeqCst)) };
        let result = std::panic::catch_unwind(body);
        DONE.store(1 + u32::from(result.is_err()), Ordering::SeqCst);
    }
    BODY.store(body as *mut (), Ordering::SeqCst);
    // SAFETY: the main thread is in a system call for as long as its test runs, so the handler may
    // do anything; its id is the process's.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(
            libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()),
            0
        );
        let process = libc::getpid();
        assert_ne!(process, libc::gettid());
        // It may still be about to.
        let is_asleep = || {
            let stat = fs::read_to_string(format!("/proc/self/task/{process}/stat")).unwrap();
            stat.rsplit(") ").next().unwrap().starts_with('S')
        };
        while !is_asleep() {
            thread::yield_now();
        }
        assert_eq!(
            libc::syscall(libc::SYS_tgkill, process, process, libc::SIGUSR1),
            0
        );
    }
    while DONE.load(Ordering::SeqCst) == 0 {
        thread::yield_now();
    }
    assert_eq!(
        DONE.load(Ordering::SeqCst),
        1,
        "it panicked on the main thread"
    );
}
