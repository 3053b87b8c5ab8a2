//! What benchmarks share of their command lines: the choice of cases, how much of them is run, and
//! how they end.

use lanefs_lab::Outcome;
use std::process::ExitCode;

/// A part of a benchmark that can be run alone, and its name.
pub type Case<B> = (&'static str, fn(&mut B) -> Outcome<()>);

/// The number and length of runs.
#[derive(Debug, clap::Args)]
pub struct Effort {
    /// A short form, once
    #[arg(long)]
    pub quick: bool,
    /// How often each is run
    #[arg(long)]
    runs: Option<usize>,
}

impl Effort {
    /// How often each is run, `usual` unless told otherwise.
    pub fn runs(&self, usual: usize) -> usize {
        self.runs.unwrap_or(if self.quick { 1 } else { usual })
    }
}

/// The cases that are `named`, in that order; all where none is.
///
/// # Errors
/// A name that no case has; the message lists the names of all cases.
pub fn choose<B>(cases: &[Case<B>], named: &[String]) -> Outcome<Vec<Case<B>>> {
    if named.is_empty() {
        return Ok(cases.to_vec());
    }
    let find = |name: &String| {
        cases.iter().find(|(case, _)| case == name).copied().ok_or_else(|| {
            let names: Vec<&str> = cases.iter().map(|(name, _)| *name).collect();
            format!("no case {name}; there are {}", names.join(", ")).into()
        })
    };
    named.iter().map(find).collect()
}

/// Runs the cases.
///
/// # Errors
/// The first failure, with the name of its case.
pub fn run<B>(bench: &mut B, cases: &[Case<B>]) -> Outcome<()> {
    cases.iter().try_for_each(|(name, case)| case(bench).map_err(|e| format!("{name}: {e}").into()))
}

/// How a benchmark's process ends: a failure is one line on standard error.
pub fn end(bench: &str, ended: Outcome<()>) -> ExitCode {
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{bench}: {e}");
            ExitCode::FAILURE
        }
    }
}
