//! Modules of functions that the program has generated: they are added and removed explicitly.

use super::Control;
use crate::process::generated::{self, GeneratedFunction};
use crate::process::generated_modules;
use crate::process::modules::LoadedModule;
use crate::report::error::Error;

impl Control {
    /// Makes a module of functions, and applies the filters to it.
    ///
    /// # Safety
    ///
    /// The contract of [`add_functions`](crate::add_functions) holds.
    pub(crate) unsafe fn add_functions(
        &mut self,
        module: &str,
        functions: &[GeneratedFunction<'_>],
    ) -> Result<LoadedModule, Error> {
        // SAFETY: the caller keeps the same contract.
        let module = unsafe { generated::add(module, functions) }?;
        // No filter is new, so the error cannot come from one.
        let changed = self.refresh(None)?;
        if let Err(error) = self.patch_joined(changed) {
            // None of it is patched, or fgraph has stopped.
            self.sites.clear_module(&module);
            self.forget(&module)?;
            return Err(error);
        }
        Ok(module)
    }

    /// Restores the functions of a module, and forgets it.
    pub(crate) fn remove_functions(&mut self, module: &LoadedModule) -> Result<(), Error> {
        let changed = self.sites.clear_module(module);
        self.patch(changed)?;
        self.forget(module)
    }

    /// Forgets a module whose functions are all unpatched.
    fn forget(&mut self, module: &LoadedModule) -> Result<(), Error> {
        generated_modules::remove(module);
        let changed = self.refresh(None)?;
        // A site that cannot be patched now is processed again the next time.
        let _ = self.patch_joined(changed);
        Ok(())
    }
}
