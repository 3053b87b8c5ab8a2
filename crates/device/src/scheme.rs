//! The beginnings of names of volumes, which tell the kind of the medium.

pub(crate) const OVERLAY: &[u8] = b"overlay:";
pub(crate) const CACHED: &[u8] = b"cached:";

/// Returns whether a name begins as that of a device over another one.
pub(crate) fn is_stacked(name: &[u8]) -> bool {
    name.starts_with(OVERLAY) || name.starts_with(CACHED)
}

/// Returns whether a name begins as the URL of an export of an NBD server.
pub(crate) fn is_nbd(name: &[u8]) -> bool {
    ["nbd://", "nbds://", "nbd+unix://", "nbds+unix://"]
        .iter()
        .any(|scheme| name.starts_with(scheme.as_bytes()))
}

/// Returns whether a name begins as that of an image of a Ceph cluster.
pub(crate) fn is_rbd(name: &[u8]) -> bool {
    name.starts_with(b"rbd:")
}
