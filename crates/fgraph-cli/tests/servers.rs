//! `fgraph record -p` on servers while clients run: these get the answers that they get without it,
//! and the server goes on as it was.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::busy::Program;
use crate::support::views::{Done, done, shown_by_all};
use fgraph_needs::{Missing, POSTGRES, REDIS_BENCHMARK, REDIS_CLI, REDIS_SERVER, needs};

const PATIENCE: Duration = Duration::from_secs(60);

#[track_caller]
fn wait_until(is_so: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "it is not so");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Runs a command that succeeds, and returns its output.
#[track_caller]
fn said(command: &mut Command) -> String {
    let Done { code, out, err } = done(command);
    assert_eq!(code, Some(0), "{command:?}: {out}{err}");
    out
}

fn opened(program: &Program) -> usize {
    let all = fs::read_dir(format!("/proc/{}/fd", program.child.id()));
    all.unwrap().count()
}

/// Returns the names of its threads. An allocator may make more of its own, when a thread of the
/// agent is its first one on another processor.
fn threads(program: &Program) -> BTreeSet<String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", program.child.id())).unwrap();
    let name = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).unwrap();
    tasks.flatten().map(name).collect()
}

/// Checks that clients get the same answers while a flight recorder attaches to their server, takes
/// a snapshot and detaches.
fn is_recorded_under_load(server: &Program, options: &[&str], clients: impl Fn() -> String) {
    let plain = clients();
    let (text, before) = (server.text(), (threads(server), opened(server)));
    // No more than all views show within seconds.
    let flight = [
        "--ring",
        "overwrite=2s",
        "--buffer",
        "4M",
        "--trigger",
        "signal",
    ];
    let mut recorder = server
        .recorder(&[&flight, options].concat())
        .spawn()
        .unwrap();
    let pid = server.child.id().to_string();
    let asked = |what: &str| {
        let mut ctl = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        done(ctl.args(["ctl", &pid, what]))
    };
    thread::scope(|scope| {
        let asks = scope.spawn(|| {
            // The calls of clients that came since.
            let is_called = |line: &str| {
                let calls = line.strip_prefix("calls ");
                calls.is_some_and(|calls| calls.parse::<u64>().unwrap() > 1000)
            };
            wait_until(|| asked("status").out.lines().any(is_called));
            assert_eq!(asked("snapshot").code, Some(0));
            wait_until(|| fs::metadata(server.recording()).is_ok_and(|file| file.len() > 0));
            assert_eq!(asked("stop").code, Some(0));
            recorder.wait().unwrap().code()
        });
        while !asks.is_finished() {
            assert_eq!(clients(), plain);
        }
        assert_eq!(asks.join().unwrap(), Some(0));
    });
    assert_eq!(server.changed(&text), None);
    // A thread that was joined is still listed for a moment.
    wait_until(|| (threads(server), opened(server)) == before);
    assert_eq!(clients(), plain);
    shown_by_all(&server.recording());
}

#[test]
fn redis_serves_its_benchmark() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("redis");
    let benchmark = needs!(REDIS_BENCHMARK.find());
    let cli = needs!(REDIS_CLI.find());
    let mut server = Command::new(needs!(REDIS_SERVER.find()));
    server.args(["--port", "0", "--save", "", "--unixsocket"]);
    server.arg(&socket).current_dir(folder.path());
    let child = server.stdout(Stdio::null()).spawn().unwrap();
    let server = Program { child, folder };
    let ask = |words: &[&str]| {
        let mut command = Command::new(&cli);
        command.arg("-s").arg(&socket).args(words);
        said(&mut command)
    };
    wait_until(|| socket.exists());
    wait_until(|| ask(&["ping"]) == "PONG\n");
    is_recorded_under_load(&server, &[], || {
        assert_eq!(ask(&["config", "resetstat"]), "OK\n");
        let mut command = Command::new(&benchmark);
        command.args([
            "-q",
            "-n",
            "2000",
            "-c",
            "20",
            "-t",
            "set,get,incr,lpush,lrange_100",
        ]);
        said(command.arg("-s").arg(&socket));
        let statistics = ask(&["info", "commandstats"]) + &ask(&["info", "errorstats"]);
        // The times of commands are not always the same.
        let is_count = |word: &&str| {
            ["calls=", "_calls=", "count="]
                .iter()
                .any(|it| word.contains(it))
        };
        let counts: Vec<&str> = statistics
            .split([',', ':', '\r'])
            .filter(is_count)
            .collect();
        let answer = counts.join(" ") + &ask(&["incrby", "counter:__rand_int__", "0"]);
        ask(&["flushall"]);
        answer
    });
    ask(&["shutdown", "nosave"]);
    assert_eq!(server.end().code(), Some(0));
}

/// The directory of the programs of PostgreSQL, of the newest version.
fn postgres_programs() -> Result<PathBuf, Missing> {
    let in_path = POSTGRES.find()?;
    let of_debian = || {
        let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
        let all = versions.flatten().map(|it| it.path().join("bin"));
        all.filter(|path| path.join("initdb").exists()).max()
    };
    let linked = fs::canonicalize(in_path)
        .ok()
        .and_then(|path| Some(path.parent()?.to_owned()));
    let is_whole = |path: &PathBuf| path.join("initdb").exists();
    let found = linked.filter(is_whole).or_else(of_debian);
    found.ok_or_else(|| POSTGRES.missing())
}

/// Whom PostgreSQL runs as where it is root who asks: it refuses to run as root.
const NOBODY: u32 = 65534;

#[test]
fn postgres_serves_its_benchmark() {
    let programs = needs!(postgres_programs());
    let folder = tempfile::tempdir().unwrap();
    // SAFETY: it only asks.
    let is_root = unsafe { libc::geteuid() } == 0;
    let path = folder.path().to_owned();
    if is_root {
        std::os::unix::fs::chown(&path, Some(NOBODY), None).unwrap();
    }
    let command = |name: &str, words: &[&str]| {
        let mut command = Command::new(programs.join(name));
        command.args(words).current_dir(&path);
        if is_root {
            command.uid(NOBODY);
        }
        command
    };
    let data = path.join("data").display().to_string();
    let host = path.display().to_string();
    said(&mut command(
        "initdb",
        &["-N", "-A", "trust", "-U", "owner", "-D", &data],
    ));
    let options = [
        "-c",
        "listen_addresses=",
        "-c",
        "fsync=off",
        "-D",
        &data,
        "-k",
        &host,
    ];
    let mut server = command("postgres", &options);
    let log = fs::File::create(path.join("log")).unwrap();
    let child = server.stderr(log).spawn().unwrap();
    let server = Program { child, folder };
    let asks = ["-h", &host, "-U", "owner"];
    let ready = || done(&mut command("pg_isready", &asks)).code == Some(0);
    wait_until(ready);
    let pgbench = |words: &[&str]| {
        said(&mut command(
            "pgbench",
            &[&asks[..], words, &["postgres"]].concat(),
        ))
    };
    pgbench(&["-i", "-q", "-s", "1"]);
    is_recorded_under_load(&server, &["-F", "Exec*"], || {
        let shown = pgbench(&["-n", "-c", "4", "-t", "50", "-C"]);
        let is_count = |line: &&str| line.starts_with("number of");
        let counts: Vec<&str> = shown.lines().filter(is_count).collect();
        counts.join("\n")
    });
    // SAFETY: a signal to a process that we have started.
    let sent = unsafe { libc::kill(server.child.id() as i32, libc::SIGINT) };
    assert_eq!(sent, 0);
    assert_eq!(server.end().code(), Some(0));
}
