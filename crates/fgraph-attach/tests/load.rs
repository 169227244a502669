//! Libraries are loaded into programs that were not made for it.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use fgraph_attach::{
    Error, Library, Loaded, Obstacle, Unfit, Unsuitable, load, load_with, unblock_traps,
};
use tempfile::TempDir;

/// A folder with the programs of this test.
struct Programs {
    folder: TempDir,
    library: Vec<u8>,
}

impl Programs {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut programs = Self {
            folder,
            library: Vec::new(),
        };
        let library = programs.compile("library", &["-shared", "-fPIC"]);
        programs.library = fs::read(library).unwrap();
        programs
    }

    /// Links the program with all libraries that the C library had before glibc 2.34.
    fn compile(&self, name: &str, options: &[&str]) -> PathBuf {
        let libraries = ["-pthread", "-Wl,--no-as-needed", "-ldl"];
        self.compile_with(name, &[&libraries, options].concat())
    }

    fn compile_with(&self, name: &str, options: &[&str]) -> PathBuf {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
        let program = self.folder.path().join(name);
        let status = Command::new("cc")
            .args(["-O1", "-Wall", "-Werror"])
            .arg(source.join(format!("{name}.c")))
            .arg("-o")
            .arg(&program)
            .args(options)
            .status()
            .unwrap();
        assert!(status.success());
        program
    }

    /// Compiles a program, and starts it with a pipe as its input.
    fn start(&self, name: &str, arguments: &[&str]) -> Program {
        let mut command = Command::new(self.compile(name, &[]));
        Program::start(command.args(arguments).stdin(Stdio::piped()))
    }

    fn load(&self, pid: u32, text: &str) -> Result<Loaded, Error> {
        self.load_as(pid, text, "1")
    }

    fn load_as(&self, pid: u32, text: &str, version: &str) -> Result<Loaded, Error> {
        let library = Library {
            name: "fgraph-attach-test",
            version,
            bytes: &self.library,
            entry: c"loaded",
            calls: &[],
            calls_elsewhere: &[],
        };
        let argument = format!("{}\n{text}\n", self.said().display());
        load(pid, &library, argument.as_bytes())
    }

    fn said(&self) -> PathBuf {
        self.folder.path().join("said")
    }
}

/// A program that has said that it is ready. It is killed if the test ends before it.
struct Program(Child);

impl Program {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self(child)
    }

    fn id(&self) -> u32 {
        self.0.id()
    }

    /// Waits for its end, at most 20 s.
    fn end(mut self) -> ExitStatus {
        drop(self.0.stdin.take());
        let until = Instant::now() + Duration::from_secs(20);
        while Instant::now() < until {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status;
            }
            thread::sleep(Duration::from_millis(5));
        }
        panic!("the program does not end");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A word that a program looks at, in its standard input.
struct End(File);

impl End {
    fn new() -> Self {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        Self(file)
    }

    fn stdin(&self) -> Stdio {
        self.0.try_clone().unwrap().into()
    }

    fn say(&self) {
        self.0.write_all_at(&[1], 0).unwrap();
    }
}

/// The mappings of a process but for its heap and stacks, whose sizes change by themselves.
fn files_mapped(pid: u32) -> Vec<String> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let lines = maps.lines().map(str::to_owned);
    lines.filter(|line| line.contains('/')).collect()
}

/// Returns the number of descriptors of a process.
fn opened(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

#[test]
fn a_thread_that_sleeps_sleeps_on() {
    let programs = Programs::new();
    let sleeps = programs.compile("sleeps", &[]);
    let program = Program::start(Command::new(sleeps).arg("4000"));
    let first = programs.load(program.id(), "once").unwrap();
    let second = programs.load(program.id(), "twice").unwrap();
    assert_eq!((first.result, first.was_loaded), (1, false));
    assert_eq!((second.result, second.was_loaded), (2, true));
    assert_eq!(second.interrupted, None);
    assert_eq!(program.end().code(), Some(0));
    assert_eq!(
        fs::read_to_string(programs.said()).unwrap(),
        "once\ntwice\n"
    );
}

/// Returns the number of threads of a process.
fn threads(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/task")).unwrap().count()
}

#[test]
fn the_program_works_while_the_library_comes() {
    let programs = Programs::new();
    let mut command = Command::new("cat");
    let cat = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut program = Program(cat.unwrap());
    let mut input = program.0.stdin.take().unwrap();
    let mut output = program.0.stdout.take().unwrap();
    let library = Library {
        name: "fgraph-attach-test",
        version: "1",
        bytes: &programs.library,
        entry: c"loaded",
        calls: &[],
        calls_elsewhere: &[],
    };
    // Until it works, it may be a copy of this process.
    input.write_all(b"x").unwrap();
    output.read_exact(&mut [0]).unwrap();
    let mut is_answered = false;
    let loaded = load_with(program.id(), &library, |_| {
        input.write_all(b"x")?;
        let mut poll = libc::pollfd {
            fd: output.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one entry.
        is_answered = unsafe { libc::poll(&mut poll, 1, 20_000) } == 1;
        Ok(b"/dev/null\nx".to_vec())
    });
    assert_eq!((loaded.unwrap().result, is_answered), (1, true));
    assert_eq!(threads(program.id()), 1);
    drop(input);
    assert_eq!(program.end().code(), Some(0));
}

#[test]
fn threads_that_wait_for_conditions_wait_on() {
    let programs = Programs::new();
    let idles = programs.compile("idles", &[]);
    let program = Program::start(&mut Command::new(idles));
    for count in 1..=5 {
        let loaded = programs.load(program.id(), "x").unwrap();
        assert_eq!((loaded.result, loaded.interrupted), (count, None));
    }
    // SAFETY: a signal to a child that was not waited for.
    unsafe { libc::kill(program.id() as i32, libc::SIGUSR1) };
    assert_eq!(program.end().code(), Some(0));
}

#[test]
fn a_program_without_libdl_takes_the_library() {
    let programs = Programs::new();
    let idles = programs.compile_with("idles", &["-pthread"]);
    let program = Program::start(&mut Command::new(idles));
    for count in 1..=3 {
        let loaded = programs.load(program.id(), "x").unwrap();
        assert_eq!((loaded.result, loaded.was_loaded), (count, count > 1));
    }
    // SAFETY: a signal to a child that was not waited for.
    unsafe { libc::kill(program.id() as i32, libc::SIGUSR1) };
    assert_eq!(program.end().code(), Some(0));
}

#[test]
fn a_library_that_a_program_without_libdl_cannot_load_is_refused() {
    let mut programs = Programs::new();
    programs.library.fill(b'x');
    let idles = programs.compile_with("idles", &["-pthread"]);
    let program = Program::start(&mut Command::new(idles));
    let before = (opened(program.id()), files_mapped(program.id()));
    let error = programs.load(program.id(), "x").unwrap_err();
    assert!(
        matches!(&error, Error::Refused { message } if !message.is_empty()),
        "{error}"
    );
    assert_eq!((opened(program.id()), files_mapped(program.id())), before);
    // SAFETY: a signal to a child that was not waited for.
    unsafe { libc::kill(program.id() as i32, libc::SIGUSR1) };
    assert_eq!(program.end().code(), Some(0));
}

#[test]
fn a_program_without_libpthread_takes_the_library() {
    let programs = Programs::new();
    let sleeps = programs.compile_with("sleeps", &[]);
    let program = Program::start(Command::new(sleeps).arg("0").stdin(Stdio::piped()));
    let maps = fs::read_to_string(format!("/proc/{}/maps", program.id())).unwrap();
    assert!(!maps.contains("libpthread"));
    for count in 1..=3 {
        let loaded = programs.load(program.id(), "x").unwrap();
        assert_eq!((loaded.result, loaded.was_loaded), (count, count > 1));
    }
    assert_eq!(program.end().code(), Some(0));
}

#[test]
fn a_program_with_threadsanitizer_is_refused_and_goes_on() {
    let thread_sanitizer = ["-fsanitize=thread"];
    fgraph_needs::needs!(fgraph_needs::CC.links(&thread_sanitizer, "libgcc-12-dev"));
    let programs = Programs::new();
    let sleeps = programs.compile("sleeps", &thread_sanitizer);
    let program = Program::start(Command::new(sleeps).arg("0").stdin(Stdio::piped()));
    let loaded = programs.load(program.id(), "x");
    let why = Unsuitable::ThreadSanitizer;
    let is_refused = matches!(&loaded, Err(Error::Unsuitable { why: found, .. }) if *found == why);
    assert!(is_refused, "{loaded:?}");
    assert_eq!(program.end().code(), Some(0));
}

#[test]
fn a_program_with_an_allocator_for_one_thread_is_refused_and_goes_on() {
    let programs = Programs::new();
    for (how, is_refused) in [("-DONE", true), ("-DTHREADS", false), ("-DDATA", false)] {
        let allocates = programs.compile("allocates", &[how, "-rdynamic"]);
        let program = Program::start(Command::new(allocates).stdin(Stdio::piped()));
        let loaded = programs.load(program.id(), "x");
        let why = Unsuitable::Allocator;
        let refused = matches!(&loaded, Err(Error::Unsuitable { why: it, .. }) if *it == why);
        assert_eq!(
            (refused, loaded.is_ok()),
            (is_refused, !is_refused),
            "{how}: {loaded:?}"
        );
        assert_eq!(program.end().code(), Some(0), "{how}");
    }
    // An allocator that nobody calls but the program itself does no harm.
    let allocates = programs.compile("allocates", &["-fvisibility=hidden"]);
    let program = Program::start(Command::new(allocates).stdin(Stdio::piped()));
    assert_eq!(programs.load(program.id(), "x").unwrap().result, 1);
    assert_eq!(program.end().code(), Some(0));
}

#[test]
fn a_thread_that_computes_finds_its_registers_as_they_were() {
    let programs = Programs::new();
    let computes = programs.compile("computes", &[]);
    let end = End::new();
    let program = Program::start(Command::new(computes).stdin(end.stdin()));
    for count in 1..=20 {
        assert_eq!(programs.load(program.id(), "x").unwrap().result, count);
    }
    end.say();
    assert_eq!(program.end().code(), Some(0));
}

#[test]
fn programs_whose_threads_do_nothing_but_lock_and_fork_and_load_go_on() {
    let programs = Programs::new();
    let program = programs.start("busy", &["libz.so.1"]);
    for count in 1..=40 {
        let loaded = programs.load(program.id(), "x").unwrap();
        assert_eq!(loaded.result, count);
    }
    // Only the library stays.
    let mapped = files_mapped(program.id());
    let tests = mapped.iter().filter(|line| line.contains("memfd"));
    assert!(tests.clone().count() > 0);
    assert!(
        tests
            .clone()
            .all(|line| line.contains("/memfd:fgraph-attach-test-1 "))
    );
    let status = fs::read_to_string(format!("/proc/{}/status", program.id())).unwrap();
    assert!(status.contains("TracerPid:\t0"));
    assert_eq!(program.end().code(), Some(0));
}

/// Loads the library ten times into a program whose threads interrupt each other.
fn load_where_threads_are_interrupted(kind: &str) {
    let programs = Programs::new();
    let interrupts = programs.compile("interrupts", &["-lrt"]);
    let program = Program::start(Command::new(interrupts).arg(kind).stdin(Stdio::piped()));
    for count in 1..=10 {
        let loaded = programs.load(program.id(), "x").unwrap();
        assert_eq!(loaded.result, count);
    }
    assert_eq!(program.end().code(), Some(0));
}

#[test]
fn threads_change_their_user_while_the_library_comes() {
    load_where_threads_are_interrupted("users");
}

#[test]
fn threads_change_their_groups_while_the_library_comes() {
    load_where_threads_are_interrupted("groups");
}

#[test]
fn cancelled_threads_end_after_our_work_in_them() {
    load_where_threads_are_interrupted("cancels");
}

#[test]
fn timers_make_threads_while_the_library_comes() {
    load_where_threads_are_interrupted("timers");
}

#[test]
fn files_are_read_asynchronously_while_the_library_comes() {
    load_where_threads_are_interrupted("reads");
}

/// Loads the library three times into a program that ends as it does without.
fn load_thrice(programs: &Programs, command: &mut Command) {
    let program = Program::start(command.stdin(Stdio::piped()));
    for count in 1..=3 {
        let loaded = programs.load(program.id(), "x").unwrap();
        assert_eq!((loaded.result, loaded.was_loaded), (count, count > 1));
    }
    assert_eq!(program.end().code(), Some(0));
}

#[test]
fn c_library_that_a_program_maps_as_data_is_not_called() {
    let programs = Programs::new();
    let libraries = programs.compile("libraries", &[]);
    load_thrice(&programs, Command::new(libraries).arg("data"));
}

#[test]
fn c_library_that_a_program_maps_itself_is_not_called() {
    let programs = Programs::new();
    let libraries = programs.compile("libraries", &[]);
    load_thrice(&programs, Command::new(libraries).arg("executable"));
}

#[test]
fn c_library_of_another_namespace_is_not_called() {
    let programs = Programs::new();
    let libraries = programs.compile("libraries", &[]);
    load_thrice(&programs, Command::new(libraries).arg("namespace"));
}

#[test]
fn functions_that_a_program_exports_in_place_of_the_c_librarys_are_not_called() {
    let programs = Programs::new();
    let libraries = programs.compile("libraries", &["-DEXPORTS", "-rdynamic", "-fno-builtin"]);
    load_thrice(&programs, &mut Command::new(libraries));
}

/// Returns the linker of programs and the C library, as a program that sleeps has mapped them.
fn linker_and_libc(sleeps: &Path) -> [PathBuf; 2] {
    let program = Program::start(Command::new(sleeps).arg("0").stdin(Stdio::piped()));
    let mapped = files_mapped(program.id());
    ["/ld-linux-x86-64.so.2", "/libc.so.6"].map(|name| {
        let mut paths = mapped.iter().filter_map(|line| line.split(' ').next_back());
        PathBuf::from(paths.find(|path| path.ends_with(name)).unwrap())
    })
}

#[test]
fn c_library_whose_file_is_deleted_or_replaced_is_called() {
    let programs = Programs::new();
    let sleeps = programs.compile("sleeps", &[]);
    let [_, libc] = linker_and_libc(&sleeps);
    let copy = programs.folder.path().join("libc.so.6");
    for is_replaced in [false, true] {
        fs::copy(&libc, &copy).unwrap();
        let mut command = Command::new(&sleeps);
        let command = command.arg("0").stdin(Stdio::piped());
        let program = Program::start(command.env("LD_LIBRARY_PATH", programs.folder.path()));
        fs::remove_file(&copy).unwrap();
        if is_replaced {
            fs::write(&copy, "another file").unwrap();
        }
        for count in 1..=3 {
            assert_eq!(programs.load(program.id(), "x").unwrap().result, count);
        }
        assert_eq!(program.end().code(), Some(0));
    }
}

#[test]
fn program_that_the_linker_was_told_to_start_takes_the_library() {
    let programs = Programs::new();
    let sleeps = programs.compile("sleeps", &[]);
    let [linker, _] = linker_and_libc(&sleeps);
    load_thrice(&programs, Command::new(linker).arg(sleeps).arg("0"));
}

#[test]
fn program_whose_threads_do_nothing_but_load_libraries_goes_on() {
    let programs = Programs::new();
    let loads = programs.compile("loads", &[]);
    let end = End::new();
    let program = Program::start(Command::new(loads).arg("libz.so.1").stdin(end.stdin()));
    for count in 1..=3 {
        assert_eq!(programs.load(program.id(), "x").unwrap().result, count);
    }
    end.say();
    assert_eq!(program.end().code(), Some(0));
}

#[test]
fn threads_that_wait_do_not_block_traps_any_more() {
    let programs = Programs::new();
    let blocks = programs.compile("blocks", &[]);
    let program = Program::start(Command::new(blocks).stdin(Stdio::piped()));
    let blocking = || {
        let tasks = fs::read_dir(format!("/proc/{}/task", program.id())).unwrap();
        let blocks = |task: &fs::DirEntry| {
            let status = fs::read_to_string(task.path().join("status")).unwrap();
            let mask = status
                .lines()
                .find_map(|line| line.strip_prefix("SigBlk:\t"));
            let mask = u64::from_str_radix(mask.unwrap(), 16).unwrap();
            mask & 1 << (libc::SIGTRAP - 1) != 0 || mask & 1 << (libc::SIGILL - 1) != 0
        };
        let tasks = tasks.flatten();
        tasks.filter(blocks).count()
    };
    let until = Instant::now() + Duration::from_secs(20);
    let mut changed = 0;
    // Until all threads are where they wait: then only the one that waits for signals blocks some.
    while changed == 0 || blocking() != 1 {
        assert!(Instant::now() < until, "{changed} {}", blocking());
        changed += unblock_traps(program.id()).unwrap();
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(program.end().code(), Some(0));
}

#[test]
fn a_program_whose_linker_is_still_at_work_is_waited_for() {
    let programs = Programs::new();
    let sleeps = programs.compile("sleeps", &[]);
    // The linker waits for a writer before it loads the C library.
    let preloaded = programs.folder.path().join("preloaded.so");
    let made = Command::new("mkfifo").arg(&preloaded).status().unwrap();
    assert!(made.success());
    let mut command = Command::new(sleeps);
    let command = command.arg("0").env("LD_PRELOAD", &preloaded);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::null());
    let program = Program(command.stderr(Stdio::null()).spawn().unwrap());
    let error = programs.load(program.id(), "x").unwrap_err();
    let Error::Unsuitable { why, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(*why, Unsuitable::Starting);
    let loaded = thread::scope(|scope| {
        let loading = scope.spawn(|| programs.load(program.id(), "x"));
        drop(File::options().write(true).open(&preloaded).unwrap());
        loading.join().unwrap()
    });
    assert_eq!(loaded.unwrap().result, 1);
    assert_eq!(program.end().code(), Some(0));
}

#[test]
fn python_goes_on() {
    let programs = Programs::new();
    let Ok(python) = fgraph_needs::PYTHON.find() else {
        return fgraph_needs::skip!("no python3 (apt-get install python3)");
    };
    let script = "import sys, json\nprint('ready', flush=True)\n\
        n = 0\nwhile n < 300: n += len(json.dumps(list(range(100)))) > 0\n\
        sys.stdin.read()\nsys.exit(n // 100)";
    let program = Program::start(
        Command::new(python)
            .args(["-c", script])
            .stdin(Stdio::piped()),
    );
    assert_eq!(programs.load(program.id(), "x").unwrap().result, 1);
    assert_eq!(program.end().code(), Some(3));
}

/// Set in a process that loads a library for a test and is killed meanwhile.
const LOADS: &str = "FGRAPH_ATTACH_LOADS";
/// Set in a process of these that ends while the thread makes system calls for it.
const ENDS: &str = "FGRAPH_ATTACH_ENDS";

#[test]
fn a_thread_goes_on_when_the_attaching_process_is_killed_at_any_time() {
    if let Ok(pid_and_library) = std::env::var(LOADS) {
        let (pid, library) = pid_and_library.split_once(' ').unwrap();
        let library = Library {
            name: "fgraph-attach-test",
            version: "1",
            bytes: &fs::read(library).unwrap(),
            entry: c"loaded_slowly",
            calls: &[],
            calls_elsewhere: &[],
        };
        let _ = load_with(pid.parse().unwrap(), &library, |_| {
            if std::env::var_os(ENDS).is_some() {
                std::process::abort();
            }
            Ok(b"/dev/null\nx".to_vec())
        });
        return;
    }
    let programs = Programs::new();
    let computes = programs.compile("computes", &[]);
    // `None`: by itself.
    let delays = [0, 1, 3, 8, 30, 200].map(|ms| Some(Duration::from_millis(ms)));
    for delay in delays.into_iter().chain([None]) {
        let end = End::new();
        let program = Program::start(Command::new(&computes).stdin(end.stdin()));
        let before = (opened(program.id()), threads(program.id()));
        let mut attacher = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "a_thread_goes_on_when_the_attaching_process_is_killed_at_any_time",
            ])
            .env(
                LOADS,
                format!(
                    "{} {}",
                    program.id(),
                    programs.folder.path().join("library").display()
                ),
            )
            .envs(delay.is_none().then_some((ENDS, "1")))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let memfd = || {
            let maps = fs::read_to_string(format!("/proc/{}/maps", program.id()));
            maps.unwrap().lines().any(|line| line.contains("memfd"))
        };
        if let Some(delay) = delay {
            while !memfd() && attacher.try_wait().unwrap().is_none() {
                thread::sleep(Duration::from_micros(100));
            }
            thread::sleep(delay);
            let _ = attacher.kill();
        }
        attacher.wait().unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        let now = || (opened(program.id()), threads(program.id()));
        while now() != before && Instant::now() < until {
            thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(now(), before, "killed after {delay:?}");
        end.say();
        assert_eq!(program.end().code(), Some(0), "killed after {delay:?}");
    }
}

#[test]
fn a_file_is_shared_with_the_library_and_closed_where_there_is_none() {
    let programs = Programs::new();
    let program = programs.start("sleeps", &["0"]);
    let before = opened(program.id());
    let library = Library {
        name: "fgraph-attach-test",
        version: "1",
        bytes: &programs.library,
        entry: c"shares",
        calls: &[],
        calls_elsewhere: &[],
    };
    let mut shared = None;
    let loaded = load_with(program.id(), &library, |files| {
        let (file, descriptor) = files.create(c"shared")?;
        shared = Some(file);
        Ok(format!("{descriptor}\0").into_bytes())
    });
    assert_eq!(loaded.unwrap().result, 4);
    let mut text = String::new();
    shared.unwrap().read_to_string(&mut text).unwrap();
    assert_eq!((text.as_str(), opened(program.id())), ("here", before));

    let failed = load_with(program.id(), &library, |files| {
        files.create(c"shared")?;
        Err(ErrorKind::Other.into())
    });
    assert!(matches!(failed, Err(Error::Io { .. })));
    assert_eq!(opened(program.id()), before);
}

/// Loads the library into a program that puts what is at `place` where new files are, until it is
/// killed.
fn load_where_files_are_swapped(programs: &Programs, place: &Path) {
    let swaps = programs.compile("swaps", &[]);
    let library = Library {
        name: "fgraph-attach-test",
        version: "1",
        bytes: &programs.library,
        entry: c"loaded",
        calls: &[],
        calls_elsewhere: &[],
    };
    for _ in 0..20 {
        let program = Program::start(Command::new(&swaps).arg(place).stdin(Stdio::piped()));
        // It is refused, or has come before the other file.
        let _ = load_with(program.id(), &library, |files| {
            let (mut file, _) = files.create(c"shared")?;
            file.write_all(b"overwritten")?;
            // The library writes to no descriptor that the program may have replaced since.
            Ok(NOWHERE.to_vec())
        });
    }
}

#[test]
fn a_file_that_the_process_puts_in_place_of_ours_is_not_written() {
    let programs = Programs::new();
    let place = programs.folder.path().join("precious");
    fs::write(&place, "precious").unwrap();
    load_where_files_are_swapped(&programs, &place);
    assert_eq!(fs::read_to_string(&place).unwrap(), "precious");
}

#[test]
fn a_socket_that_the_process_puts_in_place_of_ours_gets_no_message() {
    let programs = Programs::new();
    let place = programs.folder.path().join("socket");
    let socket = UnixDatagram::bind(&place).unwrap();
    load_where_files_are_swapped(&programs, &place);
    socket.set_nonblocking(true).unwrap();
    let received = socket.recv(&mut [0; 16]);
    assert_eq!(received.unwrap_err().kind(), ErrorKind::WouldBlock);
}

/// A library that has all threads of the process make these calls.
fn library_that_calls<'a>(programs: &'a Programs, calls_elsewhere: &'a [i64]) -> Library<'a> {
    Library {
        name: "fgraph-attach-test",
        version: "1",
        bytes: &programs.library,
        entry: c"loaded",
        calls: &[],
        calls_elsewhere,
    }
}

/// An argument with which the library writes its text to nowhere.
const NOWHERE: &[u8] = b"/dev/null\nx";

/// True if this process may see the filters of others.
fn may_see_filters() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let has = |line: &str| status.lines().any(|it| it.starts_with(line));
    // SAFETY: it only asks.
    has("Seccomp:\t0") && unsafe { libc::geteuid() } == 0
}

#[test]
fn a_thread_without_a_filter_is_held_beside_one_with() {
    let programs = Programs::new();
    let sandboxed = programs.compile("sandboxed", &[]);
    for which in ["worker", "main"] {
        let mut command = Command::new(&sandboxed);
        let program = Program::start(command.arg(which).stdin(Stdio::piped()));
        for count in 1..=3 {
            assert_eq!(
                programs.load(program.id(), "x").unwrap().result,
                count,
                "{which}"
            );
        }
        // A library that has the other thread call something is not loaded.
        let library = library_that_calls(&programs, &[libc::SYS_read, libc::SYS_mmap]);
        let error = load(program.id(), &library, NOWHERE).unwrap_err();
        let Error::Unsuitable {
            why: Unsuitable::Seccomp { call, .. },
            ..
        } = error
        else {
            panic!("{error}");
        };
        assert_eq!(call, may_see_filters().then_some(libc::SYS_mmap), "{which}");
        if may_see_filters() {
            let library = library_that_calls(&programs, &[libc::SYS_read]);
            assert_eq!(load(program.id(), &library, NOWHERE).unwrap().result, 4);
        }
        assert_eq!(program.end().code(), Some(0), "{which}");
    }
}

#[test]
fn a_process_whose_filter_would_kill_it_is_refused_at_once() {
    let programs = Programs::new();
    let program = programs.start("sandboxed", &["all"]);
    let error = programs.load(program.id(), "x").unwrap_err();
    let text = error.to_string();
    let Error::Unsuitable {
        why: Unsuitable::Seccomp { call, .. },
        ..
    } = error
    else {
        panic!("{error}");
    };
    assert_eq!(call.is_some(), may_see_filters());
    let said = match call {
        Some(call) => format!("would be killed for call {call}"),
        None => "CAP_SYS_ADMIN".to_owned(),
    };
    assert!(text.contains(&said), "{text}");
    assert_eq!(program.end().code(), Some(0));
}

/// The calls that the usual filter of containers allows in any case, a line each.
fn allowed_in_containers() -> Option<String> {
    let text = fs::read_to_string("/usr/share/containers/seccomp.json").ok()?;
    let lists = text.split("\"names\": [").skip(1);
    let lists = lists.filter_map(|list| list.split(']').next());
    let names = lists.max_by_key(|list| list.len())?.split('"');
    let is_name = |word: &&str| word.starts_with(|c: char| c.is_ascii_alphabetic());
    let names: Vec<&str> = names.filter(is_name).chain(["arch_prctl"]).collect();
    Some(names.join("\n"))
}

/// A program under the usual filter of containers; `None` where there is none here.
fn contained(programs: &Programs, options: &[&str]) -> Option<Program> {
    let Some(names) = allowed_in_containers() else {
        fgraph_needs::skip!("no filter (apt-get install golang-github-containers-common)");
        return None;
    };
    if !Path::new("/usr/include/seccomp.h").exists() {
        fgraph_needs::skip!("no seccomp.h (apt-get install libseccomp-dev)");
        return None;
    }
    let contained = programs.compile("contained", &["-Wl,--no-as-needed", "-lseccomp"]);
    let list = programs.folder.path().join("names");
    fs::write(&list, names).unwrap();
    let mut command = Command::new(contained);
    let command = command.arg(list).args(options).stdin(Stdio::piped());
    Some(Program::start(command))
}

#[test]
fn a_process_in_a_container_takes_the_library() {
    let programs = Programs::new();
    let Some(program) = contained(&programs, &[]) else {
        return;
    };
    let library = library_that_calls(&programs, &[libc::SYS_mmap, libc::SYS_bpf]);
    match load(program.id(), &library, NOWHERE) {
        Ok(loaded) => assert!(may_see_filters() && loaded.result == 1),
        Err(Error::Unsuitable {
            why: Unsuitable::Seccomp { call: None, .. },
            ..
        }) => {
            assert!(!may_see_filters());
        }
        Err(error) => panic!("{error}"),
    }
    assert_eq!(program.end().code(), Some(0));
}

#[test]
fn a_process_that_may_not_have_executable_memory_is_refused_with_the_reason() {
    let programs = Programs::new();
    let Some(program) = contained(&programs, &["plain"]) else {
        return;
    };
    let error = programs.load(program.id(), "x").unwrap_err();
    if may_see_filters() {
        assert!(error.to_string().contains("execmem"), "{error}");
    }
    assert_eq!(program.end().code(), Some(0));
}

#[test]
fn threads_of_the_kernel_are_left_alone() {
    let programs = Programs::new();
    let uring = programs.compile("uring", &[]);
    let mut child = Command::new(uring).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    if line == "none\n" {
        let _ = child.wait();
        return fgraph_needs::skip!("no io_uring here");
    }
    let program = Program(child);
    assert_eq!(threads(program.id()), 3);
    // Counts the sleeps of the thread that waits for the pipe: one more each time that it is
    // stopped. The thread has its name once it works.
    let slept = || {
        let tasks = fs::read_dir(format!("/proc/{}/task", program.id())).unwrap();
        let mut texts = tasks.map(|it| fs::read_to_string(it.unwrap().path().join("status")));
        let waits = |text: &str| text.contains("Name:\tiou-wrk") && text.contains("State:\tS");
        let text = texts.find_map(|it| it.ok().filter(|it| waits(it)))?;
        let mut lines = text.lines();
        let line = lines.find(|line| line.starts_with("voluntary_ctxt_switches"));
        line.map(str::to_owned)
    };
    let until = Instant::now() + Duration::from_secs(20);
    while slept().is_none() {
        assert!(Instant::now() < until, "it does not wait for the pipe");
        thread::sleep(Duration::from_millis(1));
    }
    let before = slept();
    for count in 1..=3 {
        // Kernel threads block all signals.
        assert_eq!(unblock_traps(program.id()).unwrap(), 0);
        assert_eq!(programs.load(program.id(), "x").unwrap().result, count);
    }
    assert_eq!(slept(), before);
    // SAFETY: a signal to a child that was not waited for.
    unsafe { libc::kill(program.id() as i32, libc::SIGUSR1) };
    assert_eq!(program.end().code(), Some(0));
}

#[test]
fn leftovers_of_sigaction_on_the_stack_are_no_signal_handler() {
    let programs = Programs::new();
    let program = programs.start("remembers", &[]);
    assert_eq!(programs.load(program.id(), "x").unwrap().result, 1);
    assert_eq!(program.end().code(), Some(0));
}

#[test]
fn signal_frame_in_unused_stack_is_no_handler_that_runs() {
    let programs = Programs::new();
    let start = |arguments: &[&str]| programs.start("interrupted", arguments);
    let program = start(&[]);
    assert_eq!(programs.load(program.id(), "x").unwrap().result, 1);
    assert_eq!(program.end().code(), Some(0));
    let program = start(&["in the handler"]);
    let error = programs.load(program.id(), "x").unwrap_err();
    let is_refused = matches!(error, Error::Busy { why, .. } if why == Unfit::Handler);
    assert!(is_refused, "{error}");
    assert_eq!(program.end().code(), Some(0));
}

/// Set in the first process of a namespace in which no file of memory is executable.
const NO_EXEC: &str = "FGRAPH_ATTACH_NO_EXEC";

#[test]
fn where_no_file_of_memory_is_executable_the_library_comes_from_a_disk() {
    const NAME: &str = "where_no_file_of_memory_is_executable_the_library_comes_from_a_disk";
    if std::env::var_os(NO_EXEC).is_none() {
        let set = "echo 2 > /proc/sys/vm/memfd_noexec || exit 77; exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["-pf", "--mount-proc", "sh", "-c", set, "sh"]);
        command.arg(std::env::current_exe().unwrap());
        let output = command.args(["--exact", NAME]).env(NO_EXEC, "1").output();
        let output = output.unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        return match output.status.code() {
            Some(0) => assert!(text.contains("1 passed"), "{text}"),
            Some(101) => panic!("{text}"),
            _ => fgraph_needs::skip!("vm.memfd_noexec cannot be set in a namespace here"),
        };
    }
    let mut programs = Programs::new();
    let program = programs.start("sleeps", &["0"]);
    let loads = [(); 2].map(|()| programs.load(program.id(), "x").unwrap());
    assert_eq!(
        loads.map(|it| (it.result, it.was_loaded)),
        [(1, false), (2, true)]
    );
    let mapped = files_mapped(program.id()).join("\n");
    assert!(
        mapped.contains("/fgraph-attach-test-1.so (deleted)"),
        "{mapped}"
    );
    // Another version is refused: the name of the mapped file tells the version.
    programs.library.clear();
    let error = programs.load_as(program.id(), "x", "2").unwrap_err();
    assert!(matches!(error, Error::OtherVersion { .. }), "{error}");
    assert_eq!(program.end().code(), Some(0));
}

#[test]
fn a_thread_whose_system_calls_the_kernel_dispatches_is_left_alone() {
    let programs = Programs::new();
    let start = |arguments: &[&str]| programs.start("dispatches", arguments);
    let (alone, with_another) = (start(&[]), start(&["thread"]));
    let loaded = programs.load(alone.id(), "x");
    let status = alone.end();
    if status.code() == Some(77) {
        return fgraph_needs::skip!("the kernel does not dispatch system calls");
    }
    assert_eq!(status.code(), Some(0), "{status} {loaded:?}");
    let error = loaded.unwrap_err();
    let why = Unfit::Dispatches;
    assert!(
        matches!(error, Error::Busy { why: found, .. } if found == why),
        "{error}"
    );
    assert_eq!(programs.load(with_another.id(), "x").unwrap().result, 1);
    assert_eq!(with_another.end().code(), Some(0));
    // It may be held where nothing is dispatched, if it comes to such a place in time.
    let now_and_then = start(&["now and then"]);
    let _ = programs.load(now_and_then.id(), "x");
    assert_eq!(now_and_then.end().code(), Some(0));
}

#[test]
fn a_process_that_ends_meanwhile_is_gone() {
    let programs = Programs::new();
    let program = programs.start("sleeps", &["0"]);
    let pid = program.id();
    let loaded = load_with(pid, &library_that_calls(&programs, &[]), |_| {
        // SAFETY: a system call.
        assert_eq!(unsafe { libc::kill(pid as i32, libc::SIGKILL) }, 0);
        let status = || fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        while !status().contains("State:\tZ") {
            thread::sleep(Duration::from_millis(1));
        }
        Ok(Vec::new())
    });
    let error = loaded.unwrap_err();
    assert!(matches!(error, Error::Gone { .. }), "{error}");
}

#[test]
fn the_linker_keeps_no_path_that_leads_to_other_files() {
    let programs = Programs::new();
    let names = programs.compile("names", &[]);
    let mut command = Command::new(names);
    command.arg(programs.folder.path().join("library"));
    let program = Program::start(command.stdin(Stdio::piped()));
    let loads = [(); 2].map(|()| programs.load(program.id(), "x").unwrap());
    assert_eq!(
        loads.map(|it| (it.result, it.was_loaded)),
        [(1, false), (2, true)]
    );
    assert_eq!(program.end().code(), Some(0));
}

#[test]
fn another_version_is_named() {
    let programs = Programs::new();
    let program = programs.start("sleeps", &["0"]);
    programs.load(program.id(), "x").unwrap();
    let error = programs.load_as(program.id(), "x", "2").unwrap_err();
    let Error::OtherVersion { found } = error else {
        panic!("{error}");
    };
    assert!(found.contains("fgraph-attach-test-1"), "{found}");
}

#[test]
fn a_library_that_cannot_be_loaded_is_refused_with_the_reason() {
    let mut programs = Programs::new();
    programs.library.fill(b'x');
    let program = programs.start("sleeps", &["0"]);
    let before = (opened(program.id()), files_mapped(program.id()));
    let error = programs.load(program.id(), "x").unwrap_err();
    let Error::Refused { message } = error else {
        panic!("{error}");
    };
    assert!(message.contains("/proc/self/fd/"), "{message}");
    assert_eq!((opened(program.id()), files_mapped(program.id())), before);
    assert_eq!(program.end().code(), Some(0));
}

#[test]
fn programs_that_cannot_load_libraries_are_named() {
    let programs = Programs::new();
    let sleeps = programs.compile("sleeps", &["-static"]);
    let program = Program::start(Command::new(sleeps).arg("0").stdin(Stdio::piped()));
    let error = programs.load(program.id(), "x").unwrap_err();
    let is_static = matches!(&error, Error::Unsuitable { why, .. } if *why == Unsuitable::Static);
    assert!(is_static, "{error}");
    assert!(
        error
            .to_string()
            .ends_with("is statically linked: it cannot load libraries")
    );
}

/// Does `work` in a thread with the rights of this user only.
fn as_user<T: Send>(user: u32, work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let work = scope.spawn(|| {
            // SAFETY: the kernel's calls are of this thread only, which ends.
            unsafe {
                if libc::geteuid() == 0 {
                    let none = [0_u32; 0];
                    assert_eq!(libc::syscall(libc::SYS_setgroups, 0, none.as_ptr()), 0);
                    assert_eq!(libc::syscall(libc::SYS_setresgid, user, user, user), 0);
                    assert_eq!(libc::syscall(libc::SYS_setresuid, user, user, user), 0);
                }
            }
            work()
        });
        work.join().unwrap()
    })
}

#[test]
fn an_inaccessible_process_is_refused_with_the_reason() {
    const NOBODY: u32 = 65534;
    let programs = Programs::new();
    let why = |pid| match as_user(NOBODY, || fgraph_attach::check(pid)) {
        Err(Error::Forbidden { why, .. }) => why,
        other => panic!("{other:?}"),
    };
    // The first process is root's, whoever runs this.
    assert_eq!(why(1), Obstacle::User { owner: 0 });

    let undumpable = programs.compile("undumpable", &[]);
    let folder = programs.folder.path();
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new(&undumpable);
    // SAFETY: always succeeds.
    if unsafe { libc::geteuid() } == 0 {
        command.uid(NOBODY).gid(NOBODY);
    }
    let program = Program::start(command.stdin(Stdio::piped()));
    assert_eq!(why(program.id()), Obstacle::NotDumpable);
    assert_eq!(program.end().code(), Some(0));
}

#[test]
fn processes_that_are_stopped_or_traced_or_gone_are_named() {
    let programs = Programs::new();
    let program = programs.start("sleeps", &["0"]);
    let id = program.id();
    // SAFETY: signals to a child that was not waited for.
    let signal = |signal| unsafe { libc::kill(id as i32, signal) };
    signal(libc::SIGSTOP);
    let until = Instant::now() + Duration::from_secs(5);
    let error = loop {
        match programs.load(id, "x") {
            Err(error) => break error,
            // The signal is on its way.
            Ok(_) => assert!(Instant::now() < until),
        }
    };
    let is_stopped = matches!(&error, Error::Unsuitable { why, .. } if *why == Unsuitable::Stopped);
    assert!(is_stopped || matches!(error, Error::Busy { .. }), "{error}");
    signal(libc::SIGCONT);

    let mut tracer = Command::new("sh");
    if let Ok(strace) = fgraph_needs::STRACE.find() {
        let mut tracer = tracer
            .args(["-c", &format!("exec {strace:?} -p {id} 2>&1")])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        tracer
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut [0])
            .unwrap();
        let error = programs.load(id, "x").unwrap_err();
        let by = tracer.id();
        let _ = tracer.kill();
        tracer.wait().unwrap();
        let is_traced = matches!(&error, Error::Forbidden { why, .. }
            if *why == Obstacle::Traced { by });
        assert!(is_traced, "{error}");
    }
    let status = {
        signal(libc::SIGKILL);
        program.end()
    };
    assert_eq!(status.signal(), Some(libc::SIGKILL));
    assert!(matches!(programs.load(id, "x"), Err(Error::Gone { .. })));
}
