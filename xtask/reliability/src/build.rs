//! Building a program in all ways.

use std::collections::hash_map::DefaultHasher;
use std::fmt;
use std::fs;
use std::hash::{Hash as _, Hasher as _};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::scenario::Hostile;

/// A compiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compiler {
    /// gcc, for C.
    Gcc,
    /// g++, for C++.
    Gxx,
    /// clang, for C.
    Clang,
    /// clang++, for C++.
    Clangxx,
    /// rustc.
    Rustc,
}

/// Both compilers of C.
pub(crate) const C: &[Compiler] = &[Compiler::Gcc, Compiler::Clang];
/// Both compilers of C++.
pub(crate) const CXX: &[Compiler] = &[Compiler::Gxx, Compiler::Clangxx];
/// The compiler of Rust.
#[allow(dead_code, reason = "for the scenarios to come")]
pub(crate) const RUST: &[Compiler] = &[Compiler::Rustc];

impl Compiler {
    /// The command.
    pub(crate) const fn command(self) -> &'static str {
        match self {
            Self::Gcc => "gcc",
            Self::Gxx => "g++",
            Self::Clang => "clang",
            Self::Clangxx => "clang++",
            Self::Rustc => "rustc",
        }
    }

    /// How functions are traced that it has compiled.
    const fn sites(self) -> &'static [Sites] {
        match self {
            // Five NOPs of gcc are five instructions, which are relocated like any others.
            Self::Gcc | Self::Gxx => &[Sites::Relocated],
            Self::Clang | Self::Clangxx | Self::Rustc => &[Sites::Nops, Sites::Relocated],
        }
    }

    /// What it calls itself. Programs are built anew when that changes.
    fn version(self) -> &'static str {
        static VERSIONS: [OnceLock<String>; 5] = [const { OnceLock::new() }; 5];
        VERSIONS[self as usize].get_or_init(|| {
            let output = Command::new(self.command()).arg("--version").output();
            output.map_or_else(
                |_| "none".to_owned(),
                |output| String::from_utf8_lossy(&output.stdout).into_owned(),
            )
        })
    }
}

/// How the functions of a program are traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sites {
    /// By NOPs that the compiler has left.
    Nops,
    /// By displacing their first instructions.
    Relocated,
}

/// A way to build a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Build {
    /// By which compiler.
    pub compiler: Compiler,
    /// How its functions are traced.
    pub sites: Sites,
    /// The level of optimisation, 0 to 3.
    pub level: u8,
}

impl fmt::Display for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sites = match self.sites {
            Sites::Nops => "nops",
            Sites::Relocated => "relocated",
        };
        write!(f, "{}-O{}-{sites}", self.compiler.command(), self.level)
    }
}

impl Build {
    /// All ways to build a program.
    pub(crate) fn all(program: &Hostile) -> Vec<Self> {
        let mut all = Vec::new();
        for &compiler in program.compilers {
            for &sites in compiler.sites() {
                all.extend((0..=3).map(|level| Self {
                    compiler,
                    sites,
                    level,
                }));
            }
        }
        all
    }

    /// The arguments that make the difference.
    fn flags(self) -> Vec<String> {
        let has_nops = self.sites == Sites::Nops;
        let mut flags = Vec::new();
        if self.compiler == Compiler::Rustc {
            flags.push(format!("-Copt-level={}", self.level));
            flags.push("--edition=2024".to_owned());
            flags.extend(has_nops.then(|| "-Zpatchable-function-entry=5".to_owned()));
        } else {
            flags.push(format!("-O{}", self.level));
            flags.extend(["-g", "-pthread"].map(str::to_owned));
            flags.extend(has_nops.then(|| "-fpatchable-function-entry=5".to_owned()));
        }
        flags
    }

    /// Builds the program in a directory under `directory`, unless it is there already; returns its path.
    pub(crate) fn build(self, program: &Hostile, directory: &Path) -> io::Result<PathBuf> {
        let source = programs().join(program.source);
        let flags = self.flags();
        let mut hasher = DefaultHasher::new();
        for path in headers()?.iter().chain([&source]) {
            fs::read(path)
                .map_err(|error| io::Error::other(format!("{}: {error}", path.display())))?
                .hash(&mut hasher);
        }
        (self.compiler.version(), &flags, program.flags).hash(&mut hasher);
        let name = Path::new(program.source).file_stem().unwrap_or_default();
        let place = directory.join(format!("{self}-{:016x}", hasher.finish()));
        let path = place.join(name);
        if !path.exists() {
            fs::create_dir_all(&place)?;
            // Others may be building the same.
            static NEXT: AtomicU64 = AtomicU64::new(0);
            let next = NEXT.fetch_add(1, Ordering::Relaxed);
            let made = place.join(format!("{}-{next}", process::id()));
            let output = Command::new(self.compiler.command())
                .args(&flags)
                .arg(&source)
                .args(program.flags)
                .arg("-o")
                .arg(&made)
                // For the rustc whose flag is not stable yet; the programs are tests only.
                .env("RUSTC_BOOTSTRAP", "1")
                .stdin(Stdio::null())
                .output()?;
            if !output.status.success() {
                return Err(io::Error::other(format!(
                    "{} {} does not build as {self}:\n{}",
                    program.source,
                    program.flags.join(" "),
                    String::from_utf8_lossy(&output.stderr)
                )));
            }
            fs::rename(made, &path)?;
        }
        Ok(path)
    }
}

/// Where the sources are.
fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs")
}

/// What sources may include.
fn headers() -> io::Result<Vec<PathBuf>> {
    let mut headers = Vec::new();
    for entry in fs::read_dir(programs())? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "h") {
            headers.push(path);
        }
    }
    headers.sort();
    Ok(headers)
}
