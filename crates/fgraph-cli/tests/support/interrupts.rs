//! Lets interrupts end the processes of a test.

/// A shell starts its background processes with SIGINT ignored, and their children inherit that.
#[used]
#[unsafe(link_section = ".init_array")]
static HEED: extern "C" fn() = heed;

extern "C" fn heed() {
    // SAFETY: the action of every process at its start.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
}
