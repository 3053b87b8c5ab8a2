//! The claim of an export, by the names that [`name_claim`](crate::name_claim) has: a server has no
//! lock that would keep a second client out.

use super::error::NbdError;
use super::url::{NbdAddress, NbdUrl};
use crate::name_claim::{NameClaim, Place};

/// Claims a place of an export, for a writer alone or for readers.
///
/// # Errors
/// [`NbdError::InUse`].
pub(super) fn claim(url: &NbdUrl, place: Place, read_only: bool) -> Result<NameClaim, NbdError> {
    let address = match &url.address {
        NbdAddress::Unix(path) => path.canonicalize().unwrap_or_else(|_| path.clone()).display().to_string(),
        tcp @ NbdAddress::Tcp { .. } => tcp.to_string().to_lowercase(),
    };
    // An address has no NUL.
    let medium = format!("nbd\0{address}\0{}", url.export_name());
    NameClaim::new(medium, place, read_only).map_err(|in_use| NbdError::InUse { by: in_use.0 })
}

/// Returns what is known of the place of a volume before the export is open: all of it, the range
/// of the URL, or the name of a partition.
pub(super) fn place_of(url: &NbdUrl, part: Option<&str>) -> Place {
    match (part, url.range) {
        (Some(part), _) => Place::Named(part.into()),
        (None, None) => Place::WHOLE,
        (None, Some((offset, size))) => {
            Place::Bytes(offset..size.map_or(u64::MAX, |size| offset.saturating_add(size)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        let of = |query: &str, part: Option<&str>| {
            place_of(&NbdUrl::parse(&format!("nbd://claims.test/parts{query}")).unwrap(), part)
        };
        assert_eq!((of("", None), of("?offset=1k", None)), (Place::WHOLE, Place::Bytes(1024..u64::MAX)));
        assert_eq!(of("?offset=1k&size=2k", None), Place::Bytes(1024..3072));
        assert_eq!(of("", Some("2")), Place::Named("2".into()));
    }

    #[test]
    fn an_export_is_claimed_by_its_address_and_name() {
        let claim = |url: &str| claim(&NbdUrl::parse(url).unwrap(), Place::WHOLE, false);
        let _first = claim("nbd://claims.test/a").unwrap();
        assert!(matches!(claim("nbd://CLAIMS.test/a?timeout=7"), Err(NbdError::InUse { by: Some(_) })));
        for other in ["nbd://claims.test/b", "nbd://claims.test:1/a", "nbd+unix:///a?socket=/claims.test"] {
            claim(other).unwrap();
        }
    }
}
