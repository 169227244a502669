//! The events that the viewer shows, of a recording or of a program.

use fgraph_trace::Source;
use fgraph_trace::source::SourceError;

use super::model::Model;
use crate::input::View;
use crate::launch::events::Events;

/// The source of the views.
pub(super) enum Feed<'l> {
    File(Box<View>),
    Process(Box<Events<'l>>),
}

impl Feed<'_> {
    pub(super) fn source(&mut self) -> &mut dyn Feeds {
        match self {
            Self::File(view) => &mut **view,
            Self::Process(events) => &mut **events,
        }
    }
}

/// A source that takes turns with keys.
pub(super) trait Feeds {
    fn is_over(&self) -> bool;

    fn is_ready(&mut self) -> Result<bool, SourceError>;

    /// Processes the next event, if there is one.
    fn take(&mut self, model: &mut Model) -> Result<bool, SourceError>;

    /// Waits a moment, unless waiting for keys does.
    fn wait(&mut self) {}
}

impl Feeds for View {
    fn is_over(&self) -> bool {
        Source::is_over(self)
    }

    fn is_ready(&mut self) -> Result<bool, SourceError> {
        View::is_ready(self)
    }

    fn take(&mut self, model: &mut Model) -> Result<bool, SourceError> {
        model.take(self)
    }
}

impl Feeds for Events<'_> {
    fn is_over(&self) -> bool {
        Source::is_over(self)
    }

    fn is_ready(&mut self) -> Result<bool, SourceError> {
        Events::is_ready(self)
    }

    fn take(&mut self, model: &mut Model) -> Result<bool, SourceError> {
        model.take(self)
    }

    fn wait(&mut self) {
        Events::wait(self);
    }
}
