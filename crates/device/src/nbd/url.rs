//! The name of an export: `nbd://HOST[:PORT]/EXPORT`, `nbd+unix:///EXPORT?socket=PATH`, and with
//! TLS `nbds://` and `nbds+unix://`.
//!
//! The form is that of the NBD project's URI document, with parameters of our own behind `?`. What
//! is between `/` and `?` is percent-decoded, and so are values of parameters.

use crate::parameters::{add_range, decode, each_parameter, parse_size, seconds};
use crate::scheme::{is_nbd, is_stacked};
use std::ffi::OsStr;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// The port of the protocol.
const PORT: u16 = 10809;

/// The longest name of an export that the protocol has, in bytes.
const LONGEST: usize = 4096;

/// The most connections to one export.
const MOST_CONNECTIONS: usize = 16;

/// The address at which an NBD server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NbdAddress {
    /// A TCP port.
    Tcp {
        /// A name or an address, without the brackets of IPv6.
        host: String,
        /// The port, 10809 if the URL has none.
        port: u16,
    },
    /// A Unix socket, by its path.
    Unix(PathBuf),
}

/// The URL of an export of an NBD server, parsed: the export, and the options of the connection.
///
/// `nbd://HOST[:PORT]/EXPORT` and `nbd+unix:///EXPORT?socket=PATH`; with TLS `nbds://` and
/// `nbds+unix://`. Options follow a `?`, with `&` between.
///
/// # Examples
/// ```
/// use lanefs_device::{NbdAddress, NbdUrl};
///
/// let url = NbdUrl::parse("nbd://[::1]:10810/root?connections=2")?;
/// assert_eq!(url.address, NbdAddress::Tcp { host: "::1".into(), port: 10810 });
/// assert_eq!((url.export.as_deref(), url.connections), (Some("root"), 2));
/// # Ok::<(), String>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NbdUrl {
    /// The address of the server.
    pub address: NbdAddress,
    /// The name of the export. `None` for a URL without a path: the export without a name.
    pub export: Option<String>,
    /// Whether the connection is encrypted.
    pub tls: bool,
    /// The directory of `ca-cert.pem`, and perhaps `client-cert.pem` and `client-key.pem`.
    pub tls_certificates: Option<PathBuf>,
    /// The name that the server's certificate must have, if that is not the host's.
    pub tls_hostname: Option<String>,
    /// The most connections to the export.
    pub connections: usize,
    /// The longest duration of a request.
    pub timeout: Duration,
    /// The longest time for which the client tries to make a lost connection again.
    pub reconnect: Duration,
    /// The most unflushed bytes that the client keeps, to write them again on a new connection.
    pub unflushed: u64,
    /// `offset=` and `size=`: the bytes of the export that the volume is.
    pub range: Option<(u64, Option<u64>)>,
}

/// Splits `URL@PART` at the last `@` behind the server's name that no `/`, `?`, `&` or `:` follows.
pub(crate) fn split_part(url: &str) -> (&str, Option<&str>) {
    let Some(at) = url.rfind('@') else { return (url, None) };
    let part = &url[at + 1..];
    let behind = url.find("://").map_or(0, |scheme| scheme + 3);
    let in_path = url[behind..].find(['/', '?']).is_some_and(|slash| behind + slash < at);
    if in_path && !part.is_empty() && !part.contains(['/', '?', '&', ':']) {
        (&url[..at], Some(part))
    } else {
        (url, None)
    }
}

impl NbdUrl {
    /// Parses a URL without a partition behind it.
    ///
    /// # Errors
    /// The second half of a message for users, whose first half is the URL.
    pub fn parse(url: &str) -> Result<Self, String> {
        let (scheme, rest) = url.split_once("://").ok_or("needs a scheme: nbd://HOST/EXPORT")?;
        let (tls, unix) = match scheme {
            "nbd" => (false, false),
            "nbds" => (true, false),
            "nbd+unix" => (false, true),
            "nbds+unix" => (true, true),
            _ => return Err("the schemes are nbd, nbds, nbd+unix, nbds+unix".into()),
        };
        let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
        let (authority, path) =
            rest.split_once('/').map_or((rest, None), |(authority, path)| (authority, Some(path)));
        if authority.contains('@') {
            return Err(
                "has a user: lanefs knows certificates (tls-certificates=DIR), and no passwords".into()
            );
        }
        let address = match unix {
            true if authority.is_empty() => NbdAddress::Unix(PathBuf::new()),
            true => return Err("has a host: nbd+unix:///EXPORT?socket=PATH has none".into()),
            // First: what a message shows of the rest may be a password without a host.
            false => parse_host(authority)?,
        };
        let export = path.map(decode).transpose()?;
        if export.as_ref().is_some_and(|name| name.len() > LONGEST) {
            return Err(format!("the name of the export is longer than {LONGEST} bytes"));
        }
        let mut parsed = Self {
            address,
            export,
            tls,
            tls_certificates: None,
            tls_hostname: None,
            connections: 1,
            timeout: Duration::from_secs(30),
            reconnect: Duration::from_secs(60),
            unflushed: 64 << 20,
            range: None,
        };
        each_parameter(query, |name, value| parsed.set(name, value))?;
        if parsed.address == NbdAddress::Unix(PathBuf::new()) {
            return Err("needs a socket: nbd+unix:///EXPORT?socket=PATH".into());
        }
        Ok(parsed)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "socket" => match &mut self.address {
                NbdAddress::Unix(path) if !value.is_empty() => *path = value.into(),
                NbdAddress::Unix(_) => return Err("needs a socket: socket=PATH".into()),
                NbdAddress::Tcp { .. } => return Err("socket= is for nbd+unix://".into()),
            },
            "connections" => match value.parse() {
                Ok(n) if (1..=MOST_CONNECTIONS).contains(&n) => self.connections = n,
                _ => return Err(format!("connections is a number from 1 to {MOST_CONNECTIONS}")),
            },
            "timeout" => self.timeout = seconds(name, value)?,
            "reconnect" if value == "0" => self.reconnect = Duration::ZERO,
            "reconnect" => self.reconnect = seconds(name, value)?,
            "unflushed" => match parse_size(value.as_bytes()) {
                Some(bytes) if bytes >= super::LEAST_UNFLUSHED => self.unflushed = bytes,
                _ => return Err("unflushed is a size from 4M on".into()),
            },
            "tls-certificates" if self.tls => self.tls_certificates = Some(value.into()),
            "tls-hostname" if self.tls => self.tls_hostname = Some(value.into()),
            "tls-certificates" | "tls-hostname" => return Err(format!("{name}= is for nbds://")),
            "offset" | "size" => add_range(&mut self.range, name, value)?,
            _ => {
                return Err(format!(
                    "has a parameter {name:?}: there are socket, connections, timeout, reconnect, unflushed, \
                     tls-certificates, tls-hostname, offset, size"
                ));
            }
        }
        Ok(())
    }

    /// Returns the name that the server knows the export by.
    pub(crate) fn export_name(&self) -> &str {
        self.export.as_deref().unwrap_or_default()
    }
}

/// The server alone, for messages.
impl fmt::Display for NbdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Returns the name of a volume for messages and tables: with `***` for the password in a URL, and
/// for a parameter whose name says that its value is a secret. No server here takes either.
///
/// # Examples
/// ```
/// use lanefs_device::without_password;
/// use std::ffi::OsStr;
///
/// let shown = |name: &'static str| without_password(OsStr::new(name)).into_owned();
/// assert_eq!(shown("nbd://me:secret@host/x"), "nbd://me:***@host/x");
/// assert_eq!(shown("nbd://host/x?password=secret"), "nbd://host/x?password=***");
/// assert_eq!(shown("disk.img"), "disk.img");
/// ```
pub fn without_password(name: &OsStr) -> std::borrow::Cow<'_, OsStr> {
    let text = name.to_string_lossy();
    let url = masked(&text);
    let parameters = without_secrets(url.as_deref().unwrap_or(&text));
    match parameters.or(url) {
        Some(shown) => std::ffi::OsString::from(shown).into(),
        None => name.into(),
    }
}

/// Returns a URL without what follows the name of the first secret parameter, `None` if it has
/// none: a value that is not escaped may hold anything.
fn without_secrets(url: &str) -> Option<String> {
    const SECRETS: [&str; 5] = ["pass", "pwd", "secret", "token", "key"];
    let is_remote = url.contains("://") || url.contains("rbd:");
    let mut at = url.find('?').filter(|_| is_remote)? + 1;
    loop {
        let pair = url[at..].split('&').next()?;
        let name = pair.split_once('=').map(|(name, _)| name.to_ascii_lowercase());
        if name.as_ref().is_some_and(|name| SECRETS.iter().any(|word| name.contains(word))) {
            return Some(format!("{}=***", &url[..at + name?.len()]));
        }
        at += pair.len() + 1;
        if at > url.len() {
            return None;
        }
    }
}

/// Returns a name without the password of a URL, `None` if it has none. The URL may be that of a
/// device under others: behind `overlay:base=` or `cached:`.
fn masked(text: &str) -> Option<String> {
    let (before, rest) = text.split_once("://")?;
    let is_above = |c: char| matches!(c, '=' | ':');
    let is_stacked = is_stacked(before.as_bytes());
    let scheme = if is_stacked { before.rsplit(is_above).next()? } else { before };
    if !is_nbd(format!("{}://", scheme.to_ascii_lowercase()).as_bytes()) {
        return None;
    }
    // An unescaped password may hold `@`, `/`, `?` and `#`, and the URL is refused in any case.
    let last = rest.rfind('@')?;
    let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
    let colon = match authority.find('@') {
        Some(at) => authority[..at].find(':')?,
        // `HOST:PORT` and `[ADDRESS]`: the `@` is in the path, or begins a partition.
        None if authority.starts_with('[') => return None,
        // Of a stacked name, what belongs to the device above may follow.
        None => authority.find(':').filter(|colon| {
            let port = &authority[colon + 1..];
            let port = if is_stacked { port.split(',').next().unwrap_or(port) } else { port };
            !port.bytes().all(|b| b.is_ascii_digit())
        })?,
    };
    Some(format!("{before}://{}:***{}", &rest[..colon], &rest[last..]))
}

fn parse_host(authority: &str) -> Result<NbdAddress, String> {
    let bad = || "needs a host: nbd://HOST:PORT/EXPORT".to_owned();
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or_else(bad)?;
            (host, port.strip_prefix(':').or_else(|| port.is_empty().then_some("")).ok_or_else(bad)?)
        }
        None => authority.split_once(':').unwrap_or((authority, "")),
    };
    let port = match port {
        "" => PORT,
        port => port.parse().ok().filter(|port| *port > 0).ok_or("the port is a number up to 65535")?,
    };
    let host = decode(host)?;
    if host.is_empty() { Err(bad()) } else { Ok(NbdAddress::Tcp { host, port }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tcp(host: &str, port: u16) -> NbdAddress {
        NbdAddress::Tcp { host: host.into(), port }
    }

    #[test]
    fn addresses_and_exports() {
        let parse = |url| NbdUrl::parse(url).map(|url| (url.address, url.export)).unwrap();
        assert_eq!(parse("nbd://h"), (tcp("h", 10809), None));
        assert_eq!(parse("nbd://h/"), (tcp("h", 10809), Some(String::new())));
        assert_eq!(parse("nbds://h:7/a/b%20c"), (tcp("h", 7), Some("a/b c".into())));
        assert_eq!(parse("nbd://[::1]:9/x"), (tcp("::1", 9), Some("x".into())));
        assert_eq!(parse("nbd://[::1]"), (tcp("::1", 10809), None));
        let unix = NbdAddress::Unix("/tmp/s".into());
        assert_eq!(parse("nbd+unix:///x?socket=/tmp/s"), (unix.clone(), Some("x".into())));
        assert_eq!(parse("nbd+unix://?socket=/tmp/s"), (unix, None));
    }

    #[test]
    fn parameters() {
        let url =
            "nbd+unix:///x?socket=/s%26&connections=4&timeout=5&reconnect=7&unflushed=8M&offset=1M&size=4k";
        let url = NbdUrl::parse(url).unwrap();
        assert_eq!(url.address, NbdAddress::Unix("/s&".into()));
        assert_eq!((url.connections, url.timeout.as_secs(), url.reconnect.as_secs()), (4, 5, 7));
        assert_eq!((url.unflushed, url.range), (8 << 20, Some((1 << 20, Some(4096)))));
        assert_eq!(NbdUrl::parse("nbd://h/x?reconnect=0").unwrap().reconnect, Duration::ZERO);
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (url, word) in [
            ("nbd://", "needs a host"),
            ("nbd:///x", "needs a host"),
            ("nbd://h:0/x", "port"),
            ("nbd://h:70000/x", "port"),
            ("nbd://[::1/x", "needs a host"),
            ("nbd+unix:///x", "needs a socket"),
            ("nbd+unix:///x?socket=", "needs a socket"),
            ("nbd+unix://h/x?socket=/s", "has a host"),
            ("nbd://h/x?socket=/s", "is for nbd+unix"),
            ("nbd://h/x?connections=0", "1 to 16"),
            ("nbd://h/x?timeout=0", "seconds"),
            ("nbd://h/x?unflushed=1M", "4M"),
            ("nbd://h/x?colour=red", "\"colour\": there are socket, connections"),
            ("nbd://h/x?timeout=1&timeout=2", "timeout twice"),
            ("nbd://h/x%2", "percent"),
            ("nbd://h/x%ff", "percent"),
            ("nbd://h/x?tls-hostname=a", "is for nbds"),
            ("nbd://h/x?offset=3", "512"),
            ("nbd://u:secret@h/x", "no passwords"),
        ] {
            let e = NbdUrl::parse(url).unwrap_err();
            assert!(e.contains(word) && !e.contains("secret"), "{url}: {e}");
        }
    }

    #[test]
    fn partitions_stand_behind_the_url() {
        for (url, want) in [
            ("nbd://h/x@2", ("nbd://h/x", Some("2"))),
            ("nbd+unix:///x?socket=/tmp/s@root", ("nbd+unix:///x?socket=/tmp/s", Some("root"))),
            ("nbd+unix:///a@b?socket=/tmp/s", ("nbd+unix:///a@b?socket=/tmp/s", None)),
            ("nbd://u@h", ("nbd://u@h", None)),
            ("nbd://u@h/x", ("nbd://u@h/x", None)),
            ("nbd://h/x@", ("nbd://h/x@", None)),
        ] {
            assert_eq!(split_part(url), want);
        }
    }

    proptest! {
        /// No message of a failed open has the password of a URL, however it is stacked.
        #[test]
        fn no_message_has_a_password(
            scheme in "nbd|nbds|nbd\\+unix|NBD",
            user in "[a-z]{0,3}",
            head in "[a-z][a-z/?#@:=,%&.]{0,5}",
            tail in "[a-z/?#@:=,%&.0-9]{0,5}",
            behind in "|/|/e|/e@2|/e\\?timeout=1",
            stack in 0..5usize,
            is_parameter in any::<bool>(),
        ) {
            let url = match is_parameter {
                true => format!("{scheme}://h.invalid/e?password={head}hidden{tail}"),
                false => format!("{scheme}://{user}:{head}hidden{tail}@h.invalid{behind}"),
            };
            let name = match stack {
                0 => url,
                1 => format!("overlay:base={url},top=/none/t"),
                2 => format!("cached:{url},dir=/none/d,size=1G"),
                3 => format!("overlay:base=cached:{url},dir=/none/d,top=/none/a@b"),
                _ => format!("overlay:base={url}"),
            };
            let options = crate::FileOptions::new();
            let opened = crate::open_url(&name, &options).map(|_| ());
            let created = crate::create_url(&name, 1 << 20, &options).map(|_| ());
            for done in [opened, created] {
                let said = done.unwrap_err().to_string();
                prop_assert!(!said.contains("hidden"), "{name}: {said}");
            }
        }
    }

    #[test]
    fn passwords_are_not_shown() {
        for (name, shown) in [
            ("nbd://u:pw@h/x", "nbd://u:***@h/x"),
            ("nbds://u:p/w@h/x:/a", "nbds://u:***@h/x:/a"),
            ("nbd://u:p@w@h/x", "nbd://u:***@h/x"),
            ("nbd://u:p@w/y@h/x", "nbd://u:***@h/x"),
            ("nbd://u:p?w@h/x", "nbd://u:***@h/x"),
            ("nbd://u:p#w@h/x@2", "nbd://u:***@2"),
            ("nbd://u:p/w@v@h/x", "nbd://u:***@h/x"),
            ("NBD://u:pw@h/x", "NBD://u:***@h/x"),
            ("nbd+unix://u:pw@/x?socket=/s", "nbd+unix://u:***@/x?socket=/s"),
            ("nbd://u@h/x", "nbd://u@h/x"),
            ("nbd://u@h:5/x@2", "nbd://u@h:5/x@2"),
            ("nbd://[::1]:9/x@2", "nbd://[::1]:9/x@2"),
            ("nbd+unix:///x?socket=/a:b@c", "nbd+unix:///x?socket=/a:b@c"),
            ("nbd://h:1/x@2", "nbd://h:1/x@2"),
            ("file:a@b", "file:a@b"),
            ("nbd://h/x?timeout=1&Password=p,w&x", "nbd://h/x?timeout=1&Password=***"),
            ("nbd://u:pw@h/x?psk-key=a@b", "nbd://u:***@b"),
            ("rbd:p/i?secret=%zz", "rbd:p/i?secret=***"),
            ("nbd://h/x?timeout=1", "nbd://h/x?timeout=1"),
            ("disk?key=1", "disk?key=1"),
            ("overlay:base=nbd://u:pw@h/e,top=t", "overlay:base=nbd://u:***@h/e,top=t"),
            (
                "overlay:base=cached:NBDS://u:p,w@h/e,dir=d,top=t",
                "overlay:base=cached:NBDS://u:***@h/e,dir=d,top=t",
            ),
            ("cached:nbd://h:7/e@2,dir=d", "cached:nbd://h:7/e@2,dir=d"),
            ("cached:nbd://h:7,dir=/a@b", "cached:nbd://h:7,dir=/a@b"),
            ("cached:disk,dir=/a:b@c", "cached:disk,dir=/a:b@c"),
        ] {
            assert_eq!(without_password(OsStr::new(name)), OsStr::new(shown));
        }
        #[cfg(unix)]
        {
            use std::os::unix::ffi::OsStrExt;
            let shown = without_password(OsStr::from_bytes(b"nbd://u:pw\xff@h/x")).into_owned();
            assert_eq!(shown, OsStr::new("nbd://u:***@h/x"));
        }
    }
}
