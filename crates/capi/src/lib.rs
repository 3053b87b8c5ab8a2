//! lanefs for C: what `lanefs.h` declares.
//!
//! The calls are those of POSIX on a handle of a volume. Each one is the same three steps: the
//! arguments become Rust's (`args`), the engine is called, the answer goes back (`answer`).
//! Invariants:
//!
//! - Nothing unwinds across the border, and no call panics: `answer::call` stands around every one.
//! - A handle is a number that looks like a pointer (`table`); it is never followed, so one that
//!   was closed, or never was, is EBADF. Memory that C lends (paths, buffers, structures) is used
//!   as the header says, or it is undefined, as everywhere in C; a null pointer is EFAULT.
//! - Every comment of a public item here is a comment in the header: it addresses C programmers.
//!
//! `lanefs.h` is generated from this crate and checked in; `tests/header.rs` says when it is not up
//! to date.
#![allow(unsafe_code, reason = "memory that C lends comes as pointers")]
#![allow(clippy::missing_safety_doc, reason = "the header says once for all calls what a pointer must be")]
#![allow(non_camel_case_types, reason = "names in the header are C's")]

mod answer;
mod args;
mod at;
mod attr;
mod batch;
mod dir;
mod file;
mod mkfs;
mod names;
mod open;
mod table;
mod volume;
mod xattr;

pub use answer::*;
pub use at::*;
pub use attr::*;
pub use batch::*;
pub use dir::*;
pub use file::*;
pub use mkfs::*;
pub use names::*;
pub use open::*;
pub use volume::*;
pub use xattr::*;
