//! Views as JSON, for programs: one object on a line.
//!
//! Times are whole nanoseconds, and moments count from the first event. The schemas of all views
//! are in `docs/schemas`.

use fgraph_analysis::stats::Stats;
pub(crate) use fgraph_analysis::thread::Thread;
use fgraph_trace::pairing::Ending;
use fgraph_trace::text::is_visible;
use serde::Serialize;

use crate::error::Error;
use crate::output::Out;

/// The missing events, which other numbers do not include.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Lost {
    pub(crate) events: u64,
    /// Calls with an unknown duration because of that.
    pub(crate) durations: u64,
    /// Threads with missing events, most events first.
    pub(crate) threads: Vec<LostOfThread>,
}

/// The missing events of a thread.
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
    /// Calls among these with missing ends: they count with the time that they ran for certain.
    pub(crate) ends_missing: u64,
    /// Time in calls, without the calls inside them.
    pub(crate) self_ns: u64,
    /// Time in calls; nested calls of the same function count once.
    pub(crate) total_ns: u64,
    /// Average of the calls with known durations; null if there are none. The other figures are of
    /// these calls, too.
    pub(crate) average_ns: Option<u64>,
    /// Percentiles are up to 3 % too high.
    pub(crate) p50_ns: Option<u64>,
    pub(crate) p95_ns: Option<u64>,
    pub(crate) p99_ns: Option<u64>,
    pub(crate) max_ns: Option<u64>,
}

impl From<&Stats> for Times {
    fn from(stats: &Stats) -> Self {
        let known = |time: u64| (stats.timed != 0).then_some(time);
        let percentile = |thousandth| known(stats.percentile(thousandth));
        Self {
            calls: stats.hits,
            ends_missing: stats.ends_lost,
            self_ns: stats.own,
            total_ns: stats.total,
            average_ns: known(stats.average()),
            p50_ns: percentile(500),
            p95_ns: percentile(950),
            p99_ns: percentile(990),
            max_ns: known(stats.max),
        }
    }
}

/// The way in which a call ended.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum End {
    Returned,
    /// An exception or a panic passed it.
    Unwound,
    /// It is in progress at the end of the recording.
    Open,
    /// The event of its end is missing.
    Lost,
    /// Only its entry was to be recorded.
    EntryOnly,
}

impl From<Ending> for End {
    fn from(ending: Ending) -> Self {
        match ending {
            Ending::Returned => Self::Returned,
            Ending::Unwound => Self::Unwound,
            Ending::Open => Self::Open,
            Ending::Lost => Self::Lost,
            Ending::EntryOnly => Self::EntryOnly,
        }
    }
}

/// Writes a view to standard output.
pub(crate) fn write(view: &impl Serialize) -> Result<(), Error> {
    let mut out = Out::new();
    out.line(line(view))?;
    out.finish()
}

/// Returns a view as one line. Characters are escaped that a terminal may interpret.
pub(crate) fn line(view: &impl Serialize) -> String {
    let text = serde_json::to_string(view).expect("views have names as keys");
    let mut line = String::with_capacity(text.len());
    for character in text.chars() {
        if is_visible(character) {
            line.push(character);
        } else {
            for half in character.encode_utf16(&mut [0; 2]) {
                line += &format!("\\u{half:04x}");
            }
        }
    }
    line
}

/// Compares the schema of a view with the one in `docs/schemas`, which is rewritten if the variable
/// `FGRAPH_UPDATE` is set.
#[cfg(test)]
pub(crate) fn check_schema<T: schemars::JsonSchema>(view: &str) {
    let schema = serde_json::to_string_pretty(&schemars::schema_for!(T)).unwrap() + "\n";
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/schemas");
    let path = format!("{directory}/{view}.json");
    if std::env::var_os("FGRAPH_UPDATE").is_some() {
        std::fs::write(&path, &schema).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        written, schema,
        "{path} is another one; set FGRAPH_UPDATE to write it anew"
    );
}
