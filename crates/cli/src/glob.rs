//! Patterns of names, as fnmatch(3) has them: `*`, `?`, `[a-z]`, `[!a-z]`, `[[:digit:]]`, `\`.
//!
//! A name is a row of characters; a byte that is not UTF-8 is a character of its own. `*` and `?`
//! take slashes and leading dots too, as those of find(1) do.

/// The code of a byte `b` that is not UTF-8: `NOT_UTF8 + b`, above any code point.
const NOT_UTF8: u32 = 0x11_0000;

/// A parsed pattern.
#[derive(Debug, Clone)]
pub(crate) struct Glob(Vec<Part>);

#[derive(Debug, Clone)]
enum Part {
    One(u32),
    AnyOne,
    Any,
    Set { negated: bool, items: Vec<ClassItem> },
}

#[derive(Debug, Clone)]
enum ClassItem {
    Range(u32, u32),
    Class(fn(&char) -> bool),
}

impl Glob {
    pub(crate) fn new(pattern: &[u8]) -> Self {
        let pattern = characters(pattern);
        let (mut parts, mut at) = (Vec::new(), 0);
        while let Some(&c) = pattern.get(at) {
            at += 1;
            parts.push(match char::from_u32(c) {
                Some('*') => Part::Any,
                Some('?') => Part::AnyOne,
                Some('[') => match set(&pattern[at..]) {
                    Some((part, len)) => {
                        at += len;
                        part
                    }
                    None => Part::One(c),
                },
                Some('\\') if at < pattern.len() => {
                    at += 1;
                    Part::One(pattern[at - 1])
                }
                _ => Part::One(c),
            });
        }
        parts.dedup_by(|a, b| matches!((a, b), (Part::Any, Part::Any)));
        Self(parts)
    }

    /// Returns whether the pattern describes all of `name`. Takes time by the product of the
    /// lengths at most.
    pub(crate) fn matches(&self, name: &[u8]) -> bool {
        let name = characters(name);
        let (mut part, mut at) = (0, 0);
        // Where to go on if what follows the last `*` does not match: it takes one more.
        let mut again: Option<(usize, usize)> = None;
        loop {
            match (self.0.get(part), name.get(at)) {
                (None, None) => return true,
                (Some(Part::Any), _) => {
                    part += 1;
                    again = Some((part, at));
                    continue;
                }
                (Some(wanted), Some(&c)) if wanted.takes(c) => {
                    (part, at) = (part + 1, at + 1);
                    continue;
                }
                _ => {}
            }
            let Some((after, taken)) = again.filter(|(_, taken)| *taken < name.len()) else { return false };
            (part, at) = (after, taken + 1);
            again = Some((after, taken + 1));
        }
    }
}

impl Part {
    fn takes(&self, c: u32) -> bool {
        match self {
            Self::One(one) => *one == c,
            Self::AnyOne => true,
            Self::Any => false,
            Self::Set { negated, items } => items.iter().any(|item| item.has(c)) != *negated,
        }
    }
}

impl ClassItem {
    fn has(&self, c: u32) -> bool {
        match self {
            Self::Range(from, to) => (*from..=*to).contains(&c),
            Self::Class(class) => char::from_u32(c).is_some_and(|c| class(&c)),
        }
    }
}

/// Reads a set from behind its `[`; returns its length with the `]`. Without one it is no set.
fn set(pattern: &[u32]) -> Option<(Part, usize)> {
    let is = |at: usize, c: char| pattern.get(at) == Some(&u32::from(c));
    let negated = is(0, '!') || is(0, '^');
    let first = usize::from(negated);
    let (mut items, mut at) = (Vec::new(), first);
    while at == first || !is(at, ']') {
        if is(at, '[') && is(at + 1, ':') {
            let name = &pattern[at + 2..];
            let end = name.windows(2).position(|pair| *pair == [u32::from(':'), u32::from(']')])?;
            let name: String = name[..end].iter().filter_map(|c| char::from_u32(*c)).collect();
            items.push(ClassItem::Class(class(&name)?));
            at += end + 4;
            continue;
        }
        at += usize::from(is(at, '\\'));
        let from = *pattern.get(at)?;
        at += 1;
        if is(at, '-') && pattern.get(at + 1).is_some() && !is(at + 1, ']') {
            at += 1 + usize::from(is(at + 1, '\\'));
            items.push(ClassItem::Range(from, *pattern.get(at)?));
            at += 1;
        } else {
            items.push(ClassItem::Range(from, from));
        }
    }
    Some((Part::Set { negated, items }, at + 1))
}

fn class(name: &str) -> Option<fn(&char) -> bool> {
    Some(match name {
        "alnum" => |c| c.is_alphanumeric(),
        "alpha" => |c| c.is_alphabetic(),
        "blank" => |c| matches!(c, ' ' | '\t'),
        "cntrl" => |c| c.is_control(),
        "digit" => |c| c.is_ascii_digit(),
        "graph" => |c| !c.is_control() && !c.is_whitespace(),
        "lower" => |c| c.is_lowercase(),
        "print" => |c| !c.is_control(),
        "punct" => |c| !c.is_control() && !c.is_whitespace() && !c.is_alphanumeric(),
        "space" => |c| c.is_whitespace(),
        "upper" => |c| c.is_uppercase(),
        "xdigit" => |c| c.is_ascii_hexdigit(),
        _ => return None,
    })
}

fn characters(bytes: &[u8]) -> Vec<u32> {
    let mut out = Vec::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        out.extend(chunk.valid().chars().map(u32::from));
        out.extend(chunk.invalid().iter().map(|b| NOT_UTF8 + u32::from(*b)));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `find -name PATTERN` with the same names says the same: crates/cli/tests/small.rs.
    #[test]
    fn matches_as_fnmatch() {
        for (pattern, yes, no) in [
            ("", &[""][..], &["a"][..]),
            ("*", &["", "a", ".a", "a/b"], &[]),
            ("a*b*c", &["abc", "aXbXbc", "abbc"], &["ab", "abcd"]),
            ("?", &["a", "é"], &["", "ab"]),
            ("[a-c]x", &["ax", "cx"], &["dx", "x"]),
            ("[!a-c]", &["d", "é"], &["a", ""]),
            ("[]a]", &["]", "a"], &["b"]),
            ("[a-]", &["a", "-"], &["b"]),
            ("[[:digit:]a]", &["7", "a"], &["b"]),
            ("[\\]]", &["]"], &["\\"]),
            ("[a", &["[a"], &["a"]),
            ("\\*", &["*"], &["a"]),
            ("\\", &["\\"], &["a"]),
        ] {
            let glob = Glob::new(pattern.as_bytes());
            assert!(yes.iter().all(|name| glob.matches(name.as_bytes())), "{pattern}");
            assert!(!no.iter().any(|name| glob.matches(name.as_bytes())), "{pattern}");
        }
        assert!(Glob::new(b"?\xff").matches(b"\xfe\xff"));
    }

    #[test]
    fn many_stars_take_no_time() {
        let pattern = "*a".repeat(100);
        assert!(!Glob::new(pattern.as_bytes()).matches("a".repeat(99).as_bytes()));
        assert!(Glob::new(pattern.as_bytes()).matches("a".repeat(100).as_bytes()));
    }
}
