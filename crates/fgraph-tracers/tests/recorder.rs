//! Recordings of programs whose calls are known.

use std::collections::HashMap;
use std::ffi::c_void;
use std::hint::black_box;
use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fgraph::{Filter, Ticks};
use fgraph_needs::{CC, needs};
use fgraph_scenario::scenario;
use fgraph_trace::clock::ClockKind;
use fgraph_trace::event::What;
use fgraph_trace::graph::{FunctionGraph, Options as GraphOptions, Parts, ResultFormat};
use fgraph_trace::pairing::{Change, Ending, Pairing};
use fgraph_trace::recording::recover;
use fgraph_trace::ring::{Mode, RingOptions, Rings};
use fgraph_trace::{Live, Recording, Source};
use fgraph_tracers::Tracer;
use fgraph_tracers::recorder::budget::Share;
use fgraph_tracers::recorder::{FileRecorder, FinishError, Options, RecordError, Recorder};

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn recorded_outer(n: u64) -> u64 {
    black_box(recorded_inner(n, 7)) + black_box(recorded_inner(n + 1, 8))
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn recorded_inner(a: u64, b: u64) -> u64 {
    black_box(a * b)
}

const FILTER: &str = "recorded_outer recorded_inner";

/// The lines of a graph without what depends on the time.
fn graph(source: &mut impl Source, mut options: GraphOptions) -> Vec<String> {
    options.parts.remove(Parts::CPU | Parts::DURATION);
    let mut text = Vec::new();
    FunctionGraph::new(options)
        .write_all(source, &mut text)
        .unwrap();
    let text = String::from_utf8(text).unwrap();
    text.lines().skip(4).map(str::to_owned).collect()
}

const CALLS: [&str; 4] = [
    "recorded_outer() {",
    "  recorded_inner();",
    "  recorded_inner();",
    "}",
];

#[scenario]
fn calls_are_seen_live_in_a_snapshot_and_at_the_end() {
    let recorder = Recorder::start(FILTER).unwrap();
    let mut live = recorder.watch();
    recorded_outer(3);
    assert!(live.wait(Duration::from_secs(60)).unwrap());
    let mut seen = graph(&mut live, GraphOptions::default());
    while seen.len() < CALLS.len() && live.wait(Duration::from_secs(60)).unwrap() {
        seen.extend(graph(&mut live, GraphOptions::default()));
    }
    assert_eq!(seen.last().unwrap(), "}");
    assert_eq!(
        graph(&mut recorder.snapshot(), GraphOptions::default()),
        CALLS
    );
    let rings = recorder.finish().unwrap();
    let mut live = Live::consume(rings).unwrap();
    assert_eq!(graph(&mut live, GraphOptions::default()), CALLS);
    assert!(live.is_over());
    let names = live.names();
    let function = names
        .functions()
        .find(|(_, _, it)| it.name == "recorded_inner")
        .unwrap();
    assert_eq!(function.2.address, recorded_inner as *const () as u64);
    assert!(
        names
            .modules()
            .iter()
            .any(|it| it.path == function.2.module)
    );
}

#[scenario]
fn arguments_results_and_callers_are_recorded_on_request() {
    let options = Options {
        arguments: 2,
        result: true,
        caller: true,
        ..Options::default()
    };
    let recorder = Recorder::start_with(FILTER, &options).unwrap();
    recorded_outer(3);
    let rings = recorder.finish().unwrap();
    let options = GraphOptions {
        parts: Parts::ARGUMENTS | Parts::CALLER,
        result: Some(ResultFormat::Decimal),
        ..GraphOptions::default()
    };
    let lines = graph(&mut Live::watch(rings), options);
    assert!(lines[0].starts_with("recorded_outer(0x3, "), "{lines:?}");
    assert!(lines[1].starts_with("  recorded_inner(0x3, 0x7); /* <-recorded_outer+0x"));
    assert!(lines[1].ends_with(" ret=21 */"), "{lines:?}");
    assert!(lines[2].starts_with("  recorded_inner(0x4, 0x8); /* <-recorded_outer+0x"));
    assert_eq!(lines[3], "} /* recorded_outer ret=53 */");
}

#[scenario]
fn arguments_of_some_functions_are_recorded() {
    let options = Options {
        arguments: 2,
        arguments_of: Some("recorded_inner".parse().unwrap()),
        ..Options::default()
    };
    let recorder = Recorder::start_with(FILTER, &options).unwrap();
    recorded_outer(3);
    let rings = recorder.finish().unwrap();
    let options = GraphOptions {
        parts: Parts::ARGUMENTS,
        ..GraphOptions::default()
    };
    let lines = graph(&mut Live::watch(rings), options);
    let expected = [
        "recorded_outer() {",
        "  recorded_inner(0x3, 0x7);",
        "  recorded_inner(0x4, 0x8);",
        "}",
    ];
    assert_eq!(lines, expected);
}

#[scenario]
fn calls_after_an_entry_only_call_are_not_inside_it() {
    unsafe extern "C" {
        fn setjmp(buffer: *mut c_void) -> i32;
    }
    #[unsafe(no_mangle)]
    #[inline(never)]
    extern "C" fn recorded_jumper() -> u64 {
        let mut buffer = [0_u64; 64];
        // SAFETY: the buffer is large enough, and nobody jumps.
        let result = unsafe { setjmp(buffer.as_mut_ptr().cast()) };
        recorded_inner(result as u64, 7)
    }
    let filter = "recorded_jumper recorded_inner setjmp";
    let shapes = [
        Options::default(),
        Options {
            result: true,
            ..Options::default()
        },
        Options {
            running: true,
            ..Options::default()
        },
        Options {
            within: Some("recorded_jumper".parse().unwrap()),
            ..Options::default()
        },
    ];
    let expected = [
        "recorded_jumper() {",
        "  setjmp();",
        "  recorded_inner();",
        "}",
    ];
    for options in shapes {
        let recorder = Recorder::start_with(filter, &options).unwrap();
        recorded_jumper();
        let rings = recorder.finish().unwrap();
        let lines = graph(&mut Live::watch(rings), GraphOptions::default());
        assert_eq!(lines, expected, "{options:?}");
    }
    let options = Options {
        threshold: Some(Duration::from_nanos(1)),
        ..Options::default()
    };
    let recorder = Recorder::start_with(filter, &options).unwrap();
    recorded_jumper();
    let rings = recorder.finish().unwrap();
    let lines = graph(&mut Live::watch(rings), GraphOptions::default());
    let expected = ["recorded_jumper() {", "  recorded_inner();", "}"];
    assert_eq!(lines, expected, "its time is not known");
}

/// A function that leaves the calls around it, up to `recorded_catcher`, by `longjmp`.
const JUMPER: &str = r#"
    #include <setjmp.h>
    static jmp_buf env;
    int guarded(void (*f)(unsigned long), unsigned long n) {
        if (setjmp(env) == 0) { f(n); return 0; }
        return 1;
    }
    void bail(void) { longjmp(env, 1); }
"#;

static GUARDED: AtomicUsize = AtomicUsize::new(0);
static BAIL: AtomicUsize = AtomicUsize::new(0);

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn recorded_thrower(n: u64) -> u64 {
    if n > 0 {
        return black_box(recorded_thrower(n - 1)) + 1;
    }
    // SAFETY: the address of `bail`; no frame on its way has anything to drop.
    let bail: extern "C" fn() = unsafe { std::mem::transmute(BAIL.load(Ordering::Relaxed)) };
    bail();
    0
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn recorded_catcher(times: u64) -> u64 {
    // SAFETY: the address of `guarded`.
    let guarded: extern "C" fn(extern "C" fn(u64) -> u64, u64) -> i32 =
        unsafe { std::mem::transmute(GUARDED.load(Ordering::Relaxed)) };
    (0..times)
        .map(|_| black_box(guarded(recorded_thrower, 1)) as u64)
        .sum()
}

#[scenario]
fn calls_that_are_left_by_a_jump_end_without_a_duration_in_each_way_of_recording() {
    let library = needs!(fgraph_scenario::library(&CC, "jumper.c", JUMPER, &[]));
    GUARDED.store(library.address("guarded") as usize, Ordering::Relaxed);
    BAIL.store(library.address("bail") as usize, Ordering::Relaxed);
    let filter = "recorded_catcher recorded_thrower recorded_inner";
    let shapes = [
        Options::default(),
        Options {
            result: true,
            ..Options::default()
        },
        Options {
            running: true,
            ..Options::default()
        },
        Options {
            within: Some("recorded_catcher recorded_inner".parse().unwrap()),
            ..Options::default()
        },
    ];
    let round = [
        "  recorded_thrower() {",
        "    recorded_thrower() {",
        "    } /* recorded_thrower dropped */",
        "  } /* recorded_thrower dropped */",
    ];
    for options in shapes {
        let recorder = Recorder::start_with(filter, &options).unwrap();
        assert_eq!(recorded_catcher(3), 3);
        recorded_inner(1, 2);
        assert_eq!(recorder.counters().lost, 6);
        let rings = recorder.finish().unwrap();
        let lines = graph(&mut Live::watch(rings.clone()), GraphOptions::default());
        let (head, tail) = (["recorded_catcher() {"], ["}", "recorded_inner();"]);
        let expected = [&head[..], &round.repeat(3), &tail].concat();
        assert_eq!(lines, expected, "{options:?}");
    }
    // The jumps took less than the threshold, so nothing is known of the calls that they left.
    let options = Options {
        threshold: Some(Duration::from_nanos(1)),
        ..Options::default()
    };
    let recorder = Recorder::start_with(filter, &options).unwrap();
    assert_eq!(recorded_catcher(3), 3);
    let rings = recorder.finish().unwrap();
    let lines = graph(&mut Live::watch(rings), GraphOptions::default());
    assert_eq!(lines, ["recorded_catcher();"]);
}

#[scenario]
fn more_jumps_than_calls_can_be_open_end_nothing_around_them() {
    let library = needs!(fgraph_scenario::library(&CC, "jumper.c", JUMPER, &[]));
    GUARDED.store(library.address("guarded") as usize, Ordering::Relaxed);
    BAIL.store(library.address("bail") as usize, Ordering::Relaxed);
    let options = Options {
        rings: RingOptions {
            sub_buffers: 64,
            sub_buffer_bytes: 1 << 20,
            ..RingOptions::default()
        },
        ..Options::default()
    };
    let recorder = Recorder::start_with("recorded_catcher recorded_thrower", &options).unwrap();
    const TIMES: u64 = 70_000;
    assert_eq!(recorded_catcher(TIMES), TIMES);
    let mut live = Live::watch(recorder.finish().unwrap());
    let (mut pairing, mut endings) = (Pairing::new(), HashMap::new());
    while let Some(event) = live.next().unwrap() {
        match event.what {
            What::Entry { function, .. } => pairing.enter(function, event.time, function),
            What::Return { function, .. } => {
                assert!(pairing.exit(function, event.time, Ending::Returned));
            }
            What::Dropped { function } => {
                assert!(pairing.exit(function, event.time, Ending::Lost));
            }
            other => panic!("{other:?}"),
        }
        while let Some(change) = pairing.change() {
            if let Change::Ended(call) = change {
                *endings.entry((call.function, call.ending)).or_insert(0) += 1;
            }
        }
        assert!(pairing.calls().len() <= 3);
    }
    let mut endings: Vec<_> = endings
        .into_iter()
        .map(|((_, how), it)| (how, it))
        .collect();
    endings.sort_unstable_by_key(|&(_, calls)| calls);
    assert_eq!(endings, [(Ending::Returned, 1), (Ending::Lost, 2 * TIMES)]);
}

/// Moves the calling thread to one processor.
fn move_to(cpu: usize) {
    // SAFETY: a set of processors is plain data.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &set), 0);
    }
}

/// Processors that the calling thread may run on.
fn processors() -> Vec<usize> {
    // SAFETY: a set of processors is plain data, and is filled in.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of_val(&set), &mut set), 0);
        let all = 0..libc::CPU_SETSIZE as usize;
        all.filter(|&cpu| libc::CPU_ISSET(cpu, &set)).collect()
    }
}

#[scenario]
fn calls_are_shown_with_the_processor_that_they_ran_on() {
    let processors = processors();
    // There and back, also where there is only one.
    let (first, last) = (processors[0], processors[processors.len() - 1]);
    let path = std::env::temp_dir().join(format!("{}.fgraph", std::process::id()));
    let options = Options {
        rings: RingOptions {
            mode: Mode::Overwrite,
            ..RingOptions::default()
        },
        ..Options::default()
    };
    let recorder = Recorder::start_with(FILTER, &options).unwrap();
    let file = FileRecorder::start(&path, FILTER, &options).unwrap();
    for cpu in [first, last, last, first] {
        move_to(cpu);
        recorded_inner(1, 2);
    }
    let snapshot = cpus(&mut recorder.snapshot());
    file.finish().unwrap();
    let live = cpus(&mut Live::watch(recorder.finish().unwrap()));
    let recording = cpus(&mut Recording::open(&path).unwrap());
    std::fs::remove_file(&path).unwrap();
    let expected = [first, last, last, first].map(|cpu| format!(" {cpu}"));
    // SAFETY: a name with a zero at its end.
    let has_rseq = unsafe { !libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()).is_null() };
    let expected = if has_rseq { &expected[..] } else { &[] };
    for found in [snapshot, live, recording] {
        assert_eq!(found, expected);
    }
}

/// The processors in the text of a graph, one for each call.
fn cpus(source: &mut impl Source) -> Vec<String> {
    let mut text = Vec::new();
    FunctionGraph::default()
        .write_all(source, &mut text)
        .unwrap();
    let text = String::from_utf8(text).unwrap();
    let calls = text.lines().filter(|line| line.ends_with(';'));
    calls
        .filter_map(|line| Some(line.split_once(") ")?.0.to_owned()))
        .collect()
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn recorded_sleep() {
    thread::sleep(Duration::from_millis(200));
}

#[scenario]
fn the_time_that_a_thread_sleeps_is_left_out_on_request() {
    let options = Options {
        running: true,
        ..Options::default()
    };
    let recorder = Recorder::start_with("recorded_sleep", &options).unwrap();
    recorded_sleep();
    let rings = recorder.finish().unwrap();
    // With a threshold below what it sleeps, and above what it works.
    let ends = |sleep_time| {
        let options = GraphOptions {
            sleep_time,
            threshold: 190_000_000,
            ..GraphOptions::default()
        };
        graph(&mut Live::watch(rings.clone()), options)
    };
    assert_eq!(ends(true), ["} /* recorded_sleep */"]);
    assert_eq!(ends(false), [""; 0]);
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn recorded_tree(levels: u64) {
    black_box(recorded_inner(levels, 1));
    match levels {
        0 => recorded_sleep(),
        _ => recorded_tree(levels - 1),
    }
    // Not a tail call.
    black_box(());
}

#[scenario]
fn only_calls_within_selected_functions_are_recorded() {
    let options = Options {
        within: Some("*_outer".parse().unwrap()),
        ..Options::default()
    };
    let recorder = Recorder::start_with(FILTER, &options).unwrap();
    recorded_inner(1, 2);
    recorded_outer(3);
    recorded_inner(1, 2);
    let rings = recorder.finish().unwrap();
    let lines = graph(&mut Live::watch(rings), GraphOptions::default());
    assert_eq!(lines, CALLS);
}

#[scenario]
fn calls_that_take_long_are_recorded_inside_those_around_them() {
    const FILTER: &str = "recorded_tree recorded_inner recorded_sleep";
    // More than are written at once.
    const LEVELS: u64 = 100;
    let lines = |threshold, levels| {
        let options = Options {
            threshold: Some(threshold),
            arguments: 1,
            ..Options::default()
        };
        let recorder = Recorder::start_with(FILTER, &options).unwrap();
        recorded_tree(levels);
        recorded_inner(1, 2);
        let mut live = Live::watch(recorder.finish().unwrap());
        let options = GraphOptions {
            parts: Parts::ARGUMENTS,
            ..GraphOptions::default()
        };
        graph(&mut live, options)
    };
    let found = lines(Duration::from_millis(150), LEVELS);
    // As `FunctionGraph` indents.
    let indent = |depth: usize| match depth {
        ..=64 => "  ".repeat(depth),
        _ => format!("{}({depth}) ", "  ".repeat(64)),
    };
    let mut expected: Vec<String> = (0..=LEVELS as usize)
        .map(|depth| {
            let argument = LEVELS as usize - depth;
            format!("{}recorded_tree({argument:#x}) {{", indent(depth))
        })
        .collect();
    let ends = (0..=LEVELS as usize).rev();
    expected.extend(ends.map(|depth| format!("{}}}", indent(depth))));
    let is_sleep = |line: &String| line.contains(" recorded_sleep(");
    let sleep = found.iter().position(is_sleep).expect("it takes long");
    assert_eq!(sleep as u64, LEVELS + 1);
    let others: Vec<_> = found.iter().filter(|line| !is_sleep(line)).collect();
    assert_eq!(others, expected.iter().collect::<Vec<_>>());
    // All of them wait, and are written in their order.
    let names: Vec<String> = lines(Duration::from_nanos(1), 1)
        .iter()
        .map(|line| line.split(['(', ')']).next().unwrap().to_owned())
        .collect();
    let expected = [
        "recorded_tree",
        "  recorded_inner",
        "  recorded_tree",
        "    recorded_inner",
        "    recorded_sleep",
        "  }",
        "}",
        "recorded_inner",
    ];
    assert_eq!(names, expected);
    assert_eq!(lines(Duration::from_secs(3600), 0), [""; 0]);
}

#[scenario]
fn a_forked_child_does_not_record_the_calls_that_wait_in_its_parent() {
    let options = Options {
        threshold: Some(Duration::from_nanos(1)),
        ..Options::default()
    };
    let recorder = Recorder::start_with("recorded_fork recorded_inner", &options).unwrap();
    recorded_fork();
    let mut live = Live::watch(recorder.finish().unwrap());
    let mut found = [0; 2];
    let process = std::process::id();
    while let Some(event) = live.next().unwrap() {
        let is_entry = matches!(event.what, What::Entry { .. });
        found[usize::from(event.process != process)] += usize::from(is_entry);
    }
    // The child's own call, and the parent's two.
    assert_eq!(found, [2, 1]);
}

/// Returns twice, as `fork` does, and ends the child.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn recorded_fork() {
    fork_inside();
    recorded_inner(1, 2);
}

#[inline(never)]
fn fork_inside() {
    // SAFETY: the child calls functions of this file only, and ends.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            recorded_inner(1, 2);
            libc::_exit(0);
        }
        assert_eq!(libc::waitpid(child, std::ptr::null_mut(), 0), child);
    }
}

#[scenario]
fn rings_that_are_there_are_recorded_into() {
    let (rings, file) = Rings::create_shared(&RingOptions::default()).unwrap();
    let recorder = Recorder::start_in(rings, FILTER, &Options::default()).unwrap();
    recorded_outer(3);
    recorder.finish().unwrap();
    let other = Arc::new(Rings::open_shared(&file).unwrap());
    assert_eq!(
        graph(&mut Live::watch(other), GraphOptions::default()),
        CALLS
    );
}

#[scenario]
fn a_text_of_the_program_stands_among_the_calls_of_its_thread() {
    let recorder = Recorder::start(FILTER).unwrap();
    // A thread may say something before its first call.
    assert!(recorder.mark("before\n"));
    recorded_inner(1, 2);
    assert!(recorder.mark("between"));
    thread::scope(|scope| {
        scope.spawn(|| assert!(recorder.mark(&"long ".repeat(1000))));
    });
    recorded_inner(3, 4);
    let rings = recorder.finish().unwrap();
    let lines = graph(&mut Live::watch(rings), GraphOptions::default());
    let long = format!("/* {} */", "long ".repeat(1000).split_at(4096).0);
    let expected = [
        "/* before */",
        "recorded_inner();",
        "/* between */",
        &long,
        "recorded_inner();",
    ];
    // Between threads, a line says that another one runs.
    let is_event = |line: &&str| line.starts_with("/*") || line.ends_with(';');
    let lines = lines.iter().map(|line| line.trim());
    let found: Vec<&str> = lines.filter(is_event).collect();
    assert_eq!(found, expected);
}

#[scenario]
fn a_process_has_its_own_name_whichever_thread_comes_first() {
    let recorder = Recorder::start(FILTER).unwrap();
    let worker = thread::Builder::new().name("worker".into());
    let call = || recorded_inner(black_box(1), 2);
    worker.spawn(call).unwrap().join().unwrap();
    let mut live = Live::watch(recorder.finish().unwrap());
    let thread = live.next().unwrap().unwrap().thread;
    let (names, process) = (live.names(), std::process::id());
    assert_eq!(names.thread(process, thread), Some("worker"));
    let name = std::fs::read_to_string("/proc/self/comm").unwrap();
    let (_, found) = names.process(process).unwrap();
    assert_eq!(found, name.trim_end());
}

#[scenario]
fn events_of_all_threads_and_losses_add_up_to_the_calls() {
    const THREADS: u64 = 8;
    const CALLS: u64 = 20_000;
    for (mode, clock) in [
        (Mode::Drop, ClockKind::of_this_machine()),
        (Mode::Block, ClockKind::of_this_machine()),
        (Mode::Overwrite, ClockKind::Monotonic),
    ] {
        let options = Options {
            rings: RingOptions {
                mode,
                sub_buffer_bytes: 4096,
                clock: Some(clock),
                ..RingOptions::default()
            },
            ..Options::default()
        };
        let recorder = Recorder::start_with("recorded_inner", &options).unwrap();
        let mut live = recorder.consume().unwrap();
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| (0..CALLS).for_each(|n| _ = recorded_inner(n, n)));
            }
        });
        assert_eq!(recorder.counters().missed, 0);
        recorder.finish().unwrap();
        let (mut entries, mut returns, mut lost) = (0, 0, 0);
        while let Some(event) = live.next().unwrap() {
            match event.what {
                What::Entry { .. } => entries += 1,
                What::Return { .. } => returns += 1,
                What::Lost { events, .. } => lost += events,
                _ => {}
            }
        }
        assert!(lost > 0 && entries > 0);
        match mode {
            // The return of a call whose entry is lost is not recorded. No thread waits for
            // a reader in the same process.
            Mode::Drop | Mode::Block => {
                let open = lost - (THREADS * CALLS - entries);
                assert_eq!(entries, returns + open);
            }
            Mode::Overwrite => assert_eq!(entries + returns + lost, 2 * THREADS * CALLS),
        }
    }
}

#[scenario]
fn threads_that_end_leave_their_rings_to_others() {
    let recorder = Recorder::start("recorded_inner").unwrap();
    const THREADS: u64 = 600;
    for n in 0..THREADS {
        thread::spawn(move || recorded_inner(n, n)).join().unwrap();
    }
    // Each thread takes one of the eight sub-buffers of a ring.
    assert!(recorder.rings().ring_count() < 150);
    let rings = recorder.finish().unwrap();
    let mut live = Live::watch(rings);
    let mut threads = std::collections::HashSet::new();
    let mut entries = 0;
    while let Some(event) = live.next().unwrap() {
        assert!(!matches!(event.what, What::Lost { .. }));
        threads.insert(event.thread);
        entries += u64::from(matches!(event.what, What::Entry { .. }));
    }
    assert_eq!((threads.len() as u64, entries), (THREADS, THREADS));
}

#[scenario]
fn a_child_records_in_rings_of_its_own() {
    let recorder = Recorder::start(FILTER).unwrap();
    recorded_outer(1);
    // SAFETY: the child calls what a child may call, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        recorded_outer(2);
        recorded_outer(3);
        // SAFETY: it ends the child.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: it waits for the child.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    recorded_outer(4);
    let parent = std::process::id();
    let mut live = Live::watch(recorder.finish().unwrap());
    let mut outer = std::collections::BTreeMap::<u32, u32>::new();
    while let Some(event) = live.next().unwrap() {
        let (process, what) = (event.process, event.what);
        if let What::Entry { function, .. } = what {
            assert!(live.names().function(process, function).is_some());
            *outer.entry(process).or_default() += 1;
        }
    }
    assert_eq!(outer.get(&parent), Some(&6));
    assert_eq!(outer.get(&(child as u32)), Some(&6));
    assert_eq!(live.names().process(child as u32).unwrap().0, parent);
}

#[scenario]
fn without_memory_for_rings_recording_is_an_error() {
    let set = |limit: &libc::rlimit| {
        // SAFETY: a live local.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, limit) }, 0);
    };
    let before = {
        // SAFETY: numbers, which are filled in.
        let mut limit: libc::rlimit = unsafe { std::mem::zeroed() };
        // SAFETY: a live local.
        unsafe { libc::getrlimit(libc::RLIMIT_AS, &mut limit) };
        limit
    };
    set(&libc::rlimit {
        rlim_cur: 1 << 20,
        ..before
    });
    let result = Recorder::start(FILTER);
    set(&before);
    let Err(RecordError::Rings(error)) = &result else {
        panic!("{result:?}");
    };
    assert_eq!(error.raw_os_error(), Some(libc::ENOMEM));
    let text = result.unwrap_err().to_string();
    assert_eq!(text, "there is no room for the rings");
    assert_eq!((recorded_inner(2, 3), fgraph_scenario::patched()), (6, 0));
}

#[scenario]
fn a_thread_without_a_ring_is_counted() {
    let options = Options {
        rings: RingOptions {
            rings: 1,
            ..RingOptions::default()
        },
        ..Options::default()
    };
    let recorder = Recorder::start_with("recorded_inner", &options).unwrap();
    recorded_inner(1, 2);
    thread::scope(|scope| {
        scope.spawn(|| (0..10).for_each(|n| _ = recorded_inner(n, n)));
    });
    assert_eq!(recorder.rings().events_without_ring(), 10);
}

/// Entries, returns and losses.
fn count(source: &mut impl Source) -> [u64; 3] {
    let mut counts = [0; 3];
    while let Some(event) = source.next().unwrap() {
        match event.what {
            What::Entry { .. } => counts[0] += 1,
            What::Return { .. } => counts[1] += 1,
            What::Lost { events, .. } => counts[2] += events,
            _ => {}
        }
    }
    counts
}

#[scenario]
fn a_recording_has_every_call_of_every_thread() {
    let folder = fgraph_scenario::directory();
    let path = folder.join("a.fgraph");
    // Nothing that the thread which writes the recording does is in it.
    let filter = "recorded_inner write:mod:libc.so* malloc:mod:libc.so*";
    let recorder = FileRecorder::start(&path, filter, &Options::default()).unwrap();
    const CALLS: u64 = 30_000;
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| (0..CALLS).for_each(|n| _ = recorded_inner(n, n)));
        }
    });
    let bytes = recorder.finish().unwrap();
    assert_eq!(bytes, path.metadata().unwrap().len());
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
    let mut recording = Recording::open(&path).unwrap();
    let process = std::process::id();
    assert_eq!(recording.lanes().info().process, process);
    let (mut inner, mut lost) = (0, 0);
    while let Some(event) = recording.next().unwrap() {
        let what = event.what;
        match what {
            What::Entry { function, .. } => {
                let name = &recording.names().function(process, function).unwrap().name;
                assert_ne!(name, "write");
                inner += u64::from(name == "recorded_inner");
            }
            What::Lost { events, .. } => lost += events,
            _ => {}
        }
    }
    assert!(inner == 3 * CALLS || lost > 0 && inner + lost >= 3 * CALLS);
}

/// The first bytes of `recorded_inner`.
fn text_of_inner() -> [u8; 8] {
    // SAFETY: a function of ours, which has as many bytes.
    unsafe { std::ptr::read_volatile((recorded_inner as *const ()).cast()) }
}

#[scenario]
fn function_that_costs_more_than_the_budget_is_switched_off() {
    let folder = fgraph_scenario::directory();
    let path = folder.join("a.fgraph");
    let share = Share::percent(5.0).unwrap();
    let options = Options::default();
    let text = text_of_inner();
    let recorder = FileRecorder::start_with_budget(&path, FILTER, &options, share).unwrap();
    assert_ne!(text_of_inner(), text);
    recorded_outer(0);
    let until = Instant::now() + Duration::from_secs(60);
    while text_of_inner() != text {
        assert!(Instant::now() < until, "it is not switched off");
        (0..1_000_000).for_each(|n| _ = recorded_inner(n, n));
    }
    recorder.finish().unwrap();
    let mut recording = Recording::open(&path).unwrap();
    while recording.next().unwrap().is_some() {}
    let names = recording.names();
    let process = std::process::id();
    let off = names.off_times().iter();
    let off = off.map(|it| &names.function(process, it.function).unwrap().name);
    assert_eq!(off.collect::<Vec<_>>(), ["recorded_inner"]);
}

#[scenario]
fn new_filter_ends_the_budget() {
    let folder = fgraph_scenario::directory();
    let path = folder.join("a.fgraph");
    let share = Share::percent(5.0).unwrap();
    let options = Options::default();
    let recorder =
        FileRecorder::start_with_budget(&path, "recorded_outer", &options, share).unwrap();
    let filter = "recorded_inner".parse::<Filter>().unwrap();
    recorder.recorder().unwrap().set_filter(filter).unwrap();
    let begin = Ticks::now();
    while begin.elapsed_ns() < 300_000_000 {
        recorded_inner(1, 1);
    }
    recorder.finish().unwrap();
    let mut recording = Recording::open(&path).unwrap();
    while recording.next().unwrap().is_some() {}
    assert!(recording.names().off_times().is_empty());
}

#[scenario]
fn a_program_that_is_killed_leaves_every_event() {
    const CALLS: u64 = 12_345;
    if let Some(path) = fgraph_scenario::part() {
        let recorder = FileRecorder::start(path.as_ref(), FILTER, &Options::default()).unwrap();
        thread::spawn(|| (0..CALLS).for_each(|n| _ = recorded_inner(n, n)))
            .join()
            .unwrap();
        recorded_outer(1);
        std::mem::forget(recorder);
        // SAFETY: it ends the process.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        unreachable!();
    }
    let folder = fgraph_scenario::directory();
    let path = folder.join("a.fgraph");
    let mut killed = fgraph_scenario::play(path.to_str().unwrap());
    let status = killed.status().unwrap();
    assert_eq!(status.signal(), Some(libc::SIGKILL));
    let before = count(&mut Recording::open(&path).unwrap());
    assert!(before[0] < CALLS + 3, "{before:?}");
    let rings = folder.join("a.fgraph.rings");
    assert!(recover(&path, &rings).unwrap() > 0);
    let mut recording = Recording::open(&path).unwrap();
    assert_eq!(count(&mut recording), [CALLS + 3, CALLS + 3, 0]);
    assert!(
        recording
            .names()
            .functions()
            .any(|(_, _, it)| it.name == "recorded_outer")
    );
}

#[scenario]
fn errors_of_writing_a_recording_are_reported() {
    let options = Options::default();
    let error = FileRecorder::start("/nowhere/a.fgraph".as_ref(), FILTER, &options);
    assert!(matches!(error.unwrap_err(), RecordError::File(_)));
    // Always full; the rings are elsewhere.
    let folder = fgraph_scenario::directory();
    let elsewhere = Options {
        file: Some(folder.join("rings")),
        ..options.clone()
    };
    let error = FileRecorder::start("/dev/full".as_ref(), FILTER, &elsewhere);
    assert!(matches!(error.unwrap_err(), RecordError::File(_)));
    // Full soon.
    let recorder = FileRecorder::start(&folder.join("a.fgraph"), FILTER, &options).unwrap();
    let most = libc::rlimit {
        rlim_cur: 4096,
        rlim_max: 4096,
    };
    // SAFETY: the signal has no handler then, and the limit is a complete local.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &most), 0);
    }
    (0..100_000).for_each(|n| _ = recorded_inner(n, n));
    assert!(matches!(
        recorder.finish().unwrap_err(),
        FinishError::File(_)
    ));
}
