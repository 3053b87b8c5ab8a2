//! Privileges: no program can give new ones (no_new_privs), and capabilities are dropped.
//!
//! One right is kept: threads come back from SCHED_IDLE, which they take while they serve a program
//! on its own processor. RLIMIT_NICE gives it where the limit can be raised. Elsewhere CAP_SYS_NICE
//! stays.

use rustix::io;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set, set_capabilities,
    set_no_new_privs,
};

/// RLIMIT_NICE of a thread that may take the nice value 0: 20 less the value.
const NICE_0: u64 = 20;

/// Drops all privileges: see the head of the file.
///
/// # Errors
/// The system's.
pub(crate) fn drop_all() -> io::Result<()> {
    set_no_new_privs(true)?;
    let kept = match may_take_nice_0() {
        true => CapabilitySet::empty(),
        false => CapabilitySet::SYS_NICE,
    };
    // While there is CAP_SETPCAP. Without it nothing can be gained from the bounding set either.
    for (_, capability) in CapabilitySet::all().iter_names().filter(|(_, one)| !kept.contains(*one)) {
        let _ = remove_capability_from_bounding_set(capability);
    }
    let had = capabilities(None)?;
    let sets = CapabilitySets {
        effective: had.effective & kept,
        permitted: had.permitted & kept,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, sets)
}

/// Returns whether the limit allows the nice value 0, raised if that can be.
fn may_take_nice_0() -> bool {
    let limit = getrlimit(Resource::Nice);
    let allows = |limit: Option<u64>| limit.is_none_or(|limit| limit >= NICE_0);
    if allows(limit.current) {
        return true;
    }
    let maximum = if allows(limit.maximum) { limit.maximum } else { Some(NICE_0) };
    setrlimit(Resource::Nice, Rlimit { current: Some(NICE_0), maximum }).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::{capability_is_in_bounding_set, no_new_privs};

    /// Whatever else the kernel lacks. All of it belongs to a thread.
    #[test]
    fn nothing_is_left_to_gain() {
        let thread = std::thread::spawn(|| {
            drop_all().unwrap();
            assert!(no_new_privs().unwrap(), "no_new_privs");
            for (name, capability) in CapabilitySet::all().iter_names() {
                let is_kept = capability == CapabilitySet::SYS_NICE;
                let is_bound = capability_is_in_bounding_set(capability).unwrap_or(false);
                assert!(is_kept || !is_bound, "{name} is in the bounding set");
            }
            let sets = capabilities(None).unwrap();
            let left = (sets.effective | sets.permitted) - CapabilitySet::SYS_NICE;
            assert!(left.is_empty() && sets.inheritable.is_empty(), "{sets:?}");
        });
        thread.join().unwrap();
    }
}
