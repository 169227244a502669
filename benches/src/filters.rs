//! Measures changes of filters in a process with very many functions.
//!
//! If rustc's own library exists, the process has it loaded: 215,000 functions, with LLVM's.
//! Otherwise the functions are those of the benchmark itself.

use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use fgraph::{Filter, FilterError};
use serde::{Deserialize, Serialize};

use crate::users::Declining;

/// Argument that makes the program [measure](Changes::measure) itself and print the result.
pub const ARGUMENT: &str = "--filters";

/// Times of changes of filters when the sites of all modules exist.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Changes {
    /// Number of functions that can be traced.
    pub functions: usize,
    /// Setting a filter of 1,000 names.
    pub thousand: Duration,
    /// Setting a filter of 20,000 names.
    pub twenty_thousand: Duration,
    /// Adding a name to a filter of 100.
    pub one_more: Duration,
}

impl Changes {
    /// Sets filters in this process.
    pub fn measure() -> Result<Self, Box<dyn Error>> {
        // This makes the sites.
        let user = crate::register(Declining, "*")?;
        let all = user.functions()?;
        // Names at equal distances, so that all modules have some.
        let names = |count: usize, first: usize| {
            let step = (all.len() / count).max(1);
            let some = all.iter().skip(first).step_by(step).take(count);
            let names = some.map(|function| function.name().to_string());
            names.collect::<Vec<_>>()
        };
        let filter = |names: &[String]| {
            let none = Filter::none();
            names
                .iter()
                .try_fold(none, |filter, name| filter.name(name))
        };
        let time = |filter: Result<Filter, FilterError>| -> Result<Duration, fgraph::Error> {
            let filter = filter?;
            // SAFETY: the user does nothing, which is allowed everywhere.
            unsafe { user.set_filter(Filter::none())? };
            let start = Instant::now();
            // SAFETY: the user does nothing, which is allowed everywhere.
            unsafe { user.set_filter(filter)? };
            Ok(start.elapsed())
        };
        let thousand = time(filter(&names(1_000, 0)))?;
        let twenty_thousand = time(filter(&names(20_000, 0)))?;
        time(filter(&names(100, 0)))?;
        let mut one_more = Duration::MAX;
        for name in names(10, 1) {
            let start = Instant::now();
            // SAFETY: the user does nothing, which is allowed everywhere.
            unsafe { user.add_filter(Filter::none().name(&name))? };
            one_more = one_more.min(start.elapsed());
        }
        Ok(Self {
            functions: all.len(),
            thousand,
            twenty_thousand,
            one_more,
        })
    }

    /// Returns the measurements of a process that runs this program with [`ARGUMENT`].
    pub fn in_another_process() -> Result<Self, Box<dyn Error>> {
        let mut command = Command::new(env::current_exe()?);
        command.arg(ARGUMENT);
        if let Some(library) = rustc_library() {
            // It has too much thread-local data to be loaded later.
            command.env("LD_LIBRARY_PATH", library.parent().unwrap_or(&library));
            command.env("LD_PRELOAD", library);
        }
        crate::figures_of(command)
    }

    /// Returns the shorter of each time.
    pub fn min(self, other: Self) -> Self {
        Self {
            thousand: self.thousand.min(other.thousand),
            twenty_thousand: self.twenty_thousand.min(other.twenty_thousand),
            one_more: self.one_more.min(other.one_more),
            ..self
        }
    }
}

/// Returns the library with rustc's code, if it is installed.
fn rustc_library() -> Option<PathBuf> {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).args(["--print", "sysroot"]).output();
    let sysroot = String::from_utf8(output.ok()?.stdout).ok()?;
    let mut files = fs::read_dir(Path::new(sysroot.trim_end()).join("lib")).ok()?;
    let is_it = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default();
        name.to_string_lossy().starts_with("librustc_driver-")
    };
    files.find_map(|file| Some(file.ok()?.path()).filter(is_it))
}
