//! All functions of a process, libraries included, enumerated and traced.
//!
//! fgraph keeps its data about modules, so a process can be measured only once. Therefore another
//! process is started for it.

use core::fmt;
use core::hint::black_box;
use core::str::FromStr;
use std::env;
use std::error::Error;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::users::Declining;

/// Argument that makes the program [measure](Whole::measure) itself and print the result.
pub const ARGUMENT: &str = "--whole";

/// Times of enumerating and tracing all functions.
#[derive(Clone, Copy, Debug)]
pub struct Whole {
    /// Number of functions.
    pub functions: usize,
    /// Number of functions that could be traced.
    pub traced: usize,
    /// Time of `fgraph::sites` in a process without data about its modules.
    pub list: Duration,
    /// The same, including the decision about each function.
    pub enumerate: Duration,
    /// `register` with a filter that selects everything, when the functions are known.
    pub register: Duration,
    /// `unregister` of that user.
    pub unregister: Duration,
}

impl Whole {
    /// Enumerates and traces all functions of this process.
    pub fn measure() -> Result<Self, fgraph::Error> {
        let start = Instant::now();
        let sites = fgraph::sites()?;
        let list = start.elapsed();
        let functions = sites.iter().map(black_box).fold(0, |all, _| all + 1);
        let enumerate = start.elapsed();
        drop(sites);
        let start = Instant::now();
        let user = crate::register(Declining, "*")?;
        let register = start.elapsed();
        let traced = user.report()?.traced;
        let start = Instant::now();
        drop(user);
        Ok(Self {
            functions,
            traced,
            list,
            enumerate,
            register,
            unregister: start.elapsed(),
        })
    }

    /// Returns the measurements of a process that runs this program with [`ARGUMENT`].
    pub fn in_another_process() -> Result<Self, Box<dyn Error>> {
        let output = Command::new(env::current_exe()?)
            .arg(ARGUMENT)
            .stderr(Stdio::inherit())
            .output()?;
        let text = String::from_utf8(output.stdout)?;
        text.parse()
            .map_err(|()| format!("a process that traces all of itself: {}", output.status).into())
    }

    /// Returns the shorter of each time.
    pub fn min(self, other: Self) -> Self {
        Self {
            list: self.list.min(other.list),
            enumerate: self.enumerate.min(other.enumerate),
            register: self.register.min(other.register),
            unregister: self.unregister.min(other.unregister),
            ..self
        }
    }

    /// Returns a time in ns divided by the number of functions.
    pub fn per_function(&self, time: Duration) -> f64 {
        time.as_secs_f64() * 1e9 / self.functions as f64
    }
}

impl fmt::Display for Whole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.functions, self.traced)?;
        [self.list, self.enumerate, self.register, self.unregister]
            .iter()
            .try_for_each(|time| write!(f, " {}", time.as_nanos()))
    }
}

impl FromStr for Whole {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let numbers: Vec<u64> = text
            .split_whitespace()
            .map(|number| number.parse().map_err(drop))
            .collect::<Result<_, _>>()?;
        let [functions, traced, list, enumerate, register, unregister] = numbers[..] else {
            return Err(());
        };
        Ok(Self {
            functions: functions as usize,
            traced: traced as usize,
            list: Duration::from_nanos(list),
            enumerate: Duration::from_nanos(enumerate),
            register: Duration::from_nanos(register),
            unregister: Duration::from_nanos(unregister),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_figures_can_be_parsed() {
        let text = "5 4 15 30 20 10";
        assert_eq!(text.parse::<Whole>().unwrap().to_string(), text);
        assert!("5 4 15 30 20".parse::<Whole>().is_err());
    }
}
