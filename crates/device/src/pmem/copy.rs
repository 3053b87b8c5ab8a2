//! Copies bytes into a mapping and out of it.
//!
//! Two threads may copy to and from the same bytes at once: a safe interface cannot forbid it. So
//! no copy here is a plain Rust access. On x86-64 it is assembly, equivalent to relaxed atomic
//! accesses of single bytes; on other machines it is such accesses. A copy into the mapping ends
//! with a store fence: streaming stores are not ordered by the release of a lock, so without it a
//! reader that synchronises with the writer could see old bytes.

#[cfg(not(target_arch = "x86_64"))]
pub(super) use portable::{copy_in, copy_out};
#[cfg(target_arch = "x86_64")]
pub(super) use x86::{copy_in, copy_out};

/// Whether [`copy_in`] leaves nothing in the processor's caches, so that memory that survives a
/// power cut has it.
pub(super) const PERSISTS: bool = cfg!(target_arch = "x86_64");

/// Streaming stores for whole cache lines; ordinary ones, written back, for the rest.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::__cpuid_count;
    use std::sync::atomic::{AtomicU8, Ordering};

    const LINE: usize = 64;
    /// Below this length, starting a string move costs more than a loop.
    const SHORT: usize = 256;

    /// The instructions by which this processor streams, and writes a cache line back.
    #[derive(Clone, Copy)]
    struct Ways {
        avx: bool,
        back: WriteBack,
    }

    #[derive(Clone, Copy, PartialEq)]
    enum WriteBack {
        /// CLWB: keeps the line.
        Keep,
        /// CLFLUSHOPT: throws it away.
        Flush,
        /// CLFLUSH: the same, and waits for other flushes. Every x86-64 has it.
        FlushInOrder,
    }

    fn ways() -> Ways {
        // 0: not asked yet. Asking again does no harm.
        static KNOWN: AtomicU8 = AtomicU8::new(0);
        let mut known = KNOWN.load(Ordering::Relaxed);
        if known == 0 {
            known = 1 | u8::from(is_x86_feature_detected!("avx")) << 1 | write_back_bits() << 2;
            KNOWN.store(known, Ordering::Relaxed);
        }
        let back = match known >> 2 {
            2.. => WriteBack::Keep,
            1 => WriteBack::Flush,
            0 => WriteBack::FlushInOrder,
        };
        Ways { avx: known & 2 != 0, back }
    }

    /// Bits 23 (CLFLUSHOPT) and 24 (CLWB) of EBX of leaf 7, which Rust's own detection does not
    /// tell.
    fn write_back_bits() -> u8 {
        if __cpuid_count(0, 0).eax < 7 { 0 } else { (__cpuid_count(7, 0).ebx >> 23) as u8 & 3 }
    }

    /// Copies `len` bytes into a mapping and fences.
    ///
    /// # Safety
    /// Both ranges are valid for `len` bytes, do not overlap, and no Rust reference to a byte of
    /// `to` exists.
    pub(in super::super) unsafe fn copy_in(mut to: *mut u8, mut from: *const u8, mut len: usize) {
        let ways = ways();
        let head = to.align_offset(LINE).min(len);
        if head > 0 {
            // SAFETY: a part of the ranges, inside one cache line.
            unsafe { store(to, from, head, ways.back) };
            // SAFETY: `head` is at most `len`.
            (to, from, len) = unsafe { (to.add(head), from.add(head), len - head) };
        }
        let lines = len / LINE;
        if lines > 0 {
            // SAFETY: a part of the ranges; `to` begins a cache line. AVX was detected.
            unsafe { if ways.avx { stream_avx(to, from, lines) } else { stream_sse2(to, from, lines) } };
        }
        let tail = len % LINE;
        if tail > 0 {
            // SAFETY: what is left of the ranges.
            unsafe { store(to.add(lines * LINE), from.add(lines * LINE), tail, ways.back) };
        }
        // SAFETY: a fence. It is no `nomem`: no access may move across it.
        unsafe { asm!("sfence", options(nostack, preserves_flags)) };
    }

    /// Copies `len` bytes out of a mapping.
    ///
    /// # Safety
    /// Both ranges are valid for `len` bytes and do not overlap; no other thread uses `to`.
    pub(in super::super) unsafe fn copy_out(to: *mut u8, from: *const u8, len: usize) {
        if len >= SHORT {
            // SAFETY: the caller's promise; the direction flag is clear, as at every call.
            unsafe {
                asm!("rep movsb", inout("rcx") len => _, inout("rdi") to => _, inout("rsi") from => _,
                     options(nostack, preserves_flags));
            }
            return;
        }
        // SAFETY: the caller's promise: eight bytes at a time while there are eight left, then one.
        unsafe {
            asm!(
                "2:",
                "sub {n}, 8",
                "jb 3f",
                "mov {word}, [{from}]",
                "mov [{to}], {word}",
                "add {from}, 8",
                "add {to}, 8",
                "jmp 2b",
                "3:",
                "add {n}, 8",
                "jz 5f",
                "4:",
                "mov {word:l}, [{from}]",
                "mov [{to}], {word:l}",
                "inc {from}",
                "inc {to}",
                "dec {n}",
                "jnz 4b",
                "5:",
                n = inout(reg) len => _, to = inout(reg) to => _, from = inout(reg) from => _,
                word = out(reg_abcd) _,
                options(nostack)
            );
        }
    }

    /// Stores a part of one cache line and writes the line back.
    unsafe fn store(to: *mut u8, from: *const u8, len: usize, back: WriteBack) {
        // SAFETY: the caller's promise: valid ranges.
        unsafe { copy_out(to, from, len) };
        // SAFETY: the line holds `to`, so it is mapped.
        unsafe {
            match back {
                WriteBack::Keep => asm!("clwb [{}]", in(reg) to, options(nostack, preserves_flags)),
                WriteBack::Flush => asm!("clflushopt [{}]", in(reg) to, options(nostack, preserves_flags)),
                WriteBack::FlushInOrder => {
                    asm!("clflush [{}]", in(reg) to, options(nostack, preserves_flags))
                }
            }
        }
    }

    unsafe fn stream_avx(to: *mut u8, from: *const u8, lines: usize) {
        // SAFETY: the caller's promise: `to` is aligned, AVX is there, ranges of `lines` cache
        // lines are valid.
        unsafe {
            asm!(
                "2:",
                "vmovdqu ymm0, [{from}]",
                "vmovdqu ymm1, [{from} + 32]",
                "vmovntdq [{to}], ymm0",
                "vmovntdq [{to} + 32], ymm1",
                "add {from}, 64",
                "add {to}, 64",
                "dec {n}",
                "jnz 2b",
                "vzeroupper",
                n = inout(reg) lines => _, to = inout(reg) to => _, from = inout(reg) from => _,
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _,
                out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                options(nostack)
            );
        }
    }

    unsafe fn stream_sse2(to: *mut u8, from: *const u8, lines: usize) {
        // SAFETY: the caller's promise: `to` is aligned, ranges of `lines` cache lines are valid.
        unsafe {
            asm!(
                "2:",
                "movdqu xmm0, [{from}]",
                "movdqu xmm1, [{from} + 16]",
                "movdqu xmm2, [{from} + 32]",
                "movdqu xmm3, [{from} + 48]",
                "movntdq [{to}], xmm0",
                "movntdq [{to} + 16], xmm1",
                "movntdq [{to} + 32], xmm2",
                "movntdq [{to} + 48], xmm3",
                "add {from}, 64",
                "add {to}, 64",
                "dec {n}",
                "jnz 2b",
                n = inout(reg) lines => _, to = inout(reg) to => _, from = inout(reg) from => _,
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                options(nostack)
            );
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        /// Every way that some processor would take.
        #[test]
        fn all_ways_copy() {
            let back = match write_back_bits() {
                2.. => &[WriteBack::Keep, WriteBack::Flush, WriteBack::FlushInOrder][..],
                1 => &[WriteBack::Flush, WriteBack::FlushInOrder],
                0 => &[WriteBack::FlushInOrder],
            };
            let from: Vec<u8> = (0..1000).map(|i| (i * 7) as u8).collect();
            let mut to = crate::AlignedBuf::zeroed(4096);
            for (i, &back) in back.iter().enumerate() {
                // SAFETY: inside both buffers, and inside one line.
                unsafe { store(to.as_mut_ptr().add(i * LINE + 3), from.as_ptr().add(5), 61, back) };
                assert_eq!(to[i * LINE + 3..][..61], from[5..66]);
            }
            type Stream = unsafe fn(*mut u8, *const u8, usize);
            let has_avx = is_x86_feature_detected!("avx");
            for stream in [Some(stream_sse2 as Stream), has_avx.then_some(stream_avx)].into_iter().flatten() {
                to.fill(0);
                // SAFETY: 960 bytes inside both buffers; the fence ends the streaming.
                unsafe {
                    stream(to.as_mut_ptr().add(64), from.as_ptr().add(1), 15);
                    asm!("sfence");
                }
                assert_eq!(to[64..1024], from[1..961]);
                assert!(to[..64].iter().chain(&to[1024..]).all(|&b| b == 0));
            }
        }
    }
}

/// Byte by byte: slow, but right on every machine.
#[cfg(any(test, not(target_arch = "x86_64")))]
mod portable {
    use std::sync::atomic::{AtomicU8, Ordering, fence};

    /// Copies into the medium as its namesake for x86-64 does.
    ///
    /// # Safety
    /// `from` is valid for reads and `to` for writes of `len` bytes.
    pub(in super::super) unsafe fn copy_in(to: *mut u8, from: *const u8, len: usize) {
        for i in 0..len {
            // SAFETY: the caller's promise: both ranges are valid for `len` bytes.
            let (to, byte) = unsafe { (AtomicU8::from_ptr(to.add(i)), *from.add(i)) };
            to.store(byte, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }

    /// Copies from the medium as its namesake for x86-64 does.
    ///
    /// # Safety
    /// `from` is valid for reads and `to` for writes of `len` bytes.
    pub(in super::super) unsafe fn copy_out(to: *mut u8, from: *const u8, len: usize) {
        for i in 0..len {
            // SAFETY: the caller's promise: both ranges are valid for `len` bytes. An atomic load
            // does not write.
            unsafe { *to.add(i) = AtomicU8::from_ptr(from.add(i).cast_mut()).load(Ordering::Relaxed) };
        }
    }
}

#[cfg(test)]
mod tests {
    type Copy = unsafe fn(*mut u8, *const u8, usize);

    /// Every place inside a cache line, and lengths of none to several lines; nothing beside the
    /// range changes.
    fn copies(copy_in: Copy, copy_out: Copy) {
        let from: Vec<u8> = (0..400_u32).map(|i| (i * 13 + 1) as u8).collect();
        for at in 0..70 {
            for len in (0..140).chain([191, 192, 193, 256, 300]) {
                let mut to = crate::AlignedBuf::zeroed(512);
                let mut back = vec![0; len];
                // SAFETY: the ranges lie inside of the buffers.
                unsafe {
                    copy_in(to.as_mut_ptr().add(at), from.as_ptr().add(at % 9), len);
                    copy_out(back.as_mut_ptr(), to.as_ptr().add(at), len);
                }
                assert!(to[at..at + len] == from[at % 9..][..len], "{len} bytes at {at}");
                assert!(back == to[at..at + len]);
                assert!(to[..at].iter().chain(&to[at + len..]).all(|&b| b == 0), "{len} bytes at {at}");
            }
        }
    }

    #[test]
    fn exactly_what_was_asked() {
        copies(super::copy_in, super::copy_out);
        copies(super::portable::copy_in, super::portable::copy_out);
    }
}
