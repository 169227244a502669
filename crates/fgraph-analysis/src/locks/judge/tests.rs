//! Locks of calls that are made up.

use super::*;

const WAIT: u32 = 5;

fn place(at: u64) -> Place {
    Place { at, stack: 0 }
}

/// Events of threads: what a thread does with which lock; times count up.
fn locks(events: &[(u32, Action, u64)]) -> Locks {
    let mut locks = Locks::default();
    let actions = [
        Action::Lock,
        Action::Try,
        Action::Unlock,
        Action::Destroy,
        Action::Wait,
    ];
    for (index, action) in (1..).zip(actions) {
        locks.actions.insert((1, index), Some((action, false)));
    }
    for (now, &(thread, action, lock)) in (1..).zip(events) {
        let index = 1 + actions.iter().position(|it| *it == action).unwrap() as u32;
        let arguments = if index == WAIT { [0, lock] } else { [lock, 0] };
        let (thread, now) = ((1, thread), 10 * now);
        let names = Names::new(1);
        locks.enter(thread, index, arguments, place(now), now, &names);
        locks.leave(thread, index, Some(0), now + 5, Ending::Returned);
    }
    locks
}

fn inversions(events: &[(u32, Action, u64)]) -> Vec<Vec<(u64, u64)>> {
    let found = locks(events).inversions;
    let pairs = |it: Inversion| it.orders.iter().map(|it| (it.held, it.taken)).collect();
    found.into_iter().map(pairs).collect()
}

#[test]
fn an_order_that_contradicts_others_is_an_inversion() {
    use Action::{Lock, Try, Unlock};
    let take = |thread, first, second| {
        [
            (thread, Lock, first),
            (thread, Lock, second),
            (thread, Unlock, second),
            (thread, Unlock, first),
        ]
    };
    let same = [take(1, 7, 8), take(2, 7, 8)].concat();
    assert_eq!(inversions(&same), [[]; 0]);
    let two = [take(1, 7, 8), take(2, 8, 7), take(1, 8, 7)].concat();
    assert_eq!(inversions(&two), [[(8, 7), (7, 8)]]);
    let three = [take(1, 7, 8), take(1, 8, 9), take(2, 9, 7)].concat();
    assert_eq!(inversions(&three), [[(9, 7), (7, 8), (8, 9)]]);
    let tried = [&take(1, 7, 8)[..], &[(2, Lock, 8), (2, Try, 7)]].concat();
    assert_eq!(inversions(&tried), [[]; 0]);
}

#[test]
fn a_lock_that_was_destroyed_has_no_order() {
    use Action::{Destroy, Lock, Unlock};
    let first = [(1, Lock, 7), (1, Lock, 8), (1, Unlock, 8), (1, Unlock, 7)];
    let second = [(1, Lock, 8), (1, Lock, 7), (1, Unlock, 7), (1, Unlock, 8)];
    for destroyed in [7, 8] {
        let all = [&first[..], &[(1, Destroy, destroyed)], &second].concat();
        assert_eq!(inversions(&all), [[]; 0]);
    }
}

#[test]
fn a_lock_is_held_until_it_is_released_or_waited_with() {
    use Action::{Lock, Unlock, Wait};
    let taken = [(1, Lock, 7), (1, Lock, 7), (1, Unlock, 7), (1, Unlock, 7)];
    let held = locks(&taken).locks[&(1, 7)].held;
    assert_eq!((held.count, held.longest, held.place), (1, 25, place(10)));
    let waits = [(1, Lock, 7), (1, Wait, 7), (1, Unlock, 7)];
    let lock = locks(&waits).locks[&(1, 7)];
    assert_eq!((lock.held.count, lock.held.sum), (2, 10));
    // Nobody else has it.
    assert_eq!((lock.waited.count, lock.waited.sum), (0, 0));
}

#[test]
fn a_lock_is_waited_for_only_while_another_thread_has_it() {
    const READ: u32 = 9;
    let names = Names::new(1);
    let mut found = locks(&[]);
    let read = Some((Action::Lock, true));
    found.actions.insert((1, READ), read);
    let mut time = 0;
    let mut step = |found: &mut Locks, thread: u32, function: u32, is_entry: bool| {
        time += 10;
        let thread = (1, thread);
        match is_entry {
            true => found.enter(thread, function, [7, 0], place(time), time, &names),
            false => found.leave(thread, function, Some(0), time, Ending::Returned),
        }
    };
    let waits = |found: &Locks| found.locks.get(&(1, 7)).map_or(0, |it| it.waited.count);
    // Thread 1 has it before recording begins, which its release tells.
    step(&mut found, 2, 1, true);
    step(&mut found, 1, 3, true);
    step(&mut found, 2, 1, false);
    assert_eq!(waits(&found), 1);
    step(&mut found, 2, 3, true);
    // Both ask, and thread 1 takes it first.
    step(&mut found, 2, 1, true);
    step(&mut found, 1, 1, true);
    step(&mut found, 1, 1, false);
    step(&mut found, 1, 3, true);
    step(&mut found, 2, 1, false);
    step(&mut found, 2, 3, true);
    assert_eq!(waits(&found), 2);
    // Readers do not wait for each other, but for a writer.
    step(&mut found, 1, READ, true);
    step(&mut found, 1, READ, false);
    step(&mut found, 2, READ, true);
    step(&mut found, 2, READ, false);
    assert_eq!(waits(&found), 2);
    step(&mut found, 3, 1, true);
    step(&mut found, 1, 3, true);
    step(&mut found, 2, 3, true);
    step(&mut found, 3, 1, false);
    assert_eq!(waits(&found), 3);
    step(&mut found, 1, READ, true);
    step(&mut found, 3, 3, true);
    step(&mut found, 1, READ, false);
    assert_eq!(waits(&found), 4);
    assert!(found.asking.is_empty());
}

#[test]
fn a_wait_has_the_thread_that_held_the_lock() {
    let names = Names::new(1);
    let mut found = locks(&[(1, Action::Lock, 7)]);
    found.enter((1, 2), 1, [7, 0], place(99), 20, &names);
    found.enter((1, 1), 3, [7, 0], place(98), 30, &names);
    found.leave((1, 1), 3, Some(0), 31, Ending::Returned);
    found.leave((1, 2), 1, Some(0), 40, Ending::Returned);
    let waited = found.locks[&(1, 7)].waited;
    let holder = Holder {
        thread: 1,
        place: place(10),
        is_shared: false,
    };
    assert_eq!((waited.longest, waited.holder), (20, Some(holder)));
}

#[test]
fn stacks_are_kept_once() {
    let mut stacks = Stacks::default();
    let numbers = [&[1, 2][..], &[], &[3], &[1, 2]].map(|stack| stacks.number(stack));
    assert_eq!(numbers, [1, 0, 2, 1]);
    assert_eq!((stacks.get(1), stacks.get(0)), (&[1, 2][..], &[][..]));
}

#[test]
fn held_locks_are_unknown_after_a_loss() {
    use Action::{Lock, Unlock};
    let mut found = locks(&[(1, Lock, 7)]);
    found.lose((1, 1), 3, None);
    assert_eq!(found.lost, 3);
    assert!(found.threads[&(1, 1)].holds.is_empty());
    let again = locks(&[(1, Unlock, 7)]);
    assert_eq!(again.locks.len(), 0);
}

#[test]
fn a_call_that_goes_on_after_a_loss_takes_its_lock() {
    let (thread, names) = ((1, 1), Names::new(1));
    for (ends, waits) in [(Some(0), 1), (Some(1), 0), (None, 0)] {
        let mut found = locks(&[(2, Action::Lock, 7)]);
        found.enter(thread, 1, [7, 0], place(0), 10, &names);
        found.lose(thread, 1, ends);
        found.leave(thread, 1, Some(0), 30, Ending::Returned);
        let waited = found.locks.get(&(1, 7)).map_or(0, |lock| lock.waited.count);
        let holds = found.threads[&thread].holds.len();
        assert_eq!((waited, holds), (waits, waits as usize), "{ends:?}");
    }
}
