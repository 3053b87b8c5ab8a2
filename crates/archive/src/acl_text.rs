//! ACLs as text, the way tar keeps them: `user::rw-,user:1000:r--,group::r--,mask::r--,other::---`.
//!
//! An entry may end in a fourth field with the number of the user or group that its second one
//! names. A name without a number is looked up on this host, as tar does.

use lanefs_format::acl::{Acl, AclEntry, Tag};

/// Parses the ACL in `text`, and puts it in canonical order. Returns `None` if the text is
/// malformed or names an unknown user or group.
pub(crate) fn parse(text: &[u8]) -> Option<Acl> {
    let text = std::str::from_utf8(text).ok()?;
    let mut entries = Vec::new();
    for line in text.split([',', '\n']) {
        let line = line.split('#').next().unwrap_or("").trim();
        if !line.is_empty() {
            entries.push(parse_entry(line)?);
        }
    }
    entries.sort_by_key(|e: &AclEntry| rank(e.tag));
    let acl = Acl { entries };
    acl.validate().ok().map(|()| acl)
}

fn rank(tag: Tag) -> (u8, u32) {
    match tag {
        Tag::UserObj => (0, 0),
        Tag::User(id) => (1, id),
        Tag::GroupObj => (2, 0),
        Tag::Group(id) => (3, id),
        Tag::Mask => (4, 0),
        Tag::Other => (5, 0),
    }
}

fn parse_entry(line: &str) -> Option<AclEntry> {
    let mut fields = line.split(':').map(str::trim);
    let (tag, mut who) = (fields.next()?, fields.next()?);
    let mut perms = fields.next();
    // `other:r--` and `mask:r--` stand for `other::r--` and `mask::r--`.
    if perms.is_none() && matches!(tag, "o" | "other" | "m" | "mask") {
        perms = Some(who);
        who = "";
    }
    let number = || fields.clone().next().unwrap_or(who).parse().or_else(|_| who.parse()).ok();
    let tag = match (tag, who) {
        ("u" | "user", "") => Tag::UserObj,
        ("u" | "user", _) => Tag::User(number().or_else(|| user_id(who))?),
        ("g" | "group", "") => Tag::GroupObj,
        ("g" | "group", _) => Tag::Group(number().or_else(|| group_id(who))?),
        ("m" | "mask", "") => Tag::Mask,
        ("o" | "other", "") => Tag::Other,
        _ => return None,
    };
    let mut perm = 0;
    for c in perms?.chars() {
        perm |= match c {
            'r' => 4,
            'w' => 2,
            'x' => 1,
            '-' => 0,
            _ => return None,
        };
    }
    Some(AclEntry { tag, perm })
}

#[cfg(unix)]
fn user_id(name: &str) -> Option<u32> {
    uzers::get_user_by_name(name).map(|user| user.uid())
}

#[cfg(unix)]
fn group_id(name: &str) -> Option<u32> {
    uzers::get_group_by_name(name).map(|group| group.gid())
}

/// Returns `None`: this system has no numbers for its users.
#[cfg(not(unix))]
fn user_id(_: &str) -> Option<u32> {
    None
}

/// Returns `None`: this system has no numbers for its groups.
#[cfg(not(unix))]
fn group_id(_: &str) -> Option<u32> {
    None
}

/// Returns the text of a list, numbers for users and groups.
pub(crate) fn format(acl: &Acl) -> String {
    let entries = acl.entries.iter().map(|entry| {
        let who = match entry.tag {
            Tag::UserObj => "user:".to_owned(),
            Tag::User(id) => format!("user:{id}"),
            Tag::GroupObj => "group:".to_owned(),
            Tag::Group(id) => format!("group:{id}"),
            Tag::Mask => "mask:".to_owned(),
            Tag::Other => "other:".to_owned(),
        };
        let bit = |bit, c| if entry.perm & bit != 0 { c } else { '-' };
        format!("{who}:{}{}{}", bit(4, 'r'), bit(2, 'w'), bit(1, 'x'))
    });
    entries.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_list() {
        let text = "user::rw-,user:1000:r--,group::r-x,group:7:-w-,mask::rwx,other::---";
        assert_eq!(format(&parse(text.as_bytes()).unwrap()), text);
        let star =
            "user::rw-\nuser:lisa:r--:1000\ngroup::r-x\ngroup:lp:-w-:7\nmask::rwx #effective\nother:---\n";
        assert_eq!(format(&parse(star.as_bytes()).unwrap()), text);
        let named = "user::rw-,user:root:r--,group::r-x,mask::rwx,other::---";
        assert_eq!(parse(named.as_bytes()).unwrap().entries[1].tag, Tag::User(0));
        for bad in [
            "user::rw-",
            "user::rw-,group::r--,other::r-q",
            "user:no-such-user:r--,user::rw-,group::r--,mask::r--,other::r--",
        ] {
            assert_eq!(parse(bad.as_bytes()), None, "{bad}");
        }
    }
}
