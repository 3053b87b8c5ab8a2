//! The name by which programs ask for the shared library at run time.
//!
//! Its number is that of the interface: it grows when a program that was built before would not run
//! any more.
#![forbid(unsafe_code)]

/// See `scripts/install-lib.sh`, which makes the links of that name.
const SONAME: &str = "liblanefs.so.0";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,{SONAME}");
    // The library has threads of its own while a volume is open: dlclose must not take their code
    // away.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
