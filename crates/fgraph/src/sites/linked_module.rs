//! A module as the linker has loaded it, with its file.

use core::ops::Range;
use std::io;

use fgraph_symbols::elf::{ElfError, ElfFile};
use fgraph_symbols::functions::Functions;
use fgraph_symbols::notrace::{self, Notrace};

use super::facts::{FileFacts, ModuleFacts, parse};
use super::saving::Saving;
use crate::process::ifunc;
use crate::process::listed_entries::{ListedEntry, listed_entries};
use crate::process::loader_event;
use crate::process::modules::{self, LoadedModule};
use crate::unwinding::{arenas, cancellation, shared_stack, stack_pointer};

/// A module as the linker has loaded it.
#[derive(Debug)]
pub(super) struct LinkedModule {
    pub(super) loaded: LoadedModule,
    pub(super) path: String,
    /// The rule for all of its functions that does not come from its file.
    pub(super) notrace: Option<Notrace>,
    /// The entries that compilers have listed. Empty until they can be read, when the module is
    /// relocated.
    pub(super) listed: Vec<ListedEntry>,
    /// Its file, once it has been read.
    image: Option<&'static [u8]>,
    /// True once its GOT entries have been redirected, as far as possible.
    is_redirected: bool,
    /// True if it may cancel threads without a call of ours.
    pub(super) may_cancel: bool,
}

impl LinkedModule {
    pub(super) fn new(loaded: LoadedModule, notrace: Option<Notrace>, may_cancel: bool) -> Self {
        Self {
            path: loaded.path().to_string_lossy().into_owned(),
            loaded,
            notrace,
            listed: Vec::new(),
            image: None,
            is_redirected: false,
            may_cancel,
        }
    }

    /// Handles that it is loaded again, at its address.
    pub(super) fn come_back(&mut self, loaded: LoadedModule, may_cancel: bool) {
        self.loaded = loaded;
        self.is_redirected = false;
        self.may_cancel = may_cancel;
    }

    /// The module's file, which is read once.
    fn image(&mut self) -> io::Result<&'static [u8]> {
        if self.image.is_none() {
            self.image = Some(self.loaded.map()?);
        }
        Ok(self.image.unwrap_or_default())
    }

    /// Reads the facts about the module from its file.
    ///
    /// # Errors
    ///
    /// Fails with the reason that it cannot be read.
    pub(super) fn read(&mut self) -> Result<&'static ModuleFacts, String> {
        let image = self.image();
        let check = |file: &ElfFile<'_>| modules::check(&self.loaded, file);
        let text = |error: ElfError| error.to_string();
        let (file, debug) = parse(image, self.loaded.path(), check)?;
        // Functions that the program has generated are in no file.
        let is_file = !self.loaded.is_generated();
        let start = || Saving::start(&self.path, &file, debug.as_ref(), self.notrace);
        let saving = is_file.then(start).flatten();
        let (mut saving, saved) = saving.unzip();
        let mut functions = match saved.flatten() {
            Some(functions) => functions,
            None => {
                let functions = Functions::read(&file, debug.as_ref()).map_err(text)?;
                saving
                    .iter_mut()
                    .for_each(|it| it.add_functions(&functions));
                functions
            }
        };
        // The resolvers of a library cannot run before it is relocated.
        if !loader_event::is_loading() {
            let targets = ifunc::targets(&self.loaded, &file, &functions).map_err(text)?;
            saving.iter_mut().for_each(|it| it.add_names(&targets));
            functions.add_names(targets);
        }
        let path = self.path.clone().leak();
        let facts = FileFacts::new(path, file, functions, self.notrace, saving);
        let facts: &FileFacts = Box::leak(Box::new(facts));
        Ok(facts.at(self.loaded.load_bias()))
    }

    /// Reads the entries that compilers have listed. This may wait for libraries to be loaded.
    pub(super) fn read_lists(&mut self, known: &ModuleFacts) {
        if self.listed.is_empty() && !loader_event::is_loading() {
            let listed = listed_entries(&self.loaded, &known.file);
            self.listed = listed.unwrap_or_default();
        }
    }

    /// Redirects its GOT entries for stack pointers of frames, for cancelling threads, for making
    /// processes and for finding descriptions of code, once it is relocated. This may wait for
    /// libraries to be loaded.
    pub(super) fn redirect_calls(&mut self) {
        if self.is_redirected || loader_event::is_loading() {
            return;
        }
        self.is_redirected = true;
        let loaded = self.loaded.clone();
        stack_pointer::redirect(&loaded, || self.image().ok());
        shared_stack::redirect(&loaded, || self.image().ok());
        arenas::redirect(&loaded, || self.image().ok());
        self.may_cancel = self.may_cancel && !cancellation::announce(&loaded, || self.image().ok());
    }

    /// Returns the function that the linker calls when libraries are loaded or unloaded, if it is
    /// in this module.
    pub(super) fn event(&self) -> Option<usize> {
        loader_event::event().filter(|&event| self.loaded.is_text(event))
    }

    /// Returns true if it is loaded. Call it with the linker's lock held.
    pub(super) fn is_present(&self) -> bool {
        modules::is_present(&self.loaded)
    }

    /// Returns the code whose callees are traced with their returns: by address, without code whose
    /// frames a runtime walks. Functions that the program has generated are not known to be such
    /// code.
    pub(super) fn ordinary_code(&self, walked: &[Range<usize>]) -> Vec<Range<usize>> {
        let mut ordinary = Vec::new();
        let is_other = self.loaded.is_generated() || self.notrace == Some(notrace::MONO);
        for text in self.loaded.text().filter(|_| !is_other) {
            let mut start = text.start;
            for walked in walked.iter().filter(|walked| text.contains(&walked.start)) {
                ordinary.push(start..walked.start);
                start = walked.end;
            }
            ordinary.push(start..text.end);
        }
        ordinary.retain(|range| !range.is_empty());
        ordinary
    }
}
