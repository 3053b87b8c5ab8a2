//! `lanefs.h` is what cbindgen makes of the crate. `LANEFS_BLESS=1` writes it anew.

use std::path::Path;

#[test]
fn the_header_is_up_to_date() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("cbindgen.toml");
    let bindings =
        cbindgen::Builder::new().with_crate(root).with_config(config).generate().expect("bindings");
    let mut made = Vec::new();
    bindings.write(&mut made);
    let made = String::from_utf8(made).expect("UTF-8");

    let path = root.join("include/lanefs.h");
    if std::env::var_os("LANEFS_BLESS").is_some() {
        std::fs::create_dir_all(root.join("include")).expect("include");
        std::fs::write(&path, &made).expect("lanefs.h");
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    let line = there.lines().zip(made.lines()).position(|(there, made)| there != made);
    assert!(
        there == made,
        "include/lanefs.h is not what the crate declares (from line {} on): \
         LANEFS_BLESS=1 cargo test -p lanefs-capi --test header",
        line.unwrap_or_else(|| there.lines().count().min(made.lines().count())) + 1
    );
}

/// A function that C cannot see is no part of the library, and a comment that says no errors is
/// half a comment.
#[test]
fn every_function_says_how_it_fails() {
    let header = include_str!("../include/lanefs.h");
    let mut comment = String::new();
    let mut functions = 0;
    for line in header.lines() {
        if let Some(text) = line.trim_start().strip_prefix("//") {
            comment.push_str(text);
            continue;
        }
        if let Some((_, name)) =
            line.split_once("lanefs_").filter(|_| line.contains('(') && !line.starts_with(' '))
        {
            let name = name.split('(').next().expect("a name");
            let cannot_fail = ["version", "last_error"].contains(&name);
            assert!(cannot_fail || comment.contains("Errors: "), "lanefs_{name}: {comment:?}");
            functions += 1;
        }
        comment.clear();
    }
    assert!(functions > 40, "only {functions} functions found");
}
