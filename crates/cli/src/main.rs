//! The `lanefs` command: arguments in, messages and exit codes out. No file-system logic.

#![forbid(unsafe_code)]

fn main() {}
