//! `--debuginfod`, with a server of the test's own.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::support::copy_program;
use fgraph_needs::{CC, CURL, OBJCOPY, needs};
use tempfile::TempDir;

const SOURCE: &str = "
__attribute__((noinline)) static int leaf(int n)
{
    __asm__ volatile(\".skip 16, 0x90\");
    return n + 1;
}

int main(void)
{
    return leaf(-1);
}
";

/// Answer of the server.
#[derive(Clone)]
enum Answer {
    File(Vec<u8>),
    /// Bytes without an end.
    Endless,
    Elsewhere(&'static str),
    Missing,
}

/// Answers each request for the debug file of one build.
struct Server {
    url: String,
    answer: Arc<Mutex<Answer>>,
    requests: Arc<AtomicUsize>,
}

impl Server {
    fn start(id: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let answer = Arc::new(Mutex::new(Answer::Missing));
        let requests = Arc::new(AtomicUsize::new(0));
        let this = Self {
            url,
            answer: Arc::clone(&answer),
            requests: Arc::clone(&requests),
        };
        let expected = format!("GET /buildid/{id}/debuginfo ");
        thread::spawn(move || {
            for client in listener.incoming() {
                let answer = answer.lock().unwrap().clone();
                // A client may go when it has enough.
                let _ = serve(&client.unwrap(), &expected, &answer, &requests);
            }
        });
        this
    }

    fn set(&self, answer: Answer) {
        *self.answer.lock().unwrap() = answer;
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }
}

/// Answers a client, and counts the request if it is the expected one.
fn serve(
    client: &TcpStream,
    expected: &str,
    answer: &Answer,
    requests: &AtomicUsize,
) -> std::io::Result<()> {
    let mut lines = BufReader::new(client);
    let mut first = String::new();
    lines.read_line(&mut first)?;
    let mut line = String::new();
    while lines.read_line(&mut line)? > 2 {
        line.clear();
    }
    let mut out = client;
    if !first.starts_with(expected) {
        return out.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
    }
    // Before the answer: who has that goes on.
    requests.fetch_add(1, Ordering::Relaxed);
    match answer {
        Answer::File(bytes) => {
            write!(
                out,
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n",
                bytes.len()
            )?;
            out.write_all(bytes)?;
        }
        Answer::Endless => {
            out.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
            while out.write_all(&[0; 4096]).is_ok() {}
        }
        Answer::Elsewhere(url) => {
            write!(
                out,
                "HTTP/1.1 302 Found\r\nLocation: {url}\r\nContent-Length: 0\r\n\r\n"
            )?;
        }
        Answer::Missing => {
            out.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")?;
        }
    }
    Ok(())
}

/// A program that is stripped, and its debug file.
struct Program {
    directory: TempDir,
    debug: Vec<u8>,
}

const ID: &str = "0123456789abcdef0123456789abcdef01234567";

impl Program {
    fn build(cc: &Path, objcopy: &Path, id: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let run = |program: &Path, arguments: &[&str]| {
            let mut command = Command::new(program);
            let command = command.args(arguments).current_dir(directory.path());
            assert!(command.status().unwrap().success(), "{arguments:?}");
        };
        fs::write(directory.path().join("source.c"), SOURCE).unwrap();
        let id = format!("-Wl,--build-id=0x{id}");
        run(cc, &["-g", "-O1", &id, "-o", "program", "source.c"]);
        run(objcopy, &["--only-keep-debug", "program", "debug"]);
        run(objcopy, &["--strip-all", "program"]);
        let debug = fs::read(directory.path().join("debug")).unwrap();
        fs::remove_file(directory.path().join("debug")).unwrap();
        Self { directory, debug }
    }

    /// Makes this the only program that the command finds.
    fn install(&self, name: &str, program: &Path) {
        let bin = self.directory.path().join("bin");
        let _ = fs::remove_dir_all(&bin);
        fs::create_dir(&bin).unwrap();
        symlink(program, bin.join(name)).unwrap();
    }

    fn cached(&self) -> PathBuf {
        self.directory
            .path()
            .join("cache/debuginfod_client")
            .join(ID)
    }

    fn fgraph(&self, server: &Server, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        command
            .args(arguments)
            .env_remove("DEBUGINFOD_CACHE_PATH")
            .env("no_proxy", "*")
            .env("PATH", self.directory.path().join("bin"))
            .env("DEBUGINFOD_URLS", format!("file:///etc/ {}", server.url))
            .env("DEBUGINFOD_MAXSIZE", "1000000")
            .env("XDG_CACHE_HOME", self.directory.path().join("cache"))
            .current_dir(self.directory.path());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        output
    }

    fn text(&self, server: &Server, arguments: &[&str]) -> String {
        String::from_utf8(self.fgraph(server, arguments).stdout).unwrap()
    }
}

#[test]
fn names_and_lines_of_stripped_programs_come_from_a_server_on_request() {
    let (cc, objcopy) = (needs!(CC.find()), needs!(OBJCOPY.find()));
    let curl = needs!(CURL.find());
    let program = Program::build(&cc, &objcopy, ID);
    program.install("curl", &curl);
    let server = Server::start(ID);
    server.set(Answer::File(program.debug.clone()));
    program.fgraph(&server, &["record", "--", "./program"]);
    let plain = program.text(&server, &["report"]);
    assert!(
        plain.contains("program+0x") && !plain.contains("leaf"),
        "{plain}"
    );
    assert_eq!(
        server.requests(),
        0,
        "no server is asked unless that is wanted"
    );

    for command in ["report", "replay"] {
        let shown = program.text(&server, &[command, "--debuginfod"]);
        assert!(
            shown.contains("leaf") && !shown.contains("program+0x"),
            "{shown}"
        );
        // From then on it is in the cache.
        assert_eq!(server.requests(), 1);
    }
    assert_eq!(
        fs::read(program.cached().join("debuginfo")).unwrap(),
        program.debug
    );
    let sources = program.text(&server, &["report", "--debuginfod", "--by", "source"]);
    assert!(sources.contains("source.c"), "{sources}");

    program.fgraph(&server, &["record", "--debuginfod", "--", "./program"]);
    let shown = program.text(&server, &["report"]);
    assert!(shown.contains("leaf"), "{shown}");
    let sources = program.text(&server, &["report", "--by", "source"]);
    assert!(sources.contains("source.c"), "{sources}");
}

#[test]
fn files_of_a_hostile_server_are_not_kept() {
    let (cc, objcopy) = (needs!(CC.find()), needs!(OBJCOPY.find()));
    let curl = needs!(CURL.find());
    let program = Program::build(&cc, &objcopy, ID);
    program.install("curl", &curl);
    let other = Program::build(&cc, &objcopy, &ID.replace('0', "f"));
    let server = Server::start(ID);
    program.fgraph(&server, &["record", "--", "./program"]);
    let long = [&program.debug[..], &[0; 1_000_000]].concat();
    let answers = [
        Answer::Missing,
        Answer::File(other.debug),
        Answer::File(b"\x7fELF and more".to_vec()),
        Answer::File(program.debug[..program.debug.len() / 3].to_vec()),
        Answer::File(long),
        Answer::Endless,
        Answer::Elsewhere("file:///proc/self/exe"),
    ];
    for (n, answer) in answers.into_iter().enumerate() {
        server.set(answer);
        let output = program.fgraph(&server, &["report", "--debuginfod"]);
        let shown = String::from_utf8(output.stdout).unwrap();
        assert!(
            shown.contains("program+0x") && !shown.contains("leaf"),
            "{n}: {shown}"
        );
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(ID), "{n}: {said}");
        assert_eq!(server.requests(), n + 1);
        assert!(!program.cached().exists(), "{n}");
    }
}

#[test]
fn files_of_elfutils_are_used_if_they_are_of_that_build() {
    let (cc, objcopy) = (needs!(CC.find()), needs!(OBJCOPY.find()));
    let program = Program::build(&cc, &objcopy, ID);
    let other = Program::build(&cc, &objcopy, &ID.replace('0', "f"));
    let server = Server::start(ID);
    let directory = program.directory.path();
    let (written, script) = (directory.join("written"), directory.join("script"));
    let text =
        format!("#!/bin/sh\n[ \"$*\" = 'debuginfo {ID}' ] && printf '%s\\n' \"$PWD/found\"\n");
    fs::write(&written, text).unwrap();
    fs::set_permissions(&written, fs::Permissions::from_mode(0o755)).unwrap();
    copy_program(written, &script);
    program.install("debuginfod-find", &script);
    program.fgraph(&server, &["record", "--", "./program"]);
    for (found, has_name) in [(&other.debug, false), (&program.debug, true)] {
        fs::write(directory.join("found"), found).unwrap();
        let shown = program.text(&server, &["report", "--debuginfod"]);
        assert_eq!(shown.contains("leaf"), has_name, "{shown}");
    }
    assert_eq!(server.requests(), 0);
}

#[test]
fn a_cache_that_others_can_change_is_not_used() {
    let (cc, objcopy) = (needs!(CC.find()), needs!(OBJCOPY.find()));
    let curl = needs!(CURL.find());
    let program = Program::build(&cc, &objcopy, ID);
    program.install("curl", &curl);
    let server = Server::start(ID);
    program.fgraph(&server, &["record", "--", "./program"]);
    let rights = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    let caches = program.directory.path().join("cache");
    // Users who cannot enter a directory change nothing below it.
    rights(program.directory.path(), 0o755);
    rights(&caches, 0o755);
    let planted = program.cached();
    fs::create_dir_all(&planted).unwrap();
    fs::write(planted.join("debuginfo"), &program.debug).unwrap();
    rights(planted.parent().unwrap(), 0o777);
    // Nobody has the file but that cache.
    let shown = program.text(&server, &["report", "--debuginfod"]);
    assert!(!shown.contains("leaf"), "{shown}");
    server.set(Answer::File(program.debug.clone()));
    let shown = program.text(&server, &["report", "--debuginfod"]);
    assert!(shown.contains("leaf"), "{shown}");
    let ours = caches.join("fgraph/debuginfod").join(ID).join("debuginfo");
    assert_eq!(fs::read(ours).unwrap(), program.debug);
    // Without any cache no server is asked.
    let requests = server.requests();
    rights(&caches, 0o777);
    let output = program.fgraph(&server, &["report", "--debuginfod"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("others can change the caches"), "{said}");
    assert_eq!(server.requests(), requests);
    // The cache of elfutils is used where only its owner can change it.
    rights(&caches, 0o755);
    rights(planted.parent().unwrap(), 0o755);
    let shown = program.text(&server, &["report", "--debuginfod"]);
    assert!(shown.contains("leaf"), "{shown}");
    assert_eq!(server.requests(), requests);
}
