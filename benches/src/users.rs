//! Users that watch.

use core::arch::asm;
use core::hint::black_box;
use core::sync::atomic::{AtomicU64, Ordering};

use fgraph::{Entry, FgraphOps, PerThread, Return};

/// Wants every return and does nothing.
///
/// Each `N` is another type, because users in a program have different types, and the processor
/// predicts calls of one function better than calls of several.
#[derive(Clone, Copy, Debug)]
pub struct Empty<const N: usize>;

impl<const N: usize> FgraphOps for Empty<N> {
    type Data = ();

    fn entry(&self, _call: &mut Entry<'_, ()>) -> Option<()> {
        Some(())
    }

    fn ret(&self, _call: &mut Return<'_, ()>, _data: ()) {}
}

/// Wants no return.
#[derive(Clone, Copy, Debug)]
pub struct Declining;

impl FgraphOps for Declining {
    type Data = ();

    fn entry(&self, _call: &mut Entry<'_, ()>) -> Option<()> {
        None
    }
}

/// Wants no return, and would keep `8 * N` bytes for each call.
#[derive(Clone, Copy, Debug)]
pub struct DecliningWords<const N: usize>;

impl<const N: usize> FgraphOps for DecliningWords<N> {
    type Data = [u64; N];

    fn entry(&self, call: &mut Entry<'_, Self::Data>) -> Option<Self::Data> {
        // Never true, but compilers do not know that.
        (call.arg(0) == Some(u64::MAX)).then(|| [black_box(1); N])
    }
}

/// Wants no return, and counts calls in storage per thread.
#[derive(Debug, Default)]
pub struct Counting(PerThread<AtomicU64>);

impl FgraphOps for Counting {
    type Data = ();

    fn entry(&self, call: &mut Entry<'_, ()>) -> Option<()> {
        let calls = call.per_thread(&self.0)?;
        calls.store(calls.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        None
    }
}

/// Wants no return, and sets `errno` to its own value.
#[derive(Clone, Copy, Debug)]
pub struct SettingErrno;

impl FgraphOps for SettingErrno {
    type Data = ();

    fn entry(&self, call: &mut Entry<'_, ()>) -> Option<()> {
        let errno = black_box(call.errno());
        // SAFETY: `errno` keeps its value, so the program notices nothing.
        unsafe { call.rewrite() }.set_errno(errno);
        None
    }
}

/// Carries 16 bytes from each entry to its return.
#[derive(Clone, Copy, Debug)]
pub struct SixteenBytes;

impl FgraphOps for SixteenBytes {
    type Data = [u64; 2];

    fn entry(&self, call: &mut Entry<'_, Self::Data>) -> Option<Self::Data> {
        Some([call.arg(0)?, 1])
    }

    fn ret(&self, _call: &mut Return<'_, Self::Data>, data: Self::Data) {
        black_box(data);
    }
}

/// Wants every return and changes vector registers: those of arguments at the entry, those of
/// results at the return.
#[derive(Clone, Copy, Debug)]
pub struct Vectors;

impl FgraphOps for Vectors {
    type Data = ();

    fn entry(&self, _call: &mut Entry<'_, ()>) -> Option<()> {
        // SAFETY: the assembly lists all registers that it changes.
        unsafe {
            asm!(
                ".irp n,0,1,2,3,4,5,6,7",
                "xorps xmm\\n, xmm\\n",
                ".endr",
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                options(nomem, nostack, preserves_flags)
            );
        }
        Some(())
    }

    fn ret(&self, _call: &mut Return<'_, ()>, _data: ()) {
        // SAFETY: the assembly lists all registers that it changes.
        unsafe {
            asm!(
                "xorps xmm0, xmm0",
                "xorps xmm1, xmm1",
                out("xmm0") _, out("xmm1") _,
                options(nomem, nostack, preserves_flags)
            );
        }
    }
}

/// Applies `$do` to a constant with the value of `$n`, a number below 16.
macro_rules! with_constant {
    ($n:expr, $do:ident) => {
        match $n {
            0 => $do!(0),
            1 => $do!(1),
            2 => $do!(2),
            3 => $do!(3),
            4 => $do!(4),
            5 => $do!(5),
            6 => $do!(6),
            7 => $do!(7),
            8 => $do!(8),
            9 => $do!(9),
            10 => $do!(10),
            11 => $do!(11),
            12 => $do!(12),
            13 => $do!(13),
            14 => $do!(14),
            _ => $do!(15),
        }
    };
}

pub(crate) use with_constant;
