//! The C interface of librados and librbd, loaded at run time.
//!
//! Only the functions that are used are declared, as Ceph's documentation of the two libraries has
//! them. A function answers a negative errno where it fails. The libraries are never unloaded: they
//! have threads of their own.
#![allow(unsafe_code)]

use super::error::RbdError;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{Mutex, PoisonError};

/// A handle of the libraries: `rados_t`, `rados_ioctx_t`, `rbd_image_t`, `rbd_completion_t`.
pub(super) type Handle = *mut c_void;

/// The lock mode RBD_LOCK_MODE_EXCLUSIVE.
pub(super) const EXCLUSIVE: c_int = 0;
/// The bit of the feature exclusive-lock among an image's features.
pub(super) const FEATURE_EXCLUSIVE_LOCK: u64 = 1 << 2;

/// A client that watches an image: each one that has it open for writing.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Watcher {
    pub(super) address: *mut c_char,
    pub(super) id: i64,
    pub(super) cookie: u64,
}

/// A snapshot of an image.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Snapshot {
    pub(super) id: u64,
    pub(super) size: u64,
    pub(super) name: *const c_char,
}

/// Declares functions, and a structure with their addresses.
macro_rules! functions {
    ($name:ident: $($function:ident($($arg:ty),*) $(-> $answer:ty)?;)*) => {
        pub(super) struct $name {
            $(pub(super) $function: unsafe extern "C" fn($($arg),*) $(-> $answer)?,)*
        }

        impl $name {
            fn load(library: &Library) -> Result<Self, RbdError> {
                Ok(Self { $($function: {
                    let address = library.find(concat!(stringify!($function), "\0"))?;
                    // SAFETY: the address is that of the C function of this name, which has this
                    // type; a pointer to a function has the size of one to data on every system
                    // that has dlsym(3).
                    unsafe {
                        std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) $(-> $answer)?>(address)
                    }
                },)* })
            }
        }
    };
}

functions! { Rados:
    rados_create2(*mut Handle, *const c_char, *const c_char, u64) -> c_int;
    rados_conf_read_file(Handle, *const c_char) -> c_int;
    rados_conf_parse_env(Handle, *const c_char) -> c_int;
    rados_conf_set(Handle, *const c_char, *const c_char) -> c_int;
    rados_connect(Handle) -> c_int;
    rados_shutdown(Handle);
    rados_mon_command(
        Handle, *mut *const c_char, usize, *const c_char, usize,
        *mut *mut c_char, *mut usize, *mut *mut c_char, *mut usize
    ) -> c_int;
    rados_buffer_free(*mut c_char);
    rados_pool_list(Handle, *mut c_char, usize) -> c_int;
    rados_ioctx_create(Handle, *const c_char, *mut Handle) -> c_int;
    rados_ioctx_set_namespace(Handle, *const c_char);
    rados_ioctx_destroy(Handle);
}

functions! { Rbd:
    rbd_list(Handle, *mut c_char, *mut usize) -> c_int;
    rbd_open(Handle, *const c_char, *mut Handle, *const c_char) -> c_int;
    rbd_open_read_only(Handle, *const c_char, *mut Handle, *const c_char) -> c_int;
    rbd_close(Handle) -> c_int;
    rbd_get_size(Handle, *mut u64) -> c_int;
    rbd_get_features(Handle, *mut u64) -> c_int;
    rbd_snap_list(Handle, *mut Snapshot, *mut c_int) -> c_int;
    rbd_snap_list_end(*mut Snapshot);
    rbd_lock_acquire(Handle, c_int) -> c_int;
    rbd_lock_break(Handle, c_int, *const c_char) -> c_int;
    rbd_lock_get_owners(Handle, *mut c_int, *mut *mut c_char, *mut usize) -> c_int;
    rbd_lock_get_owners_cleanup(*mut *mut c_char, usize);
    rbd_list_lockers(
        Handle, *mut c_int,
        *mut c_char, *mut usize, *mut c_char, *mut usize,
        *mut c_char, *mut usize, *mut c_char, *mut usize
    ) -> isize;
    rbd_watchers_list(Handle, *mut Watcher, *mut usize) -> c_int;
    rbd_watchers_list_cleanup(*mut Watcher, usize);
    rbd_flush(Handle) -> c_int;
    rbd_discard(Handle, u64, u64) -> c_int;
    rbd_write_zeroes(Handle, u64, usize, c_int, c_int) -> isize;
    rbd_aio_create_completion(*mut c_void, *mut c_void, *mut Handle) -> c_int;
    rbd_aio_read(Handle, u64, usize, *mut c_char, Handle) -> c_int;
    rbd_aio_writev(Handle, *const libc::iovec, c_int, u64, Handle) -> c_int;
    rbd_aio_wait_for_complete(Handle) -> c_int;
    rbd_aio_get_return_value(Handle) -> isize;
    rbd_aio_release(Handle);
}

/// Both libraries.
pub(super) struct Api {
    pub(super) rados: Rados,
    pub(super) rbd: Rbd,
}

/// The libraries, once one open has loaded them.
static LOADED: Mutex<Option<&'static Api>> = Mutex::new(None);

impl Api {
    /// Returns the libraries, and loads them if they are not yet.
    ///
    /// # Errors
    /// [`RbdError::NoLibrary`].
    pub(super) fn get() -> Result<&'static Self, RbdError> {
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        match *loaded {
            Some(api) => Ok(api),
            None => Ok(loaded.insert(Box::leak(Box::new(Self::load(c"librados.so.2", c"librbd.so.1")?)))),
        }
    }

    fn load(rados: &CStr, rbd: &CStr) -> Result<Self, RbdError> {
        let rados = Library::open(rados, "librados.so.2", "librados2")?;
        let rbd = Library::open(rbd, "librbd.so.1", "librbd1")?;
        Ok(Self { rados: Rados::load(&rados)?, rbd: Rbd::load(&rbd)? })
    }
}

/// A shared library.
struct Library {
    handle: *mut c_void,
    name: &'static str,
    package: &'static str,
}

impl Library {
    fn open(file: &CStr, name: &'static str, package: &'static str) -> Result<Self, RbdError> {
        // SAFETY: the name is a C string. The constructors of these libraries ask nothing of their
        // caller.
        let handle = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        let library = Self { handle, name, package };
        if handle.is_null() { Err(library.missing()) } else { Ok(library) }
    }

    /// Returns the address of a function. `name` ends with a zero byte.
    fn find(&self, name: &str) -> Result<*mut c_void, RbdError> {
        // SAFETY: the handle is of dlopen(3), and the name ends with a zero byte.
        let address = unsafe { libc::dlsym(self.handle, name.as_ptr().cast()) };
        if address.is_null() { Err(self.missing()) } else { Ok(address) }
    }

    /// Returns the failure of the last call of this thread.
    fn missing(&self) -> RbdError {
        // SAFETY: dlerror(3) returns a C string of this thread, which is copied before its next
        // call, or null.
        let said = unsafe { libc::dlerror() };
        let why = match said.is_null() {
            true => "the system does not say why".into(),
            // SAFETY: as above.
            false => unsafe { CStr::from_ptr(said) }.to_string_lossy().into_owned(),
        };
        RbdError::NoLibrary { library: self.name, package: self.package, why }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_missing_names_its_package() {
        let Err(why) = Api::load(c"librados-of-no-system.so", c"librbd.so.1") else { panic!("loaded") };
        let said = why.to_string();
        assert!(said.starts_with("RBD needs librados.so.2, which Debian has as the package librados2: "));
        assert!(said.contains("librados-of-no-system.so"), "{said}");
    }

    #[test]
    fn a_function_that_is_missing_is_named() {
        let library = Library::open(c"libc.so.6", "libc.so.6", "libc6").unwrap();
        let said = library.find("rbd_of_no_system\0").unwrap_err().to_string();
        assert!(said.contains("rbd_of_no_system"), "{said}");
    }
}
