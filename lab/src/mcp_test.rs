//! `cargo xtask mcp-test`: ten questions on a large recording, asked by the protocol's own client.
//!
//! The client is Python's, in an environment of its own below the target directory. Each answer is
//! compared with the command's `--json`.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use fgraph_chores::cargo;
use fgraph_chores::process::{bounded, compile, succeed};
use fgraph_needs::{CC, PYTHON};
use serde_json::Value;
use tempfile::TempDir;

/// Options of the command line.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// The number of calls of the recording, in millions
    #[arg(long, default_value_t = 10, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=100))]
    millions: u32,
    /// The command, in place of the one of this workspace
    #[arg(long, value_name = "PATH")]
    fgraph: Option<PathBuf>,
}

/// The longest time of an answer, in seconds.
const LIMIT: f64 = 2.0;

/// The longest time of all that is started here, in seconds.
const PATIENCE: u32 = 600;

/// The program: four threads, with 21 functions that are called.
const SOURCE: &str = r#"
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#define LEAF __attribute__((noinline, noclone))
volatile uint64_t sink;
#define FUNCTION(n) LEAF void leaf##n(uint64_t i) { for (int k = 0; k < n; k++) sink += i; }
FUNCTION(0) FUNCTION(1) FUNCTION(2) FUNCTION(3) FUNCTION(4) FUNCTION(5) FUNCTION(6) FUNCTION(7)
FUNCTION(8) FUNCTION(9) FUNCTION(10) FUNCTION(11) FUNCTION(12) FUNCTION(13) FUNCTION(14)
FUNCTION(15)
LEAF void slow(uint64_t i) { for (int k = 0; k < 20000; k++) sink += i; }
LEAF void parse(uint64_t i) { leaf0(i); leaf1(i); leaf2(i); leaf3(i); leaf4(i); }
LEAF void store(uint64_t i) { leaf5(i); leaf6(i); leaf7(i); leaf8(i); leaf9(i); leaf10(i);
    if (i % 10000 == 0) slow(i); }
LEAF void handle(uint64_t i) { parse(i); store(i); leaf11(i); leaf12(i); leaf13(i); leaf14(i);
    leaf15(i); sink += i; }
LEAF void *work(void *calls) {
    for (uint64_t i = 0; i < (uint64_t)calls / 19; i++) handle(i);
    return 0;
}
int main(int argc, char **argv) {
    uint64_t calls = strtoull(argv[argc - 1], 0, 10);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], 0, work, (void *)(calls / 4));
    for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
}
"#;

/// The client: it prints a line for each question.
const CLIENT: &str = r#"
import asyncio, json, subprocess, sys, time
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
fgraph, path = sys.argv[1:]
R = {"recording": path}
# A question: a tool, its arguments, and the command line with the same answer.
QUESTIONS = [
    ("info", R, ["info", path]),
    ("report", R, ["report", path]),
    ("report", {**R, "sort": "total", "by": "thread"},
        ["report", "--sort=total", "--by=thread", path]),
    ("report", {**R, "time_of": "cpu"}, ["report", "--time=cpu", path]),
    ("graph", {**R, "function": "handle"}, ["graph", "handle", path]),
    ("graph", {**R, "function": "leaf5", "depth": 5}, ["graph", "-D", "5", "leaf5", path]),
    ("outliers", {**R, "filters": ["store"], "limit": 2},
        ["outliers", "-F", "store", "-n", "3", path]),
    ("probe", {**R, "function": "slow", "actions": ["hist(duration)", "count by caller"]},
        ["probe", "-i", path, "slow", "hist(duration)", "count by caller"]),
    ("calls", {**R, "from": "50ms", "threshold": "10us", "limit": 5},
        ["replay", "--from=50ms", "-t", "10us", path]),
    ("diff", {"old": [path], "new": [path], "all": True, "limit": 5},
        ["diff", "--all", "-n", "6", path, path]),
]
ROWS = {"report": "lines", "outliers": "calls", "diff": "functions", "calls": "lines"}
def same(tool, view, command, limit):
    rows = ROWS.get(tool)
    if rows:
        command = {**command, rows: command[rows][:limit]}
    return view == command
async def main():
    async with Client(stdio_client(StdioServerParameters(command=fgraph, args=["mcp"]))) as client:
        for tool, arguments, words in QUESTIONS:
            begin = time.monotonic()
            answer = await client.call_tool(tool, arguments, read_timeout_seconds=120)
            took = time.monotonic() - begin
            limit = arguments.get("limit", 20)
            command = [fgraph, "--no-config", words[0], "--json", *words[1:]]
            if tool == "calls":
                process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
                lines = [json.loads(process.stdout.readline()) for _ in range(limit)]
                process.kill()
                expected = {"lines": lines}
            else:
                done = subprocess.run(command, capture_output=True, text=True)
                expected = json.loads(done.stdout)
            view = (answer.structured_content or {}).get("view")
            is_same = same(tool, view, expected, limit)
            size = len(answer.content[0].text)
            print(json.dumps({"tool": tool, "took": took, "same": is_same, "bytes": size,
                              "words": [word for word in words if word != path]}), flush=True)
asyncio.run(main())
"#;

pub(crate) fn run(options: &Options) -> io::Result<bool> {
    let (compiler, python) = match (CC.find(), client()) {
        (Ok(compiler), Ok(python)) => (compiler, python),
        (Err(missing), _) => {
            println!("skipped: {missing}");
            return Ok(true);
        }
        (_, Err(missing)) => {
            println!("skipped: {missing}");
            return Ok(true);
        }
    };
    let fgraph = cargo::fgraph(options.fgraph.as_deref())?;
    let directory = TempDir::with_prefix("fgraph-mcp-test-")?;
    let recording = record(options, &fgraph, &compiler, directory.path())?;
    let mut ask = bounded(PATIENCE, python);
    let ask = ask.args(["-c", CLIENT]).arg(fgraph).arg(recording);
    let mut all_well = true;
    println!("{:>8}  {:>7}  {:<6}  question", "seconds", "bytes", "same");
    for line in succeed(ask)?.lines() {
        let answer: Value = serde_json::from_str(line).map_err(io::Error::other)?;
        let took = answer["took"].as_f64().unwrap_or(f64::INFINITY);
        let is_same = answer["same"] == true;
        let words = answer["words"].as_array().into_iter().flatten();
        let words: Vec<&str> = words.filter_map(Value::as_str).collect();
        let verdict = if took <= LIMIT { "" } else { "  TOO SLOW" };
        let same = if is_same { "yes" } else { "NO" };
        let (bytes, words) = (&answer["bytes"], words.join(" "));
        println!("{took:>8.2}  {bytes:>7}  {same:<6}  {words}{verdict}");
        all_well &= is_same && took <= LIMIT;
    }
    Ok(all_well)
}

/// Returns the Python that has the client; or says how to get it.
fn client() -> Result<PathBuf, String> {
    let python = PYTHON.find().map_err(|missing| missing.to_string())?;
    let environment = cargo::target().join("mcp/venv");
    let own = environment.join("bin/python");
    let has_client = |python: &Path| {
        let mut import = Command::new(python);
        let import = import.args(["-c", "import mcp.client.client"]).output();
        import.is_ok_and(|output| output.status.success())
    };
    [own, python]
        .into_iter()
        .find(|python| has_client(python))
        .ok_or_else(|| {
            let root = cargo::workspace();
            let place = environment.strip_prefix(&root).unwrap_or(&environment);
            let place = place.display();
            format!(
                "no client of the protocol (python3 -m venv {place} && \
             {place}/bin/pip install 'mcp>=2')"
            )
        })
}

/// Records the program. Returns the path of the recording.
fn record(
    options: &Options,
    fgraph: &Path,
    compiler: &Path,
    directory: &Path,
) -> io::Result<PathBuf> {
    let program = compile(
        compiler,
        directory,
        ("large.c", SOURCE),
        &["-pthread", "-g"],
    )?;
    let recording = directory.join("large.data");
    let calls = u64::from(options.millions) * 1_000_000;
    let mut record = bounded(PATIENCE, fgraph);
    record
        .args(["--no-config", "record", "--quiet", "-o"])
        .arg(&recording);
    succeed(record.arg("--").arg(program).arg(calls.to_string()))?;
    let mut info = Command::new(fgraph);
    let info = succeed(info.args(["--no-config", "info", "--json"]).arg(&recording))?;
    let info: Value = serde_json::from_str(&info).map_err(io::Error::other)?;
    let megabytes = info["bytes"].as_u64().unwrap_or(0) >> 20;
    println!(
        "{} calls, {megabytes} MiB, lost {}",
        info["calls"], info["lost"]["events"]
    );
    Ok(recording)
}
