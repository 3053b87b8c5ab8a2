//! Errors of an import or an export: what could not be done, with which name, and why.

#[cfg(target_os = "linux")]
use crate::host;
use crate::ids::OwnerError;
use crate::image::ImageError;
use crate::tarball::TarError;
use std::fmt;
use std::io;

/// A failure of an import, an export or a build on one name of a tree, and its cause.
///
/// The text is one line: `cannot create '/etc/passwd': no space left in the volume`. A program that
/// words its messages itself has the parts: [`action`](Self::action), [`place`](Self::place),
/// [`cause`](Self::cause).
///
/// # Examples
/// ```
/// use lanefs_archive::{Action, Cause, ExportOptions, Target, export};
/// use std::ops::ControlFlow;
/// let volume = lanefs::Volume::in_memory(16 << 20)?;
/// let target = Target::archive("out.tar", Vec::new(), Default::default());
/// let go_on = |_| ControlFlow::Continue(());
/// let e = export(&volume, "/absent", target, &ExportOptions::new(), go_on).unwrap_err();
/// assert_eq!(e.action(), Action::Export);
/// assert!(matches!(e.cause(), Cause::Volume(lanefs::Error::NotFound)));
/// assert_eq!(e.to_string(), "cannot export '/absent': No such file or directory");
/// # Ok::<(), lanefs::Error>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} '{place}': {}", self.reason())]
pub struct Error {
    action: Action,
    place: Place,
    #[source]
    cause: Cause,
    layer: Option<Box<str>>,
}

impl Error {
    pub(crate) fn new(action: Action, place: Place, cause: impl Into<Cause>) -> Self {
        Self { action, place, cause: cause.into(), layer: None }
    }

    /// Names the layer of an image that the name is in.
    pub(crate) fn in_layer(mut self, layer: &str) -> Self {
        self.layer = Some(layer.into());
        self
    }

    /// Returns the action that failed.
    #[must_use]
    pub fn action(&self) -> Action {
        self.action
    }

    /// Returns the name on which the action failed.
    #[must_use]
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Returns the cause of the failure.
    #[must_use]
    pub fn cause(&self) -> &Cause {
        &self.cause
    }

    /// Returns the layer of an image that the name is in: "layer 2 of 3, 'app.tar'".
    #[must_use]
    pub fn layer(&self) -> Option<&str> {
        self.layer.as_deref()
    }

    /// Returns the cause as text. It says so if this machine refused what a name of the volume
    /// needed, and names the layer of an image.
    #[must_use]
    pub fn reason(&self) -> String {
        let reason = match (&self.place, &self.cause) {
            #[cfg(target_os = "linux")]
            (Place::Volume(_), Cause::Host(e @ host::Error::System(_))) => format!("on this host: {e}"),
            (_, cause) => cause.to_string(),
        };
        match &self.layer {
            Some(layer) => format!("{reason} ({layer})"),
            None => reason,
        }
    }

    /// Returns whether the caller ended the work.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        matches!(self.cause, Cause::Cancelled)
    }

    /// Returns about how many bytes of memory it takes.
    pub(crate) fn memory(&self) -> usize {
        size_of::<Self>() + self.place.as_bytes().len() + self.layer.as_ref().map_or(0, |l| l.len())
    }
}

/// The action that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// Opening a source.
    Open,
    /// Reading a source.
    Read,
    /// Writing a file of the volume, or an archive.
    Write,
    /// Making a name.
    Create,
    /// Setting owner, mode, times or extended attributes.
    SetAttributes,
    /// Taking a name of the source over into the volume.
    Import,
    /// Using the target directory of an import.
    ImportInto,
    /// Making a volume with what a source has.
    Build,
    /// Taking a name of the volume over into a folder or an archive.
    Export,
    /// Comparing two trees.
    Compare,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Read => "read",
            Self::Write => "write",
            Self::Create => "create",
            Self::SetAttributes => "set the attributes of",
            Self::Import => "import",
            Self::ImportInto => "import into",
            Self::Build => "build",
            Self::Export => "export",
            Self::Compare => "compare",
        })
    }
}

/// A name, and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// A path of this machine, or the name that the caller gave a stream.
    Host(Vec<u8>),
    /// A path of the volume; of two that are compared, of the old one.
    Volume(Vec<u8>),
    /// A path of the new one of two volumes that are compared.
    NewVolume(Vec<u8>),
    /// A name as an archive has it.
    Member(Vec<u8>),
}

impl Place {
    /// Returns the place of a path below a directory of the volume.
    pub(crate) fn in_volume(dir: &[u8], path: &[u8]) -> Self {
        Self::Volume(match (path, dir.ends_with(b"/")) {
            (b"", _) => dir.to_vec(),
            (_, true) => [dir, path].concat(),
            (_, false) => [dir, b"/", path].concat(),
        })
    }

    /// Returns the bytes of the path.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Host(path) | Self::Volume(path) | Self::NewVolume(path) | Self::Member(path) => path,
        }
    }
}

/// The name with bytes that are no UTF-8 replaced, and control characters escaped.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in String::from_utf8_lossy(self.as_bytes()).chars() {
            if c.is_control() { write!(f, "{}", c.escape_default())? } else { write!(f, "{c}")? }
        }
        Ok(())
    }
}

/// Why something could not be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// The volume refused it.
    #[error(transparent)]
    Volume(lanefs::Error),
    /// This machine refused it.
    #[cfg(target_os = "linux")]
    #[error(transparent)]
    Host(#[from] host::Error),
    /// A stream failed.
    #[error(transparent)]
    Io(io::Error),
    /// The archive is damaged, or is none.
    #[error("byte {at} of the archive: {rule}")]
    Archive {
        /// The offset in the archive, not compressed.
        at: u64,
        /// What the archive does that it must not.
        rule: &'static str,
    },
    /// The archives of the source unpack to more bytes than
    /// [`ImportOptions::max_size`](crate::ImportOptions::max_size) allows.
    #[error("it unpacks to more than {0} bytes")]
    TooLarge(u64),
    /// Something is wrong with an image.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The archive is compressed by a program that this build cannot replace.
    #[error("it holds compressed data ({0})")]
    Compressed(&'static str),
    /// The name of an archive asks for a program that this build cannot replace.
    #[error("archives are compressed with gzip only, not with {0}")]
    CannotCompress(&'static str),
    /// One extended attribute.
    #[error("attribute {name}: {cause}")]
    Xattr {
        /// The attribute.
        name: String,
        /// Why it could not be set.
        #[source]
        cause: Box<Cause>,
    },
    /// The owner is one that no file can have.
    #[error(transparent)]
    Owner(#[from] OwnerError),
    /// The path is longer than [`PATH_MAX`](crate::PATH_MAX).
    #[error("a path of {0} bytes, at most {max}", max = crate::PATH_MAX)]
    PathTooLong(usize),
    /// The path of a member goes up.
    #[error("a path with '..' in it, which could lead anywhere")]
    ParentInPath,
    /// A whiteout (`.wh.NAME`) of no name that a file can have, or a path that leads through one.
    #[error("a whiteout of no name")]
    BadWhiteout,
    /// The name is empty, `.` or `..`, or has a slash or a NUL: the volume is damaged.
    #[error("a name that no file can have")]
    BadName,
    /// The walk met the directory before by another name: the volume is damaged.
    #[error("the directory has a second name")]
    SecondName,
    /// The first name of a file with several names could not be exported.
    #[error("its first name could not be exported")]
    NoFirstName,
    /// Another thread or process cut the file while it was read.
    #[error("it shrank meanwhile")]
    Shrank,
    /// A part of the file could not be read. The archive that is made has zeros in its place.
    #[error("the archive has zeros in place of what cannot be read: {0}")]
    Zeros(#[source] Box<Cause>),
    /// Another thread replaced the name while it was read.
    #[error("it changed meanwhile")]
    Changed,
    /// The name begins with `.wh.`: in a layer it would take another name away.
    #[error("a layer has no form for names that begin with .wh.")]
    WhiteoutName,
    /// Sockets have no form in an archive.
    #[error("tar has no sockets")]
    Socket,
    /// The size that was asked for is too small for what the source has.
    #[error("it takes {needed} bytes")]
    TooSmall {
        /// Bytes of the smallest volume that will do.
        needed: u64,
    },
    /// More inodes than a volume can have.
    #[error("{0} inodes are more than a volume can have")]
    TooManyInodes(u64),
    /// The source can be read only once, so that nothing says how large its volume has to be.
    #[error("how much it takes cannot be found out beforehand")]
    ReadOnce,
    /// Something is in the place of the file.
    #[error("it exists already")]
    TargetExists,
    /// What is in the place of the folder is the working directory, or a mount point.
    #[error("it cannot be replaced: name a new folder in it")]
    TargetStays,
    /// The file that is to be replaced is a mount point: a file was mounted over it.
    #[error("another file is mounted there, which cannot be replaced: unmount it or name a new file")]
    TargetMounted,
    /// The path of the new file leads to something else than a regular file.
    #[error("it is no regular file")]
    NotAFile,
    /// The file to make is an archive, an image or a volume that is read, or any volume that this
    /// program has open.
    #[error("it is a source, or a volume in use by this program")]
    TargetIsSource,
    /// The file to read is a volume that this program has open, perhaps the one that is written.
    #[error("it is a volume in use by this program")]
    SourceInUse,
    /// The file to make is in the folder that is read, or below it.
    #[error("it is inside of the source")]
    TargetInSource,
    /// The tree of dm-verity could not be made.
    #[error(transparent)]
    Verity(lanefs_verity::VerityError),
    /// The journal of the volume holds changes that its blocks lack.
    #[error("the volume needs recovery")]
    NeedsRecovery,
    /// More blocks than a format counts.
    #[error("{0} blocks are more than the format counts, 2^32 - 1")]
    TooManyBlocks(u64),
    /// The thread that reads the source panicked.
    #[error("the reading thread died")]
    ReaderDied,
    /// The caller ended the work.
    #[error("cancelled")]
    Cancelled,
}

/// Leaves out the path that an error of the volume names: [`Error::place`] has it.
impl From<lanefs::Error> for Cause {
    fn from(e: lanefs::Error) -> Self {
        Self::Volume(e.into_kind())
    }
}

impl From<TarError> for Cause {
    fn from(e: TarError) -> Self {
        match e {
            TarError::Broken { at, rule } => Self::Archive { at, rule },
            TarError::Io(e) => e.into(),
        }
    }
}

impl From<lanefs::mkfs::MkfsError> for Cause {
    fn from(e: lanefs::mkfs::MkfsError) -> Self {
        Self::Volume(e.into())
    }
}

#[cfg(target_os = "linux")]
impl From<rustix::io::Errno> for Cause {
    fn from(e: rustix::io::Errno) -> Self {
        Self::Host(e.into())
    }
}
