//! What the manual pages say beside the arguments: examples, exit status, environment, other pages.

use std::fmt::Write;

/// A command line, and what it does.
type Example = (&'static str, &'static str);

/// By command: its examples, and pages of other programs that tell more.
const COMMANDS: &[(&str, &[Example], &[&str])] = &[
    (
        "mkfs",
        &[
            ("lanefs mkfs --size 1G disk.img", "Makes a volume of 1 GiB in a new file."),
            ("lanefs mkfs -L data -O ^has_journal /dev/sdb1", "Makes one without a journal on a device."),
        ],
        &["mke2fs(8)", "ext4(5)"],
    ),
    ("info", &[("lanefs info disk.img", "Shows size, features and state.")], &["dumpe2fs(8)"]),
    ("df", &[("lanefs df disk.img", "Shows how much is free.")], &["df(1)"]),
    ("frag", &[("lanefs frag disk.img:/var", "Shows in how many pieces files lie.")], &["filefrag(8)"]),
    ("recover", &[("lanefs recover disk.img", "Replays the journal after a crash.")], &["e2fsck(8)"]),
    ("fstrim", &[("lanefs fstrim disk.img", "Gives free space back to the host.")], &["fstrim(8)"]),
    (
        "mount",
        &[
            ("lanefs mount disk.img /mnt", "Mounts a volume."),
            ("lanefs mount disk.img /mnt -o ro", "Mounts it for reading."),
        ],
        &["lanefs-umount(1)", "mount(8)", "ext4(5)"],
    ),
    ("umount", &[("lanefs umount /mnt", "Unmounts, and waits until all is written.")], &["umount(8)"]),
    ("top", &[("lanefs top /mnt", "Watches what a mount does.")], &["lanefs-mount(1)"]),
    (
        "import",
        &[
            ("lanefs import rootfs disk.img:/", "Fills a volume with a folder."),
            ("lanefs import rootfs.tar.gz disk.img:/ --owner 0:0", "All of it belongs to root."),
        ],
        &["lanefs-export(1)", "tar(1)"],
    ),
    (
        "export",
        &[
            ("lanefs export disk.img:/etc etc", "Copies a directory into a folder."),
            ("lanefs export disk.img:/ rootfs.tar.gz", "Packs a whole volume."),
            ("lanefs export disk.img:/ - --uid-map 100000:0:65536", "An archive to standard output."),
        ],
        &["lanefs-import(1)", "tar(1)"],
    ),
    ("ls", &[("lanefs ls -l disk.img:/etc", "Lists a directory.")], &["ls(1)"]),
    ("tree", &[("lanefs tree disk.img:/etc", "Shows a directory and all below.")], &["tree(1)"]),
    ("stat", &[("lanefs stat disk.img:/etc/passwd", "Shows all that is known of a file.")], &["stat(1)"]),
    ("cat", &[("lanefs cat disk.img:/etc/passwd", "Writes a file to standard output.")], &["cat(1)"]),
    (
        "cp",
        &[
            ("lanefs cp app.conf disk.img:/etc/", "Copies a file into a volume."),
            ("lanefs cp -a disk.img:/home other.img:/", "Copies a tree to another volume, all kept."),
        ],
        &["lanefs-export(1)", "cp(1)"],
    ),
    ("mv", &[("lanefs mv disk.img:/a disk.img:/b", "Renames a file.")], &["mv(1)"]),
    ("rm", &[("lanefs rm -r disk.img:/tmp/old", "Removes a tree.")], &["rm(1)"]),
    ("mkdir", &[("lanefs mkdir -p disk.img:/a/b/c", "Makes a directory and those above.")], &["mkdir(1)"]),
    ("ln", &[("lanefs ln -s ../lib disk.img:/usr/lib64", "Makes a symbolic link.")], &["ln(1)"]),
    (
        "fallocate",
        &[("lanefs fallocate -l 1G disk.img:/swap", "Reserves 1 GiB for a file.")],
        &["fallocate(1)"],
    ),
    ("chmod", &[("lanefs chmod -R go-w disk.img:/etc", "Changes the modes of a tree.")], &["chmod(1)"]),
    ("chown", &[("lanefs chown 1000:1000 disk.img:/home/me", "Changes the owner.")], &["chown(1)"]),
    (
        "xattr",
        &[("lanefs xattr set user.note hello disk.img:/f", "Sets an extended attribute.")],
        &["getfattr(1)", "setfattr(1)", "xattr(7)"],
    ),
    ("lab", &[("lanefs lab", "Runs the experiments of the write path.")], &["fio(1)"]),
];

/// Returns the sections that follow the arguments on the page of a command; "" is `lanefs` itself.
pub(super) fn sections(command: &str) -> String {
    let mut out = String::new();
    let found = COMMANDS.iter().find(|(name, ..)| *name == command);
    let (examples, others) = found.map_or((&[][..], &[][..]), |(_, examples, others)| (examples, others));
    // The page of the whole command has the first example of each.
    let firsts: Vec<Example> = COMMANDS.iter().filter_map(|(_, e, _)| e.first()).copied().collect();
    let examples = if command.is_empty() { &firsts[..] } else { examples };
    if !examples.is_empty() {
        section(&mut out, "EXAMPLES");
        examples.iter().for_each(|(line, text)| entry(&mut out, line, text));
    }
    section(&mut out, "EXIT STATUS");
    entry(&mut out, "0", "All was done.");
    entry(&mut out, "1", "Something failed; with several names the others were done. Also wrong arguments.");
    if matches!(command, "ls" | "") {
        entry(&mut out, "2", "Of ls: a name that was given cannot be listed, or wrong arguments.");
    }
    entry(&mut out, "141", "The reader of standard output went away.");
    section(&mut out, "ENVIRONMENT");
    entry(
        &mut out,
        "SOURCE_DATE_EPOCH",
        "Seconds since 1970 that stand for now, for results that come out the same twice.",
    );
    entry(&mut out, "TZ", "The time zone of times that are shown.");
    entry(&mut out, "NO_COLOR", "If it is set, nothing is coloured.");
    section(&mut out, "SEE ALSO");
    let own = if command.is_empty() { vec!["ext4(5)", "mke2fs(8)"] } else { vec!["lanefs(1)"] };
    let all: Vec<String> = own.iter().chain(others).map(|page| reference(page)).collect();
    let _ = writeln!(out, "{}", all.join(", "));
    out
}

fn section(out: &mut String, title: &str) {
    let _ = writeln!(out, ".SH \"{title}\"");
}

fn entry(out: &mut String, term: &str, text: &str) {
    let _ = writeln!(out, ".TP\n\\fB{}\\fR\n{}", escaped(term), escaped(text));
}

/// `name(1)` with the name in bold.
fn reference(page: &str) -> String {
    let (name, section) = page.split_once('(').unwrap_or((page, ""));
    format!("\\fB{}\\fR({section}", escaped(name))
}

/// Text that roff takes for nothing else: no request at the start of a line, no hyphen for a minus.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    /// Every command has an example, and the arguments take every example.
    #[test]
    fn examples_are_command_lines() {
        let args = crate::Args::command();
        let shown = args.get_subcommands().filter(|c| !c.is_hide_set()).map(|c| c.get_name());
        for name in shown {
            assert!(COMMANDS.iter().any(|(known, e, _)| *known == name && !e.is_empty()), "{name}");
        }
        for (name, examples, _) in COMMANDS {
            for (line, text) in *examples {
                assert!(line.starts_with(&format!("lanefs {name}")) && text.ends_with('.'), "{line}");
                if let Err(e) = crate::Args::try_parse_from(line.split(' ')) {
                    panic!("{line}: {e}");
                }
            }
        }
    }
}
