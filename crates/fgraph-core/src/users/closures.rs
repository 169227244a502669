//! Users that are made of closures.

use core::fmt;
use core::marker::PhantomData;

use crate::call::{Entry, Return};
use crate::ops::FgraphOps;

/// Returns a user that calls a closure at each entry and wants no return.
///
/// For a user of a few lines. One with more state, or with other callbacks, is easier to read as a
/// type with [`FgraphOps`].
///
/// ```
/// # use fgraph_core as fgraph;
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// let calls = Arc::new(AtomicU64::new(0));
/// let counted = Arc::clone(&calls);
/// let user = fgraph::on_entry(move |_call| {
///     counted.fetch_add(1, Ordering::Relaxed);
/// });
/// # let _ = user;
/// ```
pub fn on_entry<E>(entry: E) -> OnEntry<E>
where
    E: Fn(&mut Entry<'_, ()>) + Send + Sync + 'static,
{
    OnEntry(entry)
}

/// Returns a user that calls a closure at each entry, and another one at the return of those calls
/// for which the first returns data.
///
/// ```
/// # use fgraph_core as fgraph;
/// let user = fgraph::on_call(
///     |call| call.arg_as::<u32>(0),
///     |call, first: u32| {
///         let _ = (call.result_as::<i32>(), first);
///     },
/// );
/// # let _ = user;
/// ```
pub fn on_call<D, E, R>(entry: E, ret: R) -> OnCall<D, E, R>
where
    D: Copy + Send + 'static,
    E: Fn(&mut Entry<'_, D>) -> Option<D> + Send + Sync + 'static,
    R: Fn(&mut Return<'_, D>, D) + Send + Sync + 'static,
{
    OnCall {
        entry,
        ret,
        data: PhantomData,
    }
}

/// The user that [`on_entry`] returns.
#[derive(Clone, Copy)]
pub struct OnEntry<E>(E);

impl<E> FgraphOps for OnEntry<E>
where
    E: Fn(&mut Entry<'_, ()>) + Send + Sync + 'static,
{
    type Data = ();

    #[inline]
    fn entry(&self, call: &mut Entry<'_, ()>) -> Option<()> {
        (self.0)(call);
        None
    }
}

impl<E> fmt::Debug for OnEntry<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnEntry").finish_non_exhaustive()
    }
}

/// The user that [`on_call`] returns.
#[derive(Clone, Copy)]
pub struct OnCall<D, E, R> {
    entry: E,
    ret: R,
    /// No value is kept here, so a user may be shared whatever its data.
    data: PhantomData<fn(D)>,
}

impl<D, E, R> FgraphOps for OnCall<D, E, R>
where
    D: Copy + Send + 'static,
    E: Fn(&mut Entry<'_, D>) -> Option<D> + Send + Sync + 'static,
    R: Fn(&mut Return<'_, D>, D) + Send + Sync + 'static,
{
    type Data = D;

    #[inline]
    fn entry(&self, call: &mut Entry<'_, D>) -> Option<D> {
        (self.entry)(call)
    }

    #[inline]
    fn ret(&self, call: &mut Return<'_, D>, data: D) {
        (self.ret)(call, data);
    }
}

impl<D, E, R> fmt::Debug for OnCall<D, E, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnCall").finish_non_exhaustive()
    }
}
