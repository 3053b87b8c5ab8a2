//! File modes: `drwxr-xr-x` to read, octal and `u+rwX,go-w` to write, as chmod has them.

/// The bits of a type in a mode, and what `ls -l` and `stat` call it.
const TYPES: [(u32, char, &str); 7] = [
    (0o100000, '-', "regular file"),
    (0o040000, 'd', "directory"),
    (0o120000, 'l', "symbolic link"),
    (0o060000, 'b', "block special file"),
    (0o020000, 'c', "character special file"),
    (0o010000, 'p', "fifo"),
    (0o140000, 's', "socket"),
];

const DIR: u32 = 0o040000;
const SETUID: u32 = 0o4000;
const SETGID: u32 = 0o2000;
const STICKY: u32 = 0o1000;

/// Formats a mode as ten characters: `-rwxr-xr-x`.
pub(crate) fn shown(mode: u32) -> String {
    let kind = TYPES.iter().find(|t| t.0 == mode & 0o170000).map_or('?', |t| t.1);
    let mut out = String::from(kind);
    for (shift, special, set, bare) in [(6, SETUID, 's', 'S'), (3, SETGID, 's', 'S'), (0, STICKY, 't', 'T')] {
        let bits = mode >> shift;
        out.push(if bits & 4 != 0 { 'r' } else { '-' });
        out.push(if bits & 2 != 0 { 'w' } else { '-' });
        out.push(match (bits & 1 != 0, mode & special != 0) {
            (true, true) => set,
            (false, true) => bare,
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    out
}

/// Names the type of a file: "regular file", "directory", ...
pub(crate) fn kind(mode: u32) -> &'static str {
    TYPES.iter().find(|t| t.0 == mode & 0o170000).map_or("weird file", |t| t.2)
}

/// A change of modes, as chmod's first argument says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ModeChange {
    /// Octal. `whole` (five digits or more): a directory's set-id bits may be cleared too.
    Octal { mode: u32, whole: bool },
    /// Clauses in order.
    Symbolic(Vec<Clause>),
}

/// A clause: `[ugoa]`, an operator and permissions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Clause {
    /// Bits of u, g, o that the clause may touch, special bits included.
    who: u32,
    /// The clause names none of u, g, o and a: the umask restricts it.
    masked: bool,
    op: char,
    perm: Perm,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Perm {
    Bits { rwx: u32, special: u32, execute_if_any: bool },
    CopyOf(u32),
}

impl std::str::FromStr for ModeChange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("invalid mode: {}", crate::quote::quoted(text));
        if text.starts_with(|c: char| c.is_ascii_digit()) {
            let mode = u32::from_str_radix(text, 8).map_err(|_| bad())?;
            if mode > 0o7777 {
                return Err(bad());
            }
            return Ok(Self::Octal { mode, whole: text.len() > 4 });
        }
        let mut clauses = Vec::new();
        for part in text.split(',') {
            parse_clause(part, &mut clauses).ok_or_else(bad)?;
        }
        Ok(Self::Symbolic(clauses))
    }
}

/// Parses `[ugoa]*([-+=]([rwxXst]*|[ugo]))+`.
fn parse_clause(part: &str, clauses: &mut Vec<Clause>) -> Option<()> {
    let ops = part.find(['-', '+', '='])?;
    let (names, mut rest) = part.split_at(ops);
    let mut who = 0;
    for c in names.chars() {
        who |= match c {
            'u' => 0o4700,
            'g' => 0o2070,
            'o' => 0o1007,
            'a' => 0o7777,
            _ => return None,
        };
    }
    let masked = names.is_empty();
    while !rest.is_empty() {
        let op = rest.chars().next()?;
        let end = rest[1..].find(['-', '+', '=']).map_or(rest.len(), |at| at + 1);
        let perm = match &rest[1..end] {
            "u" => Perm::CopyOf(6),
            "g" => Perm::CopyOf(3),
            "o" => Perm::CopyOf(0),
            letters => {
                let (mut rwx, mut special, mut execute_if_any) = (0, 0, false);
                for c in letters.chars() {
                    match c {
                        'r' => rwx |= 0o444,
                        'w' => rwx |= 0o222,
                        'x' => rwx |= 0o111,
                        'X' => execute_if_any = true,
                        's' => special |= SETUID | SETGID,
                        't' => special |= STICKY,
                        _ => return None,
                    }
                }
                Perm::Bits { rwx, special, execute_if_any }
            }
        };
        clauses.push(Clause { who: if masked { 0o7777 } else { who }, masked, op, perm });
        rest = &rest[end..];
    }
    Some(())
}

impl ModeChange {
    /// Returns the permission bits (of 0o7777) that a file of mode `mode` (type bits included)
    /// gets.
    pub(crate) fn apply(&self, mode: u32, umask: u32) -> u32 {
        let old = mode & 0o7777;
        let is_dir = mode & 0o170000 == DIR;
        match self {
            Self::Octal { mode, whole } if is_dir && !whole => mode | (old & (SETUID | SETGID)),
            Self::Octal { mode, .. } => *mode,
            Self::Symbolic(clauses) => clauses.iter().fold(old, |mode, c| c.apply(mode, is_dir, umask)),
        }
    }
}

impl Clause {
    fn apply(&self, mode: u32, is_dir: bool, umask: u32) -> u32 {
        let bits = match self.perm {
            Perm::Bits { rwx, special, execute_if_any } => {
                let execute = execute_if_any && (is_dir || mode & 0o111 != 0);
                rwx | special | if execute { 0o111 } else { 0 }
            }
            Perm::CopyOf(shift) => ((mode >> shift) & 7) * 0o111,
        };
        let mut who = self.who;
        if self.masked {
            who &= !umask;
        }
        let bits = bits & who;
        match self.op {
            '+' => mode | bits,
            '-' => mode & !bits,
            _ => {
                // A directory keeps its set-id bits unless they are named.
                let special = if is_dir { bits & (SETUID | SETGID) | STICKY } else { 0o7000 };
                let clear = self.who & (0o777 | special);
                (mode & !clear) | bits
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    #[test]
    fn shows_as_ls_does() {
        assert_eq!(shown(0o100755), "-rwxr-xr-x");
        assert_eq!(shown(0o041777), "drwxrwxrwt");
        assert_eq!(shown(0o104644), "-rwSr--r--");
        assert_eq!(shown(0o102675), "-rw-rwsr-x");
        assert_eq!(shown(0o120777), "lrwxrwxrwx");
        assert_eq!(shown(0), "?---------");
    }

    #[test]
    fn refuses_what_is_no_mode() {
        for bad in ["", "8", "77777", "u", "z+r", "u+q", "u+rz", "r", "u+ug", ",", "a+r,"] {
            assert!(bad.parse::<ModeChange>().is_err(), "{bad}");
        }
    }

    /// chmod itself is the judge: every change on every kind of mode gives what it gives.
    #[test]
    fn changes_as_chmod_does() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let changes = [
            "0",
            "644",
            "0755",
            "4755",
            "00755",
            "02000",
            "u+x",
            "g-w",
            "o=r",
            "a=",
            "=",
            "+x",
            "-w",
            "=rw",
            "u+s",
            "g+s",
            "+t",
            "o+t",
            "-s",
            "a+X",
            "u=rwX,go=rX",
            "g=u",
            "o=g-w",
            "u-x+w",
            "go+u",
            "a-rwx,u+r",
            "u=s",
            "g=s",
            "ug=rws,o=",
            "+s",
            "=t",
            "u+t",
            "-t",
        ];
        for is_dir in [false, true] {
            for start in [0o644, 0o755, 0o000, 0o7777, 0o2750, 0o4711, 0o1777] {
                for text in changes {
                    let path = dir.path().join("x");
                    if is_dir {
                        std::fs::create_dir(&path).expect("mkdir");
                    } else {
                        std::fs::write(&path, "").expect("write");
                    }
                    std::fs::set_permissions(&path, PermissionsExt::from_mode(start)).expect("chmod");
                    let before = std::fs::metadata(&path).expect("stat").permissions().mode();
                    let ok = Command::new("sh")
                        .args(["-c", "umask 027; chmod -- \"$1\" \"$2\" 2>/dev/null; true", "sh", text])
                        .arg(&path)
                        .status()
                        .expect("chmod");
                    assert!(ok.success());
                    let want = std::fs::metadata(&path).expect("stat").permissions().mode() & 0o7777;
                    let change: ModeChange = text.parse().expect("a mode");
                    assert_eq!(
                        format!("{:o}", change.apply(before, 0o027)),
                        format!("{want:o}"),
                        "chmod {text} on {before:o}"
                    );
                    if is_dir {
                        std::fs::remove_dir(&path).expect("rmdir");
                    } else {
                        std::fs::remove_file(&path).expect("rm");
                    }
                }
            }
        }
    }
}
