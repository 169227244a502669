//! Recordings of a program that never ran, and what several tests share.

pub(crate) mod busy;
pub(crate) mod compiled;
mod interrupts;
pub(crate) mod pythons;
pub(crate) mod views;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use fgraph_trace::clock::ClockKind;
use fgraph_trace::event::{Kind, call};
use fgraph_trace::names::DescriptionKind;
use fgraph_trace::recording::{Drain, Info};
use fgraph_trace::ring::{Extras, RingOptions, Rings};
use fgraph_trace::schedule::{Change, State};
use tempfile::TempDir;

/// Copies a program to be executed, in a process of its own: the processes that other tests start
/// have for a moment what this one has open, and a file that is written to cannot be executed.
pub(crate) fn copy_program(from: impl AsRef<Path>, to: &Path) {
    let copied = Command::new("cp").arg(from.as_ref()).arg(to).status();
    assert!(copied.unwrap().success());
}

const PROCESS: u32 = 100;
/// Name of a function in a hostile program.
const HOSTILE: &str = "evil\x1b]0;owned\x07</script>\u{202e}\u{2028}\u{61c}\u{180e}";
/// A recording that is being written.
pub(crate) struct Growing {
    rings: Arc<Rings>,
    drain: Drain<File>,
    now: u64,
}

impl Growing {
    pub(crate) fn begin(path: &Path) -> Self {
        let options = RingOptions {
            clock: Some(ClockKind::Monotonic),
            sub_buffer_bytes: 1024,
            ..RingOptions::default()
        };
        let rings = Arc::new(Rings::create(&options).unwrap());
        let info = Info {
            process: PROCESS,
            ..Info::default()
        };
        Self {
            drain: Drain::new(rings.clone(), File::create(path).unwrap(), &info).unwrap(),
            now: rings.clock().first().ticks,
            rings,
        }
    }

    /// Switches of the thread of a function: nanoseconds since the beginning, and the new state.
    #[allow(dead_code, reason = "each test uses some of it")]
    pub(crate) fn switches(&mut self, function: u32, switches: &[(u64, State)]) {
        let first = self.rings.clock().first().ticks;
        let switch = |&(since, state): &(u64, State)| {
            let (time, cpu) = (first + since, Some(0));
            (PROCESS + function, Change::Switch { time, state, cpu })
        };
        let switches: Vec<_> = switches.iter().map(switch).collect();
        self.drain.schedule(&switches, 0).unwrap();
    }

    /// A call of a function in a thread of its own, 100 ns after the newest call.
    #[allow(dead_code, reason = "each test uses some of it")]
    pub(crate) fn call(&mut self, function: u32, name: &str, nanoseconds: u64) {
        let fields = [PROCESS.into(), function.into(), 0x1000, 16];
        let texts = [name, "/usr/bin/program"];
        self.rings
            .describe(DescriptionKind::Function, fields, texts);
        let writer = self.rings.writer(PROCESS, PROCESS + function).unwrap();
        self.now += 100;
        writer.call(call(Kind::Entry, function), self.now);
        self.now += nanoseconds;
        writer.call(call(Kind::Return, function), self.now);
    }

    /// More than a sub-buffer of calls of a function, in a thread of its own.
    pub(crate) fn calls(&mut self, function: u32, name: &str) {
        let fields = [PROCESS.into(), function.into(), 0x1000, 16];
        let texts = [name, "/usr/bin/program"];
        self.rings
            .describe(DescriptionKind::Function, fields, texts);
        let writer = self.rings.writer(PROCESS, PROCESS + function).unwrap();
        for _ in 0..200 {
            self.now += 100;
            writer.call(call(Kind::Entry, function), self.now);
            writer.call(call(Kind::Return, function), self.now + 40);
        }
        assert!(self.drain.drain().unwrap() > 0);
    }

    pub(crate) fn end(self) {
        self.rings.finish();
        self.drain.finish().unwrap();
    }
}

/// A directory with a recording that lacks two events, the returns of `parse` and of the last call
/// of `read` in it; it has the return of `main`, a millisecond after its entry.
pub(crate) fn recording_with_losses() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("fgraph.data");
    let options = RingOptions {
        clock: Some(ClockKind::Monotonic),
        sub_buffers: 2,
        sub_buffer_bytes: 256,
        ..RingOptions::default()
    };
    let rings = Arc::new(Rings::create(&options).unwrap());
    for (index, name) in [(1, "main"), (2, "parse"), (3, "read")] {
        let fields = [PROCESS.into(), index, 0x1000 * index, 16];
        let texts = [name, "/usr/bin/program"];
        rings.describe(DescriptionKind::Function, fields, texts);
    }
    let fields = [PROCESS.into(), PROCESS.into(), 0, 0];
    rings.describe(DescriptionKind::Thread, fields, ["\x1b[31mred", ""]);
    let writer = rings.writer(PROCESS, PROCESS).unwrap();
    let start = rings.clock().first().ticks;
    let write = |kind, function, time| writer.call(call(kind, function), start + time);
    write(Kind::Entry, 1, 0);
    write(Kind::Entry, 2, 100);
    write(Kind::Entry, 2, 200);
    while write(Kind::Entry, 3, 300) && write(Kind::Return, 3, 300) {}
    write(Kind::Return, 2, 400);
    let info = Info {
        process: PROCESS,
        ..Info::default()
    };
    let mut drain = Drain::new(rings.clone(), File::create(&path).unwrap(), &info).unwrap();
    drain.drain().unwrap();
    write(Kind::Return, 2, 10_000);
    write(Kind::Return, 1, 1_000_000);
    rings.finish();
    drain.finish().unwrap();
    (directory, path)
}

/// A directory with a recording of these entries and returns of `fib`, with their times.
pub(crate) fn recording_of_fib(events: &[(Kind, u64)]) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("fgraph.data");
    let options = RingOptions {
        clock: Some(ClockKind::Monotonic),
        ..RingOptions::default()
    };
    let rings = Arc::new(Rings::create(&options).unwrap());
    let fields = [PROCESS.into(), 1, 0x1000, 16];
    rings.describe(
        DescriptionKind::Function,
        fields,
        ["fib", "/usr/bin/program"],
    );
    let writer = rings.writer(PROCESS, PROCESS).unwrap();
    let start = rings.clock().first().ticks;
    for &(kind, time) in events {
        writer.call(call(kind, 1), start + time);
    }
    rings.finish();
    let info = Info {
        process: PROCESS,
        ..Info::default()
    };
    write_all(&rings, &path, &info);
    (directory, path)
}

/// Writes all that is in rings to a recording.
fn write_all(rings: &Arc<Rings>, path: &Path, info: &Info) {
    let file = File::create(path).unwrap();
    let drain = Drain::new(rings.clone(), file, info).unwrap();
    drain.finish().unwrap();
}

/// A directory with a recording: `main` calls `parse` 20 times, which calls `read`; the last one
/// is slow. Another thread calls a function with a hostile name.
pub(crate) fn recording() -> (TempDir, PathBuf) {
    recording_of(20)
}

pub(crate) fn recording_of(calls: u64) -> (TempDir, PathBuf) {
    written(calls, &[])
}

/// Makes the recording of [`recording`], in which functions with these indices were switched off.
pub(crate) fn recording_without(off: &[u64]) -> (TempDir, PathBuf) {
    written(20, off)
}

fn written(calls: u64, off: &[u64]) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("fgraph.data");
    let options = RingOptions {
        clock: Some(ClockKind::Monotonic),
        ..RingOptions::default()
    };
    let rings = Arc::new(Rings::create(&options).unwrap());
    for (index, name) in [(1, "main"), (2, "parse"), (3, "read"), (4, HOSTILE)] {
        let fields = [PROCESS.into(), index, 0x1000 * index, 16];
        rings.describe(
            DescriptionKind::Function,
            fields,
            [name, "/usr/bin/program"],
        );
    }
    for &index in off {
        let fields = [PROCESS.into(), index, 0, 0];
        rings.describe(DescriptionKind::SwitchedOff, fields, ["", ""]);
    }
    let fields = [PROCESS.into(), 101, 0, 0];
    rings.describe(DescriptionKind::Thread, fields, ["\x1b[31mred", ""]);
    let start = rings.clock().first().ticks;
    let [first, second] = [100, 101].map(|thread| rings.writer(PROCESS, thread).unwrap());
    first.call(call(Kind::Entry, 1), start);
    let mut now = start + 100;
    for n in 0..calls {
        let extras = Extras {
            arguments: &[7],
            ..Extras::default()
        };
        first.call_with(call(Kind::Entry, 2), now, &extras);
        first.call(call(Kind::Entry, 3), now + 100);
        let took = if n + 1 == calls { 5_000_000 } else { 300 };
        first.call(call(Kind::Return, 3), now + 100 + took);
        first.call(call(Kind::Return, 2), now + 200 + took);
        now += took + 300;
    }
    first.mark(now, "half\x1b[2J\ndone\u{202e}\u{2028}\u{61c}\u{200b}");
    first.call(call(Kind::Return, 1), now + 1000);
    second.call(call(Kind::Entry, 4), start + 50);
    second.call(call(Kind::Unwound, 4), start + 90);
    rings.finish();
    let info = Info {
        process: PROCESS,
        host: "host".to_owned(),
        command: vec!["program".to_owned(), "\x1b[1margument".to_owned()],
        system: "linux x86_64".to_owned(),
        ..Info::default()
    };
    write_all(&rings, &path, &info);
    (directory, path)
}

/// Makes a recording of calls of as many functions as modules, each in one of its own.
pub(crate) fn recording_of_modules(count: u64) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("fgraph.data");
    let options = RingOptions {
        clock: Some(ClockKind::Monotonic),
        sub_buffer_bytes: 1 << 20,
        table_bytes: 256 << 20,
        ..RingOptions::default()
    };
    let rings = Arc::new(Rings::create(&options).unwrap());
    let start = rings.clock().first().ticks;
    let writer = rings.writer(PROCESS, PROCESS).unwrap();
    for n in 0..count {
        let module = format!("/m/{n}/{}", n % (count / 2));
        let address = 0x1000 + n * 0x1000;
        let fields = [PROCESS.into(), address, address + 0x1000, 0];
        rings.describe(DescriptionKind::Module, fields, [&module, ""]);
        let fields = [PROCESS.into(), address, 0, 0];
        rings.describe(DescriptionKind::BuildId, fields, [&module, "c0ffee"]);
        let fields = [PROCESS.into(), n + 1, address, 16];
        rings.describe(DescriptionKind::Function, fields, ["f", &module]);
        writer.call(call(Kind::Entry, n as u32 + 1), start + 2 * n);
        writer.call(call(Kind::Return, n as u32 + 1), start + 2 * n + 1);
    }
    assert_eq!(rings.lost_descriptions(), 0);
    rings.finish();
    let info = Info {
        process: PROCESS,
        ..Info::default()
    };
    write_all(&rings, &path, &info);
    (directory, path)
}

/// Writes a recording of another machine: of a program that is not here, and of one that is another
/// build there, by a clock that this machine does not have.
pub(crate) fn other_machine(path: &Path) {
    let options = RingOptions {
        clock: Some(ClockKind::Monotonic),
        ..RingOptions::default()
    };
    let rings = Arc::new(Rings::create(&options).unwrap());
    // No such process is here.
    let process = u32::MAX / 2;
    let programs = [(1, "/absent/program", 0x1000), (2, "/bin/sh", 0x5000_0000)];
    for (index, program, start) in programs {
        let module = [process.into(), start, start + 0x9000, 0];
        rings.describe(DescriptionKind::Module, module, [program, ""]);
        let build = [process.into(), start, 0, 0];
        rings.describe(DescriptionKind::BuildId, build, [program, "c0ffee"]);
        let function = [process.into(), index, start + 0x100, 16];
        let name = format!("f{index}");
        rings.describe(DescriptionKind::Function, function, [&name, program]);
    }
    let writer = rings.writer(process, process).unwrap();
    let start = rings.clock().first().ticks;
    for (n, (function, _, address)) in (0..).zip(programs) {
        let extras = Extras {
            cpu: Some(4000),
            caller: Some(address + 0x2000),
            ..Extras::default()
        };
        writer.call_with(call(Kind::Entry, function as u32), start + n, &extras);
    }
    for (n, (function, ..)) in (2..).zip(programs.into_iter().rev()) {
        writer.call(call(Kind::Return, function as u32), start + n);
    }
    rings.finish();
    let info = Info {
        process,
        host: "elsewhere".to_owned(),
        system: "linux aarch64".to_owned(),
        ..Info::default()
    };
    write_all(&rings, path, &info);
}
