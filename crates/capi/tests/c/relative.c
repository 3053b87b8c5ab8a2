/* Calls on paths that begin at an open directory, and their failures: relative VOLUME. VOLUME is a
 * path without a file. */
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static struct lanefs_volume *vol;
static struct lanefs_dir *root, *dir;
static struct lanefs_dir *const no_dir = NULL;

/* The same place, although its directory was renamed. */
static void places(void)
{
    struct lanefs_file *f;
    struct lanefs_stat st, other;
    char buf[8];
    CHECK((f = lanefs_openat(dir, "f", O_RDWR | O_CREAT | O_EXCL, 0640)));
    CHECK(lanefs_pwrite(f, "here", 4, 0) == 4);
    OK(lanefs_fstat(f, &st));
    OK(lanefs_stat(vol, "/a/b/f", &other));
    CHECK(st.st_ino == other.st_ino && st.st_mode == (S_IFREG | 0640));
    OK(lanefs_rename(vol, "/a", "/moved", 0));
    OK(lanefs_fstatat(dir, "f", &other, 0));
    CHECK(st.st_ino == other.st_ino && other.st_size == 4);
    /* Upwards, and from the root on. */
    OK(lanefs_fstatat(dir, "../../moved/b/f", &other, 0));
    CHECK(st.st_ino == other.st_ino);
    FAILS(ENOENT, lanefs_fstatat(dir, "/f", &other, 0));
    OK(lanefs_fstatat(dir, "/moved/b/./f", &other, 0));
    CHECK(st.st_ino == other.st_ino);
    OK(lanefs_fstatat(dir, ".", &other, 0));
    CHECK(S_ISDIR(other.st_mode));
    OK(lanefs_close(f));

    OK(lanefs_symlinkat("f", dir, "link"));
    OK(lanefs_fstatat(dir, "link", &other, AT_SYMLINK_NOFOLLOW));
    CHECK(S_ISLNK(other.st_mode));
    OK(lanefs_fstatat(dir, "link", &other, 0));
    CHECK(other.st_ino == st.st_ino);
    CHECK(lanefs_readlinkat(dir, "link", buf, sizeof buf) == 1 && buf[0] == 'f');
    CHECK((f = lanefs_openat(dir, "link", O_RDONLY, 0)));
    CHECK(lanefs_pread(f, buf, 8, 0) == 4);
    OK(lanefs_close(f));
    CHECK((f = lanefs_openat(dir, ".", O_RDWR | O_TMPFILE, 0600)));
    OK(lanefs_close(f));
    FAILS(ENOENT, lanefs_openat(dir, "none", O_RDONLY, 0));
    FAILS(ENOENT, lanefs_openat(dir, "", O_RDONLY, 0));
    FAILS(ENOTDIR, lanefs_openat(dir, "f/g", O_RDONLY, 0));
    FAILS(EINVAL, lanefs_openat(dir, "f", O_RDONLY | O_TRUNC, 0));
    FAILS(EFAULT, lanefs_openat(dir, NULL, O_RDONLY, 0));
    FAILS(EBADF, lanefs_openat(no_dir, "f", O_RDONLY, 0));
    FAILS(EINVAL, lanefs_fstatat(dir, "f", &other, 1));
    FAILS(EFAULT, lanefs_fstatat(dir, "f", NULL, 0));
    FAILS(EBADF, lanefs_fstatat(no_dir, "f", &other, 0));
    FAILS(EINVAL, lanefs_readlinkat(dir, "f", buf, sizeof buf));
    FAILS(EINVAL, lanefs_readlinkat(dir, "link", buf, 0));
    FAILS(EBADF, lanefs_readlinkat(no_dir, "link", buf, 1));
    FAILS(EEXIST, lanefs_symlinkat("f", dir, "link"));
    FAILS(EBADF, lanefs_symlinkat("f", no_dir, "link"));
}

static void names(void)
{
    struct lanefs_dir *sub;
    struct lanefs_dirent e;
    struct lanefs_stat st;
    OK(lanefs_mkdirat(dir, "sub", 0700));
    FAILS(EEXIST, lanefs_mkdirat(dir, "sub", 0700));
    FAILS(EBADF, lanefs_mkdirat(no_dir, "sub", 0700));
    CHECK((sub = lanefs_opendirat(dir, "sub")));
    FAILS(ENOTDIR, lanefs_opendirat(dir, "f"));
    FAILS(EBADF, lanefs_opendirat(no_dir, "sub"));
    OK(lanefs_linkat(dir, "f", sub, "linked", 0));
    OK(lanefs_fstatat(sub, "linked", &st, 0));
    CHECK(st.st_nlink == 2);
    FAILS(EEXIST, lanefs_linkat(dir, "f", sub, "linked", 0));
    FAILS(EINVAL, lanefs_linkat(dir, "f", sub, "other", AT_SYMLINK_FOLLOW));
    FAILS(EBADF, lanefs_linkat(dir, "f", no_dir, "other", 0));
    OK(lanefs_renameat(sub, "linked", dir, "back", 0));
    FAILS(EEXIST, lanefs_renameat(dir, "back", dir, "f", LANEFS_RENAME_NOREPLACE));
    FAILS(EINVAL, lanefs_renameat(dir, "back", dir, "f", 77));
    FAILS(EBADF, lanefs_renameat(no_dir, "back", dir, "f", 0));
    OK(lanefs_renameat(dir, "back", root, "top", 0));
    OK(lanefs_stat(vol, "/top", &st));
    OK(lanefs_mknodat(dir, "pipe", S_IFIFO | 0600, 0));
    OK(lanefs_mknodat(dir, "null", S_IFCHR | 0666, makedev(1, 3)));
    OK(lanefs_fstatat(dir, "null", &st, 0));
    CHECK(S_ISCHR(st.st_mode) && st.st_rdev_major == 1 && st.st_rdev_minor == 3);
    FAILS(EINVAL, lanefs_mknodat(dir, "odd", 0170000, 0));
    FAILS(EBADF, lanefs_mknodat(no_dir, "pipe", S_IFIFO, 0));

    FAILS(EISDIR, lanefs_unlinkat(dir, "sub", 0));
    FAILS(ENOTDIR, lanefs_unlinkat(dir, "f", AT_REMOVEDIR));
    FAILS(EINVAL, lanefs_unlinkat(dir, "f", 5));
    FAILS(EBADF, lanefs_unlinkat(no_dir, "f", 0));
    OK(lanefs_unlinkat(dir, "pipe", 0));
    OK(lanefs_unlinkat(dir, "sub", AT_REMOVEDIR));
    /* In a removed directory, no name can be made or found. */
    FAILS(ENOENT, lanefs_openat(sub, "late", O_RDWR | O_CREAT, 0600));
    FAILS(ENOENT, lanefs_mkdirat(sub, "late", 0700));
    FAILS(ENOENT, lanefs_fstatat(sub, "linked", &st, 0));
    OK(lanefs_closedir(sub));
    FAILS(EBADF, lanefs_fstatat(sub, ".", &st, 0));
    OK(lanefs_seekdir(dir, 0));
    CHECK(lanefs_readdir(dir, &e) == 1);
}

static void attributes(void)
{
    const struct timespec times[2] = {{.tv_sec = 5, .tv_nsec = 6}, {.tv_sec = 7, .tv_nsec = UTIME_OMIT}};
    struct lanefs_stat st;
    OK(lanefs_fchmodat(dir, "link", 0604, 0));
    OK(lanefs_fchownat(dir, "link", 11, (gid_t)-1, 0));
    OK(lanefs_fchownat(dir, "link", 12, 13, AT_SYMLINK_NOFOLLOW));
    OK(lanefs_utimensat(dir, "f", times, 0));
    OK(lanefs_fstatat(dir, "f", &st, 0));
    CHECK((st.st_mode & 07777) == 0604 && st.st_uid == 11 && st.st_gid == 0 && st.st_atim.tv_sec == 5);
    OK(lanefs_fstatat(dir, "link", &st, AT_SYMLINK_NOFOLLOW));
    CHECK(st.st_uid == 12 && st.st_gid == 13);
    FAILS(EINVAL, lanefs_fchmodat(dir, "f", 0600, AT_SYMLINK_NOFOLLOW));
    FAILS(EINVAL, lanefs_fchownat(dir, "f", 1, 1, 3));
    FAILS(EINVAL, lanefs_utimensat(dir, "f", times, 3));
    FAILS(EBADF, lanefs_fchmodat(no_dir, "f", 0600, 0));
    FAILS(EBADF, lanefs_fchownat(no_dir, "f", 1, 1, 0));
    FAILS(EBADF, lanefs_utimensat(no_dir, "f", NULL, 0));
}

static void endings(const char *name)
{
    char other[4096];
    struct lanefs_stat st;
    struct lanefs_volume *second;
    struct lanefs_dir *there;
    snprintf(other, sizeof other, "%s.other", name);
    OK(lanefs_mkfs(other, 16 << 20, "features=^has_journal"));
    CHECK((second = lanefs_open_volume(other, "")));
    CHECK((there = lanefs_opendir(second, "/")));
    FAILS(EXDEV, lanefs_renameat(dir, "f", there, "f", 0));
    FAILS(EXDEV, lanefs_linkat(dir, "f", there, "f", 0));
    OK(lanefs_closedir(there));
    OK(lanefs_close_volume(second));
    OK(unlink(other));

    OK(lanefs_close_volume(vol));
    FAILS(ENODEV, lanefs_mkdirat(dir, "late", 0700));
    lanefs_fstatat(dir, "f", &st, 0);
    OK(lanefs_closedir(dir));
    OK(lanefs_closedir(root));
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    OK(lanefs_mkfs(argv[1], 32 << 20, NULL));
    CHECK((vol = lanefs_open_volume(argv[1], NULL)));
    OK(lanefs_mkdir(vol, "/a", 0755));
    OK(lanefs_mkdir(vol, "/a/b", 0755));
    CHECK((root = lanefs_opendir(vol, "/")));
    CHECK((dir = lanefs_opendirat(root, "a/b")));
    places();
    names();
    attributes();
    endings(argv[1]);
    puts("all places found");
    return 0;
}
