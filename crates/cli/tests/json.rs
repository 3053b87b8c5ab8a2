//! docs/json.md: the tables have every field of every `--json`, with its type, and no other.

use crate::support::{Image, mount::Mount, succeed};
use lanefs_tests::Served;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

/// A field of a table.
struct Field {
    types: String,
    may_miss: bool,
}

/// The fields of a section, by their names as the tables write them.
type Schema = BTreeMap<String, Field>;

fn document() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/json.md")).unwrap()
}

/// The section of the document with this heading.
fn schema(heading: &str) -> Schema {
    let document = document();
    let (_, rest) = document.split_once(&format!("\n## {heading}\n")).expect(heading);
    let section = rest.split("\n## ").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let fields = rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        assert_eq!(cells.len(), 4, "{row}");
        let name = cells[0].trim_matches('`');
        let field = Field { types: cells[1].to_owned(), may_miss: name.ends_with('?') };
        (name.trim_end_matches('?').to_owned(), field)
    });
    fields.collect()
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_u64() || n.is_i64() => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// The field of `schema` for `name` below `parent`, by its own name or by `*`.
fn field_of(schema: &Schema, parent: &str, name: &str) -> Option<String> {
    let path = |name: &str| if parent.is_empty() { name.to_owned() } else { format!("{parent}.{name}") };
    [path(name), path("*")].into_iter().find(|path| {
        // An object or array need not be named where its parts are.
        let is_below =
            |other: &String| other.starts_with(&format!("{path}.")) || other.starts_with(&format!("{path}["));
        schema.contains_key(path) || schema.keys().any(is_below)
    })
}

/// Holds `value`, which is `path`, against the schema; returns the fields that it has.
fn check(schema: &Schema, path: &str, value: &Value, seen: &mut BTreeSet<String>) {
    let kind = type_of(value);
    if let Some(field) = schema.get(path) {
        seen.insert(path.to_owned());
        let fits = field.types.split(" or ").any(|t| t == kind || t == "number" && kind == "integer");
        assert!(fits, "{path} is {kind}, and not {}", field.types);
    }
    match value {
        Value::Array(all) => {
            for element in all {
                check(schema, &format!("{path}[]"), element, seen);
            }
        }
        Value::Object(all) => {
            for (name, value) in all {
                let below = field_of(schema, path, name)
                    .unwrap_or_else(|| panic!("{path}.{name} is not in docs/json.md"));
                check(schema, &below, value, seen);
            }
            for (wanted, field) in schema {
                let own = wanted.strip_prefix(path).map(|rest| rest.trim_start_matches('.'));
                let Some(name) = own.filter(|name| !field.may_miss && !name.contains(['.', '[', '*'])) else {
                    continue;
                };
                assert!(name.is_empty() || all.contains_key(name), "{path} has no {name}: {value}");
            }
        }
        _ => assert!(schema.contains_key(path), "{path} is not in docs/json.md"),
    }
}

/// Holds outputs against a section. Each of its fields must have been seen in one of them, but for
/// those in `unseen`.
fn hold(heading: &str, outputs: &[String], unseen: &[&str]) {
    let schema = schema(heading);
    assert!(schema.len() > 2, "{heading}: no table");
    let mut seen = BTreeSet::new();
    for output in outputs {
        for value in serde_json::Deserializer::from_str(output).into_iter() {
            check(&schema, "", &value.unwrap_or_else(|e| panic!("{heading}: {e}: {output}")), &mut seen);
        }
    }
    for name in schema.keys() {
        assert!(seen.contains(name) || unseen.contains(&name.as_str()), "{heading}: {name} was not seen");
    }
}

/// A volume with one of each kind of file, and names and values that are not UTF-8.
fn volume() -> Image {
    let image = Image::mke2fs(&["-b", "4096"], None);
    let script = r#"
        mkdir d; echo content > d/f; ln -s f d/link; mkfifo d/fifo; mknod d/null c 1 3; touch "d/$(printf 'a\377')"
        setfattr -n user.text -v text d/f; setfattr -n user.bytes -v 0xff00 d/f; setfattr -n "user.$(printf 'a\377')" -v b d/f
        lanefs import d v.img:/d
        truncate -s 8M d.raw; echo 'size=4M, name=root' | sfdisk -q --label gpt d.raw; lanefs mkfs -q -L data d.raw@1
    "#;
    let bin = Path::new(env!("CARGO_BIN_EXE_lanefs")).parent().unwrap().display();
    let path = format!("{bin}:{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap());
    let mut shell = Command::new("bash");
    let out = shell.args(["-euc", script]).env("PATH", path).current_dir(image.beside("")).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    image
}

#[test]
fn files() {
    let image = volume();
    let outputs = [
        image.ok(["ls", "-l", "--json", "v.img:/d"]),
        image.ok(["tree", "--json", "v.img:/"]),
        image.ok(["find", "v.img", "-type", "f", "--json"]),
        image.ok(["stat", "--json", "v.img:/d/f"]),
    ];
    hold("lanefs ls, lanefs tree, lanefs find, lanefs stat", &outputs, &[]);
    hold("lanefs du", &[image.ok(["du", "-ac", "--json", "v.img"])], &[]);
}

#[test]
fn differences() {
    let image = volume();
    let script = r#"
        cp v.img new.img; rm d/null d/fifo d/link; mknod d/null c 1 5; touch d/fifo; ln -s g d/link; echo CONTENT > d/f
        ln d/f d/linked; echo x > "$(printf 'd/b\377')"; chown 1:2 d/f; chmod 600 d/f; echo longer > "$(printf 'd/a\377')"
        setfattr -n "user.$(printf 'a\377')" -v other d/f
    "#;
    succeed(Command::new("bash").args(["-euc", script]).current_dir(image.beside("")));
    image.ok(["rm", "-r", "v.img:/d"]);
    image.ok(["import", "d", "v.img:/d"]);
    let diff = |old, new| {
        let out = image.lanefs(["diff", "--json", old, new]).output().unwrap();
        assert_eq!(out.status.code(), Some(1), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    };
    hold("lanefs diff", &[diff("new.img", "v.img"), diff("v.img", "new.img")], &[]);
}

#[test]
fn volumes() {
    let image = volume();
    let made = image.ok(["mkfs", "--json", "--size", "64M", "new.img"]);
    hold("lanefs mkfs", &[made], &["name_bytes"]);
    fs::create_dir(image.beside("rootfs")).unwrap();
    let built = image.ok(["build", "--json", "rootfs", "b.img"]);
    let disk = image.ok(["build", "--json", "--verity", "--partition-table", "gpt", "rootfs", "b.raw"]);
    hold("lanefs build", &[built, disk], &["name_bytes", "backups[]"]);
    hold("lanefs df", &[image.ok(["df", "--json", "v.img", "new.img"])], &["[].name_bytes"]);
    image.ok(["mkfs", "-q", "-O", "mmp", "--size", "16M", "mmp.img"]);
    let protections = ["new.img", "mmp.img"].map(|name| image.ok(["mmp", "show", "--json", name]));
    hold("lanefs mmp show", &protections, &["name_bytes", "damage"]);
    let mut infos = vec![image.ok(["info", "--json", "v.img"]), image.ok(["info", "--json", "mmp.img"])];
    infos.push(image.ok(["info", "--json", "--groups", "new.img"]));
    infos.push(image.ok(["info", "--json", "overlay:base=mmp.img,top=mmp.top"]));
    let unseen = ["mmp.damage", "name_bytes", "unreadable[]", "unwritable[]", "group_list[].damage"];
    hold("lanefs info", &infos, &unseen);
    hold("lanefs info, of a disk", &[image.ok(["info", "--json", "d.raw"])], &["name_bytes"]);
    let server = Served::nbdkit(&image.beside("s"), &["memory", "1M"]);
    let url = format!("nbd+unix://?socket={}", image.beside("s").display());
    hold("lanefs info, of a server", &[image.ok(["info", "--json", &url])], &["name_bytes"]);
    drop(server);
    hold("lanefs recover", &[image.ok(["recover", "--json", "v.img"])], &["name_bytes"]);
    hold("lanefs resize", &[image.ok(["resize", "--json", "new.img", "+64M"])], &["name_bytes"]);
    hold("lanefs frag", &[image.ok(["frag", "--json", "v.img", "v.img:/d"])], &[]);
}

#[test]
fn findings() {
    let image = volume();
    let clean = image.ok(["check", "--json", "v.img"]);
    let damage = "set_inode_field / links_count 7";
    let debugfs = Command::new("debugfs").args(["-w", "-R", damage]).arg(&image.path).output().unwrap();
    assert!(debugfs.status.success());
    let damaged = image.lanefs(["check", "--json", "v.img"]).output().unwrap();
    assert_eq!(damaged.status.code(), Some(4));
    let numbers = ["group", "block", "lblk", "offset"].map(|number| format!("findings[].{number}"));
    let mut unseen = vec!["name_bytes"];
    unseen.extend(numbers.iter().map(String::as_str));
    hold("lanefs check", &[clean, String::from_utf8(damaged.stdout).unwrap(), unchecked()], &unseen);
}

/// The check of a volume with parts that are not checked: quota files, and an MMP block that says
/// that a host uses the volume.
fn unchecked() -> String {
    let image = Image::mke2fs(&["-b", "4096", "-O", "mmp,quota,^metadata_csum"], None);
    let shown: Value = serde_json::from_str(&image.ok(["mmp", "show", "--json", "v.img"])).unwrap();
    let sequence = shown["block"].as_u64().unwrap() * 4096 + 4;
    let file = fs::File::options().write(true).open(&image.path).unwrap();
    file.write_all_at(&1_u32.to_le_bytes(), sequence).unwrap();
    image.ok(["check", "--json", "v.img"])
}

/// A command that fails, at its beginning or at one of several files.
#[test]
fn a_failure_leaves_whole_json_or_nothing() {
    let image = volume();
    for args in [
        &["ls", "--json", "v.img:/d", "v.img:/none"][..],
        &["stat", "--json", "v.img:/d/f", "v.img:/none"],
        &["find", "v.img:/d", "v.img:/none", "--json"],
        &["du", "--json", "v.img:/d", "v.img:/none"],
        &["df", "--json", "v.img", "none.img"],
        &["xattr", "ls", "--json", "v.img:/d/f", "v.img:/none"],
        &["xattr", "get", "--json", "user.none", "v.img:/d/f"],
        &["frag", "--json", "v.img", "none.img"],
        &["info", "--json", "none.img"],
        &["check", "--json", "none.img"],
        &["recover", "--json", "none.img"],
    ] {
        let out = image.lanefs(args).output().unwrap();
        assert!(!out.status.success() && !out.stderr.is_empty(), "{args:?}: {out:?}");
        let values = serde_json::Deserializer::from_slice(&out.stdout).into_iter::<Value>();
        let values: Vec<Value> = values.collect::<Result<_, _>>().unwrap_or_else(|e| panic!("{args:?}: {e}"));
        assert!(values.len() <= 1, "{args:?}: {values:?}");
    }
}

#[test]
fn attributes() {
    let image = volume();
    let get = |name| image.ok(["xattr", "get", "--json", name, "v.img:/d/f"]);
    hold("lanefs xattr get", &[get("user.text"), get("user.bytes")], &["name_bytes"]);
    hold("lanefs xattr ls", &[image.ok(["xattr", "ls", "--json", "v.img:/d/f"])], &[]);
}

#[test]
fn statistics() {
    let m = Mount::new("metrics=127.0.0.1:0");
    fs::write(m.path("f"), "content").unwrap();
    hold("lanefs top", &[m.image.ok(["top", "m", "--once", "--json"])], &[]);
    m.umount();
    fs::write(m.image.beside("f"), "content").unwrap();
    let out = m.image.lanefs(["cp", "--stats=json", "f", "v.img:/g"]).output().unwrap();
    hold("--stats=json", &[String::from_utf8(out.stderr).unwrap()], &[]);
}

#[test]
fn experiments() {
    let dir = tempfile::tempdir().unwrap();
    let mut lab = Command::new(env!("CARGO_BIN_EXE_lanefs"));
    lab.args([
        "lab",
        "--quick",
        "rangelock",
        "--rounds",
        "1",
        "--threads",
        "1,2",
        "--peers",
        "none",
        "--volume",
        ".",
        "--json",
    ]);
    let out = lab.current_dir(dir.path()).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let seldom = ["left_out[]", "findings[]", "answers[]", "cases[].charts[].series[].source"];
    let seldom = seldom.map(|name| format!("experiments[].{name}"));
    hold("lanefs lab", &[String::from_utf8(out.stdout).unwrap()], &seldom.each_ref().map(String::as_str));
}

/// No command has JSON that the document does not name.
#[test]
fn every_command_with_json_has_a_section() {
    let dir = tempfile::tempdir().unwrap();
    let made = Command::new(env!("CARGO_BIN_EXE_lanefs")).arg("pages").arg(dir.path()).status().unwrap();
    assert!(made.success());
    let document = document();
    let headings: Vec<&str> = document.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let mut count = 0;
    for page in fs::read_dir(dir.path().join("man1")).unwrap().map(Result::unwrap) {
        let text = fs::read_to_string(page.path()).unwrap();
        if text.contains("\\-\\-json") {
            let name = page.file_name().into_string().unwrap();
            let command = name.trim_end_matches(".1").replace('-', " ");
            let named = headings.iter().any(|heading| heading.split(", ").any(|part| part == command));
            // The page of the whole command and that of a group of commands only mention it.
            let mentions = ["lanefs", "lanefs xattr"].contains(&command.as_str());
            assert!(named || mentions, "{command}");
            count += 1;
        }
    }
    assert!(count >= 10, "{count}");
}
