//! How far a module has come.

use super::build::BuiltModule;
use super::facts::ModuleFacts;

/// How far a module has come, whose functions are read when a filter first asks for it.
#[derive(Debug)]
pub(super) enum Stage {
    Unread,
    /// Its file cannot be read, and why.
    Unreadable(String),
    /// No filter has selected any of its functions.
    Read(&'static ModuleFacts),
    /// Sites are made of its functions, or of some of them.
    Built(&'static ModuleFacts, Box<BuiltModule>),
}

impl Stage {
    /// The facts about its functions, if they have been read.
    pub(super) fn known(&self) -> Option<&'static ModuleFacts> {
        match self {
            Self::Read(known) | Self::Built(known, _) => Some(known),
            Self::Unread | Self::Unreadable(_) => None,
        }
    }

    /// The sites that were made of them, if any were.
    pub(super) fn built(&self) -> Option<&BuiltModule> {
        match self {
            Self::Built(_, built) => Some(built),
            _ => None,
        }
    }
}
