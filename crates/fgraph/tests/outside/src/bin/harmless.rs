//! Uses the safe functions as badly as safe code can, and prints `harmless` at the end.

#![forbid(unsafe_code)]

use std::io::Cursor;
use std::panic;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU64};
use std::{mem, thread};

use fgraph::{Error, Filter, FilterError, FunctionFacts, PerThread, Untraced};
use fgraph_core::site::{Site, SiteName, function_of, module};
use fgraph_core::{Function, Module};
use fgraph_symbols::elf::ElfFile;
use fgraph_symbols::lines::Lines;
use fgraph_symbols::{debug_data, demangle};

static MODULE: Module = module("/bin/made-up", &());

/// A function that there is not.
fn made_up(entry: usize) -> Function {
    function_of(Box::leak(Box::new(Site {
        entry,
        body: 1,
        interest: AtomicU16::new(u16::MAX),
        lead: 0,
        state: AtomicU8::new(1),
        inner: [0xff; 4],
        name: SiteName::new("made up"),
        index: u32::MAX,
        module: &MODULE,
        stub: 1,
        runtime: AtomicU64::new(u64::MAX),
    })))
}

fn functions_that_are_made_up() {
    for address in [0, 1, main as fn() as usize, usize::MAX] {
        let function = made_up(address);
        assert_eq!(function.names().count(), 1);
        let _ = (function.size(), function.symbol(), function.source());
        let _ = (function.full_name().to_string(), function.original());
        let error = fgraph::sites_of(function).unwrap_err();
        assert_eq!(error, Error::Filter(FilterError::NoFunction { address }));
        if let Some(symbol) = fgraph::function_at(address) {
            let _ = (symbol.name().to_string(), symbol.source());
        }
    }
}

/// Panics when it is dropped.
struct Unruly;

impl Drop for Unruly {
    fn drop(&mut self) {
        panic!("dropped");
    }
}

fn filters_that_come_back() {
    let within = Filter::none().predicate(|_| {
        let inside = fgraph::status().unwrap_err() == Error::InsideCallback;
        assert!(inside && fgraph::sites().is_err() && fgraph::stop().is_err());
        false
    });
    assert!(fgraph::sites_of(within).unwrap().is_empty());
    let thrown = Filter::none().predicate(|_| panic::panic_any(Unruly));
    let error = fgraph::sites_of(thrown).unwrap_err();
    let is_panic = matches!(error, Error::Filter(FilterError::PredicatePanicked { .. }));
    assert!(is_panic, "{error}");
    let text = format!("{} !\\ :mod: *?*[ a:mod:*", "*".repeat(10_000));
    if let Ok(filter) = text.parse::<Filter>() {
        let _ = filter.matches(&FunctionFacts::new(&[&"a".repeat(10_000)], ""));
    }
    let mut filter = Filter::none();
    for address in 0..100_000 {
        filter = filter.union(Filter::none().address(address));
    }
    drop(filter.clone());
}

fn guards_and_storage() {
    for _ in 0..1000 {
        mem::forget(Untraced::new());
    }
    let inner = Untraced::default();
    let outer = Untraced::new();
    drop(inner);
    drop(outer);
    let storage = PerThread::<u64>::new();
    assert_eq!(storage.iter().count() + storage.into_values().count(), 0);
}

fn bytes_that_lie() {
    let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    for nested in ["P", "N", "RINvC", "RNvB", "SaI", "ZN"] {
        demangle::to_string(&format!("_Z{}", nested.repeat(100_000)));
        demangle::to_string(&format!("_{}", nested.repeat(100_000)));
    }
    for len in [0, 1, 64, 100, 4096, program.len()] {
        if let Ok(file) = ElfFile::parse(&program[..len]) {
            let _ = (debug_data::read(&file), file.unwind_starts());
            let _ = Lines::read(Cursor::new(&program[..len / 2]), &file);
            if let Some(lines) = Lines::read(Cursor::new(&program), &file) {
                let _ = (lines.in_function(0), lines.in_function(u64::MAX));
            }
        }
    }
}

fn main() {
    panic::set_hook(Box::new(|info| eprintln!("{info}")));
    bytes_that_lie();
    for bytes in [0, 1, usize::MAX] {
        fgraph::set_shadow_stack_size(bytes);
    }
    let before = fgraph::sites().unwrap();
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let options = fgraph::Options::new().breakpoints(true);
                let sites = fgraph::sites_with("*", &options).unwrap();
                assert!(sites.iter().any(|site| site.name == "harmless::main"));
                fgraph::status().unwrap();
                fgraph::threads();
                functions_that_are_made_up();
                filters_that_come_back();
                guards_and_storage();
            });
        }
    });
    fgraph::stop().unwrap();
    assert!(fgraph::status().unwrap().stopped.is_some());
    // Safe, and refused: there is nothing to be traced any more.
    assert!(matches!(fgraph::stop(), Ok(()) | Err(Error::Stopped(_))));
    assert!(before.iter().any(|site| site.name == "harmless::main"));
    println!("harmless");
}
