//! Functions of several conventions that call one another, for `programs/value_mixed.c`.
//!
//! Each computes values from its arguments, and by calls of earlier functions, and uses them after
//! these calls. Values that are live across a call are where the convention of the called function
//! permits.

use std::fmt::Write as _;

use super::random::{Random, SEED};

/// Number of functions.
const FUNCTIONS: usize = 240;
/// After this many functions the calls start afresh, so that no call takes long.
const FAMILY: usize = 24;
/// Greatest distance to an earlier function that is called.
const REACH: u64 = 8;

/// Macros of the program. Functions by the last two have no result, because clang 14 preserves its
/// register.
const CONVENTIONS: [&str; 5] = ["SYSTEM", "SYSTEM", "MS", "MOST", "ALL"];

/// Integers and floats.
const TYPES: [&str; 2] = ["u64", "double"];

/// Names of the values of a function, by type.
type Values = [Vec<String>; 2];

struct Function {
    convention: usize,
    /// Indices of types.
    arguments: Vec<usize>,
    result: Option<usize>,
}

impl Function {
    fn new(random: &mut Random) -> Self {
        let convention = random.below(5) as usize;
        let count = 1 + random.below(5);
        // More integers than floats.
        let mut kind = || (random.below(3) / 2) as usize;
        let arguments = (0..count).map(|_| kind()).collect();
        let result = (convention < 3).then(kind);
        Self {
            convention,
            arguments,
            result,
        }
    }

    /// Returns a call of it, as an expression.
    fn call(&self, number: usize, mut argument: impl FnMut(usize) -> String) -> String {
        let arguments: Vec<_> = self.arguments.iter().map(|&kind| argument(kind)).collect();
        format!("g{number}({})", arguments.join(", "))
    }

    /// Returns return type, name and arguments, with their names.
    fn head(&self, number: usize) -> String {
        let arguments = self.arguments.iter().enumerate();
        let arguments: Vec<_> = arguments
            .map(|(at, &kind)| format!("{} a{at}", TYPES[kind]))
            .collect();
        format!(
            "NOINLINE {} {} g{number}({})",
            CONVENTIONS[self.convention],
            self.result.map_or("void", |kind| TYPES[kind]),
            arguments.join(", ")
        )
    }
}

/// Returns the functions, and `each`, which calls all of them.
pub(super) fn conventions() -> String {
    let mut random = Random(SEED);
    let mut text = String::from("/* Made by generate.rs. */\n");
    let mut functions: Vec<Function> = Vec::new();
    for number in 0..FUNCTIONS {
        functions.push(Function::new(&mut random));
        body(&mut text, &functions, number, &mut random);
    }
    text.push_str("static void each(u64 n) {\n");
    for (number, function) in functions.iter().enumerate() {
        let call = function.call(number, |kind| {
            let factor = 1 + random.below(9);
            [format!("n * {factor}"), format!("n * 0.{factor}")][kind].clone()
        });
        let _ = match function.result {
            Some(kind) => writeln!(text, "    {}({call});", ["took", "took_float"][kind]),
            None => writeln!(text, "    {call};"),
        };
    }
    text.push_str("}\n");
    text
}

/// Writes the body of the last of the functions.
fn body(text: &mut String, functions: &[Function], number: usize, random: &mut Random) {
    let function = &functions[number];
    let mut values: Values = [vec!["place".into()], vec!["float_place".into()]];
    for (at, &kind) in function.arguments.iter().enumerate() {
        values[kind].push(format!("a{at}"));
    }
    let _ = writeln!(text, "{} {{", function.head(number));
    for at in 0..1 + random.below(8) {
        let mut any = |kind: usize| {
            let values = &values[kind];
            values[random.below(values.len() as u64) as usize].clone()
        };
        let [a, b, c, d] = [any(0), any(0), any(1), any(1)];
        let before = (number % FAMILY) as u64;
        let (value, kind) = match random.below(20) {
            0..5 => (format!("{a} * 3 ^ {b} + {at}"), Some(0)),
            5..9 => (format!("{c} * 0.5 - {d}"), Some(1)),
            9..16 if before != 0 => {
                let number = number - 1 - random.below(before.min(REACH)) as usize;
                let call = functions[number].call(number, |kind| {
                    let values = &values[kind];
                    values[random.below(values.len() as u64) as usize].clone()
                });
                (call, functions[number].result)
            }
            9..18 => (format!("(u64)labs((long){a})"), Some(0)),
            18 => (format!("fdim({c}, {d})"), Some(1)),
            _ => (format!("CHOICE({a}, {b})"), Some(0)),
        };
        let _ = match kind {
            Some(kind) => writeln!(text, "    {} v{at} = {value};", TYPES[kind]),
            None => writeln!(text, "    {value};"),
        };
        if let Some(kind) = kind {
            values[kind].push(format!("v{at}"));
        }
    }
    let sum = |kind: usize| values[kind].join(" + ");
    let _ = match function.result {
        Some(kind) => writeln!(text, "    return {};\n}}", sum(kind)),
        None => writeln!(
            text,
            "    place = {};\n    float_place = ({}) * 0.25;\n}}",
            sum(0),
            sum(1)
        ),
    };
}
