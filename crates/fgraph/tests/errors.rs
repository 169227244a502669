//! Errors as their callers meet them: by `?`, as trait objects, with what they come from.

use std::error::Error as _;

use fgraph::{
    Error, FilterError, GeneratedError, StopReason, UnregisterError, Unsupported, add_functions,
};
use fgraph_scenario::{Count, register, scenario};

#[test]
fn the_text_of_an_error_leaves_that_of_its_source_to_the_source() {
    let filter = FilterError::NoFunction { address: 7 };
    let machine = Unsupported::Memory(12);
    let generated = GeneratedError::Empty;
    let source = |error: &Error| error.source().map(ToString::to_string);
    for (error, carried) in [
        (Error::Filter(filter.clone()), filter.to_string()),
        (Error::Unsupported(machine), machine.to_string()),
        (Error::Generated(generated.clone()), generated.to_string()),
    ] {
        assert_eq!(source(&error), Some(carried.clone()));
        assert!(!error.to_string().contains(&carried), "{error}");
    }
    let error = Error::Filter(filter.clone());
    assert_eq!(error.source().unwrap().downcast_ref(), Some(&filter));
    for error in [
        Error::NoFreeSlot { users: Vec::new() },
        Error::Stopped(StopReason::Requested),
    ] {
        assert_eq!(source(&error), None);
    }
}

#[scenario]
fn a_user_that_was_not_registered_says_why_through_every_way() {
    // SAFETY: nothing is registered.
    let failed = unsafe { fgraph::register(Count::default(), "") }.unwrap_err();
    assert_eq!(
        failed.source().unwrap().downcast_ref(),
        Some(&FilterError::Empty)
    );
    assert_eq!(Error::from(failed), Error::Filter(FilterError::Empty));
    // SAFETY: no functions.
    let failed = unsafe { add_functions("none", &[]) }.unwrap_err();
    assert_eq!(
        failed.source().unwrap().downcast_ref(),
        Some(&GeneratedError::Empty)
    );
}

/// Ends a user as programs do, with `?`.
fn end(user: fgraph::Handle<Count>) -> Result<Count, Error> {
    user.unregister().map_err(UnregisterError::into_error)
}

#[scenario]
fn a_question_mark_is_enough_to_unregister() {
    let count = end(register(Count::default(), "getppid").unwrap()).unwrap();
    assert_eq!(count.both(), (0, 0));
    // The same as a trait object.
    let convert = |error: UnregisterError<Count>| -> Box<dyn std::error::Error> { error.into() };
    let user = register(Count::default(), "getppid").unwrap();
    user.unregister().map_err(convert).unwrap();
}
