//! The stages of a module.

use super::build::BuiltModule;
use super::facts::ModuleFacts;

/// The stage of a module, whose functions are read when a filter first refers to it.
#[derive(Debug)]
pub(super) enum Stage {
    Unread,
    /// Its file cannot be read, for this reason.
    Unreadable(String),
    /// No filter has selected any of its functions.
    Read(&'static ModuleFacts),
    /// Sites are made for its functions, or for some of them.
    Built(&'static ModuleFacts, Box<BuiltModule>),
}

impl Stage {
    /// Returns the facts about its functions, if they were read.
    pub(super) fn known(&self) -> Option<&'static ModuleFacts> {
        match self {
            Self::Read(known) | Self::Built(known, _) => Some(known),
            Self::Unread | Self::Unreadable(_) => None,
        }
    }

    /// Returns the sites that were made, if any.
    pub(super) fn built(&self) -> Option<&BuiltModule> {
        match self {
            Self::Built(_, built) => Some(built),
            _ => None,
        }
    }
}
