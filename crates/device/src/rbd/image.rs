//! An open image: its lock, and requests to it.
//!
//! Requests of a batch are in flight together. A call returns when the library has completed all
//! that it began, because they use the caller's memory.
#![allow(unsafe_code)]

use super::cluster::{Pool, c, failed, owned, split_names, with_room};
use super::error::RbdError;
use super::library::{EXCLUSIVE, FEATURE_EXCLUSIVE_LOCK, Handle, Rbd, Snapshot, Watcher};
use super::url::RbdUrl;
use crate::errno::{EAGAIN, EBUSY, ENOENT, ERANGE, EROFS};
use std::ffi::{c_char, c_int};
use std::ptr::null_mut;

/// The most requests in flight of one batch.
const IN_FLIGHT: usize = 256;
/// The most pieces of memory of one write.
const PIECES: usize = 512;

/// An open image. It is closed, and its lock released, when it is dropped.
pub(super) struct Image {
    image: Handle,
    pool: Pool,
}

// SAFETY: the handle of an image may be used and ended by any thread, says librbd's documentation.
unsafe impl Send for Image {}
// SAFETY: likewise by several threads at once.
unsafe impl Sync for Image {}

/// A completed part of an image, and how long it was to be.
struct Begun {
    completion: Handle,
    len: u64,
}

impl Image {
    /// Opens the image of a URL.
    ///
    /// # Errors
    /// No such image or snapshot.
    pub(super) fn open(pool: Pool, url: &RbdUrl, read_only: bool) -> Result<Self, RbdError> {
        let (name, snapshot) = (c(&*url.image), url.snapshot.as_ref().map(|name| c(&**name)));
        let snapshot = snapshot.as_ref().map_or(std::ptr::null(), |name| name.as_ptr());
        let rbd = &pool.api.rbd;
        let open = if read_only { rbd.rbd_open_read_only } else { rbd.rbd_open };
        let mut image = null_mut();
        // SAFETY: the pool is open; a C string, room for the handle, and a C string or null.
        match failed(unsafe { open(pool.pool, name.as_ptr(), &raw mut image, snapshot) }) {
            Ok(_) => Ok(Self { image, pool }),
            Err(ENOENT) => Err(Self::missing(pool, url)),
            Err(errno) => Err(RbdError::of_call("open the image", errno)),
        }
    }

    /// Returns which of image and snapshot there is not.
    fn missing(pool: Pool, url: &RbdUrl) -> RbdError {
        let there = pool.names_of_images();
        if let Some(snapshot) = &url.snapshot {
            let whole = RbdUrl { snapshot: None, ..url.clone() };
            if let Ok(image) = Self::open(pool, &whole, true) {
                return RbdError::NoSnapshot { snapshot: snapshot.clone(), there: image.snapshots() };
            }
        }
        RbdError::NoImage { image: url.image.clone(), there }
    }

    fn rbd(&self) -> &'static Rbd {
        &self.pool.api.rbd
    }

    /// Returns the names of the snapshots, `None` if they cannot be told.
    fn snapshots(&self) -> Option<Vec<String>> {
        let empty = Snapshot { id: 0, size: 0, name: std::ptr::null() };
        let listed = with_room(empty, 64, |found, room| {
            let mut most = c_int::try_from(found.len()).unwrap_or(c_int::MAX);
            // SAFETY: the image is open; as much room as is said.
            let count = unsafe { (self.rbd().rbd_snap_list)(self.image, found.as_mut_ptr(), &raw mut most) };
            *room = usize::try_from(most).unwrap_or(0);
            failed(count)
        });
        let (mut found, count) = listed.ok()?;
        // SAFETY: the library has filled in so many, whose names are C strings until the next call.
        let names = found.iter().take(count as usize).map(|one| unsafe { owned(one.name) }).collect();
        // SAFETY: what the call above has filled in is given back once.
        unsafe { (self.rbd().rbd_snap_list_end)(found.as_mut_ptr()) };
        Some(names)
    }

    /// Returns the size in bytes.
    pub(super) fn size(&self) -> Result<u64, RbdError> {
        let mut size = 0;
        // SAFETY: the image is open; room for the number.
        let got = failed(unsafe { (self.rbd().rbd_get_size)(self.image, &raw mut size) });
        got.map(|_| size).map_err(|errno| RbdError::of_call("tell the size of the image", errno))
    }

    /// Returns whether the image can be locked.
    pub(super) fn has_lock(&self) -> Result<bool, RbdError> {
        let mut features = 0;
        // SAFETY: the image is open; room for the number.
        let got = failed(unsafe { (self.rbd().rbd_get_features)(self.image, &raw mut features) });
        got.map(|_| features & FEATURE_EXCLUSIVE_LOCK != 0)
            .map_err(|errno| RbdError::of_call("tell the features of the image", errno))
    }

    /// Takes the exclusive lock until the image is closed, and fences a holder that has died.
    ///
    /// # Errors
    /// [`RbdError::InUse`] with the address of a holder that lives. The cluster takes one that has
    /// died for half a minute more for one that lives.
    pub(super) fn lock(&self) -> Result<(), RbdError> {
        let before = self.owner()?;
        // The library would ask it for the lock, and qemu and the kernel give it up.
        if let Some(owner) = &before
            && self.watchers()?.contains(owner)
        {
            return Err(RbdError::InUse { by: before });
        }
        before.iter().for_each(|dead| self.pool.fence(dead));
        // SAFETY: the image is open.
        match failed(unsafe { (self.rbd().rbd_lock_acquire)(self.image, EXCLUSIVE) }) {
            Ok(_) => Ok(()),
            Err(EROFS | EBUSY | EAGAIN) => Err(RbdError::InUse { by: self.owner()? }),
            Err(errno) => Err(RbdError::of_call("lock the image", errno)),
        }
    }

    /// Takes the lock from the client that holds it, which the cluster blocklists first. Does
    /// nothing if no client does.
    pub(super) fn break_lock(&self) -> Result<(), RbdError> {
        let Some(owner) = self.owner()? else { return Ok(()) };
        self.pool.fence(&owner);
        let owner = c(owner);
        // SAFETY: the image is open; a C string.
        match failed(unsafe { (self.rbd().rbd_lock_break)(self.image, EXCLUSIVE, owner.as_ptr()) }) {
            // It has given up the lock meanwhile.
            Ok(_) | Err(ENOENT) => Ok(()),
            Err(errno) => Err(RbdError::of_call("break the lock of the image", errno)),
        }
    }

    /// Returns the address of the client that holds the lock and has the image open. Of an image
    /// that is open for reading, [`owner`](Self::owner) tells nothing.
    pub(super) fn living_owner(&self) -> Result<Option<String>, RbdError> {
        let mut text = [[0_u8; 4096]; 4];
        let [tag, clients, cookies, addresses] = &mut text;
        let (mut exclusive, mut len) = (0, [4096; 4]);
        let [tag_len, clients_len, cookies_len, addresses_len] = &mut len;
        // SAFETY: the image is open; as much room as is said.
        let count = unsafe {
            (self.rbd().rbd_list_lockers)(
                self.image,
                &raw mut exclusive,
                tag.as_mut_ptr().cast(),
                tag_len,
                clients.as_mut_ptr().cast(),
                clients_len,
                cookies.as_mut_ptr().cast(),
                cookies_len,
                addresses.as_mut_ptr().cast(),
                addresses_len,
            )
        };
        match count {
            count if count < 0 => Err(RbdError::of_call("tell who holds the lock", negated(count))),
            0 => Ok(None),
            _ => {
                let watchers = self.watchers()?;
                Ok(split_names(addresses).into_iter().find(|owner| watchers.contains(owner)))
            }
        }
    }

    /// Returns the address of the client that holds the lock.
    fn owner(&self) -> Result<Option<String>, RbdError> {
        let (mut owners, mut count, mut mode) = ([null_mut::<c_char>(); 8], 8, 0);
        // SAFETY: the image is open; as much room as is said.
        let got = unsafe {
            let get = self.rbd().rbd_lock_get_owners;
            get(self.image, &raw mut mode, owners.as_mut_ptr(), &raw mut count)
        };
        match failed(got) {
            Ok(_) => {}
            Err(ENOENT) => return Ok(None),
            Err(errno) => return Err(RbdError::of_call("tell who holds the lock", errno)),
        }
        let count = count.min(owners.len());
        // SAFETY: the library has filled in so many C strings.
        let first = owners[..count].first().map(|owner| unsafe { owned(*owner) });
        // SAFETY: what the call above has filled in is given back once.
        unsafe { (self.rbd().rbd_lock_get_owners_cleanup)(owners.as_mut_ptr(), count) };
        Ok(first)
    }

    /// Returns the addresses of the clients that have the image open and live.
    fn watchers(&self) -> Result<Vec<String>, RbdError> {
        let mut room = 16;
        loop {
            let mut found = vec![Watcher { address: null_mut(), id: 0, cookie: 0 }; room];
            let mut count = found.len();
            // SAFETY: the image is open; as much room as is said.
            let got =
                unsafe { (self.rbd().rbd_watchers_list)(self.image, found.as_mut_ptr(), &raw mut count) };
            match failed(got) {
                Ok(_) => {}
                Err(ERANGE) if room < 4096 => {
                    room *= 2;
                    continue;
                }
                Err(errno) => return Err(RbdError::of_call("tell who has the image open", errno)),
            }
            let count = count.min(found.len());
            // SAFETY: the library has filled in so many, whose addresses are C strings.
            let names = found[..count].iter().map(|one| unsafe { owned(one.address) }).collect();
            // SAFETY: what the call above has filled in is given back once.
            unsafe { (self.rbd().rbd_watchers_list_cleanup)(found.as_mut_ptr(), count) };
            return Ok(names);
        }
    }

    /// Reads all ranges at the same time.
    pub(super) fn read<'a>(&self, ops: impl Iterator<Item = (u64, &'a mut [u8])>) -> Result<(), RbdError> {
        let mut burst = Burst::new(self, "read");
        for (offset, buf) in ops.filter(|(_, buf)| !buf.is_empty()) {
            burst.begin(buf.len() as u64, |completion| {
                // SAFETY: the image is open, and `buf` is borrowed until the burst has ended: it
                // outlives `burst`, which waits for the completion.
                unsafe {
                    let read = self.rbd().rbd_aio_read;
                    read(self.image, offset, buf.len(), buf.as_mut_ptr().cast(), completion)
                }
            })?;
        }
        burst.end()
    }

    /// Writes all ranges at the same time: each to an offset, and gathered from pieces of memory.
    pub(super) fn write<'a>(&self, ops: impl Iterator<Item = (u64, &'a [&'a [u8]])>) -> Result<(), RbdError> {
        let mut burst = Burst::new(self, "write");
        for (mut offset, data) in ops {
            for pieces in data.chunks(PIECES) {
                let part = |piece: &&[u8]| libc::iovec {
                    iov_base: piece.as_ptr().cast_mut().cast(),
                    iov_len: piece.len(),
                };
                let parts: Vec<libc::iovec> = pieces.iter().filter(|p| !p.is_empty()).map(part).collect();
                let len: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
                if len == 0 {
                    continue;
                }
                burst.begin(len, |completion| {
                    // SAFETY: the image is open. The library copies `parts`, and only reads what
                    // they point at, which is borrowed until the burst has ended.
                    unsafe {
                        let write = self.rbd().rbd_aio_writev;
                        write(self.image, parts.as_ptr(), parts.len() as c_int, offset, completion)
                    }
                })?;
                offset += len;
            }
        }
        burst.end()
    }

    /// Makes what was written durable.
    pub(super) fn flush(&self) -> Result<(), RbdError> {
        // SAFETY: the image is open.
        let done = failed(unsafe { (self.rbd().rbd_flush)(self.image) });
        done.map(drop).map_err(|errno| RbdError::of_call("flush", errno))
    }

    /// Gives space back.
    pub(super) fn discard(&self, offset: u64, len: u64) -> Result<(), RbdError> {
        // SAFETY: the image is open.
        let done = failed(unsafe { (self.rbd().rbd_discard)(self.image, offset, len) });
        done.map(drop).map_err(|errno| RbdError::of_call("discard", errno))
    }

    /// Makes a range zeros.
    pub(super) fn write_zeroes(&self, offset: u64, len: usize) -> Result<(), RbdError> {
        // SAFETY: the image is open.
        match unsafe { (self.rbd().rbd_write_zeroes)(self.image, offset, len, 0, 0) } {
            done if done < 0 => Err(RbdError::of_call("write zeros", negated(done))),
            _ => Ok(()),
        }
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // SAFETY: every call has returned, and each has waited for what it began. A failure changes
        // nothing: the caller has flushed, and a lock that stays is one of a dead client.
        unsafe { (self.rbd().rbd_close)(self.image) };
    }
}

fn negated(answer: isize) -> i32 {
    i32::try_from(answer.saturating_neg()).unwrap_or(i32::MAX)
}

/// Requests in flight. A burst that is dropped waits for them, because they use memory that is
/// borrowed.
struct Burst<'a> {
    image: &'a Image,
    what: &'static str,
    begun: Vec<Begun>,
    failed: Option<RbdError>,
}

impl<'a> Burst<'a> {
    fn new(image: &'a Image, what: &'static str) -> Self {
        Self { image, what, begun: Vec::with_capacity(IN_FLIGHT), failed: None }
    }

    /// Begins one request of `len` bytes, by `call` with its completion. Waits for all that were
    /// begun if these are many.
    fn begin(&mut self, len: u64, call: impl FnOnce(Handle) -> c_int) -> Result<(), RbdError> {
        if self.begun.len() == IN_FLIGHT {
            self.wait();
        }
        let rbd = self.image.rbd();
        let mut completion = null_mut();
        // SAFETY: room for the handle; no function to call back.
        let made =
            failed(unsafe { (rbd.rbd_aio_create_completion)(null_mut(), null_mut(), &raw mut completion) });
        made.map_err(|errno| RbdError::of_call(self.what, errno))?;
        match failed(call(completion)) {
            Ok(_) => {
                self.begun.push(Begun { completion, len });
                Ok(())
            }
            Err(errno) => {
                // SAFETY: no request has the completion.
                unsafe { (rbd.rbd_aio_release)(completion) };
                Err(RbdError::of_call(self.what, errno))
            }
        }
    }

    /// Waits for all requests, and keeps the first failure.
    fn wait(&mut self) {
        let rbd = self.image.rbd();
        for Begun { completion, len } in self.begun.drain(..) {
            // SAFETY: the completion belongs to one request, and is released once, after its end.
            let answer = unsafe {
                (rbd.rbd_aio_wait_for_complete)(completion);
                let answer = (rbd.rbd_aio_get_return_value)(completion);
                (rbd.rbd_aio_release)(completion);
                answer
            };
            let failure = match answer {
                answer if answer < 0 => Some(RbdError::of_call(self.what, negated(answer))),
                got if self.what == "read" && got as u64 != len => {
                    Some(RbdError::Short { asked: len, got: got as u64 })
                }
                _ => None,
            };
            // That another client has the image says more than what follows from it.
            if self.failed.is_none() || failure == Some(RbdError::Fenced) {
                self.failed = failure.or(self.failed.take());
            }
        }
    }

    fn end(mut self) -> Result<(), RbdError> {
        self.wait();
        self.failed.take().map_or(Ok(()), Err)
    }
}

impl Drop for Burst<'_> {
    fn drop(&mut self) {
        self.wait();
    }
}
