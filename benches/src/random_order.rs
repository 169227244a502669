//! Calls of eight functions in random order. A processor cannot predict the next one, as it can in
//! the loops of [`functions`](crate::functions).

use core::hint::black_box;
use std::time::{Duration, Instant};

use fgraph::{Error, Handle};

use crate::functions::{Code, EIGHT, EIGHT_PATCHABLE, EIGHT_PLAIN};
use crate::users::Empty;

/// The functions, while a user with empty callbacks watches those with NOPs, or none does.
#[derive(Debug)]
pub struct RandomOrder {
    user: Option<Handle<Empty<0>>>,
    /// The state of a xorshift generator, which is never 0.
    state: u64,
}

impl RandomOrder {
    /// Registers the user if `is_watched`.
    pub fn set_up(is_watched: bool) -> Result<Self, Error> {
        let user = is_watched.then(|| crate::register(Empty::<0>, EIGHT));
        Ok(Self {
            user: user.transpose()?,
            state: 88_172_645_463_325_252,
        })
    }

    /// Times `calls` calls, each waiting for the result of the one before.
    pub fn time(&mut self, calls: u64) -> Duration {
        let functions = match self.user {
            Some(_) => EIGHT_PATCHABLE,
            None => EIGHT_PLAIN,
        };
        let start = Instant::now();
        self.run(black_box(&functions), calls);
        start.elapsed()
    }

    #[inline(never)]
    fn run(&mut self, functions: &[Code; 8], calls: u64) {
        let mut value = 0;
        for _ in 0..calls {
            self.state ^= self.state << 13;
            self.state ^= self.state >> 7;
            self.state ^= self.state << 17;
            value = functions[self.state as usize % functions.len()](value, 1);
        }
        black_box(value);
    }
}
