//! Functions that the program has generated itself.

use core::fmt;

use crate::control;
use crate::process::generated::GeneratedFunction;
use crate::process::modules::LoadedModule;
use crate::report::error::Error;

/// Adds functions that the program has generated, by a JIT compiler for example, to those that can
/// be traced, until the result is [removed](GeneratedFunctions::remove).
///
/// They are the functions of a module that goes by the name `module`, which filters and reports
/// know it by as they know a library by its path. All filters that are in force are applied to it
/// at once. Their names are demangled, and some are left alone, as those in a symbol table are. It
/// takes two system calls and a look at what is mapped, besides the patching; call it with many
/// functions at once, from one stretch of memory. What is made for them stays when they are
/// removed: a few hundred bytes for each function, and for each call at least two pages.
///
/// Functions whose memory can be written to are refused, and so are others for the reasons that
/// [`sites`](crate::sites()) tells. Memory that is shared (`MAP_SHARED`) may not be written to by
/// fgraph: then this fails with [`Text`](Error::Text).
///
/// Unwinders go through traced functions if there is unwind information for the functions
/// themselves (`__register_frame`): what fgraph puts between two functions has its own.
///
/// # Safety
///
/// Until [`remove`](GeneratedFunctions::remove) has succeeded:
///
/// - There is a function at each address that has at least `size` bytes, follows the System V ABI
///   where it is called, and is entered at its first instruction only. No code but its own jumps
///   behind that. Functions do not overlap.
/// - From the first function to the last the memory stays mapped, readable and executable, and the
///   program does not write to it, neither there nor through another mapping.
/// - No code depends on the bytes of the functions' first instructions: they are changed while
///   functions are traced.
///
/// When it is removed, and until that has returned, no thread calls any of them.
///
/// # Errors
///
/// [`Generated`](Error::Generated), and as for [`register`](crate::register) for the patching.
/// Nothing is added then.
///
/// # Example
///
/// `examples/jit.rs` traces what it has compiled.
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
    // SAFETY: handed on.
    let module = unsafe { control::lock()?.control.add_functions(module, functions) }?;
    Ok(GeneratedFunctions {
        module: Some(Box::new(module)),
    })
}

/// Functions that were [added](add_functions).
///
/// Dropping it removes them where that is possible; inside a callback it is not, and then they stay
/// for good, with all that was promised. Use [`remove`](Self::remove) where their memory is to be
/// freed.
#[must_use = "dropping it removes the functions"]
#[derive(Debug)]
pub struct GeneratedFunctions {
    /// `None` when they have been removed.
    module: Option<Box<LoadedModule>>,
}

impl GeneratedFunctions {
    /// Gives the functions their own bytes back and forgets them. When this has succeeded their
    /// memory may be used for anything, the same addresses be added again, and what a callback
    /// keeps of the functions (their names, for one) stays right.
    ///
    /// Users are still told of returns of calls that are going on.
    ///
    /// # Errors
    ///
    /// The functions come back with [`InsideCallback`](Error::InsideCallback), and as for
    /// [`register`](crate::register) for the patching. They may not be traced any more then.
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
        // They stay then.
        let _ = self.try_remove();
    }
}

/// Functions that could not be removed. It converts into its [`Error`], which drops them.
#[derive(Debug)]
#[non_exhaustive]
pub struct RemoveError {
    /// The functions, given back.
    pub functions: GeneratedFunctions,
    /// Why not.
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
