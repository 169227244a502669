//! Users that are compiled without optimisation, as users of the library compile theirs. In this
//! workspace fgraph's own tests are optimised.

use std::hint::black_box;
use std::mem::MaybeUninit;
use std::thread;

use fgraph::{Entry, Return};
use fgraph_scenario::{numbers, scenario, user};

/// Calls itself until `room` bytes are left above `end`.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn sinks(end: usize, room: usize) -> u64 {
    let local = 0_u8;
    let here = (&raw const local).addr();
    if here - end < room {
        return 0;
    }
    black_box(sinks(end, room)) + 1
}

/// Returns the lowest address of the calling thread's stack.
fn end_of_stack() -> usize {
    let mut attributes = MaybeUninit::uninit();
    let (mut end, mut size) = (std::ptr::null_mut(), 0);
    // SAFETY: live locals; the attributes are initialised by the first call.
    unsafe {
        let this = libc::pthread_self();
        assert_eq!(libc::pthread_getattr_np(this, attributes.as_mut_ptr()), 0);
        assert_eq!(
            libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut end, &raw mut size),
            0
        );
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
    }
    end.addr()
}

/// The compiler makes calls of the jumps from one user to the next: the last one's callback runs
/// many KiB below the first one's.
#[scenario]
fn sixteen_users_have_room_at_the_end_of_a_stack() {
    let users = [(); 16].map(|()| {
        // A callback that may panic is not on the fast path, which calls one after the other.
        let entry = |call: &mut Entry<'_, ()>| {
            assert!(call.depth() < 1 << 20);
            black_box([0_u8; 8192]);
            Some(())
        };
        let user = user(entry, |_: &mut Return<'_, ()>, ()| ());
        fgraph_scenario::register(user, "sinks").unwrap()
    });
    for size in [256 << 10, 1 << 20] {
        let thread = thread::Builder::new().stack_size(size);
        let calls = thread.spawn(|| sinks(end_of_stack(), 1 << 10)).unwrap();
        assert!(calls.join().unwrap() > 100);
    }
    for user in users {
        let [missed, overrun, _, lost, no_shadow_stack] = numbers(user.counters());
        assert!(overrun > 100, "{overrun}");
        assert_eq!([missed, lost, no_shadow_stack], [0; 3]);
    }
}
