//! A callback's view of a call.

use core::cell::Cell;
use core::marker::PhantomData;
use core::ops::Range;
use core::ptr;

use super::chain;
use crate::frame::{self, Frame};
use crate::from_register::FromRegister;
use crate::per_thread::PerThread;
use crate::recycled::{Recycle, Recycled};
use crate::registration::{Header, UserId};
use crate::regs::{
    EntryRegs, RETURN_DEFERRED, RETURN_UNWINDING, ReturnRegs, Vector, return_address_at,
};
use crate::site::{Function, Site, function_of};
use crate::thread::Thread;
use crate::write::{EntryWriter, ReturnWriter};

/// Defines the methods that all views of a call share, for the docs of each type.
macro_rules! in_thread {
    () => {
        pub(crate) fn thread(&self) -> &'a Thread {
            self.thread
        }

        fn user(&self) -> &Header {
            // SAFETY: the registration stays alive until its callback, which is running, returns.
            unsafe { &*self.user }
        }

        /// Returns the id of the user whose callback this is.
        pub fn user_id(&self) -> UserId {
            self.user().id()
        }

        /// Returns the called function.
        pub fn function(&self) -> Function {
            function_of(self.site())
        }

        /// Returns the kernel's id of the calling thread.
        pub fn thread_id(&self) -> u32 {
            self.thread().id()
        }

        /// Returns a number of the calling thread that no other thread of the process ever gets,
        /// even after its end: 0 for the first that fgraph has seen, then 1, and so on.
        pub fn thread_number(&self) -> u32 {
            self.thread().number.get()
        }

        /// Returns the thread stack, from its lowest address to its end; stacks grow down from
        /// there. Returns `None` on another stack, of a signal handler or a coroutine.
        pub fn thread_stack(&self) -> Option<Range<usize>> {
            let thread = self.thread();
            let low = thread.low.get();
            thread
                .is_thread_stack()
                .then(|| low..low + thread.span.get())
        }

        /// Returns the running thread's value in `storage`, and makes it if there is none yet.
        ///
        /// Returns `None` if there is no memory for it. Takes a few loads, except for the first
        /// time.
        #[inline(always)]
        pub fn per_thread<'s, T: Default>(&self, storage: &'s PerThread<T>) -> Option<&'s T> {
            storage.of(self.thread())
        }

        /// Returns the running thread's value in `storage`; takes one over, or makes one, if it has
        /// none yet.
        ///
        /// Returns `None` if there is no memory for it. Takes a few loads, except for the first
        /// time.
        #[inline(always)]
        pub fn recycled<'s, T: Recycle>(&self, storage: &'s Recycled<T>) -> Option<&'s T> {
            storage.of(self.thread())
        }

        /// Returns a word of this user's in this thread; zero until the user sets it.
        ///
        /// It is the kernel's task variable.
        pub fn thread_word(&self) -> &Cell<u64> {
            let user = self.user();
            self.thread().word(user.slot as usize, user.epoch())
        }
    };
}

/// Defines the methods that `Entry` and `Return` share, for the docs of each type.
macro_rules! common {
    () => {
        in_thread!();

        #[inline(always)]
        pub(crate) fn handed_on(&self) -> u64 {
            self.users
        }

        /// Returns the program's `errno`, which the callbacks' own calls do not change.
        pub fn errno(&self) -> i32 {
            chain::errno(self.users)
        }

        /// Returns the return address: the true one, even while the function is traced.
        ///
        /// For a tail call, it is the return address of the function that jumped here.
        pub fn return_address(&self) -> usize {
            let (slot_addr, address) = (self.return_slot_addr(), self.returns_to());
            let frame = self.enclosing().unwrap_or(ptr::null_mut());
            // SAFETY: the frames enclose this call.
            unsafe { frame::behind_jumps(frame, slot_addr, address) }
        }

        /// Returns an address inside the call instruction, for looking up the caller.
        ///
        /// For a tail call, it is inside the call of the function that jumped here.
        pub fn call_site(&self) -> usize {
            self.return_address().wrapping_sub(1)
        }

        /// Returns this user's data of the nearest enclosing call that it accepted.
        ///
        /// Takes at most a few ns, whatever calls of other users lie between. The first time after
        /// frames were [lost](crate::Counters::lost), or after the thread changed stacks, it reads
        /// the frames of all enclosing calls. For a user without data, it does so each time.
        ///
        /// Returns `None` where the enclosing calls are unknown: in a memory mapping that holds the
        /// stacks of several coroutines, and at the return of a call whose stack another thread has
        /// claimed.
        pub fn parent_data(&self) -> Option<&D> {
            self.ancestor_data(0)
        }

        /// Returns the data like [`parent_data`](Self::parent_data), for changes: a profiler adds
        /// its time there.
        ///
        /// Also returns `None` on a stack other than the thread stack: another thread may be
        /// dispatching the return of an enclosing call there, with the same data, at the same
        /// moment.
        pub fn parent_data_mut(&mut self) -> Option<&mut D> {
            if !self.thread().is_thread_stack() {
                return None;
            }
            // SAFETY: the data is this user's, on the thread stack, and only one callback of this
            // thread runs; `&mut self` excludes a second reference.
            self.ancestor(0).map(|data| unsafe { &mut *data })
        }

        /// Returns this user's data of an enclosing call: 0 is the nearest that it accepted, 1 the
        /// one around that, and so on.
        ///
        /// Takes about a ns for each generation; otherwise like [`parent_data`](Self::parent_data).
        pub fn ancestor_data(&self, generation: usize) -> Option<&D> {
            // SAFETY: the data stays while this call is dispatched. It is changed only on the
            // thread stack, through `&mut self`, which `&self` excludes.
            self.ancestor(generation).map(|data| unsafe { &*data })
        }

        /// Iterates over this user's data of the enclosing calls that it accepted, the nearest
        /// first, for changes. Empty where [`parent_data_mut`](Self::parent_data_mut) returns
        /// `None`, and for a user without data.
        ///
        /// Takes about a ns for each enclosing call; otherwise like
        /// [`parent_data`](Self::parent_data).
        pub fn ancestors_data_mut(&mut self) -> impl Iterator<Item = &mut D> {
            let is_told = size_of::<D>() != 0 && self.thread().is_thread_stack();
            let mut next = is_told.then(|| self.ancestor(0)).flatten();
            core::iter::from_fn(move || {
                let data = next?;
                // SAFETY: a record of this user's, on the thread's current stack.
                let before = unsafe { frame::record_before(data.cast(), size_of::<D>()) };
                next = (!before.is_null()).then_some(before.cast());
                // SAFETY: the data is this user's, on the thread stack, and each record is returned
                // once.
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
                // SAFETY: a record of this user's, on the thread's current stack.
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

        /// Returns the number of calls in progress around this one on this machine stack that this
        /// user has accepted. Returns 0 where they are unknown, as for
        /// [`parent_data`](Self::parent_data).
        ///
        /// The calls are counted: this takes time for each enclosing traced call.
        pub fn own_depth(&self) -> usize {
            let Some(frame) = self.enclosing() else {
                return 0;
            };
            let user = self.user();
            // SAFETY: the frames enclose this call.
            unsafe { frame::accepted_by(frame, user.slot, user.stamp) }.count()
        }

        /// Fills in the return addresses of this call and of the traced calls around it on this
        /// machine stack, the innermost first. Returns the number of addresses, which is at most
        /// the length of `addresses`.
        ///
        /// The addresses are the true ones, without any of fgraph's own code. Traced calls are
        /// those whose return some user wants. Functions between them that no user watches are left
        /// out: [`unwind`](Self::unwind) finds those, too. A call that is made by a jump returns to
        /// the return address of the call from which it was made. Where the enclosing calls are
        /// unknown, as for [`parent_data`](Self::parent_data), there is only the first address.
        pub fn callers(&self, addresses: &mut [usize]) -> usize {
            let frame = self.enclosing().unwrap_or(ptr::null_mut());
            // SAFETY: the frames enclose this call.
            let around = unsafe { frame::callers(frame, self.return_slot_addr()) };
            let callers = core::iter::once(self.return_address()).chain(around);
            let filled = addresses.iter_mut().zip(callers);
            filled.map(|(place, address)| *place = address).count()
        }
    };
}

/// The entry of a function: the entry callback's view of the call, for a user with data `D`.
#[derive(Debug)]
pub struct Entry<'a, D> {
    regs: *mut EntryRegs,
    thread: &'a Thread,
    /// The user whose callback runs.
    user: *const Header,
    /// The word that is passed from user to user, which includes `errno`.
    users: u64,
    /// True once the user has redirected the call.
    redirected: bool,
    /// The context belongs to the calling thread for as long as the callback runs.
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
            redirected: false,
            _call: PhantomData,
        }
    }

    common!();

    /// True if this user has redirected the call and is not told of its return, because it has not
    /// `accepted` the call or nobody is told.
    #[inline(always)]
    pub(crate) fn redirects_untold(&self, accepted: bool) -> bool {
        self.redirected && (!accepted || self.is_entry_only())
    }

    fn regs(&self) -> &EntryRegs {
        // SAFETY: the registers stay while the callback, and with it `self`, lives.
        unsafe { &*self.regs }
    }

    /// Returns the frame that is built for the call.
    fn opened(&self) -> *mut Frame {
        self.thread().shadow.top().cast()
    }

    fn site(&self) -> &'static Site {
        // The site in the frame: a user may have replaced the one in the registers.
        // SAFETY: the frame was opened with its site; sites are never freed.
        unsafe { &*(*self.opened()).site }
    }

    /// Returns the user that has [skipped](EntryWriter::skip) or
    /// [redirected](EntryWriter::redirect) the call.
    pub fn replaced_by(&self) -> Option<UserId> {
        self.regs().replaced_by(self.thread)
    }

    /// Returns the newest frame that encloses this call; `None` if it is unknown.
    pub(crate) fn enclosing(&self) -> Option<*mut Frame> {
        let thread = self.thread();
        (!thread.is_on_shared()).then(|| thread.shadow.newest())
    }

    /// Returns the return address on the machine stack.
    pub(crate) fn returns_to(&self) -> usize {
        // SAFETY: it stays there until the entry is dispatched.
        unsafe { return_address_at(self.return_slot_addr()) }
    }

    /// Returns the caller's frame pointer.
    pub(crate) fn frame_pointer(&self) -> usize {
        // SAFETY: the frame was opened with it.
        unsafe { (*self.opened()).frame_pointer }
    }

    /// Returns the address of the return slot on the machine stack.
    fn return_slot_addr(&self) -> usize {
        // SAFETY: the frame was opened with it.
        unsafe { (*self.opened()).return_slot_addr }
    }

    /// Gives access to change the call's arguments, or to skip or redirect the call.
    ///
    /// # Safety
    ///
    /// The traced code computes with the written values. The caller guarantees that the function
    /// may be called with them:
    ///
    /// - A value that replaces an argument is of the argument's type, and allowed there. A pointer
    ///   points to an object that the function expects. The function gets ownership only of objects
    ///   that can be given away. An object that the function would have taken over is not lost,
    ///   where that does harm.
    /// - A word on the stack is changed only if it belongs to an argument of the function. Later
    ///   words belong to its callers; return addresses are among them.
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
        // SAFETY: the registers stay while the callback lives; `&mut self` excludes a second
        // reference.
        let regs = unsafe { &mut *self.regs };
        // SAFETY: the registration stays alive until its callback, which is running, returns.
        let user = unsafe { &*self.user };
        EntryWriter::new(
            regs,
            self.thread,
            &mut self.users,
            &mut self.redirected,
            user,
        )
    }

    /// Returns true if the call's return is dispatched to no user, not even to one that accepts the
    /// call. The function looks at its return address or returns twice, or the caller is code that
    /// must not meet another return address than its own.
    pub fn is_entry_only(&self) -> bool {
        self.thread().entry_only.get() == self.return_slot_addr()
    }

    /// Returns the number of traced calls in progress around this one on this machine stack, of any
    /// user.
    pub fn depth(&self) -> usize {
        self.thread().shadow.depth() as usize
    }

    /// Returns the stack pointer of the caller, just before its call instruction pushed the return
    /// address.
    pub fn stack_pointer(&self) -> usize {
        self.return_slot_addr() + size_of::<usize>()
    }

    /// Returns integer or pointer argument `index`, of those passed in registers (0 to 5).
    ///
    /// The upper bits of an argument narrower than 64 bits are undefined: [`arg_as`](Self::arg_as)
    /// leaves them out. Returns `None` for a higher index: see [`stack_arg`](Self::stack_arg).
    ///
    /// Compilers remove arguments of functions whose callers they all know, and move the others up.
    /// LLVM does so with private functions in Rust, also with `extern "C"` ones, and gcc with
    /// `static` ones. Only functions that are exported, or whose address is taken, surely have
    /// their declared arguments.
    pub fn arg(&self, index: usize) -> Option<u64> {
        self.regs().int.get(index).copied()
    }

    /// Returns argument `index` as a type: of integers, `bool`, `char` and pointers the
    /// [one in a general register](Self::arg) (0 to 5), of `f64` and `f32` the
    /// [one in a vector register](Self::float_arg) (0 to 7). Each kind is counted from 0. Returns
    /// `None` for a higher index, and for a `char` with a value that is none.
    ///
    /// ```
    /// # use fgraph_core as fgraph;
    /// use fgraph::{Entry, FgraphOps};
    ///
    /// /// Watches `fn seek(file: i32, offset: i64, from_end: bool, scale: f64)`.
    /// struct Seeks;
    ///
    /// impl FgraphOps for Seeks {
    ///     type Data = (i32, i64, bool, f64);
    ///
    ///     fn entry(&self, call: &mut Entry<'_, Self::Data>) -> Option<Self::Data> {
    ///         Some((call.arg_as(0)?, call.arg_as(1)?, call.arg_as(2)?, call.arg_as(0)?))
    ///     }
    /// }
    /// ```
    #[inline]
    pub fn arg_as<T: FromRegister>(&self, index: usize) -> Option<T> {
        T::argument(self.regs(), index)
    }

    /// Returns argument `index` (0 to 5) of a system call: the kernel takes the fourth in another
    /// register than a function does. Returns `None` for a higher index.
    pub fn system_call_arg(&self, index: usize) -> Option<u64> {
        match index {
            3 => Some(self.regs().scratch[1]),
            _ => self.arg(index),
        }
    }

    /// Returns floating-point argument `index` (0 to 7) as `f64`.
    pub fn float_arg(&self, index: usize) -> Option<f64> {
        self.regs().vector.get(index).map(Vector::f64)
    }

    /// Returns floating-point argument `index` (0 to 7) as `f32`.
    pub fn float32_arg(&self, index: usize) -> Option<f32> {
        self.regs().vector.get(index).map(Vector::f32)
    }

    /// Returns the bytes of vector argument `index` (0 to 7): 16, 32 or 64, the width of the
    /// machine's vector registers.
    pub fn vector_arg(&self, index: usize) -> Option<&[u8]> {
        let width = self.widen();
        self.regs().vector.get(index).map(|arg| &arg.0[..width])
    }

    /// Extends the vectors to the machine's width, and returns it.
    fn widen(&self) -> usize {
        let width = self.thread().vector_bytes.get();
        // SAFETY: the registers stay while the callback lives, and no reference exists to bytes of
        // vectors that were not extended yet.
        unsafe { EntryRegs::widen(self.regs, width) }
    }

    /// Returns word `index` of the stack arguments.
    ///
    /// Only the function's declaration says how many words these are. Returns `None` beyond the end
    /// of the machine stack.
    pub fn stack_arg(&self, index: usize) -> Option<u64> {
        EntryRegs::read_stack_word(self.thread, self.return_slot_addr(), index)
    }
}

/// The return, or the unwinding, of a function: the return callback's view, for a user with data
/// `D`.
#[derive(Debug)]
pub struct Return<'a, D> {
    regs: *mut ReturnRegs,
    thread: &'a Thread,
    frame: *mut Frame,
    /// The flags of [`ReturnRegs`] for this return.
    how: u32,
    /// The user whose callback runs.
    user: *const Header,
    /// The word that is passed from user to user, which includes `errno`.
    users: u64,
    /// The context belongs to the calling thread for as long as the callback runs.
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
        // SAFETY: the frame stays until the return is dispatched.
        unsafe { &*self.frame }
    }

    fn site(&self) -> &'static Site {
        // SAFETY: sites are never freed.
        unsafe { &*self.frame().site }
    }

    /// Returns the newest frame that encloses this call; `None` if it is unknown.
    pub(crate) fn enclosing(&self) -> Option<*mut Frame> {
        let is_known = self.how & RETURN_DEFERRED == 0 && !self.thread().is_on_shared();
        is_known.then(|| self.frame().previous)
    }

    /// Returns the return address that was on the machine stack.
    pub(crate) fn returns_to(&self) -> usize {
        self.frame().return_address
    }

    /// Returns the caller's frame pointer.
    pub(crate) fn frame_pointer(&self) -> usize {
        self.frame().frame_pointer
    }

    /// Returns the address of the return slot on the machine stack.
    fn return_slot_addr(&self) -> usize {
        self.frame().return_slot_addr
    }

    /// Returns the number of traced calls in progress around this one on this machine stack, of any
    /// user.
    pub fn depth(&self) -> usize {
        // The frame counts itself.
        self.frame().depth as usize - 1
    }

    /// Returns the stack pointer of the caller, just before its call instruction pushed the return
    /// address.
    pub fn stack_pointer(&self) -> usize {
        self.return_slot_addr() + size_of::<usize>()
    }

    /// Returns true if the function does not return, but is left by a panic, a C++ exception,
    /// `pthread_exit` or a cancellation. There are no results then.
    pub fn unwinding(&self) -> bool {
        self.how & RETURN_UNWINDING != 0
    }

    /// Returns the user that has [skipped](EntryWriter::skip) or
    /// [redirected](EntryWriter::redirect) the call: the results are then the replacement's.
    pub fn replaced_by(&self) -> Option<UserId> {
        self.frame().replaced_by().map(UserId::new)
    }

    /// Gives access to change the function's results.
    ///
    /// # Safety
    ///
    /// The traced code computes with the written values. The caller guarantees that the function's
    /// callers may get them: a value that replaces a result is of the result's type, in the
    /// registers in which that type is returned. A pointer points to an object that the callers
    /// expect. An object that they take ownership of can be given away, and the function's own
    /// object is not lost where that does harm.
    pub unsafe fn rewrite(&mut self) -> ReturnWriter<'_> {
        // SAFETY: the registers stay while the callback lives; `&mut self` excludes a second
        // reference.
        let regs = unsafe { &mut *self.regs };
        ReturnWriter::new(regs, self.thread, self.how, &mut self.users)
    }

    fn results(&self) -> Option<&ReturnRegs> {
        (!self.unwinding()).then(|| self.regs())
    }

    fn int(&self, index: usize) -> Option<u64> {
        self.results()?.int.get(index).copied()
    }

    /// Returns the integer or pointer result; `None` while unwinding.
    ///
    /// The upper bits of a result narrower than 64 bits are undefined. A function without a result
    /// leaves any value there.
    pub fn result(&self) -> Option<u64> {
        self.int(0)
    }

    /// Returns the result as a type: see [`Entry::arg_as`]. Returns `None` while unwinding.
    #[inline]
    pub fn result_as<T: FromRegister>(&self) -> Option<T> {
        T::result(self.results()?)
    }

    /// Returns the upper half of an integer result of 128 bits, or the second of two words.
    pub fn result_high(&self) -> Option<u64> {
        self.int(1)
    }

    /// Returns the floating-point result (or the first of two) as `f64`; `None` while unwinding.
    pub fn float_result(&self) -> Option<f64> {
        self.results().map(|regs| regs.vector[0].f64())
    }

    /// Returns the floating-point result as `f32`; `None` while unwinding.
    pub fn float32_result(&self) -> Option<f32> {
        self.results().map(|regs| regs.vector[0].f32())
    }

    /// Returns the bytes of vector result `index` (0 or 1): 16, 32 or 64, the width of the
    /// machine's vector registers. Returns `None` while unwinding.
    pub fn vector_result(&self, index: usize) -> Option<&[u8]> {
        let width = self.widen();
        Some(&self.results()?.vector.get(index)?.0[..width])
    }

    /// Extends the vectors to the machine's width, and returns it.
    fn widen(&self) -> usize {
        let width = self.thread().vector_bytes.get();
        // SAFETY: the registers stay while the callback lives, and no reference exists to bytes of
        // vectors that were not extended yet.
        unsafe { ReturnRegs::widen(self.regs, width) }
    }
}

/// A call that was left without its return or an unwinder, as by `longjmp`: the view of
/// [`FgraphOps::dropped`](crate::FgraphOps::dropped), for a user with data `D`.
#[derive(Debug)]
pub struct Dropped<'a, D> {
    frame: *mut Frame,
    thread: &'a Thread,
    /// The user whose callback runs.
    user: *const Header,
    /// The context belongs to the calling thread for as long as the callback runs.
    _call: PhantomData<&'a mut D>,
}

impl<'a, D> Dropped<'a, D> {
    pub(crate) fn new(frame: *mut Frame, thread: &'a Thread, user: *const Header) -> Self {
        Self {
            frame,
            thread,
            user,
            _call: PhantomData,
        }
    }

    in_thread!();

    fn site(&self) -> &'static Site {
        // SAFETY: the frame stays until the callback returns; sites are never freed.
        unsafe { &*(*self.frame).site }
    }
}
