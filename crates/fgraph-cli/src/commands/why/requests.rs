//! The calls to explain: each by itself, or all calls of a request as one.

use std::collections::HashMap;

use super::timeline::Root;
use crate::error::Error;

/// Functions with a value that tells requests apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// A glob over functions.
    pub(super) functions: String,
    /// The argument with the value.
    pub(super) argument: usize,
}

/// The number of arguments in registers.
const ARGUMENTS: usize = 6;

/// Parses `handle(arg0)`.
pub(super) fn parse_request(text: &str) -> Result<Request, String> {
    let parsed = || {
        let (functions, argument) = text.strip_suffix(')')?.rsplit_once('(')?;
        let argument = argument.strip_prefix("arg")?.parse().ok()?;
        let is_good = !functions.is_empty() && argument < ARGUMENTS;
        is_good.then(|| Request {
            functions: functions.to_owned(),
            argument,
        })
    };
    parsed().ok_or_else(|| "a request is a function and one of arg0 to arg5: handle(arg0)".into())
}

/// A call to explain, or the calls of a request.
#[derive(Debug)]
pub(super) struct Subject {
    /// The calls, by the time of their begin.
    pub(super) calls: Vec<Root>,
    pub(super) from: u64,
    pub(super) to: u64,
}

impl Subject {
    fn of(call: Root) -> Self {
        Self {
            from: call.from,
            to: call.to,
            calls: vec![call],
        }
    }

    pub(super) fn ticks(&self) -> u64 {
        self.to.saturating_sub(self.from)
    }

    fn add(&mut self, call: Root) {
        self.to = self.to.max(call.to);
        self.calls.push(call);
    }
}

/// Returns the calls, each by itself.
pub(super) fn calls(roots: Vec<Root>) -> Vec<Subject> {
    roots.into_iter().map(Subject::of).collect()
}

/// Groups the calls by the value that tells requests apart. If `has_last`, requests whose last call
/// was not recorded are left out.
///
/// # Errors
///
/// Fails if no call has a value.
pub(super) fn requests(
    mut roots: Vec<Root>,
    has_last: bool,
    no_values: impl Fn() -> Error,
) -> Result<Vec<Subject>, Error> {
    roots.sort_by_key(|root| root.from);
    let mut open: HashMap<(u32, u64), Subject> = HashMap::new();
    let mut all = Vec::new();
    let mut is_any = false;
    for root in roots {
        let Some(request) = root.request else {
            continue;
        };
        is_any = true;
        let is_last = root.is_last;
        match open.get_mut(&request) {
            Some(known) => known.add(root),
            None => _ = open.insert(request, Subject::of(root)),
        }
        if is_last {
            all.extend(open.remove(&request));
        }
    }
    if !has_last {
        all.extend(open.into_values());
    }
    match is_any {
        true => Ok(all),
        false => Err(no_values()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_a_function_and_an_argument() {
        let request = |functions: &str, argument| Request {
            functions: functions.to_owned(),
            argument,
        };
        assert_eq!(parse_request("handle(arg0)"), Ok(request("handle", 0)));
        assert_eq!(parse_request("a::b*(arg5)"), Ok(request("a::b*", 5)));
        for bad in [
            "handle",
            "handle()",
            "(arg0)",
            "handle(arg6)",
            "handle(id)",
            "",
        ] {
            assert!(parse_request(bad).is_err(), "{bad}");
        }
    }
}
