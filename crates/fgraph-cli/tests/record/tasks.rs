//! Functions with the names of tokio's, compiled as a crate `tokio`, for tests without that crate.
//!
//! Task 1 of `slow` blocks in its second poll, task 2 is late meanwhile, and task 3 is never woken.

use std::hint::black_box;
use std::thread::sleep;
use std::time::Duration;

mod runtime {
    pub(crate) mod task {
        pub(crate) mod raw {
            /// `future` is of a type of its own for each kind of task, and called once.
            #[inline(never)]
            pub(crate) fn poll<F: FnMut() -> bool>(header: *mut u64, future: &mut F) {
                if future() {
                    super::harness::Harness::<F, ()>::complete(header);
                }
                std::hint::black_box(header);
            }
        }

        pub(crate) mod harness {
            pub(crate) struct Harness<T, S>(std::marker::PhantomData<(T, S)>);

            impl<T, S> Harness<T, S> {
                #[inline(never)]
                pub(crate) fn complete(header: *mut u64) {
                    std::hint::black_box((header, std::mem::size_of::<T>()));
                }
            }
        }

        pub(crate) mod waker {
            #[inline(never)]
            pub(crate) fn wake_by_ref(header: *mut u64) {
                std::hint::black_box(header);
            }
        }

        pub(crate) mod list {
            pub(crate) struct OwnedTasks<S>(pub(crate) S);

            impl<S> OwnedTasks<S> {
                #[inline(never)]
                pub(crate) fn bind_inner(&self, header: *mut u64) {
                    std::hint::black_box((self as *const Self, header));
                }
            }
        }
    }
}

use runtime::task::{list::OwnedTasks, raw::poll, waker::wake_by_ref};

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn resize_image(milliseconds: u64) {
    sleep(Duration::from_millis(black_box(milliseconds)));
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn quick(number: u64) -> u64 {
    black_box(number) + 1
}

fn main() {
    let mut headers = [0_u64; 3];
    let [first, second, third] = headers.each_mut().map(|it| it as *mut u64);
    let owned = OwnedTasks(0_u8);
    for header in [first, second, third] {
        owned.bind_inner(header);
    }
    let mut polls = 0;
    let mut slow = || {
        polls += 1;
        resize_image(if polls == 2 { 30 } else { 0 });
        polls == 2
    };
    let mut other = || quick(1) == 0;
    poll(first, &mut slow);
    poll(second, &mut other);
    poll(third, &mut other);
    wake_by_ref(first);
    wake_by_ref(second);
    poll(first, &mut slow);
    poll(second, &mut other);
}
