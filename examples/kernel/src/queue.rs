//! The queue: an interrupt puts items in, and a task takes them out.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::cpu::Lock;
use crate::tasks;

const ROOM: usize = 64;

struct Items {
    items: [u64; ROOM],
    first: usize,
    len: usize,
}

static ITEMS: Lock<Items> = Lock::new(Items {
    items: [0; ROOM],
    first: 0,
    len: 0,
});

/// Items that found no room.
static REFUSED: AtomicU64 = AtomicU64::new(0);

fn address() -> usize {
    (&raw const ITEMS).addr()
}

/// Puts an item in, from an interrupt; returns `false` if there is no room.
#[inline(never)]
pub(crate) fn queue_push(item: u64) -> bool {
    let mut items = ITEMS.lock();
    let has_room = items.len < ROOM;
    if has_room {
        let place = (items.first + items.len) % ROOM;
        items.items[place] = item;
        items.len += 1;
    } else {
        REFUSED.fetch_add(1, Ordering::Relaxed);
    }
    drop(items);
    tasks::wake(address());
    has_room
}

/// Takes the oldest item out, if there is one.
#[inline(never)]
pub(crate) fn queue_try_pop() -> Option<u64> {
    let mut items = ITEMS.lock();
    if items.len == 0 {
        return None;
    }
    let item = items.items[items.first];
    items.first = (items.first + 1) % ROOM;
    items.len -= 1;
    Some(item)
}

/// Takes the oldest item out, and waits for one.
#[inline(never)]
pub(crate) fn queue_pop() -> u64 {
    loop {
        if let Some(item) = queue_try_pop() {
            return item;
        }
        tasks::wait_for(address(), || ITEMS.lock().len != 0);
    }
}

/// Returns the number of items that found no room.
pub(crate) fn refused() -> u64 {
    REFUSED.load(Ordering::Relaxed)
}
