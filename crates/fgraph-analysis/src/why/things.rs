//! Names the things that threads wait for: locks, files, pipes, connections, times.

use std::collections::HashMap;

use fgraph_trace::names::{DescriptionKind, Names, process_id};

use super::timeline::{Piece, Timeline};
use crate::addresses::Addresses;
use crate::text::time;
use crate::waits::Thing;

/// The names that a recording has of them.
pub(super) struct Things<'n> {
    names: &'n Names,
    /// Each name of a descriptor with the time from which it is known, by process and descriptor.
    descriptors: HashMap<(u32, u32), Vec<(u64, &'n str)>>,
    addresses: &'n mut dyn Addresses,
    /// Names of locks, by process and address.
    locks: HashMap<(u32, u64), String>,
}

/// The most waits for which names are searched.
const MOST: usize = 1000;
/// The part of the time of waits with names that counts as all of it.
const ALL: f64 = 0.9;
/// The part of the time of all waits that waits with names have at least, to stand for all.
const NAMED: f64 = 0.5;

impl<'n> Things<'n> {
    pub(super) fn of(names: &'n Names, addresses: &'n mut dyn Addresses) -> Self {
        let mut descriptors: HashMap<_, Vec<_>> = HashMap::new();
        let all = names.descriptions().iter();
        for description in all.filter(|it| it.kind == DescriptionKind::Descriptor) {
            let [process, number, time, _] = description.fields;
            let known = descriptors.entry((process as u32, number as u32));
            known.or_default().push((time, &*description.texts[0]));
        }
        Self {
            names,
            descriptors,
            addresses,
            locks: HashMap::new(),
        }
    }

    /// Names the thing that most of the time of some waits is for; `None` if it is unknown.
    pub(super) fn most(&mut self, timeline: &Timeline, waits: &[(usize, Piece)]) -> Option<String> {
        let mut found: HashMap<String, u64> = HashMap::new();
        let (mut named, mut all) = (0, 0);
        for (thread, wait) in waits.iter().take(MOST) {
            let process = timeline.calls.threads[*thread].process;
            all += wait.ticks;
            if let Some(name) = self.name(timeline, process, *thread, wait) {
                *found.entry(name).or_default() += wait.ticks;
                named += wait.ticks;
            }
        }
        let most = found
            .into_iter()
            .max_by(|a, b| (a.1, &b.0).cmp(&(b.1, &a.0)));
        let (name, ticks) = most?;
        let is_one = ticks as f64 >= named as f64 * ALL;
        match is_one && named as f64 >= all as f64 * NAMED {
            true => Some(name),
            false => Some(format!("{name} and others")),
        }
    }

    fn name(
        &mut self,
        timeline: &Timeline,
        process: u32,
        thread: usize,
        wait: &Piece,
    ) -> Option<String> {
        match timeline.asked(thread, wait)? {
            (Thing::Address(_), address) => Some(self.lock(process, address)),
            (Thing::Time(unit), count) => Some(time(count.saturating_mul(unit))),
            (Thing::Descriptor, number) => self.descriptor(timeline, process, number, wait.from),
            (Thing::Ready, _) => {
                let (number, at) = timeline.used_next(thread, wait.to)?;
                self.descriptor(timeline, process, number, at)
            }
        }
    }

    /// Returns the variable at an address, or the address.
    fn lock(&mut self, process: u32, address: u64) -> String {
        if let Some(known) = self.locks.get(&(process, address)) {
            return known.clone();
        }
        let variable = self.addresses.variable(self.names, process, address);
        let name = variable.unwrap_or_else(|| format!("{address:#x}"));
        self.locks.insert((process, address), name.clone());
        name
    }

    /// Returns the name of a descriptor at a time: the last one before that, or else the first one
    /// after it, unless the descriptor was closed in between.
    fn descriptor(
        &self,
        timeline: &Timeline,
        process: u32,
        number: u64,
        time: u64,
    ) -> Option<String> {
        let descriptor = (process_id(process), number as u32);
        let known = self.descriptors.get(&descriptor)?;
        let next = known.partition_point(|(since, _)| *since <= time);
        let before = next.checked_sub(1).map(|at| known[at]);
        let before = before.filter(|it| !timeline.is_closed(descriptor, it.0, time));
        let after = known.get(next).copied();
        let after = after.filter(|it| !timeline.is_closed(descriptor, time, it.0));
        before.or(after).map(|(_, name)| name.to_owned())
    }
}
