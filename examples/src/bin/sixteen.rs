//! Sixteen users of one function, of any priorities, registered and unregistered in any order:
//! entries come by priority, returns in the reverse order.

use std::sync::{Arc, Mutex};

use fgraph::{EntryOf, Error, FgraphOps, Handle, Options, ReturnOf};

/// Notes its number at each entry and return.
struct Notes {
    number: i32,
    log: Arc<Mutex<Vec<i32>>>,
}

impl FgraphOps for Notes {
    type Data = i32;

    fn entry(&self, _call: &mut EntryOf<'_, Self>) -> Option<i32> {
        self.log.lock().unwrap().push(self.number);
        Some(self.number)
    }

    fn ret(&self, _call: &mut ReturnOf<'_, Self>, number: i32) {
        self.log.lock().unwrap().push(-number);
    }
}

#[inline(never)]
fn watched_step() {
    std::hint::black_box(());
}

fn register(number: i32, priority: i8, log: &Arc<Mutex<Vec<i32>>>) -> Result<Handle<Notes>, Error> {
    let log = Arc::clone(log);
    let options = Options::new().priority(priority);
    // SAFETY: `main` alone calls the function, without the lock, and where it may allocate.
    unsafe { fgraph::register_with(Notes { number, log }, "*::watched_step", &options) }
        .map_err(|failed| failed.error)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let log = Arc::new(Mutex::new(Vec::new()));
    let mut users: Vec<(i8, i32, Handle<Notes>)> = Vec::new();
    let mut random: u32 = 1;
    let mut next = |below: usize| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (random >> 16) as usize % below
    };
    let mut numbers = 1..;
    for _round in 0..100 {
        while users.len() < fgraph::MAX_USERS {
            // Some are equal: their order is not promised.
            let priority = next(256).wrapping_sub(128) as i8 / 8 * 8;
            let number = numbers.next().unwrap();
            users.push((priority, number, register(number, priority, &log)?));
        }
        match register(0, 0, &log) {
            Err(Error::NoFreeSlot { users }) => assert_eq!(users.len(), fgraph::MAX_USERS),
            other => panic!("a seventeenth user is {other:?}"),
        }
        watched_step();
        let order = std::mem::take(&mut *log.lock().unwrap());
        let (entries, returns) = order.split_at(users.len());
        let priority = |number: &i32| users.iter().find(|user| user.1 == *number).unwrap().0;
        assert!(entries.is_sorted_by_key(priority), "{order:?}");
        let reversed = returns.iter().map(|number| -number);
        assert!(entries.iter().rev().copied().eq(reversed), "{order:?}");
        for _ in 0..1 + next(users.len()) {
            let (_, number, handle) = users.swap_remove(next(users.len()));
            let notes = handle
                .unregister()
                .map_err(fgraph::UnregisterError::into_error)?;
            assert_eq!(notes.number, number);
        }
    }
    println!("100 rounds of {} users", fgraph::MAX_USERS);
    Ok(())
}
