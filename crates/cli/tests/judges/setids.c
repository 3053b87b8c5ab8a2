/* Prints the mode and capabilities that are left after a change of a file, for several callers.
 *
 * setids FOLDER STEP: prints a line for each caller, operation and mode (every STEP-th of the modes
 * with set-user-id or set-group-id). The caller compares the lines of two file systems. The file
 * belongs to user 1000 and group 2000. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { OWNER = 1000, GROUP = 2000, FSETID = 4 };

static const char *path, *source;

static void need(int ok, const char *what) {
    if (!ok) {
        perror(what);
        exit(2);
    }
}

static unsigned effective(int set, unsigned mask) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2];
    need(!syscall(SYS_capget, &header, data), "capget");
    unsigned had = data[0].effective;
    data[0].effective = set ? had | mask : had & ~mask;
    need(!syscall(SYS_capset, &header, data), "capset");
    return had;
}

static const struct caller {
    const char *name;
    uid_t uid;
    gid_t gid;
    gid_t group;
    int fsetid;
} callers[] = {
    {"root", 0, 0, 0, 1},          {"root without CAP_FSETID", 0, 0, 0, 0},
    {"owner", OWNER, 1000, 0, 0},  {"owner in the group", OWNER, GROUP, 0, 0},
    {"member", 3000, 3000, GROUP, 0}, {"stranger", 3000, 3000, 3000, 0},
    {"stranger with CAP_FSETID", 3000, 3000, 3000, 1},
};

static void become(const struct caller *who) {
    need(!setgroups(1, &who->group) && !setresgid(-1, who->gid, 0), "groups");
    need(!setresuid(-1, who->uid, 0), "user");
    effective(who->fsetid, 1u << FSETID);
}

static void become_root(void) {
    need(!setresuid(-1, 0, 0) && !setresgid(-1, 0, 0), "root");
    effective(1, 1u << FSETID);
}

static int change(int operation, int fd, int direct) {
    static char page[4096] __attribute__((aligned(4096)));
    switch (operation) {
    case 0: return pwrite(fd, "x", 1, 0) == 1 ? 0 : -1;
    case 1: return pwrite(direct, page, sizeof page, 0) == sizeof page ? 0 : -1;
    case 2: return ftruncate(fd, 100);
    case 3: return ftruncate(fd, 9000);
    case 4: return fallocate(fd, 0, 0, 20000);
    case 5: return fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096);
    case 6: {
        int from = open(source, O_RDONLY);
        ssize_t n = copy_file_range(from, NULL, fd, NULL, 100, 0);
        close(from);
        return n == 100 ? 0 : -1;
    }
    /* Not fchown(fd, -1, -1): the kernel does not pass it on to a server of FUSE. */
    case 7: return fchown(fd, -1, GROUP);
    case 8: return fchown(fd, OWNER, -1);
    case 9: {
        int other = open(path, O_WRONLY | O_TRUNC);
        return other < 0 ? -1 : close(other);
    }
    case 10: return truncate(path, 10);
    default: {
        char *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED)
            return -1;
        map[7]++;
        int result = msync(map, 4096, MS_SYNC);
        munmap(map, 4096);
        return result;
    }
    }
}

static const char *const operations[] = {"write",     "direct write", "cut",          "extend", "allocate",
                                         "punch",     "copy",         "chgrp", "chown",  "open and cut",
                                         "cut by name", "map"};

int main(int argc, char **argv) {
    static const unsigned char capability[20] = {1, 0, 0, 2, 1};
    if (argc != 3 || chdir(argv[1]))
        return 2;
    umask(0);
    path = "file";
    source = "source";
    int from = open(source, O_RDWR | O_CREAT, 0644);
    need(from >= 0 && !ftruncate(from, 5000) && !close(from), "source");
    for (size_t who = 0; who < sizeof callers / sizeof *callers; who++)
        for (size_t operation = 0; operation < sizeof operations / sizeof *operations; operation++)
            for (int mode = 02000; mode < 010000; mode += atoi(argv[2])) {
                if (!(mode & 06000))
                    continue;
                int fd = open(path, O_RDWR | O_CREAT, 0600), direct = open(path, O_RDWR | O_DIRECT);
                need(fd >= 0 && direct >= 0 && !ftruncate(fd, 8192), "open");
                need(!fchown(fd, OWNER, GROUP) && !fchmod(fd, mode), "mode");
                /* The magic of a capability without a root, as setcap(8) has it. */
                need(!fsetxattr(fd, "security.capability", capability, sizeof capability, 0), "setxattr");
                become(&callers[who]);
                int failed = change(operation, fd, direct) ? errno : 0;
                become_root();
                struct stat stat;
                need(!fstat(fd, &stat), "stat");
                int keeps = getxattr(path, "security.capability", NULL, 0) > 0;
                printf("%s, %s, %o: %s, %o%s\n", callers[who].name, operations[operation], mode,
                       failed ? strerror(failed) : "done", stat.st_mode & 07777, keeps ? ", capable" : "");
                close(fd);
                close(direct);
            }
    return 0;
}
