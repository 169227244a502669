//! Generates headers with random functions for `programs/value_mixed.c` and
//! `programs/value_calls.c`.
//!
//! The functions for `value_calls.c` have every mix of arguments and results. For each function,
//! the header has the function itself, which checks its arguments, and one that calls it and checks
//! the result:
//!
//! ```text
//!   struct_ld f7(v256 a0, int a1, ...)     void c7(void)
//!     check a0, a1, ... bit by bit    <-     make a0, a1, ...
//!     make the result                 ->     check the result, and errno
//! ```
//!
//! Values are made of numbers that both sides compute, so neither passes them to the other. They
//! are the same in every run, since they follow from [`SEED`].

mod conventions;
mod random;

use std::fmt::Write as _;

use random::{Random, SEED};

/// Number of functions.
const FUNCTIONS: usize = 260;
/// Most arguments of a function.
const MOST_ARGUMENTS: u64 = 14;

/// Machine or compiler that supports values of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Needs {
    Nothing,
    Avx,
    Avx512,
    /// Unknown to clang 14.
    HalfFloats,
}

/// Type of arguments and results.
#[derive(Debug)]
struct Kind {
    name: &'static str,
    /// Declaration, in which `@` stands for the name.
    declaration: &'static str,
    /// Bytes that are not padding: offset, length, and content: (b)ytes, a bool (t), an e(x)tended
    /// float.
    parts: &'static [(u16, u16, char)],
    needs: Needs,
    /// True if it may be a variadic argument: it is not promoted to another type, and clang 14
    /// finds it.
    varies: bool,
}

impl Kind {
    /// True if it is always on the stack as an argument.
    fn is_on_stack(&self) -> bool {
        let bytes: u16 = self.parts.iter().map(|(_, len, _)| len).sum();
        bytes > 16 || self.parts.iter().any(|&(_, _, what)| what == 'x')
    }
}

const fn kind(
    name: &'static str,
    declaration: &'static str,
    parts: &'static [(u16, u16, char)],
) -> Kind {
    Kind {
        name,
        declaration,
        parts,
        needs: Needs::Nothing,
        varies: true,
    }
}

/// Makes a kind that is promoted.
const fn small(
    name: &'static str,
    declaration: &'static str,
    parts: &'static [(u16, u16, char)],
) -> Kind {
    Kind {
        varies: false,
        ..kind(name, declaration, parts)
    }
}

const fn needing(needs: Needs, kind: Kind) -> Kind {
    Kind {
        needs,
        varies: false,
        ..kind
    }
}

#[rustfmt::skip]
const KINDS: &[Kind] = &[
    small("schar", "signed char @", &[(0, 1, 'b')]),
    small("ushort", "unsigned short @", &[(0, 2, 'b')]),
    small("boolean", "_Bool @", &[(0, 1, 't')]),
    small("single", "float @", &[(0, 4, 'b')]),
    kind("int32", "int @", &[(0, 4, 'b')]),
    kind("int64", "long @", &[(0, 8, 'b')]),
    kind("pointer", "void *@", &[(0, 8, 'b')]),
    small("int128", "__int128 @", &[(0, 16, 'b')]),
    kind("real", "double @", &[(0, 8, 'b')]),
    kind("extended", "long double @", &[(0, 10, 'x')]),
    small("quad", "__float128 @", &[(0, 16, 'b')]),
    kind("complex_single", "_Complex float @", &[(0, 8, 'b')]),
    kind("complex_real", "_Complex double @", &[(0, 16, 'b')]),
    kind("complex_extended", "_Complex long double @", &[(0, 10, 'x'), (16, 10, 'x')]),
    kind("v128", "float @ __attribute__((vector_size(16)))", &[(0, 16, 'b')]),
    kind("v128i", "long long @ __attribute__((vector_size(16)))", &[(0, 16, 'b')]),
    // One INTEGER register.
    kind("struct_c", "struct { char a; } @", &[(0, 1, 'b')]),
    kind("struct_ccc", "struct { char a[3]; } @", &[(0, 3, 'b')]),
    kind("struct_if", "struct { int a; float b; } @", &[(0, 8, 'b')]),
    kind("struct_bits", "struct { unsigned a : 7, b : 20, c : 5; int d : 32; } @", &[(0, 8, 'b')]),
    kind("union_dl", "union { double a; long b; } @", &[(0, 8, 'b')]),
    // Two of them.
    kind("struct_ll", "struct { long a, b; } @", &[(0, 16, 'b')]),
    kind("struct_pis", "struct { void *a; int b; short c; } @", &[(0, 14, 'b')]),
    small("struct_i128", "struct { __int128 a; } @", &[(0, 16, 'b')]),
    // One SSE register.
    kind("struct_f", "struct { float a; } @", &[(0, 4, 'b')]),
    kind("struct_ff", "struct { float a, b; } @", &[(0, 8, 'b')]),
    kind("struct_v128", "struct { v128 a; } @", &[(0, 16, 'b')]),
    // Two of them.
    kind("struct_fff", "struct { float a[3]; } @", &[(0, 12, 'b')]),
    kind("struct_dd", "struct { double a, b; } @", &[(0, 16, 'b')]),
    kind("struct_cf", "struct { _Complex float a; float b; } @", &[(0, 12, 'b')]),
    // One of each.
    kind("struct_ld", "struct { long a; double b; } @", &[(0, 16, 'b')]),
    kind("struct_dl", "struct { double a; long b; } @", &[(0, 16, 'b')]),
    kind("struct_ffi", "struct { float a, b; int c; } @", &[(0, 12, 'b')]),
    kind("struct_id", "struct { int a; double b; } @", &[(0, 4, 'b'), (8, 8, 'b')]),
    // x87.
    kind("struct_x", "struct { long double a; } @", &[(0, 10, 'x')]),
    // Memory.
    kind("struct_lll", "struct { long a, b, c; } @", &[(0, 24, 'b')]),
    kind("struct_xl", "struct { long double a; long b; } @", &[(0, 10, 'x'), (16, 8, 'b')]),
    kind("union_xi", "union { long double a; int b[8]; } @", &[(0, 32, 'b')]),
    kind(
        "struct_packed",
        "struct __attribute__((packed)) { char a; double b; int c; } @",
        &[(0, 13, 'b')],
    ),
    kind("struct_large", "struct { char a[200]; } @", &[(0, 200, 'b')]),
    kind(
        "struct_aligned",
        "struct __attribute__((aligned(32))) { int a; double b[3]; } @",
        &[(0, 4, 'b'), (8, 24, 'b')],
    ),
    needing(Needs::Avx, kind("v256", "float @ __attribute__((vector_size(32)))", &[(0, 32, 'b')])),
    needing(
        Needs::Avx,
        kind("v256i", "long long @ __attribute__((vector_size(32)))", &[(0, 32, 'b')]),
    ),
    needing(Needs::Avx, kind("struct_v256", "struct { v256 a; } @", &[(0, 32, 'b')])),
    needing(
        Needs::Avx512,
        kind("v512", "float @ __attribute__((vector_size(64)))", &[(0, 64, 'b')]),
    ),
    needing(
        Needs::Avx512,
        kind("v512i", "long long @ __attribute__((vector_size(64)))", &[(0, 64, 'b')]),
    ),
    needing(Needs::Avx512, kind("struct_v512", "struct { v512 a; } @", &[(0, 64, 'b')])),
    needing(Needs::HalfFloats, kind("half", "_Float16 @", &[(0, 2, 'b')])),
    needing(Needs::HalfFloats, kind("struct_hh", "struct { _Float16 a, b; } @", &[(0, 4, 'b')])),
];

/// Function, with indices of kinds.
#[derive(Debug)]
struct Function {
    named: Vec<usize>,
    /// Variadic arguments.
    unnamed: Vec<usize>,
    result: Option<usize>,
    /// Function that it calls before it checks its arguments.
    calls: Option<usize>,
}

impl Function {
    /// Makes the function with this number. Each kind is at least once a result, and the first
    /// argument.
    fn new(number: usize, random: &mut Random) -> Self {
        // Keeps wide vectors from making all functions special.
        let widest = [Needs::Nothing, Needs::Avx, Needs::Avx512, Needs::HalfFloats][number % 4];
        let any = |random: &mut Random| loop {
            let kind = random.below(KINDS.len() as u64) as usize;
            let needs = KINDS[kind].needs;
            let is_half = |needs| needs == Needs::HalfFloats;
            if is_half(widest) == is_half(needs) && needs <= widest || needs == Needs::Nothing {
                break kind;
            }
        };
        let (first, result) = if number < 2 * KINDS.len() {
            let result = number * 3 + number / KINDS.len() + 5;
            (number % KINDS.len(), Some(result % KINDS.len()))
        } else {
            let result = (random.below(8) != 0).then(|| any(random));
            (any(random), result)
        };
        let count = random.below(MOST_ARGUMENTS);
        let more = (0..count).map(|_| any(random));
        let mut named: Vec<_> = [first].into_iter().chain(more).collect();
        let unnamed = if random.below(3) == 0 && !KINDS[first].is_on_stack() {
            // If named arguments are on the stack too, clang 14 looks for the variadic ones at
            // another place than it puts them.
            named.truncate(1);
            let count = 1 + random.below(MOST_ARGUMENTS);
            let all = (0..count).map(|_| any(random));
            all.filter(|&kind| KINDS[kind].varies).collect()
        } else {
            Vec::new()
        };
        let calls = (number > 0 && random.below(4) == 0).then(|| random.below(number as u64));
        Self {
            named,
            unnamed,
            result,
            calls: calls.map(|number| number as usize),
        }
    }

    fn kinds(&self) -> impl Iterator<Item = usize> {
        let arguments = self.named.iter().chain(&self.unnamed);
        arguments.chain(&self.result).copied()
    }

    fn needs(&self, needs: Needs) -> bool {
        self.kinds().any(|kind| KINDS[kind].needs == needs)
    }

    /// Returns the preprocessor condition under which it exists.
    fn condition(&self) -> String {
        let widest = match (self.needs(Needs::Avx512), self.needs(Needs::Avx)) {
            (true, _) => 64,
            (_, true) => 32,
            _ => 16,
        };
        let mut condition = format!("WIDEST >= {widest}");
        if self.needs(Needs::HalfFloats) {
            condition += " && HALF_FLOATS";
        }
        // When registers run out, clang 14 and gcc disagree about places on the stack.
        if self.named.len() + self.unnamed.len() > 6 {
            condition += " && !MIXED";
        }
        condition
    }

    /// Returns return type, name and types of arguments, with their names.
    fn head(&self, number: usize) -> String {
        let result = self.result.map_or("void", |kind| KINDS[kind].name);
        let arguments = self.named.iter().enumerate();
        let arguments: Vec<_> = arguments
            .map(|(at, &kind)| format!("{} a{at}", KINDS[kind].name))
            .collect();
        let varies = if self.unnamed.is_empty() { "" } else { ", ..." };
        format!("{result} f{number}({}{varies})", arguments.join(", "))
    }
}

/// Returns all headers that programs may include, by name.
pub(crate) fn headers() -> [(&'static str, String); 2] {
    [
        ("generated_calls.h", calls()),
        ("generated_conventions.h", conventions::conventions()),
    ]
}

/// Returns kinds, functions and their callers.
fn calls() -> String {
    let mut random = Random(SEED);
    let functions: Vec<_> = (0..FUNCTIONS)
        .map(|number| Function::new(number, &mut random))
        .collect();
    let mut text = String::from("/* Made by generate.rs. */\n");
    kinds(&mut text);
    for (number, function) in functions.iter().enumerate() {
        let _ = writeln!(
            text,
            "#if {}\n{} {};\n#endif\nvoid c{number}(void);",
            function.condition(),
            linkage(number),
            function.head(number)
        );
    }
    text.push_str("#if CALLEES\n");
    for (number, function) in functions.iter().enumerate() {
        callee(&mut text, number, function);
    }
    text.push_str("#endif\n#if CALLERS\n");
    for (number, function) in functions.iter().enumerate() {
        caller(&mut text, number, function);
    }
    text.push_str("#endif\n#define EACH_CALLER(X)");
    for number in 0..functions.len() {
        let _ = write!(text, " X(c{number})");
    }
    text.push('\n');
    text
}

fn kinds(text: &mut String) {
    let condition = |kind: &Kind| match kind.needs {
        Needs::HalfFloats => "HALF_FLOATS",
        // Vectors that are wider than the registers exist, too.
        _ => "1",
    };
    for kind in KINDS {
        let declaration = kind.declaration.replace('@', kind.name);
        let _ = writeln!(
            text,
            "#if {}\ntypedef {declaration};\n#endif",
            condition(kind)
        );
    }
    text.push_str("static const struct kind kinds[] = {\n");
    for kind in KINDS {
        let _ = write!(text, "{{ \"{}\", {{", kind.name);
        for (offset, length, what) in kind.parts {
            let _ = write!(text, " {{ {offset}, {length}, '{what}' }},");
        }
        text.push_str(" } },\n");
    }
    text.push_str("};\n");
}

/// Returns the seed of an argument or, as the last, of the result of a function.
fn seed(number: usize, at: usize) -> usize {
    number * 64 + at
}

/// Returns the linkage; half of the functions may be local to the file.
fn linkage(number: usize) -> &'static str {
    ["GLOBAL", "LOCAL"][number % 2]
}

fn callee(text: &mut String, number: usize, function: &Function) {
    let (condition, head) = (function.condition(), function.head(number));
    let _ = writeln!(text, "#if {condition}\n{} {head} {{", linkage(number));
    if let Some(other) = function.calls {
        let _ = writeln!(text, "    NESTED(c{other});");
    }
    let check = |text: &mut String, name: &str, kind: usize, at: usize| {
        let seed = seed(number, at);
        let _ = writeln!(text, "    check(&{name}, {kind}, {seed}, {number}, {at});");
    };
    for (at, &kind) in function.named.iter().enumerate() {
        check(text, &format!("a{at}"), kind, at);
    }
    if !function.unnamed.is_empty() {
        let last = function.named.len() - 1;
        let _ = writeln!(text, "    va_list list;\n    va_start(list, a{last});");
        for (at, &kind) in (last + 1..).zip(&function.unnamed) {
            let name = KINDS[kind].name;
            let _ = writeln!(text, "    {name} a{at} = va_arg(list, {name});");
            check(text, &format!("a{at}"), kind, at);
        }
        text.push_str("    va_end(list);\n");
    }
    if let Some(kind) = function.result {
        let (name, seed) = (KINDS[kind].name, seed(number, 63));
        let _ = writeln!(
            text,
            "    {name} r;\n    make(&r, {kind}, {seed});\n    return r;"
        );
    }
    text.push_str("}\n#endif\n");
}

fn caller(text: &mut String, number: usize, function: &Function) {
    let condition = function.condition();
    let _ = writeln!(text, "CALLER void c{number}(void) {{\n#if {condition}");
    let arguments: Vec<_> = (function.named.iter().chain(&function.unnamed)).collect();
    for (at, &&kind) in arguments.iter().enumerate() {
        let (name, seed) = (KINDS[kind].name, seed(number, at));
        let _ = writeln!(text, "    {name} a{at};\n    make(&a{at}, {kind}, {seed});");
    }
    let result =
        (function.result).map_or_else(String::new, |kind| format!("{} r = ", KINDS[kind].name));
    let names: Vec<_> = (0..arguments.len()).map(|at| format!("a{at}")).collect();
    let function_called = match number % 3 {
        0 => format!("HIDDEN(f{number})"),
        _ => format!("f{number}"),
    };
    let _ = writeln!(
        text,
        "    errno = {number} + 1000;\n    {result}{function_called}({});\n    \
         check_errno({number});",
        names.join(", ")
    );
    if let Some(kind) = function.result {
        let seed = seed(number, 63);
        let _ = writeln!(text, "    check(&r, {kind}, {seed}, {number}, -1);");
    }
    text.push_str("#endif\n}\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_an_argument_a_result_and_where_it_may_be_unnamed() {
        let mut random = Random(SEED);
        let functions: Vec<_> = (0..FUNCTIONS)
            .map(|number| Function::new(number, &mut random))
            .collect();
        for (index, kind) in KINDS.iter().enumerate() {
            let count = |of: &dyn Fn(&Function) -> bool| functions.iter().filter(|f| of(f)).count();
            assert!(count(&|f| f.named.contains(&index)) > 1, "{}", kind.name);
            assert!(count(&|f| f.result == Some(index)) > 1, "{}", kind.name);
            let unnamed = count(&|f| f.unnamed.contains(&index));
            assert_eq!(unnamed > 0, kind.varies, "{}", kind.name);
        }
    }

    #[test]
    fn it_is_always_the_same() {
        assert_eq!(calls(), calls());
    }
}
