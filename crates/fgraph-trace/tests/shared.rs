//! Rings that are shared by processes that do not trust each other.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use fgraph_trace::event::{Kind, What, call};
use fgraph_trace::names::DescriptionKind;
use fgraph_trace::ring::{Mode, RingOptions, Rings, ThreadWriter, Writer};
use fgraph_trace::{Live, Snapshot, Source};

const PROCESS: u32 = 100;
/// Set in a process that a test has started.
const CHILD: &str = "FGRAPH_SHARED_RINGS_CHILD";

fn options(mode: Mode) -> RingOptions {
    RingOptions {
        mode,
        rings: 2,
        sub_buffers: 2,
        sub_buffer_bytes: 256,
        table_bytes: 4096,
        clock: None,
    }
}

fn functions(source: &mut impl Source) -> Vec<u32> {
    let mut functions = Vec::new();
    while let Some(event) = source.next().unwrap() {
        if let What::Entry { function, .. } = event.what {
            functions.push(function);
        }
    }
    functions
}

#[test]
fn a_program_that_was_executed_reads_and_writes_the_rings_of_another() {
    if std::env::var_os(CHILD).is_some() {
        let file = File::from(io::stdin().as_fd().try_clone_to_owned().unwrap());
        let rings = Arc::new(Rings::open_shared(&file).unwrap());
        assert_eq!(functions(&mut Snapshot::take(&rings)), [1]);
        let name = ["of_the_child", ""];
        rings.describe(DescriptionKind::Function, [PROCESS.into(), 2, 0, 0], name);
        let writer = rings.writer(PROCESS, 2).unwrap();
        assert!(writer.call(call(Kind::Entry, 2), writer.clock().now()));
        rings.finish();
        return;
    }
    let (rings, file) = Rings::create_shared(&options(Mode::Drop)).unwrap();
    let rings = Arc::new(rings);
    let writer = rings.writer(PROCESS, 1).unwrap();
    assert!(writer.call(call(Kind::Entry, 1), writer.clock().now()));
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", std::thread::current().name().unwrap()])
        .env(CHILD, "1")
        .stdin(Stdio::from(file))
        .status()
        .unwrap();
    assert!(status.success());
    let mut live = Live::consume(rings.clone()).unwrap();
    assert_eq!(functions(&mut live), [1, 2]);
    assert!(live.is_over());
    let name = live.names().function(PROCESS, 2).map(|it| it.name.as_str());
    assert_eq!(name, Some("of_the_child"));
}

#[test]
fn a_writer_that_waits_loses_nothing() {
    const EVENTS: u32 = 100_000;
    let (rings, _file) = Rings::create_shared(&options(Mode::Block)).unwrap();
    let rings = Arc::new(rings);
    let mut live = Live::consume(rings.clone()).unwrap();
    let thread = std::thread::spawn(move || {
        let index = rings.take(PROCESS, 1, |_, _| false).unwrap();
        let writer = Writer::new();
        let mut time = rings.clock().first().ticks;
        let mut has_waited = false;
        // SAFETY: this thread has the ring and the writer to itself, and the rings stay.
        unsafe {
            writer.attach(&rings, index);
            for n in 0..EVENTS {
                time += 1;
                has_waited |= writer.wait(&rings, 1, || true);
                assert!(writer.write(&rings, &[call(Kind::Entry, n)], time, None));
            }
        }
        rings.finish();
        (has_waited, rings.waited())
    });
    let mut found = 0;
    while !live.is_over() {
        live.wait(Duration::from_secs(1)).unwrap();
        if let Some(event) = live.next().unwrap() {
            assert!(matches!(event.what, What::Entry { function, .. } if function == found));
            found += 1;
        }
    }
    let (has_waited, waited) = thread.join().unwrap();
    assert_eq!(found, EVENTS);
    // The ring has room for 32 events.
    assert!(has_waited && !waited.is_zero());
}

#[test]
fn a_reader_makes_progress_only_when_it_makes_room() {
    /// The word that writers watch: they give up where it stands still.
    const PROGRESS: u64 = 60;
    for (mode, expected) in [(Mode::Block, [0, 0, 1, 1]), (Mode::Drop, [0; 4])] {
        let (rings, file) = Rings::create_shared(&options(mode)).unwrap();
        let rings = Arc::new(rings);
        let mut live = Live::consume(rings.clone()).unwrap();
        let writer = rings.writer(PROCESS, 1).unwrap();
        let mut progress_after = |events: u32| {
            for n in 0..events {
                assert!(writer.call(call(Kind::Entry, n), u64::from(n)));
            }
            functions(&mut live);
            let mut word = [0; 8];
            file.read_exact_at(&mut word, 8 * PROGRESS).unwrap();
            u64::from_ne_bytes(word)
        };
        // A sub-buffer has room for 16 events, and is given back when the next one is there.
        assert_eq!(
            [0, 10, 10, 0].map(&mut progress_after),
            expected,
            "{mode:?}"
        );
    }
}

#[test]
fn a_writer_that_may_not_wait_drops() {
    let (rings, _file) = Rings::create_shared(&options(Mode::Block)).unwrap();
    let writer = rings.writer(PROCESS, 1).unwrap();
    let time = rings.clock().first().ticks;
    let written = (0..100).filter(|&n| writer.call(call(Kind::Entry, n), time));
    assert_eq!(written.count(), 32);
    assert!(rings.waited().is_zero());
}

#[test]
fn memory_that_may_be_taken_away_is_not_opened() {
    let (_rings, file) = Rings::create_shared(&options(Mode::Drop)).unwrap();
    let len = file.metadata().unwrap().len();
    for other in [0, len - 4096, len + 4096] {
        let error = file.set_len(other).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{other}");
    }
    let path = std::env::temp_dir().join(format!("fgraph-shared-{}", std::process::id()));
    let _other = Rings::create_file(&path, &options(Mode::Drop)).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(Rings::map(&file).is_ok());
    let error = Rings::open_shared(&file).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidData);
}

#[test]
fn any_bytes_of_another_process_are_read_without_harm() {
    let mut random = 1_u64;
    let mut next = move || {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        random >> 20
    };
    for round in 0..300 {
        let mode = if round % 2 == 0 {
            Mode::Drop
        } else {
            Mode::Overwrite
        };
        let (rings, file) = Rings::create_shared(&options(mode)).unwrap();
        let rings = Arc::new(rings);
        let writer = rings.writer(PROCESS, 1).unwrap();
        let start = rings.clock().first().ticks;
        for n in 0..20 {
            writer.call(call(Kind::Entry, n), start + u64::from(n));
        }
        let mut live = Live::watch(rings.clone());
        // A page each: the header, those of the rings, the table, and the rings.
        const PAGE: u64 = 512;
        for _ in 0..1 << (round % 10) {
            let at = match next() % 5 {
                0 => next() % 64,
                page => page * PAGE + next() % 100,
            };
            let word = match next() % 3 {
                0 => next() % 8,
                1 => u64::MAX - next() % 8,
                _ => next(),
            };
            file.write_all_at(&word.to_le_bytes(), at * 8).unwrap();
        }
        functions(&mut live);
        functions(&mut Snapshot::take(&rings));
        rings.finish();
        functions(&mut live);
        if let Ok(other) = Rings::open_shared(&file) {
            functions(&mut Live::watch(Arc::new(other)));
        }
    }
}

/// Bytes that this process has mapped of rings, and how many of them are there.
fn mapped() -> (u64, u64) {
    let (mut is_ours, mut found) = (false, (0, 0));
    for line in std::fs::read_to_string("/proc/self/smaps").unwrap().lines() {
        let mut words = line.split_ascii_whitespace();
        let (first, second) = (words.next().unwrap(), words.next().unwrap());
        let bytes = || second.parse::<u64>().unwrap() << 10;
        match first {
            "Size:" if is_ours => found.0 += bytes(),
            "Rss:" if is_ours => found.1 += bytes(),
            _ if first.ends_with(':') => {}
            _ => is_ours = line.contains("/memfd:fgraph-rings"),
        }
    }
    found
}

/// Returns true in a process of its own, in which no other test's rings are mapped; starts it and
/// waits for it elsewhere.
fn is_alone() -> bool {
    let is_child = std::env::var_os(CHILD).is_some();
    if !is_child {
        let mut child = Command::new(std::env::current_exe().unwrap());
        let name = std::thread::current().name().unwrap().to_owned();
        let status = child.args(["--exact", &name]).env(CHILD, "1").status();
        assert!(status.unwrap().success());
    }
    is_child
}

#[test]
fn rings_are_mapped_as_far_as_they_are_used() {
    if !is_alone() {
        return;
    }
    let [sub_buffer, headers, page] = [64 << 10, 68 << 10, 4 << 10];
    let options = RingOptions {
        sub_buffers: 64,
        table_bytes: 64 << 20,
        ..RingOptions::default()
    };
    let (rings, file) = Rings::create_shared(&options).unwrap();
    drop(file);
    let unused = headers + page;
    assert_eq!(mapped().0, unused);
    let writers: Vec<_> = (1..4).map(|n| rings.writer(PROCESS, n).unwrap()).collect();
    assert_eq!(mapped().0, unused, "no event is written");
    let now = rings.clock().kind().now();
    for writer in &writers {
        assert!(writer.call(call(Kind::Entry, 1), now));
    }
    // The first one of a ring with what comes before it.
    assert_eq!(mapped().0, unused + 3 * (sub_buffer + page));
    // Into the third sub-buffer.
    for _ in 0..2 * 8176 {
        assert!(writers[1].call(call(Kind::Entry, 1), now));
    }
    assert_eq!(mapped().0, unused + 5 * sub_buffer + 3 * page);
    assert!(rings.describe(DescriptionKind::Thread, [0; 4], ["name", ""]));
    assert_eq!(mapped().0, unused + 6 * sub_buffer + 3 * page);
    let found = functions(&mut Snapshot::take(&rings));
    assert_eq!(found, vec![1; 2 * 8176 + 3]);
    let (size, used) = mapped();
    assert_eq!(size, unused + 6 * sub_buffer + 3 * page);
    assert!(used < size, "{used} of {size} bytes");
    drop(writers);
    drop(rings);
    assert_eq!(mapped(), (0, 0));
}

#[test]
fn a_ring_grows_as_far_as_its_reader_lags_behind() {
    const SUB_BUFFER: u64 = 8 << 10;
    /// Events of a sub-buffer.
    const EVENTS: u32 = SUB_BUFFER as u32 / 8 - 16;
    if !is_alone() {
        return;
    }
    for mode in [Mode::Drop, Mode::Block] {
        let options = RingOptions {
            sub_buffers: 64,
            sub_buffer_bytes: SUB_BUFFER as u32,
            ..options(mode)
        };
        let (rings, _file) = Rings::create_shared(&options).unwrap();
        let rings = Arc::new(rings);
        let mut live = Live::consume(rings.clone()).unwrap();
        let writer = rings.writer(PROCESS, 1).unwrap();
        let start = rings.clock().first().ticks - 1_000_000_000;
        let before = mapped().0;
        let mut next = 0;
        let mut fill = |count| {
            for _ in 0..count * EVENTS {
                assert!(writer.call(call(Kind::Entry, next), start + u64::from(next)));
                next += 1;
            }
        };
        let mut read = 0;
        let mut read_all = || {
            for function in functions(&mut live) {
                assert_eq!(function, read);
                read += 1;
            }
        };
        // A page of descriptions, and one for what comes before the first sub-buffer.
        let grown = |by: u64| assert_eq!(mapped().0 - before, by * SUB_BUFFER + 2 * 4096);
        for _ in 0..200 {
            fill(1);
            read_all();
        }
        // One is written while the other one is read.
        grown(2);
        for _ in 0..20 {
            fill(5);
            read_all();
        }
        grown(6);
        fill(40);
        read_all();
        grown(41);
        for _ in 0..100 {
            fill(1);
            read_all();
        }
        // Later ones are at the first places again.
        grown(41);
        fill(63);
        grown(64);
        drop(writer);
    }
}

#[test]
fn a_writer_that_makes_no_calls_has_all_of_its_ring() {
    if !is_alone() {
        return;
    }
    let options = RingOptions {
        sub_buffers: 64,
        ..options(Mode::Block)
    };
    let (rings, _file) = Rings::create_shared(&options).unwrap();
    let write = |writer: &ThreadWriter<'_>| writer.call(call(Kind::Entry, 0), 0);
    let writers = [1, 2].map(|thread| rings.writer(PROCESS, thread).unwrap());
    assert!(write(&writers[0]));
    rings.make_no_calls();
    // Its ring is mapped now.
    assert!(write(&writers[1]));
    forbid(libc::SYS_mremap);
    for writer in &writers {
        // A sub-buffer has room for 16 events.
        assert_eq!((1..2000).filter(|_| write(writer)).count(), 64 * 16 - 1);
    }
}

/// Makes the kernel kill this process if this thread makes a system call.
fn forbid(call: i64) {
    const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const IS: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const END: u32 = libc::BPF_RET | libc::BPF_K;
    let step = |code: u32, jt, k| libc::sock_filter {
        code: code as u16,
        jt,
        jf: 0,
        k,
    };
    let mut filter = [
        // The number of the call.
        step(LOAD, 0, 0),
        step(IS, 1, call as u32),
        step(END, 0, libc::SECCOMP_RET_ALLOW),
        step(END, 0, libc::SECCOMP_RET_KILL_PROCESS),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the kernel reads the filter, which is there.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        assert_eq!(
            libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program),
            0
        );
    }
}

#[test]
fn rings_are_out_of_the_reach_of_jumps_from_code() {
    let (_rings, _file) = Rings::create_shared(&options(Mode::Drop)).unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let start = |line: &str| u64::from_str_radix(line.split('-').next()?, 16).ok();
    let rings = maps.lines().find(|line| line.contains("fgraph-rings"));
    let rings = rings.and_then(start).unwrap();
    let is_code = |line: &&str| line.contains(" r-xp ") && line.contains('/');
    for code in maps.lines().filter(is_code).filter_map(start) {
        assert!(
            code.abs_diff(rings) > 1 << 33,
            "{rings:#x} is beside {code:#x}"
        );
    }
}
