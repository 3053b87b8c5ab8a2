use super::*;
use proptest::prelude::*;

fn acl(entries: &[(Tag, u8)]) -> Acl {
    Acl { entries: entries.iter().map(|&(tag, perm)| AclEntry { tag, perm }).collect() }
}

fn extended() -> Acl {
    use Tag::{Group, GroupObj, Mask, Other, User, UserObj};
    acl(&[(UserObj, 6), (User(1000), 6), (GroupObj, 4), (Group(7), 4), (Mask, 6), (Other, 4)])
}

#[test]
fn both_forms_of_one_list() {
    // From a volume and from getfattr of the same file, both made by the kernel.
    let disk = b"\x01\0\0\0\x01\0\x06\0\x02\0\x06\0\xe8\x03\0\0\x04\0\x04\0\x08\0\x04\0\x07\0\0\0\x10\0\x06\0\x20\0\x04\0";
    let xattr = b"\x02\0\0\0\x01\0\x06\0\xff\xff\xff\xff\x02\0\x06\0\xe8\x03\0\0\x04\0\x04\0\xff\xff\xff\xff\
        \x08\0\x04\0\x07\0\0\0\x10\0\x06\0\xff\xff\xff\xff\x20\0\x04\0\xff\xff\xff\xff";
    assert_eq!(Acl::from_disk(disk).unwrap(), extended());
    assert_eq!(Acl::from_xattr(xattr).unwrap(), extended());
    assert_eq!(extended().to_disk(), disk);
    assert_eq!(extended().to_xattr(), xattr);
}

#[test]
fn order_and_completeness() {
    use Tag::{Group, GroupObj, Mask, Other, User, UserObj};
    assert_eq!(extended().validate(), Ok(()));
    assert_eq!(Acl::from_mode(0o750).validate(), Ok(()));
    assert_eq!(Acl::default().validate(), Ok(()));
    let check = |list: &[(Tag, u8)]| acl(list).validate().unwrap_err();
    assert_eq!(check(&[(UserObj, 7), (GroupObj, 7)]), AclError::Incomplete);
    assert_eq!(check(&[(GroupObj, 7), (UserObj, 7)]), AclError::Order { entry: 0 });
    assert_eq!(check(&[(UserObj, 7), (UserObj, 7)]), AclError::Order { entry: 1 });
    assert_eq!(check(&[(UserObj, 7), (User(1), 7), (GroupObj, 7), (Other, 7)]), AclError::Order { entry: 3 });
    assert_eq!(
        check(&[(UserObj, 7), (GroupObj, 7), (Group(1), 7), (Other, 7)]),
        AclError::Order { entry: 3 }
    );
    assert_eq!(check(&[(UserObj, 7), (GroupObj, 7), (Other, 7), (Other, 7)]), AclError::Order { entry: 3 });
    assert_eq!(check(&[(UserObj, 7), (GroupObj, 7), (Mask, 7), (Mask, 7)]), AclError::Order { entry: 3 });
    assert_eq!(check(&[(UserObj, 7), (User(u32::MAX), 7)]), AclError::Id { entry: 1 });
    assert_eq!(acl(&[(UserObj, 7), (GroupObj, 7), (Mask, 5), (Other, 0)]).validate(), Ok(()));
}

#[test]
fn mode_and_list() {
    assert_eq!(Acl::from_mode(0o100_640).mode_bits(), 0o640);
    assert!(!Acl::from_mode(0o640).is_extended());
    assert_eq!((extended().mode_bits(), extended().is_extended()), (0o664, true));
    let mut changed = extended();
    changed.chmod(0o4705);
    assert_eq!(changed.mode_bits(), 0o705);
    assert_eq!(changed.entries[2].perm, 4, "with a mask, chmod leaves the owning group's entry");
}

#[test]
fn inheriting_narrows_both() {
    let mut child = extended();
    assert_eq!(child.inherit(0o100_640), 0o100_640);
    assert_eq!(child.mode_bits(), 0o640);
    let mut child = extended();
    assert_eq!(child.inherit(0o2777), 0o2664);
    let mut plain = Acl::from_mode(0o755);
    assert_eq!(plain.inherit(0o666), 0o644);
}

#[test]
fn bad_bytes_have_names() {
    assert_eq!(Acl::from_disk(&[1, 0, 0]), Err(AclError::Truncated { len: 3 }));
    assert_eq!(Acl::from_disk(&[2, 0, 0, 0]), Err(AclError::Version { found: 2, expected: 1 }));
    assert_eq!(Acl::from_disk(&[1, 0, 0, 0, 1, 0, 8, 0]), Err(AclError::Perm { entry: 0, perm: 8 }));
    assert_eq!(Acl::from_disk(&[1, 0, 0, 0, 3, 0, 7, 0]), Err(AclError::Tag { entry: 0, tag: 3 }));
    assert_eq!(Acl::from_disk(&[1, 0, 0, 0, 2, 0, 7, 0]), Err(AclError::Truncated { len: 8 }));
    assert_eq!(Acl::from_xattr(&[2, 0, 0, 0]), Ok(Acl::default()));
}

proptest! {
    #[test]
    fn any_bytes(bytes in prop::collection::vec(0u8..40, 0..60)) {
        if let Ok(acl) = Acl::from_disk(&bytes) {
            prop_assert_eq!(acl.to_disk(), bytes);
        } else if let Ok(acl) = Acl::from_xattr(&bytes) {
            prop_assert_eq!(acl.validate(), Ok(()));
        }
    }
}
