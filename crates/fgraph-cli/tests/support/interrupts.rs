//! Lets interrupts end what a test starts.

/// A shell has what it starts in the background ignore them, and that is handed down.
#[used]
#[unsafe(link_section = ".init_array")]
static HEED: extern "C" fn() = heed;

extern "C" fn heed() {
    // SAFETY: the action of every process at its start.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
}
