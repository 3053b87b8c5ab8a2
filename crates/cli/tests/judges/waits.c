/* Operations at which a file system that serves the kernel's requests may hang.
 *
 * waits fault FILE: touches the last page of a map of an O_DIRECT descriptor, whose end is not a
 * page's. waits seek FOLDER THREADS, waits read FOLDER THREADS: THREADS threads at once seek data
 * in files, or read them by O_DIRECT, while the kernel has dirty pages of them. waits mix FILE
 * ROUNDS: each direct write is seen by the buffered read after it, while another thread reads.
 * waits crowd FILE THREADS: opens FILE and two folders, becomes another user, prints a byte, reads
 * one, and then THREADS threads at once read a page each by O_DIRECT. A second later it moves
 * FILE.from/one to FILE.to/new. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096 };

static const char *path;
static int reads;
static volatile int ended;
static pthread_barrier_t all;

static void need(int ok, const char *what) {
    if (!ok) {
        perror(what);
        exit(1);
    }
}

static char *pages(size_t len) {
    void *memory = aligned_alloc(PAGE, len);
    need(memory != NULL, "memory");
    memset(memory, 1, len);
    return memory;
}

static int fault(void) {
    int fd = open(path, O_RDWR | O_CREAT | O_DIRECT, 0644);
    need(fd >= 0 && pwrite(fd, pages(65536), 65536, 0) == 65536 && !ftruncate(fd, 6144), "file");
    volatile char *map = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    need(map != MAP_FAILED, "map");
    need(map[6143] == 1 && map[6144] == 0, "content");
    map[6143] = 2;
    need(!msync((void *)map, 8192, MS_SYNC), "msync");
    need(pread(fd, pages(8192), 8192, 0) == 6144, "the size");
    return 0;
}

static void *one(void *number) {
    char name[4096];
    snprintf(name, sizeof name, "%s/%ld", path, (long)number);
    int fd = open(name, O_RDWR | O_CREAT, 0644), direct = open(name, O_RDONLY | O_DIRECT);
    char *memory = pages(65536);
    need(fd >= 0 && direct >= 0 && pwrite(fd, memory, 4 * PAGE, 2 * PAGE) == 4 * PAGE, "file");
    pthread_barrier_wait(&all);
    if (reads)
        need(pread(direct, memory, 65536, 0) == 6 * PAGE && memory[0] == 0 && memory[2 * PAGE] == 1, "direct read");
    else
        need(lseek(fd, 0, SEEK_DATA) == 2 * PAGE && lseek(fd, 0, SEEK_HOLE) == 0, "seek");
    return NULL;
}

static int many(long count) {
    pthread_t threads[count];
    pthread_barrier_init(&all, NULL, count);
    for (long i = 0; i < count; i++)
        need(!pthread_create(&threads[i], NULL, one, (void *)i), "thread");
    for (long i = 0; i < count; i++)
        need(!pthread_join(threads[i], NULL), "join");
    return 0;
}

static void *read_all_the_time(void *unused) {
    int fd = open(path, O_RDONLY), byte;
    while (!ended)
        need(pread(fd, &byte, sizeof byte, 0) == sizeof byte, "buffered read");
    return unused;
}

static int mix(int rounds) {
    int direct = open(path, O_RDWR | O_CREAT | O_DIRECT, 0644), fd = open(path, O_RDONLY);
    int *memory = (int *)pages(PAGE), seen;
    pthread_t reader;
    memory[0] = -1;
    need(direct >= 0 && fd >= 0 && pwrite(direct, memory, PAGE, 0) == PAGE, "file");
    need(!pthread_create(&reader, NULL, read_all_the_time, NULL), "thread");
    for (int round = 0; round < rounds; round++) {
        memory[0] = round;
        need(pwrite(direct, memory, PAGE, 0) == PAGE && pread(fd, &seen, sizeof seen, 0) == sizeof seen, "round");
        if (seen != round) {
            fprintf(stderr, "round %d: read %d\n", round, seen);
            return 1;
        }
    }
    ended = 1;
    return pthread_join(reader, NULL);
}

static int shared;

static void *one_page(void *number) {
    need(pread(shared, pages(PAGE), PAGE, (long)number * PAGE) == PAGE, "direct read");
    return NULL;
}

static int folder(const char *suffix) {
    char name[PATH_MAX];
    snprintf(name, sizeof name, "%s%s", path, suffix);
    int fd = open(name, O_RDONLY | O_DIRECTORY);
    need(fd >= 0, "folder");
    return fd;
}

static int crowd(long count) {
    char byte = '+';
    pthread_t threads[count];
    int from = folder(".from"), to = folder(".to");
    shared = open(path, O_RDONLY | O_DIRECT);
    need(shared >= 0 && !setgid(65534) && !setuid(65534), "another user");
    need(write(1, &byte, 1) == 1 && read(0, &byte, 1) == 1, "the word to begin");
    for (long i = 0; i < count; i++)
        need(!pthread_create(&threads[i], NULL, one_page, (void *)i), "thread");
    sleep(1);
    need(!renameat(from, "one", to, "new"), "rename");
    for (long i = 0; i < count; i++)
        need(!pthread_join(threads[i], NULL), "join");
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    path = argv[2];
    reads = !strcmp(argv[1], "read");
    if (!strcmp(argv[1], "fault"))
        return fault();
    if (!strcmp(argv[1], "crowd"))
        return crowd(atol(argv[3]));
    return strcmp(argv[1], "mix") ? many(atol(argv[3])) : mix(atoi(argv[3]));
}
