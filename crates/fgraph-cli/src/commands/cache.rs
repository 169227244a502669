//! `fgraph cache`: the cached plans of programs and libraries, and the summaries of recordings.

use std::time::SystemTime;

use serde::Serialize;

use crate::error::Error;
use crate::json;
use crate::launch::plan_cache::{self, KeptPlan};
use crate::output::Out;
use crate::summary;
use crate::table::Table;
use crate::text::{escaped, grouped, size};

/// List or clear the cached plans of programs and libraries, and the summaries of recordings
///
/// To trace a function, fgraph reads the symbols and the code of its file. It caches the result in
/// `fgraph/plans` in XDG_CACHE_HOME or `~/.cache`, at most 256 MiB, so that the next program that
/// loads the file starts faster. A changed file gets a new plan.
///
/// A view that has read a recording for longer than a second keeps its counts in
/// `fgraph/summaries`, at most 64 MiB, so that the next one is shown at once.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fgraph cache
  fgraph cache --json
  fgraph cache clear")]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    /// Print the list, or what was removed, as one JSON object
    #[arg(long, global = true)]
    json: bool,
}

/// The view of `cache` in JSON: the plans that are there, or that were removed.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct CacheView {
    /// The number of bytes of all plans.
    bytes: u64,
    plans: Vec<PlanView>,
    /// The number of summaries of recordings, and of their bytes.
    summaries: u64,
    summary_bytes: u64,
}

/// A cached plan.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct PlanView {
    bytes: u64,
    /// The file; null if the plan was not written to its end.
    file: Option<String>,
    /// Seconds since it was last used.
    age_s: u64,
}

impl CacheView {
    fn of(plans: &[KeptPlan], (summaries, summary_bytes): (u64, u64)) -> Self {
        let now = SystemTime::now();
        let view = |plan: &KeptPlan| PlanView {
            bytes: plan.len,
            file: plan.module.clone(),
            age_s: now.duration_since(plan.used).unwrap_or_default().as_secs(),
        };
        Self {
            bytes: plans.iter().map(|plan| plan.len).sum(),
            plans: plans.iter().map(view).collect(),
            summaries,
            summary_bytes,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::Subcommand)]
enum Action {
    /// List the plans, most recently used first
    List,
    /// Remove all plans and summaries
    Clear,
}

pub(crate) fn run(args: &Args) -> Result<(), Error> {
    let mut plans = plan_cache::plans();
    let summaries = summary::count();
    match args.action.unwrap_or(Action::List) {
        Action::List => {
            plans.sort_by_key(|plan| core::cmp::Reverse(plan.used));
            match args.json {
                true => json::write(&CacheView::of(&plans, summaries)),
                false => list(&plans, summaries),
            }
        }
        Action::Clear => {
            clear(&plans)?;
            if args.json {
                return json::write(&CacheView::of(&plans, summaries));
            }
            let all = plans.iter().map(|plan| plan.len).sum();
            let mut out = Out::new();
            out.line(format_args!("{} plans removed, {}", plans.len(), size(all)))?;
            if let (count @ 1.., bytes) = summaries {
                out.line(format_args!(
                    "{} removed, {}",
                    summaries_of(count),
                    size(bytes)
                ))?;
            }
            out.finish()
        }
    }
}

fn list(plans: &[KeptPlan], summaries: (u64, u64)) -> Result<(), Error> {
    let mut out = Out::new();
    let now = SystemTime::now();
    let mut table = Table::new(&[("size", 0), ("hours ago", 1), ("file", 0)]);
    for plan in plans {
        let age = now.duration_since(plan.used).unwrap_or_default();
        let module = plan.module.as_deref().unwrap_or("(not written to its end)");
        let hours = age.as_secs() / 3600;
        table.row(vec![
            size(plan.len),
            hours.to_string(),
            escaped(module).into_owned(),
        ]);
    }
    if !plans.is_empty() {
        table.write(&mut out)?;
    }
    let all = plans.iter().map(|plan| plan.len).sum();
    out.line(format_args!("{} plans, {}", plans.len(), size(all)))?;
    if let (count @ 1.., bytes) = summaries {
        out.line(format_args!("{}, {}", summaries_of(count), size(bytes)))?;
    }
    out.finish()
}

fn summaries_of(count: u64) -> String {
    match count {
        1 => "1 summary".to_owned(),
        more => format!("{} summaries", grouped(more)),
    }
}

fn clear(plans: &[KeptPlan]) -> Result<(), Error> {
    for plan in plans {
        plan.remove().map_err(|error| Error::Write {
            path: plan.path(),
            error,
        })?;
    }
    summary::clear().map_err(|(path, error)| Error::Write { path, error })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_docs_have_the_schema() {
        json::check_schema::<CacheView>("cache");
    }
}
