//! The calls to explain: each by itself, or all calls of a request as one.

use std::collections::HashMap;

use super::timeline::Root;

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
/// was not recorded are left out. Returns `None` if no call has a value.
pub(super) fn requests(mut roots: Vec<Root>, has_last: bool) -> Option<Vec<Subject>> {
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
    is_any.then_some(all)
}
