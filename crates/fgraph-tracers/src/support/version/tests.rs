//! Tests of versions.

use std::array;

use super::*;

#[test]
fn data_is_not_whole_if_it_changes_while_it_is_read() {
    let version = Version::new();
    assert_eq!(version.read(|| 1), Ok(1));
    version.change(|| assert_eq!(version.read(|| 2), Err(2)));
    assert_eq!(version.read(|| version.change(|| ())), Err(()));
    let mut reads = 0;
    let torn_once = || {
        reads += 1;
        if reads == 1 {
            version.change(|| ());
        }
        reads
    };
    assert_eq!(version.read_whole(torn_once), Ok(2));
    version.change(|| assert_eq!(version.read_whole(|| 3), Err(3)));
}

#[test]
fn whole_data_is_of_one_change() {
    const LAST: u64 = 100_000;
    let version = Version::new();
    let words: [AtomicU64; 4] = array::from_fn(|_| AtomicU64::new(0));
    let write = |number: u64| {
        version.change(|| {
            words
                .iter()
                .for_each(|it| it.store(number, Ordering::Relaxed))
        });
    };
    thread::scope(|scope| {
        scope.spawn(|| (1..=LAST).for_each(write));
        let mut newest = 0;
        while newest < LAST {
            let read = || words.each_ref().map(|it| it.load(Ordering::Relaxed));
            if let Ok(data) = version.read(read) {
                assert_eq!(data, [data[0]; 4]);
                assert!(data[0] >= newest);
                newest = data[0];
            }
        }
    });
}
