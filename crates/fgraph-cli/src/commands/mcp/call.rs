//! Runs a tool, and makes its answer.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::answer::{self, Page};
use super::child::{Done, EndBy, Ended, Keep, Stop, Work};
use super::recordings::Recordings;
use super::tool::{Does, Line, Tool, View};
use super::tools::ROWS;
use crate::input::nanoseconds;
use crate::text::{size, time};

/// The time that a view may take.
const VIEW_TIME: Duration = Duration::from_secs(60);
/// The most bytes that a view may write.
const VIEW_BYTES: usize = 64 << 20;
/// The bytes of a program's output that an answer has.
const OUTPUT: usize = 4 << 10;
/// The most lines of messages, and the longest.
const MESSAGES: usize = 20;
const MESSAGE: usize = 500;
/// The time limit unless a client gives one.
const TIME: Duration = Duration::from_secs(10);
/// The size limit of a recording unless a client gives one.
const MAX_SIZE: &str = "--max-size=256M";

/// The views that were asked for last, each with the command line and the state of its files.
type Seen = Vec<(Question, Arc<Value>)>;
/// The most of them.
const SEEN: usize = 8;
/// The longest one, in bytes.
const SEEN_BYTES: usize = 4 << 20;

/// A command line, and the state of the files that it reads.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Question {
    arguments: Vec<OsString>,
    /// File, size and time of the last change of each recording.
    files: Vec<(u64, u64, i64, i64)>,
}

/// Runs tools.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) recordings: Recordings,
    /// The longest time limit.
    pub(super) most_time: Duration,
    seen: Mutex<Seen>,
}

/// Called now and then while a tool runs, with its time and its time limit.
pub(super) type Tick<'a> = &'a mut dyn FnMut(Duration, Duration);

impl Caller {
    pub(super) fn new(recordings: Recordings, most_time: Duration) -> Self {
        Self {
            recordings,
            most_time,
            seen: Mutex::default(),
        }
    }

    /// Runs a tool; returns its answer, or the error for the client's model to read.
    pub(super) fn call(
        &self,
        tool: &Tool,
        values: &Map<String, Value>,
        stop: &Stop,
        tick: Tick<'_>,
    ) -> Result<Value, String> {
        let has = |name: &str| values.get(name).is_some_and(|value| !value.is_null());
        if tool.name == "why" && !has("function") && !has("requests") {
            return Err("why takes function or requests".to_owned());
        }
        let line = tool.line(values, |text| self.recordings.find(text))?;
        let page = Page {
            offset: line.number("offset").unwrap_or(0) as usize,
            limit: line.number("limit").unwrap_or(ROWS) as usize,
        };
        match tool.does {
            Does::List => {
                let list = self.recordings.list();
                Ok(answer::page(&list, &["recordings"], page).into())
            }
            Does::Forget => {
                let handle = line.value("recording").unwrap_or_default();
                self.recordings.forget(handle)?;
                Ok(json!({ "forgotten": handle }))
            }
            Does::Lines(command) => self.lines(command, &line, page, stop),
            Does::View(view) => {
                let has_process = tool.has("program");
                match !has_process || !line.recordings.is_empty() {
                    true => self.view(view, &line, page, stop),
                    false => {
                        let options = options(view, page);
                        let done =
                            self.watch(tool, values, &line, view.command, &options, stop, tick)?;
                        let seen = last_view(&done).ok_or_else(|| failed(view.command, &done))?;
                        let mut fields = shown(&seen, view, page);
                        add_end(&mut fields, &done);
                        Ok(fields.into())
                    }
                }
            }
            Does::Record => self.record(tool, values, &line, stop, tick),
            Does::Inject => {
                let is_campaign = values.get("campaign") == Some(&Value::Bool(true));
                let json = ["--json".to_owned()];
                let options = if is_campaign { &json[..] } else { &[] };
                let done = self.watch(tool, values, &line, "inject", options, stop, tick)?;
                let mut fields = match last_view(&done).filter(|_| is_campaign) {
                    Some(view) => answer::page(&view, &["runs"], page),
                    None => Map::new(),
                };
                add_end(&mut fields, &done);
                Ok(fields.into())
            }
        }
    }

    /// Shows a view of files.
    fn view(&self, view: View, line: &Line, page: Page, stop: &Stop) -> Result<Value, String> {
        let arguments = line.arguments(view.command, &options(view, page));
        let question = Question {
            files: line.recordings.iter().map(state_of).collect(),
            arguments,
        };
        let known = self.seen(&question);
        if let Some(known) = known.filter(|_| !line.recordings.is_empty()) {
            return Ok(shown(&known, view, page).into());
        }
        let done = run(question.arguments.clone(), Keep::All(VIEW_BYTES), stop)?;
        if done.ended == Ended::Full {
            return Err(format!(
                "{} has more than {} to show: choose less, by filters, from, to or threads",
                view.command,
                size(VIEW_BYTES as u64)
            ));
        }
        let found = last_view(&done).ok_or_else(|| failed(view.command, &done))?;
        let found = Arc::new(found);
        // Each answer says again what is cut off, damaged or lost.
        if done.status.success() && done.said.is_empty() && done.output.len() <= SEEN_BYTES {
            self.keep(question, &found);
        }
        let mut fields = shown(&found, view, page);
        add_messages(&mut fields, &done);
        Ok(fields.into())
    }

    fn seen(&self, question: &Question) -> Option<Arc<Value>> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let at = seen.iter().position(|(known, _)| known == question)?;
        let known = seen.remove(at);
        let view = Arc::clone(&known.1);
        seen.push(known);
        Some(view)
    }

    fn keep(&self, question: Question, view: &Arc<Value>) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() == SEEN {
            seen.remove(0);
        }
        seen.push((question, Arc::clone(view)));
    }

    /// Shows lines of a view that has one object on each.
    fn lines(&self, command: &str, line: &Line, page: Page, stop: &Stop) -> Result<Value, String> {
        let arguments = line.arguments(command, &["--json".to_owned()]);
        let last = page.offset.saturating_add(page.limit);
        let done = run(arguments, Keep::Lines(last, VIEW_BYTES), stop)?;
        let lines = done.output.split(|byte| *byte == b'\n');
        let lines: Vec<Value> = lines
            .map_while(|line| serde_json::from_slice(line).ok())
            .take(last + 1)
            .collect();
        if lines.is_empty() && !done.status.success() && done.ended == Ended::Itself {
            return Err(failed(command, &done));
        }
        let is_all = lines.len() <= last && done.ended == Ended::Itself;
        let mut fields = answer::page(&json!({ "lines": lines }), &["lines"], page);
        if !is_all {
            leave_out_total(&mut fields);
        }
        add_messages(&mut fields, &done);
        Ok(fields.into())
    }

    /// Runs a subcommand with a program or a process.
    #[allow(clippy::too_many_arguments, reason = "they are those of the call")]
    fn watch(
        &self,
        tool: &Tool,
        values: &Map<String, Value>,
        line: &Line,
        command: &str,
        options: &[String],
        stop: &Stop,
        tick: Tick<'_>,
    ) -> Result<Done, String> {
        let has = |name: &str| values.get(name).is_some_and(|value| !value.is_null());
        match (has("pid"), has("program")) {
            (true, true) => return Err("give pid or program, not both".to_owned()),
            (false, false) if tool.has("program") && tool.has("pid") => {
                return Err(format!("{} takes pid or program", tool.name));
            }
            (_, false) if has("args") => {
                return Err("args are those of program, which is missing".to_owned());
            }
            _ => {}
        }
        let limit = self.time_of(line)?;
        let work = Work {
            arguments: line.arguments(command, options),
            directory: directory_of(line)?,
            time: limit,
            end_by: match has("pid") {
                true => EndBy::Interrupt,
                false => EndBy::Terminate,
            },
            keep: Keep::Last(VIEW_BYTES),
        };
        let done = work.run(stop, |passed| tick(passed, limit));
        done.map_err(|error| format!("fgraph cannot be started: {error}"))
    }

    fn time_of(&self, line: &Line) -> Result<Duration, String> {
        let Some(text) = line.value("time") else {
            return Ok(TIME.min(self.most_time));
        };
        let limit = nanoseconds(text).map(Duration::from_nanos)?;
        match limit > Duration::ZERO && limit <= self.most_time {
            true => Ok(limit),
            false => {
                let most = time(self.most_time.as_nanos() as u64);
                Err(format!("time is more than 0 and at most {most}"))
            }
        }
    }

    fn record(
        &self,
        tool: &Tool,
        values: &Map<String, Value>,
        line: &Line,
        stop: &Stop,
        tick: Tick<'_>,
    ) -> Result<Value, String> {
        let limit = self.time_of(line)?;
        let of = match values.get("pid") {
            Some(pid) => format!("process {pid}"),
            None => line.program(),
        };
        let (handle, path) = self.recordings.begin(of)?;
        let mut output = OsString::from("--output=");
        output.push(&path);
        // Paths of the server's directory may be no UTF-8.
        let Some(output) = output.to_str().map(str::to_owned) else {
            return Err("the path of the server's directory is no UTF-8".to_owned());
        };
        let mut options = vec![output, format!("--time={}ns", limit.as_nanos())];
        if !values.contains_key("max_size") {
            options.push(MAX_SIZE.to_owned());
        }
        let recorded = self.watch(tool, values, line, "record", &options, stop, tick);
        let about = recorded.and_then(|done| {
            let info = ["info", "--json", "--"].map(OsString::from);
            let info = info.into_iter().chain([path.clone().into_os_string()]);
            let info = run(info.collect(), Keep::All(VIEW_BYTES), &Stop::default())?;
            match last_view(&info) {
                Some(info) => Ok((done, info)),
                None => Err(failed("record", &done)),
            }
        });
        let (done, info) = about.inspect_err(|_| _ = self.recordings.forget(&handle))?;
        let mut fields = Map::new();
        fields.insert("recording".to_owned(), handle.into());
        fields.insert("path".to_owned(), path.to_string_lossy().into());
        for field in [
            "calls",
            "functions",
            "threads",
            "processes",
            "lasted_ns",
            "bytes",
        ] {
            fields.insert(field.to_owned(), info[field].clone());
        }
        fields.insert("lost_events".to_owned(), info["lost"]["events"].clone());
        if tool.has("program") {
            add_output(&mut fields, &done);
        }
        add_end(&mut fields, &done);
        Ok(fields.into())
    }
}

/// Runs a view of files.
fn run(arguments: Vec<OsString>, keep: Keep, stop: &Stop) -> Result<Done, String> {
    let command = arguments
        .first()
        .map(|it| it.to_string_lossy().into_owned());
    let work = Work {
        arguments,
        directory: None,
        time: VIEW_TIME,
        end_by: EndBy::Kill,
        keep,
    };
    let done = work.run(stop, |_| {});
    let done = done.map_err(|error| format!("fgraph cannot be started: {error}"))?;
    match done.ended {
        Ended::Time => Err(format!(
            "{} takes longer than {} s: choose less, by filters, from, to or threads",
            command.unwrap_or_default(),
            VIEW_TIME.as_secs()
        )),
        Ended::Stopped => Err("it was cancelled".to_owned()),
        Ended::Itself | Ended::Full => Ok(done),
    }
}

/// Returns the options of a view for a page.
fn options(view: View, page: Page) -> Vec<String> {
    let mut options = vec!["--json".to_owned()];
    if let Some(count) = view.count {
        // One more says if there are more.
        options.push(format!("{count}={}", page.offset + page.limit + 1));
    }
    options
}

fn shown(view: &Value, of: View, page: Page) -> Map<String, Value> {
    let mut fields = answer::page(view, of.rows, page);
    let rows = fields.get("rows").map(|rows| {
        let number = |key: &str| rows[key].as_u64().unwrap_or(0);
        (number("total"), number("offset") + number("shown"))
    });
    match (rows, view["more"].as_u64()) {
        // The view says how many rows there are beside those that were asked for.
        (Some((total, end)), Some(more)) => {
            let total = total + more;
            fields["rows"]["total"] = total.into();
            fields["view"]["more"] = total.saturating_sub(end).into();
        }
        (Some((total, _)), None)
            if of.count.is_some() && total == (page.offset + page.limit + 1) as u64 =>
        {
            leave_out_total(&mut fields);
        }
        _ => {}
    }
    fields
}

/// Leaves out the total number of rows, where it is not known.
fn leave_out_total(fields: &mut Map<String, Value>) {
    if let Some(Value::Object(rows)) = fields.get_mut("rows") {
        rows.remove("total");
    }
}

/// Returns the state of a file.
fn state_of(path: &PathBuf) -> (u64, u64, i64, i64) {
    let file = fs::metadata(path);
    file.map_or((0, 0, 0, 0), |file| {
        (file.ino(), file.len(), file.mtime(), file.mtime_nsec())
    })
}

fn directory_of(line: &Line) -> Result<Option<PathBuf>, String> {
    let Some(directory) = line.value("cwd").map(PathBuf::from) else {
        return Ok(None);
    };
    match directory.is_dir() {
        true => Ok(Some(directory)),
        false => Err(format!(
            "cwd: there is no directory {}",
            directory.display()
        )),
    }
}

/// Returns the object on the last line of the output: a program may have written before.
fn last_view(done: &Done) -> Option<Value> {
    let text = done.output.trim_ascii_end();
    let line = text.rsplit(|byte| *byte == b'\n').next()?;
    let view: Value = serde_json::from_slice(line).ok()?;
    view.is_object().then_some(view)
}

/// Returns the messages of a child, the last ones.
fn messages(done: &Done) -> Vec<String> {
    let text = String::from_utf8_lossy(&done.said);
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let lines = lines.map(|line| {
        let line = line.strip_prefix("fgraph: ").unwrap_or(line);
        match line.len() > MESSAGE {
            true => format!("{}…", answer::first(line, MESSAGE)),
            false => line.to_owned(),
        }
    });
    let lines: Vec<String> = lines.collect();
    lines[lines.len().saturating_sub(MESSAGES)..].to_vec()
}

fn add_messages(fields: &mut Map<String, Value>, done: &Done) {
    let messages = messages(done);
    if !messages.is_empty() {
        fields.insert("messages".to_owned(), messages.into());
    }
}

/// Adds how a program has ended.
fn add_end(fields: &mut Map<String, Value>, done: &Done) {
    add_messages(fields, done);
    let ended = match done.ended {
        Ended::Itself | Ended::Full => "by itself",
        Ended::Time => "at the time limit",
        Ended::Stopped => "stopped",
    };
    fields.insert("ended".to_owned(), ended.into());
    if let Some(code) = done.status.code() {
        fields.insert("exit_code".to_owned(), code.into());
    }
    if let Some(signal) = done.status.signal() {
        fields.insert("signal".to_owned(), signal.into());
    }
}

/// Adds the end of a program's output.
fn add_output(fields: &mut Map<String, Value>, done: &Done) {
    let text = String::from_utf8_lossy(&done.output);
    let mut from = text.len().saturating_sub(OUTPUT);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    fields.insert("output".to_owned(), text[from..].into());
    if from > 0 {
        fields.insert("output_left_out".to_owned(), true.into());
    }
}

/// Returns the reason for which a child has no answer.
fn failed(command: &str, done: &Done) -> String {
    let messages = messages(done);
    match messages.is_empty() {
        false => messages.join("\n"),
        true => format!(
            "{command} has ended with nothing to show: {}",
            told(done.status)
        ),
    }
}

fn told(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (_, Some(signal)) => format!("signal {signal}"),
        _ => "unknown".to_owned(),
    }
}
