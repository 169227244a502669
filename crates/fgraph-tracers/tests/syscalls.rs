//! System calls: what the lines say, beside what `strace` says of the same calls.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_void};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::parent_id;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use std::{env, thread};

use crate::sqlite::Sqlite;
use fgraph::{RefusalReason, SystemCallError};
use fgraph_needs::{Missing, STRACE, needs};
use fgraph_scenario::{part, scenario};
use fgraph_tracers::Tracer;
use fgraph_tracers::syscalls::{NOT_SEEN, Syscalls};

/// Makes a system call that nothing else makes.
fn mark() {
    let _ = parent_id();
}

fn lines(syscalls: &Syscalls) -> Vec<String> {
    std::iter::from_fn(|| syscalls.read_line(Duration::ZERO)).collect()
}

#[scenario]
fn lines_have_functions_and_arguments() {
    let syscalls = Syscalls::start().unwrap();
    let path = fgraph_scenario::directory().join("file");
    fs::write(&path, b"one\ntwo\0\xff").unwrap();
    fs::remove_file(&path).unwrap();
    File::open(&path).unwrap_err();
    // SAFETY: the kernel looks whether there is memory.
    unsafe {
        libc::write(-1, std::ptr::without_provenance(1), 5);
        libc::syscall(libc::SYS_getpgid, 0);
    }
    let lines = lines(&syscalls);
    let path = path.to_str().unwrap();
    let find = |name: &str, rest: &[&str]| {
        let name = format!("({name:>12}):(");
        let has =
            |line: &&String| line.contains(&name) && rest.iter().all(|part| line.contains(part));
        let found = lines.iter().find(has);
        found.unwrap_or_else(|| panic!("no {name} with {rest:?} in {lines:#?}"))
    };
    let thread = format!(" thread: {} ", fgraph::thread_id());
    let here = format!("(0x{:x}, 0x", libc::AT_FDCWD as i64);
    find(
        "openat",
        &["Syscall 257 ", &here, &thread, &format!("data: {path}\n")],
    );
    find(
        "write",
        &[
            "Syscall   1 ",
            ", 0x9, 0x0, 0x0, 0x0) ret: 0x9",
            "one\\ntwo\\x00\\xff\n",
        ],
    );
    find("unlink", &["ret: 0x0 proc: ", path]);
    find("openat", &["ret: 0xfffffffffffffffe proc: ", path]);
    find(
        "write",
        &[
            "(0xffffffff",
            ", 0x1, 0x5, ",
            "ret: 0xfffffffffffffff7 ",
            "data: \n",
        ],
    );
    find("getpgid", &["(0x0, 0x0,", "Syscall 121 "]);
    assert_eq!(syscalls.dropped(), 0);
}

#[scenario]
fn a_bad_pointer_costs_the_data_and_not_the_program() {
    let syscalls = Syscalls::start().unwrap();
    // SAFETY: two pages; nothing uses the second one, and the kernel looks at the rest.
    unsafe {
        let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let pages = libc::mmap(std::ptr::null_mut(), 8192, access, anonymous, -1, 0);
        libc::munmap(pages.byte_add(4096), 4096);
        let end = pages.byte_add(4096 - 3).cast::<u8>();
        end.copy_from_nonoverlapping(b"end".as_ptr(), 3);
        for path in [1, usize::MAX, end.addr(), 0].map(std::ptr::without_provenance) {
            assert_eq!(libc::access(path, 0), -1);
        }
    }
    let lines = lines(&syscalls);
    let access = lines.iter().filter(|line| line.contains("(      access)"));
    let data: Vec<_> = access
        .map(|line| line.split("data: ").nth(1).unwrap())
        .collect();
    assert_eq!(data, ["\n", "\n", "end\n", "\n"]);
}

#[scenario]
fn a_full_queue_drops_and_counts_and_never_waits() {
    const CALLS: usize = 1000;
    let syscalls = Syscalls::start_with(4096).unwrap();
    syscalls
        .set_filter("getppid:mod:libc.so*".parse().unwrap())
        .unwrap();
    (0..CALLS).for_each(|_| mark());
    assert!(syscalls.queued() > 3500);
    let kept = lines(&syscalls).len();
    assert_eq!(kept as u64 + syscalls.dropped(), CALLS as u64);
    assert!((5..50).contains(&kept));
    mark();
    assert_eq!(lines(&syscalls).len(), 1);
}

#[scenario]
fn readers_share_the_lines_through_files() {
    const CALLS: usize = 500;
    let syscalls = Syscalls::start().unwrap();
    syscalls
        .set_filter("getppid:mod:libc.so*".parse().unwrap())
        .unwrap();
    let readers = [(); 2].map(|()| File::from(syscalls.reader().unwrap()));
    // One that goes away does not matter.
    drop(syscalls.reader().unwrap());
    let readers = readers.map(|file| {
        thread::spawn(move || {
            let lines = BufReader::new(file).lines().map(Result::unwrap);
            lines
                .filter(|line| line.contains("(     getppid):"))
                .count()
        })
    });
    for _ in 0..CALLS {
        mark();
    }
    let left = thread::spawn(move || drop(syscalls));
    let read: usize = readers
        .into_iter()
        .map(|reader| reader.join().unwrap())
        .sum();
    left.join().unwrap();
    // The one that went away may have taken one with it.
    assert!((CALLS - 1..=CALLS).contains(&read), "{read}");
}

#[scenario]
fn loud_lines_come_as_calls_begin_and_end() {
    let (mut theirs, ours) = std::os::unix::net::UnixStream::pair().unwrap();
    let ours: &'static _ = Box::leak(Box::new(ours));
    let syscalls = Syscalls::start().unwrap();
    syscalls
        .set_filter("getppid:mod:libc.so* _exit:mod:libc.so*".parse().unwrap())
        .unwrap();
    syscalls.set_loud(Some(std::os::fd::AsFd::as_fd(ours)));
    mark();
    let status = fgraph_scenario::forked(|| 7);
    assert_eq!(status.code(), Some(7));
    syscalls.set_loud(None);
    mark();
    ours.shutdown(std::net::Shutdown::Both).unwrap();
    let mut text = String::new();
    theirs.read_to_string(&mut text).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 4, "{text}");
    assert!(lines[0].starts_with("ENTER [") && !lines[0].contains("]-["));
    assert!(lines[1].starts_with("EXIT [") && lines[1].contains("]-["));
    // A call that does not return has a whole record, too.
    assert!(lines[2].starts_with("ENTER [") && lines[2].contains("exit_group"));
    assert!(lines[3].starts_with("EXIT [") && lines[3].contains("(0x7, 0x0"));
    assert_ne!(
        lines[3].split("thread: ").nth(1),
        lines[0].split("thread: ").nth(1)
    );
}

// Makes system calls itself.
std::arch::global_asm!(
    ".pushsection .text.makes_its_own,\"ax\",@progbits",
    ".globl makes_its_own",
    ".type makes_its_own,@function",
    "makes_its_own:",
    "mov r10d, 0x77",
    "mov eax, 334",
    "syscall",
    "mov eax, 110",
    "syscall",
    "xor eax, eax",
    "syscall",
    "ret",
    ".size makes_its_own, . - makes_its_own",
    ".popsection",
);

unsafe extern "C" {
    /// rseq(2) with bad getppid(2), and read(2), which cannot be traced.
    fn makes_its_own(first: u64, second: u64, third: u64) -> i64;
}

#[scenario]
fn calls_that_a_program_makes_itself_are_seen_or_listed() {
    let syscalls = Syscalls::start().unwrap();
    // SAFETY: the kernel refuses the first and the last.
    let result = unsafe { makes_its_own(u64::MAX, 0x55, 0x66) };
    assert_eq!(result, -i64::from(libc::EBADF));
    let lines = lines(&syscalls);
    let own: Vec<_> = lines
        .iter()
        .filter(|line| line.contains("rseq):") || line.contains("getppid):"))
        .collect();
    let [rseq, getppid] = &*own else {
        panic!("{lines:?}");
    };
    let args = "(0xffffffffffffffff, 0x55, 0x66, 0x77, ";
    let error = format!(" ret: {:#x} ", -i64::from(libc::EINVAL));
    assert!(rseq.contains(args) && rseq.contains(&error), "{rseq}");
    let result = format!("(0x0, 0x0, 0x0, 0x0, 0x0, 0x0) ret: {:#x} ", parent_id());
    assert!(getppid.contains(&result), "{getppid}");
    let not_seen = syscalls.not_seen().unwrap();
    let own: Vec<_> = not_seen
        .iter()
        .filter(|call| call.name.starts_with("makes_its_own+"))
        .map(|call| (&*call.name, &call.reason))
        .collect();
    let reason = RefusalReason::SystemCall(SystemCallError::NoNumber);
    assert_eq!(own, [("makes_its_own+0x16", &reason)]);
    // A wrapper's system calls are seen as calls of the wrapper.
    assert!(!not_seen.iter().any(|call| call.name.starts_with("read+")));
}

/// A program, which works in a folder.
type Program = fn(&Path) -> Result<(), Missing>;

/// Programs that make system calls.
const PROGRAMS: &[(&str, Program)] = &[
    ("copies a file", copies),
    ("runs a script of sqlite", runs_sqlite),
    ("hashes a folder on threads", hashes),
    ("talks to itself", talks),
    ("runs another program", runs_another),
    (
        "calls functions that begin with a system call",
        calls_wrappers,
    ),
];

/// Functions of the C library that begin with a system call, with arguments that the kernel
/// refuses: -1 is neither a file, nor an address, nor flags.
const WRAPPERS: &[&CStr] = &[
    c"acct",
    c"capget",
    c"capset",
    c"chroot",
    c"clock_adjtime",
    c"close_range",
    c"delete_module",
    c"fanotify_init",
    c"fanotify_mark",
    c"fchownat",
    c"fgetxattr",
    c"flistxattr",
    c"fremovexattr",
    c"fsconfig",
    c"fsetxattr",
    c"fsmount",
    c"fsopen",
    c"fspick",
    c"getgroups",
    c"getitimer",
    c"getpgrp",
    c"getresgid",
    c"getresuid",
    c"getxattr",
    c"init_module",
    c"inotify_rm_watch",
    c"ioperm",
    c"iopl",
    c"klogctl",
    c"lgetxattr",
    c"listxattr",
    c"llistxattr",
    c"lremovexattr",
    c"lsetxattr",
    c"mlock2",
    c"mlockall",
    c"mount",
    c"mount_setattr",
    c"move_mount",
    c"msgctl",
    c"name_to_handle_at",
    c"open_tree",
    c"personality",
    c"pidfd_getfd",
    c"pidfd_send_signal",
    c"pivot_root",
    c"pkey_alloc",
    c"pkey_free",
    c"process_madvise",
    c"process_mrelease",
    c"quotactl",
    c"readahead",
    c"removexattr",
    c"sched_get_priority_max",
    c"sched_get_priority_min",
    c"sched_getparam",
    c"sched_getscheduler",
    c"sched_rr_get_interval",
    c"sched_setparam",
    c"semget",
    c"semtimedop",
    c"setdomainname",
    c"setfsgid",
    c"setfsuid",
    c"sethostname",
    c"setitimer",
    c"setns",
    c"setpriority",
    c"setxattr",
    c"shmat",
    c"shmctl",
    c"shmdt",
    c"swapoff",
    c"swapon",
    c"tgkill",
    c"timerfd_gettime",
    c"umount2",
    c"unshare",
];

fn calls_wrappers(_folder: &Path) -> Result<(), Missing> {
    let mut called = 0;
    for name in WRAPPERS {
        // SAFETY: a C string. An older library may lack the function.
        let function = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        if !function.is_null() {
            type Wrapper = extern "C" fn(i64, i64, i64, i64, i64, i64) -> i64;
            // SAFETY: these functions take at most six integers or pointers.
            let function = unsafe { std::mem::transmute::<*mut c_void, Wrapper>(function) };
            function(-1, -1, -1, -1, -1, -1);
            called += 1;
        }
    }
    assert!(called > 60, "{called}");
    Ok(())
}

fn copies(folder: &Path) -> Result<(), Missing> {
    let [from, to] = ["from", "to"].map(|name| folder.join(name));
    fs::write(&from, vec![b'x'; 100_000]).unwrap();
    fs::copy(&from, &to).unwrap();
    assert_eq!(fs::read(&to).unwrap().len(), 100_000);
    fs::rename(&to, folder.join("other")).unwrap();
    fs::create_dir(folder.join("inner")).unwrap();
    assert_eq!(fs::read_dir(folder).unwrap().count(), 3);
    Ok(())
}

fn runs_sqlite(folder: &Path) -> Result<(), Missing> {
    let sqlite = Sqlite::load()?;
    assert_eq!(
        sqlite.run_script_in(&folder.join("database")),
        crate::sqlite::ROWS
    );
    Ok(())
}

fn hashes(folder: &Path) -> Result<(), Missing> {
    for n in 0..20_u8 {
        fs::write(folder.join(n.to_string()), vec![n; 1000 * usize::from(n)]).unwrap();
    }
    let hash = |nth: usize| {
        let files = fs::read_dir(folder)
            .unwrap()
            .map(|file| file.unwrap().path());
        files.skip(nth * 5).take(5).fold(0, |sum, path| {
            let bytes = fs::read(path).unwrap();
            let mix =
                |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
            sum ^ bytes.iter().fold(0xcbf2_9ce4_8422_2325, mix)
        })
    };
    let sum = thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|nth| scope.spawn(move || hash(nth))).collect();
        threads
            .into_iter()
            .fold(0_u64, |sum, thread| sum ^ thread.join().unwrap())
    });
    assert_ne!(sum, 0);
    Ok(())
}

fn talks(_folder: &Path) -> Result<(), Missing> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let client = thread::spawn(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"question").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    });
    let (mut stream, _) = listener.accept().unwrap();
    let mut question = [0; 8];
    stream.read_exact(&mut question).unwrap();
    stream.write_all(b"answer").unwrap();
    drop(stream);
    assert_eq!(client.join().unwrap(), "answer");
    Ok(())
}

fn runs_another(_folder: &Path) -> Result<(), Missing> {
    let output = Command::new("/bin/echo").arg("hello").output().unwrap();
    assert_eq!(output.stdout, b"hello\n");
    Ok(())
}

/// A system call: its name and its result, which is `None` where `strace` does not say.
type Seen = (String, Option<i64>);

/// The calls of each thread, as `strace -f` writes them, from the first `getppid` of the first
/// thread to its second.
fn read_strace(text: &str) -> BTreeMap<u32, Vec<Seen>> {
    let mut calls: BTreeMap<u32, Vec<Seen>> = BTreeMap::new();
    let mut marks = 0;
    for line in text.lines() {
        let (thread, call) = line.split_once(' ').unwrap();
        let (thread, call) = (thread.parse().unwrap(), call.trim_start());
        if call.starts_with(['-', '+']) {
            continue;
        }
        // A call that is interrupted by other lines counts when it is resumed.
        if call.contains("<unfinished ...>") {
            continue;
        }
        let name = match call.strip_prefix("<... ") {
            Some(resumed) => resumed.split(' ').next().unwrap(),
            None => call.split('(').next().unwrap(),
        };
        if name == "getppid" {
            marks += 1;
            continue;
        }
        let result = call.rsplit(" = ").next().unwrap();
        let mut words = result.split(' ');
        let number = words.next().unwrap();
        let number = match number.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok().map(|n| n as i64),
            None => number.parse::<i64>().ok(),
        };
        if marks == 1 {
            calls
                .entry(thread)
                .or_default()
                .push((name.to_owned(), number));
        }
    }
    assert_eq!(marks, 2, "{text}");
    calls
}

/// The calls of each thread by our lines.
fn read_lines(text: &str) -> BTreeMap<u32, Vec<Seen>> {
    let mut calls: BTreeMap<u32, Vec<Seen>> = BTreeMap::new();
    for line in text.lines() {
        let (head, rest) = line.split_once("):(").unwrap();
        let name = head.rsplit('(').next().unwrap().trim();
        let (_, rest) = rest.split_once(" ret: 0x").unwrap();
        let (result, rest) = rest.split_once(' ').unwrap();
        let (_, rest) = rest.split_once(" thread: ").unwrap();
        let thread = rest.split(' ').next().unwrap().parse().unwrap();
        let result = u64::from_str_radix(result, 16).unwrap() as i64;
        let result = if (-4095..0).contains(&result) {
            -1
        } else {
            result
        };
        if name != "getppid" {
            calls
                .entry(thread)
                .or_default()
                .push((name.to_owned(), Some(result)));
        }
    }
    calls
}

/// Each call of `strace`'s is in ours, in the same order, or is one that is said not to be seen;
/// ours are all in `strace`'s.
fn compare(program: &str, strace: &BTreeMap<u32, Vec<Seen>>, ours: &BTreeMap<u32, Vec<Seen>>) {
    // Calls of the callbacks, and of fgraph where it meets a thread first, are not the program's.
    // Then fgraph also forgets the shadow stack of a thread that it finds gone: `madvise`.
    let own = [
        "process_vm_readv",
        "getpid",
        "gettid",
        "tgkill",
        "sigaltstack",
        "ioctl",
        "mmap",
        "mremap",
        "mprotect",
        "madvise",
        "openat",
        "close",
        "sched_getaffinity",
    ];
    let (mut both, mut missing) = (0, BTreeMap::<&str, usize>::new());
    for (thread, calls) in strace {
        // Where another program is started, until and after that.
        if calls.iter().any(|(name, _)| name == "execve") {
            continue;
        }
        let ours = ours.get(thread).map_or(&[][..], Vec::as_slice);
        let mut rest = ours;
        for (name, result) in calls {
            if let Some(((our_name, our_result), behind)) = rest.split_first()
                && our_name == name
                && (result.is_none() || result == our_result)
            {
                rest = behind;
                both += 1;
            } else if !own.contains(&&**name) {
                assert!(
                    NOT_SEEN.contains(&&**name),
                    "{program}: thread {thread}: {name} = {result:?} is missing before {rest:?}\n\
                     strace: {calls:?}\nours: {ours:?}",
                );
                *missing.entry(name).or_default() += 1;
            }
        }
        assert!(rest.is_empty(), "{program}: {rest:?} are not in {calls:?}");
    }
    let threads = ours.keys().filter(|thread| !strace.contains_key(thread));
    assert_eq!(threads.count(), 0);
    println!("{program}: {both} calls are in both; not seen: {missing:?}");
    assert!(both >= 5);
}

#[scenario]
fn calls_that_strace_sees_are_seen_or_listed_as_not_seen() {
    let strace = needs!(STRACE.find());
    let folder = fgraph_scenario::directory();
    if let Some(part) = part() {
        let (name, run) = PROGRAMS[part.parse::<usize>().unwrap()];
        let folder = env::var("FOLDER").unwrap();
        let folder = Path::new(&folder);
        let inside = folder.join("inside");
        fs::create_dir_all(&inside).unwrap();
        // The dynamic linker's calls are made before the tracer starts.
        let _ = Sqlite::load();
        let syscalls = Syscalls::start().unwrap();
        mark();
        let done = run(&inside);
        mark();
        let text = lines(&syscalls).concat();
        assert_eq!(syscalls.dropped(), 0);
        drop(syscalls);
        let begin = text.find("(     getppid):").unwrap();
        let begin = begin + text[begin..].find('\n').unwrap() + 1;
        let end = text.rfind("(     getppid):").unwrap();
        let end = text[..end].rfind('\n').unwrap() + 1;
        fs::write(folder.join("ours"), &text[begin..end]).unwrap();
        if done.is_err() {
            println!("skipped {name}");
            fs::remove_file(folder.join("ours")).unwrap();
        }
        return;
    }
    for (nth, (name, _)) in PROGRAMS.iter().enumerate() {
        let folder = folder.join(nth.to_string());
        fs::create_dir_all(&folder).unwrap();
        let play = fgraph_scenario::play(&nth.to_string());
        let mut command = Command::new(&strace);
        command.args(["-f", "-o"]).arg(folder.join("strace"));
        command.arg(play.get_program()).args(play.get_args());
        command.envs(
            play.get_envs()
                .filter_map(|(key, value)| Some((key, value?))),
        );
        command.env("FOLDER", &folder);
        let output = fgraph_scenario::bounded(&mut command);
        assert!(output.status.success(), "{name}: {output:?}");
        let Ok(ours) = fs::read_to_string(folder.join("ours")) else {
            continue;
        };
        let strace = fs::read_to_string(folder.join("strace")).unwrap();
        compare(name, &read_strace(&strace), &read_lines(&ours));
    }
}
