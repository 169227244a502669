//! Functions that the program has generated: they come and go as libraries do, but it is told.

use super::Control;
use crate::process::generated::{self, GeneratedFunction};
use crate::process::modules::LoadedModule;
use crate::report::error::Error;

impl Control {
    /// Makes a module of functions, and applies the filters to it.
    ///
    /// # Safety
    ///
    /// As for [`add_functions`](crate::add_functions).
    pub(crate) unsafe fn add_functions(
        &mut self,
        module: &str,
        functions: &[GeneratedFunction<'_>],
    ) -> Result<LoadedModule, Error> {
        // SAFETY: handed on.
        let module = unsafe { generated::add(module, functions) }?;
        // No filter is new, so no error can be that of one.
        let changed = self.refresh(None)?;
        if let Err(error) = self.patch_joined(changed) {
            // Nothing of it is patched, or fgraph has stopped.
            self.sites.clear_module(&module);
            self.forget(&module)?;
            return Err(error);
        }
        Ok(module)
    }

    /// Gives the functions of a module their own bytes back, and forgets it.
    pub(crate) fn remove_functions(&mut self, module: &LoadedModule) -> Result<(), Error> {
        let changed = self.sites.clear_module(module);
        self.patch(changed)?;
        self.forget(module)
    }

    /// Forgets a module, none of whose functions is patched.
    fn forget(&mut self, module: &LoadedModule) -> Result<(), Error> {
        generated::remove(module);
        let changed = self.refresh(None)?;
        // What cannot be patched now is looked at again the next time.
        let _ = self.patch_joined(changed);
        Ok(())
    }
}
