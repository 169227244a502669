//! Summaries of recordings: the output of views is the same with and without them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};

use fgraph_trace::clock::ClockKind;
use fgraph_trace::event::{Kind, call};
use fgraph_trace::names::DescriptionKind;
use fgraph_trace::recording::{Drain, Info};
use fgraph_trace::ring::{RingOptions, Rings};
use fgraph_trace::schedule::{Change, State};
use tempfile::TempDir;

use crate::support::views::{Done, done};
use crate::support::{recording, recording_of_modules, recording_with_losses, recording_without};

/// Longer than a clock tick of the kernel, by which files get their times.
const SETTLED: Duration = Duration::from_millis(60);

/// Views whose results are kept.
const KEPT: [&[&str]; 14] = [
    &["report"],
    &["report", "--json"],
    &["report", "--sort", "p99", "-n", "2"],
    &["report", "-F", "pa*,libc:re*"],
    &["report", "-F", "no_such_function"],
    &["report", "--by", "thread", "--json"],
    &["report", "--by", "module"],
    &["report", "--time", "cpu"],
    &["report", "--by", "thread", "--time", "blocked", "-F", "f1"],
    &["graph", "*"],
    &["graph", "-D", "2", "-n", "3", "--json", "f1"],
    &["graph", "--time", "cpu", "parse"],
    &["info"],
    &["info", "--json"],
];

/// A cache directory for views of a recording.
struct Views {
    recording: PathBuf,
    cache: TempDir,
}

impl Views {
    fn of(recording: &Path) -> Self {
        thread::sleep(SETTLED);
        Self {
            recording: recording.to_owned(),
            cache: tempfile::tempdir().unwrap(),
        }
    }

    fn run(&self, which: &str, words: &[&str]) -> Done {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        command
            .env("XDG_CACHE_HOME", self.cache.path())
            .env("FGRAPH_SUMMARIES", which)
            .env("FGRAPH_CONFIG", "")
            .args(words)
            .arg(&self.recording);
        done(&mut command)
    }

    fn summaries(&self) -> Vec<PathBuf> {
        let directory = self.cache.path().join("fgraph/summaries");
        let entries = fs::read_dir(directory).into_iter().flatten();
        let mut paths: Vec<_> = entries.map(|it| it.unwrap().path()).collect();
        paths.sort();
        paths
    }

    /// Makes all summaries look unused, and returns the number of those used since.
    fn used(&self, by: impl FnOnce()) -> usize {
        let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        for path in self.summaries() {
            let file = File::options().write(true).open(path).unwrap();
            file.set_modified(long_ago).unwrap();
        }
        by();
        let is_used = |path: &PathBuf| fs::metadata(path).unwrap().modified().unwrap() != long_ago;
        self.summaries().iter().filter(|path| is_used(path)).count()
    }

    /// Asserts that a view shows the same without a summary, when it keeps one, and by it.
    fn check(&self, words: &[&str], is_kept: bool) {
        let plain = self.run("none", words);
        assert_eq!(self.run("all", words), plain, "{words:?}");
        let used = self.used(|| assert_eq!(self.run("all", words), plain, "{words:?}"));
        assert_eq!(used, usize::from(is_kept), "{words:?}: {plain:?}");
    }
}

/// Events of five functions that three threads of two processes call at random. With `is_lossy`,
/// the buffers are so small that events are lost.
fn random(seed: u64, is_lossy: bool) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("fgraph.data");
    let options = RingOptions {
        clock: Some(ClockKind::Monotonic),
        sub_buffers: if is_lossy { 2 } else { 64 },
        sub_buffer_bytes: if is_lossy { 512 } else { 1 << 16 },
        ..RingOptions::default()
    };
    let rings = Arc::new(Rings::create(&options).unwrap());
    let mut state = seed;
    let mut random = |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % below
    };
    let threads = [(7, 7), (7, 8), (9, 9)];
    for process in [7, 9] {
        for (index, name) in (1..).zip(["f1", "parse", "read", "parse", "f5"]) {
            // Two functions have one name, in one module or in two.
            let module = if index < 3 + seed % 3 {
                "/bin/m1"
            } else {
                "/lib/libc.so.6"
            };
            let fields = [process, index, 0x1000 * index, 16];
            rings.describe(DescriptionKind::Function, fields, [name, module]);
        }
        let fields = [process, process, 0, 0];
        rings.describe(DescriptionKind::Thread, fields, ["\x1b[31mred", ""]);
    }
    let info = Info {
        process: 7,
        ..Info::default()
    };
    let mut drain = Drain::new(rings.clone(), File::create(&path).unwrap(), &info).unwrap();
    let writers = threads.map(|(process, thread)| rings.writer(process, thread).unwrap());
    let first = rings.clock().first().ticks;
    let mut now = first;
    let mut calls: [Vec<u32>; 3] = Default::default();
    for _ in 0..3000 {
        now += 1 + random(30_000);
        let thread = random(3) as usize;
        let open = &mut calls[thread];
        if open.len() < 12 && (open.is_empty() || random(2) == 0) {
            let function = 1 + random(5) as u32;
            if writers[thread].call(call(Kind::Entry, function), now) {
                open.push(function);
            }
        } else {
            let function = open.pop().unwrap();
            // Some ends are missing.
            let kind = [Kind::Return, Kind::Return, Kind::Unwound][random(3) as usize];
            if random(50) != 0 {
                writers[thread].call(call(kind, function), now);
            }
        }
        if random(100) == 0 {
            drain.drain().unwrap();
        }
    }
    let states = [State::Running, State::Blocked, State::Runnable];
    let switch = |n: u64| {
        let time = first + (now - first) / 200 * n;
        let state = states[n as usize % 3];
        (
            7 + n as u32 % 2,
            Change::Switch {
                time,
                state,
                cpu: Some(0),
            },
        )
    };
    let switches: Vec<_> = (0..200).map(switch).collect();
    drain.schedule(&switches, 0).unwrap();
    rings.finish();
    drain.finish().unwrap();
    (directory, path)
}

#[test]
fn views_by_summaries_are_those_by_events() {
    let recordings = [
        recording(),
        recording_with_losses(),
        recording_without(&[2, 3]),
        recording_of_modules(20),
        random(1, false),
        random(2, true),
        random(3, true),
    ];
    for (_directory, path) in recordings {
        let views = Views::of(&path);
        for words in KEPT {
            let is_kept = !views
                .run("none", words)
                .err
                .contains("has no states of threads");
            views.check(words, is_kept);
        }
        for words in [
            &["report", "--by", "source"][..],
            &["report", "--from", "1us"],
            &["report", "--thread", "7"],
            &["graph", "--to", "5us", "*"],
        ] {
            views.check(words, false);
        }
    }
}

#[test]
fn losses_are_shown_by_summaries() {
    let (_directory, path) = random(2, true);
    let views = Views::of(&path);
    views.run("all", &["report"]);
    let used = views.used(|| {
        let report = views.run("all", &["report"]);
        assert!(report.err.contains(" events were lost"), "{report:?}");
    });
    assert_eq!(used, 1);
}

#[test]
fn other_orders_groups_and_formats_of_a_view_use_its_summary() {
    let (_directory, path) = random(4, false);
    let views = Views::of(&path);
    views.run("all", &["report"]);
    for words in [
        &["report", "--sort", "max"][..],
        &["report", "--json"],
        &["report", "-n", "1"],
        &["report", "--by", "thread"],
        &["report", "--by", "module", "--json"],
    ] {
        assert_eq!(views.used(|| _ = views.run("all", words)), 1, "{words:?}");
    }
    assert_eq!(views.summaries().len(), 1);
    let path = path.to_str().unwrap();
    let both = ["report", "--diff", path];
    let diff = views.run("none", &both);
    assert_eq!(views.used(|| assert_eq!(views.run("all", &both), diff)), 1);
}

#[test]
fn a_recording_that_is_cut_damaged_or_piped_gets_no_summary() {
    let (directory, path) = random(5, false);
    let whole = fs::read(&path).unwrap();
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    for (name, content) in [("cut", &whole[..whole.len() - 20]), ("flipped", &flipped)] {
        let path = directory.path().join(name);
        fs::write(&path, content).unwrap();
        let views = Views::of(&path);
        for words in [&["report"][..], &["graph", "*"], &["info"]] {
            views.check(words, false);
        }
        assert_eq!(views.summaries().len(), 0, "{name}");
    }
    let views = Views::of(&path);
    let mut command = Command::new("sh");
    let script = format!(
        "cat '{}' | '{}' info -",
        path.display(),
        env!("CARGO_BIN_EXE_fgraph")
    );
    command
        .args(["-c", &script])
        .env("XDG_CACHE_HOME", views.cache.path())
        .env("FGRAPH_SUMMARIES", "all");
    assert_eq!(done(&mut command).code, Some(0));
    assert_eq!(views.summaries().len(), 0);
}

#[test]
fn damaged_summaries_are_not_used_and_replaced() {
    let (_directory, path) = random(6, false);
    let views = Views::of(&path);
    let plain = views.run("none", &["report"]);
    views.run("all", &["report"]);
    let [summary] = &views.summaries()[..] else {
        panic!("{:?}", views.summaries());
    };
    let whole = fs::read(summary).unwrap();
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 4;
    for content in [&whole[..whole.len() / 2], &[], &flipped, b"foreign"] {
        fs::write(summary, content).unwrap();
        assert_eq!(views.run("all", &["report"]), plain);
        assert_eq!(fs::read(summary).unwrap().len(), whole.len());
    }
    // The usual command keeps none of a pass that was short, and uses one that is there.
    let used = views.used(|| assert_eq!(views.run("", &["report"]), plain));
    assert_eq!(used, 1);
    views.run("", &["graph", "*"]);
    assert_eq!(views.summaries().len(), 1);
}

#[test]
fn the_cache_lists_and_clears_summaries() {
    let (_directory, path) = random(7, false);
    let views = Views::of(&path);
    views.run("all", &["report"]);
    let cache = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        command
            .env("XDG_CACHE_HOME", views.cache.path())
            .arg("cache");
        done(command.args(words)).out
    };
    let list = cache(&[]);
    assert!(list.contains("1 summary, "), "{list}");
    let json = cache(&["--json"]);
    assert!(json.contains("\"summaries\":1,"), "{json}");
    let cleared = cache(&["clear"]);
    assert!(cleared.contains("1 summary removed, "), "{cleared}");
    assert_eq!(cache(&[]), "0 plans, 0 B\n");
    assert_eq!(views.summaries().len(), 0);
}
