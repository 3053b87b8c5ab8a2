//! Methods of a device that are those of the device below it.

/// Implements methods of [`BlockDevice`](crate::BlockDevice) by the same methods of a field.
///
/// A device over another one writes only the methods in which it differs. A method that is not
/// named has its default, as in every implementation: `measure`, `alignment`, `sector_size`,
/// `atomic_write`, `owner`, `name`, `cached`, `mapped`, `is_private` and `is_remote` say something
/// of the device below only if they are named.
///
/// # Examples
/// A device that counts its flushes:
/// ```
/// use lanefs_device::{BlockDevice, MemDevice, Result, forward_to};
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// #[derive(Debug)]
/// struct Counting {
///     below: MemDevice,
///     flushes: AtomicU64,
/// }
///
/// impl BlockDevice for Counting {
///     forward_to!(below: size read_only alignment read_at write_at discard);
///
///     fn flush(&self) -> Result<()> {
///         self.flushes.fetch_add(1, Ordering::Relaxed);
///         self.below.flush()
///     }
/// }
///
/// let device = Counting { below: MemDevice::new(4096), flushes: AtomicU64::new(0) };
/// device.write_at(b"bytes", 0)?;
/// device.flush()?;
/// assert_eq!(device.flushes.into_inner(), 1);
/// # Ok::<(), lanefs_device::DeviceError>(())
/// ```
#[macro_export]
macro_rules! forward_to {
    ($field:tt: $($method:ident)+) => { $( $crate::forward_to!(@ $field $method); )+ };
    (@ $field:tt size) => {
        fn size(&self) -> u64 {
            self.$field.size()
        }
    };
    (@ $field:tt measure) => {
        fn measure(&self) -> $crate::Result<u64> {
            self.$field.measure()
        }
    };
    (@ $field:tt read_only) => {
        fn read_only(&self) -> bool {
            self.$field.read_only()
        }
    };
    (@ $field:tt alignment) => {
        fn alignment(&self) -> usize {
            self.$field.alignment()
        }
    };
    (@ $field:tt sector_size) => {
        fn sector_size(&self) -> u64 {
            self.$field.sector_size()
        }
    };
    (@ $field:tt atomic_write) => {
        fn atomic_write(&self) -> usize {
            self.$field.atomic_write()
        }
    };
    (@ $field:tt owner) => {
        fn owner(&self) -> Option<u32> {
            self.$field.owner()
        }
    };
    (@ $field:tt name) => {
        fn name(&self) -> Option<String> {
            self.$field.name()
        }
    };
    (@ $field:tt cached) => {
        fn cached(&self) -> Option<$crate::Cached> {
            self.$field.cached()
        }
    };
    (@ $field:tt mapped) => {
        fn mapped(&self) -> Option<&$crate::Mapped> {
            self.$field.mapped()
        }
    };
    (@ $field:tt is_private) => {
        fn is_private(&self) -> bool {
            self.$field.is_private()
        }
    };
    (@ $field:tt is_remote) => {
        fn is_remote(&self) -> bool {
            self.$field.is_remote()
        }
    };
    (@ $field:tt read_at) => {
        fn read_at(&self, buf: &mut [u8], offset: u64) -> $crate::Result<()> {
            self.$field.read_at(buf, offset)
        }
    };
    (@ $field:tt write_at) => {
        fn write_at(&self, data: &[u8], offset: u64) -> $crate::Result<()> {
            self.$field.write_at(data, offset)
        }
    };
    (@ $field:tt read_batch) => {
        fn read_batch(&self, ops: &mut [$crate::ReadOp<'_>]) -> $crate::Result<()> {
            self.$field.read_batch(ops)
        }
    };
    (@ $field:tt read_batch_direct) => {
        fn read_batch_direct(&self, ops: &mut [$crate::ReadOp<'_>]) -> $crate::Result<()> {
            self.$field.read_batch_direct(ops)
        }
    };
    (@ $field:tt write_batch) => {
        fn write_batch(&self, ops: &[$crate::WriteOp<'_>]) -> $crate::Result<()> {
            self.$field.write_batch(ops)
        }
    };
    (@ $field:tt read_shared) => {
        fn read_shared(&self, buf: &mut [u8], offset: u64) -> $crate::Result<()> {
            self.$field.read_shared(buf, offset)
        }
    };
    (@ $field:tt write_shared) => {
        fn write_shared(&self, data: &[u8], offset: u64) -> $crate::Result<()> {
            self.$field.write_shared(data, offset)
        }
    };
    (@ $field:tt guard_repeats) => {
        fn guard_repeats(&self, guard: $crate::RepeatGuard) {
            self.$field.guard_repeats(guard);
        }
    };
    (@ $field:tt flush) => {
        fn flush(&self) -> $crate::Result<()> {
            self.$field.flush()
        }
    };
    (@ $field:tt read_if_cached) => {
        fn read_if_cached(&self, buf: &mut [u8], offset: u64) -> bool {
            self.$field.read_if_cached(buf, offset)
        }
    };
    (@ $field:tt start_writeback) => {
        fn start_writeback(&self, offset: u64, len: u64) {
            self.$field.start_writeback(offset, len);
        }
    };
    (@ $field:tt discard) => {
        fn discard(&self, offset: u64, len: u64) -> $crate::Result<()> {
            self.$field.discard(offset, len)
        }
    };
    (@ $field:tt write_zeroes) => {
        fn write_zeroes(&self, offset: u64, len: u64) -> $crate::Result<()> {
            self.$field.write_zeroes(offset, len)
        }
    };
}
