//! Servers go on serving while `fgraph record --libs -p` attaches to them, records and detaches.
//!
//! Clients keep connections and ask the same again and again. A run has three phases: before the
//! attach, from its begin to the end of the recorder, and after it. Each run has a new server.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fgraph_chores::figures::{grouped, median};
use fgraph_chores::process::{Done, Running};
use serde_json::{Value, json};

use super::program::{Missing, Program, ROW, Recorder, shell};

/// Longest time that the shell prepares, in seconds.
const LIMIT: u32 = 900;

/// Explanation of the table for its readers.
pub(super) const ABOUT: &str = "\
Four clients ask the same again and again over connections that they keep. Half-way,
`fgraph record --libs -p` attaches to the server, records every function for two seconds, and
detaches. Requests a second and the 99th percentile of their times are medians of five runs, before
the attach, from its begin to the end of the recorder, and after it. An error is an answer that is
not the expected one, or a connection that breaks.

";

/// Number of runs.
const RUNS: usize = 5;

/// Number of clients.
const CLIENTS: usize = 4;

/// Duration of the phases, and of the recording.
const PHASE: Duration = Duration::from_secs(2);

/// Longest time of a server to start, and to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Number of phases: before, during and after.
const PHASES: usize = 3;

/// A server that is asked through the socket `s` in its directory.
#[derive(Debug)]
struct Server {
    /// Its script becomes the server.
    program: Program,
    /// Commands of the shell, run once before all runs.
    prepare: &'static str,
    /// Answer to the server's greeting, if it has one.
    hello: &'static [u8],
    request: &'static [u8],
    /// End of each answer, which nothing in it equals before.
    end: &'static [u8],
}

const HTTP: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";

const fn server(program: Program, request: &'static [u8], end: &'static [u8]) -> Server {
    Server {
        program,
        prepare: "rm -f s",
        hello: b"",
        request,
        end,
    }
}

/// A program that needs the command of its name, from the Debian package `from`.
const fn program(
    needs: &'static [&'static str],
    from: &'static str,
    file: Option<(&'static str, &'static str)>,
    script: &'static str,
) -> Program {
    Program {
        name: needs[0],
        from,
        needs,
        file,
        script,
    }
}

#[rustfmt::skip]
const SERVERS: [Server; 5] = [
    server(
        program(&["nginx"], "nginx", Some(("nginx.conf", NGINX)), "nginx -p . -c nginx.conf"),
        HTTP, b"\r\n\r\nhello",
    ),
    server(
        program(&["haproxy"], "haproxy", Some(("a.cfg", HAPROXY)), "haproxy -q -db -f a.cfg"),
        HTTP, b"\r\n\r\nhello",
    ),
    server(
        program(&["memcached"], "memcached", None, "memcached -u root -s s"),
        b"set a 0 0 5\r\nhello\r\nget a\r\n", b"STORED\r\nVALUE a 0 5\r\nhello\r\nEND\r\n",
    ),
    server(
        Program {
            name: "redis",
            ..program(
                &["redis-server"], "redis-server", None,
                "redis-server --port 0 --unixsocket s --save ''",
            )
        },
        b"SET a hello\r\nGET a\r\n", b"+OK\r\n$5\r\nhello\r\n",
    ),
    Server {
        prepare: "rm -f s; [ -d d ] || mariadb-install-db --no-defaults --user=$(id -un) \
                  --datadir=$PWD/d --auth-root-authentication-method=normal > log",
        hello: MARIADB,
        ..server(
            Program {
                name: "mariadb",
                ..program(
                    &["mariadbd", "mariadb-install-db"], "mariadb-server", None,
                    "mariadbd --no-defaults --user=$(id -un) --datadir=$PWD/d --skip-networking \
                     --skip-grant-tables --socket=$PWD/s --pid-file=$PWD/pid",
                )
            },
            b"\x0f\0\0\0\x03select 'hello'", b"\x05hello\x05\0\0\x05\xfe\0\0\x02\0",
        )
    },
];

const NGINX: &str = "daemon off; master_process off; error_log stderr crit; pid nginx.pid;
events {}
http {
    access_log off; keepalive_requests 100000000;
    client_body_temp_path t; proxy_temp_path t;
    fastcgi_temp_path t; uwsgi_temp_path t; scgi_temp_path t;
    server { listen unix:s; location / { return 200 hello; } }
}
";
const HAPROXY: &str = "defaults
 mode http
 timeout client 30s
 timeout server 30s
 timeout connect 30s
frontend a
 bind unix@s
 http-request return status 200 content-type text/plain string hello
";
/// The packet of a user `root` without a password, of protocol 4.1.
const MARIADB: &[u8] = b"\x26\0\0\x01\0\x82\0\0\0\0\0\x01\x21\
    \0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0root\0\0";

/// The figures of a server.
#[derive(Debug)]
pub(super) struct Load {
    name: &'static str,
    version: String,
    missing: Option<Missing>,
    runs: Vec<[Phase; PHASES]>,
    /// Fault, if any.
    fault: Option<String>,
}

/// The requests of a phase.
#[derive(Clone, Copy, Debug, Default)]
struct Phase {
    requests_per_second: u64,
    p99: Duration,
}

/// Measures the servers of these names, or all.
pub(super) fn run(recorder: &Recorder, names: &[String]) -> io::Result<Vec<Load>> {
    let is_wanted = |server: &&Server| server.program.is_wanted(names);
    let directory = recorder.directory.join("servers");
    let one = |server: &Server| {
        let load = server.measure(recorder, &server.program.directory(&directory)?)?;
        fs::write(server.program.path(&directory).join(ROW), load.lines())?;
        eprint!("{}", load.lines());
        Ok(load)
    };
    SERVERS.iter().filter(is_wanted).map(one).collect()
}

/// The rows of the newest results in `directory`.
pub(super) fn newest(directory: &Path) -> String {
    let servers = directory.join("servers");
    let rows = SERVERS.iter().map(|server| server.program.newest(&servers));
    rows.collect()
}

impl Server {
    fn measure(&self, recorder: &Recorder, directory: &Path) -> io::Result<Load> {
        let mut load = Load {
            name: self.program.name,
            version: self.program.version(),
            missing: self.program.missing(),
            runs: Vec::new(),
            fault: None,
        };
        if load.missing.is_some() {
            return Ok(load);
        }
        for _ in 0..RUNS {
            load.fault = shell(directory, self.prepare, "", LIMIT)?.fault();
            if load.fault.is_some() {
                break;
            }
            match self.run_once(recorder, directory) {
                Ok(phases) => load.runs.push(phases),
                Err(fault) => {
                    load.fault = Some(fault.to_string());
                    break;
                }
            }
        }
        Ok(load)
    }

    /// Runs the server once, with its clients and a recorder. Fails if anyone is harmed.
    fn run_once(&self, recorder: &Recorder, directory: &Path) -> io::Result<[Phase; PHASES]> {
        let mut server = Command::new("/bin/sh");
        server.args(["-c", &format!("exec {}", self.program.script)]);
        server.current_dir(directory).stdin(Stdio::null());
        let mut server = Running(server.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
        let socket = directory.join("s");
        let until = Instant::now() + PATIENCE;
        while let Err(error) = Client::connect(self, &socket) {
            if Instant::now() > until {
                return Err(error);
            }
            thread::sleep(Duration::from_millis(20));
        }
        let phase = AtomicUsize::new(0);
        let (lengths, times) = thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS)
                .map(|_| scope.spawn(|| Client::connect(self, &socket)?.ask_on(&phase)))
                .collect();
            let pid = server.0.id().to_string();
            let lengths = phases(&phase, || {
                let mut record = Command::new(&recorder.fgraph);
                record.args(["record", "-q", "--libs", "--no-source", "-p", &pid]);
                record.args(["--time", "2s", "-o", "recorded.data"]);
                Done::of(record.current_dir(directory))?.check().map(drop)
            });
            let times: io::Result<Vec<_>> = clients
                .into_iter()
                .map(|client| client.join().expect("a client does not panic"))
                .collect();
            (lengths, times)
        });
        if let Some(status) = server.0.try_wait()? {
            return Err(io::Error::other(format!("the server has ended: {status}")));
        }
        let _ = fs::remove_file(directory.join("recorded.data"));
        let (lengths, times) = (lengths?, times?);
        Ok(std::array::from_fn(|phase| {
            let of_phase = times.iter().flat_map(|times| &times[phase]);
            Phase::of(of_phase.copied().collect(), lengths[phase])
        }))
    }
}

/// Measures the phases. The second one is `recording`.
fn phases(
    phase: &AtomicUsize,
    recording: impl FnOnce() -> io::Result<()>,
) -> io::Result<[Duration; PHASES]> {
    // Relaxed: the number is all that matters.
    let next = || phase.fetch_add(1, Ordering::Relaxed);
    let begin = Instant::now();
    thread::sleep(PHASE);
    next();
    let attach = Instant::now();
    let recorded = recording();
    next();
    let detached = Instant::now();
    thread::sleep(PHASE);
    next();
    recorded?;
    Ok([attach - begin, detached - attach, detached.elapsed()])
}

#[derive(Debug)]
struct Client<'a> {
    server: &'a Server,
    stream: UnixStream,
}

impl<'a> Client<'a> {
    /// Connects, and gets one answer.
    fn connect(server: &'a Server, socket: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut client = Self { server, stream };
        if !server.hello.is_empty() {
            let mut answer = [0; 512];
            let _greeting = client.stream.read(&mut answer)?;
            client.stream.write_all(server.hello)?;
            let _accepted = client.stream.read(&mut answer)?;
        }
        client.ask()?;
        Ok(client)
    }

    fn ask(&mut self) -> io::Result<()> {
        self.stream.write_all(self.server.request)?;
        let (mut answer, mut len) = ([0; 4096], 0);
        while !answer[..len].ends_with(self.server.end) {
            match self.stream.read(&mut answer[len..])? {
                0 => {
                    let answer = String::from_utf8_lossy(&answer[..len]);
                    return Err(io::Error::other(format!("the answer is {answer:?}")));
                }
                more => len += more,
            }
        }
        Ok(())
    }

    /// Asks again and again until the last phase is over. Returns how long it took in each.
    fn ask_on(mut self, phase: &AtomicUsize) -> io::Result<[Vec<Duration>; PHASES]> {
        let mut times: [Vec<Duration>; PHASES] = Default::default();
        // Relaxed: the number is all that matters.
        while let Some(times) = times.get_mut(phase.load(Ordering::Relaxed)) {
            let begin = Instant::now();
            self.ask()?;
            times.push(begin.elapsed());
        }
        Ok(times)
    }
}

impl Phase {
    fn of(mut times: Vec<Duration>, length: Duration) -> Self {
        times.sort_unstable();
        Self {
            requests_per_second: (times.len() as f64 / length.as_secs_f64()) as u64,
            p99: times
                .get(times.len() * 99 / 100)
                .copied()
                .unwrap_or_default(),
        }
    }
}

impl Load {
    /// True if no client had an error, and the server is there at the end.
    pub(super) fn is_good(&self) -> bool {
        self.fault.is_none()
    }

    /// Medians of all runs.
    fn medians(&self) -> [Phase; PHASES] {
        std::array::from_fn(|phase| {
            let runs = || self.runs.iter().map(|run| run[phase]);
            let rates = runs().map(|phase| phase.requests_per_second);
            Phase {
                requests_per_second: median(rates).unwrap_or_default(),
                p99: median(runs().map(|phase| phase.p99)).unwrap_or_default(),
            }
        })
    }

    /// The row of the table, and what went wrong.
    fn lines(&self) -> String {
        let phases = self.medians();
        let rates = phases.map(|phase| grouped(phase.requests_per_second));
        let times = phases.map(|phase| format!("{:.3} ms", phase.p99.as_secs_f64() * 1e3));
        let (name, version) = (&self.name, &self.version);
        match (self.missing, &self.fault) {
            (Some((need, from)), _) => {
                format!("| {name} | {version} | skipped: no {need} ({from}) | | | | | | |\n")
            }
            (None, Some(fault)) => format!("| {name} | {version} | FAILED: {fault} |\n"),
            (None, None) => format!(
                "| {name} | {version} | {} | {} | 0 |\n",
                rates.join(" | "),
                times.join(" | ")
            ),
        }
    }

    pub(super) fn json(&self) -> Value {
        let phase = |phase: Phase| {
            let p99 = phase.p99.as_micros() as u64;
            json!({ "requests_per_second": phase.requests_per_second, "p99_us": p99 })
        };
        json!({
            "server": self.name,
            "version": self.version,
            "missing": self.missing.map(|(need, _)| need),
            "runs": self.runs.len(),
            "medians": self.medians().map(phase),
            "fault": self.fault,
        })
    }
}

/// The head of the table, in Markdown.
pub(super) const HEADER: &str = "\
| server | version | requests/s before | during | after | p99 before | during | after | errors |
|---|---|---:|---:|---:|---:|---:|---:|---:|
";

/// All figures as a table.
pub(super) fn table(all: &[Load]) -> String {
    let rows: String = all.iter().map(Load::lines).collect();
    format!("{HEADER}{rows}")
}
