//! A call as the expressions of actions see it.

use fgraph_trace::values::Operand;

use crate::action::{Input, Inputs};

/// The data of a call in progress.
#[derive(Debug)]
pub(super) struct Kept {
    /// Its return address.
    pub(super) caller: Option<u64>,
    /// The return addresses of the calls around it, if they were recorded.
    pub(super) stack: Vec<u64>,
    pub(super) words: Vec<u64>,
    pub(super) values: Vec<u64>,
}

/// The result of a call.
#[derive(Debug, Default)]
pub(super) struct Given {
    pub(super) result: Option<u64>,
    pub(super) values: Vec<u64>,
}

/// A call with all its known data.
pub(super) struct Call<'c> {
    pub(super) kept: &'c Kept,
    pub(super) names: &'c [String],
    /// Arguments by type; without these, registers are used.
    pub(super) arguments: Vec<Operand>,
    pub(super) register: Option<u64>,
    pub(super) result: Option<Operand>,
    pub(super) duration: Option<u64>,
}

impl Call<'_> {
    fn argument(&self, input: &Input) -> Option<&Operand> {
        match input {
            Input::Argument(number) => self.arguments.get(*number),
            Input::Parameter(wanted) | Input::Behind(wanted) => {
                let place = self.names.iter().position(|name| name == wanted)?;
                self.arguments.get(place)
            }
            Input::Result => self.result.as_ref(),
        }
    }
}

/// Returns a register as a signed number.
fn signed(word: u64) -> i128 {
    (word as i64).into()
}

impl Inputs for Call<'_> {
    fn number(&self, input: &Input) -> Option<i128> {
        if let Some(operand) = self.argument(input) {
            return operand.number;
        }
        match input {
            Input::Argument(number) => self.kept.words.get(*number).copied().map(signed),
            Input::Parameter(_) | Input::Behind(_) => None,
            Input::Result => self.register.map(signed),
        }
    }

    fn text(&self, input: &Input) -> Option<String> {
        self.argument(input)?.text.clone()
    }

    fn duration(&self) -> Option<u64> {
        self.duration
    }
}
