//! The one parser of messages. It can not panic: bytes are taken by checked calls only.
//!
//! A structure or content that the message is too short for, and a number or flag without meaning,
//! is EINVAL, unless ext4 has another errno for it. Bytes that are left over are ignored: a later
//! minor version of the protocol may put fields at the end. Of a structure that an earlier version
//! ends sooner, a feature of INIT says whether the rest is there.

use super::{
    Command, CopyRange, Fallocate, Init, Ioctl, Listing, MAX_CONTENT, Make, NewFile, NewXattr, OpenHow, Read,
    Received, Request, Seek, SeekTo, SetAttrs, VerityArgs, Wanted, Write, WriteFrom,
};
use crate::attr::unpack;
use crate::fault::{Answer, Fault};
use crate::wire::{
    self, AccessIn, BatchForgetIn, CopyIn, CreateIn, EnableVerity, FallocateIn, ForgetIn, ForgetOne, FsXattr,
    FsyncIn, GetattrIn, GetxattrIn, InHeader, InitExtIn, InitFlags, InitIn, IoctlIn, LinkIn, LseekIn,
    MkdirIn, MknodIn, OpenFlags, OpenIn, ReadIn, ReleaseIn, Rename2In, RenameIn, SetattrIn, SetxattrExtIn,
    SetxattrIn, WriteIn, fattr, ioc, op,
};
use lanefs::format::InodeFlags;
use lanefs::format::verity::MAX_SALT;
use lanefs::{
    FallocMode, FileType, NewAttr, NewKind, RenameFlags, SetAttr, SetTime, SetXattr, Timestamp, VerityHash,
};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use zerocopy::{FromBytes, Immutable, KnownLayout};

const INVALID: Fault = Fault(Errno::INVAL);

impl<'b> Received<'b> {
    /// Decodes a message of a kernel with which these features were agreed on. Returns `None` if it
    /// is shorter than a header: then there is nothing to answer.
    pub(crate) fn decode(message: &'b [u8], features: InitFlags) -> Option<Self> {
        let (header, body) = InHeader::read_from_prefix(message).ok()?;
        let whole = header.len as usize == message.len();
        let body = Body { rest: body };
        let request = if whole { body.request(&header, features) } else { Err(Fault(Errno::IO)) };
        Some(Self { header, request })
    }
}

/// The arguments that were not taken yet.
struct Body<'b> {
    rest: &'b [u8],
}

impl<'b> Body<'b> {
    fn take<T: FromBytes + KnownLayout + Immutable>(&mut self) -> Answer<T> {
        let (value, rest) = T::read_from_prefix(self.rest).map_err(|_| INVALID)?;
        self.rest = rest;
        Ok(value)
    }

    /// Takes the next name, up to its NUL.
    fn name(&mut self) -> Answer<&'b OsStr> {
        let end = self.rest.iter().position(|b| *b == 0).ok_or(INVALID)?;
        let name = self.bytes(end)?;
        self.bytes(1)?;
        Ok(OsStr::from_bytes(name))
    }

    fn bytes(&mut self, len: usize) -> Answer<&'b [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(len).ok_or(INVALID)?;
        self.rest = rest;
        Ok(bytes)
    }

    fn request(mut self, header: &InHeader, features: InitFlags) -> Answer<Request<'b>> {
        Ok(match header.opcode {
            op::INIT => Request::Init(self.init()?),
            op::LOOKUP => Request::Lookup { name: self.name()? },
            op::FORGET => self.forget(),
            op::BATCH_FORGET => self.batch_forget(),
            op::GETATTR => self.getattr()?,
            op::STATX => Request::Statx,
            op::SETATTR => Request::SetAttr(set_attrs(&self.take()?)?),
            op::READLINK => Request::ReadLink,
            op::SYMLINK => self.symlink(header)?,
            op::MKNOD => self.mknod(header)?,
            op::MKDIR => self.mkdir(header)?,
            op::CREATE => self.create(header)?,
            op::TMPFILE => Request::TmpFile(new_file(&self.take()?, header)),
            op::UNLINK => Request::Unlink { name: self.name()? },
            op::RMDIR => Request::RmDir { name: self.name()? },
            op::RENAME => self.rename()?,
            op::RENAME2 => self.rename2(header)?,
            op::LINK => self.link()?,
            op::OPEN => self.open()?,
            op::READ => Request::Read(self.read()?),
            op::WRITE => Request::Write(self.write()?),
            op::RELEASE => Request::Release { handle: self.take::<ReleaseIn>()?.fh },
            op::FSYNC => self.fsync()?,
            op::FSYNCDIR => Request::FsyncDir,
            op::FALLOCATE => self.fallocate()?,
            op::LSEEK => Request::Seek(self.seek()?),
            op::COPY_FILE_RANGE => Request::CopyRange(copy_range(&self.take()?)),
            op::READDIR => Request::ReadDir(self.listing()?),
            op::READDIRPLUS => Request::ReadDirPlus(self.listing()?),
            op::RELEASEDIR => Request::ReleaseDir,
            op::STATFS => Request::StatFs,
            op::SYNCFS => Request::SyncFs,
            op::ACCESS => Request::Access { executes: self.take::<AccessIn>()?.mask & wire::X_OK != 0 },
            op::GETXATTR => self.getxattr()?,
            op::LISTXATTR => Request::ListXattr { wanted: self.wanted()? },
            op::SETXATTR => self.setxattr(features)?,
            op::REMOVEXATTR => Request::RemoveXattr { name: self.name()? },
            op::IOCTL => Request::Ioctl(self.ioctl()?),
            op::DESTROY => Request::Destroy,
            // The kernel then sends these requests no more: FLUSH, which has nothing to do here,
            // OPENDIR, since directories are read by position alone, INTERRUPT, since no
            // request waits long, and locks, which the kernel keeps itself.
            _ => return Err(Fault(Errno::NOSYS)),
        })
    }

    /// Decodes INIT. Before version 7.36 (Linux 5.17) its features have 32 bits.
    fn init(&mut self) -> Answer<Init> {
        let InitIn { major, minor, max_readahead, flags } = self.take()?;
        let low = InitFlags::from_bits_retain(flags.into());
        let is_longer = low.contains(InitFlags::INIT_EXT);
        let high = if is_longer { self.take::<InitExtIn>().map_or(0, |ext| ext.flags2) } else { 0 };
        let offered = low | InitFlags::from_bits_retain(u64::from(high) << 32);
        Ok(Init { major, minor, max_readahead, offered })
    }

    /// Decodes FORGET. A malformed one forgets nothing: the kernel takes no answer to it.
    fn forget(&mut self) -> Request<'b> {
        match self.take::<ForgetIn>() {
            Ok(args) => Request::Forget { lookups: args.nlookup },
            Err(_) => Request::BatchForget(&[]),
        }
    }

    /// Decodes BATCH_FORGET, as long as its count says, or as its message is.
    fn batch_forget(&mut self) -> Request<'b> {
        let count = self.take::<BatchForgetIn>().map_or(0, |args| args.count as usize);
        let count = count.min(self.rest.len() / size_of::<ForgetOne>());
        let forgotten = <[ForgetOne]>::ref_from_prefix_with_elems(self.rest, count);
        Request::BatchForget(forgotten.map_or(&[], |(all, _)| all))
    }

    fn getattr(&mut self) -> Answer<Request<'b>> {
        let args: GetattrIn = self.take()?;
        let handle = (args.getattr_flags & wire::GETATTR_FH != 0).then_some(args.fh);
        Ok(Request::GetAttr { handle })
    }

    fn symlink(&mut self, header: &InHeader) -> Answer<Request<'b>> {
        let name = self.name()?;
        let kind = NewKind::Symlink(self.name()?.as_bytes());
        Ok(Request::Make(Make { name, kind, attr: new_attr(0o777, header), umask: 0 }))
    }

    fn mknod(&mut self, header: &InHeader) -> Answer<Request<'b>> {
        let args: MknodIn = self.take()?;
        let kind = match FileType::from_mode(args.mode as u16).ok_or(INVALID)? {
            FileType::Regular => NewKind::File,
            FileType::Directory | FileType::Symlink => return Err(INVALID),
            file_type => NewKind::Special { file_type, device: unpack(args.rdev) },
        };
        let attr = new_attr(args.mode, header);
        Ok(Request::Make(Make { name: self.name()?, kind, attr, umask: args.umask as u16 }))
    }

    fn mkdir(&mut self, header: &InHeader) -> Answer<Request<'b>> {
        let args: MkdirIn = self.take()?;
        let attr = new_attr(args.mode, header);
        Ok(Request::Make(Make { name: self.name()?, kind: NewKind::Dir, attr, umask: args.umask as u16 }))
    }

    fn create(&mut self, header: &InHeader) -> Answer<Request<'b>> {
        let file = new_file(&self.take()?, header);
        Ok(Request::Create { name: self.name()?, file })
    }

    fn rename(&mut self) -> Answer<Request<'b>> {
        let RenameIn { newdir: to } = self.take()?;
        let (name, new_name) = (self.name()?, self.name()?);
        Ok(Request::Rename { name, to, new_name, flags: RenameFlags::Replace })
    }

    fn rename2(&mut self, header: &InHeader) -> Answer<Request<'b>> {
        let Rename2In { newdir: to, flags, .. } = self.take()?;
        let (uid, gid) = (header.uid, header.gid);
        let flags = match flags {
            0 => RenameFlags::Replace,
            1 => RenameFlags::NoReplace,
            2 => RenameFlags::Exchange,
            4 | 5 => RenameFlags::Whiteout { replace: flags == 4, uid, gid },
            _ => return Err(INVALID),
        };
        let (name, new_name) = (self.name()?, self.name()?);
        Ok(Request::Rename { name, to, new_name, flags })
    }

    fn link(&mut self) -> Answer<Request<'b>> {
        let LinkIn { oldnodeid: node } = self.take()?;
        Ok(Request::Link { node, name: self.name()? })
    }

    fn open(&mut self) -> Answer<Request<'b>> {
        let args: OpenIn = self.take()?;
        Ok(Request::Open(open_how(args.flags, args.open_flags)))
    }

    fn read(&mut self) -> Answer<Read> {
        let args: ReadIn = self.take()?;
        Ok(Read {
            handle: args.fh,
            offset: args.offset,
            size: answer_size(args.size)?,
            flags: OpenFlags::from_bits_retain(args.flags),
            for_cache: args.read_flags & wire::READ_LOCKOWNER == 0,
        })
    }

    fn write(&mut self) -> Answer<Write<'b>> {
        let args: WriteIn = self.take()?;
        let has = |flag| args.write_flags & flag != 0;
        let from = match has(wire::WRITE_CACHE) {
            true => WriteFrom::Cache,
            false => WriteFrom::Program {
                kills_ids: has(wire::WRITE_KILL_SUIDGID),
                direct: has(wire::WRITE_LOCKOWNER),
            },
        };
        let bytes = self.bytes(args.size as usize)?;
        let flags = OpenFlags::from_bits_retain(args.flags);
        Ok(Write { handle: args.fh, offset: args.offset, bytes, flags, from })
    }

    fn fsync(&mut self) -> Answer<Request<'b>> {
        let args: FsyncIn = self.take()?;
        Ok(Request::Fsync { handle: args.fh, data_only: args.fsync_flags & wire::FSYNC_FDATASYNC != 0 })
    }

    /// Decodes FALLOCATE.
    ///
    /// # Errors
    /// EOPNOTSUPP for a mode that ext4 does not have either.
    fn fallocate(&mut self) -> Answer<Request<'b>> {
        const KEEP_SIZE: u32 = 0x1;
        let FallocateIn { fh: handle, offset, length: len, mode, .. } = self.take()?;
        let mode = match (mode & !KEEP_SIZE, mode & KEEP_SIZE != 0) {
            (0, false) => FallocMode::Allocate,
            (0, true) => FallocMode::KeepSize,
            (0x2, true) => FallocMode::PunchHole,
            (0x8, false) => FallocMode::CollapseRange,
            (0x10, false) => FallocMode::ZeroRange,
            (0x10, true) => FallocMode::ZeroRangeKeepSize,
            (0x20, false) => FallocMode::InsertRange,
            _ => return Err(Fault(Errno::OPNOTSUPP)),
        };
        Ok(Request::Fallocate(Fallocate { handle, mode, offset, len }))
    }

    fn seek(&mut self) -> Answer<Seek> {
        let LseekIn { fh: handle, offset, whence, .. } = self.take()?;
        let to = match whence {
            3 => SeekTo::Data,
            4 => SeekTo::Hole,
            // The kernel answers the others itself.
            _ => return Err(INVALID),
        };
        Ok(Seek { handle, offset, to })
    }

    fn listing(&mut self) -> Answer<Listing> {
        let args: ReadIn = self.take()?;
        let flags = OpenFlags::from_bits_retain(args.flags);
        Ok(Listing { position: args.offset, size: answer_size(args.size)?, flags })
    }

    fn wanted(&mut self) -> Answer<Wanted> {
        let size = self.take::<GetxattrIn>()?.size as usize;
        Ok(if size == 0 { Wanted::Length } else { Wanted::Bytes(size) })
    }

    fn getxattr(&mut self) -> Answer<Request<'b>> {
        let wanted = self.wanted()?;
        Ok(Request::GetXattr { name: self.name()?, wanted })
    }

    fn setxattr(&mut self, features: InitFlags) -> Answer<Request<'b>> {
        const CREATE: u32 = 0x1;
        const REPLACE: u32 = 0x2;
        let args: SetxattrIn = self.take()?;
        let more = match features.contains(InitFlags::SETXATTR_EXT) {
            true => self.take::<SetxattrExtIn>()?.setxattr_flags,
            false => 0,
        };
        let how = match args.flags & (CREATE | REPLACE) {
            0 => SetXattr::Any,
            CREATE => SetXattr::Create,
            REPLACE => SetXattr::Replace,
            _ => return Err(INVALID),
        };
        let (name, value) = (self.name()?, self.bytes(args.size as usize)?);
        let kills_group_id = more & wire::SETXATTR_ACL_KILL_SGID != 0;
        Ok(Request::SetXattr(NewXattr { name, value, how, kills_group_id }))
    }

    /// Decodes IOCTL.
    ///
    /// # Errors
    /// ENOTTY for a command that ext4 does not have, or lanefs does not.
    fn ioctl(&mut self) -> Answer<Ioctl> {
        let args: IoctlIn = self.take()?;
        let mut input = Body { rest: self.bytes(args.in_size as usize)? };
        let command = match args.cmd {
            ioc::GETFLAGS => Command::GetFlags,
            ioc::SETFLAGS => Command::SetFlags(InodeFlags::from_bits_retain(input.take()?)),
            ioc::GETVERSION => Command::GetVersion,
            ioc::FSGETXATTR => Command::GetXFlags,
            ioc::FSSETXATTR => {
                let FsXattr { xflags, projid: project, .. } = input.take()?;
                Command::SetXFlags { xflags, project }
            }
            ioc::FITRIM => Command::Trim(input.take()?),
            ioc::ENABLE_VERITY => Command::EnableVerity(input.verity()?),
            ioc::MEASURE_VERITY => Command::MeasureVerity,
            ioc::RESIZE_FS => Command::Resize(input.take()?),
            _ => return Err(Fault(Errno::NOTTY)),
        };
        Ok(Ioctl { command, room: args.out_size as usize })
    }

    /// Decodes the argument of FS_IOC_ENABLE_VERITY.
    ///
    /// # Errors
    /// EINVAL for fields that the kernel refuses; EOPNOTSUPP for an unknown hash algorithm, and for
    /// a signature, which needs the kernel's keys.
    fn verity(&mut self) -> Answer<VerityArgs> {
        let args: EnableVerity = self.take()?;
        let salt_size = args.salt_size as usize;
        let plain = args.version == 1 && args.reserved1 == 0 && args.reserved2 == [0; 11];
        if !plain || salt_size > MAX_SALT {
            return Err(INVALID);
        }
        let hash = match args.hash_algorithm {
            1 => VerityHash::Sha256,
            2 => VerityHash::Sha512,
            _ => return Err(Fault(Errno::OPNOTSUPP)),
        };
        if args.sig_size != 0 {
            return Err(Fault(Errno::OPNOTSUPP));
        }
        let mut salt = [0; MAX_SALT];
        salt[..salt_size].copy_from_slice(self.bytes(salt_size)?);
        Ok(VerityArgs { hash, block_size: args.block_size, salt, salt_size })
    }
}

/// Checks how much the kernel has room for: no more than fits into an answer.
fn answer_size(size: u32) -> Answer<usize> {
    Some(size as usize).filter(|size| *size <= MAX_CONTENT).ok_or(INVALID)
}

fn new_attr(mode: u32, header: &InHeader) -> NewAttr {
    NewAttr { permissions: mode as u16 & 0o7777, uid: header.uid, gid: header.gid }
}

fn open_how(flags: u32, open_flags: u32) -> OpenHow {
    let kills_ids = open_flags & wire::OPEN_KILL_SUIDGID != 0;
    OpenHow { flags: OpenFlags::from_bits_retain(flags), kills_ids }
}

fn new_file(args: &CreateIn, header: &InHeader) -> NewFile {
    let how = open_how(args.flags, args.open_flags);
    NewFile { attr: new_attr(args.mode, header), umask: args.umask as u16, how }
}

fn set_attrs(args: &SetattrIn) -> Answer<SetAttrs> {
    let has = |bit| args.valid & bit != 0;
    let time = |bit, now, sec, nsec| {
        Ok(match (has(bit), has(now)) {
            (false, _) => None,
            (true, true) => Some(SetTime::Now),
            (true, false) if nsec < 1_000_000_000 => Some(SetTime::At(Timestamp { sec, nsec })),
            (true, false) => return Err(INVALID),
        })
    };
    let set = SetAttr {
        permissions: has(fattr::MODE).then_some(args.mode as u16 & 0o7777),
        uid: has(fattr::UID).then_some(args.uid),
        gid: has(fattr::GID).then_some(args.gid),
        atime: time(fattr::ATIME, fattr::ATIME_NOW, args.atime, args.atimensec)?,
        mtime: time(fattr::MTIME, fattr::MTIME_NOW, args.mtime, args.mtimensec)?,
        ctime: time(fattr::CTIME, 0, args.ctime, args.ctimensec)?,
        ..SetAttr::default()
    };
    Ok(SetAttrs {
        size: has(fattr::SIZE).then_some(args.size),
        kills_ids: has(fattr::KILL_SUIDGID),
        set,
        by_handle: has(fattr::FH),
        times_alone: args.valid & !fattr::FH == fattr::MTIME | fattr::CTIME,
    })
}

fn copy_range(args: &CopyIn) -> CopyRange {
    CopyRange {
        from: args.fh_in,
        from_offset: args.off_in,
        to: args.fh_out,
        to_node: args.nodeid_out,
        to_offset: args.off_out,
        len: args.len,
    }
}
