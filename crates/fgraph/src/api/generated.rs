//! Functions that the program has generated.

use core::fmt;

use crate::control;
use crate::process::generated::GeneratedFunction;
use crate::process::modules::LoadedModule;
use crate::report::error::Error;

/// Adds functions that the program has generated, for example with a JIT compiler, to those that
/// can be traced, until the result is [removed](GeneratedFunctions::remove).
///
/// They are the functions of a module with the name `module`, which filters and reports use like
/// the path of a library. All current filters are applied to it at once. Names are demangled, and
/// some functions are never traced because of their names, as for a symbol table. Besides the
/// patching it takes two system calls and a look at the memory map: call it with many functions at
/// once, from one stretch of memory. The memory for their records and stubs stays allocated when
/// they are removed: a few hundred bytes for each function, and at least two pages for each call.
///
/// Functions in writable memory are refused, and so are others for the reasons that
/// [`sites`](crate::sites()) lists. fgraph may be unable to write to shared memory (`MAP_SHARED`):
/// then this fails with [`Text`](Error::Text).
///
/// Unwinders pass traced functions if there is unwind information for the functions themselves
/// (`__register_frame`): fgraph's code between two functions has its own.
///
/// # Safety
///
/// Until [`remove`](GeneratedFunctions::remove) has succeeded:
///
/// - There is a function at each address that has at least `size` bytes, follows the System V ABI
///   where it is called, and is entered only at its first instruction. Only its own code jumps to
///   later instructions. Functions do not overlap.
/// - The memory from the first function to the last stays mapped, readable and executable. The
///   program does not write to it, neither there nor through another mapping.
/// - No code depends on the bytes of the functions' first instructions: they change while functions
///   are traced.
///
/// While it is being removed, until that call returns, no thread calls any of them.
///
/// # Errors
///
/// Fails with [`Generated`](Error::Generated), and like [`register`](crate::register) while
/// patching. Nothing is added then.
///
/// # Example
///
/// `examples/jit.rs` traces functions that it has compiled.
///
/// ```
/// use fgraph::{Error, GeneratedError, add_functions};
///
/// // SAFETY: there is no function.
/// let nothing = unsafe { add_functions("jit", &[]) };
/// assert_eq!(nothing.unwrap_err(), Error::Generated(GeneratedError::Empty));
/// ```
pub unsafe fn add_functions(
    module: &str,
    functions: &[GeneratedFunction<'_>],
) -> Result<GeneratedFunctions, Error> {
    // SAFETY: the caller keeps the same contract.
    let module = unsafe { control::lock()?.control.add_functions(module, functions) }?;
    Ok(GeneratedFunctions {
        module: Some(Box::new(module)),
    })
}

/// Functions that were [added](add_functions).
///
/// Dropping it removes them if possible. Inside a callback that is impossible: then they stay
/// permanently, and the caller's promises with them. Use [`remove`](Self::remove) if their memory
/// is to be freed.
#[must_use = "dropping it removes the functions"]
#[derive(Debug)]
pub struct GeneratedFunctions {
    /// The module; `None` after its removal.
    module: Option<Box<LoadedModule>>,
}

impl GeneratedFunctions {
    /// Restores the functions' own bytes and forgets the functions. After success their memory may
    /// be used for anything, and the same addresses may be added again. Data about the functions
    /// that a callback keeps, for example their names, stays valid.
    ///
    /// Returns of calls in progress are still dispatched to users.
    ///
    /// # Errors
    ///
    /// Fails with [`InsideCallback`](Error::InsideCallback), or like [`register`](crate::register)
    /// while patching, and gives the functions back. They may no longer be traced then.
    pub fn remove(mut self) -> Result<(), RemoveError> {
        match self.try_remove() {
            Ok(()) => Ok(()),
            Err(error) => Err(RemoveError {
                functions: self,
                error,
            }),
        }
    }

    fn try_remove(&mut self) -> Result<(), Error> {
        if let Some(module) = &self.module {
            control::lock()?.control.remove_functions(module)?;
            self.module = None;
        }
        Ok(())
    }
}

impl Drop for GeneratedFunctions {
    fn drop(&mut self) {
        // If that fails, they stay.
        let _ = self.try_remove();
    }
}

/// The error of functions that could not be removed. It converts to its [`Error`], which drops
/// them.
#[derive(Debug)]
#[non_exhaustive]
pub struct RemoveError {
    /// The functions, given back.
    pub functions: GeneratedFunctions,
    /// The reason.
    pub error: Error,
}

impl From<RemoveError> for Error {
    fn from(failed: RemoveError) -> Self {
        failed.error
    }
}

impl fmt::Display for RemoveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl core::error::Error for RemoveError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        self.error.source()
    }
}
