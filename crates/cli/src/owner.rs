//! Owners as chown writes them: `user`, `user:group`, `:group`, `user:`, each a number or a name of
//! this host.
//!
//! A volume knows numbers only. Names are those of the machine that lanefs runs on. The volume may
//! be for another machine: listings take `-n` to show numbers.

use crate::quote::quoted;
use lanefs_archive::check_owner;
use std::collections::HashMap;
use std::str::FromStr;

/// The owner and group to set; `None` is left as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Owner {
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
}

impl FromStr for Owner {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (user, group) = match text.split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (text, None),
        };
        let mut owner = Self::default();
        let mut login_group = None;
        if !user.is_empty() {
            let (uid, gid) = find_user(user)?;
            owner.uid = Some(uid);
            login_group = gid;
        }
        owner.gid = match group {
            None => None,
            Some("") if user.is_empty() => None,
            Some("") => Some(
                login_group
                    .ok_or_else(|| format!("invalid spec: {}: a number has no login group", quoted(text)))?,
            ),
            Some(group) => Some(find_group(group)?),
        };
        check_owner(owner.uid, owner.gid).map_err(|e| e.to_string())?;
        Ok(owner)
    }
}

/// Returns the user that a name or a number is, without a group.
pub(crate) fn user(text: &str) -> Result<u32, String> {
    let (uid, _) = find_user(text)?;
    check_owner(Some(uid), None).map_err(|e| e.to_string())?;
    Ok(uid)
}

/// Returns the group that a name or a number is.
pub(crate) fn group(text: &str) -> Result<u32, String> {
    let gid = find_group(text)?;
    check_owner(None, Some(gid)).map_err(|e| e.to_string())?;
    Ok(gid)
}

fn find_user(name: &str) -> Result<(u32, Option<u32>), String> {
    if let Some(user) = uzers::get_user_by_name(name) {
        return Ok((user.uid(), Some(user.primary_group_id())));
    }
    name.parse().map(|uid| (uid, None)).map_err(|_| format!("invalid user: {}", quoted(name)))
}

fn find_group(name: &str) -> Result<u32, String> {
    if let Some(group) = uzers::get_group_by_name(name) {
        return Ok(group.gid());
    }
    name.parse().map_err(|_| format!("invalid group: {}", quoted(name)))
}

/// Names of numbers, each asked of the host once.
#[derive(Debug, Default)]
pub(crate) struct Names {
    users: HashMap<u32, Option<String>>,
    groups: HashMap<u32, Option<String>>,
}

impl Names {
    /// Returns the host's name for a uid, if it has one.
    pub(crate) fn user(&mut self, uid: u32) -> Option<&str> {
        let ask = || uzers::get_user_by_uid(uid).map(|u| u.name().to_string_lossy().into_owned());
        self.users.entry(uid).or_insert_with(ask).as_deref()
    }

    /// Returns the host's name for a gid, if it has one.
    pub(crate) fn group(&mut self, gid: u32) -> Option<&str> {
        let ask = || uzers::get_group_by_gid(gid).map(|g| g.name().to_string_lossy().into_owned());
        self.groups.entry(gid).or_insert_with(ask).as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(uid: impl Into<Option<u32>>, gid: impl Into<Option<u32>>) -> Result<Owner, String> {
        Ok(Owner { uid: uid.into(), gid: gid.into() })
    }

    #[test]
    fn reads_numbers_and_names() {
        assert_eq!("0:0".parse(), owner(0, 0));
        assert_eq!("1000".parse(), owner(1000, None));
        assert_eq!(":7".parse(), owner(None, 7));
        assert_eq!("root:root".parse(), owner(0, 0));
        assert_eq!("root:".parse(), owner(0, 0));
        assert_eq!(":".parse(), owner(None, None));
        for bad in
            ["nobody-has-this-name", "12:", "0:no-such-group", "4294967296", "4294967295", ":4294967295"]
        {
            assert!(bad.parse::<Owner>().is_err(), "{bad}");
        }
    }

    #[test]
    fn knows_root() {
        let mut names = Names::default();
        assert_eq!(names.user(0), Some("root"));
        assert_eq!(names.group(4_000_000_000), None);
    }
}
