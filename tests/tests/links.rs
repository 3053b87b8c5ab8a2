//! Links of the documents: each leads to a file and a heading that are there, in the repository and
//! in what a package has of it. Of links to other places only the form is checked.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panic")]

use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// The documents below `dir`.
fn documents(dir: &Path) -> Vec<PathBuf> {
    let (mut found, mut left) = (Vec::new(), vec![dir.to_owned()]);
    while let Some(next) = left.pop() {
        for entry in fs::read_dir(next).unwrap().map(Result::unwrap) {
            let (path, name) = (entry.path(), entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                if ![".git", "target", "corpus", "artifacts"].iter().any(|skip| name == *skip) {
                    left.push(path);
                }
            } else if path.extension().is_some_and(|e| e == "md") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The text without blocks of code, in which nothing is a link.
fn prose(text: &str) -> String {
    let mut code = false;
    let lines = text.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The targets of the links of a document.
fn links(text: &str) -> Vec<String> {
    let parts = text.split("](").skip(1);
    parts.filter_map(|rest| rest.split_once(')')).map(|(target, _)| target.to_owned()).collect()
}

/// What a heading is called in a link: small letters, digits, and hyphens for blanks.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

/// Why a link of `document` leads nowhere, if so. It must not leave `top`.
fn fault(top: &Path, document: &Path, link: &str) -> Option<String> {
    if let Some((scheme, rest)) = link.split_once("://") {
        let host = rest.split('/').next().unwrap_or_default();
        let good = scheme == "https" && host.contains('.') && !link.contains(char::is_whitespace);
        return (!good).then(|| "is no address of the web".into());
    }
    let (path, heading) = link.split_once('#').map_or((link, None), |(path, heading)| (path, Some(heading)));
    let mut target = document.to_owned();
    if !path.is_empty() {
        target.pop();
        for part in Path::new(path).components() {
            match part {
                Component::ParentDir => drop(target.pop()),
                part => target.push(part),
            }
        }
    }
    if !target.starts_with(top) || !target.exists() {
        return Some("leads to nothing".into());
    }
    let heading = heading?;
    let text = fs::read_to_string(&target).unwrap_or_default();
    let mut headings = text.lines().filter(|line| line.starts_with('#'));
    let found = headings.any(|line| anchor(line.trim_start_matches('#')) == heading);
    (!found).then(|| format!("there is no heading #{heading}"))
}

fn check(top: &Path) {
    let all = documents(top);
    assert!(all.len() > 10, "{all:?}");
    let mut wrong = Vec::new();
    for document in all {
        let text = prose(&fs::read_to_string(&document).unwrap());
        for link in links(&text) {
            if let Some(why) = fault(top, &document, &link) {
                wrong.push(format!("{}: {link} {why}", document.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn links_of_the_repository() {
    check(&root());
}

#[test]
fn links_of_the_documents_in_a_package() {
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().join("doc");
    let made = Command::new(root().join("scripts/docs.sh")).arg(&top).status().unwrap();
    assert!(made.success());
    check(&top);
}

/// A place of the repository that a document names in code is there.
#[test]
fn places_that_documents_name() {
    let tops = ["crates/", "docs/", "scripts/", "tests/", "bench/", "fuzz/", "examples/"];
    let mut wrong = Vec::new();
    for document in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/mount.md", "docs/durability.md"]
    {
        let text = prose(&fs::read_to_string(root().join(document)).unwrap());
        let code = text.split('`').skip(1).step_by(2);
        let places = code.filter(|code| tops.iter().any(|top| code.starts_with(top)));
        let gone =
            places.filter(|place| !place.contains(['<', '*', ' ', '{']) && !root().join(place).exists());
        wrong.extend(gone.map(|place| format!("{document}: {place}")));
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn a_link_that_leads_nowhere_is_found() {
    let top = root();
    let fault = |link| fault(&top, &top.join("docs/fio.md"), link);
    for good in
        ["c-library.md#options-of-a-volume", "../README.md", "https://fio.readthedocs.io", "#lanefs-in-fio"]
    {
        assert!(good.starts_with('#') || fault(good).is_none(), "{good}");
    }
    for bad in
        ["c-library.md#nothing", "nothing.md", "../../README.md", "http://a.b", "https://a", "#nothing"]
    {
        assert!(fault(bad).is_some(), "{bad}");
    }
    assert_eq!(links(&prose("a [b](c)\n```\n[d](e)\n```\n[f](g#h), [i](j)")), ["c", "g#h", "j"]);
}
