//! Builds a program in all ways.

use std::collections::hash_map::DefaultHasher;
use std::fmt;
use std::fs;
use std::hash::{Hash as _, Hasher as _};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{self, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use fgraph_needs::Missing;

use crate::compiler::{Compiler, Sites};
use crate::generate;
use crate::scenario::{Hostile, Part};

/// Parts of the C library that were separate libraries before glibc 2.34.
const LIBRARIES: [&str; 2] = ["-ldl", "-lrt"];

/// Ways in which programs are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ways {
    /// By every compiler, with NOPs and without, each at one level of optimisation. Without NOPs
    /// that is level 0 if the compiler has built the program with NOPs, else level 2. Slow programs
    /// are built only in the first of these ways.
    Some,
    /// At all levels of optimisation.
    All,
}

impl Ways {
    const fn levels(self, compiler: Compiler, sites: Sites) -> &'static [u8] {
        match (self, sites) {
            (Self::All, _) => &[0, 1, 2, 3],
            (Self::Some, Sites::Relocated) if compiler.sites().len() > 1 => &[0],
            (Self::Some, _) => &[2],
        }
    }
}

/// Way to build a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Build {
    /// Compiler that builds it.
    pub compiler: Compiler,
    /// Way in which its functions are traced.
    pub sites: Sites,
    /// Level of optimisation, 0 to 3.
    pub level: u8,
}

impl fmt::Display for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sites = match self.sites {
            Sites::Nops => "nops",
            Sites::Relocated => "relocated",
        };
        write!(f, "{}-O{}-{sites}", self.compiler.need().name(), self.level)
    }
}

impl Build {
    /// Returns the ways to build a program.
    pub(crate) fn all(program: &Hostile, ways: Ways) -> Vec<Self> {
        let mut all = Vec::new();
        for &compiler in program.compilers {
            let sites = compiler.sites().iter().copied();
            for sites in sites {
                let levels = ways.levels(compiler, sites).iter();
                all.extend(levels.map(|&level| Self {
                    compiler,
                    sites,
                    level,
                }));
            }
        }
        all
    }

    /// Searches for the tools that the program needs to be built in this way, and to run.
    pub(crate) fn find_needs(self, program: &Hostile) -> Result<(), Missing> {
        self.compiler.need().find()?;
        for part in program.parts {
            self.of(part).compiler.need().find()?;
        }
        if let Some((flags, package)) = program.linked {
            self.compiler.need().links(flags, package)?;
        }
        program.tool.map_or(Ok(()), |tool| tool.find().map(drop))
    }

    /// Returns the arguments that distinguish this way.
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

    /// Builds the program in a directory under `directory`, unless it exists already; returns its
    /// path.
    pub(crate) fn build(self, program: &Hostile, directory: &Path) -> io::Result<PathBuf> {
        let include = directory.join("include");
        let sources = program.parts.iter().map(|part| part.source);
        let sources = sources
            .chain([program.source])
            .map(|it| programs().join(it));
        let mut hasher = DefaultHasher::new();
        for path in headers()?.into_iter().chain(sources) {
            fs::read(&path)
                .map_err(|error| io::Error::other(format!("{}: {error}", path.display())))?
                .hash(&mut hasher);
        }
        for (name, text) in generate::headers() {
            text.hash(&mut hasher);
            write_at_once(&include.join(name), &text)?;
        }
        self.compiler.version().hash(&mut hasher);
        (self.flags(), program.flags).hash(&mut hasher);
        for part in program.parts {
            self.of(part).compiler.version().hash(&mut hasher);
            (part.name, self.of(part).flags(), part.flags).hash(&mut hasher);
        }
        let name = Path::new(program.source).file_stem().unwrap_or_default();
        let place = directory.join(format!("{self}-{:016x}", hasher.finish()));
        let path = place.join(name);
        if path.exists() {
            return Ok(path);
        }
        let made = unique(&place);
        fs::create_dir_all(&made)?;
        for part in program.parts {
            let kind: &[&str] = if part.name.ends_with(".so") {
                &["-shared", "-fPIC"]
            } else {
                &["-c"]
            };
            let flags = [kind, part.flags].concat();
            self.of(part)
                .compile(part.source, &flags, &[], part.name, &made, &include)?;
        }
        let names = program.parts.iter().map(|part| part.name);
        let objects: Vec<&str> = names.filter(|name| name.ends_with(".o")).collect();
        self.compile(
            program.source,
            program.flags,
            &objects,
            &name.to_string_lossy(),
            &made,
            &include,
        )?;
        // Another process may have built the same.
        match fs::rename(&made, &place) {
            Err(error) if !path.exists() => Err(error),
            _ => Ok(path),
        }
    }

    /// Returns the way to build a part of a program that is built in this way.
    fn of(self, part: &Part) -> Self {
        let compiler = part.compiler.unwrap_or(self.compiler);
        let sites = match self.sites {
            Sites::Nops if !compiler.sites().contains(&Sites::Nops) => Sites::Relocated,
            sites => sites,
        };
        Self {
            compiler,
            sites,
            ..self
        }
    }

    /// Compiles `name` in `directory`.
    fn compile(
        self,
        source: &str,
        flags: &[&str],
        objects: &[&str],
        name: &str,
        directory: &Path,
        include: &Path,
    ) -> io::Result<()> {
        let mut command = self.compiler.command();
        command.args(self.flags()).arg(programs().join(source));
        if self.compiler != Compiler::Rustc {
            command.arg("-I").arg(include);
        }
        command.args(objects).args(flags);
        if self.compiler != Compiler::Rustc {
            command.args(LIBRARIES);
        }
        let output = command
            .args(["-o", name])
            .current_dir(directory)
            // Permits an unstable flag of rustc, for test programs only.
            .env("RUSTC_BOOTSTRAP", "1")
            .stdin(Stdio::null())
            .output()?;
        if output.status.success() {
            return Ok(());
        }
        Err(io::Error::other(format!(
            "{source} {} does not build as {self}:\n{}",
            flags.join(" "),
            String::from_utf8_lossy(&output.stderr)
        )))
    }
}

/// Returns a name beside `path` that no other process uses.
fn unique(path: &Path) -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    path.with_extension(format!("{}-{next}", process::id()))
}

/// Writes a file that other processes may be reading, unless it has this text already.
fn write_at_once(path: &Path, text: &str) -> io::Result<()> {
    if fs::read_to_string(path).is_ok_and(|there| there == text) {
        return Ok(());
    }
    let made = unique(path);
    fs::create_dir_all(path.parent().unwrap_or(path))?;
    fs::write(&made, text)?;
    fs::rename(made, path)
}

/// Returns the directory of the sources.
fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs")
}

/// Returns the headers that sources may include.
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
