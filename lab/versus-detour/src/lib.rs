//! Replaces the function `leaf` of the program that it is preloaded into by one that calls it: a
//! detour, which knows the function's signature.
//!
//! # Safety
//!
//! The unsafe code puts a function where the dynamic linker looks for those to call when it loads
//! the library, and patches `leaf`, whose signature is that of the program's source.

use std::hint::black_box;
use std::process;
use std::sync::OnceLock;

use retour::GenericDetour;

type Leaf = extern "C" fn(i64, i64) -> i64;

static DETOUR: OnceLock<GenericDetour<Leaf>> = OnceLock::new();

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    if let Err(reason) = install() {
        eprintln!("fgraph-versus-detour: {reason}");
        process::exit(1);
    }
}

fn install() -> Result<(), String> {
    // SAFETY: a name that ends with 0.
    let leaf = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"leaf".as_ptr()) };
    if leaf.is_null() {
        return Err("the program has no function to replace".to_owned());
    }
    // SAFETY: the signature of the function.
    let leaf: Leaf = unsafe { std::mem::transmute(leaf) };
    // SAFETY: the replacement has the same signature.
    let detour = unsafe { GenericDetour::new(leaf, replacement) };
    let detour = DETOUR.get_or_init(|| detour.expect("the function can be moved"));
    // SAFETY: no other thread runs yet.
    unsafe { detour.enable() }.map_err(|error| error.to_string())
}

/// Gets the arguments and the result, as a user of fgraph does.
extern "C" fn replacement(a: i64, b: i64) -> i64 {
    let Some(leaf) = DETOUR.get() else {
        process::abort();
    };
    let (a, b) = black_box((a, b));
    black_box(leaf.call(a, b))
}
