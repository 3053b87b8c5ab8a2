//! The system's clocks.

pub use system::{boottime, realtime, realtime_coarse};

#[cfg(target_os = "linux")]
mod system {
    use rustix::time::{ClockId, Timespec, clock_gettime};

    const NANOS: u64 = 1_000_000_000;

    /// Returns the nanoseconds since 1970.
    pub fn realtime() -> u64 {
        nanos(clock_gettime(ClockId::Realtime))
    }

    /// Returns the nanoseconds since 1970 at the kernel's last tick: cheap, and what the kernel
    /// stamps files with.
    pub fn realtime_coarse() -> u64 {
        nanos(clock_gettime(ClockId::RealtimeCoarse))
    }

    /// Returns the nanoseconds since the system was started, with those in which it was suspended.
    pub fn boottime() -> u64 {
        nanos(clock_gettime(ClockId::Boottime))
    }

    fn nanos(at: Timespec) -> u64 {
        let seconds = (at.tv_sec.max(0) as u64).saturating_mul(NANOS);
        seconds.saturating_add(at.tv_nsec.max(0) as u64)
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use std::sync::OnceLock;
    use std::time::{Instant, SystemTime};

    /// Returns the nanoseconds since 1970.
    pub fn realtime() -> u64 {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Returns the same as [`realtime`]: a clock of the last tick is Linux's.
    pub fn realtime_coarse() -> u64 {
        realtime()
    }

    /// Returns the nanoseconds since the first call. Whether those count in which the system was
    /// suspended depends on the system.
    pub fn boottime() -> u64 {
        static BEGAN: OnceLock<Instant> = OnceLock::new();
        u64::try_from(BEGAN.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}
