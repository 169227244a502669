//! Input that is wrong: each is an error that says what was written, and nothing is changed.

use std::error::Error as _;

use fgraph::{Error, Filter, Handle, IntoFilter, OnEntry, Options};

type User = OnEntry<fn(&mut fgraph::Entry<'_, ()>)>;

fn register(filter: impl IntoFilter) -> Result<Handle<User>, Error> {
    let nothing: fn(&mut fgraph::Entry<'_, ()>) = |_| ();
    // SAFETY: the callback does nothing.
    unsafe { fgraph::register(fgraph::on_entry(nothing), filter) }.map_err(|failed| failed.error)
}

/// Returns all that an error says.
fn text(error: &Error) -> String {
    let source = error.source().map(|source| format!(": {source}"));
    format!("{error}{}", source.unwrap_or_default())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for (filter, said) in [
        ("no_function_has_this_name", "no_function_has_this_name"),
        ("malloc \"free", "\"free"),
        ("!*", "!*"),
        ("!!a", "!!a"),
    ] {
        let error = register(filter).map(drop).expect_err(said);
        assert!(text(&error).contains(said), "{error:?}");
    }
    // Names that are added in a loop which runs zero times select nothing.
    assert_eq!(
        register(Filter::names::<[&str; 0]>([]))?.functions()?.len(),
        0
    );
    // However long the input is, the message is short.
    let names = (0..100_000).map(|number| format!("name_{number}"));
    let error = register(Filter::names(names))
        .map(drop)
        .expect_err("no such names");
    assert!(text(&error).len() < 1_000, "{}", text(&error).len());
    // Unless that is wanted.
    let nothing: fn(&mut fgraph::Entry<'_, ()>) = |_| ();
    let options = Options::new().allow_no_match();
    // SAFETY: the callback does nothing.
    let user = unsafe { fgraph::register_with(fgraph::on_entry(nothing), "later_*", &options) }?;
    assert_eq!(user.report()?.unmatched().collect::<Vec<_>>(), ["later_*"]);
    println!("each error says what was written");
    Ok(())
}
