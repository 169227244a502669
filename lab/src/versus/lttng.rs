//! LTTng-UST, whose `cyg-profile` records functions that were built with
//! `-finstrument-functions`.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use fgraph_needs::{CC, LTTNG, LTTNG_UST, Missing};

use super::programs::{Build, Programs};
use super::row::{BUFFER, Figures, Kind, Row, failed, measure, output, size};

const BUILD: Build = Build {
    name: "instrumented",
    compiler: CC,
    function: &["-finstrument-functions"],
    program: &[],
};

/// The library that records, preloaded.
const LIBRARY: &str = "liblttng-ust-cyg-profile-fast.so.1";
const SESSION: &str = "fgraph-versus";
const CHANNEL: &str = "all";
const SUB_BUFFER: u64 = 1 << 20;

pub(super) fn rows(programs: &Programs) -> Vec<Row> {
    let directory = programs.path("lttng");
    let (name, kind) = ("LTTng-UST, cyg-profile-fast", Kind::Recorded);
    let row = Row::new(
        name,
        kind,
        daemon(programs),
        move |(daemon, program), calls| daemon.record(program, &directory, calls),
    );
    vec![row]
}

fn daemon(programs: &Programs) -> Result<(Daemon, PathBuf), Missing> {
    let lttng = LTTNG.find()?;
    let program = programs.build(BUILD)?;
    let mut probe = Command::new(&program);
    probe.arg("0").env("LD_PRELOAD", LIBRARY);
    let tried = probe.stdin(Stdio::null()).output().map_err(failed)?;
    // The dynamic linker goes on without what it does not find.
    if String::from_utf8_lossy(&tried.stderr).contains("cannot be preloaded") {
        return Err(LTTNG_UST.missing());
    }
    let daemon = Daemon::start(lttng, programs.path("home"))?;
    Ok((daemon, program))
}

/// A session daemon, unless one was running already; it ends when this is dropped.
#[derive(Debug)]
struct Daemon {
    lttng: PathBuf,
    home: PathBuf,
    process: Child,
}

impl Daemon {
    fn start(lttng: PathBuf, home: PathBuf) -> Result<Self, Missing> {
        Programs::empty(&home)?;
        let process = Command::new(lttng.with_file_name("lttng-sessiond"))
            .args(["--no-kernel", "--quiet"])
            .env("LTTNG_HOME", &home)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed)?;
        let daemon = Self {
            lttng,
            home,
            process,
        };
        for _ in 0..100 {
            if output(&mut daemon.command(&["list"])).is_ok() {
                return Ok(daemon);
            }
            thread::sleep(Duration::from_millis(50));
        }
        Err(Missing::new("lttng-sessiond does not answer"))
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.lttng);
        command
            .arg("--no-sessiond")
            .args(arguments)
            .env("LTTNG_HOME", &self.home);
        command
    }

    fn record(&self, program: &Path, directory: &Path, calls: u64) -> Result<Figures, Missing> {
        Programs::empty(directory)?;
        let path = directory.display().to_string();
        // One of an earlier run that was interrupted.
        let _ = output(&mut self.command(&["destroy", SESSION]));
        let count = (BUFFER / SUB_BUFFER).to_string();
        let size_of_one = SUB_BUFFER.to_string();
        let buffers = ["--subbuf-size", &size_of_one, "--num-subbuf", &count];
        let commands: [&[&str]; 4] = [
            &["create", SESSION, "--output", &path],
            &[&["enable-channel", "--userspace", CHANNEL], &buffers[..]].concat(),
            &[
                "enable-event",
                "--userspace",
                "--channel",
                CHANNEL,
                "lttng_ust_cyg_profile*:*",
            ],
            &["start", SESSION],
        ];
        for arguments in commands {
            output(&mut self.command(arguments))?;
        }
        let mut figures = measure(
            Command::new(program)
                .arg(calls.to_string())
                .env("LD_PRELOAD", LIBRARY)
                .env("LTTNG_HOME", &self.home),
        )?;
        output(&mut self.command(&["stop", SESSION]))?;
        let discarded = discarded(&output(&mut self.command(&["list", SESSION]))?);
        output(&mut self.command(&["destroy", SESSION]))?;
        let is_stream = |name: &str| name.starts_with(CHANNEL) && !name.ends_with(".idx");
        figures.bytes = Some(size(directory, &is_stream).map_err(failed)?);
        figures.events = discarded.and_then(|events| (2 * calls).checked_sub(events));
        Ok(figures)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let number = self.process.id().to_string();
        // So that it ends its own children and takes its memory back, which it does not when it is
        // killed.
        let asked: io::Result<_> = Command::new("kill").arg(number).status();
        if !asked.is_ok_and(|status| status.success()) {
            let _ = self.process.kill();
        }
        let _ = self.process.wait();
    }
}

/// Returns the number of discarded events in the list of a session.
fn discarded(list: &str) -> Option<u64> {
    let (_, rest) = list.split_once("Discarded events:")?;
    rest.lines().next()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn discarded_events_are_read_from_a_list() {
        let list = "  Statistics:\n      Discarded events: 17\n\n    Recording event rules:\n";
        assert_eq!(discarded(list), Some(17));
        assert_eq!(discarded("Session fgraph-versus not found"), None);
    }
}
