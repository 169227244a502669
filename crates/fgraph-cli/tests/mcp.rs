//! `fgraph mcp`, with a client of ours and with the protocol's own.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use fgraph_needs::{CC, GXX, MCP, PYTHON, needs};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::recording;

/// The time that an answer may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// A server and its client.
struct Client {
    server: Child,
    input: Option<ChildStdin>,
    messages: Receiver<Value>,
    next: u64,
    _directory: TempDir,
}

impl Client {
    /// Starts a server; `initialize` was not sent.
    fn start(options: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        let command = command
            .arg("mcp")
            .args(options)
            .current_dir(directory.path());
        // Recordings that are removed at the end are here meanwhile.
        let command = command.env("TMPDIR", directory.path());
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut server = command.spawn().unwrap();
        let (sender, messages) = channel();
        let output = BufReader::new(server.stdout.take().unwrap());
        thread::spawn(move || {
            for line in output.lines() {
                let message = serde_json::from_str(&line.unwrap()).unwrap();
                if sender.send(message).is_err() {
                    break;
                }
            }
        });
        Self {
            input: server.stdin.take(),
            server,
            messages,
            next: 0,
            _directory: directory,
        }
    }

    /// Starts a server that is ready for calls.
    fn ready(options: &[&str]) -> Self {
        let mut client = Self::start(options);
        let hello = json!({ "protocolVersion": "2025-06-18", "capabilities": {} });
        let answer = client.ask("initialize", hello);
        assert_eq!(answer["result"]["protocolVersion"], "2025-06-18");
        client.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
        client
    }

    fn write(&mut self, bytes: &[u8]) {
        let input = self.input.as_mut().unwrap();
        input.write_all(bytes).unwrap();
        input.flush().unwrap();
    }

    fn send(&mut self, message: &Value) {
        self.write(format!("{message}\n").as_bytes());
    }

    fn receive(&self) -> Value {
        self.messages.recv_timeout(PATIENCE).unwrap()
    }

    fn begin(&mut self, method: &str, params: Value) -> u64 {
        self.next += 1;
        let id = self.next;
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        id
    }

    fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.begin(method, params);
        let answer = self.receive();
        assert_eq!(answer["id"], id, "{answer}");
        answer
    }

    /// Returns the result of a tool.
    fn tool(&mut self, name: &str, arguments: Value) -> Value {
        let answer = self.ask(
            "tools/call",
            json!({ "name": name, "arguments": arguments }),
        );
        let result = &answer["result"];
        assert_eq!(result["isError"], false, "{answer}");
        let text = result["content"][0]["text"].as_str().unwrap();
        let view = &result["structuredContent"];
        assert_eq!(serde_json::from_str::<Value>(text).unwrap(), *view);
        view.clone()
    }

    /// Returns the error of a tool.
    fn refused(&mut self, name: &str, arguments: Value) -> String {
        let answer = self.ask(
            "tools/call",
            json!({ "name": name, "arguments": arguments }),
        );
        assert_eq!(answer["result"]["isError"], true, "{answer}");
        let text = answer["result"]["content"][0]["text"].as_str();
        text.unwrap().to_owned()
    }

    /// Closes the input, and waits for the end of the server.
    fn end(mut self) {
        drop(self.input.take());
        assert!(self.server.wait().unwrap().success());
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.server.wait();
    }
}

/// Returns a view of the command itself.
fn view(arguments: &[&str], path: &Path) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
    let output = command
        .args(arguments)
        .arg("--json")
        .arg(path)
        .output()
        .unwrap();
    assert!(output.status.success());
    serde_json::from_slice(&output.stdout).unwrap()
}

fn code(answer: &Value) -> i64 {
    answer["error"]["code"].as_i64().unwrap()
}

#[test]
fn views_are_those_of_the_command() {
    let (_directory, path) = recording();
    let mut client = Client::ready(&[]);
    let name = path.to_str().unwrap();
    for (tool, arguments) in [
        ("info", &["info"][..]),
        ("report", &["report"]),
        ("graph", &["graph", "parse"]),
        ("outliers", &["outliers", "-F", "read", "-n", "21"]),
    ] {
        let mut asked = json!({ "recording": name });
        match tool {
            "graph" => asked["function"] = "parse".into(),
            "outliers" => asked["filters"] = json!(["read"]),
            _ => {}
        }
        let answer = client.tool(tool, asked);
        assert_eq!(answer["view"], view(arguments, &path), "{tool}");
    }
    let functions = client.tool("functions", json!({ "file": "/bin/ls", "limit": 1 }));
    assert!(functions["view"]["traced"].is_u64(), "{functions}");
    let probed = client.tool(
        "probe",
        json!({ "recording": name, "function": "parse", "actions": ["count", "max(duration)"] }),
    );
    assert_eq!(probed["view"]["actions"][0]["rows"][0]["value"], 20);
    let diff = client.tool("diff", json!({ "old": [name], "new": [name], "all": true }));
    assert_eq!(diff["view"]["old_recordings"], 1, "{diff}");
    let calls = client.tool(
        "calls",
        json!({ "recording": name, "limit": 3, "offset": 39 }),
    );
    assert_eq!(calls["view"]["lines"].as_array().unwrap().len(), 3);
    client.end();
}

#[test]
fn rows_come_page_by_page() {
    let (_directory, path) = recording();
    let mut client = Client::ready(&[]);
    let mut names = Vec::new();
    let mut offset = Value::from(0);
    while offset.is_u64() {
        let asked = json!({
            "recording": path.to_str().unwrap(), "limit": 1, "offset": offset, "sort": "name",
        });
        let page = client.tool("report", asked);
        let lines = page["view"]["lines"].as_array().unwrap();
        assert_eq!((lines.len(), &page["rows"]["total"]), (1, &4.into()));
        names.push(lines[0]["name"].as_str().unwrap().to_owned());
        offset = page["rows"]["next_offset"].clone();
    }
    assert_eq!(names.len(), 4, "{names:?}");
    let asked = json!({ "recording": path.to_str().unwrap(), "filters": ["read"], "limit": 1 });
    let slowest = client.tool("outliers", asked);
    assert_eq!(slowest["rows"]["next_offset"], 1, "{slowest}");
    assert_eq!(slowest["rows"].get("total"), None, "{slowest}");
    client.end();
}

#[test]
fn a_recording_has_a_handle_for_other_tools() {
    let mut client = Client::ready(&[]);
    let asked = json!({
        "program": "sh", "args": ["-c", "echo said; exit 3"], "functions": ["libc:malloc"],
        "no_follow": true, "time": "1m",
    });
    let made = client.tool("record", asked);
    assert_eq!(
        (&made["recording"], &made["exit_code"]),
        (&"r1".into(), &3.into())
    );
    assert_eq!(
        (&made["output"], &made["ended"]),
        (&"said\n".into(), &"by itself".into())
    );
    let report = client.tool("report", json!({ "recording": "r1" }));
    assert_eq!(report["view"]["lines"][0]["name"], "malloc");
    let info = client.tool("info", json!({ "recording": "r1" }));
    assert_eq!(info["view"]["calls"], made["calls"]);
    let all = client.tool("recordings", json!({}));
    assert_eq!(all["view"]["recordings"][0]["recording"], "r1");
    client.tool("forget", json!({ "recording": "r1" }));
    let why = client.refused("report", json!({ "recording": "r1" }));
    assert!(why.starts_with("no recording 'r1'"), "{why}");
    assert!(!Path::new(made["path"].as_str().unwrap()).exists());
    client.end();
}

/// Compiles a program of `tests/record` with some compiler.
fn compile(compiler: &Path, arguments: &[&str], place: &Path) -> String {
    let mut compiler = Command::new(compiler);
    let status = compiler.args(arguments).arg("-o").arg(place).status();
    assert!(status.unwrap().success(), "{arguments:?}");
    place.to_str().unwrap().to_owned()
}

#[test]
fn slow_calls_of_a_recording_with_waits_are_explained() {
    let directory = tempfile::tempdir().unwrap();
    let source = ["-g", "-O1", "-pthread", "tests/record/slow.c"];
    let program = compile(&needs!(CC.find()), &source, &directory.path().join("slow"));
    let mut client = Client::ready(&[]);
    let asked =
        json!({ "program": program, "args": ["lock", "stay"], "waits": true, "time": "2m" });
    let made = client.tool("record", asked);
    assert_eq!(made["exit_code"], 0, "{made}");
    let asked = json!({ "recording": "r1", "function": "handle", "slowest": "5%", "limit": 1 });
    let why = client.tool("why", asked);
    let line = &why["view"]["lines"][0];
    assert_eq!(
        (&line["cause"], &line["path"][1]),
        (&"lock".into(), &"cache_get".into()),
        "{why}"
    );
    assert_eq!(line["until"]["thread"]["name"], "flusher", "{why}");
    let asked = json!({ "recording": "r1", "function": "handle", "call": 1 });
    let one = client.tool("why", asked);
    let steps = one["view"]["steps"].as_array().unwrap();
    assert!(steps.iter().any(|step| step["cause"] == "lock"), "{one}");
    let refused = client.refused("why", json!({ "recording": "r1" }));
    assert_eq!(refused, "why takes function or requests");
    let refused = client.refused("why", json!({ "recording": "r1", "function": "absent" }));
    assert!(refused.contains("matches 'absent'"), "{refused}");
    client.end();
}

#[test]
fn tasks_of_a_recording_made_for_them_are_shown() {
    let directory = tempfile::tempdir().unwrap();
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let source = [
        "--crate-name",
        "tokio",
        "--edition",
        "2024",
        "-O",
        "tests/record/tasks.rs",
    ];
    let program = compile(Path::new(&rustc), &source, &directory.path().join("tasks"));
    let mut client = Client::ready(&[]);
    client.tool(
        "record",
        json!({ "program": program, "tasks": true, "time": "2m" }),
    );
    let first = client.tool("tasks", json!({ "recording": "r1", "limit": 1 }));
    let kind = &first["view"]["kinds"][0];
    assert_eq!(
        (&kind["name"], &kind["blocking"]),
        (&"resize_image".into(), &1.into())
    );
    assert_eq!(
        (
            &first["rows"]["next_offset"],
            kind["longest"]["path"][0].as_str()
        ),
        (&1.into(), Some("resize_image")),
        "{first}"
    );
    let asked = json!({ "recording": "r1", "limit": 1, "offset": 1, "longest": "1h" });
    let second = client.tool("tasks", asked);
    assert_eq!(second["view"]["kinds"][0]["name"], "quick", "{second}");
    assert_eq!(second["rows"]["total"], 2, "{second}");
    let why = client.refused("tasks", json!({ "recording": "r1", "longest": "long" }));
    assert!(why.contains("a time is a number"), "{why}");
    // Its allocator is recorded, but not what a view of blocks needs.
    let asked = json!({
        "program": "sh", "args": ["-c", "exit"], "functions": ["libc:malloc"], "time": "2m",
    });
    client.tool("record", asked);
    let why = client.refused("tasks", json!({ "recording": "r2" }));
    assert!(why.contains("no task was polled"), "{why}");
    let why = client.refused("heap", json!({ "recording": "r2" }));
    assert!(why.contains("with --heap"), "{why}");
    client.end();
}

#[test]
fn blocks_of_a_recording_made_for_them_are_shown() {
    let directory = tempfile::tempdir().unwrap();
    let source = [
        "-g",
        "-O1",
        "-fno-builtin",
        "-pthread",
        "tests/record/heap.cpp",
    ];
    let program = compile(
        &needs!(GXX.find()),
        &source,
        &directory.path().join("program"),
    );
    let mut client = Client::ready(&[]);
    client.tool(
        "record",
        json!({ "program": program, "heap": true, "time": "2m" }),
    );
    let all = client.tool("heap", json!({ "recording": "r1", "sort": "allocated" }));
    let paths = all["view"]["paths"].as_array().unwrap();
    assert!(paths.len() > 2, "{all}");
    assert_eq!(
        (&all["rows"]["total"], &all["view"]["more"]),
        (&paths.len().into(), &0.into())
    );
    let asked = json!({ "recording": "r1", "sort": "allocated", "limit": 1, "offset": 1 });
    let page = client.tool("heap", asked);
    assert_eq!(page["view"]["paths"], json!(paths[1..2]), "{page}");
    assert_eq!(
        (&page["rows"]["total"], &page["view"]["more"]),
        (&paths.len().into(), &(paths.len() - 2).into()),
        "{page}"
    );
    let asked = json!({ "recording": "r1", "by_function": true });
    let functions = client.tool("heap", asked);
    let paths = functions["view"]["paths"].as_array().unwrap().iter();
    let calls = paths.map(|path| path["calls"].as_array().unwrap().len());
    assert!(calls.max() == Some(1), "{functions}");
    client.end();
}

#[test]
fn a_process_is_recorded_for_a_time_and_goes_on() {
    let mut client = Client::ready(&["--max-time", "5s"]);
    let mut process = Command::new("sh")
        .args(["-c", "while read line; do :; done"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let asked = json!({ "pid": process.id(), "time": "200ms", "functions": ["libc:*"] });
    let made = client.ask(
        "tools/call",
        json!({ "name": "attach", "arguments": asked }),
    );
    let is_running = process.try_wait().unwrap().is_none();
    drop(process.stdin.take());
    assert!(is_running && process.wait().unwrap().code().is_some());
    let text = made["result"]["content"][0]["text"].as_str().unwrap();
    // A kernel may allow processes to trace only their children.
    if made["result"]["isError"] == true {
        assert!(text.contains("cannot be recorded"), "{text}");
    } else {
        assert_eq!(made["result"]["structuredContent"]["recording"], "r1");
    }
    let why = client.refused("attach", json!({ "pid": 1, "time": "6s" }));
    assert!(why.contains("at most 5.000 s"), "{why}");
    client.end();
}

#[test]
fn a_program_is_ended_at_the_time_limit_and_by_cancelling() {
    let mut client = Client::ready(&[]);
    let asked = json!({
        "program": "sleep", "args": ["1000"], "functions": ["libc:malloc"], "time": "1s",
    });
    let made = client.tool("record", asked.clone());
    assert_eq!(
        (&made["ended"], &made["signal"]),
        (&"at the time limit".into(), &15.into())
    );
    let mut asked = asked;
    asked["time"] = "10m".into();
    let call = json!({
        "name": "record", "arguments": asked, "_meta": { "progressToken": "p" },
    });
    let id = client.begin("tools/call", call);
    let progress = client.receive();
    assert_eq!(progress["method"], "notifications/progress", "{progress}");
    assert_eq!(progress["params"]["progressToken"], "p");
    client.send(&json!({
        "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": id },
    }));
    // There is no answer to it, and the recording is there by and by.
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        let answer = client.ask_past_progress(
            "tools/call",
            json!({
                "name": "info", "arguments": { "recording": "r2" },
            }),
        );
        if answer["result"]["isError"] == false
            && answer["result"]["structuredContent"]
                .get("messages")
                .is_none()
        {
            return client.end();
        }
        thread::sleep(Duration::from_millis(50));
    }
    panic!("the recording of a cancelled call has no end");
}

impl Client {
    /// Asks, and passes over messages about progress.
    fn ask_past_progress(&mut self, method: &str, params: Value) -> Value {
        let id = self.begin(method, params);
        loop {
            let answer = self.receive();
            if answer["method"] == "notifications/progress" {
                continue;
            }
            assert_eq!(answer["id"], id, "{answer}");
            return answer;
        }
    }
}

#[test]
fn the_end_of_the_input_ends_programs() {
    let mut client = Client::ready(&[]);
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("pid");
    let script = format!("echo $$ > {}; exec sleep 1000", file.display());
    let asked = json!({
        "program": "sh", "args": ["-c", script], "functions": ["libc:malloc"], "time": "10m",
    });
    client.begin(
        "tools/call",
        json!({ "name": "record", "arguments": asked }),
    );
    let began = Instant::now();
    let pid = loop {
        let text = fs::read_to_string(&file).unwrap_or_default();
        if text.ends_with('\n') {
            break text.trim().to_owned();
        }
        assert!(began.elapsed() < PATIENCE);
        thread::sleep(Duration::from_millis(10));
    };
    client.end();
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
}

#[test]
fn functions_are_changed_only_if_the_server_allows_it() {
    let mut client = Client::ready(&[]);
    let names = |client: &mut Client| {
        let tools = client.ask("tools/list", json!({}));
        let tools = tools["result"]["tools"].as_array().unwrap().iter();
        let names: Vec<String> = tools
            .map(|it| it["name"].as_str().unwrap().to_owned())
            .collect();
        names
    };
    assert!(!names(&mut client).contains(&"inject".to_owned()));
    let asked = json!({ "function": "libc:read", "how": ["errno=EIO"], "program": "true" });
    let answer = client.ask(
        "tools/call",
        json!({ "name": "inject", "arguments": asked }),
    );
    assert_eq!(code(&answer), -32602);
    assert!(
        answer["error"]["message"]
            .as_str()
            .unwrap()
            .contains("--allow-inject")
    );
    client.end();
    let mut client = Client::ready(&["--allow-inject"]);
    assert!(names(&mut client).contains(&"inject".to_owned()));
    let asked = json!({
        "function": "libc:fputs", "how": ["delay=1us"], "program": "true", "time": "1m",
    });
    let answer = client.tool("inject", asked);
    assert_eq!(answer["exit_code"], 0, "{answer}");
    client.end();
}

#[test]
fn rubbish_is_answered_with_errors_and_the_server_goes_on() {
    let mut client = Client::start(&[]);
    let before = client.ask("tools/list", json!({}));
    assert_eq!(code(&before), -32600);
    assert!(client.ask("ping", json!({}))["result"].is_object());
    for (bytes, expected) in [
        (&b"not JSON\n"[..], -32700),
        (b"\xff\xfe\n", -32700),
        (b"{\"jsonrpc\": \"2.0\", \"id\": 1\n", -32700),
        (b"[]\n", -32600),
        (
            b"[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}]\n",
            -32600,
        ),
        (b"{\"id\":1,\"method\":\"ping\"}\n", -32600),
        (
            b"{\"jsonrpc\":\"2.0\",\"id\":null,\"method\":\"ping\"}\n",
            -32600,
        ),
        (
            b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"none\"}\n",
            -32601,
        ),
        (
            b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"initialize\"}\n",
            -32602,
        ),
        (
            b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"params\":[]}\n",
            -32602,
        ),
    ] {
        client.write(bytes);
        let answer = client.receive();
        assert_eq!(
            code(&answer),
            expected,
            "{}",
            String::from_utf8_lossy(bytes)
        );
    }
    let mut long = vec![b'['; 5 << 20];
    long.push(b'\n');
    client.write(&long);
    assert_eq!(code(&client.receive()), -32700);
    // These want no answer.
    client.write(b"\n\r\n{\"jsonrpc\":\"2.0\",\"method\":\"notifications/none\"}\n");
    client.write(b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\",\"params\":{}}\n");
    client.write(b"{\"jsonrpc\":\"2.0\",\"id\":9,\"result\":{}}\n");
    let hello = json!({ "protocolVersion": "1999-01-01", "capabilities": {} });
    let answer = client.ask("initialize", hello);
    assert_eq!(answer["result"]["protocolVersion"], "2025-11-25");
    for params in [
        json!({}),
        json!({ "name": 7 }),
        json!({ "name": "none" }),
        json!({ "name": "report", "arguments": [] }),
    ] {
        assert_eq!(code(&client.ask("tools/call", params)), -32602);
    }
    for (tool, arguments, part) in [
        ("report", json!({}), "report takes recording"),
        ("report", json!({ "recording": 7 }), "recording is a text"),
        (
            "report",
            json!({ "recording": "/etc/passwd" }),
            "/etc/passwd",
        ),
        (
            "report",
            json!({ "recording": "/nowhere" }),
            "no recording '/nowhere'",
        ),
        (
            "report",
            json!({ "recording": "/bin/ls", "limit": 0 }),
            "limit is an integer",
        ),
        (
            "report",
            json!({ "recording": "/bin/ls", "output": "x" }),
            "no argument 'output'",
        ),
        ("record", json!({ "program": "/nowhere/none" }), "none"),
        (
            "record",
            json!({ "program": "ls", "time": "1" }),
            "a time is a number",
        ),
        (
            "record",
            json!({ "program": "ls", "cwd": "/nowhere" }),
            "no directory /nowhere",
        ),
        (
            "record",
            json!({ "program": "ls", "functions": ["\""] }),
            "error",
        ),
        ("attach", json!({ "pid": -1 }), "pid is an integer"),
        (
            "attach",
            json!({ "pid": 4_000_000_000_u64 }),
            "cannot be recorded",
        ),
        (
            "probe",
            json!({ "function": "f", "actions": ["count"] }),
            "takes pid or program",
        ),
        (
            "probe",
            json!({ "function": "--help", "actions": ["count"], "pid": 1 }),
            "must not begin with '-'",
        ),
        ("locks", json!({ "pid": 1, "program": "ls" }), "not both"),
        ("functions", json!({ "file": "--help" }), "--help"),
    ] {
        let why = client.refused(tool, arguments.clone());
        assert!(why.contains(part), "{tool} {arguments}: {why}");
    }
    assert_eq!(client.tool("recordings", json!({}))["rows"]["total"], 0);
    client.end();
}

#[test]
fn requests_may_name_their_version_instead_of_a_handshake() {
    let mut client = Client::start(&[]);
    let meta = |version: &str| {
        json!({
            "io.modelcontextprotocol/protocolVersion": version,
            "io.modelcontextprotocol/clientCapabilities": {},
        })
    };
    let found = client.ask("server/discover", json!({ "_meta": meta("2026-07-28") }));
    let versions = found["result"]["supportedVersions"].as_array().unwrap();
    assert!(versions.contains(&"2026-07-28".into()));
    let tools = client.ask("tools/list", json!({ "_meta": meta("2026-07-28") }));
    assert_eq!(tools["result"]["resultType"], "complete");
    let other = client.ask("tools/list", json!({ "_meta": meta("2099-01-01") }));
    assert_eq!(code(&other), -32022);
    client.end();
}

#[test]
fn recordings_in_a_named_directory_stay() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("new");
    let options = ["--dir", directory.to_str().unwrap()];
    let mut client = Client::ready(&options);
    let asked = json!({ "program": "true", "functions": ["libc:*alloc"], "time": "1m" });
    client.tool("record", asked);
    client.end();
    let mut client = Client::ready(&options);
    let info = client.tool("info", json!({ "recording": "r1" }));
    assert_eq!(info["view"]["command"], json!(["true"]));
    client.end();
}

#[test]
fn a_client_that_reads_no_more_ends_the_server() {
    let mut client = Client::ready(&[]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
    let command = command
        .arg("mcp")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut server = command.spawn().unwrap();
    drop(server.stdout.take());
    let input = server.stdin.as_mut().unwrap();
    input
        .write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n")
        .unwrap();
    assert!(server.wait().unwrap().success());
    // SAFETY: a system call. The process is a child, and was not waited for.
    let sent = unsafe { libc::kill(client.server.id() as i32, libc::SIGTERM) };
    assert_eq!(sent, 0);
    assert!(client.server.wait().unwrap().success());
    let end = client.messages.recv_timeout(PATIENCE);
    assert_eq!(end, Err(RecvTimeoutError::Disconnected));
}

#[test]
fn the_protocols_own_client_gets_the_answers() {
    let python = needs!(PYTHON.find());
    needs!(MCP.import());
    let (_directory, path) = recording();
    let script = r#"
import asyncio, json, sys
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
fgraph, path = sys.argv[1:]
async def main():
    for mode in "auto", "legacy":
        server = StdioServerParameters(command=fgraph, args=["mcp"])
        async with Client(stdio_client(server), mode=mode) as client:
            tools = await client.list_tools()
            assert "report" in [tool.name for tool in tools.tools]
            answer = await client.call_tool("report", {"recording": path})
            assert not answer.is_error, answer
            wrong = await client.call_tool("report", {"recording": "none"})
            assert wrong.is_error, wrong
            print(json.dumps(answer.structured_content["view"]))
asyncio.run(main())
"#;
    let mut command = Command::new(python);
    let command = command
        .args(["-c", script, env!("CARGO_BIN_EXE_fgraph")])
        .arg(&path);
    let mut client = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut text = String::new();
    client
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    assert!(client.wait().unwrap().success());
    let answers: Vec<Value> = text
        .lines()
        .map(|it| serde_json::from_str(it).unwrap())
        .collect();
    let expected = view(&["report"], &path);
    assert_eq!(answers, [expected.clone(), expected]);
}
