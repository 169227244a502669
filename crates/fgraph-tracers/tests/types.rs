//! Arguments and results by their types, of C, C++ and Rust, optimised and not.

use std::ffi::c_char;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use fgraph_needs::{CLANG, GCC, GXX, Missing, Need, RUSTC, needs};
use fgraph_scenario::{Library, bounded, directory, library, scenario};
use fgraph_trace::graph::{FunctionGraph, Options as GraphOptions, Parts, ResultFormat};
use fgraph_trace::{Live, Recording, Source};
use fgraph_tracers::Tracer;
use fgraph_tracers::recorder::{FileRecorder, Options, Recorder};

/// Values by their types, or else two arguments and the result as words.
fn typed() -> Options {
    Options {
        arguments: 2,
        result: true,
        types: Some(Duration::from_secs(60)),
        ..Options::default()
    }
}

/// The calls of a source, with their values, one in a line.
fn calls(source: &mut impl Source) -> Vec<String> {
    let options = GraphOptions {
        parts: Parts::OVERHEAD | Parts::ARGUMENTS,
        result: Some(ResultFormat::Decimal),
        ..GraphOptions::default()
    };
    let mut text = Vec::new();
    let mut graph = FunctionGraph::new(options);
    graph.write_all(source, &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    text.lines().skip(4).map(str::to_owned).collect()
}

fn recorded(options: &Options, filter: &str, run: impl FnOnce()) -> Vec<String> {
    let recorder = Recorder::start_with(filter, options).unwrap();
    run();
    let rings = recorder.finish().unwrap();
    calls(&mut Live::consume(rings).unwrap())
}

const C: &str = r#"
#include <stdbool.h>
#include <stddef.h>
#define TRACED __attribute__((noinline, noipa))
enum color { RED, GREEN = 5, NEGATIVE = -1 };
struct pair { int a; double b; };
struct floats { float x, y, z; };
struct big { long x[3]; const char *name; };
typedef unsigned long word_t;
volatile long sink;
TRACED int numbers(signed char c, short s, int i, long l, unsigned u, word_t w, float f, double d)
{ sink = c + s + i + l + u + w + f + d; return -7; }
TRACED const char *text(const char *name, const void *p, enum color c)
{ sink = (long)p + c; return name + 1; }
TRACED struct pair pairs(struct pair p, struct big b, int after)
{ sink = b.x[1] + after; p.a += 1; p.b *= 2; return p; }
TRACED struct floats floats(struct floats f, bool yes)
{ sink = yes + f.z; f.z = -1; return f; }
TRACED struct big large(long n)
{ sink = n; return (struct big){{n, n + 1, n + 2}, "large"}; }
TRACED enum color color(int n) { sink = n; return n ? NEGATIVE : GREEN; }
TRACED long many(long a, long b, long c, long d, long e, long f, long g, const char *h)
{ sink = a + b + c + d + e + f; return g + h[0]; }
TRACED void texts(const char *one, const char *unmapped, const char *end, const char *null)
{ sink = (long)one + (long)unmapped + (long)end + (long)null; }
TRACED void nothing(void) { sink = 1; }
void run(void)
{
    numbers(-1, -300, 1 << 30, -1L << 40, 4000000000u, 1, 1.5f, -0.25);
    text("/etc/passwd", (void *)0x1234, GREEN);
    pairs((struct pair){3, 1.25}, (struct big){{1, 2, 3}, "in it"}, 9);
    floats((struct floats){1, 2, 3}, true);
    large(40);
    color(1);
    many(1, 2, 3, 4, 5, 6, 7, "the \"stack\"\n\xff");
    nothing();
}
"#;

const C_CALLS: [&str; 8] = [
    "numbers(c=-1, s=-300, i=1073741824, l=-1099511627776, u=4000000000, w=1, f=1.5, d=-0.25); \
     /* ret=-7 */",
    "text(name=\"/etc/passwd\", p=0x1234, c=GREEN); /* ret=\"etc/passwd\" */",
    "pairs(p=pair { a: 3, b: 1.25 }, b=big { x: [1, 2, 3], name: \"in it\" }, after=9); \
     /* ret=pair { a: 4, b: 2.5 } */",
    "floats(f=floats { x: 1.0, y: 2.0, z: 3.0 }, yes=true); \
     /* ret=floats { x: 1.0, y: 2.0, z: -1.0 } */",
    "large(n=40); /* ret=big { x: [40, 41, 42], name: \"large\" } */",
    "color(n=1); /* ret=NEGATIVE */",
    "many(a=1, b=2, c=3, d=4, e=5, f=6, g=7, h=\"the \\\"stack\\\"\\n\\xff\"); /* ret=123 */",
    "nothing();",
];

const C_FILTER: &str = "\
     numbers:mod:libtyped.so text:mod:libtyped.so pairs:mod:libtyped.so floats:mod:libtyped.so \
     large:mod:libtyped.so color:mod:libtyped.so many:mod:libtyped.so texts:mod:libtyped.so \
     nothing:mod:libtyped.so";

fn check_c(compiler: &Need, options: &[&str]) -> Result<(), Missing> {
    let library = library(compiler, "typed.c", C, options)?;
    // SAFETY: its type.
    let run = unsafe { library.get::<extern "C" fn()>("run") };
    assert_eq!(recorded(&typed(), C_FILTER, || run()), C_CALLS);
    Ok(())
}

#[scenario]
fn values_of_c_are_recorded_by_their_types() {
    needs!(check_c(&GCC, &["-O0"]));
}

#[scenario]
fn values_of_optimised_c_are_recorded_by_their_types() {
    needs!(check_c(&GCC, &["-O2"]));
}

#[scenario]
fn values_of_c_by_llvm_are_recorded_by_their_types() {
    needs!(check_c(&CLANG, &["-O0"]));
}

#[scenario]
fn values_of_optimised_c_by_llvm_are_recorded_by_their_types() {
    needs!(check_c(&CLANG, &["-O2"]));
}

const CPP: &str = r#"
#include <string>
#include <string_view>
#define TRACED __attribute__((noinline, noipa))
enum class Mode : unsigned char { Off, On = 7 };
struct Point { int x, y; };
struct Noisy { int x; ~Noisy(); };
volatile long sink;
TRACED Noisy::~Noisy() { sink = x; }
struct Counter {
    int value;
    TRACED int add(int by, const char *why) { sink = by; return (value += by) + why[0]; }
};
TRACED int by_reference(const std::string &s, std::string_view v, Mode mode, Point &point)
{ sink = s.size() + v.size() + (int)mode; return point.x; }
TRACED int by_value(std::string s, Noisy noisy, Point point)
{ sink = s.size(); return noisy.x + point.y; }
TRACED Mode mode(bool on) { sink = on; return on ? Mode::On : Mode::Off; }
TRACED std::string make(int n) { sink = n; return std::string(n, 'x'); }
extern "C" void run()
{
    Point point = {1, -2};
    by_reference("a reference", "a view", Mode::On, point);
    by_value("a value that is so long", Noisy{8}, point);
    mode(true);
    make(20);
    Counter counter = {0};
    counter.add(2, "why");
}
"#;

fn check_cpp(level: &str) -> Result<(), Missing> {
    let library = library(&GXX, "typed.cpp", CPP, &[level])?;
    // SAFETY: its type.
    let run = unsafe { library.get::<extern "C" fn()>("run") };
    let filter = "by_reference by_value mode:mod:libtyped.so make*:mod:libtyped.so Counter::add";
    let calls = recorded(&typed(), filter, || run());
    let (last, first) = calls.split_last().unwrap();
    let expected = [
        "by_reference(s=&\"a reference\", v=\"a view\", mode=On, point=&Point { x: 1, y: -2 }); \
         /* ret=1 */",
        "by_value(s=\"a value that is so long\", noisy=Noisy { x: 8 }, \
         point=Point { x: 1, y: -2 }); /* ret=6 */",
        "mode(on=true); /* ret=On */",
        "make[abi:cxx11](n=20); /* ret=\"xxxxxxxxxxxxxxxxxxxx\" */",
    ];
    assert_eq!(first, expected);
    assert!(last.starts_with("Counter::add(this=0x"), "{last}");
    assert!(
        last.ends_with(", by=2, why=\"why\"); /* ret=121 */"),
        "{last}"
    );
    Ok(())
}

#[scenario]
fn values_of_cpp_are_recorded_by_their_types() {
    needs!(check_cpp("-O0"));
}

#[scenario]
fn values_of_optimised_cpp_are_recorded_by_their_types() {
    needs!(check_cpp("-O2"));
}

const RUST: &str = r#"
#![allow(dead_code)]
use std::hint::black_box;
#[derive(Clone, Copy)] pub enum Color { Red, Green = 5 }
pub enum Shape { Circle(f64), Rect { w: u32, h: u32 }, Empty }
#[derive(Clone, Copy)] pub struct Point { x: i32, y: i32 }
#[derive(Clone, Copy)] pub struct Three { x: i32, y: i32, z: i32 }
#[unsafe(no_mangle)] #[inline(never)]
pub fn r_text(s: &str, n: i32) -> Option<u32> {
    black_box((s, n)); if s.len() > 3 { Some(n as u32) } else { None }
}
#[unsafe(no_mangle)] #[inline(never)]
pub fn r_string(s: String, o: Option<&str>, f: f32) -> String {
    black_box((&s, o, f)); format!("{s}!")
}
#[unsafe(no_mangle)] #[inline(never)]
pub fn r_slices(s: &[u16], v: Vec<u8>, b: bool, c: char, a: [u8; 4]) -> usize {
    black_box((s, &v, b, c, a)); s.len()
}
#[unsafe(no_mangle)] #[inline(never)]
pub fn r_enums(c: Color, s: Shape, t: &Shape, o: Option<u8>) -> Color {
    black_box((&s, t, o)); c
}
#[unsafe(no_mangle)] #[inline(never)]
pub fn r_structs(p: Point, t: Three, u: (u8, i64)) -> (i32, i32) {
    black_box((p, t, u)); (p.x + t.z, p.y)
}
#[unsafe(no_mangle)] #[inline(never)]
pub fn r_references(s: &String, p: &Point, o: &Option<i32>) -> Result<u32, String> {
    black_box((s, p, o)); if o.is_some() { Ok(p.x as u32) } else { Err(s.clone()) }
}
#[unsafe(no_mangle)] #[inline(never)]
pub fn r_three(n: i32) -> Three {
    black_box(n); Three { x: n, y: n + 1, z: n + 2 }
}
#[unsafe(no_mangle)] #[inline(never)]
pub fn r_floats(n: f64, b: Box<u8>) -> (f64, i32) { black_box((n, b)); (n, 2) }
#[unsafe(no_mangle)] pub extern "C" fn run() {
    black_box(r_text("four", -1));
    black_box(r_text("two", 3));
    black_box(r_string("owned".into(), Some("borrowed"), 0.5));
    black_box(r_string("".into(), None, -1.0));
    black_box(r_slices(&[1, 2, 65535], vec![0; 200], true, 'ß', [1, 2, 3, 4]));
    black_box(r_enums(Color::Green, Shape::Rect { w: 3, h: 4 }, &Shape::Circle(0.5), Some(200)));
    black_box(r_enums(Color::Red, Shape::Empty, &Shape::Empty, None));
    black_box(r_structs(Point { x: 1, y: -2 }, Three { x: 3, y: 4, z: 5 }, (7, -8)));
    let point = Point { x: 10, y: 20 };
    black_box(r_references(&"refers".into(), &point, &Some(-3))).ok();
    black_box(r_references(&"refers".into(), &point, &None)).ok();
    black_box(r_three(7));
    black_box(r_floats(2.5, Box::new(1)));
}
"#;

/// Compiles the functions of Rust into a library.
fn rust_library(level: &str) -> Result<PathBuf, Missing> {
    let rustc = RUSTC.find()?;
    let directory = directory();
    fs::write(directory.join("typed.rs"), RUST).unwrap();
    let result = directory.join("libtyped.so");
    let mut command = Command::new(rustc);
    command
        .current_dir(&directory)
        .args(["--edition=2024", "--crate-type=cdylib", "-g", "-o"])
        .arg(&result)
        .args(["-C", level, "typed.rs"]);
    let output = bounded(&mut command);
    assert!(output.status.success(), "{output:?}");
    Ok(result)
}

fn check_rust(level: &str) -> Result<(), Missing> {
    let library = Library::open(&rust_library(level)?);
    // SAFETY: its type.
    let run = unsafe { library.get::<extern "C" fn()>("run") };
    let mut calls = recorded(&typed(), "r_*:mod:libtyped.so", || run());
    let last = calls.pop().unwrap();
    let zeros = "0, ".repeat(128);
    let zeros = zeros.trim_end_matches(", ");
    let slices = format!(
        "r_slices(s=[1, 2, 65535], v=[{zeros}, ...], b=true, c='ß', a=[1, 2, 3, 4]); \
         /* ret=3 */"
    );
    let expected = [
        "r_text(s=\"four\", n=-1); /* ret=Some(4294967295) */",
        "r_text(s=\"two\", n=3); /* ret=None */",
        "r_string(s=\"owned\", o=Some(\"borrowed\"), f=0.5); /* ret=\"owned!\" */",
        "r_string(s=\"\", o=None, f=-1.0); /* ret=\"!\" */",
        &slices,
        "r_enums(c=Green, s=Rect { w: 3, h: 4 }, t=&Circle(0.5), o=Some(200)); \
         /* ret=Green */",
        "r_enums(c=Red, s=Empty, t=&Empty, o=None); /* ret=Red */",
        "r_structs(p=Point { x: 1, y: -2 }, t=Three { x: 3, y: 4, z: 5 }, u=(7, -8)); \
         /* ret=(6, -2) */",
        "r_references(s=&\"refers\", p=&Point { x: 10, y: 20 }, o=&Some(-3)); \
         /* ret=Ok(10) */",
        "r_references(s=&\"refers\", p=&Point { x: 10, y: 20 }, o=&None); \
         /* ret=Err(\"refers\") */",
        "r_three(n=7); /* ret=Three { x: 7, y: 8, z: 9 } */",
    ];
    assert_eq!(calls, expected);
    assert!(last.starts_with("r_floats(n=2.5, b=0x"), "{last}");
    assert!(last.ends_with("); /* ret=(2.5, 2) */"), "{last}");
    Ok(())
}

#[scenario]
fn values_of_rust_are_recorded_by_their_types() {
    needs!(check_rust("opt-level=0"));
}

#[scenario]
fn values_of_optimised_rust_are_recorded_by_their_types() {
    needs!(check_rust("opt-level=2"));
}

/// Below what the system maps.
const UNMAPPED: usize = 0xf000;

/// The end of a page behind which nothing can be read.
fn end_of_page() -> *mut u8 {
    const PAGE: usize = 4096;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: fresh memory; nothing uses its second page.
    unsafe {
        let two = libc::mmap(std::ptr::null_mut(), 2 * PAGE, protection, flags, -1, 0);
        assert_ne!(two, libc::MAP_FAILED);
        let second = two.cast::<u8>().add(PAGE);
        assert_eq!(libc::mprotect(second.cast(), PAGE, libc::PROT_NONE), 0);
        second
    }
}

#[scenario]
fn a_bad_pointer_costs_the_value_and_not_the_program() {
    let library = needs!(library(&GCC, "typed.c", C, &["-O0"]));
    type Texts = extern "C" fn(*const c_char, *const c_char, *const c_char, *const c_char);
    // SAFETY: its type.
    let texts = unsafe { library.get::<Texts>("texts") };
    let behind = end_of_page();
    // SAFETY: the last bytes of the page before.
    let end = unsafe {
        let end = behind.sub(5);
        end.copy_from_nonoverlapping(b"to it".as_ptr(), 5);
        end
    };
    let [one, unmapped, max] = [1, UNMAPPED, usize::MAX].map(std::ptr::without_provenance);
    let null = std::ptr::null();
    let whole = c"the fourth";
    let calls = recorded(&typed(), "texts:mod:libtyped.so", || {
        texts(one, unmapped, end.cast(), null);
        texts(max, one, behind.cast(), whole.as_ptr());
    });
    let expected = [
        "texts(one=0x1(fault), unmapped=0xf000(fault), end=\"to it\"..., null=NULL);",
        &format!(
            "texts(one=0xffffffffffffffff(fault), unmapped=0x1(fault), end={behind:?}(fault), \
                 null=\"the fourth\");"
        ),
    ];
    assert_eq!(calls, expected);
}

#[scenario]
fn the_program_goes_on_with_any_arguments() {
    let library = needs!(library(&GCC, "typed.c", C, &["-O2"]));
    type Any = extern "C" fn(u64, u64, u64, u64, u64, u64);
    let end = end_of_page().addr() as u64;
    // SAFETY: these do not look behind what they are given.
    let functions = ["text", "texts", "color", "nothing", "numbers"]
        .map(|name| unsafe { library.get::<Any>(name) });
    let words = [0, 1, UNMAPPED as u64, end, end - 1, 1 << 63, u64::MAX];
    let recorder = Recorder::start_with(C_FILTER, &typed()).unwrap();
    for function in functions {
        for word in words {
            function(word, word, word, word, word, word);
        }
    }
    let rings = recorder.finish().unwrap();
    let lines = calls(&mut Live::consume(rings).unwrap());
    assert_eq!(lines.len(), functions.len() * words.len());
}

#[scenario]
fn functions_without_debug_information_are_recorded_by_registers() {
    let library = needs!(library(&GCC, "typed.c", C, &["-g0"]));
    // SAFETY: its type.
    let color = unsafe { library.get::<extern "C" fn(i64, i64) -> u32>("color") };
    let filter = "color:mod:libtyped.so";
    let calls = recorded(&typed(), filter, || _ = color(0, 0x77));
    assert_eq!(calls, ["color(0x0, 0x77); /* ret=5 */"]);
}

#[scenario]
fn a_new_filter_brings_types_and_a_time_that_is_over_none() {
    let library = needs!(library(&GCC, "typed.c", C, &[]));
    // SAFETY: its type.
    let color = unsafe { library.get::<extern "C" fn(i64, i64) -> u32>("color") };
    let filter = "color:mod:libtyped.so";
    for (time, expected) in [
        (Duration::from_secs(60), "color(n=0); /* ret=GREEN */"),
        (Duration::ZERO, "color(0x0, 0x77); /* ret=5 */"),
    ] {
        let options = Options {
            types: Some(time),
            ..typed()
        };
        let recorder = Recorder::start_with("nothing:mod:libtyped.so", &options).unwrap();
        recorder.set_filter(filter.parse().unwrap()).unwrap();
        color(0, 0x77);
        let rings = recorder.finish().unwrap();
        assert_eq!(calls(&mut Live::consume(rings).unwrap()), [expected]);
    }
}

#[scenario]
fn only_requested_values_are_recorded_by_type() {
    let library = needs!(library(&GCC, "typed.c", C, &[]));
    // SAFETY: its type.
    let color = unsafe { library.get::<extern "C" fn(i64) -> u32>("color") };
    for (arguments, result, expected) in [
        (1, false, "color(n=0);"),
        (0, true, "color(); /* ret=GREEN */"),
    ] {
        let options = Options {
            arguments,
            result,
            ..typed()
        };
        let found = recorded(&options, "color:mod:libtyped.so", || _ = color(0));
        assert_eq!(found, [expected]);
    }
}

#[scenario]
fn a_recording_has_the_types_with_it() {
    let library = needs!(library(&GCC, "typed.c", C, &[]));
    // SAFETY: its type.
    let run = unsafe { library.get::<extern "C" fn()>("run") };
    let path = directory().join("typed.fgraph");
    let recorder = FileRecorder::start(&path, C_FILTER, &typed()).unwrap();
    run();
    recorder.finish().unwrap();
    let mut recording = Recording::open(&path).unwrap();
    assert_eq!(calls(&mut recording), C_CALLS);
    let names = recording.names();
    let color = names.functions().find(|(_, _, it)| it.name == "color");
    let (process, index, _) = color.unwrap();
    let types = names.types(process, index).unwrap();
    assert_eq!(types.signature, "(n: int) -> enum color");
}
