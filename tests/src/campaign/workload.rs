//! A workload: steps, one after the other, and where they run.

use super::setting::{Setting, setting};
use super::step::Step;
use std::fmt;
use std::str::FromStr;

/// A sequence of steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload(pub Vec<Step>);

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps: Vec<String> = self.0.iter().map(Step::to_string).collect();
        f.write_str(&steps.join("; "))
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let steps = text.split(';').map(str::trim).filter(|step| !step.is_empty());
        steps.map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}

/// A workload in a setting: `SETTING: STEP; STEP; ...`.
#[derive(Debug, Clone)]
pub struct Case {
    /// Where it runs.
    pub setting: &'static Setting,
    /// The steps of the case.
    pub workload: Workload,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.setting.name, self.workload)
    }
}

impl FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, steps) = text.split_once(':').ok_or_else(|| format!("'{text}' names no setting"))?;
        Ok(Self { setting: setting(name.trim())?, workload: steps.parse()? })
    }
}
