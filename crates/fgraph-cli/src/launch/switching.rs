//! Switches functions off and on in the recorded processes, so that recording stays within its
//! budget.
//!
//! A separate thread sends requests to the agents: a program with full rings waits for this process
//! to empty them, and could not reply meanwhile.

use std::collections::HashMap;
use std::fs;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fgraph_protocol::Request;
use fgraph_symbols::filter::Filter;
use fgraph_symbols::mapping::Mapping;
use fgraph_trace::names::{Names, process_id};
use fgraph_trace::recording::CallSum;
use fgraph_trace::ring::Rings;
use fgraph_tracers::recorder::Switches;
use fgraph_tracers::recorder::budget::{self, Budget, Progress, Share};

use super::attach;
use super::process::has_ended;
use crate::error::Error;

/// The shortest time between two looks at what agents switched off.
const STEP: Duration = Duration::from_millis(20);
/// Functions that are switched by one request, which has no more than 64 KiB.
const AT_ONCE: usize = 1000;

/// The rule by which functions are switched off.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Limit {
    /// No function is.
    #[default]
    None,
    /// The agents stop recording functions that are called too often; these are switched off.
    Rate,
    /// The cost of recording is limited to this share.
    Budget(Share),
}

/// A request to a process.
type Order = (u32, Switches);
/// The outcome of a request.
type Outcome = (u32, Result<(), Error>);

/// Switches functions of the recorded processes. Dropping it ends that, after the current request.
#[derive(Debug)]
pub(crate) struct Switching {
    /// `None` where agents decide by the rate of calls.
    budget: Option<Budget>,
    looked: Instant,
    /// Off times that were looked at.
    known_off_times: usize,
    has_failed: bool,
    orders: Option<Sender<Order>>,
    outcomes: Receiver<Outcome>,
    thread: Option<JoinHandle<()>>,
}

impl Switching {
    /// Starts, for processes that map the rings, which are in the file with this inode number;
    /// `None` if nothing is to be switched. A budget does not switch off functions of `kept`.
    pub(super) fn start(
        limit: Limit,
        kept: Filter,
        rings: &Arc<Rings>,
        inode: u64,
    ) -> Option<Self> {
        let budget = match limit {
            Limit::None => return None,
            Limit::Rate => None,
            Limit::Budget(share) => Some(Budget::new(share, Arc::clone(rings)).keeping(kept)),
        };
        let (orders, to_do) = mpsc::channel::<Order>();
        let (done, outcomes) = mpsc::channel();
        let work = move || {
            for (process, switches) in to_do {
                let outcome = carry_out(process_id(process), inode, switches);
                if done.send((process, outcome)).is_err() {
                    break;
                }
            }
        };
        let thread = thread::Builder::new().name("fgraph-switch".to_owned());
        Some(Self {
            budget,
            looked: Instant::now(),
            known_off_times: 0,
            has_failed: false,
            orders: Some(orders),
            outcomes,
            thread: thread.spawn(work).ok(),
        })
    }

    /// Processes the calls recorded since the last time, and requests switches. Call it often; most
    /// calls only check the time.
    pub(crate) fn look<'p, I>(&mut self, progress: impl FnOnce() -> Progress<'p, I>)
    where
        I: Iterator<Item = (u32, u32, CallSum)>,
    {
        while let Ok((process, outcome)) = self.outcomes.try_recv() {
            self.settle(process, outcome);
        }
        if let Some(budget) = &mut self.budget {
            for order in budget.look(progress) {
                self.order(order);
            }
        } else if self.looked.elapsed() >= STEP {
            self.looked = Instant::now();
            self.follow_agents(progress().names);
        }
    }

    /// Processes the outcome of an order.
    fn settle(&mut self, number: u32, outcome: Result<(), Error>) {
        let budget = self.budget.as_mut();
        let was_asked = budget.is_some_and(|budget| budget.settle(number, outcome.is_ok()));
        // A process that has ended costs nothing.
        let is_over = has_ended(process_id(number));
        if let (Err(error), false, true) = (outcome, is_over || self.has_failed, was_asked) {
            self.has_failed = true;
            let why = error.message().unwrap_or_default();
            say!("fgraph: the budget may not be kept: {why}");
        }
    }

    /// Switches off the functions that agents no longer record.
    fn follow_agents(&mut self, names: &Names) {
        let new = names.off_times().get(self.known_off_times..).unwrap_or(&[]);
        self.known_off_times += new.len();
        let mut off: HashMap<u32, Vec<u32>> = HashMap::new();
        for time in new {
            off.entry(time.process).or_default().push(time.function);
        }
        for (process, off) in off {
            let off = budget::places(names, process, &off);
            let on = Vec::new();
            // One that cannot be asked goes on as it is.
            self.order((process, Switches { off, on }));
        }
    }

    /// Orders a process to switch functions.
    fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            // Without the thread nothing is switched.
            let _ = orders.send(order);
        }
    }
}

impl Drop for Switching {
    fn drop(&mut self) {
        self.orders = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Makes the agent in a process switch functions.
fn carry_out(process: u32, inode: u64, switches: Switches) -> Result<(), Error> {
    // Its id may come from another namespace, and mean another process here.
    if !maps(process, inode) {
        let why = "its number is not known here".to_owned();
        return Err(Error::Process { process, why });
    }
    let off = switches.off.chunks(AT_ONCE).map(|off| Switches {
        off: off.to_vec(),
        on: Vec::new(),
    });
    let on = switches.on.chunks(AT_ONCE).map(|on| Switches {
        off: Vec::new(),
        on: on.to_vec(),
    });
    let mut all: Vec<Switches> = off.chain(on).collect();
    if switches.off.len() + switches.on.len() <= AT_ONCE {
        all = vec![switches];
    }
    for switches in all {
        attach::have(process, |_| Ok(Request::Switch(switches)))?;
    }
    Ok(())
}

/// Returns true if a process has mapped the file with this inode number.
pub(super) fn maps(process: u32, inode: u64) -> bool {
    let maps = fs::read(format!("/proc/{process}/maps")).unwrap_or_default();
    Mapping::all(&maps).any(|it| it.inode == inode && it.path.starts_with(b"/memfd:"))
}
