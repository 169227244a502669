use super::*;

/// Memory in which all words are the same, but for the cookie at 0x1000.
fn same_words(word: u64) -> impl Fn(u64, &mut [u8]) -> Option<()> {
    move |at, into| {
        for (at, byte) in (at..).zip(into) {
            *byte = word.to_le_bytes()[(at % 8) as usize];
            if (0x1000..0x1008).contains(&at) {
                *byte = b"xdebugpy"[(at - 0x1000) as usize];
            }
        }
        Some(())
    }
}

const TYPES: CoroutineTypes = CoroutineTypes {
    code: 0x40,
    coroutine: 0x10,
    generator: 0x20,
    async_generator: 0x30,
};

#[test]
fn awaits_without_an_end_end() {
    for minor in 9..=15 {
        // Each object is a coroutine that awaits another one.
        for word in [TYPES.coroutine, 0x2000, u64::MAX] {
            let types = CoroutineTypes {
                code: word,
                coroutine: word,
                ..TYPES
            };
            let _ = coroutines(0x1000, minor, types, &[0x2000, 0x3000], &same_words(word));
        }
    }
}

#[test]
fn lists_without_an_end_are_errors() {
    for minor in 9..=15 {
        let found = threads(0x1000, minor, &same_words(0x2000));
        assert!(
            matches!(found, Err(PythonError::Unreadable(_))),
            "{minor}: {found:?}"
        );
    }
}

#[test]
fn memory_of_nothing_is_an_error() {
    let nothing = |_: u64, _: &mut [u8]| None;
    let unreadable = Err(PythonError::Unreadable(0x1000));
    for minor in 9..=15 {
        let found = threads(0x1000, minor, &nothing);
        assert!(found.is_err(), "{minor}: {found:?}");
    }
    assert_eq!(threads(0x1000, 13, &nothing), unreadable);
    for minor in [8, 16] {
        let unknown = Err(PythonError::Unknown(minor));
        assert_eq!(threads(0x1000, minor, &same_words(0)), unknown);
    }
    let other = threads(0x2000, 14, &same_words(0x2000));
    assert_eq!(other, Err(PythonError::NoInterpreter(0x2000)));
}

#[test]
fn random_memory_is_survived() {
    for seed in 0..2_000_u64 {
        let minor = 9 + (seed % 7) as u8;
        // Addresses of a few pages, so that some of them lead on.
        let read = |at: u64, into: &mut [u8]| {
            let same = same_words(0);
            same(at, into)?;
            if (0x1000..0x1008).contains(&at) {
                return Some(());
            }
            for (at, byte) in (at..).zip(into) {
                let word = ((at / 8) ^ (seed << 20)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let word = (word >> 40) % 0x400;
                *byte = word.to_le_bytes()[(at % 8) as usize];
            }
            Some(())
        };
        let _ = threads(0x1000, minor, &read);
        let objects: Vec<u64> = (0..0x400).collect();
        let _ = coroutines(0x1000, minor, TYPES, &objects, &read);
    }
}
