//! `lanefs lab` of a build without the experiments: says how to get them.

use crate::failure::{Failure, Res};
use crate::output::Out;
use std::ffi::OsString;

/// Run the experiments (not in this build: cargo install lanefs-cli --features lab)
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<OsString>,
}

impl Args {
    pub(crate) fn run(self, _: &mut Out) -> Res {
        drop(self.rest);
        Err(Failure::new(
            "the experiments are not in this build; cargo install lanefs-cli --features lab adds them",
        ))
    }
}
