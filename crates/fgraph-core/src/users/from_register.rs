//! Values that a register has.

use crate::regs::{EntryRegs, ReturnRegs, Vector};

/// A type of arguments and results that are passed in one register: integers, `bool`, `char`,
/// pointers, and floating-point numbers. It cannot be implemented by others.
///
/// The bits of a register beyond the type's own are ignored: the ABI leaves them undefined.
pub trait FromRegister: private::Register {}

impl<T: private::Register> FromRegister for T {}

pub(crate) mod private {
    use super::{EntryRegs, ReturnRegs};

    /// A value of one register.
    pub trait Register: Sized {
        /// Returns an argument, by its index among those of its kind of register.
        fn argument(regs: &EntryRegs, index: usize) -> Option<Self>;

        /// Returns the result.
        fn result(regs: &ReturnRegs) -> Option<Self>;
    }
}

/// Implements the trait for types in general registers.
macro_rules! general {
    ($([$($generic:ident)?] $type:ty: $value:ident => $converted:expr;)*) => {
        $(impl<$($generic)?> private::Register for $type {
            #[inline]
            fn argument(regs: &EntryRegs, index: usize) -> Option<Self> {
                let &$value = regs.int.get(index)?;
                $converted
            }

            #[inline]
            fn result(regs: &ReturnRegs) -> Option<Self> {
                let $value = regs.int[0];
                $converted
            }
        })*
    };
}

general! {
    [] u64: value => Some(value);
    [] i64: value => Some(value.cast_signed());
    [] usize: value => Some(value as usize);
    [] isize: value => Some(value as isize);
    [] u32: value => Some(value as u32);
    [] i32: value => Some(value as i32);
    [] u16: value => Some(value as u16);
    [] i16: value => Some(value as i16);
    [] u8: value => Some(value as u8);
    [] i8: value => Some(value as i8);
    [] bool: value => Some(value as u8 != 0);
    [] char: value => char::from_u32(value as u32);
    [T] *const T: value => Some(core::ptr::with_exposed_provenance(value as usize));
    [T] *mut T: value => Some(core::ptr::with_exposed_provenance_mut(value as usize));
}

/// Implements the trait for types in vector registers.
macro_rules! vector {
    ($($type:ty: $read:path;)*) => {
        $(impl private::Register for $type {
            #[inline]
            fn argument(regs: &EntryRegs, index: usize) -> Option<Self> {
                regs.vector.get(index).map($read)
            }

            #[inline]
            fn result(regs: &ReturnRegs) -> Option<Self> {
                Some($read(&regs.vector[0]))
            }
        })*
    };
}

vector! {
    f64: Vector::f64;
    f32: Vector::f32;
}
