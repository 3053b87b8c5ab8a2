//! `--stats`: what the volume counted and timed, on standard error when the work is done.

use crate::failure::{Failure, Res};
use crate::streams::to_stderr;
use lanefs::Volume;

/// The argument that shows where the time went.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct StatsArg {
    /// When done, print where the time went to standard error: a table, or --stats=json
    #[arg(long, value_name = "FORM", num_args = 0..=1, require_equals = true, default_missing_value = "table")]
    stats: Option<Form>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Form {
    Table,
    Json,
}

impl StatsArg {
    /// Prints the statistics if they are wanted. Makes all changes durable first, so that they
    /// count the commit too.
    pub(crate) fn print(&self, volume: &Volume, name: &[u8]) -> Res {
        let Some(form) = self.stats else { return Ok(()) };
        volume.sync().map_err(|e| Failure::cannot("sync", name, e))?;
        match form {
            Form::Table => to_stderr(&volume.stats().to_string()),
            Form::Json => to_stderr(&format!("{}\n", volume.stats().to_json())),
        }
        Ok(())
    }
}
