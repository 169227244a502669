//! Live bytes of a process over time, in a bounded number of snapshots.

/// The sums of a process at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// The time, in ticks.
    pub time: u64,
    /// Bytes that are not freed.
    pub live: u64,
    /// Bytes that were allocated until then, freed or not.
    pub allocated: u64,
}

/// The most snapshots between the first and the last change.
const MOST: usize = 100;

/// The live bytes of a process over time.
///
/// It has each change of a short time. When there are too many snapshots, those that are close
/// together are dropped, and later ones are at least as far apart as the rest.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    /// The snapshots that are kept.
    kept: Vec<Snapshot>,
    /// The least time between two of them.
    least: u64,
    /// The last change.
    last: Snapshot,
    /// The snapshot with the most live bytes.
    pub(super) peak: Snapshot,
}

impl Timeline {
    /// Adds the sums after a change.
    pub(super) fn add(&mut self, snapshot: Snapshot) {
        self.last = snapshot;
        let newest = self.kept.last().map(|kept| kept.time);
        if newest.is_some_and(|newest| snapshot.time.saturating_sub(newest) < self.least) {
            return;
        }
        if self.kept.len() == MOST {
            self.thin();
            return self.add(snapshot);
        }
        self.kept.push(snapshot);
    }

    /// Drops about half of the snapshots, or more.
    fn thin(&mut self) {
        let ends = self.kept.first().zip(self.kept.last());
        let span = ends.map_or(0, |(first, last)| last.time.saturating_sub(first.time));
        self.least = span.div_ceil(MOST as u64 / 2).max(1);
        let mut next = 0;
        self.kept.retain(|snapshot| {
            let is_kept = snapshot.time >= next;
            if is_kept {
                next = snapshot.time.saturating_add(self.least);
            }
            is_kept
        });
    }

    /// Returns the snapshots in the order of time. The one with the most live bytes and the last
    /// change are among them; there is none if no block was made.
    #[must_use]
    pub fn snapshots(&self) -> Vec<Snapshot> {
        let mut all = self.kept.clone();
        if all.last().is_some_and(|newest| *newest != self.last) {
            all.push(self.last);
        }
        if self.peak.live > 0 && !all.contains(&self.peak) {
            let place = all.partition_point(|it| it.time <= self.peak.time);
            all.insert(place.min(all.len().saturating_sub(1)), self.peak);
        }
        all
    }

    /// Returns the snapshot with the most live bytes.
    #[must_use]
    pub fn peak(&self) -> Snapshot {
        self.peak
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn follow(lives: impl Iterator<Item = (u64, u64)>) -> Timeline {
        let mut timeline = Timeline::default();
        for (time, live) in lives {
            let snapshot = Snapshot {
                time,
                live,
                allocated: time,
            };
            if live > timeline.peak.live {
                timeline.peak = snapshot;
            }
            timeline.add(snapshot);
        }
        timeline
    }

    #[test]
    fn few_changes_are_all_kept() {
        let timeline = follow([(1, 10), (1, 20), (5, 0)].into_iter());
        let lives: Vec<u64> = timeline.snapshots().iter().map(|it| it.live).collect();
        assert_eq!(lives, [10, 20, 0]);
    }

    #[test]
    fn many_changes_leave_a_bounded_number_with_peak_and_end() {
        let peak = 77_777;
        let live = |time| match time {
            _ if time == peak => 1_000_000,
            _ => time % 1000,
        };
        let timeline = follow((1..=100_000).map(|time| (time, live(time))));
        let all = timeline.snapshots();
        assert!((MOST / 2..=MOST + 2).contains(&all.len()), "{}", all.len());
        assert!(all.is_sorted_by_key(|it| it.time));
        assert_eq!(all[all.len() - 1].time, 100_000);
        assert_eq!(timeline.peak().time, peak);
        assert!(all.contains(&timeline.peak()));
        let gaps = all.windows(2).map(|pair| pair[1].time - pair[0].time);
        assert!(gaps.max().unwrap() < 100_000 / 20);
    }

    #[test]
    fn changes_at_one_time_are_thinned() {
        let timeline = follow((1..=1000).map(|live| (7, live)));
        let all = timeline.snapshots();
        assert!(all.len() <= MOST + 2, "{}", all.len());
        assert_eq!(all[all.len() - 1].live, 1000);
    }
}
