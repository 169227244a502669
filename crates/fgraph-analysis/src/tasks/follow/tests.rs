//! Tasks of events that are made up.

use fgraph_trace::event::FIRST_INTERPRETED;
use fgraph_trace::names::Description;

use super::*;

const POLL: u32 = 1;
const OTHER_POLL: u32 = 2;
const WAKE: u32 = 3;
const BIND: u32 = 4;
const COMPLETE: u32 = 5;
const HANDLER: u32 = 6;
const GLUE: u32 = 7;
const RUN: u32 = 8;
const RELEASE: u32 = 9;
const COROUTINE: u32 = FIRST_INTERPRETED + 1;
const CLOSES: u32 = FIRST_INTERPRETED + 2;

const FUNCTIONS: &[(u32, &str)] = &[
    (POLL, "tokio::runtime::task::raw::poll"),
    (OTHER_POLL, "tokio::runtime::task::raw::poll"),
    (WAKE, "tokio::runtime::task::waker::wake_by_val"),
    (
        BIND,
        "tokio::runtime::task::list::OwnedTasks<S>::bind_inner",
    ),
    (
        COMPLETE,
        "tokio::runtime::task::harness::Harness<T,S>::complete",
    ),
    (HANDLER, "app::handle::{{closure}}"),
    (
        GLUE,
        "core::ptr::drop_in_place<tokio::runtime::task::core::Stage<app::serve::{{closure}}>>",
    ),
    (RUN, "tokio::runtime::scheduler::multi_thread::worker::run"),
    (
        RELEASE,
        "tokio::sync::batch_semaphore::Semaphore::add_permits_locked",
    ),
    (COROUTINE, "app.fetch"),
    (CLOSES, "builtins.coroutine.close"),
];

/// Time, thread, and either the entered function with a word of its arguments (0 for none) or the
/// function that is left.
type Moment = (u64, u32, Result<(u32, u64), u32>);

fn tasks(events: &[Moment]) -> Tasks {
    let mut names = Names::new(1);
    for (index, name) in FUNCTIONS {
        names.add(Description {
            kind: DescriptionKind::Function,
            fields: [1, u64::from(*index), u64::from(*index) << 8, 16],
            texts: [(*name).to_owned(), "app".to_owned()],
        });
    }
    let mut tasks = Tasks::new(100);
    for &(time, thread, what) in events {
        let words;
        let what = match what {
            Ok((function, word)) => {
                words = [word, word];
                What::Entry {
                    function,
                    arguments: if word == 0 { &[] } else { &words },
                    caller: None,
                    is_entry_only: false,
                }
            }
            Err(function) => What::returned(function),
        };
        tasks.step(&Step::of(&Event::new(time, 1, thread, what)), &names);
    }
    tasks.finish(&names);
    tasks
}

#[test]
fn polls_belong_to_their_task_whichever_thread_polls_it() {
    let tasks = tasks(&[
        (10, 1, Ok((BIND, 0x70))),
        (11, 1, Err(BIND)),
        (20, 1, Ok((POLL, 0x70))),
        (22, 1, Ok((HANDLER, 0))),
        (50, 1, Err(HANDLER)),
        (60, 1, Err(POLL)),
        (100, 1, Ok((WAKE, 0x70))),
        (101, 1, Err(WAKE)),
        (300, 2, Ok((POLL, 0x70))),
        (310, 2, Ok((HANDLER, 0))),
        (490, 2, Err(HANDLER)),
        (495, 2, Ok((COMPLETE, 0x70))),
        (496, 2, Err(COMPLETE)),
        (500, 2, Err(POLL)),
        // Another task with the same address.
        (600, 1, Ok((POLL, 0x70))),
        (610, 1, Err(POLL)),
    ]);
    let [kind] = &tasks.kinds[..] else {
        panic!("{:?}", tasks.kinds);
    };
    assert_eq!(kind.name(), "app::handle::{{closure}}");
    let sums = &kind.sums;
    assert_eq!((sums.tasks, sums.ended, sums.polls), (2, 1, 3));
    assert_eq!(
        (sums.time, sums.long, sums.firsts),
        (40 + 200 + 10, 1, (1, 10))
    );
    let longest = sums.longest.as_ref().unwrap();
    assert_eq!(
        (longest.begin, longest.ticks, longest.thread),
        (300, 200, 2)
    );
    assert_eq!(longest.path, ["app::handle::{{closure}}"]);
    let late = sums.late.unwrap();
    assert_eq!((late.from, late.ticks), (100, 200));
    let [waits] = &sums.waits[..] else {
        panic!("{sums:?}");
    };
    assert_eq!((waits.count, waits.time, waits.longest.from), (1, 40, 60));
    assert_eq!(tasks.tasks[1].polled, Some((600, Some(610))));
    assert_eq!(tasks.tasks[1].ended, None);
}

#[test]
fn a_wait_names_its_reason_and_the_task_that_ended_it() {
    let tasks = tasks(&[
        (10, 1, Ok((POLL, 0x70))),
        (20, 1, Err(POLL)),
        (30, 1, Ok((OTHER_POLL, 0x80))),
        (31, 1, Ok((HANDLER, 0))),
        (40, 1, Ok((RELEASE, 0x99))),
        (50, 1, Ok((WAKE, 0x70))),
        (51, 1, Err(WAKE)),
        (52, 1, Err(RELEASE)),
        (60, 1, Err(HANDLER)),
        (230, 1, Err(OTHER_POLL)),
        (260, 1, Ok((POLL, 0x70))),
        (270, 1, Ok((GLUE, 0))),
        (271, 1, Err(GLUE)),
        (280, 1, Err(POLL)),
    ]);
    let first = &tasks.kinds[0];
    assert_eq!(first.name(), "app::serve::{{closure}}");
    let [waits] = &first.sums.waits[..] else {
        panic!("{first:?}");
    };
    let wait = &waits.longest;
    assert_eq!(
        (wait.ticks, waits.reason),
        (30, Some("a lock or a semaphore"))
    );
    let by = wait.by.and_then(|task| tasks.name_of(task));
    assert_eq!(by.as_deref(), Some("app::handle::{{closure}} #1"));
    assert_eq!(wait.function.as_deref(), Some("app::handle::{{closure}}"));
    // It was late because of the other one.
    let late = first.sums.late.unwrap();
    assert_eq!(late.ticks, 210);
    let (poll, ticks) = tasks.instead(&late).unwrap();
    assert_eq!((poll.begin, ticks), (30, 180));
}

#[test]
fn a_coroutine_that_is_closed_without_being_awaited_is_no_task() {
    let closed = [
        (10, 1, Ok((CLOSES, 0))),
        (11, 1, Ok((COROUTINE, 0x70))),
        (12, 1, Err(COROUTINE)),
        (13, 1, Err(CLOSES)),
    ];
    assert!(tasks(&closed).tasks.is_empty());
    let awaited = [(5, 1, Ok((COROUTINE, 0x70))), (6, 1, Err(COROUTINE))];
    let tasks = tasks(&[&awaited[..], &closed].concat());
    let polls: Vec<_> = tasks.tasks.iter().map(|task| task.polls).collect();
    assert_eq!(polls, [2]);
}

#[test]
fn the_task_of_a_worker_is_none_of_the_programs() {
    let tasks = tasks(&[
        (10, 1, Ok((OTHER_POLL, 0x60))),
        (11, 1, Ok((RUN, 0))),
        (20, 1, Ok((POLL, 0x70))),
        (21, 1, Ok((HANDLER, 0))),
        (22, 1, Err(HANDLER)),
        (30, 1, Err(POLL)),
        (900, 1, Err(RUN)),
        (901, 1, Err(OTHER_POLL)),
    ]);
    let names: Vec<_> = (0..2).map(|task| tasks.name_of(task)).collect();
    assert_eq!(
        names,
        [None, Some("app::handle::{{closure}} #1".to_owned())]
    );
}

#[test]
fn a_task_whose_poll_goes_on_at_the_end_is_polled() {
    let tasks = tasks(&[(10, 1, Ok((POLL, 0x70))), (500, 1, Ok((HANDLER, 0)))]);
    assert_eq!(tasks.tasks[0].polled, Some((10, None)));
    let longest = tasks.kinds[0].sums.longest.as_ref().unwrap();
    assert_eq!(longest.ticks, 490);
}
