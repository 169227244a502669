//! Sets of registers that a function may change.

use iced_x86::Register;

/// A set of registers that a function may change, except its results (rax, rdx, vectors 0 and 1),
/// which are always restored. Each register has two parts:
///
/// ```text
///   bit 0    7    14        28        42       58      66   96   103       117     118       119
///       +----+----+---------+---------+--------+-------+----+----+---------+-------+---------+
///       | lo | hi | lowest  | above   | vector | op-   |    | as a whole, by guess           |
///       | of general | 128 of  | that    | 16-31  | masks |    | general, vectors 2-15, 16-31, k |
///       +----+----+---------+---------+--------+-------+----+----+---------+-------+---------+
///         seen to be read                                    taken to be read
/// ```
pub(super) type Set = u128;

/// The general registers, by their position in the set.
const GENERAL: [Register; 7] = [
    Register::RDI,
    Register::RSI,
    Register::RCX,
    Register::R8,
    Register::R9,
    Register::R10,
    Register::R11,
];
pub(super) const LOW_BYTE: u32 = 0;
pub(super) const REST: u32 = 7;
/// The bits of vectors 2 to 15.
pub(super) const VECTOR: u32 = 14;
const UPPER: u32 = 28;
const HIGH_VECTOR: u32 = 42;
const OPMASK: u32 = 58;
/// One bit for each general register.
pub(super) const GENERAL_BITS: Set = 0x7f;
/// The lowest bit of the guesses.
pub(super) const GUESS: u32 = 96;
const GUESS_VECTOR: u32 = GUESS + 7;
const GUESS_BEYOND: u32 = GUESS_VECTOR + 14;
pub(super) const SEEN: Set = (1 << (OPMASK + 8)) - 1;
pub(super) const GUESSED: Set = ((1 << (GUESS_BEYOND + 1 - GUESS)) - 1) << GUESS;
/// Registers that may carry arguments: all general ones except r11, and vectors 2 to 7.
pub(super) const ARGUMENTS: Set = 0b11_1111 << GUESS | 0b11_1111 << GUESS_VECTOR;
/// The first argument, as a read that was seen.
pub(super) const FIRST_ARGUMENT: Set = 1 << LOW_BYTE | 1 << REST;
/// Registers that a system call may use: all general ones except rcx and r11.
pub(super) const SYSTEM_ARGUMENTS: Set = 0b11_1011 << GUESS;
/// Registers that do not survive until the entry of a function that is traced as the ABI says: r11,
/// vectors 8 to 15, and the registers of AVX-512 only.
pub(super) const NOT_PASSED: Set = 1 << (LOW_BYTE + 6)
    | 1 << (REST + 6)
    | 0xff << (VECTOR + 6)
    | 0xff << (UPPER + 6)
    | 0xff_ffff << HIGH_VECTOR;

/// The vectors that the Microsoft ABI preserves, as guesses: 6 to 15.
pub(super) const PRESERVED_VECTORS: Set = 0x3ff << (GUESS_VECTOR + 4);

/// Returns the bits of a register for reads that were seen; and true if a write of this width
/// leaves nothing of the whole register.
pub(super) fn bits(register: Register) -> (Set, bool) {
    let (full, width) = (register.full_register(), register.size());
    if let Some(at) = GENERAL.iter().position(|&general| general == full) {
        let (low, rest) = (1 << (LOW_BYTE + at as u32), 1 << (REST + at as u32));
        return match width {
            1 if register == Register::CH => (rest, false),
            1 => (low, false),
            2 => (low | rest, false),
            _ => (low | rest, true),
        };
    }
    let number = register.number() as u32;
    if register.is_k() {
        return (1 << (OPMASK + number), false);
    }
    if !register.is_vector_register() {
        return (0, false);
    }
    match number {
        0 | 1 => (0, false),
        2..=15 => {
            let (low, upper) = (1 << (VECTOR + number - 2), 1 << (UPPER + number - 2));
            match width {
                16 => (low, false),
                _ => (low | upper, width == 64),
            }
        }
        _ => (1 << (HIGH_VECTOR + number - 16), false),
    }
}

/// Returns the bit of the same register among the guesses.
pub(super) fn guess(register: Register) -> Set {
    let full = register.full_register();
    if let Some(at) = GENERAL.iter().position(|&general| general == full) {
        return 1 << (GUESS + at as u32);
    }
    match register.number() as u32 {
        number @ 2..=15 if register.is_vector_register() => 1 << (GUESS_VECTOR + number - 2),
        _ => 0,
    }
}

/// Returns the arguments among the reads, as guesses.
pub(super) fn guessed_arguments(needs: Set) -> Set {
    let seen = |at: u32| {
        let bits = match at {
            0..7 => 1 << (LOW_BYTE + at) | 1 << (REST + at),
            _ => 1 << (VECTOR + at - 7) | 1 << (UPPER + at - 7),
        };
        (ARGUMENTS >> (GUESS + at) & 1 != 0 && needs & bits != 0)
            .then_some((bits, 1 << (GUESS + at)))
    };
    let guess = |needs, (bits, guess): (Set, Set)| needs & !bits | guess;
    (0..GUESS_BEYOND - GUESS)
        .filter_map(seen)
        .fold(needs, guess)
}

/// Returns the guessed registers as reads that were seen.
pub(super) fn seen_of(guessed: Set) -> Set {
    let (general, vectors) = (guessed >> GUESS & 0x7f, guessed >> GUESS_VECTOR & 0x3fff);
    general << LOW_BYTE | general << REST | vectors << VECTOR | vectors << UPPER
}

/// Returns the registers that were seen to be read as guesses; general registers only if their
/// lowest byte is read.
pub(super) fn guess_of(seen: Set) -> Set {
    let general = seen >> LOW_BYTE & 0x7f;
    general << GUESS | vectors_of(seen)
}

/// Returns the same as [`guess_of`], for vector registers only.
pub(super) fn vectors_of(seen: Set) -> Set {
    let vectors = (seen >> VECTOR | seen >> UPPER) & 0x3fff;
    vectors << GUESS_VECTOR
}
