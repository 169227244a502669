//! A little program, watched by three users at once while it runs.
//!
//! The program indexes the words of a text file on two threads. Nothing in `text.rs` and `index.rs`
//! knows that it is watched. The users, in `users.rs`, see different functions:
//!
//! - one records the call graph with durations, of everything;
//! - one keeps a histogram of latencies per function, of the functions that build the index;
//! - one counts calls that are made on the wrong thread: only the main thread may `publish`.
//!
//! Half-way the first is unregistered and prints what it has seen; the others go on.

mod index;
mod text;
mod users;

use std::error::Error;
use std::{env, fs, thread};

use index::Index;
use users::{CallGraph, Histograms, WrongThread};

fn main() -> Result<(), Box<dyn Error>> {
    let path = env::args().nth(1).unwrap_or_else(|| "README.md".into());
    let text = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;

    // SAFETY: the users lock and allocate. That is allowed in all functions of `text` and `index`:
    // they are called by `main` and its threads only, with no lock of the users held, and not by
    // the allocator or a signal handler.
    let (graph, histograms, wrong) = unsafe {
        (
            fgraph::register(
                CallGraph::default(),
                "quickstart::text::* quickstart::index::*",
            )?,
            fgraph::register(Histograms::default(), "quickstart::index::* !*publish*")?,
            fgraph::register(WrongThread::new(), "quickstart::*::publish")?,
        )
    };
    println!("call graph: {}", graph.report()?);
    println!("histograms: {}", histograms.report()?);
    println!("wrong thread: {}", wrong.report()?);

    let (first, second) = text::halves(&text);
    let mut index = build_on_two_threads(first);

    let graph = graph.unregister()?;
    println!("\nThe call graph of the first half of {path}:\n");
    graph.print(40);
    println!("\nIts user is gone; the other two go on with the second half.");

    index.merge(build_on_two_threads(second));
    index.publish();

    println!("\nLatencies of the functions that build the index:\n");
    histograms.user().print();
    println!("\nCalls on the wrong thread: {}", wrong.user().count());
    println!("Not traced: {}", fgraph::status()?.counters);

    println!("\nThe program's own output, the most frequent words of {path}:");
    for (word, count) in index.most_frequent(5) {
        println!("{count:6}  {word}");
    }
    Ok(())
}

fn build_on_two_threads(text: &str) -> Index {
    let (first, second) = text::halves(text);
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            let index = Index::build(first);
            // The mistake that the third user finds: this is not the main thread.
            index.publish();
            index
        });
        let mut index = Index::build(second);
        index.merge(other.join().expect("the thread does not panic"));
        index
    })
}
