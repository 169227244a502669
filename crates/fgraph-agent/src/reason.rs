//! Texts of errors, with the errors that they come from.

use std::error;

/// Formats an error with its sources, each unless the text before it ends with it.
pub(crate) fn reason(error: &dyn error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    text
}
