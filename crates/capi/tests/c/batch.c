/* Reads and writes in one call: batch VOLUME. */
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>

enum { COUNT = 32, BLOCK = 4096 };

static struct lanefs_io io(struct lanefs_file *file, int opcode, void *buf, size_t count, int64_t offset)
{
    return (struct lanefs_io){.file = file, .opcode = opcode, .buf = buf, .count = count, .offset = offset, .error = -1};
}

static void blocks(struct lanefs_volume *vol, int flags)
{
    struct lanefs_file *file;
    struct lanefs_io list[COUNT];
    char *memory;

    CHECK((file = lanefs_open(vol, "/blocks", O_RDWR | O_CREAT | flags, 0644)));
    CHECK(posix_memalign((void **)&memory, BLOCK, COUNT * BLOCK) == 0);
    /* Into holes, and then over existing blocks. */
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < COUNT; i++) {
            memset(memory + i * BLOCK, 'A' + i + round, BLOCK);
            list[i] = io(file, LANEFS_IO_WRITE, memory + i * BLOCK, BLOCK, (int64_t)(COUNT - i) * 3 * BLOCK);
        }
        OK(lanefs_listio(list, COUNT));
        memset(memory, 0, COUNT * BLOCK);
        for (int i = 0; i < COUNT; i++) {
            CHECK(list[i].done == BLOCK && list[i].error == 0);
            list[i].opcode = LANEFS_IO_READ;
            list[i].done = list[i].error = -1;
        }
        OK(lanefs_listio(list, COUNT));
        for (int i = 0; i < COUNT; i++) {
            CHECK(list[i].done == BLOCK && list[i].error == 0);
            for (int at = 0; at < BLOCK; at++)
                CHECK(memory[i * BLOCK + at] == 'A' + i + round);
        }
    }
    free(memory);
    OK(lanefs_close(file));
}

static void failures(struct lanefs_volume *vol)
{
    struct lanefs_file *file, *closed, *blind;
    char a[8] = "", b[8] = "";

    CHECK((file = lanefs_open(vol, "/few", O_RDWR | O_CREAT | O_TRUNC, 0644)));
    CHECK((blind = lanefs_open(vol, "/few", O_WRONLY, 0)));
    CHECK((closed = lanefs_open(vol, "/few", O_RDWR, 0)));
    CHECK(lanefs_pwrite(file, "content", 7, 0) == 7);
    OK(lanefs_close(closed));
    struct lanefs_io list[] = {
        io(file, LANEFS_IO_READ, a, 8, 3),      io(closed, LANEFS_IO_READ, b, 8, 0),
        io(blind, LANEFS_IO_READ, b, 8, 0),     io(file, LANEFS_IO_WRITE, NULL, 8, 0),
        io(file, 7, b, 8, 0),                   io(file, LANEFS_IO_READ, b, 8, -1),
        io(blind, LANEFS_IO_WRITE, "more", 4, 100),
    };
    const int errors[] = {0, EBADF, EBADF, EFAULT, EINVAL, EINVAL, 0};
    const ssize_t done[] = {4, -1, -1, -1, -1, -1, 4};
    FAILS(EIO, lanefs_listio(list, 7));
    CHECK(strstr(lanefs_last_error(), "request 1"));
    for (int i = 0; i < 7; i++)
        CHECK(list[i].error == errors[i] && list[i].done == done[i]);
    CHECK(memcmp(a, "tent", 5) == 0 && *b == 0);
    CHECK(lanefs_pread(file, a, 8, 100) == 4 && memcmp(a, "more", 4) == 0);
    OK(lanefs_listio(NULL, 0));
    FAILS(EFAULT, lanefs_listio(NULL, 1));
    FAILS(EINVAL, lanefs_listio(list, -1));
    OK(lanefs_close(file));
    OK(lanefs_close(blind));
}

int main(int argc, char **argv)
{
    const char *options[] = {"io=direct", "io=direct,io_uring=off", NULL};
    struct lanefs_volume *vol;

    CHECK(argc == 2);
    OK(lanefs_mkfs(argv[1], 64 << 20, NULL));
    for (int i = 0; i < 3; i++) {
        CHECK((vol = lanefs_open_volume(argv[1], options[i])));
        blocks(vol, O_DIRECT);
        blocks(vol, 0);
        failures(vol);
        OK(lanefs_close_volume(vol));
    }
    puts("all batches carried out");
    return 0;
}
