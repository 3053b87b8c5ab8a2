/* Many threads on one volume and on one file: threads VOLUME. Records are written and read whole,
 * errno and messages belong to the thread, and a handle that one thread closes under the others is
 * EBADF to them. */
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <pthread.h>

enum { THREADS = 8, ROUNDS = 300, RECORD = 6000, RECORDS = 16 };

static struct lanefs_volume *vol;
static struct lanefs_file *shared;
static struct lanefs_file *handles[ROUNDS];

static void *worker(void *arg)
{
    int me = (int)(long)arg;
    unsigned seed = (unsigned)me + 1;
    char own[32], record[RECORD];
    snprintf(own, sizeof own, "/own-%d", me);
    struct lanefs_file *file = lanefs_open(vol, own, O_RDWR | O_CREAT, 0644);
    CHECK(file);
    for (int i = 0; i < ROUNDS; i++) {
        int64_t at = (int64_t)(rand_r(&seed) % RECORDS) * RECORD;
        memset(record, 'a' + me, sizeof record);
        CHECK(lanefs_pwrite(shared, record, sizeof record, at) == RECORD);
        at = (int64_t)(rand_r(&seed) % RECORDS) * RECORD;
        CHECK(lanefs_pread(shared, record, sizeof record, at) == RECORD);
        for (int j = 1; j < RECORD; j++)
            CHECK(record[j] == record[0]);
        CHECK(lanefs_pwrite(file, record, 100, i * 100) == 100);
        if (i % 50 == 0)
            OK(lanefs_fsync(i % 100 ? file : shared));

        /* A failure of this thread's own, between those of the others. */
        char path[32];
        snprintf(path, sizeof path, me % 2 ? "/none-%d" : "/own-%d/below", me);
        FAILS(me % 2 ? ENOENT : ENOTDIR, lanefs_open(vol, path, O_RDONLY, 0));
        CHECK(strstr(lanefs_last_error(), me % 2 ? "No such file or directory" : "Not a directory"));

        /* All use the handle of the round; all try to close it, and one does. */
        struct lanefs_stat st;
        CHECK(lanefs_fstat(handles[i], &st) == 0 || errno == EBADF);
        CHECK(lanefs_close(handles[i]) == 0 || errno == EBADF);
        FAILS(EBADF, lanefs_fstat(handles[i], &st));
    }
    OK(lanefs_close(file));
    return NULL;
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    OK(lanefs_mkfs(argv[1], 64 << 20, NULL));
    CHECK((vol = lanefs_open_volume(argv[1], "locking=range")));
    CHECK((shared = lanefs_open(vol, "/shared", O_RDWR | O_CREAT, 0644)));
    char zeros[RECORD] = {0};
    for (int i = 0; i < RECORDS; i++)
        CHECK(lanefs_pwrite(shared, zeros, sizeof zeros, (int64_t)i * RECORD) == RECORD);
    for (int i = 0; i < ROUNDS; i++)
        CHECK((handles[i] = lanefs_open(vol, "/shared", O_RDONLY, 0)));

    pthread_t threads[THREADS];
    for (long i = 0; i < THREADS; i++)
        OK(pthread_create(&threads[i], NULL, worker, (void *)i));
    for (int i = 0; i < THREADS; i++)
        OK(pthread_join(threads[i], NULL));

    OK(lanefs_close(shared));
    OK(lanefs_close_volume(vol));
    puts("all threads agree");
    return 0;
}
