//! What the integration tests share.
//!
//! Each test is a *scenario*: it runs alone in a process of its own, the test binary started anew
//! for this one test, within a bounded time. So a crash or a hang is a failure with a message, and
//! no test sees the patches of another.

// No test file uses all of it.
#![allow(dead_code)]

use std::ffi::{CString, OsStr, c_void};
use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write as _};
use std::marker::PhantomData;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use fgraph::{
    Counters, Entry, Error, FgraphOps, FilterReport, Handle, IntoFilter, Options, Return,
};
use fgraph_needs::{Missing, Need, RECORD, SKIPPED};

/// Defines a function in assembly that has a site, with a NOP as LLVM makes it.
#[allow(unused_macros)]
macro_rules! traceable {
    ($name:literal, $($line:expr),* $(,)?) => {
        std::arch::global_asm!(
            concat!(".pushsection .text.", $name, ",\"ax\",@progbits"),
            concat!(".globl ", $name),
            concat!(".type ", $name, ",@function"),
            ".p2align 4",
            concat!($name, ":"),
            ".cfi_startproc",
            ".byte 0x0f, 0x1f, 0x44, 0x00, 0x08",
            $($line,)*
            ".cfi_endproc",
            concat!(".size ", $name, ", . - ", $name),
            ".popsection",
            concat!(".pushsection __patchable_function_entries,\"awo\",@progbits,.text.", $name),
            ".p2align 3",
            concat!(".quad ", $name),
            ".popsection",
        );
    };
}

/// Defines a function in assembly that has none.
#[allow(unused_macros)]
macro_rules! plain {
    ($name:literal, $($line:expr),* $(,)?) => {
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
        );
    };
}

/// Names the scenario that a child process is to run.
const CHILD: &str = "FGRAPH_SCENARIO";
/// Set in a process that a scenario has started from itself.
const PART: &str = "FGRAPH_PART";
/// Much more than any scenario takes, also on a busy machine.
const TIME_LIMIT: Duration = Duration::from_secs(120);

/// Runs `body`, the scenario of the test function `name`, in a process of its own.
pub(crate) fn scenario(name: &str, body: impl FnOnce()) {
    if std::env::var_os(CHILD).is_some_and(|child| child == name) {
        body();
        return;
    }
    let output = bounded(&mut this_program(name));
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
    for line in err.lines().filter(|line| line.starts_with(SKIPPED)) {
        // Not with a macro, whose output the test harness would keep to itself.
        let _ = writeln!(std::io::stderr(), "{line}");
    }
}

/// The part of the scenario that this process is to play, if the scenario has started it.
pub(crate) fn part() -> Option<String> {
    std::env::var(PART).ok()
}

/// This program once more, to play `part` of scenario `name`.
pub(crate) fn play(name: &str, part: &str) -> Command {
    let mut command = this_program(name);
    command.env(PART, part);
    command
}

/// The arguments that make this program run scenario `name` on its main thread.
pub(crate) fn arguments(name: &str) -> [&str; 4] {
    ["--exact", name, "--nocapture", "--test-threads=1"]
}

/// A command that runs scenario `name` directly.
fn this_program(name: &str) -> Command {
    let program = std::env::current_exe().expect("the test's own path");
    let mut command = Command::new(program);
    command.args(arguments(name)).env(CHILD, name);
    // What a scenario lacks is of the run of cargo that has started its test.
    command.envs(fgraph_needs::record().map(|path| (RECORD, path)));
    command
}

/// Does `work` while other threads have threads do `task` and wait for these to end, one after the
/// other.
pub(crate) fn while_threads_come_and_go(task: fn(), work: impl FnOnce()) {
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

/// Allows the process to lock no more memory than `bytes`.
pub(crate) fn limit_locks(bytes: usize) {
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

/// Runs a command to its end, or kills it when the time is up.
pub(crate) fn bounded(command: &mut Command) -> Output {
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
pub(crate) fn forked(body: impl FnOnce() -> i32) -> std::process::ExitStatus {
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
pub(crate) fn register<T: FgraphOps>(ops: T, filter: impl IntoFilter) -> Result<Handle<T>, Error> {
    // SAFETY: the callbacks of a scenario that watches functions of the C library, or functions
    // that signal handlers call, use atomics and memory that is there already. All others watch
    // functions that only the scenario itself calls, in ordinary code.
    unsafe { fgraph::register(ops, filter) }.map_err(|failed| failed.error)
}

/// [`register`] with options.
pub(crate) fn register_with<T: FgraphOps>(
    ops: T,
    filter: impl IntoFilter,
    options: &Options,
) -> Result<Handle<T>, Error> {
    // SAFETY: as in `register`.
    unsafe { fgraph::register_with(ops, filter, options) }.map_err(|failed| failed.error)
}

/// Waits until the kernel does not know thread `id` any more, which has been joined.
pub(crate) fn until_gone(id: u32) {
    while Path::new(&format!("/proc/self/task/{id}")).exists() {
        thread::yield_now();
    }
}

/// Changes the filter of a user that [`register`] has registered.
pub(crate) fn set_filter<T: FgraphOps>(
    user: &Handle<T>,
    filter: impl IntoFilter,
) -> Result<FilterReport, Error> {
    // SAFETY: as in `register`.
    unsafe { user.set_filter(filter) }
}

/// A user made of two closures.
pub(crate) struct User<D, E, R> {
    entry: E,
    ret: R,
    data: PhantomData<fn() -> D>,
}

impl<D, E, R> FgraphOps for User<D, E, R>
where
    D: Copy + Send + 'static,
    E: Fn(&mut Entry<'_, D>) -> Option<D> + Send + Sync + 'static,
    R: Fn(&mut Return<'_, D>, D) + Send + Sync + 'static,
{
    type Data = D;

    fn entry(&self, call: &mut Entry<'_, D>) -> Option<D> {
        (self.entry)(call)
    }

    fn ret(&self, call: &mut Return<'_, D>, data: D) {
        (self.ret)(call, data);
    }
}

/// A user with these callbacks.
pub(crate) fn user<D, E, R>(entry: E, ret: R) -> User<D, E, R>
where
    D: Copy + Send + 'static,
    E: Fn(&mut Entry<'_, D>) -> Option<D> + Send + Sync + 'static,
    R: Fn(&mut Return<'_, D>, D) + Send + Sync + 'static,
{
    User {
        entry,
        ret,
        data: PhantomData,
    }
}

/// Counts what it gets.
#[derive(Debug, Default)]
pub(crate) struct Count {
    pub(crate) entries: std::sync::atomic::AtomicU64,
    pub(crate) returns: std::sync::atomic::AtomicU64,
    pub(crate) unwound: std::sync::atomic::AtomicU64,
}

impl Count {
    /// Entries, returns (those by unwinding included), and returns by unwinding.
    pub(crate) fn all(&self) -> (u64, u64, u64) {
        use std::sync::atomic::Ordering::SeqCst;
        (
            self.entries.load(SeqCst),
            self.returns.load(SeqCst),
            self.unwound.load(SeqCst),
        )
    }

    /// Entries and returns.
    pub(crate) fn both(&self) -> (u64, u64) {
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

/// Takes every call, and looks whether each return is that of an entry with the same calls around
/// it.
#[derive(Debug, Default)]
pub(crate) struct Paired {
    entries: std::sync::atomic::AtomicU64,
    returns: std::sync::atomic::AtomicU64,
    /// Calls that were passed over: a return, or an entry, of a call around them came first. Where
    /// a thread goes from stack to stack, those on the stacks that it is not on are counted, too.
    passed: std::sync::atomic::AtomicU64,
    /// Returns of another function than the one entered, or at another depth.
    wrong: std::sync::atomic::AtomicU64,
}

/// The calls that a user was told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Calls {
    pub(crate) entries: u64,
    pub(crate) returns: u64,
    pub(crate) passed: u64,
    pub(crate) wrong: u64,
}

impl Calls {
    /// Whether each entry was answered by its own return, and nothing else was.
    pub(crate) fn is_exact(&self) -> bool {
        self.entries == self.returns && self.passed == 0 && self.wrong == 0
    }
}

impl Paired {
    pub(crate) fn calls(&self) -> Calls {
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
    /// The function, and how many calls on this stack that this user was told of are going on.
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

/// What happened, in order, as several callbacks note it.
#[derive(Debug)]
pub(crate) struct Log<T>(Arc<Mutex<Vec<T>>>);

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
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// One that noting that many events does not make allocate memory.
    pub(crate) fn with_capacity(events: usize) -> Self {
        Self(Arc::new(Mutex::new(Vec::with_capacity(events))))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, event: T) {
        self.lock().push(event);
    }

    /// What was noted since the last time.
    pub(crate) fn take(&self) -> Vec<T> {
        // Memory is allocated without the lock, because that may be what is traced.
        let capacity = self.lock().capacity();
        let empty = Vec::with_capacity(capacity);
        std::mem::replace(&mut *self.lock(), empty)
    }
}

/// The counters, which can be made in no other way, as
/// (missed, overrun, unreserved, lost, no_shadow_stack).
pub(crate) fn numbers(counters: Counters) -> [u64; 5] {
    [
        counters.missed + counters.internal,
        counters.overrun,
        counters.unreserved,
        counters.lost,
        counters.no_shadow_stack,
    ]
}

/// The counters of all users together.
pub(crate) fn totals() -> [u64; 5] {
    numbers(fgraph::status().expect("not in a callback").counters)
}

/// How many sites are patched now.
pub(crate) fn patched() -> usize {
    fgraph::status().expect("not in a callback").patched
}

/// The `N` bytes at the start of a function.
pub(crate) fn code<const N: usize>(function: *const ()) -> [u8; N] {
    let mut bytes = [0; N];
    for (offset, byte) in bytes.iter_mut().enumerate() {
        // SAFETY: text of this program, of which functions that short are followed by padding.
        *byte = unsafe { function.cast::<u8>().add(offset).read_volatile() };
    }
    bytes
}

/// Whether a function of this program begins with a jump, as a traced one does.
pub(crate) fn is_patched(function: *const ()) -> bool {
    match code::<9>(function) {
        // Behind an endbr64.
        [0xf3, 0x0f, 0x1e, 0xfa, first, ..] => first == 0xe9,
        [first, ..] => first == 0xe9,
    }
}

/// The executable memory that was loaded from files whose path contains `part`: each line of the
/// process's map, with the bytes. What is mapped in several parts is one.
pub(crate) fn text(part: &str) -> Vec<(String, Vec<u8>)> {
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
pub(crate) fn overwrite(address: usize, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    let memory = fs::OpenOptions::new()
        .write(true)
        .open("/proc/self/mem")
        .unwrap();
    memory.write_all_at(bytes, address as u64).unwrap();
}

/// Where a scenario may leave files.
pub(crate) fn directory(scenario: &str) -> PathBuf {
    let path =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{scenario}-{}", std::process::id()));
    fs::create_dir_all(&path).unwrap();
    path
}

/// Compiles `source`, in the language of the extension of `file`, into a shared library and loads
/// it.
pub(crate) fn library(
    scenario: &str,
    compiler: &Need,
    file: &str,
    source: &str,
    options: &[&str],
) -> Result<Library, Missing> {
    let path = build_library(scenario, compiler, file, source, options)?;
    Ok(Library::open(&path))
}

/// As [`library`], but does not load it: its path.
pub(crate) fn build_library(
    scenario: &str,
    compiler: &Need,
    file: &str,
    source: &str,
    options: &[&str],
) -> Result<PathBuf, Missing> {
    let compiler = compiler.find()?;
    let directory = directory(scenario);
    let input = directory.join(file);
    fs::write(&input, source).unwrap();
    let stem = input.file_stem().and_then(OsStr::to_str).unwrap();
    let result = directory.join(format!("lib{stem}.so"));
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
    let mut errors = String::new();
    let _ = write!(
        errors,
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "{errors}");
    Ok(result)
}

/// A shared library that was loaded from a file of the tests. It stays loaded when this is dropped,
/// but the file goes.
#[derive(Debug)]
pub(crate) struct Library {
    handle: *mut c_void,
    file: PathBuf,
}

impl Drop for Library {
    fn drop(&mut self) {
        // Those of the system are known by their names alone.
        if self.file.is_absolute() {
            let _ = fs::remove_dir_all(self.file.parent().unwrap());
        }
    }
}

impl Library {
    pub(crate) fn open(path: &Path) -> Self {
        Self::load(path.to_str().unwrap()).unwrap_or_else(|error| panic!("{error}"))
    }

    /// A library of the system, as the loader finds it.
    pub(crate) fn system(library: &Need) -> Result<Self, Missing> {
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

    /// The address of a symbol.
    pub(crate) fn address(&self, symbol: &str) -> *const () {
        let name = CString::new(symbol).unwrap();
        // SAFETY: a string, and a library that is loaded.
        let address = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        assert!(!address.is_null(), "no symbol {symbol}");
        address.cast_const().cast()
    }

    /// A function.
    ///
    /// # Safety
    ///
    /// `F` must be the type of a pointer to the function.
    pub(crate) unsafe fn get<F: Copy>(&self, symbol: &str) -> F {
        assert_eq!(size_of::<F>(), size_of::<usize>());
        let address = self.address(symbol);
        // SAFETY: the caller vouches for the type.
        unsafe { std::mem::transmute_copy(&address) }
    }

    /// Unloads the library; the file stays.
    pub(crate) fn close(self) -> PathBuf {
        let mut this = std::mem::ManuallyDrop::new(self);
        // SAFETY: nobody calls its functions any more.
        assert_eq!(unsafe { libc::dlclose(this.handle) }, 0);
        std::mem::take(&mut this.file)
    }

    /// Removes the file, but not the library.
    pub(crate) fn remove_file(&self) {
        fs::remove_file(&self.file).unwrap();
    }
}

/// Runs `body` on the main thread, beneath `main`, and waits for it.
///
/// The main thread of a test waits for the thread of the test; a signal makes it run `body`.
pub(crate) fn on_main_thread(body: fn()) {
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
