//! The lanefs command.
fn main() {}
