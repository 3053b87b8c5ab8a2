//! What the file system asks of the machine: its name, and the size of its memory.

/// Returns the name of this host, as uname(2) has it.
#[cfg(target_os = "linux")]
pub fn host_name() -> Vec<u8> {
    rustix::system::uname().nodename().to_bytes().to_vec()
}

/// Returns the name of this host, as the environment has it.
#[cfg(not(target_os = "linux"))]
pub fn host_name() -> Vec<u8> {
    let name = ["HOSTNAME", "COMPUTERNAME"].into_iter().find_map(|name| std::env::var(name).ok());
    name.unwrap_or_else(|| "unknown".into()).into_bytes()
}

/// Returns the bytes of memory that the machine has.
#[cfg(target_os = "linux")]
pub fn memory_size() -> u64 {
    let system = rustix::system::sysinfo();
    (system.totalram as u64).saturating_mul(system.mem_unit.into())
}

/// Returns the bytes of memory that a machine has at least.
#[cfg(not(target_os = "linux"))]
pub fn memory_size() -> u64 {
    1 << 30
}
