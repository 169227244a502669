//! Functions of the C library, which nobody has prepared for being traced.

// Long strings: formats.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::hint::black_box;
use std::ptr;

use fgraph::{Entry, FgraphOps, Handle, Return};
use fgraph_scenario::{Library, Log, Paired, numbers, scenario};

/// A call as a callback saw it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Event {
    /// The function's address, the integer arguments, the first two of floating point.
    Entry(usize, [u64; 6], [f64; 2]),
    /// The function's address, its integer and its floating-point result.
    Return(usize, u64, f64),
}

/// User that notes its events.
struct Notes(Log<Event>);

impl FgraphOps for Notes {
    type Data = usize;

    fn entry(&self, call: &mut Entry<'_, usize>) -> Option<usize> {
        let function = call.function().address();
        let ints = std::array::from_fn(|index| call.arg(index).unwrap());
        let floats = std::array::from_fn(|index| call.float_arg(index).unwrap());
        self.0.push(Event::Entry(function, ints, floats));
        Some(function)
    }

    fn ret(&self, call: &mut Return<'_, usize>, function: usize) {
        assert_eq!(call.function().address(), function);
        let (int, float) = (call.result().unwrap(), call.float_result().unwrap());
        self.0.push(Event::Return(function, int, float));
    }
}

/// Notes the calls of the functions that the filter selects; it must select some.
fn notes(filter: &str) -> (Handle<Notes>, Log<Event>) {
    let log = Log::with_capacity(100_000);
    let handle = fgraph_scenario::register(Notes(log.clone()), filter).unwrap();
    assert!(
        handle.report().unwrap().traced > 0,
        "{:?}",
        handle.report().unwrap()
    );
    (handle, log)
}

/// The events of one function, an entry and its return in turn.
fn calls_of(events: &[Event], function: usize) -> Vec<([u64; 6], [f64; 2], u64, f64)> {
    let mut calls = Vec::new();
    let mut open = None;
    for event in events {
        match *event {
            Event::Entry(address, ints, floats) if address == function => {
                assert!(open.replace((ints, floats)).is_none(), "an entry too many");
            }
            Event::Return(address, int, float) if address == function => {
                let (ints, floats) = open.take().expect("a return too many");
                calls.push((ints, floats, int, float));
            }
            _ => {}
        }
    }
    assert_eq!(open, None, "a return too few");
    calls
}

/// Returns a pointer whose target the compiler does not know.
fn unknown<F>(function: F) -> F {
    black_box(function)
}

type Malloc = unsafe extern "C" fn(usize) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut c_void);
type Compare = extern "C" fn(*const c_void, *const c_void) -> c_int;
type Copy = unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> *mut c_void;

#[scenario]
fn malloc_and_free_are_traced() {
    let (handle, log) = notes("malloc:mod:libc.so* free:mod:libc.so*");
    assert_eq!(
        handle.report().unwrap().traced,
        2,
        "one site each: {:?}",
        handle.report().unwrap()
    );
    let (malloc, free) = (unknown(libc::malloc as Malloc), unknown(libc::free as Free));
    log.take();
    let sizes = [1, 24, 1000, 4096, 100_000, 1 << 22];
    let mut blocks = [ptr::null_mut::<c_void>(); 6];
    // SAFETY: memory of that size is written to, and freed once.
    unsafe {
        for (block, size) in blocks.iter_mut().zip(sizes) {
            *block = malloc(size);
            block.cast::<u8>().write_bytes(0x5a, size);
        }
        blocks.iter().for_each(|&block| free(block));
    }
    drop(handle);
    let events = log.take();
    let mallocs: Vec<_> = calls_of(&events, malloc as usize);
    let seen: Vec<_> = mallocs.iter().map(|call| (call.0[0], call.2)).collect();
    let expected = sizes.iter().zip(blocks);
    let expected: Vec<_> = expected
        .map(|(&size, block)| (size as u64, block as u64))
        .collect();
    assert_eq!(seen, expected);
    let frees = calls_of(&events, free as usize);
    let freed = frees.iter().map(|call| call.0[0]);
    let blocks = blocks.map(|block| block as u64);
    let freed: Vec<_> = freed.filter(|block| blocks.contains(block)).collect();
    assert_eq!(freed, blocks);
}

/// The order of two numbers, whose difference is also the order of the calls.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn relocated_compares(a: *const c_void, b: *const c_void) -> c_int {
    // SAFETY: `qsort` passes pointers to elements.
    let (a, b) = unsafe { (*a.cast::<u32>(), *b.cast::<u32>()) };
    a.cmp(&b) as c_int
}

/// Sorts numbers.
fn sort(numbers: &[u32]) -> Vec<u32> {
    let mut numbers = numbers.to_vec();
    let compare: Compare = relocated_compares;
    // SAFETY: as many elements of that size.
    unsafe {
        unknown(libc::qsort as unsafe extern "C" fn(_, _, _, _))(
            numbers.as_mut_ptr().cast(),
            numbers.len(),
            size_of::<u32>(),
            std::mem::transmute::<Compare, Option<unsafe extern "C" fn(_, _) -> _>>(compare),
        );
    }
    numbers
}

/// User of calls of `qsort` and of the comparisons within.
struct Sorting {
    events: Log<(bool, usize, usize, Option<u64>, i32)>,
    qsort: usize,
}

impl FgraphOps for Sorting {
    /// The number of elements of a `qsort`; 0 for everything else.
    type Data = u64;

    fn entry(&self, call: &mut Entry<'_, u64>) -> Option<u64> {
        let function = call.function().address();
        let around = call.parent_data().copied();
        self.events.push((true, function, call.depth(), around, 0));
        Some(if function == self.qsort {
            call.arg(1)?
        } else {
            0
        })
    }

    fn ret(&self, call: &mut Return<'_, u64>, _data: u64) {
        let function = call.function().address();
        let around = call.parent_data().copied();
        let result = call.result().unwrap() as i32;
        self.events
            .push((false, function, call.depth(), around, result));
    }
}

#[scenario]
fn qsort_and_its_callback_are_traced() {
    let numbers: Vec<u32> = (0..2_000_u32)
        .map(|n| n.wrapping_mul(2_654_435_761) >> 7)
        .collect();
    let mut sorted = numbers.clone();
    sorted.sort_unstable();
    let qsort = libc::qsort as *const () as usize;
    let compare = relocated_compares as *const () as usize;
    let events = Log::with_capacity(200_000);
    let sorting = Sorting {
        events: events.clone(),
        qsort,
    };
    let handle =
        fgraph_scenario::register(sorting, "qsort:mod:libc.so* relocated_compares").unwrap();
    assert_eq!(handle.report().unwrap().traced, 2);
    assert_eq!(sort(&numbers), sorted);
    let seen = events.take();
    assert_eq!(seen[0], (true, qsort, 0, None, 0));
    let last = seen.last().unwrap();
    assert_eq!((last.0, last.1, last.2, last.3), (false, qsort, 0, None));
    let comparisons = &seen[1..seen.len() - 1];
    assert!(comparisons.len() > 2 * 10_000, "{}", comparisons.len());
    let n = Some(numbers.len() as u64);
    for pair in comparisons.chunks(2) {
        assert_eq!(pair[0], (true, compare, 1, n, 0));
        assert_eq!(
            (pair[1].0, pair[1].1, pair[1].2, pair[1].3),
            (false, compare, 1, n)
        );
        assert!((-1..=1).contains(&pair[1].4));
    }
    // Without `qsort` itself, its calls have nothing around them.
    fgraph_scenario::set_filter(&handle, "relocated_compares").unwrap();
    assert_eq!(sort(&numbers[..10]).len(), 10);
    assert!(
        events
            .take()
            .iter()
            .all(|event| (event.1, event.2, event.3) == (compare, 0, None))
    );
    fgraph_scenario::set_filter(&handle, "qsort:mod:libc.so*").unwrap();
    assert_eq!(sort(&numbers), sorted);
    assert_eq!(events.take().len(), 2);
}

#[scenario]
fn getenv_is_traced() {
    let getenv = unknown(libc::getenv as unsafe extern "C" fn(_) -> *mut _);
    // SAFETY: no other thread looks at the environment.
    unsafe { std::env::set_var("FGRAPH_GETENV", "its value") };
    // SAFETY: a string.
    let untraced = unsafe { getenv(c"FGRAPH_GETENV".as_ptr()) };
    let (handle, log) = notes("getenv");
    // SAFETY: strings.
    let (value, none) = unsafe {
        (
            getenv(c"FGRAPH_GETENV".as_ptr()),
            getenv(c"FGRAPH_NO_SUCH".as_ptr()),
        )
    };
    let events = log.take();
    drop(handle);
    assert_eq!(value, untraced);
    // SAFETY: what `getenv` gives is a string.
    assert_eq!(unsafe { CStr::from_ptr(value) }, c"its value");
    assert!(none.is_null());
    let calls = calls_of(&events, libc::getenv as *const () as usize);
    let seen: Vec<_> = calls.iter().map(|call| (call.0[0], call.2)).collect();
    assert_eq!(
        seen,
        [
            (c"FGRAPH_GETENV".as_ptr() as u64, value as u64),
            (c"FGRAPH_NO_SUCH".as_ptr() as u64, 0)
        ]
    );
    assert_eq!(events.len(), 4);
}

/// Prints twelve integers and twelve numbers of floating point: six of each and more are on the
/// stack.
fn print(buffer: &mut [c_char; 1000]) -> c_int {
    // SAFETY: as many arguments as the format asks for.
    unsafe {
        unknown(libc::snprintf as unsafe extern "C" fn(_, _, _, ...) -> _)(
            buffer.as_mut_ptr(),
            buffer.len(),
            c"%d %ld %x %c %s %u %lld %d %d %d %d %d|%g %.3f %e %a %g %g %g %g %g %g %g %.10g|%s %.1f".as_ptr(),
            -1,
            i64::MIN,
            0xbeef_u32,
            c_int::from(b'z'),
            c"text".as_ptr(),
            4_000_000_000_u32,
            1_i64 << 40,
            8,
            9,
            10,
            11,
            12,
            1.5,
            2.25,
            3.0e-300,
            0.1,
            5.5,
            6.5,
            7.5,
            8.5,
            9.5,
            10.5,
            f64::INFINITY,
            std::f64::consts::PI,
            c"end".as_ptr(),
            -0.05,
        )
    }
}

#[scenario]
fn snprintf_with_all_kinds_of_arguments_is_traced() {
    let (mut untraced, mut traced) = ([0; 1000], [0; 1000]);
    let len = print(&mut untraced);
    let (handle, log) = notes("snprintf");
    let stack = Log::with_capacity(100);
    let words = stack.clone();
    let other = fgraph_scenario::register(
        fgraph_scenario::user(
            move |call| {
                words.push([call.stack_arg(0), call.stack_arg(8), call.stack_arg(12)]);
                Some(())
            },
            |_, ()| (),
        ),
        "snprintf",
    )
    .unwrap();
    let same = print(&mut traced);
    let events = log.take();
    drop((handle, other));
    assert_eq!((same, &traced[..]), (len, &untraced[..]));
    // SAFETY: `snprintf` leaves a string.
    let text = unsafe { CStr::from_ptr(traced.as_ptr()) }.to_str().unwrap();
    assert!(text.starts_with("-1 -9223372036854775808 beef z text 4000000000 "));
    assert!(
        text.ends_with("inf 3.141592654|end -0.1") || text.ends_with("inf 3.141592654|end -0.0")
    );
    let calls = calls_of(&events, libc::snprintf as *const () as usize);
    let [(ints, floats, result, _)] = calls[..] else {
        panic!("{events:?}")
    };
    assert_eq!((ints[0], ints[1]), (traced.as_ptr() as u64, 1000));
    assert_eq!((ints[3] as u32, ints[4]), (u32::MAX, i64::MIN as u64));
    assert_eq!(floats, [1.5, 2.25]);
    assert_eq!(result as i32, len);
    let [[first, ninth, float]] = stack.take()[..] else {
        panic!("one call")
    };
    // The fourth to the twelfth integer, then the ninth number of floating point.
    assert_eq!(first.unwrap() as u8, b'z');
    assert_eq!(ninth.unwrap() as u32, 12);
    assert_eq!(float.map(f64::from_bits), Some(std::f64::consts::PI));
}

#[scenario]
fn pow_is_traced() {
    let libm = Library::open("libm.so.6".as_ref());
    // SAFETY: its type.
    let pow: extern "C" fn(f64, f64) -> f64 = unsafe { libm.get("pow") };
    let pairs = [
        (2.0, 0.5),
        (10.0, -300.0),
        (-3.0, 7.0),
        (0.0, 0.0),
        (-8.0, 1.0 / 3.0),
        (1.000_000_1, 1e7),
    ];
    let untraced = pairs.map(|(x, y)| pow(x, y).to_bits());
    let (handle, log) = notes("pow:mod:libm.so*");
    let traced = pairs.map(|(x, y)| pow(x, y).to_bits());
    let events = log.take();
    drop(handle);
    assert_eq!(traced, untraced);
    let calls = calls_of(&events, pow as *const () as usize);
    let seen: Vec<_> = calls
        .iter()
        .map(|call| ((call.1[0], call.1[1]), call.3.to_bits()))
        .collect();
    let expected: Vec<_> = pairs.into_iter().zip(untraced).collect();
    assert_eq!(seen, expected);
}

#[scenario]
fn memcpy_is_traced_by_its_name() {
    let memcpy = unknown(libc::memcpy as Copy);
    let from: Vec<u8> = (0..5_000_u32).map(|n| (n * 7) as u8).collect();
    // The function of this name has other names on this machine, too.
    for filter in ["memcpy:mod:libc.so*", "memcpy@@GLIBC_2.14:mod:libc.so*"] {
        let (handle, log) = notes(filter);
        let mut to = vec![0_u8; from.len()];
        let lengths = [0, 1, 3, 8, 15, 16, 31, 64, 65, 127, 200, 1024, 5_000];
        log.take();
        for length in lengths {
            to.fill(0xee);
            // SAFETY: both are that long.
            let result = unsafe { memcpy(to.as_mut_ptr().cast(), from.as_ptr().cast(), length) };
            assert_eq!(result, to.as_mut_ptr().cast());
            assert_eq!(to[..length], from[..length]);
            assert!(to[length..].iter().all(|&byte| byte == 0xee));
        }
        drop(handle);
        let ours = |call: &([u64; 6], [f64; 2], u64, f64)| call.0[1] == from.as_ptr() as u64;
        let calls = calls_of(&log.take(), memcpy as usize);
        let lens: Vec<_> = calls.iter().filter(|call| ours(call)).collect();
        assert!(lens.iter().all(|call| call.2 == to.as_ptr() as u64));
        let lens: Vec<_> = lens.iter().map(|call| call.0[2] as usize).collect();
        assert_eq!(lens, lengths, "{filter}");
    }
}

/// Everything above in one process, with two users: each call has its return, in order.
#[scenario]
fn all_of_them_are_traced_at_once() {
    let libm = Library::open("libm.so.6".as_ref());
    // SAFETY: its type.
    let pow: extern "C" fn(f64, f64) -> f64 = unsafe { libm.get("pow") };
    let numbers_to_sort: Vec<u32> = (0..500_u32).map(|n| n ^ 0x155).collect();
    let work = || {
        let mut results: Vec<u64> = Vec::new();
        let mut buffer = [0; 1000];
        for round in 0..50_u32 {
            results.extend(sort(&numbers_to_sort).iter().map(|&n| u64::from(n)));
            results.push(print(&mut buffer) as u64);
            results.extend(buffer.iter().map(|&byte| byte as u64));
            results.push(pow(f64::from(round), 1.5).to_bits());
            let block = vec![round as u8; 1 + 100 * round as usize];
            results.push(
                black_box(&block)
                    .clone()
                    .iter()
                    .map(|&n| u64::from(n))
                    .sum(),
            );
        }
        results
    };
    let untraced = work();
    let filter = "malloc:mod:libc.so* free:mod:libc.so* realloc:mod:libc.so* qsort \
                      getenv snprintf pow:mod:libm.so* memcpy:mod:libc.so* relocated_compares";
    let users = [(); 2].map(|()| fgraph_scenario::register(Paired::default(), filter).unwrap());
    let log = Log::with_capacity(1 << 20);
    let (entries, returns) = (log.clone(), log.clone());
    let by_function = fgraph_scenario::register(
        fgraph_scenario::user(
            move |call| {
                entries.push((call.function().address(), true));
                Some(())
            },
            move |call, ()| returns.push((call.function().address(), false)),
        ),
        filter,
    )
    .unwrap();
    // fgraph's own calls of these functions are missed.
    let before = numbers(by_function.counters());
    let traced = work();
    let after = numbers(by_function.counters());
    drop(by_function);
    let mut functions: HashMap<usize, (u64, u64)> = HashMap::new();
    for (function, entry) in log.take() {
        let counts = functions.entry(function).or_default();
        *if entry { &mut counts.0 } else { &mut counts.1 } += 1;
    }
    for user in users {
        let calls = user.unregister().unwrap().calls();
        assert!(calls.is_exact(), "{calls:?}");
        assert!(calls.entries > 50 * 500);
    }
    assert!(traced == untraced);
    assert_eq!(after, before);
    for (function, name) in [
        (libc::malloc as *const () as usize, "malloc"),
        (libc::free as *const () as usize, "free"),
        (libc::qsort as *const () as usize, "qsort"),
        (libc::snprintf as *const () as usize, "snprintf"),
        (libc::memcpy as *const () as usize, "memcpy"),
        (pow as *const () as usize, "pow"),
        (
            relocated_compares as *const () as usize,
            "relocated_compares",
        ),
    ] {
        let (entries, returns) = functions.get(&function).copied().unwrap_or_default();
        assert!(
            entries == returns && entries >= 50,
            "{name}: {entries}, {returns}"
        );
    }
}
