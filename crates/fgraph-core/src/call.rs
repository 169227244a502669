//! What a callback sees of a call.

use core::cell::Cell;
use core::marker::PhantomData;
use core::ptr;

use crate::frame::Frame;
use crate::registration::Header;
use crate::regs::{EntryRegs, RESULTS, RETURN_UNWINDING, ReturnRegs, VECTOR_ARGS, Vector};
use crate::site::{Function, Site};
use crate::thread::Thread;

/// The methods that `Entry` and `Return` share, as each shows them under its own type.
macro_rules! common {
    () => {
        fn thread(&self) -> &Thread {
            // SAFETY: states are never unmapped, and this one is the running thread's.
            unsafe { &*self.regs().thread }
        }

        fn user(&self) -> &Header {
            // SAFETY: the registration stays until its callback, which is running, is done.
            unsafe { &*self.user }
        }

        /// The function that is called.
        pub fn function(&self) -> Function {
            Function::of(self.site())
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

        /// This user's data of the nearest enclosing call that it accepted.
        pub fn parent_data(&self) -> Option<&D> {
            self.ancestor_data(0)
        }

        /// As [`parent_data`](Self::parent_data), to change it: a profiler adds its time there.
        pub fn parent_data_mut(&mut self) -> Option<&mut D> {
            // SAFETY: the data is this user's, of this thread, in which only one of its callbacks
            // runs; `&mut self` keeps a second reference away.
            self.ancestor(0).map(|data| unsafe { &mut *data })
        }

        /// This user's data of an enclosing call: 0 is the nearest that it accepted, 1 the one
        /// around that, and so on.
        pub fn ancestor_data(&self, generation: usize) -> Option<&D> {
            // SAFETY: as in `parent_data_mut`; shared references only for `&self`.
            self.ancestor(generation).map(|data| unsafe { &*data })
        }

        fn ancestor(&self, generation: usize) -> Option<*mut D> {
            let (frame, end) = self.enclosing();
            let user = self.user();
            self.thread()
                .shadow
                .ancestor(frame, end, user.slot, user.epoch(), generation)
                .map(<*mut u8>::cast)
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
    /// Whose callback runs.
    user: *const Header,
    /// The context is the calling thread's, for as long as the callback runs.
    _call: PhantomData<&'a mut D>,
}

impl<D> Entry<'_, D> {
    #[inline(always)]
    pub(crate) fn new(regs: *mut EntryRegs, user: *const Header) -> Self {
        Self {
            regs,
            user,
            _call: PhantomData,
        }
    }

    common!();

    fn regs(&self) -> &EntryRegs {
        // SAFETY: the registers stay while the callback, and with it `self`, lives.
        unsafe { &*self.regs }
    }

    fn regs_mut(&mut self) -> &mut EntryRegs {
        // SAFETY: as in `regs`; `&mut self` keeps a second reference away.
        unsafe { &mut *self.regs }
    }

    fn site(&self) -> &'static Site {
        // SAFETY: sites are never freed.
        unsafe { &*self.regs().site }
    }

    /// The newest frame that encloses this call, and its end.
    fn enclosing(&self) -> (*mut Frame, *mut u8) {
        let shadow = &self.thread().shadow;
        (shadow.newest(), shadow.top())
    }

    /// Where the function returns to: the true address, also while it is traced.
    pub fn return_address(&self) -> usize {
        // SAFETY: the link is on the machine stack until the entry is done.
        unsafe { (*self.regs().link).return_address }
    }

    /// Traced calls that are going on around this one on this machine stack, of any user.
    pub fn depth(&self) -> usize {
        self.thread().shadow.depth() as usize
    }

    /// The stack pointer of the caller, just before its call instruction pushed the return
    /// address.
    pub fn stack_pointer(&self) -> usize {
        // SAFETY: as in `return_address`.
        unsafe { self.regs().slot() + size_of::<usize>() }
    }

    /// Integer or pointer argument `index`, of those that travel in registers (0 to 5).
    ///
    /// Upper bits of an argument narrower than 64 bits are undefined. `None` for a higher index:
    /// see [`stack_arg`](Self::stack_arg).
    pub fn arg(&self, index: usize) -> Option<u64> {
        self.regs().int.get(index).copied()
    }

    /// Changes integer or pointer argument `index` (0 to 5); `false` if there is no such.
    pub fn set_arg(&mut self, index: usize, value: u64) -> bool {
        self.regs_mut()
            .int
            .get_mut(index)
            .map(|arg| *arg = value)
            .is_some()
    }

    /// Floating-point argument `index` (0 to 7) as a `f64`.
    pub fn float_arg(&self, index: usize) -> Option<f64> {
        self.regs().vector.get(index).map(Vector::f64)
    }

    /// Changes floating-point argument `index` (0 to 7); `false` if there is no such.
    pub fn set_float_arg(&mut self, index: usize, value: f64) -> bool {
        let vector = self.regs_mut().vector.get_mut(index);
        vector.map(|arg| arg.set_f64(value)).is_some()
    }

    /// Floating-point argument `index` (0 to 7) as a `f32`.
    pub fn float32_arg(&self, index: usize) -> Option<f32> {
        self.regs().vector.get(index).map(Vector::f32)
    }

    /// Changes floating-point argument `index` (0 to 7); `false` if there is no such.
    pub fn set_float32_arg(&mut self, index: usize, value: f32) -> bool {
        let vector = self.regs_mut().vector.get_mut(index);
        vector.map(|arg| arg.set_f32(value)).is_some()
    }

    /// The bytes of vector argument `index` (0 to 7): 16, 32 or 64, as wide as the machine's
    /// vector registers are.
    pub fn vector_arg(&self, index: usize) -> Option<&[u8]> {
        let width = self.widen();
        self.regs().vector.get(index).map(|arg| &arg.0[..width])
    }

    /// As [`vector_arg`](Self::vector_arg), to change it.
    pub fn vector_arg_mut(&mut self, index: usize) -> Option<&mut [u8]> {
        let width = self.widen();
        let vector = self.regs_mut().vector.get_mut(index);
        vector.map(|arg| &mut arg.0[..width])
    }

    /// Has the vectors filled up to the machine's width, which it returns.
    fn widen(&self) -> usize {
        let width = self.thread().vector_bytes.get();
        // SAFETY: the registers stay while the callback lives; nobody holds a reference to bytes
        // of vectors that have not been filled up yet.
        unsafe {
            let vectors = (&raw mut (*self.regs).vector).cast();
            widen(vectors, VECTOR_ARGS, &raw mut (*self.regs).width, width)
        }
    }

    /// Word `index` of the arguments that travel on the stack.
    ///
    /// Whether the function has so many, only its declaration tells. `None` past the end of the
    /// machine stack.
    pub fn stack_arg(&self, index: usize) -> Option<u64> {
        // SAFETY: `stack_word` gives addresses within the machine stack only.
        self.stack_word(index).map(|word| unsafe { *word })
    }

    /// Changes word `index` of the arguments on the stack; `false` past the end of the stack.
    pub fn set_stack_arg(&mut self, index: usize, value: u64) -> bool {
        // SAFETY: as in `stack_arg`; the place belongs to the called function, which is to run.
        let set = |word: *mut u64| unsafe { *word = value };
        self.stack_word(index).map(set).is_some()
    }

    fn stack_word(&self, index: usize) -> Option<*mut u64> {
        let thread = self.thread();
        let end = thread.low.get() + thread.span.get();
        let offset = index.checked_mul(size_of::<u64>())?;
        let word = self.stack_pointer().checked_add(offset)?;
        (word < end && end - word >= size_of::<u64>())
            .then_some(ptr::with_exposed_provenance_mut(word))
    }
}

/// A function returns, or is unwound: what the return callback of a user with data `D` sees.
#[derive(Debug)]
pub struct Return<'a, D> {
    regs: *mut ReturnRegs,
    /// Whose callback runs.
    user: *const Header,
    /// The context is the calling thread's, for as long as the callback runs.
    _call: PhantomData<&'a mut D>,
}

impl<D> Return<'_, D> {
    #[inline(always)]
    pub(crate) fn new(regs: *mut ReturnRegs, user: *const Header) -> Self {
        Self {
            regs,
            user,
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
        unsafe { &*self.regs().frame }
    }

    fn site(&self) -> &'static Site {
        // SAFETY: sites are never freed.
        unsafe { &*self.frame().site }
    }

    /// The newest frame that encloses this call, and its end.
    fn enclosing(&self) -> (*mut Frame, *mut u8) {
        let frame = self.regs().frame;
        // SAFETY: as in `frame`.
        (unsafe { (*frame).previous }, frame.cast())
    }

    /// Where the function returns to: the true address, also while it is traced.
    pub fn return_address(&self) -> usize {
        self.frame().return_address
    }

    /// Traced calls that are going on around this one on this machine stack, of any user.
    pub fn depth(&self) -> usize {
        // The frame counts itself.
        self.frame().depth as usize - 1
    }

    /// The stack pointer of the caller, just before its call instruction pushed the return
    /// address.
    pub fn stack_pointer(&self) -> usize {
        self.frame().slot + size_of::<usize>()
    }

    /// Whether the function does not return but is left by a panic, a C++ exception, `pthread_exit`
    /// or a cancellation. There are no results then.
    pub fn unwinding(&self) -> bool {
        self.regs().how & RETURN_UNWINDING != 0
    }

    fn results(&self) -> Option<&ReturnRegs> {
        (!self.unwinding()).then(|| self.regs())
    }

    fn results_mut(&mut self) -> Option<&mut ReturnRegs> {
        // SAFETY: as in `regs`; `&mut self` keeps a second reference away.
        (!self.unwinding()).then(|| unsafe { &mut *self.regs })
    }

    fn int(&self, index: usize) -> Option<u64> {
        self.results()?.int.get(index).copied()
    }

    fn set_int(&mut self, index: usize, value: u64) -> bool {
        self.results_mut()
            .map(|regs| regs.int[index] = value)
            .is_some()
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

    /// Changes the integer or pointer result; `false` while unwinding.
    pub fn set_result(&mut self, value: u64) -> bool {
        self.set_int(0, value)
    }

    /// Changes the second word of an integer result; `false` while unwinding.
    pub fn set_result_high(&mut self, value: u64) -> bool {
        self.set_int(1, value)
    }

    /// The floating-point result (or the first of two) as a `f64`. `None` while unwinding.
    pub fn float_result(&self) -> Option<f64> {
        self.results().map(|regs| regs.vector[0].f64())
    }

    /// Changes the floating-point result; `false` while unwinding.
    pub fn set_float_result(&mut self, value: f64) -> bool {
        self.results_mut()
            .map(|regs| regs.vector[0].set_f64(value))
            .is_some()
    }

    /// The floating-point result as a `f32`. `None` while unwinding.
    pub fn float32_result(&self) -> Option<f32> {
        self.results().map(|regs| regs.vector[0].f32())
    }

    /// Changes the floating-point result; `false` while unwinding.
    pub fn set_float32_result(&mut self, value: f32) -> bool {
        self.results_mut()
            .map(|regs| regs.vector[0].set_f32(value))
            .is_some()
    }

    /// The bytes of vector result `index` (0 or 1): 16, 32 or 64, as wide as the machine's vector
    /// registers are. `None` while unwinding.
    pub fn vector_result(&self, index: usize) -> Option<&[u8]> {
        let width = self.widen();
        Some(&self.results()?.vector.get(index)?.0[..width])
    }

    /// As [`vector_result`](Self::vector_result), to change it.
    pub fn vector_result_mut(&mut self, index: usize) -> Option<&mut [u8]> {
        let width = self.widen();
        Some(&mut self.results_mut()?.vector.get_mut(index)?.0[..width])
    }

    /// Has the vectors filled up to the machine's width, which it returns.
    fn widen(&self) -> usize {
        let width = self.thread().vector_bytes.get();
        // SAFETY: as in `Entry::widen`.
        unsafe {
            let vectors = (&raw mut (*self.regs).vector).cast();
            widen(vectors, RESULTS, &raw mut (*self.regs).width, width)
        }
    }
}

/// Fills `count` vectors of which `*saved` bytes are saved up to `width` bytes with the zeros that the
/// registers hold there.
///
/// # Safety
///
/// The pointers must be those of a record of registers.
#[cold]
unsafe fn widen(vectors: *mut Vector, count: usize, saved: *mut u32, width: u32) -> usize {
    // SAFETY: the caller vouches for the pointers; a vector is as wide as any register.
    unsafe {
        if *saved < width {
            for index in 0..count {
                let vector = vectors.add(index).cast::<u8>();
                vector
                    .add(*saved as usize)
                    .write_bytes(0, (width - *saved) as usize);
            }
            *saved = width;
        }
    }
    width as usize
}

impl Vector {
    fn f64(&self) -> f64 {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        f64::from_le_bytes([a, b, c, d, e, f, g, h])
    }

    fn set_f64(&mut self, value: f64) {
        self.0[..8].copy_from_slice(&value.to_le_bytes());
    }

    fn f32(&self) -> f32 {
        let [a, b, c, d, ..] = self.0;
        f32::from_le_bytes([a, b, c, d])
    }

    fn set_f32(&mut self, value: f32) {
        self.0[..4].copy_from_slice(&value.to_le_bytes());
    }
}
