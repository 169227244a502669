//! Samples of a program's execution, through the kernel's perf events.
//!
//! The kernel takes one sample of each thread for each 4 ms that it runs, and none of the kernel's
//! code. It may refuse to, as in many containers: then there are none.

use perf_event::data::Record;
use perf_event::events::Software;
use perf_event::{Builder, SampleFlag, Sampler};

/// Nanoseconds of a thread's time between two samples.
const PERIOD: u64 = 4_000_000;
/// The size of each processor's buffer: the samples of about five seconds.
const ROOM: usize = 1 << 15;

/// Takes samples of programs and of their children.
pub(crate) struct Samples(Vec<Sampler>);

impl Samples {
    /// Starts with the programs that the calling thread starts from now on; `None` if the kernel
    /// refuses.
    pub(super) fn of_next() -> Option<Self> {
        // SAFETY: a system call that says how many processors there are.
        let processors = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
        let mut all = Vec::new();
        for processor in 0..usize::try_from(processors).ok()? {
            let mut builder = Builder::new(Software::CPU_CLOCK);
            builder.observe_self().one_cpu(processor).inherit(true);
            builder.exclude_kernel(true).exclude_hv(true);
            // A child is sampled from its `execve` on, so this process never is.
            builder
                .sample_period(PERIOD)
                .enabled(false)
                .enable_on_exec(true);
            builder.sample(SampleFlag::IP | SampleFlag::TID);
            let counter = match builder.build() {
                // The processor is switched off.
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => continue,
                counter => counter.ok()?,
            };
            all.push(counter.sampled(ROOM).ok()?);
        }
        (!all.is_empty()).then_some(Self(all))
    }

    /// Passes the process and the address of each new sample to `found`.
    pub(crate) fn read(&mut self, mut found: impl FnMut(u32, u64)) {
        for sampler in &mut self.0 {
            while let Some(record) = sampler.next_record() {
                if let Ok(Record::Sample(sample)) = record.parse_record()
                    && let (Some(process), Some(address)) = (sample.pid(), sample.ip())
                {
                    found(process, address);
                }
            }
        }
    }
}

impl std::fmt::Debug for Samples {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Samples").field(&self.0.len()).finish()
    }
}
