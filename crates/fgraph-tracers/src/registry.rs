//! Tracers by name, as many at once as there are slots, one of each name.
//!
//! ```
//! use fgraph_tracers::profiler::Profiler;
//! use fgraph_tracers::registry::{Registry, RegistryError};
//!
//! let mut tracers = Registry::new();
//! tracers.register("profile", || Profiler::start("getppid"))?;
//! let twice = tracers.register("profile", || Profiler::start("getppid"));
//! assert_eq!(twice.unwrap_err().to_string(), "the tracer profile is registered already");
//! tracers.unregister("profile")?;
//! let twice = tracers.unregister("profile");
//! assert_eq!(twice.unwrap_err().to_string(), "no tracer profile is registered");
//! # Ok::<(), RegistryError>(())
//! ```

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use fgraph::Error;

use crate::Tracer;

/// Running tracers, by their names.
///
/// Functions are patched when the first tracer that watches them is registered. After the last one
/// is gone, their code is as the compiler made it.
#[derive(Default)]
pub struct Registry {
    /// In the order of their registration.
    tracers: Vec<(String, Arc<dyn NamedTracer>)>,
    default: Option<String>,
}

/// Tracer of any type.
trait NamedTracer: Tracer + Any {}

impl<T: Tracer + Any> NamedTracer for T {}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}

impl Registry {
    /// Creates an empty registry.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts a tracer under a name. It becomes the [default](Self::default_name).
    ///
    /// # Errors
    ///
    /// [`Registered`](RegistryError::Registered) if a tracer has this name: then `start` is not
    /// called. [`Name`](RegistryError::Name) for a name that is empty or has white space.
    /// [`Start`](RegistryError::Start) if the tracer cannot be started.
    pub fn register<T: Tracer + Any>(
        &mut self,
        name: &str,
        start: impl FnOnce() -> Result<T, Error>,
    ) -> Result<&T, RegistryError> {
        if name.is_empty() || name.contains(char::is_whitespace) {
            return Err(RegistryError::Name(name.to_owned()));
        }
        if self.place(name).is_some() {
            return Err(RegistryError::Registered(name.to_owned()));
        }
        let tracer = start().map_err(|source| RegistryError::Start {
            name: name.to_owned(),
            source,
        })?;
        self.put(name, tracer);
        let missing = || RegistryError::NotRegistered(name.to_owned());
        self.get_as(name).ok_or_else(missing)
    }

    /// Puts a started tracer in the place of the tracer of this name, which ends. If there is none,
    /// the started one comes last, and becomes the default.
    pub(crate) fn put<T: Tracer + Any>(&mut self, name: &str, tracer: T) {
        let tracer = Arc::new(tracer);
        match self.place(name) {
            Some(place) => self.tracers[place].1 = tracer,
            None => {
                self.tracers.push((name.to_owned(), tracer));
                self.default = Some(name.to_owned());
            }
        }
    }

    /// Removes the tracer of this name and returns it, to be downcast: it holds its results. If it
    /// was the default, the newest of the others becomes the default.
    ///
    /// The tracer itself ends when the returned value is dropped, and all that
    /// [`share`](Self::share) has returned.
    ///
    /// # Errors
    ///
    /// [`NotRegistered`](RegistryError::NotRegistered).
    pub fn unregister(&mut self, name: &str) -> Result<Arc<dyn Any + Send + Sync>, RegistryError> {
        let place = self.place(name);
        let place = place.ok_or_else(|| RegistryError::NotRegistered(name.to_owned()))?;
        let (_, tracer) = self.tracers.remove(place);
        if self.default.as_deref() == Some(name) {
            self.default = self.tracers.last().map(|(name, _)| name.clone());
        }
        Ok(tracer)
    }

    fn place(&self, name: &str) -> Option<usize> {
        self.tracers.iter().position(|(known, _)| known == name)
    }

    /// Lists the names, in the order of registration.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tracers.iter().map(|(name, _)| &**name)
    }

    /// Returns the tracer of a name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&dyn Tracer> {
        let (_, tracer) = self.tracers.get(self.place(name)?)?;
        Some(&**tracer)
    }

    /// Returns the tracer of a name, if it is a `T`.
    #[must_use]
    pub fn get_as<T: Tracer + Any>(&self, name: &str) -> Option<&T> {
        let (_, tracer) = self.tracers.get(self.place(name)?)?;
        let tracer: &dyn Any = &**tracer;
        tracer.downcast_ref()
    }

    /// Returns the tracer of a name, if it is a `T`, shared with this registry: it goes on after it
    /// was [unregistered](Self::unregister), until it is dropped.
    #[must_use]
    pub fn share<T: Tracer + Any>(&self, name: &str) -> Option<Arc<T>> {
        let (_, tracer) = self.tracers.get(self.place(name)?)?;
        let tracer: Arc<dyn Any + Send + Sync> = tracer.clone();
        tracer.downcast().ok()
    }

    /// Returns the name of the default tracer: the newest, until it is [set](Self::set_default).
    /// `None` without tracers.
    #[must_use]
    pub fn default_name(&self) -> Option<&str> {
        self.default.as_deref()
    }

    /// Makes a tracer the default.
    ///
    /// # Errors
    ///
    /// [`NotRegistered`](RegistryError::NotRegistered).
    pub fn set_default(&mut self, name: &str) -> Result<(), RegistryError> {
        if self.place(name).is_none() {
            return Err(RegistryError::NotRegistered(name.to_owned()));
        }
        self.default = Some(name.to_owned());
        Ok(())
    }
}

/// Reason why a tracer was not registered, or not found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// A tracer of this name is registered.
    #[error("the tracer {0} is registered already")]
    Registered(String),
    /// No tracer of this name is registered.
    #[error("no tracer {0} is registered")]
    NotRegistered(String),
    /// A tracer cannot have this name: it is empty or has white space.
    #[error("{0:?} is no name for a tracer")]
    Name(String),
    /// The tracer could not be started.
    #[error("the tracer {name} cannot start")]
    Start {
        /// Name of the tracer.
        name: String,
        /// Error that its start returned.
        source: Error,
    },
}
