//! Writes the list of the victim's functions: their names, shapes and the table of them.
//!
//! Each shape has a macro in `src/functions.rs`.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::{env, fs};

/// Number of functions.
const COUNT: usize = 4096;

/// The shapes, in the order in which they follow each other, and the signatures they have. A
/// function refers to earlier ones of its own group only.
const SHAPES: [(&str, &str, &[usize]); 16] = [
    ("leaf", "Int", &[]),
    ("float", "Float", &[]),
    ("many", "Many", &[]),
    ("floats", "Floats", &[]),
    ("looping", "Int", &[]),
    ("recursive", "Int", &[]),
    ("wide", "Wide", &[]),
    ("thrower", "Int", &[]),
    ("triple", "Triple", &[]),
    ("pair", "Pair", &[]),
    ("calling", "Int", &[0, 5]),
    ("indirect", "Int", &[10]),
    ("tail", "Int", &[4]),
    ("catcher", "Int", &[7]),
    ("mixed", "Mixed", &[]),
    ("pointer", "Pointer", &[]),
];

/// The callees of the shapes in assembly.
const ASSEMBLY_CALLEES: [&[usize]; 16] = {
    let mut callees: [&[usize]; 16] = [&[]; 16];
    callees[8] = &[3];
    callees
};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let relocated = env::var_os("CARGO_FEATURE_RELOCATED").is_some();
    let mut source = String::new();
    let mut table = String::new();
    for index in 0..COUNT {
        let group = index - index % SHAPES.len();
        let (mut shape, mut signature, mut callees) = SHAPES[index % SHAPES.len()];
        let number = format!("assembly_{}", index % 16);
        if relocated && index / 16 % 2 == 1 {
            (shape, signature) = (&number, "Assembly");
            callees = ASSEMBLY_CALLEES[index % 16];
        }
        write!(source, "{shape}!(fn_{index:04}, {index}").unwrap();
        for callee in callees {
            write!(source, ", fn_{:04}", group + callee).unwrap();
        }
        source.push_str(");\n");
        writeln!(table, "    Signature::{signature}(fn_{index:04}),").unwrap();
    }
    write!(
        source,
        "/// All functions, by number.\n\
         pub(crate) static FUNCTIONS: [Signature; {COUNT}] = [\n{table}];\n"
    )
    .unwrap();
    let directory = PathBuf::from(env::var_os("OUT_DIR").unwrap());
    fs::write(directory.join("functions.rs"), source).unwrap();
}
