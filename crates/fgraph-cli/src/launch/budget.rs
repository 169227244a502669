//! The argument of subcommands that limits the cost of recording.

use fgraph_tracers::recorder::budget::Share;

/// The budget of commands that answer a question about time, where they attach.
pub(crate) const DEFAULT_BUDGET: &str = "20%";

/// The allowed cost of recording.
#[derive(Debug, clap::Args)]
pub(crate) struct Budget {
    /// Limit the cost of recording to this share of each process's own processor time, as `5%`:
    /// frequently called functions with short calls are switched off as far as necessary, and their
    /// text is restored. After 2 s of processor time, and then at growing intervals, they are tried
    /// again. Functions that --also, --waits and --tasks name are not switched off. The end of the
    /// output says when they were off
    #[arg(long, value_name = "PERCENT", value_parser = parse_share)]
    pub(super) budget: Option<Share>,
}

impl Default for Budget {
    /// [`DEFAULT_BUDGET`].
    fn default() -> Self {
        let budget = parse_share(DEFAULT_BUDGET).ok();
        Self { budget }
    }
}

impl Budget {
    pub(crate) fn is_some(&self) -> bool {
        self.budget.is_some()
    }
}

/// Parses a share in percent: `5%`.
fn parse_share(text: &str) -> Result<Share, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim_end();
    let share = number.parse().ok().and_then(Share::percent);
    share.ok_or_else(|| "a budget is 0.1 % to 1000 % of the program's own time: 5%".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_a_percentage() {
        for (text, percent) in [("5%", 5.0), ("20 %", 20.0), ("500%", 500.0), ("0.5", 0.5)] {
            assert_eq!(parse_share(text).ok(), Share::percent(percent), "{text}");
        }
        for bad in [
            "", "0", "0%", "abc", "-5%", "1001%", "NaN", "inf", "5%%", "%",
        ] {
            assert!(parse_share(bad).is_err(), "{bad}");
        }
    }
}
