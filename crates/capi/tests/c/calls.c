/* Each call of lanefs.h, and each of its reachable failures: calls VOLUME. VOLUME is a path without
 * a file. */
#define _GNU_SOURCE
#include "check.h"
#include <dirent.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static const char *name;
static struct lanefs_volume *vol;

static struct lanefs_volume *const no_volume = NULL;
static struct lanefs_file *const no_file = NULL;
static struct lanefs_dir *const no_dir = NULL;

static void volumes(void)
{
    CHECK(strcmp(lanefs_version(), VERSION) == 0);
    CHECK(*lanefs_last_error() == 0);
    FAILS(ENOENT, lanefs_open_volume(name, NULL));
    FAILS(EFAULT, lanefs_open_volume(NULL, NULL));
    FAILS(EFAULT, lanefs_mkfs(NULL, 1 << 20, NULL));
    FAILS(EINVAL, lanefs_mkfs(name, 64 << 20, "fast"));
    CHECK(strstr(lanefs_last_error(), "fast"));
    FAILS(ENOENT, lanefs_mkfs(name, 0, ""));
    FAILS(ENOSPC, lanefs_mkfs(name, 1 << 10, ""));
    FAILS(EINVAL, lanefs_mkfs(name, 1 << 30, "block_size=3000"));
    CHECK(access(name, F_OK) == -1);
    OK(lanefs_mkfs(name, 64 << 20, "label=calls,block_size=4096,root_owner=0:0"));
    FAILS(EINVAL, lanefs_mkfs(name, 1 << 30, "block_size=3000"));
    FAILS(ENOSPC, lanefs_mkfs(name, 1 << 10, ""));
    CHECK((vol = lanefs_open_volume(name, "ro")));
    OK(lanefs_close_volume(vol));
    OK(lanefs_mkfs(name, 0, "label=calls,block_size=4096"));

    FAILS(EINVAL, lanefs_open_volume(name, "noatime,swift"));
    CHECK(strstr(lanefs_last_error(), "swift"));
    FAILS(EINVAL, lanefs_open_volume(name, "\xff"));
    FAILS(EINVAL, lanefs_open_volume(name, "rw,noload"));
    FAILS(EISDIR, lanefs_open_volume("/", NULL));
    CHECK((vol = lanefs_open_volume(name, "noatime,data=ordered,errors=remount-ro,cache=8M")));
    FAILS(EBUSY, lanefs_open_volume(name, "ro"));
    FAILS(EBUSY, lanefs_mkfs(name, 0, NULL));

    struct lanefs_statfs fs;
    OK(lanefs_statfs(vol, &fs));
    CHECK(fs.f_bsize == 4096 && fs.f_blocks > 10000 && fs.f_bavail < fs.f_bfree && fs.f_bfree <= fs.f_blocks);
    CHECK(fs.f_ffree > 1000 && fs.f_ffree < fs.f_files && fs.f_namelen == 255);
    FAILS(EFAULT, lanefs_statfs(vol, NULL));
    FAILS(EBADF, lanefs_statfs(no_volume, &fs));

    char some[8], *all;
    ssize_t len = lanefs_stats(vol, NULL, 0);
    CHECK(len > 100);
    CHECK(lanefs_stats(vol, some, sizeof some) > 100 && strlen(some) == 7 && some[0] == '{');
    CHECK((all = malloc(1 << 20)));
    len = lanefs_stats(vol, all, 1 << 20);
    CHECK(len == (ssize_t)strlen(all) && all[len - 1] == '}');
    free(all);
    FAILS(EFAULT, lanefs_stats(vol, NULL, 5));
    FAILS(EBADF, lanefs_stats(no_volume, some, sizeof some));

    OK(lanefs_sync(vol));
    FAILS(EBADF, lanefs_sync(no_volume));
    CHECK(lanefs_trim(vol, 0, UINT64_MAX, 1 << 20) > 1 << 20);
    FAILS(EBADF, lanefs_trim(no_volume, 0, 1, 1));
}

static void opening(void)
{
    struct lanefs_file *f, *g;
    struct lanefs_stat st;
    char buf[16];
    FAILS(ENOENT, lanefs_open(vol, "/f", O_RDONLY, 0));
    CHECK((f = lanefs_open(vol, "/f", O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_LARGEFILE, 06640)));
    OK(lanefs_fstat(f, &st));
    CHECK(st.st_mode == (S_IFREG | 06640) && st.st_nlink == 1 && st.st_size == 0 && st.st_uid == 0);
    FAILS(EEXIST, lanefs_open(vol, "/f", O_RDWR | O_CREAT | O_EXCL, 0644));
    CHECK(lanefs_pwrite(f, "0123456789", 10, 0) == 10);
    CHECK((g = lanefs_open(vol, "f", O_WRONLY | O_APPEND | O_SYNC, 0)));
    CHECK(lanefs_pwrite(g, "ab", 2, 0) == 2);
    FAILS(EBADF, lanefs_pread(g, buf, 1, 0));
    OK(lanefs_close(g));
    CHECK(lanefs_pread(f, buf, 16, 0) == 12 && memcmp(buf, "0123456789ab", 12) == 0);
    CHECK((g = lanefs_open(vol, "/f", O_RDONLY | O_DIRECT, 0)));
    CHECK(lanefs_pread(g, buf, 3, 9) == 3 && memcmp(buf, "9ab", 3) == 0);
    FAILS(EBADF, lanefs_pwrite(g, "x", 1, 0));
    OK(lanefs_close(g));
    CHECK((g = lanefs_open(vol, "/f", O_WRONLY | O_TRUNC | O_DSYNC, 0)));
    OK(lanefs_close(g));
    OK(lanefs_fstat(f, &st));
    CHECK(st.st_size == 0);

    FAILS(EINVAL, lanefs_open(vol, "/f", O_ACCMODE, 0));
    FAILS(EINVAL, lanefs_open(vol, "/f", O_RDONLY | O_PATH, 0));
    FAILS(EINVAL, lanefs_open(vol, "/f", O_RDONLY | O_TRUNC, 0));
    FAILS(EISDIR, lanefs_open(vol, "/", O_RDONLY, 0));
    FAILS(EISDIR, lanefs_open(vol, "/", O_RDONLY | O_DIRECTORY, 0));
    FAILS(ENOTDIR, lanefs_open(vol, "/f", O_RDONLY | O_DIRECTORY, 0));
    FAILS(ENOTDIR, lanefs_open(vol, "/f/g", O_RDONLY, 0));
    FAILS(ENOENT, lanefs_open(vol, "", O_RDONLY, 0));
    FAILS(EFAULT, lanefs_open(vol, NULL, O_RDONLY, 0));
    FAILS(EBADF, lanefs_open(no_volume, "/f", O_RDONLY, 0));
    char longest[5000];
    memset(longest, 'x', sizeof longest);
    longest[256] = 0;
    FAILS(ENAMETOOLONG, lanefs_open(vol, longest, O_RDWR | O_CREAT, 0600));
    longest[256] = 'x', longest[4999] = 0;
    FAILS(ENAMETOOLONG, lanefs_open(vol, longest, O_RDWR | O_CREAT, 0600));

    /* A nameless file is opened as the flags say, and gets a name. */
    FAILS(EINVAL, lanefs_open(vol, "/", O_RDONLY | O_TMPFILE, 0600));
    FAILS(EINVAL, lanefs_open(vol, "/", O_RDWR | O_EXCL | O_TMPFILE, 0600));
    FAILS(EINVAL, lanefs_open(vol, "/", O_RDWR | O_CREAT | O_TMPFILE, 0600));
    FAILS(EINVAL, lanefs_open(vol, "/", O_RDWR | LANEFS_O_UNCACHED | O_TMPFILE, 0600));
    CHECK((g = lanefs_open(vol, "/", O_WRONLY | O_APPEND | O_TMPFILE, 0600)));
    CHECK(lanefs_pwrite(g, "ab", 2, 0) == 2 && lanefs_pwrite(g, "cd", 2, 0) == 2);
    FAILS(EBADF, lanefs_pread(g, buf, 1, 0));
    OK(lanefs_fstat(g, &st));
    CHECK(st.st_size == 4);
    OK(lanefs_close(g));
    CHECK((g = lanefs_open(vol, "/", O_RDWR | O_TMPFILE, 0600)));
    CHECK(lanefs_pwrite(g, "named later", 11, 0) == 11);
    FAILS(EEXIST, lanefs_flink(g, vol, "/f"));
    FAILS(EFAULT, lanefs_flink(g, vol, NULL));
    FAILS(EBADF, lanefs_flink(no_file, vol, "/tmpfile"));
    OK(lanefs_flink(g, vol, "/tmpfile"));
    OK(lanefs_close(g));
    OK(lanefs_stat(vol, "/tmpfile", &st));
    CHECK(st.st_nlink == 1 && st.st_size == 11);

    /* Closed is closed, also for a handle whose slot has another file by now. */
    OK(lanefs_close(f));
    FAILS(EBADF, lanefs_close(f));
    CHECK((g = lanefs_open(vol, "/f", O_RDONLY, 0)) && g != f);
    FAILS(EBADF, lanefs_close(f));
    FAILS(EBADF, lanefs_pread(f, buf, 1, 0));
    FAILS(EBADF, lanefs_fstat(f, &st));
    FAILS(EBADF, lanefs_close((struct lanefs_file *)vol));
    FAILS(EBADF, lanefs_close((struct lanefs_file *)0xdeadbeef));
    FAILS(EBADF, lanefs_close(no_file));
    OK(lanefs_close(g));
}

static void content(void)
{
    struct lanefs_file *f, *g;
    struct lanefs_stat st;
    char buf[64] = "", two[64] = "";
    CHECK((f = lanefs_open(vol, "/content", O_RDWR | O_CREAT, 0644)));
    CHECK((g = lanefs_open(vol, "/copy", O_RDWR | O_CREAT, 0644)));

    struct iovec out[] = {{"one", 3}, {NULL, 0}, {" and ", 5}, {"two", 3}};
    CHECK(lanefs_pwritev(f, out, 4, 100) == 11);
    CHECK(lanefs_pwritev(f, out, 1, 4) == 3);
    CHECK(lanefs_pwritev(f, NULL, 0, 0) == 0);
    struct iovec in[] = {{buf, 4}, {two, 2}, {buf + 4, 60}};
    CHECK(lanefs_preadv(f, in, 3, 99) == 12);
    CHECK(memcmp(buf, "\0one and two", 4) == 0 && memcmp(two, " a", 2) == 0 && memcmp(buf + 4, "nd two", 6) == 0);
    CHECK(lanefs_preadv(f, in, 1, 4) == 4 && memcmp(buf, "one\0", 4) == 0);
    CHECK(lanefs_preadv(f, in, 3, 1000) == 0);
    FAILS(EINVAL, lanefs_preadv(f, in, -1, 0));
    FAILS(EINVAL, lanefs_pwritev(f, out, 1025, 0));
    FAILS(EFAULT, lanefs_preadv(f, NULL, 1, 0));
    struct iovec bad[] = {{buf, 1}, {NULL, 1}};
    FAILS(EFAULT, lanefs_preadv(f, bad, 2, 4));
    FAILS(EFAULT, lanefs_pwritev(f, bad, 2, 4));
    struct iovec vast[] = {{buf, SIZE_MAX}, {buf, SIZE_MAX}};
    FAILS(EINVAL, lanefs_pwritev(f, vast, 2, 0));
    FAILS(EBADF, lanefs_preadv(no_file, in, 1, 0));
    FAILS(EBADF, lanefs_pwritev(no_file, out, 1, 0));

    CHECK(lanefs_pread(f, NULL, 0, 0) == 0 && lanefs_pwrite(f, NULL, 0, 0) == 0);
    FAILS(EFAULT, lanefs_pread(f, NULL, 1, 0));
    FAILS(EFAULT, lanefs_pwrite(f, NULL, 1, 0));
    FAILS(EINVAL, lanefs_pread(f, buf, 1, -1));
    FAILS(EINVAL, lanefs_pwrite(f, buf, 1, -1));
    FAILS(EFBIG, lanefs_pwrite(f, buf, 1, INT64_MAX));
    FAILS(EBADF, lanefs_pread(no_file, buf, 1, 0));
    FAILS(EBADF, lanefs_pwrite(no_file, buf, 1, 0));

    CHECK(lanefs_copy_range(f, 100, g, 0, 1000) == 11);
    CHECK(lanefs_pread(g, buf, 64, 0) == 11 && memcmp(buf, "one and two", 11) == 0);
    FAILS(EINVAL, lanefs_copy_range(f, 0, f, 4, 50));
    CHECK(lanefs_copy_range(f, 100, f, 8192, 3) == 3);
    FAILS(EINVAL, lanefs_copy_range(f, -1, g, 0, 1));
    FAILS(EBADF, lanefs_copy_range(no_file, 0, g, 0, 1));

    OK(lanefs_ftruncate(f, 1 << 20));
    OK(lanefs_fstat(f, &st));
    CHECK(st.st_size == 1 << 20 && st.st_blksize == 4096);
    FAILS(EINVAL, lanefs_ftruncate(f, -1));
    FAILS(EFBIG, lanefs_ftruncate(f, INT64_MAX));
    FAILS(EBADF, lanefs_ftruncate(no_file, 0));
    OK(lanefs_truncate(vol, "/copy", 3));
    CHECK(lanefs_pread(g, buf, 64, 0) == 3);
    FAILS(EINVAL, lanefs_truncate(vol, "/copy", -3));
    FAILS(ENOENT, lanefs_truncate(vol, "/none", 3));
    FAILS(EISDIR, lanefs_truncate(vol, "/", 3));
    FAILS(EFAULT, lanefs_truncate(vol, NULL, 3));
    FAILS(EBADF, lanefs_truncate(no_volume, "/copy", 3));

    CHECK(FALLOC_FL_KEEP_SIZE == LANEFS_FALLOC_KEEP_SIZE && FALLOC_FL_PUNCH_HOLE == LANEFS_FALLOC_PUNCH_HOLE &&
          FALLOC_FL_ZERO_RANGE == LANEFS_FALLOC_ZERO_RANGE && FALLOC_FL_UNSHARE_RANGE == LANEFS_FALLOC_UNSHARE_RANGE &&
          FALLOC_FL_COLLAPSE_RANGE == LANEFS_FALLOC_COLLAPSE_RANGE && FALLOC_FL_INSERT_RANGE == LANEFS_FALLOC_INSERT_RANGE);
    OK(lanefs_fallocate(g, 0, 0, 64 << 10));
    OK(lanefs_fallocate(g, FALLOC_FL_KEEP_SIZE, 64 << 10, 64 << 10));
    OK(lanefs_fstat(g, &st));
    CHECK(st.st_size == 64 << 10 && st.st_blocks >= 256);
    OK(lanefs_fallocate(g, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096, 4096));
    OK(lanefs_fallocate(g, FALLOC_FL_ZERO_RANGE, 0, 8192));
    OK(lanefs_fallocate(g, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, 0, 1 << 20));
    OK(lanefs_fallocate(g, FALLOC_FL_COLLAPSE_RANGE, 0, 8192));
    OK(lanefs_fallocate(g, FALLOC_FL_INSERT_RANGE, 0, 4096));
    OK(lanefs_fallocate(g, FALLOC_FL_UNSHARE_RANGE, 0, 4096));
    OK(lanefs_fstat(g, &st));
    CHECK(st.st_size == (64 << 10) - 4096);
    FAILS(EOPNOTSUPP, lanefs_fallocate(g, FALLOC_FL_PUNCH_HOLE, 0, 1));
    FAILS(EINVAL, lanefs_fallocate(g, 0, 0, 0));
    FAILS(EINVAL, lanefs_fallocate(g, 0, -1, 1));
    FAILS(EINVAL, lanefs_fallocate(g, FALLOC_FL_COLLAPSE_RANGE, 1, 1));
    FAILS(ENOSPC, lanefs_fallocate(g, 0, 0, 1 << 30));
    FAILS(EBADF, lanefs_fallocate(no_file, 0, 0, 1));

    CHECK(LANEFS_SEEK_DATA == SEEK_DATA && LANEFS_SEEK_HOLE == SEEK_HOLE);
    OK(lanefs_fsync(f));
    CHECK(lanefs_seek(f, 4096, SEEK_DATA) == 8192 && lanefs_seek(f, 0, SEEK_HOLE) == 4096);
    FAILS(ENXIO, lanefs_seek(f, 12288, SEEK_DATA));
    FAILS(ENXIO, lanefs_seek(f, 1 << 20, SEEK_HOLE));
    FAILS(ENXIO, lanefs_seek(f, -1, SEEK_HOLE));
    FAILS(EINVAL, lanefs_seek(f, 0, SEEK_END));
    FAILS(EBADF, lanefs_seek(no_file, 0, SEEK_DATA));

    OK(lanefs_fdatasync(f));
    FAILS(EBADF, lanefs_fdatasync(no_file));
    FAILS(EBADF, lanefs_fsync(no_file));
    OK(lanefs_close(f));
    OK(lanefs_close(g));
}

static void names(void)
{
    struct lanefs_stat st;
    char buf[16];
    OK(lanefs_mkdir(vol, "/d", 01750));
    OK(lanefs_stat(vol, "/d", &st));
    CHECK(st.st_mode == (S_IFDIR | 01750) && st.st_nlink == 2);
    FAILS(EEXIST, lanefs_mkdir(vol, "/d", 0755));
    FAILS(ENOENT, lanefs_mkdir(vol, "/e/e", 0755));
    FAILS(EFAULT, lanefs_mkdir(vol, NULL, 0755));
    FAILS(EBADF, lanefs_mkdir(no_volume, "/e", 0755));

    OK(lanefs_link(vol, "/f", "/d/link"));
    OK(lanefs_stat(vol, "/f", &st));
    CHECK(st.st_nlink == 2);
    FAILS(EPERM, lanefs_link(vol, "/d", "/d2"));
    FAILS(EEXIST, lanefs_link(vol, "/f", "/d/link"));
    FAILS(EFAULT, lanefs_link(vol, "/f", NULL));
    FAILS(EBADF, lanefs_link(no_volume, "/f", "/g"));

    OK(lanefs_symlink(vol, "d/link", "/soft"));
    OK(lanefs_symlink(vol, "loop", "/loop"));
    CHECK(lanefs_readlink(vol, "/soft", buf, sizeof buf) == 6 && memcmp(buf, "d/link", 6) == 0);
    CHECK(lanefs_readlink(vol, "/soft", buf, 2) == 2);
    FAILS(EINVAL, lanefs_readlink(vol, "/soft", buf, 0));
    FAILS(EINVAL, lanefs_readlink(vol, "/f", buf, sizeof buf));
    FAILS(EFAULT, lanefs_readlink(vol, "/soft", NULL, 1));
    FAILS(EBADF, lanefs_readlink(no_volume, "/soft", buf, 1));
    FAILS(EEXIST, lanefs_symlink(vol, "x", "/soft"));
    FAILS(ENOENT, lanefs_symlink(vol, "", "/empty"));
    FAILS(EFAULT, lanefs_symlink(vol, NULL, "/empty"));
    FAILS(EBADF, lanefs_symlink(no_volume, "x", "/x"));
    FAILS(ELOOP, lanefs_stat(vol, "/loop", &st));
    OK(lanefs_lstat(vol, "/loop", &st));
    CHECK(S_ISLNK(st.st_mode) && st.st_size == 4);
    OK(lanefs_stat(vol, "/soft", &st));
    CHECK(S_ISREG(st.st_mode));
    FAILS(ELOOP, lanefs_open(vol, "/soft", O_RDONLY | O_NOFOLLOW, 0));
    FAILS(EFAULT, lanefs_stat(vol, "/f", NULL));
    FAILS(EFAULT, lanefs_stat(vol, NULL, &st));
    FAILS(EBADF, lanefs_stat(no_volume, "/f", &st));
    FAILS(ENOENT, lanefs_lstat(vol, "/none", &st));

    OK(lanefs_mknod(vol, "/null", S_IFCHR | 0666, makedev(1, 300)));
    OK(lanefs_mknod(vol, "/pipe", S_IFIFO | 0600, 0));
    OK(lanefs_mknod(vol, "/plain", 0600, 0));
    OK(lanefs_lstat(vol, "/null", &st));
    CHECK(S_ISCHR(st.st_mode) && st.st_rdev_major == 1 && st.st_rdev_minor == 300);
    FAILS(EINVAL, lanefs_open(vol, "/pipe", O_RDONLY, 0));
    FAILS(EINVAL, lanefs_mknod(vol, "/dir", S_IFDIR | 0755, 0));
    FAILS(EINVAL, lanefs_mknod(vol, "/odd", S_IFMT | 0755, 0));
    /* It would become 8:0. */
    FAILS(EINVAL, lanefs_mknod(vol, "/sda", S_IFBLK | 0600, makedev(4104, 0)));
    FAILS(EEXIST, lanefs_mknod(vol, "/pipe", S_IFIFO, 0));
    FAILS(EFAULT, lanefs_mknod(vol, NULL, S_IFIFO, 0));
    FAILS(EBADF, lanefs_mknod(no_volume, "/p", S_IFIFO, 0));

    FAILS(EEXIST, lanefs_rename(vol, "/plain", "/pipe", LANEFS_RENAME_NOREPLACE));
    OK(lanefs_rename(vol, "/plain", "/pipe", LANEFS_RENAME_EXCHANGE));
    OK(lanefs_lstat(vol, "/plain", &st));
    CHECK(S_ISFIFO(st.st_mode));
    OK(lanefs_rename(vol, "/plain", "/d/moved", 0));
    FAILS(EINVAL, lanefs_rename(vol, "/d", "/d/below", 0));
    FAILS(EINVAL, lanefs_rename(vol, "/d", "/d3", 8));
    FAILS(EBUSY, lanefs_rename(vol, "/", "/d3", 0));
    FAILS(EINVAL, lanefs_rename(vol, "/d/moved", "/d/white", LANEFS_RENAME_WHITEOUT | LANEFS_RENAME_EXCHANGE));
    OK(lanefs_rename(vol, "/d/moved", "/d/white", LANEFS_RENAME_WHITEOUT | LANEFS_RENAME_NOREPLACE));
    OK(lanefs_lstat(vol, "/d/moved", &st));
    CHECK(S_ISCHR(st.st_mode) && st.st_rdev_major == 0 && st.st_rdev_minor == 0);
    OK(lanefs_rename(vol, "/d/white", "/d/moved", 0));
    FAILS(EISDIR, lanefs_rename(vol, "/pipe", "/d", 0));
    FAILS(ENOTDIR, lanefs_rename(vol, "/d", "/pipe", 0));
    FAILS(ENOENT, lanefs_rename(vol, "/plain", "/x", 0));
    FAILS(EFAULT, lanefs_rename(vol, NULL, "/x", 0));
    FAILS(EBADF, lanefs_rename(no_volume, "/d", "/x", 0));

    FAILS(ENOTEMPTY, lanefs_rmdir(vol, "/d"));
    FAILS(ENOTDIR, lanefs_rmdir(vol, "/f"));
    FAILS(EBUSY, lanefs_rmdir(vol, "/"));
    FAILS(EFAULT, lanefs_rmdir(vol, NULL));
    FAILS(EBADF, lanefs_rmdir(no_volume, "/d"));
    FAILS(EISDIR, lanefs_unlink(vol, "/d"));
    FAILS(ENOENT, lanefs_unlink(vol, "/none"));
    FAILS(EFAULT, lanefs_unlink(vol, NULL));
    FAILS(EBADF, lanefs_unlink(no_volume, "/d"));
    OK(lanefs_unlink(vol, "/d/moved"));
    OK(lanefs_unlink(vol, "/d/link"));
    OK(lanefs_rmdir(vol, "/d"));
}

static void attributes(void)
{
    struct lanefs_stat st;
    struct lanefs_file *f;
    FAILS(ENOENT, lanefs_chmod(vol, "/none", 0));
    OK(lanefs_symlink(vol, "f", "/tof"));
    OK(lanefs_chmod(vol, "/tof", 0100604));
    OK(lanefs_chown(vol, "/tof", 70000, (gid_t)-1));
    OK(lanefs_lchown(vol, "/tof", (uid_t)-1, 80000));
    OK(lanefs_stat(vol, "/f", &st));
    CHECK(st.st_mode == (S_IFREG | 0604) && st.st_uid == 70000 && st.st_gid == 0);
    OK(lanefs_lstat(vol, "/tof", &st));
    CHECK(st.st_uid == 0 && st.st_gid == 80000);
    CHECK((f = lanefs_open(vol, "/f", O_RDWR, 0)));
    OK(lanefs_fchmod(f, 04755));
    OK(lanefs_fchown(f, (uid_t)-1, (gid_t)-1));
    OK(lanefs_fstat(f, &st));
    CHECK(st.st_mode == (S_IFREG | 04755) && st.st_uid == 70000);
    OK(lanefs_fchown(f, 70000, (gid_t)-1));
    OK(lanefs_fstat(f, &st));
    CHECK(st.st_mode == (S_IFREG | 0755));
    OK(lanefs_fchmod(f, 0400));
    OK(lanefs_fchown(f, 1, 2));
    struct timespec times[] = {{1234567890, 123456789}, {0, UTIME_OMIT}};
    OK(lanefs_fstat(f, &st));
    struct timespec before = st.st_mtim;
    OK(lanefs_futimens(f, times));
    OK(lanefs_fstat(f, &st));
    CHECK(st.st_mode == (S_IFREG | 0400) && st.st_uid == 1 && st.st_gid == 2);
    CHECK(st.st_atim.tv_sec == 1234567890 && st.st_atim.tv_nsec == 123456789);
    CHECK(memcmp(&before, &st.st_mtim, sizeof before) == 0 && st.st_has_btime && st.st_btim.tv_sec > 1234567890);
    /* As in Linux, where two omitted times are no change, and the path is not looked at. */
    struct timespec neither[] = {{0, UTIME_OMIT}, {0, UTIME_OMIT}};
    before = st.st_ctim;
    OK(lanefs_futimens(f, neither));
    OK(lanefs_utimens(vol, "/tof", neither, 0));
    OK(lanefs_utimens(vol, "/nothing", neither, 0));
    OK(lanefs_fstat(f, &st));
    CHECK(memcmp(&before, &st.st_ctim, sizeof before) == 0);
    struct timespec old[] = {{0, UTIME_NOW}, {-1000, 0}};
    OK(lanefs_utimens(vol, "/tof", old, 0));
    OK(lanefs_fstat(f, &st));
    CHECK(st.st_mtim.tv_sec == -1000 && st.st_atim.tv_sec > 1234567890);
    OK(lanefs_utimens(vol, "/tof", old, AT_SYMLINK_NOFOLLOW));
    OK(lanefs_lstat(vol, "/tof", &st));
    CHECK(st.st_mtim.tv_sec == -1000);
    uint64_t version;
    OK(lanefs_fstat(f, &st));
    version = st.st_version;
    OK(lanefs_utimens(vol, "/f", NULL, 0));
    CHECK(lanefs_pwrite(f, "!", 1, 0) == 1);
    OK(lanefs_fstat(f, &st));
    CHECK(st.st_mtim.tv_sec > 1234567890 && st.st_version != version);
    struct timespec bad[] = {{0, 1000000000}, {0, -1}};
    FAILS(EINVAL, lanefs_futimens(f, bad));
    FAILS(EINVAL, lanefs_utimens(vol, "/f", bad, 0));
    FAILS(EINVAL, lanefs_utimens(vol, "/f", NULL, 1));
    FAILS(ENOENT, lanefs_utimens(vol, "/none", NULL, 0));
    FAILS(EFAULT, lanefs_utimens(vol, NULL, NULL, 0));
    FAILS(EBADF, lanefs_utimens(no_volume, "/f", NULL, 0));
    FAILS(EBADF, lanefs_futimens(no_file, NULL));
    FAILS(EBADF, lanefs_fchmod(no_file, 0));
    FAILS(EBADF, lanefs_fchown(no_file, 0, 0));
    FAILS(EFAULT, lanefs_fstat(f, NULL));
    FAILS(EFAULT, lanefs_chmod(vol, NULL, 0));
    FAILS(EBADF, lanefs_chmod(no_volume, "/f", 0));
    FAILS(ENOENT, lanefs_chown(vol, "/none", 0, 0));
    FAILS(EFAULT, lanefs_lchown(vol, NULL, 0, 0));
    FAILS(EBADF, lanefs_lchown(no_volume, "/f", 0, 0));
    OK(lanefs_close(f));
}

static void xattrs(void)
{
    char buf[64], big[70000] = {0};
    OK(lanefs_lsetxattr(vol, "/f", "user.one", "value", 5, LANEFS_XATTR_CREATE));
    OK(lanefs_lsetxattr(vol, "/f", "user.empty", NULL, 0, 0));
    OK(lanefs_lsetxattr(vol, "/f", "user.one", "1", 1, LANEFS_XATTR_REPLACE));
    CHECK(lanefs_lgetxattr(vol, "/f", "user.one", NULL, 0) == 1);
    CHECK(lanefs_lgetxattr(vol, "/f", "user.one", buf, sizeof buf) == 1 && buf[0] == '1');
    CHECK(lanefs_lgetxattr(vol, "/f", "user.empty", buf, sizeof buf) == 0);
    ssize_t len = lanefs_llistxattr(vol, "/f", NULL, 0);
    CHECK(len == sizeof "user.one" + sizeof "user.empty");
    CHECK(lanefs_llistxattr(vol, "/f", buf, sizeof buf) == len && buf[len - 1] == 0);
    FAILS(ERANGE, lanefs_llistxattr(vol, "/f", buf, 3));
    FAILS(EFAULT, lanefs_llistxattr(vol, "/f", NULL, 3));
    FAILS(ENOENT, lanefs_llistxattr(vol, "/none", buf, 3));
    FAILS(EBADF, lanefs_llistxattr(no_volume, "/f", buf, 3));
    FAILS(EEXIST, lanefs_lsetxattr(vol, "/f", "user.one", "", 0, LANEFS_XATTR_CREATE));
    FAILS(ENODATA, lanefs_lsetxattr(vol, "/f", "user.two", "", 0, LANEFS_XATTR_REPLACE));
    FAILS(EINVAL, lanefs_lsetxattr(vol, "/f", "user.two", "", 0, 4));
    FAILS(EOPNOTSUPP, lanefs_lsetxattr(vol, "/f", "nobody.knows", "", 0, 0));
    FAILS(ERANGE, lanefs_lsetxattr(vol, "/f", "", "", 0, 0));
    FAILS(E2BIG, lanefs_lsetxattr(vol, "/f", "user.big", big, sizeof big, 0));
    FAILS(ENOSPC, lanefs_lsetxattr(vol, "/f", "user.big", big, 60000, 0));
    FAILS(EFAULT, lanefs_lsetxattr(vol, "/f", "user.two", NULL, 1, 0));
    FAILS(EFAULT, lanefs_lsetxattr(vol, "/f", NULL, "", 0, 0));
    FAILS(EBADF, lanefs_lsetxattr(no_volume, "/f", "user.two", "", 0, 0));
    OK(lanefs_lsetxattr(vol, "/f", "user.wide", "12345678", 8, 0));
    /* Of an open file, with a name and without one. */
    struct lanefs_file *attrs[] = {lanefs_open(vol, "/f", O_RDONLY, 0),
                                   lanefs_open(vol, "/", O_TMPFILE | O_RDWR, 0600)};
    for (int i = 0; i < 2; i++) {
        CHECK(attrs[i]);
        FAILS(ENODATA, lanefs_fgetxattr(attrs[i], "user.fd", buf, sizeof buf));
        FAILS(ENODATA, lanefs_fsetxattr(attrs[i], "user.fd", "1", 1, LANEFS_XATTR_REPLACE));
        OK(lanefs_fsetxattr(attrs[i], "user.fd", "12", 2, LANEFS_XATTR_CREATE));
        FAILS(EINVAL, lanefs_fsetxattr(attrs[i], "user.fd", "12", 2, 4));
        CHECK(lanefs_fgetxattr(attrs[i], "user.fd", buf, sizeof buf) == 2 && memcmp(buf, "12", 2) == 0);
        CHECK(lanefs_flistxattr(attrs[i], NULL, 0) == lanefs_flistxattr(attrs[i], buf, sizeof buf));
        OK(lanefs_fremovexattr(attrs[i], "user.fd"));
        FAILS(ENODATA, lanefs_fremovexattr(attrs[i], "user.fd"));
        OK(lanefs_close(attrs[i]));
        FAILS(EBADF, lanefs_fgetxattr(attrs[i], "user.fd", buf, sizeof buf));
    }
    FAILS(ERANGE, lanefs_lgetxattr(vol, "/f", "user.wide", buf, 7));
    FAILS(ENODATA, lanefs_lgetxattr(vol, "/f", "user.two", buf, 7));
    FAILS(EFAULT, lanefs_lgetxattr(vol, "/f", "user.wide", NULL, 8));
    FAILS(EBADF, lanefs_lgetxattr(no_volume, "/f", "user.wide", buf, 7));
    OK(lanefs_lremovexattr(vol, "/f", "user.wide"));
    FAILS(ENODATA, lanefs_lremovexattr(vol, "/f", "user.wide"));
    FAILS(EFAULT, lanefs_lremovexattr(vol, "/f", NULL));
    FAILS(EBADF, lanefs_lremovexattr(no_volume, "/f", "user.one"));
}

static void directories(void)
{
    enum { FILES = 1000 };
    static char seen[FILES];
    struct lanefs_dir *d;
    struct lanefs_dirent e;
    char path[512];
    OK(lanefs_mkdir(vol, "/many", 0755));
    for (int i = 0; i < FILES; i++) {
        struct lanefs_file *f;
        snprintf(path, sizeof path, "/many/%d", i);
        CHECK((f = lanefs_open(vol, path, O_WRONLY | O_CREAT | O_EXCL, 0644)));
        OK(lanefs_close(f));
    }
    CHECK((d = lanefs_opendir(vol, "/many")));
    int dots = 0, count = 0, got;
    uint64_t middle = 0;
    /* Removed while it is listed: each is still seen once. */
    while ((got = lanefs_readdir(d, &e)) == 1) {
        if (e.d_name[0] == '.') {
            CHECK(e.d_type == DT_DIR);
            dots++;
            continue;
        }
        CHECK(e.d_type == DT_REG && e.d_ino > 11 && !seen[atoi(e.d_name)]++);
        if (++count == FILES / 2)
            middle = e.d_off;
        snprintf(path, sizeof path, "/many/%s", e.d_name);
        if (count > FILES / 2)
            OK(lanefs_unlink(vol, path));
    }
    CHECK(got == 0 && dots == 2 && count == FILES);
    CHECK(lanefs_readdir(d, &e) == 0);
    OK(lanefs_seekdir(d, middle));
    CHECK(lanefs_readdir(d, &e) == 0);
    OK(lanefs_seekdir(d, 0));
    for (count = 0; (got = lanefs_readdir(d, &e)) == 1;)
        count++;
    CHECK(got == 0 && count == FILES / 2 + 2);
    FAILS(EFAULT, lanefs_readdir(d, NULL));
    OK(lanefs_closedir(d));
    FAILS(EBADF, lanefs_closedir(d));
    FAILS(EBADF, lanefs_readdir(d, &e));
    FAILS(EBADF, lanefs_seekdir(no_dir, 0));
    FAILS(ENOTDIR, lanefs_opendir(vol, "/f"));
    FAILS(ENOENT, lanefs_opendir(vol, "/none"));
    FAILS(EFAULT, lanefs_opendir(vol, NULL));
    FAILS(EBADF, lanefs_opendir(no_volume, "/"));
}

static void endings(void)
{
    struct lanefs_file *f;
    struct lanefs_dir *d;
    struct lanefs_dirent e;
    char other[4096], buf[4];
    CHECK((f = lanefs_open(vol, "/f", O_RDWR, 0)));
    CHECK((d = lanefs_opendir(vol, "/")));

    /* Links do not go from one volume to another. */
    snprintf(other, sizeof other, "%s.other", name);
    OK(lanefs_mkfs(other, 16 << 20, "uuid=00010203-0405-0607-0809-0a0b0c0d0e0f,features=64bit:^has_journal"));
    struct lanefs_volume *second = lanefs_open_volume(other, "");
    CHECK(second);
    FAILS(EXDEV, lanefs_flink(f, second, "/f"));
    OK(lanefs_close_volume(second));

    OK(lanefs_close_volume(vol));
    FAILS(EBADF, lanefs_close_volume(vol));
    FAILS(EBADF, lanefs_sync(vol));
    FAILS(ENODEV, lanefs_pwrite(f, "late", 4, 0));
    FAILS(EBADF, lanefs_open(vol, "/f", O_RDONLY, 0));
    lanefs_readdir(d, &e);
    OK(lanefs_closedir(d));
    OK(lanefs_close(f));

    CHECK((vol = lanefs_open_volume(name, "ro")));
    FAILS(EROFS, lanefs_open(vol, "/f", O_RDWR, 0));
    FAILS(EROFS, lanefs_mkdir(vol, "/late", 0755));
    FAILS(EROFS, lanefs_trim(vol, 0, 1 << 20, 0));
    /* A file that exists is opened, or in the way; one that has to be made is refused. */
    CHECK((f = lanefs_open(vol, "/f", O_RDONLY | O_CREAT, 0644)));
    CHECK(lanefs_pread(f, buf, 4, 0) == 1 && buf[0] == '!');
    OK(lanefs_close(f));
    FAILS(EROFS, lanefs_open(vol, "/f", O_RDWR | O_CREAT, 0644));
    FAILS(EEXIST, lanefs_open(vol, "/f", O_RDWR | O_CREAT | O_EXCL, 0644));
    FAILS(EROFS, lanefs_open(vol, "/late", O_RDONLY | O_CREAT, 0644));
    FAILS(EROFS, lanefs_open(vol, "/late", O_RDWR | O_CREAT | O_EXCL, 0644));
    OK(lanefs_close_volume(vol));

    /* Not a volume. */
    OK(truncate(other, 0));
    OK(truncate(other, 1 << 20));
    FAILS(EINVAL, lanefs_open_volume(other, ""));
    OK(unlink(other));
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    name = argv[1];
    volumes();
    opening();
    content();
    names();
    attributes();
    xattrs();
    directories();
    endings();
    puts("all calls answered");
    return 0;
}
