//! Samples of where a program runs, by the kernel's perf events.
//!
//! The kernel takes one of each thread for each 4 ms that it runs, and none of its own code. It may
//! refuse to, as in many containers: then there are none.

use perf_event::data::Record;
use perf_event::events::Software;
use perf_event::{Builder, SampleFlag, Sampler};

/// Nanoseconds of a thread's time between two samples.
const PERIOD: u64 = 4_000_000;
/// Bytes for the samples of each processor: those of about five seconds.
const ROOM: usize = 1 << 15;

/// Takes samples of programs and of what they start.
pub(crate) struct Samples(Vec<Sampler>);

impl Samples {
    /// Begins with the programs that the calling thread starts from now on; `None` if the kernel
    /// refuses.
    pub(super) fn of_next() -> Option<Self> {
        // SAFETY: a system call that says how many processors there are.
        let processors = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
        let mut all = Vec::new();
        for processor in 0..usize::try_from(processors).ok()? {
            let mut builder = Builder::new(Software::CPU_CLOCK);
            builder.observe_self().one_cpu(processor).inherit(true);
            builder.exclude_kernel(true).exclude_hv(true);
            // A child begins when it executes a program, so this process never does.
            builder
                .sample_period(PERIOD)
                .enabled(false)
                .enable_on_exec(true);
            builder.sample(SampleFlag::IP | SampleFlag::TID);
            let counter = match builder.build() {
                // It is switched off.
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => continue,
                counter => counter.ok()?,
            };
            all.push(counter.sampled(ROOM).ok()?);
        }
        (!all.is_empty()).then_some(Self(all))
    }

    /// Hands over the process and the address of each new sample.
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
