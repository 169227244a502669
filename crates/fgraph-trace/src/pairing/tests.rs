use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

/// The outcome of a call: the data that was kept of it, its duration, its own time and its ending.
type Found = (u32, Option<u64>, u64, Ending);

/// Hands over the changes of an event: the calls that end.
fn drain(pairing: &mut Pairing<u32>, found: &mut Vec<Found>) {
    while let Some(change) = pairing.change() {
        if let Change::Ended(call) = change {
            found.push((call.data, call.duration(), call.own, call.ending));
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Did {
    Enter(u32),
    Only(u32),
    Return(u32),
    Unwind(u32),
    Drop(u32),
    Lose(Option<u64>),
    Note,
    Finish,
}

/// The calls that end, each known by its function.
fn ended(events: &[(u64, Did)]) -> Vec<Found> {
    let (mut pairing, mut found) = (Pairing::new(), Vec::new());
    for &(time, did) in events {
        match did {
            Did::Enter(function) => pairing.enter(function, time, function),
            Did::Only(function) => pairing.enter_only(function, time, function),
            Did::Return(function) => _ = pairing.exit(function, time, Ending::Returned),
            Did::Unwind(function) => _ = pairing.exit(function, time, Ending::Unwound),
            Did::Drop(function) => _ = pairing.exit(function, time, Ending::Lost),
            Did::Lose(ends) => pairing.lose(ends),
            Did::Note => pairing.note(time),
            Did::Finish => pairing.finish(time),
        }
        drain(&mut pairing, &mut found);
    }
    found
}

#[test]
fn a_call_without_an_end_is_lost_when_a_call_around_it_ends() {
    let found = ended(&[
        (5, Did::Return(8)),
        (10, Did::Enter(1)),
        (20, Did::Enter(2)),
        (30, Did::Enter(3)),
        (60, Did::Unwind(2)),
        (100, Did::Return(1)),
    ]);
    let expected = [
        (3, None, 0, Ending::Lost),
        (2, Some(40), 10, Ending::Unwound),
        (1, Some(90), 50, Ending::Returned),
    ];
    assert_eq!(found, expected);
}

#[test]
fn calls_that_ended_in_a_gap_are_lost_and_those_around_them_go_on() {
    let found = ended(&[
        (0, Did::Enter(1)),
        (10, Did::Enter(2)),
        (20, Did::Enter(2)),
        (30, Did::Enter(2)),
        (35, Did::Enter(6)),
        (37, Did::Return(6)),
        (40, Did::Lose(Some(2))),
        (1000, Did::Enter(4)),
        (1100, Did::Return(4)),
        (1200, Did::Return(2)),
        (1300, Did::Return(1)),
    ]);
    let expected = [
        (6, Some(2), 2, Ending::Returned),
        (2, None, 5, Ending::Lost),
        (2, None, 10, Ending::Lost),
        (4, Some(100), 100, Ending::Returned),
        (2, Some(1190), 110, Ending::Returned),
        (1, Some(1300), 110, Ending::Returned),
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_dropped_call_has_run_until_the_event_before_and_the_time_since_is_nobodys() {
    let found = ended(&[
        (0, Did::Enter(1)),
        (10, Did::Enter(1)),
        (20, Did::Enter(2)),
        (30, Did::Enter(3)),
        (40, Did::Enter(7)),
        (50, Did::Return(7)),
        // The calls are found to be dropped one after another, and 7 is unknown.
        (90, Did::Drop(3)),
        (91, Did::Drop(2)),
        (92, Did::Drop(7)),
        (93, Did::Drop(1)),
        (100, Did::Enter(4)),
        (110, Did::Return(4)),
        (200, Did::Return(1)),
    ]);
    let expected = [
        (7, Some(10), 10, Ending::Returned),
        (3, None, 10, Ending::Lost),
        (2, None, 10, Ending::Lost),
        (1, None, 10, Ending::Lost),
        (4, Some(10), 10, Ending::Returned),
        (1, Some(200), 100, Ending::Returned),
    ];
    assert_eq!(found, expected);
}

#[test]
fn calls_inside_a_dropped_one_are_lost_with_it() {
    let found = ended(&[
        (0, Did::Enter(1)),
        (10, Did::Enter(2)),
        // The functions of an interpreter have no frames that could be dropped.
        (20, Did::Enter(3)),
        (30, Did::Drop(2)),
        (30, Did::Return(1)),
        (40, Did::Enter(5)),
        (50, Did::Drop(5)),
        (60, Did::Finish),
    ]);
    let expected = [
        (3, None, 0, Ending::Lost),
        (2, None, 10, Ending::Lost),
        (1, Some(30), 10, Ending::Returned),
        (5, None, 0, Ending::Lost),
    ];
    assert_eq!(found, expected);
}

#[test]
fn jumps_in_a_loop_do_not_pile_up() {
    let mut pairing = Pairing::new();
    let mut lost = 0;
    pairing.enter(1, 0, ());
    while pairing.change().is_some() {}
    for time in 0..MAX_DEPTH as u64 + 5 {
        pairing.enter(2, time, ());
        while pairing.change().is_some() {}
        assert_eq!(pairing.exit_at_once(2, time, Ending::Lost), None);
        while let Some(change) = pairing.change() {
            lost += u64::from(matches!(change, Change::Ended(call) if call.ran == 0));
        }
        assert_eq!(pairing.calls().len(), 1);
    }
    assert_eq!(lost, MAX_DEPTH as u64 + 5);
}

#[test]
fn all_calls_are_lost_in_a_gap_of_unknown_ends() {
    let found = ended(&[
        (0, Did::Enter(1)),
        (10, Did::Enter(2)),
        (15, Did::Lose(None)),
        (1000, Did::Enter(2)),
        (1100, Did::Return(2)),
        (1200, Did::Return(1)),
        (1300, Did::Enter(5)),
        (1400, Did::Lose(Some(0))),
        (1500, Did::Note),
        (1600, Did::Finish),
    ]);
    let expected = [
        (2, None, 0, Ending::Lost),
        (1, None, 10, Ending::Lost),
        (2, Some(100), 100, Ending::Returned),
        (5, None, 100, Ending::Open),
    ];
    assert_eq!(found, expected);
}

#[test]
fn calls_that_go_on_at_the_end_are_open() {
    let found = ended(&[
        (0, Did::Enter(1)),
        (10, Did::Enter(2)),
        (30, Did::Only(3)),
        (40, Did::Enter(4)),
        (45, Did::Return(4)),
        (50, Did::Note),
        (60, Did::Finish),
    ]);
    let expected = [
        (3, None, 0, Ending::EntryOnly),
        (4, Some(5), 5, Ending::Returned),
        (2, None, 45, Ending::Open),
        (1, None, 10, Ending::Open),
    ];
    assert_eq!(found, expected);
}

#[test]
fn time_stands_still_where_the_clock_goes_back() {
    let found = ended(&[
        (10, Did::Enter(1)),
        (5, Did::Enter(2)),
        (12, Did::Return(2)),
        (11, Did::Return(1)),
    ]);
    let expected = [
        (2, Some(2), 2, Ending::Returned),
        (1, Some(2), 0, Ending::Returned),
    ];
    assert_eq!(found, expected);
}

#[test]
fn an_end_without_an_entry_ends_a_gap_and_no_call() {
    let found = ended(&[
        (0, Did::Enter(1)),
        (40, Did::Lose(Some(0))),
        (100, Did::Return(9)),
        (110, Did::Return(1)),
    ]);
    assert_eq!(found, [(1, Some(110), 10, Ending::Returned)]);
}

#[test]
fn calls_are_lost_where_too_many_pile_up() {
    let (mut pairing, mut found) = (Pairing::new(), Vec::new());
    for n in 0..=MAX_DEPTH as u32 {
        pairing.enter(n, n.into(), n);
        drain(&mut pairing, &mut found);
    }
    assert_eq!(pairing.calls().len(), 1);
    assert_eq!(found.len(), MAX_DEPTH);
    let is_lost = |call: &Found| call.1.is_none() && call.3 == Ending::Lost;
    assert!(found.iter().all(is_lost));
}

#[test]
fn calls_that_go_on_have_run_so_far() {
    let (mut pairing, mut found) = (Pairing::new(), Vec::new());
    for (function, time) in [(1, 0), (2, 10), (3, 15)] {
        pairing.enter(function, time, function);
        drain(&mut pairing, &mut found);
    }
    assert!(pairing.exit(3, 20, Ending::Returned));
    drain(&mut pairing, &mut found);
    assert!(!pairing.exit(3, 40, Ending::Returned));
    let so_far = pairing
        .so_far()
        .map(|(call, ran, own)| (call.data, ran, own));
    assert_eq!(so_far.collect::<Vec<_>>(), [(1, 40, 10), (2, 30, 25)]);
    assert_eq!(pairing.last(), 40);
    pairing.calls_mut()[1].data = 7;
    assert_eq!(pairing.calls()[1].data, 7);
}

/// A step of a thread.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Calls a function.
    Call(u32),
    /// Calls one whose end is not recorded.
    CallOnly(u32),
    /// The innermost call returns.
    Return,
    /// The innermost calls are unwound, this many.
    Unwind(usize),
    /// The innermost calls are left by a jump, this many. The next step shows it.
    Jump(usize),
}

/// The room that the writer has for an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    Some,
    None,
}

fn step() -> impl Strategy<Value = Step> {
    // Few functions: most calls are recursive.
    prop_oneof![
        8 => (0..3_u32).prop_map(Step::Call),
        1 => (0..3_u32).prop_map(Step::CallOnly),
        7 => Just(Step::Return),
        1 => (1..4_usize).prop_map(Step::Unwind),
        1 => (1..4_usize).prop_map(Step::Jump),
    ]
}

/// Runs of events for which there is room or none; single ones and bursts.
fn room() -> impl Strategy<Value = Vec<Room>> {
    let run = prop_oneof![
        4 => (1..30_usize).prop_map(|len| vec![Room::Some; len]),
        1 => (1..3_usize).prop_map(|len| vec![Room::None; len]),
        1 => (3..40_usize).prop_map(|len| vec![Room::None; len]),
    ];
    prop::collection::vec(run, 1..20).prop_map(|runs| runs.concat())
}

/// The truth of a call.
#[derive(Clone, Copy, Debug, Default)]
struct Call {
    function: u32,
    begin: u64,
    /// When and how it ended; calls may go on.
    end: Option<(u64, bool)>,
    /// The recorded call around it.
    parent: Option<usize>,
    /// Ticks without recorded calls in it.
    own: u64,
    /// True if its entry was written, and its end is to be.
    is_recorded: bool,
    /// True if it was left by a jump.
    is_left: bool,
}

/// The event of a step, with the call that it is of.
#[derive(Clone, Copy, Debug)]
enum Written {
    Entry(usize),
    Only(usize),
    End(usize),
    Dropped(usize),
    Lost(Option<u64>),
}

/// The steps of a thread, and the events that were written of them.
#[derive(Debug, Default)]
struct Truth {
    calls: Vec<Call>,
    written: Vec<(u64, Written)>,
    /// The calls that go on.
    open: Vec<usize>,
    /// The recorded calls that the last steps have left, the innermost first.
    left: Vec<usize>,
    dropped: Option<u64>,
    now: u64,
}

impl Truth {
    fn of(steps: &[(Step, u64)], room: &[Room]) -> Self {
        let mut this = Self::default();
        let mut room = room.iter().copied().cycle();
        for &(step, ticks) in steps {
            this.now += ticks;
            let innermost = this.open.iter().rev();
            let mut recorded = innermost.filter(|&&call| this.calls[call].is_recorded);
            let recorded = recorded.next().copied();
            if let Some(call) = recorded {
                this.calls[call].own += ticks;
            }
            if !matches!(step, Step::Jump(_)) {
                for call in mem::take(&mut this.left) {
                    this.write(Written::Dropped(call), room.next());
                }
            }
            match step {
                Step::Call(function) | Step::CallOnly(function) => {
                    let is_only = matches!(step, Step::CallOnly(_));
                    let call = this.calls.len();
                    this.calls.push(Call {
                        function,
                        begin: this.now,
                        parent: recorded,
                        ..Call::default()
                    });
                    this.open.push(call);
                    let entry = if is_only {
                        Written::Only(call)
                    } else {
                        Written::Entry(call)
                    };
                    let is_written = this.write(entry, room.next());
                    this.calls[call].is_recorded = is_written && !is_only;
                }
                Step::Return => this.end(false, &mut room),
                Step::Jump(calls) => {
                    for _ in 0..calls {
                        let Some(call) = this.open.pop() else { break };
                        this.calls[call].end = Some((this.now, false));
                        this.calls[call].is_left = true;
                        if this.calls[call].is_recorded {
                            this.left.push(call);
                        }
                    }
                }
                Step::Unwind(calls) => (0..calls).for_each(|_| this.end(true, &mut room)),
            }
        }
        this
    }

    fn end(&mut self, is_unwound: bool, room: &mut impl Iterator<Item = Room>) {
        let Some(call) = self.open.pop() else { return };
        self.calls[call].end = Some((self.now, is_unwound));
        if self.calls[call].is_recorded {
            self.write(Written::End(call), room.next());
        }
    }

    /// Writes an event if there is room, and counts it otherwise.
    fn write(&mut self, what: Written, room: Option<Room>) -> bool {
        if room == Some(Room::None) {
            let ends = u64::from(matches!(what, Written::End(_) | Written::Dropped(_)));
            self.dropped = Some(self.dropped.unwrap_or(0) + ends);
            return false;
        }
        if let Some(ends) = self.dropped.take() {
            self.written.push((self.now, Written::Lost(Some(ends))));
        }
        self.written.push((self.now, what));
        true
    }

    /// Removes events, as readers miss them that are overwritten or damaged.
    fn cut(&mut self, at: usize, len: usize) {
        let begin = at.min(self.written.len());
        let end = (at + len).min(self.written.len());
        if begin < end {
            let time = self.written.get(end).map_or(self.now, |&(time, _)| time);
            let lost = (time, Written::Lost(None));
            self.written.splice(begin..end, [lost]);
        }
    }

    /// Pairs the events that were written from the event `from` on, and compares the calls with the
    /// true ones. With `is_exact` each call with an entry and a return must be found.
    fn check(&self, from: usize, is_exact: bool) -> Result<(), TestCaseError> {
        let mut pairing: Pairing<usize> = Pairing::new();
        let mut ended: HashMap<usize, EndedCall<usize>> = HashMap::new();
        let written = &self.written[from.min(self.written.len())..];
        for &(time, what) in written {
            match what {
                Written::Entry(call) => pairing.enter(self.calls[call].function, time, call),
                Written::Only(call) => pairing.enter_only(self.calls[call].function, time, call),
                Written::End(call) => {
                    let Call { function, end, .. } = self.calls[call];
                    let how = match end {
                        Some((_, true)) => Ending::Unwound,
                        _ => Ending::Returned,
                    };
                    pairing.exit(function, time, how);
                }
                Written::Dropped(call) => {
                    pairing.exit(self.calls[call].function, time, Ending::Lost);
                }
                Written::Lost(ends) => pairing.lose(ends),
            }
            self.changes(&mut pairing, is_exact && from == 0, &mut ended)?;
        }
        let so_far: u64 = pairing.so_far().map(|(_, _, own)| own).sum();
        let known: u64 = ended.values().map(|call| call.own).sum();
        pairing.finish(pairing.last());
        self.changes(&mut pairing, false, &mut ended)?;
        let own: u64 = ended.values().map(|call| call.own).sum();
        prop_assert_eq!(own, known + so_far);
        let first = written.first().map_or(0, |&(time, _)| time);
        let last = written.last().map_or(0, |&(time, _)| time);
        prop_assert!(own <= last - first, "{own} of {}", last - first);
        for (at, &(_, what)) in written.iter().enumerate() {
            let Written::End(call) = what else { continue };
            let entry = written[..at]
                .iter()
                .rposition(|&(_, what)| matches!(what, Written::Entry(of) if of == call));
            let is_given = entry.is_some_and(|entry| {
                let mut between = written[entry..at].iter();
                !between.any(|&(_, what)| matches!(what, Written::Lost(None)))
            });
            if is_given {
                prop_assert!(ended[&call].duration().is_some(), "{call} has no duration");
            }
        }
        Ok(())
    }

    fn changes(
        &self,
        pairing: &mut Pairing<usize>,
        is_exact: bool,
        ended: &mut HashMap<usize, EndedCall<usize>>,
    ) -> Result<(), TestCaseError> {
        while let Some(change) = pairing.change() {
            match change {
                Change::Began => {
                    let stack: Vec<usize> = pairing.calls().iter().map(|it| it.data).collect();
                    let (&call, around) = stack.split_last().expect("a call has begun");
                    // Each call is in the recorded one that it was made from, or that is unknown.
                    let mut each = call;
                    for &caller in around.iter().rev() {
                        prop_assert_eq!(self.calls[each].parent, Some(caller));
                        each = caller;
                    }
                    if is_exact {
                        prop_assert_eq!(self.calls[each].parent, None);
                    }
                }
                Change::Ended(call) => {
                    let Call {
                        begin,
                        end,
                        own,
                        is_left,
                        ..
                    } = self.calls[call.data];
                    prop_assert_eq!(call.begin, begin);
                    prop_assert!(!is_left || call.duration().is_none(), "{:?}", call);
                    let took = end.map(|(end, _)| end - begin);
                    if call.duration().is_some() {
                        prop_assert_eq!(call.duration(), took);
                        let is_unwound = call.ending == Ending::Unwound;
                        prop_assert_eq!(Some(is_unwound), end.map(|(_, it)| it));
                    }
                    prop_assert!(took.is_none_or(|took| call.ran <= took), "{:?}", call);
                    prop_assert!(call.own <= own, "{:?} of {}", call, own);
                    prop_assert!(ended.insert(call.data, call).is_none(), "{:?} twice", call);
                }
            }
        }
        Ok(())
    }
}

fn steps() -> impl Strategy<Value = Vec<(Step, u64)>> {
    prop::collection::vec((step(), 0..9_u64), 1..200)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn without_losses_all_is_known(mut steps in steps()) {
        steps.retain(|(step, _)| !matches!(step, Step::Jump(_)));
        let truth = Truth::of(&steps, &[Room::Some]);
        truth.check(0, true)?;
        let mut pairing = Pairing::new();
        for &(time, what) in &truth.written {
            match what {
                Written::Entry(call) => pairing.enter(truth.calls[call].function, time, call),
                Written::End(call) => {
                    prop_assert!(pairing.exit(truth.calls[call].function, time, Ending::Returned));
                }
                _ => continue,
            }
            while let Some(change) = pairing.change() {
                if let Change::Ended(call) = change {
                    prop_assert_eq!(call.own, truth.calls[call.data].own);
                }
            }
        }
    }

    #[test]
    fn without_losses_calls_left_by_jumps_end_before_the_next_event(steps in steps()) {
        let truth = Truth::of(&steps, &[Room::Some]);
        truth.check(0, true)?;
    }

    #[test]
    fn with_dropped_events_what_is_shown_is_right(steps in steps(), room in room()) {
        Truth::of(&steps, &room).check(0, true)?;
    }

    #[test]
    fn with_overwritten_events_what_is_shown_is_right(
        steps in steps(),
        room in room(),
        cuts in prop::collection::vec((0..200_usize, 1..30_usize), 0..5),
    ) {
        let mut truth = Truth::of(&steps, &room);
        cuts.iter().for_each(|&(at, len)| truth.cut(at, len));
        truth.check(0, false)?;
    }

    #[test]
    fn from_the_middle_on_what_is_shown_is_right(
        steps in steps(),
        room in room(),
        from in 0..200_usize,
    ) {
        Truth::of(&steps, &room).check(from, false)?;
    }
}
