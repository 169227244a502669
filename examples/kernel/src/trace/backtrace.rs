//! The calls that have led to a place, by frame pointers. In the frame of a traced call, a return
//! point stands in for the return address, and leads to the true one.

use crate::cpu;
use crate::serial::println;
use crate::symbols;
use crate::tasks;

use super::state::FGRAPH;

/// Calls `visit` with an address in each function, the innermost first, until it returns `false`.
/// Its other argument is true if the function's call is traced.
fn walk(mut address: usize, mut pointer: usize, mut visit: impl FnMut(usize, bool) -> bool) {
    let stack = tasks::stack(tasks::current());
    while address != 0 {
        let is_frame = stack.contains(&pointer)
            && stack.contains(&(pointer + 15))
            && pointer.is_multiple_of(8);
        if !is_frame {
            visit(address, false);
            return;
        }
        // SAFETY: two words of the running task's stack.
        let [next, returns_to] = unsafe { *(pointer as *const [usize; 2]) };
        let (behind, is_traced) = behind_points(returns_to);
        if !visit(address, is_traced) {
            return;
        }
        address = behind;
        // The end of the stack is not a frame.
        pointer = if next > pointer { next } else { 0 };
    }
}

/// Returns the true address to which a call returns that returns to `address`, and true if the call
/// is traced.
fn behind_points(mut address: usize) -> (usize, bool) {
    let mut is_traced = false;
    // A tail call returns to a frame that returns to another one.
    while let Some(frame) = FGRAPH.points.frame_at(address) {
        // SAFETY: the frame of a call in progress.
        address = unsafe { (*frame).return_address };
        is_traced = true;
    }
    (address, is_traced)
}

/// Prints the calls that have led to `address`, with the frame pointer there: at most `most`.
pub(crate) fn print(address: usize, pointer: usize, most: usize) {
    let mut left = most;
    walk(address, pointer, |address, is_traced| {
        // The byte before a return address belongs to the call.
        let name = symbols::find(address.wrapping_sub(1)).map_or("?", |symbol| symbol.name);
        // A fault may come in a trampoline, which is no call. The functions between a panic and its
        // handler are the compiler's.
        if name.contains("kernel::") {
            println!("  {name}{}", if is_traced { " (traced)" } else { "" });
            left -= 1;
        }
        left > 0
    });
}

/// Prints the calls that have led to the caller.
#[inline(never)]
pub(crate) fn print_here(most: usize) {
    let pointer = cpu::frame_pointer();
    // SAFETY: the frame of this function.
    let [next, returns_to] = unsafe { *(pointer as *const [usize; 2]) };
    print(behind_points(returns_to).0, next, most);
}
