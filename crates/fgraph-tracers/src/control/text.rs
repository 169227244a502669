//! A text that is written to a file.

use super::ControlError;
use super::words::Functions;

/// Text that is written to a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Text<'a> {
    pub(super) file: &'a str,
    pub(super) text: &'a str,
    /// True if the text is added to the file.
    pub(super) append: bool,
}

impl Text<'_> {
    /// Returns the text without the white space around it.
    pub(super) fn value(&self) -> &str {
        self.text.trim()
    }

    pub(super) fn wrong(&self) -> ControlError {
        ControlError::value(self.file, self.value())
    }

    pub(super) fn is_on(&self) -> Result<bool, ControlError> {
        match self.value() {
            "0" => Ok(false),
            "1" => Ok(true),
            _ => Err(self.wrong()),
        }
    }

    pub(super) fn change(&self, functions: &mut Functions) -> Result<(), ControlError> {
        functions.write(self.file, self.value(), self.append)
    }
}
