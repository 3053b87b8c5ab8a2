/* Compares random operations on one file through system calls with a copy of the file in memory.
 *
 * exercise FILE SEED OPERATIONS KERNEL: KERNEL is 1 on the kernel's ext4, and 0 on FUSE. The kernel
 * half of FUSE refuses to collapse and to insert ranges, and returns nothing for a direct read
 * behind the i_size that its server knows; so a sync precedes each of those there.
 *
 * All ways to the same bytes are mixed: read, write, append, O_DIRECT, shared and private maps,
 * copy_file_range. At a difference the program ends and prints the last operations. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX = 768 << 10, BLOCK = 4096, LOG = 24 };

static uint8_t good[MAX * 2], *buf;
static size_t size;
static int plain, append, direct;
/* Whether direct reads see the i_size that cached writes have moved. */
static int trusting;
static const char *path;
static char logged[LOG][160];
static unsigned long step;
static uint64_t state;

static uint64_t draw(uint64_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (state >> 11) % below;
}

static void note(const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = snprintf(logged[step % LOG], 24, "%lu: ", step);
    vsnprintf(logged[step % LOG] + n, sizeof logged[0] - n, format, args);
    va_end(args);
}

static void fail(const char *what) {
    fprintf(stderr, "%s (%s)\n", what, strerror(errno));
    for (unsigned long i = step < LOG ? 0 : step - LOG + 1; i <= step; i++)
        fprintf(stderr, "  %s\n", logged[i % LOG]);
    exit(1);
}

static void need(int ok, const char *what) {
    if (!ok)
        fail(what);
}

static void same(const uint8_t *got, size_t at, size_t len, const char *what) {
    for (size_t i = 0; i < len; i++)
        if (got[i] != good[at + i]) {
            fprintf(stderr, "byte %zu of %zu: %#x, not %#x\n", at + i, size, got[i], good[at + i]);
            fail(what);
        }
}

static void open_all(void) {
    plain = open(path, O_RDWR | O_CREAT, 0644);
    append = open(path, O_RDWR | O_APPEND);
    direct = open(path, O_RDWR | O_DIRECT);
    need(plain >= 0 && append >= 0 && direct >= 0, "open");
}

static void close_all(void) {
    need(!close(plain) && !close(append) && !close(direct), "close");
}

static void fill(size_t at, size_t len) {
    uint8_t seed = (uint8_t)draw(255) + 1;
    for (size_t i = 0; i < len; i++)
        buf[i] = (uint8_t)(seed + (at + i) / 7);
}

static void grow(size_t to) {
    if (to > size) {
        memset(good + size, 0, to - size);
        size = to;
    }
}

static void wrote(size_t at, size_t len) {
    grow(at + len);
    memcpy(good + at, buf, len);
}

static void check_all(void) {
    need(pread(plain, buf, MAX, 0) == (ssize_t)size, "read of everything");
    same(buf, 0, size, "content");
    /* Bytes outside of a data range read as zeros; data ends within the file. */
    off_t at = 0;
    while ((size_t)at < size) {
        off_t data = lseek(plain, at, SEEK_DATA);
        need(data >= 0 || errno == ENXIO, "SEEK_DATA");
        size_t until = data < 0 ? size : (size_t)data;
        for (size_t i = at; i < until; i++)
            if (good[i]) {
                fprintf(stderr, "byte %zu is in a hole\n", i);
                fail("SEEK_DATA");
            }
        if (data < 0)
            break;
        at = lseek(plain, data, SEEK_HOLE);
        need(at > data && (size_t)at <= size, "SEEK_HOLE");
    }
}

/* A range of at most MAX, the longest now and then; whole blocks for direct I/O. */
static void range(size_t *at, size_t *len, size_t limit, size_t unit) {
    *at = draw(limit) / unit * unit;
    *len = (draw(4) ? draw(20000) : draw(150000)) / unit * unit + unit;
    if (*at + *len > limit)
        *len = (limit - *at) / unit * unit;
}

static void map_access(int writes) {
    size_t at, len;
    if (!size)
        return;
    range(&at, &len, size, 1);
    if (!len)
        return;
    int shared = writes || draw(2);
    size_t base = at / BLOCK * BLOCK, span = at + len - base;
    uint8_t *map = mmap(NULL, span, PROT_READ | (writes || !shared ? PROT_WRITE : 0), shared ? MAP_SHARED : MAP_PRIVATE,
                        plain, base);
    need(map != MAP_FAILED, "mmap");
    note("%s %s map %zu %zu", writes ? "write" : "read", shared ? "shared" : "private", at, len);
    if (writes) {
        fill(at, len);
        memcpy(map + (at - base), buf, len);
        if (draw(2))
            need(!msync(map, span, MS_SYNC), "msync");
        wrote(at, len);
    } else {
        same(map + (at - base), at, len, "map");
        if (!shared)
            memset(map, 0xee, span); /* no other process has it */
        /* Behind the end of the file, the last page is zeros. */
        size_t tail = (size + BLOCK - 1) / BLOCK * BLOCK;
        if (shared && at + len == size)
            for (size_t i = size; i < tail; i++)
                need(map[i - base] == 0, "map behind the end");
    }
    need(!munmap(map, span), "munmap");
}

static void allocate(int moves) {
    static const int modes[] = {0, FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, FALLOC_FL_ZERO_RANGE,
                                FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, FALLOC_FL_COLLAPSE_RANGE,
                                FALLOC_FL_INSERT_RANGE};
    int mode = modes[draw(7)];
    int moving = mode & (FALLOC_FL_COLLAPSE_RANGE | FALLOC_FL_INSERT_RANGE);
    size_t at, len;
    range(&at, &len, MAX, moving ? BLOCK : 1);
    if (mode & FALLOC_FL_COLLAPSE_RANGE && at + len >= size)
        return;
    if (mode & FALLOC_FL_INSERT_RANGE && (at >= size || size + len > MAX))
        return;
    if (!len)
        return;
    note("fallocate %#x %zu %zu", mode, at, len);
    int result = fallocate(plain, mode, at, len);
    if (moving && !moves) {
        need(result == -1 && errno == EOPNOTSUPP, "a range that cannot be moved");
        return;
    }
    need(!result, "fallocate");
    if (mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE) && at < size)
        memset(good + at, 0, at + len < size ? len : size - at);
    if (!mode || mode == FALLOC_FL_ZERO_RANGE)
        grow(at + len);
    if (mode & FALLOC_FL_COLLAPSE_RANGE) {
        memmove(good + at, good + at + len, size - at - len);
        size -= len;
    }
    if (mode & FALLOC_FL_INSERT_RANGE) {
        memmove(good + at + len, good + at, size - at);
        memset(good + at, 0, len);
        size += len;
    }
}

static void copy(void) {
    size_t from, to, len;
    range(&from, &len, size ? size : 1, 1);
    to = draw(MAX - len);
    if (from + len > size || (from < to + len && to < from + len))
        return;
    note("copy_file_range %zu %zu %zu", from, to, len);
    off_t in = from, out = to;
    size_t left = len;
    while (left) {
        ssize_t n = copy_file_range(plain, &in, plain, &out, left, 0);
        need(n > 0, "copy_file_range");
        left -= n;
    }
    grow(to + len);
    memcpy(good + to, good + from, len);
}

static void once(int moves) {
    size_t at, len;
    int past = draw(3) == 0;
    int fd = past ? direct : plain;
    switch (draw(14)) {
    case 0: case 1: case 2:
        range(&at, &len, MAX, past ? BLOCK : 1);
        note("%s %zu %zu", past ? "direct write" : "write", at, len);
        fill(at, len);
        need(pwrite(fd, buf, len, at) == (ssize_t)len, "write");
        wrote(at, len);
        break;
    case 3: case 4: case 5:
        range(&at, &len, MAX, past ? BLOCK : 1);
        note("%s %zu %zu", past ? "direct read" : "read", at, len);
        if (past && !trusting)
            need(!fsync(plain), "sync");
        size_t there = at >= size ? 0 : at + len < size ? len : size - at;
        need(pread(fd, buf, len, at) == (ssize_t)there, "length of a read");
        same(buf, at, there, "read");
        break;
    case 6: map_access(1); break;
    case 7: map_access(0); break;
    case 8: case 9: allocate(moves); break;
    case 10:
        at = draw(MAX);
        note("truncate %zu", at);
        need(!ftruncate(plain, at), "truncate");
        if (at < size)
            size = at;
        grow(at);
        break;
    case 11:
        len = draw(9000) + 1;
        if (size + len > MAX)
            break;
        note("append %zu", len);
        fill(size, len);
        need(write(append, buf, len) == (ssize_t)len, "append");
        wrote(size, len);
        break;
    case 12: copy(); break;
    case 13:
        if (draw(3) == 0) {
            note("reopen");
            close_all();
            open_all();
        } else {
            note("sync");
            need(!(draw(2) ? fsync(plain) : fdatasync(plain)), "sync");
        }
    }
    struct stat stat;
    need(!fstat(plain, &stat) && (size_t)stat.st_size == size, "size");
}

int main(int argc, char **argv) {
    if (argc != 5)
        return 2;
    path = argv[1];
    state = strtoull(argv[2], NULL, 0) * 0x9e3779b97f4a7c15u | 1;
    unsigned long operations = strtoul(argv[3], NULL, 0);
    if (posix_memalign((void **)&buf, BLOCK, MAX * 2))
        return 2;
    trusting = atoi(argv[4]);
    open_all();
    for (step = 0; step < operations; step++) {
        note("nothing");
        once(atoi(argv[4]));
        if (step % 64 == 0)
            check_all();
    }
    check_all();
    close_all();
    /* The caller compares it after a new mount. */
    return fwrite(good, 1, size, stdout) == size ? 0 : 2;
}
