//! The personality routine of the trampolines, which dispatches unwinding, and the unwinders that
//! call it.
//!
//! # Safety
//!
//! The unsafe code calls functions of an unwinder with that unwinder's own context.

use core::arch::naked_asm;
use core::ffi::c_void;
use core::ops::Range;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use fgraph_core::frame::Frame;
use fgraph_core::thread::Thread;

use super::calls::FGRAPH;
use super::current::current;
use super::table::{self, FramePlace};
use super::variant::Variant;
use super::{body, caller_check, host};

/// The start addresses of the installed trampolines that call bodies.
pub(super) static ENTRIES: [AtomicUsize; 2 * Variant::CALLING.len()] =
    [const { AtomicUsize::new(0) }; 2 * Variant::CALLING.len()];

/// Reads a register in an unwinder's context.
pub type GetGr = unsafe extern "C" fn(context: *mut c_void, register: i32) -> usize;
/// Reads the instruction address in an unwinder's context.
pub type GetIp = unsafe extern "C" fn(context: *mut c_void) -> usize;
/// Changes a register in an unwinder's context.
pub type SetGr = unsafe extern "C" fn(context: *mut c_void, register: i32, value: usize);
/// Changes the instruction address in an unwinder's context.
pub type SetIp = unsafe extern "C" fn(context: *mut c_void, address: usize);

/// The functions that understand the contexts of one unwinder.
#[derive(Clone, Debug)]
pub struct Unwinder {
    /// The address range of the unwinder's code.
    pub text: Range<usize>,
    /// `_Unwind_GetGR`
    pub get_gr: GetGr,
    /// `_Unwind_GetIP`
    pub get_ip: GetIp,
    /// `_Unwind_SetGR`
    pub set_gr: SetGr,
    /// `_Unwind_SetIP`
    pub set_ip: SetIp,
}

/// The most unwinders that can be added.
pub const MAX_UNWINDERS: usize = 3;

/// The added unwinders, followed by null.
pub(super) static UNWINDERS: [AtomicPtr<Unwinder>; MAX_UNWINDERS] =
    [const { AtomicPtr::new(ptr::null_mut()) }; MAX_UNWINDERS];

/// The unwinder to which this code is linked. It may be one that was not added: a program may
/// contain its own.
pub(super) static LINKED: Unwinder = Unwinder {
    text: 0..0,
    get_gr: host::get_gr,
    get_ip: host::get_ip,
    set_gr: host::set_gr,
    set_ip: host::set_ip,
};

impl Unwinder {
    /// Returns the unwinder that has called, from the address `caller`.
    #[inline(always)]
    fn at(caller: usize) -> &'static Self {
        for unwinder in &UNWINDERS {
            // SAFETY: null, or an object that is never freed.
            let unwinder = unsafe { unwinder.load(Ordering::Acquire).as_ref() };
            if let Some(unwinder) = unwinder
                && unwinder.text.start <= caller
                && caller < unwinder.text.end
            {
                return unwinder;
            }
        }
        &LINKED
    }
}

/// Adds an unwinder that may call the personality routine. Beyond [`MAX_UNWINDERS`] there is no
/// room; further ones are treated like the one to which this crate is linked.
///
/// # Safety
///
/// The functions must belong to the unwinder whose code is at `text`.
pub unsafe fn add_unwinder(unwinder: &'static Unwinder) {
    let added = ptr::from_ref(unwinder).cast_mut();
    let (null, release) = (ptr::null_mut(), Ordering::Release);
    let is_free = |place: &AtomicPtr<Unwinder>| {
        place
            .compare_exchange(null, added, release, Ordering::Relaxed)
            .is_ok()
    };
    let _ = UNWINDERS.iter().any(is_free);
}

/// Returns true for the word that an unwinder leaves in a return slot when a trampoline catches in
/// its caller's place: the call is not over then.
pub fn is_caught(word: usize) -> bool {
    word == body::catch()
}

/// The unwinder calls this for each trampoline frame that it passes. It forwards to [`on_frame`],
/// whose last argument is the return address of this call.
#[unsafe(naked)]
#[unsafe(link_section = "fgraph_text")]
pub(super) unsafe extern "C-unwind" fn personality() {
    // The rules are those of the CIE: a signal may come here, and its handler unwind.
    naked_asm!(".cfi_startproc", "mov r9, [rsp]", "jmp {}", ".cfi_endproc", sym on_frame);
}

/// The personality routine, called from the address `caller`.
#[unsafe(link_section = "fgraph_text")]
unsafe extern "C-unwind" fn on_frame(
    _version: i32,
    actions: i32,
    _class: u64,
    exception: *mut u8,
    context: *mut c_void,
    caller: usize,
) -> i32 {
    const CLEANUP_PHASE: i32 = 2;
    const HANDLER_FRAME: i32 = 4;
    const INSTALL_CONTEXT: i32 = 7;
    const CONTINUE_UNWIND: i32 = 8;
    const RAX: i32 = 0;
    const RDX: i32 = 1;
    let unwinder = Unwinder::at(caller);
    // SAFETY: the unwinder passes its context.
    let address = unsafe { (unwinder.get_ip)(context) };
    let returning = FGRAPH.points.frame_at(address);
    if let Some(frame) = returning
        && actions & HANDLER_FRAME != 0
    {
        // We have caught in no search, so the unwinder takes our frame for its caller's. It comes
        // back, when we resume, to a frame that it cannot confuse. SAFETY: the unwinder's context;
        // `fgraph_catch` takes the exception in rax, and the frame in rdx.
        unsafe {
            (unwinder.set_gr)(context, RAX, exception.expose_provenance());
            (unwinder.set_gr)(context, RDX, frame.expose_provenance());
            (unwinder.set_ip)(context, body::catch());
        }
        return INSTALL_CONTEXT;
    }
    // SAFETY: null or the state of this thread, which is never unmapped.
    let thread = unsafe { current().as_ref() };
    if let Some(thread) = thread
        && actions & CLEANUP_PHASE != 0
    {
        // SAFETY: the unwinder's context. A return point names the frame, whose body is being
        // unwound in this thread; where it was resumed, rbp is the frame.
        unsafe {
            let register = |number| (unwinder.get_gr)(context, number);
            let frame = match returning {
                Some(frame) => frame,
                None if address == body::resumed() => register(RBP) as *mut Frame,
                None => interrupted(thread, address, register),
            };
            if !frame.is_null() && !is_inside(thread, (*frame).return_slot_addr) {
                thread.hazard_slot.clear();
                thread.entered_sp.store(Thread::INTERNAL, Ordering::Relaxed);
                caller_check::unwind(thread, frame);
                thread.entered_sp.store(0, Ordering::Relaxed);
            }
        }
    }
    CONTINUE_UNWIND
}

const RBX: i32 = 3;
const RBP: i32 = 6;

/// Returns the frame of a call that a cancellation ends at `address` in a trampoline, before its
/// body is called or after it has returned; null if no user waits for its return.
fn interrupted(thread: &Thread, address: usize, register: impl Fn(i32) -> usize) -> *mut Frame {
    let starts = ENTRIES.iter().map(|entry| entry.load(Ordering::Relaxed));
    // SAFETY: `start` is the start of a variant.
    let place = |start| unsafe { table::frame_place(start, address) };
    let place = starts.filter(|&start| start != 0).find_map(place);
    let frame = match place {
        Some(FramePlace::Rbp) => register(RBP) as *mut Frame,
        _ => thread.dispatched.get(),
    };
    // Before rbx is the caller's again, it gives the return slot. The last dispatch may have been
    // for another call than this. SAFETY: the frame is on the shadow stack.
    let is_of_call =
        || place.is_some() || unsafe { (*frame).return_slot_addr } == register(RBX) + 8;
    if thread.shadow.is_on(frame) && is_of_call() {
        frame
    } else {
        ptr::null_mut()
    }
}

/// Returns true if a thread is inside fgraph when it comes to the frame of a call with the return
/// slot `return_slot_addr`. A callback that was left with siglongjmp leaves only a stale marking,
/// which does not count.
fn is_inside(thread: &Thread, return_slot_addr: usize) -> bool {
    match thread.entered_sp.load(Ordering::Relaxed) {
        0 => false,
        Thread::INTERNAL | Thread::UNTRACED => true,
        entered_sp => !FGRAPH.is_stale(thread, entered_sp, return_slot_addr),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unwinder_is_known_by_the_address_that_it_calls_from() {
        static OTHER: Unwinder = Unwinder {
            text: 0x1000..0x2000,
            get_gr: host::get_gr,
            get_ip: host::get_ip,
            set_gr: host::set_gr,
            set_ip: host::set_ip,
        };
        let is_other = |caller| ptr::eq(Unwinder::at(caller), &OTHER);
        assert!(!is_other(0x1000));
        // SAFETY: they are functions of that name, and nothing unwinds from there.
        unsafe { add_unwinder(&OTHER) };
        assert!(is_other(0x1000) && is_other(0x1fff));
        assert!(!is_other(0xfff) && !is_other(0x2000));
        // Unwinders without room change nothing.
        // SAFETY: they are functions of that name, and nothing unwinds from there.
        (0..MAX_UNWINDERS).for_each(|_| unsafe { add_unwinder(&LINKED) });
        assert!(is_other(0x1000));
    }
}
