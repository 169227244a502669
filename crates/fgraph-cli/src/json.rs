//! Views as JSON, for programs that read them: one object on a line.
//!
//! Times are whole nanoseconds, and moments are counted from the first event. The schemas of all
//! views are in `docs/schemas`.

use serde::Serialize;

use crate::error::Error;
use crate::output::Out;

/// A thread.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Thread {
    pub(crate) process: u32,
    pub(crate) thread: u32,
    /// Empty if it is not known.
    pub(crate) name: String,
}

/// The events that are missing, and which the numbers lack.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Lost {
    pub(crate) events: u64,
    /// Calls whose durations are not known because of that.
    pub(crate) durations: u64,
    /// Most events first.
    pub(crate) threads: Vec<LostOfThread>,
}

/// The events that are missing of a thread.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct LostOfThread {
    pub(crate) thread: Thread,
    pub(crate) events: u64,
    pub(crate) from_ns: u64,
    pub(crate) to_ns: u64,
}

/// Calls and their times.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Times {
    pub(crate) calls: u64,
    /// Calls among these whose ends are missing: they count with the time that they ran for sure.
    pub(crate) ends_missing: u64,
    /// Time in calls, without the calls in them.
    pub(crate) self_ns: u64,
    /// Time in calls, that of calls within the same once.
    pub(crate) total_ns: u64,
    /// The others are of calls whose durations are known; null if there are none.
    pub(crate) average_ns: Option<u64>,
    /// Percentiles are up to 3 % more.
    pub(crate) p50_ns: Option<u64>,
    pub(crate) p95_ns: Option<u64>,
    pub(crate) p99_ns: Option<u64>,
    pub(crate) max_ns: Option<u64>,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum End {
    Returned,
    /// An exception or a panic went through it.
    Unwound,
    /// It goes on where the recording ends.
    Open,
    /// The event of its end is missing.
    Lost,
    /// Only its entry was to be recorded.
    EntryOnly,
}

/// Writes a view to standard output.
pub(crate) fn write(view: &impl Serialize) -> Result<(), Error> {
    let mut out = Out::new();
    out.line(line(view))?;
    out.finish()
}

/// Returns a view as one line. Control characters are escaped, as they may be orders to a terminal.
pub(crate) fn line(view: &impl Serialize) -> String {
    let text = serde_json::to_string(view).expect("views have names as keys");
    let mut line = String::with_capacity(text.len());
    for character in text.chars() {
        match character.is_control() {
            true => line += &format!("\\u{:04x}", u32::from(character)),
            false => line.push(character),
        }
    }
    line
}

/// Compares the schema of a view with the one in `docs/schemas`, which is written anew if the
/// variable `FGRAPH_BLESS` is set.
#[cfg(test)]
pub(crate) fn check_schema<T: schemars::JsonSchema>(view: &str) {
    let schema = serde_json::to_string_pretty(&schemars::schema_for!(T)).unwrap() + "\n";
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/schemas");
    let path = format!("{directory}/{view}.json");
    if std::env::var_os("FGRAPH_BLESS").is_some() {
        std::fs::write(&path, &schema).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        written, schema,
        "{path} is another one; set FGRAPH_BLESS to write it anew"
    );
}
