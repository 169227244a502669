//! The compilers, and the ways in which the functions that they compile are traced.

use std::process::Command;
use std::sync::OnceLock;

use fgraph_needs::{CLANG, CLANGXX, GCC, GXX, Need, RUSTC};

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
pub(crate) const RUST: &[Compiler] = &[Compiler::Rustc];

impl Compiler {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Gcc,
        Self::Gxx,
        Self::Clang,
        Self::Clangxx,
        Self::Rustc,
    ];

    /// Returns the need of compiling with it.
    pub const fn need(self) -> Need {
        match self {
            Self::Gcc => GCC,
            Self::Gxx => GXX,
            Self::Clang => CLANG,
            Self::Clangxx => CLANGXX,
            Self::Rustc => RUSTC,
        }
    }

    /// Returns the command, or its bare name if it is missing.
    pub(crate) fn command(self) -> Command {
        Command::new(
            self.need()
                .find()
                .unwrap_or_else(|_| self.need().name().into()),
        )
    }

    /// Returns the ways in which functions that it has compiled are traced.
    pub(crate) const fn sites(self) -> &'static [Sites] {
        match self {
            // Five NOPs of gcc are five instructions, which are relocated like any others.
            Self::Gcc | Self::Gxx => &[Sites::Relocated],
            Self::Clang | Self::Clangxx | Self::Rustc => &[Sites::Nops, Sites::Relocated],
        }
    }

    /// Returns its version. Programs are rebuilt when that changes.
    pub(crate) fn version(self) -> &'static str {
        static VERSIONS: [OnceLock<String>; 5] = [const { OnceLock::new() }; 5];
        VERSIONS[self as usize].get_or_init(|| {
            let output = self.command().arg("--version").output();
            output.map_or_else(
                |_| "none".to_owned(),
                |output| String::from_utf8_lossy(&output.stdout).into_owned(),
            )
        })
    }
}

/// Way in which the functions of a program are traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sites {
    /// By NOPs that the compiler has left.
    Nops,
    /// By displacing their first instructions.
    Relocated,
}
