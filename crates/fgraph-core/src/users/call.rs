//! What a callback sees of a call.

use core::cell::Cell;
use core::marker::PhantomData;
use core::ops::Range;
use core::ptr;

use super::chain;
use crate::frame::{self, Frame};
use crate::per_thread::PerThread;
use crate::recycled::{Recycle, Recycled};
use crate::registration::{Header, UserId};
use crate::regs::{
    EntryRegs, RETURN_DEFERRED, RETURN_UNWINDING, ReturnRegs, Vector, return_address_at,
};
use crate::site::{Function, Site};
use crate::thread::Thread;
use crate::write::{EntryWriter, ReturnWriter};

/// The methods that `Entry` and `Return` share, as each shows them under its own type.
macro_rules! common {
    () => {
        pub(crate) fn thread(&self) -> &'a Thread {
            self.thread
        }

        fn user(&self) -> &Header {
            // SAFETY: the registration stays until its callback, which is running, is done.
            unsafe { &*self.user }
        }

        #[inline(always)]
        pub(crate) fn handed_on(&self) -> u64 {
            self.users
        }

        /// The number of the user whose callback this is.
        pub fn user_id(&self) -> UserId {
            self.user().id()
        }

        /// The program's `errno`: what the callbacks' own calls do to it makes no difference.
        pub fn errno(&self) -> i32 {
            chain::errno(self.users)
        }

        /// The function that is called.
        pub fn function(&self) -> Function {
            Function::of(self.site())
        }

        /// Where the function returns to: the true address, also while it is traced.
        ///
        /// For a tail call that is where the function returns to that jumped here.
        pub fn return_address(&self) -> usize {
            let (slot_addr, address) = (self.return_slot_addr(), self.returns_to());
            let frame = self.enclosing().unwrap_or(ptr::null_mut());
            // SAFETY: the frames enclose this call.
            unsafe { frame::behind_jumps(frame, slot_addr, address) }
        }

        /// An address inside the call instruction, fit for looking up who called.
        ///
        /// For a tail call that is the call of the function that jumped here.
        pub fn call_site(&self) -> usize {
            self.return_address().wrapping_sub(1)
        }

        /// The kernel's id of the calling thread.
        pub fn thread_id(&self) -> u32 {
            self.thread().id()
        }

        /// A number of the calling thread that no other thread of the process has, also not after
        /// its end: 0 for the first that fgraph has seen, then 1, and so on.
        pub fn thread_number(&self) -> u32 {
            self.thread().number.get()
        }

        /// This user's data of the nearest enclosing call that it accepted.
        ///
        /// Takes at most a few ns, whatever calls of other users lie between; the first time after
        /// frames were [lost](crate::Counters::lost), or the thread came to another stack, it goes
        /// through the frames of all enclosing calls. So it always does for a user without data.
        ///
        /// `None` where it cannot be told which calls are around this one: in a memory mapping that
        /// holds the stacks of several coroutines, and at the return of a call whose stack another
        /// thread has.
        pub fn parent_data(&self) -> Option<&D> {
            self.ancestor_data(0)
        }

        /// As [`parent_data`](Self::parent_data), to change it: a profiler adds its time there.
        ///
        /// `None` also on a stack other than the thread's own: another thread may be told of the
        /// return of an enclosing call there, and given the data, at the same moment.
        pub fn parent_data_mut(&mut self) -> Option<&mut D> {
            if !self.thread().is_home() {
                return None;
            }
            // SAFETY: the data is this user's, on this thread's own stack, and of this thread only
            // one callback runs; `&mut self` keeps a second reference away.
            self.ancestor(0).map(|data| unsafe { &mut *data })
        }

        /// This user's data of an enclosing call: 0 is the nearest that it accepted, 1 the one
        /// around that, and so on.
        ///
        /// Takes about a ns for each generation, else as [`parent_data`](Self::parent_data).
        pub fn ancestor_data(&self, generation: usize) -> Option<&D> {
            // SAFETY: the data stays while this call is told. Only on the thread's own stack it is
            // changed, through `&mut self`, which `&self` keeps away.
            self.ancestor(generation).map(|data| unsafe { &*data })
        }

        /// This user's data of the enclosing calls that it accepted, the nearest first, to change
        /// it. None where [`parent_data_mut`](Self::parent_data_mut) has none, and for a user
        /// without data.
        ///
        /// Takes about a ns for each, else as [`parent_data`](Self::parent_data).
        pub fn ancestors_data_mut(&mut self) -> impl Iterator<Item = &mut D> {
            let is_told = size_of::<D>() != 0 && self.thread().is_home();
            let mut next = is_told.then(|| self.ancestor(0)).flatten();
            core::iter::from_fn(move || {
                let data = next?;
                // SAFETY: a record of this user's, on the stack that the thread is on.
                let before = unsafe { frame::record_before(data.cast(), size_of::<D>()) };
                next = (!before.is_null()).then_some(before.cast());
                // SAFETY: as in `parent_data_mut`; each record is given once.
                Some(unsafe { &mut *data })
            })
        }

        fn ancestor(&self, generation: usize) -> Option<*mut D> {
            let (thread, user) = (self.thread(), self.user());
            if size_of::<D>() == 0 {
                return self.ancestor_without_data(generation);
            }
            let mut data = match thread.newest_record(user.keeper()) {
                Some(newest) => newest,
                None => self.list_records()?,
            };
            for _ in 0..generation {
                if data.is_null() {
                    return None;
                }
                // SAFETY: a record of this user's, on the stack that the thread is on.
                data = unsafe { frame::record_before(data, size_of::<D>()) };
            }
            (!data.is_null()).then_some(data.cast())
        }

        #[cold]
        fn list_records(&self) -> Option<*mut u8> {
            let (frame, user) = (self.enclosing()?, self.user());
            // SAFETY: the frame encloses this call.
            Some(unsafe { self.thread().list_records(frame, user.keeper()) })
        }

        fn ancestor_without_data(&self, generation: usize) -> Option<*mut D> {
            let (frame, user) = (self.enclosing()?, self.user());
            // SAFETY: the frames enclose this call.
            let mut frames = unsafe { frame::accepted_by(frame, user.slot, user.stamp) };
            frames.nth(generation)?;
            Some(ptr::dangling_mut())
        }

        /// Calls of this user's that are going on around this one on this machine stack: those that
        /// it has accepted. 0 where they cannot be told, as for [`parent_data`](Self::parent_data).
        ///
        /// They are counted: this takes time for each traced call around.
        pub fn own_depth(&self) -> usize {
            let Some(frame) = self.enclosing() else {
                return 0;
            };
            let user = self.user();
            // SAFETY: the frames enclose this call.
            unsafe { frame::accepted_by(frame, user.slot, user.stamp) }.count()
        }

        /// The machine stack that the thread has started on, from its lowest address to its end:
        /// stacks grow down from there. `None` on another one, of a signal handler or a coroutine.
        pub fn home_stack(&self) -> Option<Range<usize>> {
            let thread = self.thread();
            let low = thread.low.get();
            thread.is_home().then(|| low..low + thread.span.get())
        }

        /// Fills in where this call and the traced calls around it on this machine stack return to,
        /// the innermost first, and says how many addresses these are: at most as many as there is
        /// room for.
        ///
        /// They are the true addresses, without any of fgraph's own code. Traced calls are those
        /// whose return some user wants; functions between them that no user watches are left out:
        /// [`unwind`](Self::unwind) finds those too. A call that is made
        /// by a jump returns to where the call that it was made from does. Where the calls around
        /// cannot be told, as for [`parent_data`](Self::parent_data), there is only the first
        /// address.
        pub fn callers(&self, addresses: &mut [usize]) -> usize {
            let frame = self.enclosing().unwrap_or(ptr::null_mut());
            // SAFETY: the frames enclose this call.
            let around = unsafe { frame::callers(frame, self.return_slot_addr()) };
            let callers = core::iter::once(self.return_address()).chain(around);
            let filled = addresses.iter_mut().zip(callers);
            filled.map(|(place, address)| *place = address).count()
        }

        /// The running thread's value in `storage`; made if there is none yet.
        ///
        /// `None` if there is no memory for it. It takes a few loads, but for the first time.
        #[inline(always)]
        pub fn per_thread<'s, T: Default>(&self, storage: &'s PerThread<T>) -> Option<&'s T> {
            storage.of(self.thread())
        }

        /// The running thread's value in `storage`; taken over, or made, if it has none yet.
        ///
        /// `None` if there is no memory for it. It takes a few loads, but for the first time.
        #[inline(always)]
        pub fn recycled<'s, T: Recycle>(&self, storage: &'s Recycled<T>) -> Option<&'s T> {
            storage.of(self.thread())
        }

        /// A word of this user's in this thread; zero until the user sets it.
        ///
        /// The kernel calls it the task variable.
        pub fn thread_word(&self) -> &Cell<u64> {
            let user = self.user();
            self.thread().word(user.slot as usize, user.epoch())
        }
    };
}

/// A function is entered: what the entry callback of a user with data `D` sees.
#[derive(Debug)]
pub struct Entry<'a, D> {
    regs: *mut EntryRegs,
    thread: &'a Thread,
    /// Whose callback runs.
    user: *const Header,
    /// What is handed on to the next user, `errno` among it.
    users: u64,
    /// The context is the calling thread's, for as long as the callback runs.
    _call: PhantomData<&'a mut D>,
}

impl<'a, D> Entry<'a, D> {
    #[inline(always)]
    pub(crate) fn new(
        regs: *mut EntryRegs,
        thread: &'a Thread,
        user: *const Header,
        users: u64,
    ) -> Self {
        Self {
            regs,
            thread,
            user,
            users,
            _call: PhantomData,
        }
    }

    common!();

    fn regs(&self) -> &EntryRegs {
        // SAFETY: the registers stay while the callback, and with it `self`, lives.
        unsafe { &*self.regs }
    }

    /// The frame that is being built for the call.
    fn opened(&self) -> *mut Frame {
        self.thread().shadow.top().cast()
    }

    fn site(&self) -> &'static Site {
        // Not that of the registers, which a user may have put another in the place of.
        // SAFETY: the frame was opened with its site; sites are never freed.
        unsafe { &*(*self.opened()).site }
    }

    /// The user that has [skipped](EntryWriter::skip) or [redirected](EntryWriter::redirect) the
    /// call.
    pub fn replaced_by(&self) -> Option<UserId> {
        self.regs().replaced_by(self.thread)
    }

    /// The newest frame that encloses this call; `None` if that cannot be told.
    pub(crate) fn enclosing(&self) -> Option<*mut Frame> {
        let thread = self.thread();
        (!thread.is_on_shared()).then(|| thread.shadow.newest())
    }

    /// The return address on the machine stack.
    pub(crate) fn returns_to(&self) -> usize {
        // SAFETY: it stands there until the entry is done.
        unsafe { return_address_at(self.return_slot_addr()) }
    }

    /// The caller's frame pointer.
    pub(crate) fn frame_pointer(&self) -> usize {
        // SAFETY: the frame was opened with it.
        unsafe { (*self.opened()).frame_pointer }
    }

    /// Where on the machine stack the return address stands.
    fn return_slot_addr(&self) -> usize {
        // SAFETY: the frame was opened with it.
        unsafe { (*self.opened()).return_slot_addr }
    }

    /// The gate to changing what the function is called with, and whether it is called at all.
    ///
    /// # Safety
    ///
    /// The traced code computes with what is written. The caller promises that the function may be
    /// called so:
    ///
    /// - what replaces an argument is a value of its type that the function can be given there: a
    ///   pointer points to what the function expects behind it, an object that it takes over is one
    ///   to give away, and what it would have taken over is not lost where that does harm;
    /// - a word on the stack is changed only if it belongs to an argument of the function. The
    ///   words behind its arguments are its callers', return addresses among them.
    ///
    /// # Example
    ///
    /// ```
    /// # use fgraph_core::{Entry, FgraphOps};
    /// /// Has every `malloc` get a little more.
    /// struct MoreRoom;
    ///
    /// impl FgraphOps for MoreRoom {
    ///     type Data = ();
    ///
    ///     fn entry(&self, call: &mut Entry<'_, ()>) -> Option<()> {
    ///         let size = call.arg(0)?;
    ///         // SAFETY: `malloc` takes any size, and gives at least what was asked for.
    ///         let mut writer = unsafe { call.rewrite() };
    ///         writer.set_arg(0, size.checked_add(64)?).ok()
    ///     }
    /// }
    /// ```
    pub unsafe fn rewrite(&mut self) -> EntryWriter<'_> {
        // SAFETY: the registers stay while the callback lives; `&mut self` keeps a second reference
        // away.
        let regs = unsafe { &mut *self.regs };
        // SAFETY: the registration stays until its callback, which is running, is done.
        EntryWriter::new(regs, self.thread, &mut self.users, unsafe { &*self.user })
    }

    /// Whether no user is told of the call's return, also one that accepts the call: the function
    /// looks at its return address or returns twice, or the call is made by code that must not meet
    /// a foreign return address.
    pub fn is_entry_only(&self) -> bool {
        self.thread().entry_only.get() == self.return_slot_addr()
    }

    /// Traced calls that are going on around this one on this machine stack, of any user.
    pub fn depth(&self) -> usize {
        self.thread().shadow.depth() as usize
    }

    /// The stack pointer of the caller, just before its call instruction pushed the return
    /// address.
    pub fn stack_pointer(&self) -> usize {
        self.return_slot_addr() + size_of::<usize>()
    }

    /// Integer or pointer argument `index`, of those that travel in registers (0 to 5).
    ///
    /// Upper bits of an argument narrower than 64 bits are undefined. `None` for a higher index:
    /// see [`stack_arg`](Self::stack_arg).
    pub fn arg(&self, index: usize) -> Option<u64> {
        self.regs().int.get(index).copied()
    }

    /// Argument `index` (0 to 5) as the kernel takes those of system calls: the fourth is in
    /// another register than that of a function. `None` for a higher index.
    pub fn system_call_arg(&self, index: usize) -> Option<u64> {
        match index {
            3 => Some(self.regs().scratch[1]),
            _ => self.arg(index),
        }
    }

    /// Floating-point argument `index` (0 to 7) as a `f64`.
    pub fn float_arg(&self, index: usize) -> Option<f64> {
        self.regs().vector.get(index).map(Vector::f64)
    }

    /// Floating-point argument `index` (0 to 7) as a `f32`.
    pub fn float32_arg(&self, index: usize) -> Option<f32> {
        self.regs().vector.get(index).map(Vector::f32)
    }

    /// The bytes of vector argument `index` (0 to 7): 16, 32 or 64, as wide as the machine's
    /// vector registers are.
    pub fn vector_arg(&self, index: usize) -> Option<&[u8]> {
        let width = self.widen();
        self.regs().vector.get(index).map(|arg| &arg.0[..width])
    }

    /// Has the vectors filled up to the machine's width, which it returns.
    fn widen(&self) -> usize {
        let width = self.thread().vector_bytes.get();
        // SAFETY: the registers stay while the callback lives; there is no reference to bytes
        // of vectors that have not been filled up yet.
        unsafe { EntryRegs::widen(self.regs, width) }
    }

    /// Word `index` of the arguments that travel on the stack.
    ///
    /// Whether the function has so many, only its declaration tells. `None` past the end of the
    /// machine stack.
    pub fn stack_arg(&self, index: usize) -> Option<u64> {
        EntryRegs::read_stack_word(self.thread, self.return_slot_addr(), index)
    }
}

/// A function returns, or is unwound: what the return callback of a user with data `D` sees.
#[derive(Debug)]
pub struct Return<'a, D> {
    regs: *mut ReturnRegs,
    thread: &'a Thread,
    frame: *mut Frame,
    /// What [`ReturnRegs`] say of how it returns.
    how: u32,
    /// Whose callback runs.
    user: *const Header,
    /// What is handed on to the next user, `errno` among it.
    users: u64,
    /// The context is the calling thread's, for as long as the callback runs.
    _call: PhantomData<&'a mut D>,
}

impl<'a, D> Return<'a, D> {
    #[inline(always)]
    pub(crate) fn new(
        regs: *mut ReturnRegs,
        thread: &'a Thread,
        frame: *mut Frame,
        how: u32,
        user: *const Header,
        users: u64,
    ) -> Self {
        Self {
            regs,
            thread,
            frame,
            how,
            user,
            users,
            _call: PhantomData,
        }
    }

    common!();

    fn regs(&self) -> &ReturnRegs {
        // SAFETY: the registers stay while the callback, and with it `self`, lives.
        unsafe { &*self.regs }
    }

    fn frame(&self) -> &Frame {
        // SAFETY: the frame stays until the return is done.
        unsafe { &*self.frame }
    }

    fn site(&self) -> &'static Site {
        // SAFETY: sites are never freed.
        unsafe { &*self.frame().site }
    }

    /// The newest frame that encloses this call; `None` if that cannot be told.
    pub(crate) fn enclosing(&self) -> Option<*mut Frame> {
        let is_known = self.how & RETURN_DEFERRED == 0 && !self.thread().is_on_shared();
        is_known.then(|| self.frame().previous)
    }

    /// The return address that was on the machine stack.
    pub(crate) fn returns_to(&self) -> usize {
        self.frame().return_address
    }

    /// The caller's frame pointer.
    pub(crate) fn frame_pointer(&self) -> usize {
        self.frame().frame_pointer
    }

    /// Where on the machine stack the return address stood.
    fn return_slot_addr(&self) -> usize {
        self.frame().return_slot_addr
    }

    /// Traced calls that are going on around this one on this machine stack, of any user.
    pub fn depth(&self) -> usize {
        // The frame counts itself.
        self.frame().depth as usize - 1
    }

    /// The stack pointer of the caller, just before its call instruction pushed the return
    /// address.
    pub fn stack_pointer(&self) -> usize {
        self.return_slot_addr() + size_of::<usize>()
    }

    /// Whether the function does not return but is left by a panic, a C++ exception, `pthread_exit`
    /// or a cancellation. There are no results then.
    pub fn unwinding(&self) -> bool {
        self.how & RETURN_UNWINDING != 0
    }

    /// The user that has [skipped](EntryWriter::skip) or [redirected](EntryWriter::redirect) the
    /// call: the results are what it has put in the place of the function's.
    pub fn replaced_by(&self) -> Option<UserId> {
        self.frame().replaced_by().map(UserId::new)
    }

    /// The gate to changing what the function returns.
    ///
    /// # Safety
    ///
    /// The traced code computes with what is written. The caller promises that the function's
    /// callers may get it: what replaces a result is a value of the result's type, in the registers
    /// that this type comes back in; a pointer points to what the callers expect behind it; an
    /// object that they take over is one to give away, and the one that the function gave is not
    /// lost where that does harm.
    pub unsafe fn rewrite(&mut self) -> ReturnWriter<'_> {
        // SAFETY: the registers stay while the callback lives; `&mut self` keeps a second reference
        // away.
        let regs = unsafe { &mut *self.regs };
        ReturnWriter::new(regs, self.thread, self.how, &mut self.users)
    }

    fn results(&self) -> Option<&ReturnRegs> {
        (!self.unwinding()).then(|| self.regs())
    }

    fn int(&self, index: usize) -> Option<u64> {
        self.results()?.int.get(index).copied()
    }

    /// The integer or pointer result. `None` while unwinding.
    ///
    /// Upper bits of a result narrower than 64 bits are undefined; a function without a result
    /// leaves anything there.
    pub fn result(&self) -> Option<u64> {
        self.int(0)
    }

    /// The upper half of an integer result of 128 bits, or the second of two words.
    pub fn result_high(&self) -> Option<u64> {
        self.int(1)
    }

    /// The floating-point result (or the first of two) as a `f64`. `None` while unwinding.
    pub fn float_result(&self) -> Option<f64> {
        self.results().map(|regs| regs.vector[0].f64())
    }

    /// The floating-point result as a `f32`. `None` while unwinding.
    pub fn float32_result(&self) -> Option<f32> {
        self.results().map(|regs| regs.vector[0].f32())
    }

    /// The bytes of vector result `index` (0 or 1): 16, 32 or 64, as wide as the machine's vector
    /// registers are. `None` while unwinding.
    pub fn vector_result(&self, index: usize) -> Option<&[u8]> {
        let width = self.widen();
        Some(&self.results()?.vector.get(index)?.0[..width])
    }

    /// Has the vectors filled up to the machine's width, which it returns.
    fn widen(&self) -> usize {
        let width = self.thread().vector_bytes.get();
        // SAFETY: as in `Entry::widen`.
        unsafe { ReturnRegs::widen(self.regs, width) }
    }
}
