//! Two opinions of a volume: that of `lanefs check` and that of e2fsck, and why they may differ.

use crate::tools::e2fsck_within;
use lanefs_check::{CheckError, Options, Report, Rule, Structure, check};
use lanefs_device::MemDevice;
use lanefs_format::extent::ExtentError;
use lanefs_format::htree::HtreeError;
use lanefs_format::xattr::XattrFormatError;
use lanefs_format::{FormatError, InodeFlags};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The most time of a processor that e2fsck may take for a small volume, of which it takes a tenth
/// of a second; a damaged one can make it run for ever, and then there is no second opinion.
const MOST: Duration = Duration::from_secs(5);

/// The verdicts of both on one volume.
#[derive(Debug)]
pub struct Opinions {
    /// Of lanefs.
    pub ours: Result<Report, CheckError>,
    /// The exit code of `e2fsck -fn`.
    pub code: i32,
    /// All that e2fsck said.
    pub said: String,
}

/// A difference that is meant, by the name that docs/check.md has it under.
#[derive(Debug, Clone, Copy)]
pub struct Difference {
    /// The name.
    pub name: &'static str,
    /// Whether it is the one between two opinions.
    applies: fn(&Opinions) -> bool,
}

/// All differences that are meant.
pub const DIFFERENCES: &[Difference] = &[
    // lanefs has findings, e2fsck ends with 0.
    Difference {
        name: "descriptor-checksum",
        applies: |o| o.said.contains("descriptor checksums are invalid"),
    },
    Difference {
        name: "descriptor-fields",
        applies: |o| {
            ["invalid unused inodes count", "marked uninitialized without feature"]
                .iter()
                .any(|text| o.said.contains(text))
        },
    },
    Difference {
        name: "superblock-totals",
        applies: |o| {
            o.all(|_, rule| {
                matches!(
                    rule,
                    Rule::FreeBlocksTotal { .. }
                        | Rule::FreeInodesTotal { .. }
                        | Rule::Format(
                            FormatError::FreeBlocksCount { .. } | FormatError::FreeInodesCount { .. }
                        )
                )
            })
        },
    },
    Difference { name: "log", applies: |o| o.all(|structure, _| structure == Structure::Journal) },
    Difference {
        name: "copies",
        applies: |o| o.all(|structure, _| matches!(structure, Structure::Backup { .. })),
    },
    Difference {
        name: "duplicate-names",
        applies: |o| o.all(|_, rule| matches!(rule, Rule::DuplicateName { .. })),
    },
    Difference {
        name: "tree-depth",
        applies: |o| {
            o.any(|_, rule| {
                matches!(rule, Rule::Extent(ExtentError::Depth { .. } | ExtentError::DepthStep { .. }))
            })
        },
    },
    Difference {
        name: "xattr-hash",
        applies: |o| {
            o.all(|_, rule| matches!(rule, Rule::XattrNoHash | Rule::Xattr(XattrFormatError::Hash { .. })))
        },
    },
    Difference {
        name: "xattr-name",
        applies: |o| o.all(|_, rule| matches!(rule, Rule::Xattr(XattrFormatError::NameZero { .. }))),
    },
    Difference {
        name: "htree-flags",
        applies: |o| o.any(|_, rule| matches!(rule, Rule::Htree(HtreeError::UnusedFlags { .. }))),
    },
    Difference {
        name: "immutable",
        applies: |o| {
            o.all(|_, rule| {
                let fixed = (InodeFlags::IMMUTABLE | InodeFlags::APPEND).bits();
                matches!(rule, Rule::FlagsNotOfType { flags, .. } if *flags & !fixed == 0)
            })
        },
    },
    // e2fsck finds something, lanefs does not.
    Difference { name: "orphans", applies: |o| o.clean() && o.ours.as_ref().is_ok_and(|r| r.orphans > 0) },
    Difference { name: "encryption", applies: |o| o.clean() && o.said.contains("ncrypt") },
    Difference {
        name: "external-log",
        applies: |o| {
            o.clean()
                && o.ours
                    .as_ref()
                    .is_ok_and(|r| r.unchecked.iter().any(|f| f.structure == Structure::Journal))
        },
    },
];

impl Opinions {
    /// Asks both. A log is replayed for e2fsck first, which with `-n` does not look at it.
    ///
    /// # Panics
    /// If the volume cannot be written to `path`.
    pub fn of(bytes: Vec<u8>, path: &Path) -> Self {
        std::fs::write(path, &bytes).unwrap();
        let ours = check(Arc::new(MemDevice::from_bytes(bytes)), &Options::default());
        if ours.as_ref().is_ok_and(|report| report.replayed) {
            e2fsck_within(MOST, path, &["-y", "-E", "journal_only"]);
        }
        let (code, said) = e2fsck_within(MOST, path, &["-fn"]);
        Self { ours, code, said }
    }

    /// Returns whether lanefs finds nothing.
    pub fn clean(&self) -> bool {
        self.ours.as_ref().is_ok_and(Report::is_clean)
    }

    /// Returns whether e2fsck finds nothing. What it says without the log is about nothing.
    pub fn clean_by_e2fsck(&self) -> bool {
        self.code == 0 && !self.said.contains("skipping journal recovery")
    }

    /// Returns whether both agree.
    pub fn agree(&self) -> bool {
        self.clean() == self.clean_by_e2fsck()
    }

    /// The difference that is meant, if both do not agree.
    pub fn difference(&self) -> Option<&'static Difference> {
        DIFFERENCES.iter().find(|difference| (difference.applies)(self))
    }

    fn all(&self, rule: fn(Structure, &Rule) -> bool) -> bool {
        self.ours
            .as_ref()
            .is_ok_and(|r| !r.is_clean() && r.findings.iter().all(|f| rule(f.structure, &f.rule)))
    }

    fn any(&self, rule: fn(Structure, &Rule) -> bool) -> bool {
        self.ours.as_ref().is_ok_and(|r| r.findings.iter().any(|f| rule(f.structure, &f.rule)))
    }

    /// The first lines of both.
    pub fn summary(&self) -> String {
        let mut lines = match &self.ours {
            Ok(report) => report.findings.iter().take(4).map(|f| format!("  lanefs: {f}")).collect(),
            Err(e) => vec![format!("  lanefs: {e}")],
        };
        let said = self.said.lines().filter(|l| !l.starts_with("Pass ") && !l.trim().is_empty());
        lines.push(format!("  e2fsck: exit code {}", self.code));
        lines.extend(said.take(5).map(|line| format!("  e2fsck: {line}")));
        lines.join("\n")
    }
}
