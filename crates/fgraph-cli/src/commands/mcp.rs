//! `fgraph mcp`: a server of the Model Context Protocol on standard input and output.
//!
//! A message is a line. The main thread reads them; each call of a tool has a thread, which runs
//! this command as a child.

mod answer;
mod call;
mod child;
mod lines;
mod message;
mod recordings;
mod tool;
mod tools;

use std::collections::HashMap;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Scope};
use std::time::Duration;

use serde_json::{Map, Value, json};

use self::call::Caller;
use self::child::Stop;
use self::lines::{LONGEST, Lines, Next};
use self::message::{Era, Failure, Message, negotiated, versions};
use self::recordings::Recordings;
use self::tool::{Does, Tool};
use self::tools::TOOLS;
use crate::error::Error;
use crate::input::parse_time;
use crate::json;
use crate::launch::interrupt::Interrupts;
use crate::text::{escaped, size};

const HELP: &str = "\
Examples:
  fgraph mcp
  fgraph mcp --dir recordings --max-time 1m

A client starts it. Most clients have a file of servers, to which this is added:
  { \"mcpServers\": { \"fgraph\": { \"command\": \"fgraph\", \"args\": [\"mcp\"] } } }

Tools: record, attach, recordings, forget, info, report, graph, outliers, calls, why, diff, tasks,
heap, functions, probe, locks; with --allow-inject also inject. A client that may use it can run
programs, and trace processes, with the rights of the user who has started it: docs/security.md.";

/// Serve recordings and live processes to programs that speak the Model Context Protocol
///
/// Messages come on standard input and go to standard output, until the input ends. A recording
/// that a client makes has a handle, such as r1, which other tools take; they also take paths.
/// Each answer is a part of a view's --json, with the way to get more. The file of defaults does
/// not apply to tools.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    /// Keep recordings in this directory, and serve those that are there; without it they are
    /// removed at the end
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// The longest time that a client may record or trace in one call, as 30s or 10m
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "10m")]
    max_time: Duration,
    /// Also let clients make calls fail in programs and processes
    #[arg(long)]
    allow_inject: bool,
}

/// The most calls of tools that run at the same time.
const MOST_RUNNING: usize = 8;
/// The time between two messages about progress.
const PROGRESS: Duration = Duration::from_secs(1);

const INSTRUCTIONS: &str = "\
fgraph records every call of a program's functions, without recompiling it. Use `record` to run a \
program, or `attach` for a running process; both return a handle such as r1. Then ask `report` \
(where the time went), `graph` (callers and callees of a function), `outliers` (the slowest \
calls), `why` (why some calls are slow), `calls` (single calls), `probe` (counts and histograms). \
`functions` lists what can be recorded. Times are in nanoseconds. Answers are cut: `rows` says how \
many rows there are, and `next_offset` continues; `cut` lists shortened lists.";

/// Serves a client until the input ends.
pub(crate) fn run(args: &Args) -> Result<(), Error> {
    let recordings = Recordings::open(args.dir.as_deref());
    let recordings = recordings.map_err(|error| match args.dir.clone() {
        Some(path) => Error::Write { path, error },
        None => Error::temporary(&error),
    })?;
    let failed = |error| Error::Input {
        path: "the input".into(),
        error,
    };
    let mut lines = Lines::of_input().map_err(failed)?;
    let interrupts = Interrupts::catch();
    let server = Server {
        caller: Caller::new(recordings, args.max_time),
        allows_inject: args.allow_inject,
        is_open: AtomicBool::new(false),
        is_closed: AtomicBool::new(false),
        running: Mutex::default(),
        output: Mutex::new(io::stdout()),
    };
    let ended = thread::scope(|scope| {
        let ended = loop {
            match lines.next(|| interrupts.count() > 0 || server.is_closed()) {
                Ok(Next::Line(line)) => server.receive(&line, scope),
                Ok(Next::TooLong) => {
                    let why = format!("a line is longer than {}", size(LONGEST as u64));
                    server.send(&Failure::parse_error(why).answer(&Value::Null));
                }
                Ok(Next::End) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        server.stop();
        ended
    });
    ended.map_err(failed)
}

/// The state of the server.
#[derive(Debug)]
struct Server {
    caller: Caller,
    allows_inject: bool,
    /// True after `initialize`. Relaxed, as is the next one: no other data depends on them.
    is_open: AtomicBool,
    /// True if the client reads no more.
    is_closed: AtomicBool,
    /// The calls of tools that run, by the JSON of their ids.
    running: Mutex<HashMap<String, Arc<Stop>>>,
    output: Mutex<io::Stdout>,
}

impl Server {
    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    fn running(&self) -> MutexGuard<'_, HashMap<String, Arc<Stop>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends all calls.
    fn stop(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        self.running().values().for_each(|call| call.set());
    }

    /// Writes a message.
    fn send(&self, message: &Value) {
        let mut line = json::line(message);
        line.push('\n');
        let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        let written = output.write_all(line.as_bytes());
        if written.and_then(|()| output.flush()).is_err() {
            self.is_closed.store(true, Ordering::Relaxed);
        }
    }

    fn receive<'a>(&'a self, line: &[u8], scope: &'a Scope<'a, '_>) {
        match Message::parse(line) {
            Ok(Message::Request { id, method, params }) => {
                if let Err(failure) = self.request(&id, &method, params, scope) {
                    self.send(&failure.answer(&id));
                }
            }
            Ok(Message::Notification { method, params }) => {
                if method == "notifications/cancelled"
                    && let Some(id) = params.get("requestId")
                    // A request that is cancelled has no answer.
                    && let Some(call) = self.running().remove(&id.to_string())
                {
                    call.set();
                }
            }
            Ok(Message::Answer) => {}
            Err((id, failure)) => self.send(&failure.answer(&id)),
        }
    }

    /// Answers a request, now or later.
    fn request<'a>(
        &'a self,
        id: &Value,
        method: &str,
        params: Map<String, Value>,
        scope: &'a Scope<'a, '_>,
    ) -> Result<(), Failure> {
        let era = Era::of(&params)?;
        let answer = |result, is_lasting| self.send(&era.answer(id, result, is_lasting));
        match method {
            "ping" => answer(json!({}), false),
            "initialize" => {
                let version = negotiated(&params)?;
                self.is_open.store(true, Ordering::Relaxed);
                let result = json!({
                    "protocolVersion": version,
                    "capabilities": { "tools": {} },
                    "serverInfo": identity(),
                    "instructions": INSTRUCTIONS,
                });
                answer(result, false);
            }
            "server/discover" => {
                let versions: Vec<&str> = versions().collect();
                let result = json!({
                    "supportedVersions": versions,
                    "capabilities": { "tools": {} },
                    "instructions": INSTRUCTIONS,
                    "_meta": { "io.modelcontextprotocol/serverInfo": identity() },
                });
                self.send(&Era::NoHandshake.answer(id, result, true));
            }
            "tools/list" | "tools/call"
                if era == Era::Handshake && !self.is_open.load(Ordering::Relaxed) =>
            {
                return Err(Failure::invalid_request("send initialize first"));
            }
            "tools/list" => {
                let tools: Vec<Value> = self.tools().map(Tool::describe).collect();
                answer(json!({ "tools": tools }), true);
            }
            "tools/call" => return self.start(id, era, params, scope),
            _ => return Err(Failure::unknown_method(method)),
        }
        Ok(())
    }

    fn tools(&self) -> impl Iterator<Item = &'static Tool> {
        let allows = self.allows_inject;
        let is_allowed = move |tool: &&Tool| allows || !matches!(tool.does, Does::Inject);
        TOOLS.iter().filter(is_allowed)
    }

    /// Starts the thread of a call.
    fn start<'a>(
        &'a self,
        id: &Value,
        era: Era,
        mut params: Map<String, Value>,
        scope: &'a Scope<'a, '_>,
    ) -> Result<(), Failure> {
        let Some(Value::String(name)) = params.remove("name") else {
            return Err(Failure::invalid_params(
                "tools/call takes the name of a tool",
            ));
        };
        let Some(tool) = self.tools().find(|tool| tool.name == name) else {
            let is_left_out = TOOLS.iter().any(|tool| tool.name == name);
            return Err(Failure::invalid_params(match is_left_out {
                true => format!("{name} takes a server with --allow-inject"),
                false => format!("there is no tool '{}'", escaped(&name)),
            }));
        };
        let arguments = match params.remove("arguments") {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(arguments)) => arguments,
            Some(_) => return Err(Failure::invalid_params("arguments must be an object")),
        };
        let token = params
            .get("_meta")
            .and_then(|meta| meta.get("progressToken"));
        let token = token
            .filter(|token| token.is_string() || token.is_number())
            .cloned();
        let (key, call) = (id.to_string(), Arc::new(Stop::default()));
        {
            let mut running = self.running();
            if running.contains_key(&key) {
                return Err(Failure::invalid_request(
                    "a request with this id runs already",
                ));
            }
            if running.len() >= MOST_RUNNING {
                let why = format!("{MOST_RUNNING} calls run already: wait for one");
                return Err(Failure::busy(why));
            }
            running.insert(key.clone(), Arc::clone(&call));
        }
        let id = id.clone();
        scope.spawn(move || {
            let mut said = Duration::ZERO;
            let mut tick = |passed: Duration, limit: Duration| {
                let Some(token) = token.as_ref().filter(|_| passed - said >= PROGRESS) else {
                    return;
                };
                said = passed;
                self.send(&progress(token, passed, limit));
            };
            let result = self.caller.call(tool, &arguments, &call, &mut tick);
            // It is not there if it was cancelled; its id may be another call's by now.
            let mut running = self.running();
            let is_wanted = running.get(&key).is_some_and(|it| Arc::ptr_eq(it, &call));
            if is_wanted {
                running.remove(&key);
            }
            drop(running);
            if is_wanted {
                self.send(&era.answer(&id, tool_result(result), false));
            }
        });
        Ok(())
    }
}

fn identity() -> Value {
    json!({ "name": "fgraph", "version": env!("CARGO_PKG_VERSION") })
}

fn progress(token: &Value, passed: Duration, limit: Duration) -> Value {
    json!({
        "jsonrpc": "2.0",
        "method": "notifications/progress",
        "params": {
            "progressToken": token,
            "progress": passed.as_secs_f64(),
            "total": limit.as_secs_f64().max(passed.as_secs_f64()),
        },
    })
}

/// Returns the result of a call: for the model as text, and for programs as an object.
fn tool_result(result: Result<Value, String>) -> Value {
    match result {
        Ok(view) => json!({
            "content": [{ "type": "text", "text": json::line(&view) }],
            "structuredContent": view,
            "isError": false,
        }),
        Err(why) => json!({
            "content": [{ "type": "text", "text": why }],
            "isError": true,
        }),
    }
}
