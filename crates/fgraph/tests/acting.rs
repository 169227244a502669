//! Users that act on calls: they skip them, send them elsewhere, and change `errno`.

use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::mem;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering::SeqCst};

use fgraph::{Entry, FgraphOps, MAX_USERS, Outcome, Return, UserId, UserStatus, WriteError};
use fgraph_scenario::{Count, Log, register, scenario, traceable, user};

/// Bodies that have run.
#[unsafe(export_name = "acting_run")]
static RUN: AtomicU64 = AtomicU64::new(0);

// With a NOP, and so through the trampoline that keeps to the ABI.
traceable!(
    "padded_sum",
    "lea rax, [rdi + rsi]",
    "lock inc qword ptr [rip + acting_run]",
    "ret",
);

unsafe extern "C" {
    fn padded_sum(a: u64, b: u64) -> u64;
}

fn call_padded(a: u64, b: u64) -> u64 {
    // SAFETY: it takes any numbers.
    unsafe { padded_sum(a, b) }
}

// Without, through the one that preserves every register.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn sum(a: u64, b: u64) -> u64 {
    RUN.fetch_add(1, SeqCst);
    a.wrapping_add(b)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn float_sum(a: f64, b: f64) -> f64 {
    RUN.fetch_add(1, SeqCst);
    a + b
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn single_sum(a: f32, b: f32) -> f32 {
    RUN.fetch_add(1, SeqCst);
    a + b
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn wide_sum(a: u128, b: u128) -> u128 {
    RUN.fetch_add(1, SeqCst);
    a.wrapping_add(b)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn note(a: u64) {
    RUN.fetch_add(a, SeqCst);
}

/// Bodies that have run since this was asked last.
fn run() -> u64 {
    RUN.swap(0, SeqCst)
}

/// Skips calls, and takes them if it is to.
struct Skip {
    outcome: Outcome,
    accept: bool,
}

impl FgraphOps for Skip {
    type Data = ();

    fn entry(&self, call: &mut Entry<'_, ()>) -> Option<()> {
        // SAFETY: the scenario's functions do nothing that it needs, and it expects what they
        // return.
        unsafe { call.rewrite() }.skip(self.outcome).unwrap();
        self.accept.then_some(())
    }

    fn ret(&self, call: &mut Return<'_, ()>, (): ()) {
        assert_eq!(call.replaced_by(), Some(call.user_id()));
    }
}

/// An event that a user sees: the entry with the arguments, or the return with the result, each
/// with the user that has replaced the call.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Seen {
    Entry([u64; 2], Option<UserId>),
    Return(u64, Option<UserId>),
}

/// Watches and takes every call.
fn watcher(log: &Log<Seen>) -> impl FgraphOps + use<> {
    let (entries, returns) = (log.clone(), log.clone());
    user(
        move |call| {
            let args = [0, 1].map(|index| call.arg(index).unwrap());
            assert!(call.function().name().to_string().ends_with("sum"));
            entries.push(Seen::Entry(args, call.replaced_by()));
            Some(())
        },
        move |call, ()| returns.push(Seen::Return(call.result().unwrap(), call.replaced_by())),
    )
}

/// Returns the number of `watchers` that saw the entry before the user `by`, which replaced the
/// call by `result`. Slots are not taken in the order of their numbers.
fn place_of(by: UserId, result: u64, watchers: usize, seen: Vec<Seen>) -> usize {
    let is_before = |&&seen: &&Seen| seen == Seen::Entry([2, 3], None);
    let before = seen.iter().take_while(is_before).count();
    let by = Some(by);
    let mut expected = vec![Seen::Entry([2, 3], None); before];
    expected.resize(watchers, Seen::Entry([2, 3], by));
    expected.extend(vec![Seen::Return(result, by); watchers]);
    assert_eq!(seen, expected);
    before
}

#[scenario]
fn a_skipped_call_returns_at_once_and_every_user_sees_it() {
    type Sum = fn(u64, u64) -> u64;
    let functions: [(&str, Sum); 2] = [("sum", |a, b| sum(a, b)), ("padded_sum", call_padded)];
    let [mut is_first, mut is_last] = [false; 2];
    for (name, function) in functions {
        for (before, after) in [(11, 0), (0, 11), (15, 0), (0, 0)] {
            for accept in [false, true] {
                let log = Log::new();
                let watch = |_| register(watcher(&log), name).unwrap();
                let older: Vec<_> = (0..before).map(watch).collect();
                let outcome = Outcome::Int(!0);
                let skip = register(Skip { outcome, accept }, name).unwrap();
                let newer: Vec<_> = (0..after).map(watch).collect();
                run();
                assert_eq!(function(2, 3), !0, "{name} {before} {after} {accept}");
                assert_eq!(run(), 0);
                let place = place_of(skip.id(), !0, before + after, log.take());
                is_first |= place == 0 && after > 0;
                is_last |= place == before && before > 0;
                assert_eq!(skip.status(), UserStatus::Active);
                // The facts about a skipped call do not remain for the next call at the
                // same place.
                drop((skip, newer));
                assert_eq!((function(2, 3), run()), (5, 1));
                let entries = vec![Seen::Entry([2, 3], None); before];
                let returns = vec![Seen::Return(5, None); before];
                assert_eq!(log.take(), [entries, returns].concat());
                drop(older);
                assert_eq!((function(2, 3), run()), (5, 1));
            }
        }
    }
    assert!(is_first && is_last);
}

#[scenario]
fn a_skipped_call_returns_a_result_of_the_functions_type() {
    for watch in [false, true] {
        let skip = |outcome: Outcome, name: &str| {
            let watcher = watch.then(|| register(Count::default(), name).unwrap());
            let accept = watch;
            (register(Skip { outcome, accept }, name).unwrap(), watcher)
        };
        let _float = skip(2.5.into(), "float_sum");
        let _single = skip(0.25f32.into(), "single_sum");
        let _wide = skip(Outcome::Ints(1, u64::MAX), "wide_sum");
        let _nothing = skip(().into(), "note");
        let _int = skip((-1i32).into(), "sum");
        run();
        assert_eq!(float_sum(1.0, 1.0), 2.5);
        assert_eq!(single_sum(1.0, 1.0), 0.25);
        assert_eq!(wide_sum(1, 1), u128::from(u64::MAX) << 64 | 1);
        note(7);
        assert_eq!(sum(1, 1) as i64, -1);
        assert_eq!(run(), 0);
    }
}

/// Returns its result in memory of the caller.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn four_sums(a: u64) -> FourWords {
    RUN.fetch_add(1, SeqCst);
    FourWords([a; 4])
}

#[repr(C)]
#[derive(Debug, PartialEq)]
struct FourWords([u64; 4]);

#[scenario]
fn a_skipped_call_with_a_result_in_memory_returns_the_written_bytes() {
    let skips = user(
        |call: &mut Entry<'_, ()>| {
            let place = call.arg(0).unwrap();
            assert_eq!(call.arg(1), Some(20));
            let room = ptr::with_exposed_provenance_mut(place as usize);
            // SAFETY: the caller has made room for the result there.
            unsafe { ptr::write(room, FourWords([1, 2, 3, 4])) };
            // SAFETY: nothing else is needed of the function.
            unsafe { call.rewrite() }.skip(place).unwrap();
            Some(())
        },
        |call, ()| assert!(call.replaced_by().is_some()),
    );
    let _skips = register(skips, "four_sums").unwrap();
    assert_eq!(four_sums(20), FourWords([1, 2, 3, 4]));
    assert_eq!(run(), 0);
}

#[scenario]
fn the_first_user_to_replace_a_call_wins() {
    let log = Log::new();
    let errors = log.clone();
    let outcome = Outcome::Int(1);
    let first = register(
        Skip {
            outcome,
            accept: false,
        },
        "sum",
    )
    .unwrap();
    let second = register(
        user(
            move |call: &mut Entry<'_, ()>| {
                // SAFETY: nothing is written.
                let mut writer = unsafe { call.rewrite() };
                errors.push(writer.skip(2));
                errors.push(writer.redirect(sum as *const ()));
                errors.push(writer.redirect(ptr::null()));
                None
            },
            |_, ()| (),
        ),
        "sum",
    )
    .unwrap();
    run();
    assert_eq!((sum(5, 6), run()), (1, 0));
    let by = first.id();
    let already = WriteError::AlreadyReplaced { by };
    let no_target = Err(WriteError::NoTarget);
    assert_eq!(log.take(), [Err(already), Err(already), no_target]);
    assert_eq!(
        already.to_string(),
        format!("{by} has replaced the call already")
    );
    // Without the first there is nothing in the second's way.
    drop(first);
    assert_eq!((sum(5, 6), run()), (2, 0));
    let by = second.id();
    let already = Err(WriteError::AlreadyReplaced { by });
    assert_eq!(log.take(), [Ok(()), already, no_target]);
}

#[scenario]
fn a_call_of_a_skipped_tail_call_is_not_taken_for_replaced() {
    // The frame is that of `jumper`, and `sum` has none: its code is jumped to from there.
    let log = Log::new();
    let returns = log.clone();
    let _watcher = register(
        user(
            |_| Some(()),
            move |call, ()| returns.push((call.result(), call.replaced_by())),
        ),
        "tail_caller",
    )
    .unwrap();
    let outcome = Outcome::Int(9);
    let _skip = register(
        Skip {
            outcome,
            accept: false,
        },
        "sum",
    )
    .unwrap();
    // SAFETY: it takes any numbers.
    assert_eq!(unsafe { tail_caller(1, 2) }, 9);
    assert_eq!(log.take(), [(Some(9), None)]);
}

traceable!("tail_caller", "jmp sum");

unsafe extern "C" {
    fn tail_caller(a: u64, b: u64) -> u64;
}

const ENOENT: c_int = libc::ENOENT;

#[scenario]
fn a_fault_injector_s_errno_arrives_in_the_program() {
    let this = std::env::current_exe().unwrap();
    let open = || File::open(&this).map(drop).map_err(|error| error.kind());
    assert_eq!(open(), Ok(()));
    let watchers = [false, true];
    for watch in watchers {
        let _before = watch.then(|| register(Count::default(), "open64").unwrap());
        // Instead of the call.
        let injector = register(
            user(
                |call: &mut Entry<'_, ()>| {
                    // SAFETY: callers of `open` expect that it fails.
                    let mut writer = unsafe { call.rewrite() };
                    writer.skip(-1).unwrap();
                    writer.set_errno(ENOENT);
                    None
                },
                |_, ()| (),
            ),
            "open64",
        )
        .unwrap();
        let after = watch.then(|| register(Count::default(), "open64").unwrap());
        assert!(injector.report().unwrap().traced > 0);
        assert_eq!(open(), Err(io::ErrorKind::NotFound));
        drop((injector, after));
        assert_eq!(open(), Ok(()));
        // After the call, whose file is closed.
        let _injector = register(
            user(
                |_| Some(()),
                |call: &mut Return<'_, ()>, ()| {
                    let file = call.result().unwrap() as c_int;
                    // SAFETY: callers of `open` expect that it fails; nobody has the file yet.
                    unsafe {
                        libc::close(file);
                        let mut writer = call.rewrite();
                        writer.set_result(-1i64 as u64).unwrap();
                        writer.set_errno(ENOENT);
                    }
                },
            ),
            "open64",
        )
        .unwrap();
        assert_eq!(open(), Err(io::ErrorKind::NotFound));
    }
}

#[scenario]
fn callbacks_do_not_change_errno() {
    let set = |errno| {
        // SAFETY: this thread's own.
        unsafe { *libc::__errno_location() = errno };
    };
    let get = || io::Error::last_os_error().raw_os_error().unwrap();
    let log = Log::new();
    let noisy = |change: bool| {
        let (entries, returns) = (log.clone(), log.clone());
        user(
            move |call: &mut Entry<'_, ()>| {
                set(77);
                entries.push(call.errno());
                if change {
                    // SAFETY: the function does not look at it.
                    let mut writer = unsafe { call.rewrite() };
                    writer.set_errno(5);
                    assert_eq!(call.errno(), 5);
                }
                set(78);
                Some(())
            },
            move |call, ()| {
                set(79);
                returns.push(call.errno());
                if change {
                    // SAFETY: the scenario looks at it.
                    unsafe { call.rewrite() }.set_errno(6);
                    assert_eq!(call.errno(), 6);
                }
                set(80);
            },
        )
    };
    let _users = [false, true, false].map(|change| register(noisy(change), "sum").unwrap());
    set(3);
    sum(1, 1);
    assert_eq!(get(), 6);
    // The users are told in the reverse order.
    assert_eq!(log.take(), [3, 3, 5, 5, 5, 6]);
}

/// Address at which `sum` itself runs.
static ORIGINAL: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

extern "C" fn doubled(a: u64, b: u64) -> u64 {
    type Sum = extern "C" fn(u64, u64) -> u64;
    // SAFETY: the address at which `sum` or `padded_sum` goes on.
    let original: Sum = unsafe { mem::transmute(ORIGINAL.load(SeqCst)) };
    2 * original(a, b)
}

#[scenario]
fn a_redirected_call_runs_the_replacement_which_may_call_the_original() {
    type Sum = fn(u64, u64) -> u64;
    let functions: [(&str, Sum); 2] = [("sum", |a, b| sum(a, b)), ("padded_sum", call_padded)];
    for (name, function) in functions {
        for watchers in [0, MAX_USERS - 1] {
            for accept in [false, true] {
                let redirect = register(
                    user(
                        move |call: &mut Entry<'_, ()>| {
                            ORIGINAL.store(call.function().original().cast_mut(), SeqCst);
                            // SAFETY: `doubled` is a function of the same type, and this
                            // scenario relies on the ABI only.
                            let mut writer = unsafe { call.rewrite() };
                            writer.redirect(doubled as *const ()).unwrap();
                            accept.then_some(())
                        },
                        |call, ()| assert_eq!(call.replaced_by(), Some(call.user_id())),
                    ),
                    name,
                )
                .unwrap();
                let log = Log::new();
                let watch = |_| register(watcher(&log), name).unwrap();
                let watching: Vec<_> = (0..watchers).map(watch).collect();
                run();
                assert_eq!((function(2, 3), run()), (10, 1));
                place_of(redirect.id(), 10, watchers, log.take());
                assert_eq!(redirect.status(), UserStatus::Active);
                drop((redirect, watching));
                assert_eq!((function(2, 3), run()), (5, 1));
            }
        }
    }
}

#[scenario]
fn a_panic_in_a_replacement_goes_through_to_the_caller() {
    extern "C-unwind" fn panics(a: u64, _: u64) -> u64 {
        panic!("{a}");
    }
    let told = Arc::new(AtomicUsize::new(0));
    let by_unwinding = told.clone();
    for accept in [false, true] {
        let by_unwinding = by_unwinding.clone();
        let _redirect = register(
            user(
                move |call: &mut Entry<'_, ()>| {
                    // SAFETY: a function of the same type, whose panic the scenario
                    // catches.
                    let mut writer = unsafe { call.rewrite() };
                    writer.redirect(panics as *const ()).unwrap();
                    accept.then_some(())
                },
                move |call, ()| {
                    assert_eq!(call.replaced_by(), Some(call.user_id()));
                    by_unwinding.fetch_add(usize::from(call.unwinding()), SeqCst);
                },
            ),
            "unwinding_sum",
        )
        .unwrap();
        let caught = std::panic::catch_unwind(|| unwinding_sum(4, 5)).unwrap_err();
        assert_eq!(caught.downcast_ref::<String>().unwrap(), "4");
        assert_eq!(told.load(SeqCst), usize::from(accept));
    }
    assert_eq!(unwinding_sum(4, 5), 9);
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C-unwind" fn unwinding_sum(a: u64, b: u64) -> u64 {
    RUN.fetch_add(1, SeqCst);
    a.wrapping_add(b)
}

#[scenario]
fn the_linker_s_event_cannot_be_replaced() {
    let log = Log::new();
    let results = log.clone();
    let saboteur = register(
        user(
            move |call: &mut Entry<'_, ()>| {
                let address = call.function().address();
                // SAFETY: refused.
                let mut writer = unsafe { call.rewrite() };
                let expected = Err(WriteError::MustRun { address });
                let is_refused = [writer.skip(()), writer.redirect(sum as *const ())]
                    .iter()
                    .all(|result| *result == expected);
                results.push(is_refused);
                None
            },
            |_, ()| (),
        ),
        "_dl_debug_state",
    )
    .unwrap();
    assert_eq!(
        saboteur.report().unwrap().traced,
        1,
        "{:?}",
        saboteur.report()
    );
    // SAFETY: a library that has no constructors of interest.
    let library = unsafe { libc::dlopen(c"libutil.so.1".as_ptr(), libc::RTLD_NOW) };
    assert!(!library.is_null());
    let seen = log.take();
    assert!(
        !seen.is_empty() && seen.iter().all(|refused| *refused),
        "{seen:?}"
    );
}

traceable!(
    "outer_call",
    "sub rsp, 8",
    "call inner_call",
    "add rsp, 8",
    "ret"
);
traceable!("inner_call", "sub rsp, 8", "call sum", "add rsp, 8", "ret");

unsafe extern "C" {
    fn outer_call(a: u64, b: u64) -> u64;
    fn inner_call(a: u64, b: u64) -> u64;
    fn jumping_call(a: u64, b: u64) -> u64;
}

traceable!("jumping_call", "jmp inner_call");

#[scenario]
fn callers_of_a_call_that_is_made_by_a_jump_are_those_of_the_one_that_jumped() {
    let log = Log::new();
    let (entries, returns) = (log.clone(), log.clone());
    let seen = |address, addresses: &[usize]| {
        assert_eq!(addresses.first(), Some(&address));
        let start = inner_call as *const () as usize;
        let behind = |address: &usize| address.wrapping_sub(start) < 32;
        addresses.iter().map(behind).collect::<Vec<_>>()
    };
    let user = user(
        move |call| {
            let mut addresses = [0; 8];
            let filled = call.callers(&mut addresses);
            entries.push(seen(call.return_address(), &addresses[..filled]));
            Some(())
        },
        move |call, ()| {
            let mut addresses = [0; 8];
            let filled = call.callers(&mut addresses);
            returns.push(seen(call.return_address(), &addresses[..filled]));
        },
    );
    let _user = register(user, "jumping_call inner_call sum").unwrap();
    // SAFETY: it takes any numbers.
    assert_eq!(unsafe { jumping_call(2, 3) }, 5);
    let [inner, test] = [true, false];
    assert_eq!(
        log.take(),
        [
            vec![test],
            vec![test],
            vec![inner, test],
            vec![inner, test],
            vec![test],
            vec![test],
        ]
    );
}

#[scenario]
fn callers_and_a_users_own_depth_are_right() {
    let log = Log::new();
    let (entries, returns) = (log.clone(), log.clone());
    // The view of a callback: the depth of all calls, its own depth, and the distances of the
    // return addresses from the starts of their functions.
    let seen = |depth, own, addresses: &[usize]| {
        let starts = [inner_call, outer_call].map(|function| function as *const () as usize);
        let behind = |address: &usize| starts.map(|start| address.wrapping_sub(start) < 32);
        (depth, own, addresses.iter().map(behind).collect::<Vec<_>>())
    };
    let both = register(
        user(
            move |call| {
                let mut addresses = [0; 8];
                let filled = call.callers(&mut addresses);
                assert_eq!(
                    (addresses[0], call.callers(&mut [])),
                    (call.return_address(), 0)
                );
                entries.push(seen(call.depth(), call.own_depth(), &addresses[..filled]));
                (call.function().address() != inner_call as *const () as usize).then_some(())
            },
            move |call, ()| {
                let mut addresses = [0; 2];
                let filled = call.callers(&mut addresses);
                returns.push(seen(call.depth(), call.own_depth(), &addresses[..filled]));
            },
        ),
        "outer_call inner_call sum",
    )
    .unwrap();
    let _other = register(Count::default(), "inner_call").unwrap();
    assert_eq!(both.report().unwrap().traced, 3, "{:?}", both.report());
    // SAFETY: it takes any numbers.
    assert_eq!(unsafe { outer_call(2, 3) }, 5);
    let [inner, outer, test] = [[true, false], [false, true], [false, false]];
    assert_eq!(
        log.take(),
        [
            (0, 0, vec![test]),
            (1, 1, vec![outer, test]),
            (2, 1, vec![inner, outer, test]),
            (2, 1, vec![inner, outer]),
            (0, 0, vec![test]),
        ]
    );
}
