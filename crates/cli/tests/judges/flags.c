/* Tries the operations that the flags of chattr(1) allow and forbid, by path, by open handle and by
 * map.
 *
 * flags FOLDER KERNEL: prints a line for each step; the caller compares the lines of two file
 * systems. KERNEL is 1 on the kernel's ext4, where a step that FUSE can only refuse later has
 * another name (see docs/mount.md). */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

static int on_kernel;

static void need(int ok, const char *what) {
    if (!ok) {
        perror(what);
        exit(2);
    }
}

static void tell(const char *what, long result) {
    printf("%s: %s\n", what, result < 0 ? strerror(errno) : "done");
}

static int flags_of(const char *path) {
    int fd = open(path, O_RDONLY), flags = 0;
    need(fd >= 0 && !ioctl(fd, FS_IOC_GETFLAGS, &flags), "flags");
    close(fd);
    return flags;
}

static int set_flags(const char *path, int flags) {
    int fd = open(path, O_RDONLY);
    need(fd >= 0, "open");
    int result = ioctl(fd, FS_IOC_SETFLAGS, &flags), kept = errno;
    close(fd);
    errno = kept;
    return result;
}

static void chattr(const char *path, int add, int drop) {
    need(!set_flags(path, (flags_of(path) | add) & ~drop), "chattr");
}

static void show(const char *path) {
    char content[64] = "";
    int fd = open(path, O_RDONLY);
    need(fd >= 0, "open to show");
    ssize_t n = read(fd, content, sizeof content - 1);
    struct stat stat;
    need(n >= 0 && !fstat(fd, &stat), "show");
    printf("  %s: '%s', mode %o\n", path, content, stat.st_mode & 07777);
    close(fd);
}

static int touch(const char *path, long atime, long mtime) {
    struct timespec times[2] = {{1000, atime}, {2000, mtime}};
    return utimensat(AT_FDCWD, path, times, 0);
}

static int map_write(int fd) {
    char *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return -1;
    memcpy(map, "MAPPED", 6);
    int result = msync(map, 4096, MS_SYNC);
    munmap(map, 4096);
    return result;
}

/* Each flag alone changed, on a file and a folder, without those that lanefs refuses: j, e, F and
 * the unused bit 0x400000. */
static void bits(const char *path) {
    int had = flags_of(path);
    for (int bit = 0; bit < 32; bit++) {
        int flag = 1u << bit;
        if (flag & (0x4000 | 0x80000 | 0x400000 | 0x40000000))
            continue;
        int failed = set_flags(path, had ^ flag) ? errno : 0;
        printf("%s, flag %#x: %s, %#x\n", path, flag, failed ? strerror(failed) : "done", flags_of(path));
        set_flags(path, had);
    }
    for (int bit = 0; bit < 32; bit++) {
        int fd = open(path, O_RDONLY);
        struct fsxattr had, set;
        need(!ioctl(fd, FS_IOC_FSGETXATTR, &had), "fsgetxattr");
        set = had;
        set.fsx_xflags ^= 1u << bit;
        int failed = ioctl(fd, FS_IOC_FSSETXATTR, &set) ? errno : 0;
        printf("%s, xflag %#x: %s, %#x\n", path, 1u << bit, failed ? strerror(failed) : "done", flags_of(path));
        ioctl(fd, FS_IOC_FSSETXATTR, &had);
        close(fd);
    }
}

static void as_stranger(const char *path) {
    need(!setresgid(-1, 3000, 0) && !setresuid(-1, 3000, 0), "stranger");
    int fd = open(path, O_RDONLY);
    need(fd >= 0, "a stranger reads");
    static const unsigned long commands[] = {FS_IOC_SETFLAGS, FS_IOC32_SETFLAGS, 0x6602, 0xffff6602, 0xc0086602, 0x581f5820,
                                             0x5820, FITRIM, 0x5879, 0xffff5879, FS_IOC32_GETFLAGS, 0x6601, 0xffff7601};
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        static long long room[2048];
        room[0] = FS_IMMUTABLE_FL;
        int failed = ioctl(fd, commands[i], room) ? errno : 0;
        printf("a stranger, command %#lx: %s, flags %#x\n", commands[i], failed ? strerror(failed) : "done", flags_of(path));
    }
    close(fd);
    need(!setresuid(-1, 0, 0) && !setresgid(-1, 0, 0), "root");
}

static void times(const char *path) {
    tell("touch", utimensat(AT_FDCWD, path, NULL, 0));
    tell("touch now", touch(path, UTIME_NOW, UTIME_NOW));
    tell("touch -a", touch(path, UTIME_NOW, UTIME_OMIT));
    tell("touch -m", touch(path, UTIME_OMIT, UTIME_NOW));
    tell("touch -a -d", touch(path, 5, UTIME_OMIT));
    tell("touch -m -d", touch(path, UTIME_OMIT, 5));
    tell("touch -d", touch(path, 5, 5));
}

static void attributes(const char *path) {
    tell("chmod", chmod(path, 0700));
    tell("chown", chown(path, 7, 7));
    tell("truncate", truncate(path, 3));
    tell("setxattr", setxattr(path, "user.a", "1", 1, 0));
    tell("link", link(path, "another"));
    tell("unlink", unlink(path));
    tell("rename", rename(path, "another"));
    show(path);
}

static void append_only(void) {
    int before = open("log", O_RDWR | O_CREAT, 0644);
    need(before >= 0 && write(before, "line\n", 5) == 5 && !fchmod(before, 06755) && !close(before), "log");
    chattr("log", FS_APPEND_FL, 0);
    puts("append-only");
    tell("open to write", open("log", O_WRONLY));
    tell("open to cut", open("log", O_WRONLY | O_APPEND | O_TRUNC));
    int fd = open("log", O_RDWR | O_APPEND);
    need(fd >= 0, "append");
    tell("append", write(fd, "next\n", 5));
    show("log");
    /* FUSE drops O_APPEND, and refuses the write; the kernel's ext4 keeps O_APPEND. */
    int dropped = fcntl(fd, F_SETFL, 0);
    tell("write at 0", dropped ? -1 : pwrite(fd, "FORGED", 6, 0));
    int fell = fcntl(fd, F_SETFL, O_DIRECT);
    static char block[4096] __attribute__((aligned(4096)));
    tell("direct write at 0", fell || fcntl(fd, F_GETFL) & O_APPEND ? (errno = EPERM, -1) : pwrite(fd, block, 4096, 0));
    need(!fcntl(fd, F_SETFL, O_APPEND), "append again");
    int mapped = map_write(fd);
    printf("map: %s\n", mapped ? "refused" : "done");
    /* The kernel may keep the page of a refused writeback until the server has it forget. */
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    show("log");
    tell("ftruncate", ftruncate(fd, 3));
    tell("allocate", fallocate(fd, 0, 0, 9));
    tell("punch", fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4));
    tell("zero", fallocate(fd, FALLOC_FL_ZERO_RANGE, 0, 4));
    tell("append after all", write(fd, "last\n", 5));
    close(fd);
    times("log");
    attributes("log");
    chattr("log", 0, FS_APPEND_FL);
}

/* A handle from before the flag writes through the kernel's cache of FUSE, one from after it past
 * that: the second one appends behind bytes that the server does not have yet. */
static void append_beside_older_handle(void) {
    int before = open("grown", O_WRONLY | O_CREAT | O_APPEND, 0644);
    need(before >= 0 && write(before, "1", 1) == 1, "grown");
    chattr("grown", FS_APPEND_FL, 0);
    static char more[4095];
    memset(more, '2', sizeof more);
    tell("append by an older handle", write(before, more, sizeof more));
    int after = open("grown", O_WRONLY | O_APPEND);
    need(after >= 0, "append beside an older handle");
    tell("append behind it", write(after, "3", 1));
    tell("append by the older handle again", write(before, "4", 1));
    tell("fsync", fsync(before) || fsync(after) ? -1 : 0);
    close(before);
    close(after);
    char content[4100] = "";
    int fd = open("grown", O_RDONLY);
    ssize_t n = read(fd, content, sizeof content - 1);
    printf("  %zd bytes, '%c%c', '%s'\n", n, content[0], content[1], content + 4095);
    close(fd);
    chattr("grown", 0, FS_APPEND_FL);
}

static void immutable(void) {
    int fd = open("fixed", O_RDWR | O_CREAT, 0644), other = open("other", O_RDWR | O_CREAT, 0644);
    need(fd >= 0 && write(fd, "fixed\n", 6) == 6 && !fchmod(fd, 06755), "fixed");
    need(other >= 0 && write(other, "other\n", 6) == 6, "other");
    int direct = open("fixed", O_RDWR | O_DIRECT);
    char *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    need(map != MAP_FAILED, "map");
    memcpy(map, "MAPPED", 6);
    /* Earlier writes are there. */
    chattr("fixed", FS_IMMUTABLE_FL, 0);
    puts("immutable");
    show("fixed");
    tell("open to write", open("fixed", O_WRONLY));
    static char block[4096] __attribute__((aligned(4096)));
    tell("direct write", pwrite(direct, block, 4096, 0));
    /* FUSE accepts a cached write, and refuses its writeback. */
    int written = pwrite(fd, "FORGED", 6, 0) < 0 || fsync(fd);
    printf("write: %s\n", written ? "refused" : "done");
    if (!on_kernel) {
        /* A map: the kernel's ext4 ends the program. */
        memcpy(map, "FORGED", 6);
        printf("  map: %s\n", msync(map, 4096, MS_SYNC) ? "refused" : "done");
    } else {
        puts("  map: refused");
    }
    munmap(map, 4096);
    tell("ftruncate", ftruncate(fd, 3));
    tell("allocate", fallocate(fd, 0, 0, 9));
    tell("copy", copy_file_range(other, &(off_t){0}, fd, &(off_t){0}, 3, 0));
    tell("fchown", fchown(fd, 7, 7));
    tell("fchmod", fchmod(fd, 0600));
    /* Refused for good: nothing of it is left when the kernel reads it again. */
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    show("fixed");
    times("fixed");
    attributes("fixed");
    close(fd);
    close(direct);
    chattr("fixed", 0, FS_IMMUTABLE_FL);
    show("fixed");
}

/* Times that the kernel kept from before the flag are stored, whichever call closes the file. Times
 * that a program sets are refused. */
static void late_times(const char *path, int flag, int how) {
    struct stat before, after;
    int fd = open(path, O_WRONLY | O_CREAT, 0644);
    need(fd >= 0 && write(fd, "content", 7) == 7 && !close(fd) && !touch(path, 5, 5), "late times");
    fd = open(path, how);
    need(fd >= 0 && ((how & O_ACCMODE) == O_RDONLY || write(fd, "more", 4) == 4), "late times");
    /* The flag must not fall into the same tick. */
    usleep(20000);
    need(!fstat(fd, &before), "late times");
    chattr(path, flag, 0);
    printf("%s, times of before\n", path);
    tell("fsync", fsync(fd));
    tell("close", close(fd));
    need(!stat(path, &after), "late times");
    printf("  mtime: %s\n", memcmp(&before.st_mtim, &after.st_mtim, sizeof before.st_mtim) ? "another" : "kept");
    times(path);
    chattr(path, 0, flag);
}

static void folders(void) {
    need(!mkdir("dir", 0755), "mkdir");
    int inside = open("dir/there", O_CREAT | O_WRONLY, 0644);
    static const struct { const char *name; int flag; } kinds[] = {{"immutable", FS_IMMUTABLE_FL}, {"append-only", FS_APPEND_FL}};
    for (int i = 0; i < 2; i++) {
        chattr("dir", kinds[i].flag, 0);
        printf("%s folder\n", kinds[i].name);
        char name[32];
        snprintf(name, sizeof name, "dir/new%d", i);
        tell("create", open(name, O_CREAT | O_WRONLY | O_EXCL, 0644));
        tell("tmpfile", open("dir", O_TMPFILE | O_RDWR, 0600));
        tell("mkdir", mkdir("dir/sub", 0755));
        tell("link", link("other", "dir/linked"));
        tell("unlink", unlink("dir/there"));
        tell("rename out", rename("dir/there", "out"));
        tell("rename in", rename("other", "dir/in"));
        rename("dir/in", "other");
        tell("rmdir", rmdir("dir/sub"));
        tell("setxattr", setxattr("dir", "user.a", "1", 1, 0));
        tell("chmod", chmod("dir", 0700));
        times("dir");
        chattr("dir", 0, kinds[i].flag);
    }
    close(inside);
}

static void trims(int block, unsigned long long size, unsigned long long group) {
    const unsigned long long ranges[][3] = {
        {0, -1ull, 0}, {size, block, 0}, {size - 1, block, 0}, {1ull << 60, block, 0}, {0, block - 1, 0}, {0, block, 0},
        {0, 0, 0}, {0, -1ull, group}, {0, -1ull, group + block}, {0, -1ull, 1ull << 50}, {size - block, -1ull, 0},
    };
    int fd = open(".", O_RDONLY);
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        struct fstrim_range range = {ranges[i][0], ranges[i][1], ranges[i][2]};
        int failed = ioctl(fd, FITRIM, &range) ? errno : 0;
        printf("trim %#llx, %#llx, %#llx: %s\n", ranges[i][0], ranges[i][1], ranges[i][2],
               failed ? strerror(failed) : "done");
    }
    close(fd);
}

int main(int argc, char **argv) {
    if (argc != 5 || chdir(argv[1]))
        return 2;
    on_kernel = atoi(argv[2]);
    umask(0);
    setvbuf(stdout, NULL, _IOLBF, 0);
    need(!mkdir("folder", 0755) && !close(open("file", O_CREAT | O_RDWR, 0644)), "make");
    bits("file");
    bits("folder");
    puts("of what is immutable");
    chattr("file", FS_IMMUTABLE_FL, 0);
    chattr("folder", FS_IMMUTABLE_FL, 0);
    bits("file");
    bits("folder");
    chattr("file", 0, FS_IMMUTABLE_FL);
    chattr("folder", 0, FS_IMMUTABLE_FL);
    as_stranger("file");
    append_only();
    append_beside_older_handle();
    immutable();
    late_times("late cut, immutable", FS_IMMUTABLE_FL, O_RDONLY | O_TRUNC);
    late_times("late cut, append-only", FS_APPEND_FL, O_RDONLY | O_TRUNC);
    late_times("late write, immutable", FS_IMMUTABLE_FL, O_RDWR);
    late_times("late write, append-only", FS_APPEND_FL, O_RDWR);
    folders();
    trims(4096, strtoull(argv[3], NULL, 0), strtoull(argv[4], NULL, 0));
    return 0;
}
