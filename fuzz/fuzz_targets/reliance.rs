//! Any bytes may be the code of a module: what its callers rely on is found, without a panic and in
//! time.
//!
//! `cargo +nightly fuzz run reliance`; what it is given:
//!
//! ```text
//!   byte 0       bits 0-3: how many functions; bits 4-7: which of them have no unwind
//!                information, by index modulo 4
//!   byte 1       where the code is
//!   2 bytes each where a function starts, behind the one before
//!   2 bytes      where a gap is in the code, if it is there
//!   the rest     the code
//! ```

#![no_main]

use fgraph_x86_64::callee_preserved::{Code, PreservingFunctions, Search};
use fgraph_x86_64::relocate::{self, Convention};
use libfuzzer_sys::fuzz_target;

/// Between two stretches of code.
const GAP: usize = 0x1000;

fuzz_target!(|data: &[u8]| {
    let [kinds, place, data @ ..] = data else {
        return;
    };
    let count = usize::from(kinds & 15);
    let Some((numbers, bytes)) = data.split_at_checked(2 * count + 2) else {
        return;
    };
    let (numbers, _) = numbers.as_chunks::<2>();
    let numbers: Vec<usize> = numbers
        .iter()
        .map(|&number| u16::from_le_bytes(number).into())
        .collect();
    let address =
        [0x1000, 0x40_0000, 0x7f00_1234_5678, usize::MAX - 0x10_0000][usize::from(place & 3)];
    let (first, second) = bytes.split_at(numbers[count].min(bytes.len()));
    let code = [
        Code {
            address,
            bytes: first,
        },
        Code {
            address: address + first.len() + GAP,
            bytes: second,
        },
    ];
    let mut functions = Vec::new();
    let mut parts = Vec::new();
    let mut at = address;
    for (index, number) in numbers[..count].iter().enumerate() {
        at += number;
        if functions.last() == Some(&at) {
            continue;
        }
        functions.push(at);
        if kinds >> (4 + index % 4) & 1 == 0 {
            parts.push(at);
        }
        let offset = (at - address).min(bytes.len());
        let _ = Convention::of(&relocate::Code {
            bytes: &bytes[offset..],
            address: at,
            size: bytes.len() - offset,
        });
    }
    let search = Search::new(&code, &functions, &parts, &[]);
    check(&search.by_convention(), &functions);
    check(&search.by_code(), &functions);
});

/// Nothing is found but functions, each once.
fn check(relied_on: &PreservingFunctions, functions: &[usize]) {
    let found = functions.iter().filter(|&&at| relied_on.contains(at));
    assert_eq!(found.count(), relied_on.len());
}
