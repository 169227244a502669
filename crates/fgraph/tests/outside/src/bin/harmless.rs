//! What safe code may do, as badly as it can. Prints `harmless` at the end.

#![forbid(unsafe_code)]

use std::thread;

use fgraph::{Error, Filter, FunctionFacts};

fn main() {
    for bytes in [0, 1, usize::MAX] {
        fgraph::set_shadow_stack_size(bytes);
    }
    let text = format!("{} !\\ :mod: *?*[ a:mod:*", "*".repeat(10_000));
    if let Ok(filter) = text.parse::<Filter>() {
        let _ = filter.matches(&FunctionFacts::new(&[&"a".repeat(10_000)], ""));
    }
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                fgraph::allow_breakpoints(true).unwrap();
                let sites = fgraph::sites().unwrap();
                assert!(sites.iter().any(|site| site.name == "harmless::main"));
                fgraph::status().unwrap();
                fgraph::threads();
            });
        }
    });
    fgraph::stop().unwrap();
    assert!(fgraph::status().unwrap().stopped.is_some());
    // Safe, and refused: there is nothing to be traced any more.
    assert!(matches!(fgraph::stop(), Ok(()) | Err(Error::Stopped(_))));
    println!("harmless");
}
