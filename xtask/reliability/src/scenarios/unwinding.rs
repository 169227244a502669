//! Calls that end by being unwound.

use crate::build::CXX;
use crate::scenario::Expect::Exactly;
use crate::scenario::{Group, Hostile, Scenario, Shown};

const EXCEPTIONS: Hostile = Hostile {
    source: "exceptions.cpp",
    compilers: CXX,
    ..Hostile::DEFAULT
};

pub(super) const GROUP: Group = Group {
    name: "unwinding",
    about: "panics, C++ exceptions, ends of threads, backtraces",
    scenarios: &[Scenario {
        name: "a C++ exception is caught twenty frames up",
        promise: "Every frame that the exception leaves is told as unwound, once.",
        shown: Shown::By(Hostile {
            args: &["caught", "20"],
            unwound: Exactly(21),
            ..EXCEPTIONS
        }),
    }],
};
