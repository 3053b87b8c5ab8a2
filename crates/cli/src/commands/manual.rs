//! What the manual pages say beside the arguments: examples, exit status, environment, other pages.

use lanefs_fuse::{MOUNT_OPTIONS, OptionKind};
use std::fmt::Write;

/// A command line, and what it does.
type Example = (&'static str, &'static str);

/// The examples of each command, and pages of other programs that tell more.
const COMMANDS: &[(&str, &[Example], &[&str])] = &[
    (
        "mkfs",
        &[
            ("lanefs mkfs --size 1G disk.img", "Makes a volume of 1 GiB in a new file."),
            ("lanefs mkfs -L data -O ^has_journal /dev/sdb1", "Makes one without a journal on a device."),
        ],
        &["mke2fs(8)", "ext4(5)"],
    ),
    (
        "build",
        &[
            ("lanefs build rootfs root.img", "Makes a volume of a folder, as small as it can be."),
            ("lanefs build alpine.tar:3.20 root.img --size fit+20%", "Of an image, with room to write."),
            (
                "lanefs build img:app disk.raw --partition-table gpt --label root --verity",
                "Makes a disk with a verified root partition, and prints its root hash.",
            ),
        ],
        &["lanefs-import(1)", "lanefs-mkfs(1)", "lanefs-verity(1)", "resize2fs(8)", "veritysetup(8)"],
    ),
    ("info", &[("lanefs info disk.img", "Shows size, features and state.")], &["dumpe2fs(8)"]),
    ("df", &[("lanefs df disk.img", "Shows how much is free.")], &["df(1)"]),
    (
        "label",
        &[
            ("lanefs label disk.img data", "Names a volume."),
            ("lanefs label disk.img", "Prints the name of a volume."),
        ],
        &["lanefs-tune(1)", "e2label(8)"],
    ),
    (
        "tune",
        &[
            (
                "lanefs tune -m 1 -e remount-ro disk.img",
                "Keeps one percent for root; errors make it read-only.",
            ),
            ("lanefs tune -O metadata_csum_seed -U random disk.img", "Gives a copy a UUID of its own."),
        ],
        &["lanefs-label(1)", "lanefs-info(1)", "tune2fs(8)"],
    ),
    ("frag", &[("lanefs frag disk.img:/var", "Shows in how many pieces files lie.")], &["filefrag(8)"]),
    ("recover", &[("lanefs recover disk.img", "Replays the journal after a crash.")], &["e2fsck(8)"]),
    (
        "check",
        &[
            ("lanefs check disk.img", "Checks a volume, and says what is wrong with it."),
            ("lanefs check --json disk.img", "The same for programs."),
            (
                "lanefs check /dev/sdb1",
                "Checks what the kernel has mounted at /mnt, between `fsfreeze -f /mnt` and `fsfreeze -u /mnt`.",
            ),
        ],
        &["lanefs-recover(1)", "e2fsck(8)"],
    ),
    (
        "resize",
        &[
            ("lanefs resize disk.img 8G", "Grows a volume, and its file, to 8 GiB."),
            ("lanefs resize disk.img +2G", "Grows it by 2 GiB."),
            ("lanefs resize disk.img fit+5%", "Shrinks it to its minimum and a twentieth more."),
            ("lanefs resize disk.raw@2", "Grows it to the end of its partition."),
            ("lanefs resize /mnt +2G", "Grows the volume that is mounted there, and its file."),
        ],
        &["lanefs-mkfs(1)", "resize2fs(8)"],
    ),
    ("fstrim", &[("lanefs fstrim disk.img", "Gives free space back to the host.")], &["fstrim(8)"]),
    (
        "zero-free",
        &[(
            "lanefs zero-free disk.img",
            "Zeros what deleted files have left in free blocks, so that the image compresses.",
        )],
        &["lanefs-fstrim(1)"],
    ),
    (
        "commit",
        &[
            (
                "lanefs commit overlay:base=disk.img,top=mine.top",
                "Writes what the overlay has changed to disk.img, and empties the overlay.",
            ),
            ("lanefs commit mine.top", "The same, for the base that the file was made on."),
        ],
        &["lanefs-mount(1)"],
    ),
    (
        "verity",
        &[("lanefs verity format root.img", "Makes the hash tree behind the volume.")],
        &[
            "lanefs-verity-dump(1)",
            "lanefs-verity-enable(1)",
            "lanefs-verity-format(1)",
            "lanefs-verity-measure(1)",
            "lanefs-verity-verify(1)",
            "fsverity(1)",
            "veritysetup(8)",
        ],
    ),
    (
        "verity enable",
        &[("lanefs verity enable root.img:/usr/bin/app", "Gives a file a hash tree; it cannot change then.")],
        &["lanefs-verity(1)", "lanefs-verity-measure(1)", "fsverity(1)"],
    ),
    (
        "verity measure",
        &[("lanefs verity measure root.img:/usr/bin/app", "Prints the digest that stands for the content.")],
        &["lanefs-verity(1)", "lanefs-verity-enable(1)", "fsverity(1)"],
    ),
    (
        "verity format",
        &[
            ("lanefs verity format root.img", "Makes the hash tree behind the volume."),
            ("lanefs verity format --hash-file root.hash root.img", "Makes it in a file of its own."),
        ],
        &["lanefs-verity(1)", "veritysetup(8)"],
    ),
    (
        "verity verify",
        &[("lanefs verity verify root.img bd6c96b1c5ddb0cd", "Names the first block that is wrong.")],
        &["lanefs-verity(1)", "veritysetup(8)"],
    ),
    (
        "verity dump",
        &[("lanefs verity dump root.img", "Shows salt, UUID and sizes of a tree.")],
        &["lanefs-verity(1)", "veritysetup(8)"],
    ),
    (
        "mmp",
        &[
            ("lanefs mmp show nbd://server/disk", "Shows which host uses the volume."),
            ("lanefs mmp on disk.img", "Has every opener claim the volume."),
        ],
        &[
            "lanefs-mmp-clear(1)",
            "lanefs-mmp-off(1)",
            "lanefs-mmp-on(1)",
            "lanefs-mmp-show(1)",
            "dumpe2fs(8)",
            "tune2fs(8)",
        ],
    ),
    (
        "mmp show",
        &[("lanefs mmp show nbd://server/disk", "Shows which host uses the volume.")],
        &["lanefs-mmp(1)", "lanefs-info(1)", "dumpe2fs(8)"],
    ),
    (
        "mmp on",
        &[("lanefs mmp on --interval 2 disk.img", "Has every opener claim the volume, and renew it often.")],
        &["lanefs-mmp(1)", "lanefs-mkfs(1)", "tune2fs(8)"],
    ),
    (
        "mmp off",
        &[("lanefs mmp off disk.img", "Takes the protection away.")],
        &["lanefs-mmp(1)", "tune2fs(8)"],
    ),
    (
        "mmp clear",
        &[("lanefs mmp clear disk.img", "Lets the next opener in at once, after a host has died.")],
        &["lanefs-mmp(1)", "e2fsck(8)", "tune2fs(8)"],
    ),
    (
        "mount",
        &[
            ("lanefs mount disk.img /mnt", "Mounts a volume."),
            ("lanefs mount disk.img /mnt -o ro", "Mounts it for reading."),
        ],
        &["lanefs-umount(1)", "lanefs-mount-options(5)", "mount.lanefs(8)", "mount(8)", "ext4(5)"],
    ),
    (
        "umount",
        &[("lanefs umount /mnt", "Unmounts, and waits until all is written.")],
        &["lanefs-mount(1)", "umount.lanefs(8)", "umount(8)"],
    ),
    (
        "run",
        &[
            ("lanefs run disk.img -- ls -l", "Runs a program in the root directory of a volume."),
            ("lanefs run --rw --chroot root.img -- /bin/sh", "A shell of the volume, which changes it."),
            (
                "lanefs run --overlay --bind src:/src root.img -- make -C src",
                "Drops what the program writes.",
            ),
        ],
        &["lanefs-mount(1)", "unshare(1)", "user_namespaces(7)"],
    ),
    ("top", &[("lanefs top /mnt", "Watches what a mount does.")], &["lanefs-mount(1)"]),
    (
        "import",
        &[
            ("lanefs import rootfs disk.img:/", "Fills a volume with a folder."),
            ("lanefs import rootfs.tar.gz disk.img:/ --owner 0:0", "All of it belongs to root."),
            ("lanefs import alpine.tar:3.20 disk.img:/", "An image, by docker save or skopeo copy."),
            ("lanefs import base.tar.gz app.tar disk.img:/", "Layers, with their whiteouts."),
        ],
        &["lanefs-export(1)", "tar(1)", "skopeo(1)", "umoci(1)"],
    ),
    (
        "export",
        &[
            ("lanefs export disk.img:/etc etc", "Copies a directory into a folder."),
            ("lanefs export disk.img:/ rootfs.tar.gz", "Packs a whole volume."),
            (
                "lanefs export --oci --tag app disk.img layout",
                "Makes an OCI image; layout.tar would be an archive.",
            ),
            (
                "lanefs export --oci-layer --since base.img disk.img app.tar.gz",
                "Only what differs, with whiteouts, as a layer.",
            ),
            ("lanefs export disk.img:/ - --uid-map 100000:0:65536", "An archive to standard output."),
        ],
        &["lanefs-import(1)", "tar(1)"],
    ),
    ("ls", &[("lanefs ls -l disk.img:/etc", "Lists a directory.")], &["ls(1)"]),
    ("tree", &[("lanefs tree disk.img:/etc", "Shows a directory and all below.")], &["tree(1)"]),
    (
        "find",
        &[
            (
                "lanefs find disk.img:/etc -name *.conf -newer disk.img:/etc/hostname",
                "Names by two conditions.",
            ),
            ("lanefs find disk.img -type f -perm /6000", "Files with a set-id bit, in a whole volume."),
        ],
        &["find(1)"],
    ),
    (
        "du",
        &[
            ("lanefs du -h -d 1 disk.img", "Shows the space of each directory below the root."),
            ("lanefs du -s --apparent-size disk.img:/usr", "Shows the sum of the sizes in a tree."),
        ],
        &["lanefs-df(1)", "du(1)"],
    ),
    (
        "diff",
        &[
            ("lanefs diff old.img new.img", "Shows what was added, removed and changed."),
            (
                "lanefs diff --no-times a.img:/etc b.img:/etc",
                "Compares a directory, whenever it was written.",
            ),
        ],
        &["lanefs-cp(1)", "lanefs-export(1)", "diff(1)"],
    ),
    ("stat", &[("lanefs stat disk.img:/etc/passwd", "Shows all that is known of a file.")], &["stat(1)"]),
    (
        "readlink",
        &[
            ("lanefs readlink disk.img:/etc/localtime", "Prints what a link leads to."),
            ("lanefs readlink -f disk.img:/bin/sh", "Prints the path without any link."),
        ],
        &["readlink(1)"],
    ),
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
    (
        "touch",
        &[
            ("lanefs touch disk.img:/etc/ready", "Makes an empty file, or sets its times to now."),
            ("lanefs touch -r host.conf disk.img:/etc/host.conf", "Takes over the times of a file."),
        ],
        &["touch(1)"],
    ),
    (
        "truncate",
        &[
            ("lanefs truncate -s 1G disk.img:/data", "Makes a file 1 GiB long, which takes no block."),
            ("lanefs truncate -s -4096 disk.img:/log", "Takes the last 4096 bytes away."),
        ],
        &["lanefs-fallocate(1)", "truncate(1)"],
    ),
    ("ln", &[("lanefs ln -s ../lib disk.img:/usr/lib64", "Makes a symbolic link.")], &["ln(1)"]),
    (
        "mknod",
        &[
            ("lanefs mknod -m 666 disk.img:/dev/null c 1 3", "Makes a character device."),
            ("lanefs mknod disk.img:/run/pipe p", "Makes a fifo."),
        ],
        &["mknod(1)"],
    ),
    (
        "fallocate",
        &[("lanefs fallocate -l 1G disk.img:/swap", "Reserves 1 GiB for a file.")],
        &["lanefs-truncate(1)", "fallocate(1)"],
    ),
    ("chmod", &[("lanefs chmod -R go-w disk.img:/etc", "Changes the modes of a tree.")], &["chmod(1)"]),
    ("chown", &[("lanefs chown 1000:1000 disk.img:/home/me", "Changes the owner.")], &["chown(1)"]),
    (
        "xattr",
        &[("lanefs xattr set user.note hello disk.img:/f", "Sets an extended attribute.")],
        &[
            "lanefs-xattr-get(1)",
            "lanefs-xattr-ls(1)",
            "lanefs-xattr-rm(1)",
            "lanefs-xattr-set(1)",
            "xattr(7)",
        ],
    ),
    (
        "xattr get",
        &[("lanefs xattr get user.note disk.img:/f", "Writes the value of an attribute to standard output.")],
        &["lanefs-xattr(1)", "getfattr(1)"],
    ),
    (
        "xattr set",
        &[("lanefs xattr set user.key 0x00ff disk.img:/f", "Sets an attribute to two bytes.")],
        &["lanefs-xattr(1)", "setfattr(1)"],
    ),
    (
        "xattr rm",
        &[("lanefs xattr rm user.note disk.img:/f", "Removes an attribute.")],
        &["lanefs-xattr(1)", "setfattr(1)"],
    ),
    (
        "xattr ls",
        &[("lanefs xattr ls --json disk.img:/f", "Lists attributes with their values, as JSON.")],
        &["lanefs-xattr(1)", "getfattr(1)"],
    ),
    (
        "lab compare",
        &[("lanefs lab compare before.json after.json", "Holds two runs against each other.")],
        &["lanefs-lab(1)"],
    ),
    (
        "lab",
        &[("lanefs lab", "Runs the experiments of the write path.")],
        &["lanefs-lab-compare(1)", "fio(1)"],
    ),
];

/// The programs that mount(8) and umount(8) call.
const HELPERS: &[(&str, &[Example], &[&str])] = &[
    (
        "mount.lanefs",
        &[
            ("mount -t lanefs disk.img /mnt", "Mounts a volume."),
            ("/srv/data.img /data lanefs noatime,nofail,uhelper=lanefs 0 0", "A line of fstab."),
        ],
        &["lanefs-mount(1)", "lanefs-mount-options(5)", "umount.lanefs(8)", "fstab(5)", "mount(8)"],
    ),
    (
        "umount.lanefs",
        &[("umount /mnt", "Unmounts, and waits until all is written.")],
        &["lanefs-umount(1)", "mount.lanefs(8)", "umount(8)"],
    ),
];

/// Returns the sections that follow the arguments on the page of a command, by its words behind
/// `lanefs`; "" is `lanefs` itself.
pub(super) fn sections(command: &str) -> String {
    let mut out = String::new();
    let found = COMMANDS.iter().chain(HELPERS).find(|(name, ..)| *name == command);
    let (examples, others) = found.map_or((&[][..], &[][..]), |(_, examples, others)| (examples, others));
    // The page of the whole command has the first example of each.
    let firsts: Vec<Example> = COMMANDS.iter().filter_map(|(_, e, _)| e.first()).copied().collect();
    let examples = if command.is_empty() { &firsts[..] } else { examples };
    if !examples.is_empty() {
        section(&mut out, "EXAMPLES");
        examples.iter().for_each(|(line, text)| entry(&mut out, line, text));
    }
    section(&mut out, "EXIT STATUS");
    statuses(command).iter().for_each(|(code, text)| entry(&mut out, code, text));
    section(&mut out, "ENVIRONMENT");
    for (name, text) in ENVIRONMENT {
        entry(&mut out, name, text);
    }
    section(&mut out, "SEE ALSO");
    let own = if command.is_empty() {
        vec!["lanefs-mount-options(5)", "ext4(5)", "mke2fs(8)"]
    } else {
        vec!["lanefs(1)"]
    };
    references(&mut out, own.iter().chain(others));
    out
}

const ENVIRONMENT: &[(&str, &str)] = &[
    ("SOURCE_DATE_EPOCH", "Seconds since 1970 that stand for now, for results that come out the same twice."),
    ("TZ", "The time zone of times that are shown."),
    ("NO_COLOR", "If it is set, nothing is coloured."),
    (
        "XDG_RUNTIME_DIR",
        "Where sockets of users' mounts are, by which lanefs top and lanefs umount find them.",
    ),
];

/// Returns what a command may exit with.
fn statuses(command: &str) -> Vec<(&'static str, &'static str)> {
    let mut all = vec![("0", "All was done.")];
    if matches!(command, "mount" | "umount" | "mount.lanefs" | "umount.lanefs") {
        all.push(("1", "Wrong arguments or options."));
        all.push(("2", "The system failed."));
        all.push(("32", "It could not be mounted, or unmounted, or its volume not be closed in time."));
        return all;
    }
    all.push(("1", "Something failed; with several names the others were done. Also wrong arguments."));
    match command {
        "check" => all.extend([
            ("4", "The volume is not consistent."),
            ("8", "The volume could not be checked."),
            ("16", "Wrong arguments."),
        ]),
        "run" => {
            all = vec![("0 to 124", "That of the program, which may have any other too.")];
            all.extend([
                ("125", "lanefs itself failed, or wrong arguments."),
                ("126", "The program could not be run."),
                ("127", "There is no such program."),
                ("128 and more", "A signal ended the program: 128 and its number."),
            ]);
            return all;
        }
        "diff" => {
            all = vec![("0", "Both are the same."), ("1", "They differ.")];
            all.push(("2", "Something could not be compared, or wrong arguments."));
        }
        "ls" => all.push(("2", "A name that was given cannot be listed, or wrong arguments.")),
        "lab compare" => all.push(("2", "Something got worse beyond the noise.")),
        "" => {
            all.push(("2", "Of ls: a name that was given cannot be listed, or wrong arguments."));
            all.push(("1 and 2", "Of diff: they differ, and something could not be compared."));
            all.push(("4", "Of check: the volume is not consistent."));
            all.push(("8", "Of check: the volume could not be checked."));
            all.push(("16", "Of check: wrong arguments."));
            all.push(("32", "Of mount and umount: it could not be mounted, or unmounted."));
        }
        _ => {}
    }
    all.push(("141", "The reader of standard output went away."));
    all
}

/// Returns the page of all options of a mount: lanefs-mount-options(5).
pub(super) fn mount_options() -> String {
    let mut out = format!(
        ".TH lanefs-mount-options 5 \"\" \"lanefs {}\"\n.SH NAME\nlanefs\\-mount\\-options \\- options of a mount of lanefs\n\
         .SH SYNOPSIS\n\\fBlanefs mount\\fR \\fB\\-o\\fR \\fIOPTION\\fR[,\\fIOPTION\\fR...] \\fIVOLUME DIRECTORY\\fR\n\
         .SH DESCRIPTION\nThey have the names that mount(8), ext4(5) and FUSE have for them. The last of several that\n\
         contradict each other counts. One that asks for what lanefs does not do is refused by name.\n",
        env!("CARGO_PKG_VERSION")
    );
    let parts = [
        (OptionKind::Mount, "OF THE MOUNT"),
        (OptionKind::Volume, "OF THE VOLUME"),
        (OptionKind::Idle, "TAKEN WITHOUT EFFECT"),
        (OptionKind::Refused, "REFUSED"),
    ];
    for (kind, title) in parts {
        section(&mut out, title);
        for option in MOUNT_OPTIONS.iter().filter(|option| option.kind() == kind) {
            let text = option.refusal().unwrap_or_else(|| option.text.to_owned());
            entry(&mut out, &option.forms.join(", "), &text);
        }
    }
    section(&mut out, "EXAMPLES");
    entry(&mut out, "lanefs mount -o ro,noatime disk.img /mnt", "Mounts a volume for reading.");
    entry(&mut out, "lanefs mount -o commit=30,cache=1G disk.img /mnt", "With more in memory, for longer.");
    section(&mut out, "SEE ALSO");
    let others = ["lanefs(1)", "lanefs-mount(1)", "mount.lanefs(8)", "mount(8)", "ext4(5)", "fstab(5)"];
    references(&mut out, others.iter());
    out
}

fn references<'a>(out: &mut String, pages: impl Iterator<Item = &'a &'a str>) {
    let all: Vec<String> = pages.map(|page| reference(page)).collect();
    let _ = writeln!(out, "{}", all.join(", "));
}

fn section(out: &mut String, title: &str) {
    let _ = writeln!(out, ".SH \"{title}\"");
}

fn entry(out: &mut String, term: &str, text: &str) {
    let _ = writeln!(out, ".TP\n\\fB{}\\fR\n{}", escaped(term), escaped(text));
}

/// Returns `name(1)` with the name in bold.
fn reference(page: &str) -> String {
    let (name, section) = page.split_once('(').unwrap_or((page, ""));
    format!("\\fB{}\\fR({section}", escaped(name))
}

/// Escapes text for roff: no request at the start of a line, no hyphen for a minus. Text between
/// backticks becomes bold.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    let parts = text.split('`').enumerate();
    let text: String =
        parts.map(|(n, part)| if n % 2 == 1 { format!("\\fB{part}\\fR") } else { part.to_owned() }).collect();
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::find::with_two_hyphens;
    use clap::{CommandFactory, Parser};

    /// Every command has an example, and the arguments take every example.
    #[test]
    fn examples_are_command_lines() {
        let args = crate::Args::command();
        let shown: Vec<_> = args.get_subcommands().filter(|c| !c.is_hide_set()).collect();
        let nested = shown
            .iter()
            .flat_map(|c| c.get_subcommands().map(|n| format!("{} {}", c.get_name(), n.get_name())));
        for name in shown.iter().map(|c| c.get_name().to_owned()).chain(nested) {
            assert!(COMMANDS.iter().any(|(known, e, _)| *known == name && !e.is_empty()), "{name}");
        }
        for (name, examples, _) in COMMANDS {
            for (line, text) in *examples {
                assert!(line.starts_with(&format!("lanefs {name}")) && text.ends_with('.'), "{line}");
                let words = line.split(' ').map(Into::into);
                if let Err(e) = crate::Args::try_parse_from(with_two_hyphens(words)) {
                    panic!("{line}: {e}");
                }
            }
        }
    }
}
