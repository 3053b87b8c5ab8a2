//! What no compiler checks: which crate may know which, how long a file and a line of prose may be,
//! where `unsafe` may live.
//!
//! Everything here reads the sources of this checkout. A new crate gets a line in [`LAYERS`].

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The layer of each crate. A dependency points to a lower layer, never to its own or a higher one.
const LAYERS: &[(&str, u8)] = &[
    ("lanefs-sync", 0),
    ("lanefs-stats", 0),
    ("lanefs-device", 0),
    ("lanefs-format", 0),
    ("lanefs-sandbox", 0),
    ("lanefs-sim", 1),
    ("lanefs-rangelock", 1),
    ("lanefs-journal", 1),
    ("lanefs-mkfs", 1),
    ("lanefs-verity", 1),
    ("lanefs", 2),
    // The engine's judge: it knows the codec and the replay of the log, and not the engine.
    ("lanefs-check", 2),
    ("lanefs-fuse", 3),
    ("lanefs-capi", 3),
    ("lanefs-archive", 3),
    ("lanefs-lab", 3),
    // The command is the adapter that has all others.
    ("lanefs-cli", 4),
    ("lanefs-tests", 5),
    ("lanefs-bench", 5),
];

/// The floor of each part of the engine. An import points to a lower floor, or into its own part.
/// What a store is made of and changed by stands below all of its folders: its files name
/// their types.
const FLOORS: &[(&str, u8)] = &[
    ("error", 0),
    ("store", 1),
    ("store::alloc", 2),
    ("store::map", 3),
    ("store::io", 4),
    ("store::dir", 5),
    ("store::orphan", 5),
    ("store::resize", 5),
    ("store::xattr", 5),
    ("fs", 6),
    ("fs::file", 7),
    ("fs::inode", 8),
    ("fs::data", 9),
    ("fs::namei", 10),
    ("api", 11),
];

/// Folders under `crates/` in which no files or folders import each other in a circle.
const WITHOUT_CIRCLES: &[&str] = &["archive", "capi", "check", "cli", "device", "engine", "fuse", "lab"];

/// Of these, those whose files may name items of the root.
const ROOT_HAS_ITEMS: &[&str] = &["archive", "check", "cli", "device", "lab"];

/// Crates that tests may use and products may not.
const FOR_TESTS_ONLY: &[&str] = &["lanefs-sim"];

/// Folders under `crates/` whose sources may say `unsafe`.
const MAY_BE_UNSAFE: &[&str] = &["device", "rangelock", "capi"];

/// Lines without tests: aim, and end.
const LONG: usize = 400;
const TOO_LONG: usize = 800;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_path_buf()
}

/// Every file of the checkout below `dir` that `wanted` names, but for what builds and fuzzing
/// leave behind.
fn files(dir: &Path, wanted: &dyn Fn(&Path) -> bool, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("read_dir").map(|e| e.expect("entry")) {
        let path = entry.path();
        let name = entry.file_name();
        if entry.file_type().expect("type").is_dir() {
            if ![".git", "target", "corpus", "artifacts"].iter().any(|skip| name == *skip) {
                files(&path, wanted, found);
            }
        } else if wanted(&path) {
            found.push(path);
        }
    }
}

fn sources() -> Vec<PathBuf> {
    let mut found = Vec::new();
    files(&root(), &|p| p.extension().is_some_and(|e| e == "rs"), &mut found);
    assert!(found.len() > 10, "only {} sources found below {}", found.len(), root().display());
    found.sort();
    found
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn shown(path: &Path) -> String {
    path.strip_prefix(root()).expect("below the root").display().to_string()
}

#[test]
fn dependencies_point_down() {
    let out = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(root())
        .output()
        .expect("cargo metadata");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let meta: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let layers: BTreeMap<&str, u8> = LAYERS.iter().copied().collect();

    let mut wrong = Vec::new();
    for package in meta["packages"].as_array().expect("packages") {
        let name = package["name"].as_str().expect("name");
        let Some(&layer) = layers.get(name) else {
            wrong.push(format!("{name} has no layer: add it to LAYERS"));
            continue;
        };
        for dep in package["dependencies"].as_array().expect("dependencies") {
            let on = dep["name"].as_str().expect("name");
            let Some(&below) = layers.get(on) else { continue };
            let for_tests = dep["kind"] == "dev" || layer == 5;
            // The judges stand above all products; a product's own tests may call them.
            let judges = on == "lanefs-tests" && dep["kind"] == "dev";
            if (below > layer && !judges) || (below == layer && !for_tests) {
                wrong.push(format!("{name} (layer {layer}) depends on {on} (layer {below})"));
            }
            if FOR_TESTS_ONLY.contains(&on) && !for_tests {
                wrong.push(format!("{name} depends on {on}, which is for tests only"));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// The part of the engine that a path of modules lies in, and its floor.
fn floor(module: &str) -> Option<(&'static str, u8)> {
    let within = |part: &str| module == part || module.starts_with(&format!("{part}::"));
    FLOORS.iter().rfind(|(part, _)| within(part)).copied()
}

/// The paths within the crate that a statement names, those of a list one by one.
fn imports(statement: &str) -> Vec<String> {
    let is_path = |path: &&str| ["crate::", "super::", "self::"].iter().any(|root| path.starts_with(root));
    let tree = statement.split_once("use ").map(|(_, tree)| tree).filter(is_path);
    match tree {
        Some(tree) => leaves(tree),
        None => {
            let words = statement.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
            words.filter(is_path).map(str::to_owned).collect()
        }
    }
}

/// The paths of an import, its lists taken apart.
fn leaves(tree: &str) -> Vec<String> {
    let Some((above, names)) = tree.trim().split_once('{') else { return vec![tree.trim().to_owned()] };
    let mut depth = 0;
    let names = names.trim_end().trim_end_matches('}').split(|c| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    });
    let names = names.filter(|name| !name.trim().is_empty());
    names.flat_map(leaves).map(|name| format!("{above}{name}")).collect()
}

#[test]
fn imports_of_the_engine_point_down() {
    let mut wrong = Vec::new();
    let mut seen = 0;
    for path in sources() {
        let name = shown(&path);
        let Some(module) = name.strip_prefix("crates/engine/src/").and_then(|n| n.strip_suffix(".rs")) else {
            continue;
        };
        let module = module.trim_end_matches("/mod").replace('/', "::");
        // lib.rs names all.
        let Some((part, own)) = floor(&module) else { continue };
        let named = statements(&path, &text(&path));
        for import in named.iter().flat_map(|statement| imports(statement)) {
            let Some(import) = import.strip_prefix("crate::") else { continue };
            seen += 1;
            // What the folders of the store or of the volume hold, its own files put together.
            let Some((on, below)) = floor(import) else {
                wrong.push(format!("{name}: {import} is on no floor: name its module"));
                continue;
            };
            let together = on.starts_with(&format!("{part}::"));
            if on != part && below >= own && !together {
                wrong.push(format!("{name} ({part}) imports {import} ({on})"));
            }
        }
    }
    assert!(seen > 200, "only {seen} imports found");
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// The modules of a crate that are files, by their paths. `lib.rs` and `main.rs` name all of them,
/// and are left out.
fn modules(krate: &str) -> BTreeMap<Vec<String>, PathBuf> {
    let src = root().join("crates").join(krate).join("src");
    let module = |path: PathBuf| {
        let name = path.strip_prefix(&src).ok()?.with_extension("");
        let parts = name.components().map(|part| part.as_os_str().to_string_lossy().into_owned());
        let parts: Vec<String> = parts.filter(|part| part != "mod").collect();
        (!["lib", "main"].contains(&parts[0].as_str())).then_some((parts, path))
    };
    sources().into_iter().filter_map(module).collect()
}

/// The module that an import of `module` leads to: the longest part of its path that is a file.
/// `None` for an item of the root.
fn target(import: &str, module: &[String], all: &BTreeMap<Vec<String>, PathBuf>) -> Option<Vec<String>> {
    let mut path = module.to_vec();
    for part in import.split("::") {
        match part {
            "crate" => path.clear(),
            "self" => {}
            "super" => drop(path.pop()),
            part => path.push(part.to_owned()),
        }
    }
    while !path.is_empty() && !all.contains_key(&path) {
        path.pop();
    }
    (!path.is_empty()).then_some(path)
}

/// Of the files and folders in one folder, none imports another that imports it, by whatever way. A
/// file may import from its own `mod.rs`, which only declares it and calls its methods.
#[test]
fn files_and_folders_form_no_circle() {
    let mut wrong = Vec::new();
    for krate in WITHOUT_CIRCLES {
        let all = modules(krate);
        // For each folder: which of its entries imports which, and by what.
        let mut folders: BTreeMap<&[String], BTreeMap<(String, String), String>> = BTreeMap::new();
        for (module, path) in &all {
            let named = statements(path, &text(path));
            for import in named.iter().flat_map(|statement| imports(statement)) {
                let line = format!("{} imports {import}", shown(path));
                let Some(on) = target(&import, module, &all) else {
                    if !ROOT_HAS_ITEMS.contains(krate) {
                        wrong.push(format!("{line}, which is no module: name the module that it is of"));
                    }
                    continue;
                };
                let common = module.iter().zip(&on).take_while(|(own, other)| own == other).count();
                if let (Some(from), Some(to)) = (module.get(common), on.get(common)) {
                    let folder = folders.entry(&module[..common]).or_default();
                    folder.insert((from.clone(), to.clone()), line);
                }
            }
        }
        assert!(!folders.is_empty(), "no imports found in {krate}");
        for mut edges in folders.into_values() {
            // An entry that imports none, or that none imports, is in no circle.
            let mut before = usize::MAX;
            while edges.len() < before {
                before = edges.len();
                let (from, to): (BTreeSet<String>, BTreeSet<String>) = edges.keys().cloned().unzip();
                edges.retain(|(own, other), _| from.contains(other) && to.contains(own));
            }
            wrong.extend(edges.into_values());
        }
    }
    assert!(wrong.is_empty(), "circles:\n{}", wrong.join("\n"));
}

#[test]
fn the_lab_is_for_the_command_alone() {
    let manifests = ["engine", "archive", "capi", "fuse", "cli"].map(|krate| {
        let path = root().join("crates").join(krate).join("Cargo.toml");
        (krate, text(&path))
    });
    for (krate, manifest) in manifests {
        let line = manifest.lines().find(|line| line.starts_with("lanefs-lab"));
        assert!(
            line.is_none_or(|line| krate == "cli" && line.contains("optional = true")),
            "{krate}: {line:?}"
        );
    }
}

/// `make test` leaves these out, so that a test in them would never run.
#[test]
fn benchmarks_and_programs_of_the_campaigns_have_no_tests() {
    let left_out = ["bench/", "tests/src/bin/"];
    let found: Vec<String> = sources()
        .iter()
        .filter(|path| left_out.iter().any(|dir| shown(path).starts_with(dir)))
        .filter(|path| text(path).contains("#[test]"))
        .map(|path| shown(path))
        .collect();
    assert!(found.is_empty(), "{found:?}");
}

/// Lines of a source up to its inline tests; 0 for a file that is a test.
fn product_lines(path: &Path, text: &str) -> usize {
    let is_test = Path::new(&shown(path)).components().any(|c| c.as_os_str() == "tests")
        || path.file_name().is_some_and(|n| n == "tests.rs" || n == "test.rs");
    if is_test {
        return 0;
    }
    let lines: Vec<&str> = text.lines().collect();
    lines
        .windows(2)
        .position(|w| w[0].trim() == "#[cfg(test)]" && w[1].contains("mod ") && w[1].ends_with('{'))
        .unwrap_or(lines.len())
}

#[test]
fn files_are_short() {
    let mut long: Vec<(usize, String)> =
        sources().iter().map(|p| (product_lines(p, &text(p)), shown(p))).filter(|(n, _)| *n > LONG).collect();
    long.sort_by(|a, b| b.cmp(a));
    for (lines, file) in &long {
        println!("{lines:5} lines: {file}");
    }
    long.retain(|(n, _)| *n > TOO_LONG);
    assert!(long.is_empty(), "longer than {TOO_LONG} lines without tests: {long:?}");
}

/// Columns of prose.
const COLUMNS: usize = 100;

/// The lines of a document that are prose, with their numbers: no blocks of code, no rows of
/// tables.
fn lines_of_document(text: &str) -> Vec<(usize, &str)> {
    let mut code = false;
    let lines = text.lines().enumerate().filter(|(_, line)| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence && !line.starts_with('|')
    });
    lines.collect()
}

/// The lines of a source that are comments, with their numbers: in doc comments, no blocks of code
/// and no rows of tables. A comment begins its line with one of `marks`.
fn lines_of_comments<'t>(text: &'t str, marks: &[&str]) -> Vec<(usize, &'t str)> {
    let mut code = false;
    let lines = text.lines().enumerate().filter(|(_, line)| {
        let Some(said) = marks.iter().find_map(|mark| line.trim_start().strip_prefix(mark)) else {
            code = false;
            return false;
        };
        let said = said.trim_start_matches(['/', '!', ' ']);
        let fence = said.starts_with("```");
        code ^= fence;
        !code && !fence && !said.starts_with('|')
    });
    lines.collect()
}

/// The lines of prose in a file, with their numbers; empty for a file of another kind.
fn lines_of_prose<'t>(path: &Path, text: &'t str) -> Vec<(usize, &'t str)> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    match path.extension().and_then(|e| e.to_str()) {
        Some("md") => lines_of_document(text),
        Some("rs") => lines_of_comments(text, &["//"]),
        Some("c" | "h") => lines_of_comments(text, &["//", "/*", "* "]),
        Some("sh" | "py" | "toml" | "fio") => lines_of_comments(text, &["#"]),
        _ if name == "Makefile" || name == "run" => lines_of_comments(text, &["#"]),
        _ => Vec::new(),
    }
}

/// Whether a line is longer than it may be. A single word, such as a link, has no place to wrap.
fn is_too_wide(line: &str) -> bool {
    let is_mark = |word: &&str| word.chars().all(|c| !c.is_alphanumeric());
    let is_one_link = || {
        let said =
            line.trim().trim_start_matches(['-', '/', '!', '#', '*', ' ']).trim_end_matches(['.', ',']);
        let words = said.split_whitespace().filter(|word| !is_mark(word)).count();
        words <= 1 || said.starts_with('[') && said.ends_with(')') && said.matches("](").count() == 1
    };
    line.chars().count() > COLUMNS && !is_one_link()
}

#[test]
fn prose_has_100_columns() {
    let mut found = Vec::new();
    files(&root(), &|_| true, &mut found);
    let mut wrong = Vec::new();
    let mut seen = 0;
    for path in found {
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        for (at, line) in lines_of_prose(&path, &text) {
            seen += 1;
            if is_too_wide(line) {
                wrong.push(format!("{}:{}: {} columns", shown(&path), at + 1, line.chars().count()));
            }
        }
    }
    assert!(seen > 10_000, "only {seen} lines of prose found");
    assert!(wrong.is_empty(), "more than {COLUMNS} columns:\n{}", wrong.join("\n"));
}

#[test]
fn wide_prose_is_found() {
    let long = "word ".repeat(21);
    let wide = |name: &str, text: &str| -> Vec<usize> {
        let lines = lines_of_prose(Path::new(name), text).into_iter();
        lines.filter(|(_, line)| is_too_wide(line)).map(|(at, _)| at).collect()
    };
    let link = format!("[a document with a long name](https://example.org/{})", "a".repeat(90));
    let document = format!("{long}\n- {long}\n```\n{long}\n```\n| {long} |\n{link}\n- {link}.\nsee {link}\n");
    assert_eq!(wide("a.md", &document), [0, 1, 8]);
    let source = format!("/// {long}\n/// ```\n/// {long}\n/// ```\nlet a = \"{long}\";\n    // {long}\n");
    assert_eq!(wide("a.rs", &source), [0, 5]);
    assert_eq!(wide("a.c", &format!("/* {long}\n * {long} */\nint a; // {long}\n")), [0, 1]);
    assert_eq!(wide("a.sh", &format!("# {long}\necho {long}\n")), [0]);
    assert_eq!(wide("Makefile", &format!("# {long}\n\techo {long}\n")), [0]);
    assert_eq!(wide("a.svg", &format!("# {long}\n")), [0_usize; 0]);
}

#[test]
fn every_source_has_a_head() {
    // The head of `foo/tests.rs` is that of `foo.rs`.
    let needs = |p: &&PathBuf| p.file_name().is_some_and(|name| name != "tests.rs");
    let bare: Vec<String> = sources()
        .iter()
        .filter(needs)
        .filter(|p| !text(p).trim_start().starts_with("//!"))
        .map(|p| shown(p))
        .collect();
    assert!(bare.is_empty(), "no `//!` head that says what the file is for:\n{}", bare.join("\n"));
}

/// Where a package names its binaries of tests itself, a file that is in none of them is not
/// compiled, and its tests do not run.
#[test]
fn every_file_of_tests_is_in_a_binary() {
    let mut manifests = Vec::new();
    files(&root(), &|p| p.ends_with("Cargo.toml"), &mut manifests);
    let mut wrong = Vec::new();
    for manifest in manifests {
        let listed = text(&manifest);
        if !listed.contains("autotests = false") {
            continue;
        }
        let folder = manifest.with_file_name("tests");
        let entries = std::fs::read_dir(folder).expect("tests").map(|e| e.expect("entry").path());
        let sources: Vec<PathBuf> = entries.filter(|p| p.extension().is_some_and(|e| e == "rs")).collect();
        let name = |p: &PathBuf| p.file_stem().expect("a name").display().to_string();
        let (binaries, modules): (Vec<_>, Vec<_>) =
            sources.iter().partition(|p| listed.contains(&format!("[[test]]\nname = \"{}\"\n", name(p))));
        let of_binaries: String = binaries.iter().map(|p| text(p)).collect();
        let is_in_one = |p: &PathBuf| of_binaries.contains(&format!("\nmod {};\n", name(p)));
        wrong.extend(modules.into_iter().filter(|p| !is_in_one(p)).map(|p| shown(p)));
    }
    assert!(wrong.is_empty(), "in no binary of tests:\n{}", wrong.join("\n"));
}

#[test]
fn unsafe_is_forbidden_where_it_is_not_needed() {
    let mut wrong = Vec::new();
    for entry in std::fs::read_dir(root().join("crates")).expect("crates").map(|e| e.expect("entry")) {
        if MAY_BE_UNSAFE.iter().any(|c| entry.file_name() == *c) {
            continue;
        }
        for top in ["src/lib.rs", "src/main.rs"].map(|f| entry.path().join(f)).iter().filter(|p| p.exists()) {
            if !text(top).contains("#![forbid(unsafe_code)]") {
                wrong.push(shown(top));
            }
        }
    }
    assert!(wrong.is_empty(), "no #![forbid(unsafe_code)]:\n{}", wrong.join("\n"));
}

/// Blocks, functions and impls of a source that are unsafe, outside of its inline tests.
fn unsafe_places(path: &Path) -> usize {
    let text = text(path);
    let kinds = ["{", "impl", "fn", "extern"].map(|kind| format!("unsafe {kind}"));
    text.lines()
        .take(product_lines(path, &text))
        .filter(|line| !line.trim_start().starts_with("//"))
        .map(|line| kinds.iter().map(|kind| line.matches(kind.as_str()).count()).sum::<usize>())
        .sum()
}

#[test]
fn every_unsafe_place_is_listed() {
    let mut found = BTreeMap::new();
    for path in sources().iter().filter(|p| shown(p).starts_with("crates/")) {
        let places = unsafe_places(path);
        if places > 0 {
            found.insert(shown(path).trim_start_matches("crates/").to_owned(), places);
        }
    }
    let listed: BTreeMap<String, usize> = text(&root().join("docs/unsafe.md"))
        .lines()
        .filter_map(|line| {
            let mut cells = line.trim_matches('|').split('|').map(str::trim);
            Some((cells.next()?.to_owned(), cells.next()?.parse().ok()?))
        })
        .collect();
    assert_eq!(found, listed, "what the sources have, and what docs/unsafe.md lists");
}

/// Crates that run under the scheduler (`--cfg lanefs_schedule`): what it does not see, it cannot
/// decide over.
const UNDER_THE_SCHEDULER: &[&str] = &["engine", "journal", "rangelock"];

/// Words that lead past `lanefs-sync`: where they are looked for, and which.
const PAST_THE_SCHEDULER: &[(&str, &[&str])] = &[
    (
        "std::sync::",
        &["Mutex", "Condvar", "RwLock", "OnceLock", "LazyLock", "Once", "Barrier", "mpsc", "atomic"],
    ),
    ("std::time::", &["Instant", "SystemTime"]),
    ("std::thread", &["thread"]),
    ("parking_lot", &["parking_lot"]),
    ("clock_gettime", &["clock_gettime"]),
    ("RandomState", &["RandomState"]),
];

/// Statements that may: file, a part of the statement, and why.
const SEEN_PAST: &[(&str, &str, &str)] = &[
    (
        "engine/src/store/threads.rs",
        "std::thread",
        "copies between blocks that nothing else uses, and writeback to remote devices; not under the scheduler",
    ),
    ("engine/src/store/resize/copy_runs.rs", "Mutex", "the list of those copies"),
    ("journal/src/commit.rs", "std::thread::panicking", "asks about its own thread"),
    ("journal/src/handle.rs", "std::thread::panicking", "asks about its own thread"),
    ("rangelock/src/leaf.rs", "std::thread::sleep", "the scheduler's threads yield instead"),
    ("rangelock/src/shared.rs", "available_parallelism", "a number of the machine; not under the scheduler"),
    ("rangelock/src/shared.rs", "static LANES", "that number, once in a process"),
    (
        "rangelock/src/thread_index.rs",
        "Mutex",
        "numbers threads of the system; the scheduler's have their own",
    ),
];

/// The statements of a source up to its inline tests, each in one line and without comments.
fn statements(path: &Path, text: &str) -> Vec<String> {
    let lines = text.lines().take(product_lines(path, text));
    let code: Vec<&str> = lines.map(|line| line.split("//").next().unwrap_or("").trim()).collect();
    code.join(" ").split(';').map(str::to_owned).collect()
}

#[test]
fn synchronisation_goes_through_one_crate() {
    let is_word = |text: &str, word: &str| {
        text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|found| found == word)
    };
    let mut wrong = Vec::new();
    let mut used = vec![false; SEEN_PAST.len()];
    for path in sources() {
        let name = shown(&path);
        let Some(name) = name.strip_prefix("crates/") else { continue };
        if !UNDER_THE_SCHEDULER.iter().any(|krate| name.starts_with(&format!("{krate}/src/"))) {
            continue;
        }
        for statement in statements(&path, &text(&path)) {
            // A word may be in a list behind the path, or end it.
            let past = PAST_THE_SCHEDULER.iter().any(|(path, words)| {
                let rest = |behind: &str| behind.split(['}', '=']).next().unwrap_or("").to_owned();
                let behind: Vec<String> = statement.split(path).skip(1).map(rest).collect();
                words.iter().any(|word| {
                    path.ends_with(word) && !behind.is_empty()
                        || behind.iter().any(|rest| is_word(rest, word))
                })
            });
            if !past {
                continue;
            }
            let allowed = |(file, part, _): &(&str, &str, &str)| *file == name && statement.contains(part);
            match SEEN_PAST.iter().position(allowed) {
                Some(at) => used[at] = true,
                None => wrong.push(format!("{name}: {}", statement.trim())),
            }
        }
    }
    let unused: Vec<_> = SEEN_PAST.iter().zip(&used).filter(|(_, used)| !**used).collect();
    assert!(wrong.is_empty(), "not through lanefs-sync:\n{}", wrong.join("\n"));
    assert!(unused.is_empty(), "not needed any more: {unused:?}");
}

#[test]
fn no_path_of_one_machine() {
    // In pieces, so that this file does not hold what it forbids.
    let forbidden = ["work", "root", "tmp/w"].map(|dir| format!("/{dir}/"));
    let texts = ["rs", "toml", "md", "sh", "yml", "c", "h", "json", "py"];
    let mut found = Vec::new();
    files(
        &root(),
        &|p| {
            let name = p.file_name().and_then(|n| n.to_str()).unwrap_or_default();
            p.extension().and_then(|e| e.to_str()).is_some_and(|e| texts.contains(&e))
                || ["Makefile", "run"].contains(&name)
        },
        &mut found,
    );
    let mut wrong = Vec::new();
    for path in found {
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        for (i, line) in text.lines().enumerate() {
            for at in forbidden.iter().flat_map(|dir| line.match_indices(dir.as_str())).map(|(at, _)| at) {
                // The end of a relative path or of a variable is no absolute path.
                let before = line[..at].chars().next_back();
                if !before.is_some_and(|c| c.is_alphanumeric() || "._-:$}".contains(c)) {
                    wrong.push(format!("{}:{}: {}", shown(&path), i + 1, line.trim()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// `set -e` lets a command pass whose status is negated: `! cmp a b` alone never ends a script.
#[test]
fn negated_commands_of_scripts_say_what_follows() {
    let mut found = sources();
    files(&root(), &|p| p.extension().is_some_and(|e| e == "sh"), &mut found);
    let mut wrong = Vec::new();
    for path in found {
        for (i, line) in text(&path).lines().enumerate() {
            if line.trim_start().starts_with("! ") && !line.contains("||") {
                wrong.push(format!("{}:{}: {}", shown(&path), i + 1, line.trim()));
            }
        }
    }
    assert!(wrong.is_empty(), "these never fail:\n{}", wrong.join("\n"));
}

/// A script without its first line runs in whatever shell started it, and a reflow of prose once
/// took one.
#[test]
fn scripts_begin_with_their_shell() {
    let mut found = Vec::new();
    files(&root().join("scripts"), &|p| p.extension().is_some_and(|e| e == "sh"), &mut found);
    let begins = |path: &PathBuf| text(path).lines().next() == Some("#!/usr/bin/env bash");
    let wrong: Vec<String> = found.iter().filter(|path| !begins(path)).map(|path| shown(path)).collect();
    assert!(!found.is_empty() && wrong.is_empty(), "{wrong:?}");
}
