//! States of threads in the recording that a program makes of itself.

use std::collections::HashMap;
use std::hint::black_box;
use std::thread;
use std::time::Duration;

use fgraph_scenario::{directory, scenario};
use fgraph_trace::event::What;
use fgraph_trace::{Recording, Source};
use fgraph_tracers::recorder::{FileRecorder, Options};

const SLEEP: Duration = Duration::from_millis(200);

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn states_sleeps() {
    thread::sleep(SLEEP);
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn states_computes() -> u64 {
    (0..10_000_000).fold(1, |sum, n| black_box(sum ^ n))
}

/// Returns the limit of open files.
fn limit() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: it writes to the local.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    assert_eq!(result, 0);
    limit.rlim_cur
}

#[scenario]
fn a_program_records_the_states_of_its_threads() {
    let path = directory().join("states.fgraph");
    let options = Options {
        states: true,
        ..Options::default()
    };
    let before = limit();
    let filter = "states_sleeps states_computes";
    let recorder = FileRecorder::start(&path, filter, &options).unwrap();
    states_sleeps();
    // A thread that the kernel was not asked about.
    thread::spawn(|| states_sleeps()).join().unwrap();
    states_computes();
    recorder.finish().unwrap();
    assert_eq!(limit(), before);

    let mut recording = Recording::open(&path).unwrap();
    let mut begun = HashMap::new();
    let mut found = Vec::new();
    while let Some(event) = recording.next().unwrap() {
        let (thread, time) = (event.thread, event.time);
        match event.what {
            What::Entry { .. } => _ = begun.insert(thread, time),
            What::Return { .. } => found.push((thread, begun[&thread], time)),
            _ => {}
        }
    }
    let clock = *recording.clock();
    let states = recording.schedule().unwrap();
    let nanoseconds = |&(thread, from, to): &(u32, u64, u64)| {
        let times = states.between(thread, from, to).unwrap();
        [times.running, times.blocked].map(|ticks| clock.nanoseconds(ticks))
    };
    let [sleeps, other, computes] = &found[..] else {
        panic!("{found:?}");
    };
    assert_ne!(sleeps.0, other.0);
    // Samples are some 20 ms apart, where the kernel refuses to report switches.
    let most = SLEEP.as_nanos() as u64 * 3 / 4;
    for call in [sleeps, other] {
        let [running, blocked] = nanoseconds(call);
        assert!(blocked > most && running < most, "{running} {blocked}");
    }
    let [running, blocked] = nanoseconds(computes);
    assert!(running > blocked, "{running} {blocked}");
}

#[scenario]
fn a_recording_has_no_states_unless_they_are_wanted() {
    let path = directory().join("states.fgraph");
    let recorder = FileRecorder::start(&path, "states_sleeps", &Options::default()).unwrap();
    states_sleeps();
    recorder.finish().unwrap();
    assert!(Recording::open(&path).unwrap().schedule().is_none());
}
