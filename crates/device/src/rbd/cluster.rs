//! A connection to a Ceph cluster, and one pool of it.
#![allow(unsafe_code)]

use super::error::RbdError;
use super::library::{Api, Handle};
use super::url::RbdUrl;
use crate::errno::{ENOENT, ERANGE};
use std::ffi::{CStr, CString, c_char};
use std::ptr::{null, null_mut};

/// How long a client whose lock was broken stays blocklisted: 30 days.
const FENCE_SECONDS: u32 = 30 * 24 * 3600;

/// A pool, and the connection that it is used by. Both end when it is dropped.
pub(super) struct Pool {
    pub(super) api: &'static Api,
    cluster: Handle,
    /// Null until the pool is found.
    pub(super) pool: Handle,
}

// SAFETY: the libraries' handles may be used and ended by any thread, says their documentation.
unsafe impl Send for Pool {}
// SAFETY: likewise by several threads at once.
unsafe impl Sync for Pool {}

/// Returns a C string. No name of a URL has a zero byte.
pub(super) fn c(text: impl Into<Vec<u8>>) -> CString {
    CString::new(text).unwrap_or_default()
}

/// Returns the errno of an answer that is a failure.
pub(super) fn failed(answer: i32) -> Result<i32, i32> {
    if answer < 0 { Err(answer.saturating_neg()) } else { Ok(answer) }
}

/// Cuts names that zero bytes separate.
pub(super) fn split_names(bytes: &[u8]) -> Vec<String> {
    let names = bytes.split(|b| *b == 0).filter(|name| !name.is_empty());
    names.map(|name| String::from_utf8_lossy(name).into_owned()).collect()
}

/// The most items that room is made for.
const MOST: usize = 64 << 20;
/// How often room is made. Others may make more of what is listed meanwhile.
const TRIES: usize = 8;

/// Calls `list` with room for `first` items, and again with the room that it then says, until it
/// does not fail with ERANGE. Returns the items and its answer.
///
/// # Errors
/// The errno of `list`.
pub(super) fn with_room<T: Clone>(
    empty: T,
    first: usize,
    mut list: impl FnMut(&mut [T], &mut usize) -> Result<i32, i32>,
) -> Result<(Vec<T>, i32), i32> {
    let mut room = first;
    for _ in 0..TRIES {
        let mut found = vec![empty.clone(); room];
        match list(&mut found, &mut room) {
            Ok(answer) => return Ok((found, answer)),
            Err(ERANGE) => room = room.max(2 * found.len()).min(MOST),
            Err(errno) => return Err(errno),
        }
    }
    Err(ERANGE)
}

impl Pool {
    /// Connects to the cluster of a URL, and finds the pool.
    ///
    /// # Errors
    /// A library that is missing; a configuration that cannot be read; no connection; no such pool.
    pub(super) fn open(url: &RbdUrl) -> Result<Self, RbdError> {
        let api = Api::get()?;
        let mut pool = Self { api, cluster: null_mut(), pool: null_mut() };
        let (cluster, user) = (c("ceph"), c(format!("client.{}", url.id)));
        // SAFETY: two C strings that outlive the call, and room for the handle.
        let made =
            unsafe { (api.rados.rados_create2)(&raw mut pool.cluster, cluster.as_ptr(), user.as_ptr(), 0) };
        failed(made).map_err(|errno| RbdError::Failed { what: "make a client", errno })?;
        pool.configure(url)?;
        // SAFETY: the handle was made above and is not connected.
        let connected = failed(unsafe { (api.rados.rados_connect)(pool.cluster) });
        connected.map_err(|errno| RbdError::Connect { id: url.id.clone(), errno })?;
        let name = c(&*url.pool);
        // SAFETY: the cluster is connected; a C string, and room for the handle.
        let found =
            unsafe { (api.rados.rados_ioctx_create)(pool.cluster, name.as_ptr(), &raw mut pool.pool) };
        match failed(found) {
            Ok(_) => {}
            Err(ENOENT) => {
                return Err(RbdError::NoPool { pool: url.pool.clone(), there: pool.names_of_pools() });
            }
            Err(errno) => return Err(RbdError::of_call("open the pool", errno)),
        }
        if !url.namespace.is_empty() {
            let name = c(&*url.namespace);
            // SAFETY: the pool is open; a C string.
            unsafe { (api.rados.rados_ioctx_set_namespace)(pool.pool, name.as_ptr()) };
        }
        Ok(pool)
    }

    fn configure(&self, url: &RbdUrl) -> Result<(), RbdError> {
        let conf = url.conf.as_ref().map(|path| c(path.as_os_str().as_encoded_bytes()));
        let path = conf.as_ref().map_or(null(), |path| path.as_ptr());
        // SAFETY: the cluster's handle is open; a C string, or null for the usual places.
        let read = failed(unsafe { (self.api.rados.rados_conf_read_file)(self.cluster, path) });
        let shown = || url.conf.as_ref().map_or("/etc/ceph/ceph.conf".into(), |p| p.display().to_string());
        read.map_err(|errno| RbdError::Config { conf: shown(), errno })?;
        // SAFETY: as above; null is the variable CEPH_ARGS.
        let read = failed(unsafe { (self.api.rados.rados_conf_parse_env)(self.cluster, null()) });
        read.map_err(|errno| RbdError::Config { conf: "in CEPH_ARGS".into(), errno })?;
        let seconds = url.timeout.as_secs().to_string();
        self.set("client_mount_timeout", &seconds)?;
        self.set("rados_mon_op_timeout", &seconds)?;
        // The volume has a cache of its own.
        self.set("rbd_cache", "false")?;
        // A lock is broken only together with a fence.
        self.set("rbd_blocklist_on_break_lock", "true")
    }

    /// Has the cluster reject a client for long, before its lock is taken. The library then fences
    /// it again, for an hour only, which does not shorten that; it is what remains where this user
    /// may not do more.
    pub(super) fn fence(&self, client: &str) {
        // 127.0.0.1:0/12, [::1]:0/12: nothing that would have to be escaped.
        if !client.chars().all(|c| c.is_ascii_hexdigit() || "[]:./".contains(c)) {
            return;
        }
        let command = c(format!(
            r#"{{"prefix": "osd blocklist", "blocklistop": "add", "addr": "{client}", "expire": {FENCE_SECONDS}.0}}"#
        ));
        let mut commands = [command.as_ptr()];
        let (mut out, mut said) = ([null_mut::<c_char>(); 2], [0_usize; 2]);
        let ([out, status], [out_len, status_len]) = (&mut out, &mut said);
        // SAFETY: the cluster is connected; one C string, no input, and room for two answers.
        unsafe {
            let tell = self.api.rados.rados_mon_command;
            tell(self.cluster, commands.as_mut_ptr(), 1, null(), 0, out, out_len, status, status_len);
        }
        for buffer in [*out, *status].into_iter().filter(|buffer| !buffer.is_null()) {
            // SAFETY: the library has made the buffer for this call, which frees it once.
            unsafe { (self.api.rados.rados_buffer_free)(buffer) };
        }
    }

    fn set(&self, name: &str, value: &str) -> Result<(), RbdError> {
        let (name, value) = (c(name), c(value));
        // SAFETY: the cluster's handle is open; two C strings.
        let set =
            failed(unsafe { (self.api.rados.rados_conf_set)(self.cluster, name.as_ptr(), value.as_ptr()) });
        set.map(drop).map_err(|errno| RbdError::of_call("be configured", errno))
    }

    /// Returns the names of all pools, `None` if they cannot be told.
    fn names_of_pools(&self) -> Option<Vec<String>> {
        let listed = with_room(0_u8, 64 << 10, |names, room| {
            let list = self.api.rados.rados_pool_list;
            // SAFETY: the cluster is connected; as much room as is said.
            let len = failed(unsafe { list(self.cluster, names.as_mut_ptr().cast(), names.len()) })?;
            *room = usize::try_from(len).unwrap_or(0);
            if *room > names.len() { Err(ERANGE) } else { Ok(len) }
        });
        listed.ok().map(|(names, _)| split_names(&names))
    }

    /// Returns the names of all images of the pool, `None` if they cannot be told.
    pub(super) fn names_of_images(&self) -> Option<Vec<String>> {
        let listed = with_room(0_u8, 64 << 10, |names, room| {
            // SAFETY: the pool is open; as much room as is said.
            failed(unsafe { (self.api.rbd.rbd_list)(self.pool, names.as_mut_ptr().cast(), room) })
        });
        listed.ok().map(|(names, _)| split_names(&names))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if !self.pool.is_null() {
            // SAFETY: the pool is open, and no image of it: those keep the pool.
            unsafe { (self.api.rados.rados_ioctx_destroy)(self.pool) };
        }
        if !self.cluster.is_null() {
            // SAFETY: nothing uses the cluster's handle any more.
            unsafe { (self.api.rados.rados_shutdown)(self.cluster) };
        }
    }
}

/// Copies a C string of the library, an empty one for null.
///
/// # Safety
/// `text` is null or a C string.
pub(super) unsafe fn owned(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: promised by the caller.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_any_number() {
        for there in [0, 62, 63, 64, 65, 1000] {
            let mut calls = 0;
            let listed = with_room(0_u8, 64, |found, room| {
                calls += 1;
                // As rbd_snap_list, which marks the end.
                if found.len() < there + 1 {
                    *room = there + 1;
                    return Err(ERANGE);
                }
                found[..there].fill(7);
                Ok(there as i32)
            });
            let (found, count) = listed.unwrap();
            assert!(count as usize == there && found[..there].iter().all(|item| *item == 7), "{there}");
            assert!(calls <= 2, "{calls} calls for {there}");
        }
        for errno in [ENOENT, ERANGE] {
            assert_eq!(with_room(0_u8, 1, |_, _| Err(errno)).unwrap_err(), errno);
        }
    }
}
