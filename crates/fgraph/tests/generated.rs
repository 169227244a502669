//! Functions that a program has generated.

use std::error::Error as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use fgraph::{
    Entry, Error, GeneratedError, GeneratedFunction, GeneratedFunctions, add_functions, sites_of,
};
use fgraph_scenario::{Count, scenario, user};

const PAGE: usize = 4096;

/// Pages of memory, which stay.
fn map(at: usize, pages: usize, protection: i32) -> usize {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let place = std::ptr::without_provenance_mut(at);
    // SAFETY: new memory, where there is room.
    let memory = unsafe { libc::mmap(place, pages * PAGE, protection, flags, -1, 0) };
    assert_ne!(memory, libc::MAP_FAILED);
    memory.expose_provenance()
}

fn protect(start: usize, len: usize, protection: i32) {
    let start = std::ptr::with_exposed_provenance_mut(start);
    // SAFETY: memory of the test's own.
    assert_eq!(unsafe { libc::mprotect(start, len, protection) }, 0);
}

const R: i32 = libc::PROT_READ;
const W: i32 = libc::PROT_WRITE;
const X: i32 = libc::PROT_EXEC;

/// `lea rax, [rdi + n]; nop; ret`
fn adds(n: u8) -> [u8; 6] {
    [0x48, 0x8d, 0x47, n, 0x90, 0xc3]
}

/// Writes functions, 16 bytes apart: each adds its number to its argument.
fn write(start: usize, numbers: impl IntoIterator<Item = u8>) {
    protect(start, PAGE, R | W);
    for (at, n) in numbers.into_iter().enumerate() {
        let place = std::ptr::with_exposed_provenance_mut::<[u8; 6]>(start + 16 * at);
        // SAFETY: memory of the test's own.
        unsafe { place.write(adds(n)) };
    }
    protect(start, PAGE, R | X);
}

fn call(address: usize, argument: u64) -> u64 {
    // SAFETY: one of these functions.
    let function = unsafe { std::mem::transmute::<usize, extern "C" fn(u64) -> u64>(address) };
    function(argument)
}

fn add(module: &str, functions: &[(&str, usize)]) -> Result<GeneratedFunctions, Error> {
    let functions: Vec<_> = functions
        .iter()
        .map(|&(name, address)| GeneratedFunction {
            name,
            address,
            size: 6,
        })
        .collect();
    // SAFETY: where there is memory, these are functions that are called by the test alone, and
    // they stay.
    unsafe { add_functions(module, &functions) }
}

#[scenario]
fn generated_functions_are_traced_until_they_are_removed() {
    // Far from all libraries.
    let start = map(0x1234_5678_0000, 1, R | W);
    write(start, [1, 2]);
    let names = [("one", start), ("_ZN4demo3twoEv", start + 16)];
    // A filter that is in force applies to them.
    let early = fgraph_scenario::register(Count::default(), ":mod:jit").unwrap();
    let added = add("jit", &names).unwrap();
    assert_eq!(early.report().unwrap().traced, 2);
    let late = fgraph_scenario::register(Count::default(), "demo::two").unwrap();
    assert_eq!((call(start, 40), call(start + 16, 40)), (41, 42));
    assert_eq!((early.user().both(), late.user().both()), ((2, 2), (1, 1)));
    let functions = early.functions().unwrap();
    let shown: Vec<_> = functions
        .iter()
        .map(|f| (f.name().to_string(), f.address(), f.size()))
        .collect();
    let expected = [("one", start), ("demo::two", start + 16)];
    assert_eq!(shown, expected.map(|(name, at)| (name.to_owned(), at, 6)));
    let symbol = fgraph::function_at(start + 17).unwrap();
    assert_eq!(symbol.name().to_string(), "demo::two");
    assert_eq!(symbol.module(), "jit");
    assert_eq!(sites_of(":mod:jit").unwrap().iter().count(), 2);
    added.remove().unwrap();
    assert_eq!(sites_of(":mod:jit").unwrap().iter().count(), 0);
    assert_eq!((call(start, 40), call(start + 16, 40)), (41, 42));
    assert_eq!((early.user().both(), late.user().both()), ((2, 2), (1, 1)));
    assert_eq!(early.report().unwrap().traced, 0);
    // Kept handles of functions stay right.
    assert_eq!(functions[1].name().to_string(), "demo::two");
    // Others at the same place.
    write(start, [3]);
    let added = add("jit", &[("three", start)]).unwrap();
    assert_eq!(early.functions().unwrap()[0].name().to_string(), "three");
    assert_eq!(call(start, 40), 43);
    assert_eq!((early.user().both(), late.user().both()), ((3, 3), (1, 1)));
    drop(added);
    assert_eq!(call(start, 40), 43);
    assert_eq!(early.user().both(), (3, 3));
}

#[scenario]
fn generated_functions_are_added_and_removed_many_times() {
    let count = fgraph_scenario::register(Count::default(), ":mod:jit*").unwrap();
    let starts = [(); 3].map(|()| map(0, 1, R | W));
    for round in 0..40u8 {
        let added = starts.map(|start| {
            write(start, [round, round + 1]);
            add("jit 1", &[("f", start), ("g", start + 16)]).unwrap()
        });
        for start in starts {
            assert_eq!(call(start, 1), u64::from(round) + 1);
            assert_eq!(call(start + 16, 1), u64::from(round) + 2);
        }
        for added in added {
            added.remove().unwrap();
        }
    }
    assert_eq!(count.user().both(), (40 * 6, 40 * 6));
}

#[scenario]
fn invalid_generated_functions_are_refused() {
    let start = map(0, 3, R | W);
    write(start, [1]);
    let error = |functions: &[(&str, usize)]| match add("jit", functions) {
        Err(Error::Generated(error)) => error,
        other => panic!("{other:?}"),
    };
    assert_eq!(error(&[]), GeneratedError::Empty);
    let not_text = |address| GeneratedError::NotText { address };
    // Not executable, not mapped, beyond the end of memory.
    assert_eq!(error(&[("f", start + PAGE)]), not_text(start + PAGE));
    assert_eq!(error(&[("f", 16)]), not_text(16));
    assert_eq!(error(&[("f", usize::MAX)]), not_text(usize::MAX));
    // Something else between two functions.
    protect(start + 2 * PAGE, PAGE, R | X);
    let apart = [("f", start), ("g", start + 2 * PAGE)];
    assert_eq!(error(&apart), not_text(start + PAGE));
    let far = [("f", start), ("g", start + (1 << 30))];
    let far_apart = error(&far);
    assert!(matches!(far_apart, GeneratedError::TooFarApart { first, .. } if first == start));
    for name in ["", "a\0b"] {
        let malformed = error(&[(name, start)]);
        assert!(matches!(malformed, GeneratedError::Malformed { address, .. } if address == start));
    }
    // SAFETY: that is no function, but empty ones are refused.
    let empty = unsafe {
        let (name, address, size) = ("f", start, 0);
        add_functions(
            "jit",
            &[GeneratedFunction {
                name,
                address,
                size,
            }],
        )
    };
    let empty = empty.unwrap_err().source().unwrap().to_string();
    assert!(empty.contains("with 0 bytes"), "{empty}");
    // Code of the program, and of other functions that were added.
    let own = call as *const () as usize;
    assert!(matches!(
        error(&[("f", own)]),
        GeneratedError::OfModule { address, .. } if address == own
    ));
    let added = add("jit", &[("f", start)]).unwrap();
    let of_module = error(&[("g", start)]);
    let module = "jit".to_owned();
    assert_eq!(
        of_module,
        GeneratedError::OfModule {
            address: start,
            module
        }
    );
    assert!(of_module.to_string().contains("jit"));
    drop(added);
    // Text that can be written to may be changed at any time.
    protect(start, PAGE, R | W | X);
    let _added = add("jit", &[("f", start)]).unwrap();
    let count = fgraph_scenario::register(Count::default(), ":mod:jit").unwrap();
    let report = count.report().unwrap();
    assert_eq!((report.traced, report.refused.len()), (0, 1));
}

#[scenario]
fn a_callback_cannot_remove_generated_functions() {
    static REFUSED: AtomicUsize = AtomicUsize::new(0);
    let start = map(0, 1, R | W);
    write(start, [1]);
    let added = Mutex::new(Some(add("jit", &[("f", start)]).unwrap()));
    let ops = user(
        move |_: &mut Entry<'_, ()>| {
            let mut added = added.lock().unwrap();
            if let Err(failed) = added.take()?.remove() {
                assert_eq!(failed.error, Error::InsideCallback);
                REFUSED.fetch_add(1, Ordering::Relaxed);
                *added = Some(failed.functions);
            }
            None
        },
        |_, ()| (),
    );
    let removing = fgraph_scenario::register(ops, "f:mod:jit").unwrap();
    assert_eq!((call(start, 1), call(start, 1)), (2, 2));
    assert_eq!(REFUSED.load(Ordering::Relaxed), 2);
    // Its closure has them, and removes them.
    drop(removing.unregister().unwrap());
    assert_eq!(sites_of(":mod:jit").unwrap().iter().count(), 0);
}
